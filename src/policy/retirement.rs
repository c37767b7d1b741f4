//! How clients are informed that an endpoint will be removed: `Deprecation` (RFC 9745), `Sunset` (RFC 8594) and `Link` (RFC 8288)
//! with the relations registered by those, and `successor-version` (RFC 5829).
//!
//! Values only: an endpoint past its sunset is served until it is removed from the configuration.

use http::{HeaderName, HeaderValue, Uri};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;

use super::words::words;

/// When an endpoint is or was deprecated: a structured date, `@1796083200` (RFC 9745 section 2).
const DEPRECATION: HeaderName = HeaderName::from_static("deprecation");
/// When it may be removed: an HTTP date (RFC 8594 section 3).
const SUNSET: HeaderName = HeaderName::from_static("sunset");
/// The longest link: far above any real one, and far below what clients accept as a header.
const LINK_BYTES_MAX: usize = 1_024;

words! {
    /// The relation of a link of a retiring endpoint, with its registered name, in the order of the header's values.
    #[derive(PartialOrd, Ord)]
    pub enum Relation {
        /// About the deprecation (RFC 9745 section 4.1).
        Deprecation = "deprecation",
        /// About the sunset (RFC 8594 section 6).
        Sunset = "sunset",
        /// The replacement (RFC 5829 section 3.3).
        SuccessorVersion = "successor-version",
    }
}

/// The target of a link: an `http` or `https` address, or a path of this API, in the characters of a URI (RFC 3986 appendix A).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkTarget(String);

impl LinkTarget {
    /// Parses a target that may be used in a `Link` header.
    pub fn parse(text: &str) -> Option<LinkTarget> {
        const NO_URI: &[u8] = b"<>\"{}|\\^`";
        let plain = text.len() <= LINK_BYTES_MAX
            && text
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && !NO_URI.contains(&byte));
        let uri = text.parse::<Uri>().ok().filter(|_| plain)?;
        let leads_somewhere = match (uri.scheme_str(), uri.host()) {
            (Some("http" | "https"), Some(host)) => !host.is_empty(),
            (None, None) => text.starts_with('/') && !text.starts_with("//"),
            _ => false,
        };
        leads_somewhere.then(|| LinkTarget(text.to_owned()))
    }

    /// The target as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The announced retirement of an endpoint: when, and where to read about it. The default announces nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retirement {
    /// When the endpoint is deprecated.
    pub deprecation: Option<Timestamp>,
    /// When it may be removed.
    pub sunset: Option<Timestamp>,
    /// Pages about it.
    pub links: Vec<(Relation, LinkTarget)>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// The sunset is before the deprecation, which RFC 9745 section 4 forbids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the sunset is before the deprecation")]
pub struct SunsetFirst;

impl Retirement {
    /// The announcement with these instants and links.
    ///
    /// # Errors
    /// If the sunset is before the deprecation.
    pub fn new(
        deprecation: Option<Timestamp>,
        sunset: Option<Timestamp>,
        links: Vec<(Relation, LinkTarget)>,
    ) -> Result<Retirement, SunsetFirst> {
        if let (Some(deprecation), Some(sunset)) = (deprecation, sunset)
            && sunset < deprecation
        {
            return Err(SunsetFirst);
        }
        let mut headers = Vec::new();
        let mut add = |name, text: Option<String>| {
            let value = text.and_then(|text| HeaderValue::try_from(text).ok());
            headers.extend(value.map(|value| (name, value)));
        };
        add(
            DEPRECATION,
            deprecation.map(|instant| format!("@{}", instant.as_second())),
        );
        add(SUNSET, sunset.and_then(http_date));
        let joined: Vec<String> = links
            .iter()
            .map(|(relation, target)| format!("<{}>; rel=\"{}\"", target.0, relation.as_str()))
            .collect();
        let joined = joined.join(", ");
        add(http::header::LINK, (!joined.is_empty()).then_some(joined));
        Ok(Retirement {
            deprecation,
            sunset,
            links,
            headers,
        })
    }

    /// `Deprecation`, `Sunset` and `Link`, those that are announced; built once.
    pub fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.headers
    }

    /// Whether nothing is announced.
    pub fn is_none(&self) -> bool {
        self.headers.is_empty()
    }
}

/// An HTTP date (RFC 9110 section 5.6.7); `None` after the year 9999.
fn http_date(instant: Timestamp) -> Option<String> {
    DateTimePrinter::new()
        .timestamp_to_rfc9110_string(&instant)
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Option<Timestamp> {
        Some(text.parse().unwrap())
    }

    fn shown(retirement: &Retirement) -> Vec<String> {
        let headers = retirement.headers().iter();
        headers
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect()
    }

    #[test]
    fn the_headers_have_the_forms_of_their_rfcs() {
        let links = [
            (Relation::Deprecation, "https://example.com/deprecation#why"),
            (Relation::SuccessorVersion, "/api/v2/data/markets"),
        ];
        let links = links.map(|(relation, target)| (relation, LinkTarget::parse(target).unwrap()));
        let retirement = Retirement::new(
            at("2026-12-01T00:00:00Z"),
            at("2027-06-30T00:00:00Z"),
            links.into(),
        );
        assert_eq!(
            shown(&retirement.unwrap()),
            [
                "deprecation: @1796083200",
                "sunset: Wed, 30 Jun 2027 00:00:00 GMT",
                "link: <https://example.com/deprecation#why>; rel=\"deprecation\", </api/v2/data/markets>; rel=\"successor-version\"",
            ]
        );
        assert!(Retirement::default().is_none());
    }

    #[test]
    fn a_sunset_may_come_with_the_deprecation_and_not_before_it() {
        let deprecation = at("2026-12-01T00:00:00Z");
        let new = |sunset| Retirement::new(deprecation, at(sunset), Vec::new());
        assert!(new("2026-12-01T00:00:00Z").is_ok());
        assert_eq!(new("2026-11-30T23:59:59Z"), Err(SunsetFirst));
        assert!(Retirement::new(None, at("2026-11-30T00:00:00Z"), Vec::new()).is_ok());
    }

    #[test]
    fn a_link_leads_to_an_address_or_a_path_and_cannot_break_out_of_its_header() {
        for good in [
            "https://example.com/",
            "http://example.com/a?b=c#d",
            "/docs/v2",
        ] {
            assert!(LinkTarget::parse(good).is_some(), "{good}");
        }
        let long = format!("/{}", "a".repeat(LINK_BYTES_MAX));
        for bad in [
            "",
            "docs",
            "//example.com/a",
            "ftp://example.com/",
            "javascript:alert(1)",
            "https:///a",
            "/a>; rel=\"x\"",
            "/a b",
            "/a/{id}",
            "/a|b",
            "/a\\b",
            "/a^b",
            "/a`b",
            "/a\r\nX: y",
            "/é",
            &long,
        ] {
            assert_eq!(LinkTarget::parse(bad), None, "{bad:?}");
        }
    }
}

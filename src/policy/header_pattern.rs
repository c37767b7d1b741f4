//! Lists of headers that operators do not want forwarded: whole names, and prefixes of names followed by `*`.
//!
//! Names are compared in lower case, with all but letters and digits taken as `-`, because some servers do not distinguish them.

use std::str::FromStr;

use http::HeaderName;

/// One entry of such a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderPattern {
    /// This name.
    Name(HeaderName),
    /// Every name with this prefix, which is not empty.
    Prefix(String),
}

/// The text is neither a header name nor a prefix of one followed by `*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoPattern;

impl FromStr for HeaderPattern {
    type Err = NoPattern;

    fn from_str(text: &str) -> Result<HeaderPattern, NoPattern> {
        let name = |text: &str| {
            let name = text.parse::<HeaderName>().ok();
            name.filter(|name| !name.as_str().contains('*'))
                .ok_or(NoPattern)
        };
        match text.strip_suffix('*') {
            Some(beginning) => Ok(HeaderPattern::Prefix(name(beginning)?.as_str().to_owned())),
            None => Ok(HeaderPattern::Name(name(text)?)),
        }
    }
}

/// A list of header names, built once for a configuration.
#[derive(Debug, Default)]
pub struct HeaderNames {
    /// Sorted, in lower case with `-` for each octet but letters and digits.
    names: Vec<String>,
    prefixes: Vec<String>,
}

impl HeaderNames {
    /// The names that match one of `patterns`.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a HeaderPattern>) -> HeaderNames {
        let mut all = HeaderNames::default();
        let folded = |text: &str| {
            let octets = text.bytes().map(folded_octet);
            octets.map(char::from).collect()
        };
        for pattern in patterns {
            match pattern {
                HeaderPattern::Name(name) => all.names.push(folded(name.as_str())),
                HeaderPattern::Prefix(beginning) => all.prefixes.push(folded(beginning)),
            }
        }
        all.names.sort_unstable();
        all
    }

    /// Whether a name, as received, is in the list. Cost: a binary search, and a comparison for each prefix; no allocation.
    pub fn fits(&self, name: &[u8]) -> bool {
        let folded = || name.iter().map(|octet| folded_octet(*octet));
        let order = |listed: &String| listed.bytes().cmp(folded());
        self.names.binary_search_by(order).is_ok()
            || self.prefixes.iter().any(|prefix| begins(name, prefix))
    }
}

/// Whether a name, as received, begins with `prefix`, which is folded.
pub fn begins(name: &[u8], prefix: &str) -> bool {
    let folded = name.iter().map(|octet| folded_octet(*octet));
    name.len() >= prefix.len() && prefix.bytes().eq(folded.take(prefix.len()))
}

/// An octet of a name, in lower case with `-` for all but letters and digits: variables of CGI (RFC 3875 section 4.1.18) have `_` for
/// each of these in some servers.
pub fn folded_octet(octet: u8) -> u8 {
    match octet.is_ascii_alphanumeric() {
        true => octet.to_ascii_lowercase(),
        false => b'-',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_prefixes_of_names_are_distinguished_and_read_in_lower_case() {
        for (text, written) in [
            ("Cookie", "cookie"),
            ("x-auth-request-*", "x-auth-request-*"),
            ("X_Own*", "x_own*"),
        ] {
            let read = match text.parse().unwrap() {
                HeaderPattern::Name(name) => name.to_string(),
                HeaderPattern::Prefix(beginning) => format!("{beginning}*"),
            };
            assert_eq!(read, written);
        }
        for none in ["", "*", "a b", "a*b", "a**", "a:", "ä"] {
            assert_eq!(none.parse::<HeaderPattern>(), Err(NoPattern), "{none:?}");
        }
    }

    #[test]
    fn a_list_holds_names_whole_and_by_their_beginnings_in_either_spelling() {
        let patterns = ["cookie", "x_real_ip", "x-auth-request-*", "x_own_*"];
        let patterns = patterns.map(|text| text.parse().unwrap());
        let names = HeaderNames::new(&patterns);
        let holds = |name: &str| {
            let upper = name.to_ascii_uppercase();
            let held = names.fits(name.as_bytes());
            assert_eq!(names.fits(upper.as_bytes()), held, "{name}");
            held
        };
        for held in [
            "cookie",
            "x-real-ip",
            "x_real_ip",
            "x-auth-request-email",
            "x_auth_request_email",
            "x.auth.request.email",
            "x~real!ip",
            "x-auth-request-",
            "x-own-a",
        ] {
            assert!(holds(held), "{held}");
        }
        for other in ["cookies", "cooki", "x-auth-request", "x-owner", "x-real"] {
            assert!(!holds(other), "{other}");
        }
    }
}

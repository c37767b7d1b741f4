//! Where a request without TLS is redirected: to the same host, path and query over HTTPS.
//!
//! The host becomes part of an answer, so it must be valid in a URL, and one of the configured hosts if there are any. The target
//! must meet the same rules as everywhere; a request that violates them gets its 400 here. An API key is not read; only its
//! presence is noted.

use http::HeaderName;

use super::http1;
use super::http1::request::RequestHead;
use super::rejection::{Malformed, Rejection};

const HTTPS_PORT: u16 = 443;
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The configured redirect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The port of HTTPS as seen by clients.
    pub port: u16,
    /// The allowed hosts, in lower case; empty for any.
    pub hosts: Vec<String>,
}

/// A redirect of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    /// The URL of `Location`.
    pub location: String,
    /// Whether an API key was sent in clear text.
    pub shows_key: bool,
}

/// The redirect for a request.
///
/// # Errors
/// With the refusal of a request that is not redirected.
pub fn redirect(head: &RequestHead, rule: &Rule) -> Result<Redirect, Rejection> {
    let target = head
        .target()
        .map_err(|error| Rejection::BadRequest(Malformed::Target(error)))?;
    let query = target.query.map(|query| format!("?{query}"));
    let host = head.host().and_then(name_of);
    let host = host.ok_or(Rejection::BadRequest(Malformed::Host))?;
    if !rule.hosts.is_empty() && !rule.hosts.contains(&host) {
        return Err(Rejection::BadRequest(Malformed::OtherHost));
    }
    let port = match rule.port {
        HTTPS_PORT => String::new(),
        port => format!(":{port}"),
    };
    Ok(Redirect {
        location: format!(
            "https://{host}{port}{}{}",
            target.path,
            query.unwrap_or_default()
        ),
        shows_key: head.fields.first(&X_API_KEY).is_some(),
    })
}

/// The host without its port, in lower case, if it is valid.
fn name_of(host: &[u8]) -> Option<String> {
    if !http1::is_host(host) {
        return None;
    }
    let host = std::str::from_utf8(host).ok()?;
    let name = match host.rsplit_once(':') {
        Some((name, _)) if !host.ends_with(']') => name,
        Some(_) | None => host,
    };
    Some(name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::policy::http1::HeadBounds;
    use crate::policy::http1::request::RequestReader;

    const BOUNDS: HeadBounds = HeadBounds {
        target_bytes_max: 64,
        header_bytes_max: 256,
        header_count_max: 4,
    };

    fn redirected(head: &str, rule: &Rule) -> Result<Redirect, Rejection> {
        let mut buffer = BytesMut::from(head);
        let head = RequestReader::default().take(&mut buffer, &BOUNDS)?;
        redirect(&head.expect("a whole head"), rule)
    }

    fn location(head: &str, rule: &Rule) -> Result<String, Rejection> {
        redirected(head, rule).map(|redirect| redirect.location)
    }

    fn rule(port: u16, hosts: &[&str]) -> Rule {
        Rule {
            port,
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        }
    }

    #[test]
    fn host_path_and_query_stay_and_only_the_port_is_ours() {
        let any = rule(443, &[]);
        for (target, host, expected) in [
            ("/a/b?c=d&e", "api.example", "https://api.example/a/b?c=d&e"),
            ("/", "API.example:80", "https://api.example/"),
            ("/", "[2001:db8::1]:80", "https://[2001:db8::1]/"),
            ("/", "[2001:db8::1]", "https://[2001:db8::1]/"),
            ("/%C3%A9", " 192.0.2.1 ", "https://192.0.2.1/%C3%A9"),
        ] {
            let head = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert_eq!(location(&head, &any).as_deref(), Ok(expected));
        }
        let head = "GET /x HTTP/1.1\r\nhOST: a:80\r\n\r\n";
        let other = location(head, &rule(8443, &[]));
        assert_eq!(other.as_deref(), Ok("https://a:8443/x"));
    }

    #[test]
    fn a_host_that_is_no_name_or_not_ours_and_an_ambiguous_target_are_refused() {
        let ours = rule(443, &["api.example"]);
        let refused = |target: &str, host: &str, rule: &Rule| {
            let head = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            location(&head, rule).unwrap_err()
        };
        let code = |target: &str, host: &str, rule: &Rule| refused(target, host, rule).code();
        let other = Rejection::BadRequest(Malformed::OtherHost);
        assert_eq!(refused("/", "evil.example", &ours), other);
        let invalid = Rejection::BadRequest(Malformed::Host);
        assert_eq!(refused("/", "a@b", &ours), invalid);
        for host in [
            "evil.example",
            "api.example.evil.example",
            "",
            "xapi.example",
        ] {
            assert_eq!(code("/", host, &ours), "BAD_REQUEST", "{host}");
        }
        let any = rule(443, &[]);
        for host in ["a/b", "a@b", "a,b", "a b", "a?b", "a#b", "[::1", ""] {
            assert_eq!(code("/", host, &any), "BAD_REQUEST", "{host}");
        }
        for target in ["//evil.example", "/../x", "http://a//", "*", "/a;b", "/%2e"] {
            assert_eq!(code(target, "a", &any), "BAD_REQUEST", "{target}");
        }
        let hostless = location("GET / HTTP/1.0\r\n\r\n", &any);
        assert!(hostless.is_err());
        let ours = location("GET / HTTP/1.1\r\nHost: API.example:80\r\n\r\n", &ours);
        assert_eq!(ours.as_deref(), Ok("https://api.example/"));
    }

    #[test]
    fn that_a_key_was_sent_is_seen_and_nothing_else_of_it() {
        let any = rule(443, &[]);
        for (field, expected) in [
            ("X-API-Key: fpd_secret", true),
            ("x-api-KEY:", true),
            ("X-API-Keys: a", false),
            ("A: X-API-Key: a", false),
        ] {
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
            let redirect = redirected(&head, &any).unwrap();
            assert_eq!(redirect.shows_key, expected, "{field}");
            assert!(!redirect.location.contains("secret"));
        }
    }
}

//! Paths as attackers write them, and the normalisation of a path by several kinds of upstreams.
//!
//! Each normaliser decodes once. One that decodes twice is a hole of its own, which no gateway can close for it.

use std::borrow::Cow;
use std::sync::Arc;

use icu_normalizer::ComposingNormalizerBorrowed;

/// The pieces of paths: those of endpoints, and those that servers read differently.
const PIECES: [&str; 53] = [
    "api",
    "v1",
    "data",
    "markets",
    "predictions",
    "insights",
    "rankings",
    "fx-1",
    "usage",
    "a",
    "/",
    "/",
    "/",
    "/",
    "/",
    "//",
    "\\",
    "%2f",
    "%2F",
    "%5c",
    "%5C",
    "%252f",
    ".",
    "..",
    "%2e",
    "%2E",
    "%2e%2e",
    "..;",
    ";",
    ";x=1",
    "%3b",
    "%00",
    "%0a",
    "%20",
    " ",
    "+",
    "?",
    "%3f",
    "#",
    "%23",
    "%",
    "%2",
    "%zz",
    "%41",
    "%61",
    "%C3%A9",
    "%ef%bc%8e",
    "%ef%bc%8f",
    "%e2%80%a5",
    "%cd%be",
    "%ef%bc%9f",
    "%ff",
    "\u{e9}",
];
/// Paths of endpoints, to be modified.
const STEMS: [&str; 6] = [
    "/api/v1/data/markets",
    "/api/v1/data/predictions",
    "/api/v1/data/predictions/fx-1",
    "/api/v1/data/insights",
    "/api/v1/data/rankings",
    "/api/v1/usage",
];

/// A path: a stem with pieces put into it, or pieces alone.
pub fn generated(random: &mut fastrand::Rng) -> String {
    let mut path = match random.u8(..4) {
        0 => "/".to_owned(),
        _ => STEMS[random.usize(..STEMS.len())].to_owned(),
    };
    for _ in 0..random.u8(..6) {
        let piece = PIECES[random.usize(..PIECES.len())];
        let places: Vec<usize> = path.char_indices().map(|(at, _)| at).collect();
        match random.u8(..3) {
            0 => path.push_str(piece),
            1 => {
                path.push('/');
                path.push_str(piece);
            }
            _ => path.insert_str(places[random.usize(..places.len())], piece),
        }
    }
    path
}

/// A kind of upstream and its normalisation of a path.
pub type Normaliser = (&'static str, fn(&str) -> String);

/// Upstreams of several kinds.
pub const NORMALISERS: [Normaliser; 9] = [
    ("decodes", decoded),
    ("RFC 3986 section 6", rfc3986),
    ("decodes, merges slashes, resolves dots (nginx)", nginx),
    ("cuts parameters off, then as nginx (servlets)", servlet),
    (
        "takes backslashes for slashes, then as nginx (IIS)",
        backslashes,
    ),
    ("ends at a NUL, merges slashes (C strings)", c_string),
    (
        "decodes, cuts parameters off, then as nginx (filters before servlets)",
        decoded_parameters,
    ),
    (
        "decodes, ends at a query or fragment, then as nginx (rewriting proxies)",
        decoded_query,
    ),
    ("decodes, normalises to NFKC, then as nginx", compatible),
];

fn decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = match (first, after) {
            (b'%', [high, low, ..]) => std::str::from_utf8(&[*high, *low])
                .ok()
                .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
                .and_then(|digits| u8::from_str_radix(digits, 16).ok()),
            _ => None,
        };
        match escaped {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Escaped unreserved characters decoded, dot segments removed, nothing else.
fn rfc3986(path: &str) -> String {
    let mut normal = String::new();
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        normal.push_str(&rest[..at]);
        let escape = rest.get(at..at + 3).unwrap_or(&rest[at..]);
        let byte = decoded(escape);
        let unreserved = |one: char| one.is_ascii_alphanumeric() || "-._~".contains(one);
        if escape.len() == 3 && byte.len() == 1 && byte.chars().all(unreserved) {
            normal.push_str(&byte);
        } else {
            normal.push_str(&escape.to_ascii_uppercase());
        }
        rest = &rest[at + escape.len()..];
    }
    normal.push_str(rest);
    without_dots(&normal)
}

fn nginx(path: &str) -> String {
    resolved(&decoded(path))
}

fn servlet(path: &str) -> String {
    nginx(&without_parameters(path))
}

fn decoded_parameters(path: &str) -> String {
    resolved(&without_parameters(&decoded(path)))
}

fn decoded_query(path: &str) -> String {
    let decoded = decoded(path);
    resolved(decoded.split(['?', '#']).next().unwrap_or_default())
}

fn compatible(path: &str) -> String {
    resolved(&compatibility_form(&decoded(path)))
}

/// A text in Unicode's normalisation form NFKC.
pub fn compatibility_form(text: &str) -> Cow<'_, str> {
    ComposingNormalizerBorrowed::new_nfkc().normalize(text)
}

fn backslashes(path: &str) -> String {
    resolved(&decoded(path).replace('\\', "/"))
}

fn c_string(path: &str) -> String {
    let decoded = decoded(path);
    with_single_slashes(decoded.split('\0').next().unwrap_or_default())
}

fn without_parameters(path: &str) -> String {
    let segments: Vec<&str> = path
        .split('/')
        .map(|segment| segment.split(';').next().unwrap_or_default())
        .collect();
    segments.join("/")
}

fn resolved(path: &str) -> String {
    without_dots(&with_single_slashes(path))
}

fn with_single_slashes(path: &str) -> String {
    let mut single = path.to_owned();
    while single.contains("//") {
        single = single.replace("//", "/");
    }
    single
}

fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    for (number, segment) in segments.iter().enumerate() {
        let last = number + 1 == segments.len();
        match *segment {
            "." if last => kept.push(""),
            "." => {}
            ".." => {
                kept.pop();
                if last {
                    kept.push("");
                }
            }
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

/// The counts of generated paths that no normaliser turned into another endpoint.
#[derive(Debug, Default)]
pub struct Judged {
    /// Refused.
    pub refused: u64,
    /// Well-formed, but no endpoint.
    pub unknown: u64,
    /// Found, and read in the same way by every normaliser.
    pub found: u64,
}

/// Has this number of generated paths read by a gateway and by every normaliser: `path` returns the path of a well-formed target,
/// `endpoint` the pattern of the endpoint that a path matches.
///
/// # Errors
/// The first path that an upstream takes for another endpoint than the gateway did, or that does not begin with the matched path.
pub fn judge(
    random: &mut fastrand::Rng,
    paths: u64,
    path: impl Fn(&str) -> Option<&str>,
    endpoint: impl Fn(&str) -> Option<Arc<str>>,
) -> Result<Judged, String> {
    let mut judged = Judged::default();
    for _ in 0..paths {
        let sent = generated(random);
        let Some(matched) = path(&sent) else {
            judged.refused += 1;
            continue;
        };
        let Some(ours) = endpoint(matched) else {
            judged.unknown += 1;
            continue;
        };
        judged.found += 1;
        // The matched path is forwarded byte for byte.
        if !sent.starts_with(matched) {
            return Err(format!("{sent:?} was matched as {matched:?}"));
        }
        for (name, normalise) in NORMALISERS {
            let read = normalise(matched);
            if endpoint(&read).is_some_and(|theirs| theirs != ours) {
                return Err(format!(
                    "{sent:?} is {ours} for us and {read:?} for one that {name}"
                ));
            }
        }
    }
    Ok(judged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalisers_do_what_such_servers_do() {
        for (path, expected) in [
            (
                "/a/../b",
                [
                    "/a/../b", "/b", "/b", "/b", "/b", "/a/../b", "/b", "/b", "/b",
                ],
            ),
            (
                "/a%2f..%2fb",
                [
                    "/a/../b",
                    "/a%2F..%2Fb",
                    "/b",
                    "/b",
                    "/b",
                    "/a/../b",
                    "/b",
                    "/b",
                    "/b",
                ],
            ),
            (
                "/a;x/../b",
                [
                    "/a;x/../b",
                    "/b",
                    "/b",
                    "/b",
                    "/b",
                    "/a;x/../b",
                    "/b",
                    "/b",
                    "/b",
                ],
            ),
            (
                "/x/..;/b",
                [
                    "/x/..;/b", "/x/..;/b", "/x/..;/b", "/b", "/x/..;/b", "/x/..;/b", "/b",
                    "/x/..;/b", "/x/..;/b",
                ],
            ),
            (
                "/x/..%3b/b",
                [
                    "/x/..;/b",
                    "/x/..%3B/b",
                    "/x/..;/b",
                    "/x/..;/b",
                    "/x/..;/b",
                    "/x/..;/b",
                    "/b",
                    "/x/..;/b",
                    "/x/..;/b",
                ],
            ),
            (
                "/a%3f/b",
                [
                    "/a?/b", "/a%3F/b", "/a?/b", "/a?/b", "/a?/b", "/a?/b", "/a?/b", "/a", "/a?/b",
                ],
            ),
            (
                "/x/%e2%80%a5%ef%bc%8fb",
                [
                    "/x/\u{2025}\u{ff0f}b",
                    "/x/%E2%80%A5%EF%BC%8Fb",
                    "/x/\u{2025}\u{ff0f}b",
                    "/x/\u{2025}\u{ff0f}b",
                    "/x/\u{2025}\u{ff0f}b",
                    "/x/\u{2025}\u{ff0f}b",
                    "/x/\u{2025}\u{ff0f}b",
                    "/x/\u{2025}\u{ff0f}b",
                    "/b",
                ],
            ),
            (
                "/a\\..\\b",
                [
                    "/a\\..\\b",
                    "/a\\..\\b",
                    "/a\\..\\b",
                    "/a\\..\\b",
                    "/b",
                    "/a\\..\\b",
                    "/a\\..\\b",
                    "/a\\..\\b",
                    "/a\\..\\b",
                ],
            ),
            (
                "/%61//b%00c",
                [
                    "/a//b\0c",
                    "/a//b%00c",
                    "/a/b\0c",
                    "/a/b\0c",
                    "/a/b\0c",
                    "/a/b",
                    "/a/b\0c",
                    "/a/b\0c",
                    "/a/b\0c",
                ],
            ),
        ] {
            for ((name, normalise), expected) in NORMALISERS.iter().zip(expected) {
                assert_eq!(normalise(path), expected, "{path}: {name}");
            }
        }
    }
}

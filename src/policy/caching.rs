//! Who may cache the answer to a request with an API key: its caller only (RFC 9111).
//!
//! Shared caches know that an answer to `Authorization` belongs to one caller, but do not know `X-API-Key`. So every forwarded
//! answer without `no-store` gets `private` and loses the directives for shared caches; each names `X-API-Key` in `Vary` for caches
//! shared by several keys. The upstream's other directives stay.

use http::HeaderValue;

use super::http1::fields::list;

/// Forbids all caching.
pub const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
/// Forbids shared caching.
const PRIVATE: HeaderValue = HeaderValue::from_static("private");

/// The new `Cache-Control` of an answer whose upstream sent `values`, or `None` if it stays unchanged. A value that cannot be
/// parsed becomes `no-store`.
pub fn cache_control<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Option<HeaderValue> {
    let mut kept: Vec<&str> = Vec::new();
    let (mut is_private, mut is_for_others) = (false, false);
    let (mut is_forbidden, mut is_conditional) = (false, false);
    for value in values {
        let Some(directives) = std::str::from_utf8(value).ok().and_then(directives) else {
            return Some(NO_STORE);
        };
        for directive in directives {
            let (name, argument) = match directive.split_once('=') {
                Some((name, argument)) => (name.trim_end(), Some(argument)),
                None => (directive, None),
            };
            let is = |word: &str| name.eq_ignore_ascii_case(word);
            is_forbidden |= is("no-store");
            // Caches that know it ignore the `no-store` beside it (RFC 9111 section 5.2.2.3).
            is_conditional |= is("must-understand");
            // `private="field"` leaves the rest of the answer to shared caches.
            let for_others = ["public", "s-maxage", "proxy-revalidate", "private"];
            if is("private") && argument.is_none() {
                is_private = true;
            } else if for_others.into_iter().any(is) {
                is_for_others = true;
            } else {
                kept.push(directive);
            }
        }
    }
    if is_forbidden {
        return is_conditional.then_some(NO_STORE);
    }
    if is_private && !is_for_others {
        return None;
    }
    if kept.is_empty() {
        return Some(PRIVATE);
    }
    kept.insert(0, "private");
    // Consists of parts of valid values.
    Some(HeaderValue::try_from(kept.join(", ")).unwrap_or(NO_STORE))
}

/// Whether `Cache-Control` forbids changes of a message's bytes (RFC 9111 sections 5.2.1.6 and 5.2.2.6). A value that cannot be
/// parsed does.
pub fn forbids_change<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> bool {
    values.into_iter().any(|value| {
        let directives = std::str::from_utf8(value).ok().and_then(directives);
        directives.is_none_or(|all| {
            let mut all = all.into_iter();
            all.any(|directive| directive.eq_ignore_ascii_case("no-transform"))
        })
    })
}

/// The directives of a line, without surrounding white space; commas within quotes do not separate them. `None` if a quote does
/// not end.
fn directives(line: &str) -> Option<Vec<&str>> {
    let (mut all, mut start, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (at, character) in line.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ',' if !quoted => {
                all.push(line.get(start..at)?.trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    all.push(line.get(start..)?.trim());
    all.retain(|directive| !directive.is_empty());
    (!quoted).then_some(all)
}

/// Whether `Vary` already names `header`.
pub fn varies_by<'a>(values: impl IntoIterator<Item = &'a [u8]>, header: &str) -> bool {
    let mut names = values.into_iter().flat_map(list);
    names.any(|name| name == b"*" || name.eq_ignore_ascii_case(header.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(values: &[&str]) -> Option<String> {
        let control = cache_control(values.iter().map(|value| value.as_bytes()));
        control.map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn an_answer_becomes_private_and_what_is_stricter_stands() {
        for (values, expected) in [
            (&[][..], Some("private")),
            (&[""], Some("private")),
            (&["max-age=60"], Some("private, max-age=60")),
            (&["public, max-age=60"], Some("private, max-age=60")),
            (
                &["PUBLIC , s-maxage=600", "must-revalidate"],
                Some("private, must-revalidate"),
            ),
            (&["no-cache"], Some("private, no-cache")),
            (
                &["private=\"set-cookie, public\", max-age=5"],
                Some("private, max-age=5"),
            ),
            (
                &["ext=\"a, no-store\\\", b\", max-age=1"],
                Some("private, ext=\"a, no-store\\\", b\", max-age=1"),
            ),
            (&["proxy-revalidate,,"], Some("private")),
            (&["no-store"], None),
            (&["public", "No-Store"], None),
            (&["Private, max-age=60"], None),
            (&["Private, max-age=60", "must-revalidate"], None),
            (
                &["private, max-age=60, Public, s-maxage=600"],
                Some("private, max-age=60"),
            ),
            (&["private", "s-maxage=600"], Some("private")),
            (&["private, private=\"a\""], Some("private")),
            (&["private, public, no-store"], None),
            (&["no-store, must-understand", "public"], Some("no-store")),
            (
                &["must-understand, max-age=5"],
                Some("private, must-understand, max-age=5"),
            ),
            (&["ext=\"never ends, private"], Some("no-store")),
            (&["private", "ext=\"never ends"], Some("no-store")),
        ] {
            assert_eq!(control(values).as_deref(), expected, "{values:?}");
        }
        assert_eq!(cache_control([&b"max-age=\xff"[..]]), Some(NO_STORE));
    }

    #[test]
    fn a_vary_that_names_the_header_or_everything_is_enough() {
        let varies = |value: &str| varies_by([value.as_bytes()], "x-api-key");
        assert!(varies("Accept, X-API-Key") && varies("*") && varies("accept,*"));
        assert!(!varies("") && !varies("Accept") && !varies("X-API-Key-2"));
    }
}

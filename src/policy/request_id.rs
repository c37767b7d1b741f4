//! Request ids: a client's own is kept if it is harmless, else a new one is made.

use std::borrow::Cow;

use http::HeaderValue;

use super::api_key::{self, KeyPrefix};
use super::octets::push_hex;

/// The longest client-sent id that is kept.
const CHARS_MAX: usize = 128;

/// Whether a client-sent `X-Request-Id` is kept: 1 to 128 characters of `[A-Za-z0-9._-]`.
pub fn is_acceptable(value: &[u8]) -> bool {
    (1..=CHARS_MAX).contains(&value.len())
        && value
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// The client's id if it is kept: harmless, and without an API key with this prefix or the `presented` one, which would be written to
/// every log.
pub fn kept<'a>(
    client_sent: &'a [u8],
    prefix: &KeyPrefix,
    presented: Option<&[u8]>,
) -> Option<&'a str> {
    let text = std::str::from_utf8(client_sent).ok()?;
    let harmless = is_acceptable(client_sent)
        && matches!(
            api_key::redacted_beside(text, prefix, || presented),
            Cow::Borrowed(_)
        );
    harmless.then_some(text)
}

/// The id of a request that presents this key: the client's own if it is kept, else a new one from `random` bits.
pub fn of(
    client_sent: Option<&[u8]>,
    prefix: &KeyPrefix,
    presented: Option<&[u8]>,
    random: impl FnOnce() -> u128,
) -> HeaderValue {
    let id = match client_sent.and_then(|sent| kept(sent, prefix, presented)) {
        Some(kept) => HeaderValue::from_str(kept),
        None => HeaderValue::try_from(from_random(random())),
    };
    // Both are characters of a header value.
    id.unwrap_or(HeaderValue::from_static(""))
}

/// A new id from 128 random bits, as 32 hexadecimal characters.
fn from_random(random: u128) -> String {
    let mut id = Vec::with_capacity(32);
    push_hex(&mut id, random.to_be_bytes());
    String::from_utf8(id).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_1_to_128_harmless_characters_is_kept() {
        assert!(!is_acceptable(b""));
        assert!(is_acceptable(b"a"));
        assert!(is_acceptable(b"Az09._-"));
        assert!(is_acceptable(&[b'x'; 128]));
        assert!(!is_acceptable(&[b'x'; 129]));
        for bad in ["a b", "a\"b", "a/b", "é", "a\n"] {
            assert!(!is_acceptable(bad.as_bytes()), "{bad:?}");
        }
    }

    #[test]
    fn a_new_id_is_acceptable_itself() {
        assert!(is_acceptable(from_random(1).as_bytes()));
        assert_eq!(from_random(u128::MAX).len(), 32);
    }
}

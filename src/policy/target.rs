//! Request targets (contract step 1): only targets that every server reads in the same way are accepted.
//!
//! The gateway decides on a path and the upstream acts on it, so both must see the same bytes. There is no decoding and no
//! normalisation: a target that another server might read differently (RFC 3986 sections 2 to 3.4 and 6.2.2) is refused, and an
//! accepted one is forwarded byte for byte. Nothing is decided on the query, which may have the characters that a URL's query has in
//! browsers (the URL standard's query state), also those that RFC 3986 would have encoded.

use std::borrow::Cow;

use super::octets::{self, OctetSet};
use super::words::words;

words! {
    /// Why a request target is refused, in a sentence for the client.
    pub enum TargetError {
        /// Not origin-form: it does not begin with `/`.
        NotOriginForm = "The request target must begin with a slash.",
        /// Absolute-form without a host, with a user, or with an invalid port.
        InvalidAuthority = "The request target must have a host, and nothing before it.",
        /// A control, a space, a byte of 0x80 or above, or one of `"<>#`; in the path also one of `[\]^{|}` or the backquote.
        ForbiddenCharacter = "The request target has a character that must be percent-encoded.",
        /// `;`, which some servers take as the end of a segment.
        PathParameter = "The path must not contain a semicolon.",
        /// `//`.
        EmptySegment = "The path must not contain an empty segment.",
        /// `.` or `..` as a segment.
        DotSegment = "The path must not contain dot segments.",
        /// `%` without two hexadecimal digits.
        InvalidEscape = "The request target has a percent sign without two hexadecimal digits.",
        /// An escape that hides a separator, what becomes a separator or a dot segment in Unicode's form NFKC, a control or a
        /// character that needs no escape.
        AmbiguousEscape = "The path has a percent-encoded character that is a separator, a control character or needs no encoding.",
        /// Escaped bytes that are not UTF-8.
        NotUtf8 = "The path has percent-encoded bytes that are not UTF-8.",
    }
}

/// An accepted target, whose path is matched and forwarded unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target<'a> {
    /// From the first `/` to the `?` or the end.
    pub path: &'a str,
    /// The part after the first `?`.
    pub query: Option<&'a str>,
    checked: Checked,
}

/// Proof of the checks: only this module makes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Checked;

impl<'a> Target<'a> {
    /// Checks the raw bytes between method and version. Cost: one pass, without allocation unless there is escaped non-ASCII.
    pub fn parse(raw: &'a [u8]) -> Result<Target<'a>, TargetError> {
        Target::check(raw).map(|(target, _)| target)
    }

    /// Checks a target like [`Target::parse`], and keeps its text.
    pub(super) fn receive(raw: &[u8]) -> Result<ReceivedTarget, TargetError> {
        Target::check(raw).map(|(target, text)| ReceivedTarget {
            path_bytes: target.path.len(),
            text: text.to_owned(),
            error: None,
        })
    }

    fn check(raw: &'a [u8]) -> Result<(Target<'a>, &'a str), TargetError> {
        if raw.first() != Some(&b'/') {
            return Err(TargetError::NotOriginForm);
        }
        let text = std::str::from_utf8(raw).map_err(|_| TargetError::ForbiddenCharacter)?;
        let target = Target::split(text);
        let query = target.query.unwrap_or_default();
        if !PATH.contains_all(target.path.as_bytes()) || !QUERY.contains_all(query.as_bytes()) {
            return Err(TargetError::ForbiddenCharacter);
        }
        check_path(target.path)?;
        if query.contains('%') {
            escapes(query)
                .try_for_each(|escape| escape.map(|_| ()).ok_or(TargetError::InvalidEscape))?;
        }
        Ok((target, text))
    }

    fn split(text: &'a str) -> Target<'a> {
        let (path, query) = match text.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (text, None),
        };
        Target {
            path,
            query,
            checked: Checked,
        }
    }
}

/// A target in the head of a request, and the result of its check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedTarget {
    text: String,
    /// The bytes before the first `?`.
    path_bytes: usize,
    /// Why it is refused, if it is.
    error: Option<TargetError>,
}

impl ReceivedTarget {
    /// A target with this text. Cost: its check, one allocation, and a search for the `?`.
    pub fn new(text: &str) -> ReceivedTarget {
        ReceivedTarget {
            path_bytes: Target::split(text).path.len(),
            text: text.to_owned(),
            error: Target::parse(text.as_bytes()).err(),
        }
    }

    /// The target as checked when it was received.
    ///
    /// # Errors
    /// The same as [`Target::parse`].
    pub fn target(&self) -> Result<Target<'_>, TargetError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(Target {
                path: self.path(),
                query: self.text.get(self.path_bytes + 1..),
                checked: Checked,
            }),
        }
    }

    /// Path and query.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The path.
    pub fn path(&self) -> &str {
        self.text.get(..self.path_bytes).unwrap_or_default()
    }
}

/// A target in absolute-form: a URL of http or https (RFC 9112 section 3.2.2). Neither part has been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Absolute<'a> {
    /// Replaces `Host`.
    pub authority: &'a [u8],
    /// The path and query, possibly nothing.
    pub rest: &'a [u8],
}

impl<'a> Absolute<'a> {
    /// The parts of `raw`, or `None` if it is not in absolute-form. Cost: one pass over the authority, nothing for other forms.
    pub fn of(raw: &'a [u8]) -> Option<Absolute<'a>> {
        let after = |scheme: &[u8]| {
            let (start, rest) = raw.split_at_checked(scheme.len())?;
            start.eq_ignore_ascii_case(scheme).then_some(rest)
        };
        let url = after(b"http://").or_else(|| after(b"https://"))?;
        let is_end = |byte: &u8| matches!(byte, b'/' | b'?' | b'#');
        let end = url.iter().position(is_end).unwrap_or(url.len());
        let (authority, rest) = url.split_at(end);
        Some(Absolute { authority, rest })
    }

    /// Path and query; an empty path is `/` (RFC 9112 section 3.2.1).
    pub fn origin_form(&self) -> Cow<'a, [u8]> {
        match self.rest.first() {
            Some(b'/') => Cow::Borrowed(self.rest),
            Some(_) | None => Cow::Owned([b"/", self.rest].concat()),
        }
    }
}

fn check_path(path: &str) -> Result<(), TargetError> {
    let octets = path.as_bytes();
    // Most paths contain nothing of what is examined below.
    let is_plain = !octets::any(octets, |octet| matches!(octet, b';' | b'%' | b'.'));
    let pairs = octets.windows(2);
    if is_plain && !pairs.fold(false, |found, pair| found | (pair == b"//")) {
        return Ok(());
    }
    if octets.contains(&b';') {
        return Err(TargetError::PathParameter);
    }
    if octets.windows(2).any(|pair| pair == b"//") {
        return Err(TargetError::EmptySegment);
    }
    if octets.contains(&b'%') {
        check_escapes(path)?;
    }
    let mut segments = octets.split(|octet| *octet == b'/');
    if segments.any(|segment| segment == b"." || segment == b"..") {
        return Err(TargetError::DotSegment);
    }
    Ok(())
}

fn check_escapes(path: &str) -> Result<(), TargetError> {
    let mut is_ascii = true;
    for escape in escapes(path) {
        let byte = escape.ok_or(TargetError::InvalidEscape)?;
        let unreserved = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
        let separator = matches!(byte, b'/' | b'\\' | b';' | b'?' | b'#');
        if unreserved || separator || byte.is_ascii_control() {
            return Err(TargetError::AmbiguousEscape);
        }
        is_ascii &= byte.is_ascii();
    }
    if is_ascii {
        return Ok(());
    }
    // A raw path is ASCII, so any raw character ends a run of escaped bytes; decoding the whole path detects an incomplete run.
    let decoded = decode(path);
    let text = std::str::from_utf8(&decoded).map_err(|_| TargetError::NotUtf8)?;
    let is_ambiguous = |one: char| one.is_control() || is_compatible_separator(one);
    match text.chars().any(is_ambiguous) {
        true => Err(TargetError::AmbiguousEscape),
        false => Ok(()),
    }
}

/// Whether Unicode's form NFKC of a character beyond ASCII is one or two dots, or has a separator or `%`.
fn is_compatible_separator(character: char) -> bool {
    matches!(
        character,
        '\u{37e}'
            | '\u{2024}'..='\u{2025}'
            | '\u{2047}'..='\u{2049}'
            | '\u{2100}'..='\u{2101}'
            | '\u{2105}'..='\u{2106}'
            | '\u{fe14}'
            | '\u{fe16}'
            | '\u{fe30}'
            | '\u{fe52}'
            | '\u{fe54}'
            | '\u{fe56}'
            | '\u{fe5f}'
            | '\u{fe68}'
            | '\u{fe6a}'
            | '\u{ff03}'
            | '\u{ff05}'
            | '\u{ff0e}'..='\u{ff0f}'
            | '\u{ff1b}'
            | '\u{ff1f}'
            | '\u{ff3c}'
    )
}

/// Every `%XX` of `text` as its byte, or `None` if its digits are missing or wrong.
fn escapes(text: &str) -> impl Iterator<Item = Option<u8>> {
    text.split('%').skip(1).map(|rest| {
        let digits = rest.get(..2)?;
        digits
            .bytes()
            .all(|digit| digit.is_ascii_hexdigit())
            .then_some(())?;
        u8::from_str_radix(digits, 16).ok()
    })
}

/// The bytes that `path` stands for; its escapes have been checked.
fn decode(path: &str) -> Vec<u8> {
    let mut pieces = path.split('%');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2).unwrap_or((piece, ""));
        bytes.extend(u8::from_str_radix(digits, 16).ok());
        bytes.extend_from_slice(rest.as_bytes());
    }
    bytes
}

/// The characters that RFC 3986 allows in a path, and `%`.
static PATH: OctetSet = OctetSet::alphanumeric_and(b"-._~!$&'()*+,;=:@/%");
/// Those that browsers leave as they are in a query, and `%`.
static QUERY: OctetSet = OctetSet::alphanumeric_and(b"-._~!$&'()*+,;=:@/?%[\\]^`{|}");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_ordinary_target_is_accepted_as_it_stands() {
        let target = Target::parse(b"/api/v1/data/predictions/fx-1001?page=2&team=A%20B").unwrap();
        assert_eq!(target.path, "/api/v1/data/predictions/fx-1001");
        assert_eq!(target.query, Some("page=2&team=A%20B"));
        for fine in [
            "/",
            "/a/",
            "/a.b/..c/...",
            "/%C3%A9",
            "/a%2525",
            "/a?b=/../c",
            "/a?b=%2e",
            "/a?b=%3B%3f%23%ef%bc%8f",
            "/a%E2%80%A6",
            "/a%c2%a0",
            "/a?",
            "/a:b@c,d",
            "/a?page[number]=1&a={x}|y^z`\\",
            "/a??",
        ] {
            assert!(Target::parse(fine.as_bytes()).is_ok(), "{fine}");
        }
    }

    #[test]
    fn each_ambiguous_form_is_refused_with_its_reason() {
        use TargetError::*;
        for (raw, reason) in [
            ("", NotOriginForm),
            ("*", NotOriginForm),
            ("api/v1", NotOriginForm),
            ("http://h/a", NotOriginForm),
            ("?x", NotOriginForm),
            ("/a b", ForbiddenCharacter),
            ("/a\\b", ForbiddenCharacter),
            ("/a[b]", ForbiddenCharacter),
            ("/a{b}?c", ForbiddenCharacter),
            ("/a#b", ForbiddenCharacter),
            ("/a\0b", ForbiddenCharacter),
            ("/a\tb", ForbiddenCharacter),
            ("/é", ForbiddenCharacter),
            ("/a<b>", ForbiddenCharacter),
            ("/a?b=\"c\"", ForbiddenCharacter),
            ("/a?b=c#d", ForbiddenCharacter),
            ("/a;b=1", PathParameter),
            ("/a/..;/b", PathParameter),
            ("//", EmptySegment),
            ("/a//b", EmptySegment),
            ("//evil/a", EmptySegment),
            ("/a/.", DotSegment),
            ("/a/..", DotSegment),
            ("/./a", DotSegment),
            ("/a/../b", DotSegment),
            ("/a%", InvalidEscape),
            ("/a%4", InvalidEscape),
            ("/a%zz", InvalidEscape),
            ("/a%+1", InvalidEscape),
            ("/a?b=%", InvalidEscape),
            ("/a?b=%g0", InvalidEscape),
            ("/a%2fb", AmbiguousEscape),
            ("/a%2Fb", AmbiguousEscape),
            ("/a%5cb", AmbiguousEscape),
            ("/a%00b", AmbiguousEscape),
            ("/a%0d%0ab", AmbiguousEscape),
            ("/a%7f", AmbiguousEscape),
            ("/%2e%2e/a", AmbiguousEscape),
            ("/%2E./a", AmbiguousEscape),
            ("/%61dmin", AmbiguousEscape),
            ("/%7euser", AmbiguousEscape),
            ("/a%3bb", AmbiguousEscape),
            ("/a%3Fb", AmbiguousEscape),
            ("/a%23b", AmbiguousEscape),
            ("/%ef%bc%8e%ef%bc%8e", AmbiguousEscape),
            ("/a%ef%bc%8fb", AmbiguousEscape),
            ("/a%c2%80", AmbiguousEscape),
            ("/a%C2%9f", AmbiguousEscape),
            ("/%c0%ae", NotUtf8),
            ("/%e0%80%af", NotUtf8),
            ("/%C3/%A9", NotUtf8),
            ("/%C3x%A9", NotUtf8),
        ] {
            assert_eq!(Target::parse(raw.as_bytes()), Err(reason), "{raw:?}");
        }
        assert_eq!(Target::parse(b"/a\xff"), Err(ForbiddenCharacter));
    }

    #[test]
    fn an_absolute_form_is_an_authority_and_an_origin_form() {
        for (raw, authority, origin) in [
            ("http://h/a?b", "h", "/a?b"),
            ("HTTPS://[::1]:8443/a//b", "[::1]:8443", "/a//b"),
            ("http://h", "h", "/"),
            ("http://h?a=/b", "h", "/?a=/b"),
            ("http://h#a", "h", "/#a"),
            ("http://u@h/a", "u@h", "/a"),
            ("http:///a", "", "/a"),
            ("http://", "", "/"),
        ] {
            let absolute = Absolute::of(raw.as_bytes()).unwrap();
            assert_eq!(absolute.authority, authority.as_bytes(), "{raw}");
            assert_eq!(*absolute.origin_form(), *origin.as_bytes(), "{raw}");
        }
        for other in [
            "",
            "/http://h/",
            "http:/h/",
            "http:h",
            "ftp://h/",
            "httpx://h/",
            "h:80",
        ] {
            assert_eq!(Absolute::of(other.as_bytes()), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn an_accepted_path_means_the_same_to_a_server_that_decodes_and_normalises(raw in "(/[a-z.%2ef5cC0-9;~]{0,6}){1,5}") {
            if let Ok(target) = Target::parse(raw.as_bytes()) {
                // Decoding once neither adds a separator nor a dot segment, so the segments stay the same in number and order.
                let decoded = String::from_utf8(decode(target.path)).unwrap();
                prop_assert_eq!(decoded.split('/').count(), target.path.split('/').count());
                prop_assert!(decoded.split('/').all(|segment| segment != "." && segment != ".."));
                prop_assert!(!decoded.contains('\\') && !decoded.contains("//") && !decoded.chars().any(char::is_control));
            }
        }

        #[test]
        fn parsing_never_panics(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(target) = Target::parse(&raw) {
                let whole = target.query.map_or(target.path.to_owned(), |query| format!("{}?{query}", target.path));
                prop_assert_eq!(whole.as_bytes(), raw.as_slice());
            }
        }
    }
}

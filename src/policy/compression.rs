//! Whether an upstream's answer is compressed on its way to the client, in which content coding, and the resulting header (RFC
//! 9110 sections 8.4 and 12.5.3).
//!
//! An answer passes unchanged if its upstream has encoded it, has sealed it with a digest or a signature, or forbids changes.

use std::cmp::Reverse;

use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE,
    ETAG, IF_NONE_MATCH, VARY,
};
use http::{HeaderName, HeaderValue, StatusCode};

use super::caching;
use super::http1::fields::{FieldList, list};
use super::words::words;

/// Media types that compress well, besides `text/*` and those with a suffix below.
const APPLICATION_TYPES: [&str; 11] = [
    "csv",
    "graphql",
    "javascript",
    "json",
    "json-seq",
    "jsonl",
    "ndjson",
    "x-javascript",
    "x-ndjson",
    "xml",
    "yaml",
];
/// Structured syntax suffixes (RFC 6838 section 4.2.8) of types that compress well.
const SUFFIXES: [&str; 3] = ["+json", "+xml", "+yaml"];
/// Headers that depend on the exact bytes of an answer: RFC 9530, its predecessors, and RFC 9421.
const SEALS: [HeaderName; 5] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("signature"),
];

words! {
    /// A content coding that the gateway can apply, with its name in headers and in the configuration; the cheapest and most
    /// effective first.
    pub enum Coding {
        /// `zstd` (RFC 8878).
        Zstd = "zstd",
        /// `gzip` (RFC 1952).
        Gzip = "gzip",
    }
}

impl Coding {
    /// Whether `name` means this coding; `x-gzip` is `gzip` (RFC 9110 section 8.4.1.3).
    fn is_named(self, name: &[u8]) -> bool {
        name.eq_ignore_ascii_case(self.as_str().as_bytes())
            || (self == Coding::Gzip && name.eq_ignore_ascii_case(b"x-gzip"))
    }
}

/// The configured compression of upstream answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compression {
    /// The codings, at least one; if a client prefers several equally, the first of them is used.
    pub codings: Vec<Coding>,
    /// A shorter answer of known length passes unchanged; at least 1.
    pub bytes_min: u64,
}

/// How an answer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyCoding {
    /// Not compressible.
    Untouched,
    /// Compressible, but not for this client.
    Plain,
    /// Compressed, if it has a body.
    Coded(Coding),
}

impl Compression {
    /// How to send the answer with `status` and `fields` to a request with the fields `asked`; `length` is that of the body, if
    /// known. The method does not matter: the answer to `HEAD` has the head of the answer to `GET`.
    pub fn verdict(
        &self,
        asked: &FieldList,
        status: StatusCode,
        length: Option<u64>,
        fields: &FieldList,
    ) -> BodyCoding {
        if status == StatusCode::NOT_MODIFIED {
            // It is not known whether the answer that the client has is compressible.
            return BodyCoding::Plain;
        }
        if !has_whole_body(status) || !self.takes(length, fields) {
            return BodyCoding::Untouched;
        }
        match self.wanted(asked) {
            Some(coding) if !caching::forbids_change(asked.all(&CACHE_CONTROL)) => {
                BodyCoding::Coded(coding)
            }
            Some(_) | None => BodyCoding::Plain,
        }
    }

    fn takes(&self, length: Option<u64>, fields: &FieldList) -> bool {
        let coded = fields
            .all(&CONTENT_ENCODING)
            .flat_map(list)
            .any(|coding| !coding.eq_ignore_ascii_case(b"identity"));
        fields.first(&CONTENT_TYPE).is_some_and(becomes_smaller)
            && !coded
            && length.is_none_or(|bytes| bytes >= self.bytes_min.max(1))
            && !fields.contains(&CONTENT_RANGE)
            && !SEALS.iter().any(|seal| fields.contains(seal))
            && !caching::forbids_change(fields.all(&CACHE_CONTROL))
    }

    /// The coding that the client prefers, unless it prefers none.
    fn wanted(&self, asked: &FieldList) -> Option<Coding> {
        let listed = || asked.all(&ACCEPT_ENCODING).flat_map(list);
        let weight_of = |is: &dyn Fn(&[u8]) -> bool| {
            let mut weighted = listed().filter_map(weighted);
            weighted.find_map(|(name, weight)| is(name).then_some(weight))
        };
        let any = weight_of(&|name| name == b"*");
        let plain = weight_of(&|name| name.eq_ignore_ascii_case(b"identity")).or(any);
        let weights = self.codings.iter().filter_map(|coding| {
            let weight = weight_of(&|name| coding.is_named(name)).or(any)?;
            (weight > 0).then_some((*coding, weight))
        });
        // The first of equal ones.
        let (coding, weight) = weights.min_by_key(|(_, weight)| Reverse(*weight))?;
        (weight >= plain.unwrap_or(0)).then_some(coding)
    }
}

impl BodyCoding {
    /// Sets the header of an answer according to the verdict; `asked` are the fields of its request. A compressed answer has no
    /// known length and no ranges.
    pub fn mark(self, asked: &FieldList, status: StatusCode, fields: &mut FieldList) {
        match self {
            BodyCoding::Untouched => {}
            BodyCoding::Plain => {
                vary(fields);
                if status == StatusCode::NOT_MODIFIED {
                    renew(asked, fields);
                }
            }
            BodyCoding::Coded(coding) => {
                vary(fields);
                fields.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.as_str()));
                fields.remove(&ACCEPT_RANGES);
                weaken(fields);
            }
        }
    }
}

/// Whether an answer with this status has a body, and a complete one (RFC 9110 section 15).
fn has_whole_body(status: StatusCode) -> bool {
    !status.is_informational()
        && ![
            StatusCode::NO_CONTENT,
            StatusCode::RESET_CONTENT,
            StatusCode::PARTIAL_CONTENT,
            StatusCode::NOT_MODIFIED,
        ]
        .contains(&status)
}

/// Whether answers of this media type compress well.
fn becomes_smaller(content_type: &[u8]) -> bool {
    let essence = content_type.split(|byte| *byte == b';').next();
    let essence = std::str::from_utf8(essence.unwrap_or_default()).unwrap_or_default();
    let Some((kind, subtype)) = essence.trim().split_once('/') else {
        return false;
    };
    let ends_with = |suffix: &&str| {
        let start = subtype.len().checked_sub(suffix.len());
        let end = start.and_then(|start| subtype.get(start..));
        end.is_some_and(|end| end.eq_ignore_ascii_case(suffix))
    };
    kind.eq_ignore_ascii_case("text")
        || SUFFIXES.iter().any(ends_with)
        || (kind.eq_ignore_ascii_case("application")
            && APPLICATION_TYPES
                .iter()
                .any(|one| subtype.eq_ignore_ascii_case(one)))
}

/// A coding and its weight in thousandths, or `None` if it violates RFC 9110 section 12.4.2.
fn weighted(member: &[u8]) -> Option<(&[u8], u16)> {
    let mut parts = member.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let name = parts.next()?;
    let weight = match parts.next() {
        None => 1_000,
        Some([b'q' | b'Q', b'=', value @ ..]) => thousandths(value)?,
        Some(_) => return None,
    };
    parts.next().is_none().then_some((name, weight))
}

/// Parses `0`, `0.5`, `1.000`: one digit and up to three decimals; at most 1.
fn thousandths(value: &[u8]) -> Option<u16> {
    let (whole, fraction) = match value {
        [whole] => (whole, &[][..]),
        [whole, b'.', fraction @ ..] if fraction.len() <= 3 => (whole, fraction),
        _ => return None,
    };
    let mut weight = match whole {
        b'0' => 0,
        b'1' => 1_000,
        _ => return None,
    };
    let mut place = 100;
    for digit in fraction {
        weight += u16::from(digit.checked_sub(b'0').filter(|digit| *digit <= 9)?) * place;
        place /= 10;
    }
    (weight <= 1_000).then_some(weight)
}

/// Adds to `Vary` that answers differ by the codings that a client accepts.
fn vary(fields: &mut FieldList) {
    if caching::varies_by(fields.all(&VARY), ACCEPT_ENCODING.as_str()) {
        return;
    }
    let names: Vec<&[u8]> = fields.all(&VARY).collect();
    let names = [&names[..], &[b"accept-encoding"]]
        .concat()
        .join(&b", "[..]);
    // The bytes come from valid header values.
    let merged = HeaderValue::from_bytes(&names).unwrap_or(HeaderValue::from_static("*"));
    fields.insert(VARY, merged);
}

/// Makes the entity tag weak, because two forms of an answer now share it (RFC 9110 section 8.8.1).
fn weaken(fields: &mut FieldList) {
    let Some(tag) = fields.first(&ETAG) else {
        return;
    };
    if tag.starts_with(b"W/") {
        return;
    }
    match HeaderValue::from_bytes(&weak(tag)) {
        Ok(weak) if tag.starts_with(b"\"") => fields.insert(ETAG, weak),
        // An invalid tag (section 8.8.3).
        Ok(_) | Err(_) => fields.remove(&ETAG),
    }
}

/// Repeats the weak form of the tag if the client's stored answer has it: the upstream's strong one would not allow the client to
/// reuse that answer (RFC 9111 section 4.3.4).
fn renew(asked: &FieldList, fields: &mut FieldList) {
    let Some(tag) = fields.first(&ETAG) else {
        return;
    };
    let weak = weak(tag);
    let mut held = asked.all(&IF_NONE_MATCH);
    let is_held = held.any(|tags| tags.windows(weak.len()).any(|part| part == weak));
    if tag.starts_with(b"\"") && is_held {
        weaken(fields);
    }
}

fn weak(tag: &[u8]) -> Vec<u8> {
    [b"W/", tag].concat()
}

#[cfg(test)]
mod tests;

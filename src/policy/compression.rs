//! Whether an upstream's answer is compressed on its way to the client, in which content coding, and what its header then says
//! (RFC 9110 sections 8.4 and 12.5.3).
//!
//! An answer that its upstream has coded itself, has sealed with a digest or a signature, or forbids to change goes through as it is.

use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE,
    ETAG, IF_NONE_MATCH, VARY,
};
use http::{HeaderName, HeaderValue, StatusCode};

use super::caching;
use super::http1::fields::FieldList;

/// Types that become smaller, beside `text/*` and those by their suffix.
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
/// Structured syntax suffixes (RFC 6838 section 4.2.8) of such types.
const SUFFIXES: [&str; 3] = ["+json", "+xml", "+yaml"];
/// What says of the very bytes of an answer that they are these: RFC 9530, its forerunners, and RFC 9421.
const SEALS: [HeaderName; 5] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("signature"),
];

/// A content coding that the gateway can apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// `gzip` (RFC 1952).
    Gzip,
    /// `zstd` (RFC 8878).
    Zstd,
}

impl Coding {
    /// All of them, the one that costs least and saves most first.
    pub const ALL: [Coding; 2] = [Coding::Zstd, Coding::Gzip];

    /// Its name in headers and in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Coding::Gzip => "gzip",
            Coding::Zstd => "zstd",
        }
    }

    /// Whether a client names it so; `x-gzip` is `gzip` (RFC 9110 section 8.4.1.3).
    fn is_named(self, name: &[u8]) -> bool {
        name.eq_ignore_ascii_case(self.as_str().as_bytes())
            || (self == Coding::Gzip && name.eq_ignore_ascii_case(b"x-gzip"))
    }
}

/// What of an upstream's answers is compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compression {
    /// The codings, at least one; of those that a client likes equally well, the first.
    pub codings: Vec<Coding>,
    /// An answer that is known to be shorter goes as it is; at least 1.
    pub bytes_min: u64,
}

/// What is to be done with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is none of those that are compressed.
    Untouched,
    /// It could be, but not for this client.
    Plain,
    /// It is, if it has a body.
    Coded(Coding),
}

impl Compression {
    /// What to do with the answer of `status` and `fields` to a request with `asked`, whose body has a `length` where that is known. The
    /// method does not matter: the answer to `HEAD` has the head of the one to `GET`.
    pub fn verdict(
        &self,
        asked: &FieldList,
        status: StatusCode,
        length: Option<u64>,
        fields: &FieldList,
    ) -> Verdict {
        if status == StatusCode::NOT_MODIFIED {
            // Of the answer that the client has it is not known whether it is one of those.
            return Verdict::Plain;
        }
        if !has_whole_body(status) || !self.takes(length, fields) {
            return Verdict::Untouched;
        }
        match self.wanted(asked) {
            Some(coding) if !caching::forbids_change(asked.all(&CACHE_CONTROL)) => {
                Verdict::Coded(coding)
            }
            Some(_) | None => Verdict::Plain,
        }
    }

    fn takes(&self, length: Option<u64>, fields: &FieldList) -> bool {
        let coded = fields
            .all(&CONTENT_ENCODING)
            .flat_map(members)
            .any(|coding| !coding.eq_ignore_ascii_case(b"identity"));
        fields.first(&CONTENT_TYPE).is_some_and(becomes_smaller)
            && !coded
            && length.is_none_or(|bytes| bytes >= self.bytes_min.max(1))
            && !fields.contains(&CONTENT_RANGE)
            && !SEALS.iter().any(|seal| fields.contains(seal))
            && !caching::forbids_change(fields.all(&CACHE_CONTROL))
    }

    /// The coding that the client likes best, if it likes one as much as none.
    fn wanted(&self, asked: &FieldList) -> Option<Coding> {
        let listed = || asked.all(&ACCEPT_ENCODING).flat_map(members);
        let weight_of = |is: &dyn Fn(&[u8]) -> bool| {
            let mut weighted = listed().filter_map(weighted);
            weighted.find_map(|(name, weight)| is(name).then_some(weight))
        };
        let any = weight_of(&|name| name == b"*");
        let plain = weight_of(&|name| name.eq_ignore_ascii_case(b"identity")).or(any);
        let mut best: Option<(Coding, u16)> = None;
        for coding in &self.codings {
            let weight = weight_of(&|name| coding.is_named(name)).or(any);
            let weight = weight.filter(|weight| *weight > 0);
            if let Some(weight) = weight
                && best.is_none_or(|(_, most)| weight > most)
            {
                best = Some((*coding, weight));
            }
        }
        let (coding, weight) = best?;
        (weight >= plain.unwrap_or(0)).then_some(coding)
    }
}

impl Verdict {
    /// States in an answer's head what is done with it; `asked` are the fields of its request. Its length is not known any more where
    /// it is coded, nor are ranges of it.
    pub fn mark(self, asked: &FieldList, status: StatusCode, fields: &mut FieldList) {
        match self {
            Verdict::Untouched => {}
            Verdict::Plain => {
                vary(fields);
                if status == StatusCode::NOT_MODIFIED {
                    renew(asked, fields);
                }
            }
            Verdict::Coded(coding) => {
                vary(fields);
                fields.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.as_str()));
                fields.remove(&ACCEPT_RANGES);
                weaken(fields);
            }
        }
    }
}

/// Whether an answer of this status has a body of its own, and all of it (RFC 9110 section 15).
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

/// Whether answers of this media type become smaller.
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

/// The members of a list, without white space around them.
fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|member| !member.is_empty())
}

/// A coding and its weight in thousandths; `None` where it is not written as RFC 9110 section 12.4.2 says.
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

/// `0`, `0.5`, `1.000`: one digit, and up to three behind the point; at most 1.
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

/// Says that answers differ by what codings a client takes.
fn vary(fields: &mut FieldList) {
    if caching::varies_by(fields.all(&VARY), ACCEPT_ENCODING.as_str()) {
        return;
    }
    let names: Vec<&[u8]> = fields.all(&VARY).collect();
    let names = [&names[..], &[b"accept-encoding"]]
        .concat()
        .join(&b", "[..]);
    // Made of what was the header's value.
    let merged = HeaderValue::from_bytes(&names).unwrap_or(HeaderValue::from_static("*"));
    fields.insert(VARY, merged);
}

/// Two forms of an answer share its tag from now on, which a strong one says they do not (RFC 9110 section 8.8.1).
fn weaken(fields: &mut FieldList) {
    let Some(tag) = fields.first(&ETAG) else {
        return;
    };
    if tag.starts_with(b"W/") {
        return;
    }
    match HeaderValue::from_bytes(&weak(tag)) {
        Ok(weak) if tag.starts_with(b"\"") => fields.insert(ETAG, weak),
        // No tag at all (section 8.8.3).
        Ok(_) | Err(_) => fields.remove(&ETAG),
    }
}

/// Calls the answer that a client has by the name that it has it under, where that is the weak form: the upstream's own would not
/// let it be kept any longer (RFC 9111 section 4.3.4).
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

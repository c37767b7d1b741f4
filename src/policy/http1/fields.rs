//! The fields of a head or of a trailer section (RFC 9112 section 5): the only reader of field lines in the gateway.
//!
//! Lines are read one by one as they arrive, and a verdict on a line never depends on later bytes: the result is the same however
//! the bytes were split. A field is kept as its position in the buffer; nothing is copied, and there is no map.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::framing::KnownField;
use super::grammar::{TOKEN, is_field_value};
use super::version::Version;

/// Names that `Connection` may nominate, in a head; no known client or server nominates more than three.
const NOMINATED_MAX: usize = 16;
const CLOSE: &[u8] = b"close";
const KEEP_ALIVE: &[u8] = b"keep-alive";
/// Room for the fields of an ordinary head.
const ORDINARY_FIELDS: usize = 16;
/// Room for white space around values, which the limit of the headers does not count.
const SLACK_BYTES: usize = 1024;

/// The limits of a section of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldBounds {
    /// Bytes of all names and values, plus four for each field.
    pub bytes_max: usize,
    /// Fields.
    pub count_max: usize,
}

/// Why a section of fields cannot be read further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldFault {
    /// A line that is not a field, or that servers read in different ways.
    Malformed,
    /// More bytes or more fields than the bounds allow.
    TooLarge,
}

/// A range of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FieldRange {
    start: u32,
    end: u32,
}

impl FieldRange {
    pub(super) fn new(start: usize, end: usize) -> FieldRange {
        // Bounds are far below 4 GiB; a place beyond that is empty.
        let short = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        FieldRange {
            start: short(start),
            end: short(end),
        }
    }

    pub(super) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    fn bytes(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// The bytes of the place; empty if `bytes` is not its buffer.
    pub(super) fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.range()).unwrap_or_default()
    }
}

/// The places of a field's name and value, and what its name is known as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FieldPlace {
    pub(super) name: FieldRange,
    pub(super) value: FieldRange,
    pub(super) known: Option<KnownField>,
}

impl FieldPlace {
    /// The field in its buffer.
    fn of(self, bytes: &[u8]) -> Field<'_> {
        Field {
            name: self.name.of(bytes),
            value: self.value.of(bytes),
            known: self.known,
        }
    }
}

/// The members of a list, without surrounding white space (RFC 9110 section 5.6.1).
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let members = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    members.filter(|member| !member.is_empty())
}

/// The options of all `Connection` fields of a head.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Options {
    close: bool,
    keep_alive: bool,
    /// The number of others, which nominate fields.
    nominated: usize,
}

impl Options {
    /// Adds those of a field.
    pub(super) fn note(&mut self, value: &[u8]) -> Result<(), FieldFault> {
        for option in list(value) {
            if option.eq_ignore_ascii_case(CLOSE) {
                self.close = true;
            } else if option.eq_ignore_ascii_case(KEEP_ALIVE) {
                self.keep_alive = true;
            } else {
                self.nominated += 1;
            }
        }
        match self.nominated > NOMINATED_MAX {
            true => Err(FieldFault::Malformed),
            false => Ok(()),
        }
    }

    /// Whether the connection stays open after the message (RFC 9112 section 9.3).
    pub(super) fn keeps_open(self, version: Version) -> bool {
        match version {
            Version::Http11 | Version::Http2 => !self.close,
            Version::Http10 => self.keep_alive && !self.close,
        }
    }
}

/// A field of a parsed head: a token, and a value without control characters or surrounding white space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// The name, as it was sent.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    known: Option<KnownField>,
}

impl<'a> Field<'a> {
    fn of(name: &'a HeaderName, value: &'a [u8]) -> Field<'a> {
        let name = name.as_str().as_bytes();
        Field {
            name,
            value,
            known: KnownField::of(name),
        }
    }

    fn is_hop_by_hop(&self) -> bool {
        self.known.is_some_and(KnownField::is_hop_by_hop)
    }
}

/// A name and a text that do not make a field to be forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a field that belongs to one connection, or a control character in its value")]
pub struct NoField;

/// A field that may be forwarded: it neither frames the message nor belongs to one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndToEnd<'a>(Field<'a>);

impl<'a> EndToEnd<'a> {
    /// The field of a name and a value, or `None` if it must not be forwarded.
    #[cfg(test)]
    pub(super) fn of(name: &'a HeaderName, value: &'a HeaderValue) -> Option<EndToEnd<'a>> {
        let field = Field::of(name, value.as_bytes());
        (!field.is_hop_by_hop()).then_some(EndToEnd(field))
    }

    /// A field of the gateway with this text.
    ///
    /// # Errors
    /// If it must not be forwarded, or the text is not a valid value.
    pub fn of_text(name: &'a HeaderName, value: &'a [u8]) -> Result<EndToEnd<'a>, NoField> {
        let field = Field::of(name, value);
        match is_field_value(value) && !field.is_hop_by_hop() {
            true => Ok(EndToEnd(field)),
            false => Err(NoField),
        }
    }

    /// Whether the field is `Host`.
    pub(super) fn is_host(&self) -> bool {
        self.0.known == Some(KnownField::Host)
    }

    /// Whether the field has this name.
    pub fn is(&self, name: &HeaderName) -> bool {
        self.0.name.eq_ignore_ascii_case(name.as_str().as_bytes())
    }

    /// The name, as it was sent.
    pub fn name(&self) -> &'a [u8] {
        self.0.name
    }

    /// The value.
    pub fn value(&self) -> &'a [u8] {
        self.0.value
    }
}

/// The fields of a head, in order: first those that were read, as positions in their buffer, then those that were added. Names
/// over HTTP/1 keep their spelling. Finding a name scans all fields: heads have few.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct FieldList {
    bytes: Bytes,
    read: Vec<FieldPlace>,
    added: Vec<AddedField>,
}

/// A field that was not read from the buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AddedField {
    name: HeaderName,
    value: HeaderValue,
    known: Option<KnownField>,
}

impl AddedField {
    fn field(&self) -> Field<'_> {
        Field {
            name: self.name.as_str().as_bytes(),
            value: self.value.as_bytes(),
            known: self.known,
        }
    }
}

impl FieldList {
    /// No fields yet, with capacity for `added` ones.
    pub fn with_capacity(added: usize) -> FieldList {
        FieldList {
            added: Vec::with_capacity(added),
            ..FieldList::default()
        }
    }

    /// Fields read from this buffer.
    pub(super) fn new(bytes: Bytes, read: Vec<FieldPlace>) -> FieldList {
        FieldList {
            bytes,
            read,
            added: Vec::new(),
        }
    }

    /// All fields.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Field<'_>> {
        let read = self.read.iter().map(|place| place.of(&self.bytes));
        read.chain(self.added.iter().map(AddedField::field))
    }

    /// The number of fields.
    pub fn count(&self) -> usize {
        self.read.len() + self.added.len()
    }

    /// The bytes of all names and values.
    pub fn bytes(&self) -> usize {
        let each = |field: Field<'_>| field.name.len() + field.value.len();
        self.iter().map(each).sum()
    }

    /// The values of all fields of that name.
    pub fn all(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]> {
        let text = name.as_str().as_bytes();
        // Most names differ in length, which is compared without a look into the buffer.
        let read = self.read.iter().filter(move |place| {
            place.name.bytes() == text.len()
                && place.name.of(&self.bytes).eq_ignore_ascii_case(text)
        });
        let added = self.added.iter().filter(move |added| added.name == *name);
        let added = added.map(|added| added.value.as_bytes());
        read.map(|place| place.value.of(&self.bytes)).chain(added)
    }

    /// The value of the first field of that name.
    pub fn first(&self, name: &HeaderName) -> Option<&[u8]> {
        self.all(name).next()
    }

    /// Whether there is a field of that name.
    pub fn contains(&self, name: &HeaderName) -> bool {
        self.first(name).is_some()
    }

    /// All options of `Connection`, valid names or not.
    pub fn connection_options(&self) -> impl Iterator<Item = &[u8]> {
        let connection = |field: &Field<'_>| field.known == Some(KnownField::Connection);
        self.iter()
            .filter(connection)
            .flat_map(|field| list(field.value))
    }

    /// The valid names among them, which are nominated as hop-by-hop (RFC 9110 section 7.6.1). At most 16 in a parsed head.
    pub fn nominated(&self) -> impl Iterator<Item = &[u8]> {
        self.connection_options().filter(|option| {
            let is = |one: &[u8]| option.eq_ignore_ascii_case(one);
            !is(CLOSE) && !is(KEEP_ALIVE)
        })
    }

    /// The fields that may be forwarded: not those for framing, which the writer decides, nor those that belong to one connection
    /// or that `Connection` nominates.
    pub fn end_to_end(&self) -> impl Iterator<Item = EndToEnd<'_>> {
        let nominated: Vec<&[u8]> = self.nominated().collect();
        let passes = move |field: &Field<'_>| {
            let mut nominated = nominated.iter();
            !field.is_hop_by_hop() && !nominated.any(|one| one.eq_ignore_ascii_case(field.name))
        };
        self.iter().filter(passes).map(EndToEnd)
    }

    /// Retains the fields that satisfy `is_kept`.
    fn retain_fields(&mut self, mut is_kept: impl FnMut(Field<'_>) -> bool) {
        let bytes = &self.bytes;
        self.read.retain(|place| is_kept(place.of(bytes)));
        self.added.retain(|added| is_kept(added.field()));
    }

    /// Retains the fields whose names satisfy `is_kept`.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&[u8]) -> bool) {
        self.retain_fields(|field| is_kept(field.name));
    }

    /// Retains the fields that may be forwarded and whose names satisfy `is_kept`.
    pub fn retain_end_to_end(&mut self, is_kept: impl Fn(&[u8]) -> bool) {
        let nominated: Vec<Vec<u8>> = self.nominated().map(<[u8]>::to_vec).collect();
        self.retain_fields(|field| {
            let mut nominated = nominated.iter();
            !field.is_hop_by_hop()
                && !nominated.any(|one| one.eq_ignore_ascii_case(field.name))
                && is_kept(field.name)
        });
    }

    /// Removes all fields of that name.
    pub fn remove(&mut self, name: &HeaderName) {
        let name = name.as_str().as_bytes();
        self.retain(|other| !other.eq_ignore_ascii_case(name));
    }

    /// Replaces all fields of that name by one at the end.
    pub fn insert(&mut self, name: HeaderName, value: HeaderValue) {
        self.remove(&name);
        self.append(name, value);
    }

    /// Makes room for fields that are added next.
    pub fn reserve(&mut self, added: usize) {
        self.added.reserve(added);
    }

    /// Adds a field at the end.
    pub fn append(&mut self, name: HeaderName, value: HeaderValue) {
        let known = KnownField::of(name.as_str().as_bytes());
        self.added.push(AddedField { name, value, known });
    }

    /// The same fields as a map, for libraries, without the bytes that were read: the HTTP/2 library keeps values in the table of its
    /// connection (RFC 7541 section 2.3.2), each of which would keep the whole buffer, with parts of the body, in memory. Cost: an
    /// allocation for each value, and for each name that is not registered.
    pub fn into_map(self) -> HeaderMap {
        let mut map = HeaderMap::with_capacity(self.count());
        for place in &self.read {
            // A field that was read has a valid name and value.
            if let (Ok(name), Ok(value)) = (
                HeaderName::from_bytes(place.name.of(&self.bytes)),
                HeaderValue::from_bytes(place.value.of(&self.bytes)),
            ) {
                map.append(name, value);
            }
        }
        for added in self.added {
            map.append(added.name, added.value);
        }
        map
    }
}

impl From<HeaderMap> for FieldList {
    /// The fields of a message over HTTP/2, without the white space around values that is invalid there (RFC 9113 section 8.2.1) and
    /// that the library passes on. Cost: they are moved, with one allocation in all but for values with such white space.
    fn from(map: HeaderMap) -> FieldList {
        let mut fields = FieldList::with_capacity(map.len());
        let mut last = None;
        // Only the first of several values comes with the name.
        for (name, value) in map {
            last = name.or(last);
            if let Some(name) = &last {
                let trimmed = value.as_bytes().trim_ascii();
                let value = match trimmed.len() == value.len() {
                    true => value,
                    false => HeaderValue::from_bytes(trimmed).unwrap_or(value),
                };
                fields.append(name.clone(), value);
            }
        }
        fields
    }
}

/// Finds lines in a growing buffer; examines each byte once.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lines {
    /// The start of the present line.
    start: usize,
    /// The end of the examined bytes.
    seen: usize,
}

impl Lines {
    pub(super) fn starting_at(start: usize) -> Lines {
        Lines { start, seen: start }
    }

    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// The end of the present line, after its LF; `None` until it has arrived.
    pub(super) fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        let from = self.seen.max(self.start);
        match memchr::memchr(b'\n', bytes.get(from..)?) {
            Some(at) => Some(from + at + 1),
            None => {
                self.seen = bytes.len();
                None
            }
        }
    }

    /// Continues after the line that ends at `end`.
    pub(super) fn pass(&mut self, end: usize) {
        *self = Lines::starting_at(end);
    }
}

/// Reads a section of fields, line by line.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct FieldReader {
    lines: Lines,
    from: usize,
    bytes: usize,
    /// The fields so far.
    pub(super) places: Vec<FieldPlace>,
}

impl FieldReader {
    /// A section that begins at `start`.
    pub(super) fn starting_at(start: usize) -> FieldReader {
        FieldReader {
            lines: Lines::starting_at(start),
            from: start,
            bytes: 0,
            places: Vec::with_capacity(ORDINARY_FIELDS),
        }
    }

    /// Passes the fields after those read before to `note`; returns the end of the section, after its empty line, once that has
    /// arrived. `bytes` is the same buffer each time, with more at its end.
    pub(super) fn read<E: From<FieldFault>>(
        &mut self,
        bytes: &[u8],
        bounds: &FieldBounds,
        mut note: impl FnMut(FieldPlace) -> Result<(), E>,
    ) -> Result<Option<usize>, E> {
        loop {
            let start = self.lines.start();
            let end = self.lines.end(bytes);
            // The line as received: names and values are counted below, without surrounding white space.
            let received = end.unwrap_or(bytes.len()).saturating_sub(self.from);
            if received > bounds.bytes_max + SLACK_BYTES {
                return Err(FieldFault::TooLarge.into());
            }
            let Some(end) = end else {
                return Ok(None);
            };
            self.lines.pass(end);
            let line = bytes.get(start..end).unwrap_or_default();
            let text = line.strip_suffix(b"\r\n").ok_or(FieldFault::Malformed)?;
            if text.is_empty() {
                return Ok(Some(end));
            }
            let field = field(text, start).ok_or(FieldFault::Malformed)?;
            self.bytes += field.name.of(bytes).len() + field.value.of(bytes).len() + 4;
            self.places.push(field);
            if self.places.len() > bounds.count_max || self.bytes > bounds.bytes_max {
                return Err(FieldFault::TooLarge.into());
            }
            note(field)?;
        }
    }
}

/// The field of a line that begins at `start`, without its end. A folded line begins with white space, which no name contains.
fn field(text: &[u8], start: usize) -> Option<FieldPlace> {
    let colon = text.iter().position(|byte| !TOKEN.contains(*byte))?;
    let rest = text.get(colon..)?.strip_prefix(b":")?;
    let is_space = |byte: &&u8| matches!(byte, b' ' | b'\t');
    let before = rest.iter().take_while(is_space).count();
    let after = rest.iter().rev().take_while(is_space).count();
    let (from, to) = (before, (rest.len() - after).max(before));
    if colon == 0 || !is_field_value(rest.get(from..to)?) {
        return None;
    }
    let value_start = start + colon + 1;
    Some(FieldPlace {
        known: KnownField::of(text.get(..colon)?),
        name: FieldRange::new(start, start + colon),
        value: FieldRange::new(value_start + from, value_start + to),
    })
}

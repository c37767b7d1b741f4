//! The fields of a head or of a trailer section (RFC 9112 section 5): the only reader of field lines in the gateway.
//!
//! Lines are read one by one as they arrive, and a verdict on a line depends on nothing behind it: the result is the same however
//! the bytes were split. A field is kept as its place in the buffer; nothing is copied, and there is no map.

use http::{HeaderName, HeaderValue};

use super::{SLACK_BYTES, TOKEN, is_field_value};

/// Names that `Connection` may nominate, in a head; no known client or server nominates more than three.
const NOMINATED_MAX: usize = 16;
/// Room for the fields of an ordinary head.
const ORDINARY_FIELDS: usize = 16;

/// The limits of a section of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldBounds {
    /// Bytes of all names and values, four more for each field.
    pub bytes_max: usize,
    /// Fields.
    pub count_max: usize,
}

/// Why a section of fields is not read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldFault {
    /// A line that is no field, or that servers read in different ways.
    Malformed,
    /// More bytes or more fields than the bounds have.
    TooLarge,
}

/// Where something is in the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    start: u32,
    end: u32,
}

impl Place {
    pub(super) fn new(start: usize, end: usize) -> Place {
        // Bounds are far below 4 GiB; beyond it a place is empty.
        let short = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Place {
            start: short(start),
            end: short(end),
        }
    }

    /// The bytes there; none where `bytes` is not the buffer of this place.
    pub(super) fn of(self, bytes: &[u8]) -> &[u8] {
        bytes
            .get(self.start as usize..self.end as usize)
            .unwrap_or_default()
    }
}

/// Where a field's name and value are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FieldPlace {
    pub(super) name: Place,
    pub(super) value: Place,
}

/// The places of all fields of a section.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Places {
    fields: Vec<FieldPlace>,
    /// The options of `Connection`, but for `close` and `keep-alive`.
    nominated: Vec<Place>,
}

impl Places {
    pub(super) const NONE: &Places = &Places {
        fields: Vec::new(),
        nominated: Vec::new(),
    };

    pub(super) fn push(&mut self, field: FieldPlace) {
        if self.fields.is_empty() {
            self.fields.reserve(ORDINARY_FIELDS);
        }
        self.fields.push(field);
    }

    /// Notes the options of a `Connection` field.
    pub(super) fn nominate(&mut self, place: Place, bytes: &[u8]) -> Result<Options, FieldFault> {
        let mut options = Options::default();
        let mut at = place.start as usize;
        for option in place.of(bytes).split(|byte| *byte == b',') {
            let start = at + option.len() - option.trim_ascii_start().len();
            at += option.len() + 1;
            let option = option.trim_ascii();
            if option.eq_ignore_ascii_case(b"close") {
                options.close = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                options.keep_alive = true;
            } else if !option.is_empty() {
                if self.nominated.len() == NOMINATED_MAX {
                    return Err(FieldFault::Malformed);
                }
                self.nominated.push(Place::new(start, start + option.len()));
            }
        }
        Ok(options)
    }

    /// The fields, in the buffer that they were read from.
    pub(super) fn view<'a>(&'a self, bytes: &'a [u8]) -> Fields<'a> {
        Fields {
            bytes,
            places: self,
        }
    }
}

/// The options of `Connection` that concern the connection itself.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) close: bool,
    pub(super) keep_alive: bool,
}

impl Options {
    pub(super) fn add(&mut self, other: Options) {
        self.close |= other.close;
        self.keep_alive |= other.keep_alive;
    }

    /// Whether the connection stays open behind the message (RFC 9112 section 9.3).
    pub(super) fn keeps_open(self, version: super::Version) -> bool {
        match version {
            super::Version::Http11 => !self.close,
            super::Version::Http10 => self.keep_alive && !self.close,
        }
    }
}

/// A field of a head that was read: a token, and a value without control characters or white space around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    name: &'a [u8],
    value: &'a [u8],
}

impl<'a> Field<'a> {
    /// The name, as it was sent.
    pub fn name(&self) -> &'a [u8] {
        self.name
    }

    /// The value.
    pub fn value(&self) -> &'a [u8] {
        self.value
    }
}

/// A field that may be passed on: it neither frames the message nor belongs to one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndToEnd<'a>(Field<'a>);

impl<'a> EndToEnd<'a> {
    /// A field that came over HTTP/2; `None` for one that may not be passed on.
    pub fn of(name: &'a HeaderName, value: &'a HeaderValue) -> Option<EndToEnd<'a>> {
        let field = Field {
            name: name.as_str().as_bytes(),
            value: value.as_bytes(),
        };
        (!is_hop_by_hop(field.name)).then_some(EndToEnd(field))
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

/// The fields of a head or trailer section, in their order.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a> {
    bytes: &'a [u8],
    places: &'a Places,
}

impl<'a> Fields<'a> {
    /// All fields.
    pub fn iter(self) -> impl Iterator<Item = Field<'a>> {
        self.places.fields.iter().map(move |place| Field {
            name: place.name.of(self.bytes),
            value: place.value.of(self.bytes),
        })
    }

    /// How many there are.
    pub fn count(self) -> usize {
        self.places.fields.len()
    }

    /// The values of all fields of that name.
    pub fn all(self, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
        let name = name.as_str().as_bytes();
        self.iter()
            .filter(move |field| field.name.eq_ignore_ascii_case(name))
            .map(|field| field.value)
    }

    /// The value of the first field of that name.
    pub fn first(self, name: &HeaderName) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    /// The names that `Connection` nominates as hop-by-hop (RFC 9110 section 7.6.1), 16 at most; they may be no names.
    pub fn nominated(self) -> impl Iterator<Item = &'a [u8]> {
        self.places
            .nominated
            .iter()
            .map(move |place| place.of(self.bytes))
    }

    /// The fields that may be passed on. What is not: framing, which the writer decides; what belongs to one connection; and what
    /// `Connection` nominates.
    pub fn end_to_end(self) -> impl Iterator<Item = EndToEnd<'a>> {
        let is_nominated = move |name: &[u8]| {
            self.nominated()
                .any(|nominated| nominated.eq_ignore_ascii_case(name))
        };
        self.iter()
            .filter(move |field| !is_hop_by_hop(field.name) && !is_nominated(field.name))
            .map(EndToEnd)
    }
}

/// Whether a field belongs to one connection or frames a message, whatever the options of `Connection` (RFC 9110 section 7.6.1).
fn is_hop_by_hop(name: &[u8]) -> bool {
    let among = |names: &[&str]| {
        names
            .iter()
            .any(|one| name.eq_ignore_ascii_case(one.as_bytes()))
    };
    match name.len() {
        2 => among(&["te"]),
        7 => among(&["trailer", "upgrade"]),
        10 => among(&["connection", "keep-alive"]),
        14 => among(&["content-length", "http2-settings"]),
        16 => among(&["proxy-connection"]),
        17 => among(&["transfer-encoding"]),
        18 => among(&["proxy-authenticate"]),
        19 => among(&["proxy-authorization"]),
        _ => false,
    }
}

/// Finds lines in a buffer that grows; looks at each byte once.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lines {
    /// The start of the line that is looked for.
    start: usize,
    /// Behind the last byte that was looked at.
    seen: usize,
}

impl Lines {
    pub(super) fn starting_at(start: usize) -> Lines {
        Lines { start, seen: start }
    }

    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// The end of the present line, behind its LF; `None` where that has not come.
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

    /// Goes on behind a line that ends there.
    pub(super) fn pass(&mut self, end: usize) {
        *self = Lines::starting_at(end);
    }
}

/// The result of looking for the next field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The line has not come whole.
    Partial,
    /// A field.
    Field(FieldPlace),
    /// The end of the section, behind its empty line.
    End(usize),
}

/// Reads a section of fields, line by line.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct FieldReader {
    lines: Lines,
    from: usize,
    bytes: usize,
    count: usize,
}

impl FieldReader {
    /// A section that begins there.
    pub(super) fn starting_at(start: usize) -> FieldReader {
        FieldReader {
            lines: Lines::starting_at(start),
            from: start,
            bytes: 0,
            count: 0,
        }
    }

    /// The next field. `bytes` is the same buffer each time, with more at its end.
    pub(super) fn next(&mut self, bytes: &[u8], bounds: &FieldBounds) -> Result<Next, FieldFault> {
        let start = self.lines.start();
        let end = self.lines.end(bytes);
        // As the line came: names and values are counted below, without the white space around them.
        if end.unwrap_or(bytes.len()).saturating_sub(self.from) > bounds.bytes_max + SLACK_BYTES {
            return Err(FieldFault::TooLarge);
        }
        let Some(end) = end else {
            return Ok(Next::Partial);
        };
        self.lines.pass(end);
        let line = bytes.get(start..end).unwrap_or_default();
        let text = line.strip_suffix(b"\r\n").ok_or(FieldFault::Malformed)?;
        if text.is_empty() {
            return Ok(Next::End(end));
        }
        let field = field(text, start).ok_or(FieldFault::Malformed)?;
        self.count += 1;
        self.bytes += field.name.of(bytes).len() + field.value.of(bytes).len() + 4;
        if self.count > bounds.count_max || self.bytes > bounds.bytes_max {
            return Err(FieldFault::TooLarge);
        }
        Ok(Next::Field(field))
    }
}

/// The field of a line without its end, which begins at `start`. A folded line begins with white space, which no name has.
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
        name: Place::new(start, start + colon),
        value: Place::new(value_start + from, value_start + to),
    })
}

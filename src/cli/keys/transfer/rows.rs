//! Rows of a file of keys: one set of fields, as CSV or as JSON Lines.
//!
//! This module only splits rows into fields; [`super::check`] interprets them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, BufRead, Write};
use std::marker::PhantomData;

use jiff::civil::Date;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serializer};
use serde_json::{Value, json};

use super::file::{FileFormat, or_problems};
use crate::cli::output::write_csv;

/// Every field of a row, by its name in CSV headers and JSON objects.
pub(super) const FIELDS: [&str; 13] = [
    "id",
    "key",
    "digest",
    "customer",
    "label",
    "tier",
    "state",
    "expires",
    "grants",
    "created",
    "previous_digest",
    "previous_until",
    "ended_digests",
];
/// The longest line of a file of JSON Lines, and the longest row of CSV, in bytes: a row with grants for every day of two years.
const ROW_BYTES_MAX: usize = 65_536;
/// The byte order mark at the beginning of a spreadsheet's file.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The fields of one row that are not empty, by name.
pub(super) type Fields = BTreeMap<&'static str, String>;

/// The fields of one row, or the problems of its form.
pub(super) type ImportRow = Result<Fields, Vec<String>>;

/// Reads a file and passes on each row with the line, from 1, on which it begins. A problem that makes the rest unreadable, such as a wrong
/// header, is passed on as the last row.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn read(
    format: FileFormat,
    file: impl BufRead,
    take: impl FnMut(u64, ImportRow),
) -> io::Result<()> {
    match format {
        FileFormat::Csv => read_csv(file, take),
        FileFormat::Jsonl => read_lines(file, take),
    }
}

fn read_csv(mut file: impl BufRead, mut take: impl FnMut(u64, ImportRow)) -> io::Result<()> {
    if file.fill_buf()?.starts_with(BYTE_ORDER_MARK) {
        file.consume(BYTE_ORDER_MARK.len());
    }
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(LineFeeds {
            // Completes the last line, which would otherwise not be counted.
            file: io::Read::chain(file, b"\n".as_slice()),
            is_returned: false,
            is_ended: false,
        });
    let mut record = csv::ByteRecord::new();
    let mut columns: Option<Vec<&'static str>> = None;
    while reader
        .read_byte_record(&mut record)
        .map_err(io::Error::other)?
    {
        // The reader counts a row from the empty lines before it.
        let breaks = record.as_slice().iter().filter(|byte| **byte == b'\n');
        // Only a row with an unclosed quote needs the end of the file, and has no line end of its own.
        let lines = breaks.count() + usize::from(!reader.get_ref().is_ended);
        let lines = u64::try_from(lines).unwrap_or(u64::MAX);
        let line = reader.position().line().saturating_sub(lines);
        match &columns {
            None => match header(&record) {
                Ok(names) => columns = Some(names),
                Err(problems) => {
                    take(line, Err(problems));
                    return Ok(());
                }
            },
            Some(names) => take(line, csv_fields(names, &record)),
        }
    }
    if columns.is_none() {
        let problem = "the header line is missing: write the names of the columns first";
        take(1, Err(vec![problem.to_owned()]));
    }
    Ok(())
}

/// A file of which every line ends with a line feed: without that, the reader has not counted the line of a row that ends with a
/// carriage return.
struct LineFeeds<F> {
    file: F,
    /// Whether the last byte was a carriage return.
    is_returned: bool,
    /// Whether all of it was read.
    is_ended: bool,
}

impl<F: BufRead> io::Read for LineFeeds<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if std::mem::take(&mut self.is_returned) && self.file.fill_buf()?.starts_with(b"\n") {
            self.file.consume(1);
        }
        let bytes = self.file.fill_buf()?;
        let end = bytes.iter().position(|byte| *byte == b'\r');
        let line = end.map_or(bytes.len(), |end| end + 1);
        let read = bytes.get(..line).unwrap_or(bytes).read(buffer)?;
        self.file.consume(read);
        self.is_ended = read == 0;
        if let Some(last) = buffer.get_mut(..read).and_then(<[u8]>::last_mut)
            && *last == b'\r'
        {
            (*last, self.is_returned) = (b'\n', true);
        }
        Ok(read)
    }
}

/// The names of the columns.
fn header(record: &csv::ByteRecord) -> Result<Vec<&'static str>, Vec<String>> {
    let (mut names, mut problems) = (Vec::new(), Vec::new());
    for (number, cell) in (1..).zip(record) {
        let found = FIELDS.iter().find(|name| name.as_bytes() == cell);
        match found {
            Some(name) if names.contains(name) => {
                problems.push(format!("the column {name} is given twice"));
            }
            Some(name) => names.push(*name),
            // The message does not repeat the text: without a header line it is the first key.
            None => problems.push(format!(
                "the first line must have the names of the columns, but column {number} has none of them: the columns are {}",
                FIELDS.join(", ")
            )),
        }
    }
    or_problems(names, problems)
}

fn csv_fields(names: &[&'static str], record: &csv::ByteRecord) -> ImportRow {
    if record.len() != names.len() {
        return Err(vec![format!(
            "the row has {} fields and the header {}",
            record.len(),
            names.len()
        )]);
    }
    if record.as_slice().len() > ROW_BYTES_MAX {
        return Err(vec![format!(
            "the row is longer than {ROW_BYTES_MAX} bytes"
        )]);
    }
    let (mut fields, mut problems) = (Fields::new(), Vec::new());
    for (name, cell) in names.iter().zip(record) {
        match std::str::from_utf8(cell) {
            Ok("") => {}
            Ok(text) => {
                fields.insert(*name, text.to_owned());
            }
            Err(_) => problems.push(format!("{name} is not UTF-8")),
        }
    }
    or_problems(fields, problems)
}

fn read_lines(mut file: impl BufRead, mut take: impl FnMut(u64, ImportRow)) -> io::Result<()> {
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let longest = u64::try_from(ROW_BYTES_MAX).unwrap_or(u64::MAX) + 2;
        io::Read::take(&mut file, longest).read_until(b'\n', &mut text)?;
        if text.is_empty() {
            break;
        }
        if text.len() > ROW_BYTES_MAX && !text.ends_with(b"\n") {
            let problem =
                format!("the row is longer than {ROW_BYTES_MAX} bytes; the rest was not read");
            take(line, Err(vec![problem]));
            break;
        }
        let bare = match line {
            1 => text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text),
            _ => &text,
        };
        if !bare.trim_ascii().is_empty() {
            take(line, json_fields(bare));
        }
    }
    Ok(())
}

fn json_fields(text: &[u8]) -> ImportRow {
    // The position of an error, but not the text, which may be a key.
    let row = serde_json::from_slice::<Members<JsonValue>>(text).map_err(|error| {
        vec![match error.is_data() {
            true => "the row is not a JSON object".to_owned(),
            false => format!("the row is not JSON: see column {}", error.column()),
        }]
    })?;
    let (mut fields, mut problems) = (Fields::new(), Vec::new());
    let mut given = BTreeSet::new();
    for (name, value) in row.0 {
        let Some(name) = FIELDS.iter().find(|known| **known == name) else {
            problems.push(format!(
                "the row has an unknown field: the fields are {}",
                FIELDS.join(", ")
            ));
            continue;
        };
        if !given.insert(name) {
            problems.push(format!("{name} is given twice: keep one of them"));
            continue;
        }
        let text = match value {
            JsonValue::Null(()) => continue,
            JsonValue::Text(text) if text.is_empty() => continue,
            JsonValue::Text(text) => text,
            JsonValue::Days(days) if *name == "grants" => written_days(&days),
            JsonValue::Days(_) | JsonValue::Other(_) => {
                let wanted = match *name {
                    "grants" => "an object of dates and units, such as {\"2026-11-21\": 500}",
                    _ => "a text",
                };
                problems.push(format!("{name} is not {wanted}"));
                continue;
            }
        };
        fields.insert(*name, text);
    }
    or_problems(fields, problems)
}

/// The grants of a JSON object in the form of CSV, each as often as the object has it.
fn written_days(Members(days): &Members<u64>) -> String {
    let days = days.iter().map(|(date, units)| format!("{date}={units}"));
    days.collect::<Vec<_>>().join(" ")
}

/// The value of a field, as far as a row may have it.
#[derive(Deserialize)]
#[serde(untagged)]
enum JsonValue {
    Text(String),
    Days(Members<u64>),
    Null(()),
    Other(IgnoredAny),
}

/// All members of a JSON object in their order, also those of a name that an earlier one has (RFC 8259 leaves open which of them
/// counts).
struct Members<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Members<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members<T>, D::Error> {
        deserializer.deserialize_map(MembersVisitor(PhantomData))
    }
}

struct MembersVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for MembersVisitor<T> {
    type Value = Members<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Members<T>, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = entries.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}

/// Grants as a file of this format has them: an object of dates and units, or a text such as `2026-11-21=500 2026-11-28=200`.
pub(super) fn exported_grants(days: &BTreeMap<Date, u64>, format: FileFormat) -> Value {
    let text = |(date, units)| format!("{date}={units}");
    match format {
        FileFormat::Csv => days.iter().map(text).collect::<Vec<_>>().join(" ").into(),
        FileFormat::Jsonl => json!(days),
    }
}

/// The columns that always are in a file, and those of an export with digests.
pub(super) const COLUMNS: [&str; 8] = [
    "id", "customer", "label", "tier", "state", "expires", "grants", "created",
];
pub(super) const DIGEST_COLUMNS: [&str; 4] = [
    "digest",
    "previous_digest",
    "previous_until",
    "ended_digests",
];

/// Writes these columns of rows.
pub(super) fn write(
    format: FileFormat,
    rows: impl Iterator<Item = Value>,
    columns: &[&str],
    mut out: impl Write,
) -> anyhow::Result<()> {
    match format {
        FileFormat::Csv => write_csv(&mut out, columns, rows),
        FileFormat::Jsonl => {
            for row in rows {
                let members = columns.iter().map(|name| (name, row.get(*name)));
                serde_json::Serializer::new(&mut out).collect_map(members)?;
                out.write_all(b"\n")?;
            }
            Ok(out.flush()?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was read: the line, and its fields or mistakes in one text.
    fn rows(format: FileFormat, text: &[u8]) -> Vec<(u64, String)> {
        let mut rows = Vec::new();
        read(format, text, |line, row| {
            let read = match row {
                Ok(fields) => fields
                    .iter()
                    .map(|(name, value)| format!("{name}:{value}"))
                    .collect::<Vec<_>>()
                    .join("|"),
                Err(problems) => format!("!{}", problems.join("|")),
            };
            rows.push((line, read));
        })
        .unwrap();
        rows
    }

    #[test]
    fn rows_of_csv_have_the_line_they_begin_on() {
        let text =
            "\u{feff}customer,tier,key,label\nAcme,pro,k1,\n\n\"Um\nbra\",pro,\"k,2\",x\nshort,pro";
        for line_end in ["\n", "\r\n", "\r"] {
            assert_eq!(
                rows(FileFormat::Csv, text.replace('\n', line_end).as_bytes()),
                [
                    (2, "customer:Acme|key:k1|tier:pro".to_owned()),
                    (4, "customer:Um\nbra|key:k,2|label:x|tier:pro".to_owned()),
                    (6, "!the row has 2 fields and the header 4".to_owned()),
                ],
                "{line_end:?}"
            );
        }
        let unclosed = "customer,tier\nAcme,pro\nUm,\"bra\n";
        for (text, label) in [(unclosed, "bra\n\n"), (unclosed.trim_end(), "bra\n")] {
            let read = rows(FileFormat::Csv, text.as_bytes());
            assert_eq!(read[1], (3, format!("customer:Um|tier:{label}")));
        }
    }

    #[test]
    fn a_csv_file_without_a_right_header_ends_there() {
        let read = rows(FileFormat::Csv, b"Acme,pro,secret\nB,pro,other\n");
        assert_eq!(read.len(), 1);
        let (line, read) = &read[0];
        assert!(*line == 1 && read.contains("column 1 has none"), "{read}");
        assert!(!read.contains("secret"), "{read}");
        let read = rows(FileFormat::Csv, b"tier,tier\n");
        assert_eq!(read, [(1, "!the column tier is given twice".to_owned())]);
        assert!(rows(FileFormat::Csv, b"")[0].1.contains("header"));
        assert_eq!(rows(FileFormat::Csv, b"key,tier\n"), []);
    }

    #[test]
    fn rows_of_json_have_their_line_and_no_mistake_repeats_what_it_read() {
        let text = "{\"customer\":\"Acme\",\"label\":null,\"grants\":{\"2026-11-21\":5}}\n\n\
                    {\"customer\":7,\"secret\":\"secret\",\"key\":[\"secret\"],\"grants\":\"2026-11-21=5\"}\n\
                    {\"key\":\"secret\"\n[]\n{\"grants\":{\"2026-11-21\":\"secret\"}}";
        let read = rows(FileFormat::Jsonl, text.as_bytes());
        assert_eq!(read[0], (1, "customer:Acme|grants:2026-11-21=5".to_owned()));
        let lines: Vec<u64> = read.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 3, 4, 5, 6]);
        assert!(read[1].1.contains("customer is not a text"), "{read:?}");
        assert!(read[1].1.contains("unknown field"), "{read:?}");
        assert!(read[1].1.contains("key is not a text"), "{read:?}");
        assert!(read[2].1.contains("not JSON: see column"), "{read:?}");
        assert!(read[3].1.contains("not a JSON object"), "{read:?}");
        assert!(read[4].1.contains("object of dates and units"), "{read:?}");
        assert!(!format!("{read:?}").contains("secret"));
    }

    #[test]
    fn a_field_that_a_row_has_twice_is_a_mistake() {
        let text = "{\"tier\":\"pro\",\"customer\":\"Acme\"}\n\
                    {\"tier\":null,\"customer\":\"Acme\",\"tier\":\"secret\",\"key\":\"a\",\"key\":\"a\"}\n\
                    {\"grants\":{\"2026-11-21\":5,\"2026-11-21\":6}}";
        let twice = "!tier is given twice: keep one of them|key is given twice: keep one of them";
        // Dates are compared with the rest of the row.
        let grants = "grants:2026-11-21=5 2026-11-21=6";
        assert_eq!(
            rows(FileFormat::Jsonl, text.as_bytes()),
            [
                (1, "customer:Acme|tier:pro".to_owned()),
                (2, twice.to_owned()),
                (3, grants.to_owned())
            ]
        );
    }

    #[test]
    fn a_line_without_end_is_not_read_to_its_end() {
        let mut text = vec![b' '; ROW_BYTES_MAX];
        text.push(b'\n');
        assert_eq!(rows(FileFormat::Jsonl, &text), []);
        let text = vec![b'x'; 10 * ROW_BYTES_MAX];
        let read = rows(FileFormat::Jsonl, &text);
        assert_eq!(read.len(), 1);
        assert!(read[0].1.contains("longer than"), "{read:?}");
    }

    #[test]
    fn what_is_not_utf_8_is_reported() {
        let read = rows(FileFormat::Csv, b"key,label\nk,\xff\n");
        assert_eq!(read, [(2, "!label is not UTF-8".to_owned())]);
        assert!(
            rows(FileFormat::Jsonl, b"{\"label\":\"\xff\"}\n")[0]
                .1
                .contains("not JSON")
        );
    }
}

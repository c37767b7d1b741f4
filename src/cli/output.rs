//! Results as tables for people, and as JSON and CSV for programs. Characters that a terminal would act on are escaped.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;

use clap::ValueEnum;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use jiff::Timestamp;
use jiff::civil::Date;
use serde::{Serialize, Serializer};
use serde_json::Value;
use terminal_size::{Width, terminal_size_of};

use crate::policy::api_key::{KeyPrefix, redacted};
use crate::policy::json::is_unshowable;

pub(super) mod long_table;
pub(super) mod new_file;

/// Spaces between two columns of a table.
const PADDING: u16 = 2;
/// The longest customer or label, which fits into a row of a table.
const NAME_CHARS_MAX: usize = 200;

/// The width of the terminal that tables must fit into; unset for a pipe, a file, or a terminal of unknown width.
static COLUMNS: OnceLock<u16> = OnceLock::new();

/// The formats of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum RecordFormat {
    /// For people.
    Table,
    /// For programs.
    Json,
}

impl RecordFormat {
    /// Writes a record for programs, or with `table` for people.
    pub(super) fn write(
        self,
        out: &mut dyn Write,
        record: &impl Serialize,
        table: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match self {
            RecordFormat::Json => write_json(out, record),
            RecordFormat::Table => table(out),
        }
    }
}

/// The formats of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum RowsFormat {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// For spreadsheets.
    Csv,
}

/// A record with more members, as one JSON object.
#[derive(Serialize)]
pub(super) struct Extended<R, M> {
    #[serde(flatten)]
    pub(super) record: R,
    #[serde(flatten)]
    pub(super) more: M,
}

/// Makes tables fit into the terminal, if standard output is one.
pub(super) fn fit_to_terminal() {
    if let Some(columns) = columns_of(io::stdout()) {
        let _ = COLUMNS.set(columns);
    }
}

/// The columns of a stream that is a terminal.
pub(super) fn columns_of(stream: impl IsTerminal + AsFd) -> Option<u16> {
    let size = stream.is_terminal().then(|| terminal_size_of(&stream));
    let (Width(columns), _) = size.flatten()?;
    (columns > 0).then_some(columns)
}

/// Whether to write colours to a stream: it is a terminal and `NO_COLOR` is unset or empty (<https://no-color.org>).
pub(super) fn is_coloured(stream: &impl IsTerminal) -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    stream.is_terminal()
        && set("NO_COLOR").is_none()
        && set("TERM").is_none_or(|term| term != "dumb")
}

/// Sentences for standard output, broken between words if they are wider than its terminal.
pub(super) fn prose(text: &str) -> String {
    broken(text, COLUMNS.get().copied())
}

/// A text whose lines have at most `columns`, broken between words. A command in backticks stays on one line, to be copied.
pub(super) fn broken(text: &str, columns: Option<u16>) -> String {
    let Some(columns) = columns.map(usize::from) else {
        return text.to_owned();
    };
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let indent: String = line.chars().take_while(|c| *c == ' ').collect();
        let (mut current, mut piece) = (String::new(), String::new());
        for word in line.split_inclusive(' ') {
            piece.push_str(word);
            if piece.matches('`').count() % 2 == 1 {
                continue;
            }
            let chars = shown_chars(&current) + shown_chars(piece.trim_end());
            if chars > columns && !current.trim().is_empty() {
                lines.push(current.trim_end().to_owned());
                current.clone_from(&indent);
            }
            current.push_str(&std::mem::take(&mut piece));
        }
        lines.push(current + &piece);
    }
    lines.join("\n")
}

/// The number of visible characters of a text, without colour sequences.
fn shown_chars(text: &str) -> usize {
    let mut parts = text.split("\u{1b}[");
    let plain = parts.next().map_or(0, |part| part.chars().count());
    let coloured = parts.map(|part| {
        part.split_once('m')
            .map_or(0, |(_, rest)| rest.chars().count())
    });
    plain + coloured.sum::<usize>()
}

/// Whether the reader of the output has closed it; a writer of JSON or CSV wraps that error.
pub(super) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let plain = error.downcast_ref::<io::Error>().map(io::Error::kind);
    let json = error.downcast_ref::<serde_json::Error>();
    let csv = error.downcast_ref::<csv::Error>();
    let csv = csv.and_then(|error| match error.kind() {
        csv::ErrorKind::Io(error) => Some(error.kind()),
        _ => None,
    });
    let kind = plain.or(json.and_then(serde_json::Error::io_error_kind));
    kind.or(csv) == Some(io::ErrorKind::BrokenPipe)
}

/// Writes a text.
pub(super) fn write_text(out: &mut dyn Write, text: impl AsRef<[u8]>) -> anyhow::Result<()> {
    out.write_all(text.as_ref())?;
    Ok(out.flush()?)
}

/// Writes one JSON value and a newline.
pub(super) fn write_json(out: &mut dyn Write, value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = BufWriter::new(out);
    serde_json::to_writer_pretty(&mut out, value)?;
    write_text(&mut out, "\n")
}

/// Writes rows as one JSON array and a newline, row by row.
pub(super) fn write_json_rows(
    out: &mut impl Write,
    rows: impl Iterator<Item = impl Serialize>,
) -> anyhow::Result<()> {
    let mut json = serde_json::Serializer::pretty(&mut *out);
    json.collect_seq(rows)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// Writes the [cells] of rows as CSV, row by row, with a header line also if there are no rows.
pub(super) fn write_csv(
    out: &mut dyn Write,
    header: &[&str],
    rows: impl IntoIterator<Item = impl Serialize>,
) -> anyhow::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    writer.write_record(header)?;
    for row in rows {
        writer.write_record(cells(&row, header)?)?;
    }
    Ok(writer.flush()?)
}

/// The members of a row's JSON object that `names` lists: a text as it is, null as an empty cell, all else as JSON.
pub(super) fn cells(row: &impl Serialize, names: &[&str]) -> serde_json::Result<Vec<String>> {
    let row = serde_json::to_value(row)?;
    let cell = |name: &&str| match row.get(name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    Ok(names.iter().map(cell).collect())
}

fn table(header: &[&str], numbers: &[&str], rows: &[Vec<String>]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(
        header
            .iter()
            .map(|name| name.to_uppercase().replace('_', " ")),
    );
    for row in rows {
        table.add_row(row.iter().map(|cell| escape(cell)));
    }
    for (name, column) in header.iter().zip(table.column_iter_mut()) {
        column.set_padding((0, PADDING));
        if numbers.contains(name) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Writes one name and value per line.
pub(super) fn write_record(out: &mut dyn Write, fields: &[(&str, String)]) -> anyhow::Result<()> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for (name, value) in fields {
        table.add_row([(*name).to_owned(), escape(value)]);
    }
    // An API key is shown once and must be copied whole: a terminal that is too narrow breaks the line itself.
    if fields.iter().all(|(name, _)| *name != "key") {
        fit(&mut table, COLUMNS.get().copied());
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, PADDING));
    }
    for line in lines(&table) {
        writeln!(out, "{line}")?;
    }
    Ok(out.flush()?)
}

/// Breaks cells so that lines have at most `columns`; without `columns`, leaves them whole.
fn fit(table: &mut Table, columns: Option<u16>) {
    if let Some(columns) = columns {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(columns);
    }
}

/// The lines of a table, the header first, without trailing spaces.
fn lines(table: &Table) -> Vec<String> {
    table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

/// The text with every character that a terminal would not simply show written as `\u{…}`.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unshowable(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Like [`escape`], but keeps line breaks.
pub(super) fn escape_lines(text: &str) -> String {
    text.lines().map(escape).collect::<Vec<_>>().join("\n")
}

/// An instant for people: without fractions of a second.
pub(super) fn to_the_second(instant: Timestamp) -> String {
    Timestamp::from_second(instant.as_second())
        .unwrap_or(instant)
        .to_string()
}

/// Parses a customer, a label, a reason or another short text.
pub(super) fn parse_name(text: &str) -> Result<String, String> {
    let name = text.trim();
    if name.is_empty() {
        return Err("it is empty".to_owned());
    }
    if name.chars().count() > NAME_CHARS_MAX {
        return Err(format!("it is longer than {NAME_CHARS_MAX} characters"));
    }
    if let Some(c) = text.chars().find(|c| is_unshowable(*c)) {
        let code = u32::from(c);
        return Err(format!(
            "it has control characters or others that a terminal does not show: U+{code:04X}"
        ));
    }
    // A key of any prefix, as long as it is whole.
    if redacted(name, &KeyPrefix::default()) != name {
        return Err("it contains an API key: write its id".to_owned());
    }
    Ok(name.to_owned())
}

/// Parses a calendar date.
pub(super) fn parse_date(text: &str) -> Result<Date, String> {
    text.parse::<Date>()
        .ok()
        // jiff also accepts other forms, and ignores the time after a date.
        .filter(|date| date.to_string() == text)
        .ok_or_else(|| "write a date such as 2027-01-31".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::long_table::write_table;
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>) -> anyhow::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn csv_quotes_what_needs_quotes_and_always_has_its_header() {
        let rows = [
            json!({ "two": "say \"hi\"\nyou", "one": "a,b", "three": 3 }),
            json!({ "one": null, "two": "é" }),
        ];
        assert_eq!(
            written(|out| write_csv(out, &["one", "two"], rows)),
            "one,two\n\"a,b\",\"say \"\"hi\"\"\nyou\"\n,é\n"
        );
        assert_eq!(
            written(|out| write_csv(out, &["one", "two"], [Value::Null; 0])),
            "one,two\n"
        );
    }

    #[test]
    fn tables_align_numbers_to_the_right_and_escape_what_a_terminal_acts_on() {
        let rows = [
            vec!["a\u{1b}[31m".to_owned(), "5".to_owned()],
            vec!["b".to_owned(), "1000".to_owned()],
        ];
        assert_eq!(
            written(|out| write_table(out, &["name", "refused_tier"], &["refused_tier"], &rows)),
            "NAME         REFUSED TIER\na\\u{1b}[31m             5\nb                    1000\n"
        );
        assert_eq!(
            written(|out| write_record(out, &[("id", "x".to_owned()), ("label", String::new())])),
            "id     x\nlabel\n"
        );
    }

    #[test]
    fn sentences_break_between_words_and_commands_do_not() {
        let text = "a bc `d e` f\n  one  two three\n\u{1b}[31mred\u{1b}[0m one";
        assert_eq!(broken(text, None), text);
        assert_eq!(
            broken(text, Some(8)),
            "a bc\n`d e` f\n  one\n  two\n  three\n\u{1b}[31mred\u{1b}[0m one"
        );
        assert_eq!(broken("", Some(8)), "");
        assert_eq!(broken("much-too-long `x", Some(8)), "much-too-long `x");
    }

    #[test]
    fn names_with_control_characters_or_a_key_are_refused() {
        assert_eq!(parse_name(" Acme & Söhne ").as_deref(), Ok("Acme & Söhne"));
        for bad in [
            "",
            "  ",
            "a\nb",
            "a\u{1b}[2J",
            "a\u{7f}",
            "a\u{9b}b",
            "a\u{202e}b",
        ] {
            assert!(parse_name(bad).is_err(), "{bad:?}");
        }
        let key = format!("of acme_0123456789ab_{}", "c".repeat(38));
        assert!(parse_name(&key).unwrap_err().contains("API key"));
        assert!(parse_name("of fpd_0123456789ab").is_ok());
        assert!(parse_name("a\u{200d}b").unwrap_err().contains("U+200D"));
        assert!(parse_name(&"é".repeat(200)).is_ok());
        assert!(parse_name(&"é".repeat(201)).is_err());
    }

    #[test]
    fn a_date_has_one_form() {
        assert!(parse_date("2027-01-31").is_ok());
        for bad in [
            "2027-02-30",
            "20270131",
            "2027-1-31",
            "2027-01-31T00:00",
            "tomorrow",
            "",
        ] {
            assert!(parse_date(bad).is_err(), "{bad:?}");
        }
    }
}

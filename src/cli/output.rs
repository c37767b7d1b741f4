//! Results as tables for people, JSON and CSV for programs; what terminals must not see is escaped.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use comfy_table::{CellAlignment, Table, presets};
use jiff::Timestamp;
use jiff::civil::Date;
use serde::Serialize;

pub(super) mod long_table;

/// The longest customer or label: what a table row can show.
const NAME_CHARS_MAX: usize = 200;

/// The forms of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum RecordFormat {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// The forms of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum RowsFormat {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// For spreadsheets (RFC 4180).
    Csv,
}

/// Makes a file that only its owner may read; one that is there is not overwritten.
pub(super) fn private_file(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("{} cannot be made", path.display()))
}

/// Writes one JSON value and a newline.
pub(super) fn write_json(out: &mut dyn Write, value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    out.write_all(&text)?;
    Ok(out.flush()?)
}

/// Writes rows as CSV with a header line, which is there without rows too.
pub(super) fn write_csv(
    out: &mut dyn Write,
    header: &[&str],
    rows: &[Vec<String>],
) -> anyhow::Result<()> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(header)?;
    for row in rows {
        writer.write_record(row)?;
    }
    out.write_all(&writer.into_inner()?)?;
    Ok(out.flush()?)
}

/// Writes a table; the columns named in `numbers` are aligned to the right.
pub(super) fn write_table(
    out: &mut dyn Write,
    header: &[&str],
    numbers: &[&str],
    rows: &[Vec<String>],
) -> anyhow::Result<()> {
    write_lines(out, table_lines(header, numbers, rows))
}

/// The lines of such a table, its header first, without spaces at their ends.
pub(super) fn table_lines(header: &[&str], numbers: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    lines(&table(header, numbers, rows))
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
        column.set_padding((0, 2));
        if numbers.contains(name) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Writes names and values under each other.
pub(super) fn write_record(out: &mut dyn Write, fields: &[(&str, String)]) -> anyhow::Result<()> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for (name, value) in fields {
        table.add_row([(*name).to_owned(), escape(value)]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    write_lines(out, lines(&table))
}

fn lines(table: &Table) -> Vec<String> {
    table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

fn write_lines(out: &mut dyn Write, lines: Vec<String>) -> anyhow::Result<()> {
    for line in lines {
        writeln!(out, "{line}")?;
    }
    Ok(out.flush()?)
}

/// Whether a terminal would act on the character, or show others in another order, rather than show it.
fn is_unshowable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The text with everything that a terminal would not simply show as `\u{…}`.
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

/// As [`escape`], but lines stay lines.
pub(super) fn escape_lines(text: &str) -> String {
    text.lines().map(escape).collect::<Vec<_>>().join("\n")
}

/// An instant for people: without fractions of a second.
pub(super) fn to_the_second(instant: Timestamp) -> String {
    Timestamp::from_second(instant.as_second())
        .unwrap_or(instant)
        .to_string()
}

/// A customer or label as an argument.
pub(super) fn parse_name(text: &str) -> Result<String, String> {
    let name = text.trim();
    if name.is_empty() {
        return Err("it is empty".to_owned());
    }
    if name.chars().count() > NAME_CHARS_MAX {
        return Err(format!("it is longer than {NAME_CHARS_MAX} characters"));
    }
    if text.chars().any(is_unshowable) {
        return Err("it has control characters".to_owned());
    }
    Ok(name.to_owned())
}

/// A calendar date as an argument.
pub(super) fn parse_date(text: &str) -> Result<Date, String> {
    text.parse::<Date>()
        .ok()
        // jiff reads other forms too, and of a date with a time only the date.
        .filter(|date| date.to_string() == text)
        .ok_or_else(|| "write a date such as 2027-01-31".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>) -> anyhow::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn csv_quotes_what_needs_quotes_and_always_has_its_header() {
        let rows = [
            vec!["a,b".to_owned(), "say \"hi\"\nyou".to_owned()],
            vec![String::new(), "é".to_owned()],
        ];
        assert_eq!(
            written(|out| write_csv(out, &["one", "two"], &rows)),
            "one,two\n\"a,b\",\"say \"\"hi\"\"\nyou\"\n,é\n"
        );
        assert_eq!(
            written(|out| write_csv(out, &["one", "two"], &[])),
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
    fn names_with_control_characters_are_refused() {
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

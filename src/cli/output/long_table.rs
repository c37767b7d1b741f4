//! Tables, also those whose rows are never all in memory: rows arrive twice in batches, first to be measured, then to be written.

use std::io::Write;

use comfy_table::{ColumnConstraint, Width};

use super::{COLUMNS, PADDING, fit, lines, table};

/// The narrowest that a column becomes: one character with its padding.
const NARROWEST: u16 = 1 + PADDING;
/// The rows of a batch.
pub(in crate::cli) const BATCH_ROWS: usize = 1_000;

/// Writes a table; the columns named in `numbers` are aligned to the right.
pub(in crate::cli) fn write_table(
    out: &mut dyn Write,
    header: &[&str],
    numbers: &[&str],
    rows: &[Vec<String>],
) -> anyhow::Result<()> {
    write_long_table(out, header, numbers, rows, |row| Ok(row.clone()), &[])
}

/// Writes a table with one row for each item, and the rows of `total` below them.
pub(in crate::cli) fn write_long_table<T>(
    out: &mut dyn Write,
    header: &[&str],
    numbers: &[&str],
    items: &[T],
    cells: impl Fn(&T) -> serde_json::Result<Vec<String>>,
    total: &[Vec<String>],
) -> anyhow::Result<()> {
    let mut table = LongTable::new(header, numbers);
    let rows = |items: &[T]| items.iter().map(&cells).collect::<Result<Vec<_>, _>>();
    for items in items.chunks(BATCH_ROWS) {
        table.measure(&rows(items)?);
    }
    table.measure(total);
    table.write_header(out)?;
    for items in items.chunks(BATCH_ROWS) {
        table.write(out, &rows(items)?)?;
    }
    table.write(out, total)?;
    Ok(out.flush()?)
}

/// The table; see the module.
pub(in crate::cli) struct LongTable<'n> {
    header: &'n [&'n str],
    numbers: &'n [&'n str],
    /// The width of each column, as far as measured, with its padding.
    widths: Vec<u16>,
    /// The width that lines must fit into, if any.
    columns: Option<u16>,
}

impl<'n> LongTable<'n> {
    /// A table without rows; the columns named in `numbers` are aligned to the right.
    pub(in crate::cli) fn new(header: &'n [&'n str], numbers: &'n [&'n str]) -> LongTable<'n> {
        LongTable {
            header,
            numbers,
            widths: vec![0; header.len()],
            columns: COLUMNS.get().copied(),
        }
    }

    /// The columns that the measured rows take, if they are not broken.
    pub(in crate::cli) fn width(&self) -> usize {
        self.widths.iter().copied().map(usize::from).sum()
    }

    /// Measures rows.
    pub(in crate::cli) fn measure(&mut self, rows: &[Vec<String>]) {
        let table = table(self.header, self.numbers, rows);
        let contents = table.column_max_content_widths();
        let columns = contents.iter().zip(table.column_iter());
        for (width, (content, column)) in self.widths.iter_mut().zip(columns) {
            *width = (*width).max(content.saturating_add(column.padding_width()));
        }
    }

    /// The header and rows in the widths of all measured rows; if the terminal is too narrow, cells are broken.
    fn arranged(&self, rows: &[Vec<String>]) -> Vec<String> {
        let mut table = table(self.header, self.numbers, rows);
        fit(&mut table, self.columns);
        let columns = self.columns.map(usize::from);
        let narrowed = columns
            .filter(|columns| self.width() > *columns)
            .map(|columns| self.widths_in(columns));
        let widths = narrowed.as_ref().unwrap_or(&self.widths).iter();
        let widths = widths.copied().map(Width::Fixed);
        for (column, width) in table.column_iter_mut().zip(widths) {
            column.set_constraint(match &narrowed {
                Some(_) => ColumnConstraint::Absolute(width),
                None => ColumnConstraint::LowerBoundary(width),
            });
        }
        lines(&table)
    }

    /// Widths with which the lines fit into `columns`, as far as possible: the widest columns give way first. Names are broken last,
    /// and a column of keys never.
    fn widths_in(&self, columns: usize) -> Vec<u16> {
        let narrowed = |(widest, keeps_names): (u16, bool)| -> Vec<u16> {
            let named = self.header.iter().zip(&self.widths);
            let widths = named.map(|(name, width)| match is_whole(name) {
                true => *width,
                false if keeps_names => *width.min(&widest.max(padded(name))),
                false => *width.min(&widest),
            });
            widths.collect()
        };
        let widest = self.widths.iter().copied().max().unwrap_or(0);
        let steps = [true, false]
            .into_iter()
            .flat_map(|keeps_names| (NARROWEST..widest).rev().map(move |one| (one, keeps_names)));
        let total = |widths: &Vec<u16>| widths.iter().copied().map(usize::from).sum::<usize>();
        let mut fitting = steps
            .map(narrowed)
            .filter(|widths| total(widths) <= columns);
        fitting
            .next()
            .unwrap_or_else(|| narrowed((NARROWEST, false)))
    }

    /// Writes the header.
    pub(in crate::cli) fn write_header(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let header = self.arranged(&[]);
        header.iter().try_for_each(|line| writeln!(out, "{line}"))
    }

    /// The lines of rows, without the header. A cell wider than measured moves the rest of its batch to the right.
    pub(in crate::cli) fn lines(&self, rows: &[Vec<String>]) -> Vec<String> {
        let header = self.arranged(&[]).len();
        self.arranged(rows).split_off(header)
    }

    /// Writes the [lines](LongTable::lines) of rows.
    pub(in crate::cli) fn write(
        &self,
        out: &mut dyn Write,
        rows: &[Vec<String>],
    ) -> std::io::Result<()> {
        let lines = self.lines(rows);
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))
    }
}

/// Whether cells of this column are never broken: a key is copied.
fn is_whole(name: &str) -> bool {
    matches!(name, "id" | "key")
}

/// The width of a column's name.
fn padded(name: &str) -> u16 {
    u16::try_from(name.len())
        .unwrap_or(u16::MAX)
        .saturating_add(PADDING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_in_batches_look_as_rows_at_once() {
        let header = ["name", "units", "label"];
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [
            row(["a", "1", ""]),
            row(["a long name", "22", "é\u{1b}"]),
            row(["b", "333333333", "x"]),
            row(["total", "", "a longer label"]),
        ];
        let whole = lines(&table(&header, &["units"], &rows));
        for size in 1..=4 {
            let mut table = LongTable::new(&header, &["units"]);
            rows.chunks(size).for_each(|rows| table.measure(rows));
            let mut out = Vec::new();
            table.write_header(&mut out).unwrap();
            for rows in rows.chunks(size) {
                table.write(&mut out, rows).unwrap();
            }
            let text = String::from_utf8(out).unwrap();
            assert_eq!(text.lines().collect::<Vec<_>>(), whole, "{size}");
        }
    }

    #[test]
    fn on_a_narrow_terminal_every_batch_has_the_columns_of_the_header() {
        let header = ["id", "customer", "label", "unattributed"];
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        let rows = [
            row(["abcdefghij", "a customer with a long name", "x", "1"]),
            row(["bcdefghijk", "c", "a label that is as long", "22"]),
        ];
        let mut table = LongTable::new(&header, &["unattributed"]);
        table.columns = Some(48);
        rows.iter()
            .for_each(|row| table.measure(std::slice::from_ref(row)));
        let mut out = Vec::new();
        table.write_header(&mut out).unwrap();
        for row in &rows {
            table.write(&mut out, std::slice::from_ref(row)).unwrap();
        }
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "\
ID          CUSTOMER   LABEL      UNATTRIBUTED
abcdefghij  a          x                     1
            customer
            with a
            long name
bcdefghijk  c          a label              22
                       that is
                       as long
"
        );
    }

    #[test]
    fn without_rows_there_is_the_header() {
        let mut out = Vec::new();
        LongTable::new(&["one", "two"], &[])
            .write_header(&mut out)
            .unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "ONE  TWO\n");
    }
}

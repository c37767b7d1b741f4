//! A table whose rows are never all in memory: they arrive twice in batches, first to be measured, then to be written.

use std::io::Write;

use comfy_table::{ColumnConstraint, Width};

use super::{COLUMNS, lines, table};

/// The rows of a batch.
pub(in crate::cli) const BATCH_ROWS: usize = 1_000;

/// Writes a table with one row for each item.
pub(in crate::cli) fn write_long_table<T>(
    out: &mut dyn Write,
    header: &[&str],
    numbers: &[&str],
    items: &[T],
    cells: impl Fn(&T) -> Vec<String>,
) -> anyhow::Result<()> {
    let mut table = LongTable::new(header, numbers);
    let batches = || items.chunks(BATCH_ROWS);
    let rows = |items: &[T]| items.iter().map(&cells).collect::<Vec<_>>();
    batches().for_each(|items| table.measure(&rows(items)));
    table.write_header(out)?;
    for items in batches() {
        table.write(out, &rows(items))?;
    }
    Ok(out.flush()?)
}

/// The table; see the module.
pub(in crate::cli) struct LongTable<'n> {
    header: &'n [&'n str],
    numbers: &'n [&'n str],
    /// The width of each column, as far as measured, with its padding.
    widths: Vec<u16>,
}

impl<'n> LongTable<'n> {
    /// A table without rows; the columns named in `numbers` are aligned to the right.
    pub(in crate::cli) fn new(header: &'n [&'n str], numbers: &'n [&'n str]) -> LongTable<'n> {
        LongTable {
            header,
            numbers,
            widths: vec![0; header.len()],
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

    /// The header and rows in their final widths, broken if the terminal is too narrow; then each batch is arranged by itself.
    fn arranged(&self, rows: &[Vec<String>]) -> Vec<String> {
        let mut table = table(self.header, self.numbers, rows);
        let columns = COLUMNS.get().copied().map(usize::from);
        if columns.is_none_or(|columns| self.width() <= columns) {
            for (column, width) in table.column_iter_mut().zip(&self.widths) {
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(*width)));
            }
        }
        lines(&table)
    }

    /// Writes the header.
    pub(in crate::cli) fn write_header(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let header = self.arranged(&[]);
        header.iter().try_for_each(|line| writeln!(out, "{line}"))
    }

    /// The lines of rows, without the header. A cell wider than measured moves the rest of its batch to the right.
    pub(in crate::cli) fn lines(&self, rows: &[Vec<String>]) -> Vec<String> {
        let mut lines = self.arranged(rows);
        lines.drain(..1);
        lines
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

#[cfg(test)]
mod tests {
    use super::super::table_lines;
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
        let whole = table_lines(&header, &["units"], &rows);
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
    fn without_rows_there_is_the_header() {
        let mut out = Vec::new();
        LongTable::new(&["one", "two"], &[])
            .write_header(&mut out)
            .unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "ONE  TWO\n");
    }
}

//! The report: rows of sums, as a table with bars, CSV or JSON.
//!
//! Keys are read in batches, and only the sums are kept, some 500 bytes a row. JSON lists the days as they are read.

use std::io::{BufWriter, Write};

use jiff::civil::Date;
use serde::Serialize;

use super::bars::Screen;
use super::grouping::{GroupRow, Grouping, Groups, NUMBERS, UsageCounts};
use super::query::{LedgerQuery, Records, records};
use crate::cli::output::long_table::{BATCH_ROWS, LongTable};
use crate::cli::output::{RowsFormat, write_csv};
use crate::cli::session::Session;
use crate::store::keys_at_once;

/// The numbers that a table always shows, and those it shows only if any is not 0.
const SHOWN: [&str; 4] = ["used", "requests", "charged", "refunded"];
const SHOWN_IF_ANY: [&str; 3] = ["unattributed", "over", "adjusted"];

/// Reads the ledger and writes it in the requested format.
pub(super) async fn run(
    session: &Session,
    asked: &LedgerQuery,
    by: Grouping,
    output: RowsFormat,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let ((from, to), keys) = asked.resolved(session).await?;
    let out = &mut BufWriter::new(out);
    let mut groups = Groups::new(by);
    let mut separator = "";
    if output == RowsFormat::Json {
        begin_json(out, from, to, by)?;
    }
    for batch in keys.chunks(keys_at_once(from, to)) {
        let mut usage = session.store.usage_of(from, to, batch).await?;
        let records = match by {
            Grouping::Key | Grouping::Customer => records(session, batch).await?,
            Grouping::Day | Grouping::Endpoint | Grouping::Tier | Grouping::Month => {
                Records::default()
            }
        };
        usage.sort_by_key(|usage| (usage.key, usage.date));
        groups.add(&usage, &session.config, &records);
        if output == RowsFormat::Json {
            add_elements(out, &mut separator, &usage)?;
        }
    }
    let (rows, total) = groups.finish();
    match output {
        RowsFormat::Json => end_json(out, &rows, &total)?,
        RowsFormat::Csv => csv(out, by, &rows)?,
        RowsFormat::Table => table(out, by, &rows, &total, Screen::of_stdout())?,
    }
    Ok(out.flush()?)
}

/// The beginning of the JSON form: what was asked for, and the list of days, which is the ledger itself by key, day and endpoint, for
/// programs that reconcile it.
fn begin_json(out: &mut dyn Write, from: Date, to: Date, by: Grouping) -> anyhow::Result<()> {
    let by = serde_json::to_string(&by)?;
    write!(
        out,
        "{{\n  \"from\": \"{from}\",\n  \"to\": \"{to}\",\n  \"by\": {by},\n  \"days\": ["
    )?;
    Ok(())
}

/// Adds elements to a list of the JSON form, one a line, each after the `separator` from the element before.
fn add_elements<T: Serialize>(
    out: &mut dyn Write,
    separator: &mut &str,
    elements: &[T],
) -> anyhow::Result<()> {
    for element in elements {
        write!(out, "{}\n    ", std::mem::replace(separator, ","))?;
        serde_json::to_writer(&mut *out, element)?;
    }
    Ok(())
}

/// The end of the JSON form: of the list of days, then the rows and the total.
fn end_json(out: &mut dyn Write, rows: &[GroupRow], total: &UsageCounts) -> anyhow::Result<()> {
    write!(out, "\n  ],\n  \"rows\": [")?;
    add_elements(out, &mut "", rows)?;
    write!(out, "\n  ],\n  \"total\": ")?;
    serde_json::to_writer(&mut *out, total)?;
    writeln!(out, "\n}}")?;
    Ok(())
}

fn csv(out: &mut dyn Write, by: Grouping, rows: &[GroupRow]) -> anyhow::Result<()> {
    let header: Vec<&str> = by.columns().iter().chain(&NUMBERS).copied().collect();
    write_csv(out, &header, rows)
}

/// The cells before the numbers.
fn named(row: &GroupRow) -> impl Iterator<Item = String> {
    let names = row.names.iter();
    let names = names.map(|(_, cell)| cell.clone().unwrap_or_default());
    names.chain(row.keys.map(|keys| keys.to_string()))
}

fn number(counts: &UsageCounts, name: &str) -> i64 {
    let mut all = NUMBERS.iter().zip(counts.numbers());
    let found = all.find(|(other, _)| **other == name);
    found.map_or(0, |(_, number)| number)
}

/// The table, with all reasons of refusals in one column; the last row is the total.
fn table(
    out: &mut dyn Write,
    by: Grouping,
    rows: &[GroupRow],
    total: &UsageCounts,
    screen: Screen,
) -> anyhow::Result<()> {
    let any = |name: &&str| rows.iter().any(|row| number(&row.counts, name) != 0);
    let rare = SHOWN_IF_ANY.into_iter().filter(any);
    let shown: Vec<&str> = SHOWN.into_iter().chain(rare).collect();
    let cells = |counts: &UsageCounts| {
        let numbers = shown.iter().map(|name| number(counts, name).to_string());
        let refused = counts.totals.refused().to_string();
        numbers.chain([refused]).collect::<Vec<String>>()
    };
    let blank = by.columns().iter().skip(1).map(|_| String::new());
    let sum = std::iter::once("total".to_owned()).chain(blank);
    let sum = [sum.chain(cells(total)).collect()];
    let numbers: Vec<&str> = shown.iter().copied().chain(["refused"]).collect();
    let header: Vec<&str> = by.columns().iter().chain(&numbers).copied().collect();
    let right: Vec<&str> = numbers.iter().copied().chain(["keys"]).collect();
    let lines = |rows: &[GroupRow]| -> Vec<Vec<String>> {
        let lines = rows.iter();
        lines
            .map(|row| named(row).chain(cells(&row.counts)).collect())
            .collect()
    };
    let mut table = LongTable::new(&header, &right);
    let batches = || rows.chunks(BATCH_ROWS);
    batches().for_each(|rows| table.measure(&lines(rows)));
    table.measure(&sum);
    let most = rows.iter().map(|row| row.counts.used).max().unwrap_or(0);
    table.write_header(out)?;
    for rows in batches() {
        let mut text = table.lines(&lines(rows));
        let used: Vec<i64> = rows.iter().map(|row| row.counts.used).collect();
        screen.put_bars(&mut text, &used, table.width(), most);
        for line in text {
            writeln!(out, "{line}")?;
        }
    }
    table.write(out, &sum)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Totals;

    fn row(date: &str, used: i64, over: u64) -> GroupRow {
        GroupRow {
            names: vec![("date", Some(date.into()))],
            keys: Some(2),
            counts: UsageCounts {
                used,
                over,
                totals: Totals {
                    requests: 6,
                    charged: 6,
                    refunded: 1,
                    refused_tier: 2,
                    refused_quota: 3,
                    refused_method: 4,
                    ..Totals::default()
                },
                ..UsageCounts::default()
            },
        }
    }

    fn written(write: impl FnOnce(&mut Vec<u8>) -> anyhow::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    const FILE: Screen = Screen {
        columns: None,
        is_coloured: false,
    };

    #[test]
    fn a_report_has_the_same_rows_in_every_form() {
        let rows = [row("2026-11-20", 5, 0)];
        assert_eq!(
            written(|out| csv(out, Grouping::Day, &rows)),
            "date,keys,used,requests,charged,refunded,unattributed,over,adjusted,refused_tier,refused_quota,\
             refused_burst,refused_concurrent,refused_not_found,refused_method\n2026-11-20,2,5,6,6,1,0,0,0,2,3,0,0,0,4\n"
        );
        let json = written(|out| {
            let (day, by) = (jiff::civil::date(2026, 11, 20), Grouping::Day);
            begin_json(out, day, day, by)?;
            let mut separator = "";
            add_elements(out, &mut separator, &["the first day"])?;
            add_elements::<&str>(out, &mut separator, &[])?;
            add_elements(out, &mut separator, &["the second", "the third"])?;
            end_json(out, &rows, &rows[0].counts)
        });
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            (&json["from"], &json["by"]),
            (&"2026-11-20".into(), &"day".into())
        );
        assert_eq!(json["days"][2], "the third");
        assert_eq!(json["total"]["used"], 5);
        let json = &json["rows"][0];
        assert_eq!(json["date"], "2026-11-20");
        assert_eq!(json["keys"], 2);
        assert_eq!(json["used"], 5);
        assert_eq!(json["refused_method"], 4);
        let table = written(|out| table(out, Grouping::Day, &rows, &rows[0].counts, FILE));
        let lines: Vec<String> = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines,
            [
                "DATE KEYS USED REQUESTS CHARGED REFUNDED REFUSED",
                "2026-11-20 2 5 6 6 1 9",
                "total 5 6 6 1 9"
            ]
        );
    }

    #[test]
    fn a_table_shows_what_is_rare_only_where_there_is_some_and_bars_on_a_terminal() {
        let rows = [row("2026-11-20", 8, 3), row("2026-11-21", 4, 0)];
        let screen = Screen {
            columns: Some(100),
            is_coloured: false,
        };
        let table = written(|out| table(out, Grouping::Day, &rows, &rows[0].counts, screen));
        assert!(
            table.contains("OVER") && !table.contains("ADJUSTED"),
            "{table}"
        );
        let bars: Vec<usize> = table
            .lines()
            .map(|line| line.matches('█').count())
            .collect();
        assert!(bars[1] > 0, "{table}");
        assert_eq!(bars, [0, bars[1], bars[1] / 2, 0]);
    }
}

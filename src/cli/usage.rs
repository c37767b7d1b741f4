//! `touchline usage`: what the ledger holds, by key or by day.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use clap::{Args, ValueEnum};
use jiff::civil::Date;
use serde::Serialize;

use super::output::{RowsFormat, parse_date, write_csv, write_json, write_table};
use super::{Session, UsageError};
use crate::config::Config;
use crate::policy::api_key::KeyId;
use crate::policy::key_record::{KeyRecord, TierName};
use crate::store::DayUsage;

const NUMBERS: [&str; 6] = [
    "used",
    "requests",
    "charged",
    "refunded",
    "refused_tier",
    "refused_quota",
];

#[derive(Debug, Args)]
pub(super) struct UsageArguments {
    /// The first quota day; the last one, or today, if left out.
    #[arg(long, value_parser = parse_date, value_name = "DATE")]
    from: Option<Date>,
    /// The last quota day; today if left out.
    #[arg(long, value_parser = parse_date, value_name = "DATE")]
    to: Option<Date>,
    /// This key only.
    #[arg(long, value_name = "ID")]
    key: Option<KeyId>,
    /// What one row stands for.
    #[arg(long, value_enum, default_value = "key")]
    by: By,
    /// The form of the result.
    #[arg(long, value_enum, default_value = "table")]
    output: RowsFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum By {
    /// A quota day.
    Day,
    /// A key.
    Key,
}

/// The days that were asked for, both included.
fn range(from: Option<Date>, to: Option<Date>, today: Date) -> Result<(Date, Date), UsageError> {
    let (from, to) = match (from, to) {
        (Some(from), Some(to)) => (from, to),
        (Some(from), None) => (from, today),
        (None, to) => (to.unwrap_or(today), to.unwrap_or(today)),
    };
    if from > to {
        return Err(UsageError(format!("--from {from} is after --to {to}")));
    }
    Ok((from, to))
}

/// Reads the ledger and writes it in the form asked for.
pub(super) fn run(
    arguments: &UsageArguments,
    config: Config,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    Session::run(config, async |session| {
        report(session, arguments, out).await
    })
}

async fn report(
    session: &Session,
    arguments: &UsageArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let now = session.store.server_time().await?;
    let today = session.config.calendar.day_at(now)?.date;
    let (from, to) = range(arguments.from, arguments.to, today)?;
    let usage = session.store.usage(from, to, arguments.key).await?;
    let total = total(&usage);
    match arguments.by {
        By::Day => {
            let rows = by_day(&usage);
            let named: Vec<Vec<String>> = rows
                .iter()
                .map(|row| vec![row.date.to_string(), row.keys.to_string()])
                .collect();
            let counts = rows.iter().map(|row| &row.counts);
            let report = Report {
                from,
                to,
                by: arguments.by,
                rows: &rows,
                total: &total,
                days: &usage,
            };
            write(
                out,
                arguments.output,
                &report,
                &["date", "keys"],
                named,
                counts,
            )
        }
        By::Key => {
            let records = session.store.all_keys().await?;
            let rows = by_key(&usage, &records);
            let named: Vec<Vec<String>> = rows.iter().map(KeyRow::names).collect();
            let counts = rows.iter().map(|row| &row.counts);
            let report = Report {
                from,
                to,
                by: arguments.by,
                rows: &rows,
                total: &total,
                days: &usage,
            };
            write(
                out,
                arguments.output,
                &report,
                &["key", "customer", "label", "tier"],
                named,
                counts,
            )
        }
    }
}

/// Writes a report; `named` are the first cells of each row, `counts` the rest.
fn write<'c, R: Serialize>(
    out: &mut dyn Write,
    output: RowsFormat,
    report: &Report<'_, R>,
    names: &[&str],
    named: Vec<Vec<String>>,
    counts: impl Iterator<Item = &'c Counts>,
) -> anyhow::Result<()> {
    let header: Vec<&str> = names.iter().chain(&NUMBERS).copied().collect();
    let mut rows: Vec<Vec<String>> = named
        .into_iter()
        .zip(counts)
        .map(|(names, counts)| names.into_iter().chain(counts.cells()).collect())
        .collect();
    match output {
        RowsFormat::Json => write_json(out, report),
        RowsFormat::Csv => write_csv(out, &header, &rows),
        RowsFormat::Table => {
            let blank = names.iter().skip(1).map(|_| String::new());
            rows.push(
                std::iter::once("total".to_owned())
                    .chain(blank)
                    .chain(report.total.cells())
                    .collect(),
            );
            let numbers: Vec<&str> = NUMBERS.into_iter().chain(["keys"]).collect();
            write_table(out, &header, &numbers, &rows)
        }
    }
}

#[derive(Serialize)]
struct Report<'a, R> {
    from: Date,
    to: Date,
    by: By,
    rows: &'a [R],
    total: &'a Counts,
    /// The ledger itself, by day, key and endpoint: what programs reconcile.
    days: &'a [DayUsage],
}

/// What finance bills from. `used` is exact; the others may lag behind it by up to a second.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Counts {
    used: u64,
    requests: u64,
    charged: u64,
    refunded: u64,
    refused_tier: u64,
    refused_quota: u64,
}

impl Counts {
    fn add(&mut self, usage: &DayUsage) {
        self.used += usage.used;
        for totals in usage.endpoints.values() {
            self.requests += totals.requests;
            self.charged += totals.charged;
            self.refunded += totals.refunded;
            self.refused_tier += totals.refused_tier;
            self.refused_quota += totals.refused_quota;
        }
    }

    /// In the order of [`NUMBERS`].
    fn cells(&self) -> [String; 6] {
        [
            self.used,
            self.requests,
            self.charged,
            self.refunded,
            self.refused_tier,
            self.refused_quota,
        ]
        .map(|count| count.to_string())
    }
}

#[derive(Debug, Serialize)]
struct DayRow {
    date: Date,
    /// How many keys the ledger has on this day.
    keys: usize,
    #[serde(flatten)]
    counts: Counts,
}

#[derive(Debug, Serialize)]
struct KeyRow<'a> {
    key: KeyId,
    /// Null, as `label` and `tier`, where the key table does not know the key.
    customer: Option<&'a str>,
    label: Option<&'a str>,
    tier: Option<&'a TierName>,
    #[serde(flatten)]
    counts: Counts,
}

impl KeyRow<'_> {
    fn names(&self) -> Vec<String> {
        vec![
            self.key.to_string(),
            self.customer.unwrap_or_default().to_owned(),
            self.label.unwrap_or_default().to_owned(),
            self.tier.map(ToString::to_string).unwrap_or_default(),
        ]
    }
}

fn total(usage: &[DayUsage]) -> Counts {
    let mut total = Counts::default();
    usage.iter().for_each(|usage| total.add(usage));
    total
}

/// In the order of the days.
fn by_day(usage: &[DayUsage]) -> Vec<DayRow> {
    let mut days: BTreeMap<Date, (BTreeSet<KeyId>, Counts)> = BTreeMap::new();
    for usage in usage {
        let (keys, counts) = days.entry(usage.date).or_default();
        keys.insert(usage.key);
        counts.add(usage);
    }
    days.into_iter()
        .map(|(date, (keys, counts))| DayRow {
            date,
            keys: keys.len(),
            counts,
        })
        .collect()
}

/// In the order of customers, then ids.
fn by_key<'r>(usage: &[DayUsage], records: &'r [KeyRecord]) -> Vec<KeyRow<'r>> {
    let records: BTreeMap<KeyId, &KeyRecord> =
        records.iter().map(|record| (record.id, record)).collect();
    let mut keys: BTreeMap<KeyId, Counts> = BTreeMap::new();
    for usage in usage {
        keys.entry(usage.key).or_default().add(usage);
    }
    let mut rows: Vec<KeyRow<'_>> = keys
        .into_iter()
        .map(|(key, counts)| {
            let record = records.get(&key);
            KeyRow {
                key,
                customer: record.map(|record| record.customer.as_str()),
                label: record.and_then(|record| record.label.as_deref()),
                tier: record.map(|record| &record.tier),
                counts,
            }
        })
        .collect();
    rows.sort_by_key(|row| (row.customer, row.key));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::key_record::tests::key_of;
    use crate::store::Totals;

    fn date(text: &str) -> Date {
        text.parse().unwrap()
    }

    fn usage(day: &str, key: KeyId, used: u64) -> DayUsage {
        let totals = Totals {
            requests: used + 1,
            charged: used + 1,
            refunded: 1,
            refused_tier: 2,
            refused_quota: 3,
        };
        DayUsage {
            date: date(day),
            key,
            used,
            endpoints: BTreeMap::from([
                ("/a".to_owned(), totals),
                ("/b".to_owned(), Totals::default()),
            ]),
        }
    }

    #[test]
    fn the_days_default_to_today() {
        let today = date("2026-11-21");
        let (early, late) = (date("2026-11-01"), date("2026-11-30"));
        assert_eq!(range(None, None, today).unwrap(), (today, today));
        assert_eq!(range(Some(early), None, today).unwrap(), (early, today));
        assert_eq!(range(None, Some(early), today).unwrap(), (early, early));
        assert_eq!(
            range(Some(early), Some(late), today).unwrap(),
            (early, late)
        );
        assert_eq!(range(Some(late), Some(late), today).unwrap(), (late, late));
        assert!(range(Some(late), None, today).is_err());
    }

    #[test]
    fn rows_by_day_and_by_key_add_up_to_the_same_total() {
        let (_, one) = key_of("pro");
        let (_, mut two) = key_of("starter");
        two.customer = "Aaron".into();
        let (stranger, _) = key_of("pro");
        let ledger = [
            usage("2026-11-20", one.id, 5),
            usage("2026-11-20", two.id, 7),
            usage("2026-11-21", one.id, 11),
            usage("2026-11-21", stranger.id(), 1),
        ];
        let total = total(&ledger);
        assert_eq!(total.cells(), ["24", "28", "28", "4", "8", "12"]);

        let days = by_day(&ledger);
        assert_eq!(
            days.iter()
                .map(|row| (row.date, row.keys, row.counts.used))
                .collect::<Vec<_>>(),
            [(date("2026-11-20"), 2, 12), (date("2026-11-21"), 2, 12)]
        );

        let records = [one.clone(), two.clone()];
        let keys = by_key(&ledger, &records);
        assert_eq!(
            keys.iter()
                .map(|row| (row.customer, row.key, row.counts.used))
                .collect::<Vec<_>>(),
            [
                (None, stranger.id(), 1),
                (Some("Aaron"), two.id, 7),
                (Some("Acme"), one.id, 16)
            ]
        );
    }

    #[test]
    fn a_report_has_the_same_rows_in_every_form() {
        let (_, record) = key_of("pro");
        let ledger = [usage("2026-11-20", record.id, 5)];
        let rows = by_day(&ledger);
        let sum = total(&ledger);
        let report = Report {
            from: date("2026-11-20"),
            to: date("2026-11-21"),
            by: By::Day,
            rows: &rows,
            total: &sum,
            days: &[],
        };
        let written = |output| {
            let mut out = Vec::new();
            let named = vec![vec!["2026-11-20".to_owned(), "1".to_owned()]];
            write(
                &mut out,
                output,
                &report,
                &["date", "keys"],
                named,
                rows.iter().map(|row| &row.counts),
            )
            .unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            written(RowsFormat::Csv),
            "date,keys,used,requests,charged,refunded,refused_tier,refused_quota\n2026-11-20,1,5,6,6,1,2,3\n"
        );
        let json: serde_json::Value = serde_json::from_str(&written(RowsFormat::Json)).unwrap();
        assert_eq!(json["by"], "day");
        assert_eq!(json["rows"][0]["date"], "2026-11-20");
        assert_eq!(json["rows"][0]["used"], 5);
        assert_eq!(json["total"]["refused_quota"], 3);
        let table = written(RowsFormat::Table);
        assert!(
            table.lines().last().unwrap().starts_with("total "),
            "{table}"
        );
    }
}

//! `touchline audit`: who changed which key, when, how and why, and who removed which gateway from the register.

use std::io::Write;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::Timestamp;
use jiff::civil::Date;

use super::key_argument::{KeyArgument, id_of};
use super::output::long_table::write_table;
use super::output::{RowsFormat, parse_date, parse_name, to_the_second, write_csv, write_json};
use super::session::{Expected, Session, UsageError};
use crate::config::Config;
use crate::policy::audit::{Entry, Wanted};
use crate::policy::calendar::Calendar;
use crate::policy::key_record::{Action, PublicFacts};

const CSV_HEADER: [&str; 7] = ["at", "key", "who", "what", "before", "after", "reason"];
const TABLE_HEADER: [&str; 6] = ["at", "key", "who", "what", "change", "reason"];

#[derive(Debug, Args)]
pub(super) struct AuditArguments {
    /// Only changes of this key: its id, or the key itself.
    #[arg(long, value_name = "ID")]
    key: Option<KeyArgument>,
    /// The first day, in the quota's time zone.
    #[arg(long, value_parser = parse_date, value_name = "DATE")]
    from: Option<Date>,
    /// The last day, in the quota's time zone.
    #[arg(long, value_parser = parse_date, value_name = "DATE")]
    to: Option<Date>,
    /// Only changes by this name, written exactly as shown.
    #[arg(long, value_parser = parse_name, value_name = "NAME")]
    who: Option<String>,
    /// Only changes of this kind.
    #[arg(long, value_parser = action_parser(), value_name = "CHANGE")]
    what: Option<Action>,
    /// The format of the result.
    #[arg(short, long, value_enum, default_value = "table")]
    output: RowsFormat,
}

fn action_parser() -> impl TypedValueParser<Value = Action> {
    PossibleValuesParser::new(Action::WORDS)
        .try_map(|text| Action::of_str(&text).ok_or("there is no such change"))
}

impl AuditArguments {
    fn wanted(&self, calendar: &Calendar) -> anyhow::Result<Wanted> {
        if let (Some(from), Some(to)) = (self.from, self.to)
            && from > to
        {
            return Err(UsageError(format!("--from {from} is after --to {to}")).into());
        }
        let from = self.from.map(|from| calendar.start_of(from)).transpose()?;
        let to = self.to.map(|to| calendar.day_of(to)).transpose()?;
        let until = to.map(|day| Timestamp::from_second(day.end)).transpose()?;
        Ok(Wanted {
            // Resolved once the store is open.
            key: None,
            from,
            until,
            who: self.who.clone(),
            what: self.what,
        })
    }
}

/// Writes the trail in the requested format.
pub(super) fn run(
    arguments: &AuditArguments,
    config: Config,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let mut wanted = arguments.wanted(&config.calendar)?;
    Session::run(config, Expected::Content, async |session| {
        wanted.key = id_of(arguments.key, session).await?;
        let entries = session.store.audit(wanted).await?;
        write(&entries, arguments.output, out)
    })
}

fn write(entries: &[Entry], output: RowsFormat, out: &mut dyn Write) -> anyhow::Result<()> {
    match output {
        RowsFormat::Json => write_json(out, &entries),
        RowsFormat::Csv => write_csv(out, &CSV_HEADER, entries),
        RowsFormat::Table => {
            let rows: Vec<_> = entries.iter().map(table_row).collect();
            write_table(out, &TABLE_HEADER, &[], &rows)
        }
    }
}

fn table_row(entry: &Entry) -> Vec<String> {
    let key = entry.key.map(|key| key.to_string());
    vec![
        to_the_second(entry.at),
        key.unwrap_or_else(|| "-".to_owned()),
        entry.who.clone(),
        entry.what.as_str().to_owned(),
        change(&entry.before, &entry.after),
        entry.reason.clone().unwrap_or_default(),
    ]
}

/// The changed facts for people; for a new key, all facts.
fn change(before: &PublicFacts, after: &PublicFacts) -> String {
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    let changes = after.iter().filter_map(|(name, new)| {
        let old = before.get(name);
        let name = name.replace('_', " ").replace("grants.", "grants of ");
        match (old, new) {
            (Some(old), _) => Some(format!("{name}: {} → {}", shown(old), shown(new))),
            (None, Some(new)) => Some(format!("{name}: {new}")),
            (None, None) => None,
        }
    });
    changes.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::audit::{Author, signed};
    use crate::policy::key_record::tests::key_of;

    fn trail() -> Vec<Entry> {
        let (_, issued) = key_of("pro");
        let mut labelled = issued.clone();
        labelled.label = Some("a, \"b\"".into());
        let author = Author {
            who: "ops\u{1b}[31m".into(),
            reason: Some("typo".into()),
        };
        let labelled = signed(&issued, labelled, Action::SetLabel, &author);
        [issued, labelled].iter().map(Entry::of).collect()
    }

    fn written(entries: &[Entry], output: RowsFormat) -> String {
        let mut out = Vec::new();
        write(entries, output, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_table_reports_each_change_on_one_line() {
        let entries = trail();
        let id = entries[0].key.unwrap();
        assert_eq!(
            written(&entries, RowsFormat::Table),
            format!(
                "AT                    KEY           WHO            WHAT       CHANGE                                    REASON\n\
                 1970-01-01T00:00:00Z  {id}  tester@here    issue      customer: Acme, state: active, tier: pro\n\
                 1970-01-01T00:00:00Z  {id}  ops\\u{{1b}}[31m  set-label  label: none → a, \"b\"                      typo\n"
            )
        );
    }

    #[test]
    fn programs_get_the_facts_as_json() {
        let entries = trail();
        let json: serde_json::Value =
            serde_json::from_str(&written(&entries, RowsFormat::Json)).unwrap();
        assert_eq!(json[1]["what"], "set-label");
        assert_eq!(json[1]["who"], "ops\u{1b}[31m");
        assert_eq!(json[1]["before"], serde_json::json!({"label": null}));
        assert_eq!(json[1]["after"], serde_json::json!({"label": "a, \"b\""}));
        let text = written(&entries, RowsFormat::Csv);
        let mut csv = csv::Reader::from_reader(text.as_bytes());
        assert_eq!(csv.headers().unwrap(), CSV_HEADER.as_slice());
        let rows: Vec<csv::StringRecord> = csv.records().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 2);
        let after: serde_json::Value = serde_json::from_str(&rows[1][5]).unwrap();
        assert_eq!(after, json[1]["after"]);
        assert_eq!(&rows[1][6], "typo");
    }

    #[test]
    fn days_are_those_of_the_quota_zone() {
        let calendar = Calendar::of_zone("America/New_York").unwrap();
        let day: Date = "2026-11-21".parse().unwrap();
        let mut asked = AuditArguments {
            key: None,
            from: Some(day),
            to: Some(day),
            who: None,
            what: None,
            output: RowsFormat::Table,
        };
        let wanted = asked.wanted(&calendar).unwrap();
        let at = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        assert_eq!(wanted.from, at("2026-11-21T05:00:00Z"));
        assert_eq!(wanted.until, at("2026-11-22T05:00:00Z"));
        asked.from = Some(day.tomorrow().unwrap());
        assert!(asked.wanted(&calendar).unwrap_err().is::<UsageError>());
    }
}

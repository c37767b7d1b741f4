//! `touchline keys`: issues, lists, shows and revokes keys in the configured store.

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use jiff::civil::Date;

use super::output::{
    RecordFormat, RowsFormat, escape, parse_date, parse_name, write_csv, write_json, write_record,
    write_table,
};
use super::{Session, UsageError, note};
use crate::config::Config;
use crate::policy::api_key::{ApiKey, KeyId, os_entropy};
use crate::policy::calendar::Calendar;
use crate::policy::key_record::{KeyRecord, KeyState, TierName};
use crate::store::{ChangeError, ChangeMark};

mod view;

use view::{IssuedView, KeyView, LIST_HEADER, ShownView, TodayView};

/// How often a change is tried anew when somebody else changed the key at the same time.
const CHANGE_TRIES: usize = 5;

#[derive(Debug, Subcommand)]
pub(super) enum KeysCommand {
    /// Issue a key. It is shown this once and never again.
    #[command(
        after_help = "Example:\n  touchline keys issue --tier pro --customer \"Acme\" --label backend --expires 2027-01-31 --output json"
    )]
    Issue(IssueArguments),
    /// List all keys in the order of their issue.
    #[command(after_help = "Example:\n  touchline keys list --output csv > keys.csv")]
    List {
        /// The form of the result.
        #[arg(long, value_enum, default_value = "table")]
        output: RowsFormat,
    },
    /// Show a key and what it used today.
    #[command(after_help = "Example:\n  touchline keys show 4fZk09QwXy2B")]
    Show {
        /// The public id of the key.
        id: KeyId,
        /// The form of the result.
        #[arg(long, value_enum, default_value = "table")]
        output: RecordFormat,
    },
    /// Revoke a key for ever, from the very next request.
    #[command(after_help = "Example:\n  touchline keys revoke 4fZk09QwXy2B --yes")]
    Revoke {
        /// The public id of the key.
        id: KeyId,
        /// Do not ask; needed where there is no terminal.
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
pub(super) struct IssueArguments {
    /// The subscription tier.
    #[arg(long)]
    tier: String,
    /// Who pays.
    #[arg(long, value_parser = parse_name)]
    customer: String,
    /// What the customer calls this key.
    #[arg(long, value_parser = parse_name)]
    label: Option<String>,
    /// The last day of the subscription, in the quota's time zone.
    #[arg(long, value_parser = parse_date, value_name = "DATE")]
    expires: Option<Date>,
    /// The form of the result.
    #[arg(long, value_enum, default_value = "table")]
    output: RecordFormat,
}

/// Runs one of the commands on the configured store.
pub(super) fn run(
    command: &KeysCommand,
    config: Config,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    match command {
        KeysCommand::Issue(arguments) => {
            let tier = configured_tier(&config, &arguments.tier)?;
            Session::run(config, async |session| {
                issue(session, arguments, tier, out).await
            })
        }
        KeysCommand::List { output } => {
            Session::run(config, async |session| list(session, *output, out).await)
        }
        KeysCommand::Show { id, output } => Session::run(config, async |session| {
            show(session, *id, *output, out).await
        }),
        KeysCommand::Revoke { id, yes } => {
            if !yes && !io::stdin().is_terminal() {
                return Err(UsageError(
                    "there is no terminal to ask on: add --yes to revoke the key".to_owned(),
                )
                .into());
            }
            Session::run(config, async |session| {
                revoke(session, *id, *yes, out).await
            })
        }
    }
}

fn configured_tier(config: &Config, name: &str) -> anyhow::Result<TierName> {
    let found = config.tiers.iter().find(|(tier, _)| tier.as_str() == name);
    match found {
        Some((tier, _)) => Ok(tier.clone()),
        None => {
            let names: Vec<&str> = config.tiers.iter().map(|(tier, _)| tier.as_str()).collect();
            bail!(
                "there is no tier {name:?}; the configured tiers are {}",
                names.join(", ")
            )
        }
    }
}

/// The first instant after the last day of a subscription.
fn end_of_subscription(
    calendar: &Calendar,
    last_day: Date,
    now: Timestamp,
) -> anyhow::Result<Timestamp> {
    let end = Timestamp::from_second(calendar.day_of(last_day)?.end)?;
    if end <= now {
        bail!("{last_day} is in the past: the key would have expired already");
    }
    Ok(end)
}

async fn issue(
    session: &Session,
    arguments: &IssueArguments,
    tier: TierName,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let now = session.store.server_time().await?;
    let expires = arguments
        .expires
        .map(|last_day| end_of_subscription(&session.config.calendar, last_day, now))
        .transpose()?;
    let key = ApiKey::generate(&session.config.keys.prefix, &mut os_entropy);
    let record = KeyRecord {
        id: key.id(),
        customer: arguments.customer.clone(),
        label: arguments.label.clone(),
        tier,
        state: KeyState::Active,
        expires,
        digest: key.digest(),
        previous: None,
        grants: BTreeMap::new(),
        created: now,
        updated: now,
        version: 0,
    };
    let (record, mark) = session.store.create_key(record).await?;
    let view = KeyView::of(&record, now);
    let shown = match arguments.output {
        RecordFormat::Json => write_json(
            out,
            &IssuedView {
                key: key.reveal(),
                record: view,
            },
        ),
        RecordFormat::Table => {
            let mut fields = view.fields(&session.config.calendar);
            fields.insert(1, ("key", key.reveal().to_owned()));
            write_record(out, &fields)
        }
    };
    if let Err(error) = shown {
        // Not the error itself: a closed pipe is no success here.
        bail!(
            "the key {} was issued but could not be shown ({error}): revoke it and issue another",
            record.id
        );
    }
    if arguments.output == RecordFormat::Table {
        note("Keep the key safe: it is not stored and cannot be shown again.");
    }
    session.applied(&mark).await
}

async fn list(session: &Session, output: RowsFormat, out: &mut dyn Write) -> anyhow::Result<()> {
    let now = session.store.server_time().await?;
    let records = session.store.all_keys().await?;
    let views: Vec<KeyView<'_>> = records
        .iter()
        .map(|record| KeyView::of(record, now))
        .collect();
    match output {
        RowsFormat::Json => write_json(out, &views),
        RowsFormat::Csv => {
            let rows: Vec<Vec<String>> = views.iter().map(KeyView::csv_row).collect();
            write_csv(out, &LIST_HEADER, &rows)
        }
        RowsFormat::Table => {
            let calendar = &session.config.calendar;
            let rows: Vec<Vec<String>> = views
                .iter()
                .map(|view| {
                    view.fields(calendar)
                        .into_iter()
                        .map(|(_, value)| value)
                        .collect()
                })
                .collect();
            write_table(out, &LIST_HEADER, &[], &rows)
        }
    }
}

async fn show(
    session: &Session,
    id: KeyId,
    output: RecordFormat,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let now = session.store.server_time().await?;
    let record = existing(session, id).await?;
    let day = session.config.calendar.day_at(now)?;
    let usage = session.store.usage(day.date, day.date, Some(id)).await?;
    let used = usage.iter().map(|usage| usage.used).sum();
    let limit = session
        .config
        .tier(&record.tier)
        .map(|tier| record.limit_on(day.date, tier.daily.get()));
    let view = ShownView {
        record: KeyView::of(&record, now),
        grants: &record.grants,
        today: TodayView {
            date: day.date,
            used,
            limit,
            remaining: limit.map(|limit| limit.saturating_sub(used)),
        },
    };
    match output {
        RecordFormat::Json => write_json(out, &view),
        RecordFormat::Table => {
            let mut fields = view.record.fields(&session.config.calendar);
            for (date, units) in &record.grants {
                fields.push(("grant", format!("{units} on {date}")));
            }
            let limit = limit.map_or_else(
                || "a limit unknown: the tier is not configured".to_owned(),
                |limit| limit.to_string(),
            );
            fields.push(("used today", format!("{used} of {limit}")));
            write_record(out, &fields)
        }
    }
}

async fn revoke(
    session: &Session,
    id: KeyId,
    yes: bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let record = existing(session, id).await?;
    if record.state == KeyState::Revoked {
        return say(out, &format!("{id} is revoked already"));
    }
    let question = format!(
        "Revoke {id} of {} ({}) for ever? [y/N] ",
        escape(&record.customer),
        record.tier
    );
    if !yes && !confirmed(&question)? {
        bail!("nothing was changed");
    }
    let revoked = change(session, record, |record| {
        let changes = record.state != KeyState::Revoked;
        record.state = KeyState::Revoked;
        changes
    });
    match revoked.await? {
        None => say(out, &format!("{id} is revoked already")),
        Some(mark) => {
            say(out, &format!("{id} is revoked"))?;
            session.applied(&mark).await
        }
    }
}

/// Makes a change to a record, anew on what is stored whenever somebody else was quicker. `edit` says whether there is
/// anything to change; `None` where there is not.
async fn change(
    session: &Session,
    mut record: KeyRecord,
    edit: impl Fn(&mut KeyRecord) -> bool,
) -> anyhow::Result<Option<ChangeMark>> {
    let id = record.id;
    for _ in 0..CHANGE_TRIES {
        if !edit(&mut record) {
            return Ok(None);
        }
        match session.store.update_key(record).await {
            Ok((_, mark)) => return Ok(Some(mark)),
            Err(ChangeError::Conflict(_)) => record = existing(session, id).await?,
            Err(
                error @ (ChangeError::UnknownKey(_)
                | ChangeError::Exists(_)
                | ChangeError::Store(_)),
            ) => {
                return Err(error.into());
            }
        }
    }
    bail!("somebody else keeps changing the key {id}: try again")
}

async fn existing(session: &Session, id: KeyId) -> anyhow::Result<KeyRecord> {
    session
        .store
        .key(id)
        .await?
        .with_context(|| format!("there is no key {id}"))
}

/// Asks on the terminal; anything but yes is no.
fn confirmed(question: &str) -> anyhow::Result<bool> {
    let mut terminal = io::stderr();
    write!(terminal, "{question}")?;
    terminal.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(is_yes(&answer))
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

fn say(out: &mut dyn Write, text: &str) -> anyhow::Result<()> {
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_subscription_ends_with_the_last_second_of_its_last_day_in_the_quota_zone() {
        let calendar = Calendar::of_zone("America/New_York").unwrap();
        let last_day: Date = "2027-01-31".parse().unwrap();
        let end = at("2027-02-01T05:00:00Z");
        assert_eq!(
            end_of_subscription(&calendar, last_day, at("2027-02-01T04:59:59Z")).unwrap(),
            end
        );
        assert!(end_of_subscription(&calendar, last_day, end).is_err());
        assert_eq!(view::last_day(&calendar, end), "after 2027-01-31");
        assert_eq!(
            view::last_day(&calendar, at("2027-02-01T05:00:01.5Z")),
            "2027-02-01T05:00:01Z"
        );
        assert!(end_of_subscription(&calendar, Date::MAX, end).is_err());
    }

    #[test]
    fn an_unknown_tier_is_told_with_the_configured_ones() {
        let config = Config::parse("g", include_str!("../../gateway.yaml"), &|_| None).unwrap();
        assert_eq!(configured_tier(&config, "pro").unwrap().as_str(), "pro");
        assert_eq!(
            configured_tier(&config, "gold").unwrap_err().to_string(),
            "there is no tier \"gold\"; the configured tiers are starter, pro, enterprise"
        );
    }

    #[test]
    fn only_yes_is_yes() {
        assert!(is_yes("y\n") && is_yes(" YES\r\n"));
        assert!(!is_yes("") && !is_yes("\n") && !is_yes("yep") && !is_yes("n"));
    }
}

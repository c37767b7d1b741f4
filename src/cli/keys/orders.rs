//! The changes whose result is one sentence: state, tier, subscription, names, grants.

use std::io::Write;

use anyhow::bail;
use clap::Subcommand;
use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::arguments::{ChangedKey, ConfirmedKey, GrantArguments, LastDay, parse_last_day};
use super::change::{ChangeOutcome, Consent, make};
use super::named::{configured_tier, limit_on};
use super::view::{detailed, end};
use crate::cli::output::{RecordFormat, escape, parse_name, write_text};
use crate::cli::session::{Session, note};
use crate::config::Config;
use crate::policy::calendar::Calendar;
use crate::policy::lifecycle::KeyChange;

/// How far ahead units may be granted: against a mistyped year. The record keeps each day with a grant, also past ones.
const GRANT_DAYS_AHEAD_MAX: i64 = 400;
/// How long after a change a command that would repeat it publishes it again: gateways find an older one by themselves.
const REPUBLISHED_FOR: SignedDuration = SignedDuration::from_hours(24);

/// A change whose result is the key's new state, in one sentence.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum ChangeCommand {
    /// Refuse all requests with a key until it is resumed, from the next request on every gateway that can reach the store.
    ///
    /// Exits with 3 and names the gateways that have not confirmed it, if any. A gateway that cannot reach Redis may accept the key
    /// until its `store.redis.max_staleness` is over.
    #[command(after_help = "Example:\n  touchline keys suspend 4fZk09QwXy2B --yes")]
    Suspend(ConfirmedKey),
    /// End the suspension of a key.
    #[command(after_help = "Example:\n  touchline keys resume 4fZk09QwXy2B")]
    Resume(ChangedKey),
    /// Revoke a key permanently, from the next request on every gateway that can reach the store.
    ///
    /// Exits with 3 and names the gateways that have not confirmed it, if any. A gateway that cannot reach Redis may accept the key
    /// until its `store.redis.max_staleness` is over.
    #[command(after_help = "Example:\n  touchline keys revoke 4fZk09QwXy2B --yes")]
    Revoke(ConfirmedKey),
    /// Move a key to another tier, from the next request on. The units used today stay used.
    ///
    /// Asks for confirmation if the other tier has fewer units a day or lacks an endpoint.
    #[command(after_help = "Example:\n  touchline keys set-tier 4fZk09QwXy2B enterprise")]
    SetTier {
        #[command(flatten)]
        key: ConfirmedKey,
        /// A tier of the configuration.
        tier: String,
    },
    /// Set the last day of a subscription, or `never`.
    ///
    /// Asks for confirmation if that day is over, which ends the subscription at once.
    #[command(
        after_help = "Examples:\n  touchline keys set-expiry 4fZk09QwXy2B 2027-01-31\n  touchline keys set-expiry 4fZk09QwXy2B never"
    )]
    SetExpiry {
        #[command(flatten)]
        key: ConfirmedKey,
        /// The last day of the subscription, in the quota's time zone, or `never`.
        #[arg(value_parser = parse_last_day, value_name = "DATE|never")]
        last_day: LastDay,
    },
    /// Set or remove the label of a key, the customer's name for it.
    #[command(
        after_help = "Examples:\n  touchline keys set-label 4fZk09QwXy2B \"live site\"\n  touchline keys set-label 4fZk09QwXy2B --none"
    )]
    SetLabel {
        #[command(flatten)]
        key: ChangedKey,
        /// The customer's name for the key.
        #[arg(value_parser = parse_name, required_unless_present = "none", conflicts_with = "none")]
        text: Option<String>,
        /// Remove the label.
        #[arg(long)]
        none: bool,
    },
    /// Set the customer who pays for a key.
    #[command(after_help = "Example:\n  touchline keys set-customer 4fZk09QwXy2B \"Acme Ltd\"")]
    SetCustomer {
        #[command(flatten)]
        key: ChangedKey,
        /// The customer who pays for the key.
        #[arg(value_parser = parse_name)]
        text: String,
    },
}

impl ChangeCommand {
    /// The key, the consent and the change itself.
    fn order(&self, config: &Config) -> anyhow::Result<(&ChangedKey, Consent, KeyChange)> {
        Ok(match self {
            ChangeCommand::Suspend(key) => (&key.key, key.consent(), KeyChange::Suspend),
            ChangeCommand::Resume(key) => (key, Consent::Ask, KeyChange::Resume),
            ChangeCommand::Revoke(key) => (&key.key, key.consent(), KeyChange::Revoke),
            ChangeCommand::SetTier { key, tier } => {
                let change = KeyChange::SetTier(configured_tier(config, tier)?);
                (&key.key, key.consent(), change)
            }
            ChangeCommand::SetExpiry { key, last_day } => {
                let day = last_day.map(|date| config.calendar.day_of(date));
                let end = day.transpose()?.map(|day| Timestamp::from_second(day.end));
                let change = KeyChange::SetExpiry(end.transpose()?);
                (&key.key, key.consent(), change)
            }
            ChangeCommand::SetLabel { key, text, .. } => {
                (key, Consent::Ask, KeyChange::SetLabel(text.clone()))
            }
            ChangeCommand::SetCustomer { key, text } => {
                (key, Consent::Ask, KeyChange::SetCustomer(text.clone()))
            }
        })
    }

    /// The key's state after the command, for its sentence.
    fn state(&self, outcome: &ChangeOutcome, calendar: &Calendar) -> String {
        let was = |old: String| match outcome.made {
            Some(_) => format!(", was {old}"),
            None => String::new(),
        };
        match self {
            ChangeCommand::Suspend(_) => "is suspended".to_owned(),
            ChangeCommand::Resume(_) => "is active".to_owned(),
            ChangeCommand::Revoke(_) => "is revoked".to_owned(),
            ChangeCommand::SetTier { tier, .. } => {
                let was = was(format!("in {}", outcome.before.tier));
                format!("is in tier {tier}{was}")
            }
            ChangeCommand::SetExpiry { .. } => {
                let was = was(end(calendar, outcome.before.expires));
                match outcome.after().expires {
                    None => format!("never expires{was}"),
                    expires => format!("expires {}{was}", end(calendar, expires)),
                }
            }
            ChangeCommand::SetLabel { text, .. } => match text {
                Some(label) => format!("is labelled {}", escape(label)),
                None => "is without a label".to_owned(),
            },
            ChangeCommand::SetCustomer { text, .. } => format!("is of {}", escape(text)),
        }
    }
}

pub(super) async fn change(
    session: &Session,
    command: &ChangeCommand,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let (ChangedKey { id, options }, consent, change) = command.order(&session.config)?;
    let id = id.id(session).await?;
    let outcome = make(session, id, consent, &options.author(), &change).await?;
    let state = command.state(&outcome, &session.config.calendar);
    let sentence = match outcome.made {
        Some(_) => format!("{id} {state}"),
        None if state.starts_with("never") => format!("{id} already {state}"),
        None => format!("{id} {state} already"),
    };
    announce(session, &outcome, options.output, None, &sentence, out).await?;
    let ended = |expires: Timestamp| expires <= outcome.now;
    if change == KeyChange::Resume && outcome.after().expires.is_some_and(ended) {
        note(&format!(
            "Its subscription has ended: renew it with `touchline keys set-expiry {id} DATE`."
        ));
    }
    Ok(())
}

pub(super) async fn grant(
    session: &Session,
    order: &GrantArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let id = order.id.id(session).await?;
    let calendar = &session.config.calendar;
    // The day is fixed here, so that a retry after midnight grants for the same day.
    let date = grant_day(calendar, order.day, session.store.server_time().await?)?;
    let author = order.by.author(Some(&order.reason));
    let units = order.extra;
    let change = KeyChange::Grant { date, units };
    let outcome = make(session, id, Consent::Ask, &author, &change).await?;
    let extra = order.extra.get();
    let limit = limit_on(&session.config, outcome.after(), date).map_or_else(
        || "its tier is not configured".to_owned(),
        |limit| format!("its limit is {limit} that day"),
    );
    let reason = escape(&order.reason);
    let sentence = format!("{id} has {extra} extra units on {date} ({reason}): {limit}");
    let granted = json!({ "date": date, "extra": extra, "reason": order.reason });
    announce(
        session,
        &outcome,
        order.output,
        Some(granted),
        &sentence,
        out,
    )
    .await
}

/// The day of a grant: `wanted`, or the day at `now`.
fn grant_day(calendar: &Calendar, wanted: Option<Date>, now: Timestamp) -> anyhow::Result<Date> {
    let today = calendar.day_at(now)?.date;
    let date = wanted.unwrap_or(today);
    if date < today {
        bail!("{date} is over: grant units for {today} or a later day");
    }
    let ahead = (calendar.day_of(date)?.start - calendar.day_of(today)?.start) / 86_400;
    if ahead > GRANT_DAYS_AHEAD_MAX {
        bail!("{date} is more than {GRANT_DAYS_AHEAD_MAX} days ahead: choose an earlier day");
    }
    Ok(date)
}

/// Writes the outcome of a change, and waits until the gateways have applied it.
async fn announce(
    session: &Session,
    outcome: &ChangeOutcome,
    output: RecordFormat,
    grant: Option<Value>,
    sentence: &str,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let is_made = outcome.made.is_some();
    let more = match grant {
        Some(grant) => json!({ "changed": is_made, "grant": grant }),
        None => json!({ "changed": is_made }),
    };
    let changed = detailed(outcome.after(), outcome.now, more);
    let shown = output.write(out, &changed, |out| {
        write_text(out, format!("{sentence}\n"))
    });
    // Also after a command that changed nothing: it may repeat one whose change was not published or not confirmed.
    let age = outcome.now.duration_since(outcome.before.updated);
    let published = match &outcome.made {
        Some((_, published)) => Some(published.clone()),
        None if age < REPUBLISHED_FOR => Some(session.store.publish_key(&outcome.before).await),
        None => None,
    };
    session.applied_after(shown, published.as_ref()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_granted_for_today_or_a_later_day_of_the_quota_zone() {
        let calendar = Calendar::of_zone("America/New_York").unwrap();
        // Still the evening before in New York.
        let now: Timestamp = "2026-11-21T04:59:59Z".parse().unwrap();
        let day = |text: &str| Some(text.parse::<Date>().unwrap());
        let granted = |wanted| grant_day(&calendar, wanted, now).ok();
        assert_eq!(granted(None), day("2026-11-20"));
        assert_eq!(granted(day("2026-11-20")), day("2026-11-20"));
        assert_eq!(granted(day("2027-12-25")), day("2027-12-25"));
        assert_eq!(granted(day("2027-12-26")), None);
        assert_eq!(granted(Some(Date::MAX)), None);
        let past = grant_day(&calendar, day("2026-11-19"), now).unwrap_err();
        assert_eq!(
            past.to_string(),
            "2026-11-19 is over: grant units for 2026-11-20 or a later day"
        );
    }
}

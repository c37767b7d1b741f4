//! The commands that make a secret, which is shown once and stored nowhere.

use std::io::Write;

use anyhow::{anyhow, bail};
use clap::Args;
use jiff::Timestamp;
use jiff::civil::Date;
use serde::Serialize;
use serde_json::json;

use super::arguments::{ChangeOptions, ChangedKey, RotateArguments};
use super::change::{make, stored};
use super::named::configured_tier;
use super::view::{KeyView, detailed, detailed_fields, previous_until};
use crate::cli::output::{
    Extended, RecordFormat, parse_date, parse_name, to_the_second, write_record,
};
use crate::cli::session::{Session, note};
use crate::policy::api_key::{ApiKey, os_entropy};
use crate::policy::audit::{self, Author};
use crate::policy::calendar::Calendar;
use crate::policy::key_record::{Action, KeyRecord};
use crate::policy::lifecycle::KeyChange;
use crate::store::{ChangeError, StoreError};

#[derive(Debug, Args)]
pub(in crate::cli) struct IssueArguments {
    /// The subscription tier.
    #[arg(long)]
    pub(super) tier: String,
    /// The customer who pays for the key.
    #[arg(long, value_parser = parse_name)]
    customer: String,
    /// The customer's name for the key.
    #[arg(long, value_parser = parse_name)]
    label: Option<String>,
    /// The last day of the subscription, in the quota's time zone.
    #[arg(long, value_parser = parse_date, value_name = "DATE")]
    expires: Option<Date>,
    #[command(flatten)]
    options: ChangeOptions,
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

pub(super) async fn issue(
    session: &Session,
    arguments: &IssueArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let tier = configured_tier(&session.config, &arguments.tier)?;
    let now = session.store.server_time().await?;
    let expires = arguments
        .expires
        .map(|last_day| end_of_subscription(&session.config.calendar, last_day, now))
        .transpose()?;
    let key = ApiKey::generate(&session.config.keys.prefix, &mut os_entropy);
    let issued = arguments.options.first(Action::Issue);
    let record = KeyRecord {
        label: arguments.label.as_deref().map(Into::into),
        expires,
        ..KeyRecord::new(&key, arguments.customer.as_str(), tier, now, issued)
    };
    let id = record.id;
    let (record, mark) = match stored(session.store.create_key(record).await) {
        Err(ChangeError::Store(error @ StoreError::Unavailable(_))) => bail!(
            "it is unknown whether the key {id} was issued (it was not shown), {error}: check with `touchline keys show {id}`, \
            revoke it if it exists, and issue another"
        ),
        created => created?,
    };
    let view = KeyView::of(&record, now);
    let fields = view.fields(&session.config.calendar);
    let issued = Extended {
        record: view,
        more: json!({ "key": key.reveal() }),
    };
    if let Err(error) = show(&key, &issued, fields, arguments.options.output, out) {
        // Not the error itself, because a closed pipe counts as success elsewhere.
        bail!(
            "the key {id} was issued but could not be shown ({error}): revoke it and issue another"
        );
    }
    session.applied(Some(&mark)).await
}

/// Shows a new key, which cannot be shown again, with its record.
fn show(
    key: &ApiKey,
    record: &impl Serialize,
    mut fields: Vec<(&str, String)>,
    output: RecordFormat,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    fields.insert(1, ("key", key.reveal().to_owned()));
    output.write(out, record, |out| write_record(out, &fields))?;
    if output == RecordFormat::Table {
        note("Keep the key safe: it is not stored and cannot be shown again.");
    }
    Ok(())
}

pub(super) async fn rotate(
    session: &Session,
    order: &RotateArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let ChangedKey { id, options } = &order.key.key;
    let (id, output) = (id.id(session).await?, options.output);
    let key = ApiKey::for_id(&session.config.keys.prefix, id, &mut os_entropy);
    let author = options.author();
    let change = KeyChange::Rotate {
        digest: key.digest(),
        overlap: order.overlap,
    };
    let outcome = make(session, id, order.key.consent(), &author, &change).await?;
    let Some((record, mark)) = &outcome.made else {
        bail!("{id} was not rotated: try again");
    };
    let fields = detailed_fields(record, outcome.now, &session.config.calendar, &[]);
    let more = json!({ "changed": true, "key": key.reveal() });
    let rotated = detailed(record, outcome.now, more);
    if let Err(error) = show(&key, &rotated, fields, output, out) {
        // Not the error itself, because a closed pipe counts as success elsewhere.
        return Err(unshown(session, &outcome.before, record, &author, &error).await);
    }
    if output == RecordFormat::Table {
        note(&previous_until(record, outcome.now).map_or_else(
            || "The old key is refused from now on.".to_owned(),
            |until| format!("The old key is valid until {}.", to_the_second(until)),
        ));
    }
    session.applied(Some(mark)).await
}

/// Reverts a rotation whose new key could not be shown, so that the secret in use stays valid; not if that secret was to end at
/// once. Returns the error for the operator.
async fn unshown(
    session: &Session,
    before: &KeyRecord,
    after: &KeyRecord,
    author: &Author,
    error: &anyhow::Error,
) -> anyhow::Error {
    let id = after.id;
    let failure = format!("the new key of {id} could not be shown ({error})");
    if after.previous.is_none() {
        return anyhow!("{failure} and the old one has ended: rotate the key again");
    }
    let restored = KeyRecord {
        version: after.version,
        ..before.clone()
    };
    let unseen = Author {
        who: author.who.clone(),
        reason: Some("its new key could not be shown".to_owned()),
    };
    let restored = audit::signed(after, restored, Action::UndoRotate, &unseen);
    match stored(session.store.update_key(restored).await) {
        Ok(_) => anyhow!("{failure}: the rotation was reverted, the old key stays valid"),
        Err(undo) => anyhow!(
            "{failure}, and the rotation could not be reverted ({undo}): check with `touchline keys show {id}`; rotating it again ends the old key"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::keys::view;

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
}

//! The changes whose result is one sentence: state, tier, subscription, names, grants.

use std::io::Write;

use anyhow::bail;
use jiff::Timestamp;
use jiff::civil::Date;

use super::arguments::{
    CutArguments, GrantArguments, LastDay, PlainArguments, SetCustomerArguments,
    SetExpiryArguments, SetLabelArguments, SetTierArguments,
};
use super::change::{ChangeOutcome, Consent, make};
use super::view::{ChangedView, DetailView, GrantView, end};
use super::{Session, note};
use crate::cli::output::{RecordFormat, escape, write_json};
use crate::policy::calendar::Calendar;
use crate::policy::key_record::TierName;
use crate::policy::lifecycle::KeyChange;

/// How far ahead units may be granted. The limit bounds the record, which keeps each day with a grant.
const GRANT_DAYS_AHEAD_MAX: i64 = 400;

pub(super) async fn suspend(
    session: &Session,
    order: &CutArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let id = order.id.id(session).await?;
    let consent = Consent::of(order.yes);
    let author = order.signature.author();
    let outcome = make(session, id, "Suspend", consent, &author, |_| {
        Ok(KeyChange::Suspend)
    })
    .await?;
    let sentence = sentence_of(&outcome, &format!("{id} is suspended"));
    finish(session, &outcome, order.output, None, &sentence, out).await
}

pub(super) async fn resume(
    session: &Session,
    order: &PlainArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let id = order.id.id(session).await?;
    let author = order.signature.author();
    let outcome = make(session, id, "Resume", Consent::Ask, &author, |_| {
        Ok(KeyChange::Resume)
    })
    .await?;
    let sentence = sentence_of(&outcome, &format!("{id} is active"));
    finish(session, &outcome, order.output, None, &sentence, out).await?;
    let expires = outcome.after().expires;
    if expires.is_some_and(|expires| expires <= outcome.now) {
        note(&format!(
            "Its subscription has ended: renew it with `touchline keys set-expiry {id} DATE`."
        ));
    }
    Ok(())
}

pub(super) async fn revoke(
    session: &Session,
    order: &CutArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let id = order.id.id(session).await?;
    let consent = Consent::of(order.yes);
    let author = order.signature.author();
    let outcome = make(session, id, "Revoke", consent, &author, |_| {
        Ok(KeyChange::Revoke)
    })
    .await?;
    let sentence = sentence_of(&outcome, &format!("{id} is revoked"));
    finish(session, &outcome, order.output, None, &sentence, out).await
}

pub(super) async fn set_tier(
    session: &Session,
    order: &SetTierArguments,
    tier: &TierName,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let id = order.id.id(session).await?;
    let consent = Consent::of(order.yes);
    let author = order.signature.author();
    let outcome = make(session, id, "Change the tier of", consent, &author, |_| {
        Ok(KeyChange::SetTier(tier.clone()))
    })
    .await?;
    let sentence = match &outcome.made {
        Some(_) => format!("{id} is in tier {tier}, was in {}", outcome.before.tier),
        None => format!("{id} is in tier {tier} already"),
    };
    finish(session, &outcome, order.output, None, &sentence, out).await
}

pub(super) async fn set_expiry(
    session: &Session,
    order: &SetExpiryArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let id = order.id.id(session).await?;
    let calendar = &session.config.calendar;
    let expires = match order.last_day {
        LastDay::Never => None,
        LastDay::On(date) => Some(Timestamp::from_second(calendar.day_of(date)?.end)?),
    };
    let consent = Consent::of(order.yes);
    let author = order.signature.author();
    let outcome = make(
        session,
        id,
        "End the subscription of",
        consent,
        &author,
        |_| Ok(KeyChange::SetExpiry(expires)),
    )
    .await?;
    let sentence = match &outcome.made {
        Some(_) => format!(
            "{id} expires {}, was {}",
            end(calendar, expires),
            end(calendar, outcome.before.expires)
        ),
        None => format!("{id} expires {} already", end(calendar, expires)),
    };
    finish(session, &outcome, order.output, None, &sentence, out).await
}

pub(super) async fn set_label(
    session: &Session,
    order: &SetLabelArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let id = order.id.id(session).await?;
    let label = &order.text;
    let author = order.signature.author();
    let outcome = make(session, id, "Label", Consent::Ask, &author, |_| {
        Ok(KeyChange::SetLabel(label.clone()))
    })
    .await?;
    let sentence = match label {
        Some(label) => sentence_of(&outcome, &format!("{id} is labelled {}", escape(label))),
        None => sentence_of(&outcome, &format!("{id} is without a label")),
    };
    finish(session, &outcome, order.output, None, &sentence, out).await
}

pub(super) async fn set_customer(
    session: &Session,
    order: &SetCustomerArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let id = order.id.id(session).await?;
    let customer = &order.text;
    let author = order.signature.author();
    let outcome = make(session, id, "Reassign", Consent::Ask, &author, |_| {
        Ok(KeyChange::SetCustomer(customer.clone()))
    })
    .await?;
    let sentence = sentence_of(&outcome, &format!("{id} is of {}", escape(customer)));
    finish(session, &outcome, order.output, None, &sentence, out).await
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
    let outcome = make(session, id, "Grant to", Consent::Ask, &author, |_| {
        Ok(KeyChange::Grant {
            date,
            units: order.extra,
        })
    })
    .await?;
    let extra = order.extra.get();
    let record = outcome.after();
    let limit = session
        .config
        .tier(&record.tier)
        .map(|tier| record.limit_on(date, tier.daily.get()));
    let limit = limit.map_or_else(
        || "its tier is not configured".to_owned(),
        |limit| format!("its limit is {limit} that day"),
    );
    let reason = escape(&order.reason);
    let sentence = format!("{id} has {extra} extra units on {date} ({reason}): {limit}");
    let granted = GrantView {
        date,
        extra,
        reason: &order.reason,
    };
    finish(
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

fn sentence_of(outcome: &ChangeOutcome, sentence: &str) -> String {
    match outcome.made {
        Some(_) => sentence.to_owned(),
        None => format!("{sentence} already"),
    }
}

/// Writes the outcome of a change, and waits until the gateways have applied it.
async fn finish(
    session: &Session,
    outcome: &ChangeOutcome,
    output: RecordFormat,
    grant: Option<GrantView<'_>>,
    sentence: &str,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    match output {
        RecordFormat::Json => write_json(
            out,
            &ChangedView {
                changed: outcome.made.is_some(),
                key: None,
                grant,
                detail: DetailView::of(outcome.after(), outcome.now),
            },
        )?,
        RecordFormat::Table => {
            writeln!(out, "{sentence}")?;
            out.flush()?;
        }
    }
    // Also after a command that changed nothing: it may repeat one whose change was not confirmed.
    session
        .applied(outcome.made.as_ref().map(|(_, mark)| mark))
        .await
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

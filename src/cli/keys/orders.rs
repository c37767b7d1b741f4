//! The changes whose result is one sentence: state, tier, subscription, names, grants.

use std::io::Write;

use anyhow::bail;
use jiff::Timestamp;
use jiff::civil::Date;

use super::arguments::{
    ChangeOptions, CutArguments, GrantArguments, LastDay, PlainArguments, SetCustomerArguments,
    SetExpiryArguments, SetLabelArguments, SetTierArguments,
};
use super::change::{ChangeOutcome, Consent, make};
use super::view::{ChangedView, DetailView, GrantView, end};
use super::{Session, configured_tier, note};
use crate::cli::key_argument::KeyArgument;
use crate::cli::output::{RecordFormat, escape, write_json};
use crate::policy::calendar::Calendar;
use crate::policy::lifecycle::KeyChange;

/// How far ahead units may be granted. The limit bounds the record, which keeps each day with a grant.
const GRANT_DAYS_AHEAD_MAX: i64 = 400;

pub(super) async fn suspend(
    session: &Session,
    CutArguments { id, yes, options }: &CutArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let outcome = made(
        session,
        *id,
        options,
        Consent::of(*yes),
        &KeyChange::Suspend,
    )
    .await?;
    finish(session, options, &outcome, "is suspended", out).await
}

pub(super) async fn resume(
    session: &Session,
    PlainArguments { id, options }: &PlainArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let outcome = made(session, *id, options, Consent::Ask, &KeyChange::Resume).await?;
    finish(session, options, &outcome, "is active", out).await?;
    let record = outcome.after();
    if record.expires.is_some_and(|expires| expires <= outcome.now) {
        note(&format!(
            "Its subscription has ended: renew it with `touchline keys set-expiry {} DATE`.",
            record.id
        ));
    }
    Ok(())
}

pub(super) async fn revoke(
    session: &Session,
    CutArguments { id, yes, options }: &CutArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let outcome = made(session, *id, options, Consent::of(*yes), &KeyChange::Revoke).await?;
    finish(session, options, &outcome, "is revoked", out).await
}

pub(super) async fn set_tier(
    session: &Session,
    order: &SetTierArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let (tier, consent) = (&order.tier, Consent::of(order.yes));
    let change = KeyChange::SetTier(configured_tier(&session.config, tier)?);
    let outcome = made(session, order.id, &order.options, consent, &change).await?;
    let state = match &outcome.made {
        Some(_) => format!("is in tier {tier}, was in {}", outcome.before.tier),
        None => format!("is in tier {tier}"),
    };
    finish(session, &order.options, &outcome, &state, out).await
}

pub(super) async fn set_expiry(
    session: &Session,
    order: &SetExpiryArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let calendar = &session.config.calendar;
    let expires = match order.last_day {
        LastDay::Never => None,
        LastDay::On(date) => Some(Timestamp::from_second(calendar.day_of(date)?.end)?),
    };
    let (change, consent) = (KeyChange::SetExpiry(expires), Consent::of(order.yes));
    let outcome = made(session, order.id, &order.options, consent, &change).await?;
    let [new, old] = [expires, outcome.before.expires].map(|expires| end(calendar, expires));
    let state = match &outcome.made {
        Some(_) => format!("expires {new}, was {old}"),
        None => format!("expires {new}"),
    };
    finish(session, &order.options, &outcome, &state, out).await
}

pub(super) async fn set_label(
    session: &Session,
    order: &SetLabelArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let change = KeyChange::SetLabel(order.text.clone());
    let outcome = made(session, order.id, &order.options, Consent::Ask, &change).await?;
    let state = match &order.text {
        Some(label) => format!("is labelled {}", escape(label)),
        None => "is without a label".to_owned(),
    };
    finish(session, &order.options, &outcome, &state, out).await
}

pub(super) async fn set_customer(
    session: &Session,
    order: &SetCustomerArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let change = KeyChange::SetCustomer(order.text.clone());
    let outcome = made(session, order.id, &order.options, Consent::Ask, &change).await?;
    let state = format!("is of {}", escape(&order.text));
    finish(session, &order.options, &outcome, &state, out).await
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

/// Makes an ordered change.
async fn made(
    session: &Session,
    id: KeyArgument,
    options: &ChangeOptions,
    consent: Consent,
    change: &KeyChange,
) -> anyhow::Result<ChangeOutcome> {
    let id = id.id(session).await?;
    make(session, id, consent, &options.author(), change).await
}

/// [Announces](announce) the state of a key after a change.
async fn finish(
    session: &Session,
    options: &ChangeOptions,
    outcome: &ChangeOutcome,
    state: &str,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let already = match outcome.made {
        Some(_) => "",
        None => " already",
    };
    let sentence = format!("{} {state}{already}", outcome.before.id);
    announce(session, outcome, options.output, None, &sentence, out).await
}

/// Writes the outcome of a change, and waits until the gateways have applied it.
async fn announce(
    session: &Session,
    outcome: &ChangeOutcome,
    output: RecordFormat,
    grant: Option<GrantView<'_>>,
    sentence: &str,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let shown = match output {
        RecordFormat::Json => write_json(
            out,
            &ChangedView {
                changed: outcome.made.is_some(),
                key: None,
                grant,
                detail: DetailView::of(outcome.after(), outcome.now),
            },
        ),
        RecordFormat::Table => writeln!(out, "{sentence}")
            .and_then(|()| out.flush())
            .map_err(anyhow::Error::from),
    };
    // Also after a command that changed nothing: it may repeat one whose change was not confirmed.
    let mark = outcome.made.as_ref().map(|(_, mark)| mark);
    session.applied_after(shown, mark).await
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

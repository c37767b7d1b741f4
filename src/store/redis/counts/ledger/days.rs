//! The set of days that have counts.
//!
//! It is one name, so a cluster keeps it on one master, and may lose it while the counts themselves are on others. A mark in the
//! same slot is lost with it: without the mark, days may be missing from the set.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Span;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use redis::Cmd;

use crate::policy::api_key::KeyId;
use crate::store::StoreError;
use crate::store::redis::names::Names;
use crate::store::redis::wire::link::RedisLink;

/// Keys that are asked for in one round trip: some 0.2 ms of Redis.
const ASK_BATCH: usize = 128;
/// The pause after each such round trip: a long search takes a tenth of Redis.
const ASK_PAUSE: Duration = Duration::from_millis(2);
/// Days that are read beyond the retention: a day is dropped some time after it.
const DROPPED_LATE_DAYS: i64 = 2;
/// The last days are read whether they are listed or not: a day is listed by the first write of its ledger, after its first charge.
const UNLISTED_DAYS: i64 = 3;
const DAY_SECONDS: i64 = 86_400;

/// The dates in the set, and whether none is missing.
///
/// # Errors
/// Those of Redis.
pub async fn listed_days(link: &RedisLink) -> Result<(Vec<Date>, bool), StoreError> {
    let (complete, days) = (link.names.days_complete(), link.names.days());
    let ask = [Cmd::exists(complete), Cmd::smembers(days)];
    let (is_complete, listed): (bool, Vec<String>) = link.replies(ask).await?;
    let dates = listed.iter().filter_map(|date| date.parse().ok());
    Ok((dates.collect(), is_complete))
}

/// The dates that may have counts: the last ones, and those in the set. All that are kept if some may be missing from it.
///
/// # Errors
/// Those of Redis.
pub async fn dates_with_counts(link: &RedisLink) -> Result<BTreeSet<Date>, StoreError> {
    let (listed, is_complete) = listed_days(link).await?;
    let mut dates = BTreeSet::from_iter(listed);
    // The date in any zone is at most one away from that in UTC.
    let utc = TimeZone::UTC.to_datetime(link.time().await?);
    let last = utc.date().saturating_add(Span::new().days(1));
    let unlisted = last.saturating_sub(Span::new().days(UNLISTED_DAYS));
    dates.extend(days_kept(&link.names, last).filter(|date| !is_complete || *date >= unlisted));
    Ok(dates)
}

/// The command that adds dates to the set; Redis refuses it without any.
pub(super) fn listing<'d>(names: &Names, dates: impl IntoIterator<Item = &'d Date>) -> Cmd {
    let dates: Vec<String> = dates.into_iter().map(Date::to_string).collect();
    Cmd::sadd(names.days(), dates)
}

/// Adds dates to the set and marks it as complete.
///
/// # Errors
/// Those of Redis.
pub async fn complete_days(link: &RedisLink, dates: &[Date]) -> Result<(), StoreError> {
    let list = (!dates.is_empty()).then(|| listing(&link.names, dates));
    let complete = Cmd::set(link.names.days_complete(), 1);
    link.send(list.into_iter().chain([complete])).await
}

/// Every date through `to` whose counts may be kept.
pub fn days_kept(names: &Names, to: Date) -> impl Iterator<Item = Date> {
    let days = names.keeping.retention_seconds() / DAY_SECONDS + DROPPED_LATE_DAYS;
    let first = Span::new().try_days(-days).ok();
    let first = first.and_then(|span| to.checked_add(span).ok());
    let every = first.unwrap_or(Date::MIN).series(Span::new().days(1));
    every.take_while(move |date| *date <= to)
}

/// Whether one of these keys has counts or a ledger on a day. Cost without any: for a million keys 17 s, of which Redis works 1.6 s.
///
/// # Errors
/// Those of Redis.
pub async fn has_counts(link: &RedisLink, keys: &[KeyId], date: Date) -> Result<bool, StoreError> {
    for batch in keys.chunks(ASK_BATCH) {
        let ask = batch.iter().map(|key| {
            let names = [link.names.counts(*key, date), link.names.ledger(*key, date)];
            Cmd::exists(&names)
        });
        let found: Vec<u64> = link.replies(ask).await?;
        if found.iter().any(|count| *count > 0) {
            return Ok(true);
        }
        tokio::time::sleep(ASK_PAUSE).await;
    }
    Ok(false)
}

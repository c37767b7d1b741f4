//! Export and import of the counts and the ledger of key-days.

use jiff::civil::Date;

use super::cells;
use super::days::listing;
use super::reading::{StoredDay, stored_days};
use crate::policy::api_key::KeyId;
use crate::policy::calendar::{Calendar, Day};
use crate::store::StoreError;
use crate::store::export::{
    ImportCounts, ImportMode, KeyDay, LateUnits, ProducerAccount, Sheet, accounts_of,
};
use crate::store::redis::wire::link::RedisLink;
use crate::store::redis::wire::script::{COUNT_MAX, MERGE_DAY};

/// The counts and the ledger of some keys on a day; a key without any is omitted.
///
/// # Errors
/// Those of Redis, and unreadable values.
pub async fn key_days(
    link: &RedisLink,
    keys: &[KeyId],
    date: Date,
    calendar: &Calendar,
) -> Result<Vec<KeyDay>, StoreError> {
    let places: Vec<_> = keys.iter().map(|key| (date, *key)).collect();
    let mut days = stored_days(link, &places).await?;
    days.retain(|day| !day.is_absent());
    let days = days.into_iter().map(|day| {
        let (_, key) = day.place;
        key_day(day, calendar).map_err(|what| {
            StoreError::Failed(format!("the day {date} of the key {key} in Redis: {what}"))
        })
    });
    days.collect()
}

fn key_day(stored: StoredDay, calendar: &Calendar) -> Result<KeyDay, String> {
    if let Some(text) = stored.unreadable().next() {
        return Err(text.clone());
    }
    let ((date, key), counts) = (stored.place, stored.counts);
    let sheets = stored.cells.into_iter().map(|(producer, cell)| Sheet {
        producer,
        tier: cell.tier,
        endpoint: cell.endpoint,
        numbers: cell.totals.numbers().to_vec(),
        limit: cell.ceiling.limit,
        granted: cell.ceiling.granted,
    });
    let mut sheets: Vec<Sheet> = sheets.collect();
    sheets.sort_by(|a, b| (&a.producer, &a.endpoint).cmp(&(&b.producer, &b.endpoint)));
    let day = match counts.as_ref().and_then(|counts| counts.boundaries) {
        Some((start, end)) => Day { date, start, end },
        // No count was stored with the day's boundaries: nothing was charged.
        None => calendar.day_of(date).map_err(|error| error.to_string())?,
    };
    let (accounts, late) = match &counts {
        None => (accounts_of(&sheets), Vec::new()),
        Some(counts) => (
            counts.accounts().collect::<Vec<ProducerAccount>>(),
            counts.late().collect::<Vec<LateUnits>>(),
        ),
    };
    Ok(KeyDay {
        key,
        date,
        start: day.start,
        end: day.end,
        accounts,
        sheets,
        late,
    })
}

/// Imports days, or only reports what an import would change.
pub async fn import(
    link: &RedisLink,
    days: &[&KeyDay],
    mode: ImportMode,
    counts: &mut ImportCounts,
) -> Result<(), StoreError> {
    if days.is_empty() {
        return Ok(());
    }
    // First, so that an import which is refused or cut off leaves none of the days that it wrote unlisted.
    if mode == ImportMode::Write {
        let list = listing(&link.names, days.iter().map(|day| &day.date));
        link.send([list]).await?;
    }
    let merge = days.iter().map(|day| {
        let keys = [
            link.names.counts(day.key, day.date),
            link.names.ledger(day.key, day.date),
            link.names.record(day.key),
        ];
        MERGE_DAY.by_text(&keys, &arguments(day, mode))
    });
    let replies: Vec<i64> = link.replies(merge).await?;
    for (day, reply) in days.iter().zip(replies) {
        match reply {
            0 => counts.key_days_held += 1,
            1 => counts.key_days_added += 1,
            _ => {
                return Err(StoreError::OtherCalendar(format!(
                    "Redis has the day {} of the key {} with other boundaries than {} to {} (Unix seconds): two time zone \
                     tables or calendars are in use",
                    day.date, day.key, day.start, day.end
                )));
            }
        }
    }
    Ok(())
}

/// The arguments of the script; counts are numbers that it reads exactly.
fn arguments(day: &KeyDay, mode: ImportMode) -> Vec<String> {
    let count = |count: u64| count.min(COUNT_MAX).to_string();
    let writes = match mode {
        ImportMode::Write => 1,
        ImportMode::DryRun => 0,
    };
    let mut arguments = Vec::from([day.start, day.end, writes].map(|number| number.to_string()));
    arguments.push(day.accounts.len().to_string());
    for account in &day.accounts {
        let counts = [count(account.granted), count(account.returned)];
        arguments.push(account.producer.clone());
        arguments.extend(counts);
    }
    arguments.push(day.sheets.len().to_string());
    for sheet in &day.sheets {
        let value = cells::written(&sheet.totals(), sheet.ceiling(), sheet.tier.as_ref());
        arguments.extend([format!("{}|{}", sheet.producer, sheet.endpoint), value]);
    }
    arguments.push(day.late.len().to_string());
    for late in &day.late {
        arguments.extend([late.came, late.units].map(|number| number.to_string()));
    }
    arguments
}

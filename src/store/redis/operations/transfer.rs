//! Exports the whole store, and imports an export.
//!
//! Invariant of the order of an import: an id is in the index before its record is written, a record is written before its feed
//! entry, and an event is stored before its claim, so that a repeated import completes one that died.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use jiff::Timestamp;
use jiff::civil::Date;
use redis::{Cmd, Value};
use tokio::sync::mpsc;

use super::events;
use crate::policy::api_key::KeyId;
use crate::policy::audit::Entry;
use crate::policy::calendar::Calendar;
use crate::policy::key_record::KeyRecord;
use crate::policy::threshold_event::{Event, date_of};
use crate::store::StoreError;
use crate::store::export::{
    Exported, ExportedEvent, ExportedKey, HeldClaim, ImportCounts, ImportMode, KeyDay,
    WaitingEvent, secret_in_use,
};
use crate::store::redis::counts::ledger;
use crate::store::redis::keys::audit;
use crate::store::redis::keys::codec::{feed_entry, put, put_digests};
use crate::store::redis::keys::index::{self, KeyPages};
use crate::store::redis::names::Names;
use crate::store::redis::wire::link::RedisLink;

/// Key-days read in one round trip.
const READ_BATCH: usize = 256;
/// The dates around today whose claims may still be stored, in any zone.
const CLAIM_DATES: std::ops::RangeInclusive<i64> = -4..=2;

/// Exports everything in Redis.
pub async fn export(
    link: &RedisLink,
    zone: &str,
    export: &mpsc::Sender<Exported>,
) -> Result<(), StoreError> {
    let calendar = Calendar::of_zone(zone)
        .map_err(|error| StoreError::Failed(format!("the zone of the store: {error}")))?;
    let now = link.time().await?;
    let keys = export_keys(link, export).await?;
    for entry in audit::of_gateways(link).await? {
        send(export, Exported::Audit(Box::new(entry))).await?;
    }
    for date in ledger::dates_with_counts(link).await? {
        for batch in keys.chunks(READ_BATCH) {
            for day in ledger::key_days(link, batch, date, &calendar).await? {
                send(export, Exported::KeyDay(Box::new(day))).await?;
            }
        }
    }
    for event in stored_events(link, now).await? {
        send(export, Exported::Event(event)).await?;
    }
    Ok(())
}

async fn send(export: &mpsc::Sender<Exported>, item: Exported) -> Result<(), StoreError> {
    let gone = |_| StoreError::Failed("the receiver of the export is gone".into());
    export.send(item).await.map_err(gone)
}

/// Exports the keys and returns their ids.
async fn export_keys(
    link: &RedisLink,
    export: &mpsc::Sender<Exported>,
) -> Result<Vec<KeyId>, StoreError> {
    let mut pages = KeyPages::of(&index::state(link).await?);
    let mut seen = HashSet::new();
    while let Some(mut page) = pages.next(link).await? {
        page.retain(|record| seen.insert(record.id));
        for batch in page.chunks(READ_BATCH) {
            let trails = audit::trails(link, batch.iter().map(|record| record.id)).await?;
            for (record, mut trail) in batch.iter().zip(trails) {
                // Later changes are exported the next time.
                trail.retain(|version, _| *version <= record.version);
                let own = trail.entry(record.version);
                own.or_insert_with(|| Entry::of(record));
                let key = ExportedKey {
                    record: record.clone(),
                    trail: trail.into_values().collect(),
                };
                send(export, Exported::Key(Box::new(key))).await?;
            }
        }
    }
    Ok(seen.into_iter().collect())
}

/// The dates at these distances in days from an instant, in UTC.
fn around(now: Timestamp, days: std::ops::RangeInclusive<i64>) -> impl Iterator<Item = Date> {
    let today = jiff::tz::TimeZone::UTC.to_datetime(now).date();
    days.filter_map(move |days| {
        let span = jiff::Span::new().try_days(days).ok()?;
        today.checked_add(span).ok()
    })
}

/// The stored claims, and the events that await delivery.
async fn stored_events(link: &RedisLink, now: Timestamp) -> Result<Vec<ExportedEvent>, StoreError> {
    let mut waiting: BTreeMap<String, WaitingEvent> = BTreeMap::new();
    for (kept, since) in scanned(link, "ZSCAN", &link.names.events()).await? {
        let event = events::unpacked(&kept, since.parse().unwrap_or_default());
        waiting.extend(event.map(|Event { id, since, body }| {
            let since = since.as_millisecond();
            (id, WaitingEvent { since, body })
        }));
    }
    let mut events = Vec::new();
    for date in around(now, CLAIM_DATES) {
        let name = link.names.claims(date);
        let until: i64 = link.read(&Cmd::expire_time(&name)).await?;
        for (id, node) in scanned(link, "HSCAN", &name).await? {
            events.push(ExportedEvent {
                waiting: waiting.remove(&id),
                claim: Some(HeldClaim { node, until }),
                id,
            });
        }
    }
    events.extend(waiting.into_iter().map(|(id, event)| ExportedEvent {
        id,
        claim: None,
        waiting: Some(event),
    }));
    Ok(events)
}

/// The pairs of a hash or a sorted set, read in steps: one large reply would delay charges.
async fn scanned(
    link: &RedisLink,
    command: &str,
    name: &str,
) -> Result<BTreeMap<String, String>, StoreError> {
    let (mut pairs, mut cursor) = (BTreeMap::new(), "0".to_owned());
    loop {
        let mut step = redis::cmd(command);
        step.arg((name, &cursor, "COUNT", READ_BATCH));
        let (next, page): (String, Vec<(String, String)>) = link.read(&step).await?;
        pairs.extend(page);
        if next == "0" {
            return Ok(pairs);
        }
        cursor = next;
    }
}

/// Imports a batch, or only reports what an import would change.
pub async fn import(
    link: &RedisLink,
    pieces: &[Exported],
    mode: ImportMode,
) -> Result<ImportCounts, StoreError> {
    let (mut keys, mut days, mut events) = (Vec::new(), Vec::<&KeyDay>::new(), Vec::new());
    let mut entries = Vec::new();
    for piece in pieces {
        match piece {
            Exported::Key(key) => keys.push(&**key),
            Exported::KeyDay(day) => days.push(day),
            Exported::Event(event) => events.push(event),
            Exported::Audit(entry) => entries.push(&**entry),
        }
    }
    let mut counts = ImportCounts::default();
    take_keys(link, &keys, mode, &mut counts).await?;
    ledger::import(link, &days, mode, &mut counts).await?;
    take_events(link, &events, mode, &mut counts).await?;
    take_entries(link, &entries, mode, &mut counts).await?;
    Ok(counts)
}

/// Imports entries of the audit trail that do not belong to a key.
async fn take_entries(
    link: &RedisLink,
    entries: &[&Entry],
    mode: ImportMode,
    counts: &mut ImportCounts,
) -> Result<(), StoreError> {
    if entries.is_empty() {
        return Ok(());
    }
    let held = audit::of_gateways(link).await?;
    let mut held: BTreeSet<u64> = held.iter().map(|entry| entry.version).collect();
    let mut missing = Vec::new();
    for entry in entries {
        if held.insert(entry.version) {
            counts.audit_entries_added += 1;
            missing.push(entry_added(link.names.gateway_audit_trail(), entry));
        }
    }
    match mode {
        ImportMode::Write => link.send(missing).await,
        ImportMode::DryRun => Ok(()),
    }
}

fn entry_added(trail: String, entry: &Entry) -> Cmd {
    let packed = serde_json::to_string(entry).unwrap_or_default();
    Cmd::hset_nx(trail, entry.version, packed)
}

async fn take_keys(
    link: &RedisLink,
    keys: &[&ExportedKey],
    mode: ImportMode,
    counts: &mut ImportCounts,
) -> Result<(), StoreError> {
    let ids: Vec<KeyId> = keys.iter().map(|key| key.record.id).collect();
    let stored = index::stored(link, &ids).await?;
    let mut newer: Vec<(&KeyRecord, Option<&KeyRecord>)> = Vec::new();
    for (key, stored) in keys.iter().zip(&stored) {
        match stored {
            Some(stored)
                if stored.version >= key.record.version || !key.record.replaces(stored) =>
            {
                counts.keys_held += 1;
                continue;
            }
            Some(_) => counts.keys_replaced += 1,
            None => counts.keys_added += 1,
        }
        newer.push((&key.record, stored.as_ref()));
    }
    all_free(link, &newer).await?;
    let held = audit::trails(link, ids.into_iter()).await?;
    let mut missing = Vec::new();
    for (key, held) in keys.iter().zip(held) {
        for entry in &key.trail {
            if !held.contains_key(&entry.version) {
                counts.audit_entries_added += 1;
                missing.push(entry_added(link.names.audit_trail(key.record.id), entry));
            }
        }
    }
    if mode == ImportMode::DryRun {
        return Ok(());
    }
    write(link, &newer).await?;
    link.send(missing).await
}

/// Fails if another key has one of the secrets.
async fn all_free(
    link: &RedisLink,
    newer: &[(&KeyRecord, Option<&KeyRecord>)],
) -> Result<(), StoreError> {
    for (id, _, holder) in index::holders(link, newer.iter().map(|(record, _)| *record)).await? {
        if let Some(holder) = holder.filter(|holder| holder != id.as_str()) {
            return Err(secret_in_use(id, &holder));
        }
    }
    Ok(())
}

/// Writes records with their digests, which replace the stored ones, then adds them to the feed.
async fn write(
    link: &RedisLink,
    newer: &[(&KeyRecord, Option<&KeyRecord>)],
) -> Result<(), StoreError> {
    index::enter(link, newer.iter().map(|(record, _)| *record)).await?;
    let (mut records, mut feed) = (Vec::new(), Vec::new());
    for (record, stored) in newer {
        records.push(put(&link.names, record, -1, None));
        records.extend(put_digests(&link.names, record, *stored));
        feed.push(feed_entry(&link.names, record));
    }
    link.send(records).await?;
    link.send(feed).await
}

async fn take_events(
    link: &RedisLink,
    events: &[&ExportedEvent],
    mode: ImportMode,
    counts: &mut ImportCounts,
) -> Result<(), StoreError> {
    let ask = events
        .iter()
        .map(|event| match (&event.claim, date_of(&event.id)) {
            (Some(_), Some(date)) => Ok(Cmd::hexists(link.names.claims(date), &event.id)),
            (Some(_), None) => Err(StoreError::Failed(format!(
                "{:?} is not the id of an event",
                event.id
            ))),
            (None, _) => Ok(Cmd::zscore(link.names.events(), member(event))),
        });
    let ask = ask.collect::<Result<Vec<_>, _>>()?;
    let held: Vec<Value> = link.replies(ask).await?;
    let mut keeping = Vec::new();
    for (event, held) in events.iter().zip(held) {
        if matches!(held, Value::Nil | Value::Int(0)) {
            counts.events_added += 1;
            keeping.extend(kept(&link.names, event));
        } else {
            counts.events_held += 1;
        }
    }
    match mode {
        ImportMode::Write => link.send(keeping).await,
        ImportMode::DryRun => Ok(()),
    }
}

fn member(event: &ExportedEvent) -> String {
    let body = event.waiting.as_ref().map(|waiting| waiting.body.as_str());
    events::packed(&event.id, body.unwrap_or_default())
}

/// The commands that store an event, then its claim.
fn kept(names: &Names, event: &ExportedEvent) -> Vec<Cmd> {
    let mut commands = Vec::new();
    if let Some(waiting) = &event.waiting {
        let mut add = redis::cmd("ZADD");
        add.arg((names.events(), "NX", waiting.since, member(event)));
        commands.push(add);
    }
    if let Some((claim, date)) = event.claim.as_ref().zip(date_of(&event.id)) {
        let name = names.claims(date);
        commands.push(Cmd::hset_nx(&name, &event.id, &claim.node));
        commands.push(Cmd::expire_at(&name, claim.until));
    }
    commands
}

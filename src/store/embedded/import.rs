//! Import of exported items: one batch is one transaction of the writer's connection.

use std::path::Path;

use rusqlite::{Connection, Transaction, TransactionBehavior, params};

use super::day_rows::{own_name, read};
use super::days::{add_day, other_calendar, stored_day};
use super::events::{CLAIM, KEEP};
use super::folding::fold_all;
use super::imported_counts::DayRows;
use super::{appended, closing, keys};
use crate::policy::api_key::KeyId;
use crate::store::StoreError;
use crate::store::export::{Exported, ExportedEvent, ImportCounts, ImportMode, KeyDay};
use crate::store::ledger_row::{UNATTRIBUTED, execute_with_row};
use crate::store::sqlite::{execute, packed, value};

const PUT_ROW: &str = "
    REPLACE INTO ledger (date, key, endpoint, requests, charged, refunded, refused_tier, refused_quota, refused_burst,
        refused_concurrent, refused_not_found, refused_method, day_limit, granted)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)";
const DROP_ROW: &str = "DELETE FROM ledger WHERE date = ?1 AND key = ?2 AND endpoint = ?3";
const PUT_LATE: &str = "REPLACE INTO adjustments (date, key, came, units) VALUES (?1, ?2, ?3, ?4)";
const PUT_COPIED: &str = "REPLACE INTO copied (date, key, body) VALUES (?1, ?2, ?3)";
const WAITS: &str = "SELECT count(*) FROM events WHERE event = ?1";

/// Imports a batch at `now` (Unix seconds), or only counts what would be added.
pub(super) fn import(
    connection: &Connection,
    (path, now): (&Path, i64),
    items: &[Exported],
    mode: ImportMode,
) -> rusqlite::Result<Result<ImportCounts, StoreError>> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    // Imported counts are compared with all counts of this database, so the groups are folded first.
    fold_all(&transaction)?;
    let own = own_name(&transaction)?;
    let mut counts = ImportCounts::default();
    for item in items {
        let outcome = match item {
            Exported::Key(key) => keys::import_exported(&transaction, key, &mut counts)?,
            Exported::KeyDay(day) => import_day(&transaction, path, (&own, now), day, &mut counts)?,
            Exported::Event(event) => {
                import_event(&transaction, event, &mut counts)?;
                Ok(())
            }
            Exported::Audit(entry) => {
                keys::import_entry(&transaction, entry, &mut counts)?;
                Ok(())
            }
        };
        if let Err(error) = outcome {
            return Ok(Err(error));
        }
    }
    match mode {
        ImportMode::Write => transaction.commit()?,
        ImportMode::DryRun => transaction.rollback()?,
    }
    Ok(Ok(counts))
}

fn import_day(
    connection: &Connection,
    path: &Path,
    (own, now): (&str, i64),
    imported: &KeyDay,
    counts: &mut ImportCounts,
) -> rusqlite::Result<Result<(), StoreError>> {
    let (date, day) = (imported.date.to_string(), imported.day());
    match stored_day(connection, day.date)? {
        Some(stored) if stored != day => return Ok(Err(other_calendar(path, day, stored))),
        Some(_) => {}
        None => add_day(connection, day)?,
    }
    let before = read(connection, &date, imported.key)?;
    let mut after = before.clone();
    after.import(own, imported);
    if after == before {
        counts.key_days_held += 1;
    } else {
        closing::reopen(connection, &date, now)?;
        appended::note_rewritten(connection)?;
        write(connection, (&date, imported.key), &before, &after)?;
        counts.key_days_added += 1;
    }
    Ok(Ok(()))
}

fn write(
    connection: &Connection,
    (date, key): (&str, KeyId),
    before: &DayRows,
    after: &DayRows,
) -> rusqlite::Result<()> {
    let mut put = connection.prepare_cached(PUT_ROW)?;
    for (name, row) in &after.rows {
        if before.rows.get(name) != Some(row) {
            execute_with_row(&mut put, params![date, key.as_str(), name], *row)?;
        }
    }
    // Only the row of unattributed units can be gone: all of them are attributed now.
    if !after.rows.contains_key(UNATTRIBUTED) {
        execute(connection, DROP_ROW, (date, key.as_str(), UNATTRIBUTED))?;
    }
    for (came, units) in &after.late {
        if before.late.get(came) != Some(units) {
            execute(connection, PUT_LATE, (date, key.as_str(), came, units))?;
        }
    }
    if before.imported != after.imported {
        let row = (date, key.as_str(), packed(&after.imported)?);
        execute(connection, PUT_COPIED, row)?;
    }
    Ok(())
}

/// An event whose claim is here was claimed by a gateway of this store or imported before: it is not to be delivered again.
fn import_event(
    connection: &Connection,
    event: &ExportedEvent,
    counts: &mut ImportCounts,
) -> rusqlite::Result<()> {
    let is_new = match &event.claim {
        Some(claim) => {
            let row = (&event.id, &claim.node, claim.until);
            execute(connection, CLAIM, row)? == 1
        }
        None => value::<i64>(connection, WAITS, [&event.id])? == 0,
    };
    if !is_new {
        counts.events_held += 1;
        return Ok(());
    }
    counts.events_added += 1;
    if let Some(waiting) = &event.waiting {
        let row = (waiting.since, &event.id, &waiting.body);
        execute(connection, KEEP, row)?;
    }
    Ok(())
}

//! The table of days, which records the boundaries of each quota day.

use std::path::Path;

use jiff::civil::Date;
use rusqlite::{Connection, Row};

use crate::policy::calendar::Day;
use crate::store::StoreError;
use crate::store::sqlite::{execute, first};

const DAY: &str = "SELECT first, next FROM days WHERE date = ?1";
const ADD_DAY: &str = "INSERT INTO days (date, first, next) VALUES (?1, ?2, ?3)";

/// The stored day of a date, if there is one.
pub(super) fn stored_day(connection: &Connection, date: Date) -> rusqlite::Result<Option<Day>> {
    let read = |row: &Row<'_>| {
        Ok(Day {
            date,
            start: row.get(0)?,
            end: row.get(1)?,
        })
    };
    first(connection, DAY, [date.to_string()], read)
}

/// Adds a day.
pub(super) fn add_day(connection: &Connection, day: Day) -> rusqlite::Result<()> {
    let row = (day.date.to_string(), day.start, day.end);
    execute(connection, ADD_DAY, row).map(drop)
}

/// The error for a day whose stored boundaries differ from the caller's.
pub(super) fn other_calendar(path: &Path, asked: Day, stored: Day) -> StoreError {
    StoreError::OtherCalendar(format!(
        "{} has the day {} from {} to {} (Unix seconds), but the request has {} to {}: two time zone tables or \
         calendars are in use",
        path.display(),
        stored.date,
        stored.start,
        stored.end,
        asked.start,
        asked.end
    ))
}

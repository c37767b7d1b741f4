//! The table of days, which records the boundaries of each quota day.

use std::path::Path;

use jiff::civil::Date;
use rusqlite::{OptionalExtension, Row, Statement};

use crate::policy::calendar::Day;
use crate::store::StoreError;

/// Reads the first second of a day and of the next.
pub(super) const DAY: &str = "SELECT first, next FROM days WHERE date = ?1";
/// Adds a day.
pub(super) const ADD_DAY: &str = "INSERT INTO days (date, first, next) VALUES (?1, ?2, ?3)";

/// The stored day of a date, if there is one. `day` is the statement [`DAY`], `text` the date as a text.
pub(super) fn stored_day(
    day: &mut Statement<'_>,
    text: &str,
    date: Date,
) -> rusqlite::Result<Option<Day>> {
    let read = |row: &Row<'_>| {
        Ok(Day {
            date,
            start: row.get(0)?,
            end: row.get(1)?,
        })
    };
    day.query_row([text], read).optional()
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

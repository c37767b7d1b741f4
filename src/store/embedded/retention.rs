//! Deletion of days of the ledger after their retention, a few rows at a time.
//!
//! Charges are served between two turns: a turn deletes at most [`ROWS_MAX`] rows, about a millisecond of the writer. The oldest day is
//! deleted first, and its row in the table of days last, so that a started deletion is continued.
//!
//! A deletion cannot be undone, so `now` must be an instant of a settled clock (`clock_watch`), and the two days that were charged last
//! are kept at any time: a process that starts with a wrong clock deletes nothing before its second wrong day.

use jiff::Timestamp;
use jiff::civil::Date;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::{appended, closing};
use crate::store::Keeping;
use crate::store::sqlite::{execute, first, meta, unreadable};

/// The most rows that one turn deletes. A day of 100,000 keys with five endpoints each is deleted in some eight minutes.
const ROWS_MAX: i64 = 1_000;

const OLDEST: &str = "SELECT date FROM days WHERE next <= ?1
    AND date < (SELECT date FROM days ORDER BY date DESC LIMIT 1 OFFSET 1) ORDER BY date LIMIT 1";
const DROP_LEDGER: &str = "DELETE FROM ledger WHERE (date, key, endpoint) IN
    (SELECT date, key, endpoint FROM ledger WHERE date <= ?1 LIMIT ?2)";
const DROP_ADJUSTMENTS: &str = "DELETE FROM adjustments WHERE (date, key, came) IN
    (SELECT date, key, came FROM adjustments WHERE date <= ?1 LIMIT ?2)";
const DROP_COPIED: &str = "DELETE FROM copied WHERE (date, key) IN
    (SELECT date, key FROM copied WHERE date <= ?1 LIMIT ?2)";
const DROP_DAY: &str = "DELETE FROM days WHERE date = ?1";

const NOTE_DROPPED: &str = "INSERT INTO meta (name, value) VALUES ('dropped', ?1)
    ON CONFLICT (name) DO UPDATE SET value = max(value, ?1)";

/// The last date whose deletion was started.
pub(super) fn last_dropped(connection: &Connection) -> rusqlite::Result<Option<Date>> {
    let date = meta(connection, "dropped")?;
    date.map(|date| date.parse().map_err(unreadable))
        .transpose()
}

/// One turn. Returns the number of deleted rows, or 0 if there is nothing to do.
pub(super) fn drop_old(
    connection: &Connection,
    keeping: Keeping,
    now: Timestamp,
) -> rusqlite::Result<usize> {
    let before = now.as_second().saturating_sub(keeping.retention_seconds());
    let oldest: Option<String> = first(connection, OLDEST, [before], |row| row.get(0))?;
    let Some(date) = oldest else {
        return Ok(0);
    };
    // Another gateway may be doing the same: in one transaction, the chain has the end of a day once.
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    // Entries that reach the ledger after the deletion of their day would stay forever.
    if appended::lacks(&transaction, date.parse().map_err(unreadable)?)? {
        return Ok(0);
    }
    closing::let_go(&transaction, &date, now.as_second())?;
    execute(&transaction, NOTE_DROPPED, [&date])?;
    for statement in [DROP_LEDGER, DROP_ADJUSTMENTS, DROP_COPIED] {
        let gone = transaction.execute(statement, (&date, ROWS_MAX))?;
        if gone > 0 {
            transaction.commit()?;
            return Ok(gone);
        }
    }
    let gone = transaction.execute(DROP_DAY, [&date])?;
    transaction.commit()?;
    if gone > 0 {
        tracing::info!(
            date,
            "a day of the ledger was dropped: its retention is over"
        );
    }
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::store::Totals;
    use crate::store::embedded::{Durability, schema};
    use crate::store::ledger::Ceiling;
    use crate::store::sqlite::value;

    const DAYS: i64 = 200;
    const KEY: &str = "4fZk09QwXy2B";
    const NOW: &str = "2026-11-26T00:00:00Z";

    /// A database with three closed days, of which the first is dropped: two are kept at any time.
    fn database() -> (tempfile::TempDir, Connection) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("touchline.db");
        schema::create_file(&path).unwrap();
        let mut connection = schema::connect(&path, Durability::default()).unwrap();
        schema::prepare(&mut connection, &path, "UTC").unwrap();
        let closed_days =
            "INSERT INTO days VALUES ('2020-01-01', 1, 2), ('2020-01-02', 2, 3), ('2020-01-03', 3, 4);
             INSERT INTO chain SELECT first, date, 'closed', 0, 0, '', '', '' FROM days;";
        connection.execute_batch(closed_days).unwrap();
        (directory, connection)
    }

    fn first_day_of(connection: &Connection, table: &str) -> String {
        let first = format!("SELECT min(date) FROM {table}");
        value(connection, &first, []).unwrap()
    }

    #[test]
    fn nothing_of_a_dropped_day_is_left_in_any_table() {
        let (_directory, connection) = database();
        let rows = format!(
            "INSERT INTO ledger SELECT date, '{KEY}', 'pro /a', 1, 1, 0, 0, 0, 0, 0, 0, 0, 10, 0 FROM days;
             INSERT INTO adjustments SELECT date, '{KEY}', 900, 1 FROM days;
             INSERT INTO copied SELECT date, '{KEY}', '{{}}' FROM days;"
        );
        connection.execute_batch(&rows).unwrap();
        let now = NOW.parse().unwrap();
        while drop_old(&connection, Keeping::default(), now).unwrap() > 0 {}
        for table in ["ledger", "adjustments", "copied", "days"] {
            assert_eq!(first_day_of(&connection, table), "2020-01-02", "{table}");
        }
    }

    #[test]
    fn a_day_is_not_dropped_while_charges_of_it_are_not_in_the_ledger() {
        let (_directory, connection) = database();
        let mut group = appended::Packing::default();
        let place = (KEY.parse().unwrap(), "2020-01-01".parse().unwrap());
        let row = (&"pro".parse().unwrap(), &"/a".into());
        let totals = Totals {
            requests: 1,
            charged: 1,
            ..Totals::default()
        };
        group.add(place, row, (totals, Ceiling::default()));
        let append = "INSERT INTO appended (number, entries) VALUES (1, ?1)";
        connection.execute(append, [group.bytes()]).unwrap();
        let now = NOW.parse().unwrap();
        let turn = || drop_old(&connection, Keeping::default(), now).unwrap();
        assert_eq!(turn(), 0);
        assert_eq!(first_day_of(&connection, "days"), "2020-01-01");
        // As when the group is folded into the ledger.
        let folded = "UPDATE folding SET through = 1, reached = '~'";
        connection.execute(folded, []).unwrap();
        while turn() > 0 {}
        assert_eq!(first_day_of(&connection, "days"), "2020-01-02");
    }

    #[test]
    fn two_gateways_that_drop_a_day_at_the_same_time_record_it_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("touchline.db");
        schema::create_file(&path).unwrap();
        let connect = || schema::connect(&path, Durability::default()).unwrap();
        let mut first = connect();
        schema::prepare(&mut first, &path, "UTC").unwrap();
        // Two more are kept.
        let closed_days = format!(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {DAYS} + 2)
             INSERT INTO days SELECT date('2020-01-01', n || ' days'), n, n + 1 FROM numbers;
             INSERT INTO chain SELECT first, date, 'closed', 0, 0, '', '', '' FROM days;"
        );
        first.execute_batch(&closed_days).unwrap();
        let beginning = Barrier::new(2);
        let now = NOW.parse().unwrap();
        let drop_all = |connection: Connection| {
            beginning.wait();
            while drop_old(&connection, Keeping::default(), now).unwrap() > 0 {}
        };
        std::thread::scope(|scope| {
            scope.spawn(|| drop_all(connect()));
            scope.spawn(|| drop_all(first));
        });
        let dropped = "SELECT count(*) FROM chain WHERE state = 'dropped'";
        assert_eq!(value::<i64>(&connect(), dropped, []).unwrap(), DAYS);
        let last = last_dropped(&connect()).unwrap();
        assert_eq!(last, Some("2020-07-19".parse().unwrap()));
    }
}

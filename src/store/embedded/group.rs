//! One group: everything that is decided and written in one transaction.
//!
//! Inside the transaction this connection holds the database's only write lock, so that what it reads stays true until
//! it commits, whatever other processes want. That is why a group may read each count once, decide in memory and write
//! the sums at its end; and why, once the changes of the key table that it lacks have been read, the key table in
//! memory is the database's.
//!
//! What a group has learnt stays known to the next one, unless somebody else has written meanwhile: SQLite counts the
//! commits of other connections for us (`PRAGMA data_version`), and what holds under the write lock holds until one comes.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::Date;
use rusqlite::{Connection, OptionalExtension, Statement};

use super::closing::{self, GUARDED};
use super::inbox::{Refund, Refusals};
use super::keys::{Follower, MARK};
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::policy::key_record::TierName;
use crate::store::ledger::{ADJUSTMENT_STEP_SECONDS, Ceiling};
use crate::store::{Charge, Keeping, StoreError, Totals};

const DAY: &str = "SELECT first, next FROM days WHERE date = ?1";
const ADD_DAY: &str = "INSERT INTO days (date, first, next) VALUES (?1, ?2, ?3)";
// The ledger is the count: a sum over the few endpoints of a key, which lie side by side.
const COUNT: &str = "SELECT coalesce(sum(charged - refunded), 0) FROM ledger
    WHERE date = ?1 AND key = ?2";
// The same of a closed day, whose rows stay as they are.
const COUNT_OF_CLOSED: &str = "SELECT coalesce(sum(charged - refunded), 0)
    + (SELECT coalesce(sum(units), 0) FROM adjustments WHERE date = ?1 AND key = ?2)
    FROM ledger WHERE date = ?1 AND key = ?2";
const ADD_TO_LEDGER: &str = "
    INSERT INTO ledger (date, key, endpoint, requests, charged, refunded, refused_tier, refused_quota, refused_burst,
        refused_concurrent, refused_not_found, refused_method, day_limit, granted)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
    ON CONFLICT (date, key, endpoint) DO UPDATE SET
        requests = requests + excluded.requests,
        charged = charged + excluded.charged,
        refunded = refunded + excluded.refunded,
        refused_tier = refused_tier + excluded.refused_tier,
        refused_quota = refused_quota + excluded.refused_quota,
        refused_burst = refused_burst + excluded.refused_burst,
        refused_concurrent = refused_concurrent + excluded.refused_concurrent,
        refused_not_found = refused_not_found + excluded.refused_not_found,
        refused_method = refused_method + excluded.refused_method,
        day_limit = max(day_limit, excluded.day_limit),
        granted = max(granted, excluded.granted)";
const ADJUST: &str = "INSERT INTO adjustments (date, key, came, units) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (date, key, came) DO UPDATE SET units = units + excluded.units";

/// A number that changes when another connection has committed.
const VERSION: &str = "PRAGMA data_version";

/// Days remembered between groups; a gateway sees two or three.
const DAYS_MAX: usize = 1_024;
/// Counts remembered between groups, some 10 MB.
const COUNTS_MAX: usize = 100_000;

/// The statements of a group, prepared once.
pub(super) struct Statements<'c> {
    connection: &'c Connection,
    begin: Statement<'c>,
    commit: Statement<'c>,
    rollback: Statement<'c>,
    mark: Statement<'c>,
    day: Statement<'c>,
    add_day: Statement<'c>,
    count: Statement<'c>,
    count_of_closed: Statement<'c>,
    add_to_ledger: Statement<'c>,
    adjust: Statement<'c>,
    /// What the days table says, as far as it was read or written in a committed group, and its dates as text.
    days: HashMap<Date, (Day, Box<str>)>,
    version: Statement<'c>,
    guarded: Statement<'c>,
    /// The last date that a write may have to reopen; none where there is no closed day.
    guarded_through: Option<Date>,
    /// The version of the database that what is known is of.
    known_of: Option<i64>,
    /// Counts as they are in that version.
    known: HashMap<(KeyId, Day), u64>,
}

impl<'c> Statements<'c> {
    pub(super) fn prepare(connection: &'c Connection) -> rusqlite::Result<Statements<'c>> {
        Ok(Statements {
            connection,
            begin: connection.prepare("BEGIN IMMEDIATE")?,
            commit: connection.prepare("COMMIT")?,
            rollback: connection.prepare("ROLLBACK")?,
            mark: connection.prepare(MARK)?,
            day: connection.prepare(DAY)?,
            add_day: connection.prepare(ADD_DAY)?,
            count: connection.prepare(COUNT)?,
            count_of_closed: connection.prepare(COUNT_OF_CLOSED)?,
            add_to_ledger: connection.prepare(ADD_TO_LEDGER)?,
            adjust: connection.prepare(ADJUST)?,
            days: HashMap::new(),
            version: connection.prepare(VERSION)?,
            guarded: connection.prepare(GUARDED)?,
            guarded_through: None,
            known_of: None,
            known: HashMap::new(),
        })
    }

    /// Forgets what groups have learnt: something was written on their connection by somebody else, or a group failed.
    pub(super) fn forget(&mut self) {
        self.days.clear();
        self.known_of = None;
        self.known.clear();
    }

    /// Keeps what a committed group knows.
    fn learn(&mut self, counts: &HashMap<(KeyId, Day), u64>) {
        if self.known.len() + counts.len() > COUNTS_MAX {
            self.known.clear();
        }
        self.known.extend(counts);
    }
}

/// What the group makes of a charge, before anybody hears of it.
#[derive(Debug)]
pub(super) enum Ruling {
    /// The units are taken; so many are used now.
    Granted(u64),
    /// There is no room.
    Exhausted(u64),
    /// The database has a newer record, or none.
    KeyChanged,
    /// It is not that day now.
    OtherDay(Timestamp),
    /// The database knows that date by other boundaries.
    OtherCalendar(Day),
}

/// The place of a row: its key, day, tier and endpoint.
type LedgerPlace = (KeyId, Date, TierName, Arc<str>);

/// A transaction that is under way.
pub(super) struct Group<'g, 'c> {
    statements: &'g mut Statements<'c>,
    keys: &'g Follower,
    keeping: Keeping,
    now: Timestamp,
    counts: HashMap<(KeyId, Day), u64>,
    ledger: HashMap<LedgerPlace, (Totals, Ceiling)>,
    /// Units given back of closed days.
    late: HashMap<(KeyId, Date), u64>,
}

impl<'g, 'c> Group<'g, 'c> {
    /// Takes the write lock, and catches up with what others have written. `clock` is read once the lock is held.
    pub(super) fn begin(
        statements: &'g mut Statements<'c>,
        connection: &Connection,
        keys: &'g Follower,
        keeping: Keeping,
        clock: impl FnOnce() -> Timestamp,
    ) -> rusqlite::Result<Group<'g, 'c>> {
        statements.begin.execute([])?;
        let mut group = Group {
            now: clock(),
            statements,
            keys,
            keeping,
            counts: HashMap::new(),
            ledger: HashMap::new(),
            late: HashMap::new(),
        };
        match group.catch_up(connection) {
            Ok(()) => Ok(group),
            Err(error) => {
                group.roll_back();
                Err(error)
            }
        }
    }

    /// Forgets counts that may be others now, and reads what is new of the key table.
    fn catch_up(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let statements = &mut *self.statements;
        let version = statements.version.query_row([], |row| row.get(0))?;
        if statements.known_of != Some(version) {
            statements.known.clear();
            self.keys.catch_up(connection, &mut statements.mark)?;
            let guarded: String = statements.guarded.query_row([], |row| row.get(0))?;
            statements.guarded_through = guarded.parse().ok();
            statements.known_of = Some(version);
        }
        Ok(())
    }

    /// Decides one charge and takes its units.
    pub(super) fn charge(&mut self, charge: &Charge) -> rusqlite::Result<Ruling> {
        let record = &charge.key.record;
        let known = self.keys.table().get(record.id);
        // A key that the database does not know is unknown, whatever the caller holds: the database is the authority.
        if known.is_none_or(|known| known.record.version > record.version) {
            return Ok(Ruling::KeyChanged);
        }
        if !charge.day.contains(self.now) {
            return Ok(Ruling::OtherDay(self.now));
        }
        let stored = self.day(charge.day, Missing::Added)?;
        if stored != charge.day {
            return Ok(Ruling::OtherCalendar(stored));
        }
        let cost = u64::from(charge.cost);
        // SQLite's integers are signed.
        let limit = charge.limit.min(i64::MAX.unsigned_abs());
        let count = self.count(record.id, charge.day)?;
        match count.checked_add(cost) {
            Some(used) if used <= limit => {
                *count = used;
                let date = charge.day.date;
                let (totals, ceiling) = self.entry(record.id, date, &record.tier, &charge.endpoint);
                totals.requests += 1;
                totals.charged += cost;
                *ceiling = ceiling.max(Ceiling::of(record, date, limit));
                Ok(Ruling::Granted(used))
            }
            _ => Ok(Ruling::Exhausted(*count)),
        }
    }

    /// Gives units back.
    pub(super) fn refund(&mut self, refund: &Refund) -> rusqlite::Result<()> {
        let receipt = &refund.receipt;
        let units = u64::from(receipt.units);
        let count = self.count(receipt.key, receipt.day)?;
        *count = count.saturating_sub(units);
        let (key, date) = (receipt.key, receipt.day.date);
        if self.is_closed(receipt.day) {
            *self.late.entry((key, date)).or_default() += units;
            return Ok(());
        }
        let (totals, _) = self.entry(key, date, &receipt.tier, &receipt.endpoint);
        totals.refunded += units;
        Ok(())
    }

    /// Reads a count, or the boundaries that the database knows the day by if they are others.
    pub(super) fn used(&mut self, key: KeyId, day: Day) -> rusqlite::Result<Result<u64, Day>> {
        let stored = self.day(day, Missing::Assumed)?;
        if stored != day {
            return Ok(Err(stored));
        }
        Ok(Ok(*self.count(key, day)?))
    }

    /// Adds refused requests to the ledger, but for those of days that were closed by the time they could be written.
    pub(super) fn refused(&mut self, refusals: &Refusals) -> rusqlite::Result<()> {
        for ((key, day, tier, endpoint), refused) in refusals {
            if self.is_closed(*day) {
                continue;
            }
            // Every day of the ledger is in the table of days, by which it is dropped one day.
            self.day(*day, Missing::Added)?;
            self.entry(*key, day.date, tier, endpoint).0.add(refused);
        }
        Ok(())
    }

    /// Writes the sums and commits; answers the counts that the group saw.
    pub(super) fn commit(mut self) -> rusqlite::Result<impl Iterator<Item = (KeyId, Day, u64)>> {
        if let Err(error) = self.write().and_then(|()| {
            self.statements.commit.execute([])?;
            Ok(())
        }) {
            self.roll_back();
            return Err(error);
        }
        self.statements.learn(&self.counts);
        Ok(self
            .counts
            .into_iter()
            .map(|((key, day), used)| (key, day, used)))
    }

    /// Leaves the database as it was.
    pub(super) fn roll_back(self) {
        self.statements.forget();
        // Without effect where SQLite has rolled back by itself.
        let _ = self.statements.rollback.execute([]);
    }

    /// Reopens the closed days that rows are written to: whose units came late, or which were closed by a clock that was ahead.
    fn reopen(&self) -> rusqlite::Result<()> {
        let Some(through) = self.statements.guarded_through else {
            return Ok(());
        };
        let written = self.ledger.keys().map(|(_, date, ..)| *date);
        let written = written.chain(self.late.keys().map(|(_, date)| *date));
        let dates: BTreeSet<Date> = written.filter(|date| *date <= through).collect();
        for date in dates {
            let (date, now) = (date.to_string(), self.now.as_second());
            if closing::reopen(self.statements.connection, &date, now)? {
                tracing::info!(%date, "a closed day of the ledger is reopened: units came late");
            }
        }
        Ok(())
    }

    fn write(&mut self) -> rusqlite::Result<()> {
        self.reopen()?;
        let Statements {
            add_to_ledger,
            adjust,
            days,
            ..
        } = &mut *self.statements;
        for ((key, date, tier, endpoint), (totals, ceiling)) in &self.ledger {
            let date = date_text(days, *date);
            let place = format!("{tier} {endpoint}");
            add_to_ledger.raw_bind_parameter(1, &*date)?;
            add_to_ledger.raw_bind_parameter(2, key.as_str())?;
            add_to_ledger.raw_bind_parameter(3, place)?;
            let numbers = totals.numbers().into_iter();
            let numbers = numbers.chain([ceiling.limit, ceiling.granted]);
            for (parameter, number) in (4..).zip(numbers) {
                add_to_ledger.raw_bind_parameter(parameter, signed(number))?;
            }
            add_to_ledger.raw_execute()?;
        }
        let now = self.now.as_second();
        let came = now - now.rem_euclid(ADJUSTMENT_STEP_SECONDS);
        for ((key, date), units) in &self.late {
            adjust.execute((date_text(days, *date), key.as_str(), came, -signed(*units)))?;
        }
        Ok(())
    }

    fn is_closed(&self, day: Day) -> bool {
        self.keeping.is_closed(day.end, self.now.as_second())
    }

    fn count(&mut self, key: KeyId, day: Day) -> rusqlite::Result<&mut u64> {
        let is_closed = self.is_closed(day);
        match self.counts.entry((key, day)) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let Statements {
                    count,
                    count_of_closed,
                    days,
                    known,
                    ..
                } = &mut *self.statements;
                if let Some(used) = known.get(&(key, day)) {
                    return Ok(place.insert(*used));
                }
                let count = if is_closed { count_of_closed } else { count };
                let used: i64 =
                    count.query_row((date_text(days, day.date), key.as_str()), |row| row.get(0))?;
                Ok(place.insert(unsigned(used)))
            }
        }
    }

    fn entry(
        &mut self,
        key: KeyId,
        date: Date,
        tier: &TierName,
        endpoint: &Arc<str>,
    ) -> &mut (Totals, Ceiling) {
        self.ledger
            .entry((key, date, tier.clone(), endpoint.clone()))
            .or_default()
    }

    /// The day as the database has it under this date.
    fn day(&mut self, day: Day, missing: Missing) -> rusqlite::Result<Day> {
        if let Some((stored, _)) = self.statements.days.get(&day.date) {
            return Ok(*stored);
        }
        let date = day.date.to_string();
        let stored = self
            .statements
            .day
            .query_row([&date], |row| {
                Ok(Day {
                    date: day.date,
                    start: row.get(0)?,
                    end: row.get(1)?,
                })
            })
            .optional()?;
        let stored = match (stored, missing) {
            (Some(stored), _) => stored,
            (None, Missing::Assumed) => return Ok(day),
            (None, Missing::Added) => {
                self.statements
                    .add_day
                    .execute((&date, day.start, day.end))?;
                day
            }
        };
        if self.statements.days.len() >= DAYS_MAX {
            self.statements.days.clear();
        }
        self.statements
            .days
            .insert(day.date, (stored, date.into_boxed_str()));
        Ok(stored)
    }
}

/// What to do with a day that the database has not met.
#[derive(Clone, Copy)]
enum Missing {
    /// Store it: it is about to be charged.
    Added,
    /// Take the caller's word: it is only read.
    Assumed,
}

/// The date as the tables have it, without making the text anew for a day that is known.
fn date_text(days: &HashMap<Date, (Day, Box<str>)>, date: Date) -> std::borrow::Cow<'_, str> {
    match days.get(&date) {
        Some((_, text)) => std::borrow::Cow::Borrowed(text),
        None => std::borrow::Cow::Owned(date.to_string()),
    }
}

/// What a caller is told whose day has other boundaries.
pub(super) fn other_calendar(path: &std::path::Path, asked: Day, stored: Day) -> StoreError {
    StoreError::OtherCalendar(format!(
        "{} has the day {} from {} to {} (Unix seconds), and it was asked for {} to {}: two time zone tables or \
         calendars are in use",
        path.display(),
        stored.date,
        stored.start,
        stored.end,
        asked.start,
        asked.end
    ))
}

/// As SQLite keeps it; counts stay below the limit, which is below 2^63.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// As Rust counts it; nothing negative is ever written.
pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

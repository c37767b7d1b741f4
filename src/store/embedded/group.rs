//! One group: the decisions and writes of one transaction.
//!
//! Inside the transaction this connection holds the database's only write lock, so that what it reads stays true until
//! it commits, whatever other processes want. That is why a group may decide in memory and append all of it as one row
//! (`appended`); and why, once the changes of the key table that it lacks have been read, the key table in
//! memory is the database's.
//!
//! The next group reuses the counts of the last one, unless another connection has written meanwhile: SQLite counts the commits
//! of other connections (`PRAGMA data_version`). After such a commit, the groups that others appended are added to the known
//! counts.
//!
//! Invariant: each key and date of which groups hold anything that the ledger lacks has its count among the known ones. So the
//! count of a key and date that is not known is the ledger's.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

use ahash::RandomState;
use jiff::Timestamp;
use jiff::civil::Date;
use rusqlite::{Connection, Statement};

use super::appended::{self, Mark, Packing};
use super::closing::{self, GUARDED};
use super::days::{add_day, stored_day};
use super::folding::first_and_last;
use super::inbox::{Refund, Refusals, Ruling};
use super::keys::Follower;
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::store::ledger::{ADJUSTMENT_STEP_SECONDS, Ceiling};
use crate::store::sqlite::{execute, signed, unsigned, value};
use crate::store::{Charge, Decision, Keeping, Receipt, Totals};

// A sum over the few endpoints of a key, which lie side by side, and what came after the day was closed.
const COUNT: &str = "SELECT coalesce(sum(charged - refunded), 0)
    + (SELECT coalesce(sum(units), 0) FROM adjustments WHERE date = ?1 AND key = ?2)
    FROM ledger WHERE date = ?1 AND key = ?2";
const APPEND: &str = "INSERT INTO appended (number, entries) VALUES (?1, ?2)";
const ADJUST: &str = "INSERT INTO adjustments (date, key, came, units) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (date, key, came) DO UPDATE SET units = units + excluded.units";

/// A number that changes when another connection has committed.
const VERSION: &str = "PRAGMA data_version";

/// Days remembered between groups; a gateway sees two or three.
const DAYS_MAX: usize = 1_024;
/// Counts remembered between groups, some 10 MB; more only where the ledger lacks something of them.
const COUNTS_MAX: usize = 200_000;

/// A count as it is known.
struct KnownCount {
    used: u64,
    /// The last group that changed it.
    group: i64,
    /// The last group of this process that used it.
    turn: u64,
}

/// The statements of every group, prepared once, and what groups have learnt.
pub(super) struct Statements<'c> {
    connection: &'c Connection,
    begin: Statement<'c>,
    commit: Statement<'c>,
    count: Statement<'c>,
    append: Statement<'c>,
    /// The rows of the days table that a committed group has read or written.
    days: HashMap<Date, Day, RandomState>,
    version: Statement<'c>,
    /// The last date that a write may have to reopen; none where there is no closed day.
    guarded_through: Option<Date>,
    /// The version of the database that what is known is of.
    known_of: Option<i64>,
    /// The counts of that version.
    known: HashMap<(KeyId, Date), KnownCount, RandomState>,
    /// How many counts there may be before those are forgotten that can be.
    pub(super) known_max: usize,
    /// The last group whose entries are in the counts, and the number of rewrites in the `folding` row; `None` if nothing is
    /// known.
    seen: Option<(i64, i64)>,
    /// Counts the groups of this process.
    turn: u64,
}

impl<'c> Statements<'c> {
    pub(super) fn prepare(connection: &'c Connection) -> rusqlite::Result<Statements<'c>> {
        Ok(Statements {
            connection,
            begin: connection.prepare("BEGIN IMMEDIATE")?,
            commit: connection.prepare("COMMIT")?,
            count: connection.prepare(COUNT)?,
            append: connection.prepare(APPEND)?,
            days: HashMap::default(),
            version: connection.prepare(VERSION)?,
            guarded_through: None,
            known_of: None,
            known: HashMap::default(),
            known_max: COUNTS_MAX,
            seen: None,
            turn: 0,
        })
    }

    /// Has the next group look for changes: something else was written on its connection.
    pub(super) fn look_again(&mut self) {
        self.days.clear();
        self.known_of = None;
    }

    /// Drops all known counts after a failed group.
    fn forget(&mut self) {
        self.look_again();
        self.known.clear();
        self.seen = None;
    }

    /// Reads the entries of groups that the ledger lacks, so that the first charge need not wait for it.
    pub(super) fn prepare_counts(&mut self) -> rusqlite::Result<()> {
        let _instant = self.connection.unchecked_transaction()?;
        self.catch_up_with_groups()
    }

    /// Adds the groups that others appended to the known counts, or reads all there are where others have changed counts otherwise
    /// or moved groups into the ledger that were not seen.
    fn catch_up_with_groups(&mut self) -> rusqlite::Result<()> {
        let mark = Mark::read(self.connection)?;
        let (first, last) =
            first_and_last(self.connection)?.unwrap_or((mark.through + 1, mark.through));
        let seen = self
            .seen
            .filter(|(seen, rewritten)| *seen >= first - 1 && *rewritten == mark.rewritten);
        if seen.is_none() {
            self.known.clear();
        }
        let seen = seen.map_or(first - 1, |(seen, _)| seen);
        let mut changed: HashMap<(KeyId, Date), CountChange> = HashMap::new();
        if seen < last {
            appended::groups(self.connection, (seen, last), |mut group| {
                let number = group.number;
                group.each(|entry| {
                    let change = changed.entry((entry.key, entry.date)).or_default();
                    let units = entry.row.0.net();
                    change.units += units;
                    change.group = number;
                    if !mark.has(number, entry) {
                        change.lacking += units;
                    }
                })?;
                Ok(ControlFlow::Continue(()))
            })?;
        }
        for (place, change) in changed {
            match self.known.entry(place) {
                Entry::Occupied(mut known) => {
                    let known = known.get_mut();
                    known.used = unsigned(signed(known.used) + change.units);
                    known.group = change.group;
                }
                Entry::Vacant(unknown) => {
                    let in_ledger: i64 = self
                        .count
                        .query_row((place.1.to_string(), place.0.as_str()), |row| row.get(0))?;
                    unknown.insert(KnownCount {
                        used: unsigned(in_ledger + change.lacking),
                        group: change.group,
                        turn: 0,
                    });
                }
            }
        }
        self.seen = Some((last, mark.rewritten));
        Ok(())
    }

    /// The count of a key on a date.
    fn count(&mut self, key: KeyId, date: Date) -> rusqlite::Result<&mut KnownCount> {
        match self.known.entry((key, date)) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(unknown) => {
                let place = (date.to_string(), key.as_str());
                let used: i64 = self.count.query_row(place, |row| row.get(0))?;
                Ok(unknown.insert(KnownCount {
                    used: unsigned(used),
                    group: 0,
                    turn: 0,
                }))
            }
        }
    }

    /// Forgets counts of which the ledger lacks nothing, where there are too many.
    fn trim(&mut self) -> rusqlite::Result<()> {
        if self.known.len() > self.known_max {
            let first = first_and_last(self.connection)?.map_or(i64::MAX, |(first, _)| first);
            self.known.retain(|_, known| known.group >= first);
            self.known_max = COUNTS_MAX.max(2 * self.known.len());
        }
        Ok(())
    }
}

/// The changes of a count by other processes' groups.
#[derive(Default)]
struct CountChange {
    units: i64,
    /// Those among them that the ledger lacks.
    lacking: i64,
    group: i64,
}

/// A transaction that is under way.
pub(super) struct Group<'g, 'c> {
    statements: &'g mut Statements<'c>,
    keys: &'g Follower,
    keeping: Keeping,
    now: Timestamp,
    /// Its number, if it comes to have entries.
    number: i64,
    entries: Packing,
    /// The counts that it met.
    met: Vec<(KeyId, Day)>,
    /// Units refunded on closed days.
    late: HashMap<(KeyId, Date), u64>,
}

impl<'g, 'c> Group<'g, 'c> {
    /// Takes the write lock, and catches up with what others have written. `clock` is read once the lock is held.
    pub(super) fn begin(
        statements: &'g mut Statements<'c>,
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
            number: 0,
            entries: Packing::default(),
            met: Vec::new(),
            late: HashMap::new(),
        };
        match group.catch_up() {
            Ok(()) => Ok(group),
            Err(error) => {
                group.roll_back();
                Err(error)
            }
        }
    }

    /// Brings the counts up to date, and reads what is new of the key table.
    fn catch_up(&mut self) -> rusqlite::Result<()> {
        let statements = &mut *self.statements;
        let version = statements.version.query_row([], |row| row.get(0))?;
        if statements.known_of != Some(version) {
            self.keys.catch_up(statements.connection)?;
            let guarded: String = value(statements.connection, GUARDED, [])?;
            statements.guarded_through = guarded.parse().ok();
            statements.catch_up_with_groups()?;
            statements.known_of = Some(version);
        }
        statements.trim()?;
        statements.turn += 1;
        self.number = statements.seen.map_or(0, |(seen, _)| seen) + 1;
        Ok(())
    }

    /// Decides one charge and takes its units.
    pub(super) fn charge(&mut self, charge: &Charge) -> rusqlite::Result<Ruling<Decision>> {
        let record = &charge.key.record;
        let known = self.keys.table.get(record.id);
        // A key that is not in the database is unknown, whatever record the caller has: the database is the authority.
        if known.is_none_or(|known| known.record.version > record.version) {
            return Ok(Ok(Decision::KeyChanged));
        }
        if !charge.day.contains(self.now) {
            return Ok(Ok(Decision::OtherDay { now: self.now }));
        }
        let stored = self.day(charge.day, Missing::Added)?;
        if stored != charge.day {
            return Ok(Err(stored));
        }
        let cost = u64::from(charge.cost);
        // SQLite's integers are signed.
        let limit = charge.limit.min(i64::MAX.unsigned_abs());
        let number = self.number;
        let count = self.count(record.id, charge.day)?;
        match count.used.checked_add(cost) {
            Some(used) if used <= limit => {
                count.used = used;
                count.group = number;
                let date = charge.day.date;
                let totals = Totals {
                    requests: 1,
                    charged: cost,
                    ..Totals::default()
                };
                let place = (&record.tier, &charge.endpoint);
                let ceiling = Ceiling::of(record, date, limit);
                self.entries
                    .add((record.id, date), place, (totals, ceiling));
                Ok(Ok(Decision::Granted {
                    used,
                    counted: used,
                    receipt: Receipt::of(charge),
                }))
            }
            _ => Ok(Ok(Decision::Exhausted { used: count.used })),
        }
    }

    /// Refunds units.
    pub(super) fn refund(&mut self, refund: &Refund) -> rusqlite::Result<()> {
        let receipt = &refund.receipt;
        let units = u64::from(receipt.units);
        let (number, is_closed) = (self.number, self.is_closed(receipt.day));
        let count = self.count(receipt.key, receipt.day)?;
        count.used = count.used.saturating_sub(units);
        let (key, date) = (receipt.key, receipt.day.date);
        if is_closed {
            *self.late.entry((key, date)).or_default() += units;
            return Ok(());
        }
        count.group = number;
        let totals = Totals {
            refunded: units,
            ..Totals::default()
        };
        let place = (&receipt.tier, &receipt.endpoint);
        self.entries
            .add((key, date), place, (totals, Ceiling::default()));
        Ok(())
    }

    /// Reads a count, or the boundaries that the database knows the day by if they are others.
    pub(super) fn used(&mut self, key: KeyId, day: Day) -> rusqlite::Result<Ruling<u64>> {
        let stored = self.day(day, Missing::Assumed)?;
        if stored != day {
            return Ok(Err(stored));
        }
        Ok(Ok(self.count(key, day)?.used))
    }

    /// Adds refused requests to the ledger, but for those of days that were closed by the time they could be written.
    pub(super) fn refused(&mut self, refusals: &Refusals) -> rusqlite::Result<()> {
        for ((key, day, tier, endpoint), refused) in refusals {
            if self.is_closed(*day) {
                continue;
            }
            // Every day of the ledger is in the table of days, by which it is dropped one day.
            self.day(*day, Missing::Added)?;
            let place = (tier, endpoint);
            self.entries
                .add((*key, day.date), place, (*refused, Ceiling::default()));
        }
        Ok(())
    }

    /// Appends the group and commits; answers the counts that it met.
    pub(super) fn commit(mut self) -> rusqlite::Result<Committed> {
        let written = self.write().and_then(|()| {
            self.statements.commit.execute([])?;
            Ok(())
        });
        if let Err(error) = written {
            self.roll_back();
            return Err(error);
        }
        let statements = self.statements;
        if let Some((seen, _)) = &mut statements.seen
            && self.entries.len() > 0
        {
            *seen = self.number;
        }
        let known = |(key, day): (KeyId, Day)| {
            let known = statements.known.get(&(key, day.date))?;
            Some((key, day, known.used))
        };
        Ok(Committed {
            counts: self.met.into_iter().filter_map(known).collect(),
            entries: self.entries.len(),
        })
    }

    /// Rolls the transaction back.
    pub(super) fn roll_back(self) {
        self.statements.forget();
        // Without effect where SQLite has rolled back by itself.
        let _ = self.statements.connection.execute_batch("ROLLBACK");
    }

    /// Reopens the closed days that rows are written to: whose units came late, or which were closed by a clock that was ahead.
    fn reopen(&self) -> rusqlite::Result<()> {
        let Some(through) = self.statements.guarded_through else {
            return Ok(());
        };
        let written = self.entries.dates();
        let written = written.chain(self.late.keys().map(|(_, date)| *date));
        let dates: BTreeSet<Date> = written.filter(|date| *date <= through).collect();
        for date in dates {
            let (date, now) = (date.to_string(), self.now.as_second());
            if closing::reopen(self.statements.connection, &date, now)? {
                tracing::info!(%date, "a closed day of the ledger is reopened: units were settled late");
            }
        }
        Ok(())
    }

    fn write(&mut self) -> rusqlite::Result<()> {
        self.reopen()?;
        let statements = &mut *self.statements;
        if self.entries.len() > 0 {
            let bytes = self.entries.bytes();
            statements.append.execute((self.number, bytes))?;
        }
        let now = self.now.as_second();
        let came = now - now.rem_euclid(ADJUSTMENT_STEP_SECONDS);
        for ((key, date), units) in &self.late {
            let row = (date.to_string(), key.as_str(), came, -signed(*units));
            execute(statements.connection, ADJUST, row)?;
        }
        if !self.late.is_empty() {
            appended::note_rewritten(statements.connection)?;
            // This process relies on what it remembers no more than the others do.
            statements.known_of = None;
        }
        Ok(())
    }

    fn is_closed(&self, day: Day) -> bool {
        self.keeping.is_closed(day.end, self.now.as_second())
    }

    fn count(&mut self, key: KeyId, day: Day) -> rusqlite::Result<&mut KnownCount> {
        let turn = self.statements.turn;
        let known = self.statements.count(key, day.date)?;
        if known.turn != turn {
            known.turn = turn;
            self.met.push((key, day));
        }
        Ok(known)
    }

    /// The day as the database has it under this date.
    fn day(&mut self, day: Day, missing: Missing) -> rusqlite::Result<Day> {
        if let Some(stored) = self.statements.days.get(&day.date) {
            return Ok(*stored);
        }
        let connection = self.statements.connection;
        let stored = match (stored_day(connection, day.date)?, missing) {
            (Some(stored), _) => stored,
            (None, Missing::Assumed) => return Ok(day),
            (None, Missing::Added) => {
                add_day(connection, day)?;
                day
            }
        };
        if self.statements.days.len() >= DAYS_MAX {
            self.statements.days.clear();
        }
        self.statements.days.insert(day.date, stored);
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

/// The result of a group.
pub(super) struct Committed {
    /// The counts that it met.
    pub(super) counts: Vec<(KeyId, Day, u64)>,
    /// How many entries it has.
    pub(super) entries: usize,
}

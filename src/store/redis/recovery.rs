//! Crash recovery: the last counts of this machine's killed processes, read from Redis into the journal.
//!
//! A gateway journals its counts every interval, so if it is killed, only Redis has the counts of its last interval. Its
//! successor finds the name of the killed process in the journal, reads the counts of all keys on the days in question, and
//! writes those that the journal lacks, under the names of the killed process, counts and ledger together. If Redis then loses
//! them (it is emptied, or fails over), they are sent again from the journal (`outage`). The ledger is read for keys whose
//! counts or ledger rows were missing. Then the journal's rows are sent, because a process may also have ended while Redis did not
//! take its last ones: during an upgrade, its successor has long started then. What Redis granted such a process by a call that it had
//! abandoned is returned, also if the call runs only when Redis answers again.
//!
//! Cost: one pipelined `HGETALL` for each key and day; nothing if the process shut down in an orderly way; nothing for charges,
//! unlike the alternatives (journaling each charge, or writing the keys of the last interval to Redis).
//!
//! Invariants: recovery grants nothing (the name of a killed producer is never used again), and no number is lowered. Not here:
//! counts that Redis lost before they were read, which cannot be recovered.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use redis::Cmd;
use tokio::time::Instant;

use super::journal::processes::{KEPT_SECONDS, Process};
use super::journal::{CountRow, Journal, JournalRows};
use super::outage::OutageService;
use super::parts::Parts;
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Calendar;
use crate::policy::failure_log::LoggedReasons;
use crate::policy::quota::account::LATE_CALL_LASTS;
use crate::store::StoreError;
use crate::store::redis::counts::ledger::{Counts, HashFields, stored_days};
use crate::store::redis::keys::feed::Feed;
use crate::store::redis::wire::request::{parsed, pipeline};

/// Key-days read in one round trip: a reply of some 100 kB, a millisecond of Redis.
const READ_BATCH: usize = 128;
/// How often to look for processes that ended without removing their names.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A process counts as ended if it has not written for this long (seconds) and for this number of intervals of the journal.
const SILENT_SECONDS: u64 = 10;
const SILENT_INTERVALS: u32 = 10;
/// How long after a day its counts may still change, by refunds of requests that crossed midnight (seconds).
const CROSSING_SECONDS: i64 = 120;
/// How long after a process last wrote it may have counted, if that is so long ago that not every day since is read (seconds).
const ABOUT_SEEN_SECONDS: i64 = 86_400;
/// The first and the longest pause after a failure.
const RETRY_AFTER: Duration = Duration::from_millis(100);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);
/// How often to check whether Redis is available.
const WAIT_PAUSE: Duration = Duration::from_millis(20);

/// Reads the counts that other processes of this machine left in Redis.
pub struct CrashRecovery {
    parts: Arc<Parts>,
    outage: Arc<OutageService>,
    journal: Arc<Journal>,
    /// What could not be read of processes that had ended before the rest was read.
    unread: Option<Unread>,
    /// Since when Redis has answered, as far as this was looked at.
    answering: Option<Instant>,
}

/// The days of keys that could not be read for these processes.
struct Unread {
    processes: Vec<Process>,
    days: Vec<(Date, Vec<KeyId>)>,
}

impl CrashRecovery {
    /// Nothing has been read yet. `outage` is the service of these `parts`.
    pub fn new(parts: Arc<Parts>, outage: Arc<OutageService>) -> CrashRecovery {
        CrashRecovery {
            journal: outage.journal.clone(),
            parts,
            outage,
            unread: None,
            answering: None,
        }
    }

    /// Reads the counts of the processes that are found at the start, then those of processes that fall silent. Never returns.
    pub async fn keep(mut self, feed: Arc<Feed>) {
        let (mut logged, mut retry) = (LoggedReasons::default(), RETRY_AFTER);
        loop {
            let pause = match self.read_due(&feed).await {
                Ok(()) => {
                    self.outage.note_recovered();
                    logged.ended();
                    retry = RETRY_AFTER;
                    LOOK_EVERY
                }
                Err(error) => {
                    self.answering = None;
                    if logged.is_new(&error.to_string()) {
                        tracing::warn!(%error, "the last counts of killed processes could not be read; trying again");
                    }
                    let pause = retry;
                    retry = (2 * retry).min(RETRY_AFTER_MAX);
                    pause
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn read_due(&mut self, feed: &Feed) -> Result<(), StoreError> {
        let at_start = !self.outage.is_recovered();
        let mut due = self.journal.other_processes().await?;
        due.retain(|process| at_start || self.is_silent(process));
        if due.is_empty() {
            self.answering = None;
            return Ok(());
        }
        // The table must have the keys that the dead process knew.
        feed.followed().await;
        while !self.parts.guard.is_closed() {
            self.answering = None;
            tokio::time::sleep(WAIT_PAUSE).await;
        }
        let began = Instant::now();
        let answering = *self.answering.get_or_insert(began);
        // A process that runs beside this one, during an upgrade, keeps its name until it shuts down, or falls silent and is
        // read again.
        let mut ended = due.clone();
        // A call that one abandoned may still run.
        let is_late = began - answering < LATE_CALL_LASTS;
        ended.retain(|process| self.is_silent(process) && !(process.has_ended && is_late));
        let rows = self.read(&due).await?;
        tracing::info!(
            processes = due.len(),
            keys = self.parts.keys.len(),
            rows,
            took_ms = began.elapsed().as_secs_f64() * 1e3,
            "the last counts of this journal's other processes are read from Redis"
        );
        self.journal.forget(ended).await
    }

    fn is_silent(&self, process: &Process) -> bool {
        let intervals = self.outage.journal_interval() * SILENT_INTERVALS;
        let patience = SILENT_SECONDS.max(intervals.as_secs());
        let patience = i64::try_from(patience).unwrap_or(i64::MAX);
        process.seen.saturating_add(patience) < self.parts.clock.now().as_second()
    }

    /// Reads all keys of the days on which these processes may have counted last, and has the journal's rows sent, which Redis may
    /// lack; again, only those that could not be read, if the processes had ended before. Returns the number of rows that were missing.
    async fn read(&mut self, processes: &[Process]) -> Result<usize, StoreError> {
        let now = self.parts.clock.now().as_second();
        let names: HashSet<&str> = processes.iter().map(|one| one.name.as_str()).collect();
        let have_ended = processes.iter().all(|process| self.is_silent(process));
        let before = self.unread.take();
        let before = before.filter(|unread| unread.processes == processes);
        let reads_all = before.is_none();
        let days = match before {
            Some(unread) => unread.days,
            None => {
                let entries = self.parts.keys.entries();
                let keys: Vec<KeyId> = entries.iter().map(|entry| entry.record.id).collect();
                let seen = processes.iter().map(|process| process.seen);
                let dates = dates_to_read(&self.parts.zone, seen, now).into_iter();
                dates.map(|date| (date, keys.clone())).collect()
            }
        };
        let (mut rows, mut complete, mut unread) = (0, Ok(()), Vec::new());
        for (date, keys) in days {
            let mut left = Vec::new();
            for batch in keys.chunks(READ_BATCH) {
                self.parts.command_link.require()?;
                let (recovered, read) = self.read_batch(batch, date, &names, &mut left).await;
                rows += recovered;
                complete = complete.and(read);
            }
            if !left.is_empty() {
                unread.push((date, left));
            }
        }
        if reads_all || rows > 0 {
            self.outage.repeat_all();
        }
        if complete.is_err() && have_ended {
            self.unread = Some(Unread {
                processes: processes.to_vec(),
                days: unread,
            });
        }
        if rows > 0 && complete.is_err() {
            tracing::info!(rows, "some of the last counts of killed processes are read");
        }
        complete.map(|()| rows)
    }

    /// Reads a day of these keys. Returns the number of rows that were missing, and the first error of those that could not be read,
    /// which are added to `left`.
    async fn read_batch(
        &self,
        keys: &[KeyId],
        date: Date,
        processes: &HashSet<&str>,
        left: &mut Vec<KeyId>,
    ) -> (usize, Result<(), StoreError>) {
        let link = &self.parts.command_link;
        let names = keys.iter().map(|key| link.names.counts(*key, date));
        let ask = pipeline(names.map(Cmd::hgetall));
        let (mut held, mut complete) = (Vec::new(), Ok(()));
        for (key, result) in keys.iter().zip(link.ask_each(&ask).await) {
            match result.and_then(parsed::<HashFields>) {
                Ok(fields) => {
                    let counts = Counts::of(&fields);
                    let rows = counts.map(|counts| counts.rows_of((date, *key), processes));
                    held.extend(rows.into_iter().flatten());
                }
                Err(error) => {
                    left.push(*key);
                    complete = complete.and(Err(error.into()));
                }
            }
        }
        let found: BTreeSet<KeyId> = held.iter().map(|row| row.key).collect();
        match self.recover(held, processes).await {
            Ok(recovered) => (recovered, complete),
            Err(error) => {
                left.extend(found);
                (0, complete.and(Err(error)))
            }
        }
    }

    /// Writes the counts that the journal lacks, with their ledger. Returns their number. A process that was killed before it wrote
    /// its ledger did not list its days.
    async fn recover(
        &self,
        held: Vec<CountRow>,
        processes: &HashSet<&str>,
    ) -> Result<usize, StoreError> {
        if held.is_empty() {
            return Ok(0);
        }
        let dates = held.iter().map(|row| row.day.date).collect();
        self.parts.ledger.list(&dates).await;
        let days = Vec::from_iter(self.journal.lacking(held).await?);
        let mut rows = JournalRows::default();
        let places: Vec<_> = days.iter().map(|(key, day)| (day.date, *key)).collect();
        let held = stored_days(&self.parts.command_link, &places).await?;
        for ((_, day), held) in days.into_iter().zip(held) {
            rows.counts.extend(held.count_rows(processes));
            rows.totals.extend(held.totals_rows(day, processes));
        }
        let recovered = rows.counts.len();
        if recovered > 0 {
            let now = self.parts.clock.now().as_second();
            self.journal.recover(rows, now).await?;
        }
        Ok(recovered)
    }
}

/// The dates in `zone` on which processes may have counted that last wrote at the instants `seen` (Unix seconds): the day of each, and
/// those since, not longer ago than names are kept. A clock that was decades behind wrote such an instant.
fn dates_to_read(zone: &str, seen: impl Iterator<Item = i64>, now: i64) -> BTreeSet<Date> {
    let calendar = Calendar::of_zone(zone).ok();
    let date_at = |second: i64| {
        let at = Timestamp::from_second(second).unwrap_or_default();
        let day = calendar.as_ref().and_then(|days| days.day_at(at).ok());
        day.map_or_else(|| TimeZone::UTC.to_datetime(at).date(), |day| day.date)
    };
    let dates = |first: i64, last: i64| {
        let (first, last) = (date_at(first), date_at(last));
        let every = first.series(jiff::Span::new().days(1));
        every.take_while(move |date| *date <= last)
    };
    let spans = seen.flat_map(|seen| {
        // A clock that was ahead may have written a future instant.
        let seen = seen.min(now);
        let first = seen.saturating_sub(CROSSING_SECONDS);
        let last = seen.saturating_add(ABOUT_SEEN_SECONDS).min(now);
        dates(first, last).chain(dates(first.max(now - KEPT_SECONDS), now))
    });
    spans.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dates_of_a_process_whose_clock_was_decades_behind_are_few_and_recent() {
        let second = |at: &str| at.parse::<Timestamp>().unwrap().as_second();
        let now = second("2026-11-22T12:00:00Z");
        let (an_hour_ago, long_ago) = (now - 3_600, second("2025-06-30T23:59:00Z"));
        let read = |seen: &[i64]| {
            let dates = dates_to_read("UTC", seen.iter().copied(), now).into_iter();
            Vec::from_iter(dates.map(|date| date.to_string()))
        };
        assert_eq!(read(&[an_hour_ago]), ["2026-11-22"]);
        assert_eq!(read(&[now + 86_400]), ["2026-11-22"]);
        let behind = read(&[0, an_hour_ago]);
        assert!(behind.len() < 50, "{} dates", behind.len());
        assert_eq!(behind.last().map(String::as_str), Some("2026-11-22"));
        // One that was killed long ago counted last on the day on which it was seen.
        let killed = read(&[long_ago]);
        assert_eq!(killed.get(..2).unwrap(), ["2025-06-30", "2025-07-01"]);
    }

    #[test]
    fn producers_with_refunds_only_are_read_too_and_damaged_ones_are_not() {
        let fields = [
            ("t100-200", "2"),
            ("gdead.1", "7"),
            ("rdead.1", "2"),
            ("rdead.2", "3"),
            ("gdead.3", "4"),
            ("gliving.1", "5"),
            ("a150", "1"),
            // Damaged: nothing is concluded from them.
            ("gdead.4", "many"),
            ("rdead.4", "1"),
            ("gdead.5", "-1"),
        ];
        let fields = fields.map(|(field, value)| (field.to_owned(), value.to_owned()));
        let (key, date) = ("0123456789Ab".parse().unwrap(), "2026-11-22".parse());
        let processes = HashSet::from(["dead"]);
        let counts = Counts::of(&fields.into()).unwrap();
        let rows = counts.rows_of((date.unwrap(), key), &processes);
        let marks = rows.iter().map(|row| (&*row.producer, row.ack, row.rack));
        assert_eq!(
            Vec::from_iter(marks),
            [("dead.1", 7, 2), ("dead.2", 0, 3), ("dead.3", 4, 0)]
        );
    }
}

//! The ledger: units and refused requests by endpoint.
//!
//! This process has absolute totals per key, day, tier and endpoint and writes them whole: writing twice does no harm, and what
//! is not stored yet is written again until it is. The totals of a key, day and tier have a producer's name of their own (see
//! `producer`); readers add the producers up.
//!
//! Invariant: nothing is written into a day that is closed. Its late units are in the counts, as adjustments (`charge.lua`).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::civil::Date;
use parking_lot::Mutex;
use redis::Pipeline;
use tokio::time::Instant;

use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::policy::key_record::TierName;
use crate::policy::quota::account::LATE_CALL_LASTS;
use crate::store::ledger::Ceiling;
use crate::store::redis::clock::StoreClock;
use crate::store::redis::journal::TotalsRow;
use crate::store::redis::producer::Producer;
use crate::store::redis::wire::link::RedisLink;
use crate::store::redis::wire::request::LinkError;
use crate::store::redis::wire::script::MERGE_TOTALS;
use crate::store::shards::Shards;
use crate::store::{Charge, KeyEntry, Receipt, RefusalReason, StoreError, Totals};

mod cells;
mod days;
mod producer_totals;
mod reading;
mod transfer;

pub use days::{complete_days, dates_with_counts, days_kept, has_counts, listed_days};
pub use producer_totals::KeyAndDate;
use producer_totals::{LedgerPage, ProducerTotals, TotalsKey};
pub use reading::{Counts, HashFields, late_days, prove, stored_days};
pub use transfer::{import, key_days};

/// Key-days written in one round trip.
const WRITE_BATCH: usize = 256;

/// The totals of this process.
pub struct ProcessLedger {
    link: Arc<RedisLink>,
    producer: Arc<Producer>,
    clock: Arc<StoreClock>,
    totals: Shards<ProducerTotals>,
    /// The dates with counts or written totals that the set of days may lack.
    unlisted: Mutex<BTreeSet<Date>>,
    /// The totals of writes whose outcome is unknown, in the order of the instants from which none of them can run any more.
    doubtful: Mutex<VecDeque<(Instant, TotalsKey)>>,
}

impl ProcessLedger {
    /// An empty ledger.
    pub fn new(
        link: Arc<RedisLink>,
        producer: Arc<Producer>,
        clock: Arc<StoreClock>,
    ) -> ProcessLedger {
        ProcessLedger {
            link,
            producer,
            clock,
            totals: Shards::default(),
            unlisted: Mutex::default(),
            doubtful: Mutex::default(),
        }
    }

    fn record<R>(
        &self,
        (key, tier): (KeyId, &TierName),
        (day, endpoint): (Day, &Arc<str>),
        count: impl FnOnce(&mut Totals, &mut Ceiling),
        note: impl FnOnce(&dyn Fn() -> TotalsRow) -> R,
    ) -> R {
        let place = (key, day.date, tier.clone());
        let mut shard = self.totals.of(key);
        note(&shard.count(place, day, &self.producer, endpoint, count))
    }

    /// Records a charged request. Returns the result of `note`, which gets what makes the row for the journal. `note` must not wait,
    /// because rows of one producer are passed to it in the order of their values.
    pub fn charged<R>(&self, charge: &Charge, note: impl FnOnce(&dyn Fn() -> TotalsRow) -> R) -> R {
        let (record, date) = (&charge.key.record, charge.day.date);
        let judged = Ceiling::of(record, date, charge.limit);
        self.record(
            (record.id, &record.tier),
            (charge.day, &charge.endpoint),
            |totals, ceiling| {
                totals.requests += 1;
                totals.charged += u64::from(charge.cost);
                *ceiling = ceiling.max(judged);
            },
            note,
        )
    }

    /// Reverses [`ProcessLedger::charged`] as soon as the journal reports that another of its processes has used up the share. (To refund
    /// it would list each refused retry as a request.)
    pub fn withdrawn(&self, charge: &Charge) {
        let record = &charge.key.record;
        let withdraw = |totals: &mut Totals, _: &mut Ceiling| {
            totals.requests = totals.requests.saturating_sub(1);
            totals.charged = totals.charged.saturating_sub(charge.cost.into());
        };
        let place = (charge.day, &charge.endpoint);
        self.record((record.id, &record.tier), place, withdraw, |_| ());
    }

    /// Records refunded units.
    pub fn refunded(&self, receipt: &Receipt) {
        let place = (receipt.day, &receipt.endpoint);
        let refund = |totals: &mut Totals, _: &mut Ceiling| {
            totals.refunded += u64::from(receipt.units);
        };
        self.record((receipt.key, &receipt.tier), place, refund, |_| ());
    }

    /// Records a refused request.
    pub fn refused(&self, key: &KeyEntry, day: Day, endpoint: &Arc<str>, refusal: RefusalReason) {
        let key = (key.record.id, &key.record.tier);
        let refuse = |totals: &mut Totals, _: &mut Ceiling| totals.refuse(refusal, 1);
        self.record(key, (day, endpoint), refuse, |_| ());
    }

    /// Marks everything to be written again: the store may have lost it.
    pub async fn repeat_all(&self) {
        self.totals.walk(ProducerTotals::repeat_all).await;
    }

    /// Whether everything is stored, and no late write can lower it any more.
    pub fn is_written(&self) -> bool {
        let mut parts = self.totals.parts();
        parts.all(|shard| shard.lock().changed_count() == 0)
            && self.unlisted.lock().is_empty()
            && self.doubtful.lock().is_empty()
    }

    /// Drops stored totals of days that are over.
    pub async fn sweep(&self, now_second: i64) {
        self.totals.walk(|shard| shard.sweep(now_second)).await;
    }

    /// Writes the changed totals. Those that could not be written remain marked as changed; those of a master of a cluster that
    /// cannot be reached wait for it.
    ///
    /// # Errors
    /// The first of all; everything else is written nevertheless.
    pub async fn write(&self) -> Result<(), StoreError> {
        self.repeat_doubtful(Instant::now());
        let mut pages = Vec::with_capacity(WRITE_BATCH);
        let mut written = Ok(());
        let is_whole = self.link.is_whole();
        let is_served = |(key, date, _): &TotalsKey| {
            is_whole || self.link.serves(&self.link.names.ledger(*key, *date))
        };
        for part in self.totals.parts() {
            // Later changes are for the next turn.
            let mut left = part.lock().changed_count();
            while left > 0 && self.link.is_up() {
                let count = left.min(WRITE_BATCH - pages.len());
                part.lock()
                    .take_pages(count, &self.producer, is_served, &mut pages);
                left -= count;
                if pages.len() == WRITE_BATCH {
                    written = written.and(self.write_batch(&pages).await);
                    pages.clear();
                }
            }
        }
        Ok(written.and(self.write_batch(&pages).await)?)
    }

    /// Writes pages of open days, each by itself, and the dates of all into the set of days: a closed day has counts. Pages of days that
    /// only a clock which leapt shows as closed remain to be written.
    async fn write_batch(&self, pages: &[LedgerPage]) -> Result<(), LinkError> {
        let dates = self.dates_to_list(pages);
        let (closed, open): (Vec<_>, Vec<_>) =
            pages.iter().partition(|page| self.is_closed(page.day));
        if !closed.is_empty() {
            let is_trusted = self.is_clock_trusted().await;
            for page in closed {
                self.end_writing(page, is_trusted && self.is_closed(page.day));
            }
        }
        let mut pipeline = Pipeline::new();
        if !dates.is_empty() {
            pipeline.add_command(days::listing(&self.link.names, &dates));
        }
        for page in &open {
            let (key, date, _) = page.place;
            let write = pipeline.cmd("HSET").arg(self.link.names.ledger(key, date));
            for (_, field, totals) in &page.fields {
                write.arg((field, totals));
            }
        }
        let mut results = self.link.ask_each(&pipeline).await.into_iter();
        let mut written = Ok(());
        if !dates.is_empty()
            && let Some(listed) = results.next()
        {
            if listed.is_ok() {
                self.unlisted.lock().retain(|date| !dates.contains(date));
            }
            written = listed.map(drop);
        }
        for (page, result) in open.into_iter().zip(results) {
            self.end_writing(page, result.is_ok());
            if let Err(LinkError::Lost(_)) = &result {
                let over = Instant::now() + LATE_CALL_LASTS;
                self.doubtful.lock().push_back((over, page.place.clone()));
            }
            written = written.and(result.map(drop));
        }
        written
    }

    /// Marks the totals as changed whose write had no reply and cannot run any more: if it ran after a later one, it lowered them.
    fn repeat_doubtful(&self, now: Instant) {
        while let Some((_, place)) = self.doubtful.lock().pop_front_if(|(over, _)| *over <= now) {
            self.totals.of(place.0).repeat(&place);
        }
    }

    /// The dates to be added to the set of days: those of these pages, and those that could not be added before. None while
    /// that set cannot be reached.
    fn dates_to_list(&self, pages: &[LedgerPage]) -> Vec<Date> {
        let mut unlisted = self.unlisted.lock();
        unlisted.extend(pages.iter().map(|page| page.place.1));
        match self.link.serves(&self.link.names.days()) {
            true => unlisted.iter().copied().collect(),
            false => Vec::new(),
        }
    }

    fn end_writing(&self, page: &LedgerPage, written: bool) {
        self.totals.of(page.place.0).end_writing(page, written);
    }

    /// The days of keys to be written to the journal, read part by part.
    pub fn days_to_note(&self) -> impl Iterator<Item = KeyAndDate> {
        self.totals.parts().flat_map(|shard| shard.lock().to_note())
    }

    /// Passes the rows of a key's day that changed, or were stored in Redis, since the last call; none if there are none.
    /// `note` must not wait, because rows of one producer are passed to it in the order of their values.
    pub fn note_changes_with<R>(
        &self,
        day: KeyAndDate,
        note: impl FnOnce(Vec<TotalsRow>) -> R,
    ) -> (Vec<TierName>, R) {
        let mut shard = self.totals.of(day.0);
        let (tiers, rows) = shard.take_rows(day, &self.producer);
        (tiers, note(rows))
    }

    /// Marks these tiers of a day as changed again: they could not be written.
    pub fn changed_still(&self, day: KeyAndDate, tiers: &[TierName]) {
        self.totals.of(day.0).note_again(day, tiers);
    }

    /// Sends Redis the totals of another producer.
    pub async fn merge(&self, row: &TotalsRow) -> Result<(), StoreError> {
        if self.is_closed(row.day) {
            if !self.is_clock_trusted().await {
                let why = "the clock leapt: a day of the ledger that looks closed may be open";
                return Err(StoreError::Unavailable(why.into()));
            }
            if self.is_closed(row.day) {
                return Ok(());
            }
        }
        let value = cells::written(&row.totals, row.ceiling, row.tier.as_ref());
        let field = format!("{}|{}", row.producer, row.endpoint);
        let name = self.link.names.ledger(row.key, row.day.date);
        let deadline = self.link.deadline();
        self.link
            .run::<()>(&MERGE_TOTALS, &[&name], &(field, value), deadline)
            .await?;
        Ok(())
    }

    /// Adds dates to the set of days; those that cannot be added now are added with the next writes.
    pub async fn list(&self, dates: &BTreeSet<Date>) {
        let list = days::listing(&self.link.names, dates);
        if !dates.is_empty() && self.link.ask(&list).await.is_err() {
            self.unlisted.lock().extend(dates);
        }
    }

    /// Asks Redis for its time, and returns whether the clock can be relied on now: what is not written because of it is lost.
    async fn is_clock_trusted(&self) -> bool {
        let asked = self.clock.ask();
        let Ok(theirs) = self.link.time().await else {
            return false;
        };
        self.clock.learn(asked, theirs);
        self.clock.look();
        self.clock.watch.leap().is_none()
    }

    fn is_closed(&self, day: Day) -> bool {
        let now = self.clock.now().as_second();
        self.link.names.keeping.is_closed(day.end, now)
    }
}

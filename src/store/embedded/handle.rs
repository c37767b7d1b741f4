//! The store as its callers have it: their calls are given to its threads, or read one at a time on a connection for reading; an
//! export has one of its own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use jiff::civil::Date;
use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot, watch};

use super::feed;
use super::inbox::WaitingCall;
use super::keys::{self, ChangeResult, MARK};
use super::writer::Desk;
use super::{closing, events, export, import, retention, schema, status, usage};
use crate::clock::timer::Timers;
use crate::policy::api_key::KeyId;
use crate::policy::audit::{self, Author, Wanted};
use crate::policy::calendar::Day;
use crate::policy::key_record::KeyRecord;
use crate::policy::store_settings::Durability;
use crate::policy::threshold_event::{Event, ThresholdEvent};
use crate::store::chain::{ChainItem, Chained};
use crate::store::export::{Exported, ImportCounts, ImportMode};
use crate::store::held_file::HeldConnection;
use crate::store::sqlite::unsigned;
use crate::store::status::{Replicas, StoreStatus};
use crate::store::{
    ChangeError, ChangeMark, Charge, Claim, Decision, Delivery, Forgotten, Freshness, Health,
    Imported, KeyEntry, KeyTable, NodeName, Proof, Receipt, RefusalReason, Store, StoreError,
    Unconfirmed, WithoutStore, on_thread,
};

/// The pause before each batch of an import: enough for a few attempts of a process that waits for the database's lock.
const IMPORT_PAUSE: Duration = Duration::from_millis(2);

/// A store in an SQLite file. If it is dropped without [`Store::close`], it writes its queue but does not sign off.
pub struct EmbeddedStore {
    pub(super) desk: Arc<Desk>,
    pub(super) durability: Durability,
    pub(super) timeout: Duration,
    pub(super) timers: Timers,
    /// The connection for reads outside the writer's queue: ledger, records, progress of gateways.
    pub(super) reader: Arc<Mutex<HeldConnection>>,
    /// Closed when the writer has ended.
    pub(super) writing: watch::Receiver<()>,
}

/// A position in the order of changes, for callers.
fn mark(place: i64) -> ChangeMark {
    ChangeMark(u128::from(unsigned(place)))
}

impl EmbeddedStore {
    /// Runs `work` on the writer's connection, unless the caller has left before its turn.
    async fn on_writer<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection, &Desk) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (caller, answer) = oneshot::channel();
        let desk = self.desk.clone();
        self.desk.inbox.put_job(Box::new(move |connection| {
            if !caller.is_closed() {
                let done = work(connection, &desk);
                let _ = caller.send(done.map_err(|error| schema::failure(&desk.path, &error)));
            }
        }))?;
        self.answered(answer).await
    }

    /// Runs `work` on the reading connection.
    async fn on_reader<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reader, desk) = (self.reader.clone(), self.desk.clone());
        let (caller, answer) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            let mut connection = reader.lock();
            if !caller.is_closed() {
                let done = work(&mut connection);
                let _ = caller.send(done.map_err(|error| schema::failure(&desk.path, &error)));
            }
        });
        self.answered(answer).await
    }

    /// Reads the content of one instant on a connection of its own, while the writer continues.
    async fn on_instant(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<()> + Send + 'static,
    ) -> Result<(), StoreError> {
        let (path, durability) = (self.desk.path.clone(), self.durability);
        let work = move || {
            let connection = schema::connect(&path, durability)?;
            let read = || work(&*connection.unchecked_transaction()?);
            read().map_err(|error| schema::failure(&path, &error))
        };
        on_thread("reading the store", work).await?
    }

    /// Fails if the file cannot be used, or if the writer is known not to answer and others wait for it already.
    fn require(&self) -> Result<(), StoreError> {
        self.desk.require_file()?;
        match self.desk.failed.load().as_deref() {
            Some(StoreError::Unavailable(reason)) if self.desk.inbox.has_waiting() => {
                Err(StoreError::Unavailable(reason.clone()))
            }
            Some(_) | None => Ok(()),
        }
    }

    async fn answered<T>(
        &self,
        answer: oneshot::Receiver<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let deadline = tokio::time::Instant::now() + self.timeout;
        match self.timers.wait(deadline, answer).await {
            Some(Ok(answer)) => answer,
            Some(Err(_)) => Err(StoreError::Unavailable("the store was closed".into())),
            None => Err(schema::unanswered(&self.desk.path, self.timeout)),
        }
    }

    /// The units used, if a count of the last second leaves too few units for the charge and the caller's record is not known to
    /// be old.
    fn known_exhausted(&self, charge: &Charge) -> Option<u64> {
        let record = &charge.key.record;
        let used = self.desk.learnt.used(record.id, charge.day)?;
        let full = used.saturating_add(charge.cost.into()) > charge.limit;
        let known = self.desk.keys.table.get(record.id)?;
        (full && known.record.version <= record.version).then_some(used)
    }

    async fn change(
        &self,
        record: KeyRecord,
        make: fn(&Connection, KeyRecord, Timestamp) -> rusqlite::Result<ChangeResult>,
    ) -> Result<(KeyRecord, ChangeMark), ChangeError> {
        let changed = self
            .on_writer(move |connection, desk| {
                let changed = make(connection, record, desk.clock.now())?;
                // The caller finds the change in its own table at once; if this fails, the follower applies it.
                let _ = desk.keys.catch_up(connection);
                Ok(changed)
            })
            .await?;
        changed.map(|(record, place)| (record, mark(place)))
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.desk.stop.signal();
        self.desk.inbox.close();
    }
}

#[async_trait]
impl Chained for EmbeddedStore {
    async fn read_chain(
        &self,
        days: Option<(Date, Date)>,
        pieces: mpsc::Sender<ChainItem>,
    ) -> Result<(), StoreError> {
        self.on_instant(move |instant| closing::read(instant, days, &pieces))
            .await
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    fn chained(&self) -> Option<&dyn Chained> {
        Some(self)
    }

    fn keys(&self) -> &KeyTable {
        &self.desk.keys.table
    }

    fn freshness(&self) -> Freshness {
        Freshness {
            loaded: true,
            age: self.desk.current.age(),
            usable: true,
        }
    }

    fn now(&self) -> Timestamp {
        self.desk.clock.now()
    }

    async fn charge(&self, charge: Charge) -> Result<Decision, StoreError> {
        self.require()?;
        let now = self.desk.clock.now();
        if !charge.day.contains(now) {
            return Ok(Decision::OtherDay { now });
        }
        if let Some(used) = self.known_exhausted(&charge) {
            return Ok(Decision::Exhausted { used });
        }
        let (caller, answer) = oneshot::channel();
        self.desk
            .inbox
            .put(WaitingCall::Charge(charge, None, caller))?;
        let unclaimed = self.answered(answer).await?;
        Ok(unclaimed.accept())
    }

    async fn refund(&self, receipt: Receipt) -> Option<u64> {
        let (caller, answer) = oneshot::channel();
        self.desk.inbox.put_refund(receipt, Some(caller));
        tokio::time::timeout(self.timeout, answer).await.ok()?.ok()
    }

    fn give_back(&self, receipt: Receipt) {
        self.desk.inbox.put_refund(receipt, None);
    }

    async fn used(&self, key: KeyId, day: Day, _limit: u64) -> Result<u64, StoreError> {
        self.require()?;
        if let Some(used) = self.desk.learnt.used(key, day) {
            return Ok(used);
        }
        let (caller, answer) = oneshot::channel();
        self.desk
            .inbox
            .put(WaitingCall::Used(key, day, None, caller))?;
        self.answered(answer).await
    }

    fn used_as_known(&self, key: KeyId, day: Day, _limit: u64) -> Option<u64> {
        self.desk.learnt.used(key, day)
    }

    fn refused(&self, key: &KeyEntry, day: Day, endpoint: &Arc<str>, refusal: RefusalReason) {
        self.desk
            .inbox
            .put_refusal(&key.record, day, endpoint, refusal);
    }

    fn health(&self) -> Health {
        let trouble = self.desk.file_trouble();
        let failed = self.desk.failed.load_full();
        Health {
            up: trouble.is_none() && failed.is_none(),
            partly_up: false,
            keys: self.freshness(),
            without_store: WithoutStore::Denies,
            pending_units: 0,
            silent_gateways: 0,
            clock_leap: self.desk.clock_watch.leap(),
            file_trouble: trouble.map(|trouble| trouble.text.clone()),
            trouble: failed.map(|error| error.to_string()),
            keys_trouble: None,
            register_trouble: None,
        }
    }

    /// Always 0: the database is the authority and loses nothing.
    fn losses(&self) -> u64 {
        0
    }

    async fn claim(
        &self,
        threshold_event: &ThresholdEvent,
        node: &NodeName,
        delivery: Delivery,
    ) -> Result<Claim, StoreError> {
        let (threshold_event, node) = (threshold_event.clone(), node.clone());
        self.on_writer(move |connection, desk| {
            let settled = desk.clock_watch.settled_at();
            events::claim(connection, &threshold_event, &node, delivery, settled)
        })
        .await
    }

    async fn undelivered(
        &self,
        courier: &NodeName,
        lease: Duration,
        skipped: u64,
    ) -> Result<Option<Vec<Event>>, StoreError> {
        let courier = courier.clone();
        self.on_writer(move |connection, desk| {
            events::undelivered(connection, &courier, lease, skipped, desk.clock.now())
        })
        .await
    }

    async fn delivered(&self, event: &Event) -> Result<(), StoreError> {
        let event = event.clone();
        self.on_writer(move |connection, _| events::delivered(connection, &event))
            .await
    }

    async fn resign(&self, courier: &NodeName) -> Result<(), StoreError> {
        let courier = courier.clone();
        self.on_writer(move |connection, _| events::resign(connection, &courier))
            .await
    }

    async fn close(&self, deadline: Duration) {
        self.desk.goodbye.store(true, Ordering::Release);
        self.desk.stop.signal();
        self.desk.inbox.close();
        let mut writing = self.writing.clone();
        // The channel has no messages: it closes when the writer has ended.
        let left = tokio::time::timeout(deadline, writing.changed()).await;
        let (refunds, units) = self.desk.inbox.pending_refunds();
        if refunds > 0 {
            tracing::error!(
                path = %self.desk.path.display(),
                refunds,
                units,
                "the store was closed before these refunds could be written: unless they still are, their units stay charged"
            );
        } else if left.is_err() {
            tracing::warn!("the store was still writing at the deadline of its close");
        }
    }

    async fn server_time(&self) -> Result<Timestamp, StoreError> {
        Ok(self.desk.clock.now())
    }

    async fn create_key(&self, record: KeyRecord) -> Result<(KeyRecord, ChangeMark), ChangeError> {
        self.change(record, keys::create).await
    }

    async fn update_key(&self, record: KeyRecord) -> Result<(KeyRecord, ChangeMark), ChangeError> {
        self.change(record, keys::update).await
    }

    async fn key(&self, id: KeyId) -> Result<Option<KeyRecord>, StoreError> {
        self.on_reader(move |connection| keys::one(connection, id))
            .await
    }

    async fn import_keys(
        &self,
        records: Vec<KeyRecord>,
    ) -> Result<(Vec<Imported>, Option<ChangeMark>), ChangeError> {
        // The lock is free during the pause: waiting gateways in other processes try it several times.
        tokio::time::sleep(IMPORT_PAUSE).await;
        let imported = self
            .on_writer(move |connection, desk| keys::import(connection, records, desk.clock.now()));
        let (outcomes, last) = imported.await.map_err(|error| match error {
            // Its transaction was rolled back. If only its commit failed, importing again finds the keys.
            failed @ StoreError::Failed(_) => ChangeError::Unwritten(failed),
            unknown => unknown.into(),
        })?;
        Ok((outcomes, last.map(mark)))
    }

    async fn audit(&self, wanted: Wanted) -> Result<Vec<audit::Entry>, StoreError> {
        let (mut entries, mut reached) = (Vec::new(), i64::MIN);
        loop {
            let (after, key) = (reached, wanted.key);
            let page = self
                .on_reader(move |connection| keys::trail(connection, after, key))
                .await?;
            let Some((last, _)) = page.last() else {
                // Imported entries have no position among the changes made here.
                entries.sort_by_key(audit::Entry::place);
                return Ok(entries);
            };
            reached = *last;
            let page = page.into_iter().map(|(_, entry)| entry);
            entries.extend(page.filter(|entry| wanted.holds(entry)));
        }
    }

    async fn walk_keys(
        &self,
        take: &mut (dyn FnMut(Vec<KeyRecord>) + Send),
    ) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let page = self
                .on_reader(move |connection| keys::page(connection, after))
                .await?;
            after = page.last().map(|record| record.id);
            if after.is_none() {
                return Ok(());
            }
            take(page);
        }
    }

    async fn search_keys(&self, text: &str) -> Result<Vec<KeyRecord>, StoreError> {
        let text = text.to_lowercase();
        let ids = self
            .on_reader(move |connection| keys::with_text(connection, &text))
            .await?;
        let mut found = Vec::new();
        for ids in ids.chunks(keys::READ_BATCH) {
            found.extend(self.records_of(ids).await?);
        }
        Ok(found)
    }

    async fn ledger_keys(&self, from: Date, to: Date) -> Result<Vec<KeyId>, StoreError> {
        let read = move |connection: &mut Connection| usage::keys_and_days(connection, from, to);
        let (mut keys, days) = self.on_reader(read).await?;
        let mut others = BTreeSet::new();
        for day in days {
            let mut reached = String::new();
            loop {
                let (day, after) = (day.clone(), reached);
                let read = move |connection: &mut Connection| {
                    export::keys_of_day(connection, &day, &after)
                };
                let page = self.on_reader(read).await?;
                let Some(last) = page.last() else { break };
                reached = last.clone();
                let ids = page.iter().filter_map(|id| id.parse::<KeyId>().ok());
                others.extend(ids.filter(|id| keys.binary_search(id).is_err()));
            }
        }
        keys.extend(others);
        keys.sort_unstable();
        Ok(keys)
    }

    async fn records_of(&self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError> {
        let ids = ids.to_vec();
        self.on_reader(move |connection| keys::some(connection, &ids))
            .await
    }

    async fn unconfirmed(&self, mark: &ChangeMark) -> Result<Vec<Unconfirmed>, StoreError> {
        let place = i64::try_from(mark.0).unwrap_or(i64::MAX);
        self.on_reader(move |connection| feed::lagging(connection, place))
            .await
    }

    async fn last_change(&self) -> Result<ChangeMark, StoreError> {
        self.on_reader(|connection| connection.query_row(MARK, [], |row| row.get(0)))
            .await
            .map(mark)
    }

    async fn forget_gateway(&self, _: &NodeName, _: &Author) -> Result<Forgotten, StoreError> {
        Ok(Forgotten::Unknown)
    }

    async fn await_replicas(&self, _: Duration) -> Result<Replicas, StoreError> {
        Ok(Replicas::default())
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        let (path, durability) = (self.desk.path.clone(), self.durability);
        let now = self.desk.clock.now();
        self.on_reader(move |connection| status::read(connection, path, durability, now))
            .await
    }

    async fn prove_of(
        &self,
        from: Date,
        to: Date,
        keys: &[KeyId],
    ) -> Result<Vec<Proof>, StoreError> {
        let keys = keys.to_vec();
        self.on_reader(move |connection| usage::prove(connection, from, to, &keys))
            .await
    }

    async fn last_dropped(&self) -> Result<Option<Date>, StoreError> {
        self.on_reader(|connection| retention::last_dropped(connection))
            .await
    }

    async fn late_days(
        &self,
        from: Date,
        to: Date,
        keys: &[KeyId],
    ) -> Result<Vec<(Date, KeyId)>, StoreError> {
        let read = move |connection: &mut Connection| usage::late_days(connection, from, to);
        let mut late = self.on_reader(read).await?;
        late.retain(|(_, key)| keys.binary_search(key).is_ok());
        Ok(late)
    }

    async fn export(&self, exported: mpsc::Sender<Exported>) -> Result<(), StoreError> {
        self.on_instant(move |instant| export::export(instant, &exported))
            .await
    }

    async fn import_exported(
        &self,
        items: Vec<Exported>,
        mode: ImportMode,
    ) -> Result<ImportCounts, StoreError> {
        // As for an import, the lock is free during the pause.
        tokio::time::sleep(IMPORT_PAUSE).await;
        self.on_writer(move |connection, desk| {
            let now = desk.clock.now().as_second();
            import::import(connection, (&desk.path, now), &items, mode)
        })
        .await?
    }
}

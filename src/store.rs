//! The storage of keys and counts: one trait, two stores.
//!
//! A store decides each charge atomically at the counter, so any number of gateways share one quota. It owns the key table,
//! the day counts, and the ledger that records the endpoint of each unit. It does not know tiers, endpoints or calendars: the
//! caller supplies limits, costs and the boundaries of the day.
//!
//! Invariants, kept by every store and shown by the shared suite in `tests/store`:
//! - the units granted minus those refunded for a key and day never exceed the largest limit a charge was made with;
//! - a charge is all or nothing, and one whose reply is lost is not counted twice;
//! - a refund is counted at most once, on the day of its charge;
//! - a charge whose key record is older than the store's is never granted;
//! - a change of a key and its entry in the audit trail are written together or not at all.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use jiff::civil::Date;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::policy::api_key::KeyId;
use crate::policy::audit::{self, Author, Wanted};
use crate::policy::calendar::Day;
use crate::policy::clock_trust::Leap;
use crate::policy::key_record::{KeyRecord, TierName};
use crate::policy::threshold_event::{Event, ThresholdEvent};
use crate::policy::words::words;

pub mod backup;
pub mod chain;
mod clock_watch;
mod current;
mod disk;
pub mod embedded;
mod error;
pub mod export;
mod held_file;
pub mod key_table;
pub mod ledger;
mod ledger_row;
mod numbered_names;
pub mod redis;
pub mod shards;
mod sqlite;
pub mod status;

pub use crate::policy::store_settings::Keeping;
pub use error::{ChangeError, StoreError};
use export::{Exported, ImportCounts, ImportMode};
pub use key_table::{KeyEntry, KeyTable};
pub use ledger::{Adjustment, DayUsage, Proof, RefusalReason, Totals};
use status::{Replicas, StoreStatus};

/// The limit of a charge that only counts.
pub const UNBOUNDED: u64 = u64::MAX;

/// A request for units.
#[derive(Debug, Clone)]
pub struct Charge {
    /// The key record that the caller checked; its version must not be older than the store's.
    pub key: Arc<KeyEntry>,
    /// The current quota day by the caller's clock.
    pub day: Day,
    /// The units the key may use on that day: tier plus grants. [`UNBOUNDED`] is counted and never refused for lack of units, even
    /// without the store and whatever the outage policy; only if the count could not be journaled.
    pub limit: u64,
    /// The requested units, at least 1.
    pub cost: u32,
    /// The endpoint of the request, by its name in the ledger.
    pub endpoint: Arc<str>,
}

/// The outcome of a charge.
#[derive(Debug)]
pub enum Decision {
    /// The units are granted; `used` includes them.
    Granted {
        /// Units used on the day, including these, as reported to the client; different for every grant of a day unless units are
        /// refunded. Without Redis, all that is not left of this gateway's share.
        used: u64,
        /// Units that are known to be used on the day, including these; the same number unless Redis is unavailable.
        counted: u64,
        /// Proof of the charge, to be refunded or dropped.
        receipt: Receipt,
    },
    /// Too few units are left on the day; none was charged.
    Exhausted {
        /// Units used on the day.
        used: u64,
    },
    /// The store has a newer record, which is already in [`Store::keys`]. Check the key again and repeat the charge.
    KeyChanged,
    /// The store's clock is outside the caller's day. Repeat the charge with the day of `now`.
    OtherDay {
        /// The store's time.
        now: Timestamp,
    },
}

/// Proof that units were charged. [`Store::refund`] or [`Store::give_back`] consumes it; it is dropped once the request is
/// served. Not `Clone`, so that nothing is refunded twice.
#[derive(Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The key that was charged.
    pub key: KeyId,
    /// The tier of the key at the charge.
    pub tier: TierName,
    /// The day it was charged on.
    pub day: Day,
    /// The endpoint of the request.
    pub endpoint: Arc<str>,
    /// The units.
    pub units: u32,
}

/// The position of a key table change in the store's order of changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangeMark(pub u128);

/// The name of a gateway process, unique by process start.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NodeName(pub String);

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A gateway that has not confirmed a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unconfirmed {
    /// The gateway's name.
    pub name: NodeName,
    /// The time of the last heartbeat of a gateway that stopped without signing off; `None` of a live one that has not applied the
    /// change.
    pub silent_since: Option<Timestamp>,
}

/// The result of [`Store::forget_gateway`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgotten {
    /// The gateway is removed from the register.
    Struck {
        /// The time of its last heartbeat.
        heard: Timestamp,
    },
    /// The gateway sent a heartbeat just now, so it remains.
    Lives,
    /// No gateway of this name is missing its sign-off.
    Unknown,
}

/// The purpose of an open store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// A gateway: it follows the changes of the key table and sends heartbeats.
    Gateway(NodeName),
    /// A command: it reads and writes the key table, then exits.
    Command,
}

/// The state of a store, for `/readyz` and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Whether the store is expected to decide a charge made now, of whichever key.
    pub up: bool,
    /// Whether the store, while [`Health::up`] is false, is expected to decide the charges of some keys: the other masters of a
    /// cluster are away.
    pub partly_up: bool,
    /// The freshness of the key table's replica.
    pub keys: Freshness,
    /// How charges are decided while [`Health::up`] is false.
    pub without_store: WithoutStore,
    /// Units served without the store and not yet sent to it.
    pub pending_units: u64,
    /// Other gateways that stopped without signing off, by this one's last reading; see [`Store::await_applied`].
    pub silent_gateways: u64,
    /// The last leap of the clock that decides the day, until the clock is trusted again.
    pub clock_leap: Option<Leap>,
    /// Why [`Health::up`] is false; for operators.
    pub trouble: Option<String>,
    /// Why a file of the store cannot be used, and the remedy; for operators.
    pub file_trouble: Option<String>,
    /// Why the key table does not follow the store until an operator acts or while it cannot be used, and the remedy.
    pub keys_trouble: Option<String>,
    /// The same for the register of gateways.
    pub register_trouble: Option<String>,
}

/// How current the replica of the key table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freshness {
    /// Whether it is completely loaded.
    pub loaded: bool,
    /// The time since it was known to be current; [`Duration::MAX`] if it never was.
    pub age: Duration,
    /// Whether it is recent enough to authenticate keys; always true of a store that is itself the authority.
    pub usable: bool,
}

impl Freshness {
    /// The time since it was known to be current, or `None` if it never was.
    pub fn known_age(&self) -> Option<Duration> {
        (self.age < Duration::MAX).then_some(self.age)
    }
}

words! {
    /// The behaviour of a gateway while its store is unavailable.
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum WithoutStore {
        /// Serves requests and journals their units.
        Serves = "serves",
        /// Refuses, because it is so configured.
        Denies = "denies",
        /// Refuses, because its journal cannot be written.
        JournalFailed = "journal_failed",
        /// Refuses, because the key table is not loaded or too old.
        NoKeys = "no_keys",
    }
}

/// The outcome for one key of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Imported {
    /// It was added.
    Added,
    /// The key with this id already has the same secret: nothing was written.
    Held(KeyId),
    /// Another key has its id: nothing was written.
    IdTaken,
    /// Another command has claimed the secret for this id and not yet written the key, or died before it could: nothing was
    /// written. The key can be added under that id at once, and under another after half a minute.
    Claimed(KeyId),
}

/// The content of a store that a command is about to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreContent {
    /// The store finds all its keys.
    Whole,
    /// The same, but the servers evict any name when their memory is full, and have evicted this number, their other users' included.
    Evicted(u64),
    /// A gateway is writing back the keys that the store has lost.
    Restoring,
    /// The store was written, by commands only: no gateway has run on it, or none since it was emptied.
    Unattended,
    /// The store has never been written, or was emptied.
    Missing,
}

/// Whether an event is to be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The event is kept until [`Store::delivered`], for a week at most.
    Wanted,
    /// The event is only logged here.
    Unwanted,
}

/// The outcome of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The claim is this node's now.
    Made,
    /// The claim has been this node's since an earlier call, whose reply may have been lost.
    Repeated,
    /// The claim is this node's, but the event is not kept: [`EVENTS_MAX`] events await delivery.
    Undeliverable,
    /// Another node has the claim.
    Held,
}

/// The most events that await delivery.
pub const EVENTS_MAX: u64 = 10_000;
/// The most events that [`Store::undelivered`] returns.
pub const EVENTS_READ_MAX: u64 = 1_000;
/// How long claims are kept after their day.
pub const CLAIMS_KEPT_SECONDS: i64 = 2 * 86_400;
/// How long undelivered events are kept.
pub const EVENTS_KEPT_SECONDS: i64 = 7 * 86_400;

/// The longest lease of the node that delivers events. A lease with more left was taken by a clock that was ahead and has been set
/// back since.
pub const COURIER_LEASE_MAX: Duration = Duration::from_secs(120);

/// How often to check whether gateways have applied a change.
const AWAIT_EVERY: Duration = Duration::from_millis(10);

/// The most keys of which a serving gateway reads a day at once: in Redis 128 small hashes, some 0.2 ms of its time.
pub const DAY_OF_KEYS_MAX: usize = 64;
/// The most pairs of key and day that a command reads at once: some 100,000 rows, which takes far less than the store's timeout.
const KEY_DAYS_AT_ONCE_MAX: usize = 16_384;
/// The most keys that a command reads at once.
const KEYS_AT_ONCE_MAX: usize = 4_096;

/// The number of keys that a command reads at once with their ledger from `from` through `to`.
pub fn keys_at_once(from: Date, to: Date) -> usize {
    let days = (to - from).get_days().max(0) as usize + 1;
    (KEY_DAYS_AT_ONCE_MAX / days).clamp(1, KEYS_AT_ONCE_MAX)
}

/// A store of keys, counts and ledger.
///
/// The first part is for gateways and is called for requests. Every future of it ends within the store's timeout; a charge that the store
/// did not decide may wait for the disk of the journal for two seconds more. The second part is for commands. Implementations are used
/// from any number of tasks at once.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The replica of the key table; [`Store::freshness`] gives its age. Never waits.
    fn keys(&self) -> &KeyTable;

    /// How current that replica is. Called for every request: takes no lock.
    fn freshness(&self) -> Freshness;

    /// The store's time, estimated without a call: the local clock corrected by the store's last reply.
    fn now(&self) -> Timestamp;

    /// Decides one charge atomically. One round trip at most; none for a key that is known to be exhausted. Dropping the
    /// future loses no units: any that were granted are refunded.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] without a connection (at once) or after the timeout; [`StoreError::Failed`] if the store refuses, or
    /// its file cannot be used; [`StoreError::OtherCalendar`] where the day is stored with other boundaries.
    async fn charge(&self, charge: Charge) -> Result<Decision, StoreError>;

    /// Refunds the units of a receipt on the day of their charge. Returns the units used afterwards, if they are known. The refund
    /// is never lost while this process lives, and is stored within a second of the store being reachable. Does not wait longer
    /// than the store's timeout.
    async fn refund(&self, receipt: Receipt) -> Option<u64>;

    /// Refunds a receipt like [`Store::refund`], for a dropped request. Never waits.
    fn give_back(&self, receipt: Receipt);

    /// Units used by a key on a day, for a response that costs no units: a count from the last second if there is one, else one
    /// read that concurrent callers share. While the store is unreachable, `limit` minus the units that may still be served without it.
    ///
    /// # Errors
    /// As [`Store::charge`].
    async fn used(&self, key: KeyId, day: Day, limit: u64) -> Result<u64, StoreError>;

    /// As [`Store::used`], without asking the store: `None` if nothing is known here.
    fn used_as_known(&self, key: KeyId, day: Day, limit: u64) -> Option<u64>;

    /// Counts a refused request in the ledger, within a second. Never waits. In the embedded store at most
    /// 100,000 combinations of key, day, tier and endpoint wait to be written; it logs how many requests it left out beyond that.
    fn refused(&self, key: &KeyEntry, day: Day, endpoint: &Arc<str>, refusal: RefusalReason);

    /// The state of the store, without a call to it.
    fn health(&self) -> Health;

    /// How often the store lost writes, or may have: a caller whose writes must survive repeats them when this rises.
    fn losses(&self) -> u64;

    /// Claims the right to report that a key reached a share of its limit; one node gets it. The same atomic step stores the
    /// event if it is to be delivered. A repeated call changes nothing. Not for the request path: waits.
    async fn claim(
        &self,
        threshold_event: &ThresholdEvent,
        node: &NodeName,
        delivery: Delivery,
    ) -> Result<Claim, StoreError>;

    /// The oldest events that await delivery after those `skipped`, [`EVENTS_READ_MAX`] at most, or `None` if another node than `courier`
    /// delivers them. One node at a time does, until `lease` has passed without a call from it.
    async fn undelivered(
        &self,
        courier: &NodeName,
        lease: Duration,
        skipped: u64,
    ) -> Result<Option<Vec<Event>>, StoreError>;

    /// Deletes a delivered event.
    async fn delivered(&self, event: &Event) -> Result<(), StoreError>;

    /// Ends the delivery of events by `courier`, if it is the one, so that another node can begin at once.
    async fn resign(&self, courier: &NodeName) -> Result<(), StoreError>;

    /// Writes pending refunds and ledger entries, for at most `deadline`, and signs the gateway off.
    async fn close(&self, deadline: Duration);

    /// Checks that the store counts by this process's time zone: a command may have opened a Redis Cluster without having read that.
    async fn check_zone(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Whether the store has its content: a Redis without it looks like one without keys.
    async fn content(&self) -> Result<StoreContent, StoreError> {
        Ok(StoreContent::Whole)
    }

    /// The store's time, by a call to it.
    async fn server_time(&self) -> Result<Timestamp, StoreError>;

    /// Adds a key. The store's time replaces the caller's `version`, `created` and `updated`. The same atomic step, here and in
    /// [`Store::update_key`], adds the record's `last_change` to the audit trail.
    async fn create_key(&self, record: KeyRecord) -> Result<(KeyRecord, ChangeMark), ChangeError>;

    /// Replaces the record with this id if its version is still `record.version`; the new version and `updated` are the
    /// store's.
    async fn update_key(&self, record: KeyRecord) -> Result<(KeyRecord, ChangeMark), ChangeError>;

    /// Publishes a stored record again, in case its last change was not, and returns the position of the last change.
    async fn publish_key(&self, _record: &KeyRecord) -> Result<ChangeMark, StoreError> {
        self.last_change().await
    }

    /// Adds the keys that are not in the store, like [`Store::create_key`] but with their own `created`. Returns the outcome of
    /// each, in their order, and the position of the last change. Charges run between two calls, so a call should bring a few
    /// hundred keys at most. After a crash or a lost reply, repeating the call completes it. The embedded store writes all keys of
    /// a call or none; Redis, whose keys may be on several servers, writes each by itself.
    ///
    /// # Errors
    /// [`ChangeError::Unwritten`] if no key was added, otherwise if the outcome of some of the keys is unknown.
    async fn import_keys(
        &self,
        records: Vec<KeyRecord>,
    ) -> Result<(Vec<Imported>, Option<ChangeMark>), ChangeError>;

    /// The entries of the audit trail that match the filter, in the order of the changes.
    async fn audit(&self, wanted: Wanted) -> Result<Vec<audit::Entry>, StoreError>;

    /// The record of one key, read from the store.
    async fn key(&self, id: KeyId) -> Result<Option<KeyRecord>, StoreError>;

    /// Reads all records from the store, page by page, each once and in no particular order. `take` gets each page.
    async fn walk_keys(
        &self,
        take: &mut (dyn FnMut(Vec<KeyRecord>) + Send),
    ) -> Result<(), StoreError>;

    /// All records in the order of their creation, read from the store: a few hundred bytes each.
    async fn all_keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        let mut all = Vec::new();
        self.walk_keys(&mut |page| all.extend(page)).await?;
        all.sort_by_key(|record| (record.created, record.id));
        Ok(all)
    }

    /// The records that have this text in [`KeyRecord::search_text`], ignoring case, in no particular order. Reads an index of these
    /// texts, and the records with the text.
    async fn search_keys(&self, text: &str) -> Result<Vec<KeyRecord>, StoreError>;

    /// The ids of all keys of the key table, in their order; on the embedded store also of keys that are only in the ledger from `from`
    /// through `to`. (Redis keeps the ledger of a key under its id, and has no list of these.)
    async fn ledger_keys(&self, from: Date, to: Date) -> Result<Vec<KeyId>, StoreError>;

    /// The records of some keys, [`keys_at_once`] at most; a key without one is left out.
    async fn records_of(&self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError>;

    /// The gateways that have not confirmed the change after up to `patience`: live ones, and ones that stopped sending heartbeats
    /// without signing off, which may still serve the keys of their replica, or send a heartbeat soon. The embedded store has none of
    /// the latter: its gateways read it for every charge, and one that cannot read it serves no request.
    async fn await_applied(
        &self,
        mark: &ChangeMark,
        patience: Duration,
    ) -> Result<Vec<Unconfirmed>, StoreError> {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            let unconfirmed = self.unconfirmed(mark).await?;
            if unconfirmed.is_empty() || tokio::time::Instant::now() >= deadline {
                return Ok(unconfirmed);
            }
            tokio::time::sleep(AWAIT_EVERY).await;
        }
    }

    /// The gateways that [`Store::await_applied`] would name now.
    async fn unconfirmed(&self, mark: &ChangeMark) -> Result<Vec<Unconfirmed>, StoreError>;

    /// The position of the last change of the key table, read from the store.
    async fn last_change(&self) -> Result<ChangeMark, StoreError>;

    /// Removes a gateway that stopped without signing off from the register; the same atomic step adds an entry to the audit trail.
    /// If it is still alive, it signs in again when it reaches the store.
    async fn forget_gateway(
        &self,
        node: &NodeName,
        author: &Author,
    ) -> Result<Forgotten, StoreError>;

    /// How many replicas of the server have confirmed the last change made by this handle, after waiting up to `patience` for one.
    /// Does not wait if there are none.
    async fn await_replicas(&self, patience: Duration) -> Result<Replicas, StoreError>;

    /// The store's report on itself, for operators.
    async fn status(&self) -> Result<StoreStatus, StoreError>;

    /// The ledger of some keys from `from` through `to`, in the order of date and key. A command passes [`keys_at_once`] keys at most,
    /// a gateway that serves requests meanwhile [`DAY_OF_KEYS_MAX`] for one day. Keys with adjacent ids cost least.
    async fn usage_of(
        &self,
        from: Date,
        to: Date,
        keys: &[KeyId],
    ) -> Result<Vec<DayUsage>, StoreError> {
        let proofs = self.prove_of(from, to, keys).await?.into_iter();
        Ok(proofs.map(|proof| proof.usage).collect())
    }

    /// [`Store::usage_of`] one key from `from` through `day`, for a request: once the store is known not to answer, it is not waited for.
    async fn usage_for_request(
        &self,
        from: Date,
        day: Day,
        key: KeyId,
    ) -> Result<Vec<DayUsage>, StoreError> {
        self.usage_of(from, day.date, &[key]).await
    }

    /// The days of [`Store::usage_of`], each checked against everything that the store has on them: a day without faults reconciles.
    /// While a gateway charges, a count may be read before its entry in the ledger; repeat the call then.
    async fn prove_of(
        &self,
        from: Date,
        to: Date,
        keys: &[KeyId],
    ) -> Result<Vec<Proof>, StoreError>;

    /// The last day that the retention has dropped, by the configuration of the gateway that did: the ledger lacks it and all before.
    async fn last_dropped(&self) -> Result<Option<Date>, StoreError>;

    /// The days, from `from` through `to`, on which any of these keys has units that arrived after the day was closed. `keys` are in
    /// their order. Cost: a search for these units only; on Redis one question for each key, and one more for each key on each of the
    /// last 40 days with counts up to `to`.
    async fn late_days(
        &self,
        from: Date,
        to: Date,
        keys: &[KeyId],
    ) -> Result<Vec<(Date, KeyId)>, StoreError>;

    /// Sends all content: every key before the days. The channel is bounded, and so is the memory in use. Fails if the
    /// receiver is dropped.
    ///
    /// The embedded store exports the content of one instant. Redis cannot while gateways charge: each key's day is the state of some
    /// instant during the export, without a ledger entry whose charge is missing. Later changes are in the next export.
    ///
    /// # Errors
    /// Those of the store, and [`StoreError::Failed`] if some content cannot be read.
    async fn export(&self, exported: mpsc::Sender<Exported>) -> Result<(), StoreError>;

    /// Imports some hundred items: what the store lacks or has in an older version. Charges are served before and after. Importing
    /// the same items again changes nothing, so an interrupted import is repeated from the start.
    ///
    /// # Errors
    /// Those of the store; [`StoreError::OtherCalendar`] if its boundaries of a day differ; [`StoreError::Failed`] if another of its
    /// keys has the secret of an imported one. Some of the items may have been imported then.
    async fn import_exported(
        &self,
        items: Vec<Exported>,
        mode: ImportMode,
    ) -> Result<ImportCounts, StoreError>;

    /// The chain of closed days, if the store keeps one.
    fn chained(&self) -> Option<&dyn chain::Chained> {
        None
    }
}

/// Runs work that blocks on a thread for it, and returns its result.
///
/// # Errors
/// If the work panics.
async fn on_thread<T: Send + 'static>(
    doing: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| StoreError::Failed(format!("{doing} panicked: {error}")))
}

impl Receipt {
    /// The receipt of a granted charge.
    pub fn of(charge: &Charge) -> Receipt {
        let record = &charge.key.record;
        Receipt {
            key: record.id,
            tier: record.tier.clone(),
            day: charge.day,
            endpoint: charge.endpoint.clone(),
            units: charge.cost,
        }
    }
}

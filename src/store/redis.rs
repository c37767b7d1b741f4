//! The Redis store: any number of gateways on any number of machines share one count.
//!
//! Layers, from the top down; a file imports from its own layer and from those below it (`tests/house/circles.rs`):
//!
//! | Layer | Owns |
//! |---|---|
//! | `opening` | makes the parts of a store |
//! | `operations` | `upkeep`: the background tasks; `preparing`: the first attempts to connect, and the zone of an empty store; `status`: the state for operators; `transfer`: export and import of the whole store; `retention`: days whose retention is over; `events`: keys near their limits; `days`: completes the set of days that have counts, if Redis lost it |
//! | `outage`, `recovery`, `parts` | service without Redis and its settlement (`restoration`); the last counts of this machine's killed processes; the parts of an open store |
//! | `gateways`, `keys` | `register`: the live gateways, and those that stopped without signing off; `presence`, `heartbeat`, `gateway_id`: this gateway's entry, its contents, and the id by which it takes over an entry; `records`: the key table, compare-and-set; `codec`: records as they are in Redis; `index`: all records without a scan over the counts; `feed`, `stream`, `replica`: a gateway's replica, the changes that it reads, its file; `import`, `audit`: many keys, the audit trail |
//! | `counts` | `accounts`: one account per key and day, and the tasks that send its calls; `ledger`: totals by endpoint; `kept_day`: days that many accounts share |
//! | `journal` | this node's counts, on its own disk: `file`: made and checked; `rows`: written and read; `processes`: those that write to it |
//! | `wire` | `topology`, `dial`: the servers and how they are reached; `slots`: the slot of a command; `connection`, `replies`: commands and replies; `request`, `line`, `cluster`, `link`: a request, one connection up or down, one per master, one interface for all; `script`: the Lua scripts as commands; `preparation`: checks of a new connection; `breaker`, `guard`: when to stop calling Redis, and when to resume; `zone`: the time zone of the quota days, checked before the store is used |
//! | the ground | `names`: every name in Redis and its lifetime; `identity`: the store to which a file on this machine belongs; `clock`, `producer`: the store's clock, the names of this process's counts |
//!
//! Invariants: each call repeats everything that a lost one stated (see [`crate::policy::quota`]); units are served without
//! Redis only once they are on disk.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use jiff::civil::Date;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::clock::Clock;
use crate::policy::api_key::KeyId;
use crate::policy::audit::{self, Author, Wanted};
use crate::policy::calendar::Day;
use crate::policy::key_record::{Action, KeyRecord};
use crate::policy::quota::WaiterResult;
use crate::policy::threshold_event::{Event, ThresholdEvent};
use crate::store::current::Current;
use crate::store::export::{Exported, ImportCounts, ImportMode};
use crate::store::status::{Replicas, StoreStatus};
use crate::store::{
    ChangeError, ChangeMark, Charge, Claim, DayUsage, Decision, Delivery, Forgotten, Freshness,
    Health, Imported, KeyEntry, KeyTable, NodeName, Proof, Receipt, RefusalReason, Role, Store,
    StoreContent, StoreError, Unconfirmed, WithoutStore, on_thread,
};

mod clock;
mod counts;
mod gateways;
mod identity;
mod journal;
mod keys;
mod names;
mod opening;
mod operations;
mod outage;
mod parts;
mod producer;
mod recovery;
mod wire;

pub use crate::policy::store_settings::{
    OutagePolicy, OutageSettings, RedisSettings, RedisTls, Servers,
};
use counts::accounts::other_calendar;
pub use journal::facts as journal_facts;
use operations::preparing::check_zone;
use operations::upkeep::tasks;
use parts::Parts;
pub use wire::script::charge_replies;
use wire::topology::Topology;
use wire::zone::EmptyStore;

/// The store that the settings name, such as `127.0.0.1:6379/0 with the prefix touchline`, without a password.
///
/// # Errors
/// [`StoreError::Failed`] if an address or a certificate cannot be used.
pub fn name_of(settings: &RedisSettings) -> Result<String, StoreError> {
    let topology = Topology::of(settings)?;
    Ok(topology.identity(&settings.key_prefix).name)
}

/// The text of the charge script, for its differential test.
pub const CHARGE_SCRIPT: &str = include_str!("redis/charge.lua");

/// How long a request waits for the days of its key at least. They take 6 ms of ten gateways with ten endpoints each, half a second of
/// 300 with 30: too long for `store.redis.timeout`, and for the connection of the charges.
const USAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// The store. Dropping it ends its tasks without signing off, like the death of a process.
pub struct RedisStore {
    parts: Arc<Parts>,
    tasks: Mutex<JoinSet<()>>,
}

/// Opens the store for a process whose quota days are in the time zone `zone`.
///
/// A gateway's store opens even if Redis is unavailable, and recovers by itself. A command's does not.
///
/// # Errors
/// [`StoreError::Failed`] for a bad URL or certificate, or a saved replica that cannot be used;
/// [`StoreError::OtherCalendar`] if Redis is reachable and was used with another zone; [`StoreError::Unavailable`]
/// for a command without a server.
pub async fn open(
    settings: RedisSettings,
    role: Role,
    zone: &str,
    clock: Clock,
) -> Result<Arc<RedisStore>, StoreError> {
    let parts = Arc::new(opening::open(settings, role, zone, clock).await?);
    let store = RedisStore {
        tasks: Mutex::new(tasks(&parts)),
        parts,
    };
    opening::await_keys(&store.parts).await;
    Ok(Arc::new(store))
}

impl RedisStore {
    /// Walks over every name in Redis once: adds keys that the feed did not report, and writes back records that Redis lacks or has
    /// in older versions. A gateway does so every ten minutes by itself; a command, which has no replica, never.
    ///
    /// # Errors
    /// Those of Redis; repairs made before the error remain.
    pub async fn repair(&self) -> Result<(), StoreError> {
        match &self.parts.feed {
            Some(feed) => feed.repair_once().await,
            None => Ok(()),
        }
    }

    /// Sets the zone of an empty store, once.
    async fn claim_zone(&self) -> Result<(), StoreError> {
        let parts = &self.parts;
        let claim = || check_zone(&parts.command_link, &parts.zone, EmptyStore::Claimed);
        parts.zone_claimed.get_or_try_init(claim).await?;
        Ok(())
    }
}

#[async_trait]
impl Store for RedisStore {
    fn keys(&self) -> &KeyTable {
        &self.parts.keys
    }

    fn freshness(&self) -> Freshness {
        let current = self.parts.feed.as_ref().map(|feed| &feed.current);
        let loaded = current.is_some_and(Current::is_loaded);
        let age = current.map_or(Duration::MAX, Current::age);
        Freshness {
            loaded,
            age,
            usable: loaded && age <= self.parts.max_staleness,
        }
    }

    fn now(&self) -> Timestamp {
        self.parts.clock.now()
    }

    async fn charge(&self, charge: Charge) -> Result<Decision, StoreError> {
        let charge = Charge {
            cost: charge.cost.max(1),
            ..charge
        };
        let (verdict, units) = match self.parts.accounts.charge(&charge).await {
            Ok(answer) => answer,
            Err(error) => {
                return match &self.parts.outage {
                    Some(outage) => outage.serve(charge, error).await,
                    None => Err(error),
                };
            }
        };
        match verdict {
            WaiterResult::Granted { used } => {
                if let Some(units) = units {
                    units.keep();
                }
                self.parts.ledger.charged(&charge, |_| ());
                let receipt = Receipt::of(&charge);
                Ok(Decision::Granted {
                    used,
                    counted: used,
                    receipt,
                })
            }
            WaiterResult::Exhausted { used } => Ok(Decision::Exhausted { used }),
            WaiterResult::KeyChanged => Ok(Decision::KeyChanged),
            WaiterResult::OtherDay { now } => Ok(Decision::OtherDay {
                now: Timestamp::from_second(now).unwrap_or_else(|_| self.now()),
            }),
            WaiterResult::OtherCalendar => Err(other_calendar(charge.key.record.id, charge.day)),
        }
    }

    async fn refund(&self, receipt: Receipt) -> Option<u64> {
        let (key, day) = (receipt.key, receipt.day);
        let used = self.parts.give_back(&receipt);
        match &self.parts.outage {
            Some(outage) if outage.decides(key, day) => outage.used(key, day, None),
            Some(_) | None => used,
        }
    }

    fn give_back(&self, receipt: Receipt) {
        self.parts.give_back(&receipt);
    }

    async fn used(&self, key: KeyId, day: Day, limit: u64) -> Result<u64, StoreError> {
        let asked = match self.parts.guard.require() {
            Ok(()) => self.parts.accounts.used(key, day).await,
            Err(error) => Err(error.into()),
        };
        asked.or_else(|error| self.used_as_known(key, day, limit).ok_or(error))
    }

    fn used_as_known(&self, key: KeyId, day: Day, limit: u64) -> Option<u64> {
        let outage = self.parts.outage.as_ref()?;
        outage.used(key, day, Some(limit))
    }

    fn refused(&self, key: &KeyEntry, day: Day, endpoint: &Arc<str>, refusal: RefusalReason) {
        self.parts.ledger.refused(key, day, endpoint, refusal);
    }

    fn health(&self) -> Health {
        let parts = &self.parts;
        let (outage, feed) = (parts.outage.as_ref(), parts.feed.as_ref());
        let (guard, link, keys) = (&parts.guard, &parts.link, self.freshness());
        // Read before the service that it ends: no report has a journal's trouble beside a service that goes on.
        let journal_trouble = outage.and_then(|outage| outage.journal.trouble());
        let service = outage.map_or(WithoutStore::Denies, |outage| outage.service());
        let up = guard.is_closed() && link.is_whole();
        Health {
            up,
            partly_up: !up && guard.is_closed() && link.is_partly_up(),
            keys,
            without_store: match service {
                WithoutStore::Serves if !keys.usable => WithoutStore::NoKeys,
                service => service,
            },
            pending_units: outage.map_or(0, |outage| outage.pending_units()),
            silent_gateways: parts.presence.as_ref().map_or(0, |own| own.silent()),
            clock_leap: parts.clock.watch.leap(),
            trouble: match up {
                true => None,
                false => link.absences().or_else(|| guard.reason()),
            },
            file_trouble: journal_trouble.or_else(|| feed?.save_trouble()),
            keys_trouble: feed.and_then(|feed| feed.trouble(keys)),
            register_trouble: parts.presence.as_ref().and_then(|own| own.trouble()),
        }
    }

    fn losses(&self) -> u64 {
        self.parts.losses.load(Ordering::Acquire)
    }

    async fn claim(
        &self,
        event: &ThresholdEvent,
        node: &NodeName,
        delivery: Delivery,
    ) -> Result<Claim, StoreError> {
        operations::events::claim(&self.parts.command_link, event, node, delivery).await
    }

    async fn undelivered(
        &self,
        courier: &NodeName,
        lease: Duration,
        skipped: u64,
    ) -> Result<Option<Vec<Event>>, StoreError> {
        operations::events::undelivered(&self.parts.command_link, courier, lease, skipped).await
    }

    async fn delivered(&self, event: &Event) -> Result<(), StoreError> {
        operations::events::delivered(&self.parts.command_link, event).await
    }

    async fn resign(&self, courier: &NodeName) -> Result<(), StoreError> {
        operations::events::resign(&self.parts.command_link, courier).await
    }

    async fn close(&self, deadline: Duration) {
        let parts = &self.parts;
        let farewell = async {
            while !parts.flush().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let is_sent = timeout(deadline, farewell).await.is_ok();
        let noted = match &parts.outage {
            Some(outage) => outage.note_changes().await,
            None => false,
        };
        match noted {
            _ if is_sent => {}
            true => tracing::warn!(
                "closed with refunds or ledger entries that were not sent to Redis: they are in the journal, and its next gateway sends them"
            ),
            false => {
                tracing::error!(
                    "closed with refunds or ledger entries that were not sent to Redis"
                );
            }
        }
        // Ended, not only aborted: one that still ran might enter this process again after it has signed off.
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
        if let Some(outage) = &parts.outage {
            // If the name remains, a successor sends what this process did not, and returns what no request of it has got.
            if noted && is_sent {
                let _ = outage.journal.leave().await;
            } else if outage.note_changes().await {
                let _ = outage.journal.end().await;
            }
        }
        if let Some(feed) = &parts.feed
            && let Err(error) = feed.save().await
        {
            tracing::error!(%error, "closed without saving the replica of the key table");
        }
        if let Some(presence) = &parts.presence
            && let Err(error) = presence.sign_off().await
        {
            tracing::error!(%error, "closed without signing off: commands name this gateway until it is started again or removed by `touchline store forget`");
        }
    }

    async fn check_zone(&self) -> Result<(), StoreError> {
        let parts = &self.parts;
        check_zone(&parts.command_link, &parts.zone, EmptyStore::Left).await
    }

    async fn content(&self) -> Result<StoreContent, StoreError> {
        operations::status::content(&self.parts.command_link).await
    }

    async fn server_time(&self) -> Result<Timestamp, StoreError> {
        self.parts.command_link.time().await
    }

    async fn create_key(&self, record: KeyRecord) -> Result<(KeyRecord, ChangeMark), ChangeError> {
        let claimed = self.claim_zone().await;
        claimed.map_err(ChangeError::Unwritten)?;
        let (record, mark) = self.parts.records.create(record).await?;
        self.parts.keys.apply(record.clone());
        Ok((record, mark))
    }

    async fn update_key(&self, record: KeyRecord) -> Result<(KeyRecord, ChangeMark), ChangeError> {
        if let Action::SetExpiry | Action::Grant = record.last_change.action {
            let checked = self.check_zone().await;
            checked.map_err(ChangeError::Unwritten)?;
        }
        let (record, mark) = self.parts.records.update(record).await?;
        self.parts.keys.apply(record.clone());
        Ok((record, mark))
    }

    async fn publish_key(&self, record: &KeyRecord) -> Result<ChangeMark, StoreError> {
        self.parts.records.publish(record).await
    }

    async fn key(&self, id: KeyId) -> Result<Option<KeyRecord>, StoreError> {
        self.parts.records.get(id).await
    }

    async fn import_keys(
        &self,
        records: Vec<KeyRecord>,
    ) -> Result<(Vec<Imported>, Option<ChangeMark>), ChangeError> {
        let claimed = self.claim_zone().await;
        claimed.map_err(ChangeError::Unwritten)?;
        self.parts.records.import(records).await
    }

    async fn audit(&self, wanted: Wanted) -> Result<Vec<audit::Entry>, StoreError> {
        self.parts.records.audit_trail(&wanted).await
    }

    async fn walk_keys(
        &self,
        take: &mut (dyn FnMut(Vec<KeyRecord>) + Send),
    ) -> Result<(), StoreError> {
        self.parts.records.walk(take).await
    }

    async fn search_keys(&self, text: &str) -> Result<Vec<KeyRecord>, StoreError> {
        self.parts.records.search(text).await
    }

    async fn ledger_keys(&self, _from: Date, _to: Date) -> Result<Vec<KeyId>, StoreError> {
        self.parts.records.ids().await
    }

    async fn records_of(&self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError> {
        self.parts.records.of(ids).await
    }

    async fn unconfirmed(&self, mark: &ChangeMark) -> Result<Vec<Unconfirmed>, StoreError> {
        gateways::register::unconfirmed(&self.parts.command_link, mark).await
    }

    async fn last_change(&self) -> Result<ChangeMark, StoreError> {
        operations::status::last_change(&self.parts.command_link).await
    }

    async fn forget_gateway(
        &self,
        node: &NodeName,
        author: &Author,
    ) -> Result<Forgotten, StoreError> {
        gateways::register::strike_off(&self.parts.command_link, node, author).await
    }

    async fn await_replicas(&self, patience: Duration) -> Result<Replicas, StoreError> {
        self.parts.records.await_replicas(patience).await
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        let parts = &self.parts;
        let asked = parts.local_clock.now();
        let theirs = parts.command_link.time().await?;
        let halfway = parts.local_clock.now().duration_since(asked) / 2;
        let difference = theirs.duration_since(asked) - halfway;
        let link = &parts.command_link;
        let journal = match parts.journal.clone() {
            Some(path) => on_thread("reading the journal", move || journal_facts(&path)).await?,
            None => None,
        };
        let events = operations::events::waiting(link, theirs).await?;
        operations::status::status(link, difference.as_secs_f64(), events, journal).await
    }

    async fn prove_of(
        &self,
        from: Date,
        to: Date,
        keys: &[KeyId],
    ) -> Result<Vec<Proof>, StoreError> {
        counts::ledger::prove(&self.parts.command_link, keys, from, to).await
    }

    async fn usage_for_request(
        &self,
        from: Date,
        day: Day,
        key: KeyId,
    ) -> Result<Vec<DayUsage>, StoreError> {
        let parts = &self.parts;
        // There is no connection after two timeouts. A server that only refuses writes opens the breaker, keeps the connection, and
        // can be read.
        parts.link.require()?;
        if parts.guard.is_closed() {
            // A call like a charge: if it is lost, the breaker learns of it, and the request has waited for one lost call.
            parts.accounts.used(key, day).await?;
        }
        let deadline = parts.link.deadline().max(Instant::now() + USAGE_TIMEOUT);
        let in_time = timeout_at(deadline, self.usage_of(from, day.date, &[key])).await;
        in_time.unwrap_or_else(|_| Err(StoreError::Unavailable("no usage in time".into())))
    }

    async fn last_dropped(&self) -> Result<Option<Date>, StoreError> {
        operations::retention::last_dropped(&self.parts.command_link).await
    }

    async fn late_days(
        &self,
        from: Date,
        to: Date,
        keys: &[KeyId],
    ) -> Result<Vec<(Date, KeyId)>, StoreError> {
        counts::ledger::late_days(&self.parts.command_link, keys, (from, to)).await
    }

    async fn export(&self, exported: mpsc::Sender<Exported>) -> Result<(), StoreError> {
        self.check_zone().await?;
        let zone = &self.parts.zone;
        operations::transfer::export(&self.parts.command_link, zone, &exported).await
    }

    async fn import_exported(
        &self,
        items: Vec<Exported>,
        mode: ImportMode,
    ) -> Result<ImportCounts, StoreError> {
        if mode == ImportMode::Write {
            self.claim_zone().await?;
        }
        operations::transfer::import(&self.parts.command_link, &items, mode).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_task_of_a_closed_store_is_left() {
        let settings = RedisSettings::of_url("redis://127.0.0.1:1");
        let role = Role::Gateway(NodeName("a".into()));
        let store = open(settings, role, "UTC", Clock::system()).await.unwrap();
        assert!(Arc::strong_count(&store.parts) > 1, "the tasks'");
        store.close(Duration::from_millis(10)).await;
        assert_eq!(Arc::strong_count(&store.parts), 1);
    }
}

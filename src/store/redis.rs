//! The Redis store: any number of gateways on any number of machines share one count.
//!
//! | Room | Owns |
//! |---|---|
//! | [`settings`] | where Redis is, who we are there, prefix and timeout |
//! | `topology` | single, Sentinel or Cluster; TLS and login; how a server is dialled |
//! | `link` | the way to Redis, whatever its topology: there or not, never waited for |
//! | `preparing` | what a fresh connection is asked before it is used |
//! | `upkeep` | the tasks that keep a store going |
//! | `line` | one connection to one server |
//! | `cluster`, `slots` | a line to each master of a cluster; which of them serves which key |
//! | `names` | every name we use in Redis, and how long it lives |
//! | `script` | `charge.lua` and `record.lua` as commands |
//! | `charging` | one account per key and day, and the tasks that carry its calls |
//! | `breaker`, `guard` | when to stop asking Redis, and when to ask again |
//! | [`outage`] | service without Redis, and settling it |
//! | `journal` | what this node has counted, on its own disk |
//! | `inheritance` | what killed processes of this machine had counted last |
//! | `ledger` | totals by endpoint |
//! | `records` | the key table in Redis: compare-and-set, digests, feed entries |
//! | `carrying` | carrying all of it away, and taking in what was carried here |
//! | `retention` | dropping days of the ledger that were kept long enough |
//! | `import`, `trail` | bringing many keys in; reading the audit trail |
//! | `events` | keys near their limits: who tells of it, and what is to be delivered |
//! | `index` | finding all records without walking past counts |
//! | `feed` | a gateway's replica of the key table: loaded, followed, repaired |
//! | `current` | how current that replica is |
//! | `replica` | the same as it is saved on this machine |
//! | `home` | which store a file on this machine is of |
//! | `register` | which gateways live and how far each has followed; which did not sign off |
//! | `heartbeat`, `presence`, `seat` | the contents of an entry; a gateway's own entry; which entry it takes over |
//! | `status` | what Redis says of itself, for operators |
//! | `time`, `producer` | the store's clock; the names we count under |
//!
//! Invariant: whatever becomes of a call, the next one says everything that the lost one said (see
//! [`crate::policy::quota`]); and nothing is served without Redis that is not on disk first.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use jiff::civil::Date;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::clock::Clock;
use crate::policy::api_key::KeyId;
use crate::policy::audit::{self, Author, Wanted};
use crate::policy::calendar::Day;
use crate::policy::crossing::{Crossing, Event};
use crate::policy::key_record::KeyRecord;
use crate::policy::quota::Verdict;
use crate::store::carried::{Carried, Carrying, Taken, Taking};
use crate::store::status::{JournalFacts, Replicas, StoreStatus};
use crate::store::{
    ChangeError, ChangeMark, Charge, Claim, DayUsage, Decision, Delivery, Forgotten, Freshness,
    Health, Imported, KeyEntry, KeyTable, NodeName, Proof, Receipt, Refusal, Role, Store,
    StoreError, Unconfirmed, WithoutStore,
};

mod breaker;
mod carrying;
mod charging;
mod cluster;
mod current;
mod events;
mod feed;
mod guard;
mod heartbeat;
mod home;
mod import;
mod index;
mod inheritance;
mod journal;
mod ledger;
mod line;
mod link;
mod names;
pub mod outage;
mod preparing;
mod presence;
mod producer;
mod records;
mod register;
mod replica;
mod retention;
mod script;
mod seat;
pub mod settings;
mod shards;
mod slots;
mod status;
mod time;
mod topology;
mod trail;
mod turns;
mod upkeep;

use charging::{Accounts, Answer, other_calendar};
use feed::{Feed, Setting};
use guard::Guard;
use heartbeat::Condition;
use home::Home;
use inheritance::Inheritance;
use ledger::Ledger;
use link::Link;
use names::Names;
use outage::Outage;
pub use outage::{OutagePolicy, OutageSettings};
use preparing::{first_attempt, prepared};
use presence::Presence;
use producer::Producer;
use records::Records;
use replica::Replica;
pub use script::charge_replies;
pub use settings::{Place, Settings, Tls};
use time::StoreClock;
use topology::Topology;
use upkeep::tasks;

/// The text of the charge script, for its differential test.
pub const CHARGE_SCRIPT: &str = include_str!("redis/charge.lua");

/// How long commands wait for a reply, at least: nobody's request hangs on it, and giving up leaves an operator in doubt.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);
/// How long opening a gateway's store waits for the key table.
const LOAD_PATIENCE: Duration = Duration::from_secs(2);
/// How long it then waits for what killed processes had counted last.
const INHERIT_PATIENCE: Duration = Duration::from_secs(2);

/// The store. Dropping it ends its tasks without goodbye, as the death of a process would.
pub struct RedisStore {
    parts: Arc<Parts>,
    tasks: Vec<AbortHandle>,
}

struct Parts {
    keys: Arc<KeyTable>,
    clock: Arc<StoreClock>,
    local_clock: Clock,
    names: Names,
    /// For what requests wait for.
    link: Arc<Link>,
    /// For what only commands wait for: long replies must not hold up charges.
    command_link: Arc<Link>,
    guard: Arc<Guard>,
    /// How often Redis may have lost something.
    losses: AtomicU64,
    accounts: Arc<Accounts>,
    ledger: Arc<Ledger>,
    /// A gateway's service without Redis; commands have none.
    outage: Option<Arc<Outage>>,
    /// Held while refunds and ledger are written, so that whoever closes knows when they are.
    flushing: tokio::sync::Mutex<()>,
    records: Records,
    /// What other processes left; only where there is a journal.
    inheritance: Option<Inheritance>,
    /// A gateway's replica; commands have none.
    feed: Option<Feed>,
    /// A gateway's place on the register; commands have none.
    presence: Option<Presence>,
    max_staleness: Duration,
    /// The configured journal, a command's too.
    journal: Option<PathBuf>,
    /// The zone of the quota days.
    zone: String,
}

/// What the journal at `path` says, read without Redis and without changing it; `None` where there is no such file. Blocks
/// while the file is read.
pub fn journal_facts(path: &Path) -> Option<JournalFacts> {
    journal::facts(path)
}

/// Opens the store for a process whose quota days lie in `zone`.
///
/// A gateway's store opens although Redis is away and recovers by itself. A command's does not.
///
/// # Errors
/// [`StoreError::Failed`] for a bad URL or certificate, or a saved replica that cannot be used;
/// [`StoreError::OtherCalendar`] where the store was used with another zone and says so now; [`StoreError::Unavailable`]
/// for a command without a server.
pub async fn open(
    settings: Settings,
    role: Role,
    zone: &str,
    clock: Clock,
) -> Result<Arc<RedisStore>, StoreError> {
    let topology = Topology::of(&settings)?;
    let key_prefix = settings.key_prefix.clone();
    let names = Names::new(&key_prefix, settings.keeping);
    let journal = settings
        .outage
        .as_ref()
        .map(|outage| outage.journal.clone());
    let local_clock = clock.clone();
    let clock = Arc::new(StoreClock::new(clock, settings.keeping.agreement));
    let command_timeout = COMMAND_TIMEOUT.max(settings.timeout);
    let request_timeout = match role {
        Role::Gateway(_) => settings.timeout,
        Role::Command => command_timeout,
    };
    let link = Arc::new(Link::new(topology.clone(), request_timeout));
    let command_link = Arc::new(Link::new(topology.clone(), command_timeout));
    let prepare = {
        let (names, zone, clock) = (names.clone(), zone.to_owned(), clock.clone());
        move |connection| prepared(connection, names.clone(), zone.clone(), clock.clone())
    };
    for link in [&link, &command_link] {
        first_attempt(link, &role, &prepare).await?;
    }
    let keys = Arc::new(KeyTable::new());
    let producer = Arc::new(Producer::draw());
    let guard = Arc::new(Guard::new(link.clone(), names.clone()));
    let accounts = Accounts::new(
        guard.clone(),
        names.clone(),
        producer.clone(),
        keys.clone(),
        clock.clone(),
        settings.timeout,
    );
    let ledger = Arc::new(Ledger::new(
        link.clone(),
        names.clone(),
        producer.clone(),
        clock.clone(),
    ));
    let outage = match (&role, settings.outage) {
        (Role::Gateway(_), Some(settings)) => {
            let counted = (accounts.clone(), ledger.clone(), clock.clone());
            Some(
                Outage::open(
                    settings,
                    producer.process(),
                    guard.clone(),
                    counted,
                    (topology.home(&key_prefix), names.clone()),
                )
                .await?,
            )
        }
        (Role::Gateway(_), None) | (Role::Command, _) => None,
    };
    let (feed, presence) = match role {
        Role::Command => (None, None),
        Role::Gateway(node) => {
            let setting = Setting {
                link: command_link.clone(),
                names: names.clone(),
                keys: keys.clone(),
                zone: zone.to_owned(),
                clock: local_clock.clone(),
            };
            let home = topology.home(&key_prefix);
            let feed = follower(setting, settings.replica.clone(), home).await?;
            let condition = condition(&guard, outage.clone(), clock.clone());
            let way = (command_link.clone(), names.clone());
            let presence = Presence::new(way, node, settings.replica, condition).await?;
            (Some(feed), Some(presence))
        }
    };
    let inheritance = outage.clone().map(|outage| Inheritance {
        link: command_link.clone(),
        guard: guard.clone(),
        names: names.clone(),
        keys: keys.clone(),
        clock: clock.clone(),
        zone: zone.to_owned(),
        outage,
        done: Default::default(),
    });
    let parts = Arc::new(Parts {
        ledger,
        outage,
        inheritance,
        guard,
        losses: AtomicU64::new(0),
        flushing: tokio::sync::Mutex::default(),
        records: Records::new(command_link.clone(), names.clone(), command_timeout),
        feed,
        presence,
        max_staleness: settings.max_staleness,
        journal,
        zone: zone.to_owned(),
        keys,
        clock,
        local_clock,
        names,
        link,
        command_link,
        accounts,
    });
    let store = RedisStore {
        tasks: tasks(&parts, prepare),
        parts,
    };
    if let Some(feed) = store
        .parts
        .feed
        .as_ref()
        .filter(|_| store.parts.link.is_up())
    {
        let _ = timeout(LOAD_PATIENCE, feed.followed()).await;
        if let Some(inheritance) = &store.parts.inheritance {
            let _ = timeout(INHERIT_PATIENCE, inheritance.done()).await;
        }
    }
    Ok(Arc::new(store))
}

/// How a gateway stands to Redis, whenever it is asked.
fn condition(
    guard: &Arc<Guard>,
    outage: Option<Arc<Outage>>,
    clock: Arc<StoreClock>,
) -> Box<dyn Fn() -> Condition + Send + Sync> {
    let guard = guard.clone();
    Box::new(move || Condition {
        breaker: Some(guard.facts()),
        service: outage.as_ref().map(|outage| outage.facts()),
        clock_difference_seconds: Some(clock.difference().as_secs_f64()),
    })
}

/// A gateway's feed, which begins with what was saved on this machine.
async fn follower(setting: Setting, path: Option<PathBuf>, home: Home) -> Result<Feed, StoreError> {
    let Some(path) = path else {
        return Ok(Feed::new(setting, None));
    };
    let (replica, saved) = tokio::task::spawn_blocking(move || Replica::open(&path, &home))
        .await
        .map_err(|error| StoreError::Failed(format!("opening the replica panicked: {error}")))??;
    let feed = Feed::new(setting, Some(Arc::new(replica)));
    if let Some(saved) = saved {
        feed.begin_with(saved.records, saved.standing);
    }
    Ok(feed)
}

impl Parts {
    /// The key that is meant, or all.
    async fn ids(&self, key: Option<KeyId>) -> Result<Vec<KeyId>, StoreError> {
        match key {
            Some(key) => Ok(vec![key]),
            None => {
                let all = self.records.all().await?;
                Ok(all.into_iter().map(|record| record.id).collect())
            }
        }
    }

    /// Gives units back. Answers the units used afterwards as Redis counts them, if that is known.
    fn give_back(&self, receipt: &Receipt) -> Option<u64> {
        self.ledger.refunded(receipt);
        self.accounts
            .refund(receipt.key, receipt.day, receipt.units)
    }
}

impl RedisStore {
    /// Walks over every name in Redis once: takes in keys that nobody told, and writes back what Redis lacks or holds older.
    /// A gateway does so each ten minutes by itself; a command, which has no replica, never.
    ///
    /// # Errors
    /// Those of Redis; what was mended by then stays mended.
    pub async fn repair(&self) -> Result<(), StoreError> {
        match &self.parts.feed {
            Some(feed) => feed.repair_once().await,
            None => Ok(()),
        }
    }

    fn away(&self) -> StoreError {
        match self.parts.guard.require() {
            Ok(()) => StoreError::Unavailable("Redis was unavailable a moment ago".into()),
            Err(error) => error.into(),
        }
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

#[async_trait]
impl Carrying for RedisStore {
    async fn carry_out(&self, told: mpsc::Sender<Carried>) -> Result<(), StoreError> {
        let Parts { names, zone, .. } = &*self.parts;
        carrying::carry_out(&self.parts.command_link, names, zone, &told).await
    }

    async fn take_in(&self, carried: Vec<Carried>, taking: Taking) -> Result<Taken, StoreError> {
        let (link, names) = (&self.parts.command_link, &self.parts.names);
        carrying::take_in(link, names, &carried, taking).await
    }
}

#[async_trait]
impl Store for RedisStore {
    fn keys(&self) -> &KeyTable {
        &self.parts.keys
    }

    fn freshness(&self) -> Freshness {
        let feed = self.parts.feed.as_ref();
        let loaded = feed.is_some_and(Feed::is_loaded);
        let age = feed.map_or(Duration::MAX, Feed::age);
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
        let (id, day, cost) = (charge.key.record.id, charge.day, charge.cost);
        let accounts = &self.parts.accounts;
        match accounts.charge(&charge.key, day, charge.limit, cost).await {
            Answer::Granted(units) => {
                let used = units.take();
                self.parts.ledger.charged(&charge, drop);
                let receipt = Receipt::of(&charge);
                Ok(Decision::Granted { used, receipt })
            }
            Answer::Failed(error) => match &self.parts.outage {
                Some(outage) => outage.serve(charge, error).await,
                None => Err(error),
            },
            Answer::Other(verdict) => match verdict {
                Verdict::Granted { used }
                | Verdict::Exhausted { used }
                | Verdict::Told { used } => Ok(Decision::Exhausted { used }),
                Verdict::KeyChanged => Ok(Decision::KeyChanged),
                Verdict::OtherDay { now } => Ok(Decision::OtherDay {
                    now: Timestamp::from_second(now).unwrap_or_else(|_| self.now()),
                }),
                Verdict::OtherCalendar => Err(other_calendar(id, day)),
            },
        }
    }

    async fn refund(&self, receipt: Receipt) -> Option<u64> {
        let (key, day) = (receipt.key, receipt.day);
        let used = self.parts.give_back(&receipt);
        match &self.parts.outage {
            Some(outage) if !self.parts.guard.is_closed() => outage.used(key, day),
            Some(_) | None => used,
        }
    }

    fn give_back(&self, receipt: Receipt) {
        self.parts.give_back(&receipt);
    }

    async fn used(&self, key: KeyId, day: Day) -> Result<u64, StoreError> {
        let asked = match self.parts.guard.is_closed() {
            true => self.parts.accounts.used(key, day).await,
            false => Err(self.away()),
        };
        let outage = self.parts.outage.as_ref();
        asked.or_else(|error| outage.and_then(|outage| outage.used(key, day)).ok_or(error))
    }

    fn refused(&self, key: &KeyEntry, day: Day, endpoint: &Arc<str>, refusal: Refusal) {
        self.parts.ledger.refused(key, day, endpoint, refusal);
    }

    fn health(&self) -> Health {
        let outage = self.parts.outage.as_ref();
        let keys = self.freshness();
        let service = outage.map_or(WithoutStore::Denies, |outage| outage.service());
        Health {
            up: self.parts.guard.is_closed() && self.parts.link.is_whole(),
            keys,
            without_store: match service {
                WithoutStore::Serves if !keys.usable => WithoutStore::NoKeys,
                service => service,
            },
            pending_units: outage.map_or(0, |outage| outage.pending_units()),
            silent_gateways: self.parts.presence.as_ref().map_or(0, Presence::silent),
            clock_leap: self.parts.clock.leap(),
            file_trouble: outage.and_then(|outage| outage.journal_trouble()),
        }
    }

    fn losses(&self) -> u64 {
        self.parts.losses.load(Ordering::Acquire)
    }

    async fn claim(
        &self,
        crossing: &Crossing,
        node: &NodeName,
        delivery: Delivery,
    ) -> Result<Claim, StoreError> {
        let (link, names) = (&self.parts.command_link, &self.parts.names);
        events::claim(link, names, crossing, node, delivery).await
    }

    async fn undelivered(
        &self,
        courier: &NodeName,
        lease: Duration,
    ) -> Result<Option<Vec<Event>>, StoreError> {
        let (link, names) = (&self.parts.command_link, &self.parts.names);
        events::undelivered(link, names, courier, lease).await
    }

    async fn delivered(&self, event: &Event) -> Result<(), StoreError> {
        events::delivered(&self.parts.command_link, &self.parts.names, event).await
    }

    async fn resign(&self, courier: &NodeName) -> Result<(), StoreError> {
        events::resign(&self.parts.command_link, &self.parts.names, courier).await
    }

    async fn close(&self, deadline: Duration) {
        let parts = &self.parts;
        let farewell = async {
            while !parts.flush().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if timeout(deadline, farewell).await.is_err() {
            tracing::error!("closed with refunds or ledger entries that were not sent to Redis");
        }
        let noted = match &parts.outage {
            Some(outage) => outage.note_changes().await,
            None => false,
        };
        self.tasks.iter().for_each(AbortHandle::abort);
        if let Some(outage) = parts.outage.as_ref().filter(|_| noted) {
            // Where the name stays, the next process reads what needs no reading.
            let _ = outage.journal().leave().await;
        }
        if let Some(feed) = &parts.feed
            && let Err(error) = feed.save().await
        {
            tracing::error!(%error, "closed without saving the replica of the key table");
        }
        if let Some(presence) = &parts.presence
            && let Err(error) = presence.sign_off().await
        {
            tracing::error!(%error, "closed without signing off: commands name this gateway until it is started again or struck off");
        }
    }

    async fn server_time(&self) -> Result<Timestamp, StoreError> {
        self.parts.records.server_time().await
    }

    async fn create_key(&self, record: KeyRecord) -> Result<(KeyRecord, ChangeMark), ChangeError> {
        let (record, mark) = self.parts.records.create(record).await?;
        self.parts.keys.apply(record.clone());
        Ok((record, mark))
    }

    async fn update_key(&self, record: KeyRecord) -> Result<(KeyRecord, ChangeMark), ChangeError> {
        let (record, mark) = self.parts.records.update(record).await?;
        self.parts.keys.apply(record.clone());
        Ok((record, mark))
    }

    async fn key(&self, id: KeyId) -> Result<Option<KeyRecord>, StoreError> {
        self.parts.records.get(id).await
    }

    async fn import_keys(
        &self,
        records: Vec<KeyRecord>,
    ) -> Result<(Vec<Imported>, Option<ChangeMark>), StoreError> {
        self.parts.records.import(records).await
    }

    async fn audit(&self, wanted: Wanted) -> Result<Vec<audit::Entry>, StoreError> {
        self.parts.records.trail(&wanted).await
    }

    async fn all_keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        self.parts.records.all().await
    }

    async fn holders(&self) -> Result<Vec<(KeyId, Arc<str>)>, StoreError> {
        self.parts.records.holders().await
    }

    async fn records_of(&self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError> {
        self.parts.records.of(ids).await
    }

    async fn await_applied(
        &self,
        mark: &ChangeMark,
        patience: Duration,
    ) -> Result<Vec<Unconfirmed>, StoreError> {
        register::await_applied(&self.parts.command_link, &self.parts.names, mark, patience).await
    }

    async fn last_change(&self) -> Result<ChangeMark, StoreError> {
        status::last_change(&self.parts.command_link, &self.parts.names).await
    }

    async fn forget_gateway(
        &self,
        node: &NodeName,
        author: &Author,
    ) -> Result<Forgotten, StoreError> {
        register::strike_off(&self.parts.command_link, &self.parts.names, node, author).await
    }

    async fn await_replicas(&self, patience: Duration) -> Result<Replicas, StoreError> {
        self.parts.records.await_replicas(patience).await
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        let parts = &self.parts;
        let asked = parts.local_clock.now();
        let theirs = parts.records.server_time().await?;
        let halfway = parts.local_clock.now().duration_since(asked) / 2;
        let difference = theirs.duration_since(asked) - halfway;
        let (link, names) = (&parts.command_link, &parts.names);
        let journal = match parts.journal.clone() {
            Some(path) => tokio::task::spawn_blocking(move || journal_facts(&path))
                .await
                .unwrap_or_default(),
            None => None,
        };
        let events = events::waiting(link, names, theirs).await?;
        status::status(link, names, difference.as_secs_f64(), events, journal).await
    }

    async fn usage(
        &self,
        from: Date,
        to: Date,
        key: Option<KeyId>,
    ) -> Result<Vec<DayUsage>, StoreError> {
        let keys = self.parts.ids(key).await?;
        ledger::usage(&self.parts.command_link, &self.parts.names, &keys, from, to).await
    }

    async fn usage_of(
        &self,
        from: Date,
        to: Date,
        keys: &[KeyId],
    ) -> Result<Vec<DayUsage>, StoreError> {
        let (link, names) = (&self.parts.command_link, &self.parts.names);
        ledger::usage(link, names, keys, from, to).await
    }

    async fn day_of(&self, date: Date, keys: &[KeyId]) -> Result<Vec<DayUsage>, StoreError> {
        let (link, names) = (&self.parts.command_link, &self.parts.names);
        ledger::usage(link, names, keys, date, date).await
    }

    async fn prove(
        &self,
        from: Date,
        to: Date,
        key: Option<KeyId>,
    ) -> Result<Vec<Proof>, StoreError> {
        let keys = self.parts.ids(key).await?;
        ledger::prove(&self.parts.command_link, &self.parts.names, &keys, from, to).await
    }
}

//! A gateway's replica of the key table: loading, following, repairing and saving it.
//!
//! The table is followed through the feed (a Redis stream) on a connection of its own. Invariants: the position
//! reported as applied is never ahead of the table, because loading begins only after that position was read. No change is
//! missed: the position is discarded and all keys are loaded again when the server was replaced or restarted, when the store's
//! incarnation is missing or another, and when the stream ends before the position or no longer contains it.
//!
//! What the store has lost by then is written back (`feed/repair.rs`).

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::codec::{parse_place, stream_id, unpacked};
use super::index::{self, IndexState, KeyPages};
use super::records::{WrittenBack, write_back};
use super::replica::{FeedPosition, Replica, ReplicaOrigin};
use super::stream::{ChangeStream, READ_MAX, StreamState};
use crate::clock::{Clock, next_tick};
use crate::policy::failure_log::LoggedReasons;
use crate::policy::key_record::KeyRecord;
use crate::store::current::Current;
use crate::store::redis::gateways::heartbeat::Heartbeat;
use crate::store::redis::wire::link::RedisLink;
use crate::store::redis::wire::remedies::is_of_user;
use crate::store::redis::wire::request::jittered;
use crate::store::{Freshness, KeyTable, StoreError, on_thread};

mod repair;

/// How long a lost feed waits before it connects again, before jitter.
const RECONNECT: Duration = Duration::from_millis(500);
/// The longest pause before all keys are loaded again for the same reason, before jitter.
const RELOAD_PAUSE_MAX: Duration = Duration::from_secs(10);
/// How soon a failed save is repeated, and records of a walk are saved. Changes of the feed are saved at once.
const SAVE_EVERY: Duration = Duration::from_secs(1);
/// The pause after a save is as long as the save, within these bounds: commands wait for the next one.
const SAVE_PAUSE: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_millis(300);
/// How often the instant of the last currency is saved if nothing changed.
const SAVE_UNCHANGED_EVERY: Duration = Duration::from_secs(30);
/// How far a saved instant may be ahead of this machine's clock and still be trusted.
const CLOCK_BACK_MAX: SignedDuration = SignedDuration::from_mins(5);

/// The follower of the feed.
pub struct Feed {
    /// The commands' link.
    link: Arc<RedisLink>,
    /// The table that the feed updates.
    keys: Arc<KeyTable>,
    /// The time zone of the quota days, to be stored again in an emptied store.
    zone: String,
    /// The wall clock, for saved instants.
    clock: Clock,
    /// The position of the last applied change; `None` before the table is loaded.
    applied: watch::Sender<Option<u128>>,
    /// The incarnation of the store to which these positions belong.
    origin: Mutex<ReplicaOrigin>,
    /// [`RedisLink::replaced`] before the table was last loaded from Redis.
    replaced: AtomicU64,
    /// Whether the table was loaded, from Redis or from the saved replica, and when it was current.
    pub current: Current,
    /// Whether Redis itself was read since the start.
    has_followed: watch::Sender<bool>,
    /// The error that interrupts the feed.
    trouble: ArcSwapOption<StoreError>,
    /// Notified when there is a change to report in a heartbeat.
    advanced: Notify,
    /// Notified when there is a change to save.
    save_due: Notify,
    /// Notified when the store may have lost writes.
    pub store_lost: Notify,
    replica: Option<Arc<Replica>>,
    /// The position of the saved replica, if it has one.
    saved: Mutex<Option<u128>>,
    /// Why the replica cannot be saved.
    save_trouble: ArcSwapOption<String>,
}

/// A gateway's position, as one connection knows it.
struct FeedConnection<'a> {
    feed: &'a Feed,
    stream: ChangeStream,
    /// The processes of all servers that were reachable when the connection was made.
    run_ids: BTreeSet<String>,
    reload: &'a mut Option<RepeatedLoad>,
}

/// Why all keys are loaded again, until a look finds no reason to. Kept across connections, because a load that fails may end one.
struct RepeatedLoad {
    why: &'static str,
    /// The processes for which it was noticed.
    run_ids: BTreeSet<String>,
    /// The pause after the next load, before jitter.
    pause: Duration,
    /// When the present pause ends, unless another connection to Redis is made than the `made` ones before it.
    end: Instant,
    made: u64,
    /// Whether all keys were read, although not all that Redis lost could be written back.
    is_read: bool,
}

impl RepeatedLoad {
    /// The first load for a reason, which does not wait.
    fn new(why: &'static str, run_ids: BTreeSet<String>) -> RepeatedLoad {
        RepeatedLoad {
            why,
            run_ids,
            pause: RECONNECT,
            end: Instant::now(),
            made: 0,
            is_read: false,
        }
    }

    fn is_of(&self, why: &str, run_ids: &BTreeSet<String>) -> bool {
        self.why == why && self.run_ids == *run_ids
    }

    fn begin_pause(&mut self, made: u64) {
        self.end = Instant::now() + jittered(self.pause);
        self.pause = (2 * self.pause).min(RELOAD_PAUSE_MAX);
        self.made = made;
    }

    fn pauses(&self, made: u64) -> bool {
        made == self.made && Instant::now() < self.end
    }
}

/// What a look at the store has made of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Followed {
    /// It lacks only changes after its position.
    Whole,
    /// It may also lack keys of masters of a cluster that are away.
    InPart,
}

impl Feed {
    /// A feed that has not begun; with a saved replica, it begins at the replica's position.
    pub fn new(
        link: Arc<RedisLink>,
        keys: Arc<KeyTable>,
        zone: String,
        clock: Clock,
        replica: Option<Arc<Replica>>,
    ) -> Feed {
        Feed {
            link,
            keys,
            zone,
            clock,
            applied: watch::Sender::new(None),
            origin: Mutex::default(),
            replaced: AtomicU64::new(0),
            current: Current::never(),
            has_followed: watch::Sender::new(false),
            trouble: ArcSwapOption::empty(),
            advanced: Notify::new(),
            save_due: Notify::new(),
            store_lost: Notify::new(),
            replica,
            saved: Mutex::default(),
            save_trouble: ArcSwapOption::empty(),
        }
    }

    /// Begins with the saved records and position.
    pub fn begin_with(&self, records: Vec<KeyRecord>, at: FeedPosition) {
        let keys = records.len();
        for record in records {
            self.keys.apply(record);
        }
        if let Some(replica) = &self.replica {
            replica.note_saved(&self.keys);
        }
        let age = self.clock.now().duration_since(at.current_at);
        // A saved instant in the future gives no age: the clock was set back.
        let age = if age < -CLOCK_BACK_MAX {
            Duration::MAX
        } else {
            Duration::try_from(age).unwrap_or_default()
        };
        tracing::info!(
            keys,
            age_seconds = age.as_secs(),
            "keys loaded from the saved replica"
        );
        *self.origin.lock() = at.origin;
        *self.saved.lock() = Some(at.place);
        self.current.note_current(age);
        self.advance(at.place);
    }

    /// Waits until the table was as current as Redis.
    pub async fn followed(&self) {
        let _ = self.has_followed.subscribe().wait_for(|has| *has).await;
    }

    /// Why the table, which is as fresh as this, does not follow Redis until an operator acts, and what to do. Of a table that cannot be
    /// used also an error that ends by itself.
    pub fn trouble(&self, keys: Freshness) -> Option<String> {
        let error = self.trouble.load_full()?;
        let is_reported = !(error.is_transient() && keys.usable);
        is_reported.then(|| format!("the key table does not follow Redis: {error}"))
    }

    /// Why the replica cannot be saved, and the remedy.
    pub fn save_trouble(&self) -> Option<String> {
        self.save_trouble.load().as_deref().cloned()
    }

    fn note_current_now(&self) {
        self.current.note_current(Duration::ZERO);
        if !self.has_followed.send_replace(true) {
            self.save_due.notify_one();
        }
    }

    fn advance(&self, place: u128) {
        self.applied.send_replace(Some(place));
        self.current.note_loaded();
        match self.replica {
            None => self.advanced.notify_one(),
            Some(_) => self.save_due.notify_one(),
        }
    }

    /// Follows the feed. Never returns.
    pub async fn follow(self: Arc<Self>) {
        let mut logged = LoggedReasons::default();
        let mut reload = None;
        loop {
            let Err(error) = self.follow_one_connection(&mut logged, &mut reload).await;
            let text = error.to_string();
            if logged.is_new(&text) {
                tracing::warn!(error = %text, "the feed of key changes is interrupted");
            }
            self.trouble.store(Some(Arc::new(error)));
            tokio::time::sleep(jittered(RECONNECT)).await;
        }
    }

    async fn follow_one_connection(
        &self,
        logged: &mut LoggedReasons,
        reload: &mut Option<RepeatedLoad>,
    ) -> Result<std::convert::Infallible, StoreError> {
        // Only a server that the link has accepted (zone, readiness) is followed.
        let link = &self.link;
        link.require()?;
        let made = link.made();
        let name = link.names.feed();
        let apart = link.connect_apart(&name).await?;
        let stream = ChangeStream::new(apart.connection, apart.asks, name.clone());
        let mut run_ids = link.run_ids().await;
        run_ids.insert(stream.run_id().await?);
        let mut follower = FeedConnection {
            feed: self,
            stream,
            run_ids,
            reload,
        };
        loop {
            if link.made() != made {
                // A demoted server continues to answer, and may be behind the current master.
                return Err(StoreError::Unavailable(
                    "another connection was made".into(),
                ));
            }
            if link.owner(&name) != apart.owner {
                // So does one whose slot was moved, or that does not know that it was replaced.
                return Err(StoreError::Unavailable(
                    "another node of the cluster serves the feed".into(),
                ));
            }
            let followed = follower.catch_up().await?;
            let changes = follower.read_changes().await?;
            logged.ended();
            if changes < READ_MAX && followed == Followed::Whole {
                self.note_current_now();
                self.trouble.store(None);
            }
        }
    }

    /// Reads all records, then sets the position to `place`, which was read before. The result is that of writing back what Redis lacks,
    /// which it may refuse; until it has succeeded, the store counts as one that has lost something.
    async fn load(
        &self,
        place: u128,
        run_ids: &BTreeSet<String>,
        lookups: Lookups,
    ) -> Result<Result<(), StoreError>, StoreError> {
        let link = &self.link;
        let replaced = link.replaced();
        let state = index::state(link).await?;
        // Before the walk: if the store is emptied meanwhile, what is completed afterwards is not of its incarnation.
        let incarnation = match &state.incarnation {
            Some(incarnation) => Ok(Some(incarnation.clone())),
            None => index::begin_incarnation(link).await,
        };
        let walked = self.walk(KeyPages::of(&state)).await?;
        let lookups = match state.is_complete {
            true => lookups,
            false => Lookups::Lost,
        };
        let written = async {
            let incarnation = incarnation?;
            self.write_back(&walked, lookups).await?;
            if !state.is_complete
                && let Some(incarnation) = &incarnation
            {
                index::completed(link, incarnation).await?;
            }
            *self.origin.lock() = ReplicaOrigin {
                incarnation: incarnation.unwrap_or_default(),
                run_ids: run_ids.clone(),
            };
            self.replaced.store(replaced, Ordering::Release);
            Ok(())
        };
        let written = written.await;
        self.advance(place);
        self.note_current_now();
        Ok(written)
    }

    /// The gateway's heartbeat, as far as the feed knows it. A change that is applied but not saved is not reported: a restart without
    /// Redis would undo it.
    pub fn heartbeat(&self) -> Heartbeat {
        let age = self.current.age();
        let lasting = match self.replica {
            None => *self.applied.borrow(),
            Some(_) => *self.saved.lock(),
        };
        Heartbeat {
            applied: stream_id(lasting.unwrap_or(0)),
            replica_error: self.save_trouble(),
            keys_age_ms: u64::try_from(age.as_millis())
                .ok()
                .filter(|_| age < Duration::MAX),
            keys: self.keys.len(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Heartbeat::default()
        }
    }

    /// Waits until a change is to be reported. For one task only, which sends the heartbeats.
    pub async fn advanced(&self) {
        self.advanced.notified().await;
    }

    /// Saves the replica again and again.
    pub async fn save_for_ever(self: Arc<Self>) {
        let mut saved_changes = None;
        let mut saved_at = Instant::now();
        loop {
            tokio::select! {
                () = self.save_due.notified() => {}
                () = next_tick(SAVE_EVERY) => {}
            }
            let changes = Some((self.keys.changes(), *self.applied.borrow()));
            if changes == saved_changes && saved_at.elapsed() < SAVE_UNCHANGED_EVERY {
                continue;
            }
            let began = Instant::now();
            match self.save().await {
                Ok(true) => {
                    (saved_changes, saved_at) = (changes, Instant::now());
                    if self.save_trouble.swap(None).is_some() {
                        tracing::warn!("the replica of the key table is saved again");
                    }
                }
                Ok(false) => {}
                Err(error) => {
                    let why = Arc::new(error.to_string());
                    if self.save_trouble.swap(Some(why.clone())) != Some(why) {
                        tracing::error!(%error, "the replica of the key table is not saved; trying again");
                    }
                }
            }
            let pause = began.elapsed();
            tokio::time::sleep(pause.clamp(*SAVE_PAUSE.start(), *SAVE_PAUSE.end())).await;
        }
    }

    /// Saves the replica; `false` if there is none, or if the table is not loaded yet.
    pub async fn save(&self) -> Result<bool, StoreError> {
        let (Some(replica), Some(position)) = (self.replica.clone(), self.position()) else {
            return Ok(false);
        };
        let (keys, place) = (self.keys.clone(), position.place);
        let save = move || replica.save(&keys, &position);
        on_thread("saving the replica", save).await??;
        *self.saved.lock() = Some(place);
        self.advanced.notify_one();
        Ok(true)
    }

    /// The position of the table; read before the table, so that it is never ahead of it.
    fn position(&self) -> Option<FeedPosition> {
        let origin = self.origin.lock().clone();
        let place = (*self.applied.borrow())?;
        let age = SignedDuration::try_from(self.current.age()).ok()?;
        let current_at = self.clock.now().checked_sub(age);
        Some(FeedPosition {
            place,
            current_at: current_at.unwrap_or(Timestamp::MIN),
            origin,
        })
    }
}

/// Whether the sets and names by which records are found are known to be whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lookups {
    /// No loss was noticed since they were completed.
    Trusted,
    /// Some may be missing: a charge that restores a lost record does not enter them.
    Lost,
}

impl FeedConnection<'_> {
    /// Ensures that no change before the next read is missed.
    async fn catch_up(&mut self) -> Result<Followed, StoreError> {
        let feed = self.feed;
        let state = self.stream.state().await?;
        let applied = *feed.applied.borrow();
        let Some(place) = applied else {
            let loaded = feed.load(state.last, &self.run_ids, Lookups::Trusted);
            return loaded.await?.map(|()| Followed::Whole);
        };
        match self.lost(&state, place).await? {
            None => {
                *self.reload = None;
                if state.last == place {
                    feed.note_current_now();
                }
                Ok(Followed::Whole)
            }
            Some(why) => self.load_again(why, &state, place).await,
        }
    }

    /// Loads all keys because changes may be missing. The first time for a reason, what else may be lost is repeated at once.
    async fn load_again(
        &mut self,
        why: &'static str,
        state: &StreamState,
        place: u128,
    ) -> Result<Followed, StoreError> {
        let feed = self.feed;
        let link = &feed.link;
        // While other masters of a cluster are away, or Redis refuses writes, the feed itself can be read.
        let is_read = self.reload.as_ref().is_some_and(|reload| reload.is_read);
        let reads_on =
            (link.is_cluster() || is_read) && self.stream.lost(state, place).await?.is_none();
        let is_repeated = match self.reload {
            Some(reload) if reload.is_of(why, &self.run_ids) => {
                // Loading failed or did not help: Redis is not to be asked for all keys again and again without a pause.
                while reload.pauses(link.made()) {
                    if reads_on {
                        return Ok(match reload.is_read {
                            true => Followed::Whole,
                            false => Followed::InPart,
                        });
                    }
                    sleep_until(reload.end.min(Instant::now() + RECONNECT)).await;
                }
                true
            }
            Some(_) | None => {
                *self.reload = Some(RepeatedLoad::new(why, self.run_ids.clone()));
                tracing::warn!(
                    why,
                    "the feed of key changes no longer contains this gateway's position: loading all keys again"
                );
                feed.store_lost.notify_one();
                false
            }
        };
        let loaded = self.load_and_write_back(state.last).await;
        match loaded {
            Err(error) if reads_on && error.is_transient() => {
                if !is_repeated {
                    tracing::warn!(%error, "not all keys can be loaded yet; changes are read meanwhile");
                }
                feed.trouble.store(Some(Arc::new(error)));
                Ok(Followed::InPart)
            }
            Err(error) => Err(error),
            Ok(Err(error)) => {
                if !is_repeated {
                    tracing::warn!(%error, "what Redis has lost cannot be written back yet; changes of keys are followed meanwhile");
                }
                Ok(Followed::Whole)
            }
            Ok(Ok(())) => {
                if is_repeated {
                    // More may have been lost since the first time.
                    feed.store_lost.notify_one();
                }
                Ok(Followed::Whole)
            }
        }
    }

    /// Loads all keys, up to the position `last`, and writes back what Redis has lost; the inner result is that of the latter. Another
    /// load is paused after it.
    async fn load_and_write_back(
        &mut self,
        last: u128,
    ) -> Result<Result<(), StoreError>, StoreError> {
        let feed = self.feed;
        let loaded = async {
            let zone = feed.remember_zone().await;
            if let Err(error @ StoreError::OtherCalendar(_)) = zone {
                return Err(error);
            }
            let written = feed.load(last, &self.run_ids, Lookups::Lost).await?;
            Ok(zone.and(written))
        };
        let loaded = match loaded.await {
            Ok(Err(error)) if is_of_user(&error.to_string()) => Err(error),
            loaded => loaded,
        };
        if let Ok(Err(_)) = loaded {
            // The loss is noticed again, however it was noticed now.
            *feed.origin.lock() = ReplicaOrigin::default();
        }
        if let Some(reload) = self.reload {
            reload.begin_pause(feed.link.made());
            reload.is_read |= loaded.is_ok();
        }
        loaded
    }

    /// Why changes after `place` may be missing from the stream; `None` if they are not.
    async fn lost(
        &mut self,
        state: &StreamState,
        place: u128,
    ) -> Result<Option<&'static str>, StoreError> {
        let link = &self.feed.link;
        let origin = self.feed.origin.lock().clone();
        if !self.run_ids.is_subset(&origin.run_ids) {
            return Ok(Some("Redis was restarted or replaced"));
        }
        if link.replaced() != self.feed.replaced.load(Ordering::Acquire) {
            return Ok(Some("slots of the cluster passed to another node"));
        }
        match index::state(link).await {
            Ok(IndexState { incarnation, .. })
                if incarnation.clone().unwrap_or_default() != origin.incarnation =>
            {
                return Ok(Some("Redis was emptied"));
            }
            Ok(IndexState { is_complete, .. }) if !is_complete => {
                return Ok(Some("a part of Redis was emptied"));
            }
            Ok(_) => {}
            // Another master of the cluster than the feed's is unavailable: the next read checks it again.
            Err(StoreError::Unavailable(_)) if link.is_cluster() => {}
            Err(error) => return Err(error),
        }
        self.stream.lost(state, place).await
    }

    /// Waits for the next changes, applies them and returns their number.
    async fn read_changes(&mut self) -> Result<usize, StoreError> {
        let feed = self.feed;
        let place = feed.applied.borrow().unwrap_or(0);
        let entries = self.stream.read(place).await?;
        let (mut last, mut count, mut lost) = (None, 0, Vec::new());
        for (id, fields) in entries {
            count += 1;
            match fields.get("rec").map(|packed| unpacked(packed)) {
                Some(Ok(record)) => lost.extend(feed.apply(record)),
                Some(Err(error)) => tracing::error!(id, %error, "a change is skipped"),
                None => tracing::error!(id, "a change without a record is skipped"),
            }
            last = parse_place(&id).or(last);
        }
        if let Some(place) = last {
            feed.advance(place);
        }
        if lost.is_empty() {
            return Ok(count);
        }
        let written = async {
            write_back(&feed.link, &lost, WrittenBack::Whole).await?;
            feed.publish(lost.iter()).await
        };
        if let Err(error) = written.await {
            tracing::warn!(%error, "revocations are not written back; trying again within ten minutes");
        }
        Ok(count)
    }
}

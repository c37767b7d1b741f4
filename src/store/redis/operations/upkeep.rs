//! The background tasks of a store: connections, breaker, refunds and ledger, a gateway's replica of the key table.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::clock::{Periodic, lasting, next_tick};
use crate::store::clock_watch;
use crate::store::redis::gateways::presence::Presence;
use crate::store::redis::keys::feed::Feed;
use crate::store::redis::outage::OutageService;
use crate::store::redis::parts::Parts;
use crate::store::redis::recovery::CrashRecovery;
use crate::store::redis::wire::link::RedisLink;

/// How often refunds and ledger are written.
const FLUSH_EVERY: Duration = Duration::from_millis(200);
/// How often if there was nothing to write for [`QUIET_AFTER`].
const FLUSH_WHEN_QUIET: Duration = Duration::from_secs(1);
const QUIET_AFTER: Duration = Duration::from_secs(10);
/// How often the breaker is checked while it is open: a new connection is probed at once.
const LOOK_WHILE_OPEN: Duration = Duration::from_millis(20);
/// How often it is checked while it is closed: a request that Redis does not decide has it checked at once.
const LOOK_WHILE_CLOSED: Duration = Duration::from_secs(1);
/// How often Redis is asked for its time, which also checks the connection of a gateway without traffic.
const PROBE_EVERY: Duration = clock_watch::LOOK_EVERY;
/// How often accounts and totals of past days are dropped, which looks at all of them.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// How often it is checked whether there are too many accounts, and idle ones are dropped then.
const COUNT_EVERY: Duration = Duration::from_secs(10);

/// Starts the background tasks, none of which ends.
pub fn tasks(parts: &Arc<Parts>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for link in [&parts.link, &parts.command_link] {
        tasks.spawn(lasting::task("link", link.clone(), RedisLink::keep));
    }
    let own = || parts.clone();
    tasks.spawn(lasting::task("breaker", own(), Parts::watch_for_ever));
    tasks.spawn(lasting::task("flush", own(), Parts::flush_for_ever));
    if let Some(outage) = parts.outage.clone() {
        tasks.spawn(lasting::task("outage", outage, OutageService::keep));
    }
    if let Some(feed) = &parts.feed {
        tasks.spawn(lasting::task("feed", feed.clone(), Feed::follow));
        tasks.spawn(lasting::task("repair", feed.clone(), Feed::repair));
        tasks.spawn(lasting::task("save", feed.clone(), Feed::save_for_ever));
        tasks.spawn(lasting::task("retention", own(), Parts::retain_for_ever));
        if let Some(presence) = &parts.presence {
            let state = (presence.clone(), feed.clone(), own());
            tasks.spawn(lasting::task("presence", state, keep_presence));
        }
        if let Some(outage) = &parts.outage {
            let state = (outage.clone(), feed.clone(), own());
            tasks.spawn(lasting::task("recovery", state, |(outage, feed, parts)| {
                CrashRecovery::new(parts, outage).keep(feed)
            }));
        }
    }
    tasks
}

/// Keeps this gateway among the live ones. Never returns.
async fn keep_presence((presence, feed, parts): (Arc<Presence>, Arc<Feed>, Arc<Parts>)) {
    let heartbeat = || parts.heartbeat(&feed);
    let see_live = |live| {
        if let Some(outage) = &parts.outage {
            outage.note_nodes(live);
        }
    };
    presence.keep(feed.clone(), heartbeat, see_live).await;
}

impl Parts {
    /// Checks the breaker. Never returns.
    async fn watch_for_ever(self: Arc<Self>) {
        loop {
            if let Some(turn) = self.guard.look().await {
                match &self.outage {
                    Some(outage) => outage.breaker_changed(turn),
                    None => tracing::warn!(?turn, "the circuit breaker of Redis changed its state"),
                }
            }
            let regular = next_tick(match self.guard.is_closed() {
                true => LOOK_WHILE_CLOSED,
                false => LOOK_WHILE_OPEN,
            });
            tokio::select! {
                () = regular => {}
                () = self.guard.turning() => {}
            }
        }
    }

    /// Writes refunds and ledger; after a reconnection, everything, and also when it is begun again after a panic: writes may have been
    /// interrupted and a reconnection missed. Never returns.
    async fn flush_for_ever(self: Arc<Self>) {
        let mut connections = self.connections_at_start.swap(0, Ordering::AcqRel);
        let (mut sweep, mut probe) = (Periodic::new(SWEEP_EVERY), Periodic::new(PROBE_EVERY));
        let mut count = Periodic::new(COUNT_EVERY);
        let mut unwritten_at = Instant::now();
        loop {
            let lost = async {
                match &self.feed {
                    Some(feed) => feed.store_lost.notified().await,
                    None => std::future::pending().await,
                }
            };
            let period = match unwritten_at.elapsed() < QUIET_AFTER {
                true => FLUSH_EVERY,
                false => FLUSH_WHEN_QUIET,
            };
            let store_lost = tokio::select! {
                () = next_tick(period) => false,
                () = lost => true,
            };
            let made = self.link.made();
            if store_lost || connections != made {
                connections = made;
                self.losses.fetch_add(1, Ordering::AcqRel);
                self.accounts.repeat_all().await;
                self.ledger.repeat_all().await;
                if let Some(outage) = &self.outage {
                    outage.repeat_all();
                }
            }
            // Not the accounts: of many, the counts of some are always being read again. Without traffic, late calls are settled each second.
            if !self.ledger.is_written() {
                unwritten_at = Instant::now();
            }
            self.flush().await;
            if probe.is_due() {
                self.probe().await;
            }
            let is_crowded = count.is_due() && self.accounts.are_crowded();
            if sweep.is_due() {
                self.accounts.sweep().await;
                if let Some(now) = self.clock.now_unless_leapt() {
                    self.ledger.sweep(now.as_second()).await;
                }
            } else if is_crowded {
                self.accounts.sweep().await;
            }
        }
    }

    /// Asks Redis for its time; a gateway compares it, or its estimate, with the boot-time clock.
    async fn probe(&self) {
        let asked = self.clock.ask();
        // The link reacts to a failure.
        let theirs = self.link.time().await;
        if self.feed.is_none() {
            return;
        }
        if let Ok(theirs) = theirs {
            self.clock.learn(asked, theirs);
        }
        self.clock.look();
    }

    /// Writes refunds and ledger; returns whether everything is written. Logs a new reason why the ledger is not, once.
    pub async fn flush(&self) -> bool {
        let mut logged = self.flushing.lock().await;
        self.accounts.settle().await;
        match self.ledger.write().await {
            Ok(()) => logged.ended(),
            Err(error) if logged.is_new(&error.to_string()) => {
                tracing::warn!(%error, "the ledger is not written; trying again");
            }
            Err(_) => {}
        }
        self.is_written()
    }

    fn is_written(&self) -> bool {
        self.accounts.is_settled() && self.ledger.is_written()
    }
}

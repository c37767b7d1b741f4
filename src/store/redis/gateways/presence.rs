//! A gateway's own entry in the [`super::register`], the entries of its predecessors, and the silent gateways.
//!
//! A process that takes over a [gateway id](super::gateway_id) replaces the entry of the killed process that held it. It removes
//! the entries of the other ids beside its replica whose processes have ended, because a process that starts from that replica
//! takes one of these ids. It restores entries that the store lost, as far as it has read them. If another machine signs in with
//! a copy of the id, this gateway takes a new one.
//!
//! Not here: whether a silent gateway of another machine is dead, which only an operator can know.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use super::gateway_id::GatewayId;
use super::heartbeat::{BEAT_EVERY, BEAT_HOLDS, Heartbeat};
use super::register::{self, RegisterEntry};
use crate::clock::{Periodic, next_tick};
use crate::store::redis::keys::feed::Feed;
use crate::store::redis::wire::guard::BreakerGuard;
use crate::store::redis::wire::link::RedisLink;
use crate::store::{NodeName, StoreError, on_thread};

/// How often a gateway reads the register.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How soon a failed sign-in is repeated: commands wait for it. Without a connection, an attempt costs nothing.
const SIGN_IN_AGAIN: Duration = Duration::from_millis(100);

/// A gateway in the register.
pub struct Presence {
    link: Arc<RedisLink>,
    guard: Arc<BreakerGuard>,
    node: NodeName,
    /// The replica from which it and its successors start.
    replica: Option<PathBuf>,
    gateway_id: Mutex<GatewayId>,
    /// The other gateways that were silent when the register was last read.
    silent: Mutex<Vec<RegisterEntry>>,
    trouble: ArcSwapOption<String>,
}

/// What a gateway knows of the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Nothing: it has not signed in.
    Nothing,
    /// What the store has.
    Same,
    /// Entries that the store lost.
    More,
}

impl Presence {
    /// A gateway that has not signed in.
    pub async fn new(
        link: Arc<RedisLink>,
        guard: Arc<BreakerGuard>,
        node: NodeName,
        replica: Option<PathBuf>,
    ) -> Result<Presence, StoreError> {
        let beside = replica.clone();
        let take = move || GatewayId::take(beside.as_deref());
        let gateway_id = on_thread("taking a gateway id", take).await?;
        Ok(Presence {
            link,
            guard,
            node,
            replica,
            gateway_id: Mutex::new(gateway_id),
            silent: Mutex::default(),
            trouble: ArcSwapOption::empty(),
        })
    }

    /// The number of gateways that did not sign off and have sent no recent heartbeat, as last read.
    pub fn silent(&self) -> u64 {
        self.silent.lock().len() as u64
    }

    /// Sends heartbeats, each the present one, and reads the register. `see_live` gets the number of live gateways. It is not counted
    /// while Redis takes no heartbeats, nor right after that, when the others' are not back yet. Never returns.
    pub async fn keep(
        self: Arc<Self>,
        feed: Arc<Feed>,
        heartbeat: impl Fn() -> Heartbeat,
        see_live: impl Fn(u64),
    ) {
        let (mut known, mut look) = (Known::Nothing, Periodic::due_now(LOOK_EVERY));
        let mut failed_at = None::<Instant>;
        loop {
            let beaten = self.beat(&heartbeat(), &mut known).await;
            if beaten.is_err() {
                self.note(beaten);
                failed_at = Some(Instant::now());
                tokio::time::sleep(SIGN_IN_AGAIN).await;
                continue;
            }
            let is_settled = failed_at.is_none_or(|at| at.elapsed() >= BEAT_HOLDS);
            if look.is_due() && is_settled {
                self.note(self.look_around(&see_live).await);
            }
            tokio::select! {
                () = feed.advanced() => {}
                () = next_tick(BEAT_EVERY) => {}
            }
        }
    }

    /// Notes whether the register can be used, unless Redis as a whole cannot, and logs each new reason.
    fn note(&self, outcome: Result<(), StoreError>) {
        let failed = outcome.err();
        if failed.as_ref().is_some_and(StoreError::is_transient) {
            return;
        }
        let failed = failed.filter(|_| self.guard.is_closed());
        let trouble =
            failed.map(|error| format!("the register of gateways cannot be used: {error}"));
        let before = self.trouble.swap(trouble.clone().map(Arc::new));
        if let Some(trouble) = trouble.filter(|trouble| before.as_deref() != Some(trouble)) {
            tracing::error!("{trouble}");
        }
    }

    /// Why the register cannot be used until an operator acts, and the remedy: this gateway does not learn how many there are.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.load().as_deref().cloned()
    }

    async fn beat(&self, heartbeat: &Heartbeat, known: &mut Known) -> Result<(), StoreError> {
        let gateway_id = self.gateway_id.lock().id().to_owned();
        let sent = register::sign_in(&self.link, &gateway_id, &self.node, heartbeat).await;
        let before = sent.inspect_err(|error| self.guard.note_refusal(error))?;
        match before {
            Some(node) if node == self.node => {}
            Some(killed) if *known == Known::Nothing => {
                tracing::info!(%killed, "takes over the entry of a gateway that did not sign off");
            }
            Some(other) => {
                tracing::warn!(%other, "another gateway signs in with the same id, which is a copy: this one takes another id");
                register::sign_off(&self.link, &gateway_id).await?;
                self.gateway_id.lock().rename();
            }
            None if *known != Known::Nothing => *known = Known::More,
            None => {}
        }
        if *known == Known::More {
            let silent = self.silent.lock().clone();
            register::put_back(&self.link, &silent).await?;
        }
        *known = Known::Same;
        Ok(())
    }

    async fn look_around(&self, see_live: &impl Fn(u64)) -> Result<(), StoreError> {
        let own = self.gateway_id.lock().id().to_owned();
        let mut silent = register::read(&self.link).await?;
        if !silent.iter().any(|entry| entry.gateway_id == own) {
            // The store has lost it since the heartbeat: the next one puts back what is known.
            return Ok(());
        }
        see_live(silent.iter().filter(|entry| entry.is_live()).count() as u64);
        silent.retain(|entry| !entry.is_live() && entry.gateway_id != own);
        if !silent.is_empty() {
            self.take_off_ended(&mut silent).await?;
        }
        let mut known = self.silent.lock();
        for entry in &silent {
            if !known.iter().any(|known| known.name == entry.name) {
                let (gateway, since) = (&entry.name, entry.heard);
                tracing::warn!(%gateway, %since, "a gateway has stopped without signing off");
            }
        }
        *known = silent;
        Ok(())
    }

    /// Removes the entries of processes that ended on this machine.
    async fn take_off_ended(&self, silent: &mut Vec<RegisterEntry>) -> Result<(), StoreError> {
        let Some(replica) = self.replica.clone() else {
            return Ok(());
        };
        let read = move || GatewayId::vacant(&replica);
        let vacant = on_thread("reading the gateway ids", read).await?;
        // Held until their entries are removed, so that no process signs in at one of them meanwhile.
        let vacant =
            vacant.map_err(|error| StoreError::Failed(format!("the gateway ids: {error}")))?;
        let mut kept = Vec::new();
        for entry in silent.drain(..) {
            let ended = vacant.iter().any(|id| id.id() == entry.gateway_id);
            if ended && register::remove(&self.link, &entry).await? {
                let killed = &entry.name;
                tracing::info!(%killed, "a gateway of this machine ended without signing off: its entry in the register is removed");
            } else {
                kept.push(entry);
            }
        }
        *silent = kept;
        Ok(())
    }

    /// Signs off: this gateway shuts down in an orderly way.
    pub async fn sign_off(&self) -> Result<(), StoreError> {
        let gateway_id = self.gateway_id.lock().id().to_owned();
        register::sign_off(&self.link, &gateway_id).await
    }
}

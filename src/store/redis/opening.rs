//! Opening the store: its parts are made, from the lowest layer up, and a gateway waits shortly for its keys.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::time::timeout;

use super::clock::StoreClock;
use super::counts::accounts::Accounts;
use super::counts::ledger::ProcessLedger;
use super::gateways::presence::Presence;
use super::identity::StoreIdentity;
use super::keys::feed::Feed;
use super::keys::records::RecordTable;
use super::keys::replica::{Replica, Saved};
use super::names::Names;
use super::operations::preparing::first_attempt;
use super::outage::OutageService;
use super::parts::Parts;
use super::producer::Producer;
use super::wire::guard::BreakerGuard;
use super::wire::link::RedisLink;
use super::wire::preparation::Preparation;
use super::wire::topology::Topology;
use super::wire::zone::EmptyStore;
use crate::clock::Clock;
use crate::policy::store_settings::RedisSettings;
use crate::store::{KeyTable, NodeName, Role, StoreError, on_thread};

/// The least time that commands wait for a reply: no request waits as long, and giving up leaves an operator in doubt.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);
/// How long opening a gateway's store waits for the key table.
const LOAD_PATIENCE: Duration = Duration::from_secs(2);
/// How long it then waits for the last counts of killed processes.
const RECOVERY_PATIENCE: Duration = Duration::from_secs(2);

/// Makes the parts of a store.
pub async fn open(
    settings: RedisSettings,
    role: Role,
    zone: &str,
    clock: Clock,
) -> Result<Parts, StoreError> {
    let topology = Topology::of(&settings)?;
    let identity = topology.identity(&settings.key_prefix);
    let names = Names::new(&settings.key_prefix, settings.keeping);
    let local_clock = clock.clone();
    let clock = Arc::new(StoreClock::new(clock, settings.keeping.agreement));
    let preparation = Preparation {
        empty_store: match role {
            Role::Gateway(_) => EmptyStore::Claimed,
            Role::Command => EmptyStore::Left,
        },
        names,
        zone: zone.to_owned(),
        clock: clock.clone(),
    };
    let [link, command_link] = links(topology, preparation, settings.timeout, &role).await?;
    let keys = Arc::new(KeyTable::new());
    let producer = Arc::new(Producer::draw());
    let guard = Arc::new(BreakerGuard::new(link.clone()));
    let accounts = Accounts::new(
        guard.clone(),
        producer.clone(),
        keys.clone(),
        clock.clone(),
        settings.timeout,
        settings.accounts_max,
    );
    let ledger = ProcessLedger::new(link.clone(), producer.clone(), clock.clone());
    let journal = settings.outage.as_ref().map(|outage| &outage.journal);
    let mut parts = Parts {
        ledger: Arc::new(ledger),
        outage: None,
        guard,
        connections_at_start: AtomicU64::new(link.made()),
        losses: AtomicU64::new(0),
        flushing: tokio::sync::Mutex::default(),
        records: RecordTable::new(command_link.clone()),
        feed: None,
        presence: None,
        max_staleness: settings.max_staleness,
        journal: journal.cloned(),
        zone: zone.to_owned(),
        zone_claimed: Default::default(),
        keys,
        clock,
        local_clock,
        link,
        command_link,
        accounts,
    };
    if let Role::Gateway(node) = role {
        add_parts_of_gateway(&mut parts, node, &producer, settings, identity).await?;
    }
    Ok(parts)
}

/// The links for the calls of requests and of commands, after the first attempt to connect each.
async fn links(
    topology: Topology,
    preparation: Preparation,
    timeout: Duration,
    role: &Role,
) -> Result<[Arc<RedisLink>; 2], StoreError> {
    let command_timeout = COMMAND_TIMEOUT.max(timeout);
    let request_timeout = match role {
        Role::Gateway(_) => timeout,
        Role::Command => command_timeout,
    };
    let preparation = Arc::new(preparation);
    let links = [request_timeout, command_timeout].map(|timeout| {
        let link = RedisLink::new(topology.clone(), preparation.clone(), timeout);
        Arc::new(link)
    });
    // At once: a server may be far away.
    let [first, second] = &links;
    tokio::try_join!(first_attempt(first, role), first_attempt(second, role))?;
    Ok(links)
}

/// Adds the parts that commands do not have: the service without Redis, the feed, the entry in the register.
async fn add_parts_of_gateway(
    parts: &mut Parts,
    node: NodeName,
    producer: &Producer,
    settings: RedisSettings,
    identity: StoreIdentity,
) -> Result<(), StoreError> {
    if let Some(outage) = settings.outage {
        let (guard, identity) = (parts.guard.clone(), identity.clone());
        let counted = (
            parts.accounts.clone(),
            parts.ledger.clone(),
            parts.clock.clone(),
        );
        let service = OutageService::open(outage, producer.process(), guard, counted, identity);
        parts.outage = Some(service.await?);
    }
    let (replica, saved) = saved_replica(settings.replica.clone(), identity).await?;
    let feed = Feed::new(
        parts.command_link.clone(),
        parts.keys.clone(),
        parts.zone.clone(),
        parts.local_clock.clone(),
        replica.map(Arc::new),
    );
    if let Some((records, position)) = saved {
        feed.begin_with(records, position);
    }
    let (link, guard) = (parts.command_link.clone(), parts.guard.clone());
    let presence = Presence::new(link, guard, node, settings.replica).await?;
    parts.feed = Some(Arc::new(feed));
    parts.presence = Some(Arc::new(presence));
    Ok(())
}

/// Waits until a gateway, if it can reach Redis, has its keys and the last counts of killed processes.
pub async fn await_keys(parts: &Parts) {
    if let Some(feed) = parts.feed.as_ref().filter(|_| parts.link.is_up()) {
        let _ = timeout(LOAD_PATIENCE, feed.followed()).await;
        if let Some(outage) = &parts.outage {
            let _ = timeout(RECOVERY_PATIENCE, outage.until_recovered()).await;
        }
    }
}

/// The replica on this machine, and what is saved in it.
async fn saved_replica(
    path: Option<PathBuf>,
    identity: StoreIdentity,
) -> Result<(Option<Replica>, Option<Saved>), StoreError> {
    let Some(path) = path else {
        return Ok((None, None));
    };
    let open = move || Replica::open(&path, &identity);
    let (replica, saved) = on_thread("opening the replica", open).await??;
    Ok((Some(replica), saved))
}

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
use super::keys::feed::{Feed, FeedSettings};
use super::keys::records::RecordTable;
use super::keys::replica::Replica;
use super::names::Names;
use super::operations::preparing::first_attempt;
use super::outage::OutageService;
use super::parts::Parts;
use super::producer::Producer;
use super::wire::guard::BreakerGuard;
use super::wire::link::RedisLink;
use super::wire::preparation::Preparation;
use super::wire::topology::Topology;
use crate::clock::Clock;
use crate::policy::store_settings::RedisSettings;
use crate::store::{KeyTable, Role, StoreError, on_thread};

/// The least time that commands wait for a reply: no request depends on it, and giving up leaves an operator in doubt.
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
    let preparation = Arc::new(Preparation {
        role: role.clone(),
        names,
        zone: zone.to_owned(),
        clock: clock.clone(),
    });
    let link_of = |timeout| {
        let link = RedisLink::new(topology.clone(), preparation.clone(), timeout);
        Arc::new(link)
    };
    let (link, command_link) = (link_of(request_timeout), link_of(command_timeout));
    for link in [&link, &command_link] {
        first_attempt(link, &role).await?;
    }
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
    let ledger = Arc::new(ProcessLedger::new(
        link.clone(),
        producer.clone(),
        clock.clone(),
    ));
    let outage = match (&role, settings.outage) {
        (Role::Gateway(_), Some(settings)) => {
            let counted = (accounts.clone(), ledger.clone(), clock.clone());
            Some(
                OutageService::open(
                    settings,
                    producer.process(),
                    guard.clone(),
                    counted,
                    topology.identity(&key_prefix),
                )
                .await?,
            )
        }
        (Role::Gateway(_), None) | (Role::Command, _) => None,
    };
    let (feed, presence) = match role {
        Role::Command => (None, None),
        Role::Gateway(node) => {
            let setting = FeedSettings {
                link: command_link.clone(),
                keys: keys.clone(),
                zone: zone.to_owned(),
                clock: local_clock.clone(),
            };
            let identity = topology.identity(&key_prefix);
            let feed = follower(setting, settings.replica.clone(), identity).await?;
            let link = command_link.clone();
            let presence = Presence::new(link, guard.clone(), node, settings.replica).await?;
            (Some(Arc::new(feed)), Some(Arc::new(presence)))
        }
    };
    Ok(Parts {
        ledger,
        outage,
        guard,
        losses: AtomicU64::new(0),
        flushing: tokio::sync::Mutex::default(),
        records: RecordTable::new(command_link.clone()),
        feed,
        presence,
        max_staleness: settings.max_staleness,
        journal,
        zone: zone.to_owned(),
        zone_claimed: Default::default(),
        keys,
        clock,
        local_clock,
        link,
        command_link,
        accounts,
    })
}

/// Waits until a gateway, if it can reach Redis, has its keys and the last counts of killed processes.
pub async fn await_keys(parts: &Parts) {
    if let Some(feed) = parts.feed.as_ref().filter(|_| parts.link.is_up()) {
        let _ = timeout(LOAD_PATIENCE, feed.followed()).await;
        if let Some(outage) = &parts.outage {
            let _ = timeout(RECOVERY_PATIENCE, outage.read()).await;
        }
    }
}

/// A gateway's feed, which begins with the replica saved on this machine.
async fn follower(
    setting: FeedSettings,
    path: Option<PathBuf>,
    identity: StoreIdentity,
) -> Result<Feed, StoreError> {
    let Some(path) = path else {
        return Ok(Feed::new(setting, None));
    };
    let open = move || Replica::open(&path, &identity);
    let (replica, saved) = on_thread("opening the replica", open).await??;
    let feed = Feed::new(setting, Some(Arc::new(replica)));
    if let Some((records, position)) = saved {
        feed.begin_with(records, position);
    }
    Ok(feed)
}

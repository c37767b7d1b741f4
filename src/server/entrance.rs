//! The transition of a composed gateway to one that accepts connections.
//!
//! A gateway that replaces another prepares everything that can fail, then asks its predecessor for confirmation. Only then it
//! accepts connections, and offers its listeners to its own successor ([`super::handover`] has the conversation).
//!
//! Invariant: after an error, no connection was accepted and the predecessor is unchanged.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::error::ServeError;
use super::handover::{Offer, Predecessor, Withdrawal};
use super::listeners::{Bound, Listeners};
use crate::admin::AdminService;
use crate::config::UpstreamConfig;
use crate::policy::address;
use crate::proxy::Gate;
use crate::store::Store;

/// The pause between two attempts of a successor at the names of its servers.
const RESOLVE_PAUSE: Duration = Duration::from_secs(1);
/// The longest attempt at one name.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Accepts connections at `listeners`, after replacing the predecessor if there is one, until `watch` changes. A successor that requests
/// them at `upgrade`, if that is configured, and takes over sets `succeeded`.
///
/// # Errors
/// If a service cannot be prepared, the listeners cannot be offered, or the running gateway was not replaced.
pub async fn open(
    listeners: Listeners,
    upgrade: Option<&Path>,
    gate: &Arc<Gate>,
    predecessor: Option<Predecessor>,
    admin: AdminService,
    watch: &watch::Receiver<bool>,
    succeeded: &watch::Sender<bool>,
) -> Result<(Bound, Option<JoinHandle<()>>), ServeError> {
    let not_offered = |error| {
        let path = upgrade.unwrap_or(Path::new(""));
        ServeError::Offer(path.display().to_string(), error)
    };
    let offer = upgrade.map(|place| {
        let store = gate.store.clone();
        let known = Box::new(move || knows_keys(&*store));
        Offer::prepare(place, listeners.spares()?, known)
    });
    let offer = offer.transpose().map_err(not_offered)?;
    let open = listeners.prepare(gate, admin);
    let open = open.map_err(|error| ServeError::System(error.to_string()))?;
    if let Some(predecessor) = predecessor {
        tracing::info!("ready to take over from the running gateway");
        predecessor.take_over().await?;
        // The predecessor is ending, so this gateway must serve even if a later upgrade is not possible.
        if let Some(Err(error)) = offer.as_ref().map(Offer::publish) {
            tracing::error!(%error, "cannot offer the listeners to a successor: correct listen.upgrade and restart");
        }
    } else if let Some(offer) = &offer {
        if offer.is_made_by_another() {
            return Err(not_offered(ErrorKind::AddrInUse.into()));
        }
        offer.publish().map_err(not_offered)?;
    }
    let bound = open(watch);
    let offering = offer.map(|offer| tokio::spawn(offer.serve(succeeded.clone())));
    Ok((bound, offering))
}

/// Waits until each upstream of a successor has a server, whose names are resolved again each second.
///
/// # Errors
/// [`Withdrawal::Unresolved`], and those of [`Predecessor::wait_for`].
pub async fn await_servers(
    predecessor: &mut Predecessor,
    upstreams: &mut [(Arc<str>, UpstreamConfig)],
) -> Result<(), Withdrawal> {
    for (name, upstream) in upstreams {
        let servers = &mut upstream.servers;
        if servers.iter().any(|server| !server.addresses.is_empty()) {
            continue;
        }
        tracing::warn!(upstream = %name, "no server of the upstream can be resolved: the running gateway continues meanwhile");
        let resolved = async {
            while servers.iter().all(|server| server.addresses.is_empty()) {
                sleep(RESOLVE_PAUSE).await;
                for server in servers.iter_mut() {
                    let found = timeout(RESOLVE_TIMEOUT, lookup_host(&server.name)).await;
                    let found = found.ok().and_then(Result::ok);
                    let found = found.map(Iterator::collect).unwrap_or_default();
                    server.addresses = address::of_one_family(found);
                    if !server.addresses.is_empty() {
                        break;
                    }
                }
            }
        };
        let late = Withdrawal::Unresolved {
            upstream: name.to_string(),
        };
        predecessor.wait_for(resolved, late).await?;
    }
    Ok(())
}

/// Whether a gateway knows keys: one that does is not replaced by one that does not, such as one on another store by mistake.
pub fn knows_keys(store: &dyn Store) -> bool {
    store.freshness().usable && !store.keys().is_empty()
}

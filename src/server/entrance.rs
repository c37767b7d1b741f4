//! The transition of a composed gateway to one that accepts connections.
//!
//! A gateway that replaces another prepares everything that can fail, then asks its predecessor for confirmation. Only then it
//! accepts connections, and offers its listeners to its own successor ([`super::handover`] has the conversation).
//!
//! Invariant: after an error, no connection was accepted and the predecessor is unchanged.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::error::ServeError;
use super::handover::{Offer, Predecessor};
use super::listeners::{Bound, Listeners};
use crate::admin::AdminService;
use crate::proxy::Gate;
use crate::store::Store;

/// Accepts connections at `listeners`, after replacing the predecessor if there is one, until `watch` changes. A successor that requests
/// them at `upgrade`, if that is configured, and takes over wakes `succeeded`.
pub async fn open(
    listeners: Listeners,
    upgrade: Option<&Path>,
    gate: &Arc<Gate>,
    predecessor: Option<Predecessor>,
    admin: AdminService,
    watch: &watch::Receiver<bool>,
    succeeded: &Arc<Notify>,
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
    let ready = listeners.prepare(gate, admin);
    let ready = ready.map_err(|error| ServeError::System(error.to_string()))?;
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
    let bound = ready.open(watch);
    let offering = offer.map(|offer| tokio::spawn(offer.serve(succeeded.clone())));
    Ok((bound, offering))
}

/// Whether a gateway knows keys: one that does is not replaced by one that does not, such as one on another store by mistake.
pub fn knows_keys(store: &dyn Store) -> bool {
    store.freshness().usable && !store.keys().is_empty()
}

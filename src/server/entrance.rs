//! Entering: from a gateway that is composed to one that accepts connections.
//!
//! A gateway that succeeds another prepares everything that can fail, then has its predecessor confirm that it goes; only then
//! it accepts, and offers its listeners to a successor of its own ([`super::handover`] has the conversation).
//!
//! Invariant: an error leaves no connection accepted and the predecessor as it was.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::ServeError;
use super::handover::{Offer, Predecessor};
use super::listeners::{Bound, Listener, Ready};
use crate::admin::Admin;
use crate::proxy::Gate;

/// What a gateway accepts connections with.
pub struct Entrance<'g> {
    /// Its addresses.
    pub listener: &'g Listener,
    /// Where a successor asks for them, if one may.
    pub upgrade: Option<&'g Path>,
    /// What requests share.
    pub gate: &'g Arc<Gate>,
}

impl Entrance<'_> {
    /// Accepts connections, in the place of the predecessor if there is one, until `watch` says so; a successor that takes over
    /// wakes `succeeded`.
    pub async fn open(
        self,
        predecessor: Option<Predecessor>,
        admin: Admin,
        watch: &watch::Receiver<bool>,
        succeeded: &Arc<Notify>,
    ) -> Result<(Bound, Option<JoinHandle<()>>), ServeError> {
        let offer = self.offer()?;
        let ready = self.ready(admin)?;
        if let Some(predecessor) = predecessor {
            tracing::info!("ready to take over from the gateway that runs");
            predecessor.take_over().await?;
            // That one is ending: from here on this one serves, whatever becomes of later upgrades.
            if let Some(Err(error)) = offer.as_ref().map(Offer::publish) {
                tracing::error!(%error, "the listeners cannot be offered to a successor: mend listen.upgrade and restart");
            }
        } else if let Some(offer) = &offer {
            offer.publish().map_err(|error| self.not_offered(error))?;
        }
        let bound = ready.open(watch);
        let offering = offer.map(|offer| tokio::spawn(offer.serve(succeeded.clone())));
        Ok((bound, offering))
    }

    /// The offer to a successor, which none finds yet.
    fn offer(&self) -> Result<Option<Offer>, ServeError> {
        // Without a successor to come, the copies are closed here.
        let spares = self.listener.spares();
        let Some(place) = self.upgrade else {
            return Ok(None);
        };
        let store = self.gate.store.clone();
        let known = Box::new(move || store.freshness().usable);
        let offer = Offer::prepare(place, spares, known);
        offer.map(Some).map_err(|error| self.not_offered(error))
    }

    fn not_offered(&self, error: std::io::Error) -> ServeError {
        ServeError::Offer {
            path: self.upgrade.unwrap_or(Path::new("")).display().to_string(),
            error,
        }
    }

    /// The services behind the addresses, which accept nothing yet.
    fn ready(&self, admin: Admin) -> Result<Ready, ServeError> {
        let ready = self.listener.prepare(self.gate, admin);
        ready.map_err(|error| ServeError::System(error.to_string()))
    }
}

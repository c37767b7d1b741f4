//! The transition of a composed gateway to one that accepts connections.
//!
//! A gateway that replaces another prepares everything that can fail, then asks its predecessor for confirmation. Only then it
//! accepts connections, and offers its listeners to its own successor ([`super::handover`] has the conversation).
//!
//! Invariant: after an error, no connection was accepted and the predecessor is unchanged.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::error::ServeError;
use super::handover::{Offer, Predecessor};
use super::listeners::{Bound, Listener, Ready};
use crate::admin::AdminService;
use crate::proxy::Gate;

/// The parts needed to accept connections.
pub struct Entrance<'g> {
    /// The listening addresses.
    pub listener: &'g Listener,
    /// The path at which a successor requests them, if configured.
    pub upgrade: Option<&'g Path>,
    /// The state shared by requests.
    pub gate: &'g Arc<Gate>,
}

impl Entrance<'_> {
    /// Accepts connections, after replacing the predecessor if there is one, until `watch` changes. A successor that takes over wakes
    /// `succeeded`.
    pub async fn open(
        self,
        predecessor: Option<Predecessor>,
        admin: AdminService,
        watch: &watch::Receiver<bool>,
        succeeded: &Arc<Notify>,
    ) -> Result<(Bound, Option<JoinHandle<()>>), ServeError> {
        let offer = self.offer()?;
        let ready = self.ready(admin)?;
        if let Some(predecessor) = predecessor {
            tracing::info!("ready to take over from the running gateway");
            predecessor.take_over().await?;
            // The predecessor is ending, so this gateway must serve even if a later upgrade is not possible.
            if let Some(Err(error)) = offer.as_ref().map(Offer::publish) {
                tracing::error!(%error, "cannot offer the listeners to a successor: correct listen.upgrade and restart");
            }
        } else if let Some(offer) = &offer {
            offer.publish().map_err(|error| self.not_offered(error))?;
        }
        let bound = ready.open(watch);
        let offering = offer.map(|offer| tokio::spawn(offer.serve(succeeded.clone())));
        Ok((bound, offering))
    }

    /// The offer to a successor, not yet published.
    fn offer(&self) -> Result<Option<Offer>, ServeError> {
        // Without listen.upgrade, the copies are closed here.
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

    /// The services behind the addresses, which do not accept connections yet.
    fn ready(&self, admin: AdminService) -> Result<Ready, ServeError> {
        let ready = self.listener.prepare(self.gate, admin);
        ready.map_err(|error| ServeError::System(error.to_string()))
    }
}

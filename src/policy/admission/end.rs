//! How a request leaves the steps: with a permit or a refusal.

use std::sync::Arc;

use crate::policy::endpoint::Endpoint;
use crate::policy::enforcement::Waived;
use crate::policy::own_path::OwnPath;
use crate::policy::rate_limit::Standing;
use crate::policy::rejection::Rejection;

/// The right to forward one request: authenticated, allowed, charged. Made of a granted charge only.
#[derive(Debug)]
pub struct Permit<K, G> {
    pub(super) key: K,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) standing: Standing,
    pub(super) waived: Option<Waived>,
    pub(super) grant: G,
}

impl<K, G> Permit<K, G> {
    /// The key that pays.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// The endpoint that the path is.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Where the key stands with this request counted.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// What the key's tier would have refused it for, were it enforced: the first step that would have.
    pub fn waived(&self) -> Option<Waived> {
        self.waived
    }

    /// Gives the permit up for the proof of its charge.
    pub fn into_grant(self) -> G {
        self.grant
    }
}

/// What a path is.
#[derive(Debug)]
pub enum Place {
    /// A configured endpoint.
    Endpoint(Arc<Endpoint>),
    /// A path of the gateway's own.
    Own(OwnPath),
}

impl Place {
    /// Its name in logs and metrics.
    pub fn name(&self) -> &str {
        match self {
            Place::Endpoint(endpoint) => &endpoint.pattern,
            Place::Own(own) => own.as_str(),
        }
    }
}

/// A request that goes no further, with what is known of it by then.
#[derive(Debug)]
pub struct Refusal<K> {
    /// The answer.
    pub rejection: Rejection,
    /// The key, once authenticated.
    pub key: Option<K>,
    /// What the path is, once found.
    pub place: Option<Place>,
    /// What the answer states of the quota, once authenticated.
    pub standing: Option<Standing>,
    /// The failure inside, for the access log.
    pub cause: Option<String>,
}

impl<K> Refusal<K> {
    /// A refusal before anything is known.
    pub fn of(rejection: Rejection) -> Refusal<K> {
        Refusal {
            rejection,
            key: None,
            place: None,
            standing: None,
            cause: None,
        }
    }

    /// The endpoint whose authenticated caller is refused.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        match (&self.key, &self.place) {
            (Some(_), Some(Place::Endpoint(endpoint))) => Some(endpoint),
            (Some(_), Some(Place::Own(_)) | None) | (None, _) => None,
        }
    }
}

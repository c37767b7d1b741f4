//! What comes out of the request path beside a permit.

use std::sync::Arc;

use super::Permit;
use crate::policy::endpoint::Endpoint;
use crate::policy::own_path::OwnPath;
use crate::policy::rate_limit::Standing;
use crate::policy::rejection::Rejection;
use crate::store::KeyEntry;

/// A request that was let in.
#[derive(Debug)]
pub enum Admitted {
    /// To be forwarded.
    Forward(Permit),
    /// To be answered with the caller's usage; not charged.
    Usage(Usage),
    /// To be answered with the description of the API; not charged, and nobody's key was looked at.
    Document,
}

/// What a caller is told of its usage.
#[derive(Debug)]
pub struct Usage {
    /// The key that asks.
    pub key: Arc<KeyEntry>,
    /// Where it stands.
    pub standing: Standing,
    /// The body.
    pub report: Vec<u8>,
}

/// What a path was found to be.
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

/// A request that goes no further, with what had been found by then.
#[derive(Debug)]
pub struct Refusal {
    /// The answer.
    pub rejection: Rejection,
    /// The key, once authenticated.
    pub key: Option<Arc<KeyEntry>>,
    /// What the path is, once found.
    pub place: Option<Place>,
    /// What the answer tells of the quota, once authenticated.
    pub standing: Option<Standing>,
    /// What went wrong inside, for the access log.
    pub cause: Option<String>,
}

impl Refusal {
    /// A refusal before anything was found.
    pub fn of(rejection: Rejection) -> Refusal {
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

    /// The 500 for a reason that clients are not told.
    pub(super) fn internal(cause: impl Into<String>) -> Refusal {
        Refusal {
            cause: Some(cause.into()),
            ..Refusal::of(Rejection::Internal)
        }
    }
}

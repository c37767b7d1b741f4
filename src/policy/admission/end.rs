//! The ends of a request's steps: a permit or a refusal.

use std::sync::Arc;

use crate::policy::endpoint::Endpoint;
use crate::policy::enforcement::ShadowViolation;
use crate::policy::own_path::OwnPath;
use crate::policy::rate_limit::QuotaStatus;
use crate::policy::rejection::Rejection;

/// The right to forward one request: authenticated, allowed, charged. Only a granted charge makes one.
#[derive(Debug)]
pub struct Permit<K, G> {
    /// The key that pays.
    pub key: K,
    /// The endpoint of the path.
    pub endpoint: Arc<Endpoint>,
    /// The quota status of the key with this request counted.
    pub quota_status: QuotaStatus,
    /// The first limit that would have refused the request if the key's tier were enforced.
    pub shadow_violation: Option<ShadowViolation>,
    /// The proof of the charge.
    pub grant: G,
    pub(super) _charged: OnlyByCharge,
}

/// Private to the steps, so that nothing else makes a permit.
#[derive(Debug)]
pub(super) struct OnlyByCharge;

/// What a path leads to.
#[derive(Debug)]
pub enum RouteId {
    /// A configured endpoint.
    Endpoint(Arc<Endpoint>),
    /// A path that the gateway answers itself.
    Own(OwnPath),
}

impl RouteId {
    /// Its name in logs and metrics.
    pub fn name(&self) -> &str {
        match self {
            RouteId::Endpoint(endpoint) => &endpoint.pattern,
            RouteId::Own(own) => own.as_str(),
        }
    }
}

/// A refused request, with what was known when it was refused.
#[derive(Debug)]
pub struct Refusal<K> {
    /// The answer.
    pub rejection: Rejection,
    /// The key, once authenticated.
    pub key: Option<K>,
    /// The place of the path, once found.
    pub place: Option<RouteId>,
    /// The quota status in the answer, once authenticated.
    pub quota_status: Option<QuotaStatus>,
    /// The internal failure, for the access log.
    pub cause: Option<String>,
}

impl<K> Refusal<K> {
    /// A refusal before anything is known.
    pub fn of(rejection: Rejection) -> Refusal<K> {
        Refusal {
            rejection,
            key: None,
            place: None,
            quota_status: None,
            cause: None,
        }
    }

    /// A refusal at this place of the path.
    pub fn at(place: RouteId, rejection: Rejection) -> Refusal<K> {
        Refusal {
            place: Some(place),
            ..Refusal::of(rejection)
        }
    }

    /// The endpoint whose authenticated caller is refused.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        match (&self.key, &self.place) {
            (Some(_), Some(RouteId::Endpoint(endpoint))) => Some(endpoint),
            (Some(_), Some(RouteId::Own(_)) | None) | (None, _) => None,
        }
    }
}

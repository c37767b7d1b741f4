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
    pub(super) key: K,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) quota_status: QuotaStatus,
    pub(super) shadow_violation: Option<ShadowViolation>,
    pub(super) grant: G,
}

impl<K, G> Permit<K, G> {
    /// The key that pays.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// The endpoint of the path.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// The quota status of the key with this request counted.
    pub fn quota_status(&self) -> QuotaStatus {
        self.quota_status
    }

    /// The first limit that would have refused the request if the key's tier were enforced.
    pub fn shadow_violation(&self) -> Option<ShadowViolation> {
        self.shadow_violation
    }

    /// Exchanges the permit for the proof of its charge.
    pub fn into_grant(self) -> G {
        self.grant
    }
}

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

    /// The endpoint whose authenticated caller is refused.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        match (&self.key, &self.place) {
            (Some(_), Some(RouteId::Endpoint(endpoint))) => Some(endpoint),
            (Some(_), Some(RouteId::Own(_)) | None) | (None, _) => None,
        }
    }
}

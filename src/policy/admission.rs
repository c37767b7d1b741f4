//! The steps of the contract, 1 to 8, in their order, as a state machine that asks its driver for everything external.
//!
//! [`begin`] takes the result of step 1. From then on each [`Next`] is a question (the presented key, its record, a token, a slot
//! among the key's requests in flight, the charge) or an end. Every question is consumed by its answer, which returns the next
//! `Next`. The gateway drives the machine with its store, `touchline explain` with answers that cost nothing. The driver decides
//! where answers come from, what they cost and how they are counted.
//!
//! Invariants: free checks run first, the charge last. Only a granted charge makes a [`Permit`], and each makes one. A request is
//! judged again from step 3 if its key or day changed during the checks, at most [`JUDGEMENTS_MAX`] times, and draws one token
//! however often it is judged.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use jiff::Timestamp;

use super::endpoint::{Endpoint, EndpointTable};
use super::enforcement::{Enforcement, ShadowViolation};
use super::key_record::KeyRecord;
use super::own_path::{self, OwnPath};
use super::rate_limit::QuotaStatus;
use super::rejection::{ExceededLimit, Limit, Rejection};

mod caller;
mod end;
mod trail;

pub use caller::{Caller, NoKey, Terms, presented};
pub use end::{Permit, Refusal, RouteId};
pub use trail::{AdmissionStep, Trail, Verdict};

/// How often a request is judged because its key or the day changed during the checks; more changes indicate a fault.
pub const JUDGEMENTS_MAX: u32 = 4;

/// What a request needs next, or how it ends. `K` is the driver's reference to a key record, `G` its proof of a charge.
#[derive(Debug)]
pub enum Next<'a, K, G> {
    /// 2 and 3: the key that the request presents.
    Key(Lookup<'a>),
    /// 7: room within a limit of each gateway.
    Room(Ask<'a, K, Room<K>>),
    /// 8: the charge.
    Charge(Ask<'a, K, Arc<Endpoint>>),
    /// The units used today, for a refusal that is not charged.
    Count(Ask<'a, K, Refusal<K>>),
    /// The usage of the key, which is the body of the answer.
    Usage(Ask<'a, K, OwnPath>),
    /// The end of a request for the description of the API.
    Document,
    /// The end of a request that may be forwarded.
    Permitted(Permit<K, G>),
    /// The end of any other request.
    Refused(Refusal<K>),
}

/// Takes a request, with its path as step 1 read it, to its first question or end. Verdicts are noted in `trail`, if there is
/// one.
pub fn begin<'a, K, G>(
    method: &'a Method,
    head: Result<&'a str, Rejection>,
    endpoints: &'a EndpointTable,
    trail: Option<&'a mut Trail>,
) -> Next<'a, K, G> {
    let path = head.as_ref().copied().unwrap_or_default();
    let mut lookup = Lookup {
        method,
        path,
        endpoints,
        now: None,
        token_taken: false,
        judgements: 0,
        trail,
    };
    if let Err(rejection) = head {
        return lookup.refuse(AdmissionStep::WellFormed, Refusal::of(rejection));
    }
    lookup.note(AdmissionStep::WellFormed, Verdict::Passes);
    if OwnPath::of_str(path) != Some(OwnPath::Document) {
        return Next::Key(lookup);
    }
    lookup.note(AdmissionStep::Endpoint, Verdict::Passes);
    match own_path::takes(method) {
        Ok(()) => {
            lookup.note(AdmissionStep::Method, Verdict::Passes);
            Next::Document // public
        }
        Err(rejection) => {
            let refusal = Refusal::at(RouteId::Own(OwnPath::Document), rejection);
            lookup.refuse(AdmissionStep::Method, refusal)
        }
    }
}

/// Steps 2 and 3: the request needs an API key that is known and usable.
#[derive(Debug)]
pub struct Lookup<'a> {
    method: &'a Method,
    path: &'a str,
    endpoints: &'a EndpointTable,
    now: Option<Timestamp>,
    token_taken: bool,
    judgements: u32,
    trail: Option<&'a mut Trail>,
}

impl<'a> Lookup<'a> {
    /// The instant for which the request is judged again, or `None` for now.
    pub fn at(&self) -> Option<Timestamp> {
        self.now
    }

    /// Answers with the key of the request, or why there is none.
    pub fn answer<K, G>(mut self, found: Result<Caller<K>, NoKey<K>>) -> Next<'a, K, G>
    where
        K: Borrow<KeyRecord>,
    {
        self.note(AdmissionStep::Presented, Verdict::Passes);
        let of = Refusal::of;
        let failed = |key, cause| Refusal {
            key,
            cause: Some(cause),
            ..of(Rejection::Internal)
        };
        let (check, refusal) = match found {
            Ok(caller) => {
                self.note(AdmissionStep::Key, Verdict::Passes);
                let mut ask = Ask {
                    lookup: self,
                    caller,
                    needs: (),
                };
                let found = ask.find();
                return ask.draw(found);
            }
            Err(NoKey::Missing) => (AdmissionStep::Presented, of(Rejection::MissingApiKey)),
            Err(NoKey::Invalid) => (AdmissionStep::Key, of(Rejection::InvalidApiKey)),
            Err(NoKey::Unknown(cause)) => (AdmissionStep::Key, failed(None, cause)),
            Err(NoKey::Untiered(key)) => {
                let tier = &key.borrow().tier;
                let cause = format!("the configuration has no tier {tier}");
                (AdmissionStep::Key, failed(Some(key), cause))
            }
        };
        self.refuse(check, refusal)
    }

    fn note(&mut self, check: AdmissionStep, verdict: Verdict) {
        if let Some(trail) = &mut self.trail {
            trail.note(check, verdict);
        }
    }

    fn refuse<K, G>(mut self, check: AdmissionStep, refusal: Refusal<K>) -> Next<'a, K, G> {
        self.note(check, Verdict::Refuses);
        Next::Refused(refusal)
    }
}

/// A request of an authenticated caller that needs `N`.
#[derive(Debug)]
pub struct Ask<'a, K, N> {
    lookup: Lookup<'a>,
    caller: Caller<K>,
    needs: N,
}

/// Room within a limit of each gateway.
#[derive(Debug)]
pub struct Room<K> {
    limit: Limit,
    found: Result<RouteId, Refusal<K>>,
}

impl<'a, K, N> Ask<'a, K, N> {
    /// The caller of the request.
    pub fn caller(&self) -> &Caller<K> {
        &self.caller
    }

    /// Reports that the key or the day has changed since it was judged: the request is judged again, at `now` if the store named
    /// it.
    pub fn changed<G>(self, now: Option<Timestamp>) -> Next<'a, K, G> {
        let (mut ask, _) = self.split();
        ask.lookup.judgements += 1;
        if ask.lookup.judgements >= JUDGEMENTS_MAX {
            let cause = "the key or the day kept changing during the checks";
            return ask.fail(None, cause.to_owned(), None);
        }
        if let Some(trail) = &mut ask.lookup.trail {
            trail.forget_from(AdmissionStep::Presented);
        }
        ask.lookup.now = now;
        Next::Key(ask.lookup)
    }

    fn needs<M>(self, needs: M) -> Ask<'a, K, M> {
        Ask {
            lookup: self.lookup,
            caller: self.caller,
            needs,
        }
    }

    fn split(self) -> (Ask<'a, K, ()>, N) {
        let ask = Ask {
            lookup: self.lookup,
            caller: self.caller,
            needs: (),
        };
        (ask, self.needs)
    }

    /// Notes the verdict of a step that is the same in every tier.
    fn judge<T>(
        &mut self,
        check: AdmissionStep,
        judged: Result<T, Rejection>,
    ) -> Result<T, Rejection> {
        let verdict = match &judged {
            Ok(_) => Verdict::Passes,
            Err(_) => Verdict::Refuses,
        };
        self.lookup.note(check, verdict);
        judged
    }

    /// Notes the verdict of a limit of the tier, which refuses only if the tier is enforced.
    fn judge_limit(
        &mut self,
        check: AdmissionStep,
        limit: ShadowViolation,
        judged: Result<(), Rejection>,
    ) -> Result<(), Rejection> {
        let Err(rejection) = judged else {
            return self.judge(check, judged);
        };
        match self.caller.terms.enforcement {
            Enforcement::Enforced => self.judge(check, Err(rejection)),
            Enforcement::Shadow => {
                self.caller.shadow_violation.get_or_insert(limit);
                self.lookup.note(check, Verdict::WouldRefuse);
                Ok(())
            }
        }
    }

    fn quota_status(&self, used: Option<u64>) -> QuotaStatus {
        QuotaStatus {
            used,
            ..self.caller.quota_status
        }
    }

    /// Refuses the request, with the quota status of the caller.
    fn refuse<G>(self, refusal: Refusal<K>, used: Option<u64>) -> Next<'a, K, G> {
        let quota_status = self.quota_status(used);
        Next::Refused(Refusal {
            rejection: refusal.rejection.at(quota_status),
            key: Some(self.caller.key),
            quota_status: Some(quota_status),
            ..refusal
        })
    }

    /// Ends a request because the gateway or its store failed.
    fn fail<G>(self, place: Option<RouteId>, cause: String, used: Option<u64>) -> Next<'a, K, G> {
        let refusal = Refusal {
            place,
            cause: Some(cause),
            ..Refusal::of(Rejection::Internal)
        };
        self.refuse(refusal, used)
    }
}

impl<'a, K: Borrow<KeyRecord>> Ask<'a, K, ()> {
    /// Steps 4 to 6.
    fn find(&mut self) -> Result<RouteId, Refusal<K>> {
        let (path, method, endpoints) =
            (self.lookup.path, self.lookup.method, self.lookup.endpoints);
        if let Some(own) = OwnPath::of_str(path) {
            self.lookup.note(AdmissionStep::Endpoint, Verdict::Passes);
            let taken = self.judge(AdmissionStep::Method, own_path::takes(method));
            return match taken {
                Ok(()) => Ok(RouteId::Own(own)),
                Err(rejection) => Err(Refusal::at(RouteId::Own(own), rejection)),
            };
        }
        let located = self.judge(AdmissionStep::Endpoint, endpoints.located(path)); // 4
        let endpoint = located.map_err(Refusal::of)?;
        let refused = |rejection| Refusal::at(RouteId::Endpoint(endpoint.clone()), rejection);
        let taken = self.judge(AdmissionStep::Method, endpoint.admit_method(method)); // 5
        taken.map_err(refused)?;
        let included = endpoint.admit_tier(&self.caller.key.borrow().tier); // 6
        let included = self.judge_limit(AdmissionStep::Tier, ShadowViolation::Tier, included);
        included.map_err(refused)?;
        Ok(RouteId::Endpoint(endpoint.clone()))
    }
}

impl<'a, K> Ask<'a, K, ()> {
    /// Step 7, first half: one token, whatever steps 4 to 6 decide.
    fn draw<G>(self, found: Result<RouteId, Refusal<K>>) -> Next<'a, K, G> {
        let limit = match &found {
            Ok(RouteId::Own(_)) => Some(Limit::UsageRead),
            Ok(RouteId::Endpoint(_)) | Err(_) => self.caller.terms.burst.map(Limit::Burst),
        };
        match limit {
            Some(limit) if !self.lookup.token_taken => {
                Next::Room(self.needs(Room { limit, found }))
            }
            Some(_) | None => self.enter(found),
        }
    }

    /// Step 7, second half: a slot, unless steps 4 to 6 refuse.
    fn enter<G>(self, found: Result<RouteId, Refusal<K>>) -> Next<'a, K, G> {
        match (found, self.caller.terms.concurrent) {
            (Err(refused), _) => Next::Count(self.needs(refused)),
            (Ok(RouteId::Own(own)), _) => Next::Usage(self.needs(own)), // never charged
            (Ok(RouteId::Endpoint(endpoint)), None) => self.charge(endpoint),
            (found @ Ok(RouteId::Endpoint(_)), Some(allowed)) => {
                let limit = Limit::Concurrent(allowed);
                Next::Room(self.needs(Room { limit, found }))
            }
        }
    }

    /// Step 8, unless the endpoint is under maintenance.
    fn charge<G>(mut self, endpoint: Arc<Endpoint>) -> Next<'a, K, G> {
        self.lookup.note(AdmissionStep::Rates, Verdict::Passes);
        match endpoint.admit_at(self.caller.now) {
            Ok(()) => Next::Charge(self.needs(endpoint)),
            Err(rejection) => {
                self.lookup.note(AdmissionStep::Upstream, Verdict::Refuses);
                Next::Count(self.needs(Refusal::at(RouteId::Endpoint(endpoint), rejection)))
            }
        }
    }
}

impl<'a, K> Ask<'a, K, Room<K>> {
    /// The limit to check.
    pub fn limit(&self) -> Limit {
        self.needs.limit
    }

    /// Answers whether the limit has room: the room is taken, or there is none for the given time, zero if that is unknown.
    pub fn answer<G>(self, room: Result<(), Duration>) -> Next<'a, K, G> {
        let (mut ask, Room { limit, found }) = self.split();
        let (quota_status, rates) = (ask.caller.quota_status, AdmissionStep::Rates);
        let is_token = !matches!(limit, Limit::Concurrent(_));
        ask.lookup.token_taken |= is_token && room.is_ok();
        let room = room.map_err(|wait| {
            Rejection::RateLimitExceeded(ExceededLimit::OfGateway(limit, wait), quota_status)
        });
        let judged = match limit {
            Limit::UsageRead => ask.judge(rates, room),
            Limit::Burst(_) => ask.judge_limit(rates, ShadowViolation::Burst, room),
            Limit::Concurrent(_) => ask.judge_limit(rates, ShadowViolation::Concurrent, room),
        };
        match (judged, found) {
            (Ok(()), Ok(RouteId::Endpoint(endpoint))) if !is_token => ask.charge(endpoint),
            (Ok(()), found) => ask.enter(found),
            // It replaces the answer of steps 4 to 6.
            (Err(rejection), Ok(place)) => Next::Count(ask.needs(Refusal::at(place, rejection))),
            (Err(rejection), Err(refused)) => Next::Count(ask.needs(Refusal {
                rejection,
                ..refused
            })),
        }
    }
}

impl<'a, K> Ask<'a, K, Arc<Endpoint>> {
    /// The endpoint to charge for, with its cost.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.needs
    }

    /// Reports that the units were charged; `used` includes them.
    pub fn granted<G>(mut self, used: u64, grant: G) -> Next<'a, K, G> {
        let quota_status = self.quota_status(Some(used));
        let enforcement = self.caller.terms.enforcement;
        let by_quota = enforcement.quota_violation(used, quota_status.limit);
        let verdict = by_quota.map_or(Verdict::Passes, |_| Verdict::WouldRefuse);
        self.lookup.note(AdmissionStep::Quota, verdict);
        self.lookup.note(AdmissionStep::Upstream, Verdict::Open);
        Next::Permitted(Permit {
            key: self.caller.key,
            endpoint: self.needs,
            quota_status,
            shadow_violation: self.caller.shadow_violation.or(by_quota),
            grant,
            _charged: end::OnlyByCharge,
        })
    }

    /// Reports that the day has no room for the cost.
    pub fn exhausted<G>(self, used: u64) -> Next<'a, K, G> {
        let (mut ask, endpoint) = self.split();
        ask.lookup.note(AdmissionStep::Quota, Verdict::Refuses);
        let quota_status = ask.caller.quota_status;
        let rejection = Rejection::RateLimitExceeded(ExceededLimit::Daily, quota_status);
        ask.refuse(
            Refusal::at(RouteId::Endpoint(endpoint), rejection),
            Some(used),
        )
    }

    /// Reports that the gateway or its store failed; `used` are the units used as far as they are known.
    pub fn failed<G>(self, cause: String, used: Option<u64>) -> Next<'a, K, G> {
        let (ask, endpoint) = self.split();
        ask.fail(Some(RouteId::Endpoint(endpoint)), cause, used)
    }
}

impl<'a, K> Ask<'a, K, Refusal<K>> {
    /// Answers with the units used today, or `None` if the store cannot be reached.
    pub fn answer<G>(self, used: Option<u64>) -> Next<'a, K, G> {
        let (ask, refused) = self.split();
        ask.refuse(refused, used)
    }
}

impl<'a, K> Ask<'a, K, OwnPath> {
    /// The key and its quota status with the units used today, to be answered.
    pub fn answered(self, used: u64) -> (K, QuotaStatus) {
        let quota_status = self.quota_status(Some(used));
        (self.caller.key, quota_status)
    }

    /// Reports that the gateway or its store failed; `used` are the units used as far as they are known.
    pub fn failed<G>(self, cause: String, used: Option<u64>) -> Next<'a, K, G> {
        let (ask, own) = self.split();
        ask.fail(Some(RouteId::Own(own)), cause, used)
    }
}

#[cfg(test)]
mod tests;

//! The request path: steps 1 to 8 of the contract, top to bottom.
//!
//! Free checks come first, the charge last; what the gateway answers itself leaves on the way. Whoever holds a
//! [`Permit`] has passed them all and has been charged; it cannot be made anywhere else.
//!
//! [`admit`] judges what never changes (steps 1 and 2) once, and lets `Admission::pass` judge the rest: again from
//! step 3 where the store said that the key or the day had changed meanwhile. What must happen once for a request,
//! however often it is judged, is kept in `Admission`; what belongs to the caller of one judgement, in `Caller`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, Method};
use jiff::Timestamp;
use pingora::http::RequestHeader;

use super::forward::X_API_KEY;
use super::gate::{Gate, Snapshot};
use super::rates::Slot;
use super::trace::Recording;
use super::upstreams::Upstream;
use super::usage::{self, Report};
use super::well_formed;
use crate::policy::api_key::{self, KeyDigest};
use crate::policy::endpoint::Endpoint;
use crate::policy::enforcement::Waived;
use crate::policy::key_record::Unusable;
use crate::policy::own_path::{self, OwnPath};
use crate::policy::rate_limit::Standing;
use crate::policy::rejection::Rejection;
use crate::policy::token_bucket::{Empty, Rate};
use crate::store::{
    Charge, Decision, KeyEntry, Receipt, Refusal as LedgerRefusal, StoreError, UNBOUNDED,
};

mod caller;
mod outcome;

use caller::Caller;
pub use outcome::{Admitted, Place, Refusal, Usage};

/// How often the checks are made anew because the key or the day changed under them; beyond it something is wrong.
const ATTEMPTS_MAX: usize = 4;
/// A key that is not in the replica is unknown only while the replica is at most this old; else the answer is a 500.
const KEYS_AGE_MAX: Duration = Duration::from_secs(5);

/// The right to forward one request: authenticated, allowed, charged.
#[derive(Debug)]
pub struct Permit {
    key: Arc<KeyEntry>,
    endpoint: Arc<Endpoint>,
    upstream: Arc<Upstream>,
    standing: Standing,
    waived: Option<Waived>,
    receipt: Receipt,
    slot: Option<Slot>,
}

impl Permit {
    /// The key that pays.
    pub fn key(&self) -> &Arc<KeyEntry> {
        &self.key
    }

    /// The endpoint that was found.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Where the request goes: found before it was charged.
    pub fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    /// Where the key stands with this request counted.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// What the key's tier would have refused it for, were it enforced: the first step that would have.
    pub fn waived(&self) -> Option<Waived> {
        self.waived
    }

    /// Gives the permit up for its receipt, to be refunded, and its place among the key's requests under way, where
    /// those are limited.
    pub fn into_parts(self) -> (Receipt, Option<Slot>) {
        (self.receipt, self.slot)
    }
}

/// What is noted on a request's way through the steps.
#[derive(Debug, Default)]
pub struct Steps {
    /// Time spent waiting for the store.
    pub store_wait: Duration,
    /// The spans of a recorded request.
    pub recording: Option<Box<Recording>>,
}

/// Lets a request in or says why not. `steps` grows by what is noted.
pub async fn admit(
    gate: &Gate,
    snapshot: &Snapshot,
    header: &RequestHeader,
    steps: &mut Steps,
) -> Result<Admitted, Refusal> {
    let target = well_formed::check(header, &snapshot.head_limits).map_err(Refusal::of)?; // 1
    let own = OwnPath::of(target.path);
    if own == Some(OwnPath::Document) {
        return admit_to_document(&header.method); // public
    }
    let presented = presented_key(&header.headers, snapshot).map_err(Refusal::of)?; // 2
    let mut admission = Admission {
        gate,
        snapshot,
        method: &header.method,
        path: target.path,
        own,
        presented,
        steps,
        token: Token::NotTaken,
    };
    let mut now = gate.store.now();
    let mut judged = None;
    for _ in 0..ATTEMPTS_MAX {
        match admission.pass(now).await {
            Ok(admitted) => return Ok(admitted),
            Err(Halt::Refused(refusal)) => return Err(refusal),
            Err(Halt::Changed { caller, now: later }) => {
                (now, judged) = (later, Some(caller));
            }
        }
    }
    let cause = "the key or the day changed again and again under the checks";
    Err(match judged {
        Some(caller) => caller.refuse_unserved(None, cause.into()),
        None => Refusal::internal(cause),
    })
}

/// The description of the API, for everybody.
fn admit_to_document(method: &Method) -> Result<Admitted, Refusal> {
    own_path::takes(method).map_err(|rejection| Refusal {
        place: Some(Place::Own(OwnPath::Document)),
        ..Refusal::of(rejection)
    })?;
    Ok(Admitted::Document)
}

/// Step 2 and the part of step 3 that needs no look-up: exactly one key, of a possible shape.
fn presented_key(headers: &HeaderMap, snapshot: &Snapshot) -> Result<KeyDigest, Rejection> {
    let mut values = headers.get_all(X_API_KEY).iter();
    match (values.next(), values.next()) {
        (None, _) => Err(Rejection::MissingApiKey),
        (Some(value), None) if value.is_empty() => Err(Rejection::MissingApiKey),
        (Some(value), None) => {
            api_key::parse_presented(value.as_bytes(), &snapshot.config.keys.prefix)
                .map_err(|_| Rejection::InvalidApiKey)
        }
        (Some(_), Some(_)) => Err(Rejection::InvalidApiKey),
    }
}

/// Why a judgement ended without letting the request in.
enum Halt {
    /// The answer stands.
    Refused(Refusal),
    /// The key or the day is no longer what was judged: judge anew at `now`.
    Changed { caller: Caller, now: Timestamp },
}

impl From<Refusal> for Halt {
    fn from(refusal: Refusal) -> Halt {
        Halt::Refused(refusal)
    }
}

/// A request on its way through steps 3 to 8.
struct Admission<'a> {
    gate: &'a Gate,
    snapshot: &'a Snapshot,
    method: &'a Method,
    path: &'a str,
    own: Option<OwnPath>,
    presented: KeyDigest,
    steps: &'a mut Steps,
    token: Token,
}

/// Whether the request has drawn from its key's burst.
enum Token {
    NotTaken,
    Taken,
}

impl Admission<'_> {
    /// One judgement, as things are at `now`.
    async fn pass(&mut self, now: Timestamp) -> Result<Admitted, Halt> {
        let caller = self.authenticate(now); // 3
        if let Some(recording) = &mut self.steps.recording {
            recording.authenticated();
        }
        let caller = caller?;
        if self.own == Some(OwnPath::Usage) {
            return self.tell_usage(caller).await; // never charged
        }
        let mut waived = None;
        let found = self.find(&caller, &mut waived); // 4, 5, 6
        // 7. A request that was found wanting draws from the key's burst too.
        let found = match (self.take_token(&caller, &mut waived), found) {
            (Ok(()), found) => found,
            (Err(rejection), Ok(endpoint)) => Err((rejection, Some(Place::Endpoint(endpoint)))),
            (Err(rejection), Err((_, place))) => Err((rejection, place)),
        };
        let entered = found.and_then(|endpoint| match self.enter(&caller, &mut waived) {
            Ok(slot) => Ok((endpoint, slot)),
            Err(rejection) => Err((rejection, Some(Place::Endpoint(endpoint)))),
        });
        match entered {
            Ok((endpoint, slot)) => {
                if let Err(rejection) = endpoint.admit_at(now) {
                    let place = Some(Place::Endpoint(endpoint));
                    return Err(self.refuse(caller, rejection, place).await);
                }
                let permit = self.charge(caller, endpoint, slot, waived).await?; // 8
                Ok(Admitted::Forward(permit))
            }
            Err((rejection, place)) => Err(self.refuse(caller, rejection, place).await),
        }
    }

    /// Step 3: the key is known, its secret right, its state active, its subscription not over. Asks nobody: a key that
    /// is not in the replica is unknown while the replica is current, and known keys are served by it while it may be
    /// used.
    fn authenticate(&self, now: Timestamp) -> Result<Caller, Refusal> {
        let keys = self.gate.store.freshness();
        if !keys.usable {
            return Err(Refusal::internal(
                "the replica of the key table is not loaded or older than store.redis.max_staleness",
            ));
        }
        let is_current = keys.loaded && keys.age <= KEYS_AGE_MAX;
        match self.gate.store.keys().judge(&self.presented, now) {
            Ok(entry) => Caller::new(self.gate, self.snapshot, entry, now),
            Err(Unusable::WrongSecret) if !is_current => Err(Refusal::internal(
                "the key is not in the replica of the key table, which is not current",
            )),
            Err(
                Unusable::WrongSecret | Unusable::Revoked | Unusable::Suspended | Unusable::Expired,
            ) => Err(Refusal::of(Rejection::InvalidApiKey)),
        }
    }

    /// Steps 4, 5 and 6: the endpoint, or why not with what had been found.
    fn find(
        &self,
        caller: &Caller,
        waived: &mut Option<Waived>,
    ) -> Result<Arc<Endpoint>, (Rejection, Option<Place>)> {
        let endpoint = self.locate()?;
        let admitted = endpoint.admit_tier(&caller.key.record.tier);
        match admitted.or_else(|rejection| caller.refuse_or_waive(rejection, Waived::Tier, waived))
        {
            Ok(()) => Ok(endpoint),
            Err(rejection) => Err((rejection, Some(Place::Endpoint(endpoint)))),
        }
    }

    /// Steps 4 and 5: the endpoint, or why not with what had been found.
    fn locate(&self) -> Result<Arc<Endpoint>, (Rejection, Option<Place>)> {
        let located = self.snapshot.config.endpoints.located(self.path);
        let endpoint = located.map_err(|rejection| (rejection, None))?;
        match endpoint.admit_method(self.method) {
            Ok(()) => Ok(endpoint.clone()),
            Err(rejection) => Err((rejection, Some(Place::Endpoint(endpoint.clone())))),
        }
    }

    /// Step 7, for requests that steps 4 to 6 refuse too: one token of the key's burst, where its tier has one.
    fn take_token(
        &mut self,
        caller: &Caller,
        waived: &mut Option<Waived>,
    ) -> Result<(), Rejection> {
        let (Some(rate), Token::NotTaken) = (caller.burst, &self.token) else {
            return Ok(());
        };
        let id = caller.key.record.id;
        match self.gate.rates.take(id, rate, Instant::now()) {
            Ok(()) => {
                self.token = Token::Taken;
                Ok(())
            }
            Err(empty) => {
                let rejection = self.burst_exceeded(caller, rate, empty);
                caller.refuse_or_waive(rejection, Waived::Burst, waived)
            }
        }
    }

    fn burst_exceeded(&self, caller: &Caller, rate: Rate, empty: Empty) -> Rejection {
        if let Empty::Room { .. } = empty {
            let hits = &self.gate.metrics.limit_hits;
            hits.with_label_values(&["burst_keys"]).inc();
        }
        Rejection::BurstExceeded {
            standing: caller.standing,
            rate,
            wait: empty.wait(),
        }
    }

    /// The second part of step 7: a place among the key's requests under way, where its tier limits those.
    fn enter(
        &self,
        caller: &Caller,
        waived: &mut Option<Waived>,
    ) -> Result<Option<Slot>, Rejection> {
        let Some(allowed) = caller.concurrent else {
            return Ok(None);
        };
        match self.gate.rates.enter(caller.key.record.id, allowed) {
            Some(slot) => Ok(Some(slot)),
            None => {
                let rejection = Rejection::TooManyConcurrent {
                    standing: caller.standing,
                    allowed,
                };
                caller.refuse_or_waive(rejection, Waived::Concurrent, waived)?;
                Ok(None)
            }
        }
    }

    /// A refusal that costs nothing and shows where the caller stands.
    async fn refuse(&mut self, caller: Caller, rejection: Rejection, place: Option<Place>) -> Halt {
        let used = self.used(&caller).await;
        if caller.has_changed(self.gate) {
            return self.changed(caller);
        }
        let endpoint = match &place {
            Some(Place::Endpoint(endpoint)) => Some(Some(endpoint)),
            None => Some(None),
            // The gateway's own paths are in no ledger.
            Some(Place::Own(_)) => None,
        };
        if let (Some(endpoint), Some(reason)) = (endpoint, in_ledger(&rejection)) {
            caller.note_refusal(self.gate, endpoint, reason);
        }
        let standing = caller.standing_with(used.ok());
        Halt::Refused(Refusal {
            rejection: rejection.at(standing),
            key: Some(caller.key),
            place,
            standing: Some(standing),
            cause: None,
        })
    }

    /// What the caller is told of its usage, within the method and rate that this takes.
    async fn tell_usage(&mut self, caller: Caller) -> Result<Admitted, Halt> {
        let place = Place::Own(OwnPath::Usage);
        let taken = own_path::takes(self.method).and_then(|()| self.take_usage_read(&caller));
        if let Err(rejection) = taken {
            return Err(self.refuse(caller, rejection, Some(place)).await);
        }
        let (id, today) = (caller.key.record.id, caller.standing.day);
        let used = self.used(&caller).await;
        let asked = Instant::now();
        let read = match used {
            Ok(used) => {
                let from = usage::first_day(today);
                let history = self.gate.store.usage(from, today.date, Some(id)).await;
                self.note_call("usage", asked, &history);
                history.map(|history| (used, history))
            }
            Err(error) => Err(error),
        };
        if caller.has_changed(self.gate) {
            return Err(self.changed(caller));
        }
        match read {
            Ok((used, history)) => {
                let table = &self.snapshot.config.endpoints;
                let record = &caller.key.record;
                let report = Report::new(record, caller.standing, used, table, &history).to_json();
                Ok(Admitted::Usage(Usage {
                    standing: caller.standing_with(Some(used)),
                    key: caller.key,
                    report,
                }))
            }
            Err(error) => Err(caller
                .refuse_unserved(Some(place), error.to_string())
                .into()),
        }
    }

    /// The small limit on reading one's usage.
    fn take_usage_read(&self, caller: &Caller) -> Result<(), Rejection> {
        let taken = self.gate.take_usage_read(caller.key.record.id);
        taken.map_err(|empty| {
            if let Empty::Room { .. } = empty {
                let hits = &self.gate.metrics.limit_hits;
                hits.with_label_values(&["usage_readers"]).inc();
            }
            Rejection::UsageReadTooOften {
                standing: caller.standing,
                wait: empty.wait(),
            }
        })
    }

    /// Step 8: one atomic charge. The slot is given back where it is refused; `waived` is what a step before let pass.
    async fn charge(
        &mut self,
        caller: Caller,
        endpoint: Arc<Endpoint>,
        slot: Option<Slot>,
        waived: Option<Waived>,
    ) -> Result<Permit, Halt> {
        let (enforcement, limit) = (caller.enforcement, caller.standing.limit);
        let Some(upstream) = self.snapshot.upstream(&endpoint.upstream).cloned() else {
            let cause = format!("there is no upstream {}", endpoint.upstream);
            let refusal = caller.refuse_unserved(Some(Place::Endpoint(endpoint)), cause);
            return Err(refusal.into());
        };
        let charge = Charge {
            key: caller.key.clone(),
            day: caller.standing.day,
            limit: enforcement.bound(limit).unwrap_or(UNBOUNDED),
            cost: endpoint.cost.get(),
            endpoint: endpoint.pattern.clone(),
        };
        let asked = Instant::now();
        let decision = self.gate.store.charge(charge).await;
        self.note_call("charge", asked, &decision);
        if let Some(recording) = &mut self.steps.recording {
            recording.charged(asked);
        }
        if let Ok(Decision::Granted { used, .. } | Decision::Exhausted { used }) = &decision {
            caller.note_share(self.gate, self.snapshot, *used);
        }
        match decision {
            Ok(Decision::Granted { used, receipt }) => Ok(Permit {
                standing: caller.standing_with(Some(used)),
                key: caller.key,
                endpoint,
                waived: waived.or(enforcement.waived_by_quota(used, limit)),
                upstream,
                receipt,
                slot,
            }),
            Ok(Decision::Exhausted { used }) => {
                Err(caller.refuse_exhausted(self.gate, endpoint, used).into())
            }
            Ok(Decision::KeyChanged) => Err(self.changed(caller)),
            Ok(Decision::OtherDay { now }) => Err(Halt::Changed { caller, now }),
            Err(error) => Err(caller
                .refuse_unserved(Some(Place::Endpoint(endpoint)), error.to_string())
                .into()),
        }
    }

    /// Units used today, read without a charge.
    async fn used(&mut self, caller: &Caller) -> Result<u64, StoreError> {
        let asked = Instant::now();
        let (id, today) = (caller.key.record.id, caller.standing.day);
        let used = self.gate.store.used(id, today).await;
        self.note_call("read", asked, &used);
        used
    }

    fn changed(&self, caller: Caller) -> Halt {
        let now = self.gate.store.now();
        Halt::Changed { caller, now }
    }

    /// Counts a call of the store that began at `asked`.
    fn note_call<T>(&mut self, operation: &str, asked: Instant, outcome: &Result<T, StoreError>) {
        let took = asked.elapsed();
        self.steps.store_wait += took;
        let outcome = outcome.as_ref().map(|_| ()).map_err(|_| ());
        self.gate.metrics.store_call(operation, took, outcome);
    }
}

/// As what the ledger counts a refusal at an endpoint, or at none.
fn in_ledger(rejection: &Rejection) -> Option<LedgerRefusal> {
    match rejection {
        Rejection::NotFound => Some(LedgerRefusal::NotFound),
        Rejection::MethodNotAllowed { .. } => Some(LedgerRefusal::Method),
        Rejection::TierInsufficient { .. } => Some(LedgerRefusal::Tier),
        Rejection::BurstExceeded { .. } => Some(LedgerRefusal::Burst),
        Rejection::TooManyConcurrent { .. } => Some(LedgerRefusal::Concurrent),
        Rejection::DailyQuotaExceeded { .. } => Some(LedgerRefusal::DailyQuota),
        Rejection::BadRequest(_)
        | Rejection::PayloadTooLarge
        | Rejection::UriTooLong
        | Rejection::HeadersTooLarge
        | Rejection::MissingApiKey
        | Rejection::InvalidApiKey
        | Rejection::UsageReadTooOften { .. }
        | Rejection::Maintenance(_)
        | Rejection::Internal => None,
    }
}

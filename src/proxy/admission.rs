//! The request path: drives [`policy::admission`](crate::policy::admission) with the store, the rates and the clock.
//!
//! [`admit`] answers the questions of the state machine, which alone decides the order of the steps and how a request ends. This
//! module adds the answers, their cost (waits, spans, metrics) and the ledger's count of refusals.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::forward::X_API_KEY;
use super::gate::{Gate, Snapshot};
use super::rates::Slot;
use super::trace::Recording;
use super::upstreams::Upstream;
use super::usage::{self, Report};
use super::well_formed;
use crate::config::Tier;
pub use crate::policy::admission::RouteId;
use crate::policy::admission::{self, Caller, NoKey};
use crate::policy::api_key::KeyDigest;
use crate::policy::endpoint::Endpoint;
use crate::policy::http1::fields::FieldList;
use crate::policy::http1::request::RequestHead;
use crate::policy::key_record::Unusable;
use crate::policy::limit_hit::LimitHit;
use crate::policy::rate_limit::QuotaStatus;
use crate::policy::rejection::{ExceededLimit, Limit, Rejection};
use crate::policy::token_bucket::Empty;
use crate::store::ledger::NO_ENDPOINT;
use crate::store::{Charge, Decision, KeyEntry, Receipt, RefusalReason, StoreError, UNBOUNDED};
use crate::telemetry::metrics;

/// A replica of the key table is current while it is at most this old. A key that it lacks counts as unknown only then; otherwise the
/// answer is a 500.
pub const KEYS_AGE_MAX: Duration = Duration::from_secs(5);

/// The right to forward one request.
pub type Permit = admission::Permit<Arc<KeyEntry>, Grant>;
/// A refused request.
pub type Refusal = admission::Refusal<Arc<KeyEntry>>;
type NextNeed<'a> = admission::Next<'a, Arc<KeyEntry>, Grant>;
type KnownCaller = Caller<Arc<KeyEntry>>;
type ToCharge<'a> = admission::Ask<'a, Arc<KeyEntry>, Arc<Endpoint>>;

/// What a permitted request holds until it ends.
#[derive(Debug)]
pub struct Grant {
    /// Proof of its charge, to be refunded or dropped.
    pub receipt: Receipt,
    /// The upstream, which was found before the charge.
    pub upstream: Arc<Upstream>,
    /// Its slot among the key's requests in flight, if these are limited.
    pub slot: Option<Slot>,
}

/// An admitted request.
#[derive(Debug)]
pub enum Admitted {
    /// To be forwarded.
    Forward(Permit),
    /// To be answered with the caller's usage; not charged.
    Usage(Usage),
    /// To be answered with the description of the API; not charged, and without a check of the key.
    Document,
}

/// The answer to a caller who reads its usage.
#[derive(Debug)]
pub struct Usage {
    /// The caller's key.
    pub key: Arc<KeyEntry>,
    /// The quota status of the key.
    pub quota_status: QuotaStatus,
    /// The body.
    pub report: Vec<u8>,
}

/// The admission trace of a request: the time spent in its steps, and the spans of a recorded request.
#[derive(Debug, Default)]
pub struct AdmissionTrace {
    /// Time spent waiting for the store.
    pub store_wait: Duration,
    /// When the store last answered.
    pub store_answered: Option<Instant>,
    /// The spans of a recorded request.
    pub recording: Option<Box<Recording>>,
}

/// Admits a request that `arrived` just now, or refuses it. Notes are added to `trace`.
///
/// # Errors
/// With the refusal of the first step that fails.
pub async fn admit(
    gate: &Gate,
    snapshot: &Snapshot,
    head: &RequestHead,
    arrived: Timestamp,
    trace: &mut AdmissionTrace,
) -> Result<Admitted, Refusal> {
    let target = well_formed::check(head, &snapshot.config.limits); // 1
    let path = target.map(|target| target.path);
    let mut edge = Edge {
        gate,
        snapshot,
        trace,
    };
    let (mut slot, mut arrived) = (None, Some(arrived));
    let mut next: NextNeed<'_> =
        admission::begin(&head.method, path, &snapshot.config.endpoints, None);
    loop {
        next = match next {
            NextNeed::Key(ask) => {
                slot = None;
                let presented = edge.presented(&head.fields); // 2
                let at = arrived.take().or(ask.at());
                let found = presented.and_then(|key| edge.authenticate(&key, at)); // 3
                ask.answer(found)
            }
            NextNeed::Room(ask) => {
                let room = edge.take_room(ask.caller(), ask.limit(), &mut slot); // 7
                ask.answer(room)
            }
            NextNeed::Charge(ask) => edge.charge(ask, &mut slot).await, // 8
            NextNeed::Count(ask) => {
                let used = edge.used(ask.caller()).await;
                match edge.has_changed(ask.caller()) {
                    false => ask.answer(used.ok()),
                    true => ask.changed(None),
                }
            }
            NextNeed::Usage(ask) => {
                let read = edge.read_usage(ask.caller()).await;
                match (edge.has_changed(ask.caller()), read) {
                    (true, _) => ask.changed(None),
                    (false, Ok((used, report))) => {
                        let (key, quota_status) = ask.answered(used);
                        return Ok(Admitted::Usage(Usage {
                            key,
                            quota_status,
                            report,
                        }));
                    }
                    (false, Err(error)) => {
                        let used = edge.used_as_known(ask.caller());
                        ask.failed(error.to_string(), used)
                    }
                }
            }
            NextNeed::Document => return Ok(Admitted::Document),
            NextNeed::Permitted(permit) => return Ok(Admitted::Forward(permit)),
            NextNeed::Refused(refusal) => {
                edge.note_refusal(&refusal);
                return Err(refusal);
            }
        }
    }
}

/// Answers the questions of one request.
struct Edge<'a> {
    gate: &'a Gate,
    snapshot: &'a Snapshot,
    trace: &'a mut AdmissionTrace,
}

impl Edge<'_> {
    fn presented(&self, fields: &FieldList) -> Result<KeyDigest, NoKey<Arc<KeyEntry>>> {
        admission::presented(fields.all(&X_API_KEY), &self.snapshot.config.keys.prefix)
    }

    /// Step 3 at an instant, or now.
    fn authenticate(
        &mut self,
        key: &KeyDigest,
        at: Option<Timestamp>,
    ) -> Result<KnownCaller, NoKey<Arc<KeyEntry>>> {
        let now = at.unwrap_or_else(|| self.gate.store.now());
        let found = self.look_up(key, now);
        if let Some(recording) = &mut self.trace.recording {
            recording.authenticated();
        }
        found
    }

    /// Looks a key up in the replica of the key table only: a missing key is unknown while the replica is current, and known keys
    /// are served while the replica may be used.
    fn look_up(
        &self,
        key: &KeyDigest,
        now: Timestamp,
    ) -> Result<KnownCaller, NoKey<Arc<KeyEntry>>> {
        let (gate, config) = (self.gate, &self.snapshot.config);
        let keys = gate.store.freshness();
        if !keys.usable {
            let cause = "the replica of the key table is not loaded or older than store.redis.max_staleness";
            return Err(NoKey::Unknown(cause.into()));
        }
        let is_current = keys.loaded && keys.age <= KEYS_AGE_MAX;
        let has_ended = || {
            let entry = gate.store.keys().find(key);
            let usable = entry.map(|entry| entry.record.usable(key, now));
            matches!(usable, Some(Err(Unusable::WrongSecret)))
        };
        match gate.store.keys().judge(key, now) {
            Ok(entry) => {
                let day = gate.day_at(&config.calendar, now);
                let day = day.map_err(|error| NoKey::Unknown(error.to_string()))?;
                let terms = config.tier(&entry.record.tier).map(Tier::terms);
                Caller::new(entry, now, day, terms)
            }
            // The secret before the last rotation is in the replica for as long as it is the previous one, also after its end.
            Err(Unusable::WrongSecret) if !is_current && !has_ended() => Err(NoKey::Unknown(
                "the key is not in the replica of the key table, which is not current".into(),
            )),
            Err(
                Unusable::WrongSecret | Unusable::Revoked | Unusable::Suspended | Unusable::Expired,
            ) => Err(NoKey::Invalid),
        }
    }

    /// Step 7: takes a token, or a place in `slot`.
    fn take_room(
        &self,
        caller: &KnownCaller,
        limit: Limit,
        slot: &mut Option<Slot>,
    ) -> Result<(), Duration> {
        let (id, rates) = (caller.key.record.id, &self.gate.rates);
        let (drawn, buckets) = match limit {
            Limit::Burst(rate) => (rates.take(id, rate, Instant::now()), LimitHit::BurstKeys),
            Limit::UsageRead => (self.gate.take_usage_read(id), LimitHit::UsageReaders),
            Limit::Concurrent(allowed) => {
                *slot = rates.enter(id, allowed);
                return slot.as_ref().map(|_| ()).ok_or(Duration::ZERO);
            }
        };
        drawn.map_err(|empty| {
            if let Empty::Room { .. } = empty {
                self.gate.metrics.limit_hits.note(buckets);
            }
            empty.wait()
        })
    }

    /// Step 8: one atomic charge. The permit takes over the slot.
    async fn charge<'a>(&mut self, ask: ToCharge<'a>, slot: &mut Option<Slot>) -> NextNeed<'a> {
        let (caller, endpoint) = (ask.caller(), ask.endpoint());
        let Some(upstream) = self.snapshot.upstream(&endpoint.upstream).cloned() else {
            let cause = format!("there is no upstream {}", endpoint.upstream);
            return ask.failed(cause, None);
        };
        let charge = Charge {
            key: caller.key.clone(),
            day: caller.quota_status.day,
            limit: caller.bound().unwrap_or(UNBOUNDED),
            cost: endpoint.cost.get(),
            endpoint: endpoint.pattern.clone(),
        };
        let asked = Instant::now();
        let decision = self.gate.store.charge(charge).await;
        self.note_call(metrics::CHARGE, asked, &decision);
        if let Some(recording) = &mut self.trace.recording {
            recording.charged(asked);
        }
        if let Ok(Decision::Granted { counted, .. } | Decision::Exhausted { used: counted }) =
            &decision
        {
            self.note_share(ask.caller(), *counted);
        }
        match decision {
            Ok(Decision::Granted { used, receipt, .. }) => {
                let slot = slot.take();
                let grant = Grant {
                    receipt,
                    upstream,
                    slot,
                };
                ask.granted(used, grant)
            }
            Ok(Decision::Exhausted { used }) => ask.exhausted(used),
            Ok(Decision::KeyChanged) => ask.changed(None),
            Ok(Decision::OtherDay { now }) => ask.changed(Some(now)),
            Err(error) => {
                let used = self.used_as_known(ask.caller());
                ask.failed(error.to_string(), used)
            }
        }
    }

    /// The units used today, and the body that lists those of the last days.
    async fn read_usage(&mut self, caller: &KnownCaller) -> Result<(u64, Vec<u8>), StoreError> {
        let (record, quota_status) = (&caller.key.record, caller.quota_status);
        let (day, store) = (quota_status.day, &self.gate.store);
        let from = usage::first_day(day);
        let asked = Instant::now();
        let history = store.usage_for_request(from, day, record.id).await;
        self.note_call(metrics::USAGE, asked, &history);
        let history = history?;
        let used = self.used(caller).await?;
        // The store may have received more from other gateways since this one last asked for the count.
        let of_today = history.iter().find(|usage| usage.date == day.date);
        let used = of_today.map_or(used, |usage| usage.used.max(used));
        let table = &self.snapshot.config.endpoints;
        let report = Report::new(record, quota_status, used, table, &history).to_json();
        Ok((used, report))
    }

    /// Units used today, read without a charge.
    async fn used(&mut self, caller: &KnownCaller) -> Result<u64, StoreError> {
        let asked = Instant::now();
        let (id, today) = (caller.key.record.id, caller.quota_status.day);
        let limit = caller.bound().unwrap_or(UNBOUNDED);
        let used = self.gate.store.used(id, today, limit).await;
        self.note_call(metrics::READ, asked, &used);
        used
    }

    /// Units used today as far as they are known here.
    fn used_as_known(&self, caller: &KnownCaller) -> Option<u64> {
        let (id, today) = (caller.key.record.id, caller.quota_status.day);
        let limit = caller.bound().unwrap_or(UNBOUNDED);
        self.gate.store.used_as_known(id, today, limit)
    }

    /// Whether the replica has a newer record of the key than the judged one.
    fn has_changed(&self, caller: &KnownCaller) -> bool {
        let record = &caller.key.record;
        let newest = self.gate.store.keys().get(record.id);
        newest.is_some_and(|entry| entry.record.version > record.version)
    }

    /// Counts a call of the store that began at `asked`.
    fn note_call<T>(&mut self, operation: &str, asked: Instant, outcome: &Result<T, StoreError>) {
        let answered = Instant::now();
        let took = answered.saturating_duration_since(asked);
        self.trace.store_wait += took;
        self.trace.store_answered = Some(answered);
        let outcome = outcome.as_ref().map(|_| ()).map_err(|_| ());
        self.gate.metrics.store_call(operation, took, outcome);
    }

    /// Reports the shares of its limit that a key has reached.
    fn note_share(&self, caller: &KnownCaller, used: u64) {
        let quota_status = QuotaStatus {
            used: Some(used),
            ..caller.quota_status
        };
        let (shares, record) = (&self.snapshot.config.events.shares, &caller.key.record);
        let (gate, now) = (self.gate, || self.gate.store.now());
        if gate
            .threshold_events
            .examine(shares, record, quota_status, now)
            .is_err()
        {
            self.gate.metrics.limit_hits.note(LimitHit::Events);
        }
    }

    /// Counts the refusal of an authenticated caller in the ledger, at its endpoint if there is one. The gateway's own paths are
    /// not in the ledger.
    fn note_refusal(&self, refusal: &Refusal) {
        let pattern = match &refusal.place {
            Some(RouteId::Endpoint(endpoint)) => &endpoint.pattern,
            Some(RouteId::Own(_)) => return,
            None => &*NO_ENDPOINT,
        };
        if let (Some(key), Some(quota_status), Some(reason)) = (
            &refusal.key,
            refusal.quota_status,
            in_ledger(&refusal.rejection),
        ) {
            self.gate
                .store
                .refused(key, quota_status.day, pattern, reason);
        }
    }
}

/// The ledger's kind of a refusal, at an endpoint or without one.
fn in_ledger(rejection: &Rejection) -> Option<RefusalReason> {
    match rejection {
        Rejection::NotFound => Some(RefusalReason::NotFound),
        Rejection::MethodNotAllowed { .. } => Some(RefusalReason::Method),
        Rejection::TierInsufficient { .. } => Some(RefusalReason::Tier),
        Rejection::RateLimitExceeded(limit, _) => match limit {
            ExceededLimit::Daily => Some(RefusalReason::DailyQuota),
            ExceededLimit::OfGateway(Limit::Burst(_), _) => Some(RefusalReason::Burst),
            ExceededLimit::OfGateway(Limit::Concurrent(_), _) => Some(RefusalReason::Concurrent),
            ExceededLimit::OfGateway(Limit::UsageRead, _) => None,
        },
        Rejection::BadRequest(_)
        | Rejection::PayloadTooLarge
        | Rejection::UriTooLong
        | Rejection::HeadersTooLarge
        | Rejection::MissingApiKey
        | Rejection::InvalidApiKey
        | Rejection::Maintenance(_)
        | Rejection::Internal => None,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::pin::pin;

    use futures_util::future::poll_immediate;
    use jiff::ToSpan;
    use tempfile::TempDir;
    use tokio::task::coop;

    use super::*;
    use crate::policy::api_key::{ApiKey, KeyId};
    use crate::policy::http1::request::RequestReader;
    use crate::policy::key_record::tests::key_of;
    use crate::policy::key_record::{KeyRecord, KeyState};
    use crate::policy::token_bucket::Rate;
    use crate::proxy::gate::tests::{config, gate};
    use crate::proxy::rates;

    /// A gate on a store that has one key of the tier `pro`.
    struct Scene {
        gate: Arc<Gate>,
        key: ApiKey,
        record: KeyRecord,
        _directory: TempDir,
    }

    impl Scene {
        /// `change` sets the limits of the tier.
        async fn new(change: impl FnOnce(&mut Tier)) -> Scene {
            let (mut config, directory) = (config(""), tempfile::tempdir().unwrap());
            change(&mut config.tiers[0].1);
            let gate = gate(config, &directory).await;
            let (key, record) = key_of("pro");
            let (record, _) = gate.store.create_key(record).await.unwrap();
            Scene {
                gate,
                key,
                record,
                _directory: directory,
            }
        }

        /// Admits a request with the key, or refuses it; `meanwhile` runs once the store is asked for something.
        async fn admit(
            &self,
            request: &str,
            arrived: Timestamp,
            meanwhile: impl AsyncFnOnce(),
        ) -> Result<Admitted, Refusal> {
            let (snapshot, mut trace) = (self.gate.snapshot(), AdmissionTrace::default());
            let key = self.key.reveal();
            let text = format!("{request} HTTP/1.1\r\nHost: a\r\nX-API-Key: {key}\r\n\r\n");
            let bounds = well_formed::bounds_of(&snapshot.config.limits);
            let head = RequestReader::whole_head(&text, &bounds).unwrap();
            let mut admitted = pin!(admit(&self.gate, &snapshot, &head, arrived, &mut trace));
            // Without budget no answer of the store is ready at once, however fast the store is.
            while coop::has_budget_remaining() {
                coop::consume_budget().await;
            }
            match poll_immediate(&mut admitted).await {
                Some(admitted) => admitted,
                None => {
                    meanwhile().await;
                    admitted.await
                }
            }
        }
    }

    #[tokio::test]
    async fn a_request_that_is_judged_again_is_counted_as_in_flight_once() {
        let scene = Scene::new(|tier| tier.concurrent = Some(NonZeroU32::MIN)).await;
        // The day of its arrival is over for the store.
        let arrived = scene.gate.store.now() - 24.hours();
        for _ in 0..2 {
            match scene.admit("GET /a", arrived, async || ()).await {
                Ok(Admitted::Forward(permit)) => assert!(permit.grant.slot.is_some()),
                other => panic!("{other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_request_whose_key_is_revoked_while_the_count_is_read_for_its_answer_is_refused() {
        for request in ["GET /api/v1/usage", "DELETE /a"] {
            let scene = Scene::new(|_| ()).await;
            let store = &scene.gate.store;
            let revoke = async || {
                let revoked = KeyRecord {
                    state: KeyState::Revoked,
                    ..scene.record.clone()
                };
                store.update_key(revoked).await.unwrap();
            };
            let admitted = scene.admit(request, store.now(), revoke).await;
            let rejection = admitted.map_err(|refusal| refusal.rejection);
            assert!(
                matches!(rejection, Err(Rejection::InvalidApiKey)),
                "{request}: {rejection:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_key_without_room_for_its_bucket_is_refused_and_the_hit_of_that_limit_counted() {
        let rate = Rate::per_second(NonZeroU32::MIN, NonZeroU32::MIN);
        let scene = Scene::new(|tier| tier.burst = Some(rate)).await;
        let (gate, mut random) = (&scene.gate, fastrand::Rng::with_seed(1));
        rates::tests::fill_up(&gate.rates, scene.record.id);
        loop {
            let other = KeyId::generate(&mut |bytes| random.fill(bytes));
            // All its tokens, so that the bucket is full again only after seconds.
            let mut taken = std::iter::repeat_with(|| gate.take_usage_read(other));
            if let Some(Empty::Room { .. }) = taken.find_map(Result::err) {
                break;
            }
        }
        for (request, hit) in [
            ("GET /a", LimitHit::BurstKeys),
            ("GET /api/v1/usage", LimitHit::UsageReaders),
        ] {
            let admitted = scene.admit(request, gate.store.now(), async || ()).await;
            let rejection = admitted.map_err(|refusal| refusal.rejection);
            assert!(
                matches!(rejection, Err(Rejection::RateLimitExceeded(..))),
                "{request}: {rejection:?}"
            );
            let series = format!("touchline_limit_hits_total{{limit=\"{}\"}} 1", hit.as_str());
            let metrics = gate.metrics.render();
            assert!(metrics.contains(&series), "{series} in {metrics}");
        }
    }
}

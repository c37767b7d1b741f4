//! The request path: steps 1 to 8 of the contract, top to bottom.
//!
//! Free checks come first, the charge last; what the gateway answers itself leaves on the way. Whoever holds a [`Permit`] has passed them all and has been charged; it
//! cannot be made anywhere else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, Method};
use pingora::http::RequestHeader;

use super::forward::X_API_KEY;
use super::gate::{Gate, Snapshot};
use super::usage::{self, Report};
use super::well_formed;
use crate::policy::api_key::{self, KeyDigest};
use crate::policy::calendar::Day;
use crate::policy::endpoint::Endpoint;
use crate::policy::own_path::{self, OwnPath};
use crate::policy::rate_limit::Standing;
use crate::policy::rejection::Rejection;
use crate::policy::token_bucket::Empty;
use crate::store::{Charge, Decision, KeyEntry, Receipt, Refusal as LedgerRefusal, StoreError};

/// How often the checks are made anew because the key or the day changed under them; beyond it something is wrong.
const ATTEMPTS_MAX: usize = 4;
/// A key that is not in the replica is unknown only while the replica is at most this old; else the answer is a 500.
const KEYS_AGE_MAX: Duration = Duration::from_secs(5);

/// The right to forward one request: authenticated, allowed, charged.
#[derive(Debug)]
pub struct Permit {
    key: Arc<KeyEntry>,
    endpoint: Arc<Endpoint>,
    standing: Standing,
    receipt: Receipt,
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

    /// Where the key stands with this request counted.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Gives the permit up for its receipt, to be refunded.
    pub fn into_receipt(self) -> Receipt {
        self.receipt
    }
}

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

    fn internal(cause: impl Into<String>) -> Refusal {
        Refusal {
            cause: Some(cause.into()),
            ..Refusal::of(Rejection::Internal)
        }
    }
}

/// Lets a request in or says why not. `raw` is the head as it came over HTTP/1; `store_wait` grows by the time spent
/// waiting for the store.
pub async fn admit(
    gate: &Gate,
    snapshot: &Snapshot,
    header: &RequestHeader,
    raw: Option<&[u8]>,
    store_wait: &mut Duration,
) -> Result<Admitted, Refusal> {
    let target = well_formed::check(header, raw, &snapshot.head_limits).map_err(Refusal::of)?; // 1
    let own = OwnPath::of(target.path);
    if own == Some(OwnPath::Document) {
        return admit_to_document(&header.method); // public
    }
    let presented = presented_key(&header.headers, snapshot).map_err(Refusal::of)?; // 2
    let mut now = gate.store.now();
    let mut judged = None;
    for _ in 0..ATTEMPTS_MAX {
        let key = authenticate(gate, &presented, now)?; // 3
        let caller = judged.insert(Caller::new(gate, snapshot, key, now)?);
        if own == Some(OwnPath::Usage) {
            let told = caller.read_usage(gate, snapshot, header, store_wait);
            match told.await {
                Some(told) => return told.map(Admitted::Usage), // never charged
                None => continue,
            }
        }
        let (table, tier) = (&snapshot.config.endpoints, &caller.key.record.tier);
        let found = table.admit(target.path, &header.method, tier); // 4, 5, 6
        let endpoint = match found {
            Ok(endpoint) => endpoint,
            Err((rejection, endpoint)) => {
                let place = endpoint.cloned().map(Place::Endpoint);
                let refused = caller.refuse_freely(gate, rejection, place, store_wait);
                match refused.await {
                    Some(refusal) => return Err(refusal),
                    None => continue,
                }
            }
        };
        match caller.charge(gate, endpoint, store_wait).await {
            Ok(Decision::Granted { used, receipt }) => {
                let standing = Standing {
                    used: Some(used),
                    ..caller.standing
                };
                return Ok(Admitted::Forward(Permit {
                    key: caller.key.clone(),
                    endpoint: endpoint.clone(),
                    standing,
                    receipt,
                }));
            }
            Ok(Decision::Exhausted { used }) => {
                return Err(caller.refuse_exhausted(gate, endpoint, used));
            } // 8
            Ok(Decision::KeyChanged) => now = gate.store.now(),
            Ok(Decision::OtherDay { now: stores }) => now = stores,
            Err(error) => {
                let place = Place::Endpoint(endpoint.clone());
                return Err(caller.refuse_unserved(Some(place), error.to_string()));
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

/// Step 3: the key is known, its secret right, its state active, its subscription not over. Asks nobody: a key that is
/// not in the replica is unknown while the replica is current, and known keys are served by it while it may be used.
fn authenticate(
    gate: &Gate,
    presented: &KeyDigest,
    now: jiff::Timestamp,
) -> Result<Arc<KeyEntry>, Refusal> {
    let health = gate.store.health();
    if !health.keys_usable {
        return Err(Refusal::internal(
            "the replica of the key table is not loaded or older than store.redis.max_staleness",
        ));
    }
    match gate.store.keys().find(presented) {
        Some(entry) if entry.record.usable(presented, now).is_ok() => Ok(entry),
        Some(_) => Err(Refusal::of(Rejection::InvalidApiKey)),
        None => {
            if health.keys_loaded && health.keys_age <= KEYS_AGE_MAX {
                Err(Refusal::of(Rejection::InvalidApiKey))
            } else {
                Err(Refusal::internal(
                    "the key is not in the replica of the key table, which is not current",
                ))
            }
        }
    }
}

/// An authenticated caller on its quota day.
struct Caller {
    key: Arc<KeyEntry>,
    standing: Standing,
}

impl Caller {
    fn new(
        gate: &Gate,
        snapshot: &Snapshot,
        key: Arc<KeyEntry>,
        now: jiff::Timestamp,
    ) -> Result<Caller, Refusal> {
        let day: Day = gate
            .day_at(&snapshot.config.calendar, now)
            .map_err(|error| Refusal::internal(error.to_string()))?;
        let Some(tier) = snapshot.config.tier(&key.record.tier) else {
            return Err(Refusal::internal(format!(
                "the configuration has no tier {}",
                key.record.tier
            )));
        };
        let limit = key.record.limit_on(day.date, tier.daily.get());
        Ok(Caller {
            key,
            standing: Standing {
                limit,
                used: None,
                day,
            },
        })
    }

    /// A refusal that costs nothing and shows where the caller stands. `None` if reading that showed that the key has
    /// changed.
    async fn refuse_freely(
        &self,
        gate: &Gate,
        rejection: Rejection,
        place: Option<Place>,
        store_wait: &mut Duration,
    ) -> Option<Refusal> {
        let used = self.used(gate, store_wait).await;
        if self.has_changed(gate) {
            return None;
        }
        if let (Rejection::TierInsufficient { .. }, Some(Place::Endpoint(endpoint))) =
            (&rejection, &place)
        {
            gate.store.refused(
                self.key.record.id,
                self.standing.day,
                &endpoint.pattern,
                LedgerRefusal::Tier,
            );
        }
        let used = used.ok();
        let standing = Standing {
            used,
            ..self.standing
        };
        Some(Refusal {
            rejection: rejection.at(standing),
            key: Some(self.key.clone()),
            place,
            standing: Some(standing),
            cause: None,
        })
    }

    /// What the caller is told of its usage, within the method and rate that this takes. `None` if reading it showed
    /// that the key has changed.
    async fn read_usage(
        &self,
        gate: &Gate,
        snapshot: &Snapshot,
        header: &RequestHeader,
        store_wait: &mut Duration,
    ) -> Option<Result<Usage, Refusal>> {
        let place = Place::Own(OwnPath::Usage);
        let taken = own_path::takes(&header.method).and_then(|()| self.take_usage_read(gate));
        if let Err(rejection) = taken {
            let refused = self.refuse_freely(gate, rejection, Some(place), store_wait);
            return refused.await.map(Err);
        }
        let record = &self.key.record;
        let today = self.standing.day;
        let used = self.used(gate, store_wait).await;
        let asked = Instant::now();
        let read = match used {
            Ok(used) => {
                let from = usage::first_day(today);
                let history = gate.store.usage(from, today.date, Some(record.id)).await;
                note_call(gate, "usage", asked, &history, store_wait);
                history.map(|history| (used, history))
            }
            Err(error) => Err(error),
        };
        if self.has_changed(gate) {
            return None;
        }
        Some(match read {
            Ok((used, history)) => {
                let table = &snapshot.config.endpoints;
                let report = Report::new(record, self.standing, used, table, &history);
                Ok(Usage {
                    key: self.key.clone(),
                    standing: Standing {
                        used: Some(used),
                        ..self.standing
                    },
                    report: report.to_json(),
                })
            }
            Err(error) => Err(self.refuse_unserved(Some(place), error.to_string())),
        })
    }

    /// The small limit on reading one's usage.
    fn take_usage_read(&self, gate: &Gate) -> Result<(), Rejection> {
        gate.take_usage_read(self.key.record.id).map_err(|empty| {
            if let Empty::Room { .. } = empty {
                gate.metrics
                    .limit_hits
                    .with_label_values(&["usage_readers"])
                    .inc();
            }
            Rejection::UsageReadTooOften {
                standing: self.standing,
                wait: empty.wait(),
            }
        })
    }

    /// Units used today, read without a charge.
    async fn used(&self, gate: &Gate, store_wait: &mut Duration) -> Result<u64, StoreError> {
        let asked = Instant::now();
        let used = gate.store.used(self.key.record.id, self.standing.day).await;
        note_call(gate, "read", asked, &used, store_wait);
        used
    }

    /// Whether the replica holds a newer record of the key than the one that was checked.
    fn has_changed(&self, gate: &Gate) -> bool {
        let record = &self.key.record;
        let newest = gate.store.keys().get(record.id);
        newest.is_some_and(|entry| entry.record.version > record.version)
    }

    /// Step 8: one atomic charge.
    async fn charge(
        &self,
        gate: &Gate,
        endpoint: &Arc<Endpoint>,
        store_wait: &mut Duration,
    ) -> Result<Decision, StoreError> {
        let charge = Charge {
            key: self.key.clone(),
            day: self.standing.day,
            limit: self.standing.limit,
            cost: endpoint.cost.get(),
            endpoint: endpoint.pattern.clone(),
        };
        let asked = Instant::now();
        let decision = gate.store.charge(charge).await;
        note_call(gate, "charge", asked, &decision, store_wait);
        decision
    }

    fn refuse_exhausted(&self, gate: &Gate, endpoint: &Arc<Endpoint>, used: u64) -> Refusal {
        let standing = Standing {
            used: Some(used),
            ..self.standing
        };
        gate.store.refused(
            self.key.record.id,
            standing.day,
            &endpoint.pattern,
            LedgerRefusal::DailyQuota,
        );
        Refusal {
            rejection: Rejection::DailyQuotaExceeded { standing },
            key: Some(self.key.clone()),
            place: Some(Place::Endpoint(endpoint.clone())),
            standing: Some(standing),
            cause: None,
        }
    }

    fn refuse_unserved(&self, place: Option<Place>, cause: String) -> Refusal {
        Refusal {
            rejection: Rejection::Internal,
            key: Some(self.key.clone()),
            place,
            standing: Some(self.standing),
            cause: Some(cause),
        }
    }
}

/// Counts a call of the store that began at `asked`.
fn note_call<T>(
    gate: &Gate,
    operation: &str,
    asked: Instant,
    outcome: &Result<T, StoreError>,
    store_wait: &mut Duration,
) {
    let took = asked.elapsed();
    *store_wait += took;
    let outcome = outcome.as_ref().map(|_| ()).map_err(|_| ());
    gate.metrics.store_call(operation, took, outcome);
}

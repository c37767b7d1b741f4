//! The request path: steps 1 to 8 of the contract, top to bottom.
//!
//! Free checks come first, the charge last. Whoever holds a [`Permit`] has passed them all and has been charged; it
//! cannot be made anywhere else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderMap;
use pingora::http::RequestHeader;

use super::forward::X_API_KEY;
use super::gate::{Gate, Snapshot};
use super::well_formed;
use crate::policy::api_key::{self, KeyDigest};
use crate::policy::calendar::Day;
use crate::policy::endpoint::Endpoint;
use crate::policy::rate_limit::Standing;
use crate::policy::rejection::Rejection;
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

/// A request that goes no further, with what had been found by then.
#[derive(Debug)]
pub struct Refusal {
    /// The answer.
    pub rejection: Rejection,
    /// The key, once authenticated.
    pub key: Option<Arc<KeyEntry>>,
    /// The endpoint, once found.
    pub endpoint: Option<Arc<Endpoint>>,
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
            endpoint: None,
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
) -> Result<Permit, Refusal> {
    let target = well_formed::check(header, raw, &snapshot.head_limits).map_err(Refusal::of)?; // 1
    let presented = presented_key(&header.headers, snapshot).map_err(Refusal::of)?; // 2
    let mut now = gate.store.now();
    let mut judged = None;
    for _ in 0..ATTEMPTS_MAX {
        let key = authenticate(gate, &presented, now)?; // 3
        let caller = Caller::new(gate, snapshot, key, now)?;
        let tier = &caller.key.record.tier;
        let found = snapshot
            .config
            .endpoints
            .admit(target.path, &header.method, tier); // 4, 5, 6
        let endpoint = match found {
            Ok(endpoint) => endpoint,
            Err((rejection, endpoint)) => {
                match caller
                    .refuse_freely(gate, rejection, endpoint, store_wait)
                    .await
                {
                    Some(refusal) => return Err(refusal),
                    None => {
                        judged = Some(caller);
                        continue;
                    }
                }
            }
        };
        match caller.charge(gate, endpoint, store_wait).await {
            Ok(Decision::Granted { used, receipt }) => {
                let standing = Standing {
                    used: Some(used),
                    ..caller.standing
                };
                return Ok(Permit {
                    key: caller.key,
                    endpoint: endpoint.clone(),
                    standing,
                    receipt,
                });
            }
            Ok(Decision::Exhausted { used }) => {
                return Err(caller.refuse_exhausted(gate, endpoint, used));
            } // 8
            Ok(Decision::KeyChanged) => now = gate.store.now(),
            Ok(Decision::OtherDay { now: stores }) => now = stores,
            Err(error) => return Err(caller.refuse_unserved(Some(endpoint), error.to_string())),
        }
        judged = Some(caller);
    }
    let cause = "the key or the day changed again and again under the checks";
    Err(match judged {
        Some(caller) => caller.refuse_unserved(None, cause.into()),
        None => Refusal::internal(cause),
    })
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

    /// A refusal of steps 4 to 6, which costs nothing and shows where the caller stands. `None` if reading that showed
    /// that the key has changed.
    async fn refuse_freely(
        &self,
        gate: &Gate,
        rejection: Rejection,
        endpoint: Option<&Arc<Endpoint>>,
        store_wait: &mut Duration,
    ) -> Option<Refusal> {
        let id = self.key.record.id;
        let asked = Instant::now();
        let used = gate.store.used(id, self.standing.day).await;
        *store_wait += asked.elapsed();
        gate.metrics.store_call(
            "read",
            asked.elapsed(),
            used.as_ref().map(|_| ()).map_err(|_| ()),
        );
        if gate
            .store
            .keys()
            .get(id)
            .is_some_and(|entry| entry.record.version > self.key.record.version)
        {
            return None;
        }
        if let (Rejection::TierInsufficient { .. }, Some(endpoint)) = (&rejection, endpoint) {
            gate.store.refused(
                id,
                self.standing.day,
                &endpoint.pattern,
                LedgerRefusal::Tier,
            );
        }
        Some(Refusal {
            rejection,
            key: Some(self.key.clone()),
            endpoint: endpoint.cloned(),
            standing: Some(Standing {
                used: used.ok(),
                ..self.standing
            }),
            cause: None,
        })
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
        *store_wait += asked.elapsed();
        gate.metrics.store_call(
            "charge",
            asked.elapsed(),
            decision.as_ref().map(|_| ()).map_err(|_| ()),
        );
        decision
    }

    fn refuse_exhausted(self, gate: &Gate, endpoint: &Arc<Endpoint>, used: u64) -> Refusal {
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
            key: Some(self.key),
            endpoint: Some(endpoint.clone()),
            standing: Some(standing),
            cause: None,
        }
    }

    fn refuse_unserved(self, endpoint: Option<&Arc<Endpoint>>, cause: String) -> Refusal {
        Refusal {
            rejection: Rejection::Internal,
            key: Some(self.key),
            endpoint: endpoint.cloned(),
            standing: Some(self.standing),
            cause: Some(cause),
        }
    }
}

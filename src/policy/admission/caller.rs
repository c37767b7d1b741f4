//! Steps 2 and 3: the presented key, and the caller who holds it with the limits of its tier.

use std::borrow::Borrow;
use std::num::NonZeroU32;

use jiff::Timestamp;

use crate::policy::api_key::{self, KeyDigest, KeyPrefix};
use crate::policy::calendar::Day;
use crate::policy::enforcement::{Enforcement, ShadowViolation};
use crate::policy::key_record::KeyRecord;
use crate::policy::rate_limit::QuotaStatus;
use crate::policy::token_bucket::Rate;

/// Why a request has no usable key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoKey<K> {
    /// No key is presented.
    Missing,
    /// The presented value is not a key that is usable now.
    Invalid,
    /// The key cannot be looked up, for this reason, which clients do not see.
    Unknown(String),
    /// The presented key is usable, but its tier is not configured.
    Untiered(K),
}

/// Step 2, and the part of step 3 without a look-up: the values of `X-API-Key` are one key of a possible format.
pub fn presented<'v, K>(
    mut values: impl Iterator<Item = &'v [u8]>,
    prefix: &KeyPrefix,
) -> Result<KeyDigest, NoKey<K>> {
    match (values.next(), values.next()) {
        (None, _) | (Some([]), None) => Err(NoKey::Missing),
        (Some(value), None) => api_key::parse_presented(value, prefix).map_err(|_| NoKey::Invalid),
        (Some(_), Some(_)) => Err(NoKey::Invalid),
    }
}

/// The limits of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Units a day, without grants.
    pub daily: u64,
    /// How fast a key may send requests, on each gateway.
    pub burst: Option<Rate>,
    /// Requests that a key may have in flight, on each gateway.
    pub concurrent: Option<NonZeroU32>,
    /// Whether exceeding a limit refuses the request.
    pub enforcement: Enforcement,
}

/// The holder of a usable key on a quota day.
#[derive(Debug)]
pub struct Caller<K> {
    /// The key.
    pub key: K,
    /// Its limit today; the units used are not known yet.
    pub quota_status: QuotaStatus,
    /// The limits of its tier.
    pub terms: Terms,
    pub(super) now: Timestamp,
    /// The first limit of the tier that would refuse the request if the tier were enforced.
    pub(super) shadow_violation: Option<ShadowViolation>,
}

impl<K: Borrow<KeyRecord>> Caller<K> {
    /// The holder of `key`, which is usable at `now`, an instant of `day`.
    ///
    /// # Errors
    /// If the key's tier has no terms.
    pub fn new(
        key: K,
        now: Timestamp,
        day: Day,
        terms: Option<Terms>,
    ) -> Result<Caller<K>, NoKey<K>> {
        let Some(terms) = terms else {
            return Err(NoKey::Untiered(key));
        };
        let quota_status = QuotaStatus {
            limit: key.borrow().limit_on(day.date, terms.daily),
            used: None,
            day,
        };
        Ok(Caller {
            key,
            quota_status,
            terms,
            now,
            shadow_violation: None,
        })
    }
}

impl<K> Caller<K> {
    /// The count of units that its charges must not exceed, or `None` for no bound.
    pub fn bound(&self) -> Option<u64> {
        self.terms.enforcement.bound(self.quota_status.limit)
    }
}

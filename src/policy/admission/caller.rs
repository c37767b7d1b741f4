//! Steps 2 and 3: the key that a request presents, and its holder.

use std::borrow::Borrow;

use jiff::Timestamp;

use super::Terms;
use crate::policy::api_key::{self, KeyDigest, KeyPrefix};
use crate::policy::calendar::Day;
use crate::policy::enforcement::Waived;
use crate::policy::key_record::KeyRecord;
use crate::policy::rate_limit::Standing;

/// Why a request has no key to be served with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoKey {
    /// It presents none.
    Missing,
    /// What it presents opens no key that may be used now.
    Invalid,
    /// The gateway cannot look it up, for this reason, which clients do not learn.
    Unknown(String),
}

/// Step 2, and the part of step 3 that needs no look-up: one key, of a possible shape, among the values of `X-API-Key`.
pub fn presented<'v>(
    mut values: impl Iterator<Item = &'v [u8]>,
    prefix: &KeyPrefix,
) -> Result<KeyDigest, NoKey> {
    match (values.next(), values.next()) {
        (None, _) | (Some([]), None) => Err(NoKey::Missing),
        (Some(value), None) => api_key::parse_presented(value, prefix).map_err(|_| NoKey::Invalid),
        (Some(_), Some(_)) => Err(NoKey::Invalid),
    }
}

/// The holder of a usable key on its quota day.
#[derive(Debug)]
pub struct Caller<K> {
    /// The key.
    pub key: K,
    /// Its limit today; what it used is not known yet.
    pub standing: Standing,
    /// What its tier allows.
    pub terms: Terms,
    pub(super) now: Timestamp,
    /// The first limit of the tier that would refuse the request, were it enforced.
    pub(super) waived: Option<Waived>,
}

impl<K: Borrow<KeyRecord>> Caller<K> {
    /// The holder of `key`, usable at `now`, which is in `day`.
    ///
    /// # Errors
    /// Without the terms of the key's tier.
    pub fn new(key: K, now: Timestamp, day: Day, terms: Option<Terms>) -> Result<Caller<K>, NoKey> {
        let record = key.borrow();
        let Some(terms) = terms else {
            let cause = format!("the configuration has no tier {}", record.tier);
            return Err(NoKey::Unknown(cause));
        };
        let standing = Standing {
            limit: record.limit_on(day.date, terms.daily),
            used: None,
            day,
        };
        Ok(Caller {
            key,
            standing,
            terms,
            now,
            waived: None,
        })
    }
}

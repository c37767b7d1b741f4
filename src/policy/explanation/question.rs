//! The request to explain.

use http::Method;
use jiff::Timestamp;

use crate::policy::admission::Terms;
use crate::policy::audit::Entry;
use crate::policy::calendar::Day;
use crate::policy::endpoint::EndpointTable;
use crate::policy::key_record::KeyRecord;
use crate::policy::rejection::Rejection;

/// A hypothetical request, and everything that decides its outcome.
#[derive(Debug)]
pub struct Question<'a> {
    /// The method.
    pub method: &'a Method,
    /// The result of step 1: its path, or the rejection.
    pub head: Result<&'a str, Rejection>,
    /// The record of the presented key, or `None` if the store has none.
    pub record: Option<&'a KeyRecord>,
    /// The audit trail of the key, if its record is not usable.
    pub trail: &'a [Entry],
    /// The limits of the key's tier, or `None` if the configuration has no such tier.
    pub terms: Option<Terms>,
    /// The endpoints.
    pub endpoints: &'a EndpointTable,
    /// The quota day of `now`.
    pub day: Day,
    /// The units used on that day.
    pub used: u64,
    /// The time of the request.
    pub now: Timestamp,
}

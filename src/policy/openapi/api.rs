//! The API to describe.

use std::num::NonZeroU32;

use crate::policy::endpoint::EndpointTable;
use crate::policy::key_record::TierName;
use crate::policy::rejection::ProblemTerms;
use crate::policy::token_bucket::Rate;

/// The content of the description.
#[derive(Debug)]
pub struct Api<'a> {
    /// The endpoints.
    pub endpoints: &'a EndpointTable,
    /// The tiers with their units a day, in the order of the configuration.
    pub tiers: Vec<(&'a TierName, u64)>,
    /// The burst limit of one of the tiers, if any tier has one.
    pub burst: Option<Rate>,
    /// The concurrency limit of one of the tiers, if any tier has one.
    pub concurrent: Option<NonZeroU32>,
    /// What all error answers have.
    pub problems: &'a ProblemTerms,
    /// The name of the API.
    pub title: &'a str,
}

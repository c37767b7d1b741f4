//! The name of a row of the ledger: its tier and its endpoint.

use crate::policy::key_record::TierName;

/// The name of the row for units without an endpoint: their producers exported the count, but not the ledger. No endpoint has this name.
pub(super) const UNATTRIBUTED: &str = "unattributed";

/// The name of an endpoint's row: the tier, a space, the endpoint; without a tier, the endpoint alone.
pub(super) fn row_name(tier: Option<&TierName>, endpoint: &str) -> String {
    match tier {
        Some(tier) => format!("{tier} {endpoint}"),
        None => endpoint.to_owned(),
    }
}

/// The tier and the endpoint of a row's name. An endpoint begins with a slash or is one word; a tier's name has no space.
pub(super) fn tier_and_endpoint(text: &str) -> (Option<TierName>, &str) {
    let parts = text
        .split_once(' ')
        .and_then(|(tier, endpoint)| Some((tier.parse::<TierName>().ok()?, endpoint)));
    match parts {
        Some((tier, endpoint)) => (Some(tier), endpoint),
        None => (None, text),
    }
}

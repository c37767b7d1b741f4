//! What this process counts: units of keys and days, and their ledger by endpoint.

pub mod accounts;
mod kept_day;
pub mod ledger;

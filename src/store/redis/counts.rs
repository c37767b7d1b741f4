//! What this process counts: units of keys and days, and their ledger by endpoint.

pub mod accounts;
pub mod ledger;

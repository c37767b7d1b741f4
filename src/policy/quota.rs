//! Quota arithmetic for a store across a network: how units are granted, acknowledged and refunded.
//!
//! A count is kept as one growing pair of numbers per *producer* (the account of one key and day in one gateway process): units
//! granted to it and units that it refunded. A call states the producer's totals (`ack`, `rack`) and the units it wants; merging
//! takes the larger number. So a call that is lost, late or duplicated does no harm, and a store that lost its writes is repaired
//! by the next call. The rooms:
//!
//! | Room | Job |
//! |---|---|
//! | [`account`] | a producer between calls: the waiters, the next call, the distribution of a reply |
//! | [`call`] | a call to the store and its reply |
//! | [`allowance`] | the units that a producer may serve while the store is unreachable |
//!
//! The store handles a call by `charge.lua`, whose model in Rust is `tests/ledger_model.rs`.
//!
//! Invariants, shown by the properties in `tests/simulation.rs`:
//! - units admitted minus units refunded never exceed the limit, except for what the store lost and what was served without it;
//! - once all producers have settled, the store's count is exact; it is never too low.

pub mod account;
pub mod allowance;
pub mod call;
#[cfg(test)]
mod tests;

pub use account::{Account, Asked, StoredCount, WaiterResult};
pub use allowance::NodeShare;
pub use call::{Call, Code, Reply, WaiterTerms};

//! Quota arithmetic for a store across a network: how units are granted, acknowledged and refunded.
//!
//! A count is kept as one growing pair of numbers per *producer* (a gateway process): units granted to it and units that it
//! refunded. A call states the producer's totals (`ack`, `rack`) and the units it wants; merging takes the larger number. So a
//! call that is lost, late or duplicated does no harm, and a store that lost its writes is repaired by the next call. The rooms:
//!
//! | Room | Job |
//! |---|---|
//! | [`account`] | a producer between calls: the waiters, the next call, the distribution of a reply |
//! | [`allowance`] | the units that a producer may serve while the store is unreachable |
//!
//! The store handles a call by `charge.lua`, whose model in Rust is `tests/ledger_model.rs`.
//!
//! Invariants, shown by the properties in `tests/simulation.rs`:
//! - units admitted minus units refunded never exceed the limit, except for what the store lost and what was served without it;
//! - once all producers have settled, the store's count is exact; it is never too low.

pub mod account;
pub mod allowance;
#[cfg(test)]
mod tests;

pub use account::{Account, Asked, Call, StoredCount, WaiterResult, WaiterTerms};
pub use allowance::NodeShare;

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// All requested units were granted.
    Granted,
    /// Too few units are left; some of the requested ones may have been granted.
    Exhausted,
    /// The store holds a newer record of the key: nothing new was granted.
    KeyChanged,
    /// The store's clock is outside the day: nothing new was granted.
    OtherDay,
    /// The store has other boundaries for the day: nothing new was granted.
    OtherCalendar,
}

impl Code {
    /// The code with this number in the script's reply.
    pub fn from_number(number: i64) -> Option<Code> {
        match number {
            0 => Some(Code::Granted),
            1 => Some(Code::Exhausted),
            3 => Some(Code::KeyChanged),
            4 => Some(Code::OtherDay),
            5 => Some(Code::OtherCalendar),
            _ => None,
        }
    }
}

/// A reply to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The result.
    pub code: Code,
    /// Every unit granted to the producer that the call did not acknowledge, whatever the code.
    pub grant: u64,
    /// Units used by all producers, including `grant`, after the refunds of the call.
    pub used: u64,
    /// The version of the store's record, or `None` if it has none.
    pub version: Option<u64>,
    /// The store's time (Unix seconds).
    pub now: i64,
    /// The store's record, if it is newer than the call's.
    pub record: String,
}

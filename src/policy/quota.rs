//! Quota arithmetic for a store that is asked over a network: how units are granted, acknowledged and given back.
//!
//! A count is kept as one growing pair of numbers per *producer* (a gateway process): units granted to it and units it
//! gave back. A call says how far the producer has come (`ack`, `rack`) and how much it wants; merging takes the larger
//! number, so a call that is lost, late or doubled does no harm, and a store that lost its writes is repaired by the
//! next call. The rooms:
//!
//! | Room | What |
//! |---|---|
//! | [`ledger_model`] | what the store does with a call: the model of `charge.lua`, against which it is tested |
//! | [`account`] | what a producer does between calls: who waits, what to ask, how a reply is shared out |
//! | [`allowance`] | what a producer may serve while the store cannot be asked |
//!
//! Invariants, shown by the properties in `simulation`:
//! - units admitted minus units refunded never exceed the limit, but for what the store lost and what was served
//!   without it;
//! - once everybody has settled, the store's count is the truth; it is never below it.

pub mod account;
pub mod allowance;
pub mod ledger_model;
#[cfg(test)]
mod outage_simulation;
#[cfg(test)]
mod simulation;

pub use account::{Account, Asked, Call, Denial, Known, Terms, Verdict};
pub use allowance::Share;
pub use ledger_model::{KeyDay, ModelCall, StoredRecord};

/// What a call was answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Everything asked for was granted.
    Granted,
    /// Not enough is left; part of what was asked for may have been granted.
    Exhausted,
    /// The store holds a newer record of the key: nothing new was granted.
    KeyChanged,
    /// The store's clock is outside the day: nothing new was granted.
    OtherDay,
    /// The store knows the day by other boundaries: nothing new was granted.
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
    /// What became of it.
    pub code: Code,
    /// Every unit granted to the producer and not acknowledged by the call, whatever the code.
    pub grant: u64,
    /// Units used by all producers, with `grant` and without what the call gave back.
    pub used: u64,
    /// The version of the record that the store holds; `None` if it holds none.
    pub version: Option<u64>,
    /// The store's time (Unix seconds).
    pub now: i64,
    /// The store's record, where it is newer than the call's.
    pub record: String,
}

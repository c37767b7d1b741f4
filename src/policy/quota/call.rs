//! A call to the store and its reply.

/// The terms by which a waiter is judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterTerms<C> {
    /// The units that the key may use on the day.
    pub limit: u64,
    /// The version of the record it was checked against.
    pub version: u64,
    /// The rest of the call's context.
    pub context: C,
}

/// A call to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call<C> {
    /// The number of this call within its account.
    pub number: u64,
    /// Units consumed so far.
    pub ack: u64,
    /// Units refunded so far.
    pub rack: u64,
    /// Units wanted; 0 only settles.
    pub want: u64,
    /// The cost of each waiter, in units.
    pub cost: u32,
    /// The terms of the waiters.
    pub terms: WaiterTerms<C>,
}

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

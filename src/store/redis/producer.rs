//! The names of this process's counts.
//!
//! Invariant: a name is used by one account only, of all processes, at any time: an account that starts from zero under a used
//! name would take units of others for its own credit. So an idle account may be dropped: the next one for the same key and day
//! is another producer.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use super::names;

/// The longest end of a name: a point and a number.
const NUMBER_BYTES: usize = 17;

/// 96 random bits, drawn when the store is opened, and a number for each account.
#[derive(Debug)]
pub struct Producer {
    process: String,
    accounts: AtomicU64,
}

impl Producer {
    /// A new process.
    pub fn draw() -> Producer {
        Producer {
            process: names::drawn(),
            accounts: AtomicU64::new(0),
        }
    }

    /// The common prefix of all names of this process.
    pub fn process(&self) -> &str {
        &self.process
    }

    /// The number of a new account, which has not been given before.
    pub fn next_number(&self) -> u64 {
        self.accounts.fetch_add(1, Ordering::Relaxed)
    }

    /// The name of the account with this number. Accounts keep the number, which takes less memory.
    pub fn name(&self, number: u64) -> String {
        let mut name = String::with_capacity(self.process.len() + NUMBER_BYTES);
        name.push_str(&self.process);
        // A String accepts all.
        let _ = write!(name, ".{number:x}");
        name
    }
}

//! The embedded store: one SQLite file on one machine.
//!
//! The database is the authority: several processes (two gateways during an upgrade, and the command line) open the same file
//! and count exactly. Nothing is granted from memory; a count in memory only ever refuses, for at most a second.
//!
//! | Room | Job |
//! |---|---|
//! | `handle` | the store as its callers have it: gives their calls to the threads and awaits the answers |
//! | `schema` | the file, its tables, connections, the meaning of SQLite's failures |
//! | `opening` | checks the file, reads the key table, starts the threads |
//! | `inbox` | the queue of the writer thread, and its bounds |
//! | `writer` | the thread that commits in groups and answers after the commit |
//! | `group` | the decisions and writes of one transaction |
//! | `appended` | entries of groups that are not in the ledger yet |
//! | `folding` | moves them into the ledger |
//! | `export`, `import` | exports the whole store, and imports another one |
//! | `imported_counts` | imported counts, in the ledger of this database |
//! | `day_rows` | the rows of one key and day, for export and import |
//! | `keys` | changes the key table with its audit trail, and follows its changes |
//! | `feed` | the threads that follow the key table and sync the file; live gateways |
//! | `stop` | ends these threads |
//! | `events` | keys near their limits: who reports them, and the events to deliver |
//! | `closing` | the chain of closed days |
//! | `days` | the table of days, with the boundaries of each |
//! | `usage` | reads and proves the ledger |
//! | `retention` | drops days whose retention is over |
//! | `status` | the state of the file, for operators |
//! | `learnt` | counts of the last second |
//!
//! **What can be lost.** A reply is sent after its transaction is committed, so a process that dies, even by `kill -9`, loses
//! nothing. When the machine loses power, [`Durability::Commit`] loses nothing either. [`Durability::Interval`] loses at most
//! the commits of the last interval and of the fsync after it: counts and ledger return to the same instant. Changes of keys
//! follow the same rule.
//!
//! **A key that is not in the database** is never granted units, whatever record the caller has: the charge returns
//! [`KeyChanged`](super::Decision::KeyChanged), and the caller does not find the key when it checks it again. The caller's record
//! never repairs the database, unlike in Redis, which can lose its memory.

mod appended;
mod closing;
mod day_rows;
mod days;
mod events;
mod export;
mod feed;
mod folding;
mod group;
mod handle;
mod import;
mod imported_counts;
mod inbox;
mod keys;
mod learnt;
mod opening;
mod retention;
mod schema;
mod status;
mod stop;
mod usage;
mod writer;

pub use crate::policy::store_settings::Durability;
pub use handle::EmbeddedStore;
pub use opening::{Settings, is_missing, open};

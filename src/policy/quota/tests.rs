//! The charge protocol as a whole: real accounts against a model of the store.

mod ledger_model;
mod outage_simulation;
mod simulation;

use super::{Account, Asked, Call, Code, NodeShare, Reply, WaiterResult, WaiterTerms};
use ledger_model::{ModelCall, ModelDay, StoredRecord};

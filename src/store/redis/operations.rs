//! What commands and background tasks do with the whole store.

mod days;
pub mod events;
pub mod preparing;
pub mod retention;
pub mod status;
pub mod transfer;
pub mod upkeep;

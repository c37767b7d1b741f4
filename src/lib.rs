//! Touchline.
pub mod clock;
pub mod config;
pub mod policy;
pub mod store;

//! Touchline.
pub mod cli;
pub mod clock;
pub mod config;
pub mod policy;
pub mod server;
pub mod store;

//! Integration tests: store. One suite of facts over the `Store` trait for every store, and what only one of them has.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[macro_use]
mod suite;

mod embedded;

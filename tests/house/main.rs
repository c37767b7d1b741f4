//! The house keeps its order: floors, forbidden rooms, what its documents promise, and the versions that its safety rests on.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on may stop"
)]

mod circles;
mod described;
mod documents;
mod floors;
mod guarantees;
mod versions;
mod words;
mod yardstick;

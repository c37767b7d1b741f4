//! The house keeps its order: floors, forbidden rooms, the README's promises, and the versions that its safety rests on.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on may stop"
)]

mod floors;
mod readme;
mod versions;

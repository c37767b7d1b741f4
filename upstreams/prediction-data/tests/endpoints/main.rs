//! The HTTP contract of the service, asked of its router without a socket.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod ask;
mod protocol;
mod resources;

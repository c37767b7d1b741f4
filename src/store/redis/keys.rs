//! The key table in Redis, and a gateway's replica of it.

pub mod audit;
pub mod codec;
pub mod feed;
pub mod import;
pub mod index;
pub mod records;
pub mod replica;
pub mod stream;

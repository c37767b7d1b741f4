//! The connection to Redis: which servers, how a request and its reply travel, and when to stop asking.

pub mod breaker;
pub mod cluster;
pub mod connection;
pub mod dial;
pub mod guard;
pub mod line;
pub mod link;
pub mod preparation;
pub mod remedies;
pub mod replies;
pub mod request;
pub mod script;
pub mod slots;
pub mod topology;
pub mod zone;

//! The edge: the request path, forwarding, answers.
//!
//! | Room | Job |
//! |---|---|
//! | [`admission`] | the request path: the steps of the contract with the store's answers, to a `Permit` or what the gateway serves itself |
//! | [`gate`] | what all requests share: configuration snapshot, store, quota day, metrics, access log |
//! | [`client`] | the client's side of a request: head, body, answer |
//! | [`connection`] | a client's connection: its requests, deadlines, floods, and how many there are |
//! | [`crossings`] | which keys have come near their limits, for whoever tells of it |
//! | [`encoder`] | an answer's body on its way through a content coding |
//! | [`exchange`] | one request from its header to its line in the access log |
//! | [`well_formed`] | step 1 on the head of a request |
//! | [`forward`] | the request as the upstream gets it, the answer's header as the client gets it |
//! | [`failure`] | what to make of a failed forwarding |
//! | [`origin`] | whom a request comes from, as far as the connection and trusted proxies tell |
//! | [`rates`] | how fast a key may send requests, and how many of it are under way |
//! | [`record`] | a request's line in the access log and its traces in the metrics |
//! | [`relay`] | a permitted request on its way to a server, and the answer on its way back |
//! | [`respond`] | writing the gateway's own answers |
//! | [`serve`] | a request from its head to its line in the access log |
//! | [`trace`] | the spans of a recorded request |
//! | [`usage`] | the body of `/api/v1/usage` |
//! | [`upstreams`] | servers to forward to |
//!
//! Invariants: nothing is forwarded without a [`admission::Permit`], and only a granted charge makes one; a permit's
//! receipt is refunded or dropped exactly once; every answer to an authenticated request carries its standing.

pub mod admission;
pub mod client;
pub mod connection;
pub mod crossings;
pub mod encoder;
pub mod exchange;
pub mod failure;
pub mod forward;
pub mod gate;
pub mod origin;
pub mod rates;
pub mod record;
pub mod relay;
pub mod respond;
pub mod serve;
pub mod trace;
pub mod upstreams;
pub mod usage;
pub mod well_formed;

pub use gate::{Gate, Snapshot};

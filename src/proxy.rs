//! The edge: the request path, forwarding, answers.
//!
//! | Room | Job |
//! |---|---|
//! | [`admission`] | the request path: the steps of the contract with the store's answers, to a `Permit` or an answer of the gateway |
//! | [`gate`] | the state shared by all requests: configuration snapshot, store, quota day, metrics, access log |
//! | [`client`] | the client's side of a request: head, body, answer |
//! | [`connection`] | a client's connection: its requests, deadlines, floods; the number of connections |
//! | [`threshold_events`] | keys that have come near their limits, for the task that reports them |
//! | [`encoder`] | an answer's body in a content coding |
//! | [`exchange`] | one request from its header to its line in the access log |
//! | [`well_formed`] | step 1 on the head of a request |
//! | [`forward`] | the request as the upstream receives it, the answer's header as the client receives it |
//! | [`failure`] | why a forwarding ended without a complete answer |
//! | [`origin`] | the origin of a request, by its connection and trusted proxies |
//! | [`rates`] | how fast a key may send requests, and how many are in flight |
//! | [`record`] | a request's line in the access log, its metrics and its spans |
//! | [`relay`] | sends a permitted request to a server, and the answer to the client |
//! | [`respond`] | writing the gateway's own answers |
//! | [`serve`] | a request from its head to its line in the access log |
//! | `settlement` | the outcome of a failed forwarding |
//! | [`trace`] | the spans of a recorded request |
//! | [`usage`] | the body of `/api/v1/usage` |
//! | [`upstreams`] | servers to forward to |
//!
//! Invariants: nothing is forwarded without a [`admission::Permit`], and only a granted charge makes one; a permit's
//! receipt is refunded or dropped exactly once; every answer to an authenticated request carries its quota status.

pub mod admission;
pub mod client;
pub mod connection;
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
mod settlement;
pub mod threshold_events;
pub mod trace;
pub mod upstreams;
pub mod usage;
pub mod well_formed;

pub use gate::{Gate, Snapshot};

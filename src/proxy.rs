//! The edge: the request path, forwarding, answers.
//!
//! Layers, from the bottom up; a file imports from its own layer and from those below it (`tests/house/circles.rs`):
//!
//! | Layer | Owns |
//! |---|---|
//! | the ground | [`forward`]: the request as the upstream receives it, the answer's header as the client receives it; [`failure`]: why a forwarding ended; [`well_formed`]: step 1 on the head of a request; [`rates`]: how fast a key may send requests, and how many are in flight; [`threshold_events`]: keys that have come near their limits, for the task that reports them; [`upstreams`]: servers to forward to; [`trace`]: the spans of a recorded request; [`usage`]: the body of `/api/v1/usage`; [`series`]: the metrics that every served request adds to; [`encoder`]: an answer's body in a content coding; [`received_body`] and [`sent_part`]: bodies in the HTTP/2 library; [`relay::connections`]: connections to servers |
//! | [`gate`] | the state shared by all requests: configuration snapshot, store, quota day, metrics, access log |
//! | [`connection`] | the parts of a client's connection: its state, bytes, deadlines, memory and flood guard; the number of connections |
//! | [`client`] | the client's side of a request over HTTP/1 or HTTP/2: head, body, answer |
//! | [`exchange`] | one request from its header to its line in the access log, with [`origin`]: its origin, by its connection and trusted proxies; [`admission`]: the request path, the steps of the contract with the store's answers, to a `Permit` or an answer of the gateway |
//! | [`respond`] | writing the gateway's own answers; [`record`]: a request's line in the access log, its metrics and its spans; `settlement`: the outcome of a failed forwarding |
//! | [`relay`] | sends a permitted request to a server, and the answer to the client |
//! | [`serve`] | a request from its head to its line in the access log |
//! | [`connection::opening`] | a client's connection as a whole, which has each of its requests served: its protocol, then [`connection::http1`] or [`connection::streams`]; [`connection::unserved`]: requests that are answered without being served |
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
pub mod received_body;
pub mod record;
pub mod relay;
pub mod respond;
pub mod sent_part;
pub mod series;
pub mod serve;
mod settlement;
pub mod threshold_events;
pub mod trace;
pub mod upstreams;
pub mod usage;
pub mod well_formed;

pub use gate::{Gate, Snapshot};

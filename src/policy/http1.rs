//! HTTP/1 on the wire (RFC 9112): heads and bodies of requests and answers, read and written. The only reader and the only writer
//! of HTTP/1 in the gateway; neither reads a socket or a clock, and every limit is an argument.
//!
//! | Room | Decides |
//! |---|---|
//! | [`request`] | where the head of a request ends, whether it can be read in one way only, and its meaning |
//! | [`answer`] | the same for an upstream's answer, and whether its connection can be reused |
//! | [`fields`] | what a field is, and which ones are forwarded |
//! | [`framing`] | where a body ends |
//! | [`body`] | which bytes belong to a body |
//! | [`writer`] | heads and bodies as they are written |
//! | [`refused`] | the readable parts of a refused head |
//! | `grammar` | which bytes a name, a value, a host and a length consist of |
//!
//! Servers and libraries tolerate different deviations: a bare LF, a space in the target, folded lines, two lengths. All are
//! refused here. A head is read once, into one buffer and the positions of its fields; from HTTP/1 to HTTP/1 no header map is
//! built.

pub mod answer;
pub mod body;
pub mod fields;
pub mod framing;
mod grammar;
pub mod refused;
pub mod request;
mod request_line;
mod version;
pub mod writer;

pub use grammar::{agreed_length, is_host, length};
pub use request::HeadBounds;
pub use request_line::{METHOD_BYTES_MAX, connect_refused};
pub use version::Version;

#[cfg(test)]
mod tests;

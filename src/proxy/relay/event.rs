//! The events of an exchange with a server, the same over HTTP/1 and HTTP/2.

use bytes::Bytes;

use crate::proxy::client::Head;

/// The next event of an exchange.
#[derive(Debug)]
pub enum LinkEvent {
    /// All pushed bytes are written, and more are expected.
    Written,
    /// The head of an interim answer.
    Interim(Box<Head>),
    /// The head of the answer, and whether the answer ends with it.
    Head(Box<Head>, bool),
    /// A part of the answer's body, and whether it is the last one.
    Part(Bytes, bool),
}

//! The body of a request on its way to a server, and the part kept in case the request is sent again.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::policy::http2_memory::KEPT_BYTES_MAX;
use crate::proxy::connection::allowance::Turn;
use crate::proxy::exchange::Forwarding;
use crate::proxy::failure::{ClientFault, Failure};

/// The part of a request's body that was read.
#[derive(Debug)]
pub(super) struct Upload {
    kept: BytesMut,
    /// Whether the body is kept from its beginning.
    is_kept: bool,
    ended: bool,
    bytes_max: u64,
    /// Over HTTP/2.
    turn: Option<Arc<Turn>>,
}

impl Upload {
    /// An unread body of up to `bytes_max`; `ended` if there is none.
    pub(super) fn new(bytes_max: u64, ended: bool, turn: Option<Arc<Turn>>) -> Upload {
        Upload {
            kept: BytesMut::new(),
            is_kept: true,
            ended,
            bytes_max,
            turn,
        }
    }

    /// Whether its last part was read.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Whether another attempt can send everything that was read.
    pub(super) fn can_be_sent_again(&self) -> bool {
        self.is_kept
    }

    /// The bytes with which an attempt begins: everything read, if it was kept.
    pub(super) fn kept(&self) -> Bytes {
        self.kept.clone().freeze()
    }

    /// Adds a part that was read; `ends` marks the last one.
    pub(super) fn take(&mut self, part: &Bytes, ends: bool) {
        self.ended |= ends;
        if !self.is_kept {
            return;
        }
        let bytes = self.kept.len() + part.len();
        if bytes as u64 <= KEPT_BYTES_MAX
            && self.turn.as_ref().is_none_or(|turn| turn.may_keep(bytes))
        {
            self.kept.extend_from_slice(part);
        } else {
            self.forget();
        }
    }

    /// Drops the kept part: the request is not sent again.
    pub(super) fn forget(&mut self) {
        self.is_kept = false;
        self.kept = BytesMut::new();
        if let Some(turn) = &self.turn {
            turn.note_forgotten();
        }
    }

    /// Counts a part that is about to be sent.
    ///
    /// # Errors
    /// If the body is larger than allowed.
    pub(super) fn count(
        &self,
        forwarding: &mut Forwarding,
        part: &Bytes,
        ends: bool,
    ) -> Result<(), Failure> {
        forwarding.request_whole |= ends;
        forwarding.request_body_bytes += part.len();
        if forwarding.request_body_bytes as u64 > self.bytes_max {
            let cause = "the request's body is larger than limits.body_bytes";
            return Err(Failure::client(ClientFault::TooLarge, cause));
        }
        Ok(())
    }
}

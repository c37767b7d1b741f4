//! The body of a request on its way to a server, and what is kept of it in case the request is sent again.

use bytes::Bytes;
use pingora::Error;

use crate::proxy::exchange::Forwarding;
use crate::proxy::failure::BODY_TOO_LARGE;

/// What is kept of a body at most.
const KEPT_BYTES_MAX: usize = 64 * 1024;

/// What was read of a request's body.
#[derive(Debug)]
pub(super) struct Upload {
    kept: Vec<Bytes>,
    kept_bytes: usize,
    /// Whether the body is kept from its beginning on.
    is_kept: bool,
    ended: bool,
    bytes_max: usize,
}

impl Upload {
    /// Nothing read yet of a body of up to `bytes_max`; `ended` where there is none.
    pub(super) fn new(bytes_max: usize, ended: bool) -> Upload {
        Upload {
            kept: Vec::new(),
            kept_bytes: 0,
            is_kept: true,
            ended,
            bytes_max,
        }
    }

    /// Whether its last part was read.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Whether another attempt can send all of what was read.
    pub(super) fn can_be_sent_again(&self) -> bool {
        self.is_kept
    }

    /// The parts that an attempt begins with, each with whether it is the last one.
    pub(super) fn parts(&self) -> Vec<(Bytes, bool)> {
        let last = self.kept.len();
        let parts = self.kept.iter().cloned().zip(1..);
        parts
            .map(|(part, number)| (part, self.ended && number == last))
            .collect()
    }

    /// Takes a part that was read, and whether it is the last one.
    pub(super) fn take(&mut self, part: &Bytes, ends: bool) {
        self.ended |= ends;
        if !self.is_kept || (part.is_empty() && !ends) {
            return;
        }
        self.kept_bytes += part.len();
        if self.kept_bytes > KEPT_BYTES_MAX {
            self.is_kept = false;
            self.kept = Vec::new();
        } else {
            self.kept.push(part.clone());
        }
    }

    /// Gives up what was kept: the request is not sent again.
    pub(super) fn forget(&mut self) {
        self.is_kept = false;
        self.kept = Vec::new();
    }

    /// Counts a part that is about to be sent.
    ///
    /// # Errors
    /// If the body is larger than it may be.
    pub(super) fn count(
        &self,
        forwarding: &mut Forwarding,
        part: &Bytes,
        ends: bool,
    ) -> pingora::Result<()> {
        forwarding.request_whole |= ends;
        forwarding.request_body_bytes += part.len();
        if forwarding.request_body_bytes > self.bytes_max {
            return Error::e_explain(BODY_TOO_LARGE, "request body over limits.body_bytes");
        }
        Ok(())
    }
}

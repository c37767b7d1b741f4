//! An HTTP/2 connection, watched for frames that cost the client nothing, and for streams that the HTTP/2 library resets because
//! of what the client sent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::task::JoinHandle;

use super::super::progress::Progress;
use crate::config::Limits;
use crate::policy::http2::{Budgets, ControlRates, Frames};
use crate::policy::limit_hit::LimitHit;
use crate::telemetry::limit_hits::LimitHits;

/// Both directions of a connection.
pub(super) struct Http2Guard {
    received: Frames,
    pub(super) sent: Frames,
    pub(super) budgets: Budgets,
    /// The payload of the last frame sent, if it was DATA.
    data_bytes: u32,
    pub(super) breath: Breath,
    /// The kind of frames of which there were too many, if any.
    flood: Option<LimitHit>,
}

impl Http2Guard {
    /// A new connection.
    pub(super) fn new(limits: &Limits) -> Http2Guard {
        let rates = ControlRates {
            resets: limits.h2_resets,
            control_frames: limits.h2_control_frames,
        };
        Http2Guard {
            received: Frames::of_client(),
            sent: Frames::default(),
            budgets: Budgets::new(rates, Instant::now()),
            data_bytes: 0,
            breath: Breath::default(),
            flood: None,
        }
    }

    /// Counts the client's frames. Returns the kind of which there are too many, if any.
    pub(super) fn note_received(&mut self, bytes: &[u8], progress: &Progress) -> Option<LimitHit> {
        let (mut flood, mut now, budgets) = (self.flood, None, &mut self.budgets);
        self.received.find(bytes, |frame| {
            let now = *now.get_or_insert_with(Instant::now);
            flood = flood.or(budgets.receive(frame, now).err());
        });
        progress.note_received(self.budgets.streams);
        self.breath.note(progress.unexamined());
        self.flood = flood;
        flood
    }

    /// Counts the frames written to the client. Returns the kind of which there are too many, if any, once the last frame is
    /// complete: a GOAWAY can follow it. Streams reset because their requests are malformed are counted in `limit_hits`.
    pub(super) fn note_sent(&mut self, bytes: &[u8], limit_hits: &LimitHits) -> Option<LimitHit> {
        let (mut flood, mut now, budgets) = (self.flood, None, &mut self.budgets);
        let data_bytes = &mut self.data_bytes;
        self.sent.find(bytes, |frame| {
            *data_bytes = frame.data_bytes();
            if frame.is_of_malformed() {
                limit_hits.note(LimitHit::H2Malformed);
            }
            let now = *now.get_or_insert_with(Instant::now);
            flood = flood.or(budgets.send(frame, now).err());
        });
        self.flood = flood;
        flood.filter(|_| self.sent.is_between())
    }

    /// Whether the library flushes once more before it waits: it writes the payloads of long DATA frames by themselves, each with a flush.
    pub(super) fn is_flushed_again(&self) -> bool {
        self.data_bytes >= UNBUFFERED_BYTES_MIN && self.sent.is_between()
    }
}

/// Heads that the HTTP/2 library may read in succession. Each may occupy a hundred times as much memory as on the wire until its
/// request is examined.
const HEADS_AT_ONCE: u64 = 4;

/// The payload of a DATA frame from which on the library (`CHAIN_THRESHOLD_WITHOUT_VECTORED_IO`) does not copy it into its buffer.
const UNBUFFERED_BYTES_MIN: u32 = 1024;

/// A pause in reading, so that received requests can be examined.
#[derive(Default)]
pub(super) struct Breath {
    /// The heads that were still not examined after the last pause.
    unexamined_before: u64,
    taken: Option<JoinHandle<()>>,
}

impl Breath {
    /// Takes a pause if enough requests wait to be examined.
    fn note(&mut self, unexamined: u64) {
        self.unexamined_before = self.unexamined_before.min(unexamined);
        if unexamined - self.unexamined_before >= HEADS_AT_ONCE {
            // The pause ends after all tasks that are ready have run.
            self.taken = Some(tokio::spawn(tokio::task::yield_now()));
        }
    }

    pub(super) fn poll(&mut self, progress: &Progress, context: &mut Context<'_>) -> Poll<()> {
        if let Some(taken) = &mut self.taken {
            // Any result ends the pause.
            let _ = ready!(Pin::new(taken).poll(context));
            self.taken = None;
            self.unexamined_before = progress.unexamined();
        }
        Poll::Ready(())
    }
}

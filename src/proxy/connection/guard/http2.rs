//! An HTTP/2 connection, watched for frames that cost the client nothing.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::task::JoinHandle;

use super::{Guard, Reading};
use crate::policy::http2::{Budgets, CALM_DOWN, Frames};

/// Both directions of a connection.
pub(super) struct Http2 {
    pub(super) received: Frames,
    pub(super) sent: Frames,
    pub(super) budgets: Budgets,
    pub(super) breath: Breath,
}

/// Heads that the library below may read one after the other. Each may be a hundred times as large in memory as on the wire
/// until its request is looked at.
const HEADS_AT_ONCE: u64 = 4;

/// A pause in reading, for the requests that were read to be looked at.
#[derive(Default)]
pub(super) struct Breath {
    streams: u64,
    taken: Option<JoinHandle<()>>,
}

impl Breath {
    /// Takes one where enough requests have been read since the last one.
    fn note(&mut self, streams: u64) {
        if streams >= self.streams + HEADS_AT_ONCE {
            self.streams = streams;
            // It comes to an end after the tasks that wait to be run.
            self.taken = Some(tokio::spawn(tokio::task::yield_now()));
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(taken) = &mut self.taken {
            // However it ended, it is over.
            let _ = ready!(Pin::new(taken).poll(context));
            self.taken = None;
        }
        Poll::Ready(())
    }
}

impl Guard {
    pub(super) fn poll_http2(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Reading::Http2(http2) = &mut self.reading {
            ready!(http2.breath.poll(context));
        }
        let before = buffer.filled().len();
        if self.unread.is_empty() {
            ready!(Pin::new(&mut self.transport).poll_read(context, buffer))?;
        } else {
            let bytes = self.unread.len().min(buffer.remaining());
            buffer.put_slice(self.unread.get(..bytes).unwrap_or_default());
            self.unread.advance(bytes);
        }
        let Reading::Http2(http2) = &mut self.reading else {
            return Poll::Ready(Ok(()));
        };
        let (mut flood, mut now) = (None, None);
        let budgets = &mut http2.budgets;
        http2
            .received
            .find(buffer.filled().get(before..).unwrap_or_default(), |frame| {
                let now = *now.get_or_insert_with(std::time::Instant::now);
                flood = flood.or(budgets.receive(frame, now).err());
            });
        http2.breath.note(budgets.streams());
        let (streams, is_between) = (budgets.streams(), http2.sent.is_between());
        self.note_requests(streams);
        let Some(flood) = flood else {
            return Poll::Ready(Ok(()));
        };
        self.note_limit(flood.as_str());
        if is_between {
            self.writes.append(&CALM_DOWN);
        }
        // One attempt: whoever floods may also not read.
        let _ = self.writes.poll_flush(&mut self.transport, context);
        buffer.set_filled(before);
        let reason = format!("too many frames: {}", flood.as_str());
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::ConnectionAborted,
            reason,
        )))
    }
}

//! The end of a gateway: it waits for its requests in flight, for at most `limits.shutdown_grace`.

use std::time::{Duration, Instant};

use rustix::process::Signal as SystemSignal;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::listeners::Bound;
use crate::proxy::Gate;

/// How often a stopping gateway checks whether it is idle.
const DRAIN_POLL: Duration = Duration::from_millis(10);
/// How long a client may take to notice that its connection ends; requests that it sent before then arrive within this time.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long the end of a gateway waits, after its grace, for pending writes of its store, and then for the threads of its runtime.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a stopping gateway waits until the requests that it has cut off are recorded.
const CUT_OFF_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a gateway ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    /// A signal.
    Signal,
    /// A successor has taken over.
    Succession,
}

/// SIGTERM, SIGINT and SIGQUIT, which other servers take for a request to stop without cutting requests.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
}

impl StopSignals {
    /// Takes them over from the system, which would end the process.
    ///
    /// # Errors
    /// Those of the system.
    pub fn install() -> std::io::Result<StopSignals> {
        Ok(StopSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
        })
    }

    /// Waits for one of them.
    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.quit.recv() => {}
        }
    }
}

/// From here on neither SIGHUP nor SIGXFSZ ends the process. A serving gateway reads its file again at SIGHUP; a write beyond a limit
/// on the size of files fails.
///
/// # Errors
/// Those of the system.
pub fn outlive_signals() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let _context = runtime.enter();
    for kind in [
        SignalKind::hangup(),
        SignalKind::from_raw(SystemSignal::XFSZ.as_raw()),
    ] {
        // The process keeps the handler without this listener.
        drop(signal(kind)?);
    }
    Ok(())
}

/// Waits until the gateway, which accepts no more connections, has answered its clients; cuts the connections that are left then. At the
/// deadline or a second signal, requests in flight are cut with them.
pub async fn drain(
    gate: &Gate,
    bound: &mut Bound,
    stop: &mut StopSignals,
    end: EndCause,
    deadline: Instant,
) {
    let second_signal = async {
        if end == EndCause::Succession {
            stop.wait().await;
            tracing::info!("stopping: already waiting for requests in flight");
        }
        stop.wait().await;
    };
    let cause = tokio::select! {
        () = drained(gate, bound, deadline) => "limits.shutdown_grace ended",
        () = second_signal => {
            tracing::warn!("stopping at once after a second signal");
            "of the second signal"
        }
    };
    let metrics = &gate.metrics;
    let left = metrics.in_flight.get();
    if left > 0 {
        tracing::warn!(left, "requests were cut because {cause}");
    }
    // Also without one: on a connection that is still open another could begin, and not be settled any more.
    gate.cut_off.cancel();
    // Each ends with its line in the access log, and its totals.
    let ended = async {
        while metrics.in_flight.get() > 0 {
            tokio::time::sleep(DRAIN_POLL).await;
        }
    };
    let _ = tokio::time::timeout(CUT_OFF_TIMEOUT, ended).await;
}

/// Waits until no request is in flight and no client is connected, or until the deadline. Clients that do not close their
/// connections are not waited for after [`FAREWELL`] without a request, a part of one or of a handshake, or an answer that they have
/// not taken.
async fn drained(gate: &Gate, bound: &mut Bound, deadline: Instant) {
    let metrics = &gate.metrics;
    let left = deadline.saturating_duration_since(Instant::now());
    if tokio::time::timeout(left, bound.closed()).await.is_err() {
        return;
    }
    let mut quiet = Duration::ZERO;
    while Instant::now() < deadline {
        if metrics.in_flight.get() > 0 || gate.has_backlog() || gate.has_arrivals() {
            quiet = Duration::ZERO;
        } else if metrics.connections.get() == 0 || quiet > FAREWELL {
            return;
        }
        tokio::time::sleep(DRAIN_POLL).await;
        // Not the time that has passed: what arrived in a stall of the process is read after it.
        quiet += DRAIN_POLL;
    }
}

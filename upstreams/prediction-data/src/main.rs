//! The program: options → data set → router → a listener, until a signal.
//!
//! Exit codes: 0 after a signal, 1 if it cannot listen, 2 for a bad option, 78 for a data set that cannot be used.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use axum::serve::ListenerExt;
use clap::Parser;
use prediction_data::access_log::AccessLog;
use prediction_data::catalogue::Catalogue;
use prediction_data::data_set::{DataSet, DataSetError, Files};
use prediction_data::options::{AccessLogFormat, Options};
use prediction_data::router::{Behaviour, router};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// How long requests in flight may take after a signal.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// How long the rest of the log may take to write at the end.
const LOG_FLUSH_MAX: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Where standard error is closed, the exit code has to do.
            let _ = writeln!(io::stderr(), "prediction-data: {failure}");
            failure.exit_code()
        }
    }
}

/// Why the program ends before a signal.
enum Failure {
    DataSet(DataSetError),
    Listen(SocketAddr, io::Error),
    System(io::Error),
}

impl Failure {
    fn exit_code(&self) -> ExitCode {
        match self {
            // EX_CONFIG of sysexits.h.
            Self::DataSet(_) => ExitCode::from(78),
            Self::Listen(..) | Self::System(_) => ExitCode::FAILURE,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DataSet(error) => error.fmt(f),
            Self::Listen(address, error) => write!(
                f,
                "cannot listen on {address}: {error}\n    hint: choose a free address with --listen; port 0 takes any free port"
            ),
            Self::System(error) => write!(f, "the system refused: {error}"),
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    let files = options
        .data
        .as_deref()
        .map_or_else(|| Ok(Files::embedded()), Files::read);
    let set = files
        .and_then(|files| DataSet::from_files(&files))
        .map_err(Failure::DataSet)?;
    let (access_log, log_writer) = match options.access_log {
        AccessLogFormat::Json => {
            let (log, writer) = AccessLog::start(io::stderr());
            (Some(log), Some(writer))
        }
        AccessLogFormat::Off => (None, None),
    };
    let behaviour = Behaviour {
        fault: options.fault_plan(),
        health: options.health(),
        access_log,
    };
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::System)?;
    runtime.block_on(serve(options.listen, Catalogue::new(set), behaviour))?;
    // Connections that outlast the drain hold the log open; they end here.
    runtime.shutdown_background();
    if let Some(writer) = log_writer {
        writer.finish(LOG_FLUSH_MAX);
    }
    Ok(())
}

async fn serve(
    address: SocketAddr,
    catalogue: Catalogue,
    behaviour: Behaviour,
) -> Result<(), Failure> {
    let stop = stop_signal().map_err(Failure::System)?;
    let refused = |error| Failure::Listen(address, error);
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let bound = listener.local_addr().map_err(refused)?;
    announce(bound).map_err(Failure::System)?;
    // Answers leave when they are written; Nagle's algorithm would hold back the last piece of one for the client's next move.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    let (stopping, stopped) = tokio::sync::oneshot::channel();
    let serving =
        axum::serve(listener, router(catalogue, behaviour)).with_graceful_shutdown(async {
            stop.await;
            let _ = stopping.send(());
        });
    let drained_too_long = async {
        let _ = stopped.await;
        tokio::time::sleep(DRAIN_MAX).await;
    };
    tokio::select! {
        result = serving.into_future() => result.map_err(Failure::System),
        () = drained_too_long => Ok(()),
    }
}

/// Prints the address on which the program listens: the only line on standard output.
fn announce(address: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "listening on http://{address}")?;
    out.flush()
}

/// Resolves at SIGTERM or SIGINT. The handlers are in place when this returns, before the first connection.
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

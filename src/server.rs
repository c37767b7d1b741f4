//! Composition: a checked configuration becomes a store, listeners and a running gateway.
//!
//! The gateway has its own runtime instead of pingora's `Server`. Addresses are bound and certificates read before anything
//! starts, so that a mistake ends the process with a message. At SIGTERM the gateway waits for requests in flight, for at most
//! `limits.shutdown_grace`.

use std::io::ErrorKind::{ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use pingora_timeout::fast_timeout::set_fast_timeout_to_tokio_threshold;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::admin::today::SurveyTerms;
use crate::admin::{AdminService, ConfigView, View};
use crate::clock::Clock;
use crate::config::Config;
use crate::proxy::upstreams::system_authorities;
use crate::proxy::{Gate, Snapshot};
use crate::store::{NodeName, Role, Store};
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::diagnostics;
use crate::telemetry::history::History;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::{self, Span};

mod accept;
mod admin_limit;
mod background;
mod descriptors;
mod entrance;
mod error;
mod events;
mod exporter;
mod handover;
mod known_series;
mod listeners;
mod logs;
mod notify;
mod outgoing;
mod proxied;
mod reload;
mod shutdown;
mod stores;
mod tls;
mod unknown_tiers;
mod upkeep;
mod watched;

use background::Background;
use entrance::{await_servers, knows_keys};
pub use error::{ListenError, ServeError};
pub use handover::Withdrawal;
use handover::{Handed, Predecessor};
pub use listeners::Addresses;
use listeners::{Bound, Listeners};
use logs::{note_certificates, open_access_log, warn_of};
use reload::Reloader;
pub use shutdown::outlive_signals;
use shutdown::{CLOSE_TIMEOUT, EndCause, StopSignals, drain};
pub use stores::open_store;
pub use tls::CertificateError;
use unknown_tiers::{unknown_tiers, unknown_tiers_of};

/// The origin of a gateway's listening sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// The gateway binds them.
    Anew,
    /// The running gateway hands them over through `listen.upgrade`, and ends when this one is ready.
    FromPredecessor,
}

/// Runs a gateway until SIGTERM, SIGINT or SIGQUIT, or until a successor has taken over, with the configuration read from `file` and with
/// its later changes, on what `store` makes of the configured store. `announce` is called once, when all listeners are bound.
///
/// # Errors
/// [`ServeError`] if the gateway cannot start; no address is bound then.
pub fn serve(
    file: &Path,
    config: Config,
    begin: Begin,
    announce: impl FnOnce(&Addresses),
    store: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>,
) -> Result<(), ServeError> {
    // Fails only if a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let _log = diagnostics::install(config.logging.level.as_str(), config.logging.format)
        .map_err(|error| ServeError::System(error.to_string()))?;
    descriptors::raise();
    // By tokio's timers: pingora's own have a thread that wakes a hundred times a second from their first use on. Timeouts below a second
    // stay with pingora, because the threshold is in whole seconds.
    set_fast_timeout_to_tokio_threshold(Some(Duration::ZERO));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(worker_threads(config.runtime.threads))
        .thread_name("worker")
        .enable_all()
        .build()
        .map_err(|error| ServeError::System(error.to_string()))?;
    let (predecessor, handed) = runtime.block_on(async { predecessor(&config, begin) })?;
    let listeners = Listeners::bind(&config.listen, handed)?;
    let served = runtime.block_on(run(file, config, listeners, predecessor, announce, store));
    runtime.shutdown_timeout(CLOSE_TIMEOUT);
    served
}

/// The gateway to be replaced, with its listeners.
fn predecessor(
    config: &Config,
    begin: Begin,
) -> Result<(Option<Predecessor>, Vec<Handed>), ServeError> {
    if begin == Begin::Anew {
        return Ok((None, Vec::new()));
    }
    let place = config.listen.upgrade.clone().unwrap_or_default();
    let (predecessor, handed) = Predecessor::ask(&place).map_err(|error| {
        let path = place.display().to_string();
        match error.kind() {
            // The gateway does not answer now, or ended before it did.
            WouldBlock | TimedOut | ConnectionReset | UnexpectedEof => {
                ServeError::Busy(path, error)
            }
            _ => ServeError::Predecessor(path, error),
        }
    })?;
    Ok((Some(predecessor), handed))
}

/// `threads`, or one per core for 0.
fn worker_threads(threads: usize) -> usize {
    match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    }
}

async fn run(
    file: &Path,
    mut config: Config,
    listeners: Listeners,
    mut predecessor: Option<Predecessor>,
    announce: impl FnOnce(&Addresses),
    store: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>,
) -> Result<(), ServeError> {
    let system = |error: &dyn std::fmt::Display| ServeError::System(error.to_string());
    let mut stop = StopSignals::install().map_err(|error| system(&error))?;
    let metrics = Arc::new(Metrics::new().map_err(|error| system(&error))?);
    let hangup = signal(SignalKind::hangup()).map_err(|error| system(&error))?;
    let access_log = AccessLog::new(open_access_log(&config.logging.access_log, &metrics)?);
    // pingora's connector reads them too, and panics on an error.
    system_authorities().map_err(ServeError::Authorities)?;
    let node = node_name();
    let store = store(open_store(&config, Role::Gateway(node.clone()), Clock::system()).await?);
    let may_enter = may_enter(predecessor.as_mut(), &*store, &mut config, &mut stop).await;
    if !matches!(may_enter, Ok(true)) {
        store.close(CLOSE_TIMEOUT).await;
        return may_enter.map(|_| ());
    }

    let configuration = config.hash.clone();
    let upgrade = config.listen.upgrade.clone();
    let (gate, unexported) = gate(config, store.clone(), metrics, access_log);
    let acceptor = listeners.acceptor();
    let now = store.now();
    note_certificates(acceptor.as_deref(), &gate, now.as_second());
    let addresses = listeners.addresses();
    let (shutdown, watch) = watch::channel(false);
    let view = ConfigView::started(configuration.clone(), now);
    let view = Arc::new(ArcSwap::from_pointee(view));
    gate.metrics.config_runs(&configuration, now);

    let succeeded = watch::Sender::new(false);
    let history = Arc::new(History::default());
    let admin = admin(&gate, node.clone(), &view, &history, &succeeded);
    let opened = entrance::open(
        listeners,
        upgrade.as_deref(),
        &gate,
        predecessor,
        admin,
        &watch,
        &succeeded,
    );
    let (mut bound, offering) = match opened.await {
        Ok(entered) => entered,
        Err(error) => {
            store.close(CLOSE_TIMEOUT).await;
            return Err(error);
        }
    };
    let reloader = Reloader::new(file, gate.clone(), acceptor, view);
    let reloading = tokio::spawn(reloader.run(hangup));
    let background = Background::start(&gate, &node, history, unexported);
    announce(&addresses);
    log_start(&node, &configuration, &addresses);
    notify::started(&configuration);

    let end = until_end(&mut stop, &succeeded, &bound).await;

    reloading.abort();
    if let Some(offering) = offering {
        offering.abort();
    }
    let deadline = Instant::now() + gate.snapshot().config.limits.shutdown_grace;
    gate.start_draining();
    // Fails only if all services have already ended.
    let _ = shutdown.send(true);
    drain(&gate, &mut bound, &mut stop, end, deadline).await;
    background.end(&gate, deadline).await;
    close(&gate, &node).await;
    tracing::info!("stopped");
    Ok(())
}

/// Whether the gateway may take the place of its predecessor, if it has one; `Ok(false)` if it is stopped before.
async fn may_enter(
    predecessor: Option<&mut Predecessor>,
    store: &dyn Store,
    config: &mut Config,
    stop: &mut StopSignals,
) -> Result<bool, ServeError> {
    let Some(predecessor) = predecessor else {
        return Ok(true);
    };
    let prepared = async {
        let known = predecessor.until_keys_are_known(|| knows_keys(store));
        known.await?;
        await_servers(predecessor, &mut config.upstreams).await?;
        let unknown = unknown_tiers(store, config);
        match unknown.is_empty() {
            true => Ok(true),
            false => Err(ServeError::UnknownTiers(unknown)),
        }
    };
    tokio::select! {
        prepared = prepared => prepared,
        () = stop.wait() => Ok(false),
    }
}

/// The gate of a configuration, and the spans of its requests.
fn gate(
    config: Config,
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    access_log: AccessLog,
) -> (Arc<Gate>, mpsc::Receiver<Vec<Span>>) {
    let (spans, unexported) = mpsc::channel(traces::WAITING_MAX);
    let snapshot = Snapshot::new(config, None);
    warn_of(&snapshot);
    known_series::create(&metrics, &snapshot.config);
    let gate = Gate::new(snapshot, store, metrics, access_log, spans);
    (Arc::new(gate), unexported)
}

fn log_start(node: &NodeName, configuration: &str, addresses: &Addresses) {
    tracing::info!(
        %node,
        configuration,
        http = addresses.http.map(tracing::field::display),
        https = addresses.https.map(tracing::field::display),
        redirect = addresses.redirect.map(tracing::field::display),
        admin = %addresses.admin,
        "listening"
    );
}

/// Waits until the gateway is stopped, or a successor has taken over.
async fn until_end(
    stop: &mut StopSignals,
    succeeded: &watch::Sender<bool>,
    bound: &Bound,
) -> EndCause {
    let mut succeeded = succeeded.subscribe();
    tokio::select! {
        biased;
        // To a service manager the unit goes on: the successor has its socket too, and reports its own start. Also if this process is
        // stopped at the same moment.
        Ok(_) = succeeded.wait_for(|succeeded| *succeeded) => {
            tracing::info!("a successor has taken over: waiting for requests in flight");
            bound.leave_admin();
            EndCause::Succession
        }
        () = stop.wait() => {
            tracing::info!("stopping: waiting for requests in flight");
            notify::stopping();
            EndCause::Signal
        }
    }
}

/// Closes the store and the access log of a gateway without requests.
async fn close(gate: &Gate, node: &NodeName) {
    if let Err(error) = gate.store.resign(node).await {
        tracing::warn!(%error, "another gateway delivers events only after the lease of this one expires");
    }
    gate.store.close(CLOSE_TIMEOUT).await;
    // Waits until the last lines are written, even if the gate is still in use.
    let last_lines = gate.access_log.redirect(None);
    let _ = tokio::task::spawn_blocking(move || drop(last_lines)).await;
}

/// The state of a gateway for its operators.
fn admin(
    gate: &Arc<Gate>,
    node: NodeName,
    config: &Arc<ArcSwap<ConfigView>>,
    history: &Arc<History>,
    succeeded: &watch::Sender<bool>,
) -> AdminService {
    let view = {
        let (gate, config, succeeded) = (gate.clone(), config.clone(), succeeded.clone());
        move || {
            let snapshot = gate.snapshot();
            View {
                // After a succession the address serves: a connection kept to this process must not report otherwise.
                draining: gate.is_draining() && !*succeeded.borrow(),
                config: config.load_full(),
                effective: snapshot.config.effective.clone(),
                token: snapshot.config.listen.admin.token.clone(),
                terms: terms(&gate, &snapshot.config),
                reasons: reasons(&gate, &snapshot),
            }
        }
    };
    let (store, metrics) = (gate.store.clone(), gate.metrics.clone());
    AdminService::new(node, store, metrics, history.clone(), view)
}

/// Why a gateway that its store calls ready is degraded.
fn reasons(gate: &Gate, snapshot: &Snapshot) -> Vec<String> {
    let mut reasons = Vec::new();
    for upstream in snapshot.upstreams() {
        let reason = |name| {
            let upstream = &upstream.name;
            format!(
                "{name} of the upstream {upstream} cannot be resolved: this server gets no requests until it can"
            )
        };
        reasons.extend(upstream.unresolved().into_iter().map(reason));
    }
    let unknown = unknown_tiers_of(gate);
    reasons.extend(unknown.iter().map(ToString::to_string));
    reasons
}

/// The quota day with the limits of the running configuration.
fn terms(gate: &Gate, config: &Config) -> Option<SurveyTerms> {
    let tiers = config.tiers.iter();
    Some(SurveyTerms {
        day: gate.day_at(&config.calendar, gate.store.now()).ok()?,
        zone: config.calendar.name().to_owned(),
        tiers: tiers
            .map(|(name, tier)| (name.clone(), tier.daily.get()))
            .collect(),
    })
}

/// A name for this start of the process: host, process id and 32 random bits.
fn node_name() -> NodeName {
    // Not from /proc, of which a service manager may hide all but the processes.
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    let host: String = host
        .chars()
        .filter(|character| character.is_ascii_alphanumeric() || *character == '-')
        .take(32)
        .collect();
    let host = if host.is_empty() { "gateway" } else { &host };
    NodeName(format!(
        "{host}-{}-{:08x}",
        std::process::id(),
        fastrand::u32(..)
    ))
}

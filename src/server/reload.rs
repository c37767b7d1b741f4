//! Following the configuration file: a changed file is checked and applied as a whole, after a change or SIGHUP, or not at all.
//!
//! Everything that can fail (reading, checking, certificates, the access log's file, counting the keys of a removed tier) is done
//! before anything changes. Then one pointer is exchanged: new requests use the new configuration, requests in flight keep theirs.
//! Counts are in the store and unaffected; connections of clients and to upstreams stay.
//!
//! A refused file is retried until it is applied, because the cause may end without a change of the file: a name resolves again, a
//! certificate was written, the last key of a tier was moved.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::signal::unix::Signal;

use super::known_series;
use super::logs::{certificates_are_due, note_certificates, open_access_log, warn_of};
use super::notify;
use super::tls::{Acceptor, NextTlsServer};
use super::watched::{FileContents, Settling};
use crate::admin::{ConfigView, RefusedFile};
use crate::clock::{lasting, next_tick};
use crate::config::{Config, Running};
use crate::policy::key_record::TierName;
use crate::policy::words::words;
use crate::proxy::admission::KEYS_AGE_MAX;
use crate::proxy::{Gate, Snapshot};
use crate::telemetry::access_log::Sink;
use crate::telemetry::diagnostics;

/// The pause between two looks at the files, and while a change was seen once: it is applied when two looks in a row saw the same,
/// within two seconds (docs/configuration.md).
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const LOOK_WHILE_SETTLING: Duration = Duration::from_millis(500);
/// The pause between two attempts with a refused file.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Follows one configuration file.
pub struct Reloader {
    file: PathBuf,
    gate: Arc<Gate>,
    acceptor: Option<Arc<Acceptor>>,
    view: Arc<ArcSwap<ConfigView>>,
    /// When the ends of the certificates were last looked at, in Unix seconds.
    certificates_noted: i64,
}

words! {
    /// Why the configuration is read.
    enum Cause {
        /// SIGHUP.
        Signal = "signal",
        /// A file changed.
        Change = "change",
        /// The last attempt failed a while ago.
        Retry = "retry",
    }

}

/// A configuration for which everything that can fail has been done.
struct Prepared {
    snapshot: Snapshot,
    /// The changed certificates, and those that cannot be used.
    successor: Option<NextTlsServer>,
    /// A changed destination of the access log; the inner `None` means off.
    sink: Option<Option<Sink>>,
}

impl Prepared {
    /// Whether it is the running configuration, apart from secrets in files of their own.
    fn changes_nothing(&self, running: &Snapshot) -> bool {
        let (config, running) = (&self.snapshot.config, &running.config);
        // Their certificates are in separate files.
        let same_upstreams = config.upstreams == running.upstreams
            && config.own_certificates == running.own_certificates;
        let successor = self.successor.as_ref();
        let same_tls_server = successor.is_none_or(|successor| successor.tls_server.is_none());
        config.hash == running.hash && same_upstreams && same_tls_server
    }

    /// Why some certificates stay unchanged.
    fn kept(&self) -> Option<String> {
        let kept = &self.successor.as_ref()?.kept;
        let reasons: Vec<String> = kept.iter().map(ToString::to_string).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// Drops a replaced access log when no request writes to it any more; its last lines may take a second.
async fn retire(sink: Arc<Sink>) {
    while Arc::strong_count(&sink) > 1 {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
    // Fails only if the runtime has ended.
    let _ = tokio::task::spawn_blocking(move || drop(sink)).await;
}

impl Reloader {
    /// A follower of `file`, from which the configuration of `gate` was read and whose certificates were just noted. Outcomes are
    /// shown in `view`.
    pub fn new(
        file: &Path,
        gate: Arc<Gate>,
        acceptor: Option<Arc<Acceptor>>,
        view: Arc<ArcSwap<ConfigView>>,
    ) -> Reloader {
        Reloader {
            file: file.to_owned(),
            certificates_noted: gate.store.now().as_second(),
            gate,
            acceptor,
            view,
        }
    }

    /// Follows the file until it is dropped.
    pub async fn run(mut self, mut hangup: Signal) {
        // Any file, also a certificate's, may have changed since the start read it: all are read once more, without effect if their
        // contents are the same.
        let mut settling = Settling::new(FileContents::default());
        let mut attempted = Instant::now();
        loop {
            let pause = match settling.is_settling() {
                true => LOOK_WHILE_SETTLING,
                false => LOOK_INTERVAL,
            };
            let signalled = tokio::select! {
                signal = hangup.recv() => signal.is_some(),
                () = next_tick(pause) => false,
            };
            let files = files_of(&self.file, &self.gate.snapshot().config);
            let look = tokio::task::spawn_blocking(move || FileContents::read(&files));
            // Fails only if the runtime has ended.
            let now = look.await.unwrap_or_default();
            let cause = if signalled {
                // After SIGHUP the file is read at once: the operator has finished writing it.
                settling = Settling::new(now);
                Cause::Signal
            } else if settling.note(now) {
                Cause::Change
            } else if self.view.load().refused.is_some() && attempted.elapsed() >= RETRY_INTERVAL {
                Cause::Retry
            } else {
                let now = self.gate.store.now().as_second();
                if certificates_are_due(self.certificates_noted, now) {
                    self.note_certificates(now);
                }
                continue;
            };
            let reloaded = lasting::outcome("reload", self.reload(cause)).await;
            if reloaded.is_none() {
                let reason = "a fault of this program: see the log".to_owned();
                self.refuse("configuration", reason, cause);
            }
            attempted = Instant::now();
        }
    }

    async fn reload(&mut self, cause: Cause) {
        if cause == Cause::Signal {
            notify::reloading();
        }
        let prepared = self.prepare().await;
        let view = self.view.load_full();
        let again = |reason: &str| {
            let refused = view.refused.as_ref();
            cause == Cause::Retry && refused.is_some_and(|refused| refused.reason == reason)
        };
        match prepared {
            Ok(prepared) => {
                let (kept, nothing) = (
                    prepared.kept(),
                    prepared.changes_nothing(&self.gate.snapshot()),
                );
                match kept {
                    // Logged once, not at each attempt.
                    Some(reason) if nothing && again(&reason) => {}
                    Some(reason) => {
                        // Secrets in files of their own may have changed, which `nothing` does not cover.
                        if !nothing || cause == Cause::Signal {
                            self.apply(prepared, cause);
                        }
                        self.refuse("certificate", reason, cause);
                    }
                    // A file was rewritten with the same contents.
                    None if nothing && cause == Cause::Change && view.refused.is_none() => {}
                    None => self.apply(prepared, cause),
                }
            }
            Err(reason) if again(&reason) => {}
            Err(reason) => self.refuse("configuration", reason, cause),
        }
    }

    /// Does everything that can fail, off the threads that serve requests.
    async fn prepare(&self) -> Result<Prepared, String> {
        let (file, gate, acceptor) = (self.file.clone(), self.gate.clone(), self.acceptor.clone());
        let preparing =
            tokio::task::spawn_blocking(move || prepare(&file, &gate, acceptor.as_deref()));
        let prepared = preparing.await;
        prepared.unwrap_or_else(|error| Err(format!("the attempt was not completed: {error}")))
    }

    /// Changes everything; nothing here can fail.
    fn apply(&mut self, prepared: Prepared, cause: Cause) {
        let previous = self.gate.snapshot().config.hash.clone();
        let config = &prepared.snapshot.config;
        let (hash, logging) = (config.hash.clone(), &config.logging);
        diagnostics::change(logging.level.as_str(), logging.format);
        let redirected = prepared
            .sink
            .map(|sink| self.gate.access_log.redirect(sink));
        if let Some(replaced) = redirected.flatten() {
            tokio::spawn(retire(replaced));
        }
        known_series::create(&self.gate.metrics, config);
        self.gate.replace(prepared.snapshot);
        let tls_server = prepared
            .successor
            .and_then(|successor| successor.tls_server);
        if let (Some(acceptor), Some(tls_server)) = (&self.acceptor, tls_server) {
            acceptor.exchange(tls_server);
        }
        self.note_certificates(self.gate.store.now().as_second());
        let now = self.gate.store.now();
        let view = self.view.load();
        let view = view.applied(hash.clone(), now, cause.as_str());
        self.view.store(Arc::new(view));
        let metrics = &self.gate.metrics;
        metrics.config_runs(&hash, now);
        metrics.config_reloads.with_label_values(&["applied"]).inc();
        notify::ready(&hash);
        tracing::info!(
            configuration = hash,
            previous,
            cause = cause.as_str(),
            "configuration applied"
        );
        warn_of(&self.gate.snapshot());
    }

    /// Looks at the certificates at `now`, which is read once: a clock may be set between two readings.
    fn note_certificates(&mut self, now: i64) {
        note_certificates(self.acceptor.as_deref(), &self.gate, now);
        self.certificates_noted = now;
    }

    /// Logs the part that stays unchanged, and why.
    fn refuse(&mut self, what: &str, reason: String, cause: Cause) {
        let hash = self.gate.snapshot().config.hash.clone();
        let metrics = &self.gate.metrics;
        metrics.config_refused.set(1);
        metrics.config_reloads.with_label_values(&["refused"]).inc();
        notify::refused(&hash);
        tracing::warn!(
            configuration = hash,
            cause = cause.as_str(),
            reason,
            "{what} refused: the last valid one stays"
        );
        let refused = RefusedFile {
            at: self.gate.store.now(),
            reason,
        };
        let view = self.view.load();
        let view = view.but_refused(refused, cause.as_str());
        self.view.store(Arc::new(view));
    }
}

/// The watched files of a configuration: the file itself first, then the certificates, keys and authorities that it names.
fn files_of(file: &Path, config: &Config) -> Vec<PathBuf> {
    let listener = config.listen.https.iter();
    let listener = listener.flat_map(|https| https.files());
    let upstreams = config
        .upstreams
        .iter()
        .filter_map(|(_, upstream)| upstream.tls.as_ref());
    let upstreams = upstreams.flat_map(|tls| &tls.files);
    // Also that of Redis, whose connections read it by themselves.
    let own = config.own_certificates.keys();
    let others = listener.chain(upstreams).chain(own).cloned();
    std::iter::once(file.to_owned()).chain(others).collect()
}

/// Blocks: must not be called on a thread that runs tasks.
fn prepare(file: &Path, gate: &Gate, acceptor: Option<&Acceptor>) -> Result<Prepared, String> {
    let running = gate.snapshot();
    let keys_of = |tier: &TierName| {
        let health = gate.store.health();
        if !health.up || health.keys.age > KEYS_AGE_MAX {
            let trouble = match health.up {
                true => health.keys_trouble,
                false => health.trouble.or(health.file_trouble),
            };
            let not_current = || "the key table of this gateway is not current".to_owned();
            return Err(trouble.unwrap_or_else(not_current));
        }
        let tiers = gate.store.keys().by_tier();
        let held = tiers.into_iter().find(|(name, _)| name == tier);
        Ok(held.map_or(0, |(_, keys)| keys))
    };
    let replaced = Running {
        config: &running.config,
        keys_of: &keys_of,
    };
    let config = Config::load_over(file, &replaced).map_err(|errors| errors.summary())?;
    let tls = acceptor.zip(config.listen.https.as_ref());
    let successor = tls.map(|(acceptor, https)| acceptor.successor(https));
    let successor = successor.transpose().map_err(|error| error.to_string())?;
    let place = &config.logging.access_log;
    let changed = (*place != running.config.logging.access_log).then_some(place);
    let sink = changed.map(|place| open_access_log(place, &gate.metrics));
    let sink = sink.transpose().map_err(|error| error.to_string())?;
    Ok(Prepared {
        snapshot: Snapshot::new(config, Some(&running)),
        successor,
        sink,
    })
}

//! Where a gateway logs to, and what it warns of whenever a configuration is applied.

use std::time::Duration;

use super::error::ServeError;
use super::tls::Acceptor;
use crate::proxy::{Gate, Snapshot};
use crate::telemetry::access_log::{Destination, Sink};
use crate::telemetry::metrics::Metrics;

/// The remaining life of a certificate below which a warning is logged: most are renewed a month before their end.
const CERTIFICATE_WARNING: Duration = Duration::from_secs(14 * 86_400);

/// Records when the present certificates end, and warns if one ends soon.
pub fn note_certificates(acceptor: &Acceptor, gate: &Gate) {
    let ends = acceptor.certificate_ends();
    gate.metrics.certificates_end(&ends);
    for (certificate, end) in ends {
        let left = end.saturating_sub(gate.store.now().as_second());
        if left < CERTIFICATE_WARNING.as_secs().cast_signed() {
            let days = left.div_euclid(86_400);
            tracing::warn!(
                certificate,
                days,
                "a certificate of listen.https expires soon or has expired: renew it; the file is read again when it changes"
            );
        }
    }
}

/// Logs, for every applied configuration, its tiers in shadow mode and its servers without an address.
pub fn warn_of(snapshot: &Snapshot) {
    for upstream in snapshot.upstreams() {
        for name in upstream.unresolved() {
            let upstream = &*upstream.name;
            tracing::warn!(
                upstream,
                name,
                "the name cannot be resolved: its server gets no requests until it can"
            );
        }
    }
    for (tier, _) in snapshot.config.shadow_tiers() {
        tracing::warn!(%tier, "this tier is not enforced: requests are counted, but none is refused by tier, rates or quota");
    }
}

/// Opens the access log, whose lost lines are counted in `metrics`; `None` if it is off.
pub fn open_access_log(
    destination: &Destination,
    metrics: &Metrics,
) -> Result<Option<Sink>, ServeError> {
    let dropped_lines = metrics.access_log_dropped.clone();
    Sink::open(destination, dropped_lines).map_err(|error| ServeError::AccessLog {
        path: format!("{destination:?}"),
        error,
    })
}

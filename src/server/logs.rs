//! Where a gateway logs to, and what it warns of whenever a configuration is applied and, of certificates, once a day.

use std::time::Duration;

use super::descriptors;
use super::error::ServeError;
use super::tls::Acceptor;
use crate::config::days_if_soon;
use crate::proxy::{Gate, Snapshot};
use crate::telemetry::access_log::{Destination, Sink};
use crate::telemetry::metrics::Metrics;

/// After this time, certificates that have not changed are looked at again.
const CERTIFICATE_INTERVAL: Duration = Duration::from_secs(86_400);

/// Whether certificates that were looked at at `noted` are to be looked at again; both are Unix seconds of a clock that may be set.
pub fn certificates_are_due(noted: i64, now: i64) -> bool {
    now.abs_diff(noted) >= CERTIFICATE_INTERVAL.as_secs()
}

/// Records when the present certificates end, and warns if one ends soon after `now`, in Unix seconds.
pub fn note_certificates(acceptor: Option<&Acceptor>, gate: &Gate, now: i64) {
    let mut ends = acceptor.map_or_else(Vec::new, Acceptor::certificate_ends);
    let shown = ends.len();
    let snapshot = gate.snapshot();
    let own = snapshot.config.own_certificates.iter();
    ends.extend(own.map(|(file, end)| (file.display().to_string(), *end)));
    gate.metrics.certificates_end(&ends);
    for (number, (certificate, end)) in ends.into_iter().enumerate() {
        if let Some(days) = days_if_soon(end, now) {
            let place = match number < shown {
                true => "of listen.https",
                false => "for upstreams or Redis",
            };
            tracing::warn!(
                certificate,
                days,
                "a certificate {place} expires soon or has expired: renew it; the file is read again when it changes"
            );
        }
    }
}

/// Logs, for every applied configuration, its warnings, its tiers in shadow mode, and connections for which open files are missing.
pub fn warn_of(snapshot: &Snapshot) {
    descriptors::warn_of(snapshot.config.limits.connections);
    for warning in &snapshot.config.warnings {
        let (line, column) = (warning.line, warning.column);
        tracing::warn!(line, column, "{warning}");
    }
    for (tier, _) in snapshot.config.shadow_tiers() {
        tracing::warn!(%tier, "this tier is not enforced: requests are counted, but none is refused by tier, rates or quota");
    }
}

/// Opens the access log, whose lost lines are counted in `metrics`; `None` if it is off.
///
/// # Errors
/// [`ServeError::AccessLog`] if the file or stream cannot be opened.
pub fn open_access_log(
    destination: &Destination,
    metrics: &Metrics,
) -> Result<Option<Sink>, ServeError> {
    let dropped_lines = metrics.access_log_dropped.clone();
    Sink::open(destination, dropped_lines)
        .map_err(|error| ServeError::AccessLog(destination.to_string(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_warned_of_from_14_days_before_its_end() {
        const DAY: i64 = 86_400;
        let now = 1_800_000_000;
        for (left, days) in [
            (14 * DAY, None),
            (14 * DAY - 1, Some(13)),
            (DAY, Some(1)),
            (1, Some(0)),
            (0, Some(0)),
            (-1, Some(-1)),
            (i64::MAX - now, None),
        ] {
            assert_eq!(days_if_soon(now + left, now), days, "{left}");
        }
    }

    #[test]
    fn certificates_are_looked_at_again_a_day_later_also_by_a_clock_that_was_set() {
        for (later, due) in [
            (0, false),
            (86_399, false),
            (86_400, true),
            (-86_399, false),
            (-86_400, true),
        ] {
            assert_eq!(certificates_are_due(1_000_000, 1_000_000 + later), due);
        }
    }
}

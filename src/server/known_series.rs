//! Series whose labels are known from the code and the configuration: they exist before their first event, so that Prometheus sees
//! it as an increase.

use prometheus::IntCounterVec;

use crate::config::Config;
use crate::policy::enforcement::ShadowViolation;
use crate::policy::server_health::HealthCheckResult;
use crate::proxy::exchange::RefundReason;
use crate::telemetry::metrics::Metrics;

/// Why requests are retried: no connection, a connection that had ended before its use, a request that the server did not process,
/// a broken-off answer, a 502, 503 or 504.
const RETRY_REASONS: [&str; 5] = ["connect", "stale", "refused", "broken", "status"];

/// Creates the series of refunds, and those of the tiers and upstreams of an applied configuration.
pub fn create(metrics: &Metrics, config: &Config) {
    create_each(&metrics.refunds, &[], RefundReason::WORDS);
    let shares = config.events.shares.iter();
    let shares: Vec<String> = shares.map(|share| share.to_string()).collect();
    for (tier, _) in &config.tiers {
        create_each(&metrics.threshold_events, &[tier.as_str()], &shares);
    }
    for (tier, _) in config.shadow_tiers() {
        let tier = [tier.as_str()];
        create_each(&metrics.shadow_refusals, &tier, ShadowViolation::WORDS);
    }
    for (upstream, _) in &config.upstreams {
        let upstream: &[&str] = &[upstream];
        create_each(&metrics.upstream_connections, upstream, &["new", "reused"]);
        create_each(&metrics.upstream_retries, upstream, &RETRY_REASONS);
        create_each(&metrics.upstream_checks, upstream, HealthCheckResult::WORDS);
        create_each(&metrics.upstream_ejections, &[], upstream);
        create_each(&metrics.upstream_resolve_failures, &[], upstream);
    }
}

/// Creates the series with each of `words` as the last label, after the labels `of`.
fn create_each(family: &IntCounterVec, of: &[&str], words: &[impl AsRef<str>]) {
    for word in words {
        family.with_label_values(&[of, &[word.as_ref()]].concat());
    }
}

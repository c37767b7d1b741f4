//! Series whose labels are known from the code and the configuration: they exist before their first event, so that Prometheus sees
//! it as an increase.

use crate::config::Config;
use crate::policy::enforcement::ShadowViolation;
use crate::proxy::exchange::RefundReason;
use crate::telemetry::metrics::Metrics;

/// Creates the series of refunds, and those of the tiers of an applied configuration.
pub fn create(metrics: &Metrics, config: &Config) {
    for reason in RefundReason::WORDS {
        metrics.refunds.with_label_values(&[*reason]);
    }
    for (tier, _) in config.tiers.iter() {
        for share in config.events.shares.iter() {
            let labels = [tier.as_str(), &share.to_string()];
            metrics.threshold_events.with_label_values(&labels);
        }
    }
    for (tier, _) in config.shadow_tiers() {
        for violation in ShadowViolation::WORDS {
            let labels = [tier.as_str(), violation];
            metrics.shadow_refusals.with_label_values(&labels);
        }
    }
}

//! Every metric family, on one screen. Names and units by Prometheus practice; seconds are histograms with few buckets.

use std::time::Duration;

use jiff::Timestamp;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder, register_gauge_vec_with_registry,
    register_gauge_with_registry as seconds, register_histogram_vec_with_registry as histograms,
    register_int_counter_vec_with_registry as counters, register_int_counter_with_registry,
    register_int_gauge_vec_with_registry as gauges, register_int_gauge_with_registry as gauge,
};

use super::diagnostics;
use super::handshake_failure::HandshakeFailure;
use super::limit_hits::LimitHits;

/// Buckets of request and upstream durations, in seconds.
const REQUEST_BUCKETS: [f64; 11] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0,
];
/// Buckets of store durations, in seconds.
const STORE_BUCKETS: [f64; 9] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.05, 0.1, 0.5];
/// The call of the store that every forwarded request waits for.
pub const CHARGE: &str = "charge";
/// The call of the store for the units used today: for answers that cost nothing, and for `/api/v1/usage`.
pub const READ: &str = "read";
/// The call of the store for the ledger of the last days: for `/api/v1/usage`.
pub const USAGE: &str = "usage";
/// The call of the store that returns units.
pub const REFUND: &str = "refund";
/// The label value of a request without endpoint, tier or upstream.
pub const NONE: &str = "none";

/// Declares the families: a row is `FIELD: TYPE = VALUE`, whose value may use the fields above it.
macro_rules! families {
    ($(#[$doc:meta])* $vis:vis struct $name:ident {
        $($(#[$about:meta])* $public:vis $field:ident: $type:ty = $made:expr;)*
    }) => {
        $(#[$doc])*
        $vis struct $name { $($(#[$about])* $public $field: $type,)* }

        impl $name {
            fn families() -> Result<$name, prometheus::Error> {
                $(let $field: $type = $made;)*
                Ok($name { $($field),* })
            }
        }
    };
}

families! {
    /// The families and the registry they are in.
    #[derive(Debug)]
    pub struct Metrics {
        registry: Registry = Registry::new();
        /// `touchline_requests_total{endpoint,tier,outcome}`: answered requests.
        pub requests: IntCounterVec = counters!("touchline_requests_total",
            "Answered requests by endpoint, tier and outcome", &["endpoint", "tier", "outcome"], registry)?;
        /// `touchline_request_duration_seconds{endpoint}`: from the request's header to the end of its answer.
        pub request_duration: HistogramVec = histograms!("touchline_request_duration_seconds",
            "Seconds from the request's header to the end of its answer", &["endpoint"], REQUEST_BUCKETS.to_vec(), registry)?;
        /// `touchline_upstream_duration_seconds{upstream}`: from forwarding to the upstream's header.
        pub upstream_duration: HistogramVec = histograms!("touchline_upstream_duration_seconds",
            "Seconds from forwarding a request to the upstream's header", &["upstream"], REQUEST_BUCKETS.to_vec(), registry)?;
        /// `touchline_upstream_server_answered{upstream,server}`: 1 if the last request or check was answered, 0 if it failed; no series for
        /// a server that nothing was sent to.
        pub upstream_server_answered: IntGaugeVec = gauges!("touchline_upstream_server_answered",
            "1 if the last request or check was answered, 0 if it failed", &["upstream", "server"], registry)?;
        /// `touchline_upstream_server_up{upstream,server}`: 1 while neither checks nor requests have taken the server out.
        pub upstream_server_up: IntGaugeVec = gauges!("touchline_upstream_server_up",
            "1 while the server of an upstream gets requests", &["upstream", "server"], registry)?;
        /// `touchline_upstream_in_flight_requests{upstream,server}`: requests in flight.
        pub upstream_in_flight: IntGaugeVec = gauges!("touchline_upstream_in_flight_requests",
            "Requests in flight at a server of an upstream", &["upstream", "server"], registry)?;
        /// `touchline_upstream_connections_total{upstream,kind}`: connections used for requests, `new` and `reused`.
        pub upstream_connections: IntCounterVec = counters!("touchline_upstream_connections_total",
            "Connections used for requests, new and reused", &["upstream", "kind"], registry)?;
        /// `touchline_upstream_retries_total{upstream,reason}`: retried requests, by reason.
        pub upstream_retries: IntCounterVec = counters!("touchline_upstream_retries_total",
            "Retried requests by reason", &["upstream", "reason"], registry)?;
        /// `touchline_upstream_ejections_total{upstream}`: servers taken out by failing requests.
        pub upstream_ejections: IntCounterVec = counters!("touchline_upstream_ejections_total",
            "Servers taken out for a while by failing requests", &["upstream"], registry)?;
        /// `touchline_upstream_checks_total{upstream,outcome}`: health checks, `passed` and `failed`.
        pub upstream_checks: IntCounterVec = counters!("touchline_upstream_checks_total",
            "Health checks of servers", &["upstream", "outcome"], registry)?;
        /// `touchline_upstream_resolve_failures_total{upstream}`: names that could not be resolved again.
        pub upstream_resolve_failures: IntCounterVec = counters!("touchline_upstream_resolve_failures_total",
            "Names of servers that could not be resolved again", &["upstream"], registry)?;
        /// `touchline_store_duration_seconds{operation}`: how long a request waited for the store.
        pub store_duration: HistogramVec = histograms!("touchline_store_duration_seconds",
            "Seconds that a request waited for the store", &["operation"], STORE_BUCKETS.to_vec(), registry)?;
        /// Its series of charges, which is in every gateway.
        charge_duration: Histogram = store_duration.with_label_values(&[CHARGE]);
        /// `touchline_store_errors_total{operation}`: charges and readings that failed, not those decided without Redis.
        pub store_errors: IntCounterVec = counters!("touchline_store_errors_total",
            "Calls of the store that failed", &["operation"], registry)?;
        /// `touchline_quota_units_total{tier,change}`: units `charged` and `refunded`.
        pub quota_units: IntCounterVec = counters!("touchline_quota_units_total",
            "Units charged and refunded", &["tier", "change"], registry)?;
        /// `touchline_refunds_total{reason}`: refunded requests.
        pub refunds: IntCounterVec = counters!("touchline_refunds_total", "Refunded requests by reason", &["reason"], registry)?;
        /// `touchline_shadow_refusals_total{tier,refusal}`: forwarded requests that a tier that is not enforced would have refused.
        pub shadow_refusals: IntCounterVec = counters!("touchline_shadow_refusals_total",
            "Forwarded requests that their tier would have refused if it were enforced", &["tier", "refusal"], registry)?;
        /// `touchline_quota_crossings_total{tier,share}`: keys that reached a share of their limit, each once a day.
        pub threshold_events: IntCounterVec = counters!("touchline_quota_crossings_total",
            "Keys that reached a share of their limit, each once a day", &["tier", "share"], registry)?;
        /// `touchline_webhook_attempts_total{outcome}`: attempts to deliver an event, `delivered` and `failed`, and events `given_up`: after
        /// events.webhook.give_up, or at once because too many were pending.
        pub webhook_attempts: IntCounterVec = counters!("touchline_webhook_attempts_total",
            "Attempts to deliver an event, and events given up", &["outcome"], registry)?;
        /// `touchline_webhook_pending`: events pending for the webhook, on the gateway that delivers them; 1,000 at most.
        pub webhook_pending: IntGauge = gauge!("touchline_webhook_pending",
            "Events pending for the webhook, on the gateway that delivers them", registry)?;
        /// `touchline_webhook_age_seconds`: since the oldest pending event, on the gateway that delivers them; 0 if none is pending.
        pub webhook_age: IntGauge = gauge!("touchline_webhook_age_seconds",
            "Seconds since the oldest event pending for the webhook, on the gateway that delivers them", registry)?;
        /// `touchline_trace_spans_total{outcome}`: spans `exported`, and `dropped` because the queue was full or the collector failed.
        pub trace_spans: IntCounterVec = counters!("touchline_trace_spans_total",
            "Spans exported, and dropped because the queue was full or the collector failed", &["outcome"], registry)?;
        /// `touchline_limit_hits_total{limit}`: hits of a limit of the gateway.
        pub limit_hits: LimitHits = LimitHits::new(counters!("touchline_limit_hits_total",
            "Hits of a limit of the gateway", &["limit"], registry)?);
        /// `touchline_connections`: client connections.
        pub connections: IntGauge = gauge!("touchline_connections", "Client connections", registry)?;
        /// `touchline_in_flight_requests`: requests being answered.
        pub in_flight: IntGauge = gauge!("touchline_in_flight_requests", "Requests being answered", registry)?;
        /// `touchline_ready`: 1 while `/readyz` is 200.
        pub ready: IntGauge = gauge!("touchline_ready", "1 while /readyz is 200: ready or degraded", registry)?;
        /// `touchline_readiness_reasons`: the number of `reasons` in `/readyz`.
        pub readiness_reasons: IntGauge = gauge!("touchline_readiness_reasons", "Number of reasons in /readyz", registry)?;
        /// `touchline_store_up`: 1 while the store is expected to decide a charge made now.
        pub store_up: IntGauge = gauge!("touchline_store_up", "1 while the store is expected to decide a charge made now", registry)?;
        /// `touchline_store_degraded`: 1 while charges are decided without the store.
        pub store_degraded: IntGauge = gauge!("touchline_store_degraded",
            "1 while charges are decided without the store", registry)?;
        /// `touchline_journal_pending_units`: units served without the store and not yet settled with it.
        pub journal_pending: IntGauge = gauge!("touchline_journal_pending_units",
            "Units served without the store and not yet settled with it", registry)?;
        /// `touchline_journal_failed`: 1 while the journal cannot be written.
        pub journal_failed: IntGauge = gauge!("touchline_journal_failed", "1 while the journal cannot be written", registry)?;
        /// `touchline_clock_leap_seconds`: the size of the clock's last leap; 0 while the clock is reliable.
        pub clock_leap: Gauge = seconds!("touchline_clock_leap_seconds",
            "Size of the clock's last leap; 0 while the clock is reliable", registry)?;
        /// `touchline_keys`: keys in the replica of the key table.
        keys: IntGauge = gauge!("touchline_keys", "Keys in the replica of the key table", registry)?;
        /// `touchline_keys_loaded`: 1 once the key table was loaded.
        keys_loaded: IntGauge = gauge!("touchline_keys_loaded", "1 once the key table was loaded", registry)?;
        /// `touchline_keys_age_seconds`: since the key table was known to be current; no series before it was.
        keys_age: GaugeVec = register_gauge_vec_with_registry!("touchline_keys_age_seconds",
            "Seconds since the key table was known to be current", &[], registry)?;
        /// `touchline_gateways_silent`: silent gateways, which stopped reporting without signing off, as last read by this one.
        pub gateways_silent: IntGauge = gauge!("touchline_gateways_silent",
            "Silent gateways, which stopped reporting without signing off", registry)?;
        /// `touchline_certificate_end_seconds{certificate}`: the Unix time at which a certificate of the gateway (for clients, upstreams or
        /// Redis), or another of its chain, ends; the label is its file.
        certificate_end: IntGaugeVec = gauges!("touchline_certificate_end_seconds",
            "Unix time at which a certificate of the gateway ends", &["certificate"], registry)?;
        /// `touchline_tls_handshakes_failed_total{reason}`: failed handshakes of clients, except timeouts.
        pub handshakes_failed: IntCounterVec = counters!("touchline_tls_handshakes_failed_total",
            "TLS handshakes of clients that failed", &["reason"], registry)?;
        /// `touchline_access_log_dropped_lines_total`: lines lost because the log could not be written, or not fast enough.
        pub access_log_dropped: IntCounter = register_int_counter_with_registry!("touchline_access_log_dropped_lines_total",
            "Access log lines lost because they could not be written, or not fast enough", registry)?;
        /// `touchline_config_reloads_total{outcome}`: configurations `applied` and `refused` since the start.
        pub config_reloads: IntCounterVec = counters!("touchline_config_reloads_total",
            "Configurations applied and refused since the start", &["outcome"], registry)?;
        /// `touchline_config_refused`: 1 while the configuration file, or a certificate that it names, is refused.
        pub config_refused: IntGauge = gauge!("touchline_config_refused",
            "1 while the configuration file, or a certificate that it names, is refused", registry)?;
        /// `touchline_config_applied_timestamp_seconds`: when the running configuration was applied.
        pub config_applied: Gauge = seconds!("touchline_config_applied_timestamp_seconds",
            "When the running configuration was applied, in Unix seconds", registry)?;
        /// `touchline_config_info{hash}`: always 1; the running configuration.
        config_info: IntGaugeVec = gauges!("touchline_config_info",
            "Always 1; the hash of the running configuration is a label", &["hash"], registry)?;
    }
}

impl Metrics {
    /// All families in a registry of their own.
    ///
    /// # Errors
    /// Only if two families have the same name, which a test excludes.
    pub fn new() -> Result<Metrics, prometheus::Error> {
        let metrics = Metrics::families()?;
        #[cfg(target_os = "linux")]
        metrics.registry.register(Box::new(
            prometheus::process_collector::ProcessCollector::for_self(),
        ))?;
        let dropped_lines = Box::new(diagnostics::dropped_lines());
        metrics.registry.register(dropped_lines)?;
        let build = Opts::new("touchline_build_info", "Always 1; the version is a label")
            .const_label("version", env!("CARGO_PKG_VERSION"));
        gauge!(build, metrics.registry)?.set(1);
        // Created at the start, so that Prometheus sees the first event as an increase.
        let outcomes: [(&IntCounterVec, &[&str]); 5] = [
            (&metrics.store_errors, &[CHARGE, READ, USAGE]),
            (&metrics.handshakes_failed, HandshakeFailure::WORDS),
            (&metrics.config_reloads, &["applied", "refused"]),
            (
                &metrics.webhook_attempts,
                &["delivered", "failed", "given_up"],
            ),
            (&metrics.trace_spans, &["exported", "dropped"]),
        ];
        for (family, values) in outcomes {
            for value in values {
                family.with_label_values(&[value]);
            }
        }
        Ok(metrics)
    }

    /// The text exposition of all families.
    pub fn render(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .unwrap_or_default()
    }

    /// Records the running configuration by its hash, when it was applied, and that no file is refused.
    pub fn config_runs(&self, hash: &str, applied: Timestamp) {
        self.config_info.reset();
        self.config_info.with_label_values(&[hash]).set(1);
        self.config_applied.set(applied.as_duration().as_secs_f64());
        self.config_refused.set(0);
    }

    /// Records whether the key table is loaded, its number of keys, and how long ago it was known to be current, if ever.
    pub fn key_table(&self, loaded: bool, keys: usize, age: Option<Duration>) {
        self.keys_loaded.set(loaded.into());
        self.keys.set(i64::try_from(keys).unwrap_or(i64::MAX));
        match age {
            Some(age) => {
                let shown = self.keys_age.with_label_values::<&str>(&[]);
                shown.set(age.as_secs_f64());
            }
            None => self.keys_age.reset(),
        }
    }

    /// Records when each present certificate ends, by its name, in Unix seconds.
    pub fn certificates_end(&self, ends: &[(String, i64)]) {
        self.certificate_end.reset();
        for (name, end) in ends {
            self.certificate_end.with_label_values(&[name]).set(*end);
        }
    }

    /// Records how long a request waited for the store and whether the call failed.
    pub fn store_call(&self, operation: &str, waited: Duration, outcome: Result<(), ()>) {
        let waited = waited.as_secs_f64();
        match operation {
            CHARGE => self.charge_duration.observe(waited),
            _ => {
                let durations = &self.store_duration;
                durations.with_label_values(&[operation]).observe(waited);
            }
        }
        if outcome.is_err() {
            self.store_errors.with_label_values(&[operation]).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_families_register_and_render() {
        let metrics = Metrics::new().unwrap();
        metrics
            .requests
            .with_label_values(&["/a", "pro", "served"])
            .inc();
        metrics.store_call("charge", Duration::from_millis(1), Err(()));
        let text = metrics.render();
        assert!(text.contains(
            "touchline_requests_total{endpoint=\"/a\",outcome=\"served\",tier=\"pro\"} 1"
        ));
        assert!(text.contains("touchline_store_errors_total{operation=\"charge\"} 1"));
        assert!(text.contains("touchline_build_info{version="));
        assert!(text.contains("touchline_tls_handshakes_failed_total{reason=\"closed\"} 0"));
        assert!(text.contains("touchline_store_errors_total{operation=\"usage\"} 0"));
    }

    #[test]
    fn the_age_of_a_key_table_that_was_never_current_is_not_shown() {
        let metrics = Metrics::new().unwrap();
        let shown = |loaded, age| {
            metrics.key_table(loaded, 0, age);
            let text = metrics.render();
            let lines = text.lines();
            let lines = lines.filter(|line| line.contains("_keys_") && !line.starts_with('#'));
            lines.map(str::to_owned).collect::<Vec<String>>()
        };
        assert_eq!(shown(false, None), ["touchline_keys_loaded 0"]);
        assert_eq!(
            shown(true, Some(Duration::from_millis(1_500))),
            ["touchline_keys_age_seconds 1.5", "touchline_keys_loaded 1"]
        );
        assert_eq!(shown(true, None), ["touchline_keys_loaded 1"]);
    }

    #[test]
    fn certificates_that_are_shown_no_more_end_no_more() {
        let metrics = Metrics::new().unwrap();
        let ends = |names: &[(&str, i64)]| {
            let ends: Vec<(String, i64)> = names
                .iter()
                .map(|(name, end)| ((*name).to_owned(), *end))
                .collect();
            metrics.certificates_end(&ends);
            let text = metrics.render();
            let shown = text.lines().filter_map(|line| {
                let labels = line.strip_prefix("touchline_certificate_end_seconds{certificate=")?;
                Some(labels.to_owned())
            });
            shown.collect::<Vec<String>>()
        };
        assert_eq!(ends(&[("a", 1), ("b", 2)]), ["\"a\"} 1", "\"b\"} 2"]);
        assert_eq!(ends(&[("b", 3), ("c", 4)]), ["\"b\"} 3", "\"c\"} 4"]);
        assert_eq!(ends(&[]), [""; 0]);
    }
}

//! Where traces are exported to.

use std::time::Duration;

use super::upstreams::{SecretHeader, header};
use super::{MINUTE, MS, http_url, seconds};
use crate::config::Secret;
use crate::config::check::Wrong;
use crate::config::rows::{needed, optional, percent, rows, secret, section, within};

rows! {
    /// What becomes of traces.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Tracing {
        /// Where spans go: a collector that takes OTLP over HTTP, in protobuf. Without it none are made.
        otlp: Option<Otlp> = optional();
    }

    /// A collector that speaks OTLP over HTTP.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Otlp {
        /// The whole URL with its path, mostly /v1/traces.
        url: Secret = needed("write url: http://127.0.0.1:4318/v1/traces", secret(collector));
        /// What the collector knows the gateway by.
        header: Option<SecretHeader> = section(header);
        /// How many of the traces that begin here are recorded. Where a caller sends one, it decides (the sampled flag).
        sample_percent as "sample": u8 = percent(1);
        /// How long one export may take. No request waits for it.
        timeout: Duration = within(seconds(5), MS * 100..=MINUTE);
    }
}

fn collector(url: Secret) -> Result<Secret, Wrong> {
    let hint = "write it whole, such as https://collector.example:4318/v1/traces";
    http_url(url, "it is not the URL of a collector", hint)
}

//! The export of traces.

use std::time::Duration;

use http::header::CONTENT_TYPE;

use super::upstreams::{SecretHeader, SecretHeaderRows, header};
use super::values::{MINUTE, MS, http_url, seconds};
use crate::config::check::{Check, Wrong};
use crate::config::outline::Path;
use crate::config::rows::{needed, optional, percent, rows, secret, section, within};
use crate::policy::secret::Secret;

rows! {
    /// The export of traces.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Tracing {
        /// The collector of spans: OTLP over HTTP, in protobuf. Without it, no spans are recorded.
        otlp: Option<Otlp> = optional();
    }

    /// A collector that speaks OTLP over HTTP.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Otlp {
        /// The full URL with its path, mostly /v1/traces.
        url: Secret = needed("write url: http://127.0.0.1:4318/v1/traces", secret(collector));
        /// The header that authenticates the gateway to the collector.
        header: Option<SecretHeader> = section(credential);
        /// The share of the traces beginning at the gateway that are recorded. A caller's own trace is recorded if its sampled flag is set.
        sample_percent as "sample": u8 = percent(1);
        /// The timeout of one export. No request waits for it.
        timeout: Duration = within(seconds(5), MS * 100..=MINUTE);
    }
}

fn credential(check: &mut Check<'_>, at: &Path, rows: SecretHeaderRows) -> Option<SecretHeader> {
    let credential = header(check, at, rows)?;
    if credential.name == CONTENT_TYPE {
        let hint = "write the name that the collector expects, such as Authorization";
        check.wrong(&at.key("name"), "each export has this header already", hint);
        return None;
    }
    Some(credential)
}

fn collector(url: Secret) -> Result<Secret, Wrong> {
    let hint = "write the full URL, such as https://collector.example:4318/v1/traces";
    http_url(url, "the value is not the URL of a collector", hint)
}

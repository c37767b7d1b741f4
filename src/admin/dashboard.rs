//! The dashboard: a page, and the JSON that it shows.
//!
//! The page is compiled in, is the same for every viewer and holds no figures. It requests nothing but the JSON. Its policy allows no
//! script but its own, and no markup made from text. The JSON has the metrics of this process and the [survey](super::today) of the store.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::HeaderValue;
use jiff::Timestamp;
use prometheus::{IntCounterVec, IntGaugeVec};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::readiness::Readiness;
use super::reloads::Reload;
use super::today::Today;
use crate::store::NodeName;
use crate::telemetry::history::Sample;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::reading::{Series, series};

/// The document, with placeholders for style and script.
const DOCUMENT: &str = include_str!("dashboard/page.html");
const STYLE: &str = include_str!("dashboard/style.css");
const SCRIPT: &str = include_str!("dashboard/script.js");

/// The page.
#[derive(Debug)]
pub struct Page {
    /// HTML.
    pub body: Vec<u8>,
    /// Its `Content-Security-Policy` (CSP Level 3): style and script by their digests, nothing from other origins, no markup made from text.
    pub policy: String,
}

/// The page, assembled once.
pub static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let digest = |text: &str| format!("'sha256-{}'", BASE64.encode(Sha256::digest(text)));
    let body = DOCUMENT
        .replace("{style}", STYLE)
        .replace("{script}", SCRIPT);
    Page {
        body: body.into_bytes(),
        policy: format!(
            "default-src 'none'; script-src {}; style-src {}; img-src data:; connect-src 'self'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
            digest(SCRIPT),
            digest(STYLE),
        ),
    }
});

/// The body of `/dashboard.json`.
#[derive(Debug, Serialize)]
pub struct Dashboard {
    /// The store's time as this gateway knows it.
    pub time: Timestamp,
    /// The gateway's name, as in its logs.
    pub node: NodeName,
    /// The gateway's version.
    pub version: &'static str,
    /// Seconds since the gateway started, by the monotonic clock.
    pub uptime_seconds: u64,
    /// The body of `/readyz`.
    pub readiness: Readiness,
    /// The results of the last configurations, the newest first.
    pub reloads: Vec<Reload>,
    /// The quota day so far, of all gateways; `None` until the store has been read.
    pub today: Option<Today>,
    /// Why the last reading of the store failed.
    pub today_error: Option<String>,
    /// The answers of this gateway since its start.
    pub answered: Vec<AnswerCounts>,
    /// The upstreams and their servers.
    pub upstreams: Vec<UpstreamNow>,
    /// Seconds from one sample to the next.
    pub sample_seconds: u64,
    /// The last hour of this gateway, the oldest sample first.
    pub samples: Vec<Sample>,
}

/// Requests of one tier and outcome.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct AnswerCounts {
    /// The tier, or `none`.
    pub tier: String,
    /// As in `touchline_requests_total`.
    pub outcome: String,
    /// Their count.
    pub requests: u64,
}

/// An upstream with its figures since the start.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct UpstreamNow {
    /// Its name in the configuration.
    pub name: String,
    /// Its servers.
    pub servers: Vec<ServerNow>,
    /// Attempts after the first.
    pub retries: u64,
    /// How often failing requests took a server out of use.
    pub ejections: u64,
    /// Failed health checks.
    pub checks_failed: u64,
    /// Failed lookups of server names.
    pub resolve_failures: u64,
}

/// A server of an upstream.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct ServerNow {
    /// Its label in the metrics.
    pub server: String,
    /// Whether requests are sent to it: neither checks nor failing requests have taken it out of use.
    pub up: bool,
    /// Whether the last request or check was answered; `None` before the first.
    pub answered: Option<bool>,
    /// Requests in flight.
    pub in_flight: u64,
}

/// The answers by tier and outcome.
pub fn answered(metrics: &Metrics) -> Vec<AnswerCounts> {
    let mut sums: BTreeMap<(String, String), u64> = BTreeMap::new();
    for one in series(&metrics.requests) {
        let place = (
            one.label("tier").to_owned(),
            one.label("outcome").to_owned(),
        );
        *sums.entry(place).or_default() += one.count();
    }
    let sums = sums.into_iter();
    sums.map(|((tier, outcome), requests)| AnswerCounts {
        tier,
        outcome,
        requests,
    })
    .collect()
}

/// The upstreams of the metric families, by name; their servers by address.
pub fn upstreams(metrics: &Metrics) -> Vec<UpstreamNow> {
    let mut all: BTreeMap<String, UpstreamNow> = BTreeMap::new();
    let in_flight = by_server(&metrics.upstream_in_flight);
    let answered = by_server(&metrics.upstream_server_answered);
    for (place, up) in by_server(&metrics.upstream_server_up) {
        let upstream = all.entry(place.0.clone()).or_default();
        upstream.name.clone_from(&place.0);
        upstream.servers.push(ServerNow {
            in_flight: in_flight.get(&place).copied().unwrap_or(0),
            up: up == 1,
            answered: answered.get(&place).map(|answered| *answered == 1),
            server: place.1,
        });
    }
    let retries = series(&metrics.upstream_retries);
    let counted = |family: &IntCounterVec, labels: &[&str]| family.with_label_values(labels).get();
    for (name, upstream) in &mut all {
        let own = retries.iter().filter(|one| one.label("upstream") == name);
        upstream.retries = own.map(Series::count).sum();
        upstream.ejections = counted(&metrics.upstream_ejections, &[name]);
        upstream.resolve_failures = counted(&metrics.upstream_resolve_failures, &[name]);
        upstream.checks_failed = counted(&metrics.upstream_checks, &[name, "failed"]);
    }
    all.into_values().collect()
}

/// The values of a family by upstream and server.
fn by_server(family: &IntGaugeVec) -> BTreeMap<(String, String), u64> {
    let values = series(family).into_iter().map(|one| {
        let [upstream, server] = ["upstream", "server"].map(|name| one.label(name).to_owned());
        ((upstream, server), one.count())
    });
    values.collect()
}

/// Whether a `Host` is an address or `localhost`. A page of another site whose name resolves to 127.0.0.1 (DNS rebinding) sends that
/// name, and could otherwise read the operator's figures from a listener without a token.
pub fn is_local(host: Option<&HeaderValue>) -> bool {
    let Some(host) = host.and_then(|host| host.to_str().ok()) else {
        return false;
    };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(address, _)| address),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::WithoutStore;

    #[test]
    fn the_page_is_whole_and_loads_nothing_from_other_origins() {
        let page = String::from_utf8(PAGE.body.clone()).unwrap();
        assert!(page.contains(STYLE) && page.contains(SCRIPT));
        for place in [
            "{style}", "{script}", "https://", "//cdn", "@import", "style=",
        ] {
            assert!(!page.contains(place), "{place}");
        }
        // XML namespaces are the only addresses.
        let addresses = page.matches("http://").count();
        assert_eq!(
            addresses,
            page.matches("http://www.w3.org/2000/svg").count()
        );
        for way in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "onclick=",
            "onload=",
        ] {
            assert!(!page.contains(way), "{way}");
        }
        assert!(
            PAGE.policy
                .starts_with("default-src 'none'; script-src 'sha256-")
        );
        assert!(!PAGE.policy.contains("unsafe"));
    }

    #[test]
    fn the_page_has_words_for_each_fate_of_requests_without_the_store() {
        for without in WithoutStore::ALL {
            let name = serde_json::to_string(&without).unwrap();
            let member = format!("{}: \"", name.trim_matches('"'));
            assert!(SCRIPT.contains(&member), "{member}");
        }
    }

    #[test]
    fn only_addresses_and_localhost_name_this_machine() {
        let local = |host: &str| is_local(Some(&HeaderValue::from_str(host).unwrap()));
        for host in [
            "127.0.0.1:9090",
            "localhost",
            "LOCALHOST:9090",
            "[::1]:9090",
            "a.localhost:1",
            "10.0.0.1",
        ] {
            assert!(local(host), "{host}");
        }
        for host in [
            "evil.example:9090",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
            "[::1",
        ] {
            assert!(!local(host), "{host}");
        }
        assert!(!is_local(None));
    }

    #[test]
    fn servers_are_listed_with_the_counts_of_their_upstream() {
        let metrics = Metrics::new().unwrap();
        for (server, up) in [("10.0.0.2:1", 0), ("10.0.0.1:1", 1)] {
            let labels = ["data", server];
            metrics
                .upstream_server_up
                .with_label_values(&labels)
                .set(up);
        }
        let labels = ["data", "10.0.0.1:1"];
        metrics.upstream_in_flight.with_label_values(&labels).set(4);
        let last = &metrics.upstream_server_answered;
        last.with_label_values(&labels).set(0);
        metrics
            .upstream_retries
            .with_label_values(&["data", "connect"])
            .inc_by(2);
        metrics
            .upstream_retries
            .with_label_values(&["data", "stale"])
            .inc();
        metrics
            .upstream_retries
            .with_label_values(&["other", "stale"])
            .inc();
        metrics
            .upstream_checks
            .with_label_values(&["data", "failed"])
            .inc();
        metrics
            .upstream_checks
            .with_label_values(&["data", "passed"])
            .inc_by(9);
        let upstream = metrics.upstream_ejections.with_label_values(&["data"]);
        upstream.inc_by(5);
        let names = &metrics.upstream_resolve_failures;
        names.with_label_values(&["data"]).inc_by(6);
        names.with_label_values(&["other"]).inc();
        let server = |server: &str, up, answered, in_flight| ServerNow {
            server: server.into(),
            up,
            answered,
            in_flight,
        };
        let expected = UpstreamNow {
            name: "data".into(),
            servers: vec![
                server("10.0.0.1:1", true, Some(false), 4),
                server("10.0.0.2:1", false, None, 0),
            ],
            retries: 3,
            ejections: 5,
            checks_failed: 1,
            resolve_failures: 6,
        };
        assert_eq!(upstreams(&metrics), [expected]);
    }

    #[test]
    fn answers_are_summed_over_endpoints() {
        let metrics = Metrics::new().unwrap();
        for endpoint in ["/a", "/b"] {
            let labels = [endpoint, "pro", "served"];
            metrics.requests.with_label_values(&labels).inc_by(2);
        }
        let expected = AnswerCounts {
            tier: "pro".into(),
            outcome: "served".into(),
            requests: 4,
        };
        assert_eq!(answered(&metrics), [expected]);
    }
}

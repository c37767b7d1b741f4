//! The series that every served request adds to, each looked up once: a look-up in its family takes a lock and hashes the labels.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use ahash::RandomState;
use prometheus::{Histogram, IntCounter};

use crate::config::Config;
use crate::policy::key_record::TierName;
use crate::telemetry::metrics::Metrics;

/// The series of requests of one tier at one endpoint.
#[derive(Debug)]
pub struct RequestSeries {
    /// Requests that were served.
    pub served: IntCounter,
    /// How long they took, with those of other tiers and outcomes.
    pub duration: Histogram,
    /// Units charged, with those of other endpoints.
    pub units: IntCounter,
}

impl RequestSeries {
    fn look_up(metrics: &Metrics, endpoint: &str, tier: &str) -> RequestSeries {
        let (requests, units) = (&metrics.requests, &metrics.quota_units);
        RequestSeries {
            served: requests.with_label_values(&[endpoint, tier, "served"]),
            duration: metrics.request_duration.with_label_values(&[endpoint]),
            units: units.with_label_values(&[tier, "charged"]),
        }
    }
}

/// The series of all tiers at all endpoints of a configuration; those without a request do not exist yet.
#[derive(Debug)]
pub struct SeriesTable(HashMap<Arc<str>, Vec<TierSeries>, RandomState>);

type TierSeries = (TierName, OnceLock<RequestSeries>);

impl SeriesTable {
    /// No series yet.
    pub fn new(config: &Config) -> SeriesTable {
        let of_tiers = || {
            let names = config.tiers.iter().map(|(name, _)| name.clone());
            names.map(|name| (name, OnceLock::new())).collect()
        };
        let endpoints = config.endpoints.iter();
        let table = endpoints.map(|endpoint| (endpoint.pattern.clone(), of_tiers()));
        SeriesTable(table.collect())
    }

    /// Calls `add` with the series of a tier at an endpoint.
    pub fn with(
        &self,
        metrics: &Metrics,
        endpoint: &str,
        tier: &str,
        add: impl FnOnce(&RequestSeries),
    ) {
        let look_up = || RequestSeries::look_up(metrics, endpoint, tier);
        let of_tiers = self.0.get(endpoint).map_or(&[][..], Vec::as_slice);
        match of_tiers.iter().find(|(name, _)| name.as_str() == tier) {
            Some((_, series)) => add(series.get_or_init(look_up)),
            None => add(&look_up()),
        }
    }
}

/// The series of requests to one upstream.
#[derive(Debug)]
pub struct UpstreamSeries {
    /// From forwarding a request to the upstream's header.
    pub duration: Histogram,
    /// Requests on a new connection.
    pub new: IntCounter,
    /// Requests on a connection that had been used before.
    pub reused: IntCounter,
}

impl UpstreamSeries {
    /// The series of the upstream with this name.
    pub fn look_up(metrics: &Metrics, upstream: &str) -> UpstreamSeries {
        let connections = &metrics.upstream_connections;
        UpstreamSeries {
            duration: metrics.upstream_duration.with_label_values(&[upstream]),
            new: connections.with_label_values(&[upstream, "new"]),
            reused: connections.with_label_values(&[upstream, "reused"]),
        }
    }
}

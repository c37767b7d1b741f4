//! Servers to forward to: the choice among them, and the state of each.
//!
//! [`choice`] chooses and [`server_health`](crate::policy::server_health) judges, based on the state kept here. Requests report
//! their results; checks and resolved names come from `server::upkeep`. A configuration that replaces another inherits the
//! servers that both name, with their state and their requests in flight.
//!
//! Invariant: a server's requests in flight are counted from the assignment until it is dropped, however they end.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use arc_swap::ArcSwap;
use http::{HeaderName, HeaderValue, Version};

use super::failure::Failure;
use super::series::UpstreamSeries;
use crate::config::{self, UpstreamConfig};
use crate::policy::choice::{self, Candidate, Occasion};
use crate::policy::compression::Compression;
use crate::policy::server_health::{HealthChange, HealthCheckResult};
use crate::telemetry::metrics::Metrics;

mod server;
mod wire;

pub use server::{Assignment, Server};
pub use wire::{Wire, system_authorities};

/// One configured upstream.
#[derive(Debug)]
pub struct Upstream {
    /// Its name in the configuration, in logs and metrics.
    pub name: Arc<str>,
    /// Its configuration; the addresses of its servers are those when the file was read.
    pub config: UpstreamConfig,
    /// The header that authenticates the gateway; marked as sensitive.
    pub header: Option<(HeaderName, HeaderValue)>,
    /// The compression of its answers, if any.
    pub compression: Option<Compression>,
    /// The properties of its connections.
    pub wire: Wire,
    places: ArcSwap<Vec<WeightedServer>>,
    turn: AtomicU64,
    series: OnceLock<UpstreamSeries>,
}

/// A server with its weight in one upstream.
#[derive(Debug, Clone)]
pub struct WeightedServer {
    /// The server.
    pub server: Arc<Server>,
    weight: NonZeroU32,
}

impl Upstream {
    /// The upstream of this configuration. The state of its servers is inherited from the one of its name in `previous`; the
    /// addresses of a name that did not resolve when the configuration was read, from the first that knows any.
    pub fn new<'p>(
        (name, config): &(Arc<str>, UpstreamConfig),
        previous: impl IntoIterator<Item = &'p Upstream>,
    ) -> Upstream {
        let previous: Vec<&Upstream> = previous.into_iter().collect();
        let before = previous.iter().find(|before| before.name == *name);
        let before = before.map(|before| before.places.load_full());
        let before = before.as_deref().map_or(&[][..], Vec::as_slice);
        let places = config.servers.iter().flat_map(|server| {
            let mut addresses = server.addresses.clone();
            if addresses.is_empty() {
                let mut known = previous.iter().map(|one| one.addresses_of(&server.name));
                addresses = known.find(|known| !known.is_empty()).unwrap_or_default();
            }
            let addresses = addresses.into_iter();
            addresses.map(|address| place(before, server, address))
        });
        let places: Vec<WeightedServer> = places.collect();
        for WeightedServer { server, .. } in &places {
            server.judge(|health| health.reconfigured(config.ejection, Instant::now()));
        }
        let upstream = Upstream {
            name: name.clone(),
            header: config.header.as_ref().and_then(sensitive),
            compression: config.compression.clone(),
            wire: Wire::new(config),
            config: config.clone(),
            places: ArcSwap::from_pointee(places),
            turn: AtomicU64::new(0),
            series: OnceLock::new(),
        };
        upstream.forget_checks_that_are_off();
        upstream
    }

    /// Without checks, forgets what earlier ones found. To be called now and then: one may have been under way when they were switched
    /// off, and no other would bring back the server that it takes out.
    pub fn forget_checks_that_are_off(&self) {
        if self.config.health.is_none() {
            let places = self.places.load();
            places.iter().for_each(|place| place.server.unchecked());
        }
    }

    /// Its metrics of requests.
    pub fn series(&self, metrics: &Metrics) -> &UpstreamSeries {
        let look_up = || UpstreamSeries::look_up(metrics, &self.name);
        self.series.get_or_init(look_up)
    }

    /// The current servers.
    pub fn places(&self) -> Arc<Vec<WeightedServer>> {
        self.places.load_full()
    }

    /// Assigns a server to a request of the key with this identity that has `tried` some already, and `asked` others that did not act
    /// on it: one that is up and untried, if possible another than those asked, else an untried one, else any. `None` only while
    /// no name of its servers has resolved.
    pub fn assign(
        &self,
        key: u64,
        tried: &[Arc<Server>],
        asked: &[Arc<Server>],
    ) -> Option<Assignment> {
        let places = self.places.load();
        if let [only] = places.as_slice() {
            return Some(Assignment::to(&only.server));
        }
        let now = Instant::now();
        let candidates: Vec<Candidate> = places
            .iter()
            .map(|WeightedServer { server, weight }| Candidate {
                up: server.is_usable(now),
                tried: server.is_among(tried),
                asked: server.is_among(asked),
                weight: *weight,
                in_flight: server.in_flight(),
                identity: server.identity,
            })
            .collect();
        // A retry does not advance the turn.
        let turn = match (tried, asked) {
            ([], []) => self.turn.fetch_add(1, Ordering::Relaxed),
            _ => self.turn.load(Ordering::Relaxed),
        };
        let chosen = choice::choose(self.config.choice, Occasion { turn, key }, &candidates)?;
        let place = places.get(chosen)?;
        Some(Assignment::to(&place.server))
    }

    /// Whether there is a server that is neither `present` nor one of `tried`.
    pub fn has_another(&self, present: &Arc<Server>, tried: &[Arc<Server>]) -> bool {
        let places = self.places.load();
        let mut servers = places.iter().map(|place| &place.server);
        servers.any(|server| !Arc::ptr_eq(server, present) && !server.is_among(tried))
    }

    /// Notes that a server began to answer a request.
    pub fn note_answered(&self, server: &Server) {
        if let Some(change) = server.answered() {
            self.log(server, change, None);
        }
    }

    /// Notes that a server served a request.
    pub fn note_served(&self, server: &Server) {
        if let Some(change) = server.served() {
            self.log(server, change, None);
        }
    }

    /// Notes that a server failed a request, and why.
    pub fn note_failed(&self, assignment: &Assignment, why: &Failure, metrics: &Metrics) {
        if let Some(change) = assignment.failed(self.config.ejection) {
            self.log(&assignment.server, change, Some(why));
            let ejections = &metrics.upstream_ejections;
            ejections.with_label_values(&[&*self.name]).inc();
        }
    }

    /// Notes that a server requires HTTP/1.1 (RFC 9113 section 7, `HTTP_1_1_REQUIRED`), or does not support HTTP/2: if HTTP/1.1
    /// is configured too, it is used from now on, until the gateway ends.
    pub fn note_wants_http1(&self, server: &Server) {
        if self.wire.takes(Version::HTTP_11) && server.wants_http1() {
            let (upstream, server) = (&*self.name, server.label());
            tracing::warn!(
                upstream,
                server,
                "the server requires HTTP/1.1, which is used from now on"
            );
        }
    }

    /// Notes a check of a server and of all others with its address, and why it failed.
    pub fn note_checked(&self, server: &Server, checked: Result<(), String>, metrics: &Metrics) {
        let Some(health) = &self.config.health else {
            return;
        };
        let result = match checked {
            Ok(()) => HealthCheckResult::Passed,
            Err(_) => HealthCheckResult::Failed,
        };
        let checks = &metrics.upstream_checks;
        checks
            .with_label_values(&[&*self.name, result.as_str()])
            .inc();
        let places = self.places.load();
        let servers = places.iter().map(|place| &place.server);
        let checked_servers = servers.filter(|other| other.address == server.address);
        let change = checked_servers.fold(None, |change, server| {
            server.checked(result, health.thresholds()).or(change)
        });
        if let Some(change) = change {
            let why = checked.as_ref().err();
            self.log(server, change, why.map(|why| why as &dyn fmt::Display));
        }
    }

    fn log(&self, server: &Server, change: HealthChange, why: Option<&dyn fmt::Display>) {
        let (upstream, server) = (&*self.name, server.label());
        let message = match change {
            HealthChange::Unhealthy => "health checks fail: the server gets no requests",
            HealthChange::Healthy => "health checks pass: the server gets requests again",
            HealthChange::Ejected(_) => "requests fail: the server gets no more for a while",
            HealthChange::Returned => "a request was served: the server gets requests again",
        };
        let why = why.map(tracing::field::display);
        match change {
            HealthChange::Unhealthy => tracing::warn!(upstream, server, why, "{message}"),
            HealthChange::Ejected(pause) => {
                let seconds = pause.as_secs_f64();
                tracing::warn!(upstream, server, seconds, why, "{message}");
            }
            HealthChange::Healthy | HealthChange::Returned => {
                tracing::info!(upstream, server, "{message}");
            }
        }
    }

    /// The names among its servers, each `host:port`, whose addresses may change.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let names = self
            .config
            .servers
            .iter()
            .map(|server| server.name.as_str());
        names.filter(|name| name.parse::<SocketAddr>().is_err())
    }

    /// The names that have not resolved yet, so their servers are out.
    pub fn unresolved(&self) -> Vec<&str> {
        let places = self.places.load();
        let is_known = |name: &str| places.iter().any(|place| place.server.name == name);
        self.names().filter(|name| !is_known(name)).collect()
    }

    /// The present addresses of a name.
    fn addresses_of(&self, name: &str) -> Vec<SocketAddr> {
        let places = self.places.load();
        let servers = places.iter().map(|place| &place.server);
        let named = servers.filter(|server| server.name == name);
        named.map(|server| server.address).collect()
    }

    /// Replaces the addresses of a name by those that it was resolved to; returns whether any changed. An empty list changes
    /// nothing: it indicates a fault of the resolver rather than of the service.
    pub fn note_resolved(&self, name: &str, addresses: &[SocketAddr]) -> bool {
        if addresses.is_empty() || self.addresses_of(name) == addresses {
            return false;
        }
        // Other names may be resolved at the same time.
        self.places.rcu(|before| {
            let mut places: Vec<WeightedServer> = Vec::new();
            for server in &self.config.servers {
                if server.name == name {
                    let resolved = addresses.iter();
                    places.extend(resolved.map(|address| place(before, server, *address)));
                } else {
                    let others = before.iter();
                    places.extend(
                        others
                            .filter(|place| place.server.name == server.name)
                            .cloned(),
                    );
                }
            }
            places
        });
        true
    }
}

/// The server at an address, with its state from before.
fn place(
    before: &[WeightedServer],
    server: &config::UpstreamServer,
    address: SocketAddr,
) -> WeightedServer {
    let known = before.iter().map(|place| &place.server);
    let mut known = known.filter(|known| known.name == server.name && known.address == address);
    WeightedServer {
        server: match known.next() {
            Some(known) => known.clone(),
            None => Arc::new(Server::new(&server.name, address)),
        },
        weight: server.weight,
    }
}

/// The header that authenticates the gateway to an upstream, never to be printed.
fn sensitive(header: &config::SecretHeader) -> Option<(HeaderName, HeaderValue)> {
    // Checked configurations contain only valid values.
    let mut value = HeaderValue::try_from(header.value.reveal()).ok()?;
    value.set_sensitive(true);
    Some((header.name.clone(), value))
}

#[cfg(test)]
mod tests;

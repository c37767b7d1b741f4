//! Servers to forward to: who is asked next, and what is known of each.
//!
//! [`choice`] chooses and [`server_health`](crate::policy::server_health) judges; here is the state they
//! judge by. Requests tell what became of them; checks and resolved names come from whoever keeps the upstreams
//! (`server::upkeep`). A configuration that takes the place of another inherits the servers that both name, with all that is known
//! of them and what they have under way.
//!
//! Invariant: a server's requests under way are counted from the assignment until it is dropped, however they end.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::{HeaderName, HeaderValue, Version};
use pingora::upstreams::peer::HttpPeer;

use crate::config::{self, HealthCheck, Timeouts};
use crate::policy::choice::{self, Candidate, Choice, Occasion};
use crate::policy::compression::Compression;
use crate::policy::server_health::{Change, Checked, Ejection};
use crate::telemetry::metrics::Metrics;

mod server;
mod wire;

pub use server::{Assignment, Server};
use wire::Wire;

/// One configured upstream.
#[derive(Debug)]
pub struct Upstream {
    /// Its name in the configuration, in logs and metrics.
    pub name: Arc<str>,
    /// Its timeouts.
    pub timeouts: Timeouts,
    /// How often a request may be sent again where nothing of it can have been acted on.
    pub retries: u32,
    /// What shows it that a request is the gateway's; marked as sensitive.
    pub header: Option<(HeaderName, HeaderValue)>,
    /// Which of its answers are compressed, if any.
    pub compression: Option<Compression>,
    /// How its servers are checked, if they are.
    pub health: Option<HealthCheck>,
    /// How often its names are resolved.
    pub resolve: Duration,
    choice: Choice,
    ejection: Ejection,
    wire: Wire,
    configured: Vec<config::Server>,
    places: ArcSwap<Vec<Place>>,
    turn: AtomicU64,
}

/// A server with its weight in one upstream.
#[derive(Debug, Clone)]
pub struct Place {
    /// The server.
    pub server: Arc<Server>,
    weight: NonZeroU32,
}

impl Upstream {
    /// The upstream of this configuration; what is known of its servers is taken from the one before it, the addresses too of a name
    /// that did not resolve when the configuration was read.
    pub fn new(config: &config::Upstream, previous: Option<&Upstream>) -> Upstream {
        let before = previous.map(|previous| previous.places.load_full());
        let before = before.as_deref().map_or(&[][..], Vec::as_slice);
        let places = config.servers.iter().flat_map(|server| {
            let mut addresses = server.addresses.clone();
            if addresses.is_empty() {
                let known = before.iter().map(|place| &place.server);
                let known = known.filter(|known| known.name == server.name);
                addresses.extend(known.map(|known| known.address));
            }
            let addresses = addresses.into_iter();
            addresses.map(|address| place(before, server, address))
        });
        let places: Vec<Place> = places.collect();
        if config.health.is_none() {
            places.iter().for_each(|place| place.server.unchecked());
        }
        Upstream {
            name: config.name.clone(),
            timeouts: config.timeouts,
            retries: u32::from(config.retries),
            header: config.header.as_ref().and_then(sensitive),
            compression: config.compression.clone(),
            health: config.health.clone(),
            resolve: config.resolve,
            choice: config.choice,
            ejection: config.ejection,
            wire: Wire::new(config),
            configured: config.servers.clone(),
            places: ArcSwap::from_pointee(places),
            turn: AtomicU64::new(0),
        }
    }

    /// The servers of the moment.
    pub fn places(&self) -> Arc<Vec<Place>> {
        self.places.load_full()
    }

    /// Takes a server for a request of the key with this identity that has `tried` some already: one that is up and not tried,
    /// else one that is not tried, else any. `None` only while no name of its servers has resolved.
    pub fn assign(&self, key: u64, tried: &[Arc<Server>]) -> Option<Assignment> {
        let places = self.places.load();
        if let [only] = places.as_slice() {
            return Some(Assignment::to(&only.server));
        }
        let now = Instant::now();
        let candidates: Vec<Candidate> = places
            .iter()
            .map(|Place { server, weight }| Candidate {
                up: server.is_usable(now),
                tried: server.is_among(tried),
                weight: *weight,
                in_flight: server.in_flight(),
                identity: server.identity,
            })
            .collect();
        // A retry takes nobody's turn.
        let turn = match tried {
            [] => self.turn.fetch_add(1, Ordering::Relaxed),
            [..] => self.turn.load(Ordering::Relaxed),
        };
        let chosen = choice::choose(self.choice, Occasion { turn, key }, &candidates)?;
        let place = places.get(chosen)?;
        Some(Assignment::to(&place.server))
    }

    /// Whether there is a server that is neither `present` nor among those `tried` before.
    pub fn has_another(&self, present: &Arc<Server>, tried: &[Arc<Server>]) -> bool {
        let places = self.places.load();
        let mut servers = places.iter().map(|place| &place.server);
        servers.any(|server| !Arc::ptr_eq(server, present) && !server.is_among(tried))
    }

    /// pingora's description of a server for an exchange that has so much time left. Never resolves names.
    pub fn peer(&self, server: &Server, left: Duration) -> HttpPeer {
        self.wire.peer(server, &self.timeouts, left)
    }

    /// Whether requests may be sent to it in this version of HTTP.
    pub fn takes(&self, version: Version) -> bool {
        self.wire.takes(version)
    }

    /// How much of an answer a server may send before the gateway takes it, beyond what its connection's own buffers hold.
    pub fn window_bytes(&self) -> u32 {
        self.wire.window_bytes()
    }

    /// Notes that a server answered a request.
    pub fn note_served(&self, server: &Server) {
        if let Some(change) = server.served() {
            self.tell(server, change);
        }
    }

    /// Notes that a server failed a request.
    pub fn note_failed(&self, server: &Server, metrics: &Metrics) {
        if let Some(change) = server.failed(self.ejection) {
            self.tell(server, change);
            let ejections = &metrics.upstream_ejections;
            ejections.with_label_values(&[&*self.name]).inc();
        }
    }

    /// Notes that a server wants HTTP/1.1 after all (RFC 9113 section 7, `HTTP_1_1_REQUIRED`), or cannot do HTTP/2: where that may be
    /// spoken too, it is from now on, until the gateway ends.
    pub fn note_wants_http1(&self, server: &Server) {
        if self.takes(Version::HTTP_11) && server.wants_http1() {
            let (upstream, server) = (&*self.name, server.label());
            tracing::warn!(
                upstream,
                server,
                "the server wants HTTP/1.1: it is asked so from now on"
            );
        }
    }

    /// Notes a check of a server.
    pub fn note_checked(&self, server: &Server, checked: Checked, metrics: &Metrics) {
        let Some(health) = &self.health else { return };
        let word = match checked {
            Checked::Passed => "passed",
            Checked::Failed => "failed",
        };
        let checks = &metrics.upstream_checks;
        checks.with_label_values(&[&*self.name, word]).inc();
        if let Some(change) = server.checked(checked, health.thresholds()) {
            self.tell(server, change);
        }
    }

    fn tell(&self, server: &Server, change: Change) {
        let (upstream, server) = (&*self.name, server.label());
        match change {
            Change::Unhealthy => {
                tracing::warn!(
                    upstream,
                    server,
                    "health checks fail: the server is not asked"
                );
            }
            Change::Healthy => {
                tracing::info!(
                    upstream,
                    server,
                    "health checks pass: the server is asked again"
                );
            }
            Change::Ejected(pause) => {
                let seconds = pause.as_secs_f64();
                tracing::warn!(
                    upstream,
                    server,
                    seconds,
                    "requests fail: the server is not asked for a while"
                );
            }
            Change::Returned => {
                tracing::info!(
                    upstream,
                    server,
                    "a request was served: the server is asked again"
                );
            }
        }
    }

    /// The names among its servers, each `host:port`: what an address may change behind.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let names = self.configured.iter().map(|server| server.name.as_str());
        names.filter(|name| name.parse::<SocketAddr>().is_err())
    }

    /// Those of the names that have not resolved yet: servers that are out.
    pub fn unresolved(&self) -> Vec<&str> {
        let places = self.places.load();
        let is_known = |name: &str| places.iter().any(|place| place.server.name == name);
        self.names().filter(|name| !is_known(name)).collect()
    }

    /// Puts the addresses that a name was resolved to into the place of those it had; says whether that changed anything. No
    /// address at all changes nothing: it says more of the resolver than of the service.
    pub fn note_resolved(&self, name: &str, addresses: &[SocketAddr]) -> bool {
        let before = self.places.load();
        let of_name = |place: &&Place| place.server.name == name;
        let present: Vec<SocketAddr> = before
            .iter()
            .filter(of_name)
            .map(|place| place.server.address)
            .collect();
        if addresses.is_empty() || present == addresses {
            return false;
        }
        let mut places: Vec<Place> = Vec::new();
        for server in &self.configured {
            if server.name == name {
                let resolved = addresses.iter();
                places.extend(resolved.map(|address| place(&before, server, *address)));
            } else {
                let others = before.iter();
                places.extend(
                    others
                        .filter(|place| place.server.name == server.name)
                        .cloned(),
                );
            }
        }
        self.places.store(Arc::new(places));
        true
    }
}

/// The server at an address, with what is known of it from before.
fn place(before: &[Place], server: &config::Server, address: SocketAddr) -> Place {
    let known = before.iter().map(|place| &place.server);
    let mut known = known.filter(|known| known.name == server.name && known.address == address);
    Place {
        server: match known.next() {
            Some(known) => known.clone(),
            None => Arc::new(Server::new(&server.name, address)),
        },
        weight: server.weight,
    }
}

/// The header that shows an upstream who asks, never to be printed.
fn sensitive(header: &config::SecretHeader) -> Option<(HeaderName, HeaderValue)> {
    // Checked configurations hold no other.
    let mut value = HeaderValue::try_from(header.value.reveal()).ok()?;
    value.set_sensitive(true);
    Some((header.name.clone(), value))
}

#[cfg(test)]
mod tests;

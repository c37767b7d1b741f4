//! Maintaining the upstreams: health checks, repeated name resolution, metrics of servers.
//!
//! Every chore (one server to check, one name to resolve) has its own schedule, runs beside the requests, and never overlaps with
//! itself. The upstream receives the result and judges it. No request waits for a chore.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderName, HeaderValue};
use tokio::task::JoinSet;

use crate::clock::{Periodic, lasting, next_tick};
use crate::config::HealthCheck;
use crate::policy::address;
use crate::proxy::Gate;
use crate::proxy::relay::health_check;
use crate::proxy::upstreams::{Server, Upstream};

/// The longest pause between two looks for due chores: a changed configuration waits this long for its first checks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The pause while a chore runs.
const LOOK_WHILE_DOING: Duration = Duration::from_millis(100);
/// The pause between two checks of idle upstream connections: a server that closes one waits at most this long.
const CLOSE_INTERVAL: Duration = Duration::from_secs(1);
/// The timeout of one name. The system's resolver may take longer; the name is not looked up again before it ends.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two attempts at a name that never resolved; its server gets no requests meanwhile.
const UNRESOLVED_PAUSE: Duration = Duration::from_secs(1);

/// Maintains the upstreams of the running configuration.
pub struct Upkeep {
    gate: Arc<Gate>,
    /// When each chore is due again; `None` while it runs.
    due: HashMap<Chore, Option<Instant>>,
    doing: JoinSet<Chore>,
    /// The servers with series in the metrics.
    shown: HashSet<ShownSeries>,
}

/// A repeated task with its settings. With other settings it is another one, which does not wait for the pause of the former.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Chore {
    Check {
        upstream: Arc<str>,
        address: SocketAddr,
        health: HealthCheck,
        /// The header that authenticates the gateway.
        header: Option<(HeaderName, HeaderValue)>,
        /// The settings of its connection.
        group: u64,
    },
    /// The pause is that of a name which has resolved.
    Resolve(Arc<str>, String, Duration),
}

/// The labels of a server's series.
type ShownSeries = (Arc<str>, String);

impl Upkeep {
    /// The maintenance of the upstreams of `gate`.
    pub fn new(gate: Arc<Gate>) -> Upkeep {
        Upkeep {
            gate,
            due: HashMap::new(),
            doing: JoinSet::new(),
            shown: HashSet::new(),
        }
    }

    /// Maintains them until it is dropped.
    pub async fn run(mut self) {
        let mut close = Periodic::new(CLOSE_INTERVAL);
        loop {
            self.look();
            if close.is_due() {
                self.gate.connections.close_ended().await;
            }
            tokio::select! {
                () = next_tick(LOOK_INTERVAL) => {}
                () = tokio::time::sleep(self.until_next(Instant::now())) => {}
            }
        }
    }

    /// The time to the next look: until the next chore is due, but not longer than a changed configuration may wait.
    fn until_next(&self, now: Instant) -> Duration {
        if !self.doing.is_empty() {
            return LOOK_WHILE_DOING;
        }
        let due = self.due.values().flatten().min();
        due.map_or(LOOK_INTERVAL, |due| {
            due.saturating_duration_since(now).min(LOOK_INTERVAL)
        })
    }

    fn look(&mut self) {
        let snapshot = self.gate.snapshot();
        let now = Instant::now();
        let mut chores = HashMap::new();
        for upstream in snapshot.upstreams() {
            for (chore, again) in chores_of(upstream) {
                chores.insert(chore, (upstream.clone(), again));
            }
        }
        while let Some(done) = self.doing.try_join_next() {
            let Ok(done) = done else { continue };
            let again = chores.get(&done).map(|(_, again)| now + *again);
            self.due.insert(done, again);
        }
        if self.doing.is_empty() {
            self.due.retain(|_, due| due.is_some());
        }
        self.due.retain(|chore, _| chores.contains_key(chore));
        for upstream in snapshot.upstreams() {
            upstream.forget_checks_that_are_off();
        }
        for (chore, (upstream, again)) in chores {
            // A server is checked at once, also in a new way. A name was resolved, or failed to be, when the configuration was read.
            let first = match &chore {
                Chore::Check { .. } => now,
                Chore::Resolve(_, name, _) if is_unresolved(&upstream, name) => now,
                Chore::Resolve(..) => now + again,
            };
            let due = self.due.entry(chore.clone()).or_insert(Some(first));
            if due.is_some_and(|due| due <= now) {
                *due = None;
                self.begin(chore, upstream);
            }
        }
        self.show(snapshot.upstreams());
    }

    fn begin(&mut self, chore: Chore, upstream: Arc<Upstream>) {
        let gate = self.gate.clone();
        match &chore {
            Chore::Check { address, .. } => {
                let address = *address;
                self.spawn(chore, async move {
                    check(&gate, &upstream, address).await;
                });
            }
            Chore::Resolve(_, name, _) => {
                let name = name.clone();
                self.spawn(chore, async move {
                    let look_up = tokio::net::lookup_host(&name);
                    let note = |found: io::Result<_>| {
                        note_resolved(&gate, &upstream.name, &name, found.map(Iterator::collect))
                    };
                    resolve(look_up, note).await;
                });
            }
        }
    }

    fn spawn(&mut self, chore: Chore, work: impl Future<Output = ()> + Send + 'static) {
        self.doing.spawn(async move {
            // A panic does not end the chore for good.
            lasting::outcome("upstreams", work).await;
            chore
        });
    }

    /// Updates the series of the present servers, and removes those of former ones.
    fn show<'a>(&mut self, upstreams: impl Iterator<Item = &'a Arc<Upstream>>) {
        let metrics = &self.gate.metrics;
        let families = [
            &metrics.upstream_server_up,
            &metrics.upstream_server_answered,
            &metrics.upstream_in_flight,
        ];
        let [up, last, in_flight] = families;
        let mut shown = HashSet::new();
        for upstream in upstreams {
            let places = upstream.places();
            let mut by_address: BTreeMap<SocketAddr, Vec<&Server>> = BTreeMap::new();
            for place in places.iter() {
                let server = &*place.server;
                by_address.entry(server.address).or_default().push(server);
            }
            for (address, servers) in by_address {
                let labels = (upstream.name.clone(), address.to_string());
                let values = [&*labels.0, labels.1.as_str()];
                let is_up = servers.iter().all(|server| server.is_up());
                up.with_label_values(&values).set(is_up.into());
                let answered = servers.iter().filter_map(|server| server.has_answered());
                if let Some(answered) = answered.min() {
                    last.with_label_values(&values).set(answered.into());
                }
                let count = servers.iter().map(|server| server.in_flight()).sum::<u64>();
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                in_flight.with_label_values(&values).set(count);
                shown.insert(labels);
            }
            for name in upstream.unresolved() {
                let labels = (upstream.name.clone(), name.to_owned());
                up.with_label_values(&[&*labels.0, name]).set(0);
                shown.insert(labels);
            }
        }
        for (upstream, server) in self.shown.difference(&shown) {
            let values = [&**upstream, server.as_str()];
            for family in families {
                // Fails only if there is no such series.
                let _ = family.remove_label_values(&values);
            }
        }
        self.shown = shown;
    }
}

/// The chores of an upstream, with the pause after each.
fn chores_of(upstream: &Arc<Upstream>) -> Vec<(Chore, Duration)> {
    let mut chores = Vec::new();
    if let Some(health) = &upstream.config.health {
        for place in upstream.places().iter() {
            let chore = Chore::Check {
                upstream: upstream.name.clone(),
                address: place.server.address,
                health: health.clone(),
                header: upstream.header.clone(),
                group: upstream.wire.group,
            };
            chores.push((chore, health.interval));
        }
    }
    for name in upstream.names() {
        let resolve = upstream.config.resolve;
        let chore = Chore::Resolve(upstream.name.clone(), name.to_owned(), resolve);
        let pause = match is_unresolved(upstream, name) {
            true => UNRESOLVED_PAUSE.min(resolve),
            false => resolve,
        };
        chores.push((chore, pause));
    }
    chores
}

fn is_unresolved(upstream: &Upstream, name: &str) -> bool {
    upstream.unresolved().contains(&name)
}

async fn check(gate: &Gate, upstream: &Upstream, address: SocketAddr) {
    let places = upstream.places();
    let mut servers = places.iter().map(|place| &place.server);
    let server = servers.find(|server| server.address == address);
    let (Some(server), Some(health)) = (server, &upstream.config.health) else {
        return;
    };
    let asked = health_check::check(&gate.connections, upstream, server, health);
    let checked = match tokio::time::timeout(health.timeout, asked).await {
        Ok(asked) => asked.map_err(|failure| failure.to_string()),
        Err(_) => Err(format!("no answer within {:?}", health.timeout)),
    };
    if let Err(why) = &checked {
        let (upstream, server) = (&*upstream.name, server.label());
        tracing::debug!(upstream, server, why, "a health check failed");
    }
    upstream.note_checked(server, checked, &gate.metrics);
}

/// Passes the result of a look-up to `note`, at the latest after the timeout, and ends with the look-up: until then its thread is held,
/// and others beside it would take all threads of a gateway whose resolver does not answer.
async fn resolve<T>(
    look_up: impl Future<Output = io::Result<T>>,
    note: impl FnOnce(io::Result<T>),
) {
    let mut look_up = pin!(look_up);
    match tokio::time::timeout(RESOLVE_TIMEOUT, &mut look_up).await {
        Ok(found) => note(found),
        Err(_) => {
            note(Err(io::ErrorKind::TimedOut.into()));
            let _ = look_up.await;
        }
    }
}

/// Passes the addresses of a name on to the upstream, if it still has the name: a reload may have replaced it during the look-up. If the
/// name did not resolve, its servers stay.
fn note_resolved(gate: &Gate, upstream: &str, name: &str, found: io::Result<Vec<SocketAddr>>) {
    let snapshot = gate.snapshot();
    let present = snapshot.upstream(upstream);
    let Some(upstream) = present.filter(|present| present.names().any(|known| known == name))
    else {
        return;
    };
    let (upstream_name, metrics) = (&*upstream.name, &gate.metrics);
    let failures = metrics
        .upstream_resolve_failures
        .with_label_values(&[upstream_name]);
    let is_out = is_unresolved(upstream, name);
    match found {
        Ok(found) => {
            let addresses = address::of_one_family(found);
            if upstream.note_resolved(name, &addresses) {
                let note = match is_out {
                    true => "the name resolves: its server gets requests",
                    false => "the name has other addresses",
                };
                tracing::info!(upstream = upstream_name, name, ?addresses, "{note}");
            } else if addresses.is_empty() {
                failures.inc();
            }
        }
        Err(error) if is_out => {
            // The start logged it already, and this happens each second.
            tracing::debug!(upstream = upstream_name, name, %error, "the name cannot be resolved: its server still gets no requests");
            failures.inc();
        }
        Err(error) => {
            tracing::warn!(upstream = upstream_name, name, %error, "the name cannot be resolved: its servers stay");
            failures.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::Snapshot;
    use crate::proxy::gate::tests::{config, gate};

    #[tokio::test]
    async fn a_chore_that_panicked_is_due_again_while_another_runs() {
        let directory = tempfile::tempdir().unwrap();
        let checked = config(", health: {path: /h, interval: 60s}");
        let gate = gate(checked, &directory).await;
        let upstream = gate.snapshot().upstream("u").unwrap().clone();
        let mut upkeep = Upkeep::new(gate);
        let mut chores = chores_of(&upstream).into_iter().map(|(chore, _)| chore);
        let (panicking, running) = (chores.next().unwrap(), chores.next().unwrap());
        for chore in [&panicking, &running] {
            upkeep.due.insert(chore.clone(), None);
        }
        upkeep.spawn(running, std::future::pending());
        upkeep.spawn(panicking.clone(), async { panic!("wanted") });
        tokio::time::sleep(Duration::from_millis(50)).await;
        upkeep.look();
        assert!(upkeep.due.get(&panicking).unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_not_looked_up_beside_a_look_up_that_does_not_end() {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let (noted, mut results) = tokio::sync::mpsc::unbounded_channel();
        let look_up = async { answered.await.map_err(io::Error::other) };
        let task = tokio::spawn(resolve(look_up, move |found| noted.send(found).unwrap()));
        let timed_out = results.recv().await.unwrap();
        assert_eq!(timed_out.unwrap_err().kind(), io::ErrorKind::TimedOut);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!task.is_finished());
        answer.send(()).unwrap();
        task.await.unwrap();
    }

    #[tokio::test]
    async fn a_look_up_that_began_before_a_reload_is_of_use_after_it() {
        const NAME: &str = "localhost:9000";
        let named = |settings| {
            let mut named = config(settings);
            named.upstreams[0].1.servers[1].name = NAME.into();
            named
        };
        let directory = tempfile::tempdir().unwrap();
        let gate = gate(named(""), &directory).await;
        let mut upkeep = Upkeep::new(gate.clone());
        let before = gate.snapshot().upstream("u").unwrap().clone();
        gate.replace(Snapshot::new(named(", retries: 0"), Some(&gate.snapshot())));
        let chore = Chore::Resolve("u".into(), NAME.into(), before.config.resolve);
        upkeep.begin(chore, before);
        upkeep.doing.join_next().await;
        let present = gate.snapshot().upstream("u").unwrap().places();
        assert_eq!(present[1].server.address.port(), 9000);
    }

    #[tokio::test]
    async fn a_check_applies_to_all_servers_of_its_address_and_one_series_shows_them() {
        let directory = tempfile::tempdir().unwrap();
        let mut checked = config(", health: {path: /h, unhealthy_after: 1}");
        let servers = &mut checked.upstreams[0].1.servers;
        let shared = servers[0].addresses.clone();
        servers[1].name = "data.internal:9000".into();
        servers[1].addresses = shared;
        let gate = gate(checked, &directory).await;
        let upstream = gate.snapshot().upstream("u").unwrap().clone();
        let places = upstream.places();
        upstream.note_checked(&places[0].server, Err("late".into()), &gate.metrics);
        assert!(places.iter().all(|place| !place.server.is_up()));
        upstream.note_checked(&places[0].server, Ok(()), &gate.metrics);
        upstream.note_checked(&places[0].server, Ok(()), &gate.metrics);
        assert!(places.iter().all(|place| place.server.is_up()));
        assert_eq!(
            gate.metrics
                .upstream_checks
                .with_label_values(&["u", "passed"])
                .get(),
            2
        );
        let _under_way = [(); 2].map(|()| upstream.assign(7, &[], &[]));
        Upkeep::new(gate.clone()).show(gate.snapshot().upstreams());
        let in_flight = &gate.metrics.upstream_in_flight;
        assert_eq!(
            in_flight.with_label_values(&["u", "127.0.0.1:9000"]).get(),
            2
        );
    }

    #[tokio::test]
    async fn a_check_that_fails_after_checks_were_switched_off_takes_no_server_out() {
        let directory = tempfile::tempdir().unwrap();
        let checked = config(", health: {path: /h, unhealthy_after: 1}");
        let gate = gate(checked, &directory).await;
        let mut upkeep = Upkeep::new(gate.clone());
        let before = gate.snapshot().upstream("u").unwrap().clone();
        gate.replace(Snapshot::new(config(""), Some(&gate.snapshot())));
        // Of a check that had begun before.
        let server = before.places()[0].server.clone();
        before.note_checked(&server, Err("late".into()), &gate.metrics);
        assert!(!server.is_up());
        upkeep.look();
        assert!(server.is_up());
    }
}

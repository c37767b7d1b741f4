//! Carries a schedule out on a stage while a swarm calls, notes what each fault may cost, waits until everything is
//! settled, and has the oracle judge.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::oracle::{Cost, Effect, Facts, Figures, KeyFacts, Kill, Seen};
use super::schedule::{Fault, GATEWAYS, Schedule, Topology};
use super::stage::{Clocks, Servers, Stage, is_failed};
use super::swarm::{Calls, Swarm, id_of};
use crate::tcp_proxy::Wire;

mod failover;

/// The settings of the gateways.
const COLD_PERCENT: u64 = 2;
/// How long a gateway may wait for its journal.
const JOURNAL_WAIT: Duration = Duration::from_millis(250);
/// How long the store may take until it counts all served units: calls that were lost may run five seconds later.
const SETTLE_PATIENCE: Duration = Duration::from_secs(40);
const SETTLE_PAUSE: Duration = Duration::from_millis(200);
/// The longest that a swarm calls until the scarce keys are used up.
const CALLS_PATIENCE: Duration = Duration::from_secs(60);

/// How hard a swarm calls during a schedule.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Clients of each gateway.
    pub clients: usize,
    /// Between two calls of a client.
    pub pause: Duration,
    /// Calls made, at least, before the schedule ends.
    pub calls: u64,
}

/// The result of a schedule.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The figures of the oracle.
    pub figures: Figures,
    /// Keys that were used up.
    pub used_up: usize,
    /// Those of them that had units left when the first fault began.
    pub used_up_later: usize,
    /// The longest that the gateways took to be whole again after a fault had ended.
    pub longest_recovery: Duration,
}

/// Plays the schedule; returns every broken rule in words, if there is any.
pub async fn play(stage: &mut Stage, schedule: &Schedule, load: Load) -> Result<Report, String> {
    let mut keys = Vec::new();
    for tier in ["starter", "starter", "pro", "enterprise", "enterprise"] {
        keys.push(stage.issue(tier).await);
    }
    stage.upstream.take();
    stage.read_logs();
    let calls = Calls {
        keys: keys.iter().map(|key| key.key.clone()).collect(),
        target: "/api/v1/data/markets".into(),
        clients: load.clients,
        pause: load.pause,
        // The first is used up early, the second and third later.
        order: vec![0, 3, 1, 0, 2, 0, 4, 2],
    };
    let swarm = Swarm::start(&stage.addresses, &calls);
    let facts = Facts {
        keys: keys
            .iter()
            .map(|key| KeyFacts {
                id: key.id.clone(),
                limit: stage.spec.limit(&key.tier),
            })
            .collect(),
        gateways: GATEWAYS as u64,
        cold_percent: COLD_PERCENT,
        timeout: stage.spec.timeout,
        patience: stage.spec.timeout + JOURNAL_WAIT,
        ..Facts::default()
    };
    let mut director = Director {
        stage,
        facts,
        longest_recovery: Duration::ZERO,
        used_up_before: BTreeSet::new(),
    };
    for (number, (pause, fault)) in schedule.steps.iter().enumerate() {
        sleep(*pause).await;
        if number == 0 {
            director.facts.counts = director.own_counts().await;
            director.used_up_before = director.facts.used_up();
        }
        director.carry_out(fault).await;
    }
    let end = Instant::now() + CALLS_PATIENCE;
    while (swarm.made() < load.calls || !director.has_used_up().await) && Instant::now() < end {
        sleep(SETTLE_PAUSE).await;
    }
    let seen = swarm.stop().await;
    director.judge(seen).await
}

struct Director<'s> {
    stage: &'s mut Stage,
    facts: Facts,
    longest_recovery: Duration,
    /// The keys that were used up, by day, when the first fault began.
    used_up_before: BTreeSet<(usize, String)>,
}

impl Director<'_> {
    async fn carry_out(&mut self, fault: &Fault) {
        let from = Instant::now();
        match fault {
            Fault::RedisKilled { down } => {
                self.stage.single().kill9();
                self.lost_if_forgetful();
                sleep(*down).await;
                self.stage.single().restart().await;
                self.away(all(), from).await;
            }
            Fault::RedisHangs { time } => {
                self.stage.single().stop();
                sleep(*time).await;
                self.stage.single().resume();
                self.away(all(), from).await;
            }
            Fault::Flushed => {
                self.command(&["FLUSHALL"]).await;
                self.lost(None);
            }
            Fault::ScriptsForgotten => self.command(&["SCRIPT", "FLUSH"]).await,
            Fault::ReadOnly { time } => {
                self.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
                sleep(*time).await;
                self.command(&["REPLICAOF", "NO", "ONE"]).await;
                self.away(all(), from).await;
            }
            Fault::OutOfMemory { time } => {
                self.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
                sleep(*time).await;
                self.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
                self.away(all(), from).await;
            }
            Fault::Wires {
                gateways,
                wire,
                time,
            } => self.wires(gateways, *wire, *time).await,
            Fault::GatewayKilled { gateway } => {
                self.kill(*gateway, from);
                self.restart(*gateway).await;
                self.whole().await;
            }
            Fault::GatewaysKilled { seed, times, every } => {
                let mut random = fastrand::Rng::with_seed(*seed);
                let mut ticks = tokio::time::interval(*every);
                for _ in 0..*times {
                    ticks.tick().await;
                    let gateway = random.usize(..GATEWAYS);
                    self.kill(gateway, Instant::now());
                    self.restart(gateway).await;
                }
                self.whole().await;
            }
            Fault::GatewayKilledInOutage { gateway, time } => {
                self.stage.single().kill9();
                self.lost_if_forgetful();
                sleep(*time).await;
                self.kill(*gateway, from);
                self.effect(Cost::ColdStart);
                self.forget_if_forgetful();
                self.restart(*gateway).await;
                sleep(*time).await;
                self.stage.single().restart().await;
                self.away(all(), from).await;
            }
            Fault::FlushedWithoutAGateway { gateway } => {
                self.kill(*gateway, from);
                self.command(&["FLUSHALL"]).await;
                self.lost(None);
                self.forget();
                self.restart(*gateway).await;
                self.whole().await;
            }
            Fault::DiskFull { gateway, time } => self.disk_full(*gateway, *time).await,
            Fault::ClockOff { minutes } => {
                let clock = self.clock(Clocks::Apart);
                clock.set_offset(f64::from(*minutes) * 60.0);
                sleep(Duration::from_secs(1)).await;
                clock.set_offset(0.0);
            }
            Fault::DayEndsInOutage => self.day_ends_in_outage().await,
            Fault::Failover(loss) => self.fail_over(*loss).await,
            Fault::SlotsMove => self.move_slots().await,
        }
    }

    async fn wires(&mut self, gateways: &[usize], wire: Wire, time: Duration) {
        let from = Instant::now();
        for gateway in gateways {
            self.stage.proxies[*gateway].set(wire);
        }
        sleep(time).await;
        for gateway in gateways {
            self.stage.proxies[*gateway].set(Wire::Passes);
        }
        let gateways = gateways.to_vec();
        match wire {
            Wire::BlackHole | Wire::HalfOpen | Wire::DropsReplies | Wire::Refuses => {
                self.away(gateways, from).await;
            }
            // Well within the timeout, there and back: nothing is lost.
            Wire::Delays(time) if 8 * time < self.stage.spec.timeout => self.whole().await,
            Wire::Delays(_) | Wire::CutsAfter(_) => {
                self.whole().await;
                let until = Instant::now();
                self.effect(Cost::Flapping {
                    gateways,
                    from,
                    until,
                });
            }
            Wire::Passes => {}
        }
    }

    async fn disk_full(&mut self, gateway: usize, time: Duration) {
        let from = Instant::now();
        self.facts.unlogged.insert(gateway);
        self.stage.gateways[gateway].process().fill_disk();
        self.stage.single().kill9();
        self.lost_if_forgetful();
        sleep(time).await;
        self.stage.single().restart().await;
        self.stage.gateways[gateway].process().free_disk();
        self.away(all(), from).await;
    }

    async fn day_ends_in_outage(&mut self) {
        let clock = self.clock(Clocks::Shared);
        clock.set_before_midnight(Duration::from_secs(2));
        sleep(Duration::from_secs(1)).await;
        let from = Instant::now();
        self.stage.single().kill9();
        self.lost_if_forgetful();
        sleep(Duration::from_secs(2)).await;
        self.stage.single().restart().await;
        self.away(all(), from).await;
    }

    fn clock(&self, clocks: Clocks) -> crate::Faketime {
        assert_eq!(self.stage.spec.clocks, clocks, "the stage has other clocks");
        self.stage.clock.clone().expect("a clock of the stage")
    }

    async fn command(&mut self, words: &[&str]) {
        let reply = self.stage.single().command(words).await;
        let reply = reply.unwrap_or_else(|error| panic!("{words:?}: {error}"));
        assert!(reply.starts_with("+OK"), "{words:?}: {reply}");
    }

    fn kill(&mut self, gateway: usize, owing_since: Instant) {
        let from = Instant::now();
        self.stage.gateways[gateway].kill9();
        self.facts.kills.push(Kill {
            gateway,
            from,
            at: Instant::now(),
            back: Instant::now(),
            owing_since,
            forgets: false,
        });
    }

    async fn restart(&mut self, gateway: usize) {
        self.stage.restart_gateway(gateway).await;
        if let Some(kill) = self.facts.kills.last_mut() {
            kill.back = Instant::now();
        }
    }

    fn forget(&mut self) {
        if let Some(kill) = self.facts.kills.last_mut() {
            kill.forgets = true;
        }
    }

    fn forget_if_forgetful(&mut self) {
        if self.stage.spec.topology == Topology::Forgetful {
            self.forget();
        }
    }

    fn effect(&mut self, cost: Cost) {
        self.facts.effects.push(Effect { keys: None, cost });
    }

    /// Counts from then on may be lost, but not those of gateways that were killed before: their successors
    /// have read them.
    fn lost(&mut self, from: Option<Instant>) {
        let until = Instant::now();
        self.effect(Cost::Lost { from, until });
    }

    fn lost_if_forgetful(&mut self) {
        if self.stage.spec.topology == Topology::Forgetful {
            self.lost(None);
        }
    }

    /// These gateways were without the store until now.
    async fn away(&mut self, gateways: Vec<usize>, from: Instant) {
        self.whole().await;
        let until = Instant::now();
        self.effect(Cost::Away {
            gateways,
            from,
            until,
        });
    }

    async fn whole(&mut self) {
        self.longest_recovery = self.longest_recovery.max(self.stage.whole().await);
    }

    /// Waits until the store counts all served units, then judges everything.
    async fn judge(mut self, seen: Vec<Seen>) -> Result<Report, String> {
        self.facts.seen = seen;
        for request in self.stage.upstream.take() {
            if let Some(id) = id_of(&request.id) {
                *self.facts.forwarded.entry(id).or_default() += 1;
            }
        }
        let ids = self.facts.seen.iter().map(|seen| seen.id);
        self.facts.failed = ids.filter(|id| is_failed(*id)).collect();
        self.whole().await;
        let end = Instant::now() + SETTLE_PATIENCE;
        loop {
            self.facts.counts = self.own_counts().await;
            if self.facts.is_settled() || Instant::now() >= end {
                break;
            }
            sleep(SETTLE_PAUSE).await;
        }
        self.facts.logged = self.all_logs().await;
        let verdict = self.facts.judge();
        if !verdict.violations.is_empty() {
            return Err(verdict.violations.join("\n  "));
        }
        Ok(Report {
            used_up: self.facts.used_up().len(),
            used_up_later: self.used_up_later(),
            figures: verdict.figures,
            longest_recovery: self.longest_recovery,
        })
    }

    /// Whether the store counts a key as used up that had units left when the first fault began.
    async fn has_used_up(&mut self) -> bool {
        self.facts.counts = self.own_counts().await;
        self.used_up_later() > 0
    }

    fn used_up_later(&self) -> usize {
        self.facts
            .used_up()
            .difference(&self.used_up_before)
            .count()
    }

    async fn own_counts(&self) -> BTreeMap<(usize, String), u64> {
        let all = self.stage.counts().await;
        let place = |id: &String| self.facts.keys.iter().position(|key| key.id == *id);
        let own = all
            .into_iter()
            .filter_map(|((id, date), count)| Some(((place(&id)?, date), count)));
        own.collect()
    }

    /// The access logs, which are written behind the answers.
    async fn all_logs(&mut self) -> Vec<super::oracle::Logged> {
        let mut logged = self.stage.read_logs();
        let end = Instant::now() + Duration::from_secs(5);
        while logged.len() < self.facts.seen.len() && Instant::now() < end {
            // If a gateway was killed, some lines are never written.
            if !self.facts.kills.is_empty() || !self.facts.unlogged.is_empty() {
                sleep(Duration::from_secs(1)).await;
                logged.extend(self.stage.read_logs());
                break;
            }
            sleep(SETTLE_PAUSE).await;
            logged.extend(self.stage.read_logs());
        }
        logged
    }
}

fn all() -> Vec<usize> {
    (0..GATEWAYS).collect()
}

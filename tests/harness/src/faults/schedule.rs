//! Faults, and their order by a seed.

use std::time::Duration;

use fastrand::Rng;

use crate::tcp_proxy::Wire;

/// Gateways of a stage.
pub const GATEWAYS: usize = 3;

/// The kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// One server that keeps nothing when it is killed, behind a proxy for each gateway.
    Forgetful,
    /// One server that loses nothing when it is killed (append-only file, forced to disk), behind the same.
    Durable,
    /// A master, its replica and three sentinels.
    Sentinel,
    /// Three masters and a replica of the first.
    Cluster,
}

impl Topology {
    /// All of them.
    pub const ALL: [Topology; 4] = [
        Topology::Forgetful,
        Topology::Durable,
        Topology::Sentinel,
        Topology::Cluster,
    ];
}

/// How a master fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// SIGSTOP, until another is master; then it continues.
    Hangs,
    /// The same, after it continued for a while without its replica receiving anything.
    HangsAlone,
    /// Sentinels are ordered to make another one master, although it works.
    ByHand,
}

/// One fault, from its beginning to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL and restart of Redis.
    RedisKilled {
        /// Between them.
        down: Duration,
    },
    /// SIGSTOP and SIGCONT of Redis.
    RedisHangs {
        /// Between them.
        time: Duration,
    },
    /// FLUSHALL.
    Flushed,
    /// SCRIPT FLUSH.
    ScriptsForgotten,
    /// Redis is a replica of a server that does not answer, and takes no writes.
    ReadOnly {
        /// For so long.
        time: Duration,
    },
    /// Redis has no memory for writes.
    OutOfMemory {
        /// For so long.
        time: Duration,
    },
    /// The wire between these gateways and Redis has this fault.
    Wires {
        /// Their places.
        gateways: Vec<usize>,
        /// The fault of the wire.
        wire: Wire,
        /// For so long.
        time: Duration,
    },
    /// SIGKILL and restart of a gateway.
    GatewayKilled {
        /// Its place.
        gateway: usize,
    },
    /// SIGKILL and restart of random gateways, one after another.
    GatewaysKilled {
        /// The seed that selects the gateways.
        seed: u64,
        /// How many.
        times: u64,
        /// The time from one kill to the next, unless a restart takes longer.
        every: Duration,
    },
    /// Redis is killed, a gateway is killed and restarted without it, and Redis comes back.
    GatewayKilledInOutage {
        /// The gateway's place.
        gateway: usize,
        /// How long Redis is unavailable before and after.
        time: Duration,
    },
    /// A gateway is killed, Redis emptied, and the gateway restarted.
    FlushedWithoutAGateway {
        /// The gateway's place.
        gateway: usize,
    },
    /// Redis is killed, and a gateway cannot write its journal.
    DiskFull {
        /// The gateway's place.
        gateway: usize,
        /// For so long.
        time: Duration,
    },
    /// The first gateway's clock is wrong by this number of minutes, for a second.
    ClockOff {
        /// Minutes ahead, or behind if negative.
        minutes: i32,
    },
    /// Redis is killed before midnight and comes back after it. Needs a stage with one clock.
    DayEndsInOutage,
    /// A master fails, and another takes its place.
    Failover(Loss),
    /// The slots of all keys move to other masters.
    SlotsMove,
}

/// Faults in their order.
#[derive(Debug, Clone)]
pub struct Schedule {
    /// The store that they affect.
    pub topology: Topology,
    /// One after another, each with a pause before it.
    pub steps: Vec<(Duration, Fault)>,
}

impl Schedule {
    /// One fault.
    pub fn of(topology: Topology, fault: Fault) -> Schedule {
        Schedule::of_all(topology, [fault])
    }

    /// Faults with half a second before each.
    pub fn of_all(topology: Topology, faults: impl IntoIterator<Item = Fault>) -> Schedule {
        let pause = Duration::from_millis(500);
        Schedule {
            topology,
            steps: faults.into_iter().map(|fault| (pause, fault)).collect(),
        }
    }

    /// `faults` of them by a seed.
    pub fn seeded(topology: Topology, seed: u64, faults: usize) -> Schedule {
        let mut random = Rng::with_seed(seed);
        let steps = (0..faults)
            .map(|_| {
                let pause = milliseconds(&mut random, 100, 900);
                (pause, draw(topology, &mut random))
            })
            .collect();
        Schedule { topology, steps }
    }
}

impl std::fmt::Display for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.topology)?;
        for (pause, fault) in &self.steps {
            write!(f, "\n    {pause:?} later: {fault:?}")?;
        }
        Ok(())
    }
}

fn milliseconds(random: &mut Rng, least: u64, most: u64) -> Duration {
    Duration::from_millis(random.u64(least..=most))
}

fn draw(topology: Topology, random: &mut Rng) -> Fault {
    match topology {
        Topology::Forgetful | Topology::Durable => draw_single(random),
        Topology::Sentinel => draw_sentinel(random),
        Topology::Cluster => draw_cluster(random),
    }
}

fn draw_single(random: &mut Rng) -> Fault {
    let time = milliseconds(random, 300, 1_800);
    let gateway = random.usize(..GATEWAYS);
    match random.u32(..16) {
        0 | 1 => Fault::RedisKilled { down: time },
        2 | 3 => Fault::RedisHangs { time },
        4 => Fault::Flushed,
        5 => Fault::ScriptsForgotten,
        6 => Fault::ReadOnly { time },
        7 => Fault::OutOfMemory { time },
        8..=11 => Fault::Wires {
            gateways: draw_gateways(random),
            wire: draw_wire(random),
            time,
        },
        12 => Fault::GatewayKilled { gateway },
        13 => Fault::GatewayKilledInOutage { gateway, time },
        14 => Fault::FlushedWithoutAGateway { gateway },
        _ => Fault::DiskFull { gateway, time },
    }
}

fn draw_sentinel(random: &mut Rng) -> Fault {
    match random.u32(..4) {
        0 => Fault::Failover(Loss::Hangs),
        1 => Fault::Failover(Loss::HangsAlone),
        2 => Fault::Failover(Loss::ByHand),
        _ => Fault::GatewayKilled {
            gateway: random.usize(..GATEWAYS),
        },
    }
}

fn draw_cluster(random: &mut Rng) -> Fault {
    match random.u32(..3) {
        0 => Fault::Failover(Loss::Hangs),
        1 => Fault::SlotsMove,
        _ => Fault::GatewayKilled {
            gateway: random.usize(..GATEWAYS),
        },
    }
}

/// One of them, or all.
fn draw_gateways(random: &mut Rng) -> Vec<usize> {
    match random.usize(..GATEWAYS + 1) {
        GATEWAYS => (0..GATEWAYS).collect(),
        one => vec![one],
    }
}

fn draw_wire(random: &mut Rng) -> Wire {
    match random.u32(..7) {
        0 => Wire::Delays(milliseconds(random, 5, 60)),
        1 => Wire::Delays(milliseconds(random, 150, 900)),
        2 => Wire::BlackHole,
        3 => Wire::HalfOpen,
        4 => Wire::CutsAfter(random.usize(1..4_000)),
        5 => Wire::DropsReplies,
        _ => Wire::Refuses,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_schedule_again_and_another_seed_another() {
        let text = |seed| Schedule::seeded(Topology::Durable, seed, 6).to_string();
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
    }

    #[test]
    fn seeds_draw_every_fault_of_one_server() {
        let drawn: std::collections::BTreeSet<String> = (0..200)
            .flat_map(|seed| Schedule::seeded(Topology::Durable, seed, 4).steps)
            .map(|(_, fault)| {
                format!("{fault:?}")
                    .split(' ')
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            })
            .collect();
        assert_eq!(drawn.len(), 11, "{drawn:?}");
    }
}

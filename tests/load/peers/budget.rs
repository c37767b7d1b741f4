//! The instruction budget: `make instructions`. Counts the instructions of six requests and compares them with
//! `tests/load/instructions.txt`: a count more than [`TOLERANCE`] above the budget fails, one as far below is reported. `KEEP=yes`
//! writes the counts into that file.
//!
//! A count must repeat on a busy machine, so everything that depends on time is excluded:
//!
//! - One connection sends one request after the other, with one key: requests never overlap, so that each charge is a group of its own,
//!   and the background writes the data of one key.
//! - Windows with [`MANY`] and with [`FEW`] requests take turns. Both have requests in the same [`SLOTS`], so that the background writes
//!   as often in one as in the other and cancels in the difference. What requests leave to it is done before their window ends.
//! - [`PAIRS`] of them are summed, because a commit of the embedded store costs more the longer its log is.
//!
//! The cost of concurrent requests, or of the background alone, does not show here: `make profile` and `make bench` measure it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use harness::{Call, Client, eventually};

use super::callgrind::Counted;
use super::calls::Calls;
use super::closed::Connections;
use super::contender::made_up_keys;
use super::kind::{Kind, PATH};
use super::machine::{FIRST_CORE, SECOND_CORE, TOUCHLINE, loopback};
use super::stage::Stage;
use super::start::{Settled, answers};

/// The part of the budget by which a count may differ, on either side.
const TOLERANCE: f64 = 0.05;
const KINDS: [Kind; 6] = [
    Kind::Embedded,
    Kind::Redis,
    Kind::RedisTls2,
    Kind::Unknown,
    Kind::Forbidden,
    Kind::Exhausted,
];
/// Requests before anything is counted.
const WARMING: usize = 100;
/// The length of a window, of which the slots take three quarters: a multiple of the second in which the background writes what requests
/// changed.
const WINDOW: Duration = Duration::from_secs(4);
/// The same on the embedded store, which moves charges into the ledger every five seconds.
const WINDOW_EMBEDDED: Duration = Duration::from_secs(10);
const PAIRS: u32 = 4;
/// The slots of a window, which begin at regular intervals with requests one after the other.
const SLOTS: u32 = 20;
/// Requests of a window with many: a busy machine manages those of a slot before the next begins.
const MANY: u32 = 15 * SLOTS;
/// Requests of a window with few.
const FEW: u32 = SLOTS;
const FILE: &str = "tests/load/instructions.txt";
const HEADING: &str = "\
# Instructions a request, counted by `make instructions` (tests/load/peers/budget.rs) on a release build. A count that is more than 5 %
# above its line fails. `KEEP=yes make instructions` writes this file; commit it with the change that brings the new counts.
";

/// Counts all requests, and ends the process with 1 if one is beyond its budget.
pub async fn hold() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    let keep = std::env::var("KEEP").is_ok_and(|keep| keep == "yes");
    let budget = if keep { BTreeMap::new() } else { read(&file) };
    let stage = Stage::set().await;
    let (mut written, mut is_beyond) = (HEADING.to_owned(), false);
    for kind in KINDS {
        let counted = count(&stage, kind).await;
        let name = name(kind);
        let _ = writeln!(written, "{name}: {counted:.0}");
        let Some(budget) = budget.get(name) else {
            println!("{name}: {counted:.0} instructions a request");
            assert!(
                keep,
                "{FILE} has no budget for {name}: KEEP=yes make instructions"
            );
            continue;
        };
        let verdict = Verdict::of(counted, *budget);
        println!("{}", verdict.stated(name, counted, *budget));
        is_beyond |= verdict == Verdict::Beyond;
    }
    if keep {
        std::fs::write(&file, written).unwrap();
        println!("written to {FILE}: commit it with the change that brings it");
    }
    if is_beyond {
        // Ends what it started, which an exit would leave running.
        drop(stage);
        std::process::exit(1);
    }
}

/// A request's name in the file.
fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Embedded => "200, embedded store",
        Kind::Redis => "200, Redis",
        Kind::RedisTls2 => "200, Redis, TLS HTTP/2",
        Kind::Unknown => "401, unknown key, Redis",
        Kind::Forbidden => "403, tier too low, Redis",
        Kind::Exhausted => "429, day used up, Redis",
        _ => unreachable!("{kind:?} has no budget"),
    }
}

/// A line is `name: instructions`, or a comment.
fn read(file: &Path) -> BTreeMap<String, f64> {
    let text = std::fs::read_to_string(file)
        .unwrap_or_else(|error| panic!("{FILE}: {error}: KEEP=yes make instructions writes it"));
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let entry = |line: &str| {
        let (name, count) = line.rsplit_once(": ")?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    lines
        .map(|line| entry(line).unwrap_or_else(|| panic!("{FILE}: {line}: no `name: count`")))
        .collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Within,
    Beyond,
    Below,
}

impl Verdict {
    fn of(counted: f64, budget: f64) -> Verdict {
        let ratio = counted / budget;
        if ratio > 1.0 + TOLERANCE {
            Verdict::Beyond
        } else if ratio < 1.0 - TOLERANCE {
            Verdict::Below
        } else {
            Verdict::Within
        }
    }

    fn stated(self, name: &str, counted: f64, budget: f64) -> String {
        let change = (counted / budget - 1.0) * 100.0;
        let found = format!(
            "{name}: {counted:.0} instructions a request, budget {budget:.0}, {change:+.1} %"
        );
        match self {
            Verdict::Within => found,
            Verdict::Beyond => format!(
                "{found}. FAILED: more than 5 % beyond its budget. tests/load/profile.md shows how to find the cause. Where the \
                 change is worth it, accept it: KEEP=yes make instructions, and commit {FILE} with the reason"
            ),
            Verdict::Below => format!(
                "{found}. Lower the budget, so that it stays so: KEEP=yes make instructions, and commit {FILE}"
            ),
        }
    }
}

/// The instructions of a request of this kind.
async fn count(stage: &Stage, kind: Kind) -> f64 {
    eprintln!("counting: {}", name(kind));
    let directory = stage.directory(&format!("budget-{kind:?}"));
    let (settled, calls) = settle(stage, kind, &directory).await;
    let config = settled.config.display().to_string();
    let command = [TOUCHLINE, "serve", "--config", &config].map(str::to_owned);
    let first = match kind {
        // The day's only call.
        Kind::Exhausted => calls_of(&settled, 200, PATH),
        _ => calls.clone(),
    };
    let cores = format!("{FIRST_CORE},{SECOND_CORE}");
    let mut gateway = Counted::start(&cores, &[], &command, &first, &directory).await;
    eventually("it answers as it is to", async || {
        answers(&calls).then_some(())
    })
    .await;
    let mut connection = OneConnection::open(kind, &settled, calls).await;
    connection.in_turn(WARMING).await;
    gateway.count("on");
    let length = match kind {
        Kind::Embedded => WINDOW_EMBEDDED,
        _ => WINDOW,
    };
    // Not counted: callgrind translates code again when counting has begun.
    window(&mut gateway, &mut connection, MANY, length).await;
    let mut difference = 0.0;
    for _ in 0..PAIRS {
        difference += window(&mut gateway, &mut connection, MANY, length).await;
        difference -= window(&mut gateway, &mut connection, FEW, length).await;
    }
    difference / f64::from(PAIRS * (MANY - FEW))
}

/// The connection of all requests.
enum OneConnection {
    Clear(Connections),
    /// Over HTTP/2, with the request and the status of each answer.
    Http2(Box<Client>, Call, u16),
}

impl OneConnection {
    async fn open(kind: Kind, settled: &Settled, calls: Arc<Calls>) -> OneConnection {
        let protocol = kind.protocol();
        if !protocol.is_http2() {
            return OneConnection::Clear(Connections::open(&[calls], 1).await);
        }
        let client = Client::new(protocol, loopback(settled.tls_port), Arc::default());
        let call = Call::get(kind.path()).key(&settled.keys[0]);
        OneConnection::Http2(Box::new(client), call, kind.status())
    }

    /// Sends this number of requests one after the other.
    async fn in_turn(&mut self, requests: usize) {
        match self {
            OneConnection::Clear(connection) => connection.in_turn(requests).await,
            OneConnection::Http2(client, call, status) => {
                for _ in 0..requests {
                    let answer = client.call(call.clone()).await;
                    assert_eq!(answer.status, *status, "{answer:?}");
                }
            }
        }
    }
}

/// The instructions of a window of this length with these requests.
async fn window(
    gateway: &mut Counted,
    connection: &mut OneConnection,
    requests: u32,
    length: Duration,
) -> f64 {
    gateway.zero();
    let begin = tokio::time::Instant::now();
    for slot in 0..SLOTS {
        tokio::time::sleep_until(begin + length * 3 * slot / (4 * SLOTS)).await;
        connection.in_turn((requests / SLOTS) as usize).await;
    }
    tokio::time::sleep_until(begin + length).await;
    gateway.dump().await.sum(&["Ir"])
}

/// A gateway with one key that gets the answer of this kind.
async fn settle(stage: &Stage, kind: Kind, directory: &Path) -> (Settled, Arc<Calls>) {
    let store_name = format!("budget-{kind:?}");
    let store = match kind {
        Kind::Embedded => stage.embedded_store(&store_name),
        _ => stage.redis_store(&store_name),
    };
    let mut spec = stage.spec(store);
    if kind == Kind::Exhausted {
        for tier in &mut spec.tiers {
            tier.daily = 1;
        }
    }
    if kind == Kind::Forbidden {
        let closed = spec
            .endpoints
            .iter_mut()
            .find(|one| one.path == kind.path());
        closed.unwrap().tiers = vec!["pro".into()];
    }
    let mut settled = Settled::new(&spec, directory, "budget", 1).await;
    if kind == Kind::Unknown {
        settled.keys = made_up_keys();
        settled.keys.truncate(1);
    }
    let calls = calls_of(&settled, kind.status(), kind.path());
    (settled, calls)
}

fn calls_of(settled: &Settled, status: u16, path: &str) -> Arc<Calls> {
    let address = loopback(settled.port);
    let paths = [path.to_owned()];
    Arc::new(Calls::new(address, status, &settled.keys, &paths))
}

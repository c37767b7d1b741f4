//! Real midnights, many of them: a calendar of 2-second days on real stores.
//!
//! The whole request path runs, from the head of a request to the permit, without sockets: two gates on one store ask for
//! permits without pause while days go by.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::RedisServer;
use jiff::Timestamp;
use jiff::civil::Date;
use touchline::clock::Clock;
use touchline::config::Config;
use touchline::policy::api_key::{ApiKey, KeyPrefix, os_entropy};
use touchline::policy::calendar::Calendar;
use touchline::policy::http1::HeadBounds;
use touchline::policy::http1::request::RequestReader;
use touchline::policy::key_record::{Action, KeyRecord, LastChange};
use touchline::policy::rate_limit::DAILY_POLICY;
use touchline::proxy::admission::{AdmissionTrace, Admitted, admit};
use touchline::proxy::{Gate, Snapshot};
use touchline::server::open_store;
use touchline::store::{NodeName, Role, Store};
use touchline::telemetry::access_log::AccessLog;
use touchline::telemetry::metrics::Metrics;

const DAY_SECONDS: i64 = 2;
const DAILY: u64 = 40;
const DAYS: usize = 4;

fn configuration(store: &str, calendar: &Calendar) -> Config {
    let text = format!(
        "store: {store}
tiers: {{ starter: {{ daily: {DAILY} }} }}
endpoints: [ {{ path: /a, tiers: [starter], upstream: u }} ]
upstreams: {{ u: {{ servers: [127.0.0.1:1] }} }}
"
    );
    let mut config = Config::parse("gateway.yaml", &text, &|_| None).unwrap();
    config.calendar = calendar.clone();
    config
}

async fn gate(store: &str, calendar: &Calendar, name: &str) -> Arc<Gate> {
    let config = configuration(store, calendar);
    let role = Role::Gateway(NodeName(name.into()));
    let opened = open_store(&config, role, Clock::system()).await.unwrap();
    let log = AccessLog::new(None);
    let (spans, _) = tokio::sync::mpsc::channel(1);
    Arc::new(Gate::new(
        Snapshot::new(config, None),
        opened,
        Arc::new(Metrics::new().unwrap()),
        log,
        spans,
    ))
}

async fn issue(store: &Arc<dyn Store>) -> ApiKey {
    let key = ApiKey::generate(&KeyPrefix::default(), &mut os_entropy);
    let now = Timestamp::now();
    let issued = LastChange::first(Action::Issue, "tester@here");
    let record = KeyRecord::new(&key, "Acme", "starter".parse().unwrap(), now, issued);
    let (_, mark) = store.create_key(record).await.unwrap();
    assert_eq!(
        store
            .await_applied(&mark, Duration::from_secs(5))
            .await
            .unwrap(),
        []
    );
    key
}

/// What one client of a gate got: permits by day, and whether a day was ever seen to end early or late.
async fn call_without_pause(
    gate: Arc<Gate>,
    key: String,
    stop: Arc<AtomicBool>,
) -> BTreeMap<Date, u64> {
    let sent = format!("GET /a HTTP/1.1\r\nHost: h\r\nX-API-Key: {key}\r\n\r\n");
    let bounds = HeadBounds {
        target_bytes_max: 1024,
        header_bytes_max: 1024,
        header_count_max: 8,
    };
    let head = RequestReader::whole_head(&sent, &bounds).unwrap();
    let mut permits = BTreeMap::new();
    while !stop.load(Ordering::Relaxed) {
        let before = Timestamp::now();
        let snapshot = gate.snapshot();
        let (arrived, mut trace) = (gate.store.now(), AdmissionTrace::default());
        let admitted = admit(&gate, &snapshot, &head, arrived, &mut trace).await;
        let after = Timestamp::now();
        let quota_status = match admitted {
            Ok(Admitted::Document | Admitted::Usage(_)) => panic!("an endpoint is forwarded"),
            Ok(Admitted::Forward(permit)) => {
                let quota_status = permit.quota_status;
                *permits.entry(quota_status.day.date).or_default() += 1;
                quota_status
            }
            Err(refusal) => {
                assert!(
                    refusal.rejection.policy() == Some(DAILY_POLICY),
                    "{refusal:?}"
                );
                // What is known to be exhausted stays so for a moment; more of it would only heat the machine.
                tokio::time::sleep(Duration::from_millis(2)).await;
                refusal.quota_status.unwrap()
            }
        };
        assert_eq!(quota_status.limit, DAILY);
        assert_eq!(quota_status.day.length_seconds(), DAY_SECONDS);
        // The reset in the headers is the end of a day that the call touched.
        let day = quota_status.day;
        assert!(
            before.as_second() < day.end && after.as_second() >= day.start,
            "{before} {after} {day:?}"
        );
    }
    permits
}

/// Crosses so many midnights; the units served.
async fn days_cross_real_midnights(store: &str, days: usize) -> u64 {
    let calendar = Calendar::of_fixed_days(
        Timestamp::from_second(Timestamp::now().as_second()).unwrap(),
        DAY_SECONDS,
    );
    let gates = [
        gate(store, &calendar, "one").await,
        gate(store, &calendar, "two").await,
    ];
    harness::eventually("the stores come up", async || {
        let up = |gate: &Arc<Gate>| gate.store.health().keys.loaded;
        gates.iter().all(up).then_some(())
    })
    .await;
    let key = issue(&gates[0].store).await;
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let gate = gates[client % gates.len()].clone();
            tokio::spawn(call_without_pause(
                gate,
                key.reveal().to_owned(),
                stop.clone(),
            ))
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(DAY_SECONDS as u64 * days as u64)).await;
    stop.store(true, Ordering::Relaxed);
    let mut permits: BTreeMap<Date, u64> = BTreeMap::new();
    for client in clients {
        for (date, count) in client.await.unwrap() {
            *permits.entry(date).or_default() += count;
        }
    }
    assert!(permits.len() >= days, "{permits:?}");
    // Every day but the last one began anew and was used up to the unit, never beyond.
    let last = *permits.keys().next_back().unwrap();
    for (date, count) in &permits {
        assert!(*count <= DAILY, "{date} had {count}");
        assert!(*date == last || *count == DAILY, "{date} had only {count}");
    }
    let first = *permits.keys().next().unwrap();
    let store = &gates[0].store;
    let ids = store.ledger_keys(first, last).await.unwrap();
    let usage = store.usage_of(first, last, &ids).await.unwrap();
    let stored: BTreeMap<Date, u64> = usage.iter().map(|day| (day.date, day.used)).collect();
    assert_eq!(stored, permits);
    for gate in gates {
        gate.store.close(Duration::from_secs(2)).await;
    }
    permits.values().sum()
}

/// So many midnights on the embedded store; the units served.
pub async fn embedded(days: usize) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("touchline.db");
    let store = format!("{{ embedded: {{ path: {} }} }}", path.display());
    days_cross_real_midnights(&store, days).await
}

/// So many midnights on a Redis; the units served.
pub async fn on_redis(days: usize) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let redis = RedisServer::start(directory.path(), false, None).await;
    let store = format!(
        "{{ redis: {{ url: \"{}\", timeout: 10s, journal: {at}/journal.db, replica: {at}/keys.db }} }}",
        redis.url(),
        at = directory.path().display()
    );
    days_cross_real_midnights(&store, days).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_lands_on_its_own_day_over_real_midnights_on_the_embedded_store() {
    embedded(DAYS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_lands_on_its_own_day_over_real_midnights_on_redis() {
    on_redis(DAYS).await;
}

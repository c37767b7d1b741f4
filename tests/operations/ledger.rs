//! The ledger against what the clients and the upstream saw; the proof that fails; the invoice.

use std::collections::BTreeMap;
use std::time::Duration;

use harness::upstream::Script;
use harness::{Allowances, Behaviour, Call, IssuedKey, Protocol, Scene, Store, eventually};
use serde_json::Value;

use super::{MARKETS, RANKINGS, STORES, TOUCHLINE, run_beside};

const INSIGHTS: &str = "/api/v1/data/insights";
const FIXTURE: &str = "/api/v1/data/predictions/{fixture_id}";
/// Units a day of the starter tier.
const DAILY: u64 = 25;

async fn report(scene: &Scene, arguments: &[&str]) -> Value {
    let words = [&["usage", "--output", "json"], arguments].concat();
    serde_json::from_str(&scene.cli(&words).await).unwrap()
}

async fn verdict(scene: &Scene, gateway: usize) -> Value {
    let words = ["usage", "verify", "--output", "json"];
    let text = run_beside(&scene.gateways[gateway], &words).await.done();
    serde_json::from_str(&text).unwrap()
}

/// The statuses of calls, one after the other, by turns on the gateways.
async fn call_all(scene: &Scene, key: &IssuedKey, targets: &[(&str, &str, usize)]) -> Vec<u16> {
    let mut statuses = Vec::new();
    for (method, target, times) in targets {
        for turn in 0..*times {
            let client = scene.client_of(turn % scene.gateways.len(), Protocol::Http1);
            let call = Call::new(method, target).key(key);
            statuses.push(client.call(call).await.status);
        }
    }
    statuses
}

fn times(statuses: &[u16]) -> BTreeMap<u16, usize> {
    let mut times = BTreeMap::new();
    for status in statuses {
        *times.entry(*status).or_default() += 1;
    }
    times
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_of_mixed_traffic_and_a_rotation_reconciles_with_what_the_upstream_recorded() {
    for store in STORES {
        let mut scene = Scene::builder(TOUCHLINE)
            .store(store)
            .gateways(2)
            .daily("starter", DAILY)
            .start()
            .await;
        let (old, pro) = (scene.issue("starter").await, scene.issue("pro").await);
        // Every second of the pro key's calls for insights fails, and is given back.
        scene.upstream.behave(|request| {
            let target = request.target_text();
            let seed = request.id.bytes().map(u32::from).sum::<u32>();
            let status = if target.starts_with(INSIGHTS) && seed % 2 == 0 {
                503
            } else {
                200
            };
            Behaviour::Answer(Script::json(status, "{}"))
        });
        let mut statuses = call_all(
            &scene,
            &old,
            &[
                ("GET", MARKETS, 10),
                ("GET", "/api/v1/data/predictions/fx-1", 5),
                ("GET", RANKINGS, 3),
                ("GET", "/api/v1/data/nothing", 4),
                ("DELETE", MARKETS, 2),
            ],
        )
        .await;
        let new = scene.rotate(&old, &["--overlap", "24h"]).await;
        statuses.extend(call_all(&scene, &new, &[("GET", MARKETS, 10)]).await);
        statuses.extend(call_all(&scene, &old, &[("GET", MARKETS, 6)]).await);
        let expected = [(200, 25), (403, 3), (404, 4), (405, 2), (429, 6)];
        assert_eq!(times(&statuses), BTreeMap::from(expected));
        let insights = call_all(&scene, &pro, &[("GET", INSIGHTS, 30)]).await;
        let failed = insights.iter().filter(|status| **status == 500).count() as u64;
        assert!((1..30).contains(&failed), "{insights:?}");

        let proof = eventually("all is written", async || {
            let verdict = verdict(&scene, 0).await;
            let total = report(&scene, &[]).await["total"].clone();
            let refused = total["refused_quota"] == 6 && total["refused_method"] == 2;
            // A refund is stored within a second of its answer.
            let refunded = verdict["used"] == 25 + 30 - failed;
            (refused && refunded && verdict["unattributed"] == 0).then_some(verdict)
        })
        .await;
        assert_eq!(proof["key_days"], 2);
        assert_eq!(proof["attributed"], proof["used"]);
        assert_eq!(proof["faults"], Value::Array(Vec::new()));

        let by_endpoint = report(&scene, &["--by", "endpoint"]).await;
        let rows = by_endpoint["rows"].as_array().unwrap();
        let number = |endpoint: &str, name: &str| -> u64 {
            let row = rows.iter().find(|row| row["endpoint"] == endpoint);
            let row = row.unwrap_or_else(|| panic!("no {endpoint} in {by_endpoint}"));
            row[name].as_u64().unwrap()
        };
        let recorded = scene.upstream.recorded();
        for (endpoint, path) in [
            (MARKETS, MARKETS),
            (FIXTURE, "/api/v1/data/predictions/fx-1"),
            (INSIGHTS, INSIGHTS),
        ] {
            let reached = recorded.iter().filter(|one| one.target_text() == path);
            assert_eq!(number(endpoint, "requests"), reached.count() as u64);
        }
        assert_eq!(number(INSIGHTS, "refunded"), failed);
        assert_eq!(number(MARKETS, "refused_quota"), 6);
        assert_eq!(number(MARKETS, "refused_method"), 2);
        assert_eq!(number(RANKINGS, "refused_tier"), 3);
        assert_eq!(number("none", "refused_not_found"), 4);
        let by_tier = report(&scene, &["--by", "tier"]).await;
        let tiers = by_tier["rows"].as_array().unwrap().iter();
        let tiers: Vec<_> = tiers
            .map(|row| (row["tier"].as_str().unwrap(), row["used"].as_u64().unwrap()))
            .collect();
        assert_eq!(tiers, [("pro", 30 - failed), ("starter", 25)]);
        assert_eq!(by_tier["total"], by_endpoint["total"]);
        scene.assert_ledgers_agree().await;
    }
}

/// Adds five to what a key has used, behind the store's back.
async fn corrupt(scene: &Scene, key: &IssuedKey, date: &str) {
    match &scene.redis {
        Some(redis) => {
            let name = format!("touchline:q:{{{}}}:{date}", key.id);
            let add = "for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
                if field:sub(1, 1) == 't' then return redis.call('HINCRBY', KEYS[1], field, 5) end
            end";
            let reply = redis.command(&["EVAL", add, "1", &name]).await.unwrap();
            assert_eq!(reply, ":6\r\n");
        }
        None => {
            let file = rusqlite::Connection::open(scene.directory().join("touchline.db")).unwrap();
            let set = "UPDATE ledger SET refunded = charged + 5 WHERE key = ?1 AND date = ?2";
            file.busy_timeout(Duration::from_secs(5)).unwrap();
            eventually("the ledger has the charge", async || {
                let changed = file.execute(set, [key.id.as_str(), date]).unwrap();
                (changed == 1).then_some(())
            })
            .await;
        }
    }
}

#[tokio::test]
async fn verify_fails_with_the_key_and_the_day_that_were_changed_by_hand() {
    for store in STORES {
        let scene = Scene::builder(TOUCHLINE).store(store).start().await;
        let (sound, broken) = (scene.issue("pro").await, scene.issue("pro").await);
        let client = scene.client(Protocol::Http1);
        for key in [&sound, &broken] {
            assert_eq!(client.get(key, MARKETS).await.status, 200);
        }
        let proof = verdict(&scene, 0).await;
        assert_eq!((&proof["used"], &proof["key_days"]), (&2.into(), &2.into()));
        let date = proof["from"].as_str().unwrap().to_owned();
        corrupt(&scene, &broken, &date).await;
        let ran = run_beside(&scene.gateways[0], &["usage", "verify"]).await;
        assert_eq!(ran.code, Some(1), "{ran:?}");
        for reported in [&ran.stdout, &ran.stderr] {
            assert!(
                reported.contains(&broken.id) && reported.contains(&date),
                "{ran:?}"
            );
            assert!(!reported.contains(&sound.id), "{ran:?}");
        }
        let only = ["usage", "verify", "--key", &sound.id];
        run_beside(&scene.gateways[0], &only).await.done();
        let before = ["usage", "verify", "--to", "2020-01-31"];
        let nothing = run_beside(&scene.gateways[0], &before).await.done();
        assert!(nothing.contains("0 days of keys"), "{nothing}");
    }
}

#[tokio::test]
async fn a_months_invoice_lists_days_units_and_prices_by_customer_key_and_tier() {
    for store in STORES {
        let mut scene = Scene::builder(TOUCHLINE).store(store).start().await;
        let (moved, idle) = (
            scene.issue("starter").await,
            scene.issue("enterprise").await,
        );
        scene
            .cli(&[
                "keys", "grant", &moved.id, "--extra", "10", "--reason", "trial",
            ])
            .await;
        let client = scene.client(Protocol::Http1);
        assert_eq!(client.get(&moved, MARKETS).await.status, 200);
        scene.cli(&["keys", "set-tier", &moved.id, "pro"]).await;
        for _ in 0..2 {
            assert_eq!(client.get(&moved, INSIGHTS).await.status, 200);
        }
        let day = eventually("the ledger is written", async || {
            let day = report(&scene, &["--key", &moved.id]).await["days"][0].clone();
            (day["used"] == 3 && day["unattributed"] == 0).then_some(day)
        })
        .await;
        assert_eq!(
            (&day["limit"], &day["granted"]),
            (&3_010.into(), &10.into())
        );
        let month = &day["date"].as_str().unwrap()[..7];
        let asked = ["usage", "invoice", "--month", month];
        let json = [&asked[..], &["--output", "json"]].concat();
        let ran = run_beside(&scene.gateways[0], &json).await;
        assert!(ran.stderr.contains("is not closed yet"), "{ran:?}");
        let invoice: Value = serde_json::from_str(&ran.done()).unwrap();
        let lines = invoice["lines"].as_array().unwrap();
        let reported = |key: &IssuedKey, tier: &str| {
            let line = lines
                .iter()
                .find(|line| line["key"] == key.id.as_str() && line["tier"] == tier);
            let line = line.unwrap_or_else(|| panic!("no {tier} of {} in {invoice}", key.id));
            [
                "price_cents",
                "days",
                "requests",
                "charged",
                "billed_units",
                "amount_cents",
            ]
            .map(|name| line[name].as_u64().unwrap())
        };
        assert_eq!(lines.len(), 3, "{invoice}");
        // Both were issued today, and midnight may have passed since.
        let days = reported(&idle, "enterprise")[1];
        assert!((1..=2).contains(&days), "{invoice}");
        let first: jiff::civil::Date = format!("{month}-01").parse().unwrap();
        let month_days = first.days_in_month() as u64;
        let part = |price: u64| price * days / month_days;
        let (pro, enterprise) = (part(29_900), part(79_900));
        assert_eq!(reported(&moved, "starter"), [9_900, 0, 1, 1, 1, 0]);
        assert_eq!(reported(&moved, "pro"), [29_900, days, 2, 2, 2, pro]);
        let idle_line = [79_900, days, 0, 0, 0, enterprise];
        assert_eq!(reported(&idle, "enterprise"), idle_line);
        assert_eq!(invoice["amount_cents"], pro + enterprise);
        assert_eq!(
            (&invoice["currency"], &invoice["closed"]),
            (&"USD".into(), &false.into())
        );
        let csv = scene
            .cli(&[&asked[..], &["--output", "csv"]].concat())
            .await;
        assert_eq!(csv.lines().count(), 4);
        assert!(csv.contains(&format!(
            "{month},Acme,{},,pro,29900,{days},2,2,0,0,0,0,2,{pro},used,by_day,bill,\"by day held, unused keys billed\"",
            moved.id
        )));
        let table = scene.cli(&asked).await;
        let total = format!(
            "{}.{:02}",
            (pro + enterprise) / 100,
            (pro + enterprise) % 100
        );
        let is_total = |line: &str| line.starts_with("total of") && line.ends_with(&total);
        assert!(table.lines().any(is_total), "{table}");
        let none = ["--customer", "Nobody", "--output", "csv"];
        let none = run_beside(&scene.gateways[0], &[&asked[..], &none].concat()).await;
        assert!(none.failed(1).contains("\"Nobody\""));
        let granted = Allowances {
            limits: BTreeMap::from([(moved.id.clone(), 3_010)]),
            ..Allowances::default()
        };
        scene.assert_ledgers_agree_with(&granted).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ledger_reconciles_after_a_gateway_was_killed_and_its_disk_is_gone() {
    assert_eq!(lost_with_a_gateway(Store::Embedded).await, 0);
    // A death right after the ledger was written loses nothing.
    let mut lost = 0;
    for _ in 0..10 {
        lost = lost.max(lost_with_a_gateway(Store::Redis).await);
        if lost > 0 {
            break;
        }
    }
    assert!(lost > 0, "the gateway wrote before each of its deaths");
}

/// Kills one of two gateways under load and removes its directory; the units that are unattributed since.
async fn lost_with_a_gateway(store: Store) -> i64 {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(store)
        .gateways(2)
        .daily("starter", 100_000)
        .start()
        .await;
    let key = scene.issue("starter").await;
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (client, key) = (scene.client_of(1, Protocol::Http1), key.clone());
        clients.spawn(async move {
            while client.try_call(Call::get(MARKETS).key(&key)).await.is_ok() {}
        });
    }
    eventually("the gateway is under load", async || {
        (scene.client_ledger().entries().len() > 100).then_some(())
    })
    .await;
    scene.gateways[1].kill9();
    clients.join_all().await;
    std::fs::remove_dir_all(scene.directory().join("gateway-1")).unwrap();
    let before = verdict(&scene, 0).await;
    let client = scene.client_of(0, Protocol::Http1);
    for _ in 0..5 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    let proof = eventually("the living gateway's units are attributed", async || {
        let proof = verdict(&scene, 0).await;
        (proof["unattributed"] == before["unattributed"]).then_some(proof)
    })
    .await;
    let number = |name: &str| proof[name].as_i64().unwrap();
    assert_eq!(number("used"), before["used"].as_i64().unwrap() + 5);
    assert_eq!(
        number("used"),
        number("attributed") + number("unattributed")
    );
    assert!(number("unattributed") >= 0, "{proof}");
    let by_endpoint = report(&scene, &["--by", "endpoint"]).await;
    assert_eq!(by_endpoint["total"]["charged"], proof["attributed"]);
    let answered = scene.client_ledger().entries();
    let answered = answered
        .iter()
        .filter(|one| one.status == Some(200))
        .count() as i64;
    assert!(
        (answered..=answered + 4).contains(&number("used")),
        "{answered} answered, {proof}"
    );
    number("unattributed")
}

/// Deaths of all gateways at once, each with a Redis that is empty afterwards.
const DEATHS: usize = 5;

/// The units that the journals of all gateways hold.
fn journaled(scene: &Scene) -> i64 {
    let units = |number: usize| -> Option<i64> {
        let path = format!("gateway-{number}/var/journal.db");
        let journal = rusqlite::Connection::open(scene.directory().join(path)).ok()?;
        journal.busy_timeout(Duration::from_secs(5)).ok()?;
        let sum = "SELECT coalesce(sum(ack - rack), 0) FROM counts";
        journal.query_row(sum, [], |row| row.get(0)).ok()
    };
    let all = 0..scene.gateways.len();
    all.map(|number| units(number).unwrap()).sum()
}

/// The keys that the saved replicas of all gateways hold, in the one that holds the fewest.
fn saved_keys(scene: &Scene) -> Option<i64> {
    let saved = |number: usize| -> Option<i64> {
        let path = format!("gateway-{number}/var/keys.db");
        let replica = rusqlite::Connection::open(scene.directory().join(path)).ok()?;
        let count = "SELECT count(*) FROM records";
        replica.query_row(count, [], |row| row.get(0)).ok()
    };
    let all: Option<Vec<i64>> = (0..scene.gateways.len()).map(saved).collect();
    all?.into_iter().min()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verify_holds_after_every_gateway_was_killed_and_redis_emptied() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .gateways(2)
        .daily("starter", 1_000_000)
        // As often as it may be, so that many a death falls into the writing of the journal.
        .spec(|spec| spec.redis_extra = "timeout: 2s, journal_interval: 10ms".into())
        .start()
        .await;
    let mut keys = Vec::new();
    for _ in 0..10 {
        keys.push(scene.issue("starter").await);
    }
    // A key that no replica has yet would be lost with Redis.
    eventually("every gateway has saved the keys", async || {
        (saved_keys(&scene)? == keys.len() as i64).then_some(())
    })
    .await;
    let mut reported = 0;
    for death in 0..DEATHS {
        let before = scene.client_ledger().entries().len();
        let mut clients = tokio::task::JoinSet::new();
        for number in 0..8 {
            let (client, keys) = (scene.client_of(number % 2, Protocol::Http1), keys.clone());
            clients.spawn(async move {
                for turn in number.. {
                    let call = Call::get(MARKETS).key(&keys[turn % keys.len()]);
                    if client.try_call(call).await.is_err() {
                        return;
                    }
                }
            });
        }
        eventually("the gateways are under load, and journal it", async || {
            let answered = scene.client_ledger().entries().len() > before + 400;
            (answered && journaled(&scene) > reported + 100).then_some(())
        })
        .await;
        for gateway in &mut scene.gateways {
            gateway.kill9();
        }
        clients.join_all().await;
        let redis = scene.redis.as_ref().unwrap();
        assert_eq!(redis.command(&["FLUSHALL"]).await.unwrap(), "+OK\r\n");
        for gateway in &mut scene.gateways {
            gateway.restart().await;
        }
        // Nothing is charged any more: the journals are all that is known.
        reported = journaled(&scene);
        eventually("the counts are sent again", async || {
            let ran = run_beside(&scene.gateways[0], &["usage", "--output", "json"]).await;
            let report: Value = serde_json::from_str(&ran.stdout).ok()?;
            (report["total"]["used"].as_i64()? == reported).then_some(())
        })
        .await;
        let ran = run_beside(&scene.gateways[0], &["usage", "verify"]).await;
        assert_eq!(ran.code, Some(0), "death {death}: {ran:?}");
    }
}

//! The rules by which a month is billed, as its invoice shows them.

use harness::upstream::Script;
use harness::{Behaviour, IssuedKey, Protocol, Scene, Store, eventually};
use serde_json::{Value, json};

use super::{MARKETS, STORES, TOUCHLINE, run_beside, run_on};

/// Every rule there is: `billing.months` and `billing.unused_keys`.
const RULES: [(&str, &str); 4] = [
    ("by_day", "bill"),
    ("by_day", "skip"),
    ("whole", "bill"),
    ("whole", "skip"),
];

const YEAR_SECONDS: f64 = 366.0 * 86_400.0;

/// The month of today, in UTC as the quota days.
fn this_month() -> String {
    jiff::Timestamp::now().strftime("%Y-%m").to_string()
}

/// The invoice of a month under rules, from the same store.
async fn invoice_by(scene: &Scene, month: &str, (months, unused_keys): (&str, &str)) -> Value {
    let text = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    let config = scene
        .directory()
        .join(format!("{months}-{unused_keys}.yaml"));
    let rules = format!("billing: {{ months: {months}, unused_keys: {unused_keys} }}");
    std::fs::write(&config, format!("{text}\n{rules}\n")).unwrap();
    let words = ["usage", "invoice", "--month", month, "--output", "json"];
    let ran = run_on(&config, &words).await.done();
    let invoice: Value = serde_json::from_str(&ran).unwrap();
    assert_eq!(invoice["rules"]["months"], months);
    assert_eq!(invoice["rules"]["unused_keys"], unused_keys);
    let words = invoice["rules"]["text"].as_array().unwrap();
    assert!(words.iter().all(|words| words.is_string()), "{invoice}");
    assert!(!words.is_empty(), "{invoice}");
    invoice
}

fn lines_of<'i>(invoice: &'i Value, key: &IssuedKey) -> Vec<&'i Value> {
    let lines = invoice["lines"].as_array().unwrap().iter();
    lines
        .filter(|line| line["key"] == key.id.as_str())
        .collect()
}

/// Waits until the ledger has this of the key's day.
async fn ledger_has(scene: &Scene, key: &IssuedKey, charged: u64, refunded: u64) {
    let words = ["usage", "--key", &key.id, "--output", "json"];
    eventually("the ledger is written", async || {
        let report: Value = serde_json::from_str(&scene.cli(&words).await).unwrap();
        let sums = &report["days"][0]["endpoints"]["/api/v1/data/markets"];
        (sums["charged"] == charged && sums["refunded"] == refunded).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_key_issued_moved_up_and_revoked_within_a_minute_and_not_used_is_billed_nothing() {
    for store in STORES {
        let scene = Scene::builder(TOUCHLINE).store(store).start().await;
        let month = this_month();
        let gone = scene.issue("starter").await;
        scene
            .cli(&["keys", "set-tier", &gone.id, "enterprise"])
            .await;
        scene.revoke(&gone).await;
        let held = scene.issue("starter").await;
        scene.cli(&["keys", "set-tier", &held.id, "pro"]).await;
        for rules in RULES {
            let invoice = invoice_by(&scene, &month, rules).await;
            assert_eq!(lines_of(&invoice, &gone), [&Value::Null; 0], "{invoice}");
            // The one beside it is billed in the tier that it holds, unless unused keys are not.
            let tiers: Vec<_> = lines_of(&invoice, &held)
                .iter()
                .map(|line| line["tier"].clone())
                .collect();
            let expected = match rules.1 {
                "bill" => vec![json!("pro")],
                _ => vec![],
            };
            assert_eq!(tiers, expected, "{rules:?} {invoice}");
        }
    }
}

#[tokio::test]
async fn a_change_by_a_clock_that_was_ahead_does_not_bill_a_key_after_its_revocation() {
    for store in STORES {
        let scene = Scene::builder(TOUCHLINE)
            .store(store)
            .faketime()
            .start()
            .await;
        let key = scene.issue("pro").await;
        scene.clock().set_offset(YEAR_SECONDS);
        scene.cli(&["keys", "set-label", &key.id, "renamed"]).await;
        scene.clock().set_offset(0.0);
        scene.revoke(&key).await;
        let invoice = invoice_by(&scene, &this_month(), RULES[0]).await;
        assert_eq!(lines_of(&invoice, &key), [&Value::Null; 0], "{invoice}");
    }
}

#[tokio::test]
async fn a_month_is_not_invoiced_without_the_price_of_a_tier_that_the_file_has_lost() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("pro").await;
    let text = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    let renamed = text.replace(" pro: {", " business: {");
    let renamed = renamed.replace("pro, ", "business, ");
    let config = scene.directory().join("renamed.yaml");
    std::fs::write(&config, &renamed).unwrap();
    let month = this_month();
    let words = ["usage", "invoice", "--month", &month, "--output", "json"];
    let message = run_on(&config, &words).await.failed(1);
    assert!(message.contains("unknown: pro."), "{message}");
    let restored = renamed.replace("\ntiers:\n", "\ntiers:\n  pro: { daily: 1, price: 299 }\n");
    std::fs::write(&config, restored).unwrap();
    let invoice: Value = serde_json::from_str(&run_on(&config, &words).await.done()).unwrap();
    assert_eq!(lines_of(&invoice, &key)[0]["price_cents"], 29_900);
}

#[tokio::test]
async fn a_month_is_not_invoiced_without_the_customer_of_a_key_that_was_used() {
    let scene = Scene::builder(TOUCHLINE).store(Store::Redis).start().await;
    let key = scene.issue("pro").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    ledger_has(&scene, &key, 1, 0).await;
    let record = format!("touchline:k:{{{}}}", key.id);
    let server = scene.redis.as_ref().unwrap();
    server.command(&["DEL", &record]).await.unwrap();
    let words = ["usage", "invoice", "--month", &this_month()];
    let message = run_beside(&scene.gateways[0], &words).await.failed(1);
    let unknown = format!("unknown: {}.", key.id);
    assert!(message.contains(&unknown), "{message}");
    // As the message proposes.
    let rows = scene.directory().join("restored.csv");
    let row = format!("{},Acme,pro,a-new-secret-of-thirty-two-characters", key.id);
    std::fs::write(&rows, format!("id,customer,tier,key\n{row}\n")).unwrap();
    let import = ["keys", "import", rows.to_str().unwrap()];
    run_beside(&scene.gateways[0], &import).await.done();
    let invoice = invoice_by(&scene, &this_month(), RULES[0]).await;
    assert_eq!(lines_of(&invoice, &key)[0]["charged"], 1, "{invoice}");
}

#[tokio::test]
async fn a_month_in_which_every_request_was_refunded_is_billed_as_unused_and_reports_it() {
    for store in STORES {
        let mut scene = Scene::builder(TOUCHLINE).store(store).start().await;
        let month = this_month();
        let key = scene.issue("enterprise").await;
        let failing = |_: &_| Behaviour::Answer(Script::json(503, "{}"));
        scene.upstream.behave(failing);
        let client = scene.client(Protocol::Http1);
        for _ in 0..3 {
            assert_eq!(client.get(&key, MARKETS).await.status, 500);
        }
        ledger_has(&scene, &key, 3, 3).await;
        for rules in RULES {
            let invoice = invoice_by(&scene, &month, rules).await;
            let [line] = lines_of(&invoice, &key)[..] else {
                panic!("{invoice}");
            };
            assert_eq!(line["use"], "refunded", "{invoice}");
            let counts = ["requests", "charged", "refunded", "billed_units"];
            assert_eq!(counts.map(|name| &line[name]), [3, 3, 3, 0], "{invoice}");
            let is_billed = rules.1 == "bill";
            assert_eq!(line["days"] != 0, is_billed, "{rules:?} {invoice}");
            assert_eq!(line["amount_cents"] != 0, is_billed, "{rules:?} {invoice}");
            if rules.0 == "whole" && is_billed {
                assert_eq!(line["amount_cents"], 79_900);
            }
        }
        // One that succeeds makes it a used key.
        scene
            .upstream
            .behave(|_| Behaviour::Answer(Script::json(200, "{}")));
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        ledger_has(&scene, &key, 4, 3).await;
        let invoice = invoice_by(&scene, &month, ("whole", "skip")).await;
        let [line] = lines_of(&invoice, &key)[..] else {
            panic!("{invoice}");
        };
        assert_eq!(
            (&line["use"], &line["amount_cents"]),
            (&json!("used"), &json!(79_900))
        );
        scene.assert_ledgers_agree().await;
    }
}

/// A day that is this long before the month, and its counts in Redis: units that were settled after it was closed, at this instant.
async fn settle_late(
    scene: &Scene,
    key: &IssuedKey,
    (days, is_marked): (i64, bool),
    came: jiff::Timestamp,
) {
    let first: jiff::civil::Date = format!("{}-01", this_month()).parse().unwrap();
    let date = first.saturating_sub(jiff::Span::new().days(days));
    let start = date.to_zoned(jiff::tz::TimeZone::UTC).unwrap();
    let (date, start) = (date.to_string(), start.timestamp().as_second());
    let (record, counts, day, mark, came) = (
        format!("touchline:k:{{{}}}", key.id),
        format!("touchline:q:{{{}}}:{date}", key.id),
        format!("t{start}-{}", start + 86_400),
        format!("l{date}"),
        format!("a{}", came.as_second()),
    );
    let redis = scene.redis.as_ref().unwrap();
    let settled = ["HSET", &counts, &day, "30", "gx.1", "30", &came, "30"];
    redis.command(&settled).await.unwrap();
    let found_by = match is_marked {
        true => ["HSET", &record, &mark, "1"].to_vec(),
        false => ["SADD", "touchline:days", &date].to_vec(),
    };
    redis.command(&found_by).await.unwrap();
}

#[tokio::test]
async fn units_of_a_day_long_ago_are_on_the_invoice_of_the_month_in_which_they_were_settled() {
    let scene = Scene::builder(TOUCHLINE).store(Store::Redis).start().await;
    let key = scene.issue("pro").await;
    let now = jiff::Timestamp::now();
    // As journals are settled long after an outage, the first one by version 0.2.0, which did not mark the day.
    for (day, adjusted) in [((35, false), 30), ((200, true), 60)] {
        settle_late(&scene, &key, day, now).await;
        let invoice = invoice_by(&scene, &this_month(), RULES[0]).await;
        let [line] = lines_of(&invoice, &key)[..] else {
            panic!("{invoice}");
        };
        assert_eq!(line["adjusted"], adjusted, "{invoice}");
    }
}

#[tokio::test]
async fn late_units_of_the_last_day_of_a_month_are_on_the_invoice_of_the_next() {
    let scene = Scene::builder(TOUCHLINE).store(Store::Redis).start().await;
    let key = scene.issue("pro").await;
    settle_late(&scene, &key, (1, true), jiff::Timestamp::now()).await;
    let invoice = invoice_by(&scene, &this_month(), RULES[0]).await;
    let [line] = lines_of(&invoice, &key)[..] else {
        panic!("{invoice}");
    };
    assert_eq!(line["adjusted"], 30, "{invoice}");
}

#[tokio::test]
async fn a_month_is_not_invoiced_without_the_customer_of_a_key_that_has_only_late_units_in_it() {
    let scene = Scene::builder(TOUCHLINE).store(Store::Redis).start().await;
    let key = scene.issue("pro").await;
    settle_late(&scene, &key, (35, false), jiff::Timestamp::now()).await;
    let record = format!("touchline:k:{{{}}}", key.id);
    let redis = scene.redis.as_ref().unwrap();
    redis.command(&["DEL", &record]).await.unwrap();
    let words = ["usage", "invoice", "--month", &this_month()];
    let message = run_beside(&scene.gateways[0], &words).await.failed(1);
    let unknown = format!("unknown: {}.", key.id);
    assert!(message.contains(&unknown), "{message}");
}

#[tokio::test]
async fn what_was_served_beyond_the_limit_while_redis_was_away_is_on_the_invoice_as_such() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .durable_redis()
        .daily("starter", 5)
        .spec(|spec| spec.redis_extra = "timeout: 100ms, outage: open".into())
        .start()
        .await;
    let month = this_month();
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    let redis = scene.redis.as_mut().unwrap();
    redis.kill9();
    for _ in 0..8 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    let redis = scene.redis.as_mut().unwrap();
    redis.restart().await;
    ledger_has(&scene, &key, 9, 0).await;
    let invoice = eventually("what was served is counted", async || {
        let invoice = invoice_by(&scene, &month, RULES[0]).await;
        (invoice["over"] == 4).then_some(invoice)
    })
    .await;
    let [line] = lines_of(&invoice, &key)[..] else {
        panic!("{invoice}");
    };
    let counts = ["charged", "over", "billed_units"];
    assert_eq!(counts.map(|name| &line[name]), [9, 4, 5], "{invoice}");
    let words = ["usage", "invoice", "--month", &month];
    let table = run_beside(&scene.gateways[0], &words).await.done();
    let sentence =
        "4 units were served above the limit while Redis was unreachable; they are not billed.";
    assert!(table.contains(sentence), "{table}");
    let rules = "Billing rules (months: by_day, unused_keys: bill):";
    assert!(table.contains(rules), "{table}");
}

#[tokio::test]
async fn a_month_of_which_days_were_deleted_is_refused_although_the_retention_is_longer_now() {
    for store in STORES {
        let scene = Scene::builder(TOUCHLINE).store(store).start().await;
        let date = jiff::Zoned::now()
            .date()
            .saturating_sub(jiff::Span::new().days(40));
        let month = date.strftime("%Y-%m").to_string();
        let words = ["usage", "invoice", "--month", &*month];
        let usage = ["usage", "--month", &*month];
        scene.cli(&words).await;
        match &scene.redis {
            // As a gateway with a shorter retention does it.
            Some(server) => {
                let note = ["SET", "touchline:dropped", &date.to_string()];
                server.command(&note).await.unwrap();
            }
            None => {
                let database = scene.directory().join("touchline.db");
                let database = rusqlite::Connection::open(database).unwrap();
                let note = "INSERT INTO meta (name, value) VALUES ('dropped', ?1)";
                database.execute(note, [date.to_string()]).unwrap();
            }
        }
        let message = run_beside(&scene.gateways[0], &words).await.failed(1);
        let through = format!("days through {date} were deleted");
        assert!(message.contains(&through), "{message}");
        let ran = run_beside(&scene.gateways[0], &usage).await;
        assert!(
            ran.stderr.contains("the ledger lacks the days through"),
            "{ran:?}"
        );
    }
}

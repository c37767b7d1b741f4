//! `touchline usage`: what finance bills from.

use harness::{IssuedKey, Protocol, Scene, Store, eventually};
use serde_json::Value;

use super::{MARKETS, RANKINGS, STORES, TOUCHLINE, run_beside};

const NUMBERS: &str = "used,requests,charged,refunded,unattributed,over,adjusted,refused_tier,refused_quota,\
                       refused_burst,refused_concurrent,refused_not_found,refused_method";

/// Four requests of a starter key, one of them above its tier, and two of a pro key.
async fn busy_scene(store: Store) -> (Scene, IssuedKey, IssuedKey) {
    let scene = Scene::builder(TOUCHLINE).store(store).start().await;
    let one = scene.issue("starter").await;
    let other = scene.issue("pro").await;
    let client = scene.client(Protocol::Http1);
    for (key, target, status) in [
        (&one, MARKETS, 200),
        (&one, MARKETS, 200),
        (&one, "/api/v1/data/predictions/fx-1", 200),
        (&one, RANKINGS, 403),
        (&other, MARKETS, 200),
        (&other, "/api/v1/data/insights", 200),
    ] {
        assert_eq!(client.get(key, target).await.status, status);
    }
    // Used units are exact at once; what happened at which endpoint is written behind the answers.
    eventually("the ledger is written", async || {
        let total = report(&scene, &["--by", "day"]).await["total"].clone();
        (total["requests"] == 5 && total["refused_tier"] == 1).then_some(())
    })
    .await;
    (scene, one, other)
}

async fn report(scene: &Scene, arguments: &[&str]) -> Value {
    let words = [&["usage", "--output", "json"], arguments].concat();
    serde_json::from_str(&scene.cli(&words).await).unwrap()
}

#[tokio::test]
async fn usage_by_key_and_by_day_reports_the_same_in_every_form() {
    for store in STORES {
        let (mut scene, one, other) = busy_scene(store).await;
        let by_key = report(&scene, &["--by", "key"]).await;
        let days = by_key["days"].as_array().unwrap().iter();
        let days = days.map(|day| (day["key"].as_str().unwrap(), day["date"].as_str().unwrap()));
        assert!(days.len() >= 2 && days.is_sorted(), "{by_key}");
        let row = |key: &IssuedKey| {
            let rows = by_key["rows"].as_array().unwrap();
            let row = rows.iter().find(|row| row["key"] == key.id.as_str());
            row.unwrap_or_else(|| panic!("no {} in {by_key}", key.id))
        };
        assert_eq!(by_key["rows"].as_array().unwrap().len(), 2);
        assert_eq!(
            (&row(&one)["used"], &row(&one)["refused_tier"]),
            (&3.into(), &1.into())
        );
        assert_eq!(
            (&row(&one)["tier"], &row(&one)["customer"]),
            (&"starter".into(), &"Acme".into())
        );
        assert_eq!(row(&other)["used"], 2);
        assert_eq!(by_key["total"]["used"], 5);

        let by_day = report(&scene, &["--by", "day"]).await;
        let rows = by_day["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 1, "{by_day}");
        assert_eq!((&rows[0]["keys"], &rows[0]["used"]), (&2.into(), &5.into()));
        assert_eq!(by_day["total"], by_key["total"]);

        let csv = scene
            .cli(&["usage", "--by", "day", "--output", "csv"])
            .await;
        let today = rows[0]["date"].as_str().unwrap();
        assert_eq!(
            csv,
            format!("date,keys,{NUMBERS}\n{today},2,5,5,5,0,0,0,0,1,0,0,0,0,0\n")
        );
        let csv = scene.cli(&["usage", "--output", "csv"]).await;
        let mut lines: Vec<&str> = csv.lines().collect();
        lines.sort_unstable();
        let mut expected = [
            format!("key,customer,label,tier,{NUMBERS}"),
            format!("{},Acme,,starter,3,3,3,0,0,0,0,1,0,0,0,0,0", one.id),
            format!("{},Acme,,pro,2,2,2,0,0,0,0,0,0,0,0,0,0", other.id),
        ];
        expected.sort_unstable();
        assert_eq!(lines, expected);

        let table = scene.cli(&["usage", "--by", "day"]).await;
        let last: Vec<&str> = table.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last, ["total", "5", "5", "5", "0", "1"]);

        let only = report(&scene, &["--key", &other.id]).await;
        assert_eq!(only["total"]["used"], 2);
        let month = jiff::Timestamp::now().strftime("%Y-%m").to_string();
        for (words, named) in [
            (&["usage", "--customer", "acme"][..], "\"acme\""),
            (&["usage", "--key", "AAAAAAAAAAAA"], "AAAAAAAAAAAA"),
            (&["usage", "verify", "--customer", "acme"], "\"acme\""),
            (
                &["usage", "verify", "--key", "AAAAAAAAAAAA"],
                "AAAAAAAAAAAA",
            ),
            (
                &["usage", "--customer", "Acme", "--key", "AAAAAAAAAAAA"],
                "AAAAAAAAAAAA",
            ),
            (
                &["usage", "invoice", "--month", &month, "--customer", "acme"],
                "\"acme\"",
            ),
        ] {
            let message = run_beside(&scene.gateways[0], words).await.failed(1);
            assert!(message.contains(named), "{message}");
        }
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn usage_is_of_the_days_asked_for() {
    for store in STORES {
        let (scene, ..) = busy_scene(store).await;
        for (days, used) in [
            (["--from", "2020-01-01", "--to", "2020-01-31"].as_slice(), 0),
            (&["--from", "2099-01-01", "--to", "2099-01-02"], 0),
            (&["--from", "2026-01-01"], 5),
            (&["--from", "2026-01-01", "--to", "2099-01-01"], 5),
            (&["--to", "2020-01-31"], 0),
            (&[], 5),
        ] {
            for by in ["day", "key"] {
                let arguments = [days, &["--by", by]].concat();
                let report = report(&scene, &arguments).await;
                assert_eq!(report["total"]["used"], used, "{arguments:?}: {report}");
                assert_eq!(report["rows"].as_array().unwrap().is_empty(), used == 0);
            }
        }
        for (words, is_noted) in [
            (&["usage", "--month", "2020-01"][..], true),
            (&["usage", "verify", "--month", "2020-01"], true),
            (&["usage"], false),
        ] {
            let ran = run_beside(&scene.gateways[0], words).await;
            let has_note = ran.stderr.contains("quota.retention");
            assert_eq!((ran.code, has_note), (Some(0), is_noted), "{ran:?}");
        }
        let backwards = ["usage", "--from", "2026-02-02", "--to", "2026-02-01"];
        let message = run_beside(&scene.gateways[0], &backwards).await.failed(2);
        assert!(message.contains("2026-02-02") && message.contains("2026-02-01"));
    }
}

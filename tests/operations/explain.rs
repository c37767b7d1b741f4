//! `touchline explain` reports what the running gateway then does, and charges nothing for it.

use harness::{Answer, Call, EndpointSpec, IssuedKey, Protocol, Scene, SceneBuilder, Store};
use serde_json::Value;

use super::{MARKETS, RANKINGS, STORES, TOUCHLINE, run_beside};

const DEAR: &str = "/api/v1/data/dear";
const LEAVING: &str = "/api/v1/data/predictions";
/// Headers whose values go on with the clock; that both have them is all that can be asked.
const MOVING: [&str; 2] = ["retry-after", "ratelimit"];

fn builder(store: Store) -> SceneBuilder {
    let builder = Scene::builder(TOUCHLINE).store(store);
    builder.daily("starter", 3).daily("pro", 2).spec(|spec| {
        let mut dear = EndpointSpec::get(DEAR, &["starter", "pro"]);
        (dear.cost, dear.methods) = (3, vec!["POST".into()]);
        spec.endpoints.push(dear);
        spec.endpoint_extra
            .insert(LEAVING.into(), "sunset: 2027-06-30".into());
        spec.tier_extra
            .insert("pro".into(), "enforce: false".into());
    })
}

async fn explained(scene: &Scene, key: &IssuedKey, method: &str, path: &str) -> Value {
    let words = [
        "explain", "--key-id", &key.id, "--method", method, "--path", path,
    ];
    let text = scene
        .cli(&[&words[..], &["--output", "json"]].concat())
        .await;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

/// The step that refuses, and what it is about.
fn refusing_step(explained: &Value) -> Option<u64> {
    let steps = explained["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 9, "{explained}");
    let refuses = steps.iter().find(|step| step["verdict"] == "refuses");
    refuses.map(|step| step["step"].as_u64().unwrap())
}

/// Asserts that the gateway did what had been explained.
#[track_caller]
fn assert_reported(explained: &Value, answer: &Answer) {
    let reported = &explained["answer"];
    let expected = reported["status"].as_u64().unwrap_or(200);
    assert_eq!(
        u64::from(answer.status),
        expected,
        "{explained}\n{answer:?}"
    );
    let code = answer.code();
    assert_eq!(reported["code"].as_str(), code.as_deref(), "{explained}");
    let headers = reported["headers"].as_object().unwrap();
    for (name, value) in headers {
        let got = answer.header(name);
        if MOVING.contains(&name.as_str()) {
            assert!(got.is_some(), "{name} of {answer:?}");
        } else {
            assert_eq!(got, value.as_str(), "{name} of {answer:?}");
        }
    }
    // And nothing of the caller's quota status, or of how the answer is to be read, is sent that was not explained.
    for (name, _) in &answer.headers {
        let own = name.as_str().contains("ratelimit")
            || ["retry-after", "sunset", "x-content-type-options"].contains(&name.as_str());
        assert!(!own || headers.contains_key(name.as_str()), "{name}");
    }
    if let Some(body) = reported["body"].as_object() {
        let mut got = answer.json();
        got.as_object_mut().unwrap().remove("request_id");
        assert_eq!(got, Value::Object(body.clone()));
    }
}

#[tokio::test]
async fn what_is_explained_is_what_the_gateway_answers() {
    for store in STORES {
        let mut scene = builder(store).start().await;
        let key = scene.issue("starter").await;
        let shadow = scene.issue("pro").await;
        let client = scene.client(Protocol::Http1);
        // In this order: the quotas fill on the way.
        for (key, method, path, step, would_refuse) in [
            (&key, "GET", MARKETS, None, None),
            (&key, "HEAD", LEAVING, None, None),
            (&key, "GET", "/api/v1/data/predictions/7?page=2", None, None),
            (&key, "GET", MARKETS, Some(8), None),
            (&key, "POST", DEAR, Some(8), None),
            (&key, "GET", RANKINGS, Some(6), None),
            (&key, "GET", LEAVING, Some(8), None),
            (&key, "DELETE", LEAVING, Some(5), None),
            (&key, "GET", DEAR, Some(5), None),
            (&key, "CONNECT", MARKETS, Some(1), None),
            (&key, "GET", "/api/v1/data/Markets", Some(4), None),
            (&key, "GET", "/api/v1/data/markets/", Some(4), None),
            (&key, "GET", "/api/v1//data", Some(1), None),
            (&key, "GET", "/api/v1/%2e", Some(1), None),
            (&key, "GET", "/a;b", Some(1), None),
            (&key, "GET", "/openapi.json", None, None),
            (&key, "POST", "/openapi.json", Some(5), None),
            (&key, "GET", "/api/v1/usage", None, None),
            (&key, "PUT", "/api/v1/usage", Some(5), None),
            (&shadow, "GET", RANKINGS, None, Some("tier")),
            (&shadow, "GET", MARKETS, None, None),
            (&shadow, "POST", DEAR, None, Some("daily")),
            (&shadow, "GET", RANKINGS, None, Some("tier")),
            (&shadow, "GET", "/none", Some(4), None),
        ] {
            let before = explained(&scene, key, method, path).await;
            let again = explained(&scene, key, method, path).await;
            assert_eq!(
                before["answer"]["headers"]["x-ratelimit-remaining"],
                again["answer"]["headers"]["x-ratelimit-remaining"],
                "explaining charges nothing"
            );
            assert_eq!(refusing_step(&before), step, "{method} {path}: {before}");
            assert_eq!(before["would_refuse"].as_str(), would_refuse, "{before}");
            if method == "CONNECT" {
                assert_eq!(before["answer"]["status"], 405);
                continue; // Clients of the harness do not open tunnels.
            }
            let call = Call::new(method, path).key(key);
            assert_reported(&before, &client.call(call).await);
        }
        let mut allowed = harness::Allowances::default();
        allowed.limits.insert(shadow.id.clone(), 6);
        allowed.shadow_tiers.insert("pro".into());
        scene.assert_ledgers_agree_with(&allowed).await;
    }
}

#[tokio::test]
async fn every_state_of_a_key_is_explained_and_answered_alike() {
    for store in STORES {
        let mut scene = builder(store).start().await;
        let client = scene.client(Protocol::Http1);
        for (changes, reported) in [
            (
                &["suspend", "ID", "--yes", "--reason", "unpaid"][..],
                "the key is suspended; last change: suspend by ",
            ),
            (
                &["revoke", "ID", "--yes"],
                "the key is revoked; last change: revoke by ",
            ),
            (
                &["set-expiry", "ID", "2026-01-31", "--yes"],
                "the subscription ended at 2026-02-01T00:00:00Z; ",
            ),
        ] {
            let key = scene.issue("starter").await;
            assert_eq!(
                refusing_step(&explained(&scene, &key, "GET", MARKETS).await),
                None
            );
            let changes: Vec<&str> = changes
                .iter()
                .map(|word| if *word == "ID" { &key.id } else { *word })
                .collect();
            scene.cli(&[&["keys"], &changes[..]].concat()).await;
            let after = explained(&scene, &key, "GET", MARKETS).await;
            assert_eq!(refusing_step(&after), Some(3), "{after}");
            let reason = after["steps"][2]["reason"].as_str().unwrap();
            assert!(reason.starts_with(reported), "{reason}");
            assert_reported(&after, &client.get(&key, MARKETS).await);
            // A later change of another kind is not its cause.
            let change = ["keys", "set-label", &key.id, "other", "--by", "another"];
            scene.cli(&change).await;
            let later = explained(&scene, &key, "GET", MARKETS).await;
            let cause = reason.replacen("last change", "cause", 1);
            assert_eq!(later["steps"][2]["reason"], *cause);
        }
        // Before the key is issued, before the subscription ends, and behind it.
        let key = scene
            .issue_with("starter", &["--expires", "2099-01-31"])
            .await;
        let words = [
            "explain", "--key-id", &key.id, "--path", MARKETS, "--output", "json", "--at",
        ];
        for (at, result) in [
            ("2001-01-01T00:00:00Z", "refused"),
            ("2099-01-31T23:59:59Z", "forwarded"),
            ("2099-02-01T00:00:00Z", "refused"),
        ] {
            let text = scene.cli(&[&words[..], &[at]].concat()).await;
            let value: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(value["result"], result, "{at}");
        }
        // An id that no key has is explained too.
        let nobody = IssuedKey {
            id: "000000000000".into(),
            ..key.clone()
        };
        let value = explained(&scene, &nobody, "GET", MARKETS).await;
        assert_eq!(
            (refusing_step(&value), &value["answer"]["status"]),
            (Some(3), &401.into())
        );
        scene.assert_ledgers_agree().await;
    }
}

/// The documentation has such a table; JSON has names for programs in the place of these words.
#[tokio::test]
async fn the_table_names_steps_and_verdicts_in_words() {
    let scene = builder(Store::Embedded).start().await;
    let (key, shadow) = (scene.issue("starter").await, scene.issue("pro").await);
    let refused = "1 well-formed passes, 2 key presented passes, 3 key usable passes, 4 endpoint passes, 5 method passes, \
        6 tier refuses, 7 rates not reached, 8 daily quota not reached, 9 upstream not reached";
    let forwarded = "1 well-formed passes, 2 key presented passes, 3 key usable passes, 4 endpoint passes, 5 method passes, \
        6 tier would refuse, 7 rates passes, 8 daily quota passes, 9 upstream open";
    for (key, expected) in [(key, refused), (shadow, forwarded)] {
        let words = ["explain", "--key-id", &key.id, "--path", RANKINGS];
        let text = scene.cli(&words).await;
        let mut rows = text.lines().skip(1);
        for expected in expected.split(", ") {
            let row: Vec<&str> = rows.next().unwrap_or("").split_whitespace().collect();
            let row = row.join(" ");
            assert!(row.starts_with(expected), "{expected}: {text}");
        }
    }
}

#[tokio::test]
async fn the_line_of_each_setting_that_decides_is_named() {
    let scene = builder(Store::Embedded).start().await;
    let key = scene.issue("starter").await;
    let file = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    let lines: Vec<&str> = file.lines().collect();
    let mut named = 0;
    for path in [MARKETS, RANKINGS, "/none"] {
        let value = explained(&scene, &key, "GET", path).await;
        for place in value["steps"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|step| step["configuration"].as_array().unwrap())
        {
            assert_eq!(place["file"].as_str(), scene.gateways[0].config.to_str());
            let line = lines[place["line"].as_u64().unwrap() as usize - 1];
            let setting = place["path"].as_str().unwrap();
            let part = match setting {
                "endpoints" => "endpoints:",
                "endpoints[0].path" => MARKETS,
                "endpoints[5].path" => RANKINGS,
                "tiers.starter" => "starter:",
                "upstreams.prediction-data" => "prediction-data:",
                other => other.rsplit_once('.').unwrap().1,
            };
            assert!(line.contains(part), "{setting} is not in {line:?}");
            assert_eq!(place["written"], true, "{setting}");
            named += 1;
        }
    }
    assert_eq!(named, 15);
    // For people.
    let words = ["explain", "--key-id", &key.id, "--path", RANKINGS];
    let text = run_beside(&scene.gateways[0], &words).await.done();
    let tier = text
        .lines()
        .find(|line| line.starts_with("6 ") || line.trim_start().starts_with("6 "))
        .unwrap();
    assert!(
        tier.contains("refuses") && tier.contains("starter is not one of enterprise"),
        "{text}"
    );
    assert!(tier.contains(" endpoints[5].tiers"), "{text}");
    assert!(
        text.contains("403 TIER_INSUFFICIENT") && text.contains("x-ratelimit-remaining"),
        "{text}"
    );
}

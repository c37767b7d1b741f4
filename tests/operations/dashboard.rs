//! `/dashboard` and `/dashboard.json`: right figures of all gateways, a page that trusts nothing, and who may see it.

use std::sync::Arc;
use std::time::Duration;

use harness::{Answer, Behaviour, Call, Client, IssuedKey, Protocol, Scene, Store, eventually};
use serde_json::{Value, json};

use super::{MARKETS, RANKINGS, STORES, TOUCHLINE};

const PAGE: &str = "/dashboard";
const FIGURES: &str = "/dashboard.json";
const DAILY: u64 = 20;

async fn ask(scene: &Scene, gateway: usize, call: Call) -> Answer {
    let address = scene.gateways[gateway].admin;
    let client = Client::new(Protocol::Http1, address, Arc::default());
    client.call(call).await
}

async fn figures(scene: &Scene, gateway: usize) -> Value {
    let answer = ask(scene, gateway, Call::get(FIGURES)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    answer.json()
}

/// What the command reports of today by tier: the sum of everything, and the rows.
async fn reported_by_the_command(scene: &Scene) -> Value {
    let words = ["usage", "--by", "tier", "--output", "json"];
    serde_json::from_str(&scene.cli(&words).await).unwrap()
}

/// Waits for a survey that knows so many units.
async fn surveyed(scene: &Scene, gateway: usize, expected: &Value) -> Value {
    eventually("the survey is done", async || {
        let figures = figures(scene, gateway).await;
        let today = &figures["today"];
        let total = &expected["total"];
        let sum = |name: &str| -> u64 {
            let tiers = today["tiers"].as_array().into_iter().flatten();
            tiers.map(|tier| tier[name].as_u64().unwrap()).sum()
        };
        let names = ["requests", "charged", "refused_quota", "refused_tier"];
        let whole = names.iter().all(|name| total[name] == sum(name));
        (whole && today["used"] == total["used"]).then_some(figures)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dashboard_of_each_gateway_reports_what_the_ledger_holds_of_all() {
    for store in STORES {
        let mut scene = Scene::builder(TOUCHLINE)
            .store(store)
            .gateways(2)
            .daily("starter", DAILY)
            .start()
            .await;
        let (full, idle) = (scene.issue("starter").await, scene.issue("starter").await);
        let (pro, half) = (scene.issue("pro").await, scene.issue("starter").await);
        scene
            .cli(&[
                "keys", "grant", &half.id, "--extra", "20", "--reason", "Cup",
            ])
            .await;
        for turn in 0..DAILY as usize + 3 {
            let client = scene.client_of(turn % 2, Protocol::Http1);
            client.get(&full, MARKETS).await;
        }
        // This one is known to one gateway only.
        let client = scene.client_of(1, Protocol::Http1);
        for _ in 0..DAILY {
            assert_eq!(client.get(&half, MARKETS).await.status, 200);
        }
        for _ in 0..4 {
            assert_eq!(client.get(&pro, RANKINGS).await.status, 403);
        }
        client.get(&pro, MARKETS).await;
        scene.upstream.always(Behaviour::Status(503));
        client.get(&pro, MARKETS).await;

        let expected = eventually("the ledger is whole", async || {
            let reported = reported_by_the_command(&scene).await;
            let total = &reported["total"];
            let whole = total["requests"] == 2 * DAILY + 2 && total["refunded"] == 1;
            let refused = total["refused_quota"] == 3 && total["refused_tier"] == 4;
            (whole && refused && total["unattributed"] == 0).then_some(reported)
        })
        .await;
        for gateway in 0..2 {
            let reported = surveyed(&scene, gateway, &expected).await;
            let today = &reported["today"];
            assert_eq!(today["unattributed"], 0, "{today:#}");
            let tiers = today["tiers"].as_array().unwrap();
            let rows = expected["rows"].as_array().unwrap();
            assert_eq!(tiers.len(), rows.len());
            for (tier, row) in tiers.iter().zip(rows) {
                for name in [
                    "tier",
                    "keys",
                    "requests",
                    "charged",
                    "refunded",
                    "refused_quota",
                    "refused_tier",
                ] {
                    assert_eq!(tier[name], row[name], "{name} of {tier}");
                }
            }
            let near: Vec<(&str, u64, u64)> = today["nearest"]
                .as_array()
                .unwrap()
                .iter()
                .map(|key| {
                    let number = |name: &str| key[name].as_u64().unwrap();
                    (
                        key["key_id"].as_str().unwrap(),
                        number("used"),
                        number("limit"),
                    )
                })
                .collect();
            let expected_near = [
                (full.id.as_str(), DAILY, DAILY),
                (half.id.as_str(), DAILY, 2 * DAILY),
                (pro.id.as_str(), 1, 3_000),
            ];
            assert_eq!(near, expected_near);
            let reached = json!([{ "percent": 80, "keys": 1 }, { "percent": 95, "keys": 1 }, { "percent": 100, "keys": 1 }]);
            assert_eq!(today["reached"], reached);
        }
        let text = ask(&scene, 0, Call::get(FIGURES)).await.body;
        let text = String::from_utf8(text.to_vec()).unwrap();
        for key in [&full, &idle, &pro, &half] {
            assert!(!text.contains(&key.key), "{text}");
        }
        assert!(
            !text.contains("digest") && !text.contains(&idle.id),
            "{text}"
        );
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn however_often_the_dashboard_is_asked_the_store_has_a_rest_of_5_s_between_two_surveys() {
    const REST_SECONDS: f64 = 5.0;
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    // When each survey was done, by the gateway's own clock.
    let mut surveys: Vec<jiff::Timestamp> = Vec::new();
    let mut asked = 0;
    eventually("three surveys are done", async || {
        let read = figures(&scene, 0).await["today"]["read"].clone();
        asked += 1;
        let read = read.as_str()?.parse().unwrap();
        if surveys.last() != Some(&read) {
            surveys.push(read);
        }
        (surveys.len() == 3).then_some(())
    })
    .await;
    assert!(asked > 3, "{asked}");
    for pair in surveys.windows(2) {
        let between = (pair[1] - pair[0]).total(jiff::Unit::Second).unwrap();
        assert!(between >= REST_SECONDS, "{surveys:?}");
    }
}

#[tokio::test]
async fn an_unusable_key_is_not_reported_as_near_its_limit() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let client = scene.client(Protocol::Http1);
    let keys = [
        scene.issue("starter").await,
        scene.issue("starter").await,
        scene.issue("starter").await,
        scene.issue("starter").await,
    ];
    for key in &keys {
        assert_eq!(client.get(key, MARKETS).await.status, 200);
    }
    scene.cli(&["keys", "suspend", &keys[0].id, "--yes"]).await;
    scene
        .cli(&["keys", "set-expiry", &keys[1].id, "2020-01-31", "--yes"])
        .await;
    scene.revoke(&keys[2]).await;
    eventually("the one key that is left is shown alone", async || {
        let today = figures(&scene, 0).await["today"].clone();
        let nearest = today["nearest"].as_array()?;
        (today["used"] == 4 && nearest.len() == 1 && nearest[0]["key_id"] == keys[3].id.as_str())
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn each_gateway_states_its_own_name_version_and_uptime_and_the_zone_of_the_day() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .gateways(2)
        .start()
        .await;
    let first = eventually("the day is read", async || {
        let figures = figures(&scene, 0).await;
        (!figures["today"].is_null()).then_some(figures)
    })
    .await;
    assert_eq!(first["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(first["today"]["zone"], "UTC");
    let second = figures(&scene, 1).await;
    assert_ne!(first["node"], second["node"]);
    let uptime = |figures: &Value| figures["uptime_seconds"].as_u64().unwrap();
    eventually("the uptime grows", async || {
        (uptime(&figures(&scene, 0).await) > uptime(&first)).then_some(())
    })
    .await;
    scene.gateways[0].terminate();
    scene.gateways[0].restart().await;
    let again = figures(&scene, 0).await;
    assert_ne!(first["node"], again["node"]);
}

#[tokio::test]
async fn samples_report_every_request_once() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for target in [MARKETS, MARKETS, RANKINGS, "/none"] {
        client.get(&key, target).await;
    }
    client.call(Call::get(MARKETS)).await;
    scene.upstream.always(Behaviour::Status(503));
    client.get(&key, MARKETS).await;
    let reported = eventually("the sample has ended", async || {
        let reported = figures(&scene, 0).await;
        let samples = reported["samples"].as_array().unwrap();
        let sum = |name: &str| -> u64 {
            let counts = samples.iter().map(|one| &one["requests"][name]);
            counts.map(|count| count.as_u64().unwrap()).sum()
        };
        let sums = ["served", "refused", "limited", "failed", "client_closed"].map(sum);
        (sums == [2, 3, 0, 1, 0]).then_some(reported)
    })
    .await;
    let samples = reported["samples"].as_array().unwrap();
    let busy = samples
        .iter()
        .find(|one| one["requests"]["served"] != 0)
        .unwrap();
    assert!(
        busy["duration_seconds"]["p99"].as_f64().unwrap() > 0.0,
        "{busy}"
    );
    assert!(busy["store_seconds"]["p50"].is_number(), "{busy}");
    let answered = json!([
        { "tier": "none", "outcome": "MISSING_API_KEY", "requests": 1 },
        { "tier": "starter", "outcome": "INTERNAL_ERROR", "requests": 1 },
        { "tier": "starter", "outcome": "NOT_FOUND", "requests": 1 },
        { "tier": "starter", "outcome": "TIER_INSUFFICIENT", "requests": 1 },
        { "tier": "starter", "outcome": "served", "requests": 2 },
    ]);
    assert_eq!(reported["answered"], answered);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn servers_that_are_out_are_reported() {
    let mut scene = Scene::builder(TOUCHLINE)
        .more_servers(1)
        .spec(|spec| {
            spec.upstream_extra =
                "health: { path: /healthz, interval: 100ms, unhealthy_after: 1, healthy_after: 1 }"
                    .into();
        })
        .start()
        .await;
    let addresses = [&scene.upstream, &scene.more_upstreams[0]];
    let addresses = addresses.map(|one| one.address().to_string());
    let servers = async |scene: &Scene| {
        let reported = figures(scene, 0).await;
        let upstream = &reported["upstreams"][0];
        let servers = upstream["servers"].as_array().cloned().unwrap_or_default();
        let up = |address: &String| {
            let server = servers
                .iter()
                .find(|one| one["server"] == address.as_str())?;
            server["up"].as_bool()
        };
        let both = [up(&addresses[0]), up(&addresses[1])];
        (both, upstream["checks_failed"].as_u64().unwrap_or(0))
    };
    eventually("both are asked", async || {
        (servers(&scene).await.0 == [Some(true), Some(true)]).then_some(())
    })
    .await;
    scene.more_upstreams[0].stop().await;
    eventually("one is out", async || {
        let (up, failed) = servers(&scene).await;
        (up == [Some(true), Some(false)] && failed > 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn without_redis_the_dashboard_reports_it_and_keeps_what_it_knew() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .spec(|spec| spec.redis_extra = "timeout: 100ms".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    eventually("the survey is done", async || {
        (figures(&scene, 0).await["today"]["used"] == 1).then_some(())
    })
    .await;
    scene.redis.as_mut().unwrap().kill9();
    eventually("the store is shown as away", async || {
        let reported = figures(&scene, 0).await;
        let away = reported["readiness"]["status"] == "degraded"
            && reported["readiness"]["store_up"] == false;
        let known = reported["today"]["used"] == 1;
        (away && known && reported["today_error"].is_string()).then_some(())
    })
    .await;
    scene.redis.as_mut().unwrap().restart().await;
    eventually("the store is asked again", async || {
        let reported = figures(&scene, 0).await;
        (reported["readiness"]["status"] == "ready" && reported["today_error"].is_null())
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn before_the_keys_are_loaded_the_dashboard_reports_no_day_rather_than_a_part_of_one() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .durable_redis()
        .spec(|spec| spec.redis_extra = "timeout: 100ms, outage: deny".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    // On a loaded machine a charge may take longer than the timeout; it costs nothing then.
    eventually("a call is served", async || {
        (client.get(&key, MARKETS).await.status == 200).then_some(())
    })
    .await;
    scene.gateways[0].terminate();
    scene.redis.as_mut().unwrap().kill9();
    // It begins with no key at all.
    let kept = scene.gateways[0].config.with_file_name("var");
    for file in std::fs::read_dir(kept).unwrap() {
        let path = file.unwrap().path();
        if path.to_string_lossy().contains("keys.db") {
            std::fs::remove_file(path).unwrap();
        }
    }
    scene.gateways[0].restart().await;
    for _ in 0..20 {
        let reported = figures(&scene, 0).await;
        assert_eq!(reported["readiness"]["keys_loaded"], false, "{reported}");
        assert_eq!(reported["today"], Value::Null, "{reported}");
    }
    scene.redis.as_mut().unwrap().restart().await;
    eventually("the day is shown", async || {
        (figures(&scene, 0).await["today"]["used"] == 1).then_some(())
    })
    .await;
}

/// A gateway that starts without Redis and without a replica of the key table, before an upstream at which no server listens.
async fn knows_no_key() -> (Scene, IssuedKey) {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .durable_redis()
        .spec(|spec| spec.redis_extra = "timeout: 100ms".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    scene.gateways[0].terminate();
    scene.redis.as_mut().unwrap().kill9();
    let kept = scene.gateways[0].config.with_file_name("var");
    std::fs::remove_dir_all(kept).unwrap();
    // No server listens on port 1.
    scene.spec.upstream = "127.0.0.1:1".parse().unwrap();
    scene.gateways[0].configure(&scene.spec);
    scene.gateways[0].restart().await;
    (scene, key)
}

#[tokio::test]
async fn a_gateway_that_never_had_a_key_reports_it_and_not_that_it_serves() {
    let (mut scene, key) = knows_no_key().await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 500);
    let (status, ready) = scene.admin(0, "/readyz").await;
    let ready: Value = serde_json::from_str(&ready).unwrap();
    assert_eq!(status, 503, "{ready}");
    for readiness in [&ready, &figures(&scene, 0).await["readiness"]] {
        assert_eq!(readiness["status"], "unready", "{readiness}");
        assert_eq!(readiness["keys_loaded"], false, "{readiness}");
        assert_eq!(readiness["keys_age_seconds"], Value::Null, "{readiness}");
        assert_eq!(readiness["without_store"], "no_keys", "{readiness}");
    }
    let (_, metrics) = scene.admin(0, "/metrics").await;
    let has = |line: &str| metrics.lines().any(|one| one == line);
    assert!(has("touchline_keys_loaded 0"), "{metrics}");
    assert!(has("touchline_store_degraded 0"), "{metrics}");
    assert!(
        !metrics.contains("touchline_keys_age_seconds "),
        "{metrics}"
    );

    scene.redis.as_mut().unwrap().restart().await;
    eventually("the keys are loaded", async || {
        let loaded = scene.metric("touchline_keys_loaded").await == 1.0;
        let (_, metrics) = scene.admin(0, "/metrics").await;
        (loaded && metrics.contains("\ntouchline_keys_age_seconds ")).then_some(())
    })
    .await;
    let age = &figures(&scene, 0).await["readiness"]["keys_age_seconds"];
    assert!(age.as_f64().unwrap() < 60.0, "{age}");
}

#[tokio::test]
async fn a_server_that_was_never_asked_is_not_shown_as_well_nor_one_that_fails() {
    let (mut scene, key) = knows_no_key().await;
    let server = async |scene: &Scene| {
        eventually("the server is shown", async || {
            let reported = figures(scene, 0).await;
            let server = reported["upstreams"][0]["servers"][0].clone();
            (!server.is_null()).then_some(server)
        })
        .await
    };
    let reported = server(&scene).await;
    assert_eq!(
        (&reported["up"], &reported["answered"]),
        (&true.into(), &Value::Null),
        "{reported}"
    );
    scene.redis.as_mut().unwrap().restart().await;
    let client = scene.client(Protocol::Http1);
    eventually("a request is tried", async || {
        assert_eq!(client.get(&key, MARKETS).await.status, 500);
        (server(&scene).await["answered"] == false).then_some(())
    })
    .await;
    scene.spec.upstream = scene.upstream.address();
    scene.gateways[0].configure(&scene.spec);
    eventually("a request is served", async || {
        (client.get(&key, MARKETS).await.status == 200).then_some(())
    })
    .await;
    eventually("the server has answered", async || {
        (server(&scene).await["answered"] == true).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_day_that_is_over_is_never_reported_as_today() {
    let scene = Scene::builder(TOUCHLINE).faketime().start().await;
    // Before the clock is moved: by the new time the gateway's last heartbeat is old, and no command would wait for it.
    let key = scene.issue("starter").await;
    scene
        .clock()
        .set_before_midnight(Duration::from_secs(1_800));
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    let before = eventually("the day is shown", async || {
        let today = figures(&scene, 0).await["today"].clone();
        (today["used"] == 1).then_some(today)
    })
    .await;
    scene.clock().set_before_midnight(Duration::ZERO);
    let after = eventually("the next day is shown", async || {
        let reported = figures(&scene, 0).await;
        let today = reported["today"].clone();
        assert!(
            today.is_null() || today["date"] != before["date"],
            "{reported}"
        );
        (!today.is_null()).then_some(today)
    })
    .await;
    assert_eq!(after["used"], 0);
}

#[tokio::test]
async fn reloads_are_reported_with_outcome_and_reason() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let started = figures(&scene, 0).await;
    let first = &started["reloads"][0];
    assert_eq!(
        (&first["outcome"], &first["cause"]),
        (&"applied".into(), &"start".into())
    );
    assert_eq!(first["hash"], started["readiness"]["config"]["hash"]);
    let text = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    scene.gateways[0].put_file(&text.replace("daily: 1000", "daily: </script>"));
    let reloads = async |count: usize| {
        eventually("the reload is shown", async || {
            let reported = figures(&scene, 0).await;
            let reloads = reported["reloads"].as_array().unwrap();
            (reloads.len() == count).then(|| reloads.clone())
        })
        .await
    };
    let refused = reloads(2).await;
    assert_eq!(
        (&refused[0]["outcome"], &refused[0]["cause"]),
        (&"refused".into(), &"change".into())
    );
    let reason = refused[0]["reason"].as_str().unwrap();
    assert!(
        reason.contains("daily") && reason.contains("</script>"),
        "{reason}"
    );
    assert_eq!(refused[0]["hash"], first["hash"]);
    scene.gateways[0].put_file(&text.replace("daily: 1000", "daily: 1001"));
    let applied = reloads(3).await;
    assert_eq!(applied[0]["outcome"], "applied");
    assert_ne!(applied[0]["hash"], first["hash"]);
    assert_eq!(applied[2], *first);
}

#[tokio::test]
async fn the_page_is_one_file_that_may_run_nothing_but_its_own_script() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let page = ask(&scene, 0, Call::get(PAGE)).await;
    assert_eq!(page.status, 200);
    for (name, value) in [
        ("content-type", "text/html; charset=utf-8"),
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        assert_eq!(page.header(name), Some(value), "{name}");
    }
    let policy = page.header("content-security-policy").unwrap();
    for part in [
        "default-src 'none'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ] {
        assert!(
            policy.split("; ").any(|one| one == part),
            "{part}: {policy}"
        );
    }
    assert!(
        !policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"),
        "{policy}"
    );
    let html = String::from_utf8(page.body.to_vec()).unwrap();
    // Style and script are those whose digests the policy names.
    for (tag, directive) in [("style", "style-src"), ("script", "script-src")] {
        assert_eq!(html.matches(&format!("<{tag}")).count(), 1, "{tag}");
        let (_, rest) = html.split_once(&format!("<{tag}>")).unwrap();
        let (text, _) = rest.split_once(&format!("</{tag}>")).unwrap();
        let digest = base64::Engine::encode(
            &base64::engine::general_purpose::STANDARD,
            <sha2::Sha256 as sha2::Digest>::digest(text),
        );
        assert!(
            policy.contains(&format!("{directive} 'sha256-{digest}'")),
            "{tag}: {policy}"
        );
    }
    for part in [
        "https:", "src=", "@import", "url(", " onclick", " onload", " style=",
    ] {
        assert!(!html.contains(part), "{part}");
    }
    let outside = html.replace("http://www.w3.org/2000/svg", "");
    assert!(!outside.contains("http:"), "an address from elsewhere");
}

#[tokio::test]
async fn the_page_is_the_same_whatever_the_names_and_the_figures_have_them_as_they_are() {
    const NAMES: [&str; 3] = [
        "</script><img src=x onerror=alert(1)>",
        "\u{5e9}\u{5dc}\u{5d5}\u{5dd} (right to left)",
        "\u{26bd} \u{1f981} \"quoted\" & 'such'",
    ];
    let scene = Scene::builder(TOUCHLINE).start().await;
    let before = ask(&scene, 0, Call::get(PAGE)).await.body;
    let client = scene.client(Protocol::Http1);
    for name in NAMES {
        let key = scene.issue_with("starter", &["--label", name]).await;
        scene.cli(&["keys", "set-customer", &key.id, name]).await;
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    eventually("the names are shown", async || {
        let reported = figures(&scene, 0).await;
        let nearest = reported["today"]["nearest"].as_array()?.clone();
        let has = |name: &&str| {
            let mut keys = nearest.iter();
            keys.any(|key| key["customer"] == **name && key["label"] == **name)
        };
        NAMES.iter().all(has).then_some(())
    })
    .await;
    assert_eq!(ask(&scene, 0, Call::get(PAGE)).await.body, before);
}

#[tokio::test]
async fn a_token_opens_the_figures_and_the_page_shows_none() {
    const TOKEN: &str = "0123456789abcdef-token";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    let admin = format!("token_file: \"{}\"", file.display());
    let open = Scene::builder(TOUCHLINE).start().await;
    let scene = Scene::builder(TOUCHLINE)
        .spec(move |spec| spec.admin_extra = admin)
        .start()
        .await;
    let page = ask(&scene, 0, Call::get(PAGE)).await;
    assert_eq!(page.status, 200);
    assert_eq!(page.body, ask(&open, 0, Call::get(PAGE)).await.body);
    for call in [
        Call::get(FIGURES),
        Call::get(FIGURES).header("Authorization", "Bearer wrong"),
        Call::get(FIGURES).header("Authorization", format!("Basic {TOKEN}")),
        Call::get(&format!("{FIGURES}?token={TOKEN}")),
    ] {
        let refused = ask(&scene, 0, call).await;
        assert_eq!(refused.status, 401);
        assert_eq!(refused.json(), json!({ "status": "unauthorized" }));
    }
    // With a token, by whatever name: a proxy before it may have one of its own.
    let call = Call::get(FIGURES).header("Authorization", format!("Bearer {TOKEN}"));
    assert_eq!(
        ask(&scene, 0, call.header("Host", "admin.example"))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn without_a_token_the_figures_are_for_requests_that_name_this_machine() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    for (host, status) in [
        ("localhost:9090", 200),
        ("127.0.0.1", 200),
        ("[::1]:9090", 200),
        ("evil.example:9090", 421),
        ("127.0.0.1.evil.example", 421),
    ] {
        let answer = ask(&scene, 0, Call::get(FIGURES).header("Host", host)).await;
        assert_eq!(answer.status, status, "{host}");
        assert_eq!(
            answer.json()["today"].is_null() && answer.json()["hint"].is_string(),
            status == 421
        );
    }
}

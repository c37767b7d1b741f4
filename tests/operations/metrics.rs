//! `/metrics`: right values, and never a client's word in a label.

use std::collections::BTreeMap;

use harness::{Behaviour, Call, IssuedKey, Protocol, Scene, eventually};

use super::{MARKETS, RANKINGS, STORES, TOUCHLINE};

/// Every series with its value.
async fn series(scene: &Scene) -> BTreeMap<String, f64> {
    let (status, text) = scene.admin(0, "/metrics").await;
    assert_eq!(status, 200);
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect()
}

/// Waits until so many requests are counted; they are a moment after their answers.
async fn counted(scene: &Scene, requests: f64) -> BTreeMap<String, f64> {
    eventually("all requests are counted", async || {
        let series = series(scene).await;
        let total: f64 = series
            .iter()
            .filter(|(name, _)| name.starts_with("touchline_requests_total{"))
            .map(|(_, value)| value)
            .sum();
        ((total - requests).abs() < 0.5).then_some(series)
    })
    .await
}

#[tokio::test]
async fn the_metrics_report_what_happened() {
    for store in STORES {
        let mut scene = Scene::builder(TOUCHLINE).store(store).start().await;
        let key = scene.issue("starter").await;
        let client = scene.client(Protocol::Http1);
        for target in [MARKETS, MARKETS, RANKINGS, "/none"] {
            client.get(&key, target).await;
        }
        client.call(Call::get(MARKETS)).await;
        client.call(Call::new("DELETE", MARKETS).key(&key)).await;
        let long = format!("/{}", "a".repeat(9_000));
        client.call(Call::get(&long).key(&key)).await;
        scene.upstream.always(Behaviour::Status(503));
        client.get(&key, MARKETS).await;
        let series = counted(&scene, 8.0).await;
        let outcomes = [
            ("/api/v1/data/markets", "served", "starter", 2),
            ("/api/v1/data/markets", "INTERNAL_ERROR", "starter", 1),
            ("/api/v1/data/markets", "METHOD_NOT_ALLOWED", "starter", 1),
            ("/api/v1/data/rankings", "TIER_INSUFFICIENT", "starter", 1),
            ("none", "NOT_FOUND", "starter", 1),
            ("none", "MISSING_API_KEY", "none", 1),
            ("none", "URI_TOO_LONG", "none", 1),
        ];
        let requests = outcomes.map(|(endpoint, outcome, tier, count)| {
            let labels = format!("endpoint=\"{endpoint}\",outcome=\"{outcome}\",tier=\"{tier}\"");
            (format!("touchline_requests_total{{{labels}}}"), count)
        });
        let others = [
            (
                "touchline_request_duration_seconds_count{endpoint=\"/api/v1/data/markets\"}",
                4,
            ),
            (
                "touchline_upstream_duration_seconds_count{upstream=\"prediction-data\"}",
                3,
            ),
            (
                "touchline_store_duration_seconds_count{operation=\"charge\"}",
                3,
            ),
            (
                "touchline_store_duration_seconds_count{operation=\"refund\"}",
                1,
            ),
            (
                "touchline_quota_units_total{change=\"charged\",tier=\"starter\"}",
                3,
            ),
            (
                "touchline_quota_units_total{change=\"refunded\",tier=\"starter\"}",
                1,
            ),
            ("touchline_refunds_total{reason=\"failed\"}", 1),
            ("touchline_refunds_total{reason=\"slow\"}", 0),
            ("touchline_store_errors_total{operation=\"charge\"}", 0),
            (
                "touchline_quota_crossings_total{share=\"80\",tier=\"pro\"}",
                0,
            ),
            ("touchline_limit_hits_total{limit=\"target_bytes\"}", 1),
            ("touchline_limit_hits_total{limit=\"connections\"}", 0),
            ("touchline_in_flight_requests", 0),
            ("touchline_store_up", 1),
            ("touchline_keys", 1),
            ("touchline_access_log_dropped_lines_total", 0),
            (
                concat!(
                    "touchline_build_info{version=\"",
                    env!("CARGO_PKG_VERSION"),
                    "\"}"
                ),
                1,
            ),
        ]
        .map(|(name, value)| (name.to_owned(), value));
        for (name, value) in requests.into_iter().chain(others) {
            assert_eq!(
                series.get(&name),
                Some(&f64::from(value)),
                "{name} in {series:#?}"
            );
        }
        assert!(series["touchline_keys_age_seconds"] < 5.0);
        let errors = series
            .iter()
            .find(|(name, value)| name.contains("store_errors") && **value > 0.0);
        assert_eq!(errors, None);
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn units_are_counted_by_the_cost_of_their_endpoint() {
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.endpoints[0].cost = 3)
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for _ in 0..2 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    scene.upstream.always(Behaviour::Status(503));
    assert_eq!(client.get(&key, MARKETS).await.status, 500);
    let series = counted(&scene, 3.0).await;
    for (change, units) in [("charged", 9.0), ("refunded", 3.0)] {
        let labels = format!("change=\"{change}\",tier=\"starter\"");
        let name = format!("touchline_quota_units_total{{{labels}}}");
        assert_eq!(series.get(&name), Some(&units), "{change}");
    }
    scene.expect_used(&key, 6).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn access_log_lines_that_cannot_be_written_are_counted_across_reloads() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let good = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    let log = scene.gateways[0].access_log.display().to_string();
    let write_to = async |scene: &Scene, text: &str, reloads: f64| {
        scene.gateways[0].put_file(text);
        let applied = "touchline_config_reloads_total{outcome=\"applied\"}";
        eventually("the access log is written elsewhere", async || {
            let counted = series(scene).await[applied];
            (counted >= reloads).then_some(())
        })
        .await;
    };
    let dropped = "touchline_access_log_dropped_lines_total";
    let drops = async |scene: &Scene, lines: f64| {
        eventually("dropped lines are counted", async || {
            let counted = series(scene).await[dropped];
            assert!(counted <= lines, "{counted} of {lines}");
            (counted >= lines).then_some(())
        })
        .await;
    };
    // Every write to this device fails as on a full disk.
    let full = good.replace(&log, "/dev/full");
    assert_ne!(full, good);
    write_to(&scene, &full, 1.0).await;
    for _ in 0..3 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    drops(&scene, 3.0).await;
    write_to(&scene, &good, 2.0).await;
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    scene.gateways[0].logged(1).await;
    drops(&scene, 3.0).await;
    write_to(&scene, &full, 3.0).await;
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    drops(&scene, 4.0).await;
    let (_, text) = scene.admin(0, "/metrics").await;
    let kind = format!("# TYPE {dropped} counter");
    assert!(text.lines().any(|line| line == kind), "{text}");
    // Once for each of the two times that it was opened, not for each line.
    let reported = |output: &str| output.matches("the access log cannot be written").count();
    let output = eventually("both are reported", async || {
        let output = scene.gateways[0].output();
        (reported(&output) >= 2).then_some(output)
    })
    .await;
    assert_eq!(reported(&output), 2, "{output}");
    assert!(output.contains("\"destination\":\"/dev/full\""), "{output}");
}

#[tokio::test]
async fn the_metrics_describe_the_process() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    let id = scene.gateways[0].process().pid();
    let series = series(&scene).await;
    let started = series["process_start_time_seconds"];
    let age = now.as_secs_f64() - started;
    // The kernel's start of the system is rounded to a second.
    assert!((-2.0..300.0).contains(&age), "started {age} s ago");
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let threads = f64::from(u32::try_from(threads.count()).unwrap());
    let counted = series["process_threads"];
    assert!((counted - threads).abs() <= 4.0, "{counted} of {threads}");
    let (open, most) = (series["process_open_fds"], series["process_max_fds"]);
    assert!(3.0 < open && open < most, "{open} of {most}");
    let (resident, virtual_bytes) = (
        series["process_resident_memory_bytes"],
        series["process_virtual_memory_bytes"],
    );
    assert!(
        1e6 < resident && resident < virtual_bytes,
        "{resident} of {virtual_bytes}"
    );
    assert!(series["process_cpu_seconds_total"] >= 0.0);
}

/// A request with `seed` in everything that a client can choose.
fn hostile(seed: usize, key: &IssuedKey) -> Call {
    let word = format!("evil{seed}");
    let call = match seed % 4 {
        0 => Call::get(&format!("/{word}/{word}?{word}={word}")),
        1 => Call::new(&format!("M{word}"), MARKETS),
        2 => Call::get(&format!("/api/v1/data/predictions/{word}?q={word}")),
        _ => Call::get(RANKINGS),
    };
    let call = match seed % 3 {
        0 => call.key(key),
        1 => call.key(format!("fpd_{word}_{word}")),
        _ => call,
    };
    call.header("x-request-id", format!("{word}.{seed}"))
        .header("user-agent", &word)
        .header("x-consumer-tier", &word)
        .header("host", format!("{word}.example"))
}

#[tokio::test]
async fn nothing_that_clients_choose_becomes_a_label() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    // Every combination of the kinds above once.
    for seed in 0..12 {
        client.call(hostile(seed, &key)).await;
    }
    eventually("what the server answered is shown", async || {
        let (_, metrics) = scene.admin(0, "/metrics").await;
        let answered = "\ntouchline_upstream_server_answered{";
        metrics.contains(answered).then_some(())
    })
    .await;
    let before: Vec<String> = counted(&scene, 12.0).await.into_keys().collect();
    for seed in 12..212 {
        client.call(hostile(seed, &key)).await;
    }
    let after: Vec<String> = counted(&scene, 212.0).await.into_keys().collect();
    assert_eq!(after, before);
    // The addresses of an upstream's servers are the configuration's.
    let own = format!("server=\"{}\"", scene.upstream.address());
    let all = after.join("\n").replace(&own, "");
    for word in ["evil", "fpd_", &key.id, "127.0.0.1"] {
        assert!(!all.contains(word), "{word} in {all}");
    }
    scene.assert_ledgers_agree().await;
}

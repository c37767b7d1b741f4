//! The admin listener: `/livez`, `/readyz`, and where it is to be found.

use std::sync::Arc;
use std::time::Instant;

use harness::client::Until;
use harness::redis_nodes::ClusterSet;
use harness::{Answer, Call, Client, Protocol, SLACK, Scene, Store, StoreSpec, eventually};
use tokio::net::TcpStream;

use super::{MARKETS, STORES, TOUCHLINE};

const PATHS: [&str; 6] = [
    "/livez",
    "/readyz",
    "/config",
    "/metrics",
    "/dashboard",
    "/dashboard.json",
];

async fn ask(scene: &Scene, method: &str, path: &str) -> Answer {
    let address = scene.gateways[0].admin;
    let client = Client::new(Protocol::Http1, address, Arc::default());
    client.call(Call::new(method, path)).await
}

#[tokio::test]
async fn a_gateway_reports_that_it_lives_and_is_ready() {
    for store in STORES {
        let scene = Scene::builder(TOUCHLINE).store(store).start().await;
        scene.issue("starter").await;
        let live = ask(&scene, "GET", "/livez").await;
        assert_eq!((live.status, &live.json()["status"]), (200, &"live".into()));
        let ready = ask(&scene, "GET", "/readyz").await;
        assert_eq!(ready.status, 200, "{ready:?}");
        assert_eq!(ready.header("cache-control"), Some("no-store"));
        let mut body = ready.json();
        let age = body["keys_age_seconds"].take();
        assert!(body["without_store"].take().is_string());
        let config = body["config"].take();
        assert_eq!(config["hash"].as_str().unwrap().len(), 12, "{config}");
        assert!(config["applied"].is_string() && config["refused"].is_null());
        assert!(age.as_f64().unwrap() < 5.0, "{age}");
        let expected = serde_json::json!({
            "status": "ready",
            "draining": false,
            "store_up": true,
            "store_partly_up": false,
            "keys_loaded": true,
            "without_store": null,
            "pending_units": 0,
            "keys_age_seconds": null,
            "keys_usable": true,
            "keys": 1,
            "reasons": [],
            "config": null,
        });
        assert_eq!(body, expected);
        let metrics = ask(&scene, "GET", "/metrics").await;
        assert_eq!(
            metrics.header("content-type"),
            Some("text/plain; version=0.0.4; charset=utf-8")
        );
    }
}

#[tokio::test]
async fn a_gateway_that_denies_is_not_ready_without_its_redis_and_reports_why() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .spec(|spec| spec.redis_extra = "timeout: 100ms, outage: deny".into())
        .start()
        .await;
    for killed in [false, true] {
        let redis = scene.redis.as_mut().unwrap();
        if killed {
            redis.kill9();
        } else {
            redis.stop();
        }
        let body = eventually("not ready", async || {
            let ready = ask(&scene, "GET", "/readyz").await;
            (ready.status == 503).then(|| ready.json())
        })
        .await;
        assert_eq!(body["status"], "unready", "{body}");
        assert_eq!(body["store_up"], false, "{body}");
        assert_eq!(body["without_store"], "denies", "{body}");
        assert!(body["reasons"][0].is_string(), "{body}");
        assert_eq!(scene.metric("touchline_ready").await, 0.0);
        assert_eq!(ask(&scene, "GET", "/livez").await.status, 200);
        let redis = scene.redis.as_mut().unwrap();
        if killed {
            redis.restart().await;
        } else {
            redis.resume();
        }
        eventually("ready again", async || {
            let ready = ask(&scene, "GET", "/readyz").await;
            (ready.status == 200).then_some(())
        })
        .await;
        assert_eq!(scene.metric("touchline_ready").await, 1.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_denies_serves_on_without_one_master_of_a_cluster_and_is_unready_without_any()
 {
    let mut set = ClusterSet::start(0).await;
    let nodes = set.addresses();
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| {
            spec.store = StoreSpec::Cluster { nodes };
            spec.redis_extra = "timeout: 300ms, outage: deny".into();
        })
        .start()
        .await;
    let ready = ask(&scene, "GET", "/readyz").await;
    assert_eq!(
        (ready.status, &ready.json()["status"]),
        (200, &"ready".into())
    );
    let mut keys = Vec::new();
    for master in [0, 1] {
        keys.push(loop {
            let key = scene.issue("starter").await;
            if set.owner(&key.id).await == master {
                break key;
            }
        });
    }
    let client = scene.client(Protocol::Http1);
    set.nodes[1].kill();
    let body = eventually("degraded", async || {
        let ready = ask(&scene, "GET", "/readyz").await;
        assert_eq!(ready.status, 200);
        let body = ready.json();
        (body["status"] == "degraded").then_some(body)
    })
    .await;
    assert_eq!(body["store_up"], false, "{body}");
    assert_eq!(body["store_partly_up"], true, "{body}");
    assert_eq!(body["without_store"], "denies", "{body}");
    let reason = body["reasons"][0].as_str().unwrap();
    assert!(reason.contains("a master of the Redis Cluster"), "{body}");
    assert_eq!(client.get(&keys[0], MARKETS).await.status, 200);
    assert_eq!(client.get(&keys[1], MARKETS).await.status, 500);
    for node in [0, 2] {
        set.nodes[node].kill();
    }
    eventually("unready", async || {
        let ready = ask(&scene, "GET", "/readyz").await;
        (ready.status == 503).then_some(())
    })
    .await;
    assert_eq!(client.get(&keys[0], MARKETS).await.status, 500);
}

#[tokio::test]
async fn unknown_admin_paths_are_404_and_other_methods_405() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    for path in [
        "//",
        "/metrics/",
        "/Livez",
        "/admin",
        "/livez%00",
        "/dashboard/",
        "/dashboard.js",
    ] {
        assert_eq!(ask(&scene, "GET", path).await.status, 404, "{path}");
    }
    for path in PATHS {
        for method in ["POST", "DELETE", "PUT"] {
            let answer = ask(&scene, method, path).await;
            assert_eq!(answer.status, 405, "{method} {path}");
            assert_eq!(answer.header("allow"), Some("GET, HEAD"));
        }
        let answer = ask(&scene, "HEAD", path).await;
        assert_eq!((answer.status, answer.body.len()), (200, 0), "{path}");
        assert_eq!(ask(&scene, "GET", &format!("{path}?a=b")).await.status, 200);
    }
}

#[tokio::test]
async fn the_root_of_the_admin_listener_leads_to_the_dashboard() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    for method in ["GET", "HEAD"] {
        let answer = ask(&scene, method, "/").await;
        assert_eq!(answer.status, 302, "{method}");
        assert_eq!(answer.header("location"), Some("/dashboard"));
    }
    let posted = ask(&scene, "POST", "/").await;
    assert_eq!((posted.status, posted.header("location")), (405, None));
    assert_eq!(ask(&scene, "GET", "/dashboard").await.status, 200);
}

#[tokio::test]
async fn admin_paths_are_no_public_paths() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("enterprise").await;
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        for path in PATHS {
            assert_eq!(client.get(&key, path).await.status, 404);
            assert_eq!(client.call(Call::get(path)).await.status, 401);
        }
    }
    assert_eq!(scene.upstream.count(), 0);
    scene.assert_ledgers_agree().await;
}

/// Asks with these credentials.
async fn ask_as(scene: &Scene, path: &str, credentials: &str) -> Answer {
    let address = scene.gateways[0].admin;
    let client = Client::new(Protocol::Http1, address, Arc::default());
    let call = Call::get(path).header("Authorization", credentials);
    client.call(call).await
}

#[tokio::test]
async fn a_token_opens_the_metrics_and_health_needs_none() {
    const TOKEN: &str = "0123456789abcdef-token";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let admin = format!("token_file: \"{}\"", file.display());
    let scene = Scene::builder(TOUCHLINE)
        .spec(move |spec| spec.admin_extra = admin)
        .start()
        .await;
    assert_eq!(ask(&scene, "GET", "/livez").await.status, 200);
    let ready = ask(&scene, "GET", "/readyz").await;
    assert_eq!(ready.json(), serde_json::json!({ "status": "ready" }));
    let root = ask(&scene, "GET", "/").await;
    assert_eq!(
        (root.status, root.header("location")),
        (302, Some("/dashboard"))
    );
    for path in ["/metrics", "/config", "/none"] {
        let refused = ask(&scene, "GET", path).await;
        assert_eq!(refused.status, 401, "{path}");
        let challenge = refused.header("www-authenticate").unwrap();
        assert!(challenge.starts_with("Bearer "), "{challenge}");
        assert!(!String::from_utf8_lossy(&refused.body).contains("touchline_"));
    }
    for wrong in [
        "",
        "Bearer ",
        "Bearer x",
        TOKEN,
        "Basic 0123456789abcdef-token",
    ] {
        assert_eq!(
            ask_as(&scene, "/metrics", wrong).await.status,
            401,
            "{wrong}"
        );
    }
    let longer = format!("Bearer {TOKEN}x");
    assert_eq!(ask_as(&scene, "/metrics", &longer).await.status, 401);
    let right = format!("bearer {TOKEN}");
    let metrics = ask_as(&scene, "/metrics", &right).await;
    assert_eq!(metrics.status, 200);
    assert!(String::from_utf8_lossy(&metrics.body).contains("touchline_connections"));
    let ready = ask_as(&scene, "/readyz", &right).await.json();
    assert_eq!(ready["store_up"], true);
    let message = scene.gateways[0].output();
    assert!(!message.contains(TOKEN), "{message}");
}

#[tokio::test]
async fn without_a_token_every_admin_path_refuses_the_name_of_another_site() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let client = Client::new(Protocol::Http1, scene.gateways[0].admin, Arc::default());
    for path in PATHS.into_iter().chain(["/none"]) {
        for method in ["GET", "HEAD", "POST"] {
            for foreign in ["evil.example:9090", "127.0.0.1.evil.example", "gateway"] {
                let call = Call::new(method, path).header("Host", foreign);
                let answer = client.call(call).await;
                assert_eq!(answer.status, 421, "{method} {path} for {foreign}");
                assert_eq!(answer.body.is_empty(), method == "HEAD");
                if method != "HEAD" {
                    let hint = answer.json()["hint"].clone();
                    let hint = hint.as_str().unwrap();
                    for remedy in ["localhost", "an address", "listen.admin.token"] {
                        assert!(hint.contains(remedy), "{hint}");
                    }
                }
            }
        }
        let known = if path == "/none" { 404 } else { 200 };
        for own in ["localhost", "a.localhost:9090", "10.1.2.3:9090", "[::1]"] {
            let answer = client.call(Call::get(path).header("Host", own)).await;
            assert_eq!(answer.status, known, "{path} for {own}");
        }
    }
    let nameless = client.raw("GET /metrics HTTP/1.0\r\n\r\n", Until::Closed);
    assert_eq!(nameless.await.answers[0].status, 421);
}

#[tokio::test]
async fn a_connection_of_http_1_0_to_the_admin_listener_ends_with_its_answer() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let client = Client::new(Protocol::Http1, scene.gateways[0].admin, Arc::default());
    let asked = Instant::now();
    for path in PATHS {
        let probe = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        let answered = client.raw(&probe, Until::Closed).await;
        assert_eq!(answered.answers[0].status, 200, "{path}");
    }
    assert!(asked.elapsed() < SLACK);
}

#[tokio::test]
async fn with_a_token_the_admin_listener_is_asked_for_by_any_name() {
    const TOKEN: &str = "0123456789abcdef-token";
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.admin_extra = format!("token: {TOKEN}"))
        .start()
        .await;
    let client = Client::new(Protocol::Http1, scene.gateways[0].admin, Arc::default());
    for path in PATHS {
        let call = Call::get(path)
            .header("Host", "touchline.monitoring.svc:9090")
            .header("Authorization", format!("Bearer {TOKEN}"));
        assert_eq!(client.call(call).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn silent_connections_to_the_admin_listener_are_few_and_end() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let address = scene.gateways[0].admin;
    let mut silent = Vec::new();
    for _ in 0..70 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let ended = |silent: &[TcpStream]| {
        let mut byte = [0];
        let ended = |socket: &&TcpStream| matches!(socket.try_read(&mut byte), Ok(0));
        silent.iter().filter(ended).count()
    };
    let at_once = eventually("those beyond the limit are closed", async || {
        let ended = ended(&silent);
        (ended >= 6).then_some(ended)
    });
    assert_eq!(at_once.await, 6);
    // What opens many connections keeps no probe out.
    let (status, _) = scene.admin(0, "/livez").await;
    assert_eq!(status, 200);
    eventually("the others are closed too", async || {
        (ended(&silent) == silent.len()).then_some(())
    })
    .await;
    for limit in ["admin_connections", "admin_request"] {
        let series = format!("touchline_limit_hits_total{{limit=\"{limit}\"}}");
        assert!(scene.metric(&series).await > 0.0, "{limit}");
    }
}

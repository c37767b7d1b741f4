//! A changed `gateway.yaml`, applied to the running gateway or refused, and what neither of them touches.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use harness::gateway::EndpointSpec;
use harness::{Behaviour, Call, Client, Protocol, Scene, Store, eventually};
use serde_json::Value;

use super::certificates::write_pair;
use super::{MARKETS, RANKINGS, STORES, TOUCHLINE};

/// Makes a named pipe that nothing writes into.
fn put_pipe(place: &Path) {
    let made = Command::new("mkfifo").arg(place).status();
    assert!(made.unwrap().success());
}

/// The part of `/readyz` about the configuration.
async fn config_of(scene: &Scene) -> Value {
    let (status, body) = scene.admin(0, "/readyz").await;
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    body["config"].clone()
}

/// Waits until another configuration than that of `before` runs and nothing is refused.
async fn applied_after(scene: &Scene, before: &Value) -> Value {
    eventually("another configuration is applied", async || {
        let config = config_of(scene).await;
        (config["hash"] != before["hash"] && config["refused"].is_null()).then_some(config)
    })
    .await
}

/// Waits until a file is refused for a reason with all of `words`; the reason.
async fn refused_with(scene: &Scene, words: &[&str]) -> String {
    eventually(&format!("refused: {words:?}"), async || {
        let config = config_of(scene).await;
        let reason = config["refused"]["reason"].as_str()?.to_owned();
        words
            .iter()
            .all(|word| reason.contains(word))
            .then_some(reason)
    })
    .await
}

/// A sample of `/metrics`.
async fn sample(scene: &Scene, name: &str) -> Option<f64> {
    let (_, metrics) = scene.admin(0, "/metrics").await;
    let line = metrics.lines().find(|line| line.starts_with(name))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

/// Waits for `count` lines of the diagnostic log with this message, which are written a moment after `/readyz` and `/metrics`
/// show what they report, and finds no more than these.
async fn logged(scene: &mut Scene, message: &str, count: usize) -> Vec<Value> {
    let file = scene.gateways[0].process().stderr.clone();
    let lines = eventually(&format!("logged: {message}"), async || {
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|line| line["message"] == message)
            .collect();
        (lines.len() >= count).then_some(lines)
    })
    .await;
    assert_eq!(lines.len(), count, "{lines:?}");
    lines
}

/// The line (from 1) of the first line of the gateway's file that contains `word`.
fn line_of(scene: &Scene, word: &str) -> usize {
    let text = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    1 + text.lines().position(|line| line.contains(word)).unwrap()
}

#[tokio::test]
async fn a_changed_limit_holds_from_the_next_request_and_touches_no_count() {
    for store in STORES {
        let mut scene = Scene::builder(TOUCHLINE)
            .store(store)
            .daily("starter", 3)
            .start()
            .await;
        let key = scene.issue("starter").await;
        let client = scene.client(Protocol::Http1);
        for _ in 0..3 {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
        }
        assert_eq!(client.get(&key, MARKETS).await.status, 429);
        let before = config_of(&scene).await;
        scene.spec.tiers[0].daily = 5;
        scene.gateways[0].configure(&scene.spec);
        let after = applied_after(&scene, &before).await;
        for remaining in ["1", "0"] {
            let answer = client.get(&key, MARKETS).await;
            assert_eq!(answer.status, 200);
            assert_eq!(answer.header("x-ratelimit-limit"), Some("5"));
            assert_eq!(answer.header("x-ratelimit-remaining"), Some(remaining));
        }
        assert_eq!(client.get(&key, MARKETS).await.status, 429);

        let (_, metrics) = scene.admin(0, "/metrics").await;
        let hashes: Vec<&str> = metrics
            .lines()
            .filter(|line| line.starts_with("touchline_config_info{"))
            .collect();
        let hash = after["hash"].as_str().unwrap();
        assert_eq!(
            hashes,
            [format!("touchline_config_info{{hash=\"{hash}\"}} 1")]
        );
        let reply = logged(&mut scene, "configuration applied", 1).await;
        assert_eq!(reply[0]["configuration"], hash);
        assert_eq!(reply[0]["previous"], before["hash"]);
        assert_eq!(reply[0]["cause"], "change");
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_raised_limit_of_headers_holds_on_open_http2_connections_too() {
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.extra_yaml = "limits: { header_count: 64 }".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http2Tls);
    let many = || {
        let call = Call::get(MARKETS).key(&key);
        (0..80).fold(call, |call, number| {
            call.header(&format!("x-{number}"), "1")
        })
    };
    assert_eq!(client.call(many()).await.status, 431);
    let before = config_of(&scene).await;
    scene.spec.extra_yaml = "limits: { header_count: 128 }".into();
    scene.gateways[0].configure(&scene.spec);
    applied_after(&scene, &before).await;
    assert_eq!(client.call(many()).await.status, 200);
    scene.expect_used(&key, 1).await;
}

#[tokio::test]
async fn tiers_endpoints_upstreams_limits_and_keys_change_live() {
    let mut scene = Scene::builder(TOUCHLINE).more_servers(1).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http2Tls);
    assert_eq!(client.get(&key, RANKINGS).await.status, 403);
    assert_eq!(client.get(&key, "/api/v1/data/new").await.status, 404);
    let document = client.call(Call::get("/openapi.json")).await;
    let before = config_of(&scene).await;
    scene.spec.endpoints[5].tiers.push("starter".into());
    let new = EndpointSpec::get("/api/v1/data/new", &["starter"]);
    scene.spec.endpoints.push(new);
    scene.spec.upstream = scene.more_upstreams[0].address();
    scene.spec.more_servers.clear();
    scene.spec.extra_yaml = "limits: { header_count: 8 }\nkeys: { realm: elsewhere }".into();
    scene.gateways[0].configure(&scene.spec);
    applied_after(&scene, &before).await;
    assert_eq!(client.get(&key, RANKINGS).await.status, 200);
    assert_eq!(client.get(&key, "/api/v1/data/new").await.status, 200);
    assert_eq!(scene.upstream.count(), 0);
    assert_eq!(scene.more_upstreams[0].count(), 2);
    let changed = client.call(Call::get("/openapi.json")).await;
    assert_ne!(document.header("etag"), changed.header("etag"));
    let nobody = client.call(Call::get(MARKETS)).await;
    let challenge = nobody.header("www-authenticate").unwrap();
    assert!(challenge.contains("elsewhere"), "{challenge}");
    let mut call = Call::get(MARKETS).key(&key);
    for number in 0..9 {
        call = call.header(&format!("x-{number}"), "a");
    }
    assert_eq!(client.call(call).await.status, 431);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_file_that_is_rewritten_replaced_or_swapped_by_a_symbolic_link_is_noticed() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let config = scene.gateways[0].config.clone();
    let log = scene.gateways[0].access_log.clone();
    let mut limit = 100;
    let mut next = |scene: &Scene| {
        limit += 1;
        let mut spec = scene.spec.clone();
        spec.tiers[0].daily = limit;
        (limit.to_string(), spec.yaml(&log))
    };
    // The file becomes a link through a directory that is itself a link, as Kubernetes mounts it.
    let at = scene.directory().join("mounted");
    let version = |number: u32, text: &str| {
        let directory = at.join(format!("..{number}"));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("gateway.yaml"), text).unwrap();
        let link = at.join("..next");
        std::os::unix::fs::symlink(format!("..{number}"), &link).unwrap();
        std::fs::rename(link, at.join("..data")).unwrap();
    };
    let client = scene.client(Protocol::Http1);
    for way in ["rewritten", "replaced", "linked", "swapped"] {
        let before = config_of(&scene).await;
        let (limit, text) = next(&scene);
        match way {
            "rewritten" => std::fs::write(&config, text).unwrap(),
            "replaced" => scene.gateways[0].put_file(&text),
            "linked" => {
                version(1, &text);
                let link = config.with_extension("link");
                std::os::unix::fs::symlink(at.join("..data/gateway.yaml"), &link).unwrap();
                std::fs::rename(link, &config).unwrap();
            }
            _ => version(2, &text),
        }
        applied_after(&scene, &before).await;
        let answer = client.get(&key, MARKETS).await;
        assert_eq!(answer.header("x-ratelimit-limit"), Some(&*limit), "{way}");
    }
}

#[tokio::test]
async fn a_hangup_signal_has_the_file_read_again() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    for reloads in 1..=3 {
        scene.gateways[0].process().hang_up();
        eventually("read again", async || {
            let name = "touchline_config_reloads_total{outcome=\"applied\"}";
            (sample(&scene, name).await == Some(f64::from(reloads))).then_some(())
        })
        .await;
    }
    let reply = logged(&mut scene, "configuration applied", 3).await;
    assert!(reply.iter().all(|line| line["cause"] == "signal"));
}

#[tokio::test]
async fn a_file_that_cannot_be_used_leaves_the_last_good_one_in_force_and_reports_why() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let before = config_of(&scene).await;
    let good = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    let started = sample(&scene, "touchline_config_applied_timestamp_seconds").await;
    assert_eq!(sample(&scene, "touchline_config_refused").await, Some(0.0));
    scene.gateways[0].put_file(&good.replace("daily: 1000", "dayly: 1000"));
    let line = format!("yaml:{}:", line_of(&scene, "dayly"));
    let reason = refused_with(&scene, &["tiers.starter.dayly", "did you mean", &line]).await;
    let refused = config_of(&scene).await;
    assert_eq!(refused["hash"], before["hash"]);
    assert_eq!(refused["applied"], before["applied"]);
    let client = scene.client(Protocol::Http1);
    let answer = client.get(&key, MARKETS).await;
    assert_eq!(answer.header("x-ratelimit-limit"), Some("1000"));
    assert_eq!(sample(&scene, "touchline_config_refused").await, Some(1.0));
    let applied = sample(&scene, "touchline_config_applied_timestamp_seconds").await;
    assert_eq!(applied, started);
    let name = "touchline_config_reloads_total{outcome=\"refused\"}";
    assert_eq!(sample(&scene, name).await, Some(1.0));
    let refusal = "configuration refused: the last valid one stays";
    let reply = logged(&mut scene, refusal, 1).await;
    assert_eq!(reply[0]["reason"], reason);
    assert_eq!(reply[0]["configuration"], before["hash"]);

    std::fs::remove_file(&scene.gateways[0].config).unwrap();
    refused_with(&scene, &["cannot read the file", "restore the file"]).await;
    put_pipe(&scene.gateways[0].config);
    refused_with(&scene, &["cannot read the file: it is not a regular file"]).await;
    scene.gateways[0].put_file(&good);
    let after = eventually("the good file is in force again", async || {
        let config = config_of(&scene).await;
        config["refused"].is_null().then_some(config)
    })
    .await;
    assert_eq!(after["hash"], before["hash"]);
    assert_eq!(sample(&scene, "touchline_config_refused").await, Some(0.0));
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn what_only_a_restart_changes_is_refused_with_its_key_and_line() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let before = config_of(&scene).await;
    let good = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    let store = good
        .lines()
        .find(|line| line.contains("embedded:"))
        .unwrap()
        .to_owned();
    let durable = store.replace(" }", ", durability: commit }");
    let elsewhere = store.replace("touchline.db", "other.db");
    for (old, new, path) in [
        (
            "http: { address: \"127.0.0.1:0\" }",
            "http: { address: \"127.0.0.1:1\" }",
            "listen.http.address",
        ),
        (
            "https: { address: \"127.0.0.1:0\"",
            "https: { address: \"127.0.0.1:1\"",
            "listen.https.address",
        ),
        (
            "admin: { address: \"127.0.0.1:0\" }",
            "admin: { address: \"127.0.0.1:1\" }",
            "listen.admin.address",
        ),
        (&*store, &*elsewhere, "store.embedded.path"),
        (&*store, &*durable, "store.embedded.durability"),
        (&*store, "  redis: {}", "store"),
        ("timezone: UTC", "timezone: Europe/London", "quota.timezone"),
        ("threads: 1", "threads: 2", "runtime.threads"),
    ] {
        assert!(good.contains(old), "{old}");
        // What could change goes with what cannot: nothing of the file is applied.
        let text = good.replace(old, new).replace("daily: 1000", "daily: 7");
        scene.gateways[0].put_file(&text);
        let line = if path == "store" { "store:" } else { new };
        let position = format!("yaml:{}:", line_of(&scene, line));
        let reported = format!(": {path}: a change of this key needs a restart");
        let reason = refused_with(&scene, &[&position, &reported]).await;
        assert_eq!(reason.lines().count(), 1, "{reason}");
    }
    assert_eq!(config_of(&scene).await["hash"], before["hash"]);
    let answer = scene.client(Protocol::Http1).get(&key, MARKETS).await;
    assert_eq!(answer.header("x-ratelimit-limit"), Some("1000"));
    scene.gateways[0].put_file(&good);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_tier_that_keys_hold_stays_until_they_hold_another() {
    for store in STORES {
        let mut scene = Scene::builder(TOUCHLINE).store(store).start().await;
        let [one, other, gone] = [
            scene.issue("pro").await,
            scene.issue("pro").await,
            scene.issue("pro").await,
        ];
        scene.revoke(&gone).await;
        scene.cli(&["keys", "suspend", &other.id, "--yes"]).await;
        let before = config_of(&scene).await;
        let with_pro = scene.spec.clone();
        scene.spec.tiers.remove(1);
        for endpoint in &mut scene.spec.endpoints {
            endpoint.tiers.retain(|tier| tier != "pro");
        }
        scene.gateways[0].configure(&scene.spec);
        let line = format!("yaml:{}:", line_of(&scene, "tiers:"));
        refused_with(&scene, &[&line, "pro is removed, but 2 keys have it"]).await;
        let client = scene.client(Protocol::Http1);
        let answer = client.get(&one, MARKETS).await;
        assert_eq!(answer.header("x-ratelimit-limit"), Some("3000"));
        for key in [&one, &other] {
            scene
                .cli(&["keys", "set-tier", &key.id, "enterprise"])
                .await;
        }
        // The file need not be written again for that.
        applied_after(&scene, &before).await;
        let answer = client.get(&one, MARKETS).await;
        assert_eq!(answer.header("x-ratelimit-limit"), Some("10000"));
        scene.spec = with_pro;
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn whether_keys_hold_a_tier_is_not_guessed_while_redis_is_unavailable() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .spec(|spec| spec.redis_extra = "timeout: 100ms".into())
        .start()
        .await;
    let before = config_of(&scene).await;
    scene.redis.as_mut().unwrap().kill9();
    scene.spec.tiers.remove(1);
    for endpoint in &mut scene.spec.endpoints {
        endpoint.tiers.retain(|tier| tier != "pro");
    }
    scene.gateways[0].configure(&scene.spec);
    refused_with(&scene, &["pro is removed", "unknown"]).await;
    scene.redis.as_mut().unwrap().restart().await;
    applied_after(&scene, &before).await;
}

#[tokio::test]
async fn whether_keys_hold_a_tier_is_not_guessed_by_a_key_table_that_is_not_current() {
    let mut scene = Scene::builder(TOUCHLINE).store(Store::Redis).start().await;
    let before = config_of(&scene).await;
    let user = ["ACL", "SETUSER", "default"];
    let redis = scene.redis.as_ref().unwrap();
    // The gateway may charge, but not read which keys change.
    let limited = [&user[..], &["-xread", "-xinfo"]].concat();
    redis.command(&limited).await.unwrap();
    eventually("the key table is not current", async || {
        let age = sample(&scene, "touchline_keys_age_seconds").await;
        age.filter(|age| *age > 5.0)
    })
    .await;
    scene.spec.tiers.remove(1);
    for endpoint in &mut scene.spec.endpoints {
        endpoint.tiers.retain(|tier| tier != "pro");
    }
    scene.gateways[0].configure(&scene.spec);
    refused_with(&scene, &["pro is removed", "unknown"]).await;
    let redis = scene.redis.as_ref().unwrap();
    let whole = [&user[..], &["+xread", "+xinfo"]].concat();
    redis.command(&whole).await.unwrap();
    applied_after(&scene, &before).await;
}

#[tokio::test]
async fn a_request_under_way_ends_under_the_configuration_it_began_with() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("enterprise").await;
    // Longer than the other configuration will allow.
    let slow = Behaviour::Delay(Duration::from_secs(5), Box::new(Behaviour::Echo));
    scene.upstream.always(slow);
    let client = scene.client(Protocol::Http1);
    let call = Call::get(RANKINGS).key(&key);
    let under_way = tokio::spawn(async move { client.call(call).await });
    eventually("at the upstream", async || {
        (scene.upstream.count() == 1).then_some(())
    })
    .await;
    let before = config_of(&scene).await;
    let mut without = scene.spec.clone();
    without.endpoints.remove(5);
    without.timeouts.insert("read".into(), "100ms".into());
    scene.gateways[0].configure(&without);
    applied_after(&scene, &before).await;
    let other = scene.client(Protocol::Http1);
    assert_eq!(other.get(&key, RANKINGS).await.status, 404);
    assert_eq!(other.get(&key, MARKETS).await.status, 500);
    let answer = under_way.await.unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-ratelimit-limit"), Some("10000"));
    scene.gateways[0].configure(&scene.spec);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn connections_of_clients_and_to_upstreams_outlive_a_reload() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for protocol in Protocol::ALL {
        let already = scene.upstream.count();
        let client = scene.client(protocol);
        for limit in [2_000, 3_000, 4_000] {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
            let before = config_of(&scene).await;
            scene.spec.tiers[0].daily = limit;
            scene.gateways[0].configure(&scene.spec);
            applied_after(&scene, &before).await;
        }
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        let connections: Vec<u64> = scene.upstream.recorded()[already..]
            .iter()
            .map(|request| request.connection)
            .collect();
        assert_eq!(connections, [connections[0]; 4], "{protocol:?}");
        scene.spec.tiers[0].daily = 1_000;
        let before = config_of(&scene).await;
        scene.gateways[0].configure(&scene.spec);
        applied_after(&scene, &before).await;
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn renewed_certificate_files_are_presented_from_the_next_handshake_on() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let (first, second) = (write_pair(at, "first"), write_pair(at, "second"));
    let names = (at.join("live.pem"), at.join("live.key"));
    let put = |from: &Path, to: &Path| {
        let next = to.with_extension("next");
        std::fs::copy(from, &next).unwrap();
        std::fs::rename(next, to).unwrap();
    };
    put(&first.certificate, &names.0);
    put(&first.key, &names.1);
    let configured = names.clone();
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.certificate = Some(configured))
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http2Tls);
    assert_eq!(client.presented_certificate().await, first.der);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    let refused = || scene.gateways[0].output().contains("does not belong");
    put(&second.certificate, &names.0);
    eventually("a pair that does not match is refused", async || {
        refused().then_some(())
    })
    .await;
    assert_eq!(client.presented_certificate().await, first.der);
    put(&second.key, &names.1);
    eventually("the renewed certificate is presented", async || {
        (client.presented_certificate().await == second.der).then_some(())
    })
    .await;
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    assert!(config_of(&scene).await["refused"].is_null());
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_hangup_signal_applies_a_secret_of_a_file_also_while_a_certificate_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let pair = write_pair(at, "pair");
    let token = at.join("token");
    let (old, new) = ("0123456789abcdef-old", "0123456789abcdef-new");
    std::fs::write(&token, old).unwrap();
    let admin = format!("token_file: \"{}\"", token.display());
    let configured = (pair.certificate.clone(), pair.key.clone());
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| {
            spec.certificate = Some(configured);
            spec.admin_extra = admin;
        })
        .start()
        .await;
    let opens = async |scene: &Scene, token: &str| {
        let address = scene.gateways[0].admin;
        let client = Client::new(Protocol::Http1, address, Arc::default());
        let call = Call::get("/metrics").header("Authorization", format!("Bearer {token}"));
        client.call(call).await.status == 200
    };
    assert!(opens(&scene, old).await);
    // To open it would wait for its writer.
    std::fs::remove_file(&pair.certificate).unwrap();
    put_pipe(&pair.certificate);
    eventually("the certificate is refused", async || {
        let output = scene.gateways[0].output();
        output.contains("certificate refused").then_some(())
    })
    .await;
    std::fs::write(&token, new).unwrap();
    scene.gateways[0].process().hang_up();
    eventually("the new token is applied", async || {
        opens(&scene, new).await.then_some(())
    })
    .await;
    assert!(!opens(&scene, old).await);
}

#[tokio::test]
async fn a_certificate_at_another_path_is_known_by_it_also_with_the_same_contents() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let first = write_pair(at, "first");
    let moved = (at.join("moved.pem"), at.join("moved.key"));
    std::fs::copy(&first.certificate, &moved.0).unwrap();
    std::fs::copy(&first.key, &moved.1).unwrap();
    let configured = (first.certificate.clone(), first.key.clone());
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.certificate = Some(configured))
        .start()
        .await;
    let client = scene.client(Protocol::Http2Tls);
    let before = config_of(&scene).await;
    scene.spec.certificate = Some(moved.clone());
    scene.gateways[0].configure(&scene.spec);
    applied_after(&scene, &before).await;
    let end_of = |file: &Path| {
        let file = file.display();
        format!("touchline_certificate_end_seconds{{certificate=\"{file}\"}}")
    };
    assert!(sample(&scene, &end_of(&moved.0)).await.is_some());
    assert_eq!(sample(&scene, &end_of(&first.certificate)).await, None);

    std::fs::write(&moved.0, "rubbish").unwrap();
    let before = config_of(&scene).await;
    scene.spec.tiers[0].daily = 7;
    scene.gateways[0].configure(&scene.spec);
    eventually("the rest of the file is applied", async || {
        let config = config_of(&scene).await;
        (config["hash"] != before["hash"]).then_some(())
    })
    .await;
    refused_with(&scene, &["moved.pem"]).await;
    assert_eq!(client.presented_certificate().await, first.der);
}

#[tokio::test]
async fn the_self_signed_certificate_stays_the_same_over_reloads() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let client = scene.client(Protocol::Http2Tls);
    let presented = client.presented_certificate().await;
    let before = config_of(&scene).await;
    scene.spec.tiers[0].daily = 7;
    scene.gateways[0].configure(&scene.spec);
    applied_after(&scene, &before).await;
    assert_eq!(client.presented_certificate().await, presented);
}

#[tokio::test]
async fn log_level_format_and_the_access_logs_place_change_live() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    let elsewhere = scene.directory().join("elsewhere.log");
    let good = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    let old = scene.gateways[0].access_log.clone();
    let text = good
        .replace(old.to_str().unwrap(), elsewhere.to_str().unwrap())
        .replace("format: json", "format: pretty");
    assert_ne!(text, good);
    let before = config_of(&scene).await;
    scene.gateways[0].put_file(&text);
    let after = applied_after(&scene, &before).await;
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    let written = |file: &Path| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().count()
    };
    eventually("the second line is elsewhere", async || {
        (written(&elsewhere) == 1).then_some(())
    })
    .await;
    assert_eq!(written(&old), 1);
    let reply = scene.gateways[0].output();
    assert!(
        reply.contains("configuration applied configuration="),
        "{reply}"
    );

    let hash = after["hash"].as_str().unwrap().to_owned();
    scene.gateways[0].put_file(&text.replace("level: info", "level: error"));
    let quiet = applied_after(&scene, &after).await;
    let now = quiet["hash"].as_str().unwrap();
    let reply = scene.gateways[0].output();
    assert!(reply.contains(&hash) && !reply.contains(now), "{reply}");
    scene.gateways[0].put_file(&good.replace("level: info", "level: nonsense"));
    refused_with(&scene, &["logging.level"]).await;
    let reply = scene.gateways[0].output();
    assert!(
        !reply.contains("configuration refused"),
        "only errors: {reply}"
    );

    let nowhere = scene.directory().join("no/such/directory/access.log");
    scene.gateways[0]
        .put_file(&text.replace(elsewhere.to_str().unwrap(), nowhere.to_str().unwrap()));
    refused_with(&scene, &["logging.access_log", "no/such/directory"]).await;
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    eventually("the third line is elsewhere too", async || {
        (written(&elsewhere) == 2).then_some(())
    })
    .await;
}

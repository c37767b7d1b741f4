//! While Redis cannot be used and nothing is to be served without it: an honest 500 at once, nothing charged, and recovery without a hand.

use std::time::{Duration, Instant};

use harness::{Answer, Call, Client, IssuedKey, Protocol, Scene, Store, eventually};
use touchline::policy::api_key::{ApiKey, KeyId, os_entropy};

use super::{MARKETS, RANKINGS, TOUCHLINE, closed_pipe, run_beside, run_into};

/// How a Redis goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// SIGKILL: connections break, new ones are refused.
    Killed,
    /// The same, and it comes back without its data.
    Emptied,
    /// SIGSTOP: connections stay, nothing answers.
    Hung,
}

const LOSSES: [Loss; 3] = [Loss::Killed, Loss::Emptied, Loss::Hung];
/// The store's timeout in [`scene`].
const TIMEOUT: Duration = Duration::from_millis(100);
/// A reading of the usage waits less than a command does.
const USAGE_DEADLINE: Duration = Duration::from_secs(5);

async fn scene(loss: Loss) -> (Scene, IssuedKey) {
    let builder = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .spec(|spec| spec.redis_extra = "timeout: 100ms, outage: deny".into());
    let builder = match loss {
        Loss::Emptied => builder,
        Loss::Killed | Loss::Hung => builder.durable_redis(),
    };
    let scene = builder.start().await;
    let key = scene.issue("starter").await;
    // On a loaded machine a charge may take longer than the timeout; it costs nothing then.
    served(&scene.client(Protocol::Http1), &key).await;
    (scene, key)
}

fn lose(scene: &mut Scene, loss: Loss) {
    let redis = scene.redis.as_mut().unwrap();
    match loss {
        Loss::Killed | Loss::Emptied => redis.kill9(),
        Loss::Hung => redis.stop(),
    }
}

async fn find_again(scene: &mut Scene, loss: Loss) {
    let redis = scene.redis.as_mut().unwrap();
    match loss {
        Loss::Killed | Loss::Emptied => redis.restart().await,
        Loss::Hung => redis.resume(),
    }
}

#[track_caller]
fn assert_internal_error(answer: &Answer) {
    assert_eq!(answer.status, 500, "{answer:?}");
    assert_eq!(answer.code().as_deref(), Some("INTERNAL_ERROR"));
    let pause = answer.number("retry-after");
    assert!(pause.is_some_and(|seconds| seconds >= 1), "{answer:?}");
}

/// Polls until the key is served, once.
async fn served(client: &Client, key: &IssuedKey) {
    eventually("served without a restart", async || {
        let answer = client.get(key, MARKETS).await;
        (answer.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn without_redis_calls_end_in_500_uncharged_until_it_returns() {
    for loss in LOSSES {
        let (mut scene, key) = scene(loss).await;
        let client = scene.client(Protocol::Http1);
        let read_usage = async || {
            let began = Instant::now();
            assert_internal_error(&client.get(&key, "/api/v1/usage").await);
            assert!(began.elapsed() < USAGE_DEADLINE, "{loss:?}");
        };
        let before = scene.client_ledger().entries().len();
        scene.gateways[0].logged(before).await;
        lose(&mut scene, loss);
        read_usage().await;
        let mut slow = 0;
        for _ in 0..100 {
            let began = Instant::now();
            let answer = client.get(&key, MARKETS).await;
            slow += u32::from(began.elapsed() >= TIMEOUT);
            assert_internal_error(&answer);
            assert_eq!(answer.number("x-ratelimit-limit"), Some(1_000));
            assert!(answer.number("x-ratelimit-reset").is_some());
        }
        // The first calls find out, at most by two timeouts; from then on none waits for the store.
        assert!(slow < 50, "{loss:?}: {slow} calls waited for the store");
        read_usage().await;
        let lines = scene.gateways[0].logged(before + 102).await;
        let waited = |line: &serde_json::Value| {
            Duration::from_secs_f64(line["store_ms"].as_f64().unwrap() / 1e3)
        };
        let mut waits: Vec<Duration> = lines[before..].iter().map(waited).collect();
        waits.sort();
        assert!(waits[91] < TIMEOUT, "{loss:?}: {waits:?}");
        assert!(waits[101] < USAGE_DEADLINE, "{loss:?}: {waits:?}");
        assert_eq!(scene.upstream.count(), 1, "nothing was forwarded");
        find_again(&mut scene, loss).await;
        served(&client, &key).await;
        scene.expect_used(&key, 2).await;
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn commands_that_read_an_emptied_redis_fail_instead_of_reporting_nothing() {
    let mut scene = Scene::builder(TOUCHLINE).store(Store::Redis).start().await;
    let key = scene.issue("starter").await;
    assert!(scene.gateways[0].terminate().success());
    let flushed = scene.redis.as_ref().unwrap().command(&["FLUSHALL"]).await;
    assert_eq!(flushed.unwrap(), "+OK\r\n");
    let file = scene.directory().join("backup.jsonl");
    let commands = [
        &["usage"][..],
        &["usage", "verify"],
        &["usage", "invoice", "--month", "2026-11"],
        &["keys", "list"],
        &["keys", "export"],
        &["keys", "show", &key.id],
        &["audit"],
        &["store", "backup", file.to_str().unwrap()],
        &["store", "backup", "-"],
    ];
    // Each waits for gateways that might write the keys back.
    let runs = commands.map(|words| run_beside(&scene.gateways[0], words));
    for run in futures_util::future::join_all(runs).await {
        let message = run.failed(1);
        assert!(message.contains("this Redis has no keys"), "{message}");
    }
    assert!(!file.exists());
    let status = run_beside(&scene.gateways[0], &["store", "status"]).await;
    assert!(status.done().contains("not complete"));
    // The first key of an empty store, or after its loss: others may be missing.
    let issue = ["keys", "issue", "--tier", "pro", "--customer", "New"];
    run_beside(&scene.gateways[0], &issue).await.done();
    let list = run_beside(&scene.gateways[0], &["keys", "list"]).await;
    assert!(list.stderr.contains("no gateway has run"), "{list:?}");
    assert!(list.done().contains("New"));
    scene.gateways[0].restart().await;
    eventually("the gateway has written back its keys", async || {
        let list = run_beside(&scene.gateways[0], &["keys", "list"]).await;
        (list.stderr.is_empty() && list.done().contains(&key.id)).then_some(())
    })
    .await;
    // Commands wait for a gateway that runs.
    let flushed = scene.redis.as_ref().unwrap().command(&["FLUSHALL"]).await;
    assert_eq!(flushed.unwrap(), "+OK\r\n");
    let revoke = ["keys", "revoke", &key.id, "--yes"];
    run_beside(&scene.gateways[0], &revoke).await.done();
}

#[tokio::test]
async fn without_redis_free_answers_come_without_what_is_not_known() {
    for loss in LOSSES {
        let (mut scene, key) = scene(loss).await;
        let client = scene.client(Protocol::Http2Tls);
        lose(&mut scene, loss);
        for (target, status) in [(RANKINGS, 403), ("/none", 404)] {
            // What was learnt a moment ago may be reported for that moment.
            let answer = eventually("nothing fresh is known", async || {
                let answer = client.get(&key, target).await;
                assert_eq!(answer.status, status, "{loss:?} {answer:?}");
                answer
                    .header("x-ratelimit-remaining")
                    .is_none()
                    .then_some(answer)
            })
            .await;
            assert_eq!(answer.header("ratelimit"), None, "{answer:?}");
            assert_eq!(answer.number("x-ratelimit-limit"), Some(1_000));
            assert!(answer.number("x-ratelimit-reset").is_some());
            assert!(answer.header("ratelimit-policy").is_some());
        }
        let refused = [
            (Call::get(MARKETS), "MISSING_API_KEY"),
            (Call::get(MARKETS).key(""), "MISSING_API_KEY"),
            (Call::get(MARKETS).key("nonsense"), "INVALID_API_KEY"),
        ];
        for (call, code) in refused {
            let answer = client.call(call).await;
            assert_eq!((answer.status, answer.code().as_deref()), (401, Some(code)));
        }
        let malformed = Call::get("/api//v1").key(&key);
        assert_eq!(client.call(malformed).await.status, 400);
        find_again(&mut scene, loss).await;
        served(&scene.client(Protocol::Http1), &key).await;
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn an_unknown_key_is_refused_only_while_the_key_table_is_current() {
    let (mut scene, key) = scene(Loss::Killed).await;
    let client = scene.client(Protocol::Http1);
    let stranger = ApiKey::generate(&"fpd".parse().unwrap(), &mut os_entropy);
    let unknown = || Call::get(MARKETS).key(stranger.reveal());
    eventually("the key table is current", async || {
        (client.call(unknown()).await.status == 401).then_some(())
    })
    .await;
    lose(&mut scene, Loss::Killed);
    let answer = eventually("the key table is too old to deny", async || {
        let answer = client.call(unknown()).await;
        assert!([401, 500].contains(&answer.status), "{answer:?}");
        (answer.status == 500).then_some(answer)
    })
    .await;
    assert_internal_error(&answer);
    assert_eq!(
        answer.header("x-ratelimit-limit"),
        None,
        "no quota status without a key"
    );
    assert_internal_error(&client.get(&key, MARKETS).await);
    find_again(&mut scene, Loss::Killed).await;
    eventually("the key table is current again", async || {
        (client.call(unknown()).await.status == 401).then_some(())
    })
    .await;
    served(&client, &key).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_gateway_started_without_its_redis_becomes_ready_when_it_comes() {
    let (mut scene, key) = scene(Loss::Killed).await;
    // Its counts are in Redis once it has signed off.
    scene.gateways[0].terminate();
    lose(&mut scene, Loss::Killed);
    scene.gateways[0].restart().await;
    let (status, body) = scene.admin(0, "/readyz").await;
    assert_eq!(status, 503, "{body}");
    assert_eq!(scene.admin(0, "/livez").await.0, 200);
    let client = scene.client(Protocol::Http1);
    assert_internal_error(&client.get(&key, MARKETS).await);
    assert_eq!(client.call(Call::get(MARKETS)).await.status, 401);
    find_again(&mut scene, Loss::Killed).await;
    eventually("ready", async || {
        (scene.admin(0, "/readyz").await.0 == 200).then_some(())
    })
    .await;
    served(&client, &key).await;
    scene.expect_used(&key, 2).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_key_that_may_have_been_issued_is_named_with_what_to_do() {
    let (scene, _) = scene(Loss::Hung).await;
    let redis = scene.redis.as_ref().unwrap();
    // Reads are answered, writes are not.
    let pause = ["CLIENT", "PAUSE", "60000", "WRITE"];
    redis.command(&pause).await.unwrap();
    let issue = ["keys", "issue", "--tier", "starter", "--customer", "Acme"];
    let message = run_beside(&scene.gateways[0], &issue).await.failed(1);
    redis.command(&["CLIENT", "UNPAUSE"]).await.unwrap();
    assert!(
        message.contains("unknown whether") && message.contains("revoke it"),
        "{message}"
    );
    let (_, rest) = message.split_once("touchline keys show ").unwrap();
    let (id, _) = rest.split_once('`').unwrap();
    assert!(id.parse::<KeyId>().is_ok(), "{message}");
}

#[tokio::test]
async fn a_change_that_redis_refuses_is_reported_with_the_server_the_reason_and_the_remedy() {
    let scene = Scene::builder(TOUCHLINE).store(Store::Redis).start().await;
    let key = scene.issue("starter").await;
    let redis = scene.redis.as_ref().unwrap();
    let url = redis.url();
    let issue = ["keys", "issue", "--tier", "starter", "--customer", "Acme"];
    let revoke = ["keys", "revoke", &key.id, "--yes"];
    let rename = ["keys", "set-label", &key.id, "other"];
    for (begins, ends, refusal) in [
        (
            &["CONFIG", "SET", "maxmemory", "1"][..],
            &["CONFIG", "SET", "maxmemory", "0"][..],
            "refuses writes, because its memory is full: raise its maxmemory",
        ),
        (
            &["CONFIG", "SET", "min-replicas-to-write", "1"],
            &["CONFIG", "SET", "min-replicas-to-write", "0"],
            "refuses writes, because it has fewer replicas than min-replicas-to-write: see why its replicas are away",
        ),
        (
            &["REPLICAOF", "127.0.0.1", "1"],
            &["REPLICAOF", "NO", "ONE"],
            "refuses writes, because it is a replica: name the master in store.redis",
        ),
    ] {
        redis.command(begins).await.unwrap();
        for command in [&issue[..], &revoke, &rename] {
            let message = run_beside(&scene.gateways[0], command).await.failed(1);
            assert!(message.contains(&format!("{url} {refusal}")), "{message}");
        }
        redis.command(ends).await.unwrap();
    }
    run_beside(&scene.gateways[0], &revoke).await.done();
}

#[tokio::test]
async fn a_stored_change_that_redis_does_not_publish_is_shown_and_ends_with_3() {
    let scene = Scene::builder(TOUCHLINE).store(Store::Redis).start().await;
    let (changed, rotated) = (scene.issue("starter").await, scene.issue("starter").await);
    let client = scene.client(Protocol::Http1);
    let redis = scene.redis.as_ref().unwrap();
    let permit = async |feed: &str| redis.command(&["ACL", "SETUSER", "default", feed]).await;
    permit("-xadd").await.unwrap();
    let run = async |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        run_beside(&scene.gateways[0], &words).await
    };
    let unpublished = async |line: &str| {
        let ran = run(line).await;
        assert_eq!(ran.code, Some(3), "{line}: {ran:?}");
        let message = ran.stderr.replace('\n', " ");
        for part in [
            "the change is stored",
            "may not have been published",
            "'xadd'",
        ] {
            assert!(message.contains(part), "{line}: {message}");
        }
        ran.stdout
    };
    let grant = "keys grant ID --extra 5 --reason cup".replace("ID", &changed.id);
    let shown = unpublished(&grant).await;
    assert!(shown.contains("has 5 extra units"), "{shown}");
    let key_in = |text: &str, id: Option<&str>| {
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        IssuedKey {
            id: id.or(value["id"].as_str()).unwrap().to_owned(),
            key: value["key"].as_str().unwrap().to_owned(),
            tier: "starter".into(),
        }
    };
    let issue = "keys issue --tier starter --customer Acme --output json";
    let issued = key_in(&unpublished(issue).await, None);
    let rotate = "keys rotate ID --overlap 1h --output json".replace("ID", &rotated.id);
    let new = key_in(&unpublished(&rotate).await, Some(&rotated.id));
    for key in [&issued, &new] {
        scene.know(key);
    }
    // A charge with the old secret reads the record.
    assert_eq!(client.get(&issued, MARKETS).await.status, 401);
    served(&client, &rotated).await;
    served(&client, &new).await;
    let suspend = format!("keys suspend {} --yes", changed.id);
    for state in ["is suspended", "is suspended already"] {
        let shown = unpublished(&suspend).await;
        assert!(shown.contains(state), "{shown}");
    }
    assert_eq!(client.get(&changed, MARKETS).await.status, 401);

    permit("+xadd").await.unwrap();
    // A repetition that changes nothing publishes the key.
    let resume = format!("keys resume {}", issued.id);
    let shown = run(&resume).await.done();
    assert!(shown.contains("is active already"), "{shown}");
    served(&client, &issued).await;
    let shown = run(&format!("keys show {} --output json", changed.id)).await;
    let shown: serde_json::Value = serde_json::from_str(&shown.done()).unwrap();
    let grants = shown["grants"].as_object().unwrap().values();
    assert_eq!(Vec::from_iter(grants), [5]);
}

#[tokio::test]
async fn a_rotation_whose_key_is_lost_is_undone_also_if_redis_publishes_neither() {
    let scene = Scene::builder(TOUCHLINE).store(Store::Redis).start().await;
    let first = scene.issue("starter").await;
    let second = scene.rotate(&first, &["--overlap", "24h"]).await;
    let client = scene.client(Protocol::Http1);
    let redis = scene.redis.as_ref().unwrap();
    // The rotation cannot drop the first secret's digest either.
    let user = ["ACL", "SETUSER", "default", "-xadd", "-del"];
    redis.command(&user).await.unwrap();
    let rotate = ["keys", "rotate", &first.id, "--overlap", "24h", "--yes"];
    let config = &scene.gateways[0].config;
    let message = run_into(config, closed_pipe(), &rotate).failed(1);
    assert!(message.contains("the rotation was reverted"), "{message}");
    for key in [&first, &second] {
        served(&client, key).await;
    }
}

#[tokio::test]
async fn a_script_of_another_client_that_blocks_redis_costs_nothing() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .gateways(2)
        .start()
        .await;
    let key = scene.issue("starter").await;
    let clients = [0, 1].map(|gateway| scene.client_of(gateway, Protocol::Http1));
    for client in &clients {
        served(client, &key).await;
    }
    let redis = scene.redis.as_ref().unwrap();
    let busy_soon = ["CONFIG", "SET", "lua-time-limit", "50"];
    redis.command(&busy_soon).await.unwrap();
    let endless = async || redis.command(&["EVAL", "while true do end", "0"]).await;
    let calls = async || {
        eventually("the reason is known", async || {
            for client in &clients {
                assert_eq!(client.get(&key, MARKETS).await.status, 200);
            }
            let (_, body) = scene.admin(0, "/readyz").await;
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            // It ends by itself, so it is no reason for an operator to act on the key table.
            assert!(!body["reasons"].to_string().contains("BUSY"), "{body}");
            body["store_trouble"]
                .as_str()?
                .contains("BUSY")
                .then_some(())
        })
        .await;
        redis.command(&["SCRIPT", "KILL"]).await.unwrap();
    };
    let (ended, ()) = tokio::join!(endless(), calls());
    assert!(ended.unwrap().contains("killed"));
    for gateway in [0, 1] {
        eventually("ready again", async || {
            let (_, body) = scene.admin(gateway, "/readyz").await;
            body.contains(r#""status":"ready""#).then_some(())
        })
        .await;
    }
    for client in &clients {
        served(client, &key).await;
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn commands_that_read_a_redis_that_evicts_report_that_names_may_be_missing() {
    let scene = Scene::builder(TOUCHLINE).store(Store::Redis).start().await;
    let key = scene.issue("starter").await;
    served(&scene.client(Protocol::Http1), &key).await;
    let redis = scene.redis.as_ref().unwrap();
    let number = async |field: &str| {
        let info = redis.command(&["INFO"]).await.unwrap();
        let mut lines = info.lines();
        let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap().parse::<u64>().unwrap()
    };
    let set = async |name: &str, value: &str| {
        let words = ["CONFIG", "SET", name, value];
        assert_eq!(redis.command(&words).await.unwrap(), "+OK\r\n");
    };
    let list = ["keys", "list"];
    let evicts = "Redis evicts keys and counts when its memory is full";
    set("maxmemory-policy", "allkeys-lru").await;
    let before = run_beside(&scene.gateways[0], &list).await;
    assert!(!before.stderr.contains(evicts), "{before:?}");
    let room = 256 * 1024;
    let maxmemory = number("used_memory").await + room;
    set("maxmemory", &maxmemory.to_string()).await;
    // Another application fills the memory that both share.
    let value = "x".repeat(16 * 1024);
    let mut other = 0;
    while number("evicted_keys").await == 0 {
        let name = format!("other:{other}");
        redis.command(&["SET", &name, &value]).await.unwrap();
        other += 1;
        assert!(other < 1_000, "far more than there is room for");
    }
    set("maxmemory", "0").await;
    let listed = run_beside(&scene.gateways[0], &list).await;
    assert!(listed.stderr.contains(evicts), "{listed:?}");
    listed.done();
    // Those that expire are none of keys and counts.
    set("maxmemory-policy", "volatile-lru").await;
    let listed = run_beside(&scene.gateways[0], &list).await;
    assert!(!listed.stderr.contains(evicts), "{listed:?}");
}

//! `touchline serve --upgrade`: another process takes the place of the one that runs, and no client notices.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use harness::process::Process;
use harness::upstream::Release;
use harness::{
    Behaviour, Call, Gateway, GatewaySpec, IssuedKey, Protocol, Scene, SceneBuilder, Store,
    StoreSpec, TcpProxy, Wire, eventually,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;

use super::{MARKETS, STORES, TOUCHLINE, run_on};

fn upgradable(store: Store) -> SceneBuilder {
    // Relative to the directory of each gateway.
    Scene::builder(TOUCHLINE)
        .store(store)
        .spec(|spec| spec.upgrade = Some("upgrade.sock".into()))
}

#[tokio::test]
async fn a_successor_that_does_not_come_up_leaves_the_gateway_as_it_was() {
    let mut scene = upgradable(Store::Embedded).start().await;
    let key = scene.issue("starter").await;
    scene.issue("enterprise").await;
    let client = scene.client(Protocol::Http1);
    let good = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    let socket = scene.gateways[0].config.with_file_name("upgrade.sock");
    let next = scene.directory().join("next.yaml");
    let at_socket = |text: &str| text.replace("upgrade.sock", socket.to_str().unwrap());
    // Another zone is found out after the listeners were handed over.
    let renamed = good
        .replace("starter", "beginner")
        .replace("enterprise", "expert");
    for (text, code, words) in [
        (good.replace("daily", "dayly"), 78, ["dayly", ""]),
        (
            good.replace("timezone: UTC", "timezone: Asia/Tokyo"),
            1,
            ["Asia/Tokyo", ""],
        ),
        (renamed, 1, ["no tier starter", "no tier enterprise"]),
        // It is a database of its own, which is created.
        (
            good.replace("touchline.db", "mistyped.db"),
            1,
            ["store has no key", "touchline store status"],
        ),
    ] {
        std::fs::write(&next, at_socket(&text)).unwrap();
        let message = run_on(&next, &["serve", "--upgrade"]).await.failed(code);
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        assert_eq!(scene.gateways[0].process().ended(), None);
    }
    eventually("the gateway reports it", async || {
        scene.gateways[0]
            .output()
            .contains("continuing to serve")
            .then_some(())
    })
    .await;
    scene.gateways[0].upgrade().await;
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn an_upgrade_while_redis_is_unavailable_leaves_both_processes_one_share_and_is_settled_exactly()
 {
    let mut scene = upgradable(Store::Redis)
        .spec(|spec| spec.redis_extra = "timeout: 100ms".into())
        .durable_redis()
        .daily("starter", 100)
        .start()
        .await;
    let (key, idle) = (scene.issue("starter").await, scene.issue("starter").await);
    let client = scene.client(Protocol::Http1);
    let serve = async |key: &IssuedKey, most: u64| {
        let mut served = 0;
        while served < most {
            let answer = client.get(key, MARKETS).await;
            match answer.status {
                200 => served += 1,
                500 => break,
                other => panic!("{other}: {answer:?}"),
            }
        }
        served
    };
    assert_eq!(serve(&key, 20).await, 20);
    let kept = scene.gateways[0].config.with_file_name("var");
    eventually("the key table is saved", async || {
        let files = std::fs::read_dir(&kept).unwrap();
        let mut saved = files
            .map(|file| file.unwrap().path())
            .filter(|path| path.to_string_lossy().contains("keys.db"))
            .filter_map(|path| std::fs::read(path).ok());
        saved
            .any(|bytes| {
                let id = idle.id.as_bytes();
                bytes.windows(id.len()).any(|part| part == id)
            })
            .then_some(())
    })
    .await;
    scene.redis.as_mut().unwrap().kill9();
    assert_eq!(serve(&key, 30).await, 30);
    scene.gateways[0].upgrade().await;
    // The new one knows no count: its share is the cold one, and the old one has served more than that.
    assert_eq!(serve(&key, 100).await, 0);
    assert_eq!(serve(&idle, 100).await, 2);
    scene.redis.as_mut().unwrap().restart().await;
    eventually("the rest of the day is served", async || {
        let answer = client.get(&key, MARKETS).await;
        (answer.status == 200).then_some(())
    })
    .await;
    scene.expect_used(&key, 51).await;
    scene.expect_used(&idle, 2).await;
    scene.assert_ledgers_agree().await;
}

/// A gateway on Redis that knows a key, Redis gone, and its file with another place for the saved replica: a successor would
/// know none.
async fn successor_without_keys() -> (Scene, IssuedKey, String) {
    let mut scene = upgradable(Store::Redis)
        .spec(|spec| spec.redis_extra = "timeout: 100ms".into())
        .durable_redis()
        .start()
        .await;
    let key = scene.issue("starter").await;
    let answer = scene.client(Protocol::Http1).get(&key, MARKETS).await;
    assert_eq!(answer.status, 200);
    scene.redis.as_mut().unwrap().kill9();
    let text = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    let elsewhere = text.replace("timeout: 100ms", "timeout: 100ms, replica: other/keys.db");
    assert_ne!(text, elsewhere);
    (scene, key, elsewhere)
}

#[tokio::test]
async fn a_successor_that_knows_no_key_leaves_the_gateway_that_does_as_it_was() {
    let (mut scene, key, elsewhere) = successor_without_keys().await;
    let client = scene.client(Protocol::Http1);
    let message = scene.gateways[0].fail_to_upgrade(&elsewhere).await;
    assert!(message.contains("continues to serve"), "{message}");
    assert!(message.contains("touchline store status"), "{message}");
    assert_eq!(scene.gateways[0].process().ended(), None);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    eventually("the gateway reports it", async || {
        let output = scene.gateways[0].output();
        let parts = ["has not loaded the key table", "continuing to serve"];
        parts.iter().all(|part| output.contains(part)).then_some(())
    })
    .await;
    scene.redis.as_mut().unwrap().restart().await;
    scene.gateways[0].put_file(&elsewhere);
    scene.gateways[0].upgrade().await;
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    scene.expect_used(&key, 3).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_successor_takes_over_as_soon_as_redis_has_sent_it_the_keys() {
    let (mut scene, key, elsewhere) = successor_without_keys().await;
    let client = scene.client(Protocol::Http1);
    scene.gateways[0].put_file(&elsewhere);
    let message = scene.gateways[0].process().stderr.clone();
    let redis = scene.redis.as_mut().unwrap();
    let comes_back = async {
        eventually("the successor waits", async || {
            let message = std::fs::read_to_string(&message).unwrap();
            message
                .contains("the running gateway continues meanwhile")
                .then_some(())
        })
        .await;
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        redis.restart().await;
    };
    tokio::join!(scene.gateways[0].upgrade(), comes_back);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    scene.expect_used(&key, 3).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_gateway_that_knows_no_key_is_succeeded_by_one_that_does_not_either() {
    let (mut scene, key, elsewhere) = successor_without_keys().await;
    scene.gateways[0].terminate();
    scene.gateways[0].put_file(&elsewhere);
    scene.gateways[0].restart().await;
    scene.gateways[0].upgrade().await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 500);
    scene.redis.as_mut().unwrap().restart().await;
    eventually("the key is known", async || {
        (client.get(&key, MARKETS).await.status == 200).then_some(())
    })
    .await;
    scene.assert_ledgers_agree().await;
}

/// Calls on by turns until it is stopped; returns how often.
async fn call_on(client: Arc<harness::Client>, key: IssuedKey, stop: Arc<AtomicBool>) -> u64 {
    let mut calls = 0;
    while !stop.load(Ordering::Relaxed) {
        for (method, body) in [("GET", ""), ("POST", "{}")] {
            let call = Call::new(method, MARKETS).key(&key).body(body);
            let answer = client.call(call).await;
            assert!(answer.status == 200 && answer.complete, "{answer:?}");
            calls += 1;
        }
    }
    calls
}

/// Callers of every protocol, which go on until they are stopped.
struct Callers {
    stop: Arc<AtomicBool>,
    running: JoinSet<u64>,
}

impl Callers {
    fn start(scene: &Scene, key: &IssuedKey) -> Callers {
        let (stop, mut running) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
        for protocol in Protocol::ALL {
            let client = Arc::new(scene.client(protocol));
            running.spawn(call_on(client, key.clone(), stop.clone()));
        }
        Callers { stop, running }
    }

    /// The calls made, none of which failed.
    async fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.running.join_all().await.into_iter().sum()
    }
}

/// A gateway under a load that no limit ends.
async fn under_load(store: Store) -> (Scene, IssuedKey, Callers) {
    let scene = upgradable(store)
        .daily("enterprise", 100_000_000)
        .spec(move |spec| {
            spec.endpoints[0].methods.push("POST".into());
            if matches!(store, Store::Redis) {
                spec.redis_extra = "timeout: 100ms".into();
            }
        })
        .durable_redis()
        .start()
        .await;
    let key = scene.issue("enterprise").await;
    let callers = Callers::start(&scene, &key);
    (scene, key, callers)
}

async fn logs(process: &Process, part: &str) {
    eventually(part, async || process.output().contains(part).then_some(())).await;
}

#[tokio::test]
async fn a_successor_killed_when_it_was_ready_fails_no_request_and_the_next_one_takes_over() {
    let (mut scene, key, callers) = under_load(Store::Redis).await;
    let good = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    let socket = scene.gateways[0].config.with_file_name("upgrade.sock");
    let inode = || std::fs::metadata(&socket).unwrap().ino();
    let of_the_gateway = inode();
    let (mut held, release) = (JoinSet::new(), Release::default());
    let held_back = release.clone();
    scene
        .upstream
        .behave(move |asked| match asked.values("x-held").is_empty() {
            true => Behaviour::Echo,
            false => Behaviour::Until(held_back.clone(), Box::new(Behaviour::Echo)),
        });
    for round in 1..=2 {
        // It knows no key until Redis is back, so that it can be met where it has the listeners and is not ready.
        let elsewhere = format!("timeout: 100ms, replica: other-{round}/keys.db");
        let elsewhere = good.replace("timeout: 100ms", &elsewhere);
        scene.gateways[0].put_file(&elsewhere);
        scene.redis.as_mut().unwrap().kill9();
        let mut successor = scene.gateways[0].begin_upgrade(&format!("successor-{round}"));
        logs(&successor, "the running gateway continues meanwhile").await;
        // As long as this one does not run, the successor cannot hear from it.
        scene.gateways[0].process().stop();
        // New connections wait for it, and are none of the successor's.
        for protocol in Protocol::ALL {
            let call = Call::get(MARKETS).key(&key).header("x-held", "yes");
            let client = scene.client(protocol);
            held.spawn(async move { client.call(call).await });
        }
        scene.redis.as_mut().unwrap().restart().await;
        logs(&successor, "ready to take over").await;
        assert_eq!(inode(), of_the_gateway, "the socket is the gateway's still");
        successor.kill9();
        scene.gateways[0].process().resume();
        eventually("the gateway goes on", async || {
            let output = scene.gateways[0].output();
            (output.matches("continuing to serve").count() == round).then_some(())
        })
        .await;
        assert_eq!(scene.gateways[0].process().ended(), None);
    }
    let held_calls = held.len() as u64;
    release.give();
    for answer in held.join_all().await {
        assert!(answer.status == 200 && answer.complete, "{answer:?}");
    }
    scene.gateways[0].put_file(&good);
    for _ in 0..2 {
        scene.gateways[0].upgrade().await;
    }
    let calls = callers.stop().await;
    scene.expect_used(&key, calls + held_calls).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_gateway_takes_its_upgrade_socket_back_from_a_successor_that_is_gone() {
    let (mut scene, key, callers) = under_load(Store::Embedded).await;
    let socket = scene.gateways[0].config.with_file_name("upgrade.sock");
    for round in 1..=2 {
        // As a successor of an earlier version, which takes the place before it is ready.
        let mut successor = UnixStream::connect(&socket).await.unwrap();
        successor.read_u8().await.unwrap();
        let beside = socket.with_extension(round.to_string());
        let offer = UnixListener::bind(&beside).unwrap();
        std::fs::rename(&beside, &socket).unwrap();
        drop((successor, offer));
        eventually("the gateway goes on", async || {
            UnixStream::connect(&socket).await.ok()
        })
        .await;
    }
    for _ in 0..2 {
        scene.gateways[0].upgrade().await;
    }
    let calls = callers.stop().await;
    scene.expect_used(&key, calls).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn an_upgrade_socket_that_is_removed_is_restored() {
    let mut scene = upgradable(Store::Embedded).start().await;
    let socket = scene.gateways[0].config.with_file_name("upgrade.sock");
    std::fs::remove_file(&socket).unwrap();
    eventually("it is there again", async || {
        UnixStream::connect(&socket).await.ok()
    })
    .await;
    scene.gateways[0].upgrade().await;
}

#[tokio::test]
async fn the_first_signal_to_a_replaced_gateway_cuts_no_request_and_the_second_one_does() {
    let mut scene = upgradable(Store::Embedded).start().await;
    let key = scene.issue("starter").await;
    scene.upstream.always(Behaviour::Stall);
    let client = scene.client(Protocol::Http1);
    let call = Call::get(MARKETS).key(&key);
    let in_flight = tokio::spawn(async move { client.try_call(call).await });
    eventually("it is under way", async || {
        (scene.upstream.count() == 1).then_some(())
    })
    .await;
    let successor = scene.gateways[0].begin_upgrade("successor");
    let old = scene.gateways[0].process();
    logs(old, "a successor has taken over").await;
    old.ask_to_end();
    logs(old, "already waiting for requests in flight").await;
    assert!(!old.output().contains("a second signal"), "{old:?}");
    old.ask_to_end();
    logs(old, "requests were cut because of the second signal").await;
    assert!(in_flight.await.unwrap().is_err());
    scene.gateways[0].upgraded_by([successor]).await;
}

#[tokio::test]
async fn readiness_on_a_connection_kept_over_an_upgrade_is_that_of_a_gateway_that_serves() {
    let mut scene = upgradable(Store::Embedded).start().await;
    let key = scene.issue("starter").await;
    let release = Release::default();
    let held = Behaviour::Until(release.clone(), Box::new(Behaviour::Echo));
    scene.upstream.always(held);
    let mut kept = TcpStream::connect(scene.gateways[0].admin).await.unwrap();
    let mut ready = async || {
        let request = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
        kept.write_all(request).await.unwrap();
        let mut answer = vec![0; 8_192];
        let length = kept.read(&mut answer).await.unwrap();
        String::from_utf8(answer[..length].to_vec()).unwrap()
    };
    assert!(ready().await.starts_with("HTTP/1.1 200 "));
    let client = scene.client(Protocol::Http1);
    let in_flight = tokio::spawn(async move { client.get(&key, MARKETS).await });
    eventually("a request is under way", async || {
        (scene.upstream.count() == 1).then_some(())
    })
    .await;
    let successor = scene.gateways[0].begin_upgrade("successor");
    logs(&successor, "\"listening\"").await;
    logs(scene.gateways[0].process(), "a successor has taken over").await;
    let answer = ready().await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    release.give();
    assert_eq!(in_flight.await.unwrap().status, 200);
    scene.gateways[0].upgraded_by([successor]).await;
}

#[tokio::test]
async fn a_second_successor_is_refused_while_the_first_one_waits_for_its_keys() {
    let (mut scene, key, elsewhere) = successor_without_keys().await;
    let good = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    scene.gateways[0].put_file(&elsewhere);
    let mut first = scene.gateways[0].begin_upgrade("first");
    logs(&first, "the running gateway continues meanwhile").await;
    let message = scene.gateways[0].fail_to_upgrade(&good).await;
    assert!(
        message.contains("does not hand over its listeners now"),
        "{message}"
    );
    first.kill9();
    scene.gateways[0].put_file(&good);
    scene.gateways[0].upgrade().await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    scene.redis.as_mut().unwrap().restart().await;
    scene.expect_used(&key, 2).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn of_two_successors_at_once_one_is_left_and_no_request_fails() {
    for store in STORES {
        let (mut scene, key, callers) = under_load(store).await;
        let old = scene.gateways[0].process().pid();
        let successors = ["one", "two"].map(|name| scene.gateways[0].begin_upgrade(name));
        scene.gateways[0].upgraded_by(successors).await;
        assert_ne!(scene.gateways[0].process().pid(), old);
        scene.gateways[0].upgrade().await;
        let calls = callers.stop().await;
        scene.expect_used(&key, calls).await;
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn an_upgrade_in_front_of_http2_upstreams_ends_what_is_in_flight_and_fails_and_doubles_nothing()
 {
    for store in STORES {
        let mut scene = upgradable(store)
            .daily("enterprise", 100_000_000)
            .timeout("read", "60s")
            .spec(|spec| {
                spec.upstream_extra = "protocol: http2".into();
                spec.endpoints[0].methods.push("POST".into());
                spec.extra_yaml = "limits: { shutdown_grace: 60s }".into();
            })
            .start()
            .await;
        let release = Release::default();
        let held_back = release.clone();
        scene
            .upstream
            .behave(move |asked| match asked.values("x-held").is_empty() {
                true => Behaviour::Echo,
                false => Behaviour::Until(held_back.clone(), Box::new(Behaviour::Echo)),
            });
        let key = scene.issue("enterprise").await;
        let (mut held, mut callers) = (JoinSet::new(), JoinSet::new());
        for protocol in Protocol::ALL {
            for (method, body) in [("GET", ""), ("POST", "{}")] {
                let call = Call::new(method, MARKETS).key(&key).body(body);
                let call = call.header("x-held", "yes");
                let client = scene.client(protocol);
                held.spawn(async move { client.call(call).await });
            }
        }
        let held_calls = 2 * Protocol::ALL.len();
        eventually("they are under way", async || {
            (scene.upstream.count() == held_calls).then_some(())
        })
        .await;
        let asked = scene.upstream.recorded();
        let olds: BTreeSet<u64> = asked.iter().map(|one| one.connection).collect();
        let stop = Arc::new(AtomicBool::new(false));
        for protocol in Protocol::ALL {
            let client = Arc::new(scene.client(protocol));
            callers.spawn(call_on(client, key.clone(), stop.clone()));
        }
        let message = scene.gateways[0].process().stderr.clone();
        let upstream = &scene.upstream;
        let release_later = async {
            eventually("the successor has taken over", async || {
                let message = std::fs::read_to_string(&message).unwrap();
                message.contains("a successor has taken over").then_some(())
            })
            .await;
            eventually(
                "the successor forwards on connections of its own",
                async || {
                    let last = upstream.recorded().pop()?;
                    (!olds.contains(&last.connection)).then_some(())
                },
            )
            .await;
            assert!(held.try_join_next().is_none(), "something held is answered");
            release.give();
        };
        tokio::join!(scene.gateways[0].upgrade(), release_later);
        for answer in held.join_all().await {
            assert!(answer.status == 200 && answer.complete, "{answer:?}");
        }
        stop.store(true, Ordering::Relaxed);
        let calls: u64 = callers.join_all().await.into_iter().sum();
        scene.expect_used(&key, calls + held_calls as u64).await;
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_successor_sends_what_its_predecessor_could_not_send_before_it_ended() {
    let mut scene = upgradable(Store::Redis)
        .spec(|spec| spec.redis_extra = "timeout: 10s".into())
        .start()
        .await;
    let server = scene.redis.as_ref().unwrap();
    let wire = TcpProxy::before(server.port()).await;
    let spec = GatewaySpec {
        store: StoreSpec::Redis {
            url: wire.url(),
            key_prefix: "touchline".into(),
        },
        ..scene.spec.clone()
    };
    let directory = scene.directory().join("behind-a-wire");
    std::fs::create_dir(&directory).unwrap();
    let behind = Gateway::start(Path::new(TOUCHLINE), &directory, "behind", &spec).await;
    let key = scene.issue("starter").await;
    scene.gateways[0].terminate();
    scene.gateways = vec![behind];
    let release = Release::default();
    let fails_later = Behaviour::Until(release.clone(), Box::new(Behaviour::Status(503)));
    scene.upstream.always(fails_later);
    let client = scene.client(Protocol::Http1);
    let held = {
        let key = key.clone();
        tokio::spawn(async move { client.get(&key, MARKETS).await })
    };
    eventually("it is charged and under way", async || {
        (scene.upstream.count() == 1).then_some(())
    })
    .await;
    let of_old = wire.part();
    let log = scene.gateways[0].process().stderr.clone();
    let logged = async |words: &str| {
        eventually(words, async || {
            let log = std::fs::read_to_string(&log).unwrap();
            log.contains(words).then_some(())
        })
        .await;
    };
    let end_without_redis = async {
        logged("a successor has taken over").await;
        of_old.send_replace(Wire::BlackHole);
        release.give();
    };
    tokio::join!(scene.gateways[0].upgrade(), end_without_redis);
    logged("were not sent to Redis").await;
    assert_eq!(held.await.unwrap().status, 500);
    scene.expect_used(&key, 0).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_gateway_does_not_begin_on_the_upgrade_socket_of_another() {
    let mut scene = upgradable(Store::Embedded).start().await;
    let config = scene.gateways[0].config.clone();
    let socket = config.with_file_name("upgrade.sock");
    let other = scene.directory().join("other.yaml");
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text.replace("upgrade.sock", socket.to_str().unwrap());
    std::fs::write(&other, text).unwrap();
    let message = run_on(&other, &["serve"]).await.failed(1);
    assert!(message.contains(socket.to_str().unwrap()), "{message}");
    scene.gateways[0].upgrade().await;
}

#[tokio::test]
async fn an_upgrade_of_nothing_is_refused() {
    let mut scene = upgradable(Store::Embedded).start().await;
    let config = scene.gateways[0].config.clone();
    let socket = config.with_file_name("upgrade.sock");
    let good = std::fs::read_to_string(&config).unwrap();
    scene.gateways[0].terminate();
    let next = scene.directory().join("next.yaml");
    std::fs::write(
        &next,
        good.replace("upgrade.sock", socket.to_str().unwrap()),
    )
    .unwrap();
    let message = run_on(&next, &["serve", "--upgrade"]).await.failed(1);
    assert!(message.contains(socket.to_str().unwrap()), "{message}");
    let without = good.replace("  upgrade: upgrade.sock\n", "");
    std::fs::write(&next, &without).unwrap();
    let message = run_on(&next, &["serve", "--upgrade"]).await.failed(2);
    assert!(message.contains("listen.upgrade"), "{message}");
}

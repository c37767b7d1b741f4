//! A server of an upstream that is a name: resolved again beside the requests, also to another address.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::process::Process;
use harness::{
    Client, GatewaySpec, IssuedKey, PATIENCE, Protocol, RecordingUpstream, Scene, SceneBuilder,
    Store, StoreSpec, eventually,
};

use super::preload::Preload;
use super::{MARKETS, STORES, TOUCHLINE};

/// Its `getaddrinfo` takes the address of a name from a file.
const LIBRARY: &str = include_str!("names/getaddrinfo.c");
const NAME: &str = "prediction.test";

/// What the system's resolver answers to processes that were started by [`Resolver::program`].
struct Resolver(Preload);

impl Resolver {
    /// Knows no name yet.
    fn new() -> Resolver {
        let resolver = Resolver(Preload::new(LIBRARY));
        std::fs::write(resolver.names(), "").unwrap();
        resolver
    }

    fn names(&self) -> PathBuf {
        self.0.file("names")
    }

    /// Makes it answer only once something is written into the pipe that is returned.
    fn waits(&self) -> PathBuf {
        let names = self.names();
        std::fs::remove_file(&names).unwrap();
        let made = Command::new("mkfifo").arg(&names).status();
        assert!(made.unwrap().success());
        names
    }

    /// The gateway, with this resolver.
    fn program(&self) -> PathBuf {
        self.0.program("NAMES", &self.names())
    }

    /// What the name leads to from now on; `None`: it cannot be resolved.
    fn state_text(&self, address: Option<SocketAddr>) {
        let address = address.map_or("-".to_owned(), |address| address.ip().to_string());
        let next = self.names().with_extension("next");
        std::fs::write(&next, format!("{NAME} {address}\n")).unwrap();
        std::fs::rename(&next, self.names()).unwrap();
    }
}

/// Calls until it is stopped; returns how often.
async fn call_on(client: Client, key: IssuedKey, stop: Arc<AtomicBool>) -> u64 {
    let mut calls = 0;
    while !stop.load(Ordering::Relaxed) {
        let answer = client.get(&key, MARKETS).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        calls += 1;
    }
    calls
}

/// Until so many more requests have come to one server, and none to the other meanwhile.
async fn only_one_is_asked(one: &RecordingUpstream, other: &RecordingUpstream) {
    eventually("only one server is asked", async || {
        let before = (one.count(), other.count());
        eventually("requests are served", async || {
            (one.count() + other.count() >= before.0 + before.1 + 20).then_some(())
        })
        .await;
        (other.count() == before.1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn requests_follow_a_name_to_its_new_address_and_none_fails() {
    for store in STORES {
        let resolver = Resolver::new();
        let before = RecordingUpstream::start().await;
        let port = before.address().port();
        let after = RecordingUpstream::start_at(([127, 0, 0, 2], port).into()).await;
        resolver.state_text(Some(before.address()));
        let mut scene = Scene::builder(resolver.program())
            .store(store)
            .daily("enterprise", 100_000_000)
            .spec(move |spec| {
                spec.upstream_name = Some(format!("{NAME}:{port}"));
                spec.upstream_extra = "resolve: 1s".into();
            })
            .start()
            .await;
        let stop = Arc::new(AtomicBool::new(false));
        let mut callers = tokio::task::JoinSet::new();
        for protocol in Protocol::ALL {
            let key = scene.issue("enterprise").await;
            callers.spawn(call_on(scene.client(protocol), key, stop.clone()));
        }
        only_one_is_asked(&before, &after).await;
        resolver.state_text(Some(after.address()));
        only_one_is_asked(&after, &before).await;
        eventually("only the new address is shown", async || {
            let (_, metrics) = scene.admin(0, "/metrics").await;
            let shown = |server: &RecordingUpstream| {
                let server = format!("server=\"{}\"", server.address());
                let mut up = metrics
                    .lines()
                    .filter(|line| line.starts_with("touchline_upstream_server_up"));
                up.any(|line| line.contains(&server))
            };
            (shown(&after) && !shown(&before)).then_some(())
        })
        .await;
        // A name that leads nowhere changes nothing.
        resolver.state_text(None);
        let failures = "touchline_upstream_resolve_failures_total{upstream=\"prediction-data\"}";
        eventually("the failure is reported", async || {
            (scene.metric(failures).await > 0.0).then_some(())
        })
        .await;
        only_one_is_asked(&after, &before).await;
        resolver.state_text(Some(before.address()));
        only_one_is_asked(&before, &after).await;
        stop.store(true, Ordering::Relaxed);
        callers.join_all().await;
        assert_eq!(scene.upstream.count(), 0);
        scene.more_upstreams.extend([before, after]);
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_shorter_interval_of_resolving_does_not_wait_for_the_former_one() {
    let resolver = Resolver::new();
    let before = RecordingUpstream::start().await;
    let port = before.address().port();
    let after = RecordingUpstream::start_at(([127, 0, 0, 2], port).into()).await;
    resolver.state_text(Some(before.address()));
    let mut scene = Scene::builder(resolver.program())
        .spec(move |spec| {
            spec.upstream_name = Some(format!("{NAME}:{port}"));
            spec.upstream_extra = "resolve: 1h".into();
        })
        .start()
        .await;
    let key = scene.issue("enterprise").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    scene.spec.upstream_extra = "resolve: 1s".into();
    scene.gateways[0].configure(&scene.spec);
    let applied = "touchline_config_reloads_total{outcome=\"applied\"}";
    eventually("the file is applied", async || {
        (scene.metric(applied).await >= 1.0).then_some(())
    })
    .await;
    // The reload itself has resolved the name.
    resolver.state_text(Some(after.address()));
    eventually("the new address is asked", async || {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        (after.count() > 0).then_some(())
    })
    .await;
    scene.more_upstreams.extend([before, after]);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_name_is_served_by_its_addresses_and_resolved_while_requests_go_on() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Embedded)
        .spec(|spec| {
            let port = spec.upstream.port();
            spec.upstream_name = Some(format!("localhost:{port}"));
            spec.upstream_extra = "resolve: 1s".into();
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let began = std::time::Instant::now();
    // The name is resolved at least once meanwhile.
    while began.elapsed() < Duration::from_millis(1_500) {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let host = scene.upstream.recorded()[0].values("host");
    assert_eq!(
        host,
        [format!("localhost:{}", scene.upstream.address().port())]
    );
    let failures = "touchline_upstream_resolve_failures_total{upstream=\"prediction-data\"}";
    assert_eq!(scene.metric(failures).await, 0.0);
    let up = format!(
        "touchline_upstream_server_up{{server=\"{}\",upstream=\"prediction-data\"}}",
        scene.upstream.address()
    );
    eventually("it is shown as one that is asked", async || {
        (scene.metric(&up).await == 1.0).then_some(())
    })
    .await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_gateway_warns_at_its_start_of_two_servers_with_one_address() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Embedded)
        .spec(|spec| {
            spec.upstream_name = Some(format!("localhost:{}", spec.upstream.port()));
            spec.more_servers = vec![spec.upstream];
        })
        .start()
        .await;
    let shared = format!(
        "{} has an address of another server of the list",
        scene.upstream.address()
    );
    eventually("the warning is logged", async || {
        let output = scene.gateways[0].output();
        let mut lines = output.lines();
        let is_logged = lines.any(|line| line.contains("WARN") && line.contains(&shared));
        is_logged.then_some(())
    })
    .await;
    scene.assert_ledgers_agree().await;
}

/// The first server of a scene, by a name that the resolver does not know yet.
fn named(resolver: &Resolver, port: u16) -> SceneBuilder {
    resolver.state_text(None);
    Scene::builder(resolver.program()).spec(move |spec| {
        spec.upstream_name = Some(format!("{NAME}:{port}"));
    })
}

#[tokio::test]
async fn a_gateway_starts_before_the_name_of_its_server_resolves_and_asks_it_when_it_does() {
    let resolver = Resolver::new();
    let server = RecordingUpstream::start().await;
    let port = server.address().port();
    let mut scene = named(&resolver, port).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let answer = client.get(&key, MARKETS).await;
    assert_eq!(answer.status, 500, "{answer:?}");
    scene.expect_used(&key, 0).await;
    let up = format!(
        "touchline_upstream_server_up{{server=\"{NAME}:{port}\",upstream=\"prediction-data\"}} 0"
    );
    eventually("the server is shown as one that is out", async || {
        let (_, metrics) = scene.admin(0, "/metrics").await;
        metrics.lines().any(|line| line == up).then_some(())
    })
    .await;
    let (status, body) = scene.admin(0, "/readyz").await;
    let readiness: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status, &readiness["status"]),
        (200, &"degraded".into()),
        "{body}"
    );
    let reason = readiness["reasons"][0].as_str().unwrap();
    assert!(
        reason.contains("prediction-data") && reason.contains(&format!("{NAME}:{port}")),
        "{body}"
    );
    let output = scene.gateways[0].output();
    let mut lines = output.lines();
    assert!(
        lines.any(|line| line.contains("WARN") && line.contains(&format!("{NAME}:{port}"))),
        "{output}"
    );
    resolver.state_text(Some(server.address()));
    eventually("the server is asked", async || {
        let answer = client.get(&key, MARKETS).await;
        (answer.status == 200).then_some(())
    })
    .await;
    eventually("the gateway is ready", async || {
        let (_, body) = scene.admin(0, "/readyz").await;
        body.contains(r#""status":"ready""#).then_some(())
    })
    .await;
    eventually("only its address is shown", async || {
        let (_, metrics) = scene.admin(0, "/metrics").await;
        let shown = metrics
            .lines()
            .filter(|line| line.starts_with("touchline_upstream_server_up{"));
        let shown: Vec<&str> = shown.collect();
        let address = format!("server=\"{}\"", server.address());
        (shown.len() == 1 && shown[0].contains(&address) && shown[0].ends_with(" 1")).then_some(())
    })
    .await;
    scene.more_upstreams.push(server);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_server_whose_name_does_not_resolve_leaves_the_requests_to_the_others() {
    let resolver = Resolver::new();
    let mut scene = named(&resolver, 9).more_servers(1).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for _ in 0..4 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    // A file with a name that resolves as little is applied.
    let mut next = scene.spec.clone();
    next.retries = 0;
    next.upstream_name = Some(format!("{NAME}:10"));
    scene.gateways[0].configure(&next);
    eventually("the file is applied", async || {
        let (_, body) = scene.admin(0, "/readyz").await;
        body.contains(&format!("{NAME}:10")).then_some(())
    })
    .await;
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    assert_eq!(scene.more_upstreams[0].count(), 5);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_gateway_starts_before_the_name_of_its_redis_resolves_and_serves_when_it_does() {
    let resolver = Resolver::new();
    resolver.state_text(None);
    let mut scene = Scene::builder(resolver.program())
        .store(Store::Redis)
        .spec(|spec| {
            let StoreSpec::Redis { url, .. } = &mut spec.store else {
                panic!("{:?}", spec.store)
            };
            *url = url.replace("127.0.0.1", NAME);
        })
        .start()
        .await;
    let (status, body) = scene.admin(0, "/readyz").await;
    assert_eq!(status, 503, "{body}");
    assert!(body.contains(r#""store_up":false"#), "{body}");
    resolver.state_text(Some("127.0.0.1:0".parse().unwrap()));
    eventually("the gateway is ready", async || {
        let (status, _) = scene.admin(0, "/readyz").await;
        (status == 200).then_some(())
    })
    .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    eventually("requests are served", async || {
        (client.get(&key, MARKETS).await.status == 200).then_some(())
    })
    .await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_successor_whose_server_does_not_resolve_leaves_the_gateway_that_knows_it_until_it_does()
{
    let resolver = Resolver::new();
    resolver.state_text(Some("127.0.0.1:0".parse().unwrap()));
    let mut scene = Scene::builder(resolver.program())
        .spec(|spec| {
            spec.upstream_name = Some(format!("{NAME}:{}", spec.upstream.port()));
            spec.upgrade = Some("upgrade.sock".into());
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    resolver.state_text(None);
    let text = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    let message = scene.gateways[0].fail_to_upgrade(&text).await;
    let words = ["prediction-data", "continues to serve"];
    assert!(words.iter().all(|word| message.contains(word)), "{message}");
    assert_eq!(scene.gateways[0].process().ended(), None);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    let log = scene.gateways[0].process().stderr.clone();
    let resolves_later = async {
        eventually("the successor waits", async || {
            let log = std::fs::read_to_string(&log).unwrap();
            log.contains("the running gateway continues meanwhile")
                .then_some(())
        })
        .await;
        resolver.state_text(Some("127.0.0.1:0".parse().unwrap()));
    };
    tokio::join!(scene.gateways[0].upgrade(), resolves_later);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_reload_asked_for_while_a_start_resolves_names_does_not_end_it_and_sigquit_stops_it() {
    let resolver = Resolver::new();
    let names = resolver.waits();
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let store = StoreSpec::Embedded(at.join("touchline.db"));
    let mut spec = GatewaySpec::new(store, "127.0.0.1:9".parse().unwrap());
    spec.upstream_name = Some(format!("{NAME}:9"));
    let config = at.join("gateway.yaml");
    std::fs::write(&config, spec.yaml(&at.join("access.log"))).unwrap();
    let mut command = Command::new(resolver.program());
    command.args(["serve", "--config"]).arg(&config);
    let mut gateway = Process::spawn(&mut command, at, "gateway").unwrap();
    let answer = eventually("the resolver is asked", async || {
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let mut options = OpenOptions::new();
        let opened = options.write(true).custom_flags(nonblocking).open(&names);
        opened.ok()
    })
    .await;
    gateway.hang_up();
    resolver.state_text(None);
    (&answer)
        .write_all(format!("{NAME} -\n").as_bytes())
        .unwrap();
    drop(answer);
    eventually("it listens", async || {
        let output = gateway.output();
        output.contains("\"listening\"").then_some(())
    })
    .await;
    gateway.quit();
    let status = gateway.wait_for_end(PATIENCE);
    assert_eq!(status.unwrap().code(), Some(0), "{}", gateway.output());
}

#[tokio::test]
async fn many_names_without_an_answer_hold_up_a_file_for_no_longer_than_one() {
    let resolver = Resolver::new();
    resolver.waits();
    let directory = tempfile::tempdir().unwrap();
    let servers: Vec<String> = (0..30).map(|number| format!("n{number}.test:9")).collect();
    let config = directory.path().join("gateway.yaml");
    let text = format!(
        "tiers: {{pro: {{daily: 5}}}}\nendpoints: [{{path: /a, tiers: [pro], upstream: u}}]\n\
         upstreams: {{u: {{servers: [{}]}}}}\n",
        servers.join(", ")
    );
    std::fs::write(&config, text).unwrap();
    let mut command = tokio::process::Command::new(resolver.program());
    let check = command.args(["check", "--config"]).arg(&config).output();
    // One after another they would take two seconds each.
    let checked = tokio::time::timeout(Duration::from_secs(30), check).await;
    let output = checked.expect("it waits for each name").unwrap();
    let warnings = String::from_utf8(output.stderr).unwrap();
    for server in servers {
        let warning = format!("\"{server}\" cannot be resolved: timed out");
        assert!(warnings.contains(&warning), "{warnings}");
    }
}

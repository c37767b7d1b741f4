//! Files and sockets that the process may open.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use harness::{Behaviour, Protocol, Scene, Store, eventually};
use tokio::net::TcpStream;

use super::servers::is_up;
use super::{MARKETS, TOUCHLINE};

/// A program that runs the gateway after these commands.
fn after(directory: &tempfile::TempDir, commands: &str) -> PathBuf {
    let program = directory.path().join("touchline");
    let script = format!("#!/bin/sh\n{commands}\nexec {TOUCHLINE} \"$@\"\n");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program
}

/// Soft and hard limit of a running gateway.
fn open_files(scene: &mut Scene) -> (String, String) {
    let pid = scene.gateways[0].process().pid();
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let mut words = line.unwrap().split_whitespace().skip(3).map(str::to_owned);
    (words.next().unwrap(), words.next().unwrap())
}

#[tokio::test]
async fn the_soft_limit_of_open_files_is_raised_and_a_hard_one_that_is_too_small_is_reported() {
    const WARNING: &str = "limits.connections exceeds the open files of the process";
    let directory = tempfile::tempdir().unwrap();
    let small = after(&directory, "ulimit -S -n 256; ulimit -H -n 2000");
    let mut scene = Scene::builder(small).start().await;
    assert_eq!(open_files(&mut scene), ("2000".into(), "2000".into()));
    let message = scene.gateways[0].output();
    assert!(
        message.contains(WARNING) && message.contains("\"wanted\":40256"),
        "{message}"
    );
    let mut scene = Scene::builder(after(&directory, "ulimit -S -n 256; ulimit -H -n 2000"))
        .spec(|spec| spec.extra_yaml = "limits: { connections: 872 }".into())
        .start()
        .await;
    assert_eq!(open_files(&mut scene).0, "2000");
    let message = scene.gateways[0].output();
    assert!(!message.contains(WARNING), "{message}");
    // Also when a reload raises it.
    scene.spec.extra_yaml = "limits: { connections: 873 }".into();
    scene.gateways[0].configure(&scene.spec);
    eventually("the change is warned of", async || {
        let message = scene.gateways[0].output();
        (message.contains(WARNING) && message.contains("\"wanted\":2002")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn idle_clients_leave_open_files_to_requests_and_to_the_admin_listener() {
    idle_clients_of_a_process_with("128", 64).await;
    idle_clients_of_a_process_with("600", 344).await;
}

/// More idle clients than are `allowed` to a process with this limit of open files.
async fn idle_clients_of_a_process_with(files: &str, allowed: usize) {
    let directory = tempfile::tempdir().unwrap();
    let mut scene = Scene::builder(after(&directory, &format!("ulimit -n {files}")))
        .store(Store::Redis)
        .durable_redis()
        .spec(|spec| {
            spec.redis_extra = "timeout: 1s".into();
            spec.upstream_extra = "health: { path: /healthz, interval: 100ms }".into();
        })
        .start()
        .await;
    // Each request and each check needs a connection of its own.
    let close = Behaviour::ThenClose(Box::new(Behaviour::Echo));
    scene.upstream.always(close);
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    // Those beyond the limit are closed at once.
    let mut idle = Vec::new();
    for _ in 0..allowed + 136 {
        idle.push(TcpStream::connect(scene.gateways[0].http).await.unwrap());
    }
    let limit = "touchline_limit_hits_total{limit=\"connections\"}";
    eventually("the connections beyond the limit are counted", async || {
        let (status, metrics) = scene.admin(0, "/metrics").await;
        assert_eq!(status, 200, "{metrics}");
        let counted = metrics.lines().find_map(|line| line.strip_prefix(limit));
        let counted: f64 = counted?.trim().parse().ok()?;
        (counted >= 100.0).then_some(())
    })
    .await;
    let answer = client.get(&key, MARKETS).await;
    assert_eq!(answer.status, 200, "the client's connection was kept");
    let redis = scene.redis.as_mut().unwrap();
    redis.kill9();
    redis.restart().await;
    for (is_running, status) in [(false, Some(false)), (true, Some(true))] {
        match is_running {
            true => scene.upstream.restart().await,
            false => scene.upstream.stop().await,
        }
        eventually("a health check finds it", async || {
            (is_up(&scene, &scene.upstream).await == status).then_some(())
        })
        .await;
    }
    eventually("Redis is connected", async || {
        let (status, body) = scene.admin(0, "/readyz").await;
        assert_eq!(status, 200, "{body}");
        body.contains("\"status\":\"ready\"").then_some(())
    })
    .await;
    let served = async || {
        eventually("there is room for further clients", async || {
            let client = TcpStream::connect(scene.gateways[0].http).await.ok()?;
            (!is_closed(&client).await).then_some(())
        })
        .await;
        let answer = scene.client(Protocol::Http1).get(&key, MARKETS).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    };
    idle.drain(..10);
    served().await;
    drop(idle);
    served().await;
    scene.assert_ledgers_agree().await;
}

/// Whether the gateway has closed a connection.
async fn is_closed(connection: &TcpStream) -> bool {
    let pause = std::time::Duration::from_millis(200);
    tokio::time::timeout(pause, connection.readable())
        .await
        .is_ok()
}

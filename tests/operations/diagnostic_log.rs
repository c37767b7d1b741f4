//! The diagnostic log: a reader who stalls holds up no request.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use harness::{Behaviour, Call, Protocol, Scene, eventually};

use super::{MARKETS, TOUCHLINE};

const O_NONBLOCK: i32 = 0o4000;
const DROPPED: &str = "touchline_diagnostic_log_dropped_lines_total";

/// A pipe with a name, open at both ends.
fn pipe(path: &Path) -> File {
    let _ = std::fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    let mut options = File::options();
    options.read(true).write(true).custom_flags(O_NONBLOCK);
    options.open(path).unwrap()
}

#[tokio::test]
async fn a_reader_who_stalls_holds_up_neither_requests_nor_the_end() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let path = scene.gateways[0].process().stderr.clone();
    let mut pipe = pipe(&path);
    scene.gateways[0].restart().await;
    // The harness reads the files of a test that fails; from the pipe it would read for ever.
    std::fs::remove_file(&path).unwrap();
    let mut found = Vec::new();
    eventually("the start is logged", async || {
        let _ = pipe.read_to_end(&mut found);
        let found = String::from_utf8_lossy(&found);
        found.contains("\"listening\"").then_some(())
    })
    .await;
    assert!(found.starts_with(b"{"), "only whole lines");
    while pipe.write(b".").is_ok() {}

    // Each logs that the server fails, or that a configuration is refused.
    scene.upstream.always(Behaviour::ResetBeforeHeader);
    let client = scene.client(Protocol::Http1);
    for _ in 0..20 {
        assert_eq!(client.get(&key, MARKETS).await.status, 500);
    }
    scene.upstream.always(Behaviour::Echo);
    let good = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    scene.gateways[0].put_file("nonsense");
    let refused = "touchline_config_reloads_total{outcome=\"refused\"}";
    eventually("the configuration is refused", async || {
        (scene.metric(refused).await > 0.0).then_some(())
    })
    .await;
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        assert_eq!(client.call(Call::get(MARKETS)).await.status, 401);
    }
    assert_eq!(scene.admin(0, "/livez").await.0, 200);
    assert_eq!(scene.metric(DROPPED).await, 0.0);
    assert_eq!(scene.gateways[0].terminate().code(), Some(0));
    scene.gateways[0].put_file(&good);
    scene.assert_ledgers_agree().await;
}

//! Files and sockets that the process may open.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use harness::Scene;

use super::TOUCHLINE;

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
    const TOLD: &str = "limits.connections exceeds the open files of the process";
    let directory = tempfile::tempdir().unwrap();
    let small = after(&directory, "ulimit -S -n 256; ulimit -H -n 2000");
    let mut scene = Scene::builder(small).start().await;
    assert_eq!(open_files(&mut scene), ("2000".into(), "2000".into()));
    let message = scene.gateways[0].output();
    assert!(
        message.contains(TOLD) && message.contains("\"wanted\":40256"),
        "{message}"
    );
    let mut scene = Scene::builder(after(&directory, "ulimit -S -n 256; ulimit -H -n 2000"))
        .spec(|spec| spec.extra_yaml = "limits: { connections: 872 }".into())
        .start()
        .await;
    assert_eq!(open_files(&mut scene).0, "2000");
    let message = scene.gateways[0].output();
    assert!(!message.contains(TOLD), "{message}");
}

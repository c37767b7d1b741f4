//! The Debian package that `deploy/release` builds, as far as it shows without a release build.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::text_of;

/// `package.metadata.deb` of `Cargo.toml`.
fn metadata() -> Value {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "metadata",
        "--no-deps",
        "--offline",
        "--locked",
        "--format-version=1",
    ]);
    let output = cargo
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = all["packages"].as_array().unwrap();
    let own = packages
        .iter()
        .find(|package| package["name"] == "touchline");
    own.unwrap()["metadata"]["deb"].clone()
}

#[test]
fn the_package_takes_only_files_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let assets = metadata()["assets"].clone();
    let sources = assets.as_array().unwrap().iter();
    let sources = sources.map(|asset| asset[0].as_str().unwrap());
    // What is built or printed by the program is in `target`.
    let mut seen = 0;
    for source in sources.filter(|source| !source.starts_with("target/")) {
        let file = source.split("/*").next().unwrap();
        assert!(root.join(file).exists(), "{source}");
        seen += 1;
    }
    assert!(seen > 5, "{seen} files were found");
}

#[test]
fn the_package_starts_nothing_before_it_is_configured() {
    let units = &metadata()["systemd-units"];
    assert_eq!(units["enable"], false);
    assert_eq!(units["start"], false);
}

#[test]
fn the_package_creates_the_user_that_the_unit_runs_as() {
    let unit = text_of("systemd/touchline.service");
    let user = unit.lines().find_map(|line| line.strip_prefix("User="));
    let created = text_of("systemd/touchline.conf");
    assert_eq!(created.split(' ').nth(1), user);
}

#[test]
fn the_unit_lets_the_gateway_read_when_the_system_started() {
    let unit = text_of("systemd/touchline.service");
    // Without /proc/stat, `process_start_time_seconds` is 0.
    let hidden = unit.lines().find(|line| line.starts_with("ProcSubset="));
    assert_eq!(hidden, None);
}

#[test]
fn the_unit_keeps_every_line_of_the_logs() {
    let unit = text_of("systemd/touchline.service");
    let setting = |name: &str| unit.lines().find_map(|line| line.strip_prefix(name));
    // systemd takes 0 as unset, and journald multiplies the burst in 32 bits by up to 12.
    assert_eq!(setting("LogRateLimitIntervalSec="), Some("1s"));
    let burst: u32 = setting("LogRateLimitBurst=").unwrap().parse().unwrap();
    assert!((1_000_000..100_000_000).contains(&burst));
}

#[test]
fn the_unit_and_the_page_name_a_password_file_that_commands_can_read_too() {
    for text in [
        text_of("systemd/touchline.service"),
        text_of("../docs/deployment.md"),
    ] {
        let file = "password_file: /etc/touchline/redis.password";
        assert!(text.contains(file) && text.contains("-g touchline redis.password"));
        assert!(!text.contains("CREDENTIALS_DIRECTORY"));
    }
}

/// The directory of the store is closed to the caller of sudo, so the command enters it as its user.
#[test]
fn the_unit_and_the_page_name_the_same_command_for_operators() {
    let command = "sudo -u touchline env -C /var/lib/touchline TOUCHLINE_CONFIG=/etc/touchline/gateway.yaml touchline ";
    for text in [
        text_of("systemd/touchline.service"),
        text_of("../docs/deployment.md"),
    ] {
        assert!(!text.contains("cd /var/lib/touchline"));
        assert!(text.contains(command));
    }
}

//! What a service manager hears (`sd_notify`), without one: a socket of its kind.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;

use harness::process::Process;
use harness::{GatewaySpec, PATIENCE, StoreSpec};

use super::TOUCHLINE;

/// The next notification.
fn heard(socket: &UnixDatagram) -> String {
    let mut message = [0; 1_024];
    let length = socket.recv(&mut message).expect("a message in time");
    String::from_utf8(message[..length].to_vec()).unwrap()
}

fn spec(directory: &Path) -> GatewaySpec {
    let store = StoreSpec::Embedded(directory.join("touchline.db"));
    GatewaySpec::new(store, "127.0.0.1:9".parse().unwrap())
}

/// A gateway on this configuration that notifies this socket.
fn start(config: &Path, more_arguments: &[&str], socket: &Path, name: &str) -> Process {
    let mut command = Command::new(TOUCHLINE);
    command.arg("serve").arg("--config").arg(config);
    command.args(more_arguments).env("NOTIFY_SOCKET", socket);
    Process::spawn(&mut command, socket.parent().unwrap(), name).unwrap()
}

#[test]
fn a_service_manager_is_notified_of_start_reload_refusal_and_stop() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let socket = UnixDatagram::bind(at.join("notify")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let config = at.join("gateway.yaml");
    let good = spec(at).yaml(&at.join("access.log"));
    std::fs::write(&config, &good).unwrap();
    let mut gateway = start(&config, &[], &at.join("notify"), "gateway");
    let ready = heard(&socket);
    let pid = gateway.pid();
    let expected = format!("MAINPID={pid}\nREADY=1\nSTATUS=serving");
    assert!(ready.starts_with(&expected), "{ready}");

    gateway.hang_up();
    let reloading = heard(&socket);
    let since = reloading
        .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
        .unwrap_or_else(|| panic!("{reloading}"));
    assert!(since.trim_end().parse::<u64>().unwrap() > 0);
    // Without its process id: by then the unit may have another main process.
    let reloaded = heard(&socket);
    assert_eq!(format!("MAINPID={pid}\n{reloaded}"), ready);

    std::fs::write(&config, good.replace("daily", "dayly")).unwrap();
    gateway.hang_up();
    let refused = "READY=1\nSTATUS=the configuration file is refused";
    let mut reply = heard(&socket);
    while !reply.starts_with(refused) {
        reply = heard(&socket);
    }

    gateway.ask_to_end();
    let mut last = heard(&socket);
    while !last.starts_with("STOPPING=1") {
        last = heard(&socket);
    }
    let status = gateway.wait_for_end(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(0), "{}", gateway.output());
}

#[test]
fn a_service_manager_is_not_notified_of_a_stop_when_a_successor_takes_over() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let socket = UnixDatagram::bind(at.join("notify")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let config = at.join("gateway.yaml");
    let mut spec = spec(at);
    spec.upgrade = Some(at.join("upgrade.sock").display().to_string());
    std::fs::write(&config, spec.yaml(&at.join("access.log"))).unwrap();
    let begin = |more: &[&str], name: &str| start(&config, more, &at.join("notify"), name);
    let mut old = begin(&[], "old");
    let is_ready = |message: &str, process: &Process| {
        message.starts_with(&format!("MAINPID={}\nREADY=1\n", process.pid()))
    };
    let first = heard(&socket);
    assert!(is_ready(&first, &old), "{first}");

    let mut successor = begin(&["--upgrade"], "successor");
    let status = old.wait_for_end(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(0), "{}", old.output());
    let second = heard(&socket);
    assert!(is_ready(&second, &successor), "{second}");

    successor.ask_to_end();
    let last = heard(&socket);
    assert!(last.starts_with("STOPPING=1\n"), "{last}");
    let status = successor.wait_for_end(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(0), "{}", successor.output());
}

//! The program itself: real sockets, signals and exit codes.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_prediction-data");
/// No step of these tests may take longer.
const PATIENCE: Duration = Duration::from_secs(30);

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(arguments)
        .env_remove("PREDICTION_DATA_LISTEN")
        .env_remove("PREDICTION_DATA_DIR");
    command
}

/// Ends the program when a test ends early.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Program {
    fn start(arguments: &[&str]) -> (Self, String) {
        let mut child = command(&["--listen", "127.0.0.1:0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim_end()
            .strip_prefix("listening on http://")
            .unwrap()
            .to_owned();
        (Self(child), address)
    }

    fn signal(&self, name: &str) {
        let id = self.0.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &id])
                .status()
                .unwrap()
                .success()
        );
    }
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command(arguments).output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[test]
fn it_says_where_it_listens_answers_there_and_ends_with_0_on_a_signal() {
    for signal in ["-TERM", "-INT"] {
        let (mut program, address) = Program::start(&[]);
        assert!(!address.ends_with(":0"), "{address}");
        assert!(get(&address, "/healthz").starts_with("HTTP/1.1 200 OK\r\n"));
        assert!(get(&address, "/api/v1/data/predictions/2501").contains("\"expected_goals\""));
        program.signal(signal);
        assert_eq!(program.0.wait().unwrap().code(), Some(0), "{signal}");
    }
}

#[test]
fn a_request_in_flight_at_the_signal_is_answered_before_the_program_ends() {
    let (mut program, address) = Program::start(&["--delay", "300ms"]);
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: {address}\r\n\r\n"
    )
    .unwrap();
    // Connections are accepted in turn: when a later one is answered, this one is in the service.
    assert!(get(&address, "/healthz").starts_with("HTTP/1.1 200 OK\r\n"));
    program.signal("-TERM");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with('}'),
        "{answer}"
    );
    assert_eq!(program.0.wait().unwrap().code(), Some(0));
}

#[test]
fn the_options_for_tests_reach_the_service() {
    let (_program, address) =
        Program::start(&["--fail-status", "502", "--fail-rate", "0.5", "--unhealthy"]);
    assert!(get(&address, "/api/v1/data/markets").starts_with("HTTP/1.1 200 "));
    assert!(get(&address, "/api/v1/data/markets").starts_with("HTTP/1.1 502 "));
    assert!(get(&address, "/healthz").starts_with("HTTP/1.1 503 "));
}

#[test]
fn a_log_that_nobody_reads_does_not_stop_the_service() {
    let mut child = command(&["--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let program = Program(child);
    let address = line
        .trim_end()
        .strip_prefix("listening on http://")
        .unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A pipe holds 64 KiB, the queue 4,096 lines: 5,000 lines of 200 bytes fill both.
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    for _ in 0..5_000 {
        stream.write_all(request.as_bytes()).unwrap();
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap();
            if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
            if header == "\r\n" {
                break;
            }
        }
        reader.read_exact(&mut vec![0; length]).unwrap();
    }
    drop(program);
}

#[test]
fn a_bad_option_ends_it_with_2_and_a_hint() {
    let (code, message) = refused(&["--fail-rate", "10"]);
    assert_eq!(code, Some(2));
    assert!(
        message.contains("--fail-rate") && message.contains("from 0 to 1"),
        "{message}"
    );
}

#[test]
fn a_data_set_that_cannot_be_used_ends_it_with_78_and_every_mistake() {
    let (code, message) = refused(&["--data", "/nonexistent"]);
    assert_eq!(code, Some(78));
    assert!(
        message.contains("/nonexistent/teams.csv: cannot be opened"),
        "{message}"
    );
    assert!(
        message.contains("/nonexistent/picks.csv") && message.contains("hint: "),
        "{message}"
    );
}

#[test]
fn an_address_in_use_ends_it_with_1_and_a_hint() {
    let (_program, address) = Program::start(&[]);
    let (code, message) = refused(&["--listen", &address]);
    assert_eq!(code, Some(1));
    assert!(
        message.contains(&address) && message.contains("--listen"),
        "{message}"
    );
}

//! The README, followed as it is written: its first session, by `deploy/demo/run`, and the steps of "Your own API".
//!
//! Only ports differ, so that tests run in parallel. The demo's build is left out: the test's own binaries are in its place.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use harness::process::Process;
use harness::{Behaviour, Call, Client, Protocol, RecordingUpstream, eventually};
use serde_json::Value;

use super::{TOUCHLINE, text_of};

/// How often a port that was free may be taken by another program before it is used here.
const PORT_ATTEMPTS: usize = 5;
/// How long the demo may take to end after Ctrl-C; it waits for its processes.
const END_DEADLINE: Duration = Duration::from_secs(30);
/// The listeners as the README and the demo print them, and their names in the line with the addresses.
const PRINTED: [(&str, &str); 3] = [
    ("127.0.0.1:8443", "https"),
    ("127.0.0.1:8080", "http"),
    ("127.0.0.1:9090", "admin"),
];

pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text of a section of the README.
fn section(title: &str) -> String {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (_, section) = readme.split_once(&format!("\n## {title}\n")).unwrap();
    section.split("\n## ").next().unwrap().to_owned()
}

/// The blocks of a section in this language.
pub(super) fn blocks(section: &str, language: &str) -> Vec<String> {
    let fenced = section.split("\n```").skip(1).step_by(2);
    let own = fenced.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n'));
    own.map(|block| format!("{block}\n")).collect()
}

/// A directory in which `touchline` is the binary under test, as `touchline` and in `target/debug`.
pub(super) struct Place {
    directory: tempfile::TempDir,
    path: String,
}

impl Place {
    pub(super) fn new() -> Place {
        let directory = tempfile::tempdir().unwrap();
        let (programs, debug) = ("programs", "target/debug");
        for folder in [programs, debug] {
            let folder = directory.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            symlink(TOUCHLINE, folder.join("touchline")).unwrap();
        }
        let inherited = std::env::var("PATH").unwrap();
        let path = format!("{}:{inherited}", directory.path().join(programs).display());
        Place { directory, path }
    }

    /// The directory in which lines are run.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap_or_default()
    }

    /// A program of these lines for the shell.
    fn script(&self, name: &str, text: &str) {
        let file = self.at(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&file, executable).unwrap();
    }

    /// The command of a line of the shell.
    pub(super) fn command(&self, line: &str) -> Command {
        let mut command = Command::new("bash");
        command
            .args(["-c", line])
            .current_dir(self.directory.path());
        command.env("PATH", &self.path);
        for variable in ["CARGO_TARGET_DIR", "STORE", "TOUCHLINE_CONFIG"] {
            command.env_remove(variable);
        }
        command
    }

    /// The standard output of a line that succeeds.
    #[track_caller]
    fn run(&self, line: &str) -> String {
        let Output {
            status,
            stdout,
            stderr,
        } = self.command(line).output().unwrap();
        let stderr = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "{line}: {status}\n{stderr}");
        String::from_utf8(stdout).unwrap()
    }
}

/// The value of the listeners in the line that a gateway prints first.
fn listening(output: &str) -> Option<Value> {
    let line: Value = serde_json::from_str(output.lines().next()?).ok()?;
    (line["event"] == "listening").then_some(line)
}

fn address(listening: &Value, name: &str) -> SocketAddr {
    listening[name].as_str().unwrap().parse().unwrap()
}

/// `deploy/demo/run`; ended as by Ctrl-C, so that its processes end with it.
struct Demo {
    place: Place,
    process: Process,
    listening: Value,
    upstream: SocketAddr,
}

impl Drop for Demo {
    fn drop(&mut self) {
        self.process.terminate(END_DEADLINE);
    }
}

impl Demo {
    async fn start() -> Demo {
        for _ in 0..PORT_ATTEMPTS {
            if let Some(demo) = Demo::start_once().await {
                return demo;
            }
        }
        panic!("the sample API found no free port in {PORT_ATTEMPTS} attempts");
    }

    /// The demo once it has printed all; `None` if the sample API's port is in use.
    async fn start_once() -> Option<Demo> {
        let sample = Path::new(TOUCHLINE).with_file_name("prediction-data");
        let build = "cargo test --workspace --locked --no-run";
        assert!(sample.exists(), "no {}: {build}", sample.display());
        let probe = TcpListener::bind("127.0.0.1:0").unwrap();
        let upstream = probe.local_addr().unwrap();
        let place = Place::new();
        place.script("programs/cargo", "#!/bin/sh\n");
        let listen = format!("exec '{}' --listen {upstream} \"$@\"", sample.display());
        let wrapper = format!("#!/bin/sh\n{listen}\n");
        place.script("target/debug/prediction-data", &wrapper);
        place.script("deploy/demo/run", &text_of("demo/run"));
        let mut shipped = std::fs::read_to_string(root().join("gateway.yaml")).unwrap();
        let others = PRINTED.map(|(printed, _)| (printed, "127.0.0.1:0".to_owned()));
        for (printed, other) in others
            .into_iter()
            .chain([("127.0.0.1:9000", upstream.to_string())])
        {
            assert!(shipped.contains(printed), "gateway.yaml without {printed}");
            shipped = shipped.replace(printed, &other);
        }
        std::fs::write(place.at("gateway.yaml"), shipped).unwrap();
        drop(probe);
        let mut command = place.command("exec deploy/demo/run");
        let process = Process::spawn(&mut command, place.directory.path(), "demo").unwrap();
        let mut demo = Demo {
            place,
            process,
            listening: Value::Null,
            upstream,
        };
        let is_ready = eventually("the demo prints its commands or ends", async || {
            if demo.process.ended().is_some() {
                return Some(false);
            }
            demo.printed().contains("Ctrl-C stops it.").then_some(true)
        });
        if !is_ready.await {
            let output = demo.process.output();
            assert!(output.contains("cannot listen on"), "{output}");
            return None;
        }
        demo.listening = listening(&demo.place.read("var/touchline.out")).unwrap();
        Some(demo)
    }

    fn printed(&self) -> String {
        self.place.read("demo.stdout")
    }

    /// The printed lines `STARTER=…` and so on, which the README has one paste.
    fn keys(&self) -> String {
        let printed = self.printed();
        let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_uppercase());
        let keys = printed.lines().filter(|line| {
            let pair = line.trim().split_once('=');
            pair.is_some_and(|(name, value)| is_name(name) && value.starts_with("fpd_"))
        });
        let keys: Vec<&str> = keys.map(str::trim).collect();
        assert_eq!(keys.len(), 3, "{printed}");
        keys.join("\n")
    }

    /// The output of a command in another terminal, into which the keys were pasted.
    #[track_caller]
    fn typed(&self, line: &str) -> String {
        let mut line = line.to_owned();
        for (printed, name) in PRINTED {
            let actual = address(&self.listening, name).to_string();
            line = line.replace(printed, &actual);
        }
        self.place.run(&format!("{}\n{line}", self.keys()))
    }
}

/// The commands of a block, each with the output that the README has for it.
fn session(block: &str) -> Vec<(&str, String)> {
    let parts = block.split("$ ").skip(1);
    parts
        .map(|part| {
            let (command, output) = part.split_once('\n').unwrap();
            (command, output.trim_end().to_owned())
        })
        .collect()
}

/// The lines of an answer with its headers, without the values that differ with the time.
fn timeless(line: &str) -> &str {
    let line = line.trim_end();
    match line.split_once(':') {
        Some(("x-ratelimit-reset", _)) => "x-ratelimit-reset",
        Some(("ratelimit", _)) => line.split_once(";t=").unwrap().0,
        _ => line,
    }
}

#[tokio::test]
async fn the_first_session_of_the_readme_goes_as_documented() {
    let readme = section("A first session");
    assert_eq!(blocks(&readme, "sh").first().unwrap(), "make run\n");
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let (_, recipe) = makefile.split_once("\nrun:").unwrap();
    assert!(
        recipe
            .split("\n\n")
            .next()
            .unwrap()
            .contains("deploy/demo/run")
    );
    let mut demo = Demo::start().await;

    let blocks = blocks(&readme, "console");
    let sessions: Vec<_> = blocks.iter().flat_map(|block| session(block)).collect();
    let [(markets, answer), (insights, refusal), (usage, table)] = &sessions[..] else {
        panic!("{sessions:?}");
    };
    // Headers and the beginning of the body; `…` stands for other headers, and for the rest.
    let received = demo.typed(markets);
    let lines: Vec<&str> = received.lines().map(timeless).collect();
    let (head, body) = answer.split_once("\n…\n").unwrap();
    for line in head.lines().map(timeless) {
        assert!(lines.contains(&line), "{line}:\n{received}");
    }
    let body = body.strip_suffix('…').unwrap();
    assert!(
        lines.iter().any(|line| line.starts_with(body)),
        "{received}"
    );
    // Long lines are broken for reading.
    let problem = |text: &str| {
        let mut value: Value = serde_json::from_str(&text.replace('\n', " ")).unwrap();
        let id = value["request_id"].take();
        assert_eq!(id.as_str().unwrap().len(), 32, "{text}");
        value
    };
    assert_eq!(problem(&demo.typed(insights)), problem(refusal));
    let words = |text: &str| -> Vec<Vec<String>> {
        let rows = text
            .lines()
            .map(|row| row.split_whitespace().map(str::to_owned));
        rows.map(Iterator::collect).collect()
    };
    let mut wanted = words(table);
    let keys = demo.keys();
    let starter = keys.lines().next().unwrap();
    eventually("the table is the documented one", async || {
        let counted = words(&demo.typed(usage));
        // The id of the key is a part of it.
        let id = counted.get(1)?.first()?;
        assert!(starter.contains(id.as_str()), "{starter}: {counted:?}");
        wanted[1][0].clone_from(id);
        (counted == wanted).then_some(())
    })
    .await;
    assert_eq!(
        demo.typed("curl -so /dev/null -w '%{http_code}' http://127.0.0.1:9090/dashboard"),
        "200"
    );

    // The commands that the demo itself prints, and the status of each answer.
    let printed = demo.printed();
    let commands = printed.lines().filter_map(|line| line.strip_prefix("  "));
    let commands: Vec<&str> = commands
        .filter(|line| line.contains(' ') && !line.contains("=fpd_"))
        .collect();
    let mut statuses = Vec::new();
    for command in &commands {
        let output = demo.typed(command);
        assert!(!output.is_empty(), "{command}");
        if command.starts_with("curl -ksi") {
            statuses.push(output.split(' ').nth(1).unwrap().to_owned());
        }
    }
    assert_eq!(statuses, ["200", "200", "403", "200", "200", "401"]);
    assert_eq!(commands.len(), 11, "{commands:?}");

    demo.process.ask_to_end();
    let status = demo.process.wait_for_end(END_DEADLINE);
    assert_eq!(status.and_then(|status| status.code()), Some(0));
    for listener in [address(&demo.listening, "http"), demo.upstream] {
        assert!(
            TcpStream::connect(listener).is_err(),
            "{listener} still listens"
        );
    }
}

#[tokio::test]
async fn an_api_of_ones_own_is_served_by_the_steps_of_the_readme() {
    let readme = section("Your own API");
    let upstream = RecordingUpstream::start().await;
    upstream.always(Behaviour::Echo);
    let yaml = blocks(&readme, "yaml").remove(0);
    assert!(yaml.contains("127.0.0.1:3000"), "{yaml}");
    let yaml = yaml.replace("127.0.0.1:3000", &upstream.address().to_string());
    let free = "address: 127.0.0.1:0";
    let listen =
        format!("listen: {{ http: {{ {free} }}, https: {{ {free} }}, admin: {{ {free} }} }}\n");
    let place = Place::new();
    std::fs::write(place.at("gateway.yaml"), yaml + &listen).unwrap();
    let commands = blocks(&readme, "sh");
    let [first, second] = &commands[..] else {
        panic!("{commands:?}");
    };
    let [check, serve] = first.lines().collect::<Vec<_>>()[..] else {
        panic!("{first}");
    };

    place.run(check);
    let mut command = place.command(&format!("exec {serve}"));
    let mut gateway = Process::spawn(&mut command, place.directory.path(), "serve").unwrap();
    let listening = eventually("the gateway listens", async || {
        assert!(gateway.ended().is_none(), "{}", gateway.output());
        listening(&place.read("serve.stdout"))
    })
    .await;
    let issued = place.run(second);
    let mut words = issued.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let key = words.find(|word| word.starts_with("fpd_")).expect(&issued);

    // The documented path, not that of the health checks.
    let client = Client::new(Protocol::Http1, address(&listening, "http"), Arc::default());
    let answer = client.call(Call::get("/v1/prices").key(key)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.number("x-ratelimit-limit"), Some(100));
    assert_eq!(answer.number("x-ratelimit-remaining"), Some(99));
    let received = upstream.recorded();
    let calls: Vec<_> = received
        .iter()
        .filter(|one| one.target != b"/healthz")
        .collect();
    let [call] = calls[..] else {
        panic!("{calls:?}");
    };
    assert_eq!(call.target_text(), "/v1/prices");
    assert_eq!(call.values("x-consumer-tier"), ["free"]);
    let [id] = &call.values("x-consumer-id")[..] else {
        panic!("{call:?}");
    };
    assert!(!id.is_empty() && key.contains(id.as_str()), "{call:?}");
    assert!(call.values("x-api-key").is_empty() && !call.text().contains(key));
    // The other tier's endpoint is refused to it, and nothing without a key is forwarded.
    let orders = client.call(Call::get("/v1/orders/7").key(key)).await;
    assert_eq!(orders.code().as_deref(), Some("TIER_INSUFFICIENT"));
    assert_eq!(client.call(Call::get("/v1/prices")).await.status, 401);
    let document = client.call(Call::get("/openapi.json").key(key)).await;
    assert_eq!(document.json()["info"]["title"], "Shop API");
}

//! A headless Chromium, spoken to by the Chrome DevTools Protocol over its pipe: JSON messages that end with a zero byte.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const BINARY: &str = "chromium-headless-shell";
/// The browser reads commands from descriptor 3 and answers on 4.
const PIPES: &str = r#"exec "$0" "$@" 3<&0 4>&1 1>&2 0</dev/null"#;
const PATIENCE: Duration = Duration::from_secs(60);

/// The browser with one page; dropping it kills it.
pub struct Browser {
    _process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    last_id: u64,
    session: Option<String>,
    /// What happened on the page beside answers, oldest first.
    pub events: Vec<Value>,
}

impl Browser {
    /// Starts it with an empty page.
    pub async fn start(profile: &Path) -> Browser {
        let mut process = Command::new("sh")
            .args(["-c", PIPES, BINARY])
            // It is shown nothing but our own page; its sandbox needs what containers rarely give.
            .args(["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--hide-scrollbars", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let to = process.stdin.take().unwrap();
        let from = BufReader::new(process.stdout.take().unwrap());
        let mut browser = Browser {
            _process: process,
            to,
            from,
            last_id: 0,
            session: None,
            events: Vec::new(),
        };
        let target = browser
            .call("Target.createTarget", json!({ "url": "about:blank" }))
            .await["targetId"]
            .clone();
        let attached = json!({ "targetId": target, "flatten": true });
        let attached = browser.call("Target.attachToTarget", attached).await;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({})).await;
        }
        browser
    }

    /// One command and its result.
    ///
    /// # Panics
    /// Where the browser refuses it, ends, or sends nothing for long.
    pub async fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last_id += 1;
        let mut message = json!({ "id": self.last_id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).await.unwrap();
        loop {
            let mut answer = Vec::new();
            let reading = self.from.read_until(0, &mut answer);
            let read = tokio::time::timeout(PATIENCE, reading).await;
            assert_ne!(
                read.expect(method).unwrap(),
                0,
                "{BINARY} ended at {method}"
            );
            answer.pop();
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            if answer["id"] == self.last_id {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    /// Loads an address.
    pub async fn open(&mut self, address: &str) {
        let went = self.call("Page.navigate", json!({ "url": address })).await;
        assert!(went["errorText"].is_null(), "{address}: {went}");
        self.until(&format!(
            "location.href === '{address}' && document.readyState === 'complete'"
        ))
        .await;
    }

    /// What an expression comes to on the page; promises are waited for.
    pub async fn value(&mut self, expression: &str) -> Value {
        let asked =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let reply = self.call("Runtime.evaluate", asked).await;
        assert!(
            reply["exceptionDetails"].is_null(),
            "{expression}: {reply:#}"
        );
        reply["result"]["value"].clone()
    }

    /// Waits until an expression is true on the page.
    pub async fn until(&mut self, expression: &str) {
        let end = std::time::Instant::now() + PATIENCE;
        // While a page is being loaded there may be nothing to ask.
        while self.value(&format!("Boolean({expression})")).await != true {
            assert!(std::time::Instant::now() < end, "never true: {expression}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A window of this width, and a system with this theme.
    pub async fn wear(&mut self, width: u32, theme: &str) {
        let size =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", size).await;
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": theme }] });
        self.call("Emulation.setEmulatedMedia", features).await;
        // What follows from the new width is drawn in the second frame at the latest.
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 100))))")
            .await;
    }

    /// The whole page as PNG.
    pub async fn picture(&mut self) -> Vec<u8> {
        self.shoot(json!({ "format": "png" })).await
    }

    /// The upper part of the page as WebP, sharp on dense screens.
    pub async fn part(&mut self, width: u32, height: &Value) -> Vec<u8> {
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1.5 });
        self.shoot(json!({ "format": "webp", "quality": 70, "clip": clip }))
            .await
    }

    async fn shoot(&mut self, mut parameters: Value) -> Vec<u8> {
        parameters["captureBeyondViewport"] = true.into();
        let shot = self.call("Page.captureScreenshot", parameters).await;
        BASE64.decode(shot["data"].as_str().unwrap()).unwrap()
    }

    /// Presses and releases a key.
    pub async fn press(&mut self, key: &str, code: u32) {
        for kind in ["keyDown", "keyUp"] {
            let event =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Types a text into what has the focus.
    pub async fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text })).await;
    }

    /// The addresses that were asked for, and everything that the browser complained of.
    pub fn asked_and_complained(&self) -> (Vec<String>, Vec<String>) {
        let (mut asked, mut complaints) = (Vec::new(), Vec::new());
        for event in &self.events {
            let parameters = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Network.requestWillBeSent" => {
                    asked.extend(parameters["request"]["url"].as_str().map(str::to_owned));
                }
                "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded" => {
                    complaints.push(parameters.to_string());
                }
                _ => {}
            }
        }
        (asked, complaints)
    }
}

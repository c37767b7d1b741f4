//! A real Prometheus that scrapes the gateways of a scene.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

use harness::process::Process;
use harness::{Call, Client, Protocol, Scene, eventually};

const PORT_ATTEMPTS: usize = 5;

/// The server; dropping it kills it.
pub struct Prometheus {
    process: Process,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts it with the scene's gateways as targets, scraped every 500 ms.
    pub async fn scraping(scene: &Scene) -> Prometheus {
        let targets: Vec<_> = scene
            .gateways
            .iter()
            .map(|gateway| format!("\"{}\"", gateway.admin))
            .collect();
        let config = scene.directory().join("prometheus.yml");
        let text = format!(
            "global: {{ scrape_interval: 500ms }}\nscrape_configs:\n  - job_name: touchline\n    \
             static_configs: [ {{ targets: [{}] }} ]\n",
            targets.join(", ")
        );
        std::fs::write(&config, text).unwrap();
        for attempt in 0..PORT_ATTEMPTS {
            let address = std::net::TcpListener::bind("127.0.0.1:0")
                .and_then(|probe| probe.local_addr())
                .unwrap();
            let mut command = Command::new("prometheus");
            command
                .arg(format!("--config.file={}", config.display()))
                .arg(format!("--web.listen-address={address}"))
                .arg(format!(
                    "--storage.tsdb.path={}",
                    scene.directory().join(format!("tsdb-{attempt}")).display()
                ));
            let process = Process::spawn(&mut command, scene.directory(), "prometheus")
                .unwrap_or_else(|error| panic!("prometheus: {error} (apt-get install prometheus)"));
            let mut server = Prometheus { process, address };
            if server.answers_or_ends().await {
                return server;
            }
        }
        panic!("prometheus found no free port in {PORT_ATTEMPTS} attempts");
    }

    async fn answers_or_ends(&mut self) -> bool {
        eventually("prometheus is ready", async || {
            if self.process.ended().is_some() {
                return Some(false);
            }
            (self.get("/-/ready").await?.0 == 200).then_some(true)
        })
        .await
    }

    /// How many series a query finds that have a value.
    pub async fn series_of(&self, query: &str) -> usize {
        let target = format!("/api/v1/query?query={}", percent_encoded(query));
        let Some((status, body)) = self.get(&target).await else {
            return 0;
        };
        let answer: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(status, 200, "{query}: {answer}");
        let found = answer["data"]["result"].as_array().unwrap();
        found
            .iter()
            .filter(|series| series["value"][1].as_str() != Some("NaN"))
            .count()
    }

    async fn get(&self, target: &str) -> Option<(u16, Vec<u8>)> {
        // Asked first, as the client panics where no process listens yet.
        tokio::net::TcpStream::connect(self.address).await.ok()?;
        let client = Client::new(Protocol::Http1, self.address, Arc::default());
        let answer = client.call(Call::get(target)).await;
        Some((answer.status, answer.body.to_vec()))
    }
}

fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

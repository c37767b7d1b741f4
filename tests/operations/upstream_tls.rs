//! Upstreams over TLS, and what shows them that a request is the gateway's.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use harness::{Call, Client, Gateway, IssuedKey, Protocol, Scene, eventually};
use rustls::HandshakeKind;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_rustls::TlsAcceptor;

use super::{MARKETS, TOUCHLINE};

const SECRET: &str = "hunter2-hunter2-hunter2";

/// An authority of its own, with one certificate that it has signed.
pub(super) struct Authority {
    certificate: rcgen::Certificate,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

/// A certificate with its key.
pub(super) struct Signed {
    certificate: rcgen::Certificate,
    key: rcgen::KeyPair,
}

impl Authority {
    pub(super) fn new() -> Authority {
        Authority::until(4096)
    }

    fn until(year: i32) -> Authority {
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
        parameters.not_after = rcgen::date_time_ymd(year, 1, 1);
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        let issuer = rcgen::Issuer::new(parameters, key);
        Authority {
            certificate,
            issuer,
        }
    }

    pub(super) fn sign(&self, name: &str) -> Signed {
        let parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        Signed { certificate, key }
    }

    pub(super) fn write(&self, file: &Path) -> String {
        std::fs::write(file, self.certificate.pem()).unwrap();
        file.display().to_string()
    }
}

impl Signed {
    fn write(&self, directory: &Path) -> (String, String) {
        let files = ["gateway.pem", "gateway.key"].map(|name| directory.join(name));
        std::fs::write(&files[0], self.certificate.pem()).unwrap();
        std::fs::write(&files[1], self.key.serialize_pem()).unwrap();
        let [certificate, key] = files.map(|file| file.display().to_string());
        (certificate, key)
    }
}

/// Speaks TLS in front of a server, with `own`, and asks for certificates that `clients` has signed, if it is given.
async fn tls_in_front_of(
    server: SocketAddr,
    own: &Signed,
    clients: Option<&Authority>,
) -> SocketAddr {
    tls_with_alpn(server, own, clients, &[]).await
}

/// The same with an offer of protocols by ALPN; without one, ALPN is not spoken.
pub(super) async fn tls_with_alpn(
    server: SocketAddr,
    own: &Signed,
    clients: Option<&Authority>,
    protocols: &[&str],
) -> SocketAddr {
    let acceptor = acceptor(own, clients, protocols);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut client = acceptor.accept(socket).await.ok()?;
                let mut server = TcpStream::connect(server).await.ok()?;
                tokio::io::copy_bidirectional(&mut client, &mut server)
                    .await
                    .ok()
            });
        }
    });
    address
}

fn acceptor(own: &Signed, clients: Option<&Authority>, protocols: &[&str]) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let mut roots = RootCertStore::empty();
            roots.add(clients.certificate.der().clone()).unwrap();
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.unwrap())
        }
    };
    let key = PrivatePkcs8KeyDer::from(own.key.serialize_der());
    let chain = vec![own.certificate.der().clone()];
    let settings = builder.with_single_cert(chain, PrivateKeyDer::Pkcs8(key));
    let mut settings = settings.unwrap();
    settings.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    TlsAcceptor::from(Arc::new(settings))
}

/// A scene whose gateway waits for its upstream's address, and a client of it.
pub(super) struct Stage {
    pub(super) scene: Scene,
    pub(super) key: IssuedKey,
    client: Client,
}

impl Stage {
    pub(super) async fn new() -> Stage {
        let scene = Scene::builder(TOUCHLINE).start().await;
        let key = scene.issue("starter").await;
        let client = scene.client(Protocol::Http1);
        Stage { scene, key, client }
    }

    /// Restarts the gateway with these variables of the environment.
    async fn restart_with(&mut self, variables: &str) {
        self.scene.gateways[0].terminate();
        let at = self.scene.outside();
        let program = harness::with_variables(Path::new(TOUCHLINE), variables, at);
        self.scene.gateways[0] = Gateway::start(&program, at, "restarted", &self.scene.spec).await;
        self.client = self.scene.client(Protocol::Http1);
    }

    /// Sends to `server` from now on, with these entries of the upstream.
    pub(super) async fn forward_to(&mut self, server: String, more: &str) {
        let before = self.applied().await;
        let mut spec = self.scene.spec.clone();
        spec.upstream_name = Some(server);
        spec.upstream_extra = more.to_owned();
        self.scene.gateways[0].configure(&spec);
        self.scene.gateways[0].process().hang_up();
        eventually("the change is applied", async || {
            (self.applied().await != before).then_some(())
        })
        .await;
    }

    async fn applied(&self) -> String {
        let (_, metrics) = self.scene.admin(0, "/metrics").await;
        let name = "touchline_config_applied_timestamp_seconds ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().to_owned()
    }

    pub(super) async fn status(&self) -> u16 {
        self.client.get(&self.key, MARKETS).await.status
    }
}

#[tokio::test]
async fn an_upstream_over_tls_is_verified_by_authority_and_name() {
    let mut stage = Stage::new().await;
    let at = stage.scene.outside().to_owned();
    let (ours, other) = (Authority::new(), Authority::new());
    let (ca, other_ca) = (
        ours.write(&at.join("ca.pem")),
        other.write(&at.join("other.pem")),
    );
    let server = stage.scene.upstream.address();
    let named = tls_in_front_of(server, &ours.sign("data.internal"), None).await;
    let by_address = tls_in_front_of(server, &ours.sign("127.0.0.1"), None).await;
    let by_name = format!("localhost:{}", named.port());
    let underscore = tls_in_front_of(server, &ours.sign("eu_west.data.internal"), None).await;
    for (server, more, status) in [
        (
            by_address.to_string(),
            format!("tls: {{ ca_file: {ca} }}"),
            200,
        ),
        (
            by_address.to_string(),
            format!("tls: {{ ca_file: {other_ca} }}"),
            500,
        ),
        (by_address.to_string(), "tls: {}".to_owned(), 500),
        (named.to_string(), format!("tls: {{ ca_file: {ca} }}"), 500),
        (by_name.clone(), format!("tls: {{ ca_file: {ca} }}"), 500),
        (
            by_name,
            format!("tls: {{ ca_file: {ca}, name: data.internal }}"),
            200,
        ),
        (
            underscore.to_string(),
            format!("tls: {{ ca_file: {ca}, name: eu_west.data.internal }}"),
            200,
        ),
        (
            underscore.to_string(),
            format!("tls: {{ ca_file: {ca}, name: eu-west.data.internal }}"),
            500,
        ),
        // What another authority had verified is not used again.
        (
            named.to_string(),
            format!("tls: {{ ca_file: {other_ca}, name: data.internal }}"),
            500,
        ),
        (
            named.to_string(),
            format!("tls: {{ ca_file: {ca}, name: data.internal }}"),
            200,
        ),
    ] {
        stage.forward_to(server.clone(), &more).await;
        assert_eq!(stage.status().await, status, "{server} {more}");
    }
    assert_eq!(
        stage.scene.upstream.count(),
        4,
        "nothing was sent to the others"
    );
    stage.scene.expect_used(&stage.key, 4).await;
    stage.scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn the_certificate_of_an_upstream_is_verified_on_each_connection() {
    let mut stage = Stage::new().await;
    let at = stage.scene.outside().to_owned();
    let ours = Authority::new();
    let ca = ours.write(&at.join("ca.pem"));
    // The operating system's authorities are ours.
    stage.restart_with(&format!("SSL_CERT_FILE={ca}")).await;
    for tls in [format!("tls: {{ ca_file: {ca} }}"), "tls: {}".to_owned()] {
        let (server, mut handshakes) = closing(&ours.sign("127.0.0.1")).await;
        stage.forward_to(server.to_string(), &tls).await;
        for call in 0..3 {
            assert_eq!(stage.status().await, 200);
            let handshake = handshakes.recv().await.unwrap();
            assert_eq!(handshake, HandshakeKind::Full, "{tls} call {call}");
        }
    }
}

/// Speaks TLS with `own`, answers one request a connection, and reports how each handshake was made. Sessions can be resumed.
async fn closing(own: &Signed) -> (SocketAddr, UnboundedReceiver<HandshakeKind>) {
    let acceptor = acceptor(own, None, &[]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = unbounded_channel();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (acceptor, sender) = (acceptor.clone(), sender.clone());
            tokio::spawn(async move {
                let mut client = acceptor.accept(socket).await.ok()?;
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(client.read_u8().await.ok()?);
                }
                sender.send(client.get_ref().1.handshake_kind()?).ok()?;
                let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
                client.write_all(answer.as_bytes()).await.ok()?;
                client.shutdown().await.ok()
            });
        }
    });
    (address, receiver)
}

#[tokio::test]
async fn an_upstream_that_asks_for_a_certificate_gets_the_gateways() {
    let mut stage = Stage::new().await;
    let at = stage.scene.outside().to_owned();
    let (ours, clients, other) = (Authority::new(), Authority::new(), Authority::new());
    let ca = ours.write(&at.join("ca.pem"));
    let server = stage.scene.upstream.address();
    let own = ours.sign("127.0.0.1");
    let server = tls_in_front_of(server, &own, Some(&clients))
        .await
        .to_string();
    stage
        .forward_to(server.clone(), &format!("tls: {{ ca_file: {ca} }}"))
        .await;
    assert_eq!(stage.status().await, 500);
    let directory = |name: &str| -> PathBuf {
        let directory = at.join(name);
        std::fs::create_dir(&directory).unwrap();
        directory
    };
    for (signer, name, status) in [(&other, "other", 500), (&clients, "ours", 200)] {
        let (certificate, key) = signer.sign("gateway.internal").write(&directory(name));
        let more = format!(
            "tls: {{ ca_file: {ca}, certificate: {certificate}, private_key: {key} }}, health: {{ path: /healthz, interval: 100ms }}"
        );
        stage.forward_to(server.clone(), &more).await;
        assert_eq!(stage.status().await, status);
    }
    // Checks show it too.
    let passed =
        "touchline_upstream_checks_total{outcome=\"passed\",upstream=\"prediction-data\"} ";
    eventually("a check passes", async || {
        let (_, metrics) = stage.scene.admin(0, "/metrics").await;
        let line = metrics.lines().find_map(|line| line.strip_prefix(passed));
        (line? != "0").then_some(())
    })
    .await;
    stage.scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_renewed_authority_holds_without_an_edit_of_the_configuration() {
    let mut stage = Stage::new().await;
    let file = stage.scene.outside().join("ca.pem");
    // An authority is trusted until it is removed, whatever its end.
    let (ours, other) = (Authority::until(2020), Authority::new());
    let ca = other.write(&file);
    let server = stage.scene.upstream.address();
    let server = tls_in_front_of(server, &ours.sign("127.0.0.1"), None).await;
    stage
        .forward_to(server.to_string(), &format!("tls: {{ ca_file: {ca} }}"))
        .await;
    assert_eq!(stage.status().await, 500);
    ours.write(&file);
    eventually("the new one is used", async || {
        (stage.status().await == 200).then_some(())
    })
    .await;
    stage.scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn an_upstream_is_shown_the_secret_and_no_one_else_is() {
    let mut stage = Stage::new().await;
    let file = stage.scene.outside().join("secret");
    std::fs::write(&file, SECRET).unwrap();
    let server = stage.scene.upstream.address().to_string();
    let more = format!(
        "header: {{ name: X-Gateway-Secret, value_file: {} }}",
        file.display()
    );
    stage.forward_to(server, &more).await;
    for protocol in Protocol::ALL {
        let forged = Call::get(MARKETS)
            .key(&stage.key)
            .header("X-Gateway-Secret", "forged")
            .header("x_gateway_secret", "forged");
        let answer = stage.scene.client(protocol).call(forged).await;
        assert_eq!(answer.status, 200);
        assert!(!format!("{answer:?}").contains(SECRET));
    }
    for request in stage.scene.upstream.recorded() {
        assert_eq!(request.values("x-gateway-secret"), [SECRET]);
        assert!(!request.text().contains("forged"));
    }
    for path in ["/metrics", "/config", "/readyz"] {
        let (_, reported) = stage.scene.admin(0, path).await;
        assert!(!reported.contains(SECRET), "{path}");
    }
    stage.scene.gateways[0].terminate();
    assert!(!stage.scene.gateways[0].output().contains(SECRET));
    let lines = stage.scene.gateways[0].access_lines();
    assert!(lines.len() == 3 && !format!("{lines:?}").contains(SECRET));
}

#[tokio::test]
async fn a_failed_health_check_shows_nothing_of_what_it_sent() {
    let mut stage = Stage::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let echo = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = socket.split();
                tokio::io::copy(&mut from, &mut to).await
            });
        }
    });
    let more = format!(
        "header: {{ name: X-Gateway-Secret, value: {SECRET} }}, health: {{ path: /alive, interval: 100ms }}"
    );
    stage.forward_to(echo.to_string(), &more).await;
    let output = eventually("the server is out", async || {
        let output = stage.scene.gateways[0].output();
        output.contains("health checks fail").then_some(output)
    })
    .await;
    assert!(!output.contains(SECRET), "{output}");
}

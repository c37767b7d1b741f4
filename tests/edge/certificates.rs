//! Certificates: which one a client is shown, and which ones it may show.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use harness::client::HOST;
use harness::{IssuedKey, PATIENCE, Protocol, Scene, eventually};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{MARKETS, TOUCHLINE};

/// A certificate and its key, as files.
type Pair = (PathBuf, PathBuf);

/// An authority that signs certificates.
struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    pem: String,
    der: CertificateDer<'static>,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
        parameters
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        // An authority is trusted until it is removed, whatever its end.
        parameters.not_after = rcgen::date_time_ymd(2020, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        let made = parameters.self_signed(&key).unwrap();
        Authority {
            pem: made.pem(),
            der: made.der().clone(),
            issuer: rcgen::Issuer::new(parameters, key),
        }
    }

    /// Signs a certificate with these names, made to last until the end of a year, and writes it with its key.
    fn write(&self, directory: &Path, file: &str, names: &[&str], year: i32) -> Pair {
        let key = rcgen::KeyPair::generate().unwrap();
        self.write_for(&key, directory, file, names, year)
    }

    /// The same for this key.
    fn write_for(
        &self,
        key: &rcgen::KeyPair,
        directory: &Path,
        file: &str,
        names: &[&str],
        year: i32,
    ) -> Pair {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut parameters = rcgen::CertificateParams::new(names).unwrap();
        parameters.not_after = rcgen::date_time_ymd(year, 12, 31);
        let made = parameters.signed_by(key, &self.issuer).unwrap();
        let pair = (
            directory.join(format!("{file}.pem")),
            directory.join(format!("{file}.key")),
        );
        put(&pair.0, &made.pem());
        put(&pair.1, &key.serialize_pem());
        pair
    }
}

/// Puts a text into the place of a file, whole.
fn put(file: &Path, text: &str) {
    let next = file.with_extension("next");
    std::fs::write(&next, text).unwrap();
    std::fs::rename(next, file).unwrap();
}

/// A client that trusts an authority, checks names, and presents the given certificate.
fn client(
    authority: &Authority,
    own: Option<&Pair>,
    version: &'static SupportedProtocolVersion,
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_file_iter(certificate)
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap();
            let key = PrivateKeyDer::from_pem_file(key).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    Arc::new(config)
}

async fn connect(
    address: SocketAddr,
    name: ServerName<'static>,
    client: &Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let socket = TcpStream::connect(address).await.unwrap();
    tokio_rustls::TlsConnector::from(client.clone())
        .connect(name, socket)
        .await
}

/// The DER of the certificate in a file.
fn der(pair: &Pair) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(&pair.0).unwrap()
}

/// What a client that asks for a name is shown; an address is no name (RFC 6066 section 3) and is not sent.
async fn shown(
    scene: &Scene,
    name: &str,
    client: &Arc<ClientConfig>,
) -> Result<CertificateDer<'static>, String> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let stream = connect(scene.gateways[0].https, name, client).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let chain = stream.get_ref().1.peer_certificates().unwrap();
    Ok(chain[0].clone().into_owned())
}

const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];

#[tokio::test]
async fn a_client_is_shown_the_certificate_for_its_name_and_else_the_first() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let authority = Authority::new("ours");
    let default = authority.write(at, "default", &["gateway.example", "127.0.0.1"], 2040);
    let api = authority.write(at, "api", &["api.example", "*.eu.example"], 2041);
    let exact = authority.write(at, "exact", &["one.eu.example"], 2042);
    let listed = vec![default.clone(), api.clone(), exact.clone()];
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.certificates = listed)
        .start()
        .await;
    for version in VERSIONS {
        // The client's own library judges whether the name is in what it is shown.
        let client = client(&authority, None, version);
        for (name, pair) in [
            ("gateway.example", &default),
            ("127.0.0.1", &default),
            ("api.example", &api),
            ("API.Example", &api),
            ("two.eu.example", &api),
            ("one.eu.example", &exact),
        ] {
            assert_eq!(shown(&scene, name, &client).await, Ok(der(pair)), "{name}");
        }
        // The default does not hold these names.
        for name in ["a.two.eu.example", "eu.example", "unknown.example"] {
            let why = shown(&scene, name, &client).await.unwrap_err();
            assert!(why.contains("gateway.example"), "{why}");
        }
    }
    let (_, metrics) = scene.admin(0, "/metrics").await;
    let series = metrics
        .lines()
        .filter(|line| line.starts_with("touchline_certificate_end_seconds{"));
    assert_eq!(series.count(), 3);
    for (pair, end) in [
        (&default, 2_240_438_400.0),
        (&api, 2_271_974_400.0),
        (&exact, 2_303_510_400.0),
    ] {
        let file = pair.0.display();
        let series = format!("touchline_certificate_end_seconds{{certificate=\"{file}\"}}");
        let shown = scene.metric(&series).await;
        assert!((shown - end).abs() <= 86_400.0, "{file}: {shown}");
    }
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http2Tls);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    scene.assert_ledgers_agree().await;
}

/// A client that knows every kind of key but Ed25519.
fn without_ed25519(authority: &Authority) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der.clone()).unwrap();
    let mut provider = rustls::crypto::ring::default_provider();
    let known = provider.signature_verification_algorithms.mapping.iter();
    let known = known.filter(|(scheme, _)| *scheme != rustls::SignatureScheme::ED25519);
    let known: Vec<_> = known.copied().collect();
    provider.signature_verification_algorithms.mapping = Vec::leak(known);
    let builder = ClientConfig::builder_with_provider(Arc::new(provider));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}

#[tokio::test]
async fn of_two_certificates_with_one_name_a_client_is_shown_the_one_whose_key_it_knows() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let authority = Authority::new("ours");
    let default = authority.write(at, "default", &["gateway.example"], 2040);
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let edwards = authority.write_for(&key, at, "edwards", &["both.example"], 2040);
    let nist = authority.write(at, "nist", &["both.example"], 2040);
    let listed = vec![default, edwards.clone(), nist.clone()];
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.certificates = listed)
        .start()
        .await;
    let knows_both = client(&authority, None, VERSIONS[1]);
    let found = shown(&scene, "both.example", &knows_both).await;
    assert_eq!(found, Ok(der(&edwards)));
    let knows_one = without_ed25519(&authority);
    let found = shown(&scene, "both.example", &knows_one).await;
    assert_eq!(found, Ok(der(&nist)));
}

#[tokio::test]
async fn a_second_certificate_without_a_name_ends_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let authority = Authority::new("ours");
    let named = authority.write(at, "named", &["gateway.example"], 2040);
    let nameless = authority.write(at, "nameless", &["127.0.0.1"], 2040);
    let scene = Scene::builder(TOUCHLINE).start().await;
    let mut spec = scene.spec.clone();
    spec.certificates = vec![named, nameless.clone()];
    let config = at.join("gateway.yaml");
    std::fs::write(&config, spec.yaml(&at.join("access.log"))).unwrap();
    let output = harness::gateway::cli(Path::new(TOUCHLINE), &config, None, &["serve"]).await;
    assert_eq!(output.status.code(), Some(78));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let file = nameless.0.display().to_string();
    assert!(
        message.contains(&file) && message.contains("names no DNS host"),
        "{message}"
    );
}

/// Why a configuration or certificates are refused, if they are.
async fn refused(scene: &Scene) -> Option<String> {
    let (_, body) = scene.admin(0, "/readyz").await;
    let body: serde_json::Value = serde_json::from_str(&body).ok()?;
    let reason = body["config"]["refused"]["reason"].as_str()?;
    Some(reason.to_owned())
}

/// Changes the daily units of the first tier, and waits until the gateway has applied them.
async fn edit(scene: &Scene, daily: u64) {
    let mut spec = scene.spec.clone();
    spec.tiers[0].daily = daily;
    scene.gateways[0].configure(&spec);
    eventually("the tier is changed", async || {
        let (_, body) = scene.admin(0, "/config").await;
        let tiers: serde_json::Value = serde_json::from_str(&body).ok()?;
        let applied = tiers["facts"]["tier"]["starter"]["daily"].as_str()?;
        (applied.parse() == Ok(daily)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_pair_that_cannot_be_used_keeps_its_last_good_one_while_others_are_renewed() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let authority = Authority::new("ours");
    let first = authority.write(at, "first", &["a.example"], 2040);
    let second = authority.write(at, "second", &["b.example"], 2040);
    let listed = vec![first.clone(), second.clone()];
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.certificates = listed)
        .start()
        .await;
    let client = client(&authority, None, VERSIONS[1]);
    let before = [der(&first), der(&second)];
    assert_eq!(
        shown(&scene, "b.example", &client).await,
        Ok(before[1].clone())
    );
    // Of the second pair only the certificate is renewed, and for good; the first is renewed beside it.
    let other = authority.write(at, "other", &["b.example"], 2041);
    put(&second.0, &std::fs::read_to_string(&other.0).unwrap());
    authority.write(at, "first", &["a.example"], 2041);
    let renewed = der(&first);
    assert_ne!(renewed, before[0]);
    eventually("the first is renewed", async || {
        (shown(&scene, "a.example", &client).await == Ok(renewed.clone())).then_some(())
    })
    .await;
    let reason = eventually("the second is refused", async || refused(&scene).await).await;
    let file = second.0.display().to_string();
    assert!(
        reason.contains(&file) && reason.contains("does not belong"),
        "{reason}"
    );
    assert!(!reason.contains(&first.0.display().to_string()), "{reason}");
    assert_eq!(
        shown(&scene, "b.example", &client).await,
        Ok(before[1].clone())
    );
    // A change of the configuration is applied beside it.
    edit(&scene, 7).await;
    assert_eq!(scene.metric("touchline_config_refused").await, 1.0);
    // A file that is gone keeps no more from being renewed than one with other contents.
    std::fs::remove_file(&second.1).unwrap();
    authority.write(at, "first", &["a.example"], 2042);
    let renewed = der(&first);
    eventually("the first is renewed again", async || {
        (shown(&scene, "a.example", &client).await == Ok(renewed.clone())).then_some(())
    })
    .await;
    edit(&scene, 8).await;
    eventually("the file that is gone is named", async || {
        let reason = refused(&scene).await?;
        let file = second.1.display().to_string();
        (reason.contains(&file) && reason.contains("No such file")).then_some(())
    })
    .await;
    assert_eq!(
        shown(&scene, "b.example", &client).await,
        Ok(before[1].clone())
    );
    put(&second.1, &std::fs::read_to_string(&other.1).unwrap());
    eventually("the second is renewed", async || {
        (shown(&scene, "b.example", &client).await == Ok(der(&other))).then_some(())
    })
    .await;
    eventually("nothing is refused any more", async || {
        (scene.metric("touchline_config_refused").await == 0.0).then_some(())
    })
    .await;
}

/// Whether a client gets an answer with its key; in TLS 1.3 it learns of a refusal only while it reads.
async fn is_served(scene: &Scene, client: &Arc<ClientConfig>, key: &IssuedKey) -> bool {
    handshake_of_answer(scene, client, key).await.is_some()
}

/// The kind of handshake with which a client gets an answer, if it does.
async fn handshake_of_answer(
    scene: &Scene,
    client: &Arc<ClientConfig>,
    key: &IssuedKey,
) -> Option<HandshakeKind> {
    let name = ServerName::try_from(HOST).unwrap();
    let connected = connect(scene.gateways[0].https, name, client).await;
    let mut stream = connected.ok()?;
    let request = format!(
        "GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\nConnection: close\r\n\r\n",
        key.key
    );
    let mut answer = Vec::new();
    stream.write_all(request.as_bytes()).await.ok()?;
    let _ = stream.read_to_end(&mut answer).await;
    let is_served = answer.starts_with(b"HTTP/1.1 200 ");
    is_served.then(|| stream.get_ref().1.handshake_kind().unwrap())
}

/// Waits until so many handshakes have failed for a reason: they are counted behind the client's back.
async fn expect_failed(scene: &Scene, reason: &str, number: f64) {
    let series = format!("touchline_tls_handshakes_failed_total{{reason=\"{reason}\"}}");
    eventually(reason, async || {
        (scene.metric(&series).await == number).then_some(())
    })
    .await;
}

#[tokio::test]
async fn clients_without_a_certificate_of_the_authorities_are_refused_where_one_is_required() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let (ours, strangers) = (Authority::new("ours"), Authority::new("strangers"));
    let server = ours.write(at, "server", &[HOST], 2040);
    let good = ours.write(at, "good", &["client.example"], 2040);
    let expired = ours.write(at, "expired", &["client.example"], 2020);
    let strange = strangers.write(at, "strange", &["client.example"], 2040);
    let authorities = at.join("authorities.pem");
    put(&authorities, &ours.pem);
    for (mode, anonymous) in [("required", false), ("optional", true)] {
        put(&authorities, &ours.pem);
        let files = server.clone();
        let extra = format!(
            "client_certificates: {{ authorities: \"{}\", mode: {mode} }}",
            authorities.display()
        );
        let scene = Scene::builder(TOUCHLINE)
            .spec(|spec| {
                spec.certificate = Some(files);
                spec.https_extra = extra;
            })
            .start()
            .await;
        let key = scene.issue("starter").await;
        let mut requests = 0;
        for version in VERSIONS {
            for (own, expected) in [
                (Some(&good), true),
                (Some(&expired), false),
                (Some(&strange), false),
                (None, anonymous),
            ] {
                let client = client(&ours, own, version);
                let served = is_served(&scene, &client, &key).await;
                assert_eq!(served, expected, "{mode}: {own:?} over {version:?}");
                requests += u64::from(expected);
            }
        }
        scene.expect_used(&key, requests).await;
        expect_failed(&scene, "client_certificate_invalid", 4.0).await;
        let missing = if anonymous { 0.0 } else { 2.0 };
        expect_failed(&scene, "client_certificate_missing", missing).await;
        // Other authorities hold from the next handshake on, also for a client that was here before and could resume.
        let returning = client(&ours, Some(&good), VERSIONS[1]);
        assert!(is_served(&scene, &returning, &key).await);
        let newcomer = client(&ours, Some(&strange), VERSIONS[1]);
        put(&authorities, &strangers.pem);
        eventually("the other authority is trusted", async || {
            is_served(&scene, &newcomer, &key).await.then_some(())
        })
        .await;
        assert!(!is_served(&scene, &returning, &key).await);
        // Authorities that cannot be read leave those there were.
        put(&authorities, "rubbish");
        eventually("the authorities are refused", async || {
            let (_, body) = scene.admin(0, "/readyz").await;
            body.contains("authorities.pem").then_some(())
        })
        .await;
        std::fs::remove_file(&authorities).unwrap();
        edit(&scene, 7).await;
        assert!(is_served(&scene, &newcomer, &key).await);
        assert!(!is_served(&scene, &returning, &key).await);
    }
}

#[tokio::test]
async fn sessions_are_resumed_only_where_no_client_certificate_could_expire_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("ours");
    let server = authority.write(directory.path(), "server", &[HOST], 2040);
    let own = authority.write(directory.path(), "own", &["client.example"], 2040);
    let authorities = directory.path().join("authorities.pem");
    put(&authorities, &authority.pem);
    let asks = format!(
        "client_certificates: {{ authorities: \"{}\", mode: optional }}",
        authorities.display()
    );
    for (extra, second) in [
        (String::new(), HandshakeKind::Resumed),
        (asks, HandshakeKind::Full),
    ] {
        let files = server.clone();
        let scene = Scene::builder(TOUCHLINE)
            .spec(|spec| {
                spec.certificate = Some(files);
                spec.https_extra = extra;
            })
            .start()
            .await;
        let key = scene.issue("starter").await;
        for version in VERSIONS {
            let client = client(&authority, Some(&own), version);
            for expected in [HandshakeKind::Full, second] {
                let kind = handshake_of_answer(&scene, &client, &key).await;
                assert_eq!(kind, Some(expected), "{version:?}");
            }
        }
    }
}

#[tokio::test]
async fn handshakes_that_come_to_nothing_are_counted_by_reason() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let mut socket = TcpStream::connect(scene.gateways[0].https).await.unwrap();
    socket.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest).await;
    drop(TcpStream::connect(scene.gateways[0].https).await.unwrap());
    // A client that does not trust what it is shown.
    let client = client(&Authority::new("other"), None, VERSIONS[1]);
    assert!(shown(&scene, HOST, &client).await.is_err());
    for reason in ["not_tls", "closed", "alert"] {
        expect_failed(&scene, reason, 1.0).await;
    }
}

#[tokio::test]
async fn a_request_without_tls_to_the_https_port_is_refused_in_clear_text() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    // The last client sends one byte and waits.
    for request in [
        "GET /a?b HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine\r\nX-Long: ",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "G",
    ] {
        let mut socket = TcpStream::connect(scene.gateways[0].https).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = socket.read_to_string(&mut answer);
        tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head}");
        for field in [
            "content-type: application/problem+json",
            "connection: close",
        ] {
            assert!(head.contains(field), "{head}");
        }
        assert!(!head.contains("strict-transport-security"), "{head}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["code"], "BAD_REQUEST");
        assert!(body["detail"].as_str().unwrap().contains("https URL"));
        assert_eq!(body["request_id"] == "mine", request.contains("mine"));
    }
    let line = scene.gateways[0].logged_where(|line| line["path"] == "/a");
    let line = line.await;
    assert_eq!(
        (&line["status"], &line["outcome"]),
        (&400.into(), &"BAD_REQUEST".into())
    );
    expect_failed(&scene, "not_tls", 4.0).await;
    // What begins no request gets no answer of HTTP.
    let mut socket = TcpStream::connect(scene.gateways[0].https).await.unwrap();
    socket.write_all(&[0x80, 0x2e, 1, 3, 1]).await.unwrap();
    socket.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"));
    let key = scene.issue("starter").await;
    let answer = scene.client(Protocol::Http1Tls).get(&key, MARKETS).await;
    assert_eq!(answer.status, 200);
}

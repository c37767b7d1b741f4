//! Certificates from files.

use std::path::{Path, PathBuf};

use harness::{GatewaySpec, Protocol, Scene, StoreSpec};

use super::{MARKETS, TOUCHLINE, run_on};

/// A certificate and its private key, as files.
pub struct Pair {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub der: Vec<u8>,
}

pub fn write_pair(directory: &Path, name: &str) -> Pair {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = directory.join(format!("{name}.pem"));
    let key = directory.join(format!("{name}.key"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    Pair {
        certificate,
        key,
        der: made.cert.der().to_vec(),
    }
}

#[tokio::test]
async fn the_certificate_of_the_configuration_is_presented() {
    let directory = tempfile::tempdir().unwrap();
    let pair = write_pair(directory.path(), "ours");
    let files = (pair.certificate, pair.key);
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.certificate = Some(files))
        .start()
        .await;
    let key = scene.issue("starter").await;
    for protocol in [Protocol::Http1Tls, Protocol::Http2Tls] {
        let client = scene.client(protocol);
        assert_eq!(client.presented_certificate().await, pair.der);
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_certificate_that_cannot_be_used_ends_the_start_and_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let (ours, other) = (write_pair(at, "ours"), write_pair(at, "other"));
    let (missing, rubbish) = (at.join("missing.pem"), at.join("rubbish.pem"));
    std::fs::write(&rubbish, "rubbish").unwrap();
    for (certificate, key, code, named) in [
        (&missing, &ours.key, 78, vec![&missing]),
        (&rubbish, &ours.key, 1, vec![&rubbish]),
        (&ours.certificate, &missing, 78, vec![&missing]),
        (&ours.certificate, &rubbish, 1, vec![&rubbish]),
        (
            &ours.certificate,
            &other.key,
            1,
            vec![&ours.certificate, &other.key],
        ),
    ] {
        let store = StoreSpec::Embedded(at.join("touchline.db"));
        let mut spec = GatewaySpec::new(store, "127.0.0.1:9".parse().unwrap());
        spec.certificate = Some((certificate.clone(), key.clone()));
        let config = at.join("gateway.yaml");
        std::fs::write(&config, spec.yaml(&at.join("access.log"))).unwrap();
        let said = run_on(&config, &["serve"]).await.failed(code);
        for file in named {
            assert!(said.contains(file.to_str().unwrap()), "{said}");
        }
        assert!(!said.contains("PRIVATE KEY"), "{said}");
    }
}

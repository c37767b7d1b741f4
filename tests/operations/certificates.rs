//! Certificates from files.

use std::path::{Path, PathBuf};

use harness::{GatewaySpec, Protocol, Scene, StoreSpec, eventually};

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
    for (certificate, key, named) in [
        (&missing, &ours.key, vec![&missing]),
        (&rubbish, &ours.key, vec![&rubbish]),
        (&ours.certificate, &missing, vec![&missing]),
        (&ours.certificate, &rubbish, vec![&rubbish]),
        (
            &ours.certificate,
            &other.key,
            vec![&ours.certificate, &other.key],
        ),
    ] {
        let store = StoreSpec::Embedded(at.join("touchline.db"));
        let mut spec = GatewaySpec::new(store, "127.0.0.1:9".parse().unwrap());
        spec.certificate = Some((certificate.clone(), key.clone()));
        let config = at.join("gateway.yaml");
        std::fs::write(&config, spec.yaml(&at.join("access.log"))).unwrap();
        let message = run_on(&config, &["serve"]).await.failed(78);
        for file in named {
            assert!(message.contains(file.to_str().unwrap()), "{message}");
        }
        assert!(!message.contains("PRIVATE KEY"), "{message}");
    }
}

/// Seconds of a day.
const DAY: i64 = 86_400;

/// A pair that ends after so many days.
fn write_ending_pair(directory: &Path, name: &str, days: i64) -> (PathBuf, PathBuf) {
    let mut parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    let end = jiff::Timestamp::now().as_second() + days * DAY;
    let end = jiff::Timestamp::from_second(end).unwrap();
    let end = end.to_zoned(jiff::tz::TimeZone::UTC).date();
    let number = |number: i8| u8::try_from(number).unwrap();
    parameters.not_after =
        rcgen::date_time_ymd(end.year().into(), number(end.month()), number(end.day()));
    let key = rcgen::KeyPair::generate().unwrap();
    let made = parameters.self_signed(&key).unwrap();
    let files = [format!("{name}.pem"), format!("{name}.key")].map(|file| directory.join(file));
    std::fs::write(&files[0], made.pem()).unwrap();
    std::fs::write(&files[1], key.serialize_pem()).unwrap();
    let [certificate, key] = files;
    (certificate, key)
}

const WARNED: &str = "a certificate of listen.https expires soon";

#[tokio::test]
async fn the_end_of_the_certificate_is_shown_and_warned_of() {
    let directory = tempfile::tempdir().unwrap();
    for (days, warned) in [(10, true), (-3, true), (40, false)] {
        let pair = write_ending_pair(directory.path(), "pair", days);
        let scene = Scene::builder(TOUCHLINE)
            .spec(|spec| spec.certificate = Some(pair))
            .start()
            .await;
        let files = scene.spec.certificate.as_ref().unwrap();
        let (_, metrics) = scene.admin(0, "/metrics").await;
        let file = files.0.display();
        let series = format!("touchline_certificate_end_seconds{{certificate=\"{file}\"}} ");
        let end = metrics.lines().find_map(|line| line.strip_prefix(&series));
        let left = end.unwrap().parse::<i64>().unwrap() - jiff::Timestamp::now().as_second();
        assert!((days - 1) * DAY <= left && left <= days * DAY, "{left}");
        let message = scene.gateways[0].output();
        assert_eq!(message.contains(WARNED), warned, "{days} days: {message}");
    }
}

#[tokio::test]
async fn the_ends_of_the_gateways_certificates_for_upstreams_and_redis_are_shown_and_warned_of() {
    const WARNED: &str = "a certificate for upstreams or Redis expires soon";
    let directory = tempfile::tempdir().unwrap();
    let pairs = [("upstream", 40), ("redis", 10)]
        .map(|(name, days)| write_ending_pair(directory.path(), name, days));
    let tls = pairs.each_ref().map(|(certificate, key)| {
        let (certificate, key) = (certificate.display(), key.display());
        format!("tls: {{ certificate: {certificate}, private_key: {key} }}")
    });
    let scene = Scene::builder(TOUCHLINE)
        .spec(move |spec| {
            let [upstream, redis] = tls;
            spec.upstream_extra = upstream;
            // No server listens on port 1.
            spec.store = StoreSpec::Redis {
                url: "rediss://127.0.0.1:1".into(),
                key_prefix: "touchline".into(),
            };
            spec.redis_extra = format!("timeout: 100ms, {redis}");
        })
        .start()
        .await;
    let days_left = async |pair: &(PathBuf, PathBuf)| {
        let file = pair.0.display();
        let series = format!("touchline_certificate_end_seconds{{certificate=\"{file}\"}}");
        let end = scene.metric(&series).await;
        (end - jiff::Timestamp::now().as_second() as f64) / DAY as f64
    };
    let [upstream, redis] = &pairs;
    assert_eq!(days_left(upstream).await.ceil(), 40.0);
    assert_eq!(days_left(redis).await.ceil(), 10.0);
    let output = scene.gateways[0].output();
    let warnings: Vec<&str> = output
        .lines()
        .filter(|line| line.contains(WARNED))
        .collect();
    assert!(
        matches!(&*warnings, [one] if one.contains("redis.pem")),
        "{output}"
    );
    write_ending_pair(directory.path(), "redis", 20);
    eventually("the renewed one is shown", async || {
        (days_left(redis).await.ceil() == 20.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_running_gateway_warns_of_a_certificate_daily_and_when_a_configuration_is_applied() {
    let directory = tempfile::tempdir().unwrap();
    let pair = write_ending_pair(directory.path(), "pair", 15);
    let mut scene = Scene::builder(TOUCHLINE)
        .faketime()
        .spec(|spec| spec.certificate = Some(pair))
        .start()
        .await;
    assert!(!scene.gateways[0].output().contains(WARNED));
    let warned = async |scene: &Scene, times: usize| {
        eventually("the gateway warns", async || {
            let counted = scene.gateways[0].output().matches(WARNED).count();
            assert!(counted <= times, "{counted}");
            (counted == times).then_some(())
        })
        .await;
    };
    for (day, times) in [(2.0, 1), (3.0, 2)] {
        scene.clock().set_offset(day * DAY as f64);
        warned(&scene, times).await;
    }
    scene.gateways[0].process().hang_up();
    warned(&scene, 3).await;
}

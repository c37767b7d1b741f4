//! Upgrades, reloads and renewed certificates in one run under load: no request fails, none is counted wrongly.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::{Client, IssuedKey, Protocol, Scene, Store, eventually};
use tokio::task::JoinSet;

/// An endpoint of every tier.
const MARKETS: &str = "/api/v1/data/markets";
/// Reloads between two upgrades; the certificate is another one before one of them.
pub const RELOADS: u32 = 10;
/// What decides a test's changes.
const SEED: u64 = 1;
/// The longest wait before an upgrade.
const PAUSE: Duration = Duration::from_millis(100);

/// A certificate that was put into the place of another, as a renewal does.
struct Renewal {
    files: (PathBuf, PathBuf),
}

impl Renewal {
    fn at(directory: &Path) -> Renewal {
        let files = (directory.join("ours.pem"), directory.join("ours.key"));
        Renewal { files }
    }

    /// Puts a new certificate there; the certificate in DER.
    fn renew(&self) -> Vec<u8> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (certificate, key) = &self.files;
        for (file, text) in [
            (certificate, made.cert.pem()),
            (key, made.signing_key.serialize_pem()),
        ] {
            let next = file.with_extension("next");
            std::fs::write(&next, text).unwrap();
            std::fs::rename(&next, file).unwrap();
        }
        made.cert.der().to_vec()
    }
}

/// Calls until it is stopped; returns how often.
async fn call_on(client: Arc<Client>, key: IssuedKey, stop: Arc<AtomicBool>) -> u64 {
    let mut calls = 0;
    while !stop.load(Ordering::Relaxed) {
        let answer = client.get(&key, MARKETS).await;
        assert!(answer.status == 200 && answer.complete, "{answer:?}");
        calls += 1;
    }
    calls
}

async fn applied(scene: &Scene) -> u32 {
    let (_, metrics) = scene.admin(0, "/metrics").await;
    let name = "touchline_config_reloads_total{outcome=\"applied\"} ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().parse().unwrap()
}

/// Changes the file so many times, each time by another limit, and waits until each is applied.
async fn reload(scene: &mut Scene, times: u32, random: &mut fastrand::Rng) {
    let mut spec = scene.spec.clone();
    for time in 0..times {
        let before = applied(scene).await;
        // Never the same twice.
        spec.tiers[0].daily = 1_000 + 2 * random.u64(0..1_000) + u64::from(time % 2);
        scene.gateways[0].configure(&spec);
        scene.gateways[0].process().hang_up();
        eventually("the change is applied", async || {
            (applied(scene).await > before).then_some(())
        })
        .await;
    }
}

/// So many upgrades under load, each after [`RELOADS`] reloads with a renewed certificate; how many calls were served. `seed`
/// decides the limits, before which of the reloads the certificate is renewed, and how soon after the last the upgrade comes.
///
/// # Panics
/// If a request fails, a count is lost, a certificate is not presented or a bad successor disturbs anybody.
pub async fn changes_under_load(binary: &str, store: Store, upgrades: u32, seed: u64) -> u64 {
    let outside = tempfile::tempdir().unwrap();
    let renewal = Renewal::at(outside.path());
    renewal.renew();
    let files = renewal.files.clone();
    let mut scene = Scene::builder(binary)
        .store(store)
        .daily("enterprise", 100_000_000)
        .spec(|spec| {
            spec.certificate = Some(files);
            // Relative to the directory of each gateway.
            spec.upgrade = Some("upgrade.sock".into());
        })
        .start()
        .await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for protocol in Protocol::ALL {
        let key = scene.issue("enterprise").await;
        for _ in 0..2 {
            let client = Arc::new(scene.client(protocol));
            callers.spawn(call_on(client, key.clone(), stop.clone()));
        }
    }
    let addresses = |scene: &Scene| {
        let gateway = &scene.gateways[0];
        (gateway.http, gateway.https, gateway.admin)
    };
    let before = addresses(&scene);
    let onlooker = scene.client(Protocol::Http2Tls);
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..upgrades {
        let before_renewal = random.u32(0..RELOADS);
        reload(&mut scene, before_renewal, &mut random).await;
        let renewed = renewal.renew();
        reload(&mut scene, RELOADS - before_renewal, &mut random).await;
        assert!(onlooker.presented_certificate().await == renewed);
        tokio::time::sleep(PAUSE.mul_f64(random.f64())).await;
        let old = scene.gateways[0].process().pid();
        scene.gateways[0].upgrade().await;
        assert_ne!(scene.gateways[0].process().pid(), old);
        assert_eq!(addresses(&scene), before);
        assert!(onlooker.presented_certificate().await == renewed);
        let (status, body) = scene.admin(0, "/readyz").await;
        assert_eq!(status, 200, "{body}");
    }
    // It is found out after the listeners were handed over.
    let good = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    let bad = good.replace("timezone: UTC", "timezone: Asia/Tokyo");
    let message = scene.gateways[0].fail_to_upgrade(&bad).await;
    assert!(message.contains("Asia/Tokyo"), "{message}");
    assert_eq!(scene.gateways[0].process().ended(), None);
    let (status, body) = scene.admin(0, "/readyz").await;
    assert_eq!(status, 200, "{body}");
    stop.store(true, Ordering::Relaxed);
    let calls: u64 = callers.join_all().await.into_iter().sum();
    assert!(calls > 100, "{calls} calls are no load");
    scene.assert_ledgers_agree().await;
    calls
}

#[tokio::test]
async fn upgrades_reloads_and_renewed_certificates_fail_no_request_and_lose_no_count() {
    // 10 upgrades, 100 reloads, 10 certificates in all.
    for store in [Store::Embedded, Store::Redis] {
        changes_under_load(env!("CARGO_BIN_EXE_touchline"), store, 5, SEED).await;
    }
}

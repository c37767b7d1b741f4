//! The dashboard in a real browser with live data: `make dashboard`. Two gateways on one Redis are loaded for `LOAD_SECONDS`
//! (120) while a file is refused, a server goes out and Redis dies; the page is looked at on a phone and on a desk, light and
//! dark. Screenshots are written to `target/dashboard`, with `KEEP=yes` also those of the documents to `docs/images`; it ends with a panic where a fact does not hold:
//!
//! - the page shows what its JSON has, in the browser too, and asks for nothing but itself and that;
//! - the browser complains of nothing: no error, no violation of the page's policy;
//! - names that customers chose are text, whatever they are;
//! - no page is wider than its window and no column is cut; axe-core (`AXE`: its file) finds nothing, in either theme and width;
//! - some slow requests do not flatten the chart of durations;
//! - a token is asked for, refused, taken, and kept in the tab alone; themes, pausing and the keyboard work.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "it fails by panicking and prints what it found"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{Behaviour, Client, IssuedKey, Protocol, Scene, Store, eventually};
use serde_json::Value;

mod browser;

use browser::Browser;

const TOUCHLINE: &str = env!("CARGO_BIN_EXE_touchline");
const MARKETS: &str = "/api/v1/data/markets";
const RANKINGS: &str = "/api/v1/data/rankings";
const WIDTHS: [u32; 2] = [390, 1280];
/// How much longer the requests of one second take.
const SLOW_MS: u64 = 3_000;
/// The largest picture for the documents.
const PICTURE_BYTES_MAX: usize = 150_000;
const THEMES: [&str; 2] = ["light", "dark"];
/// Keys that the page shows.
const KEYS_MAX: usize = 10;
const TOKEN: &str = "0123456789abcdef-token";
/// Customers with their keys' tiers, how many calls a second they make, and their labels.
const CUSTOMERS: [(&str, &str, f64, &str); 12] = [
    ("Acme Scouting", "starter", 6.0, "live site"),
    ("Birch & Sons", "starter", 3.1, "nightly import"),
    ("Calder Odds", "starter", 2.6, "staging"),
    ("Deltona Press", "starter", 2.2, "newsroom"),
    ("Löwenzahn GmbH", "pro", 6.5, "app"),
    ("Northbank Analytics", "pro", 4.2, "dashboards"),
    ("Orchard Sports", "pro", 3.0, "mobile"),
    ("Penalty Box Ltd", "pro", 1.5, "partners"),
    ("Kestrel Media", "enterprise", 14.0, "feed 1"),
    ("Kestrel Media", "enterprise", 9.0, "feed 2"),
    ("Pundit Pro", "enterprise", 4.0, "api"),
    ("Quiet Club", "starter", 0.05, "trial"),
];
/// Names and labels that some of them, by their place, get once the pictures for the documents are taken.
const DIFFICULT: [(usize, &str, &str); 5] = [
    (2, "</script><img src=x onerror=alert(1)>", "<b>bold</b>"),
    (3, "שלום כדורגל", "ימין לשמאל"),
    (4, "⚽ Löwenzahn GmbH 🦁", "app"),
    (6, "Παίκτης & \"Υιοί\" <i>", "'quoted'"),
    (
        7,
        "A customer with a name that is longer than the column of the table that it is in, on every screen",
        "x",
    ),
];

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(look());
}

/// The sections, tables and charts that do not fit into their places; names and labels are shortened on purpose.
const CUT: &str = "[...document.querySelectorAll('section, td:not(.label), th:not(.name), dd, .plot')].filter(one =>
    one.scrollWidth > one.clientWidth + 1 && one.checkVisibility() && getComputedStyle(one).display !== 'inline').map(one => one.outerHTML)";

async fn look() {
    let axe = std::env::var("AXE")
        .ok()
        .map(|file| std::fs::read_to_string(file).unwrap());
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/dashboard");
    std::fs::create_dir_all(&pictures).unwrap();
    let profile = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(profile.path()).await;
    let mut sight = Sight {
        pictures,
        axe,
        seen: 0,
    };
    show_live_figures(&mut browser, &mut sight).await;
    ask_for_a_token(&mut browser, &mut sight).await;
    println!(
        "{} views, each judged; pictures in {}",
        sight.seen,
        sight.pictures.display()
    );
}

/// What every view must hold.
struct Sight {
    pictures: PathBuf,
    axe: Option<String>,
    seen: usize,
}

impl Sight {
    /// Looks at the page as it is now on every kind of screen.
    async fn everywhere(&mut self, browser: &mut Browser, name: &str) {
        browser.value("document.activeElement.blur()").await;
        for width in WIDTHS {
            for theme in THEMES {
                browser.wear(width, theme).await;
                let file = self.pictures.join(format!("{name}-{width}-{theme}.png"));
                std::fs::write(file, browser.picture().await).unwrap();
                let view = format!("{name} at {width} in {theme}");
                let page = browser.value("document.documentElement.scrollWidth").await;
                assert!(
                    page.as_u64().unwrap() <= u64::from(width),
                    "{view} is {page} wide"
                );
                let cut = browser.value(CUT).await;
                assert_eq!(cut, Value::Array(Vec::new()), "{view}");
                self.judge(browser, &view).await;
                self.seen += 1;
            }
        }
    }

    /// Asks axe-core.
    async fn judge(&self, browser: &mut Browser, view: &str) {
        let Some(axe) = &self.axe else { return };
        if browser.value("typeof axe").await != "object" {
            browser.value(&format!("{axe}\n;0")).await;
        }
        // Of every kind, those for best practice too.
        let found = browser
            .value(
                "axe.run(document).then(all => ({ passed: all.passes.length, open: all.incomplete.map(one => one.id), \
                 violations: all.violations.map(one => [one.id, one.help, one.nodes.map(node => node.html)]) }))",
            )
            .await;
        assert!(found["passed"].as_u64().unwrap() > 10, "{view}: {found:#}");
        assert_eq!(
            found["violations"],
            Value::Array(Vec::new()),
            "{view}: {found:#}"
        );
        println!(
            "{view}: axe-core passes {} rules, 0 violations, undecided {}",
            found["passed"], found["open"]
        );
    }
}

async fn show_live_figures(browser: &mut Browser, sight: &mut Sight) {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .gateways(2)
        .more_servers(1)
        .daily("starter", 300)
        .daily("pro", 900)
        .spec(|spec| {
            spec.redis_extra = "timeout: 1s".into();
            spec.upstream_extra =
                "health: { path: /healthz, interval: 1s, unhealthy_after: 2, healthy_after: 1 }"
                    .into();
        })
        .start()
        .await;
    let slow = Arc::new(AtomicBool::new(false));
    for upstream in [&scene.upstream, &scene.more_upstreams[0]] {
        let slow = slow.clone();
        upstream.behave(move |request| {
            let random = request.id.bytes().fold(7_u64, |sum, byte| {
                sum.wrapping_mul(31).wrapping_add(u64::from(byte))
            });
            let healthy = request.target_text() == "/healthz";
            let more = match slow.load(Ordering::Relaxed) && !healthy {
                true => SLOW_MS,
                false if random % 50 == 0 => 180,
                false => 0,
            };
            let wait = Duration::from_millis(4 + random % 19 + more);
            let answer = if random % 211 == 0 && !healthy {
                Behaviour::Status(404)
            } else {
                Behaviour::Echo
            };
            Behaviour::Delay(wait, Box::new(answer))
        });
    }
    let mut keys = Vec::new();
    for (customer, tier, rate, label) in CUSTOMERS {
        let key = scene.issue_with(tier, &["--label", label]).await;
        scene
            .cli(&["keys", "set-customer", &key.id, customer])
            .await;
        keys.push((key, rate));
    }
    let ids: Vec<String> = keys.iter().map(|(key, _)| key.id.clone()).collect();
    let (load, going_on) = load(&scene, keys);
    browser
        .open(&format!("http://{}/dashboard", scene.gateways[0].admin))
        .await;
    let seconds = std::env::var("LOAD_SECONDS")
        .ok()
        .filter(|text| !text.is_empty());
    let seconds = Duration::from_secs(seconds.map_or(120, |text| text.parse().unwrap()));
    tokio::time::sleep(seconds / 4).await;
    slow.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(1)).await;
    slow.store(false, Ordering::Relaxed);
    tokio::time::sleep(seconds / 4).await;
    let text = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    scene.gateways[0].put_file(&text.replace("daily: 900", "daily: many"));
    tokio::time::sleep(seconds / 4).await;
    scene.gateways[0].put_file(&text.replace("daily: 900", "daily: 901"));
    scene.more_upstreams[0].stop().await;
    tokio::time::sleep(seconds / 4).await;

    browser
        .until("document.querySelectorAll('#near tr').length >= 10")
        .await;
    browser
        .until("document.querySelector('#servers').textContent.includes('down')")
        .await;
    browser
        .until("document.querySelectorAll('#reloads tr').length >= 3")
        .await;
    if std::env::var("KEEP").is_ok_and(|keep| keep == "yes") {
        keep_pictures(browser).await;
    }
    for (place, name, label) in DIFFICULT {
        let id = ids[place].as_str();
        scene.cli(&["keys", "set-customer", id, name]).await;
        scene.cli(&["keys", "set-label", id, label]).await;
    }
    for (_, name, _) in DIFFICULT {
        let name = serde_json::to_string(name).unwrap();
        browser
            .until(&format!(
                "document.querySelector('#near').textContent.includes({name})"
            ))
            .await;
    }
    sight.everywhere(browser, "live").await;
    the_keyboard_reaches_everything(browser).await;
    themes_and_pausing_work(browser).await;
    slow_requests_do_not_flatten_the_chart(browser, &scene).await;
    going_on.store(false, Ordering::Relaxed);
    load.await.unwrap();
    the_page_shows_what_its_figures_show(browser, &scene).await;

    scene.redis.as_mut().unwrap().kill9();
    scene.gateways[0].put_file(&text.replace("daily: 300", "daily: </script>"));
    browser
        .until("document.querySelector('#state').textContent.startsWith('Live')")
        .await;
    browser
        .until("document.querySelector('#now').textContent.includes('down')")
        .await;
    browser
        .until("!document.querySelector('#refused').hidden")
        .await;
    sight.everywhere(browser, "trouble").await;
    complains_of_nothing(browser, scene.gateways[0].admin.port());
}

/// Waits until the slow requests are drawn beside others, and looks where the others are.
async fn slow_requests_do_not_flatten_the_chart(browser: &mut Browser, scene: &Scene) {
    const SHARES: &str = "(() => {
        const marks = [...document.querySelectorAll('#delay .grid')].filter(mark => mark.getAttribute('y1') === mark.getAttribute('y2'));
        const heights = marks.map(mark => Number(mark.getAttribute('y1')));
        const [top, bottom] = [Math.min(...heights), Math.max(...heights)];
        const points = document.querySelector('#delay .two').getAttribute('d').matchAll(/[ML][\\d.]+ ([\\d.]+)/g);
        return [...points].map(point => (bottom - point[1]) / (bottom - top)).sort((one, other) => one - other);
    })()";
    let middle = |all: &[f64]| all[(all.len() - 1) / 2];
    let (seconds, shares) = eventually("slow requests are drawn", async || {
        let (_, text) = scene.admin(0, "/dashboard.json").await;
        let figures: Value = serde_json::from_str(&text).unwrap();
        let samples = figures["samples"].as_array().unwrap().iter();
        let p99 = samples.filter_map(|sample| sample["duration_seconds"]["p99"].as_f64());
        let mut p99: Vec<f64> = p99.collect();
        p99.sort_by(f64::total_cmp);
        let shares: Vec<f64> = serde_json::from_value(browser.value(SHARES).await).unwrap();
        let rare = p99.last() > Some(&1.0) && middle(&p99) < p99.last()? / 4.0;
        (rare && shares.len() == p99.len()).then_some((p99, shares))
    })
    .await;
    assert!(middle(&shares) > 0.25, "{shares:?} of {seconds:?}");
}

/// Takes the pictures that README and docs show, each up to the end of a section.
async fn keep_pictures(browser: &mut Browser) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/images");
    std::fs::create_dir_all(&directory).unwrap();
    browser.value("document.activeElement.blur()").await;
    for (name, width, last) in [
        ("dashboard", 1280, "near"),
        ("dashboard-phone", 390, "rate"),
    ] {
        for theme in THEMES {
            browser.wear(width, theme).await;
            let end = format!(
                "document.querySelector('#{last}').closest('section').getBoundingClientRect().bottom + scrollY + 12"
            );
            let height = browser.value(&end).await;
            let picture = browser.part(width, &height).await;
            let bytes = picture.len();
            assert!(bytes <= PICTURE_BYTES_MAX, "{name}: {bytes} bytes");
            std::fs::write(directory.join(format!("{name}-{theme}.webp")), picture).unwrap();
        }
    }
}

/// Calls of all keys until the flag falls, by turns on both gateways, in waves.
fn load(
    scene: &Scene,
    keys: Vec<(IssuedKey, f64)>,
) -> (tokio::task::JoinHandle<()>, Arc<AtomicBool>) {
    let going_on = Arc::new(AtomicBool::new(true));
    let mut callers = tokio::task::JoinSet::new();
    let began = Instant::now();
    for (key, rate) in keys {
        let clients: Vec<Client> = (0..2)
            .map(|gateway| scene.client_of(gateway, Protocol::Http1))
            .collect();
        let going_on = going_on.clone();
        callers.spawn(async move {
            let mut turn = 0_usize;
            while going_on.load(Ordering::Relaxed) {
                let target = match turn % 23 {
                    7 => RANKINGS,
                    11 => "/api/v1/data/insights",
                    13 => "/api/v1/data/nothing",
                    _ => MARKETS,
                };
                clients[turn % 2].get(&key, target).await;
                turn += 1;
                let wave = 1.0 + 0.6 * (began.elapsed().as_secs_f64() / 9.0).sin();
                tokio::time::sleep(Duration::from_secs_f64(1.0 / (rate * wave))).await;
            }
        });
    }
    let all = async move { while callers.join_next().await.is_some() {} };
    (tokio::spawn(all), going_on)
}

async fn the_page_shows_what_its_figures_show(browser: &mut Browser, scene: &Scene) {
    const SHOWN: &str = "({
        near: [...document.querySelectorAll('#near tr')].map(row => [...row.cells].slice(0, 5).map(cell => cell.textContent)),
        today: [...document.querySelectorAll('#today tr')].map(row => [...row.cells].map(cell => cell.textContent)),
        answers: [...document.querySelectorAll('#answers tr')].map(row => [...row.cells].map(cell => cell.textContent)),
    })";
    let (shown, figures) = eventually("the page has the last figures", async || {
        let (_, text) = scene.admin(0, "/dashboard.json").await;
        let figures: Value = serde_json::from_str(&text).unwrap();
        let shown = browser.value(SHOWN).await;
        (shown == expected(&figures)).then_some((shown, figures))
    })
    .await;
    let customers: Vec<&str> = figures["today"]["nearest"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| key["customer"].as_str().unwrap())
        .collect();
    for (place, (plain, ..)) in CUSTOMERS.into_iter().enumerate() {
        let difficult = DIFFICULT.into_iter().find(|(of, ..)| *of == place);
        let customer = difficult.map_or(plain, |(_, name, _)| name);
        assert!(customers.contains(&customer), "{customer} in {shown:#}");
    }
    let made = browser
        .value("document.querySelectorAll('img, b, i, main script').length")
        .await;
    assert_eq!(made, 0, "a name became markup");
}

/// What the page should show of these figures.
fn expected(figures: &Value) -> Value {
    let today = &figures["today"];
    let text = |value: &Value| match value {
        Value::Number(number) => with_commas(number.as_u64().unwrap_or_default()),
        other => other.as_str().unwrap_or_default().to_owned(),
    };
    let rows = |of: &Value, names: &[&str]| -> Vec<Vec<String>> {
        let rows = of.as_array().unwrap().iter();
        rows.map(|row| names.iter().map(|name| text(&row[*name])).collect())
            .collect()
    };
    let nearest = today["nearest"].as_array().unwrap().iter().take(KEYS_MAX);
    let near: Vec<Vec<String>> = nearest
        .map(|key| {
            vec![
                text(&key["customer"]),
                text(&key["label"]),
                text(&key["key_id"]),
                text(&key["tier"]),
                format!("{} / {}", text(&key["used"]), text(&key["limit"])),
            ]
        })
        .collect();
    let columns = [
        "tier",
        "keys",
        "requests",
        "charged",
        "refunded",
        "refused_quota",
        "refused_tier",
        "refused_burst",
        "refused_concurrent",
        "refused_not_found",
        "refused_method",
    ];
    serde_json::json!({
        "near": near,
        "today": rows(&today["tiers"], &columns),
        "answers": rows(&figures["answered"], &["tier", "outcome", "requests"]),
    })
}

fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

async fn the_keyboard_reaches_everything(browser: &mut Browser) {
    browser
        .value("document.activeElement.blur(), scrollTo(0, 0)")
        .await;
    let mut reached = Vec::new();
    for _ in 0..6 {
        browser.press("Tab", 9).await;
        let focus = "(document.activeElement.id || document.activeElement.getAttribute('aria-labelledby') || document.activeElement.className || document.activeElement.tagName)";
        reached.push(
            browser
                .value(focus)
                .await
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        );
    }
    for wanted in ["skip", "theme", "pause", "SUMMARY"] {
        assert!(
            reached.iter().any(|one| one == wanted),
            "{wanted} is not reached: {reached:?}"
        );
    }
}

async fn themes_and_pausing_work(browser: &mut Browser) {
    const PAPER: &str = "getComputedStyle(document.body).backgroundColor";
    browser.wear(1280, "light").await;
    let light = browser.value(PAPER).await;
    let choose = |theme: &str| {
        format!(
            "(theme => {{ theme.value = '{theme}'; theme.dispatchEvent(new Event('change')); }})(document.querySelector('#theme'))"
        )
    };
    browser.value(&choose("dark")).await;
    let dark = browser.value(PAPER).await;
    assert_ne!(light, dark);
    browser.value(&choose("auto")).await;
    assert_eq!(browser.value(PAPER).await, light);
    browser
        .value("document.querySelector('#pause').click()")
        .await;
    browser
        .until("document.querySelector('#state').textContent.startsWith('Paused')")
        .await;
    assert_eq!(
        browser
            .value("document.querySelector('#pause').ariaPressed")
            .await,
        "true"
    );
    browser
        .value("document.querySelector('#pause').click()")
        .await;
    browser
        .until("document.querySelector('#state').textContent.startsWith('Live')")
        .await;
}

fn complains_of_nothing(browser: &mut Browser, port: u16) {
    let (asked, complaints) = browser.asked_and_complained();
    let (page, figures) = (
        format!("http://127.0.0.1:{port}/dashboard"),
        format!("http://127.0.0.1:{port}/dashboard.json"),
    );
    let own = |address: &&String| {
        **address == page || **address == figures || address.starts_with("data:")
    };
    assert!(
        asked.iter().filter(|address| **address == figures).count() > 1,
        "{asked:?}"
    );
    let outside: Vec<_> = asked.iter().filter(|address| !own(address)).collect();
    assert!(outside.is_empty(), "{outside:?}");
    assert!(complaints.is_empty(), "{complaints:#?}");
    browser.events.clear();
}

async fn ask_for_a_token(browser: &mut Browser, sight: &mut Sight) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    let admin = format!("token_file: \"{}\"", file.display());
    let scene = Scene::builder(TOUCHLINE)
        .spec(move |spec| spec.admin_extra = admin)
        .start()
        .await;
    let address = format!("http://{}/dashboard", scene.gateways[0].admin);
    browser.open(&address).await;
    browser
        .until("!document.querySelector('#entry').hidden && document.activeElement.id === 'token'")
        .await;
    sight.everywhere(browser, "token").await;
    assert_eq!(
        browser
            .value("document.querySelector('#figures').hidden")
            .await,
        true
    );
    for (written, outcome) in [
        (
            "wrong",
            "document.querySelector('#state').textContent === 'The token is wrong.'",
        ),
        (
            TOKEN,
            "!document.querySelector('#figures').hidden && document.querySelector('#entry').hidden",
        ),
    ] {
        browser
            .value("document.querySelector('#token').focus()")
            .await;
        browser.write(written).await;
        let button = "document.querySelector('#entry button').click()";
        browser.value(button).await;
        browser.until(outcome).await;
    }
    let kept = "JSON.stringify({ ...localStorage }) + document.cookie + location.href + document.documentElement.outerHTML";
    let kept = browser.value(kept).await;
    assert!(!kept.as_str().unwrap().contains(TOKEN), "{kept}");
    sight.everywhere(browser, "quiet").await;
    // The tab knows it, so that it is not asked for again.
    browser.open(&address).await;
    browser
        .until("document.querySelector('#figures') && !document.querySelector('#figures').hidden")
        .await;
}

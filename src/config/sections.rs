//! The sections of the file, each from its text to its checked form, with its defaults and bounds.
//!
//! A wrong value is noted and its default used in its place, so that the rest is checked too; what is made of a file
//! with problems is thrown away.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Secret;
use super::check::{Check, Wrong};
use super::outline::Path;
use super::scalar::{Percent, Text};
use super::text::{
    AdminText, EmbeddedText, ForwardText, HttpText, KeysText, List, ListenText, LoggingText,
    QuotaText, RootText, RuntimeText, Section, StoreText,
};
use super::{
    AccessLog, Cleartext, Config, Durability, Effective, EmbeddedStore, Forward, Http, Keys,
    Ledger, Level, Listen, LogFormat, Logging, Places, ProxyProtocol, Runtime, StoreConfig,
};
use crate::policy::api_key::KeyPrefix;
use crate::policy::calendar::Calendar;
use crate::policy::header_pattern::HeaderPattern;

mod billing;
mod events;
mod https;
mod limits;
mod outage;
mod proxies;
mod redis;
mod retirement;
mod tracing;
mod traffic;
mod upstream_tls;
mod upstreams;

const HTTP_ADDRESS: SocketAddr = loopback(8080);
const ADMIN_ADDRESS: SocketAddr = loopback(9090);
const DATABASE_PATH: &str = "var/touchline.db";
const REALM: &str = "touchline";
const ZONE: &str = "UTC";
/// Headers with which clients could speak to an upstream past the gateway's decision, or that are meant for the gateway.
const HEADERS_DENIED: [&str; 20] = [
    "cookie",
    "authorization",
    "proxy-authorization",
    "proxy",
    "x-original-uri",
    "x-original-url",
    "x-rewrite-url",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-host",
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "x-remote-user",
    "x-auth-request-*",
    "x-forwarded-user",
    "x-forwarded-prefix",
    "forwarded",
];
/// Headers of answers that name the caller or the upstream's software, or that speak to browsers and proxies for the gateway.
const ANSWER_HEADERS_DENIED: [&str; 5] = [
    "x-consumer-*",
    "x-powered-by",
    "x-accel-*",
    "alt-svc",
    "strict-transport-security",
];

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = seconds(1);
const MINUTE: Duration = seconds(60);
const HOUR: Duration = seconds(3_600);
const DAY: Duration = seconds(86_400);

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), port)
}

/// A whole URL of HTTP with a host; it may have a secret in it.
fn http_url(text: &str, problem: &str, hint: &str) -> Result<Secret, Wrong> {
    let url = reqwest::Url::parse(text).ok();
    let usable = url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    match usable {
        true => Ok(Secret::from(text.to_owned())),
        false => Err(Wrong::new(problem, hint)),
    }
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The whole file; `None` only where it is no configuration at all. The check has the problems.
pub(super) fn config(
    check: &mut Check<'_>,
    root: Section<RootText>,
    hash: String,
    places: Places,
) -> Option<Config> {
    let at = Path::default();
    let text = check.section(&at, root)?;
    let listen = listen(check, &at.key("listen"), text.listen);
    let store = store(check, &at.key("store"), text.store);
    let (calendar, ledger) = quota(check, &at.key("quota"), text.quota);
    let keys = keys(check, &at.key("keys"), text.keys);
    let tiers = traffic::tiers(check, &at.key("tiers"), text.tiers);
    let upstreams = upstreams::upstreams(check, &at.key("upstreams"), text.upstreams);
    let billing = billing::billing(check, &at.key("billing"), text.billing);
    let endpoints = traffic::endpoints(
        check,
        &at.key("endpoints"),
        text.endpoints,
        &traffic::Known {
            tiers: tiers.as_deref(),
            upstreams: upstreams.as_deref(),
            calendar: calendar.as_ref(),
        },
    );
    let events = events::events(check, &at.key("events"), text.events);
    let forward = forward(check, &at.key("forward"), text.forward);
    let runtime = runtime(check, &at.key("runtime"), text.runtime);
    let limits = limits::limits(check, &at.key("limits"), text.limits);
    let logging = logging(check, &at.key("logging"), text.logging);
    let tracing = tracing::tracing(check, &at.key("tracing"), text.tracing);
    let endpoints = endpoints?;
    let effective = Effective::of(&hash, check.readings(), &store, &endpoints);
    Some(Config {
        hash,
        effective: Arc::new(effective),
        places,
        listen,
        store,
        calendar: calendar?,
        ledger,
        keys,
        tiers: tiers?,
        billing,
        events,
        endpoints,
        upstreams: upstreams?,
        forward,
        runtime,
        limits,
        logging,
        tracing,
    })
}

fn listen(check: &mut Check<'_>, at: &Path, section: Section<ListenText>) -> Listen {
    let shipped = !section.is_given();
    let text = check.section(at, section);
    let sound = text.is_some();
    let text = text.unwrap_or_default();
    let client_side = text.http.is_given() || text.https.is_given();
    if sound && !client_side {
        check.wrong(
            at,
            "there is no listener for clients",
            "write http: {} or https: {}",
        );
    }
    let http = (shipped || text.http.is_given()).then(|| http(check, &at.key("http"), text.http));
    let https = (shipped || text.https.is_given())
        .then(|| https::https(check, &at.key("https"), text.https));
    let redirect = text
        .redirect
        .is_given()
        .then(|| proxies::redirect(check, &at.key("redirect"), text.redirect));
    if redirect.is_some() && https.is_none() {
        check.wrong_key(
            &at.key("redirect"),
            "there is no https listener to redirect to",
            "write https: {}, or remove it",
        );
    }
    let trusted_proxies = proxies::trusted(check, &at.key("trusted_proxies"), text.trusted_proxies);
    let speaking = [
        ("http", http.as_ref().map(|http| http.proxy_protocol)),
        ("https", https.as_ref().map(|https| https.proxy_protocol)),
        ("redirect", redirect.as_ref().map(|one| one.proxy_protocol)),
    ];
    for (name, spoken) in speaking {
        if spoken == Some(ProxyProtocol::Spoken) && trusted_proxies.is_empty() {
            check.wrong(
                &at.key(name).key("proxy_protocol"),
                "no proxy is trusted, so every connection would be closed",
                "write trusted_proxies: [NETWORK] in listen",
            );
        }
    }
    let (admin, admin_token) = admin(check, &at.key("admin"), text.admin);
    let used = [
        (http.as_ref().map(|http| http.address), "http"),
        (https.as_ref().map(|https| https.address), "https"),
        (redirect.as_ref().map(|one| one.address), "redirect"),
        (Some(admin), "admin"),
    ];
    for (index, (address, name)) in used.iter().enumerate() {
        let other = used.iter().take(index).find(|(other, _)| other == address);
        // Port 0 is whatever port is free: never the same twice.
        if let (Some(address), Some((_, other))) = (address, other)
            && address.port() != 0
        {
            check.wrong(
                &at.key(name).key("address"),
                format!("the {other} listener has this address already"),
                "give each listener a port of its own",
            );
        }
    }
    let upgrade = check.leaf(&at.key("upgrade"), &text.upgrade);
    Listen {
        http,
        https,
        redirect,
        trusted_proxies,
        admin,
        admin_token,
        upgrade,
    }
}

fn http(check: &mut Check<'_>, at: &Path, section: Section<HttpText>) -> Http {
    let text = check.section(at, section).unwrap_or_default();
    let address = check.leaf_or(&at.key("address"), &text.address, HTTP_ADDRESS);
    let cleartext = check.leaf_or(&at.key("cleartext"), &text.cleartext, Cleartext::Loopback);
    if cleartext == Cleartext::Loopback && !address.ip().is_loopback() {
        check.wrong(
            &at.key("address"),
            format!("{address} would take API keys in clear text from the network"),
            "listen on 127.0.0.1, use https, or write cleartext: allowed where TLS ends in front of the gateway",
        );
    }
    Http {
        address,
        cleartext,
        proxy_protocol: proxies::protocol(check, at, &text.proxy_protocol),
    }
}

fn admin(
    check: &mut Check<'_>,
    at: &Path,
    section: Section<AdminText>,
) -> (SocketAddr, Option<Secret>) {
    let text = check.section(at, section).unwrap_or_default();
    let (token_at, file_at) = (at.key("token"), at.key("token_file"));
    if text.token.is_given() && text.token_file.is_given() {
        check.wrong_key(&file_at, "there are two tokens", "keep one of them");
    }
    let written = check
        .leaf(&token_at, &text.token)
        .map(|Text(token)| Secret::from(token));
    let read = check
        .leaf(&file_at, &text.token_file)
        .and_then(|file| check.secret_file(&file_at, &file));
    for (at, token) in [(&token_at, &written), (&file_at, &read)] {
        if token.as_ref().is_some_and(|token| !is_token(token)) {
            let hint = "16 to 256 printable characters without spaces, such as `openssl rand -hex 32` makes";
            check.wrong(at, "it is not a token", hint);
        }
    }
    let token_given = text.token.is_given() || text.token_file.is_given();
    let at = at.key("address");
    let address = check.leaf_or(&at, &text.address, ADMIN_ADDRESS);
    if !address.ip().is_loopback() && !token_given {
        check.wrong(
            &at,
            format!("{address} would open the admin listener to the network"),
            "listen on 127.0.0.1, or write token: \"${VARIABLE}\" or token_file: FILE",
        );
    }
    (address, written.or(read))
}

fn is_token(token: &Secret) -> bool {
    let token = token.reveal().as_bytes();
    (16..=256).contains(&token.len()) && token.iter().all(u8::is_ascii_graphic)
}

fn store(check: &mut Check<'_>, at: &Path, section: Section<StoreText>) -> StoreConfig {
    let given = section.is_given();
    let text = check.section(at, section);
    let sound = text.is_some();
    let text = text.unwrap_or_default();
    match (text.embedded.is_given(), text.redis.is_given()) {
        (true, true) => check.wrong_key(
            &at.key("redis"),
            "there are two stores",
            "keep one of embedded and redis",
        ),
        (false, false) if given && sound => {
            check.wrong(at, "there is no store", "write embedded: {} or redis: {}")
        }
        (false, _) | (_, false) => {}
    }
    let redis = text
        .redis
        .is_given()
        .then(|| redis::redis(check, &at.key("redis"), text.redis));
    let embedded = embedded(check, &at.key("embedded"), text.embedded);
    redis.map_or(StoreConfig::Embedded(embedded), |redis| {
        StoreConfig::Redis(Box::new(redis))
    })
}

fn embedded(check: &mut Check<'_>, at: &Path, section: Section<EmbeddedText>) -> EmbeddedStore {
    let text = check.section(at, section).unwrap_or_default();
    let path = check.leaf_or(&at.key("path"), &text.path, DATABASE_PATH.into());
    let at = at.key("durability");
    let durability = check.leaf_or(&at, &text.durability, Durability::Interval(SECOND));
    let bounds = MS * 10..=MINUTE;
    check.bounds(&at, &bounds);
    if let Durability::Interval(interval) = durability
        && !bounds.contains(&interval)
    {
        check.out_of_bounds(&at, &interval, &bounds);
    }
    EmbeddedStore { path, durability }
}

fn quota(
    check: &mut Check<'_>,
    at: &Path,
    section: Section<QuotaText>,
) -> (Option<Calendar>, Ledger) {
    let text = check.section(at, section).unwrap_or_default();
    let of_zone = |name: &str| {
        Calendar::of_zone(name).map_err(|_| {
            Wrong::new(
                format!("{name:?} is not an IANA time zone"),
                "write one like UTC or Europe/London",
            )
        })
    };
    let given = text.timezone.is_given();
    let zone_at = at.key("timezone");
    check.default(&zone_at, ZONE);
    let calendar = check.parsed(&zone_at, &text.timezone, of_zone);
    // A day is invoiced, and what came late to it found, before it goes: a month and the longest window fit.
    let ledger = Ledger {
        settle_window: check.bounded(
            &at.key("settle_window"),
            &text.settle_window,
            DAY * 7,
            HOUR..=DAY * 30,
        ),
        retention: check.bounded(
            &at.key("retention"),
            &text.retention,
            DAY * 396,
            DAY * 62..=DAY * 3_660,
        ),
    };
    let calendar = if given { calendar } else { of_zone(ZONE).ok() };
    (calendar, ledger)
}

fn keys(check: &mut Check<'_>, at: &Path, section: Section<KeysText>) -> Keys {
    let text = check.section(at, section).unwrap_or_default();
    let prefix = check.parsed(&at.key("prefix"), &text.prefix, |text| {
        text.parse::<KeyPrefix>()
            .map_err(|error| Wrong::new(format!("{text:?} is not a key prefix"), error.to_string()))
    });
    let realm = check.parsed(&at.key("realm"), &text.realm, |text| {
        let fits = (1..=128).contains(&text.len())
            && text
                .bytes()
                .all(|byte| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\');
        match fits {
            true => Ok(text.to_owned()),
            false => Err(Wrong::new(
                format!("{text:?} is not a realm"),
                "1 to 128 printable ASCII characters without quote and backslash",
            )),
        }
    });
    check.default(&at.key("prefix"), KeyPrefix::default().as_str());
    check.default(&at.key("realm"), REALM);
    Keys {
        prefix: prefix.unwrap_or_default(),
        realm: realm.unwrap_or_else(|| REALM.to_owned()),
    }
}

fn forward(check: &mut Check<'_>, at: &Path, section: Section<ForwardText>) -> Forward {
    let text = check.section(at, section).unwrap_or_default();
    let requests = at.key("headers_denied");
    let answers = at.key("answer_headers_denied");
    Forward {
        headers_denied: patterns(check, &requests, text.headers_denied, &HEADERS_DENIED),
        answer_headers_denied: patterns(
            check,
            &answers,
            text.answer_headers_denied,
            &ANSWER_HEADERS_DENIED,
        ),
    }
}

/// A list of header names, which may end with `*`.
fn patterns(
    check: &mut Check<'_>,
    at: &Path,
    list: List<Text>,
    default: &[&str],
) -> Vec<HeaderPattern> {
    let given = check.texts(at, list, |text| {
        text.parse::<HeaderPattern>().map_err(|_| {
            Wrong::new(
                format!("{text:?} is not a header name"),
                "write one like cookie, or the beginning of one like x-auth-request-*",
            )
        })
    });
    check.default(at, default.to_vec());
    given.unwrap_or_else(|| {
        default
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect()
    })
}

fn runtime(check: &mut Check<'_>, at: &Path, section: Section<RuntimeText>) -> Runtime {
    let text = check.section(at, section).unwrap_or_default();
    Runtime {
        threads: small(check.bounded(&at.key("threads"), &text.threads, 0, 0..=256)),
    }
}

fn logging(check: &mut Check<'_>, at: &Path, section: Section<LoggingText>) -> Logging {
    let text = check.section(at, section).unwrap_or_default();
    let Percent(sample) = check.bounded(
        &at.key("access_log_sample"),
        &text.access_log_sample,
        Percent(100),
        Percent(0)..=Percent(100),
    );
    Logging {
        level: check.leaf_or(&at.key("level"), &text.level, Level::Info),
        format: check.leaf_or(&at.key("format"), &text.format, LogFormat::Json),
        access_log: check.leaf_or(&at.key("access_log"), &text.access_log, AccessLog::Stdout),
        access_log_percent: u8::try_from(sample).unwrap_or(100),
    }
}

/// A number whose bounds fit every machine.
fn small(bounded: u64) -> usize {
    usize::try_from(bounded).unwrap_or(usize::MAX)
}

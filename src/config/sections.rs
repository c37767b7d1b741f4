//! The sections of the file: the rows of each, the checked type made from them, and the rules between their keys.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_yaml::Value;

use super::check::{Check, Wrong};
use super::choices::Level;
use super::effective::Effective;
use super::outline::Path;
use super::outside::missing_directory;
use super::places::SourcePositions;
use super::problem::Problem;
use super::rows::{
    Form, always, distinct, leaf, list, named, number, optional, percent, plain, required, restart,
    rows, section, serving, text, within,
};
use crate::policy::api_key::KeyPrefix;
use crate::policy::billing::{Months, Rules, UnusedKeys};
use crate::policy::calendar::Calendar;
use crate::policy::endpoint::EndpointTable;
use crate::policy::enforcement::Enforcement;
use crate::policy::header_pattern::{HeaderNames, HeaderPattern};
use crate::policy::key_record::TierName;
use crate::policy::secret::Secret;
use crate::policy::store_settings::Keeping;
use crate::telemetry::access_log::Destination;
use crate::telemetry::diagnostics::Format;

pub(super) mod events;
pub(super) mod https;
pub(super) mod limits;
pub(super) mod listen;
mod own_files;
mod pairs;
pub(super) mod redis;
mod retirement;
pub(super) mod store;
pub(super) mod tracing;
pub(super) mod traffic;
pub(super) mod upstream_tls;
pub(super) mod upstreams;
mod values;

use events::Events;
use limits::Limits;
use listen::Listen;
use store::StoreConfig;
use tracing::Tracing;
use traffic::{ENDPOINTS_HINT, EndpointRows, Tier};
use upstreams::UpstreamConfig;
use values::{DAY, HOUR};

rows! {
    /// The whole file.
    struct Root {
        /// The listeners for clients and operators.
        listen: Listen = serving(always(listen::listen));
        /// Where keys and counts are stored: exactly one of embedded (one machine) and redis (any number of gateways). A change needs a
        /// restart.
        store: StoreConfig = restart(always(store::store));
        /// The quota day.
        quota: Quota = restart(plain());
        /// The format of keys.
        keys: Keys = plain();
        /// The tiers by name: the quota of a key. A change applies from the next request and leaves the units used so far unchanged.
        tiers: Option<Vec<(TierName, Tier)>> = named("write one such as starter: { daily: 1000 }", traffic::tier);
        /// How a month is billed.
        billing: Rules = always(|_, _, rows: Billing| Rules { months: rows.months, unused_keys: rows.unused_keys });
        /// The endpoints that clients may call, and the tiers that include them. No two endpoints may match the same path.
        endpoints: Vec<Option<(Path, EndpointRows)>> = required(
            ENDPOINTS_HINT,
            list(|| section(|_, at, rows| Some((at.clone(), rows)))).not_empty("at least one is needed", ENDPOINTS_HINT),
        );
        /// The description of the API.
        openapi: Description = plain();
        /// Events of keys near their limits, and the webhook that receives them.
        events: Events = serving(plain());
        /// The services behind the gateway, by name.
        upstreams: Option<Vec<(Arc<str>, UpstreamConfig)>> = serving(named(upstreams::HINT, upstreams::upstream));
        /// Which headers are passed on.
        forward: Forward = serving(plain());
        /// Threads of the process.
        runtime: Runtime = serving(restart(plain()));
        /// Limits on the resources of one client.
        limits: Limits = plain();
        /// Logs.
        logging: Logging = serving(plain());
        /// Traces.
        tracing: Tracing = serving(plain());
    }

    struct Quota {
        /// The IANA time zone whose midnights begin a quota day. The store records it: it cannot be changed once keys are in use, and
        /// never without a restart.
        timezone: Option<Calendar> = text(zone).or_text("UTC");
        // A day is invoiced, with its late settlements, before it is deleted: a month and the longest window fit.
        /// How long after its end a day of the ledger is closed. Units settled later are entered on the day on which they arrive.
        settle_window: Duration = within(DAY * 7, HOUR..=DAY * 30);
        /// How long after its end a day of the ledger is kept.
        retention: Duration = within(DAY * 396, DAY * 62..=DAY * 3_660);
    }

    /// How a month is billed.
    struct Billing {
        /// by_day: each tier of a key costs its price in proportion to the days on which the key had it; whole: a key that was held on any
        /// day costs a whole month.
        months: Months = leaf().or(Months::ByDay);
        /// Keys that were not used in the month: bill, they are billed like any other; skip, they are not billed.
        unused_keys: UnusedKeys = leaf().or(UnusedKeys::Bill);
    }

    /// The format of issued keys, and the realm of a 401.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Keys {
        /// The prefix of issued keys.
        prefix: KeyPrefix = text(key_prefix).or_text("fpd");
        /// The realm in WWW-Authenticate of a 401.
        realm: String = text(realm).or_text("touchline");
    }

    /// The description of the API, /openapi.json.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Description {
        /// The name of the API in /openapi.json, as generated clients and documentation show it.
        title: String = text(title).or_text("Football prediction data API");
        /// The URL of a page for your customers about errors: the member documentation of each error body, and externalDocs in /openapi.json.
        documentation: Option<String> = text(page);
    }

    /// Which headers are passed on to upstreams, and from their answers to clients.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Forward {
        /// Request headers that are not forwarded to upstreams, besides X-API-Key, X-Consumer-*, X-Forwarded-* and hop-by-hop headers.
        /// A * at the end matches any rest of a name.
        headers_denied: Vec<HeaderPattern> = distinct(|| text(header_pattern)).or_list(HEADERS_DENIED);
        /// Headers of upstreams' answers that are not passed on to clients, besides Server, those named like the gateway's quota headers,
        /// and hop-by-hop headers. A * at the end matches any rest of a name. The gateway's own Strict-Transport-Security is not removed.
        /// Headers without which clients and caches would misread answers cannot be listed.
        answer_headers_denied: Vec<HeaderPattern> = distinct(|| text(answer_header_pattern)).or_list(ANSWER_HEADERS_DENIED);
    }

    /// Threads of the process.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Runtime {
        /// Worker threads; 0 means one per core. A change needs a restart.
        threads: usize = number(0, 0..=256);
    }

    /// Logs.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Logging {
        /// The least important messages of the diagnostic log (standard error).
        level: Level = leaf().or(Level::Info);
        /// The format of its lines: json, or pretty for people.
        format: Format = leaf().or(Format::Json);
        /// The destination of the access log: stdout, stderr, off or a file name with a slash in it.
        access_log: Destination = leaf().then(in_a_directory).or(Destination::Stdout);
        /// The share of served requests that are logged. Refused and failed requests always are; so are those with would_refuse.
        access_log_percent as "access_log_sample": u8 = percent(100);
    }
}

/// Notes a file for whose creation the directory is missing.
fn in_a_directory(
    check: &mut Check<'_>,
    at: &Path,
    destination: Option<Destination>,
) -> Option<Destination> {
    if let Some(Destination::File(file)) = &destination
        && check.looks_outside()
        && let Some(message) = missing_directory(file)
    {
        check.wrong(at, message, "create it, or write a file in another one");
    }
    destination
}

/// Headers with which clients could bypass the gateway's decision at an upstream, or that are meant for the gateway.
const HEADERS_DENIED: &str = "\
    cookie authorization proxy-authorization proxy x-original-uri x-original-url \
    x-rewrite-url x-http-method x-http-method-override x-method-override x-method x-host \
    x-http-host-override x-original-host x-real-ip x-client-ip client-ip true-client-ip \
    x-cluster-client-ip cf-connecting-ip fastly-client-ip x-remote-ip x-remote-addr \
    x-originating-ip x-original-forwarded-for x-remote-user remote-user x-auth-request-* \
    x-forwarded-user x-forwarded-prefix forwarded";
/// Headers of answers that name the caller or the upstream's software, report another quota, or instruct browsers and proxies in the
/// gateway's place.
const ANSWER_HEADERS_DENIED: &str = "\
    x-consumer-* x-ratelimit-* x-rate-limit-* ratelimit-* x-powered-by x-accel-* alt-svc \
    strict-transport-security";

/// A checked configuration. If it was read for another purpose than serving, values that were not read are defaults: in sections
/// that only a gateway uses ([`Commands`](super::Purpose::Commands)), or anywhere ([`Offline`](super::Purpose::Offline)).
#[derive(Debug)]
pub struct Config {
    /// The first 12 hexadecimal characters of the SHA-256 of the text: the name of the configuration that a node runs.
    pub hash: String,
    /// The facts of the configuration, to be served and compared.
    pub effective: Arc<Effective>,
    /// The effects, by path, of every value whose change needs a restart.
    pub(super) foundation: BTreeMap<String, Secret>,
    /// The position of each setting in the file.
    pub places: SourcePositions,
    /// The listeners for clients and operators.
    pub listen: Listen,
    /// The store of keys and counts.
    pub store: StoreConfig,
    /// The division of time into quota days (`quota.timezone`).
    pub calendar: Calendar,
    /// How long the ledger waits for late settlements, and how long it is kept.
    pub keeping: Keeping,
    /// The format of issued keys, and the realm of a 401.
    pub keys: Keys,
    /// The tiers in the order of the file; at least one, no name twice.
    pub tiers: Vec<(TierName, Tier)>,
    /// How a month is billed.
    pub billing: Rules,
    /// Events of keys near their limits.
    pub events: Events,
    /// The endpoints; every tier and upstream that they name exists.
    pub endpoints: EndpointTable,
    /// The description of the API.
    pub openapi: Description,
    /// The upstreams in the order of the file; at least one, no name twice.
    pub upstreams: Vec<(Arc<str>, UpstreamConfig)>,
    /// Which headers are passed on.
    pub forward: Forward,
    /// Threads of the process.
    pub runtime: Runtime,
    /// Limits on the resources of one client.
    pub limits: Limits,
    /// Logs.
    pub logging: Logging,
    /// Traces.
    pub tracing: Tracing,
    /// Warnings: what is no mistake of the file, such as names that do not resolve.
    pub warnings: Vec<Problem>,
    /// The files of the gateway's own certificates for upstreams and Redis, and when each, or another of its chain, ends, in Unix
    /// seconds.
    pub own_certificates: BTreeMap<PathBuf, i64>,
}

impl Config {
    /// The tier with this name.
    pub fn tier(&self, name: &TierName) -> Option<&Tier> {
        self.tiers
            .iter()
            .find(|(tier, _)| tier == name)
            .map(|(_, tier)| tier)
    }

    /// The tiers whose limits refuse nothing.
    pub fn shadow_tiers(&self) -> impl Iterator<Item = &(TierName, Tier)> {
        let shadow = |(_, tier): &&(TierName, Tier)| tier.enforcement == Enforcement::Shadow;
        self.tiers.iter().filter(shadow)
    }

    /// The upstream with this name.
    #[cfg(test)]
    pub fn upstream(&self, name: &str) -> Option<&UpstreamConfig> {
        self.upstreams
            .iter()
            .find(|(upstream, _)| **upstream == *name)
            .map(|(_, upstream)| upstream)
    }
}

/// The whole file; `None` only if it is no configuration at all. The problems are noted in the check.
pub(super) fn config(
    check: &mut Check<'_>,
    written: Value,
    hash: String,
    places: SourcePositions,
) -> Option<Config> {
    let root = optional::<Root>();
    let mut root = root.read(check, &Path::default(), Some(written))?;
    let known = traffic::KnownNames {
        tiers: root.tiers.as_deref(),
        upstreams: root.upstreams.as_deref(),
        calendar: root.quota.timezone.as_ref(),
    };
    let endpoints = traffic::endpoints(check, root.endpoints, &known);
    let (listen, store) = (&root.listen, &root.store);
    own_files::note_unusable(check, &places, listen, store, &root.logging.access_log);
    let endpoints = endpoints?;
    if check.problems.is_empty() {
        let addresses = check.resolve();
        upstreams::add_addresses(
            root.upstreams.as_deref_mut().unwrap_or_default(),
            &addresses,
        );
    }
    let effective = Effective::of(&hash, &check.readings, &endpoints);
    Some(Config {
        hash,
        effective: Arc::new(effective),
        foundation: std::mem::take(&mut check.foundation),
        places,
        listen: root.listen,
        store: root.store,
        calendar: root.quota.timezone?,
        keeping: Keeping {
            settle_window: root.quota.settle_window,
            retention: root.quota.retention,
            ..Keeping::default()
        },
        keys: root.keys,
        tiers: root.tiers?,
        billing: root.billing,
        events: root.events,
        endpoints,
        openapi: root.openapi,
        upstreams: root.upstreams?,
        forward: root.forward,
        runtime: root.runtime,
        limits: root.limits,
        logging: root.logging,
        tracing: root.tracing,
        warnings: check.warnings(),
        own_certificates: std::mem::take(&mut check.own_certificates),
    })
}

/// The permitted content of the file.
pub(super) fn form() -> Form {
    plain::<Root>().form()
}

fn zone(name: &str) -> Result<Option<Calendar>, Wrong> {
    let hint = "write a time zone such as UTC or Europe/London";
    let calendar = Calendar::of_zone(name).map_err(|_| Wrong::not("an IANA time zone", hint))?;
    Ok(Some(calendar))
}

fn key_prefix(text: &str) -> Result<KeyPrefix, Wrong> {
    let prefix = text.parse::<KeyPrefix>();
    prefix.map_err(|error| Wrong::not("a key prefix", error.to_string()))
}

fn realm(text: &str) -> Result<String, Wrong> {
    let hint = "1 to 128 printable ASCII characters without quote and backslash";
    let fits = |byte| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
    let fits = (1..=128).contains(&text.len()) && text.bytes().all(fits);
    fits.then(|| text.to_owned())
        .ok_or_else(|| Wrong::not("a realm", hint))
}

fn title(text: &str) -> Result<String, Wrong> {
    let hint = "1 to 128 characters without control characters";
    let fits = !text.trim().is_empty() && text.chars().count() <= 128;
    let fits = fits && !text.chars().any(char::is_control);
    fits.then(|| text.to_owned())
        .ok_or_else(|| Wrong::not("a title", hint))
}

fn page(text: &str) -> Result<String, Wrong> {
    let hint = "write https:// or http:// and a host, without a password, 512 characters at most";
    let is_web = text.parse::<http::Uri>().is_ok_and(|uri| {
        let has_host = uri.host().is_some_and(|host| !host.is_empty());
        let has_user = uri
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'));
        matches!(uri.scheme_str(), Some("https" | "http")) && has_host && !has_user
    });
    let is_uri = |octet: u8| octet.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&octet);
    let fits = is_web && text.len() <= 512 && text.bytes().all(is_uri);
    fits.then(|| text.to_owned())
        .ok_or_else(|| Wrong::not("a URL", hint))
}

fn header_pattern(text: &str) -> Result<HeaderPattern, Wrong> {
    let hint = "write a name such as cookie, or the beginning of one such as x-auth-request-*";
    let pattern = text.parse::<HeaderPattern>();
    pattern.map_err(|_| Wrong::not("a header name", hint))
}

/// Headers without which clients and caches would misread an answer.
const NEEDED_IN_ANSWERS: [&str; 5] = [
    "cache-control",
    "content-encoding",
    "content-range",
    "content-type",
    "vary",
];

fn answer_header_pattern(text: &str) -> Result<HeaderPattern, Wrong> {
    let pattern = header_pattern(text)?;
    let denied = HeaderNames::new([&pattern]);
    match NEEDED_IN_ANSWERS
        .iter()
        .find(|name| denied.fits(name.as_bytes()))
    {
        None => Ok(pattern),
        Some(name) => {
            let hint =
                format!("clients and caches would misread answers without {name}: remove it");
            Err(Wrong::not("a header that answers can do without", hint))
        }
    }
}

//! The state shared by all requests.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ahash::RandomState;
use arc_swap::{ArcSwap, ArcSwapOption};
use http::HeaderValue;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::rates::Rates;
use super::relay::connections::Connections;
use super::series::SeriesTable;
use super::threshold_events::ThresholdEvents;
use super::upstreams::Upstream;
use crate::config::{Config, Limits};
use crate::policy::address;
use crate::policy::api_key::KeyId;
use crate::policy::calendar::{Calendar, CalendarError, Day};
use crate::policy::header_pattern::{HeaderNames, HeaderPattern};
use crate::policy::openapi::{self, Document};
use crate::policy::rejection::ProblemTerms;
use crate::policy::token_bucket::{Empty, Rate, TokenBuckets};
use crate::store::Store;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Span;

/// How often a key may read its usage, on each gateway: every read queries the store for the ledger of 30 days.
const USAGE_RATE: Rate = Rate {
    burst: 5,
    interval: Duration::from_secs(1),
};
/// Keys that may have read their usage in the last seconds; about 1 MiB. Beyond that, other keys are refused.
const USAGE_READERS_MAX: usize = 10_000;

/// Client addresses whose last failed authentication is remembered; about 10 MiB. With more, as in a distributed flood,
/// connections of other addresses are closed after one failure.
const FAILING_ADDRESSES_MAX: usize = 100_000;
/// A burst of failed authentications may be as large as the limit of this many seconds.
const BURST_SECONDS: u32 = 5;

/// A checked configuration with everything derived from it. A request loads it once and keeps it to its end.
#[derive(Debug)]
pub struct Snapshot {
    /// The configuration.
    pub config: Config,
    /// Request headers that are not forwarded.
    pub denied: HeaderNames,
    /// Headers of answers that are not forwarded.
    pub answer_denied: HeaderNames,
    /// The answer of `/openapi.json`.
    pub document: Document,
    /// What all error answers have.
    pub problems: ProblemTerms,
    /// The `Strict-Transport-Security` of answers over TLS (RFC 6797 section 6.1), if configured.
    pub hsts: Option<HeaderValue>,
    /// The metrics of its endpoints and tiers.
    pub series: SeriesTable,
    /// The most memory of a request that waits for some upstream, beside its head and body.
    pub exchange_bytes: u64,
    upstreams: HashMap<Arc<str>, Arc<Upstream>, RandomState>,
}

impl Snapshot {
    /// A snapshot of `config`, which keeps unchanged upstreams of the `previous` one with the state of their servers. Connections to
    /// servers are pooled by address and stay in any case.
    pub fn new(config: Config, previous: Option<&Snapshot>) -> Snapshot {
        let upstreams: HashMap<Arc<str>, Arc<Upstream>, RandomState> = config
            .upstreams
            .iter()
            .map(|configured| {
                let (name, config) = configured;
                let before = previous.and_then(|previous| previous.upstream(name));
                let others = previous.iter().flat_map(|previous| previous.upstreams());
                let upstream = match before {
                    Some(before) if before.config == *config => before.clone(),
                    before => {
                        let all = before.into_iter().chain(others).map(Arc::as_ref);
                        Arc::new(Upstream::new(configured, all))
                    }
                };
                (name.clone(), upstream)
            })
            .collect();
        // A client's own header must not pass for the gateway's, in any spelling.
        let secrets = config
            .upstreams
            .iter()
            .filter_map(|(_, upstream)| upstream.header.as_ref());
        let secrets: Vec<HeaderPattern> = secrets
            .map(|header| HeaderPattern::Name(header.name.clone()))
            .collect();
        let denied = HeaderNames::new(config.forward.headers_denied.iter().chain(&secrets));
        let exchanges = upstreams
            .values()
            .map(|upstream| upstream.wire.exchange_bytes());
        Snapshot {
            document: document(&config),
            series: SeriesTable::new(&config),
            hsts: hsts(&config),
            problems: problem_terms(&config),
            exchange_bytes: exchanges.max().unwrap_or_default(),
            answer_denied: HeaderNames::new(&config.forward.answer_headers_denied),
            config,
            denied,
            upstreams,
        }
    }

    /// All upstreams.
    pub fn upstreams(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.upstreams.values()
    }

    /// The upstream with this name.
    pub fn upstream(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.upstreams.get(name)
    }
}

/// `Strict-Transport-Security`, or `None` if it is not configured.
fn hsts(config: &Config) -> Option<HeaderValue> {
    let max_age = config.listen.https.as_ref()?.hsts?;
    HeaderValue::try_from(format!("max-age={}", max_age.as_secs())).ok()
}

/// What all error answers under a configuration have.
pub fn problem_terms(config: &Config) -> ProblemTerms {
    let documentation = config.openapi.documentation.as_deref();
    ProblemTerms::new(&config.keys.realm, documentation)
}

/// The answer of `/openapi.json` under a configuration.
pub fn document(config: &Config) -> Document {
    let tiers = config.tiers.iter();
    Document::of(&openapi::Api {
        endpoints: &config.endpoints,
        tiers: tiers
            .clone()
            .map(|(name, tier)| (name, tier.daily.get()))
            .collect(),
        burst: tiers.clone().find_map(|(_, tier)| tier.burst),
        concurrent: tiers.clone().find_map(|(_, tier)| tier.concurrent),
        problems: &problem_terms(config),
        title: &config.openapi.title,
    })
}

/// The gateway as used by its requests.
pub struct Gate {
    snapshot: ArcSwap<Snapshot>,
    /// Keys and counts.
    pub store: Arc<dyn Store>,
    /// Metric families.
    pub metrics: Arc<Metrics>,
    /// The access log.
    pub access_log: AccessLog,
    /// The queue of spans to be exported, those of each request together.
    pub spans: mpsc::Sender<Vec<Span>>,
    /// Connections to upstreams.
    pub connections: Connections,
    /// Keys near their limits.
    pub threshold_events: ThresholdEvents,
    /// The quota day of the last request; replaced when it is over.
    day: ArcSwapOption<Day>,
    usage_reads: Mutex<TokenBuckets<KeyId>>,
    failed_authentications: Mutex<TokenBuckets<IpAddr>>,
    /// How much of their tiers' burst and concurrency the keys have used.
    pub rates: Arc<Rates>,
    draining: AtomicBool,
    /// Cancelled when the connections of clients are closed, also those with requests in flight.
    pub cut_off: CancellationToken,
    /// HTTP/2 connections with a backlog.
    backlogs: AtomicUsize,
    arrivals: AtomicUsize,
}

/// Something of a client's that has begun to arrive and is not a request yet: a PROXY protocol header, a TLS handshake, a head. It is
/// counted until this is dropped.
#[derive(Debug)]
pub struct Arrival<'g>(&'g AtomicUsize);

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Gate {
    /// A gate on `store` with a first snapshot.
    pub fn new(
        snapshot: Snapshot,
        store: Arc<dyn Store>,
        metrics: Arc<Metrics>,
        access_log: AccessLog,
        spans: mpsc::Sender<Vec<Span>>,
    ) -> Gate {
        Gate {
            snapshot: ArcSwap::from_pointee(snapshot),
            store,
            metrics,
            access_log,
            spans,
            connections: Connections::default(),
            threshold_events: ThresholdEvents::default(),
            day: ArcSwapOption::empty(),
            usage_reads: Mutex::new(TokenBuckets::new(USAGE_READERS_MAX)),
            failed_authentications: Mutex::new(TokenBuckets::new(FAILING_ADDRESSES_MAX)),
            rates: Arc::default(),
            draining: AtomicBool::new(false),
            cut_off: CancellationToken::new(),
            backlogs: AtomicUsize::new(0),
            arrivals: AtomicUsize::new(0),
        }
    }

    /// The current snapshot.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Replaces the snapshot: new requests use the new one, those in flight keep theirs.
    pub fn replace(&self, snapshot: Snapshot) {
        self.snapshot.store(Arc::new(snapshot));
    }

    /// The quota day of `now`. Costs a look-up of the zone once a day.
    ///
    /// # Errors
    /// If the zone's calendar has no such day.
    pub fn day_at(&self, calendar: &Calendar, now: Timestamp) -> Result<Day, CalendarError> {
        if let Some(day) = self.day.load().as_deref()
            && day.contains(now)
        {
            return Ok(*day);
        }
        let day = calendar.day_at(now)?;
        self.day.store(Some(Arc::new(day)));
        Ok(day)
    }

    /// Takes one permission of a key to read its usage.
    ///
    /// # Errors
    /// If the key has read it too often, or too many keys have.
    pub fn take_usage_read(&self, key: KeyId) -> Result<(), Empty> {
        self.usage_reads
            .lock()
            .take(key, USAGE_RATE, Instant::now())
    }

    /// Notes a request without a valid key.
    ///
    /// # Errors
    /// If there are too many from the client's address, or from too many addresses to remember this one.
    pub fn note_failed_authentication(&self, client: IpAddr, limits: &Limits) -> Result<(), Empty> {
        let Some(address) = address::counted(client, &limits.exempt_addresses) else {
            return Ok(());
        };
        let rate = Rate {
            burst: limits.failed_authentications.saturating_mul(BURST_SECONDS),
            interval: Duration::from_secs(1) / limits.failed_authentications.max(1),
        };
        let mut buckets = self.failed_authentications.lock();
        buckets.take(address, rate, Instant::now())
    }

    /// Starts to drain the gateway: connections are closed after their current request.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Counts an HTTP/2 connection whose client refuses bytes, perhaps of answers that are over, or no longer does.
    pub fn note_backlog(&self, has_backlog: bool) {
        match has_backlog {
            true => self.backlogs.fetch_add(1, Ordering::Relaxed),
            false => self.backlogs.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Whether bytes of HTTP/2 connections still wait for their clients.
    pub fn has_backlog(&self) -> bool {
        self.backlogs.load(Ordering::Relaxed) > 0
    }

    /// Counts something of a client's that has begun to arrive; the wait for the rest has a deadline.
    pub fn arrival(&self) -> Arrival<'_> {
        self.arrivals.fetch_add(1, Ordering::Relaxed);
        Arrival(&self.arrivals)
    }

    /// Whether clients have begun to send what is not a request yet.
    pub fn has_arrivals(&self) -> bool {
        self.arrivals.load(Ordering::Relaxed) > 0
    }

    /// Whether the gateway is draining.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::store::embedded::{Settings, open};
    use crate::store::{NodeName, Role};

    /// The endpoint `/a` of the tier `pro`, and its upstream `u` with these further settings.
    pub fn config(upstream: &str) -> Config {
        let text = format!(
            "tiers: {{pro: {{daily: 5}}}}
endpoints: [{{path: /a, tiers: [pro], upstream: u}}]
upstreams: {{u: {{servers: [127.0.0.1:9000, 127.0.0.1:9001]{upstream}}}}}
"
        );
        Config::parse("g.yaml", &text, &|_| None).unwrap()
    }

    #[test]
    fn a_name_that_does_not_resolve_keeps_its_addresses_in_an_upstream_of_another_name() {
        const NAME: &str = "data.internal:9001";
        let (mut known, mut next) = (config(""), config(""));
        known.upstreams[0].1.servers[1].name = NAME.into();
        let before = Snapshot::new(known, None);
        let (name, upstream) = &mut next.upstreams[0];
        *name = "v".into();
        upstream.servers[1].name = NAME.into();
        upstream.servers[1].addresses.clear();
        let after = Snapshot::new(next, Some(&before));
        let places = after.upstream("v").unwrap().places();
        assert_eq!(places.len(), 2);
        assert_eq!(places[1].server.address.port(), 9001);
    }

    /// A gate with this configuration, on an embedded store in `directory`.
    pub async fn gate(config: Config, directory: &tempfile::TempDir) -> Arc<Gate> {
        let settings = Settings::new(directory.path().join("touchline.db"));
        let role = Role::Gateway(NodeName("a".into()));
        let store = open(settings, role, "UTC", Clock::system()).await;
        Arc::new(Gate::new(
            Snapshot::new(config, None),
            store.unwrap(),
            Arc::new(Metrics::new().unwrap()),
            AccessLog::new(None),
            mpsc::channel(1).0,
        ))
    }
}

//! The configuration as written: one type a section, nothing checked yet.
//!
//! serde stops at the first error; a configuration file deserves all of them. So no leaf fails to be read: [`Leaf`],
//! [`List`] and [`Named`] keep what is written for the check, [`Section`] keeps unknown keys beside the known ones. Every type denies
//! unknown fields all the same, so that none is ever dropped in silence.

use std::cell::Cell;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor, value};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_json::{Value as Json, json};
use serde_yaml::{Mapping, Value};

use super::outline::Path;
use super::scalar::{Bytes, Percent, Price, Text};
use super::schema::{self, Learnt, Shape};
use super::{
    AccessLog, Cleartext, ClientMode, Durability, Level, LogFormat, OutagePolicy, Protocol,
    ProxyProtocol,
};
use crate::policy::billing::{Months, UnusedKeys};
use crate::policy::choice::Choice;
use crate::policy::enforcement::Enforcement;

macro_rules! unread {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        pub(super) struct $name<T>(pub(super) Option<Value>, PhantomData<T>);

        impl<T> Default for $name<T> {
            fn default() -> $name<T> {
                $name(None, PhantomData)
            }
        }

        impl<'de, T> Deserialize<'de> for $name<T> {
            /// Keeps whatever is written, an empty value too: that is no way to ask for a default.
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name<T>, D::Error> {
                Ok($name(Some(Value::deserialize(deserializer)?), PhantomData))
            }
        }
    )*};
}

unread! {
    /// One scalar that will be read as a `T`.
    Leaf
    /// A list whose items will each be read as a `T`.
    List
    /// A mapping of names of the operators' choice, whose values will each be read as a `T`.
    Named
}

impl<T> Leaf<T> {
    pub(super) fn of(value: &Value) -> Leaf<T> {
        Leaf(Some(value.clone()), PhantomData)
    }

    pub(super) fn is_given(&self) -> bool {
        self.0.is_some()
    }
}

impl<T> List<T> {
    /// Whether it is given without any item.
    pub(super) fn is_empty(&self) -> bool {
        matches!(&self.0, Some(Value::Sequence(items)) if items.is_empty())
    }

    pub(super) fn is_given(&self) -> bool {
        self.0.is_some()
    }
}

/// A mapping with known keys.
#[derive(Default)]
pub(super) enum Section<T> {
    /// Not in the file.
    #[default]
    Absent,
    /// The known keys as `T`, and those that are not known.
    Given { text: T, unknown: Vec<String> },
    /// Something else than a mapping stands there.
    NotAMapping(Value),
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Section<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Section<T>, D::Error> {
        let mapping = match Value::deserialize(deserializer)? {
            Value::Mapping(mapping) => mapping,
            other => return Ok(Section::NotAMapping(other)),
        };
        let names = known_keys::<T>();
        let (known, unknown): (Mapping, Mapping) = mapping
            .into_iter()
            .partition(|(key, _)| key.as_str().is_some_and(|key| names.contains(&key)));
        Ok(Section::Given {
            text: serde_yaml::from_value(Value::Mapping(known)).map_err(D::Error::custom)?,
            unknown: unknown.iter().map(|(key, _)| key_text(key)).collect(),
        })
    }
}

impl<T> Section<T> {
    pub(super) fn is_given(&self) -> bool {
        !matches!(self, Section::Absent)
    }
}

/// A server as it is written: a text, or a section of its own.
pub(super) struct ServerItem;

impl Shape for ServerItem {
    fn probe() -> Option<Value> {
        None
    }

    fn shape(at: &Path, learnt: &Learnt) -> Json {
        let section = schema::requiring("address", ServerText::shape(at, learnt));
        json!({ "anyOf": [Text::shape(at, learnt), section] })
    }
}

/// A key as it is written.
pub(super) fn key_text(key: &Value) -> String {
    match key {
        Value::String(text) => text.clone(),
        Value::Null => "null".to_owned(),
        Value::Bool(_)
        | Value::Number(_)
        | Value::Sequence(_)
        | Value::Mapping(_)
        | Value::Tagged(_) => serde_yaml::to_string(key)
            .unwrap_or_default()
            .trim_end()
            .to_owned(),
    }
}

/// The names of the fields of `T`, as its derived `Deserialize` declares them.
pub(super) fn known_keys<T: DeserializeOwned>() -> &'static [&'static str] {
    struct FieldNames<'a>(&'a Cell<&'static [&'static str]>);

    impl<'de> Deserializer<'de> for FieldNames<'_> {
        type Error = value::Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, value::Error> {
            Err(value::Error::custom("only the names are asked for"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, value::Error> {
            self.0.set(fields);
            self.deserialize_any(visitor)
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let names = Cell::new([].as_slice());
    // The answer is an error by construction; the names were kept on the way.
    let _ = T::deserialize(FieldNames(&names));
    names.get()
}

macro_rules! sections {
    ($($(#[$doc:meta])* $name:ident { $($(#[doc = $field_doc:literal])+ $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(super) struct $name {
            $($(#[doc = $field_doc])+ pub(super) $field: $type,)*
        }

        impl Shape for $name {
            fn probe() -> Option<Value> {
                let mut probe = Mapping::new();
                $(if let Some(inner) = <$type as Shape>::probe() {
                    probe.insert(stringify!($field).into(), inner);
                })*
                Some(Value::Mapping(probe))
            }

            fn shape(at: &Path, learnt: &Learnt) -> Json {
                schema::section(at, learnt, [$(
                    schema::Field {
                        name: stringify!($field),
                        description: concat!($($field_doc),+),
                        shape: <$type as Shape>::shape(&at.key(stringify!($field)), learnt),
                        probed: <$type as Shape>::probe().is_some(),
                    },
                )*])
            }
        }
    )*};
}

sections! {
    /// The whole file.
    RootText {
        /// Where clients and operators connect.
        listen: Section<ListenText>,
        /// Where keys and counts live: exactly one of embedded (one machine) and redis (any number of gateways). A change needs
        /// a restart.
        store: Section<StoreText>,
        /// The quota day.
        quota: Section<QuotaText>,
        /// What keys look like.
        keys: Section<KeysText>,
        /// The tiers by name: what a key may use. A change holds from the next request and never touches what was used.
        tiers: Named<TierText>,
        /// How a month is billed.
        billing: Section<BillingText>,
        /// What can be called, and by whom. No two paths may match the same request.
        endpoints: List<EndpointText>,
        /// What is told of keys near their limits, and to whom.
        events: Section<EventsText>,
        /// The services behind the gateway, by name.
        upstreams: Named<UpstreamText>,
        /// What is passed on to upstreams.
        forward: Section<ForwardText>,
        /// Threads.
        runtime: Section<RuntimeText>,
        /// Bounds on what one client can take.
        limits: Section<LimitsText>,
        /// Logs.
        logging: Section<LoggingText>,
        /// Traces.
        tracing: Section<TracingText>,
    }
    ListenText {
        /// Cleartext HTTP for clients. At least one of http and https is needed.
        http: Section<HttpText>,
        /// HTTPS for clients, HTTP/2 and HTTP/1.1.
        https: Section<HttpsText>,
        /// Cleartext HTTP for clients that come without TLS: each request is answered with a redirect (308) to HTTPS. Without
        /// this section there is none.
        redirect: Section<RedirectText>,
        /// Networks of the proxies in front of the gateway. Only of them X-Forwarded-For, -Proto and -Host and the PROXY protocol
        /// are believed.
        trusted_proxies: List<Text>,
        /// Metrics and health for operators; outside loopback addresses only with a token.
        admin: Section<AdminText>,
        /// A Unix socket, this gateway's own, on which `touchline serve --upgrade` is given the listeners, so that no connection is
        /// lost; without it there is no such upgrade. A change needs a restart.
        upgrade: Leaf<PathBuf>,
    }
    HttpText {
        /// IP address and port; port 0 is whatever port is free. Another than a loopback address needs `cleartext: allowed`. A
        /// change needs a restart.
        address: Leaf<SocketAddr>,
        /// Whether API keys may cross a network in clear text: `allowed` where TLS ends in front of the gateway.
        cleartext: Leaf<Cleartext>,
        /// Whether every connection begins with a header of the PROXY protocol, version 1 or 2, from one of listen.trusted_proxies;
        /// others are closed.
        proxy_protocol: Leaf<ProxyProtocol>,
    }
    HttpsText {
        /// IP address and port; port 0 is whatever port is free. A change needs a restart.
        address: Leaf<SocketAddr>,
        /// `self-signed` (loopback addresses only), or a PEM file with the chain, the server's own certificate first. A renewed
        /// file is presented from the next handshake on.
        certificate: Leaf<Text>,
        /// The PEM file of the certificate's key.
        private_key: Leaf<PathBuf>,
        /// Several certificates in the place of `certificate`: a client is shown the one for the name that it asks for (SNI), else
        /// the first.
        certificates: List<CertificateText>,
        /// Certificates of clients; without this section none is asked for.
        client_certificates: Section<ClientCertificatesText>,
        /// For how long browsers are told to come with TLS only (Strict-Transport-Security); without it they are told nothing.
        hsts: Leaf<Duration>,
        /// Whether every connection begins with a header of the PROXY protocol, before TLS, from one of listen.trusted_proxies.
        proxy_protocol: Leaf<ProxyProtocol>,
    }
    RedirectText {
        /// IP address and port, such as 0.0.0.0:80. A change needs a restart.
        address: Leaf<SocketAddr>,
        /// The port of HTTPS as clients see it.
        port: Leaf<u64>,
        /// The hosts that are redirected to; without them any that a request names.
        hosts: List<Text>,
        /// Whether every connection begins with a header of the PROXY protocol from one of listen.trusted_proxies.
        proxy_protocol: Leaf<ProxyProtocol>,
    }
    CertificateText {
        /// A PEM file with the chain, the server's own certificate first. Its names are the DNS names of its subjectAltName;
        /// `*.example.com` stands for one label.
        certificate: Leaf<PathBuf>,
        /// The PEM file of the certificate's key.
        private_key: Leaf<PathBuf>,
    }
    ClientCertificatesText {
        /// A PEM file of the authorities that sign certificates of clients. Read anew when it changes.
        authorities: Leaf<PathBuf>,
        /// Whether a client without a certificate is refused; one with a certificate of another authority always is.
        mode: Leaf<ClientMode>,
    }
    AdminText {
        /// IP address and port; another than a loopback address needs a token. A change needs a restart.
        address: Leaf<SocketAddr>,
        /// What /metrics asks for, as `Authorization: Bearer …`: 16 to 256 printable characters without spaces, from a ${VARIABLE}.
        token: Leaf<Text>,
        /// A file with the token.
        token_file: Leaf<PathBuf>,
    }
    StoreText {
        /// SQLite on this machine.
        embedded: Section<EmbeddedText>,
        /// Redis 7 or newer, or Valkey: one server, Sentinel or Cluster.
        redis: Section<RedisText>,
    }
    EmbeddedText {
        /// The database file.
        path: Leaf<PathBuf>,
        /// What a power cut may cost: `commit` nothing, a duration at most what was counted in it. A crash of the gateway alone
        /// never costs anything.
        durability: Leaf<Durability>,
    }
    RedisText {
        /// Where Redis is, one of url, url_file, sentinels, cluster: `redis://[user:password@]host[:port][/database]`,
        /// rediss:// for TLS.
        url: Leaf<Text>,
        /// A file with the URL, for one with a password in it.
        url_file: Leaf<PathBuf>,
        /// The sentinels, each host:port; with `master`.
        sentinels: List<Text>,
        /// What the sentinels call the master.
        master: Leaf<Text>,
        /// Some nodes of the cluster, each host:port; the others are learnt.
        cluster: List<Text>,
        /// The database; goes before the one in the URL. A cluster has only 0.
        database: Leaf<u64>,
        /// The ACL user; goes before the one in the URL.
        username: Leaf<Text>,
        /// A file with the password; goes before one in the URL.
        password_file: Leaf<PathBuf>,
        /// A file with the password of the sentinels.
        sentinel_password_file: Leaf<PathBuf>,
        /// TLS to every server; {} trusts what the operating system trusts.
        tls: Section<RedisTlsText>,
        /// What every name in Redis begins with.
        key_prefix: Leaf<Text>,
        /// For one call.
        timeout: Leaf<Duration>,
        /// This gateway's copy of the key table (digests, no keys), for days without Redis.
        replica: Leaf<PathBuf>,
        /// How long known keys are served by that copy; a revoked one too, by a gateway that cannot reach Redis.
        max_staleness: Leaf<Duration>,
        /// While Redis is away: `bounded`, each gateway serves its share of what was left of each key's quota; `deny`, nothing
        /// is served; `open`, everything is.
        outage: Leaf<OutagePolicy>,
        /// Where each gateway writes down what it serves without Redis, on a local disk, one for each machine; it belongs to
        /// this store alone.
        journal: Leaf<PathBuf>,
        /// What an emptied Redis and a killed gateway together may cost.
        journal_interval: Leaf<Duration>,
        /// Share at least so finely while Redis is away, even if fewer gateways were seen alive.
        min_nodes: Leaf<u64>,
        /// Of the limit, for a key whose count this gateway does not know while Redis is away.
        cold_cap: Leaf<Percent>,
        /// A count older than this when Redis went away is not known.
        count_staleness: Leaf<Duration>,
    }
    RedisTlsText {
        /// PEM file of the authorities that sign the servers.
        ca_file: Leaf<PathBuf>,
        /// PEM file of this gateway's certificate, where Redis asks for one; read anew for every connection.
        certificate: Leaf<PathBuf>,
        /// PEM file of that certificate's key.
        private_key: Leaf<PathBuf>,
    }
    QuotaText {
        /// The IANA zone whose midnights begin a quota day. The store remembers it: it cannot be changed once keys are in use,
        /// and never without a restart.
        timezone: Leaf<Text>,
        /// The ledger closes a day so long after its end: what is settled later is dated when it came.
        settle_window: Leaf<Duration>,
        /// How long after its end a day of the ledger is kept.
        retention: Leaf<Duration>,
    }
    BillingText {
        /// by_day: each tier of a key costs its price for the days that it was held; whole: a key that was held on any day costs a
        /// whole month.
        months: Leaf<Months>,
        /// bill: a key that was not used in the month costs what another does; skip: it costs nothing.
        unused_keys: Leaf<UnusedKeys>,
    }
    KeysText {
        /// What issued keys begin with.
        prefix: Leaf<Text>,
        /// What a 401 names in WWW-Authenticate.
        realm: Leaf<Text>,
    }
    TierText {
        /// Units a quota day; a request takes its endpoint's cost.
        daily: Leaf<u64>,
        /// US dollars a month, as 99 or 99.50: what invoices reckon with; no amount without it.
        price: Leaf<Price>,
        /// false: requests of this tier are counted and told their standing, but none is refused by tier or quota.
        enforce: Leaf<Enforcement>,
        /// How fast one key may send requests, on each gateway; without it there is no bound. What is more gets a 429 and is
        /// never charged.
        burst: Section<BurstText>,
        /// Requests that one key may have under way at the same time, on each gateway; without it there is no bound. What is
        /// more gets a 429 and is never charged.
        concurrent: Leaf<NonZeroU32>,
    }
    BurstText {
        /// Requests a second, after those at once.
        rate: Leaf<NonZeroU32>,
        /// Requests at once.
        burst: Leaf<NonZeroU32>,
    }
    EventsText {
        /// Shares of a key's limit, such as 80%: each is told once for a key and day, by log line, metric and webhook. [] tells
        /// nothing.
        shares: List<Text>,
        /// Who is told by HTTP POST; without it nobody.
        webhook: Section<WebhookText>,
    }
    WebhookText {
        /// Where events go: http:// or https://.
        url: Leaf<Text>,
        /// A file with the URL instead.
        url_file: Leaf<PathBuf>,
        /// What they are signed with (Standard Webhooks): whsec_ and the base64 of 24 to 64 bytes.
        secret: Leaf<Text>,
        /// A file with it instead.
        secret_file: Leaf<PathBuf>,
        /// How long one attempt may take.
        timeout: Leaf<Duration>,
        /// An event that is older is not tried again.
        give_up: Leaf<Duration>,
    }
    TracingText {
        /// Where spans go: a collector that takes OTLP over HTTP, in protobuf. Without it none are made.
        otlp: Section<OtlpText>,
    }
    OtlpText {
        /// The whole URL with its path, mostly /v1/traces.
        url: Leaf<Text>,
        /// What the collector knows the gateway by.
        header: Section<SecretHeaderText>,
        /// How many of the traces that begin here are recorded. Where a caller sends one, it decides (the sampled flag).
        sample: Leaf<Percent>,
        /// How long one export may take. No request waits for it.
        timeout: Leaf<Duration>,
    }
    EndpointText {
        /// The path, matched exactly; `{name}` stands for one segment.
        path: Leaf<Text>,
        /// The methods it takes: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS. HEAD is taken wherever GET is.
        methods: List<Text>,
        /// The tiers that include it.
        tiers: List<Text>,
        /// What one request takes from the daily quota.
        cost: Leaf<NonZeroU32>,
        /// The upstream that it is forwarded to.
        upstream: Leaf<Text>,
        /// Since when clients should not use it any more: a date, which is its first instant in quota.timezone, or an instant
        /// such as 2027-06-30T12:00:00Z.
        deprecation: Leaf<Text>,
        /// When it will go, told as `deprecation` is and not before it. It is served all the same while it stands here.
        sunset: Leaf<Text>,
        /// Where clients read more of its end.
        links: Section<LinksText>,
        /// That it is being worked on: 500 with Retry-After, never charged, and nothing is forwarded.
        maintenance: Section<MaintenanceText>,
    }
    MaintenanceText {
        /// When it is over by itself: a date, which is its first instant in quota.timezone, or an instant such as
        /// 2026-11-22T06:00:00Z; without it, when this section is taken out.
        until: Leaf<Text>,
        /// The sentence that clients are told.
        message: Leaf<Text>,
    }
    LinksText {
        /// What the deprecation means: an http or https address, or a path of this API.
        deprecation: Leaf<Text>,
        /// What its end means.
        sunset: Leaf<Text>,
        /// What takes its place.
        successor_version: Leaf<Text>,
    }
    UpstreamText {
        /// Its servers, each host:port, or address and weight. All addresses of a name are servers, those of IPv4 if it has any.
        servers: List<ServerItem>,
        /// Which server a request goes to: `round_robin`, one after another; `least_loaded`, the one with the fewest requests
        /// under way; `by_key`, the same one for the same API key. Weights count with each.
        choice: Leaf<Choice>,
        /// How often names are resolved anew; nothing waits for it, and a failure changes nothing.
        resolve: Leaf<Duration>,
        /// Health checks of every server; without them only failing requests tell.
        health: Section<HealthText>,
        /// When failing requests take a server out.
        ejection: Section<EjectionText>,
        /// TLS to every server, whose certificate is always verified; {} trusts what the operating system trusts.
        tls: Section<UpstreamTlsText>,
        /// Which HTTP is spoken with the servers: `http1`; `http2`, without TLS as known beforehand; `auto`, with TLS only, what a
        /// server agrees to by ALPN, HTTP/2 first.
        protocol: Leaf<Protocol>,
        /// A secret header, so that the servers can refuse whoever is not the gateway.
        header: Section<SecretHeaderText>,
        /// Answers that the servers send uncompressed are compressed for clients that take it; without this section none is.
        compression: Section<CompressionText>,
        /// How long it may take.
        timeouts: Section<TimeoutsText>,
        /// How often a request is tried again where no server was reached; and on another server, if there is one, where one broke
        /// off or answered 502, 503 or 504 to GET, HEAD or OPTIONS and nothing of its answer was passed on. Never charged.
        retries: Leaf<u64>,
    }
    CompressionText {
        /// Which codings, zstd or gzip; of those that a client likes equally well (Accept-Encoding) the first.
        codings: List<Text>,
        /// An answer that is known to be shorter goes as it is.
        min_bytes: Leaf<Bytes>,
    }
    ServerText {
        /// host:port.
        address: Leaf<Text>,
        /// Its share of the requests, beside those of the others.
        weight: Leaf<NonZeroU32>,
    }
    HealthText {
        /// What is asked for with GET; any 2xx will do.
        path: Leaf<Text>,
        /// Between two checks of a server.
        interval: Leaf<Duration>,
        /// For one check.
        timeout: Leaf<Duration>,
        /// So many failed ones in a row, and the server is not asked.
        unhealthy_after: Leaf<NonZeroU32>,
        /// So many passed ones in a row, and it is asked again.
        healthy_after: Leaf<NonZeroU32>,
    }
    EjectionText {
        /// So many failed requests in a row (not reached, broken off, too late, answered 502, 503 or 504), and the server is not
        /// asked for a pause; 0: never.
        failures: Leaf<u64>,
        /// The first pause. Each is twice as long as the one before, until a request is served.
        pause: Leaf<Duration>,
        /// The longest pause.
        pause_max: Leaf<Duration>,
    }
    UpstreamTlsText {
        /// What certificates must name, where that is not the host of the server.
        name: Leaf<Text>,
        /// PEM file of the authorities that sign the servers.
        ca_file: Leaf<PathBuf>,
        /// PEM file of the gateway's own certificate, where the servers ask for one.
        certificate: Leaf<PathBuf>,
        /// PEM file of that certificate's key.
        private_key: Leaf<PathBuf>,
    }
    SecretHeaderText {
        /// Its name; a client's own header of that name goes.
        name: Leaf<Text>,
        /// Its value, from a ${VARIABLE}.
        value: Leaf<Text>,
        /// A file with the value.
        value_file: Leaf<PathBuf>,
    }
    TimeoutsText {
        /// To accept a connection.
        connect: Leaf<Duration>,
        /// Silence: before the header of the answer, and between two parts of it.
        read: Leaf<Duration>,
        /// For the whole answer.
        total: Leaf<Duration>,
        /// A client that hangs up is refunded only if no header came for longer than this.
        slow: Leaf<Duration>,
        /// How long an unused connection is kept.
        idle: Leaf<Duration>,
    }
    ForwardText {
        /// Request headers of clients that upstreams never see, beside X-API-Key, X-Consumer-*, X-Forwarded-* and hop-by-hop headers. A * at the end matches any rest of a name.
        headers_denied: List<Text>,
        /// Headers of upstreams' answers that clients never see, beside Server, X-RateLimit-* and hop-by-hop headers. A * at the end matches any rest of a name. The gateway's own Strict-Transport-Security is not removed.
        answer_headers_denied: List<Text>,
    }
    RuntimeText {
        /// Worker threads; 0 is one per core. A change needs a restart.
        threads: Leaf<u64>,
    }
    LimitsText {
        /// All request headers together.
        header_bytes: Leaf<Bytes>,
        /// How many request headers.
        header_count: Leaf<u64>,
        /// Path and query.
        target_bytes: Leaf<Bytes>,
        /// A request body, where the method takes one.
        body_bytes: Leaf<Bytes>,
        /// For the whole head of a request, and before the first one of a connection.
        request_head: Leaf<Duration>,
        /// For the TLS handshake.
        tls_handshake: Leaf<Duration>,
        /// Connections in all.
        connections: Leaf<u64>,
        /// Connections of one client address (IPv6: a /64).
        connections_per_address: Leaf<u64>,
        /// Requests a second of one client address without a valid key, after which its connections are closed; five seconds'
        /// worth may come at once.
        failed_authentications: Leaf<u64>,
        /// Networks that the limits of one client address leave alone.
        exempt_addresses: List<Text>,
        /// A connection takes no further request after so many.
        requests_per_connection: Leaf<u64>,
        /// A connection takes no further request after this time.
        connection_age: Leaf<Duration>,
        /// A client that lets an answer wait must read this many bytes a second, looked at each response_write.
        response_rate: Leaf<Bytes>,
        /// HTTP/2 streams that may be open at once.
        h2_streams: Leaf<u64>,
        /// About what the requests of one HTTP/2 connection may cost in memory; streams beyond it wait.
        h2_memory: Leaf<Bytes>,
        /// HTTP/2 resets a second; five seconds' worth may come at once. A stream that the gateway must reset because of what the
        /// client sent counts as four.
        h2_resets: Leaf<u64>,
        /// SETTINGS, PING, PRIORITY, WINDOW_UPDATE, empty and unknown HTTP/2 frames a second, of each, beyond what streams and
        /// data pay for; five seconds' worth may come at once.
        h2_control_frames: Leaf<u64>,
        /// Idle between two requests of a connection.
        keepalive_idle: Leaf<Duration>,
        /// For the body of a request.
        request_read: Leaf<Duration>,
        /// How often it is looked at whether a client reads an answer at response_rate.
        response_write: Leaf<Duration>,
        /// For requests in flight to end when the gateway stops.
        shutdown_grace: Leaf<Duration>,
    }
    LoggingText {
        /// The least important messages of the diagnostic log (standard error).
        level: Leaf<Level>,
        /// The form of its lines; pretty is for people.
        format: Leaf<LogFormat>,
        /// Where the access log goes: stdout, stderr, off or a file name with a slash in it.
        access_log: Leaf<AccessLog>,
        /// How many in a hundred of the requests that were served have a line in it; all others have one.
        access_log_sample: Leaf<Percent>,
    }
}

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
use serde_yaml::{Mapping, Value};

use super::scalar::{Bytes, Percent, Price, Text};
use super::{AccessLog, Cleartext, Durability, Level, LogFormat, OutagePolicy};
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
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(super) struct $name {
            $(pub(super) $field: $type,)*
        }
    )*};
}

sections! {
    /// The whole file.
    RootText {
        listen: Section<ListenText>,
        store: Section<StoreText>,
        quota: Section<QuotaText>,
        keys: Section<KeysText>,
        tiers: Named<TierText>,
        endpoints: List<EndpointText>,
        upstreams: Named<UpstreamText>,
        forward: Section<ForwardText>,
        runtime: Section<RuntimeText>,
        limits: Section<LimitsText>,
        logging: Section<LoggingText>,
    }
    ListenText {
        http: Section<HttpText>,
        https: Section<HttpsText>,
        admin: Section<AdminText>,
    }
    HttpText {
        address: Leaf<SocketAddr>,
        cleartext: Leaf<Cleartext>,
    }
    HttpsText {
        address: Leaf<SocketAddr>,
        certificate: Leaf<Text>,
        private_key: Leaf<PathBuf>,
    }
    AdminText {
        address: Leaf<SocketAddr>,
    }
    StoreText {
        embedded: Section<EmbeddedText>,
        redis: Section<RedisText>,
    }
    EmbeddedText {
        path: Leaf<PathBuf>,
        durability: Leaf<Durability>,
    }
    RedisText {
        url: Leaf<Text>,
        url_file: Leaf<PathBuf>,
        sentinels: List<Text>,
        master: Leaf<Text>,
        cluster: List<Text>,
        database: Leaf<u64>,
        username: Leaf<Text>,
        password_file: Leaf<PathBuf>,
        sentinel_password_file: Leaf<PathBuf>,
        tls: Section<RedisTlsText>,
        key_prefix: Leaf<Text>,
        timeout: Leaf<Duration>,
        replica: Leaf<PathBuf>,
        max_staleness: Leaf<Duration>,
        outage: Leaf<OutagePolicy>,
        journal: Leaf<PathBuf>,
        journal_interval: Leaf<Duration>,
        min_nodes: Leaf<u64>,
        cold_cap: Leaf<Percent>,
        count_staleness: Leaf<Duration>,
    }
    RedisTlsText {
        ca_file: Leaf<PathBuf>,
        certificate: Leaf<PathBuf>,
        private_key: Leaf<PathBuf>,
    }
    QuotaText {
        timezone: Leaf<Text>,
        settle_window: Leaf<Duration>,
        retention: Leaf<Duration>,
    }
    KeysText {
        prefix: Leaf<Text>,
        realm: Leaf<Text>,
    }
    TierText {
        daily: Leaf<u64>,
        price: Leaf<Price>,
        enforce: Leaf<Enforcement>,
        burst: Section<BurstText>,
        concurrent: Leaf<NonZeroU32>,
    }
    BurstText {
        rate: Leaf<NonZeroU32>,
        burst: Leaf<NonZeroU32>,
    }
    EndpointText {
        path: Leaf<Text>,
        methods: List<Text>,
        tiers: List<Text>,
        cost: Leaf<NonZeroU32>,
        upstream: Leaf<Text>,
        deprecation: Leaf<Text>,
        sunset: Leaf<Text>,
        links: Section<LinksText>,
    }
    LinksText {
        deprecation: Leaf<Text>,
        sunset: Leaf<Text>,
        successor_version: Leaf<Text>,
    }
    UpstreamText {
        servers: List<Text>,
        timeouts: Section<TimeoutsText>,
        retries: Leaf<u64>,
    }
    TimeoutsText {
        connect: Leaf<Duration>,
        read: Leaf<Duration>,
        total: Leaf<Duration>,
        slow: Leaf<Duration>,
        idle: Leaf<Duration>,
    }
    ForwardText {
        headers_denied: List<Text>,
    }
    RuntimeText {
        threads: Leaf<u64>,
    }
    LimitsText {
        header_bytes: Leaf<Bytes>,
        header_count: Leaf<u64>,
        target_bytes: Leaf<Bytes>,
        body_bytes: Leaf<Bytes>,
        request_head: Leaf<Duration>,
        tls_handshake: Leaf<Duration>,
        connections: Leaf<u64>,
        connections_per_address: Leaf<u64>,
        requests_per_connection: Leaf<u64>,
        connection_age: Leaf<Duration>,
        response_rate: Leaf<Bytes>,
        h2_streams: Leaf<u64>,
        h2_resets: Leaf<u64>,
        h2_control_frames: Leaf<u64>,
        keepalive_idle: Leaf<Duration>,
        request_read: Leaf<Duration>,
        response_write: Leaf<Duration>,
        shutdown_grace: Leaf<Duration>,
    }
    LoggingText {
        level: Leaf<Level>,
        format: Leaf<LogFormat>,
        access_log: Leaf<AccessLog>,
    }
}

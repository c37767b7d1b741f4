//! The state of Redis, its gateways and the feed, and the guarantees that it breaks.

use std::collections::HashMap;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, InfoDict, Value};
use tokio::time::Instant;

use crate::policy::clock_trust::DIFFERENCE_MAX;
use crate::store::redis::gateways::register::{self, RegisterEntry};
use crate::store::redis::keys::codec::parse_place;
use crate::store::redis::keys::index;
use crate::store::redis::wire::link::{Master, RedisLink};
use crate::store::redis::wire::request::{LinkError, RefusedWritesFor, is_absent, parsed};
use crate::store::redis::wire::zone::zone_names;
use crate::store::status::{
    BreakerState, EventFacts, FeedFacts, GatewayFacts, JournalFacts, RedisFacts, ServerFacts,
    ServiceFacts, SilentFacts, StoreFacts, StoreStatus, ahead_of,
};
use crate::store::{ChangeMark, StoreContent, StoreError};

/// How long a master may take to report its state.
const INFO_PATIENCE: Duration = Duration::from_secs(2);
/// The age of a gateway's key table above which there is a warning: it answers unknown keys with 500.
const KEYS_AGE_MAX_SECONDS: f64 = 5.0;

/// The settings of a server that are read.
const SETTINGS: [&str; 4] = [
    "appendfsync",
    "save",
    "min-replicas-to-write",
    "stop-writes-on-bgsave-error",
];

/// Reads the whole state, of each master its own; the caller measures `clock_difference_seconds`.
pub async fn status(
    link: &RedisLink,
    clock_difference_seconds: f64,
    events: EventFacts,
    journal: Option<JournalFacts>,
) -> Result<StoreStatus, StoreError> {
    let MastersState {
        servers,
        mut warnings,
        register_refuses_writes,
    } = masters_state(link).await?;
    let index = index::state(link).await?;
    let feed = feed(link).await?;
    let register = register::read(link).await?;
    let (live, silent): (Vec<_>, Vec<_>) = register.iter().partition(|entry| entry.is_live());
    let gateways: Vec<_> = live.iter().map(|entry| gateway(entry, &feed)).collect();
    let silent: Vec<_> = silent.iter().map(|entry| silent_facts(entry)).collect();
    let days = link.read(&Cmd::scard(link.names.days())).await?;
    warnings.extend(warnings_of_gateways(&gateways, clock_difference_seconds));
    let of_silent = silent
        .iter()
        .map(|silent| silent_warning(silent, register_refuses_writes));
    warnings.extend(of_silent);
    if !index.is_complete {
        warnings.push(
            "the index of keys is not complete: the next gateway that starts completes it".into(),
        );
    }
    let topology = &link.topology;
    Ok(StoreStatus {
        store: StoreFacts::Redis(RedisFacts {
            topology: topology.kind().to_owned(),
            tls: topology.is_encrypted(),
            place: topology.to_string(),
            servers,
            incarnation: index.incarnation,
            index_complete: index.is_complete,
            feed,
            journal,
        }),
        gateways,
        silent,
        keys: index::count(link).await?,
        days,
        events,
        clock_difference_seconds,
        warnings,
    })
}

/// The state of the masters, with what an operator should know of them.
#[derive(Default)]
struct MastersState {
    servers: Vec<ServerFacts>,
    warnings: Vec<String>,
    register_refuses_writes: bool,
}

async fn masters_state(link: &RedisLink) -> Result<MastersState, StoreError> {
    let masters = link.masters();
    let mut state = MastersState::default();
    for master in &masters {
        let (facts, refusal, found) = match server(link, master).await {
            Ok(read) => read,
            Err(error) if link.is_cluster() => {
                let warning = format!("{}: its state cannot be read: {error}", master.shown);
                state.warnings.push(warning);
                continue;
            }
            Err(error) => return Err(error),
        };
        state.servers.push(facts);
        let keeps_register = link.keeps(master, &link.names.register());
        state.register_refuses_writes |= keeps_register && refusal.is_some();
        let refusal = refusal.map(|why| refusal_warning(why, keeps_register));
        let of = match masters.len() {
            1 => String::new(),
            _ => format!("{}: ", master.shown),
        };
        let found = refusal.into_iter().chain(found);
        state
            .warnings
            .extend(found.map(|warning| format!("{of}{warning}")));
    }
    Ok(state)
}

/// What Redis has of its content: a gateway marks the index of keys as complete, after it has written an incarnation; a command
/// writes a zone.
pub async fn content(link: &RedisLink) -> Result<StoreContent, StoreError> {
    let index = index::state(link).await?;
    if index.is_complete {
        return Ok(match evicted_names(link).await {
            0 => StoreContent::Whole,
            evicted => StoreContent::Evicted(evicted),
        });
    }
    if index.incarnation.is_some() {
        return Ok(StoreContent::Restoring);
    }
    let names = zone_names(&link.names, link.is_cluster()).into_iter();
    let zones: Vec<Option<String>> = link.replies(names.map(Cmd::get)).await?;
    Ok(match zones.iter().any(Option::is_some) {
        true => StoreContent::Unattended,
        false => StoreContent::Missing,
    })
}

/// The names that were evicted, since their start, by masters that evict any name: what marks the index as complete may have
/// remained while what it lists was evicted. None of a master that does not report them.
async fn evicted_names(link: &RedisLink) -> u64 {
    let mut evicted = 0;
    for master in link.masters() {
        let deadline = Instant::now() + INFO_PATIENCE;
        let ask = redis::cmd("INFO").arg(&["memory", "stats"]).take();
        let Ok(info) = link.ask_master::<InfoDict>(&master, &ask, deadline).await else {
            continue;
        };
        let policy: String = info.get("maxmemory_policy").unwrap_or_default();
        if Eviction::of(&policy) == Eviction::Any {
            evicted += info.get::<u64>("evicted_keys").unwrap_or_default();
        }
    }
    evicted
}

/// The state of a master, why it refuses writes if it does, and the guarantees that it breaks.
type Examined = (ServerFacts, Option<RefusedWritesFor>, Vec<String>);

/// The settings of a server that are read.
type ServerSettings = HashMap<String, String>;

async fn server(link: &RedisLink, master: &Master) -> Result<Examined, StoreError> {
    let deadline = Instant::now() + INFO_PATIENCE;
    let info: InfoDict = link
        .ask_master(master, &redis::cmd("INFO"), deadline)
        .await?;
    let settings = settings(link, master).await?;
    let is_permitted = settings.is_some();
    let settings = settings.unwrap_or_default();
    let facts = ServerFacts {
        address: master.shown.clone(),
        version: version(&info),
        run_id: info.get("run_id").unwrap_or_default(),
        role: info.get("role").unwrap_or_default(),
        uptime_seconds: info.get("uptime_in_seconds").unwrap_or_default(),
        replicas: info.get("connected_slaves").unwrap_or_default(),
        append_only: info.get("aof_enabled").map(|enabled: u8| enabled == 1),
        append_fsync: settings.get("appendfsync").cloned(),
        snapshots: settings.get("save").cloned(),
        maxmemory_policy: info.get("maxmemory_policy").unwrap_or_default(),
        maxmemory_bytes: info.get("maxmemory").unwrap_or_default(),
        used_memory_bytes: info.get("used_memory").unwrap_or_default(),
    };
    let mut warnings = warnings_of(&facts, &info);
    if !is_permitted {
        warnings.push(
            "appendfsync, save and min-replicas-to-write could not be checked: CONFIG GET is not permitted".into(),
        );
    }
    let min_replicas = settings.get("min-replicas-to-write").map(String::as_str);
    if facts.replicas > 0 && min_replicas == Some("0") {
        warnings.push(
            "it has replicas but accepts writes without them, so an isolated master continues to count: set min-replicas-to-write 1".into(),
        );
    }
    let refusal = refusal_of_writes(&facts, &info, &settings);
    Ok((facts, refusal, warnings))
}

/// The version of a server. Valkey reports that of the Redis from which it began as `redis_version`.
fn version(info: &InfoDict) -> String {
    match info.get::<String>("valkey_version") {
        Some(version) => format!("Valkey {version}"),
        None => info.get("redis_version").unwrap_or_default(),
    }
}

/// The settings of a server; `None` if it does not return them (a managed service, an ACL).
async fn settings(link: &RedisLink, master: &Master) -> Result<Option<ServerSettings>, StoreError> {
    let mut ask = redis::cmd("CONFIG");
    ask.arg("GET").arg(&SETTINGS);
    let deadline = Instant::now() + INFO_PATIENCE;
    match link.ask_master(master, &ask, deadline).await {
        Ok(settings) => Ok(Some(settings)),
        Err(LinkError::Refused(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn feed(link: &RedisLink) -> Result<FeedFacts, StoreError> {
    let value = match link.ask(&Cmd::xinfo_stream(link.names.feed())).await {
        Ok(value) => value,
        Err(LinkError::Refused(refusal)) if is_absent(&refusal.error) => {
            return Ok(FeedFacts::default());
        }
        Err(error) => return Err(error.into()),
    };
    let fields = parsed::<HashMap<String, Value>>(value)?;
    let text = |field: &str| String::from_redis_value_ref(fields.get(field)?).ok();
    Ok(FeedFacts {
        length: text("length")
            .and_then(|length| length.parse().ok())
            .unwrap_or(0),
        last: text("last-generated-id").unwrap_or_default(),
    })
}

/// The feed position of the last change.
pub async fn last_change(link: &RedisLink) -> Result<ChangeMark, StoreError> {
    let FeedFacts { last, .. } = feed(link).await?;
    Ok(ChangeMark(parse_place(&last).unwrap_or(0)))
}

fn silent_facts(node: &RegisterEntry) -> SilentFacts {
    let heartbeat = node.heartbeat.as_ref();
    SilentFacts {
        name: node.name.0.clone(),
        since: node.heard,
        version: heartbeat.map(|heartbeat| heartbeat.version.clone()),
        applied: heartbeat.map(|heartbeat| heartbeat.applied.clone()),
    }
}

fn silent_warning(silent: &SilentFacts, register_refuses_writes: bool) -> String {
    let SilentFacts { name, since, .. } = silent;
    if register_refuses_writes {
        return format!(
            "the gateway {name} has sent no heartbeat since {since}, perhaps because Redis refuses writes"
        );
    }
    format!(
        "the gateway {name} did not sign off and has sent no heartbeat since {since}: it may still serve keys from its old replica, until its max_staleness is over; if it is gone for good, run `touchline store forget {name}`"
    )
}

fn gateway(node: &RegisterEntry, feed: &FeedFacts) -> GatewayFacts {
    let facts = GatewayFacts {
        name: node.name.0.clone(),
        heartbeat_age_seconds: node.age.as_secs_f64(),
        ..GatewayFacts::default()
    };
    let Some(heartbeat) = node.heartbeat.clone() else {
        return facts;
    };
    GatewayFacts {
        version: Some(heartbeat.version),
        lag_seconds: Some(lag_seconds(&heartbeat.applied, &feed.last)),
        applied: Some(heartbeat.applied),
        keys: u64::try_from(heartbeat.keys).ok(),
        keys_age_seconds: heartbeat.keys_age_ms.map(milliseconds),
        replica_error: heartbeat.replica_error,
        breaker: heartbeat.breaker,
        service: heartbeat.service,
        clock_difference_seconds: heartbeat.clock_difference_seconds,
        ..facts
    }
}

/// The time between two positions of the feed.
fn lag_seconds(applied: &str, last: &str) -> f64 {
    let milli = |id: &str| parse_place(id).map_or(0, |place| place >> 64);
    let behind = milli(last).saturating_sub(milli(applied));
    milliseconds(u64::try_from(behind).unwrap_or(u64::MAX))
}

fn milliseconds(count: u64) -> f64 {
    std::time::Duration::from_millis(count).as_secs_f64()
}

/// Whether a server removes names when its memory is full, by its `maxmemory-policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Eviction {
    /// None, or none of which is known: a managed service may not report its policy.
    None,
    /// Those that expire. Of ours, these are claims of events and what lives for seconds.
    Expiring,
    /// Any.
    Any,
}

impl Eviction {
    fn of(policy: &str) -> Eviction {
        if policy.starts_with("allkeys-") {
            Eviction::Any
        } else if policy.starts_with("volatile-") {
            Eviction::Expiring
        } else {
            Eviction::None
        }
    }

    /// Whether a server has names that it may remove to make room.
    fn has_candidates(self, info: &InfoDict) -> bool {
        match self {
            Eviction::None => false,
            Eviction::Expiring => expiring_names(info) > 0,
            Eviction::Any => true,
        }
    }
}

/// The names with an expiry in all databases of a server.
fn expiring_names(info: &InfoDict) -> u64 {
    let is_database = |field: &str| {
        let number = field.strip_prefix("db");
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let databases = info.iter().filter(|(field, _)| is_database(field));
    let expiring = databases.filter_map(|(_, database)| {
        let database = String::from_redis_value_ref(database).ok()?;
        let mut counts = database.split(',');
        let expires = counts.find_map(|count| count.strip_prefix("expires="))?;
        expires.parse::<u64>().ok()
    });
    expiring.sum()
}

/// Why a server refuses writes, by Redis's own conditions for `OOM`, `NOREPLICAS` and `MISCONF`.
fn refusal_of_writes(
    server: &ServerFacts,
    info: &InfoDict,
    settings: &ServerSettings,
) -> Option<RefusedWritesFor> {
    let counted: u64 = info.get("mem_not_counted_for_evict").unwrap_or_default();
    let counted = server.used_memory_bytes.saturating_sub(counted);
    // One that evicts makes room with the next write.
    let evicts = Eviction::of(&server.maxmemory_policy).has_candidates(info);
    if server.maxmemory_bytes > 0 && counted > server.maxmemory_bytes && !evicts {
        return Some(RefusedWritesFor::Memory);
    }
    let setting = |name: &str| settings.get(name).map_or("", String::as_str);
    // Absent unless replicas are needed; how many may be unknown.
    let in_time: Option<u64> = info.get("min_slaves_good_slaves");
    let needed = setting("min-replicas-to-write").parse().unwrap_or(1);
    if in_time.is_some_and(|in_time| in_time < needed) {
        return Some(RefusedWritesFor::Replicas);
    }
    let failed = |field| has_failed(info, field);
    let makes_snapshots = !setting("save").is_empty();
    let stops = setting("stop-writes-on-bgsave-error") == "yes";
    let cannot_save = makes_snapshots && stops && failed("rdb_last_bgsave_status");
    (cannot_save || failed("aof_last_write_status")).then_some(RefusedWritesFor::Saving)
}

/// Whether the server reports that something of it failed the last time.
fn has_failed(info: &InfoDict, field: &str) -> bool {
    info.get::<String>(field).as_deref() == Some("err")
}

/// The warning of a master that refuses writes; `keeps_register`: gateways report to it.
fn refusal_warning(why: RefusedWritesFor, keeps_register: bool) -> String {
    let effect = match keeps_register {
        true => "gateways cannot report, and may be listed as silent though they run",
        false => "requests with its keys are decided without it, or refused under outage: deny",
    };
    format!("it refuses writes, because {why}: {effect}")
}

/// Warnings about a server's settings.
fn warnings_of(server: &ServerFacts, info: &InfoDict) -> Vec<String> {
    let mut warnings = Vec::new();
    if server.append_only.is_none() {
        warnings.push(
            "whether it writes an append-only file could not be checked: INFO does not report it"
                .into(),
        );
    }
    if server.append_only == Some(false) {
        warnings.push("it writes no append-only file, so a restart loses the writes since its last snapshot, or all if it has none, until the gateways write back what they know: set appendonly yes and appendfsync everysec".into());
    }
    if server.append_only == Some(true) && server.append_fsync.as_deref() == Some("no") {
        warnings
            .push("its append-only file is never forced to disk: set appendfsync everysec".into());
    }
    let evicted = match Eviction::of(&server.maxmemory_policy) {
        Eviction::None => None,
        Eviction::Expiring => Some("the record of events that were sent"),
        Eviction::Any => Some("keys and counts"),
    };
    if server.maxmemory_policy.is_empty() {
        warnings.push("maxmemory-policy could not be checked: INFO does not report it".into());
    }
    if let Some(evicted) = evicted {
        warnings.push(format!(
            "when memory is full, it evicts {evicted} ({}): set maxmemory-policy noeviction",
            server.maxmemory_policy
        ));
    }
    for (field, what) in [
        ("rdb_last_bgsave_status", "its last snapshot failed"),
        (
            "aof_last_bgrewrite_status",
            "its last rewrite of the append-only file failed",
        ),
        (
            "aof_last_write_status",
            "its last write to the append-only file failed",
        ),
    ] {
        if has_failed(info, field) {
            warnings.push(format!("{what}: see its log and its disk"));
        }
    }
    warnings
}

fn warnings_of_gateways(gateways: &[GatewayFacts], clock_difference_seconds: f64) -> Vec<String> {
    let mut warnings = Vec::new();
    // Gateways correct for it.
    if clock_difference_seconds.abs() > DIFFERENCE_MAX.as_secs_f64() {
        warnings.push(format!(
            "its clock is {} this machine's: the quota day follows its clock; make sure that both use NTP",
            ahead_of(clock_difference_seconds)
        ));
    }
    for gateway in gateways {
        if gateway
            .keys_age_seconds
            .is_none_or(|age| age > KEYS_AGE_MAX_SECONDS)
        {
            warnings.push(format!(
                "the key table of the gateway {} is not current: see its log",
                gateway.name
            ));
        }
        warnings.extend(condition_warnings(gateway));
    }
    warnings
}

/// Warnings about a gateway's reported condition.
fn condition_warnings(gateway: &GatewayFacts) -> Vec<String> {
    let mut warnings = Vec::new();
    let name = &gateway.name;
    if let Some(breaker) = &gateway.breaker
        && breaker.state != BreakerState::Closed
    {
        let why = breaker.last_failure.as_deref().unwrap_or("no connection");
        warnings.push(format!(
            "the gateway {name} has been deciding without Redis for {:.1} s: {why}",
            breaker.since_seconds
        ));
    }
    if let Some(error) = &gateway.replica_error {
        warnings.push(format!(
            "the gateway {name} cannot save changes of keys, so it confirms none: {error}"
        ));
    }
    if let Some(ServiceFacts {
        journal,
        journal_error: Some(error),
        ..
    }) = &gateway.service
    {
        warnings.push(format!(
            "the gateway {name} cannot write its journal {}, so it would serve nothing without Redis: {error}",
            journal.display()
        ));
    }
    if let Some(seconds) = gateway.clock_difference_seconds
        && seconds.abs() > DIFFERENCE_MAX.as_secs_f64()
    {
        warnings.push(format!(
            "the clock of the gateway {name} is {} Redis's, which it uses: make sure that both use NTP",
            ahead_of(-seconds)
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_break_promises_are_warned_of() {
        let sound = ServerFacts {
            append_only: Some(true),
            append_fsync: Some("everysec".into()),
            maxmemory_policy: "noeviction".into(),
            ..ServerFacts::default()
        };
        let none = InfoDict::new("");
        assert_eq!(warnings_of(&sound, &none), Vec::<String>::new());
        let failed = InfoDict::new("rdb_last_bgsave_status:err\r\naof_last_write_status:ok\r\n");
        for (server, info, part) in [
            (
                ServerFacts {
                    append_only: Some(false),
                    ..sound.clone()
                },
                &none,
                "appendonly",
            ),
            (
                ServerFacts {
                    append_fsync: Some("no".into()),
                    ..sound.clone()
                },
                &none,
                "appendfsync",
            ),
            (
                ServerFacts {
                    maxmemory_policy: "allkeys-lru".into(),
                    ..sound.clone()
                },
                &none,
                "it evicts keys and counts",
            ),
            (
                ServerFacts {
                    maxmemory_policy: "volatile-lru".into(),
                    ..sound.clone()
                },
                &none,
                "it evicts the record of events",
            ),
            (
                ServerFacts {
                    maxmemory_policy: String::new(),
                    ..sound.clone()
                },
                &none,
                "could not be checked",
            ),
            (sound.clone(), &failed, "snapshot"),
        ] {
            let warnings = warnings_of(&server, info);
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert!(warnings[0].contains(part), "{warnings:?}");
        }
    }

    #[test]
    fn a_server_refuses_writes_under_redis_s_own_conditions() {
        let memory = |maxmemory_bytes, used_memory_bytes| ServerFacts {
            maxmemory_bytes,
            used_memory_bytes,
            ..ServerFacts::default()
        };
        let roomy = memory(0, 100);
        let evicting = |policy: &str| ServerFacts {
            maxmemory_policy: policy.into(),
            ..memory(100, 101)
        };
        for (server, info, settings, refuses) in [
            (&roomy, "", &[][..], false),
            (&memory(100, 100), "", &[], false),
            (&memory(100, 101), "", &[], true),
            (&memory(100, 101), "mem_not_counted_for_evict:1", &[], false),
            (&evicting("noeviction"), "db0:keys=3,expires=1", &[], true),
            (&evicting("allkeys-lru"), "db0:keys=3,expires=0", &[], false),
            (
                &evicting("volatile-lru"),
                "db9:keys=3,expires=1",
                &[],
                false,
            ),
            (&evicting("volatile-lru"), "db0:keys=3,expires=0", &[], true),
            (
                &roomy,
                "min_slaves_good_slaves:1",
                &[("min-replicas-to-write", "1")],
                false,
            ),
            (
                &roomy,
                "min_slaves_good_slaves:0",
                &[("min-replicas-to-write", "1")],
                true,
            ),
            (&roomy, "min_slaves_good_slaves:0", &[], true),
            (
                &roomy,
                "connected_slaves:0",
                &[("min-replicas-to-write", "0")],
                false,
            ),
            (&roomy, "rdb_last_bgsave_status:err", &[], false),
            (
                &roomy,
                "rdb_last_bgsave_status:err",
                &[("save", "60 1"), ("stop-writes-on-bgsave-error", "no")],
                false,
            ),
            (
                &roomy,
                "rdb_last_bgsave_status:err",
                &[("save", "60 1"), ("stop-writes-on-bgsave-error", "yes")],
                true,
            ),
            (&roomy, "aof_last_write_status:err", &[], true),
        ] {
            let set = settings.iter();
            let set = set.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let refusal = refusal_of_writes(server, &InfoDict::new(info), &set.collect());
            assert_eq!(refusal.is_some(), refuses, "{server:?} {info} {settings:?}");
        }
    }

    #[test]
    fn a_valkey_is_shown_by_its_own_version() {
        let redis = "redis_version:7.0.15";
        assert_eq!(version(&InfoDict::new(redis)), "7.0.15");
        let valkey = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n";
        assert_eq!(version(&InfoDict::new(valkey)), "Valkey 9.1.2");
    }

    #[test]
    fn lag_is_the_time_between_two_places() {
        assert!((lag_seconds("1000-5", "3500-0") - 2.5).abs() < 1e-9);
        assert!(lag_seconds("3500-0", "1000-0").abs() < 1e-9);
        assert!(lag_seconds("", "").abs() < 1e-9);
    }
}

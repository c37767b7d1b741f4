//! A gateway's replica of the key table: saved, started from, written back; and its feed, which passes over nothing.

use std::collections::HashMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use touchline::clock::Clock;
use touchline::policy::api_key::{ApiKey, KeyId, KeyPrefix, os_entropy};
use touchline::policy::key_record::{KeyRecord, KeyState};
use touchline::store::redis::{RedisSettings, RedisStore, open};
use touchline::store::{ChangeError, Decision, KeyEntry, NodeName, Role, Store, StoreError};

use crate::log_lines::log_lines;
use crate::redis_server::RedisServer;
use crate::suite::{PATIENCE, ZONE, charge, eventually, granted, issue, new_record, today};
use crate::tcp_proxy::TcpProxy;

const HOUR: Duration = Duration::from_secs(3_600);
/// What the contract calls current: an unknown key is refused with a 401 only by a replica at most this old.
const KEYS_AGE_MAX: Duration = Duration::from_secs(5);

const RECORD_SCRIPT: &str = include_str!("../../src/store/redis/record.lua");

/// A Redis and a directory for a gateway's replica.
struct Site {
    server: RedisServer,
    directory: TempDir,
}

impl Site {
    async fn new() -> Site {
        Site {
            server: RedisServer::start().await,
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn replica(&self) -> std::path::PathBuf {
        self.directory.path().join("var/keys.db")
    }

    fn settings(&self) -> RedisSettings {
        RedisSettings {
            timeout: Duration::from_secs(2),
            replica: Some(self.replica()),
            ..RedisSettings::of_url(self.server.url())
        }
    }

    async fn try_open(
        &self,
        settings: RedisSettings,
        clock: Clock,
    ) -> Result<Arc<RedisStore>, StoreError> {
        let role = Role::Gateway(NodeName("keeper".into()));
        open(settings, role, ZONE, clock).await
    }

    /// A gateway that saves its replica.
    async fn gateway(&self) -> Arc<RedisStore> {
        self.gateway_at(Duration::ZERO).await
    }

    /// The same on a machine that is some hours later.
    async fn gateway_at(&self, later: Duration) -> Arc<RedisStore> {
        let clock = Clock::from_fn(move || jiff::Timestamp::now() + later);
        self.try_open(self.settings(), clock).await.unwrap()
    }

    async fn command(&self) -> Arc<dyn Store> {
        let settings = RedisSettings {
            replica: None,
            ..self.settings()
        };
        open(settings, Role::Command, ZONE, Clock::system())
            .await
            .unwrap()
    }

    async fn report(&self, words: &[&str]) -> redis::Value {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command
            .query_async(&mut self.server.connect().await)
            .await
            .unwrap()
    }

    /// Has a record stored that no command wrote.
    async fn put(&self, record: &KeyRecord) {
        let name = format!("touchline:k:{{{}}}", record.id);
        let (version, packed) = (record.version.to_string(), packed(record));
        self.report(&["HSET", &name, "ver", &version, "rec", &packed])
            .await;
    }

    /// Writes a record as a gateway does that believes it lost, and returns whether it was stored.
    async fn write_back(&self, record: &KeyRecord) -> bool {
        let name = |kind| format!("touchline:{kind}:{{{}}}", record.id);
        let (version, packed) = (record.version.to_string(), packed(record));
        let words = [
            "EVAL",
            RECORD_SCRIPT,
            "2",
            &name("k"),
            &name("a"),
            "-1",
            &version,
            &packed,
            "{}",
            "",
        ];
        self.report(&words).await == redis::Value::Int(1)
    }

    /// Whether a name is in Redis.
    async fn has(&self, name: &str) -> bool {
        self.report(&["EXISTS", name]).await == redis::Value::Int(1)
    }

    /// How often Redis was called, by command.
    async fn calls(&self) -> HashMap<String, u64> {
        let text: String = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut self.server.connect().await)
            .await
            .unwrap();
        let lines = text.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
        });
        lines.collect()
    }

    async fn calls_of(&self, command: &str) -> u64 {
        self.calls().await.get(command).copied().unwrap_or(0)
    }
}

fn packed(record: &KeyRecord) -> String {
    serde_json::to_string(record).unwrap()
}

async fn revoked(store: &Arc<dyn Store>, key: &KeyEntry) -> KeyRecord {
    let record = KeyRecord {
        state: KeyState::Revoked,
        ..key.record.clone()
    };
    store.update_key(record).await.unwrap().0
}

/// Waits until a gateway's table has this version of a record.
async fn has_record(store: &RedisStore, record: &KeyRecord) {
    eventually("the gateway has the record", async || {
        let held = store.keys().get(record.id)?;
        (held.record == *record).then_some(())
    })
    .await;
}

/// Waits until Redis has everything that belongs to a record.
async fn is_stored(site: &Site, record: &KeyRecord) {
    let command = site.command().await;
    eventually("Redis has the record, its digest and its id", async || {
        let stored = command.key(record.id).await.ok()??;
        let digest = site.has(&format!("touchline:d:{}", record.digest)).await;
        let listed = command.all_keys().await.ok()?;
        (stored == *record && digest && listed.contains(record)).then_some(())
    })
    .await;
    command.close(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_loaded_past_any_number_of_counts() {
    let site = Site::new().await;
    let command = site.command().await;
    let mut keys = Vec::new();
    for _ in 0..40 {
        keys.push(issue(&command).await);
    }
    let fill =
        "for i = 1, 20000 do redis.call('SET', 'touchline:q:{' .. i .. '}:2026-11-21', 1) end";
    site.report(&["EVAL", fill, "0"]).await;
    let first = site.gateway().await;
    has_record(&first, &keys[39].record).await;
    eventually("the index is complete", async || {
        let is_indexed = site.has("touchline:complete:{15}").await;
        is_indexed.then_some(())
    })
    .await;

    // Steps of a thousand names.
    let scans = site.calls_of("scan").await;
    let once = 20..30;
    assert!(once.contains(&scans), "{scans} steps for 20,000 names");
    let second = open(
        RedisSettings {
            replica: None,
            ..site.settings()
        },
        Role::Gateway(NodeName("second".into())),
        ZONE,
        Clock::system(),
    )
    .await
    .unwrap();
    for key in &keys {
        has_record(&second, &key.record).await;
    }
    assert_eq!(command.all_keys().await.unwrap().len(), keys.len());
    assert_eq!(site.calls_of("scan").await, scans);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_filled_before_there_was_an_index_is_loaded_and_indexed() {
    let site = Site::new().await;
    let command = site.command().await;
    let key = issue(&command).await;
    for set in 0..16 {
        site.report(&["DEL", &format!("touchline:ids:{{{set}}}")])
            .await;
    }
    assert_eq!(
        command.all_keys().await.unwrap(),
        std::slice::from_ref(&key.record)
    );
    let gateway = site.gateway().await;
    has_record(&gateway, &key.record).await;
    eventually("the index is complete", async || {
        site.has("touchline:complete:{15}").await.then_some(())
    })
    .await;
    let scans = site.calls_of("scan").await;
    assert_eq!(
        command.all_keys().await.unwrap(),
        std::slice::from_ref(&key.record)
    );
    assert_eq!(site.calls_of("scan").await, scans);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_in_the_index_without_a_record_harms_no_key() {
    let site = Site::new().await;
    let command = site.command().await;
    let key = issue(&command).await;
    let dangling = new_record("pro");
    for set in 0..16 {
        let name = format!("touchline:ids:{{{set}}}");
        site.report(&["SADD", &name, dangling.id.as_str(), "no id"])
            .await;
    }
    for _ in 0..2 {
        let gateway = site.gateway().await;
        has_record(&gateway, &key.record).await;
        assert_eq!(gateway.keys().len(), 1);
        gateway.close(PATIENCE).await;
    }
    let (made, _) = command.create_key(dangling).await.unwrap();
    assert_eq!(
        command.all_keys().await.unwrap(),
        [key.record.clone(), made]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_flushall_the_running_gateways_write_back_keys_and_revocations() {
    let site = Site::new().await;
    let command = site.command().await;
    let active = issue(&command).await;
    let revoked = revoked(&command, &*issue(&command).await).await;
    let gateway = site.gateway().await;
    has_record(&gateway, &revoked).await;
    // The second time there is no feed any more, and its end cannot show that the store was emptied.
    for _ in 0..2 {
        site.report(&["FLUSHALL"]).await;
        is_stored(&site, &active.record).await;
        is_stored(&site, &revoked).await;
        eventually("the zone is remembered", async || {
            site.has("touchline:zone").await.then_some(())
        })
        .await;
        let same = KeyRecord {
            digest: revoked.digest,
            ..new_record("pro")
        };
        let refused = command.create_key(same).await;
        assert!(
            matches!(refused, Err(ChangeError::Exists(_))),
            "{refused:?}"
        );
        assert_eq!(gateway.keys().len(), 2);
        eventually("the gateway has found its place again", async || {
            site.has("touchline:complete:{15}").await.then_some(())
        })
        .await;
    }
    let late = issue(&command).await;
    has_record(&gateway, &late.record).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_that_redis_lost_before_another_change_is_made_again() {
    let site = Site::new().await;
    let command = site.command().await;
    let gateway = site.gateway().await;
    // The gateway learns of the change by the feed, and by a walk over all names.
    for by_feed in [true, false] {
        let key = issue(&command).await;
        let revoked = revoked(&command, &key).await;
        has_record(&gateway, &revoked).await;
        // A failover loses the revocation.
        site.put(&key.record).await;
        // One that starts now does not know it, and follows the feed only.
        let role = Role::Gateway(NodeName("unaware".into()));
        let settings = RedisSettings {
            replica: None,
            ..site.settings()
        };
        let unaware = open(settings, role, ZONE, Clock::system()).await.unwrap();
        has_record(&unaware, &key.record).await;
        let labelled = KeyRecord {
            label: Some("l".into()),
            ..key.record.clone()
        };
        let changed = match by_feed {
            true => command.update_key(labelled).await.unwrap().0,
            false => {
                let version = revoked.version;
                let changed = KeyRecord {
                    version,
                    ..labelled
                };
                site.put(&changed).await;
                gateway.repair().await.unwrap();
                changed
            }
        };
        assert!(changed.version >= revoked.version);
        let again = KeyRecord {
            version: changed.version + 1,
            ..revoked
        };
        has_record(&gateway, &again).await;
        is_stored(&site, &again).await;
        has_record(&unaware, &again).await;
        unaware.close(PATIENCE).await;
        // A gateway that knows of no key is given it as revoked.
        let settings = RedisSettings {
            replica: None,
            ..site.settings()
        };
        let role = Role::Gateway(NodeName("new".into()));
        let new = open(settings, role, ZONE, Clock::system()).await.unwrap();
        has_record(&new, &again).await;
        new.close(PATIENCE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_flushall_and_a_restart_of_the_gateway_every_key_is_as_it_was() {
    let site = Site::new().await;
    let command = site.command().await;
    let active = issue(&command).await;
    let revoked = revoked(&command, &*issue(&command).await).await;
    let gateway = site.gateway().await;
    has_record(&gateway, &revoked).await;
    gateway.close(PATIENCE).await;
    drop(gateway);
    site.report(&["FLUSHALL"]).await;

    let gateway = site.gateway().await;
    let held = |id: KeyId| gateway.keys().get(id).unwrap().record.clone();
    assert_eq!(held(active.record.id), active.record);
    assert_eq!(held(revoked.id).state, KeyState::Revoked);
    is_stored(&site, &active.record).await;
    is_stored(&site, &revoked).await;
    let (used, _) = granted(gateway.charge(charge(&active, today(), 10, 1)).await);
    assert_eq!(used, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_was_killed_has_saved_its_keys_before() {
    let site = Site::new().await;
    let command = site.command().await;
    let gateway = site.gateway().await;
    let secret = ApiKey::generate(&KeyPrefix::default(), &mut os_entropy);
    let record = KeyRecord {
        id: secret.id(),
        digest: secret.digest(),
        ..new_record("pro")
    };
    let (record, _) = command.create_key(record).await.unwrap();
    has_record(&gateway, &record).await;
    eventually("the key is saved", async || {
        saved_records(&site.replica())
            .contains_key(&record.id.to_string())
            .then_some(())
    })
    .await;
    // Dropped, it ends as the death of a process would.
    drop(gateway);
    let mut looked_at = Vec::new();
    for entry in std::fs::read_dir(site.replica().parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        // SQLite takes its own files away as the last connection ends.
        let Ok(mut file) = std::fs::File::open(&path) else {
            continue;
        };
        let mode = file.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        let secret = secret.reveal().as_bytes();
        assert!(!bytes.windows(secret.len()).any(|part| part == secret));
        looked_at.push(path);
    }
    assert!(looked_at.contains(&site.replica()), "{looked_at:?}");
    site.report(&["FLUSHALL"]).await;
    let gateway = site.gateway().await;
    assert_eq!(gateway.keys().get(record.id).unwrap().record, record);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_a_gateway_cannot_save_is_not_confirmed_by_it() {
    let site = Site::new().await;
    let command = site.command().await;
    let gateway = site.gateway().await;
    let key = issue(&command).await;
    eventually("the key is saved", async || {
        let saved = saved_records(&site.replica());
        saved.contains_key(key.record.id.as_str()).then_some(())
    })
    .await;
    // As on a full disk, nothing can be written into the file.
    let file = rusqlite::Connection::open(site.replica()).unwrap();
    file.execute_batch("BEGIN IMMEDIATE").unwrap();
    issue(&command).await;
    let trouble = eventually("the gateway cannot save", async || {
        gateway.health().file_trouble
    })
    .await;
    assert!(
        trouble.contains("keys.db") && trouble.contains("free space"),
        "{trouble}"
    );
    let record = revoked(&command, &key).await;
    has_record(&gateway, &record).await;
    let mark = command.last_change().await.unwrap();
    let two_beats = Duration::from_secs(2);
    let unconfirmed = command.await_applied(&mark, two_beats).await.unwrap();
    assert_eq!(unconfirmed.len(), 1, "{unconfirmed:?}");
    let warnings = command.status().await.unwrap().warnings;
    let of_saving = |warning: &String| warning.contains("keeper cannot save changes of keys");
    assert!(warnings.iter().any(of_saving), "{warnings:?}");
    file.execute_batch("ROLLBACK").unwrap();
    let unconfirmed = command.await_applied(&mark, PATIENCE).await.unwrap();
    assert_eq!(unconfirmed, []);
    assert_eq!(gateway.health().file_trouble, None);
    // A file that the next start would not read.
    std::fs::rename(site.replica(), site.directory.path().join("elsewhere")).unwrap();
    issue(&command).await;
    let trouble = eventually("the gateway has nothing to save into", async || {
        gateway.health().file_trouble
    })
    .await;
    assert!(
        trouble.contains("was moved, removed or replaced"),
        "{trouble}"
    );
}

fn saved_records(path: &Path) -> HashMap<String, String> {
    let connection = rusqlite::Connection::open(path).unwrap();
    let mut select = connection
        .prepare("SELECT id, record FROM records")
        .unwrap();
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
    rows.unwrap().map(Result::unwrap).collect()
}

/// A replica with one key, saved by a gateway that is gone, and a Redis that is gone too.
async fn left_alone() -> (Site, Arc<KeyEntry>) {
    let mut site = Site::new().await;
    let key = issue(&site.command().await).await;
    let gateway = site.gateway().await;
    has_record(&gateway, &key.record).await;
    gateway.close(PATIENCE).await;
    site.server.kill();
    (site, key)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_starts_without_redis_serves_known_keys_from_its_saved_replica() {
    let (mut site, key) = left_alone().await;
    let gateway = site.gateway_at(HOUR).await;
    let health = gateway.health();
    assert!(!health.up && health.keys.loaded && health.keys.usable);
    assert!(health.keys.age > KEYS_AGE_MAX, "an unknown key is no 401");
    assert_eq!(gateway.keys().find(&key.record.digest).unwrap(), key);

    // It comes back empty.
    site.server.restart().await;
    is_stored(&site, &key.record).await;
    eventually("the replica is current", async || {
        let health = gateway.health();
        (health.up && health.keys.age <= KEYS_AGE_MAX).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_starts_without_redis_and_without_a_replica_is_not_ready() {
    let (site, key) = left_alone().await;
    std::fs::remove_file(site.replica()).unwrap();
    let gateway = site.gateway().await;
    let health = gateway.health();
    assert!(!health.keys.loaded && !health.keys.usable);
    assert_eq!(health.keys.age, Duration::MAX);
    assert!(gateway.keys().find(&key.record.digest).is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saved_replica_is_used_up_to_max_staleness_and_not_beyond() {
    let (mut site, _) = left_alone().await;
    let minute = Duration::from_secs(60);
    for (later, usable) in [(24 * HOUR - minute, true), (24 * HOUR + minute, false)] {
        let gateway = site.gateway_at(later).await;
        let health = gateway.health();
        assert!(health.keys.loaded);
        assert_eq!(health.keys.usable, usable, "{later:?}");
    }
    let stale = site.gateway_at(48 * HOUR).await;
    site.server.restart().await;
    eventually("Redis makes it usable again", async || {
        stale.health().keys.usable.then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_becomes_too_old_while_the_gateway_runs() {
    let mut site = Site::new().await;
    let settings = RedisSettings {
        max_staleness: Duration::from_millis(1_500),
        ..site.settings()
    };
    let gateway = site.try_open(settings, Clock::system()).await.unwrap();
    assert!(gateway.health().keys.usable);
    site.server.kill();
    eventually("the replica is too old", async || {
        (!gateway.health().keys.usable).then_some(())
    })
    .await;
    site.server.restart().await;
    eventually("the replica is current", async || {
        gateway.health().keys.usable.then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_saved_in_the_future_is_not_believed() {
    let (site, _) = left_alone().await;
    let clock = Clock::from_fn(|| jiff::Timestamp::now() - HOUR);
    let gateway = site.try_open(site.settings(), clock).await.unwrap();
    let health = gateway.health();
    assert!(health.keys.loaded && !health.keys.usable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_replica_is_set_aside() {
    for table in [None, Some("meta"), Some("records")] {
        let (mut site, key) = left_alone().await;
        damage(&site.replica(), table);
        let gateway = site.gateway().await;
        assert!(!gateway.health().keys.loaded);
        assert!(site.replica().with_extension("damaged").exists());
        drop(gateway);
        site.server.restart().await;
        let gateway = site.gateway().await;
        assert!(gateway.health().keys.loaded);
        assert!(gateway.keys().get(key.record.id).is_none());
    }
}

/// Overwrites the first page of a table, or the whole file.
fn damage(path: &Path, table: Option<&str>) {
    let file = rusqlite::Connection::open(path).unwrap();
    let number = |sql: &str| file.query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap() as usize;
    number("PRAGMA wal_checkpoint(TRUNCATE)");
    let bytes = number("PRAGMA page_size");
    let overwritten = match table {
        Some(name) => {
            let page = format!("SELECT rootpage FROM sqlite_schema WHERE name = '{name}'");
            let end = number(&page) * bytes;
            end - bytes..end
        }
        None => 0..number("PRAGMA page_count") * bytes,
    };
    file.close().unwrap();
    let mut contents = std::fs::read(path).unwrap();
    contents[overwritten].fill(0xff);
    std::fs::write(path, contents).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_replica_of_another_store_is_refused_and_left_alone() {
    let (site, key) = left_alone().await;
    let settings = RedisSettings {
        key_prefix: "other".into(),
        ..site.settings()
    };
    let refused = site.try_open(settings, Clock::system()).await;
    let Err(StoreError::Failed(message)) = refused else {
        panic!("it opened");
    };
    for part in ["keys.db", "touchline", "other", "store.redis.replica"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(saved_records(&site.replica()).contains_key(&key.record.id.to_string()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_no_replica_is_refused_and_left_alone() {
    let site = Site::new().await;
    std::fs::create_dir_all(site.replica().parent().unwrap()).unwrap();
    let theirs = rusqlite::Connection::open(site.replica()).unwrap();
    theirs
        .execute_batch("CREATE TABLE books (title TEXT)")
        .unwrap();
    drop(theirs);
    let before = std::fs::read(site.replica()).unwrap();
    let refused = site.try_open(site.settings(), Clock::system()).await;
    let Err(StoreError::Failed(message)) = refused else {
        panic!("it opened");
    };
    for part in ["keys.db", "store.redis.replica"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(std::fs::read(site.replica()).unwrap(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_goes_on_from_its_saved_place_without_loading_all() {
    let site = Site::new().await;
    let command = site.command().await;
    let old = issue(&command).await;
    let gateway = site.gateway().await;
    has_record(&gateway, &old.record).await;
    gateway.close(PATIENCE).await;
    let new = issue(&command).await;
    let walks = site.calls_of("sscan").await + site.calls_of("scan").await;
    let gateway = site.gateway().await;
    has_record(&gateway, &new.record).await;
    has_record(&gateway, &old.record).await;
    let now = site.calls_of("sscan").await + site.calls_of("scan").await;
    assert_eq!(now, walks);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_is_not_current_before_it_has_read_all_that_it_missed() {
    let site = Site::new().await;
    let command = site.command().await;
    let key = issue(&command).await;
    let gateway = site.gateway().await;
    has_record(&gateway, &key.record).await;
    gateway.close(PATIENCE).await;
    // Many times what one read of the feed returns.
    let fill = "for _ = 1, 20000 do redis.call('XADD', KEYS[1], '*', 'rec', ARGV[1]) end";
    let packed = packed(&key.record);
    site.report(&["EVAL", fill, "1", "touchline:feed", &packed])
        .await;
    let record = revoked(&command, &key).await;
    let gateway = site.gateway_at(HOUR).await;
    eventually("the gateway is current", async || {
        (gateway.health().keys.age <= KEYS_AGE_MAX).then_some(())
    })
    .await;
    assert_eq!(gateway.keys().get(record.id).unwrap().record, record);
}

/// A gateway behind a proxy that is cut off from its feed while `meanwhile` happens: it must learn what changed.
async fn learns_what_it_missed(meanwhile: &[&[&str]]) {
    let site = Site::new().await;
    let command = site.command().await;
    let old = issue(&command).await;
    let proxy = TcpProxy::before(site.server.port()).await;
    let settings = RedisSettings {
        replica: None,
        ..RedisSettings::of_url(proxy.url())
    };
    let gateway = site.try_open(settings, Clock::system()).await.unwrap();
    has_record(&gateway, &old.record).await;
    proxy.swallow_replies();
    let new = issue(&command).await;
    let revoked = revoked(&command, &old).await;
    for words in meanwhile {
        site.report(words).await;
    }
    assert_eq!(gateway.keys().len(), 1, "it was cut off");
    proxy.pass_replies();
    has_record(&gateway, &new.record).await;
    has_record(&gateway, &revoked).await;
    let late = issue(&command).await;
    has_record(&gateway, &late.record).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_place_in_the_feed_was_trimmed_loads_all_keys() {
    learns_what_it_missed(&[&["XTRIM", "touchline:feed", "MAXLEN", "0"]]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_feed_vanished_loads_all_keys() {
    learns_what_it_missed(&[&["DEL", "touchline:feed"]]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_feed_began_anew_behind_its_place_loads_all_keys() {
    let anew: &[&str] = &["XADD", "touchline:feed", "5-1", "rec", "not a record"];
    learns_what_it_missed(&[&["DEL", "touchline:feed"], anew]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_feed_began_anew_beyond_its_place_loads_all_keys() {
    let anew: &[&str] = &["XADD", "touchline:feed", "*", "rec", "not a record"];
    learns_what_it_missed(&[&["DEL", "touchline:feed"], anew]).await;
}

/// A Redis that comes back with an older state, seen by a gateway that lives or by one that starts again.
async fn older_data_are_brought_up_to_date(restarts: bool) {
    let mut site = Site::new().await;
    let command = site.command().await;
    let kept = issue(&command).await;
    let gateway = site.gateway().await;
    site.report(&["SAVE"]).await;
    let lost = issue(&command).await;
    let revoked = revoked(&command, &kept).await;
    has_record(&gateway, &lost.record).await;
    has_record(&gateway, &revoked).await;
    let gateway = if restarts {
        gateway.close(PATIENCE).await;
        drop(gateway);
        site.server.restart().await;
        assert_eq!(
            site.command()
                .await
                .key(kept.record.id)
                .await
                .unwrap()
                .unwrap()
                .state,
            KeyState::Active,
            "Redis is older"
        );
        site.gateway().await
    } else {
        site.server.restart().await;
        gateway
    };
    is_stored(&site, &lost.record).await;
    is_stored(&site, &revoked).await;
    assert_eq!(gateway.keys().get(revoked.id).unwrap().record, revoked);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_restarted_with_older_data_is_brought_up_to_date_by_the_running_gateway() {
    older_data_are_brought_up_to_date(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_restarted_with_older_data_is_brought_up_to_date_by_a_gateway_that_starts() {
    older_data_are_brought_up_to_date(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_lost_with_its_feed_is_written_back_however_long_it_refuses_writes() {
    let site = Site::new().await;
    let record = issue(&site.command().await).await.record.clone();
    let gateway = site.gateway().await;
    has_record(&gateway, &record).await;
    site.report(&["CONFIG", "SET", "maxmemory", "1"]).await;
    eventually("the refusal is noticed", async || {
        (!gateway.health().up).then_some(())
    })
    .await;
    let name = format!("touchline:k:{{{}}}", record.id);
    let walks = site.calls_of("sscan").await;
    site.report(&["DEL", "touchline:feed", &name]).await;
    eventually("all keys are loaded a second time", async || {
        let of_one = 16;
        (site.calls_of("sscan").await > walks + of_one).then_some(())
    })
    .await;
    site.report(&["CONFIG", "SET", "maxmemory", "0"]).await;
    is_stored(&site, &record).await;
}

/// What a command that died half-way or a failover leaves, and no feed reports.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_periodic_walk_finds_what_no_feed_reported_and_writes_back_what_redis_lost() {
    let site = Site::new().await;
    let command = site.command().await;
    let (lost, outdated) = (issue(&command).await, issue(&command).await);
    let gateway = site.gateway().await;
    let revoked = revoked(&command, &outdated).await;
    has_record(&gateway, &lost.record).await;
    has_record(&gateway, &revoked).await;
    let unreported = KeyRecord {
        version: 7,
        ..new_record("pro")
    };
    site.put(&unreported).await;
    site.put(&outdated.record).await;
    let name = format!("touchline:k:{{{}}}", lost.record.id);
    site.report(&["DEL", &name]).await;
    site.report(&["DEL", &format!("touchline:d:{}", lost.record.digest)])
        .await;
    site.report(&["DEL", "touchline:zone"]).await;

    gateway.repair().await.unwrap();
    assert_eq!(
        gateway.keys().get(unreported.id).unwrap().record,
        unreported
    );
    for record in [&lost.record, &revoked, &unreported] {
        is_stored(&site, record).await;
    }
    assert!(site.has("touchline:zone").await);
    let found = command.all_keys().await.unwrap();
    assert_eq!(found.len(), 3, "all are in the index");
}

#[tokio::test]
async fn a_gateway_makes_the_periodic_walk_by_itself() {
    let site = Site::new().await;
    let gateway = site.gateway().await;
    let unreported = KeyRecord {
        version: 7,
        ..new_record("pro")
    };
    site.put(&unreported).await;
    eventually("the walk is made", async || {
        // Calls that were under way time out.
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(12 * 60)).await;
        tokio::time::resume();
        tokio::time::sleep(Duration::from_secs(1)).await;
        gateway.keys().get(unreported.id)
    })
    .await;
}

/// What a change while Redis's clock was ahead leaves, if Redis lost that change before the revocation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_is_not_replaced_by_a_change_of_a_later_version_that_redis_had_lost() {
    let site = Site::new().await;
    let command = site.command().await;
    let gateway = site.gateway().await;
    for is_charged_first in [false, true] {
        let issued = issue(&command).await.record.clone();
        let changed = KeyRecord {
            version: issued.version + 60_000_000,
            ..issued.clone()
        };
        site.put(&changed).await;
        gateway.repair().await.unwrap();
        let judged = gateway.keys().get(issued.id).unwrap();
        assert_eq!(judged.record, changed);
        let revoked = KeyRecord {
            state: KeyState::Revoked,
            version: issued.version + 1,
            ..issued
        };
        site.put(&revoked).await;
        match is_charged_first {
            true => {
                let charged = gateway.charge(charge(&judged, today(), 10, 1)).await;
                assert!(matches!(charged, Ok(Decision::KeyChanged)), "{charged:?}");
            }
            false => gateway.repair().await.unwrap(),
        }
        assert_eq!(gateway.keys().get(revoked.id).unwrap().record, revoked);
        // A gateway that read Redis before the revocation writes the change back.
        assert!(!site.write_back(&changed).await);
        is_stored(&site, &revoked).await;
        eventually("it is saved", async || {
            let saved = saved_records(&site.replica());
            (saved.get(revoked.id.as_str()) == Some(&packed(&revoked))).then_some(())
        })
        .await;
    }
}

/// A gateway that reads Redis before a change and writes after it believes the change lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_replaced_only_by_a_record_of_a_later_version() {
    let site = Site::new().await;
    let command = site.command().await;
    let issued = issue(&command).await.record.clone();
    let suspended = KeyRecord {
        state: KeyState::Suspended,
        ..issued.clone()
    };
    let (suspended, _) = command.update_key(suspended).await.unwrap();
    let of_version = |version| KeyRecord {
        version,
        ..issued.clone()
    };
    for version in [suspended.version - 1, suspended.version] {
        assert!(!site.write_back(&of_version(version)).await);
        assert_eq!(
            command.key(issued.id).await.unwrap().as_ref(),
            Some(&suspended)
        );
    }
    let later = of_version(suspended.version + 1);
    assert!(site.write_back(&later).await);
    assert_eq!(command.key(issued.id).await.unwrap(), Some(later));
}

/// As behind an address that a failover moves, while the former master lives and does not know of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_followed_at_the_server_to_which_the_other_connections_were_made_anew() {
    let (site, successor) = (Site::new().await, RedisServer::start().await);
    let key = issue(&site.command().await).await;
    let proxy = TcpProxy::before(site.server.port()).await;
    let settings = RedisSettings {
        timeout: Duration::from_secs(2),
        ..RedisSettings::of_url(proxy.url())
    };
    let gateway = site.try_open(settings, Clock::system()).await.unwrap();
    has_record(&gateway, &key.record).await;
    let ask = async |words: &str| -> redis::Value {
        let words: Vec<&str> = words.split(' ').collect();
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let answer = command.query_async(&mut successor.connect().await).await;
        answer.unwrap()
    };
    let follow = format!("REPLICAOF 127.0.0.1 {}", site.server.port());
    ask(&follow).await;
    eventually("the successor has everything", async || {
        let info = ask("INFO replication").await;
        let info: String = redis::from_redis_value(info).unwrap();
        info.contains("master_link_status:up").then_some(())
    })
    .await;
    ask("REPLICAOF NO ONE").await;
    proxy.lead_to(successor.port());
    // All connections end but that of the feed, which waits for changes.
    let clients = site.report(&["CLIENT", "LIST", "TYPE", "normal"]).await;
    let clients: String = redis::from_redis_value(clients).unwrap();
    for client in clients.lines().filter(|line| !line.contains(" cmd=xread ")) {
        let id = client.split(' ').find_map(|word| word.strip_prefix("id="));
        let ended = ["CLIENT", "KILL", "ID", id.unwrap()];
        site.report(&ended).await;
    }
    let settings = RedisSettings::of_url(successor.url());
    let command = open(settings, Role::Command, ZONE, Clock::system()).await;
    let command: Arc<dyn Store> = command.unwrap();
    has_record(&gateway, &revoked(&command, &key).await).await;
    // What the gateway repairs because of its new connections is over by then, and only the feed has later changes.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        has_record(&gateway, &issue(&command).await.record).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_feed_whose_state_cannot_be_read_is_no_absent_one_and_loads_nothing() {
    let site = Site::new().await;
    issue(&site.command().await).await;
    // It completes the index, so that later loads read its sets.
    drop(site.gateway().await);
    let user = "ACL SETUSER limited on >s3cret ~* &* +@all -xinfo";
    site.report(&Vec::from_iter(user.split(' '))).await;
    let read_before = site.calls_of("sscan").await;
    let settings = RedisSettings {
        username: Some("limited".into()),
        password: Some("s3cret".into()),
        replica: None,
        ..site.settings()
    };
    let store = site.try_open(settings, Clock::system()).await.unwrap();
    eventually("the feed is tried again and again", async || {
        let log = site.report(&["ACL", "LOG"]).await;
        let refused: Vec<HashMap<String, redis::Value>> = redis::from_redis_value(log).ok()?;
        let counts = refused.iter().filter_map(|entry| entry.get("count"));
        let counts = counts.filter_map(|count| redis::from_redis_value_ref::<u64>(count).ok());
        (counts.sum::<u64>() >= 4).then_some(())
    })
    .await;
    assert_eq!(site.calls_of("sscan").await, read_before);
    assert!(!store.freshness().loaded);
    site.report(&["ACL", "SETUSER", "limited", "+xinfo"]).await;
    eventually("the table is loaded", async || {
        store.freshness().loaded.then_some(())
    })
    .await;
    assert!(site.calls_of("sscan").await > read_before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_refused_permission_is_reported_as_one_of_the_key_table() {
    let site = Site::new().await;
    let store = site.gateway().await;
    site.report(&["SET", "touchline:feed", "no stream"]).await;
    let trouble = eventually("the feed cannot be read", async || {
        store.health().keys_trouble
    })
    .await;
    assert!(trouble.contains("WRONGTYPE"), "{trouble}");
    assert!(!trouble.contains("permissions"), "{trouble}");
    site.report(&["DEL", "touchline:feed"]).await;
    let user = ["ACL", "SETUSER", "default"];
    site.report(&[&user[..], &["-xinfo"]].concat()).await;
    let trouble = eventually("the feed may not be read", async || {
        let trouble = store.health().keys_trouble?;
        trouble.contains("no permissions").then_some(trouble)
    })
    .await;
    assert!(trouble.contains("check the user"), "{trouble}");
    site.report(&[&user[..], &["+xinfo"]].concat()).await;
    eventually("the key table follows Redis", async || {
        store.health().keys_trouble.is_none().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_feed_that_may_not_be_read_is_logged_once() {
    let log = log_lines();
    let site = Site::new().await;
    let user = "ACL SETUSER without-xread on >s3cret ~* &* +@all -xread";
    site.report(&Vec::from_iter(user.split(' '))).await;
    let settings = RedisSettings {
        username: Some("without-xread".into()),
        password: Some("s3cret".into()),
        ..site.settings()
    };
    let store = site.try_open(settings, Clock::system()).await.unwrap();
    eventually("the feed is tried again and again", async || {
        (site.calls_of("xinfo|stream").await >= 4).then_some(())
    })
    .await;
    let parts = ["the feed of key changes is interrupted", "xread"];
    assert_eq!(log.with(&parts), 1);
    site.report(&["ACL", "SETUSER", "without-xread", "+xread"])
        .await;
    eventually("the key table follows Redis", async || {
        store.health().keys_trouble.is_none().then_some(())
    })
    .await;
}

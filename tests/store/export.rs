//! The export of one store, imported by another through the trait.

use std::sync::Arc;
use std::time::Duration;

use harness::RedisServer;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use redis::AsyncCommands;
use tokio::sync::mpsc;
use touchline::clock::Clock;
use touchline::policy::audit::{Author, Entry, Wanted};
use touchline::policy::calendar::{Calendar, Day};
use touchline::policy::key_record::KeyRecord;
use touchline::policy::rate_limit::QuotaStatus;
use touchline::policy::threshold_event::{Share, ThresholdEvent};
use touchline::store::export::{Exported, ImportCounts, ImportMode};
use touchline::store::{Claim, Delivery, NodeName, Role, Store, embedded, redis as redis_store};

use crate::suite::{WholeLedger, ZONE, charge, granted, issue, new_record, today, used_field};

/// A Redis and directories for databases.
struct Stores {
    directory: tempfile::TempDir,
    server: RedisServer,
}

impl Stores {
    async fn new() -> Stores {
        let directory = tempfile::tempdir().unwrap();
        let server = RedisServer::start(directory.path(), false, None).await;
        Stores { directory, server }
    }

    async fn file(&self, name: &str) -> Arc<dyn Store> {
        let settings = embedded::Settings::new(self.directory.path().join(name));
        let opened = embedded::open(settings, Role::Command, ZONE, Clock::system()).await;
        opened.unwrap()
    }

    async fn redis(&self, prefix: &str) -> Arc<dyn Store> {
        let settings = redis_store::RedisSettings {
            key_prefix: prefix.into(),
            ..redis_store::RedisSettings::of_url(self.server.url())
        };
        let opened = redis_store::open(settings, Role::Command, ZONE, Clock::system()).await;
        opened.unwrap()
    }
}

async fn exported(from: &Arc<dyn Store>) -> Vec<Exported> {
    let (sender, mut receiver) = mpsc::channel(16);
    let receive = async {
        let mut items = Vec::new();
        while let Some(item) = receiver.recv().await {
            items.push(item);
        }
        items
    };
    let (sent, items) = tokio::join!(from.export(sender), receive);
    sent.unwrap();
    items
}

async fn transfer(from: &Arc<dyn Store>, to: &Arc<dyn Store>) -> ImportCounts {
    to.import_exported(exported(from).await, ImportMode::Write)
        .await
        .unwrap()
}

fn node(name: &str) -> NodeName {
    NodeName(name.into())
}

#[tokio::test]
async fn an_event_is_delivered_once_although_its_store_was_changed() {
    let stores = Stores::new().await;
    let ways = [
        (stores.file("a.db").await, stores.redis("a").await),
        (stores.redis("b").await, stores.file("b.db").await),
        (stores.file("c.db").await, stores.file("d.db").await),
    ];
    let threshold_event = ThresholdEvent {
        key: new_record("pro").id,
        tier: "pro".parse().unwrap(),
        quota_status: QuotaStatus {
            limit: 10,
            used: Some(8),
            // Claims of dates around the present one are exported.
            day: Day {
                date: Timestamp::now().to_zoned(TimeZone::UTC).date(),
                ..today()
            },
        },
        share: Share::of_percent(80).unwrap(),
        at: Timestamp::now(),
    };
    let lease = Duration::from_secs(60);
    for (from, to) in ways {
        let made = from
            .claim(&threshold_event, &node("a"), Delivery::Wanted)
            .await;
        assert!(matches!(made.unwrap(), Claim::Made));
        let dry = to
            .import_exported(exported(&from).await, ImportMode::DryRun)
            .await;
        assert_eq!(dry.unwrap().events_added, 1);
        assert_eq!(exported(&to).await, [], "a dry run writes nothing");
        transfer(&from, &to).await;
        let again = to
            .claim(&threshold_event, &node("b"), Delivery::Wanted)
            .await;
        assert_eq!(again.unwrap(), Claim::Held);
        let waiting = to.undelivered(&node("b"), lease, 0).await.unwrap().unwrap();
        assert_eq!(waiting.len(), 1);
        assert_eq!(waiting[0].body, threshold_event.event().body);
        to.resign(&node("b")).await.unwrap();
        // Delivered there, it is not in the next export.
        let here = from
            .undelivered(&node("a"), lease, 0)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(here, waiting);
        to.delivered(&waiting[0]).await.unwrap();
        let counts = transfer(&from, &to).await;
        assert_eq!((counts.events_added, counts.events_held), (0, 1));
        let waiting = to.undelivered(&node("b"), lease, 0).await.unwrap();
        assert_eq!(waiting, Some(Vec::new()));
    }
}

#[tokio::test]
async fn units_without_an_endpoint_late_ones_and_those_above_the_limit_are_reported_alike() {
    let stores = Stores::new().await;
    let redis = stores.redis("a").await;
    let key = issue(&redis).await;
    let (id, today) = (key.record.id, today());
    let calendar = Calendar::of_zone(ZONE).unwrap();
    let closed = today.date.checked_sub(jiff::Span::new().days(30)).unwrap();
    let closed = calendar.day_of(closed).unwrap();
    let client = redis::Client::open(stores.server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    for (day, late) in [(closed, Some(("a900", -2))), (today, None)] {
        // Two processes; one died before it sent what 3 units were for, the other served above the limit of 10.
        let used = used_field(day);
        let mut fields = vec![
            (used.as_str(), 18),
            ("gaa.0", 9),
            ("gbb.0", 12),
            ("rbb.0", 3),
        ];
        fields.extend(late);
        let counts = format!("a:q:{{{id}}}:{}", day.date);
        let _: () = connection.hset_multiple(counts, &fields).await.unwrap();
        let cells = [
            ("aa.1|/x", "6 6 0 0 0 0 0 0 0 10 0 pro"),
            ("bb.1|/x", "10 12 3 1 2 3 4 5 6 10 1 pro"),
            ("bb.2|/y", "0 0 0 0 7 0 0 0 0 10 0 starter"),
        ];
        let ledger = format!("a:e:{{{id}}}:{}", day.date);
        let _: () = connection.hset_multiple(ledger, &cells).await.unwrap();
        let date = day.date.to_string();
        let _: () = connection.sadd("a:days", date).await.unwrap();
    }
    let read = async |store: &Arc<dyn Store>| {
        let proofs = store.prove(closed.date, today.date, None).await;
        proofs.unwrap()
    };
    let before = read(&redis).await;
    let figures: Vec<_> = before
        .iter()
        .map(|proof| {
            assert_eq!(proof.faults, Vec::<String>::new());
            let usage = &proof.usage;
            (usage.used, usage.unattributed, usage.over)
        })
        .collect();
    assert_eq!(figures, [(20, 5, 10), (18, 3, 8)]);
    let file = stores.file("a.db").await;
    let back = stores.redis("b").await;
    transfer(&redis, &file).await;
    assert_eq!(read(&file).await, before);
    transfer(&file, &back).await;
    assert_eq!(read(&back).await, before);
    let late = async |store: &Arc<dyn Store>| {
        let days = store.late_days(closed.date, today.date, &[id]).await;
        days.unwrap()
    };
    let of_closed = [(closed.date, id)];
    // In the first one, units were written above as version 0.2.0 did, without a mark.
    for store in [&file, &back, &redis] {
        assert_eq!(late(store).await, of_closed);
    }
    // By this, an invoice finds the units months later.
    let mark = format!("l{}", closed.date);
    let is_marked: bool = connection
        .hexists(format!("b:k:{{{id}}}"), mark)
        .await
        .unwrap();
    assert!(is_marked, "the imported record names the day");
    let used = async |store: &Arc<dyn Store>| {
        let days = store.usage(today.date, today.date, Some(id)).await;
        days.unwrap()[0].used
    };
    assert_eq!((used(&file).await, used(&back).await), (18, 18));
    assert_eq!(file.used(id, closed, 100).await.unwrap(), 18);
    // What is charged in the file goes on from there, and comes back as the file's own.
    let gateway = embedded::Settings::new(stores.directory.path().join("a.db"));
    let role = Role::Gateway(node("g"));
    let gateway = embedded::open(gateway, role, ZONE, Clock::system()).await;
    let gateway: Arc<dyn Store> = gateway.unwrap();
    let known = gateway.keys().get(id).unwrap();
    assert_eq!(
        granted(gateway.charge(charge(&known, today, 20, 2)).await).0,
        20
    );
    assert_eq!(transfer(&file, &redis).await.key_days_added, 1);
    assert_eq!(used(&redis).await, 20);
    assert_eq!(transfer(&file, &back).await.key_days_added, 1);
    assert_eq!(used(&back).await, 20);
    assert_eq!(transfer(&back, &redis).await.key_days_added, 0);
}

#[tokio::test]
async fn a_copied_day_on_which_more_was_served_than_its_limit_has_no_fault() {
    let stores = Stores::new().await;
    let redis = stores.redis("a").await;
    let (id, today) = (issue(&redis).await.record.id, today());
    let client = redis::Client::open(stores.server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    // Of a limit of 10, while Redis was unavailable.
    let fields = [(used_field(today), 12), ("gaa.0".into(), 12)];
    let counts = format!("a:q:{{{id}}}:{}", today.date);
    let _: () = connection.hset_multiple(counts, &fields).await.unwrap();
    let row = ("aa.1|/x", "12 12 0 0 0 0 0 0 0 10 0 pro");
    let ledger = format!("a:e:{{{id}}}:{}", today.date);
    let _: () = connection.hset(ledger, row.0, row.1).await.unwrap();
    let date = today.date.to_string();
    let _: () = connection.sadd("a:days", date).await.unwrap();
    let file = stores.file("a.db").await;
    transfer(&redis, &file).await;
    for store in [&redis, &file] {
        let proofs = store.prove(today.date, today.date, None).await.unwrap();
        let [proof] = &proofs[..] else {
            panic!("{proofs:?}");
        };
        assert_eq!(proof.faults, Vec::<String>::new());
        let usage = &proof.usage;
        assert_eq!((usage.used, usage.unattributed, usage.over), (12, 0, 2));
    }
}

#[tokio::test]
async fn a_secret_that_another_key_of_the_store_has_is_refused_and_both_are_named() {
    let stores = Stores::new().await;
    let (file, redis) = (stores.file("a.db").await, stores.redis("a").await);
    let (record, _) = file.create_key(new_record("pro")).await.unwrap();
    for to in [redis, stores.file("b.db").await] {
        let other = KeyRecord {
            digest: record.digest,
            ..new_record("pro")
        };
        to.create_key(other.clone()).await.unwrap();
        let refused = to
            .import_exported(exported(&file).await, ImportMode::Write)
            .await;
        let sent = refused.unwrap_err().to_string();
        for id in [record.id, other.id] {
            assert!(sent.contains(id.as_str()), "{sent}");
            assert!(sent.contains("--overlap 0s"), "{sent}");
        }
        assert_eq!(to.all_keys().await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn an_audit_entry_of_no_key_is_transferred_between_stores_of_both_kinds_once() {
    let stores = Stores::new().await;
    let (from, file, to) = (
        stores.redis("a").await,
        stores.file("a.db").await,
        stores.redis("b").await,
    );
    let author = Author {
        who: "ann".into(),
        reason: Some("its machine is gone".into()),
    };
    let now = Timestamp::now();
    let entry = Entry::of_forgotten("web-1-7", now, now, &author);
    let item = Exported::Audit(Box::new(entry.clone()));
    let (record, _) = from.create_key(new_record("pro")).await.unwrap();
    for (taking, added) in [
        (ImportMode::DryRun, 1),
        (ImportMode::Write, 1),
        (ImportMode::Write, 0),
    ] {
        let counts = from
            .import_exported(vec![item.clone()], taking)
            .await
            .unwrap();
        assert_eq!(counts.audit_entries_added, added);
    }
    for (from, to) in [(&from, &file), (&file, &to)] {
        for added in [2, 0] {
            assert_eq!(transfer(from, to).await.audit_entries_added, added);
        }
        let trail = to.audit(Wanted::default()).await.unwrap();
        assert_eq!(trail.len(), 2, "{trail:?}");
        assert!(trail.contains(&entry) && trail.contains(&Entry::of(&record)));
    }
}

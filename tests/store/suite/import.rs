//! Facts about importing many keys.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use jiff::Timestamp;
use touchline::policy::audit::Entry;
use touchline::policy::key_record::{Action, KeyRecord, KeyState, LastChange, PreviousDigest};
use touchline::store::{Imported, KeyEntry, Store};

use super::{
    Fixture, PATIENCE, charge, eventually, eventually_used, granted, issue, new_record, today,
};

/// A key as an import brings it.
fn brought(label: &str) -> KeyRecord {
    KeyRecord {
        label: Some(label.into()),
        created: "2020-02-29T12:00:00Z".parse().unwrap(),
        last_change: LastChange::first(Action::Import, "ann").into(),
        ..new_record("pro")
    }
}

async fn import(store: &Arc<dyn Store>, records: &[KeyRecord]) -> Vec<Imported> {
    store.import_keys(records.to_vec()).await.unwrap().0
}

/// A record but for what the store decides.
fn own_part(record: &KeyRecord) -> KeyRecord {
    KeyRecord {
        version: 0,
        updated: Timestamp::UNIX_EPOCH,
        ..record.clone()
    }
}

pub async fn imported_keys_are_as_they_were_brought_and_have_their_entries(fixture: &dyn Fixture) {
    let store = fixture.command().await;
    let before = store.server_time().await.unwrap();
    let mut records: Vec<KeyRecord> = (0..300).map(|n| brought(&n.to_string())).collect();
    records[7].state = KeyState::Revoked;
    records[8].previous = Some(Box::new(PreviousDigest {
        digest: new_record("pro").digest,
        until: Timestamp::MAX,
    }));
    records[9].grants.insert(today().date, 5);
    assert_eq!(import(&store, &records).await, [Imported::Added; 300]);
    let stored = store.all_keys().await.unwrap();
    assert_eq!(stored.len(), 300);
    for record in &records {
        let found = store.key(record.id).await.unwrap().unwrap();
        assert_eq!(own_part(&found), own_part(record));
        assert!(found.version >= u64::try_from(before.as_microsecond()).unwrap());
        assert!(found.updated >= before - PATIENCE);
    }
    let output: BTreeSet<_> = super::trail(&store)
        .await
        .iter()
        .map(|entry| (entry.key.unwrap(), entry.what, entry.who.clone()))
        .collect();
    let expected: BTreeSet<_> = records
        .iter()
        .map(|record| (record.id, Action::Import, "ann".to_owned()))
        .collect();
    assert_eq!(output, expected);
}

pub async fn importing_again_adds_nothing(fixture: &dyn Fixture) {
    let store = fixture.command().await;
    let records: Vec<KeyRecord> = (0..20).map(|n| brought(&n.to_string())).collect();
    assert_eq!(import(&store, &records[..12]).await, [Imported::Added; 12]);
    let before = store.all_keys().await.unwrap();
    let again = import(&store, &records).await;
    for (record, outcome) in records.iter().zip(&again).take(12) {
        assert_eq!(*outcome, Imported::Held(record.id));
    }
    assert_eq!(again[12..], [Imported::Added; 8]);
    let after = store.all_keys().await.unwrap();
    assert_eq!(after.len(), 20);
    assert!(before.iter().all(|record| after.contains(record)));
    assert_eq!(super::trail(&store).await.len(), 20);

    // The same secrets under new ids: they are the keys' that have them.
    let renamed: Vec<KeyRecord> = records
        .iter()
        .map(|record| KeyRecord {
            id: new_record("pro").id,
            ..record.clone()
        })
        .collect();
    let held: Vec<Imported> = records
        .iter()
        .map(|record| Imported::Held(record.id))
        .collect();
    assert_eq!(import(&store, &renamed).await, held);
    assert_eq!(store.all_keys().await.unwrap(), after);
    assert_eq!(super::trail(&store).await.len(), 20);
}

pub async fn a_secret_or_an_id_that_is_in_use_is_left_out_of_an_import(fixture: &dyn Fixture) {
    let store = fixture.command().await;
    let held = issue(&store).await.record.clone();
    let same_secret = KeyRecord {
        digest: held.digest,
        ..brought("secret")
    };
    let same_id = KeyRecord {
        id: held.id,
        ..brought("id")
    };
    let free = brought("free");
    let outcomes = import(&store, &[same_secret, same_id.clone(), free.clone()]).await;
    assert_eq!(
        outcomes,
        [Imported::Held(held.id), Imported::IdTaken, Imported::Added]
    );
    assert_eq!(store.key(held.id).await.unwrap(), Some(held.clone()));
    assert_eq!(store.all_keys().await.unwrap().len(), 2);
    // Nothing was left behind that keeps the secret from being used.
    let under_its_own = KeyRecord {
        id: new_record("pro").id,
        ..same_id
    };
    store.create_key(under_its_own).await.unwrap();
}

pub async fn an_imported_key_reaches_a_gateway_and_is_charged(fixture: &dyn Fixture) {
    let (gateway, command) = (fixture.gateway("a").await, fixture.command().await);
    let record = brought("x");
    let (outcomes, mark) = command.import_keys(vec![record.clone()]).await.unwrap();
    assert_eq!(outcomes, [Imported::Added]);
    let late = command.await_applied(&mark.unwrap(), PATIENCE).await;
    assert_eq!(late.unwrap(), []);
    let key = gateway.keys().find(&record.digest).unwrap();
    assert_eq!(
        granted(gateway.charge(charge(&key, today(), 5, 1)).await).0,
        1
    );
    let stored = command.key(record.id).await.unwrap().unwrap();
    assert_eq!(super::trail(&command).await, [Entry::of(&stored)]);
}

pub async fn charges_pass_between_the_batches_of_an_import(fixture: &dyn Fixture) {
    let (gateway, command) = (fixture.gateway("a").await, fixture.command().await);
    let key = issue(&command).await;
    eventually("the key is in the table", async || {
        gateway.keys().get(key.record.id)
    })
    .await;
    let (running, charged) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
    let load = {
        let (running, charged) = (running.clone(), charged.clone());
        let (gateway, key): (Arc<dyn Store>, Arc<KeyEntry>) = (gateway.clone(), key.clone());
        tokio::spawn(async move {
            while running.load(Ordering::Relaxed) {
                granted(gateway.charge(charge(&key, today(), 1_000_000, 1)).await);
                charged.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let mut moved = 0;
    let mut last = 0;
    for _ in 0..20 {
        let records: Vec<KeyRecord> = (0..200).map(|n| brought(&n.to_string())).collect();
        assert_eq!(import(&command, &records).await, [Imported::Added; 200]);
        let now = charged.load(Ordering::Relaxed);
        moved += u64::from(now > last);
        last = now;
    }
    running.store(false, Ordering::Relaxed);
    load.await.unwrap();
    assert!(
        moved > 10,
        "only in {moved} of 20 batches anything was charged"
    );
    eventually_used(&gateway, &key, today(), charged.load(Ordering::Relaxed)).await;
    assert_eq!(command.all_keys().await.unwrap().len(), 4_001);
}

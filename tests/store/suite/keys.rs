//! Facts about keys: changes, their conflicts, and how they reach every gateway.

use std::time::Duration;

use harness::SLACK;
use jiff::Timestamp;
use tokio::time::Instant;
use touchline::policy::api_key::{ApiKey, KeyId, KeyPrefix, os_entropy};
use touchline::policy::audit::{Author, Wanted};
use touchline::policy::key_record::{Action, KeyRecord, KeyState, PreviousDigest};
use touchline::store::{ChangeError, Decision, Forgotten, KeyEntry, NodeName, Unconfirmed};

use super::{
    Fixture, PATIENCE, charge, eventually, eventually_used, exhausted, granted, issue, new_record,
    today,
};

pub async fn a_charge_with_an_older_record_is_not_granted(fixture: &dyn Fixture) {
    let (gateway, command) = (fixture.gateway("a").await, fixture.command().await);
    let old = issue(&command).await;
    let day = today();
    granted(gateway.charge(charge(&old, day, 10, 1)).await);
    let mut record = old.record.clone();
    record.tier = "enterprise".parse().unwrap();
    let (new, _) = command.update_key(record).await.unwrap();
    let decision = gateway.charge(charge(&old, day, 10, 1)).await.unwrap();
    assert!(matches!(decision, Decision::KeyChanged), "{decision:?}");
    let held = gateway.keys().get(new.id).unwrap();
    assert_eq!(held.record, new);
    assert_eq!(
        granted(gateway.charge(charge(&held, day, 10, 1)).await).0,
        2
    );
}

pub async fn a_revocation_holds_from_the_next_charge_of_another_process(fixture: &dyn Fixture) {
    let (gateway, command) = (fixture.gateway("a").await, fixture.command().await);
    let old = issue(&command).await;
    let day = today();
    for _ in 0..3 {
        granted(gateway.charge(charge(&old, day, 10, 1)).await);
    }
    let mut record = old.record.clone();
    record.state = KeyState::Revoked;
    command.update_key(record).await.unwrap();
    let decision = gateway.charge(charge(&old, day, 10, 1)).await.unwrap();
    assert!(matches!(decision, Decision::KeyChanged), "{decision:?}");
    let held = gateway.keys().get(old.record.id).unwrap();
    assert_eq!(held.record.state, KeyState::Revoked);
    eventually_used(&gateway, &old, day, 3).await;
}

pub async fn a_changed_key_keeps_its_count(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let old = issue(&store).await;
    let day = today();
    granted(store.charge(charge(&old, day, 10, 7)).await);
    let next = ApiKey::for_id(&KeyPrefix::default(), old.record.id, &mut os_entropy);
    let mut record = old.record.clone();
    record.previous = Some(Box::new(PreviousDigest {
        digest: old.record.digest,
        until: Timestamp::MAX,
    }));
    record.digest = next.digest();
    let (record, _) = store.update_key(record).await.unwrap();
    let new = KeyEntry::new(record);
    assert_eq!(granted(store.charge(charge(&new, day, 10, 1)).await).0, 8);
    assert_eq!(exhausted(store.charge(charge(&new, day, 5, 1)).await), 8);
}

pub async fn of_two_changes_from_the_same_reading_one_is_made(fixture: &dyn Fixture) {
    let (one, other) = (fixture.command().await, fixture.command().await);
    let key = issue(&one).await;
    let mut grant = key.record.clone();
    grant.grants.insert(today().date, 500);
    let (made, lost) = tokio::join!(one.update_key(grant.clone()), other.update_key(grant));
    let made = match (made, lost) {
        (Ok((record, _)), Err(ChangeError::Conflict(id)))
        | (Err(ChangeError::Conflict(id)), Ok((record, _))) => {
            assert_eq!(id, key.record.id);
            record
        }
        other => panic!("{other:?}"),
    };
    assert!(made.version > key.record.version);
    assert_eq!(one.key(made.id).await.unwrap(), Some(made.clone()));
    let (again, _) = one.update_key(made.clone()).await.unwrap();
    assert!(again.version > made.version);
}

pub async fn an_id_or_digest_in_use_is_refused(fixture: &dyn Fixture) {
    let store = fixture.command().await;
    let taken = issue(&store).await;
    let other = issue(&store).await;

    let mut same_id = new_record("pro");
    same_id.id = taken.record.id;
    let mut same_digest = new_record("pro");
    same_digest.digest = taken.record.digest;
    let mut same_previous = new_record("pro");
    same_previous.previous = Some(Box::new(PreviousDigest {
        digest: taken.record.digest,
        until: Timestamp::MAX,
    }));
    for record in [same_id, same_digest, same_previous] {
        let refused = store.create_key(record).await;
        assert!(
            matches!(refused, Err(ChangeError::Exists(_))),
            "{refused:?}"
        );
    }
    let mut moved = other.record.clone();
    moved.digest = taken.record.digest;
    let refused = store.update_key(moved).await;
    assert!(
        matches!(refused, Err(ChangeError::Exists(_))),
        "{refused:?}"
    );
    assert_eq!(store.all_keys().await.unwrap().len(), 2);
}

pub async fn an_unknown_key_cannot_be_changed(fixture: &dyn Fixture) {
    let store = fixture.command().await;
    let record = new_record("pro");
    let id = record.id;
    let refused = store.update_key(record).await;
    assert!(
        matches!(refused, Err(ChangeError::UnknownKey(unknown)) if unknown == id),
        "{refused:?}"
    );
    assert_eq!(store.key(id).await.unwrap(), None);
}

pub async fn the_store_dates_and_versions_every_record(fixture: &dyn Fixture) {
    let store = fixture.command().await;
    let before = store.server_time().await.unwrap();
    let (made, first) = store.create_key(new_record("pro")).await.unwrap();
    let after = store.server_time().await.unwrap();
    assert!(made.created >= before - Duration::from_millis(1) && made.created <= after);
    assert_eq!(made.updated, made.created);
    assert!(made.version >= u64::try_from(before.as_microsecond()).unwrap());
    let (changed, second) = store
        .update_key(KeyRecord {
            label: Some("billing".into()),
            created: Timestamp::UNIX_EPOCH,
            ..made.clone()
        })
        .await
        .unwrap();
    assert!(second > first);
    assert!(changed.version > made.version);
    assert!(changed.updated >= made.updated);
    assert_eq!(store.key(made.id).await.unwrap(), Some(changed));
}

pub async fn all_keys_come_in_the_order_of_their_creation(fixture: &dyn Fixture) {
    let store = fixture.command().await;
    let mut expected = Vec::new();
    for _ in 0..20 {
        expected.push(issue(&store).await.record.id);
    }
    let all = store.all_keys().await.unwrap();
    let output: Vec<_> = all.iter().map(|record| record.id).collect();
    assert_eq!(output, expected);
}

pub async fn ids_and_records_of_some_keys_are_those_of_all_keys(fixture: &dyn Fixture) {
    let store = fixture.command().await;
    for turn in 0..7 {
        let mut record = new_record("pro");
        record.customer = ["Birch", "Acme"][turn % 2].into();
        store.create_key(record).await.unwrap();
    }
    let mut all = store.all_keys().await.unwrap();
    all.sort_by_key(|record| record.id);
    let expected: Vec<KeyId> = all.iter().map(|record| record.id).collect();
    let date = today().date;
    assert_eq!(store.ledger_keys(date, date).await.unwrap(), expected);
    let unknown = new_record("pro").id;
    for asked in [vec![], vec![unknown], vec![all[5].id, unknown, all[2].id]] {
        let output = store.records_of(&asked).await.unwrap();
        let expected = asked
            .iter()
            .filter_map(|id| all.iter().find(|record| record.id == *id));
        assert_eq!(output, expected.cloned().collect::<Vec<_>>());
    }
}

pub async fn a_search_finds_the_keys_that_have_a_text_now(fixture: &dyn Fixture) {
    let store = fixture.command().await;
    let mut ids = Vec::new();
    for (customer, label) in [
        ("Acme & Söhne", None),
        ("Acme", Some("[live]*?\\^ Ärger")),
        ("Birch", Some("acme's old one")),
    ] {
        let mut record = new_record("pro");
        (record.customer, record.label) = (customer.into(), label.map(Into::into));
        ids.push(store.create_key(record).await.unwrap().0.id);
    }
    let found = async |text: &str| {
        let found = store.search_keys(text).await.unwrap();
        let mut found: Vec<usize> = found
            .iter()
            .map(|record| ids.iter().position(|id| *id == record.id).unwrap())
            .collect();
        found.sort_unstable();
        found
    };
    assert_eq!(found("ACME").await, [0, 1, 2]);
    assert_eq!(found("söhNE").await, [0]);
    assert_eq!(found("Ärger").await, [1]);
    for text in ["[live]", "]*?", "?\\^", "*"] {
        assert_eq!(found(text).await, [1], "{text}");
    }
    for text in ["[a-z]", "a?me", "acme*one", "cme\\"] {
        assert_eq!(found(text).await, [0; 0], "{text}");
    }
    assert_eq!(found(ids[2].as_str()).await, [2]);
    assert_eq!(found("").await, [0, 1, 2]);
    for label in [Some("Acme again"), Some("acme's old one"), None] {
        let mut record = store.key(ids[2]).await.unwrap().unwrap();
        record.label = label.map(Into::into);
        store.update_key(record).await.unwrap();
        assert_eq!(
            found("again").await.len(),
            usize::from(label == Some("Acme again"))
        );
        assert_eq!(
            found("old one").await.len(),
            usize::from(label == Some("acme's old one"))
        );
    }
    assert_eq!(found("acme").await, [0, 1]);
    let imported = new_record("pro");
    let text = imported.id.as_str().to_owned();
    store.import_keys(vec![imported]).await.unwrap();
    assert_eq!(store.search_keys(&text).await.unwrap().len(), 1);
}

pub async fn a_change_reaches_the_key_table_of_another_process(fixture: &dyn Fixture) {
    let (gateway, command) = (fixture.gateway("a").await, fixture.command().await);
    let key = issue(&command).await;
    let digest = key.record.digest;
    eventually("the new key is in the table", async || {
        gateway.keys().find(&digest).filter(|found| *found == key)
    })
    .await;
    let next = ApiKey::for_id(&KeyPrefix::default(), key.record.id, &mut os_entropy);
    let mut record = key.record.clone();
    record.digest = next.digest();
    let (record, _) = command.update_key(record).await.unwrap();
    eventually("the rotated key is in the table", async || {
        gateway.keys().find(&next.digest())
    })
    .await;
    assert_eq!(gateway.keys().get(record.id).unwrap().record, record);
    assert!(gateway.keys().find(&digest).is_none());

    let late = fixture.gateway("b").await;
    assert_eq!(late.keys().get(record.id).unwrap().record, record);
}

pub async fn an_applied_change_awaits_no_gateway(fixture: &dyn Fixture) {
    let gateways = [fixture.gateway("a").await, fixture.gateway("b").await];
    let command = fixture.command().await;
    for _ in 0..10 {
        let (record, mark) = command.create_key(new_record("pro")).await.unwrap();
        let lagging = command.await_applied(&mark, PATIENCE).await.unwrap();
        assert_eq!(lagging, []);
        for gateway in &gateways {
            assert_eq!(gateway.keys().get(record.id).unwrap().record, record);
        }
    }
}

pub async fn a_gateway_that_does_not_apply_a_change_is_named(fixture: &dyn Fixture) {
    let follows = fixture.gateway("follows").await;
    let command = fixture.command().await;
    drop(fixture.gateway("hangs").await);
    // What the dropped handle had under way may still apply a change or two.
    let lagging = eventually("the gateway that hangs is named", async || {
        let (_, mark) = command.create_key(new_record("pro")).await.unwrap();
        let patience = Duration::from_millis(300);
        let lagging = command.await_applied(&mark, patience).await.unwrap();
        (!lagging.is_empty()).then_some(lagging)
    })
    .await;
    let hangs = NodeName("hangs".into());
    let late = Unconfirmed {
        name: hangs.clone(),
        silent_since: None,
    };
    assert_eq!(lagging, [late]);
    // In time it counts as dead on the embedded store; on Redis it is silent until an operator strikes it off.
    eventually("the dead gateway is not awaited any more", async || {
        let (_, mark) = command.create_key(new_record("pro")).await.unwrap();
        let patience = Duration::from_millis(300);
        let lagging = command.await_applied(&mark, patience).await.unwrap();
        let silent = lagging.first().and_then(|one| one.silent_since);
        if let Some(since) = silent {
            let author = Author {
                who: "ann".into(),
                reason: None,
            };
            let struck = command.forget_gateway(&hangs, &author).await.unwrap();
            assert_eq!(struck, Forgotten::Struck { heard: since });
            let trail = command.audit(Wanted::default()).await.unwrap();
            let entry = trail.last().unwrap();
            assert_eq!((entry.what, entry.key), (Action::ForgetGateway, None));
        }
        lagging.is_empty().then_some(())
    })
    .await;
    let author = Author {
        who: "ann".into(),
        reason: None,
    };
    let again = command.forget_gateway(&hangs, &author).await.unwrap();
    assert_eq!(again, Forgotten::Unknown);
    assert!(follows.health().keys.loaded);
}

pub async fn a_gateway_that_signed_off_is_not_awaited(fixture: &dyn Fixture) {
    let command = fixture.command().await;
    let gateway = fixture.gateway("gone").await;
    gateway.close(PATIENCE).await;
    let (_, mark) = command.create_key(new_record("pro")).await.unwrap();
    let asked = Instant::now();
    assert_eq!(command.await_applied(&mark, PATIENCE).await.unwrap(), []);
    assert!(asked.elapsed() < SLACK);
}

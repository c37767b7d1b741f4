//! Facts about the audit trail: it has exactly the changes that were made.

use std::sync::Arc;

use jiff::Timestamp;
use touchline::policy::audit::{Author, Entry, Wanted, signed};
use touchline::policy::key_record::{Action, KeyRecord, KeyState};
use touchline::store::{ChangeError, Store};

use super::{Fixture, issue, new_record, today};

fn author(who: &str) -> Author {
    Author {
        who: who.into(),
        reason: Some(format!("{who} asked for it")),
    }
}

/// Changes a key as a command does.
async fn change(
    store: &Arc<dyn Store>,
    before: &KeyRecord,
    action: Action,
    who: &str,
    make: impl Fn(&mut KeyRecord),
) -> Result<KeyRecord, ChangeError> {
    let mut after = before.clone();
    make(&mut after);
    let after = signed(before, after, action, &author(who));
    store.update_key(after).await.map(|(record, _)| record)
}

pub async fn trail(store: &Arc<dyn Store>) -> Vec<Entry> {
    store.audit(Wanted::default()).await.unwrap()
}

fn suspend(record: &mut KeyRecord) {
    record.state = KeyState::Suspended;
}

fn resume(record: &mut KeyRecord) {
    record.state = KeyState::Active;
}

pub async fn every_change_has_its_entry_in_the_order_of_the_changes(fixture: &dyn Fixture) {
    let (one, other) = (fixture.command().await, fixture.command().await);
    let first = issue(&one).await.record.clone();
    let second = issue(&other).await.record.clone();
    let suspended = change(&one, &first, Action::Suspend, "ann", suspend)
        .await
        .unwrap();
    let granted = change(&other, &second, Action::Grant, "bob", |record| {
        record.grants.insert(today().date, 500);
    })
    .await
    .unwrap();
    let resumed = change(&other, &suspended, Action::Resume, "bob", resume)
        .await
        .unwrap();
    let expected: Vec<Entry> = [&first, &second, &suspended, &granted, &resumed]
        .map(Entry::of)
        .to_vec();
    assert_eq!(trail(&one).await, expected);
    let output: Vec<_> = expected[2..]
        .iter()
        .map(|entry| (&*entry.who, entry.what, entry.reason.as_deref()))
        .collect();
    assert_eq!(
        output,
        [
            ("ann", Action::Suspend, Some("ann asked for it")),
            ("bob", Action::Grant, Some("bob asked for it")),
            ("bob", Action::Resume, Some("bob asked for it")),
        ]
    );
    assert_eq!(expected[3].granted(), Some((today().date, 500)));
    assert_eq!(expected[4].at, resumed.updated);
}

pub async fn a_change_that_was_not_made_leaves_no_entry(fixture: &dyn Fixture) {
    let (store, other) = (fixture.command().await, fixture.command().await);
    let taken = issue(&store).await.record.clone();
    let key = issue(&store).await.record.clone();
    let same = KeyRecord {
        digest: taken.digest,
        ..new_record("pro")
    };
    assert!(store.create_key(same).await.is_err());
    let unknown = new_record("pro");
    assert!(
        change(&store, &unknown, Action::Suspend, "ann", suspend)
            .await
            .is_err()
    );
    let moved = change(&store, &key, Action::Rotate, "ann", |record| {
        record.digest = taken.digest;
    });
    assert!(moved.await.is_err());
    assert_eq!(trail(&store).await.len(), 2);

    // Of two at the same time one is made, and only that one is recorded.
    let (ann, bob) = tokio::join!(
        change(&store, &key, Action::Suspend, "ann", suspend),
        change(&other, &key, Action::Suspend, "bob", suspend),
    );
    let winner = match (ann, bob) {
        (Ok(record), Err(ChangeError::Conflict(_)))
        | (Err(ChangeError::Conflict(_)), Ok(record)) => record,
        other => panic!("{other:?}"),
    };
    let trail = trail(&store).await;
    assert_eq!(trail.len(), 3);
    assert_eq!(trail.last(), Some(&Entry::of(&winner)));
}

pub async fn entries_are_reported_by_key_time_name_and_kind(fixture: &dyn Fixture) {
    let store = fixture.command().await;
    let key = issue(&store).await.record.clone();
    issue(&store).await;
    let suspended = change(&store, &key, Action::Suspend, "ann", suspend)
        .await
        .unwrap();
    let resumed = change(&store, &suspended, Action::Resume, "bob", resume)
        .await
        .unwrap();
    let all = Wanted::default;
    let output = async |wanted: Wanted| -> Vec<Action> {
        let entries = store.audit(wanted).await.unwrap();
        entries.iter().map(|entry| entry.what).collect()
    };
    let of_key = Wanted {
        key: Some(key.id),
        ..all()
    };
    assert_eq!(
        output(of_key.clone()).await,
        [Action::Issue, Action::Suspend, Action::Resume]
    );
    let since = Wanted {
        from: Some(suspended.updated),
        ..of_key.clone()
    };
    assert_eq!(output(since).await, [Action::Suspend, Action::Resume]);
    let until = Wanted {
        until: Some(resumed.updated),
        ..of_key
    };
    assert_eq!(output(until).await, [Action::Issue, Action::Suspend]);
    let by_bob = Wanted {
        who: Some("bob".into()),
        ..all()
    };
    assert_eq!(output(by_bob).await, [Action::Resume]);
    let issued = Wanted {
        what: Some(Action::Issue),
        ..all()
    };
    assert_eq!(output(issued).await, [Action::Issue, Action::Issue]);
    let nobody = Wanted {
        key: Some(new_record("pro").id),
        ..all()
    };
    assert_eq!(output(nobody).await, []);
}

pub async fn the_trail_outlives_the_processes_that_wrote_it(fixture: &dyn Fixture) {
    let store = fixture.command().await;
    let key = issue(&store).await.record.clone();
    change(&store, &key, Action::Suspend, "ann", suspend)
        .await
        .unwrap();
    let before = trail(&store).await;
    assert_eq!(before.len(), 2);
    store.close(super::PATIENCE).await;
    drop(store);
    assert_eq!(trail(&fixture.command().await).await, before);
}

pub async fn an_entry_holds_no_digest(fixture: &dyn Fixture) {
    let store = fixture.command().await;
    let key = issue(&store).await.record.clone();
    let next = new_record("pro").digest;
    let rotated = change(&store, &key, Action::Rotate, "ann", |record| {
        record.previous = Some(Box::new(touchline::policy::key_record::PreviousDigest {
            digest: key.digest,
            until: Timestamp::MAX,
        }));
        record.digest = next;
    })
    .await
    .unwrap();
    let entries = trail(&store).await;
    assert_eq!(entries.last(), Some(&Entry::of(&rotated)));
    let text = serde_json::to_string(&entries).unwrap();
    for digest in [key.digest, next] {
        assert!(!text.contains(&digest.to_string()));
    }
}

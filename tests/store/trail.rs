//! The audit trail in a Redis that loses its memory.

use std::sync::Arc;
use std::time::Duration;

use touchline::clock::Clock;
use touchline::policy::audit::{Author, Entry, signed};
use touchline::policy::key_record::{Action, KeyRecord, KeyState};
use touchline::store::redis::{RedisSettings, open};
use touchline::store::{NodeName, Role, Store};

use crate::redis_server::RedisServer;
use crate::suite::{ZONE, eventually, issue, trail};

async fn opened(server: &RedisServer, role: Role) -> Arc<dyn Store> {
    let settings = RedisSettings {
        timeout: Duration::from_secs(5),
        ..RedisSettings::of_url(server.url())
    };
    open(settings, role, ZONE, Clock::system()).await.unwrap()
}

async fn set_state(store: &Arc<dyn Store>, before: &KeyRecord, state: KeyState) -> KeyRecord {
    let after = KeyRecord {
        state,
        ..before.clone()
    };
    let author = Author {
        who: "ann".into(),
        reason: None,
    };
    let after = signed(before, after, Action::SetLabel, &author);
    store.update_key(after).await.unwrap().0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_flushall_the_trail_has_the_last_change_of_every_key_and_all_that_follow() {
    let server = RedisServer::start().await;
    let gateway = opened(&server, Role::Gateway(NodeName("keeper".into()))).await;
    let command = opened(&server, Role::Command).await;
    let untouched = issue(&command).await.record.clone();
    let issued = issue(&command).await.record.clone();
    let suspended = set_state(&command, &issued, KeyState::Suspended).await;
    eventually("the gateway has the change", async || {
        let held = gateway.keys().get(suspended.id)?;
        (held.record == suspended).then_some(())
    })
    .await;
    let () = redis::cmd("FLUSHALL")
        .query_async(&mut server.connect().await)
        .await
        .unwrap();
    eventually("the keys are written back", async || {
        let keys = command.all_keys().await.unwrap();
        (keys.len() == 2).then_some(())
    })
    .await;
    let kept = [&untouched, &suspended].map(Entry::of);
    assert_eq!(trail(&command).await, kept);
    let resumed = set_state(&command, &suspended, KeyState::Active).await;
    let [untouched, suspended] = kept;
    assert_eq!(
        trail(&command).await,
        [untouched, suspended, Entry::of(&resumed)]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_a_charge_wrote_back_takes_its_entry_along_with_the_next_change() {
    let server = RedisServer::start().await;
    let command = opened(&server, Role::Command).await;
    let issued = issue(&command).await.record.clone();
    // As the charge script leaves it that finds no record: without an entry.
    let () = redis::cmd("DEL")
        .arg(format!("touchline:a:{{{}}}", issued.id))
        .query_async(&mut server.connect().await)
        .await
        .unwrap();
    assert_eq!(trail(&command).await, [Entry::of(&issued)]);
    let suspended = set_state(&command, &issued, KeyState::Suspended).await;
    assert_eq!(
        trail(&command).await,
        [Entry::of(&issued), Entry::of(&suspended)]
    );
}

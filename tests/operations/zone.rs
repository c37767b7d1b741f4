//! A quota day of another zone than UTC.

use std::path::Path;
use std::process::Command;

use harness::{Protocol, Scene};
use jiff::Timestamp;
use touchline::policy::calendar::Calendar;

use super::{MARKETS, RANKINGS, Ran, STORES, TOUCHLINE};

const ZONE: &str = "America/New_York";

#[tokio::test]
async fn the_quota_is_reset_at_midnight_of_the_configured_zone() {
    let calendar = Calendar::of_zone(ZONE).unwrap();
    for store in STORES {
        let mut scene = Scene::builder(TOUCHLINE)
            .store(store)
            .spec(|spec| spec.timezone = ZONE.into())
            .start()
            .await;
        let key = scene.issue("starter").await;
        for protocol in Protocol::ALL {
            for (target, status) in [(MARKETS, 200), (RANKINGS, 403)] {
                let before = calendar.day_at(Timestamp::now()).unwrap();
                let answer = scene.client(protocol).get(&key, target).await;
                let after = calendar.day_at(Timestamp::now()).unwrap();
                assert_eq!(answer.status, status);
                let reset = answer.number("x-ratelimit-reset").unwrap();
                let midnights = [before.end, after.end].map(|end| u64::try_from(end).unwrap());
                assert!(midnights.contains(&reset), "{reset}, not {midnights:?}");
                assert_ne!(reset % 86_400, 0, "not midnight of UTC");
            }
        }
        let day = calendar.day_at(Timestamp::now()).unwrap().date.to_string();
        let usage = scene.usage().await;
        assert_eq!(usage.len(), 1, "{usage:?}");
        assert_eq!((&*usage[0].date, usage[0].used), (&*day, 3));
        scene.assert_ledgers_agree().await;
    }
}

/// A zone file (RFC 8536) in which it is always nine hours later than in UTC.
fn nine_hours_ahead() -> Vec<u8> {
    let (types, designations) = (1_u32, 4_u32);
    let counts = [0, 0, 0, 0, types, designations].map(u32::to_be_bytes);
    let block = [
        b"TZif2".as_slice(),
        &[0; 15],
        &counts.concat(),
        &(9 * 3_600_i32).to_be_bytes(),
        &[0, 0],
        b"JST\0",
    ];
    [&block.concat(), &block.concat(), b"\nJST-9\n".as_slice()].concat()
}

#[tokio::test]
async fn the_machines_own_table_of_zones_changes_no_quota_day() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.timezone = ZONE.into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join(ZONE);
    std::fs::create_dir(other.parent().unwrap()).unwrap();
    std::fs::write(&other, nine_hours_ahead()).unwrap();
    let explained = |table: Option<&Path>| -> String {
        let mut command = Command::new(TOUCHLINE);
        command.args(["explain", "--at", "2099-01-15T02:00:00Z"]);
        command.args(["--key-id", &key.id, "--path", MARKETS, "--config"]);
        command.arg(&scene.gateways[0].config);
        command.envs(table.map(|directory| ("TZDIR", directory)));
        Ran::from(command.output().unwrap()).done()
    };
    let ours = explained(None);
    assert!(ours.contains("2099-01-14"), "{ours}");
    assert_eq!(explained(Some(directory.path())), ours);
}

//! A quota day of another zone than UTC.

use harness::{Protocol, Scene};
use jiff::Timestamp;
use touchline::policy::calendar::Calendar;

use super::{MARKETS, RANKINGS, STORES, TOUCHLINE};

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

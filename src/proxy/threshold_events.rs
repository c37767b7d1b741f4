//! Which keys have come near their limits: derived from the results of charges, and passed to the task that reports them.
//!
//! A key is examined with each charge and each refusal for lack of units. Reported shares are remembered until their day ends. A
//! share that was missed (a restart, an unreachable store) is noticed with the key's next request; one that was reported costs no
//! more than a table look-up. Nothing here waits or sends.

use std::collections::{HashMap, VecDeque};

use jiff::Timestamp;
use jiff::civil::Date;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::policy::api_key::KeyId;
use crate::policy::key_record::KeyRecord;
use crate::policy::rate_limit::QuotaStatus;
use crate::policy::threshold_event::{Share, Shares, ThresholdEvent};

/// Threshold events that wait to be reported; about 2 MiB.
const WAITING_MAX: usize = 10_000;
/// Keys whose threshold events are remembered; about 16 MiB.
const SEEN_MAX: usize = 250_000;

/// There is no room: the threshold event is noticed again with the key's next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// The keys that have come near their limits.
#[derive(Debug, Default)]
pub struct ThresholdEvents {
    state: Mutex<QueueState>,
    come: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    seen: HashMap<KeyId, Seen>,
    waiting: VecDeque<ThresholdEvent>,
    /// The threshold event that was taken out and is not reported yet.
    taken: Option<ThresholdEvent>,
}

/// The noticed shares of a key.
#[derive(Debug, Clone, Copy)]
struct Seen {
    date: Date,
    /// One bit for each share, at its hundredths.
    shares: u128,
}

impl QueueState {
    fn take(&mut self) -> Option<ThresholdEvent> {
        self.taken = self.waiting.pop_front();
        self.taken.clone()
    }
}

/// The noticed shares of a key on this day.
fn shares_of(seen: &mut HashMap<KeyId, Seen>, key: KeyId, date: Date) -> &mut u128 {
    let of_key = seen.entry(key).or_insert(Seen { date, shares: 0 });
    if of_key.date != date {
        *of_key = Seen { date, shares: 0 };
    }
    &mut of_key.shares
}

fn bit(share: Share) -> u128 {
    1 << u32::from(share.percent())
}

impl ThresholdEvents {
    /// Examines a key with this record and quota status, and queues the shares that it has newly reached. Cost below the first share:
    /// a multiplication for each.
    ///
    /// # Errors
    /// [`Full`], if the threshold event could not be remembered or queued.
    pub fn examine(
        &self,
        shares: &Shares,
        record: &KeyRecord,
        quota_status: QuotaStatus,
        now: impl Fn() -> Timestamp,
    ) -> Result<(), Full> {
        let reached = shares.reached(quota_status.used.unwrap_or_default(), quota_status.limit);
        if reached.is_empty() {
            return Ok(());
        }
        let date = quota_status.day.date;
        let mut state = self.state.lock();
        let QueueState { seen, waiting, .. } = &mut *state;
        if seen.len() >= SEEN_MAX && !seen.contains_key(&record.id) {
            return Err(Full);
        }
        let noticed = shares_of(seen, record.id, date);
        for share in reached {
            if *noticed & bit(*share) != 0 {
                continue;
            }
            if waiting.len() >= WAITING_MAX {
                return Err(Full);
            }
            *noticed |= bit(*share);
            waiting.push_back(ThresholdEvent {
                key: record.id,
                tier: record.tier.clone(),
                quota_status,
                share: *share,
                at: now(),
            });
            self.come.notify_one();
        }
        Ok(())
    }

    /// The next threshold event to report; waits for one.
    pub async fn next(&self) -> ThresholdEvent {
        loop {
            let come = self.come.notified();
            if let Some(threshold_event) = self.state.lock().take() {
                return threshold_event;
            }
            come.await;
        }
    }

    /// Marks the last threshold event taken out as reported.
    pub fn mark_reported(&self) {
        self.state.lock().taken = None;
    }

    /// Whether all threshold events are reported.
    pub fn all_reported(&self) -> bool {
        let state = self.state.lock();
        state.waiting.is_empty() && state.taken.is_none()
    }

    /// Forgets the noticed shares, which are noticed again with each key's next request, but for those of `reported` and those that
    /// wait to be reported.
    pub fn forget_all_but(&self, reported: &[ThresholdEvent]) {
        let mut seen = HashMap::new();
        let mut keep = |kept: &ThresholdEvent| {
            *shares_of(&mut seen, kept.key, kept.quota_status.day.date) |= bit(kept.share);
        };
        // Requests wait for the lock, and these may be many.
        reported.iter().for_each(&mut keep);
        let mut state = self.state.lock();
        state.waiting.iter().for_each(&mut keep);
        std::mem::swap(&mut state.seen, &mut seen);
        drop(state);
    }

    /// Forgets the threshold event whose report a panic has ended: it is noticed again with the key's next request.
    pub fn forget_unreported(&self) {
        let mut state = self.state.lock();
        if let Some(taken) = state.taken.take() {
            let date = taken.quota_status.day.date;
            *shares_of(&mut state.seen, taken.key, date) &= !bit(taken.share);
        }
    }

    /// Forgets the shares of days before `today`.
    pub fn sweep(&self, today: Date) {
        self.state.lock().seen.retain(|_, seen| seen.date >= today);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::calendar::Calendar;
    use crate::policy::key_record::tests::key_of;

    fn shares() -> Shares {
        let shares = [80, 95, 100].map(|percent| Share::of_percent(percent).unwrap());
        Shares::new(shares.into()).unwrap()
    }

    fn at(instant: &str, used: u64) -> (QuotaStatus, Timestamp) {
        let now: Timestamp = instant.parse().unwrap();
        let quota_status = QuotaStatus {
            limit: 20,
            used: Some(used),
            day: Calendar::of_zone("UTC").unwrap().day_at(now).unwrap(),
        };
        (quota_status, now)
    }

    fn drain(threshold_events: &ThresholdEvents) -> Vec<u8> {
        let mut state = threshold_events.state.lock();
        let waiting = state.waiting.drain(..);
        waiting
            .map(|threshold_event| threshold_event.share.percent())
            .collect()
    }

    #[test]
    fn each_share_is_handed_over_once_a_day_and_all_that_were_passed_at_once() {
        let threshold_events = ThresholdEvents::default();
        let (_, record) = key_of("starter");
        let look = |instant, used| {
            let (quota_status, now) = at(instant, used);
            threshold_events
                .examine(&shares(), &record, quota_status, || now)
                .unwrap();
            drain(&threshold_events)
        };
        assert_eq!(look("2026-11-21T10:00:00Z", 15), [0; 0]);
        assert_eq!(look("2026-11-21T10:00:00Z", 16), [80]);
        assert_eq!(look("2026-11-21T10:00:01Z", 17), [0; 0]);
        assert_eq!(look("2026-11-21T10:00:02Z", 20), [95, 100]);
        assert_eq!(look("2026-11-21T10:00:03Z", 20), [0; 0]);
        assert_eq!(look("2026-11-22T10:00:00Z", 20), [80, 95, 100]);
    }

    #[test]
    fn what_finds_no_room_is_seen_again() {
        let threshold_events = ThresholdEvents::default();
        let (quota_status, now) = at("2026-11-21T10:00:00Z", 16);
        for _ in 0..WAITING_MAX {
            let (_, record) = key_of("starter");
            assert_eq!(
                threshold_events.examine(&shares(), &record, quota_status, || now),
                Ok(())
            );
        }
        let (_, record) = key_of("starter");
        assert_eq!(
            threshold_events.examine(&shares(), &record, quota_status, || now),
            Err(Full)
        );
        assert_eq!(drain(&threshold_events).len(), WAITING_MAX);
        assert_eq!(
            threshold_events.examine(&shares(), &record, quota_status, || now),
            Ok(())
        );
        assert_eq!(drain(&threshold_events), [80]);
    }

    #[test]
    fn what_is_reported_or_waits_is_not_forgotten() {
        let threshold_events = ThresholdEvents::default();
        let (_, record) = key_of("starter");
        let look = |used| {
            let (quota_status, now) = at("2026-11-21T10:00:00Z", used);
            let looked = threshold_events.examine(&shares(), &record, quota_status, || now);
            looked.unwrap();
        };
        look(16);
        let own = [threshold_events.state.lock().take().unwrap()];
        look(19);
        threshold_events.forget_all_but(&own);
        look(20);
        assert_eq!(drain(&threshold_events), [95, 100]);
        threshold_events.forget_all_but(&own);
        look(20);
        assert_eq!(drain(&threshold_events), [95, 100], "not its own");
    }

    #[tokio::test]
    async fn an_event_is_reported_when_that_is_marked_and_not_when_it_is_taken() {
        let threshold_events = ThresholdEvents::default();
        assert!(threshold_events.all_reported());
        let (_, record) = key_of("starter");
        let (quota_status, now) = at("2026-11-21T10:00:00Z", 16);
        let looked = threshold_events.examine(&shares(), &record, quota_status, || now);
        looked.unwrap();
        assert!(!threshold_events.all_reported());
        threshold_events.next().await;
        assert!(!threshold_events.all_reported());
        threshold_events.mark_reported();
        assert!(threshold_events.all_reported());
    }

    #[test]
    fn what_was_taken_and_not_reported_is_noticed_again() {
        let threshold_events = ThresholdEvents::default();
        let (_, record) = key_of("starter");
        let (quota_status, now) = at("2026-11-21T10:00:00Z", 19);
        let look = || threshold_events.examine(&shares(), &record, quota_status, || now);
        look().unwrap();
        threshold_events.state.lock().take().unwrap();
        threshold_events.forget_unreported();
        look().unwrap();
        assert_eq!(drain(&threshold_events), [95, 80]);
        assert!(threshold_events.all_reported());
    }

    #[test]
    fn days_that_are_over_are_forgotten() {
        let threshold_events = ThresholdEvents::default();
        let (_, record) = key_of("starter");
        let (quota_status, now) = at("2026-11-21T10:00:00Z", 16);
        threshold_events
            .examine(&shares(), &record, quota_status, || now)
            .unwrap();
        threshold_events.sweep("2026-11-21".parse().unwrap());
        assert_eq!(threshold_events.state.lock().seen.len(), 1);
        threshold_events.sweep("2026-11-22".parse().unwrap());
        assert_eq!(threshold_events.state.lock().seen.len(), 0);
    }
}

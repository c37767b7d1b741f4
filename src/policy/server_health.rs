//! Whether a server of an upstream gets requests: the results of checks and requests, as a pure state.
//!
//! Two judges, either of which takes a server out. **Checks** (active) run whether or not there are requests: enough failed ones
//! in a row take it out, until enough have passed. **Requests** (passive): enough failed ones in a row eject it for a pause that
//! doubles with each ejection. After the pause it gets one request at a time: the first answer that begins brings it back, the first
//! request that fails before ejects it again.
//!
//! A server starts as healthy. The case that no server is left is not handled here: the choice then falls on servers that are out
//! rather than on none.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::words::words;

/// How many checks in a row change the verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// Failed checks after which the server gets no requests.
    pub unhealthy_after: NonZeroU32,
    /// Passed checks after which it gets requests again.
    pub healthy_after: NonZeroU32,
}

/// When failing requests take a server out, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ejection {
    /// Failed requests in a row, or `None` to never eject.
    pub failures: Option<NonZeroU32>,
    /// The first pause.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
}

impl Ejection {
    /// The pause after this number of ejections without a served request between them.
    fn pause_after(&self, ejections: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(ejections);
        self.pause.saturating_mul(doubled).min(self.pause_max)
    }
}

words! {
    /// The result of a check.
    pub enum HealthCheckResult {
        /// The answer was as configured.
        Passed = "passed",
        /// The answer was another one, or late.
        Failed = "failed",
    }
}

/// A change of the state, to be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthChange {
    /// Checks fail: it gets no requests.
    Unhealthy,
    /// Checks pass again.
    Healthy,
    /// Requests failed: it gets none for this long.
    Ejected(Duration),
    /// A request was served after a pause.
    Returned,
}

/// The state of one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerHealth {
    /// Checks have taken it out.
    unhealthy: bool,
    /// Checks in a row that contradict the present verdict.
    contrary: u32,
    /// Failed requests in a row.
    failures: u32,
    /// Ejections without a served request between them.
    ejections: u32,
    /// The end of the last ejection.
    ejected_until: Option<Instant>,
    /// Requests in flight that it got since then.
    trials: u32,
}

/// A request to an ejected server, which shows whether it serves again. Names the ejection.
#[derive(Debug)]
pub struct Trial(Instant);

impl ServerHealth {
    /// Whether nothing is held against it, so that a request need not check further.
    pub fn is_unblemished(&self) -> bool {
        *self == ServerHealth::default()
    }

    /// Whether a request may be sent to it: after an ejection only one at a time. Requests that it got earlier do not count, since
    /// their answers may last.
    pub fn is_usable(&self, now: Instant) -> bool {
        let tried = match self.ejected_until {
            Some(until) => now >= until && self.trials == 0,
            None => true,
        };
        tried && !self.unhealthy
    }

    /// Whether checks have taken it out.
    pub fn is_unhealthy(&self) -> bool {
        self.unhealthy
    }

    /// Whether failing requests have ejected it, and it has not served one since.
    pub fn is_ejected(&self) -> bool {
        self.ejected_until.is_some()
    }

    /// Notes that it gets a request. Returns the trial if it is ejected, to be ended with the request.
    pub fn assigned(&mut self) -> Option<Trial> {
        let until = self.ejected_until?;
        self.trials = self.trials.saturating_add(1);
        Some(Trial(until))
    }

    /// Notes the end of a trial, which means nothing if the server was served or ejected again since.
    pub fn ended(&mut self, Trial(until): Trial) {
        if self.ejected_until == Some(until) {
            self.trials = self.trials.saturating_sub(1);
        }
    }

    /// Notes the result of a check.
    pub fn checked(
        &mut self,
        checked: HealthCheckResult,
        thresholds: Thresholds,
    ) -> Option<HealthChange> {
        let (contrary, needed, change) = match self.unhealthy {
            false => (
                HealthCheckResult::Failed,
                thresholds.unhealthy_after,
                HealthChange::Unhealthy,
            ),
            true => (
                HealthCheckResult::Passed,
                thresholds.healthy_after,
                HealthChange::Healthy,
            ),
        };
        if checked != contrary {
            self.contrary = 0;
            return None;
        }
        self.contrary += 1;
        if self.contrary < needed.get() {
            return None;
        }
        self.contrary = 0;
        self.unhealthy = !self.unhealthy;
        Some(change)
    }

    /// Notes that checks are off: only requests judge.
    pub fn unchecked(&mut self) {
        self.unhealthy = false;
        self.contrary = 0;
    }

    /// Notes that other settings apply from `now` on: an ejection lasts no longer than one of them would, and ends if they have none.
    pub fn reconfigured(&mut self, ejection: Ejection, now: Instant) {
        if ejection.failures.is_none() {
            self.served();
        } else if let Some(until) = &mut self.ejected_until {
            let latest = now + ejection.pause_after(self.ejections.saturating_sub(1));
            if latest < *until {
                *until = latest;
                self.trials = 0;
            }
        }
    }

    /// Notes an answer that has begun: the server gets requests again. It may still break off, so failures in a row remain counted.
    pub fn answered(&mut self) -> Option<HealthChange> {
        self.trials = 0;
        self.ejected_until.take().map(|_| HealthChange::Returned)
    }

    /// Notes a request that was served.
    pub fn served(&mut self) -> Option<HealthChange> {
        self.failures = 0;
        self.ejections = 0;
        self.answered()
    }

    /// Notes a request that failed, and was a trial or not. While the server is ejected only a trial after the pause counts: a request
    /// that it got earlier may fail much later, and shows nothing about the server as it is then.
    pub fn failed(
        &mut self,
        trial: Option<&Trial>,
        ejection: Ejection,
        now: Instant,
    ) -> Option<HealthChange> {
        let needed = ejection.failures?;
        if let Some(until) = self.ejected_until {
            if now < until || trial.is_none_or(|Trial(of)| *of != until) {
                return None;
            }
        } else {
            self.failures = self.failures.saturating_add(1);
            if self.failures < needed.get() {
                return None;
            }
        }
        let pause = ejection.pause_after(self.ejections);
        self.ejections = self.ejections.saturating_add(1);
        self.failures = 0;
        self.trials = 0;
        self.ejected_until = Some(now + pause);
        Some(HealthChange::Ejected(pause))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn thresholds(unhealthy_after: u32, healthy_after: u32) -> Thresholds {
        Thresholds {
            unhealthy_after: NonZeroU32::new(unhealthy_after).unwrap(),
            healthy_after: NonZeroU32::new(healthy_after).unwrap(),
        }
    }

    fn ejection(failures: u32) -> Ejection {
        Ejection {
            failures: NonZeroU32::new(failures),
            pause: SECOND,
            pause_max: 10 * SECOND,
        }
    }

    #[test]
    fn checks_take_a_server_out_and_bring_it_back_only_in_a_row() {
        use HealthCheckResult::{Failed, Passed};
        let now = Instant::now();
        let mut health = ServerHealth::default();
        for (checked, change, usable) in [
            (Failed, None, true),
            (Failed, None, true),
            (Passed, None, true),
            (Failed, None, true),
            (Failed, None, true),
            (Failed, Some(HealthChange::Unhealthy), false),
            (Failed, None, false),
            (Passed, None, false),
            (Failed, None, false),
            (Passed, None, false),
            (Passed, Some(HealthChange::Healthy), true),
        ] {
            assert_eq!(health.checked(checked, thresholds(3, 2)), change);
            assert_eq!(health.is_usable(now), usable);
        }
        assert!(health.is_unblemished());
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_a_served_request() {
        let mut now = Instant::now();
        let mut health = ServerHealth::default();
        assert_eq!(health.failed(None, ejection(2), now), None);
        let mut trials = Vec::new();
        for pause in [1, 2, 4, 8, 10, 10] {
            let pause = pause * SECOND;
            assert_eq!(
                health.failed(trials.last(), ejection(2), now),
                Some(HealthChange::Ejected(pause))
            );
            let before_its_end = now + pause - Duration::from_millis(1);
            assert!(!health.is_usable(before_its_end));
            assert_eq!(health.failed(None, ejection(2), before_its_end), None);
            now += pause;
            assert!(health.is_usable(now));
            let earlier = health.failed(trials.last(), ejection(2), now);
            assert_eq!(earlier, None, "the trial of another ejection");
            let trial = health.assigned().unwrap();
            assert!(!health.is_usable(now), "one at a time");
            let earlier = health.failed(None, ejection(2), now);
            assert_eq!(earlier, None, "sent before the ejection");
            assert!(!health.is_usable(now), "the trial is in flight");
            health.ended(trial);
            assert!(health.is_usable(now));
            trials.push(health.assigned().unwrap());
        }
        assert_eq!(health.served(), Some(HealthChange::Returned));
        assert!(health.is_unblemished() && health.is_usable(now));
        assert!(health.assigned().is_none());
        assert_eq!(health.failed(None, ejection(2), now), None);
        let first = Some(HealthChange::Ejected(SECOND));
        assert_eq!(health.failed(None, ejection(2), now), first);
        let trial = health.assigned().unwrap();
        trials.drain(..).for_each(|earlier| health.ended(earlier));
        assert!(!health.is_usable(now + SECOND), "the present trial");
        health.ended(trial);
        assert!(health.is_usable(now + SECOND));
    }

    #[test]
    fn an_ejection_lasts_no_longer_than_changed_settings_permit() {
        let now = Instant::now();
        let mut health = ServerHealth::default();
        let hours = Ejection {
            pause: 3600 * SECOND,
            pause_max: 7200 * SECOND,
            ..ejection(1)
        };
        health.failed(None, hours, now);
        let trial = health.assigned().unwrap();
        health.reconfigured(ejection(1), now + SECOND);
        assert!(!health.is_usable(now + SECOND));
        assert!(health.is_usable(now + 2 * SECOND));
        health.ended(trial);
        health.reconfigured(hours, now + SECOND);
        assert!(
            health.is_usable(now + 2 * SECOND),
            "a longer pause is for the next one"
        );
        let trial = health.assigned();
        health.failed(trial.as_ref(), hours, now + 2 * SECOND);
        assert!(!health.is_usable(now + 7201 * SECOND));
        health.reconfigured(ejection(0), now + 2 * SECOND);
        assert!(health.is_unblemished());
    }

    #[test]
    fn without_ejection_failing_requests_change_nothing() {
        let mut health = ServerHealth::default();
        for _ in 0..100 {
            assert_eq!(health.failed(None, ejection(0), Instant::now()), None);
        }
        assert!(health.is_unblemished());
    }

    #[derive(Debug, Clone, Copy)]
    enum Event {
        Check(bool),
        Request(bool),
        Wait(u64),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            any::<bool>().prop_map(Event::Check),
            any::<bool>().prop_map(Event::Request),
            (0_u64..20_000).prop_map(Event::Wait),
        ];
        proptest::collection::vec(event, 0..60)
    }

    proptest! {
        #[test]
        fn whatever_has_happened_enough_good_brings_it_back(events in events()) {
            let mut now = Instant::now();
            let mut health = ServerHealth::default();
            for event in events {
                match event {
                    Event::Check(true) => { health.checked(HealthCheckResult::Passed, thresholds(3, 2)); }
                    Event::Check(false) => { health.checked(HealthCheckResult::Failed, thresholds(3, 2)); }
                    Event::Request(true) => { health.served(); }
                    Event::Request(false) => {
                        let trial = health.assigned();
                        health.failed(trial.as_ref(), ejection(5), now);
                        trial.into_iter().for_each(|trial| health.ended(trial));
                    }
                    Event::Wait(milliseconds) => now += Duration::from_millis(milliseconds),
                }
            }
            for _ in 0..2 {
                health.checked(HealthCheckResult::Passed, thresholds(3, 2));
            }
            now += ejection(5).pause_max;
            prop_assert!(health.is_usable(now));
            health.served();
            prop_assert!(health.is_unblemished());
        }
    }
}

//! When to stop calling Redis, and when to resume: a state machine without I/O, with the time as an argument.
//!
//! Closed: requests call Redis. Open: none does; single probes follow a quarter of a second to a second apart, and at once when
//! there is a connection again; the first that succeeds closes the breaker. A server that refuses all writes again soon after it
//! accepted one (its memory use is around its maximum) is probed later each time. Invariant: while it is open, no request waits for
//! Redis, except one for its usage while there is a connection to a server that only refuses.

use std::time::{Duration, Instant};

use crate::store::status::BreakerState;

/// Lost calls in a row that open the breaker.
const LOST_MAX: u32 = 2;
/// Refused calls in a row that open the breaker, over any time: a server that rejects writes must be noticed on a quiet gateway
/// too. If one key causes the errors, the next probe closes it.
const REFUSED_MAX: u32 = 10;
/// Calls in a window before their failures count, and how long a window is.
const WINDOW_CALLS_MIN: u32 = 20;
const WINDOW: Duration = Duration::from_secs(1);
/// The shortest and the longest time between two probes.
const PROBE_MIN: Duration = Duration::from_millis(250);
const PROBE_MAX: Duration = Duration::from_secs(1);
/// After this time a probe that has not ended counts as lost: its two calls take twice the longest timeout of a call at most.
const PROBE_LASTS_MAX: Duration = Duration::from_secs(25);
/// How soon after it closed the breaker has to open again because of refused writes to wait twice as long for its next first probe,
/// and the longest such wait.
const RELAPSE: Duration = Duration::from_secs(30);
const RELAPSE_WAIT_MAX: Duration = Duration::from_secs(8);

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// A reply came to a call that wrote.
    Wrote,
    /// A reply came to a call that wrote nothing, which a server that refuses writes serves, too.
    Read,
    /// No reply came in time, or the connection broke.
    Lost,
    /// An error reply came.
    Refused,
    /// The server accepts no writes at all.
    RefusedWrites,
}

#[derive(Debug)]
enum BreakerPhase {
    Closed,
    Open {
        probe_at: Instant,
        /// When the probe under way is given up, because a panic may have ended it.
        probing_until: Option<Instant>,
    },
}

/// The breaker of one node.
#[derive(Debug)]
pub struct Breaker {
    state: BreakerPhase,
    lost_in_a_row: u32,
    refused_in_a_row: u32,
    window_began: Instant,
    calls: u32,
    failures: u32,
    /// When it last closed after it was open.
    closed_at: Option<Instant>,
    /// How long the first probe waits.
    first_wait: Duration,
}

impl Breaker {
    /// A closed breaker.
    pub fn new(now: Instant) -> Breaker {
        Breaker {
            state: BreakerPhase::Closed,
            lost_in_a_row: 0,
            refused_in_a_row: 0,
            window_began: now,
            calls: 0,
            failures: 0,
            closed_at: None,
            first_wait: PROBE_MIN,
        }
    }

    /// Whether requests may call Redis.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, BreakerPhase::Closed)
    }

    /// The state of the breaker.
    pub fn state(&self) -> BreakerState {
        match self.state {
            BreakerPhase::Closed => BreakerState::Closed,
            BreakerPhase::Open {
                probing_until: Some(_),
                ..
            } => BreakerState::HalfOpen,
            BreakerPhase::Open {
                probing_until: None,
                ..
            } => BreakerState::Open,
        }
    }

    /// Records a call's outcome. Late outcomes, while the breaker is open, are ignored.
    pub fn record(&mut self, outcome: CallOutcome, now: Instant) {
        if !self.is_closed() {
            return;
        }
        if now.duration_since(self.window_began) >= WINDOW {
            (self.window_began, self.calls, self.failures) = (now, 0, 0);
        }
        self.calls += 1;
        match outcome {
            CallOutcome::Wrote => (self.lost_in_a_row, self.refused_in_a_row) = (0, 0),
            CallOutcome::Read => self.lost_in_a_row = 0,
            CallOutcome::Lost => {
                self.lost_in_a_row += 1;
                self.failures += 1;
            }
            CallOutcome::Refused => {
                self.lost_in_a_row = 0;
                self.refused_in_a_row += 1;
                self.failures += 1;
            }
            CallOutcome::RefusedWrites => {
                let relapses = |at| now.duration_since(at) < RELAPSE;
                self.first_wait = match self.closed_at.is_some_and(relapses) {
                    true => (2 * self.first_wait).min(RELAPSE_WAIT_MAX),
                    false => PROBE_MIN,
                };
                return self.open(now + self.first_wait);
            }
        }
        let failing = self.calls >= WINDOW_CALLS_MIN && 2 * self.failures >= self.calls;
        let none_helps = self.lost_in_a_row >= LOST_MAX || self.refused_in_a_row >= REFUSED_MAX;
        if failing || none_helps {
            self.open(now + PROBE_MIN);
        }
    }

    /// Records that there is no connection: the breaker opens, and the next probe is due as soon as there is one.
    pub fn disconnected(&mut self, now: Instant) {
        match &mut self.state {
            BreakerPhase::Closed => self.open(now),
            BreakerPhase::Open { probe_at, .. } => *probe_at = now,
        }
    }

    /// Whether to probe now; if so, [`Breaker::probed`] is to follow.
    pub fn begin_probe(&mut self, now: Instant) -> bool {
        match &mut self.state {
            BreakerPhase::Open {
                probe_at,
                probing_until,
            } if probing_until.is_none_or(|until| now >= until) && now >= *probe_at => {
                *probing_until = Some(now + PROBE_LASTS_MAX);
                true
            }
            BreakerPhase::Open { .. } | BreakerPhase::Closed => false,
        }
    }

    /// Records the probe's outcome; `jitter` (0 to 1) spreads the next probe.
    pub fn probed(&mut self, outcome: CallOutcome, now: Instant, jitter: f64) {
        match outcome {
            CallOutcome::Wrote | CallOutcome::Read => {
                self.state = BreakerPhase::Closed;
                self.closed_at = Some(now);
                (self.lost_in_a_row, self.refused_in_a_row) = (0, 0);
                (self.calls, self.failures) = (0, 0);
                self.window_began = now;
            }
            CallOutcome::Lost | CallOutcome::Refused | CallOutcome::RefusedWrites => {
                if let BreakerPhase::Open {
                    probe_at,
                    probing_until,
                } = &mut self.state
                {
                    *probing_until = None;
                    *probe_at =
                        now + PROBE_MIN + (PROBE_MAX - PROBE_MIN).mul_f64(jitter.clamp(0.0, 1.0));
                }
            }
        }
    }

    fn open(&mut self, probe_at: Instant) {
        self.state = BreakerPhase::Open {
            probe_at,
            probing_until: None,
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn two_lost_calls_in_a_row_open_it_and_one_does_not() {
        let now = Instant::now();
        let mut breaker = Breaker::new(now);
        for outcome in [
            CallOutcome::Lost,
            CallOutcome::Wrote,
            CallOutcome::Lost,
            CallOutcome::Refused,
            CallOutcome::Lost,
        ] {
            breaker.record(outcome, now);
            assert!(breaker.is_closed());
        }
        breaker.record(CallOutcome::Lost, now);
        assert!(!breaker.is_closed());
    }

    #[test]
    fn half_of_twenty_calls_refused_in_a_second_open_it() {
        let now = Instant::now();
        let refuse = |calls: u32, every: Duration| {
            let mut breaker = Breaker::new(now);
            for call in 0..calls {
                let outcome = if call % 2 == 0 {
                    CallOutcome::Wrote
                } else {
                    CallOutcome::Refused
                };
                breaker.record(outcome, now + every * call);
            }
            breaker.is_closed()
        };
        assert!(refuse(19, MS));
        assert!(!refuse(20, MS));
        assert!(refuse(200, 100 * MS), "never 20 in a second");
    }

    #[test]
    fn ten_calls_refused_in_a_row_open_it_however_slowly_they_come() {
        let mut now = Instant::now();
        let mut breaker = Breaker::new(now);
        for calls in [REFUSED_MAX - 1, REFUSED_MAX] {
            for _ in 0..calls {
                assert!(breaker.is_closed());
                now += Duration::from_secs(60);
                breaker.record(CallOutcome::Refused, now);
            }
            if calls < REFUSED_MAX {
                breaker.record(CallOutcome::Wrote, now);
            }
        }
        assert!(!breaker.is_closed());
    }

    #[test]
    fn calls_that_write_nothing_do_not_hide_that_writes_are_refused() {
        let now = Instant::now();
        let mut breaker = Breaker::new(now);
        for call in 0..REFUSED_MAX {
            assert!(breaker.is_closed());
            let now = now + PROBE_MAX * call;
            breaker.record(CallOutcome::Read, now);
            breaker.record(CallOutcome::Refused, now);
        }
        assert!(!breaker.is_closed());
    }

    #[test]
    fn a_server_that_refuses_all_writes_opens_it_at_once_and_is_probed_later_after_each_relapse() {
        let mut now = Instant::now();
        let mut breaker = Breaker::new(now);
        let mut first_wait = |after: Duration| {
            now += after;
            breaker.record(CallOutcome::RefusedWrites, now);
            assert!(!breaker.is_closed());
            let opened = now;
            while !breaker.begin_probe(now) {
                now += MS;
            }
            breaker.probed(CallOutcome::Wrote, now, 0.0);
            now - opened
        };
        let waits = [0; 7].map(|_| first_wait(RELAPSE - MS).as_millis());
        assert_eq!(waits, [250, 500, 1_000, 2_000, 4_000, 8_000, 8_000]);
        assert_eq!(first_wait(RELAPSE), PROBE_MIN);
    }

    #[test]
    fn no_connection_opens_it_and_a_new_one_is_probed_at_once() {
        let now = Instant::now();
        let mut breaker = Breaker::new(now);
        assert!(breaker.is_closed());
        breaker.disconnected(now);
        assert!(!breaker.is_closed());
        assert!(breaker.begin_probe(now));
        assert!(!breaker.begin_probe(now + PROBE_MAX), "one at a time");
        assert!(breaker.begin_probe(now + PROBE_LASTS_MAX), "one was lost");
        breaker.probed(CallOutcome::Refused, now, 0.0);
        assert!(!breaker.begin_probe(now + PROBE_MIN - MS));
        assert!(breaker.begin_probe(now + PROBE_MIN));
        breaker.probed(CallOutcome::Refused, now, 0.0);
        assert!(!breaker.begin_probe(now), "it is too early");
        breaker.disconnected(now);
        assert!(breaker.begin_probe(now), "a new connection is probed");
        breaker.probed(CallOutcome::Wrote, now, 0.0);
        assert!(breaker.is_closed());
    }

    proptest! {
        #[test]
        fn only_a_probe_closes_it_and_the_next_is_due_within_a_second(
            outcomes in prop::collection::vec((0u8..3, 0u64..400), 1..100), jitter in 0.0f64..1.0,
        ) {
            let mut now = Instant::now();
            let mut breaker = Breaker::new(now);
            let mut was_open = false;
            for (outcome, wait) in outcomes {
                now += MS * wait as u32;
                let outcome = [CallOutcome::Wrote, CallOutcome::Lost, CallOutcome::Refused][outcome as usize];
                breaker.record(outcome, now);
                prop_assert!(!was_open || !breaker.is_closed());
                was_open |= !breaker.is_closed();
            }
            if was_open {
                now += PROBE_MAX;
                prop_assert!(breaker.begin_probe(now));
                breaker.probed(CallOutcome::Lost, now, jitter);
                prop_assert!(!breaker.is_closed() && !breaker.begin_probe(now));
                prop_assert!(breaker.begin_probe(now + PROBE_MAX));
                breaker.probed(CallOutcome::Wrote, now, jitter);
                prop_assert!(breaker.is_closed());
            }
        }

        #[test]
        fn answers_alone_never_open_it(waits in prop::collection::vec(0u64..100, 0..200)) {
            let mut now = Instant::now();
            let mut breaker = Breaker::new(now);
            for wait in waits {
                now += MS * wait as u32;
                breaker.record(CallOutcome::Wrote, now);
                prop_assert!(breaker.is_closed());
            }
        }
    }
}

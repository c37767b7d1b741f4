//! The last hour of one gateway in samples of ten seconds, for plots without Prometheus.
//!
//! A sample says what the metric families gained since the one before. There are [`SAMPLES_MAX`] at most, 64 KiB
//! in all whatever happens; the history begins with the process and ends with it.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;

use super::metrics::Metrics;
use super::reading::{Durations, series};

/// Between two samples.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// An hour of them.
pub const SAMPLES_MAX: usize = 360;

/// What became of requests, in the few kinds that a plot can tell apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Answered {
    /// Served, and led to HTTPS.
    pub served: u64,
    /// Refused for what they were: 400 to 405, 413, 414, 431.
    pub refused: u64,
    /// 429.
    pub limited: u64,
    /// 500, and answers that were cut: failures of ours or the upstream's.
    pub failed: u64,
    /// The client went away.
    pub client_closed: u64,
}

impl Answered {
    /// All requests that the family counts.
    fn of(metrics: &Metrics) -> Answered {
        let mut sum = Answered::default();
        for one in series(&metrics.requests) {
            let place = match one.label("outcome") {
                "served" | "redirected" => &mut sum.served,
                "RATE_LIMIT_EXCEEDED" => &mut sum.limited,
                "INTERNAL_ERROR" | "cut" => &mut sum.failed,
                "client_closed" => &mut sum.client_closed,
                // Every other code of the contract refuses a request for what it is.
                _ => &mut sum.refused,
            };
            *place += one.count();
        }
        sum
    }

    fn since(self, earlier: Answered) -> Answered {
        Answered {
            served: self.served.saturating_sub(earlier.served),
            refused: self.refused.saturating_sub(earlier.refused),
            limited: self.limited.saturating_sub(earlier.limited),
            failed: self.failed.saturating_sub(earlier.failed),
            client_closed: self.client_closed.saturating_sub(earlier.client_closed),
        }
    }
}

/// Parts of durations, in seconds, as far as the buckets of the metric families tell; `None` where there were none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// The median.
    pub p50: Option<f64>,
    /// What 95 of 100 do not exceed.
    pub p95: Option<f64>,
    /// What 99 of 100 do not exceed.
    pub p99: Option<f64>,
}

impl Quantiles {
    fn of(durations: &Durations) -> Quantiles {
        Quantiles {
            p50: durations.quantile(0.5),
            p95: durations.quantile(0.95),
            p99: durations.quantile(0.99),
        }
    }
}

/// What happened in a span of some ten seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sample {
    /// When the span ended.
    pub at: Timestamp,
    /// How long it was.
    pub seconds: f64,
    /// Requests that ended in it, by what became of them.
    pub requests: Answered,
    /// From a request's header to the end of its answer.
    pub duration_seconds: Quantiles,
    /// Of waits for the store.
    pub store_seconds: Quantiles,
    /// Requests being answered at its end.
    pub in_flight: i64,
    /// Client connections at its end.
    pub connections: i64,
}

/// What the families stood at.
#[derive(Debug, Default)]
struct Reading {
    requests: Answered,
    durations: Durations,
    store: Durations,
}

impl Reading {
    fn of(metrics: &Metrics) -> Reading {
        Reading {
            requests: Answered::of(metrics),
            durations: Durations::of(&metrics.request_duration),
            store: Durations::of(&metrics.store_duration),
        }
    }
}

/// The last hour.
#[derive(Debug, Default)]
pub struct History {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Reading,
    samples: VecDeque<Sample>,
}

impl History {
    /// Ends a sample at `at` that began `span` before. Costs a walk over some families: a millisecond at most.
    pub fn note(&self, metrics: &Metrics, at: Timestamp, span: Duration) {
        let now = Reading::of(metrics);
        let mut state = self.state.lock();
        let last = &state.last;
        let sample = Sample {
            at,
            seconds: span.as_secs_f64(),
            requests: now.requests.since(last.requests),
            duration_seconds: Quantiles::of(&now.durations.since(&last.durations)),
            store_seconds: Quantiles::of(&now.store.since(&last.store)),
            in_flight: metrics.in_flight.get(),
            connections: metrics.connections.get(),
        };
        state.last = now;
        if state.samples.len() == SAMPLES_MAX {
            state.samples.pop_front();
        }
        state.samples.push_back(sample);
    }

    /// The samples, the oldest first.
    pub fn samples(&self) -> Vec<Sample> {
        self.state.lock().samples.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(metrics: &Metrics, outcome: &str, times: u64) {
        let labels = ["/a", "pro", outcome];
        metrics.requests.with_label_values(&labels).inc_by(times);
    }

    #[test]
    fn a_sample_says_what_came_since_the_one_before() {
        let (metrics, history) = (Metrics::new().unwrap(), History::default());
        let note = || {
            history.note(&metrics, Timestamp::UNIX_EPOCH, SAMPLE_INTERVAL);
            *history.samples().last().unwrap()
        };
        assert_eq!(note().requests, Answered::default());
        for (outcome, times) in [
            ("served", 100),
            ("redirected", 1),
            ("RATE_LIMIT_EXCEEDED", 20),
            ("TIER_INSUFFICIENT", 3),
            ("BAD_REQUEST", 4),
            ("INTERNAL_ERROR", 5),
            ("cut", 6),
            ("client_closed", 7),
        ] {
            count(&metrics, outcome, times);
        }
        let histogram = metrics.request_duration.with_label_values(&["/a"]);
        histogram.observe(0.2);
        metrics.in_flight.set(3);
        let sample = note();
        let expected = Answered {
            served: 101,
            refused: 7,
            limited: 20,
            failed: 11,
            client_closed: 7,
        };
        assert_eq!((sample.requests, sample.in_flight), (expected, 3));
        let median = sample.duration_seconds.p50.unwrap();
        assert!(median > 0.1 && median < 0.25, "{median}");
        assert_eq!(sample.store_seconds.p50, None);
        let quiet = note();
        assert_eq!(quiet.requests, Answered::default());
        assert_eq!(quiet.duration_seconds.p50, None);
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let (metrics, history) = (Metrics::new().unwrap(), History::default());
        for second in 0..=SAMPLES_MAX {
            let at = Timestamp::from_second(second as i64).unwrap();
            history.note(&metrics, at, SAMPLE_INTERVAL);
        }
        let samples = history.samples();
        assert_eq!(samples.len(), SAMPLES_MAX);
        assert_eq!(samples[0].at, Timestamp::from_second(1).unwrap());
        assert!(size_of::<Sample>() * SAMPLES_MAX <= 64 * 1024);
    }
}

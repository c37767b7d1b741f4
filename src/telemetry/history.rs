//! The last hour of one gateway in samples of ten seconds, for plots without Prometheus.
//!
//! A sample has the increase of the metric families since the previous one. There are at most [`SAMPLES_MAX`], 64 KiB in total.
//! The history begins and ends with the process.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;

use super::metrics::Metrics;
use super::reading::{Durations, series};

/// The time between two samples.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// The number of samples: one hour.
pub const SAMPLES_MAX: usize = 360;

/// The outcomes of requests, in the few kinds that a plot can show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Answered {
    /// Served, or redirected to HTTPS.
    pub served: u64,
    /// Refused as invalid or not permitted: 400 to 405, 413, 414, 431; also under maintenance.
    pub refused: u64,
    /// 429.
    pub limited: u64,
    /// 500 and cut answers: failures of the gateway or the upstream.
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
                // `maintenance`, and every other code of the contract.
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

/// Quantiles of durations, in seconds, estimated from the buckets of the metric families; `None` without durations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// The median.
    pub p50: Option<f64>,
    /// The 95th percentile.
    pub p95: Option<f64>,
    /// The 99th percentile.
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

/// One sample, of about ten seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sample {
    /// The end of the sample.
    pub at: Timestamp,
    /// The length of the sample.
    pub seconds: f64,
    /// The requests that ended in it, by outcome.
    pub requests: Answered,
    /// The time from a request's header to the end of its answer.
    pub duration_seconds: Quantiles,
    /// The time that requests waited for the store.
    pub store_seconds: Quantiles,
    /// Requests in flight at its end.
    pub in_flight: i64,
    /// Client connections at its end.
    pub connections: i64,
}

/// The last hour.
#[derive(Debug, Default)]
pub struct History {
    state: Mutex<HistoryState>,
}

#[derive(Debug, Default)]
struct HistoryState {
    /// The values of the families at the end of the last sample.
    last: (Answered, Durations, Durations),
    samples: VecDeque<Sample>,
}

impl History {
    /// Ends a sample at `at` that began `span` before. Costs a walk over some families, at most a millisecond.
    pub fn note(&self, metrics: &Metrics, at: Timestamp, span: Duration) {
        let requests = Answered::of(metrics);
        let durations = Durations::of(&metrics.request_duration);
        let store = Durations::of(&metrics.store_duration);
        let mut state = self.state.lock();
        let (last_requests, last_durations, last_store) = &state.last;
        let sample = Sample {
            at,
            seconds: span.as_secs_f64(),
            requests: requests.since(*last_requests),
            duration_seconds: Quantiles::of(&durations.since(last_durations)),
            store_seconds: Quantiles::of(&store.since(last_store)),
            in_flight: metrics.in_flight.get(),
            connections: metrics.connections.get(),
        };
        state.last = (requests, durations, store);
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
    fn a_sample_shows_what_came_since_the_one_before() {
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
            ("maintenance", 8),
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
            refused: 15,
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

//! Reading metric families back, to show them without Prometheus.

use prometheus::core::Collector;
use prometheus::proto::Metric;

/// One counter or gauge with its labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Series(Metric);

impl Series {
    /// The value of a label; empty if there is no such label.
    pub fn label(&self, name: &str) -> &str {
        let mut labels = self.0.get_label().iter();
        let label = labels.find(|label| label.name() == name);
        label.map_or("", |label| label.value())
    }

    /// The present value as a whole number, which it is in all families that are read.
    pub fn count(&self) -> u64 {
        // A metric is a counter or a gauge; the value of the other is 0. Whole, not negative, and far below 2^53.
        (self.0.get_counter().get_value() + self.0.get_gauge().get_value()) as u64
    }
}

/// Every series of a family of counters or gauges. Costs a lock and a copy of the labels.
pub fn series(family: &impl Collector) -> Vec<Series> {
    let families = family.collect();
    let metrics = families.iter().flat_map(|family| family.get_metric());
    metrics.cloned().map(Series).collect()
}

/// The contents of a histogram, all its series together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Durations {
    /// Upper bounds in seconds, rising, with the number of durations up to each.
    up_to: Vec<(f64, u64)>,
    /// All durations.
    count: u64,
}

impl Durations {
    /// Reads a family of histograms that share their buckets.
    pub fn of(family: &impl Collector) -> Durations {
        let mut sum = Durations::default();
        for family in family.collect() {
            for metric in family.get_metric() {
                let histogram = metric.get_histogram();
                sum.count += histogram.get_sample_count();
                for (place, bucket) in histogram.get_bucket().iter().enumerate() {
                    let (bound, count) = (bucket.upper_bound(), bucket.cumulative_count());
                    match sum.up_to.get_mut(place) {
                        Some((_, known)) => *known += count,
                        None => sum.up_to.push((bound, count)),
                    }
                }
            }
        }
        sum
    }

    /// The increase since `earlier`.
    pub fn since(&self, earlier: &Durations) -> Durations {
        let before = |place: usize| earlier.up_to.get(place).map_or(0, |(_, count)| *count);
        let up_to = self.up_to.iter().enumerate();
        Durations {
            up_to: up_to
                .map(|(place, (bound, count))| (*bound, count.saturating_sub(before(place))))
                .collect(),
            count: self.count.saturating_sub(earlier.count),
        }
    }

    /// The quantile (0 to 1) of the durations in seconds, estimated like Prometheus' `histogram_quantile`: durations are assumed to be
    /// spread evenly within a bucket; beyond the last bucket, its bound. `None` without durations.
    pub fn quantile(&self, part: f64) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        let rank = part * self.count as f64;
        let (mut lower, mut below) = (0.0, 0);
        for (bound, count) in &self.up_to {
            if *count as f64 >= rank && *count > below {
                let within = (rank - below as f64) / (*count - below) as f64;
                return Some(lower + (bound - lower) * within.clamp(0.0, 1.0));
            }
            (lower, below) = (*bound, *count);
        }
        Some(lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::Metrics;

    #[test]
    fn series_are_read_with_their_labels() {
        let metrics = Metrics::new().unwrap();
        let labels = ["/a", "pro", "served"];
        metrics.requests.with_label_values(&labels).inc_by(3);
        let labels = ["data", "10.0.0.1:9000"];
        metrics.upstream_server_up.with_label_values(&labels).set(1);
        let requests = series(&metrics.requests);
        assert_eq!(requests.len(), 1);
        let of = |name| requests[0].label(name);
        assert_eq!(
            (of("endpoint"), of("tier"), of("outcome"), of("none")),
            ("/a", "pro", "served", "")
        );
        assert_eq!(requests[0].count(), 3);
        let up = series(&metrics.upstream_server_up);
        assert_eq!((up[0].label("server"), up[0].count()), ("10.0.0.1:9000", 1));
    }

    #[test]
    fn quantiles_lie_within_their_bucket_and_count_only_what_came_since() {
        let metrics = Metrics::new().unwrap();
        let observe = |endpoint: &str, seconds: f64| {
            let histogram = metrics.request_duration.with_label_values(&[endpoint]);
            histogram.observe(seconds);
        };
        assert_eq!(Durations::of(&metrics.request_duration).quantile(0.5), None);
        for _ in 0..100 {
            observe("/a", 20.0);
        }
        let before = Durations::of(&metrics.request_duration);
        for _ in 0..90 {
            observe("/a", 0.002);
        }
        for _ in 0..10 {
            observe("/b", 60.0);
        }
        let since = Durations::of(&metrics.request_duration).since(&before);
        let median = since.quantile(0.5).unwrap();
        assert!(median > 0.001 && median < 0.0025, "{median}");
        assert_eq!(since.quantile(0.9), Some(0.0025));
        // Beyond the last bucket nothing more is known.
        assert_eq!(since.quantile(0.99), Some(30.0));
        assert_eq!(since.since(&since).quantile(0.5), None);
    }
}

//! The counters of the gateway's limits.

use prometheus::IntCounterVec;

use crate::policy::limit_hit::LimitHit;

/// How often each limit was hit.
#[derive(Debug, Clone)]
pub struct LimitHits(IntCounterVec);

impl LimitHits {
    /// Counts in `family`, whose one label is the limit's name. The series are created at once, so that Prometheus sees the first hit
    /// as an increase.
    pub fn new(family: IntCounterVec) -> LimitHits {
        for name in LimitHit::WORDS {
            family.with_label_values(&[name]);
        }
        LimitHits(family)
    }

    /// Counts a hit.
    pub fn note(&self, limit: LimitHit) {
        self.0.with_label_values(&[limit.as_str()]).inc();
    }
}

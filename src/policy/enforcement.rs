//! Whether the limits of a tier refuse or only count: shadow mode.
//!
//! In shadow, steps 6 to 8 of the contract let every request pass and record what they would have refused. Steps 1 to 5 always
//! refuse, because a request without a valid key or endpoint has no tier.

use super::words::words;

words! {
    /// How a request is treated that a limit of its tier would refuse (`enforce` of a tier).
    pub enum Enforcement {
        /// The request is refused.
        Enforced = "true",
        /// The request is served, charged and reported.
        Shadow = "false",
    }

    /// A violation of a limit of steps 6 to 8 that a tier in shadow only records: its word is in the access log and in the metrics.
    #[derive(PartialOrd, Ord)]
    pub enum ShadowViolation {
        /// Step 6: the tier does not include the endpoint.
        Tier = "tier",
        /// Step 7: the key sends requests faster than its tier allows.
        Burst = "burst",
        /// Step 7: too many requests of the key are in flight.
        Concurrent = "concurrent",
        /// Step 8: the daily quota is used up.
        Daily = "daily",
    }
}

impl Enforcement {
    /// The count of units that a charge must not exceed, or `None` for no bound.
    pub fn bound(self, limit: u64) -> Option<u64> {
        match self {
            Enforcement::Enforced => Some(limit),
            Enforcement::Shadow => None,
        }
    }

    /// Whether a request of `cost` units is granted after `used` units: every store decides a charge by this rule, atomically.
    pub fn has_room(self, used: u64, cost: u64, limit: u64) -> bool {
        self.bound(limit)
            .is_none_or(|bound| used.saturating_add(cost) <= bound)
    }

    /// The violation of the quota by a request that raised the count to `used`. An enforced tier never exceeds its limit.
    pub fn quota_violation(self, used: u64, limit: u64) -> Option<ShadowViolation> {
        match self {
            Enforcement::Enforced => None,
            Enforcement::Shadow => (used > limit).then_some(ShadowViolation::Daily),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shadow_tier_counts_without_bound_and_records_what_the_quota_would_have_refused() {
        assert_eq!(Enforcement::Shadow.bound(5), None);
        assert_eq!(Enforcement::Shadow.quota_violation(5, 5), None);
        let shadow_violation = Enforcement::Shadow.quota_violation(6, 5);
        assert_eq!(shadow_violation.map(ShadowViolation::as_str), Some("daily"));
        assert_eq!(Enforcement::Enforced.bound(5), Some(5));
        assert_eq!(Enforcement::Enforced.quota_violation(6, 5), None);
    }

    #[test]
    fn a_day_has_room_up_to_its_limit_or_without_end() {
        for (used, cost, room) in [(0, 5, true), (4, 1, true), (4, 2, false), (5, 1, false)] {
            assert_eq!(Enforcement::Enforced.has_room(used, cost, 5), room);
            assert!(Enforcement::Shadow.has_room(used, cost, 5));
        }
    }
}

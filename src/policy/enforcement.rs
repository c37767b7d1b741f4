//! Whether the limits of a tier refuse or only count: shadow mode.
//!
//! In shadow, steps 6 to 8 of the contract let everything pass and say what they would have refused; steps 1 to 5 refuse
//! as ever: who is nobody, and what is nothing, has no tier.

/// What becomes of a request that a limit of its tier would refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcement {
    /// It is refused.
    Enforced,
    /// It is served, charged and reported.
    Shadow,
}

/// A refusal of steps 6 to 8 that a shadow tier did not make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waived {
    /// Step 6: the tier does not include the endpoint.
    Tier,
    /// Step 7: the key sends requests faster than its tier allows.
    Burst,
    /// Step 7: too many requests of the key are under way.
    Concurrent,
    /// Step 8: the daily quota is used up.
    Daily,
}

impl Waived {
    /// The word in the access log and in the metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Waived::Tier => "tier",
            Waived::Burst => "burst",
            Waived::Concurrent => "concurrent",
            Waived::Daily => "daily",
        }
    }
}

impl Enforcement {
    /// The units that a charge may take a key to: `None` is without bound.
    pub fn bound(self, limit: u64) -> Option<u64> {
        match self {
            Enforcement::Enforced => Some(limit),
            Enforcement::Shadow => None,
        }
    }

    /// What the quota would have refused of a request that took the count to `used`. An enforced one was not granted.
    pub fn waived_by_quota(self, used: u64, limit: u64) -> Option<Waived> {
        match self {
            Enforcement::Enforced => None,
            Enforcement::Shadow => (used > limit).then_some(Waived::Daily),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shadow_tier_counts_without_bound_and_says_what_the_quota_would_have_refused() {
        assert_eq!(Enforcement::Shadow.bound(5), None);
        assert_eq!(Enforcement::Shadow.waived_by_quota(5, 5), None);
        let waived = Enforcement::Shadow.waived_by_quota(6, 5);
        assert_eq!(waived.map(Waived::as_str), Some("daily"));
        assert_eq!(Enforcement::Enforced.bound(5), Some(5));
        assert_eq!(Enforcement::Enforced.waived_by_quota(6, 5), None);
    }
}

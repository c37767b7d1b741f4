//! The price of a tier, and the tier whose price a day has.

use crate::config::Config;
use crate::store::{DayUsage, Totals};

/// The price of a month of a tier, in cents of US dollars.
pub(super) fn price_cents(config: &Config, tier: &str) -> Option<u64> {
    config.tier(&tier.parse().ok()?)?.price_cents
}

/// The tier by which a day is billed: the most expensive one in which units stay charged; if all were refunded, the most expensive
/// one that was charged; among equal prices, the first by name.
pub(super) fn billed_tier<'u>(config: &Config, usage: &'u DayUsage) -> Option<&'u str> {
    let charged = usage.tiers.iter();
    let charged = charged.filter(|(_, totals)| totals.requests > 0 || totals.net() > 0);
    let dearest = charged.min_by_key(|(tier, totals)| {
        let price = price_cents(config, tier);
        (totals.net() <= 0, std::cmp::Reverse(price), *tier)
    });
    dearest.map(|(tier, _)| tier.as_str())
}

/// The units of a day above the limit, by tier: of the billed tier as many as it has, then of the others by name.
pub(super) fn over_by_tier<'u>(
    usage: &'u DayUsage,
    billed: &'u str,
) -> impl Iterator<Item = (&'u str, u64)> {
    let others = usage.tiers.keys().map(String::as_str);
    let others = others.filter(move |tier| *tier != billed);
    let mut left = usage.over;
    std::iter::once(billed)
        .chain(others)
        .filter_map(move |tier| {
            let unattributed = if tier == billed {
                usage.unattributed
            } else {
                0
            };
            let units = usage.tiers.get(tier).map_or(0, Totals::net) + unattributed;
            let over = left.min(u64::try_from(units).unwrap_or(0));
            left -= over;
            (over > 0).then_some((tier, over))
        })
}

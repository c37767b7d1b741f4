//! A key's day in the ledger: the endpoint and tier of each unit, and the refused requests.
//!
//! Invariant, for every store, key and day: the units charged minus those refunded, summed over endpoints (or over
//! tiers), plus [`DayUsage::unattributed`] are [`DayUsage::used`]. A day is closed when the settle window
//! ([`Keeping`](crate::policy::store_settings::Keeping)) after its end is over: units settled later become an [`Adjustment`] with the
//! date of their settlement, and the day is not changed.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use jiff::Timestamp;
use jiff::civil::Date;
use serde::Serialize;

use super::sqlite::signed;
use crate::policy::api_key::KeyId;
use crate::policy::key_record::{KeyRecord, TierName};

/// The ledger's endpoint for requests that matched none. Not a path, so that no endpoint has this name.
pub static NO_ENDPOINT: LazyLock<Arc<str>> = LazyLock::new(|| "none".into());
/// The tier of units charged by an older version of this program, which did not record it. Not a valid tier name.
pub const UNKNOWN_TIER: &str = "?";

/// Why a request of a known key was refused without a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalReason {
    /// 404: no endpoint has the path; counted under [`NO_ENDPOINT`].
    NotFound,
    /// 405: the endpoint does not take the method.
    Method,
    /// 403: the tier does not include the endpoint.
    Tier,
    /// 429: more requests at once than the tier's burst limit.
    Burst,
    /// 429: more requests in flight than the tier's concurrency limit.
    Concurrent,
    /// 429: the daily quota is used up.
    DailyQuota,
}

/// The totals of one key, day, tier and endpoint, or the sum of several such.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Requests charged.
    pub requests: u64,
    /// Units charged for them.
    pub charged: u64,
    /// Units refunded.
    pub refunded: u64,
    /// Requests refused because of the tier.
    pub refused_tier: u64,
    /// Requests refused because of the daily quota.
    pub refused_quota: u64,
    /// Requests refused because of the burst limit.
    pub refused_burst: u64,
    /// Requests refused because of the concurrency limit.
    pub refused_concurrent: u64,
    /// Requests refused because no endpoint has the path.
    pub refused_not_found: u64,
    /// Requests refused because the endpoint does not take the method.
    pub refused_method: u64,
}

impl Totals {
    /// The number of totals. Later versions may append more to the stored order; the hashes of closed days then need another canonical
    /// form (`chain::ROW_NUMBERS`).
    pub const NUMBERS: usize = 9;

    /// The totals in the order in which they are stored.
    pub fn numbers(mut self) -> [u64; Totals::NUMBERS] {
        self.fields().map(|number| *number)
    }

    /// The totals from their stored order.
    pub fn of_numbers(numbers: [u64; Totals::NUMBERS]) -> Totals {
        let mut totals = Totals::default();
        for (field, number) in totals.fields().into_iter().zip(numbers) {
            *field = number;
        }
        totals
    }

    fn fields(&mut self) -> [&mut u64; Totals::NUMBERS] {
        [
            &mut self.requests,
            &mut self.charged,
            &mut self.refunded,
            &mut self.refused_tier,
            &mut self.refused_quota,
            &mut self.refused_burst,
            &mut self.refused_concurrent,
            &mut self.refused_not_found,
            &mut self.refused_method,
        ]
    }

    /// These totals, each number combined with that of others.
    pub fn with(mut self, others: &Totals, combine: impl Fn(u64, u64) -> u64) -> Totals {
        for (number, other) in self.fields().into_iter().zip(others.numbers()) {
            *number = combine(*number, other);
        }
        self
    }

    /// Adds other totals.
    pub fn add(&mut self, others: &Totals) {
        *self = self.with(others, u64::saturating_add);
    }

    /// Counts refused requests.
    pub fn refuse(&mut self, refusal: RefusalReason, requests: u64) {
        let number = match refusal {
            RefusalReason::NotFound => &mut self.refused_not_found,
            RefusalReason::Method => &mut self.refused_method,
            RefusalReason::Tier => &mut self.refused_tier,
            RefusalReason::Burst => &mut self.refused_burst,
            RefusalReason::Concurrent => &mut self.refused_concurrent,
            RefusalReason::DailyQuota => &mut self.refused_quota,
        };
        *number = number.saturating_add(requests);
    }

    /// Requests refused for any reason.
    pub fn refused(&self) -> u64 {
        let [_, _, _, reasons @ ..] = self.numbers();
        reasons.iter().sum()
    }

    /// Units charged minus units refunded; negative if only refunds are known.
    pub fn net(&self) -> i64 {
        signed(self.charged).saturating_sub(signed(self.refunded))
    }
}

/// The largest limit and grants by which the charges of a key's day were decided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ceiling {
    /// The limit in units, grants included; [`UNBOUNDED`](super::UNBOUNDED) if a charge only counted, 0 if unknown.
    pub limit: u64,
    /// The granted ones among them.
    pub granted: u64,
}

/// The largest limit of a bounded ceiling: databases store [`UNBOUNDED`](super::UNBOUNDED) as `i64::MAX`, the next number.
const BOUNDED_MAX: u64 = i64::MAX as u64 - 1;

impl Ceiling {
    /// The ceiling of a charge: its limit, and the units granted to its key for the day.
    pub fn of(record: &KeyRecord, date: Date, limit: u64) -> Ceiling {
        Ceiling {
            limit,
            granted: record.grants.get(&date).copied().unwrap_or(0),
        }
    }

    /// The larger limit and the larger grants of two ceilings.
    pub fn max(self, other: Ceiling) -> Ceiling {
        Ceiling {
            limit: self.limit.max(other.limit),
            granted: self.granted.max(other.granted),
        }
    }

    /// The limit, if it is known and not unbounded.
    pub fn bound(self) -> Option<u64> {
        Some(self.limit).filter(|limit| (1..=BOUNDED_MAX).contains(limit))
    }
}

/// The numbers of a row of the ledger.
pub const ROW_LENGTH: usize = Totals::NUMBERS + 2;

/// The totals of a row of the ledger and the ceiling of its charges, or those to be added to it.
pub type RowTotals = (Totals, Ceiling);

/// The numbers of a row in the order in which they are stored: the totals, the largest limit, and the granted units in it.
pub fn numbers_of((totals, ceiling): RowTotals) -> [u64; ROW_LENGTH] {
    let totals = totals.numbers().into_iter();
    let mut numbers = totals.chain([ceiling.limit, ceiling.granted]);
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

/// The row that has these numbers.
pub fn row_of([totals @ .., limit, granted]: [u64; ROW_LENGTH]) -> RowTotals {
    (Totals::of_numbers(totals), Ceiling { limit, granted })
}

/// Adds to a row: the totals, and the larger ceiling.
pub fn add_row((totals, ceiling): &mut RowTotals, added: RowTotals) {
    totals.add(&added.0);
    *ceiling = ceiling.max(added.1);
}

/// One entry of the ledger as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// The tier of the requests; `None` if an older version wrote the entry.
    pub tier: Option<TierName>,
    /// The endpoint's pattern, or [`NO_ENDPOINT`].
    pub endpoint: String,
    /// The totals.
    pub totals: Totals,
    /// The ceiling of its charges.
    pub ceiling: Ceiling,
}

/// Units that were settled after their day was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Adjustment {
    /// When they were settled, rounded down to a quarter of an hour: no zone's midnight falls between two quarters.
    pub came: Timestamp,
    /// Units charged minus units refunded.
    pub units: i64,
}

/// [`Adjustment::came`] is rounded down to a multiple of this.
pub const ADJUSTMENT_STEP_SECONDS: i64 = 900;

/// The ledger of one key on one day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DayUsage {
    /// The day.
    pub date: Date,
    /// The key.
    pub key: KeyId,
    /// Units charged minus units refunded, without the adjustments: what the quota counted when the day was closed.
    pub used: u64,
    /// Units of `used` whose endpoint is unknown: a live gateway records it within a second, one that died did not. Negative if a
    /// gateway died between refunding units and recording their endpoint.
    pub unattributed: i64,
    /// The largest limit of a charge of the day; `None` if a tier in shadow charged, or only an older version.
    pub limit: Option<u64>,
    /// The units of it that were granted in addition to the tier's.
    pub granted: u64,
    /// Units used above the limit: served while the store was unavailable. Never billed.
    pub over: u64,
    /// The totals of each endpoint; up to a second older than `used`.
    pub endpoints: BTreeMap<String, Totals>,
    /// The totals by the key's tier at the request.
    pub tiers: BTreeMap<String, Totals>,
    /// Units settled after the day was closed, in the order of their settlement.
    pub adjustments: Vec<Adjustment>,
}

impl DayUsage {
    /// The day from its entries. `used` is the store's count, with the adjustments; `None` if there is no count but the entries.
    pub fn of_cells(
        (date, key): (Date, KeyId),
        used: Option<i64>,
        cells: impl IntoIterator<Item = Cell>,
        adjustments: Vec<Adjustment>,
    ) -> DayUsage {
        let (mut endpoints, mut tiers) = (BTreeMap::new(), BTreeMap::new());
        let (mut ceiling, mut attributed) = (Ceiling::default(), 0_i64);
        for cell in cells {
            let tier = cell
                .tier
                .map_or_else(|| UNKNOWN_TIER.to_owned(), |tier| tier.to_string());
            let sums: [(&mut BTreeMap<String, Totals>, String); 2] =
                [(&mut endpoints, cell.endpoint), (&mut tiers, tier)];
            for (sums, name) in sums {
                sums.entry(name).or_default().add(&cell.totals);
            }
            ceiling = ceiling.max(cell.ceiling);
            attributed = attributed.saturating_add(cell.totals.net());
        }
        let adjusted: i64 = adjustments.iter().map(|adjustment| adjustment.units).sum();
        let counted = used.map_or(attributed, |used| used.saturating_sub(adjusted));
        let used = u64::try_from(counted).unwrap_or(0);
        let over = ceiling
            .bound()
            .map_or(0, |limit| used.saturating_sub(limit));
        DayUsage {
            date,
            key,
            used,
            unattributed: signed(used).saturating_sub(attributed),
            limit: ceiling.bound(),
            granted: ceiling.granted,
            over,
            endpoints,
            tiers,
            adjustments,
        }
    }

    /// The sum over endpoints.
    pub fn totals(&self) -> Totals {
        let mut sum = Totals::default();
        self.endpoints.values().for_each(|totals| sum.add(totals));
        sum
    }

    /// Units settled after the day was closed.
    pub fn adjusted(&self) -> i64 {
        self.adjustments
            .iter()
            .map(|adjustment| adjustment.units)
            .sum()
    }
}

/// A key's day with its faults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Proof {
    /// The day as it was read for the proof.
    pub usage: DayUsage,
    /// The broken invariants, a sentence each; empty if there are none.
    pub faults: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::key_record::tests::key_of;

    fn cell(tier: Option<&str>, endpoint: &str, charged: u64, limit: u64) -> Cell {
        Cell {
            tier: tier.map(|tier| tier.parse().unwrap()),
            endpoint: endpoint.into(),
            totals: Totals {
                requests: charged,
                charged,
                refunded: 1,
                ..Totals::default()
            },
            ceiling: Ceiling { limit, granted: 2 },
        }
    }

    fn day(used: Option<i64>, adjustments: Vec<Adjustment>) -> DayUsage {
        let (_, record) = key_of("pro");
        let cells = [
            cell(Some("pro"), "/a", 5, 10),
            cell(Some("pro"), "/b", 3, 10),
            cell(None, "/a", 2, 0),
        ];
        DayUsage::of_cells(
            ("2026-11-21".parse().unwrap(), record.id),
            used,
            cells,
            adjustments,
        )
    }

    #[test]
    fn a_day_adds_up_by_endpoint_and_by_tier_and_what_no_endpoint_has_is_unattributed() {
        let usage = day(Some(9), Vec::new());
        assert_eq!((usage.used, usage.unattributed, usage.over), (9, 2, 0));
        assert_eq!(usage.endpoints["/a"].net(), 5);
        assert_eq!(usage.tiers["pro"].net(), 6);
        assert_eq!(usage.tiers[UNKNOWN_TIER].net(), 1);
        assert_eq!((usage.limit, usage.granted), (Some(10), 2));
        for sums in [&usage.endpoints, &usage.tiers] {
            let attributed: i64 = sums.values().map(Totals::net).sum();
            assert_eq!(attributed + usage.unattributed, 9);
        }
        assert_eq!(day(None, Vec::new()).unattributed, 0);
        assert_eq!(day(Some(5), Vec::new()).unattributed, -2);
    }

    #[test]
    fn units_above_the_limit_are_over_and_late_ones_stay_out_of_the_day() {
        assert_eq!(day(Some(13), Vec::new()).over, 3);
        let came = Timestamp::UNIX_EPOCH;
        let late = day(Some(13), vec![Adjustment { came, units: 4 }]);
        assert_eq!((late.used, late.over, late.adjusted()), (9, 0, 4));
    }

    #[test]
    fn a_day_with_a_charge_that_only_counted_has_no_limit_and_nothing_is_over() {
        let (_, record) = key_of("pro");
        for unbounded in [crate::store::UNBOUNDED, i64::MAX as u64] {
            let cells = [
                cell(Some("pro"), "/a", 50, 10),
                cell(Some("free"), "/a", 9, unbounded),
            ];
            let place = ("2026-11-21".parse().unwrap(), record.id);
            let usage = DayUsage::of_cells(place, None, cells, Vec::new());
            assert_eq!((usage.used, usage.limit, usage.over), (57, None, 0));
        }
    }

    #[test]
    fn every_reason_has_a_number_of_its_own() {
        let mut totals = Totals::default();
        let reasons = [
            RefusalReason::NotFound,
            RefusalReason::Method,
            RefusalReason::Tier,
            RefusalReason::Burst,
            RefusalReason::Concurrent,
            RefusalReason::DailyQuota,
        ];
        for (times, reason) in reasons.into_iter().enumerate() {
            totals.refuse(reason, times as u64 + 1);
        }
        assert_eq!(totals.numbers(), [0, 0, 0, 3, 6, 4, 5, 1, 2]);
        assert_eq!(totals.refused(), 21);
        assert_eq!(Totals::of_numbers(totals.numbers()), totals);
    }
}

//! The body of `/api/v1/usage`: a key's limit, its use, and its use on each of the last days.
//!
//! Pure: the values come from [`super::admission`]. It contains the key's own tier, endpoints and counts, and nothing about the
//! customer, other keys or upstreams.

use std::collections::BTreeMap;

use jiff::civil::Date;
use jiff::{Span, Timestamp};
use serde::Serialize;

use crate::policy::calendar::Day;
use crate::policy::endpoint::EndpointTable;
use crate::policy::key_record::{KeyRecord, TierName};
use crate::policy::rate_limit::QuotaStatus;
use crate::store::{DayUsage, Totals};

/// Days of the history, including today.
const DAYS: i32 = 30;

/// The body.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    tier: &'a TierName,
    limit: u64,
    used: u64,
    remaining: u64,
    reset: Timestamp,
    /// The first instant after the subscription, or null for no end.
    subscription_expires: Option<Timestamp>,
    endpoints: Vec<Included<'a>>,
    days: Vec<ReportedDay<'a>>,
}

#[derive(Debug, Serialize)]
struct Included<'a> {
    path: &'a str,
    methods: Vec<&'a str>,
    cost: u32,
}

#[derive(Debug, Serialize)]
struct ReportedDay<'a> {
    date: Date,
    used: u64,
    endpoints: &'a BTreeMap<String, Totals>,
}

impl<'a> Report<'a> {
    /// The report for a key with this `quota_status` and `used` units, from the ledger of the days since [`first_day`].
    pub fn new(
        record: &'a KeyRecord,
        quota_status: QuotaStatus,
        used: u64,
        table: &'a EndpointTable,
        history: &'a [DayUsage],
    ) -> Report<'a> {
        let included = table
            .iter()
            .filter(|endpoint| endpoint.included_in(&record.tier));
        Report {
            tier: &record.tier,
            limit: quota_status.limit,
            used,
            remaining: quota_status.limit.saturating_sub(used),
            reset: Timestamp::from_second(quota_status.day.end).unwrap_or(Timestamp::MAX),
            subscription_expires: record.expires,
            endpoints: included
                .map(|endpoint| Included {
                    path: &endpoint.pattern,
                    methods: endpoint.allowed(),
                    cost: endpoint.cost.get(),
                })
                .collect(),
            days: history
                .iter()
                .filter(|day| day.key == record.id)
                .map(|day| ReportedDay {
                    date: day.date,
                    used: day.used,
                    endpoints: &day.endpoints,
                })
                .collect(),
        }
    }

    /// As JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// The first day of the history that ends with `today`.
pub fn first_day(today: Day) -> Date {
    let back = Span::new().days(DAYS - 1);
    today.date.checked_sub(back).unwrap_or(today.date)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::endpoint::{self, Endpoint};
    use crate::policy::key_record::tests::key_of;
    use crate::store::ledger::{Ceiling, Cell};

    fn table() -> EndpointTable {
        let endpoint = |pattern: &str, tier: &str, cost: u32| Endpoint {
            tiers: vec![tier.parse().unwrap()],
            cost: cost.try_into().unwrap(),
            ..endpoint::tests::endpoint(pattern)
        };
        EndpointTable::new(vec![endpoint("/a", "pro", 2), endpoint("/b", "other", 1)]).unwrap()
    }

    fn quota_status() -> QuotaStatus {
        let day = Day {
            date: "2026-03-01".parse().unwrap(),
            start: 1_772_323_200,
            end: 1_772_409_600,
        };
        QuotaStatus {
            limit: 10,
            used: None,
            day,
        }
    }

    #[test]
    fn it_contains_the_keys_own_tier_endpoints_and_days() {
        let (_, mut record) = key_of("pro");
        record.expires = Some("2026-12-01T00:00:00Z".parse().unwrap());
        let totals = Totals {
            requests: 1,
            charged: 2,
            ..Totals::default()
        };
        let (_, stranger) = key_of("pro");
        let day = |key| {
            let cell = Cell {
                tier: Some("pro".parse().unwrap()),
                endpoint: "/a".to_owned(),
                totals,
                ceiling: Ceiling::default(),
            };
            let place = ("2026-02-28".parse().unwrap(), key);
            DayUsage::of_cells(place, None, [cell], Vec::new())
        };
        let history = [day(record.id), day(stranger.id)];
        let table = table();
        let report = Report::new(&record, quota_status(), 4, &table, &history);
        let body: serde_json::Value = serde_json::from_slice(&report.to_json()).unwrap();
        assert_eq!(
            body,
            serde_json::json!({
                "tier": "pro", "limit": 10, "used": 4, "remaining": 6, "reset": "2026-03-02T00:00:00Z",
                "subscription_expires": "2026-12-01T00:00:00Z",
                "endpoints": [{"path": "/a", "methods": ["GET", "HEAD"], "cost": 2}],
                "days": [{"date": "2026-02-28", "used": 2, "endpoints": {"/a":
                    {"requests": 1, "charged": 2, "refunded": 0, "refused_tier": 0, "refused_quota": 0, "refused_burst": 0,
                     "refused_concurrent": 0, "refused_not_found": 0, "refused_method": 0}}}],
            })
        );
    }

    #[test]
    fn more_used_than_the_limit_leaves_nothing_and_never_less() {
        let (_, record) = key_of("pro");
        let table = table();
        let report = Report::new(&record, quota_status(), 11, &table, &[]);
        assert_eq!((report.used, report.remaining), (11, 0));
    }

    #[test]
    fn the_history_has_thirty_days_with_today() {
        assert_eq!(first_day(quota_status().day).to_string(), "2026-01-31");
    }
}

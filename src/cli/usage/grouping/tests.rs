use super::*;
use crate::policy::key_record::tests::key_of;
use crate::store::ledger::{Ceiling, Cell};

pub(crate) fn config() -> Config {
    let text = include_str!("../../../../gateway.yaml");
    Config::parse("gateway.yaml", text, &|_| None).unwrap()
}

pub(crate) fn cell(tier: &str, endpoint: &str, charged: u64) -> Cell {
    Cell {
        tier: Some(tier.parse().unwrap()),
        endpoint: endpoint.into(),
        totals: Totals {
            requests: charged,
            charged,
            refunded: 1,
            refused_tier: 2,
            ..Totals::default()
        },
        ceiling: Ceiling {
            limit: 20,
            granted: 0,
        },
    }
}

/// A day with one unit that is unattributed.
pub(crate) fn day(date: &str, key: KeyId, cells: Vec<Cell>) -> DayUsage {
    let net: i64 = cells.iter().map(|cell| cell.totals.net()).sum();
    let place = (date.parse().unwrap(), key);
    DayUsage::of_cells(place, Some(net + 1), cells, Vec::new())
}

#[test]
fn rows_by_whatever_add_up_to_the_same_total() {
    let (_, one) = key_of("pro");
    let (_, mut two) = key_of("starter");
    two.customer = "Aaron".into();
    let (stranger, _) = key_of("pro");
    let (one_id, two_id) = (one.id, two.id);
    let mut ledger = [
        day("2026-10-31", one.id, vec![cell("pro", "/a", 5)]),
        day("2026-11-20", two.id, vec![cell("starter", "/a", 7)]),
        day(
            "2026-11-20",
            one.id,
            vec![cell("pro", "/a", 9), cell("enterprise", "/b", 13)],
        ),
        day("2026-11-21", stranger.id(), vec![cell("pro", "/b", 1)]),
    ];
    ledger.sort_by_key(|usage| usage.key);
    let records: Records = [one, two].into_iter().map(|one| (one.id, one)).collect();
    let (config, whole) = (config(), total(&ledger));
    assert_eq!((whole.used, whole.unattributed, whole.over), (34, 4, 1));
    let output = |by: Grouping| -> Vec<(String, Option<usize>, i64)> {
        let mut groups = Groups::new(by);
        groups.add(&ledger, &config, &records);
        let (rows, added) = groups.finish();
        assert_eq!(added, whole);
        let mut sum = UsageCounts::default();
        rows.iter().for_each(|row| sum.add(&row.counts));
        assert_eq!(sum, whole, "{by:?}");
        let output = rows.into_iter().map(|row| {
            let name = row.names[0].1.clone().unwrap_or_default();
            (name, row.keys, row.counts.used)
        });
        output.collect()
    };
    let of = |name: &str, keys: usize, used: i64| (name.to_owned(), Some(keys), used);
    assert_eq!(
        output(Grouping::Day),
        [
            of("2026-10-31", 1, 5),
            of("2026-11-20", 2, 28),
            of("2026-11-21", 1, 1)
        ]
    );
    assert_eq!(
        output(Grouping::Month),
        [of("2026-10", 1, 5), of("2026-11", 3, 29)]
    );
    assert_eq!(
        output(Grouping::Customer),
        [of("", 1, 1), of("Aaron", 1, 7), of("Acme", 1, 26)]
    );
    assert_eq!(
        output(Grouping::Endpoint),
        [of("(unattributed)", 3, 4), of("/a", 2, 18), of("/b", 2, 12)]
    );
    // The unattributed unit of the day with two tiers goes with the dearer one.
    assert_eq!(
        output(Grouping::Tier),
        [
            of("enterprise", 1, 13),
            of("pro", 2, 14),
            of("starter", 1, 7)
        ]
    );
    let by_key = output(Grouping::Key);
    assert_eq!(
        by_key,
        [
            (stranger.id().to_string(), None, 1),
            (two_id.to_string(), None, 7),
            (one_id.to_string(), None, 26)
        ]
    );
}

use super::*;
use crate::policy::calendar::Calendar;
use proptest::prelude::*;

const OWN: &str = "own0";
const MARKETS: &str = "pro /markets";

fn day() -> Day {
    let calendar = Calendar::of_zone("UTC").unwrap();
    calendar.day_of("2026-11-21".parse().unwrap()).unwrap()
}

fn key() -> KeyId {
    "4fZk09QwXy2B".parse().unwrap()
}

fn totals(charged: u64, refunded: u64) -> Totals {
    Totals {
        requests: charged,
        charged,
        refunded,
        ..Totals::default()
    }
}

/// A database that has charged so much itself.
fn charged(charged: u64, refunded: u64) -> DayRows {
    let ceiling = Ceiling {
        limit: 100,
        granted: 0,
    };
    DayRows {
        rows: BTreeMap::from([(MARKETS.to_owned(), (totals(charged, refunded), ceiling))]),
        ..DayRows::default()
    }
}

/// The export of a process in Redis: units granted and refunded, and those charged and refunded at an endpoint.
fn process(name: &str, account: (u64, u64), ledger: (u64, u64)) -> KeyDay {
    let tier: TierName = "pro".parse().unwrap();
    let totals = totals(ledger.0, ledger.1);
    let mut output = DayRows::default().exported(OWN, key(), day());
    output.accounts.push(ProducerAccount {
        producer: format!("{name}.0"),
        granted: account.0,
        returned: account.1,
    });
    let ceiling = Ceiling {
        limit: 100,
        granted: 0,
    };
    let mut sheet = sheet(name, &row_name(Some(&tier), "/markets"), &totals, ceiling);
    sheet.producer = format!("{name}.1");
    output.sheets.push(sheet);
    output
}

fn count(rows: &DayRows) -> i64 {
    let nets: i64 = rows.rows.values().map(|(totals, _)| totals.net()).sum();
    nets + rows.late.values().sum::<i64>()
}

#[test]
fn imported_counts_are_exported_again_under_the_names_of_their_producers() {
    let mut rows = charged(5, 1);
    let output = process("a", (10, 2), (9, 2));
    rows.import(OWN, &output);
    assert_eq!(count(&rows), 4 + 8);
    assert_eq!(rows.rows[MARKETS].0.charged, 14);
    assert_eq!(rows.rows[UNATTRIBUTED].0.charged, 1);
    let again = rows.exported(OWN, key(), day());
    let producers: Vec<&str> = again.accounts.iter().map(|one| &*one.producer).collect();
    assert_eq!(producers, ["own0.own", "a.0"]);
    assert_eq!(again.accounts[0].granted, 5);
    assert_eq!(again.accounts[1], output.accounts[0]);
    assert_eq!(again.sheets[1], output.sheets[0]);

    // Another database counts the same, whatever it hears twice.
    let mut other = DayRows::default();
    for output in [&again, &output, &again] {
        other.import("other", output);
        assert!(count(&other) <= 12);
    }
    assert_eq!(count(&other), 12);
    // And this one learns nothing from what comes back.
    let before = rows.clone();
    rows.import(OWN, &other.exported("other", key(), day()));
    assert_eq!(rows, before);
}

#[test]
fn a_later_telling_adds_only_what_is_new_and_attributes_what_was_not() {
    let mut rows = charged(1, 0);
    rows.import(OWN, &process("a", (10, 0), (7, 0)));
    assert_eq!(rows.rows[UNATTRIBUTED].0.charged, 3);
    rows.import(OWN, &process("a", (12, 1), (12, 1)));
    assert!(!rows.rows.contains_key(UNATTRIBUTED), "{rows:?}");
    assert_eq!(rows.rows[MARKETS].0, totals(13, 1));
    let newest = rows.clone();
    rows.import(OWN, &process("a", (10, 0), (7, 0)));
    assert_eq!(rows, newest);
}

#[test]
fn own_charges_between_two_tellings_stay_own() {
    let mut rows = DayRows::default();
    rows.import(OWN, &process("a", (10, 0), (10, 0)));
    // A gateway charges two units here, as `group` does.
    rows.rows.get_mut(MARKETS).unwrap().0.charged += 2;
    rows.import(OWN, &process("a", (11, 0), (11, 0)));
    assert_eq!(rows.rows[MARKETS].0.charged, 13);
    assert_eq!(rows.exported(OWN, key(), day()).accounts[0].granted, 2);
}

#[test]
fn late_units_are_taken_over_with_the_instant_at_which_they_came() {
    let mut source = charged(10, 1);
    source.late.insert(900, -2);
    let output = source.exported("source", key(), day());
    assert_eq!(output.accounts[0].returned, 3);
    let mut rows = DayRows::default();
    rows.import(OWN, &output);
    assert_eq!((count(&rows), rows.late[&900]), (7, -2));
    assert!(!rows.rows.contains_key(UNATTRIBUTED), "{rows:?}");
    assert_eq!(rows.exported(OWN, key(), day()).accounts, output.accounts);
}

#[test]
fn of_two_exports_of_late_units_the_larger_remains_in_either_order() {
    let output = |units| {
        let mut source = charged(10, 1);
        source.late.insert(900, units);
        source.exported("source", key(), day())
    };
    let (smaller, larger) = (output(-1), output(-3));
    for exports in [[&smaller, &larger], [&larger, &smaller]] {
        let mut rows = DayRows::default();
        for output in exports {
            rows.import(OWN, output);
        }
        assert_eq!((count(&rows), rows.late[&900]), (6, -3));
    }
}

#[test]
fn a_database_that_lost_its_own_charges_gets_them_back() {
    let output = charged(10, 1).exported(OWN, key(), day());
    let mut rolled_back = charged(6, 0);
    rolled_back.import(OWN, &output);
    assert_eq!(rolled_back, charged(10, 1));
}

proptest! {
    #[test]
    fn whatever_the_order_and_however_often_the_count_is_that_of_the_latest_tellings(
        steps in proptest::collection::vec((0_u64..4, 0_u64..9, 0_u64..3), 1..20),
        shuffle in proptest::collection::vec((0_usize..20, 0_u64..3), 1..60),
    ) {
        let mut sums = [(0_u64, 0_u64); 4];
        let mut tellings = Vec::new();
        for (who, granted, returned) in steps {
            let sum = &mut sums[who as usize];
            sum.0 += granted;
            sum.1 = (sum.1 + returned).min(sum.0);
            let ledger = (sum.0.saturating_sub(1), sum.1.saturating_sub(1));
            tellings.push(process(&format!("p{who}"), *sum, ledger));
        }
        let mut rows = DayRows::default();
        let mut own = 0;
        for (pick, more) in shuffle {
            rows.import(OWN, &tellings[pick % tellings.len()]);
            let row = rows.rows.entry(MARKETS.to_owned()).or_default();
            row.0.charged += more;
            own += more;
        }
        for telling in &tellings {
            rows.import(OWN, telling);
        }
        let others: i64 = sums.iter().map(|sum| sum.0 as i64 - sum.1 as i64).sum();
        prop_assert_eq!(count(&rows), others + own as i64);
    }
}

use super::*;
use crate::cli::output::cells;
use crate::cli::usage::grouping::tests::{cell, config, day};
use crate::policy::billing::{self, Months, UnusedKeys};
use crate::policy::key_record::KeyState;
use crate::policy::key_record::tests::key_of;
use crate::store::Adjustment;
use crate::store::ledger::Cell;

fn month(text: &str) -> Month {
    text.parse().unwrap()
}

fn record(tier: &str, customer: &str) -> KeyRecord {
    KeyRecord {
        customer: customer.into(),
        created: "2026-09-15T00:00:00Z".parse().unwrap(),
        ..key_of(tier).1
    }
}

/// The lines of a key in October 2026 at an instant of November.
fn reported_by(rules: billing::Rules, usage: &[DayUsage], record: &KeyRecord) -> Vec<InvoiceLine> {
    let mut config = config();
    config.billing = rules;
    let now = "2026-11-20T00:00:00Z".parse().unwrap();
    let terms = BillingTerms::of(&config, month("2026-10"), now).unwrap();
    let key = BilledKey {
        customer: (&*record.customer).into(),
        record,
        life: Life::of(record, &[]),
    };
    lines::of(&terms, &key, usage).unwrap().collect()
}

fn output(usage: &[DayUsage], record: &KeyRecord) -> Vec<InvoiceLine> {
    reported_by(billing::Rules::default(), usage, record)
}

/// Its requests were all refunded.
fn refunded(tier: &str, requests: u64) -> Cell {
    let mut cell = cell(tier, "/a", requests);
    cell.totals.refunded = requests;
    cell
}

#[test]
fn a_month_has_one_form() {
    assert_eq!(month("2026-02").last().to_string(), "2026-02-28");
    assert_eq!(month("2026-10").to_string(), "2026-10");
    for bad in ["2026-13", "2026-1", "2026-10-01", "october", "", "2026-00"] {
        assert!(bad.parse::<Month>().is_err(), "{bad:?}");
    }
}

#[test]
fn a_month_is_refused_from_the_instant_on_at_which_its_first_day_is_deleted() {
    let config = config();
    let terms = |now: &str| BillingTerms::of(&config, month("2026-10"), now.parse().unwrap());
    assert!(terms("2027-11-01T23:59:59Z").unwrap().closed);
    let Err(refused) = terms("2027-11-02T00:00:00Z") else {
        panic!("the first day is deleted");
    };
    let refused = refused.to_string();
    for part in [
        "2026-10",
        "396 days",
        "quota.retention",
        "before its days reach that age",
        "backup",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
}

#[test]
fn a_month_whose_first_day_was_deleted_is_refused_and_not_one_of_which_only_the_day_before_was() {
    let config = config();
    let now = "2026-11-20T00:00:00Z".parse().unwrap();
    let terms = BillingTerms::of(&config, month("2026-10"), now).unwrap();
    let kept = |dropped: &str| terms.require_kept(Some(dropped.parse().unwrap()));
    assert!(terms.require_kept(None).is_ok());
    assert!(kept("2026-09-30").is_ok());
    let refused = kept("2026-10-01").unwrap_err().to_string();
    let lacks = "lacks days of 2026-10: the days through 2026-10-01 were deleted";
    assert!(refused.contains(lacks), "{refused}");
}

#[test]
fn a_month_is_closed_with_its_last_day_and_has_the_days_that_have_begun() {
    let config = config();
    for (now, days, closed) in [
        ("2026-09-30T23:59:59Z", 0, false),
        ("2026-10-01T00:00:00Z", 1, false),
        ("2026-10-22T12:00:00Z", 22, false),
        ("2026-11-07T23:59:59Z", 31, false),
        ("2026-11-08T00:00:00Z", 31, true),
    ] {
        let terms = BillingTerms::of(&config, month("2026-10"), now.parse().unwrap()).unwrap();
        assert_eq!((terms.days.len(), terms.closed), (days, closed), "{now}");
    }
}

#[test]
fn a_day_counts_for_the_dearest_tier_that_was_charged_and_units_for_their_own() {
    let record = record("pro", "Acme");
    let usage = [
        day("2026-09-30", record.id, vec![cell("starter", "/a", 3)]),
        day("2026-10-01", record.id, vec![cell("starter", "/a", 3)]),
        day(
            "2026-10-02",
            record.id,
            vec![cell("starter", "/a", 4), cell("pro", "/a", 30)],
        ),
        day("2026-10-03", record.id, vec![cell("pro", "/a", 5)]),
        day("2026-11-01", record.id, vec![cell("pro", "/a", 5)]),
    ];
    let lines = output(&usage, &record);
    let counts: Vec<_> = lines
        .iter()
        .map(|line| (&*line.tier, line.days, line.charged, line.refunded))
        .collect();
    assert_eq!(counts, [("pro", 30, 35, 2), ("starter", 1, 7, 2)]);
    // 34 charged, 2 refunded, 1 unattributed: 33 used of 20; the 13 above are of the day's tier and not billed.
    let pro = &lines[0];
    assert_eq!((pro.unattributed, pro.over, pro.billed_units), (2, 13, 22));
    assert_eq!((lines[1].unattributed, lines[1].billed_units), (1, 6));
    // 30 days of 31 of 299 dollars, one of 99.
    assert_eq!(
        (pro.amount_cents, lines[1].amount_cents),
        (Some(28_935), Some(319))
    );
    assert_eq!(
        (pro.price_cents, &*pro.customer, pro.used),
        (Some(29_900), "Acme", lines::Use::Used)
    );
}

#[test]
fn a_tier_that_the_file_lacks_is_an_error_also_if_its_only_day_has_another_tier() {
    let record = record("starter", "Acme");
    let cells = vec![cell("starter", "/a", 4), cell("retired", "/a", 30)];
    let lines = output(&[day("2026-10-02", record.id, cells)], &record);
    assert_eq!((&*lines[0].tier, lines[0].days), ("retired", 0));
    let config = config();
    let now = "2026-11-20T00:00:00Z".parse().unwrap();
    let terms = BillingTerms::of(&config, month("2026-10"), now).unwrap();
    let error = check_tiers(&terms, &lines).unwrap_err().to_string();
    assert!(error.contains("unknown: retired."), "{error}");
}

#[test]
fn units_above_the_limit_are_of_tiers_that_have_as_many() {
    let record = record("pro", "Acme");
    let cells = vec![cell("pro", "/a", 2), cell("starter", "/a", 31)];
    let usage = [day("2026-10-02", record.id, cells)];
    assert_eq!(usage[0].over, 12);
    let lines = output(&usage, &record);
    let units = lines.iter().map(|line| (line.over, line.billed_units));
    assert_eq!(units.collect::<Vec<_>>(), [(2, 0), (10, 20)]);
}

#[test]
fn a_day_is_not_used_in_a_tier_whose_units_were_all_refunded() {
    let record = record("starter", "Acme");
    let mixed = vec![refunded("enterprise", 4), cell("starter", "/a", 4)];
    let usage = [day("2026-10-02", record.id, mixed)];
    let lines = output(&usage, &record);
    let amounts: Vec<_> = lines
        .iter()
        .map(|line| (&*line.tier, line.days, line.amount_cents))
        .collect();
    assert_eq!(
        amounts,
        [("enterprise", 0, Some(0)), ("starter", 31, Some(9_900))]
    );
}

#[test]
fn a_key_whose_every_request_was_refunded_is_billed_by_the_rule_for_unused_keys_and_its_line_reports_it()
 {
    let record = record("enterprise", "Acme");
    let place = ("2026-10-02".parse().unwrap(), record.id);
    let usage = DayUsage::of_cells(place, Some(0), [refunded("enterprise", 7)], Vec::new());
    for (unused_keys, days, cents) in [(UnusedKeys::Bill, 31, 79_900), (UnusedKeys::Skip, 0, 0)] {
        for months in [Months::ByDay, Months::Whole] {
            let rules = billing::Rules {
                months,
                unused_keys,
            };
            let lines = reported_by(rules, std::slice::from_ref(&usage), &record);
            let [line] = &lines[..] else {
                panic!("{lines:?}");
            };
            assert_eq!(
                (
                    line.requests,
                    line.charged,
                    line.refunded,
                    line.billed_units
                ),
                (7, 7, 7, 0)
            );
            assert_eq!(
                (line.days, line.amount_cents, line.used),
                (days, Some(cents), lines::Use::Refunded)
            );
        }
    }
}

#[test]
fn a_key_that_was_not_used_has_a_line_for_the_days_that_it_was_held() {
    let idle = record("enterprise", "Idle");
    let mut gone = record("pro", "Gone");
    gone.expires = Some("2026-10-01T00:00:00Z".parse().unwrap());
    let mut late = record("pro", "Later");
    late.created = "2026-11-01T00:00:00Z".parse().unwrap();
    let mut revoked = record("pro", "Revoked");
    revoked.state = KeyState::Revoked;
    revoked.updated = "2026-09-30T23:59:59Z".parse().unwrap();
    let mut ending = record("pro", "Ending");
    ending.expires = Some("2026-10-16T00:00:00Z".parse().unwrap());
    for (record, expected) in [
        (&idle, Some((31, Some(79_900)))),
        (&gone, None),
        (&late, None),
        (&revoked, None),
        (&ending, Some((15, Some(14_467)))),
    ] {
        let lines = output(&[], record);
        let lines: Vec<_> = lines
            .iter()
            .inspect(|line| assert_eq!(line.used, lines::Use::None))
            .map(|line| (line.days, line.amount_cents))
            .collect();
        assert_eq!(lines, Vec::from_iter(expected), "{}", record.customer);
    }
    let skip = billing::Rules {
        unused_keys: UnusedKeys::Skip,
        ..billing::Rules::default()
    };
    assert_eq!(reported_by(skip, &[], &idle), []);
}

#[test]
fn what_came_after_a_day_was_closed_is_in_the_month_in_which_it_came() {
    let record = record("pro", "Acme");
    let mut usage = day("2026-09-25", record.id, vec![cell("starter", "/a", 3)]);
    let came = |text: &str, units| Adjustment {
        came: text.parse().unwrap(),
        units,
    };
    usage.adjustments = vec![
        came("2026-10-03T10:00:00Z", 7),
        came("2026-10-31T23:45:00Z", -2),
        came("2026-11-01T00:00:00Z", 100),
    ];
    let lines = output(&[usage], &record);
    let counts: Vec<_> = lines
        .iter()
        .map(|line| (&*line.tier, line.days, line.charged, line.adjusted))
        .collect();
    assert_eq!(counts, [("pro", 31, 0, 0), ("starter", 0, 0, 5)]);
    let amounts = lines.iter().map(|line| line.amount_cents);
    assert_eq!(amounts.collect::<Vec<_>>(), [Some(29_900), Some(0)]);
}

#[test]
fn units_of_which_no_tier_is_known_are_billed_in_the_tier_held() {
    let record = record("pro", "Acme");
    let unknown = Cell {
        tier: None,
        ..cell("pro", "/a", 5)
    };
    let usage = [
        day("2026-10-02", record.id, vec![unknown]),
        day("2026-10-03", record.id, Vec::new()),
    ];
    let lines = output(&usage, &record);
    let amounts: Vec<_> = lines
        .iter()
        .map(|line| (&*line.tier, line.days, line.unattributed, line.amount_cents))
        .collect();
    assert_eq!(amounts, [("?", 0, 0, None), ("pro", 31, 2, Some(29_900))]);
}

#[test]
fn the_table_shows_dollars_and_the_csv_cents() {
    let record = record("pro", "Acme");
    let usage = [day("2026-10-01", record.id, vec![cell("pro", "/a", 25)])];
    let lines = output(&usage, &record);
    let row = Extended {
        record: &lines[0],
        more: json!({ "month": month("2026-10") }),
    };
    assert_eq!(
        cells(&row, &COLUMNS).unwrap().join(","),
        format!(
            "2026-10,Acme,{},,pro,29900,31,25,25,1,1,5,0,20,29900,used",
            record.id
        )
    );
    let shown = lines[0].shown().unwrap();
    assert_eq!(
        (shown[4].as_str(), shown[13].as_str()),
        ("299.00", "299.00")
    );
    let sums = InvoiceSums {
        over: 5,
        amount_cents: 29_905,
    };
    let total = lines::total(month("2026-10"), &sums);
    assert_eq!(total.len(), shown.len());
    let filled: Vec<_> = total
        .iter()
        .enumerate()
        .filter(|(_, cell)| !cell.is_empty())
        .map(|(column, cell)| (COLUMNS[column + 1], cell.as_str()))
        .collect();
    assert_eq!(
        filled,
        [
            ("customer", "total of 2026-10, USD"),
            ("over", "5"),
            ("amount_cents", "299.05")
        ]
    );
}

use super::*;
use crate::cli::usage::grouping::tests::{cell, config, day};
use crate::policy::key_record::tests::key_of;
use crate::store::Adjustment;

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

fn told(usage: &[DayUsage], records: &[KeyRecord]) -> Vec<Line> {
    let records: Records = records
        .iter()
        .map(|record| (record.id, record.clone()))
        .collect();
    lines(&config(), month("2026-10"), usage, &records).unwrap()
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
    let lines = told(&usage, std::slice::from_ref(&record));
    let told: Vec<_> = lines
        .iter()
        .map(|line| (line.tier.as_str(), line.days, line.charged, line.refunded))
        .collect();
    assert_eq!(told, [("pro", 2, 35, 2), ("starter", 1, 7, 2)]);
    // 34 charged, 2 refunded, 1 unattributed: 33 used of 20; the 13 above are of the day's tier and not billed.
    let pro = &lines[0];
    assert_eq!((pro.unattributed, pro.over, pro.billed_units), (2, 13, 22));
    assert_eq!((lines[1].unattributed, lines[1].billed_units), (1, 6));
    // Two days of three of 299 dollars, one of 99.
    assert_eq!(
        (pro.amount_cents, lines[1].amount_cents),
        (Some(19_933), Some(3_300))
    );
    assert_eq!(
        (pro.price_cents, pro.customer.as_str()),
        (Some(29_900), "Acme")
    );
}

#[test]
fn a_key_that_was_not_used_has_a_line_with_the_whole_price_while_it_is_subscribed() {
    let idle = record("enterprise", "Idle");
    let mut gone = record("pro", "Gone");
    gone.expires = Some("2026-10-01T00:00:00Z".parse().unwrap());
    let mut late = record("pro", "Later");
    late.created = "2026-11-01T00:00:00Z".parse().unwrap();
    let mut revoked = record("pro", "Revoked");
    revoked.state = KeyState::Revoked;
    revoked.updated = "2026-09-30T23:59:59Z".parse().unwrap();
    let lines = told(&[], &[idle, gone, late, revoked]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(
        (
            lines[0].customer.as_str(),
            lines[0].days,
            lines[0].amount_cents
        ),
        ("Idle", 0, Some(79_900))
    );
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
    let lines = told(&[usage], &[record]);
    let told: Vec<_> = lines
        .iter()
        .map(|line| (line.tier.as_str(), line.days, line.charged, line.adjusted))
        .collect();
    assert_eq!(told, [("pro", 0, 0, 0), ("starter", 0, 0, 5)]);
    let amounts = lines.iter().map(|line| line.amount_cents);
    assert_eq!(amounts.collect::<Vec<_>>(), [Some(29_900), Some(0)]);
}

#[test]
fn a_share_is_rounded_half_up_to_the_cent() {
    assert_eq!(share(100, 1, 3), 33);
    assert_eq!(share(100, 2, 3), 67);
    assert_eq!(share(1, 1, 2), 1);
    assert_eq!(share(100, 0, 0), 0);
    assert_eq!(share(u64::MAX, 1, 1), u64::MAX);
    assert_eq!(share(29_900, 31, 31), 29_900);
}

#[test]
fn the_table_shows_dollars_and_the_csv_cents() {
    let record = record("pro", "Acme");
    let usage = [day("2026-10-01", record.id, vec![cell("pro", "/a", 5)])];
    let lines = told(&usage, std::slice::from_ref(&record));
    let cells = row(month("2026-10"), &lines[0]).join(",");
    assert_eq!(
        cells,
        format!(
            "2026-10,Acme,{},,pro,29900,1,5,5,1,1,0,0,5,29900",
            record.id
        )
    );
    let mut out = Vec::new();
    let invoice = Invoice {
        month: month("2026-10"),
        currency: "USD",
        closed: true,
        amount_cents: 29_900,
        lines,
    };
    table(&mut out, &invoice).unwrap();
    let text = String::from_utf8(out).unwrap();
    let shown: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(shown[0][4], "PRICE");
    assert_eq!(shown[0].last(), Some(&"AMOUNT"));
    assert_eq!(shown[1][3], "299.00");
    assert_eq!(shown[1].last(), Some(&"299.00"));
    assert_eq!(shown[2], ["total", "of", "2026-10,", "USD", "299.00"]);
}

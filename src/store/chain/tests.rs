use super::*;
use crate::store::Totals;

fn date(text: &str) -> Date {
    text.parse().unwrap()
}

fn row(day: &str, endpoint: &str, requests: i64) -> ChainItem {
    let mut numbers = [0; ROW_NUMBERS.len()];
    numbers[0] = requests;
    numbers[1] = requests;
    numbers[9] = 1_000;
    ChainItem::Ledger(LedgerRow {
        date: date(day),
        key: "0123456789Ab".into(),
        tier: Some("pro".into()),
        endpoint: endpoint.into(),
        numbers,
    })
}

fn late(day: &str) -> ChainItem {
    ChainItem::Late(LateRow {
        date: date(day),
        key: "0123456789Ab".into(),
        came: 1_795_219_200,
        units: -2,
    })
}

fn digest(rows: &[ChainItem]) -> RowsSummary {
    let mut digest = RowsDigest::default();
    rows.iter().for_each(|row| digest.take(row));
    digest.finish()
}

/// A chain of these changes; those that close a day have its rows.
fn chain(changes: &[(&str, DayState, &[ChainItem])]) -> Vec<ChainEntry> {
    let mut entries: Vec<ChainEntry> = Vec::new();
    for (at, (day, state, rows)) in (1_000..).zip(changes) {
        let last = entries.last();
        let last = last.map(|entry| (entry.number, entry.digest.clone()));
        let rows = (*state == DayState::Closed).then(|| digest(rows));
        entries.push(ChainEntry::after(last, (date(day), at), *state, rows));
    }
    entries
}

const DAYS: [&str; 3] = ["2026-11-01", "2026-11-02", "2026-11-03"];

fn checked(entries: &[ChainEntry], rows: &[ChainItem]) -> CheckedChain {
    let mut check = ChainCheck::of(Some((date(DAYS[0]), date(DAYS[2]))), None);
    for entry in entries {
        check.take(ChainItem::Entry(entry.clone()));
    }
    rows.iter().for_each(|row| check.take(row.clone()));
    check.finish()
}

/// The days and faults that are found.
fn faults(entries: &[ChainEntry], rows: &[ChainItem]) -> Vec<String> {
    let faults = checked(entries, rows).faults.into_iter();
    faults
        .map(|one| format!("{} {}", one.date, one.fault))
        .collect()
}

#[test]
fn the_canonical_form_is_this_text() {
    let rows = [row(DAYS[0], "/a", 3), late(DAYS[0])];
    let text = "ledger\t0123456789Ab\tpro\t/a\t3\t3\t0\t0\t0\t0\t0\t0\t0\t1000\t0\n\
                late\t0123456789Ab\t1795219200\t-2\n";
    let output = digest(&rows);
    assert_eq!(
        (output.count, output.sha256),
        (2, format!("{:x}", Sha256::digest(text)))
    );
    let entries = chain(&[
        (DAYS[0], DayState::Closed, &rows),
        (DAYS[0], DayState::Reopened, &[]),
    ]);
    let first = format!(
        "touchline-ledger-1\t1\t2026-11-01\tclosed\t1000\t2\t{}\t{NO_DIGEST}\n",
        entries[0].rows_sha256
    );
    assert_eq!(entries[0].digest, format!("{:x}", Sha256::digest(first)));
    let second = format!(
        "touchline-ledger-1\t2\t2026-11-01\treopened\t1001\t0\t\t{}\n",
        entries[0].digest
    );
    assert_eq!(entries[1].digest, format!("{:x}", Sha256::digest(second)));
}

#[test]
fn no_two_rows_have_the_text_of_one() {
    let fields = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| (*text).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(line(&fields(&["a\tb\\t", "c\nd"])), "a\\tb\\\\t\tc\\nd\n");
    let one = digest(&[row(DAYS[0], "/a\n\t", 1)]);
    assert_ne!(one, digest(&[row(DAYS[0], "/a\\n\\t", 1)]));
}

#[test]
fn a_row_has_its_numbers_by_their_names() {
    let output = serde_json::to_value(row(DAYS[0], "/a", 3)).unwrap();
    assert_eq!(
        output,
        serde_json::json!({ "ledger": {
            "date": "2026-11-01", "key": "0123456789Ab", "tier": "pro", "endpoint": "/a",
            "requests": 3, "charged": 3, "refunded": 0, "refused_tier": 0, "refused_quota": 0, "refused_burst": 0,
            "refused_concurrent": 0, "refused_not_found": 0, "refused_method": 0, "limit": 1000, "granted": 0,
        }})
    );
    // The numbers of the totals, by the names that their own JSON has, in their own order.
    let totals = Totals::of_numbers([1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let totals = serde_json::to_value(totals).unwrap();
    for (number, name) in (1..).zip(&ROW_NUMBERS[..Totals::NUMBERS]) {
        assert_eq!(totals[name], number, "{name}");
    }
}

#[test]
fn what_was_changed_added_or_deleted_in_a_closed_day_is_found() {
    let rows: Vec<ChainItem> = DAYS.iter().map(|day| row(day, "/a", 3)).collect();
    let closed = |at: usize| (DAYS[at], DayState::Closed, &rows[at..=at]);
    let entries = chain(&[closed(0), closed(1)]);
    let whole = checked(&entries, &rows);
    assert_eq!(whole.faults, []);
    assert_eq!(
        (whole.entries, whole.closed_days, whole.compared_days),
        (2, 2, 2)
    );
    assert_eq!(whole.closed_through, Some(date(DAYS[1])));
    assert_eq!(whole.digest, entries[1].digest);
    for broken in [
        vec![rows[0].clone()],
        vec![rows[0].clone(), row(DAYS[1], "/a", 4)],
        vec![rows[0].clone(), row(DAYS[1], "/b", 3)],
        vec![rows[0].clone(), rows[1].clone(), row(DAYS[1], "/b", 0)],
        vec![rows[0].clone(), rows[1].clone(), late(DAYS[1])],
    ] {
        let found = faults(&entries, &broken);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("2026-11-02 its rows were changed after it was closed"),
            "{found:?}"
        );
    }
    // Of days that were not asked for nothing is known.
    let mut alone = ChainCheck::of(None, None);
    alone.take(ChainItem::Entry(entries[0].clone()));
    assert_eq!(alone.finish().faults, []);
}

#[test]
fn an_entry_that_was_changed_left_out_or_moved_is_found() {
    let rows: Vec<ChainItem> = DAYS.iter().map(|day| row(day, "/a", 3)).collect();
    let closed = |at: usize| (DAYS[at], DayState::Closed, &rows[at..=at]);
    let entries = chain(&[closed(0), closed(1), closed(2)]);
    let mut changed = entries.clone();
    changed[1].rows_sha256 = digest(&[row(DAYS[1], "/a", 4)]).sha256;
    let forged = [rows[0].clone(), row(DAYS[1], "/a", 4), rows[2].clone()];
    assert_eq!(
        faults(&changed, &forged),
        ["2026-11-02 entry 2 of the chain was changed"]
    );
    changed[1].digest = changed[1].computed();
    assert_eq!(
        faults(&changed, &forged),
        ["2026-11-03 entry 3 of the chain does not follow entry 2"]
    );
    let left_out = [entries[0].clone(), entries[2].clone()];
    assert_eq!(
        faults(&left_out, &[rows[0].clone(), rows[2].clone()]),
        ["2026-11-03 entry 3 of the chain does not follow entry 1"]
    );
    assert_eq!(
        faults(&entries[1..], &rows[1..]),
        ["2026-11-02 entry 2 of the chain does not follow entry 0"]
    );
}

#[test]
fn a_reopened_day_may_change_until_it_is_closed_again() {
    let (then, now) = ([row(DAYS[0], "/a", 3)], [row(DAYS[0], "/a", 5)]);
    let changes = [
        (DAYS[0], DayState::Closed, &then[..]),
        (DAYS[0], DayState::Reopened, &[]),
        (DAYS[0], DayState::Closed, &now[..]),
    ];
    assert_eq!(faults(&chain(&changes[..2]), &now), [""; 0]);
    let whole = checked(&chain(&changes), &now);
    assert_eq!((whole.faults.len(), whole.reopenings), (0, 1));
    assert_eq!(faults(&chain(&changes), &then).len(), 1);
}

#[test]
fn the_retention_drops_the_oldest_days_and_their_entries_stay() {
    let rows: Vec<ChainItem> = DAYS.iter().map(|day| row(day, "/a", 3)).collect();
    let closed = |at: usize| (DAYS[at], DayState::Closed, &rows[at..=at]);
    let dropped = |at: usize| (DAYS[at], DayState::Dropped, &rows[..0]);
    let all = [closed(0), closed(1), closed(2), dropped(0)];
    let left = checked(&chain(&all), &rows[1..]);
    assert_eq!((left.faults.len(), left.closed_days), (0, 2));
    let amid = [closed(0), closed(1), closed(2), dropped(1)];
    assert_eq!(
        faults(&chain(&amid), &[rows[0].clone(), rows[2].clone()]),
        ["2026-11-02 it was dropped by the retention before the older day 2026-11-01"]
    );
}

#[test]
fn a_digest_that_was_kept_is_looked_for_in_the_chain() {
    let rows = [row(DAYS[0], "/a", 3)];
    let entries = chain(&[
        (DAYS[0], DayState::Closed, &rows),
        (DAYS[0], DayState::Reopened, &[]),
        (DAYS[0], DayState::Closed, &rows),
    ]);
    let missing = |kept: &str| {
        let mut check = ChainCheck::of(None, Some(kept));
        for entry in &entries {
            check.take(ChainItem::Entry(entry.clone()));
        }
        check.finish().missing
    };
    assert_eq!(missing(NO_DIGEST), None, "from before the first entry");
    for entry in &entries {
        assert_eq!(missing(&entry.digest), None);
        assert_eq!(missing(&entry.digest.to_uppercase()), None);
    }
    assert_eq!(missing("abc").as_deref(), Some("abc"));
    assert_eq!(
        missing(&entries[0].rows_sha256),
        Some(entries[0].rows_sha256.clone())
    );
}

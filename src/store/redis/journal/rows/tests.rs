use super::*;
use crate::store::ledger::Ceiling;

const DAY: Day = Day {
    date: jiff::civil::date(2026, 11, 21),
    start: 1_795_219_200,
    end: 1_795_305_600,
};

fn rows(counts_settled: bool, totals_settled: bool) -> JournalRows {
    let key: KeyId = "0123456789Ab".parse().unwrap();
    let totals = Totals {
        requests: 3,
        charged: 3,
        ..Totals::default()
    };
    JournalRows {
        counts: vec![CountRow {
            key,
            day: DAY,
            producer: "one.0".into(),
            ack: 3,
            rack: 0,
            unsettled_units: 0,
            settled: counts_settled,
        }],
        totals: vec![TotalsRow {
            key,
            day: DAY,
            producer: "one.1".into(),
            tier: Some("pro".parse().unwrap()),
            ceiling: Ceiling::default(),
            endpoint: "/a".into(),
            totals,
            settled: totals_settled,
        }],
    }
}

#[test]
fn a_keys_day_is_dropped_whole_when_all_of_it_is_settled_or_its_retention_is_over() {
    const RETENTION: i64 = 396 * 86_400;
    let long_after = DAY.end + RETENTION + 1;
    let soon_after = DAY.end + SETTLED_KEPT_AFTER_DAY_SECONDS + 1;
    for (counts_settled, totals_settled, now, kept) in [
        (true, true, soon_after - 1, true),
        (true, true, soon_after, false),
        (true, false, soon_after, true),
        (false, true, soon_after, true),
        (false, false, soon_after, true),
        (false, true, long_after - 1, true),
        (false, true, long_after, false),
        (true, false, long_after, false),
        (true, true, long_after, false),
    ] {
        let journal = Connection::open_in_memory().unwrap();
        journal.execute_batch(TABLES).unwrap();
        let mut written = rows(counts_settled, totals_settled);
        written.counts[0].unsettled_units = if counts_settled { 0 } else { 2 };
        write(&journal, &written).unwrap();
        let dropped = drop_old(&journal, now, RETENTION).unwrap();
        let left = days_but(&journal, &left_out("", ""), None, 10).unwrap();
        let left: Vec<_> = left
            .iter()
            .map(|(_, rows)| (rows.counts.len(), rows.totals.len()))
            .collect();
        let expected = if kept { vec![(1, 1)] } else { Vec::new() };
        assert_eq!(left, expected, "{counts_settled} {totals_settled} {now}");
        let lost = |settled: bool| u64::from(!kept && !settled);
        let expected = DroppedUnsettled {
            rows: lost(counts_settled) + lost(totals_settled),
            units: 2 * lost(counts_settled),
        };
        assert_eq!(dropped, expected, "{counts_settled} {totals_settled} {now}");
    }
}

fn left_out(counts: &str, totals: &str) -> LeftOut {
    [counts.into(), totals.into()]
}

#[test]
fn what_others_wrote_is_read_by_days_each_whole_and_own_rows_are_left_out() {
    let journal = Connection::open_in_memory().unwrap();
    journal.execute_batch(TABLES).unwrap();
    let mut all = JournalRows::default();
    for (number, key) in ["0123456789Ab", "0123456789Ac", "0123456789Ad"]
        .iter()
        .enumerate()
    {
        let mut of_key = rows(false, false);
        of_key.counts[0].key = key.parse().unwrap();
        of_key.totals[0].key = key.parse().unwrap();
        if number == 1 {
            of_key.counts.clear();
        }
        all.counts.append(&mut of_key.counts);
        all.totals.append(&mut of_key.totals);
    }
    let mut own = rows(false, false);
    own.counts[0].producer = "own.0".into();
    own.totals[0].producer = "own.1".into();
    for written in [&all, &own] {
        write(&journal, written).unwrap();
    }
    let (mut read, mut last, mut pages) = (JournalRows::default(), None, 0);
    loop {
        let page = days_but(&journal, &left_out("own.*", "own.*"), last, 2).unwrap();
        let Some((end, _)) = page.last() else { break };
        last = Some(*end);
        pages += 1;
        for (_, rows) in page {
            read.counts.extend(rows.counts);
            read.totals.extend(rows.totals);
        }
    }
    assert_eq!((read, pages), (all, 2));
    let with_own_counts = days_but(&journal, &left_out("", "own.*"), None, 10).unwrap();
    let read = with_own_counts
        .into_iter()
        .flat_map(|(_, rows)| rows.counts);
    assert!(read.into_iter().any(|row| row.producer == "own.0"));
}

/// A journal with one count: units consumed and refunded, not settled.
fn journal_of(ack: u64, rack: u64) -> Connection {
    let journal = Connection::open_in_memory().unwrap();
    journal.execute_batch(TABLES).unwrap();
    write_count(&journal, &count_of(ack, rack, false)).unwrap();
    journal
}

fn count_of(ack: u64, rack: u64, settled: bool) -> CountRow {
    let mut rows = rows(settled, settled);
    CountRow {
        ack,
        rack,
        ..rows.counts.remove(0)
    }
}

#[test]
fn a_count_is_settled_by_a_later_write_only_if_that_has_all_of_its_units() {
    for (ack, rack, is_settled) in [
        (4, 1, false),
        (4, 2, false),
        (5, 1, false),
        (5, 2, true),
        (6, 2, true),
    ] {
        let journal = journal_of(5, 2);
        let written = count_of(ack, rack, true);
        write_count(&journal, &written).unwrap();
        let expected = (ack.max(5), rack.max(2));
        assert_eq!(marks(&journal, &written).unwrap(), Some(expected));
        let unsettled = u64::from(!is_settled);
        assert_eq!(how_many(&journal).unwrap(), (1, unsettled), "{ack} {rack}");
    }
}

#[test]
fn a_count_that_grew_while_redis_was_sent_its_earlier_units_is_not_settled() {
    for (ack, rack, is_settled) in [(4, 2, false), (5, 1, false), (5, 2, true)] {
        let journal = journal_of(5, 2);
        settle_count(&journal, &count_of(ack, rack, false)).unwrap();
        let unsettled = u64::from(!is_settled);
        assert_eq!(how_many(&journal).unwrap(), (1, unsettled), "{ack} {rack}");
    }
}

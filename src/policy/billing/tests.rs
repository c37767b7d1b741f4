use jiff::ToSpan;
use proptest::prelude::*;

use super::*;
use crate::policy::audit::{Author, signed};
use crate::policy::calendar::Calendar;
use crate::policy::key_record::LastChange;
use crate::policy::key_record::tests::key_of;
use crate::policy::lifecycle::KeyChange;

const NONE: [(&str, KeyChange); 0] = [];

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn tier(name: &str) -> KeyChange {
    KeyChange::SetTier(name.parse().unwrap())
}

fn price(tier: &str) -> u64 {
    match tier {
        "starter" => 9_900,
        "pro" => 29_900,
        "enterprise" => 79_900,
        _ => 1,
    }
}

/// A key of the tier starter with its trail, after changes at their instants.
fn lived(created: Timestamp, changes: &[(Timestamp, KeyChange)]) -> (KeyRecord, Vec<Entry>) {
    let author = Author {
        who: "tester@here".into(),
        reason: None,
    };
    let (_, mut record) = key_of("starter");
    record.created = created;
    record.updated = created;
    let mut trail = vec![Entry::of(&record)];
    for (at, change) in changes {
        let Ok(Some(after)) = change.applied_to(&record, *at) else {
            continue;
        };
        let mut after = signed(&record, after, change.action(), &author);
        after.version = record.version + 1;
        after.updated = *at;
        trail.push(Entry::of(&after));
        record = after;
    }
    (record, trail)
}

fn life(created: &str, changes: &[(&str, KeyChange)]) -> Life {
    let changes: Vec<_> = changes
        .iter()
        .map(|(instant, change)| (at(instant), change.clone()))
        .collect();
    let (record, trail) = lived(at(created), &changes);
    Life::of(&record, &trail)
}

/// The days of October 2026, of which there are 31.
fn october() -> Vec<Day> {
    let calendar = Calendar::of_zone("UTC").unwrap();
    let first = "2026-10-01".parse::<Date>().unwrap();
    let days = first.series(1.day()).take(31);
    days.map(|date| calendar.day_of(date).unwrap()).collect()
}

fn used(days: &[(&str, &str)]) -> BTreeMap<Date, String> {
    days.iter()
        .map(|(date, tier)| (date.parse().unwrap(), (*tier).to_owned()))
        .collect()
}

fn counted(rules: Rules, life: &Life, uses: &[(&str, &str)]) -> Counted {
    Counted::of(rules, &october(), life, &used(uses))
}

fn tiers(counted: &Counted) -> Vec<(&str, u64)> {
    let tiers = counted.tiers.iter();
    tiers.map(|(tier, days)| (tier.as_str(), *days)).collect()
}

fn amounts(rules: Rules, counted: &Counted, month_days: u64) -> Vec<u64> {
    let amount = |(tier, days): (&String, &u64)| {
        rules.amount_cents(price(tier), *days, counted.days(), month_days)
    };
    counted.tiers.iter().map(amount).collect()
}

const RULES: [Rules; 4] = [
    Rules {
        months: Months::ByDay,
        unused_keys: UnusedKeys::Bill,
    },
    Rules {
        months: Months::ByDay,
        unused_keys: UnusedKeys::Skip,
    },
    Rules {
        months: Months::Whole,
        unused_keys: UnusedKeys::Bill,
    },
    Rules {
        months: Months::Whole,
        unused_keys: UnusedKeys::Skip,
    },
];

#[test]
fn a_day_belongs_to_the_tier_that_is_held_when_it_ends() {
    const BEFORE: &str = "2026-09-01T00:00:00Z";
    let expiry = |text: &str| KeyChange::SetExpiry(Some(at(text)));
    let change = |instant: &'static str, change: KeyChange| vec![(instant, change)];
    let start = "2026-10-10T00:00:00Z";
    let last = "2026-10-10T23:59:59.999Z";
    let end = "2026-10-11T00:00:00Z";
    for (what, created, changes, held) in [
        ("held all along", BEFORE, NONE.to_vec(), Some("starter")),
        (
            "issued as the day begins",
            start,
            NONE.to_vec(),
            Some("starter"),
        ),
        (
            "issued in its last instant",
            last,
            NONE.to_vec(),
            Some("starter"),
        ),
        ("issued as it is over", end, NONE.to_vec(), None),
        (
            "moved as it begins",
            BEFORE,
            change(start, tier("pro")),
            Some("pro"),
        ),
        (
            "moved in its last instant",
            BEFORE,
            change(last, tier("pro")),
            Some("pro"),
        ),
        (
            "moved as it is over",
            BEFORE,
            change(end, tier("pro")),
            Some("starter"),
        ),
        (
            "revoked in its last instant",
            BEFORE,
            change(last, KeyChange::Revoke),
            None,
        ),
        (
            "revoked as it is over",
            BEFORE,
            change(end, KeyChange::Revoke),
            Some("starter"),
        ),
        (
            "expires with its end",
            BEFORE,
            change(BEFORE, expiry(end)),
            Some("starter"),
        ),
        (
            "expires in its last second",
            BEFORE,
            change(BEFORE, expiry("2026-10-10T23:59:59Z")),
            None,
        ),
        (
            "suspended",
            BEFORE,
            change(start, KeyChange::Suspend),
            Some("starter"),
        ),
        (
            "expired, and extended after it",
            BEFORE,
            vec![(BEFORE, expiry(start)), (end, KeyChange::SetExpiry(None))],
            None,
        ),
        (
            "expired, and extended within it",
            BEFORE,
            vec![(BEFORE, expiry(start)), (last, KeyChange::SetExpiry(None))],
            Some("starter"),
        ),
        (
            "moved up and back within it",
            BEFORE,
            vec![(start, tier("pro")), (last, tier("starter"))],
            Some("starter"),
        ),
        (
            "issued, moved up and revoked within it",
            start,
            vec![
                ("2026-10-10T00:00:20Z", tier("enterprise")),
                ("2026-10-10T00:00:50Z", KeyChange::Revoke),
            ],
            None,
        ),
        (
            "renamed after its revocation",
            BEFORE,
            vec![
                (end, KeyChange::Revoke),
                (
                    "2026-10-12T00:00:00Z",
                    KeyChange::SetLabel(Some("x".into())),
                ),
            ],
            Some("starter"),
        ),
        (
            "renamed by a clock that was ahead, then revoked within it",
            BEFORE,
            vec![
                (
                    "2027-10-10T00:00:00Z",
                    KeyChange::SetLabel(Some("x".into())),
                ),
                (last, KeyChange::Revoke),
            ],
            None,
        ),
    ] {
        let day = october()[9];
        assert_eq!(
            (day.start, day.end),
            (at(start).as_second(), at(end).as_second())
        );
        let life = life(created, &changes);
        assert_eq!(life.tier_on(&day).map(TierName::as_str), held, "{what}");
    }
}

#[test]
fn an_incomplete_trail_shows_what_it_can() {
    let october = october();
    let held = |record: &KeyRecord, trail: &[Entry]| -> Vec<Option<String>> {
        let life = Life::of(record, trail);
        let days = [&october[8], &october[9], &october[10]];
        days.map(|day| life.tier_on(day).map(ToString::to_string))
            .to_vec()
    };
    let some = |name: &str| Some(name.to_owned());
    let early = at("2026-09-01T00:00:00Z");
    let (record, trail) = lived(
        early,
        &[
            (at("2026-10-10T12:00:00Z"), tier("pro")),
            (at("2026-10-11T12:00:00Z"), KeyChange::Revoke),
            (
                at("2026-10-12T12:00:00Z"),
                KeyChange::SetLabel(Some("x".into())),
            ),
        ],
    );
    let whole = [some("starter"), some("pro"), None];
    assert_eq!(held(&record, &trail), whole);
    assert_eq!(held(&record, &trail[..3]), whole, "the record has its last");
    // Only the last change is known; by then the key was revoked.
    assert_eq!(held(&record, &[]), [some("pro"), some("pro"), some("pro")]);
    let (revoked, _) = lived(early, &[(at("2026-10-10T12:00:00Z"), KeyChange::Revoke)]);
    assert_eq!(held(&revoked, &[]), [some("starter"), None, None]);
    // Imported with its state, long after it was made elsewhere.
    let mut imported = revoked;
    imported.last_change = LastChange::first(Action::Import, "ann").into();
    assert_eq!(held(&imported, &[]), [None, None, None]);
    imported.state = KeyState::Active;
    assert_eq!(held(&imported, &[]), vec![some("starter"); 3]);
}

#[test]
fn a_day_of_use_is_counted_for_the_tier_of_its_use_and_any_other_for_the_tier_held() {
    let minute = life(
        "2026-10-10T10:00:00Z",
        &[
            ("2026-10-10T10:00:20Z", tier("enterprise")),
            ("2026-10-10T10:00:50Z", KeyChange::Revoke),
        ],
    );
    let moved = life(
        "2026-09-01T00:00:00Z",
        &[("2026-10-11T08:00:00Z", tier("pro"))],
    );
    let from = life("2026-10-31T23:59:59Z", &NONE);
    let by_day = RULES[0];
    for (what, life, uses, expected) in [
        ("a minute, not used", &minute, &[][..], vec![]),
        (
            "a minute, used",
            &minute,
            &[("2026-10-10", "enterprise")],
            vec![("enterprise", 1)],
        ),
        (
            "moved, not used",
            &moved,
            &[],
            vec![("pro", 21), ("starter", 10)],
        ),
        (
            "moved down, and the dearer was used before",
            &life(
                "2026-09-01T00:00:00Z",
                &[("2026-10-11T08:00:00Z", tier("free"))],
            ),
            &[("2026-10-11", "starter")],
            vec![("free", 20), ("starter", 11)],
        ),
        (
            "the last second of the month",
            &from,
            &[],
            vec![("starter", 1)],
        ),
        (
            "use in another month",
            &minute,
            &[("2026-11-01", "pro")],
            vec![],
        ),
    ] {
        let days = counted(by_day, life, uses);
        assert_eq!(tiers(&days), expected, "{what}");
    }
}

#[test]
fn a_key_that_was_not_used_has_days_or_none_by_the_rule() {
    let held = life("2026-10-02T00:00:00Z", &NONE);
    for rules in RULES {
        let days = counted(rules, &held, &[]);
        let expected = match rules.unused_keys {
            UnusedKeys::Bill => vec![("starter", 30)],
            UnusedKeys::Skip => vec![],
        };
        assert_eq!((tiers(&days), days.is_used), (expected, false), "{rules:?}");
        // One used unit is use, and then all days are counted.
        let days = counted(rules, &held, &[("2026-10-05", "starter")]);
        assert_eq!((tiers(&days), days.is_used), (vec![("starter", 30)], true));
    }
}

#[test]
fn a_part_of_a_month_is_rounded_down_to_the_cent() {
    let [by_day, _, whole, _] = RULES;
    for (rules, price, days, key_days, month_days, cents) in [
        (by_day, 29_900, 31, 31, 31, 29_900),
        (by_day, 29_900, 30, 30, 31, 28_935),
        (by_day, 29_900, 1, 1, 31, 964),
        (by_day, 100, 2, 2, 3, 66),
        (by_day, 79_900, 0, 0, 31, 0),
        (by_day, u64::MAX, 31, 31, 31, u64::MAX),
        (by_day, 100, 0, 0, 0, 0),
        (whole, 29_900, 1, 1, 31, 29_900),
        (whole, 29_900, 2, 3, 31, 19_933),
        (whole, 9_900, 1, 3, 31, 3_300),
        (whole, 9_900, 0, 0, 31, 0),
    ] {
        let amount = rules.amount_cents(price, days, key_days, month_days);
        assert_eq!(amount, cents, "{rules:?} {price} {days} {key_days}");
    }
}

#[test]
fn every_rule_has_words_of_its_own() {
    let phrases: std::collections::BTreeSet<_> = RULES.iter().map(|rules| rules.phrase()).collect();
    let texts: std::collections::BTreeSet<_> = RULES
        .iter()
        .map(|rules| rules.sentences("Europe/London"))
        .collect();
    assert_eq!((phrases.len(), texts.len()), (4, 4));
    for text in texts {
        assert!(text.join(" ").contains("(Europe/London)"), "{text:?}");
    }
    assert_eq!(Rules::default(), RULES[0]);
}

fn any_change() -> impl Strategy<Value = KeyChange> {
    prop_oneof![
        Just(tier("starter")),
        Just(tier("pro")),
        Just(tier("enterprise")),
        Just(KeyChange::Suspend),
        Just(KeyChange::Resume),
        Just(KeyChange::Revoke),
        Just(KeyChange::SetExpiry(None)),
        (-40i64..40).prop_map(|days| {
            KeyChange::SetExpiry(Some(at("2026-10-15T00:00:00Z") + (days * 24).hours()))
        }),
        Just(KeyChange::SetLabel(Some("x".into()))),
    ]
}

/// A record with its trail, with changes around October.
fn any_life() -> impl Strategy<Value = (KeyRecord, Vec<Entry>)> {
    let hours = proptest::collection::vec((0i64..2_000, any_change()), 0..8);
    (0i64..2_000, hours).prop_map(|(created, mut changes)| {
        let first = at("2026-08-20T00:00:00Z");
        changes.sort_by_key(|(hours, _)| *hours);
        let created = first + created.hours();
        let changes: Vec<_> = changes
            .into_iter()
            .map(|(hours, change)| (first + hours.hours(), change))
            .filter(|(at, _)| *at >= created)
            .collect();
        lived(created, &changes)
    })
}

fn any_uses() -> impl Strategy<Value = BTreeMap<Date, String>> {
    let day = 0usize..31;
    let tier = prop_oneof![Just("starter"), Just("pro"), Just("enterprise")];
    proptest::collection::btree_map(day, tier, 0..31).prop_map(|uses| {
        let october = october();
        uses.into_iter()
            .map(|(day, tier)| (october[day].date, tier.to_owned()))
            .collect()
    })
}

proptest! {
    #[test]
    fn no_key_costs_more_than_a_month_of_its_dearest_tier(
        (record, trail) in any_life(), uses in any_uses()
    ) {
        let (october, life) = (october(), Life::of(&record, &trail));
        for rules in RULES {
            let days = Counted::of(rules, &october, &life, &uses);
            let sum: u64 = amounts(rules, &days, 31).iter().sum();
            let dearest = days.tiers.keys().map(|tier| price(tier)).max().unwrap_or(0);
            prop_assert!(days.days() <= 31);
            prop_assert!(sum <= dearest, "{sum} of {dearest}: {days:?}");
            if rules.unused_keys == UnusedKeys::Skip && uses.is_empty() {
                prop_assert_eq!(sum, 0);
            }
        }
    }

    #[test]
    fn a_whole_month_in_one_tier_costs_exactly_the_months_price(price in any::<u64>(), days in 28u64..=31) {
        for rules in RULES {
            prop_assert_eq!(rules.amount_cents(price, days, days, days), price);
        }
    }

    #[test]
    fn a_key_that_never_changed_is_billed_the_days_since_its_issue(hours in 0i64..(31 * 24)) {
        let created = at("2026-10-01T00:00:00Z") + hours.hours();
        let (record, trail) = lived(created, &[]);
        let days = Counted::of(RULES[0], &october(), &Life::of(&record, &trail), &BTreeMap::new());
        prop_assert_eq!(days.days(), 31 - u64::try_from(hours / 24).unwrap());
    }

    #[test]
    fn the_order_of_the_trail_and_of_the_days_does_not_matter(
        (record, trail) in any_life(), uses in any_uses(), seed in any::<u64>()
    ) {
        let mut shuffled = trail.clone();
        let length = shuffled.len() as u64;
        shuffled.rotate_left(usize::try_from(seed % length).unwrap());
        shuffled.reverse();
        prop_assert_eq!(Life::of(&record, &shuffled), Life::of(&record, &trail));
        let life = Life::of(&record, &trail);
        let mut backwards = october();
        backwards.reverse();
        for rules in RULES {
            let days = Counted::of(rules, &october(), &life, &uses);
            prop_assert_eq!(Counted::of(rules, &backwards, &life, &uses), days);
        }
    }
}

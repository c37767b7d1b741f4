//! The audit trail: an entry for each change of a key, and of the register of gateways. Entries are made here; stores keep them
//! with the change itself.
//!
//! Invariants: the entry of a key is a function of the record after the change, so the record alone yields the entry; no entry
//! contains a secret or its digest.

use jiff::Timestamp;
use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use super::api_key::KeyId;
use super::key_record::{Action, KeyRecord, LastChange, PublicFacts};

/// The facts of a gateway.
const GATEWAY: &str = "gateway";
const HEARD: &str = "heard";
/// The state of a key.
pub const STATE: &str = "state";
/// The end of a key's subscription.
pub const EXPIRES: &str = "expires";
/// The prefix of the facts that state a day's grants.
const GRANTS: &str = "grants.";

/// Who makes a change, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Author {
    /// The name that the trail shows.
    pub who: String,
    /// The reason, if given.
    pub reason: Option<String>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The time of the change, by the store's clock.
    pub at: Timestamp,
    /// The changed key, or `None` if the change is not of a key.
    pub key: Option<KeyId>,
    /// The version of the record after the change. No two changes of a key share one, nor do two changes without a key.
    pub version: u64,
    /// The author.
    pub who: String,
    /// The kind of change.
    pub what: Action,
    /// The changed facts before; empty for a new key.
    pub before: PublicFacts,
    /// The same facts after the change; for a new key all of them.
    pub after: PublicFacts,
    /// The reason, if given.
    pub reason: Option<String>,
}

impl Entry {
    /// The entry of the change that made a record.
    pub fn of(record: &KeyRecord) -> Entry {
        let change = &*record.last_change;
        let mut after = facts(record);
        let is_whole = matches!(
            change.action,
            Action::Issue | Action::Import | Action::Unrecorded
        );
        after.retain(|name, _| is_whole || change.before.contains_key(name));
        for name in change.before.keys() {
            after.entry(name.clone()).or_insert(None);
        }
        Entry {
            at: record.updated,
            key: Some(record.id),
            version: record.version,
            who: change.who.clone(),
            what: change.action,
            before: change.before.clone(),
            after,
            reason: change.reason.clone(),
        }
    }

    /// The entry for a gateway removed from the register at `now`, last heard of at `heard`.
    pub fn of_forgotten(gateway: &str, heard: Timestamp, now: Timestamp, author: &Author) -> Entry {
        let facts = |gateway, heard| {
            let named = [(GATEWAY.to_owned(), gateway), (HEARD.to_owned(), heard)];
            PublicFacts::from(named)
        };
        Entry {
            at: now,
            key: None,
            version: u64::try_from(now.as_microsecond()).unwrap_or(0),
            who: author.who.clone(),
            what: Action::ForgetGateway,
            before: facts(Some(gateway.to_owned()), Some(heard.to_string())),
            after: facts(None, None),
            reason: author.reason.clone(),
        }
    }

    /// Whether it records the removal of this gateway, last heard of at `heard`.
    pub fn forgets(&self, gateway: &str, heard: Timestamp) -> bool {
        let fact = |name| self.before.get(name).and_then(Option::as_deref);
        fact(GATEWAY) == Some(gateway) && fact(HEARD) == Some(&heard.to_string())
    }

    /// The day and the units of a grant.
    pub fn granted(&self) -> Option<(Date, u64)> {
        if self.what != Action::Grant {
            return None;
        }
        let (name, after) = self.after.first_key_value()?;
        let units = |facts: Option<&Option<String>>| facts?.as_ref()?.parse::<u64>().ok();
        let before = units(self.before.get(name)).unwrap_or(0);
        let date = name.strip_prefix(GRANTS)?.parse().ok()?;
        Some((date, units(Some(after))?.checked_sub(before)?))
    }

    /// The position of the entry in the trail.
    pub fn place(&self) -> (Timestamp, u64, Option<KeyId>) {
        (self.at, self.version, self.key)
    }
}

/// A filter for entries of the trail: entries match if they meet all conditions. The default matches all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The entry is of this key.
    pub key: Option<KeyId>,
    /// The entry was made at this instant or later.
    pub from: Option<Timestamp>,
    /// The entry was made before this instant.
    pub until: Option<Timestamp>,
    /// The author has this name.
    pub who: Option<String>,
    /// The entry is of this kind.
    pub what: Option<Action>,
}

impl Wanted {
    /// Whether an entry matches.
    pub fn holds(&self, entry: &Entry) -> bool {
        self.key.is_none_or(|key| Some(key) == entry.key)
            && self.from.is_none_or(|from| from <= entry.at)
            && self.until.is_none_or(|until| entry.at < until)
            && self.who.as_ref().is_none_or(|who| *who == entry.who)
            && self.what.is_none_or(|what| what == entry.what)
    }
}

/// `after` as the result of a change of `before` by `author`.
pub fn signed(
    before: &KeyRecord,
    mut after: KeyRecord,
    action: Action,
    author: &Author,
) -> KeyRecord {
    let (mut old, mut new) = (facts(before), facts(&after));
    for name in new.keys() {
        old.entry(name.clone()).or_insert(None);
    }
    for name in old.keys() {
        new.entry(name.clone()).or_insert(None);
    }
    old.retain(|name, value| new.get(name) != Some(value));
    let change = LastChange {
        action,
        who: author.who.clone(),
        reason: author.reason.clone(),
        before: old,
    };
    after.last_change = change.into();
    after
}

/// The facts of a record that may be in the trail. A missing fact is `None`; a day without grants is left out.
fn facts(record: &KeyRecord) -> PublicFacts {
    let instant = |instant: Option<Timestamp>| instant.map(|instant| instant.to_string());
    // By name, so that a new field is not left out unnoticed.
    let KeyRecord {
        id: _,
        customer,
        label,
        tier,
        state,
        expires,
        digest: _,
        previous,
        ended: _,
        grants,
        created: _,
        updated: _,
        version: _,
        last_change: _,
    } = record;
    let previous_until = previous.as_ref().map(|previous| previous.until);
    let named = [
        ("customer", Some(customer.to_string())),
        ("label", label.as_deref().map(str::to_owned)),
        ("tier", Some(tier.to_string())),
        (STATE, Some(state.as_str().to_owned())),
        (EXPIRES, instant(*expires)),
        ("previous_until", instant(previous_until)),
    ];
    let grants = grants
        .iter()
        .map(|(date, units)| (format!("{GRANTS}{date}"), Some(units.to_string())));
    named
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .chain(grants)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::api_key::KeyDigest;
    use crate::policy::key_record::tests::key_of;
    use crate::policy::key_record::{KeyState, PreviousDigest};

    fn author(reason: Option<&str>) -> Author {
        Author {
            who: "ops@desk".into(),
            reason: reason.map(Into::into),
        }
    }

    fn pairs(facts: &PublicFacts) -> Vec<(&str, Option<&str>)> {
        facts
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_deref()))
            .collect()
    }

    fn changed(action: Action, change: impl Fn(&mut KeyRecord)) -> Entry {
        let (_, before) = key_of("pro");
        let mut after = before.clone();
        change(&mut after);
        Entry::of(&signed(&before, after, action, &author(Some("why"))))
    }

    #[test]
    fn an_entry_has_the_changed_facts_before_and_after_and_no_others() {
        let entry = changed(Action::SetTier, |record| {
            record.tier = "starter".parse().unwrap();
        });
        assert_eq!(pairs(&entry.before), [("tier", Some("pro"))]);
        assert_eq!(pairs(&entry.after), [("tier", Some("starter"))]);
        assert_eq!((&*entry.who, entry.what), ("ops@desk", Action::SetTier));
        assert_eq!(entry.reason.as_deref(), Some("why"));

        let entry = changed(Action::SetLabel, |record| record.label = Some("x".into()));
        assert_eq!(pairs(&entry.before), [("label", None)]);
        assert_eq!(pairs(&entry.after), [("label", Some("x"))]);

        let day = "2026-11-21".parse().unwrap();
        let entry = changed(Action::Grant, |record| {
            record.grants.insert(day, 500);
        });
        assert_eq!(pairs(&entry.before), [("grants.2026-11-21", None)]);
        assert_eq!(pairs(&entry.after), [("grants.2026-11-21", Some("500"))]);
        assert_eq!(entry.granted(), Some((day, 500)));
        let (_, mut before) = key_of("pro");
        before.grants.insert(day, 500);
        let mut after = before.clone();
        after.grants.insert(day, 700);
        let more = Entry::of(&signed(&before, after, Action::Grant, &author(None)));
        assert_eq!(more.granted(), Some((day, 200)));

        let entry = changed(Action::Revoke, |record| record.state = KeyState::Revoked);
        assert_eq!(pairs(&entry.before), [("state", Some("active"))]);
        assert_eq!(pairs(&entry.after), [("state", Some("revoked"))]);
        assert_eq!(entry.granted(), None);
    }

    #[test]
    fn a_fact_that_a_record_no_longer_has_is_empty() {
        let (_, mut before) = key_of("pro");
        let day = "2026-11-21".parse().unwrap();
        before.label = Some("x".into());
        before.grants.insert(day, 5);
        let (_, mut after) = key_of("pro");
        after.id = before.id;
        let entry = Entry::of(&signed(&before, after, Action::SetLabel, &author(None)));
        assert_eq!(
            pairs(&entry.before),
            [("grants.2026-11-21", Some("5")), ("label", Some("x"))]
        );
        assert_eq!(
            pairs(&entry.after),
            [("grants.2026-11-21", None), ("label", None)]
        );
    }

    #[test]
    fn the_entry_of_a_new_key_has_all_facts_and_no_digest() {
        let (key, mut record) = key_of("pro");
        record.previous = Some(Box::new(PreviousDigest {
            digest: KeyDigest::of(b"old"),
            until: "2027-01-01T00:00:00Z".parse().unwrap(),
        }));
        let entry = Entry::of(&record);
        assert_eq!(entry.before, PublicFacts::new());
        assert_eq!(
            pairs(&entry.after),
            [
                ("customer", Some("Acme")),
                ("expires", None),
                ("label", None),
                ("previous_until", Some("2027-01-01T00:00:00Z")),
                ("state", Some("active")),
                ("tier", Some("pro")),
            ]
        );
        let text = serde_json::to_string(&entry).unwrap();
        assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), entry);
        for secret in [key.digest(), KeyDigest::of(b"old")] {
            assert!(!text.contains(&secret.to_string()));
        }
    }

    #[test]
    fn an_entry_is_wanted_if_it_meets_every_part_of_the_filter() {
        let (_, record) = key_of("pro");
        let entry = Entry::of(&record);
        let (stranger, _) = key_of("pro");
        let next = entry.at + jiff::SignedDuration::from_nanos(1);
        let all = Wanted::default();
        let at = |from, until| Wanted {
            from,
            until,
            ..Wanted::default()
        };
        let of = |key| Wanted {
            key: Some(key),
            ..Wanted::default()
        };
        let by = |who: &str| Wanted {
            who: Some(who.into()),
            ..Wanted::default()
        };
        let what = |what| Wanted {
            what: Some(what),
            ..Wanted::default()
        };
        for (wanted, holds) in [
            (all, true),
            (of(record.id), true),
            (of(stranger.id()), false),
            (at(Some(entry.at), Some(next)), true),
            (at(Some(next), None), false),
            (at(None, Some(entry.at)), false),
            (by("tester@here"), true),
            (by("tester"), false),
            (what(Action::Issue), true),
            (what(Action::Grant), false),
            (
                Wanted {
                    what: Some(Action::Grant),
                    ..by("tester@here")
                },
                false,
            ),
        ] {
            assert_eq!(wanted.holds(&entry), holds, "{wanted:?}");
        }
    }

    #[test]
    fn the_entry_of_a_removed_gateway_has_its_last_sign_of_life_and_no_key() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let (heard, now) = (at("2026-11-21T11:00:00Z"), at("2026-11-21T12:00:00Z"));
        let entry = Entry::of_forgotten("web-1-7", heard, now, &author(Some("its disk burnt")));
        assert_eq!(
            pairs(&entry.before),
            [
                ("gateway", Some("web-1-7")),
                ("heard", Some("2026-11-21T11:00:00Z"))
            ]
        );
        assert_eq!(pairs(&entry.after), [("gateway", None), ("heard", None)]);
        assert_eq!(
            (&*entry.who, entry.what),
            ("ops@desk", Action::ForgetGateway)
        );
        assert_eq!((entry.at, entry.key), (now, None));
        assert!(entry.forgets("web-1-7", heard));
        assert!(!entry.forgets("web-1-8", heard) && !entry.forgets("web-1-7", now));
        let text = serde_json::to_string(&entry).unwrap();
        assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), entry);
        let (key, _) = key_of("pro");
        let of_key = Wanted {
            key: Some(key.id()),
            ..Wanted::default()
        };
        assert!(Wanted::default().holds(&entry) && !of_key.holds(&entry));
    }

    #[test]
    fn a_rotation_has_an_entry_although_none_of_its_facts_may_be_shown() {
        let entry = changed(Action::Rotate, |record| {
            record.digest = KeyDigest::of(b"new");
        });
        assert_eq!(
            (entry.before, entry.after),
            (PublicFacts::new(), PublicFacts::new())
        );
        assert_eq!(entry.what, Action::Rotate);
    }
}

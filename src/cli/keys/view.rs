//! Records in tables, JSON and CSV for operators, never with a digest.

use std::collections::BTreeMap;

use jiff::civil::Date;
use jiff::{Timestamp, ToSpan};
use serde::Serialize;

use crate::cli::output::to_the_second;
use crate::policy::api_key::KeyId;
use crate::policy::audit::Entry;
use crate::policy::calendar::Calendar;
use crate::policy::key_record::{KeyRecord, KeyState, TierName};

/// The columns of a list.
pub(super) const LIST_HEADER: [&str; 8] = [
    "id", "customer", "label", "tier", "state", "expires", "created", "updated",
];

/// A record for operators, without anything of its secret.
#[derive(Debug, Serialize)]
pub(super) struct KeyView<'a> {
    id: KeyId,
    customer: &'a str,
    label: Option<&'a str>,
    tier: &'a TierName,
    state: KeyState,
    /// The first instant after the subscription.
    expires: Option<Timestamp>,
    /// Whether that instant has passed.
    expired: bool,
    created: Timestamp,
    updated: Timestamp,
}

#[derive(Serialize)]
pub(super) struct IssuedView<'a> {
    pub(super) key: &'a str,
    #[serde(flatten)]
    pub(super) record: KeyView<'a>,
}

/// A record with the details that lists leave out.
#[derive(Serialize)]
pub(super) struct DetailView<'a> {
    #[serde(flatten)]
    pub(super) record: KeyView<'a>,
    /// The end of the old secret, during a rotation's overlap.
    pub(super) previous_until: Option<Timestamp>,
    pub(super) grants: &'a BTreeMap<Date, u64>,
}

#[derive(Serialize)]
pub(super) struct ShownView<'a> {
    #[serde(flatten)]
    pub(super) detail: DetailView<'a>,
    /// Every grant with its reason, in the order in which they were made.
    pub(super) granted: Vec<GrantedView<'a>>,
    pub(super) today: TodayView,
}

/// A grant from the audit trail.
#[derive(Serialize)]
pub(super) struct GrantedView<'a> {
    date: Date,
    extra: u64,
    reason: Option<&'a str>,
    who: &'a str,
    at: Timestamp,
}

impl<'a> GrantedView<'a> {
    pub(super) fn of(entry: &'a Entry) -> Option<GrantedView<'a>> {
        let (date, extra) = entry.granted()?;
        Some(GrantedView {
            date,
            extra,
            reason: entry.reason.as_deref(),
            who: &entry.who,
            at: entry.at,
        })
    }
}

/// The outcome of a change, with `key` only if there is a new one and `grant` only if units were granted.
#[derive(Serialize)]
pub(super) struct ChangedView<'a> {
    pub(super) changed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) grant: Option<GrantView<'a>>,
    #[serde(flatten)]
    pub(super) detail: DetailView<'a>,
}

#[derive(Clone, Copy, Serialize)]
pub(super) struct GrantView<'a> {
    pub(super) date: Date,
    pub(super) extra: u64,
    pub(super) reason: &'a str,
}

/// `limit` and `remaining` are null where the key's tier is not configured.
#[derive(Serialize)]
pub(super) struct TodayView {
    pub(super) date: Date,
    pub(super) used: u64,
    pub(super) limit: Option<u64>,
    pub(super) remaining: Option<u64>,
}

impl<'a> KeyView<'a> {
    pub(super) fn of(record: &'a KeyRecord, now: Timestamp) -> KeyView<'a> {
        KeyView {
            id: record.id,
            customer: &record.customer,
            label: record.label.as_deref(),
            tier: &record.tier,
            state: record.state,
            expires: record.expires,
            expired: record.expires.is_some_and(|expires| expires <= now),
            created: record.created,
            updated: record.updated,
        }
    }

    /// The state; for an active key, whether its subscription has ended.
    pub(super) fn shown_state(&self) -> &'static str {
        match (self.state, self.expired) {
            (KeyState::Active, true) => "expired",
            (state, _) => state.as_str(),
        }
    }

    /// The cells for people: the last day of the subscription, instants without fractions. In the order of [`LIST_HEADER`].
    pub(super) fn fields(&self, calendar: &Calendar) -> Vec<(&'static str, String)> {
        vec![
            ("id", self.id.to_string()),
            ("customer", self.customer.to_owned()),
            ("label", self.label.unwrap_or_default().to_owned()),
            ("tier", self.tier.to_string()),
            ("state", self.shown_state().to_owned()),
            ("expires", end(calendar, self.expires)),
            ("created", to_the_second(self.created)),
            ("updated", to_the_second(self.updated)),
        ]
    }
}

impl<'a> DetailView<'a> {
    pub(super) fn of(record: &'a KeyRecord, now: Timestamp) -> DetailView<'a> {
        let previous = record.previous.as_ref().map(|previous| previous.until);
        DetailView {
            record: KeyView::of(record, now),
            previous_until: previous.filter(|until| now < *until),
            grants: &record.grants,
        }
    }

    /// The fields for people; a day's grants with the reasons of those in `granted`.
    pub(super) fn fields(
        &self,
        calendar: &Calendar,
        granted: &[GrantedView<'_>],
    ) -> Vec<(&'static str, String)> {
        let mut fields = self.record.fields(calendar);
        if let Some(until) = self.previous_until {
            fields.push(("old key until", to_the_second(until)));
        }
        for (date, units) in self.grants {
            let of_day = granted.iter().filter(|granted| granted.date == *date);
            let reasons: Vec<&str> = of_day.filter_map(|granted| granted.reason).collect();
            let grant = format!("{units} on {date}");
            fields.push((
                "grant",
                match reasons.is_empty() {
                    true => grant,
                    false => format!("{grant} ({})", reasons.join("; ")),
                },
            ));
        }
        fields
    }
}

/// The end of a subscription, for people.
pub(super) fn end(calendar: &Calendar, expires: Option<Timestamp>) -> String {
    expires.map_or_else(|| "never".to_owned(), |expires| last_day(calendar, expires))
}

/// The last day on which a subscription ending at `expires` is valid, or the instant if it ends within a day.
pub(super) fn last_day(calendar: &Calendar, expires: Timestamp) -> String {
    let day = expires
        .checked_sub(1.nanosecond())
        .ok()
        .and_then(|last| calendar.day_at(last).ok())
        .filter(|day| day.end == expires.as_second());
    day.map_or_else(
        || to_the_second(expires),
        |day| format!("after {}", day.date),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::key_record::tests::key_of;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn no_form_of_a_record_shows_its_digest() {
        let (key, mut record) = key_of("pro");
        record.expires = Some(at("2026-11-22T00:00:00Z"));
        let calendar = Calendar::of_zone("UTC").unwrap();
        let view = KeyView::of(&record, at("2026-11-22T00:00:00Z"));
        let fields = view.fields(&calendar);
        assert_eq!(
            fields.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            LIST_HEADER
        );
        assert!(
            fields.contains(&("state", "expired".to_owned()))
                && fields.contains(&("expires", "after 2026-11-21".to_owned()))
        );
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["state"], "active");
        assert_eq!(json["expired"], true);
        assert_eq!(json["label"], serde_json::Value::Null);
        assert_eq!(json["expires"], "2026-11-22T00:00:00Z");
        let digest = key.digest().to_string();
        assert!(!json.to_string().contains(&digest) && !format!("{fields:?}").contains(&digest));
    }

    #[test]
    fn an_issued_key_is_in_its_json_once() {
        let (key, record) = key_of("pro");
        let view = IssuedView {
            key: key.reveal(),
            record: KeyView::of(&record, Timestamp::UNIX_EPOCH),
        };
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["key"], key.reveal());
        assert_eq!(json["id"], key.id().as_str());
        assert_eq!(json["tier"], "pro");
    }
}

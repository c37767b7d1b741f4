//! Records in tables, JSON and CSV for operators, never with a digest.

use jiff::{Timestamp, ToSpan};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::output::{Extended, to_the_second};
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

/// The end of the old secret, during a rotation's overlap.
pub(super) fn previous_until(record: &KeyRecord, now: Timestamp) -> Option<Timestamp> {
    let until = record.previous.as_ref()?.until;
    (now < until).then_some(until)
}

/// A record with the details that lists leave out, and `more` members.
pub(super) fn detailed(record: &KeyRecord, now: Timestamp, more: Value) -> impl Serialize {
    let details =
        json!({ "previous_until": previous_until(record, now), "grants": *record.grants });
    let record = Extended {
        record: KeyView::of(record, now),
        more: details,
    };
    Extended { record, more }
}

/// The same for people; a day's grants with the reasons of those in `granted`.
pub(super) fn detailed_fields(
    record: &KeyRecord,
    now: Timestamp,
    calendar: &Calendar,
    granted: &[Entry],
) -> Vec<(&'static str, String)> {
    let mut fields = KeyView::of(record, now).fields(calendar);
    if let Some(until) = previous_until(record, now) {
        fields.push(("old key until", to_the_second(until)));
    }
    for (date, units) in record.grants.iter() {
        let is_of_day = |one: &&Entry| one.granted().is_some_and(|(day, _)| day == *date);
        let of_day = granted.iter().filter(is_of_day);
        let reasons: Vec<&str> = of_day.filter_map(|one| one.reason.as_deref()).collect();
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
        let view = Extended {
            record: KeyView::of(&record, Timestamp::UNIX_EPOCH),
            more: json!({ "key": key.reveal() }),
        };
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["key"], key.reveal());
        assert_eq!(json["id"], key.id().as_str());
        assert_eq!(json["tier"], "pro");
    }
}

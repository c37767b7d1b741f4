//! How the store handles a call: `charge.lua` in Rust.
//!
//! The script decides in production; this model states what it must decide, and a test compares both. Invariant: `used` is the
//! sum of all grants minus the sum of all refunds; a grant never raises `used` above the call's limit; merging a call twice, or
//! after a later one, changes nothing.

use std::collections::BTreeMap;

use super::{Code, Reply};

/// A key's record, as stored beside the counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// Its version.
    pub version: u64,
    /// Its packed form, which the store does not read.
    pub packed: String,
}

/// A call with all arguments of the script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCall {
    /// The calling producer.
    pub producer: String,
    /// Units consumed so far.
    pub ack: u64,
    /// Units refunded so far.
    pub rack: u64,
    /// Units wanted.
    pub want: u64,
    /// The units of each charge in `want`, which is a multiple of it.
    pub cost: u64,
    /// The units that all producers together may use.
    pub limit: u64,
    /// The record by which the caller judged; one with an empty packed form is not stored.
    pub record: StoredRecord,
    /// The day's first second (Unix seconds).
    pub start: i64,
    /// The next day's first second (Unix seconds).
    pub end: i64,
    /// How long after its end the day is closed (seconds).
    pub settle_window: i64,
}

/// The totals of one producer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marks {
    /// Units granted.
    pub granted: u64,
    /// Units refunded.
    pub refunded: u64,
}

/// The counts of one key on one day.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelDay {
    /// Units granted minus units refunded. Below zero only after the store lost writes.
    pub used: i64,
    /// The first second of the day and of the next one, once something was counted.
    pub boundaries: Option<(i64, i64)>,
    /// Marks by producer.
    pub producers: BTreeMap<String, Marks>,
    /// Units in `used` that arrived after the day was closed, by time of arrival (Unix seconds, rounded down to 900).
    pub adjustments: BTreeMap<i64, i64>,
}

impl ModelDay {
    /// Merges the producer's totals, then grants within the limit. `stored` is the key's record, `now` the store's time (Unix
    /// seconds).
    pub fn charge(
        &mut self,
        stored: &mut Option<StoredRecord>,
        call: &ModelCall,
        now: i64,
    ) -> Reply {
        let behind = stored
            .as_ref()
            .is_none_or(|stored| stored.version < call.record.version);
        let repairs = behind && !call.record.packed.is_empty();
        let is_revoked = |record: &StoredRecord| record.packed.contains(r#""state":"revoked""#);
        let refused =
            repairs && !is_revoked(&call.record) && stored.as_ref().is_some_and(is_revoked);
        if repairs && !refused {
            *stored = Some(call.record.clone());
        }
        let before = self
            .producers
            .get(&call.producer)
            .copied()
            .unwrap_or_default();
        let mut marks = Marks {
            granted: before.granted.max(call.ack),
            refunded: before.refunded.max(call.rack),
        };
        let mut used = self.used + signed(marks.granted - before.granted)
            - signed(marks.refunded - before.refunded);
        let late = used - self.used;
        if late != 0 && now >= call.end + call.settle_window {
            *self.adjustments.entry(now - now % 900).or_default() += late;
        }
        let mut grant = marks.granted - call.ack;
        let mut record = String::new();
        let code = match (&*stored, self.boundaries) {
            (Some(stored), _) if refused || stored.version > call.record.version => {
                record.clone_from(&stored.packed);
                Code::KeyChanged
            }
            (_, Some(boundaries)) if boundaries != (call.start, call.end) => Code::OtherCalendar,
            _ if call.want > 0 && !(call.start..call.end).contains(&now) => Code::OtherDay,
            _ if call.want > grant => {
                let room = u64::try_from(signed(call.limit) - used).unwrap_or(0);
                let granted = call.want.min((grant + room) / call.cost * call.cost);
                let need = granted.saturating_sub(grant);
                used += signed(need);
                marks.granted += need;
                grant += need;
                if grant < call.want {
                    Code::Exhausted
                } else {
                    Code::Granted
                }
            }
            _ => Code::Granted,
        };
        if marks != before || used != self.used {
            self.used = used;
            self.producers.insert(call.producer.clone(), marks);
            self.boundaries.get_or_insert((call.start, call.end));
        }
        Reply {
            code,
            grant,
            used: u64::try_from(used).unwrap_or(0),
            version: stored.as_ref().map(|stored| stored.version),
            now,
            record,
        }
    }
}

/// Counts stay far below 2^53, up to which the script's numbers are exact.
fn signed(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(producer: &str, ack: u64, rack: u64, want: u64) -> ModelCall {
        ModelCall {
            producer: producer.into(),
            ack,
            rack,
            want,
            cost: 1,
            limit: 10,
            record: StoredRecord {
                version: 1,
                packed: "record".into(),
            },
            start: 0,
            end: 100,
            settle_window: 50,
        }
    }

    #[test]
    fn grants_end_at_the_limit_and_a_repeated_call_takes_nothing_more() {
        let (mut day, mut stored) = (ModelDay::default(), None);
        let first = day.charge(&mut stored, &call("a", 0, 0, 7), 50);
        assert_eq!((first.code, first.grant, first.used), (Code::Granted, 7, 7));
        let again = day.charge(&mut stored, &call("a", 0, 0, 7), 50);
        assert_eq!((again.code, again.grant, again.used), (Code::Granted, 7, 7));
        let other = day.charge(&mut stored, &call("b", 0, 0, 7), 50);
        assert_eq!(
            (other.code, other.grant, other.used),
            (Code::Exhausted, 3, 10)
        );
    }

    #[test]
    fn a_grant_is_of_whole_charges_unless_it_was_made_before() {
        let (mut day, mut stored) = (ModelDay::default(), None);
        let fours = |producer, want| ModelCall {
            cost: 4,
            ..call(producer, 0, 0, want)
        };
        let some = day.charge(&mut stored, &fours("a", 12), 50);
        assert_eq!((some.code, some.grant, some.used), (Code::Exhausted, 8, 8));
        let none = day.charge(&mut stored, &fours("b", 4), 50);
        assert_eq!((none.code, none.grant, none.used), (Code::Exhausted, 0, 8));
        let lost = day.charge(&mut stored, &call("c", 0, 0, 1), 50);
        assert_eq!((lost.code, lost.grant, lost.used), (Code::Granted, 1, 9));
        let kept = day.charge(&mut stored, &fours("c", 4), 50);
        assert_eq!((kept.code, kept.grant, kept.used), (Code::Exhausted, 1, 9));
    }

    #[test]
    fn a_caller_with_an_older_record_gets_the_newer_one_and_no_grant() {
        let (mut day, mut stored) = (ModelDay::default(), None);
        let newer = StoredRecord {
            version: 2,
            packed: "newer".into(),
        };
        day.charge(
            &mut stored,
            &ModelCall {
                record: newer.clone(),
                ..call("a", 0, 0, 1)
            },
            50,
        );
        let reply = day.charge(&mut stored, &call("b", 0, 0, 1), 50);
        assert_eq!(
            (reply.code, reply.grant, reply.record.as_str()),
            (Code::KeyChanged, 0, "newer")
        );
        assert_eq!(stored, Some(newer));
    }

    #[test]
    fn yesterday_and_other_boundaries_merge_without_a_grant() {
        let (mut day, mut stored) = (ModelDay::default(), None);
        let late = day.charge(&mut stored, &call("a", 3, 1, 5), 100);
        assert_eq!((late.code, late.grant, late.used), (Code::OtherDay, 0, 2));
        let other = day.charge(
            &mut stored,
            &ModelCall {
                start: 1,
                ..call("a", 3, 2, 5)
            },
            50,
        );
        assert_eq!(
            (other.code, other.grant, other.used),
            (Code::OtherCalendar, 0, 1)
        );
    }

    #[test]
    fn what_is_merged_into_a_closed_day_is_counted_and_stands_apart() {
        let (mut day, mut stored) = (ModelDay::default(), None);
        day.charge(&mut stored, &call("a", 0, 0, 4), 50);
        day.charge(&mut stored, &call("b", 3, 1, 0), 149);
        assert_eq!((day.used, day.adjustments.len()), (6, 0));
        for _ in 0..2 {
            day.charge(&mut stored, &call("b", 9, 2, 0), 150);
        }
        day.charge(&mut stored, &call("a", 4, 1, 0), 1_000);
        assert_eq!(day.used, 10);
        assert_eq!(day.adjustments, BTreeMap::from([(0, 5), (900, -1)]));
    }
}

//! Quota days: calendar days of an IANA zone, each with its first second and the next day's.
//!
//! The date is part of every counter's name, so nothing is ever reset: a new day is a new counter. Days of a zone with
//! daylight saving have 23 or 25 hours; each is one quota day.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

/// One quota day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Day {
    /// Its date, and the name of its counters.
    pub date: Date,
    /// Its first second (Unix seconds).
    pub start: i64,
    /// The first second of the next day (Unix seconds).
    pub end: i64,
}

impl Day {
    /// Whether `now` is in this day.
    pub fn contains(&self, now: Timestamp) -> bool {
        (self.start..self.end).contains(&now.as_second())
    }

    /// Whole seconds from `now` to the next day, rounded up so that a client that waits for them is in it; at least 1.
    pub fn seconds_left(&self, now: Timestamp) -> i64 {
        (self.end - now.as_second()).max(1)
    }

    /// The day's length in seconds: 86,400, or an hour more or less where clocks change.
    pub fn length_seconds(&self) -> i64 {
        self.end - self.start
    }
}

/// Why a quota day cannot be determined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    /// The zone is not in the IANA database.
    #[error("{name:?} is not an IANA time zone; write one like UTC or Europe/London")]
    UnknownZone {
        /// The configured name.
        name: String,
    },
    /// The instant is outside the supported years.
    #[error("the clock shows an instant outside the calendar")]
    OutOfRange,
    /// The date is outside the supported years.
    #[error("{date} is outside the calendar, whose last day is {last}")]
    DateOutOfRange {
        /// The date.
        date: Date,
        /// The last possible one.
        last: Date,
    },
}

/// Whether two names are of one zone. Versions up to 0.2.0 stored a name as it was written, in letters of any case.
pub fn is_same_zone(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
}

/// How instants are divided into quota days.
#[derive(Debug, Clone)]
pub struct Calendar {
    division: Division,
    name: String,
}

#[derive(Debug, Clone)]
enum Division {
    Zone(TimeZone),
    Fixed {
        origin: Timestamp,
        length_seconds: i64,
    },
}

impl Calendar {
    /// Calendar days of the IANA zone `name`, in letters of any case. The zone table is compiled in.
    pub fn of_zone(name: &str) -> Result<Calendar, CalendarError> {
        let zone =
            TimeZone::get(name).map_err(|_| CalendarError::UnknownZone { name: name.into() })?;
        // The name in the table, so that `europe/london` is not another zone than `Europe/London`.
        let name = zone.iana_name().unwrap_or(name).to_owned();
        Ok(Calendar {
            division: Division::Zone(zone),
            name,
        })
    }

    /// Days of `length_seconds` each from `origin` on, named by the dates from 2001-01-01 on: a calendar for tests that
    /// cross many midnights on a real store.
    ///
    /// # Panics
    /// If `length_seconds` is not positive.
    pub fn of_fixed_days(origin: Timestamp, length_seconds: i64) -> Calendar {
        assert!(length_seconds > 0, "a day has a length");
        Calendar {
            division: Division::Fixed {
                origin,
                length_seconds,
            },
            name: format!("fixed-{length_seconds}s"),
        }
    }

    /// The zone's name, which the store records; a gateway with another zone is refused.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The quota day of `now`. Costs a zone look-up: callers keep the day until it is over.
    pub fn day_at(&self, now: Timestamp) -> Result<Day, CalendarError> {
        let date = self.division.date_at(now);
        self.day_of(date.map_err(|_| CalendarError::OutOfRange)?)
    }

    /// The first instant of the quota day with this date; the day itself may end after the last instant.
    pub fn start_of(&self, date: Date) -> Result<Timestamp, CalendarError> {
        let start = self.division.first_instant(date);
        let last = || self.division.last();
        start.map_err(|_| CalendarError::DateOutOfRange { date, last: last() })
    }

    /// The quota day with this date.
    pub fn day_of(&self, date: Date) -> Result<Day, CalendarError> {
        let start = self.division.first_instant(date);
        let next = date.tomorrow();
        let end = next.and_then(|next| self.division.first_instant(next));
        let (Ok(start), Ok(end)) = (start, end) else {
            // The day of the last instant has no end.
            let last = self.division.last();
            let last = last.yesterday().unwrap_or(last);
            return Err(CalendarError::DateOutOfRange { date, last });
        };
        Ok(Day {
            date,
            start: start.as_second(),
            end: end.as_second(),
        })
    }
}

impl Division {
    fn date_at(&self, now: Timestamp) -> Result<Date, jiff::Error> {
        match self {
            Division::Zone(zone) => Ok(zone.to_datetime(now).date()),
            Division::Fixed {
                origin,
                length_seconds,
            } => {
                let index = (now.as_second() - origin.as_second()).div_euclid(*length_seconds);
                FIRST_FIXED_DATE.checked_add(Span::new().try_days(index)?)
            }
        }
    }

    /// The first instant of a date, which is after midnight where a clock change skips midnight.
    fn first_instant(&self, date: Date) -> Result<Timestamp, jiff::Error> {
        match self {
            Division::Zone(zone) => {
                let midnight = date.to_zoned(zone.clone())?;
                Ok(midnight.start_of_day()?.timestamp())
            }
            Division::Fixed {
                origin,
                length_seconds,
            } => {
                let index = i64::from(FIRST_FIXED_DATE.until(date)?.get_days());
                Timestamp::from_second(origin.as_second() + index * length_seconds)
            }
        }
    }

    /// The date of the last instant.
    fn last(&self) -> Date {
        self.date_at(Timestamp::MAX).unwrap_or(Date::MAX)
    }
}

const FIRST_FIXED_DATE: Date = jiff::civil::date(2001, 1, 1);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn day(zone: &str, now: &str) -> Day {
        Calendar::of_zone(zone)
            .unwrap()
            .day_at(now.parse().unwrap())
            .unwrap()
    }

    #[test]
    fn a_day_in_utc_has_24_hours_and_ends_at_midnight() {
        let day = day("UTC", "2026-11-21T23:59:59.999Z");
        assert_eq!(day.date.to_string(), "2026-11-21");
        assert_eq!(day.length_seconds(), 86_400);
        assert_eq!(
            day.end,
            "2026-11-22T00:00:00Z"
                .parse::<Timestamp>()
                .unwrap()
                .as_second()
        );
    }

    #[test]
    fn the_day_on_which_clocks_go_forward_has_23_hours() {
        let day = day("Europe/London", "2026-03-29T12:00:00Z");
        assert_eq!(
            (day.date.to_string().as_str(), day.length_seconds()),
            ("2026-03-29", 23 * 3600)
        );
        assert_eq!(
            day.end,
            "2026-03-29T23:00:00Z"
                .parse::<Timestamp>()
                .unwrap()
                .as_second()
        );
    }

    #[test]
    fn the_day_on_which_clocks_go_back_has_25_hours() {
        let day = day("America/New_York", "2026-11-01T12:00:00Z");
        assert_eq!(
            (day.date.to_string().as_str(), day.length_seconds()),
            ("2026-11-01", 25 * 3600)
        );
        assert_eq!(
            day.end,
            "2026-11-02T05:00:00Z"
                .parse::<Timestamp>()
                .unwrap()
                .as_second()
        );
    }

    #[test]
    fn a_day_without_a_midnight_begins_where_the_gap_ends() {
        // Clocks in Beirut go from 00:00 to 01:00 on this date.
        let day = day("Asia/Beirut", "2026-03-29T10:00:00Z");
        assert_eq!(day.length_seconds(), 23 * 3600);
        assert!(day.contains(Timestamp::from_second(day.start).unwrap()));
    }

    #[test]
    fn the_seconds_left_are_never_below_one() {
        let day = day("UTC", "2026-11-21T12:00:00Z");
        let at = |text: &str| day.seconds_left(text.parse().unwrap());
        assert_eq!(at("2026-11-21T00:00:00Z"), 86_400);
        assert_eq!(at("2026-11-21T23:59:59.5Z"), 1);
        assert_eq!(at("2026-11-22T00:00:05Z"), 1);
    }

    #[test]
    fn a_zone_has_the_name_of_the_table_in_whatever_case_it_is_written() {
        for (written, name) in [
            ("europe/LONDON", "Europe/London"),
            ("Europe/London", "Europe/London"),
            ("utc", "UTC"),
        ] {
            assert_eq!(Calendar::of_zone(written).unwrap().name(), name);
        }
        // Stores have recorded these names.
        for name in jiff::tz::db().available() {
            let name = name.as_str();
            assert_eq!(Calendar::of_zone(name).unwrap().name(), name);
        }
    }

    #[test]
    fn an_unknown_zone_is_refused() {
        assert!(matches!(
            Calendar::of_zone("Mars/Olympus"),
            Err(CalendarError::UnknownZone { .. })
        ));
    }

    #[test]
    fn a_date_outside_the_calendar_is_an_error_with_the_last_possible_one() {
        for (zone, last, last_begun) in [
            ("UTC", "9999-12-29", "9999-12-30"),
            ("America/New_York", "9999-12-29", "9999-12-30"),
            ("Pacific/Kiritimati", "9999-12-30", "9999-12-31"),
        ] {
            let calendar = Calendar::of_zone(zone).unwrap();
            let date = |text: &str| text.parse::<Date>().unwrap();
            assert_eq!(calendar.day_of(date(last)).unwrap().date, date(last));
            assert_eq!(
                calendar.start_of(date(last)).unwrap().as_second(),
                calendar.day_of(date(last)).unwrap().start
            );
            assert!(calendar.start_of(date(last_begun)).is_ok(), "{zone}");
            assert_eq!(
                calendar.day_of(Date::MAX).unwrap_err().to_string(),
                format!("9999-12-31 is outside the calendar, whose last day is {last}")
            );
            for early in [
                calendar.day_of(Date::MIN),
                calendar.day_of(date(last_begun)),
            ] {
                assert!(matches!(early, Err(CalendarError::DateOutOfRange { .. })));
            }
        }
        let utc = Calendar::of_zone("UTC").unwrap();
        let late = utc.start_of(Date::MAX).unwrap_err().to_string();
        assert!(late.ends_with("whose last day is 9999-12-30"), "{late}");
    }

    proptest! {
        #[test]
        fn days_tile_time_without_gap_or_overlap(
            zone in prop::sample::select(vec!["UTC", "Europe/London", "America/New_York", "Asia/Beirut", "Australia/Lord_Howe", "Pacific/Apia", "America/Sao_Paulo"]),
            second in 946_684_800i64..2_208_988_800,
        ) {
            let calendar = Calendar::of_zone(zone).unwrap();
            let now = Timestamp::from_second(second).unwrap();
            let day = calendar.day_at(now).unwrap();
            prop_assert!(day.contains(now));
            prop_assert_eq!(calendar.day_of(day.date).unwrap(), day);
            let next = calendar.day_at(Timestamp::from_second(day.end).unwrap()).unwrap();
            prop_assert_eq!(next.start, day.end);
            prop_assert!(next.date > day.date);
        }

        #[test]
        fn fixed_days_tile_time_too(second in 0i64..1_000_000, length in 1i64..100) {
            let calendar = Calendar::of_fixed_days(Timestamp::from_second(500).unwrap(), length);
            let now = Timestamp::from_second(second).unwrap();
            let day = calendar.day_at(now).unwrap();
            prop_assert!(day.contains(now));
            prop_assert_eq!(day.length_seconds(), length);
            prop_assert_eq!(calendar.day_of(day.date).unwrap(), day);
        }
    }
}

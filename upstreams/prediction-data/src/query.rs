//! Query strings → checked filters and pages.
//!
//! Strict: a parameter that is unknown, repeated or out of range is refused, because a misspelt filter that is ignored gives a
//! customer the wrong rows without a word. All problems of a query are reported at once.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::Serialize;

use crate::catalogue::FixtureFilter;
use crate::data_set::{FixtureId, Team};

/// Rows on a page if the client gives no number.
pub const PER_PAGE_DEFAULT: usize = 20;
/// Most rows on a page: about 60 kB of the largest rows.
pub const PER_PAGE_MAX: usize = 100;
/// The highest page that can be asked for; a sane client stops at `pagination.pages`.
pub const PAGE_MAX: usize = 1_000_000;
/// Parameters read from one query; there are nine in all.
pub const PARAMETERS_MAX: usize = 32;
/// Characters of a parameter's name that are repeated in an answer.
const NAME_SHOWN_MAX: usize = 64;

/// What is wrong with one parameter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ParameterProblem {
    /// Its name, cut to 64 characters.
    pub parameter: String,
    /// What is wrong.
    pub detail: String,
    /// How to mend it.
    pub hint: String,
}

/// Which part of a list is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    page: usize,
    per_page: usize,
}

/// Where a page lies in its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Pagination {
    /// The page, from 1. A page after the last is empty.
    pub page: usize,
    /// Rows on a full page.
    pub per_page: usize,
    /// Rows on all pages.
    pub total: usize,
    /// Number of pages; 0 where there are no rows.
    pub pages: usize,
}

impl Page {
    /// The rows of this page, and where it lies.
    pub fn of<T>(self, rows: Vec<T>) -> (Vec<T>, Pagination) {
        let pagination = Pagination {
            page: self.page,
            per_page: self.per_page,
            total: rows.len(),
            pages: rows.len().div_ceil(self.per_page),
        };
        let before = (self.page - 1) * self.per_page;
        let rows = rows.into_iter().skip(before).take(self.per_page).collect();
        (rows, pagination)
    }
}

/// What filters can name, for checks and for hints.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// The teams of the league.
    pub teams: &'a [Team],
    /// The last round of the season.
    pub rounds: u16,
}

/// A query being read. Each reading method takes its parameters out; [`finish`](Self::finish) refuses what is left.
#[derive(Debug)]
pub struct Parameters {
    given: Vec<(String, String)>,
    known: Vec<&'static str>,
    problems: Vec<ParameterProblem>,
}

impl Parameters {
    /// Takes a query string (without `?`) apart.
    pub fn parse(query: &str) -> Self {
        let given: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes())
            .take(PARAMETERS_MAX + 1)
            .map(|(name, value)| (name.into_owned(), value.into_owned()))
            .collect();
        let mut parameters = Self {
            given,
            known: Vec::new(),
            problems: Vec::new(),
        };
        if parameters.given.len() > PARAMETERS_MAX {
            parameters.given.clear();
            parameters.refuse(
                "*",
                "there are too many parameters",
                &format!("give at most {PARAMETERS_MAX}"),
            );
        }
        parameters
    }

    /// Reads `page` and `per_page`.
    pub fn page(&mut self) -> Page {
        Page {
            page: self.whole_number("page", 1, PAGE_MAX).unwrap_or(1),
            per_page: self
                .whole_number("per_page", 1, PER_PAGE_MAX)
                .unwrap_or(PER_PAGE_DEFAULT),
        }
    }

    /// Reads `team`, `round`, `from` and `to`.
    pub fn fixture_filter(&mut self, terms: Terms<'_>) -> FixtureFilter {
        let round = self.whole_number("round", 1, usize::from(terms.rounds));
        let filter = FixtureFilter {
            fixture_id: None,
            team_id: self.team(terms.teams),
            round: round.and_then(|round| u16::try_from(round).ok()),
            from: self.instant("from", DayBound::Start),
            to: self.instant("to", DayBound::End),
        };
        if let (Some(from), Some(to)) = (filter.from, filter.to)
            && from > to
        {
            self.refuse("to", "lies before from", "swap the two, or leave one out");
        }
        filter
    }

    /// Reads `fixture_id`.
    pub fn fixture_id(&mut self) -> Option<FixtureId> {
        let number = self.whole_number("fixture_id", 0, u32::MAX as usize)?;
        u32::try_from(number).ok().map(FixtureId)
    }

    /// Reads a parameter that is one of `choices`.
    pub fn choice<T: Copy>(
        &mut self,
        name: &'static str,
        choices: &[(&'static str, T)],
    ) -> Option<T> {
        let value = self.take(name)?;
        let found = choices
            .iter()
            .find(|(choice, _)| *choice == value)
            .map(|(_, meaning)| *meaning);
        if found.is_none() {
            let names: Vec<&str> = choices.iter().map(|(choice, _)| *choice).collect();
            self.refuse(
                name,
                "is not one of the values it takes",
                &format!("use one of {}", names.join(", ")),
            );
        }
        found
    }

    /// Reads a whole number from `min` to `max`.
    pub fn whole_number(&mut self, name: &'static str, min: usize, max: usize) -> Option<usize> {
        let value = self.take(name)?;
        let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        let number = value
            .parse()
            .ok()
            .filter(|number| digits && (min..=max).contains(number));
        if number.is_none() {
            self.refuse(
                name,
                &format!("is not a whole number from {min} to {max}"),
                &format!("write digits only, such as {name}={min}"),
            );
        }
        number
    }

    /// Errs with every problem found, among them each unknown parameter.
    pub fn finish(mut self) -> Result<(), Vec<ParameterProblem>> {
        let hint = match self.known.as_slice() {
            [] => "this resource takes no parameters".to_owned(),
            known => format!("this resource takes {}", known.join(", ")),
        };
        for (name, _) in std::mem::take(&mut self.given) {
            self.refuse(&name, "is not a parameter of this resource", &hint);
        }
        if self.problems.is_empty() {
            Ok(())
        } else {
            Err(self.problems)
        }
    }

    fn team(&mut self, teams: &[Team]) -> Option<String> {
        let value = self.take("team")?;
        if !teams.iter().any(|team| team.id == value) {
            let ids: Vec<&str> = teams.iter().map(|team| team.id.as_str()).collect();
            self.refuse(
                "team",
                "is not the id of a team",
                &format!("use one of {}", ids.join(", ")),
            );
            return None;
        }
        Some(value)
    }

    fn instant(&mut self, name: &'static str, bound: DayBound) -> Option<Timestamp> {
        let value = self.take(name)?;
        let instant = parse_instant(&value, bound);
        if instant.is_none() {
            self.refuse(
                name,
                "is neither a date nor an instant",
                "write a date such as 2026-11-28 (the whole day, UTC) or an instant such as 2026-11-28T15:00:00Z; \
                 a + in an offset is written %2B",
            );
        }
        instant
    }

    /// Takes out the value of `name`; a second one is a problem.
    fn take(&mut self, name: &'static str) -> Option<String> {
        self.known.push(name);
        let (mine, others) = std::mem::take(&mut self.given)
            .into_iter()
            .partition(|(given, _)| given == name);
        self.given = others;
        let mut values = Vec::into_iter(mine).map(|(_, value): (String, String)| value);
        let first = values.next();
        if values.next().is_some() {
            self.refuse(name, "is given more than once", "give it once");
            return None;
        }
        first
    }

    fn refuse(&mut self, parameter: &str, detail: &str, hint: &str) {
        self.problems.push(ParameterProblem {
            parameter: parameter.chars().take(NAME_SHOWN_MAX).collect(),
            detail: detail.to_owned(),
            hint: hint.to_owned(),
        });
    }
}

/// Which instant of a day a date stands for.
#[derive(Debug, Clone, Copy)]
enum DayBound {
    Start,
    End,
}

fn parse_instant(value: &str, bound: DayBound) -> Option<Timestamp> {
    // A date has exactly this form; jiff's own parser would take what follows it, too.
    if value.len() == "2026-11-28".len() {
        let date: Date = value.parse().ok()?;
        let start = |date: Date| {
            date.to_zoned(TimeZone::UTC)
                .ok()
                .map(|zoned| zoned.timestamp())
        };
        return match bound {
            DayBound::Start => start(date),
            DayBound::End => start(date.tomorrow().ok()?)?
                .checked_sub(jiff::SignedDuration::from_nanos(1))
                .ok(),
        };
    }
    value.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn page(query: &str) -> Result<Page, Vec<ParameterProblem>> {
        let mut parameters = Parameters::parse(query);
        let page = parameters.page();
        parameters.finish().map(|()| page)
    }

    fn refused(query: &str) -> Vec<String> {
        page(query)
            .unwrap_err()
            .into_iter()
            .map(|problem| problem.parameter)
            .collect()
    }

    #[test]
    fn pages_are_within_their_limits_on_both_sides_of_each() {
        let of = |page, per_page| Page { page, per_page };
        assert_eq!(page(""), Ok(of(1, PER_PAGE_DEFAULT)));
        assert_eq!(page("per_page=1"), Ok(of(1, 1)));
        assert_eq!(page("per_page=100&page=1000000"), Ok(of(1_000_000, 100)));
        for bad in [
            "0",
            "101",
            "-1",
            "1.5",
            "+1",
            "",
            "99999999999999999999",
            "x",
            "%00",
        ] {
            assert_eq!(refused(&format!("per_page={bad}")), ["per_page"], "{bad}");
        }
        assert_eq!(refused("page=0"), ["page"]);
        assert_eq!(refused("page=1000001"), ["page"]);
    }

    #[test]
    fn all_problems_of_a_query_are_reported_at_once() {
        assert_eq!(
            refused("paeg=2&page=0&per_page=1&per_page=2"),
            ["page", "per_page", "paeg"]
        );
    }

    #[test]
    fn a_name_of_any_length_is_repeated_in_part_only() {
        let problems = page(&"é".repeat(1_000)).unwrap_err();
        assert_eq!(
            problems.first().unwrap().parameter.chars().count(),
            NAME_SHOWN_MAX
        );
    }

    #[test]
    fn the_33rd_parameter_is_refused() {
        assert_eq!(refused(&"a&".repeat(32)).len(), 32);
        assert_eq!(refused(&"a&".repeat(33)), ["*"]);
    }

    #[test]
    fn the_last_page_is_short_and_the_next_is_empty() {
        let rows: Vec<u32> = (0..41).collect();
        let at = |page| Page { page, per_page: 20 }.of(rows.clone());
        let (last, pagination) = at(3);
        assert_eq!(
            (last, pagination.pages, pagination.total),
            (vec![40], 3, 41)
        );
        assert!(at(4).0.is_empty());
        let (none, pagination) = Page {
            page: 1,
            per_page: 20,
        }
        .of(Vec::<u32>::new());
        assert_eq!((none.len(), pagination.pages), (0, 0));
    }

    #[test]
    fn a_date_is_the_whole_day_and_an_instant_is_itself() {
        let text = |value, bound| parse_instant(value, bound).map(|instant| instant.to_string());
        assert_eq!(
            text("2026-11-28", DayBound::Start).unwrap(),
            "2026-11-28T00:00:00Z"
        );
        assert_eq!(
            text("2026-11-28", DayBound::End).unwrap(),
            "2026-11-28T23:59:59.999999999Z"
        );
        assert_eq!(
            text("2026-11-28T15:00:00+02:00", DayBound::End).unwrap(),
            "2026-11-28T13:00:00Z"
        );
        for bad in [
            "2026-02-29",
            "yesterday",
            "2026-11-28T15:00:00",
            "",
            "20261128",
            "9999-12-31",
        ] {
            assert_eq!(text(bad, DayBound::End), None, "{bad}");
        }
    }
}

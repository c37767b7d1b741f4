//! `deprecation`, `sunset` and `links` of an endpoint.

use jiff::Timestamp;
use jiff::civil::Date;

use crate::config::check::{Check, Wrong};
use crate::config::outline::Path;
use crate::config::rows::{rows, text};
use crate::policy::calendar::Calendar;
use crate::policy::retirement::{LinkTarget, Relation, Retirement};

rows! {
    pub(super) struct LinksRows {
        /// A page about the deprecation: an http or https URL, or a path of this API.
        deprecation: Option<LinkTarget> = text(link);
        /// A page about the removal.
        sunset: Option<LinkTarget> = text(link);
        /// The endpoint that replaces it.
        successor_version: Option<LinkTarget> = text(link);
    }
}

/// A date or an instant, as written in the file.
pub(super) enum When {
    /// A date, which means the first instant of that quota day.
    Day(Date),
    Instant(Timestamp),
}

impl When {
    /// The instant of the value at `at`. `None` if its date is outside the calendar, which is a problem, or without a calendar:
    /// then `quota.timezone` is wrong, which is reported there.
    pub(super) fn instant(
        self,
        check: &mut Check<'_>,
        at: &Path,
        calendar: Option<&Calendar>,
    ) -> Option<Timestamp> {
        let date = match self {
            When::Day(date) => date,
            When::Instant(instant) => return Some(instant),
        };
        let start = calendar?.start_of(date).map_err(|error| {
            let hint = "write an earlier date, or an instant such as 2027-06-30T12:00:00Z";
            Wrong::new(error.to_string(), hint)
        });
        check.accept(at, start)
    }
}

pub(super) fn when(text: &str) -> Result<When, Wrong> {
    let hint = "write a date such as 2027-06-30, or an instant such as 2027-06-30T12:00:00Z";
    match text.parse::<Date>() {
        // Only YYYY-MM-DD is accepted as a date.
        Ok(date) if date.to_string() == text => Ok(When::Day(date)),
        Ok(_) | Err(_) => match text.parse::<Timestamp>() {
            Ok(instant) => Ok(When::Instant(instant)),
            Err(_) => Err(Wrong::not("an instant", hint)),
        },
    }
}

fn link(text: &str) -> Result<LinkTarget, Wrong> {
    let hint =
        "write a URL such as https://example.com/docs, or a path such as /api/v2/data/markets";
    LinkTarget::parse(text).ok_or_else(|| Wrong::not("a link", hint))
}

/// The announcement of an endpoint's removal.
pub(super) fn retirement(
    check: &mut Check<'_>,
    at: &Path,
    (deprecation, sunset): (Option<When>, Option<When>),
    links: LinksRows,
    calendar: Option<&Calendar>,
) -> Retirement {
    let [deprecation, sunset] = [("deprecation", deprecation), ("sunset", sunset)]
        .map(|(key, when)| when?.instant(check, &at.key(key), calendar));
    let links = [
        (Relation::Deprecation, links.deprecation),
        (Relation::Sunset, links.sunset),
        (Relation::SuccessorVersion, links.successor_version),
    ];
    let links = links
        .into_iter()
        .filter_map(|(relation, target)| Some((relation, target?)));
    Retirement::new(deprecation, sunset, links.collect()).unwrap_or_else(|error| {
        let hint = "the sunset must not be before the deprecation (RFC 9745)";
        check.wrong(&at.key("sunset"), error.to_string(), hint);
        Retirement::default()
    })
}

//! `deprecation`, `sunset` and `links` of an endpoint.

use jiff::Timestamp;
use jiff::civil::Date;

use crate::config::check::{Check, Wrong};
use crate::config::outline::Path;
use crate::config::scalar::Text;
use crate::config::text::{Leaf, LinksText, Section};
use crate::policy::calendar::Calendar;
use crate::policy::retirement::{LinkTarget, Relation, Retirement};

const INSTANT_HINT: &str =
    "write a date such as 2027-06-30, or an instant such as 2027-06-30T12:00:00Z";
const LINK_HINT: &str =
    "write an address such as https://example.com/docs, or a path such as /api/v2/data/markets";

/// What is said of an endpoint that is going away. A date is its first instant in `calendar`.
pub(super) fn retirement(
    check: &mut Check<'_>,
    at: &Path,
    (deprecation, sunset): (&Leaf<Text>, &Leaf<Text>),
    links: Section<LinksText>,
    calendar: Option<&Calendar>,
) -> Retirement {
    let sunset_at = at.key("sunset");
    let deprecation = instant(check, &at.key("deprecation"), deprecation, calendar);
    let sunset = instant(check, &sunset_at, sunset, calendar);
    let links = link_targets(check, &at.key("links"), links);
    Retirement::new(deprecation, sunset, links).unwrap_or_else(|error| {
        check.wrong(
            &sunset_at,
            error.to_string(),
            "an endpoint is deprecated first and gone later (RFC 9745)",
        );
        Retirement::default()
    })
}

/// An instant, or a date, which is its first instant in `calendar`.
pub(super) fn instant(
    check: &mut Check<'_>,
    at: &Path,
    leaf: &Leaf<Text>,
    calendar: Option<&Calendar>,
) -> Option<Timestamp> {
    check.parsed(at, leaf, |text| {
        let wrong = || Wrong::new(format!("{text:?} is not an instant"), INSTANT_HINT);
        let Some(date) = date(text) else {
            let instant = text.parse::<Timestamp>().map_err(|_| wrong())?;
            return Ok(instant);
        };
        let day = calendar.and_then(|calendar| calendar.day_of(date).ok());
        match day {
            Some(day) => Timestamp::from_second(day.start).map_err(|_| wrong()),
            // The calendar itself is wrong and told so.
            None => Ok(Timestamp::UNIX_EPOCH),
        }
    })
}

/// The date, in its one form.
fn date(text: &str) -> Option<Date> {
    let date: Date = text.parse().ok()?;
    (date.to_string() == text).then_some(date)
}

fn link_targets(
    check: &mut Check<'_>,
    at: &Path,
    section: Section<LinksText>,
) -> Vec<(Relation, LinkTarget)> {
    let text = check.section(at, section).unwrap_or_default();
    let mut links = Vec::new();
    for relation in Relation::ALL {
        let (name, leaf) = match relation {
            Relation::Deprecation => ("deprecation", &text.deprecation),
            Relation::Sunset => ("sunset", &text.sunset),
            Relation::SuccessorVersion => ("successor_version", &text.successor_version),
        };
        let target = check.parsed(&at.key(name), leaf, |text| {
            LinkTarget::parse(text)
                .ok_or_else(|| Wrong::new(format!("{text:?} is not a link"), LINK_HINT))
        });
        links.extend(target.map(|target| (relation, target)));
    }
    links
}

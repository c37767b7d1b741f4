//! Tiers and endpoints: the paths that may be called, the tiers that include them, and their upstreams.

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use http::Method;

use super::retirement::{LinksRows, When, retirement, when};
use super::upstreams::UpstreamConfig;
use crate::config::check::{Check, Wrong, name_hint};
use crate::config::outline::Path;
use crate::config::rows::{
    Placed, between, distinct, leaf, non_zero, optional, placed, plain, positive, required,
    required_as, rows, section, text,
};
use crate::config::scalar::{Price, Scalar};
use crate::policy::admission::Terms;
use crate::policy::calendar::Calendar;
use crate::policy::endpoint::{Endpoint, EndpointTable, PatternError};
use crate::policy::enforcement::Enforcement;
use crate::policy::key_record::TierName;
use crate::policy::maintenance::Maintenance;
use crate::policy::own_path::OwnPath;
use crate::policy::token_bucket::Rate;

const MILLION: u64 = 1_000_000;
/// The largest quota: far above any real one, and exact in every number format that it passes through.
const DAILY_MAX: u64 = 1_000_000_000_000;
/// The highest price: a million dollars a month.
const PRICE_MAX: Price = Price(100_000_000);
/// The highest rate of one key on one gateway, in requests a second, that is still computed exactly.
const RATE_MAX: u64 = 10_000;
/// The longest maintenance message: a sentence or two.
const MESSAGE_CHARS_MAX: usize = 500;
pub(super) const ENDPOINTS_HINT: &str =
    "write one such as { path: /api/v1/data/markets, tiers: [starter], upstream: prediction-data }";
/// The tier of requests without a valid key in metrics.
const WITHOUT_TIER: &str = "none";
const NO_TIER: &str = "no tier includes this endpoint";
const TIERS_HINT: &str = "write tiers: and a list of names";
const BURST_HINT: &str = "write burst: { rate: 20, burst: 40 }";

rows! {
    /// A subscription tier.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Tier {
        /// Units a quota day; a request takes its endpoint's cost.
        daily: NonZeroU64 = required("write daily: and the units a day", positive(1, 1..=DAILY_MAX));
        /// US dollars a month, as 99 or 99.50, for invoices; without it, no amount.
        price_cents as "price": Option<u64> = between(Price(0)..=PRICE_MAX).map(|price| price.map(|Price(cents)| cents));
        /// With false, requests of this tier are counted and get the rate-limit headers, but none is refused by tier, rates or quota.
        enforcement as "enforce": Enforcement = leaf().or(Enforcement::Enforced);
        /// How fast one key may send requests, on each gateway; without it, any rate. Requests above it get a 429 and are never
        /// charged.
        burst: Option<Rate> = section(|_, _, rows: BurstRows| Some(Rate::per_second(rows.rate, rows.burst)));
        /// Requests that one key may have in flight, on each gateway; without it, any number. Requests above it get a 429 and are never
        /// charged.
        concurrent: Option<NonZeroU32> = between(1..=MILLION).map(|most| most.map(non_zero));
    }

    struct BurstRows {
        /// Requests a second, once the burst is used.
        rate: NonZeroU32 = required(BURST_HINT, positive(1, 1..=RATE_MAX));
        /// Requests at once.
        burst: NonZeroU32 = required(BURST_HINT, positive(1, 1..=MILLION));
    }

    pub(super) struct EndpointRows {
        /// The path, matched exactly; `{name}` matches one segment, `{rest...}` at the end one or more.
        path: Option<Arc<str>> = required("write path: /api/v1/data/…", text(any).like("^/"));
        /// The allowed methods: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS. HEAD is allowed wherever GET is.
        methods: Vec<Method> = distinct(leaf).or_list("GET").not_empty("there is no method", Method::HINT);
        /// The tiers that include the endpoint.
        tiers: Vec<Placed<Arc<str>>> = required_as(NO_TIER, TIERS_HINT, placed(|| text(any)).not_empty(NO_TIER, TIERS_HINT));
        /// The units that one request takes from the daily quota.
        cost: NonZeroU32 = positive(1, 1..=MILLION);
        /// The upstream that requests are forwarded to.
        upstream: Option<Arc<str>> = required("write upstream: and the name of an upstream", text(any));
        /// The time from which clients should no longer use the endpoint: an instant such as 2027-06-30T12:00:00Z, or a date, which
        /// means its first instant in quota.timezone.
        deprecation: Option<When> = text(when);
        /// The time of its removal, written like `deprecation` and not before it. The endpoint is still served while it is in the file.
        sunset: Option<When> = text(when);
        /// Pages about the deprecation and removal, for clients.
        links: LinksRows = plain();
        /// Maintenance: requests get a 500 with Retry-After, are not forwarded and never charged.
        maintenance: Option<MaintenanceRows> = optional();
    }

    pub(super) struct MaintenanceRows {
        /// When the maintenance ends by itself: an instant such as 2026-11-22T06:00:00Z, or a date, which means its first instant in
        /// quota.timezone. Without it, the maintenance ends when this section is removed.
        until: Option<When> = text(when);
        /// The message for clients.
        message: Option<Arc<str>> = text(message);
    }
}

impl Tier {
    /// The limits of its keys.
    pub fn terms(&self) -> Terms {
        Terms {
            daily: self.daily.get(),
            burst: self.burst,
            concurrent: self.concurrent,
            enforcement: self.enforcement,
        }
    }
}

pub(super) fn tier(
    check: &mut Check<'_>,
    at: &Path,
    name: &str,
    tier: Tier,
) -> Option<(TierName, Tier)> {
    match name.parse::<TierName>() {
        Ok(name) if name.as_str() == WITHOUT_TIER => {
            let hint = "in metrics it stands for requests without a valid key: write another one";
            check.wrong_key(at, "this is not the name of a tier", hint);
            None
        }
        Ok(name) => Some((name, tier)),
        Err(error) => {
            check.wrong_key(at, "this is not the name of a tier", error.to_string());
            None
        }
    }
}

/// The names that endpoints may refer to, as far as they could be read; unreadable ones cause no further problems.
pub(super) struct KnownNames<'a> {
    /// The known tiers.
    pub(super) tiers: Option<&'a [(TierName, Tier)]>,
    /// The known upstreams.
    pub(super) upstreams: Option<&'a [(Arc<str>, UpstreamConfig)]>,
    /// The calendar for their dates.
    pub(super) calendar: Option<&'a Calendar>,
}

/// The endpoints; `None` if there are none or two of them overlap.
pub(super) fn endpoints(
    check: &mut Check<'_>,
    rows: Vec<Option<(Path, EndpointRows)>>,
    known: &KnownNames<'_>,
) -> Option<EndpointTable> {
    let mut paths = Vec::new();
    let mut endpoints = Vec::new();
    for (at, rows) in rows.into_iter().flatten() {
        if let Some(endpoint) = endpoint(check, &at, rows, known) {
            paths.push(at.key("path"));
            endpoints.push(endpoint);
        }
    }
    for (tier, _) in known.tiers.unwrap_or_default() {
        if !endpoints.iter().any(|endpoint| endpoint.included_in(tier)) {
            let hint = "add it to tiers of an endpoint; a tier that only has a price for invoices may stay";
            let at = Path::default().key("tiers").key(tier.as_str());
            check.warn(
                &at,
                "no endpoint includes this tier: its keys get a 403",
                hint,
            );
        }
    }
    match EndpointTable::new(endpoints) {
        Ok(table) => {
            own_paths_are_free(check, &table, &paths);
            Some(table)
        }
        Err(problems) => {
            for (index, error) in problems {
                if let Some(at) = paths.get(index) {
                    wrong_pattern(check, at, &paths, &error);
                }
            }
            None
        }
    }
}

/// Notes that the pattern at `at` cannot be used beside those at `paths`.
fn wrong_pattern(check: &mut Check<'_>, at: &Path, paths: &[Path], error: &PatternError) {
    match error {
        PatternError::Overlap { other_index } => {
            let Some(other) = paths.get(*other_index) else {
                return;
            };
            let hint = format!(
                "a path may match one pattern only; the other is {}",
                other.as_str()
            );
            check.wrong(at, format!("it overlaps with {}", check.shown(other)), hint);
        }
        PatternError::Malformed { reason } => {
            check.wrong(at, "this is not a path pattern", reason);
        }
    }
}

/// One endpoint; `None` if it has no valid path.
fn endpoint(
    check: &mut Check<'_>,
    at: &Path,
    rows: EndpointRows,
    known: &KnownNames<'_>,
) -> Option<Endpoint> {
    let tiers = known
        .tiers
        .map(|tiers| tiers.iter().map(|(name, _)| name.as_str()).collect());
    let included = rows.tiers.into_iter().filter_map(|one| {
        let (name, shown) = (&one.value, &one.written);
        let tier = known_name("tier", name, shown, tiers.as_ref()).and_then(|()| {
            let tier = name.parse::<TierName>();
            tier.map_err(|error| {
                let message = format!("{shown:?} is not the name of a tier");
                Wrong::new(message, error.to_string())
            })
        });
        check.accept(&one.at, tier)
    });
    let tiers: Vec<TierName> = included.collect();
    let known_tiers = known.tiers.unwrap_or_default().iter();
    for (tier, terms) in known_tiers.filter(|(tier, _)| tiers.contains(tier)) {
        unaffordable(check, &at.key("cost"), rows.cost, tier, terms);
    }
    let upstreams = known
        .upstreams
        .map(|upstreams| upstreams.iter().map(|(name, _)| &**name).collect());
    let upstream = rows.upstream.and_then(|name| {
        let at = at.key("upstream");
        let known = known_name("upstream", &name, check.shown(&at), upstreams.as_ref());
        check.accept(&at, known.map(|()| name))
    });
    let calendar = known.calendar;
    let retirement = retirement(
        check,
        at,
        (rows.deprecation, rows.sunset),
        rows.links,
        calendar,
    );
    let maintenance = rows.maintenance.map(|maintenance| Maintenance {
        until: maintenance.until.and_then(|until| {
            let at = at.key("maintenance").key("until");
            until.instant(check, &at, calendar)
        }),
        message: maintenance.message,
    });
    Some(Endpoint {
        pattern: rows.path?,
        methods: rows.methods,
        tiers,
        cost: rows.cost,
        upstream: upstream.unwrap_or_default(),
        retirement,
        maintenance,
    })
}

/// Warns if no request of a tier fits its daily units.
fn unaffordable(check: &mut Check<'_>, at: &Path, cost: NonZeroU32, tier: &TierName, terms: &Tier) {
    let daily = terms.daily;
    if terms.enforcement == Enforcement::Enforced && u64::from(cost.get()) > daily.get() {
        check.warn(
            at,
            format!("without a grant, {tier} cannot pay for it: it has {daily} units a day"),
            format!("lower the cost, raise tiers.{tier}.daily, or remove {tier} from tiers"),
        );
    }
}

fn any(text: &str) -> Result<Arc<str>, Wrong> {
    Ok(text.into())
}

fn message(text: &str) -> Result<Arc<str>, Wrong> {
    let printable = !text.chars().any(char::is_control) && !text.trim().is_empty();
    if printable && text.chars().count() <= MESSAGE_CHARS_MAX {
        return Ok(text.into());
    }
    let hint = format!("one line of 1 to {MESSAGE_CHARS_MAX} characters");
    Err(Wrong::new("the message cannot be sent to clients", hint))
}

/// Checks that `name`, written as `shown`, is one of `names`, if those are known.
fn known_name(kind: &str, name: &str, shown: &str, names: Option<&Vec<&str>>) -> Result<(), Wrong> {
    let Some(names) = names.filter(|names| !names.contains(&name)) else {
        return Ok(());
    };
    let hint = name_hint(name, names, &format!("the {kind}s of this file are:"));
    Err(Wrong::new(format!("there is no {kind} {shown:?}"), hint))
}

fn own_paths_are_free(check: &mut Check<'_>, table: &EndpointTable, paths: &[Path]) {
    let own = OwnPath::ALL.map(OwnPath::as_str);
    let taken: BTreeSet<&str> = own
        .into_iter()
        .filter_map(|path| Some(&*table.find(path)?.pattern))
        .collect();
    for (endpoint, at) in table.iter().zip(paths) {
        if taken.contains(&*endpoint.pattern) {
            check.wrong(
                at,
                "the gateway answers this path itself",
                format!("choose another: {} are taken", own.join(" and ")),
            );
        }
    }
}

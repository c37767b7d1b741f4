//! Tiers and endpoints: who may call what, and where it goes.

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use http::Method;
use serde_yaml::Value;

use super::retirement::{instant, retirement};
use crate::config::check::{Check, Wrong, nearest};
use crate::config::outline::Path;
use crate::config::scalar::Price;
use crate::config::text::{
    BurstText, EndpointText, Leaf, List, MaintenanceText, Named, Section, TierText,
};
use crate::config::{Tier, Upstream};
use crate::policy::calendar::Calendar;
use crate::policy::endpoint::{Endpoint, EndpointTable, PatternError};
use crate::policy::enforcement::Enforcement;
use crate::policy::key_record::TierName;
use crate::policy::maintenance::Maintenance;
use crate::policy::own_path::OwnPath;
use crate::policy::token_bucket::Rate;

/// Far above any quota, and exact in every number format on the way.
const DAILY_MAX: u64 = 1_000_000_000_000;
/// A million dollars a month.
const PRICE_MAX: Price = Price(100_000_000);
const COST_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(999_999);
/// Requests a second of one key on one gateway: the most that is still told exactly.
const RATE_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(9_999);
const BURST_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(999_999);
const CONCURRENT_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(999_999);
/// A sentence or two.
const MESSAGE_CHARS_MAX: usize = 500;
/// `CONNECT` and `TRACE` have no place behind a gateway; `HEAD` comes with `GET`.
const METHODS: [Method; 7] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
];
const METHODS_HINT: &str = "write GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS";

/// The tiers; `None` where there are none.
pub(super) fn tiers(
    check: &mut Check<'_>,
    at: &Path,
    named: Named<TierText>,
) -> Option<Vec<(TierName, Tier)>> {
    let mut tiers = Vec::new();
    for (at, name, value) in check.named(at, named, "write one such as starter: { daily: 1000 }")? {
        let text: TierText = check.section_of(&at, value).unwrap_or_default();
        let daily_at = at.key("daily");
        check.required(
            &daily_at,
            &text.daily,
            "write daily: and the requests a day",
        );
        let daily = check.bounded(&daily_at, &text.daily, 1, 1..=DAILY_MAX);
        let price_at = at.key("price");
        let prices = Price(0)..=PRICE_MAX;
        check.bounds(&price_at, &prices);
        let price = text.price.is_given().then(|| {
            let price = check.bounded(&price_at, &text.price, Price(0), prices);
            price.0
        });
        let burst = burst(check, &at.key("burst"), text.burst);
        let concurrent_at = at.key("concurrent");
        let bounds = NonZeroU32::MIN..=CONCURRENT_MAX;
        check.bounds(&concurrent_at, &bounds);
        let concurrent = text
            .concurrent
            .is_given()
            .then(|| check.bounded(&concurrent_at, &text.concurrent, NonZeroU32::MIN, bounds));
        let enforcement = check.leaf_or(&at.key("enforce"), &text.enforce, Enforcement::Enforced);
        match name.parse::<TierName>() {
            Ok(name) => tiers.push((
                name,
                Tier {
                    enforcement,
                    daily: NonZeroU64::new(daily).unwrap_or(NonZeroU64::MIN),
                    price_cents: price,
                    burst,
                    concurrent,
                },
            )),
            Err(error) => check.wrong_key(&at, "this is not the name of a tier", error.to_string()),
        }
    }
    Some(tiers)
}

/// How fast a key may send requests; `None` where nothing is said.
fn burst(check: &mut Check<'_>, at: &Path, section: Section<BurstText>) -> Option<Rate> {
    let text = check.section(at, section)?;
    let mut number = |name, leaf: &Leaf<NonZeroU32>, most| {
        let at = at.key(name);
        check.required(&at, leaf, "write burst: { rate: 20, burst: 40 }");
        check.bounded(&at, leaf, NonZeroU32::MIN, NonZeroU32::MIN..=most)
    };
    let rate = number("rate", &text.rate, RATE_MAX);
    let burst = number("burst", &text.burst, BURST_MAX);
    Some(Rate::per_second(rate, burst))
}

/// What endpoints refer to, as far as it could be read; what could not is not held against them.
pub(super) struct Known<'a> {
    /// The tiers they may name.
    pub(super) tiers: Option<&'a [(TierName, Tier)]>,
    /// The upstreams they may name.
    pub(super) upstreams: Option<&'a [Upstream]>,
    /// By what their dates are told.
    pub(super) calendar: Option<&'a Calendar>,
}

/// The endpoints; `None` where there are none or two of them overlap.
pub(super) fn endpoints(
    check: &mut Check<'_>,
    at: &Path,
    list: List<EndpointText>,
    known: &Known<'_>,
) -> Option<EndpointTable> {
    const HINT: &str = "write one such as { path: /api/v1/data/markets, tiers: [starter], upstream: prediction-data }";
    let given = list.is_given();
    let items = check.items(at, list).unwrap_or_default();
    if items.is_empty() {
        let message = if given {
            "at least one is needed"
        } else {
            "the key is missing"
        };
        check.wrong(at, message, HINT);
        return None;
    }
    let mut paths = Vec::new();
    let mut endpoints = Vec::new();
    for (at, item) in items {
        if let Some(endpoint) = endpoint(check, &at, item, known) {
            paths.push(at.key("path"));
            endpoints.push(endpoint);
        }
    }
    match EndpointTable::new(endpoints) {
        Ok(table) => {
            own_paths_are_free(check, &table, &paths);
            Some(table)
        }
        Err(problems) => {
            for (index, error) in problems {
                let Some(at) = paths.get(index) else { continue };
                match &error {
                    PatternError::Overlap { other_index, .. } => {
                        let other = paths
                            .get(*other_index)
                            .map(Path::as_str)
                            .unwrap_or_default();
                        check.wrong(
                            at,
                            error.to_string(),
                            format!("a path may match one pattern only; the other is {other}"),
                        );
                    }
                    PatternError::Malformed { reason } => {
                        check.wrong(at, "this is not a path pattern", reason)
                    }
                }
            }
            None
        }
    }
}

/// One endpoint; `None` where it has no path to be found by.
fn endpoint(check: &mut Check<'_>, at: &Path, item: Value, known: &Known<'_>) -> Option<Endpoint> {
    let text: EndpointText = check.section_of(at, item)?;
    check.required(&at.key("path"), &text.path, "write path: /api/v1/data/…");
    let pattern = check.leaf(&at.key("path"), &text.path);
    let methods_at = at.key("methods");
    if text.methods.is_empty() {
        check.wrong(&methods_at, "there is no method", METHODS_HINT);
    }
    check.default(&methods_at, vec![Method::GET.as_str()]);
    let methods = check.texts(&methods_at, text.methods, |text| {
        let known = METHODS.into_iter().find(|method| method.as_str() == text);
        known.ok_or_else(|| {
            Wrong::new(
                format!("{text:?} is not a method an endpoint can take"),
                METHODS_HINT,
            )
        })
    });
    let tiers_at = at.key("tiers");
    if text.tiers.is_empty() || !text.tiers.is_given() {
        check.wrong(
            &tiers_at,
            "there is no tier that includes it",
            "write tiers: and a list of names",
        );
    }
    let tiers = known.tier_names();
    let included = check.texts(&tiers_at, text.tiers, |text| {
        known_name("tier", text, tiers.as_deref()).and_then(|()| {
            text.parse::<TierName>().map_err(|error| {
                Wrong::new(
                    format!("{text:?} is not the name of a tier"),
                    error.to_string(),
                )
            })
        })
    });
    let cost = check.bounded(
        &at.key("cost"),
        &text.cost,
        NonZeroU32::MIN,
        NonZeroU32::MIN..=COST_MAX,
    );
    let upstream_at = at.key("upstream");
    check.required(
        &upstream_at,
        &text.upstream,
        "write upstream: and the name of one",
    );
    let upstream = check.parsed(&upstream_at, &text.upstream, |text| {
        known_name("upstream", text, known.upstream_names().as_deref()).map(|()| Arc::from(text))
    });
    let dates = (&text.deprecation, &text.sunset);
    let retirement = retirement(check, at, dates, text.links, known.calendar);
    let maintenance = maintenance(
        check,
        &at.key("maintenance"),
        text.maintenance,
        known.calendar,
    );
    Some(Endpoint {
        pattern: pattern?.0.into(),
        methods: methods.unwrap_or_else(|| vec![Method::GET]),
        tiers: included.unwrap_or_default(),
        cost,
        upstream: upstream.unwrap_or_default(),
        retirement,
        maintenance,
    })
}

/// That an endpoint is being worked on; `None` where nothing is said.
fn maintenance(
    check: &mut Check<'_>,
    at: &Path,
    section: Section<MaintenanceText>,
    calendar: Option<&Calendar>,
) -> Option<Maintenance> {
    let text = check.section(at, section)?;
    let until = instant(check, &at.key("until"), &text.until, calendar);
    let message = check.parsed(&at.key("message"), &text.message, |text| {
        let printable = !text.chars().any(char::is_control) && !text.trim().is_empty();
        if printable && text.chars().count() <= MESSAGE_CHARS_MAX {
            Ok(Arc::from(text))
        } else {
            let hint = format!("one line of 1 to {MESSAGE_CHARS_MAX} characters");
            Err(Wrong::new("it cannot be told to clients", hint))
        }
    });
    Some(Maintenance { until, message })
}

impl Known<'_> {
    fn tier_names(&self) -> Option<Vec<&str>> {
        let tiers = self.tiers?.iter();
        Some(tiers.map(|(name, _)| name.as_str()).collect())
    }

    fn upstream_names(&self) -> Option<Vec<&str>> {
        let upstreams = self.upstreams?.iter();
        Some(upstreams.map(|upstream| &*upstream.name).collect())
    }
}

/// Whether `name` is one of `names`, where those are known.
fn known_name(kind: &str, name: &str, names: Option<&[&str]>) -> Result<(), Wrong> {
    let Some(names) = names.filter(|names| !names.contains(&name)) else {
        return Ok(());
    };
    let hint = match nearest(name, names) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the {kind}s of this file are: {}", names.join(", ")),
    };
    Err(Wrong::new(format!("there is no {kind} {name:?}"), hint))
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

//! Reasons in words, for operators, and the settings that decide.

use std::sync::Arc;

use jiff::Timestamp;

use super::question::Question;
use crate::policy::admission::{AdmissionStep, Terms, Verdict};
use crate::policy::audit::{EXPIRES, Entry, STATE};
use crate::policy::endpoint::{Endpoint, EndpointTable};
use crate::policy::key_record::{KeyRecord, TierName, Unusable};
use crate::policy::own_path::{self, OwnPath};
use crate::policy::rejection::{Limit, Rejection};

/// Why a step decides as it does, and the settings that decide.
type Reason = (String, Vec<String>);

/// The source of all reasons of a request.
pub(super) struct Reasons<'q, 'a> {
    question: &'q Question<'a>,
    limits: &'q [Limit],
    path: &'a str,
    own: Option<OwnPath>,
    /// The endpoint of the path, with its path in the configuration: the table has the order of the file.
    endpoint: Option<(&'a Endpoint, String)>,
}

impl<'q, 'a> Reasons<'q, 'a> {
    /// The reasons for a request to which these limits of a gateway apply.
    pub fn new(question: &'q Question<'a>, limits: &'q [Limit]) -> Reasons<'q, 'a> {
        let path = question.head.as_ref().copied().unwrap_or_default();
        let endpoints = question.endpoints.iter().enumerate();
        let found = question.endpoints.find(path);
        let mut placed =
            endpoints.filter(|(_, one)| found.is_some_and(|found| Arc::ptr_eq(one, found)));
        Reasons {
            question,
            limits,
            path,
            own: OwnPath::of_str(path),
            endpoint: placed
                .next()
                .map(|(index, one)| (&**one, format!("endpoints[{index}]"))),
        }
    }

    /// The reason of a step that was reached.
    pub fn of(&self, check: AdmissionStep, verdict: Verdict) -> Reason {
        match check {
            AdmissionStep::WellFormed => self.well_formed(),
            AdmissionStep::Presented => {
                let assumed = "assumed: one X-API-Key with the key's current secret";
                (assumed.to_owned(), Vec::new())
            }
            AdmissionStep::Key => self.key(),
            AdmissionStep::Endpoint => self.found(),
            AdmissionStep::Method => self.method(),
            AdmissionStep::Rates => self.rates(),
            AdmissionStep::Tier | AdmissionStep::Quota | AdmissionStep::Upstream => {
                self.of_tier(check, verdict)
            }
        }
    }

    fn well_formed(&self) -> Reason {
        match &self.question.head {
            Ok(_) => ("can be read in one way only".to_owned(), Vec::new()),
            Err(rejection) => {
                let too_long = *rejection == Rejection::UriTooLong;
                let setting = too_long.then(|| "limits.target_bytes".to_owned());
                (
                    rejection.detail().into_owned(),
                    setting.into_iter().collect(),
                )
            }
        }
    }

    fn key(&self) -> Reason {
        let now = self.question.now;
        let Some(record) = self.question.record else {
            return ("the store has no key with this id".to_owned(), Vec::new());
        };
        let tier = &record.tier;
        match (record.usable(&record.digest, now), self.question.terms) {
            (Err(why), _) => (unusable(record, why, self.question.trail), Vec::new()),
            (Ok(()), None) => {
                let reason = format!("the configuration has no tier {tier}");
                (reason, vec!["tiers".to_owned()])
            }
            (Ok(()), Some(_)) => (usable_until(record, now), vec![format!("tiers.{tier}")]),
        }
    }

    fn found(&self) -> Reason {
        match (self.own, &self.endpoint) {
            (Some(own), _) => {
                let reason = format!("the gateway answers {} itself", own.as_str());
                (reason, Vec::new())
            }
            (None, Some((endpoint, at))) => {
                let reason = format!("matches {}", endpoint.pattern);
                (reason, vec![format!("{at}.path")])
            }
            (None, None) => {
                let reason = not_found(self.question.endpoints, self.path);
                (reason, vec!["endpoints".to_owned()])
            }
        }
    }

    fn method(&self) -> Reason {
        match (&self.endpoint, own_path::takes(self.question.method)) {
            (Some((endpoint, at)), _) => {
                let reason = format!("accepts {}", endpoint.allow());
                (reason, vec![format!("{at}.methods")])
            }
            (None, Ok(())) => ("accepts GET and HEAD".to_owned(), Vec::new()),
            (None, Err(rejection)) => (rejection.detail().into_owned(), Vec::new()),
        }
    }

    fn rates(&self) -> Reason {
        let tier = self.question.record.map(|record| &record.tier);
        let at = tier.map_or_else(|| "tiers".to_owned(), |tier| format!("tiers.{tier}"));
        let (mut limits, mut settings) = (Vec::new(), Vec::new());
        for limit in self.limits {
            match limit {
                Limit::UsageRead => {
                    let reason =
                        "each gateway limits how often a key reads its usage, in every tier";
                    return (reason.to_owned(), settings);
                }
                Limit::Burst(rate) => {
                    let (a_second, burst) = (rate.tokens_per_second(), rate.burst);
                    limits.push(format!("{a_second} a second and {burst} at once"));
                    settings.push(format!("{at}.burst"));
                }
                Limit::Concurrent(concurrent) => {
                    limits.push(format!("{concurrent} in flight"));
                    settings.push(format!("{at}.concurrent"));
                }
            }
        }
        if limits.is_empty() {
            let reason = "neither burst nor concurrency is limited";
            return (reason.to_owned(), vec![at]);
        }
        let of = limits.join(", ");
        let reason =
            format!("for each key on each gateway: {of}; only the gateway knows what is left");
        (reason, settings)
    }

    /// The steps that require a key of a tier and an endpoint.
    fn of_tier(&self, check: AdmissionStep, verdict: Verdict) -> Reason {
        let (Some(record), Some(terms), Some((endpoint, at))) =
            (self.question.record, self.question.terms, &self.endpoint)
        else {
            return Reason::default();
        };
        let (tier, upstream) = (&record.tier, &endpoint.upstream);
        let daily = format!("tiers.{tier}.daily");
        let enforce = format!("tiers.{tier}.enforce");
        match (check, verdict) {
            (AdmissionStep::Tier, _) => {
                let names: Vec<&str> = endpoint.tiers.iter().map(TierName::as_str).collect();
                let is = if endpoint.included_in(tier) {
                    "one of"
                } else {
                    "not one of"
                };
                let shadow = (verdict == Verdict::WouldRefuse).then_some(enforce);
                let settings = [format!("{at}.tiers")].into_iter().chain(shadow);
                let reason = format!("{tier} is {is} {}", names.join(", "));
                (reason, settings.collect())
            }
            (AdmissionStep::Upstream, Verdict::Refuses) => (
                "under maintenance: answered without a charge".to_owned(),
                vec![format!("{at}.maintenance")],
            ),
            (AdmissionStep::Upstream, _) => (
                format!("forwarded to {upstream}; its answer is not known"),
                vec![format!("{at}.upstream"), format!("upstreams.{upstream}")],
            ),
            (_, Verdict::WouldRefuse) => (self.room(record, terms, endpoint), vec![daily, enforce]),
            (_, _) => {
                let zone = (verdict == Verdict::Refuses).then(|| "quota.timezone".to_owned());
                let settings = [daily, format!("{at}.cost")].into_iter().chain(zone);
                (self.room(record, terms, endpoint), settings.collect())
            }
        }
    }

    /// The quota status of the key on the day.
    fn room(&self, record: &KeyRecord, terms: Terms, endpoint: &Endpoint) -> String {
        let (used, day) = (self.question.used, self.question.day);
        let limit = record.limit_on(day.date, terms.daily);
        let granted = match limit - terms.daily {
            0 => String::new(),
            extra => format!(" ({} a day and {extra} granted)", terms.daily),
        };
        let costs = match endpoint.cost.get() {
            1 => String::new(),
            cost => format!(", and this request costs {cost}"),
        };
        let reset = Timestamp::from_second(day.end).unwrap_or(self.question.now);
        let date = day.date;
        let tier = &record.tier;
        format!(
            "{used} of {limit}{granted} used on {date} by this key of {tier}{costs}; the next day begins at {reset}"
        )
    }
}

/// Why a record is not usable now, and the change that caused it, by the newest entry of its `trail` that states it; without one, the
/// last change.
fn unusable(record: &KeyRecord, why: Unusable, trail: &[Entry]) -> String {
    let fact = match why {
        Unusable::Suspended | Unusable::Revoked => Some(STATE),
        Unusable::Expired => Some(EXPIRES),
        Unusable::WrongSecret => None,
    };
    let states = |entry: &&Entry| fact.is_some_and(|fact| entry.after.contains_key(fact));
    let cause = trail
        .iter()
        .filter(states)
        .max_by_key(|entry| entry.version);
    let last = Entry::of(record);
    let change = cause.unwrap_or(&last);
    let reason = change.reason.as_ref();
    let change = format!(
        "{}: {} by {} at {}{}",
        match change.version == record.version {
            true => "last change",
            false => "cause",
        },
        change.what.as_str(),
        change.who,
        change.at,
        reason.map_or_else(String::new, |reason| format!(" ({reason})"))
    );
    match why {
        Unusable::WrongSecret => format!("not the key's secret; {change}"),
        Unusable::Suspended => format!("the key is suspended; {change}"),
        Unusable::Revoked => format!("the key is revoked; {change}"),
        Unusable::Expired => match record.expires {
            Some(expires) => format!("the subscription ended at {expires}; {change}"),
            None => format!("the subscription has ended; {change}"),
        },
    }
}

/// The state, tier and customer of a key, and until when it is valid.
fn usable_until(record: &KeyRecord, now: Timestamp) -> String {
    let mut text = format!(
        "{}, tier {}, customer {}",
        record.state.as_str(),
        record.tier,
        record.customer
    );
    match record.expires {
        Some(expires) => text.push_str(&format!(", valid before {expires}")),
        None => text.push_str("; it never expires"),
    }
    if let Some(previous) = &record.previous {
        let until = previous.until;
        let tense = if now < until {
            "is valid until"
        } else {
            "ended at"
        };
        text.push_str(&format!(
            "; the secret before the last rotation {tense} {until}"
        ));
    }
    text
}

/// Why a path is not an endpoint, with the most likely mistake.
fn not_found(table: &EndpointTable, path: &str) -> String {
    let trimmed = path.trim_end_matches('/');
    let like = [
        trimmed.to_owned(),
        format!("{path}/"),
        path.to_ascii_lowercase(),
        trimmed.to_ascii_lowercase(),
    ];
    let near = like.iter().find_map(|path| table.find(path));
    match near {
        Some(endpoint) => format!(
            "no endpoint has this path; case and trailing slash matter: there is {}",
            endpoint.pattern
        ),
        None => "no endpoint has this path".to_owned(),
    }
}

//! What the contract makes of one request, step by step, without making it: why it would be served or refused.
//!
//! The steps are judged by what judges real requests ([`EndpointTable::located`], [`Endpoint::admit_method`],
//! [`Endpoint::admit_tier`], [`KeyRecord::usable`], [`Enforcement`]); what is added here are the reasons and the settings
//! that were decisive. Nothing is charged. What only a running gateway knows (its burst and concurrency, its upstream) is
//! said to be open, never guessed.

use std::num::NonZeroU32;
use std::sync::Arc;

use http::Method;
use jiff::Timestamp;
use serde::Serialize;

use super::calendar::Day;
use super::endpoint::{Endpoint, EndpointTable};
use super::enforcement::{Enforcement, Waived};
use super::key_record::KeyRecord;
use super::own_path::{self, OwnPath};
use super::rate_limit::Standing;
use super::rejection::Rejection;
use super::token_bucket::Rate;

mod words;

/// A request that nobody makes, and all that decides what would become of it.
#[derive(Debug)]
pub struct Question<'a> {
    /// Its method.
    pub method: &'a Method,
    /// What step 1 makes of it: its path, or why not.
    pub head: Result<&'a str, Rejection>,
    /// The record of the key that it would present; `None` where the store has none.
    pub record: Option<&'a KeyRecord>,
    /// What the key's tier allows; `None` where the configuration has no such tier.
    pub terms: Option<Terms>,
    /// The endpoints.
    pub endpoints: &'a EndpointTable,
    /// The quota day of `now`.
    pub day: Day,
    /// Units used on it.
    pub used: u64,
    /// When it would be made.
    pub now: Timestamp,
}

/// What a tier allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Units a day, without grants.
    pub daily: u64,
    /// How fast a key may send requests, on each gateway.
    pub burst: Option<Rate>,
    /// Requests that a key may have under way, on each gateway.
    pub concurrent: Option<NonZeroU32>,
    /// Whether its limits refuse.
    pub enforcement: Enforcement,
}

/// A step of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// 1: the request is well-formed.
    WellFormed,
    /// 2: it presents an API key.
    Presented,
    /// 3: the key may be used.
    Key,
    /// 4: the path is an endpoint.
    Endpoint,
    /// 5: the endpoint takes the method.
    Method,
    /// 6: the tier includes the endpoint.
    Tier,
    /// 7: burst and concurrency.
    Rates,
    /// 8: the daily quota has room.
    Quota,
    /// 9: it is forwarded.
    Upstream,
}

impl Check {
    /// All of them, in their order.
    pub const ALL: [Check; 9] = [
        Check::WellFormed,
        Check::Presented,
        Check::Key,
        Check::Endpoint,
        Check::Method,
        Check::Tier,
        Check::Rates,
        Check::Quota,
        Check::Upstream,
    ];

    /// Its number in the contract.
    pub fn number(self) -> u8 {
        match self {
            Check::WellFormed => 1,
            Check::Presented => 2,
            Check::Key => 3,
            Check::Endpoint => 4,
            Check::Method => 5,
            Check::Tier => 6,
            Check::Rates => 7,
            Check::Quota => 8,
            Check::Upstream => 9,
        }
    }

    /// Its name for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Check::WellFormed => "well-formed",
            Check::Presented => "key presented",
            Check::Key => "key usable",
            Check::Endpoint => "endpoint",
            Check::Method => "method",
            Check::Tier => "tier",
            Check::Rates => "rates",
            Check::Quota => "daily quota",
            Check::Upstream => "upstream",
        }
    }
}

/// What a step makes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It goes on.
    Passes,
    /// It goes on, because the tier is in shadow; an enforced one would refuse it.
    WouldRefuse,
    /// It ends here.
    Refuses,
    /// Only a running gateway can tell.
    Open,
    /// It does not get here.
    NotReached,
}

impl Verdict {
    /// The words for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Passes => "passes",
            Verdict::WouldRefuse => "would refuse",
            Verdict::Refuses => "refuses",
            Verdict::Open => "open",
            Verdict::NotReached => "not reached",
        }
    }
}

/// One step and what it makes of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Which.
    pub check: Check,
    /// What it makes of it.
    pub verdict: Verdict,
    /// Why: words for operators, not for clients.
    pub reason: String,
    /// The settings that were decisive, by their paths in the configuration, such as `tiers.pro.daily`.
    pub settings: Vec<String>,
}

/// What becomes of the request in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is forwarded; what follows is the upstream's.
    Forwarded {
        /// The endpoint that the path is.
        endpoint: Arc<Endpoint>,
        /// Where the key stands with the request counted.
        standing: Standing,
        /// What an enforced tier would have refused it for.
        waived: Option<Waived>,
    },
    /// The gateway answers it itself; nothing is charged.
    Answered {
        /// The path of its own.
        own: OwnPath,
        /// Where the key stands, where one was looked at.
        standing: Option<Standing>,
    },
    /// It is refused.
    Refused {
        /// The answer.
        rejection: Rejection,
        /// Where the key stands, once authenticated.
        standing: Option<Standing>,
        /// The endpoint whose authenticated caller is refused.
        endpoint: Option<Arc<Endpoint>>,
    },
}

/// Every step, and what becomes of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// All nine, in their order.
    pub steps: Vec<Step>,
    /// What becomes of it.
    pub outcome: Outcome,
}

/// What the contract makes of a request.
pub fn explain(question: &Question<'_>) -> Explanation {
    let mut walk = Walk {
        question,
        steps: Vec::new(),
    };
    let outcome = walk.through();
    let mut steps = walk.steps;
    for check in Check::ALL {
        if !steps.iter().any(|step| step.check == check) {
            steps.push(Step {
                check,
                verdict: Verdict::NotReached,
                reason: String::new(),
                settings: Vec::new(),
            });
        }
    }
    steps.sort_by_key(|step| step.check);
    Explanation { steps, outcome }
}

/// A refusal of steps 4 to 6, with the endpoint where one was found.
type Refusal = (Rejection, Option<Arc<Endpoint>>);

/// The way through the steps.
struct Walk<'a> {
    question: &'a Question<'a>,
    steps: Vec<Step>,
}

impl<'a> Walk<'a> {
    fn note(
        &mut self,
        check: Check,
        verdict: Verdict,
        reason: impl Into<String>,
        settings: impl Into<Vec<String>>,
    ) {
        self.steps.push(Step {
            check,
            verdict,
            reason: reason.into(),
            settings: settings.into(),
        });
    }

    fn through(&mut self) -> Outcome {
        let path = match &self.question.head {
            Ok(path) => *path,
            Err(rejection) => return self.malformed(rejection),
        };
        self.note(Check::WellFormed, Verdict::Passes, "one reading only", []);
        let own = OwnPath::of(path);
        if own == Some(OwnPath::Document) {
            return self.own_path(OwnPath::Document, None);
        }
        let assumed = "taken for granted: one X-API-Key with the key's current secret";
        self.note(Check::Presented, Verdict::Passes, assumed, []);
        let (record, terms) = match self.usable() {
            Ok(usable) => usable,
            Err(rejection) => return refused(rejection, None, None),
        };
        let standing = Standing {
            limit: record.limit_on(self.question.day.date, terms.daily),
            used: Some(self.question.used),
            day: self.question.day,
        };
        if let Some(own) = own {
            return self.own_path(own, Some(standing));
        }
        let allowed = self.allowed(path, record, terms);
        self.rates(record, terms, &allowed);
        let (endpoint, waived) = match allowed {
            Ok(allowed) => allowed,
            Err((rejection, endpoint)) => return refused(rejection, Some(standing), endpoint),
        };
        self.charged(record, terms, standing, endpoint, waived)
    }

    fn malformed(&mut self, rejection: &Rejection) -> Outcome {
        let settings = if *rejection == Rejection::UriTooLong {
            vec!["limits.target_bytes".to_owned()]
        } else {
            Vec::new()
        };
        let reason = rejection.detail();
        self.note(Check::WellFormed, Verdict::Refuses, reason, settings);
        refused(rejection.clone(), None, None)
    }

    /// Step 3.
    fn usable(&mut self) -> Result<(&'a KeyRecord, Terms), Rejection> {
        let Some(record) = self.question.record else {
            let reason = "the store has no key with this id";
            self.note(Check::Key, Verdict::Refuses, reason, []);
            return Err(Rejection::InvalidApiKey);
        };
        if let Err(why) = record.usable(&record.digest, self.question.now) {
            self.note(
                Check::Key,
                Verdict::Refuses,
                words::unusable(record, why),
                [],
            );
            return Err(Rejection::InvalidApiKey);
        }
        let Some(terms) = self.question.terms else {
            let reason = format!("the configuration has no tier {}", record.tier);
            self.note(Check::Key, Verdict::Refuses, reason, ["tiers".into()]);
            return Err(Rejection::Internal);
        };
        let reason = words::usable_until(record, self.question.now);
        let tier = format!("tiers.{}", record.tier);
        self.note(Check::Key, Verdict::Passes, reason, [tier]);
        Ok((record, terms))
    }

    /// What the gateway answers itself.
    fn own_path(&mut self, own: OwnPath, standing: Option<Standing>) -> Outcome {
        let reason = format!("the gateway answers {} itself", own.as_str());
        self.note(Check::Endpoint, Verdict::Passes, reason, []);
        if let Err(rejection) = own_path::takes(self.question.method) {
            let reason = rejection.detail();
            self.note(Check::Method, Verdict::Refuses, reason, []);
            return refused(rejection, standing, None);
        }
        self.note(Check::Method, Verdict::Passes, "it takes GET and HEAD", []);
        if own == OwnPath::Usage {
            let reason = "a small limit of each gateway on reading one's usage, whatever the tier";
            self.note(Check::Rates, Verdict::Open, reason, []);
        }
        Outcome::Answered { own, standing }
    }

    /// Steps 4 to 6.
    fn allowed(
        &mut self,
        path: &str,
        record: &KeyRecord,
        terms: Terms,
    ) -> Result<(Arc<Endpoint>, Option<Waived>), Refusal> {
        let table = self.question.endpoints;
        let endpoint = match table.located(path) {
            Ok(endpoint) => endpoint.clone(),
            Err(rejection) => {
                let reason = words::not_found(table, path);
                self.note(
                    Check::Endpoint,
                    Verdict::Refuses,
                    reason,
                    ["endpoints".into()],
                );
                return Err((rejection, None));
            }
        };
        let at = setting_of(table, &endpoint);
        let reason = format!("it is {}", endpoint.pattern);
        self.note(
            Check::Endpoint,
            Verdict::Passes,
            reason,
            [format!("{at}.path")],
        );
        let methods = [format!("{at}.methods")];
        let takes = format!("it takes {}", endpoint.allow());
        if let Err(rejection) = endpoint.admit_method(self.question.method) {
            self.note(Check::Method, Verdict::Refuses, takes, methods);
            return Err((rejection, Some(endpoint)));
        }
        self.note(Check::Method, Verdict::Passes, takes, methods);
        let names: Vec<&str> = endpoint.tiers.iter().map(|tier| tier.as_str()).collect();
        let (tier, included) = (&record.tier, names.join(", "));
        let tiers = format!("{at}.tiers");
        let Err(rejection) = endpoint.admit_tier(tier) else {
            let reason = format!("{tier} is one of {included}");
            self.note(Check::Tier, Verdict::Passes, reason, [tiers]);
            return Ok((endpoint, None));
        };
        let reason = format!("{tier} is none of {included}");
        let mut waived = None;
        match terms
            .enforcement
            .refuse_or_waive(rejection, Waived::Tier, &mut waived)
        {
            Ok(()) => {
                let settings = [tiers, format!("tiers.{tier}.enforce")];
                self.note(Check::Tier, Verdict::WouldRefuse, reason, settings);
                Ok((endpoint, waived))
            }
            Err(rejection) => {
                self.note(Check::Tier, Verdict::Refuses, reason, [tiers]);
                Err((rejection, Some(endpoint)))
            }
        }
    }

    /// Step 7, of which only a gateway knows what is left. What steps 4 to 6 refuse draws from the burst too.
    fn rates<T, E>(&mut self, record: &KeyRecord, terms: Terms, allowed: &Result<T, E>) {
        let at = format!("tiers.{}", record.tier);
        let (mut limits, mut settings) = (Vec::new(), Vec::new());
        if let Some(rate) = terms.burst {
            let (a_second, burst) = (rate.tokens_per_second(), rate.burst);
            limits.push(format!("{a_second} a second and {burst} at once"));
            settings.push(format!("{at}.burst"));
        }
        if let (Some(concurrent), Ok(_)) = (terms.concurrent, allowed) {
            limits.push(format!("{concurrent} under way"));
            settings.push(format!("{at}.concurrent"));
        }
        if !limits.is_empty() {
            let of = limits.join(", ");
            let reason = format!("of a key on each gateway: {of}; what is left only it knows");
            self.note(Check::Rates, Verdict::Open, reason, settings);
        } else if allowed.is_ok() {
            let reason = "neither burst nor concurrency is limited";
            self.note(Check::Rates, Verdict::Passes, reason, [at]);
        }
    }

    /// Steps 8 and 9.
    fn charged(
        &mut self,
        record: &KeyRecord,
        terms: Terms,
        standing: Standing,
        endpoint: Arc<Endpoint>,
        waived: Option<Waived>,
    ) -> Outcome {
        let (used, cost) = (self.question.used, u64::from(endpoint.cost.get()));
        let at = setting_of(self.question.endpoints, &endpoint);
        if let Err(rejection) = endpoint.admit_at(self.question.now) {
            let reason = "under maintenance: answered before it would be charged";
            let settings = [format!("{at}.maintenance")];
            self.note(Check::Upstream, Verdict::Refuses, reason, settings);
            return refused(rejection, Some(standing), Some(endpoint));
        }
        let reason = self.room(record, terms, standing.limit, cost);
        let daily = format!("tiers.{}.daily", record.tier);
        if !terms.enforcement.has_room(used, cost, standing.limit) {
            let settings = [daily, format!("{at}.cost"), "quota.timezone".into()];
            self.note(Check::Quota, Verdict::Refuses, reason, settings);
            let rejection = Rejection::DailyQuotaExceeded { standing };
            return refused(rejection, Some(standing), Some(endpoint));
        }
        let used = used.saturating_add(cost);
        let by_quota = terms.enforcement.waived_by_quota(used, standing.limit);
        match by_quota {
            Some(_) => {
                let settings = [daily, format!("tiers.{}.enforce", record.tier)];
                self.note(Check::Quota, Verdict::WouldRefuse, reason, settings);
            }
            None => self.note(
                Check::Quota,
                Verdict::Passes,
                reason,
                [daily, format!("{at}.cost")],
            ),
        }
        let reason = format!(
            "forwarded to {}; its answer is not known",
            endpoint.upstream
        );
        let upstream = format!("upstreams.{}", endpoint.upstream);
        let settings = [format!("{at}.upstream"), upstream];
        self.note(Check::Upstream, Verdict::Open, reason, settings);
        Outcome::Forwarded {
            endpoint,
            standing: Standing {
                used: Some(used),
                ..standing
            },
            waived: waived.or(by_quota),
        }
    }

    /// Where the key stands in its day, in words.
    fn room(&self, record: &KeyRecord, terms: Terms, limit: u64, cost: u64) -> String {
        let (used, day) = (self.question.used, self.question.day);
        let granted = match limit - terms.daily {
            0 => String::new(),
            extra => format!(" ({} a day and {extra} granted)", terms.daily),
        };
        let costs = match cost {
            1 => String::new(),
            cost => format!(", and this costs {cost}"),
        };
        let reset = Timestamp::from_second(day.end).unwrap_or(self.question.now);
        let date = day.date;
        let tier = &record.tier;
        format!(
            "{used} of {limit}{granted} used on {date} by this key of {tier}{costs}; the next day begins at {reset}"
        )
    }
}

fn refused(
    rejection: Rejection,
    standing: Option<Standing>,
    endpoint: Option<Arc<Endpoint>>,
) -> Outcome {
    Outcome::Refused {
        rejection,
        standing,
        endpoint,
    }
}

/// The path of an endpoint in the configuration: the table has the order of the file.
fn setting_of(table: &EndpointTable, endpoint: &Arc<Endpoint>) -> String {
    let index = table.iter().position(|one| Arc::ptr_eq(one, endpoint));
    index.map_or_else(
        || "endpoints".to_owned(),
        |index| format!("endpoints[{index}]"),
    )
}

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;

use http::Method;
use jiff::Timestamp;

use super::*;
use crate::policy::admission::Terms;
use crate::policy::endpoint::{self, Endpoint, EndpointTable};
use crate::policy::enforcement::{Enforcement, ShadowViolation};
use crate::policy::key_record::tests::key_of;
use crate::policy::rejection::{ExceededLimit, Malformed, Rejection};
use crate::policy::token_bucket::Rate;

const MARKETS: &str = "/d/markets";
const RANKINGS: &str = "/d/rankings";

fn table() -> EndpointTable {
    let endpoint = |pattern: &str, tiers: &[&str], cost| Endpoint {
        tiers: tiers.iter().map(|tier| tier.parse().unwrap()).collect(),
        cost: NonZeroU32::new(cost).unwrap(),
        ..endpoint::tests::endpoint(pattern)
    };
    EndpointTable::new(vec![
        endpoint(MARKETS, &["starter", "pro"], 2),
        endpoint(RANKINGS, &["pro"], 1),
    ])
    .unwrap()
}

fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

/// The explanation of a GET by a starter key with 10 units a day.
fn explained(path: &str, used: u64, enforcement: Enforcement) -> Explanation {
    let (_, record) = key_of("starter");
    explained_of(Some(&record), path, used, enforcement)
}

fn explained_of(
    record: Option<&KeyRecord>,
    path: &str,
    used: u64,
    enforcement: Enforcement,
) -> Explanation {
    let calendar = crate::policy::calendar::Calendar::of_zone("UTC").unwrap();
    explain(&Question {
        method: &Method::GET,
        head: Ok(path),
        record,
        trail: &[],
        terms: Some(Terms {
            daily: 10,
            burst: None,
            concurrent: None,
            enforcement,
        }),
        endpoints: &table(),
        day: calendar.day_at(now()).unwrap(),
        used,
        now: now(),
    })
}

fn verdicts(explanation: &Explanation) -> Vec<&'static str> {
    let steps = explanation.steps.iter();
    steps.map(|step| step.verdict.as_str()).collect()
}

fn step(explanation: &Explanation, check: AdmissionStep) -> &Step {
    let mut steps = explanation.steps.iter();
    steps.find(|step| step.check == check).unwrap()
}

#[test]
fn every_step_has_a_verdict_and_none_is_reached_behind_a_refusal() {
    let served = explained(MARKETS, 8, Enforcement::Enforced);
    let (pass, open, none) = ("passes", "open", "not reached");
    assert_eq!(
        verdicts(&served),
        [pass, pass, pass, pass, pass, pass, pass, pass, open]
    );
    let refused = explained(RANKINGS, 0, Enforcement::Enforced);
    assert_eq!(
        verdicts(&refused),
        [pass, pass, pass, pass, pass, "refuses", none, none, none]
    );
    let numbers: Vec<u8> = refused
        .steps
        .iter()
        .map(|step| step.check.number())
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn the_settings_that_decide_are_named() {
    let refused = explained(RANKINGS, 0, Enforcement::Enforced);
    assert_eq!(
        step(&refused, AdmissionStep::Tier).settings,
        ["endpoints[1].tiers"]
    );
    let exhausted = explained(MARKETS, 9, Enforcement::Enforced);
    assert_eq!(
        step(&exhausted, AdmissionStep::Quota).settings,
        ["tiers.starter.daily", "endpoints[0].cost", "quota.timezone"]
    );
    let shadow_violation = explained(RANKINGS, 0, Enforcement::Shadow);
    assert_eq!(
        step(&shadow_violation, AdmissionStep::Tier).settings,
        ["endpoints[1].tiers", "tiers.starter.enforce"]
    );
}

#[test]
fn a_request_is_counted_in_the_quota_status_of_the_answer_and_a_refused_one_is_not() {
    let Outcome::Forwarded(permit) = explained(MARKETS, 8, Enforcement::Enforced).outcome else {
        panic!("8 of 10 and a cost of 2");
    };
    assert_eq!(permit.quota_status.remaining(), Some(0));
    let refused = explained(MARKETS, 9, Enforcement::Enforced).outcome;
    let Outcome::Refused(refusal) = refused else {
        panic!("9 of 10 and a cost of 2");
    };
    let Rejection::RateLimitExceeded(ExceededLimit::Daily, quota_status) = refusal.rejection else {
        panic!("{refusal:?}");
    };
    assert_eq!(quota_status.remaining(), Some(1));
}

#[test]
fn a_shadow_tier_reports_the_first_step_that_would_refuse() {
    for (path, used, word) in [
        (RANKINGS, 10, Some("tier")),
        (MARKETS, 9, Some("daily")),
        (MARKETS, 8, None),
    ] {
        let Outcome::Forwarded(permit) = explained(path, used, Enforcement::Shadow).outcome else {
            panic!("{path} is served");
        };
        assert_eq!(
            permit.shadow_violation.map(ShadowViolation::as_str),
            word,
            "{path} at {used}"
        );
    }
}

#[test]
fn a_grant_is_shown_and_counts_on_its_day_only() {
    let (_, mut record) = key_of("starter");
    record.grants.insert("2026-11-21".parse().unwrap(), 5);
    let explanation = explained_of(Some(&record), MARKETS, 13, Enforcement::Enforced);
    let reason = &step(&explanation, AdmissionStep::Quota).reason;
    assert!(
        reason.contains("13 of 15 (10 a day and 5 granted)"),
        "{reason}"
    );
    assert!(matches!(explanation.outcome, Outcome::Forwarded(_)));
    record.grants.insert("2026-11-22".parse().unwrap(), 50);
    let explanation = explained_of(Some(&record), MARKETS, 14, Enforcement::Enforced);
    assert!(matches!(explanation.outcome, Outcome::Refused(_)));
}

#[test]
fn a_slip_in_the_path_is_pointed_out() {
    for (path, end) in [
        ("/d/markets/", "there is /d/markets"),
        ("/D/Markets", "there is /d/markets"),
        ("/d/none", "no endpoint has this path"),
    ] {
        let explanation = explained(path, 0, Enforcement::Enforced);
        let found = step(&explanation, AdmissionStep::Endpoint);
        assert_eq!(found.verdict, Verdict::Refuses);
        assert!(found.reason.ends_with(end), "{}", found.reason);
    }
}

#[test]
fn an_unusable_key_is_explained_by_its_last_change_and_a_missing_tier_is_our_failure() {
    let (_, mut record) = key_of("starter");
    record.expires = Some(now());
    let expired = explained_of(Some(&record), MARKETS, 0, Enforcement::Enforced);
    let reason = &step(&expired, AdmissionStep::Key).reason;
    assert!(reason.contains("ended at 2026-11-21T12:00:00Z"), "{reason}");
    assert!(reason.contains("issue by tester@here"), "{reason}");
    let unknown = explained_of(None, MARKETS, 0, Enforcement::Enforced);
    let (_, record) = key_of("gone");
    let table = table();
    let calendar = crate::policy::calendar::Calendar::of_zone("UTC").unwrap();
    let question = Question {
        method: &Method::GET,
        head: Ok(MARKETS),
        record: Some(&record),
        trail: &[],
        terms: None,
        endpoints: &table,
        day: calendar.day_at(now()).unwrap(),
        used: 0,
        now: now(),
    };
    for (explanation, code) in [
        (expired, "INVALID_API_KEY"),
        (unknown, "INVALID_API_KEY"),
        (explain(&question), "INTERNAL_ERROR"),
    ] {
        let Outcome::Refused(refusal) = explanation.outcome else {
            panic!("{explanation:?}");
        };
        assert_eq!(refusal.rejection.code(), code);
        assert!(refusal.quota_status.is_none() && refusal.endpoint().is_none());
    }
    let malformed = explain(&Question {
        head: Err(Rejection::BadRequest(Malformed::Head)),
        ..question
    });
    let refused = verdicts(&malformed);
    assert_eq!(&refused[..2], ["refuses", "not reached"]);
}

#[test]
fn rates_are_open_and_the_burst_is_for_refused_requests_too() {
    let number = |number| NonZeroU32::new(number).unwrap();
    let (_, record) = key_of("starter");
    let calendar = crate::policy::calendar::Calendar::of_zone("UTC").unwrap();
    for (path, settings) in [
        (
            MARKETS,
            &["tiers.starter.burst", "tiers.starter.concurrent"][..],
        ),
        (RANKINGS, &["tiers.starter.burst"]),
        ("/d/none", &["tiers.starter.burst"]),
    ] {
        let explanation = explain(&Question {
            method: &Method::GET,
            head: Ok(path),
            record: Some(&record),
            trail: &[],
            terms: Some(Terms {
                daily: 10,
                burst: Some(Rate::per_second(number(20), number(40))),
                concurrent: Some(number(5)),
                enforcement: Enforcement::Enforced,
            }),
            endpoints: &table(),
            day: calendar.day_at(now()).unwrap(),
            used: 0,
            now: now(),
        });
        let rates = step(&explanation, AdmissionStep::Rates);
        assert_eq!(rates.verdict, Verdict::Open, "{path}");
        assert_eq!(rates.settings, settings, "{path}");
        assert!(
            rates.reason.contains("20 a second and 40 at once"),
            "{}",
            rates.reason
        );
    }
}

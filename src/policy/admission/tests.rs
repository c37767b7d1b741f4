use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::policy::api_key::{KeyDigest, KeyPrefix};
use crate::policy::calendar::Calendar;
use crate::policy::endpoint;
use crate::policy::key_record::tests::key_of;
use crate::policy::maintenance::Maintenance;
use crate::policy::rejection::Malformed;
use crate::policy::token_bucket::Rate;
use crate::policy::words::words;

const MARKETS: &str = "/d/markets";

words! {
    /// What can be wrong with a request, in the order in which it answers: an empty burst replaces the answers of steps 4 to 6.
    enum Fault {
        Malformed,
        NoKey,
        UnusableKey,
        Burst,
        Path,
        Method,
        Tier,
        Concurrent,
        Maintenance,
        Quota,
    }
}

impl Fault {
    /// The answer, and the step that gives it.
    fn answer(self) -> (&'static str, AdmissionStep) {
        match self {
            Fault::Malformed => ("BAD_REQUEST", AdmissionStep::WellFormed),
            Fault::NoKey => ("MISSING_API_KEY", AdmissionStep::Presented),
            Fault::UnusableKey => ("INVALID_API_KEY", AdmissionStep::Key),
            Fault::Burst => ("RATE_LIMIT_EXCEEDED burst", AdmissionStep::Rates),
            Fault::Path => ("NOT_FOUND", AdmissionStep::Endpoint),
            Fault::Method => ("METHOD_NOT_ALLOWED", AdmissionStep::Method),
            Fault::Tier => ("TIER_INSUFFICIENT", AdmissionStep::Tier),
            Fault::Concurrent => ("RATE_LIMIT_EXCEEDED concurrent", AdmissionStep::Rates),
            Fault::Maintenance => ("INTERNAL_ERROR", AdmissionStep::Upstream),
            Fault::Quota => ("RATE_LIMIT_EXCEEDED daily", AdmissionStep::Quota),
        }
    }

    /// The violation that a tier in shadow records for it.
    fn shadow_violation(self) -> Option<ShadowViolation> {
        match self {
            Fault::Tier => Some(ShadowViolation::Tier),
            Fault::Burst => Some(ShadowViolation::Burst),
            Fault::Concurrent => Some(ShadowViolation::Concurrent),
            Fault::Quota => Some(ShadowViolation::Daily),
            Fault::Malformed
            | Fault::NoKey
            | Fault::UnusableKey
            | Fault::Path
            | Fault::Method
            | Fault::Maintenance => None,
        }
    }
}

/// A request with these faults, for an edge that answers the first questions after step 6 with a change.
#[derive(Debug, Clone)]
struct Case {
    faults: Vec<Fault>,
    path: &'static str,
    enforcement: Enforcement,
    changes: u32,
}

/// The result of a case.
#[derive(Debug, Default)]
struct Ran {
    answer: String,
    shadow_violation: Option<ShadowViolation>,
    /// The quota status at the end.
    quota_status: Option<QuotaStatus>,
    cause: Option<String>,
    charges_asked: u32,
    charges_granted: u32,
    tokens_drawn: u32,
    trail: Trail,
}

impl Ran {
    fn verdict(&self, check: AdmissionStep) -> Verdict {
        let mut verdicts = self.trail.verdicts();
        verdicts.find(|(one, _)| *one == check).unwrap().1
    }
}

impl Case {
    fn of(faults: &[Fault]) -> Case {
        Case {
            faults: faults.to_vec(),
            path: MARKETS,
            enforcement: Enforcement::Enforced,
            changes: 0,
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    fn table(&self) -> EndpointTable {
        let tier = if self.has(Fault::Tier) {
            "pro"
        } else {
            "starter"
        };
        let maintenance = self.has(Fault::Maintenance);
        let endpoint = Endpoint {
            tiers: vec![tier.parse().unwrap()],
            maintenance: maintenance.then(Maintenance::default),
            ..endpoint::tests::endpoint(MARKETS)
        };
        EndpointTable::new(vec![endpoint]).unwrap()
    }

    fn terms(&self) -> Terms {
        Terms {
            daily: 10,
            burst: Some(Rate::per_second(NonZeroU32::MIN, NonZeroU32::MIN)),
            concurrent: Some(NonZeroU32::MIN),
            enforcement: self.enforcement,
        }
    }

    fn run(&self) -> Ran {
        let (key, record) = key_of("starter");
        let (table, mut ran) = (self.table(), Ran::default());
        let mut trail = Trail::default();
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let day = Calendar::of_zone("UTC").unwrap().day_at(now).unwrap();
        let method = if self.has(Fault::Method) {
            Method::PUT
        } else {
            Method::GET
        };
        let path = match (self.has(Fault::Malformed), self.has(Fault::Path)) {
            (true, _) => Err(Rejection::BadRequest(Malformed::Head)),
            (false, true) => Ok("/none"),
            (false, false) => Ok(self.path),
        };
        let used = if self.has(Fault::Quota) { 10 } else { 0 };
        let mut changes = self.changes;
        let mut next: Next<'_, &KeyRecord, u64> = begin(&method, path, &table, Some(&mut trail));
        loop {
            next = match next {
                Next::Key(ask) => {
                    assert_eq!(ask.at(), (changes < self.changes).then_some(now));
                    let values = (!self.has(Fault::NoKey)).then(|| key.reveal().as_bytes());
                    let found = presented(values.into_iter(), &KeyPrefix::default());
                    ask.answer(found.and_then(|_| match self.has(Fault::UnusableKey) {
                        true => Err(NoKey::Invalid),
                        false => Caller::new(&record, now, day, Some(self.terms())),
                    }))
                }
                Next::Room(ask) => {
                    let fault = match ask.limit() {
                        Limit::Burst(_) | Limit::UsageRead => Fault::Burst,
                        Limit::Concurrent(_) => Fault::Concurrent,
                    };
                    let is_full = self.has(fault);
                    ran.tokens_drawn += u32::from(fault == Fault::Burst && !is_full);
                    ask.answer(if is_full { Err(Duration::ZERO) } else { Ok(()) })
                }
                Next::Charge(ask) => {
                    ran.charges_asked += 1;
                    if changes > 0 {
                        changes -= 1;
                        ask.changed(Some(now))
                    } else if ask.caller().bound().is_some_and(|bound| used >= bound) {
                        ask.exhausted(used)
                    } else {
                        ran.charges_granted += 1;
                        ask.granted(used + 1, used + 1)
                    }
                }
                Next::Count(ask) if changes > 0 => {
                    changes -= 1;
                    ask.changed(Some(now))
                }
                Next::Count(ask) => ask.answer(Some(used)),
                Next::Usage(ask) => {
                    (ran.answer, ran.quota_status) = ("usage".into(), Some(ask.answered(used).1));
                    break;
                }
                Next::Document => {
                    ran.answer = "document".into();
                    break;
                }
                Next::Permitted(permit) => {
                    (ran.answer, ran.shadow_violation) = ("permit".into(), permit.shadow_violation);
                    ran.quota_status = Some(permit.quota_status);
                    assert_eq!(permit.quota_status.used, Some(permit.grant));
                    break;
                }
                Next::Refused(refusal) => {
                    let policy = refusal.rejection.policy();
                    let words = [Some(refusal.rejection.code()), policy];
                    ran.answer = words.into_iter().flatten().collect::<Vec<_>>().join(" ");
                    (ran.quota_status, ran.cause) = (refusal.quota_status, refusal.cause);
                    break;
                }
            }
        }
        ran.trail = trail;
        ran
    }

    /// The outcome by the contract, computed without the machine: the first fault that is enforced answers. Faults after step 3
    /// never answer while the key keeps changing.
    fn expected(&self) -> &'static str {
        let shadow = self.enforcement == Enforcement::Shadow;
        let mut faults = Fault::ALL.into_iter().filter(|fault| self.has(*fault));
        let first = faults.find(|fault| !(shadow && fault.shadow_violation().is_some()));
        match first.map(Fault::answer) {
            Some((answer, check)) if check <= AdmissionStep::Key => answer,
            Some(_) | None if self.changes >= JUDGEMENTS_MAX => "INTERNAL_ERROR",
            Some((answer, _)) => answer,
            None => "permit",
        }
    }
}

#[test]
fn the_first_step_that_fails_answers_whatever_else_is_wrong() {
    for (at, fault) in Fault::ALL.into_iter().enumerate() {
        for faults in [&[fault][..], &Fault::ALL[at..]] {
            let ran = Case::of(faults).run();
            let (answer, check) = fault.answer();
            assert_eq!(ran.answer, answer, "{faults:?}");
            assert_eq!(ran.verdict(check), Verdict::Refuses, "{faults:?}");
            assert_eq!(ran.charges_granted, 0, "{faults:?}");
        }
    }
    let ran = Case::of(&[]).run();
    assert_eq!((ran.answer.as_str(), ran.charges_granted), ("permit", 1));
    assert_eq!(ran.quota_status.unwrap().used, Some(1));
}

#[test]
fn a_refused_request_draws_a_token_and_one_whose_head_or_key_is_refused_does_not() {
    for fault in Fault::ALL {
        let free = [Fault::Malformed, Fault::NoKey, Fault::UnusableKey];
        let drawn = u32::from(!free.contains(&fault) && fault != Fault::Burst);
        assert_eq!(Case::of(&[fault]).run().tokens_drawn, drawn, "{fault:?}");
    }
}

#[test]
fn a_shadow_tier_records_violations_of_its_limits_and_refuses_nothing_for_them() {
    for fault in Fault::ALL {
        let case = Case {
            enforcement: Enforcement::Shadow,
            ..Case::of(&[fault])
        };
        let ran = case.run();
        match fault.shadow_violation() {
            Some(shadow_violation) => {
                assert_eq!(
                    (ran.answer.as_str(), ran.shadow_violation),
                    ("permit", Some(shadow_violation))
                );
                assert_eq!(ran.verdict(fault.answer().1), Verdict::WouldRefuse);
            }
            None => assert_eq!(ran.answer, fault.answer().0),
        }
    }
}

#[test]
fn of_several_violations_in_shadow_the_first_by_the_order_of_the_steps_is_recorded() {
    // If the tier is enforced, an empty burst replaces the answer of step 6; it is judged after that step all the same.
    let in_order = [Fault::Tier, Fault::Burst, Fault::Concurrent, Fault::Quota];
    for at in 0..in_order.len() {
        let case = Case {
            enforcement: Enforcement::Shadow,
            ..Case::of(&in_order[at..])
        };
        let ran = case.run();
        assert_eq!(ran.answer, "permit");
        assert_eq!(ran.shadow_violation, in_order[at].shadow_violation());
    }
}

#[test]
fn the_gateways_own_paths_leave_on_the_way_and_are_never_charged() {
    for (path, faults, answer) in [
        (
            "/openapi.json",
            &[Fault::NoKey, Fault::Quota][..],
            "document",
        ),
        (
            "/openapi.json",
            &[Fault::NoKey, Fault::Method],
            "METHOD_NOT_ALLOWED",
        ),
        (
            "/api/v1/usage",
            &[Fault::Tier, Fault::Concurrent, Fault::Quota],
            "usage",
        ),
        (
            "/api/v1/usage",
            &[Fault::Method, Fault::Concurrent, Fault::Quota],
            "METHOD_NOT_ALLOWED",
        ),
        (
            "/api/v1/usage",
            &[Fault::Burst],
            "RATE_LIMIT_EXCEEDED usage",
        ),
        (
            "/api/v1/usage",
            &[Fault::NoKey, Fault::Method],
            "MISSING_API_KEY",
        ),
    ] {
        for enforcement in [Enforcement::Enforced, Enforcement::Shadow] {
            let ran = Case {
                path,
                enforcement,
                ..Case::of(faults)
            }
            .run();
            assert_eq!(ran.answer, answer, "{path} {faults:?}");
            assert_eq!(ran.charges_asked, 0, "{path} {faults:?}");
        }
    }
}

#[test]
fn a_wrong_method_at_the_own_usage_draws_from_the_burst() {
    for (enforcement, answer) in [
        (Enforcement::Enforced, "RATE_LIMIT_EXCEEDED burst"),
        (Enforcement::Shadow, "METHOD_NOT_ALLOWED"),
    ] {
        let ran = Case {
            path: "/api/v1/usage",
            enforcement,
            ..Case::of(&[Fault::Method, Fault::Burst])
        }
        .run();
        assert_eq!(ran.answer, answer);
    }
}

#[test]
fn one_key_of_a_possible_shape_is_looked_up_and_nothing_else() {
    let (key, _) = key_of("starter");
    let key = key.reveal().as_bytes();
    for (values, answer) in [
        (&[][..], Err(NoKey::Missing)),
        (&[&b""[..]], Err(NoKey::Missing)),
        (&[b"", key], Err(NoKey::Invalid)),
        (&[key, key], Err(NoKey::Invalid)),
        (&[b"short"], Err(NoKey::Invalid)),
        (&[key], Ok(KeyDigest::of(key))),
    ] {
        let values = values.iter().copied();
        let presented = presented::<&KeyRecord>(values, &KeyPrefix::default());
        assert_eq!(presented, answer);
    }
}

#[test]
fn a_failure_of_the_gateway_is_a_500_with_what_is_known_by_then() {
    let now = Timestamp::UNIX_EPOCH;
    let day = Calendar::of_zone("UTC").unwrap().day_at(now).unwrap();
    let case = Case::of(&[]);
    let (_, record) = key_of("starter");
    let terms = Terms {
        burst: None,
        concurrent: None,
        ..case.terms()
    };
    for (found, cause, key, place) in [
        (Err(NoKey::Unknown("no keys".into())), "no keys", None, None),
        (
            Caller::new(&record, now, day, None),
            "the configuration has no tier starter",
            Some(&record),
            None,
        ),
        (
            Caller::new(&record, now, day, Some(terms)),
            "no store",
            Some(&record),
            Some(MARKETS),
        ),
    ] {
        let table = case.table();
        let Next::Key::<&KeyRecord, ()>(ask) = begin(&Method::GET, Ok(MARKETS), &table, None)
        else {
            panic!("step 2");
        };
        let next: Next<'_, &KeyRecord, ()> = match ask.answer(found) {
            Next::Charge(ask) => ask.failed("no store".into(), None),
            next => next,
        };
        let Next::Refused(refusal) = next else {
            panic!("{next:?}");
        };
        assert_eq!(refusal.rejection, Rejection::Internal);
        assert_eq!(refusal.cause.as_deref(), Some(cause));
        assert_eq!(refusal.key, key);
        assert_eq!(refusal.place.as_ref().map(RouteId::name), place);
        assert_eq!(refusal.quota_status.is_some(), place.is_some());
        assert_eq!(
            refusal
                .quota_status
                .and_then(|quota_status| quota_status.used),
            None
        );
    }
}

#[test]
fn what_changes_again_and_again_is_given_up() {
    for (changes, answer) in [
        (JUDGEMENTS_MAX - 1, "permit"),
        (JUDGEMENTS_MAX, "INTERNAL_ERROR"),
    ] {
        let ran = Case {
            changes,
            ..Case::of(&[])
        }
        .run();
        assert_eq!((ran.answer.as_str(), ran.tokens_drawn), (answer, 1));
        assert_eq!(ran.cause.is_some(), answer == "INTERNAL_ERROR");
    }
}

proptest! {
    #[test]
    fn a_permit_comes_of_one_granted_charge_and_a_rejection_of_the_first_step_that_fails(
        faults in prop::sample::subsequence(Fault::ALL.to_vec(), 0..=Fault::ALL.len()),
        shadow in any::<bool>(),
        changes in 0..=JUDGEMENTS_MAX + 1,
    ) {
        let enforcement = if shadow { Enforcement::Shadow } else { Enforcement::Enforced };
        let case = Case { faults, path: MARKETS, enforcement, changes };
        let ran = case.run();
        prop_assert_eq!(ran.answer.as_str(), case.expected());
        prop_assert_eq!(ran.charges_granted, u32::from(ran.answer == "permit"));
        prop_assert!(ran.charges_asked <= (1 + changes).min(JUDGEMENTS_MAX));
        prop_assert!(ran.tokens_drawn <= 1);
        // No step after the first that refuses passes, except the token that a refused request draws.
        let verdicts: Vec<(AdmissionStep, Verdict)> = ran.trail.verdicts().collect();
        let refuses = verdicts.iter().position(|(_, verdict)| *verdict == Verdict::Refuses);
        for (check, verdict) in verdicts.iter().skip(refuses.map_or(9, |at| at + 1)) {
            prop_assert!(*check == AdmissionStep::Rates || *verdict == Verdict::NotReached, "{:?}", verdicts);
        }
    }
}

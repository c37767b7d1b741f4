//! Shows that the judgement passes when it must and fails for each kind of disagreement.

use std::time::{Duration, Instant};

use super::*;

const PATH: &str = "/api/v1/data/markets";
/// 2026-11-22T00:00:00Z.
const RESET: u64 = 1_795_305_600;

fn key() -> IssuedKey {
    IssuedKey {
        id: "abcdefghijkl".into(),
        key: "fpd_abcdefghijkl_0123456789ABCDEFGHIJKLMNOPQRSTUVchecks".into(),
        tier: "starter".into(),
    }
}

fn served(id: &str) -> Entry {
    Entry {
        id: id.into(),
        key: Some(key().key),
        method: "GET".into(),
        target: PATH.into(),
        status: Some(200),
        code: None,
        is_problem: false,
        limit: Some(3),
        remaining: Some(2),
        reset: Some(RESET),
        ending: Ending::Whole,
        answer_text: String::new(),
    }
}

fn problem(id: &str, status: u16, code: &str) -> Entry {
    Entry {
        status: Some(status),
        code: Some(code.into()),
        is_problem: true,
        answer_text: match status {
            429 => "{\"violated-policies\":[\"daily\"]}".into(),
            _ => String::new(),
        },
        ..served(id)
    }
}

fn line(id: &str, status: u16, outcome: &str, units: u64, refunded: bool) -> AccessLine {
    AccessLine {
        request_id: id.into(),
        is_untiered: false,
        key_id: Some(key().id),
        method: "GET".into(),
        path: PATH.into(),
        status,
        outcome: outcome.into(),
        units,
        refunded,
    }
}

fn forwarded(id: &str, outcome: Outcome) -> Recorded {
    Recorded {
        id: id.into(),
        method: "GET".into(),
        target: PATH.into(),
        version: http::Version::HTTP_11,
        headers: vec![
            ("X-Consumer-Id".into(), key().id.into_bytes()),
            ("X-Consumer-Tier".into(), b"starter".to_vec()),
        ],
        body: Vec::new(),
        at: Instant::now(),
        connection: 1,
        place: 1,
        outcome,
    }
}

/// One served, one failed and refunded, one refused for its quota.
fn agreeing() -> Ledgers {
    Ledgers {
        client: vec![
            served("a"),
            problem("b", 500, "INTERNAL_ERROR"),
            problem("c", 429, "RATE_LIMIT_EXCEEDED"),
        ],
        access: vec![
            line("a", 200, "served", 1, false),
            line("b", 500, "INTERNAL_ERROR", 1, true),
            line("c", 429, "RATE_LIMIT_EXCEEDED", 0, false),
        ],
        usage: vec![UsageRow {
            date: "2026-11-21".into(),
            key: key().id,
            used: 1,
            endpoints: BTreeMap::from([(
                PATH.into(),
                EndpointTotals {
                    requests: 2,
                    charged: 2,
                    refunded: 1,
                    refused_tier: 0,
                    refused_quota: 1,
                    refused_burst: 0,
                    refused_concurrent: 0,
                },
            )]),
        }],
        upstream: vec![
            forwarded("a", Outcome::Answered),
            forwarded("b", Outcome::Reset),
        ],
        artefacts: vec![("stderr".into(), b"key abcdefghijkl was charged".to_vec())],
        keys: vec![key()],
        tiers: vec![TierSpec {
            name: "starter".into(),
            daily: 3,
            price: 99,
        }],
        endpoints: vec![EndpointSpec::get(PATH, &["starter"])],
    }
}

#[track_caller]
fn assert_found(ledgers: &Ledgers, allowed: &Allowances, expected: &str) {
    let found = ledgers.disagreements(allowed);
    assert!(
        found.iter().any(|one| one.contains(expected)),
        "{expected:?} is not among {found:#?}"
    );
}

#[track_caller]
fn fails(change: impl FnOnce(&mut Ledgers), expected: &str) {
    let mut ledgers = agreeing();
    change(&mut ledgers);
    assert_found(&ledgers, &Allowances::default(), expected);
}

#[track_caller]
fn passes(ledgers: &Ledgers, allowed: &Allowances) {
    assert_eq!(ledgers.disagreements(allowed), Vec::<String>::new());
}

#[test]
fn agreeing_ledgers_pass() {
    passes(&agreeing(), &Allowances::default());
}

#[test]
fn an_upstream_request_of_no_client_is_found() {
    fails(
        |ledgers| ledgers.upstream.push(forwarded("z", Outcome::Answered)),
        "belongs to no client request",
    );
    fails(
        |ledgers| ledgers.upstream[0].id.clear(),
        "belongs to no client request",
    );
}

#[test]
fn another_method_or_target_at_the_upstream_is_found() {
    fails(
        |ledgers| ledgers.upstream[0].method = "POST".into(),
        "was sent as GET",
    );
    fails(
        |ledgers| ledgers.upstream[0].target = b"/api/v1/data/markets?a".to_vec(),
        "was sent as /api/v1/data/markets",
    );
}

#[test]
fn a_refused_request_at_the_upstream_is_found() {
    fails(
        |ledgers| ledgers.upstream.push(forwarded("c", Outcome::Answered)),
        "though the client was refused with 429",
    );
    fails(
        |ledgers| ledgers.client[0].key = None,
        "came without an issued key",
    );
    fails(|ledgers| ledgers.endpoints.clear(), "is no endpoint");
}

#[test]
fn a_request_that_arrives_twice_is_found_unless_it_was_a_retry_on_a_dead_connection() {
    let mut ledgers = agreeing();
    let mut dead = forwarded("a", Outcome::Reset);
    dead.place = 2;
    dead.at -= Duration::from_secs(1);
    ledgers.upstream.insert(0, dead);
    let retries = Allowances {
        retries: true,
        ..Allowances::default()
    };
    assert_found(&ledgers, &Allowances::default(), "arrived 2 times");
    passes(&ledgers, &retries);
    let mut post = ledgers.clone();
    post.upstream[0].method = "POST".into();
    assert_found(&post, &retries, "arrived 2 times");
    let mut fresh = ledgers.clone();
    fresh.upstream[0].place = 1;
    assert_found(&fresh, &retries, "arrived 2 times");
    let mut refused = ledgers.clone();
    refused.client[0].method = "POST".into();
    refused.access[0].method = "POST".into();
    for request in &mut refused.upstream[..2] {
        request.method = "POST".into();
    }
    refused.upstream[0].outcome = Outcome::Refused;
    passes(&refused, &retries);
    assert_found(&refused, &Allowances::default(), "arrived 2 times");
}

#[test]
fn a_request_that_was_sent_to_another_server_is_found_unless_the_first_had_failed_it() {
    let elsewhere = Allowances {
        other_servers: true,
        ..Allowances::default()
    };
    for (outcome, may) in [
        (Outcome::Reset, true),
        (Outcome::Unanswered, true),
        (Outcome::Away, true),
        (Outcome::Cut, false),
    ] {
        let mut ledgers = agreeing();
        let mut first = forwarded("a", outcome);
        first.at -= Duration::from_secs(1);
        ledgers.upstream.push(first);
        assert_found(&ledgers, &Allowances::default(), "arrived 2 times");
        if may {
            passes(&ledgers, &elsewhere);
            ledgers.upstream.last_mut().unwrap().method = "POST".into();
        }
        assert_found(&ledgers, &elsewhere, "arrived 2 times");
    }
}

#[test]
fn an_answer_that_the_upstream_never_gave_is_found() {
    fails(
        |ledgers| drop(ledgers.upstream.remove(0)),
        "the upstream did not answer it once",
    );
}

#[test]
fn a_call_without_an_answer_is_found() {
    fails(
        |ledgers| {
            ledgers.client[1].ending = Ending::Failed;
            ledgers.client[1].status = None;
        },
        "no answer at all",
    );
}

#[test]
fn an_id_used_twice_is_found() {
    fails(|ledgers| ledgers.client.push(served("a")), "was used twice");
}

#[test]
fn a_missing_a_doubled_and_a_foreign_line_in_the_access_log_are_found() {
    fails(
        |ledgers| drop(ledgers.access.remove(0)),
        "access log: 0 lines",
    );
    fails(
        |ledgers| ledgers.access.push(line("a", 200, "served", 1, false)),
        "access log: 2 lines",
    );
    fails(
        |ledgers| ledgers.access.push(line("z", 200, "served", 1, false)),
        "z is the id of no client request",
    );
}

#[test]
fn a_line_in_the_access_log_that_differs_is_found() {
    fails(|ledgers| ledgers.access[0].status = 201, "has status 201");
    fails(
        |ledgers| ledgers.access[0].method = "HEAD".into(),
        "has method HEAD",
    );
    fails(
        |ledgers| ledgers.access[0].path = "/x".into(),
        "has path /x",
    );
    fails(|ledgers| ledgers.access[0].key_id = None, "has key id None");
    fails(
        |ledgers| ledgers.access[2].outcome = "served".into(),
        "has outcome served",
    );
    fails(|ledgers| ledgers.access[0].units = 0, "has 0 units");
    fails(
        |ledgers| ledgers.access[1].refunded = false,
        "refunded false",
    );
}

#[test]
fn a_line_names_the_key_of_a_failed_call_exactly_where_the_answer_shows_a_quota_status() {
    let mut ledgers = agreeing();
    let mut nobody = problem("d", 500, "INTERNAL_ERROR");
    nobody.limit = None;
    ledgers.client.push(nobody);
    let mut known = line("d", 500, "INTERNAL_ERROR", 0, false);
    ledgers.access.push(AccessLine {
        key_id: None,
        ..known.clone()
    });
    assert_eq!(
        ledgers.disagreements(&Allowances::default()),
        Vec::<String>::new()
    );
    std::mem::swap(&mut ledgers.access[3], &mut known);
    let found = ledgers.disagreements(&Allowances::default()).join("\n");
    assert!(found.contains("has key id Some"), "{found}");
    fails(|ledgers| ledgers.access[1].key_id = None, "has key id None");
}

#[test]
fn a_day_is_reported_in_zones_before_and_behind_utc() {
    // Before midnight of UTC as in Berlin (+1) and Suva (+12), and after it as in New York (-5) and Niue (-11).
    for hours in [-12, -1, 5, 11] {
        let mut ledgers = agreeing();
        for entry in &mut ledgers.client {
            entry.reset = RESET.checked_add_signed(hours * 3_600);
        }
        assert_eq!(
            ledgers.disagreements(&Allowances::default()),
            Vec::<String>::new(),
            "{hours}"
        );
        ledgers.usage[0].date = "2026-11-22".into();
        let found = ledgers.disagreements(&Allowances::default()).join("\n");
        assert!(found.contains("on 2026-11-2"), "{hours}: {found}");
    }
}

#[test]
fn a_lost_and_an_invented_unit_in_the_store_are_found() {
    fails(
        |ledgers| ledgers.usage[0].used = 0,
        "used 0, but its calls amount to 1",
    );
    fails(
        |ledgers| ledgers.usage[0].used = 2,
        "used 2, but its calls amount to 1",
    );
    fails(
        |ledgers| ledgers.usage.clear(),
        "used 0, but its calls amount to 1",
    );
    fails(
        |ledgers| ledgers.usage[0].key = "other".into(),
        "other was never issued",
    );
}

#[test]
fn a_limit_that_was_exceeded_is_found() {
    fails(|ledgers| ledgers.usage[0].used = 4, "above its limit of 3");
}

#[test]
fn endpoints_that_do_not_sum_to_what_was_used_are_found() {
    let totals = |ledgers: &mut Ledgers, change: fn(&mut EndpointTotals)| {
        change(ledgers.usage[0].endpoints.get_mut(PATH).unwrap());
    };
    fails(
        |ledgers| totals(ledgers, |one| one.charged = 3),
        "its endpoints sum to 2",
    );
    fails(
        |ledgers| totals(ledgers, |one| one.refused_quota = 0),
        "refused 0 times because of its quota, but its calls amount to 1",
    );
    fails(
        |ledgers| totals(ledgers, |one| one.refused_tier = 1),
        "refused 1 times because of its tier, but its calls amount to 0",
    );
    fails(
        |ledgers| {
            let all = ledgers.usage[0].endpoints.remove(PATH).unwrap();
            ledgers.usage[0].endpoints.insert("/other".into(), all);
        },
        "used 0 - 0 of /api/v1/data/markets, but its calls amount to 1",
    );
}

#[test]
fn a_unit_on_the_wrong_day_is_found() {
    fails(
        |ledgers| {
            let mut other = ledgers.usage[0].clone();
            other.date = "2026-11-22".into();
            ledgers.usage[0].used = 0;
            ledgers.usage[0].endpoints.clear();
            ledgers.usage.push(other);
        },
        "used 0 on 2026-11-21, but its calls amount to 1",
    );
}

#[test]
fn a_cut_answer_that_stayed_charged_is_found() {
    let cut = |ledgers: &mut Ledgers| {
        ledgers.client[0].ending = Ending::Cut;
        ledgers.upstream[0].outcome = Outcome::Cut;
        ledgers.access[0].outcome = "cut".into();
    };
    fails(cut, "used 1, but its calls amount to 0");
    let mut ledgers = agreeing();
    cut(&mut ledgers);
    let charged = Allowances {
        charged_cuts: BTreeSet::from(["a".into()]),
        ..Allowances::default()
    };
    passes(&ledgers, &charged);
}

#[test]
fn a_client_that_hung_up_is_charged_unless_the_upstream_was_slow() {
    let mut ledgers = agreeing();
    ledgers.client[0].ending = Ending::HungUp;
    ledgers.client[0].status = None;
    ledgers.upstream[0].outcome = Outcome::Unanswered;
    ledgers.access[0].outcome = "client_closed".into();
    passes(&ledgers, &Allowances::default());
    let slow = Allowances {
        refunded_hang_ups: BTreeSet::from(["a".into()]),
        ..Allowances::default()
    };
    assert_found(&ledgers, &slow, "used 1, but its calls amount to 0");
}

#[test]
fn a_killed_gateway_may_leave_calls_in_flight_charged_but_loses_none_that_was_answered() {
    let killed = Allowances {
        gateway_killed: true,
        ..Allowances::default()
    };
    let mut ledgers = agreeing();
    ledgers.client.push(Entry {
        status: None,
        ending: Ending::Failed,
        ..served("d")
    });
    ledgers.access.clear();
    passes(&ledgers, &killed);
    ledgers.usage[0].used = 3;
    passes(&ledgers, &killed);
    ledgers.usage[0].used = 0;
    assert_found(&ledgers, &killed, "used 0, but its calls amount to 1 to 3");
}

#[test]
fn an_api_key_anywhere_is_found() {
    let secret = "0123456789ABCDEFGHIJKLMNOPQRSTUV";
    fails(
        |ledgers| ledgers.artefacts[0].1 = format!("x{}y", key().key).into(),
        "stderr has the API key",
    );
    fails(
        |ledgers| ledgers.artefacts[0].1 = secret.as_bytes()[..16].to_vec(),
        "stderr has the API key",
    );
    fails(
        |ledgers| ledgers.client[0].answer_text = secret.into(),
        "the answer to GET /api/v1/data/markets",
    );
    fails(
        |ledgers| {
            let value = secret.as_bytes()[20..].to_vec();
            let value = [value, b"checks".to_vec()].concat();
            ledgers.upstream[0].headers.push(("Cookie".into(), value));
        },
        "the upstream's a has the API key",
    );
}

#[test]
fn headers_that_no_upstream_may_see_are_found() {
    for header in ["X-Api-Key", "x_api_key", "X-Consumer-Name", "x_consumer_id"] {
        fails(
            |ledgers| {
                ledgers.upstream[0]
                    .headers
                    .push((header.into(), b"v".to_vec()))
            },
            &format!("carries {header}"),
        );
    }
    fails(
        |ledgers| ledgers.upstream[0].headers[0].1 = b"forged".to_vec(),
        "has X-Consumer-Id",
    );
    fails(
        |ledgers| {
            let forged = ("x-consumer-tier".into(), b"enterprise".to_vec());
            ledgers.upstream[0].headers.push(forged);
        },
        "has X-Consumer-Tier",
    );
}

#[test]
fn usage_is_read_from_the_commands_json() {
    let text = r#"{"days":[{"date":"2026-11-21","key":"abcdefghijkl","used":1,"endpoints":{"/api/v1/data/markets":{"requests":2,"charged":2,"refunded":1,"refused_tier":0,"refused_quota":1}}}]}"#;
    assert_eq!(read_usage(text).unwrap(), agreeing().usage);
    assert!(read_usage("{}").is_err());
    assert!(read_usage(r#"{"days":[{"date":"d","key":"k"}]}"#).is_err());
}

#[test]
fn dates_are_those_of_utc() {
    assert_eq!(date_of(0), "1970-01-01");
    assert_eq!(date_of(951_782_399), "2000-02-28");
    assert_eq!(date_of(951_782_400), "2000-02-29");
    assert_eq!(date_of(RESET - 1), "2026-11-21");
    assert_eq!(date_of(RESET), "2026-11-22");
}

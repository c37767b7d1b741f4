//! What holds for every resource: pages, errors, methods, validators, staged failures, the log.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use prediction_data::access_log::AccessLog;
use prediction_data::fault::FaultPlan;
use prediction_data::router::{Behaviour, Health};
use serde_json::Value;

use crate::ask::{LISTS, ask, data, get, service, service_that};

#[tokio::test]
async fn every_list_has_rows_and_says_where_its_page_lies() {
    let service = service();
    for (list, total) in LISTS.into_iter().zip([384, 48, 240, 48, 8]) {
        let answer = data(&service, list).await;
        let rows = answer.rows();
        let pagination = &answer.json()["pagination"];
        assert_eq!(answer.header("content-type"), "application/json", "{list}");
        assert_eq!(
            answer.header("cache-control"),
            "private, max-age=60",
            "{list}"
        );
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{list}");
        assert_eq!(rows.len() as u64, total.min(20), "{list}");
        assert_eq!(pagination["total"], total, "{list}");
        assert_eq!(pagination["page"], 1, "{list}");
        assert_eq!(pagination["per_page"], 20, "{list}");
        assert_eq!(pagination["pages"], total.div_ceil(20), "{list}");
    }
}

#[tokio::test]
async fn the_pages_of_a_list_hold_each_row_once_in_the_order_of_kickoff() {
    let service = service();
    let mut ids = Vec::new();
    let mut kickoffs = Vec::new();
    for page in 1..=7 {
        for row in data(&service, &format!("predictions?per_page=7&page={page}"))
            .await
            .rows()
        {
            ids.push(row["fixture"]["id"].as_u64().unwrap());
            kickoffs.push(row["fixture"]["kickoff"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(ids.len(), 48);
    assert!(kickoffs.is_sorted());
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 48);
}

#[tokio::test]
async fn a_page_after_the_last_is_empty_and_a_page_of_100_is_allowed_but_not_of_101() {
    let service = service();
    assert_eq!(data(&service, "predictions?page=3").await.rows().len(), 8);
    assert_eq!(data(&service, "predictions?page=4").await.rows().len(), 0);
    assert_eq!(
        data(&service, "markets?per_page=100").await.rows().len(),
        100
    );
    assert_eq!(
        data(&service, "markets?per_page=101").await.status,
        StatusCode::BAD_REQUEST
    );
}

#[tokio::test]
async fn a_bad_or_unknown_parameter_is_refused_with_its_name_and_a_way_to_mend_it() {
    let service = service();
    for (target, parameter, hint) in [
        ("markets?market=asian", "market", "match_result"),
        ("markets?fixture_id=x", "fixture_id", "digits"),
        ("markets?kind=form", "kind", "market"),
        ("predictions?team=nobody", "team", "larkmoor"),
        ("predictions?round=31", "round", "digits"),
        ("predictions?round=0", "round", "digits"),
        ("predictions?from=tomorrow", "from", "2026-11-28"),
        ("predictions?from=2026-12-02&to=2026-12-01", "to", "swap"),
        ("predictions?page=1&page=2", "page", "once"),
        ("predictions?Page=1", "Page", "page"),
        ("predictions/2501?team=larkmoor", "team", "no parameters"),
        ("insights?kind=gossip", "kind", "crowd"),
        ("sentiment?per_page=0", "per_page", "digits"),
        ("rankings?by=fame", "by", "brier"),
        ("rankings?min_picks=0", "min_picks", "digits"),
    ] {
        let answer = data(&service, target).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{target}");
        assert_eq!(
            answer.header("content-type"),
            "application/problem+json",
            "{target}"
        );
        assert_eq!(answer.header("cache-control"), "no-store", "{target}");
        let problem = answer.json();
        assert_eq!(problem["code"], "INVALID_PARAMETER", "{target}");
        assert_eq!(problem["status"], 400, "{target}");
        assert_eq!(problem["errors"][0]["parameter"], parameter, "{target}");
        assert!(
            problem["errors"][0]["hint"]
                .as_str()
                .unwrap()
                .contains(hint),
            "{target}: {problem}"
        );
        assert!(
            problem["detail"].as_str().unwrap().contains(parameter),
            "{target}"
        );
    }
}

#[tokio::test]
async fn an_unknown_fixture_a_played_one_and_an_unknown_path_are_not_found() {
    let service = service();
    for (target, code) in [
        ("/api/v1/data/predictions/9999", "FIXTURE_NOT_FOUND"),
        ("/api/v1/data/predictions/101", "FIXTURE_NOT_FOUND"),
        ("/api/v1/data/predictions/02501", "FIXTURE_NOT_FOUND"),
        ("/api/v1/data/predictions/+2501", "FIXTURE_NOT_FOUND"),
        ("/api/v1/data/predictions/abc", "FIXTURE_NOT_FOUND"),
        ("/api/v1/data/predictions/%ff", "FIXTURE_NOT_FOUND"),
        ("/api/v1/data/predictions/99999999999", "FIXTURE_NOT_FOUND"),
        ("/api/v1/data/predictions/", "NOT_FOUND"),
        ("/api/v1/data/Markets", "NOT_FOUND"),
        ("/", "NOT_FOUND"),
    ] {
        let answer = get(&service, target).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{target}");
        assert_eq!(
            answer.header("content-type"),
            "application/problem+json",
            "{target}"
        );
        assert_eq!(answer.json()["code"], code, "{target}");
    }
    let played = data(&service, "predictions/101").await.json();
    assert!(
        played["detail"]
            .as_str()
            .unwrap()
            .contains("has been played"),
        "{played}"
    );
}

#[tokio::test]
async fn other_methods_are_refused_with_those_allowed() {
    let service = service();
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
        let request = Request::builder()
            .method(&method)
            .uri("/api/v1/data/markets");
        let answer = ask(&service, request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method}");
        assert_eq!(answer.header("allow"), "GET,HEAD", "{method}");
        assert_eq!(answer.json()["code"], "METHOD_NOT_ALLOWED", "{method}");
    }
}

#[tokio::test]
async fn head_has_the_headers_of_get_and_no_body() {
    let service = service();
    for target in [
        "/api/v1/data/markets",
        "/api/v1/data/predictions/2501",
        "/api/v1/data/rankings",
        "/healthz",
    ] {
        let of_get = get(&service, target).await;
        let of_head = ask(&service, Request::head(target).body(Body::empty()).unwrap()).await;
        assert_eq!(
            (of_head.status, of_head.body.len()),
            (StatusCode::OK, 0),
            "{target}"
        );
        assert_eq!(
            of_head.header("content-length"),
            of_get.body.len().to_string(),
            "{target}"
        );
        assert_eq!(
            of_head.header("content-type"),
            of_get.header("content-type"),
            "{target}"
        );
        assert_eq!(of_head.header("etag"), of_get.header("etag"), "{target}");
    }
}

#[tokio::test]
async fn an_etag_stands_for_the_bytes_and_a_caller_who_has_it_gets_304() {
    let service = service();
    for target in LISTS.into_iter().chain(["predictions/2501"]) {
        let first = data(&service, target).await;
        let etag = first.header("etag").to_owned();
        assert!(
            etag.len() == 34 && etag.starts_with('"') && etag.ends_with('"'),
            "strong: {etag}"
        );
        for known in [
            etag.clone(),
            format!("W/{etag}"),
            format!("\"other\", {etag}"),
            "*".to_owned(),
        ] {
            let request =
                Request::get(format!("/api/v1/data/{target}")).header("if-none-match", &known);
            let answer = ask(&service, request.body(Body::empty()).unwrap()).await;
            assert_eq!(
                (answer.status, answer.body.len()),
                (StatusCode::NOT_MODIFIED, 0),
                "{known}"
            );
            assert_eq!(answer.header("etag"), etag, "{known}");
            assert_eq!(
                answer.header("cache-control"),
                "private, max-age=60",
                "{known}"
            );
        }
        for other in ["\"other\"", &etag[1..33], ""] {
            let request =
                Request::get(format!("/api/v1/data/{target}")).header("if-none-match", other);
            let answer = ask(&service, request.body(Body::empty()).unwrap()).await;
            assert_eq!(answer.status, StatusCode::OK, "{other}");
            assert_eq!(answer.body, first.body, "{other}");
        }
    }
    let other = data(&service, "markets?page=2").await;
    assert_ne!(
        other.header("etag"),
        data(&service, "markets").await.header("etag")
    );
}

#[tokio::test]
async fn healthz_says_what_is_served_and_can_be_made_to_fail() {
    let answer = get(&service(), "/healthz").await;
    assert_eq!(
        (answer.status, answer.header("cache-control")),
        (StatusCode::OK, "no-store")
    );
    assert_eq!(answer.json()["status"], "ok");
    assert_eq!(answer.json()["upcoming_fixtures"], 48);
    let down = service_that(Behaviour {
        health: Health::StagedDown,
        ..Behaviour::default()
    });
    assert_eq!(
        get(&down, "/healthz").await.status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(data(&down, "markets").await.status, StatusCode::OK);
}

#[tokio::test]
async fn every_tenth_data_request_fails_at_a_rate_of_a_tenth_and_healthz_does_not_count() {
    let service = service_that(Behaviour {
        fault: FaultPlan {
            fail_rate: "0.1".parse().unwrap(),
            fail_status: StatusCode::BAD_GATEWAY,
            ..FaultPlan::default()
        },
        ..Behaviour::default()
    });
    for number in 1..=30 {
        assert_eq!(get(&service, "/healthz").await.status, StatusCode::OK);
        let answer = data(&service, "markets").await;
        let expected = if number % 10 == 0 {
            StatusCode::BAD_GATEWAY
        } else {
            StatusCode::OK
        };
        assert_eq!(answer.status, expected, "request {number}");
        if number % 10 == 0 {
            assert_eq!(answer.json()["code"], "STAGED_FAILURE");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_delay_holds_back_every_data_answer_and_no_other() {
    let delay = Duration::from_millis(250);
    let service = service_that(Behaviour {
        fault: FaultPlan {
            delay,
            ..FaultPlan::default()
        },
        ..Behaviour::default()
    });
    let started = tokio::time::Instant::now();
    get(&service, "/healthz").await;
    assert_eq!(started.elapsed(), Duration::ZERO);
    data(&service, "markets").await;
    assert!(started.elapsed() >= delay && started.elapsed() < 2 * delay);
}

#[tokio::test]
async fn the_log_says_who_asked_and_nothing_of_the_query_or_the_key() {
    let (read_end, write_end) = std::io::pipe().unwrap();
    let (log, writer) = AccessLog::start(write_end);
    let service = service_that(Behaviour {
        access_log: Some(log),
        ..Behaviour::default()
    });
    let request = Request::get("/api/v1/data/markets?page=2")
        .header("x-request-id", "r-1")
        .header("x-consumer-id", "k".repeat(1_000))
        .header("x-api-key", "a-secret");
    let answer = ask(&service, request.body(Body::empty()).unwrap()).await;
    assert!(!answer.headers.contains_key("x-request-id"));
    drop(service);
    writer.finish(Duration::from_secs(10));
    let text = std::io::read_to_string(read_end).unwrap();
    let line: Value = serde_json::from_str(text.trim_end()).unwrap();
    assert_eq!(line["request_id"], "r-1");
    assert_eq!(line["consumer_id"], "k".repeat(128));
    assert_eq!(line["path"], "/api/v1/data/markets");
    assert_eq!(line["status"], 200);
    assert_eq!(line["body_bytes"], answer.body.len());
    assert!(!text.contains("secret") && !text.contains("page"), "{text}");
}

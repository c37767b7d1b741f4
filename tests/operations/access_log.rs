//! The access log: every field, one line a request, nothing forged, no key.

use std::collections::BTreeSet;

use harness::client::Until;
use harness::{AccessLogSpec, Behaviour, Call, Protocol, Scene, eventually};
use serde_json::{Value, json};

use super::{MARKETS, RANKINGS, TOUCHLINE};

const FIELDS: [&str; 17] = [
    "time",
    "request_id",
    "client",
    "protocol",
    "method",
    "path",
    "endpoint",
    "key_id",
    "tier",
    "status",
    "outcome",
    "units",
    "refunded",
    "duration_ms",
    "store_ms",
    "upstream_ms",
    "bytes_sent",
];

#[tokio::test]
async fn a_line_has_every_field_of_its_request() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        client
            .get(&key, "/api/v1/data/predictions/fx-1?secret=query")
            .await;
        client.get(&key, RANKINGS).await;
        client.call(Call::get(MARKETS)).await;
        scene.upstream.always(Behaviour::Status(503));
        client.get(&key, MARKETS).await;
        scene.upstream.always(Behaviour::Echo);
    }
    let lines = scene.gateways[0].logged(12).await;
    assert_eq!(lines.len(), 12);
    let answered: Vec<String> = {
        let entries = scene.client_ledger().entries();
        entries.into_iter().map(|entry| entry.id).collect()
    };
    for (number, (lines, ids)) in lines.chunks(4).zip(answered.chunks(4)).enumerate() {
        let [served, refused, anonymous, failed] = lines else {
            panic!("{lines:?}");
        };
        for (line, id) in lines.iter().zip(ids) {
            let names: BTreeSet<&str> = line.as_object().unwrap().keys().map(|k| &**k).collect();
            let mut expected = BTreeSet::from(FIELDS);
            if line == failed {
                expected.insert("cause");
            }
            assert_eq!(names, expected, "{line}");
            assert_eq!(line["request_id"], id.as_str());
            assert_eq!(line["method"], "GET");
            assert!(line["client"].as_str().unwrap().starts_with("127.0.0.1:"));
            let protocol = ["HTTP/1.1", "HTTP/1.1", "HTTP/2"][number];
            assert_eq!(line["protocol"], protocol);
            let time: jiff::Timestamp = line["time"].as_str().unwrap().parse().unwrap();
            let age = jiff::Timestamp::now().as_second() - time.as_second();
            assert!((0..60).contains(&age), "{line}");
            assert!(line["duration_ms"].as_f64().unwrap() > 0.0);
        }
        let output = |line: &Value| {
            json!([
                line["path"],
                line["endpoint"],
                line["key_id"],
                line["tier"],
                line["status"],
                line["outcome"],
                line["units"],
                line["refunded"],
            ])
        };
        let (id, path) = (&key.id, "/api/v1/data/predictions/fx-1");
        let pattern = "/api/v1/data/predictions/{fixture_id}";
        let expected = json!([path, pattern, id, "starter", 200, "served", 1, false]);
        assert_eq!(output(served), expected);
        assert!(served["upstream_ms"].as_f64().unwrap() > 0.0);
        assert!(served["store_ms"].as_f64().unwrap() > 0.0);
        assert!(served["bytes_sent"].as_u64().unwrap() > 0);
        let outcome = "TIER_INSUFFICIENT";
        let expected = json!([RANKINGS, RANKINGS, id, "starter", 403, outcome, 0, false]);
        assert_eq!(output(refused), expected);
        let expected = json!([MARKETS, null, null, null, 401, "MISSING_API_KEY", 0, false]);
        assert_eq!(output(anonymous), expected);
        let outcome = "INTERNAL_ERROR";
        let expected = json!([MARKETS, MARKETS, id, "starter", 500, outcome, 1, true]);
        assert_eq!(output(failed), expected);
        assert!(
            failed["cause"].as_str().unwrap().contains("503"),
            "{failed}"
        );
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn hostile_requests_leave_one_line_each_and_no_key() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let requests: Vec<Vec<u8>> = [
        b"/a\"}{\"status\":200".as_slice(),
        b"/a\x1b[31mred",
        b"/a%0a%7b%22forged%22:1%7d",
        b"/\xff\xfe",
        b"/a\\\\b\\",
        b"/api/v1/data/markets?a=\"b",
        "/ü\u{2028}\u{202e}".as_bytes(),
    ]
    .into_iter()
    .map(|target| {
        let mut request = b"GET ".to_vec();
        request.extend(target);
        let rest = format!(
            " HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {}\r\n\r\n",
            key.key
        );
        request.extend(rest.bytes());
        request
    })
    .collect();
    for request in &requests {
        let exchange = client.raw(request, Until::Answers(1)).await;
        assert!([400, 404].contains(&exchange.answers[0].status));
    }
    // A request id of the client's own that would break the line is not taken over.
    let forged = Call::get(MARKETS)
        .key(&key)
        .header("x-request-id", "a\"},{\"forged\":\"1");
    assert_eq!(client.call(forged).await.status, 200);
    // What the HTTP parser refuses never reaches the gateway.
    let expected = scene
        .client_ledger()
        .entries()
        .iter()
        .filter(|entry| entry.answer_text.contains("x-request-id"))
        .count();
    let lines = scene.gateways[0].logged(expected).await;
    assert_eq!(lines.len(), expected);
    let ids: BTreeSet<&str> = lines
        .iter()
        .map(|line| line["request_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids.len(), expected, "one line each");
    let text = std::fs::read(&scene.gateways[0].access_log).unwrap();
    let control = text
        .iter()
        .find(|byte| byte.is_ascii_control() && **byte != b'\n');
    assert_eq!(control, None);
    let text = String::from_utf8(text).unwrap();
    assert!(
        !text.contains(&key.key) && !text.contains("\"forged\""),
        "{text}"
    );
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn the_access_log_goes_to_standard_output_where_it_is_asked_to() {
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.access_log = AccessLogSpec::Stdout)
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    assert_eq!(client.get(&key, RANKINGS).await.status, 403);
    assert_eq!(scene.gateways[0].logged(2).await.len(), 2);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn an_access_log_that_is_moved_away_is_begun_anew_and_no_line_is_lost() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let log = scene.gateways[0].access_log.clone();
    let moved = log.with_extension("1");
    for _ in 0..5 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    scene.gateways[0].logged(5).await;
    std::fs::rename(&log, &moved).unwrap();
    for _ in 0..3 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    scene.gateways[0].logged(3).await;
    let old = std::fs::read_to_string(&moved).unwrap();
    assert_eq!(old.lines().count(), 5, "{old}");
    // Both together are the whole log.
    let new = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, old + &new).unwrap();
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_limit_on_the_size_of_files_costs_lines_and_does_not_end_the_gateway() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let client = scene.client(Protocol::Http1);
    scene.gateways[0].process().fill_disk();
    let lost = "touchline_access_log_dropped_lines_total";
    eventually("lines are lost and counted", async || {
        assert_eq!(client.call(Call::get(MARKETS)).await.status, 401);
        (scene.metric(lost).await > 0.0).then_some(())
    })
    .await;
    scene.gateways[0].process().free_disk();
    eventually("lines are written again", async || {
        assert_eq!(client.call(Call::get(MARKETS)).await.status, 401);
        scene.gateways[0].access_lines().pop()
    })
    .await;
}

#[tokio::test]
async fn of_served_requests_a_share_has_a_line_and_of_others_each() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.logging_extra = "access_log_sample: 25%".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for _ in 0..200 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    for _ in 0..20 {
        assert_eq!(client.get(&key, RANKINGS).await.status, 403);
    }
    scene.upstream.always(Behaviour::Status(404));
    assert_eq!(client.get(&key, MARKETS).await.status, 404);
    // Lines keep their order: when the last is there, all are.
    scene.gateways[0]
        .logged_where(|line| line["status"] == 404)
        .await;
    let lines = scene.gateways[0].access_lines();
    let output = |status: u16| lines.iter().filter(move |line| line["status"] == status);
    assert_eq!(output(403).count(), 20);
    // 50 by chance, give or take five times its deviation of six.
    let served = output(200).count();
    assert!((20..=80).contains(&served), "{served} of 200");
    assert!(output(200).all(|line| line["sample_percent"] == 25));
    assert!(output(403).all(|line| line["sample_percent"].is_null()));
    let (_, text) = scene.admin(0, "/metrics").await;
    let counted: f64 = text
        .lines()
        .filter(|line| line.starts_with("touchline_requests_total{"))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .sum();
    assert_eq!(counted, 221.0, "metrics count all");
}

#[tokio::test]
async fn an_upstreams_4xx_has_a_line_although_no_served_request_has() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.logging_extra = "access_log_sample: 0%".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for status in [200, 404] {
        scene.upstream.always(Behaviour::Status(status));
        assert_eq!(client.get(&key, MARKETS).await.status, status);
    }
    assert_eq!(client.get(&key, RANKINGS).await.status, 403);
    // Lines keep their order: when the last is there, all are.
    let logged = scene.gateways[0].logged_where(|line| line["status"] == 403);
    logged.await;
    let lines = scene.gateways[0].access_lines();
    let statuses: Vec<&Value> = lines.iter().map(|line| &line["status"]).collect();
    assert_eq!(statuses, [404, 403], "{lines:?}");
}

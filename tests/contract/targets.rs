//! Step 1, the target: what two servers might read differently is refused, everything else goes through byte for byte.

use harness::{Call, EndpointSpec, Protocol, Scene};

use super::{MARKETS, TOUCHLINE, assert_problem, raw_get};

/// Targets that are refused, as raw bytes.
const AMBIGUOUS: &[&[u8]] = &[
    b"/api/v1/data/../data/markets",
    b"/api/v1/data/./markets",
    b"/api/v1/data/markets/..",
    b"/api/v1/data/markets/.",
    b"/api/v1/data/%2e%2e/data/markets",
    b"/api/v1/data/%2E./markets",
    b"/api/v1/data/.%2e/markets",
    b"/api/v1/data%2fmarkets",
    b"/api/v1/data%2Fmarkets",
    b"/api/v1/data%5cmarkets",
    b"/api/v1/data%5Cmarkets",
    b"/api/v1/data\\markets",
    b"/api/v1/data/..\\markets",
    b"//api/v1/data/markets",
    b"/api/v1//data/markets",
    b"/api/v1/data/markets//",
    b"//evil/api/v1/data/markets",
    b"/api/v1/data/markets;jsessionid=1",
    b"/api/v1/data;/../markets",
    b"/api/v1/data/..;/markets",
    b"/api/v1/data/predictions/%3bx",
    b"/api/v1/data/predictions/..%3B/markets",
    b"/api/v1/data/markets%3fx",
    b"/api/v1/data/markets%23x",
    b"/api/v1/data/predictions/%ef%bc%8e%ef%bc%8e%ef%bc%8fmarkets",
    b"/api/v1/data/predictions/%c2%85",
    b"/api/v1/data/markets%00",
    b"/api/v1/data/markets%0d%0a",
    b"/api/v1/data/markets%7f",
    b"/api/v1/data/%6darkets",
    b"/api/v1/data/%6Darkets",
    b"/api/v1/data/predictions/%zz",
    b"/api/v1/data/predictions/%",
    b"/api/v1/data/predictions/%4",
    b"/api/v1/data/predictions/%c0%ae",
    b"/api/v1/data/predictions/%ff",
    b"/api/v1/data/predictions/\xc3\xa9",
    b"/api/v1/data/predictions/a|b",
    b"/api/v1/data/predictions/{a}",
    b"/api/v1/data/predictions/a\"b",
    b"/api/v1/data/markets#fragment",
    b"/api/v1/data/markets?a=%",
    b"/api/v1/data/markets?a=%g0",
    b"http://localhost/api/v1/data/../data/markets",
    b"http://localhost//api/v1/data/markets",
    b"http://u@localhost/api/v1/data/markets",
    b"http:///api/v1/data/markets",
    b"ftp://localhost/api/v1/data/markets",
    b"api/v1/data/markets",
    b"*",
    b"?a",
];

/// Targets that break the request line itself.
const UNPARSEABLE: &[&[u8]] = &[
    b"/api/v1/data/predictions/\xff",
    b"/api/v1/data/predictions/a b",
    b"/api/v1/data/predictions/a<b>",
    b"/api/v1/data/predictions/a^b`c",
    b"http://evil/api/v1/data/markets x",
    b"/api/v1/data/predictions/a\tb",
    b"/api/v1/data/predictions/a\x00b",
    b"/api/v1/data/predictions/a\x7fb",
    b"/api/v1/data/predictions/a\rb",
];

#[tokio::test]
async fn an_ambiguous_target_is_refused_before_anything_else() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("enterprise").await;
    for protocol in [Protocol::Http1, Protocol::Http1Tls] {
        let client = scene.client(protocol);
        for target in AMBIGUOUS {
            let what = String::from_utf8_lossy(target);
            let exchange = raw_get(&client, target, &key.key, "").await;
            let answer = exchange.answers.first();
            let answer = answer.unwrap_or_else(|| panic!("no answer to {what}"));
            assert_eq!(answer.status, 400, "{what}: {answer:?}");
            assert_problem(answer, 400, "BAD_REQUEST");
        }
    }
    assert_eq!(scene.upstream.count(), 0);
    assert_eq!(scene.used(&key).await, 0);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_target_that_breaks_the_request_line_is_refused() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("enterprise").await;
    let client = scene.client(Protocol::Http1);
    for target in UNPARSEABLE {
        let exchange = raw_get(&client, target, &key.key, "").await;
        let what = String::from_utf8_lossy(target);
        assert_eq!(exchange.answers.len(), 1, "{what}");
        assert_problem(&exchange.answers[0], 400, "BAD_REQUEST");
    }
    assert_eq!(scene.upstream.count(), 0);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn an_ambiguous_target_is_refused_over_http_2_too() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("enterprise").await;
    let client = scene.client(Protocol::Http2Tls);
    let expressible = |target: &&[u8]| {
        let text = std::str::from_utf8(target).unwrap_or_default();
        let path: Result<http::uri::PathAndQuery, _> = text.parse();
        // What the client's own library would change on the way is no test of the gateway.
        path.is_ok_and(|path| text.starts_with('/') && path.as_str() == text)
    };
    let mut sent = 0;
    for target in AMBIGUOUS.iter().filter(|target| expressible(target)) {
        let target = std::str::from_utf8(target).unwrap();
        let answer = client.call(Call::get(target).key(&key)).await;
        assert_eq!(answer.status, 400, "{target}: {answer:?}");
        assert_problem(&answer, 400, "BAD_REQUEST");
        sent += 1;
    }
    assert!(sent > 20, "only {sent} targets could be expressed");
    assert_eq!(scene.upstream.count(), 0);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn an_accepted_target_reaches_the_upstream_byte_for_byte() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let targets = [
        MARKETS,
        "/api/v1/data/markets?",
        "/api/v1/data/markets?a=1&a=2&b",
        "/api/v1/data/markets?a=%2e%2e%2f%00+%20;x//../%3b%3F%23",
        "/api/v1/data/markets?/../admin",
        "/api/v1/data/markets?a=b?c=/d:@!$'()*,",
        "/api/v1/data/markets?page[number]=1&a={x}|y^z`\\",
        "/api/v1/data/predictions/fx-1",
        "/api/v1/data/predictions/a%20b",
        "/api/v1/data/predictions/%c3%A9",
        "/api/v1/data/predictions/%252e%252e%252f",
        "/api/v1/data/predictions/a:b@c!$&'()*+,=~._-",
        "/api/v1/data/predictions/...",
    ];
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        for target in targets {
            let answer = client.get(&key, target).await;
            assert_eq!(answer.status, 200, "{target}: {answer:?}");
            let recorded = scene.upstream.recorded();
            assert_eq!(recorded.last().unwrap().target_text(), target);
        }
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_prefix_endpoint_takes_every_path_below_it_byte_for_byte_and_charges_each() {
    const PREFIX: &str = "/api/v1/data/files/{rest...}";
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.endpoints.push(EndpointSpec::get(PREFIX, &["pro"])))
        .start()
        .await;
    let key = scene.issue("pro").await;
    let paths = ["a", "a/b.json", "a/b/", "%20/b?c=d/e", "2026/11/22"];
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        for rest in paths {
            let target = format!("/api/v1/data/files/{rest}");
            let answer = client.get(&key, &target).await;
            assert_eq!(answer.status, 200, "{target}: {answer:?}");
            let sent = scene.upstream.take().pop().unwrap();
            assert_eq!(sent.target_text(), target);
        }
        for (target, code) in [
            ("/api/v1/data/files", "NOT_FOUND"),
            ("/api/v1/data/files/", "NOT_FOUND"),
            ("/api/v1/data/files/a/../b", "BAD_REQUEST"),
            ("/api/v1/data/files//a", "BAD_REQUEST"),
        ] {
            let answer = client.get(&key, target).await;
            assert_eq!(answer.code().as_deref(), Some(code), "{target}");
        }
    }
    let calls = (Protocol::ALL.len() * paths.len()) as u64;
    scene.expect_used(&key, calls).await;
    let usage = scene
        .cli(&["usage", "--by", "endpoint", "--output", "json"])
        .await;
    assert!(usage.contains(PREFIX), "{usage}");
}

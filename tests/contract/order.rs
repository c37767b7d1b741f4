//! The steps come in their order: the first that fails answers.

use harness::{Call, Protocol, Scene};

use super::{MARKETS, RANKINGS, TOUCHLINE, assert_problem};

#[tokio::test]
async fn the_first_step_that_fails_answers() {
    let mut scene = Scene::builder(TOUCHLINE).daily("starter", 1).start().await;
    let key = scene.issue("starter").await;
    let bad = "made-elsewhere-and-never-imported-0123456789";
    for (number, protocol) in Protocol::ALL.into_iter().enumerate() {
        let client = scene.client(protocol);
        let first = client.get(&key, MARKETS).await.status;
        assert_eq!(first, if number == 0 { 200 } else { 429 });
        for (call, status, code) in [
            // Malformed before the key.
            (Call::get("/a//b"), 400, "BAD_REQUEST"),
            (Call::get("/a//b").key(bad), 400, "BAD_REQUEST"),
            // The target before the size of the fields.
            (
                Call::get("/a//b").header("x-large", "x".repeat(16_385)),
                400,
                "BAD_REQUEST",
            ),
            // The key before endpoint, method and tier.
            (Call::get("/none"), 401, "MISSING_API_KEY"),
            (Call::get("/none").key(bad), 401, "INVALID_API_KEY"),
            (Call::new("DELETE", MARKETS), 401, "MISSING_API_KEY"),
            (
                Call::new("DELETE", MARKETS).key(bad),
                401,
                "INVALID_API_KEY",
            ),
            (Call::get(RANKINGS).key(bad), 401, "INVALID_API_KEY"),
            // The endpoint before the method, the method before the tier, the tier before the exhausted quota.
            (Call::new("DELETE", "/none").key(&key), 404, "NOT_FOUND"),
            (
                Call::new("DELETE", RANKINGS).key(&key),
                405,
                "METHOD_NOT_ALLOWED",
            ),
            (Call::get(RANKINGS).key(&key), 403, "TIER_INSUFFICIENT"),
            (Call::get(MARKETS).key(&key), 429, "RATE_LIMIT_EXCEEDED"),
        ] {
            assert_problem(&client.call(call).await, status, code);
        }
    }
    scene.assert_ledgers_agree().await;
}

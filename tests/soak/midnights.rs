//! Two-second days on both stores at the same time.

#[allow(dead_code, reason = "what only the test of fewer days uses")]
#[path = "../quota/short_days.rs"]
mod short_days;

/// Runs this number of midnights on each store; panics if a day was not exact.
pub async fn run(midnights: u64) -> (&'static str, String) {
    let days = usize::try_from(midnights).unwrap_or(usize::MAX);
    let (on_redis, embedded) = tokio::join!(short_days::on_redis(days), short_days::embedded(days));
    let what = format!(
        "{midnights} midnights of 2-second days with two gates and 8 clients on each store: {on_redis} units served on Redis and \
         {embedded} on the embedded store, each whole day exactly its limit, each unit on its own day"
    );
    ("midnights", what)
}

//! What a power failure may lose: no test can cut the power, so these look at what is forced to disk.

use harness::{Protocol, Scene, eventually};

use super::MARKETS;
use super::preload::Preload;

/// Its `fdatasync` notes what is forced to disk.
const LIBRARY: &str = include_str!("durability/fdatasync.c");

#[tokio::test]
async fn counts_are_forced_to_disk_also_while_a_backup_reads_the_store() {
    let preload = Preload::new(LIBRARY);
    let synced = preload.file("synced");
    let program = preload.program("SYNCED", &synced);
    let scene = Scene::builder(program).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    // An instant of the store, as a backup reads it.
    let mut backup = rusqlite::Connection::open(scene.directory().join("touchline.db")).unwrap();
    let instant = backup.transaction().unwrap();
    let keys = |instant: &rusqlite::Transaction<'_>| {
        let count = "SELECT count(*) FROM keys";
        instant.query_row(count, [], |row| row.get::<_, i64>(0))
    };
    assert_eq!(keys(&instant).unwrap(), 1);
    let syncs_of_the_log = || {
        let paths = std::fs::read_to_string(&synced).unwrap_or_default();
        paths.lines().filter(|path| path.ends_with("-wal")).count()
    };
    // One more may have begun before, and one folds what was written before the instant.
    for _ in 0..4 {
        let before = syncs_of_the_log();
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        eventually("the log is forced to disk", async || {
            (syncs_of_the_log() > before).then_some(())
        })
        .await;
    }
    assert_eq!(keys(&instant).unwrap(), 1);
}

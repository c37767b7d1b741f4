//! The embedded store: the shared suite, and what only it has.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use touchline::clock::Clock;
use touchline::store::embedded::{Settings, open};
use touchline::store::{Role, Store, StoreError};

use crate::suite::Fixture;

/// A database file in a directory of its own.
struct EmbeddedFixture {
    directory: tempfile::TempDir,
}

impl EmbeddedFixture {
    fn new() -> EmbeddedFixture {
        EmbeddedFixture {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("touchline.db")
    }
}

#[async_trait]
impl Fixture for EmbeddedFixture {
    async fn try_open(&self, role: Role, zone: &str) -> Result<Arc<dyn Store>, StoreError> {
        let store = open(Settings::new(self.path()), role, zone, Clock::system()).await?;
        Ok(store)
    }
}

store_suite!(EmbeddedFixture::new());

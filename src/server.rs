//! Composition: from a configuration to stores, services and listeners.

use std::sync::Arc;

use crate::config::Config;
use crate::store::{Role, Store, StoreError};

/// Runs the gateway until it is told to stop.
pub fn serve(_config: Config) -> anyhow::Result<()> {
    anyhow::bail!("this build has no gateway yet")
}

/// The configured store, ready to be used in `role`.
pub async fn open_store(_config: &Config, _role: Role) -> Result<Arc<dyn Store>, StoreError> {
    Err(StoreError::Failed("this build has no store yet".to_owned()))
}

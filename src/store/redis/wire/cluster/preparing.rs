//! The preparation of a cluster: what one server is asked on its connection, each master is asked for its own names.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Cluster;
use crate::store::StoreError;
use crate::store::redis::wire::request::read_time;
use crate::store::redis::wire::zone::{self, EmptyStore, ZoneCheck, zone_names};

/// How long a master may take to return the zone or a copy of it.
const ZONE_TIMEOUT: Duration = Duration::from_secs(1);

impl Cluster {
    pub(super) async fn prepare(&self) -> Result<(), StoreError> {
        self.check_zone().await?;
        let deadline = Instant::now() + self.response_timeout;
        let asked = self.preparation.clock.ask();
        let time = self.command(&redis::cmd("TIME"), deadline).await?;
        self.preparation.clock.learn(asked, read_time(time)?);
        Ok(())
    }

    /// Checks the zone where it can be read. Where it cannot, a gateway that has not read it before does not use the cluster; a
    /// command, which makes no charge, does; if it goes by dates, it reads the zone by then.
    async fn check_zone(&self) -> Result<(), StoreError> {
        let names = zone_names(&self.preparation.names, true);
        let (zone, empty) = (&self.preparation.zone, self.preparation.empty_store);
        let timeout = self.response_timeout.min(ZONE_TIMEOUT);
        let send = |commands| async move { self.each(&commands, Instant::now() + timeout).await };
        match zone::check(&names, zone, empty, send).await? {
            ZoneCheck::Same => self.zone_known.store(true, Ordering::Relaxed),
            ZoneCheck::Unread(_) if self.zone_known.load(Ordering::Relaxed) => {}
            ZoneCheck::Unread(error) => match empty {
                EmptyStore::Claimed => return Err(error),
                EmptyStore::Left => {}
            },
        }
        Ok(())
    }
}

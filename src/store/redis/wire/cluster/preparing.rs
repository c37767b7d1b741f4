//! The preparation of a cluster: what one server is asked on its connection, each master is asked for its own names.

use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{Cmd, FromRedisValue, Pipeline, RedisFuture, Value};
use tokio::time::Instant;

use super::Cluster;
use crate::store::StoreError;
use crate::store::redis::wire::request::{Commands, LinkError};
use crate::store::redis::wire::zone::{self, EmptyStore, SendEach, ZoneCheck, zone_names};

/// How long a master may take to return the zone or a copy of it.
const ZONE_TIMEOUT: Duration = Duration::from_secs(1);

impl Cluster {
    pub(super) async fn prepare(&self) -> Result<(), StoreError> {
        let mut connection = self;
        self.preparation.begin(&mut connection).await?;
        self.check_zone().await?;
        self.preparation.learn_time(&mut connection).await
    }

    /// Checks the zone where it can be read. Where it cannot, a gateway that has not read it before does not use the cluster; a
    /// command, which makes no charge, does; if it goes by dates, it reads the zone by then.
    async fn check_zone(&self) -> Result<(), StoreError> {
        let names = zone_names(&self.preparation.names, true);
        let (zone, empty) = (&self.preparation.zone, self.preparation.empty_store());
        match zone::check(&names, zone, empty, self).await? {
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

impl SendEach for Cluster {
    async fn send_each(&self, commands: &Pipeline) -> Vec<Result<Value, LinkError>> {
        let timeout = self.response_timeout.min(ZONE_TIMEOUT);
        self.each(commands, Instant::now() + timeout).await
    }
}

/// For the preparation: each command is sent to the node of its key.
impl ConnectionLike for &Cluster {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async { raised(self.ask(Commands::One(command)).await) })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async {
            let value = raised(self.ask(Commands::Each(pipeline)).await)?;
            Ok(Vec::from_redis_value(value)?)
        })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

fn raised(result: Result<Value, LinkError>) -> Result<Value, redis::RedisError> {
    result.map_err(|error| match error {
        LinkError::Refused(error) => error,
        LinkError::NoConnection(why) | LinkError::Lost(why) => {
            std::io::Error::new(std::io::ErrorKind::NotConnected, why).into()
        }
        LinkError::Unreadable(what) => std::io::Error::other(what).into(),
    })
}

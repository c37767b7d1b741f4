//! Retention: drops days of the ledger, and events that were not delivered, after their time.
//!
//! Counts and ledger have no expiry: Redis expires keys by its own clock, and if that leaps ahead for a moment, every day would
//! be lost, on its replicas too. So gateways drop days, and only when the clock is trusted: that of Redis, compared with the
//! boot-time clock of the gateway (`clock_watch`). The last two days with charges are kept in any case.
//!
//! Every gateway does so; dropping a missing name costs nothing. Invariant: a day is removed from the list of days only after
//! the counts and ledgers of all keys, so that an interrupted walk is repeated; and the last dropped day is noted before its counts go.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::civil::Date;
use redis::Cmd;
use tokio::time::Instant;

use super::events;
use crate::clock::next_tick;
use crate::policy::calendar::Calendar;
use crate::store::StoreError;
use crate::store::redis::counts::ledger::listed_days;
use crate::store::redis::names::Names;
use crate::store::redis::parts::Parts;
use crate::store::redis::wire::link::RedisLink;

/// How often days are dropped: one becomes due each day.
const DROP_EVERY: Duration = Duration::from_secs(3_600);
/// How often to check whether days can be dropped.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Keys whose day is dropped in one round trip: some 0.2 ms of Redis.
const DROP_BATCH: usize = 128;
/// Days that are kept whatever the clock reads.
const KEPT_MIN: usize = 2;

/// The last date of which counts were dropped.
pub async fn last_dropped(link: &RedisLink) -> Result<Option<Date>, StoreError> {
    let date: Option<String> = link.read(&Cmd::get(link.names.dropped())).await?;
    Ok(date.and_then(|date| date.parse().ok()))
}

impl Parts {
    /// Drops old days. Never returns.
    pub async fn retain_for_ever(self: Arc<Self>) {
        let mut dropped: Option<Instant> = None;
        let mut seen_losses = None;
        loop {
            next_tick(LOOK_EVERY).await;
            if !self.command_link.is_whole() {
                continue;
            }
            let losses = Some(self.losses.load(Ordering::Acquire));
            if losses != seen_losses
                && self
                    .feed
                    .as_ref()
                    .is_some_and(|feed| feed.current.is_loaded())
            {
                match self.complete_days().await {
                    Ok(()) => seen_losses = losses,
                    Err(error) => {
                        tracing::debug!(%error, "the list of days could not be checked; trying again");
                    }
                }
            }
            let due = dropped.is_none_or(|at| at.elapsed() >= DROP_EVERY);
            let Some(now) = self.clock.watch.settled_at().filter(|_| due) else {
                continue;
            };
            dropped = Some(Instant::now());
            seen_losses = None;
            let now = now.as_second();
            if let Err(error) = self.drop_old_days(now).await {
                tracing::warn!(%error, "old days of the ledger are not dropped; trying again in an hour");
            }
            if let Err(error) = events::drop_old(&self.command_link, now).await {
                tracing::warn!(%error, "old events are not dropped; trying again in an hour");
            }
        }
    }

    /// Drops the days whose retention is over at `now` (Unix seconds).
    async fn drop_old_days(&self, now: i64) -> Result<(), StoreError> {
        let calendar = Calendar::of_zone(&self.zone)
            .map_err(|error| StoreError::Failed(format!("the zone {}: {error}", self.zone)))?;
        let link = &self.command_link;
        let (mut dates, _) = listed_days(link).await?;
        dates.sort_unstable();
        dates.truncate(dates.len().saturating_sub(KEPT_MIN));
        let retention = link.names.keeping.retention_seconds();
        for date in dates {
            let day = calendar.day_of(date);
            if day.is_ok_and(|day| day.end.saturating_add(retention) <= now) {
                self.drop_day(date).await?;
            }
        }
        Ok(())
    }

    async fn drop_day(&self, date: Date) -> Result<(), StoreError> {
        let link = &self.command_link;
        let late_mark = Names::late_mark(date);
        if last_dropped(link).await? < Some(date) {
            let note = Cmd::set(link.names.dropped(), date.to_string());
            link.send([note]).await?;
        }
        for keys in self.keys.entries().chunks(DROP_BATCH) {
            let drop = keys.iter().map(|entry| {
                let id = entry.record.id;
                let names = [link.names.counts(id, date), link.names.ledger(id, date)];
                [
                    Cmd::unlink(&names),
                    Cmd::hdel(link.names.record(id), &late_mark),
                ]
            });
            link.send(Vec::from_iter(drop.flatten())).await?;
        }
        let forget = Cmd::srem(link.names.days(), date.to_string());
        // Only one of several gateways that drop a day logs it.
        if link.read::<i64>(&forget).await? > 0 {
            tracing::info!(%date, "a day of the ledger was dropped: its retention is over");
        }
        Ok(())
    }
}

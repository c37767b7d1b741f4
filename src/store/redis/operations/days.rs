//! Completes the set of days that have counts, if Redis lost it.
//!
//! Cost: for each day since the first key was issued that has no counts, a question for each key, in the background. Once for a store
//! that had keys before its first gateway, and once after each loss.

use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

use crate::store::StoreError;
use crate::store::redis::counts::ledger::{complete_days, days_kept, has_counts, listed_days};
use crate::store::redis::parts::Parts;

impl Parts {
    /// Adds the days that the set may lack, unless it is complete.
    pub async fn complete_days(&self) -> Result<(), StoreError> {
        let link = &self.command_link;
        let (listed, is_complete) = listed_days(link).await?;
        if is_complete {
            return Ok(());
        }
        let date = |at: Timestamp| TimeZone::UTC.to_datetime(at).date();
        let day = Span::new().days(1);
        let entries = self.keys.entries();
        let first = entries.iter().map(|entry| entry.record.created).min();
        let keys: Vec<_> = entries.iter().map(|entry| entry.record.id).collect();
        let mut found = Vec::new();
        // A day in any zone is at most one away from that in UTC.
        if let Some(first) = first.map(|first| date(first).saturating_sub(day)) {
            let dates = days_kept(&link.names, date(self.clock.now()).saturating_add(day));
            for date in dates.filter(|date| *date >= first && !listed.contains(date)) {
                if has_counts(link, &keys, date).await? {
                    found.push(date);
                }
            }
        }
        complete_days(link, &found).await?;
        if !found.is_empty() {
            tracing::warn!(
                days = found.len(),
                "Redis had lost days from its list of days with counts: they are listed again"
            );
        }
        Ok(())
    }
}

//! Completes the set of days that have counts, if Redis lost it.
//!
//! Cost: for each day since the first key was issued that has no counts, a question for each key, in the background. Once for a store
//! that had keys before its first gateway, and once after each loss.

use jiff::civil::Date;
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
        let lost = days_lost(&found, date(self.clock.now()));
        if lost > 0 {
            tracing::warn!(
                days = lost,
                "Redis had lost days from its list of days with counts: they are listed again"
            );
        }
        Ok(())
    }
}

/// The number of days that were listed before, if it is `today` in UTC: the current day, whose date in any zone is at most one away from
/// that, may not be listed yet, because it is listed after its first charge.
fn days_lost(found: &[Date], today: Date) -> usize {
    let current = today.saturating_sub(Span::new().days(1));
    found.iter().filter(|date| **date < current).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_that_has_just_begun_was_not_lost() {
        let days = ["2026-11-19", "2026-11-20", "2026-11-21", "2026-11-22"];
        let days = days.map(|day| day.parse().unwrap());
        let [.., today, _] = days;
        assert_eq!(days_lost(&days[1..], today), 0);
        assert_eq!(days_lost(&days, today), 1);
    }
}

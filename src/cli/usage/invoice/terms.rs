//! The terms of an invoice: its month, the days of it that are billed, and the configured rules.

use anyhow::bail;
use jiff::civil::Date;
use jiff::{Span, Timestamp};

use crate::cli::usage::month::Month;
use crate::config::Config;
use crate::policy::calendar::Day;
use crate::policy::key_record::{Action, KeyRecord};

/// What to do about a month whose days were deleted.
const REMEDY: &str = "restore a backup from before into a store of its own, in whose configuration quota.retention is longer, and invoice the month there";

/// The facts by which the keys of a month are billed.
pub(super) struct BillingTerms<'c> {
    pub(super) config: &'c Config,
    pub(super) month: Month,
    /// The days of the month that have begun.
    pub(super) days: Vec<Day>,
    /// Whether all days of the month are closed, so that nothing in it can change.
    pub(super) closed: bool,
}

impl<'c> BillingTerms<'c> {
    pub(super) fn of(
        config: &'c Config,
        month: Month,
        now: Timestamp,
    ) -> anyhow::Result<BillingTerms<'c>> {
        let dates = month.first.series(Span::new().days(1));
        let dates = dates.take_while(|date| month.holds(*date));
        let days: Result<Vec<Day>, _> = dates.map(|date| config.calendar.day_of(date)).collect();
        let mut days = days?;
        let now = now.as_second();
        let retention = config.keeping.retention_seconds();
        // Gateways delete a day from this instant on.
        let is_deleted = |day: &Day| day.end.saturating_add(retention) <= now;
        if days.first().is_some_and(is_deleted) {
            bail!(
                "the ledger may lack days of {month}: a day is deleted {} days after its end (quota.retention). Invoice a month \
                 before its days reach that age; or {REMEDY}",
                retention / 86_400
            );
        }
        let is_closed = |day: &Day| config.keeping.is_closed(day.end, now);
        let closed = days.iter().all(is_closed);
        days.retain(|day| day.start <= now);
        Ok(BillingTerms {
            config,
            month,
            days,
            closed,
        })
    }

    /// Checks that no day of the month was deleted; `dropped` is the last day that was.
    ///
    /// # Errors
    /// If one was, although the present retention would keep it.
    pub(super) fn require_kept(&self, dropped: Option<Date>) -> anyhow::Result<()> {
        match dropped.filter(|date| *date >= self.month.first) {
            None => Ok(()),
            Some(date) => bail!(
                "the ledger lacks days of {}: the days through {date} were deleted earlier (under a shorter quota.retention, or by a clock that was ahead); {REMEDY}",
                self.month
            ),
        }
    }

    /// Whether a key's record alone shows its tier in the month: its last change was before the month, or was its first.
    pub(super) fn is_decided_by(&self, record: &KeyRecord) -> bool {
        let first = self.days.first().map_or(i64::MAX, |day| day.start);
        let is_new = matches!(record.last_change.action, Action::Issue | Action::Import);
        is_new || record.updated.as_second() < first
    }
}

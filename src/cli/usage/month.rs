//! A calendar month, as an argument and in an invoice.

use std::str::FromStr;

use jiff::civil::Date;
use serde::Serialize;

/// A calendar month.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Month {
    pub(super) first: Date,
}

impl FromStr for Month {
    type Err = String;

    fn from_str(text: &str) -> Result<Month, String> {
        let first = format!("{text}-01").parse::<Date>().ok();
        first
            .filter(|first| text.len() == 7 && first.to_string().starts_with(text))
            .map(|first| Month { first })
            .ok_or_else(|| "write a month such as 2026-10".to_owned())
    }
}

impl std::fmt::Display for Month {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.first.strftime("%Y-%m").fmt(f)
    }
}

impl Serialize for Month {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Month {
    /// The first day and the last.
    pub(super) fn days(self) -> (Date, Date) {
        (self.first, self.last())
    }

    pub(super) fn last(self) -> Date {
        self.first.last_of_month()
    }

    pub(super) fn holds(self, date: Date) -> bool {
        (self.first..=self.last()).contains(&date)
    }
}

//! The chain of closed days: each entry bears a digest that covers the entry before it.
//!
//! An entry states that a day was closed, with the number and the digest of its rows; that a closed day was reopened, because
//! rows arrived late; or that the retention dropped it. Entries are never changed or deleted. So a row of a closed day that was
//! changed, added or deleted by hand is found, and so is a changed entry. An intruder who can write the store can also write a
//! whole new chain: only a digest that was kept elsewhere shows that.
//!
//! Pure, with one exception: [`Chained`], by which a chain is read from a store. The canonical form is text in UTF-8. A line has
//! fields with tabs between them and ends with a newline; in a field `\` is written `\\`, a tab `\t` and a newline `\n`.
//! - The rows of a day: a line `ledger`, key, tier (empty where it is not known), endpoint, the nine numbers of
//!   [`Totals`](super::ledger::Totals) in their order, limit and granted units for each row of the ledger, in the byte order of key and of
//!   tier, space and endpoint; then a line `late`, key, instant (Unix seconds) and units for each adjustment, in the order of key and
//!   instant.
//! - An entry: one line `touchline-ledger-1`, number, date, state, instant (Unix seconds), number of rows, digest of the rows (empty
//!   where the day was not closed), digest of the entry before ([`NO_DIGEST`] for the first).
//!
//! Digests are SHA-256 in lower-case hexadecimal digits.

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::civil::Date;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::error::StoreError;
use super::ledger::ROW_LENGTH;
use crate::policy::words::words;

/// The previous digest in the first entry.
pub const NO_DIGEST: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// The first field of an entry's canonical form.
const FORM: &str = "touchline-ledger-1";

words! {
    /// The state that an entry gives a day, as named in the store and in exports.
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum DayState {
        /// The day was closed.
        Closed = "closed",
        /// Rows arrived late: it is open until it is closed again.
        Reopened = "reopened",
        /// The retention dropped the day.
        Dropped = "dropped",
    }
}

/// The number and the digest of a day's rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowsSummary {
    /// The number of rows.
    pub count: u64,
    /// The digest of the rows.
    pub sha256: String,
}

/// One entry of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChainEntry {
    /// The entry's number, from 1.
    pub number: u64,
    /// The day.
    pub date: Date,
    /// The day's new state.
    pub state: DayState,
    /// The instant of the change (Unix seconds).
    pub at: i64,
    /// The number of the day's rows if it was closed, otherwise 0.
    pub rows: u64,
    /// The digest of the rows if the day was closed, otherwise empty.
    pub rows_sha256: String,
    /// The digest of the entry before.
    pub previous: String,
    /// The digest of this entry.
    pub digest: String,
}

impl ChainEntry {
    /// The entry after `last`, for a day and an instant (Unix seconds). `closed`: the day's rows, if it was closed.
    pub fn after(
        last: Option<(u64, String)>,
        (date, at): (Date, i64),
        state: DayState,
        closed: Option<RowsSummary>,
    ) -> ChainEntry {
        let (number, previous) = last.unwrap_or_else(|| (0, NO_DIGEST.to_owned()));
        let (rows, rows_sha256) =
            closed.map_or_else(Default::default, |rows| (rows.count, rows.sha256));
        let mut entry = ChainEntry {
            number: number + 1,
            date,
            state,
            at,
            rows,
            rows_sha256,
            previous,
            digest: String::new(),
        };
        entry.digest = entry.computed();
        entry
    }

    /// The digest that the entry must have.
    fn computed(&self) -> String {
        let fields = [
            FORM.to_owned(),
            self.number.to_string(),
            self.date.to_string(),
            self.state.as_str().to_owned(),
            self.at.to_string(),
            self.rows.to_string(),
            self.rows_sha256.clone(),
            self.previous.clone(),
        ];
        format!("{:x}", Sha256::digest(line(&fields)))
    }
}

/// The names of a row's numbers, in their order: those of [`Totals`](super::ledger::Totals), then the largest limit of a charge and the
/// granted units in it. More numbers would be another canonical form.
pub const ROW_NUMBERS: [&str; ROW_LENGTH] = [
    "requests",
    "charged",
    "refunded",
    "refused_tier",
    "refused_quota",
    "refused_burst",
    "refused_concurrent",
    "refused_not_found",
    "refused_method",
    "limit",
    "granted",
];

/// A row of the ledger, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LedgerRow {
    /// The day.
    pub date: Date,
    /// The key.
    pub key: String,
    /// The key's tier at that time, if it is known.
    pub tier: Option<String>,
    /// The endpoint.
    pub endpoint: String,
    /// The numbers in the order of [`ROW_NUMBERS`].
    #[serde(flatten, serialize_with = "by_name")]
    pub numbers: [i64; ROW_LENGTH],
}

fn by_name<S: serde::Serializer>(
    numbers: &[i64; ROW_LENGTH],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(ROW_NUMBERS.iter().zip(numbers))
}

/// Units that were settled after their day was closed, as they are stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LateRow {
    /// The day.
    pub date: Date,
    /// The key.
    pub key: String,
    /// The instant of their arrival (Unix seconds).
    pub came: i64,
    /// Units charged, minus units refunded.
    pub units: i64,
}

/// One item of a chain as read from a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChainItem {
    /// An entry.
    Entry(ChainEntry),
    /// A row of the ledger.
    Ledger(LedgerRow),
    /// An adjustment.
    Late(LateRow),
}

/// A store with a chain of closed days.
#[async_trait]
pub trait Chained {
    /// Reads the chain and the rows of the days from the first through the second date, or of no day, all at one instant: every entry
    /// in the order of the numbers, then the rows day by day in their canonical order. `pieces` is bounded, and so is the memory in
    /// use. Fails if the receiver is dropped.
    ///
    /// # Errors
    /// Those of the store, and [`StoreError::Failed`] if some content cannot be read.
    async fn read_chain(
        &self,
        days: Option<(Date, Date)>,
        pieces: mpsc::Sender<ChainItem>,
    ) -> Result<(), StoreError>;
}

/// The digest of a day's rows in their canonical order.
#[derive(Debug, Clone, Default)]
pub struct RowsDigest {
    count: u64,
    digest: Sha256,
}

impl RowsDigest {
    /// Adds a row; an entry is ignored.
    pub fn take(&mut self, piece: &ChainItem) {
        let fields = match piece {
            ChainItem::Entry(_) => return,
            ChainItem::Ledger(row) => {
                let tier = row.tier.clone().unwrap_or_default();
                let places = [
                    "ledger".to_owned(),
                    row.key.clone(),
                    tier,
                    row.endpoint.clone(),
                ];
                let numbers = row.numbers.iter().map(i64::to_string);
                places.into_iter().chain(numbers).collect::<Vec<_>>()
            }
            ChainItem::Late(row) => vec![
                "late".to_owned(),
                row.key.clone(),
                row.came.to_string(),
                row.units.to_string(),
            ],
        };
        self.count += 1;
        self.digest.update(line(&fields));
    }

    /// The number and the digest of the added rows.
    pub fn finish(self) -> RowsSummary {
        RowsSummary {
            count: self.count,
            sha256: format!("{:x}", self.digest.finalize()),
        }
    }
}

/// Compares a chain with its own digests, and closed days with their rows.
#[derive(Debug, Default)]
pub struct ChainCheck {
    days: Option<(Date, Date)>,
    wanted: Option<String>,
    last: Option<(u64, String)>,
    /// The last entry of each day.
    states: BTreeMap<Date, ChainEntry>,
    reopenings: u64,
    rows: BTreeMap<Date, RowsDigest>,
    faults: Vec<ChainFault>,
}

/// A day whose check failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainFault {
    /// The day.
    pub date: Date,
    /// The reason, in a sentence.
    pub fault: String,
}

/// The result of a check; also its form in `touchline usage verify --output json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckedChain {
    /// Entries of the chain.
    pub entries: u64,
    /// The number of closed days.
    pub closed_days: u64,
    /// The last closed day.
    pub closed_through: Option<Date>,
    /// Closed days whose rows were compared with their digest.
    pub compared_days: u64,
    /// How often a closed day was reopened.
    pub reopenings: u64,
    /// The digest of the last entry, which covers all before it.
    pub digest: String,
    /// The digest that an entry must have, if none has it.
    #[serde(skip)]
    pub missing: Option<String>,
    /// The days whose checks failed.
    #[serde(skip)]
    pub faults: Vec<ChainFault>,
}

impl ChainCheck {
    /// A check of the chain, with the days whose rows will be added, and a digest that an entry of the chain must have. Every chain
    /// begins with [`NO_DIGEST`].
    pub fn of(days: Option<(Date, Date)>, wanted: Option<&str>) -> ChainCheck {
        let wanted = wanted.filter(|digest| *digest != NO_DIGEST);
        ChainCheck {
            days,
            wanted: wanted.map(str::to_ascii_lowercase),
            ..ChainCheck::default()
        }
    }

    /// Adds the next item.
    pub fn take(&mut self, piece: ChainItem) {
        match piece {
            ChainItem::Entry(entry) => self.take_entry(entry),
            ChainItem::Ledger(LedgerRow { date, .. }) | ChainItem::Late(LateRow { date, .. }) => {
                self.rows.entry(date).or_default().take(&piece);
            }
        }
    }

    fn take_entry(&mut self, entry: ChainEntry) {
        let (number, previous) = match &self.last {
            Some((number, digest)) => (number + 1, digest.as_str()),
            None => (1, NO_DIGEST),
        };
        if entry.number != number || entry.previous != previous {
            self.fault(
                entry.date,
                format!(
                    "entry {} of the chain does not follow entry {}",
                    entry.number,
                    number - 1
                ),
            );
        }
        if entry.digest != entry.computed() {
            self.fault(
                entry.date,
                format!("entry {} of the chain was changed", entry.number),
            );
        }
        match entry.state {
            DayState::Closed => {}
            DayState::Reopened => self.reopenings += 1,
            DayState::Dropped => self.take_dropped(&entry),
        }
        self.wanted.take_if(|wanted| *wanted == entry.digest);
        self.last = Some((entry.number, entry.digest.clone()));
        self.states.insert(entry.date, entry);
    }

    /// The retention drops the oldest day first.
    fn take_dropped(&mut self, entry: &ChainEntry) {
        let mut before = self.states.range(..entry.date);
        let kept = before.find(|(_, state)| state.state != DayState::Dropped);
        if let Some((kept, _)) = kept {
            let fault = format!("it was dropped by the retention before the older day {kept}");
            self.fault(entry.date, fault);
        }
    }

    fn fault(&mut self, date: Date, fault: String) {
        self.faults.push(ChainFault { date, fault });
    }

    /// The result.
    pub fn finish(mut self) -> CheckedChain {
        let mut compared_days = 0;
        let closed: Vec<ChainEntry> = self
            .states
            .values()
            .filter(|entry| entry.state == DayState::Closed)
            .cloned()
            .collect();
        for entry in &closed {
            if !self
                .days
                .is_some_and(|(from, to)| (from..=to).contains(&entry.date))
            {
                continue;
            }
            compared_days += 1;
            let rows = self.rows.remove(&entry.date).unwrap_or_default().finish();
            if (rows.count, &rows.sha256) != (entry.rows, &entry.rows_sha256) {
                let fault = format!(
                    "its rows were changed after it was closed: {} rows with the digest {} then, {} with {} now",
                    entry.rows, entry.rows_sha256, rows.count, rows.sha256
                );
                self.fault(entry.date, fault);
            }
        }
        let (entries, digest) = self.last.unwrap_or_else(|| (0, NO_DIGEST.to_owned()));
        CheckedChain {
            entries,
            closed_days: closed.len() as u64,
            closed_through: closed.last().map(|entry| entry.date),
            compared_days,
            reopenings: self.reopenings,
            digest,
            missing: self.wanted,
            faults: self.faults,
        }
    }
}

/// The canonical form of a line.
fn line(fields: &[String]) -> String {
    let mut line = String::new();
    for (number, field) in fields.iter().enumerate() {
        if number > 0 {
            line.push('\t');
        }
        for character in field.chars() {
            match character {
                '\\' => line.push_str("\\\\"),
                '\t' => line.push_str("\\t"),
                '\n' => line.push_str("\\n"),
                other => line.push(other),
            }
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests;

//! Reads the ledger, and compares it with the counts.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use jiff::civil::Date;
use jiff::{Span, Timestamp};
use redis::Cmd;

use super::cells;
use super::days::dates_with_counts;
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::store::export::{LateUnits, ProducerAccount, process_of};
use crate::store::ledger::Cell;
use crate::store::redis::journal::{CountRow, TotalsRow};
use crate::store::redis::names::Names;
use crate::store::redis::wire::link::RedisLink;
use crate::store::{Adjustment, DayUsage, Proof, StoreError};

/// Key-days read in one round trip.
const READ_BATCH: usize = 256;
/// The last days up to `to` that may have late units without a mark: of version 0.2.0, which keeps journals for 35 days.
const UNMARKED_DAYS: i64 = 40;
/// Up to this many key-days are read without the list: they cost less than a doubt, some 10 ms of Redis. A day's entry in the list
/// may be lost with the last second of its master, and is only repaired if more is written on that day.
const UNLISTED_KEY_DAYS: usize = 8_192;

/// A hash of Redis.
pub type HashFields = HashMap<String, String>;

/// The usage of some keys on the days from `from` through `to`, in the order of date and key, with the faults of each day.
pub async fn prove(
    link: &RedisLink,
    keys: &[KeyId],
    from: Date,
    to: Date,
) -> Result<Vec<Proof>, StoreError> {
    let days = read(link, keys, (from, to)).await?;
    let proofs = days.into_iter().map(|day| Proof {
        faults: day.faults(),
        usage: day.usage(),
    });
    Ok(proofs.collect())
}

/// The days of some keys that have units which arrived after the day was closed, in their order.
pub async fn late_days(
    link: &RedisLink,
    keys: &[KeyId],
    (from, to): (Date, Date),
) -> Result<Vec<(Date, KeyId)>, StoreError> {
    let mut late = BTreeSet::new();
    let unmarked_from = to.saturating_sub(Span::new().days(UNMARKED_DAYS - 1));
    let mut unmarked = dates(link, keys.len(), (from, to)).await?;
    unmarked.retain(|date| *date >= unmarked_from);
    for batch in keys.chunks(READ_BATCH) {
        let ask = batch.iter().map(|key| Cmd::hkeys(link.names.record(*key)));
        let fields: Vec<Vec<String>> = link.replies(ask).await?;
        for (key, fields) in batch.iter().zip(&fields) {
            let days = fields
                .iter()
                .filter_map(|field| Names::day_marked_late(field));
            let days = days.filter(|date| (from..=to).contains(date));
            late.extend(days.map(|date| (date, *key)));
        }
        for date in &unmarked {
            let counts = |key: &KeyId| Cmd::hkeys(link.names.counts(*key, *date));
            let fields: Vec<Vec<String>> = link.replies(batch.iter().map(counts)).await?;
            let of_batch = batch.iter().zip(&fields);
            let of_batch =
                of_batch.filter(|(_, fields)| fields.iter().any(|field| field.starts_with('a')));
            late.extend(of_batch.map(|(key, _)| (*date, *key)));
        }
    }
    Ok(late.into_iter().collect())
}

/// The days of keys in Redis. The ledger of each is read before the counts, so that it contains no unit that was not counted.
pub async fn stored_days(
    link: &RedisLink,
    places: &[(Date, KeyId)],
) -> Result<Vec<StoredDay>, StoreError> {
    let mut days = Vec::with_capacity(places.len());
    for batch in places.chunks(READ_BATCH) {
        let ask = batch.iter().flat_map(|(date, key)| {
            let names = [
                link.names.ledger(*key, *date),
                link.names.counts(*key, *date),
            ];
            names.map(Cmd::hgetall)
        });
        let hashes: Vec<HashFields> = link.replies(ask).await?;
        let pairs = batch.iter().zip(hashes.chunks_exact(2));
        days.extend(pairs.map(|(place, hashes)| StoredDay::of(*place, hashes)));
    }
    Ok(days)
}

/// The counts and the ledger of a key's day in Redis.
pub struct StoredDay {
    pub(super) place: (Date, KeyId),
    /// `None` if the counts were dropped already.
    pub(super) counts: Option<Counts>,
    /// The entries of the ledger, each with its producer.
    pub(super) cells: Vec<(String, Cell)>,
    unreadable: Vec<String>,
}

/// The counts of a key's day, as `charge.lua` stores them.
#[derive(Default)]
pub struct Counts {
    used: i64,
    /// The day's first second and the next day's.
    pub(super) boundaries: Option<(i64, i64)>,
    /// Units granted and refunded, by producer.
    marks: BTreeMap<String, (i64, i64)>,
    /// The producers one of whose numbers is unreadable.
    damaged: BTreeSet<String>,
    adjustments: Vec<Adjustment>,
    unreadable: Vec<String>,
}

/// The sums of one process: its accounts, and its ledger.
#[derive(Default)]
struct ProcessSums {
    granted: i64,
    returned: i64,
    charged: i64,
    refunded: i64,
}

impl Counts {
    /// Parses the fields; `None` if there are none.
    pub fn of(fields: &HashFields) -> Option<Counts> {
        if fields.is_empty() {
            return None;
        }
        let mut counts = Counts::default();
        for (field, value) in fields {
            let number = value.parse::<i64>();
            counts.boundaries = counts.boundaries.or(Names::boundaries_in(field));
            match (field.split_at_checked(1), number) {
                (Some(("t", _)), Ok(number)) if Names::boundaries_in(field).is_some() => {
                    counts.used = number;
                }
                (Some(("g", producer)), Ok(number)) => {
                    counts.marks.entry(producer.into()).or_default().0 = number;
                }
                (Some(("r", producer)), Ok(number)) => {
                    counts.marks.entry(producer.into()).or_default().1 = number;
                }
                (Some(("a", came)), Ok(units)) => counts.adjustments.push(Adjustment {
                    came: came
                        .parse()
                        .ok()
                        .and_then(|came| Timestamp::from_second(came).ok())
                        .unwrap_or_default(),
                    units,
                }),
                (kind, _) => {
                    if let Some(("g" | "r", producer)) = kind {
                        counts.damaged.insert(producer.into());
                    }
                    let fault = format!("the counts have a field {field} = {value}");
                    counts.unreadable.push(fault);
                }
            }
        }
        counts.adjustments.sort_by_key(|adjustment| adjustment.came);
        Some(counts)
    }

    /// The rows of these processes on a key's day, including their unspent credit, which no process can use any more. A producer with a
    /// number that is unreadable or negative has none; one may have refunds only: of units that another one was granted, before its
    /// account was dropped.
    pub fn rows_of(&self, (date, key): (Date, KeyId), processes: &HashSet<&str>) -> Vec<CountRow> {
        let Some((start, end)) = self.boundaries else {
            return Vec::new();
        };
        let day = Day { date, start, end };
        let theirs = self.marks.iter().filter(|(producer, _)| {
            processes.contains(process_of(producer)) && !self.damaged.contains(*producer)
        });
        let rows = theirs.filter_map(|(producer, (granted, returned))| {
            Some(CountRow {
                key,
                day,
                producer: producer.clone(),
                ack: u64::try_from(*granted).ok()?,
                rack: u64::try_from(*returned).ok()?,
                unsettled_units: 0,
                settled: true,
            })
        });
        rows.collect()
    }

    /// The accounts, by producer.
    pub(super) fn accounts(&self) -> impl Iterator<Item = ProducerAccount> {
        let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
        self.marks
            .iter()
            .map(move |(producer, (granted, returned))| ProducerAccount {
                producer: producer.clone(),
                granted: unsigned(*granted),
                returned: unsigned(*returned),
            })
    }

    /// The units that arrived after the day was closed.
    pub(super) fn late(&self) -> impl Iterator<Item = LateUnits> {
        self.adjustments.iter().map(|adjustment| LateUnits {
            came: adjustment.came.as_second(),
            units: adjustment.units,
        })
    }
}

impl StoredDay {
    /// Parses the ledger and the counts.
    fn of(place: (Date, KeyId), hashes: &[HashFields]) -> StoredDay {
        let (mut cells, mut unreadable) = (Vec::new(), Vec::new());
        for (field, value) in hashes.first().into_iter().flatten() {
            match cells::read(field, value) {
                Some((producer, cell)) => cells.push((producer.to_owned(), cell)),
                None => unreadable.push(format!("the ledger has a field {field} = {value}")),
            }
        }
        StoredDay {
            place,
            counts: hashes.last().and_then(Counts::of),
            cells,
            unreadable,
        }
    }

    /// Whether Redis has nothing of the day.
    pub(super) fn is_absent(&self) -> bool {
        self.cells.is_empty() && self.unreadable.is_empty() && self.counts.is_none()
    }

    /// What cannot be read of the ledger and of the counts.
    pub(super) fn unreadable(&self) -> impl Iterator<Item = &String> {
        let of_counts = self.counts.iter().flat_map(|counts| &counts.unreadable);
        self.unreadable.iter().chain(of_counts)
    }

    /// The counts of these processes.
    pub fn count_rows(&self, processes: &HashSet<&str>) -> Vec<CountRow> {
        let counts = self.counts.as_ref();
        counts.map_or_else(Vec::new, |counts| counts.rows_of(self.place, processes))
    }

    /// The entries of the ledger of these processes, on the day with these boundaries.
    pub fn totals_rows(
        self,
        day: Day,
        processes: &HashSet<&str>,
    ) -> impl Iterator<Item = TotalsRow> {
        let theirs = self.cells.into_iter();
        let theirs = theirs.filter(|(producer, _)| processes.contains(process_of(producer)));
        theirs.map(move |(producer, cell)| TotalsRow {
            key: self.place.1,
            day,
            producer,
            tier: cell.tier,
            ceiling: cell.ceiling,
            endpoint: cell.endpoint.into(),
            totals: cell.totals,
            settled: true,
        })
    }

    fn is_empty(&self) -> bool {
        let is_zero = |counts: &Counts| counts.used == 0 && counts.unreadable.is_empty();
        self.cells.is_empty() && self.counts.as_ref().is_none_or(is_zero)
    }

    fn usage(self) -> DayUsage {
        for text in self.unreadable() {
            tracing::warn!(key = %self.place.1, date = %self.place.0, "{text}, which cannot be read");
        }
        let (used, adjustments) = match self.counts {
            Some(counts) => (Some(counts.used), counts.adjustments),
            None => (None, Vec::new()),
        };
        let cells = self.cells.into_iter().map(|(_, cell)| cell);
        DayUsage::of_cells(self.place, used, cells, adjustments)
    }

    /// The violated equations. Three independent accounts are compared: the count, the units that each process was granted and
    /// refunded, and the units that each process wrote to the ledger.
    fn faults(&self) -> Vec<String> {
        let mut faults: Vec<String> = self.unreadable().cloned().collect();
        let Some(counts) = &self.counts else {
            return faults;
        };
        let mut processes: BTreeMap<&str, ProcessSums> = BTreeMap::new();
        for (producer, (granted, returned)) in &counts.marks {
            let sums = processes.entry(process_of(producer)).or_default();
            sums.granted += granted;
            sums.returned += returned;
        }
        for (producer, cell) in &self.cells {
            let sums = processes.entry(process_of(producer)).or_default();
            sums.charged += i64::try_from(cell.totals.charged).unwrap_or(i64::MAX);
            sums.refunded += i64::try_from(cell.totals.refunded).unwrap_or(i64::MAX);
        }
        let net: i64 = processes
            .values()
            .map(|sums| sums.granted - sums.returned)
            .sum();
        if net != counts.used {
            faults.push(format!(
                "the count is {}, and gateways were granted {net} more than they refunded",
                counts.used
            ));
        }
        for (process, sums) in &processes {
            let ProcessSums {
                granted,
                returned,
                charged,
                refunded,
            } = sums;
            if charged > granted {
                faults.push(format!(
                    "gateway {process} was granted {granted} units and wrote {charged} into the ledger"
                ));
            }
            for (what, given, taken) in [
                ("were granted and", returned, granted),
                ("are charged in the ledger and", refunded, charged),
            ] {
                if given > taken {
                    faults.push(format!(
                        "of gateway {process}, {taken} units {what} {given} refunded"
                    ));
                }
            }
        }
        faults
    }
}

async fn read(
    link: &RedisLink,
    keys: &[KeyId],
    span: (Date, Date),
) -> Result<Vec<StoredDay>, StoreError> {
    let mut places = Vec::new();
    for date in dates(link, keys.len(), span).await? {
        places.extend(keys.iter().map(|key| (date, *key)));
    }
    let mut days = stored_days(link, &places).await?;
    days.retain(|day| !day.is_empty());
    days.sort_unstable_by_key(|day| day.place);
    Ok(days)
}

/// The dates on which these many keys may have counts: all of few key-days.
async fn dates(
    link: &RedisLink,
    keys: usize,
    (from, to): (Date, Date),
) -> Result<Vec<Date>, StoreError> {
    let every = from.series(Span::new().days(1));
    let days = usize::try_from((to - from).get_days()).map_or(0, |days| days + 1);
    if days.saturating_mul(keys) <= UNLISTED_KEY_DAYS {
        return Ok(every.take_while(|date| *date <= to).collect());
    }
    let dates = dates_with_counts(link).await?;
    Ok(dates.range(from..=to).copied().collect())
}

//! What is not in the ledger yet: everything that one transaction charged, refunded and refused is one row, appended.
//!
//! The row is of bytes: the format, the places (date, tier and endpoint) that its entries are of, and the entries, each a
//! key, the number of a place, and those of its numbers that are not 0. Whole numbers are LEB128.
//!
//! Groups are numbered without gaps. The `folding` row has the last number that was moved into the ledger; groups, mark and
//! ledger are read in one transaction, so that each unit is seen once, wherever it is at that instant.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use jiff::civil::Date;
use rusqlite::{Connection, Row};

use crate::policy::api_key::KeyId;
use crate::policy::key_record::TierName;
use crate::store::Totals;
use crate::store::ledger::Ceiling;

pub(super) const TABLES: &str = "
    -- entries: see src/store/embedded/appended.rs.
    CREATE TABLE appended (
        number INTEGER PRIMARY KEY,
        entries BLOB NOT NULL
    ) STRICT;
    -- One row. through: the last group that is being moved into the ledger, or was; reached: of these groups, the ledger has what is
    -- of a date and key up to this one; rewritten: raised when counts change in another way than by groups.
    CREATE TABLE folding (
        only INTEGER PRIMARY KEY CHECK (only = 1),
        through INTEGER NOT NULL,
        reached TEXT NOT NULL,
        rewritten INTEGER NOT NULL
    ) STRICT;
    INSERT INTO folding (only, through, reached, rewritten) VALUES (1, 0, '', 0);";

const GROUPS: &str = "SELECT number, entries FROM appended WHERE number > ?1 AND number <= ?2
    ORDER BY number";
pub(super) const MARK: &str = "SELECT through, reached, rewritten FROM folding";
const REWRITTEN: &str = "UPDATE folding SET rewritten = rewritten + 1";

/// The format that is written and read.
const FORMAT: u8 = 1;
const KEY_BYTES: usize = 12;
/// The numbers of an entry: the totals, the limit, the units granted.
const NUMBERS: usize = Totals::NUMBERS + 2;
/// Stands in the `folding` row behind every date.
const ALL_REACHED: &str = "~";

/// Why a group cannot be read.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error(
        "a group of charges has format {0}, and this touchline reads format {FORMAT}: run the version that wrote it or a \
         later one"
    )]
    OtherFormat(u8),
    #[error("a group of charges is damaged: restore the file from a backup")]
    Damaged,
}

/// A group that is being put together.
#[derive(Default)]
pub(super) struct Packing {
    places: Vec<(Date, TierName, Arc<str>)>,
    entries: Vec<u8>,
    count: usize,
}

impl Packing {
    /// Adds an entry.
    pub(super) fn add(
        &mut self,
        (key, date): (KeyId, Date),
        (tier, endpoint): (&TierName, &Arc<str>),
        totals: &Totals,
        ceiling: Ceiling,
    ) {
        // One endpoint is one name in memory; another copy of it only makes another place.
        let known = self
            .places
            .iter()
            .position(|(of, under, at)| of == &date && Arc::ptr_eq(at, endpoint) && under == tier);
        let place = known.unwrap_or_else(|| {
            self.places.push((date, tier.clone(), endpoint.clone()));
            self.places.len() - 1
        });
        self.entries.extend_from_slice(key.as_str().as_bytes());
        put(&mut self.entries, place as u64);
        let numbers = totals.numbers().into_iter();
        let numbers = numbers.chain([ceiling.limit, ceiling.granted]);
        let (mut present, at) = (0_u16, self.entries.len());
        self.entries.extend_from_slice(&present.to_le_bytes());
        for (bit, number) in numbers.enumerate() {
            if number != 0 {
                present |= 1 << bit;
                put(&mut self.entries, number);
            }
        }
        if let Some(bits) = self.entries.get_mut(at..at + 2) {
            bits.copy_from_slice(&present.to_le_bytes());
        }
        self.count += 1;
    }

    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The dates of the entries, some more than once.
    pub(super) fn dates(&self) -> impl Iterator<Item = Date> {
        self.places.iter().map(|(date, ..)| *date)
    }

    /// The group as it is stored.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 * self.places.len() + self.entries.len() + 8);
        bytes.push(FORMAT);
        put(&mut bytes, self.places.len() as u64);
        for (date, tier, endpoint) in &self.places {
            let place = format!("{date} {tier} {endpoint}");
            put(&mut bytes, place.len() as u64);
            bytes.extend_from_slice(place.as_bytes());
        }
        bytes.extend_from_slice(&self.entries);
        bytes
    }
}

/// LEB128: seven bits a byte, the lowest first.
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// What is left to read of a group.
struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    fn take(&mut self, count: usize) -> Result<&'b [u8], Unreadable> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Unreadable::Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Unreadable> {
        let (first, rest) = self.0.split_first().ok_or(Unreadable::Damaged)?;
        self.0 = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<u64, Unreadable> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                break;
            }
            number |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Unreadable::Damaged)
    }

    fn size(&mut self) -> Result<usize, Unreadable> {
        usize::try_from(self.number()?).map_err(|_| Unreadable::Damaged)
    }

    fn text(&mut self, count: usize) -> Result<&'b str, Unreadable> {
        std::str::from_utf8(self.take(count)?).map_err(|_| Unreadable::Damaged)
    }
}

/// A group whose entries are still to be read.
pub(super) struct Group<'b> {
    /// Its number.
    pub(super) number: i64,
    /// Date and place in the ledger (the tier, a space, the endpoint) of the entries, by their numbers.
    places: Vec<(Date, &'b str)>,
    entries: Bytes<'b>,
}

/// What one charge, refund or refusal added.
pub(super) struct Entry {
    pub(super) date: Date,
    pub(super) key: KeyId,
    /// The number of its place in the group.
    place: usize,
    pub(super) totals: Totals,
    pub(super) ceiling: Ceiling,
}

impl<'b> Group<'b> {
    fn of(number: i64, bytes: &'b [u8]) -> Result<Group<'b>, Unreadable> {
        let mut bytes = Bytes(bytes);
        match bytes.byte()? {
            FORMAT => {}
            other => return Err(Unreadable::OtherFormat(other)),
        }
        let mut places = Vec::new();
        for _ in 0..bytes.number()? {
            let length = bytes.size()?;
            let (date, place) = bytes
                .text(length)?
                .split_once(' ')
                .ok_or(Unreadable::Damaged)?;
            places.push((date.parse().map_err(|_| Unreadable::Damaged)?, place));
        }
        Ok(Group {
            number,
            places,
            entries: bytes,
        })
    }

    fn next(&mut self) -> Result<Option<Entry>, Unreadable> {
        let bytes = &mut self.entries;
        if bytes.0.is_empty() {
            return Ok(None);
        }
        let key = bytes.text(KEY_BYTES)?;
        let place = bytes.size()?;
        let (date, _) = self.places.get(place).ok_or(Unreadable::Damaged)?;
        let present = u16::from_le_bytes([bytes.byte()?, bytes.byte()?]);
        if present >> NUMBERS != 0 {
            return Err(Unreadable::Damaged);
        }
        let mut numbers = [0; NUMBERS];
        for (bit, number) in numbers.iter_mut().enumerate() {
            if present & (1 << bit) != 0 {
                *number = bytes.number()?;
            }
        }
        let [totals @ .., limit, granted] = numbers;
        Ok(Some(Entry {
            date: *date,
            key: key.parse().map_err(|_| Unreadable::Damaged)?,
            place,
            totals: Totals::of_numbers(totals),
            ceiling: Ceiling { limit, granted },
        }))
    }

    /// Hands over the entries, in their order; how many there are.
    pub(super) fn each(&mut self, mut each: impl FnMut(&Entry)) -> rusqlite::Result<usize> {
        let mut count = 0;
        while let Some(entry) = self.next().map_err(unreadable)? {
            each(&entry);
            count += 1;
        }
        Ok(count)
    }
}

fn unreadable(why: Unreadable) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(1, rusqlite::types::Type::Blob, Box::new(why))
}

/// Reads the groups after one through another, in their order, until it is enough.
pub(super) fn groups(
    connection: &Connection,
    (after, through): (i64, i64),
    mut each: impl FnMut(Group<'_>) -> rusqlite::Result<ControlFlow<()>>,
) -> rusqlite::Result<()> {
    let mut groups = connection.prepare_cached(GROUPS)?;
    let mut rows = groups.query((after, through))?;
    while let Some(row) = rows.next()? {
        let bytes = row.get_ref(1)?.as_blob()?;
        let group = Group::of(row.get(0)?, bytes).map_err(unreadable)?;
        if each(group)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Up to where something has come, in the order of dates and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reached {
    Nothing,
    Key(Date, KeyId),
    All,
}

/// How far groups have been moved into the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// The last group that is being moved, or was.
    pub(super) through: i64,
    /// What of these groups has been moved.
    pub(super) reached: Reached,
    /// Raised when counts change in another way than by groups.
    pub(super) rewritten: i64,
}

impl Mark {
    pub(super) fn of(row: &Row<'_>) -> rusqlite::Result<Mark> {
        let reached = match row.get_ref(1)?.as_str()? {
            "" => Reached::Nothing,
            ALL_REACHED => Reached::All,
            text => {
                let (date, key) = text
                    .split_once(' ')
                    .ok_or_else(|| unreadable(Unreadable::Damaged))?;
                let date = date.parse().ok().zip(key.parse().ok());
                let (date, key) = date.ok_or_else(|| unreadable(Unreadable::Damaged))?;
                Reached::Key(date, key)
            }
        };
        Ok(Mark {
            through: row.get(0)?,
            reached,
            rewritten: row.get(2)?,
        })
    }

    /// The mark in the database.
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Mark> {
        connection.prepare_cached(MARK)?.query_row([], Mark::of)
    }

    /// What the column `reached` has of it.
    pub(super) fn reached_text(&self) -> String {
        match self.reached {
            Reached::Nothing => String::new(),
            Reached::Key(date, key) => format!("{date} {key}"),
            Reached::All => ALL_REACHED.to_owned(),
        }
    }

    /// Whether the ledger has the entry of a group.
    pub(super) fn has(&self, number: i64, entry: &Entry) -> bool {
        number <= self.through && Reached::Key(entry.date, entry.key) <= self.reached
    }
}

/// Notes that counts changed in another way than by groups, so that no process relies on those it remembers.
pub(super) fn note_rewritten(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached(REWRITTEN)?.execute([])?;
    Ok(())
}

/// What a row of the ledger is to get.
pub(super) type Addition = (Totals, Ceiling);
/// What the rows of a key's day are to get, by place.
pub(super) type Additions = Vec<(Arc<str>, Addition)>;

/// Whether the ledger lacks anything of a date. To be asked in the transaction that relies on it.
pub(super) fn lacks(connection: &Connection, date: Date) -> rusqlite::Result<bool> {
    let lacking = lacking(connection, |of, _| of == date)?;
    Ok(lacking.first().is_some())
}

/// Entries summed up by date, key and place.
#[derive(Default)]
pub(super) struct Sums {
    /// The places by their numbers, and the other way round.
    places: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32>,
    rows: BTreeMap<(Date, KeyId, u32), Addition>,
}

impl Sums {
    /// Adds those entries of a group that are wanted; how many entries it has.
    pub(super) fn add(
        &mut self,
        mut group: Group<'_>,
        wanted: impl Fn(i64, &Entry) -> bool,
    ) -> rusqlite::Result<usize> {
        let number = group.number;
        let places = group.places.iter().map(|(_, place)| self.number(place));
        let places: Vec<u32> = places.collect();
        group.each(|entry| {
            let place = places.get(entry.place);
            if let Some(place) = place.filter(|_| wanted(number, entry)) {
                let row = self.rows.entry((entry.date, entry.key, *place));
                let (totals, ceiling) = row.or_default();
                totals.add(&entry.totals);
                *ceiling = ceiling.max(entry.ceiling);
            }
        })
    }

    fn number(&mut self, place: &str) -> u32 {
        if let Some(number) = self.numbers.get(place) {
            return *number;
        }
        let (place, number): (Arc<str>, _) = (place.into(), self.places.len() as u32);
        self.places.push(place.clone());
        self.numbers.insert(place, number);
        number
    }

    /// Takes out the first row, in the order of dates and keys.
    pub(super) fn pop_first(&mut self) -> Option<((Date, KeyId), Arc<str>, Addition)> {
        let ((date, key, place), addition) = self.rows.pop_first()?;
        let place = self.places.get(place as usize)?.clone();
        Some(((date, key), place, addition))
    }

    /// Date and key of the first row.
    pub(super) fn first(&self) -> Option<(Date, KeyId)> {
        let ((date, key, _), _) = self.rows.first_key_value()?;
        Some((*date, *key))
    }

    /// All rows by date and key, then place.
    pub(super) fn by_day(mut self) -> BTreeMap<(Date, KeyId), Additions> {
        let mut days: BTreeMap<(Date, KeyId), Additions> = BTreeMap::new();
        while let Some((day, place, addition)) = self.pop_first() {
            days.entry(day).or_default().push((place, addition));
        }
        days
    }
}

/// What the ledger lacks of what is wanted. To be read in the transaction in which the ledger is read.
pub(super) fn lacking(
    connection: &Connection,
    wanted: impl Fn(Date, KeyId) -> bool,
) -> rusqlite::Result<Sums> {
    let mark = Mark::read(connection)?;
    let mut sums = Sums::default();
    groups(connection, (0, i64::MAX), |group| {
        let lacking =
            |number, entry: &Entry| wanted(entry.date, entry.key) && !mark.has(number, entry);
        sums.add(group, lacking).map(|_| ControlFlow::Continue(()))
    })?;
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::api_key::os_entropy;

    /// Format, one place, its length, its text: what is before the entries.
    const HEAD_BYTES: usize = 3 + "2026-11-21 pro /markets".len();

    fn key() -> KeyId {
        KeyId::generate(&mut os_entropy)
    }

    fn date() -> Date {
        "2026-11-21".parse().unwrap()
    }

    fn packed(key: KeyId, numbers: [u64; NUMBERS]) -> Vec<u8> {
        let [totals @ .., limit, granted] = numbers;
        let (tier, endpoint) = ("pro".parse().unwrap(), "/markets".into());
        let mut packing = Packing::default();
        let ceiling = Ceiling { limit, granted };
        let totals = Totals::of_numbers(totals);
        packing.add((key, date()), (&tier, &endpoint), &totals, ceiling);
        packing.add((key, date()), (&tier, &endpoint), &totals, ceiling);
        assert_eq!((packing.len(), packing.places.len()), (2, 1));
        packing.bytes()
    }

    proptest! {
        #[test]
        fn a_group_is_read_as_it_was_packed(numbers: [u64; NUMBERS]) {
            let key = key();
            let bytes = packed(key, numbers);
            let mut read = Vec::new();
            let mut group = Group::of(7, &bytes).unwrap();
            let count = group.each(|entry| {
                let numbers = entry.totals.numbers().into_iter();
                let numbers = numbers.chain([entry.ceiling.limit, entry.ceiling.granted]);
                read.push((entry.key, entry.date, numbers.collect::<Vec<_>>()));
            });
            prop_assert_eq!(count.unwrap(), 2);
            let expected = (key, date(), numbers.to_vec());
            prop_assert_eq!(read, vec![expected.clone(), expected]);
            prop_assert_eq!(group.places, vec![(date(), "pro /markets")]);
        }

        #[test]
        fn whatever_bytes_there_are_they_are_read_or_refused(bytes: Vec<u8>, cut in 0..200_usize) {
            let refused = |bytes: &[u8]| match Group::of(1, bytes) {
                Ok(mut group) => group.each(|_| {}).is_err(),
                Err(_) => true,
            };
            let _ = refused(&[&[FORMAT], &bytes[..]].concat());
            let whole = packed(key(), [1; NUMBERS]);
            let entry = (whole.len() - HEAD_BYTES) / 2;
            let ends = [HEAD_BYTES, HEAD_BYTES + entry];
            let is_at_an_end = cut >= whole.len() || ends.contains(&cut);
            let cut = &whole[..cut.min(whole.len())];
            prop_assert_eq!(refused(cut), !is_at_an_end, "{:?}", cut);
        }
    }

    #[test]
    fn a_group_of_another_format_is_refused() {
        let mut bytes = packed(key(), [1; NUMBERS]);
        bytes[0] = FORMAT + 1;
        let refused = Group::of(1, &bytes).map(|_| ());
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("has format 2"), "{message}");
        assert!(matches!(Group::of(1, &[]), Err(Unreadable::Damaged)));
    }

    #[test]
    fn an_entry_has_some_twenty_bytes() {
        let charge = [1, 1, 0, 0, 0, 0, 0, 0, 0, 10_000, 0];
        assert!(packed(key(), charge).len() - HEAD_BYTES <= 2 * 20);
    }
}

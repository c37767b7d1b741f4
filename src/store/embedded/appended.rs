//! Appended groups: one row has everything that one transaction charged, refunded and refused, until it is folded into the ledger.
//!
//! The row consists of bytes: the format, the rows of the ledger (date, tier and endpoint) that its entries add to, and the entries,
//! each a key, the number of a row, two bytes whose bits state which of its numbers follow (those other than 0), and these. Whole
//! numbers are LEB128, the two bytes little-endian.
//!
//! Groups are numbered without gaps. The `folding` row has the last number that was moved into the ledger. Groups, mark and ledger are
//! read in one transaction, so that each unit is counted once, in the groups or in the ledger.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use jiff::civil::Date;
use rusqlite::{Connection, Row};

use crate::policy::api_key::KeyId;
use crate::policy::key_record::TierName;
use crate::store::ledger::{ROW_LENGTH, RowTotals, add_row, numbers_of, row_of};
use crate::store::numbered_names::NumberedNames;
use crate::store::sqlite::execute;

pub(super) const TABLES: &str = "
    -- entries: see src/store/embedded/appended.rs.
    CREATE TABLE appended (
        number INTEGER PRIMARY KEY,
        entries BLOB NOT NULL
    ) STRICT;
    -- One row. through: the last group that is being moved into the ledger, or was; reached: the date and key up to which the ledger
    -- has the entries of these groups; rewritten: increased when counts change in another way than by groups.
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
/// The length of a key's id.
const KEY_BYTES: usize = 12;
/// The value of `reached` when all is moved: it sorts after every date.
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

/// A group in the making.
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
        row: RowTotals,
    ) {
        // An endpoint's name is shared in memory. Another copy of it only adds another place.
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
        let (mut present, at) = (0_u16, self.entries.len());
        self.entries.extend_from_slice(&present.to_le_bytes());
        for (bit, number) in numbers_of(row).into_iter().enumerate() {
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

    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The dates of the entries, with repetitions.
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

/// The unread bytes of a group.
struct UnreadBytes<'b>(&'b [u8]);

impl<'b> UnreadBytes<'b> {
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
pub(super) struct StoredGroup<'b> {
    /// Its number.
    pub(super) number: i64,
    /// Date and row of the ledger (the tier, a space, the endpoint) for each number in the entries.
    places: Vec<(Date, &'b str)>,
    entries: UnreadBytes<'b>,
}

/// The numbers that one charge, refund or refusal added.
pub(super) struct GroupEntry {
    pub(super) date: Date,
    pub(super) key: KeyId,
    /// The number of its row in the group.
    place: usize,
    pub(super) row: RowTotals,
}

impl<'b> StoredGroup<'b> {
    fn of(number: i64, bytes: &'b [u8]) -> Result<StoredGroup<'b>, Unreadable> {
        let mut bytes = UnreadBytes(bytes);
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
        Ok(StoredGroup {
            number,
            places,
            entries: bytes,
        })
    }

    fn next(&mut self) -> Result<Option<GroupEntry>, Unreadable> {
        let bytes = &mut self.entries;
        if bytes.0.is_empty() {
            return Ok(None);
        }
        let key = bytes.text(KEY_BYTES)?;
        let place = bytes.size()?;
        let (date, _) = self.places.get(place).ok_or(Unreadable::Damaged)?;
        let present = u16::from_le_bytes([bytes.byte()?, bytes.byte()?]);
        if present >> ROW_LENGTH != 0 {
            return Err(Unreadable::Damaged);
        }
        let mut numbers = [0; ROW_LENGTH];
        for (bit, number) in numbers.iter_mut().enumerate() {
            if present & (1 << bit) != 0 {
                *number = bytes.number()?;
            }
        }
        Ok(Some(GroupEntry {
            date: *date,
            key: key.parse().map_err(|_| Unreadable::Damaged)?,
            place,
            row: row_of(numbers),
        }))
    }

    /// Passes on the entries in their order; returns their number.
    pub(super) fn each(&mut self, mut each: impl FnMut(&GroupEntry)) -> rusqlite::Result<usize> {
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

/// Reads the groups after one through another, in their order, until `each` breaks.
pub(super) fn groups(
    connection: &Connection,
    (after, through): (i64, i64),
    mut each: impl FnMut(StoredGroup<'_>) -> rusqlite::Result<ControlFlow<()>>,
) -> rusqlite::Result<()> {
    let mut groups = connection.prepare_cached(GROUPS)?;
    let mut rows = groups.query((after, through))?;
    while let Some(row) = rows.next()? {
        let bytes = row.get_ref(1)?.as_blob()?;
        let group = StoredGroup::of(row.get(0)?, bytes).map_err(unreadable)?;
        if each(group)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// The progress of a fold, in the order of dates and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FoldProgress {
    Nothing,
    Key(Date, KeyId),
    All,
}

/// The mark of the groups that are in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// The last group that is being moved, or was.
    pub(super) through: i64,
    /// The date and key up to which these groups have been moved.
    pub(super) reached: FoldProgress,
    /// Increased when counts change in another way than by groups.
    pub(super) rewritten: i64,
}

impl Mark {
    pub(super) fn of(row: &Row<'_>) -> rusqlite::Result<Mark> {
        let reached = match row.get_ref(1)?.as_str()? {
            "" => FoldProgress::Nothing,
            ALL_REACHED => FoldProgress::All,
            text => {
                let (date, key) = text
                    .split_once(' ')
                    .ok_or_else(|| unreadable(Unreadable::Damaged))?;
                let date = date.parse().ok().zip(key.parse().ok());
                let (date, key) = date.ok_or_else(|| unreadable(Unreadable::Damaged))?;
                FoldProgress::Key(date, key)
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

    /// The progress as the column `reached` has it.
    pub(super) fn reached_text(&self) -> String {
        match self.reached {
            FoldProgress::Nothing => String::new(),
            FoldProgress::Key(date, key) => format!("{date} {key}"),
            FoldProgress::All => ALL_REACHED.to_owned(),
        }
    }

    /// Whether the ledger has the entry of a group.
    pub(super) fn has(&self, number: i64, entry: &GroupEntry) -> bool {
        number <= self.through && FoldProgress::Key(entry.date, entry.key) <= self.reached
    }
}

/// Records that counts changed in another way than by groups, so that no process relies on its known counts.
pub(super) fn note_rewritten(connection: &Connection) -> rusqlite::Result<()> {
    execute(connection, REWRITTEN, []).map(drop)
}

/// The numbers to be added to the rows of a key and day, by row name.
pub(super) type Additions = Vec<(Arc<str>, RowTotals)>;

/// Whether groups have entries of a date that are not in the ledger. Must run in the transaction that relies on the result.
pub(super) fn lacks(connection: &Connection, date: Date) -> rusqlite::Result<bool> {
    let lacking = lacking(connection, |of, _| of == date)?;
    Ok(lacking.first().is_some())
}

/// Entries summed up by date, key and place.
#[derive(Default)]
pub(super) struct Sums {
    /// The row names.
    places: NumberedNames,
    rows: BTreeMap<(Date, KeyId, u32), RowTotals>,
}

impl Sums {
    /// Adds the wanted entries of a group; returns the number of all its entries.
    pub(super) fn add(
        &mut self,
        mut group: StoredGroup<'_>,
        wanted: impl Fn(i64, &GroupEntry) -> bool,
    ) -> rusqlite::Result<usize> {
        let number = group.number;
        let places = group.places.iter();
        let places = places.map(|(_, place)| self.places.number(place));
        let places: Vec<u32> = places.collect();
        group.each(|entry| {
            let place = places.get(entry.place);
            if let Some(place) = place.filter(|_| wanted(number, entry)) {
                let row = self.rows.entry((entry.date, entry.key, *place));
                add_row(row.or_default(), entry.row);
            }
        })
    }

    /// Removes and returns the first row, in the order of dates and keys.
    pub(super) fn pop_first(&mut self) -> Option<((Date, KeyId), Arc<str>, RowTotals)> {
        let ((date, key, place), addition) = self.rows.pop_first()?;
        Some(((date, key), self.places.name(place).clone(), addition))
    }

    /// Date and key of the first row.
    pub(super) fn first(&self) -> Option<(Date, KeyId)> {
        let ((date, key, _), _) = self.rows.first_key_value()?;
        Some((*date, *key))
    }

    /// All rows by date and key, then row name.
    pub(super) fn by_day(mut self) -> BTreeMap<(Date, KeyId), Additions> {
        let mut days: BTreeMap<(Date, KeyId), Additions> = BTreeMap::new();
        while let Some((day, place, addition)) = self.pop_first() {
            days.entry(day).or_default().push((place, addition));
        }
        days
    }
}

/// The wanted entries that are not in the ledger yet. Must run in the transaction that reads the ledger.
pub(super) fn lacking(
    connection: &Connection,
    wanted: impl Fn(Date, KeyId) -> bool,
) -> rusqlite::Result<Sums> {
    let mark = Mark::read(connection)?;
    let mut sums = Sums::default();
    groups(connection, (0, i64::MAX), |group| {
        let lacking =
            |number, entry: &GroupEntry| wanted(entry.date, entry.key) && !mark.has(number, entry);
        sums.add(group, lacking).map(|_| ControlFlow::Continue(()))
    })?;
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::api_key::os_entropy;

    /// The bytes before the entries: the format, the number of places, and the length and text of one.
    const HEAD_BYTES: usize = 3 + "2026-11-21 pro /markets".len();

    fn key() -> KeyId {
        KeyId::generate(&mut os_entropy)
    }

    fn date() -> Date {
        "2026-11-21".parse().unwrap()
    }

    fn packed(key: KeyId, numbers: [u64; ROW_LENGTH]) -> Vec<u8> {
        let (tier, endpoint) = ("pro".parse().unwrap(), "/markets".into());
        let mut packing = Packing::default();
        packing.add((key, date()), (&tier, &endpoint), row_of(numbers));
        packing.add((key, date()), (&tier, &endpoint), row_of(numbers));
        assert_eq!((packing.len(), packing.places.len()), (2, 1));
        packing.bytes()
    }

    proptest! {
        #[test]
        fn a_group_is_read_as_it_was_packed(numbers: [u64; ROW_LENGTH]) {
            let key = key();
            let bytes = packed(key, numbers);
            let mut read = Vec::new();
            let mut group = StoredGroup::of(7, &bytes).unwrap();
            let count = group.each(|entry| {
                read.push((entry.key, entry.date, numbers_of(entry.row)));
            });
            prop_assert_eq!(count.unwrap(), 2);
            let expected = (key, date(), numbers);
            prop_assert_eq!(read, vec![expected, expected]);
            prop_assert_eq!(group.places, vec![(date(), "pro /markets")]);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, cut in 0..200_usize) {
            let refused = |bytes: &[u8]| match StoredGroup::of(1, bytes) {
                Ok(mut group) => group.each(|_| {}).is_err(),
                Err(_) => true,
            };
            let _ = refused(&[&[FORMAT], &bytes[..]].concat());
            let whole = packed(key(), [1; ROW_LENGTH]);
            let entry = (whole.len() - HEAD_BYTES) / 2;
            let ends = [HEAD_BYTES, HEAD_BYTES + entry];
            let is_at_an_end = cut >= whole.len() || ends.contains(&cut);
            let cut = &whole[..cut.min(whole.len())];
            prop_assert_eq!(refused(cut), !is_at_an_end, "{:?}", cut);
        }
    }

    #[test]
    fn a_group_of_another_format_is_refused() {
        let mut bytes = packed(key(), [1; ROW_LENGTH]);
        bytes[0] = FORMAT + 1;
        let refused = StoredGroup::of(1, &bytes).map(|_| ());
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("has format 2"), "{message}");
        assert!(matches!(StoredGroup::of(1, &[]), Err(Unreadable::Damaged)));
    }

    #[test]
    fn an_entry_has_some_twenty_bytes() {
        let charge = [1, 1, 0, 0, 0, 0, 0, 0, 0, 10_000, 0];
        assert!(packed(key(), charge).len() - HEAD_BYTES <= 2 * 20);
    }
}

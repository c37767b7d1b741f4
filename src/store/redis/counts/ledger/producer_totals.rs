//! The totals in memory, and those that Redis or the journal does not have yet.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ahash::RandomState;
use jiff::civil::Date;

use super::cells;
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::policy::key_record::TierName;
use crate::store::Totals;
use crate::store::ledger::Ceiling;
use crate::store::numbered_names::NumberedNames;
use crate::store::redis::counts::kept_day::KeptDay;
use crate::store::redis::journal::TotalsRow;
use crate::store::redis::producer::Producer;

/// How long after its day a stored set of totals is kept in memory.
const KEPT_AFTER_DAY_SECONDS: i64 = 120;

/// Most keys call no more endpoints on a day. Memory for further ones is reserved only when a key calls more.
const FEW_ENDPOINTS: usize = 8;

/// The key, date and tier of totals.
pub type TotalsKey = (KeyId, Date, TierName);
/// A key's day, with totals for each tier that the key had.
pub type KeyAndDate = (KeyId, Date);

/// The totals of a key, day and tier.
#[derive(Debug)]
struct TierTotals {
    /// The number of their producer.
    producer: u64,
    day: KeptDay,
    ceiling: Ceiling,
    /// In the order of their endpoints' numbers.
    endpoints: Vec<EndpointTotals>,
    /// Whether they are in the list of those with totals that are not in Redis.
    is_listed: bool,
    /// Whether they are in the list of those with totals that are not in the journal.
    is_to_note: bool,
}

/// The totals of one endpoint. A gateway has one for each key and endpoint of the day.
#[derive(Debug)]
struct EndpointTotals {
    /// The number of its name.
    endpoint: u32,
    numbers: Numbers,
    /// Not in Redis.
    changed: bool,
    /// Being written to Redis.
    writing: bool,
    /// Not in the journal.
    to_note: bool,
}

const _: () = assert!(size_of::<EndpointTotals>() == 24);

/// The numbers of totals, in less memory if they are small and nothing was refused, as with most.
#[derive(Debug)]
enum Numbers {
    /// Requests, charged units and refunded ones.
    Small([u32; 3]),
    Large(Box<Totals>),
}

impl Numbers {
    fn totals(&self) -> Totals {
        match self {
            Numbers::Small(small) => {
                let [requests, charged, refunded] = small.map(u64::from);
                Totals {
                    requests,
                    charged,
                    refunded,
                    ..Totals::default()
                }
            }
            Numbers::Large(totals) => **totals,
        }
    }

    fn set(&mut self, totals: Totals) {
        let small = [totals.requests, totals.charged, totals.refunded].map(u32::try_from);
        match (self, small) {
            (Numbers::Large(large), _) => **large = totals,
            (Numbers::Small(numbers), [Ok(requests), Ok(charged), Ok(refunded)])
                if totals.refused() == 0 =>
            {
                *numbers = [requests, charged, refunded];
            }
            (numbers, _) => *numbers = Numbers::Large(Box::new(totals)),
        }
    }
}

/// The totals of some keys. Those that are to be written are listed, so that no task has to search all of them.
#[derive(Debug, Default)]
pub struct ProducerTotals {
    /// The endpoints that were called. None is forgotten, because there are only as many as were ever configured.
    endpoints: NumberedNames,
    by_key: HashMap<TotalsKey, TierTotals, RandomState>,
    /// Those with totals that are not in Redis.
    changed: VecDeque<TotalsKey>,
    /// Those with totals that are not in the journal, by day: a day's tiers are written together.
    to_note: HashMap<KeyAndDate, Vec<TierName>, RandomState>,
}

fn list_changed(
    changed: &mut VecDeque<TotalsKey>,
    place: &TotalsKey,
    tier_totals: &mut TierTotals,
) {
    if !std::mem::replace(&mut tier_totals.is_listed, true) {
        changed.push_back(place.clone());
    }
}

fn list_to_note(
    to_note: &mut HashMap<KeyAndDate, Vec<TierName>, RandomState>,
    (key, date, tier): &TotalsKey,
    tier_totals: &mut TierTotals,
) {
    if !std::mem::replace(&mut tier_totals.is_to_note, true) {
        to_note.entry((*key, *date)).or_default().push(tier.clone());
    }
}

impl ProducerTotals {
    /// Applies `count`, and returns what makes the row for the journal, with two allocations. `producer` numbers new totals.
    pub fn count<'t>(
        &'t mut self,
        place: TotalsKey,
        day: Day,
        producer: &'t Producer,
        endpoint: &'t Arc<str>,
        count: impl FnOnce(&mut Totals, &mut Ceiling),
    ) -> impl Fn() -> TotalsRow + 't {
        let tier_totals = self.by_key.entry(place.clone());
        let tier_totals = tier_totals.or_insert_with(|| TierTotals {
            producer: producer.next_number(),
            day: KeptDay::of(day),
            ceiling: Ceiling::default(),
            endpoints: Vec::new(),
            is_listed: false,
            is_to_note: false,
        });
        let mut ceiling = tier_totals.ceiling;
        let counted = tier_totals.of(self.endpoints.number(endpoint));
        let mut totals = counted.numbers.totals();
        count(&mut totals, &mut ceiling);
        counted.numbers.set(totals);
        (counted.changed, counted.to_note) = (true, true);
        tier_totals.ceiling = ceiling;
        list_changed(&mut self.changed, &place, tier_totals);
        list_to_note(&mut self.to_note, &place, tier_totals);
        move || tier_totals.row(producer, &place, endpoint, totals, false)
    }

    /// Marks everything to be written again: the store may have lost it.
    pub fn repeat_all(&mut self) {
        for (place, tier_totals) in &mut self.by_key {
            tier_totals.repeat();
            list_changed(&mut self.changed, place, tier_totals);
        }
    }

    /// Marks these totals to be written again.
    pub fn repeat(&mut self, place: &TotalsKey) {
        if let Some(tier_totals) = self.by_key.get_mut(place) {
            tier_totals.repeat();
            list_changed(&mut self.changed, place, tier_totals);
        }
    }

    /// Drops stored totals of days that are over.
    pub fn sweep(&mut self, now_second: i64) {
        self.by_key.retain(|_, tier_totals| {
            let mut endpoints = tier_totals.endpoints.iter();
            let is_unsaved =
                |counted: &EndpointTotals| counted.changed || counted.writing || counted.to_note;
            tier_totals.day.end + KEPT_AFTER_DAY_SECONDS >= now_second || endpoints.any(is_unsaved)
        });
    }

    /// Marks all totals of these tiers of a day as changed again: they could not be written to the journal.
    pub fn note_again(&mut self, (key, date): KeyAndDate, tiers: &[TierName]) {
        for tier in tiers {
            let place = (key, date, tier.clone());
            if let Some(tier_totals) = self.by_key.get_mut(&place) {
                for counted in &mut tier_totals.endpoints {
                    counted.to_note = true;
                }
                list_to_note(&mut self.to_note, &place, tier_totals);
            }
        }
    }

    /// The number of producers whose totals are to be written.
    pub fn changed_count(&self) -> usize {
        self.changed.len()
    }

    /// The days to be written to the journal.
    pub fn to_note(&self) -> Vec<KeyAndDate> {
        self.to_note.keys().copied().collect()
    }

    /// Takes the pages of up to `most` producers; their totals count as being written from now on. Those that `is_served` is
    /// false for are left, at the end of the list.
    pub fn take_pages(
        &mut self,
        most: usize,
        producer: &Producer,
        is_served: impl Fn(&TotalsKey) -> bool,
        pages: &mut Vec<LedgerPage>,
    ) {
        let count = self.changed.len().min(most);
        let (served, others): (Vec<_>, Vec<_>) = self.changed.drain(..count).partition(is_served);
        self.changed.extend(others);
        for place in served {
            let Some(tier_totals) = self.by_key.get_mut(&place) else {
                continue;
            };
            tier_totals.is_listed = false;
            let (producer, ceiling) = (producer.name(tier_totals.producer), tier_totals.ceiling);
            let changed = tier_totals.endpoints.iter_mut();
            let fields = changed
                .filter(|counted| counted.changed)
                .map(|counted| {
                    (counted.changed, counted.writing) = (false, true);
                    let endpoint = self.endpoints.name(counted.endpoint).clone();
                    let field = format!("{producer}|{endpoint}");
                    let value = cells::written(&counted.numbers.totals(), ceiling, Some(&place.2));
                    (endpoint, field, value)
                })
                .collect();
            pages.push(LedgerPage {
                day: *tier_totals.day,
                place,
                fields,
            });
        }
    }

    /// Takes the rows of a day that are to be written to the journal, with their tiers.
    pub fn take_rows(
        &mut self,
        (key, date): KeyAndDate,
        producer: &Producer,
    ) -> (Vec<TierName>, Vec<TotalsRow>) {
        let tiers = self.to_note.remove(&(key, date)).unwrap_or_default();
        let mut rows = Vec::new();
        for tier in &tiers {
            let place = (key, date, tier.clone());
            if let Some(tier_totals) = self.by_key.get_mut(&place) {
                tier_totals.is_to_note = false;
                let lacking = tier_totals.endpoints.iter();
                let lacking = lacking.filter(|counted| counted.to_note);
                rows.extend(lacking.map(|counted| {
                    let settled = !counted.changed && !counted.writing;
                    let endpoint = self.endpoints.name(counted.endpoint);
                    let totals = counted.numbers.totals();
                    tier_totals.row(producer, &place, endpoint, totals, settled)
                }));
                for counted in &mut tier_totals.endpoints {
                    counted.to_note = false;
                }
            }
        }
        (tiers, rows)
    }

    /// Ends the writing of a page, successful or not.
    pub fn end_writing(&mut self, page: &LedgerPage, written: bool) {
        let place = &page.place;
        let Some(tier_totals) = self.by_key.get_mut(place) else {
            return;
        };
        for (endpoint, ..) in &page.fields {
            let counted = tier_totals.of(self.endpoints.number(endpoint));
            (counted.writing, counted.to_note) = (false, true);
            counted.changed |= !written;
        }
        if !written {
            list_changed(&mut self.changed, place, tier_totals);
        }
        list_to_note(&mut self.to_note, place, tier_totals);
    }
}

impl TierTotals {
    fn repeat(&mut self) {
        for counted in &mut self.endpoints {
            counted.changed = true;
        }
    }

    /// The totals of an endpoint, added if it has none.
    #[expect(
        clippy::indexing_slicing,
        reason = "the index was found or inserted just before"
    )]
    fn of(&mut self, endpoint: u32) -> &mut EndpointTotals {
        let number = |counted: &EndpointTotals| counted.endpoint;
        let index = self.endpoints.binary_search_by_key(&endpoint, number);
        let index = index.unwrap_or_else(|index| {
            if self.endpoints.len() < FEW_ENDPOINTS {
                self.endpoints.reserve_exact(1);
            }
            let new = EndpointTotals {
                endpoint,
                numbers: Numbers::Small([0; 3]),
                changed: false,
                writing: false,
                to_note: false,
            };
            self.endpoints.insert(index, new);
            index
        });
        &mut self.endpoints[index]
    }

    fn row(
        &self,
        producer: &Producer,
        (key, _, tier): &TotalsKey,
        endpoint: &Arc<str>,
        totals: Totals,
        settled: bool,
    ) -> TotalsRow {
        TotalsRow {
            key: *key,
            day: *self.day,
            tier: Some(tier.clone()),
            ceiling: self.ceiling,
            producer: producer.name(self.producer),
            endpoint: endpoint.clone(),
            totals,
            settled,
        }
    }
}

/// Fields of one hash that are to be written.
pub struct LedgerPage {
    /// The key, date and tier of the totals.
    pub place: TotalsKey,
    /// Its day.
    pub day: Day,
    /// Endpoint, field and value.
    pub fields: Vec<(Arc<str>, String, String)>,
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const DAY: Day = Day {
        date: jiff::civil::date(2026, 11, 22),
        start: 1_795_305_600,
        end: 1_795_392_000,
    };

    fn count(totals: &mut ProducerTotals, endpoint: &str) -> TotalsRow {
        let key = "0123456789Ab".parse().unwrap();
        let place = (key, DAY.date, "pro".parse().unwrap());
        let add = |totals: &mut Totals, _: &mut Ceiling| totals.requests += 1;
        let (producer, endpoint) = (Producer::draw(), endpoint.into());
        totals.count(place, DAY, &producer, &endpoint, add)()
    }

    /// Counts nothing for a key in this tier, which has a page from then on.
    fn count_in(tier: &str, totals: &mut ProducerTotals) {
        let key = "0123456789Ab".parse().unwrap();
        let place = (key, DAY.date, tier.parse().unwrap());
        drop(totals.count(place, DAY, &Producer::draw(), &"/a".into(), |_, _| {}));
    }

    fn pages(totals: &mut ProducerTotals) -> Vec<LedgerPage> {
        let mut pages = Vec::new();
        totals.take_pages(usize::MAX, &Producer::draw(), |_| true, &mut pages);
        pages
    }

    /// The rows of the one day for the journal.
    fn rows(totals: &mut ProducerTotals) -> Vec<TotalsRow> {
        let days = totals.to_note().into_iter();
        let rows = days
            .flat_map(|day| totals.take_rows(day, &Producer::draw()).1)
            .collect();
        assert_eq!(totals.to_note(), []);
        rows
    }

    fn noted(totals: &mut ProducerTotals) -> Vec<(u64, bool)> {
        let rows = rows(totals).into_iter();
        rows.map(|row| (row.totals.requests, row.settled)).collect()
    }

    #[test]
    fn the_totals_of_an_endpoint_stay_small() {
        let bytes = size_of::<EndpointTotals>();
        assert!(bytes <= 32, "{bytes} bytes");
        let bytes = size_of::<(TotalsKey, TierTotals)>();
        assert!(bytes <= 96, "{bytes} bytes");
    }

    #[test]
    fn totals_are_kept_as_they_were_counted() {
        let place = || {
            (
                "0123456789Ab".parse().unwrap(),
                DAY.date,
                "pro".parse().unwrap(),
            )
        };
        let each = (0..Totals::NUMBERS).map(|number| (number, 1 + number as u64));
        let most = u64::from(u32::MAX);
        let large = [(0, most), (1, most), (1, 1), (0, 1)];
        for added in [each.chain([(0, 1)]).collect(), large.to_vec()] {
            let mut totals = ProducerTotals::default();
            let mut expected = [0; Totals::NUMBERS];
            for (number, more) in added {
                expected[number] += more;
                let add =
                    |totals: &mut Totals, _: &mut Ceiling| *totals = Totals::of_numbers(expected);
                let (producer, endpoint) = (Producer::draw(), "/a".into());
                let counted = totals.count(place(), DAY, &producer, &endpoint, add)();
                assert_eq!(counted.totals.numbers(), expected);
                assert_eq!(rows(&mut totals)[0].totals.numbers(), expected);
            }
        }
    }

    #[test]
    fn what_is_being_written_is_not_settled_before_it_is_written() {
        let mut totals = ProducerTotals::default();
        assert!(!count(&mut totals, "/a").settled);
        assert!(!count(&mut totals, "/a").settled);
        let taken = pages(&mut totals);
        assert_eq!((taken.len(), taken[0].fields.len()), (1, 1));
        assert!(totals.changed_count() == 0 && pages(&mut totals).is_empty());
        assert_eq!(noted(&mut totals), [(2, false)]);
        totals.end_writing(&taken[0], false);
        assert_eq!(totals.changed_count(), 1);
        assert_eq!(noted(&mut totals), [(2, false)]);
        let taken = pages(&mut totals);
        totals.end_writing(&taken[0], true);
        assert_eq!(noted(&mut totals), [(2, true)]);
        assert!(totals.changed_count() == 0 && noted(&mut totals).is_empty());
    }

    #[test]
    fn what_is_counted_while_it_is_being_written_is_written_again() {
        let mut totals = ProducerTotals::default();
        count(&mut totals, "/a");
        let taken = pages(&mut totals);
        assert!(!count(&mut totals, "/a").settled);
        totals.end_writing(&taken[0], true);
        assert_eq!(totals.changed_count(), 1);
        assert_eq!(noted(&mut totals), [(2, false)]);
    }

    #[test]
    fn what_changed_is_taken_in_parts_the_totals_of_each_tier_once() {
        let mut totals = ProducerTotals::default();
        for tier in ["a", "b", "c"] {
            count_in(tier, &mut totals);
        }
        let mut pages = Vec::new();
        totals.take_pages(2, &Producer::draw(), |_| true, &mut pages);
        assert_eq!((pages.len(), totals.changed_count()), (2, 1));
        totals.take_pages(2, &Producer::draw(), |_| true, &mut pages);
        assert_eq!((pages.len(), totals.changed_count()), (3, 0));
        let tiers: HashSet<_> = pages.iter().map(|page| &page.place.2).collect();
        assert_eq!(tiers.len(), 3);
        assert_eq!(totals.to_note().len(), 1, "the journal has a day at once");
        assert_eq!(rows(&mut totals).len(), 3);
    }

    #[test]
    fn totals_that_are_not_served_are_left() {
        let mut totals = ProducerTotals::default();
        for tier in ["a", "b"] {
            count_in(tier, &mut totals);
        }
        let mut pages = Vec::new();
        let is_served = |place: &TotalsKey| place.2.as_str() == "b";
        totals.take_pages(2, &Producer::draw(), is_served, &mut pages);
        assert_eq!((pages.len(), totals.changed_count()), (1, 1));
        totals.take_pages(2, &Producer::draw(), |_| true, &mut pages);
        assert_eq!((pages.len(), totals.changed_count()), (2, 0));
    }

    #[test]
    fn all_is_written_again_after_a_loss_and_none_of_it_is_dropped_before() {
        let mut totals = ProducerTotals::default();
        for endpoint in ["/a", "/b"] {
            count(&mut totals, endpoint);
        }
        let taken = pages(&mut totals);
        let long_after = DAY.end + KEPT_AFTER_DAY_SECONDS + 1;
        totals.sweep(long_after);
        totals.end_writing(&taken[0], true);
        let journaled = rows(&mut totals);
        assert_eq!(journaled.len(), 2);
        let tier = journaled[0].tier.clone().unwrap();
        totals.note_again((journaled[0].key, DAY.date), &[tier]);
        totals.sweep(long_after);
        totals.repeat_all();
        assert_eq!(pages(&mut totals)[0].fields.len(), 2);
        totals.end_writing(&taken[0], true);
        assert_eq!(noted(&mut totals).len(), 2);
        totals.sweep(long_after);
        totals.repeat_all();
        assert!(pages(&mut totals).is_empty());
    }
}

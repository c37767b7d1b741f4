//! The ledger: which endpoint each unit went to, and who was refused.
//!
//! This process keeps absolute totals per key, day, tier and endpoint and writes them whole, so that writing twice does no
//! harm and what is not yet stored is written again until it is. Each set of totals, a sheet for a key, day and tier, bears
//! a producer's name of its own (see `producer`); readers add the producers up.
//!
//! Invariant: nothing is written into a day that is closed. Its late units are in the counts, as adjustments (`charge.lua`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::civil::Date;
use parking_lot::Mutex;
use redis::{FromRedisValue, Pipeline};
use tokio::time::Instant;

use super::journal::SheetRow;
use super::link::{Link, LinkError};
use super::names::Names;
use super::producer::Producer;
use super::script::{Arguments, MERGE_TOTALS};
use super::time::StoreClock;
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::policy::key_record::TierName;
use crate::store::ledger::Ceiling;
use crate::store::{Charge, KeyEntry, Receipt, Refusal, StoreError, Totals};

mod carrying;
mod cells;
mod reading;

pub use carrying::{key_days, take_in};
pub use reading::{prove, sheets, usage};

/// Key-days written in one round trip.
const WRITE_BATCH: usize = 256;
/// How long after its day a stored set of totals is kept in memory.
const KEPT_AFTER_DAY_SECONDS: i64 = 120;

/// How long a merge may take.
const MERGE_TIMEOUT: Duration = Duration::from_secs(1);

type Place = (KeyId, Date, TierName);

#[derive(Debug)]
struct Sheet {
    producer: String,
    day: Day,
    ceiling: Ceiling,
    totals: HashMap<Arc<str>, Totals>,
    changed: HashSet<Arc<str>>,
    /// What the journal has not been told.
    to_note: HashSet<Arc<str>>,
}

impl Sheet {
    fn row(&self, (key, _, tier): &Place, endpoint: &Arc<str>) -> SheetRow {
        SheetRow {
            key: *key,
            day: self.day,
            tier: Some(tier.clone()),
            ceiling: self.ceiling,
            producer: self.producer.clone(),
            endpoint: endpoint.clone(),
            totals: self.totals.get(endpoint).copied().unwrap_or_default(),
            settled: !self.changed.contains(endpoint),
        }
    }
}

/// The totals of this process.
pub struct Ledger {
    link: Arc<Link>,
    names: Names,
    producer: Arc<Producer>,
    clock: Arc<StoreClock>,
    sheets: Mutex<HashMap<Place, Sheet>>,
}

/// Fields of one hash to be written.
struct Page {
    place: Place,
    day: Day,
    fields: Vec<(Arc<str>, String, String)>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(
        link: Arc<Link>,
        names: Names,
        producer: Arc<Producer>,
        clock: Arc<StoreClock>,
    ) -> Ledger {
        Ledger {
            link,
            names,
            producer,
            clock,
            sheets: Mutex::default(),
        }
    }

    fn record(
        &self,
        place: Place,
        day: Day,
        endpoint: &Arc<str>,
        count: impl FnOnce(&mut Totals, &mut Ceiling),
    ) -> SheetRow {
        let mut sheets = self.sheets.lock();
        let sheet = sheets.entry(place.clone()).or_insert_with(|| Sheet {
            producer: self.producer.next_name(),
            day,
            ceiling: Ceiling::default(),
            totals: HashMap::new(),
            changed: HashSet::new(),
            to_note: HashSet::new(),
        });
        let totals = sheet.totals.entry(endpoint.clone()).or_default();
        count(totals, &mut sheet.ceiling);
        sheet.changed.insert(endpoint.clone());
        sheet.to_note.insert(endpoint.clone());
        sheet.row(&place, endpoint)
    }

    /// A request was charged; the totals with it.
    pub fn charged(&self, charge: &Charge) -> SheetRow {
        let (record, date) = (&charge.key.record, charge.day.date);
        let judged = Ceiling::of(record, date, charge.limit);
        self.record(
            place_of(charge),
            charge.day,
            &charge.endpoint,
            |totals, ceiling| {
                totals.requests += 1;
                totals.charged += u64::from(charge.cost);
                *ceiling = ceiling.max(judged);
            },
        )
    }

    /// Takes [`Ledger::charged`] back: the request was not served after all.
    pub fn withdrawn(&self, charge: &Charge) {
        self.record(
            place_of(charge),
            charge.day,
            &charge.endpoint,
            |totals, _| {
                totals.requests = totals.requests.saturating_sub(1);
                totals.charged = totals.charged.saturating_sub(charge.cost.into());
            },
        );
    }

    /// Units went back.
    pub fn refunded(&self, receipt: &Receipt) {
        let place = (receipt.key, receipt.day.date, receipt.tier.clone());
        self.record(place, receipt.day, &receipt.endpoint, |totals, _| {
            totals.refunded += u64::from(receipt.units);
        });
    }

    /// A request was refused.
    pub fn refused(&self, key: &KeyEntry, day: Day, endpoint: &Arc<str>, refusal: Refusal) {
        let place = (key.record.id, day.date, key.record.tier.clone());
        self.record(place, day, endpoint, |totals, _| totals.refuse(refusal, 1));
    }

    /// Has everything written again: the store may have lost it.
    pub fn repeat_all(&self) {
        for sheet in self.sheets.lock().values_mut() {
            sheet.changed = sheet.totals.keys().cloned().collect();
        }
    }

    /// Whether everything is stored.
    pub fn is_written(&self) -> bool {
        let sheets = self.sheets.lock();
        sheets.values().all(|sheet| sheet.changed.is_empty())
    }

    /// Drops stored totals of days that are over.
    pub fn sweep(&self, now_second: i64) {
        self.sheets.lock().retain(|_, sheet| {
            let done = sheet.changed.is_empty() && sheet.to_note.is_empty();
            !done || sheet.day.end + KEPT_AFTER_DAY_SECONDS >= now_second
        });
    }

    /// Writes what changed. What could not be written stays to be written.
    pub async fn write(&self) -> Result<(), StoreError> {
        if !self.link.is_up() {
            return Ok(());
        }
        let pages = self.changed_pages();
        for batch in pages.chunks(WRITE_BATCH) {
            if let Err(error) = self.write_pages(batch).await {
                self.mark_changed(&pages);
                return Err(error.into());
            }
        }
        self.mark_to_note(&pages);
        Ok(())
    }

    /// What changed since it was last asked, or is stored now and was not.
    pub fn changed_rows(&self) -> Vec<SheetRow> {
        let mut rows = Vec::new();
        for (place, sheet) in self.sheets.lock().iter_mut() {
            for endpoint in std::mem::take(&mut sheet.to_note) {
                rows.push(sheet.row(place, &endpoint));
            }
        }
        rows
    }

    /// They could not be written: they have changed still.
    pub fn changed_still(&self, rows: &[SheetRow]) {
        let mut sheets = self.sheets.lock();
        for row in rows {
            let place = row.tier.clone().map(|tier| (row.key, row.day.date, tier));
            if let Some(sheet) = place.and_then(|place| sheets.get_mut(&place)) {
                sheet.to_note.insert(row.endpoint.clone());
            }
        }
    }

    /// Tells Redis what another producer counted.
    pub async fn merge(&self, row: &SheetRow) -> Result<(), StoreError> {
        if self.is_closed(row.day) {
            return Ok(());
        }
        let value = cells::written(&row.totals, row.ceiling, row.tier.as_ref());
        let arguments = Arguments::new()
            .text(format!("{}|{}", row.producer, row.endpoint))
            .text(value)
            .number(self.names.expires_at(row.key, row.day.end));
        let name = self.names.ledger(row.key, row.day.date);
        let deadline = Instant::now() + MERGE_TIMEOUT;
        MERGE_TOTALS
            .run(&self.link, &[&name], &arguments, deadline)
            .await?;
        let mut list = redis::cmd("SADD");
        list.arg(self.names.days()).arg(row.day.date.to_string());
        self.link.ask(&list).await?;
        Ok(())
    }

    /// Takes the dates off the list of days whose counts and ledgers are gone.
    ///
    /// # Errors
    /// Those of Redis; the list is as it was then.
    pub async fn forget_days(&self, now_second: i64) -> Result<(), StoreError> {
        let listed = self
            .link
            .ask(redis::cmd("SMEMBERS").arg(self.names.days()))
            .await?;
        let listed = Vec::<String>::from_redis_value(listed)
            .map_err(|error| StoreError::Failed(format!("the list of days: {error}")))?;
        let gone = |date: &&String| {
            let date = date.parse::<Date>();
            date.is_ok_and(|date| self.names.is_gone(date, now_second))
        };
        let gone: Vec<&String> = listed.iter().filter(gone).collect();
        if !gone.is_empty() {
            let mut forget = redis::cmd("SREM");
            forget.arg(self.names.days()).arg(gone);
            self.link.ask(&forget).await?;
        }
        Ok(())
    }

    fn is_closed(&self, day: Day) -> bool {
        let now = self.clock.now().as_second();
        self.names.keeping().is_closed(day.end, now)
    }

    fn mark_to_note(&self, pages: &[Page]) {
        let mut sheets = self.sheets.lock();
        for page in pages {
            if let Some(sheet) = sheets.get_mut(&page.place) {
                let endpoints = page.fields.iter().map(|(endpoint, ..)| endpoint.clone());
                sheet.to_note.extend(endpoints);
            }
        }
    }

    fn changed_pages(&self) -> Vec<Page> {
        let mut pages = Vec::new();
        for (place, sheet) in self.sheets.lock().iter_mut() {
            if sheet.changed.is_empty() {
                continue;
            }
            let fields = std::mem::take(&mut sheet.changed)
                .into_iter()
                .map(|endpoint| {
                    let totals = sheet.totals.get(&endpoint).copied().unwrap_or_default();
                    let field = format!("{}|{endpoint}", sheet.producer);
                    let value = cells::written(&totals, sheet.ceiling, Some(&place.2));
                    (endpoint, field, value)
                })
                .collect();
            pages.push(Page {
                place: place.clone(),
                day: sheet.day,
                fields,
            });
        }
        pages
    }

    async fn write_pages(&self, pages: &[Page]) -> Result<(), LinkError> {
        let mut pipeline = Pipeline::new();
        let open = || pages.iter().filter(|page| !self.is_closed(page.day));
        let days: HashSet<Date> = open().map(|page| page.place.1).collect();
        if days.is_empty() {
            return Ok(());
        }
        for date in days {
            pipeline
                .cmd("SADD")
                .arg(self.names.days())
                .arg(date.to_string());
        }
        for page in open() {
            let (key, date, _) = page.place;
            let name = self.names.ledger(key, date);
            let write = pipeline.cmd("HSET").arg(&name);
            for (_, field, totals) in &page.fields {
                write.arg(field).arg(totals);
            }
            pipeline
                .cmd("EXPIREAT")
                .arg(&name)
                .arg(self.names.expires_at(key, page.day.end));
        }
        self.link.ask(&pipeline).await.map(|_| ())
    }

    fn mark_changed(&self, pages: &[Page]) {
        let mut sheets = self.sheets.lock();
        for page in pages {
            if let Some(sheet) = sheets.get_mut(&page.place) {
                let endpoints = page.fields.iter().map(|(endpoint, ..)| endpoint.clone());
                sheet.changed.extend(endpoints.clone());
                sheet.to_note.extend(endpoints);
            }
        }
    }
}

fn place_of(charge: &Charge) -> Place {
    let record = &charge.key.record;
    (record.id, charge.day.date, record.tier.clone())
}

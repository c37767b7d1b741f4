//! The ledger: which endpoint each unit went to, and who was refused.
//!
//! This process keeps absolute totals per key, day and endpoint and writes them whole, so that writing twice does no
//! harm and what is not yet stored is written again until it is. Each set of totals bears a producer's name of its own
//! (see `producer`); readers add the producers up.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::civil::Date;
use parking_lot::Mutex;
use redis::{FromRedisValue, Pipeline};
use tokio::time::Instant;

use super::journal::SheetRow;
use super::link::{Link, LinkError};
use super::names::{Names, ledger_expires_at};
use super::producer::Producer;
use super::script::{Arguments, MERGE_TOTALS};
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::store::{DayUsage, Refusal, StoreError, Totals};

/// Key-days written in one round trip.
const WRITE_BATCH: usize = 256;
/// Key-days read in one round trip.
const READ_BATCH: usize = 256;
/// Up to this many days every date is read; above, only those that have counts.
const EVERY_DATE_MAX: i32 = 40;
/// How long after its day a stored set of totals is kept in memory.
const KEPT_AFTER_DAY_SECONDS: i64 = 120;

/// How long a merge may take.
const MERGE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Sheet {
    producer: String,
    day: Day,
    totals: HashMap<Arc<str>, Totals>,
    changed: HashSet<Arc<str>>,
    /// What the journal has not been told.
    to_note: HashSet<Arc<str>>,
}

impl Sheet {
    fn row(&self, key: KeyId, endpoint: &Arc<str>) -> SheetRow {
        SheetRow {
            key,
            day: self.day,
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
    sheets: Mutex<HashMap<(KeyId, Date), Sheet>>,
}

/// Fields of one hash to be written.
struct Page {
    place: (KeyId, Date),
    end: i64,
    fields: Vec<(Arc<str>, String, String)>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(link: Arc<Link>, names: Names, producer: Arc<Producer>) -> Ledger {
        Ledger {
            link,
            names,
            producer,
            sheets: Mutex::default(),
        }
    }

    fn record(
        &self,
        key: KeyId,
        day: Day,
        endpoint: &Arc<str>,
        count: impl FnOnce(&mut Totals),
    ) -> SheetRow {
        let mut sheets = self.sheets.lock();
        let sheet = sheets.entry((key, day.date)).or_insert_with(|| Sheet {
            producer: self.producer.next_name(),
            day,
            totals: HashMap::new(),
            changed: HashSet::new(),
            to_note: HashSet::new(),
        });
        count(sheet.totals.entry(endpoint.clone()).or_default());
        sheet.changed.insert(endpoint.clone());
        sheet.to_note.insert(endpoint.clone());
        sheet.row(key, endpoint)
    }

    /// A request was charged; the totals with it.
    pub fn charged(&self, key: KeyId, day: Day, endpoint: &Arc<str>, units: u32) -> SheetRow {
        self.record(key, day, endpoint, |totals| {
            totals.requests += 1;
            totals.charged += u64::from(units);
        })
    }

    /// Takes [`Ledger::charged`] back: the request was not served after all.
    pub fn withdrawn(&self, key: KeyId, day: Day, endpoint: &Arc<str>, units: u32) {
        self.record(key, day, endpoint, |totals| {
            totals.requests = totals.requests.saturating_sub(1);
            totals.charged = totals.charged.saturating_sub(units.into());
        });
    }

    /// Units went back.
    pub fn refunded(&self, key: KeyId, day: Day, endpoint: &Arc<str>, units: u32) {
        self.record(key, day, endpoint, |totals| {
            totals.refunded += u64::from(units);
        });
    }

    /// A request was refused.
    pub fn refused(&self, key: KeyId, day: Day, endpoint: &Arc<str>, refusal: Refusal) {
        self.record(key, day, endpoint, |totals| match refusal {
            Refusal::Tier => totals.refused_tier += 1,
            Refusal::DailyQuota => totals.refused_quota += 1,
        });
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
        for ((key, _), sheet) in self.sheets.lock().iter_mut() {
            for endpoint in std::mem::take(&mut sheet.to_note) {
                rows.push(sheet.row(*key, &endpoint));
            }
        }
        rows
    }

    /// They could not be written: they have changed still.
    pub fn changed_still(&self, rows: &[SheetRow]) {
        let mut sheets = self.sheets.lock();
        for row in rows {
            if let Some(sheet) = sheets.get_mut(&(row.key, row.day.date)) {
                sheet.to_note.insert(row.endpoint.clone());
            }
        }
    }

    /// Tells Redis what another producer counted.
    pub async fn merge(&self, row: &SheetRow) -> Result<(), StoreError> {
        let arguments = Arguments::new()
            .text(format!("{}|{}", row.producer, row.endpoint))
            .text(written(&row.totals))
            .number(ledger_expires_at(row.key, row.day.end));
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
                    (endpoint, field, written(&totals))
                })
                .collect();
            pages.push(Page {
                place: *place,
                end: sheet.day.end,
                fields,
            });
        }
        pages
    }

    async fn write_pages(&self, pages: &[Page]) -> Result<(), LinkError> {
        let mut pipeline = Pipeline::new();
        let days: HashSet<Date> = pages.iter().map(|page| page.place.1).collect();
        for date in days {
            pipeline
                .cmd("SADD")
                .arg(self.names.days())
                .arg(date.to_string());
        }
        for page in pages {
            let (key, date) = page.place;
            let name = self.names.ledger(key, date);
            let write = pipeline.cmd("HSET").arg(&name);
            for (_, field, totals) in &page.fields {
                write.arg(field).arg(totals);
            }
            pipeline
                .cmd("EXPIREAT")
                .arg(&name)
                .arg(ledger_expires_at(key, page.end));
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

/// The usage of some keys on the days from `from` through `to`, in the order of date and key.
pub async fn usage(
    link: &Link,
    names: &Names,
    keys: &[KeyId],
    from: Date,
    to: Date,
) -> Result<Vec<DayUsage>, StoreError> {
    let mut places = Vec::new();
    for date in dates(link, names, from, to).await? {
        places.extend(keys.iter().map(|key| (date, *key)));
    }
    let mut rows = Vec::new();
    for batch in places.chunks(READ_BATCH) {
        let mut pipeline = Pipeline::new();
        for (date, key) in batch {
            pipeline
                .cmd("HGET")
                .arg(names.counts(*key, *date))
                .arg("t")
                .cmd("HGETALL")
                .arg(names.ledger(*key, *date));
        }
        let value = link.ask(&pipeline).await?;
        let values = Vec::<redis::Value>::from_redis_value(value).map_err(unreadable)?;
        for ((date, key), pair) in batch.iter().zip(values.chunks_exact(2)) {
            let [used, fields] = pair else { continue };
            let used = Option::<i64>::from_redis_value_ref(used).map_err(unreadable)?;
            let fields =
                HashMap::<String, String>::from_redis_value_ref(fields).map_err(unreadable)?;
            let row = DayUsage {
                date: *date,
                key: *key,
                used: used.and_then(|used| u64::try_from(used).ok()).unwrap_or(0),
                endpoints: added_up(&fields),
            };
            if row.used > 0 || !row.endpoints.is_empty() {
                rows.push(row);
            }
        }
    }
    rows.sort_unstable_by_key(|row| (row.date, row.key));
    Ok(rows)
}

/// The dates worth reading: all of a short span, those that have counts of a long one.
async fn dates(link: &Link, names: &Names, from: Date, to: Date) -> Result<Vec<Date>, StoreError> {
    if to < from {
        return Ok(Vec::new());
    }
    let days = from
        .until(to)
        .map(|span| span.get_days())
        .unwrap_or(i32::MAX);
    if days < EVERY_DATE_MAX {
        let every = from.series(jiff::Span::new().days(1));
        return Ok(every.take_while(|date| *date <= to).collect());
    }
    let value = link.ask(redis::cmd("SMEMBERS").arg(names.days())).await?;
    let known = Vec::<String>::from_redis_value(value).map_err(unreadable)?;
    let mut dates: Vec<Date> = known
        .iter()
        .filter_map(|date| date.parse().ok())
        .filter(|date| (from..=to).contains(date))
        .collect();
    dates.sort_unstable();
    Ok(dates)
}

fn unreadable(error: redis::ParsingError) -> StoreError {
    StoreError::Failed(format!("Redis answered what cannot be read: {error}"))
}

/// The totals as a field's value: five numbers.
fn written(totals: &Totals) -> String {
    let Totals {
        requests,
        charged,
        refunded,
        refused_tier,
        refused_quota,
    } = totals;
    format!("{requests} {charged} {refunded} {refused_tier} {refused_quota}")
}

fn read(text: &str) -> Option<Totals> {
    let mut numbers = text.split(' ').map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten();
    Some(Totals {
        requests: next()?,
        charged: next()?,
        refunded: next()?,
        refused_tier: next()?,
        refused_quota: next()?,
    })
}

/// The sums over producers, by endpoint.
fn added_up(fields: &HashMap<String, String>) -> BTreeMap<String, Totals> {
    let mut endpoints: BTreeMap<String, Totals> = BTreeMap::new();
    for (field, text) in fields {
        let (Some((_, endpoint)), Some(totals)) = (field.split_once('|'), read(text)) else {
            tracing::warn!(field, "a field of the ledger cannot be read");
            continue;
        };
        let sum = endpoints.entry(endpoint.to_owned()).or_default();
        sum.requests += totals.requests;
        sum.charged += totals.charged;
        sum.refunded += totals.refunded;
        sum.refused_tier += totals.refused_tier;
        sum.refused_quota += totals.refused_quota;
    }
    endpoints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_survive_their_written_form_and_producers_add_up() {
        let totals = Totals {
            requests: 1,
            charged: 2,
            refunded: 3,
            refused_tier: 4,
            refused_quota: 5,
        };
        assert_eq!(read(&written(&totals)), Some(totals));
        let fields = HashMap::from([
            ("a.0|/x|y".to_owned(), written(&totals)),
            ("b.0|/x|y".to_owned(), written(&totals)),
            ("b.0|z".to_owned(), "1 2".to_owned()),
        ]);
        let sums = added_up(&fields);
        assert_eq!(sums.len(), 1);
        assert_eq!(sums.get("/x|y").map(|sum| sum.charged), Some(4));
    }
}

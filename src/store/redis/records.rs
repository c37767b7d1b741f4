//! The key table in Redis: reading, creating and changing records.
//!
//! A change is three steps, each atomic in its own slot: claim the digests, compare-and-set the record, tell the feed.
//! Invariants: a record is replaced only by one with a higher version; a digest belongs to one key. A claim without a
//! record (a command that died between the steps) expires by itself. A record that the feed was not told of is found by
//! the charge script at once and by every gateway's next full scan.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use redis::{FromRedisValue, Pipeline, Value};
use tokio::time::Instant;

use super::link::{Link, LinkError, ScanPlace};
use super::names::Names;
use super::script::{Arguments, RECORD};
use crate::policy::api_key::{KeyDigest, KeyId};
use crate::policy::key_record::KeyRecord;
use crate::store::{ChangeError, ChangeMark, KeyEntry, StoreError};

/// How long a digest stays claimed for a record that is not written.
const CLAIM_LASTS: Duration = Duration::from_secs(30);
/// About how many changes the feed keeps.
const FEED_MAX: u64 = 1_000_000;
/// Records written back in one round trip.
const MEND_BATCH: usize = 128;
/// Names that one step of a scan looks at.
const SCAN_COUNT: u32 = 1_000;

/// The key table as commands see it.
pub struct Records {
    link: Arc<Link>,
    names: Names,
    timeout: Duration,
}

impl Records {
    /// The table behind a link.
    pub fn new(link: Arc<Link>, names: Names, timeout: Duration) -> Records {
        Records {
            link,
            names,
            timeout,
        }
    }

    /// The server's time.
    pub async fn server_time(&self) -> Result<Timestamp, StoreError> {
        let value = self.link.ask(&redis::cmd("TIME")).await?;
        read_time(value)
    }

    /// The record of one key.
    pub async fn get(&self, id: KeyId) -> Result<Option<KeyRecord>, StoreError> {
        let read = redis::cmd("HGET")
            .arg(self.names.record(id))
            .arg("rec")
            .to_owned();
        let value = self.link.ask(&read).await?;
        match Option::<String>::from_redis_value(value).map_err(unreadable)? {
            Some(packed) => unpacked(&packed).map(Some),
            None => Ok(None),
        }
    }

    /// All records in the order of their creation.
    pub async fn all(&self) -> Result<Vec<KeyRecord>, StoreError> {
        let mut records = BTreeMap::new();
        let mut cursor = Some(ScanPlace::default());
        while let Some(at) = cursor {
            let (next, page) = scan_page(&self.link, &self.names, at).await?;
            records.extend(page.into_iter().map(|record| (record.id, record)));
            cursor = next;
        }
        let mut records: Vec<KeyRecord> = records.into_values().collect();
        records.sort_by_key(|record| (record.created, record.id));
        Ok(records)
    }

    /// Adds a record.
    pub async fn create(&self, record: KeyRecord) -> Result<(KeyRecord, ChangeMark), ChangeError> {
        let now = self.server_time().await?;
        let record = KeyRecord {
            created: now,
            updated: now,
            version: u64::try_from(now.as_microsecond()).unwrap_or(1).max(1),
            ..record
        };
        self.write(record, 0, &[]).await
    }

    /// Replaces a record of the version that `record` bears.
    pub async fn update(&self, record: KeyRecord) -> Result<(KeyRecord, ChangeMark), ChangeError> {
        let id = record.id;
        let old = self.get(id).await?.ok_or(ChangeError::UnknownKey(id))?;
        if old.version != record.version {
            return Err(ChangeError::Conflict(id));
        }
        let now = self.server_time().await?;
        let micros = u64::try_from(now.as_microsecond()).unwrap_or(0);
        let record = KeyRecord {
            created: old.created,
            updated: now.max(old.updated),
            version: micros.max(old.version + 1),
            ..record
        };
        self.write(record, old.version, &digests(&old)).await
    }

    async fn write(
        &self,
        record: KeyRecord,
        expected: u64,
        held: &[KeyDigest],
    ) -> Result<(KeyRecord, ChangeMark), ChangeError> {
        let id = record.id;
        let wanted = digests(&record);
        let mut claimed = Vec::new();
        for digest in wanted.iter().filter(|digest| !held.contains(digest)) {
            if self.claim(id, digest).await? {
                claimed.push(*digest);
            } else {
                self.release(&claimed).await?;
                return Err(ChangeError::Exists(id));
            }
        }
        let entry = KeyEntry::new(record);
        let written = self.compare_and_set(&entry, expected).await?;
        if written != 1 {
            self.release(&claimed).await?;
            return Err(match (written, expected) {
                (_, 0) => ChangeError::Exists(id),
                (0, _) => ChangeError::Conflict(id),
                _ => ChangeError::UnknownKey(id),
            });
        }
        let dropped: Vec<KeyDigest> = held
            .iter()
            .filter(|digest| !wanted.contains(digest))
            .copied()
            .collect();
        let mark = self.tell(&entry, &wanted, &dropped).await?;
        Ok((entry.record.clone(), mark))
    }

    /// Claims a digest for a key that has none yet; `false` if another key, or this one, has it.
    async fn claim(&self, id: KeyId, digest: &KeyDigest) -> Result<bool, StoreError> {
        let mut claim = redis::cmd("SET");
        claim
            .arg(self.names.digest(digest))
            .arg(id.as_str())
            .arg("NX")
            .arg("PX")
            .arg(CLAIM_LASTS.as_millis() as u64);
        Ok(self.link.ask(&claim).await? == Value::Okay)
    }

    /// Lets go of digests that this command claimed.
    async fn release(&self, digests: &[KeyDigest]) -> Result<(), StoreError> {
        if digests.is_empty() {
            return Ok(());
        }
        let mut pipeline = Pipeline::new();
        for digest in digests {
            pipeline.cmd("DEL").arg(self.names.digest(digest));
        }
        self.link.ask(&pipeline).await?;
        Ok(())
    }

    async fn compare_and_set(&self, entry: &KeyEntry, expected: u64) -> Result<i64, StoreError> {
        let name = self.names.record(entry.record.id);
        let arguments = Arguments::new()
            .count(expected)
            .count(entry.record.version)
            .text(&*entry.packed);
        let deadline = Instant::now() + self.timeout;
        let value = RECORD
            .run(&self.link, &[&name], &arguments, deadline)
            .await?;
        i64::from_redis_value(value).map_err(unreadable)
    }

    /// Makes the digests the key's for good, and tells the gateways.
    async fn tell(
        &self,
        entry: &KeyEntry,
        wanted: &[KeyDigest],
        dropped: &[KeyDigest],
    ) -> Result<ChangeMark, StoreError> {
        let mut pipeline = Pipeline::new();
        for digest in wanted {
            let id = entry.record.id.as_str();
            pipeline.cmd("SET").arg(self.names.digest(digest)).arg(id);
        }
        for digest in dropped {
            pipeline.cmd("DEL").arg(self.names.digest(digest));
        }
        pipeline
            .cmd("XADD")
            .arg(self.names.feed())
            .arg("MAXLEN")
            .arg("~")
            .arg(FEED_MAX)
            .arg("*")
            .arg("rec")
            .arg(&*entry.packed);
        let value = self.link.ask(&pipeline).await?;
        let replies = Vec::<Value>::from_redis_value(value).map_err(unreadable)?;
        let place = replies.last().and_then(|last| {
            let text = String::from_redis_value_ref(last).ok()?;
            parse_place(&text)
        });
        place.map(ChangeMark).ok_or_else(|| {
            StoreError::Failed("Redis answered no stream id for an entry of the feed".into())
        })
    }
}

/// Writes records that the store lacks or holds older, and their digests.
pub async fn mend(link: &Link, names: &Names, entries: &[Arc<KeyEntry>]) -> Result<(), LinkError> {
    for batch in entries.chunks(MEND_BATCH) {
        let mut pipeline = Pipeline::new();
        for entry in batch {
            let name = names.record(entry.record.id);
            let arguments = Arguments::new()
                .number(-1)
                .count(entry.record.version)
                .text(&*entry.packed);
            pipeline.add_command(RECORD.by_text(&[&name], &arguments));
            for digest in digests(&entry.record) {
                pipeline
                    .cmd("SET")
                    .arg(names.digest(&digest))
                    .arg(entry.record.id.as_str())
                    .arg("NX");
            }
        }
        link.ask(&pipeline).await?;
    }
    Ok(())
}

/// One step of a scan over all records: where to go on, and the records found. A record may be found twice.
pub async fn scan_page(
    link: &Link,
    names: &Names,
    place: ScanPlace,
) -> Result<(Option<ScanPlace>, Vec<KeyRecord>), StoreError> {
    let (next, found) = link.scan(place, &names.records(), SCAN_COUNT).await?;
    if found.is_empty() {
        return Ok((next, Vec::new()));
    }
    let mut pipeline = Pipeline::new();
    for name in &found {
        pipeline.cmd("HGET").arg(name).arg("rec");
    }
    let value = link.ask(&pipeline).await?;
    let packed = Vec::<Option<String>>::from_redis_value(value).map_err(unreadable)?;
    let mut records = Vec::new();
    for (name, packed) in found.iter().zip(packed) {
        match packed.as_deref().map(unpacked) {
            Some(Ok(record)) => records.push(record),
            Some(Err(error)) => tracing::error!(name, %error, "a key's record is left out"),
            None => {}
        }
    }
    Ok((next, records))
}

/// A packed record.
pub fn unpacked(packed: &str) -> Result<KeyRecord, StoreError> {
    serde_json::from_str(packed)
        .map_err(|error| StoreError::Failed(format!("a stored record cannot be read: {error}")))
}

/// A stream id `<milliseconds>-<sequence>` as one number in the same order.
pub fn parse_place(id: &str) -> Option<u128> {
    let (milliseconds, sequence) = id.split_once('-')?;
    let (milliseconds, sequence): (u64, u64) = (milliseconds.parse().ok()?, sequence.parse().ok()?);
    Some(u128::from(milliseconds) << 64 | u128::from(sequence))
}

/// The stream id of a place.
pub fn stream_id(place: u128) -> String {
    format!("{}-{}", place >> 64, place & u128::from(u64::MAX))
}

/// The reply of `TIME`.
pub fn read_time(value: Value) -> Result<Timestamp, StoreError> {
    let (seconds, micros) = <(i64, i64)>::from_redis_value(value).map_err(unreadable)?;
    let micros = seconds.saturating_mul(1_000_000).saturating_add(micros);
    Timestamp::from_microsecond(micros)
        .map_err(|error| StoreError::Failed(format!("Redis tells an impossible time: {error}")))
}

fn digests(record: &KeyRecord) -> Vec<KeyDigest> {
    let mut digests = vec![record.digest];
    if let Some(previous) = &record.previous
        && previous.digest != record.digest
    {
        digests.push(previous.digest);
    }
    digests
}

/// What is said of a reply of another type.
pub fn unreadable(error: redis::ParsingError) -> StoreError {
    StoreError::Failed(format!("Redis answered what cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_keeps_the_order_of_stream_ids_and_comes_back_as_one() {
        let places = ["0-0", "0-5", "9-0", "10-0", "10-18446744073709551615"];
        let parsed: Vec<u128> = places.iter().map(|id| parse_place(id).unwrap()).collect();
        assert!(parsed.is_sorted());
        for (id, place) in places.iter().zip(parsed) {
            assert_eq!(stream_id(place), *id);
        }
        assert_eq!(parse_place("5"), None);
    }
}

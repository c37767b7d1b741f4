//! Records, places and times as they are in Redis: the commands that write them, and the replies that hold them.

use std::time::Duration;

use redis::streams::StreamMaxlen;
use redis::{Cmd, FromRedisValue, Value};

use crate::policy::api_key::{KeyDigest, KeyId};
use crate::policy::audit::Entry;
use crate::policy::key_record::KeyRecord;
use crate::store::key_table::packed;
use crate::store::redis::names::Names;
use crate::store::redis::wire::script::{COUNT_MAX, RECORD};
use crate::store::{ChangeMark, StoreError};

/// How long a digest stays claimed for a record that is not written.
const CLAIM_LASTS: Duration = Duration::from_secs(30);
/// About how many changes the feed keeps. A gateway that was away for more loads all keys again, which takes 20 s for a million; more
/// would be memory of Redis that is hardly ever read.
const FEED_MAX: usize = 250_000;

/// Adds a change to the feed.
pub fn feed_entry(names: &Names, record: &KeyRecord) -> Cmd {
    let most = StreamMaxlen::Approx(FEED_MAX);
    Cmd::xadd_maxlen(names.feed(), most, "*", &[("rec", packed(record))])
}

/// The position in the feed, from the reply to [`feed_entry`].
pub fn change_mark(reply: Option<&Value>) -> Result<ChangeMark, StoreError> {
    let place = reply.and_then(|reply| {
        let text = String::from_redis_value_ref(reply).ok()?;
        parse_place(&text)
    });
    place.map(ChangeMark).ok_or_else(|| {
        StoreError::Failed("Redis returned no stream id for an entry of the feed".into())
    })
}

/// Writes a record, and the entry of its last change, if the stored version is `expected` (see `record.lua`). The entry of the `old`
/// record's last change is written where Redis has lost it.
pub fn put(names: &Names, record: &KeyRecord, expected: i64, old: Option<&KeyRecord>) -> Cmd {
    let packed_entry =
        |record: &KeyRecord| serde_json::to_string(&Entry::of(record)).unwrap_or_default();
    let id = record.id;
    let arguments = (
        expected,
        record.version.min(COUNT_MAX),
        packed(record),
        packed_entry(record),
        old.map(packed_entry).unwrap_or_default(),
    );
    RECORD.by_text(&[names.record(id), names.audit_trail(id)], &arguments)
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

/// The commands that make the digests of a record lead to it, and drop those that only the record which it replaces held.
pub fn put_digests(names: &Names, record: &KeyRecord, old: Option<&KeyRecord>) -> Vec<Cmd> {
    let wanted = Vec::from_iter(record.digests());
    let held = old.into_iter().flat_map(KeyRecord::digests);
    let held = held.filter(|digest| !wanted.contains(digest));
    let drop = held.map(|digest| Cmd::del(names.digest(&digest)));
    let put = |digest| Cmd::set(names.digest(digest), record.id.as_str());
    wanted.iter().map(put).chain(drop).collect()
}

/// The command that claims a digest for a key, unless it is held or claimed; Redis returns the holder.
pub fn claim(names: &Names, digest: &KeyDigest, id: KeyId) -> Cmd {
    let mut claim = redis::cmd("SET");
    let lasts = CLAIM_LASTS.as_millis() as u64;
    claim.arg((names.digest(digest), id.as_str(), "NX", "GET", "PX", lasts));
    claim
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

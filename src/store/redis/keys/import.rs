//! Imports many keys, a batch at a time.
//!
//! The steps are those of a change (see [`super::records`]), each for the whole batch in one round trip. Their order lets a
//! repeated import complete one that died: it finds claimed digests without a record, and records that are not in the feed,
//! whose digests still have an expiry, because the expiry is removed only after the feed has the record.

use std::collections::HashMap;

use redis::{Cmd, Value};

use super::{codec, index};
use crate::policy::api_key::KeyId;
use crate::policy::key_record::KeyRecord;
use crate::store::redis::wire::link::RedisLink;
use crate::store::{ChangeError, ChangeMark, Imported, StoreError};

/// Adds the keys whose secret and id are not in use. Returns the result for each key, and the feed position of the last one.
pub async fn import(
    link: &RedisLink,
    records: Vec<KeyRecord>,
) -> Result<(Vec<Imported>, Option<ChangeMark>), ChangeError> {
    let holders = claim(link, &records).await;
    let holders = holders.map_err(ChangeError::Unwritten)?;
    let others: Vec<KeyId> = holders.iter().flatten().copied().collect();
    let others = stored(link, &others).await;
    let others = others.map_err(ChangeError::Unwritten)?;
    let mut unfinished = Vec::new();
    let (mut free, mut outcomes) = (Vec::new(), Vec::new());
    for (record, holder) in records.iter().zip(&holders) {
        let outcome = match holder {
            None => {
                free.push(record);
                Imported::Added
            }
            Some(holder) => match others.get(holder) {
                Some(key) if is_same(key, record) => {
                    unfinished.push(key.clone());
                    Imported::Held(*holder)
                }
                Some(_) | None => Imported::Claimed(*holder),
            },
        };
        outcomes.push(outcome);
    }
    let entered = index::enter(link, free).await;
    entered.map_err(ChangeError::Unwritten)?;
    let added = write(link, &records, &mut outcomes, &mut unfinished).await?;
    let mark = publish(link, &added, unfinished).await?;
    release(link, &records, &outcomes).await?;
    Ok((outcomes, mark))
}

/// Claims the digests of each record. Returns, for each record, the other id that holds or has claimed one of them, if any.
async fn claim(link: &RedisLink, records: &[KeyRecord]) -> Result<Vec<Option<KeyId>>, StoreError> {
    let claims = records.iter().flat_map(|record| {
        record
            .digests()
            .map(|digest| codec::claim(&link.names, &digest, record.id))
    });
    let mut replies = link
        .replies::<Vec<Option<String>>>(claims)
        .await?
        .into_iter();
    let holders = records.iter().map(|record| {
        let held_by = replies.by_ref().take(record.digests().count());
        let others = held_by.filter_map(|holder| holder?.parse().ok());
        // All replies of this record are consumed: the next record's follow.
        let others: Vec<KeyId> = others.filter(|holder| *holder != record.id).collect();
        others.first().copied()
    });
    Ok(holders.collect())
}

/// Writes the records that are to be added, and corrects the results of those whose id is in use. Returns the written records.
async fn write(
    link: &RedisLink,
    records: &[KeyRecord],
    outcomes: &mut [Imported],
    unfinished: &mut Vec<KeyRecord>,
) -> Result<Vec<KeyRecord>, StoreError> {
    let (mut written, mut refused) = (Vec::new(), Vec::new());
    let to_add = |(_, outcome): &(&KeyRecord, &mut Imported)| **outcome == Imported::Added;
    let chosen: Vec<_> = records.iter().zip(outcomes).filter(to_add).collect();
    let put = chosen
        .iter()
        .map(|(record, _)| codec::put(&link.names, record, 0, None));
    let replies = link.replies::<Vec<i64>>(put).await?;
    for ((record, outcome), reply) in chosen.into_iter().zip(replies) {
        if reply == 1 {
            written.push(record.clone());
        } else {
            refused.push((record, outcome));
        }
    }
    let ids: Vec<KeyId> = refused.iter().map(|(record, _)| record.id).collect();
    let found = stored(link, &ids).await?;
    for (record, outcome) in refused {
        *outcome = match found.get(&record.id) {
            Some(key) if is_same(key, record) => {
                unfinished.push(key.clone());
                Imported::Held(record.id)
            }
            Some(_) | None => Imported::IdTaken,
        };
    }
    Ok(written)
}

/// Adds the new records to the feed, with those that a dead command wrote but did not add to it; then makes the claims of their
/// digests permanent.
async fn publish(
    link: &RedisLink,
    added: &[KeyRecord],
    held: Vec<KeyRecord>,
) -> Result<Option<ChangeMark>, StoreError> {
    let ask = held
        .iter()
        .map(|record| Cmd::pttl(link.names.digest(&record.digest)));
    // -1: permanent; -2: the claim has expired.
    let lasting = link.replies::<Vec<i64>>(ask).await?;
    let unpublished = held
        .into_iter()
        .zip(lasting)
        .filter(|(_, left)| *left != -1);
    let unpublished = unpublished.map(|(record, _)| record);
    let published = added.iter().cloned().chain(unpublished);
    let published: Vec<KeyRecord> = published.collect();
    let feed = published
        .iter()
        .map(|record| codec::feed_entry(&link.names, record));
    let places: Vec<Value> = link.replies(feed).await?;
    let hold = published.iter();
    let hold = hold.flat_map(|record| codec::put_digests(&link.names, record, None));
    link.send(hold).await?;
    places
        .last()
        .map(|place| codec::change_mark(Some(place)))
        .transpose()
}

/// Releases the digests that were claimed for records that were not written.
async fn release(
    link: &RedisLink,
    records: &[KeyRecord],
    outcomes: &[Imported],
) -> Result<(), StoreError> {
    let lost = records
        .iter()
        .zip(outcomes)
        .filter(|(record, outcome)| match outcome {
            Imported::Added => false,
            Imported::Held(holder) => *holder != record.id,
            Imported::IdTaken | Imported::Claimed(_) => true,
        });
    let holders = index::holders(link, lost.map(|(record, _)| record)).await?;
    let own = holders
        .iter()
        .filter(|(id, _, holder)| holder.as_deref() == Some(id.as_str()));
    let drop = own.map(|(_, digest, _)| Cmd::del(link.names.digest(digest)));
    link.send(drop).await
}

/// Whether a stored key has, or had before its rotations, the current secret of another record.
fn is_same(stored: &KeyRecord, wanted: &KeyRecord) -> bool {
    stored.has_had(&wanted.digest)
}

/// The records of these keys, as far as there are any.
async fn stored(link: &RedisLink, ids: &[KeyId]) -> Result<HashMap<KeyId, KeyRecord>, StoreError> {
    let found = index::stored(link, ids).await?.into_iter().flatten();
    Ok(found.map(|record| (record.id, record)).collect())
}

//! The record of a key: who holds it, its tier and state, and until when it is valid.
//!
//! A record never contains a limit: that is the tier's daily quota in the current configuration plus the record's grants for the
//! day. Its `version` increases with every change (the store's time in microseconds, at least one more than before), and every
//! change is a compare-and-set on it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::str::FromStr;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use super::api_key::{ApiKey, KeyDigest, KeyId, KeyPrefix};
use super::words::{serde_by_text, words};

/// The name of a subscription tier: 1 to 32 characters of `a-z0-9-_`, beginning with a letter.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TierName(Arc<str>);

impl TierName {
    /// The name itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A tier name has an invalid character or length.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a tier name has 1 to 32 characters of a-z, 0-9, - and _, and begins with a letter")]
pub struct TierNameError;

impl FromStr for TierName {
    type Err = TierNameError;

    fn from_str(text: &str) -> Result<TierName, TierNameError> {
        let fits = text.len() <= 32
            && text.starts_with(|first: char| first.is_ascii_lowercase())
            && text.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_'
            });
        if fits {
            Ok(TierName(text.into()))
        } else {
            Err(TierNameError)
        }
    }
}

impl fmt::Display for TierName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for TierName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

serde_by_text!(TierName);

words! {
    /// Whether a key may be used at all; the word is in YAML, JSON, tables and logs.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum KeyState {
        /// In use.
        Active = "active",
        /// Refused until resumed.
        Suspended = "suspended",
        /// Refused permanently.
        Revoked = "revoked",
    }
}

/// A rotated-out secret that stays valid for an overlap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviousDigest {
    /// The old secret's digest.
    pub digest: KeyDigest,
    /// The first instant at which it is no longer valid.
    pub until: Timestamp,
}

/// The most ended secrets that a record remembers: the latest ones.
pub const ENDED_MAX: usize = 8;

/// Extra units by quota day. Most keys have none, and take no memory for them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Grants(Option<Arc<BTreeMap<Date, u64>>>);

impl Grants {
    fn are_none(&self) -> bool {
        self.is_empty()
    }
}

impl From<BTreeMap<Date, u64>> for Grants {
    fn from(days: BTreeMap<Date, u64>) -> Grants {
        Grants((!days.is_empty()).then(|| days.into()))
    }
}

impl Deref for Grants {
    type Target = BTreeMap<Date, u64>;

    fn deref(&self) -> &BTreeMap<Date, u64> {
        static NONE: BTreeMap<Date, u64> = BTreeMap::new();
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for Grants {
    fn deref_mut(&mut self) -> &mut BTreeMap<Date, u64> {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

words! {
    /// The kind of a change of a key, as named in the audit trail, in arguments, JSON and tables; in the order of a key's life.
    #[derive(PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Action {
        /// Issued here.
        Issue = "issue",
        /// Imported with the secret that it had elsewhere.
        Import = "import",
        /// Given a new secret.
        Rotate = "rotate",
        /// Restored the secret before a rotation whose new key was never shown.
        UndoRotate = "undo-rotate",
        /// Suspended.
        Suspend = "suspend",
        /// Ended a suspension.
        Resume = "resume",
        /// Revoked.
        Revoke = "revoke",
        /// Moved to another tier.
        SetTier = "set-tier",
        /// Given another expiry of its subscription.
        SetExpiry = "set-expiry",
        /// Given another label, or none.
        SetLabel = "set-label",
        /// Given to another customer.
        SetCustomer = "set-customer",
        /// Granted extra units on a day.
        Grant = "grant",
        /// Not of a key: a gateway was removed from the register.
        ForgetGateway = "forget-gateway",
        /// An unknown change, made before changes were recorded.
        Unrecorded = "unrecorded",
    }
}

/// Public facts of a record by name, such as `tier`; `None` if the record lacks one, such as a label.
pub type PublicFacts = BTreeMap<String, Option<String>>;

/// The change that produced a record. It is part of the record, so that no change is stored without it; the audit trail's entry
/// is made of the two ([`super::audit::Entry::of`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastChange {
    /// The kind of change.
    pub action: Action,
    /// The author: a given name, or the operating system's user and host.
    pub who: String,
    /// The reason, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The changed facts before the change.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub before: PublicFacts,
}

impl LastChange {
    /// The first change of a key.
    pub fn first(action: Action, who: impl Into<String>) -> LastChange {
        LastChange {
            action,
            who: who.into(),
            reason: None,
            before: PublicFacts::new(),
        }
    }

    fn unrecorded() -> Arc<LastChange> {
        LastChange::first(Action::Unrecorded, "unknown").into()
    }
}

/// Everything known of one key, as stored and replicated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// The public id, under which counters and ledger are kept.
    pub id: KeyId,
    /// The customer who pays.
    pub customer: Box<str>,
    /// The customer's name for this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<Box<str>>,
    /// The subscription tier.
    pub tier: TierName,
    /// Active, suspended or revoked.
    pub state: KeyState,
    /// The first instant after the subscription, or `None` for no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Digest of the current secret.
    pub digest: KeyDigest,
    /// The secret before the last rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Box<PreviousDigest>>,
    /// Digests of secrets that rotations have ended, at most [`ENDED_MAX`], the latest last. None is valid, and each may have become
    /// another key's. They are known, so that an import of an old file does not make them valid again.
    #[serde(default, skip_serializing_if = "<[KeyDigest]>::is_empty")]
    pub ended: Box<[KeyDigest]>,
    /// Extra units by quota day.
    #[serde(default, skip_serializing_if = "Grants::are_none")]
    pub grants: Grants,
    /// When the key was issued.
    pub created: Timestamp,
    /// When the record last changed.
    pub updated: Timestamp,
    /// Microseconds of the store's time at the last change, at least one more than at the change before.
    pub version: u64,
    /// The change that produced this record. Keys that were issued alike share one.
    #[serde(default = "LastChange::unrecorded")]
    pub last_change: Arc<LastChange>,
}

/// Why a known key may not be used. Clients never learn which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusable {
    /// The presented secret is neither the current nor a still valid previous one.
    WrongSecret,
    /// The state is suspended.
    Suspended,
    /// The state is revoked.
    Revoked,
    /// The subscription has ended.
    Expired,
}

impl KeyRecord {
    /// Whether this record takes the place of another one of the same key: the later version does, but none that is not revoked takes
    /// that of a revoked one. Versions are times: after a leap of a clock and a loss of data, a revocation may have an earlier one than a
    /// change that was made before it.
    pub fn replaces(&self, other: &KeyRecord) -> bool {
        let rank = |record: &KeyRecord| (record.state == KeyState::Revoked, record.version);
        rank(self) > rank(other)
    }

    /// The text that is searched for keys: id, customer and label, a line each, in lower case.
    pub fn search_text(&self) -> String {
        let label = self.label.as_deref().unwrap_or_default();
        format!("{}\n{}\n{label}", self.id, self.customer).to_lowercase()
    }

    /// The record of a new key: active, without label, end or grants. The store assigns its version.
    pub fn new(
        key: &ApiKey,
        customer: impl Into<Box<str>>,
        tier: TierName,
        now: Timestamp,
        change: LastChange,
    ) -> KeyRecord {
        KeyRecord {
            id: key.id(),
            customer: customer.into(),
            label: None,
            tier,
            state: KeyState::Active,
            expires: None,
            digest: key.digest(),
            previous: None,
            ended: Box::default(),
            grants: Grants::default(),
            created: now,
            updated: now,
            version: 0,
            last_change: change.into(),
        }
    }

    /// A record that no secret matches, judged in place of an unknown key: revoked, and with the digest of a text that is not a
    /// key.
    pub fn decoy() -> KeyRecord {
        let key = ApiKey::generate(&KeyPrefix::default(), &mut |bytes| bytes.fill(0));
        let change = LastChange::first(Action::Revoke, "nobody");
        let tier = TierName("none".into());
        KeyRecord {
            digest: KeyDigest::of(b""),
            state: KeyState::Revoked,
            ..KeyRecord::new(&key, "", tier, Timestamp::UNIX_EPOCH, change)
        }
    }

    /// Whether the holder of `presented` may send requests at `now`. Digests are compared in constant time, and all checks always
    /// run, so that the time taken reveals nothing about the result.
    pub fn usable(&self, presented: &KeyDigest, now: Timestamp) -> Result<(), Unusable> {
        let (previous, until) = match &self.previous {
            Some(previous) => (&previous.digest, previous.until),
            None => (&self.digest, Timestamp::MIN),
        };
        let current = self.digest == *presented;
        let overlapping = (previous == presented) & (now < until);
        let ended = now >= self.expires.unwrap_or(Timestamp::MAX);
        // A later fault replaces earlier ones.
        let faults = [
            (ended, Unusable::Expired),
            (self.state == KeyState::Suspended, Unusable::Suspended),
            (self.state == KeyState::Revoked, Unusable::Revoked),
            (!(current | overlapping), Unusable::WrongSecret),
        ];
        let mut outcome = Ok(());
        for (applies, fault) in faults {
            outcome = if applies { Err(fault) } else { outcome };
        }
        outcome
    }

    /// The digests by which the key is found, each once: that of the current secret, and that of the one before the last rotation,
    /// valid or not.
    pub fn digests(&self) -> impl Iterator<Item = KeyDigest> + use<> {
        let previous = self.previous.as_ref().map(|previous| previous.digest);
        let previous = previous.filter(|digest| *digest != self.digest);
        std::iter::once(self.digest).chain(previous)
    }

    /// Whether a secret is this key's, or was before its rotations.
    pub fn has_had(&self, digest: &KeyDigest) -> bool {
        self.digests().any(|held| held == *digest) || self.ended.contains(digest)
    }

    /// The units this key may use on `date`, given its tier's daily quota.
    pub fn limit_on(&self, date: Date, tier_daily: u64) -> u64 {
        tier_daily.saturating_add(self.grants.get(&date).copied().unwrap_or(0))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use jiff::ToSpan;

    use super::*;
    use crate::policy::api_key::os_entropy;

    /// A key of `tier` and its active record, version 1.
    pub(crate) fn key_of(tier: &str) -> (ApiKey, KeyRecord) {
        let key = ApiKey::generate(&KeyPrefix::default(), &mut os_entropy);
        let (tier, now) = (tier.parse().unwrap(), Timestamp::UNIX_EPOCH);
        let issued = LastChange::first(Action::Issue, "tester@here");
        let record = KeyRecord {
            version: 1,
            ..KeyRecord::new(&key, "Acme", tier, now, issued)
        };
        (key, record)
    }

    #[test]
    fn only_an_active_unexpired_key_with_the_right_secret_is_usable() {
        let (key, record) = key_of("pro");
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        assert_eq!(record.usable(&key.digest(), now), Ok(()));
        assert_eq!(
            record.usable(&KeyDigest::of(b"other"), now),
            Err(Unusable::WrongSecret)
        );
        let suspended = KeyRecord {
            state: KeyState::Suspended,
            ..record.clone()
        };
        assert_eq!(
            suspended.usable(&key.digest(), now),
            Err(Unusable::Suspended)
        );
        let revoked = KeyRecord {
            state: KeyState::Revoked,
            ..record
        };
        assert_eq!(revoked.usable(&key.digest(), now), Err(Unusable::Revoked));
    }

    #[test]
    fn a_subscription_ends_exactly_at_its_instant() {
        let (key, mut record) = key_of("pro");
        let end: Timestamp = "2026-12-01T00:00:00Z".parse().unwrap();
        record.expires = Some(end);
        assert_eq!(record.usable(&key.digest(), end - 1.nanosecond()), Ok(()));
        assert_eq!(record.usable(&key.digest(), end), Err(Unusable::Expired));
    }

    #[test]
    fn a_previous_secret_is_valid_until_the_end_of_its_overlap() {
        let (old, mut record) = key_of("pro");
        let new = ApiKey::for_id(&KeyPrefix::default(), old.id(), &mut os_entropy);
        let until: Timestamp = "2026-11-22T00:00:00Z".parse().unwrap();
        record.previous = Some(Box::new(PreviousDigest {
            digest: old.digest(),
            until,
        }));
        record.digest = new.digest();
        assert_eq!(record.usable(&old.digest(), until - 1.nanosecond()), Ok(()));
        assert_eq!(
            record.usable(&old.digest(), until),
            Err(Unusable::WrongSecret)
        );
        assert_eq!(record.usable(&new.digest(), until), Ok(()));
    }

    #[test]
    fn a_grant_raises_the_limit_of_its_own_day_only() {
        let (_, mut record) = key_of("pro");
        let day: Date = "2026-11-21".parse().unwrap();
        record.grants.insert(day, 500);
        assert_eq!(record.limit_on(day, 3_000), 3_500);
        assert_eq!(record.limit_on(day.tomorrow().unwrap(), 3_000), 3_000);
    }

    #[test]
    fn a_record_from_before_changes_were_recorded_can_be_read() {
        let (_, record) = key_of("pro");
        let mut json = serde_json::to_value(&record).unwrap();
        json.as_object_mut().unwrap().remove("last_change");
        let read: KeyRecord = serde_json::from_value(json).unwrap();
        assert_eq!(read.last_change.action, Action::Unrecorded);
        assert_eq!(
            KeyRecord {
                last_change: record.last_change.clone(),
                ..read
            },
            record
        );
    }

    #[test]
    fn an_action_has_one_word_everywhere() {
        for action in Action::ALL {
            assert_eq!(serde_json::to_value(action).unwrap(), action.as_str());
        }
    }

    #[test]
    fn a_record_survives_its_json_form() {
        let (_, mut record) = key_of("pro");
        record.label = Some("café \"x\"".into());
        record.grants.insert("2026-11-21".parse().unwrap(), 5);
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<KeyRecord>(&text).unwrap(), record);
    }
}

//! Changes of a key after its issue: the record after each, which are refused, and what the key's holder loses by one.
//!
//! Invariants: no change affects the id, and so the units used; a revoked key stays revoked; a change without a [`Loss`] ends no
//! access: every usable secret stays usable, with as many units and all endpoints.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;

use super::api_key::KeyDigest;
use super::key_record::{Action, ENDED_MAX, KeyRecord, KeyState, PreviousDigest, TierName};

/// The most extra units of a key on one day. Far below 2^53: Redis counts in doubles.
pub const GRANT_UNITS_MAX: u64 = 1_000_000_000_000;

/// One change of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyChange {
    /// A new secret; the current one stays valid for the overlap, but never longer than without the rotation.
    Rotate {
        /// Digest of the new key.
        digest: KeyDigest,
        /// How long the old secret stays valid; zero ends it at once.
        overlap: Duration,
    },
    /// Refuses all requests until resumed.
    Suspend,
    /// Ends a suspension.
    Resume,
    /// Refuses all requests permanently.
    Revoke,
    /// Another tier.
    SetTier(TierName),
    /// Another first instant after the subscription, or `None` for no end.
    SetExpiry(Option<Timestamp>),
    /// Another label, or none.
    SetLabel(Option<String>),
    /// Another customer.
    SetCustomer(String),
    /// Extra units on a day.
    Grant {
        /// The quota day.
        date: Date,
        /// The units, in addition to earlier grants.
        units: NonZeroU64,
    },
}

/// Why a change cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChangeRefused {
    /// The key is revoked.
    #[error("the key is revoked, which is final: issue another with `touchline keys issue`")]
    Revoked,
    /// The day's grants would be more than [`GRANT_UNITS_MAX`].
    #[error("the grants of a day are limited to {GRANT_UNITS_MAX} units: grant less")]
    GrantTooLarge,
    /// The end of the overlap is outside the calendar.
    #[error("the overlap ends outside the calendar: choose a shorter one")]
    OverlapTooLong,
}

impl KeyChange {
    /// The action of the change, as named in the audit trail.
    pub fn action(&self) -> Action {
        match self {
            KeyChange::Rotate { .. } => Action::Rotate,
            KeyChange::Suspend => Action::Suspend,
            KeyChange::Resume => Action::Resume,
            KeyChange::Revoke => Action::Revoke,
            KeyChange::SetTier(_) => Action::SetTier,
            KeyChange::SetExpiry(_) => Action::SetExpiry,
            KeyChange::SetLabel(_) => Action::SetLabel,
            KeyChange::SetCustomer(_) => Action::SetCustomer,
            KeyChange::Grant { .. } => Action::Grant,
        }
    }

    /// The record after the change at `now`, or `None` if the change has no effect.
    ///
    /// # Errors
    /// If the change cannot be made. Of a revoked key only label and customer can change.
    pub fn applied_to(
        &self,
        before: &KeyRecord,
        now: Timestamp,
    ) -> Result<Option<KeyRecord>, ChangeRefused> {
        let is_revoked = before.state == KeyState::Revoked;
        let may_follow = matches!(
            self,
            KeyChange::Revoke | KeyChange::SetLabel(_) | KeyChange::SetCustomer(_)
        );
        if is_revoked && !may_follow {
            return Err(ChangeRefused::Revoked);
        }
        let mut after = before.clone();
        match self {
            KeyChange::Revoke => after.state = KeyState::Revoked,
            KeyChange::SetLabel(label) => {
                after.label = label.as_deref().map(Into::into);
            }
            KeyChange::SetCustomer(customer) => after.customer = customer.as_str().into(),
            KeyChange::Rotate { digest, overlap } => {
                let until = now
                    .checked_add(*overlap)
                    .map_err(|_| ChangeRefused::OverlapTooLong)?;
                let replaced = PreviousDigest {
                    digest: before.digest,
                    until,
                };
                let mut ended = before.ended.to_vec();
                ended.extend(before.previous.as_ref().map(|previous| previous.digest));
                after.previous = match until > now {
                    true => Some(Box::new(replaced)),
                    false => {
                        ended.push(replaced.digest);
                        None
                    }
                };
                let latest = ended.len().saturating_sub(ENDED_MAX);
                after.ended = ended.split_off(latest).into();
                after.digest = *digest;
            }
            KeyChange::Suspend => after.state = KeyState::Suspended,
            KeyChange::Resume => after.state = KeyState::Active,
            KeyChange::SetTier(tier) => after.tier = tier.clone(),
            KeyChange::SetExpiry(expires) => after.expires = *expires,
            KeyChange::Grant { date, units } => {
                let granted = before.grants.get(date).copied().unwrap_or(0);
                let granted = granted
                    .checked_add(units.get())
                    .filter(|granted| *granted <= GRANT_UNITS_MAX)
                    .ok_or(ChangeRefused::GrantTooLarge)?;
                after.grants.insert(*date, granted);
            }
        }
        Ok((after != *before).then_some(after))
    }
}

/// What a tier includes in the current configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierOffer {
    /// Units a day.
    pub daily: u64,
    /// Patterns of the endpoints.
    pub endpoints: Vec<Arc<str>>,
}

/// What the holder of a key loses by a change, from the next request on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loss {
    /// All access, permanently.
    Key,
    /// All access, until the change is undone.
    Calls,
    /// A currently valid secret.
    Secret,
    /// Units of a day.
    Units {
        /// The tier's units before.
        from: u64,
        /// The tier's units after.
        to: u64,
    },
    /// Endpoints.
    Endpoints(Vec<Arc<str>>),
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Key => f.write_str(
                "every request with this key is refused from now on, and this cannot be undone",
            ),
            Loss::Calls => f.write_str("every request with this key is refused from now on"),
            Loss::Secret => f.write_str("a secret that is valid now ends at once"),
            Loss::Units { from, to } => write!(f, "its daily quota falls from {from} to {to}"),
            Loss::Endpoints(endpoints) => write!(f, "it loses {}", endpoints.join(", ")),
        }
    }
}

/// What the holder of a key loses at `now` if `before` becomes `after`. `offer` returns what a tier includes, or `None` if it is
/// not configured.
pub fn losses(
    before: &KeyRecord,
    after: &KeyRecord,
    now: Timestamp,
    offer: impl Fn(&TierName) -> Option<TierOffer>,
) -> Vec<Loss> {
    let mut losses = Vec::new();
    let calls = |record: &KeyRecord| {
        record.state == KeyState::Active && record.expires.is_none_or(|expires| now < expires)
    };
    if after.state == KeyState::Revoked && before.state != KeyState::Revoked {
        losses.push(Loss::Key);
    } else if calls(before) && !calls(after) {
        losses.push(Loss::Calls);
    }
    let ends = |digest| is_valid(before, &digest, now) && !is_valid(after, &digest, now);
    if before.digests().any(ends) {
        losses.push(Loss::Secret);
    }
    if before.tier != after.tier
        && let (Some(from), Some(to)) = (offer(&before.tier), offer(&after.tier))
    {
        if to.daily < from.daily {
            losses.push(Loss::Units {
                from: from.daily,
                to: to.daily,
            });
        }
        let gone = |endpoint: &Arc<str>| !to.endpoints.contains(endpoint);
        let endpoints: Vec<Arc<str>> = from.endpoints.into_iter().filter(gone).collect();
        if !endpoints.is_empty() {
            losses.push(Loss::Endpoints(endpoints));
        }
    }
    losses
}

/// Whether a secret matches the record at `now`, whatever its state.
fn is_valid(record: &KeyRecord, digest: &KeyDigest, now: Timestamp) -> bool {
    let previous = record.previous.as_ref();
    record.digest == *digest
        || previous.is_some_and(|previous| previous.digest == *digest && now < previous.until)
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan;
    use proptest::prelude::*;

    use super::*;
    use crate::policy::key_record::tests::key_of;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn now() -> Timestamp {
        "2026-11-21T12:00:00Z".parse().unwrap()
    }

    fn day() -> Date {
        "2026-11-21".parse().unwrap()
    }

    fn offer(tier: &TierName) -> Option<TierOffer> {
        let (daily, endpoints): (u64, &[&str]) = match tier.as_str() {
            "starter" => (1_000, &["/a"]),
            "pro" => (3_000, &["/a", "/b"]),
            "wide" => (1_000, &["/a", "/b", "/c"]),
            _ => return None,
        };
        Some(TierOffer {
            daily,
            endpoints: endpoints.iter().map(|path| (*path).into()).collect(),
        })
    }

    fn tier(name: &str) -> KeyChange {
        KeyChange::SetTier(name.parse().unwrap())
    }

    fn rotate(secret: &str, overlap: Duration) -> KeyChange {
        KeyChange::Rotate {
            digest: KeyDigest::of(secret.as_bytes()),
            overlap,
        }
    }

    fn grant(units: u64) -> KeyChange {
        KeyChange::Grant {
            date: day(),
            units: NonZeroU64::new(units).unwrap(),
        }
    }

    fn lost(before: &KeyRecord, change: &KeyChange) -> Vec<Loss> {
        let after = change.applied_to(before, now()).unwrap().unwrap();
        losses(before, &after, now(), offer)
    }

    #[test]
    fn a_rotation_keeps_the_id_and_the_old_secret_until_the_end_of_the_overlap() {
        let (key, before) = key_of("pro");
        let after = rotate("new", HOUR).applied_to(&before, now()).unwrap();
        let after = after.unwrap();
        assert_eq!(after.id, before.id);
        let end = now() + HOUR;
        assert_eq!(after.usable(&KeyDigest::of(b"new"), end), Ok(()));
        assert_eq!(after.usable(&key.digest(), end - 1.nanosecond()), Ok(()));
        assert!(after.usable(&key.digest(), end).is_err());
        assert_eq!(losses(&before, &after, now(), offer), []);
    }

    #[test]
    fn a_rotation_without_overlap_or_within_the_last_one_ends_a_valid_secret() {
        let (key, before) = key_of("pro");
        assert_eq!(
            lost(&before, &rotate("new", Duration::ZERO)),
            [Loss::Secret]
        );
        let after = rotate("new", Duration::ZERO).applied_to(&before, now());
        assert_eq!(after.unwrap().unwrap().previous, None);

        let once = rotate("new", HOUR).applied_to(&before, now()).unwrap();
        let once = once.unwrap();
        assert_eq!(lost(&once, &rotate("newer", HOUR)), [Loss::Secret]);
        let twice = rotate("newer", HOUR).applied_to(&once, now()).unwrap();
        assert!(twice.unwrap().usable(&key.digest(), now()).is_err());
        let later = now() + HOUR;
        let twice = rotate("newer", HOUR).applied_to(&once, later).unwrap();
        assert_eq!(losses(&once, &twice.unwrap(), later, offer), []);
    }

    #[test]
    fn the_latest_ended_secrets_stay_known() {
        let (key, mut record) = key_of("pro");
        for turn in 0..ENDED_MAX {
            let overlap = [Duration::ZERO, HOUR][turn % 2];
            let rotated = rotate(&turn.to_string(), overlap).applied_to(&record, now());
            record = rotated.unwrap().unwrap();
            assert!(record.has_had(&key.digest()), "{turn}");
        }
        let secret = |turn: usize| KeyDigest::of(turn.to_string().as_bytes());
        assert!((0..ENDED_MAX).all(|turn| record.has_had(&secret(turn))));
        assert!((0..ENDED_MAX - 2).all(|turn| record.usable(&secret(turn), now()).is_err()));
        let json = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<KeyRecord>(&json).unwrap(), record);
        for turn in ENDED_MAX..2 * ENDED_MAX {
            let rotated = rotate(&turn.to_string(), HOUR).applied_to(&record, now());
            record = rotated.unwrap().unwrap();
        }
        assert_eq!(record.ended.len(), ENDED_MAX);
        assert!(!record.has_had(&key.digest()));
    }

    #[test]
    fn revoked_is_final_but_for_its_names() {
        let (_, before) = key_of("pro");
        let revoked = KeyChange::Revoke
            .applied_to(&before, now())
            .unwrap()
            .unwrap();
        for change in [
            rotate("new", HOUR),
            KeyChange::Suspend,
            KeyChange::Resume,
            tier("starter"),
            KeyChange::SetExpiry(None),
            grant(1),
        ] {
            assert_eq!(
                change.applied_to(&revoked, now()),
                Err(ChangeRefused::Revoked),
                "{change:?}"
            );
        }
        assert_eq!(KeyChange::Revoke.applied_to(&revoked, now()), Ok(None));
        for change in [
            KeyChange::SetLabel(Some("gone".into())),
            KeyChange::SetCustomer("Acme, dissolved".into()),
        ] {
            assert!(matches!(change.applied_to(&revoked, now()), Ok(Some(_))));
        }
    }

    #[test]
    fn what_is_so_already_changes_nothing() {
        let (_, before) = key_of("pro");
        for change in [
            KeyChange::Resume,
            tier("pro"),
            KeyChange::SetExpiry(None),
            KeyChange::SetLabel(None),
            KeyChange::SetCustomer("Acme".into()),
        ] {
            assert_eq!(change.applied_to(&before, now()), Ok(None), "{change:?}");
        }
    }

    #[test]
    fn grants_of_a_day_add_up_to_a_limit() {
        let (_, before) = key_of("pro");
        let once = grant(500).applied_to(&before, now()).unwrap().unwrap();
        let twice = grant(200).applied_to(&once, now()).unwrap().unwrap();
        assert_eq!(twice.limit_on(day(), 3_000), 3_700);
        assert_eq!(twice.limit_on(day().tomorrow().unwrap(), 3_000), 3_000);
        assert!(grant(GRANT_UNITS_MAX).applied_to(&before, now()).is_ok());
        for too_many in [GRANT_UNITS_MAX, u64::MAX] {
            assert_eq!(
                grant(too_many).applied_to(&once, now()),
                Err(ChangeRefused::GrantTooLarge)
            );
        }
    }

    #[test]
    fn every_change_that_ends_access_has_a_loss_and_no_other_does() {
        let (_, before) = key_of("pro");
        let units = Loss::Units {
            from: 3_000,
            to: 1_000,
        };
        let second = 1.second();
        for (change, expected) in [
            (KeyChange::Suspend, vec![Loss::Calls]),
            (KeyChange::Revoke, vec![Loss::Key]),
            (
                tier("starter"),
                vec![units.clone(), Loss::Endpoints(vec!["/b".into()])],
            ),
            (tier("wide"), vec![units]),
            (tier("unknown"), vec![]),
            (KeyChange::SetExpiry(Some(now())), vec![Loss::Calls]),
            (KeyChange::SetExpiry(Some(now() + second)), vec![]),
            (grant(1), vec![]),
            (KeyChange::SetLabel(Some("x".into())), vec![]),
            (KeyChange::SetCustomer("x".into()), vec![]),
        ] {
            assert_eq!(lost(&before, &change), expected, "{change:?}");
        }
        let (_, starter) = key_of("starter");
        assert_eq!(lost(&starter, &tier("pro")), []);
        let suspended = KeyChange::Suspend
            .applied_to(&before, now())
            .unwrap()
            .unwrap();
        assert_eq!(lost(&suspended, &KeyChange::Revoke), [Loss::Key]);
        assert_eq!(lost(&suspended, &KeyChange::Resume), []);
    }

    fn any_change() -> impl Strategy<Value = KeyChange> {
        prop_oneof![
            ("[abc]", 0u64..3).prop_map(|(secret, hours)| {
                rotate(&secret, Duration::from_secs(hours * 3_600))
            }),
            Just(KeyChange::Suspend),
            Just(KeyChange::Resume),
            Just(KeyChange::Revoke),
            Just(tier("starter")),
            Just(tier("pro")),
            (-2i64..3).prop_map(|hours| KeyChange::SetExpiry(Some(now() + hours.hours()))),
            Just(KeyChange::SetExpiry(None)),
            (1u64..9).prop_map(grant),
        ]
    }

    proptest! {
        #[test]
        fn a_key_that_loses_nothing_is_served_as_before(changes in proptest::collection::vec((any_change(), 0i64..3), 1..8)) {
            let (key, mut record) = key_of("pro");
            let mut at = now();
            let secrets = [key.digest(), KeyDigest::of(b"a"), KeyDigest::of(b"b"), KeyDigest::of(b"c")];
            for (change, hours) in changes {
                at += hours.hours();
                let Ok(Some(after)) = change.applied_to(&record, at) else { continue };
                prop_assert_eq!(after.id, record.id);
                prop_assert!(record.state != KeyState::Revoked);
                if losses(&record, &after, at, offer).is_empty() {
                    for secret in &secrets {
                        prop_assert!(record.usable(secret, at).is_err() || after.usable(secret, at).is_ok());
                    }
                    let limit = |record: &KeyRecord| record.limit_on(day(), offer(&record.tier).unwrap().daily);
                    prop_assert!(limit(&after) >= limit(&record));
                }
                record = after;
            }
        }
    }
}

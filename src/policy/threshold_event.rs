//! Near the limit: the shares of a key's daily limit that its use has reached, and the events that report them.
//!
//! An event is about a key, a day and a share, and its id consists of these only: an event that is sent again, whatever was lost,
//! has the same id. Events are signed according to the Standard Webhooks specification 1.0 (HMAC-SHA-256 over id, timestamp and
//! body), for which most languages have libraries. An event contains the key's id, never the key.

use std::fmt;
use std::num::NonZeroU8;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, Mac};
use jiff::Timestamp;
use serde::Serialize;
use sha2::Sha256;

use super::api_key::KeyId;
use super::key_record::TierName;
use super::rate_limit::QuotaStatus;

/// The header with an event's id (Standard Webhooks, "Webhook metadata").
pub const ID_HEADER: &str = "webhook-id";
/// The header with the Unix seconds of this attempt.
pub const TIMESTAMP_HEADER: &str = "webhook-timestamp";
/// The header with the signature.
pub const SIGNATURE_HEADER: &str = "webhook-signature";
/// The beginning of a signing secret.
const SECRET_PREFIX: &str = "whsec_";
/// The size of a signing secret in bytes (Standard Webhooks, "Signature scheme").
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// More shares than an operator would read.
pub const SHARES_MAX: usize = 8;

/// A share of a limit in hundredths, 1 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(NonZeroU8);

impl Share {
    /// The share of this many hundredths, 1 to 100.
    pub fn of_percent(percent: u64) -> Option<Share> {
        let percent = u8::try_from(percent)
            .ok()
            .filter(|percent| *percent <= 100)?;
        NonZeroU8::new(percent).map(Share)
    }

    /// The hundredths.
    pub fn percent(self) -> u8 {
        self.0.get()
    }

    /// Whether `used` of `limit` is at least this share.
    fn is_reached(self, used: u64, limit: u64) -> bool {
        u128::from(used) * 100 >= u128::from(limit) * u128::from(self.percent())
    }
}

/// The hundredths, such as `80`: also the label in metrics.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.percent().fmt(f)
    }
}

/// The shares that are reported: at most [`SHARES_MAX`], in ascending order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shares(Vec<Share>);

impl Shares {
    /// These shares, in any order; `None` if there are too many.
    pub fn new(mut shares: Vec<Share>) -> Option<Shares> {
        shares.sort_unstable();
        shares.dedup();
        (shares.len() <= SHARES_MAX).then_some(Shares(shares))
    }

    /// The shares that `used` of `limit` has reached, the smallest first.
    pub fn reached(&self, used: u64, limit: u64) -> &[Share] {
        let count = self
            .0
            .partition_point(|share| share.is_reached(used, limit));
        self.0.get(..count).unwrap_or_default()
    }

    /// All shares.
    pub fn iter(&self) -> impl Iterator<Item = Share> {
        self.0.iter().copied()
    }
}

/// A key has reached a share of its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThresholdEvent {
    /// The key.
    pub key: KeyId,
    /// Its tier at that time.
    pub tier: TierName,
    /// Its quota status at that time: at the share or beyond.
    pub quota_status: QuotaStatus,
    /// The share.
    pub share: Share,
    /// The time of the observation.
    pub at: Timestamp,
}

#[derive(Serialize)]
struct EventBody<'a> {
    r#type: &'static str,
    timestamp: Timestamp,
    data: EventData<'a>,
}

#[derive(Serialize)]
struct EventData<'a> {
    key_id: KeyId,
    tier: &'a TierName,
    day: jiff::civil::Date,
    share: u8,
    limit: u64,
    used: u64,
    reset: Timestamp,
}

/// The quota day in an event's id; `None` if it is not an id of ours.
pub fn date_of(id: &str) -> Option<jiff::civil::Date> {
    let mut parts = id.strip_prefix("quota_")?.split('_');
    parts.next()?.parse().ok()
}

/// An event as stored until it is delivered, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When the key was seen to have reached the share.
    pub since: Timestamp,
    /// Its id, the same for each delivery and each gateway.
    pub id: String,
    /// The delivered body: JSON.
    pub body: String,
}

impl ThresholdEvent {
    /// The event's id.
    pub fn id(&self) -> String {
        let (date, key, share) = (self.quota_status.day.date, self.key, self.share);
        format!("quota_{date}_{key}_{share}")
    }

    /// The event to be delivered.
    pub fn event(&self) -> Event {
        let day = self.quota_status.day;
        let body = EventBody {
            r#type: "quota.share_reached",
            timestamp: self.at,
            data: EventData {
                key_id: self.key,
                tier: &self.tier,
                day: day.date,
                share: self.share.percent(),
                limit: self.quota_status.limit,
                used: self.quota_status.used.unwrap_or_default(),
                reset: Timestamp::from_second(day.end).unwrap_or(self.at),
            },
        };
        Event {
            since: self.at,
            id: self.id(),
            body: serde_json::to_string(&body).unwrap_or_default(),
        }
    }
}

/// The secret that signs events. Its `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningSecret(Vec<u8>);

/// A text is not a signing secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "write whsec_ and the base64 of 24 to 64 random bytes, such as that of `openssl rand -base64 32`"
)]
pub struct SecretError;

impl SigningSecret {
    /// Parses a secret: `whsec_` and base64.
    ///
    /// # Errors
    /// If the text has another format, or the secret is too short or too long.
    pub fn parse(text: &str) -> Result<SigningSecret, SecretError> {
        let written = text.strip_prefix(SECRET_PREFIX).ok_or(SecretError)?;
        let bytes = BASE64.decode(written).map_err(|_| SecretError)?;
        if SECRET_BYTES.contains(&bytes.len()) {
            Ok(SigningSecret(bytes))
        } else {
            Err(SecretError)
        }
    }

    /// The signature of an event that is sent at `sent_seconds` (Unix seconds): `v1,` and base64.
    pub fn sign(&self, event: &Event, sent_seconds: i64) -> String {
        // Cannot fail: HMAC takes keys of every length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else {
            return String::new();
        };
        mac.update(format!("{}.{sent_seconds}.{}", event.id, event.body).as_bytes());
        format!("v1,{}", BASE64.encode(mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::calendar::Calendar;

    fn shares(percents: &[u64]) -> Shares {
        let shares = percents.iter().map(|percent| Share::of_percent(*percent));
        Shares::new(shares.map(Option::unwrap).collect()).unwrap()
    }

    fn threshold_event() -> ThresholdEvent {
        let at: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        ThresholdEvent {
            key: "4fZk09QwXy2B".parse().unwrap(),
            tier: "starter".parse().unwrap(),
            quota_status: QuotaStatus {
                limit: 1_000,
                used: Some(800),
                day: Calendar::of_zone("UTC").unwrap().day_at(at).unwrap(),
            },
            share: Share::of_percent(80).unwrap(),
            at,
        }
    }

    #[test]
    fn a_share_is_reached_at_it_and_not_one_unit_before() {
        let shares = shares(&[100, 80, 95, 80]);
        let reached = |used, limit| {
            let reached = shares.reached(used, limit).iter();
            reached.map(|share| share.percent()).collect::<Vec<_>>()
        };
        assert_eq!(reached(799, 1_000), [0; 0]);
        assert_eq!(reached(800, 1_000), [80]);
        assert_eq!(reached(949, 1_000), [80]);
        assert_eq!(reached(950, 1_000), [80, 95]);
        assert_eq!(reached(999, 1_000), [80, 95]);
        assert_eq!(reached(1_000, 1_000), [80, 95, 100]);
        assert_eq!(reached(5_000, 1_000), [80, 95, 100]);
        // If the limit is not a multiple of the share: the first whole unit that is not below it.
        assert_eq!(reached(2, 3), [0; 0]);
        assert_eq!(reached(3, 3), [80, 95, 100]);
        assert_eq!(reached(u64::MAX, u64::MAX), [80, 95, 100]);
    }

    #[test]
    fn a_share_is_one_to_a_hundred_hundredths() {
        for percent in [0, 101, 1_000, u64::MAX] {
            assert_eq!(Share::of_percent(percent), None, "{percent}");
        }
        assert!(Share::of_percent(1).is_some() && Share::of_percent(100).is_some());
        let many = (1..=9).map(|percent| Share::of_percent(percent).unwrap());
        assert_eq!(Shares::new(many.collect()), None);
    }

    #[test]
    fn an_event_is_about_a_key_a_day_and_a_share_and_bears_no_secret() {
        let event = threshold_event().event();
        assert_eq!(event.id, "quota_2026-11-21_4fZk09QwXy2B_80");
        let body: serde_json::Value = serde_json::from_str(&event.body).unwrap();
        assert_eq!(
            body,
            serde_json::json!({
                "type": "quota.share_reached",
                "timestamp": "2026-11-21T12:00:00Z",
                "data": {
                    "key_id": "4fZk09QwXy2B",
                    "tier": "starter",
                    "day": "2026-11-21",
                    "share": 80,
                    "limit": 1_000,
                    "used": 800,
                    "reset": "2026-11-22T00:00:00Z",
                },
            })
        );
        let page = include_str!("../../docs/keys-and-billing.md");
        let begin = page.find("{\"type\":").unwrap();
        let mut examples = serde_json::Deserializer::from_str(&page[begin..]).into_iter();
        let mut example: serde_json::Value = examples.next().unwrap().unwrap();
        example["data"]["key_id"] = body["data"]["key_id"].clone();
        assert_eq!(example, body, "the example of docs/keys-and-billing.md");
        let later = ThresholdEvent {
            at: "2026-11-21T13:00:00Z".parse().unwrap(),
            ..threshold_event()
        };
        assert_eq!(later.id(), threshold_event().id());
    }

    /// The example of the Standard Webhooks specification and its libraries.
    #[test]
    fn the_signature_is_that_of_the_standard() {
        let secret = SigningSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let event = Event {
            since: Timestamp::UNIX_EPOCH,
            id: "msg_p5jXN8AQM9LWM0D4loKWxJek".into(),
            body: "{\"test\": 2432232314}".into(),
        };
        assert_eq!(
            secret.sign(&event, 1_614_265_330),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
        assert_eq!(format!("{secret:?}"), "SigningSecret");
    }

    #[test]
    fn a_secret_of_another_form_is_refused() {
        for bad in [
            "",
            "whsec_",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_c2hvcnQ=",
            "whsec_!",
        ] {
            assert_eq!(SigningSecret::parse(bad), Err(SecretError), "{bad}");
        }
    }
}

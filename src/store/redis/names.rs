//! The names of all keys in Redis, and the lifetime of each.
//!
//! | Name | Type | Holds |
//! |---|---|---|
//! | `<prefix>:k:{<id>}` | hash | `ver`, `rec`: the record of a key (source of truth); `l<date>`: that day got units after it was closed |
//! | `<prefix>:a:{<id>}` | hash | the audit trail of a key: version of the record that a change made -> entry |
//! | `<prefix>:q:{<id>}:<date>` | hash | the counts of a key's day, see `charge.lua`; without expiry, as the ledger is, by which they are proved |
//! | `<prefix>:e:{<id>}:<date>` | hash | the ledger of a key's day by producer and endpoint; without expiry, dropped after `quota.retention` (see `retention`) |
//! | `<prefix>:d:<digest>` | string | the id of the key with this digest: no digest is given twice |
//! | `<prefix>:ids:{<0-15>}` | set | the ids of all keys, spread by their checksum: so loading does not walk past counts |
//! | `<prefix>:incarnation` | string | random, set by the first gateway: gone or another when the store was emptied |
//! | `<prefix>:texts:{<0-15>}` | set | the search texts of the keys of the set of ids with the same number, also outdated ones |
//! | `<prefix>:complete:{<0-15>}` | string | the incarnation whose ids and texts are all in the sets of the same number, and which is lost with them |
//! | `<prefix>:feed` | stream | every change of a record |
//! | `<prefix>:{gateways}:register` | hash | gateway id -> when a gateway was last heard of, its name, its heartbeat, see `register` |
//! | `<prefix>:{gateways}:trail` | hash | the audit trail of the register: version -> entry |
//! | `<prefix>:days` | set | dates that have counts |
//! | `<prefix>:dropped` | string | the last date whose counts were dropped after their retention |
//! | `<prefix>:complete:{<prefix>:days}` | string | set while no date is missing from that set, and lost with it |
//! | `<prefix>:{events}:claimed:<date>` | hash | event -> the node that claimed it; kept two days after the day |
//! | `<prefix>:{events}:pending` | sorted set | events to be delivered, by their time; dropped after a week |
//! | `<prefix>:{events}:courier` | string | the node that delivers them; expires |
//! | `<prefix>:write_probe` | hash | written to find out whether Redis takes writes; expires after 5 s |
//! | `<prefix>:zone` | string | the zone of the quota days |
//! | `<prefix>:zone:{<0-15>}` | string | in a cluster: a copy of it in the slot of the set of ids with the same number, to be read while the master with the first is away |
//!
//! `{<id>}` is a Redis Cluster hash tag: all names of one API key are in one slot.

use jiff::civil::Date;

use crate::policy::api_key::{KeyDigest, KeyId, os_entropy};
use crate::store::Keeping;

/// The number of sets with the ids of all keys: enough that 100,000 keys are read in pages, and that a cluster spreads them.
pub const ID_SETS: u32 = 16;

/// A name that nothing else has: 96 random bits in hexadecimal digits.
pub fn drawn() -> String {
    let mut random = [0; 12];
    os_entropy(&mut random);
    random.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A text as a pattern of Redis that matches nothing else.
pub fn escaped(text: &str) -> String {
    let letters = text.chars().flat_map(|letter| {
        let special = matches!(letter, '*' | '?' | '[' | ']' | '\\' | '^');
        special.then_some('\\').into_iter().chain([letter])
    });
    letters.collect()
}

/// The names under one prefix.
#[derive(Debug, Clone)]
pub struct Names {
    prefix: String,
    /// When days are closed, and when they are dropped.
    pub keeping: Keeping,
}

impl Names {
    /// Names that begin with `prefix`.
    pub fn new(prefix: &str, keeping: Keeping) -> Names {
        Names {
            prefix: prefix.to_owned(),
            keeping,
        }
    }

    /// The record of a key.
    pub fn record(&self, id: KeyId) -> String {
        // Without a format, for a charge needs it.
        [&self.prefix, ":k:{", id.as_str(), "}"].concat()
    }

    /// A pattern that all records match.
    pub fn records(&self) -> String {
        format!("{}:k:{{*}}", escaped(&self.prefix))
    }

    /// The key with the record of this name.
    pub fn key_of_record(&self, name: &str) -> Option<KeyId> {
        let id = name.strip_prefix(&self.prefix)?.strip_prefix(":k:{")?;
        id.strip_suffix('}')?.parse().ok()
    }

    /// The counts of a key's day.
    pub fn counts(&self, id: KeyId, date: Date) -> String {
        [&self.prefix, ":q:{", id.as_str(), "}:", &date.to_string()].concat()
    }

    /// The first second of the day and of the next one, if this is the field of a key's counts that holds the units used (`charge.lua`).
    pub fn boundaries_in(field: &str) -> Option<(i64, i64)> {
        let (start, end) = field.strip_prefix('t')?.split_once('-')?;
        Some((start.parse().ok()?, end.parse().ok()?))
    }

    /// The field of a key's record that marks a day with units that arrived after it was closed.
    pub fn late_mark(date: Date) -> String {
        format!("l{date}")
    }

    /// The day that a field of a key's record marks as one with such units.
    pub fn day_marked_late(field: &str) -> Option<Date> {
        field.strip_prefix('l')?.parse().ok()
    }

    /// The number of the set of ids that contains this one.
    pub fn id_set(id: KeyId) -> u32 {
        crc32fast::hash(id.as_bytes()) % ID_SETS
    }

    /// Set if no date is missing from the set of [`Names::days`]; in the same slot, so that a master loses both together.
    pub fn days_complete(&self) -> String {
        format!("{}:complete:{{{}}}", self.prefix, self.days())
    }

    /// The copies of the zone in a cluster.
    pub fn zone_copies(&self) -> impl Iterator<Item = String> {
        (0..ID_SETS).map(|set| format!("{}:zone:{{{set}}}", self.prefix))
    }
}

/// Methods of [`Names`], each with its text after the prefix.
macro_rules! names {
    ($($(#[$doc:meta])* $name:ident($($part:ident: $kind:ty),*) = $text:literal;)*) => {
        impl Names {
            $($(#[$doc])*
            pub fn $name(&self $(, $part: $kind)*) -> String {
                format!("{}:{}", self.prefix, format_args!($text))
            })*
        }
    };
}

names! {
    /// The audit trail of a key.
    audit_trail(id: KeyId) = "a:{{{id}}}";
    /// The ledger of a key's day.
    ledger(id: KeyId, date: Date) = "e:{{{id}}}:{date}";
    /// The claims of a day's events.
    claims(date: Date) = "{{events}}:claimed:{date}";
    /// The events that await delivery.
    events() = "{{events}}:pending";
    /// The node that delivers the events.
    courier() = "{{events}}:courier";
    /// The holder of a digest.
    digest(digest: &KeyDigest) = "d:{digest}";
    /// One of the [`ID_SETS`] sets of ids.
    ids(set: u32) = "ids:{{{set}}}";
    /// The ids, each with the search text of its key, of one of the sets of ids; in the same slot as that set.
    search_texts(set: u32) = "texts:{{{set}}}";
    /// The incarnation, which changes when the store is emptied.
    incarnation() = "incarnation";
    /// The incarnation whose ids and texts are complete in one of the [`ID_SETS`] sets of each; in the same slot as these.
    // Not `indexed`: 0.1.0 marked sets without search texts so.
    complete(set: u32) = "complete:{{{set}}}";
    /// The changes of records.
    feed() = "feed";
    /// The register of gateways: the live ones, and those that stopped without signing off.
    register() = "{{gateways}}:register";
    /// The audit trail of the register.
    gateway_audit_trail() = "{{gateways}}:trail";
    /// The dates that have counts.
    days() = "days";
    /// The last date whose counts were dropped.
    dropped() = "dropped";
    /// Written to check that Redis accepts writes.
    probe() = "write_probe";
    /// The zone.
    zone() = "zone";
}

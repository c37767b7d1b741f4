//! The meaning of the rows of a file of keys, and every reason against importing them: in the row itself, in the rows before it and
//! in the store.
//!
//! Pure: the store's keys, the configuration and the time are arguments. No problem repeats a key or a digest.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::Date;

use super::file::or_problems;
use super::rows::{Fields, ImportRow};
use crate::cli::keys::named::tier_named;
use crate::cli::output::{parse_date, parse_name};
use crate::config::Config;
use crate::policy::api_key::{self, KEY_CHARS_MAX, KEY_CHARS_MIN, KeyDigest, KeyId, KeyPrefix};
use crate::policy::clock_trust::DIFFERENCE_MAX;
use crate::policy::key_record::{
    ENDED_MAX, KeyRecord, KeyState, LastChange, PreviousDigest, TierName,
};
use crate::policy::lifecycle::GRANT_UNITS_MAX;

/// The most keys of one file, all of which are held in memory.
pub(super) const KEYS_MAX: usize = 1_000_000;

/// A mistake in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImportProblem {
    /// The line on which the row begins.
    pub(super) line: u64,
    /// The mistake and how to correct it.
    pub(super) text: String,
}

/// A row that can be imported.
#[derive(Debug)]
pub(super) struct ImportableKey {
    /// The line on which the row begins.
    pub(super) line: u64,
    /// The record to add.
    pub(super) record: KeyRecord,
    /// The origin of its id.
    pub(super) id: GivenId,
}

/// The origin of a key's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GivenId {
    /// The file, or the key itself if it was issued by a gateway like this.
    Given,
    /// Generated for this import.
    Made,
    /// The store, which already has the key.
    Stored,
}

/// The values that rows are checked against.
pub(super) struct Setting<'a> {
    pub(super) config: &'a Config,
    /// The store's time.
    pub(super) now: Timestamp,
    /// The audit entry of every imported record.
    pub(super) change: Arc<LastChange>,
}

/// Checks the rows of one file, in their order.
pub(super) struct Checker<'a> {
    setting: Setting<'a>,
    stored_ids: HashSet<KeyId>,
    /// The key of which a secret is valid, unless its state or subscription forbids it.
    owners: HashMap<KeyDigest, KeyId>,
    /// The key that has a secret, or had it before its rotations.
    holders: HashMap<KeyDigest, KeyId>,
    lines_of_ids: HashMap<KeyId, u64>,
    lines_of_digests: HashMap<KeyDigest, u64>,
    /// New keys that state secrets as ended, by their lines; they are checked against the whole file.
    with_ended: Vec<(u64, KeyRecord)>,
    keys: Vec<ImportableKey>,
    problems: Vec<ImportProblem>,
}

impl<'a> Checker<'a> {
    /// A check against a store with the keys `stored`.
    pub(super) fn new(setting: Setting<'a>, stored: &[KeyRecord]) -> Checker<'a> {
        let had = stored.iter();
        let had = had.flat_map(|record| record.ended.iter().map(|digest| (*digest, record.id)));
        // A secret that has ended as one key's may be another's: the later entry counts.
        let has = stored.iter();
        let has = has.flat_map(|record| record.digests().map(|digest| (digest, record.id)));
        let holders = had.chain(has).collect();
        let valid = |record: &&KeyRecord| record.state != KeyState::Revoked;
        let owners = stored.iter().filter(valid).flat_map(|record| {
            let previous = record.previous.as_ref();
            let previous = previous.filter(|previous| setting.now < previous.until);
            let digests = [record.digest]
                .into_iter()
                .chain(previous.map(|one| one.digest));
            digests.map(|digest| (digest, record.id))
        });
        let owners = owners.collect();
        Checker {
            setting,
            stored_ids: stored.iter().map(|record| record.id).collect(),
            holders,
            owners,
            lines_of_ids: HashMap::new(),
            lines_of_digests: HashMap::new(),
            with_ended: Vec::new(),
            keys: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Checks the next row; `make_id` generates an id.
    pub(super) fn take(&mut self, line: u64, row: ImportRow, make_id: impl FnOnce() -> KeyId) {
        let mut reading = RowReading::default();
        let key = match row {
            Ok(fields) => {
                reading.fields = fields;
                self.read(&mut reading, make_id)
            }
            Err(problems) => {
                reading.problems = problems;
                None
            }
        };
        let RowReading {
            mut problems,
            digests,
            id,
            ..
        } = reading;
        // A later row must not repeat a wrong one either.
        for digest in digests {
            if let Some(before) = self.lines_of_digests.insert(digest, line) {
                problems.push(format!("the row has the same key as line {before}"));
            }
        }
        let key = key.map(|(record, id)| self.place(line, record, id, &mut problems));
        let id = key.as_ref().map(|key| key.record.id).or(id);
        if let Some(before) = id.and_then(|id| self.lines_of_ids.insert(id, line)) {
            problems.push(format!("the row has the same id as line {before}"));
        }
        if problems.is_empty() && self.keys.len() == KEYS_MAX {
            problems.push(format!("a file may have at most {KEYS_MAX} keys: split it"));
        }
        self.keys.extend(key.filter(|_| problems.is_empty()));
        let problems = problems.into_iter();
        let problems = problems.map(|text| ImportProblem { line, text });
        self.problems.extend(problems);
    }

    /// The keys of the file, if it has no mistakes.
    pub(super) fn finish(mut self) -> Result<Vec<ImportableKey>, Vec<ImportProblem>> {
        let valid = self.with_ended.iter().filter_map(|(line, record)| {
            let (line, text) = (*line, self.valid_although_ended(record)?);
            Some(ImportProblem { line, text })
        });
        let valid = Vec::from_iter(valid);
        self.problems.extend(valid);
        self.problems.sort_by_key(|problem| problem.line);
        or_problems(self.keys, self.problems)
    }

    /// The record of a row, if the row itself has no problems.
    fn read(
        &self,
        row: &mut RowReading,
        make_id: impl FnOnce() -> KeyId,
    ) -> Option<(KeyRecord, GivenId)> {
        let secret = self.secret(&row.fields);
        let (digest, own_id) = row.keep(secret).unzip();
        let own_id = own_id.flatten();
        let customer = row.required("customer", parse_name);
        let label = row.optional("label", parse_name);
        let tier = row.required("tier", |text| self.tier(text));
        let state = row.optional("state", state);
        let expires = row.optional("expires", |text| self.expires(text));
        let grants = row.optional("grants", grants);
        let created = row.optional("created", |text| self.created(text));
        let previous = row.previous();
        let ended = row.optional("ended_digests", ended);
        let id = row.optional("id", id);
        if let (Some(id), Some(own)) = (id, own_id)
            && id != own
        {
            row.problems.push(format!(
                "id: the key contains the id {own}, but the row has {id}: leave id empty"
            ));
        }
        let former = previous.as_ref().map(|previous| previous.digest);
        row.digests = digest.into_iter().chain(former).collect();
        row.id = id.or(own_id);
        let (Some(digest), Some(customer), Some(tier), true) =
            (digest, customer, tier, row.problems.is_empty())
        else {
            return None;
        };
        let (id, given) = match row.id {
            Some(id) => (id, GivenId::Given),
            None => (make_id(), GivenId::Made),
        };
        let created = created.unwrap_or(self.setting.now);
        let record = KeyRecord {
            id,
            customer: customer.into(),
            label: label.map(Into::into),
            tier,
            state: state.unwrap_or(KeyState::Active),
            expires,
            digest,
            previous,
            ended: ended.unwrap_or_default(),
            grants: grants.unwrap_or_default().into(),
            created,
            updated: created,
            version: 0,
            last_change: self.setting.change.clone(),
        };
        Some((record, given))
    }

    /// The digest of a key that is given by value or by digest, and the id in a key that was issued by a gateway like this.
    fn secret(&self, fields: &Fields) -> Result<(KeyDigest, Option<KeyId>), String> {
        match (fields.get("key"), fields.get("digest")) {
            (Some(_), Some(_)) => {
                Err("the row has a key and a digest: leave one of them empty".into())
            }
            (None, None) => Err(
                "the row has neither a key nor a digest: an export has digests only \
                with --with-digests"
                    .into(),
            ),
            (None, Some(text)) => digest(text)
                .map(|digest| (digest, None))
                .map_err(|problem| format!("digest: {problem}")),
            (Some(key), None) => {
                let prefix = &self.setting.config.keys.prefix;
                let digest = api_key::parse_presented(key.as_bytes(), prefix);
                let digest = digest.map_err(|_| key_problem(key, prefix))?;
                let rest = key.strip_prefix(prefix.as_str());
                if rest.is_none_or(|rest| !rest.starts_with('_')) {
                    return Ok((digest, None));
                }
                // A key made elsewhere may begin so too, but a part of a key issued here is more likely.
                match api_key::issued_id(key) {
                    Ok(id @ Some(_)) => Ok((digest, id)),
                    Ok(None) | Err(_) => Err(key_problem(key, prefix)),
                }
            }
        }
    }

    fn tier(&self, text: &str) -> Result<TierName, String> {
        // The message does not repeat the text, which may be a key.
        tier_named(self.setting.config, text)
            .map_err(|names| format!("the tier is not configured; {names}"))
    }

    /// The time of issue. A key is billed from it on, so a later one than the present would leave days unbilled. One by a clock that
    /// is a little ahead is the present.
    fn created(&self, text: &str) -> Result<Timestamp, String> {
        let (created, now) = (instant(text)?, self.setting.now);
        match created.duration_since(now) <= DIFFERENCE_MAX {
            true => Ok(created.min(now)),
            false => Err("it is in the future; leave it empty for the present".to_owned()),
        }
    }

    /// The first instant after a subscription: a given instant, or the end of its last day.
    fn expires(&self, text: &str) -> Result<Timestamp, String> {
        if let Ok(last_day) = parse_date(text) {
            let day = self.setting.config.calendar.day_of(last_day);
            let day = day.map_err(|error| error.to_string())?;
            return Timestamp::from_second(day.end).map_err(|error| error.to_string());
        }
        text.parse().map_err(|_| {
            "write the last day, such as 2027-01-31, or the instant of its end, such as \
             2027-02-01T00:00:00Z"
                .to_owned()
        })
    }

    /// Compares a record with the keys of the store, which may have its key under another id.
    fn place(
        &mut self,
        line: u64,
        mut record: KeyRecord,
        mut id: GivenId,
        problems: &mut Vec<String>,
    ) -> ImportableKey {
        match self.holders.get(&record.digest) {
            Some(holder) if id == GivenId::Given && *holder != record.id => problems.push(format!(
                "the key is already in the store, under the id {holder}"
            )),
            Some(holder) => (record.id, id) = (*holder, GivenId::Stored),
            None if self.stored_ids.contains(&record.id) => problems.push(format!(
                "the id {} belongs to another key in the store",
                record.id
            )),
            None => {}
        }
        let previous = record.previous.as_ref();
        let others = previous.and_then(|previous| self.holders.get(&previous.digest));
        if let Some(holder) = others.filter(|holder| **holder != record.id) {
            problems.push(format!(
                "the previous key is already in the store, under the id {holder}"
            ));
        }
        if id != GivenId::Stored && !record.ended.is_empty() {
            self.with_ended.push((line, record.clone()));
        }
        ImportableKey { line, record, id }
    }

    /// Why secrets that have ended, by the row of this record, are valid all the same.
    fn valid_although_ended(&self, record: &KeyRecord) -> Option<String> {
        let is_own = |digest: &KeyDigest| record.digests().any(|own| own == *digest);
        if record.ended.iter().any(is_own) {
            return Some("ended_digests: one is that of the row's own key or previous key".into());
        }
        // A file that has the owner too states both, and may be imported again.
        let is_other = |digest: &&KeyDigest| !self.lines_of_digests.contains_key(*digest);
        let mut ended = record.ended.iter().filter(is_other);
        let owner = ended.find_map(|digest| self.owners.get(digest))?;
        Some(format!(
            "ended_digests: one is the secret of the key {owner} in the store: rotate that key without an overlap or revoke it first"
        ))
    }
}

/// The reason why a key is refused.
fn key_problem(key: &str, prefix: &KeyPrefix) -> String {
    if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return "key: the key may have visible ASCII characters only".to_owned();
    }
    if key.len() < KEY_CHARS_MIN {
        return format!(
            "key: the key is shorter than {KEY_CHARS_MIN} characters and could be guessed"
        );
    }
    if key.len() > KEY_CHARS_MAX {
        return format!("key: the key is longer than {KEY_CHARS_MAX} characters");
    }
    format!(
        "key: the key begins with {}_ like a key issued here, but is not valid: it is mistyped. \
         Import a key made elsewhere that begins so by its digest",
        prefix.as_str()
    )
}

/// A row's fields, and what is known of it so far.
#[derive(Default)]
struct RowReading {
    fields: Fields,
    problems: Vec<String>,
    /// The digests of its key, and its id, which other rows might repeat.
    digests: Vec<KeyDigest>,
    id: Option<KeyId>,
}

impl RowReading {
    fn keep<T>(&mut self, read: Result<T, String>) -> Option<T> {
        read.map_err(|problem| self.problems.push(problem)).ok()
    }

    /// An optional field; `None` if it is missing or wrong.
    fn optional<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let read = parse(self.fields.get(name)?);
        self.keep(read.map_err(|problem| format!("{name}: {problem}")))
    }

    fn required<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        if !self.fields.contains_key(name) {
            self.problems.push(format!("{name}: the field is missing"));
        }
        self.optional(name, parse)
    }

    /// The secret before a rotation.
    fn previous(&mut self) -> Option<Box<PreviousDigest>> {
        let digest = self.optional("previous_digest", digest);
        let until = self.optional("previous_until", instant);
        let both = ["previous_digest", "previous_until"].map(|name| self.fields.contains_key(name));
        if both[0] != both[1] {
            let problem = "previous_digest and previous_until: write both or neither";
            self.problems.push(problem.to_owned());
        }
        Some(Box::new(PreviousDigest {
            digest: digest?,
            until: until?,
        }))
    }
}

fn digest(text: &str) -> Result<KeyDigest, String> {
    text.parse()
        .map_err(|_| "write the 64 hexadecimal characters of a SHA-256".to_owned())
}

fn ended(text: &str) -> Result<Box<[KeyDigest]>, String> {
    let digests: Box<[KeyDigest]> = text
        .split_ascii_whitespace()
        .map(digest)
        .collect::<Result<_, _>>()?;
    match digests.len() <= ENDED_MAX {
        true => Ok(digests),
        false => Err(format!("a key remembers at most {ENDED_MAX}")),
    }
}

fn id(text: &str) -> Result<KeyId, String> {
    text.parse()
        .map_err(|error: api_key::KeyError| error.to_string())
}

fn state(text: &str) -> Result<KeyState, String> {
    KeyState::of_str(text).ok_or_else(|| "write active, suspended or revoked".to_owned())
}

fn instant(text: &str) -> Result<Timestamp, String> {
    text.parse()
        .map_err(|_| "write an instant such as 2027-02-01T00:00:00Z".to_owned())
}

/// Grants as `2026-11-21=500 2026-11-28=200`.
fn grants(text: &str) -> Result<BTreeMap<Date, u64>, String> {
    let mut grants = BTreeMap::new();
    for part in text.split_ascii_whitespace() {
        let day = part.split_once('=').and_then(|(date, units)| {
            let units = units.parse::<u64>().ok();
            let units = units.filter(|units| (1..=GRANT_UNITS_MAX).contains(units));
            Some((parse_date(date).ok()?, units?))
        });
        let Some((date, units)) = day else {
            return Err(format!(
                "write dates with units from 1 to {GRANT_UNITS_MAX}, such as 2026-11-21=500"
            ));
        };
        if grants.insert(date, units).is_some() {
            return Err(format!("{date} is given twice"));
        }
    }
    Ok(grants)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::keys::transfer::file::FileFormat;
    use crate::cli::keys::transfer::rows;
    use crate::policy::api_key::{ApiKey, os_entropy};
    use crate::policy::key_record::Action;
    use crate::policy::key_record::tests::key_of;

    const EXTERNAL: &str = "acme-live-0123456789abcdef";

    fn now() -> Timestamp {
        "2026-11-21T12:00:00Z".parse().unwrap()
    }

    fn checked(stored: &[KeyRecord], csv: &str) -> Result<Vec<ImportableKey>, Vec<ImportProblem>> {
        let text = include_str!("../../../../gateway.yaml").replace("UTC", "America/New_York");
        let config = Config::parse("g", &text, &|_| None).unwrap();
        let setting = Setting {
            config: &config,
            now: now(),
            change: LastChange::first(Action::Import, "ann").into(),
        };
        let mut checker = Checker::new(setting, stored);
        rows::read(FileFormat::Csv, csv.as_bytes(), |line, row| {
            checker.take(line, row, || KeyId::generate(&mut os_entropy));
        })
        .unwrap();
        checker.finish()
    }

    fn problems(stored: &[KeyRecord], csv: &str) -> Vec<(u64, String)> {
        let reported = checked(stored, csv).map(|keys| keys.len()).unwrap_err();
        reported
            .into_iter()
            .map(|problem| (problem.line, problem.text))
            .collect()
    }

    #[test]
    fn a_row_needs_a_key_or_a_digest_a_customer_and_a_tier() {
        let digest = KeyDigest::of(EXTERNAL.as_bytes());
        let csv = format!("key,digest,customer,tier\n{EXTERNAL},,Acme,pro\n");
        let by_value = checked(&[], &csv).unwrap().remove(0);
        let csv = format!("key,digest,customer,tier\n,{digest},Acme,pro\n");
        let by_digest = checked(&[], &csv).unwrap().remove(0);
        for key in [&by_value, &by_digest] {
            assert_eq!(key.record.digest, digest);
            assert_eq!((key.line, key.id), (2, GivenId::Made));
            assert_eq!(key.record.state, KeyState::Active);
            assert_eq!((key.record.created, key.record.expires), (now(), None));
            assert_eq!(key.record.last_change.who, "ann");
        }
        assert_ne!(by_value.record.id, by_digest.record.id);
    }

    #[test]
    fn every_field_of_a_row_is_read() {
        let (old, new) = (KeyDigest::of(b"old"), KeyDigest::of(b"new"));
        let csv = format!(
            "id,digest,customer,label,tier,state,expires,grants,created,previous_digest,previous_until\n\
             4fZk09QwXy2B,{new},\"Acme, Ltd\",live,starter,suspended,2027-01-31,2026-11-21=5 2026-11-28=7,\
             2020-02-29T12:00:00.5Z,{old},2026-12-01T00:00:00Z\n"
        );
        let key = checked(&[], &csv).unwrap().remove(0);
        let record = key.record;
        assert_eq!(key.id, GivenId::Given);
        assert_eq!(record.id.as_str(), "4fZk09QwXy2B");
        assert_eq!(
            (&*record.customer, record.label.as_deref()),
            ("Acme, Ltd", Some("live"))
        );
        assert_eq!(
            (record.tier.as_str(), record.state),
            ("starter", KeyState::Suspended)
        );
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(record.expires, Some(at("2027-02-01T05:00:00Z")));
        assert_eq!(record.created, at("2020-02-29T12:00:00.5Z"));
        let grants: Vec<u64> = record.grants.values().copied().collect();
        assert_eq!(grants, [5, 7]);
        let previous = record.previous.unwrap();
        assert_eq!(
            (previous.digest, previous.until),
            (old, at("2026-12-01T00:00:00Z"))
        );
    }

    #[test]
    fn a_key_cannot_have_been_created_in_the_future() {
        let row =
            |created: &str| format!("key,customer,tier,created\n{EXTERNAL},Acme,pro,{created}\n");
        let created = |text| checked(&[], &row(text)).unwrap().remove(0).record.created;
        assert_eq!(created("2026-11-21T12:00:00Z"), now());
        // The clock of another machine may be a little ahead.
        assert_eq!(created("2026-11-21T12:00:02Z"), now());
        let reported = problems(&[], &row("2026-11-21T12:00:02.001Z"));
        assert_eq!(reported.len(), 1);
        assert!(reported[0].1.starts_with("created: it is in the future"));
    }

    #[test]
    fn every_mistake_of_every_row_is_reported_with_its_line() {
        let csv = "key,digest,id,customer,label,tier,state,expires,grants,created,previous_until\n\
            short,,,Acme,,pro,,,,,\n\
            ,abc,x,,\u{7},gold,gone,soon,2026-11-21,then,2027-01-01T00:00:00Z\n\
            ,,,Acme,,pro,,,,,\n\
            acme-live-0123456789abcdef,00,,Acme,,pro,,,,,\n\
            fpd_4fZk09QwXy2B_mistyped00000000000000000000000000000,,,Acme,,pro,,,,,\n\
            acme live 0123456789abcdef,,,Acme,,pro,,,2026-11-21=0,,\n";
        let reported = problems(&[], csv);
        let lines: Vec<u64> = reported.iter().map(|(line, _)| *line).collect();
        let text: Vec<String> = reported
            .iter()
            .map(|(line, text)| format!("{line} {text}"))
            .collect();
        let text = text.join("\n");
        for expected in [
            "2 key: the key is shorter than 24",
            "3 digest: write the 64",
            "3 customer: the field is missing",
            "3 label: it has control",
            "3 tier: the tier is not configured; the configured tiers are starter, pro",
            "3 state: write active",
            "3 expires: write the last day",
            "3 grants: write dates",
            "3 created: write an instant",
            "3 id: a key id has 12",
            "3 previous_digest and previous_until: write both",
            "4 the row has neither a key nor a digest",
            "5 the row has a key and a digest",
            "6 key: the key begins with fpd_",
            "7 key: the key may have",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        assert_eq!(lines.len(), 16, "{text}");
        for secret in ["short,", "acme-live", "acme live", "mistyped0"] {
            assert!(!text.contains(secret), "{text}");
        }
    }

    #[test]
    fn rows_that_repeat_a_key_or_an_id_are_reported_with_both_lines() {
        let digest = KeyDigest::of(EXTERNAL.as_bytes());
        let other = KeyDigest::of(b"other");
        let csv = format!(
            "id,key,digest,customer,tier\n\
             4fZk09QwXy2B,{EXTERNAL},,Acme,pro\n\
             ,,{digest},Acme,pro\n\
             4fZk09QwXy2B,,{other},Acme,pro\n"
        );
        assert_eq!(
            problems(&[], &csv),
            [
                (3, "the row has the same key as line 2".to_owned()),
                (4, "the row has the same id as line 2".to_owned()),
            ]
        );
    }

    #[test]
    fn a_row_that_repeats_a_wrong_one_or_is_wrong_itself_is_reported_with_both_lines() {
        let digest = KeyDigest::of(EXTERNAL.as_bytes());
        let csv = format!(
            "id,key,digest,customer,tier\n\
             4fZk09QwXy2B,{EXTERNAL},,Acme,gold\n\
             ,,{digest},Acme,pro\n\
             4fZk09QwXy2B,,{digest},,pro\n"
        );
        let reported = problems(&[], &csv);
        let has = |line: u64, text: &str| reported.contains(&(line, text.to_owned()));
        assert!(has(3, "the row has the same key as line 2"), "{reported:?}");
        assert!(has(4, "the row has the same key as line 3"), "{reported:?}");
        assert!(has(4, "the row has the same id as line 2"), "{reported:?}");
        assert!(has(4, "customer: the field is missing"), "{reported:?}");
    }

    #[test]
    fn a_key_that_the_store_has_keeps_its_id_and_another_with_its_id_is_reported() {
        let (_, mut stored) = key_of("pro");
        let previous = KeyDigest::of(b"previous");
        stored.previous = Some(Box::new(PreviousDigest {
            digest: previous,
            until: now(),
        }));
        let ended = KeyDigest::of(b"ended");
        stored.ended = [ended].into();
        let stored = [stored];
        let [one] = &stored;
        for digest in [one.digest, previous, ended] {
            let csv = format!("digest,customer,tier\n{digest},Acme,pro\n");
            let key = checked(&stored, &csv).unwrap().remove(0);
            assert_eq!((key.record.id, key.id), (one.id, GivenId::Stored));
        }
        let csv = format!(
            "id,digest,customer,tier\n4fZk09QwXy2B,{},Acme,pro\n{},{},Acme,pro\n",
            one.digest,
            one.id,
            KeyDigest::of(b"new")
        );
        let reported = problems(&stored, &csv);
        assert_eq!(
            reported,
            [
                (
                    2,
                    format!("the key is already in the store, under the id {}", one.id)
                ),
                (
                    3,
                    format!("the id {} belongs to another key in the store", one.id)
                ),
            ]
        );
    }

    #[test]
    fn a_key_issued_by_a_gateway_like_this_keeps_the_id_that_is_in_it() {
        let key = ApiKey::generate(&KeyPrefix::default(), &mut os_entropy);
        let csv = format!("key,customer,tier\n{},Acme,pro\n", key.reveal());
        let read = checked(&[], &csv).unwrap().remove(0);
        assert_eq!((read.record.id, read.id), (key.id(), GivenId::Given));
        let csv = format!(
            "id,key,customer,tier\n4fZk09QwXy2B,{},Acme,pro\n",
            key.reveal()
        );
        let reported = problems(&[], &csv);
        assert!(
            reported[0].1.starts_with("id: the key contains the id"),
            "{reported:?}"
        );
    }
}

//! The four ledgers and their comparison.
//!
//! The calls of the clients, the gateway's access log, the counts of the store and the requests that the upstream received
//! are four accounts of the same requests, kept by different parties. [`Ledgers::disagreements`] is a pure function over
//! them: it knows the rules of the contract (which requests reach the upstream, which are charged or refunded, what must
//! never be written) and nothing of processes, so that its own tests can show that it fails when it must.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::client::{Ending, Entry};
use crate::gateway::{EndpointSpec, TierSpec};
use crate::upstream::{Outcome, Recorded};

/// A run of this many characters of a secret is a leak.
const LEAK_CHARS: usize = 16;
/// Seconds of half a day.
const HALF_DAY_SECONDS: u64 = 43_200;
/// The most differences that are reported; more only hide the first.
const DIFFERENCES_MAX: usize = 25;

/// An API key as `keys issue` printed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedKey {
    /// The public id.
    pub id: String,
    /// The whole key.
    pub key: String,
    /// The tier it was issued for.
    pub tier: String,
}

impl AsRef<str> for IssuedKey {
    fn as_ref(&self) -> &str {
        &self.key
    }
}

/// A line of the access log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessLine {
    /// `request_id`.
    pub request_id: String,
    /// `key_id`.
    pub key_id: Option<String>,
    /// Whether `cause` is the tier of the key, which is not configured.
    pub is_untiered: bool,
    /// `method`.
    pub method: String,
    /// `path`.
    pub path: String,
    /// `status`; 0 if none was sent.
    pub status: u16,
    /// `outcome`.
    pub outcome: String,
    /// `units`.
    pub units: u64,
    /// `refunded`.
    pub refunded: bool,
}

impl AccessLine {
    /// Reads a line from its JSON; errs with the reason if it is not a line.
    pub fn read(value: &Value) -> Result<AccessLine, String> {
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let line = AccessLine {
            request_id: text("request_id").ok_or("no request_id")?,
            key_id: text("key_id"),
            is_untiered: text("cause").is_some_and(|cause| cause.contains("has no tier")),
            method: text("method").ok_or("no method")?,
            path: text("path").ok_or("no path")?,
            status: value
                .get("status")
                .and_then(Value::as_u64)
                .and_then(|status| u16::try_from(status).ok())
                .unwrap_or_default(),
            outcome: text("outcome").ok_or("no outcome")?,
            units: value
                .get("units")
                .and_then(Value::as_u64)
                .ok_or("no units")?,
            refunded: value
                .get("refunded")
                .and_then(Value::as_bool)
                .ok_or("no refunded")?,
        };
        Ok(line)
    }

    fn net_units(&self) -> u64 {
        if self.refunded { 0 } else { self.units }
    }
}

/// The store's numbers for one endpoint of a [`UsageRow`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointTotals {
    /// Requests charged.
    pub requests: u64,
    /// Units charged.
    pub charged: u64,
    /// Units refunded.
    pub refunded: u64,
    /// Requests refused with 403.
    pub refused_tier: u64,
    /// Requests refused with 429 because of the daily quota.
    pub refused_quota: u64,
    /// Requests refused with 429 because of the tier's burst.
    pub refused_burst: u64,
    /// Requests refused with 429 because of the tier's concurrency.
    pub refused_concurrent: u64,
}

/// The store's numbers for one key and day.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageRow {
    /// The quota day, `2026-11-21`.
    pub date: String,
    /// The key id.
    pub key: String,
    /// Units that count against the quota.
    pub used: u64,
    /// By endpoint pattern.
    pub endpoints: BTreeMap<String, EndpointTotals>,
}

/// The path at which a key reads its own usage.
const OWN_USAGE: &str = "/api/v1/usage";

/// Reads the output of `touchline usage --output json`: the only place that knows its format.
pub fn read_usage(text: &str) -> Result<Vec<UsageRow>, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let days = value.get("days").and_then(Value::as_array);
    let rows = days.ok_or("no days")?;
    rows.iter()
        .map(|row| {
            let text = |name: &str| Some(row.get(name)?.as_str()?.to_owned());
            let endpoints = row.get("endpoints").and_then(Value::as_object);
            let totals = |value: &Value| {
                let number = |name| value.get(name).and_then(Value::as_u64).unwrap_or_default();
                EndpointTotals {
                    requests: number("requests"),
                    charged: number("charged"),
                    refunded: number("refunded"),
                    refused_tier: number("refused_tier"),
                    refused_quota: number("refused_quota"),
                    refused_burst: number("refused_burst"),
                    refused_concurrent: number("refused_concurrent"),
                }
            };
            Ok(UsageRow {
                date: text("date").ok_or_else(|| format!("no date in {row}"))?,
                key: text("key").ok_or_else(|| format!("no key in {row}"))?,
                used: row
                    .get("used")
                    .and_then(Value::as_u64)
                    .ok_or_else(|| format!("no used in {row}"))?,
                endpoints: endpoints
                    .ok_or_else(|| format!("no endpoints in {row}"))?
                    .iter()
                    .map(|(pattern, value)| (pattern.clone(), totals(value)))
                    .collect(),
            })
        })
        .collect()
}

/// The expected exceptions of a test from the rules, and their reasons. The default allows none.
#[derive(Debug, Clone, Default)]
pub struct Allowances {
    /// An idempotent request may have reached the upstream before, on a connection that died under it; any request, if the upstream
    /// reported that it has not processed it.
    pub retries: bool,
    /// A request that nothing depends on but its answer may have reached other servers before, which broke it off or reported that
    /// they are unavailable.
    pub other_servers: bool,
    /// A gateway was killed: the results of its requests in flight, and of its pending writes, are unknown.
    pub gateway_killed: bool,
    /// Calls that ended without an answer although no gateway was killed.
    pub failed_calls: bool,
    /// Ids of hung-up calls that are refunded, since the upstream was slow.
    pub refunded_hang_ups: BTreeSet<String>,
    /// Ids of answers that were cut and stay charged, since the gateway was waiting for the client.
    pub charged_cuts: BTreeSet<String>,
    /// Units a day of key ids with grants or a changed tier.
    pub limits: BTreeMap<String, u64>,
    /// Other clients called too, with keys that were never issued, and kept no ledger: lines of refused requests that cost nothing.
    pub strangers: bool,
    /// Tiers that are not enforced: their keys reach every endpoint.
    pub shadow_tiers: BTreeSet<String>,
}

/// The four accounts, and the facts that are needed to judge them.
#[derive(Debug, Clone, Default)]
pub struct Ledgers {
    /// The calls of the clients.
    pub client: Vec<Entry>,
    /// The access logs of the gateways.
    pub access: Vec<AccessLine>,
    /// The counts of the store.
    pub usage: Vec<UsageRow>,
    /// The requests that the upstream received.
    pub upstream: Vec<Recorded>,
    /// Everything else that was written anywhere: name and bytes.
    pub artefacts: Vec<(String, Vec<u8>)>,
    /// The keys that were issued.
    pub keys: Vec<IssuedKey>,
    /// The tiers.
    pub tiers: Vec<TierSpec>,
    /// The endpoints.
    pub endpoints: Vec<EndpointSpec>,
}

/// The units of an entry: exact, or unknown within bounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Units {
    least: u64,
    most: u64,
}

impl Units {
    fn exactly(units: u64) -> Units {
        Units {
            least: units,
            most: units,
        }
    }

    fn up_to(units: u64) -> Units {
        Units {
            least: 0,
            most: units,
        }
    }

    fn add(&mut self, other: Units) {
        self.least += other.least;
        self.most += other.most;
    }

    fn holds(self, units: u64) -> bool {
        (self.least..=self.most).contains(&units)
    }
}

impl std::fmt::Display for Units {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.least == self.most {
            write!(f, "{}", self.least)
        } else {
            write!(f, "{} to {}", self.least, self.most)
        }
    }
}

impl Ledgers {
    /// Every difference between the ledgers, in words; empty if they agree.
    pub fn disagreements(&self, allowed: &Allowances) -> Vec<String> {
        let mut found = Vec::new();
        self.judge_clients(allowed, &mut found);
        self.judge_upstream(allowed, &mut found);
        self.judge_access_log(allowed, &mut found);
        self.judge_store(allowed, &mut found);
        self.judge_secrets(&mut found);
        if found.len() > DIFFERENCES_MAX {
            let more = found.len() - DIFFERENCES_MAX;
            found.truncate(DIFFERENCES_MAX);
            found.push(format!("… and {more} more"));
        }
        found
    }

    /// The sizes of the accounts, for the head of a failing test's message.
    pub fn summary(&self) -> String {
        let mut statuses: BTreeMap<String, u64> = BTreeMap::new();
        for entry in &self.client {
            let status = match entry.status {
                Some(status) => format!("{status} {:?}", entry.ending),
                None => format!("{:?}", entry.ending),
            };
            *statuses.entry(status).or_default() += 1;
        }
        format!(
            "client ledger {statuses:?}, access log {} lines, store {:?}, upstream {} requests",
            self.access.len(),
            self.usage
                .iter()
                .map(|row| (row.date.as_str(), row.key.as_str(), row.used))
                .collect::<Vec<_>>(),
            self.upstream.len()
        )
    }

    fn judge_clients(&self, allowed: &Allowances, found: &mut Vec<String>) {
        let mut seen = BTreeSet::new();
        let mut answers: BTreeMap<&str, usize> = BTreeMap::new();
        for request in &self.upstream {
            if matches!(request.outcome, Outcome::Answered) {
                *answers.entry(&request.id).or_default() += 1;
            }
        }
        for entry in &self.client {
            if !entry.id.is_empty() && !seen.insert(entry.id.as_str()) {
                found.push(format!("client: the id {} was used twice", entry.id));
            }
            if entry.ending == Ending::Failed && !(allowed.gateway_killed || allowed.failed_calls) {
                found.push(format!("client: no answer at all to {}", name(entry)));
            }
            let served = entry.ending == Ending::Whole && !entry.is_problem;
            let is_forwarded = served && self.cost(entry).is_some();
            if is_forwarded && answers.get(entry.id.as_str()) != Some(&1) {
                found.push(format!(
                    "client: {} was served, but the upstream did not answer it once",
                    name(entry)
                ));
            }
        }
    }

    fn judge_upstream(&self, allowed: &Allowances, found: &mut Vec<String>) {
        let mut by_id: BTreeMap<&str, Vec<&Recorded>> = BTreeMap::new();
        let mut entries: BTreeMap<&str, &Entry> = BTreeMap::new();
        for entry in &self.client {
            entries.entry(&entry.id).or_insert(entry);
        }
        for request in &self.upstream {
            by_id.entry(&request.id).or_default().push(request);
            let entry = entries.get(request.id.as_str()).copied();
            self.judge_upstream_request(request, entry, allowed, found);
        }
        for (id, mut requests) in by_id {
            requests.sort_by_key(|request| request.at);
            let Some((_, earlier)) = requests.split_last() else {
                continue;
            };
            for request in earlier {
                let method = request.method.as_str();
                let idempotent = matches!(method, "GET" | "HEAD" | "OPTIONS" | "PUT" | "DELETE");
                let dead = request.outcome == Outcome::Reset && request.place > 1;
                let safe = matches!(request.method.as_str(), "GET" | "HEAD" | "OPTIONS");
                let broken = matches!(
                    request.outcome,
                    Outcome::Reset | Outcome::Unanswered | Outcome::Away
                );
                let elsewhere = allowed.other_servers && safe && broken;
                let refused = request.outcome == Outcome::Refused;
                if !(allowed.retries && (idempotent && dead || refused) || elsewhere) {
                    found.push(format!(
                        "upstream: {} {} ({id}) arrived {} times",
                        request.method,
                        request.target_text(),
                        requests.len()
                    ));
                    break;
                }
            }
        }
    }

    fn judge_upstream_request(
        &self,
        request: &Recorded,
        entry: Option<&Entry>,
        allowed: &Allowances,
        found: &mut Vec<String>,
    ) {
        let what = format!(
            "{} {} ({})",
            request.method,
            request.target_text(),
            request.id
        );
        let Some(entry) = entry.filter(|_| !request.id.is_empty()) else {
            found.push(format!("upstream: {what} belongs to no client request"));
            return;
        };
        if !entry.method.is_empty() && entry.method != request.method {
            found.push(format!("upstream: {what} was sent as {}", entry.method));
        }
        if !entry.target.is_empty() && entry.target.as_bytes() != request.target {
            found.push(format!("upstream: {what} was sent as {}", entry.target));
        }
        if entry.is_problem && entry.status != Some(500) {
            found.push(format!(
                "upstream: {what} was forwarded though the client was refused with {}",
                shown(entry.status)
            ));
        }
        let owner = self.owner(entry);
        let endpoint = self.endpoint(entry);
        match (owner, endpoint) {
            (Some(key), Some(endpoint)) => {
                if request.values("x-consumer-id") != [key.id.clone()] {
                    found.push(format!(
                        "upstream: {what} has X-Consumer-Id {:?}, not {}",
                        request.values("x-consumer-id"),
                        key.id
                    ));
                }
                let tiers = request.values("x-consumer-tier");
                let included = |tier: &String| {
                    endpoint.tiers.contains(tier) || allowed.shadow_tiers.contains(tier)
                };
                if !matches!(tiers.as_slice(), [tier] if included(tier)) {
                    found.push(format!(
                        "upstream: {what} has X-Consumer-Tier {tiers:?}, which does not include the endpoint"
                    ));
                }
            }
            (None, _) => found.push(format!("upstream: {what} came without an issued key")),
            (_, None) => found.push(format!("upstream: {what} is no endpoint")),
        }
        for (header, _) in &request.headers {
            let plain = header.to_ascii_lowercase().replace('_', "-");
            let ours = matches!(
                header.to_ascii_lowercase().as_str(),
                "x-consumer-id" | "x-consumer-tier"
            );
            if plain == "x-api-key" || plain.starts_with("x-consumer-") && !ours {
                found.push(format!("upstream: {what} carries {header}"));
            }
        }
    }

    fn judge_access_log(&self, allowed: &Allowances, found: &mut Vec<String>) {
        let mut lines: BTreeMap<&str, Vec<&AccessLine>> = BTreeMap::new();
        for line in &self.access {
            lines.entry(&line.request_id).or_default().push(line);
        }
        for entry in self.client.iter().filter(|entry| !entry.id.is_empty()) {
            let lines = lines.remove(entry.id.as_str()).unwrap_or_default();
            match (lines.as_slice(), entry.status) {
                ([line], status) => self.judge_access_line(entry, line, status, allowed, found),
                ([], None) => {}
                ([], Some(_)) if allowed.gateway_killed => {}
                (lines, _) => found.push(format!(
                    "access log: {} lines for {}",
                    lines.len(),
                    name(entry)
                )),
            }
        }
        // A hand-written request may have had an answer without an id.
        for (id, lines) in lines {
            let refused = |line: &&AccessLine| line.units == 0 && line.key_id.is_none();
            if allowed.strangers && lines.iter().all(refused) {
                continue;
            }
            found.push(format!(
                "access log: {id} is the id of no client request: {lines:?}"
            ));
        }
    }

    fn judge_access_line(
        &self,
        entry: &Entry,
        line: &AccessLine,
        status: Option<u16>,
        allowed: &Allowances,
        found: &mut Vec<String>,
    ) {
        let what = name(entry);
        let path = entry.target.split('?').next().unwrap_or_default();
        if !entry.method.is_empty() && entry.method != line.method {
            found.push(format!("access log: {what} has method {}", line.method));
        }
        // A request that was refused as malformed may be logged in another form.
        let malformed = matches!(status, Some(400 | 413 | 414 | 431)) && entry.is_problem;
        if !path.is_empty() && path != line.path && !malformed {
            found.push(format!("access log: {what} has path {}", line.path));
        }
        let Some(status) = status else {
            return;
        };
        if status != line.status {
            found.push(format!("access log: {what} has status {}", line.status));
        }
        let owner = self.owner(entry).map(|key| key.id.as_str());
        let known = match status {
            _ if malformed => None,
            // The gateway could know nothing of another caller, not even whether the key is one.
            500 if entry.limit.is_none() => owner.filter(|_| line.is_untiered),
            // The log may name the revoked or expired key.
            401 => line.key_id.as_deref().filter(|id| Some(*id) == owner),
            _ if path == "/openapi.json" => line.key_id.as_deref(),
            _ => owner,
        };
        if line.key_id.as_deref() != known {
            found.push(format!(
                "access log: {what} has key id {:?}, not {known:?}",
                line.key_id
            ));
        }
        let outcome = match entry.ending {
            Ending::Whole if entry.is_problem => entry.code.as_deref(),
            Ending::Whole => Some("served"),
            Ending::Cut => Some("cut").filter(|_| !allowed.charged_cuts.contains(&entry.id)),
            Ending::HungUp | Ending::Failed => None,
        };
        // To clients, maintenance is a failure.
        let logged = match line.outcome.as_str() {
            "maintenance" => "INTERNAL_ERROR",
            other => other,
        };
        if outcome.is_some_and(|outcome| outcome != logged) {
            found.push(format!(
                "access log: {what} has outcome {}, not {outcome:?}",
                line.outcome
            ));
        }
        let units = self.units(entry, allowed);
        if !units.holds(line.net_units()) {
            found.push(format!(
                "access log: {what} has {} units, refunded {}; expected {units}",
                line.units, line.refunded
            ));
        }
    }

    fn judge_store(&self, allowed: &Allowances, found: &mut Vec<String>) {
        for row in &self.usage {
            let Some(key) = self.keys.iter().find(|key| key.id == row.key) else {
                found.push(format!("store: {} was never issued", row.key));
                continue;
            };
            let limit = allowed.limits.get(&key.id).copied().or_else(|| {
                let tier = self.tiers.iter().find(|tier| tier.name == key.tier)?;
                Some(tier.daily)
            });
            if limit.is_some_and(|limit| row.used > limit) {
                found.push(format!(
                    "store: {} used {} on {}, above its limit of {}",
                    row.key,
                    row.used,
                    row.date,
                    limit.unwrap_or_default()
                ));
            }
            let sum: i128 = row
                .endpoints
                .values()
                .map(|totals| i128::from(totals.charged) - i128::from(totals.refunded))
                .sum();
            if sum != i128::from(row.used) && !allowed.gateway_killed {
                found.push(format!(
                    "store: {} on {} used {}, but its endpoints sum to {sum}",
                    row.key, row.date, row.used
                ));
            }
        }
        for key in &self.keys {
            self.judge_store_of(key, allowed, found);
        }
    }

    fn judge_store_of(&self, key: &IssuedKey, allowed: &Allowances, found: &mut Vec<String>) {
        let entries = || {
            let owned = self.client.iter();
            owned.filter(|entry| self.owner(entry).is_some_and(|owner| owner.id == key.id))
        };
        let rows = || self.usage.iter().filter(|row| row.key == key.id);
        let mut total = Units::default();
        let mut undated = Units::default();
        let mut dated: BTreeMap<String, Units> = BTreeMap::new();
        let mut by_endpoint: BTreeMap<&str, Units> = BTreeMap::new();
        for entry in entries() {
            let units = self.units(entry, allowed);
            total.add(units);
            match entry.reset {
                // The day of an answer is the one that ends at its reset: in the zones from 12 hours before UTC
                // to 11 behind, half a day earlier has its date in UTC too.
                Some(reset) => dated
                    .entry(date_of(reset.saturating_sub(HALF_DAY_SECONDS)))
                    .or_default(),
                None => &mut undated,
            }
            .add(units);
            if let Some(endpoint) = self.endpoint(entry) {
                by_endpoint.entry(&endpoint.path).or_default().add(units);
            }
        }
        let used: u64 = rows().map(|row| row.used).sum();
        if !total.holds(used) {
            found.push(format!(
                "store: {} used {used}, but its calls amount to {total}",
                key.id
            ));
        }
        let dates: BTreeSet<&str> = rows()
            .map(|row| row.date.as_str())
            .chain(dated.keys().map(String::as_str))
            .collect();
        if dates.len() > 1 {
            for date in dates {
                let used: u64 = rows()
                    .filter(|row| row.date == date)
                    .map(|row| row.used)
                    .sum();
                let mut expected = dated.get(date).copied().unwrap_or_default();
                expected.most += undated.most;
                if !expected.holds(used) {
                    found.push(format!(
                        "store: {} used {used} on {date}, but its calls amount to {expected}",
                        key.id
                    ));
                }
            }
        }
        if allowed.gateway_killed {
            return;
        }
        let sum = |pick: &dyn Fn(&EndpointTotals) -> u64, pattern: Option<&str>| -> u64 {
            rows()
                .flat_map(|row| &row.endpoints)
                .filter(|(name, _)| pattern.is_none_or(|pattern| pattern == name.as_str()))
                .map(|(_, totals)| pick(totals))
                .sum()
        };
        for (pattern, expected) in by_endpoint {
            let charged = sum(&|totals| totals.charged, Some(pattern));
            let refunded = sum(&|totals| totals.refunded, Some(pattern));
            if !expected.holds(charged.saturating_sub(refunded)) {
                found.push(format!(
                    "store: {} used {charged} - {refunded} of {pattern}, but its calls amount to {expected}",
                    key.id
                ));
            }
        }
        let refused = |status| {
            entries()
                .filter(move |entry| entry.is_problem && entry.status == Some(status))
                // The limit on reading usage is in no ledger.
                .filter(|entry| !entry.target.starts_with(OWN_USAGE))
        };
        // An answer to HEAD does not name its policy.
        let unsaid = refused(429)
            .filter(|entry| !entry.answer_text.contains("\"violated-policies\""))
            .count() as u64;
        let of_policy = |policy: &str| {
            let word = format!("[\"{policy}\"]");
            let message = refused(429).filter(|entry| entry.answer_text.contains(&word));
            let message = message.count() as u64;
            message..=message + unsaid
        };
        let tier = refused(403).count() as u64;
        let all = refused(429).count() as u64;
        let quota = sum(&|totals| totals.refused_quota, None);
        let burst = sum(&|totals| totals.refused_burst, None);
        let concurrent = sum(&|totals| totals.refused_concurrent, None);
        for (what, counted, seen) in [
            (
                "tier",
                sum(&|totals| totals.refused_tier, None),
                tier..=tier,
            ),
            ("quota", quota, of_policy("daily")),
            ("burst", burst, of_policy("burst")),
            ("concurrency", concurrent, of_policy("concurrent")),
            ("limits", quota + burst + concurrent, all..=all),
        ] {
            if !seen.contains(&counted) {
                found.push(format!(
                    "store: {} was refused {counted} times because of its {what}, but its calls amount to {} to {}",
                    key.id,
                    seen.start(),
                    seen.end()
                ));
            }
        }
    }

    fn judge_secrets(&self, found: &mut Vec<String>) {
        let upstream = self
            .upstream
            .iter()
            .map(|request| (format!("the upstream's {}", request.id), request.text()));
        let answers = self.client.iter().map(|entry| {
            (
                format!("the answer to {}", name(entry)),
                entry.answer_text.clone(),
            )
        });
        let artefacts = self
            .artefacts
            .iter()
            .map(|(name, bytes)| (name.clone(), String::from_utf8_lossy(bytes).into_owned()));
        for (place, text) in artefacts.chain(upstream).chain(answers) {
            for key in &self.keys {
                let secret = key.key.rsplit('_').next().unwrap_or_default();
                let first = secret.get(..LEAK_CHARS).unwrap_or(secret);
                let last = secret
                    .get(secret.len().saturating_sub(LEAK_CHARS)..)
                    .unwrap_or(secret);
                if !secret.is_empty() && (text.contains(first) || text.contains(last)) {
                    found.push(format!("secret: {place} has the API key of {}", key.id));
                }
            }
        }
    }

    /// The issued key that a call presented.
    fn owner(&self, entry: &Entry) -> Option<&IssuedKey> {
        let presented = entry.key.as_deref()?;
        self.keys.iter().find(|key| key.key == presented)
    }

    fn endpoint(&self, entry: &Entry) -> Option<&EndpointSpec> {
        let path = entry.target.split('?').next().unwrap_or_default();
        self.endpoints
            .iter()
            .find(|endpoint| endpoint.matches(path))
    }

    fn cost(&self, entry: &Entry) -> Option<u64> {
        self.endpoint(entry).map(|endpoint| endpoint.cost)
    }

    /// Units charged and not refunded, by the client's entry and the rules of the contract.
    fn units(&self, entry: &Entry, allowed: &Allowances) -> Units {
        let (Some(_), Some(cost)) = (self.owner(entry), self.cost(entry)) else {
            return Units::default();
        };
        let reached = || self.upstream.iter().any(|one| one.id == entry.id);
        match entry.ending {
            Ending::Whole if !entry.is_problem => Units::exactly(cost),
            // Refunds of a killed gateway may be lost.
            Ending::Whole if entry.status == Some(500) && allowed.gateway_killed => {
                Units::up_to(cost)
            }
            Ending::Whole => Units::default(),
            Ending::Cut if allowed.gateway_killed => Units::up_to(cost),
            Ending::Cut if allowed.charged_cuts.contains(&entry.id) => Units::exactly(cost),
            Ending::Cut => Units::default(),
            Ending::HungUp if allowed.refunded_hang_ups.contains(&entry.id) => Units::default(),
            Ending::HungUp if reached() => Units::exactly(cost),
            Ending::HungUp | Ending::Failed => Units::up_to(cost),
        }
    }
}

fn name(entry: &Entry) -> String {
    format!(
        "{} {} ({}, {} {:?})",
        entry.method,
        entry.target,
        entry.id,
        shown(entry.status),
        entry.ending
    )
}

fn shown(status: Option<u16>) -> String {
    status.map_or("no status".into(), |status| status.to_string())
}

/// The calendar date of UTC at Unix seconds (Howard Hinnant's `civil_from_days`).
pub fn date_of(unix_seconds: u64) -> String {
    let days = unix_seconds / 86_400 + 719_468;
    let era_day = days % 146_097;
    let era_year = (era_day - era_day / 1_460 + era_day / 36_524 - era_day / 146_096) / 365;
    let year_day = era_day - (365 * era_year + era_year / 4 - era_year / 100);
    let shifted_month = (5 * year_day + 2) / 153;
    let day = year_day - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = era_year + days / 146_097 * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests;

//! `touchline usage verify`: compares the ledger with the counts, and closed days with their digests.
//!
//! A running gateway writes a count before its entry in the ledger, less than a second apart. A mismatch is therefore checked
//! again until it is gone, for at most [`PATIENCE`].

use std::io::Write;
use std::time::Duration;

use jiff::civil::Date;
use serde::Serialize;
use tokio::time::Instant;

use super::chain;
use super::query::LedgerQuery;
use crate::cli::output::long_table::write_table;
use crate::cli::output::{RecordFormat, cells, write_record};
use crate::cli::session::{Session, judged};
use crate::policy::api_key::KeyId;
use crate::policy::words::counted;
use crate::store::chain::CheckedChain;
use crate::store::{Proof, Totals, keys_at_once};

/// How long a day may take to reconcile: several times the delay of a gateway's entries.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(250);
/// The most faults that a table shows.
const SHOWN_MAX: usize = 100;

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Verification {
    from: Date,
    to: Date,
    /// The number of checked pairs of key and day.
    key_days: usize,
    used: u64,
    /// Charged minus refunded, at all endpoints.
    attributed: i64,
    unattributed: i64,
    /// Units used above the limit of their day.
    over: u64,
    /// Units settled after their day was closed.
    adjusted: i64,
    /// The chain of closed days, if the store has one.
    chain: Option<CheckedChain>,
    faults: Vec<DayFault>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct DayFault {
    date: Date,
    /// `None` if the fault is of the whole day.
    key: Option<KeyId>,
    fault: String,
}

/// Verifies the requested days and writes the result.
///
/// # Errors
/// If anything does not reconcile, with the first key and day.
pub(super) async fn run(
    session: &Session,
    asked: &LedgerQuery,
    digest: Option<&str>,
    output: RecordFormat,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    if digest.is_some() && session.store.chained().is_none() {
        anyhow::bail!("only the embedded store has a chain of closed days");
    }
    let ((from, to), keys) = asked.resolved(session).await?;
    let mut verdict = Verification {
        from,
        to,
        ..Verification::default()
    };
    let mut unsettled = Vec::new();
    for batch in keys.chunks(keys_at_once(from, to)) {
        for proof in session.store.prove_of(from, to, batch).await? {
            match is_unsettled(&proof) {
                true => unsettled.push(proof),
                false => verdict.add(&proof),
            }
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while unsettled.iter().any(is_unsettled) && Instant::now() < deadline {
        tokio::time::sleep(PAUSE).await;
        for proof in unsettled.iter_mut().filter(|proof| is_unsettled(proof)) {
            let (date, key) = (proof.usage.date, proof.usage.key);
            let again = session.store.prove_of(date, date, &[key]).await?;
            if let Some(again) = again.into_iter().next() {
                *proof = again;
            }
        }
    }
    unsettled.iter().for_each(|proof| verdict.add(proof));
    verdict.faults.sort_by_key(|fault| (fault.date, fault.key));
    // A day's digest covers all keys, so it cannot be compared for some.
    let is_of_all = asked.key.is_none() && asked.customer.is_none();
    let days = is_of_all.then_some((from, to));
    if let Some(checked) = chain::check(session, days, digest).await? {
        verdict.take(checked);
    }
    let shown = output.write(out, &verdict, |out| table(out, &verdict));
    judged(shown, verdict.outcome())
}

/// Whether a second check may have another result.
fn is_unsettled(proof: &Proof) -> bool {
    !proof.faults.is_empty() || proof.usage.unattributed != 0
}

impl Verification {
    /// The error of the first fault, or of a digest from earlier that is missing in the chain.
    fn outcome(&self) -> anyhow::Result<()> {
        if let Some(DayFault { date, key, fault }) = self.faults.first() {
            anyhow::bail!(
                "the ledger does not reconcile in {}; the first is {}{date}: {fault}",
                counted(self.faults.len() as u64, "place", "places"),
                key.map_or_else(String::new, |key| format!("key {key} on ")),
            );
        }
        if let Some(digest) = self.missing_digest() {
            anyhow::bail!(
                "no entry of the chain of closed days has the digest {digest}: the chain was changed or replaced since that digest was taken"
            );
        }
        Ok(())
    }

    /// The digest from earlier, if the chain lacks it.
    fn missing_digest(&self) -> Option<&str> {
        self.chain.as_ref()?.missing.as_deref()
    }

    /// Adds a day of a key.
    fn add(&mut self, Proof { usage, faults }: &Proof) {
        let endpoints: i64 = usage.endpoints.values().map(Totals::net).sum();
        let tiers: i64 = usage.tiers.values().map(Totals::net).sum();
        let mut faults = faults.clone();
        for (what, attributed) in [("endpoints", endpoints), ("tiers", tiers)] {
            if i64::try_from(usage.used) != Ok(attributed + usage.unattributed) {
                faults.push(format!(
                    "its {what} sum to {attributed}, {} units are unattributed, and {} are used",
                    usage.unattributed, usage.used
                ));
            }
        }
        self.key_days += 1;
        self.used += usage.used;
        self.attributed += endpoints;
        self.unattributed += usage.unattributed;
        self.over += usage.over;
        self.adjusted += usage.adjusted();
        self.faults.extend(faults.into_iter().map(|fault| DayFault {
            date: usage.date,
            key: Some(usage.key),
            fault,
        }));
    }

    fn take(&mut self, mut checked: CheckedChain) {
        let faults = checked.faults.drain(..);
        self.faults.extend(faults.map(|one| DayFault {
            date: one.date,
            key: None,
            fault: one.fault,
        }));
        self.chain = Some(checked);
    }
}

fn table(out: &mut dyn Write, verdict: &Verification) -> anyhow::Result<()> {
    let result = match verdict.faults.len() {
        0 if verdict.missing_digest().is_some() => {
            "the chain of closed days lacks the digest".to_owned()
        }
        0 => "reconciles".to_owned(),
        faults => {
            let places = counted(faults as u64, "place", "places");
            format!("does not reconcile in {places}")
        }
    };
    let (closed, digest) = match &verdict.chain {
        None => ("this store has no chain of them".to_owned(), "-".to_owned()),
        Some(chain) => {
            let through = chain.closed_through;
            let through = through.map_or_else(String::new, |date| format!(" through {date}"));
            let counts = format!(
                "{}{through}, {} compared, reopened {}",
                chain.closed_days,
                chain.compared_days,
                counted(chain.reopenings, "time", "times")
            );
            // The digest of no day is all zeros.
            let digest = chain.closed_through.map_or("-", |_| &*chain.digest);
            (counts, digest.to_owned())
        }
    };
    write_record(
        out,
        &[
            ("days", format!("{} to {}", verdict.from, verdict.to)),
            (
                "checked",
                counted(verdict.key_days, "day of a key", "days of keys"),
            ),
            ("used", verdict.used.to_string()),
            ("attributed", verdict.attributed.to_string()),
            ("unattributed", verdict.unattributed.to_string()),
            ("over", verdict.over.to_string()),
            ("adjusted", verdict.adjusted.to_string()),
            ("closed days", closed),
            ("chain", digest),
            ("result", result),
        ],
    )?;
    if verdict.faults.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let shown = verdict.faults.iter().take(SHOWN_MAX);
    let header = ["date", "key", "fault"];
    let rows: Result<Vec<_>, _> = shown.map(|fault| cells(fault, &header)).collect();
    write_table(out, &header, &[], &rows?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::usage::grouping::tests::{cell, day};
    use crate::policy::key_record::tests::key_of;
    use crate::store::DayUsage;

    #[test]
    fn units_above_the_limits_of_all_days_are_summed() {
        let (_, record) = key_of("pro");
        let mut verdict = Verification::default();
        for (date, charged) in [("2026-11-20", 22), ("2026-11-21", 24), ("2026-11-22", 5)] {
            let usage = day(date, record.id, vec![cell("pro", "/a", charged)]);
            verdict.add(&Proof {
                usage,
                faults: Vec::new(),
            });
        }
        assert_eq!(verdict.faults, []);
        // Of 20 units a day, 22, 24 and 5 were used.
        let json = serde_json::to_value(&verdict).unwrap();
        assert_eq!(json["over"], 6);
    }

    #[test]
    fn a_day_is_checked_again_if_it_has_a_fault_or_units_that_are_unattributed() {
        let (_, record) = key_of("pro");
        let place = ("2026-11-20".parse().unwrap(), record.id);
        let proof = |used, faults: &[&str]| {
            let cells = vec![cell("pro", "/a", 5)];
            Proof {
                usage: DayUsage::of_cells(place, Some(used), cells, Vec::new()),
                faults: faults.iter().map(|&fault| fault.to_owned()).collect(),
            }
        };
        assert!(!is_unsettled(&proof(4, &[])));
        assert!(is_unsettled(&proof(4, &["the store's own"])));
        assert!(is_unsettled(&proof(5, &[])));
    }

    #[test]
    fn a_day_whose_parts_do_not_sum_up_is_a_fault_of_its_key() {
        let (_, record) = key_of("pro");
        let usage = day("2026-11-20", record.id, vec![cell("pro", "/a", 5)]);
        let usage_date = usage.date;
        let whole = Proof {
            usage,
            faults: Vec::new(),
        };
        let verdict = |proofs: &[Proof]| {
            let mut verdict = Verification {
                from: usage_date,
                to: usage_date,
                ..Verification::default()
            };
            proofs.iter().for_each(|proof| verdict.add(proof));
            verdict
        };
        let proved = verdict(std::slice::from_ref(&whole));
        assert_eq!(
            (proved.used, proved.attributed, proved.unattributed),
            (5, 4, 1)
        );
        assert_eq!(proved.faults, []);

        let mut broken = whole.clone();
        broken.usage.used = 7;
        broken.usage.tiers.clear();
        broken.faults.push("the store's own".into());
        let found = verdict(&[whole, broken]);
        let faults: Vec<&str> = found.faults.iter().map(|one| one.fault.as_str()).collect();
        assert_eq!(
            faults,
            [
                "the store's own",
                "its endpoints sum to 4, 1 units are unattributed, and 7 are used",
                "its tiers sum to 0, 1 units are unattributed, and 7 are used"
            ]
        );
        assert!(
            found
                .faults
                .iter()
                .all(|fault| fault.key == Some(record.id))
        );
        let mut out = Vec::new();
        table(&mut out, &found).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("does not reconcile in 3 places"), "{text}");
    }
}

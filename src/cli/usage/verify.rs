//! `touchline usage verify`: the ledger held against the counts, closed days against their digests, and what does not hold.
//!
//! A gateway that charges is now and then caught between a count and its entry in the ledger, for less than a second. So
//! what does not hold is looked at again until it does, for at most [`PATIENCE`].

use std::io::Write;
use std::time::Duration;

use jiff::civil::Date;
use serde::Serialize;
use tokio::time::Instant;

use super::{Asked, Session, chain, is_of, records};
use crate::cli::key_argument::id_of;
use crate::cli::output::{RecordFormat, write_json, write_record, write_table};
use crate::policy::api_key::KeyId;
use crate::store::chain::Checked;
use crate::store::{Proof, Totals};

/// How long a day may need until it reconciles: several times what a gateway takes to write.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(250);
/// Faults that a table shows.
const SHOWN_MAX: usize = 100;

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Verdict {
    from: Date,
    to: Date,
    /// Days of keys that were checked.
    key_days: usize,
    used: u64,
    /// Charged minus refunded, at all endpoints.
    attributed: i64,
    unattributed: i64,
    /// Units used above the limit of their day.
    over: u64,
    /// Units settled after their day was closed.
    adjusted: i64,
    /// The chain of closed days, where the store keeps one.
    chain: Option<Chain>,
    faults: Vec<Fault>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Chain {
    entries: u64,
    closed_days: u64,
    /// The last of them.
    closed_through: Option<Date>,
    /// Closed days among those asked for, whose rows were held against their digest; none where a key or customer was asked for.
    compared_days: u64,
    /// How often rows came to a closed day.
    reopenings: u64,
    /// That of the last entry, which covers all before it.
    digest: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Fault {
    date: Date,
    /// `None` where the day as a whole does not hold.
    key: Option<KeyId>,
    fault: String,
}

/// Proves the days asked for and says what was checked.
///
/// # Errors
/// Where something does not hold, with the first key and day.
pub(super) async fn run(
    session: &Session,
    asked: &Asked,
    digest: Option<&str>,
    output: RecordFormat,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let (from, to) = asked.days(session).await?;
    let key = id_of(asked.key, session).await?;
    let mut proofs = session.store.prove(from, to, key).await?;
    if let Some(customer) = &asked.customer {
        let records = records(session).await?;
        proofs.retain(|proof| is_of(&records, Some(customer), proof.usage.key));
    }
    let deadline = Instant::now() + PATIENCE;
    while proofs.iter().any(is_unsettled) && Instant::now() < deadline {
        tokio::time::sleep(PAUSE).await;
        for proof in proofs.iter_mut().filter(|proof| is_unsettled(proof)) {
            let (date, key) = (proof.usage.date, proof.usage.key);
            let again = session.store.prove(date, date, Some(key)).await?;
            if let Some(again) = again.into_iter().next() {
                *proof = again;
            }
        }
    }
    let mut verdict = verdict((from, to), &proofs);
    // A day's digest is one of all its keys.
    let is_of_all = asked.key.is_none() && asked.customer.is_none();
    let days = is_of_all.then_some((from, to));
    let mut missing = None;
    if let Some(checked) = chain::check(session, days, digest).await? {
        missing.clone_from(&checked.missing);
        verdict.take(checked);
    }
    match output {
        RecordFormat::Json => write_json(out, &verdict)?,
        RecordFormat::Table => table(out, &verdict)?,
    }
    match verdict.faults.first() {
        None => {}
        Some(Fault { date, key, fault }) => anyhow::bail!(
            "the ledger does not reconcile in {} places; the first is {}{date}: {fault}",
            verdict.faults.len(),
            key.map_or_else(String::new, |key| format!("key {key} on ")),
        ),
    }
    match (digest, &verdict.chain, missing) {
        (None, _, _) | (Some(_), Some(_), None) => Ok(()),
        (Some(_), None, _) => anyhow::bail!("this store keeps no chain of closed days"),
        (Some(_), Some(_), Some(digest)) => anyhow::bail!(
            "no entry of the chain of closed days has the digest {digest}: the chain is not the one that it was taken from"
        ),
    }
}

impl Verdict {
    fn take(&mut self, checked: Checked) {
        let faults = checked.faults.into_iter();
        self.faults.extend(faults.map(|one| Fault {
            date: one.date,
            key: None,
            fault: one.fault,
        }));
        self.chain = Some(Chain {
            entries: checked.entries,
            closed_days: checked.closed_days,
            closed_through: checked.closed_through,
            compared_days: checked.compared_days,
            reopenings: checked.reopenings,
            digest: checked.digest,
        });
    }
}

/// Whether another look may find it otherwise.
fn is_unsettled(proof: &Proof) -> bool {
    !proof.faults.is_empty() || proof.usage.unattributed != 0
}

fn verdict((from, to): (Date, Date), proofs: &[Proof]) -> Verdict {
    let mut verdict = Verdict {
        from,
        to,
        key_days: proofs.len(),
        used: 0,
        attributed: 0,
        unattributed: 0,
        over: 0,
        adjusted: 0,
        chain: None,
        faults: Vec::new(),
    };
    for Proof { usage, faults } in proofs {
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
        verdict.used += usage.used;
        verdict.attributed += endpoints;
        verdict.unattributed += usage.unattributed;
        verdict.over += usage.over;
        verdict.adjusted += usage.adjusted();
        verdict.faults.extend(faults.into_iter().map(|fault| Fault {
            date: usage.date,
            key: Some(usage.key),
            fault,
        }));
    }
    verdict
}

fn table(out: &mut dyn Write, verdict: &Verdict) -> anyhow::Result<()> {
    let result = match verdict.faults.len() {
        0 => "reconciles".to_owned(),
        faults => format!("does not reconcile in {faults} places"),
    };
    let (closed, digest) = match &verdict.chain {
        None => (
            "this store keeps no chain of them".to_owned(),
            "-".to_owned(),
        ),
        Some(chain) => {
            let through = chain.closed_through;
            let through = through.map_or_else(String::new, |date| format!(" through {date}"));
            let counts = format!(
                "{}{through}, {} compared, {} times reopened",
                chain.closed_days, chain.compared_days, chain.reopenings
            );
            (counts, chain.digest.clone())
        }
    };
    write_record(
        out,
        &[
            ("days", format!("{} to {}", verdict.from, verdict.to)),
            ("checked", format!("{} days of keys", verdict.key_days)),
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
    let rows: Vec<Vec<String>> = shown
        .map(|fault| {
            vec![
                fault.date.to_string(),
                fault.key.map_or_else(String::new, |key| key.to_string()),
                fault.fault.clone(),
            ]
        })
        .collect();
    write_table(out, &["date", "key", "fault"], &[], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::usage::grouping::tests::{cell, day};
    use crate::policy::key_record::tests::key_of;

    #[test]
    fn a_day_whose_parts_do_not_sum_up_is_a_fault_of_its_key() {
        let (_, record) = key_of("pro");
        let usage = day("2026-11-20", record.id, vec![cell("pro", "/a", 5)]);
        let days = (usage.date, usage.date);
        let whole = Proof {
            usage,
            faults: Vec::new(),
        };
        let proved = verdict(days, std::slice::from_ref(&whole));
        assert_eq!(
            (proved.used, proved.attributed, proved.unattributed),
            (5, 4, 1)
        );
        assert_eq!(proved.faults, []);

        let mut broken = whole.clone();
        broken.usage.used = 7;
        broken.usage.tiers.clear();
        broken.faults.push("the store's own".into());
        let found = verdict(days, &[whole, broken]);
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

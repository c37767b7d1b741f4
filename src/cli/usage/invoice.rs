//! `touchline usage invoice`: a month by customer, key and tier, ready to be billed.
//!
//! [`crate::policy::billing`] decides which days are billed and for which part of the price. Keys are read in batches, and only
//! their lines are kept, some 200 bytes each: memory grows with the keys, not with their use. Nothing is written before everything
//! was read, so a failing store leaves no partial invoice.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{BufWriter, Write};
use std::sync::Arc;

use anyhow::bail;
use jiff::Span;
use jiff::civil::Date;
use serde::Serialize;
use serde_json::json;

use super::month::Month;
use super::query::keys_of;
use crate::cli::output::long_table::write_long_table;
use crate::cli::output::{Extended, RowsFormat, prose, write_csv, write_json, write_text};
use crate::cli::session::{Session, note};
use crate::config::Config;
use crate::policy::api_key::KeyId;
use crate::policy::audit::Wanted;
use crate::policy::billing::Life;
use crate::policy::key_record::{KeyRecord, TierName};
use crate::store::{DayUsage, keys_at_once};

mod lines;
mod terms;

use lines::{BilledKey, COLUMNS, CURRENCY, InvoiceLine, InvoiceSums};
use terms::BillingTerms;

const DAY_SECONDS: i64 = 86_400;
/// The columns of the whole invoice in CSV.
const INVOICE_COLUMNS: [&str; 5] = ["months", "unused_keys", "rule", "currency", "closed"];

/// The one copy of a customer's name in `names`, for all of its keys.
fn shared(names: &mut HashSet<Arc<str>>, name: &str) -> Arc<str> {
    if let Some(kept) = names.get(name) {
        return kept.clone();
    }
    let kept: Arc<str> = name.into();
    names.insert(kept.clone());
    kept
}

#[derive(Serialize)]
struct Invoice<'i> {
    month: Month,
    currency: &'static str,
    closed: bool,
    rules: InvoiceRules,
    lines: &'i [InvoiceLine],
    #[serde(flatten)]
    sums: InvoiceSums,
}

/// The rules, as fields and in words.
#[derive(Serialize)]
struct InvoiceRules {
    months: &'static str,
    unused_keys: &'static str,
    timezone: String,
    text: Vec<String>,
}

impl InvoiceRules {
    fn of(config: &Config) -> InvoiceRules {
        let (rules, zone) = (config.billing, config.calendar.name());
        InvoiceRules {
            months: rules.months.as_str(),
            unused_keys: rules.unused_keys.as_str(),
            timezone: zone.to_owned(),
            text: rules.sentences(zone),
        }
    }
}

/// Reads the month and writes it in the form asked for.
pub(super) async fn run(
    session: &Session,
    month: Month,
    customer: Option<&str>,
    output: RowsFormat,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let now = session.store.server_time().await?;
    let terms = BillingTerms::of(&session.config, month, now)?;
    terms.require_kept(session.store.last_dropped().await?)?;
    let lines = read(session, &terms, customer).await?;
    check_tiers(&terms, &lines)?;
    if !terms.closed {
        note(&format!(
            "{month} is not closed yet: each of its days can change until quota.settle_window after its end."
        ));
    }
    let out = &mut BufWriter::new(out);
    match output {
        RowsFormat::Json => json(&terms, &lines, out),
        RowsFormat::Csv => csv(&terms, &lines, out),
        RowsFormat::Table => table(&terms, &lines, out),
    }
}

/// Fails if the configuration lacks the tier of a line: without its price, the sum would be too small.
fn check_tiers(terms: &BillingTerms<'_>, lines: &[InvoiceLine]) -> anyhow::Result<()> {
    // A line without days and without charged units costs nothing. A tier in which units stay charged might have been the dearest one of a day.
    let priced = |line: &&InvoiceLine| line.days > 0 || line.charged > line.refunded;
    let priced = lines.iter().filter(priced);
    let tiers = priced.filter_map(|line| line.tier.parse::<TierName>().ok());
    let missing: BTreeSet<TierName> = tiers
        .filter(|tier| terms.config.tier(tier).is_none())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(TierName::as_str).collect();
    bail!(
        "keys had tiers in {} that the configuration does not have, so their prices are unknown: {}. Add each to tiers with its price (no \
         endpoint needs to name it), or do so in a copy of the file and name that with --config",
        terms.month,
        names.join(", ")
    )
}

/// The lines in the order of customers, keys and tiers.
async fn read(
    session: &Session,
    terms: &BillingTerms<'_>,
    customer: Option<&str>,
) -> anyhow::Result<Vec<InvoiceLine>> {
    let (from, to) = terms.month.days();
    let keys = keys_of(session, (from, to), None, customer).await?;
    let mut late = late_usage(session, terms, &keys).await?;
    let (mut lines, mut customers) = (Vec::with_capacity(keys.len()), HashSet::new());
    let mut unowned = BTreeSet::new();
    for batch in keys.chunks(keys_at_once(from, to)) {
        let mut usage: BTreeMap<KeyId, Vec<DayUsage>> = BTreeMap::new();
        for day in session.store.usage_of(from, to, batch).await? {
            usage.entry(day.key).or_default().push(day);
        }
        for record in session.store.records_of(batch).await? {
            let key = BilledKey {
                customer: shared(&mut customers, &record.customer),
                record: &record,
                life: life(session, terms, &record).await?,
            };
            let mut usage = usage.remove(&record.id).unwrap_or_default();
            usage.extend(late.remove(&record.id).unwrap_or_default());
            lines.extend(lines::of(terms, &key, &usage)?);
        }
        unowned.extend(usage.into_keys());
    }
    unowned.extend(late.into_keys());
    check_owners(terms, &unowned)?;
    lines.sort_unstable_by(|one, other| one.place().cmp(&other.place()));
    Ok(lines)
}

/// Fails if keys with usage have no record, which only a store that lost it can lack: their customers would not be billed.
fn check_owners(terms: &BillingTerms<'_>, unowned: &BTreeSet<KeyId>) -> anyhow::Result<()> {
    if unowned.is_empty() {
        return Ok(());
    }
    let ids: Vec<&str> = unowned.iter().map(KeyId::as_str).collect();
    bail!(
        "the store has usage for {} of these keys but has lost their records, so their customers are unknown: {}. Restore the records from \
         an export with digests (`touchline keys import`), or import a row with the `id`, `customer`, `tier` and a new `key` for each",
        terms.month,
        ids.join(", ")
    )
}

/// The days before the month that got late units in it. A gateway settles what it served without Redis as long as the day is kept, so
/// days of the whole retention are searched.
async fn late_usage(
    session: &Session,
    terms: &BillingTerms<'_>,
    keys: &[KeyId],
) -> anyhow::Result<BTreeMap<KeyId, Vec<DayUsage>>> {
    let first = terms.month.first;
    let retention_days = terms.config.keeping.retention_seconds() / DAY_SECONDS + 1;
    let from = Span::new().try_days(retention_days);
    let from = from.and_then(|span| first.checked_sub(span));
    let from = from.unwrap_or(Date::MIN);
    let mut places: BTreeMap<Date, Vec<KeyId>> = BTreeMap::new();
    for (date, key) in session
        .store
        .late_days(from, first.yesterday()?, keys)
        .await?
    {
        places.entry(date).or_default().push(key);
    }
    let mut late: BTreeMap<KeyId, Vec<DayUsage>> = BTreeMap::new();
    for (date, keys) in places {
        for batch in keys.chunks(keys_at_once(date, date)) {
            for usage in session.store.usage_of(date, date, batch).await? {
                late.entry(usage.key).or_default().push(usage);
            }
        }
    }
    Ok(late)
}

/// The tiers of a key; reads its audit trail if its record is not enough.
async fn life(
    session: &Session,
    terms: &BillingTerms<'_>,
    record: &KeyRecord,
) -> anyhow::Result<Life> {
    if terms.is_decided_by(record) {
        return Ok(Life::of(record, &[]));
    }
    let wanted = Wanted {
        key: Some(record.id),
        ..Wanted::default()
    };
    Ok(Life::of(record, &session.store.audit(wanted).await?))
}

fn json(
    terms: &BillingTerms<'_>,
    lines: &[InvoiceLine],
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let invoice = Invoice {
        month: terms.month,
        currency: CURRENCY,
        closed: terms.closed,
        rules: InvoiceRules::of(terms.config),
        lines,
        sums: InvoiceSums::of(lines),
    };
    write_json(out, &invoice)
}

/// Writes CSV, with what concerns the whole invoice in every row.
fn csv(
    terms: &BillingTerms<'_>,
    lines: &[InvoiceLine],
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let rules = terms.config.billing;
    let header: Vec<&str> = COLUMNS.iter().chain(&INVOICE_COLUMNS).copied().collect();
    let of_invoice = json!({
        "month": terms.month,
        "currency": CURRENCY,
        "closed": terms.closed,
        "months": rules.months.as_str(),
        "unused_keys": rules.unused_keys.as_str(),
        "rule": rules.phrase(),
    });
    let rows = lines.iter().map(|record| Extended {
        record,
        more: &of_invoice,
    });
    write_csv(out, &header, rows)
}

/// Writes a table for people: dollars instead of cents, the month only once, and the rules below.
fn table(
    terms: &BillingTerms<'_>,
    lines: &[InvoiceLine],
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let header = COLUMNS.map(|name| name.strip_suffix("_cents").unwrap_or(name));
    let [_, header @ ..] = header;
    let [_, _, _, _, numbers @ .., _] = header;
    let sums = InvoiceSums::of(lines);
    let total = [lines::total(terms.month, &sums)];
    write_long_table(out, &header, &numbers, lines, InvoiceLine::shown, &total)?;
    footer(terms, &sums, out)
}

/// The notes below the table: its billing rules.
fn footer(terms: &BillingTerms<'_>, sums: &InvoiceSums, out: &mut dyn Write) -> anyhow::Result<()> {
    let rules = InvoiceRules::of(terms.config);
    let mut text = String::new();
    if sums.over > 0 {
        text += &format!(
            "\n{} units were served above the limit while Redis was unreachable; they are not billed.\n",
            sums.over
        );
    }
    text += &format!(
        "\nBilling rules (months: {}, unused_keys: {}):\n",
        rules.months, rules.unused_keys
    );
    for sentence in rules.text {
        text += &format!("- {sentence}\n");
    }
    write_text(out, prose(&text))
}

#[cfg(test)]
mod tests;

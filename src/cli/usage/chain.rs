//! `touchline usage export`, and the check of the chain of closed days for `verify`.

use std::io::Write;

use anyhow::Context;
use clap::Args;
use jiff::civil::Date;
use serde::Serialize;
use serde_json::json;

use super::query::range;
use crate::cli::output::parse_date;
use crate::cli::session::{Session, piped};
use crate::store::chain::{ChainCheck, CheckedChain, NO_DIGEST};

/// The format of an export.
const FORMAT: u64 = 1;

/// A date before any charged day.
const FIRST: Date = Date::constant(1, 1, 1);

/// The days of an export.
#[derive(Debug, Args)]
pub(super) struct ExportedDays {
    /// The first quota day; the earliest in the ledger if left out.
    #[arg(long, value_parser = parse_date, value_name = "DATE")]
    from: Option<Date>,
    /// The last quota day; today if left out.
    #[arg(long, value_parser = parse_date, value_name = "DATE")]
    to: Option<Date>,
}

/// Parses a digest of the chain, whose letters may be capitals.
pub(super) fn parse_digest(text: &str) -> Result<String, String> {
    let is_digest = text.len() == NO_DIGEST.len() && text.bytes().all(|b| b.is_ascii_hexdigit());
    match is_digest {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("write the 64 hexadecimal characters of a digest".to_owned()),
    }
}

/// Compares the chain with its digests, and closed days among `days` with their rows; `None` if the store has no chain.
pub(super) async fn check(
    session: &Session,
    days: Option<(Date, Date)>,
    digest: Option<&str>,
) -> anyhow::Result<Option<CheckedChain>> {
    let Some(chained) = session.store.chained() else {
        return Ok(None);
    };
    let mut check = ChainCheck::of(days, digest);
    let read = async |sender| chained.read_chain(days, sender).await;
    piped(read, async |piece| {
        check.take(piece);
        Ok(())
    })
    .await?;
    Ok(Some(check.finish()))
}

/// Writes the chain and the rows of the ledger, one JSON value a line.
///
/// # Errors
/// If the store has no chain.
pub(super) async fn export(
    session: &Session,
    span: &ExportedDays,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let chained = session.store.chained().context(
        "only the embedded store has a chain of closed days: use touchline usage --output json",
    )?;
    let now = session.store.server_time().await?;
    let today = session.config.calendar.day_at(now)?.date;
    let first = span.from.unwrap_or(FIRST);
    let (from, to) = range(Some(first), span.to, today)?;
    let head = json!({ "format": FORMAT, "from": from, "to": to });
    write_line(out, &json!({ "touchline_ledger": head }))?;
    let read = async |sender| chained.read_chain(Some((from, to)), sender).await;
    piped(read, async |piece| write_line(out, &piece)).await?;
    Ok(out.flush()?)
}

fn write_line(out: &mut dyn Write, line: &impl Serialize) -> anyhow::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    Ok(out.write_all(b"\n")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_has_64_hexadecimal_characters_and_any_case() {
        let digest = "AB12".repeat(16);
        assert_eq!(parse_digest(&digest), Ok("ab12".repeat(16)));
        for text in ["", "abc", &"g".repeat(64), &"0".repeat(65)] {
            assert!(parse_digest(text).is_err(), "{text}");
        }
    }
}

//! `touchline usage`: reports from the ledger, the invoice of a month, and the verification of both.

use std::io::Write;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Error, Subcommand};

use super::output::{RecordFormat, RowsFormat};
use super::session::{Expected, Session};
use crate::config::Config;

mod bars;
mod chain;
mod grouping;
mod invoice;
mod month;
mod prices;
mod query;
mod report;
mod verify;

use grouping::Grouping;
use month::Month;
use query::LedgerQuery;

/// A report, or a subcommand without options of a report before it ([`refuse_mixed`]).
#[derive(Debug, Args)]
pub(super) struct UsageArguments {
    #[command(subcommand)]
    command: Option<UsageCommand>,
    #[command(flatten)]
    asked: LedgerQuery,
    /// The group that one row shows.
    #[arg(long, value_enum, default_value = "key")]
    by: Grouping,
    /// The format of the result.
    #[arg(short, long, value_enum, default_value = "table")]
    output: RowsFormat,
}

/// Refuses options of a report before a subcommand of `touchline usage`, among all arguments.
///
/// # Errors
/// If there are any. clap's own `args_conflicts_with_subcommands` refuses the global --config too.
pub(super) fn refuse_mixed(matches: &ArgMatches) -> Result<(), Error> {
    let is_own = |matches: &ArgMatches, id: &str| {
        id != "config" && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    if let Some(("usage", matches)) = matches.subcommand()
        && let Some(command) = matches.subcommand_name()
        && matches.ids().any(|id| is_own(matches, id.as_str()))
    {
        let message = format!("{command} takes no options of the report: write its own after it");
        return Err(Error::raw(ErrorKind::ArgumentConflict, message));
    }
    Ok(())
}

#[derive(Debug, Subcommand)]
enum UsageCommand {
    /// Verify that the ledger reconciles: the units used equal the units charged minus refunded at all endpoints, plus those that a
    /// crashed gateway did not attribute. On the embedded store, also verify that the rows of closed days have not changed since.
    /// Fails with the first day, and its key if known, that does not reconcile.
    #[command(after_help = "Example:\n  touchline usage verify --from 2026-10-01 --to 2026-10-31")]
    Verify {
        #[command(flatten)]
        asked: LedgerQuery,
        /// A digest of the chain of closed days from an earlier verify or export; fails if the chain no longer has it.
        #[arg(long, value_name = "SHA-256", value_parser = chain::parse_digest)]
        digest: Option<String>,
        /// The format of the result.
        #[arg(short, long, value_enum, default_value = "table")]
        output: RecordFormat,
    },
    /// Write the rows of the ledger and the chain of closed days, one JSON value per line, so that anyone can check the days against
    /// their digests. Works on the embedded store only.
    #[command(
        after_help = "Example:\n  touchline usage export --from 2026-10-01 --to 2026-10-31 > 2026-10.jsonl"
    )]
    Export {
        #[command(flatten)]
        span: chain::ExportedDays,
    },
    /// List a month by customer, key and tier, with days, units and prices.
    #[command(
        after_help = "Example:\n  touchline usage invoice --month 2026-10 --output csv > 2026-10.csv"
    )]
    Invoice {
        /// The month, such as 2026-10.
        #[arg(long, value_name = "YYYY-MM")]
        month: Month,
        /// Only the keys of this customer, written exactly as stored.
        #[arg(long, value_name = "NAME")]
        customer: Option<String>,
        /// The format of the result.
        #[arg(short, long, value_enum, default_value = "table")]
        output: RowsFormat,
    },
}

/// Runs the command on the configured store.
pub(super) fn run(
    arguments: &UsageArguments,
    config: Config,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let UsageArguments {
        command,
        asked,
        by,
        output,
    } = arguments;
    Session::run(config, Expected::Content, async |session| match command {
        None => report::run(session, asked, *by, *output, out).await,
        Some(UsageCommand::Verify {
            asked,
            digest,
            output,
        }) => verify::run(session, asked, digest.as_deref(), *output, out).await,
        Some(UsageCommand::Export { span }) => chain::export(session, span, out).await,
        Some(UsageCommand::Invoice {
            month,
            customer,
            output,
        }) => invoice::run(session, *month, customer.as_deref(), *output, out).await,
    })
}

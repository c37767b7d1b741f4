//! `touchline keys`: issues, finds, shows and changes keys in the configured store.
//!
//! Every change is a compare-and-set on the record and is written with its entry in the audit trail. A command asks before it ends
//! a client's access, and returns when every gateway has applied the change, or names those that have not.
//! [`crate::policy::lifecycle`] decides the effect of a change.

use std::io::Write;

use clap::Subcommand;
use rustix::fs::{fstat, makedev};

pub(super) use arguments::ChangeOptions;
use named::configured_tier;
use orders::ChangeCommand;

use super::against_running::note_tiers_that_do_not_run;
use super::key_argument::KeyArgument;
use super::output::RecordFormat;
use super::session::{Expected, Session, UsageError, missing_file};
use crate::config::Config;

mod arguments;
mod change;
mod find;
mod issue;
mod named;
mod orders;
mod transfer;
mod view;

#[derive(Debug, Subcommand)]
pub(super) enum KeysCommand {
    /// Issue a key. The key is shown only this once.
    #[command(
        after_help = "Example:\n  touchline keys issue --tier pro --customer \"Acme\" --expires 2027-01-31 -o json"
    )]
    Issue(issue::IssueArguments),
    /// List keys in the order of their issue: all, or those that match every given filter.
    #[command(
        after_help = "Examples:\n  touchline keys list --customer \"Acme\" --state active\n  touchline keys list --output csv > keys.csv"
    )]
    List(find::ListArguments),
    /// Show a key and the units it used today.
    #[command(after_help = "Example:\n  touchline keys show 4fZk09QwXy2B")]
    Show {
        /// The public id of the key, or the key itself.
        id: KeyArgument,
        /// The format of the result.
        #[arg(short, long, value_enum, default_value = "table")]
        output: RecordFormat,
    },
    /// Give a key a new secret. Id and count stay; the old secret is valid until the overlap ends.
    ///
    /// The new key is shown only this once. Asks for confirmation if a valid secret would end at once: with `--overlap 0s`, and during
    /// the overlap of an earlier rotation, whose old secret then ends.
    #[command(
        after_help = "Examples:\n  touchline keys rotate 4fZk09QwXy2B --overlap 24h\n  touchline keys rotate 4fZk09QwXy2B --overlap 0s --yes    # the secret leaked"
    )]
    Rotate(arguments::RotateArguments),
    #[command(flatten)]
    Change(ChangeCommand),
    /// Grant a key extra units on one day, in addition to its tier and to earlier grants for that day.
    ///
    /// The reason is kept in the audit trail and shown by `touchline keys show`.
    #[command(
        after_help = "Examples:\n  touchline keys grant 4fZk09QwXy2B --extra 500 --reason \"Cup final, ticket 4711\"\n  touchline keys grant 4fZk09QwXy2B --extra 500 --day 2026-11-28 --reason \"Load test\""
    )]
    Grant(arguments::GrantArguments),
    /// Import keys that were made elsewhere, of any format, by value or by SHA-256 digest.
    ///
    /// The file is CSV with a header line or JSON Lines, with the fields `customer`, `tier`, and `key` or `digest`, and optionally
    /// `id`, `label`, `state`, `expires`, `grants`, `created`, `previous_digest`, `previous_until` and `ended_digests`. The whole file
    /// is checked first: if it has mistakes, all are listed with their lines and nothing is imported. It is then written in batches, so
    /// charges do not wait long. A second import skips existing keys, so an interrupted import can be completed.
    #[command(
        after_help = "Examples:\n  touchline keys import keys.csv --dry-run\n  touchline keys import keys.jsonl --reason \"moved from the old gateway\"\n  touchline keys import - --format csv"
    )]
    Import(transfer::ImportArguments),
    /// Export all keys as rows. Their values are not stored and not exported.
    #[command(
        after_help = "Examples:\n  touchline keys export > keys.csv\n  touchline keys export keys.jsonl --with-digests"
    )]
    Export(transfer::ExportArguments),
}

/// Runs one of the commands on the configured store.
pub(super) fn run(
    command: &KeysCommand,
    config: Config,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    if let KeysCommand::Issue(_) | KeysCommand::Rotate(_) = command {
        require_reader()?;
    }
    // An unknown tier is reported without opening the store.
    if let KeysCommand::Issue(issue::IssueArguments { tier, .. })
    | KeysCommand::Change(ChangeCommand::SetTier { tier, .. }) = command
    {
        let tier = configured_tier(&config, tier)?;
        note_tiers_that_do_not_run(&config, [&tier]);
    }
    if let KeysCommand::Import(order) = command
        && order.dry_run
        && let Some(missing) = missing_file(&config.store)
    {
        return transfer::rehearse(&config, order, &missing, out);
    }
    let expected = match command {
        // These may be the first commands on a store.
        KeysCommand::Issue(_) | KeysCommand::Import(_) => Expected::Nothing,
        KeysCommand::List(_)
        | KeysCommand::Show { .. }
        | KeysCommand::Rotate(_)
        | KeysCommand::Change(_)
        | KeysCommand::Grant(_)
        | KeysCommand::Export(_) => Expected::Content,
    };
    Session::run(config, expected, async |session| match command {
        KeysCommand::Issue(order) => issue::issue(session, order, out).await,
        KeysCommand::List(wanted) => find::list(session, wanted, out).await,
        KeysCommand::Show { id, output } => {
            find::show(session, id.id(session).await?, *output, out).await
        }
        KeysCommand::Rotate(order) => issue::rotate(session, order, out).await,
        KeysCommand::Change(command) => orders::change(session, command, out).await,
        KeysCommand::Grant(order) => orders::grant(session, order, out).await,
        KeysCommand::Import(order) => transfer::import(session, order, out).await,
        KeysCommand::Export(order) => transfer::export(session, order, out).await,
    })
}

/// Refuses to make a key that standard output would lose: the runtime opens `/dev/null` in the place of a closed one.
fn require_reader() -> anyhow::Result<()> {
    // The device's number on Linux (Documentation/admin-guide/devices.txt); a container may lack its file.
    if fstat(std::io::stdout())?.st_rdev == makedev(1, 3) {
        let message = "nothing was changed: a new key is shown only once, and standard output is closed or /dev/null";
        return Err(UsageError(message.to_owned()).into());
    }
    Ok(())
}

//! `touchline keys`: issues, finds, shows and changes keys in the configured store.
//!
//! Every change is a compare-and-set on the record, asks before it cuts somebody off, is written with its entry in the audit
//! trail, and returns when every gateway has applied it, or names those that have not. What a change means is decided in [`crate::policy::lifecycle`].

use std::io::Write;

use anyhow::{Context, bail};
use clap::Subcommand;

pub(super) use arguments::Signature;

use super::key_argument::{KeyArgument, KeyParser};
use super::output::RecordFormat;
use super::{Session, UsageError, note};
use crate::config::Config;
use crate::policy::api_key::KeyId;
use crate::policy::key_record::{KeyRecord, TierName};

mod arguments;
mod change;
mod find;
mod issue;
mod orders;
mod transfer;
mod view;

#[derive(Debug, Subcommand)]
pub(super) enum KeysCommand {
    /// Issue a key. It is shown this once and never again.
    #[command(
        after_help = "Example:\n  touchline keys issue --tier pro --customer \"Acme\" --label backend --expires 2027-01-31 --output json"
    )]
    Issue(issue::IssueArguments),
    /// List keys in the order of their issue: all, or those that meet every filter given.
    #[command(
        after_help = "Example:\n  touchline keys list --customer \"Acme\" --state active\n  touchline keys list --output csv > keys.csv"
    )]
    List(find::ListArguments),
    /// Show a key and what it used today.
    #[command(after_help = "Example:\n  touchline keys show 4fZk09QwXy2B")]
    Show {
        /// The public id of the key, or the key itself.
        #[arg(value_parser = KeyParser)]
        id: KeyArgument,
        /// The form of the result.
        #[arg(short, long, value_enum, default_value = "table")]
        output: RecordFormat,
    },
    /// Give a key another secret. Id and count stay; the old secret is valid until the overlap ends.
    ///
    /// The new key is shown this once and never again. Asks where a secret that is valid now ends at once: with
    /// `--overlap 0s`, and within the overlap of the rotation before, whose old secret then ends.
    #[command(
        after_help = "Example:\n  touchline keys rotate 4fZk09QwXy2B --overlap 24h\n  touchline keys rotate 4fZk09QwXy2B --overlap 0s --yes    # the secret leaked"
    )]
    Rotate(arguments::RotateArguments),
    /// Refuse all calls with a key until it is resumed, from the next request on every gateway that can reach the store.
    ///
    /// Exits 3 and names the gateways that have not confirmed it. One that cannot reach Redis may go on by the keys that it knows,
    /// for as long as its `store.redis.max_staleness`.
    #[command(after_help = "Example:\n  touchline keys suspend 4fZk09QwXy2B --yes")]
    Suspend(arguments::CutArguments),
    /// End the suspension of a key.
    #[command(after_help = "Example:\n  touchline keys resume 4fZk09QwXy2B")]
    Resume(arguments::PlainArguments),
    /// Revoke a key for ever, from the next request on every gateway that can reach the store.
    ///
    /// Exits 3 and names the gateways that have not confirmed it. One that cannot reach Redis may go on by the keys that it knows,
    /// for as long as its `store.redis.max_staleness`.
    #[command(after_help = "Example:\n  touchline keys revoke 4fZk09QwXy2B --yes")]
    Revoke(arguments::CutArguments),
    /// Put a key into another tier from the next request on. What it used today stays used.
    ///
    /// Asks where the other tier has fewer units a day or lacks an endpoint.
    #[command(after_help = "Example:\n  touchline keys set-tier 4fZk09QwXy2B enterprise")]
    SetTier(arguments::SetTierArguments),
    /// Set the last day of a subscription, or that it never ends.
    ///
    /// Asks where that day is over already, which ends the subscription at once.
    #[command(
        after_help = "Example:\n  touchline keys set-expiry 4fZk09QwXy2B 2027-01-31\n  touchline keys set-expiry 4fZk09QwXy2B never"
    )]
    SetExpiry(arguments::SetExpiryArguments),
    /// Set or remove what the customer calls a key.
    #[command(
        after_help = "Example:\n  touchline keys set-label 4fZk09QwXy2B \"live site\"\n  touchline keys set-label 4fZk09QwXy2B --none"
    )]
    SetLabel(arguments::SetLabelArguments),
    /// Set who pays for a key.
    #[command(after_help = "Example:\n  touchline keys set-customer 4fZk09QwXy2B \"Acme Ltd\"")]
    SetCustomer(arguments::SetCustomerArguments),
    /// Give a key more units on one day, on top of its tier and of earlier grants for that day.
    ///
    /// The reason is kept in the audit trail and shown by `touchline keys show`.
    #[command(
        after_help = "Example:\n  touchline keys grant 4fZk09QwXy2B --extra 500 --reason \"Cup final, ticket 4711\"\n  touchline keys grant 4fZk09QwXy2B --extra 500 --day 2026-11-28 --reason \"Load test\""
    )]
    Grant(arguments::GrantArguments),
    /// Bring in keys that were made elsewhere, by value or by SHA-256 digest, in any format of their own.
    ///
    /// The file is CSV with a header line or JSON Lines, with the fields `customer`, `tier`, and `key` or `digest`, and if wanted
    /// `id`, `label`, `state`, `expires`, `grants`, `created`, `previous_digest` and `previous_until`. It is checked as a whole
    /// first: if anything is wrong, all mistakes are told with their lines and nothing is written. Then it is written in batches
    /// that charges pass between. Importing it again skips what is there, so an import that was interrupted is completed.
    #[command(
        after_help = "Example:\n  touchline keys import keys.csv --dry-run\n  touchline keys import keys.jsonl --reason \"moved from the old gateway\"\n  touchline keys import - --format csv"
    )]
    Import(transfer::ImportArguments),
    /// Write all keys as rows, without their values, which are not stored.
    #[command(
        after_help = "Example:\n  touchline keys export > keys.csv\n  touchline keys export keys.jsonl --with-digests"
    )]
    Export(transfer::ExportArguments),
}

/// Runs one of the commands on the configured store.
pub(super) fn run(
    command: &KeysCommand,
    config: Config,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    match command {
        KeysCommand::Issue(order) => {
            let tier = configured_tier(&config, &order.tier)?;
            Session::run(config, async |session| {
                issue::issue(session, order, tier, out).await
            })
        }
        KeysCommand::List(wanted) => Session::run(config, async |session| {
            find::list(session, wanted, out).await
        }),
        KeysCommand::Show { id, output } => Session::run(config, async |session| {
            find::show(session, id.id(session).await?, *output, out).await
        }),
        KeysCommand::Rotate(order) => Session::run(config, async |session| {
            issue::rotate(session, order, out).await
        }),
        KeysCommand::Suspend(order) => Session::run(config, async |session| {
            orders::suspend(session, order, out).await
        }),
        KeysCommand::Resume(order) => Session::run(config, async |session| {
            orders::resume(session, order, out).await
        }),
        KeysCommand::Revoke(order) => Session::run(config, async |session| {
            orders::revoke(session, order, out).await
        }),
        KeysCommand::SetTier(order) => {
            let tier = configured_tier(&config, &order.tier)?;
            Session::run(config, async |session| {
                orders::set_tier(session, order, &tier, out).await
            })
        }
        KeysCommand::SetExpiry(order) => Session::run(config, async |session| {
            orders::set_expiry(session, order, out).await
        }),
        KeysCommand::SetLabel(order) => Session::run(config, async |session| {
            orders::set_label(session, order, out).await
        }),
        KeysCommand::SetCustomer(order) => Session::run(config, async |session| {
            orders::set_customer(session, order, out).await
        }),
        KeysCommand::Grant(order) => Session::run(config, async |session| {
            orders::grant(session, order, out).await
        }),
        KeysCommand::Import(order) => Session::run(config, async |session| {
            transfer::import(session, order, out).await
        }),
        KeysCommand::Export(order) => Session::run(config, async |session| {
            transfer::export(session, order, out).await
        }),
    }
}

fn configured_tier(config: &Config, name: &str) -> anyhow::Result<TierName> {
    let found = config.tiers.iter().find(|(tier, _)| tier.as_str() == name);
    match found {
        Some((tier, _)) => Ok(tier.clone()),
        None => {
            let names: Vec<&str> = config.tiers.iter().map(|(tier, _)| tier.as_str()).collect();
            bail!(
                "there is no tier {name:?}; the configured tiers are {}",
                names.join(", ")
            )
        }
    }
}

async fn existing(session: &Session, id: KeyId) -> anyhow::Result<KeyRecord> {
    session
        .store
        .key(id)
        .await?
        .with_context(|| format!("there is no key {id}: look for it with `touchline keys list`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_tier_is_told_with_the_configured_ones() {
        let config = Config::parse("g", include_str!("../../gateway.yaml"), &|_| None).unwrap();
        assert_eq!(configured_tier(&config, "pro").unwrap().as_str(), "pro");
        assert_eq!(
            configured_tier(&config, "gold").unwrap_err().to_string(),
            "there is no tier \"gold\"; the configured tiers are starter, pro, enterprise"
        );
    }
}

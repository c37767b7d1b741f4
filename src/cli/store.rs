//! `touchline store`: how the store is doing and what about it breaks a promise; carrying it away and back; striking off gateways
//! that are gone for good.

use std::io::Write;
use std::path::Path;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::Session;
use super::keys::Signature;
use super::output::{
    RecordFormat, escape, parse_name, to_the_second, write_json, write_record, write_table,
};
use crate::config::{Config, Purpose, StoreConfig};
use crate::store::redis::journal_facts;
use crate::store::status::{
    EmbeddedFacts, EventFacts, FeedFacts, GatewayFacts, JournalFacts, RedisFacts, ServerFacts,
    SilentFacts, StoreFacts, StoreStatus,
};
use crate::store::{Forgotten, NodeName};

mod carry;
mod place;

const GATEWAY_HEADER: [&str; 7] = [
    "gateway",
    "version",
    "heartbeat",
    "applied",
    "lag",
    "keys",
    "keys_age",
];
/// What a gateway on Redis says beside that.
const CONDITION_HEADER: [&str; 4] = ["clock", "breaker", "pending", "journal"];
const SILENT_HEADER: [&str; 4] = ["silent gateway", "not heard of since", "version", "applied"];
const GATEWAY_NUMBERS: [&str; 6] = ["heartbeat", "lag", "keys", "keys_age", "clock", "pending"];

#[derive(Debug, Subcommand)]
pub(super) enum StoreCommand {
    /// Show the store, its gateways and its feed, and the gateways that did not sign off and are not heard of any more; warn of
    /// settings that break promises. Fails where the store cannot be used, says why, and shows what this machine's journal holds.
    #[command(after_help = "Example:\n  touchline store status --output json")]
    Status {
        /// The form of the result.
        #[arg(short, long, value_enum, default_value = "table")]
        output: RecordFormat,
    },
    /// Write all that the store holds into a file: keys (digests, never a key), counts, ledger, audit trail, events. Gateways
    /// may run.
    #[command(after_help = "Example:\n  touchline store backup backup.jsonl")]
    Backup(carry::BackupArguments),
    /// Take a backup into the store, whatever kind of store it was made of. Nothing is written unless the file is whole.
    #[command(
        after_help = "Example:\n  touchline store restore backup.jsonl --dry-run\n  touchline store restore backup.jsonl"
    )]
    Restore(carry::RestoreArguments),
    /// Copy all that a store holds into another one, of the same kind or the other. Gateways may run on both; what was used
    /// since is brought by copying again with --merge, which doubles nothing.
    #[command(
        after_help = "Example:\n  touchline store copy --to redis://127.0.0.1:6379/0 --dry-run\n  touchline store copy --from gateway.yaml --to on-redis.yaml\n  touchline store copy --from gateway.yaml --to on-redis.yaml --merge    # what was used since"
    )]
    Copy(carry::CopyArguments),
    /// Strike a gateway off the register that did not sign off and is gone for good: its machine or its disk is. No command names it
    /// any more.
    ///
    /// Not for one that is cut off: while it cannot reach Redis, it may go on by the keys that it knows, for as long as its
    /// `max_staleness`. One that reaches Redis again is on the register again. The order is kept in the audit trail.
    #[command(
        after_help = "Example:\n  touchline store forget web-1-4711-0badcafe --reason \"its machine is gone\""
    )]
    Forget(ForgetArguments),
}

#[derive(Debug, Args)]
pub(super) struct ForgetArguments {
    /// The gateway, as `touchline store status` shows it.
    #[arg(value_parser = parse_name, value_name = "NODE")]
    node: String,
    #[command(flatten)]
    signature: Signature,
    /// The form of the result.
    #[arg(short, long, value_enum, default_value = "table")]
    output: RecordFormat,
}

/// A gateway that was struck off.
#[derive(Debug, Serialize)]
struct ForgottenView<'a> {
    gateway: &'a str,
    /// When it was last heard of.
    heard: jiff::Timestamp,
}

/// What there is to tell without Redis.
#[derive(Debug, Serialize)]
struct WithoutRedis {
    /// Why Redis cannot be asked.
    error: String,
    /// The journal of this machine's gateways.
    journal: JournalFacts,
}

/// Runs one of the commands on the store of a configuration file.
pub(super) fn run(
    command: &StoreCommand,
    configuration: &Path,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<()> {
    let config = || Config::load_for(configuration, Purpose::Commands);
    match command {
        StoreCommand::Status { output } => show_status(config()?, *output, out),
        StoreCommand::Backup(order) => carry::backup(order, configuration, out),
        StoreCommand::Restore(order) => carry::restore(order, configuration, out),
        StoreCommand::Copy(order) => carry::copy(order, configuration, out),
        StoreCommand::Forget(order) => forget(config()?, order, out),
    }
}

fn forget(config: Config, order: &ForgetArguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let name = escape(&order.node);
    Session::run(config, async |session| {
        let node = NodeName(order.node.clone());
        let author = order.signature.author();
        match session.store.forget_gateway(&node, &author).await? {
            Forgotten::Struck { heard } => match order.output {
                RecordFormat::Json => write_json(
                    out,
                    &ForgottenView {
                        gateway: &order.node,
                        heard,
                    },
                ),
                RecordFormat::Table => {
                    let since = to_the_second(heard);
                    writeln!(out, "{name} is struck off; it was last heard of at {since}")?;
                    Ok(out.flush()?)
                }
            },
            Forgotten::Lives => bail!("the gateway {name} lives: nothing was changed"),
            Forgotten::Unknown => bail!(
                "there is no gateway {name} on the register: `touchline store status` shows those that did not sign off"
            ),
        }
    })
}

fn show_status(config: Config, output: RecordFormat, out: &mut dyn Write) -> anyhow::Result<()> {
    let journal = match &config.store {
        StoreConfig::Embedded(_) => None,
        StoreConfig::Redis(redis) => journal_facts(&redis.outage.journal),
    };
    let mut told = None;
    let outcome = Session::run(config, async |session| {
        told = Some(session.store.status().await?);
        Ok(())
    });
    match (told, outcome, journal) {
        (Some(status), outcome, _) => {
            match output {
                RecordFormat::Json => write_json(out, &status)?,
                RecordFormat::Table => write_tables(&status, out)?,
            }
            outcome
        }
        (None, Err(error), Some(journal)) => {
            let without = WithoutRedis {
                error: error.to_string(),
                journal,
            };
            match output {
                RecordFormat::Json => write_json(out, &without)?,
                RecordFormat::Table => write_record(out, &journal_fields(&without.journal))?,
            }
            Err(error)
        }
        (None, outcome, _) => outcome,
    }
}

fn write_tables(status: &StoreStatus, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut fields = match &status.store {
        StoreFacts::Embedded(facts) => embedded_fields(facts),
        StoreFacts::Redis(facts) => redis_fields(facts),
    };
    fields.push(("keys", status.keys.to_string()));
    fields.push(("days", status.days.to_string()));
    fields.push((
        "clock",
        format!("{:+.3} s", status.clock_difference_seconds),
    ));
    fields.push(("events", events_told(&status.events)));
    for warning in &status.warnings {
        fields.push(("warning", warning.clone()));
    }
    write_record(out, &fields)?;
    write_gateways(status, out)?;
    if status.silent.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let rows: Vec<Vec<String>> = status.silent.iter().map(silent_row).collect();
    write_table(out, &SILENT_HEADER, &[], &rows)
}

fn write_gateways(status: &StoreStatus, out: &mut dyn Write) -> anyhow::Result<()> {
    if status.gateways.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let mut header = GATEWAY_HEADER.to_vec();
    let mut rows: Vec<Vec<String>> = status.gateways.iter().map(gateway_row).collect();
    match &status.store {
        StoreFacts::Embedded(_) => {}
        StoreFacts::Redis(_) => {
            header.extend(CONDITION_HEADER);
            for (row, gateway) in rows.iter_mut().zip(&status.gateways) {
                row.extend(condition_row(gateway));
            }
        }
    }
    write_table(out, &header, &GATEWAY_NUMBERS, &rows)
}

fn events_told(events: &EventFacts) -> String {
    let EventFacts {
        waiting,
        oldest_seconds,
        courier,
    } = events;
    let age = oldest_seconds.map_or_else(String::new, |age| format!(", the oldest for {age:.0} s"));
    let courier = courier.as_deref().unwrap_or("no gateway");
    format!("{waiting} wait for the webhook{age}; {courier} delivers")
}

fn embedded_fields(facts: &EmbeddedFacts) -> Vec<(&'static str, String)> {
    vec![
        ("store", "embedded".to_owned()),
        ("path", facts.path.display().to_string()),
        ("size", format!("{} bytes", facts.bytes)),
        ("durability", facts.durability.clone()),
        ("schema", facts.schema_version.to_string()),
    ]
}

fn redis_fields(facts: &RedisFacts) -> Vec<(&'static str, String)> {
    let tls = if facts.tls { ", TLS" } else { "" };
    let mut fields = vec![
        ("store", format!("redis, {}{tls}", facts.topology)),
        ("place", facts.place.clone()),
    ];
    for server in &facts.servers {
        fields.extend(server_fields(server));
    }
    let incarnation = facts.incarnation.as_deref();
    fields.push(("incarnation", incarnation.unwrap_or("none").to_owned()));
    let index = match facts.index_complete {
        true => "complete",
        false => "not complete",
    };
    fields.push(("index", index.to_owned()));
    let FeedFacts { length, last } = &facts.feed;
    fields.push(("feed", format!("{length} entries, last {last}")));
    if let Some(journal) = &facts.journal {
        fields.extend(journal_fields(journal));
    }
    fields
}

fn journal_fields(journal: &JournalFacts) -> Vec<(&'static str, String)> {
    let JournalFacts {
        path,
        bytes,
        store,
        pending_units,
        counts,
        unsettled_counts,
        error,
    } = journal;
    let held = match error {
        Some(error) => format!("it cannot be read: {error}"),
        None => format!(
            "{pending_units} units pending, {unsettled_counts} of {counts} counts not known to be in Redis, {bytes} bytes"
        ),
    };
    let store = store.as_deref().unwrap_or("nobody yet");
    vec![
        ("journal here", path.display().to_string()),
        ("journal of", store.to_owned()),
        ("journal holds", held),
    ]
}

fn server_fields(server: &ServerFacts) -> Vec<(&'static str, String)> {
    let ServerFacts {
        address,
        version,
        run_id,
        role,
        uptime_seconds,
        replicas,
        append_only,
        append_fsync,
        snapshots,
        maxmemory_policy,
        maxmemory_bytes,
        used_memory_bytes,
    } = server;
    let unknown = || UNREPORTED.to_owned();
    let append_only = match append_only {
        true => append_fsync.clone().unwrap_or_else(unknown),
        false => "off".to_owned(),
    };
    let snapshots = match snapshots.as_deref() {
        Some("") => "off".to_owned(),
        Some(times) => times.to_owned(),
        None => unknown(),
    };
    let memory = match maxmemory_bytes {
        0 => format!("{used_memory_bytes} bytes, {maxmemory_policy}"),
        max => format!("{used_memory_bytes} of {max} bytes, {maxmemory_policy}"),
    };
    vec![
        ("server", address.clone()),
        ("version", version.clone()),
        ("run id", run_id.clone()),
        ("role", format!("{role}, {replicas} replicas")),
        ("uptime", format!("{uptime_seconds} s")),
        ("append-only file", append_only),
        ("snapshots", snapshots),
        ("memory", memory),
    ]
}

/// In the place of a fact that a gateway has not reported.
const UNREPORTED: &str = "not reported";

fn gateway_row(gateway: &GatewayFacts) -> Vec<String> {
    let seconds =
        |age: Option<f64>| age.map_or_else(|| UNREPORTED.to_owned(), |age| format!("{age:.1} s"));
    let told = |text: &Option<String>| text.clone().unwrap_or_else(|| UNREPORTED.to_owned());
    vec![
        gateway.name.clone(),
        told(&gateway.version),
        seconds(Some(gateway.heartbeat_age_seconds)),
        told(&gateway.applied),
        seconds(gateway.lag_seconds),
        told(&gateway.keys.map(|keys| keys.to_string())),
        seconds(gateway.keys_age_seconds),
    ]
}

fn silent_row(silent: &SilentFacts) -> Vec<String> {
    let told = |text: &Option<String>| text.clone().unwrap_or_else(|| UNREPORTED.to_owned());
    vec![
        silent.name.clone(),
        to_the_second(silent.since),
        told(&silent.version),
        told(&silent.applied),
    ]
}

fn condition_row(gateway: &GatewayFacts) -> [String; 4] {
    let told = |text: Option<String>| text.unwrap_or_else(|| UNREPORTED.to_owned());
    let clock = gateway.clock_difference_seconds;
    let breaker = gateway.breaker.as_ref();
    let service = gateway.service.as_ref();
    [
        told(clock.map(|seconds| format!("{seconds:+.1} s"))),
        told(
            breaker.map(|breaker| format!("{} for {:.0} s", breaker.state, breaker.since_seconds)),
        ),
        told(service.map(|service| service.pending_units.to_string())),
        told(service.map(|service| {
            let state = match service.journal_error {
                None => "",
                Some(_) => ", failed",
            };
            format!("{}{state}", service.journal.display())
        })),
    ]
}

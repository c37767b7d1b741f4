//! `touchline store`: the state of the store with warnings about unsafe settings; backup, restore and copy; removing gateways that
//! are gone for good.

use std::io::Write;
use std::path::Path;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

use super::keys::ChangeOptions;
use super::output::long_table::write_table;
use super::output::{RecordFormat, escape, parse_name, to_the_second, write_record, write_text};
use super::session::{Expected, Session, judged};
use crate::config::{Config, Purpose};
use crate::store::status::{
    EmbeddedFacts, EventFacts, FeedFacts, GatewayFacts, JournalFacts, RedisFacts, ServerFacts,
    SilentFacts, StoreFacts, StoreStatus, ahead_of,
};
use crate::store::{Forgotten, NodeName};

mod place;
mod transfer;

/// Names and values, of a record or of a row.
type NamedValues = Vec<(&'static str, String)>;

const GATEWAY_NUMBERS: [&str; 6] = ["heartbeat", "lag", "keys", "keys_age", "clock", "pending"];

#[derive(Debug, Subcommand)]
pub(super) enum StoreCommand {
    /// Show the state of the store and of its gateways, also of silent ones, which stopped reporting without signing off; warn about
    /// settings that can lose data. If the store is unusable, fail with the reason and show the content of this machine's journal.
    #[command(after_help = "Example:\n  touchline store status --output json")]
    Status {
        /// The format of the result.
        #[arg(short, long, value_enum, default_value = "table")]
        output: RecordFormat,
    },
    /// Write the whole content of the store to a file: keys (digests, never a key), counts, ledger, audit trail, events. Gateways may
    /// run meanwhile.
    #[command(after_help = "Example:\n  touchline store backup backup.jsonl")]
    Backup(transfer::BackupArguments),
    /// Restore a backup into the store, from either kind of store. Nothing is written unless the file is complete.
    #[command(
        after_help = "Examples:\n  touchline store restore backup.jsonl --dry-run\n  touchline store restore backup.jsonl"
    )]
    Restore(transfer::RestoreArguments),
    /// Copy the whole content of a store into another one, of either kind. Gateways may run on both. To transfer what was counted
    /// since, copy again with --merge: nothing is counted twice.
    #[command(
        after_help = "Examples:\n  touchline store copy --to redis://127.0.0.1:6379/0 --dry-run\n  touchline store copy --from gateway.yaml --to on-redis.yaml\n  touchline store copy --from gateway.yaml --to on-redis.yaml --merge    # changes since"
    )]
    Copy(transfer::CopyArguments),
    /// Remove a silent gateway from the register because its machine or disk is gone for good. Commands then no longer name it.
    ///
    /// Do not remove a gateway that is only cut off: while it cannot reach Redis, it may accept the keys it knows until its
    /// `max_staleness` is over. A gateway that reaches Redis again is registered again. The command is kept in the audit trail.
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
    options: ChangeOptions,
}

/// The status without Redis.
#[derive(Debug, Serialize)]
struct WithoutRedis {
    /// Why Redis cannot be queried.
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
        StoreCommand::Backup(order) => transfer::backup(order, config()?, out),
        StoreCommand::Restore(order) => transfer::restore(order, &config()?, out),
        StoreCommand::Copy(order) => transfer::copy(order, configuration, out),
        StoreCommand::Forget(order) => forget(config()?, order, out),
    }
}

fn forget(config: Config, order: &ForgetArguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let name = escape(&order.node);
    Session::run(config, Expected::Database, async |session| {
        let node = NodeName(order.node.clone());
        let author = order.options.author();
        match session.store.forget_gateway(&node, &author).await? {
            Forgotten::Struck { heard } => {
                let forgotten = json!({ "gateway": order.node, "heard": heard });
                let since = to_the_second(heard);
                let sentence =
                    format!("{name} is removed from the register; it last reported at {since}\n");
                let shown = |out: &mut dyn Write| write_text(out, sentence);
                order.options.output.write(out, &forgotten, shown)
            }
            Forgotten::Lives => bail!("the gateway {name} is running: nothing was changed"),
            Forgotten::Unknown => bail!(
                "there is no gateway {name} in the register: `touchline store status` shows the silent ones"
            ),
        }
    })
}

fn show_status(config: Config, output: RecordFormat, out: &mut dyn Write) -> anyhow::Result<()> {
    let journal = place::journal_of(&config.store);
    let status = Session::run(config, Expected::Database, async |session| {
        Ok(session.store.status().await?)
    });
    match (status, journal) {
        (Ok(status), _) => output.write(out, &status, |out| write_tables(&status, out)),
        (Err(error), None) => Err(error),
        (Err(error), Some(journal)) => {
            let without = WithoutRedis {
                error: error.to_string(),
                journal,
            };
            let table = |out: &mut dyn Write| write_record(out, &journal_fields(&without.journal));
            judged(output.write(out, &without, table), Err(error))
        }
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
        format!(
            "{} this machine's",
            ahead_of(status.clock_difference_seconds)
        ),
    ));
    fields.push(("events", events_text(&status.events)));
    for warning in &status.warnings {
        fields.push(("warning", warning.clone()));
    }
    write_record(out, &fields)?;
    let (gateways, silent) = (status.gateways.iter(), status.silent.iter());
    let gateways = gateways.map(|gateway| {
        let mut row = gateway_row(gateway);
        match &status.store {
            StoreFacts::Embedded(_) => {}
            StoreFacts::Redis(_) => row.extend(condition_fields(gateway)),
        }
        row
    });
    write_rows(out, &GATEWAY_NUMBERS, &gateways.collect::<Vec<_>>())?;
    write_rows(out, &[], &silent.map(silent_row).collect::<Vec<_>>())
}

/// Writes a table below others, if it has rows.
fn write_rows(out: &mut dyn Write, numbers: &[&str], rows: &[NamedValues]) -> anyhow::Result<()> {
    let Some(first) = rows.first() else {
        return Ok(());
    };
    let header: Vec<&str> = first.iter().map(|(name, _)| *name).collect();
    let rows = rows.iter().cloned();
    let rows = rows.map(|row| row.into_iter().map(|(_, value)| value).collect());
    writeln!(out)?;
    write_table(out, &header, numbers, &rows.collect::<Vec<_>>())
}

fn events_text(events: &EventFacts) -> String {
    let (waiting, age) = (events.waiting, events.oldest_seconds);
    let age = age.map_or_else(String::new, |age| format!(", the oldest {age:.0} s"));
    let courier = events.courier.as_deref().unwrap_or("no gateway");
    format!("{waiting} pending for the webhook{age}; delivered by {courier}")
}

fn embedded_fields(facts: &EmbeddedFacts) -> NamedValues {
    vec![
        ("store", "embedded".to_owned()),
        ("path", facts.path.display().to_string()),
        ("size", format!("{} bytes", facts.bytes)),
        ("durability", facts.durability.clone()),
        ("schema", facts.schema_version.to_string()),
    ]
}

fn redis_fields(facts: &RedisFacts) -> NamedValues {
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

fn journal_fields(journal: &JournalFacts) -> NamedValues {
    let JournalFacts {
        path,
        bytes,
        store,
        pending_units,
        counts,
        unsettled_counts,
        error,
        disk_error,
    } = journal;
    let held = match error {
        Some(error) => format!("unreadable: {error}"),
        None => format!(
            "{pending_units} units pending, {unsettled_counts} of {counts} counts not confirmed by Redis, {bytes} bytes"
        ),
    };
    let store = store.as_deref().unwrap_or("no store yet");
    let mut fields = vec![
        ("journal here", path.display().to_string()),
        ("journal of", store.to_owned()),
        ("journal holds", held),
    ];
    if let Some(error) = disk_error {
        let warning =
            format!("the journal cannot be written, so nothing is served without Redis: {error}");
        fields.push(("warning", warning));
    }
    fields
}

fn server_fields(server: &ServerFacts) -> NamedValues {
    let append_only = match server.append_only {
        Some(false) => "off".to_owned(),
        Some(true) if server.append_fsync.is_none() => "on".to_owned(),
        Some(true) | None => reported(server.append_fsync.as_ref()),
    };
    let snapshots = match server.snapshots.as_deref() {
        Some("") => "off".to_owned(),
        times => reported(times),
    };
    let (used, policy) = (server.used_memory_bytes, &server.maxmemory_policy);
    let memory = match server.maxmemory_bytes {
        0 => format!("{used} bytes, {policy}"),
        max => format!("{used} of {max} bytes, {policy}"),
    };
    let (role, replicas) = (&server.role, server.replicas);
    vec![
        ("server", server.address.clone()),
        ("version", server.version.clone()),
        ("run id", server.run_id.clone()),
        ("role", format!("{role}, {replicas} replicas")),
        ("uptime", format!("{} s", server.uptime_seconds)),
        ("append-only file", append_only),
        ("snapshots", snapshots),
        ("memory", memory),
    ]
}

/// A fact, or a text that it was not reported.
fn reported(fact: Option<impl ToString>) -> String {
    fact.map_or_else(|| "not reported".to_owned(), |fact| fact.to_string())
}

fn gateway_row(gateway: &GatewayFacts) -> NamedValues {
    let seconds = |age: Option<f64>| reported(age.map(|age| format!("{age:.1} s")));
    vec![
        ("gateway", gateway.name.clone()),
        ("version", reported(gateway.version.as_ref())),
        ("heartbeat", seconds(Some(gateway.heartbeat_age_seconds))),
        ("applied", reported(gateway.applied.as_ref())),
        ("lag", seconds(gateway.lag_seconds)),
        ("keys", reported(gateway.keys)),
        ("keys_age", seconds(gateway.keys_age_seconds)),
    ]
}

fn silent_row(silent: &SilentFacts) -> NamedValues {
    vec![
        ("silent gateway", silent.name.clone()),
        ("silent since", to_the_second(silent.since)),
        ("version", reported(silent.version.as_ref())),
        ("applied", reported(silent.applied.as_ref())),
    ]
}

/// The facts that only gateways on Redis report.
fn condition_fields(gateway: &GatewayFacts) -> NamedValues {
    let clock = gateway.clock_difference_seconds;
    let clock = clock.map(|difference| format!("{} Redis's", ahead_of(-difference)));
    let breaker = gateway.breaker.as_ref();
    let breaker =
        breaker.map(|breaker| format!("{} for {:.0} s", breaker.state, breaker.since_seconds));
    let service = gateway.service.as_ref();
    let journal = service.map(|service| {
        let state = match service.journal_error {
            None => "",
            Some(_) => ", failed",
        };
        format!("{}{state}", service.journal.display())
    });
    vec![
        ("clock", reported(clock)),
        ("breaker", reported(breaker)),
        (
            "pending",
            reported(service.map(|service| service.pending_units)),
        ),
        ("journal", reported(journal)),
    ]
}

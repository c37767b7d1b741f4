//! `touchline store backup`, `restore` and `copy`: moves the content of a store into a file, out of it, or into another store,
//! while gateways may run.
//!
//! Repeating any of them counts nothing twice (see [`crate::store::export`]): an interrupted command is run again, and so
//! transfers what was counted meanwhile.

use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use super::place;
use crate::cli::output::new_file::NewFile;
use crate::cli::output::{RecordFormat, to_the_second, write_record};
use crate::cli::session::{
    CLOSE_DEADLINE, Expected, Session, missing_file, note, on_runtime, piped,
};
use crate::clock::Clock;
use crate::config::{Config, Purpose, open_regular};
use crate::policy::calendar::is_same_zone;
use crate::policy::words::counted;
use crate::server;
use crate::store::backup::{BackupReader, BackupWriter, Contents, FORMAT, Header};
use crate::store::export::{Exported, ImportCounts, ImportMode};
use crate::store::{Role, Store};

/// Pieces written at once: some milliseconds in which other processes wait for the embedded store.
const BATCH: usize = 250;

#[derive(Debug, Args)]
pub(in crate::cli) struct BackupArguments {
    /// The file. It must not exist yet, and is readable by its owner only, because it has digests of keys. `-` is standard output.
    file: PathBuf,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RestoreArguments {
    /// The file. It is read twice, first to check that it is complete.
    file: PathBuf,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct CopyArguments {
    /// The store to copy: a configuration file (.yaml), redis://HOST:PORT/DATABASE, or a database file (.db); the configured store if
    /// left out.
    #[arg(long, value_name = "STORE")]
    from: Option<String>,
    /// The store to copy into, named in the same way.
    #[arg(long, value_name = "STORE")]
    to: String,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
struct How {
    /// Write into a store that is not empty. Of two records of a key the newer is kept, and units counted in both stores are counted
    /// once.
    #[arg(long)]
    merge: bool,
    /// Write nothing, only report what would be written.
    #[arg(long)]
    dry_run: bool,
    /// The format of the result.
    #[arg(short, long, value_enum, default_value = "table")]
    output: RecordFormat,
}

/// The result, or the expected result of a rehearsal.
#[derive(Debug, Serialize)]
struct TransferOutcome {
    /// The file or store that was read.
    from: String,
    /// The store that was written.
    to: String,
    /// Whether nothing was written.
    dry_run: bool,
    /// What was read.
    read: Contents,
    /// The number of items added, replaced and kept.
    #[serde(rename = "taken")]
    imported: ImportCounts,
}

/// The destination of pieces, batch by batch.
struct TransferTarget {
    /// `None` for a missing database, which a rehearsal does not create.
    store: Option<Arc<dyn Store>>,
    batch: Vec<Exported>,
    outcome: TransferOutcome,
}

pub(super) fn backup(
    order: &BackupArguments,
    from: Config,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<()> {
    note_journal(&from, "back up again");
    let header = Header {
        format: FORMAT,
        made: Timestamp::now(),
        by: format!("touchline {}", env!("CARGO_PKG_VERSION")),
        store: place::kind(&from.store).to_owned(),
        zone: from.calendar.name().to_owned(),
    };
    if order.file == Path::new("-") {
        let contents = write_backup(from, &header, BufWriter::new(out))?;
        note(&format!("{} backed up", summary(&contents)));
        return Ok(());
    }
    let shown = order.file.display();
    let file = NewFile::create(&order.file)?;
    let written = write_backup(from, &header, BufWriter::new(file.file()))
        .and_then(|contents| Ok(file.finish().map(|()| contents)?));
    match written {
        Ok(contents) => {
            note(&format!("{} backed up to {shown}", summary(&contents)));
            Ok(())
        }
        Err(error) => Err(match error.is::<std::io::Error>() {
            true => error.context(format!("{shown} cannot be written")),
            false => error,
        }),
    }
}

fn write_backup(from: Config, header: &Header, out: impl Write) -> anyhow::Result<Contents> {
    Session::run(from, Expected::Content, async |source| {
        let mut writer = BackupWriter::begin(out, header)?;
        let put = async |piece| Ok(writer.put(&piece)?);
        piped(async |sender| source.store.export(sender).await, put).await?;
        let (contents, mut out) = writer.end()?;
        out.flush()?;
        Ok(contents)
    })
}

pub(super) fn restore(
    order: &RestoreArguments,
    to: &Config,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let shown = order.file.display().to_string();
    let mut whole = opened(&order.file)?;
    while whole.next_piece().with_context(|| shown.clone())?.is_some() {}
    let header = whole.header();
    same_zone(&shown, &header.zone, to.calendar.name())?;
    let made = to_the_second(header.made);
    note(&format!(
        "{shown}: {} of a store ({}), created {made} by {}",
        summary(whole.contents()),
        header.store,
        header.by
    ));
    let fill = async |target: &mut TransferTarget| {
        let mut reader = opened(&order.file)?;
        while let Some(piece) = reader.next_piece().with_context(|| shown.clone())? {
            target.put(piece).await?;
        }
        Ok(())
    };
    let from = shown.clone();
    on_runtime(TransferTarget::filled(from, to, &order.how, fill))?.report(order.how.output, out)
}

fn opened(file: &Path) -> anyhow::Result<BackupReader<BufReader<File>>> {
    let shown = file.display();
    let file = match open_regular(file) {
        Err(error) if error.kind() == ErrorKind::InvalidInput || file == Path::new("-") => {
            bail!("cannot read {shown}: a backup is read twice, so name a regular file, not a pipe")
        }
        opened => opened.with_context(|| format!("cannot read {shown}"))?,
    };
    BackupReader::begin(BufReader::new(file)).with_context(|| shown.to_string())
}

pub(super) fn copy(
    order: &CopyArguments,
    configuration: &Path,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let from = match &order.from {
        Some(from) => place::named(from, configuration)?,
        None => Config::load_for(configuration, Purpose::Commands)?,
    };
    let to = place::named(&order.to, configuration)?;
    let from_shown = place::shown(&from.store);
    same_zone(&from_shown, from.calendar.name(), to.calendar.name())?;
    note_journal(&from, "copy again with --merge");
    let target = Session::run(from, Expected::Content, async |source| {
        let fill = async |target: &mut TransferTarget| {
            let put = async |piece| target.put(piece).await;
            piped(async |sender| source.store.export(sender).await, put).await
        };
        TransferTarget::filled(from_shown, &to, &order.how, fill).await
    })?;
    target.report(order.how.output, out)
}

/// Refuses stores with different midnights, whose counts do not correspond.
fn same_zone(from: &str, theirs: &str, ours: &str) -> anyhow::Result<()> {
    if !is_same_zone(theirs, ours) {
        bail!(
            "{from} counts days in the time zone {theirs}, the store to write in {ours}: set quota.timezone to {theirs} \
             and use a new store"
        );
    }
    Ok(())
}

/// Writes a note if the journals of this machine have counts that their Redis may not have, with the command to repeat.
fn note_journal(from: &Config, again: &str) {
    if let Some(journal) = place::journal_of(&from.store)
        && journal.pending_units + journal.unsettled_counts > 0
    {
        note(&format!(
            "{} has {} units and {} counts that Redis may not have yet: if no gateway runs on that store any more, run one \
            until touchline store status shows none, then {again}",
            journal.path.display(),
            journal.pending_units,
            journal.unsettled_counts
        ));
    }
}

impl TransferTarget {
    /// The target after `fill` has put all pieces into it.
    ///
    /// # Errors
    /// Those of `fill` and of the store; if a part was written, with a note on that.
    async fn filled(
        from: String,
        to: &Config,
        how: &How,
        fill: impl AsyncFnOnce(&mut TransferTarget) -> anyhow::Result<()>,
    ) -> anyhow::Result<TransferTarget> {
        let mut target = TransferTarget::open(from, to, how).await?;
        let filled = match fill(&mut target).await {
            Ok(()) => target.flush().await,
            Err(error) => Err(error),
        };
        target.close().await;
        let TransferOutcome {
            dry_run, imported, ..
        } = target.outcome;
        let begun = !dry_run && imported != ImportCounts::default();
        match filled {
            Ok(()) => Ok(target),
            Err(error) if begun => Err(error.context(
                "the command was not completed; the part already written does no harm: correct the cause and run it again with --merge",
            )),
            Err(error) => Err(error),
        }
    }

    async fn open(from: String, to: &Config, how: &How) -> anyhow::Result<TransferTarget> {
        let missing = how.dry_run && missing_file(&to.store).is_some();
        let store = match missing {
            true => None,
            false => Some(server::open_store(to, Role::Command, Clock::system()).await?),
        };
        let target = TransferTarget {
            store,
            batch: Vec::with_capacity(BATCH),
            outcome: TransferOutcome {
                from,
                to: place::shown(&to.store),
                dry_run: how.dry_run,
                read: Contents::default(),
                imported: ImportCounts::default(),
            },
        };
        if let Some(store) = target.store.as_ref().filter(|_| !how.merge) {
            let status = store.status().await;
            if status
                .as_ref()
                .is_ok_and(|status| status.keys + status.days == 0)
            {
                return Ok(target);
            }
            target.close().await;
            let status = status?;
            bail!(
                "{} already has {} and {}: name an empty store, or add --merge to write into it all the same \
                (after an interruption, to transfer later counts, or to combine both stores)",
                target.outcome.to,
                counted(status.keys, "key", "keys"),
                counted(status.days, "day", "days")
            );
        }
        Ok(target)
    }

    async fn put(&mut self, piece: Exported) -> anyhow::Result<()> {
        self.outcome.read.count(&piece);
        self.batch.push(piece);
        match self.batch.len() < BATCH {
            true => Ok(()),
            false => self.flush().await,
        }
    }

    async fn flush(&mut self) -> anyhow::Result<()> {
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH));
        let mode = match self.outcome.dry_run {
            true => ImportMode::DryRun,
            false => ImportMode::Write,
        };
        let imported = match &self.store {
            Some(store) => store.import_exported(batch, mode).await?,
            None => all_new(&batch),
        };
        self.outcome.imported.add(&imported);
        Ok(())
    }

    async fn close(&self) {
        if let Some(store) = &self.store {
            store.close(CLOSE_DEADLINE).await;
        }
    }

    fn report(&self, output: RecordFormat, out: &mut dyn Write) -> anyhow::Result<()> {
        let outcome = &self.outcome;
        output.write(out, outcome, |out| write_record(out, &fields(outcome)))
    }
}

/// The result of a batch in an empty store.
fn all_new(batch: &[Exported]) -> ImportCounts {
    let mut contents = Contents::default();
    batch.iter().for_each(|piece| contents.count(piece));
    ImportCounts {
        keys_added: contents.keys,
        audit_entries_added: contents.audit_entries,
        key_days_added: contents.key_days,
        events_added: contents.events,
        ..ImportCounts::default()
    }
}

fn summary(contents: &Contents) -> String {
    format!(
        "{}, {}, {}, {}",
        counted(contents.keys, "key", "keys"),
        counted(contents.audit_entries, "audit entry", "audit entries"),
        counted(contents.key_days, "day of a key", "days of keys"),
        counted(contents.events, "event", "events")
    )
}

fn fields(outcome: &TransferOutcome) -> Vec<(&'static str, String)> {
    let (read, taken) = (&outcome.read, &outcome.imported);
    let written = match outcome.dry_run {
        true => "would be written",
        false => "written",
    };
    let moved = |read: u64, new: String| format!("{read} read: {new} {written}");
    let with_held = |moved: String, held: u64| format!("{moved}, {held} already stored");
    let keys = format!("{} new and {} newer", taken.keys_added, taken.keys_replaced);
    let keys = moved(read.keys, keys);
    let audit_entries = moved(read.audit_entries, taken.audit_entries_added.to_string());
    let days = moved(read.key_days, taken.key_days_added.to_string());
    let events = moved(read.events, taken.events_added.to_string());
    vec![
        ("from", outcome.from.clone()),
        ("to", outcome.to.clone()),
        ("keys", with_held(keys, taken.keys_held)),
        ("audit entries", audit_entries),
        ("days of keys", with_held(days, taken.key_days_held)),
        ("events", with_held(events, taken.events_held)),
    ]
}

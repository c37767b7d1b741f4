//! `touchline keys import`: checks a whole file of keys, then writes it in batches, between which charges are served.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use jiff::Timestamp;
use serde::Serialize;

use super::check::{Checker, GivenId, ImportProblem, ImportableKey, Setting};
use super::file::{FileFormat, is_standard};
use super::rows;
use crate::cli::against_running::note_tiers_that_do_not_run;
use crate::cli::keys::arguments::ChangeOptions;
use crate::cli::output::{RecordFormat, write_text};
use crate::cli::session::{Session, UsageError, note};
use crate::clock::Clock;
use crate::config::Config;
use crate::policy::api_key::{KeyId, os_entropy};
use crate::policy::key_record::{Action, KeyRecord, TierName};
use crate::policy::words::counted;
use crate::store::{ChangeError, ChangeMark, Imported};

/// Keys of one batch: some 20 milliseconds in which other processes wait for the embedded store.
const BATCH: usize = 500;
/// The number of bytes read from the file at once.
const READ_BYTES: usize = 65_536;

#[derive(Debug, Args)]
pub(in crate::cli) struct ImportArguments {
    /// The file, or `-` for standard input.
    file: PathBuf,
    /// The format of the file; by default from the end of its name.
    #[arg(long, value_enum)]
    format: Option<FileFormat>,
    /// Only check the file.
    #[arg(long)]
    pub(in crate::cli) dry_run: bool,
    #[command(flatten)]
    options: ChangeOptions,
}

/// The outcome of an import.
#[derive(Debug, Default, Serialize)]
struct ImportOutcome {
    /// The number of keys added, or to be added.
    imported: usize,
    /// The number of keys that the store already had.
    present: usize,
    /// Whether the file was only checked.
    dry_run: bool,
}

pub(in crate::cli::keys) async fn import(
    session: &Session,
    order: &ImportArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let now = session.store.server_time().await?;
    let stored = session.store.all_keys().await?;
    let keys = check(&session.config, order, now, &stored)?;
    let is_stored = |key: &&ImportableKey| key.id == GivenId::Stored;
    let mut outcome = ImportOutcome {
        present: keys.iter().filter(is_stored).count(),
        dry_run: order.dry_run,
        ..ImportOutcome::default()
    };
    outcome.imported = keys.len() - outcome.present;
    let tiers: BTreeSet<&TierName> = keys.iter().map(|key| &key.record.tier).collect();
    note_tiers_that_do_not_run(&session.config, tiers);
    let mut mark = None;
    if !order.dry_run {
        let mut writing = Writing::new(session, keys.len());
        let written = writing.write_all(keys).await;
        writing.bar.finish_and_clear();
        written?;
        (outcome, mark) = (writing.outcome, writing.mark);
    }
    let shown = write_outcome(&outcome, order.options.output, out);
    match order.dry_run {
        false => session.applied_after(shown, mark.map(Ok).as_ref()).await,
        true => shown,
    }
}

/// Checks an import into a database that it would create.
pub(in crate::cli::keys) fn rehearse(
    config: &Config,
    order: &ImportArguments,
    missing: &Path,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let keys = check(config, order, Clock::system().now(), &[])?;
    let tiers: BTreeSet<&TierName> = keys.iter().map(|key| &key.record.tier).collect();
    note_tiers_that_do_not_run(config, tiers);
    note(&format!(
        "there is no database {} yet: the import would create it. If there were keys, run the command in the gateway's working \
         directory, or correct store.embedded.path",
        std::path::absolute(missing).unwrap_or_default().display()
    ));
    let outcome = ImportOutcome {
        imported: keys.len(),
        dry_run: true,
        ..ImportOutcome::default()
    };
    write_outcome(&outcome, order.options.output, out)
}

/// The keys of the file, without mistakes.
fn check(
    config: &Config,
    order: &ImportArguments,
    now: Timestamp,
    stored: &[KeyRecord],
) -> anyhow::Result<Vec<ImportableKey>> {
    let Some(format) = FileFormat::of(order.format, &order.file) else {
        bail!(UsageError(format!(
            "the name of {} does not show its format: add --format csv or --format jsonl",
            order.file.display()
        )));
    };
    let setting = Setting {
        config,
        now,
        change: order.options.first(Action::Import).into(),
    };
    let mut checker = Checker::new(setting, stored);
    let take = |line, row| checker.take(line, row, || KeyId::generate(&mut os_entropy));
    let shown = order.file.display();
    let read = if is_standard(&order.file) {
        rows::read(
            format,
            BufReader::with_capacity(READ_BYTES, io::stdin()),
            take,
        )
    } else {
        let file = File::open(&order.file).with_context(|| format!("cannot open {shown}"))?;
        rows::read(format, BufReader::with_capacity(READ_BYTES, file), take)
    };
    read.with_context(|| format!("cannot read {shown}"))?;
    checker
        .finish()
        .map_err(|problems| refused(&order.file, &problems))
}

/// The error with all mistakes of a file.
fn refused(file: &Path, problems: &[ImportProblem]) -> anyhow::Error {
    let name = match is_standard(file) {
        true => "standard input".into(),
        false => file.to_string_lossy(),
    };
    let mistakes = counted(problems.len(), "mistake", "mistakes");
    let mut text = format!("nothing was imported: {mistakes}\n");
    for problem in problems {
        text.push_str(&format!("{name}:{}: {}\n", problem.line, problem.text));
    }
    anyhow::anyhow!(text)
}

fn write_outcome(
    outcome: &ImportOutcome,
    output: RecordFormat,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let keys = counted(outcome.imported, "key", "keys");
    let imported = match outcome.dry_run {
        true => format!("the file has no mistakes: {keys} to import"),
        false => format!("{keys} imported"),
    };
    let sentence = format!("{imported}, {} already stored\n", outcome.present);
    output.write(out, outcome, |out| write_text(out, sentence))
}

/// A running import.
struct Writing<'s> {
    session: &'s Session,
    bar: ProgressBar,
    outcome: ImportOutcome,
    mark: Option<ChangeMark>,
    /// The lines of the file that were not imported, and why.
    refused: BTreeMap<u64, String>,
}

impl<'s> Writing<'s> {
    fn new(session: &'s Session, keys: usize) -> Writing<'s> {
        let target = match io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let length = u64::try_from(keys).unwrap_or(u64::MAX);
        let bar = ProgressBar::with_draw_target(Some(length), target);
        let template = "{bar:40} {human_pos} of {human_len} keys, {rate}/s, {eta} left";
        let style =
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let whole = |state: &ProgressState, text: &mut dyn fmt::Write| {
            // A failure to show progress is ignored.
            let _ = write!(text, "{:.0}", state.per_sec());
        };
        bar.set_style(style.with_key("rate", whole));
        Writing {
            session,
            bar,
            outcome: ImportOutcome::default(),
            mark: None,
            refused: BTreeMap::new(),
        }
    }

    /// Writes all keys, a batch at a time, in the order of their ids: a store that keeps them in that order writes fewer pages.
    async fn write_all(&mut self, mut keys: Vec<ImportableKey>) -> anyhow::Result<()> {
        keys.sort_by_key(|key| key.record.id);
        let mut again = Vec::new();
        let mut keys = keys.into_iter().peekable();
        while keys.peek().is_some() {
            let batch: Vec<ImportableKey> = keys.by_ref().take(BATCH).collect();
            again.extend(self.write(batch).await?);
        }
        // An import that crashed claimed the key for another id: writing it under that id completes that import.
        while !again.is_empty() {
            let batch = again.split_off(again.len().saturating_sub(BATCH));
            for key in self.write(batch).await? {
                self.refuse(&key, "another command is writing the key");
            }
        }
        if self.refused.is_empty() {
            return Ok(());
        }
        let refused = self.refused.iter();
        let refused: Vec<String> = refused
            .map(|(line, problem)| format!("line {line}: {problem}"))
            .collect();
        bail!(
            "{} and {} already stored, but these were not imported:\n{}",
            self.keys_added(),
            counted(self.outcome.present, "was", "were"),
            refused.join("\n")
        )
    }

    /// Writes one batch; returns the keys to be written again under another id.
    async fn write(&mut self, batch: Vec<ImportableKey>) -> anyhow::Result<Vec<ImportableKey>> {
        let records = batch.iter().map(|key| key.record.clone()).collect();
        let imported = self.session.store.import_keys(records).await;
        let (outcomes, mark) = imported.map_err(|error| {
            let (more, error) = match error {
                ChangeError::Unwritten(error) => ("no more".to_owned(), anyhow!(error)),
                error => (format!("possibly up to {} more", batch.len()), error.into()),
            };
            error.context(format!(
                "{}, and {more}: import the file again to complete it",
                self.keys_added()
            ))
        })?;
        self.mark = mark.or(self.mark.take());
        self.bar.inc(u64::try_from(batch.len()).unwrap_or(0));
        let mut again = Vec::new();
        for (mut key, outcome) in batch.into_iter().zip(outcomes) {
            match outcome {
                Imported::Added => self.outcome.imported += 1,
                Imported::Held(holder) if key.id != GivenId::Given || holder == key.record.id => {
                    self.outcome.present += 1;
                }
                Imported::Held(holder) => {
                    let other =
                        format!("another command added the key under the id {holder} meanwhile");
                    self.refuse(&key, &other);
                }
                Imported::IdTaken => {
                    let other = "another command used the id for another key meanwhile";
                    self.refuse(&key, other);
                }
                Imported::Claimed(holder) if key.id == GivenId::Made => {
                    key.record.id = holder;
                    again.push(key);
                }
                Imported::Claimed(_) => {
                    let other = "another command is writing the key under another id, or crashed meanwhile: \
                                 import the file again in half a minute";
                    self.refuse(&key, other);
                }
            }
        }
        Ok(again)
    }

    fn keys_added(&self) -> String {
        counted(
            self.outcome.imported,
            "key was imported",
            "keys were imported",
        )
    }

    fn refuse(&mut self, key: &ImportableKey, problem: &str) {
        self.refused.insert(key.line, problem.to_owned());
    }
}

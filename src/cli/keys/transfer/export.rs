//! `touchline keys export`: all keys as rows that `keys import` reads.

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::file::{FileFormat, is_standard};
use super::rows::{self, COLUMNS, DIGEST_COLUMNS, Digests, ExportedRow};
use crate::cli::output::new_file::NewFile;
use crate::cli::session::{Session, note};
use crate::policy::api_key::KeyDigest;
use crate::policy::key_record::KeyRecord;
use crate::policy::words::counted;

#[derive(Debug, Args)]
pub(in crate::cli) struct ExportArguments {
    /// The file, which must not exist yet; `-` is standard output.
    #[arg(default_value = "-")]
    file: PathBuf,
    /// The format of the file; by default from the end of its name, else CSV.
    #[arg(long, value_enum)]
    format: Option<FileFormat>,
    /// Include the digests of the keys, so that the file can be imported elsewhere. Protect the file like the store.
    #[arg(long)]
    with_digests: bool,
}

pub(in crate::cli::keys) async fn export(
    session: &Session,
    order: &ExportArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let format = FileFormat::of(order.format, &order.file).unwrap_or(FileFormat::Csv);
    let mut columns = COLUMNS.to_vec();
    if order.with_digests {
        columns.extend(DIGEST_COLUMNS);
    }
    let records = session.store.all_keys().await?;
    let rows = records.iter().map(|record| ExportedRow {
        id: record.id,
        customer: &record.customer,
        label: record.label.as_deref(),
        tier: &record.tier,
        state: record.state,
        expires: record.expires,
        grants: rows::exported_grants(&record.grants, format),
        created: record.created,
        digests: order.with_digests.then(|| digests(record)),
    });
    if is_standard(&order.file) {
        return rows::write(format, rows, &columns, BufWriter::new(out));
    }
    let shown = order.file.display();
    let file = NewFile::create(&order.file)?;
    rows::write(format, rows, &columns, BufWriter::new(file.file()))
        .and_then(|()| Ok(file.finish()?))
        .with_context(|| format!("{shown} cannot be written"))?;
    let keys = counted(records.len(), "key", "keys");
    note(&format!("{keys} exported to {shown}"));
    Ok(())
}

fn digests(record: &KeyRecord) -> Digests {
    let previous = record.previous.as_ref();
    let ended: Vec<String> = record.ended.iter().map(KeyDigest::to_string).collect();
    Digests {
        digest: record.digest,
        previous_digest: previous.map(|previous| previous.digest),
        previous_until: previous.map(|previous| previous.until),
        ended_digests: (!ended.is_empty()).then(|| ended.join(" ")),
    }
}

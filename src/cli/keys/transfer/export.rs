//! `touchline keys export`: all keys as rows that `keys import` reads.

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};

use super::file::{FileFormat, is_standard};
use super::rows::{self, COLUMNS, DIGEST_COLUMNS};
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
    let rows = records.iter().map(|record| row(record, format));
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

/// All columns of a key, also those of digests.
fn row(record: &KeyRecord, format: FileFormat) -> Value {
    // By name, so that a new field is not left out unnoticed.
    let KeyRecord {
        id,
        customer,
        label,
        tier,
        state,
        expires,
        digest,
        previous,
        ended,
        grants,
        created,
        updated: _,
        version: _,
        last_change: _,
    } = record;
    let ended: Vec<String> = ended.iter().map(KeyDigest::to_string).collect();
    json!({
        "id": id,
        "customer": customer,
        "label": label,
        "tier": tier,
        "state": state,
        "expires": expires,
        "grants": rows::exported_grants(grants, format),
        "created": created,
        "digest": digest,
        "previous_digest": previous.as_ref().map(|previous| previous.digest),
        "previous_until": previous.as_ref().map(|previous| previous.until),
        "ended_digests": (!ended.is_empty()).then(|| ended.join(" ")),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Subcommand;

    use super::rows::FIELDS;
    use super::*;
    use crate::cli::keys::KeysCommand;
    use crate::policy::key_record::tests::key_of;

    #[test]
    fn an_exported_row_has_every_field_of_an_import_but_the_key() {
        let (_, record) = key_of("pro");
        let row = row(&record, FileFormat::Jsonl);
        let members: BTreeSet<&str> = row
            .as_object()
            .unwrap()
            .keys()
            .map(|name| &**name)
            .collect();
        assert_eq!(members, COLUMNS.into_iter().chain(DIGEST_COLUMNS).collect());
        let fields = FIELDS.into_iter().filter(|name| *name != "key");
        assert_eq!(members, fields.collect());
    }

    #[test]
    fn every_field_is_in_the_help_of_an_import_and_on_its_page() {
        let commands = KeysCommand::augment_subcommands(clap::Command::new("keys"));
        let import = commands.find_subcommand("import").unwrap();
        let help = import.get_long_about().unwrap().to_string();
        let page = include_str!("../../../../docs/keys-and-billing.md");
        for field in FIELDS.map(|name| format!("`{name}`")) {
            assert!(help.contains(&field), "the help of keys import: {field}");
            assert!(page.contains(&field), "docs/keys-and-billing.md: {field}");
        }
    }
}

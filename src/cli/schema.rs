//! `touchline schema`: the JSON Schema of `gateway.yaml`, for editors. Reads no configuration.

use std::io::Write;

use clap::Args;

use super::output::{write_json, write_text};
use crate::config;

#[derive(Debug, Args)]
pub(super) struct SchemaArguments {
    /// Print the description of every key in docs/configuration.md instead: Markdown.
    #[arg(long)]
    markdown: bool,
}

/// Writes the schema.
pub(super) fn run(arguments: &SchemaArguments, out: &mut dyn Write) -> anyhow::Result<()> {
    match arguments.markdown {
        true => write_text(out, config::reference()),
        false => write_json(out, &config::schema()),
    }
}

//! `touchline schema`: the JSON Schema of `gateway.yaml`, for editors. Reads no configuration.

use std::io::Write;

use super::output::write_json;
use crate::config;

/// Writes the schema.
pub(super) fn run(out: &mut dyn Write) -> anyhow::Result<()> {
    write_json(out, &config::schema())
}

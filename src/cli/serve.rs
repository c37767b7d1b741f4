//! `touchline serve`: runs the gateway and says where it listens.

use std::io::Write;
use std::path::Path;

use crate::config::Config;
use crate::server;

/// Runs the gateway until it is told to stop. Once all listeners are bound, writes their addresses to `out` as one line
/// of JSON: `{"event":"listening","http":"127.0.0.1:8080",…}`.
pub(super) fn run(file: &Path, config: Config, out: &mut dyn Write) -> anyhow::Result<()> {
    server::serve(file, config, |addresses| {
        // The gateway runs all the same where nobody reads where it listens.
        let _ = serde_json::to_writer(&mut *out, addresses);
        let _ = out.write_all(b"\n").and_then(|()| out.flush());
    })?;
    Ok(())
}

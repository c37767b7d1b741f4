//! `touchline serve`: runs the gateway and says where it listens.

use std::io::Write;
use std::path::Path;

use clap::Args;

use super::UsageError;
use crate::config::Config;
use crate::server::{self, Begin};

#[derive(Debug, Args)]
pub(super) struct ServeArguments {
    /// Take the place of the gateway that runs: get its listeners at `listen.upgrade`, serve, and let it end with what it has in
    /// flight. No connection is refused or reset. If this one does not come up, or gets no key table, the other goes on.
    #[arg(long)]
    upgrade: bool,
}

/// Runs the gateway until it is told to stop. Once all listeners are bound, writes their addresses to `out` as one line
/// of JSON: `{"event":"listening","http":"127.0.0.1:8080",…}`.
pub(super) fn run(
    arguments: &ServeArguments,
    file: &Path,
    config: Config,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let begin = match arguments.upgrade {
        true if config.listen.upgrade.is_none() => {
            let message = "the configuration says not where the running gateway hands over: write listen.upgrade";
            return Err(UsageError(message.to_owned()).into());
        }
        true => Begin::FromPredecessor,
        false => Begin::Anew,
    };
    server::serve(file, config, begin, |addresses| {
        // The gateway runs all the same where nobody reads where it listens.
        let _ = serde_json::to_writer(&mut *out, addresses);
        let _ = out.write_all(b"\n").and_then(|()| out.flush());
    })?;
    Ok(())
}

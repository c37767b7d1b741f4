//! `touchline serve`: runs the gateway and writes its addresses.

use std::io::Write;
use std::path::Path;

use clap::Args;

use super::session::UsageError;
use crate::config::Config;
use crate::server::{self, Begin};

#[derive(Debug, Args)]
pub(super) struct ServeArguments {
    /// Replace the running gateway without refusing or resetting a connection: take over its listeners through `listen.upgrade` and
    /// serve, while it finishes its requests in flight. If the new gateway fails to start or loads no key table, the old one stays.
    #[arg(long)]
    upgrade: bool,
}

/// Runs the gateway until a signal stops it. Once all listeners are bound, writes their addresses to `out` as one line of JSON:
/// `{"event":"listening","http":"127.0.0.1:8080",…}`.
pub(super) fn run(
    arguments: &ServeArguments,
    file: &Path,
    config: Config,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let begin = match arguments.upgrade {
        true if config.listen.upgrade.is_none() => {
            let message = "--upgrade needs listen.upgrade in the configuration: the socket on which the running gateway hands over its listeners";
            return Err(UsageError(message.to_owned()).into());
        }
        true => Begin::FromPredecessor,
        false => Begin::Anew,
    };
    let announce = |addresses: &_| {
        // The gateway also runs if its addresses cannot be written.
        let _ = serde_json::to_writer(&mut *out, addresses);
        let _ = out.write_all(b"\n").and_then(|()| out.flush());
    };
    server::serve(file, config, begin, announce, |store| store)?;
    Ok(())
}

//! `touchline completions` and `touchline man`: made from the declared arguments, so they always agree with `--help`. They read no
//! configuration.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use super::output::write_text;
use super::session::note;

#[derive(Debug, Args)]
pub(super) struct CompletionsArguments {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManArguments {
    /// A directory for the pages of all commands, created if missing; without it, the main page is written to standard output.
    directory: Option<PathBuf>,
}

/// Writes the completion script.
pub(super) fn completions(
    arguments: &CompletionsArguments,
    mut command: Command,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let name = command.get_name().to_owned();
    // Generated in memory, because the generator panics on a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    write_text(out, script)
}

/// Writes the manual.
pub(super) fn man(
    arguments: &ManArguments,
    command: Command,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let Some(directory) = &arguments.directory else {
        // The same settings as for the pages in a directory.
        let mut command = command.disable_help_subcommand(true);
        command.build();
        Man::new(command).render(out)?;
        return Ok(out.flush()?);
    };
    let shown = directory.display();
    if directory.exists() && !directory.is_dir() {
        bail!("{shown} exists and is not a directory: remove it, or name another directory");
    }
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {shown}"))?;
    clap_mangen::generate_to(command, directory)
        .with_context(|| format!("cannot write the pages into {shown}"))?;
    note(&format!("The pages of all commands are in {shown}."));
    Ok(())
}

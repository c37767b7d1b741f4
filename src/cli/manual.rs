//! `touchline completions` and `touchline man`: made of the declared arguments, so they never say anything else than
//! `--help`. They read no configuration.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use super::note;

#[derive(Debug, Args)]
pub(super) struct CompletionsArguments {
    /// The shell that is to complete.
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManArguments {
    /// A directory for the pages of all commands, made if it is missing; without it the first page goes to standard output.
    directory: Option<PathBuf>,
}

/// Writes the script that a shell reads.
pub(super) fn completions(
    arguments: &CompletionsArguments,
    mut command: Command,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let name = command.get_name().to_owned();
    // A closed pipe must not end the making of it.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    out.write_all(&script)?;
    Ok(out.flush()?)
}

/// Writes the manual.
pub(super) fn man(
    arguments: &ManArguments,
    command: Command,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let Some(directory) = &arguments.directory else {
        // As the page of the directory is made.
        let mut command = command.disable_help_subcommand(true);
        command.build();
        Man::new(command).render(out)?;
        return Ok(out.flush()?);
    };
    let shown = directory.display();
    if directory.exists() && !directory.is_dir() {
        bail!("{shown} exists and is not a directory: remove it, or name another directory");
    }
    std::fs::create_dir_all(directory).with_context(|| format!("{shown} cannot be made"))?;
    clap_mangen::generate_to(command, directory)
        .with_context(|| format!("the pages cannot be written into {shown}"))?;
    note(&format!("The pages of all commands are in {shown}."));
    Ok(())
}

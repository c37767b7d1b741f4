//! The command line: arguments, subcommands, exit codes.
//!
//! Every command reads the same `gateway.yaml`. Results are written to standard output and messages to standard error, so that
//! output can be piped. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 stored but not confirmed by every gateway, 78 bad
//! configuration (`EX_CONFIG` of BSD's sysexits). A reader that closes the pipe early (`| head`) is no failure, and hides none.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{Config, ConfigErrors, Purpose};
use crate::server::{ServeError, outlive_signals};

mod against_running;
mod audit;
mod check;
mod explain;
mod key_argument;
mod keys;
mod manual;
mod openapi;
mod output;
mod schema;
mod serve;
mod session;
mod store;
mod usage;

use session::{NotConfirmed, UsageError, note};

const EXIT_FAILED: u8 = 1;
const EXIT_USAGE: u8 = 2;
const EXIT_UNCONFIRMED: u8 = 3;
const EXIT_CONFIG: u8 = 78;
/// The API gateway in front of a football prediction data service: keys, tiers, exact daily quotas.
#[derive(Debug, Parser)]
#[command(
    name = "touchline",
    version,
    after_help = "Example:\n  touchline check --config gateway.yaml && touchline serve --config gateway.yaml\n\n\
                  Exit codes: 0 done, 1 failed, 2 wrong usage, 3 stored but not confirmed by every gateway, 78 bad configuration"
)]
struct Arguments {
    /// The configuration file. Commands on the store do not look up the certificates, host names and secrets that only a gateway needs.
    #[arg(
        short,
        long,
        global = true,
        env = "TOUCHLINE_CONFIG",
        default_value = "gateway.yaml",
        value_name = "FILE"
    )]
    config: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway.
    #[command(
        after_help = "Examples:\n  touchline serve --config gateway.yaml\n  touchline serve --config gateway.yaml --upgrade    # replace the running gateway\n\n\
        The gateway also starts if the name of an upstream or of Redis does not resolve: that server gets no requests until it does."
    )]
    Serve(serve::ServeArguments),
    /// Check the configuration and list all its problems, each as FILE:LINE:COLUMN.
    #[command(
        after_help = "Examples:\n  touchline check --config gateway.yaml\n  touchline check --config next.yaml --against-running\n  \
                      touchline check --config gateway.yaml --offline    # in CI\n\n\
                      docs/configuration.md describes every key.\n\n\
                      A file that cannot be read and a variable that is not set are mistakes. A name that does not resolve is only a warning on \
                      standard error, because a gateway starts all the same and its machine may use another DNS."
    )]
    Check(check::CheckArguments),
    /// Issue, find, show and change API keys.
    #[command(
        subcommand,
        after_help = "Example:\n  touchline keys issue --tier pro --customer \"Acme\" --expires 2027-01-31"
    )]
    Keys(keys::KeysCommand),
    /// Show the units used, verify the ledger, invoice a month.
    #[command(
        after_help = "Examples:\n  touchline usage --month 2026-11 --by key --output csv\n  touchline usage --from 2026-11-16 --to 2026-11-22 --by day"
    )]
    Usage(usage::UsageArguments),
    /// Print the OpenAPI document that a gateway with this configuration serves at /openapi.json.
    #[command(after_help = "Example:\n  touchline openapi --output yaml > openapi.yaml")]
    Openapi(openapi::OpenapiArguments),
    /// Print the JSON Schema of gateway.yaml (2020-12), for completion and checks in editors.
    #[command(after_help = "Example:\n  touchline schema > gateway.schema.json")]
    Schema(schema::SchemaArguments),
    /// List the changes of keys: who changed which key, when, how and why.
    #[command(
        after_help = "Examples:\n  touchline audit --key 4fZk09QwXy2B\n  touchline audit --from 2026-11-01 --to 2026-11-30 --what grant --output csv"
    )]
    Audit(audit::AuditArguments),
    /// Show how a gateway would decide a request with a key, step by step, and which settings decide it. Charges nothing.
    #[command(
        after_help = "Example:\n  touchline explain --key-id 4fZk09QwXy2B --method GET --path /api/v1/data/insights\n\n\
                      The exit code is 0 whenever the request could be explained, even if it would be refused."
    )]
    Explain(explain::ExplainArguments),
    /// Show the state of the store, back it up, restore it, copy it into another; remove gateways that are gone for good.
    #[command(subcommand, after_help = "Example:\n  touchline store status")]
    Store(store::StoreCommand),
    /// Print a shell's completion script for commands, options and their values.
    #[command(
        after_help = "Examples:\n  touchline completions bash > ~/.local/share/bash-completion/completions/touchline\n  \
                      touchline completions fish > ~/.config/fish/completions/touchline.fish"
    )]
    Completions(manual::CompletionsArguments),
    /// Print the manual page, or write the pages of all commands.
    #[command(
        after_help = "Examples:\n  touchline man | man -l -\n  touchline man /usr/local/share/man/man1"
    )]
    Man(manual::ManArguments),
}

/// Parses the process's arguments, runs the command and returns its exit code.
pub fn run() -> ExitCode {
    output::fit_to_terminal();
    let arguments = match parsed(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) => {
            return match print_usage_error(&error) {
                Ok(()) => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(EXIT_USAGE)),
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
                Err(error) => {
                    note(&format!("touchline: {error}"));
                    ExitCode::from(EXIT_FAILED)
                }
            };
        }
    };
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let code = exit_code(&error);
            let text = match error.downcast_ref::<ConfigErrors>() {
                Some(errors) => errors.to_string(),
                None => format!("touchline: {error:#}"),
            };
            note(&output::escape_lines(&key_argument::without_keys(&text)));
            // Other readers parse the lines.
            let is_check = matches!(arguments.command, Command::Check(_));
            if code == EXIT_CONFIG && is_check && io::stderr().is_terminal() {
                note(
                    "docs/configuration.md describes every key, as touchline schema --markdown does",
                );
            }
            ExitCode::from(code)
        }
    }
}

/// The arguments in `words`, of which the first is the name of the program.
fn parsed(
    words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<Arguments, clap::Error> {
    let mut command = without_empty_variables(Arguments::command());
    let matches = command.try_get_matches_from_mut(words)?;
    let mixed = usage::refuse_mixed(&matches);
    let arguments = mixed.and_then(|()| Arguments::from_arg_matches(&matches));
    arguments.map_err(|error| error.format(&mut command))
}

/// The command, for which an environment variable that is empty is unset: Compose sets one to that if it has no value.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |arg: &Arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        value.is_some_and(|value| value.is_empty())
    };
    command
        .mut_args(|arg| match is_empty(&arg) {
            true => arg.env(Resettable::Reset),
            false => arg,
        })
        .mut_subcommands(without_empty_variables)
}

/// Prints help, or the mistake in the arguments without arguments that may be API keys.
fn print_usage_error(error: &clap::Error) -> io::Result<()> {
    if !error.use_stderr() {
        error.print()?;
        return io::stdout().flush();
    }
    let given = std::env::args_os().skip(1);
    let given: Vec<String> = given
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let message = error.render();
    let message = if output::is_coloured(&io::stderr()) {
        message.ansi().to_string()
    } else {
        message.to_string()
    };
    let text = key_argument::without_arguments(&message, &given);
    note(text.trim_end());
    Ok(())
}

fn dispatch(arguments: &Arguments) -> anyhow::Result<()> {
    let out = &mut io::stdout();
    let config = || Config::load_for(&arguments.config, Purpose::Commands);
    match &arguments.command {
        Command::Serve(order) => {
            // Before names are resolved, which may take seconds.
            outlive_signals()?;
            let config = Config::load(&arguments.config)?;
            serve::run(order, &arguments.config, config, out)
        }
        Command::Check(order) => check::run(order, &arguments.config, out),
        Command::Keys(command) => keys::run(command, config()?, out),
        Command::Usage(arguments) => usage::run(arguments, config()?, out),
        Command::Openapi(arguments) => openapi::run(arguments, &config()?, out),
        Command::Schema(arguments) => schema::run(arguments, out),
        Command::Audit(arguments) => audit::run(arguments, config()?, out),
        Command::Explain(arguments) => explain::run(arguments, config()?, out),
        Command::Store(command) => store::run(command, &arguments.config, out),
        Command::Completions(shell) => manual::completions(shell, Arguments::command(), out),
        Command::Man(place) => manual::man(place, Arguments::command(), out),
    }
}

fn exit_code(error: &anyhow::Error) -> u8 {
    // A gateway reads the certificates of its listener only when it starts.
    let is_certificate = matches!(error.downcast_ref(), Some(ServeError::Certificate(_)));
    if error.is::<ConfigErrors>() || is_certificate {
        EXIT_CONFIG
    } else if error.is::<UsageError>() {
        EXIT_USAGE
    } else if error.is::<NotConfirmed>() {
        EXIT_UNCONFIRMED
    } else {
        EXIT_FAILED
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        parsed(line.split(' '))
    }

    #[test]
    fn the_declared_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_configuration_is_named_before_or_after_the_command() {
        for line in [
            "touchline --config x.yaml check",
            "touchline check --config x.yaml",
            "touchline keys --config x.yaml list",
            "touchline keys list --config x.yaml",
            "touchline -c x.yaml check",
            "touchline keys list -c x.yaml",
            "touchline usage -c x.yaml --by day",
            "touchline usage -c x.yaml verify",
            "touchline usage verify -c x.yaml",
        ] {
            assert_eq!(parse(line).unwrap().config, Path::new("x.yaml"), "{line}");
        }
    }

    #[test]
    fn every_command_has_help_with_an_example() {
        fn walk(command: &clap::Command) {
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                ["Example:\n  touchline ", "Examples:\n  touchline "]
                    .iter()
                    .any(|start| help.starts_with(start)),
                "{}",
                command.get_name()
            );
            assert!(command.get_about().is_some(), "{}", command.get_name());
            command.get_subcommands().for_each(walk);
        }
        walk(&Arguments::command());
    }

    /// The commands of one line of a shell, without what it does with their output.
    fn commands_of(line: &str) -> Vec<Vec<String>> {
        let words = shlex::split(line).unwrap_or_else(|| panic!("a shell cannot split {line}"));
        let commands = words.split(|word| word == "&&");
        commands
            .map(|words| {
                let own = words.iter().take_while(|word| *word != ">" && *word != "|");
                own.cloned().collect()
            })
            .collect()
    }

    /// The names of the commands that a line calls, from the first to the innermost.
    fn called(words: &[String]) -> Vec<String> {
        let matches = Arguments::command().try_get_matches_from(words);
        let mut matches = &matches.unwrap_or_else(|error| panic!("{words:?}: {error}"));
        let mut names = vec!["touchline".to_owned()];
        while let Some((name, inner)) = matches.subcommand() {
            names.push(name.to_owned());
            matches = inner;
        }
        names
    }

    #[test]
    fn every_example_can_be_run_as_it_stands_and_is_of_its_command() {
        fn walk(command: &clap::Command, above: &[String]) {
            let path = [above, &[command.get_name().to_owned()]].concat();
            let help = command.get_after_help().map(ToString::to_string);
            let help = help.unwrap_or_default();
            let examples = help.lines().filter(|line| line.starts_with("  touchline "));
            let called: Vec<_> = examples
                .flat_map(commands_of)
                .map(|words| called(&words))
                .collect();
            assert!(!called.is_empty(), "{path:?} has no example");
            for names in called {
                assert!(names.starts_with(&path), "{names:?} at {path:?}");
            }
            command
                .get_subcommands()
                .for_each(|inner| walk(inner, &path));
        }
        walk(&Arguments::command(), &[]);
    }

    #[test]
    fn wrong_arguments_are_wrong_usage() {
        for line in [
            "touchline",
            "touchline fly",
            "touchline keys",
            "touchline keys issue --tier pro",
            "touchline keys issue --tier pro --customer A --expires 2027-02-30",
            "touchline keys issue --tier pro --customer A\tB",
            "touchline keys issue --tier pro --customer A --output csv",
            "touchline keys show short",
            "touchline keys list --state gone",
            "touchline keys rotate 4fZk09QwXy2B",
            "touchline keys rotate 4fZk09QwXy2B --overlap 91d",
            "touchline keys set-tier 4fZk09QwXy2B",
            "touchline keys set-expiry 4fZk09QwXy2B soon",
            "touchline keys set-label 4fZk09QwXy2B",
            "touchline keys set-label 4fZk09QwXy2B text --none",
            "touchline keys set-customer 4fZk09QwXy2B",
            "touchline keys grant 4fZk09QwXy2B --extra 5",
            "touchline keys grant 4fZk09QwXy2B --extra 0 --reason x",
            "touchline keys grant 4fZk09QwXy2B --reason x",
            "touchline usage --from yesterday",
            "touchline usage --by week",
            "touchline usage --month 2026-11-01",
            "touchline usage --month 2026-11 --from 2026-11-02",
            "touchline usage --month 2026-11 --to 2026-11-02",
            "touchline usage verify --month 2026-11 --to 2026-11-02",
            "touchline usage --by day verify",
            "touchline usage -c x.yaml --month 2026-10 verify",
            "touchline usage invoice",
            "touchline usage invoice --month 2026-13",
            "touchline usage invoice --month 2026-10-01",
            "touchline check --output csv",
            "touchline openapi --output csv",
            "touchline audit --from soon",
            "touchline audit --what theft",
            "touchline audit --key short",
            "touchline keys suspend 4fZk09QwXy2B --by",
            "touchline keys suspend 4fZk09QwXy2B --reason",
            "touchline explain --key-id 4fZk09QwXy2B",
            "touchline explain --path /api/v1/data/markets",
            "touchline explain --key-id short --path /a",
            "touchline explain --key-id 4fZk09QwXy2B --path /a --method A(B",
            "touchline explain --key-id 4fZk09QwXy2B --path /a --at noon",
            "touchline store",
            "touchline store status --output csv",
            "touchline store backup",
            "touchline store restore",
            "touchline store copy",
            "touchline store copy --to a.yaml --output csv",
            "touchline store forget",
            "touchline store forget web-1-7 --reason",
        ] {
            assert_eq!(
                parse(line).unwrap_err().exit_code(),
                i32::from(EXIT_USAGE),
                "{line}"
            );
        }
    }

    #[test]
    fn each_kind_of_failure_has_its_exit_code() {
        let config = ConfigErrors {
            file: "x".into(),
            problems: Vec::new(),
        };
        assert_eq!(exit_code(&config.into()), 78);
        assert_eq!(exit_code(&UsageError("no".into()).into()), 2);
        assert_eq!(exit_code(&NotConfirmed("no".into()).into()), 3);
        assert_eq!(exit_code(&anyhow::anyhow!("no")), 1);
        assert!(!output::is_closed_pipe(&anyhow::anyhow!("no")));
    }

    #[test]
    fn a_closed_pipe_is_recognised_however_much_was_written() {
        let closed = || {
            let (reader, writer) = io::pipe().unwrap();
            drop(reader);
            writer
        };
        for length in [1, 100_000] {
            let rows = || vec![serde_json::json!({ "name": "x" }); length];
            for error in [
                output::write_json(&mut closed(), &rows()),
                output::write_json_rows(&mut closed(), rows().into_iter()),
                output::write_csv(&mut closed(), &["name"], rows()),
                output::long_table::write_table(
                    &mut closed(),
                    &["name"],
                    &[],
                    &vec![vec![]; length],
                ),
            ] {
                assert!(output::is_closed_pipe(&error.unwrap_err()), "{length} rows");
            }
        }
    }
}

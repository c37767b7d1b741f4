//! The command line: arguments, subcommands, exit codes.
//!
//! Every command reads the same `gateway.yaml`. Results are written to standard output and messages to standard error, so that
//! output can be piped. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 stored but not confirmed by every gateway, 78 bad
//! configuration (`EX_CONFIG` of BSD's sysexits). A reader that closes the pipe early (`| head`) is no failure.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};

use crate::clock::Clock;
use crate::config::{Config, ConfigErrors, Purpose};
use crate::server;
use crate::store::{ChangeMark, Role, Store, Unconfirmed};

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
mod store;
mod usage;

const EXIT_FAILED: u8 = 1;
const EXIT_USAGE: u8 = 2;
const EXIT_UNCONFIRMED: u8 = 3;
const EXIT_CONFIG: u8 = 78;
/// How long a command waits for the gateways to apply its change, by the contract.
const APPLIED_PATIENCE: Duration = Duration::from_secs(2);
/// How long a command waits for a replica of Redis to confirm its change.
const REPLICA_PATIENCE: Duration = Duration::from_millis(500);
/// The most unconfirmed gateways that a message names.
const UNCONFIRMED_NAMED_MAX: usize = 20;
/// How long a command waits for the store to write pending data.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);

/// The API gateway in front of a football prediction data service: keys, tiers, exact daily quotas.
#[derive(Debug, Parser)]
#[command(
    name = "touchline",
    version,
    after_help = "Example:\n  touchline check --config gateway.yaml && touchline serve --config gateway.yaml\n\n\
                  Exit codes: 0 done, 1 failed, 2 wrong usage, 3 stored but not confirmed by every gateway, 78 bad configuration"
)]
struct Arguments {
    /// The configuration file. Commands on the store ignore certificates, names and secrets that only a gateway uses.
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
        after_help = "Example:\n  touchline serve --config gateway.yaml\n  touchline serve --config gateway.yaml --upgrade    # replace the running gateway\n\n\
        The gateway also starts if the name of an upstream or of Redis does not resolve: that server gets no requests until it does."
    )]
    Serve(serve::ServeArguments),
    /// Check the configuration and list all its problems, each as FILE:LINE:COLUMN.
    #[command(
        after_help = "Example:\n  touchline check --config gateway.yaml\n  touchline check --config next.yaml --against-running\n  \
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
        after_help = "Example:\n  touchline usage --month 2026-11 --by key --output csv\n  touchline usage --from 2026-11-16 --to 2026-11-22 --by day"
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
        after_help = "Example:\n  touchline audit --key 4fZk09QwXy2B\n  touchline audit --from 2026-11-01 --to 2026-11-30 --what grant --output csv"
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
        after_help = "Example:\n  touchline completions bash > ~/.local/share/bash-completion/completions/touchline\n  \
                      touchline completions fish > ~/.config/fish/completions/touchline.fish"
    )]
    Completions(manual::CompletionsArguments),
    /// Print the manual page, or write the pages of all commands.
    #[command(
        after_help = "Example:\n  touchline man | man -l -\n  touchline man /usr/local/share/man/man1"
    )]
    Man(manual::ManArguments),
}

/// A wrong usage of a command that clap cannot detect.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

/// A stored change that not every gateway is known to have applied.
#[derive(Debug, thiserror::Error)]
#[error("the change is stored, but not confirmed by every gateway: {0}")]
struct NotConfirmed(String);

/// Parses the process's arguments, runs the command and returns its exit code.
pub fn run() -> ExitCode {
    output::fit_to_terminal();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            print_usage_error(&error);
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(EXIT_USAGE));
        }
    };
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let code = exit_code(&error);
            let text = match error.downcast_ref::<ConfigErrors>() {
                Some(errors) => errors.to_string(),
                None => format!("touchline: {error:#}"),
            };
            note(&output::escape_lines(&key_argument::without_keys(&text)));
            ExitCode::from(code)
        }
    }
}

/// Prints help, or the mistake in the arguments without arguments that may be API keys.
fn print_usage_error(error: &clap::Error) {
    if !error.use_stderr() {
        // If standard output is closed, there is nothing left to do.
        return drop(error.print());
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
}

fn dispatch(arguments: &Arguments) -> anyhow::Result<()> {
    let out = &mut io::stdout();
    let config = || Config::load_for(&arguments.config, Purpose::Commands);
    match &arguments.command {
        Command::Serve(order) => {
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
    if error.is::<ConfigErrors>() {
        EXIT_CONFIG
    } else if error.is::<UsageError>() {
        EXIT_USAGE
    } else if error.is::<NotConfirmed>() {
        EXIT_UNCONFIRMED
    } else {
        EXIT_FAILED
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Writes a message to standard error.
fn note(text: &str) {
    // A closed standard error is ignored.
    let columns = output::columns_of(io::stderr());
    let _ = writeln!(io::stderr(), "{}", output::broken(text, columns));
}

/// Runs a command's future to its end.
fn on_runtime<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    // One worker beside this thread, so that the store keeps working while a command waits for its operator.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

/// A configuration and its open store, during one command.
struct Session {
    config: Config,
    store: Arc<dyn Store>,
}

impl Session {
    /// Opens the store, runs `work` and closes the store, also after an error.
    fn run(
        config: Config,
        work: impl AsyncFnOnce(&Session) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        on_runtime(async {
            let store = server::open_store(&config, Role::Command, Clock::system()).await?;
            let session = Session { config, store };
            let outcome = work(&session).await;
            session.store.close(CLOSE_DEADLINE).await;
            outcome
        })
    }

    /// Waits until every gateway has applied a change; without a mark, the store's last change.
    ///
    /// # Errors
    /// [`NotConfirmed`] with the gateways that have not applied it within the contract's two seconds, and the silent ones. The change
    /// is stored all the same.
    async fn applied(&self, mark: Option<&ChangeMark>) -> anyhow::Result<()> {
        if mark.is_some() {
            self.note_replicas().await;
        }
        let unconfirmed = async {
            let mark = match mark {
                Some(mark) => mark.clone(),
                None => self.store.last_change().await?,
            };
            self.store.await_applied(&mark, APPLIED_PATIENCE).await
        };
        let unconfirmed = unconfirmed.await.map_err(|error| {
            NotConfirmed(format!(
                "it is unknown whether the gateways applied it: {error}"
            ))
        })?;
        match not_confirmed(&unconfirmed) {
            None => Ok(()),
            Some(text) => Err(NotConfirmed(text).into()),
        }
    }

    /// Writes a note if a failover of the store could still lose the change.
    async fn note_replicas(&self) {
        match self.store.await_replicas(REPLICA_PATIENCE).await {
            Ok(replicas) if replicas.connected > 0 && replicas.confirmed == 0 => note(&format!(
                "The change is stored, but none of the {} replicas of Redis confirmed it within {} ms: a failover \
                now could lose it until a gateway restores it.",
                replicas.connected,
                REPLICA_PATIENCE.as_millis()
            )),
            Ok(_) => {}
            Err(error) => note(&format!(
                "The change is stored, but it is unknown whether a replica of Redis has it: {error}"
            )),
        }
    }
}

/// The message about gateways that have not confirmed a change; `None` if all have.
fn not_confirmed(gateways: &[Unconfirmed]) -> Option<String> {
    let named = |gateway: &Unconfirmed| match gateway.silent_since {
        None => format!(
            "{} (has not applied it within {} s)",
            gateway.name,
            APPLIED_PATIENCE.as_secs()
        ),
        Some(since) => format!("{} (silent since {since})", gateway.name),
    };
    let mut text = gateways
        .iter()
        .take(UNCONFIRMED_NAMED_MAX)
        .map(named)
        .collect::<Vec<_>>()
        .join(", ");
    if let Some(more @ 1..) = gateways.len().checked_sub(UNCONFIRMED_NAMED_MAX) {
        text.push_str(&format!(" and {more} more: see `touchline store status`"));
    }
    if gateways.iter().any(|one| one.silent_since.is_some()) {
        text.push_str(
            ". A gateway that cannot reach Redis may accept the keys it knows until its store.redis.max_staleness is over. \
            Remove gateways that are gone for good: `touchline store forget NODE`",
        );
    }
    (!gateways.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::store::NodeName;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(line.split(' '))
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
                help.contains("Example:\n  touchline "),
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
            "touchline usage invoice",
            "touchline usage invoice --month 2026-13",
            "touchline usage invoice --month 2026-10-01",
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
    fn gateways_that_have_not_confirmed_a_change_are_named_up_to_twenty() {
        let gateway = |number: usize, silent_since: Option<&str>| Unconfirmed {
            name: NodeName(format!("web-{number}")),
            silent_since: silent_since.map(|since| since.parse().unwrap()),
        };
        assert_eq!(not_confirmed(&[]), None);
        let late = not_confirmed(&[gateway(1, None)]).unwrap();
        assert_eq!(late, "web-1 (has not applied it within 2 s)");
        let since = Some("2026-11-21T12:00:00Z");
        let both = not_confirmed(&[gateway(1, None), gateway(2, since)]).unwrap();
        assert!(both.starts_with(
            "web-1 (has not applied it within 2 s), web-2 (silent since 2026-11-21T12:00:00Z). "
        ));
        assert!(both.contains("max_staleness") && both.contains("touchline store forget"));
        let many: Vec<_> = (1..=22).map(|number| gateway(number, since)).collect();
        let message = not_confirmed(&many).unwrap();
        assert!(message.contains("web-20 (") && !message.contains("web-21"));
        assert!(message.contains(" and 2 more: see"), "{message}");
        assert!(!not_confirmed(&many[..20]).unwrap().contains(" more"));
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
        assert!(is_closed_pipe(
            &io::Error::from(io::ErrorKind::BrokenPipe).into()
        ));
        assert!(!is_closed_pipe(&anyhow::anyhow!("no")));
    }
}

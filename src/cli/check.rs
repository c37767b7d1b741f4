//! `touchline check`: checks a configuration and summarises it, or its changes.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;

use clap::Args;
use serde::Serialize;

use super::against_running;
use super::key_argument::without_keys;
use super::output::{RecordFormat, escape_lines, prose, write_json, write_text};
use super::session::note;
use crate::config::{Certificate, Config, ConfigErrors, Problem, Purpose, StoreConfig};
use crate::policy::enforcement::Enforcement;
use crate::policy::store_settings::{Durability, OutagePolicy};
use crate::store::redis::name_of;

#[derive(Debug, Args)]
pub(super) struct CheckArguments {
    /// Show the effective changes of this file in the running gateway, which is queried at the file's admin listener or at ADDRESS.
    /// Exits with 1 if the gateway would refuse the file.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true)]
    against_running: Option<Option<SocketAddr>>,
    /// The format of the result: of the problems and warnings, or of the changes.
    #[arg(short, long, value_enum, default_value = "table")]
    output: RecordFormat,
    /// Check only the file itself, for CI: without environment variables, the files it names, and DNS.
    #[arg(long, conflicts_with = "against_running")]
    offline: bool,
}

/// What is wrong with a file, for programs.
#[derive(Serialize)]
struct CheckReport {
    file: String,
    /// Of a file without problems.
    hash: Option<String>,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
}

/// Loads the configuration of `file` and writes the result.
pub(super) fn run(
    arguments: &CheckArguments,
    file: &Path,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let purpose = match arguments.offline {
        true => Purpose::Offline,
        false => Purpose::Check,
    };
    let loaded = Config::load_for(file, purpose);
    // Of a file without problems, the changes are the result if they are asked for.
    let is_of_file = arguments.against_running.is_none() || loaded.is_err();
    if arguments.output == RecordFormat::Json && is_of_file {
        write_json(out, &report(file, &loaded))?;
        return Ok(loaded.map(drop)?);
    }
    let config = loaded?;
    for warning in &config.warnings {
        note(&escape_lines(&warning.warning(&file.display().to_string())));
    }
    if arguments.offline {
        let (name, hash) = (file.display(), config.hash);
        let text =
            format!("{name}: ok (not checked: variables, files and names)\n  hash       {hash}\n");
        return write_text(out, text);
    }
    if let Some(address) = arguments.against_running {
        return against_running::run(config, address, arguments.output, out);
    }
    write_text(out, prose(&summary(file, &config)))
}

fn report(file: &Path, loaded: &Result<Config, ConfigErrors>) -> CheckReport {
    let (mut problems, mut warnings) = match loaded {
        Ok(config) => (Vec::new(), config.warnings.clone()),
        Err(errors) => (errors.problems.clone(), Vec::new()),
    };
    for problem in problems.iter_mut().chain(&mut warnings) {
        for text in [&mut problem.path, &mut problem.message, &mut problem.hint] {
            *text = without_keys(text);
        }
    }
    CheckReport {
        file: file.display().to_string(),
        hash: loaded.as_ref().ok().map(|config| config.hash.to_string()),
        problems,
        warnings,
    }
}

fn summary(file: &Path, config: &Config) -> String {
    let tiers: Vec<String> = config
        .tiers
        .iter()
        .map(|(name, tier)| {
            let note = match tier.enforcement {
                Enforcement::Enforced => "",
                Enforcement::Shadow => " (not enforced)",
            };
            format!("{name} {} a day{note}", tier.daily)
        })
        .collect();
    let endpoints = config.endpoints.iter().count();
    let upstreams: Vec<&str> = config.upstreams.iter().map(|(name, _)| &**name).collect();
    format!(
        "{}: ok\n  listeners  {}\n  store      {}\n  quota day  {}\n  tiers      {}\n  endpoints  {endpoints}, served by {}\n  hash       {}\n",
        file.display(),
        listeners(config).join(", "),
        store(&config.store),
        config.calendar.name(),
        tiers.join(", "),
        upstreams.join(", "),
        config.hash,
    )
}

fn listeners(config: &Config) -> Vec<String> {
    let listen = &config.listen;
    let http = listen.http.as_ref();
    let http = http.map(|http| format!("http {}", http.address));
    let https = listen.https.as_ref().map(|https| {
        let certificates: Vec<String> = https.certificates.iter().map(Certificate::label).collect();
        format!("https {} ({})", https.address, certificates.join(", "))
    });
    let redirect = listen.redirect.as_ref();
    let redirect = redirect.map(|redirect| format!("redirect {}", redirect.address));
    let admin = Some(format!("admin {}", listen.admin.address));
    let all = [http, https, redirect, admin].into_iter();
    all.flatten().collect()
}

/// The store without its URL, which may contain a password.
fn store(store: &StoreConfig) -> String {
    match store {
        StoreConfig::Embedded(embedded) => {
            let durability = match embedded.durability {
                Durability::Commit => "a power failure loses no count".to_owned(),
                Durability::Interval(interval) => {
                    format!("a power failure loses the counts of {interval:?} at most")
                }
            };
            format!("embedded {} ({durability})", embedded.path.display())
        }
        StoreConfig::Redis(redis) => {
            let name = name_of(redis).unwrap_or_else(|error| error.to_string());
            // Without these settings nothing is served in an outage.
            let settings = redis.outage.as_ref();
            let outage = settings.map_or(OutagePolicy::Deny, |settings| settings.policy);
            format!("redis {name} (outage: {outage})")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_the_shipped_file_names_what_it_comes_to() {
        let text = include_str!("../../gateway.yaml");
        let config = Config::parse("gateway.yaml", text, &|_| None).unwrap();
        let summary = summary(Path::new("gateway.yaml"), &config);
        assert_eq!(
            summary.lines().take(6).collect::<Vec<_>>(),
            [
                "gateway.yaml: ok",
                "  listeners  http 127.0.0.1:8080, https 127.0.0.1:8443 (self-signed), admin 127.0.0.1:9090",
                "  store      embedded var/touchline.db (a power failure loses the counts of 1s at most)",
                "  quota day  UTC",
                "  tiers      starter 1000 a day, pro 3000 a day, enterprise 10000 a day",
                "  endpoints  6, served by prediction-data",
            ]
        );
        let redirect = "\n  redirect: { address: 127.0.0.1:8081 }\n  https:\n";
        let text = text.replacen("\n  https:\n", redirect, 1);
        let config = Config::parse("gateway.yaml", &text, &|_| None).unwrap();
        assert_eq!(listeners(&config)[2], "redirect 127.0.0.1:8081");
    }

    #[test]
    fn the_summary_names_redis_and_no_password() {
        let shipped = include_str!("../../gateway.yaml");
        let (before, rest) = shipped.split_once("\nstore:\n").unwrap();
        let (_, after) = rest.split_once("\nquota:").unwrap();
        let redis =
            "{ url: \"redis://touchline:hunter2@10.0.0.1/3\", key_prefix: live, outage: open }";
        let text = format!("{before}\nstore: {{ redis: {redis} }}\nquota:{after}");
        let config = Config::parse("gateway.yaml", &text, &|_| None).unwrap();
        let expected = "redis 10.0.0.1:6379/3 with the prefix live (outage: open)";
        assert_eq!(store(&config.store), expected);
    }
}

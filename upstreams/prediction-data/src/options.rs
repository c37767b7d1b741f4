//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::StatusCode;
use clap::{Parser, ValueEnum};
use jiff::SignedDuration;

use crate::fault::{FailRate, FaultPlan};
use crate::router::Health;

/// The longest delay that can be asked for; longer than any gateway waits.
const DELAY_MAX: Duration = Duration::from_secs(600);

/// A sample football prediction data service: five resources under /api/v1/data/ and /healthz.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "prediction-data",
    version,
    after_help = "Example: prediction-data --listen 127.0.0.1:9000 --delay 250ms --fail-rate 0.1"
)]
pub struct Options {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(
        long,
        env = "PREDICTION_DATA_LISTEN",
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:9000",
        value_parser = parse_listen
    )]
    pub listen: SocketAddr,

    /// Folder with a data set of your own, instead of the one compiled in
    #[arg(long, env = "PREDICTION_DATA_DIR", value_name = "DIR")]
    pub data: Option<PathBuf>,

    /// Hold back every data answer, such as 250ms or 2s, at most 10m
    #[arg(long, value_name = "DURATION", default_value = "0ms", value_parser = parse_delay)]
    pub delay: Duration,

    /// Status that data requests fail with, 400 to 599; without --fail-rate, all of them do [default: 503]
    #[arg(long, value_name = "STATUS", value_parser = clap::value_parser!(u16).range(400..=599))]
    pub fail_status: Option<u16>,

    /// Share of data requests that fail, 0 to 1: 0.1 fails every tenth [default: 0, or 1 with --fail-status]
    #[arg(long, value_name = "SHARE")]
    pub fail_rate: Option<FailRate>,

    /// Answer 503 on /healthz
    #[arg(long)]
    pub unhealthy: bool,

    /// What to write to standard error for each request
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = AccessLogFormat::Json)]
    pub access_log: AccessLogFormat,
}

/// How requests are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AccessLogFormat {
    /// One JSON object a line.
    Json,
    /// Not at all.
    Off,
}

impl Options {
    /// The failures asked for.
    pub fn fault_plan(&self) -> FaultPlan {
        let fail_rate = match (self.fail_rate, self.fail_status) {
            (Some(rate), _) => rate,
            (None, Some(_)) => FailRate::ALWAYS,
            (None, None) => FailRate::NEVER,
        };
        // 400 to 599 are statuses, as the parser of the option has made sure.
        let fail_status = self
            .fail_status
            .and_then(|status| StatusCode::from_u16(status).ok());
        FaultPlan {
            delay: self.delay,
            fail_rate,
            fail_status: fail_status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
        }
    }

    /// The health that `/healthz` reports.
    pub fn health(&self) -> Health {
        if self.unhealthy {
            Health::StagedDown
        } else {
            Health::Ready
        }
    }
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "give an IP address and a port, such as 127.0.0.1:9000 or [::1]:0".to_owned())
}

fn parse_delay(text: &str) -> Result<Duration, String> {
    let delay = text
        .parse::<SignedDuration>()
        .ok()
        .and_then(|delay| Duration::try_from(delay).ok());
    delay
        .filter(|delay| *delay <= DELAY_MAX)
        .ok_or_else(|| "give a number and a unit, such as 250ms or 2s, at most 10m".to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, clap::Error> {
        Options::try_parse_from(["prediction-data"].iter().chain(arguments))
    }

    #[test]
    fn the_definition_of_the_command_line_is_consistent() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }

    #[test]
    fn without_options_nothing_is_slow_and_nothing_fails() {
        assert_eq!(parse(&[]).unwrap().fault_plan(), FaultPlan::default());
        assert_eq!(parse(&[]).unwrap().health(), Health::Ready);
    }

    #[test]
    fn a_fail_status_alone_fails_every_request_and_a_rate_alone_fails_with_503() {
        let plan = parse(&["--fail-status", "500"]).unwrap().fault_plan();
        assert_eq!(
            (plan.fail_rate, plan.fail_status.as_u16()),
            (FailRate::ALWAYS, 500)
        );
        let plan = parse(&["--fail-rate", "0.1"]).unwrap().fault_plan();
        assert_eq!(
            (plan.fail_rate, plan.fail_status.as_u16()),
            ("0.1".parse().unwrap(), 503)
        );
    }

    #[test]
    fn delays_are_read_up_to_their_limit() {
        for (text, milliseconds) in [("0ms", 0), ("250ms", 250), ("2s", 2_000), ("10m", 600_000)] {
            let delay = parse(&["--delay", text]).unwrap().delay;
            assert_eq!(delay, Duration::from_millis(milliseconds), "{text}");
        }
    }

    #[test]
    fn a_bad_option_is_refused_with_its_name_and_a_hint() {
        for (option, value, hint) in [
            ("--listen", "9000", "such as 127.0.0.1:9000"),
            ("--delay", "250", "such as 250ms"),
            ("--delay", "-1s", "such as 250ms"),
            ("--delay", "601s", "at most 10m"),
            ("--fail-rate", "10", "from 0 to 1"),
            ("--fail-status", "200", "400..=599"),
            ("--access-log", "xml", "json"),
        ] {
            let message = parse(&[&format!("{option}={value}")])
                .unwrap_err()
                .to_string();
            assert!(
                message.contains(option) && message.contains(hint),
                "{message}"
            );
        }
    }
}

//! The arguments of the commands that change a key.

use std::num::NonZeroU64;
use std::time::Duration;

use clap::Args;
use jiff::civil::Date;

use super::change::Consent;
use crate::cli::key_argument::KeyArgument;
use crate::cli::output::{RecordFormat, parse_date, parse_name};
use crate::policy::audit::Author;
use crate::policy::key_record::{Action, LastChange};
use crate::policy::lifecycle::GRANT_UNITS_MAX;

/// The longest overlap, so that a typing error does not leave a leaked secret valid for longer.
const OVERLAP_MAX: Duration = Duration::from_secs(90 * 86_400);
const OVERLAP_UNITS: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];

/// The author of a change, for the audit trail.
#[derive(Debug, Args)]
pub(in crate::cli) struct AuthorArguments {
    /// The author of the change in the audit trail; if left out, the caller of sudo or the user of this process, and its host.
    #[arg(long, env = "TOUCHLINE_ACTOR", value_parser = parse_name, value_name = "NAME")]
    by: Option<String>,
}

impl AuthorArguments {
    /// The author for the trail.
    pub(super) fn author(&self, reason: Option<&str>) -> Author {
        Author {
            who: self.by.clone().unwrap_or_else(|| {
                // sudo sets it to the name of the user who called it (sudo(8)).
                user_and_host(std::env::var("SUDO_USER").ok())
            }),
            reason: reason.map(ToOwned::to_owned),
        }
    }
}

/// The caller of sudo, or the user of this process, and its host, from the operating system.
fn user_and_host(sudo_caller: Option<String>) -> String {
    let valid = |name: String| parse_name(&name).ok();
    let part = |name: Option<String>| name.unwrap_or_else(|| "unknown".to_owned());
    let user = sudo_caller.and_then(valid);
    let user = user.or_else(|| whoami::username().ok().and_then(valid));
    let host = whoami::hostname().ok().and_then(valid);
    format!("{}@{}", part(user), part(host))
}

/// The author of a change and the reason, for the audit trail, and the format of the result.
#[derive(Debug, Args)]
pub(in crate::cli) struct ChangeOptions {
    #[command(flatten)]
    by: AuthorArguments,
    /// The reason, kept in the audit trail.
    #[arg(long, value_parser = parse_name, value_name = "TEXT")]
    reason: Option<String>,
    /// The format of the result.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(in crate::cli) output: RecordFormat,
}

impl ChangeOptions {
    /// The author for the trail.
    pub(in crate::cli) fn author(&self) -> Author {
        self.by.author(self.reason.as_deref())
    }

    /// The first change of a record, for the trail.
    pub(super) fn first(&self, action: Action) -> LastChange {
        let author = self.author();
        LastChange {
            reason: author.reason,
            ..LastChange::first(action, author.who)
        }
    }
}

/// The key that a command changes, and how the change is recorded and shown.
#[derive(Debug, Args)]
pub(in crate::cli) struct ChangedKey {
    /// The public id of the key, or the key itself.
    pub(super) id: KeyArgument,
    #[command(flatten)]
    pub(super) options: ChangeOptions,
}

/// The same for a change by which a client may lose access.
#[derive(Debug, Args)]
pub(in crate::cli) struct ConfirmedKey {
    #[command(flatten)]
    pub(super) key: ChangedKey,
    /// Do not ask for confirmation. Required if the change takes something from the client and there is no terminal to ask on.
    #[arg(long)]
    yes: bool,
}

impl ConfirmedKey {
    /// The meaning of `--yes`.
    pub(super) fn consent(&self) -> Consent {
        match self.yes {
            true => Consent::Given,
            false => Consent::Ask,
        }
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RotateArguments {
    #[command(flatten)]
    pub(super) key: ConfirmedKey,
    /// How long the old secret stays valid, such as 24h, at most 90d; with 0s it ends at once.
    #[arg(long, value_parser = parse_overlap, value_name = "DURATION", allow_hyphen_values = true)]
    pub(super) overlap: Duration,
}

fn parse_units(text: &str) -> Result<NonZeroU64, String> {
    let units = text.parse::<NonZeroU64>().ok();
    units
        .filter(|units| units.get() <= GRANT_UNITS_MAX)
        .ok_or_else(|| {
            format!(
                "write a whole number of at least 1, digits only, and at most {GRANT_UNITS_MAX}"
            )
        })
}

#[derive(Debug, Args)]
pub(in crate::cli) struct GrantArguments {
    /// The public id of the key, or the key itself.
    pub(super) id: KeyArgument,
    /// The units, at least 1.
    #[arg(long, value_parser = parse_units, value_name = "UNITS", allow_negative_numbers = true)]
    pub(super) extra: NonZeroU64,
    /// The quota day; today if left out.
    #[arg(long, value_parser = parse_date, value_name = "DATE")]
    pub(super) day: Option<Date>,
    /// The reason, kept in the audit trail and shown by `keys show`.
    #[arg(long, value_parser = parse_name, value_name = "TEXT")]
    pub(super) reason: String,
    #[command(flatten)]
    pub(super) by: AuthorArguments,
    /// The format of the result.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(super) output: RecordFormat,
}

/// The last day of a subscription; `None` for one without an end.
pub(super) type LastDay = Option<Date>;

/// Parses a [`LastDay`].
pub(super) fn parse_last_day(text: &str) -> Result<LastDay, String> {
    match text {
        "never" => Ok(None),
        day => parse_date(day)
            .map(Some)
            .map_err(|error| format!("{error}, or never")),
    }
}

fn parse_overlap(text: &str) -> Result<Duration, String> {
    let number_end = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(number_end);
    let unit_seconds = OVERLAP_UNITS.iter().find(|(name, _)| *name == unit);
    let duration = unit_seconds
        .and_then(|(_, seconds)| number.parse::<u64>().ok()?.checked_mul(*seconds))
        .map(Duration::from_secs)
        .ok_or("write a whole number and s, m, h or d, such as 24h")?;
    if duration > OVERLAP_MAX {
        return Err("an overlap lasts 90d at most".to_owned());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_names_no_author_is_the_sudo_callers_or_the_users() {
        let of_sudo = |caller: &str| user_and_host(Some(caller.to_owned()));
        let user = user_and_host(None);
        assert!(!user.starts_with("ann@"));
        let (_, host) = user.split_once('@').unwrap();
        assert_eq!(of_sudo("ann"), format!("ann@{host}"));
        for bad in ["", "a\nb"] {
            assert_eq!(of_sudo(bad), user, "{bad:?}");
        }
    }

    #[test]
    fn an_overlap_is_a_whole_number_with_a_unit_up_to_90_days() {
        for (text, seconds) in [
            ("0s", Some(0)),
            ("90s", Some(90)),
            ("5m", Some(300)),
            ("24h", Some(86_400)),
            ("90d", Some(7_776_000)),
            ("91d", None),
            ("2161h", None),
            ("0", None),
            ("24", None),
            ("h", None),
            ("", None),
            ("-1h", None),
            ("+1h", None),
            ("1.5h", None),
            ("1 h", None),
            ("1H", None),
            ("100ms", None),
            ("99999999999999999999d", None),
            ("18446744073709551615d", None),
        ] {
            assert_eq!(
                parse_overlap(text).ok(),
                seconds.map(Duration::from_secs),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_subscription_ends_with_a_day_or_never() {
        assert_eq!(parse_last_day("never"), Ok(None));
        let day = "2027-01-31".parse().unwrap();
        assert_eq!(parse_last_day("2027-01-31"), Ok(Some(day)));
        for bad in ["", "Never", "none", "2027-02-30"] {
            let message = parse_last_day(bad).unwrap_err();
            assert!(
                message.contains("2027-01-31, or never"),
                "{bad:?}: {message}"
            );
        }
    }
}

//! Values that several sections use: durations, networks and URLs.

use std::time::Duration;

use crate::config::Secret;
use crate::config::check::Wrong;
use crate::policy::address::Network;

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = seconds(1);
pub(super) const MINUTE: Duration = seconds(60);
pub(super) const HOUR: Duration = seconds(3_600);
pub(super) const DAY: Duration = seconds(86_400);

pub(super) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn network(text: &str) -> Result<Network, Wrong> {
    let network = text.parse::<Network>();
    network.map_err(|error| Wrong::not("a network", error.to_string()))
}

/// A full HTTP URL with a host; it may contain a secret.
pub(super) fn http_url(secret: Secret, problem: &str, hint: &str) -> Result<Secret, Wrong> {
    let url = reqwest::Url::parse(secret.reveal()).ok();
    let usable = url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    usable
        .then_some(secret)
        .ok_or_else(|| Wrong::new(problem, hint))
}

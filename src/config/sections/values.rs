//! Values that several sections use: durations, addresses, networks and URLs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::config::check::Wrong;
use crate::policy::address::Network;
use crate::policy::secret::Secret;

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = seconds(1);
pub(super) const MINUTE: Duration = seconds(60);
pub(super) const HOUR: Duration = seconds(3_600);
pub(super) const DAY: Duration = seconds(86_400);

pub(super) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The address of a listener that only this machine can reach.
pub(super) const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

pub(super) fn network(text: &str) -> Result<Network, Wrong> {
    let network = text.parse::<Network>();
    network.map_err(|error| Wrong::not("a network", error.to_string()))
}

pub(super) fn not_empty(text: &str, hint: &str) -> Result<String, Wrong> {
    match text {
        "" => Err(Wrong::new("the value is empty", hint)),
        text => Ok(text.to_owned()),
    }
}

/// The form of a `host:port`, as far as the schema describes it.
pub(super) const HOST_AND_PORT: &str = ":[0-9]+$";

/// The problem of a link-local IPv6 address.
pub(super) fn needs_zone(address: SocketAddr) -> Option<Wrong> {
    let SocketAddr::V6(v6) = address else {
        return None;
    };
    let needs = v6.ip().is_unicast_link_local() && v6.scope_id() == 0;
    let message = format!("{address} is link-local: it belongs to no interface without a zone");
    let hint = "write another address of that machine, such as a global or unique local (fd…) one";
    needs.then(|| Wrong::new(message, hint))
}

/// The text of a server, a `host:port` to which a connection can be made; `hint` for any other.
pub(super) fn host_and_port(text: &str, hint: &str) -> Result<String, Wrong> {
    match text.parse().ok().and_then(needs_zone) {
        Some(wrong) => Err(wrong),
        None if is_host_and_port(text) => Ok(text.to_owned()),
        None => Err(Wrong::not("a server", closer_hint(text).unwrap_or(hint))),
    }
}

/// A hint for a text that is nearly `host:port`.
fn closer_hint(text: &str) -> Option<&'static str> {
    if text.parse::<Ipv6Addr>().is_ok() {
        return Some("write an IPv6 address in brackets and a port, such as [::1]:9000");
    }
    let (_, port) = text.rsplit_once(':')?;
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !is_port(port)).then_some("write a port from 1 to 65535, such as 127.0.0.1:9000")
}

/// Whether a text is `host:port`: a name, an IPv4 address or an IPv6 address in brackets, and a port above 0.
fn is_host_and_port(text: &str) -> bool {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return address.port() > 0;
    }
    let outside_names = |c: char| c.is_whitespace() || matches!(c, ':' | '/' | '@' | '[' | ']');
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains(outside_names) && is_port(port)
    })
}

fn is_port(digits: &str) -> bool {
    digits.bytes().all(|byte| byte.is_ascii_digit())
        && digits.parse::<u16>().is_ok_and(|port| port > 0)
}

/// A full HTTP URL with a host; it may contain a secret.
pub(super) fn http_url(secret: Secret, problem: &str, hint: &str) -> Result<Secret, Wrong> {
    let url = reqwest::Url::parse(secret.reveal()).ok();
    let usable = url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    usable
        .then_some(secret)
        .ok_or_else(|| Wrong::new(problem, hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_nearly_a_server_has_a_hint_of_its_own() {
        let hint = |text| host_and_port(text, "write host:port").unwrap_err().hint;
        assert_eq!(hint("127.0.0.1"), "write host:port");
        assert_eq!(hint("a/b:3"), "write host:port");
        for text in ["a:0", "127.0.0.1:99999", "[::1]:65536"] {
            assert!(hint(text).contains("from 1 to 65535"), "{text}");
        }
        for text in ["::1", "::1:3000", "2001:db8::5"] {
            assert!(hint(text).contains("[::1]:9000"), "{text}");
        }
    }
}

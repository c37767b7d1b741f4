//! What stands between clients and the gateway: proxies that are believed, and the listener that leads to HTTPS.

use std::net::SocketAddr;

use crate::config::check::{Check, Wrong};
use crate::config::outline::Path;
use crate::config::scalar::Text;
use crate::config::text::{Leaf, List, RedirectText, Section};
use crate::config::{ProxyProtocol, Redirect};
use crate::policy::address::Network;
use crate::policy::http1::is_host;
use crate::policy::redirect::Rule;

use super::loopback;

/// Where it stands while the rest of a file without its address is checked.
const REDIRECT_ADDRESS: SocketAddr = loopback(8081);
const HTTPS_PORT: u16 = 443;

/// The networks of proxies that are believed; none unless said.
pub(super) fn trusted(check: &mut Check<'_>, at: &Path, list: List<Text>) -> Vec<Network> {
    check.default(at, Vec::<String>::new());
    let trusted = check.texts(at, list, |text| {
        text.parse::<Network>()
            .map_err(|error| Wrong::new(format!("{text:?} is not a network"), error.to_string()))
    });
    trusted.unwrap_or_default()
}

/// Whether the listener at `at` speaks the PROXY protocol.
pub(super) fn protocol(
    check: &mut Check<'_>,
    at: &Path,
    leaf: &Leaf<ProxyProtocol>,
) -> ProxyProtocol {
    check.leaf_or(&at.key("proxy_protocol"), leaf, ProxyProtocol::Absent)
}

/// The listener that leads to HTTPS.
pub(super) fn redirect(
    check: &mut Check<'_>,
    at: &Path,
    section: Section<RedirectText>,
) -> Redirect {
    let text = check.section(at, section).unwrap_or_default();
    let address_at = at.key("address");
    check.required(&address_at, &text.address, "write address: 0.0.0.0:80");
    let address = check.leaf(&address_at, &text.address);
    let port_at = at.key("port");
    let port = check.bounded(&port_at, &text.port, HTTPS_PORT.into(), 1..=u16::MAX.into());
    let hosts_at = at.key("hosts");
    check.default(&hosts_at, Vec::<String>::new());
    let hosts = check.texts(&hosts_at, text.hosts, |text| {
        let bare = !text.contains(':') || text.ends_with(']');
        match is_host(text.as_bytes()) && bare {
            true => Ok(text.to_ascii_lowercase()),
            false => Err(Wrong::new(
                format!("{text:?} is not a host"),
                "write a name without a port, such as api.example.com",
            )),
        }
    });
    Redirect {
        address: address.unwrap_or(REDIRECT_ADDRESS),
        rule: Rule {
            port: u16::try_from(port).unwrap_or(HTTPS_PORT),
            hosts: hosts.unwrap_or_default(),
        },
        proxy_protocol: protocol(check, at, &text.proxy_protocol),
    }
}

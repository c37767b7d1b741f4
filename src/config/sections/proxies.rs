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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Listen};

    const NEEDED: &str = "
tiers: {pro: {daily: 5}}
endpoints: [{path: /a, tiers: [pro], upstream: u}]
upstreams: {u: {servers: [127.0.0.1:9000]}}
";

    /// What `listen: {…}` comes to, or every problem as `LINE:COLUMN path: message (hint)`.
    fn listen(inside: &str) -> Result<Listen, String> {
        let text = format!("listen: {{{inside}}}{NEEDED}");
        match Config::parse("g.yaml", &text, &|_| None) {
            Ok(config) => Ok(config.listen),
            Err(errors) => {
                let told = errors.problems.iter().map(|problem| {
                    let (line, column) = (problem.line, problem.column);
                    let hint = problem.hint.as_deref().unwrap_or_default();
                    format!(
                        "{line}:{column} {}: {} ({hint})",
                        problem.path, problem.message
                    )
                });
                Err(told.collect::<Vec<String>>().join(", "))
            }
        }
    }

    #[test]
    fn nobody_is_trusted_and_nothing_redirected_unless_said() {
        let shipped = listen("http: {}, https: {}").unwrap();
        assert_eq!(shipped.redirect, None);
        assert_eq!(shipped.trusted_proxies, []);
        assert_eq!(shipped.http.unwrap().proxy_protocol, ProxyProtocol::Absent);
        assert_eq!(shipped.https.unwrap().proxy_protocol, ProxyProtocol::Absent);
        let said = "http: {proxy_protocol: true}, https: {proxy_protocol: false}, \
                    trusted_proxies: [10.0.0.0/8, \"2001:db8::1\"], \
                    redirect: {address: 0.0.0.0:80, port: 8443, hosts: [API.example, \"[::1]\"]}";
        let said = listen(said).unwrap();
        assert_eq!(said.http.unwrap().proxy_protocol, ProxyProtocol::Spoken);
        assert_eq!(said.trusted_proxies.len(), 2);
        let redirect = Redirect {
            address: "0.0.0.0:80".parse().unwrap(),
            rule: Rule {
                port: 8443,
                hosts: vec!["api.example".into(), "[::1]".into()],
            },
            proxy_protocol: ProxyProtocol::Absent,
        };
        assert_eq!(said.redirect, Some(redirect));
        let bare = listen("https: {}, redirect: {address: 0.0.0.0:80}").unwrap();
        let rule = bare.redirect.unwrap().rule;
        assert_eq!((rule.port, rule.hosts), (443, Vec::new()));
    }

    #[test]
    fn mistakes_are_told_with_their_place_and_a_hint() {
        let cases = [
            (
                "http: {}, trusted_proxies: [10.0.0.1/8]",
                "1:38 listen.trusted_proxies[0]: \"10.0.0.1/8\" is not a network \
                 (bits are set after the prefix: did you mean 10.0.0.0/8?)",
            ),
            (
                "http: {proxy_protocol: true}",
                "1:33 listen.http.proxy_protocol: no proxy is trusted, so every connection would be closed \
                 (write trusted_proxies: [NETWORK] in listen)",
            ),
            (
                "https: {proxy_protocol: \"true\"}",
                "1:34 listen.https.proxy_protocol: expected true or false, found \"true\" (remove the quotes)",
            ),
            (
                "http: {}, redirect: {address: 0.0.0.0:80}",
                "1:20 listen.redirect: there is no https listener to redirect to (write https: {}, or remove it)",
            ),
            (
                "https: {}, redirect: {}",
                "1:21 listen.redirect.address: the key is missing (write address: 0.0.0.0:80)",
            ),
            (
                "https: {}, redirect: {address: 127.0.0.1:8443}",
                "1:41 listen.redirect.address: the https listener has this address already \
                 (give each listener a port of its own)",
            ),
            (
                "https: {}, redirect: {address: 0.0.0.0:80, port: 0}",
                "1:59 listen.redirect.port: 0 is too small (from 1 to 65535)",
            ),
            (
                "https: {}, redirect: {address: 0.0.0.0:80, hosts: [\"a.example:80\", a/b]}",
                "1:61 listen.redirect.hosts[0]: \"a.example:80\" is not a host \
                 (write a name without a port, such as api.example.com), \
                 1:77 listen.redirect.hosts[1]: \"a/b\" is not a host \
                 (write a name without a port, such as api.example.com)",
            ),
        ];
        let told = cases.map(|(inside, _)| (inside, listen(inside).unwrap_err()));
        assert_eq!(
            told,
            cases.map(|(inside, problem)| (inside, problem.to_owned()))
        );
    }
}

//! The listeners for clients and operators, and the trusted proxies in front of them.

use std::fs::Metadata;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use super::https::{Https, https};
use super::pairs::one_of;
use super::values::{loopback, needs_zone, network};
use crate::config::check::{Check, Wrong};
use crate::config::choices::{Cleartext, ProxyProtocol};
use crate::config::outline::Path;
use crate::config::rows::{
    always, distinct, leaf, number, optional, required, restart, rows, secret_file, section, text,
};
use crate::policy::address::Network;
use crate::policy::http1::is_host;
use crate::policy::secret::Secret;

rows! {
    /// The listeners: at least one of `http` and `https`, all on different addresses.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Listen {
        /// Cleartext HTTP for clients: HTTP/1, and HTTP/2 with prior knowledge. At least one of http and https is needed.
        http: Option<Http> = section(|check, at, rows| Some(http(check, at, rows)));
        /// HTTPS for clients, HTTP/2 and HTTP/1.1.
        https: Option<Https> = section(|check, at, rows| Some(https(check, at, rows)));
        /// A cleartext listener that redirects every request to HTTPS (308). Without this section there is none.
        redirect: Option<RedirectListener> = optional();
        /// Networks of the proxies in front of the gateway. X-Forwarded-For, -Proto and -Host and the PROXY protocol are accepted from
        /// these only.
        trusted_proxies: Vec<Network> = distinct(|| text(network)).or_list("");
        /// Metrics and health for operators; an address outside loopback needs a token.
        admin: Admin = always(admin);
        /// The Unix socket, of this gateway only, through which `touchline serve --upgrade` takes over the listeners without losing a
        /// connection; without it, --upgrade is not possible. A change needs a restart.
        upgrade: Option<PathBuf> = restart(leaf().then(upgrade_socket));
    }

    /// The cleartext listener. An address outside loopback needs [`Cleartext::Allowed`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Http {
        /// IP address and port; port 0 means any free port. An address outside loopback needs `cleartext: allowed`. A change needs a
        /// restart.
        address: SocketAddr = restart(leaf().or(loopback(8080)));
        /// Whether API keys may cross a network in clear text: write `allowed` only behind a proxy that ends TLS.
        cleartext: Cleartext = leaf().or(Cleartext::Loopback);
        /// If true, every connection must begin with a PROXY protocol header (version 1 or 2) from one of listen.trusted_proxies, else it
        /// is closed.
        proxy_protocol: ProxyProtocol = leaf().or(ProxyProtocol::Absent);
    }

    /// The listener that redirects.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct RedirectListener {
        /// IP address and port, such as 0.0.0.0:80. A change needs a restart.
        address: SocketAddr = restart(required("write address: 0.0.0.0:80", leaf().or(loopback(8081))));
        /// The HTTPS port that clients connect to.
        port: u16 = number(443, 1..=65_535);
        /// The hosts that clients may be redirected to; without it, the host of the request.
        hosts: Vec<String> = distinct(|| text(host)).or_list("");
        /// If true, every connection must begin with a PROXY protocol header from one of listen.trusted_proxies.
        proxy_protocol: ProxyProtocol = leaf().or(ProxyProtocol::Absent);
    }

    struct AdminRows {
        /// IP address and port; an address outside loopback needs a token. A change needs a restart.
        address: SocketAddr = restart(leaf().then(known_address).or(loopback(9090)));
        /// The token that /metrics requires as `Authorization: Bearer …`: 16 to 256 printable characters without spaces, from a
        /// ${VARIABLE}.
        token: Option<Secret> = leaf();
        /// A file with the token.
        token_file: Option<Secret> = secret_file();
    }
}

/// The address as read. Port 0 stands for one that is written, but not known here because variables are not read.
fn known_address(
    check: &mut Check<'_>,
    at: &Path,
    address: Option<SocketAddr>,
) -> Option<SocketAddr> {
    let is_unknown = check.is_given(at) && !check.looks_outside();
    address.or_else(|| is_unknown.then(|| loopback(0)))
}

/// The longest path of the upgrade socket: a Unix socket's has at most 107 bytes (unix(7)), and the gateway binds it under this name
/// with a dot and its process id of up to seven digits.
const UPGRADE_PATH_BYTES_MAX: usize = 107 - 8;

/// Notes a path at which no socket can be bound, or whose file is no socket: the gateway would replace it. Its directory may be made
/// by the store.
fn upgrade_socket(check: &mut Check<'_>, at: &Path, path: Option<PathBuf>) -> Option<PathBuf> {
    let file = path.as_deref()?;
    if file.as_os_str().len() > UPGRADE_PATH_BYTES_MAX {
        let hint = format!("a socket's path has at most {UPGRADE_PATH_BYTES_MAX} bytes");
        check.wrong(at, "the path is too long for a Unix socket", hint);
    }
    let is_other = |file: Metadata| !file.file_type().is_socket();
    if check.looks_outside() && std::fs::symlink_metadata(file).is_ok_and(is_other) {
        let message = format!("{} is a file of another kind", file.display());
        check.wrong(
            at,
            message,
            "write a path for the gateway's own Unix socket",
        );
    }
    path
}

/// The listener for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// The address to listen on; outside loopback only with a token.
    pub address: SocketAddr,
    /// The token that `/metrics` requires.
    pub token: Option<Secret>,
}

pub(super) fn listen(check: &mut Check<'_>, at: &Path, mut listen: Listen) -> Listen {
    let (http_at, https_at) = (at.key("http"), at.key("https"));
    if !check.is_given(at) {
        listen.http = Some(always(self::http).read(check, &http_at, None));
        listen.https = Some(always(self::https).read(check, &https_at, None));
    } else if !check.is_given(&http_at) && !check.is_given(&https_at) {
        let message = "there is no listener for clients";
        check.wrong(at, message, "write http: {} or https: {}");
    }
    if listen.redirect.is_some() && listen.https.is_none() {
        let message = "there is no https listener to redirect to";
        let hint = "write https: {}, or remove it";
        check.wrong_key(&at.key("redirect"), message, hint);
    }
    let of_http = |one: &Http| (one.address, one.proxy_protocol);
    let of_https = |one: &Https| (one.address, one.proxy_protocol);
    let of_redirect = |one: &RedirectListener| (one.address, one.proxy_protocol);
    let listeners = [
        ("http", listen.http.as_ref().map(of_http)),
        ("https", listen.https.as_ref().map(of_https)),
        ("redirect", listen.redirect.as_ref().map(of_redirect)),
        ("admin", Some((listen.admin.address, ProxyProtocol::Absent))),
    ];
    for (index, (name, listener)) in listeners.iter().enumerate() {
        let Some((address, spoken)) = listener else {
            continue;
        };
        if *spoken == ProxyProtocol::Spoken && listen.trusted_proxies.is_empty() {
            check.wrong(
                &at.key(name).key("proxy_protocol"),
                "no proxy is trusted, so every connection would be closed",
                "write trusted_proxies: [NETWORK] in listen",
            );
        }
        if let Some(wrong) = needs_zone(*address) {
            check.accept::<()>(&at.key(name).key("address"), Err(wrong));
        }
        let mut before = listeners.iter().take(index);
        let other =
            before.find(|(_, other)| other.is_some_and(|(other, _)| collide(other, *address)));
        if let Some((other, _)) = other {
            check.wrong(
                &at.key(name).key("address"),
                format!("the {other} listener has this address already"),
                "give each listener a port of its own",
            );
        }
    }
    listen
}

/// Whether a process cannot listen on both addresses.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    // On Linux, [::] includes the addresses of IPv4.
    let includes = |all: SocketAddr, other: SocketAddr| {
        all.ip().is_unspecified() && (all.is_ipv6() || other.is_ipv4())
    };
    // Port 0 means any free port: never the same twice.
    one.port() == other.port()
        && one.port() != 0
        && (one.ip() == other.ip() || includes(one, other) || includes(other, one))
}

fn http(check: &mut Check<'_>, at: &Path, http: Http) -> Http {
    let address = http.address;
    if http.cleartext == Cleartext::Loopback && !address.ip().is_loopback() {
        check.wrong(
            &at.key("address"),
            format!("{address} would receive API keys in clear text from the network"),
            "listen on 127.0.0.1, use https, or write cleartext: allowed where TLS ends in front of the gateway",
        );
    }
    http
}

fn host(text: &str) -> Result<String, Wrong> {
    let bare = !text.contains(':') || text.ends_with(']');
    let host = (is_host(text.as_bytes()) && bare).then(|| text.to_ascii_lowercase());
    let hint = "write a name without a port, such as api.example.com";
    host.ok_or_else(|| Wrong::not("a host", hint))
}

fn admin(check: &mut Check<'_>, at: &Path, rows: AdminRows) -> Admin {
    let has_token = ["token", "token_file"].map(|name| check.is_given(&at.key(name)));
    let has_token = has_token.contains(&true);
    let secrets = (rows.token, rows.token_file);
    let token = has_token.then(|| one_of(check, at, "token", secrets, token));
    let address = rows.address;
    if !address.ip().is_loopback() && !has_token {
        check.wrong(
            &at.key("address"),
            format!("{address} would open the admin listener to the network"),
            "listen on 127.0.0.1, or write token: \"${VARIABLE}\" or token_file: FILE",
        );
    }
    Admin {
        address,
        token: token.flatten(),
    }
}

fn token(token: Secret) -> Result<Secret, Wrong> {
    let hint =
        "16 to 256 printable characters without spaces, such as `openssl rand -hex 32` makes";
    let bytes = token.reveal().as_bytes();
    let fits = (16..=256).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic);
    fits.then_some(token)
        .ok_or_else(|| Wrong::new("the value is not a token", hint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::listen;

    #[test]
    fn no_proxy_is_trusted_and_nothing_redirected_unless_configured() {
        let shipped = listen("http: {}, https: {}").unwrap();
        assert_eq!(shipped.redirect, None);
        assert_eq!(shipped.trusted_proxies, []);
        assert_eq!(shipped.http.unwrap().proxy_protocol, ProxyProtocol::Absent);
        assert_eq!(shipped.https.unwrap().proxy_protocol, ProxyProtocol::Absent);
        let written = "http: {proxy_protocol: true}, https: {proxy_protocol: false}, \
                    trusted_proxies: [10.0.0.0/8, \"2001:db8::1\"], \
                    redirect: {address: 0.0.0.0:80, port: 8443, hosts: [API.example, \"[::1]\"]}";
        let written = listen(written).unwrap();
        assert_eq!(written.http.unwrap().proxy_protocol, ProxyProtocol::Spoken);
        assert_eq!(written.trusted_proxies.len(), 2);
        let redirect = RedirectListener {
            address: "0.0.0.0:80".parse().unwrap(),
            port: 8443,
            hosts: vec!["api.example".into(), "[::1]".into()],
            proxy_protocol: ProxyProtocol::Absent,
        };
        assert_eq!(written.redirect, Some(redirect));
        let apart = "https: {address: \"[::1]:80\"}, redirect: {address: 0.0.0.0:80}";
        assert!(listen(apart).is_ok());
        let bare = listen("https: {}, redirect: {address: 0.0.0.0:80}").unwrap();
        let redirect = bare.redirect.unwrap();
        assert_eq!((redirect.port, redirect.hosts), (443, Vec::new()));
    }

    #[test]
    fn mistakes_are_reported_with_their_place_and_a_hint() {
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
                "https: {}, redirect: {address: 0.0.0.0:8443}",
                "1:41 listen.redirect.address: the https listener has this address already \
                 (give each listener a port of its own)",
            ),
            (
                "https: {}, redirect: {address: \"[::]:9090\"}",
                "1:1 listen.admin.address: the redirect listener has this address already \
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
        let reported = cases.map(|(inside, _)| (inside, listen(inside).unwrap_err()));
        assert_eq!(
            reported,
            cases.map(|(inside, problem)| (inside, problem.to_owned()))
        );
    }
}

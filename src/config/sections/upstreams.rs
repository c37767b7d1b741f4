//! The services behind the gateway: their servers, how a server is chosen and checked, and the protocol used with it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use rustls::pki_types::ServerName;
use serde_yaml::Value;

use super::pairs::one_of;
use super::upstream_tls::{UpstreamTls, tls};
use super::values::{HOST_AND_PORT, HOUR, MINUTE, MS, SECOND, host_and_port, seconds};
use crate::config::check::{Check, Wrong};
use crate::config::choices::Protocol;
use crate::config::outline::Path;
use crate::config::rows::{
    Form, Kind, always, distinct, flagged, leaf, list, needed, number, optional, plain, positive,
    required, rows, secret_file, section, size, text, within,
};
use crate::config::scalar::Scalar;
use crate::policy::address;
use crate::policy::choice::Choice;
use crate::policy::compression::{Coding, Compression};
use crate::policy::own_header;
use crate::policy::secret::Secret;
use crate::policy::server_health::{Ejection, Thresholds};

/// The hint for an empty section `upstreams`.
pub(super) const HINT: &str = "write one such as prediction-data: { servers: [127.0.0.1:9000] }";
const SERVERS_HINT: &str = "write servers: [127.0.0.1:9000]";
/// The hint for a malformed server.
const SERVER_HINT: &str = "write host:port, such as 127.0.0.1:9000";
const URL_HINT: &str =
    "write host:port without a scheme or a path; for HTTPS, add tls: {} to the upstream";
/// The largest number of checks in a row.
const IN_A_ROW_MAX: u64 = 100;

rows! {
    /// A service behind the gateway. It has at least one server, and none twice; only with TLS, the protocol is negotiated.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct UpstreamConfig {
        /// The servers, each host:port, or address and weight. Each address of a name is a server (IPv4 addresses only, if it has any).
        servers: Vec<UpstreamServer> = required(
            SERVERS_HINT,
            list(server_item).not_empty("at least one server is needed", SERVERS_HINT).then(servers),
        );
        /// How a server is chosen: `round_robin`, one after another; `least_loaded`, the one with the fewest requests in flight;
        /// `by_key`, the same one for the same API key. Weights count with each.
        choice: Choice = leaf().or(Choice::RoundRobin);
        /// How often names are resolved again. No request waits for it, and a failure changes nothing. A name that never resolved is
        /// tried each second; its server gets no requests until then.
        resolve: Duration = within(seconds(30), SECOND..=HOUR);
        /// Health checks of every server; without them, only failing requests take a server out.
        health: Option<HealthCheck> = optional();
        /// When failing requests take a server out.
        ejection: Ejection = always(ejection);
        /// TLS to every server. Certificates are always verified; {} trusts the operating system's authorities.
        tls: Option<UpstreamTls> = section(tls);
        /// The version of HTTP: `http1`; `http2`, without TLS with prior knowledge; `auto`, with TLS only, what a server agrees to by
        /// ALPN, HTTP/2 first.
        protocol: Protocol = leaf().or(Protocol::Http1);
        /// A secret header, so that the servers can refuse requests that did not come through the gateway. A client's own header of that
        /// name is removed.
        header: Option<SecretHeader> = section(header);
        /// Compresses answers that the servers send uncompressed, for clients that accept it; without this section none is compressed.
        compression: Option<Compression> = section(compression);
        /// The timeouts of a request to a server.
        timeouts: Timeouts = plain();
        /// How often a request is retried if no server was reached. GET, HEAD and OPTIONS are also retried on another server, if there
        /// is one, after a broken-off answer or a 502, 503 or 504 of which nothing was passed on; these, PUT and DELETE also if a kept
        /// connection had ended. Retries are never charged.
        retries: u32 = number(1, 0..=3);
    }

    struct CompressionRows {
        /// The codings, zstd or gzip; of those that a client prefers equally (Accept-Encoding), the first is used.
        codings: Vec<Coding> = distinct(leaf).or_list("zstd gzip").not_empty("there is no coding", Coding::HINT);
        // Below this size, an answer and its header fit into one packet whether compressed or not.
        /// An answer known to be shorter is passed on uncompressed.
        min_bytes: u64 = size(1024, 1..=1024 * 1024);
    }

    struct ServerRows {
        /// host:port.
        address: Option<String> = required("write address: 127.0.0.1:9000", text(server).like(HOST_AND_PORT));
        /// The server's share of the requests, relative to the others.
        weight: NonZeroU32 = positive(1, 1..=1_000);
    }

    /// Health checks of the servers.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    pub struct HealthCheck {
        /// The path requested with GET; any 2xx passes.
        path: String = needed("write path: /healthz", text(path).like("^/"));
        /// The time between two checks of a server.
        interval: Duration = within(seconds(5), MS * 100..=HOUR);
        /// The timeout of one check.
        timeout: Duration = within(SECOND, MS..=MINUTE);
        /// The number of failed checks in a row after which the server gets no requests; the first check of a server decides by itself.
        unhealthy_after: NonZeroU32 = positive(3, 1..=IN_A_ROW_MAX);
        /// The number of passed checks in a row after which it gets requests again.
        healthy_after: NonZeroU32 = positive(2, 1..=IN_A_ROW_MAX);
    }

    struct EjectionRows {
        /// The number of failed requests in a row (not reached, broken off, timed out, answered 502, 503 or 504) after which the server
        /// gets no requests for a pause; 0: never.
        failures: u32 = number(5, 0..=1_000);
        /// The first pause. Each pause is twice as long as the one before, until a request is served.
        pause: Duration = within(SECOND, MS * 100..=HOUR);
        /// The longest pause.
        pause_max: Duration = within(MINUTE, MS * 100..=HOUR);
    }

    pub(super) struct SecretHeaderRows {
        /// The name of the header.
        name: Option<HeaderName> = required("write name: X-Gateway-Secret", text(header_name));
        /// The value, from a ${VARIABLE}.
        value: Option<Secret> = leaf();
        /// A file with the value.
        value_file: Option<Secret> = secret_file();
    }

    /// The timeouts of a request to an upstream.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Timeouts {
        /// The timeout for a connection.
        connect: Duration = within(SECOND, MS..=MINUTE);
        /// The longest silence: before the header of the answer, and between two parts of it.
        read: Duration = within(seconds(10), MS..=HOUR);
        /// The timeout for the whole answer.
        total: Duration = within(MINUTE, MS..=HOUR);
        /// A client that hangs up is refunded only if the upstream sent no header for longer than this.
        slow: Duration = within(seconds(5), Duration::ZERO..=HOUR);
        /// How long an unused connection is kept.
        idle: Duration = within(seconds(30), MS..=HOUR);
    }
}

/// One server of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamServer {
    /// `host:port` as written in the file: the `Host` of requests to the server.
    pub name: String,
    /// The server's share of the requests, relative to the others.
    pub weight: NonZeroU32,
    /// The addresses of the name when the file was read, in order, none twice; empty if it did not resolve.
    pub addresses: Vec<SocketAddr>,
}

impl HealthCheck {
    /// The results in a row that change a server's state.
    pub fn thresholds(&self) -> Thresholds {
        Thresholds {
            unhealthy_after: self.unhealthy_after,
            healthy_after: self.healthy_after,
        }
    }
}

/// A header with a secret for an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretHeader {
    /// The name, none that the gateway sets or removes.
    pub name: HeaderName,
    /// The value, which is valid in a header.
    pub value: Secret,
}

pub(super) fn upstream(
    check: &mut Check<'_>,
    at: &Path,
    name: &str,
    upstream: UpstreamConfig,
) -> Option<(Arc<str>, UpstreamConfig)> {
    let fits =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    if !(1..=64).contains(&name.len()) || !name.bytes().all(fits) {
        let hint = "1 to 64 characters of a-z, 0-9, - and _";
        check.wrong_key(at, "this is not the name of an upstream", hint);
    }
    if upstream.protocol == Protocol::Negotiated && !check.is_given(&at.key("tls")) {
        let message = "without TLS a version cannot be negotiated";
        let hint = "write http1 or http2, or add tls";
        check.wrong(&at.key("protocol"), message, hint);
    }
    let is_verifiable =
        |server: &UpstreamServer| ServerName::try_from(address::host_of(&server.name)).is_ok();
    let has_no_name = upstream.tls.as_ref().is_some_and(|tls| tls.name.is_none());
    if has_no_name && !upstream.servers.iter().all(is_verifiable) {
        let message = "no certificate can have the name of one of the servers";
        let hint =
            "write their names or addresses as their certificates have them, or set tls.name";
        check.wrong(&at.key("servers"), message, hint);
    }
    let timeouts = &upstream.timeouts;
    for (name, timeout) in [("connect", timeouts.connect), ("slow", timeouts.slow)] {
        let at = at.key("timeouts").key(name);
        if timeout > timeouts.total && check.is_given(&at) {
            let message = "it has no effect, because total is shorter and ends the request before";
            check.warn(&at, message, "make it shorter than total, or total longer");
        }
    }
    Some((name.into(), upstream))
}

/// An item of a list of servers.
struct ServerItem {
    /// The path of its address.
    at: Path,
    /// Its `host:port`, if it is valid.
    name: Option<String>,
    weight: NonZeroU32,
    /// Its `host:port` as written.
    shown: Option<String>,
}

/// A server as written: a text, or a section of its own. The list is noted as a whole.
fn server_item() -> Kind<ServerItem> {
    let item = Kind::new(
        |check, at, written| {
            let shown = shown(written.as_ref());
            let (at, name, weight) = if written.as_ref().is_some_and(Value::is_mapping) {
                let rows: ServerRows = plain().read(check, at, written);
                (at.key("address"), rows.address, rows.weight)
            } else {
                (
                    at.clone(),
                    text(server).read(check, at, written),
                    NonZeroU32::MIN,
                )
            };
            ServerItem {
                at,
                name,
                weight,
                shown,
            }
        },
        || {
            Form::either(
                text(server).like(HOST_AND_PORT).form(),
                plain::<ServerRows>().form(),
            )
        },
    );
    flagged(item, |check| &mut check.is_silent)
}

/// The address of a server as written, with its variables.
fn shown(written: Option<&Value>) -> Option<String> {
    let address = match written? {
        Value::Mapping(rows) => rows.get("address")?,
        other => other,
    };
    address.as_str().map(str::to_owned)
}

fn servers(check: &mut Check<'_>, list: &Path, written: Vec<ServerItem>) -> Vec<UpstreamServer> {
    let shown = written.iter().filter_map(|item| {
        item.name.as_ref()?;
        let shown = item.shown.as_ref()?;
        Some(match item.weight.get() {
            1 => shown.clone(),
            weight => format!("{shown} (weight {weight})"),
        })
    });
    let shown: Vec<String> = shown.collect();
    check.note(list, shown.join(", "), shown.join(", "));
    let mut servers: Vec<UpstreamServer> = Vec::new();
    for item in written {
        let ServerItem {
            at, name, weight, ..
        } = item;
        let Some(name) = name else { continue };
        let shown = item.shown.unwrap_or_default();
        let address = name.parse::<SocketAddr>().ok();
        let is_known = |server: &UpstreamServer| {
            server.name == name || address.is_some_and(|own| server.name.parse() == Ok(own))
        };
        if servers.iter().any(is_known) {
            let message = format!("{shown} is in the list already");
            check.wrong(&at, message, "remove one of them");
            continue;
        }
        check.note_server(list, at, &name, Some(&shown));
        servers.push(UpstreamServer {
            name,
            weight,
            addresses: Vec::from_iter(address),
        });
    }
    servers
}

/// Adds the addresses that the names of servers were resolved to.
pub(super) fn add_addresses(
    upstreams: &mut [(Arc<str>, UpstreamConfig)],
    found: &HashMap<String, Vec<SocketAddr>>,
) {
    let servers = upstreams
        .iter_mut()
        .flat_map(|(_, upstream)| &mut upstream.servers);
    for server in servers {
        if let Some(addresses) = found.get(&server.name) {
            server.addresses.clone_from(addresses);
        }
    }
}

fn server(text: &str) -> Result<String, Wrong> {
    let hint = match text.contains("://") {
        true => URL_HINT,
        false => SERVER_HINT,
    };
    host_and_port(text, hint)
}

fn path(text: &str) -> Result<String, Wrong> {
    let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
    let fits = text.starts_with('/') && visible && !text.contains('#');
    let wrong = || Wrong::not("a path", "write one such as /healthz");
    fits.then(|| text.to_owned()).ok_or_else(wrong)
}

fn ejection(check: &mut Check<'_>, at: &Path, rows: EjectionRows) -> Ejection {
    if rows.pause_max < rows.pause {
        let message = "the longest pause is shorter than the first";
        let hint = "make it at least as long as pause";
        check.wrong(&at.key("pause_max"), message, hint);
    }
    Ejection {
        failures: NonZeroU32::new(rows.failures),
        pause: rows.pause,
        pause_max: rows.pause_max,
    }
}

/// Reads a header with a secret value.
pub(super) fn header(
    check: &mut Check<'_>,
    at: &Path,
    rows: SecretHeaderRows,
) -> Option<SecretHeader> {
    let value = one_of(check, at, "value", (rows.value, rows.value_file), |value| {
        let text = value.reveal();
        let plain = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
        let hint = "printable ASCII, without spaces at its ends";
        let fits = !text.is_empty() && text.trim() == text && text.bytes().all(plain);
        let wrong = || Wrong::new("the value is not valid in a header", hint);
        fits.then_some(value).ok_or_else(wrong)
    });
    Some(SecretHeader {
        name: rows.name?,
        value: value?,
    })
}

fn header_name(text: &str) -> Result<HeaderName, Wrong> {
    let hint = "write a name of your own, such as X-Gateway-Secret, or Authorization";
    // It may be a whole header line, with the secret.
    let wrong = |_| Wrong::new("the value is not the name of a header", hint);
    let name = HeaderName::try_from(text).map_err(wrong)?;
    let text = name.as_str().as_bytes();
    if own_header::is_read_or_set(text) || own_header::identifies_caller(text) {
        return Err(Wrong::new("the gateway sets or removes this header", hint));
    }
    Ok(name)
}

fn compression(_: &mut Check<'_>, _: &Path, rows: CompressionRows) -> Option<Compression> {
    Some(Compression {
        codings: rows.codings,
        bytes_min: rows.min_bytes,
    })
}

#[cfg(test)]
mod tests;

//! The services behind the gateway: their servers, how these are chosen and judged, and how they are spoken to.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use http::HeaderName;
use serde_yaml::Value;

use super::upstream_tls::tls;
use super::{HOUR, MINUTE, MS, SECOND, seconds};
use crate::config::check::{Check, Wrong};
use crate::config::outline::Path;
use crate::config::scalar::{Bytes, Text};
use crate::config::text::{
    CompressionText, EjectionText, HealthText, Leaf, List, Named, SecretHeaderText, Section,
    ServerItem, ServerText, TimeoutsText, UpstreamText, UpstreamTlsText,
};
use crate::config::{HealthCheck, Protocol, Secret, SecretHeader, Server, Timeouts, Upstream};
use crate::policy::choice::Choice;
use crate::policy::compression::{Coding, Compression};
use crate::policy::server_health::{Ejection, Thresholds};
use crate::policy::{address, own_header};

const RETRIES_MAX: u64 = 3;
const WEIGHT_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(999);
/// What a server of an upstream looks like.
const SERVER_HINT: &str = "write host:port, such as 127.0.0.1:9000";
/// More checks in a row than anybody waits for.
const IN_A_ROW_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(99);
const FAILURES_MAX: u64 = 1_000;
/// Below it, an answer and its header fit one packet whether it is compressed or not.
const COMPRESSED_BYTES_MIN: Bytes = Bytes(1024);
const COMPRESSED_BYTES_MIN_MAX: Bytes = Bytes(1024 * 1024);
const CODINGS_HINT: &str = "write zstd or gzip";

/// The upstreams; `None` where there are none.
pub(super) fn upstreams(
    check: &mut Check<'_>,
    at: &Path,
    named: Named<UpstreamText>,
) -> Option<Vec<Upstream>> {
    let hint = "write one such as prediction-data: { servers: [127.0.0.1:9000] }";
    let mut upstreams = Vec::new();
    for (at, name, value) in check.named(at, named, hint)? {
        let fits = (1..=64).contains(&name.len())
            && name.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_'
            });
        if !fits {
            check.wrong_key(
                &at,
                "this is not the name of an upstream",
                "1 to 64 characters of a-z, 0-9, - and _",
            );
        }
        let text: UpstreamText = check.section_of(&at, value).unwrap_or_default();
        upstreams.push(upstream(check, &at, &name, text));
    }
    Some(upstreams)
}

fn upstream(check: &mut Check<'_>, at: &Path, name: &str, text: UpstreamText) -> Upstream {
    let servers = servers(check, &at.key("servers"), text.servers);
    let choice = check.leaf_or(&at.key("choice"), &text.choice, Choice::RoundRobin);
    let resolve = check.bounded(
        &at.key("resolve"),
        &text.resolve,
        seconds(30),
        SECOND..=HOUR,
    );
    let health = health(check, &at.key("health"), text.health);
    let ejection = ejection(check, &at.key("ejection"), text.ejection);
    let protocol_at = at.key("protocol");
    let protocol = protocol(check, &protocol_at, &text.protocol, &text.tls);
    let tls = tls(check, &at.key("tls"), text.tls);
    let header = header(check, &at.key("header"), text.header);
    let compression = compression(check, &at.key("compression"), text.compression);
    let timeouts = timeouts(check, &at.key("timeouts"), text.timeouts);
    let retries = check.bounded(&at.key("retries"), &text.retries, 1, 0..=RETRIES_MAX);
    Upstream {
        name: name.into(),
        servers,
        choice,
        resolve,
        health,
        ejection,
        tls,
        protocol,
        header,
        compression,
        timeouts,
        retries: u8::try_from(retries).unwrap_or_default(),
    }
}

fn servers(check: &mut Check<'_>, at: &Path, list: List<ServerItem>) -> Vec<Server> {
    let given = list.is_given();
    let items = check.items(at, list).unwrap_or_default();
    if items.is_empty() {
        let message = if given {
            "at least one server is needed"
        } else {
            "the key is missing"
        };
        check.wrong(at, message, "write servers: [127.0.0.1:9000]");
    }
    let mut written = Vec::new();
    for (at, item) in items {
        let (at, name, weight) = server(check, at, item);
        written.extend(name.map(|name| (at, name, weight)));
    }
    let told = written.iter().map(|(_, name, weight)| match weight.get() {
        1 => name.clone(),
        weight => format!("{name} (weight {weight})"),
    });
    check.note_texts(at, told.collect());
    let mut servers: Vec<Server> = Vec::new();
    for (at, name, weight) in written {
        let addresses = match addresses_of(check, &name) {
            Ok(addresses) => addresses,
            Err(reason) => {
                let message = format!("{name:?} cannot be resolved: {reason}");
                check.wrong(&at, message, SERVER_HINT);
                continue;
            }
        };
        let mut before = servers.iter().flat_map(|server| &server.addresses);
        match before.find(|address| addresses.contains(address)) {
            Some(address) => {
                let message = format!("{address} is in the list already");
                check.wrong(&at, message, "remove one of them");
            }
            None => servers.push(Server {
                name,
                weight,
                addresses,
            }),
        }
    }
    servers
}

/// One item of the list, a text or a section: where its address stands, the address and its weight.
fn server(check: &mut Check<'_>, at: Path, item: Value) -> (Path, Option<String>, NonZeroU32) {
    let parse = |text: &str| match text.rsplit_once(':') {
        Some((host, port))
            if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) =>
        {
            Ok(text.to_owned())
        }
        Some(_) | None => Err(Wrong::new(format!("{text:?} is not a server"), SERVER_HINT)),
    };
    if !item.is_mapping() {
        let name = check.parsed(&at, &Leaf::of(&item), parse);
        return (at, name, NonZeroU32::MIN);
    }
    let text: ServerText = check.section_of(&at, item).unwrap_or_default();
    let address_at = at.key("address");
    check.required(&address_at, &text.address, "write address: 127.0.0.1:9000");
    let name = check.parsed(&address_at, &text.address, parse);
    let weights = NonZeroU32::MIN..=WEIGHT_MAX;
    let weight = check.bounded(&at.key("weight"), &text.weight, NonZeroU32::MIN, weights);
    (address_at, name, weight)
}

/// The addresses of a `host:port` that are used.
fn addresses_of(check: &Check<'_>, server: &str) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = server.parse() {
        return Ok(vec![address]);
    }
    let found = check.resolve(server).map_err(|error| error.to_string())?;
    match address::of_one_family(found) {
        addresses if addresses.is_empty() => Err("it has no address".to_owned()),
        addresses => Ok(addresses),
    }
}

fn health(check: &mut Check<'_>, at: &Path, section: Section<HealthText>) -> Option<HealthCheck> {
    let text = check.section(at, section)?;
    let path_at = at.key("path");
    check.required(&path_at, &text.path, "write path: /healthz");
    let path = check.parsed(&path_at, &text.path, |text| {
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.starts_with('/') && visible && !text.contains('#') {
            Ok(text.to_owned())
        } else {
            let message = format!("{text:?} is not a path");
            Err(Wrong::new(message, "write one such as /healthz"))
        }
    });
    let interval_at = at.key("interval");
    let interval = check.bounded(&interval_at, &text.interval, seconds(5), MS * 100..=HOUR);
    let timeout = check.bounded(&at.key("timeout"), &text.timeout, SECOND, MS..=MINUTE);
    let mut in_a_row = |name: &str, leaf: &Leaf<NonZeroU32>, default: u32| {
        let default = NonZeroU32::MIN.saturating_add(default - 1);
        check.bounded(&at.key(name), leaf, default, NonZeroU32::MIN..=IN_A_ROW_MAX)
    };
    let thresholds = Thresholds {
        unhealthy_after: in_a_row("unhealthy_after", &text.unhealthy_after, 3),
        healthy_after: in_a_row("healthy_after", &text.healthy_after, 2),
    };
    Some(HealthCheck {
        path: path?,
        interval,
        timeout,
        thresholds,
    })
}

fn protocol(
    check: &mut Check<'_>,
    at: &Path,
    leaf: &Leaf<Protocol>,
    tls: &Section<UpstreamTlsText>,
) -> Protocol {
    let protocol = check.leaf_or(at, leaf, Protocol::Http1);
    if protocol == Protocol::Negotiated && !tls.is_given() {
        let message = "without TLS there is nothing to agree on a version by";
        check.wrong(at, message, "write http1 or http2, or give it tls");
    }
    protocol
}

fn ejection(check: &mut Check<'_>, at: &Path, section: Section<EjectionText>) -> Ejection {
    let text = check.section(at, section).unwrap_or_default();
    let failures_at = at.key("failures");
    let failures = check.bounded(&failures_at, &text.failures, 5, 0..=FAILURES_MAX);
    let failures = NonZeroU64::new(failures).and_then(|failures| failures.try_into().ok());
    let pause = check.bounded(&at.key("pause"), &text.pause, SECOND, MS * 100..=HOUR);
    let most_at = at.key("pause_max");
    let pause_max = check.bounded(&most_at, &text.pause_max, MINUTE, MS * 100..=HOUR);
    if pause_max < pause {
        let message = "it is shorter than the first pause";
        check.wrong(&most_at, message, "make it at least as long as pause");
    }
    Ejection {
        failures,
        pause,
        pause_max,
    }
}

/// A header with a secret in it.
pub(super) fn header(
    check: &mut Check<'_>,
    at: &Path,
    section: Section<SecretHeaderText>,
) -> Option<SecretHeader> {
    let text = check.section(at, section)?;
    let name_at = at.key("name");
    check.required(&name_at, &text.name, "write name: X-Gateway-Secret");
    let name = check.parsed(&name_at, &text.name, |text| {
        let hint = "write one of its own, such as X-Gateway-Secret, or Authorization";
        let name = HeaderName::try_from(text)
            .map_err(|_| Wrong::new(format!("{text:?} is not the name of a header"), hint))?;
        let word = name.as_str();
        if own_header::is_read_or_set(word) || own_header::tells_who_calls(word) {
            return Err(Wrong::new("the gateway sets or removes this header", hint));
        }
        Ok(name)
    });
    let (value_at, file_at) = (at.key("value"), at.key("value_file"));
    if text.value.is_given() && text.value_file.is_given() {
        check.wrong_key(&file_at, "it is told twice", "keep value or value_file");
    } else if !text.value_file.is_given() {
        check.required(
            &value_at,
            &text.value,
            "write value: \"${VARIABLE}\", or value_file: FILE",
        );
    }
    let written = check.leaf(&value_at, &text.value);
    let written = written.map(|Text(text)| (value_at, Secret::from(text)));
    let file = check.leaf(&file_at, &text.value_file);
    let from_file =
        file.and_then(|file| Some((file_at.clone(), check.secret_file(&file_at, &file)?)));
    let (value_at, value) = written.or(from_file)?;
    let plain = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    let secret = value.reveal();
    if secret.is_empty() || secret.trim() != secret || !secret.bytes().all(plain) {
        let hint = "printable ASCII, without spaces at its ends";
        check.wrong(&value_at, "its value cannot stand in a header", hint);
        return None;
    }
    Some(SecretHeader { name: name?, value })
}

/// Which answers are compressed; `None` where nothing is said.
fn compression(
    check: &mut Check<'_>,
    at: &Path,
    section: Section<CompressionText>,
) -> Option<Compression> {
    let text = check.section(at, section)?;
    let codings_at = at.key("codings");
    if text.codings.is_empty() {
        check.wrong(&codings_at, "there is no coding", CODINGS_HINT);
    }
    let default = Coding::ALL.map(|coding| coding.as_str().to_owned());
    check.default(&codings_at, default.to_vec());
    let codings = check.texts(&codings_at, text.codings, |text| {
        let known = Coding::ALL.into_iter().find(|one| one.as_str() == text);
        let message = || format!("{text:?} is not a coding that the gateway has");
        known.ok_or_else(|| Wrong::new(message(), CODINGS_HINT))
    });
    let bounds = Bytes(1)..=COMPRESSED_BYTES_MIN_MAX;
    let least_at = at.key("min_bytes");
    let least = check.bounded(&least_at, &text.min_bytes, COMPRESSED_BYTES_MIN, bounds);
    Some(Compression {
        codings: codings.unwrap_or_else(|| Coding::ALL.to_vec()),
        bytes_min: least.0,
    })
}

fn timeouts(check: &mut Check<'_>, at: &Path, section: Section<TimeoutsText>) -> Timeouts {
    let text = check.section(at, section).unwrap_or_default();
    let slow = Duration::ZERO..=HOUR;
    Timeouts {
        connect: check.bounded(&at.key("connect"), &text.connect, SECOND, MS..=MINUTE),
        read: check.bounded(&at.key("read"), &text.read, seconds(10), MS..=HOUR),
        total: check.bounded(&at.key("total"), &text.total, MINUTE, MS..=HOUR),
        slow: check.bounded(&at.key("slow"), &text.slow, seconds(5), slow),
        idle: check.bounded(&at.key("idle"), &text.idle, seconds(30), MS..=HOUR),
    }
}

#[cfg(test)]
mod tests;

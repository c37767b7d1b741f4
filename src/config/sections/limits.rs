//! Bounds on what one client can take.

use std::time::Duration;

use super::{HOUR, MS, SECOND, seconds, small};
use crate::config::Limits;
use crate::config::check::{Check, Wrong};
use crate::config::outline::Path;
use crate::config::scalar::{Bytes, Quantity};
use crate::config::text::{Leaf, LimitsText, Section};
use crate::policy::address::{LOOPBACK, Network};

/// One limit after another, each by its name.
struct Bounded<'c, 'a> {
    check: &'c mut Check<'a>,
    at: &'c Path,
}

impl Bounded<'_, '_> {
    fn of<T: Quantity>(&mut self, name: &str, leaf: &Leaf<T>, default: T, least: T, most: T) -> T {
        self.check
            .bounded(&self.at.key(name), leaf, default, least..=most)
    }

    fn size(&mut self, name: &str, leaf: &Leaf<Bytes>, default: u64, least: u64, most: u64) -> u64 {
        self.of(name, leaf, Bytes(default), Bytes(least), Bytes(most))
            .0
    }

    fn rate(&mut self, name: &str, leaf: &Leaf<u64>, default: u64) -> u32 {
        u32::try_from(self.of(name, leaf, default, 1, 10_000)).unwrap_or(u32::MAX)
    }
}

const KIB: u64 = 1024;
const DAY: Duration = seconds(24 * 3_600);

pub(super) fn limits(check: &mut Check<'_>, at: &Path, section: Section<LimitsText>) -> Limits {
    let text = check.section(at, section).unwrap_or_default();
    let loopback: Vec<String> = LOOPBACK.iter().map(ToString::to_string).collect();
    check.default(&at.key("exempt_addresses"), loopback);
    let exempt = check.texts(&at.key("exempt_addresses"), text.exempt_addresses, |text| {
        text.parse::<Network>()
            .map_err(|error| Wrong::new(format!("{text:?} is not a network"), error.to_string()))
    });
    let mut limit = Bounded { check, at };
    Limits {
        header_bytes: small(limit.size(
            "header_bytes",
            &text.header_bytes,
            16 * KIB,
            KIB,
            1024 * KIB,
        )),
        // The HTTP/1 parser takes no more than 256.
        header_count: small(limit.of("header_count", &text.header_count, 64, 8, 256)),
        target_bytes: small(limit.size("target_bytes", &text.target_bytes, 8 * KIB, 256, 64 * KIB)),
        body_bytes: limit.size(
            "body_bytes",
            &text.body_bytes,
            1024 * KIB,
            0,
            1024 * 1024 * KIB,
        ),
        request_head: limit.of(
            "request_head",
            &text.request_head,
            seconds(10),
            MS * 100,
            HOUR,
        ),
        tls_handshake: limit.of(
            "tls_handshake",
            &text.tls_handshake,
            seconds(10),
            MS * 100,
            HOUR,
        ),
        connections: small(limit.of("connections", &text.connections, 20_000, 1, 10_000_000)),
        connections_per_address: small(limit.of(
            "connections_per_address",
            &text.connections_per_address,
            1_000,
            1,
            10_000_000,
        )),
        failed_authentications: limit.rate(
            "failed_authentications",
            &text.failed_authentications,
            20,
        ),
        exempt_addresses: exempt.unwrap_or_else(|| LOOPBACK.to_vec()),
        requests_per_connection: limit.of(
            "requests_per_connection",
            &text.requests_per_connection,
            100_000,
            1,
            1_000_000_000,
        ),
        connection_age: limit.of("connection_age", &text.connection_age, HOUR, SECOND, DAY),
        response_rate: limit.size("response_rate", &text.response_rate, KIB, 1, 1024 * KIB),
        h2_streams: limit.rate("h2_streams", &text.h2_streams, 100),
        h2_memory: limit.size(
            "h2_memory",
            &text.h2_memory,
            4 * 1024 * KIB,
            1024 * KIB,
            1024 * 1024 * KIB,
        ),
        h2_resets: limit.rate("h2_resets", &text.h2_resets, 20),
        h2_control_frames: limit.rate("h2_control_frames", &text.h2_control_frames, 20),
        keepalive_idle: limit.of(
            "keepalive_idle",
            &text.keepalive_idle,
            seconds(60),
            SECOND,
            HOUR,
        ),
        request_read: limit.of(
            "request_read",
            &text.request_read,
            seconds(30),
            MS * 100,
            HOUR,
        ),
        response_write: limit.of(
            "response_write",
            &text.response_write,
            seconds(30),
            MS * 100,
            HOUR,
        ),
        shutdown_grace: limit.of(
            "shutdown_grace",
            &text.shutdown_grace,
            seconds(20),
            Duration::ZERO,
            HOUR,
        ),
    }
}

//! Limits on the resources of one client.

use std::time::Duration;

use super::values::{DAY, HOUR, MS, SECOND, network, seconds};
use crate::config::rows::{distinct, number, rows, size, text, within};
use crate::policy::address::Network;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

rows! {
    /// Limits on the resources of one client.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Limits {
        /// The size of all request headers together.
        header_bytes: usize = size(16 * KIB, KIB..=MIB);
        /// The number of request headers.
        header_count: usize = number(64, 8..=256);
        /// Path and query.
        target_bytes: usize = size(8 * KIB, 256..=64 * KIB);
        /// The body of a request whose method may have one.
        body_bytes: u64 = size(MIB, 0..=1024 * MIB);
        /// The timeout of the whole head of a request, and before the first one of a connection.
        request_head: Duration = within(seconds(10), MS * 100..=HOUR);
        /// The timeout of the TLS handshake.
        tls_handshake: Duration = within(seconds(10), MS * 100..=HOUR);
        /// Connections in total.
        connections: usize = number(20_000, 1..=10_000_000);
        /// Connections from one client address (IPv6: a /64).
        connections_per_address: usize = number(1_000, 1..=10_000_000);
        /// Requests a second from one client address without a valid key; beyond it, their connections are closed. Five seconds' worth may
        /// arrive at once.
        failed_authentications: u32 = number(20, 1..=10_000);
        /// Networks exempt from the limits of one client address.
        exempt_addresses: Vec<Network> = distinct(|| text(network)).or_list("127.0.0.0/8 ::1/128");
        /// A connection accepts no further request after this many.
        requests_per_connection: u64 = number(100_000, 1..=1_000_000_000);
        /// After this time a connection accepts no further request, over HTTP/1.1 only one, whose answer announces the end.
        connection_age: Duration = within(HOUR, SECOND..=DAY);
        /// A client that reads an answer slowly must read this many bytes a second, checked every response_write.
        response_rate: u64 = size(KIB, 1..=MIB);
        /// HTTP/2 streams that may be open at once. With fewer than 100, a client that begins 100 uploads before it has read the settings may
        /// lose its connection.
        h2_streams: u32 = number(100, 1..=10_000);
        /// About how much memory the requests of one HTTP/2 connection may use; further streams wait.
        h2_memory: u64 = size(4 * MIB, MIB..=1024 * MIB);
        /// HTTP/2 resets a second; five seconds' worth may arrive at once. A stream that the gateway resets because of the client's frames
        /// counts as four.
        h2_resets: u32 = number(20, 1..=10_000);
        /// SETTINGS, PING, PRIORITY, WINDOW_UPDATE, empty and unknown HTTP/2 frames a second, of each, beyond those that streams and data
        /// justify; five seconds' worth may arrive at once.
        h2_control_frames: u32 = number(20, 1..=10_000);
        /// The longest idle time between two requests of a connection.
        keepalive_idle: Duration = within(seconds(60), SECOND..=HOUR);
        /// The timeout of the body of a request.
        request_read: Duration = within(seconds(30), MS * 100..=HOUR);
        /// How often the rate at which a client reads an answer is compared with response_rate.
        response_write: Duration = within(seconds(30), MS * 100..=HOUR);
        /// How long a stopping gateway waits for the requests in flight.
        shutdown_grace: Duration = within(seconds(20), Duration::ZERO..=HOUR);
    }
}

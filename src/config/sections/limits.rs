//! Bounds on what one client can take.

use std::time::Duration;

use super::{DAY, HOUR, MS, SECOND, network, seconds};
use crate::config::rows::{number, rows, size, texts, within};
use crate::policy::address::Network;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

rows! {
    /// Bounds on what one client can take.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Limits {
        /// All request headers together.
        header_bytes: usize = size(16 * KIB, KIB..=MIB);
        // The HTTP/1 parser takes no more than 256.
        /// How many request headers.
        header_count: usize = number(64, 8..=256);
        /// Path and query.
        target_bytes: usize = size(8 * KIB, 256..=64 * KIB);
        /// A request body, where the method takes one.
        body_bytes: u64 = size(MIB, 0..=1024 * MIB);
        /// For the whole head of a request, and before the first one of a connection.
        request_head: Duration = within(seconds(10), MS * 100..=HOUR);
        /// For the TLS handshake.
        tls_handshake: Duration = within(seconds(10), MS * 100..=HOUR);
        /// Connections in all.
        connections: usize = number(20_000, 1..=10_000_000);
        /// Connections of one client address (IPv6: a /64).
        connections_per_address: usize = number(1_000, 1..=10_000_000);
        /// Requests a second of one client address without a valid key, after which its connections are closed; five seconds'
        /// worth may come at once.
        failed_authentications: u32 = number(20, 1..=10_000);
        /// Networks that the limits of one client address leave alone.
        exempt_addresses: Vec<Network> = texts(network).or_list(&["127.0.0.0/8", "::1/128"]);
        /// A connection takes no further request after so many.
        requests_per_connection: u64 = number(100_000, 1..=1_000_000_000);
        /// A connection takes no further request after this time.
        connection_age: Duration = within(HOUR, SECOND..=DAY);
        /// A client that lets an answer wait must read this many bytes a second, looked at each response_write.
        response_rate: u64 = size(KIB, 1..=MIB);
        /// HTTP/2 streams that may be open at once.
        h2_streams: u32 = number(100, 1..=10_000);
        /// About what the requests of one HTTP/2 connection may cost in memory; streams beyond it wait.
        h2_memory: u64 = size(4 * MIB, MIB..=1024 * MIB);
        /// HTTP/2 resets a second; five seconds' worth may come at once. A stream that the gateway must reset because of what the
        /// client sent counts as four.
        h2_resets: u32 = number(20, 1..=10_000);
        /// SETTINGS, PING, PRIORITY, WINDOW_UPDATE, empty and unknown HTTP/2 frames a second, of each, beyond what streams and
        /// data pay for; five seconds' worth may come at once.
        h2_control_frames: u32 = number(20, 1..=10_000);
        /// Idle between two requests of a connection.
        keepalive_idle: Duration = within(seconds(60), SECOND..=HOUR);
        /// For the body of a request.
        request_read: Duration = within(seconds(30), MS * 100..=HOUR);
        /// How often it is looked at whether a client reads an answer at response_rate.
        response_write: Duration = within(seconds(30), MS * 100..=HOUR);
        /// For requests in flight to end when the gateway stops.
        shutdown_grace: Duration = within(seconds(20), Duration::ZERO..=HOUR);
    }
}

//! The limits whose hits are counted.

use super::words::words;

words! {
    /// A limit of the gateway, by its name in `touchline_limit_hits_total`. Most have the name of their setting in `limits`.
    pub enum LimitHit {
        /// The open files of the process: no connection could be accepted.
        Accept = "accept",
        /// All connections.
        Connections = "connections",
        /// The connections of an address.
        ConnectionsPerAddress = "connections_per_address",
        /// A connection without a trusted proxy's header where one is expected.
        ProxyProtocol = "proxy_protocol",
        /// The time of a TLS handshake.
        TlsHandshake = "tls_handshake",
        /// The time of the first bytes of a connection over HTTP/2.
        H2Preface = "h2_preface",
        /// The time of a request's head.
        RequestHead = "request_head",
        /// The time of a request's body.
        RequestRead = "request_read",
        /// The time between two requests.
        KeepaliveIdle = "keepalive_idle",
        /// How slowly a client may read its answer.
        ResponseRate = "response_rate",
        /// The requests of a connection.
        RequestsPerConnection = "requests_per_connection",
        /// The age of a connection.
        ConnectionAge = "connection_age",
        /// The bytes of a request target.
        TargetBytes = "target_bytes",
        /// The number and bytes of a request's header fields.
        Headers = "headers",
        /// The bytes of a request's body.
        BodyBytes = "body_bytes",
        /// A key was sent without encryption.
        CleartextKey = "cleartext_key",
        /// The failed authentications of an address.
        FailedAuthentications = "failed_authentications",
        /// The addresses whose failed authentications are counted.
        FailingAddresses = "failing_addresses",
        /// The memory of an HTTP/2 connection: something had to wait.
        H2Memory = "h2_memory",
        /// A malformed stream of HTTP/2.
        H2Malformed = "h2_malformed",
        /// SETTINGS.
        H2Settings = "h2_settings",
        /// PING.
        H2Ping = "h2_ping",
        /// PRIORITY and PRIORITY_UPDATE.
        H2Priority = "h2_priority",
        /// WINDOW_UPDATE.
        H2WindowUpdate = "h2_window_update",
        /// RST_STREAM.
        H2Resets = "h2_resets",
        /// DATA and CONTINUATION without content.
        H2EmptyFrames = "h2_empty_frames",
        /// GOAWAY and unknown kinds of frames.
        H2OtherFrames = "h2_other_frames",
        /// A key's rate of requests.
        Burst = "burst",
        /// The keys whose rate of requests is counted.
        BurstKeys = "burst_keys",
        /// A key's requests at the same time.
        Concurrent = "concurrent",
        /// A key's rate of reads of its usage.
        Usage = "usage",
        /// The keys whose reads of their usage are counted.
        UsageReaders = "usage_readers",
        /// The events that arrive at once.
        Events = "events",
        /// The connections of the admin listener.
        AdminConnections = "admin_connections",
        /// The time of a request to the admin listener.
        AdminRequest = "admin_request",
    }
}

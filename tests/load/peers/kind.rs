//! The contenders: the name, the requests and the expected answers of each.

use harness::Protocol;

/// The path that clients request.
pub const PATH: &str = "/api/v1/data/markets";
/// A path that tiers below enterprise do not include.
const CLOSED_PATH: &str = "/api/v1/data/rankings";

/// A contender, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The upstream itself.
    Direct,
    /// HAProxy with a stick table.
    Haproxy,
    /// nginx, proxying only.
    Nginx,
    /// Pingora, proxying only.
    Pingora,
    /// nginx, Lua and Redis.
    NginxLua,
    /// Touchline on SQLite.
    Embedded,
    /// Touchline on Redis.
    Redis,
    /// Touchline with a store that grants each charge at once.
    Permitted,
    /// Touchline on SQLite, built by `make pgo`.
    EmbeddedPgo,
    /// Touchline on Redis, built by `make pgo`.
    RedisPgo,
    /// Touchline on Redis that refuses unknown keys.
    Unknown,
    /// The same that refuses keys whose tier lacks the endpoint.
    Forbidden,
    /// The same that refuses keys whose day is used up.
    Exhausted,
    /// nginx over TLS, HTTP/1.1.
    NginxTls,
    /// Touchline on Redis over TLS, HTTP/1.1.
    RedisTls,
    /// nginx over TLS, HTTP/2.
    NginxTls2,
    /// Touchline on Redis over TLS, HTTP/2.
    RedisTls2,
}

impl Kind {
    /// The contenders over clear connections, in the order of a round: compared contenders are neighbours.
    pub const CLEAR: [Kind; 13] = [
        Kind::Direct,
        Kind::Haproxy,
        Kind::Nginx,
        Kind::Embedded,
        Kind::EmbeddedPgo,
        Kind::Pingora,
        Kind::Permitted,
        Kind::RedisPgo,
        Kind::Redis,
        Kind::NginxLua,
        Kind::Unknown,
        Kind::Forbidden,
        Kind::Exhausted,
    ];
    /// The contenders over TLS.
    pub const TLS: [Kind; 4] = [
        Kind::NginxTls,
        Kind::RedisTls,
        Kind::NginxTls2,
        Kind::RedisTls2,
    ];
    /// The contenders whose latency is reported beside the upstream's own.
    pub const TIMED: [Kind; 8] = [
        Kind::Haproxy,
        Kind::Nginx,
        Kind::Pingora,
        Kind::NginxLua,
        Kind::Embedded,
        Kind::Redis,
        Kind::RedisPgo,
        Kind::Unknown,
    ];
    /// The contenders whose memory is reported. nginx + Lua answers some of 1,000 busy connections with 500.
    pub const WEIGHED: [Kind; 6] = [
        Kind::Nginx,
        Kind::Pingora,
        Kind::Embedded,
        Kind::EmbeddedPgo,
        Kind::Redis,
        Kind::RedisPgo,
    ];

    /// The name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Direct => "upstream, direct",
            Kind::Haproxy => "HAProxy, stick table",
            Kind::Nginx => "nginx, proxy only",
            Kind::Pingora => "pingora, proxy only",
            Kind::NginxLua => "nginx + Lua + Redis",
            Kind::Embedded => "Touchline, embedded",
            Kind::Redis => "Touchline + Redis",
            Kind::Permitted => "Touchline, a permit always given",
            Kind::EmbeddedPgo => "Touchline, embedded, by profile",
            Kind::RedisPgo => "Touchline + Redis, by profile",
            Kind::Unknown => "Touchline + Redis, unknown key, 401",
            Kind::Forbidden => "Touchline + Redis, tier too low, 403",
            Kind::Exhausted => "Touchline + Redis, day used up, 429",
            Kind::NginxTls => "nginx, proxy only, TLS HTTP/1.1",
            Kind::RedisTls => "Touchline + Redis, TLS HTTP/1.1",
            Kind::NginxTls2 => "nginx, proxy only, TLS HTTP/2",
            Kind::RedisTls2 => "Touchline + Redis, TLS HTTP/2",
        }
    }

    /// The protocol of its clients.
    pub fn protocol(self) -> Protocol {
        match self {
            Kind::NginxTls | Kind::RedisTls => Protocol::Http1Tls,
            Kind::NginxTls2 | Kind::RedisTls2 => Protocol::Http2Tls,
            Kind::Direct
            | Kind::Haproxy
            | Kind::Nginx
            | Kind::Pingora
            | Kind::NginxLua
            | Kind::Embedded
            | Kind::Redis
            | Kind::Permitted
            | Kind::EmbeddedPgo
            | Kind::RedisPgo
            | Kind::Unknown
            | Kind::Forbidden
            | Kind::Exhausted => Protocol::Http1,
        }
    }

    /// The status of each of its answers.
    pub fn status(self) -> u16 {
        match self {
            Kind::Unknown => 401,
            Kind::Forbidden => 403,
            Kind::Exhausted => 429,
            Kind::Direct
            | Kind::Haproxy
            | Kind::Nginx
            | Kind::Pingora
            | Kind::NginxLua
            | Kind::Embedded
            | Kind::Redis
            | Kind::Permitted
            | Kind::EmbeddedPgo
            | Kind::RedisPgo
            | Kind::NginxTls
            | Kind::RedisTls
            | Kind::NginxTls2
            | Kind::RedisTls2 => 200,
        }
    }

    /// The path that its clients request.
    pub fn path(self) -> &'static str {
        if self == Kind::Forbidden {
            CLOSED_PATH
        } else {
            PATH
        }
    }

    /// Whether it knows keys and counts calls.
    pub fn admits(self) -> bool {
        matches!(
            self,
            Kind::Haproxy
                | Kind::NginxLua
                | Kind::Embedded
                | Kind::Redis
                | Kind::Permitted
                | Kind::EmbeddedPgo
                | Kind::RedisPgo
        )
    }
}

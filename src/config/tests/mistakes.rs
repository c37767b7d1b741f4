//! Every kind of mistake, reported with its place and a hint.

use super::*;

#[test]
fn each_mistake_is_reported_with_its_line_column_and_path() {
    let long = format!("listen: {{http: {{}}, upgrade: /{}}}", "u".repeat(105));
    // A process id may have seven digits.
    let longer = format!("listen: {{http: {{}}, upgrade: /{}}}", "u".repeat(99));
    let cases = [
        ("limit: {}", "1:1 limit: there is no such key"),
        (
            "limits: {header_byte: 1KiB}",
            "1:10 limits.header_byte: there is no such key",
        ),
        ("limits: 5", "1:9 limits: expected keys, found a number"),
        ("limits:", "1:1 limits: the section is empty"),
        (
            "limits: {header_bytes: 16}",
            "1:24 limits.header_bytes: expected a size, found the number 16",
        ),
        (
            "limits: {header_bytes: 16KB}",
            "1:24 limits.header_bytes: \"16KB\" is not a size",
        ),
        (
            "limits: {header_bytes: 1023B}",
            "1:24 limits.header_bytes: 1023B is too small",
        ),
        (
            "limits: {request_head: 99ms}",
            "1:24 limits.request_head: 99ms is too small",
        ),
        (
            "limits: {connections: 0}",
            "1:23 limits.connections: 0 is too small",
        ),
        (
            "limits: {h2_control_frames: 10001}",
            "1:29 limits.h2_control_frames: 10001 is too large",
        ),
        (
            "limits: {h2_memory: 1023KiB}",
            "1:21 limits.h2_memory: 1023KiB is too small",
        ),
        (
            "limits: {header_count: 257}",
            "1:24 limits.header_count: 257 is too large",
        ),
        (
            "limits: {header_count: \"64\"}",
            "1:24 limits.header_count: expected a whole number, found \"64\"",
        ),
        (
            "limits: {exempt_addresses: [10.0.0.1/8]}",
            "1:29 limits.exempt_addresses[0]: \"10.0.0.1/8\" is not a network",
        ),
        (
            "limits: {failed_authentications: 0}",
            "1:34 limits.failed_authentications: 0 is too small",
        ),
        (
            "limits: {header_count: 064}",
            "1:24 limits.header_count: expected a whole number, found \"064\"",
        ),
        (
            "limits: {header_count: -1}",
            "1:24 limits.header_count: \"-1\" is not a whole number",
        ),
        (
            "limits: {header_count: 1.5}",
            "1:24 limits.header_count: \"1.5\" is not a whole number",
        ),
        (
            "limits: {header_count: 99999999999999999999}",
            "1:24 limits.header_count: the number is too large",
        ),
        (
            "limits: {header_count: [64]}",
            "1:10 limits.header_count: expected a whole number, found a list",
        ),
        (
            "limits:\n  header_count:\n",
            "2:3 limits.header_count: expected a whole number, found nothing",
        ),
        (
            "limits: {shutdown_grace: soon}",
            "1:26 limits.shutdown_grace: \"soon\" is not a duration",
        ),
        ("listen: {}", "1:1 listen: there is no listener for clients"),
        (
            "listen: {http: {address: localhost:80}}",
            "1:26 listen.http.address: \"localhost:80\" is not an address to listen on",
        ),
        (
            "listen: {http: {address: 0.0.0.0:80}}",
            "1:26 listen.http.address: 0.0.0.0:80 would receive API keys in clear text from the network",
        ),
        (
            "listen: {http: {cleartext: yes}}",
            "1:28 listen.http.cleartext: \"yes\" is not a choice for cleartext",
        ),
        (
            "listen: {https: {address: 0.0.0.0:443, certificate: self-signed}}",
            "1:53 listen.https.certificate: a self-signed certificate is for loopback addresses only",
        ),
        (
            "listen: {https: {certificate: /none.pem, private_key: Cargo.toml}}",
            "1:31 listen.https.certificate: cannot read /none.pem: No such file or directory (os error 2)",
        ),
        (
            "listen: {https: {certificate: Cargo.toml}}",
            "1:10 listen.https.private_key: the key is missing",
        ),
        (
            "listen: {https: {hsts: 999ms}}",
            "1:24 listen.https.hsts: below one second, browsers would delete an earlier value",
        ),
        (
            "listen: {https: {hsts: 1001d}}",
            "1:24 listen.https.hsts: 1001d is too large",
        ),
        (
            "listen: {https: {private_key: Cargo.toml}}",
            "1:31 listen.https.private_key: a self-signed certificate takes no key file",
        ),
        (
            "listen: {http: {}, admin: {address: 0.0.0.0:9}}",
            "1:37 listen.admin.address: 0.0.0.0:9 would open the admin listener to the network",
        ),
        (
            "listen: {http: {}, admin: {token: short}}",
            "1:35 listen.admin.token: the value is not a token",
        ),
        (
            "listen: {http: {}, admin: {token: \"${SECRET} ${SECRET} ${SECRET}\"}}",
            "1:35 listen.admin.token: the value is not a token",
        ),
        (
            "listen: {http: {}, admin: {token_file: /none}}",
            "1:40 listen.admin.token_file: cannot read /none: No such file or directory (os error 2)",
        ),
        (
            "listen: {http: {address: '[fe80::1]:80', cleartext: allowed}}",
            "1:26 listen.http.address: [fe80::1]:80 is link-local: it belongs to no interface without a zone",
        ),
        (
            "listen: {http: {address: 127.0.0.1:9090}}",
            "1:1 listen.admin.address: the http listener has this address already",
        ),
        ("store: {}", "1:1 store: there is no store"),
        (
            "store: {embedded: {}, redis: {}}",
            "1:23 store.redis: there are two stores",
        ),
        (
            "store: {embedded: {durability: never}}",
            "1:32 store.embedded.durability: \"never\" is not a durability",
        ),
        (
            "store: {embedded: {durability: 2m}}",
            "1:32 store.embedded.durability: 2m is too large",
        ),
        (
            "store: {embedded: {path: \"\"}}",
            "1:26 store.embedded.path: \"\" is not a file name",
        ),
        (
            "store: {redis: {url: \"http://x\"}}",
            "1:22 store.redis.url: the value is not the URL of a Redis server",
        ),
        (
            "store: {redis: {url: \"redis://x/-1\"}}",
            "1:22 store.redis.url: the value is not the URL of a Redis server",
        ),
        (
            "store: {redis: {url: \"redis://x/65536\"}}",
            "1:22 store.redis.url: the value is not the URL of a Redis server",
        ),
        (
            "store: {redis: {password_file: /none}}",
            "1:32 store.redis.password_file: cannot read /none: No such file or directory (os error 2)",
        ),
        (
            "store: {redis: {url: \"rediss://x#insecure\"}}",
            "1:22 store.redis.url: the value is not the URL of a Redis server",
        ),
        (
            "store: {redis: {url: \"redis://x\", cluster: [\"h:1\"]}}",
            "1:35 store.redis.cluster: Redis has two addresses",
        ),
        (
            "store: {redis: {sentinels: [\"h:1\"]}}",
            "1:9 store.redis.master: the key is missing",
        ),
        (
            "store: {redis: {master: m}}",
            "1:17 store.redis.master: there are no sentinels",
        ),
        (
            "store: {redis: {sentinel_password_file: Cargo.toml}}",
            "1:17 store.redis.sentinel_password_file: there are no sentinels",
        ),
        (
            "store: {redis: {sentinels: [\"h:1\", \"h:1\"], master: m}}",
            "1:36 store.redis.sentinels[1]: it is in the list already",
        ),
        (
            "store: {redis: {cluster: [\"h:1\", \"::1:2\"]}}",
            "1:34 store.redis.cluster[1]: \"::1:2\" is not a server",
        ),
        (
            "store: {redis: {cluster: []}}",
            "1:17 store.redis.cluster: at least one is needed",
        ),
        (
            "store: {redis: {cluster: [\"h:1\"], database: 1}}",
            "1:45 store.redis.database: a cluster has only database 0",
        ),
        (
            "store: {redis: {database: 65536}}",
            "1:27 store.redis.database: 65536 is too large",
        ),
        (
            "store: {redis: {username: \"\"}}",
            "1:27 store.redis.username: the value is empty",
        ),
        (
            "store: {redis: {url: \"redis://x\", tls: {}}}",
            "1:35 store.redis.tls: the URL does not ask for TLS",
        ),
        (
            "store: {redis: {url: \"rediss://x\", tls: {ca_file: /none}}}",
            "1:51 store.redis.tls.ca_file: cannot read /none: No such file or directory (os error 2)",
        ),
        (
            "store: {redis: {url: \"rediss://x\", tls: {ca_file: Cargo.toml}}}",
            "1:51 store.redis.tls.ca_file: Cargo.toml: the file has no certificate in PEM format",
        ),
        (
            "store: {redis: {key_prefix: \"a{b\"}}",
            "1:29 store.redis.key_prefix: \"a{b\" is not a prefix of names in Redis",
        ),
        (
            "store: {redis: {outage: maybe}}",
            "1:25 store.redis.outage: \"maybe\" is not an outage policy",
        ),
        (
            "store: {redis: {cold_cap: 2}}",
            "1:27 store.redis.cold_cap: expected a percentage, found the number 2",
        ),
        (
            "store: {redis: {cold_cap: 101%}}",
            "1:27 store.redis.cold_cap: 101% is too large",
        ),
        (
            "store: {redis: {min_nodes: 0}}",
            "1:28 store.redis.min_nodes: 0 is too small",
        ),
        (
            "store: {redis: {timeout: 11s}}",
            "1:26 store.redis.timeout: 11s is too large",
        ),
        (
            "store: {redis: {replica: \"\"}}",
            "1:26 store.redis.replica: \"\" is not a file name",
        ),
        (
            "store: {redis: {max_staleness: 59s}}",
            "1:32 store.redis.max_staleness: 59s is too small",
        ),
        (
            "quota: {settle_window: 31d}",
            "1:24 quota.settle_window: 31d is too large",
        ),
        (
            "quota: {retention: 61d}",
            "1:20 quota.retention: 61d is too small",
        ),
        (
            "quota: {timezone: Mars/Olympus}",
            "1:19 quota.timezone: \"Mars/Olympus\" is not an IANA time zone",
        ),
        (
            "quota: {timezone: \"${NONE}\"}",
            "1:19 quota.timezone: the environment variable NONE is not set",
        ),
        (
            "quota: {timezone: \"${LATIN}\"}",
            "1:19 quota.timezone: the value of the environment variable LATIN is not UTF-8",
        ),
        (
            "quota: {timezone: \"${\"}",
            "1:19 quota.timezone: `${` must be followed by a variable's name and `}`",
        ),
        (
            "runtime: {threads: \"${SECRET}\"}",
            "1:20 runtime.threads: the value is not a whole number",
        ),
        (
            "keys: {prefix: FPD}",
            "1:16 keys.prefix: \"FPD\" is not a key prefix",
        ),
        (
            "keys: {realm: 'a\"b'}",
            "1:15 keys.realm: \"a\\\"b\" is not a realm",
        ),
        (
            "openapi: {title: \" \"}",
            "1:18 openapi.title: \" \" is not a title",
        ),
        (
            "openapi: {documentation: /errors}",
            "1:26 openapi.documentation: \"/errors\" is not a URL",
        ),
        (
            "openapi: {documentation: 'https://u:p@docs.example/a'}",
            "1:26 openapi.documentation: \"https://…@docs.example/a\" is not a URL",
        ),
        (
            "openapi: {documentation: 'https://docs.example/<a>'}",
            "1:26 openapi.documentation: \"https://docs.example/<a>\" is not a URL",
        ),
        (
            "forward: {headers_denied: [cookie, a b]}",
            "1:36 forward.headers_denied[1]: \"a b\" is not a header name",
        ),
        (
            "forward: {headers_denied: [\"*\"]}",
            "1:28 forward.headers_denied[0]: \"*\" is not a header name",
        ),
        (
            "forward: {answer_headers_denied: [alt-svc, x-*-y]}",
            "1:44 forward.answer_headers_denied[1]: \"x-*-y\" is not a header name",
        ),
        (
            "forward: {answer_headers_denied: [etag, content-*]}",
            "1:41 forward.answer_headers_denied[1]: \"content-*\" is not a header that answers can do without",
        ),
        (
            "forward: {headers_denied: cookie}",
            "1:27 forward.headers_denied: expected a list, found a text",
        ),
        (
            "runtime: {threads: 257}",
            "1:20 runtime.threads: 257 is too large",
        ),
        (
            "logging: {level: loud}",
            "1:18 logging.level: \"loud\" is not a log level",
        ),
        (
            "logging: {access_log_sample: 101%}",
            "1:30 logging.access_log_sample: 101% is too large",
        ),
        (
            "logging: {access_log: stdour}",
            "1:23 logging.access_log: \"stdour\" is not a destination for the access log",
        ),
        (
            "logging: {access_log: ./src/}",
            "1:23 logging.access_log: this is a directory",
        ),
        (
            "store: {embedded: {path: src/}}",
            "1:26 store.embedded.path: this is a directory",
        ),
        (
            "store: {redis: {journal: src}}",
            "1:26 store.redis.journal: this is a directory",
        ),
        (
            "store: {redis: {replica: src}}",
            "1:26 store.redis.replica: this is a directory",
        ),
        (
            "tracing: {otlp: {url: 'http://h:1/', header: {name: Content-Type, value: x}}}",
            "1:53 tracing.otlp.header.name: each export has this header already",
        ),
        (
            long.as_str(),
            "1:29 listen.upgrade: the path is too long for a Unix socket",
        ),
        (
            longer.as_str(),
            "1:29 listen.upgrade: the path is too long for a Unix socket",
        ),
        (
            "listen: {http: {}, upgrade: Cargo.toml}",
            "1:29 listen.upgrade: Cargo.toml is a file of another kind",
        ),
        (
            "store: {redis: {replica: ./src/../var/journal.db}}",
            "1:26 store.redis.replica: store.redis.journal has the same file (by default)",
        ),
        (
            "listen: {http: {}, upgrade: src/u}\nlogging: {access_log: ./src/../src/u}",
            "2:23 logging.access_log: listen.upgrade has the same file (line 4)",
        ),
        (
            "store: {embedded: {path: src/u}}\nlogging: {access_log: /proc/self/cwd/src/u}",
            "2:23 logging.access_log: store.embedded.path has the same file (line 4)",
        ),
        ("1: x", "1:1 1: there is no such key"),
    ];
    for (more, expected) in cases {
        assert_eq!(problems_of(with(more), 3), [expected], "{more}");
    }
}

#[test]
fn mistakes_in_tiers_endpoints_and_upstreams_are_reported_at_their_places() {
    let tiers = "tiers: {pro: {daily: 5}}";
    let endpoints = "endpoints: [{path: /a, tiers: [pro], upstream: u}]";
    let upstreams = "upstreams: {u: {servers: [127.0.0.1:9000]}}";
    let cases = [
        (
            "tiers: {pro: {dayly: 5}}",
            endpoints,
            upstreams,
            vec![
                "1:9 tiers.pro.daily: the key is missing",
                "1:15 tiers.pro.dayly: there is no such key",
            ],
        ),
        (
            "tiers: {pro: {daily: 0}}",
            endpoints,
            upstreams,
            vec!["1:22 tiers.pro.daily: 0 is too small"],
        ),
        (
            "tiers: {pro: {daily: 5, enforce: no}}",
            endpoints,
            upstreams,
            vec!["1:34 tiers.pro.enforce: expected true or false, found \"no\""],
        ),
        (
            "tiers: {pro: {daily: true, enforce: 'false'}}",
            endpoints,
            upstreams,
            vec![
                "1:22 tiers.pro.daily: expected a whole number, found true or false",
                "1:37 tiers.pro.enforce: expected true or false, found \"false\"",
            ],
        ),
        (
            "tiers: {pro: {daily: 5}, Gold: {daily: 5}}",
            endpoints,
            upstreams,
            vec!["1:26 tiers.Gold: this is not the name of a tier"],
        ),
        (
            "tiers: {pro: {daily: 5}, none: {daily: 5}}",
            endpoints,
            upstreams,
            vec!["1:26 tiers.none: this is not the name of a tier"],
        ),
        (
            "tiers: {}",
            endpoints,
            upstreams,
            vec!["1:1 tiers: at least one is needed"],
        ),
        (
            "tiers: [pro]",
            endpoints,
            upstreams,
            vec!["1:1 tiers: expected names with their values, found a list"],
        ),
        (
            "",
            endpoints,
            upstreams,
            vec!["1:1 tiers: the key is missing"],
        ),
        (
            tiers,
            "endpoints: [{path: /a, methods: [], tiers: [], upstream: u}]",
            upstreams,
            vec![
                "2:24 endpoints[0].methods: there is no method",
                "2:37 endpoints[0].tiers: no tier includes this endpoint",
            ],
        ),
        (
            tiers,
            "endpoints: []",
            upstreams,
            vec!["2:1 endpoints: at least one is needed"],
        ),
        (
            tiers,
            "endpoints: [5]",
            upstreams,
            vec!["2:13 endpoints[0]: expected keys, found a number"],
        ),
        (
            tiers,
            "endpoints: [{path: /a, tiers: [por], upstream: w}]",
            upstreams,
            vec![
                "2:32 endpoints[0].tiers[0]: there is no tier \"por\"",
                "2:48 endpoints[0].upstream: there is no upstream \"w\"",
            ],
        ),
        (
            tiers,
            "endpoints: [{path: /a, tiers: [pro, pro], upstream: u}]",
            upstreams,
            vec!["2:37 endpoints[0].tiers[1]: it is in the list already"],
        ),
        (
            tiers,
            "endpoints: [{path: /a, tiers: [pro], upstream: u, deprecation: 2026-12-01, sunset: 2026-11-30}]",
            upstreams,
            vec!["2:84 endpoints[0].sunset: the sunset is before the deprecation"],
        ),
        (
            tiers,
            "endpoints: [{path: /a, tiers: [pro], upstream: u, deprecation: 2026-2-30, sunset: [], links: {deprecation: docs, alternate: /b}}]",
            upstreams,
            vec![
                "2:64 endpoints[0].deprecation: \"2026-2-30\" is not an instant",
                "2:75 endpoints[0].sunset: expected a text, found a list",
                "2:108 endpoints[0].links.deprecation: \"docs\" is not a link",
                "2:114 endpoints[0].links.alternate: there is no such key",
            ],
        ),
        (
            tiers,
            "endpoints: [{methods: [get], cost: 0}]",
            upstreams,
            vec![
                "2:13 endpoints[0].path: the key is missing",
                "2:13 endpoints[0].tiers: no tier includes this endpoint",
                "2:13 endpoints[0].upstream: the key is missing",
                "2:24 endpoints[0].methods[0]: \"get\" is not a method that an endpoint can have",
                "2:36 endpoints[0].cost: 0 is too small",
            ],
        ),
        (
            tiers,
            "endpoints: [{path: '/a/{x}', tiers: [pro], upstream: u}, {path: a, tiers: [pro], upstream: u}, {path: /a/b, tiers: [pro], upstream: u}]",
            upstreams,
            vec![
                "2:65 endpoints[1].path: this is not a path pattern",
                "2:103 endpoints[2].path: it overlaps with /a/{x}",
            ],
        ),
        (
            tiers,
            "endpoints: [{path: /a, tiers: [pro], upstream: u, maintenance: {until: soon, message: ' ', from: now}}]",
            upstreams,
            vec![
                "2:72 endpoints[0].maintenance.until: \"soon\" is not an instant",
                "2:87 endpoints[0].maintenance.message: the message cannot be sent to clients",
                "2:92 endpoints[0].maintenance.from: there is no such key",
            ],
        ),
        (
            tiers,
            "endpoints: [{path: /a, tiers: [pro], upstream: u, deprecation: 9999-12-31, sunset: 9999-12-31, maintenance: {until: 9999-12-31}}]",
            upstreams,
            vec![
                "2:64 endpoints[0].deprecation: 9999-12-31 is outside the calendar, whose last day is 9999-12-30",
                "2:84 endpoints[0].sunset: 9999-12-31 is outside the calendar, whose last day is 9999-12-30",
                "2:117 endpoints[0].maintenance.until: 9999-12-31 is outside the calendar, whose last day is 9999-12-30",
            ],
        ),
        (
            tiers,
            "endpoints: [{path: '/{x}', tiers: [pro], upstream: u}]",
            upstreams,
            vec!["2:20 endpoints[0].path: the gateway answers this path itself"],
        ),
        (
            tiers,
            endpoints,
            "upstreams: {u: {servers: []}}",
            vec!["3:17 upstreams.u.servers: at least one server is needed"],
        ),
        (
            tiers,
            endpoints,
            "upstreams: {u: {}}",
            vec!["3:13 upstreams.u.servers: the key is missing"],
        ),
        (
            tiers,
            endpoints,
            "upstreams: {u: {servers: [127.0.0.1, 'a:0', bad.example:1, 127.0.0.1:1, 127.0.0.1:1], retries: 4}}",
            vec![
                "3:27 upstreams.u.servers[0]: \"127.0.0.1\" is not a server",
                "3:38 upstreams.u.servers[1]: \"a:0\" is not a server",
                "3:73 upstreams.u.servers[4]: 127.0.0.1:1 is in the list already",
                "3:96 upstreams.u.retries: 4 is too large",
            ],
        ),
        (
            tiers,
            endpoints,
            "upstreams: {u: {servers: ['http://127.0.0.1:1', '[::1]:2', 'a/b:3', '[::1%0]:0', '[febf::1]:4']}}",
            vec![
                "3:27 upstreams.u.servers[0]: \"http://127.0.0.1:1\" is not a server",
                "3:60 upstreams.u.servers[2]: \"a/b:3\" is not a server",
                "3:69 upstreams.u.servers[3]: \"[::1%0]:0\" is not a server",
                "3:82 upstreams.u.servers[4]: [febf::1]:4 is link-local: it belongs to no interface without a zone",
            ],
        ),
        (
            tiers,
            endpoints,
            "upstreams: {u: {servers: ['127.0.0.1:1'], timeouts: {conect: 1s, idle: 2h}}}",
            vec![
                "3:54 upstreams.u.timeouts.conect: there is no such key",
                "3:72 upstreams.u.timeouts.idle: 2h is too large",
            ],
        ),
    ];
    for (tiers, endpoints, upstreams, expected) in cases {
        let text = format!("{tiers}\n{endpoints}\n{upstreams}\n");
        assert_eq!(problems_of(parse(&text), 0), expected, "{text}");
    }
}

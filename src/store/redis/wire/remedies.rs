//! The remedies for errors of Redis: two tables, of the replies of a server and of the reasons for having no connection.
//!
//! An error is looked up by its text, which has the code of the server or the client library's word for it. Invariant: no remedy has
//! a word of the tables, so that an error whose text contains another one has one remedy, once.

use crate::store::StoreError;

/// The beginning of the error of a sentinel that refuses the login: its password is not that of the master.
pub const SENTINEL_REFUSES: &str = "the sentinel refuses the login";
/// The beginning of the error of a master whose address is not in the configuration.
pub const NAMED_BY_SENTINELS: &str = "the master that the sentinels name";

/// A part of the text of an error, and what an operator can do about it.
type Remedy = (&'static str, &'static str);

/// For an error of a user.
const PERMISSIONS: &str = "check the user and password of store.redis, and that the user has the permissions that docs/redis-and-outages.md names";
/// For an address at which no Redis can be reached.
const RUNS: &str = "check that Redis runs there and that store.redis in the configuration names it";
/// For an address at which something listens that does not talk as expected.
const RUNS_OR_TLS: &str = "check that Redis runs there, that store.redis in the configuration names it, that both use TLS (rediss://, store.redis.tls) or neither does, and that Redis has room for connections (maxclients)";

/// The remedies for the replies of a server, by a part of the error's text; the first match counts.
const OF_REPLIES: &[Remedy] = &[
    (
        SENTINEL_REFUSES,
        "check store.redis.sentinel_password_file, which has the password of the sentinels themselves",
    ),
    ("NoPerm", PERMISSIONS),
    ("NOAUTH", PERMISSIONS),
    ("WRONGPASS", PERMISSIONS),
    ("called without any password configured", PERMISSIONS),
    // Of a command of a script.
    ("The user executing the script can't", PERMISSIONS),
    (
        "WRONGTYPE",
        "another program uses names that begin with store.redis.key_prefix: remove its value, or, for a new store, set another prefix",
    ),
    (
        "max number of clients",
        "raise the setting `maxclients` of Redis",
    ),
    ("BusyLoading", "wait until it has loaded its data"),
    (
        "\"BUSY\"",
        "wait for the end of the script, or end it with SCRIPT KILL",
    ),
    (
        "MasterDown",
        "it is a replica without its master: name the master in store.redis, or wait for the end of a failover",
    ),
    (
        "\"DENIED\"",
        "set a password in Redis and in store.redis, or correct the settings `bind` and `protected-mode` of Redis",
    ),
    (
        "DB index is out of range",
        "correct store.redis.database or the number at the end of the URL, or raise the setting `databases` of Redis",
    ),
    (
        "SELECT is not allowed in cluster mode",
        "it is a node of a cluster: name its nodes in store.redis.cluster, without a database",
    ),
    (
        "Moved:",
        "it is a node of a cluster: name its nodes in store.redis.cluster or, if they are named there, wait until its slots have moved",
    ),
    (
        "ClusterDown",
        "find out why its cluster does not serve (`CLUSTER INFO`); name the nodes of that in store.redis.cluster",
    ),
    (
        "cluster support disabled",
        "it is no node of a cluster: name it in store.redis.url instead of store.redis.cluster",
    ),
    (
        "unknown command 'CLUSTER'",
        "it is no node of a cluster: name a sentinel in store.redis.sentinels, another server in store.redis.url",
    ),
    (
        "unknown command 'SENTINEL'",
        "it is no sentinel: name the sentinels with their own ports in store.redis.sentinels, or this server in store.redis.url",
    ),
    (
        "unknown command",
        "if it is a sentinel, name it in store.redis.sentinels, otherwise permit all commands that docs/redis-and-outages.md names",
    ),
    (
        "No such master",
        "correct store.redis.master, or the address of a sentinel",
    ),
    (
        "but its role is",
        "wait for the end of a failover, or correct what the sentinels know of it (`SENTINEL RESET`)",
    ),
    // Of a script that begins with `#!`.
    (
        "Error compiling script",
        "Redis 7 or newer, or Valkey, is needed",
    ),
];

/// The same for the reasons for having no connection: those of the TLS library, of the system, and of this program.
const OF_CONNECTING: &[Remedy] = &[
    (
        "UnknownIssuer",
        "name the authority that signed the certificate of Redis in store.redis.tls.ca_file",
    ),
    (
        "not valid for name",
        "write a name that the certificate of Redis has as its address, or add this one to the certificate; if it is not in store.redis, the servers name it themselves: set cluster-announce-hostname and cluster-preferred-endpoint-type, or replica-announce-ip, there",
    ),
    ("certificate expired", "renew the certificate of Redis"),
    (
        "CaUsedAsEndEntity",
        "give Redis a certificate of its own, not that of an authority (CA:TRUE)",
    ),
    (
        "CertificateRequired",
        "set store.redis.tls.certificate and private_key: Redis asks for a certificate",
    ),
    (
        "invalid peer certificate",
        "check the certificate of Redis and store.redis.tls.ca_file",
    ),
    (
        "received fatal alert",
        "check store.redis.tls and the settings of TLS of Redis",
    ),
    (
        NAMED_BY_SENTINELS,
        "it is not in store.redis: check that it runs, and that its address as the sentinels name it (`SENTINEL MASTERS`) can be reached from here",
    ),
    ("Connection reset", RUNS_OR_TLS),
    ("broken pipe", RUNS_OR_TLS),
    ("handshake eof", RUNS_OR_TLS),
    ("the server closed the connection", RUNS_OR_TLS),
    ("corrupt message", RUNS_OR_TLS),
    ("in time", RUNS_OR_TLS),
    (
        "Too many open files",
        "raise the limit of open files of this process",
    ),
    ("no reply of Redis", RUNS),
    ("os error", RUNS),
    ("lookup address", RUNS),
    ("has no address", RUNS),
];

/// Whether Redis refused a user or a permission, by the text of an error.
pub fn is_of_user(error: &str) -> bool {
    remedy(error, OF_REPLIES) == Some(PERMISSIONS)
}

/// The text of an error of a server, with the remedy if there is one that it does not have yet.
pub fn with_remedy(error: String) -> String {
    appended(error, OF_REPLIES)
}

/// The error of an attempt to connect, with the remedy if there is one.
pub fn unconnected(error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable(why) => {
            StoreError::Unavailable(appended(why, OF_REPLIES.iter().chain(OF_CONNECTING)))
        }
        StoreError::Failed(why) => StoreError::Failed(with_remedy(why)),
        error @ StoreError::OtherCalendar(_) => error,
    }
}

fn appended<'t>(error: String, table: impl IntoIterator<Item = &'t Remedy>) -> String {
    match remedy(&error, table) {
        Some(remedy) if !error.contains(remedy) => format!("{error}; {remedy}"),
        Some(_) | None => error,
    }
}

fn remedy<'t>(error: &str, table: impl IntoIterator<Item = &'t Remedy>) -> Option<&'static str> {
    let mut table = table.into_iter();
    let (_, remedy) = table.find(|(part, _)| error.contains(part))?;
    Some(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of a connection, and of a command, with their remedies.
    fn both(error: &str) -> [String; 2] {
        let unconnected = unconnected(StoreError::Unavailable(error.to_owned()));
        [
            unconnected.reason().to_owned(),
            with_remedy(error.to_owned()),
        ]
    }

    #[test]
    fn an_error_of_the_user_has_the_remedy_and_no_other_has() {
        for (error, of_user) in [
            (
                "NoPerm: this user has no permissions to run the 'time' command",
                true,
            ),
            (
                "cache:1: \"WRONGPASS\": invalid username-password pair or user is disabled.",
                true,
            ),
            ("\"NOAUTH\": Authentication required.", true),
            (
                "ResponseError: The user executing the script can't run this command or subcommand script: 937c, on @user_script:38.",
                true,
            ),
            (
                "cache:1: NoPerm: User u has no permissions to run the 'select' command",
                true,
            ),
            (
                "no sentinel names the master m: the sentinel refuses the login: s:1: \"NOAUTH\": Authentication required.",
                false,
            ),
            ("ResponseError: unknown command 'EVAL'", false),
            ("broken pipe", false),
        ] {
            assert_eq!(is_of_user(error), of_user, "{error}");
            for text in both(error) {
                assert_eq!(text.contains(PERMISSIONS), of_user, "{text}");
                assert!(text.starts_with(error), "{text}");
            }
        }
    }

    #[test]
    fn a_reply_of_a_server_has_its_remedy_and_not_that_of_a_missing_server() {
        for (error, remedy) in [
            (
                "touchline:zone: \"WRONGTYPE\": Operation against a key holding the wrong kind of value",
                "key_prefix",
            ),
            (
                "BusyLoading: Redis is loading the dataset in memory",
                "wait until it has loaded",
            ),
            ("\"BUSY\": Redis is busy running a script.", "SCRIPT KILL"),
            ("MasterDown: Link with MASTER is down", "name the master"),
            (
                "\"DENIED\": Redis is running in protected mode",
                "protected-mode",
            ),
            (
                "cache:1: ResponseError: DB index is out of range",
                "store.redis.database",
            ),
            (
                "ResponseError: SELECT is not allowed in cluster mode",
                "without a database",
            ),
            ("Moved: 866 127.0.0.1:7001", "store.redis.cluster"),
            ("ClusterDown: Hash slot not served", "store.redis.cluster"),
            (
                "cache:1 returned no cluster map: ResponseError: This instance has cluster support disabled",
                "instead of store.redis.cluster",
            ),
            (
                "s:1 returned no cluster map: ResponseError: unknown command 'CLUSTER', with args beginning with: 'SLOTS'",
                "no node of a cluster",
            ),
            (
                "ResponseError: unknown command 'SENTINEL', with args beginning with: 'MASTER' 'm'",
                "it is no sentinel",
            ),
            (
                "ResponseError: unknown command 'SCRIPT', with args beginning with: 'LOAD'",
                "if it is a sentinel",
            ),
            (
                "s:1: ResponseError: No such master with that name",
                "correct store.redis.master",
            ),
            (
                "m:1: the sentinels name it as the master, but its role is slave",
                "SENTINEL RESET",
            ),
            (
                "the sentinel refuses the login: s:1: \"NOAUTH\": Authentication required.",
                "sentinel_password_file",
            ),
            (
                "ResponseError: Error compiling script (new function): user_script:1: unexpected symbol near '#'",
                "Redis 7",
            ),
        ] {
            for text in both(error) {
                assert!(text.contains(remedy), "{text}");
                assert!(!text.contains("check that Redis runs"), "{text}");
            }
        }
    }

    #[test]
    fn a_missing_connection_has_the_remedy_for_its_reason() {
        for (error, remedy) in [
            ("cache:1: Connection refused (os error 111)", RUNS),
            (
                "failed to lookup address information: Name or service not known",
                RUNS,
            ),
            ("cache:1: the name has no address", RUNS),
            (
                "cache:1: the server sent something that is no reply of Redis",
                RUNS,
            ),
            (
                "cache:1: Connection reset by peer (os error 104)",
                RUNS_OR_TLS,
            ),
            ("cache:1: no connection in time", RUNS_OR_TLS),
            ("cache:1: connected, but no answer in time", RUNS_OR_TLS),
            ("invalid peer certificate: UnknownIssuer", "ca_file"),
            (
                "invalid peer certificate: certificate not valid for name \"127.0.0.1\"",
                "as its address",
            ),
            (
                "invalid peer certificate: certificate expired: verification time 1795876467 (UNIX)",
                "renew",
            ),
            (
                "invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))",
                "CA:TRUE",
            ),
            (
                "received fatal alert: CertificateRequired",
                "store.redis.tls.certificate",
            ),
            (
                "the master that the sentinels name: 10.0.0.1:1: Connection refused (os error 111)",
                "SENTINEL MASTERS",
            ),
        ] {
            let [unconnected, of_reply] = both(error);
            assert!(unconnected.contains(remedy), "{unconnected}");
            // A connection that breaks later was made.
            assert_eq!(of_reply, error);
        }
        let both = both(
            "s:1: Connection refused (os error 111); s:2: \"NOAUTH\": Authentication required.",
        );
        assert!(
            both.iter().all(|text| text.ends_with(PERMISSIONS)),
            "{both:?}"
        );
    }

    #[test]
    fn an_error_that_contains_another_one_has_the_remedy_once() {
        let tables = || OF_REPLIES.iter().chain(OF_CONNECTING);
        for (part, of_part) in tables() {
            let inner = unconnected(StoreError::Unavailable((*part).to_owned()));
            let outer = format!("no connection: {}", inner.reason());
            assert_eq!(with_remedy(outer.clone()), outer);
            let again = unconnected(StoreError::Unavailable(outer.clone()));
            assert_eq!(again.reason(), outer);
            assert_eq!(remedy(of_part, tables()), None, "{of_part}");
        }
    }
}

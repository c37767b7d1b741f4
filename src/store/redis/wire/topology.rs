//! The servers of the configuration, and how a connection to one of them is made.
//!
//! A single server has its address in the URL. Behind Sentinel, the master is looked up for every new connection: all sentinels
//! are asked at the same time, those that are down are skipped, and the reply with the latest configuration epoch is used. The
//! named server must itself report that it is a master. Which node of a cluster to use is decided in `cluster`; this module
//! only connects to it. Invariant: no address is shown with its password.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{ConnectionAddr, FromRedisValue, IntoConnectionInfo, RedisConnectionInfo, Value};
use rustls::ClientConfig;
use tokio::time::timeout;

use super::connection::RedisConnection;
use super::dial::{dial, tls_config};
use super::remedies::{NAMED_BY_SENTINELS, SENTINEL_REFUSES, is_of_user};
use crate::policy::store_settings::{RedisSettings, RedisTls, Servers, without_password};
use crate::store::StoreError;
use crate::store::redis::identity::StoreIdentity;

/// The least time that connecting may take before the handshakes and the login, which may take as long again; a longer
/// `store.redis.timeout` applies here too.
const CONNECT_TIMEOUT_MIN: Duration = Duration::from_millis(500);
/// The least time that connecting to a sentinel and its reply may take together: the replies of the others wait for one that is down. A
/// longer `store.redis.timeout` applies here too.
const SENTINEL_TIMEOUT_MIN: Duration = Duration::from_millis(300);

/// A server's host and port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// A name or an IP address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Address {
    /// Parses `host:port`; an IPv6 address may be in brackets or, as Redis writes it, without.
    pub fn parse(text: &str) -> Option<Address> {
        let (host, port) = text.rsplit_once(':')?;
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        Some(Address {
            host: bare.unwrap_or(host).to_owned(),
            port: port.parse().ok().filter(|port| *port > 0)?,
        })
    }

    /// This address, with `host` if it has none: a node that does not know its own host omits it.
    pub fn or_host(self, host: &str) -> Address {
        if self.host.is_empty() {
            let host = host.to_owned();
            Address { host, ..self }
        } else {
            self
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A connection, and the server that the sentinels named for it.
pub struct Dialled {
    /// The connection.
    pub connection: RedisConnection,
    /// `None` without sentinels.
    pub master: Option<Address>,
}

/// What sentinels name, if at least one of them does.
pub struct NamedMaster {
    /// The master of the latest epoch.
    pub address: Address,
    /// Why each of the others names none.
    pub troubles: Vec<String>,
}

/// The servers and the login for them.
#[derive(Clone)]
pub struct Topology {
    layout: Layout,
    /// The server, the sentinels, or the nodes of the cluster.
    seeds: Vec<Address>,
    login: RedisConnectionInfo,
    sentinel_login: RedisConnectionInfo,
    tls: Option<RedisTls>,
    connect_timeout: Duration,
    sentinel_timeout: Duration,
}

#[derive(Clone)]
enum Layout {
    Single,
    /// With the sentinels' name for the master.
    Sentinel(String),
    Cluster,
}

impl Topology {
    /// The topology in the settings.
    ///
    /// # Errors
    /// [`StoreError::Failed`] if an address or a certificate cannot be used; the message never shows a password.
    pub fn of(settings: &RedisSettings) -> Result<Topology, StoreError> {
        let mut login = RedisConnectionInfo::default();
        let mut tls = settings.tls.clone();
        let (layout, seeds) = match &settings.servers {
            Servers::Url(url) => {
                let unreadable = || {
                    let shown = without_password(url);
                    StoreError::Failed(format!("the Redis URL {shown} cannot be read"))
                };
                let (address, of_url, encrypted) = read_url(url).ok_or_else(unreadable)?;
                login = of_url;
                if encrypted {
                    tls = Some(tls.unwrap_or_default());
                }
                (Layout::Single, vec![address])
            }
            Servers::Sentinels { sentinels, master } => {
                (Layout::Sentinel(master.clone()), addresses(sentinels)?)
            }
            Servers::Cluster(nodes) => (Layout::Cluster, addresses(nodes)?),
        };
        if let Some(database) = settings.database {
            login = login.set_db(i64::from(database));
        }
        if let Some(username) = &settings.username {
            login = login.set_username(username);
        }
        if let Some(password) = &settings.password {
            login = login.set_password(password.reveal());
        }
        let mut sentinel_login = RedisConnectionInfo::default();
        if let Some(password) = &settings.sentinel_password {
            sentinel_login = sentinel_login.set_password(password.reveal());
        }
        let topology = Topology {
            layout,
            seeds,
            login,
            sentinel_login,
            tls,
            connect_timeout: CONNECT_TIMEOUT_MIN.max(settings.timeout),
            sentinel_timeout: SENTINEL_TIMEOUT_MIN.max(settings.timeout),
        };
        // An unreadable certificate is reported now, not at the first connection.
        topology.tls_config()?;
        Ok(topology)
    }

    fn first(&self) -> Address {
        let first = self.seeds.first().cloned();
        first.unwrap_or(Address {
            host: String::new(),
            port: 0,
        })
    }

    /// `single`, `sentinel` or `cluster`.
    pub fn kind(&self) -> &'static str {
        match self.layout {
            Layout::Single => "single",
            Layout::Sentinel(_) => "sentinel",
            Layout::Cluster => "cluster",
        }
    }

    /// Whether the connections are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// The identity of the store, as it is recorded in the files on this machine.
    pub fn identity(&self, key_prefix: &str) -> StoreIdentity {
        let database = self.login.db();
        let (name, nodes) = match &self.layout {
            Layout::Single => (format!("{}/{database}", self.first()), Default::default()),
            Layout::Sentinel(master) => (format!("{master}/{database}"), &*self.seeds),
            Layout::Cluster => ("the cluster".to_owned(), &*self.seeds),
        };
        StoreIdentity {
            name: format!("{name} with the prefix {key_prefix}"),
            nodes: nodes.iter().map(Address::to_string).collect(),
        }
    }

    /// The nodes through which a cluster is discovered, or `None` without a cluster.
    pub fn seeds(&self) -> Option<&[Address]> {
        matches!(self.layout, Layout::Cluster).then_some(&*self.seeds)
    }

    /// One node of a cluster as a server of its own, with the same login.
    pub fn node(&self, address: Address) -> Topology {
        Topology {
            layout: Layout::Single,
            seeds: vec![address],
            ..self.clone()
        }
    }

    /// Connects to the single server, or to the master that the sentinels name. Of a cluster, which is dialled node by node
    /// ([`Topology::node`]), to its first seed.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] with the reason.
    pub async fn dial(&self) -> Result<Dialled, StoreError> {
        let named = self.named_master().await?;
        let master = named.map(|named| named.address);
        let address = master.clone().unwrap_or_else(|| self.first());
        let patience = self.connect_timeout;
        let reached = self.reach(&address, &self.login, patience).await;
        if master.is_none() {
            let connection = reached?;
            return Ok(Dialled { connection, master });
        }
        let connection = reached
            .map_err(|error| no_server(format!("{NAMED_BY_SENTINELS}: {}", error.reason())))?;
        verify_master(&address, &connection, patience).await?;
        Ok(Dialled { connection, master })
    }

    /// The master that the sentinels name now, of the latest epoch among their replies; `None` without sentinels.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if none of them names one.
    pub async fn named_master(&self) -> Result<Option<NamedMaster>, StoreError> {
        let Layout::Sentinel(master) = &self.layout else {
            return Ok(None);
        };
        let asked = self.seeds.iter().map(async |sentinel| {
            timeout(self.sentinel_timeout, self.ask_sentinel(sentinel, master))
                .await
                .unwrap_or_else(|_| Err(no_server(format!("{sentinel}: no answer in time"))))
        });
        let (mut latest, mut troubles) = (None::<(u64, Address)>, Vec::new());
        for answer in join_all(asked).await {
            match answer {
                Ok(named) if latest.as_ref().is_some_and(|latest| latest.0 >= named.0) => {}
                Ok(named) => latest = Some(named),
                Err(error) => troubles.push(match (is_of_user(error.reason()), error.reason()) {
                    (true, why) => format!("{SENTINEL_REFUSES}: {why}"),
                    (false, why) => why.to_owned(),
                }),
            }
        }
        troubles.sort();
        match latest {
            Some((_, address)) => Ok(Some(NamedMaster { address, troubles })),
            None => Err(no_server(format!(
                "no sentinel names the master {master}: {}",
                troubles.join("; ")
            ))),
        }
    }

    /// The configuration epoch and the address of the master, from one sentinel.
    async fn ask_sentinel(
        &self,
        sentinel: &Address,
        master: &str,
    ) -> Result<(u64, Address), StoreError> {
        let (login, patience) = (&self.sentinel_login, self.sentinel_timeout);
        let connection = self.reach(sentinel, login, patience).await?;
        let ask = redis::cmd("SENTINEL").arg(("MASTER", master)).take();
        let value = connection
            .ask(&ask)
            .await
            .map_err(|error| no_server(format!("{sentinel}: {error}")))?;
        let named = HashMap::<String, String>::from_redis_value(value)
            .ok()
            .and_then(|fields| {
                let epoch = fields.get("config-epoch")?.parse().ok()?;
                let host = fields.get("ip")?.clone();
                let port = fields.get("port")?.parse().ok()?;
                Some((epoch, Address { host, port }))
            });
        named.ok_or_else(|| no_server(format!("{sentinel}: its reply cannot be read")))
    }

    fn tls_config(&self) -> Result<Option<ClientConfig>, StoreError> {
        let config = self.tls.as_ref().map(tls_config).transpose();
        config.map_err(StoreError::Failed)
    }

    async fn reach(
        &self,
        address: &Address,
        login: &RedisConnectionInfo,
        patience: Duration,
    ) -> Result<RedisConnection, StoreError> {
        let tls = self.tls_config()?;
        // Once more for the handshakes and the login.
        match timeout(2 * patience, dial(&address.host, address.port, tls, login)).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => {
                let error = error.to_string();
                // The TLS library states the present time, as if each second the error were another one.
                let lasting = error.split(": verification time").next().unwrap_or(&error);
                Err(no_server(format!("{address}: {lasting}")))
            }
            Err(_) => Err(no_server(format!("{address}: no connection in time"))),
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() {
            "rediss"
        } else {
            "redis"
        };
        let (seeds, database) = (self.seeds.iter().map(Address::to_string), self.login.db());
        let seeds = seeds.collect::<Vec<_>>().join(",");
        match &self.layout {
            Layout::Single => write!(f, "{scheme}://{seeds}/{database}"),
            Layout::Sentinel(master) => {
                write!(f, "{scheme}://{master}/{database} of the sentinels {seeds}")
            }
            Layout::Cluster => write!(f, "{scheme}:// cluster of {seeds}"),
        }
    }
}

/// Checks that the server is a master: a demoted one accepts no writes, and a sentinel may not know yet that it was demoted.
async fn verify_master(
    address: &Address,
    connection: &RedisConnection,
    patience: Duration,
) -> Result<(), StoreError> {
    let asked = async {
        let value = connection.ask(&redis::cmd("ROLE")).await?;
        let mut fields = Vec::<Value>::from_redis_value(value)?.into_iter();
        String::from_redis_value(fields.next().unwrap_or(Value::Nil))
            .map_err(redis::RedisError::from)
    };
    match timeout(patience, asked).await {
        Ok(Ok(role)) if role == "master" => Ok(()),
        Ok(Ok(role)) => Err(no_server(format!(
            "{address}: the sentinels name it as the master, but its role is {role}"
        ))),
        Ok(Err(error)) => Err(no_server(format!("{address}: {error}"))),
        Err(_) => Err(no_server(format!(
            "{address}: connected, but no answer in time"
        ))),
    }
}

fn addresses(texts: &[String]) -> Result<Vec<Address>, StoreError> {
    texts
        .iter()
        .map(|text| {
            Address::parse(text).ok_or_else(|| {
                StoreError::Failed(format!("{text:?} is not the host:port of a Redis server"))
            })
        })
        .collect()
}

/// The address, the login, and whether the connection is encrypted, in a URL that the configuration accepted.
fn read_url(url: &str) -> Option<(Address, RedisConnectionInfo, bool)> {
    let info = url.into_connection_info().ok()?;
    let (host, port, encrypted) = match info.addr() {
        ConnectionAddr::Tcp(host, port) => (host, port, false),
        ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            ..
        } => (host, port, true),
        _ => return None,
    };
    let address = Address {
        host: host.clone(),
        port: *port,
    };
    Some((address, info.redis_settings().clone(), encrypted))
}

fn no_server(why: impl Into<String>) -> StoreError {
    StoreError::Unavailable(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_shows_the_password() {
        for url in [
            "redis://user:s3cret@cache:6379/2",
            "redis://:s3cret@cache",
            "redis://user:s3cr@et@cache:notaport",
            "rediss://user:s3cret@cache",
            "user:s3cret@cache",
        ] {
            let settings = RedisSettings {
                password: Some("s3cond".into()),
                ..RedisSettings::of_url(url)
            };
            let shown = format!("{settings:?}");
            assert!(!shown.contains("s3c"), "{shown}");
            match Topology::of(&settings) {
                Ok(topology) => assert!(!topology.to_string().contains("s3c")),
                Err(error) => assert!(!error.to_string().contains("s3c"), "{error}"),
            }
        }
    }

    #[test]
    fn servers_are_shown_by_their_addresses() {
        let shown =
            |place| Topology::of(&RedisSettings::of(place)).map(|topology| topology.to_string());
        let url = |url: &str| shown(Servers::Url(url.into()));
        assert_eq!(
            url("redis://u:s3cret@cache/2").unwrap(),
            "redis://cache:6379/2"
        );
        assert_eq!(url("rediss://cache:1").unwrap(), "rediss://cache:1/0");
        assert!(url("http://cache").is_err());
        assert!(url("redis://cache:port").is_err());
        assert!(url("rediss://cache#insecure").is_err());
        let place = Servers::Sentinels {
            sentinels: vec!["a:1".into(), "[::1]:2".into()],
            master: "m".into(),
        };
        assert_eq!(
            shown(place).unwrap(),
            "redis://m/0 of the sentinels a:1,[::1]:2"
        );
        assert!(shown(Servers::Cluster(vec!["a:1".into(), "b".into()])).is_err());
    }

    #[test]
    fn a_configured_value_overrides_that_of_the_url() {
        let settings = RedisSettings {
            database: Some(3),
            username: Some("other".into()),
            password: Some("word".into()),
            ..RedisSettings::of_url("redis://user:pass@cache/2")
        };
        let login = Topology::of(&settings).unwrap().login;
        let login_of_url = (login.db(), login.username(), login.password());
        assert_eq!(login_of_url, (3, Some("other"), Some("word")));
    }

    #[test]
    fn an_address_is_read_as_people_and_as_redis_write_it() {
        for (text, shown) in [
            ("cache:1", Some("cache:1")),
            ("[::1]:1", Some("[::1]:1")),
            ("::1:7000", Some("[::1]:7000")),
            (":7000", Some(":7000")),
            ("cache:0", None),
            ("cache:65536", None),
            ("cache", None),
        ] {
            let read = Address::parse(text).map(|address| address.to_string());
            assert_eq!(read.as_deref(), shown, "{text}");
        }
    }
}

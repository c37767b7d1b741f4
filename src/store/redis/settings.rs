//! Where Redis is and under which names we keep things there.

use std::fmt;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{Client, ConnectionAddr, IntoConnectionInfo};

use super::outage::OutageSettings;
use crate::store::StoreError;

/// How long unacknowledged bytes may be under way before the kernel gives the connection up.
const USER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a connection is idle before the kernel asks whether the other side lives.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// The configuration of the Redis store.
#[derive(Clone)]
pub struct Settings {
    /// `redis://[user:password@]host[:port][/db]`.
    pub url: String,
    /// Goes before a password in the URL.
    pub password: Option<String>,
    /// What the names of all our keys begin with, default `touchline`; gateways of one service share it.
    pub key_prefix: String,
    /// How long a call may take, queueing included, default 100 ms.
    pub timeout: Duration,
    /// What a gateway does while Redis is away. Without it there is no journal, and nothing is served then.
    pub outage: Option<OutageSettings>,
}

impl Settings {
    /// The defaults for a server.
    pub fn of_url(url: impl Into<String>) -> Settings {
        Settings {
            url: url.into(),
            password: None,
            key_prefix: "touchline".into(),
            timeout: Duration::from_millis(100),
            outage: None,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("url", &without_password(&self.url))
            .field("key_prefix", &self.key_prefix)
            .field("timeout", &self.timeout)
            .field("outage", &self.outage)
            .finish()
    }
}

/// The URL with everything between the scheme and the last `@` struck out.
fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, place))) => format!("{scheme}://…@{place}"),
        (None, Some((_, place))) => format!("…@{place}"),
        (_, None) => url.to_owned(),
    }
}

/// A server to connect to. Shown as host, port and database, without the password.
#[derive(Clone)]
pub struct Server {
    client: Client,
    shown: String,
}

impl Server {
    /// The server that the settings name.
    ///
    /// # Errors
    /// [`StoreError::Failed`] where the URL is not of the form above; the message never shows the password.
    pub fn of(settings: &Settings) -> Result<Server, StoreError> {
        let url = settings.url.as_str();
        let refused = |why: &str| {
            StoreError::Failed(format!(
                "the Redis URL {} {why}; write redis://[user:password@]host[:port][/db], with reserved characters of the password percent-encoded",
                without_password(url)
            ))
        };
        if !url.starts_with("redis://") {
            return Err(refused("does not begin with redis://"));
        }
        let info = url
            .into_connection_info()
            .map_err(|_| refused("cannot be read"))?;
        let ConnectionAddr::Tcp(host, port) = info.addr() else {
            return Err(refused("names no TCP address"));
        };
        let redis = match &settings.password {
            Some(password) => info.redis_settings().clone().set_password(password),
            None => info.redis_settings().clone(),
        };
        let shown = format!("redis://{host}:{port}/{}", info.redis_settings().db());
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(redis::io::tcp::socket2::TcpKeepalive::new().with_time(KEEPALIVE))
            .set_user_timeout(USER_TIMEOUT);
        let client = Client::open(info.set_redis_settings(redis).set_tcp_settings(tcp))
            .map_err(|_| refused("cannot be used"))?;
        Ok(Server { client, shown })
    }

    /// A client for it.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
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
            let settings = Settings::of_url(url);
            assert!(!format!("{settings:?}").contains("s3c"), "{settings:?}");
            match Server::of(&settings) {
                Ok(server) => assert!(!server.to_string().contains("s3c")),
                Err(error) => assert!(!error.to_string().contains("s3c"), "{error}"),
            }
        }
    }

    #[test]
    fn a_server_is_shown_by_its_place() {
        let server = |url: &str| Server::of(&Settings::of_url(url));
        assert_eq!(
            server("redis://user:s3cret@cache/2").unwrap().to_string(),
            "redis://cache:6379/2"
        );
        assert!(server("http://cache").is_err());
        assert!(server("redis://cache:port").is_err());
    }
}

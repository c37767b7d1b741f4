//! Making a connection to one server: TCP, TLS and login.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use pingora::tls::load_platform_certs_incl_env_into_store;
use redis::{Pipeline, RedisConnectionInfo, RedisResult};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

use super::connection::RedisConnection;
use crate::policy::store_settings::RedisTls;

/// How long sent bytes may remain unacknowledged before the kernel closes the connection.
const USER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a connection is idle before the kernel sends a keepalive probe.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Connects to a server and logs in. It has no deadline of its own.
///
/// # Errors
/// Those of the system, of TLS and of the login; the message never shows a password.
pub async fn dial(
    host: &str,
    port: u16,
    tls: Option<ClientConfig>,
    login: &RedisConnectionInfo,
) -> RedisResult<RedisConnection> {
    let addresses = lookup_host((host, port)).await?;
    let attempts = addresses.map(|address| Box::pin(TcpStream::connect(address)));
    let attempts = Vec::from_iter(attempts);
    if attempts.is_empty() {
        return Err(io::Error::other("the name has no address").into());
    }
    let (stream, _) = select_ok(attempts).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    let connection = match tls {
        None => RedisConnection::over(stream),
        Some(tls) => {
            let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
            let connector = TlsConnector::from(Arc::new(tls));
            RedisConnection::over(connector.connect(name, stream).await?)
        }
    };
    log_in(&connection, login).await?;
    Ok(connection)
}

async fn log_in(connection: &RedisConnection, login: &RedisConnectionInfo) -> RedisResult<()> {
    let mut commands = Pipeline::new();
    let (username, password) = (login.username(), login.password());
    if username.or(password).is_some() {
        // A user without a password is refused if it needs one, and is not replaced by the default user.
        let password = password.unwrap_or_default();
        commands.cmd("AUTH").arg(username).arg(password);
    }
    if login.db() != 0 {
        commands.cmd("SELECT").arg(login.db());
    }
    let mut replies = connection.ask_each(&commands).await?.into_iter();
    replies.try_for_each(|reply| match reply.extract_error() {
        // Redis quotes the arguments of a command that it does not know, here the password.
        Err(error) if error.to_string().contains("args beginning with") => {
            Err(io::Error::other("unknown command 'AUTH' or 'SELECT'").into())
        }
        checked => checked.map(drop),
    })
}

/// The settings of TLS towards the servers.
///
/// # Errors
/// What cannot be used, and why.
pub fn tls_config(tls: &RedisTls) -> Result<ClientConfig, String> {
    // The first installation wins: every module of this program installs the same provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut roots = RootCertStore::empty();
    match &tls.ca_file {
        Some(file) => {
            for authority in certificates_in(file)? {
                roots
                    .add(authority)
                    .map_err(|error| unusable(file, &error))?;
            }
        }
        None => load_platform_certs_incl_env_into_store(&mut roots)
            .map_err(|error| format!("the system's certificate authorities: {error}"))?,
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    let Some((certificate, private_key)) = &tls.identity else {
        return Ok(config.with_no_client_auth());
    };
    let chain = certificates_in(certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&contents(private_key)?);
    let key = key.map_err(|_| unusable(private_key, &"it has no private key in PEM format"))?;
    let config = config.with_client_auth_cert(chain, key);
    config.map_err(|error| unusable(certificate, &error))
}

fn certificates_in(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = contents(file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        // The library's words may show a part of the file.
        _ => Err(unusable(file, &"it has no valid certificate in PEM format")),
    }
}

fn contents(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
}

fn unusable(file: &Path, why: &dyn fmt::Display) -> String {
    format!("cannot use {}: {why}", file.display())
}

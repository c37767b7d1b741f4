//! A health check: a request of the gateway's own to one server, on a connection of its own.

use bytes::BytesMut;
use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::connections::{Connections, OwnConnection, StreamPlace, TakenConnection};
use super::http1::{BOUNDS, malformed};
use super::http2::{ended, uri};
use crate::config::HealthCheck;
use crate::policy::http1::answer::AnswerReader;
use crate::proxy::failure::{Failure, ServerFault};
use crate::proxy::upstreams::{Server, Upstream};

/// The user agent.
const AGENT: HeaderValue = HeaderValue::from_static(concat!(
    "touchline/",
    env!("CARGO_PKG_VERSION"),
    " health check"
));

/// Requests the health path, with the TLS, HTTP version and header of other requests. Any 2xx passes. There is no timeout.
///
/// # Errors
/// If it does not pass, with the reason, which shows nothing that was sent.
pub async fn check(
    connections: &Connections,
    upstream: &Upstream,
    server: &Server,
    health: &HealthCheck,
) -> Result<(), Failure> {
    let status = match ask(connections, upstream, server, health).await {
        Err(failure) if failure.is_about_version() && upstream.wire.takes(Version::HTTP_11) => {
            upstream.note_wants_http1(server);
            ask(connections, upstream, server, health).await
        }
        asked => asked,
    }?;
    match status.is_success() {
        true => Ok(()),
        false => Err(Failure::server(
            ServerFault::Status,
            format_args!("status {} to a health check", status.as_u16()),
        )),
    }
}

async fn ask(
    connections: &Connections,
    upstream: &Upstream,
    server: &Server,
    health: &HealthCheck,
) -> Result<StatusCode, Failure> {
    match connections.make(upstream, server).await? {
        TakenConnection::Http1(_) if !upstream.wire.takes(Version::HTTP_11) => {
            let cause = "the server did not agree to HTTP/2 by ALPN";
            Err(Failure::server(ServerFault::NotHttp2, cause))
        }
        TakenConnection::Http1(connection) => ask_http1(connection, upstream, server, health).await,
        TakenConnection::Http2(place) => ask_http2(place, upstream, server, health).await,
    }
}

async fn ask_http1(
    connection: OwnConnection,
    upstream: &Upstream,
    server: &Server,
    health: &HealthCheck,
) -> Result<StatusCode, Failure> {
    let mut request = format!("GET {} HTTP/1.1\r\n", health.path).into_bytes();
    let mut fields = fields(upstream);
    fields.insert(HOST, server.authority.clone());
    for (name, value) in &fields {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            request.extend_from_slice(part);
        }
    }
    request.extend_from_slice(b"\r\n");
    let mut stream = connection.stream;
    let broken = |error| Failure::broken(true, error);
    stream.write_all(&request).await.map_err(broken)?;
    stream.flush().await.map_err(broken)?;
    let (mut reader, mut received) = (AnswerReader::new(&Method::GET), BytesMut::new());
    loop {
        while let Some(head) = reader.take(&mut received, &BOUNDS).map_err(malformed)? {
            if !head.is_interim() {
                return Ok(head.status);
            }
        }
        if stream.read_buf(&mut received).await.map_err(broken)? == 0 {
            let cause = "closed the connection before the end of its answer";
            return Err(Failure::broken(true, cause));
        }
    }
}

async fn ask_http2(
    mut place: StreamPlace,
    upstream: &Upstream,
    server: &Server,
    health: &HealthCheck,
) -> Result<StatusCode, Failure> {
    let target = health.path.as_bytes();
    let uri = uri(upstream.wire.is_tls(), &server.authority, target)?;
    let request = Request::get(uri).body(());
    let mut request = request.map_err(Failure::gateway)?;
    *request.headers_mut() = fields(upstream);
    let sent = place.send(request, true);
    let ended = |error| ended(true, &error, &place);
    let answer = sent.map_err(ended)?.0.await.map_err(ended)?;
    Ok(answer.status())
}

/// The fields of a request besides `Host`. The upstream's header replaces another one of its name.
fn fields(upstream: &Upstream) -> HeaderMap {
    let mut fields = HeaderMap::from_iter([(USER_AGENT, AGENT)]);
    if let Some((name, value)) = upstream.header.clone() {
        fields.insert(name, value);
    }
    fields
}

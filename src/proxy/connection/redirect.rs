//! A connection to the listener that redirects to HTTPS: one request, one redirect (308), then a close.
//!
//! API keys are neither checked nor accepted. A client that sends one here has exposed it to the network, which is counted.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::wire::{LINGER, LINGER_BYTES, READ_BYTES};
use super::{opening, refusal};
use crate::config::Limits;
use crate::policy::http1::refused;
use crate::policy::http1::request::{RequestHead, RequestReader};
use crate::policy::limit_hit::LimitHit;
use crate::policy::redirect::{self, Redirect, Rule};
use crate::policy::rejection::{Malformed, Rejection};
use crate::policy::{api_key, request_id};
use crate::proxy::gate::Gate;
use crate::proxy::respond;
use crate::proxy::well_formed::bounds_of;
use crate::telemetry::access_log::Line;
use crate::telemetry::metrics::NONE;

/// Serves a connection to its end.
pub async fn serve(
    gate: &Arc<Gate>,
    mut socket: TcpStream,
    client: SocketAddr,
    limits: &Limits,
    rule: &Rule,
) {
    let start = Instant::now();
    let mut received = BytesMut::new();
    let mut arrival = None;
    let deadline = start + limits.request_head;
    let read = timeout_at(deadline, async {
        arrival = opening::arrival_on(&socket, gate).await.ok();
        head(&mut socket, &mut received, limits).await
    })
    .await;
    let verdict = match read {
        Ok(None) => return,
        Ok(Some(Ok(head))) => redirect::redirect(&head, rule),
        Ok(Some(Err(rejection))) => Err(rejection),
        Err(_) => {
            gate.metrics.limit_hits.note(LimitHit::RequestHead);
            if received.is_empty() {
                return;
            }
            Err(Rejection::BadRequest(Malformed::Late))
        }
    };
    let waited = start.elapsed();
    let answer = match verdict {
        Ok(redirect) => {
            let redirected = Redirected {
                head: &received,
                redirect: &redirect,
                client,
                waited,
            };
            redirected.answer(gate)
        }
        Err(rejection) => refusal::refuse(gate, client, &received, &rejection, waited, false),
    };
    let written = timeout(limits.response_write, async {
        socket.write_all(&answer).await?;
        socket.shutdown().await
    });
    let written = written.await;
    drop(arrival);
    if let Ok(Ok(())) = written {
        let _ = timeout(LINGER, linger(&mut socket)).await;
    }
}

/// Reads a head without taking it, or returns its refusal; `None` if the client disconnected first.
async fn head(
    socket: &mut TcpStream,
    received: &mut BytesMut,
    limits: &Limits,
) -> Option<Result<RequestHead, Rejection>> {
    let bounds = bounds_of(limits);
    let mut reader = RequestReader::default();
    loop {
        if let Some(read) = reader.read(received, &bounds).transpose() {
            return Some(read.map(|places| {
                received.truncate(places.end());
                places.take(&mut received.clone())
            }));
        }
        received.reserve(READ_BYTES);
        match socket.read_buf(received).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return None,
        }
    }
}

/// Reads the client's further bytes, as the answer might be lost otherwise.
async fn linger(socket: &mut TcpStream) {
    let mut thrown_away = [0; READ_BYTES];
    let mut bytes = 0;
    while bytes < LINGER_BYTES {
        match socket.read(&mut thrown_away).await {
            Ok(more @ 1..) => bytes += more,
            Ok(0) | Err(_) => return,
        }
    }
}

/// A redirected request.
struct Redirected<'a> {
    head: &'a [u8],
    redirect: &'a Redirect,
    client: SocketAddr,
    waited: std::time::Duration,
}

impl Redirected<'_> {
    /// The bytes of the answer. Also writes the line of the access log and counts the request.
    fn answer(&self, gate: &Gate) -> Vec<u8> {
        let snapshot = gate.snapshot();
        let prefix = &snapshot.config.keys.prefix;
        let sent = refused::request_id(self.head);
        let id = match sent.and_then(|sent| request_id::kept(sent, prefix)) {
            Some(kept) => kept.to_owned(),
            None => request_id::from_random(fastrand::u128(..)),
        };
        let now = gate.store.now();
        let metrics = &gate.metrics;
        metrics
            .requests
            .with_label_values(&[NONE, NONE, "redirected"])
            .inc();
        metrics
            .request_duration
            .with_label_values(&[NONE])
            .observe(self.waited.as_secs_f64());
        if self.redirect.shows_key {
            metrics.limit_hits.note(LimitHit::CleartextKey);
        }
        let (method, path) = refused::method_and_path(self.head);
        gate.access_log.write(&Line {
            time: now,
            request_id: &id,
            client: Some(&self.client.to_string()),
            protocol: "HTTP/1.1",
            method: &api_key::redacted(&method, prefix),
            path: &api_key::redacted(&path, prefix),
            endpoint: None,
            key_id: None,
            tier: None,
            status: 308,
            outcome: "redirected",
            policy: None,
            would_refuse: None,
            sample_percent: None,
            units: 0,
            refunded: false,
            duration_ms: self.waited,
            store_ms: std::time::Duration::ZERO,
            upstream_ms: None,
            bytes_sent: 0,
            cause: self
                .redirect
                .shows_key
                .then_some("an API key was sent in clear text"),
        });
        format!(
            "HTTP/1.1 308 Permanent Redirect\r\nlocation: {}\r\ncontent-length: 0\r\ncache-control: no-store\r\n\
             x-content-type-options: nosniff\r\nx-request-id: {id}\r\nconnection: close\r\ndate: {}\r\n\r\n",
            self.redirect.location,
            respond::http_date(now),
        )
        .into_bytes()
    }
}

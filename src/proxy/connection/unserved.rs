//! Requests over HTTP/1 that are answered without being served: the head cannot be read, or the listener only redirects to HTTPS.
//!
//! Each has an answer after which the connection is closed, a line in the access log, and is counted. API keys are neither checked nor
//! accepted. A client that sends one to a listener that redirects has exposed it to the network, which is counted.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CACHE_CONTROL, DATE, LOCATION};
use http::{HeaderValue, StatusCode};
use pingora::protocols::http::date::get_cached_date;

use super::Connection;
use crate::policy::forwarded::RequestSender;
use crate::policy::http1::Version;
use crate::policy::http1::fields::FieldList;
use crate::policy::http1::framing::AnswerFraming;
use crate::policy::http1::refused;
use crate::policy::http1::request::RequestHead;
use crate::policy::http1::writer::{ConnectionFate, HeadWriter};
use crate::policy::limit_hit::LimitHit;
use crate::policy::redirect::Redirect;
use crate::policy::rejection::Rejection;
use crate::policy::{api_key, caching, request_id};
use crate::proxy::forward::{X_API_KEY, X_FORWARDED_FOR, X_REQUEST_ID};
use crate::proxy::gate::{Gate, Snapshot};
use crate::proxy::respond;
use crate::telemetry::access_log::Line;
use crate::telemetry::metrics::NONE;

/// A request that is not served, to the extent that its head could be read.
pub struct Unserved<'a> {
    gate: &'a Gate,
    snapshot: Arc<Snapshot>,
    connection: &'a Connection,
    sender: RequestSender,
    /// The method and the path, redacted for the log.
    method: String,
    path: String,
    request_id: HeaderValue,
    /// The version of the head; HTTP/1.1 if the head could not be read.
    version: Version,
    /// The time since the first byte of an unreadable head; zero for a head that was read.
    waited: Duration,
}

impl<'a> Unserved<'a> {
    /// A request of whose head `received` is the part that was received.
    pub fn unread(
        gate: &'a Gate,
        connection: &'a Connection,
        received: &[u8],
        waited: Duration,
    ) -> Unserved<'a> {
        let names = refused::method_and_path(received);
        let sent = (refused::request_id(received), refused::api_key(received));
        Unserved::new(gate, connection, names, sent, (Version::Http11, waited))
    }

    /// A request whose head has just been read.
    pub fn read(gate: &'a Gate, connection: &'a Connection, head: &RequestHead) -> Unserved<'a> {
        let names = (head.method.to_string(), head.path().to_owned());
        let sent = (
            head.fields.first(&X_REQUEST_ID),
            head.fields.first(&X_API_KEY),
        );
        let arrival = (head.version, Duration::ZERO);
        let mut unserved = Unserved::new(gate, connection, names, sent, arrival);
        let trusted = &unserved.snapshot.config.listen.trusted_proxies;
        let name = X_FORWARDED_FOR;
        unserved.sender = RequestSender::of(connection.client, head.fields.all(&name), trusted);
        unserved
    }

    fn new(
        gate: &'a Gate,
        connection: &'a Connection,
        (method, path): (String, String),
        (sent_id, presented): (Option<&[u8]>, Option<&[u8]>),
        (version, waited): (Version, Duration),
    ) -> Unserved<'a> {
        let snapshot = gate.snapshot();
        let prefix = &snapshot.config.keys.prefix;
        let shown =
            |text: String| api_key::redacted_beside(&text, prefix, || presented).into_owned();
        Unserved {
            gate,
            request_id: request_id::of(sent_id, prefix, presented, || fastrand::u128(..)),
            method: shown(method),
            path: shown(path),
            snapshot,
            connection,
            sender: RequestSender::Connected(connection.client),
            version,
            waited,
        }
    }

    /// Refuses the request; returns the bytes of the answer.
    pub fn refuse(&self, rejection: &Rejection) -> Vec<u8> {
        let now = self.gate.store.now();
        let problem = rejection.problem(self.request_id(), &self.snapshot.problems, now);
        let fields = respond::refusal_fields(&problem, None, None, now);
        let line = Line {
            status: problem.status.as_u16(),
            outcome: rejection.outcome(),
            policy: rejection.policy(),
            ..Line::default()
        };
        self.answer(fields, problem.body, line, rejection.limit_hit())
    }

    /// Redirects the request; returns the bytes of the answer.
    pub fn redirect(&self, redirect: &Redirect) -> Vec<u8> {
        let mut fields = FieldList::default();
        fields.append(CACHE_CONTROL, caching::NO_STORE);
        // It consists of parts of a checked target and host, so it is a value.
        if let Ok(location) = HeaderValue::try_from(&redirect.location) {
            fields.append(LOCATION, location);
        }
        let shown = redirect.shows_key;
        let line = Line {
            status: StatusCode::PERMANENT_REDIRECT.as_u16(),
            outcome: "redirected",
            cause: shown.then_some("an API key was sent in clear text"),
            ..Line::default()
        };
        let hit = shown.then_some(LimitHit::CleartextKey);
        self.answer(fields, Vec::new(), line, hit)
    }

    /// The bytes of an answer. Also writes the line of the access log and counts the request, and the `hit` of a limit.
    fn answer(
        &self,
        mut fields: FieldList,
        mut body: Vec<u8>,
        line: Line<'_>,
        hit: Option<LimitHit>,
    ) -> Vec<u8> {
        let snapshot = &self.snapshot;
        let hsts = snapshot.hsts.as_ref();
        let hsts = hsts.filter(|_| self.connection.is_encrypted);
        respond::insert_common(&mut fields, &self.request_id, hsts);
        let mut framing = AnswerFraming::Length(body.len() as u64);
        if self.method == "HEAD" {
            framing = AnswerFraming::Bodiless(Some(body.len() as u64));
            body.clear();
        }
        let mut answer = Vec::new();
        let status = StatusCode::from_u16(line.status).unwrap_or_default();
        let mut head = HeadWriter::answer(&mut answer, status);
        head.pass_all(&fields);
        head.add(&DATE, &get_cached_date());
        head.end(framing, ConnectionFate::Close);
        answer.extend_from_slice(&body);
        let metrics = &self.gate.metrics;
        let requests = &metrics.requests;
        let labels = [NONE, NONE, line.outcome];
        requests.with_label_values(&labels).inc();
        let durations = metrics.request_duration.with_label_values(&[NONE]);
        durations.observe(self.waited.as_secs_f64());
        if let Some(limit) = hit {
            metrics.limit_hits.note(limit);
        }
        self.gate.access_log.write(&Line {
            time: self.gate.store.now(),
            request_id: self.request_id(),
            client: Some(&self.connection.text_of(self.sender)),
            protocol: self.version.name(),
            method: &self.method,
            path: &self.path,
            duration_ms: self.waited,
            bytes_sent: body.len(),
            ..line
        });
        answer
    }

    fn request_id(&self) -> &str {
        self.request_id.to_str().unwrap_or_default()
    }
}

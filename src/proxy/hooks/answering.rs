//! What the gateway answers itself: refusals, and its own paths.

use std::time::Duration;

use pingora::proxy::Session;

use super::{Edge, content_length};
use crate::policy::forwarded::Client;
use crate::policy::rejection::{Malformed, Rejection};
use crate::policy::token_bucket::Empty;
use crate::proxy::admission::Refusal;
use crate::proxy::connection::Connection;
use crate::proxy::exchange::{Ending, Exchange, Served, Stage};
use crate::proxy::respond::Answer;
use crate::proxy::well_formed;

/// An unread request body up to this size is read before an early answer, so that clients that write first and read
/// later get the answer; a larger one costs them the connection.
const DRAINED_BODY_BYTES_MAX: u64 = 64 * 1024;
/// How long such a body may take.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

impl Edge {
    /// Answers a refused request and leaves the connection fit for the next one where that is safe.
    pub(super) async fn refuse(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        refusal: Refusal,
    ) -> pingora::Result<()> {
        let ambiguous = matches!(refusal.rejection, Rejection::BadRequest(_));
        let head = matches!(
            refusal.rejection,
            Rejection::BadRequest(Malformed::Target(_) | Malformed::Host)
        );
        if let (true, Some(connection)) = (head, Connection::of(session)) {
            connection.note_malformed();
        }
        if ambiguous {
            session.set_keepalive(None);
        } else if !session.is_body_done()
            && !well_formed::expects_continue(session.req_header())
            && content_length(&session.req_header().headers)
                .is_some_and(|bytes| bytes <= DRAINED_BODY_BYTES_MAX)
        {
            let _ = tokio::time::timeout(DRAIN_TIMEOUT, session.drain_request_body()).await;
        }
        if let Rejection::MissingApiKey | Rejection::InvalidApiKey = refusal.rejection {
            self.note_failed_authentication(session, exchange);
        }
        if let Some(limit) = refusal.rejection.limit_hit() {
            self.gate
                .metrics
                .limit_hits
                .with_label_values(&[limit])
                .inc();
        }
        let method = &session.req_header().method;
        let now = self.gate.store.now();
        let (rejection, standing) = (&refusal.rejection, refusal.standing);
        let answer = Answer::to(
            method,
            exchange,
            rejection,
            standing,
            refusal.endpoint(),
            now,
        );
        exchange.stage = Stage::Refused(refusal);
        answer.write(session).await
    }

    /// Closes, after their requests under way, the connections of an address from which keys are tried out. The answer is
    /// the same, so that nothing is learnt from it, and valid keys of the address are served on other connections. A trusted
    /// proxy's connection stays: it carries the requests of others.
    fn note_failed_authentication(&self, session: &mut Session, exchange: &Exchange) {
        let Some(connection) = Connection::of(session).cloned() else {
            return;
        };
        let limits = &exchange.snapshot.config.limits;
        let client = match &exchange.origin {
            Some(origin) => origin.client,
            None => Client::Connected(connection.client),
        };
        let noted = self.gate.note_failed_authentication(client.ip(), limits);
        let limit = match noted {
            Ok(()) => return,
            Err(Empty::Bucket { .. }) => "failed_authentications",
            Err(Empty::Room { .. }) => "failing_addresses",
        };
        let hits = &self.gate.metrics.limit_hits;
        hits.with_label_values(&[limit]).inc();
        match client {
            Client::Connected(_) => {
                session.set_keepalive(None);
                connection.retire();
            }
            Client::Told(_) => {}
        }
    }

    /// Writes an answer of the gateway's own.
    pub(super) async fn serve(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        answer: Answer,
        mut served: Served,
    ) -> pingora::Result<()> {
        let written = answer.write(session).await;
        served.ending = written.is_err().then_some(Ending::ClientClosed);
        exchange.stage = Stage::Served(served);
        written
    }
}

//! One request, from its head to its line in the access log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::admission::{self, Admitted, Permit, Refusal};
use super::client::Client;
use super::exchange::{Ending, Exchange, Forwarding, Served, Stage};
use super::failure::{ClientFault, Failure, Fault};
use super::gate::Gate;
use super::record;
use super::relay::Relay;
use super::respond::Answer;
use super::settlement;
use super::well_formed;
use crate::config::Limits;
use crate::policy::forwarded::RequestSender;
use crate::policy::http1::framing::Framing;
use crate::policy::limit_hit::LimitHit;
use crate::policy::own_path::OwnPath;
use crate::policy::rejection::{Malformed, Rejection};
use crate::policy::token_bucket::Empty;
use crate::store::KeyEntry;

/// Serves a request: admits it, and answers or forwards it; then records its outcome.
pub async fn serve(gate: &Arc<Gate>, client: &mut Client<'_>) {
    let exchange = Exchange::begin(gate, client);
    let mut recorded = Recorded {
        gate,
        client,
        exchange,
        stage: Stage::Arrived,
        served: None,
    };
    let Recorded {
        client,
        exchange,
        stage,
        ..
    } = &mut recorded;
    let mut served = answer(gate, client, exchange, stage).await;
    if let Err(failure) = &mut served
        && matches!(failure.fault, Fault::Client(_))
        && gate.cut_off.is_cancelled()
    {
        *failure = Failure::cut_off();
    }
    recorded.served = Some(served);
}

/// A request that is recorded when it ends, also if its task is dropped.
struct Recorded<'a, 'c> {
    gate: &'a Gate,
    client: &'a mut Client<'c>,
    exchange: Exchange,
    stage: Stage,
    /// The outcome, or `None` if the task was dropped first.
    served: Option<Result<(), Failure>>,
}

impl Drop for Recorded<'_, '_> {
    fn drop(&mut self) {
        if let Stage::Forwarding(forwarding) = &mut self.stage {
            forwarding.charged.give_up_unsent();
        }
        let abandoned = || {
            if let Stage::Forwarding(forwarding) = &mut self.stage {
                settlement::settle_dropped(self.gate, self.client, forwarding);
            }
            Err(match self.gate.cut_off.is_cancelled() {
                true => Failure::cut_off(),
                false => Failure::gateway("the request was abandoned"),
            })
        };
        let failure = self.served.take().unwrap_or_else(abandoned).err();
        if failure.is_some() {
            self.client.break_off();
        }
        let (exchange, stage) = (&self.exchange, &self.stage);
        record::record(self.gate, self.client, failure.as_ref(), exchange, stage);
    }
}

/// Answers a request.
///
/// # Errors
/// With the failure that ended it.
async fn answer(
    gate: &Arc<Gate>,
    client: &mut Client<'_>,
    exchange: &mut Exchange,
    stage: &mut Stage,
) -> Result<(), Failure> {
    let snapshot = exchange.snapshot.clone();
    let limits = &snapshot.config.limits;
    if gate.is_draining() || client.connection.is_retired() {
        client.close_after();
    }
    let (mut arrived, mut ended) = (exchange.time, Ok(()));
    if must_end_first(client, limits) {
        ended = end_without_body(client, limits.request_read).await?;
        arrived = gate.store.now();
    }
    if gate.is_draining() && gate.cut_off.is_cancelled() {
        // The client is gone, and the store may be closed before units charged now could be refunded.
        return Err(Failure::cut_off());
    }
    let admitted = match ended {
        Ok(()) => {
            let trace = &mut exchange.admission_trace;
            admission::admit(gate, &snapshot, &client.head, arrived, trace).await
        }
        Err(malformed) => Err(Refusal::of(Rejection::BadRequest(malformed))),
    };
    match admitted {
        Err(refusal) => refuse(gate, client, exchange, stage, refusal).await,
        Ok(Admitted::Document) => {
            let answer = Answer::with_document(&client.head, exchange, &snapshot.document);
            serve_own(gate, client, stage, answer, OwnPath::Document, None).await
        }
        Ok(Admitted::Usage(usage)) => {
            let (method, now) = (&client.head.method, gate.store.now());
            let answer =
                Answer::with_usage(method, exchange, usage.report, usage.quota_status, now);
            serve_own(gate, client, stage, answer, OwnPath::Usage, Some(usage.key)).await
        }
        Ok(Admitted::Forward(permit)) => forward(gate, client, exchange, stage, permit).await,
    }
}

/// Forwards a permitted request, and settles its outcome.
async fn forward(
    gate: &Arc<Gate>,
    client: &mut Client<'_>,
    exchange: &mut Exchange,
    stage: &mut Stage,
    permit: Permit,
) -> Result<(), Failure> {
    let (tier, endpoint) = (permit.key.record.tier.as_str(), &permit.endpoint);
    let charged = u64::from(endpoint.cost.get());
    let table = &exchange.snapshot.series;
    table.with(&gate.metrics, &endpoint.pattern, tier, |series| {
        series.units.inc_by(charged);
    });
    let since = exchange.admission_trace.store_answered;
    let since = since.unwrap_or_else(Instant::now);
    let forwarding = Forwarding::begin(gate, permit, since, client.blocked());
    *stage = Stage::Forwarding(Box::new(forwarding));
    let Stage::Forwarding(forwarding) = stage else {
        return Ok(());
    };
    if let Some(turn) = client.turn() {
        turn.note_judged();
    }
    let relayed = if client.turn().is_some_and(|turn| turn.is_missed()) {
        let cause = "other requests of the client's connection took limits.h2_memory for limits.response_write";
        Err(Failure::gateway(cause))
    } else if let Err(failure) = begin_body(client).await {
        Err(failure)
    } else {
        let relay = Relay {
            gate,
            client,
            exchange,
            forwarding,
        };
        Box::pin(relay.run()).await
    };
    let Err(failure) = relayed else {
        forwarding.ending = None;
        return Ok(());
    };
    settlement::settle(gate, client, &failure, forwarding).await;
    if let Some(Ending::Rejected(rejection)) = &forwarding.ending
        && !client.header_passed()
    {
        let (method, now) = (&client.head.method, gate.store.now());
        let (quota_status, endpoint) = (Some(forwarding.quota_status), Some(&*forwarding.endpoint));
        let answer = Answer::refusing(method, exchange, rejection, quota_status, endpoint, now);
        if !client.is_body_done() {
            client.close_after();
        }
        if answer.write(client).await.is_ok() {
            exchange.cause = Some(failure.to_string());
            return Ok(());
        }
    }
    Err(failure)
}

/// Asks for the body if the client waits for that. Waits for the end of one that is announced as empty: its server would have a whole
/// request, while the client may send more, which makes the request malformed.
///
/// # Errors
/// If the client has disconnected or broken the request.
async fn begin_body(client: &mut Client<'_>) -> Result<(), Failure> {
    if client.head.expects_continue && !client.is_body_done() {
        client.ask_for_body().await?;
    }
    while client.head.framing == Framing::Length(0) && !client.is_body_done() {
        client.read().await?;
    }
    Ok(())
}

/// Answers a refused request and keeps the connection usable for the next one if that is safe.
async fn refuse(
    gate: &Gate,
    client: &mut Client<'_>,
    exchange: &Exchange,
    stage: &mut Stage,
    refusal: Refusal,
) -> Result<(), Failure> {
    // Before anything is awaited: the record of a request whose task is dropped shows why it was refused.
    *stage = Stage::Refused(refusal);
    let Stage::Refused(refusal) = stage else {
        return Ok(());
    };
    let ambiguous = matches!(refusal.rejection, Rejection::BadRequest(_));
    let head = matches!(
        refusal.rejection,
        Rejection::BadRequest(Malformed::Target(_) | Malformed::Host)
    );
    if head {
        client.connection.note_malformed();
    }
    let too_long = matches!(refusal.rejection, Rejection::PayloadTooLarge);
    if ambiguous || (!client.is_body_done() && (client.head.expects_continue || too_long)) {
        // Whether the body follows this answer cannot be known, or it is too long to wait for.
        client.close_after();
    }
    if let Rejection::MissingApiKey | Rejection::InvalidApiKey = refusal.rejection {
        note_failed_authentication(gate, client, exchange);
    }
    if let Some(limit) = settlement::limit_hit(&refusal.rejection) {
        gate.metrics.limit_hits.note(limit);
    }
    let (method, now) = (&client.head.method, gate.store.now());
    let (rejection, quota_status) = (&refusal.rejection, refusal.quota_status);
    let endpoint = refusal.endpoint();
    let answer = Answer::refusing(method, exchange, rejection, quota_status, endpoint, now);
    answer.write(client).await
}

/// Closes, after their requests in flight, the connections of an address from which keys are guessed. The answer is the same, so
/// it reveals nothing, and valid keys of the address are served on other connections. A trusted proxy's connection stays open: it
/// carries requests of other clients.
fn note_failed_authentication(gate: &Gate, client: &mut Client<'_>, exchange: &Exchange) {
    let limits = &exchange.snapshot.config.limits;
    let sender = exchange.origin.client;
    let noted = gate.note_failed_authentication(sender.ip(), limits);
    let limit = match noted {
        Ok(()) => return,
        Err(Empty::Bucket { .. }) => LimitHit::FailedAuthentications,
        Err(Empty::Room { .. }) => LimitHit::FailingAddresses,
    };
    gate.metrics.limit_hits.note(limit);
    match sender {
        RequestSender::Connected(_) => {
            client.close_after();
            client.connection.retire();
        }
        RequestSender::Forwarded(_) => {}
    }
}

/// Writes an answer of the gateway's own paths.
async fn serve_own(
    gate: &Gate,
    client: &mut Client<'_>,
    stage: &mut Stage,
    answer: Answer,
    path: OwnPath,
    key: Option<Arc<KeyEntry>>,
) -> Result<(), Failure> {
    // It remains so if this task is dropped.
    let ending = Some(Ending::Cut);
    *stage = Stage::Served(Served { path, key, ending });
    let written = answer.write(client).await;
    if let Stage::Served(Served { ending, .. }) = stage {
        *ending = match &written {
            Ok(()) => None,
            Err(_) if gate.cut_off.is_cancelled() => Some(Ending::Cut),
            Err(_) => Some(Ending::ClientClosed),
        };
    }
    written
}

/// Whether the end of a request must have arrived before the request is judged: over HTTP/2 a body need not be announced (RFC 9113
/// section 8.1), so that one sent with a method that accepts none is refused before anything is charged or forwarded. A head that
/// is refused anyway is not waited for.
fn must_end_first(client: &Client<'_>, limits: &Limits) -> bool {
    let head = &client.head;
    client.is_http2()
        && !client.is_body_done()
        && !well_formed::takes_body(&head.method)
        && well_formed::check(head, limits).is_ok()
}

/// Waits for the end of a request without a body, at most for `patience`.
///
/// Returns why it is refused if it has a body or does not end.
///
/// # Errors
/// If the client has disconnected or reset the stream.
async fn end_without_body(
    client: &mut Client<'_>,
    patience: Duration,
) -> Result<Result<(), Malformed>, Failure> {
    if client.head.expects_continue {
        // Announces a body (RFC 9110 section 10.1.1), and does not send it unasked.
        return Ok(Err(Malformed::UnexpectedBody));
    }
    let end = async {
        while !client.is_body_done() {
            match client.read().await {
                Ok(None) => break,
                Ok(Some(part)) if part.is_empty() => {}
                Ok(Some(_)) => return Ok(Err(Malformed::UnexpectedBody)),
                Err(failure) => match failure.fault {
                    Fault::Client(ClientFault::Gone) => return Err(failure),
                    Fault::Client(ClientFault::Late) => return Ok(Err(Malformed::Late)),
                    _ => return Ok(Err(Malformed::Framing)),
                },
            }
        }
        Ok(Ok(()))
    };
    let end = tokio::time::timeout(patience, end);
    end.await.unwrap_or(Ok(Err(Malformed::Late)))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use tempfile::TempDir;

    use super::*;
    use crate::policy::http1::request::{RequestHead, RequestReader};
    use crate::policy::key_record::tests::key_of;
    use crate::proxy::admission::AdmissionTrace;
    use crate::proxy::client::Side;
    use crate::proxy::client::http1::Http1Side;
    use crate::proxy::connection::wire;
    use crate::proxy::failure::ServerFault;
    use crate::proxy::gate::tests::{config, gate};

    const ONE: NonZeroU32 = NonZeroU32::MIN;

    /// A gate whose tier `pro` allows one request at a time, and the head of a request with a key of that tier.
    async fn scene(directory: &TempDir) -> (Arc<Gate>, Box<RequestHead>) {
        let mut config = config("");
        config.tiers[0].1.concurrent = Some(ONE);
        let bounds = well_formed::bounds_of(&config.limits);
        let gate = gate(config, directory).await;
        let (key, record) = key_of("pro");
        gate.store.create_key(record).await.unwrap();
        let key = key.reveal();
        let text = format!("GET /a HTTP/1.1\r\nHost: a\r\nX-API-Key: {key}\r\n\r\n");
        let head = RequestReader::whole_head(&text, &bounds).unwrap();
        (gate, Box::new(head))
    }

    /// The forwarding of a request that was sent to its upstream.
    async fn sent(gate: &Arc<Gate>, head: &RequestHead) -> Forwarding {
        let (snapshot, mut trace) = (gate.snapshot(), AdmissionTrace::default());
        let arrived = gate.store.now();
        let admitted = admission::admit(gate, &snapshot, head, arrived, &mut trace).await;
        let Ok(Admitted::Forward(permit)) = admitted else {
            panic!("{admitted:?}");
        };
        let mut forwarding = Forwarding::begin(gate, permit, Instant::now(), Duration::ZERO);
        forwarding.charged.note_sent();
        forwarding
    }

    #[tokio::test]
    async fn a_request_whose_task_is_dropped_is_refunded_if_the_gateway_failed_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let (gate, head) = scene(&directory).await;
        for (fails, refunds) in [(false, 0), (true, 1)] {
            let (mut wire, _client) = wire::tests::connected(&gate).await;
            let (connection, forwarding) = (wire.connection.clone(), sent(&gate, &head).await);
            let side = Http1Side::new(&mut wire, &head, Duration::MAX);
            let mut client = Client::new(connection, head.clone(), Side::Http1(side));
            let recorded = Recorded {
                gate: &gate,
                exchange: Exchange::begin(&gate, &client),
                client: &mut client,
                stage: Stage::Forwarding(Box::new(forwarding)),
                served: None,
            };
            let ended = catch_unwind(AssertUnwindSafe(move || {
                let _recorded = recorded;
                assert!(!fails, "in the middle of a request");
            }));
            assert_eq!(ended.is_err(), fails);
            let counted = gate.metrics.refunds.with_label_values(&["cut"]).get();
            assert_eq!(counted, refunds, "refunds after a panic: {fails}");
        }
    }

    #[tokio::test]
    async fn the_slot_of_a_failed_request_is_released_before_its_answer_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let (gate, head) = scene(&directory).await;
        let (mut wire, _client) = wire::tests::connected(&gate).await;
        let (connection, mut forwarding) = (wire.connection.clone(), sent(&gate, &head).await);
        let side = Http1Side::new(&mut wire, &head, Duration::MAX);
        let client = Client::new(connection, head.clone(), Side::Http1(side));
        let key = forwarding.key.record.id;
        assert!(gate.rates.enter(key, ONE).is_none());
        let failure = Failure::server(ServerFault::Away, "answered 503");
        settlement::settle(&gate, &client, &failure, &mut forwarding).await;
        let ending = &forwarding.ending;
        assert!(matches!(
            ending,
            Some(Ending::Rejected(Rejection::Internal))
        ));
        assert!(gate.rates.enter(key, ONE).is_some());
    }

    fn bytes_of<A, B, F>(_: impl FnOnce(A, B) -> F) -> usize {
        size_of::<F>()
    }

    /// Each is a box of every request. A larger future costs more to copy into its box.
    #[test]
    fn the_futures_of_a_request_stay_small() {
        let serving =
            bytes_of::<&'static Arc<Gate>, &'static mut Client<'static>, _>(|gate, client| {
                serve(gate, client)
            });
        assert!(serving <= 2_300, "serve: {serving} bytes");
        let relaying = bytes_of::<Relay<'static, 'static>, (), _>(|relay, ()| relay.run());
        assert!(relaying <= 3_500, "Relay::run: {relaying} bytes");
        assert!(size_of::<Forwarding>() <= 480, "Forwarding");
    }
}

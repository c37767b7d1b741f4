//! A collector of traces: OTLP over HTTP, decoded by OpenTelemetry's own generated messages.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
pub use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A span as it was received.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedSpan {
    /// The trace, in hexadecimal digits.
    pub trace_id: String,
    /// The span's id.
    pub id: String,
    /// The parent's id; empty without one.
    pub parent: String,
    /// The span's name.
    pub name: String,
    /// The span's kind.
    pub kind: SpanKind,
    /// The start, in nanoseconds since 1970.
    pub began: u64,
    /// The end, in nanoseconds since 1970.
    pub ended: u64,
    /// Attributes, numbers as text.
    pub attributes: Vec<(String, String)>,
    /// Whether its status is an error.
    pub is_failed: bool,
}

impl ReceivedSpan {
    /// The value of an attribute.
    pub fn attribute(&self, key: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }
}

/// The interval at which a hanging collector checks whether it must still hang.
const HANG_LOOK: Duration = Duration::from_millis(10);

/// The reaction of a collector to an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collecting {
    /// Accepts it.
    Takes,
    /// Answers 200 and rejects this many spans of it ("partial success").
    Rejects(i64),
    /// Answers with this status.
    Refuses(u16),
    /// Does not answer until another reaction is set.
    Hangs,
}

#[derive(Debug)]
struct State {
    collecting: Collecting,
    heads: Vec<String>,
    bodies: Vec<Vec<u8>>,
    spans: Vec<ReceivedSpan>,
}

/// A running collector.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Collector {
    /// Starts a collector that accepts every export.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(State {
            collecting: Collecting::Takes,
            heads: Vec::new(),
            bodies: Vec::new(),
            spans: Vec::new(),
        }));
        let accepting = state.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let state = accepting.clone();
                tokio::spawn(async move {
                    let _ = serve(socket, &state).await;
                });
            }
        });
        Collector { address, state }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The URL for spans.
    pub fn url(&self) -> String {
        format!("http://{}/v1/traces", self.address)
    }

    /// Reacts in this way to exports from now on.
    pub fn set(&self, collecting: Collecting) {
        self.locked().collecting = collecting;
    }

    /// The spans that were taken so far.
    pub fn spans(&self) -> Vec<ReceivedSpan> {
        self.locked().spans.clone()
    }

    /// The heads of all exports so far, taken or not.
    pub fn heads(&self) -> Vec<String> {
        self.locked().heads.clone()
    }

    /// The bodies of all exports so far, taken or not.
    pub fn bodies(&self) -> Vec<Vec<u8>> {
        self.locked().bodies.clone()
    }
}

async fn serve(socket: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut socket = BufReader::new(socket);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if socket.read_line(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let length = head
            .lines()
            .find_map(|line| {
                let (name, value) = line.split_once(':')?;
                let is_length = name.eq_ignore_ascii_case("content-length");
                is_length.then(|| value.trim().parse().ok())?
            })
            .unwrap_or(0_usize);
        let mut body = vec![0; length];
        socket.read_exact(&mut body).await?;
        let output = || state.lock().unwrap_or_else(PoisonError::into_inner);
        output().heads.push(head);
        while output().collecting == Collecting::Hangs {
            tokio::time::sleep(HANG_LOOK).await;
        }
        let collecting = {
            let mut state = output();
            if state.collecting == Collecting::Takes {
                let request = ExportTraceServiceRequest::decode(body.as_slice());
                let request = request.expect("an ExportTraceServiceRequest");
                state.spans.extend(received(&request));
            }
            state.bodies.push(body);
            state.collecting
        };
        let (status, rejected_spans) = match collecting {
            Collecting::Takes | Collecting::Hangs => (200, None),
            Collecting::Rejects(count) => (200, Some(count)),
            Collecting::Refuses(status) => (status, None),
        };
        let partial_success = rejected_spans.map(|rejected_spans| ExportTracePartialSuccess {
            rejected_spans,
            error_message: "over the limit of this tenant".to_owned(),
        });
        let body = ExportTraceServiceResponse { partial_success }.encode_to_vec();
        let length = body.len();
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n");
        socket.write_all(head.as_bytes()).await?;
        socket.write_all(&body).await?;
    }
}

fn received(request: &ExportTraceServiceRequest) -> Vec<ReceivedSpan> {
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let spans = request
        .resource_spans
        .iter()
        .flat_map(|resource| &resource.scope_spans)
        .flat_map(|scope| &scope.spans);
    spans
        .map(|span| ReceivedSpan {
            trace_id: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            name: span.name.clone(),
            kind: span.kind(),
            began: span.start_time_unix_nano,
            ended: span.end_time_unix_nano,
            attributes: span
                .attributes
                .iter()
                .filter_map(|attribute| {
                    let value = match attribute.value.as_ref()?.value.as_ref()? {
                        Value::StringValue(text) => text.clone(),
                        Value::IntValue(number) => number.to_string(),
                        other => format!("{other:?}"),
                    };
                    Some((attribute.key.clone(), value))
                })
                .collect(),
            is_failed: span.status.as_ref().is_some_and(|status| status.code == 2),
        })
        .collect()
}

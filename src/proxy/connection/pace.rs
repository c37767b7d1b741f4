//! The pace of an HTTP/2 connection: how many of its requests are worked on at the same time, and whether more is read of
//! their answers while the client does not take what there is.
//!
//! A client can open a hundred streams and take nothing of what it asked for; each request under way holds some
//! buffers. A request that is not polled reads nothing: the upstream is then held back by its own TCP connection. So each request of a connection is polled in here. It first waits for its turn, in the order of
//! arrival; and one that is about to read its answer is left alone while answers before it wait for the client. One whose
//! answer waits already is always polled, so that it can be written.
//!
//! A connection begins with a part of its allowance, which each request that ends raises.
//!
//! Who waits longer than `limits.response_write` is given up: it goes on, and is ended as a client's that does not
//! read.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::IntCounterVec;
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep};

use crate::config::Limits;
use crate::policy::http2_memory::{Body, Shares, UNSEEN_BYTES};

/// Turns are counted in these.
const TURN_BYTES: u64 = 1024;

tokio::task_local! {
    static PRESENT: Arc<Stream>;
}

/// The requests of a connection.
#[derive(Debug)]
pub struct Pace {
    /// What one request may take of them.
    turns_max: u32,
    /// Turns that requests which end may still add.
    turns_left: AtomicU32,
    patience: Duration,
    turns: Semaphore,
    answers: Mutex<Answers>,
    limit_hits: IntCounterVec,
}

/// What of answers is in memory, and who waits for that to become less.
#[derive(Debug)]
struct Answers {
    bytes: u64,
    bytes_max: u64,
    /// What the bound may still grow by.
    growth_bytes: u64,
    waiting: Vec<Waker>,
}

/// A request under way.
#[derive(Debug)]
struct Stream {
    pace: Arc<Pace>,
    body: Mutex<Body>,
    held_bytes: AtomicU64,
    forwarded: AtomicBool,
    given_up: AtomicBool,
    paused_ms: AtomicU64,
}

/// A wait that has begun.
#[derive(Default)]
struct Pause(Option<(Instant, Pin<Box<Sleep>>)>);

impl Pace {
    /// Of a connection that has just begun.
    pub fn new(limits: &Limits, limit_hits: IntCounterVec) -> Arc<Pace> {
        let shares = Shares::of(limits.h2_memory);
        let first = shares.first();
        let turns = |bytes: u64| u32::try_from(bytes / TURN_BYTES).unwrap_or(u32::MAX);
        let (turns_max, turns_first) = (turns(shares.requests_bytes), turns(first.requests_bytes));
        Arc::new(Pace {
            turns_max: turns_first,
            turns_left: AtomicU32::new(turns_max - turns_first),
            patience: limits.response_write,
            turns: Semaphore::new(turns_first as usize),
            answers: Mutex::new(Answers {
                bytes: 0,
                bytes_max: first.answers_bytes,
                growth_bytes: shares.answers_bytes - first.answers_bytes,
                waiting: Vec::new(),
            }),
            limit_hits,
        })
    }

    /// Does a request's work when it is its turn. Cost beyond the work: a few uncontended locks of the connection's own.
    pub async fn run<F>(self: &Arc<Pace>, request_bytes: u64, work: impl FnOnce() -> F) -> F::Output
    where
        F: Future + Unpin,
    {
        let stream = Arc::new(Stream {
            pace: self.clone(),
            body: Mutex::default(),
            held_bytes: AtomicU64::new(0),
            forwarded: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            paused_ms: AtomicU64::new(0),
        });
        let turns = u32::try_from(request_bytes.div_ceil(TURN_BYTES)).unwrap_or(u32::MAX);
        let turns = turns.min(self.turns_max);
        let turn = match self.turns.try_acquire_many(turns) {
            Ok(turn) => Some(turn),
            Err(_) => {
                self.note_wait();
                let asked = Instant::now();
                let turn = tokio::time::timeout(self.patience, self.turns.acquire_many(turns));
                let turn = turn.await.ok().and_then(Result::ok);
                if turn.is_none() {
                    stream.given_up.store(true, Ordering::Relaxed);
                }
                stream.note_paused(asked.elapsed());
                turn
            }
        };
        let (mut work, mut pause) = (work(), Pause::default());
        let output = poll_fn(|context| stream.poll(&mut work, &mut pause, context)).await;
        drop(turn);
        if !stream.given_up.load(Ordering::Relaxed) {
            self.grow(turns / 2);
        }
        output
    }

    /// Raises the bounds by so many turns.
    fn grow(&self, turns: u32) {
        if self.turns_left.load(Ordering::Relaxed) == 0 {
            return;
        }
        let less = |left: u32| Some(left.saturating_sub(turns));
        let left = self
            .turns_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.turns
            .add_permits(left.unwrap_or(0).min(turns) as usize);
        let mut answers = self.answers.lock();
        let growth = answers.growth_bytes.min(u64::from(turns) * TURN_BYTES);
        answers.growth_bytes -= growth;
        answers.bytes_max += growth;
    }

    fn note_wait(&self) {
        self.limit_hits.with_label_values(&["h2_memory"]).inc();
    }

    /// Makes room for an answer that nobody has looked at, if there is any.
    fn admit(&self, waker: &Waker) -> bool {
        let mut answers = self.answers.lock();
        if answers.bytes <= answers.bytes_max {
            answers.bytes += UNSEEN_BYTES;
            return true;
        }
        if !answers.waiting.iter().any(|other| other.will_wake(waker)) {
            answers.waiting.push(waker.clone());
        }
        false
    }

    /// Takes a change of what is in memory.
    fn account(&self, less_bytes: u64, more_bytes: u64) {
        let woken = {
            let mut answers = self.answers.lock();
            answers.bytes = (answers.bytes + more_bytes).saturating_sub(less_bytes);
            if answers.bytes > answers.bytes_max {
                return;
            }
            std::mem::take(&mut answers.waiting)
        };
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Stream {
    fn poll<F: Future + Unpin>(
        self: &Arc<Stream>,
        work: &mut F,
        pause: &mut Pause,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        let reads =
            self.forwarded.load(Ordering::Relaxed) && self.held_bytes.load(Ordering::Relaxed) == 0;
        if !reads {
            return self.poll_work(work, context);
        }
        if self.pace.admit(context.waker()) {
            if let Some((since, _)) = pause.0.take() {
                self.note_paused(since.elapsed());
            }
        } else {
            let patience = self.pace.patience;
            let (_, over) = pause.0.get_or_insert_with(|| {
                self.pace.note_wait();
                (Instant::now(), Box::pin(tokio::time::sleep(patience)))
            });
            if !self.given_up.load(Ordering::Relaxed) && over.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.given_up.store(true, Ordering::Relaxed);
            self.pace.account(0, UNSEEN_BYTES);
        }
        let polled = self.poll_work(work, context);
        self.pace.account(UNSEEN_BYTES, 0);
        polled
    }

    fn poll_work<F: Future + Unpin>(
        self: &Arc<Stream>,
        work: &mut F,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        PRESENT.sync_scope(self.clone(), || Pin::new(work).poll(context))
    }

    fn note_paused(&self, paused: Duration) {
        let paused = u64::try_from(paused.as_millis()).unwrap_or(u64::MAX);
        self.paused_ms.fetch_add(paused, Ordering::Relaxed);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.pace.account(*self.held_bytes.get_mut(), 0);
    }
}

/// Notes that the present request has gone to its upstream: from now on it reads an answer.
pub fn note_forwarded() {
    let _ = PRESENT.try_with(|stream| stream.forwarded.store(true, Ordering::Relaxed));
}

/// A part of an answer, before it is sent.
#[derive(Debug)]
pub struct Part {
    /// As it came from the upstream.
    pub read_bytes: u64,
    /// As it goes on.
    pub passed_bytes: u64,
    /// The length of the upstream's whole body, if it has said it.
    pub announced_bytes: Option<u64>,
    /// What was sent of all parts.
    pub sent_bytes: u64,
    /// What compresses the rest takes so much memory.
    pub encoder_bytes: u64,
    /// Whether it is the last one.
    pub ended: bool,
}

/// Notes a part of the present request's answer.
pub fn note_part(part: Part) {
    let _ = PRESENT.try_with(|stream| {
        let mut body = stream.body.lock();
        body.seen_bytes += part.read_bytes;
        body.passed_bytes += part.passed_bytes;
        body.announced_bytes = part.announced_bytes;
        body.sent_bytes = part.sent_bytes;
        body.encoder_bytes = part.encoder_bytes;
        body.ended = part.ended;
        let held = body.held_bytes();
        let before = stream.held_bytes.swap(held, Ordering::Relaxed);
        stream.pace.account(before, held);
    });
}

/// For how long the present request was left alone because of its client. Zero over HTTP/1.
pub fn paused() -> Duration {
    let paused = PRESENT.try_with(|stream| stream.paused_ms.load(Ordering::Relaxed));
    Duration::from_millis(paused.unwrap_or(0))
}

/// Whether the present request is to be ended because its client reads nothing.
pub fn is_given_up() -> bool {
    PRESENT
        .try_with(|stream| stream.given_up.load(Ordering::Relaxed))
        .unwrap_or(false)
}

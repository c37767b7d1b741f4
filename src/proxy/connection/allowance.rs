//! The memory of an HTTP/2 connection's requests: how many of them are served at the same time, and whether more of their answers
//! is read while the client does not read what is available.
//!
//! A client can open a hundred streams and read none of the answers; each request in flight holds some buffers. So each first
//! waits for its turn, in the order of arrival, and no part of an answer is read while read parts of other streams wait for the
//! client: the upstream is then held back by its own connection. A part that was read is always written.
//!
//! A connection begins with a fraction of its allowance, which each request that ends increases. If a client's requests wait
//! longer than `limits.response_write`, the client is given up as one that does not read.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::IntCounterVec;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

use crate::config::Limits;
use crate::policy::http2_memory::{MemoryShares, UNSEEN_BYTES};
use crate::proxy::failure::Failure;

/// The unit in which turns are counted.
const TURN_BYTES: u64 = 1024;

/// The memory that the requests of a connection may hold.
#[derive(Debug)]
pub struct Allowance {
    /// The most turns that one request may take.
    turns_max: u32,
    /// The turns that future ends of requests may still add.
    turns_left: AtomicU32,
    patience: Duration,
    turns: Arc<Semaphore>,
    answers: Mutex<Answers>,
    limit_hits: IntCounterVec,
}

/// The bytes of answers in memory, and the readers that wait for room.
#[derive(Debug)]
struct Answers {
    bytes: u64,
    bytes_max: u64,
    /// The bytes by which the bound may still grow.
    growth_bytes: u64,
    waiting: Vec<Waker>,
}

impl Allowance {
    /// The allowance of a new connection.
    pub fn new(limits: &Limits, limit_hits: IntCounterVec) -> Arc<Allowance> {
        let shares = MemoryShares::of(limits.h2_memory);
        let first = shares.first();
        let turns = |bytes: u64| u32::try_from(bytes / TURN_BYTES).unwrap_or(u32::MAX);
        let (turns_max, turns_first) = (turns(shares.requests_bytes), turns(first.requests_bytes));
        Arc::new(Allowance {
            turns_max: turns_first,
            turns_left: AtomicU32::new(turns_max - turns_first),
            patience: limits.response_write,
            turns: Arc::new(Semaphore::new(turns_first as usize)),
            answers: Mutex::new(Answers {
                bytes: 0,
                bytes_max: first.answers_bytes,
                growth_bytes: shares.answers_bytes - first.answers_bytes,
                waiting: Vec::new(),
            }),
            limit_hits,
        })
    }

    /// Waits for the turn of a request of this size. Cost without waiting: a few uncontended locks of the connection.
    pub async fn turn(self: &Arc<Allowance>, request_bytes: u64) -> Arc<Turn> {
        let turns = u32::try_from(request_bytes.div_ceil(TURN_BYTES)).unwrap_or(u32::MAX);
        let turns = turns.min(self.turns_max);
        let (mut permit, mut paused) = (None, Duration::ZERO);
        match self.turns.clone().try_acquire_many_owned(turns) {
            Ok(taken) => permit = Some(taken),
            Err(_) => {
                self.note_wait();
                let asked = Instant::now();
                let taken = self.turns.clone().acquire_many_owned(turns);
                if let Ok(Ok(taken)) = tokio::time::timeout(self.patience, taken).await {
                    permit = Some(taken);
                }
                paused = asked.elapsed();
            }
        }
        Arc::new(Turn {
            allowance: self.clone(),
            turns,
            permit,
            held_bytes: AtomicU64::new(0),
            paused_ms: AtomicU64::new(millis(paused)),
            is_paused: AtomicBool::new(false),
        })
    }

    /// Raises the bounds by `turns`.
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

    /// Ready if there is room for a part of another answer; registers the waker otherwise.
    fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        let mut answers = self.answers.lock();
        if answers.bytes <= answers.bytes_max {
            return Poll::Ready(());
        }
        let waker = context.waker();
        if !answers.waiting.iter().any(|other| other.will_wake(waker)) {
            answers.waiting.push(waker.clone());
        }
        Poll::Pending
    }
}

/// Held bytes of an answer, released on drop.
#[derive(Debug)]
pub struct Held {
    turn: Arc<Turn>,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.turn
            .held_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
        let woken = {
            let mut answers = self.turn.allowance.answers.lock();
            answers.bytes = answers.bytes.saturating_sub(self.bytes);
            if answers.bytes > answers.bytes_max {
                return;
            }
            std::mem::take(&mut answers.waiting)
        };
        woken.into_iter().for_each(Waker::wake);
    }
}

/// The turn of a request, released on drop.
#[derive(Debug)]
pub struct Turn {
    allowance: Arc<Allowance>,
    turns: u32,
    /// `None` if its client is given up.
    permit: Option<OwnedSemaphorePermit>,
    held_bytes: AtomicU64,
    paused_ms: AtomicU64,
    is_paused: AtomicBool,
}

impl Turn {
    /// Whether the request waited too long, so that its client is given up.
    pub fn is_given_up(&self) -> bool {
        self.permit.is_none()
    }

    /// How long the request was paused because of the client.
    pub fn paused(&self) -> Duration {
        Duration::from_millis(self.paused_ms.load(Ordering::Relaxed))
    }

    /// Counts a time for which it was paused.
    pub fn note_paused(&self, paused: Duration) {
        self.paused_ms.fetch_add(millis(paused), Ordering::Relaxed);
    }

    /// Whether it is paused now.
    pub fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Relaxed)
    }

    /// Counts held bytes of its answer.
    pub fn hold(self: &Arc<Turn>, bytes: u64) -> Held {
        self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.allowance.answers.lock().bytes += bytes;
        Held {
            turn: self.clone(),
            bytes,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.permit.take().is_some() {
            self.allowance.grow(self.turns / 2);
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The reads of one answer, each delayed until there is room for its result; never over HTTP/1.
#[derive(Default)]
pub struct Reads {
    turn: Option<Arc<Turn>>,
    /// Since when there is no room, and how long that is waited for.
    pause: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Reads {
    /// The reads of a request with this turn.
    pub fn new(turn: Option<Arc<Turn>>) -> Reads {
        Reads { turn, pause: None }
    }

    /// Reads. Cancel-safe if `read` is.
    ///
    /// # Errors
    /// With the failure of `read`, or because the client does not read.
    pub async fn read<T>(
        &mut self,
        read: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let mut read = pin!(read);
        poll_fn(|context| match self.poll_room(context) {
            Poll::Ready(Ok(_room)) => read.as_mut().poll(context),
            Poll::Ready(Err(given_up)) => Poll::Ready(Err(given_up)),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Held>, Failure>> {
        let Some(turn) = &self.turn else {
            return Poll::Ready(Ok(None));
        };
        let allowance = &turn.allowance;
        // What an encoder holds lasts as long as the answer.
        let holds = turn.held_bytes.load(Ordering::Relaxed) > 0;
        if holds || allowance.poll_room(context).is_ready() {
            if let Some((since, _)) = self.pause.take() {
                turn.note_paused(since.elapsed());
                turn.is_paused.store(false, Ordering::Relaxed);
            }
            return Poll::Ready(Ok(Some(turn.hold(UNSEEN_BYTES))));
        }
        let (_, over) = self.pause.get_or_insert_with(|| {
            allowance.note_wait();
            turn.is_paused.store(true, Ordering::Relaxed);
            let over = tokio::time::sleep(allowance.patience);
            (Instant::now(), Box::pin(over))
        });
        over.as_mut()
            .poll(context)
            .map(|()| Err(Failure::given_up()))
    }
}

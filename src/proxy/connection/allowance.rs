//! What the requests of an HTTP/2 connection hold in memory: how many of them are worked on at the same time, and whether more is read
//! of their answers while the client does not take what there is.
//!
//! A client can open a hundred streams and take nothing of what it asked for; each request under way holds some buffers. So each of
//! them first waits for its turn, in the order of arrival, and nothing is read of an answer while those of other streams that have been
//! read wait for the client: the upstream is then held back by its own connection. What was read is always written on.
//!
//! A connection begins with a part of its allowance, which each request that ends raises. A client whose requests wait longer than
//! `limits.response_write` is given up as one that does not read.

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
use crate::policy::http2_memory::{Shares, UNSEEN_BYTES};
use crate::proxy::failure::Failure;

/// Turns are counted in these.
const TURN_BYTES: u64 = 1024;

/// What the requests of a connection may hold.
#[derive(Debug)]
pub struct Allowance {
    /// What one request may take of the turns.
    turns_max: u32,
    /// Turns that requests which end may still add.
    turns_left: AtomicU32,
    patience: Duration,
    turns: Arc<Semaphore>,
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

impl Allowance {
    /// Of a connection that has just begun.
    pub fn new(limits: &Limits, limit_hits: IntCounterVec) -> Arc<Allowance> {
        let shares = Shares::of(limits.h2_memory);
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

    /// Waits until it is the turn of a request of this size. Cost where nothing waits: a few uncontended locks of the connection's own.
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

    /// Whether there is room for a part of another answer; wakes who waits for it.
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

/// What is held of an answer, until it is dropped.
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

/// The turn of a request, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    allowance: Arc<Allowance>,
    turns: u32,
    /// `None` where its client is given up.
    permit: Option<OwnedSemaphorePermit>,
    held_bytes: AtomicU64,
    paused_ms: AtomicU64,
    is_paused: AtomicBool,
}

impl Turn {
    /// Whether the request waited for too long: its client is given up.
    pub fn is_given_up(&self) -> bool {
        self.permit.is_none()
    }

    /// For how long the request was left alone because of its client.
    pub fn paused(&self) -> Duration {
        Duration::from_millis(self.paused_ms.load(Ordering::Relaxed))
    }

    /// Whether it is left alone now.
    pub fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Relaxed)
    }

    /// Counts what is held of its answer.
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

/// Reads of one answer, each when there is room for what it may bring; over HTTP/1 at once.
#[derive(Default)]
pub struct Reads {
    turn: Option<Arc<Turn>>,
    /// Since when there is no room, and until when that is waited for.
    pause: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Reads {
    /// Of a request with this turn.
    pub fn new(turn: Option<Arc<Turn>>) -> Reads {
        Reads { turn, pause: None }
    }

    /// Reads. Can be dropped and called again where `read` can.
    ///
    /// # Errors
    /// With the failure of `read`, or because the client takes nothing.
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
        // What compresses an answer is held while it lasts.
        let holds = turn.held_bytes.load(Ordering::Relaxed) > 0;
        if holds || allowance.poll_room(context).is_ready() {
            if let Some((since, _)) = self.pause.take() {
                let paused = millis(since.elapsed());
                turn.paused_ms.fetch_add(paused, Ordering::Relaxed);
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

//! The memory of an HTTP/2 connection's requests: how many of them are served at the same time, and whether more of their answers
//! is read while the client does not read what is available.
//!
//! A client can open a hundred streams and read none of the answers; each request in flight holds some buffers. So each first
//! waits for its turn, in the order of arrival, and no part of an answer is read while read parts of other streams wait for the
//! client: the upstream is then held back by its own connection. A part that was read is always written.
//!
//! A connection begins with a fraction of its allowance. Each request that is permitted or answered increases the number of those that
//! are served, so that one without a key or a quota occupies little and a slow upstream keeps none out; the end of each answer increases
//! the memory of answers. A request that waits longer than `limits.response_write` for its turn is answered with 500; if an answer waits
//! as long for the client to read others, its client is given up as one that does not read. Encoders last as long as their answers,
//! which may be endless, so they delay others for a second at most.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

use crate::config::Limits;
use crate::policy::http2_memory::{MemoryShares, UNSEEN_BYTES};
use crate::policy::limit_hit::LimitHit;
use crate::proxy::failure::Failure;
use crate::proxy::received_body::ReceivedBody;
use crate::telemetry::limit_hits::LimitHits;

/// The unit in which turns are counted.
const TURN_BYTES: u64 = 1024;

/// How long an answer waits for the end of compressed ones before it is sent uncompressed.
const ENCODER_PATIENCE: Duration = Duration::from_secs(1);

/// The memory that the requests of a connection may hold.
#[derive(Debug)]
pub struct Allowance {
    /// The most turns that one request may take.
    turns_max: u32,
    /// The turns that future requests may still add.
    turns_left: AtomicU32,
    patience: Duration,
    turns: Arc<Semaphore>,
    answers: Mutex<Answers>,
    limit_hits: LimitHits,
}

/// The bytes of answers in memory, and the readers that wait for room.
#[derive(Debug)]
struct Answers {
    /// Of all kinds.
    bytes: u64,
    /// Those of encoders.
    encoder_bytes: u64,
    /// Whether an answer has waited for them for [`ENCODER_PATIENCE`], and none has ended since: others do not wait for them.
    encoders_last: bool,
    bytes_max: u64,
    /// The bytes by which the bound may still grow.
    growth_bytes: u64,
    waiting: Vec<Waker>,
}

/// Why an answer waits for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// The client does not read other answers.
    Client,
    /// The encoders of other answers.
    Encoders,
}

impl Answers {
    fn has_room(&self) -> bool {
        self.bytes <= self.bytes_max
    }

    /// Whether only encoders occupy the room.
    fn has_room_without_encoders(&self) -> bool {
        self.bytes - self.encoder_bytes <= self.bytes_max
    }
}

impl Allowance {
    /// The allowance of a new connection.
    pub fn new(limits: &Limits, limit_hits: LimitHits) -> Arc<Allowance> {
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
                encoder_bytes: 0,
                encoders_last: false,
                bytes_max: first.answers_bytes,
                growth_bytes: shares.answers_bytes - first.answers_bytes,
                waiting: Vec::new(),
            }),
            limit_hits,
        })
    }

    /// Waits for the turn of a request of this size, in which `kept_bytes` are for what is kept of its body. Cost without waiting: a few
    /// uncontended locks of the connection.
    pub async fn turn(self: &Arc<Allowance>, request_bytes: u64, kept_bytes: u64) -> Arc<Turn> {
        let turns = u32::try_from(request_bytes.div_ceil(TURN_BYTES)).unwrap_or(u32::MAX);
        let turns = turns.min(self.turns_max);
        let (mut permit, mut waited) = (None, Duration::ZERO);
        match self.turns.clone().try_acquire_many_owned(turns) {
            Ok(taken) => permit = Some(taken),
            Err(_) => {
                self.note_wait();
                let asked = Instant::now();
                let taken = self.turns.clone().acquire_many_owned(turns);
                if let Ok(Ok(taken)) = tokio::time::timeout(self.patience, taken).await {
                    permit = Some(taken);
                }
                waited = asked.elapsed();
            }
        }
        Arc::new(Turn {
            allowance: self.clone(),
            turns,
            permit,
            kept_bytes,
            kept: Mutex::new(None),
            waited,
            has_grown: AtomicBool::new(false),
            may_compress: AtomicBool::new(true),
            held_bytes: AtomicU64::new(0),
            paused_ms: Default::default(),
            is_paused: AtomicBool::new(false),
        })
    }

    /// Raises the number of turns.
    fn add_turns(&self, turns: u32) {
        if self.turns_left.load(Ordering::Relaxed) == 0 {
            return;
        }
        let less = |left: u32| Some(left.saturating_sub(turns));
        let left = self
            .turns_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.turns
            .add_permits(left.unwrap_or(0).min(turns) as usize);
    }

    /// Raises the bound of answers.
    fn add_room(&self, bytes: u64) {
        self.change(|answers| {
            let growth = answers.growth_bytes.min(bytes);
            answers.growth_bytes -= growth;
            answers.bytes_max += growth;
            growth > 0
        });
    }

    /// Makes a change, and wakes the answers that wait for room if it returns that there may be some.
    fn change(&self, change: impl FnOnce(&mut Answers) -> bool) {
        let mut answers = self.answers.lock();
        let woken = match change(&mut answers) {
            true => std::mem::take(&mut answers.waiting),
            false => Vec::new(),
        };
        drop(answers);
        woken.into_iter().for_each(Waker::wake);
    }

    fn note_wait(&self) {
        self.limit_hits.note(LimitHit::H2Memory);
    }

    /// Why there is no room for a part of another answer, if there is none; the waker is registered then. Room that only encoders
    /// occupy counts unless the answer `awaits_encoders`, which is in vain if they last.
    fn obstacle(
        &self,
        turn: &Turn,
        awaits_encoders: bool,
        context: &Context<'_>,
    ) -> Option<Obstacle> {
        let mut answers = self.answers.lock();
        let is_encoders = answers.has_room_without_encoders();
        let has_room = answers.has_room();
        if has_room || is_encoders && (!awaits_encoders || answers.encoders_last) {
            turn.may_compress.store(has_room, Ordering::Relaxed);
            return None;
        }
        let waker = context.waker();
        if !answers.waiting.iter().any(|other| other.will_wake(waker)) {
            answers.waiting.push(waker.clone());
        }
        Some(match is_encoders {
            true => Obstacle::Encoders,
            false => Obstacle::Client,
        })
    }

    /// Notes that an answer has waited for the encoders of others as long as it may.
    fn note_lasting_encoders(&self) {
        self.change(|answers| {
            answers.encoders_last = true;
            true
        });
    }
}

/// Held bytes of an answer, released on drop.
#[derive(Debug)]
pub struct Held {
    turn: Arc<Turn>,
    bytes: u64,
    /// The part of them that an encoder holds.
    encoder_bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.turn
            .held_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
        self.turn.allowance.change(|answers| {
            answers.bytes = answers.bytes.saturating_sub(self.bytes);
            answers.encoder_bytes = answers.encoder_bytes.saturating_sub(self.encoder_bytes);
            answers.encoders_last &= self.encoder_bytes == 0;
            answers.has_room_without_encoders()
        });
    }
}

/// The turn of a request, released on drop.
#[derive(Debug)]
pub struct Turn {
    allowance: Arc<Allowance>,
    turns: u32,
    /// `None` if it did not come in time.
    permit: Option<OwnedSemaphorePermit>,
    /// The part of it for what is kept of the request's body.
    kept_bytes: u64,
    /// What is kept beyond that.
    kept: Mutex<Option<OwnedSemaphorePermit>>,
    /// How long its request waited for it.
    pub waited: Duration,
    /// Whether its request has added to the allowance.
    has_grown: AtomicBool,
    may_compress: AtomicBool,
    held_bytes: AtomicU64,
    /// Because of the client, and because of the encoders of other answers.
    paused_ms: [AtomicU64; 2],
    is_paused: AtomicBool,
}

impl Turn {
    /// Whether it did not come in time, so that the request is not forwarded.
    pub fn is_missed(&self) -> bool {
        self.permit.is_none()
    }

    /// Whether this many bytes of the request's body may be kept for another attempt: beyond those of its turn, only what no other request
    /// waits for.
    pub fn may_keep(&self, bytes: usize) -> bool {
        let bytes = (bytes as u64).saturating_sub(self.kept_bytes);
        let turns = usize::try_from(bytes.div_ceil(TURN_BYTES)).unwrap_or(usize::MAX);
        let mut kept = self.kept.lock();
        let have = kept.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = u32::try_from(turns.saturating_sub(have)).unwrap_or(u32::MAX);
        if missing == 0 {
            return true;
        }
        let Ok(more) = self.allowance.turns.clone().try_acquire_many_owned(missing) else {
            return false;
        };
        match kept.as_mut() {
            Some(kept) => kept.merge(more),
            None => *kept = Some(more),
        }
        true
    }

    /// Notes that nothing of the request's body is kept.
    pub fn note_forgotten(&self) {
        *self.kept.lock() = None;
    }

    /// Whether there is room for an encoder of its answer.
    pub fn may_compress(&self) -> bool {
        self.may_compress.load(Ordering::Relaxed)
    }

    /// Lets the connection serve as many more requests as this one took, once: it was permitted, its answer begins, or it has ended.
    pub fn note_judged(&self) {
        if self.permit.is_some() && !self.has_grown.swap(true, Ordering::Relaxed) {
            self.allowance.add_turns(self.turns);
        }
    }

    /// How long the request was paused because of the client.
    pub fn paused_by_client(&self) -> Duration {
        let [by_client, _] = &self.paused_ms;
        Duration::from_millis(by_client.load(Ordering::Relaxed))
    }

    /// How long it was paused in all.
    pub fn paused(&self) -> Duration {
        let all = self.paused_ms.iter();
        Duration::from_millis(all.map(|paused| paused.load(Ordering::Relaxed)).sum())
    }

    /// Counts a time for which it was paused because of an obstacle.
    pub fn note_paused(&self, obstacle: Obstacle, paused: Duration) {
        let [by_client, by_encoders] = &self.paused_ms;
        let counter = match obstacle {
            Obstacle::Client => by_client,
            Obstacle::Encoders => by_encoders,
        };
        counter.fetch_add(millis(paused), Ordering::Relaxed);
    }

    /// Whether it is paused now.
    pub fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Relaxed)
    }

    /// Counts held bytes of its answer, of which an encoder holds `encoder_bytes`.
    pub fn hold(self: &Arc<Turn>, bytes: u64, encoder_bytes: u64) -> Held {
        self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut answers = self.allowance.answers.lock();
        answers.bytes += bytes;
        answers.encoder_bytes += encoder_bytes;
        drop(answers);
        Held {
            turn: self.clone(),
            bytes,
            encoder_bytes,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.note_judged();
        if self.permit.take().is_some() {
            self.allowance
                .add_room(u64::from(self.turns) * TURN_BYTES / 2);
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
    /// Whether an encoder may have to be made for what is read next.
    may_begin_encoder: bool,
    pause: Option<Pause>,
}

/// A wait for room.
struct Pause {
    since: Instant,
    /// The obstacle since an instant; what was before is counted.
    now: (Obstacle, Instant),
    /// Whether it has lasted for [`ENCODER_PATIENCE`].
    is_long: bool,
    over: Pin<Box<Sleep>>,
}

impl Pause {
    fn new(obstacle: Obstacle, patience: Duration) -> Pause {
        let since = Instant::now();
        let over = tokio::time::sleep_until(since + ENCODER_PATIENCE.min(patience));
        Pause {
            since,
            now: (obstacle, since),
            is_long: false,
            over: Box::pin(over),
        }
    }

    /// Counts the time that has passed.
    fn count(&mut self, turn: &Turn) {
        let (obstacle, since) = self.now;
        let now = Instant::now();
        turn.note_paused(obstacle, now - since);
        self.now = (obstacle, now);
    }
}

impl Reads {
    /// The reads of a request with this turn, whose answer may be compressed if `may_compress`.
    pub fn new(turn: Option<Arc<Turn>>, may_compress: bool) -> Reads {
        Reads {
            turn,
            may_begin_encoder: may_compress,
            pause: None,
        }
    }

    /// Notes that the answer has begun, compressed or not.
    pub fn note_begun(&mut self) {
        self.may_begin_encoder = false;
    }

    /// Reads; while this waits, what arrives of the `body` over HTTP/2 is taken out of the library. Cancel-safe if `read` is.
    ///
    /// # Errors
    /// With the failure of `read`, or because the client does not read.
    pub async fn read<T>(
        &mut self,
        read: impl Future<Output = Result<T, Failure>>,
        body: Option<&Mutex<ReceivedBody>>,
    ) -> Result<T, Failure> {
        let mut read = pin!(read);
        poll_fn(|context| match self.poll_room(context) {
            Poll::Ready(Ok(_room)) => read.as_mut().poll(context),
            Poll::Ready(Err(given_up)) => Poll::Ready(Err(given_up)),
            Poll::Pending => {
                let _ = body.map(|body| body.lock().poll_end(context));
                Poll::Pending
            }
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
        loop {
            let is_long = self.pause.as_ref().is_some_and(|pause| pause.is_long);
            let awaits_encoders = self.may_begin_encoder && !is_long;
            let obstacle = match holds {
                true => None,
                false => allowance.obstacle(turn, awaits_encoders, context),
            };
            if let Some(pause) = &mut self.pause {
                pause.count(turn);
            }
            let Some(obstacle) = obstacle else {
                break;
            };
            let pause = self.pause.get_or_insert_with(|| {
                allowance.note_wait();
                turn.is_paused.store(true, Ordering::Relaxed);
                Pause::new(obstacle, allowance.patience)
            });
            pause.now.0 = obstacle;
            ready!(pause.over.as_mut().poll(context));
            if pause.is_long {
                return Poll::Ready(Err(Failure::given_up()));
            }
            pause.is_long = true;
            pause.over.as_mut().reset(pause.since + allowance.patience);
            if obstacle == Obstacle::Encoders {
                allowance.note_lasting_encoders();
            }
        }
        if self.pause.take().is_some() {
            turn.is_paused.store(false, Ordering::Relaxed);
        }
        Poll::Ready(Ok(Some(turn.hold(UNSEEN_BYTES, 0))))
    }
}

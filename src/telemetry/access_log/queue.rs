//! Lines on their way to the disk: a buffer that requests fill and a thread empties.
//!
//! Only the first line wakes the thread, which lets others gather and then writes them all at once, so that most requests cost
//! neither a wake-up nor a system call.

use std::io::Write;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use prometheus::IntCounter;

/// The bytes of lines that may wait; the same number may be on their way to the disk.
const WAITING_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long lines gather, which is how much of its log a killed process may lose.
const GATHER: Duration = Duration::from_millis(25);
/// How long the end of the queue waits for its last lines to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The queue and its thread. Dropping it waits, at most a second, until the pending lines are written.
pub struct Queue(Arc<Shared>);

struct Shared {
    waiting: Mutex<Waiting>,
    /// There are lines, or the queue ends.
    filled: Condvar,
    /// Everything is written.
    emptied: Condvar,
    /// Lines that did not fit or could not be written.
    dropped_lines: IntCounter,
}

#[derive(Default)]
struct Waiting {
    text: Vec<u8>,
    lines: u64,
    closed: bool,
    written: bool,
}

impl Queue {
    /// An empty queue into `sink`; lost lines are added to `dropped_lines`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn new(sink: Box<dyn Write + Send>, dropped_lines: IntCounter) -> std::io::Result<Queue> {
        let shared = Arc::new(Shared {
            waiting: Mutex::default(),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            dropped_lines,
        });
        let writer = shared.clone();
        std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || writer.empty_into(sink))?;
        Ok(Queue(shared))
    }

    /// Queues a line, or drops it if there is no space.
    pub fn put(&self, line: &[u8]) {
        let mut waiting = self.0.waiting.lock();
        if waiting.text.len() + line.len() > WAITING_BYTES_MAX {
            drop(waiting);
            self.0.dropped_lines.inc();
            return;
        }
        waiting.text.extend_from_slice(line);
        waiting.lines += 1;
        let is_first = waiting.lines == 1;
        drop(waiting);
        if is_first {
            self.0.filled.notify_one();
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock();
        waiting.closed = true;
        self.0.filled.notify_one();
        let is_written = |waiting: &mut Waiting| !waiting.written;
        let emptied = &self.0.emptied;
        emptied.wait_while_for(&mut waiting, is_written, LAST_LINES);
    }
}

impl Shared {
    /// The thread's loop.
    fn empty_into(&self, mut sink: Box<dyn Write + Send>) {
        // The two buffers are swapped, so that neither is allocated for each round.
        let mut text = Vec::new();
        loop {
            let mut waiting = self.waiting.lock();
            let is_idle = |waiting: &mut Waiting| waiting.lines == 0 && !waiting.closed;
            self.filled.wait_while(&mut waiting, is_idle);
            let is_open = |waiting: &mut Waiting| !waiting.closed;
            self.filled.wait_while_for(&mut waiting, is_open, GATHER);
            mem::swap(&mut waiting.text, &mut text);
            let lines = mem::take(&mut waiting.lines);
            let closed = waiting.closed;
            drop(waiting);
            if sink.write_all(&text).and_then(|()| sink.flush()).is_err() {
                self.dropped_lines.inc_by(lines);
            }
            text.clear();
            if closed {
                // No line is queued while the queue is being dropped.
                self.waiting.lock().written = true;
                self.emptied.notify_all();
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps what is written, each write in an entry of its own, and fails on request.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Writes>>);

    #[derive(Default)]
    struct Writes {
        done: Vec<Vec<u8>>,
        failure: Option<std::io::ErrorKind>,
    }

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let mut kept = self.0.lock();
            if let Some(kind) = kept.failure {
                return Err(kind.into());
            }
            kept.done.push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_in_their_order_and_many_at_once() {
        let kept = Kept::default();
        let lost = IntCounter::new("lost", "lost").unwrap();
        let queue = Queue::new(Box::new(kept.clone()), lost).unwrap();
        let held = kept.0.lock();
        let mut expected = String::new();
        for number in 0..10_000 {
            let line = format!("{number}\n");
            queue.put(line.as_bytes());
            expected += &line;
        }
        drop(held);
        drop(queue);
        let written = &kept.0.lock().done;
        assert_eq!(String::from_utf8(written.concat()).unwrap(), expected);
        assert!(written.len() < 5_000, "{} writes", written.len());
    }

    #[test]
    fn what_finds_no_room_or_cannot_be_written_is_counted() {
        let kept = Kept::default();
        let lost = IntCounter::new("lost", "lost").unwrap();
        let queue = Queue::new(Box::new(kept.clone()), lost.clone()).unwrap();
        let held = kept.0.lock();
        let mebibyte = vec![b'x'; 1024 * 1024];
        // As many may be on their way as wait.
        for _ in 0..2 * WAITING_BYTES_MAX / mebibyte.len() + 3 {
            queue.put(&mebibyte);
        }
        let dropped = lost.get();
        assert!(dropped >= 3, "{dropped}");
        drop(held);
        kept.0.lock().failure = Some(std::io::ErrorKind::StorageFull);
        let mut patience = 0;
        while lost.get() == dropped && patience < 60_000 {
            queue.put(b"lost\n");
            patience += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(lost.get() > dropped);
    }
}

//! Lines on their way to a file or a stream: a buffer that is filled without waiting and a thread that empties it.
//!
//! The caller never waits for the disk or for a reader: lines that do not fit are dropped and counted. Only the first line wakes the
//! thread, which may let others gather and then writes them all at once, so that most lines cost neither a wake-up nor a system call.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::mem;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use prometheus::IntCounter;

use crate::clock::lasting;

/// The bytes of lines that may wait; the same number may be on their way to the disk.
const WAITING_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long [`LineQueue::flush`] waits for the last lines to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The queue and its thread. Dropping it waits, at most a second, until the pending lines are written.
pub struct LineQueue(Arc<Shared>);

struct Shared {
    waiting: Mutex<Waiting>,
    /// There are lines, or the queue ends.
    filled: Condvar,
    /// Everything is written.
    emptied: Condvar,
    /// How long lines gather.
    gather: Duration,
    /// Lines that did not fit or could not be written.
    dropped_lines: IntCounter,
}

#[derive(Default)]
struct Waiting {
    text: Vec<u8>,
    is_closed: bool,
    /// Whether the thread is writing what waited before.
    is_writing: bool,
}

/// A standard stream without the library's buffer and lock, which a blocked write would keep from the rest of the process.
///
/// # Errors
/// If the process has no descriptor left.
pub fn unbuffered(stream: impl AsFd) -> io::Result<File> {
    stream.as_fd().try_clone_to_owned().map(File::from)
}

impl LineQueue {
    /// An empty queue into `sink`, emptied by a thread named `name`. Lines gather for `gather` before they are written: how much a killed
    /// process may lose. Lost lines are added to `dropped_lines`. The result of each write of lines is passed to `note`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn new(
        name: &str,
        sink: Box<dyn Write + Send>,
        note: impl FnMut(io::Result<()>) + Send + 'static,
        gather: Duration,
        dropped_lines: IntCounter,
    ) -> io::Result<LineQueue> {
        let shared = Arc::new(Shared {
            waiting: Mutex::default(),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            gather,
            dropped_lines,
        });
        let (writer, task) = (shared.clone(), name.to_owned());
        let to = RefCell::new((sink, note));
        let write = move || {
            let (sink, note) = &mut *to.borrow_mut();
            writer.empty_into(sink, note);
        };
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || lasting::thread(&task, write))?;
        Ok(LineQueue(shared))
    }

    /// Queues a line, which ends with a line feed, or drops it if there is no space.
    pub fn put(&self, line: &[u8]) {
        let mut waiting = self.0.waiting.lock();
        if waiting.text.len() + line.len() > WAITING_BYTES_MAX {
            drop(waiting);
            self.0.dropped_lines.inc();
            return;
        }
        let is_first = waiting.text.is_empty();
        waiting.text.extend_from_slice(line);
        drop(waiting);
        if is_first {
            self.0.filled.notify_one();
        }
    }

    /// Waits, at most a second, until the pending lines are written.
    pub fn flush(&self) {
        let mut waiting = self.0.waiting.lock();
        let is_pending = |waiting: &mut Waiting| waiting.is_writing || !waiting.text.is_empty();
        let emptied = &self.0.emptied;
        emptied.wait_while_for(&mut waiting, is_pending, LAST_LINES);
    }
}

impl Drop for LineQueue {
    fn drop(&mut self) {
        self.0.waiting.lock().is_closed = true;
        self.0.filled.notify_one();
        self.flush();
    }
}

impl Shared {
    /// The thread's loop.
    fn empty_into(&self, sink: &mut dyn Write, note: &mut dyn FnMut(io::Result<()>)) {
        // Still set after a panic of the thread in an earlier call.
        self.waiting.lock().is_writing = false;
        // The two buffers are swapped, so that neither is allocated for each round.
        let mut text = Vec::new();
        loop {
            let mut waiting = self.waiting.lock();
            let is_idle = |waiting: &mut Waiting| waiting.text.is_empty() && !waiting.is_closed;
            self.filled.wait_while(&mut waiting, is_idle);
            if !self.gather.is_zero() {
                let is_open = |waiting: &mut Waiting| !waiting.is_closed;
                self.filled
                    .wait_while_for(&mut waiting, is_open, self.gather);
            }
            mem::swap(&mut waiting.text, &mut text);
            waiting.is_writing = true;
            drop(waiting);
            self.dropped_lines.inc_by(write_lines(sink, &text, note));
            text.clear();
            let mut waiting = self.waiting.lock();
            waiting.is_writing = false;
            self.emptied.notify_all();
            // No line is queued while the queue is being dropped.
            if waiting.is_closed && waiting.text.is_empty() {
                return;
            }
        }
    }
}

/// Writes lines until one cannot be written, and notes the result. Returns the number of those that are lost or torn.
fn write_lines(sink: &mut dyn Write, lines: &[u8], note: &mut dyn FnMut(io::Result<()>)) -> u64 {
    let (mut rest, mut result) = (lines, Ok(()));
    while !rest.is_empty() && result.is_ok() {
        match sink.write(rest) {
            Ok(0) => result = Err(ErrorKind::WriteZero.into()),
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => result = Err(error),
        }
    }
    if !lines.is_empty() {
        note(result);
    }
    rest.iter().filter(|byte| **byte == b'\n').count() as u64
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
        failure: Option<ErrorKind>,
        /// The bytes that still fit, if not any number.
        room: Option<usize>,
    }

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut kept = self.0.lock();
            if let Some(kind) = kept.failure {
                return Err(kind.into());
            }
            let taken = kept.room.unwrap_or(bytes.len()).min(bytes.len());
            kept.room = kept.room.map(|room| room - taken);
            if taken == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            kept.done.push(bytes[..taken].to_vec());
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn queue(kept: &Kept, lost: IntCounter) -> LineQueue {
        let gather = Duration::from_millis(25);
        LineQueue::new("lines", Box::new(kept.clone()), |_| {}, gather, lost).unwrap()
    }

    #[test]
    fn lost_and_torn_lines_are_counted_once() {
        let mut kept = Kept::default();
        kept.0.lock().room = Some(9);
        assert_eq!(
            write_lines(&mut kept, b"first\nsecond\nthird\n", &mut |_| {}),
            2
        );
        assert_eq!(write_lines(&mut kept, b"fourth\n", &mut |_| {}), 1);
        kept.0.lock().room = None;
        assert_eq!(write_lines(&mut kept, b"fifth\n", &mut |_| {}), 0);
        assert_eq!(kept.0.lock().done.concat(), b"first\nsecfifth\n");
    }

    #[test]
    fn flushed_lines_are_written() {
        let kept = Kept::default();
        let lost = IntCounter::new("lost", "lost").unwrap();
        let queue = queue(&kept, lost);
        queue.put(b"line\n");
        queue.flush();
        assert_eq!(kept.0.lock().done.concat(), b"line\n");
    }

    #[test]
    fn lines_are_written_after_a_panic() {
        struct Panicking(Kept, bool);
        impl Write for Panicking {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                assert!(std::mem::replace(&mut self.1, true), "wanted");
                self.0.write(bytes)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let kept = Kept::default();
        let sink = Box::new(Panicking(kept.clone(), false));
        let lost = IntCounter::new("lost", "lost").unwrap();
        let queue = LineQueue::new("lines", sink, |_| {}, Duration::ZERO, lost).unwrap();
        queue.put(b"lost\n");
        let is_busy = || {
            let waiting = queue.0.waiting.lock();
            waiting.is_writing || !waiting.text.is_empty()
        };
        let mut patience = 1_000;
        while is_busy() && patience > 0 {
            patience -= 1;
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!is_busy(), "a flush would wait for the panicked write");
        queue.put(b"line\n");
        queue.flush();
        assert_eq!(kept.0.lock().done.concat(), b"line\n");
    }

    #[test]
    fn lines_are_written_in_their_order_and_many_at_once() {
        let kept = Kept::default();
        let lost = IntCounter::new("lost", "lost").unwrap();
        let queue = queue(&kept, lost);
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
        let queue = queue(&kept, lost.clone());
        let held = kept.0.lock();
        let mebibyte = vec![b'x'; 1024 * 1024];
        // As many may be on their way as wait.
        for _ in 0..2 * WAITING_BYTES_MAX / mebibyte.len() + 3 {
            queue.put(&mebibyte);
        }
        let dropped = lost.get();
        assert!(dropped >= 3, "{dropped}");
        drop(held);
        kept.0.lock().failure = Some(ErrorKind::StorageFull);
        let mut patience = 0;
        while lost.get() == dropped && patience < 60_000 {
            queue.put(b"lost\n");
            patience += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(lost.get() > dropped);
    }
}

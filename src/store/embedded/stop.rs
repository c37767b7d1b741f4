//! The end of the helper threads.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Ends the helper threads, and wakes them for it.
#[derive(Default)]
pub(super) struct Stop {
    stopped: Mutex<bool>,
    signalled: Condvar,
}

impl Stop {
    /// Ends them.
    pub(super) fn signal(&self) {
        *self.stopped.lock() = true;
        self.signalled.notify_all();
    }

    /// Sleeps for `pause`; whether it is time to end.
    pub(super) fn sleep(&self, pause: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            self.signalled.wait_for(&mut stopped, pause);
        }
        *stopped
    }

    /// Whether it is time to end.
    pub(super) fn is_signalled(&self) -> bool {
        *self.stopped.lock()
    }
}

//! The wall clock as a value, and the boot-time clock beside it.
//!
//! Everything that decides takes the time as an argument; the parts that must read it (stores, the request path, the
//! command line) hold a [`Clock`]. Deadlines never use it: they run on tokio's monotonic clock. The boot-time clock
//! shows whether the wall clock was set ([`crate::policy::clock_trust`]). Periods of background work are here too.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

pub mod lasting;
pub mod timer;

/// A source of time: the system's, or one that a test moves.
#[derive(Clone)]
pub struct Clock {
    wall: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// The boot-time clock, or `None` to follow the wall clock, which then never leaps.
    boot: Option<Arc<dyn Fn() -> Duration + Send + Sync>>,
}

impl Clock {
    /// The operating system's clocks.
    pub fn system() -> Clock {
        Clock::from_fn(Timestamp::now).beside(since_boot)
    }

    /// A wall clock that returns the result of `read`, and a boot-time clock that follows it.
    pub fn from_fn(read: impl Fn() -> Timestamp + Send + Sync + 'static) -> Clock {
        Clock {
            wall: Arc::new(read),
            boot: None,
        }
    }

    /// The same wall clock beside a boot-time clock of its own.
    pub fn beside(self, boot: impl Fn() -> Duration + Send + Sync + 'static) -> Clock {
        Clock {
            boot: Some(Arc::new(boot)),
            ..self
        }
    }

    /// The present instant.
    pub fn now(&self) -> Timestamp {
        (self.wall)()
    }

    /// The present instant, and the time since the machine was started.
    pub fn now_and_since_boot(&self) -> (Timestamp, Duration) {
        let now = self.now();
        let boot = match &self.boot {
            Some(boot) => boot(),
            None => Duration::try_from(now.as_duration()).unwrap_or_default(),
        };
        (now, boot)
    }
}

/// The beginning of all periods of background tasks: periods that divide each other end together.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Waits for the next multiple of `period` since the first call in this process. So background tasks whose periods divide each other
/// wake an idle process together: a wake-up costs some 80 µs of CPU, whatever is done in it.
pub async fn next_tick(period: Duration) {
    let period = period.as_nanos().max(1);
    let left = period - ORIGIN.elapsed().as_nanos() % period;
    tokio::time::sleep(Duration::from_nanos_u128(left)).await;
}

/// An action that a task does once in each period, although it wakes more often or only just as often: periods end as those of
/// [`next_tick`] do, whereas a time that is measured from one wake-up to the next may fall short of a period by a millisecond.
#[derive(Debug)]
pub struct Periodic {
    period: Duration,
    done: Option<u128>,
}

impl Periodic {
    /// An action that is due when the present period ends.
    pub fn new(period: Duration) -> Periodic {
        let mut periodic = Periodic::due_now(period);
        periodic.is_due();
        periodic
    }

    /// An action that is due at once for the first time.
    pub fn due_now(period: Duration) -> Periodic {
        Periodic { period, done: None }
    }

    /// Whether the action is due; if so, it counts as done.
    pub fn is_due(&mut self) -> bool {
        let present = Some(ORIGIN.elapsed().as_nanos() / self.period.as_nanos().max(1));
        std::mem::replace(&mut self.done, present) != present
    }
}

/// `CLOCK_BOOTTIME`: cannot be set, and continues while the machine sleeps. Read from the kernel directly, not through the C library.
fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_action_is_due_once_in_each_period() {
        let hour = Duration::from_secs(3_600);
        let (mut first, mut later) = (Periodic::due_now(hour), Periodic::new(hour));
        assert_eq!([first.is_due(), first.is_due()], [true, false]);
        assert!(!later.is_due());
        // Each wake-up of the same period finds the action due, however exactly it comes.
        let period = Duration::from_millis(20);
        let mut action = Periodic::new(period);
        for _ in 0..5 {
            next_tick(period).await;
            assert!(action.is_due());
        }
    }
}

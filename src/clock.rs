//! The wall clock as a value, and the boot-time clock beside it.
//!
//! Everything that decides takes the time as an argument; the parts that must read it (stores, the request path, the
//! command line) hold a [`Clock`]. Deadlines never use it: they run on tokio's monotonic clock. The boot-time clock
//! shows whether the wall clock was set ([`crate::policy::clock_trust`]).

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

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

/// Returns at the next whole multiple of `period`, at least 1 ms, since this process first called it. So background tasks whose
/// periods divide each other wake an idle process together: a wake-up costs some 60 µs of CPU, whatever is done in it.
pub async fn next_tick(period: Duration) {
    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let period = period.as_nanos().max(1);
    let left = period - ORIGIN.elapsed().as_nanos() % period;
    tokio::time::sleep(Duration::from_nanos_u128(left)).await;
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

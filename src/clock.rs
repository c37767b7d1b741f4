//! The wall clock as a value.
//!
//! Everything that decides takes the time as an argument; what has to ask for it (stores, the request path, the
//! command line) holds a [`Clock`]. Deadlines never use it: they run on tokio's monotonic clock.

use std::sync::Arc;

use jiff::Timestamp;

/// A source of wall-clock time: the system's, or one that a test moves.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// The operating system's clock.
    pub fn system() -> Clock {
        Clock(Arc::new(Timestamp::now))
    }

    /// A clock that answers whatever `read` answers.
    pub fn from_fn(read: impl Fn() -> Timestamp + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(read))
    }

    /// The present instant.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

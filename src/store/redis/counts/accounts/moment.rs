//! Instants that take little memory.

use std::num::NonZeroU32;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// An instant to a second, in a quarter of the memory: each account may have one.
#[derive(Debug, Clone, Copy)]
pub struct Moment(NonZeroU32);

static FIRST_MOMENT: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Moment {
    /// The present one.
    pub fn now() -> Moment {
        let seconds = u32::try_from(FIRST_MOMENT.elapsed().as_secs()).unwrap_or(u32::MAX);
        Moment(NonZeroU32::MIN.saturating_add(seconds))
    }

    /// The instant, or up to a second before it.
    pub fn instant(self) -> Instant {
        *FIRST_MOMENT + Duration::from_secs(u64::from(self.0.get()) - 1)
    }
}

//! Successive deadlines on one timer.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep};

/// A timer that is set only when a deadline must be waited for, and reset only for an earlier one: an operation that completes at
/// once, as most do, never touches the runtime's timers.
#[derive(Debug, Default)]
pub struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Ready at `deadline`, or when polled after it.
    pub fn poll_until(&mut self, deadline: Instant, context: &mut Context<'_>) -> Poll<()> {
        let sleep = self
            .0
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        loop {
            match sleep.as_mut().poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) if Instant::now() >= deadline => return Poll::Ready(()),
                Poll::Ready(()) => sleep.as_mut().reset(deadline),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_deadline_is_kept_whether_it_is_earlier_or_later_than_the_one_before() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut timer = Timer::default();
        let mut polled_at = async |deadline: Instant| {
            poll_fn(|context| timer.poll_until(deadline, context)).await;
            Instant::now()
        };
        assert_eq!(polled_at(at(5)).await, at(5));
        assert_eq!(polled_at(at(5)).await, at(5));
        assert_eq!(polled_at(at(9)).await, at(9));
        let mut timer = Timer::default();
        let mut looks = 0;
        poll_fn(|context| {
            looks += 1;
            // First a later deadline, then an earlier one.
            let deadline = if looks == 1 { at(30) } else { at(12) };
            let polled = timer.poll_until(deadline, context);
            if looks == 1 {
                context.waker().wake_by_ref();
            }
            polled
        })
        .await;
        assert_eq!(Instant::now(), at(12));
    }
}

//! Timers that are set once for many deadlines.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use parking_lot::Mutex;
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

/// Timers that are kept for further waits; about 200 bytes each.
const KEPT_MAX: usize = 1_024;

/// Timers for many short waits at the same time, used again: one that is set already need not be set again for a later deadline.
#[derive(Debug, Default)]
pub struct Timers(Mutex<Vec<Timer>>);

impl Timers {
    /// The output of `future`, or `None` if it is not ready at `deadline`.
    pub async fn wait<F: Future>(&self, deadline: Instant, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut timer = None;
        let output = poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            let taken = || self.0.lock().pop().unwrap_or_default();
            let timer: &mut Timer = timer.get_or_insert_with(taken);
            timer.poll_until(deadline, context).map(|()| None)
        });
        let output = output.await;
        let mut kept = self.0.lock();
        if kept.len() < KEPT_MAX {
            kept.extend(timer);
        }
        output
    }
}

#[cfg(test)]
mod tests {
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

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_with_its_future_or_at_its_deadline_whatever_its_timer_was_set_for_before()
    {
        let (timers, start) = (Timers::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let never = std::future::pending::<()>;
        assert_eq!(timers.wait(at(2), never()).await, None);
        assert_eq!(Instant::now(), at(2));
        let soon = tokio::time::sleep_until(at(3));
        assert_eq!(timers.wait(at(5), soon).await, Some(()));
        assert_eq!(Instant::now(), at(3));
        let both = tokio::join!(timers.wait(at(9), never()), timers.wait(at(7), never()));
        assert_eq!(both, (None, None));
        assert_eq!(Instant::now(), at(9));
        assert_eq!(timers.0.lock().len(), 2);
        assert_eq!(timers.wait(at(1), async { 4 }).await, Some(4));
    }
}

//! A future that shares a task with busier ones, and is polled only when it was woken itself.
//!
//! A task that is woken polls all futures it waits for. For a connection these are, beside its requests, its end, its age and the end
//! of the gateway: hardly ever ready, and each poll takes locks. Here a poll without a wake-up of its own costs one load.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// The future, which must not be polled again once it was ready.
#[derive(Debug)]
pub struct OnWake<F> {
    inner: F,
    wake_ups: Option<Arc<WakeUps>>,
}

/// Notes a wake-up and passes it on.
#[derive(Debug)]
struct WakeUps {
    is_woken: AtomicBool,
    task: Waker,
}

impl<F: Future + Unpin> OnWake<F> {
    /// A future that is polled once at first, and after that only when it was woken.
    pub fn new(inner: F) -> OnWake<F> {
        OnWake {
            inner,
            wake_ups: None,
        }
    }
}

impl<F: Future + Unpin> Future for OnWake<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let task = context.waker();
        let present = self.wake_ups.take();
        let wake_ups = match present.filter(|wake_ups| wake_ups.task.will_wake(task)) {
            Some(wake_ups) if !wake_ups.is_woken.load(Ordering::Acquire) => {
                self.wake_ups = Some(wake_ups);
                return Poll::Pending;
            }
            Some(wake_ups) => wake_ups,
            // The first poll, or the first one by another task.
            None => Arc::new(WakeUps {
                is_woken: AtomicBool::new(false),
                task: task.clone(),
            }),
        };
        // Before the poll: a wake-up during it is for the next one. Exchanged, not stored, as in `wake_by_ref`: so the poll sees
        // what its wakers did before each wake-up that is taken here.
        wake_ups.is_woken.swap(false, Ordering::AcqRel);
        let waker = Waker::from(wake_ups.clone());
        self.wake_ups = Some(wake_ups);
        Pin::new(&mut self.inner).poll(&mut Context::from_waker(&waker))
    }
}

impl Wake for WakeUps {
    fn wake(self: Arc<WakeUps>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<WakeUps>) {
        self.is_woken.swap(true, Ordering::AcqRel);
        self.task.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn it_is_polled_at_first_and_when_it_was_woken_and_at_no_other_time() {
        let (polls, ready) = (AtomicUsize::new(0), Notify::new());
        let mut waiting = std::pin::pin!(ready.notified());
        let counted = poll_fn(|context| {
            polls.fetch_add(1, Ordering::Relaxed);
            waiting.as_mut().poll(context)
        });
        let mut seldom = OnWake::new(counted);
        for _ in 0..3 {
            let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut seldom).poll(context)));
            assert!(polled.await.is_pending());
        }
        assert_eq!(polls.load(Ordering::Relaxed), 1);
        ready.notify_one();
        seldom.await;
        assert_eq!(polls.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_wake_up_reaches_the_task_that_polled_it_last() {
        let ready = Arc::new(Notify::new());
        let waiting = ready.clone();
        let waiting = Box::pin(async move { waiting.notified().await });
        let mut seldom = OnWake::new(waiting);
        let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut seldom).poll(context)));
        assert!(polled.await.is_pending());
        let other = tokio::spawn(seldom);
        tokio::task::yield_now().await;
        ready.notify_one();
        other.await.unwrap();
    }
}

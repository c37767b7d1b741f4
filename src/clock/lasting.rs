//! Background work that lasts as long as the gateway: after a panic it is begun again.
//!
//! A panic is a fault of the program. It ends a request's task, which concerns that request; but if it ended a background task, refunds
//! would no longer be sent, or revocations no longer be read, until a restart that would have no visible cause.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures_util::FutureExt;

/// The pause before what panicked is begun again.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs the task that `begin` makes of `state` until it ends, and makes another whenever it panics.
pub async fn task<S: Clone, F: Future<Output = ()>>(name: &str, state: S, begin: impl Fn(S) -> F) {
    // In a block, so that a panic of `begin` itself is caught too.
    while caught(async { begin(state.clone()).await }).await.is_none() {
        log(name);
        tokio::time::sleep(PAUSE).await;
    }
}

/// The output of `task`, or `None` if it panics, which is logged.
pub async fn outcome<F: Future>(name: &str, task: F) -> Option<F::Output> {
    let output = caught(task).await;
    if output.is_none() {
        tracing::error!(task = name, "background work panicked");
    }
    output
}

async fn caught<F: Future>(task: F) -> Option<F::Output> {
    AssertUnwindSafe(task).catch_unwind().await.ok()
}

/// Calls `body` until it returns, and calls it again whenever it panics: [`task`] for a thread.
pub fn thread(name: &str, body: impl Fn()) {
    while catch_unwind(AssertUnwindSafe(&body)).is_err() {
        log(name);
        std::thread::sleep(PAUSE);
    }
}

fn log(task: &str) {
    tracing::error!(task, "background work panicked: it is begun again");
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_panics_is_begun_again_until_it_ends() {
        let begun = AtomicUsize::new(0);
        task("a task", &begun, |begun| {
            assert!(begun.fetch_add(1, Ordering::Relaxed) != 0, "wanted");
            async {
                tokio::task::yield_now().await;
                assert!(begun.fetch_add(1, Ordering::Relaxed) == 4, "wanted");
            }
        })
        .await;
        assert_eq!(begun.load(Ordering::Relaxed), 5);
        let called = AtomicUsize::new(0);
        thread("a thread", || {
            assert!(called.fetch_add(1, Ordering::Relaxed) == 1, "wanted");
        });
        assert_eq!(called.load(Ordering::Relaxed), 2);
    }
}

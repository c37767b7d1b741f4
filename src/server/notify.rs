//! What a service manager is told (`sd_notify`): ready, reloading, stopping. Without one, nothing happens.

use sd_notify::NotifyState;

/// The gateway serves with the configuration of this hash.
pub fn ready(hash: &str) {
    tell(&[
        // Another than before after an upgrade.
        NotifyState::MainPid(std::process::id()),
        NotifyState::Ready,
        NotifyState::Status(&format!("serving with configuration {hash}")),
    ]);
}

/// It reads its configuration; [`ready`] or [`refused`] follows.
pub fn reloading() {
    // systemd takes the answer to its SIGHUP for what follows this instant only (`Type=notify-reload`).
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell(&[NotifyState::Reloading, now]);
    }
}

/// It goes on with the configuration of this hash, because the file cannot be used.
pub fn refused(hash: &str) {
    let status = format!("the configuration file is refused; serving with {hash}");
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// It finishes the requests in flight.
pub fn stopping() {
    tell(&[
        NotifyState::Stopping,
        NotifyState::Status("finishing the requests in flight"),
    ]);
}

fn tell(state: &[NotifyState<'_>]) {
    // A manager that is slow to read must not hold requests up.
    if let Err(error) = tokio::task::block_in_place(|| sd_notify::notify(state)) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}

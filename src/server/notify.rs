//! Notifications to a service manager (`sd_notify`): ready, reloading, stopping. Without a service manager, nothing happens.

use sd_notify::NotifyState;

/// The gateway has started with the configuration of this hash, and after an upgrade the unit has this main process.
///
/// Only a start names the process: if a reload did, the predecessor could name itself again just after it was replaced, and its end
/// would be the end of the unit.
pub fn started(hash: &str) {
    send(&[
        NotifyState::MainPid(std::process::id()),
        NotifyState::Ready,
        NotifyState::Status(&serving(hash)),
    ]);
}

/// The gateway serves with another configuration, of this hash.
pub fn ready(hash: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(&serving(hash))]);
}

fn serving(hash: &str) -> String {
    format!("serving with configuration {hash}")
}

/// The gateway reads its configuration; [`ready`] or [`refused`] follows.
pub fn reloading() {
    // systemd accepts an answer to its SIGHUP only with a time after the signal (`Type=notify-reload`).
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        send(&[NotifyState::Reloading, now]);
    }
}

/// The gateway continues with the configuration of this hash, because the file cannot be used.
pub fn refused(hash: &str) {
    let status = format!("the configuration file is refused; serving with {hash}");
    send(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// The gateway waits for requests in flight and has no successor: a service manager takes this for the end of the whole unit.
pub fn stopping() {
    send(&[
        NotifyState::Stopping,
        NotifyState::Status("waiting for requests in flight"),
    ]);
}

fn send(state: &[NotifyState<'_>]) {
    // A slow service manager must not delay requests.
    if let Err(error) = tokio::task::block_in_place(|| sd_notify::notify(state)) {
        tracing::warn!(%error, "the service manager cannot be notified");
    }
}

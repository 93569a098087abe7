//! The service manager: readiness, reload, end, and the watchdog (`sd_notify(3)`).
//!
//! Without `NOTIFY_SOCKET` in the environment every call does nothing.

use std::time::Duration;

use sd_notify::NotifyState;

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}

/// The daemon listens and its objects are made; or a reload is done.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// A reload begins.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("cannot read the clock: {error}"),
    }
}

/// The daemon ends.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// Another process is the service from now on.
pub fn handed_over(pid: u32) {
    send(&[NotifyState::MainPid(pid)]);
}

/// All workers make progress.
pub fn alive() {
    send(&[NotifyState::Watchdog]);
}

/// How often the watchdog wants to hear of us: half of what it allows.
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|allowed| allowed / 2)
}

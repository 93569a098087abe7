//! An interruption from the keyboard, or a request to end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

static STOPPED: AtomicBool = AtomicBool::new(false);

/// How often a wait looks whether it was interrupted.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// From now on SIGINT and SIGTERM make [`pause`] and [`until`] fail, so that everything is put back on the way out.
///
/// # Errors
/// If no thread can be started.
pub fn watch() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("cannot watch for signals")?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || runtime.block_on(wait_for_signals()))?;
    Ok(())
}

async fn wait_for_signals() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        return;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    STOPPED.store(true, Ordering::Relaxed);
}

/// # Errors
/// If the run was interrupted.
pub fn check() -> Result<()> {
    if STOPPED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

/// Sleeps.
///
/// # Errors
/// If the run was interrupted meanwhile.
pub fn pause(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        check()?;
        std::thread::sleep(LOOK_EVERY.min(end.saturating_duration_since(Instant::now())));
    }
    check()
}

/// Waits until `ready` gives something.
///
/// # Errors
/// If that takes longer than `most`, or the run was interrupted; `what` names what did not happen.
pub fn until<T>(what: &str, most: Duration, mut ready: impl FnMut() -> Option<T>) -> Result<T> {
    let end = Instant::now() + most;
    loop {
        if let Some(value) = ready() {
            return Ok(value);
        }
        check()?;
        if Instant::now() > end {
            bail!("{what} did not happen within {} s", most.as_secs_f32());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

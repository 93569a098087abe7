//! An interrupt ends a command, and not the shell.

use std::sync::atomic::{AtomicBool, Ordering};

use windlass_sys::signals::Signals;

use crate::failure::Failure;

/// SIGINT (signal(7)).
const SIGINT: i32 = 2;
/// What a shell says of a program that an interrupt ended.
const ENDED: i32 = 128 + SIGINT;

static COME: AtomicBool = AtomicBool::new(false);

/// From here on an interrupt is looked for. A second one that nobody has looked for ends the process.
pub(super) fn watch() -> Result<(), Failure> {
    let signals = Signals::take_over(&[SIGINT]);
    let signals = signals.map_err(|errno| Failure::from(std::io::Error::from(errno)))?;
    let wait = move || {
        while signals.next().is_ok() {
            if COME.swap(true, Ordering::Relaxed) {
                std::process::exit(ENDED);
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)?;
    Ok(())
}

/// Whether one has come since the command began.
pub(super) fn has_come() -> bool {
    COME.load(Ordering::Relaxed)
}

/// What an interrupt sets.
pub(super) fn flag() -> &'static AtomicBool {
    &COME
}

/// A command begins.
pub(super) fn forget() {
    COME.store(false, Ordering::Relaxed);
}

//! How the control thread waits for its workers: [`Wait`].

use std::time::{Duration, Instant};

/// First and longest pause between two looks.
const PAUSE_FIRST: Duration = Duration::from_micros(20);
const PAUSE_LONGEST: Duration = Duration::from_millis(1);

/// Lets time pass.
pub(crate) trait Wait: Sync {
    /// Waits until `is_done`, which is asked now and then, or until `patience` has passed. True if it is done.
    fn until(&self, patience: Duration, is_done: &mut dyn FnMut() -> bool) -> bool;
}

/// Sleeps between two looks.
pub(crate) struct Asleep;

impl Wait for Asleep {
    fn until(&self, patience: Duration, is_done: &mut dyn FnMut() -> bool) -> bool {
        let start = Instant::now();
        let mut pause = PAUSE_FIRST;
        while !is_done() {
            if start.elapsed() >= patience {
                return false;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
        true
    }
}

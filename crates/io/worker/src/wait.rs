//! How the control thread waits for its workers: [`Wait`].

use std::time::{Duration, Instant};

/// Shortest and longest pause between two looks: in between, a quarter of the time so far.
const PAUSE_SHORTEST: Duration = Duration::from_micros(20);
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
        while !is_done() {
            let passed = start.elapsed();
            if passed >= patience {
                return false;
            }
            std::thread::sleep((passed / 4).clamp(PAUSE_SHORTEST, PAUSE_LONGEST));
        }
        true
    }
}

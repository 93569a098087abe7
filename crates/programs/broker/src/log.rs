//! What the broker says on stderr: a line for each event that somebody should hear of.
//!
//! # Limits
//! [`LINES_PER_S`] lines a second; the next second begins with the number of those that were left out. Requests of
//! ordinary users cause lines, so their number must not depend on them.

use std::fmt::Arguments;
use std::io::{Write, stderr};
use std::time::{Duration, Instant};

/// Lines written in one second.
pub const LINES_PER_S: u32 = 20;

/// Writes lines, and counts those of the running second.
#[derive(Debug)]
pub struct Log {
    verbose: bool,
    second: Instant,
    written: u32,
    left_out: u64,
}

impl Log {
    /// `verbose`: each process and rescue gets a line.
    pub fn new(verbose: bool) -> Self {
        Self {
            verbose,
            second: Instant::now(),
            written: 0,
            left_out: 0,
        }
    }

    /// Writes a line that somebody should hear of, or one of the details: see [`Say`](crate::Say).
    pub fn say(&mut self, is_notice: bool, line: Arguments<'_>) {
        if !is_notice && !self.verbose {
            return;
        }
        if self.second.elapsed() >= Duration::from_secs(1) {
            if self.left_out > 0 {
                // Nobody reads it: nothing to be done about that.
                let left_out = self.left_out;
                let _ = writeln!(stderr(), "windlass-broker: {left_out} lines left out");
            }
            (self.second, self.written, self.left_out) = (Instant::now(), 0, 0);
        }
        if self.written >= LINES_PER_S {
            self.left_out += 1;
            return;
        }
        self.written += 1;
        // As above.
        let _ = writeln!(stderr(), "windlass-broker: {line}");
    }
}

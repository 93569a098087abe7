//! What the broker says on stderr: a line for each event that somebody should hear of.
//!
//! # Limits
//! [`LINES_PER_S`] lines a second; the next second begins with the number of those that were left out. Requests of
//! ordinary users cause lines, so their number must not depend on them.

use std::fmt::Arguments;
use std::io::Write;
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
    /// `verbose`: each process, pair and rescue gets a line.
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
        if is_notice || self.verbose {
            self.write(line, Instant::now(), &mut std::io::stderr().lock());
        }
    }

    fn write(&mut self, line: Arguments<'_>, now: Instant, to: &mut impl Write) {
        if now.duration_since(self.second) >= Duration::from_secs(1) {
            if self.left_out > 0 {
                // Nobody reads it: nothing to be done about that.
                let _ = writeln!(to, "windlass-broker: {} lines left out", self.left_out);
            }
            (self.second, self.written, self.left_out) = (now, 0, 0);
        }
        if self.written >= LINES_PER_S {
            self.left_out += 1;
            return;
        }
        self.written += 1;
        // As above.
        let _ = writeln!(to, "windlass-broker: {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any number of refusals makes so many lines a second, and the next second tells how many there were.
    #[test]
    fn lines_are_limited() {
        let (mut log, mut out) = (Log::new(false), Vec::new());
        let now = Instant::now();
        for _ in 0..5_000 {
            log.write(format_args!("refused"), now, &mut out);
        }
        assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 20);
        log.write(
            format_args!("refused"),
            now + Duration::from_secs(1),
            &mut out,
        );
        let text = String::from_utf8(out).expect("text");
        assert!(text.contains("4980 lines left out"), "{text}");
    }
}

//! What the broker says on stderr: a line for each event that somebody should hear of.
//!
//! # Limits
//! [`LINES_PER_S`] lines a second; the next second begins with the number of those that were left out. Requests of
//! ordinary users cause lines, so their number must not depend on them.

use std::io::Write;
use std::time::{Duration, Instant};

use windlass_channel::Reason;

use crate::Event;

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

    /// Writes the line of an event, if it has one.
    pub fn event(&mut self, event: &Event<'_>) {
        if let Some(line) = line(event, self.verbose) {
            self.say(&line, Instant::now(), &mut std::io::stderr().lock());
        }
    }

    fn say(&mut self, line: &str, now: Instant, to: &mut impl Write) {
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

fn line(event: &Event<'_>, verbose: bool) -> Option<String> {
    match event {
        Event::Notice(line) => Some(line.to_string()),
        Event::Rescue {
            place: (slab, chan, side),
            outcome: Err(reason),
        } if verbose || *reason != Reason::Limit => Some(format!(
            "no rescue of slab {slab}, channel {chan}, side {side}: {}",
            reason.text()
        )),
        Event::Detail(line) if verbose => Some(line.to_string()),
        other if verbose => Some(format!("{other:?}")),
        _ => None,
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
            log.say("refused", now, &mut out);
        }
        assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 20);
        log.say("refused", now + Duration::from_secs(1), &mut out);
        let text = String::from_utf8(out).expect("text");
        assert!(text.contains("4980 lines left out"), "{text}");
    }
}

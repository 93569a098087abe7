//! Giving the core to receivers that the kernel schedules.
//!
//! # Model
//! The kernel's stack behind a TAP or a packet socket takes a frame at once, but the program that reads the socket needs a
//! core, and often it is this one. A worker that goes on fills the socket until it drops, or fills memory beyond the
//! cache, and then waits for its turn anyway. So after a visit that makes up [`FRAMES`] frames or [`BYTES`] bytes it yields
//! (`sched_yield`): a receiver that has something to read reads it while it is in the cache. Where nobody waits this costs
//! one system call.
//!
//! # Limits
//! Others than our receivers may wait for the core, too. A receiver is done soon, since it has only what we gave it; so a
//! yield that took longer than [`LONG_NS`] went to somebody with work of his own, and for [`REST`] times as long there is
//! no other: such a program gets at most a ninth of the core by our courtesy, beside what the scheduler gives it.

use windlass_frame::Tick;

/// Frames after which a worker yields.
pub const FRAMES: u64 = 16;
/// Bytes after which a worker yields.
pub const BYTES: u64 = 192 * 1024;
/// A yield that took longer went to somebody else's work.
pub const LONG_NS: u64 = 1_500_000;
/// How many times as long the worker keeps to itself after such a yield.
pub const REST: u64 = 8;

/// What one worker handed to the kernel since it last yielded.
#[derive(Debug, Default)]
pub struct Courtesy {
    frames: u64,
    bytes: u64,
    not_before: Tick,
}

impl Courtesy {
    /// Counts what the kernel took.
    #[inline]
    pub fn note(&mut self, frames: u64, bytes: u64) {
        self.frames += frames;
        self.bytes += bytes;
    }

    /// Whether it is time to yield. `now` is read only where enough was handed over.
    #[inline]
    pub fn is_due(&mut self, now: impl FnOnce() -> Tick) -> bool {
        if self.frames < FRAMES && self.bytes < BYTES {
            return false;
        }
        (self.frames, self.bytes) = (0, 0);
        now() >= self.not_before
    }

    /// Notes how long a yield took.
    pub fn took(&mut self, from: Tick, to: Tick) {
        let away = to.since(from);
        if away > LONG_NS {
            self.not_before = to.plus(away.saturating_mul(REST));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames or bytes make it due, once each time; a short yield changes nothing, a long one earns a rest.
    #[test]
    fn due_by_frames_or_bytes_and_never_while_resting() {
        let mut courtesy = Courtesy::default();
        let at = |ns| move || Tick(ns);
        courtesy.note(FRAMES - 1, BYTES - 1);
        assert!(!courtesy.is_due(|| unreachable!("the clock is not read")));
        courtesy.note(1, 0);
        assert!(courtesy.is_due(at(1_000)));
        assert!(!courtesy.is_due(at(1_000)));
        courtesy.took(Tick(1_000), Tick(1_000 + LONG_NS));
        courtesy.note(1, BYTES);
        assert!(courtesy.is_due(at(2_000_000)));
        courtesy.took(Tick(2_000_000), Tick(4_000_000));
        let end = 4_000_000 + REST * 2_000_000;
        courtesy.note(FRAMES, 0);
        assert!(!courtesy.is_due(at(end - 1)));
        courtesy.note(FRAMES, 0);
        assert!(courtesy.is_due(at(end)));
    }
}

//! Who did what, when, and from where.

use core::ffi::{c_int, c_void};

use windlass_memory::options::Key;

use crate::options;
use crate::sys;

/// Frames that a transaction has room for.
pub const FRAMES: usize = 25;
/// Frames that are searched for a signal's.
const DEPTH_MAX: usize = 256;

/// Kinds of transactions.
pub const ALLOCATED: u8 = 1;
/// See [`ALLOCATED`].
pub const FREED: u8 = 2;
/// See [`ALLOCATED`].
pub const FAILED: u8 = 3;

/// An allocation or a free. Without `audit` only its kind is known.
#[derive(Debug, Clone)]
#[repr(C)]
pub struct Transaction {
    /// Of CLOCK_MONOTONIC, in nanoseconds; 0: not recorded.
    pub time_ns: u64,
    /// The thread's number.
    pub thread: u32,
    /// [`ALLOCATED`], [`FREED`] or [`FAILED`].
    pub kind: u8,
    /// How many frames there are.
    pub depth: u8,
    /// Addresses behind the calls, the innermost first.
    pub stack: [usize; FRAMES],
}

impl Transaction {
    /// What happens now.
    pub fn now(kind: u8) -> Self {
        let frames = options::get(Key::Audit).min(FRAMES);
        if frames == 0 {
            return Self {
                time_ns: 0,
                thread: 0,
                kind,
                depth: 0,
                stack: [0; FRAMES],
            };
        }
        Self::with(kind, frames)
    }

    /// The same, with so many frames, whatever the options say.
    pub fn with(kind: u8, frames: usize) -> Self {
        let mut walk = Walk {
            stack: [0; FRAMES],
            depth: 0,
            depth_max: frames,
            seen: 0,
            has_signal: false,
        };
        walk.go();
        Self {
            time_ns: sys::now_ns(),
            thread: sys::thread(),
            kind,
            depth: walk.depth as u8,
            stack: walk.stack,
        }
    }

    /// The frames.
    pub fn frames(&self) -> &[usize] {
        &self.stack[..usize::from(self.depth).min(FRAMES)]
    }
}

/// Whether a signal handler is on this thread's stack.
pub fn is_in_handler() -> bool {
    let mut walk = Walk {
        stack: [0; FRAMES],
        depth: 0,
        depth_max: 0,
        seen: 0,
        has_signal: false,
    };
    walk.go();
    walk.has_signal
}

struct Walk {
    stack: [usize; FRAMES],
    depth: usize,
    depth_max: usize,
    seen: usize,
    has_signal: bool,
}

const GO_ON: c_int = 0;
const STOP: c_int = 5;

unsafe extern "C" {
    // libgcc's, which is loaded with the library. Neither allocates.
    fn _Unwind_Backtrace(
        each: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIPInfo(frame: *mut c_void, is_before: *mut c_int) -> usize;
    /// The linker's: where this library starts, and where its code ends.
    static __ehdr_start: u8;
    static etext: u8;
}

impl Walk {
    fn go(&mut self) {
        // SAFETY: the argument outlives the call, which passes it to `each`.
        unsafe { _Unwind_Backtrace(each, (&raw mut *self).cast()) };
    }

    fn see(&mut self, address: usize, is_signal: bool) -> bool {
        self.has_signal |= is_signal;
        self.seen += 1;
        let own = &raw const __ehdr_start as usize..&raw const etext as usize;
        if own.contains(&address) && self.depth == 0 {
            return true;
        }
        if self.depth < self.depth_max && address != 0 {
            self.stack[self.depth] = address;
            self.depth += 1;
        }
        let is_done = self.depth == self.depth_max && self.depth_max > 0;
        !is_done && !self.has_signal_only() && self.seen < DEPTH_MAX
    }

    /// A signal was looked for, and found.
    fn has_signal_only(&self) -> bool {
        self.depth_max == 0 && self.has_signal
    }
}

extern "C" fn each(frame: *mut c_void, walk: *mut c_void) -> c_int {
    // SAFETY: what `go` passed.
    let walk = unsafe { &mut *walk.cast::<Walk>() };
    let mut is_before = 0;
    // SAFETY: the frame that the unwinder is at.
    let address = unsafe { _Unwind_GetIPInfo(frame, &mut is_before) };
    if walk.see(address, is_before != 0) {
        GO_ON
    } else {
        STOP
    }
}

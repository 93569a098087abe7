//! Who called: a stack by its frame pointers, read without a fault.

use core::cell::Cell;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

use windlass_memory::{FRAMES, RAW_WORDS, RawRow};

use crate::arch;
use crate::sys;

/// Bytes of a stack that are looked at.
const WINDOW: usize = 16 << 10;
/// Bytes of a thread's stack that are checked as a whole. No system call for each sample: one `gettid` each cost 3 ns in every pair of calls.
const DEPTH_MAX: usize = 256 << 10;
const PAGE: usize = 4096;
const WORD: usize = size_of::<usize>();
/// Nothing is executed below.
const CODE_MIN: usize = 64 << 10;

/// The program's registers where it goes on after the call.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// Stack pointer.
    pub sp: usize,
    /// Frame pointer, or whatever the program has in that register.
    pub fp: usize,
    /// Instruction.
    pub pc: usize,
}

unsafe extern "C" {
    /// The loader's: where the first thread's stack begins.
    static __libc_stack_end: usize;
}

/// What could be seen of a stack.
pub struct Seen {
    caller: Caller,
    frames: [u64; FRAMES],
    depth: usize,
    /// What is below it can be read.
    end: usize,
}

impl Seen {
    /// Follows the frame pointers.
    pub fn from(caller: &Caller, bounds: &Bounds) -> Self {
        let mut seen = Self {
            caller: *caller,
            frames: [0; FRAMES],
            depth: 0,
            end: bounds.readable_end(caller.sp),
        };
        let (mut pc, mut fp, mut low) = (caller.pc, caller.fp, caller.sp);
        while seen.depth < FRAMES && pc >= CODE_MIN && !(low..seen.end).contains(&pc) {
            seen.frames[seen.depth] = pc as u64;
            seen.depth += 1;
            let is_frame = fp >= low && fp.is_multiple_of(WORD) && fp < seen.end - WORD;
            if !is_frame {
                break;
            }
            // A frame is the caller's frame pointer and where the caller goes on.
            low = fp + 2 * WORD;
            pc = seen.word(fp + WORD);
            fp = seen.word(fp);
        }
        seen
    }

    /// A word of the stack, below `end`.
    fn word(&self, at: usize) -> usize {
        // SAFETY: mapped, as [`Bounds`] knows; the stack belongs to this thread, which is here.
        unsafe { ptr::read_volatile(at as *const usize) }
    }

    /// Return addresses, the innermost first.
    pub fn frames(&self) -> &[u64] {
        &self.frames[..self.depth]
    }

    /// The caller's stack pointer.
    pub fn sp(&self) -> usize {
        self.caller.sp
    }

    /// Copies the top of the stack and the registers.
    pub fn copy(&self, row: &RawRow) {
        let words = ((self.end - self.caller.sp) / WORD).min(RAW_WORDS);
        row.sp.store(self.caller.sp as u64, Relaxed);
        row.fp.store(self.caller.fp as u64, Relaxed);
        row.pc.store(self.caller.pc as u64, Relaxed);
        row.len.store(words as u64, Relaxed);
        for (at, word) in row.words[..words].iter().enumerate() {
            word.store(self.word(self.caller.sp + at * WORD) as u64, Relaxed);
        }
    }
}

/// What is known of a thread's own stack.
pub struct Bounds {
    /// From here to its top it can be read, as long as the thread lives; 0: not known.
    low: Cell<usize>,
}

impl Bounds {
    /// Nothing is known.
    pub const fn new() -> Self {
        Self { low: Cell::new(0) }
    }

    /// The thread is another one.
    pub fn forget(&self) {
        self.low.set(0);
    }

    /// How far a stack can be read from `sp` on, at least.
    fn readable_end(&self, sp: usize) -> usize {
        // The C library has a thread's own block at the top of its stack; the first thread's block is elsewhere.
        let thread = arch::thread_pointer();
        // SAFETY: the loader's word, which never changes.
        let bottom = unsafe { __libc_stack_end };
        let top = if thread > sp { thread } else { bottom } / WORD * WORD;
        let window = top.min(sp + WINDOW);
        let low = self.low.get();
        if low != 0 && (low..top).contains(&sp) {
            return window;
        }
        // The page of `sp` is there. A coroutine's stack may end after it: the kernel knows, and no fault is risked.
        let first = (sp + 1).next_multiple_of(PAGE);
        let is_readable = |end: usize| end <= first || sys::is_readable(first, end - first);
        if top > sp && top - sp <= DEPTH_MAX && is_readable(top.next_multiple_of(PAGE)) {
            self.low.set(sp / PAGE * PAGE);
            return window;
        }
        if top > sp && is_readable(window.next_multiple_of(PAGE)) {
            return window;
        }
        first
    }
}

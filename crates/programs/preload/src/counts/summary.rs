//! What a process says of its connections as it ends, where `windlass run -v` asks for it: one line on stderr.
//!
//! # Limits
//! A process that a signal kills says nothing. Nor does one whose descriptor 2 is another file than at its start: a
//! program may have opened one of its own there.

use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use windlass_channel::Reason;

use crate::counts::counters::{self, Counter, Text};
use crate::options;
use crate::sys::kernel;

/// Connections that carried bytes and stayed on, or went back to, the kernel, by the number of their reason.
static ON_KERNEL: [AtomicU32; REASONS] = [const { AtomicU32::new(0) }; REASONS];
/// Numbers of reasons that are told apart.
const REASONS: usize = 64;
static STDERR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

unsafe extern "C" {
    /// The file name of the program, by glibc.
    static program_invocation_short_name: *const c_char;
}

pub fn start() {
    if options::summary() != 0
        && let Some(file) = stderr()
    {
        for (word, value) in STDERR.iter().zip(file) {
            word.store(value, Relaxed);
        }
    }
}

fn stderr() -> Option<[u64; 2]> {
    let status = kernel::status(2).ok()?;
    Some([status.st_dev, status.st_ino])
}

/// A connection that carried bytes has ended, or its process does, for this reason on the kernel.
pub fn count(reason: Reason) {
    if let Some(count) = ON_KERNEL.get(reason as usize) {
        count.fetch_add(1, Relaxed);
    }
}

/// In a forked child: its connections are counted anew.
pub fn clear() {
    ON_KERNEL.iter().for_each(|count| count.store(0, Relaxed));
}

/// Writes the line, unless nothing was connected. Before the counters are written, which clears them.
pub fn write() {
    let before = STDERR.each_ref().map(|word| word.load(Relaxed));
    let (connected, out) = (counters::get(Counter::Connected), libc::POLLOUT as u32);
    // Else a write would wait, or raise SIGPIPE.
    let takes_text = || kernel::poll_one(2, out) == out;
    if options::summary() == 0 || connected == 0 || stderr() != Some(before) || !takes_text() {
        return;
    }
    // SAFETY: glibc sets it before any constructor runs.
    let name = unsafe { program_invocation_short_name };
    // SAFETY: a C string that lives as long as the process.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let name = std::str::from_utf8(name).unwrap_or("?");
    let pid = std::process::id();
    let mut text = Text::new();
    let get = counters::get;
    text.add(format_args!(
        "windlass: {name}[{pid}]: {connected} connected, {} joined; bytes sent: {} by ring, {} by kernel; \
         received: {} by ring, {} by kernel",
        get(Counter::Joins),
        get(Counter::RingBytesSent),
        get(Counter::KernelBytesSent),
        get(Counter::RingBytesReceived),
        get(Counter::KernelBytesReceived),
    ));
    let counts = ON_KERNEL.iter().map(|count| count.load(Relaxed));
    let mut separator = "; on the kernel: ";
    for (count, reason) in counts.zip(0..).filter(|(count, _)| *count > 0) {
        let word = Reason::from_u8(reason).word();
        text.add(format_args!("{separator}{count} {word}"));
        separator = ", ";
    }
    text.add(format_args!("\n"));
    text.write_to(2);
}

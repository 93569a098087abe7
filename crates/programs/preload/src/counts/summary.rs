//! What a process says of its connections as it ends, where `windlass run -v` asks for it: one line on stderr.
//!
//! # Limits
//! A process that a signal kills says nothing. Nor does one whose descriptor 2 is another file than at its start: a
//! program may have opened one of its own there.

use std::ffi::{CStr, c_char};
use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use windlass_channel::Reason;

use crate::counts::counters::{self, Counter, Text};
use crate::options;
use crate::sys::real;

/// Connections that carried bytes and stayed on, or went back to, the kernel, by the number of their reason.
static ON_KERNEL: [AtomicU32; REASONS] = [const { AtomicU32::new(0) }; REASONS];
/// Numbers of reasons that are told apart.
const REASONS: usize = 64;
/// Device and inode of stderr at the start.
static STDERR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

unsafe extern "C" {
    /// The file name of the program, by glibc.
    static program_invocation_short_name: *const c_char;
}

/// Called by the constructor.
pub fn start() {
    if options::summary() != 0
        && let Some(file) = stderr()
    {
        for (word, value) in STDERR.iter().zip(file) {
            word.store(value, Relaxed);
        }
    }
}

/// Device and inode behind descriptor 2.
fn stderr() -> Option<[u64; 2]> {
    // SAFETY: zeroes are a valid `stat`.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a live variable.
    let result = unsafe { libc::fstat(2, &mut status) };
    (result == 0).then_some([status.st_dev, status.st_ino])
}

/// Whether a write to descriptor 2 neither waits nor raises SIGPIPE.
fn takes_text() -> bool {
    let mut entry = libc::pollfd {
        fd: 2,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one entry, of this stack.
    unsafe { real::poll(&raw mut entry, 1, 0) == 1 && entry.revents == libc::POLLOUT }
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
    let connected = counters::get(Counter::Connected);
    if options::summary() == 0 || connected == 0 || stderr() != Some(before) || !takes_text() {
        return;
    }
    // SAFETY: glibc sets it before any constructor runs.
    let name = unsafe { program_invocation_short_name };
    // SAFETY: a C string that lives as long as the process.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let name = std::str::from_utf8(name).unwrap_or("?");
    let pid = std::process::id();
    let [
        joined,
        ring_sent,
        ring_received,
        kernel_sent,
        kernel_received,
    ] = [
        Counter::Joins,
        Counter::RingBytesSent,
        Counter::RingBytesReceived,
        Counter::KernelBytesSent,
        Counter::KernelBytesReceived,
    ]
    .map(counters::get);
    let mut text = Text::default();
    let _ = write!(
        text,
        "windlass: {name}[{pid}]: {connected} connected, {joined} joined; bytes sent: {ring_sent} by ring, \
         {kernel_sent} by kernel; received: {ring_received} by ring, {kernel_received} by kernel"
    );
    let counts = ON_KERNEL
        .iter()
        .zip(0..)
        .map(|(count, reason)| (count.load(Relaxed), Reason::from_u8(reason).word()));
    let mut separator = "; on the kernel: ";
    for (count, word) in counts.filter(|(count, _)| *count > 0) {
        let _ = write!(text, "{separator}{count} {word}");
        separator = ", ";
    }
    let _ = writeln!(text);
    text.write_to(2);
}

//! What this process counted, and what it says of it: nothing, unless asked by `WINDLASS_COUNTERS` or `WINDLASS_LOG`.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::io::{Cursor, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::options;
use crate::sys::kernel;

macro_rules! counters {
    ($($(#[doc = $text:literal])* $name:ident = $word:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter {
            $($(#[doc = $text])* $name,)*
        }

        /// Names as they are written, in the order of [`Counter`].
        pub const NAMES: &[&str] = &[$($word),*];
    };
}

counters! {
    /// Records made: sockets and epoll instances seen.
    Sockets = "sockets";
    /// Connected sockets that moved bytes.
    Connected = "connected";
    /// Unknown numbers that turned out to be sockets.
    Found = "sockets_found";
    Joins = "joined";
    Refused = "joins_refused";
    RingBytesSent = "ring_tx_bytes";
    RingBytesReceived = "ring_rx_bytes";
    KernelBytesSent = "kernel_tx_bytes";
    KernelBytesReceived = "kernel_rx_bytes";
    /// Tracked connections whose ends were not proved to be one connection, and not tried any more.
    Unproved = "joins_unproved";
    /// Messages of tracked connections that were made to go by the kernel: it forgets what is silent.
    Refreshes = "refreshes";
    /// Changes by `epoll_ctl` that the kernel was not told of at once.
    Kept = "epoll_changes_kept";
}

static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

#[inline]
pub fn add(counter: Counter, amount: u64) {
    COUNTS[counter as usize].fetch_add(amount, Ordering::Relaxed);
}

/// How much was counted since the start, or since the counts were written.
pub fn get(counter: Counter) -> u64 {
    COUNTS[counter as usize].load(Ordering::Relaxed)
}

/// In a forked child: its counts begin anew.
pub fn clear() {
    let clear = |count: &AtomicU64| count.store(0, Ordering::Relaxed);
    COUNTS.iter().for_each(clear);
}

/// A piece of text without memory of its own; what does not fit is cut off.
pub struct Text(Cursor<[u8; 4_096]>);

impl Text {
    pub fn new() -> Self {
        Self(Cursor::new([0; 4_096]))
    }

    pub fn add(&mut self, text: fmt::Arguments<'_>) {
        let _ = self.0.write_fmt(text);
    }

    /// Writes it to a descriptor; what fails is not said.
    pub fn write_to(&self, fd: c_int) {
        let length = self.0.position() as usize;
        kernel::write(fd, self.0.get_ref().get(..length).unwrap_or_default());
    }

    fn append_to(&self, path: &CStr) {
        if let Ok(file) = kernel::open_to_append(path) {
            self.write_to(file as c_int);
            kernel::close(file);
        }
    }
}

/// Appends the counts that are not zero to the file of `WINDLASS_COUNTERS`, and begins anew.
pub fn write() {
    let Some(path) = options::counters() else {
        return;
    };
    let mut text = Text::new();
    for (name, count) in NAMES.iter().zip(&COUNTS) {
        let value = count.swap(0, Ordering::Relaxed);
        if value != 0 {
            text.add(format_args!("{name} {value}\n"));
        }
    }
    text.add(format_args!("processes 1\n"));
    text.append_to(path);
}

/// Appends a line to the file of `WINDLASS_LOG`, if there is one.
pub fn say(line: fmt::Arguments<'_>) {
    if let Some(path) = options::log() {
        let mut text = Text::new();
        // SAFETY: takes nothing.
        let pid = unsafe { libc::getpid() };
        text.add(format_args!("{pid} {line}\n"));
        text.append_to(path);
    }
}

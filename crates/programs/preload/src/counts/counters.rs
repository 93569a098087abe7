//! What this process counted, and what it says of it: nothing, unless asked by `WINDLASS_COUNTERS` or `WINDLASS_LOG`.

use std::ffi::{CStr, c_int};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::options;
use crate::sys::real;

macro_rules! counters {
    ($($(#[doc = $text:literal])+ $name:ident = $word:literal;)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter {
            $($(#[doc = $text])+ $name,)*
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
    /// Joins of a connection.
    Joins = "joined";
    /// Joins refused.
    Refused = "joins_refused";
    /// Bytes sent by ring.
    RingBytesSent = "ring_tx_bytes";
    /// Bytes received by ring.
    RingBytesReceived = "ring_rx_bytes";
    /// Bytes of joined sockets sent by the kernel.
    KernelBytesSent = "kernel_tx_bytes";
    /// Bytes of joined sockets received by the kernel.
    KernelBytesReceived = "kernel_rx_bytes";
    /// Sleeps in the kernel on a joined socket.
    Sleeps = "sleeps";
    /// Tracked connections whose ends were not proved to be one connection, and not tried any more.
    Unproved = "joins_unproved";
    /// Messages of tracked connections that were made to go by the kernel: it forgets what is silent.
    Refreshes = "refreshes";
    /// Changes by `epoll_ctl` that the kernel was not told of at once.
    Kept = "epoll_changes_kept";
}

static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Counts.
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
    COUNTS
        .iter()
        .for_each(|count| count.store(0, Ordering::Relaxed));
}

/// A piece of text without memory of its own; what does not fit is cut off.
pub struct Text {
    bytes: [u8; 4_096],
    length: usize,
}

impl Default for Text {
    fn default() -> Text {
        Text {
            bytes: [0; 4_096],
            length: 0,
        }
    }
}

impl Text {
    /// Writes it to a descriptor; what fails is not said.
    pub fn write_to(&self, fd: c_int) {
        // SAFETY: the buffer has at least `length` bytes.
        unsafe { real::write(fd, self.bytes.as_ptr().cast(), self.length) };
    }

    fn append_to(&self, path: &CStr) {
        let before = real::errno();
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
        // SAFETY: a C string.
        let fd = unsafe { real::open(path.as_ptr(), flags, 0o644) };
        if fd >= 0 {
            self.write_to(fd);
            // SAFETY: opened above.
            unsafe { real::close(fd) };
        }
        real::set_errno(before);
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.length..).unwrap_or_default();
        let fit = room.len().min(text.len());
        if let (Some(to), Some(from)) = (room.get_mut(..fit), text.as_bytes().get(..fit)) {
            to.copy_from_slice(from);
        }
        self.length += fit;
        Ok(())
    }
}

/// Appends the counts that are not zero to the file of `WINDLASS_COUNTERS`, and begins anew.
pub fn write() {
    let Some(path) = options::counters() else {
        return;
    };
    let mut text = Text::default();
    for (name, count) in NAMES.iter().zip(&COUNTS) {
        let value = count.swap(0, Ordering::Relaxed);
        if value != 0 {
            let _ = writeln!(text, "{name} {value}");
        }
    }
    let _ = writeln!(text, "processes 1");
    text.append_to(path);
}

/// Appends a line to the file of `WINDLASS_LOG`, if there is one.
pub fn say(line: fmt::Arguments<'_>) {
    if let Some(path) = options::log() {
        let mut text = Text::default();
        // SAFETY: takes nothing.
        let pid = unsafe { libc::getpid() };
        let _ = writeln!(text, "{pid} {line}");
        text.append_to(path);
    }
}

//! One-shot members: whether the kernel has fired one.
//!
//! # Model
//! The kernel disarms a one-shot member when it reports it, and names it by the program's data only, which several members may
//! share. So each instance that ever had such a member keeps the data of what the kernel reported last ([`Fired`]), and a
//! member knows how much that was when it was armed. Data that did not appear since is certainty; where it did,
//! or where the list is too short, the kernel shows each member's mask in `/proc/self/fdinfo` (proc(5)).
//!
//! # Synchronization
//! An event is noted after the call that brought it and before the program sees it. Bytes of the ring become readable only once
//! those of the kernel were taken, so whoever could be told of both is told of the first before.

use std::ffi::c_int;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::kernel;

/// What is kept of the kernel's reports.
const KEPT: usize = 256;
/// Bits of a member's mask that stay when the kernel disarms it: `EP_PRIVATE_BITS` in fs/eventpoll.c.
const PRIVATE: u32 =
    (libc::EPOLLWAKEUP | libc::EPOLLONESHOT | libc::EPOLLET) as u32 | libc::EPOLLEXCLUSIVE as u32;

/// The data of the events that the kernel reported last.
pub struct Fired {
    count: AtomicU64,
    data: [AtomicU64; KEPT],
}

impl Fired {
    /// None yet.
    pub const fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            data: [const { AtomicU64::new(0) }; KEPT],
        }
    }

    /// How many there were so far.
    pub fn count(&self) -> u64 {
        self.count.load(Acquire)
    }

    /// One more.
    pub fn note(&self, data: u64) {
        let at = self.count.load(Relaxed);
        self.data[at as usize % KEPT].store(data, Relaxed);
        self.count.store(at + 1, Release);
    }

    /// Whether this data may be among those since there were `before`.
    pub fn may_have(&self, data: u64, before: u64) -> bool {
        let now = self.count();
        now.wrapping_sub(before) > KEPT as u64
            || (before..now).any(|at| self.data[at as usize % KEPT].load(Relaxed) == data)
    }
}

/// A member as the kernel has it: the events that it reports, without its manner of reporting them. None where that cannot
/// be seen.
#[cold]
pub fn mask(instance: c_int, fd: c_int, data: u64) -> Option<u32> {
    let mut found = None;
    each(instance, |line| {
        if (line.fd, line.data) == (fd, data) {
            found = Some(line.events & !PRIVATE);
        }
    })?;
    found
}

/// A line of an instance's `fdinfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The number under which it was added.
    pub fd: c_int,
    /// Its mask.
    pub events: u32,
    /// The program's data.
    pub data: u64,
}

/// Calls `with` with each member of an instance; none if they cannot be seen.
pub fn each(instance: c_int, mut with: impl FnMut(Line)) -> Option<()> {
    let path = path_of(instance);
    let file = kernel::open(&path).ok()?;
    let mut block = [0_u8; 2_048];
    let mut held = 0;
    while let Ok(count @ 1..) = kernel::read(file, &mut block[held..]) {
        let mut rest = &block[..held + count];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            if let Some(line) = parse(&rest[..end]) {
                with(line);
            }
            rest = &rest[end + 1..];
        }
        let (left, whole) = (rest.len(), held + count);
        block.copy_within(whole - left..whole, 0);
        // A line that fills the block is none of these.
        held = if left == block.len() { 0 } else { left };
    }
    kernel::close(file);
    Some(())
}

/// `/proc/self/fdinfo/N`, ended by a zero.
fn path_of(instance: c_int) -> [u8; 32] {
    let mut path = [0; 32];
    let front = b"/proc/self/fdinfo/";
    path[..front.len()].copy_from_slice(front);
    let mut digits = [0_u8; 10];
    let (mut rest, mut count) = (instance.max(0), 0);
    loop {
        digits[count] = b'0' + (rest % 10) as u8;
        rest /= 10;
        count += 1;
        if rest == 0 {
            break;
        }
    }
    for (to, from) in path[front.len()..]
        .iter_mut()
        .zip(digits[..count].iter().rev())
    {
        *to = *from;
    }
    path
}

/// `tfd: 7 events: 4000201d data: 1 ...`: a number, and two in hexadecimal.
fn parse(line: &[u8]) -> Option<Line> {
    let text = std::str::from_utf8(line).ok()?;
    let mut words = text.split_ascii_whitespace();
    let mut after = |name: &str| (words.next()? == name).then(|| words.next()).flatten();
    Some(Line {
        fd: after("tfd:")?.parse().ok()?,
        events: u32::from_str_radix(after("events:")?, 16).ok()?,
        data: u64::from_str_radix(after("data:")?, 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::{Fired, KEPT, Line, mask, parse, path_of};

    /// Proves that a line of proc(5)'s form is understood, and what is none is not.
    #[test]
    fn a_line_is_understood() {
        let line = b"tfd:       12 events: 4000201d data:         ffffffff00  pos:0 ino:61a sdev:8";
        let wanted = Line {
            fd: 12,
            events: 0x4000_201d,
            data: 0xff_ffff_ff00,
        };
        assert_eq!(parse(line), Some(wanted));
        for none in [b"pos:\t0".as_slice(), b"", b"tfd: x events: 1 data: 1"] {
            assert_eq!(parse(none), None);
        }
        assert!(path_of(120).starts_with(b"/proc/self/fdinfo/120\0"));
        assert!(path_of(0).starts_with(b"/proc/self/fdinfo/0\0"));
    }

    /// Proves that the kernel shows what it fired, of many members.
    #[test]
    fn what_was_fired_is_seen() {
        // SAFETY: no pointers.
        let set = unsafe { libc::epoll_create1(0) };
        let mut ends = Vec::new();
        for data in 0..100 {
            let mut pair = [0; 2];
            // SAFETY: room for two numbers.
            assert_eq!(unsafe { libc::pipe(pair.as_mut_ptr()) }, 0);
            let events = (libc::EPOLLIN | libc::EPOLLONESHOT) as u32;
            let mut event = libc::epoll_event { events, u64: data };
            // SAFETY: a live event.
            let added =
                unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, pair[0], &raw mut event) };
            assert_eq!(added, 0);
            ends.push(pair);
        }
        // SAFETY: one byte.
        let written = unsafe { libc::write(ends[70][1], [1_u8].as_ptr().cast(), 1) };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        // SAFETY: room for four.
        let found = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 4, 0) };
        assert_eq!((written, found), (1, 1));
        assert_eq!(mask(set, ends[70][0], 70), Some(0));
        let armed = mask(set, ends[99][0], 99).unwrap_or(0);
        assert_ne!(armed & libc::EPOLLIN as u32, 0);
        assert_eq!(mask(set, ends[99][0], 98), None);
        for fd in ends.into_iter().flatten().chain([set]) {
            // SAFETY: made above.
            unsafe { libc::close(fd) };
        }
    }

    /// Proves that what was reported since is found, what was reported before is not, and that a list that is too short says so.
    #[test]
    fn the_last_reports_are_kept() {
        let fired = Fired::new();
        fired.note(7);
        let before = fired.count();
        assert!(!fired.may_have(7, before));
        fired.note(8);
        assert!(fired.may_have(8, before) && !fired.may_have(7, before));
        for _ in 0..KEPT {
            fired.note(9);
        }
        assert!(fired.may_have(7, before));
    }
}

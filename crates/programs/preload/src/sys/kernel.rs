//! System calls that no library of the program sees: neither our own symbols nor libc's cancellation.
//!
//! # Purpose
//! Inside the library a call of `send` would be our own. What the library does on the program's descriptors it
//! does here, by the instruction itself: no errno is touched, no thread is cancelled inside, and every call
//! returns at once (the sleeps are the program's own calls, made through [`crate::sys::real`]).

use std::ffi::CStr;
use std::io::Write;

use windlass_channel::sys;

/// Result of a system call: its value, or the number of the error.
pub type Done = Result<usize, i32>;

/// A system call by its name, with at most six arguments, which are whole numbers or pointers; [`Done`].
macro_rules! call {
    ($name:ident($($argument:expr),*)) => {{
        let given = [$($argument as usize),*];
        let mut all = [0; 6];
        all[..given.len()].copy_from_slice(&given);
        sys::checked(libc::$name, all)
    }};
}

/// `getsockopt` into a value of bytes; how many bytes the kernel wrote.
pub fn option<T: Pod>(fd: i32, level: i32, name: i32, value: &mut T) -> Done {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: value and length are ours, and the length is the value's.
    let done = unsafe {
        call!(SYS_getsockopt(
            fd,
            level,
            name,
            std::ptr::from_mut(value),
            &raw mut length
        ))
    };
    done.map(|_| length as usize)
}

/// `SO_COOKIE` of a descriptor, or the kernel's error: `ENOTSOCK`, `EBADF`.
pub fn cookie(fd: i32) -> Result<u64, i32> {
    let mut cookie = 0_u64;
    option(fd, libc::SOL_SOCKET, libc::SO_COOKIE, &mut cookie)?;
    Ok(cookie)
}

pub fn set_option<T: Pod>(fd: i32, level: i32, name: i32, value: &T) -> Done {
    let from = std::ptr::from_ref(value) as usize;
    // SAFETY: the value is ours, and the length is its own.
    unsafe { call!(SYS_setsockopt(fd, level, name, from, size_of::<T>())) }
}

/// Whether a socket has a filter that drops what it does not let through; one of BPF says only that it is there.
pub fn has_filter(fd: i32) -> bool {
    // Its length is told in instructions where no room is given for them.
    match option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &mut [0_u8; 0]) {
        Ok(instructions) => instructions != 0,
        Err(error) => error == libc::EACCES,
    }
}

/// Types of which every pattern of bytes is a value: what the kernel may write an option into.
///
/// # Safety
/// Every bit pattern is a value of the type, and it has no padding that matters.
pub unsafe trait Pod {}
// SAFETY: integers.
unsafe impl Pod for i32 {}
// SAFETY: integers.
unsafe impl Pod for u64 {}
// SAFETY: arrays of integers.
unsafe impl<const N: usize> Pod for [u8; N] {}
// SAFETY: arrays of integers.
unsafe impl<const N: usize> Pod for [i32; N] {}
// SAFETY: two integers.
unsafe impl Pod for libc::timeval {}

/// A socket's own name or its peer's, as the kernel writes them; the length that it wrote.
pub fn name(fd: i32, of_peer: bool, into: &mut [u8; 128]) -> Done {
    let mut length = into.len() as libc::socklen_t;
    let call = [libc::SYS_getsockname, libc::SYS_getpeername][usize::from(of_peer)];
    let (name, length_at) = (into.as_mut_ptr() as usize, &raw mut length as usize);
    // SAFETY: the buffer is ours, and its length is said.
    let done = unsafe { sys::checked(call, [fd as usize, name, length_at, 0, 0, 0]) };
    done.map(|_| length as usize)
}

/// `fcntl` with a number, if any.
pub fn fcntl(fd: i32, command: i32, argument: usize) -> Done {
    // SAFETY: no pointers.
    unsafe { call!(SYS_fcntl(fd, command, argument)) }
}

/// How many descriptors the process may ever have.
pub fn descriptors_max() -> u64 {
    let mut limit = [0_u64; 2];
    let into = limit.as_mut_ptr();
    // SAFETY: the limit is ours: the soft one and the hard one.
    let asked = unsafe { call!(SYS_prlimit64(0, libc::RLIMIT_NOFILE, 0, into)) };
    asked.map_or(0, |_| limit[1])
}

pub fn status(fd: i32) -> Result<libc::stat, i32> {
    // SAFETY: zeroes are a valid `stat`.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the variable is ours.
    unsafe { call!(SYS_fstat(fd, &raw mut status)) }?;
    Ok(status)
}

pub fn open_to_append(path: &CStr) -> Done {
    open(path, libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT)
}

fn open(path: &CStr, flags: i32) -> Done {
    let (at, path, flags) = (libc::AT_FDCWD, path.as_ptr(), flags | libc::O_CLOEXEC);
    // SAFETY: a C string.
    unsafe { call!(SYS_openat(at, path, flags, 0o644)) }
}

/// Writes bytes; what fails is not said.
pub fn write(fd: i32, bytes: &[u8]) {
    // SAFETY: the bytes are ours.
    let _ = unsafe { call!(SYS_write(fd, bytes.as_ptr(), bytes.len())) };
}

/// `epoll_pwait` with a time of zero: what the kernel has now.
pub fn epoll_now(fd: i32, events: *mut libc::epoll_event, room: usize) -> Done {
    // SAFETY: the array is the program's own; the kernel writes at most `room` events, with checks.
    unsafe { call!(SYS_epoll_pwait(fd, events, room, 0, 0, 8)) }
}

/// Whether an instance has the number registered with this data, as a line of its `fdinfo` says (proc(5)). Needs no heap.
pub fn is_registered(set: i32, fd: i32, data: u64) -> bool {
    let (mut path, mut bytes, mut line) = ([0; 48], [0_u8; 256], [0; 64]);
    // There is room for any number, and a zero behind it.
    let _ = write!(&mut path[..47], "/proc/thread-self/fdinfo/{set}");
    let opened = CStr::from_bytes_until_nul(&path).map(|path| open(path, libc::O_RDONLY));
    let Ok(Ok(file)) = opened else { return false };
    // `tfd:` NUMBER `events:` EVENTS `data:` DATA
    let is_it = |line: &[u8]| {
        let mut words = std::str::from_utf8(line).unwrap_or("").split_whitespace();
        words.nth(1).is_some_and(|word| word.parse() == Ok(fd))
            && (words.nth(3)).is_some_and(|word| u64::from_str_radix(word, 16) == Ok(data))
    };
    let (into, room) = (bytes.as_mut_ptr(), bytes.len());
    let (mut length, mut found) = (0, false);
    // SAFETY: the buffer is ours.
    while let Ok(read @ 1..) = unsafe { call!(SYS_read(file, into, room)) } {
        for byte in &bytes[..read] {
            if *byte == b'\n' {
                found |= is_it(&line[..length]);
                length = 0;
            } else if length < line.len() {
                line[length] = *byte;
                length += 1;
            }
        }
    }
    close(file);
    found
}

pub fn epoll_ctl(set: i32, operation: i32, fd: i32, event: &mut libc::epoll_event) -> Done {
    let event = std::ptr::from_mut(event) as usize;
    // SAFETY: the event is ours.
    unsafe { call!(SYS_epoll_ctl(set, operation, fd, event)) }
}

/// What the kernel says now of one descriptor, of what is asked and of what needs no asking; in bits of `poll` and epoll alike.
pub fn poll_one(fd: i32, events: u32) -> u32 {
    wait_for(fd, events as i16, 0)
}

/// The same, once there is anything or so many milliseconds are over.
pub fn wait_for(fd: i32, events: i16, millis: u64) -> u32 {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    match poll(&raw mut entry, 1, millis * 1_000_000) {
        Ok(_) => u32::from(entry.revents as u16),
        Err(_) => 0,
    }
}

/// `ppoll` with a time in nanoseconds, zero: what the kernel has now. No cancellation point.
pub fn poll(entries: *mut libc::pollfd, count: usize, time_ns: u64) -> Done {
    let time = timespec(time_ns);
    // SAFETY: the entries are ours or the program's own, which the kernel checks; the time is ours.
    unsafe { call!(SYS_ppoll(entries, count, &raw const time, 0, 8)) }
}

pub fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}

pub struct Mapped {
    place: usize,
    bytes: usize,
}

impl Mapped {
    pub fn of(fd: i32, bytes: usize, at: usize) -> Result<Self, i32> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: at any address that is free.
        let place = unsafe { call!(SYS_mmap(0, bytes, access, kind, fd, at)) }?;
        Ok(Self { place, bytes })
    }

    pub fn at(&self, offset: usize, bytes: usize) -> Option<*mut u8> {
        let is_inside = offset.checked_add(bytes)? <= self.bytes;
        is_inside.then(|| std::ptr::with_exposed_provenance_mut(self.place + offset))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`, and nobody uses it any more.
        let _ = unsafe { call!(SYS_munmap(self.place, self.bytes)) };
    }
}

/// Whether a descriptor is a ring of io_uring: any other is none to register something with.
pub fn is_ring(fd: i32) -> bool {
    /// `IORING_REGISTER_PROBE`, which a ring refuses where no room is given for the answer.
    const PROBE: usize = 8;
    // SAFETY: no memory is given.
    let refused = unsafe { call!(SYS_io_uring_register(fd, PROBE, 0, 0)) };
    let is_none = [libc::EBADF, libc::EOPNOTSUPP, libc::ENOSYS, libc::EPERM];
    refused.is_err_and(|error| !is_none.contains(&error))
}

pub fn close(file: usize) {
    // SAFETY: no pointers; the number is nobody else's.
    let _ = unsafe { call!(SYS_close(file)) };
}

/// Waits for another thread that is in the middle of something short: it yields first, and then sleeps, since a real-time thread
/// that only yields keeps every thread of lower priority from its core. No cancellation point.
#[derive(Default)]
pub struct Backoff(u32);

impl Backoff {
    const YIELDS: u32 = 20;
    const NAP_NS: u64 = 50_000;

    pub fn wait(&mut self) {
        self.0 = self.0.saturating_add(1);
        if self.0 <= Self::YIELDS {
            std::thread::yield_now();
            return;
        }
        let nap = timespec(Self::NAP_NS);
        // SAFETY: the time is ours.
        let _ = unsafe { call!(SYS_nanosleep(&raw const nap)) };
    }
}

/// Whether a process of this id runs, as far as this process may know: one that has ended and was not waited for does not.
pub fn lives(pid: u32) -> bool {
    // SAFETY: no pointers.
    match unsafe { call!(SYS_pidfd_open(pid)) } {
        Ok(file) => {
            let ended = poll_one(file as i32, libc::POLLIN as u32);
            close(file);
            ended == 0
        }
        Err(error) => error != libc::ESRCH,
    }
}

/// Bytes that lie unread in the kernel (`FIONREAD`); 0 where it does not tell.
pub fn unread(fd: i32) -> usize {
    let mut bytes = 0_i32;
    // SAFETY: the number lives for the call.
    let asked = unsafe { call!(SYS_ioctl(fd, libc::FIONREAD, &raw mut bytes)) };
    asked.map_or(0, |_| usize::try_from(bytes).unwrap_or(0))
}

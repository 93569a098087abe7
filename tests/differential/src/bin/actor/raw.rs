//! The same calls by bare system calls, which a preloaded library does not see: a share of all, and every one on some sockets.
//!
//! `DIFFERENTIAL_RAW=CALLS,SOCKETS,SEED,FILE`: so many of 1,000 calls, except those that write, which must not be mixed with
//! the library's on one socket, and closes, which would end the connection before its bytes in the ring; and all calls, those that write too, on so many of 1,000 sockets. The file has room for
//! [`SOCKETS`] cookies: all processes of a script number the sockets in it, in the order of their first calls, so that a
//! script that is run again makes the same ones bare.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sockets that are told apart; further ones are all alike.
const SOCKETS: usize = 1024;

/// What the environment asks for.
struct Shares {
    calls: u64,
    sockets: u64,
    seed: u64,
    /// The cookie of each socket, at its number.
    seen: &'static [AtomicU64],
}

fn shares() -> &'static Shares {
    static SHARES: OnceLock<Shares> = OnceLock::new();
    SHARES.get_or_init(|| {
        let text = std::env::var("DIFFERENTIAL_RAW").unwrap_or_default();
        let mut words = text.split(',');
        let mut next = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let [calls, sockets, seed] = [next(), next(), next()];
        Shares {
            calls,
            sockets,
            seed,
            seen: words.next().and_then(map).unwrap_or(&[]),
        }
    })
}

/// The cookies in a file, which all processes see.
fn map(path: &str) -> Option<&'static [AtomicU64]> {
    let file = File::options().read(true).write(true).open(path).ok()?;
    let (access, length) = (
        libc::PROT_READ | libc::PROT_WRITE,
        SOCKETS * size_of::<u64>(),
    );
    if file.metadata().ok()?.len() < length as u64 {
        return None;
    }
    let fd = file.as_raw_fd();
    // SAFETY: new memory, of a file that is as long; it is never unmapped.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            access,
            libc::MAP_SHARED,
            fd,
            0,
        )
    };
    // SAFETY: mapped so long, and used by atomic operations only.
    (memory != libc::MAP_FAILED)
        .then(|| unsafe { std::slice::from_raw_parts(memory.cast(), SOCKETS) })
}

/// The number of a socket by the order of first calls.
fn number(cookie: u64) -> u64 {
    let is_its = |place: &AtomicU64| {
        let held = place.compare_exchange(0, cookie, Ordering::Relaxed, Ordering::Relaxed);
        held.is_ok() || held == Err(cookie)
    };
    let found = shares().seen.iter().position(is_its);
    found.unwrap_or(SOCKETS) as u64
}

fn mixed(word: u64) -> u64 {
    (word ^ word >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

/// Whether a call that does not write is made bare.
fn is_bare(fd: c_int) -> bool {
    thread_local!(static CALLS: Cell<u64> = const { Cell::new(0) });
    let Shares { calls, seed, .. } = *shares();
    if calls == 0 {
        return is_socket_bare(fd);
    }
    let number = CALLS.with(|made| made.replace(made.get() + 1));
    mixed(number ^ seed << 32) % 1_000 < calls || is_socket_bare(fd)
}

/// Whether all calls on a socket are made bare: its cookie says.
fn is_socket_bare(fd: c_int) -> bool {
    let Shares { sockets, seed, .. } = *shares();
    if sockets == 0 {
        return false;
    }
    let cookie: Option<u64> = option(fd, libc::SO_COOKIE);
    cookie.is_some_and(|cookie| mixed(number(cookie) ^ seed << 32) % 1_000 < sockets)
}

/// Whether it is a Unix socket, asked out of a library's sight.
pub(crate) fn is_unix(fd: c_int) -> bool {
    option(fd, libc::SO_DOMAIN) == Some(libc::AF_UNIX)
}

/// A socket's option that is a number of this size.
fn option<T: Default>(fd: c_int, name: c_int) -> Option<T> {
    let (mut value, mut length) = (T::default(), size_of::<T>() as c_uint);
    let arguments = [
        fd.word(),
        libc::SOL_SOCKET.word(),
        name.word(),
        (&raw mut value).word(),
        (&raw mut length).word(),
    ];
    // SAFETY: no more than `length` bytes are written, to a number.
    let found = unsafe { bare(libc::SYS_getsockopt, &arguments) };
    (found == 0).then_some(value)
}

/// An argument as a register takes it.
trait Word {
    fn word(self) -> usize;
}

macro_rules! words {
    ($($type:ty)*) => { $(impl Word for $type {
        fn word(self) -> usize {
            self as usize
        }
    })* };
}

words! { c_int c_uint usize u64 }

impl<T> Word for *const T {
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

impl<T> Word for *mut T {
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

/// A system call from here, with its error in `errno`: `syscall` of the C library is one that a library may see.
///
/// # Safety
/// As the system call.
unsafe fn bare(number: libc::c_long, arguments: &[usize]) -> isize {
    let mut six = [0; 6];
    six[..arguments.len()].copy_from_slice(arguments);
    let result: isize;
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction changes this register and what the caller vouches for.
    unsafe {
        std::arch::asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") six[0] as isize => result,
            in("x1") six[1], in("x2") six[2], in("x3") six[3], in("x4") six[4], in("x5") six[5],
        );
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction changes these registers and what the caller vouches for.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") six[0], in("rsi") six[1], in("rdx") six[2], in("r10") six[3], in("r8") six[4], in("r9") six[5],
            lateout("rcx") _, lateout("r11") _,
        );
    }
    if result >= 0 {
        return result;
    }
    // SAFETY: takes nothing.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place of this thread's errno.
    unsafe { *place = -result as c_int };
    -1
}

/// The numbers of system calls.
#[allow(non_upper_case_globals, reason = "their own names")]
mod number {
    pub(super) use libc::*;

    /// What only older architectures have: there the C library makes another call, and so it is left to it.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) const SYS_dup2: c_long = -1;
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) const SYS_epoll_wait: c_long = -1;
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) const SYS_poll: c_long = -1;
}

/// Functions of the C library, each with its system call of the same arguments and how to decide.
macro_rules! calls {
    ($($decide:ident $name:ident($first:ident: $of:ty $(, $argument:ident: $type:ty)*) -> $result:ty = $number:ident;)*) => {
        $(
            /// As the function of this name.
            ///
            /// # Safety
            /// As the function of this name.
            pub(crate) unsafe fn $name($first: $of $(, $argument: $type)*) -> $result {
                if number::$number >= 0 && $decide($first) {
                    // SAFETY: the system call takes these very arguments; what they need the caller vouches for.
                    unsafe { bare(number::$number, &[$first.word() $(, $argument.word())*]) as $result }
                } else {
                    // SAFETY: the caller vouches for what the arguments need.
                    unsafe { libc::$name($first $(, $argument)*) }
                }
            }
        )*
    };
}

calls! {
    is_bare shutdown(fd: c_int, how: c_int) -> c_int = SYS_shutdown;
    is_socket_bare close(fd: c_int) -> c_int = SYS_close;
    is_bare dup(fd: c_int) -> c_int = SYS_dup;
    is_bare dup2(fd: c_int, onto: c_int) -> c_int = SYS_dup2;
    is_bare dup3(fd: c_int, onto: c_int, flags: c_int) -> c_int = SYS_dup3;
    is_bare read(fd: c_int, into: *mut c_void, length: usize) -> isize = SYS_read;
    is_bare readv(fd: c_int, into: *const libc::iovec, count: c_int) -> isize = SYS_readv;
    is_bare recvfrom(fd: c_int, into: *mut c_void, length: usize, flags: c_int, name: *mut libc::sockaddr,
        name_length: *mut libc::socklen_t) -> isize = SYS_recvfrom;
    is_bare recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize = SYS_recvmsg;
    is_bare epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int = SYS_epoll_ctl;
    is_bare epoll_wait(set: c_int, into: *mut libc::epoll_event, count: c_int, timeout: c_int) -> c_int = SYS_epoll_wait;
    is_socket_bare write(fd: c_int, data: *const c_void, length: usize) -> isize = SYS_write;
    is_socket_bare writev(fd: c_int, data: *const libc::iovec, count: c_int) -> isize = SYS_writev;
    is_socket_bare sendto(fd: c_int, data: *const c_void, length: usize, flags: c_int, name: *const libc::sockaddr,
        name_length: libc::socklen_t) -> isize = SYS_sendto;
    is_socket_bare sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize = SYS_sendmsg;
    is_socket_bare sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int = SYS_sendmmsg;
    is_socket_bare sendfile(fd: c_int, file: c_int, at: *mut libc::off_t, length: usize) -> isize = SYS_sendfile;
}

/// As `recv`.
///
/// # Safety
/// As `recv`.
pub(crate) unsafe fn recv(fd: c_int, into: *mut c_void, length: usize, flags: c_int) -> isize {
    if is_bare(fd) {
        // SAFETY: the caller vouches for the memory; no name is asked for.
        unsafe {
            bare(
                libc::SYS_recvfrom,
                &[fd.word(), into.word(), length, flags.word()],
            )
        }
    } else {
        // SAFETY: the caller vouches for the memory.
        unsafe { libc::recv(fd, into, length, flags) }
    }
}

/// As `send`.
///
/// # Safety
/// As `send`.
pub(crate) unsafe fn send(fd: c_int, data: *const c_void, length: usize, flags: c_int) -> isize {
    if is_socket_bare(fd) {
        // SAFETY: the caller vouches for the memory; no name is given.
        unsafe {
            bare(
                libc::SYS_sendto,
                &[fd.word(), data.word(), length, flags.word()],
            )
        }
    } else {
        // SAFETY: the caller vouches for the memory.
        unsafe { libc::send(fd, data, length, flags) }
    }
}

/// As `poll`; a bare one is one of the share of all calls.
///
/// # Safety
/// As `poll`.
pub(crate) unsafe fn poll(
    members: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: c_int,
) -> c_int {
    if number::SYS_poll >= 0 && is_bare(-1) {
        // SAFETY: the caller vouches for the members.
        unsafe {
            bare(
                number::SYS_poll,
                &[members.word(), count.word(), timeout.word()],
            ) as c_int
        }
    } else {
        // SAFETY: the caller vouches for the members.
        unsafe { libc::poll(members, count, timeout) }
    }
}

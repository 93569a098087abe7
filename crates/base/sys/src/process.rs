//! Other processes by descriptor, becoming another program, and leaving one's parent.
//!
//! # Purpose
//! What accelerated sockets ask of the kernel about processes: the peer of a connection as a pidfd, the network
//! namespace of a socket, a daemon that is nobody's child, and an exec that leaves no trace of the program before.
//!
//! # Model
//! Rust's runtime ignores SIGPIPE and opens `/dev/null` for closed standard streams before `main`. A program that
//! only prepares another one must not leave that behind: [`become_program`] restores what was found before the
//! runtime started.

use std::convert::Infallible;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::sockopt::get_bytes;
use crate::vectored::last_errno;

/// `SO_NETNS_COOKIE` (asm-generic/socket.h, Linux 5.14).
const SO_NETNS_COOKIE: i32 = 71;
/// `SO_PEERPIDFD` (asm-generic/socket.h, Linux 6.5).
const SO_PEERPIDFD: i32 = 77;

/// What was found before Rust's runtime started: bits 0 to 2 are closed standard streams, bit 3 an ignored SIGPIPE,
/// bit 7 that somebody looked.
static FOUND: AtomicU8 = AtomicU8::new(0);
const SIGPIPE_IGNORED: u8 = 1 << 3;
const LOOKED: u8 = 1 << 7;

extern "C" fn look() {
    let mut found = LOOKED;
    for fd in 0..3 {
        // SAFETY: asks for the flags of a number, which may be closed.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            found |= 1 << fd;
        }
    }
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: nothing is set; the present action is written to memory of its type.
    let asked = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeroed memory is a valid value of this plain structure, whether or not the call filled it.
    let action = unsafe { action.assume_init() };
    if asked == 0 && action.sa_sigaction == libc::SIG_IGN {
        found |= SIGPIPE_IGNORED;
    }
    FOUND.store(found, Ordering::Relaxed);
}

/// Runs before `main`, and so before Rust's runtime changes anything.
// SAFETY: the section holds addresses of functions that the loader calls once; this is one.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// The cookie of the network namespace that a socket belongs to. `ENOPROTOOPT` before Linux 5.14.
pub fn netns_cookie(socket: impl AsFd) -> Result<u64, Errno> {
    let mut cookie = [0; 8];
    match get_bytes(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut cookie)? {
        8 => Ok(u64::from_ne_bytes(cookie)),
        _ => Err(Errno::INVAL),
    }
}

/// A pidfd of the process at the other end of a connected socket, whose id `pid` [`peer_credentials`] gave. `ESRCH` if
/// it
/// is gone. Before Linux 6.5 the process is found by its number, which may by then be another's.
///
/// [`peer_credentials`]: crate::unix::peer_credentials
pub fn peer_pidfd(socket: impl AsFd, pid: u32) -> Result<OwnedFd, Errno> {
    let mut bytes = [0; 4];
    match get_bytes(socket, libc::SOL_SOCKET, SO_PEERPIDFD, &mut bytes) {
        Ok(4) => {
            let fd = i32::from_ne_bytes(bytes);
            // SAFETY: the kernel has just made this descriptor for this call, close-on-exec; nobody else owns it.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        Err(Errno::NOPROTOOPT) => {}
        Ok(_) => return Err(Errno::INVAL),
        Err(errno) => return Err(errno),
    }
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    rustix::process::pidfd_open(pid.ok_or(Errno::SRCH)?, PidfdFlags::empty())
}

/// Runs `work` in a process of its own that is nobody's child but init's, in its own session, at `/`, with `/dev/null`
/// as
/// its standard streams and no other descriptor. Returns in the caller as soon as that process is on its way.
/// `work` must not return to its caller's code: the process ends after it.
///
/// # Errors
/// If the process cannot be forked; what happens to the second fork is not reported.
///
/// # Panics
/// If the caller has more than one thread: locks of the others would stay taken for ever.
pub fn detach(work: impl FnOnce()) -> Result<(), Errno> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    assert_eq!(threads, 1, "a process of several threads must not fork");
    // SAFETY: there is one thread, so the child has a whole copy of this program.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: as above.
            let second = unsafe { libc::fork() };
            if second == 0 {
                alone();
                work();
            }
            // SAFETY: ends the process without the exit handlers, which belong to the caller.
            unsafe { libc::_exit(0) }
        }
        child if child < 0 => Err(last_errno()),
        child => {
            let mut status = 0;
            // SAFETY: waits for a child of ours, which ends at once.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            Ok(())
        }
    }
}

/// Leaves the session, the directory and the descriptors of whoever forked this process.
fn alone() {
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    // SAFETY: every object that owns a descriptor is the parent's copy and is never used or dropped here.
    unsafe { libc::close_range(0, u32::MAX, 0) };
    for _ in 0..3 {
        // SAFETY: opens the lowest numbers, which are free.
        unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    }
}

/// Becomes the program `args[0]`, found as a shell finds it, with these arguments and this environment (`NAME=value`).
/// Signal mask, dispositions and standard streams are as this process found them. Returns only the error.
pub fn become_program(args: &[&OsStr], environment: &[CString]) -> Result<Infallible, Errno> {
    let owned: Result<Vec<_>, _> = args
        .iter()
        .map(|arg| CString::new(arg.as_bytes()))
        .collect();
    let owned = owned.map_err(|_| Errno::INVAL)?;
    let program = owned.first().ok_or(Errno::INVAL)?;
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        let ends = std::iter::once(std::ptr::null());
        strings
            .iter()
            .map(|text| text.as_ptr())
            .chain(ends)
            .collect()
    };
    let (argv, envp) = (pointers(&owned), pointers(environment));
    let found = FOUND.load(Ordering::Relaxed);
    let closed = (0..3).filter(|fd| found & (1 << fd) != 0);
    for fd in closed {
        // SAFETY: the runtime put `/dev/null` there; its own streams are not used again.
        unsafe { libc::close(fd) };
    }
    if found & LOOKED != 0 && found & SIGPIPE_IGNORED == 0 {
        // SAFETY: sets the default action, as it was before the runtime started.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    // SAFETY: both arrays end in a null pointer and their strings live until the call returns.
    unsafe { libc::execvpe(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    Err(last_errno())
}

/// A process by its number, with a pidfd: what is read by the number is the process's if it has not ended after that.
pub type Pinned = (u32, Arc<OwnedFd>);

/// The process that has this number now.
pub fn pin(pid: u32) -> Result<Pinned, Errno> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pidfd = rustix::process::pidfd_open(number.ok_or(Errno::SRCH)?, PidfdFlags::empty())?;
    Ok((pid, Arc::new(pidfd)))
}

/// The pidfd's process has ended.
pub fn has_ended(pidfd: impl AsFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(
        &pidfd,
        rustix::event::PollFlags::IN,
    )];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1..))
}

/// The user that this process acts as.
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The number of a descriptor, for those who name it to others.
pub fn number(fd: impl AsFd) -> i32 {
    fd.as_fd().as_raw_fd()
}

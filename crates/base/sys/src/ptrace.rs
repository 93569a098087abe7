//! Holding another process's threads for a moment, to look at them.
//!
//! # Model
//! A thread is seized (nothing happens to it), interrupted, waited for, and detached. The kernel ties all of this to the thread that asks: one
//! thread does it all. `PTRACE_O_EXITKILL` is never set, so that the kernel detaches the threads and lets them run when this program
//! dies, however it does.

use std::os::raw::c_void;

use rustix::io::Errno;

use crate::vectored::last_errno;

/// `NT_PRSTATUS`: the general registers.
const GENERAL: usize = 1;
/// `PTRACE_EVENT_STOP`: an interrupt, or a stop that the program was in anyway.
const EVENT_STOP: i32 = 128;
/// Words of the largest set of general registers.
const WORDS_MAX: usize = 64;

/// How a thread that was interrupted is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// It runs still: ask again.
    NotYet,
    /// It stands. The signal that it was about to get, or 0, is to be given to [`detach`].
    Stopped(i32),
    /// It has ended.
    Ended,
}

fn call(request: u32, tid: u32, address: usize, data: usize) -> Result<(), Errno> {
    let tid = libc::pid_t::try_from(tid).map_err(|_| Errno::SRCH)?;
    // SAFETY: none of the requests of this module makes the kernel write anywhere but to the buffer that `data` names, see `registers`.
    let result = unsafe { libc::ptrace(request, tid, address as *mut c_void, data as *mut c_void) };
    match result {
        -1 => Err(last_errno()),
        _ => Ok(()),
    }
}

/// Becomes the tracer of a thread, which goes on running.
///
/// # Errors
/// `EPERM` without the right to, or if somebody traces it already; `ESRCH` if it is gone.
pub fn seize(tid: u32) -> Result<(), Errno> {
    call(libc::PTRACE_SEIZE, tid, 0, 0)
}

/// Asks a seized thread to stop.
///
/// # Errors
/// `ESRCH` if it is gone.
pub fn interrupt(tid: u32) -> Result<(), Errno> {
    call(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// Looks whether an interrupted thread stands, without waiting.
///
/// # Errors
/// `ECHILD` if it is not traced by this thread.
pub fn held(tid: u32) -> Result<Held, Errno> {
    let tid = libc::pid_t::try_from(tid).map_err(|_| Errno::SRCH)?;
    let mut status = 0;
    // SAFETY: writes the status.
    let found = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) };
    match found {
        0 => Ok(Held::NotYet),
        -1 if last_errno() == Errno::INTR => Ok(Held::NotYet),
        -1 => Err(last_errno()),
        _ if !libc::WIFSTOPPED(status) => Ok(Held::Ended),
        _ if status >> 16 == EVENT_STOP => Ok(Held::Stopped(0)),
        _ => Ok(Held::Stopped(libc::WSTOPSIG(status))),
    }
}

/// The general registers of a stopped thread, as the kernel orders them.
///
/// # Errors
/// `ESRCH` if it does not stand.
pub fn registers(tid: u32) -> Result<Vec<u64>, Errno> {
    let mut words = [0_u64; WORDS_MAX];
    let mut vector = libc::iovec {
        iov_base: words.as_mut_ptr().cast(),
        iov_len: size_of_val(&words),
    };
    call(
        libc::PTRACE_GETREGSET,
        tid,
        GENERAL,
        &raw mut vector as usize,
    )?;
    let filled = vector.iov_len / size_of::<u64>();
    Ok(words[..filled.min(WORDS_MAX)].to_vec())
}

/// Lets a stopped thread run, with the signal that it was about to get.
///
/// # Errors
/// `ESRCH` if it is gone or does not stand.
pub fn detach(tid: u32, signal: i32) -> Result<(), Errno> {
    call(libc::PTRACE_DETACH, tid, 0, signal as usize)
}

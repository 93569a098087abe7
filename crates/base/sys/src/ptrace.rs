//! Holding another process's threads for a moment, to look at them.
//!
//! # Model
//! A thread is seized (nothing happens to it), interrupted, waited for, and detached. The kernel ties all of this to the thread that asks: one
//! thread does it all. `PTRACE_O_EXITKILL` is not set for what ran before, so that the kernel detaches the threads and lets them run when this
//! program dies, however it does. A program that [`start`] began has done nothing yet: it ends with this one until it is let go.

use std::io;
use std::os::raw::c_void;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

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
    // SAFETY: none of the requests of this module makes the kernel write anywhere but to the buffer that `data` names, see `move_registers`.
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
    look(tid, libc::WNOHANG)
}

/// Waits until a thread that was resumed stands, or has ended.
///
/// # Errors
/// As [`held`].
pub fn wait(tid: u32) -> Result<Held, Errno> {
    loop {
        match look(tid, 0)? {
            Held::NotYet => {}
            held => return Ok(held),
        }
    }
}

fn look(tid: u32, flags: i32) -> Result<Held, Errno> {
    let tid = libc::pid_t::try_from(tid).map_err(|_| Errno::SRCH)?;
    let mut status = 0;
    // SAFETY: writes the status.
    let found = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | flags) };
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
    let mut words = vec![0_u64; WORDS_MAX];
    let bytes = move_registers(libc::PTRACE_GETREGSET, tid, &mut words)?;
    words.truncate(bytes / size_of::<u64>());
    Ok(words)
}

/// Gives a stopped thread other registers, as [`registers`] orders them.
///
/// # Errors
/// `ESRCH` if it does not stand, `EINVAL` for registers that cannot be.
pub fn set_registers(tid: u32, mut words: Vec<u64>) -> Result<(), Errno> {
    move_registers(libc::PTRACE_SETREGSET, tid, &mut words).map(drop)
}

/// Moves registers between a thread and `words`; returns their bytes.
fn move_registers(request: u32, tid: u32, words: &mut [u64]) -> Result<usize, Errno> {
    let mut vector = libc::iovec {
        iov_base: words.as_mut_ptr().cast(),
        iov_len: size_of_val(words),
    };
    call(request, tid, GENERAL, &raw mut vector as usize)?;
    Ok(vector.iov_len.min(size_of_val(words)))
}

/// Starts a program, which then stands before its first instruction, traced by this thread. It is killed if this program ends before
/// [`detach`].
///
/// # Errors
/// What starting it gives; `EPERM` where processes may not be traced.
pub fn start(command: &mut Command) -> io::Result<Child> {
    let traced = || match call(libc::PTRACE_TRACEME, 0, 0, 0) {
        Ok(()) => Ok(()),
        Err(errno) => Err(io::Error::from(errno)),
    };
    // SAFETY: between fork and exec this makes one system call, and takes no lock and no memory.
    let child = unsafe { command.pre_exec(traced) }.spawn()?;
    // The kernel stops it when it has become the program.
    match wait(child.id())? {
        Held::Stopped(_) => {}
        _ => return Err(io::Error::from(Errno::CHILD)),
    }
    let options = usize::try_from(libc::PTRACE_O_EXITKILL).unwrap_or(0);
    call(libc::PTRACE_SETOPTIONS, child.id(), 0, options)?;
    Ok(child)
}

/// Lets a stopped thread run on, with the signal that it was about to get, and stay traced.
///
/// # Errors
/// `ESRCH` if it is gone or does not stand.
pub fn resume(tid: u32, signal: i32) -> Result<(), Errno> {
    call(
        libc::PTRACE_CONT,
        tid,
        0,
        usize::try_from(signal).unwrap_or(0),
    )
}

/// Lets a stopped thread run, with the signal that it was about to get.
///
/// # Errors
/// `ESRCH` if it is gone or does not stand.
pub fn detach(tid: u32, signal: i32) -> Result<(), Errno> {
    call(libc::PTRACE_DETACH, tid, 0, signal as usize)
}

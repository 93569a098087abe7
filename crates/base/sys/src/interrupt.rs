//! Getting a thread out of a system call that a peer made block.
//!
//! # Purpose
//! A write to a peer's eventfd can sleep although it was made non-blocking (see
//! [`eventfd`](crate::eventfd)). A second thread that sees the first one stuck interrupts it: the
//! call then fails with `EINTR`.
//!
//! # Model
//! The signal is `SIGURG`, which does nothing to a process that has no handler for it. [`install`]
//! gives it a handler that does nothing, and that does not restart calls. Threads that may be
//! interrupted must not block it.
//!
//! # Limits
//! An interrupt that comes just before the call sleeps is lost: repeat it until the thread has moved
//! on.

use std::mem::MaybeUninit;

use rustix::io::Errno;

use crate::vectored::last_errno;

const SIGNAL: libc::c_int = libc::SIGURG;

extern "C" fn nothing(_signal: libc::c_int) {}

/// Prepares the process. Once, before the first [`ThreadRef::interrupt`].
pub fn install() -> Result<(), Errno> {
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset only writes the set that it is given.
    unsafe { libc::sigemptyset(mask.as_mut_ptr()) };
    let action = libc::sigaction {
        sa_sigaction: (nothing as extern "C" fn(libc::c_int)) as libc::sighandler_t,
        // SAFETY: sigemptyset, which cannot fail, has written it.
        sa_mask: unsafe { mask.assume_init() },
        sa_flags: 0,
        sa_restorer: None,
    };
    // SAFETY: the handler does nothing, so it is safe in any context; the old one is not wanted.
    let result = unsafe { libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut()) };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// A thread of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadRef(libc::pid_t);

impl ThreadRef {
    /// The calling thread.
    #[must_use]
    pub fn current() -> Self {
        Self(rustix::thread::gettid().as_raw_nonzero().get())
    }

    /// Makes the blocking call that the thread is in, if any, fail with `EINTR`. `ESRCH` if the thread
    /// has ended; its number may then belong to another thread of this process, to which this
    /// does no harm.
    pub fn interrupt(self) -> Result<(), Errno> {
        let process = rustix::process::getpid().as_raw_nonzero().get();
        // SAFETY: tgkill takes no pointers, and the signal's action is harmless by default and after
        // `install`.
        let result = unsafe { libc::syscall(libc::SYS_tgkill, process, self.0, SIGNAL) };
        if result == 0 {
            Ok(())
        } else {
            Err(last_errno())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// A write that sleeps on a full eventfd, whose peer cleared `O_NONBLOCK`, is got out.
    #[test]
    fn frees_a_blocked_write() -> Result<(), Errno> {
        install()?;
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes())?;
        let (started, start) = mpsc::channel();
        let (ended, end) = mpsc::channel();
        std::thread::spawn(move || {
            let _ = started.send(ThreadRef::current());
            let _ = ended.send(rustix::io::write(&fd, &1_u64.to_ne_bytes()));
        });
        let thread = start.recv().map_err(|_| Errno::INVAL)?;
        assert!(
            end.recv_timeout(Duration::from_millis(50)).is_err(),
            "the write blocks"
        );
        for _ in 0..1000 {
            thread.interrupt()?;
            if let Ok(outcome) = end.recv_timeout(Duration::from_millis(5)) {
                assert_eq!(outcome, Err(Errno::INTR));
                return Ok(());
            }
        }
        panic!("the write still blocks")
    }
}

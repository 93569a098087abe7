//! Signals as something to read (`signalfd(2)`).
//!
//! # Model
//! [`Signals::take_over`] blocks signals in the calling thread, and so in every thread and process that it starts
//! later; from then on they arrive in [`Signals::next`] only.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::vectored::last_errno;

/// Bytes of a `signalfd_siginfo`.
const INFO_BYTES: usize = size_of::<libc::signalfd_siginfo>();

/// A descriptor that signals are read from.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks these signals and opens a descriptor for them. To be called before the first thread is started.
    ///
    /// # Errors
    /// If the kernel refuses; `EINVAL` for a number that is no signal.
    pub fn take_over(numbers: &[i32]) -> Result<Self, Errno> {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: initializes the set that it is given.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        for number in numbers {
            // SAFETY: the set was initialized above; a wrong number is refused.
            if unsafe { libc::sigaddset(set.as_mut_ptr(), *number) } != 0 {
                return Err(last_errno());
            }
        }
        // SAFETY: reads the set that was initialized above.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
        // SAFETY: as above; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: the kernel has just made this descriptor for this call, so nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Waits for the next signal and gives its number.
    ///
    /// # Errors
    /// If the descriptor cannot be read, or what feeds it has ended.
    pub fn next(&self) -> Result<i32, Errno> {
        let mut info = [0; INFO_BYTES];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut info))?;
        let number = info.first_chunk::<4>().filter(|_| read == INFO_BYTES);
        number
            .map(|bytes| i32::from_ne_bytes(*bytes))
            .ok_or(Errno::INVAL)
    }
}

/// Readable once a signal has come.
impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Signals as another descriptor tells of them, which reads as a `signalfd`: a pipe, for one who plays the kernel.
impl From<OwnedFd> for Signals {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

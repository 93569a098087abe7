//! Waiting by libc's own names.
//!
//! # Purpose
//! [`crate::epoll`] asks the kernel directly. A library that is put before libc (`LD_PRELOAD`) sees only calls of
//! libc's functions, as most programs make them: what plays such a program waits here.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::vectored::last_errno;

/// Most members reported by one wait.
pub const READY_MAX: usize = 64;

/// A set of descriptors to wait for until one is readable, level-triggered.
#[derive(Debug)]
pub struct NamedEpoll {
    fd: OwnedFd,
}

impl NamedEpoll {
    /// An empty set (`epoll_create1`).
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` or `ENOMEM`.
    pub fn create() -> Result<Self, Errno> {
        // SAFETY: the call takes no address.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: the call just returned this descriptor, which nobody else knows.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd })
    }

    /// Adds `fd`, to be reported as `token` while it is readable (`epoll_ctl`).
    ///
    /// # Errors
    /// `EEXIST` if it is in, `EPERM` for a regular file.
    pub fn add(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: token,
        };
        let (set, fd) = (self.fd.as_raw_fd(), fd.as_fd().as_raw_fd());
        // SAFETY: the event outlives the call, which only reads it.
        match unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }

    /// Waits, for ever if need be, and writes the tokens of what is readable (`epoll_wait`); gives how many.
    /// A signal ends the wait with none.
    ///
    /// # Errors
    /// `EINVAL` if `tokens` is empty.
    pub fn wait(&self, tokens: &mut [u64]) -> Result<usize, Errno> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; READY_MAX];
        let most = tokens.len().min(READY_MAX);
        let room = i32::try_from(most).unwrap_or(0);
        let set = self.fd.as_raw_fd();
        // SAFETY: the kernel writes at most `room` events, and there is room for them.
        let came = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), room, -1) };
        match usize::try_from(came) {
            Ok(count) => {
                for (token, event) in tokens.iter_mut().zip(&events[..count.min(most)]) {
                    *token = event.u64;
                }
                Ok(count.min(most))
            }
            Err(_) => match last_errno() {
                Errno::INTR => Ok(0),
                errno => Err(errno),
            },
        }
    }
}

/// Waits until `fd` is readable or broken, for ever if need be (`poll`); a signal ends the wait, too.
///
/// # Errors
/// None that is known for an open descriptor.
pub fn poll_readable(fd: impl AsFd) -> Result<(), Errno> {
    let mut entry = libc::pollfd {
        fd: fd.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the entry outlives the call.
    ended(unsafe { libc::poll(&raw mut entry, 1, -1) })
}

/// The same by `select`.
///
/// # Errors
/// `EBADF` if the number is beyond the set.
pub fn select_readable(fd: impl AsFd) -> Result<(), Errno> {
    let fd = fd.as_fd().as_raw_fd();
    if !(0..libc::FD_SETSIZE as i32).contains(&fd) {
        return Err(Errno::BADF);
    }
    // SAFETY: zeros are an empty set.
    let mut set: libc::fd_set = unsafe { std::mem::zeroed() };
    // SAFETY: the number fits into the set.
    unsafe { libc::FD_SET(fd, &raw mut set) };
    let (input, none) = (&raw mut set, std::ptr::null_mut());
    // SAFETY: the set outlives the call; no other is given, and no time.
    ended(unsafe { libc::select(fd + 1, input, none, none, std::ptr::null_mut()) })
}

fn ended(result: i32) -> Result<(), Errno> {
    match last_errno() {
        errno if result < 0 && errno != Errno::INTR => Err(errno),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::BorrowedFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Only the member that has something to read is reported, by its token, each time until it is read.
    #[test]
    fn readable_members_are_reported() -> Result<(), Errno> {
        let set = NamedEpoll::create()?;
        let pairs = [(); 3].map(|()| UnixStream::pair().expect("a pair"));
        for (token, (_, end)) in (10..).zip(&pairs) {
            set.add(end, token)?;
        }
        (&pairs[1].0).write_all(b"x").expect("written");
        let mut tokens = [0; 8];
        for _ in 0..2 {
            assert_eq!(set.wait(&mut tokens)?, 1);
            assert_eq!(tokens[0], 11);
        }
        assert_eq!(set.add(&pairs[1].1, 0), Err(Errno::EXIST));
        Ok(())
    }

    /// Both calls wait until there is something to read, and leave it there.
    #[test]
    fn a_readable_one_ends_the_wait() -> Result<(), Errno> {
        type Wait = fn(BorrowedFd<'_>) -> Result<(), Errno>;
        let waits: [Wait; 2] = [|fd| poll_readable(fd), |fd| select_readable(fd)];
        for wait in waits {
            let (mut writer, mut reader) = UnixStream::pair().expect("a pair");
            let waiting = std::thread::spawn(move || {
                wait(reader.as_fd())?;
                let mut byte = [0];
                reader.read_exact(&mut byte).expect("read");
                Ok(byte)
            });
            writer.write_all(b"x").expect("written");
            assert_eq!(waiting.join().expect("no panic")?, *b"x");
        }
        Ok(())
    }
}

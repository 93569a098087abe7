//! Event counters, and checks on descriptors that a peer sent.
//!
//! A peer's eventfd is a trap: a write to one whose counter is full sleeps unless `O_NONBLOCK`
//! is set, and that flag belongs to the file that both sides share, so the peer can clear it
//! again. Take only what [`is_eventfd`] says is one, [`set_nonblocking`], and have a second
//! thread watch over the write.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// A new counter at zero, non-blocking.
pub fn create() -> Result<OwnedFd, Errno> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Adds one, which wakes whoever waits. A full counter is readable already: that is success.
pub fn signal(fd: impl AsFd) -> Result<(), Errno> {
    match rustix::io::write(fd, &1u64.to_ne_bytes()) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Takes the count and sets it to zero. Zero if nothing was signalled.
pub fn drain(fd: impl AsFd) -> Result<u64, Errno> {
    let mut count = [0; 8];
    match rustix::io::read(fd, &mut count) {
        Ok(8) => Ok(u64::from_ne_bytes(count)),
        Ok(_) => Err(Errno::INVAL),
        Err(Errno::AGAIN) => Ok(0),
        Err(errno) => Err(errno),
    }
}

/// Whether `fd` is an eventfd, by what `/proc/self/fd` calls it. False if `/proc` is not mounted.
#[must_use]
pub fn is_eventfd(fd: impl AsFd) -> bool {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    rustix::fs::readlink(path, Vec::new())
        .is_ok_and(|target| target.as_bytes() == b"anon_inode:[eventfd]")
}

/// Sets `O_NONBLOCK` on the file, for every descriptor of it.
pub fn set_nonblocking(fd: impl AsFd) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter counts, empties, and does not block or fail when full.
    #[test]
    fn counts() -> Result<(), Errno> {
        let fd = create()?;
        signal(&fd)?;
        signal(&fd)?;
        assert_eq!(drain(&fd)?, 2);
        assert_eq!(drain(&fd)?, 0);
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes())?;
        signal(&fd)?;
        assert_eq!(drain(&fd)?, u64::MAX - 1);
        Ok(())
    }

    /// Only an eventfd is one: not a pipe, a file, or an epoll instance.
    #[test]
    fn tells_an_eventfd() -> Result<(), Errno> {
        assert!(is_eventfd(create()?));
        let (reader, writer) = rustix::pipe::pipe()?;
        assert!(!is_eventfd(&reader) && !is_eventfd(&writer));
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)?;
        assert!(!is_eventfd(epoll));
        set_nonblocking(&reader)?;
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Err(Errno::AGAIN));
        Ok(())
    }
}

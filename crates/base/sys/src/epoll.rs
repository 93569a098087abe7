//! Waiting for many descriptors.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

/// Most events taken in one wait.
pub const EVENTS_MAX: usize = 256;

/// What to wait for. Errors and hang-ups are always reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// That a read would not block.
    pub readable: bool,
    /// That a write would not block.
    pub writable: bool,
    /// Report each change once (`EPOLLET`), rather than as long as it lasts.
    pub edge: bool,
}

impl Interest {
    /// Readable, reported once for each arrival.
    pub const READABLE_EDGE: Self = Self {
        readable: true,
        writable: false,
        edge: true,
    };
    /// Readable, reported as long as it is.
    pub const READABLE: Self = Self {
        readable: true,
        writable: false,
        edge: false,
    };

    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(
            epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
            self.readable,
        );
        flags.set(epoll::EventFlags::OUT, self.writable);
        flags.set(epoll::EventFlags::ET, self.edge);
        flags
    }
}

/// What happened to a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The value that it was added with.
    pub token: u64,
    /// A read would not block.
    pub readable: bool,
    /// A write would not block.
    pub writable: bool,
    /// The peer closed its side, or the descriptor failed; a read says which.
    pub closed: bool,
}

/// Room for the events of one wait, to be used again and again.
pub struct Events(Vec<epoll::Event>);

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Default for Events {
    fn default() -> Self {
        Self(Vec::with_capacity(EVENTS_MAX))
    }
}

impl Events {
    /// The events of the last wait.
    pub fn iter(&self) -> impl Iterator<Item = Ready> + '_ {
        let closed = epoll::EventFlags::ERR | epoll::EventFlags::HUP | epoll::EventFlags::RDHUP;
        self.0.iter().map(move |event| {
            let flags = event.flags;
            Ready {
                token: event.data.u64(),
                readable: flags.contains(epoll::EventFlags::IN),
                writable: flags.contains(epoll::EventFlags::OUT),
                closed: flags.intersects(closed),
            }
        })
    }
}

/// A set of descriptors to wait for.
///
/// It holds files, not descriptors: a descriptor that is closed leaves the set only when no
/// duplicate of it is open anywhere. One that a peer sent must therefore be removed first.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    /// An empty set.
    pub fn create() -> Result<Self, Errno> {
        Ok(Self {
            fd: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    /// Adds `fd`, to be reported as `token`. `EEXIST` if it is in, `EPERM` for a regular file.
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<(), Errno> {
        epoll::add(
            &self.fd,
            fd,
            epoll::EventData::new_u64(token),
            interest.flags(),
        )
    }

    /// Changes token and interest. Reports anew whatever is ready, also with [`Interest::edge`].
    pub fn modify(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<(), Errno> {
        epoll::modify(
            &self.fd,
            fd,
            epoll::EventData::new_u64(token),
            interest.flags(),
        )
    }

    /// Takes `fd` out.
    pub fn remove(&self, fd: impl AsFd) -> Result<(), Errno> {
        epoll::delete(&self.fd, fd)
    }

    /// Waits until something is ready, at most `timeout` (nanoseconds count, `epoll_pwait2(2)`), or
    /// for ever. Returns how many events are in `events`; a signal ends the wait with none.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> Result<usize, Errno> {
        let spec = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        events.0.clear();
        let space = rustix::buffer::spare_capacity(&mut events.0);
        match epoll::wait(&self.fd, space, spec.as_ref()) {
            Ok(count) => Ok(count),
            Err(Errno::INTR) => Ok(0),
            Err(Errno::NOSYS) => self.wait_ms(events, timeout),
            Err(errno) => Err(errno),
        }
    }

    /// The same where there is no `epoll_pwait2` (Linux before 5.11, qemu-user): whole milliseconds, rounded up.
    #[cold]
    fn wait_ms(&self, events: &mut Events, timeout: Option<Duration>) -> Result<usize, Errno> {
        let ms = timeout.map_or(-1, |timeout| {
            i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
        });
        const { assert!(size_of::<epoll::Event>() == size_of::<libc::epoll_event>()) };
        let (fd, room) = (self.fd.as_raw_fd(), events.0.as_mut_ptr().cast());
        // SAFETY: `room` has room for `EVENTS_MAX` events, of which the kernel fills as many as it says.
        let count = unsafe { libc::epoll_wait(fd, room, EVENTS_MAX as i32, ms) };
        let Ok(count) = usize::try_from(count) else {
            let errno = Errno::from_io_error(&std::io::Error::last_os_error());
            return errno.filter(|e| *e != Errno::INTR).map_or(Ok(0), Err);
        };
        // SAFETY: so many were filled.
        unsafe { events.0.set_len(count) };
        Ok(count)
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventfd;

    /// With an edge each signal is reported once though the counter is never read; with a level
    /// it is reported until it is.
    #[test]
    fn edges_and_levels() -> Result<(), Errno> {
        let (epoll, fd) = (Epoll::create()?, eventfd::create()?);
        let mut events = Events::default();
        epoll.add(&fd, 7, Interest::READABLE_EDGE)?;
        for _ in 0..2 {
            eventfd::signal(&fd)?;
            assert_eq!(epoll.wait(&mut events, Some(Duration::ZERO))?, 1);
            let ready = Ready {
                token: 7,
                readable: true,
                writable: false,
                closed: false,
            };
            assert_eq!(events.iter().collect::<Vec<_>>(), [ready]);
            assert_eq!(epoll.wait(&mut events, Some(Duration::ZERO))?, 0);
        }
        epoll.modify(&fd, 8, Interest::READABLE)?;
        for _ in 0..2 {
            assert_eq!(epoll.wait(&mut events, Some(Duration::ZERO))?, 1);
        }
        epoll.remove(&fd)?;
        assert_eq!(epoll.wait(&mut events, Some(Duration::from_micros(50)))?, 0);
        Ok(())
    }
}

//! What a thread or a program sleeps on: one set for reading, one for writing.
//!
//! # Model
//! ```text
//!  bell      an eventfd of ours     level    a call left something to do; another thread has news
//!  server    the ring's eventfd     edge     the daemon signalled: frames, or room
//!  socket    control socket         level    the daemon speaks, or is gone
//!  timer     timerfd                level    time to connect again
//! ```
//! A set is an epoll(7) descriptor, which is readable as long as one of these is. The ring's eventfd is in both sets and nobody
//! ever reads it: each set takes an edge of its own from every signal, so that a reader that takes its edge takes none from a
//! writer. An edge stays in the set until [`Set::take`].
//!
//! # Synchronization
//! Whoever takes from a set looks at the ring behind it, and either finds something, or has armed the ring before it looked: see
//! the crate's theory.

use core::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use windlass_sys::epoll::{Epoll, Interest};
use windlass_sys::{Errno, eventfd};

const BELL: u64 = 0;
const SERVER: u64 = 1;
const LINK: u64 = 2;

/// Descriptors that are taken from a set at a time; it has fewer.
const MEMBERS_MAX: usize = 16;
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Both sets of a handle.
#[derive(Debug)]
pub(crate) struct Sets {
    pub(crate) reading: Set,
    pub(crate) writing: Set,
}

impl Sets {
    pub(crate) fn each(&self) -> [&Set; 2] {
        [&self.reading, &self.writing]
    }
}

/// One set.
#[derive(Debug)]
pub(crate) struct Set {
    epoll: Epoll,
    bell: OwnedFd,
}

impl Set {
    pub(crate) fn new() -> Result<Set, Errno> {
        let set = Set {
            epoll: Epoll::create()?,
            bell: eventfd::create()?,
        };
        set.epoll.add(&set.bell, BELL, Interest::READABLE)?;
        Ok(set)
    }

    /// Whatever the link waits for: a socket or a timer.
    pub(crate) fn add_link(&self, fd: impl AsFd) -> Result<(), Errno> {
        self.epoll.add(fd, LINK, Interest::READABLE)
    }

    /// The eventfd that the server signals.
    pub(crate) fn add_server(&self, fd: impl AsFd) -> Result<(), Errno> {
        self.epoll.add(fd, SERVER, Interest::READABLE_EDGE)
    }

    /// Takes a descriptor out. A child of this process may have it too, so that to close it would not be enough.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = self.epoll.remove(fd);
    }

    /// Makes it readable until somebody takes.
    pub(crate) fn ring(&self) {
        // Ours alone: it neither fills up nor fails.
        let _ = eventfd::signal(&self.bell);
    }

    /// Takes what made it readable. Whether the link has something to do, which then stays in the set until it is done.
    pub(crate) fn take(&self) -> bool {
        let mut room = [const { MaybeUninit::uninit() }; MEMBERS_MAX];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut room, Some(&NOW)) else {
            return false;
        };
        let mut link = false;
        for event in events {
            match event.data.u64() {
                BELL => {
                    let _ = eventfd::drain(&self.bell);
                }
                LINK => link = true,
                _ => {}
            }
        }
        link
    }

    /// Sleeps until it is readable, at most `limit`.
    ///
    /// # Errors
    /// `EINTR` behind a signal handler.
    pub(crate) fn sleep(&self, limit: Option<Duration>) -> Result<(), Errno> {
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
        rustix::event::poll(&mut fds, limit.as_ref()).map(|_| ())
    }
}

impl AsFd for Set {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

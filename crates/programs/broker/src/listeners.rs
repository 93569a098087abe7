//! The sockets at which the broker listens: one for everybody, and at root's one more for each user that has come.
//!
//! # Model
//! Connections that nobody has taken yet wait in a queue of fixed length, and a connection beyond it is refused. A user who connects
//! as fast as he can fills the queue of the socket that everybody reaches. So a user who has connected once gets a socket of his
//! own, beside that one, with his number behind its name: only he can connect to it. The library tries that first.
//!
//! # States
//! A socket *rests* for a while, and nothing is taken from it, after a user came to it who has asked too much.
//!
//! # Limits
//! [`OWN_SOCKETS_MAX`] users; further ones share the common socket.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::io::Errno;
use windlass_sys::epoll::{Epoll, Interest};
use windlass_sys::unix::{self, Listener, SocketKind};

use crate::limits::OWN_SOCKETS_MAX;
use crate::server::{COMMON, OWN_LISTENER};

/// All of them, by their tokens.
pub(crate) struct Listeners {
    pub(crate) path: PathBuf,
    all: BTreeMap<u64, Listener>,
    /// How long those that rest do.
    resting: BTreeMap<u64, Instant>,
}

impl Listeners {
    pub(crate) fn new(path: &Path, epoll: &Epoll, common: Listener) -> Result<Self, Errno> {
        let mut listeners = Self {
            path: path.to_owned(),
            all: BTreeMap::new(),
            resting: BTreeMap::new(),
        };
        listeners.add(epoll, COMMON, common)?;
        Ok(listeners)
    }

    fn add(&mut self, epoll: &Epoll, token: u64, listener: Listener) -> Result<(), Errno> {
        // The last close of a descriptor that came with a request would be ours, and may wait. Before Linux 6.16 it can come.
        let _ = unix::set_accepts_fds(&listener, false);
        epoll.add(&listener, token, Interest::READABLE)?;
        self.all.insert(token, listener);
        Ok(())
    }

    /// Gives a user a socket, if he has none. One who cannot have one goes on at the common socket.
    pub(crate) fn give(&mut self, epoll: &Epoll, uid: u32, gid: u32) {
        let token = OWN_LISTENER | u64::from(uid);
        if self.all.contains_key(&token) || self.all.len() > OWN_SOCKETS_MAX {
            return;
        }
        let mut path = self.path.as_os_str().to_owned();
        path.push(format!(".{uid}"));
        // A former broker's: there is no other one while this one listens at the common path.
        let _ = std::fs::remove_file(&path);
        let kind = SocketKind::SeqPacket;
        if let Ok(listener) = unix::bind_socket(path.as_ref(), kind, 0o600, Some((uid, gid))) {
            let _ = self.add(epoll, token, listener);
        }
    }

    /// Takes a connection. `EAGAIN` if none waits, or the socket rests.
    pub(crate) fn accept(&self, token: u64) -> Result<OwnedFd, Errno> {
        let listener = self.all.get(&token);
        let listener = listener.filter(|_| !self.resting.contains_key(&token));
        listener.ok_or(Errno::AGAIN)?.accept()
    }

    /// The socket rests.
    pub(crate) fn rest(&mut self, epoll: &Epoll, token: u64, until: Instant) {
        if let Some(listener) = self.all.get(&token)
            && epoll.remove(listener).is_ok()
        {
            self.resting.insert(token, until);
        }
    }

    /// Takes connections again where none were taken for long enough. Gives the time of the next such moment.
    pub(crate) fn wake(&mut self, epoll: &Epoll, now: Instant) -> Option<Instant> {
        self.resting.retain(|token, until| {
            let listener = self.all.get(token).filter(|_| *until <= now);
            listener.is_none_or(|it| epoll.add(it, *token, Interest::READABLE).is_err())
        });
        self.resting.values().min().copied()
    }

    /// Whether others find the common socket.
    pub(crate) fn is_in_place(&self) -> bool {
        self.all.get(&COMMON).is_some_and(Listener::is_in_place)
    }

    /// Removes the paths, as far as they are still these sockets'.
    pub(crate) fn unlink(&self) {
        for listener in self.all.values() {
            // Somebody else's by now, or gone: it is not there any more in either case.
            let _ = listener.unlink();
        }
    }
}

//! The sockets at which root's broker listens: one for everybody, and one more for each user that has come.
//!
//! # Model
//! Connections that nobody has taken yet wait in a queue of fixed length, and a connection beyond it is refused. A user who connects
//! as fast as he can fills the queue of the socket that everybody reaches. So a user who has connected once gets a socket of his
//! own, beside that one, with his number behind its name: only he can connect to it. The library tries that first.
//!
//! # States
//! A socket at which a user came who has asked too much *rests* for [`REST`]: nothing is taken from it.
//!
//! # Limits
//! [`OWN_SOCKETS_MAX`] users; further ones share the common socket.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use windlass_sys::unix::{self, BindError, Listener, SocketKind};

use crate::limits::{OWN_SOCKETS_MAX, REST};

/// All of them.
#[derive(Debug)]
pub(crate) struct Listeners {
    path: PathBuf,
    pub(crate) common: Listener,
    own: BTreeMap<u32, Listener>,
    /// Those that rest, the common one as `None`, and how long.
    resting: BTreeMap<Option<u32>, Instant>,
}

impl Listeners {
    pub(crate) fn new(path: &Path, common: Listener) -> Self {
        Self {
            path: path.to_owned(),
            common,
            own: BTreeMap::new(),
            resting: BTreeMap::new(),
        }
    }

    /// A socket that a user gets, if he has none; an error if he cannot have one.
    pub(crate) fn give(&mut self, uid: u32, gid: u32) -> Result<Option<&Listener>, BindError> {
        if self.own.contains_key(&uid) || self.own.len() >= OWN_SOCKETS_MAX {
            return Ok(None);
        }
        let mut path = self.path.as_os_str().to_owned();
        path.push(format!(".{uid}"));
        // A former broker's: there is no other one while this one listens at the common path.
        let _ = std::fs::remove_file(&path);
        let kind = SocketKind::SeqPacket;
        let listener = unix::bind_socket(path.as_ref(), kind, 0o600, Some((uid, gid)))?;
        Ok(Some(self.own.entry(uid).insert_entry(listener).into_mut()))
    }

    /// The socket of a user, or the common one.
    pub(crate) fn get(&self, uid: Option<u32>) -> Option<&Listener> {
        match uid {
            None => Some(&self.common),
            Some(uid) => self.own.get(&uid),
        }
    }

    /// The socket rests from now on.
    pub(crate) fn rest(&mut self, uid: Option<u32>, now: Instant) {
        self.resting.insert(uid, now + REST);
    }

    /// When the next one has rested long enough.
    pub(crate) fn next_rested(&self) -> Option<Instant> {
        self.resting.values().min().copied()
    }

    /// One that has rested long enough, and rests no more.
    pub(crate) fn rested(&mut self, now: Instant) -> Option<Option<u32>> {
        let mut all = self.resting.iter();
        let uid = all.find_map(|(uid, until)| (*until <= now).then_some(*uid))?;
        self.resting.remove(&uid);
        Some(uid)
    }

    /// Removes the paths, as far as they are still these sockets'.
    pub(crate) fn unlink(&self) {
        for listener in self.own.values().chain([&self.common]) {
            // Somebody else's by now, or gone: it is not there any more in either case.
            let _ = listener.unlink();
        }
    }
}

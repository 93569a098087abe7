//! One plugin: its process or its connection, from one start to the next.
//!
//! # States
//! | state | left by |
//! | --- | --- |
//! | down, until [`Session::due`] | the time: it is started, or may connect |
//! | listening (a plugin that connects) | a connection of root, of the daemon's user or of the plugins' |
//! | up, not greeted | its `hello`; [`Pace::answer_max`] without one ends it |
//! | greeted | its end, a line that is no message, a `ping` without an answer, more unread bytes than [`OUT_BYTES_MAX`] |
//!
//! # Failure modes
//! Whatever ends a session kills its process. The next one is started after [`RESTART_MIN`], and later each time unless it lived for
//! [`Pace::restart_max`].

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use windlass_lookup::line::{LineError, Lines, decode, encode};
use windlass_lookup::protocol::{FromPlugin, Kind, Property, ToPlugin, VERSION};
use windlass_sys::epoll::{Epoll, Interest};
use windlass_sys::unix::{self, Listener, SocketKind};
use windlass_sys::{Errno, confined, trusted};

use super::{Pace, PluginFrom, PluginUser};

/// After how long a plugin that has ended is started again, at first.
const RESTART_MIN: Duration = Duration::from_millis(100);
/// Bytes that a plugin may leave unread.
const OUT_BYTES_MAX: usize = 4 << 20;
/// Bytes that are taken from one plugin in one turn.
const READ_BYTES_MAX: usize = 256 << 10;
/// Bytes that are read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// A plugin that is there.
struct Link {
    fd: OwnedFd,
    child: Option<Child>,
    lines: Lines,
    /// What it has not taken.
    out: Vec<u8>,
    /// What it said it is.
    greeting: Option<Greeting>,
    since: Instant,
    /// When it is asked for a sign of life next.
    ping: Instant,
    /// When it is late, with its `hello` or with the answer to the last `ping`.
    late: Option<Instant>,
    pings: u64,
    /// The `start` and `set` of each overlay, as long as it has not answered the last.
    open: BTreeMap<String, Open>,
}

/// What a plugin was told of one overlay, and has not answered.
#[derive(Default)]
struct Open {
    /// Answers that are to come.
    answers: u32,
    /// It has answered one that others follow: what it says now is of what nobody wants any more.
    is_behind: bool,
}

/// What a plugin says.
pub(super) struct Said {
    pub(super) message: FromPlugin,
    /// It is of a `set` that was given up: another one follows that the plugin has not answered.
    pub(super) is_behind: bool,
}

/// What a plugin says that it is.
pub(super) struct Greeting {
    pub(super) kind: Kind,
    pub(super) properties: Vec<Property>,
}

/// One plugin, there or not.
pub(super) struct Session {
    pub(super) from: PluginFrom,
    pace: Pace,
    /// What [`Epoll`] reports for it.
    token: u64,
    listener: Option<Listener>,
    link: Option<Link>,
    /// Why it is not there.
    reason: Option<String>,
    /// Why it has to end, though it is there.
    failed: Option<String>,
    /// When it is started next, or listened for.
    due: Option<Instant>,
    restart: Duration,
}

impl Session {
    /// One that is started at once.
    pub(super) fn new(from: PluginFrom, pace: Pace, token: u64) -> Self {
        Self {
            from,
            pace,
            token,
            listener: None,
            link: None,
            reason: None,
            failed: None,
            due: Some(Instant::now()),
            restart: RESTART_MIN,
        }
    }

    /// What it said that it is, if it is there.
    pub(super) fn greeting(&self) -> Option<&Greeting> {
        self.link.as_ref()?.greeting.as_ref()
    }

    /// Why it is not there; `None` if it is, or has not been started yet.
    pub(super) fn missing(&self) -> Option<&str> {
        self.reason.as_deref().filter(|_| self.link.is_none())
    }

    /// When [`Session::do_what_is_due`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let link = self.link.as_ref();
        let ping = link
            .filter(|link| link.late.is_none())
            .map(|link| link.ping);
        let late = link.and_then(|link| link.late);
        let failed = self.failed.as_ref().map(|_| Instant::now());
        [self.due, ping, late, failed].into_iter().flatten().min()
    }

    /// Starts it, listens for it, or asks for a sign of life.
    ///
    /// # Errors
    /// Why it cannot be started, or has to end.
    pub(super) fn do_what_is_due(&mut self, epoll: &Epoll) -> Result<(), String> {
        if let Some(reason) = self.failed.take() {
            return Err(reason);
        }
        let now = Instant::now();
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            return self.open(epoll);
        }
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        let max = self.pace.answer_max;
        match link.late {
            Some(late) if late > now => {}
            Some(_) if link.greeting.is_none() => {
                return Err(format!("it has not said hello for {} s", max.as_secs_f32()));
            }
            Some(_) => return Err(format!("it has not answered for {} s", max.as_secs_f32())),
            None if link.ping <= now => {
                link.pings += 1;
                link.late = Some(now + max);
                let id = link.pings;
                self.send(epoll, &ToPlugin::Ping { id });
            }
            None => {}
        }
        Ok(())
    }

    fn open(&mut self, epoll: &Epoll) -> Result<(), String> {
        match &self.from {
            PluginFrom::Command(words) => {
                let (program, words) = words.split_first().ok_or("no command")?;
                let (fd, child) = start(Path::new(program), words, self.pace.user)
                    .map_err(|reason| format!("{program}: {reason}"))?;
                self.meet(epoll, fd, Some(child))
            }
            PluginFrom::Socket(path) => {
                let owner = match self.pace.user {
                    PluginUser::Other { uid, gid } => Some((uid, gid)),
                    PluginUser::Own | PluginUser::Missing => None,
                };
                if self.listener.is_none() {
                    let listener = unix::bind_socket(path, SocketKind::Stream, 0o600, owner);
                    let listener = listener.map_err(|error| error.to_string())?;
                    // Before Linux 6.16 a plugin can send descriptors, whose close may keep this thread.
                    let _ = unix::set_accepts_fds(&listener, false);
                    self.listener = Some(listener);
                }
                if let Some(listener) = &self.listener {
                    let added = epoll.add(listener, self.token, Interest::READABLE);
                    added.map_err(|errno| errno.to_string())?;
                }
                // After one that was there, its end says more.
                let missing = || format!("no plugin has connected to {}", path.display());
                self.reason.get_or_insert_with(missing);
                Ok(())
            }
        }
    }

    /// Takes the connection that waits. Others wait until it has ended.
    fn accept(&mut self, epoll: &Epoll) -> Result<(), String> {
        let Some(listener) = &self.listener else {
            return Ok(());
        };
        let Ok(fd) = listener.accept() else {
            return Ok(());
        };
        let own = rustix::process::geteuid().as_raw();
        let is_ours = |uid| match self.pace.user {
            PluginUser::Other { uid: plugins, .. } => [0, own, plugins].contains(&uid),
            PluginUser::Own | PluginUser::Missing => [0, own].contains(&uid),
        };
        match unix::peer_credentials(&fd) {
            Ok(peer) if is_ours(peer.uid) => {
                let removed = epoll.remove(listener);
                removed.map_err(|errno| errno.to_string())?;
                self.meet(epoll, fd, None)
            }
            Ok(peer) => {
                tracing::warn!("a plugin of user {} is refused", peer.uid);
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }

    fn meet(&mut self, epoll: &Epoll, fd: OwnedFd, child: Option<Child>) -> Result<(), String> {
        let added = epoll.add(&fd, self.token, Interest::READABLE);
        let now = Instant::now();
        self.link = Some(Link {
            fd,
            child,
            lines: Lines::default(),
            out: Vec::new(),
            greeting: None,
            since: now,
            ping: now,
            late: Some(now + self.pace.answer_max),
            pings: 0,
            open: BTreeMap::new(),
        });
        added.map_err(|errno| errno.to_string())?;
        self.send(epoll, &ToPlugin::Hello { v: VERSION });
        Ok(())
    }

    /// Something can be read or written. Gives the messages that came, at most [`READ_BYTES_MAX`] of them, and what ends it after
    /// them.
    pub(super) fn ready(&mut self, epoll: &Epoll) -> (Vec<Said>, Result<(), String>) {
        let mut messages = Vec::new();
        if self.link.is_none() {
            return (messages, self.accept(epoll));
        }
        let read = self.receive(epoll, &mut messages);
        let done = read.and_then(|()| self.flush(epoll));
        (messages, done)
    }

    fn receive(&mut self, epoll: &Epoll, messages: &mut Vec<Said>) -> Result<(), String> {
        let mut unknown = Vec::new();
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        let mut room = vec![0; CHUNK_BYTES];
        for _ in 0..READ_BYTES_MAX / CHUNK_BYTES {
            let received = match unix::receive_with_fds(&link.fd, &mut room, 0) {
                Ok(received) => received.bytes,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(Errno::CONNRESET) => 0,
                Err(errno) => return Err(format!("its connection: {errno}")),
            };
            if received == 0 {
                return Err("it has ended or closed its connection".to_owned());
            }
            link.lines.feed(room.get(..received).unwrap_or_default());
            loop {
                let line = link.lines.next_line().map_err(|error| error.to_string())?;
                let Some(line) = line else {
                    break;
                };
                match decode(line) {
                    Ok(message) => messages.extend(link.take(message, &self.pace)?),
                    Err(LineError::UnknownOp(what)) => unknown.push(what),
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        for what in unknown {
            self.send(epoll, &ToPlugin::Unsupported { what });
        }
        Ok(())
    }

    /// Says something to it, if it is there. One that does not read ends soon: nothing is left out of what it is told.
    pub(super) fn send(&mut self, epoll: &Epoll, message: &ToPlugin) {
        let Some(link) = self.link.as_mut().filter(|_| self.failed.is_none()) else {
            return;
        };
        if let ToPlugin::Start(of) | ToPlugin::Set(of) = message {
            link.open.entry(of.overlay.clone()).or_default().answers += 1;
        }
        let done = match encode(message) {
            Ok(line) if link.out.len() + line.len() <= OUT_BYTES_MAX => {
                link.out.extend(line);
                self.flush(epoll)
            }
            Ok(_) => Err("it does not read what it is told".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        self.failed = done.err();
    }

    fn flush(&mut self, epoll: &Epoll) -> Result<(), String> {
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        while !link.out.is_empty() {
            match unix::send_now(&link.fd, &link.out) {
                Ok(sent) => drop(link.out.drain(..sent)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                // What it has said before it ended is read first.
                Err(Errno::PIPE | Errno::CONNRESET) => link.out.clear(),
                Err(errno) => return Err(format!("its connection: {errno}")),
            }
        }
        let interest = Interest {
            writable: !link.out.is_empty(),
            ..Interest::READABLE
        };
        let changed = epoll.modify(&link.fd, self.token, interest);
        changed.map_err(|errno| errno.to_string())
    }

    /// Ends what there is of it. Gives its process, which has to be waited for.
    pub(super) fn close(&mut self, epoll: &Epoll, reason: String) -> Option<Child> {
        let now = Instant::now();
        let link = self.link.take();
        let lived = link.as_ref().map(|link| now.duration_since(link.since));
        if lived.is_some_and(|lived| lived >= self.pace.restart_max) {
            self.restart = RESTART_MIN;
        }
        self.due = Some(now + self.restart);
        self.restart = (self.restart * 2).min(self.pace.restart_max);
        (self.reason, self.failed) = (Some(reason), None);
        let link = link?;
        // It may not have come to be in it.
        let _ = epoll.remove(&link.fd);
        let mut child = link.child?;
        // It has ended, or will.
        let _ = child.kill();
        Some(child)
    }

    /// Ends it for good: as [`Session::close`], and nobody can connect any more.
    pub(super) fn end(&mut self, epoll: &Epoll) -> Option<Child> {
        if let Some(listener) = self.listener.take() {
            let _ = epoll.remove(&listener);
            // It is somebody else's by now, at worst.
            let _ = listener.unlink();
        }
        self.close(epoll, String::new())
    }
}

impl Link {
    /// What of the session itself a message is; else the message.
    fn take(&mut self, message: FromPlugin, pace: &Pace) -> Result<Option<Said>, String> {
        let own = self.take_own(message, pace)?;
        Ok(own.map(|message| {
            let open = message.overlay().and_then(|overlay| self.open.get(overlay));
            let is_behind = open.is_some_and(|open| open.is_behind);
            Said { message, is_behind }
        }))
    }

    fn take_own(&mut self, message: FromPlugin, pace: &Pace) -> Result<Option<FromPlugin>, String> {
        match message {
            FromPlugin::Hello { v, .. } if v != VERSION => {
                Err(format!("it speaks version {v}, not {VERSION}"))
            }
            FromPlugin::Hello { .. } if self.greeting.is_some() => {
                Err("it says hello a second time".to_owned())
            }
            FromPlugin::Hello {
                kind,
                ref properties,
                ..
            } => {
                let properties = properties.clone();
                self.greeting = Some(Greeting { kind, properties });
                (self.late, self.ping) = (None, Instant::now() + pace.ping);
                Ok(Some(message))
            }
            _ if self.greeting.is_none() => Err("it does not begin with hello".to_owned()),
            FromPlugin::Pong { id } if id == self.pings => {
                (self.late, self.ping) = (None, Instant::now() + pace.ping);
                Ok(None)
            }
            FromPlugin::Pong { id } => Err(format!("it answers ping {id}, which was not asked")),
            FromPlugin::Unsupported { ref what } => {
                tracing::debug!("a lookup plugin does not know {what}");
                Ok(Some(message))
            }
            FromPlugin::Ok { ref overlay } | FromPlugin::Error { ref overlay, .. } => {
                let is_last = self.is_last_answer(overlay);
                Ok(is_last.then_some(message))
            }
            message => Ok(Some(message)),
        }
    }

    /// Whether an answer is that to the last `start` or `set` of its overlay: each has one, in their order.
    fn is_last_answer(&mut self, overlay: &str) -> bool {
        let Some(open) = self.open.get_mut(overlay) else {
            return true;
        };
        open.answers -= 1;
        open.is_behind = open.answers > 0;
        if open.is_behind {
            return false;
        }
        self.open.remove(overlay);
        true
    }
}

/// Starts a program as a plugin.
fn start(program: &Path, words: &[String], user: PluginUser) -> Result<(OwnedFd, Child), String> {
    let user = match user {
        PluginUser::Own => None,
        PluginUser::Other { uid, gid } => Some((uid, gid)),
        PluginUser::Missing => {
            let user = super::PLUGIN_USER;
            return Err(format!(
                "there is no user {user} to run it (useradd --system {user})"
            ));
        }
    };
    trusted::check_program(program).map_err(|error| error.to_string())?;
    let (ours, theirs) = unix::pair(SocketKind::Stream).map_err(|errno| errno.to_string())?;
    // As of a listener.
    let _ = unix::set_accepts_fds(ours.as_fd(), false);
    let child = confined::spawn(program, words, user, theirs);
    Ok((ours, child.map_err(|error| error.to_string())?))
}

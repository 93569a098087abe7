//! The way to the daemon: connects, notices the end, connects again.
//!
//! # States
//! ```text
//! Waiting --- connected ---> Shaking --- CONNECTED ---> Ready --- transmit side moved ---> Up --- daemon gone ---> Waiting
//!    |  ^                       |
//!    |  +------- refused -------+
//!    +--- absent for longer than the patience ---> Gone
//! ```
//! There is no thread: a call of the program that finds something to do here does it. None of it waits.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};
use windlass_attach::memif::ClientConfig;
use windlass_attach::memif::HANDSHAKE_TIMEOUT;
use windlass_attach::memif::msg::{MSG_BYTES, Message};
use windlass_attach::memif::offer::Dialogue;
use windlass_sys::timer::{Timer, monotonic_now};
use windlass_sys::unix::{self, SocketKind};
use windlass_sys::{Errno, IoSlice};

use crate::conn::Conn;
use crate::ready::{Set, Sets};

/// Wait before the first new attempt.
const BACKOFF_FIRST: Duration = Duration::from_millis(10);
/// Longest wait between attempts.
const BACKOFF_LONGEST: Duration = Duration::from_millis(500);

/// The way to the daemon.
#[derive(Debug)]
pub(crate) struct Link {
    config: ClientConfig,
    timer: Timer,
    state: State,
    try_at: Instant,
    backoff: Duration,
    /// Since when the device is not there.
    absent_since: Option<Instant>,
    pub(crate) patience: Duration,
    /// Why the last attempt failed.
    pub(crate) failure: Option<Errno>,
    /// What a server said that refused it.
    pub(crate) told: String,
}

#[derive(Debug)]
enum State {
    Waiting,
    Shaking {
        socket: OwnedFd,
        dialogue: Box<Dialogue>,
        deadline: Instant,
    },
    Ready {
        socket: OwnedFd,
        conn: Arc<Conn>,
    },
    Up {
        socket: OwnedFd,
        conn: Arc<Conn>,
    },
    Gone,
}

/// What a step brought.
#[derive(Debug)]
pub(crate) enum News {
    /// Nothing, or nothing yet.
    None,
    /// A connection, to be put to use and then [`Link::taken`].
    Ready(Arc<Conn>),
    /// The connection has ended.
    Down,
    /// The device is gone for good.
    Gone,
}

fn send(socket: &OwnedFd, dialogue: &Dialogue) -> Result<(), Errno> {
    if let Some((message, fd)) = dialogue.to_say() {
        let record = message.encode();
        unix::send_with_fds(socket, &[IoSlice::new(&record)], fd.as_slice())?;
    }
    Ok(())
}

/// Ends a connection. A child of this process may have its socket too, so that to close ours would not be enough.
fn leave(sets: &Sets, socket: &OwnedFd) {
    let _ = shutdown(socket, Shutdown::Both);
    for set in sets.each() {
        set.remove(socket);
    }
}

/// The next message, `None` if none waits. Why a server ends the connection is in `told`.
fn receive(socket: &OwnedFd, told: &mut String) -> Result<Option<Message>, Errno> {
    let mut record = [0; MSG_BYTES];
    let received = match unix::receive_with_fds(socket, &mut record, 0) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    if received.bytes == 0 {
        return Err(Errno::CONNRESET);
    }
    match record.get(..received.bytes).map(Message::decode) {
        Some(Ok(Message::Disconnect(why))) if why.code != 0 => {
            *told = why.reason.to_string();
            let code = i32::try_from(why.code).unwrap_or(0);
            Err(Errno::from_raw_os_error(code))
        }
        Some(Ok(Message::Disconnect(_))) => Err(Errno::CONNREFUSED),
        Some(Ok(message)) => Ok(Some(message)),
        _ => Err(Errno::PROTO),
    }
}

impl Link {
    /// A link that connects with its first step.
    pub(crate) fn new(config: ClientConfig, sets: &Sets) -> Result<Link, Errno> {
        let timer = Timer::create()?;
        for set in sets.each() {
            set.add_link(&timer)?;
        }
        Ok(Link {
            config,
            timer,
            state: State::Waiting,
            try_at: Instant::now(),
            backoff: BACKOFF_FIRST,
            absent_since: None,
            patience: crate::PATIENCE,
            failure: None,
            told: String::new(),
        })
    }

    /// Makes the sets readable then.
    pub(crate) fn wake_at(&self, at: Instant) {
        let rest = at.saturating_duration_since(Instant::now());
        // A timer of ours with a time that is one.
        let _ = self.timer.set_at(monotonic_now() + rest);
    }

    /// Goes on as far as is possible without waiting.
    pub(crate) fn step(&mut self, sets: &Sets) -> News {
        if self.timer.take_expirations().is_ok_and(|times| times != 0) {
            // Of the two who may wait for it, one has taken it from the other.
            sets.each().into_iter().for_each(Set::ring);
        }
        let now = Instant::now();
        if matches!(self.state, State::Waiting) && now >= self.try_at {
            match self.connect(sets, now) {
                Ok(shaking) => self.state = shaking,
                Err(errno) => self.failed(errno, now),
            }
        }
        match core::mem::replace(&mut self.state, State::Waiting) {
            State::Shaking {
                socket,
                mut dialogue,
                deadline,
            } => match self.shake(&socket, &mut dialogue, deadline, now) {
                Ok(false) => {
                    self.state = State::Shaking {
                        socket,
                        dialogue,
                        deadline,
                    }
                }
                Ok(true) => match self.rise(*dialogue, sets) {
                    Ok(conn) => self.state = State::Ready { socket, conn },
                    Err(errno) => self.hang_up(sets, &socket, errno, now),
                },
                Err(errno) => self.hang_up(sets, &socket, errno, now),
            },
            State::Up { socket, conn } => match receive(&socket, &mut self.told) {
                Ok(None) if !conn.is_dead() => self.state = State::Up { socket, conn },
                _ => return self.end(sets, &socket, conn, now),
            },
            State::Ready { socket, conn } => match receive(&socket, &mut self.told) {
                Ok(None) => self.state = State::Ready { socket, conn },
                _ => return self.end(sets, &socket, conn, now),
            },
            other => self.state = other,
        }
        // A wait for room may have set the timer to another time.
        match &self.state {
            State::Waiting => self.wake_at(self.try_at),
            State::Shaking { deadline, .. } => self.wake_at(*deadline),
            State::Ready { conn, .. } => return News::Ready(conn.clone()),
            State::Gone => return News::Gone,
            State::Up { .. } => {}
        }
        News::None
    }

    /// The connection that was ready is in use.
    pub(crate) fn taken(&mut self) {
        match core::mem::replace(&mut self.state, State::Waiting) {
            State::Ready { socket, conn } => self.state = State::Up { socket, conn },
            other => self.state = other,
        }
    }

    /// The handle is closed.
    pub(crate) fn close(&self, sets: &Sets) {
        if let State::Shaking { socket, .. }
        | State::Ready { socket, .. }
        | State::Up { socket, .. } = &self.state
        {
            leave(sets, socket);
        }
    }

    /// Whether the daemon is there.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    fn connect(&self, sets: &Sets, now: Instant) -> Result<State, Errno> {
        let socket = unix::connect(&self.config.path, SocketKind::SeqPacket)?;
        for set in sets.each() {
            set.add_link(&socket)?;
        }
        Ok(State::Shaking {
            socket,
            dialogue: Box::default(),
            deadline: now + HANDSHAKE_TIMEOUT,
        })
    }

    /// Takes the messages that are there. Whether the last was CONNECTED.
    fn shake(
        &mut self,
        socket: &OwnedFd,
        dialogue: &mut Dialogue,
        deadline: Instant,
        now: Instant,
    ) -> Result<bool, Errno> {
        while let Some(message) = receive(socket, &mut self.told)? {
            let connected = dialogue.take(&message, &self.config);
            if connected.map_err(|_| Errno::PROTO)?.is_some() {
                return Ok(true);
            }
            // The daemon takes a page that it must wait for as the sign of a bad client.
            if let (Message::Hello(_), Some(memory)) = (&message, dialogue.memory()) {
                memory.populate();
            }
            send(socket, dialogue)?;
        }
        if now >= deadline {
            Err(Errno::TIMEDOUT)
        } else {
            Ok(false)
        }
    }

    fn rise(&mut self, dialogue: Dialogue, sets: &Sets) -> Result<Arc<Conn>, Errno> {
        let (_, offer) = dialogue.finish().ok_or(Errno::PROTO)?;
        let conn = Conn::new(offer, self.config.offloads)?;
        for set in sets.each() {
            set.add_server(&conn.rx.event)?;
            set.add_link(conn.alarm())?;
        }
        (self.absent_since, self.failure, self.backoff) = (None, None, BACKOFF_FIRST);
        let _ = self.timer.clear();
        Ok(Arc::new(conn))
    }

    /// Ends an attempt that has a socket.
    fn hang_up(&mut self, sets: &Sets, socket: &OwnedFd, errno: Errno, now: Instant) {
        leave(sets, socket);
        self.failed(errno, now);
    }

    /// Ends a connection.
    fn end(&mut self, sets: &Sets, socket: &OwnedFd, conn: Arc<Conn>, now: Instant) -> News {
        conn.fail();
        leave(sets, socket);
        for set in sets.each() {
            set.remove(&conn.rx.event);
            set.remove(conn.alarm());
        }
        self.try_at = now;
        News::Down
    }

    fn failed(&mut self, errno: Errno, now: Instant) {
        self.failure = Some(errno);
        // A daemon that restarts leaves its socket, at which nobody answers for a while.
        let absent = matches!(
            errno,
            Errno::NOENT
                | Errno::NOTDIR
                | Errno::ACCESS
                | Errno::NXIO
                | Errno::BUSY
                | Errno::OPNOTSUPP
        );
        self.absent_since = absent.then(|| self.absent_since.unwrap_or(now));
        let waited = self
            .absent_since
            .map_or(Duration::ZERO, |since| now - since);
        if absent && waited >= self.patience {
            self.state = State::Gone;
            return;
        }
        self.state = State::Waiting;
        self.try_at = now + self.backoff;
        self.backoff = (self.backoff * 2).min(BACKOFF_LONGEST);
    }
}

//! An upgrade under traffic: the next daemon gets ready while this one serves, and then takes its place.
//!
//! # Model
//! ```text
//! predecessor                                    successor
//!  SIGUSR2: starts the program of its argv[0] -->  options, stored document, workers, clock
//!  serves on                                <-- 1 byte: ready
//!  sends the control socket and TAPs' queues --> keeps them
//!  ends the API, lets go of members and locks; closes
//!                                           -->  end of file: takes locks, makes members, serves
//! ```
//! The two speak over a socket of messages, which is the successor's standard input. Requests that come meanwhile wait in the
//! control socket, and frames of namespaces in the queues of their TAPs, whose carrier stays. The service manager is told the
//! successor's process id before the predecessor ends.
//!
//! # Failure modes
//! A successor that ends, is not ready within [`READY_TIME_MAX`] or stops taking what it is handed is given up: its predecessor
//! serves on. One that stops once it has all is not noticed. A predecessor that dies closes the socket, and the successor goes on, over whatever a kill leaves.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use tokio::io::AsyncReadExt;
use tokio::time::Instant;
use windlass_attach::endpoint::Handed;
use windlass_sys::unix::{FDS_MAX, SocketKind, inherited, pair, receive_with_fds, send_with_fds};

/// The option with which a successor is started.
pub const SUCCESSOR: &str = "--successor";

/// Time that a successor has to get ready.
pub const READY_TIME_MAX: Duration = Duration::from_secs(10);

/// Time that a successor has to take each of what it is handed.
const TAKING_TIME_MAX: Duration = Duration::from_secs(2);

/// What a message brings, in its first byte; the mark of a TAP follows.
const LISTENER: u8 = b'l';
const MANAGED_LISTENER: u8 = b'm';
const TAP: u8 = b't';

/// Longest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 512;

/// The control socket of a predecessor.
#[derive(Debug)]
pub struct Listener {
    /// It listens already.
    pub socket: UnixListener,
    /// The service manager made it, and owns its path.
    pub is_managed: bool,
}

/// A successor that was started.
#[derive(Debug)]
pub struct Successor {
    child: Child,
    socket: tokio::net::UnixStream,
    ready_until: Instant,
}

impl Successor {
    /// Starts the program that this process was started as, with the same arguments.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start() -> Result<Self> {
        let mut words = std::env::args_os();
        let program = words.next().context("no name of this program")?;
        let (ours, theirs) = pair(SocketKind::SeqPacket)?;
        rustix::io::ioctl_fionbio(&theirs, false)?;
        let child = Command::new(&program)
            .args(words.filter(|word| word != SUCCESSOR))
            .arg(SUCCESSOR)
            // It was for this process; the successor reads WATCHDOG_USEC alone.
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::from(theirs))
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self {
            child,
            socket: tokio::net::UnixStream::from_std(UnixStream::from(ours))?,
            ready_until: Instant::now() + READY_TIME_MAX,
        })
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// If it ends before, or is late.
    pub async fn ready(&mut self) -> Result<()> {
        match tokio::time::timeout_at(self.ready_until, self.socket.read_u8()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => bail!("it ended before it was ready: see its lines above"),
            Err(_) => bail!("not ready in {} s", READY_TIME_MAX.as_secs()),
        }
    }

    /// Hands the control socket and members over. The successor goes on when this value is dropped.
    ///
    /// # Errors
    /// If it has ended, or takes nothing for 2 s.
    pub fn hand_over(&self, listener: &Listener, members: &[Handed]) -> Result<()> {
        // The successor does nothing but read.
        rustix::io::ioctl_fionbio(&self.socket, false)?;
        set_socket_timeout(&self.socket, Timeout::Send, Some(TAKING_TIME_MAX))?;
        let kind = if listener.is_managed {
            MANAGED_LISTENER
        } else {
            LISTENER
        };
        self.send(kind, "", &[listener.socket.as_fd()])?;
        for Handed { mark, fds } in members {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            self.send(TAP, mark, &fds)?;
        }
        Ok(())
    }

    fn send(&self, kind: u8, mark: &str, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let kind = [kind];
        let parts = [IoSlice::new(&kind), IoSlice::new(mark.as_bytes())];
        send_with_fds(&self.socket, &parts, fds).context("the successor takes nothing")?;
        Ok(())
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it.
    pub fn give_up(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a predecessor has left to its successor; nothing of a daemon without one.
#[derive(Debug, Default)]
pub struct Inheritance {
    /// Its control socket.
    pub listener: Option<Listener>,
    /// Its members.
    pub members: Vec<Handed>,
}

/// The successor's end: nothing to wait for in a daemon without a predecessor.
#[derive(Debug, Default)]
pub struct Turn {
    predecessor: Option<OwnedFd>,
}

impl Turn {
    /// Of a successor: the socket is standard input, which is replaced.
    ///
    /// # Errors
    /// If standard input is closed.
    pub fn of_successor() -> Result<Self> {
        let socket = inherited(0).context("no standard input")?;
        let null = std::fs::File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null).context("standard input")?;
        Ok(Self {
            predecessor: Some(socket),
        })
    }

    /// Says that this process is ready, and waits until the predecessor has let go of everything, or has died.
    ///
    /// # Errors
    /// If there was no predecessor: standard input is no socket.
    pub fn wait(&mut self) -> Result<Inheritance> {
        let mut inheritance = Inheritance::default();
        let Some(predecessor) = self.predecessor.take() else {
            return Ok(inheritance);
        };
        send_with_fds(&predecessor, &[IoSlice::new(&[1])], &[])
            .with_context(|| format!("{SUCCESSOR} is for windlassd itself"))?;
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        loop {
            let Ok(message) = receive_with_fds(&predecessor, &mut bytes, FDS_MAX) else {
                return Ok(inheritance);
            };
            let Some((kind, mark)) = bytes.get(..message.bytes).and_then(<[u8]>::split_first)
            else {
                return Ok(inheritance);
            };
            inheritance.add(*kind, mark, message.fds);
        }
    }
}

impl Inheritance {
    fn add(&mut self, kind: u8, mark: &[u8], fds: Vec<OwnedFd>) {
        if kind == TAP {
            let mark = String::from_utf8_lossy(mark).into_owned();
            self.members.push(Handed { mark, fds });
        } else if let Some(socket) = fds.into_iter().next() {
            self.listener = Some(Listener {
                socket: UnixListener::from(socket),
                is_managed: kind == MANAGED_LISTENER,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A successor that stands still while it is handed more than a socket holds does not keep its predecessor waiting.
    #[test]
    fn a_successor_that_takes_nothing_is_given_up() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let _inside = runtime.enter();
        let (ours, theirs) = pair(SocketKind::SeqPacket).expect("a pair");
        let child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::from(theirs))
            .spawn()
            .expect("a child");
        let successor = Successor {
            child,
            socket: tokio::net::UnixStream::from_std(UnixStream::from(ours)).expect("a stream"),
            ready_until: Instant::now(),
        };
        let directory = tempfile::tempdir().expect("a directory");
        let listener = Listener {
            socket: UnixListener::bind(directory.path().join("s")).expect("a listener"),
            is_managed: false,
        };
        let members: Vec<_> = (0..10_000)
            .map(|number| Handed {
                mark: number.to_string(),
                fds: Vec::new(),
            })
            .collect();
        let began = Instant::now();
        assert!(successor.hand_over(&listener, &members).is_err());
        assert!(began.elapsed() < 5 * TAKING_TIME_MAX);
        successor.give_up();
    }
}

//! An upgrade under traffic: the next daemon gets ready while this one serves, and then takes its place.
//!
//! # Model
//! ```text
//! predecessor                                    successor
//!  SIGUSR2: starts the program of its argv[0] -->  options, workers, clock, members of the stored document
//!  serves on                                <-- 1 byte: ready
//!  ends the API
//!  sends the control socket, TAPs' queues,
//!  guests' sessions                         -->  reads the document again, opens TAPs, maps guests' memory
//!  forwards on                              <-- 1 byte: taken
//!  leaves the rings alone (the gap begins)
//!  says so                                  -->  starts rings on what it was handed (the gap ends)
//!  sends its counters, ends                 <-- 1 byte: serves
//!                                           -->  end of file: takes locks, makes what was not handed, serves the API
//! ```
//! The two speak over a socket of messages, which is the successor's standard input. Requests that come meanwhile wait in the
//! control socket, frames of namespaces in the queues of their TAPs, whose carrier stays, and those of guests in their rings:
//! their vhost-user sockets go on with the successor. What workers hold in private memory is sent before the gap, or dropped
//! and counted. Within the gap nobody is woken but the two threads that drive members, and workers: those send and wait for `go`
//! themselves. The service manager is told the successor's process id before the predecessor ends. What either does while the
//! other forwards, it does at a low priority: the kernel lets a thread that computes have a core for a whole tick.
//!
//! # Failure modes
//! A successor that ends, is late, or does not say what it should is killed, and its predecessor serves on, with the same
//! connections: before the gap nothing has changed, and after its begin rings are made anew from where they stand. A session
//! that the successor cannot go on with is closed, and its front end connects again. A predecessor that dies closes the
//! socket, and the successor goes on, over whatever a kill leaves.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use tokio::io::AsyncReadExt;
use tokio::time::Instant;
use windlass_api::{Counters, Name};
use windlass_attach::endpoint::Handed;
use windlass_sys::priority;
use windlass_sys::unix::{FDS_MAX, SocketKind, inherited, pair, receive_with_fds, send_with_fds};

use crate::backend::Step;
use crate::engine::Engine;

/// The option with which a successor is started.
pub const SUCCESSOR: &str = "--successor";

/// Time that a successor has to get ready.
pub const READY_TIME_MAX: Duration = Duration::from_secs(10);

/// Time that a successor has to take each of what it is handed, and to say that it serves.
const TAKING_TIME_MAX: Duration = Duration::from_secs(2);
/// What it has in addition for each member, to prepare them all.
const MEMBER_TIME_MAX: Duration = Duration::from_millis(5);

/// How much nicer than a daemon that serves its successor is while it gets ready, and it is once it has handed over: what they do
/// then takes no core from workers for longer than the kernel's shortest turn.
const NICER: i32 = 10;

/// What a message brings, in its first byte. Of a member, the length of its mark, the mark, and its state follow.
const LISTENER: u8 = b'l';
const MANAGED_LISTENER: u8 = b'm';
const MEMBER: u8 = b't';
const ALL: u8 = b'a';
/// What was handed over is the successor's.
const GO: u8 = b'g';
/// Names and counters of members.
const COUNTERS: u8 = b'c';

/// Members in a message of counters.
const COUNTERS_A_MESSAGE: usize = 8;

/// Longest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 32 << 10;

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

    /// Hands the control socket and members over, and waits until the successor is prepared to go on with them.
    ///
    /// # Errors
    /// If it has ended, or takes nothing for 2 s.
    pub fn hand_over(&self, listener: &Listener, members: &[Handed]) -> Result<()> {
        // The successor does nothing but read, and answer.
        rustix::io::ioctl_fionbio(&self.socket, false)?;
        set_socket_timeout(&self.socket, Timeout::Send, Some(TAKING_TIME_MAX))?;
        let kind = if listener.is_managed {
            MANAGED_LISTENER
        } else {
            LISTENER
        };
        self.send(kind, &[], &[listener.socket.as_fd()])?;
        for Handed { mark, state, fds } in members {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            let length = u16::try_from(mark.len()).context("the length of a mark")?;
            let parts = [&length.to_le_bytes(), mark.as_bytes(), state];
            self.send(MEMBER, &parts.concat(), &fds)?;
        }
        self.send(ALL, &[], &[])?;
        let members = u32::try_from(members.len()).unwrap_or(u32::MAX);
        self.hear(TAKING_TIME_MAX + MEMBER_TIME_MAX * members)
    }

    /// Has it go on with what it was handed, when nobody uses that here.
    ///
    /// # Errors
    /// If there is no descriptor for that.
    pub fn go(&self) -> Result<Step> {
        let socket = self.socket.as_fd().try_clone_to_owned()?;
        Ok(Box::new(move || {
            let sent = send_with_fds(&socket, &[IoSlice::new(&[GO])], &[]);
            sent.is_ok()
        }))
    }

    /// Waits until it has gone on.
    ///
    /// # Errors
    /// If it has ended, or does not say so within 2 s.
    pub fn serves(&self) -> Result<()> {
        self.hear(TAKING_TIME_MAX)
    }

    /// Tells it what members have counted.
    ///
    /// # Errors
    /// If it has ended, or takes nothing for 2 s.
    pub fn tell(&self, counters: &[(Name, Counters)]) -> Result<()> {
        for some in counters.chunks(COUNTERS_A_MESSAGE) {
            self.send(COUNTERS, &serde_json::to_vec(some)?, &[])?;
        }
        Ok(())
    }

    fn hear(&self, patience: Duration) -> Result<()> {
        set_socket_timeout(&self.socket, Timeout::Recv, Some(patience))?;
        let mut answer = [0];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.socket, &mut answer)) {
            Ok(1) => Ok(()),
            Ok(_) => bail!("the successor has ended"),
            Err(error) => Err(error).context("the successor does not take what it was handed"),
        }
    }

    fn send(&self, kind: u8, rest: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let kind = [kind];
        let parts = [IoSlice::new(&kind), IoSlice::new(rest)];
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

/// Gives this process, which forwards nothing, a low priority.
pub fn be_nicer() {
    priority::set_all(priority::niceness() + NICER);
}

/// What a predecessor has left to its successor.
#[derive(Debug, Default)]
struct Inheritance {
    listener: Option<Listener>,
    members: Vec<Handed>,
}

/// The successor's end.
#[derive(Debug)]
pub struct Turn {
    predecessor: Arc<OwnedFd>,
    /// How nice this process is when it serves.
    niceness: i32,
}

impl Turn {
    /// Of a successor: the socket is standard input, which is replaced. It has a low priority until [`Turn::wait`], if it may have the
    /// one of now again.
    ///
    /// # Errors
    /// If standard input is closed.
    pub fn of_successor() -> Result<Self> {
        let socket = inherited(0).context("no standard input")?;
        let null = std::fs::File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null).context("standard input")?;
        let niceness = priority::niceness();
        if priority::may_return_to(niceness) {
            be_nicer();
        }
        Ok(Self {
            predecessor: Arc::new(socket),
            niceness,
        })
    }

    /// Says that this process is ready, has the engine take what it is handed and go on with it, and waits until the predecessor
    /// has ended, or has died. Gives its control socket.
    ///
    /// # Errors
    /// If there was no predecessor: standard input is no socket.
    pub fn wait(self, engine: &mut Engine) -> Result<Option<Listener>> {
        priority::set_all(self.niceness);
        match self.say() {
            // It has died already.
            Ok(_) | Err(rustix::io::Errno::PIPE) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("{SUCCESSOR} is for windlassd itself"));
            }
        }
        let mut inheritance = Inheritance::default();
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        while let Some((kind, rest, fds)) = hear(&self.predecessor, &mut bytes)
            && kind != ALL
        {
            inheritance.add(kind, rest, fds);
        }
        engine.take_over(inheritance.members);
        // One that has died wants no answer.
        let _ = self.say();
        let predecessor = self.predecessor.clone();
        let is_free = move || matches!(hear(&predecessor, &mut [0]), Some((GO, ..)));
        if engine.go(Box::new(is_free)) {
            let _ = self.say();
        }
        while let Some((kind, rest, _)) = hear(&self.predecessor, &mut bytes) {
            if kind == COUNTERS {
                match serde_json::from_slice(rest) {
                    Ok(counters) => engine.carry(counters),
                    Err(error) => tracing::error!("counters of the daemon before: {error}"),
                }
            }
        }
        Ok(inheritance.listener)
    }

    fn say(&self) -> Result<usize, rustix::io::Errno> {
        send_with_fds(&*self.predecessor, &[IoSlice::new(&[1])], &[])
    }
}

/// The next message of a predecessor; none behind the last one.
fn hear<'a>(predecessor: &OwnedFd, bytes: &'a mut [u8]) -> Option<(u8, &'a [u8], Vec<OwnedFd>)> {
    let message = receive_with_fds(predecessor, bytes, FDS_MAX).ok()?;
    let (kind, rest) = bytes.get(..message.bytes)?.split_first()?;
    Some((*kind, rest, message.fds))
}

impl Inheritance {
    fn add(&mut self, kind: u8, rest: &[u8], fds: Vec<OwnedFd>) {
        if kind == MEMBER {
            let Some((length, rest)) = rest.split_first_chunk() else {
                return;
            };
            let length = usize::from(u16::from_le_bytes(*length));
            if let Some((mark, state)) = rest.split_at_checked(length) {
                self.members.push(Handed {
                    mark: String::from_utf8_lossy(mark).into_owned(),
                    state: state.to_vec(),
                    fds,
                });
            }
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

    /// A successor that stands still while it is handed more than a socket holds, or once it was handed all, does not keep its
    /// predecessor waiting.
    #[test]
    fn a_successor_that_takes_nothing_is_given_up() {
        for members in [10_000, 1] {
            hand_to_a_sleeper(members);
        }
    }

    fn hand_to_a_sleeper(members: usize) {
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
        let members: Vec<_> = (0..members)
            .map(|number| Handed {
                mark: number.to_string(),
                state: Vec::new(),
                fds: Vec::new(),
            })
            .collect();
        let began = Instant::now();
        assert!(successor.hand_over(&listener, &members).is_err());
        assert!(began.elapsed() < 5 * TAKING_TIME_MAX);
        successor.give_up();
    }
}

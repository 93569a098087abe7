//! The socket of captures: each connection is one capture ([`windlass_api::capture`]).
//!
//! # Model
//! Each connection has a thread, which reads the request, has the engine decide about it, hands the memory over, closes that once the
//! reader has mapped it, has the engine begin, and then waits for the end of the connection. Nothing passes through it: workers write into the memory and wake the reader themselves. Once a second it
//! tells the capture the time of day.
//!
//! # Limits
//! [`CONNECTIONS_MAX`] in all; `captures-per-uid-max` for who is no operator. A request, and the word that the memory is mapped, have to arrive within [`REQUEST_TIME_MAX`] each.
//!
//! # Failure modes
//! A reader that is killed, or stops, costs its own connection. What it sends besides the request is read and forgotten; before Linux
//! 6.16 it can send descriptors, whose close may keep this connection's thread, and nobody else.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::watch;
use windlass_api::{
    CAPTURE_REQUEST_BYTES_MAX, CaptureAnswer, CaptureOffer, CaptureRequest, CaptureStarted,
    ErrorBody, ErrorCode,
};
use windlass_capture::ring::{MapError, Memory, Shape};
use windlass_stats::Drop as Reason;
use windlass_sys::unix;
use windlass_worker::Capture;

use crate::authority::Peer;
use crate::backend::CaptureMade;
use crate::dataplane::tell_time;
use crate::engine::EngineHandle;
use crate::options::Limits;
use crate::shares::{Held, Share};

/// Connections in all.
pub const CONNECTIONS_MAX: usize = 80;
/// Time in which a line has to arrive.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(5);
/// How often a capture is told the time of day.
const CLOCK: Duration = Duration::from_secs(1);

/// What each connection has.
#[derive(Clone)]
struct Context {
    engine: EngineHandle,
    limits: watch::Receiver<Limits>,
    runtime: Handle,
    open: Arc<AtomicUsize>,
}

/// Accepts connections for ever, on a thread. Within a runtime.
///
/// # Errors
/// If there is no thread.
pub fn start(
    listener: UnixListener,
    engine: EngineHandle,
    limits: watch::Receiver<Limits>,
) -> io::Result<()> {
    listener.set_nonblocking(false)?;
    let context = Context {
        engine,
        limits,
        runtime: Handle::current(),
        open: Arc::default(),
    };
    let accepts = move || {
        loop {
            match listener.accept() {
                Ok((stream, _)) => context.admit(stream),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!("cannot accept a capture: {error}");
                    thread::sleep(Duration::from_millis(100));
                }
            }
        }
    };
    let thread = thread::Builder::new().name("captures".into());
    thread.spawn(accepts).map(drop)
}

impl Context {
    /// What is refused here never takes a connection from others: a user's share counts before the sum of all.
    fn admit(&self, stream: UnixStream) {
        let context = self.clone();
        let (peer, held) = match self.share(&stream) {
            Ok(share) => share,
            Err(error) => return refuse(&stream, error),
        };
        if self.open.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
            self.open.fetch_sub(1, Ordering::AcqRel);
            let message = format!("all {CONNECTIONS_MAX} connections of captures are taken");
            refuse(&stream, ErrorBody::plain(ErrorCode::Busy, message));
            return;
        }
        let serves = move || {
            context.serve(&stream, peer);
            drop(held);
            context.open.fetch_sub(1, Ordering::AcqRel);
        };
        let thread = thread::Builder::new().name("capture".into());
        if let Err(error) = thread.spawn(serves) {
            self.open.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!("cannot serve a capture: {error}");
        }
    }

    /// Who asks, and its place among the captures of its user: who says nothing uses up its own share.
    fn share(&self, stream: &UnixStream) -> Result<(Peer, Option<Held>), ErrorBody> {
        let gone = || ErrorBody::plain(ErrorCode::Busy, "the peer is gone");
        let peer = Peer::of(stream).ok_or_else(gone)?;
        if peer.operator {
            return Ok((peer, None));
        }
        let max = self.limits.borrow().per_user.max(Share::Captures);
        let holders = self.engine.holders();
        Ok((peer, Some(holders.take(Share::Captures, peer.uid, max)?)))
    }

    fn serve(&self, stream: &UnixStream, peer: Peer) {
        match self.begin(stream, peer) {
            Ok(made) => {
                let is_told = answer(stream, &made);
                let capture = made.capture;
                if let Err(errno) = is_told {
                    tracing::debug!("the reader of a capture: {errno}");
                } else {
                    wait(stream, &capture);
                }
                let ended = self.engine.call(&peer, move |engine| {
                    engine.end_capture(&capture);
                    Ok(())
                });
                if let Err(error) = self.runtime.block_on(ended) {
                    tracing::error!("a capture goes on without its reader: {error}");
                }
            }
            Err(error) => refuse(stream, error),
        }
    }

    fn begin(&self, stream: &UnixStream, peer: Peer) -> Result<CaptureMade, ErrorBody> {
        let host = |error: io::Error| ErrorBody::plain(ErrorCode::Host, error.to_string());
        let malformed =
            |error: serde_json::Error| ErrorBody::plain(ErrorCode::Malformed, error.to_string());
        let request: CaptureRequest =
            serde_json::from_slice(&read_line(stream)?).map_err(malformed)?;
        let wanted = request.clone();
        let offered = self
            .engine
            .call(&peer, move |engine| engine.offer_capture(&peer, &wanted));
        let shape = self.runtime.block_on(offered)?;
        let failed = |error: MapError| {
            let message = format!("memory for the capture: {error}");
            ErrorBody::plain(ErrorCode::Host, message)
        };
        let (memory, fd) = Memory::create(shape).map_err(failed)?;
        offer(stream, shape, fd.as_fd()).map_err(|errno| host(errno.into()))?;
        read_line(stream)?;
        memory.close(fd.as_fd()).map_err(failed)?;
        let ends = (memory, OwnedFd::from(stream.try_clone().map_err(host)?));
        let begun = self.engine.call(&peer, move |engine| {
            engine.start_capture(&peer, request, ends)
        });
        self.runtime.block_on(begun)
    }
}

fn read_line(stream: &UnixStream) -> Result<Vec<u8>, ErrorBody> {
    let malformed = |message: String| ErrorBody::plain(ErrorCode::Malformed, message);
    let until = Instant::now() + REQUEST_TIME_MAX;
    let (mut line, mut room) = (Vec::new(), [0; 4096]);
    while line.last() != Some(&b'\n') {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let message = "a line did not arrive in time";
            return Err(ErrorBody::plain(ErrorCode::Timeout, message));
        }
        if line.len() > CAPTURE_REQUEST_BYTES_MAX {
            let message = format!("a line has {CAPTURE_REQUEST_BYTES_MAX} bytes at most");
            return Err(ErrorBody::plain(ErrorCode::TooLarge, message));
        }
        let read = stream.set_read_timeout(Some(left));
        match read.and_then(|()| (&*stream).read(&mut room)) {
            Ok(0) => return Err(malformed("the line has no end".into())),
            Ok(n) => line.extend(room.get(..n).unwrap_or(&[])),
            Err(error) if is_nothing(&error) => {}
            Err(error) => return Err(malformed(error.to_string())),
        }
    }
    Ok(line)
}

/// Nothing came in time, or a signal did.
fn is_nothing(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

fn offer(stream: &UnixStream, shape: Shape, memory: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let line = line(&CaptureAnswer::Offered(CaptureOffer {
        workers: shape.workers,
        ring_bytes: shape.ring_bytes,
    }));
    unix::send_with_fds(stream, &[io::IoSlice::new(&line)], &[memory]).map(drop)
}

fn answer(stream: &UnixStream, made: &CaptureMade) -> rustix::io::Result<()> {
    let reasons = Reason::ALL.iter().map(|reason| reason.name().to_owned());
    let started = CaptureStarted {
        kind: made.kind,
        reasons: reasons.collect(),
    };
    unix::send_now(stream, &line(&CaptureAnswer::Started(started))).map(drop)
}

fn refuse(stream: &UnixStream, error: ErrorBody) {
    // An empty socket buffer takes it; a peer that is gone does not want it.
    let _ = unix::send_now(stream, &line(&CaptureAnswer::Refused(error)));
}

fn line(answer: &CaptureAnswer) -> Vec<u8> {
    let mut line = serde_json::to_vec(answer).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Waits for the end of a connection.
fn wait(stream: &UnixStream, capture: &Capture) {
    let mut room = [0; 256];
    loop {
        tell_time(capture);
        let read = stream.set_read_timeout(Some(CLOCK));
        match read.and_then(|()| (&*stream).read(&mut room)) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if is_nothing(&error) => {}
            Err(_) => return,
        }
    }
}

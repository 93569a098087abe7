//! Where frames come from: the connection of a capture, and its memory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use windlass_api::{
    CAPTURE_SUFFIX, CaptureAnswer, CaptureEnd, CaptureKind, CaptureOffer, CaptureRequest,
    ErrorBody, ErrorCode,
};
use windlass_capture::ring::{Counted, Kind, MapError, Reader, Shape};
use windlass_client::Error;
use windlass_sys::unix::{self, SocketKind};

use super::{Shown, direction};
use crate::failure::Failure;

/// How long it sleeps behind frames: a hundredth of the time in which a full link fills a ring of 8 MiB with headers.
const NAP: Duration = Duration::from_micros(100);

/// Bytes of the daemon's answer at most.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// What is known of a port.
#[derive(Debug)]
struct Port {
    kind: Option<Kind>,
    name: String,
}

/// A capture that has begun.
#[derive(Debug)]
pub(super) struct Source {
    socket: OwnedFd,
    ring: Reader,
    kind: CaptureKind,
    reasons: Vec<String>,
    ports: Vec<Option<Port>>,
    /// The frame at hand.
    bytes: Vec<u8>,
    /// What the daemon has said and was not read as a line yet.
    said: Vec<u8>,
    /// We have ended it.
    is_unwanted: bool,
    /// Frames have come since it has last waited.
    has_news: bool,
    /// Why the daemon has ended it.
    reason: Option<String>,
}

impl Source {
    /// Asks the daemon for a capture.
    pub(super) fn open(
        control: &Path,
        request: &CaptureRequest,
        what: &str,
    ) -> Result<Source, Failure> {
        let mut path = control.as_os_str().to_owned();
        path.push(CAPTURE_SUFFIX);
        let unreachable = |errno: Errno| {
            let error = Error::Unreachable {
                path: path.clone().into(),
                source: errno.into(),
            };
            Failure::of(what, error)
        };
        let socket = unix::connect(Path::new(&path), SocketKind::Stream).map_err(unreachable)?;
        rustix::io::ioctl_fionbio(&socket, false).map_err(unreachable)?;
        let broken = |why: String| Failure::of(what, Error::Broken(why));
        let mut said = Vec::new();
        let mut ask = |line: &[u8]| {
            send(&socket, line).map_err(unreachable)?;
            let (line, memory) = hear(&socket, &mut said).map_err(unreachable)?;
            let answer =
                serde_json::from_slice(&line).map_err(|error| broken(error.to_string()))?;
            match answer {
                CaptureAnswer::Refused(body) => Err(refused(what, body)),
                answer => Ok((answer, memory)),
            }
        };
        let mut line = serde_json::to_vec(request).map_err(io::Error::from)?;
        line.push(b'\n');
        let (CaptureAnswer::Offered(offer), memory) = ask(&line)? else {
            return Err(broken("it has offered no memory".into()));
        };
        let CaptureOffer {
            workers,
            ring_bytes,
        } = offer;
        let shape = Shape {
            workers,
            ring_bytes,
        };
        let shape = shape.check().map_err(|error| broken(error.to_string()))?;
        let memory = memory.ok_or_else(|| broken("it has sent no memory".into()))?;
        let host = |error: MapError| {
            let body = ErrorBody::plain(ErrorCode::Host, format!("the memory: {error}"));
            Failure::of(what, Error::Refused(body))
        };
        let ring = Reader::new(memory.as_fd(), shape).map_err(host)?;
        let (CaptureAnswer::Started(started), _) = ask(b"\n")? else {
            return Err(broken("it has not begun".into()));
        };
        Ok(Source {
            socket,
            ring,
            kind: started.kind,
            reasons: started.reasons,
            ports: Vec::new(),
            bytes: Vec::new(),
            said,
            is_unwanted: false,
            has_news: false,
            reason: None,
        })
    }

    /// The next frame; none if there is none now.
    pub(super) fn next(&mut self) -> Option<Shown<'_>> {
        let head = self.ring.next(&mut self.bytes)?;
        self.has_news = true;
        let at = usize::from(head.port);
        if self.ports.len() <= at {
            self.ports.resize_with(at + 1, || None);
        }
        let place = self.ports.get_mut(at)?;
        let port = place.get_or_insert_with(|| {
            let (kind, name) = self.ring.port(head.port);
            Port { kind, name }
        });
        let reason = usize::from(head.reason).checked_sub(1);
        Some(Shown {
            head,
            bytes: &self.bytes,
            direction: direction(self.kind, port.kind, head.way),
            port: &port.name,
            reason: reason.map(|at| self.reasons.get(at).map_or("unknown", String::as_str)),
        })
    }

    /// Tells the daemon that no more is wanted: [`Source::wait`] says when it has heard.
    pub(super) fn end(&mut self) {
        self.is_unwanted = true;
        // A connection that is gone says so by itself.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
    }

    /// Waits until there are frames, a signal, or it is so late; whether the daemon has ended the capture: no frame comes then that is not there.
    pub(super) fn wait(
        &mut self,
        signals: Option<BorrowedFd<'_>>,
        until: Option<Instant>,
    ) -> Result<bool, Failure> {
        // While frames come it looks for them now and then, and no worker has to wake it.
        let naps = std::mem::take(&mut self.has_news);
        if !naps && !self.ring.sleeps() {
            return Ok(false);
        }
        let socket = PollFd::new(&self.socket, PollFlags::IN);
        let signals = signals.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = [Some(socket), signals].into_iter().flatten().collect();
        let rest = until.map(|until| until.saturating_duration_since(Instant::now()));
        let nap = naps.then_some(NAP);
        let rest = rest.into_iter().chain(nap).min();
        let rest = rest.and_then(|rest| Timespec::try_from(rest).ok());
        match poll(&mut fds, rest.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(false),
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
        let has_said = fds.first().is_some_and(|fd| !fd.revents().is_empty());
        Ok(has_said && self.hear())
    }

    /// Reads what the daemon says; whether that was its last word.
    fn hear(&mut self) -> bool {
        let mut room = [0; 4096];
        let flags = rustix::net::RecvFlags::DONTWAIT;
        let heard = rustix::net::recv(&self.socket, &mut room, flags);
        let n = match heard {
            Ok((n, _)) => n,
            Err(Errno::INTR | Errno::AGAIN) => return false,
            Err(_) => 0,
        };
        self.said.extend(room.get(..n).unwrap_or_default());
        while let Some(at) = self.said.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.said.drain(..=at).collect();
            if let Ok(CaptureEnd { ended }) = serde_json::from_slice(&line) {
                self.reason = Some(ended);
            }
        }
        if self.is_unwanted {
            self.reason = None;
        } else if n == 0 && self.reason.is_none() {
            self.reason = Some("the daemon has closed the connection".into());
        }
        n == 0
    }

    /// What the workers have counted.
    pub(super) fn counted(&self) -> Counted {
        self.ring.counted()
    }

    /// What it is of.
    pub(super) fn kind(&self) -> CaptureKind {
        self.kind
    }

    /// Why the daemon has ended it, if it has.
    pub(super) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}

fn send(socket: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let flags = rustix::net::SendFlags::NOSIGNAL;
        let sent = rustix::io::retry_on_intr(|| rustix::net::send(socket, bytes, flags));
        match sent {
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            // It has refused already.
            Err(Errno::PIPE) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// The daemon's next line, and a descriptor that came with it; what it has said behind that line stays in `said`.
fn hear(socket: &OwnedFd, said: &mut Vec<u8>) -> Result<(Vec<u8>, Option<OwnedFd>), Errno> {
    let mut room = vec![0; ANSWER_BYTES_MAX];
    let mut memory = None;
    loop {
        if let Some(at) = said.iter().position(|byte| *byte == b'\n') {
            return Ok((said.drain(..=at).collect(), memory));
        }
        let receive = || unix::receive_with_fds(socket, &mut room, 1);
        let mut received = rustix::io::retry_on_intr(receive)?;
        memory = memory.or_else(|| received.fds.pop());
        said.extend(room.get(..received.bytes).unwrap_or_default());
        if received.bytes == 0 || said.len() > ANSWER_BYTES_MAX {
            return Ok((std::mem::take(said), memory));
        }
    }
}

/// Why the daemon does not capture.
fn refused(what: &str, body: ErrorBody) -> Failure {
    let failure = Failure::of(what, Error::Refused(body));
    match failure.code() {
        Some(ErrorCode::NotFound) => failure.advise(
            "\"windlass vnic show\", \"windlass uplink show\" and \"windlass bridge show\" list links",
        ),
        _ => failure,
    }
}

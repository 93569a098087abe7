//! The library's half of the talk with the broker.
//!
//! # Purpose
//! What a process that is none of ours does, in the middle of a send or a receive of its own, to join a connection: ask
//! for a slot, for the memory of a pair, for a rescue.
//!
//! # Model
//! One exchange is: block signals; socket, connect, send, wait a little, receive; map what came; close every descriptor; unblock
//! signals. Numbers that are open meanwhile are high ones. Nothing stays open, nothing is allocated, `errno` is not touched, and no
//! function of libc is called: each system call is made by itself, so that this may run inside an interposed call and is no point of
//! cancellation.
//!
//! # Limits
//! Each path is tried with this user's number behind it first, where root's broker has a socket for this user alone. Connecting never
//! waits; an answer is waited for [`ANSWER_MS`], that to a rescue for longer. A signal for the asking thread ends
//! the wait, but not that for a rescue. A broker that does not answer, or answers [`Reason::NoDaemon`], is not asked again for
//! [`BACKOFF_FIRST_MS`], then for twice as long each time, up to [`BACKOFF_MS`]: a user may make so many requests, whatever their answer.
//! A rescue has a backoff of its own, for no answer: a join that gives up after 20 ms must not keep it from asking.
//!
//! # Failure modes
//! Every failure is a [`Reason`]: [`Reason::NoDaemon`] if nobody answered, or what the broker said. A socket in `/tmp` is used only
//! in a directory that is this user's and nobody else's.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use core::ffi::CStr;
use core::fmt;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::SeqCst};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, CWD};
use rustix::io::{Errno, IoSliceMut};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{PTracer, Pid};

use crate::Reason;
use crate::layout::{DIRECTORY_BYTES, SLAB_BYTES, STATUS_BYTES};
use crate::protocol::{Answer, FDS_MAX, MESSAGE_BYTES, PROCESSES_BYTES, Request};
use crate::sys;

/// How long an answer is waited for, in milliseconds.
pub const ANSWER_MS: u64 = 20;
/// How long the answer to a rescue is waited for, and to a registration that a rescue needs, in milliseconds: where it does not come,
/// the peer or the broker's watch moves the bytes later, and a call that is made meanwhile does not find them.
const RESCUE_MS: u64 = 250;
/// How long a broker that did not answer is left alone at first, in milliseconds: it may just be starting, or wait for a core.
pub const BACKOFF_FIRST_MS: u64 = 10;
/// How long it is left alone in the end, in milliseconds.
pub const BACKOFF_MS: u64 = 1_000;
/// How long a listing is waited for, in milliseconds: a person waits, not a program in its send.
const LISTING_MS: u64 = 5_000;
/// Least number of a descriptor that is open while an answer is waited for: programs count on the lowest free one (`open(2)`). Below
/// 64 no table of descriptors has to grow.
const NUMBER_MIN: i32 = 48;
/// Longest path of a Unix socket, in bytes (`sun_path` less its end).
pub const PATH_BYTES_MAX: usize = 107;
/// Where root's broker listens.
pub const SYSTEM_PATH: &[u8] = b"/run/windlass/sockets.sock";
/// Paths that are tried.
const PATHS: usize = 3;

/// Mapped memory. It is not unmapped when dropped: who asked for it knows when nobody uses it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// The first byte, at the start of a page.
    pub base: *mut u8,
    /// Bytes.
    pub len: usize,
}

// SAFETY: a range of addresses; whoever turns it into more than that says why that is well.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps the first `len` bytes of a shared memory object; for reading only, unless it is writable. `None` if the system refuses.
    pub fn of(fd: BorrowedFd<'_>, len: usize, is_writable: bool) -> Option<Self> {
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, is_writable);
        let (any, flags) = (core::ptr::null_mut(), MapFlags::SHARED);
        let flags = flags | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { rustix::mm::mmap(any, len, protection, flags, fd, 0) }.ok()?;
        let base = base.cast();
        Some(Self { base, len })
    }

    /// Takes the memory out of this process.
    ///
    /// # Safety
    /// Nobody uses any of it now or later.
    pub unsafe fn unmap(self) {
        // SAFETY: the range was mapped by `of`, and the caller knows that nobody uses it. An error leaves it mapped.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }
}

/// What a process has from its registration on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registered {
    /// Its slot, never 0.
    pub slot: u16,
    /// Its own status page, to be written.
    pub status: Region,
    /// The directory of its user and network namespace, to be written.
    pub directory: Region,
    /// Process id of each slot, 0 where none lives; to be read. See [`PROCESSES_BYTES`].
    pub processes: Region,
}

/// What two processes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paired {
    /// Its number, unique while the broker lives.
    pub slab: u32,
    /// The side of the process that asked.
    pub side: u8,
    /// Slot of the process on the other side.
    pub peer: u16,
    /// The slab, to be written.
    pub memory: Region,
    /// The peer's status page, to be read.
    pub peer_status: Region,
    /// Each connection in it is to be proved: see [`Request::Prove`].
    pub proves: bool,
}

/// A path with its end.
#[derive(Debug, Clone, Copy)]
struct Path {
    bytes: [u8; PATH_BYTES_MAX + 1],
    /// The user whose own its directory has to be, if that is looked at.
    owner: Option<u32>,
}

impl Path {
    /// `None` if both parts together are too long or the first has a zero byte.
    fn of(first: &[u8], rest: fmt::Arguments<'_>) -> Option<Self> {
        let mut bytes = [0; PATH_BYTES_MAX + 1];
        let mut to = bytes.get_mut(..PATH_BYTES_MAX)?;
        to.write_all(first).and_then(|()| to.write_fmt(rest)).ok()?;
        let owner = None;
        (!first.contains(&0)).then_some(Self { bytes, owner })
    }

    /// The socket beside this one that a broker keeps for a user alone.
    fn own(&self, uid: u32) -> Option<Self> {
        Self::of(self.text()?.to_bytes(), format_args!(".{uid}"))
    }

    /// The one in `/tmp`.
    fn fallback(uid: u32) -> Option<Self> {
        let path = Self::of(b"/tmp/windlass-", format_args!("{uid}/sockets.sock"))?;
        let owner = Some(uid);
        Some(Self { owner, ..path })
    }

    fn text(&self) -> Option<&CStr> {
        CStr::from_bytes_until_nul(&self.bytes).ok()
    }

    /// Whether nobody else can have put a socket there.
    fn is_trusted(&self) -> bool {
        let Some(owner) = self.owner else {
            return true;
        };
        let mut directory = *self;
        let mut end = directory.bytes.rsplitn_mut(2, |byte| *byte == b'/');
        end.next().into_iter().for_each(|name| name.fill(0));
        let Some(directory) = directory.text() else {
            return false;
        };
        let stat = rustix::fs::statat(CWD, directory, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| {
            let is_directory = stat.st_mode & 0o170_000 == 0o040_000;
            is_directory && stat.st_uid == owner && stat.st_mode & 0o077 == 0
        })
    }
}

/// An answer, and the descriptors that came with it.
type Answered = (Answer, [Option<OwnedFd>; FDS_MAX]);

/// The way to the broker. One for a process, in a static.
#[derive(Debug, Default)]
pub struct Client {
    paths: OnceLock<[Option<Path>; PATHS]>,
    /// Of joins and of rescues: from which millisecond of the monotonic clock on to ask again, and how long the last pause was.
    backoffs: [[AtomicU64; 2]; 2],
    /// How long any answer is waited for at least, in milliseconds.
    pub answer_ms_min: AtomicU64,
}

impl Client {
    /// One that does not know yet where to look.
    pub const fn new() -> Self {
        Self {
            paths: OnceLock::new(),
            backoffs: [const { [const { AtomicU64::new(0) }; 2] }; 2],
            answer_ms_min: AtomicU64::new(0),
        }
    }

    /// Says where to look, once: at `given` (`WINDLASS_SOCKETS`) alone if there is one, else at root's broker, in
    /// `$XDG_RUNTIME_DIR` and in `/tmp`. Later calls change nothing.
    pub fn locate(&self, given: Option<&[u8]>, runtime_dir: Option<&[u8]>, uid: u32) {
        self.paths.get_or_init(|| match given {
            Some(given) if !given.is_empty() => [Path::of(given, format_args!("")), None, None],
            _ => {
                let runtime_dir = runtime_dir.filter(|dir| dir.first() == Some(&b'/'));
                let user = |dir| Path::of(dir, format_args!("/windlass/sockets.sock"));
                let system = Path::of(SYSTEM_PATH, format_args!(""));
                [system, runtime_dir.and_then(user), Path::fallback(uid)]
            }
        });
    }

    /// Registers this process by a [`Request::Register`]; once in its life, and once more after a fork in the child. A rescue that
    /// needs it is waited for as long as a rescue.
    ///
    /// # Errors
    /// Why it stays on the kernel.
    pub fn register(&self, who: &Request, is_for_rescue: bool) -> Result<Registered, Reason> {
        let answer_ms = if is_for_rescue { RESCUE_MS } else { ANSWER_MS };
        let mut answer = self.exchange(who, answer_ms)?;
        if let (Answer::Refused { reason, broker }, _) = answer
            && reason == Reason::NotRescuable
        {
            // Yama lets only descendants and a named process do it: the broker is named, and tries once more.
            let broker = i32::try_from(broker).ok().and_then(Pid::from_raw);
            let broker = PTracer::ProcessID(broker.ok_or(reason)?);
            if rustix::process::set_ptracer(broker).is_ok() {
                answer = self.exchange(who, answer_ms)?;
            }
        }
        let (answer, [status, directory, processes]) = answer;
        let Answer::Registered { slot } = answer else {
            return Err(refusal(answer));
        };
        let [status, directory, processes] = mapped([
            (status, STATUS_BYTES, true),
            (directory, DIRECTORY_BYTES, true),
            (processes, PROCESSES_BYTES, false),
        ])?;
        Ok(Registered {
            slot,
            status,
            directory,
            processes,
        })
    }

    /// The memory that a [`Request::Pair`] or [`Request::Slab`] asks for.
    ///
    /// # Errors
    /// Why there is none.
    pub fn pair(&self, request: &Request) -> Result<Paired, Reason> {
        let (answer, [memory, status, _]) = self.exchange(request, ANSWER_MS)?;
        let Answer::Paired {
            slab,
            side,
            peer,
            proves,
        } = answer
        else {
            return Err(refusal(answer));
        };
        let maps = [(memory, SLAB_BYTES, true), (status, STATUS_BYTES, false)];
        let [memory, peer_status] = mapped(maps)?;
        Ok(Paired {
            slab,
            side,
            peer,
            memory,
            peer_status,
            proves,
        })
    }

    /// Has the broker do what a [`Request::Prove`] or [`Request::Rescue`] asks for.
    ///
    /// # Errors
    /// Why it was not done, or why that is not known.
    pub fn ask(&self, request: &Request) -> Result<(), Reason> {
        let is_rescue = matches!(request, Request::Rescue { .. });
        let answer_ms = if is_rescue { RESCUE_MS } else { ANSWER_MS };
        match self.exchange(request, answer_ms)? {
            (Answer::Done, _) => Ok(()),
            (other, _) => Err(refusal(other)),
        }
    }

    /// Whether the broker has left four requests for rescues in a row unanswered.
    pub fn is_silent(&self) -> bool {
        self.backoffs[1][1].load(Ordering::Relaxed) >= BACKOFF_FIRST_MS << 3
    }

    /// Has the broker look after a slab for a while. Nothing is waited for; the caller does this once a second at most.
    pub fn watch(&self, slab: u32) {
        let _masked = Masked::all();
        // A broker that does not take it now will not be there for a rescue either.
        let _ = (self.connect()).and_then(|socket| send(&socket, &Request::Watch { slab }));
    }

    /// Memory with a row for every socket and channel that this user may see, and its bytes.
    ///
    /// # Errors
    /// Why there is none.
    pub fn list(&self) -> Result<(OwnedFd, u64), Reason> {
        match self.exchange(&Request::List, LISTING_MS)? {
            (Answer::Listing { bytes }, [Some(memory), ..]) => Ok((memory, bytes)),
            (other, _) => Err(refusal(other)),
        }
    }

    fn exchange(&self, request: &Request, answer_ms: u64) -> Result<Answered, Reason> {
        let [others, rescues] = &self.backoffs;
        let is_rescue = answer_ms == RESCUE_MS;
        let [not_before_ms, pause_ms] = if is_rescue { rescues } else { others };
        if now_ms() < not_before_ms.load(Ordering::Relaxed) {
            return Err(Reason::NoDaemon);
        }
        let masked = Masked::all();
        // What a rescue is asked for has to be done when its caller goes on.
        let waiting = match request {
            Request::Rescue { .. } | Request::List => None,
            _ => masked.waiting(),
        };
        let exchanged = self.connect().and_then(|socket| {
            send(&socket, request)?;
            let answer_ms = answer_ms.max(self.answer_ms_min.load(Ordering::Relaxed));
            receive(&socket, answer_ms, waiting.as_ref())
        });
        match exchanged {
            // A signal is for this thread: its handler does not wait for the broker. The caller asks again later.
            Err(Errno::INTR) => Err(Reason::Young),
            Ok(answered) if is_rescue || !is_put_off(&answered.0) => {
                (self.backoffs.iter())
                    .for_each(|[_, pause_ms]| pause_ms.store(0, Ordering::Relaxed));
                Ok(answered)
            }
            _ => {
                let pause = pause_ms.load(Ordering::Relaxed).saturating_mul(2);
                let pause = pause.clamp(BACKOFF_FIRST_MS, BACKOFF_MS);
                pause_ms.store(pause, Ordering::Relaxed);
                not_before_ms.store(now_ms().saturating_add(pause), Ordering::Relaxed);
                Err(Reason::NoDaemon)
            }
        }
    }

    fn connect(&self) -> Result<Asking, Errno> {
        let mut last = Errno::NOENT;
        let uid = rustix::process::geteuid().as_raw();
        let paths = self.paths.get().into_iter().flatten().flatten();
        let paths = paths.filter(|path| path.is_trusted());
        let paths = paths.flat_map(|path| [path.own(uid), Some(*path)]);
        for path in paths.flatten() {
            let Some(text) = path.text() else { continue };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let kind = SocketType::SEQPACKET;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
            let socket = Asking::by(socket);
            match rustix::net::connect(&socket.fd, &SocketAddrUnix::new(text)?) {
                Ok(()) => return Ok(socket),
                Err(errno) => last = errno,
            }
        }
        Err(last)
    }
}

/// Numbers of what is open while something is asked, each + 1; 0: none.
static ASKING: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16];

/// A descriptor that is open while something is asked. A child that is forked meanwhile closes it ([`forked`]), if it is one of the
/// first 16.
#[derive(Debug)]
struct Asking {
    fd: OwnedFd,
    place: Option<&'static AtomicU32>,
}

impl Asking {
    /// With a number that the program does not get next, if it may have so many.
    fn by(fd: OwnedFd) -> Self {
        let fd = rustix::io::fcntl_dupfd_cloexec(&fd, NUMBER_MIN).unwrap_or(fd);
        let number = fd.as_raw_fd().cast_unsigned().saturating_add(1);
        let takes = |place: &&AtomicU32| place.compare_exchange(0, number, SeqCst, SeqCst).is_ok();
        let place = ASKING.iter().find(takes);
        Self { fd, place }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // Before it is closed: no child closes a number that has become another file's.
        self.place.iter().for_each(|place| place.store(0, SeqCst));
    }
}

/// In a forked child: what other threads of its parent were asking is none of its business.
pub fn forked() {
    let numbers = ASKING.iter().map(|place| place.swap(0, SeqCst));
    for number in numbers.filter_map(|number| number.checked_sub(1)) {
        // SAFETY: a descriptor of this process, of which nothing else in it knows.
        drop(unsafe { OwnedFd::from_raw_fd(number.cast_signed()) });
    }
}

/// Maps these descriptors, so many bytes of each, writable or not: all or none.
fn mapped<const N: usize>(fds: [(Option<OwnedFd>, usize, bool); N]) -> Result<[Region; N], Reason> {
    if fds.iter().any(|(fd, ..)| fd.is_none()) {
        return Err(Reason::NoDaemon);
    }
    let maps = fds.map(|(fd, len, is_writable)| Region::of(fd?.as_fd(), len, is_writable));
    if maps.iter().all(Option::is_some) {
        let (base, len) = (core::ptr::null_mut(), 0);
        return Ok(maps.map(|region| region.unwrap_or(Region { base, len })));
    }
    for region in maps.into_iter().flatten() {
        // SAFETY: mapped a moment ago, and nobody else has heard of it.
        unsafe { region.unmap() };
    }
    Err(Reason::Limit)
}

fn is_put_off(answer: &Answer) -> bool {
    matches!(answer, Answer::Refused { reason, .. } if *reason == Reason::NoDaemon)
}

fn refusal(answer: Answer) -> Reason {
    match answer {
        Answer::Refused { reason, .. } => reason,
        _ => Reason::NoDaemon,
    }
}

/// Milliseconds of the monotonic clock; 0 where the system does not tell.
fn now_ms() -> u64 {
    let now = sys::monotonic();
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let rest = u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000;
    seconds.saturating_mul(1_000).saturating_add(rest)
}

fn send(socket: &Asking, request: &Request) -> Result<(), Errno> {
    rustix::net::send(&socket.fd, &request.encode(), SendFlags::NOSIGNAL).map(drop)
}

fn receive(socket: &Asking, answer_ms: u64, waiting: Option<&Asking>) -> Result<Answered, Errno> {
    let timeout = Timespec {
        tv_sec: i64::try_from(answer_ms / 1_000).unwrap_or(0),
        tv_nsec: i64::try_from((answer_ms % 1_000).saturating_mul(1_000_000)).unwrap_or(0),
    };
    let socket = &socket.fd;
    let input = |fd| PollFd::new(fd, PollFlags::IN);
    let mut wait = [
        input(socket),
        input(waiting.map_or(socket, |waiting| &waiting.fd)),
    ];
    if rustix::event::poll(&mut wait, Some(&timeout))? == 0 {
        return Err(Errno::TIMEDOUT);
    }
    if wait.first().is_some_and(|own| own.revents().is_empty()) {
        return Err(Errno::INTR);
    }
    let mut message = [0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut message)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut parts, &mut control, flags)?;
    let mut fds = [const { None }; FDS_MAX];
    let came = control.drain().filter_map(|part| match part {
        RecvAncillaryMessage::ScmRights(came) => Some(came),
        _ => None,
    });
    // One too many is closed where it stands.
    let places = fds.iter_mut().zip(came.flatten());
    places.for_each(|(place, fd)| *place = Some(fd));
    let cut = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
    if received.bytes != MESSAGE_BYTES || received.flags.intersects(cut) {
        return Err(Errno::PROTO);
    }
    Ok((Answer::decode(&message).ok_or(Errno::PROTO)?, fds))
}

/// The signal by which the kernel hands system calls to a handler, where the process asks for that: blocked, it kills.
const TRAPS: u64 = 1 << (libc::SIGSYS - 1);

/// All other signals blocked in this thread as long as it lives: a handler that jumps away would leave a descriptor behind.
struct Masked {
    before: u64,
}

impl Masked {
    fn all() -> Self {
        Self {
            before: set_mask(!TRAPS),
        }
    }

    /// Readable as soon as a signal waits that was not blocked before (`signalfd(2)`); nothing is read from it.
    fn waiting(&self) -> Option<Asking> {
        let signals = !(self.before | TRAPS);
        let flags = (libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) as usize;
        let (new, at) = (usize::MAX, &raw const signals as usize);
        // SAFETY: the call reads 8 bytes of `signals`.
        let made = unsafe { sys::checked(libc::SYS_signalfd4, [new, at, 8, flags, 0, 0]) };
        let fd = i32::try_from(made.ok()?).ok()?;
        // SAFETY: made a moment ago, and nobody else's.
        Some(Asking::by(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        set_mask(self.before);
    }
}

/// Sets the mask of blocked signals of this thread, and gives the one before (`rt_sigprocmask(2)`).
fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    let (new, old) = (&raw const mask as usize, &raw mut before as usize);
    let how = libc::SIG_SETMASK as usize;
    // SAFETY: the call reads 8 bytes of `mask` and writes 8 bytes of `before`.
    unsafe { sys::call(libc::SYS_rt_sigprocmask, [how, new, old, 8, 0, 0]) };
    before
}

#[cfg(test)]
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::expect_used
)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    const ASKED: Request = Request::Slab { slab: 1, side: 0 };

    /// Paths are those that the daemons listen at; one that is too long is left out rather than cut.
    #[test]
    fn paths_are_found() {
        let client = Client::new();
        client.locate(None, Some(b"/run/user/7"), 1_000_000_007);
        let paths: Vec<_> = client.paths.get().into_iter().flatten().flatten().collect();
        let texts: Vec<_> = paths.iter().filter_map(|path| path.text()).collect();
        assert_eq!(
            texts,
            [
                c"/run/windlass/sockets.sock",
                c"/run/user/7/windlass/sockets.sock",
                c"/tmp/windlass-1000000007/sockets.sock"
            ]
        );
        assert!(!paths[2].is_trusted(), "nobody made that directory");
        let own = paths[0].own(4_294_967_294);
        let text = own.as_ref().and_then(Path::text);
        assert_eq!(text, Some(c"/run/windlass/sockets.sock.4294967294"));
        let fallback = Path::fallback(0);
        let text = fallback.as_ref().and_then(Path::text);
        assert_eq!(text, Some(c"/tmp/windlass-0/sockets.sock"));
        let long = [b'a'; PATH_BYTES_MAX + 1];
        assert!(Path::of(&long, format_args!("")).is_none());
        assert!(Path::of(&long[1..], format_args!("")).is_some());
        assert!(Path::of(b"a\0", format_args!("")).is_none());
    }

    /// A signal that comes while a broker does not answer is not held off: the request ends, and the handler runs.
    #[test]
    fn a_signal_ends_a_request() {
        extern "C" fn handle(_: i32) {
            HANDLED.fetch_add(1, Ordering::SeqCst);
        }
        static HANDLED: AtomicU64 = AtomicU64::new(0);
        let path = std::env::temp_dir().join(format!("windlass-silent-{}", std::process::id()));
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let silent = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None);
        let silent = silent.expect("a socket");
        let name = SocketAddrUnix::new(&path).expect("a name");
        rustix::net::bind(&silent, &name).expect("bound");
        rustix::net::listen(&silent, 4).expect("listens");
        let client = Client::new();
        client.locate(Some(path.as_os_str().as_encoded_bytes()), None, 0);
        let handler = handle as extern "C" fn(i32);
        // SAFETY: a handler that only adds to a counter.
        unsafe { libc::signal(libc::SIGUSR2, handler as libc::sighandler_t) };
        // SAFETY: takes nothing.
        let asking = unsafe { libc::pthread_self() };
        let is_answered = AtomicBool::new(false);
        let answer = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_answered.load(Ordering::SeqCst) {
                    // SAFETY: that thread waits for this one.
                    unsafe { libc::pthread_kill(asking, libc::SIGUSR2) };
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
            });
            let answer = client.pair(&ASKED);
            is_answered.store(true, Ordering::SeqCst);
            answer
        });
        assert_eq!(answer, Err(Reason::Young));
        assert_ne!(HANDLED.load(Ordering::SeqCst), 0);
        assert!(std::fs::remove_file(&path).is_ok());
    }

    /// Where nobody listens the answer is "no daemon", at once, no descriptor stays, and the mask is as it was.
    #[test]
    fn nobody_listens() {
        let client = Client::new();
        client.locate(Some(b"/nonexistent/sockets.sock"), None, 0);
        let before = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let mask = set_mask(1 << 9);
        assert_eq!(client.pair(&ASKED), Err(Reason::NoDaemon));
        assert_eq!(set_mask(mask), 1 << 9);
        let again = client.pair(&ASKED);
        assert_eq!(again, Err(Reason::NoDaemon), "not asked again");
        let after = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        assert_eq!(after, before);
    }
}

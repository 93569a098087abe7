//! A connection over real loopback sockets with a channel beside it, and blocking calls on one end as a
//! program makes them.
#![allow(dead_code)] // Each user of the harness needs a part of it.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use windlass_channel::layout::SLAB_BYTES;
use windlass_channel::{
    Alive, Asleep, Bufs, End, Fast, Fd, Join, Life, Link, Moved, Offer, Owner, Reclaimed, RecvHow,
    Sent, Side, Slab, Took, WhenFull, Who, sys,
};

/// Connections are made one at a time: descriptors that are to be inherited must not leak into another test's child.
pub static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Numbers that both processes of a test see.
#[repr(C)]
pub struct Board {
    /// Bytes that each side's sends have returned for.
    pub sent: [AtomicU64; 2],
    /// 1 once a side's sender has finished, so `sent` is final.
    pub done: [AtomicU32; 2],
    /// Pid of the process on each side that has ended and was reaped.
    pub dead: [AtomicU32; 2],
    /// An error of the kernel that a call of this side has met and could not report: the kernel tells it once. Or 0.
    pub error: [AtomicI32; 2],
    /// 1: senders stop.
    pub stop: AtomicU32,
}

/// A shared mapping of a memory file.
pub fn map(fd: RawFd, len: usize) -> NonNull<u8> {
    // SAFETY: a fresh mapping of a file that is long enough.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            fd,
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    NonNull::new(at.cast()).unwrap()
}

/// A memory file; inherited by children.
pub fn memory(len: usize) -> OwnedFd {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"windlass-channel-test".as_ptr(), 0) };
    assert!(fd >= 0);
    // SAFETY: just made.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: an own descriptor.
    assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), len as i64) }, 0);
    fd
}

/// The slab and the board of one test, mapped and never unmapped.
#[derive(Clone, Copy)]
pub struct Shared {
    pub slab: &'static Slab,
    pub board: &'static Board,
}

impl Shared {
    /// Maps what `memory` made; `format` for the first one.
    pub fn map(slab: RawFd, board: RawFd, format: bool) -> Shared {
        let base = map(slab, SLAB_BYTES);
        if format {
            // SAFETY: fresh, zeroed, unshared so far.
            unsafe { Slab::format(base, 1) };
        }
        // SAFETY: mapped for good.
        let slab = unsafe { Slab::attach(base, SLAB_BYTES, [None, None]) }.unwrap();
        // SAFETY: mapped for good; all fields are atomics.
        let board = unsafe { map(board, 4096).cast::<Board>().as_ref() };
        Shared {
            slab: Box::leak(Box::new(slab)),
            board,
        }
    }
}

/// A connected pair: (connected end, accepted end).
pub fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (b, _) = listener.accept().unwrap();
    a.set_nodelay(true).unwrap();
    b.set_nodelay(true).unwrap();
    (a, b)
}

/// Sets a number of a socket.
pub fn set<T>(socket: &TcpStream, name: i32, value: T) {
    let (at, len) = ((&raw const value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the value lives for the call.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, at, len) };
    assert_eq!(done, 0);
}

/// Knows whether the process on each side lives, by the board.
pub struct ByBoard(pub &'static Board);

impl Alive for ByBoard {
    fn life(&self, owner: Owner) -> Life {
        let [low, high] = &self.0.dead;
        let dead = match owner.process() {
            1 => low,
            2 => high,
            _ => return Life::Stranger,
        };
        if dead.load(Ordering::Acquire) != 0 {
            Life::Dead
        } else {
            Life::Lives
        }
    }
}

/// How one end behaves.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// How long a receiver and a waiting sender spin.
    pub spin: Duration,
    /// Every so many sends goes by the kernel.
    pub excursion: u64,
    /// Sleep in poll instead of in recv.
    pub poll: bool,
    /// Sends and receives do not block: they poll for what they wait for, as an event loop does.
    pub nonblocking: bool,
}

/// One end of the connection, as a program uses it.
pub struct Endpoint {
    pub link: Link<'static>,
    pub fd: Fd,
    pub board: &'static Board,
    pub alive: ByBoard,
}

/// What a receive of a program returns.
pub type Received = Result<usize, i32>;

impl Endpoint {
    pub fn new(shared: Shared, chan: u16, side: Side, fd: RawFd, connected: bool) -> Endpoint {
        Endpoint {
            link: shared.slab.link(chan, side).unwrap(),
            fd: Fd { fd, connected },
            board: shared.board,
            alive: ByBoard(shared.board),
        }
    }

    /// The caller's identity for a thread.
    pub fn who(&self, thread: u16) -> Who<'_> {
        Who {
            owner: Owner::new(self.link.side() as u16 + 1, thread).unwrap(),
            alive: &self.alive,
        }
    }

    /// Sends all of `data` by the short way; whether that was possible.
    fn send_fast(&self, thread: u16, data: &[u8]) -> Option<Sent> {
        let (who, out) = (self.who(thread), self.link.outgoing());
        let bufs = Bufs::out(data.as_ptr(), data.len());
        match out.send_fast(who.owner, &bufs) {
            Fast::Sent => Some(Sent::Bytes(Moved {
                ring: data.len(),
                kernel: 0,
            })),
            Fast::Asleep => Some(out.look_after_sleeper(who, &self.fd, data.len())),
            Fast::No => None,
        }
    }

    /// Sends all of `data`, as a blocking or polling program does.
    pub fn send_all(&self, thread: u16, data: &[u8], habits: Habits) -> Result<(), i32> {
        let (who, out) = (self.who(thread), self.link.outgoing());
        let mut bufs = Bufs::out(data.as_ptr(), data.len());
        let mut full = if habits.nonblocking {
            WhenFull::Kernel
        } else {
            WhenFull::Say
        };
        // Half of them as the library does most.
        let is_straight = data.len().is_multiple_of(2) && !data.is_empty();
        let mut first = is_straight.then(|| self.send_fast(thread, data)).flatten();
        while !bufs.is_empty() {
            let sent = first
                .take()
                .unwrap_or_else(|| out.send(who, &self.fd, &bufs, libc::MSG_NOSIGNAL, full));
            match sent {
                Sent::Bytes(moved) => bufs.advance(moved.total()),
                Sent::RingFull => {
                    let until = Instant::now() + habits.spin;
                    while out.is_full() && Instant::now() < until {
                        out.pause();
                    }
                    if out.is_full() {
                        out.wait_for_space(10_000_000);
                    }
                    if out.is_full() {
                        full = WhenFull::Kernel;
                    }
                }
                Sent::KernelFull => {
                    poll(self.fd.fd, libc::POLLOUT, 1000);
                }
                Sent::Busy => sys::yield_now(),
                Sent::Error(error) => return Err(error),
                Sent::Broken => return Err(libc::ENOTRECOVERABLE),
            }
        }
        Ok(())
    }

    /// Receives at least a byte, as a program does.
    pub fn recv(&self, thread: u16, into: &mut [u8], habits: Habits) -> Received {
        let (who, inc) = (self.who(thread), self.link.incoming());
        let bufs = Bufs::one(into.as_mut_ptr(), into.len());
        let (mut until, mut how) = (None, RecvHow::default());
        if into.len().is_multiple_of(2) && !into.is_empty() {
            let got = inc.recv_fast(who.owner, &bufs);
            if got != 0 {
                return Ok(got);
            }
        }
        loop {
            let took = inc.recv(who, &self.fd, &bufs, 0, how);
            how.look = false;
            match took {
                Took::Bytes(moved) => return Ok(moved.total()),
                Took::Failing(moved, error) => return Ok(self.failing(moved, error)),
                Took::Eof => return self.ended(),
                Took::Error(error) => return Err(error),
                Took::Broken => return Err(libc::ENOTRECOVERABLE),
                Took::Busy => {
                    sys::yield_now();
                    continue;
                }
                Took::Empty | Took::Pending => {}
            }
            let until = *until.get_or_insert_with(|| Instant::now() + habits.spin);
            while !inc.ready() && Instant::now() < until {
                inc.pause();
            }
            if inc.ring_ready() {
                continue;
            }
            if let Some(result) = self.sleep(thread, into, habits) {
                return result;
            }
            // The kernel may hold what a killed sender could not announce.
            how.look = true;
        }
    }

    /// Sleeps in the kernel; `None`: look at the ring again.
    fn sleep(&self, thread: u16, into: &mut [u8], habits: Habits) -> Option<Received> {
        let inc = self.link.incoming();
        if inc.fall_asleep() == Asleep::Ready {
            return None;
        }
        // I6: whoever pushed waits for at most 10 ms before it sees to its own unread bytes.
        if self.link.outgoing().unread() && !poll(self.fd.fd, libc::POLLIN, 10) {
            inc.woke(0);
            let reclaimed = self.link.outgoing().reclaim(self.who(thread), &self.fd);
            return match reclaimed {
                Reclaimed::Error(error) => Some(self.last(thread, into, End::Error(error))),
                _ => None,
            };
        }
        if habits.poll || habits.nonblocking {
            // For longer than any test is patient: nothing but a wake may end it.
            poll(self.fd.fd, libc::POLLIN, 60_000);
            inc.woke(0);
            let mut byte = 0u8;
            let peeked = recv_raw(
                self.fd.fd,
                &raw mut byte,
                1,
                libc::MSG_PEEK | libc::MSG_DONTWAIT,
            );
            return match peeked {
                Ok(0) => Some(self.last(thread, into, End::Eof)),
                Err(libc::EAGAIN) | Ok(_) => None,
                Err(error) => Some(self.last(thread, into, End::Error(error))),
            };
        }
        let got = recv_raw(self.fd.fd, into.as_mut_ptr(), into.len(), 0);
        match got {
            Ok(0) => {
                inc.woke(0);
                Some(self.last(thread, into, End::Eof))
            }
            Ok(n) => {
                inc.woke(n);
                Some(Ok(n))
            }
            Err(libc::EINTR | libc::EAGAIN) => {
                inc.woke(0);
                None
            }
            Err(error) => {
                inc.woke(0);
                Some(self.last(thread, into, End::Error(error)))
            }
        }
    }

    /// The last bytes come before the error that ended the kernel's stream.
    fn failing(&self, moved: Moved, error: i32) -> usize {
        self.noted().store(error, Ordering::Release);
        moved.total()
    }

    /// The end of the stream, unless an error is to be reported.
    fn ended(&self) -> Received {
        match self.noted().swap(0, Ordering::AcqRel) {
            0 => Ok(0),
            error => Err(error),
        }
    }

    fn noted(&self) -> &AtomicI32 {
        &self.board.error[self.link.side() as usize]
    }

    /// The kernel's stream has ended: what is left in the ring, then the end.
    fn last(&self, thread: u16, into: &mut [u8], end: End) -> Received {
        let bufs = Bufs::one(into.as_mut_ptr(), into.len());
        let (who, inc) = (self.who(thread), self.link.incoming());
        loop {
            match inc.recv_last(who, &self.fd, &bufs, RecvHow::default(), end) {
                Took::Bytes(moved) => return Ok(moved.total()),
                Took::Failing(moved, error) => return Ok(self.failing(moved, error)),
                Took::Eof => return self.ended(),
                Took::Error(error) => return Err(error),
                Took::Busy => sys::yield_now(),
                other => panic!("{other:?} at the end"),
            }
        }
    }

    /// Ends the outgoing direction: every byte into the kernel, then FIN.
    pub fn finish(&self, thread: u16) {
        let out = self.link.outgoing();
        while out.unread() {
            match out.reclaim(self.who(thread), &self.fd) {
                Reclaimed::Part(_) => {
                    poll(self.fd.fd, libc::POLLOUT, 100);
                }
                Reclaimed::Error(_) | Reclaimed::Broken => break,
                _ => sys::yield_now(),
            }
        }
        // SAFETY: an own descriptor.
        unsafe { libc::shutdown(self.fd.fd, libc::SHUT_WR) };
    }
}

fn recv_raw(fd: RawFd, at: *mut u8, len: usize, flags: i32) -> Received {
    // SAFETY: the caller's buffer.
    let n = unsafe { libc::recv(fd, at.cast(), len, flags) };
    usize::try_from(n).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap())
}

fn poll(fd: RawFd, events: i16, milliseconds: i32) -> bool {
    let mut one = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut one, 1, milliseconds) == 1 }
}

/// Joins both ends of a fresh channel; `a` (the connected socket) is on the low side.
pub fn join(shared: Shared, a: &TcpStream, b: &TcpStream) -> u16 {
    let chan = shared.slab.allocate().unwrap();
    let [oa, ob] = [(a, true, 7u64), (b, false, 8)].map(|(s, connected, cookie)| {
        let counts = Fd {
            fd: s.as_raw_fd(),
            connected,
        }
        .counts()
        .unwrap();
        Offer {
            cookie,
            peer_cookie: (15 - cookie) as u32,
            netns: 1,
            local: s.local_addr().unwrap(),
            peer: s.peer_addr().unwrap(),
            slot: if connected { 1 } else { 2 },
            pid: std::process::id(),
            fd: s.as_raw_fd(),
            connected,
            written: counts.written(connected).unwrap(),
            received: counts.read().unwrap(),
            asleep: 0,
            is_recounted: false,
            is_tracked: false,
        }
    });
    let low = shared.slab.link(chan, Side::Low).unwrap();
    let high = shared.slab.link(chan, Side::High).unwrap();
    low.offer(&oa);
    assert_eq!(low.check(&oa), Join::Wait);
    high.offer(&ob);
    assert_eq!(high.check(&ob), Join::Ready);
    assert_eq!(low.check(&oa), Join::Ready);
    assert!(low.is_joined());
    chan
}

/// The byte at a position of a direction's stream.
pub fn byte_at(side: Side, position: u64) -> u8 {
    let salted = position.wrapping_add((side as u64) << 60);
    (salted.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// A small generator of random numbers (xorshift64*).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A size from 1 byte to 100 KB, small ones as often as large ones.
    pub fn size(&mut self) -> usize {
        let bits = self.next() % 17;
        (1 + self.next() as usize % (1usize << bits).max(1)).min(100_000)
    }
}

/// Sends random sizes until told to stop, or until an error, which it returns.
pub fn sender(end: &Endpoint, habits: Habits, seed: u64) -> Option<i32> {
    let side = end.link.side();
    let mut random = Random(seed | 1);
    let (mut position, mut sends) = (0u64, 0u64);
    let mut data = Vec::new();
    let mine = side as usize;
    while end.board.stop.load(Ordering::Relaxed) == 0 {
        data.clear();
        let len = random.size() as u64;
        data.extend((position..position + len).map(|p| byte_at(side, p)));
        sends += 1;
        if sends.is_multiple_of(habits.excursion) {
            end.link.outgoing().chill(1);
        }
        if let Err(error) = end.send_all(1, &data, habits) {
            return Some(error);
        }
        position += len;
        end.board.sent[mine].store(position, Ordering::Release);
    }
    end.finish(1);
    end.board.done[mine].store(1, Ordering::Release);
    None
}

/// Receives and checks until the end of the stream; how many bytes came, and the error that ended them.
pub fn receiver(end: &Endpoint, habits: Habits, seed: u64) -> (u64, Option<i32>) {
    let from = end.link.side().other();
    let mut random = Random(seed | 1);
    let mut position = 0u64;
    let mut buffer = vec![0u8; 100_000];
    loop {
        let asked = random.size();
        match end.recv(2, &mut buffer[..asked], habits) {
            Ok(0) => return (position, None),
            Err(error) => return (position, Some(error)),
            Ok(n) => {
                for &byte in &buffer[..n] {
                    let right = byte_at(from, position);
                    assert_eq!(byte, right, "byte {position} from {from:?}, {habits:?}");
                    position += 1;
                }
            }
        }
    }
}

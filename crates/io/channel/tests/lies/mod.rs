//! The honest side of a slab about which somebody lies: every call of it, chosen by chance or by the bytes of a fuzzer.
#![allow(dead_code)] // Each user needs a part of it.
#![allow(
    clippy::cast_ptr_alignment,
    reason = "words are taken at offsets that are masked to their size"
)]

use std::cell::RefCell;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use windlass_channel::layout::{
    CHAN_BYTES, CHANS, HEADER_BYTES, PAGE, PAGES_AT, PAGES_PER_SIDE, SLAB_BYTES, STATUS_BYTES,
};
use windlass_channel::{
    Alive, Asleep, Bufs, End, Fast, Fd, Life, Link, Moved, Offer, Owner, Reason, RecvHow, Sent,
    Side, Slab, StatusPage, Took, Watched, WhenFull, Who, sys,
};

#[path = "../harness/mod.rs"]
pub mod harness;
use harness::{Random, map, memory, tcp};

/// Where choices come from.
pub trait Chance {
    /// Any number.
    fn next(&mut self) -> u64;

    /// A size from 1 byte to 100 KB, small ones as often as large ones.
    fn size(&mut self) -> usize {
        let bits = self.next() % 17;
        (1 + self.next() as usize % (1usize << bits).max(1)).min(ROOM)
    }
}

impl Chance for Random {
    fn next(&mut self) -> u64 {
        Random::next(self)
    }
}

/// Choices by the bytes of an input, two for each; past its end they are over.
struct Tape<'a>(&'a [u8]);

impl Chance for Tape<'_> {
    fn next(&mut self) -> u64 {
        let Some((first, rest)) = self.0.split_first_chunk::<2>() else {
            self.0 = &[];
            return 0;
        };
        self.0 = rest;
        // Small numbers as they are; the upper half spreads over all bits.
        let value = u64::from(u16::from_le_bytes(*first));
        if value < 1 << 15 {
            value
        } else {
            value.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        }
    }
}

/// Runs an input of the fuzz target `slab`: lies about words of a slab, and calls of the honest side in between. Gives the
/// bytes that the honest side moved.
pub fn check(input: &[u8]) -> u64 {
    thread_local! {
        static PLACE: RefCell<Honest> = {
            assert!(sys::register_membarrier());
            let (file, base, slab) = slab(1);
            std::mem::forget(file);
            RefCell::new(Honest::new(slab, base))
        };
    }
    PLACE.with_borrow_mut(|honest| honest.play(input))
}

/// Longest time that one call may take: a lock is waited for a millisecond, a reader 20 us, and the machine is busy.
const CALL_MAX: Duration = Duration::from_secs(2);
/// Bytes before and behind each mapping that nobody may touch.
const GUARD: usize = 16 * PAGE;
/// Channels that are lied about, and used.
pub const USED: u64 = 4;
/// Process slots of the two sides.
const SLOTS: [u16; 2] = [1, 2];

/// A mapping of a memory file between pages that cannot be touched; never unmapped.
fn guarded(fd: RawFd, len: usize) -> NonNull<u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh reservation.
    let all = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len + 2 * GUARD,
            libc::PROT_NONE,
            flags,
            -1,
            0,
        )
    };
    assert_ne!(all, libc::MAP_FAILED);
    let at = all.wrapping_byte_add(GUARD);
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
    );
    // SAFETY: inside the reservation.
    let got = unsafe { libc::mmap(at, len, access, flags, fd, 0) };
    assert_eq!(got, at);
    NonNull::new(at.cast()).expect("not null")
}

/// A slab of its own, mapped between guards, with a zeroed status page of the peer.
pub fn slab(id: u32) -> (OwnedFd, NonNull<u8>, &'static Slab) {
    let (file, page) = (
        memory(SLAB_BYTES),
        memory(STATUS_BYTES.next_multiple_of(PAGE)),
    );
    let base = guarded(file.as_raw_fd(), SLAB_BYTES);
    // SAFETY: fresh, zeroed, unshared so far.
    unsafe { Slab::format(base, id) };
    // SAFETY: mapped for good.
    let status = unsafe { StatusPage::new(map(page.as_raw_fd(), PAGE.max(STATUS_BYTES))) };
    // SAFETY: mapped for good.
    let slab = unsafe { Slab::attach(base, SLAB_BYTES, [None, Some(status)]) }.expect("a slab");
    (file, base, Box::leak(Box::new(slab)))
}

/// Tells something else about every owner each time: the made-up words are of the living, the dead and of nobody.
#[derive(Default)]
pub struct Rumour(AtomicU64);

impl Alive for Rumour {
    fn life(&self, owner: Owner) -> Life {
        let n = self.0.fetch_add(1, Ordering::Relaxed);
        match (owner.process(), n % 3) {
            (1 | 2, 0) => Life::Dead,
            (1 | 2, _) => Life::Lives,
            (Owner::DAEMON, 0) => Life::Lives,
            _ => Life::Stranger,
        }
    }
}

/// A value that a liar would choose for a word that holds `old`.
pub fn lie(random: &mut dyn Chance, old: u64) -> u64 {
    let page = match random.next() % 4 {
        0 => PAGES_PER_SIDE as u64,
        1 => PAGES_PER_SIDE as u64 - 1,
        2 => u64::from(u32::MAX),
        _ => random.next() % 128,
    };
    let near = (random.next() % 9).wrapping_sub(4);
    match random.next() % 12 {
        0 => random.next(),
        1 => 0,
        2 => u64::MAX,
        3 => 1 << 63,
        4 => old.wrapping_add(near),
        5 => old.wrapping_add(near << 18),
        6 => page << 32 | (((PAGE as u64) << (random.next() % 9)) - 1),
        7 => (u64::from(SLOTS[random.next() as usize % 2]) << 16) | (random.next() % 4),
        8 => u64::from(Owner::DAEMON) << 16,
        9 => 1 << (random.next() % 64),
        10 => random.next() % 256,
        _ => (u64::from(random.next() as u32) << 32) | (old & 0xffff_ffff),
    }
}

/// What the honest side did, so that the test proves something.
#[derive(Debug, Default)]
pub struct Done {
    pub calls: u64,
    pub ring: u64,
    pub kernel: u64,
    pub broken: u64,
    pub slept: u64,
    pub longest: Duration,
}

/// The honest side of one pair.
pub struct Honest {
    slab: &'static Slab,
    base: NonNull<u8>,
    sockets: (TcpStream, TcpStream),
    /// Bytes with a margin on both sides that has to stay as it is.
    buffer: Vec<u8>,
    pub done: Done,
}

const MARGIN: usize = 4096;
const ROOM: usize = 100_000;

impl Honest {
    /// The honest side of a slab, with some channels in use and a connection of its own.
    pub fn new(slab: &'static Slab, base: NonNull<u8>) -> Honest {
        for _ in 0..USED {
            assert!(slab.allocate().is_some());
        }
        Honest {
            slab,
            base,
            sockets: tcp(),
            buffer: vec![0xa5; ROOM + 2 * MARGIN],
            done: Done::default(),
        }
    }

    fn fd(&self) -> Fd {
        Fd {
            fd: self.sockets.0.as_raw_fd(),
            connected: true,
        }
    }

    fn moved_straight(&mut self, bytes: usize, asked: usize) {
        let moved = Moved {
            ring: bytes,
            kernel: 0,
        };
        self.moved(moved, asked);
    }

    fn moved(&mut self, moved: Moved, asked: usize) {
        assert!(moved.total() <= asked, "{moved:?} of {asked}");
        self.done.ring += moved.ring as u64;
        self.done.kernel += moved.kernel as u64;
        for margin in [&self.buffer[..MARGIN], &self.buffer[MARGIN + ROOM..]] {
            assert!(
                margin.iter().all(|byte| *byte == 0xa5),
                "a byte outside the program's buffer was written"
            );
        }
    }

    fn play(&mut self, input: &[u8]) -> u64 {
        self.start_again();
        let (mut tape, rumour) = (Tape(input), Rumour::default());
        while !tape.0.is_empty() {
            if tape.next().is_multiple_of(4) {
                self.hear_a_lie(&mut tape);
            } else {
                self.step(&mut tape, &rumour);
            }
        }
        self.done.ring + self.done.kernel
    }

    /// Forgets the last input: a fresh connection, and zeros where something may have been written.
    fn start_again(&mut self) {
        self.sockets = tcp();
        self.done = Done::default();
        for offset in (8..PAGES_AT).step_by(8) {
            self.word(offset).store(0, Ordering::Relaxed);
        }
        for chan in 0..USED {
            assert_eq!(self.slab.allocate(), Some(chan as u16));
            self.join(chan as u16, &mut Random(1));
        }
    }

    /// One word of the slab changes under the honest side.
    fn hear_a_lie(&mut self, random: &mut dyn Chance) {
        let place = random.next() as usize;
        let offset = match random.next() % 8 {
            0 => 8 + place % (HEADER_BYTES - 8),
            1 => PAGES_AT + place % (64 * PAGE),
            _ => HEADER_BYTES + place % (USED as usize * CHAN_BYTES),
        };
        let word = self.word(offset & !7);
        let value = lie(random, word.load(Ordering::Relaxed));
        word.store(value, Ordering::Relaxed);
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        let at = self.base.as_ptr().wrapping_add(offset).cast::<u64>();
        // SAFETY: inside the mapping, which is never unmapped, and aligned; everybody accesses it by atomics.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// What the kernel holds for either end goes away, so that it never stays full; and sometimes something comes.
    fn stir(&mut self, random: &mut dyn Chance) {
        let mut sink = [0u8; 65_536];
        let (_, far) = &self.sockets;
        // SAFETY: an own buffer.
        unsafe {
            libc::recv(
                far.as_raw_fd(),
                sink.as_mut_ptr().cast(),
                sink.len(),
                libc::MSG_DONTWAIT,
            )
        };
        if random.next().is_multiple_of(4) {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: an own buffer.
            unsafe { libc::send(far.as_raw_fd(), sink.as_ptr().cast(), random.size(), flags) };
        }
    }

    fn send(&mut self, link: Link<'_>, who: Who<'_>, random: &mut dyn Chance) {
        let asked = random.size();
        let bufs = Bufs::out(self.buffer[MARGIN..].as_ptr(), asked);
        let full = if random.next().is_multiple_of(2) {
            WhenFull::Say
        } else {
            WhenFull::Kernel
        };
        let out = link.outgoing();
        let is_straight = asked != 0 && random.next().is_multiple_of(2);
        let straight = if is_straight {
            out.send_fast(who.owner, &bufs)
        } else {
            Fast::No
        };
        let sent = match straight {
            Fast::No => out.send(who, &self.fd(), &bufs, libc::MSG_NOSIGNAL, full),
            Fast::Sent => return self.moved_straight(asked, asked),
            Fast::Asleep => out.look_after_sleeper(who, &self.fd(), asked),
        };
        match sent {
            Sent::Bytes(moved) => self.moved(moved, asked),
            Sent::Broken => self.done.broken += 1,
            Sent::RingFull => link.outgoing().wait_for_space(1_000_000),
            Sent::Error(error) => assert_ne!(error, libc::EFAULT),
            Sent::KernelFull | Sent::Busy => {}
        }
    }

    fn receive(&mut self, link: Link<'_>, who: Who<'_>, random: &mut dyn Chance) {
        let asked = random.size();
        let bufs = Bufs::one(self.buffer[MARGIN..].as_mut_ptr(), asked);
        let bits = random.next();
        if asked != 0 && bits & 128 == 0 {
            let got = link.incoming().recv_fast(who.owner, &bufs);
            if got != 0 {
                return self.moved_straight(got, asked);
            }
        }
        let how = RecvHow {
            peek: bits & 7 == 0,
            discard: bits & 56 == 0,
            look: bits & 64 == 0,
        };
        let took = if bits.is_multiple_of(11) {
            link.incoming()
                .recv_last(who, &self.fd(), &bufs, how, End::Eof)
        } else {
            link.incoming().recv(who, &self.fd(), &bufs, 0, how)
        };
        match took {
            Took::Bytes(moved) | Took::Failing(moved, _) => self.moved(moved, asked),
            Took::Broken => self.done.broken += 1,
            Took::Error(error) => assert_ne!(error, libc::EFAULT),
            Took::Empty | Took::Pending | Took::Eof | Took::Busy => {}
        }
    }

    /// Joins both ends of a channel anew, from zeroed words, as far as the liar lets them.
    pub fn join(&mut self, chan: u16, random: &mut dyn Chance) {
        let slab = self.slab;
        let at = HEADER_BYTES + chan as usize * CHAN_BYTES;
        for word in (0..CHAN_BYTES).step_by(8) {
            self.word(at + word).store(0, Ordering::Relaxed);
        }
        let (near, far) = &self.sockets;
        let offers = [(near, 7, 8), (far, 8, 7)].map(|(socket, cookie, peer_cookie)| Offer {
            cookie,
            peer_cookie,
            netns: 1,
            local: socket.local_addr().expect("a name"),
            peer: socket.peer_addr().expect("a name"),
            slot: SLOTS[0],
            pid: 1,
            fd: near.as_raw_fd(),
            connected: cookie == 7,
            written: 0,
            received: 0,
            asleep: 0,
            is_recounted: false,
            is_tracked: false,
        });
        let links = [Side::Low, Side::High].map(|side| slab.link(chan, side).expect("in range"));
        links
            .iter()
            .zip(&offers)
            .for_each(|(link, offer)| link.offer(offer));
        for (link, offer) in links.iter().zip(&offers) {
            let _ = link.check(offer);
        }
        let [link, _] = links;
        let _ = (
            link.is_joined(),
            link.info(Side::Low),
            link.info(Side::High),
        );
        if random.next().is_multiple_of(64) && link.leave(Reason::Closing) {
            slab.free(chan);
        }
        if random.next().is_multiple_of(8)
            && let Some(fresh) = slab.allocate()
        {
            assert!((fresh as usize) < CHANS);
            slab.free(fresh);
        }
    }

    fn sleep(&mut self, link: Link<'_>, random: &mut dyn Chance) {
        let incoming = link.incoming();
        incoming.set_slot(random.next() as u8);
        if incoming.fall_asleep() == Asleep::Yes {
            self.done.slept += 1;
            incoming.woke(0);
        }
        let _ = (
            incoming.ready(),
            incoming.ring_ready(),
            incoming.queued(),
            incoming.reason(),
        );
    }

    fn news(&mut self, side: Side) {
        let slab = self.slab;
        let mut heard = 0;
        let watched = Watched::new();
        (0..USED).for_each(|chan| watched.add(chan as u16));
        let _ = watched.has_news(slab, side, None);
        if watched.has_streams(slab, side) {
            windlass_channel::wait::heavy_barrier();
        }
        watched.take(slab, side, |chan, _| {
            heard += 1;
            assert!((chan as usize) < CHANS);
        });
        assert!(heard <= USED as usize);
        assert!(slab.channels().count() <= CHANS);
        let _ = (slab.take_watch(), slab.take_alarm());
    }

    /// One call, chosen at random; none takes long.
    pub fn step(&mut self, random: &mut dyn Chance, rumour: &Rumour) {
        let who = Who {
            owner: Owner::new(SLOTS[0], 1).expect("a slot"),
            alive: rumour,
        };
        let side = Side::from_u8(u8::from(random.next().is_multiple_of(4)));
        let chan = (random.next() % USED) as u16;
        let link = self.slab.link(chan, side).expect("in range");
        let begin = Instant::now();
        let kind = random.next() % 16;
        match kind {
            0..=4 => self.send(link, who, random),
            5..=9 => self.receive(link, who, random),
            10 => {
                let _ = link.outgoing().reclaim(who, &self.fd());
            }
            11 => self.sleep(link, random),
            12 => self.news(side),
            13 if random.next().is_multiple_of(4) => self.join(chan, random),
            13 | 14 => {
                let out = link.outgoing();
                let _ = (
                    out.unread(),
                    out.queued(),
                    out.wanted(),
                    out.is_full(),
                    out.reason(),
                );
                out.other_call(who.owner);
                link.set_news();
            }
            _ => {
                let _ = link.outgoing().idle_tick(who, &self.fd());
            }
        }
        let took = begin.elapsed();
        assert!(took < CALL_MAX, "call {kind} took {took:?}");
        self.done.longest = self.done.longest.max(took);
        self.done.calls += 1;
        if self.done.calls.is_multiple_of(16) {
            self.stir(random);
        }
    }
}

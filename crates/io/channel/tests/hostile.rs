//! A peer that writes anything anywhere into the slab at any time: the honest side gets garbage or a broken channel for
//! that pair, and nothing else.

#![allow(
    clippy::cast_ptr_alignment,
    reason = "words are taken at offsets that are masked to their size"
)]

use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use windlass_channel::layout::{
    CHAN_BYTES, CHANS, HEADER_BYTES, PAGE, PAGES_AT, PAGES_PER_SIDE, SLAB_BYTES, STATUS_BYTES,
};
use windlass_channel::{
    Alive, Asleep, Bufs, End, Fd, Life, Link, Moved, Offer, Owner, Reason, RecvHow, Sent, Side,
    Slab, StatusPage, Straight, Took, Watched, WhenFull, Who, sys,
};

mod harness;
use harness::{ONE_AT_A_TIME, Random, map, memory, tcp};

/// Longest time that one call may take: a lock is waited for a millisecond, a reader 20 us, and the machine is busy.
const CALL_MAX: Duration = Duration::from_secs(2);
/// Bytes before and behind each mapping that nobody may touch.
const GUARD: usize = 16 * PAGE;
/// Channels that are lied about, and used.
const USED: u64 = 4;
/// Process slots of the two sides.
const SLOTS: [u16; 2] = [1, 2];

fn seconds() -> u64 {
    let soak = std::env::var_os("WINDLASS_SOAK").is_some();
    if soak { 60 } else { 3 }
}

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
fn slab(id: u32) -> (OwnedFd, NonNull<u8>, &'static Slab) {
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
struct Rumour(AtomicU64);

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
fn lie(random: &mut Random, old: u64) -> u64 {
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
        6 => ((random.next() % 9) << 32) | page,
        7 => (u64::from(SLOTS[random.next() as usize % 2]) << 16) | (random.next() % 4),
        8 => u64::from(Owner::DAEMON) << 16,
        9 => 1 << (random.next() % 64),
        10 => random.next() % 256,
        _ => (u64::from(random.next() as u32) << 32) | (old & 0xffff_ffff),
    }
}

/// Lies until told to stop: mostly about the words of the used channels, also about bitmaps, other channels and rings.
fn scribble(base: NonNull<u8>, stop: &AtomicBool, seed: u64) -> u64 {
    let mut random = Random(seed);
    let mut lies = 0;
    while !stop.load(Ordering::Relaxed) {
        let r = random.next() as usize;
        let offset = match random.next() % 16 {
            0 => 8 + r % (HEADER_BYTES - 8),
            1 => HEADER_BYTES + r % (CHANS * CHAN_BYTES),
            2 => PAGES_AT + r % (64 * PAGE),
            3 => PAGES_AT + PAGES_PER_SIDE * PAGE + r % (64 * PAGE),
            _ => HEADER_BYTES + r % (USED as usize * CHAN_BYTES),
        };
        if random.next().is_multiple_of(2) {
            let at = base.as_ptr().wrapping_add(offset & !7).cast::<u64>();
            // SAFETY: inside the mapping, aligned; everybody accesses it by atomics or the copy routine.
            let word = unsafe { AtomicU64::from_ptr(at) };
            word.store(
                lie(&mut random, word.load(Ordering::Relaxed)),
                Ordering::Relaxed,
            );
        } else {
            let at = base.as_ptr().wrapping_add(offset & !3).cast::<u32>();
            // SAFETY: as above.
            let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(at) };
            let old = u64::from(word.load(Ordering::Relaxed));
            word.store(lie(&mut random, old) as u32, Ordering::Relaxed);
        }
        lies += 1;
        // Bursts and pauses: the honest side shall also get somewhere.
        for _ in 0..random.next() % 40_000 * u64::from(lies % 4 == 0) {
            std::hint::spin_loop();
        }
    }
    lies
}

/// What the honest side did, so that the test proves something.
#[derive(Debug, Default)]
struct Done {
    calls: u64,
    ring: u64,
    kernel: u64,
    broken: u64,
    slept: u64,
    longest: Duration,
}

/// The honest side of one pair.
struct Honest {
    slab: &'static Slab,
    base: NonNull<u8>,
    sockets: (TcpStream, TcpStream),
    /// Bytes with a margin on both sides that has to stay as it is.
    buffer: Vec<u8>,
    done: Done,
}

const MARGIN: usize = 4096;
const ROOM: usize = 100_000;

impl Honest {
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

    /// What the kernel holds for either end goes away, so that it never stays full; and sometimes something comes.
    fn stir(&mut self, random: &mut Random) {
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

    fn send(&mut self, link: Link<'_>, who: Who<'_>, random: &mut Random) {
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
            out.send_straight(who.owner, &bufs)
        } else {
            Straight::No
        };
        let sent = match straight {
            Straight::No => out.send(who, &self.fd(), &bufs, libc::MSG_NOSIGNAL, full),
            Straight::Sent => return self.moved_straight(asked, asked),
            Straight::Asleep => out.look_after_sleeper(who, &self.fd(), asked),
        };
        match sent {
            Sent::Bytes(moved) => self.moved(moved, asked),
            Sent::Broken => self.done.broken += 1,
            Sent::RingFull => link.outgoing().wait_for_space(1_000_000),
            Sent::Error(error) => assert_ne!(error, libc::EFAULT),
            Sent::KernelFull | Sent::Busy => {}
        }
    }

    fn receive(&mut self, link: Link<'_>, who: Who<'_>, random: &mut Random) {
        let asked = random.size();
        let bufs = Bufs::one(self.buffer[MARGIN..].as_mut_ptr(), asked);
        let bits = random.next();
        if asked != 0 && bits & 128 == 0 {
            let got = link.incoming().recv_straight(who.owner, &bufs);
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
    fn join(&mut self, chan: u16, random: &mut Random) {
        let slab = self.slab;
        let at = HEADER_BYTES + chan as usize * CHAN_BYTES;
        for word in (0..CHAN_BYTES).step_by(8) {
            let at = self.base.as_ptr().wrapping_add(at + word).cast::<u64>();
            // SAFETY: inside the mapping, aligned; everybody accesses it by atomics.
            unsafe { AtomicU64::from_ptr(at) }.store(0, Ordering::Relaxed);
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

    fn sleep(&mut self, link: Link<'_>, who: Who<'_>, random: &mut Random) {
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
        let _ = incoming.check_wild();
        let _ = incoming.recount(who, &self.fd(), random.next() as u32 % 2);
        if random.next().is_multiple_of(64) {
            incoming.no_stream();
        }
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
    fn step(&mut self, random: &mut Random, rumour: &Rumour) {
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
            11 => self.sleep(link, who, random),
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

/// Everything of a slab that is not a hole.
fn contents(base: NonNull<u8>) -> Vec<u8> {
    let piece = |from: usize, len: usize| {
        // SAFETY: inside a mapping that nobody changes now.
        unsafe { std::slice::from_raw_parts(base.as_ptr().wrapping_add(from), len) }
    };
    let mut all = piece(0, PAGES_AT + 64 * PAGE).to_vec();
    all.extend(piece(PAGES_AT + PAGES_PER_SIDE * PAGE, 64 * PAGE));
    all
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .expect("descriptors")
        .count()
}

/// While a peer writes random values and chosen lies over the whole slab, every call of the honest side comes back in
/// bounded time, within its buffers, without a panic and without an access outside the slab; what it shares with other
/// peers stays as it is, and no descriptor is left behind.
#[test]
fn a_peer_that_scribbles_harms_only_its_own_pair() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|p| p.into_inner());
    assert!(sys::register_membarrier());
    let (file, base, honest_view) = slab(1);
    let (_other_file, other, other_slab) = slab(2);
    let bystander = other_slab.allocate().expect("a channel");
    other_slab
        .link(bystander, Side::High)
        .expect("in range")
        .incoming()
        .set_slot(3);
    // Channels in both states, used by both sides of a self-pair too.
    (0..USED).for_each(|_| assert!(honest_view.allocate().is_some()));
    let before = contents(other);
    let liar = map(file.as_raw_fd(), SLAB_BYTES).as_ptr() as usize;
    let (stop, seed) = (AtomicBool::new(false), std::process::id().into());
    println!("seed {seed}");
    let mut honest = Honest {
        slab: honest_view,
        base,
        sockets: tcp(),
        buffer: vec![0xa5; ROOM + 2 * MARGIN],
        done: Done::default(),
    };
    let open = descriptors();
    let lies = std::thread::scope(|scope| {
        let liar =
            scope.spawn(|| scribble(NonNull::new(liar as *mut u8).expect("mapped"), &stop, seed));
        let (mut random, rumour) = (Random(seed ^ 0x5eed), Rumour::default());
        let until = Instant::now() + Duration::from_secs(seconds());
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while Instant::now() < until {
                honest.step(&mut random, &rumour);
            }
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
        liar.join().expect("the liar")
    });
    println!("{lies} lies, {:?}", honest.done);
    assert_eq!(descriptors(), open, "descriptors");
    assert!(contents(other) == before, "another pair's slab has changed");
    let done = &honest.done;
    assert!(
        done.ring > 0 && done.kernel > 0 && done.broken > 0 && done.slept > 0,
        "{done:?}"
    );
}

/// Lies that stand still, one word at a time: each word of a channel holds each chosen value while the honest side makes
/// every call once.
#[test]
fn no_single_lie_does_harm() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|p| p.into_inner());
    assert!(sys::register_membarrier());
    let (_file, base, honest_view) = slab(3);
    let mut honest = Honest {
        slab: honest_view,
        base,
        sockets: tcp(),
        buffer: vec![0xa5; ROOM + 2 * MARGIN],
        done: Done::default(),
    };
    let (mut random, rumour) = (Random(11), Rumour::default());
    for _ in 0..USED {
        assert!(honest_view.allocate().is_some());
    }
    let until = Instant::now() + Duration::from_secs(seconds());
    let mut lies = 0;
    while Instant::now() < until {
        let offset = (HEADER_BYTES + random.next() as usize % (USED as usize * CHAN_BYTES)) & !7;
        let at = base.as_ptr().wrapping_add(offset).cast::<u64>();
        // SAFETY: inside the mapping, aligned, accessed by atomics only.
        let word = unsafe { AtomicU64::from_ptr(at) };
        let old = word.load(Ordering::Relaxed);
        word.store(lie(&mut random, old), Ordering::Relaxed);
        (0..20).for_each(|_| honest.step(&mut random, &rumour));
        word.store(old, Ordering::Relaxed);
        lies += 1;
        // A fresh start: what is broken stays broken.
        (0..USED as u16).for_each(|chan| honest.join(chan, &mut random));
    }
    println!("{lies} lies, {:?}", honest.done);
    assert!(
        lies > 100 && honest.done.ring > 0,
        "{lies} {:?}",
        honest.done
    );
}

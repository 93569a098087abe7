//! Records over real `SOCK_SEQPACKET` pairs: the random full-duplex checker, what a killed reclaimer leaves, and lengths that
//! cannot be. `WINDLASS_CHANNEL_SOAK` multiplies the time.
#![cfg(not(loom))]

mod harness;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use harness::*;
use windlass_channel::layout::{PAGES_AT, SLAB_BYTES};
use windlass_channel::records::{Got, Record, RecordFd, ring_max};
use windlass_channel::unix::{Kind, START, UNKNOWN, name};
use windlass_channel::{
    Asleep, Bufs, End, Join, Moved, Offer, Reclaimed, RecvHow, Sent, Side, Took, WhenFull, sys,
};

/// The longest record of the checker.
const LONGEST: usize = 64 * 1024;
/// Bytes of slots in a ring, for the send buffer that Linux gives by default.
const RING_MAX: usize = 85_196 / 512 * 512;

fn factor() -> f64 {
    std::env::var("WINDLASS_CHANNEL_SOAK")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(1.0)
}

/// A connected pair of sockets that keep records.
fn pair(kind: i32) -> [OwnedFd; 2] {
    let mut fds = [-1; 2];
    let kind = kind | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) };
    assert_eq!(made, 0);
    // SAFETY: just made.
    fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Joins both ends of a fresh channel; the first socket is on the low side.
fn join_records(shared: Shared, fds: [RawFd; 2], kind: Kind) -> u16 {
    let chan = shared.slab.allocate().expect("a channel");
    let ends = [(Side::Low, fds[0]), (Side::High, fds[1])];
    let offers = ends.map(|(side, fd)| Offer {
        cookie: 7 + side as u64,
        peer_cookie: 8 - side as u32,
        netns: 1,
        local: name(10 + side as u32, kind),
        peer: name(11 - side as u32, kind),
        slot: side as u16 + 1,
        pid: std::process::id(),
        fd,
        connected: false,
        written: START,
        received: UNKNOWN,
        asleep: 0,
        is_tracked: false,
        is_recounted: false,
    });
    for ((side, fd), offer) in ends.iter().zip(&offers) {
        let end = Endpoint::new(shared, chan, *side, *fd, false);
        end.link.offer(offer);
    }
    for ((side, fd), offer) in ends.iter().zip(&offers) {
        let end = Endpoint::new(shared, chan, *side, *fd, false);
        let inc = end.link.incoming();
        assert!(inc.count_by_queue(end.who(1), &RecordFd(*fd)));
        assert_eq!(end.link.check(offer), Join::Ready);
    }
    chan
}

/// A slab, a board, a pair, and its channel.
fn joined() -> (Shared, [OwnedFd; 2], u16) {
    joined_as(libc::SOCK_SEQPACKET, Kind::Seqpacket)
}

/// The same of another type.
fn joined_as(number: i32, kind: Kind) -> (Shared, [OwnedFd; 2], u16) {
    let (slab, board) = (memory(SLAB_BYTES), memory(4096));
    let shared = Shared::map(slab.as_raw_fd(), board.as_raw_fd(), true);
    let fds = pair(number);
    let chan = join_records(shared, [fds[0].as_raw_fd(), fds[1].as_raw_fd()], kind);
    (shared, fds, chan)
}

/// The length of a direction's record with this number: none, a few, a slot and around it, up to the longest.
fn length_of(side: Side, number: u64) -> usize {
    let mut random = Random((number << 1 | side as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    match random.next() % 8 {
        0 => 0,
        1 => 490 + random.next() as usize % 30,
        _ => random.size().min(LONGEST),
    }
}

/// The bytes of a direction's record.
fn fill(side: Side, number: u64, into: &mut Vec<u8>) {
    into.clear();
    let start = number << 20;
    into.extend((start..start + length_of(side, number) as u64).map(|p| byte_at(side, p)));
}

fn descriptor(end: &Endpoint) -> RecordFd {
    RecordFd(end.fd.fd)
}

fn poll(fd: RawFd, events: i16, milliseconds: i32) {
    let mut one = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut one, 1, milliseconds) };
}

/// Sends one record as a program does; the error that ends the connection.
fn send(end: &Endpoint, data: &[u8], habits: Habits) -> Result<Moved, i32> {
    let out = end.link.outgoing();
    let bufs = Bufs::out(data.as_ptr(), data.len());
    let mut full = if habits.nonblocking {
        WhenFull::Kernel
    } else {
        WhenFull::Say
    };
    loop {
        let flags = libc::MSG_NOSIGNAL;
        match out.send_record(end.who(1), &descriptor(end), &bufs, flags, full, RING_MAX) {
            Sent::Bytes(moved) => return Ok(moved),
            Sent::RingFull => {
                let until = Instant::now() + habits.spin;
                let is_full = || out.is_full_for(data.len(), RING_MAX);
                while is_full() && Instant::now() < until {
                    out.pause();
                }
                out.wait_while(10_000_000, is_full);
                if is_full() {
                    full = WhenFull::Kernel;
                }
            }
            Sent::KernelFull => poll(end.fd.fd, libc::POLLOUT, 10),
            Sent::Busy => sys::yield_now(),
            Sent::Error(error) => return Err(error),
            Sent::Broken => return Err(libc::ENOTRECOVERABLE),
        }
    }
}

/// Receives one record as a program does; nothing at the end.
fn recv(end: &Endpoint, into: &mut [u8], habits: Habits) -> Result<Option<Record>, i32> {
    let inc = end.link.incoming();
    let bufs = Bufs::one(into.as_mut_ptr(), into.len());
    let mut how = RecvHow::default();
    loop {
        let got = inc.recv_record(end.who(2), &descriptor(end), &bufs, 0, how);
        how.look = false;
        match got {
            Got::Record(record) => return Ok(Some(record)),
            Got::No(Took::Eof) => return Ok(None),
            Got::No(Took::Error(error)) => return Err(error),
            Got::No(Took::Broken) => return Err(libc::ENOTRECOVERABLE),
            Got::No(Took::Busy) => {
                sys::yield_now();
                continue;
            }
            Got::No(_) => {}
        }
        let until = Instant::now() + habits.spin;
        while !inc.ready() && Instant::now() < until {
            inc.pause();
        }
        if inc.ring_ready() || inc.fall_asleep() == Asleep::Ready {
            continue;
        }
        if end.link.outgoing().unread() {
            poll(end.fd.fd, libc::POLLIN, 10);
            let _ = end.link.outgoing().reclaim(end.who(2), &descriptor(end));
        }
        if habits.poll || habits.nonblocking {
            poll(end.fd.fd, libc::POLLIN, 10_000);
            inc.woke(0);
            how.look = true;
            continue;
        }
        // SAFETY: the buffer is `into`.
        let n = unsafe {
            libc::recv(
                end.fd.fd,
                into.as_mut_ptr().cast(),
                into.len(),
                libc::MSG_TRUNC,
            )
        };
        let is_record = n > 0 || n == 0 && inc.was_record(&descriptor(end));
        if is_record {
            inc.took_record(n as usize);
        }
        inc.woke(0);
        if is_record {
            let length = n as usize;
            return Ok(Some(Record {
                copied: length.min(into.len()),
                length,
                is_kernels: true,
            }));
        }
        assert_eq!(n, 0, "{}", std::io::Error::last_os_error());
        let last = inc.recv_record_last(end.who(2), &descriptor(end), &bufs, how, End::Eof);
        return match last {
            Got::Record(record) => Ok(Some(record)),
            Got::No(Took::Eof) => Ok(None),
            other => panic!("{other:?} at the end"),
        };
    }
}

/// Records by ring and by kernel, as they were received.
#[derive(Default)]
struct Ways {
    ring: AtomicU64,
    kernel: AtomicU64,
}

fn sender(end: &Endpoint, habits: Habits) -> u64 {
    let side = end.link.side();
    let mut data = Vec::new();
    let mut number = 0;
    while end.board.stop.load(Ordering::Relaxed) == 0 {
        fill(side, number, &mut data);
        if number.is_multiple_of(habits.excursion) {
            end.link.outgoing().chill(1);
        }
        send(end, &data, habits).expect("the connection stands");
        number += 1;
    }
    loop {
        match end.link.outgoing().reclaim(end.who(1), &descriptor(end)) {
            Reclaimed::Empty | Reclaimed::All(_) => break,
            Reclaimed::Part(_) => poll(end.fd.fd, libc::POLLOUT, 10),
            Reclaimed::Owed | Reclaimed::Busy => sys::yield_now(),
            other => panic!("{other:?}"),
        }
    }
    // SAFETY: an own descriptor.
    unsafe { libc::shutdown(end.fd.fd, libc::SHUT_WR) };
    number
}

fn receiver(end: &Endpoint, habits: Habits, seed: u64, ways: &Ways) -> u64 {
    let from = end.link.side().other();
    let mut random = Random(seed | 1);
    let mut buffer = vec![0_u8; LONGEST];
    let (mut expected, mut number) = (Vec::new(), 0);
    loop {
        // Mostly the whole record, sometimes less, sometimes nothing of it.
        let room = match random.next() % 8 {
            0 => random.next() as usize % 600,
            1 => 0,
            _ => LONGEST,
        };
        let Some(record) = recv(end, &mut buffer[..room], habits).expect("the connection stands")
        else {
            return number;
        };
        fill(from, number, &mut expected);
        assert_eq!(
            record.length,
            expected.len(),
            "record {number} from {from:?}"
        );
        assert_eq!(record.copied, record.length.min(room));
        assert_eq!(buffer[..record.copied], expected[..record.copied]);
        let way = if record.is_kernels {
            &ways.kernel
        } else {
            &ways.ring
        };
        way.fetch_add(1, Ordering::Relaxed);
        number += 1;
    }
}

fn run(time: Duration, habits: [Habits; 2], seed: u64, ways: &'static Ways) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|p| p.into_inner());
    let (shared, fds, chan) = joined();
    let (done, finished) = mpsc::channel();
    let mut threads = Vec::new();
    for (side, h) in [(Side::Low, habits[0]), (Side::High, habits[1])] {
        let fd = fds[side as usize].as_raw_fd();
        for is_sender in [true, false] {
            let done = done.clone();
            threads.push(std::thread::spawn(move || {
                let end = Endpoint::new(shared, chan, side, fd, false);
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    if is_sender {
                        (side, sender(&end, h))
                    } else {
                        (side.other(), receiver(&end, h, seed ^ 0xff, ways))
                    }
                }));
                let _ = done.send(result.ok());
            }));
        }
    }
    std::thread::sleep(time);
    shared.board.stop.store(1, Ordering::Relaxed);
    let mut numbers: [Vec<u64>; 2] = Default::default();
    for _ in 0..4 {
        let result = finished.recv_timeout(Duration::from_secs(40));
        let (side, number) = result
            .unwrap_or_else(|_| panic!("a thread hangs: {habits:?}, seed {seed}"))
            .expect("a thread failed");
        numbers[side as usize].push(number);
    }
    for of_side in &numbers {
        assert_eq!(of_side.first(), of_side.last(), "{habits:?}: {numbers:?}");
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// Every record arrives once, in order, with its own length and bytes, in both directions at once, whatever the sizes (none to
/// 64 KiB), however often a direction goes to the kernel and back, however long the ends spin, and wherever they
/// sleep. Rings and kernel both carry records.
#[test]
fn every_record_arrives_once_and_whole() {
    static WAYS: Ways = Ways {
        ring: AtomicU64::new(0),
        kernel: AtomicU64::new(0),
    };
    assert!(sys::register_membarrier());
    let time = Duration::from_secs_f64(0.2 * factor());
    for (i, &spin) in [0, 5, 50].iter().enumerate() {
        for (j, &excursion) in [3, 10, 100, 1_000].iter().enumerate() {
            let habits = |poll, nonblocking| Habits {
                spin: Duration::from_micros(spin),
                excursion,
                poll,
                nonblocking,
            };
            let both = [
                habits((i + j) % 2 == 0, false),
                habits(j % 2 == 0, i % 2 == 1),
            ];
            run(time, both, (i * 4 + j) as u64 * 77 + 1, &WAYS);
        }
    }
    let [ring, kernel] = [&WAYS.ring, &WAYS.kernel].map(|way| way.load(Ordering::Relaxed));
    println!("{ring} records by ring, {kernel} by kernel");
    // A reader that is slower than its writer finds most of what was in the ring in the kernel, at each excursion.
    assert!(
        ring > 20 && kernel > 100,
        "{ring} by ring, {kernel} by kernel"
    );
}

const NOW: Habits = Habits {
    spin: Duration::ZERO,
    excursion: u64::MAX,
    poll: false,
    nonblocking: true,
};

/// A full ring fits into the kernel at once, whatever the lengths in it, with the send buffer as it was: what a reclaim
/// needs. Then the records come out of the kernel as they went into the ring.
#[test]
fn a_full_ring_fits_into_the_kernel() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|p| p.into_inner());
    for lengths in [
        vec![0],
        vec![1],
        vec![504],
        vec![505],
        vec![1_900, 0],
        vec![8_180],
        vec![40_000],
    ] {
        let (shared, fds, chan) = joined();
        let fd = fds[0].as_raw_fd();
        let (mut buffer, mut length) = (0_i32, size_of::<i32>() as u32);
        // SAFETY: live variables.
        unsafe {
            libc::getsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_SNDBUF,
                (&raw mut buffer).cast(),
                &raw mut length,
            )
        };
        let room = ring_max(buffer as usize);
        let end = Endpoint::new(shared, chan, Side::Low, fd, false);
        let out = end.link.outgoing();
        let data = vec![5_u8; 65_536];
        let mut pushed = 0;
        for &length in lengths.iter().cycle() {
            let bufs = Bufs::out(data.as_ptr(), length);
            let sent =
                out.send_record(end.who(1), &descriptor(&end), &bufs, 0, WhenFull::Say, room);
            if sent == Sent::RingFull {
                // Twice in a millisecond: the ring grows as soon as it is empty.
                break;
            }
            assert!(
                matches!(sent, Sent::Bytes(moved) if moved.kernel == 0),
                "{sent:?}"
            );
            pushed += 1;
        }
        assert!(pushed > 0 && out.unread(), "{lengths:?}");
        let moved = out.reclaim(end.who(1), &descriptor(&end));
        assert!(
            matches!(moved, Reclaimed::All(_)),
            "{moved:?}: {pushed} of {lengths:?}"
        );
        for number in 0..pushed {
            let mut into = vec![0_u8; 65_536];
            // SAFETY: the buffer is live.
            let n = unsafe {
                libc::recv(
                    fds[1].as_raw_fd(),
                    into.as_mut_ptr().cast(),
                    into.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            assert_eq!(n as usize, lengths[number % lengths.len()]);
        }
    }
}

/// A record that the program's memory does not hold is not sent, and a receive peeks, cuts and counts as the kernel's.
#[test]
fn records_are_peeked_cut_and_whole_or_not_there() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|p| p.into_inner());
    let (shared, fds, chan) = joined();
    let [low, high] = [Side::Low, Side::High]
        .map(|side| Endpoint::new(shared, chan, side, fds[side as usize].as_raw_fd(), false));
    for text in [&b"first"[..], b"", b"third record"] {
        assert_eq!(
            send(&low, text, NOW),
            Ok(Moved {
                ring: text.len(),
                kernel: 0
            })
        );
    }
    let inc = high.link.incoming();
    assert_eq!(inc.queued_in_records(), 17);
    let mut into = [0_u8; 3];
    let bufs = Bufs::one(into.as_mut_ptr(), 3);
    let peek = RecvHow {
        peek: true,
        ..RecvHow::default()
    };
    let record = |copied, length| {
        Got::Record(Record {
            copied,
            length,
            is_kernels: false,
        })
    };
    let got = inc.recv_record(high.who(2), &descriptor(&high), &bufs, 0, peek);
    assert_eq!((got, &into), (record(3, 5), b"fir"));
    let plain = RecvHow::default();
    for expected in [record(3, 5), record(0, 0), record(3, 12)] {
        let got = inc.recv_record(high.who(2), &descriptor(&high), &bufs, 0, plain);
        assert_eq!(got, expected);
    }
    assert_eq!(&into, b"thi");
    let got = inc.recv_record(high.who(2), &descriptor(&high), &bufs, 0, plain);
    assert_eq!(got, Got::No(Took::Empty));
    assert_eq!(inc.queued_in_records(), 0);
}

/// A hostile peer writes any length before a record: the reader says that the channel is broken, in bounded time, and so
/// does a reclaim; nothing is read outside of the ring.
#[test]
fn lengths_that_cannot_be_break_the_channel() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|p| p.into_inner());
    for lie in [
        505,
        4_089,
        65_536,
        131_073,
        u64::from(u32::MAX),
        u64::MAX,
        1 << 63,
    ] {
        for by_reader in [true, false] {
            let (slab, board) = (memory(SLAB_BYTES), memory(4096));
            let shared = Shared::map(slab.as_raw_fd(), board.as_raw_fd(), true);
            let fds = pair(libc::SOCK_SEQPACKET);
            let numbers = [fds[0].as_raw_fd(), fds[1].as_raw_fd()];
            let chan = join_records(shared, numbers, Kind::Seqpacket);
            let [low, high] = [Side::Low, Side::High].map(|side| {
                Endpoint::new(shared, chan, side, fds[side as usize].as_raw_fd(), false)
            });
            assert!(send(&low, b"honest", NOW).is_ok());
            // The first ring of the low side is at the first page.
            let word = lie.to_le_bytes();
            // SAFETY: the bytes are live.
            let written =
                unsafe { libc::pwrite(slab.as_raw_fd(), word.as_ptr().cast(), 8, PAGES_AT as i64) };
            assert_eq!(written, 8);
            let mut into = [0_u8; 64];
            let result = if by_reader {
                recv(&high, &mut into, NOW).map(|_| ())
            } else {
                match low.link.outgoing().reclaim(low.who(1), &descriptor(&low)) {
                    Reclaimed::Broken => Err(libc::ENOTRECOVERABLE),
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!(result, Err(libc::ENOTRECOVERABLE), "{lie}");
        }
    }
}

/// How a child of the next test is told apart in a lock word: process slot 1, thread 1.
static CHILD: AtomicU32 = AtomicU32::new(0);

/// A process killed at a random instant while it pushes, sends and reclaims: its peer gets each record once and whole, in
/// order, and then the end; whatever part of a ring had gone into the kernel.
#[test]
fn a_killed_sender_leaves_whole_records() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|p| p.into_inner());
    let rounds = (40.0 * factor()) as u64;
    let mut most = 0;
    for round in 0..rounds {
        let (shared, fds, chan) = joined();
        // SAFETY: the child calls nothing that another thread's lock could hold up, but for memory, which it has.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            CHILD.store(1, Ordering::Relaxed);
            let end = Endpoint::new(shared, chan, Side::Low, fds[0].as_raw_fd(), false);
            let mut data = Vec::with_capacity(LONGEST + 100_000);
            for number in 0.. {
                fill(Side::Low, number, &mut data);
                let habits = Habits {
                    nonblocking: round % 2 == 0,
                    ..NOW
                };
                let _ = send(&end, &data, habits);
                if number % 5 == 0 {
                    let _ = end.link.outgoing().reclaim(end.who(1), &descriptor(&end));
                }
            }
        }
        assert!(pid > 0);
        let [own, other] = fds;
        drop(own);
        let end = Endpoint::new(shared, chan, Side::High, other.as_raw_fd(), false);
        let ways = Ways::default();
        let board = shared.board;
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(200 + round * 731 % 20_000));
            // SAFETY: an own child.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
            board.dead[0].store(1, Ordering::Release);
        });
        let habits = Habits {
            nonblocking: false,
            poll: round % 3 == 0,
            ..NOW
        };
        most = most.max(receiver(&end, habits, round, &ways));
        killer.join().expect("a thread");
    }
    assert!(most > 0, "no record was sent before the first kill");
}

/// Takes the datagrams that are there, the first of which has this number; the number of the next one.
fn take_datagrams(end: &Endpoint, mut number: u64, expected: &mut Vec<u8>, into: &mut [u8]) -> u64 {
    let bufs = Bufs::one(into.as_mut_ptr(), into.len());
    let how = RecvHow {
        look: true,
        ..RecvHow::default()
    };
    let inc = end.link.incoming();
    loop {
        match inc.recv_record(end.who(2), &descriptor(end), &bufs, 0, how) {
            Got::Record(record) => {
                fill(Side::Low, number, expected);
                assert_eq!(into.get(..record.length), Some(&expected[..]), "{number}");
                number += 1;
            }
            Got::No(Took::Busy) => {}
            Got::No(Took::Empty | Took::Pending) => return number,
            Got::No(other) => panic!("{other:?}"),
        }
    }
}

/// The same of datagrams, which have no end: when the kernel has none any more, the rest of the ring follows. Nothing that was
/// sent is missing.
#[test]
fn a_killed_sender_leaves_whole_datagrams() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|p| p.into_inner());
    let rounds = (40.0 * factor()) as u64;
    let mut most = 0;
    for round in 0..rounds {
        let (shared, fds, chan) = joined_as(libc::SOCK_DGRAM, Kind::Datagram);
        let counted = memory(4096);
        let sent = |number: u64| {
            let word = number.to_le_bytes();
            // SAFETY: the bytes are live.
            unsafe { libc::pwrite(counted.as_raw_fd(), word.as_ptr().cast(), 8, 0) };
        };
        // SAFETY: the child calls nothing that another thread's lock could hold up, but for memory, which it has.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let end = Endpoint::new(shared, chan, Side::Low, fds[0].as_raw_fd(), false);
            let mut data = Vec::with_capacity(LONGEST + 100_000);
            let mut number = 0;
            loop {
                fill(Side::Low, number, &mut data);
                if send(&end, &data, NOW).is_ok() {
                    number += 1;
                    sent(number);
                }
                if number % 5 == 0 {
                    let _ = end.link.outgoing().reclaim(end.who(1), &descriptor(&end));
                }
            }
        }
        assert!(pid > 0);
        let end = Endpoint::new(shared, chan, Side::High, fds[1].as_raw_fd(), false);
        let (mut number, mut expected, mut into) = (0, Vec::new(), vec![0_u8; LONGEST + 100_000]);
        let mut take_all = || number = take_datagrams(&end, number, &mut expected, &mut into);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(200 + round * 731 % 20_000) {
            take_all();
        }
        // SAFETY: an own child.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        // SAFETY: as above.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        shared.board.dead[0].store(1, Ordering::Release);
        take_all();
        let taken = number;
        let mut word = [0_u8; 8];
        // SAFETY: as above.
        unsafe { libc::pread(counted.as_raw_fd(), word.as_mut_ptr().cast(), 8, 0) };
        let sent = u64::from_le_bytes(word);
        assert!(taken == sent || taken == sent + 1, "{taken} of {sent}");
        most = most.max(taken);
    }
    assert!(most > 0, "no datagram was sent before the first kill");
}

//! The log of writes as a front end uses it that moves a guest: it copies what is marked while traffic flows, and what
//! it then has is the guest's memory.
//!
//! # Model
//! Three threads. The *device*: the control thread's end, and the only worker or the first of two; between two messages
//! it receives, transmits frames of every kind and turns notifications on and off. The *driver* offers and takes back
//! buffers of every shape, and marks what it writes itself, as QEMU does for its guest. The *front end* asks for the
//! log, takes marks away and copies those pages, again and again, stops the rings and copies what is marked then.
//!
//! A guest that writes to a page hides that the device did not mark it. So the driver rests again and again, and in the
//! end, while the buffers that it left are used up.
#![allow(missing_docs, clippy::arithmetic_side_effects)]

mod vhost_drive;
mod vhost_front;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vhost_drive::{
    Driver, Guest, HEADER, HIGH, HIGH_BYTES, LOW, LOW_BYTES, Layout, Station, WRITE,
};
use vhost_front::*;
use windlass_attach::port::{Lane, TxPort};
use windlass_attach::vhost_user::features::{
    CSUM, EVENT_IDX, GUEST_CSUM, GUEST_TSO4, IN_ORDER, INDIRECT_DESC, LOG_ALL, MRG_RXBUF,
    PROTOCOL_FEATURES, RING_PACKED, VERSION_1,
};
use windlass_attach::vhost_user::message::{Code, queue_state, request};
use windlass_frame::{Gso, Offload, Pick, RxId, Tick, Verdict};
use windlass_shm::{HugePages, Mapping, Tails};
use windlass_sys::eventfd;

const PAGE: u64 = 4096;
/// Bytes of a bitmap with a bit for each page of the guest.
const LOG_BYTES: u64 = ((HIGH + HIGH_BYTES) / PAGE / 8).next_multiple_of(8);
const PAIRS: u32 = 2;
/// Buffers of one queue at most, and how far apart they are.
const SLOTS: u16 = 128;
const STRIDE: u64 = 40 << 10;
/// Where tables of descriptors lie, behind the rings.
const TABLES: u64 = LOW + 0x8_0000;
/// Migrations of each guest.
const MOVES: u32 = 2;

/// A source of numbers that goes on from where it is told.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// Marks of pages in memory that others share.
struct Marks {
    memory: Mapping,
    file: OwnedFd,
}

impl Marks {
    fn new(bytes: u64) -> Marks {
        let made = Mapping::create("vhost-log", bytes as usize, HugePages::No);
        let (memory, file) = made.expect("a log");
        Marks { memory, file }
    }

    fn word(&self, number: u64) -> &AtomicU64 {
        let p = self.memory.find(number * 8, 8).expect("a word").cast();
        // SAFETY: an aligned word of the mapping, which `self` keeps; nobody uses it but by atomics.
        unsafe { AtomicU64::from_ptr(p) }
    }

    /// Marks the pages of bytes that were written.
    fn mark(&self, gpa: u64, len: u64) {
        for page in gpa / PAGE..=(gpa + len - 1) / PAGE {
            self.word(page / 64)
                .fetch_or(1 << (page % 64), Ordering::SeqCst);
        }
    }

    fn take(&self, number: u64) -> u64 {
        match self.word(number).load(Ordering::Relaxed) {
            0 => 0,
            _ => self.word(number).swap(0, Ordering::SeqCst),
        }
    }
}

/// One queue as its driver has it.
struct Queue {
    ring: Box<dyn Driver>,
    number: u32,
    size: u16,
    packed: bool,
    /// Pieces of each chain, and whether they stand in a table.
    pieces: u16,
    tables: bool,
    lengths: &'static [u32],
    slots: u16,
    /// The next slot, and where the next descriptor is.
    next: u16,
    at: u16,
    out: VecDeque<u16>,
}

impl Queue {
    fn new(
        guest: &Arc<Guest>,
        number: u32,
        layout: Layout,
        features: u64,
        dice: &mut Dice,
    ) -> Queue {
        let packed = layout == Layout::Packed;
        let sizes: &[u16] = if packed {
            &[100, 300, 1000]
        } else {
            &[64, 256, 1024]
        };
        let (size, pieces) = (dice.pick(sizes), dice.pick(&[1, 1, 2, 3]));
        let tables = features & INDIRECT_DESC != 0 && dice.one_in(3);
        let places = if tables { 1 } else { pieces };
        Queue {
            ring: layout.ring(guest, number.into(), size, if packed { 0x8000 } else { 0 }),
            number,
            size,
            packed,
            pieces,
            tables,
            lengths: match features & MRG_RXBUF {
                0 => &[1526, 2048, 12_000],
                _ => &[100, 300, 1526, 5000],
            },
            slots: (size / places).min(SLOTS),
            next: 0,
            at: 0,
            out: VecDeque::new(),
        }
    }

    /// The pieces of a buffer: anywhere in its slot, so that they lie across pages at any byte.
    fn pieces(&self, dice: &mut Dice) -> Vec<(u64, u32)> {
        let slot = u64::from(self.number) * u64::from(SLOTS) + u64::from(self.next);
        let mut at = HIGH + slot * STRIDE + dice.below(2 * PAGE);
        let mut left = dice.pick(self.lengths);
        let mut list = Vec::new();
        for k in 1..=self.pieces {
            let last = k == self.pieces;
            let len = if last {
                left
            } else {
                1 + dice.below(u64::from(left) / 2) as u32
            };
            list.push((at, len));
            at += u64::from(len) + dice.below(PAGE);
            left -= len;
        }
        list
    }

    /// Takes back what came, and offers up to `most` buffers, with frames in them where the guest transmits.
    fn turn(&mut self, most: u64, marks: &Marks, dice: &mut Dice) {
        for _ in self.ring.reap() {
            self.out.pop_front().expect("no more than was offered");
        }
        let sends = self.number % 2 == 1;
        let flags = if sends { 0 } else { WRITE };
        let mut written = Vec::new();
        for _ in 0..most.min(u64::from(self.slots) - self.out.len() as u64) {
            let list = self.pieces(dice);
            if sends {
                let mut bytes = vec![0; HEADER];
                bytes.resize(12_000, dice.next() as u8 & 0xfe);
                for (gpa, len) in &list {
                    let rest = bytes.split_off(*len as usize);
                    self.ring.guest().write(*gpa, &bytes);
                    written.push((*gpa, u64::from(*len)));
                    bytes = rest;
                }
            }
            let table = u64::from(self.number) * 0x1_0000 + u64::from(self.next) * 64;
            let table = self.tables.then_some(TABLES + table);
            let places = if table.is_some() { 1 } else { self.pieces };
            let id = self.next * places;
            self.ring.add(id, &list, table, flags);
            written.extend(table.map(|gpa| (gpa, 64)));
            let first = if self.packed { self.at } else { id };
            let setup = self.ring.setup(0);
            for k in 0..places {
                let slot = u64::from((first + k) % self.size);
                written.push((setup.desc + slot * 16, 16));
            }
            if !self.packed {
                written.push((setup.avail + 4 + u64::from(self.at % self.size) * 2, 2));
                written.push((setup.avail + 2, 2));
            }
            self.at = match self.packed {
                true => (self.at + places) % self.size,
                false => self.at.wrapping_add(1),
            };
            self.next = (self.next + 1) % self.slots;
            self.out.push_back(id);
        }
        self.ring.publish();
        for (gpa, len) in written {
            marks.mark(gpa, len);
        }
    }
}

/// What the front end says of one queue.
struct Said {
    number: u32,
    size: u16,
    parts: [u64; 3],
    base: u32,
    kick: OwnedFd,
    call: OwnedFd,
}

impl Said {
    fn new(queue: &Queue) -> Said {
        let setup = queue.ring.setup(0);
        Said {
            number: queue.number,
            size: queue.size,
            parts: [setup.desc, setup.used, setup.avail],
            base: if queue.packed { 0x8000_8000 } else { 0 },
            kick: eventfd::create().expect("an eventfd"),
            call: eventfd::create().expect("an eventfd"),
        }
    }

    fn address(&self, log: bool) -> Vec<u8> {
        let mut bytes = queue_state(self.number, u32::from(log)).to_vec();
        bytes.extend(self.parts.iter().flat_map(|gpa| user(*gpa).to_ne_bytes()));
        bytes.extend(self.parts[1].to_ne_bytes());
        bytes
    }

    fn start(&self, front: &Front) {
        let state = |number| queue_state(self.number, number).to_vec();
        let number = u64::from(self.number).to_ne_bytes().to_vec();
        let say = |code, payload: &[u8], fd: &[BorrowedFd<'_>]| front.say(code, payload, fd);
        say(Code::SET_VRING_NUM, &state(self.size.into()), &[]);
        say(Code::SET_VRING_BASE, &state(self.base), &[]);
        say(Code::SET_VRING_ADDR, &self.address(false), &[]);
        say(Code::SET_VRING_KICK, &number, &[self.kick.as_fd()]);
        say(Code::SET_VRING_CALL, &number, &[self.call.as_fd()]);
        say(Code::SET_VRING_ENABLE, &state(1), &[]);
    }
}

/// What the threads share.
struct Stage {
    guest: Arc<Guest>,
    /// What the driver has written.
    written: Marks,
    drivers: Mutex<Vec<Queue>>,
    /// The driver is to rest.
    rests: AtomicBool,
    ends: AtomicBool,
    /// The transmit half for the second worker.
    shared: Mutex<Option<Arc<dyn TxPort>>>,
    workers: u16,
    /// Frames that went to the guest.
    sent: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    fn drive(&self, mut dice: Dice) {
        while !self.ends.load(Ordering::Relaxed) {
            if !self.rests.load(Ordering::Relaxed) {
                for queue in lock(&self.drivers).iter_mut() {
                    let most = dice.below(1 + u64::from(queue.slots));
                    queue.turn(most, &self.written, &mut dice);
                }
            }
            std::thread::yield_now();
        }
    }

    /// The control thread's end, and the first worker.
    fn device(&self, mut host: Host, mut dice: Dice) {
        host.holds = true;
        let mut station = Station::new();
        while !self.ends.load(Ordering::Relaxed) {
            host.step();
            if !host.downs.is_empty() {
                *lock(&self.shared) = None;
                host.give_back();
                host.downs.clear();
            }
            let Some(rings) = &mut host.rings else {
                continue;
            };
            lock(&self.shared).get_or_insert_with(|| rings.tx.clone());
            for _ in 0..4 {
                let which = dice.below(rings.rx.len() as u64) as usize;
                let rx = rings.rx[which].as_mut();
                match dice.below(8) {
                    0 => {
                        let section = station.worker.section();
                        let _ = rx.arm(&section);
                        if dice.one_in(2) {
                            rx.disarm(&section);
                        }
                    }
                    1..4 => self.relay(&mut station, rx, rings.tx.as_ref(), &mut dice),
                    _ => self.send(&mut station, 0, rings.tx.as_ref(), &mut dice),
                }
            }
        }
    }

    /// The second worker.
    fn second(&self, mut dice: Dice) {
        let mut station = Station::new();
        while !self.ends.load(Ordering::Relaxed) {
            if let Some(tx) = lock(&self.shared).as_ref() {
                self.send(&mut station, 1, tx.as_ref(), &mut dice);
            }
            std::thread::yield_now();
        }
    }

    fn lane(&self, worker: u16) -> Lane {
        Lane {
            worker,
            workers: self.workers,
        }
    }

    /// Hands what the guest sends to the guest.
    fn relay(
        &self,
        station: &mut Station,
        rx: &mut dyn windlass_attach::port::RxPort,
        tx: &dyn TxPort,
        dice: &mut Dice,
    ) {
        let (tagged, ring) = (dice.one_in(4), dice.below(2) as u8);
        let sent = station.visit(rx, |section, heads, tails, _| {
            let good = |i: &usize| heads.verdict[*i] == Verdict::NONE;
            let picks: Vec<Pick> = (0..heads.n)
                .filter(good)
                .map(|i| Pick::frame(i, tagged))
                .collect();
            tx.tx_burst_on(section, self.lane(0), ring, heads, tails, &picks)
        });
        self.sent.fetch_add(sent.frames, Ordering::Relaxed);
    }

    /// Sends a burst of frames of any length, some of them to be cut into segments.
    fn send(&self, station: &mut Station, worker: u16, tx: &dyn TxPort, dice: &mut Dice) {
        let section = station.worker.section();
        let mut tails = Tails::bind(&mut station.store, &section);
        let heads = &mut station.heads;
        heads.clear(RxId(0), Tick(0));
        let count = 1 + dice.below(8) as usize;
        let large = dice.one_in(4);
        for i in 0..count {
            let len = dice.pick(&[60, 61, 200, 1514, if large { 9000 } else { 1000 }]);
            let fits = tails.arena().len() > len;
            let len = if fits { len } else { 60 };
            vhost_drive::put(heads, &mut tails, i, &vec![dice.next() as u8; len]);
            if len == 9000 && dice.one_in(2) {
                let off = Offload::needing_csum(34, 16).with_gso(Gso::Tcp4, 1448, false);
                vhost_drive::put(heads, &mut tails, i, &tcp_frame());
                let meta = &mut heads.meta[i];
                (meta.off, meta.l2, meta.l3, meta.l4, meta.vid) = (off, 14, 20, 20, 7);
            }
        }
        heads.n = count;
        let tagged = dice.one_in(4);
        let picks: Vec<Pick> = (0..count).map(|i| Pick::frame(i, tagged)).collect();
        let (lane, ring) = (self.lane(worker), dice.below(2) as u8);
        let sent = tx.tx_burst_on(&section, lane, ring, heads, &tails, &picks);
        self.sent.fetch_add(sent.frames, Ordering::Relaxed);
    }
}

/// A TCP frame of 3,000 payload bytes over IPv4, its checksum to be completed.
fn tcp_frame() -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    f.extend([
        0x45, 0, 11, 0xe0, 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ]);
    f.extend([
        0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0,
    ]);
    f.extend((0..3000).map(|i| i as u8));
    f
}

/// The front end while it moves the guest.
struct Mover<'a> {
    /// Names the case.
    what: &'a str,
    stage: &'a Stage,
    front: Front,
    features: u64,
    queues: Vec<Said>,
    log: Marks,
    /// What the new place has.
    copy: Vec<u8>,
    /// Pages that were copied because they were marked.
    copied: u64,
    dice: Dice,
}

impl Mover<'_> {
    fn await_answer(&self, code: Code) -> Vec<u8> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some((answered, payload)) = self.front.answer() {
                assert_eq!(answered, code.0);
                return payload;
            }
            assert!(Instant::now() < end, "no answer to {code}");
            std::thread::yield_now();
        }
    }

    fn features(&self, bits: u64) {
        let word = (self.features | bits).to_ne_bytes();
        let message = request(Code::SET_FEATURES, true, &word);
        assert!(self.front.send_bytes(&message, &[]));
        assert_eq!(self.await_answer(Code::SET_FEATURES), [0; 8]);
    }

    /// Brings a log, of this length, instead of the one before; what that one says is copied.
    fn bring_log(&mut self, bytes: u64) {
        let log = Marks::new(bytes);
        let payload = [bytes.to_ne_bytes(), 0u64.to_ne_bytes()].concat();
        self.front
            .say(Code::SET_LOG_BASE, &payload, &[log.file.as_fd()]);
        self.await_answer(Code::SET_LOG_BASE);
        self.collect();
        self.log = log;
    }

    fn copy_page(&mut self, page: u64) {
        let at = Guest::offset(page * PAGE);
        let to = &mut self.copy[at..at + PAGE as usize];
        assert!(self.stage.guest.memory.read(at as u64, to));
    }

    /// Takes the marks away and copies what they stand for.
    fn collect(&mut self) {
        for (first, len) in [(LOW, LOW_BYTES), (HIGH, HIGH_BYTES)] {
            for word in first / PAGE / 64..(first + len).div_ceil(PAGE * 64) {
                let mut left = self.log.take(word) | self.stage.written.take(word);
                while left != 0 {
                    self.copy_page(word * 64 + u64::from(left.trailing_zeros()));
                    self.copied += 1;
                    left &= left - 1;
                }
            }
        }
    }

    /// Copies what is marked for a while, and until so many frames have come to the guest meanwhile.
    fn collect_for(&mut self, time: Duration, frames: u64) {
        let begun = Instant::now();
        let enough = self.stage.sent.load(Ordering::Relaxed) + frames;
        while begun.elapsed() < time || self.stage.sent.load(Ordering::Relaxed) < enough {
            assert!(begun.elapsed() < PATIENCE, "no traffic: {}", self.what);
            self.collect();
            if self.dice.one_in(4) {
                std::thread::sleep(Duration::from_micros(self.dice.below(500)));
            }
        }
    }

    /// Where the copy differs from the memory.
    fn difference(&self) -> Option<String> {
        let mut bytes = vec![0; self.copy.len()];
        assert!(self.stage.guest.memory.read(0, &mut bytes));
        if bytes == self.copy {
            return None;
        }
        let pairs = || bytes.iter().zip(&self.copy);
        let first = pairs().position(|(a, b)| a != b)?;
        let gpa = match first as u64 {
            at if at < LOW_BYTES => at + LOW,
            at => at - LOW_BYTES + HIGH,
        };
        let count = pairs().filter(|(a, b)| a != b).count();
        Some(format!("{count} bytes differ, the first at {gpa:#x}"))
    }

    /// Moves the guest once: log, whole memory, what was marked meanwhile, stop, what is marked then.
    fn move_once(&mut self) {
        let (stage, what) = (self.stage, self.what);
        self.bring_log(LOG_BYTES);
        self.features(LOG_ALL);
        for queue in &self.queues {
            self.front
                .say(Code::SET_VRING_ADDR, &queue.address(true), &[]);
        }
        // What these say is behind them once this is answered.
        self.features(LOG_ALL);
        for (first, len) in [(LOW, LOW_BYTES), (HIGH, HIGH_BYTES)] {
            (first / PAGE..(first + len) / PAGE).for_each(|page| self.copy_page(page));
        }
        let before = self.copied;
        for _ in 0..1 + self.dice.below(6) {
            let time = Duration::from_micros(self.dice.below(8000));
            self.collect_for(time, 1);
            stage.rests.store(true, Ordering::Relaxed);
            let rest = lock(&stage.drivers);
            let time = Duration::from_micros(self.dice.below(2000));
            self.collect_for(time, 0);
            if self.dice.one_in(4) {
                let more = self.dice.below(4) * PAGE;
                self.bring_log(LOG_BYTES + more);
            }
            stage.rests.store(false, Ordering::Relaxed);
            drop(rest);
        }
        stage.rests.store(true, Ordering::Relaxed);
        let rest = lock(&stage.drivers);
        let time = Duration::from_micros(self.dice.below(2000));
        self.collect_for(time, 0);
        for number in 0..self.queues.len() {
            let payload = queue_state(number as u32, 0);
            self.front.say(Code::GET_VRING_BASE, &payload, &[]);
            let answer = self.await_answer(Code::GET_VRING_BASE);
            self.queues[number].base = u32::from_ne_bytes(answer[4..].try_into().expect("four"));
        }
        self.collect();
        assert_eq!(self.difference(), None, "{what}");
        std::thread::sleep(Duration::from_micros(self.dice.below(3000)));
        assert_eq!(
            self.difference(),
            None,
            "after the rings were stopped: {what}"
        );
        assert!(before < self.copied, "nothing was marked: {what}");
        self.features(0);
        self.queues
            .iter()
            .for_each(|queue| queue.start(&self.front));
        stage.rests.store(false, Ordering::Relaxed);
        drop(rest);
    }
}

/// What a guest with rings of this layout accepts.
fn negotiated(layout: Layout, dice: &mut Dice) -> u64 {
    let mut features = VERSION_1 | PROTOCOL_FEATURES;
    for bit in [
        MRG_RXBUF,
        EVENT_IDX,
        INDIRECT_DESC,
        IN_ORDER,
        CSUM,
        GUEST_CSUM,
    ] {
        features |= if dice.one_in(2) { bit } else { 0 };
    }
    if features & GUEST_CSUM != 0 && dice.one_in(2) {
        features |= GUEST_TSO4;
    }
    if layout == Layout::Packed {
        features |= RING_PACKED;
    }
    features
}

/// A guest comes up, works, and is moved some times.
fn moves(path: &Path, layout: Layout, seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let features = negotiated(layout, &mut dice);
    let workers = dice.pick(&[1, 2]);
    let what = format!("{layout:?}, seed {seed}, features {features:#x}, {workers} workers");
    let mut host = Host::new(conf(path, SERVER, PAIRS as u16));
    let front = Front::connect(&mut host, path);
    front.negotiate(&mut host, features);
    let guest = Guest::new();
    let fds = [guest.file.as_fd(), guest.file.as_fd()];
    front.say(Code::SET_MEM_TABLE, &table_payload(&table()), &fds);
    let new = |number| Queue::new(&guest, number, layout, features, &mut dice);
    let drivers: Vec<Queue> = (0..PAIRS * 2).map(new).collect();
    let queues: Vec<Said> = drivers.iter().map(Said::new).collect();
    queues.iter().for_each(|queue| queue.start(&front));
    let stage = Stage {
        guest,
        written: Marks::new(LOG_BYTES),
        drivers: Mutex::new(drivers),
        rests: AtomicBool::new(false),
        ends: AtomicBool::new(false),
        shared: Mutex::new(None),
        workers,
        sent: AtomicU64::new(0),
    };
    let mut others = || Dice(dice.next() | 1);
    let (one, two, three, four) = (others(), others(), others(), others());
    std::thread::scope(|scope| {
        let threads = [
            scope.spawn(|| stage.drive(one)),
            scope.spawn(|| stage.device(host, two)),
        ];
        let second = (workers == 2).then(|| scope.spawn(|| stage.second(three)));
        // Also where this thread fails: the others are not to be waited for.
        let ends = Ends(&stage.ends);
        let mut mover = Mover {
            what: &what,
            stage: &stage,
            front,
            features,
            queues,
            log: Marks::new(LOG_BYTES),
            copy: vec![0; (LOW_BYTES + HIGH_BYTES) as usize],
            copied: 0,
            dice: four,
        };
        for _ in 0..MOVES {
            std::thread::sleep(Duration::from_millis(2));
            mover.move_once();
        }
        drop(ends);
        for thread in threads.into_iter().chain(second) {
            thread.join().expect("a thread");
        }
    });
}

/// Ends the other threads with the one that has it.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Each page that the device writes is marked behind the write, and nothing is written once the rings are stopped:
/// copies of what is marked, taken at any moment of any traffic, add up to the memory. `PROPTEST_CASES` sets how many
/// guests.
#[test]
fn copies_of_what_is_marked_are_the_memory() {
    let _alone = alone();
    let directory = tempfile::tempdir().expect("a directory");
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|n| n.parse().ok());
    let cases: u64 = cases.unwrap_or(12);
    let clock = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_nanos() as u64;
    for case in 0..cases {
        let layout = if case % 2 == 0 {
            Layout::Split
        } else {
            Layout::Packed
        };
        moves(
            &directory.path().join(case.to_string()),
            layout,
            clock.wrapping_add(case),
        );
    }
}

//! What the tests of vhost-user share: a guest's memory with its side of a virtqueue of either layout, and a worker that
//! visits.
#![allow(dead_code, missing_docs)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use windlass_attach::port::{Lane, Limit, More, RxPort, Sent, TxPort};
use windlass_attach::vhost_user::features::VERSION_1;
use windlass_attach::vhost_user::{Base, GuestMap, GuestRegion, QueueSetup, VhostRx, VhostTx};
use windlass_frame::{Heads, Pick, RxId, Tick, Verdict};
use windlass_shm::{HugePages, Mapping, SegStore, Tails};
use windlass_stats::Drop;
use windlass_sync::qsbr::{Domain, Worker};
use windlass_sys::eventfd;

mod packed;
pub use packed::Packedq;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;
pub const HEADER: usize = 12;
/// Where rings lie, at the start of the file.
pub const LOW: u64 = 0x1_0000;
pub const LOW_BYTES: u64 = 1 << 20;
/// Where buffers lie, behind it.
pub const HIGH: u64 = 1 << 32;
pub const HIGH_BYTES: u64 = 24 << 20;
pub const ONE: Lane = Lane {
    worker: 0,
    workers: 1,
};

/// A guest's memory: two regions of one file, as QEMU has them below and above 4 GiB.
pub struct Guest {
    pub memory: Mapping,
    pub file: OwnedFd,
    pub map: Arc<GuestMap>,
}

impl Guest {
    pub fn new() -> Arc<Guest> {
        let bytes = (LOW_BYTES + HIGH_BYTES) as usize;
        let (memory, file) = Mapping::create("vhost-guest", bytes, HugePages::No).expect("memfd");
        Guest::over(memory, file)
    }

    pub fn over(memory: Mapping, file: OwnedFd) -> Arc<Guest> {
        let region = |gpa, len, offset| GuestRegion {
            gpa,
            len,
            offset,
            fd: file.as_fd(),
        };
        let regions = [
            region(HIGH, HIGH_BYTES, LOW_BYTES),
            region(LOW, LOW_BYTES, 0),
        ];
        let alarm = eventfd::create().expect("eventfd");
        let map = Arc::new(GuestMap::new(&regions, alarm).expect("map"));
        Arc::new(Guest { memory, file, map })
    }

    pub fn offset(gpa: u64) -> usize {
        match gpa {
            HIGH.. => (gpa - HIGH + LOW_BYTES) as usize,
            _ => (gpa - LOW) as usize,
        }
    }

    pub fn write(&self, gpa: u64, bytes: &[u8]) {
        assert!(self.memory.write(Guest::offset(gpa) as u64, bytes));
    }

    pub fn read(&self, gpa: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(self.memory.read(Guest::offset(gpa) as u64, &mut bytes));
        bytes
    }
}

/// The driver's side of a ring, of either layout.
pub trait Driver: Send {
    fn guest(&self) -> &Arc<Guest>;

    fn setup(&self, features: u64) -> QueueSetup;

    /// Stages a chain of pieces that the guest calls `id`, by a table at `table` if there is one. Split: its
    /// descriptors are `id` and those behind it.
    fn add(&mut self, id: u16, list: &[(u64, u32)], table: Option<u64>, flags: u16);

    /// Makes what was staged available.
    fn publish(&mut self);

    /// Chains that came back: id and bytes written.
    fn reap(&mut self) -> Vec<(u16, u32)>;

    /// Where the ring stands, by what came back.
    fn base(&self) -> Base;

    fn rx(&self, features: u64) -> VhostRx {
        VhostRx::new(self.setup(features)).expect("rx")
    }

    fn tx(&self, features: u64) -> VhostTx {
        VhostTx::new(self.setup(features), []).expect("tx")
    }

    /// One piece, made available at once.
    fn offer_one(&mut self, id: u16, addr: u64, len: u32, flags: u16) {
        self.add(id, &[(addr, len)], None, flags);
        self.publish();
    }
}

/// Which kind of ring a test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    Split,
    Packed,
}

pub const LAYOUTS: [Layout; 2] = [Layout::Split, Layout::Packed];

impl Layout {
    /// Ring `number` of the guest, whose places stand at `base`.
    pub fn ring(self, guest: &Arc<Guest>, number: u64, size: u16, base: u16) -> Box<dyn Driver> {
        match self {
            Layout::Split => Box::new(Virtq::new(guest, number, size, base)),
            Layout::Packed => Box::new(Packedq::new(guest, number, size, base)),
        }
    }
}

/// The driver's side of one split ring.
pub struct Virtq {
    pub guest: Arc<Guest>,
    pub desc: u64,
    pub avail: u64,
    pub used: u64,
    pub size: u16,
    pub index: u16,
    pub seen: u16,
}

impl Virtq {
    /// Ring `number` of the guest, with at most 1,024 descriptors, whose indexes stand at `base`.
    pub fn new(guest: &Arc<Guest>, number: u64, size: u16, base: u16) -> Virtq {
        let at = LOW + number * 0x1_0000;
        let queue = Virtq {
            guest: guest.clone(),
            desc: at,
            avail: at + 0x5000,
            used: at + 0x6000,
            size,
            index: base,
            seen: base,
        };
        queue.set16(queue.avail + 2, base);
        queue.set16(queue.used + 2, base);
        queue
    }

    pub fn set16(&self, gpa: u64, value: u16) {
        let at = Guest::offset(gpa);
        self.guest.memory.store_u16(at, value, Ordering::Release);
    }

    pub fn get16(&self, gpa: u64) -> u16 {
        let at = Guest::offset(gpa);
        self.guest.memory.load_u16(at, Ordering::Acquire)
    }

    pub fn desc_bytes(addr: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        bytes
    }

    pub fn set(&self, id: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let bytes = Self::desc_bytes(addr, len, flags, next);
        self.guest.write(self.desc + u64::from(id) * 16, &bytes);
    }

    /// A table of descriptors that follow each other, written at `gpa`; `id` names it.
    pub fn set_table(&self, id: u16, gpa: u64, pieces: &[(u64, u32)], flags: u16) {
        for (k, (addr, len)) in pieces.iter().enumerate() {
            let last = k + 1 == pieces.len();
            let goes_on = if last { 0 } else { NEXT };
            let bytes = Self::desc_bytes(*addr, *len, flags | goes_on, k as u16 + 1);
            self.guest.write(gpa + k as u64 * 16, &bytes);
        }
        self.set(id, gpa, pieces.len() as u32 * 16, INDIRECT, 0);
    }

    /// Descriptors `first..` that follow each other.
    pub fn set_chain(&self, first: u16, pieces: &[(u64, u32)], flags: u16) {
        for (k, (addr, len)) in pieces.iter().enumerate() {
            let last = k + 1 == pieces.len();
            let goes_on = if last { 0 } else { NEXT };
            let id = (first + k as u16) % self.size;
            self.set(id, *addr, *len, flags | goes_on, (id + 1) % self.size);
        }
    }

    /// Puts a head into the available ring without publishing it.
    pub fn stage(&mut self, head: u16) {
        let at = u64::from(self.index % self.size);
        self.set16(self.avail + 4 + at * 2, head);
        self.index = self.index.wrapping_add(1);
    }

    pub fn offer(&mut self, head: u16) {
        self.stage(head);
        self.publish();
    }

    pub fn used_event(&self) -> u64 {
        self.avail + 4 + u64::from(self.size) * 2
    }

    pub fn avail_event(&self) -> u64 {
        self.used + 4 + u64::from(self.size) * 8
    }
}

impl Driver for Virtq {
    fn guest(&self) -> &Arc<Guest> {
        &self.guest
    }

    fn setup(&self, features: u64) -> QueueSetup {
        QueueSetup {
            map: self.guest.map.clone(),
            desc: self.desc,
            avail: self.avail,
            used: self.used,
            size: self.size,
            base: self.base(),
            features: features | VERSION_1,
            kick: None,
            call: None,
            log: None,
        }
    }

    fn add(&mut self, id: u16, list: &[(u64, u32)], table: Option<u64>, flags: u16) {
        match table {
            Some(gpa) => self.set_table(id, gpa, list, flags),
            None => self.set_chain(id, list, flags),
        }
        self.stage(id);
    }

    fn publish(&mut self) {
        self.set16(self.avail + 2, self.index);
        fence(Ordering::SeqCst);
    }

    fn reap(&mut self) -> Vec<(u16, u32)> {
        let mut got = Vec::new();
        let end = self.get16(self.used + 2);
        while self.seen != end {
            let at = self.used + 4 + u64::from(self.seen % self.size) * 8;
            let memory = &self.guest.memory;
            let at = Guest::offset(at);
            let id = memory.load_u32(at, Ordering::Relaxed);
            got.push((id as u16, memory.load_u32(at + 4, Ordering::Relaxed)));
            self.seen = self.seen.wrapping_add(1);
        }
        got
    }

    fn base(&self) -> Base {
        Base::split(self.seen)
    }
}

/// One worker with its burst.
pub struct Station {
    pub worker: Worker,
    pub heads: Box<Heads>,
    pub store: SegStore,
}

impl Station {
    pub fn new() -> Station {
        Station::of(&Domain::new(1))
    }

    pub fn of(domain: &Domain) -> Station {
        Station {
            worker: domain.register(),
            heads: Heads::boxed(),
            store: SegStore::default(),
        }
    }

    /// One visit: a burst, what `then` does with it, the release.
    pub fn visit<R>(
        &mut self,
        rx: &mut dyn RxPort,
        then: impl FnOnce(&windlass_shm::Section<'_>, &mut Heads, &mut Tails<'_>, More) -> R,
    ) -> R {
        let section = self.worker.section();
        let mut tails = Tails::bind(&mut self.store, &section);
        self.heads.clear(RxId(0), Tick(0));
        let (loan, more) = rx.rx_burst(&section, &mut self.heads, &mut tails, Limit::FULL);
        let result = then(&section, &mut self.heads, &mut tails, more);
        rx.release(&section, loan);
        result
    }

    /// Receives what is there: the bytes of each frame, or why it was dropped.
    pub fn receive(&mut self, rx: &mut dyn RxPort) -> Vec<Result<Vec<u8>, Drop>> {
        self.visit(rx, |_, heads, tails, _| {
            (0..heads.n).map(|i| frame(heads, tails, i)).collect()
        })
    }

    /// Receives a burst and transmits what is not dropped.
    pub fn relay(&mut self, rx: &mut dyn RxPort, tx: &dyn TxPort, tagged: bool) -> Sent {
        self.visit(rx, |section, heads, tails, _| {
            let good = |i: &usize| heads.verdict[*i] == Verdict::NONE;
            let picks: Vec<Pick> = (0..heads.n)
                .filter(good)
                .map(|i| Pick::frame(i, tagged))
                .collect();
            tx.tx_burst(section, ONE, heads, tails, &picks)
        })
    }

    /// Transmits one frame of our own.
    pub fn send(&mut self, tx: &dyn TxPort, lane: Lane, frames: &[Vec<u8>]) -> Sent {
        let section = self.worker.section();
        let mut tails = Tails::bind(&mut self.store, &section);
        self.heads.clear(RxId(0), Tick(0));
        for (i, bytes) in frames.iter().enumerate() {
            put(&mut self.heads, &mut tails, i, bytes);
        }
        self.heads.n = frames.len();
        let picks: Vec<Pick> = (0..frames.len()).map(|i| Pick::frame(i, false)).collect();
        tx.tx_burst(&section, lane, &self.heads, &tails, &picks)
    }
}

/// Makes frame `i` of private bytes.
pub fn put<'q>(heads: &mut Heads, tails: &mut Tails<'q>, i: usize, bytes: &[u8]) {
    use windlass_frame::{Claim, HEADROOM, SNAP};
    let have = bytes.len().min(SNAP);
    heads.snap[i].0[HEADROOM..HEADROOM + have].copy_from_slice(&bytes[..have]);
    heads.admit(i, bytes.len() as u32, Claim::NONE);
    let rest = &bytes[have..];
    if !rest.is_empty() {
        tails.arena()[..rest.len()].copy_from_slice(rest);
        assert!(tails.take_arena(i, rest.len()));
    }
}

/// The bytes of frame `i`, or why it was dropped.
pub fn frame(heads: &Heads, tails: &Tails<'_>, i: usize) -> Result<Vec<u8>, Drop> {
    if let Some(reason) = heads.verdict[i].as_drop() {
        assert_eq!(heads.meta[i].len, 0);
        assert!(!tails.has(i));
        return Err(reason);
    }
    let mut bytes = heads.private(i).to_vec();
    for piece in tails.of(i) {
        let at = bytes.len();
        bytes.resize(at + piece.len(), 0);
        piece.read(&mut bytes[at..]);
    }
    assert_eq!(bytes.len(), heads.meta[i].len as usize);
    Ok(bytes)
}

/// A header and a frame of `len` bytes, as a guest writes them.
pub fn with_header(len: usize, seed: u8) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes.extend((0..len).map(|i| (i as u8).wrapping_mul(7).wrapping_add(seed)));
    bytes[HEADER] &= 0xfe;
    bytes
}

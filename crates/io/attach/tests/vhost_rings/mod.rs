//! Arbitrary bytes as what a guest does with a pair of rings, and what must hold whatever it does. Shared by the fuzz
//! targets `vhost_split` and `vhost_packed` and by the test that replays their corpora.
//!
//! # Input
//! Byte 0: features (EVENT_IDX, indirect, mergeable, IN_ORDER, checksum offload, a log). Byte 1: ring size. Bytes 2 and
//! 3: where the rings stand. Then steps of 16 bytes: what (low four bits) and which ring, slot or offset, and
//! three operands.
#![allow(dead_code, missing_docs)]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use windlass_attach::port::{Lane, Limit, More, RxPort, Sent, TxPort};
use windlass_attach::vhost_user::features::*;
use windlass_attach::vhost_user::{
    Base, DirtyLog, GuestMap, GuestRegion, QueueSetup, VhostRx, VhostTx,
};
use windlass_frame::{BURST, FRAME_MAX, HEADROOM, Heads, Pick, RxId, SNAP, Tick, Verdict};
use windlass_shm::{HugePages, Mapping, SegStore, Tails};
use windlass_sync::qsbr::Domain;
use windlass_sys::eventfd;

/// Guest addresses: rings and tables below, buffers above, a page of the file between and around them.
const LOW: u64 = 0x1_0000;
const LOW_BYTES: u64 = 64 << 10;
const HIGH: u64 = 1 << 32;
const HIGH_BYTES: u64 = 256 << 10;
const PAGE: u64 = 4096;
const LOW_AT: u64 = PAGE;
const HIGH_AT: u64 = LOW_AT + LOW_BYTES + PAGE;
const FILE_BYTES: u64 = HIGH_AT + HIGH_BYTES + PAGE;
const GUARD: u8 = 0xa7;
/// Steps that one input may have.
const STEPS_MAX: usize = 96;
const STEP: usize = 16;
const TABLE: u64 = LOW + 0xc000;
const ONE: Lane = Lane {
    worker: 0,
    workers: 1,
};

/// What a guest does next.
struct Step {
    what: u8,
    /// 0: the guest transmits on it; 1: it receives.
    ring: u64,
    at: u16,
    len: u32,
    addr: u64,
}

impl Step {
    fn read(bytes: &[u8; STEP]) -> Step {
        let [a, b, c, d, e, f, g, h, rest @ ..] = *bytes;
        Step {
            what: a & 15,
            ring: u64::from(a >> 4 & 1),
            at: u16::from_le_bytes([c, d]),
            // Most lengths are to be small ones.
            len: u32::from_le_bytes([e, f, g, h]) >> (b & 31),
            addr: u64::from_le_bytes(rest),
        }
    }

    /// An address near something: the top byte chooses what.
    fn place(&self) -> u64 {
        let low = self.addr & 0xffff_ffff;
        match (self.addr >> 56) as u8 % 8 {
            0..=2 => HIGH + low % HIGH_BYTES,
            3 => LOW + low % LOW_BYTES,
            4 => TABLE + low % 1024 * 16,
            5 => (HIGH + HIGH_BYTES).wrapping_sub(low % 64),
            6 => (LOW + LOW_BYTES).wrapping_sub(low % 64),
            _ => self.addr,
        }
    }
}

struct Guest {
    memory: Mapping,
    map: Arc<GuestMap>,
    log: Arc<DirtyLog>,
}

impl Guest {
    fn new() -> Guest {
        let made = Mapping::create("vhost-rings", FILE_BYTES as usize, HugePages::No);
        let (memory, file) = made.expect("memfd");
        for at in [0, LOW_AT + LOW_BYTES, HIGH_AT + HIGH_BYTES] {
            assert!(memory.write(at, &[GUARD; PAGE as usize]));
        }
        let region = |gpa, len, offset| GuestRegion {
            gpa,
            len,
            offset,
            fd: file.as_fd(),
        };
        let regions = [
            region(LOW, LOW_BYTES, LOW_AT),
            region(HIGH, HIGH_BYTES, HIGH_AT),
        ];
        let map = GuestMap::new(&regions, eventfd::create().expect("eventfd")).expect("map");
        // Short on purpose: pages behind its end are passed over.
        let log = DirtyLog::new(file.as_fd(), 0, 8).expect("log");
        Guest {
            memory,
            map: Arc::new(map),
            log: Arc::new(log),
        }
    }

    /// Writes what lies in the guest's memory, and nothing else.
    fn write(&self, gpa: u64, bytes: &[u8]) {
        let n = bytes.len() as u64;
        let at = match gpa {
            LOW.. if gpa - LOW < LOW_BYTES && n <= LOW_BYTES - (gpa - LOW) => gpa - LOW + LOW_AT,
            HIGH.. if gpa - HIGH < HIGH_BYTES && n <= HIGH_BYTES - (gpa - HIGH) => {
                gpa - HIGH + HIGH_AT
            }
            _ => return,
        };
        assert!(self.memory.write(at, bytes));
    }

    fn guards_stand(&self) {
        for at in [8, LOW_AT + LOW_BYTES, HIGH_AT + HIGH_BYTES] {
            let mut page = [0; PAGE as usize];
            let len = PAGE as usize - (at % PAGE) as usize;
            assert!(self.memory.read(at, &mut page[..len]));
            assert!(
                page[..len].iter().all(|b| *b == GUARD),
                "outside of the guest's memory"
            );
        }
    }
}

/// The two rings with what is needed to drive them.
struct Run {
    guest: Guest,
    packed: bool,
    size: u16,
    mergeable: bool,
    rx: VhostRx,
    tx: VhostTx,
    /// Split: what the guest says its indexes are.
    avail: [u16; 2],
    worker: windlass_sync::qsbr::Worker,
    heads: Box<Heads>,
    store: SegStore,
    /// Frames that came in, and frames that went out.
    seen: (u64, u64),
}

fn part(ring: u64, offset: u64) -> u64 {
    LOW + ring * 0x4000 + offset
}

impl Run {
    fn new(packed: bool, head: [u8; 4]) -> Run {
        let guest = Guest::new();
        let bits = [
            EVENT_IDX,
            INDIRECT_DESC,
            MRG_RXBUF,
            IN_ORDER,
            CSUM | HOST_TSO4,
        ];
        let mut features = VERSION_1 | if packed { RING_PACKED } else { 0 };
        for (k, bit) in bits.into_iter().enumerate() {
            features |= if head[0] & 1 << k != 0 { bit } else { 0 };
        }
        let size = match packed {
            true => u16::from(head[1]) + 1,
            false => 1 << (head[1] % 9),
        };
        let place = u16::from_le_bytes([head[2], head[3]]);
        let base = match packed {
            true => Base::packed(place % size, head[3] & 0x80 != 0),
            false => Base::split(place),
        };
        let setup = |ring| QueueSetup {
            map: guest.map.clone(),
            desc: part(ring, 0),
            avail: part(ring, 0x2000),
            used: part(ring, 0x3000),
            size,
            base,
            features,
            kick: None,
            call: None,
            log: (head[0] & 32 != 0).then(|| guest.log.clone()),
        };
        Run {
            packed,
            size,
            mergeable: features & MRG_RXBUF != 0,
            rx: VhostRx::new(setup(0)).expect("rx"),
            tx: VhostTx::new(setup(1), []).expect("tx"),
            avail: [place; 2],
            worker: Domain::new(1).register(),
            heads: Heads::boxed(),
            store: SegStore::default(),
            seen: (0, 0),
            guest,
        }
    }

    /// Writes a descriptor, in the ring or in a table.
    fn describe(&self, step: &Step, gpa: u64, flags: u16, tag: u16) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&step.place().to_le_bytes());
        bytes[8..12].copy_from_slice(&step.len.to_le_bytes());
        let (first, second) = if self.packed {
            (tag, flags)
        } else {
            (flags, tag)
        };
        bytes[12..14].copy_from_slice(&first.to_le_bytes());
        bytes[14..].copy_from_slice(&second.to_le_bytes());
        self.guest.write(gpa, &bytes);
    }

    fn step(&mut self, step: &Step) -> bool {
        let slot = u64::from(step.at % self.size);
        // Flags and tag come out of the operands' spare bits.
        let flags = (step.addr >> 32) as u16;
        let tag = step.at >> 8 ^ (step.addr >> 48) as u16 & 0xff;
        match step.what {
            0..=4 => self.describe(step, part(step.ring, slot * 16), flags, tag),
            5 => self.describe(step, TABLE + u64::from(step.at % 512) * 16, flags, tag),
            6 => {
                let bytes = step.addr.to_le_bytes();
                let at = u64::from(step.at % 0x4000);
                let n = 1 + step.len as usize % 8;
                self.guest.write(part(step.ring, at), &bytes[..n]);
            }
            7 | 8 => self.publish(step),
            9 => {
                let section = self.worker.section();
                let _ = self.rx.arm(&section);
                if step.at & 1 != 0 {
                    self.rx.disarm(&section);
                }
            }
            10 | 11 => return self.send(step),
            _ => return self.visit(step),
        }
        true
    }

    /// Split: makes some heads available. Packed: flips the flags of some descriptors to available.
    fn publish(&mut self, step: &Step) {
        let which = step.ring as usize;
        if self.packed {
            for k in 0..(step.len % 64) as u16 {
                let slot = u64::from(step.at.wrapping_add(k) % self.size);
                let at = part(step.ring, slot * 16 + 14);
                let lap = if step.addr & 1 != 0 {
                    1u16 << 7
                } else {
                    1 << 15
                };
                let kind = (step.addr >> 1) as u16 & 0x7;
                self.guest.write(at, &(lap | kind).to_le_bytes());
            }
            return;
        }
        for k in 0..(step.len % 64) as u16 {
            let head = (step.addr >> (k % 8 * 8)) as u8;
            let entry = u64::from(self.avail[which] % self.size);
            let head = u16::from(head) % self.size.saturating_mul(2).max(1);
            self.guest
                .write(part(step.ring, 0x2004 + entry * 2), &head.to_le_bytes());
            self.avail[which] = self.avail[which].wrapping_add(1);
        }
        let jump = if step.what == 8 { step.at } else { 0 };
        let index = self.avail[which].wrapping_add(jump);
        self.guest
            .write(part(step.ring, 0x2002), &index.to_le_bytes());
    }

    /// What holds of every transmission.
    fn check(&self, sent: &Sent, picks: usize) {
        let dropped: u32 = sent.dropped().iter().map(|d| d.1).sum();
        assert_eq!(sent.frames + u64::from(dropped), sent.taken as u64);
        assert!(sent.taken <= picks && sent.bytes <= sent.frames * FRAME_MAX as u64);
        assert!(
            !self.mergeable
                || sent.bytes <= HIGH_BYTES + LOW_BYTES + sent.frames * FRAME_MAX as u64
        );
    }

    /// Sends a burst of our own; false once the queue ended.
    fn send(&mut self, step: &Step) -> bool {
        let section = self.worker.section();
        let mut tails = Tails::bind(&mut self.store, &section);
        self.heads.clear(RxId(0), Tick(0));
        let count = 1 + usize::from(step.at) % BURST;
        for i in 0..count {
            let len = (14 + (step.len as usize).wrapping_mul(i + 1) % 2000).min(SNAP);
            self.heads.snap[i].0[HEADROOM..HEADROOM + len].fill(2);
            self.heads.admit(i, len as u32, windlass_frame::Claim::NONE);
            let rest = (step.len as usize).wrapping_mul(i) % 4000;
            if rest > 0 && len == SNAP && tails.arena().len() > rest {
                self.heads.meta[i].len += rest as u32;
                assert!(tails.take_arena(i, rest));
            }
        }
        self.heads.n = count;
        let picks: Vec<Pick> = (0..count).map(|i| Pick::frame(i, i % 3 == 0)).collect();
        let sent = self.tx.tx_burst(&section, ONE, &self.heads, &tails, &picks);
        self.check(&sent, count);
        self.seen.1 += sent.frames;
        !self.guest.map.is_dead()
    }

    /// Receives a burst and sends it on; false once the queue ended.
    fn visit(&mut self, step: &Step) -> bool {
        let section = self.worker.section();
        let mut tails = Tails::bind(&mut self.store, &section);
        self.heads.clear(RxId(0), Tick(0));
        let limit = Limit {
            frames: 1 + usize::from(step.at) % BURST,
            bytes: Limit::FULL.bytes,
        };
        let heads = &mut self.heads;
        let (loan, more) = self.rx.rx_burst(&section, heads, &mut tails, limit);
        assert!(heads.n <= limit.frames && heads.n <= usize::from(self.size));
        assert!(more != More::Dead || heads.n == 0);
        let mut picks = Vec::new();
        let mut bytes = [0u8; 4096];
        for i in 0..heads.n {
            let (len, private) = (heads.meta[i].len as usize, heads.private(i).len());
            if heads.verdict[i] != Verdict::NONE {
                assert!(len == 0 && !tails.has(i) && heads.verdict[i].as_drop().is_some());
                continue;
            }
            assert!((14..=FRAME_MAX).contains(&len) && private == len.min(SNAP));
            let mut behind = 0;
            for piece in tails.of(i) {
                // Touches the memory, for the sanitizer.
                let _ = piece.read(&mut bytes);
                behind += piece.len();
            }
            assert_eq!(private + behind, len);
            picks.push(Pick::frame(i, step.len & 1 != 0));
        }
        let sent = self.tx.tx_burst(&section, ONE, heads, &tails, &picks);
        self.rx.release(&section, loan);
        self.check(&sent, picks.len());
        self.seen.0 += picks.len() as u64;
        self.seen.1 += sent.frames;
        !self.guest.map.is_dead()
    }
}

fn check(packed: bool, data: &[u8]) -> (u64, u64) {
    let Some((head, steps)) = data.split_first_chunk::<4>() else {
        return (0, 0);
    };
    let mut run = Run::new(packed, *head);
    let (steps, _) = steps.as_chunks::<STEP>();
    for bytes in steps.iter().take(STEPS_MAX) {
        if !run.step(&Step::read(bytes)) {
            break;
        }
    }
    run.guest.guards_stand();
    let at = run.guest.memory.load_u64(0, Ordering::Relaxed);
    // The bitmap shares a page with a guard: bits are only ever set.
    assert_eq!(at & 0xa7a7_a7a7_a7a7_a7a7, 0xa7a7_a7a7_a7a7_a7a7);
    run.seen
}

/// Split rings keep what must hold. Frames that came in, and frames that went out.
pub fn check_split(data: &[u8]) -> (u64, u64) {
    check(false, data)
}

/// Packed rings keep what must hold. Frames that came in, and frames that went out.
pub fn check_packed(data: &[u8]) -> (u64, u64) {
    check(true, data)
}

//! What receiving and transmitting on virtqueues costs: busy cycles of the time-stamp counter for each frame.
//!
//! One worker on CPU 0 takes bursts from the transmit queue of guest A and sends them to the receive queue of guest
//! B, with nothing in between. A thread on CPU 1 is the driver of both: it writes the first bytes of each frame and
//! its descriptor in A, counts and offers anew what came in B, and polls. As DPDK's virtio-user it rewrites
//! descriptors, but entries of the available ring only where they differ, and puts the header right before the
//! frame. Polls of the worker that found nothing do not count.
//!
//! Usage: `vhost_cost [SECONDS [WORD..]]` for each size; words: `packed` for packed rings, `order` for IN_ORDER,
//! `csum` with checksum offload both ways, a number for this size alone. Prints cycles a frame for the whole, for receive and for transmit, of the
//! best and the median round of 50 ms.

use std::hint::black_box;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use windlass_attach::port::{Lane, Limit, RxPort, TxPort};
use windlass_attach::vhost_user::features::{
    CSUM, GUEST_CSUM, IN_ORDER, MRG_RXBUF, RING_PACKED, VERSION_1,
};
use windlass_attach::vhost_user::packed::{DESC_AVAIL, DESC_USED, EVENT_DISABLE};
use windlass_attach::vhost_user::ring::{DESC_WRITE, HEADER_BYTES};
use windlass_attach::vhost_user::split::{AVAIL_NO_INTERRUPT, USED_NO_NOTIFY};
use windlass_attach::vhost_user::{Base, GuestMap, GuestRegion, QueueSetup, VhostRx, VhostTx};
use windlass_frame::{Heads, Pick, RxId, Tick};
use windlass_shm::{HugePages, Mapping, SegStore, Tails};
use windlass_sync::qsbr::Domain;
use windlass_sync::tsc;
use windlass_sys::{affinity, eventfd};

const SIZE: u16 = 1024;
const GPA: u64 = 0x4000_0000;
const AVAIL: usize = 0x5000;
const USED: usize = 0x6000;
const BUFFERS: usize = 0x10000;
/// As DPDK lays out its buffers: header, headroom and 2,048 bytes, at an odd number of lines.
const STRIDE: usize = 2368;
const FIRST: usize = 256;
const BUFFER_BYTES: u32 = 2048;
const BATCH: u16 = 32;
const ROUND: Duration = Duration::from_millis(50);
const LANE: Lane = Lane {
    worker: 0,
    workers: 1,
};

/// One guest with one ring.
struct Guest {
    memory: Mapping,
    setup: Option<QueueSetup>,
    packed: bool,
    in_order: bool,
    /// Chains that were made available in all, and those that came back.
    index: u32,
    seen: u32,
    /// Packed: heads' flags of the batch at hand are written last.
    first: Option<(usize, u64)>,
}

fn buffer(id: u16) -> usize {
    BUFFERS + usize::from(id) * STRIDE + FIRST - HEADER_BYTES as usize
}

impl Guest {
    fn new(features: u64) -> Guest {
        let bytes = BUFFERS + usize::from(SIZE) * STRIDE;
        let (memory, file) = Mapping::create("vhost-cost", bytes, HugePages::Try).expect("memory");
        let region = GuestRegion {
            gpa: GPA,
            len: bytes as u64,
            offset: 0,
            fd: file.as_fd(),
        };
        let alarm = eventfd::create().expect("eventfd");
        let map = GuestMap::new(&[region], alarm).expect("map");
        for id in 0..SIZE {
            memory.write(buffer(id) as u64, &[0; HEADER_BYTES as usize]);
            memory.write(buffer(id) as u64 + 12, &[0x5a; 2000]);
        }
        let packed = features & RING_PACKED != 0;
        if packed {
            memory.store_u16(AVAIL + 2, EVENT_DISABLE, Ordering::Relaxed);
        } else {
            memory.store_u16(AVAIL, AVAIL_NO_INTERRUPT, Ordering::Relaxed);
        }
        let setup = QueueSetup {
            map: Arc::new(map),
            desc: GPA,
            avail: GPA + AVAIL as u64,
            used: GPA + USED as u64,
            size: SIZE,
            base: if packed {
                Base::packed(0, true)
            } else {
                Base::split(0)
            },
            features: features | VERSION_1,
            kick: None,
            call: None,
            log: None,
        };
        Guest {
            memory,
            setup: Some(setup),
            packed,
            in_order: features & IN_ORDER != 0,
            index: 0,
            seen: 0,
            first: None,
        }
    }

    /// Number of the descriptor of a chain, and whether its lap is one with wrap counter 1.
    fn slot(chain: u32) -> (u16, bool) {
        let lap = chain / u32::from(SIZE);
        ((chain % u32::from(SIZE)) as u16, lap.is_multiple_of(2))
    }

    fn offer(&mut self, len: u32, flags: u16) {
        let (m, (id, wrap)) = (&self.memory, Guest::slot(self.index));
        let at = usize::from(id) * 16;
        m.store_u64(at, GPA + buffer(id) as u64, Ordering::Relaxed);
        if self.packed {
            let flags = flags | if wrap { DESC_AVAIL } else { DESC_USED };
            let high = u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48;
            match self.first {
                None => self.first = Some((at + 8, high)),
                Some(_) => m.store_u64(at + 8, high, Ordering::Relaxed),
            }
        } else {
            let high = u64::from(len) | u64::from(flags) << 32;
            m.store_u64(at + 8, high, Ordering::Relaxed);
            let entry = AVAIL + 4 + usize::from(id) * 2;
            if m.load_u16(entry, Ordering::Relaxed) != id {
                m.store_u16(entry, id, Ordering::Relaxed);
            }
        }
        self.index = self.index.wrapping_add(1);
    }

    fn publish(&mut self) {
        if let Some((at, high)) = self.first.take() {
            self.memory.store_u64(at, high, Ordering::Release);
        }
        if self.packed {
            return;
        }
        let index = self.index as u16;
        self.memory.store_u16(AVAIL + 2, index, Ordering::Release);
        let flags = self.memory.load_u16(USED, Ordering::Relaxed);
        assert!(flags & USED_NO_NOTIFY != 0, "nobody sleeps here");
    }

    /// Looks at what came back, up to a batch; how many chains.
    fn reap(&mut self) -> u32 {
        let before = self.seen;
        if !self.packed {
            let end = self.memory.load_u16(USED + 2, Ordering::Acquire);
            let came = end.wrapping_sub(self.seen as u16);
            for _ in 0..came {
                let at = USED + 4 + usize::from(Guest::slot(self.seen).0) * 8;
                black_box(self.memory.load_u32(at, Ordering::Relaxed));
                black_box(self.memory.load_u32(at + 4, Ordering::Relaxed));
                self.seen = self.seen.wrapping_add(1);
            }
            return u32::from(came);
        }
        while self.seen != self.index && self.seen.wrapping_sub(before) < u32::from(BATCH) {
            let (slot, wrap) = Guest::slot(self.seen);
            let high = self
                .memory
                .load_u64(usize::from(slot) * 16 + 8, Ordering::Acquire);
            let flags = (high >> 48) as u16 & (DESC_AVAIL | DESC_USED);
            if flags != if wrap { DESC_AVAIL | DESC_USED } else { 0 } {
                break;
            }
            let id = (high >> 32) as u16;
            let batch = id.wrapping_sub(slot) % SIZE + 1;
            assert!(self.in_order || batch == 1, "one for each");
            self.seen = self.seen.wrapping_add(u32::from(batch));
        }
        self.seen.wrapping_sub(before)
    }
}

/// Fills A and empties B until told to stop.
fn run_driver(a: &mut Guest, b: &mut Guest, len: u32, stop: &AtomicBool, received: &AtomicU64) {
    for _ in 0..SIZE {
        b.offer(BUFFER_BYTES, DESC_WRITE);
    }
    b.publish();
    let mut count = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let room = |a: &Guest| u32::from(SIZE) - a.index.wrapping_sub(a.seen);
        if room(a) < u32::from(BATCH) {
            a.reap();
        }
        if room(a) >= u32::from(BATCH) {
            for _ in 0..BATCH {
                let frame = buffer(Guest::slot(a.index).0) + HEADER_BYTES as usize;
                a.memory
                    .store_u64(frame, 0x0000_0200_0000_0002, Ordering::Relaxed);
                let number = u64::from(a.index);
                a.memory.store_u64(frame + 8, number, Ordering::Relaxed);
                a.offer(HEADER_BYTES + len, 0);
            }
            a.publish();
        }
        let came = b.reap();
        for _ in 0..came {
            b.offer(BUFFER_BYTES, DESC_WRITE);
        }
        if came > 0 {
            b.publish();
        }
        count += u64::from(came);
        received.store(count, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Cost {
    frames: u64,
    lost: u64,
    bursts: u64,
    rx: u64,
    tx: u64,
    whole: u64,
}

fn run_worker(rx: &mut dyn RxPort, tx: &dyn TxPort, time: Duration) -> Cost {
    let domain = Domain::new(1);
    let mut worker = domain.register();
    let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
    let picks: Vec<Pick> = (0..64).map(|i| Pick::frame(i, false)).collect();
    let mut cost = Cost::default();
    let end = Instant::now() + time;
    let mut visits = 0u64;
    loop {
        visits += 1;
        if visits.is_multiple_of(4096) && Instant::now() > end {
            return cost;
        }
        {
            let section = worker.section();
            let mut tails = Tails::bind(&mut store, &section);
            let start = tsc::now();
            heads.clear(RxId(0), Tick(0));
            let (loan, _) = rx.rx_burst(&section, &mut heads, &mut tails, Limit::FULL);
            let mid = tsc::now();
            let n = heads.n;
            if n > 0 {
                let sent = tx.tx_burst(&section, LANE, &heads, &tails, &picks[..n]);
                let after = tsc::now();
                rx.release(&section, loan);
                cost.frames += n as u64;
                cost.lost += n as u64 - sent.frames;
                cost.bursts += 1;
                cost.rx += mid - start;
                cost.tx += after - mid;
                cost.whole += tsc::now() - start;
            } else {
                rx.release(&section, loan);
                for _ in 0..2 {
                    windlass_sync::pause();
                }
            }
        }
        worker.quiesce();
    }
}

/// Prints the best and the median round: on a shared machine the best says what the code costs.
fn show(len: u32, mut costs: Vec<Cost>) {
    let each = |cost: &Cost, cycles: u64| cycles as f64 / cost.frames.max(1) as f64;
    costs.sort_by(|a, b| each(a, a.whole).total_cmp(&each(b, b.whole)));
    for (name, cost) in [
        ("best", costs.first()),
        ("median", costs.get(costs.len() / 2)),
    ] {
        let Some(cost) = cost else { continue };
        println!(
            "{len:5} bytes, {name:6}: {:6.1} cycles a frame (rx {:5.1}, tx {:5.1}), {:4.1} frames a burst, \
             {:5.2} M/s, {} lost",
            each(cost, cost.whole),
            each(cost, cost.rx),
            each(cost, cost.tx),
            cost.frames as f64 / cost.bursts.max(1) as f64,
            cost.frames as f64 / ROUND.as_secs_f64() / 1e6,
            cost.lost
        );
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let seconds = args.next().and_then(|s| s.parse().ok()).unwrap_or(1.0);
    let (mut features, mut offload) = (0, 0);
    let mut sizes = vec![64, 256, 1518];
    for word in args {
        match word.as_str() {
            "packed" => features |= RING_PACKED,
            "order" => features |= IN_ORDER,
            "csum" => offload = CSUM | GUEST_CSUM,
            size => {
                sizes = vec![
                    size.parse()
                        .expect("packed, order, csum, or a size in bytes"),
                ]
            }
        }
    }
    println!(
        "time-stamp counter: {} MHz",
        tsc::Clock::get().hz() / 1_000_000
    );
    affinity::pin_thread(0).expect("CPU 0");
    for len in sizes {
        let features = features | offload;
        let (mut a, mut b) = (Guest::new(features), Guest::new(features | MRG_RXBUF));
        let mut rx = VhostRx::new(a.setup.take().expect("setup")).expect("rx");
        let tx = VhostTx::new(b.setup.take().expect("setup"), []).expect("tx");
        {
            let domain = Domain::new(1);
            let mut worker = domain.register();
            rx.disarm(&worker.section());
        }
        let (stop, received) = (AtomicBool::new(false), AtomicU64::new(0));
        let costs = std::thread::scope(|s| {
            s.spawn(|| {
                affinity::pin_thread(1).expect("CPU 1");
                run_driver(&mut a, &mut b, len, &stop, &received);
            });
            run_worker(&mut rx, &tx, ROUND);
            let rounds = (seconds / ROUND.as_secs_f64()).max(1.0) as usize;
            let costs: Vec<Cost> = (0..rounds)
                .map(|_| run_worker(&mut rx, &tx, ROUND))
                .collect();
            stop.store(true, Ordering::Relaxed);
            costs
        });
        show(len, costs);
    }
}

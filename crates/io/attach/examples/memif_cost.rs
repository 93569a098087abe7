//! What receiving and transmitting on memif rings costs: busy cycles of the time-stamp counter for each frame.
//!
//! One worker on CPU 0 takes bursts from ring A and sends them to ring B, with nothing in between. A peer on CPU 1 fills
//! ring A, writing the first bytes of each frame in its own memory, and empties ring B by counting. Polls that found nothing
//! do not count.
//!
//! Usage: `memif_cost [SECONDS]` for each size; prints cycles a frame for the whole, for receive and for transmit, of the
//! best and the median round of 50 ms.

use std::hint::black_box;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use windlass_attach::endpoint::Rings;
use windlass_attach::memif::layout::{COOKIE, Desc, RING_FLAG_MASK_INT, RingPlace, ring_bytes};
use windlass_attach::memif::rings::{RingSpec, assemble};
use windlass_attach::memif::view::{Role, View};
use windlass_attach::port::{Lane, Limit};
use windlass_frame::{Heads, Pick, RxId, Tick};
use windlass_shm::{HugePages, Mapping, SegStore, Tails};
use windlass_sync::qsbr::Domain;
use windlass_sync::tsc;
use windlass_sys::{affinity, eventfd};

const LOG2_SIZE: u8 = 10;
const SIZE: u16 = 1 << LOG2_SIZE;
/// As DPDK lays out its buffers: header, headroom and 2,048 bytes, at an odd number of lines.
const STRIDE: u32 = 2368;
const FIRST: u32 = 256;
const BATCH: u16 = 32;
const ROUND: Duration = Duration::from_millis(50);
const LANE: Lane = Lane {
    worker: 0,
    workers: 1,
};

struct Peer {
    memory: Mapping,
    up: RingPlace,
    down: RingPlace,
}

fn buffer(ring: u32, slot: u16) -> u32 {
    let rings = 2 * ring_bytes(LOG2_SIZE).expect("ring").next_multiple_of(4096);
    rings + (ring * u32::from(SIZE) + u32::from(slot)) * STRIDE + FIRST
}

fn write_desc(memory: &Mapping, at: u32, desc: Desc) {
    let [low, high] = desc.to_words();
    memory.store_u64(at as usize, low, Ordering::Relaxed);
    memory.store_u64(at as usize + 8, high, Ordering::Relaxed);
}

fn make() -> (Peer, Rings) {
    let bytes = buffer(1, SIZE - 1) + STRIDE;
    let (memory, file) =
        Mapping::create("memif-cost", bytes as usize, HugePages::Try).expect("memory");
    let spacing = ring_bytes(LOG2_SIZE).expect("ring").next_multiple_of(4096);
    let place =
        |i: u32| RingPlace::checked(i * spacing, LOG2_SIZE, u64::from(bytes)).expect("place");
    let (up, down) = (place(0), place(1));
    for (ring, place) in [(0, up), (1, down)] {
        memory.store_u32(place.cookie_at() as usize, COOKIE, Ordering::Relaxed);
        memory.store_u16(
            place.flags_at() as usize,
            RING_FLAG_MASK_INT,
            Ordering::Relaxed,
        );
        for slot in 0..SIZE {
            let offset = buffer(ring, slot);
            memory.write(u64::from(offset), &[0x5a; 2048]);
            write_desc(
                &memory,
                place.desc_at(slot),
                Desc {
                    offset,
                    length: 2048,
                    ..Desc::default()
                },
            );
        }
    }
    let theirs = Mapping::foreign(file.as_fd(), u64::from(bytes)).expect("map");
    let alarm = eventfd::create().expect("eventfd");
    let view = Arc::new(View::new(vec![theirs], alarm).expect("view"));
    let spec = |place| RingSpec {
        region: 0,
        place,
        event: None,
        buffers: None,
    };
    let rings = assemble(&view, Role::Server, vec![spec(up)], vec![spec(down)]).expect("rings");
    (Peer { memory, up, down }, rings)
}

/// Fills ring A and empties ring B until told to stop; returns the frames that came back.
fn run_peer(peer: &Peer, len: u32, stop: &AtomicBool, received: &AtomicU64) {
    let m = &peer.memory;
    let (mut head, mut seen_tail) = (0u16, 0u16);
    let (mut taken, mut offered) = (0u16, SIZE);
    m.store_u16(peer.down.head_at() as usize, offered, Ordering::Release);
    let mut count = 0u64;
    while !stop.load(Ordering::Relaxed) {
        if SIZE - head.wrapping_sub(seen_tail) < BATCH {
            seen_tail = m.load_u16(peer.up.tail_at() as usize, Ordering::Acquire);
        }
        if SIZE - head.wrapping_sub(seen_tail) >= BATCH {
            for _ in 0..BATCH {
                let offset = buffer(0, head & (SIZE - 1));
                m.store_u64(offset as usize, 0x0000_0200_0000_0002, Ordering::Relaxed);
                m.store_u64(offset as usize + 8, u64::from(head), Ordering::Relaxed);
                let desc = Desc {
                    offset,
                    length: len,
                    ..Desc::default()
                };
                write_desc(m, peer.up.desc_at(head), desc);
                head = head.wrapping_add(1);
            }
            m.store_u16(peer.up.head_at() as usize, head, Ordering::Release);
        }
        let tail = m.load_u16(peer.down.tail_at() as usize, Ordering::Acquire);
        while taken != tail {
            let at = peer.down.desc_at(taken) as usize;
            black_box(m.load_u64(at, Ordering::Relaxed));
            m.store_u64(at, 2048 << 32, Ordering::Relaxed);
            taken = taken.wrapping_add(1);
            offered = offered.wrapping_add(1);
            count += 1;
        }
        m.store_u16(peer.down.head_at() as usize, offered, Ordering::Release);
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

fn run_worker(rings: &mut Rings, time: Duration) -> Cost {
    let domain = Domain::new(1);
    let mut worker = domain.register();
    let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
    let picks: Vec<Pick> = (0..64).map(|i| Pick::frame(i, false)).collect();
    let mut cost = Cost::default();
    let rx = rings.rx.first_mut().expect("a ring");
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
                let sent = rings
                    .tx
                    .tx_burst(&section, LANE, &heads, &tails, &picks[..n]);
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
    let seconds = std::env::args()
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or(1.0);
    println!(
        "time-stamp counter: {} MHz",
        tsc::Clock::get().hz() / 1_000_000
    );
    affinity::pin_thread(0).expect("CPU 0");
    for len in [64, 256, 1518] {
        let (peer, mut rings) = make();
        let (stop, received) = (AtomicBool::new(false), AtomicU64::new(0));
        let costs = std::thread::scope(|s| {
            s.spawn(|| {
                affinity::pin_thread(1).expect("CPU 1");
                run_peer(&peer, len, &stop, &received);
            });
            run_worker(&mut rings, ROUND);
            let rounds = (seconds / ROUND.as_secs_f64()).max(1.0) as usize;
            let costs: Vec<Cost> = (0..rounds).map(|_| run_worker(&mut rings, ROUND)).collect();
            stop.store(true, Ordering::Relaxed);
            costs
        });
        show(len, costs);
    }
}

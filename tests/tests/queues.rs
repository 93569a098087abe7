//! A guest with several receive queues: workers in this process spread flows over its virtqueues, of either layout.

#[path = "../../crates/io/attach/tests/vhost_drive/mod.rs"]
mod vhost_drive;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vhost_drive::{Driver, Guest, HEADER, HIGH, LAYOUTS, Layout, WRITE};
use windlass_attach::endpoint::Rings;
use windlass_attach::port::{
    Armed, Kick, Lane, Limit, Loan, More, RxPort, Sent, Stop, TxCaps, TxPort,
};
use windlass_attach::vhost_user::VhostTx;
use windlass_attach::vhost_user::features::MRG_RXBUF;
use windlass_bridge::fdb::{EntryFlags, FdbWriter, Key, Limits};
use windlass_bridge::member::MemberConf;
use windlass_frame::{BURST, Claim, HEADROOM, Heads, Pick, SNAP, TxId};
use windlass_shm::{Section, Tails};
use windlass_stats::Drop;
use windlass_worker::dataplane::BridgeTuning;
use windlass_worker::spread::Weights;
use windlass_worker::{DataPlane, DataPlaneOptions, MemberTuning};

const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 0xee];
/// Buffers of a queue, and bytes of each.
const BUFFERS: u16 = 256;
const BUFFER: u64 = 256;
/// Frames that are under way at most: they fit any one queue.
const STEP: u64 = 128;

fn word(mac: [u8; 6]) -> u64 {
    u64::from_le_bytes([mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0])
}

/// Looks again and again until `holds` does; panics with `what` if that takes too long.
fn spin_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "not in time: {what}"
        );
        std::thread::yield_now();
    }
}

/// A number that looks random.
fn mixed(n: u64) -> u64 {
    let n = (n ^ (n >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (n ^ (n >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (n >> 17)
}

/// A frame of flow `flow` from `source`, with the flow and `number` in its last bytes: by turns IPv4, IPv4 fragments (the first
/// with ports, the others without), IPv6, IPv6 with an extension header, and no IP at all, TCP or UDP.
fn frame(source: u8, flow: u32, number: u32) -> Vec<u8> {
    let kind = flow % 8;
    let random = mixed(u64::from(flow) | u64::from(source) << 40);
    let [a, b, c, d, e, f, ports @ ..] = (random ^ random >> 61).to_be_bytes();
    let tcp = kind.is_multiple_of(2) && kind != 4;
    let proto = if tcp { 6 } else { 17 };
    let mut transport = [a, b, ports[0], ports[1]].to_vec();
    if tcp {
        transport.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    } else {
        transport.extend([0, 16, 0, 0]);
    }
    transport.extend(flow.to_be_bytes());
    transport.extend(number.to_be_bytes());
    let mut bytes = [&GUEST[..], &[2, 0, 0, 0, 0, source]].concat();
    match kind {
        0..5 => {
            let part = match (kind, number % 2) {
                (4, 0) => [0x20, 0],
                (4, _) => [0, 2],
                _ => [0, 0],
            };
            let length = 20 + transport.len() as u8;
            bytes.extend([8, 0, 0x45, 0, 0, length, 0, 1, part[0], part[1]]);
            bytes.extend([64, proto, 0, 0, 10, 1, c, d, 10, 2, e, f]);
        }
        5 | 6 => {
            let options = if kind == 6 {
                [proto, 0, 1, 4, 0, 0, 0, 0].to_vec()
            } else {
                Vec::new()
            };
            let next = if kind == 6 { 0 } else { proto };
            let length = (options.len() + transport.len()) as u8;
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, number as u8, 0, length, next, 64]);
            bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, c, d, e, f]);
            bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            bytes.extend(options);
        }
        _ => bytes.extend([0x88, 0xb5]),
    }
    bytes.extend(transport);
    bytes
}

/// Sends the frames of random flows, as far as it has credit.
struct Source {
    source: u8,
    flows: u32,
    number: u64,
    sent: BTreeMap<u32, u32>,
    credit: Arc<AtomicU64>,
    wake: Arc<OwnedFd>,
}

impl RxPort for Source {
    fn rx_burst<'q>(
        &mut self,
        _: &'q Section<'q>,
        heads: &mut Heads,
        _: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        let credit = self.credit.load(Ordering::Acquire);
        let mut n = 0;
        while n < limit.frames.min(BURST) && self.number < credit {
            let flow = mixed(self.number) as u32 % self.flows;
            let next = self.sent.entry(flow).or_default();
            let bytes = frame(self.source, flow, *next);
            *next += 1;
            assert!(bytes.len() <= SNAP);
            heads.snap[n].0[HEADROOM..HEADROOM + bytes.len()].copy_from_slice(&bytes);
            heads.admit(n, bytes.len() as u32, Claim::NONE);
            self.number += 1;
            n += 1;
        }
        heads.n = n;
        let more = if self.number < credit {
            More::Left
        } else {
            More::Drained
        };
        (Loan::default(), more)
    }

    fn release(&mut self, _: &Section<'_>, _: Loan) {}

    fn arm(&mut self, _: &Section<'_>) -> Armed {
        match self.number < self.credit.load(Ordering::Acquire) {
            true => Armed::Work,
            false => Armed::Yes,
        }
    }

    fn disarm(&mut self, _: &Section<'_>) {}

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }

    fn polls_memory(&self) -> bool {
        true
    }
}

/// A transmit half that is never used.
struct Nowhere;

impl TxPort for Nowhere {
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn tx_burst(&self, _: &Section<'_>, _: Lane, _: &Heads, _: &Tails<'_>, _: &[Pick]) -> Sent {
        Sent {
            stop: Stop::Down,
            kick: Kick::No,
            ..Sent::default()
        }
    }

    fn kick(&self, _: Lane) {}
}

/// What came to the guest: the queue, the sender, the flow and the number of each frame.
type Got = Vec<(usize, u8, u32, u32)>;

/// A guest at a bridge, and senders.
struct Bench {
    plane: DataPlane,
    layout: Layout,
    guest: Arc<Guest>,
    /// The guest's side of each queue.
    rings: Vec<Box<dyn Driver>>,
    member: u16,
    /// The switch's side of the queues.
    tx: Option<Arc<VhostTx>>,
    senders: Vec<(Arc<AtomicU64>, Arc<OwnedFd>)>,
}

impl Bench {
    fn start(layout: Layout, workers: usize, senders: u8, flows: u32, queues: u64) -> Bench {
        let options = DataPlaneOptions {
            workers: vec![None; workers],
            members_max: 16,
        };
        let mut plane = DataPlane::start(&options).expect("workers");
        let bridge = plane.add_bridge(BridgeTuning::default(), Limits::new(1024, [1, 2]));
        let mut add = |mac: [u8; 6]| {
            let mut conf = MemberConf::new(TxId(0), word(mac));
            conf.storm_limit = 0;
            let tuning = MemberTuning::default();
            let id = plane.add_member(bridge, conf, tuning).expect("a member");
            let key = Key::new(0, word(mac));
            let fix = move |writer: &mut FdbWriter<_>, now| {
                writer.add_fixed(key, id, EntryFlags::LOCAL, now).is_ok()
            };
            assert!(plane.ask_fdb(bridge, fix).expect("the table"));
            id
        };
        let member = add(GUEST);
        let mut made = Vec::new();
        for source in 1..=senders {
            let id = add([2, 0, 0, 0, 0, source]);
            let wake = Arc::new(windlass_sys::eventfd::create().expect("an eventfd"));
            let credit = Arc::new(AtomicU64::new(0));
            made.push((id, source, credit, wake));
        }
        let mut bench = Bench {
            plane,
            layout,
            guest: Guest::new(),
            rings: Vec::new(),
            member,
            tx: None,
            senders: Vec::new(),
        };
        for (id, source, credit, wake) in made {
            let port = Source {
                source,
                flows,
                number: 0,
                sent: BTreeMap::new(),
                credit: credit.clone(),
                wake: wake.clone(),
            };
            let rings = Rings {
                rx: vec![Box::new(port)],
                tx: Arc::new(Nowhere),
            };
            bench.plane.attach(id, rings).expect("attached");
            bench.senders.push((credit, wake));
        }
        bench.connect(queues);
        bench
    }

    /// The guest has `queues` receive queues from now on: those that it had go on where they were.
    fn connect(&mut self, queues: u64) {
        for number in self.rings.len() as u64..queues {
            let mut ring = self.layout.ring(&self.guest, number, BUFFERS, 0);
            for id in 0..BUFFERS {
                ring.offer_one(id, buffer(number, id), BUFFER as u32, WRITE);
            }
            self.rings.push(ring);
        }
        let mut setups = self
            .rings
            .iter()
            .take(queues as usize)
            .map(|r| r.setup(MRG_RXBUF));
        let first = setups.next().expect("a queue");
        let tx = Arc::new(VhostTx::new(first, setups).expect("queues"));
        self.tx = Some(tx.clone());
        self.plane.detach(self.member).expect("detached");
        let rings = Rings { rx: Vec::new(), tx };
        self.plane.attach(self.member, rings).expect("attached");
    }

    /// Has each sender send `count` frames.
    fn send(&self, count: u64) {
        for (credit, wake) in &self.senders {
            credit.fetch_add(count, Ordering::Release);
            windlass_sys::eventfd::signal(wake.as_fd()).expect("signalled");
        }
    }

    /// What has come to queues that are in `of`; their buffers are offered again.
    fn take(&mut self, of: u32) -> Got {
        let mut got = Got::new();
        for (number, ring) in self.rings.iter_mut().enumerate() {
            if of >> number & 1 == 0 {
                continue;
            }
            for (id, len) in ring.reap() {
                let at = buffer(number as u64, id);
                let bytes = ring.guest().read(at, len as usize);
                let marks = bytes.last_chunk::<8>().expect("a frame");
                let word = |at: usize| u32::from_be_bytes(*marks[at..].first_chunk().expect("4"));
                got.push((number, bytes[HEADER + 11], word(0), word(4)));
                ring.offer_one(id, at, BUFFER as u32, WRITE);
            }
        }
        got
    }

    /// Sends `count` frames in small steps and returns what came: all of it.
    fn carry(&mut self, count: u64) -> Got {
        let mut got = Got::new();
        let share = STEP / self.senders.len() as u64;
        for _ in 0..count.div_ceil(STEP) {
            let due = got.len() + (share as usize) * self.senders.len();
            self.send(share);
            spin_until("every frame of this step is with the guest", || {
                got.extend(self.take(!0));
                got.len() >= due
            });
        }
        got
    }
}

/// Where queue `number` has the buffer `id`.
fn buffer(number: u64, id: u16) -> u64 {
    HIGH + number * u64::from(BUFFERS) * BUFFER + u64::from(id) * BUFFER
}

/// The queue of each flow: one, on which its frames have their order, `next` on from what came before.
fn queues_of(got: &Got, next: &mut BTreeMap<(u8, u32), u32>) -> BTreeMap<(u8, u32), usize> {
    let mut queues = BTreeMap::new();
    for (queue, source, flow, number) in got {
        let key = (*source, *flow);
        assert_eq!(
            *queues.entry(key).or_insert(*queue),
            *queue,
            "{key:?} is on two queues"
        );
        let next = next.entry(key).or_default();
        assert_eq!(number, next, "{key:?} lost its order or a frame");
        *next += 1;
    }
    queues
}

/// One worker, a guest with 1, 4 or 16 queues, in either layout: flows of every kind (TCP, UDP, fragments, over IPv4 and IPv6
/// with and without extension headers, frames without IP) come to all of its queues, each flow to one and in order.
#[test]
fn one_worker_fills_all_queues() {
    for layout in LAYOUTS {
        for count in [1, 4, 16] {
            let mut bench = Bench::start(layout, 1, 1, 400, count);
            let got = bench.carry(12_800);
            let queues = queues_of(&got, &mut BTreeMap::new());
            let without_ip = queues.iter().filter(|((_, flow), _)| flow % 8 == 7);
            let places: BTreeSet<_> = without_ip.map(|(_, queue)| queue).collect();
            assert_eq!(
                places.len(),
                1,
                "frames without IP are told apart by addresses"
            );
            for queue in 0..count as usize {
                let flows = queues.values().filter(|q| **q == queue).count();
                let fair = queues.len() / count as usize;
                assert!(
                    flows > fair / 3,
                    "{flows} flows on queue {queue} of {count}, {layout:?}"
                );
            }
        }
    }
}

/// The shares of a guest's queues change a thousand times under traffic, and the guest takes what came from some queues earlier than
/// from others: every flow keeps its order and loses nothing, flows do move, and in the end all are where the last shares have them.
#[test]
fn shares_change_and_flows_keep_their_order() {
    const CHANGES: u64 = 1000;
    for layout in LAYOUTS {
        let mut bench = Bench::start(layout, 1, 1, 100, 4);
        let (mut next, mut places) = (BTreeMap::new(), BTreeMap::new());
        let (mut got, mut moves, mut sent) = (Got::new(), 0, 0);
        let mut look = |got: &mut Got| {
            for (queue, source, flow, number) in got.drain(..) {
                let key = (source, flow);
                let next: &mut u32 = next.entry(key).or_default();
                assert_eq!(number, *next, "{key:?} lost its order or a frame");
                *next += 1;
                moves += u32::from(places.insert(key, queue).is_some_and(|at| at != queue));
            }
            moves
        };
        let share = |bench: &mut Bench, weights: &[u8]| {
            let mut conf = MemberConf::new(TxId(0), word(GUEST));
            conf.storm_limit = 0;
            let tuning = MemberTuning {
                weights: Weights::new(weights),
                ..MemberTuning::default()
            };
            let set = bench.plane.set_member(bench.member, conf, tuning);
            set.expect("the guest is there");
        };
        let mut taken = 0;
        for n in 0..CHANGES {
            let weights = [0, 8, 16, 24].map(|bits| (mixed(n) >> bits) as u8 % 3);
            share(&mut bench, &weights);
            bench.send(STEP / 4);
            sent += STEP / 4;
            let some = (mixed(!n) >> 7) as u32;
            got.extend(bench.take(some));
            taken += got.len() as u64;
            look(&mut got);
            if n % 4 == 3 {
                spin_until("every frame is with the guest", || {
                    got.extend(bench.take(!0));
                    taken + got.len() as u64 == sent
                });
                taken = sent;
                look(&mut got);
            }
        }
        share(&mut bench, &[0, 0, 0, 1]);
        spin_until("all flows are on the last queue", || {
            let mut step = bench.carry(STEP);
            let are_there = step.iter().all(|(queue, ..)| *queue == 3);
            look(&mut step);
            are_there
        });
        let moves = look(&mut got);
        assert!(moves >= 1000, "{moves}, {layout:?}");
    }
}

/// Two workers, each with a sender, and a guest with 8 queues: each worker has four of them to itself.
#[test]
fn workers_share_no_queue() {
    for layout in LAYOUTS {
        let mut bench = Bench::start(layout, 2, 2, 200, 8);
        let got = bench.carry(12_800);
        let queues = queues_of(&got, &mut BTreeMap::new());
        let of = |source| -> BTreeSet<usize> {
            let mine = queues.iter().filter(|((s, _), _)| *s == source);
            mine.map(|(_, queue)| *queue).collect()
        };
        let mut sets = [of(1), of(2)];
        sets.sort();
        assert_eq!(
            sets,
            [[0, 2, 4, 6].into(), [1, 3, 5, 7].into()],
            "{layout:?}"
        );
    }
}

/// The number of queues changes while nothing is under way, down to one and up again: no frame is lost, every flow has its
/// order, and a flow leaves its queue only if that is gone or for one that is new.
#[test]
fn flows_stay_where_they_can() {
    for layout in LAYOUTS {
        let mut bench = Bench::start(layout, 1, 1, 200, 4);
        let mut next = BTreeMap::new();
        let mut before = (4, queues_of(&bench.carry(6400), &mut next));
        for count in [2, 3, 8, 1, 4] {
            bench.connect(count);
            let queues = queues_of(&bench.carry(6400), &mut next);
            for (flow, queue) in &queues {
                let Some(old) = before.1.get(flow) else {
                    continue;
                };
                let stays = old == queue;
                let must_go = *old >= count as usize;
                let is_drawn = *queue >= before.0 as usize;
                assert!(
                    stays || must_go || is_drawn,
                    "{flow:?} from {old} to {queue}, {} to {count} queues",
                    before.0
                );
            }
            before = (count, queues);
        }
    }
}

/// A guest that neglects one of its queues loses the frames of that queue's flows, counted, and no others.
#[test]
fn a_full_queue_costs_the_others_nothing() {
    for layout in LAYOUTS {
        let mut bench = Bench::start(layout, 1, 1, 100, 4);
        let mut next = BTreeMap::new();
        let before = queues_of(&bench.carry(6400), &mut next);
        let neglected = 2;
        let served = !(1 << neglected);
        let mut got = Got::new();
        for _ in 0..80 {
            bench.send(STEP);
            spin_until("everything is sent", || {
                got.extend(bench.take(served));
                let totals = bench.plane.totals(bench.member).expect("the guest");
                let sent = bench.senders[0].0.load(Ordering::Relaxed);
                totals.egress.frames + totals.drops[Drop::RingFull as usize] == sent
            });
            got.extend(bench.take(served));
        }
        let lost = bench.plane.totals(bench.member).expect("the guest");
        let lost = lost.drops[Drop::RingFull as usize];
        assert!(lost > 0, "the neglected queue has no room for all");
        let others = queues_of(&got, &mut next);
        assert!(
            others
                .iter()
                .all(|(flow, queue)| before.get(flow) == Some(queue))
        );
        got.extend(bench.take(1 << neglected));
        assert_eq!(6400 + 80 * STEP, 6400 + got.len() as u64 + lost);
    }
}

/// The front end switches queues on and off under traffic, two thousand times, all but the first: no frame is lost, none finds
/// the guest away, flows of the first queue stay on it and keep their order, and those of a queue that is off come to one
/// that is on.
#[test]
fn queues_are_switched_under_traffic() {
    const QUEUES: u64 = 4;
    const SWITCHES: u64 = 2000;
    for (layout, workers) in LAYOUTS.into_iter().flat_map(|l| [(l, 1), (l, 2)]) {
        let mut bench = Bench::start(layout, workers, workers as u8, 100, QUEUES);
        let mut next = BTreeMap::new();
        let before = queues_of(&bench.carry(6400), &mut next);
        let tx = bench.tx.clone().expect("queues");
        let mut on = 0b1111u64;
        let mut got = Got::new();
        for n in 0..SWITCHES {
            // Half of a step is under way while a queue goes or comes.
            if n % 4 == 0 {
                bench.send(STEP / 4 / workers as u64);
            }
            let queue = 1 + mixed(n) % (QUEUES - 1);
            on ^= 1 << queue;
            tx.set_enabled(queue as usize, on >> queue & 1 != 0);
            std::thread::yield_now();
            got.extend(bench.take(!0));
            if n % 16 == 15 {
                let due = (n as usize / 4 + 1) * (STEP as usize / 4);
                spin_until("every frame is with the guest", || {
                    got.extend(bench.take(!0));
                    got.len() >= due
                });
            }
        }
        let what = format!("{layout:?}, {workers} workers");
        let totals = bench.plane.totals(bench.member).expect("the guest");
        assert_eq!(
            totals.drops.iter().sum::<u64>(),
            0,
            "{what}: {:?}",
            totals.drops
        );
        let stays = |source: &u8, flow: &u32| before.get(&(*source, *flow)) == Some(&0);
        let firsts = got
            .iter()
            .filter(|(_, source, flow, _)| stays(source, flow));
        let firsts: Got = firsts.copied().collect();
        if workers == 1 {
            let queues = queues_of(&firsts, &mut next);
            assert!(
                !queues.is_empty() && queues.values().all(|queue| *queue == 0),
                "{what}"
            );
        }
        let mut numbers: Vec<_> = got.iter().map(|(_, s, f, n)| (*s, *f, *n)).collect();
        let all = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), all, "{what}: repeated");
        assert_eq!(all as u64, SWITCHES / 4 * (STEP / 4), "{what}: lost");
        let others = got.iter().filter(|(queue, ..)| *queue != 0).count();
        let moved = got
            .iter()
            .filter(|(queue, s, f, _)| before.get(&(*s, *f)) != Some(queue));
        assert!(others > all / 10 && moved.count() > all / 10, "{what}");
    }
}

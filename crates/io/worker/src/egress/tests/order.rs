//! The order of flows while their rings change.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;

use windlass_attach::port::Progress;
use windlass_wire::MacAddr;
use windlass_wire::build::{Ends, Link, udp_frame};

use super::*;
use crate::spread::Weights;

const RINGS: usize = 4;
const RING: usize = 256;
const FLOWS: u16 = 40;
const CHANGES: u32 = 1000;

/// One ring of a receiver: the frames in it, as flow and number, and what it shows.
#[derive(Default)]
struct Ring {
    frames: VecDeque<(u16, u32)>,
    put: u16,
    is_held: bool,
}

/// A receiver with rings of [`RING`] frames.
#[derive(Default)]
struct Receiver {
    rings: Mutex<[Ring; RINGS]>,
}

impl TxPort for Receiver {
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn tx_burst(
        &self,
        section: &Section<'_>,
        lane: Lane,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        self.tx_burst_on(section, lane, 0, heads, tails, picks)
    }

    fn has_choice(&self) -> bool {
        true
    }

    fn choices(&self, _: Lane) -> u32 {
        (1 << RINGS) - 1
    }

    fn progress(&self, ring: u8) -> Option<Progress> {
        let ring = &self.rings.lock().expect("no panic")[usize::from(ring)];
        Some(Progress {
            put: ring.put,
            unread: ring.frames.len() as u16,
            lap: 1 << 16,
        })
    }

    fn tx_burst_on(
        &self,
        _: &Section<'_>,
        _: Lane,
        ring: u8,
        heads: &Heads,
        _: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        let ring = &mut self.rings.lock().expect("no panic")[usize::from(ring)];
        let mut sent = Sent::default();
        if ring.is_held {
            sent.stop = Stop::Busy;
            return sent;
        }
        for pick in picks {
            if ring.frames.len() == RING {
                sent.stop = Stop::Full;
                break;
            }
            let bytes = heads.private(pick.index());
            let flow = u16::from_be_bytes([bytes[34], bytes[35]]);
            let number = u32::from_be_bytes([bytes[42], bytes[43], bytes[44], bytes[45]]);
            ring.frames.push_back((flow, number));
            ring.put = ring.put.wrapping_add(1);
            sent.taken += 1;
        }
        sent.frames = sent.taken as u64;
        sent
    }

    fn kick(&self, _: Lane) {}
}

/// Numbers of no pattern.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn topo(receiver: &Arc<Receiver>, weights: Weights) -> Topo {
    Topo {
        members: vec![Some(Arc::new(Member {
            asker: None,
            watches: Box::default(),
            bridge: 0,
            tx: Some(receiver.clone()),
            several: true,
            weights,
            is_special: true,
            is_staged: false,
            shape_out: None,
            shape_in: None,
            ingress: Box::default(),
            egress: Box::default(),
            priority: Default::default(),
            kick_gap_ns: 0,
            spin: Spin::default(),
            attachment: 1,
            owner: None,
            accounts: (0..2).map(|_| Account::default()).collect(),
            counters: Arc::new([Padded::new(MemberCounters::zero())]),
        }))],
        ..Topo::default()
    }
}

/// What flows send, and what has come of them.
struct Flows {
    receiver: Arc<Receiver>,
    egress: Egress,
    heads: Box<Heads>,
    store: SegStore,
    dice: Dice,
    now: Tick,
    next: [u32; FLOWS as usize],
    /// By flow: the number after the last that was taken, its ring, and how often that was another one.
    seen: BTreeMap<u16, (u32, usize, u32)>,
}

impl Flows {
    /// The receiver takes at most so many frames from a ring: each is behind those of its flow that were taken before.
    fn take(&mut self, ring: usize, most: u64) {
        let taken = &mut self.receiver.rings.lock().expect("no panic")[ring].frames;
        for _ in 0..most {
            let Some((flow, number)) = taken.pop_front() else {
                break;
            };
            let (last, at, moves) = self.seen.entry(flow).or_insert((0, ring, 0));
            assert!(number >= *last, "flow {flow}: {number} after {last}");
            *last = number + 1;
            *moves += u32::from(*at != ring);
            *at = ring;
        }
    }

    /// Another worker holds this ring, or none.
    fn hold(&self, held: usize) {
        let mut rings = self.receiver.rings.lock().expect("no panic");
        for (number, ring) in rings.iter_mut().enumerate() {
            ring.is_held = number == held;
        }
    }

    /// Offers frames of some flows, in parts, as destinations come in a visit; how many.
    fn offer(&mut self, section: &Section<'_>, topo: &Topo) -> u64 {
        self.now = self.now.plus(1000);
        let cx = Context {
            section,
            topo,
            lane: Lane {
                worker: 0,
                workers: 2,
            },
            now: self.now,
        };
        let link = Link {
            dst: MacAddr([2, 0, 0, 0, 0, 2]),
            src: MacAddr([2, 0, 0, 0, 0, 1]),
            tag: None,
        };
        let ends = Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        self.heads.clear(RxId(9), self.now);
        let n = 1 + self.dice.below(BURST as u64) as usize;
        for i in 0..n {
            let flow = self.dice.below(FLOWS.into()) as u16;
            let next = &mut self.next[usize::from(flow)];
            let mut frame = [0; 60];
            let number = next.to_be_bytes();
            let len = udp_frame(&mut frame, &link, &ends, (flow, 53), &number).expect("room");
            *next += 1;
            self.heads.snap[i].0[HEADROOM..HEADROOM + len].copy_from_slice(&frame[..len]);
            self.heads.admit(i, len as u32, Claim::NONE);
        }
        self.heads.n = n;
        let tails = Tails::bind(&mut self.store, section);
        let picks: Vec<Pick> = (0..n).map(|i| Pick::frame(i, false)).collect();
        for part in picks.chunks(1 + self.dice.below(40) as usize) {
            self.egress.offer(&cx, &self.heads, &tails, TxId(0), part);
        }
        self.egress.retry_late(&cx, &self.heads, &tails);
        if self.dice.below(2) == 0 {
            self.egress.drain(&cx);
        }
        n as u64
    }
}

/// A receiver takes frames from its four rings in any order, is behind and ahead, and another worker holds a ring now and then. While its weights
/// change a thousand times no flow is reordered, and flows move again and again.
#[test]
fn a_table_changes_and_no_flow_is_reordered() {
    let domain = Domain::new(1);
    let mut worker = domain.register();
    let section = worker.section();
    let receiver = Arc::<Receiver>::default();
    let mut flows = Flows {
        receiver: receiver.clone(),
        egress: Egress::new(1, [1, 2], unmetered()),
        heads: Heads::boxed(),
        store: SegStore::default(),
        dice: Dice(0x9e37_79b9_7f4a_7c15),
        now: Tick(1_000_000_000),
        next: [0; FLOWS as usize],
        seen: BTreeMap::new(),
    };
    let mut last = topo(&receiver, Weights::default());
    for _ in 0..CHANGES {
        let weights = [(); RINGS].map(|()| flows.dice.below(3) as u8);
        last = topo(&receiver, Weights::new(&weights));
        for _ in 0..1 + flows.dice.below(4) {
            let held = flows.dice.below(40) as usize;
            flows.hold(held);
            let mut left = flows.offer(&section, &last) * flows.dice.below(6);
            while left > 0 {
                let part = 1 + flows.dice.below(left);
                let ring = flows.dice.below(RINGS as u64) as usize;
                flows.take(ring, part);
                left -= part;
            }
        }
    }
    flows.hold(RINGS);
    for _ in 0..20 {
        flows.offer(&section, &last);
        (0..RINGS).for_each(|ring| flows.take(ring, u64::MAX));
    }
    assert_eq!(flows.egress.held_frames(), 0);
    let moves: u32 = flows.seen.values().map(|(_, _, moves)| moves).sum();
    assert!(moves > 10 * u32::from(FLOWS), "{moves}");
}

use windlass_attach::port::Lane;
use windlass_bridge::fdb::{Fdb, Limits};
use windlass_bridge::forward::{Bridge, BridgeConf};
use windlass_bridge::member::MemberConf;
use windlass_frame::{Claim, HEADROOM, RxId};
use windlass_shm::SegStore;
use windlass_stats::{MemberCounters, Padded};
use windlass_sync::qsbr::Domain;

use super::*;
use crate::grace::QsbrGrace;
use crate::meter::Account;
use crate::topo::Topo;

const OVERLAY: u16 = 0;
const TARGET: u16 = 5;

/// An overlay, four members, and a target.
fn topo(domain: &Domain) -> Topo {
    let limits = Limits::new(100, [1, 2]);
    let (fdb, _) = Fdb::new(limits, QsbrGrace::new(domain.clone()));
    let members = (OVERLAY..=TARGET).map(|id| MemberConf {
        horizon: u16::from([OVERLAY, TARGET].contains(&id)),
        ..MemberConf::new(TxId(id), 0)
    });
    let bridge = Bridge::new(BridgeConf {
        fdb,
        filtering: false,
        mac: 0,
        members: members.collect(),
        groups: None,
    });
    Topo {
        bridges: vec![Some(Arc::new(bridge))],
        ..Topo::default()
    }
}

fn member() -> Member {
    Member {
        bridge: 0,
        tx: None,
        several: false,
        asker: None,
        weights: Default::default(),
        is_special: true,
        is_staged: false,
        watches: Box::default(),
        ingress: Box::default(),
        egress: Box::default(),
        shape_out: None,
        shape_in: None,
        owner: None,
        priority: Default::default(),
        kick_gap_ns: 0,
        spin: Default::default(),
        attachment: 0,
        accounts: [Account::default()].into(),
        counters: Arc::new([Padded::new(MemberCounters::zero())]),
    }
}

/// What the workers' side is, without a worker.
struct World {
    domain: Domain,
    topo: Topo,
    member: Member,
    asker: Asker,
    asked: mpsc::Receiver<(Question, u16)>,
    questions: Questions,
    now: Tick,
    frames: u64,
}

impl World {
    fn new() -> World {
        let domain = Domain::new(1);
        let (queue, asked) = mpsc::channel(QUESTIONS);
        let notice = Arc::new(Notice::new().expect("a descriptor"));
        World {
            topo: topo(&domain),
            domain,
            member: member(),
            asker: Asker { queue, notice },
            asked,
            questions: Questions::default(),
            now: Tick(1_000_000_000),
            frames: 0,
        }
    }

    /// A member sends a frame of so many bytes to an address.
    fn send(&mut self, from: u16, dst: u64, len: usize) -> Way {
        let mut worker = self.domain.register();
        let section = worker.section();
        let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
        heads.clear(RxId(from), self.now);
        let tail = vec![0; len - 60];
        heads.snap[0].0[HEADROOM..HEADROOM + 6].copy_from_slice(&dst.to_le_bytes()[..6]);
        heads.admit(0, 60, Claim::NONE);
        heads.meta[0].len = len as u32;
        let mut tails = Tails::bind(&mut store, &section);
        tails.push(0, windlass_shm::Foreign::private(&tail));
        let cx = Context {
            section: &section,
            topo: &self.topo,
            lane: Lane {
                worker: 0,
                workers: 1,
            },
            now: self.now,
        };
        let overlay = (OVERLAY, &self.member, &self.asker);
        let way = self
            .questions
            .admit(&cx, overlay, (&heads, &tails, 0), self.frames);
        self.frames += 1;
        way
    }

    fn is_held(&mut self, from: u16, dst: u64) -> bool {
        matches!(self.send(from, dst, 60), Way::Held)
    }

    /// Gives frames back; their numbers.
    fn free(&mut self, frames: Vec<Waiting>) -> Vec<u64> {
        let numbers = frames.iter().map(|frame| frame.number).collect();
        let pool = &mut self.questions.pool;
        frames.into_iter().for_each(|frame| pool.free(frame.held));
        numbers
    }
}

fn asked(dst: u64) -> Asked {
    (OVERLAY, Key::new(0, dst))
}

/// What is held comes out in order, once; what follows goes the same way, until floods that were before it are made and the table has the
/// address. Then it is asked for anew.
#[test]
fn an_address_is_asked_for_once() {
    let mut world = World::new();
    for dst in [2, 4] {
        assert!((0..FRAMES).all(|_| world.is_held(1, dst)));
        let full = world.send(2, dst, 60);
        assert!(matches!(full, Way::Drop(Drop::LookupQueue)));
    }
    let held = world
        .questions
        .answer(asked(2), Some(TxId(TARGET)), world.now);
    let numbers = world.free(held);
    assert_eq!(numbers, (0..FRAMES as u64).collect::<Vec<_>>());
    let goes = |world: &mut World| matches!(world.send(1, 2, 60), Way::To(TxId(TARGET), false));
    assert!(goes(&mut world));
    let left = Arc::new(AtomicUsize::new(1));
    world.questions.flushed_later(7, left.clone());
    world.questions.end_later(9, asked(2));
    let notice = world.asker.notice.clone();
    for (oldest, is_flushed) in [(Some(6), false), (Some(7), true), (Some(8), true)] {
        world.questions.settle(oldest, &notice);
        assert_eq!(left.load(Ordering::Acquire) == 0, is_flushed);
        assert!(goes(&mut world));
    }
    world.questions.settle(Some(9), &notice);
    assert!(world.is_held(1, 2));
    let questions = std::iter::from_fn(|| world.asked.pop());
    let keys: Vec<_> = questions.map(|(question, _)| question.key).collect();
    assert_eq!(keys, [2, 4, 2].map(|dst| Key::new(0, dst)));
    // A place that is another's by now gets nothing.
    let held = world.questions.answer(asked(4), Some(TxId(1)), world.now);
    world.free(held);
    assert!(matches!(world.send(1, 4, 60), Way::Drop(Drop::PeerDown)));
    let held = world.questions.purge(OVERLAY);
    assert_eq!(world.free(held).len(), 1);
    assert!(world.questions.pool.is_empty() && world.questions.len() == 0);
    assert_eq!(world.questions.next_due(), None);
}

/// A member that asks for ever other addresses, or has large frames wait, leaves as much as it has to each next one. It has 500 addresses
/// a second asked for.
#[test]
fn a_member_leaves_room_to_others() {
    let mut world = World::new();
    let at_once = (1..100).filter(|n| world.is_held(1, 2 * n)).count();
    assert_eq!(at_once, 26);
    let mut dst = 1_000;
    let mut own = Vec::new();
    for from in 1..=4 {
        let mut asked = 0;
        // As the rate allows.
        for _ in 0..2 * SLOTS {
            world.now = world.now.plus(2_000_000);
            dst += 2;
            asked += usize::from(world.is_held(from, dst));
        }
        own.push(asked + if from == 1 { at_once } else { 0 });
    }
    assert_eq!(own, [32, 16, 8, 4]);
    assert_eq!(world.questions.oldest(), Some(0));
    let mut over = 0;
    world.now = world.now.plus(WAIT_NS);
    while let Some((_, held)) = world.questions.take_due(world.now) {
        over += world.free(held).len();
    }
    assert_eq!(over, 60);
    assert!(world.questions.pool.is_empty());
    // In blocks.
    let large = BYTES as usize;
    let held = |world: &mut World, from: u16| {
        let mut held = 0;
        for n in 0..SLOTS as u64 {
            world.now = world.now.plus(2_000_000);
            for _ in 0..FRAMES {
                let way = world.send(from, 10_000 + 1_000 * u64::from(from) + 2 * n, large);
                held += usize::from(matches!(way, Way::Held));
            }
        }
        held
    };
    let blocks = large / BLOCK;
    assert_eq!(held(&mut world, 1), BLOCKS / blocks / 2);
    assert_eq!(held(&mut world, 2), BLOCKS / blocks / 4);
    assert!(matches!(
        world.send(3, 2, large + 1),
        Way::Drop(Drop::LookupQueue)
    ));
    let held = world.questions.purge(OVERLAY);
    world.free(held);
    assert!(world.questions.pool.is_empty());
}

/// An address that is nowhere is not asked for again for a while, also if there are many of them; of more than there is room for, the oldest
/// are.
#[test]
fn what_is_nowhere_is_not_asked_for() {
    let mut world = World::new();
    let all = 1..=2 * SLOTS as u64;
    for n in all.clone() {
        world.now = world.now.plus(2_000_000);
        assert!(world.is_held(1, 2 * n));
        let held = world.questions.answer(asked(2 * n), None, world.now);
        assert_eq!(world.free(held).len(), 1);
        let again = world.send(1, 2 * n, 60);
        assert!(matches!(again, Way::Drop(Drop::LookupRefused)));
    }
    let refused = |world: &World, n: u64| world.questions.slots.contains_key(&asked(2 * n));
    let refused = all.filter(|n| refused(&world, *n)).collect::<Vec<_>>();
    assert_eq!(
        refused,
        (SLOTS as u64 + 1..=2 * SLOTS as u64).collect::<Vec<_>>()
    );
    // Nobody has asked for this one.
    let held = world.questions.answer(asked(2), None, world.now);
    assert!(held.is_empty() && world.questions.slots.len() == SLOTS);
    world.now = world.now.plus(REFUSED_NS);
    while world.questions.take_due(world.now).is_some() {}
    assert!(world.questions.slots.is_empty() && world.questions.due.is_empty());
}

mod corked;
mod order;

use std::sync::{Arc, Mutex};

use windlass_attach::port::{Lane, TxCaps, TxPort};
use windlass_frame::{Claim, HEADROOM, RxId};
use windlass_nic::EgressStage;
use windlass_shaper::{Bucket, Shaper};
use windlass_shm::{Foreign, Section};
use windlass_stats::{MemberTotals, Padded};
use windlass_sync::qsbr::Domain;

use super::*;
use crate::hold::{BLOCK, POOL_BYTES};
use crate::meter::{Account, Sense, Used};
use crate::ring::Spin;
use crate::topo::Topo;

/// For a meter that is never on.
fn unmetered() -> Sense {
    Sense {
        now_ns: Box::new(|| 0),
        used: Box::new(Used::default),
    }
}

/// Takes everything, or nothing while it is held, and keeps the bytes, with a tag where one is asked for.
#[derive(Default)]
struct Sink {
    frames: Mutex<Vec<Vec<u8>>>,
    is_held: Mutex<bool>,
}

impl TxPort for Sink {
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn tx_burst(
        &self,
        _: &Section<'_>,
        _: Lane,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        let mut sent = Sent::default();
        if *self.is_held.lock().expect("no panic") {
            sent.stop = Stop::Busy;
            return sent;
        }
        for pick in picks {
            let i = pick.index();
            let mut bytes = heads.private(i).to_vec();
            for piece in tails.of(i) {
                let mut part = vec![0; piece.len()];
                piece.read(&mut part);
                bytes.extend(part);
            }
            if pick.tagged() {
                let vid = heads.meta[i].vid.to_be_bytes();
                bytes.splice(12..12, [0x81, 0, vid[0], vid[1]]);
            }
            self.frames.lock().expect("no panic").push(bytes);
        }
        sent.taken = picks.len();
        sent.frames = picks.len() as u64;
        sent
    }

    fn kick(&self, _: Lane) {}
}

/// A tunnel: its header in front of every frame.
struct Tunnel([u8; 50]);

impl EgressStage for Tunnel {
    fn enter(&self, _: Tick, frames: &mut Entering<'_>) {
        let picks: Vec<Pick> = frames.fates().map(|(pick, _)| pick).collect();
        let heads = frames.rewrite();
        for pick in picks {
            assert!(heads.prepend(pick.index(), &self.0), "there is headroom");
        }
    }
}

fn member(sink: &Arc<Sink>, egress: Vec<Arc<dyn EgressStage>>) -> Option<Arc<Member>> {
    limited(sink, egress, None)
}

/// With a rate in bits a second.
fn limited(
    sink: &Arc<Sink>,
    egress: Vec<Arc<dyn EgressStage>>,
    rate: Option<u64>,
) -> Option<Arc<Member>> {
    let limit = rate.map(|rate| Arc::new(Bucket::new(rate)));
    let shaper = Shaper::new(Direction::In, Vec::new(), limit);
    Some(Arc::new(Member {
        watches: Box::default(),
        bridge: 0,
        tx: Some(sink.clone()),
        several: false,
        asker: None,
        weights: Default::default(),
        is_special: !egress.is_empty() || rate.is_some(),
        is_staged: false,
        shape_out: None,
        shape_in: shaper.map(Arc::new),
        ingress: Box::default(),
        egress: egress.into(),
        owner: None,
        priority: Default::default(),
        kick_gap_ns: 0,
        spin: Spin::default(),
        attachment: 1,
        accounts: (0..2).map(|_| Account::default()).collect(),
        counters: Arc::new([Padded::new(MemberCounters::zero())]),
    }))
}

fn totals(topo: &Topo, member: usize) -> MemberTotals {
    let mut totals = MemberTotals::default();
    let member = topo.members[member].as_ref().expect("a member");
    totals.add(&member.counters[0]);
    totals
}

fn frames() -> Vec<Vec<u8>> {
    let frame = |n: u8| (0..2000).map(move |b| (b as u8).wrapping_add(n));
    (0..10).map(|n| frame(n).collect()).collect()
}

/// A frame as it is to come to a member.
fn arrives(to: usize, frame: &[u8]) -> Vec<u8> {
    match to {
        0 => frame.to_vec(),
        1 => [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat(),
        2 => [&[0xaa; 50], frame].concat(),
        _ => [&[0xbb; 50], frame].concat(),
    }
}

/// A member without stages, one that gets tags, one behind a tunnel, and one behind a tunnel with a limit.
fn several(sinks: &[Arc<Sink>]) -> Topo {
    let tunnels = [0xaa, 0xbb].map(|byte| Arc::new(Tunnel([byte; 50])) as Arc<dyn EgressStage>);
    let [near, far] = tunnels;
    // 2,050 bytes a millisecond: a frame and its tunnel.
    let limit = Some(2050 * 8 * 1000);
    Topo {
        members: vec![
            member(&sinks[0], vec![]),
            member(&sinks[1], vec![]),
            member(&sinks[2], vec![near]),
            limited(&sinks[3], vec![far], limit),
        ],
        ..Topo::default()
    }
}

/// One copied frame goes plain to one member, with a VLAN tag to the next, with tunnels' headers to two others, one of which is
/// held up by another worker and one of which is limited: each gets its own headers and the whole frame behind them, at once
/// or later, in order; and all frames are accounted for.
#[test]
fn one_frame_with_several_headers() {
    let domain = Domain::new(1);
    let mut worker = domain.register();
    let section = worker.section();
    let sinks: Vec<Arc<Sink>> = (0..4).map(|_| Arc::default()).collect();
    let topo = several(&sinks);
    let context = |now| Context {
        section: &section,
        topo: &topo,
        lane: Lane {
            worker: 0,
            workers: 2,
        },
        now,
    };
    let (mut egress, counters) = (
        Egress::new(4, [1, 2], unmetered()),
        WorkerCounters::default(),
    );
    *sinks[2].is_held.lock().expect("no panic") = true;
    let frames = frames();
    let start = Tick(1_000_000_000);
    let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
    for (n, frame) in frames.iter().enumerate() {
        let cx = context(start);
        heads.clear(RxId(9), start);
        let mut tails = Tails::bind(&mut store, &section);
        let i = n % 3;
        heads.snap[i].0[HEADROOM..HEADROOM + 128].copy_from_slice(&frame[..128]);
        heads.admit(i, 2000, Claim::NONE);
        heads.meta[i].vid = 7;
        tails.push(i, Foreign::private(&frame[128..]));
        for to in 0..4 {
            let pick = Pick::frame(i, to == 1);
            assert_eq!(egress.offer(&cx, &heads, &tails, TxId(to), &[pick]), 1);
        }
        egress.retry_late(&cx, &heads, &tails);
        assert_eq!(heads.private(i), &frame[..128], "others get it as it was");
    }
    assert_eq!(sinks[3].frames.lock().expect("no panic").len(), 2);
    assert_eq!(totals(&topo, 3).egress.held, 8);
    *sinks[2].is_held.lock().expect("no panic") = false;
    // Once a millisecond one more is due, not earlier.
    for ms in 1..=8 {
        let due = egress.next_due().expect("the queue's first");
        assert_eq!(due, start.plus(ms * 1_000_000));
        egress.run_due(&context(Tick(due.0 - 1)), &counters);
        egress.run_due(&context(due), &counters);
        let sent = sinks[3].frames.lock().expect("no panic").len();
        assert_eq!(sent as u64, 2 + ms);
    }
    assert_eq!(egress.next_due(), None);
    while egress.has_waiting() {
        egress.drain(&context(start));
    }
    for (to, sink) in sinks.iter().enumerate() {
        let got = sink.frames.lock().expect("no panic");
        let expected = frames.iter().map(|frame| arrives(to, frame));
        assert!(got.iter().cloned().eq(expected), "member {to}");
        let totals = totals(&topo, to);
        assert!(totals.conserved() && totals.egress.frames == 10);
        assert_eq!(totals.egress.held, 0);
    }
    assert_eq!(egress.held_frames(), 0);
}

/// What waits before a member that goes is dropped and counted; what waits when its limit goes, goes at once and in order.
#[test]
fn queues_end_with_their_limit() {
    let domain = Domain::new(1);
    let mut worker = domain.register();
    let section = worker.section();
    let sink = Arc::<Sink>::default();
    let limited = Topo {
        members: vec![limited(&sink, vec![], Some(1_000_000))],
        ..Topo::default()
    };
    let plain = Topo {
        members: vec![member(&sink, vec![])],
        ..Topo::default()
    };
    let mut egress = Egress::new(1, [1, 2], unmetered());
    let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
    let now = Tick(1_000_000_000);
    let mut offer = |egress: &mut Egress, topo: &Topo, number: u8| {
        let lane = Lane {
            worker: 0,
            workers: 1,
        };
        let section = &section;
        let cx = Context {
            section,
            topo,
            lane,
            now,
        };
        heads.clear(RxId(9), now);
        heads.snap[0].0[HEADROOM + 14] = number;
        heads.admit(0, 1000, Claim::NONE);
        let tails = Tails::bind(&mut store, section);
        let taken = egress.offer(&cx, &heads, &tails, TxId(0), &[Pick::frame(0, false)]);
        assert_eq!(taken, 1);
    };
    // 16 frames may wait: the oldest goes for the latest.
    (0..20).for_each(|number| offer(&mut egress, &limited, number));
    let before = totals(&limited, 0);
    assert_eq!(before.drops[Drop::QueueFull as usize], 3);
    assert!(before.conserved() && before.egress.held == 16);
    offer(&mut egress, &plain, 20);
    let got = sink.frames.lock().expect("no panic").clone();
    let numbers: Vec<u8> = got.iter().map(|frame| frame[14]).collect();
    assert_eq!(numbers, [0].into_iter().chain(4..21).collect::<Vec<u8>>());
    assert_eq!((egress.held_frames(), egress.next_due()), (0, None));
    (0..5).for_each(|number| offer(&mut egress, &limited, number));
    let gone = limited.members[0].as_ref().expect("a member");
    let rule = Rule {
        shaper: None,
        member: 0,
        owner: None,
        worker: 0,
        now,
        deaths: None,
    };
    egress.purge(&rule, Some(&gone.counters[0]));
    assert_eq!((egress.held_frames(), egress.next_due()), (0, None));
}

/// What comes for a ring that another worker holds waits while there is room for it, and is counted; what comes then is dropped as
/// `spill-full`. All that waited goes when the ring is free.
#[test]
fn a_held_ring_fills_the_pool() {
    let domain = Domain::new(1);
    let mut worker = domain.register();
    let section = worker.section();
    let sink = Arc::<Sink>::default();
    let topo = Topo {
        members: vec![member(&sink, vec![])],
        ..Topo::default()
    };
    let cx = Context {
        section: &section,
        topo: &topo,
        lane: Lane {
            worker: 0,
            workers: 2,
        },
        now: Tick(1_000_000_000),
    };
    let mut egress = Egress::new(1, [1, 2], unmetered());
    let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
    let held = (POOL_BYTES / BLOCK) as u64;
    *sink.is_held.lock().expect("no panic") = true;
    for _ in 0..held + 5 {
        heads.clear(RxId(9), cx.now);
        heads.admit(0, 100, Claim::NONE);
        let tails = Tails::bind(&mut store, &section);
        let taken = egress.offer(&cx, &heads, &tails, TxId(0), &[Pick::frame(0, false)]);
        assert_eq!(taken, 1);
        egress.retry_late(&cx, &heads, &tails);
    }
    let full = totals(&topo, 0);
    assert_eq!((full.egress.spilled, full.egress.held), (held, held));
    assert_eq!(full.drops[Drop::SpillFull as usize], 5);
    *sink.is_held.lock().expect("no panic") = false;
    while egress.has_waiting() {
        egress.drain(&cx);
    }
    let sent = totals(&topo, 0);
    assert!(sent.conserved() && sent.egress.frames == held);
    assert_eq!(sent.egress.held, 0);
}

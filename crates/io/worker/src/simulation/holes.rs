//! Members whose memory is full of holes, and what they do to others' unicast.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use windlass_bridge::fdb::Limits;
use windlass_stats::Drop;

use super::port::{FRAME, Pipe};
use super::within;
use super::world::World;
use crate::dataplane::BridgeTuning;
use crate::meter::{ALLOWANCE_NS, SHARE, STALLS};

/// What one look into a hole takes.
const HOLE_NS: u64 = 8_000_000;
/// From one frame of the neighbours to the next.
const GAP_NS: u64 = 1_000_000;

/// Neighbours 0 and 1; the others are hostile.
struct Street {
    world: Rc<World>,
    pipes: Vec<Arc<Pipe>>,
    /// How long each frame from 0 to 1 took.
    took: Vec<u64>,
}

impl Street {
    fn new(hostile: usize) -> Street {
        let world = World::start(1, 1, 2 + hostile);
        let mut plane = world.plane.take().expect("the control thread rests");
        let bridge = plane.add_bridge(BridgeTuning::default(), Limits::new(1024, [1, 7]));
        world.plane.replace(Some(plane));
        world.run_until_quiet();
        let pipes = (0..2 + hostile)
            .map(|_| world.join(bridge, usize::MAX))
            .collect();
        world.run_until_quiet();
        Street {
            world,
            pipes,
            took: Vec::new(),
        }
    }

    fn mac(&self, of: usize) -> u64 {
        self.world.model.borrow().owners[of].mac
    }

    /// One frame between the neighbours. `others` comes first, so that its work is done before.
    fn ping(&mut self, others: impl FnOnce(&Street)) {
        let world = self.world.clone();
        let begin = world.now.get();
        others(self);
        let number = world.put(0, &self.pipes[0], self.mac(1));
        while !world.model.borrow().has(1, number) {
            assert!(world.work(0), "the worker sleeps");
        }
        self.took.push(world.now.get() - begin);
        while world.work(0) {}
        let model = world.model.borrow();
        let sinks = model.owners.iter().filter_map(|o| o.sink.as_ref());
        sinks.for_each(|sink| {
            sink.drain(usize::MAX);
        });
        world.now.set(world.now.get().max(begin + GAP_NS));
    }

    /// That time which all but one in a hundred of the frames did not exceed, and how many have taken as long as a hole.
    fn result(&mut self) -> (u64, usize) {
        self.took.sort_unstable();
        let late = self.took.iter().filter(|ns| **ns >= HOLE_NS).count();
        let p99 = self.took[self.took.len() * 99 / 100];
        self.took.clear();
        (p99, late)
    }

    /// Members that are to go, and why.
    fn condemned(&self) -> Vec<(u16, &'static str)> {
        let mut plane = self.world.plane.borrow_mut();
        let plane = plane.as_mut().expect("the control thread rests");
        let condemned = plane.take_condemned();
        condemned.iter().map(|c| (c.member, c.reason)).collect()
    }

    fn stalled_ns(&self, of: usize) -> u64 {
        let plane = self.world.plane.borrow();
        let plane = plane.as_ref().expect("the control thread rests");
        let number = self.world.model.borrow().owners[of].number;
        plane.totals(number).expect("a member").stalled_ns
    }

    fn rests(&self, of: usize) -> bool {
        let plane = self.world.plane.borrow();
        let plane = plane.as_ref().expect("the control thread rests");
        let number = self.world.model.borrow().owners[of].number;
        let now = windlass_frame::Tick(self.world.now.get());
        plane.rests(number, now).expect("a member").is_some()
    }

    fn end(self) {
        drop(self.world.plane.take());
        World::end();
    }
}

/// A member whose every burst waits 8 ms for its memory takes one part in [`SHARE`] of the worker's time, and loses its connection when it goes
/// on. The neighbours' p99 stays; nobody else is charged.
#[test]
fn a_sender_pays_for_its_holes() {
    within(|| {
        let mut street = Street::new(1);
        (0..2000).for_each(|_| street.ping(|_| {}));
        let (quiet, late) = street.result();
        assert_eq!(late, 0);
        street.pipes[2].hole_ns.store(HOLE_NS, Ordering::Relaxed);
        let nobody = street.mac(2);
        let mut condemned = Vec::new();
        let mut at = 0;
        for second in 0..20 {
            for _ in 0..1000 {
                street.ping(|street| {
                    if street.pipes[2].left() < 32 {
                        street.world.put(2, &street.pipes[2], nobody);
                    }
                });
            }
            if second == 0 {
                assert!(street.rests(2), "it is suspended");
            }
            condemned.extend(street.condemned());
            at = if condemned.is_empty() { second } else { at };
        }
        let (p99, late) = street.result();
        assert!(p99 <= 2 * quiet, "{quiet} ns before, {p99} ns after");
        assert!((2..100).contains(&late), "{late} of 20,000");
        assert_eq!(condemned.first(), Some(&(2, STALLS)), "{condemned:?}");
        assert!((3..15).contains(&at), "in second {at}");
        let stalled = street.stalled_ns(2);
        assert!(stalled >= HOLE_NS - ALLOWANCE_NS, "{stalled}");
        assert!(stalled < 20_000_000_000 / SHARE + 10 * HOLE_NS, "{stalled}");
        assert_eq!((street.stalled_ns(0), street.stalled_ns(1)), (0, 0));
        street.end();
    });
}

/// The same of one that receives: what is sent to it costs the sender nothing, and is dropped while it rests. Many of them take no more
/// together.
#[test]
fn receivers_pay_for_theirs() {
    within(|| {
        let hostile = 16;
        let mut street = Street::new(hostile);
        let sinks = |street: &Street, ns| {
            let model = street.world.model.borrow();
            for owner in &model.owners[2..] {
                let sink = owner.sink.as_ref().expect("a sink");
                sink.hole_ns.store(ns, Ordering::Relaxed);
            }
        };
        (0..2000).for_each(|_| street.ping(|_| {}));
        let (quiet, _) = street.result();
        sinks(&street, HOLE_NS);
        let mut next = 0;
        for _ in 0..40_000 {
            next = 2 + (next + 1) % hostile;
            let to = street.mac(next);
            street.ping(|street| {
                street.world.put(0, &street.pipes[0], to);
            });
        }
        let (p99, late) = street.result();
        assert!(p99 <= 2 * quiet, "{quiet} ns before, {p99} ns after");
        assert!((2..400).contains(&late), "{late} of 40,000");
        assert_eq!((street.stalled_ns(0), street.stalled_ns(1)), (0, 0));
        let stalled: u64 = (2..2 + hostile).map(|of| street.stalled_ns(of)).sum();
        assert!(stalled < 2 * 40_000_000_000 / SHARE, "{stalled}");
        let plane = street.world.plane.borrow();
        let plane_ref = plane.as_ref().expect("the control thread rests");
        let slow = plane_ref.totals(2).expect("a member");
        assert!(slow.drops[Drop::PeerSlow as usize] > 1000);
        drop(plane);
        street.world.run_until_quiet();
        street.world.check();
        street.end();
    });
}

/// What a transmission fills may be fresh: the more it writes, the longer it may take. A sender's memory is not.
#[test]
fn fresh_pages_are_allowed_for() {
    within(|| {
        let mut street = Street::new(1);
        let written = 16 * FRAME as u64;
        let fresh = written * 2_000 / 4_096;
        let set = |street: &Street, ns| {
            let model = street.world.model.borrow();
            let sink = model.owners[2].sink.as_ref().expect("a sink");
            sink.hole_ns.store(ns, Ordering::Relaxed);
        };
        let to = street.mac(2);
        let stalled = |street: &mut Street, extra| {
            set(street, ALLOWANCE_NS + extra);
            let before = street.stalled_ns(2);
            street.ping(|street| {
                for _ in 0..written / FRAME as u64 {
                    street.world.put(0, &street.pipes[0], to);
                }
            });
            street.stalled_ns(2) - before
        };
        // It turns the meter on, and is nobody's.
        assert_eq!(stalled(&mut street, 20_000_000), 0);
        // Looks at the clock take time, too.
        assert_eq!(stalled(&mut street, fresh - 100), 0);
        assert!((600..800).contains(&stalled(&mut street, fresh + 600)));
        set(&street, 0);
        let nobody = street.mac(1);
        let hole = ALLOWANCE_NS + fresh;
        street.pipes[2].hole_ns.store(hole, Ordering::Relaxed);
        let before = street.stalled_ns(2);
        street.ping(|street| {
            street.world.put(2, &street.pipes[2], nobody);
        });
        assert!((fresh..fresh + 100).contains(&(street.stalled_ns(2) - before)));
        street.end();
    });
}

/// A burst into fresh pages is allowed, and so is a longer one now and then; time without a core is charged to nobody.
#[test]
fn honest_members_owe_nothing() {
    within(|| {
        let mut street = Street::new(1);
        let nobody = street.mac(2);
        for n in 0..10_000u64 {
            let ns = match n {
                // It turns the meter on, and is nobody's.
                0 => 20_000_000,
                _ if n % 200 == 0 => ALLOWANCE_NS + 3_000,
                _ => ALLOWANCE_NS - 1_000,
            };
            street.pipes[2].hole_ns.store(ns, Ordering::Relaxed);
            let away = if n % 10 == 5 { 4_000_000 } else { 0 };
            street.pipes[2].away_ns.store(away, Ordering::Relaxed);
            street.ping(|street| {
                street.world.put(2, &street.pipes[2], nobody);
            });
            assert_eq!(street.pipes[2].left(), 0, "after {n}");
        }
        assert_eq!(street.condemned(), []);
        assert_eq!((street.stalled_ns(0), street.stalled_ns(1)), (0, 0));
        let stalled = street.stalled_ns(2);
        // What was beyond the allowance, and not the time without a core.
        assert!((3_000..=50 * 4_000).contains(&stalled), "{stalled}");
        street.end();
    });
}

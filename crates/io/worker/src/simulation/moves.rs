//! What moves from worker to worker, and who is late meanwhile.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use windlass_bridge::fdb::{Key, Limits};

use super::model::{IP, Stage};
use super::port::{Bytes, Pipe};
use super::within;
use super::world::World;
use crate::dataplane::{BridgeTuning, DataPlaneError, MemberTuning};

/// Longer than anybody is waited for.
const LONG_NS: u64 = 20_000_000_000;

/// A world of two workers and one bridge, whose table is at home with the first, and two members, one with each worker.
fn pair() -> (Rc<World>, u16, [Arc<Pipe>; 2]) {
    let world = World::start(1, 2, 8);
    let mut plane = world.plane.take().expect("the control thread rests");
    let bridge = plane.add_bridge(BridgeTuning::default(), Limits::new(64, [1, 7]));
    assert_eq!(plane.placement().home(bridge), 0);
    world.plane.replace(Some(plane));
    world.bridges.borrow_mut().push((bridge, 0));
    world.run_until_quiet();
    let pipes = [0, 1].map(|_| world.join(bridge, usize::MAX));
    world.run_until_quiet();
    (world, bridge, pipes)
}

impl World {
    /// The first member sends to the second one, and the frame arrives, or not before all rests.
    fn passes(self: &Rc<World>, pipe: &Pipe) -> bool {
        let dst = self.model.borrow().owners[1].mac;
        let number = self.put(0, pipe, dst);
        self.run_until_quiet();
        self.model.borrow().has(1, number)
    }

    /// Tells the data plane what a member may do.
    fn set(&self, at: usize) {
        let mut plane = self.plane.take().expect("the control thread rests");
        let number = self.model.borrow().owners[at].number;
        let done = plane.set_member(number, self.conf(at), MemberTuning::default());
        done.expect("it is there");
        self.plane.replace(Some(plane));
    }

    fn finish(self: Rc<World>) {
        self.run_until_quiet();
        self.check();
        self.check_tables();
        drop(self.plane.take());
        World::end();
    }
}

/// Whichever of the two workers is late, a ring stays where it is, and is served there when the worker is back. With nobody
/// late it is moved, to and fro.
#[test]
fn late_workers_refuse_rings() {
    within(|| {
        let (world, _, pipes) = pair();
        let number = world.model.borrow().owners[0].number;
        for late in [0, 1] {
            let mut plane = world.plane.take().expect("the control thread rests");
            world.hold_back(late, LONG_NS);
            let refused = plane.move_ring(number, 0, 1);
            assert!(
                matches!(refused, Err(DataPlaneError::Stuck)),
                "worker {late}"
            );
            assert_eq!(plane.rings(number), [0]);
            assert_eq!(plane.workers()[0].rings, 1, "worker {late}");
            world.plane.replace(Some(plane));
            assert!(world.passes(&pipes[0]), "worker {late} is back");
        }
        for worker in [1, 1, 0, 1] {
            let mut plane = world.plane.take().expect("the control thread rests");
            let moved = plane.move_ring(number, 0, worker);
            moved.expect("nobody is late");
            world.plane.replace(Some(plane));
            assert!(world.passes(&pipes[0]), "worker {worker} serves it");
            world.check();
        }
        let mut plane = world.plane.take().expect("the control thread rests");
        let ring = plane.move_ring(number, 1, 0);
        assert!(matches!(
            ring,
            Err(DataPlaneError::NoRing { ring: 1, rings: 1 })
        ));
        let worker = plane.move_ring(number, 0, 2);
        assert!(matches!(
            worker,
            Err(DataPlaneError::NoWorker { worker: 2, last: 1 })
        ));
        world.plane.replace(Some(plane));
        world.finish();
    });
}

/// A ring whose frames still wait for a receiver is not handed over before they are sent: neither those that were spilled, nor
/// floods. What follows comes behind them.
#[test]
fn frames_go_before_their_ring() {
    within(|| {
        let (world, _, pipes) = pair();
        let number = world.model.borrow().owners[0].number;
        let dst = world.model.borrow().owners[1].mac;
        for (round, dst) in [dst, (1 << 48) - 1, dst].into_iter().enumerate() {
            let sink = world.model.borrow().owners[1].sink.clone();
            let sink = sink.expect("it is attached");
            sink.hold(true);
            let before = world.put(0, &pipes[0], dst);
            let from = world
                .plane
                .borrow()
                .as_ref()
                .expect("it rests")
                .rings(number)[0];
            while world.work(from.into()) {
                if world.held() > 0 {
                    break;
                }
            }
            assert_eq!(world.held(), 1, "round {round}");
            let mut plane = world.plane.take().expect("the control thread rests");
            if round == 0 {
                let receiver = world.model.borrow().owners[1].number;
                let totals = plane.totals(receiver).expect("a member");
                assert_eq!(totals.egress.held, 1);
            }
            let refused = plane.move_ring(number, 0, 1 - from);
            assert!(
                matches!(refused, Err(DataPlaneError::Stuck)),
                "round {round}"
            );
            assert_eq!(plane.rings(number), [from]);
            sink.hold(false);
            let moved = plane.move_ring(number, 0, 1 - from);
            // The former worker may not have seen yet that it was taken back.
            let moved = moved.or_else(|_| plane.move_ring(number, 0, 1 - from));
            moved.expect("nobody is late");
            world.plane.replace(Some(plane));
            let after = world.put(0, &pipes[0], dst);
            world.run_until_quiet();
            for number in [before, after] {
                assert!(world.model.borrow().has(1, number), "round {round}");
            }
            world.check();
        }
        world.finish();
    });
}

/// Workers that rest have nothing in private memory: it was sent in time, or dropped, and counted. They fetch nothing, also not
/// of a ring that is attached meanwhile, and send nothing of the daemon's, until they are told to go on.
#[test]
fn a_rest_leaves_nothing_and_fetches_nothing() {
    within(|| {
        let (world, bridge, pipes) = pair();
        let unicast = world.model.borrow().owners[1].mac;
        let others = [unicast, (1 << 48) - 1];
        for (dst, is_late) in others
            .into_iter()
            .flat_map(|dst| [(dst, false), (dst, true)])
        {
            let sink = world.model.borrow().owners[1].sink.clone();
            let sink = sink.expect("it is attached");
            sink.hold(true);
            let number = world.put(0, &pipes[0], dst);
            while world.work(0) && world.held() == 0 {}
            assert_eq!(world.held(), 1);
            sink.hold(is_late);
            let mut plane = world.plane.take().expect("the control thread rests");
            let dropped = plane
                .rest(Duration::from_micros(100))
                .expect("nobody is late");
            assert_eq!(dropped, u64::from(is_late));
            let receiver = world.model.borrow().owners[1].number;
            let totals = plane.totals(receiver).expect("a member");
            assert!(totals.conserved() && totals.egress.held == 0, "{totals:?}");
            let done = plane.send(receiver, &[0; 60]);
            done.expect("it is taken");
            world.plane.replace(Some(plane));
            assert_eq!(world.held(), 0);
            sink.hold(false);
            let next = world.put(0, &pipes[0], unicast);
            let joined = world.join(bridge, usize::MAX);
            let at = world.model.borrow().owners.len() - 1;
            let of_joined = world.put(at, &joined, unicast);
            world.run_until_quiet();
            assert_eq!(world.model.borrow().has(1, number), !is_late);
            for number in [next, of_joined] {
                assert!(!world.model.borrow().has(1, number), "they rest");
            }
            let mut plane = world.plane.take().expect("the control thread rests");
            plane.go_on();
            world.plane.replace(Some(plane));
            world.run_until_quiet();
            for number in [next, of_joined] {
                assert!(world.model.borrow().has(1, number), "they go on");
            }
        }
        world.finish();
    });
}

/// What the daemon sent out of a member and still waits, be it spilled or queued, goes before the table is handed over to the
/// worker that sends the next frame.
#[test]
fn the_daemons_frames_go_before_their_table() {
    within(|| {
        let (world, bridge, _) = pair();
        let number = world.model.borrow().owners[0].number;
        let sink = world.model.borrow().owners[0].sink.clone();
        let sink = sink.expect("it is attached");
        for maxbw in [0, 1_000_000, 0] {
            let is_spilled = maxbw == 0;
            let mut plane = world.plane.take().expect("the control thread rests");
            let tuning = MemberTuning {
                maxbw,
                ..MemberTuning::default()
            };
            let set = plane.set_member(number, world.conf(0), tuning);
            set.expect("it is there");
            sink.hold(is_spilled);
            assert!((0..8).all(|_| world.send_one(&mut plane, 0)));
            let from = plane.placement().home(bridge);
            world.plane.replace(Some(plane));
            while world.work(from.into()) {
                if world.held() > 0 {
                    break;
                }
            }
            assert_ne!(world.held(), 0, "limit {maxbw}");
            let mut plane = world.plane.take().expect("the control thread rests");
            if is_spilled {
                let refused = plane.move_home(bridge, 1 - from);
                assert!(matches!(refused, Err(DataPlaneError::Stuck)));
                assert_eq!(plane.placement().home(bridge), from);
                sink.hold(false);
            }
            let moved = plane.move_home(bridge, 1 - from);
            moved.expect("nobody is late");
            assert!(world.send_one(&mut plane, 0));
            world.plane.replace(Some(plane));
            assert_eq!(world.held(), 0, "limit {maxbw}");
            world.run_until_quiet();
            world.check();
            world.check_tables();
        }
        world.finish();
    });
}

/// A table has its writer whatever becomes of its home: while that is late, also when the bridge gets another table meanwhile
/// (what is asked of it is done when it is back), and when a worker is relieved of all that it served.
#[test]
fn a_table_always_has_a_writer() {
    within(|| {
        let (world, bridge, pipes) = pair();
        let knows = |world: &World, mac| {
            let plane = world.plane.take().expect("the control thread rests");
            let knows = plane.ask_fdb(bridge, move |writer, now| {
                let mut keys = Vec::new();
                writer.table().for_each(now, |entry| keys.push(entry.key));
                keys.contains(&Key::new(0, mac))
            });
            world.plane.replace(Some(plane));
            knows.expect("the home answers")
        };
        // The second worker reports an address to a home that is late, and that gets another table meanwhile.
        world.hold_back(0, LONG_NS);
        let mut plane = world.plane.take().expect("the control thread rests");
        world.refill(&mut plane, bridge, 0);
        let refused = plane.move_home(bridge, 1);
        assert!(matches!(refused, Err(DataPlaneError::Stuck)));
        assert_eq!(plane.placement().home(bridge), 0);
        world.plane.replace(Some(plane));
        world.run_until_quiet();
        world.check_tables();
        world.model.borrow_mut().owners[1].may_use_others = true;
        world.set(1);
        let learn = |n: u8| {
            let mac = u64::from_le_bytes([6, 0, 0, 0, 0, n, 0, 0]);
            let (dst, src) = ((1 << 48) - 1, mac);
            let mut model = world.model.borrow_mut();
            let number = model.make(1, pipes[1].number, dst, src, IP);
            drop(model);
            let kind = IP;
            world.put_frame(
                &pipes[1],
                Bytes {
                    dst,
                    src,
                    kind,
                    number,
                },
            );
            world.run_until_quiet();
            mac
        };
        let first = learn(1);
        assert!(knows(&world, first), "learned in the new table");
        // The first worker is relieved of everything.
        let number = world.model.borrow().owners[0].number;
        let mut plane = world.plane.take().expect("the control thread rests");
        plane.move_home(bridge, 1).expect("nobody is late");
        plane.move_ring(number, 0, 1).expect("nobody is late");
        assert_eq!(plane.serving(bridge).into_iter().collect::<Vec<_>>(), [1]);
        world.plane.replace(Some(plane));
        world.hold_back(0, LONG_NS);
        let second = learn(2);
        assert!(knows(&world, second), "the new home learns");
        world.check_tables();
        // It can go and come back.
        let mut plane = world.plane.take().expect("the control thread rests");
        world.hold_back(0, 0);
        plane.move_home(bridge, 0).expect("nobody is late");
        world.plane.replace(Some(plane));
        let third = learn(3);
        assert!([first, second, third].iter().all(|mac| knows(&world, *mac)));
        assert_eq!(world.model.borrow().all(|stage| stage == Stage::Up), [0, 1]);
        world.finish();
    });
}

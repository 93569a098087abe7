//! Frames above what their sender may send: they wait before their bridge decides, and what happens meanwhile.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use windlass_bridge::fdb::Limits;
use windlass_stats::Drop;

use super::model::RESERVED;
use super::port::Pipe;
use super::within;
use super::world::World;
use crate::dataplane::{BridgeTuning, MemberTuning};

/// What the sender may send, in bits a second, and the time that one of its frames takes of it.
const MAXBW: u64 = 1_000_000;
const FRAME_NS: u64 = 60 * 8 * 1000;
/// Frames at a time: twice as many wait for nearly the longest that a frame may.
const FRAMES: usize = 90;
const BROADCAST: u64 = (1 << 48) - 1;

/// Two workers, a member with each, and one that receives.
struct Street {
    world: Rc<World>,
    pipes: Vec<Arc<Pipe>>,
    /// What the first member has sent to the second, to the daemon, and to all.
    sent: Vec<u64>,
    heard: u64,
}

impl Street {
    fn new() -> Street {
        let world = World::start(1, 2, 8);
        let mut plane = world.plane.take().expect("the control thread rests");
        let bridge = plane.add_bridge(BridgeTuning::default(), Limits::new(64, [1, 7]));
        world.plane.replace(Some(plane));
        world.bridges.borrow_mut().push((bridge, 0));
        world.run_until_quiet();
        let pipes = (0..2).map(|_| world.join(bridge, usize::MAX)).collect();
        world.run_until_quiet();
        Street {
            world,
            pipes,
            sent: Vec::new(),
            heard: 0,
        }
    }

    fn number(&self) -> u16 {
        self.world.model.borrow().owners[0].number
    }

    fn set(&self, maxbw: u64) {
        let mut plane = self.world.plane.take().expect("the control thread rests");
        let tuning = MemberTuning {
            maxbw,
            ..MemberTuning::default()
        };
        let set = plane.set_member(self.number(), self.world.conf(0), tuning);
        set.expect("it is there");
        self.world.plane.replace(Some(plane));
    }

    /// The first member sends to the second, and now and then to all and to the daemon.
    fn send(&mut self) {
        let dst = self.world.model.borrow().owners[1].mac;
        for n in 0..FRAMES {
            let dst = match n % 50 {
                7 => RESERVED,
                9 => BROADCAST,
                _ => dst,
            };
            let number = self.world.put(0, &self.pipes[0], dst);
            match dst {
                RESERVED => self.heard += 1,
                _ => self.sent.push(number),
            }
        }
    }

    fn held(&self) -> u64 {
        let plane = self.world.plane.borrow();
        let plane = plane.as_ref().expect("the control thread rests");
        let totals = plane.totals(self.number()).expect("a member");
        assert!(totals.conserved(), "{totals:?}");
        totals.ingress.held
    }

    fn worker(&self) -> u16 {
        let plane = self.world.plane.borrow();
        plane.as_ref().expect("it rests").rings(self.number())[0]
    }

    /// The worker of the first member fetches all that it has sent.
    fn fetch(&self) {
        while self.pipes[0].left() > 0 {
            assert!(self.world.work(self.worker().into()), "it sleeps");
        }
    }

    /// All that was sent has come, in order (which the model sees to), and nothing was dropped.
    fn check(&self) {
        self.world.run_until_quiet();
        self.world.check();
        self.world.check_tables();
        let model = self.world.model.borrow();
        assert!(self.sent.iter().all(|number| model.has(1, *number)));
        assert_eq!(model.heard, self.heard, "what the daemon got");
        let plane = self.world.plane.borrow();
        let plane = plane.as_ref().expect("the control thread rests");
        let totals = plane.totals(self.number()).expect("a member");
        assert_eq!(totals.drops[Drop::RxQueueFull as usize], 0, "{totals:?}");
    }

    fn end(self) {
        self.check();
        drop(self.world.plane.take());
        World::end();
    }
}

/// Frames above the limit go at their time, in order, and to whom they would have gone.
#[test]
fn held_frames_go_at_their_time() {
    within(|| {
        let mut street = Street::new();
        street.set(MAXBW);
        for _ in 0..3 {
            let began = street.world.now.get();
            street.send();
            street.fetch();
            let held = street.held();
            assert!(held > FRAMES as u64 / 2, "{held}");
            street.check();
            let took = street.world.now.get() - began;
            let least = FRAME_NS * (FRAMES as u64 - 4);
            assert!((least..least * 3 / 2).contains(&took), "{took} ns");
        }
        street.end();
    });
}

/// A ring whose frames wait is handed over when they have gone; what follows comes behind them. Nothing is lost.
#[test]
fn held_frames_go_before_their_ring() {
    within(|| {
        let mut street = Street::new();
        street.set(MAXBW);
        for _ in 0..4 {
            street.send();
            street.fetch();
            assert_ne!(street.held(), 0);
            let from = street.worker();
            let mut plane = street.world.plane.take().expect("the control thread rests");
            let moved = plane.move_ring(street.number(), 0, 1 - from);
            moved.expect("nobody is late");
            street.world.plane.replace(Some(plane));
            assert_eq!((street.held(), street.worker()), (0, 1 - from));
            street.send();
            street.check();
        }
        street.end();
    });
}

/// A list of stages that is replaced while frames wait, with one that holds and one without: nothing is lost, and what waits goes first.
#[test]
fn a_list_is_replaced_under_traffic() {
    within(|| {
        let mut street = Street::new();
        for maxbw in [MAXBW, 0, MAXBW, 10 * MAXBW, MAXBW, 0] {
            street.set(MAXBW);
            street.send();
            street.fetch();
            assert_ne!(street.held(), 0);
            street.set(maxbw);
            street.send();
            if maxbw == 0 {
                street.fetch();
                street.world.work(street.worker().into());
                assert_eq!(street.held(), 0, "nothing holds them");
            }
            street.check();
        }
        street.end();
    });
}

/// Frames that wait when their sender goes are dropped, and counted.
#[test]
fn held_frames_end_with_their_sender() {
    within(|| {
        let mut street = Street::new();
        street.set(MAXBW);
        street.send();
        street.fetch();
        let held = street.held();
        let mut plane = street.world.plane.take().expect("the control thread rests");
        plane.detach(street.number()).expect("nobody is late");
        let totals = plane.totals(street.number()).expect("a member");
        street.world.plane.replace(Some(plane));
        assert_ne!(held, 0);
        assert_eq!(totals.drops[Drop::NotReady as usize], held, "{totals:?}");
        assert!(totals.conserved() && totals.ingress.held == 0, "{totals:?}");
        drop(street.world.plane.take());
        World::end();
    });
}

/// A worker that is to rest leaves none of them in private memory: what does not become due meanwhile is dropped and counted.
#[test]
fn a_rest_leaves_no_held_frames() {
    within(|| {
        let mut street = Street::new();
        street.set(MAXBW);
        street.send();
        street.fetch();
        let held = street.held();
        assert!(held > 0, "none waits");
        let mut plane = street.world.plane.take().expect("it rests");
        let dropped = plane
            .rest(Duration::from_micros(100))
            .expect("none is late");
        street.world.plane.replace(Some(plane));
        assert_eq!((street.held(), dropped), (0, held));
        let mut plane = street.world.plane.take().expect("it rests");
        let totals = plane.totals(street.number()).expect("a member");
        assert_eq!(totals.drops[Drop::NotReady as usize], held);
        plane.go_on();
        street.world.plane.replace(Some(plane));
        street.world.run_until_quiet();
        drop(street.world.plane.take());
        World::end();
    });
}

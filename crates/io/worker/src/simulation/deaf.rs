//! A member that never reads, and what that does to others.

use std::collections::VecDeque;
use std::rc::Rc;

use windlass_bridge::fdb::Limits;
use windlass_stats::Drop;

use super::within;
use super::world::World;
use crate::dataplane::BridgeTuning;

/// Members: two that exchange frames, one that sends to the last, and that.
const FROM: usize = 0;
const TO: usize = 1;
const FEEDER: usize = 2;
const DEAF: usize = 3;
/// Frames that a peer has room for.
const ROOM: usize = 256;
/// Frames on their way from [`FROM`] to [`TO`] at most; besides, there is room for floods.
const WINDOW: usize = 128;
/// Frames that they exchange.
const FRAMES: usize = 20_000;
/// In each round of the worker the feeder sends so many frames to the deaf one, and so many to everybody.
const FED: [usize; 2] = [24, 8];
const BROADCAST: u64 = (1 << 48) - 1;

/// What the two have seen: things that the worker did in all, and between a frame's sending and its arrival, sorted.
struct Seen {
    events: u64,
    waits: Vec<u64>,
}

/// Exchanges [`FRAMES`] frames as fast as the worker carries them, beside a fourth member that reads, or does not.
fn exchange(reads: bool) -> Seen {
    let world = World::start(1, 1, 4);
    let mut plane = world.plane.take().expect("the control thread rests");
    let bridge = plane.add_bridge(BridgeTuning::default(), Limits::new(1024, [1, 7]));
    world.plane.replace(Some(plane));
    world.run_until_quiet();
    let pipes: Vec<_> = (0..4).map(|_| world.join(bridge, ROOM)).collect();
    world.run_until_quiet();
    let [to, deaf] = [TO, DEAF].map(|at| world.model.borrow().owners[at].mac);
    let events = |world: &Rc<World>| world.model.borrow().events;
    let begun = events(&world);
    let (mut sent, mut on_way, mut waits) = (0, VecDeque::new(), Vec::new());
    while waits.len() < FRAMES {
        while on_way.len() < WINDOW && sent < FRAMES {
            let number = world.put(FROM, &pipes[FROM], to);
            on_way.push_back((number, events(&world)));
            sent += 1;
        }
        for (dst, count) in [deaf, BROADCAST].into_iter().zip(FED) {
            for _ in 0..count {
                if pipes[FEEDER].left() < ROOM {
                    world.put(FEEDER, &pipes[FEEDER], dst);
                }
            }
        }
        assert!(world.work(0), "the worker sleeps, and frames wait");
        let (model, now) = (world.model.borrow(), events(&world));
        while let Some((_, at)) = on_way.pop_front_if(|(number, _)| model.has(TO, *number)) {
            waits.push(now - at);
        }
        for (at, owner) in model.owners.iter().enumerate() {
            if let Some(sink) = owner.sink.as_ref().filter(|_| reads || at != DEAF) {
                sink.drain(usize::MAX);
            }
        }
    }
    let events = events(&world) - begun;
    world.run_until_quiet();
    world.check();
    let plane = world.plane.borrow();
    let dropped = |at: usize, reason: Drop| {
        let number = world.model.borrow().owners[at].number;
        let plane = plane.as_ref().expect("the control thread rests");
        plane.totals(number).expect("a member").drops[reason as usize]
    };
    for at in [FROM, TO] {
        assert_eq!(dropped(at, Drop::RingFull), 0, "member {at}");
    }
    assert_eq!(dropped(DEAF, Drop::RingFull) > 0, !reads);
    drop(plane);
    drop(world.plane.take());
    World::end();
    waits.sort_unstable();
    Seen { events, waits }
}

/// A member that never reads, to which another one sends and floods, costs two others no frame, and neither at the median nor at the 99th
/// percentile more work before a frame arrives than one that reads; what it does not read is counted at it.
#[test]
fn one_that_never_reads_costs_others_nothing() {
    within(|| {
        let [reads, deaf] = [true, false].map(exchange);
        for part in [50, 99, 100] {
            let at = |seen: &Seen| seen.waits[(FRAMES - 1) * part / 100];
            let (reads, deaf) = (at(&reads), at(&deaf));
            assert!(deaf * 10 <= reads * 11, "{part} %: {deaf} beside {reads}");
        }
        assert!(
            deaf.events <= reads.events,
            "{} {}",
            deaf.events,
            reads.events
        );
    });
}

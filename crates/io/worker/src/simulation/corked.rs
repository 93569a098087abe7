//! Small frames that are gathered for members whose ports want runs.

use std::sync::Arc;

use windlass_bridge::fdb::Limits;
use windlass_frame::BURST;

use super::port::{Mood, Sink};
use super::within;
use super::world::World;
use crate::dataplane::BridgeTuning;

/// Receivers.
const REMOTES: usize = 4;
/// Frames for each of them: a burst for all together.
const EACH: u64 = (BURST / REMOTES) as u64;

/// A member sends to several others in turn, and then has no more: what was gathered of it is delivered when the visit that has found that is over.
#[test]
fn nothing_waits_when_its_source_is_drained() {
    within(|| {
        let world = World::start(1, 1, REMOTES + 1);
        let mut plane = world.plane.take().expect("the control thread rests");
        let bridge = plane.add_bridge(BridgeTuning::default(), Limits::new(64, [1, 7]));
        world.plane.replace(Some(plane));
        let pipe = world.join(bridge, usize::MAX);
        for _ in 0..REMOTES {
            let mut sink = Sink::new(0, Mood::Kernel, usize::MAX, 1);
            sink.wants_runs = true;
            world.join_with(bridge, sink);
        }
        world.run_until_quiet();
        let model = world.model.borrow();
        let remotes = model.owners.iter().skip(1);
        let (macs, sinks): (Vec<u64>, Vec<Arc<Sink>>) = remotes
            .filter_map(|remote| Some((remote.mac, remote.sink.clone()?)))
            .unzip();
        drop(model);
        let given = || sinks.iter().map(|sink| sink.taken()).sum::<u64>();
        for _ in 0..50 {
            let all = given() + EACH * REMOTES as u64 + 1;
            for _ in 0..EACH {
                macs.iter().for_each(|mac| _ = world.put(0, &pipe, *mac));
            }
            // The last visit has nothing for the others.
            world.put(0, &pipe, macs[0]);
            let see = || {
                if pipe.left() == 0 {
                    assert_eq!(given(), all, "frames wait though their source is drained");
                }
            };
            while pipe.left() > 0 {
                assert!(world.work_seen(0, see), "the worker sleeps");
            }
            sinks.iter().for_each(|sink| _ = sink.drain(usize::MAX));
        }
        world.run_until_quiet();
        world.check();
        drop(world.plane.take());
        World::end();
    });
}

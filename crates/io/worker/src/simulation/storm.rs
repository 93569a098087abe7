//! Floods on a large bridge, and what they do to others' unicast.

use std::rc::Rc;
use std::sync::Arc;

use windlass_attach::endpoint::Rings;
use windlass_bridge::fdb::{EntryFlags, Key, Limits};
use windlass_bridge::member::MemberConf;
use windlass_frame::TxId;

use super::model::{IP, Owner, Stage};
use super::port::{Bytes, Mood, Notice, Pipe, Receive, Sink};
use super::within;
use super::world::World;
use crate::dataplane::{BridgeTuning, MemberTuning};

/// Members that flood.
const FLOODERS: usize = 500;
/// One fetch from each member, and a part of one flood.
const MOST: u64 = 3 * FLOODERS as u64;
const BROADCAST: u64 = (1 << 48) - 1;

impl World {
    /// Makes the member that comes next, attached, with room for so many frames that its peer has not read; returns its pipe.
    pub(super) fn join(self: &Rc<World>, bridge: u16, room: usize) -> Arc<Pipe> {
        self.join_with(bridge, Sink::new(0, Mood::Kernel, room, 1))
    }

    /// The same, with what its peer receives from.
    pub(super) fn join_with(self: &Rc<World>, bridge: u16, mut sink: Sink) -> Arc<Pipe> {
        let mut plane = self.plane.take().expect("the control thread rests");
        let at = self.model.borrow().owners.len();
        let mut owner = Owner::new(at, 0, 0);
        let mac = owner.mac;
        let mut conf = MemberConf::new(TxId(0), mac);
        conf.storm_limit = 0;
        let made = plane.add_member(bridge, conf, MemberTuning::default());
        owner.number = made.expect("a number");
        let number = owner.number;
        let entered = plane.ask_fdb(bridge, move |writer, now| {
            writer.add_fixed(Key::new(0, mac), number, EntryFlags::LOCAL, now)
        });
        entered.expect("an answer").expect("room");
        let pipe = Arc::new(Pipe::new(at as u64, Notice::Kick, 1024));
        sink.owner = at;
        let sink = Arc::new(sink);
        (owner.pipes, owner.sink) = (vec![pipe.clone()], Some(sink.clone()));
        owner.stage = Stage::Up;
        self.model.borrow_mut().owners.push(owner);
        let rx = vec![Box::new(Receive(pipe.clone())) as _];
        let rings = Rings { rx, tx: sink };
        plane.attach(number, rings).expect("mailboxes with room");
        self.plane.replace(Some(plane));
        pipe
    }

    pub(super) fn put(&self, from: usize, pipe: &Pipe, dst: u64) -> u64 {
        let mut model = self.model.borrow_mut();
        let src = model.owners[from].mac;
        let number = model.make(from, pipe.number, dst, src, IP);
        drop(model);
        let frame = Bytes {
            dst,
            src,
            kind: IP,
            number,
        };
        self.put_frame(pipe, frame);
        number
    }

    pub(super) fn put_frame(&self, pipe: &Pipe, frame: Bytes) {
        assert!(pipe.push(&[frame]), "room");
        pipe.kick();
    }
}

/// 500 members broadcast, some of them more than there is room for. Whatever waits of that, a frame from one member to another
/// is delivered before the worker has done [`MOST`] things (frames fetched and copies made). What is not flooded is counted.
#[test]
fn floods_leave_room_for_unicast() {
    within(storm);
}

fn storm() {
    let world = World::start(1, 1, FLOODERS + 2);
    let mut plane = world.plane.take().expect("the control thread rests");
    let bridge = plane.add_bridge(BridgeTuning::default(), Limits::new(1024, [1, 7]));
    world.plane.replace(Some(plane));
    world.run_until_quiet();
    let pipes: Vec<_> = (0..FLOODERS + 2)
        .map(|_| world.join(bridge, usize::MAX))
        .collect();
    world.run_until_quiet();
    let (from, to) = (FLOODERS, FLOODERS + 1);
    for round in 0..50 {
        for (at, pipe) in pipes.iter().enumerate().take(FLOODERS) {
            let frames = if at < 4 { 8 } else { 1 };
            for _ in 0..frames {
                world.put(at, pipe, BROADCAST);
            }
        }
        let before = world.model.borrow().events;
        let dst = world.model.borrow().owners[to].mac;
        let number = world.put(from, &pipes[from], dst);
        while !world.model.borrow().has(to, number) {
            assert!(world.work(0), "the worker sleeps");
        }
        let done = world.model.borrow().events - before;
        assert!(done <= MOST, "round {round}: {done} things done first");
        let model = world.model.borrow();
        let sinks = model.owners.iter().filter_map(|o| o.sink.as_ref());
        for sink in sinks {
            sink.drain(usize::MAX);
        }
    }
    world.run_until_quiet();
    world.check();
    let plane = world.plane.borrow();
    let totals = |at: usize| {
        let number = world.model.borrow().owners[at].number;
        let plane = plane.as_ref().expect("the control thread rests");
        plane.totals(number).expect("a member")
    };
    // What did not fit is counted, and everyone's turn came.
    let mut not_flooded = 0;
    for at in 0..FLOODERS {
        let (ingress, drops) = (totals(at).ingress, totals(at).drops);
        let backlog = drops[windlass_stats::Drop::FloodBacklog as usize];
        not_flooded += backlog;
        assert_eq!(ingress.flooded + backlog, ingress.frames);
        assert_eq!(ingress.copies, ingress.flooded * (FLOODERS + 1) as u64);
    }
    assert!(not_flooded > 0);
    drop(plane);
    drop(world.plane.take());
    World::end();
}

//! What the control thread does: one thing at a time, through the [`DataPlane`] as the daemon has it.

use std::rc::Rc;
use std::sync::Arc;

use windlass_attach::endpoint::Rings;
use windlass_attach::port::RxPort;
use windlass_bridge::fdb::{EntryFlags, Key, Limits};
use windlass_bridge::member::MemberConf;
use windlass_frame::{Tick, TxId};
use windlass_nic::Protection;

use super::model::{Owner, Stage};
use super::port::{FRAME, Mood, Pipe, Receive, Sink};
use super::world::World;
use crate::dataplane::{BridgeTuning, DataPlane, DataPlaneError, MemberTuning};
use crate::ring::Spin;
use crate::spread::Weights;

/// Owners of one bridge in most simulations.
const FEW: usize = 6;

impl World {
    /// Does one thing, unless the control thread is busy or was cut. True if it did it.
    pub(super) fn configure(self: &Rc<World>) -> bool {
        let Some(mut plane) = self.plane.take() else {
            return false;
        };
        self.change(&mut plane);
        self.plane.replace(Some(plane));
        true
    }

    /// Makes a bridge or two with owners, so that there is something to do.
    pub(super) fn populate(self: &Rc<World>) {
        let mut plane = self.plane.take().expect("the control thread rests");
        for _ in 0..=self.below(2) {
            self.change_bridges(&mut plane);
        }
        let owners = match self.is_crowded.get() {
            true => 2 * FEW,
            false => 2 + self.below(FEW),
        };
        for _ in 0..owners {
            self.make_owner(&mut plane);
        }
        let down = self.model.borrow().all(|stage| stage == Stage::Down);
        down.iter().for_each(|at| self.attach(&mut plane, *at));
        self.plane.replace(Some(plane));
    }

    fn change(self: &Rc<World>, plane: &mut DataPlane) {
        let owners = self.model.borrow().all(|stage| stage != Stage::Gone);
        if self.below(12) == 0 || self.is_restless.get() && self.below(2) == 0 {
            return self.move_something(plane);
        }
        if self.below(12) == 0 || self.bridges.borrow().is_empty() {
            return self.change_bridges(plane);
        }
        if owners.is_empty() || self.below(6) == 0 {
            return self.make_owner(plane);
        }
        let unsettled = self
            .model
            .borrow()
            .all(|stage| !matches!(stage, Stage::Up | Stage::Gone));
        let of = match unsettled.is_empty() || self.below(2) == 0 {
            true => &owners,
            false => &unsettled,
        };
        let at = of[self.below(of.len())];
        let (stage, number) = {
            let model = self.model.borrow();
            (model.owners[at].stage, model.owners[at].number)
        };
        match (stage, self.below(7)) {
            (Stage::Made, _) => self.enter(plane, at),
            (Stage::Down, 0) => self.remove(plane, at),
            (Stage::Down, _) => self.attach(plane, at),
            (Stage::Up, 0..2) => self.detach(plane, at),
            (Stage::Up, 2) => self.flush(plane, at),
            (Stage::Up, 3) => {
                let tuning = self.tuning(at);
                let conf = self.conf(at);
                plane.set_member(number, conf, tuning).expect("it is there");
            }
            (Stage::Up, 4) => self.send_own(plane, at),
            (Stage::Up, 5) => self.remove(plane, at),
            (Stage::Up, _) => self.end_the_dead(plane),
            (Stage::Leaving, _) => self.end_the_late(plane),
            (Stage::Going, _) => self.remove(plane, at),
            (Stage::Gone, _) => {}
        }
    }

    /// Makes a bridge, or removes an empty one.
    pub(super) fn change_bridges(&self, plane: &mut DataPlane) {
        let bridges = self.bridges.borrow().clone();
        let used = |bridge: usize| {
            let model = self.model.borrow();
            let mut owners = model.owners.iter();
            owners.any(|o| o.bridge == bridge && o.stage != Stage::Gone)
        };
        if let Some(&(number, bridge)) = bridges.iter().find(|b| !used(b.1))
            && bridges.len() > 1
        {
            self.bridges.borrow_mut().retain(|b| b.1 != bridge);
            self.leaving.set(Some(number));
        }
        // One that is late to go is asked to go until it does.
        if let Some(number) = self.leaving.get() {
            if plane.remove_bridge(number).is_ok() {
                self.leaving.set(None);
            }
            return;
        }
        if bridges.len() < 2 {
            let limits = Limits::new(64, [self.below(1000) as u64, 7]);
            let number = plane.add_bridge(BridgeTuning::default(), limits);
            let made = self.bridges_made.get();
            self.bridges_made.set(made + 1);
            self.bridges.borrow_mut().push((number, made));
        }
    }

    /// Has another worker serve a ring or a table, or gives a bridge another table.
    fn move_something(&self, plane: &mut DataPlane) {
        let up = self.model.borrow().all(|stage| stage == Stage::Up);
        let bridges = self.bridges.borrow().clone();
        let worker = self.below(usize::from(plane.placement().workers())) as u16;
        let before = plane.placement().clone();
        let moved = match self.below(8) {
            0 | 1 if !bridges.is_empty() => {
                let (bridge, _) = bridges[self.below(bridges.len())];
                let done = plane.move_home(bridge, worker);
                let is_there = plane.placement().home(bridge) == worker;
                assert!(done.is_err() || is_there);
                done
            }
            2 if !bridges.is_empty() => {
                let (number, bridge) = bridges[self.below(bridges.len())];
                return self.refill(plane, number, bridge);
            }
            _ if !up.is_empty() => {
                let at = up[self.below(up.len())];
                let (number, _, _) = self.place(at);
                let ring = self.below(plane.rings(number).len());
                let done = plane.move_ring(number, ring as u16, worker);
                assert!(done.is_err() || plane.rings(number)[ring] == worker);
                done
            }
            _ => return,
        };
        if let Err(error) = moved {
            let may_be = matches!(error, DataPlaneError::Stuck | DataPlaneError::NotMoved(_));
            assert!(may_be, "{error}");
            assert_eq!(*plane.placement(), before, "a refused move changes nothing");
        }
    }

    /// Gives a bridge another table, with the addresses of its owners.
    pub(super) fn refill(&self, plane: &mut DataPlane, number: u16, bridge: usize) {
        let mut writer = plane.new_table(Limits::new(64, [self.below(1000) as u64, 7]));
        for owner in &mut self.model.borrow_mut().owners {
            if owner.bridge != bridge {
                continue;
            }
            owner.flushed = u64::MAX;
            if !matches!(owner.stage, Stage::Made | Stage::Going | Stage::Gone) {
                let (key, now) = (Key::new(0, owner.mac), Tick(self.now.get()));
                let entered = writer.add_fixed(key, owner.number, EntryFlags::LOCAL, now);
                entered.expect("an empty table has room");
            }
        }
        let tuning = BridgeTuning::default();
        let set = plane.set_bridge(number, tuning, Some(writer));
        set.expect("it is there");
        // What the former rules let in is forgotten by now, unless a worker was late.
        if let Ok(now) = plane.ask_fdb(number, |_, now| now) {
            for owner in &mut self.model.borrow_mut().owners {
                if owner.bridge == bridge && owner.flushed == u64::MAX {
                    owner.flushed = now.0.max(self.now.get());
                }
            }
        }
    }

    fn tuning(&self, at: usize) -> MemberTuning {
        let protection = Protection {
            restricted: self.model.borrow().owners[at].is_restricted,
            ..Protection::default()
        };
        MemberTuning {
            firewall: None,
            protection: protection.into(),
            trusted: false,
            maxbw: [0, 0, 10_000_000, 200_000_000][self.below(4)],
            flows: Vec::new(),
            priority: Default::default(),
            weights: Weights::new([&[][..], &[1, 0], &[3, 1]][self.below(3)]),
            kick_gap_ns: [0, 0, 30_000][self.below(3)],
            spin: [Spin::default(), Spin::Always(3_000)][self.below(2)],
        }
    }

    pub(super) fn conf(&self, at: usize) -> MemberConf {
        let model = self.model.borrow();
        let owner = &model.owners[at];
        let mut conf = MemberConf::new(TxId(0), owner.mac);
        conf.nospoof = !owner.may_use_others;
        conf.storm_limit = 0;
        conf
    }

    fn make_owner(&self, plane: &mut DataPlane) {
        let bridges = self.bridges.borrow().clone();
        let (number, bridge) = bridges[self.below(bridges.len())];
        let mut model = self.model.borrow_mut();
        let owners = model.owners.iter();
        let there = owners.filter(|o| o.bridge == bridge && o.stage != Stage::Gone);
        let most = if self.is_crowded.get() { 3 * FEW } else { FEW };
        if there.count() >= most {
            return;
        }
        let at = model.owners.len();
        let mut owner = Owner::new(at, bridge, self.now.get());
        owner.may_use_others = self.below(2) == 0;
        owner.is_restricted = self.below(4) == 0;
        model.owners.push(owner);
        drop(model);
        let id = plane.add_member(number, self.conf(at), self.tuning(at));
        self.model.borrow_mut().owners[at].number = id.expect("a number");
        self.enter(plane, at);
    }

    /// The daemon sends frames out of a member, more than may wait now and then.
    fn send_own(&self, plane: &mut DataPlane, at: usize) {
        for _ in 0..=self.below([4, 80][self.below(2)]) {
            if !self.send_one(plane, at) {
                return;
            }
        }
    }

    /// The daemon sends a frame out of a member. False if too many wait.
    pub(super) fn send_one(&self, plane: &mut DataPlane, at: usize) -> bool {
        let mut model = self.model.borrow_mut();
        let number = model.make_own(at);
        let mut frame = [0; FRAME];
        frame[14..22].copy_from_slice(&number.to_le_bytes());
        match plane.send(model.owners[at].number, &frame) {
            Ok(()) => model.owners[at].own += 1,
            Err(DataPlaneError::Busy) => return false,
            Err(error) => panic!("owner {at}: {error}"),
        }
        true
    }

    /// Enters an owner's own address.
    fn enter(&self, plane: &mut DataPlane, at: usize) {
        let (number, bridge, mac) = self.place(at);
        let done = plane.ask_fdb(bridge, move |writer, now| {
            writer.add_fixed(Key::new(0, mac), number, EntryFlags::LOCAL, now)
        });
        if let Ok(Ok(())) = done {
            let mut model = self.model.borrow_mut();
            let event = model.event();
            model.owners[at].entered = Some(event);
            model.owners[at].stage = Stage::Down;
        }
    }

    /// An owner's number, its bridge's number, and its address.
    fn place(&self, at: usize) -> (u16, u16, u64) {
        let model = self.model.borrow();
        let owner = &model.owners[at];
        let bridges = self.bridges.borrow();
        let bridge = bridges.iter().find(|b| b.1 == owner.bridge);
        (owner.number, bridge.expect("its bridge").0, owner.mac)
    }

    fn attach(&self, plane: &mut DataPlane, at: usize) {
        let rings = 1 + self.below(2);
        let pipe = |_| {
            self.pipes_made.set(self.pipes_made.get() + 1);
            let capacity = [8, 64, 256][self.below(3)];
            Arc::new(Pipe::new(self.pipes_made.get(), self.notice(), capacity))
        };
        let pipes: Vec<_> = (0..rings).map(pipe).collect();
        let mood = [Mood::Sleeps, Mood::Sleeps, Mood::Kernel][self.below(3)];
        let capacity = [4, 64, 256][self.below(3)];
        let mut sink = Sink::new(at, mood, capacity, 1 + self.below(2));
        sink.wants_runs = self.below(2) == 0;
        let sink = Arc::new(sink);
        let receive = |pipe: &Arc<Pipe>| Box::new(Receive(pipe.clone())) as Box<dyn RxPort>;
        let rx = pipes.iter().map(receive).collect();
        let mut model = self.model.borrow_mut();
        let owner = &mut model.owners[at];
        let number = owner.number;
        (owner.pipes, owner.sink) = (pipes, Some(sink.clone()));
        owner.stage = Stage::Up;
        drop(model);
        plane
            .attach(number, Rings { rx, tx: sink })
            .expect("mailboxes with room");
    }

    /// Asks an owner's rings back. If a worker is late, it is leaving until that worker has let go.
    fn detach(&self, plane: &mut DataPlane, at: usize) {
        let (number, _, _) = self.place(at);
        self.model.borrow_mut().owners[at].stage = Stage::Leaving;
        match plane.detach(number) {
            Ok(()) => self.give_back(at),
            Err(DataPlaneError::Stuck) => {}
            Err(error) => panic!("owner {at}: {error}"),
        }
    }

    /// No worker has an owner's rings any more.
    fn give_back(&self, at: usize) {
        let mut model = self.model.borrow_mut();
        let owner = &mut model.owners[at];
        owner.pipes.iter().for_each(|pipe| pipe.give_back());
        owner.pipes.clear();
        if let Some(sink) = owner.sink.take() {
            sink.give_back();
            owner.given += sink.taken();
        }
        owner.stage = Stage::Down;
    }

    /// Removes an owner, with the rings that it has.
    fn remove(&self, plane: &mut DataPlane, at: usize) {
        let (number, _, _) = self.place(at);
        self.model.borrow_mut().owners[at].stage = Stage::Going;
        match plane.remove_members(&[number]) {
            Ok(totals) => {
                self.give_back(at);
                let owner = &mut self.model.borrow_mut().owners[at];
                owner.stage = Stage::Gone;
                owner.local = totals.iter().map(|t| t.ingress.local).sum();
            }
            Err(DataPlaneError::Stuck) => {}
            Err(error) => panic!("owner {at}: {error}"),
        }
    }

    fn flush(&self, plane: &mut DataPlane, at: usize) {
        let (number, bridge, _) = self.place(at);
        // Until it is done, nobody knows what the table holds.
        self.model.borrow_mut().owners[at].flushed = u64::MAX;
        let done = plane.ask_fdb(bridge, move |writer, now| {
            writer.flush_member(number, false);
            now
        });
        if let Ok(now) = done {
            self.model.borrow_mut().owners[at].flushed = now.0.max(self.now.get());
        }
    }

    /// Takes the rings back that late workers have let go.
    fn end_the_late(&self, plane: &mut DataPlane) {
        for number in plane.take_detached() {
            let model = self.model.borrow();
            let mut owners = model.owners.iter();
            // One that is being removed is asked for again.
            let at = owners.position(|o| o.number == number && o.stage == Stage::Leaving);
            drop(model);
            if let Some(at) = at {
                self.give_back(at);
            }
        }
    }

    /// When all rests, no worker has anything that was asked back.
    pub(super) fn check_drains(&self) {
        let mut plane = self.plane.take().expect("the control thread rests");
        self.end_the_late(&mut plane);
        assert!(
            !plane.is_draining(),
            "a worker that sleeps has let nothing go"
        );
        let leaving = self.model.borrow().all(|stage| stage == Stage::Leaving);
        assert!(leaving.is_empty(), "owners {leaving:?} were never told");
        self.plane.replace(Some(plane));
    }

    /// Takes the rings back that workers found dead.
    fn end_the_dead(&self, plane: &mut DataPlane) {
        let mut found = Vec::new();
        for dead in plane.take_condemned() {
            let model = self.model.borrow();
            let mut owners = model.owners.iter();
            let at = owners.position(|o| o.number == dead.member && o.stage == Stage::Up);
            let at = at.expect("only who is attached is condemned");
            let is_dead = model.owners[at].pipes.iter().any(|pipe| pipe.is_dead());
            assert!(is_dead, "owner {at} is condemned for a former attachment");
            found.push(at);
        }
        found.dedup();
        found.iter().for_each(|at| self.detach(plane, *at));
    }
}

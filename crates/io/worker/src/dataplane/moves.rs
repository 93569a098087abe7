//! Moving what one worker serves to another, while frames pass.
//!
//! # Failure modes
//! Both workers have to answer: the next one before anything is asked of the former one, that one within [`GRACE_MAX`]. Otherwise
//! the move is withdrawn, and everything is where it was.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use windlass_attach::port::Lane;

use super::{DataPlane, DataPlaneError, GRACE_MAX};
use crate::command::Command;
use crate::placement::Placement;
use crate::spread::{self, RINGS_MAX};
use crate::worker::{Handed, Handover};

impl DataPlane {
    /// Which worker serves what.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The workers of a member's rings, while somebody is attached.
    pub fn rings(&self, id: u16) -> &[u16] {
        let member = self.members.get(usize::from(id)).and_then(Option::as_ref);
        let rings = member.map_or(0, |member| usize::from(member.rings));
        self.placement.rings(id).get(..rings).unwrap_or(&[])
    }

    /// How each worker shares what it sends a member among the member's rings: entries of its table ([`spread`]), by ring. None: the member
    /// has no rings to choose from.
    pub fn shares(&self, id: u16) -> Option<Vec<[usize; RINGS_MAX]>> {
        let member = self.members.get(usize::from(id))?.as_ref()?;
        let tx = member.tx.as_ref().filter(|tx| tx.has_choice())?;
        let workers = self.workers.len() as u16;
        let lanes = (0..workers).map(|worker| Lane { worker, workers });
        let shares = lanes.map(|lane| spread::shares(tx.choices(lane), member.tuning.weights));
        Some(shares.collect())
    }

    /// The workers that serve a bridge: the home of its table, and those of its members' rings.
    pub fn serving(&self, bridge: u16) -> BTreeSet<u16> {
        let here = |id: &u16| {
            let member = self.members.get(usize::from(*id)).and_then(Option::as_ref);
            member.is_some_and(|member| member.bridge == bridge)
        };
        let ids = (0..self.members.len() as u16).filter(here);
        let rings = ids.flat_map(|id| self.rings(id).iter().copied());
        rings.chain([self.placement.home(bridge)]).collect()
    }

    /// Has another worker serve a ring of a member. No frame is lost, and none of a flow overtakes another.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`], [`DataPlaneError::NoRing`], [`DataPlaneError::NoWorker`]; [`DataPlaneError::Stuck`]: a worker is late;
    /// [`DataPlaneError::NotMoved`]. Nothing has changed.
    pub fn move_ring(&mut self, id: u16, ring: u16, worker: u16) -> Result<(), DataPlaneError> {
        let rings = self.draft_member(id)?.rings;
        let from = self.rings(id).get(usize::from(ring)).copied();
        let from = from.ok_or(DataPlaneError::NoRing { ring, rings })?;
        self.hand_over(from, worker, |handover| Command::MoveRing {
            member: id,
            ring,
            to: worker,
            handover,
        })?;
        self.take_local_of(from);
        Arc::make_mut(&mut self.placement).move_ring(id, usize::from(ring), worker);
        self.publish_built();
        Ok(())
    }

    /// Has another worker write a bridge's table, and send what [`DataPlane::send`] is given for its members. The table has a writer at
    /// any time, and no frame overtakes another.
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`], else as [`DataPlane::move_ring`].
    pub fn move_home(&mut self, bridge: u16, worker: u16) -> Result<(), DataPlaneError> {
        self.draft_bridge(bridge)?;
        let from = self.placement.home(bridge);
        self.hand_over(from, worker, |handover| Command::MoveHome {
            bridge,
            to: worker,
            handover,
        })?;
        Arc::make_mut(&mut self.placement).move_home(bridge, worker);
        self.publish_built();
        Ok(())
    }

    fn hand_over(
        &mut self,
        from: u16,
        to: u16,
        command: impl FnOnce(Arc<Handover>) -> Command,
    ) -> Result<(), DataPlaneError> {
        let (worker, last) = (to, self.placement.workers() - 1);
        let next = self.workers.get(usize::from(to));
        let next = next.ok_or(DataPlaneError::NoWorker { worker, last })?;
        if from == to {
            return Ok(());
        }
        // One that is known to be late is not waited for again.
        if self.is_late {
            return Err(DataPlaneError::Stuck);
        }
        let (done, answer) = sync_channel(1);
        next.send(Command::Ready(done));
        self.answer(next, &answer)?;
        let (handover, former) = (
            Arc::new(Handover::default()),
            &self.workers[usize::from(from)],
        );
        former.send(command(handover.clone()));
        self.wait.until(GRACE_MAX, &mut || {
            former.flush();
            handover.is_over()
        });
        match handover.withdraw() {
            Handed::Done => Ok(()),
            Handed::Refused => Err(DataPlaneError::NotMoved(from)),
            Handed::Withdrawn => Err(DataPlaneError::Stuck),
        }
    }
}

//! Members that learn which addresses they are given, and members that are believed.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use windlass_bridge::member::MemberConf;
use windlass_frame::Tick;
use windlass_nic::{Conf, Holders, Learner, Lease};

use super::draft::{DraftBridge, DraftMember};
use super::{DataPlane, DataPlaneError};

/// The VLAN of what a member learns; none without an untagged one.
fn untagged(bridge: &DraftBridge, member: &MemberConf) -> Option<u16> {
    match bridge.tuning.filtering {
        true => member.pvid,
        false => Some(0),
    }
}

/// Whether a member learns at all.
fn learns(member: &DraftMember) -> bool {
    let protection = &member.tuning.protection;
    protection.addresses.is_some() && !protection.methods.is_none() && !member.is_leaving
}

/// A member's learner, going by what holds now: the one that it has, or a new one if that knows others' addresses.
fn learner(
    id: u16,
    member: &mut DraftMember,
    holders: &Arc<Holders>,
    tell: impl Fn() + Send + Sync + 'static,
) -> Arc<Learner> {
    let protection = &member.tuning.protection;
    let conf = Conf {
        methods: protection.methods,
        named: protection.addresses.clone().unwrap_or_default(),
    };
    let macs = member.conf.all_macs();
    match member.learner.take().filter(|l| l.is_of(&macs, holders)) {
        Some(learner) => {
            learner.set(conf);
            learner
        }
        None => Learner::new(id, &macs, conf, holders, Arc::new(tell)),
    }
}

impl DataPlane {
    /// Gives each member of the draft that learns its learner, and bridges with such members what they know of addresses. Where nobody
    /// learns, members are looked at once.
    pub(super) fn match_learners(&mut self) {
        let mut vids: BTreeMap<u16, BTreeSet<u16>> = BTreeMap::new();
        for member in self.members.iter().flatten().filter(|m| learns(m)) {
            let bridge = self.bridges.get(usize::from(member.bridge));
            let bridge = bridge.and_then(Option::as_ref);
            if let Some(vid) = bridge.and_then(|bridge| untagged(bridge, &member.conf)) {
                vids.entry(member.bridge).or_default().insert(vid);
            }
        }
        for (index, bridge) in self.bridges.iter_mut().enumerate() {
            let Some(bridge) = bridge else { continue };
            let former = std::mem::take(&mut bridge.holders);
            for vid in vids.remove(&(index as u16)).unwrap_or_default() {
                let holders = former.get(&vid).cloned().unwrap_or_default();
                bridge.holders.insert(vid, holders);
            }
            for (vid, holders) in &bridge.holders {
                let members = (0..).zip(&self.members);
                let there = members.filter_map(|(id, m)| Some((id, m.as_ref()?)));
                let there = there.filter(|(_, m)| {
                    let takes = !bridge.tuning.filtering || m.conf.takes(*vid);
                    usize::from(m.bridge) == index && !m.is_leaving && takes
                });
                holders.name(there.flat_map(|(id, m)| {
                    let named = m.tuning.protection.addresses.iter();
                    named.flat_map(move |named| named.singles().map(move |ip| (ip, id)))
                }));
            }
        }
        for (id, member) in (0..).zip(&mut self.members) {
            let Some(member) = member else { continue };
            let bridge = self.bridges.get(usize::from(member.bridge));
            let Some(bridge) = bridge.and_then(Option::as_ref) else {
                continue;
            };
            member.is_heard = member.tuning.trusted && !bridge.holders.is_empty();
            let vid = untagged(bridge, &member.conf).filter(|_| learns(member));
            let holders = vid.and_then(|vid| bridge.holders.get(&vid));
            member.learner = holders.map(|holders| {
                let notice = self.shared.learned.clone();
                learner(id, member, holders, move || notice.tell())
            });
        }
    }

    /// Becomes readable when a member has learned something: [`DataPlane::hear_learned`].
    pub fn learned_alarm(&self) -> BorrowedFd<'_> {
        self.shared.learned.as_fd()
    }

    /// Has [`DataPlane::learned_alarm`] tell of what is learned from now on.
    pub fn hear_learned(&self) {
        self.shared.learned.hear();
    }

    /// The addresses that a member was given and has; none if it learns none.
    pub fn leases(&self, id: u16, now: Tick) -> Vec<Lease> {
        let member = self.members.get(usize::from(id)).and_then(Option::as_ref);
        let learner = member.and_then(|member| member.learner.as_ref());
        learner.map_or_else(Vec::new, |learner| learner.leases(now))
    }

    /// A member has these from an earlier time, as far as it may learn them now. The draft has to be published.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`].
    pub fn restore_leases(
        &mut self,
        id: u16,
        now: Tick,
        leases: Vec<Lease>,
    ) -> Result<(), DataPlaneError> {
        if let Some(learner) = &self.draft_member(id)?.learner {
            learner.restore(now, leases);
        }
        Ok(())
    }
}

//! Makes topologies of the draft, one for each change or one for a batch.

use std::sync::Arc;

use windlass_attach::port::TxPort;
use windlass_bridge::forward::{Bridge, BridgeConf};
use windlass_bridge::groups::GroupsConf;
use windlass_bridge::member::MemberConf;
use windlass_firewall::Owner;
use windlass_frame::{RxId, TxId};

use super::draft::DraftMember;
use super::{DataPlane, DataPlaneError, bypass};
use crate::topo::{Member, Topo};

impl DataPlane {
    /// From now on, what is added, set or attached is published with the first change that takes something away, or by
    /// [`DataPlane::end_batch`].
    pub fn begin_batch(&mut self) {
        self.is_batch = true;
    }

    /// Publishes what has changed since [`DataPlane::begin_batch`]: once. When it returns, no frame is judged by what was before, or a
    /// worker is late ([`DataPlane::is_draining`]).
    pub fn end_batch(&mut self) {
        match std::mem::take(&mut self.is_batch) {
            true => self.put_in_force(),
            // Something that was taken away has published the rest.
            false => self.forget_former(),
        }
    }

    /// Publishes the draft and waits until no worker has what was before.
    pub(super) fn put_in_force(&mut self) {
        let _ = self.take_back(Vec::new());
        self.forget_former();
    }

    /// Publishes the draft, unless more is to come with it.
    pub(super) fn publish_batch(&mut self) {
        if !self.is_batch {
            self.publish();
        }
    }

    /// Publishes the draft.
    pub(super) fn publish(&mut self) {
        self.match_learners();
        self.built = self.build_bridges();
        self.published = self
            .members
            .iter()
            .zip(0..)
            .map(|(draft, id)| {
                let m = draft.as_ref().filter(|m| !m.is_leaving)?;
                let several = m.tx.as_ref().is_some_and(|tx| tx.has_choice());
                let owner = Owner {
                    member: RxId(id),
                    mac: m.conf.mac,
                    tell: self.firewalls.teller.clone(),
                };
                let (ingress, egress) = (m.ingress(&owner), m.egress(&owner));
                let [shape_out, shape_in] = m.shaping.shapers();
                let is_watched = !m.watches.is_empty();
                let asker = self.asker_of(id);
                let is_corked = m.tx.as_ref().is_some_and(|tx| tx.wants_runs());
                let is_special = asker.is_some() || several || is_watched || is_corked;
                Some(Arc::new(Member {
                    bridge: m.bridge,
                    tx: m.tx.clone(),
                    asker,
                    several,
                    weights: m.tuning.weights,
                    is_special: is_special || !egress.is_empty() || shape_in.is_some(),
                    is_staged: !ingress.is_empty() || shape_out.is_some() || is_watched,
                    watches: m.watches.as_slice().into(),
                    ingress,
                    egress,
                    shape_out,
                    shape_in,
                    owner: m.owner,
                    priority: m.tuning.priority,
                    kick_gap_ns: m.tuning.kick_gap_ns,
                    spin: m.tuning.spin,
                    attachment: m.attachment,
                    counters: m.counters.clone(),
                    accounts: m.accounts.clone(),
                }))
            })
            .collect();
        self.publish_targets();
        self.publish_built();
        self.overlays.tell();
    }

    /// The bridges as the draft has them.
    fn build_bridges(&self) -> Vec<Option<Arc<Bridge>>> {
        self.bridges
            .iter()
            .enumerate()
            .map(|(index, draft)| {
                let draft = draft.as_ref()?;
                let members = self.members.iter().enumerate().filter_map(|(id, m)| {
                    let here = |m: &&DraftMember| m.bridge as usize == index && !m.is_leaving;
                    let m = m.as_ref().filter(here)?;
                    Some(MemberConf {
                        id: TxId(id as u16),
                        ..m.conf.clone()
                    })
                });
                let members = members.chain(self.overlays.on(index as u16, |id| self.conf(id)));
                Some(Arc::new(Bridge::new(BridgeConf {
                    fdb: draft.fdb.clone(),
                    filtering: draft.tuning.filtering,
                    mac: draft.tuning.mac,
                    members: members.collect(),
                    groups: draft.groups.clone(),
                })))
            })
            .collect()
    }

    fn conf(&self, id: u16) -> Option<&MemberConf> {
        let member = self.members.get(usize::from(id))?.as_ref();
        member.map(|member| &member.conf)
    }

    /// Adds targets to the members that are to be published: each has its overlay's counters and captures.
    fn publish_targets(&mut self) {
        for (place, overlay, port) in self.overlays.ports() {
            let Some(Some(m)) = self.members.get(usize::from(overlay)) else {
                continue;
            };
            let is_watched = !m.watches.is_empty();
            let is_corked = port.wants_runs();
            let member = Member {
                bridge: m.bridge,
                tx: Some(port),
                asker: None,
                several: false,
                weights: m.tuning.weights,
                is_special: is_watched || is_corked,
                is_staged: is_watched,
                watches: m.watches.as_slice().into(),
                ingress: Box::default(),
                egress: Box::default(),
                shape_out: None,
                shape_in: None,
                owner: m.owner,
                priority: m.tuning.priority,
                kick_gap_ns: 0,
                spin: m.tuning.spin,
                attachment: m.attachment,
                counters: m.counters.clone(),
                accounts: m.accounts.clone(),
            };
            let at = usize::from(place);
            if self.published.len() <= at {
                self.published.resize(at + 1, None);
            }
            self.published[at] = Some(Arc::new(member));
        }
    }

    /// Gives a bridge what snooping found, or has it snoop no more. All frames are judged by it soon.
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`].
    pub fn set_groups(
        &mut self,
        bridge: u16,
        groups: Option<GroupsConf>,
    ) -> Result<(), DataPlaneError> {
        let groups = groups.map(Arc::new);
        self.draft_bridge(bridge)?.groups.clone_from(&groups);
        let built = self.built.get_mut(usize::from(bridge));
        match (built, groups) {
            _ if self.is_batch => {}
            (Some(Some(built)), Some(groups)) => {
                *built = Arc::new(built.with_groups(&groups));
                self.publish_built();
            }
            _ => self.publish(),
        }
        Ok(())
    }

    /// Publishes what was built last, and the placement.
    pub(super) fn publish_built(&mut self) {
        let topo = Topo {
            members: self.published.clone(),
            bridges: self.built.clone(),
            placement: self.placement.clone(),
        };
        let plain = bypass::plain(&topo);
        self.bypasses.close_others(&topo, &plain);
        self.limbo.add(self.shared.topo.publish(Box::new(topo)));
        self.bypasses.open(plain);
        for (worker, adopt) in self.adopts.drain(..) {
            self.workers[worker].send(adopt);
        }
        self.limbo.reclaim(&self.shared.domain);
    }
}

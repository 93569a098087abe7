//! Which members may exchange frames past the workers.
//!
//! # Model
//! A member is plain if workers would do nothing with its frames but what its bridge does, and the bridge would simply pass them on
//! ([`Bridge::plain_vlan`](windlass_bridge::forward::Bridge::plain_vlan)). This is read from the topology that is about to be published, so there is no second list of features
//! that somebody could forget to add to: a member is plain for the kernel exactly while it is for workers.
//!
//! # Synchronization
//! What is not plain any more is closed before the topology is published, and no frame is on its way past the workers then. What
//! became plain is opened after that. A member that leaves has its interface deleted, for which the kernel waits until no program runs, or
//! taken over, for which its next endpoint does: nobody waits here.

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass_attach::port::Bypass;
use windlass_nic::{IngressStage, Plain};
use windlass_sys::shortcut::{Checks, Place};

use super::now;
use crate::topo::Topo;

/// Members with a way past the workers, and to whom it is open.
pub(super) type Members = BTreeMap<u16, (Arc<dyn Bypass>, Place)>;

/// The plain members of a topology, of those that have a way past the workers.
pub(super) fn plain(topo: &Topo) -> Members {
    let members = (0..).zip(&topo.members);
    let plain = members.filter_map(|(id, member)| {
        let member = member.as_ref()?;
        let bypass = member.tx.as_ref()?.bypass()?;
        let is_plain = member.shape_out.is_none() && member.watches.is_empty();
        if !is_plain || member.is_special {
            return None;
        }
        let checks = checks(&member.ingress)?;
        let bridge = topo.bridge(member.bridge)?;
        let vid = bridge.plain_vlan(id, now())?;
        let place = Place {
            number: (u32::from(member.bridge) << 12 | u32::from(vid)) + 1,
            mtu: bridge.member(id)?.mtu,
            checks,
        };
        Some((id, (bypass, place)))
    });
    plain.collect()
}

/// A member's way past the workers.
fn of(topo: &Topo, id: u16) -> Option<Arc<dyn Bypass>> {
    let member = topo.members.get(usize::from(id))?.as_ref()?;
    member.tx.as_ref()?.bypass()
}

/// Which frames pass these stages with nothing done to them; none if that cannot be told of any.
fn checks(stages: &[Arc<dyn IngressStage>]) -> Option<Checks> {
    let mut checks = Checks::None;
    for stage in stages {
        checks = match stage.plain() {
            Plain::None => return None,
            Plain::All => checks,
            Plain::Transport(None) => Checks::Transport,
            Plain::Transport(Some(sources)) => Checks::Sources(sources.into()),
        };
    }
    Some(checks)
}

/// What is open.
#[derive(Default)]
pub(super) struct Bypasses(Members);

impl Bypasses {
    /// Closes what `plain`, the plain members of `topo`, does not have.
    pub(super) fn close_others(&mut self, topo: &Topo, plain: &Members) {
        let mut closed = None;
        self.0.retain(|id, (bypass, place)| {
            let stays =
                |(other, at): &(Arc<dyn Bypass>, Place)| Arc::ptr_eq(other, bypass) && at == place;
            let stays = plain.get(id).is_some_and(stays);
            if !stays {
                bypass.open(None);
                if of(topo, *id).is_some_and(|now| Arc::ptr_eq(&now, bypass)) {
                    closed = Some(bypass.clone());
                }
            }
            stays
        });
        if let Some(closed) = closed {
            closed.settle();
        }
    }

    /// Opens all of `plain`.
    pub(super) fn open(&mut self, plain: Members) {
        for (id, (bypass, place)) in &plain {
            if !self.0.contains_key(id) {
                bypass.open(Some(place.clone()));
            }
        }
        self.0 = plain;
    }
}

//! Endpoints that move between hosts: what is under way meanwhile.
//!
//! # Model
//! When an endpoint moves, frames are on their way to its former host, and others follow until each sender's host knows of the move. The
//! former host relays them to the target that the registry tells ([`Vtep::set_relays`]), for [`UNDER_WAY_NS`] after the endpoint has left:
//! its VNIC was deleted or made standby, or the registry said that another host has it. The new host takes what is relayed: for as long,
//! the former host stays a target of its own.
//!
//! # Not done
//! Searches that are no registry: that a file names another host is no move.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use windlass_api::{MacAddr, Name};
use windlass_attach::vxlan::{Relay, Relays, Vtep};
use windlass_frame::Tick;
use windlass_overlay::Vni;
use windlass_worker::DataPlaneError;
use windlass_worker::dataplane::now;

use super::{Announced, Overlay, Target, TargetKey};
use crate::dataplane::ports::Ports;

/// For how long frames for an endpoint that has moved are relayed, in nanoseconds.
const UNDER_WAY_NS: u64 = 10_000_000_000;

/// An endpoint: its network and address.
type EndpointKey = (u32, MacAddr);

/// Endpoints that have just moved from this host, or to it.
#[derive(Default)]
pub(super) struct Moves {
    /// Endpoints that have left, until when their frames are relayed.
    left: BTreeMap<EndpointKey, Tick>,
    /// Targets behind which endpoints were that are here now, until when they stay.
    former: BTreeMap<TargetKey, Tick>,
}

impl Moves {
    /// An endpoint has left this host.
    pub(super) fn leave(&mut self, endpoint: EndpointKey, now: Tick) {
        self.left.insert(endpoint, now.plus(UNDER_WAY_NS));
    }

    /// An endpoint is here.
    pub(super) fn come(&mut self, endpoint: EndpointKey) {
        self.left.remove(&endpoint);
    }

    /// An endpoint that is here was behind a target.
    pub(super) fn keep(&mut self, target: TargetKey, now: Tick) {
        self.former.insert(target, now.plus(UNDER_WAY_NS));
    }

    fn is_empty(&self) -> bool {
        self.left.is_empty() && self.former.is_empty()
    }

    /// Forgets what was long ago. Whether a target is among that.
    fn end(&mut self, now: Tick) -> bool {
        self.left.retain(|_, until| now < *until);
        let before = self.former.len();
        self.former.retain(|_, until| now < *until);
        self.former.len() < before
    }
}

impl Overlay {
    /// Whether the registry was told that an endpoint is live here.
    pub(super) fn is_live(&self, endpoint: EndpointKey) -> bool {
        let known = self.announced.get(&endpoint);
        known.is_some_and(Announced::is_live)
    }

    /// Compares the endpoints that this host has now with those that it had. One that the registry has given away left then.
    pub(super) fn note_moves(&mut self, next: &BTreeMap<EndpointKey, Announced>) {
        let former: Vec<_> = self.announced.keys().copied().collect();
        for endpoint in former.into_iter().chain(next.keys().copied()) {
            let is_live = next.get(&endpoint).is_some_and(Announced::is_live);
            match (self.is_live(endpoint), is_live) {
                (true, false) if !self.lost.contains_key(&endpoint) => {
                    self.moves.leave(endpoint, now());
                }
                (false, true) => self.moves.come(endpoint),
                _ => {}
            }
        }
    }

    /// Where frames are relayed to.
    fn relays(&self) -> impl Iterator<Item = ((Vni, windlass_wire::MacAddr), Relay)> {
        self.moves.left.iter().filter_map(|((vni, mac), until)| {
            let pushed = self.pushed.get(&(self.vlan_of(*vni)?, *mac))?;
            let (to, listen) = (pushed.target().1, self.settings.listen?);
            let relay = Relay { to, until: *until };
            let endpoint = (Vni::new(*vni)?, windlass_wire::MacAddr(mac.0));
            (to.ip() != listen.ip()).then_some((endpoint, relay))
        })
    }
}

impl Ports {
    /// Has tunnel endpoints relay what is under way to endpoints that have left, and nothing else.
    pub(super) fn run_moves(&mut self) {
        let is_relaying = |state: &Overlay| state.vtep.as_ref().is_some_and(|v| v.is_relaying());
        let moving = self.members.overlays();
        let moving = moving.filter(|(.., state)| !state.moves.is_empty() || is_relaying(state));
        let moving: Vec<Name> = moving.map(|(name, ..)| name.clone()).collect();
        if moving.is_empty() {
            return;
        }
        let now = now();
        for name in moving {
            let state = self.overlay_mut(&name);
            if state.is_some_and(|state| state.moves.end(now)) {
                self.remove_idle(&name);
            }
        }
        let mut vteps: BTreeMap<*const Vtep, (&Arc<Vtep>, Relays)> = BTreeMap::new();
        for (.., state) in self.members.overlays() {
            if let Some(vtep) = &state.vtep {
                let its = vteps.entry(Arc::as_ptr(vtep));
                let (_, relays) = its.or_insert_with(|| (vtep, Relays::new()));
                relays.extend(state.relays());
            }
        }
        for (vtep, relays) in vteps.into_values() {
            if let Err(errno) = vtep.set_relays(relays) {
                tracing::error!("relays of {}: {errno}", vtep.conf().local);
            }
        }
    }

    /// Removes targets that nobody uses any more; within an edit, at its end. What a late worker may still send to is removed again every
    /// second, until it can be.
    pub(in crate::dataplane::ports) fn remove_idle(&mut self, name: &Name) {
        if self.edit.is_open {
            self.edit.overlays.insert(name.clone());
            return;
        }
        let statics = self.static_targets(name);
        let Some(state) = self.overlay_mut(name) else {
            return;
        };
        for key in std::mem::take(&mut state.idle) {
            let is_asked = state.questions.leads_to(&key);
            let used = |target: &Target| target.floods || target.pushed > 0 || is_asked;
            if statics.contains(&key) || state.targets.get(&key).is_none_or(used) {
                continue;
            }
            if state.moves.former.contains_key(&key) {
                state.idle.insert(key);
                continue;
            }
            let gone = state.targets.remove(&key);
            state.going.extend(gone.map(|target| target.place));
        }
        let going = state.going.clone();
        if going.is_empty() || state.unentered.is_late {
            return;
        }
        let removed = self.plane.remove_targets(&going);
        let Some(state) = self.overlay_mut(name) else {
            return;
        };
        match removed {
            Ok(()) => state.going.clear(),
            Err(error) => {
                // Waited for once, not with each message.
                state.unentered.is_late |= matches!(error, DataPlaneError::Stuck);
                tracing::error!("targets of {name} that are no more: {error}");
            }
        }
    }

    /// Targets of an overlay that entries made by hand name.
    fn static_targets(&self, name: &Name) -> BTreeSet<TargetKey> {
        let Some(member) = self.members.get(name) else {
            return BTreeSet::new();
        };
        let (Some(state), Some(bridge)) = (&member.overlay, self.bridges.get(&member.bridge))
        else {
            return BTreeSet::new();
        };
        let own = bridge.statics.iter().filter(|entry| entry.member == *name);
        let targets = own.filter_map(|entry| Some((state.vni_of(entry.vlan)?, entry.target?)));
        targets.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An endpoint that has left is relayed for ten seconds, unless it comes back; as long its former target stays.
    #[test]
    fn what_has_moved_is_forgotten() {
        let (early, late) = (Tick(9_999_999_999), Tick(10_000_000_000));
        let [one, two] = [1, 2].map(|last| (23, MacAddr([2, 0, 0, 0, 0, last])));
        let target = (23, "192.0.2.1:4789".parse().expect("an address"));
        let mut moves = Moves::default();
        moves.leave(one, Tick(0));
        moves.leave(two, Tick(0));
        moves.come(two);
        moves.keep(target, Tick(0));
        assert!(!moves.end(early));
        assert_eq!(moves.left.keys().collect::<Vec<_>>(), [&one]);
        assert!(moves.former.contains_key(&target));
        assert!(moves.end(late));
        assert!(moves.is_empty());
    }
}

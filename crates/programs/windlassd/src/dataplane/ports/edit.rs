//! An edit of the data plane: prepared step by step, then in effect at once.
//!
//! # Model
//! From [`Ports::begin_edit`] to [`Ports::end_edit`], new endpoints are made but not polled, so nothing of them is on the
//! host; members and bridges that are deleted are only set aside, with their rings, entries and counters; the topology is
//! not published. A bridge that needs another table gets it filled, beside the one that is there. Entries that are wrong after the edit, learned or fixed, stay in the tables. A step that makes again exactly what was set aside takes it back: the engine undoes an edit by the
//! inverse steps, and needs no new endpoint for it. At the end, what is still set aside is removed, all of it in one
//! publication with what is new, the tables forget what is wrong now, and only then the new endpoints are polled.
//!
//! # Limits
//! Until the end of the edit, members that are deleted keep their numbers, and their entries the room in the tables.
//!
//! # Failure modes
//! A deletion is refused while a worker is late. If a worker becomes late after that, what was set aside waits for it,
//! out of the topology, and is removed from the host once the worker has let go.

use std::collections::{BTreeMap, BTreeSet};

use windlass_api::{Bridge, Counters, MacAddr, MemberSettings, Name, Object, Vnic};
use windlass_attach::endpoint::{Doomed, Endpoint, InterfaceConf};
use windlass_bridge::fdb::{FdbWriter, Key};
use windlass_worker::{DataPlaneError, QsbrGrace};

use super::watch::Watched;
use super::{BridgeState, MemberState, Ports, failed, member_limits, own_entries, static_key};
use crate::backend::BackendError;
use crate::dataplane::translate::{self, InKernel};

/// What becomes of a member that was set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It goes, with what persists of it on the host.
    Delete,
    /// Another member, on another bridge, has its name, and goes on from its counters.
    Move,
    /// It came in this edit: nothing of it is on the host.
    Drop,
}

pub(super) struct Aside {
    name: Name,
    /// What it was in the document.
    object: Object,
    end: End,
    state: MemberState,
}

/// A bridge that is to be changed.
pub(super) struct SetBridge {
    pub(super) from: Bridge,
    pub(super) to: Bridge,
    /// The table that it gets, if it gets another one.
    pub(super) table: Option<FdbWriter<QsbrGrace>>,
}

/// What a member's learned addresses depend on.
#[derive(PartialEq)]
struct Rules {
    own: Option<MacAddr>,
    settings: MemberSettings,
}

/// What waits for the end of the edit.
#[derive(Default)]
pub(super) struct Edit {
    pub(super) is_open: bool,
    /// No worker was late in it.
    is_prompt: bool,
    /// Members that came in it.
    pub(super) made: Vec<Name>,
    members: Vec<Aside>,
    bridges: Vec<(Bridge, BridgeState)>,
    /// Bridges that are changed, by their number.
    pub(super) set: BTreeMap<u16, SetBridge>,
    /// Members that were changed in place: what they were.
    changed: BTreeMap<Name, Rules>,
    /// Fixed entries that may be of nobody after the edit, by bridge.
    keys: BTreeMap<Name, BTreeSet<Key>>,
    /// Overlays of which entries made by hand were changed.
    pub(super) overlays: BTreeSet<Name>,
    /// VNICs whose flows were changed.
    pub(super) flows: BTreeSet<Name>,
    /// Kernel interfaces that are to be changed: what they are, and what they are to be.
    interfaces: Vec<(Name, InterfaceConf, InterfaceConf)>,
    /// Endpoints of deleted VNICs that the data plane never had.
    left: Vec<(Vnic, Box<dyn Endpoint>)>,
}

impl Edit {
    /// The table that a bridge gets at the end of the edit.
    pub(super) fn table(&mut self, bridge: u16) -> Option<&mut FdbWriter<QsbrGrace>> {
        self.set.get_mut(&bridge)?.table.as_mut()
    }

    /// Whether a member that goes is one that moves to another bridge.
    pub(super) fn moves(&self, name: &Name) -> bool {
        let mut aside = self.members.iter();
        aside.any(|aside| aside.name == *name && aside.end == End::Move)
    }

    /// Whether a member of this name goes, or went, in it.
    pub(super) fn has_aside(&self, name: &Name) -> bool {
        self.members.iter().any(|aside| aside.name == *name)
    }

    /// Members of this name that came in it, and went.
    pub(super) fn dropped(&self, name: &Name) -> impl Iterator<Item = &MemberState> {
        let aside = self.members.iter();
        let dropped = aside.filter(move |aside| aside.name == *name && aside.end == End::Drop);
        dropped.map(|aside| &aside.state)
    }

    /// At the end of the edit, a fixed entry of this key is deleted if no member has it.
    pub(super) fn note_key(&mut self, bridge: &Name, key: Key) {
        self.keys.entry(bridge.clone()).or_default().insert(key);
    }
}

impl Ports {
    pub fn begin_edit(&mut self) {
        self.edit.is_open = true;
        self.plane.begin_batch();
    }

    /// Changes the kernel interfaces, when all else is prepared: this is the one step that would have to be undone on the
    /// host.
    pub fn configure(&mut self) -> Result<(), (Name, BackendError)> {
        let all = std::mem::take(&mut self.edit.interfaces);
        for (at, (name, _, to)) in all.iter().enumerate() {
            if let Err(error) = self.configure_one(name, to) {
                for (name, from, _) in all.iter().take(at).rev() {
                    self.configure_again(name, from);
                }
                let name = name.clone();
                self.edit.interfaces = all;
                return Err((name, BackendError::Host(error)));
            }
        }
        Ok(())
    }

    fn configure_one(&mut self, name: &Name, interface: &InterfaceConf) -> Result<(), String> {
        let member = self.members.get_mut(name);
        let endpoint = member.and_then(|member| member.endpoint.as_mut());
        endpoint.map_or(Ok(()), |endpoint| endpoint.configure(interface))
    }

    fn configure_again(&mut self, name: &Name, interface: &InterfaceConf) {
        if let Err(error) = self.configure_one(name, interface) {
            tracing::error!("the interface of {name} is not as it was: {error}");
        }
    }

    /// Has [`Ports::configure`] change a VNIC's kernel interface, or no more if it is to be what it is. An edit may change a VNIC twice: its
    /// zone's rules and its own properties.
    pub(super) fn set_interface(&mut self, from: &Vnic, to: &Vnic) {
        let interfaces = &mut self.edit.interfaces;
        let conf = translate::interface(to);
        let Some(at) = interfaces.iter().position(|(name, ..)| *name == to.name) else {
            interfaces.push((to.name.clone(), translate::interface(from), conf));
            return;
        };
        match &mut interfaces[at] {
            (_, is, _) if *is == conf => drop(interfaces.remove(at)),
            (.., next) => *next = conf,
        }
    }

    pub fn end_edit(&mut self) {
        let mut edit = std::mem::take(&mut self.edit);
        // Those of an edit that was undone after they had been changed.
        for (name, _, conf) in &edit.interfaces {
            self.configure_again(name, conf);
        }
        self.end_flows(edit.flows);
        let changed_bridges: BTreeSet<u16> = edit.set.keys().copied().collect();
        for (id, set) in edit.set {
            if let Err(error) = self.end_set(id, set) {
                tracing::error!("a bridge is as it was: {error}");
            }
        }
        self.leaving.extend(edit.members);
        self.leaving_bridges
            .extend(edit.bridges.iter().map(|(_, state)| state.id));
        self.end_captures();
        self.remove_leaving();
        self.plane.end_batch();
        self.end_changes(edit.changed);
        for (name, keys) in edit.keys {
            self.forget_fixed(&name, keys);
        }
        self.renew_uncovered();
        self.end_overlays(edit.overlays, &changed_bridges);
        self.announce();
        for (_, mut endpoint) in edit.left {
            endpoint.delete();
        }
        edit.made.extend(self.end_vnds());
        self.tell_addresses();
        if self.held.is_some() {
            return;
        }
        self.restore_leases();
        self.leases_changed();
        self.plane.begin_batch();
        for name in edit.made {
            self.drive(&name);
        }
        self.plane.end_batch();
    }

    /// A member is about to be changed in place.
    pub(super) fn note_change(&mut self, name: &Name) {
        self.note_entries(name);
        if let Some(member) = self.members.get(name) {
            let rules = rules_of(member);
            self.edit.changed.entry(name.clone()).or_insert(rules);
        }
    }

    /// Fixed entries of a member may be of nobody after the edit.
    pub(super) fn note_entries(&mut self, name: &Name) {
        let Some(bridge) = self.members.get(name).map(|m| m.bridge.clone()) else {
            return;
        };
        let filtering = self.bridges.get(&bridge).is_some_and(|b| b.filtering);
        for (key, ..) in self.fixed_entries(name, filtering) {
            self.edit.note_key(&bridge, key);
        }
    }

    /// Gives the tables the limits of members that were changed, and has them forget what was learned by former rules. It is done
    /// when the edit is answered: what is learned from then on stays.
    fn end_changes(&mut self, changed: BTreeMap<Name, Rules>) {
        let mut former: BTreeMap<Name, Vec<u16>> = BTreeMap::new();
        for (name, rules) in changed {
            let changed = |member: &&MemberState| rules_of(member) != rules;
            let Some(member) = self.members.get(&name).filter(changed) else {
                continue;
            };
            let (id, bridge) = (member.id, member.bridge.clone());
            match self.enter_limits(id, &bridge, member_limits(member)) {
                Ok(()) => former.entry(bridge).or_default().push(id),
                Err(error) => tracing::error!("the table of {name} has former limits: {error}"),
            }
        }
        for (name, ids) in former {
            let forget = move |w: &mut FdbWriter<QsbrGrace>, _| {
                ids.iter().for_each(|id| w.flush_member(*id, false));
            };
            let bridge = self.bridge(&name).map(|bridge| bridge.id);
            let done = bridge.and_then(|id| self.plane.ask_fdb(id, forget).map_err(failed));
            if let Err(error) = done {
                tracing::error!("bridge {name} knows addresses by former rules: {error}");
            }
        }
    }

    /// Deletes those of a bridge's fixed entries that are of no member any more.
    fn forget_fixed(&mut self, name: &Name, mut keys: BTreeSet<Key>) {
        let Some(bridge) = self.bridges.get(name) else {
            return;
        };
        for entry in &bridge.statics {
            keys.remove(&static_key(bridge, entry));
        }
        let members = self.members.values().filter(|m| m.bridge == *name);
        for (key, _) in members.flat_map(|m| own_entries(m, bridge.filtering)) {
            keys.remove(&key);
        }
        if keys.is_empty() {
            return;
        }
        let entries = self.plane.fdb_entries(bridge.id).unwrap_or_default();
        let fixed = entries.iter().filter(|e| e.flags.is_fixed());
        let fixed: BTreeSet<Key> = fixed.map(|e| e.key).collect();
        keys.retain(|key| fixed.contains(key));
        if keys.is_empty() {
            return;
        }
        let uncovered = self.uncovered.entry(name.clone()).or_default();
        uncovered.extend(&keys);
        // Answered when it is done: whoever looks after the edit finds none of them.
        let done = self.plane.ask_fdb(bridge.id, move |w, _| {
            keys.iter().for_each(|key| {
                w.delete(*key);
            });
        });
        if let Err(error) = done {
            tracing::error!("the table of {name} has former entries: {error}");
        }
    }

    fn end_set(&mut self, id: u16, set: SetBridge) -> Result<(), DataPlaneError> {
        let (old, new) = (set.from.settings(), set.to.settings());
        let has_table = set.table.is_some();
        let tuning = translate::bridge_tuning(&set.to);
        self.plane.set_bridge(id, tuning, set.table)?;
        if !has_table && old.ageing_s != new.ageing_s {
            let ms = new.ageing_s.saturating_mul(1000);
            self.plane.fdb(id, move |w, now| w.set_ageing(ms, now))?;
        }
        Ok(())
    }

    /// Whether something that was deleted is still with a late worker.
    pub(super) fn is_leaving(&self) -> bool {
        !self.leaving.is_empty() || !self.leaving_bridges.is_empty()
    }

    /// Removes what was set aside in edits that are over.
    pub(super) fn remove_leaving(&mut self) {
        let ids: Vec<u16> = self.leaving.iter().map(|aside| aside.state.id).collect();
        if !ids.is_empty() {
            let totals = match self.plane.remove_members(&ids) {
                Ok(totals) => totals,
                Err(error) => {
                    tracing::warn!("deleted members are still in use: {error}");
                    for aside in &mut self.leaving {
                        if let Some(endpoint) = aside.state.endpoint.as_mut() {
                            endpoint.listen(false);
                            endpoint.rest();
                        }
                    }
                    return;
                }
            };
            let gone = std::mem::take(&mut self.leaving);
            let mut deleted = Vec::new();
            for (aside, totals) in gone.into_iter().zip(totals) {
                let gone = self.end_member(aside, |kernel| translate::counters(&totals, kernel));
                deleted.extend(gone);
            }
            let mut doomed = Doomed::default();
            for endpoint in &mut deleted {
                endpoint.delete_with(&mut doomed);
            }
            doomed.delete();
        }
        let plane = &mut self.plane;
        self.leaving_bridges
            .retain(|id| matches!(plane.remove_bridge(*id), Err(DataPlaneError::Stuck)));
    }

    /// No worker has the member any more. Gives the endpoint that is to be deleted.
    fn end_member(
        &mut self,
        aside: Aside,
        counted: impl FnOnce(&InKernel) -> Counters,
    ) -> Option<Watched> {
        let Aside {
            name, end, state, ..
        } = aside;
        // A clash that nobody was told of is not to be another member's that gets its number.
        let bridge = self.bridges.get(&state.bridge);
        if let Some(Ok(table)) = bridge.map(|b| self.plane.fdb_table(b.id)) {
            table.take_clash();
        }
        if let Some(bridge) = self.bridges.get(&state.bridge) {
            let own = own_entries(&state, bridge.filtering).into_iter();
            let uncovered = self.uncovered.entry(state.bridge.clone()).or_default();
            uncovered.extend(own.map(|(key, _)| key));
        }
        if state.overlay.is_some() {
            self.leave_search(&name);
        }
        let mut endpoint = state.endpoint;
        match end {
            End::Delete => return endpoint,
            End::Move => {
                let kernel = endpoint.as_mut().map(|e| InKernel::of(&mut **e));
                let mut carried = counted(&kernel.unwrap_or_default());
                carried += &state.carried;
                if let Some(member) = self.members.get_mut(&name) {
                    member.carried = carried;
                }
            }
            End::Drop => {}
        }
        None
    }

    /// Sets a member aside, which is `object` in the document.
    pub(super) fn set_aside(
        &mut self,
        name: &Name,
        object: Object,
        end: End,
    ) -> Result<(), BackendError> {
        let is_new = self.edit.made.contains(name);
        if !is_new && !self.edit.is_prompt {
            if !self.plane.is_prompt() {
                return Err(failed(DataPlaneError::Stuck));
            }
            self.edit.is_prompt = true;
        }
        let Some(state) = self.members.remove(name) else {
            return Ok(());
        };
        self.edit.made.retain(|made| made != name);
        self.edit.members.push(Aside {
            name: name.clone(),
            object,
            end: if is_new { End::Drop } else { end },
            state,
        });
        Ok(())
    }

    /// Takes a member back that was set aside; whether there is one that is the same in the document.
    pub(super) fn take_back(&mut self, name: &Name, object: &Object) -> Result<bool, BackendError> {
        let mut aside = self.edit.members.iter();
        let at = aside.position(|aside| aside.end != End::Drop && aside.object == *object);
        let Some(at) = at else {
            return Ok(false);
        };
        let aside = self.edit.members.remove(at);
        self.members.insert(name.clone(), aside.state);
        // Another member may have had its address in between.
        self.enter_fixed(name)?;
        Ok(true)
    }

    pub fn create_bridge(&mut self, bridge: &Bridge) -> Result<(), BackendError> {
        let mut aside = self.edit.bridges.iter();
        if let Some(at) = aside.position(|(aside, _)| aside == bridge) {
            let (_, state) = self.edit.bridges.remove(at);
            self.bridges.insert(bridge.name.clone(), state);
            return Ok(());
        }
        self.make_bridge(bridge)
    }

    pub fn delete_bridge(&mut self, bridge: &Bridge) {
        if let Some(state) = self.bridges.remove(&bridge.name) {
            self.edit.bridges.push((bridge.clone(), state));
        }
    }

    /// What persists on the host of a VNIC that the data plane does not have goes at the end of the edit.
    pub(super) fn leave(&mut self, vnic: &Vnic, endpoint: Box<dyn Endpoint>) {
        self.edit.left.push((vnic.clone(), endpoint));
    }

    /// It stays.
    pub(super) fn leave_not(&mut self, vnic: &Vnic) {
        self.edit.left.retain(|(left, _)| left != vnic);
    }
}

fn rules_of(member: &MemberState) -> Rules {
    Rules {
        own: member.own,
        settings: member.settings.clone(),
    }
}

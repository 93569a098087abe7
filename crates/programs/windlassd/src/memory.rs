//! A data plane that only remembers: for tests of the control plane.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use windlass_api::{
    AddressClaim, AddressRelease, Bridge, BridgePlace, Counters, FDB_PAGE_DEFAULT, FdbEntry,
    FdbKind, FdbPage, FdbQuery, Flow, FlowCounters, HostView, MacAddr, Name, Overlay, State,
    StaticEntry, StaticKind, Status, TableStats, TargetQuery, TargetView, Uplink, Vnd, Vnic,
    WorkerStats,
};

use crate::backend::{Backend, BackendError, OverlayCounts, Place, StateSink};
use crate::lookup::Answered;

/// What a [`MemoryBackend`] holds, and how it is told to fail.
#[derive(Debug, Default)]
pub struct Memory {
    /// Bridges.
    pub bridges: BTreeMap<Name, Bridge>,
    /// Uplinks.
    pub uplinks: BTreeMap<Name, Uplink>,
    /// Overlays.
    pub overlays: BTreeMap<Name, Overlay>,
    /// VNICs.
    pub vnics: BTreeMap<Name, Vnic>,
    /// The rules of their zones.
    pub rules: BTreeMap<Name, Arc<str>>,
    /// Static and learned entries by bridge, VLAN and address.
    pub entries: BTreeMap<(Name, u16, MacAddr), (Name, FdbKind)>,
    /// States that [`MemoryBackend::say`] has set.
    pub states: BTreeMap<Name, Status>,
    /// Every call that changed something, in order: `create_vnic v0`.
    pub calls: Vec<String>,
    /// Edits that have ended.
    pub edits: usize,
    /// The next call that contains this text fails.
    pub fail: Option<String>,
}

/// A backend over a shared [`Memory`], so that a test can look into it and disturb it.
#[derive(Debug, Clone)]
pub struct MemoryBackend {
    memory: Arc<Mutex<Memory>>,
    sink: StateSink,
}

impl MemoryBackend {
    /// An empty one.
    pub fn with_sink(sink: StateSink) -> Self {
        Self {
            memory: Arc::default(),
            sink,
        }
    }

    /// One over what another has: what persists over a restart.
    pub fn over(memory: Arc<Mutex<Memory>>, sink: StateSink) -> Self {
        Self { memory, sink }
    }

    /// What it holds.
    pub fn memory(&self) -> Arc<Mutex<Memory>> {
        Arc::clone(&self.memory)
    }

    /// Sets the state of a member, and says so.
    pub fn say(&self, member: &Name, status: Status) {
        self.lock().states.insert(member.clone(), status);
        self.sink.changed(member);
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, text: String) -> Result<MutexGuard<'_, Memory>, BackendError> {
        let mut memory = self.lock();
        if memory
            .fail
            .as_ref()
            .is_some_and(|part| text.contains(part.as_str()))
        {
            memory.fail = None;
            return Err(BackendError::Host(format!("{text}: told to fail")));
        }
        memory.calls.push(text);
        Ok(memory)
    }
}

impl Backend for MemoryBackend {
    fn end_edit(&mut self) {
        self.lock().edits += 1;
    }

    fn create_bridge(&mut self, bridge: &Bridge) -> Result<(), BackendError> {
        let mut memory = self.call(format!("create_bridge {}", bridge.name))?;
        memory.bridges.insert(bridge.name.clone(), bridge.clone());
        Ok(())
    }

    fn set_bridge(&mut self, _: &Bridge, to: &Bridge) -> Result<(), BackendError> {
        let mut memory = self.call(format!("set_bridge {}", to.name))?;
        memory.bridges.insert(to.name.clone(), to.clone());
        Ok(())
    }

    fn delete_bridge(&mut self, bridge: &Bridge) -> Result<(), BackendError> {
        let mut memory = self.call(format!("delete_bridge {}", bridge.name))?;
        memory.bridges.remove(&bridge.name);
        memory
            .entries
            .retain(|(name, _, _), _| *name != bridge.name);
        Ok(())
    }

    fn create_uplink(&mut self, uplink: &Uplink) -> Result<(), BackendError> {
        let mut memory = self.call(format!("create_uplink {}", uplink.name))?;
        memory.uplinks.insert(uplink.name.clone(), uplink.clone());
        Ok(())
    }

    fn set_uplink(&mut self, _: &Uplink, to: &Uplink) -> Result<(), BackendError> {
        let mut memory = self.call(format!("set_uplink {}", to.name))?;
        memory.uplinks.insert(to.name.clone(), to.clone());
        Ok(())
    }

    fn delete_uplink(&mut self, uplink: &Uplink) -> Result<(), BackendError> {
        let mut memory = self.call(format!("delete_uplink {}", uplink.name))?;
        memory.uplinks.remove(&uplink.name);
        memory
            .entries
            .retain(|_, (member, _)| *member != uplink.name);
        Ok(())
    }

    fn begin_search(&mut self, _: &Overlay, _: bool) -> Option<Result<(), BackendError>> {
        Some(Ok(()))
    }

    fn end_search(&mut self, _: &Name) {}

    fn create_overlay(&mut self, overlay: &Overlay) -> Result<(), BackendError> {
        let mut memory = self.call(format!("create_overlay {}", overlay.name))?;
        memory
            .overlays
            .insert(overlay.name.clone(), overlay.clone());
        Ok(())
    }

    fn set_overlay(&mut self, _: &Overlay, to: &Overlay) -> Result<(), BackendError> {
        let mut memory = self.call(format!("set_overlay {}", to.name))?;
        memory.overlays.insert(to.name.clone(), to.clone());
        Ok(())
    }

    fn delete_overlay(&mut self, overlay: &Overlay) -> Result<(), BackendError> {
        let mut memory = self.call(format!("delete_overlay {}", overlay.name))?;
        memory.overlays.remove(&overlay.name);
        memory
            .entries
            .retain(|_, (member, _)| *member != overlay.name);
        Ok(())
    }

    fn overlay_counts(&self, overlays: &[Name]) -> Vec<OverlayCounts> {
        vec![OverlayCounts::default(); overlays.len()]
    }

    fn targets(&self, _: &Name, _: &TargetQuery) -> Vec<TargetView> {
        Vec::new()
    }

    fn flush_targets(&mut self, _: &Name, _: &TargetQuery) -> u64 {
        0
    }

    fn hosts(&self, _: &Name) -> Vec<HostView> {
        Vec::new()
    }

    fn forget_host(&mut self, _: &Name, _: &str) {}

    fn claim_addresses(&mut self, _: &Name, _: AddressClaim, _: Answered) -> Result<(), String> {
        Err("there is no registry".to_owned())
    }

    fn release_addresses(&mut self, _: &Name, _: AddressRelease) -> Result<(), String> {
        Ok(())
    }

    fn resync(&mut self, _: &Name) {}

    fn create_vnic(&mut self, vnic: &Vnic, place: &Place) -> Result<(), BackendError> {
        let mut memory = self.call(format!("create_vnic {}", vnic.name))?;
        memory.rules.insert(vnic.name.clone(), place.rules.clone());
        memory.vnics.insert(vnic.name.clone(), vnic.clone());
        Ok(())
    }

    fn set_vnic(&mut self, _: &Vnic, to: &Vnic, place: &Place) -> Result<(), BackendError> {
        let mut memory = self.call(format!("set_vnic {}", to.name))?;
        memory.rules.insert(to.name.clone(), place.rules.clone());
        memory.vnics.insert(to.name.clone(), to.clone());
        Ok(())
    }

    fn delete_vnic(&mut self, vnic: &Vnic, _: &Place) -> Result<(), BackendError> {
        let mut memory = self.call(format!("delete_vnic {}", vnic.name))?;
        memory.vnics.remove(&vnic.name);
        memory.rules.remove(&vnic.name);
        memory.entries.retain(|_, (member, _)| *member != vnic.name);
        Ok(())
    }

    fn set_owner(
        &mut self,
        vnics: &[Name],
        _: (u32, u32),
        to: (u32, u32),
    ) -> Result<(), BackendError> {
        for vnic in vnics {
            drop(self.call(format!("set_owner {vnic} {}", to.0))?);
        }
        Ok(())
    }

    fn set_vnd(&mut self, vnic: &Vnic, to: Option<&Vnd>, _: &Place) -> Result<(), BackendError> {
        let name = to.map_or("none".to_owned(), Vnd::label);
        drop(self.call(format!("set_vnd {} {name}", vnic.name))?);
        Ok(())
    }

    fn set_flow(&mut self, _: Option<&Flow>, _: Option<&Flow>) -> Result<(), BackendError> {
        Ok(())
    }

    fn flow_counters(&self, flows: &[Flow]) -> Vec<FlowCounters> {
        vec![FlowCounters::default(); flows.len()]
    }

    fn fdb_add(&mut self, entry: &StaticEntry) -> Result<(), BackendError> {
        let kind = match entry.kind {
            StaticKind::Static => FdbKind::Static,
            StaticKind::Sticky => FdbKind::Sticky,
        };
        let mut memory = self.call(format!("fdb_add {}", entry.mac))?;
        let key = (entry.bridge.clone(), entry.vlan, entry.mac);
        memory.entries.insert(key, (entry.member.clone(), kind));
        Ok(())
    }

    fn fdb_delete(&mut self, entry: &StaticEntry) -> Result<(), BackendError> {
        let mut memory = self.call(format!("fdb_delete {}", entry.mac))?;
        memory
            .entries
            .remove(&(entry.bridge.clone(), entry.vlan, entry.mac));
        Ok(())
    }

    fn fdb_forget(&mut self, bridge: &Name, vlan: u16, mac: MacAddr) -> bool {
        self.lock()
            .entries
            .remove(&(bridge.clone(), vlan, mac))
            .is_some()
    }

    fn fdb_flush(&mut self, bridge: &Name, query: &FdbQuery) -> u64 {
        let mut memory = self.lock();
        let before = memory.entries.len();
        memory.entries.retain(|(name, vlan, mac), (member, kind)| {
            *kind != FdbKind::Learned || name != bridge || !matches(query, *vlan, *mac, member)
        });
        (before - memory.entries.len()) as u64
    }

    /// No bridge of it has a tree.
    fn check_migration(&mut self, _bridge: &Name, _member: Option<&Name>) -> u64 {
        0
    }

    fn fdb_show(&mut self, bridge: &Name, query: &FdbQuery) -> FdbPage {
        let memory = self.lock();
        let entries = memory
            .entries
            .iter()
            .filter(|((name, vlan, mac), (member, _))| {
                name == bridge && matches(query, *vlan, *mac, member)
            })
            .map(|((_, vlan, mac), (member, kind))| FdbEntry {
                vlan: *vlan,
                mac: *mac,
                member: member.clone(),
                target: None,
                kind: *kind,
                age_s: (*kind == FdbKind::Learned).then_some(0),
            });
        let limit = query
            .limit
            .filter(|&limit| limit != 0)
            .unwrap_or(FDB_PAGE_DEFAULT);
        let total = entries.clone().count() as u64;
        FdbPage {
            entries: entries.take(limit as usize).collect(),
            total,
        }
    }

    fn fdb_learned(&mut self, bridge: &Name, addresses: &BTreeSet<MacAddr>) -> Vec<FdbEntry> {
        let every = FdbQuery {
            limit: Some(u32::MAX),
            ..FdbQuery::default()
        };
        let mut entries = self.fdb_show(bridge, &every).entries;
        entries.retain(|entry| {
            addresses.contains(&entry.mac)
                && matches!(entry.kind, FdbKind::Learned | FdbKind::Sticky)
        });
        entries
    }

    fn table(&self, bridge: &Name) -> TableStats {
        let memory = self.lock();
        let addresses = memory
            .entries
            .keys()
            .filter(|(name, _, _)| name == bridge)
            .count() as u64;
        TableStats {
            addresses,
            ..TableStats::default()
        }
    }

    fn statuses(&self, members: &[Name]) -> Vec<Status> {
        let memory = self.lock();
        let status = |member| {
            if let Some(status) = memory.states.get(member) {
                return status.clone();
            }
            let known = memory.vnics.contains_key(member)
                || memory.uplinks.contains_key(member)
                || memory.overlays.contains_key(member);
            let state = if known { State::Up } else { State::Down };
            Status {
                state,
                ..Status::default()
            }
        };
        members.iter().map(status).collect()
    }

    fn counters(&self, members: &[Name]) -> Vec<Counters> {
        vec![Counters::default(); members.len()]
    }

    fn drops(&self) -> BTreeMap<Name, BTreeMap<String, u64>> {
        BTreeMap::new()
    }

    fn workers(&self) -> Vec<WorkerStats> {
        vec![WorkerStats::default()]
    }

    fn bridge_place(&self, _: &Name) -> BridgePlace {
        BridgePlace {
            home: Some(0),
            workers: vec![0],
        }
    }

    fn move_rings(
        &mut self,
        member: &Name,
        ring: Option<u16>,
        worker: u16,
    ) -> Result<u16, BackendError> {
        let ring = ring.map_or("all".to_owned(), |ring| ring.to_string());
        drop(self.call(format!("move_rings {member} {ring} {worker}"))?);
        Ok(1)
    }

    fn move_table(&mut self, bridge: &Name, worker: u16) -> Result<u16, BackendError> {
        drop(self.call(format!("move_table {bridge} {worker}"))?);
        Ok(1)
    }

    fn alive(&mut self) -> bool {
        true
    }

    fn shutdown(&mut self) {}
}

fn matches(query: &FdbQuery, vlan: u16, mac: MacAddr, member: &Name) -> bool {
    query.vlan.is_none_or(|v| v == vlan)
        && query.mac.is_none_or(|m| m == mac)
        && query.member.as_ref().is_none_or(|m| m == member)
}

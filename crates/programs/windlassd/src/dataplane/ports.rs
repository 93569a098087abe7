//! The thread that owns members, endpoints and the data plane.

mod captures;
mod edit;
mod flows;
mod heard;
mod held;
mod hosts;
mod leases;
mod members;
mod moves;
mod neigh;
mod overlays;
mod owner;
mod rounds;
mod snoop;
mod told;
mod tree;
mod uplinks;
mod vnds;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_api::{
    Bridge, Counters, FDB_PAGE_DEFAULT, FdbEntry, FdbKind, FdbPage, FdbQuery, MacAddr,
    MemberSettings, Name, Object, SnoopBridge, State, StaticEntry, StaticKind, Status, StpBridge,
    TableStats, Uplink, Vnic, WorkerStats,
};
use windlass_bridge::fdb::{AddError, EntryFlags, Fdb, FdbWriter, Key, Tally};
use windlass_sync::tsc::Clock;
use windlass_sys::Errno;
use windlass_sys::netns::NetnsWatch;
use windlass_worker::{DataPlane, DataPlaneError, QsbrGrace};

use captures::Captures;
pub(crate) use captures::tell_time;
use edit::{Aside, Edit, End, SetBridge};
use flows::Flows;
use heard::Heard;
use held::Held;
use leases::Leases;
use members::Members;
use neigh::Asked;
use overlays::{Overlay, Searches};
use snoop::Snoop;
use tree::Tree;
use vnds::Devices;
use watch::{Source, Watch, Watched};

use super::firewalls::Firewalls;
use super::host::{Device, Host};
use super::translate::{self, InKernel, mac_word};
use crate::backend::{BackendError, Place, Region, StateSink};
use crate::shares::PerUser;

/// What [`windlass_worker::spread`] hashes.
const RSS_HASH: &str = "keyed, of addresses, ports and protocol; in tunnels of the inner packet";

/// Work for this thread.
pub type Request = Box<dyn FnOnce(&mut Ports) + Send>;

/// How long a worker may take to reach a quiescent point before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(2);
/// Tries to put a fixed entry into a slot that has to rest for a grace period.
const TRIES: u32 = 200;

struct BridgeState {
    id: u16,
    filtering: bool,
    /// Its spanning tree, if it has one.
    stp: Option<StpBridge>,
    /// How it snoops, if it does.
    snoop: Option<SnoopBridge>,
    statics: Vec<StaticEntry>,
    /// When the next clash of addresses may be told.
    clash_at: Instant,
}

/// Who is at a place of the forwarding tables: a member, or a target of an overlay.
pub(super) struct Holder<'a> {
    pub(super) name: &'a Name,
    pub(super) is_locked: bool,
    pub(super) target: Option<SocketAddr>,
}

struct MemberState {
    id: u16,
    bridge: Name,
    own: Option<MacAddr>,
    /// The IP addresses that the interface of a VNIC is given.
    addresses: Vec<IpAddr>,
    /// The zone of a VNIC, if it is in one.
    zone: Option<Name>,
    vlans: Vec<u16>,
    settings: MemberSettings,
    endpoint: Option<Watched>,
    /// The interface of an uplink.
    device: Option<String>,
    mtu: u32,
    rings: u16,
    /// What an overlay is beside.
    overlay: Option<Box<Overlay>>,
    /// What it has sent to reserved addresses.
    heard: Heard,
    /// Traffic before it came to this bridge.
    carried: Counters,
    /// Where addresses learned on it count with those of its owner's other VNICs.
    tally: Option<Tally>,
}

/// All members of all bridges.
pub struct Ports {
    plane: DataPlane,
    cores: Vec<Option<usize>>,
    sink: StateSink,
    host: Box<dyn Host>,
    wake: Arc<OwnedFd>,
    watch: Watch,
    /// What an owner may have.
    per_user: PerUser,
    firewalls: Firewalls,
    /// Wakes this thread when a namespace came or went: endpoints whose name leads to another one are polled.
    namespaces: Option<NetnsWatch>,
    bridges: BTreeMap<Name, BridgeState>,
    members: Members,
    /// Spanning trees of bridges that have one.
    trees: BTreeMap<Name, Tree>,
    /// Flows of VNICs, also of those that could not be made.
    flows: Flows,
    /// vnd devices over VNICs, also over those that could not be made.
    devices: Devices,
    /// They were handed to a successor.
    trees_stand: bool,
    /// Snooping of bridges that snoop.
    snoops: BTreeMap<Name, Snoop>,
    /// What bridges that answer for neighbours know of them.
    neighbours: BTreeMap<Name, Asked>,
    /// What VNICs have learned, for the next daemon.
    leases: Leases,
    captures: Captures,
    /// Searches of overlays.
    searches: Searches,
    /// Addresses, by bridge, that no member or entry made by hand has any more: what a search told of them holds again.
    uncovered: BTreeMap<Name, BTreeSet<Key>>,
    /// When tunnel endpoints that are missing were looked for last.
    overlays_at: Instant,
    edit: Edit,
    /// A daemon that waits for its turn: endpoints are made, and not polled.
    held: Option<Held>,
    /// What was deleted and a late worker may still use.
    leaving: Vec<Aside>,
    leaving_bridges: Vec<u16>,
    stopping: bool,
    /// Workers leave the rings alone.
    is_resting: bool,
}

/// What holds for a VNIC in a zone with these rules.
fn settings_at(vnic: &Vnic, rules: &Arc<str>) -> MemberSettings {
    let mut settings = vnic.settings();
    settings.firewall = settings.firewall.in_zone(rules.clone());
    settings
}

fn failed(error: DataPlaneError) -> BackendError {
    match error {
        DataPlaneError::TooManyMembers(_)
        | DataPlaneError::NoWorker { .. }
        | DataPlaneError::NoRing { .. } => BackendError::Limit(error.to_string()),
        _ => BackendError::Host(error.to_string()),
    }
}

impl Ports {
    /// With no member.
    ///
    /// # Errors
    /// The kernel's answer, if it gives no epoll set.
    pub fn new(
        plane: DataPlane,
        cores: Vec<Option<usize>>,
        sink: StateSink,
        host: Box<dyn Host>,
        wake: Arc<OwnedFd>,
        per_user: PerUser,
        runtime_dir: &Path,
    ) -> Result<Ports, Errno> {
        let watch = Watch::create()?;
        watch.add(wake.as_fd(), Source::Requests)?;
        watch.add(plane.local_alarm(), Source::Local)?;
        watch.add(plane.alarm(), Source::Condemned)?;
        watch.add(plane.learned_alarm(), Source::Learned)?;
        let namespaces = NetnsWatch::start()
            .and_then(|found| watch.add(found.as_fd(), Source::Namespaces).map(|()| found))
            .inspect_err(|error| tracing::warn!("namespaces are not watched: {error}"));
        Ok(Ports {
            per_user,
            firewalls: Firewalls::default(),
            plane,
            cores,
            sink,
            host,
            wake,
            watch,
            namespaces: namespaces.ok(),
            bridges: BTreeMap::new(),
            members: Members::default(),
            trees: BTreeMap::new(),
            flows: Flows::default(),
            devices: Devices::default(),
            trees_stand: false,
            snoops: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            leases: Leases::new(runtime_dir),
            captures: Captures::default(),
            searches: Searches::default(),
            uncovered: BTreeMap::new(),
            overlays_at: Instant::now(),
            edit: Edit::default(),
            held: None,
            leaving: Vec::new(),
            leaving_bridges: Vec::new(),
            stopping: false,
            is_resting: false,
        })
    }

    /// Has a table wake this thread when a member sends from an address that another one has.
    fn watch_clashes(&self, table: &Fdb) {
        let wake = self.wake.clone();
        table.watch_clashes(move || {
            let _ = windlass_sys::eventfd::signal(wake.as_fd());
        });
    }

    /// Ends this thread after the request in hand. What persists stays.
    pub fn stop(&mut self) {
        self.rest();
        self.stopping = true;
    }

    /// Whether every worker reaches a quiescent point.
    pub fn alive(&mut self) -> bool {
        match self.plane.stuck(PATIENCE) {
            Some(worker) => {
                tracing::error!("worker {worker} makes no progress");
                false
            }
            None => true,
        }
    }

    fn make_bridge(&mut self, bridge: &Bridge) -> Result<(), BackendError> {
        let tuning = translate::bridge_tuning(bridge);
        let id = self.plane.add_bridge(tuning, translate::limits(bridge)?);
        let state = BridgeState {
            id,
            filtering: tuning.filtering,
            stp: bridge.settings().stp,
            snoop: bridge.settings().snoop,
            statics: Vec::new(),
            clash_at: Instant::now(),
        };
        self.bridges.insert(bridge.name.clone(), state);
        if let Ok(table) = self.plane.fdb_table(id) {
            self.watch_clashes(table);
        }
        Ok(())
    }

    pub fn set_bridge(&mut self, from: &Bridge, to: &Bridge) -> Result<(), BackendError> {
        let name = &to.name;
        let id = self.bridge(name)?.id;
        let tuning = translate::bridge_tuning(to);
        // An edit may change it twice: it is changed from what it was before the first.
        let former = self.edit.set.remove(&id).map(|former| former.from);
        let from = former.as_ref().unwrap_or(from);
        // What undoes a change of this edit needs no other table: the one that is there has everything.
        if from != to {
            let (old, new) = (from.settings(), to.settings());
            let is_other_table =
                old.vlan_filtering != new.vlan_filtering || old.addresses_max != new.addresses_max;
            let table = match is_other_table {
                true => Some(self.filled_table(to, tuning.filtering)?),
                false => None,
            };
            let (from, to) = (from.clone(), to.clone());
            self.edit.set.insert(id, SetBridge { from, to, table });
        }
        if let Some(state) = self.bridges.get_mut(name) {
            state.filtering = tuning.filtering;
            state.stp = to.settings().stp;
            state.snoop = to.settings().snoop;
        }
        Ok(())
    }

    /// A table for a bridge, with the limits and the fixed entries of all its members.
    fn filled_table(
        &self,
        bridge: &Bridge,
        filtering: bool,
    ) -> Result<FdbWriter<QsbrGrace>, BackendError> {
        let mut writer = self.plane.new_table(translate::limits(bridge)?);
        self.watch_clashes(writer.table());
        for (name, member) in self.members.iter() {
            if member.bridge != bridge.name {
                continue;
            }
            member_limits(member).enter(&mut writer, member.id);
            for (key, place, flags) in self.fixed_entries(name, filtering) {
                let now = windlass_worker::dataplane::now;
                enter(|| Ok(writer.add_fixed(key, place, flags, now())))?;
            }
        }
        Ok(writer)
    }

    /// What is known of an interface; while it is missing, what most of them have.
    fn device(&mut self, name: &str) -> Device {
        self.host
            .device(name)
            .unwrap_or(Device { mtu: 1500, mac: 0 })
    }

    fn bridge(&self, name: &Name) -> Result<&BridgeState, BackendError> {
        let missing = || BackendError::Host(format!("the data plane has no bridge `{name}`"));
        self.bridges.get(name).ok_or_else(missing)
    }

    pub fn create_uplink(&mut self, uplink: &Uplink) -> Result<(), BackendError> {
        if self.take_back(&uplink.name, &Object::Uplink(uplink.clone()))? {
            return Ok(());
        }
        let endpoint = self.watch.take(self.host.uplink(uplink)?)?;
        let Device { mtu, mac } = self.device(uplink.device.as_str());
        let settings = uplink.settings();
        let bridge = self.bridge(&uplink.bridge)?.id;
        let conf = translate::member_conf(&settings, mac, mtu);
        let member = self.first_state(&uplink.bridge, conf);
        let tuning = translate::tuning(&settings, &mut self.firewalls)?;
        let id = self
            .plane
            .add_member(bridge, member, tuning)
            .map_err(failed)?;
        let state = MemberState {
            id,
            bridge: uplink.bridge.clone(),
            own: None,
            addresses: Vec::new(),
            zone: None,
            vlans: Vec::new(),
            settings: settings.clone(),
            device: Some(uplink.device.as_str().to_owned()),
            overlay: None,
            tally: None,
            endpoint: Some(endpoint),
            mtu: settings.mtu.unwrap_or(mtu),
            rings: 0,
            heard: Heard::default(),
            carried: Counters::default(),
        };
        self.enter_limits(id, &state.bridge, member_limits(&state))?;
        self.members.insert(uplink.name.clone(), state);
        self.capture_new(&uplink.name);
        self.edit.made.push(uplink.name.clone());
        Ok(())
    }

    pub fn set_uplink(&mut self, from: &Uplink, to: &Uplink) -> Result<(), BackendError> {
        if self.members.contains_key(&to.name) && from.bridge != to.bridge {
            self.set_aside(&to.name, Object::Uplink(from.clone()), End::Move)?;
            return self.create_uplink(to).inspect_err(|_| {
                let back = self.create_uplink(from);
                self.put_back(&to.name, back);
            });
        }
        self.put_uplink(to).inspect_err(|_| {
            let back = self.put_uplink(from);
            self.put_back(&to.name, back);
        })
    }

    /// Gives an uplink the properties that are written there.
    fn put_uplink(&mut self, uplink: &Uplink) -> Result<(), BackendError> {
        let settings = uplink.settings();
        let Device { mtu, mac } = self.device(uplink.device.as_str());
        let conf = translate::member_conf(&settings, mac, mtu);
        self.change_member(&uplink.name, None, conf, &settings)
    }

    pub fn create_vnic(&mut self, vnic: &Vnic, place: &Place) -> Result<(), BackendError> {
        let object = Object::Vnic(vnic.clone());
        if self.take_back(&vnic.name, &object)? {
            return Ok(());
        }
        self.leave_not(vnic);
        let settings = settings_at(vnic, &place.rules);
        let bridge = self.bridge(&vnic.bridge)?.id;
        let mut tuning = translate::tuning(&settings, &mut self.firewalls)?;
        tuning.flows = self.flows.of(&vnic.name);
        let endpoint = self.host.vnic(&self.devices.attached(vnic)?, place)?;
        let endpoint = endpoint.map(|e| self.watch.take(e)).transpose()?;
        let (mac, mtu) = (translate::own_mac(vnic), vnic.mtu());
        let conf = translate::member_conf(&settings, mac_word(mac), mtu);
        let conf = self.first_state(&vnic.bridge, conf);
        let id = self
            .plane
            .add_member(bridge, conf, tuning)
            .map_err(failed)?;
        let owner = place.owner.map(|(uid, _)| uid);
        self.plane.set_owner(id, owner).map_err(failed)?;
        let state = MemberState {
            id,
            bridge: vnic.bridge.clone(),
            own: Some(mac),
            addresses: translate::addresses(vnic),
            zone: vnic.zone.name().cloned(),
            vlans: vlans_of(&settings),
            settings: settings.clone(),
            endpoint,
            device: None,
            overlay: None,
            tally: place.owner.map(|(uid, _)| self.tally_of(uid)),
            mtu,
            rings: 0,
            heard: Heard::default(),
            carried: Counters::default(),
        };
        self.enter_limits(id, &state.bridge, member_limits(&state))?;
        self.members.insert(vnic.name.clone(), state);
        self.capture_new(&vnic.name);
        self.edit.made.push(vnic.name.clone());
        if let Err(error) = self.enter_fixed(&vnic.name) {
            self.set_aside(&vnic.name, object, End::Drop)?;
            return Err(error);
        }
        Ok(())
    }

    pub fn set_vnic(&mut self, from: &Vnic, to: &Vnic, place: &Place) -> Result<(), BackendError> {
        if !self.members.contains_key(&to.name) {
            return self.create_vnic(to, place);
        }
        if from.bridge != to.bridge {
            self.set_aside(&to.name, Object::Vnic(from.clone()), End::Move)?;
            return self.create_vnic(to, place).inspect_err(|_| {
                let back = self.create_vnic(from, place);
                self.put_back(&to.name, back);
            });
        }
        let member = self.members.get(&to.name);
        let rules = member.map(|member| member.settings.firewall.zone().clone());
        self.put_vnic(to, &place.rules).inspect_err(|_| {
            let back = self.put_vnic(from, rules.as_ref().unwrap_or(&place.rules));
            self.put_back(&to.name, back);
        })?;
        self.set_interface(from, to);
        Ok(())
    }

    /// Gives a VNIC the address and the properties that are written there. Rings and counters go on.
    fn put_vnic(&mut self, vnic: &Vnic, rules: &Arc<str>) -> Result<(), BackendError> {
        let settings = settings_at(vnic, rules);
        let (mac, mtu) = (translate::own_mac(vnic), vnic.mtu());
        let conf = translate::member_conf(&settings, mac_word(mac), mtu);
        self.change_member(&vnic.name, Some(mac), conf, &settings)?;
        if let Some(member) = self.members.get_mut(&vnic.name) {
            member.addresses = translate::addresses(vnic);
        }
        Ok(())
    }

    /// After a change that failed: says if the member could not be made again as it was.
    fn put_back(&mut self, name: &Name, done: Result<(), BackendError>) {
        if let Err(error) = done {
            tracing::error!("{name} is not as it was: {error}");
        }
    }

    /// Changes a member in place. At the end of the edit, what was learned under other rules is forgotten.
    fn change_member(
        &mut self,
        name: &Name,
        own: Option<MacAddr>,
        conf: windlass_bridge::member::MemberConf,
        settings: &MemberSettings,
    ) -> Result<(), BackendError> {
        let mut tuning = translate::tuning(settings, &mut self.firewalls)?;
        tuning.flows = self.flows.of(name);
        self.note_change(name);
        let Some(member) = self.members.get_mut(name) else {
            return Err(BackendError::Host(format!(
                "the data plane has no member `{name}`"
            )));
        };
        member.own = own;
        member.vlans = own.map_or_else(Vec::new, |_| vlans_of(settings));
        member.mtu = conf.mtu;
        member.settings = settings.clone();
        if let Some(quota) = member.endpoint.as_ref().and_then(|e| e.quota()) {
            let is_owned = member.tally.is_some();
            quota.allow_gigantic_pages(translate::gigantic_pages(settings, is_owned));
        }
        let id = member.id;
        self.plane.set_member(id, conf, tuning).map_err(failed)?;
        self.note_entries(name);
        self.enter_fixed(name)
    }

    /// Tells the table's writer a member's limits. Its budget of moves is full then.
    fn enter_limits(
        &mut self,
        id: u16,
        bridge: &Name,
        limits: MemberLimits,
    ) -> Result<(), BackendError> {
        let bridge = self.bridge(bridge)?.id;
        if let Some(table) = self.edit.table(bridge) {
            limits.enter(table, id);
            return Ok(());
        }
        let limit = move |w: &mut FdbWriter<QsbrGrace>, _| limits.enter(w, id);
        self.plane.fdb(bridge, limit).map_err(failed)
    }

    /// Puts a member's own address and the static entries that point to it into the table.
    fn enter_fixed(&mut self, name: &Name) -> Result<(), BackendError> {
        let Some(member) = self.members.get(name) else {
            return Ok(());
        };
        let bridge = self.bridge(&member.bridge)?;
        let (bridge, filtering) = (bridge.id, bridge.filtering);
        for (key, place, flags) in self.fixed_entries(name, filtering) {
            self.enter(bridge, key, place, flags)?;
        }
        Ok(())
    }

    /// A member's own address and the static entries that point to it, each with its place: the member, or an overlay's target.
    fn fixed_entries(&self, name: &Name, filtering: bool) -> Vec<(Key, u16, EntryFlags)> {
        let Some(member) = self.members.get(name) else {
            return Vec::new();
        };
        let key = |vlan, mac: MacAddr| Key::from_octets(vlan, mac.0);
        let own = own_entries(member, filtering).into_iter();
        let mut entries: Vec<_> = own.map(|(key, flags)| (key, member.id, flags)).collect();
        let statics = self.bridges.get(&member.bridge).map(|b| &b.statics);
        for entry in statics.into_iter().flatten().filter(|e| e.member == *name) {
            let vlan = if filtering { entry.vlan } else { 0 };
            let place = match &member.overlay {
                None => Some(member.id),
                Some(overlay) => entry.target.and_then(|to| overlay.place_of(vlan, to)),
            };
            entries.extend(place.map(|place| (key(vlan, entry.mac), place, flags_of(entry.kind))));
        }
        entries
    }

    /// Puts one entry into a bridge's table.
    fn enter(
        &mut self,
        bridge: u16,
        key: Key,
        member: u16,
        flags: EntryFlags,
    ) -> Result<(), BackendError> {
        if let Some(table) = self.edit.table(bridge) {
            let now = windlass_worker::dataplane::now;
            return enter(|| Ok(table.add_fixed(key, member, flags, now())));
        }
        enter(|| {
            self.plane
                .ask_fdb(bridge, move |w, now| w.add_fixed(key, member, flags, now))
                .map_err(failed)
        })
    }

    pub fn delete_vnic(&mut self, vnic: &Vnic, place: &Place) -> Result<(), BackendError> {
        if self.members.contains_key(&vnic.name) {
            return self.set_aside(&vnic.name, Object::Vnic(vnic.clone()), End::Delete);
        }
        if let Ok(Some(left)) = self.host.vnic(vnic, place) {
            self.leave(vnic, left);
        }
        Ok(())
    }

    pub fn delete_uplink(&mut self, uplink: &Uplink) -> Result<(), BackendError> {
        self.set_aside(&uplink.name, Object::Uplink(uplink.clone()), End::Delete)
    }

    /// Has what was held go on, and removes what an earlier daemon left: packet filters at interfaces that are no uplinks any more,
    /// and the progress of guests of VNICs that there are none of.
    pub fn adopted(&mut self) {
        self.searches.has_begun = true;
        self.let_go();
        self.end_restoring_leases();
        let keep: Vec<String> = self
            .members
            .values()
            .filter_map(|m| m.device.clone())
            .collect();
        let names: BTreeSet<&str> = self.members.keys().map(Name::as_str).collect();
        self.host
            .release_others(&keep, &|name| names.contains(name));
    }

    pub fn fdb_add(&mut self, entry: &StaticEntry) -> Result<(), BackendError> {
        let Some(mut place) = self.members.get(&entry.member).map(|m| m.id) else {
            return Err(BackendError::Host(format!(
                "the data plane has no member `{}`",
                entry.member
            )));
        };
        if let Some(to) = entry.target {
            self.edit.overlays.insert(entry.member.clone());
            place = self.target_of(&entry.member, entry.vlan, to)?;
        }
        let bridge = self.bridge(&entry.bridge)?;
        let key = static_key(bridge, entry);
        self.edit.note_key(&entry.bridge, key);
        let bridge = self.bridge(&entry.bridge)?.id;
        self.enter(bridge, key, place, flags_of(entry.kind))?;
        if let Some(bridge) = self.bridges.get_mut(&entry.bridge) {
            bridge.statics.retain(|e| e.key() != entry.key());
            bridge.statics.push(entry.clone());
        }
        Ok(())
    }

    pub fn fdb_delete(&mut self, entry: &StaticEntry) -> Result<(), BackendError> {
        let Ok(bridge) = self.bridge(&entry.bridge) else {
            return Ok(());
        };
        let key = static_key(bridge, entry);
        self.edit.note_key(&entry.bridge, key);
        if let Some(bridge) = self.bridges.get_mut(&entry.bridge) {
            bridge.statics.retain(|e| e.key() != entry.key());
        }
        if entry.target.is_some() {
            self.edit.overlays.insert(entry.member.clone());
        }
        Ok(())
    }

    pub fn fdb_forget(&mut self, bridge: &Name, vlan: u16, mac: MacAddr) -> bool {
        let Ok(bridge) = self.bridge(bridge) else {
            return false;
        };
        let key = Key::from_octets(vlan_of(bridge, vlan), mac.0);
        let learned = self.plane.fdb_entries(bridge.id).unwrap_or_default();
        let there = learned.iter().any(|e| e.key == key && !e.flags.is_fixed());
        there
            && self
                .plane
                .ask_fdb(bridge.id, move |w, _| w.delete(key))
                .unwrap_or(false)
    }

    pub fn fdb_flush(&mut self, bridge: &Name, query: &FdbQuery) -> u64 {
        let Ok(state) = self.bridge(bridge) else {
            return 0;
        };
        let id = state.id;
        let member = query
            .member
            .as_ref()
            .and_then(|n| self.members.get(n))
            .map(|m| m.id);
        if query.member.is_some() && member.is_none() {
            return 0;
        }
        let learned: Vec<Key> = self
            .plane
            .fdb_entries(id)
            .unwrap_or_default()
            .iter()
            .filter(|e| !e.flags.is_static())
            .filter(|e| member.is_none_or(|m| e.member == m))
            .filter(|e| query.vlan.is_none_or(|v| e.key.vid() == v))
            .filter(|e| query.mac.is_none_or(|m| e.key.octets() == m.0))
            .map(|e| e.key)
            .collect();
        let n = learned.len() as u64;
        let _ = self
            .plane
            .ask_fdb(id, move |w, _| match (member, learned.len()) {
                (Some(member), _) if n > 64 => w.flush_member(member, false),
                _ => learned.into_iter().for_each(|key| {
                    w.delete(key);
                }),
            });
        n
    }

    /// Who is at each place.
    fn holders(&self) -> BTreeMap<u16, Holder<'_>> {
        let mut holders = BTreeMap::new();
        for (name, member) in self.members.iter() {
            let at = |target| Holder {
                name,
                is_locked: member.settings.locked,
                target,
            };
            holders.insert(member.id, at(None));
            let places = member.overlay.iter().flat_map(|overlay| overlay.places());
            holders.extend(places.map(|(place, to)| (place, at(Some(to)))));
        }
        holders
    }

    pub fn fdb_show(&mut self, bridge: &Name, query: &FdbQuery) -> FdbPage {
        let Ok(state) = self.bridge(bridge) else {
            return FdbPage::default();
        };
        let holders = self.holders();
        let mut entries: Vec<_> = self
            .plane
            .fdb_entries(state.id)
            .unwrap_or_default()
            .iter()
            .filter_map(|e| {
                let holder = holders.get(&e.member)?;
                Some(translate::fdb_entry(e, holder))
            })
            .filter(|e| query.member.as_ref().is_none_or(|m| e.member == *m))
            .filter(|e| query.vlan.is_none_or(|v| e.vlan == v))
            .filter(|e| query.mac.is_none_or(|m| e.mac == m))
            .collect();
        entries.sort_by_key(|e| (e.vlan, e.mac));
        let total = entries.len() as u64;
        let limit = query.limit.filter(|l| *l != 0).unwrap_or(FDB_PAGE_DEFAULT);
        entries.truncate(limit as usize);
        FdbPage { entries, total }
    }

    pub fn fdb_learned(&self, bridge: &Name, addresses: &BTreeSet<MacAddr>) -> Vec<FdbEntry> {
        let Ok(bridge) = self.bridge(bridge) else {
            return Vec::new();
        };
        let holders = self.holders();
        let entries = self.plane.fdb_entries(bridge.id).unwrap_or_default();
        entries
            .iter()
            .filter(|e| addresses.contains(&MacAddr(e.key.octets())))
            .filter_map(|e| {
                let holder = holders.get(&e.member)?;
                Some(translate::fdb_entry(e, holder))
            })
            .filter(|e| matches!(e.kind, FdbKind::Learned | FdbKind::Sticky))
            .collect()
    }

    pub fn table(&mut self, bridge: &Name) -> TableStats {
        let Ok(state) = self.bridge(bridge) else {
            return TableStats::default();
        };
        let counts = self.plane.fdb_counts(state.id).unwrap_or_default();
        let addresses = self
            .plane
            .ask_fdb(state.id, |w, _| w.len())
            .unwrap_or_default();
        TableStats {
            addresses: u64::from(addresses),
            learned: counts.learned,
            moved: counts.moved,
            moves_refused: counts.refused_damped + counts.refused_fixed,
            expired: counts.aged,
            evicted: counts.evicted,
            refused: counts.refused_member + counts.refused_bridge,
            sightings_lost: counts.lost,
        }
    }

    pub fn status(&mut self, name: &Name) -> Status {
        let Some(member) = self.members.get(name) else {
            return Status::default();
        };
        if member.overlay.is_some() {
            return self.overlay_status(name);
        }
        let live = member.endpoint.as_ref().map(|e| e.status());
        let (state, reason) = match &live {
            Some(s) if s.up => (State::Up, None),
            Some(s) => (State::Waiting, Some(s.reason.clone())),
            None => (State::Down, Some("nobody is attached".to_owned())),
        };
        let connects = live.as_ref().map_or(0, |s| s.connects);
        let details = live.into_iter().flat_map(|s| s.details);
        let heard = member.heard.describe().map(|heard| ("heard", heard));
        let rests = self
            .plane
            .rests(member.id, windlass_worker::dataplane::now())
            .ok()
            .flatten();
        let tree = self.describe_port(name).map(|port| ("stp", port));
        let standby = self
            .describe_standby(member)
            .map(|place| ("standby", place));
        let shares = self.plane.shares(member.id);
        let shares = shares.map(|shares| ("rss-table", translate::shares(&shares)));
        let hash = shares.is_some().then(|| ("rss-hash", RSS_HASH.to_owned()));
        let rests = rests.map(|left| {
            let why = "access to its memory took too long";
            ("suspended", format!("for {} s: {why}", left.as_secs() + 1))
        });
        Status {
            state,
            reason,
            mtu_now: member.mtu,
            rings_now: member.rings,
            workers: self.plane.rings(member.id).to_vec(),
            connects,
            learned: self.learned(member),
            details: details
                .chain(heard)
                .chain(tree)
                .chain(standby)
                .chain(rests)
                .chain(hash)
                .chain(shares)
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        }
    }

    /// Where the address of a standby VNIC is.
    fn describe_standby(&self, member: &MemberState) -> Option<String> {
        let own = member.own.filter(|_| member.settings.standby)?;
        let learned = self.fdb_learned(&member.bridge, &BTreeSet::from([own]));
        let mut elsewhere = learned.iter().map(|entry| &entry.member);
        let is_here = |name: &Name| self.members.get(name).is_some_and(|m| m.id == member.id);
        Some(match elsewhere.clone().find(|name| !is_here(name)) {
            Some(name) => format!("{own} is behind {name}"),
            None if elsewhere.any(is_here) => format!("{own} was learned here"),
            None => format!("{own} was not learned yet"),
        })
    }

    pub fn counters(&mut self, name: &Name) -> Counters {
        let endpoint = self.members.get_mut(name).and_then(|m| m.endpoint.as_mut());
        let kernel = endpoint.map(|endpoint| InKernel::of(&mut **endpoint));
        let kernel = kernel.unwrap_or_default();
        self.counters_with(name, &kernel)
    }

    pub fn counted(&self, vnic: &Name) -> Vec<(u64, u64)> {
        let id = self.members.get(vnic).map(|member| member.id);
        let counted = id.and_then(|id| self.plane.counted(id).ok());
        let counted = counted.into_iter().flatten();
        counted.map(|rule| (rule.frames, rule.bytes)).collect()
    }

    fn counters_with(&self, name: &Name, kernel: &InKernel) -> Counters {
        let Some(member) = self.members.get(name) else {
            return Counters::default();
        };
        let totals = self.plane.totals(member.id).unwrap_or_default();
        let mut counters = translate::counters(&totals, kernel);
        counters += &member.carried;
        counters
    }

    pub fn drops(&self) -> BTreeMap<Name, BTreeMap<String, u64>> {
        let dropped = self.members.iter().filter_map(|(name, member)| {
            let drops = self.plane.drops(member.id);
            let mut drops =
                drops.map_or_else(|_| BTreeMap::new(), |drops| translate::drops(&drops));
            for (reason, frames) in &member.carried.drops {
                *drops.entry(reason.clone()).or_default() += frames;
            }
            (!drops.is_empty()).then(|| (name.clone(), drops))
        });
        dropped.collect()
    }

    pub fn regions(&self) -> Vec<Region> {
        let tables = self.bridges.iter().filter_map(|(owner, state)| {
            Some(Region {
                owner: owner.clone(),
                kind: "table",
                extent: self.plane.fdb_table(state.id).ok()?.extent()?,
            })
        });
        let of_members = self.members.iter().flat_map(|(owner, member)| {
            let regions = member.endpoint.iter().flat_map(|e| e.regions());
            regions.map(|(kind, extent)| Region {
                owner: owner.clone(),
                kind,
                extent,
            })
        });
        tables.chain(of_members).collect()
    }

    pub fn workers(&mut self) -> Vec<WorkerStats> {
        let totals = self.plane.workers().into_iter().zip(&self.cores);
        totals
            .enumerate()
            .map(|(worker, (t, core))| WorkerStats {
                worker: worker as u32,
                core: core.map(|c| c as u32),
                rings: t.rings as u32,
                frames: t.frames,
                visits: t.visits_busy,
                visits_empty: t.visits_empty,
                sleeps: t.sleeps,
                yields: t.yields,
                cycles_busy: t.busy_cycles,
                cycles_polling: t.polling_cycles,
                cycles_per_second: Clock::get().hz(),
                held: t.held,
            })
            .collect()
    }
}

/// Puts one entry into a table; waits where a slot has to rest for a grace period first.
fn enter(
    mut add: impl FnMut() -> Result<Result<(), AddError>, BackendError>,
) -> Result<(), BackendError> {
    for _ in 0..TRIES {
        match add()? {
            Ok(()) => return Ok(()),
            Err(AddError::Resting) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(BackendError::Limit(error.to_string())),
        }
    }
    Err(BackendError::Limit(AddError::Resting.to_string()))
}

/// A member's own addresses, in each VLAN in which it can be reached. Those of a standby VNIC are learned instead.
fn own_entries(member: &MemberState, filtering: bool) -> Vec<(Key, EntryFlags)> {
    let vlans: &[u16] = if filtering { &member.vlans } else { &[0] };
    let macs = member.own.into_iter().chain(member.settings.macs.iter());
    let own = |mac: MacAddr| {
        let keys = vlans.iter().map(move |v| Key::from_octets(*v, mac.0));
        keys.map(|key| (key, EntryFlags::LOCAL))
    };
    let fixed = macs.filter(|_| !member.settings.standby);
    fixed.flat_map(own).collect()
}

/// The key of a static entry of this bridge.
fn static_key(bridge: &BridgeState, entry: &StaticEntry) -> Key {
    Key::from_octets(vlan_of(bridge, entry.vlan), entry.mac.0)
}

/// What a table allows a member.
struct MemberLimits {
    entries: u32,
    moves: u32,
    tally: Option<Tally>,
}

impl MemberLimits {
    fn enter(self, writer: &mut FdbWriter<QsbrGrace>, member: u16) {
        writer.set_member_limits(member, self.entries, self.moves);
        writer.set_member_tally(member, self.tally);
    }
}

fn member_limits(member: &MemberState) -> MemberLimits {
    let settings = &member.settings;
    MemberLimits {
        entries: match settings.addresses_max {
            0 => u32::MAX,
            n => n,
        },
        moves: settings.move_budget,
        tally: member.tally.clone(),
    }
}

/// The VLANs in which a member can be reached.
fn vlans_of(settings: &MemberSettings) -> Vec<u16> {
    let untagged = settings.vlan.into_iter();
    untagged.chain(settings.tagged.iter()).collect()
}

fn flags_of(kind: StaticKind) -> EntryFlags {
    match kind {
        StaticKind::Static => EntryFlags::STATIC,
        StaticKind::Sticky => EntryFlags::STICKY,
    }
}

/// The VLAN of a key: 0 on a bridge that does not filter.
fn vlan_of(bridge: &BridgeState, vlan: u16) -> u16 {
    if bridge.filtering { vlan } else { 0 }
}

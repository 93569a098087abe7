//! Overlays: members whose frames go through tunnels, and what is known of their targets.
//!
//! # Model
//! An overlay is a member without an endpoint. It has a tunnel endpoint ([`Vtep`]), which overlays at one address share, and targets:
//! a place in the data plane for each remote host and network. A target is there while it gets what is flooded or an address is
//! behind it.
//!
//! What is entered by hand stands in the bridge's static entries, what the search told in [`Overlay::pushed`]; of both, the former
//! holds. What is learned only the forwarding table knows.
//!
//! # States
//! *Online*; *degraded*, with a sentence: the underlay address is missing, the search is in trouble, a datagram cannot be sent. A
//! degraded overlay goes on with what it knows, and with the underlay address as soon as it is there.
//! What the data plane has not taken (the table is full, a worker is late, there are too many targets) is tried again every second.
//!
//! # Failure modes
//! An underlay address that is missing is looked for every second. The member is there meanwhile, without a tunnel: frames for it are
//! dropped as `not-ready`. What paths take is followed every second, too.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_api::{
    Counters, HostLife, MacAddr, Name, Object, OverlaySettings, Search, State, Status, TargetKind,
    TargetQuery, TargetView,
};
use windlass_attach::vxlan::{Tos, Vtep, VtepConf};
use windlass_bridge::fdb::Key;
use windlass_dhcp::Network;
use windlass_overlay::Vni;
use windlass_sys::netns::{NetnsRef, within};
use windlass_worker::dataplane::now;
use windlass_worker::dataplane::overlays::{OverlayTuning, SourceCheck, TargetTuning, Unknown};

mod again;
mod moves;
mod pushed;
mod questions;
mod search;

use again::{Unentered, Unmade};
use moves::Moves;
pub(super) use pushed::{Behind, Pushed};
use questions::Questions;
pub(super) use questions::Server;
use search::{Announced, Lost, lookup_kind};
pub(super) use search::{Searches, allowed_ips};

use super::edit::End;
use super::heard::Heard;
use super::{MemberState, Ports, failed, member_limits};
use crate::backend::{BackendError, OverlayCounts};
use crate::dataplane::translate::{self, mac_word};
use crate::lookup::LookupKind;

/// Time from one look at tunnel endpoints to the next.
const LOOK: Duration = Duration::from_secs(1);

/// A remote host in one network: its place is a target of the data plane.
type TargetKey = (u32, SocketAddr);

/// A target, while somebody uses it.
struct Target {
    place: u16,
    tuning: TargetTuning,
    floods: bool,
    /// Addresses behind it that were told.
    pushed: u32,
}

/// What an overlay is beside a member.
pub(super) struct Overlay {
    search: Search,
    settings: OverlaySettings,
    /// VLAN (0 where the bridge does not filter) and network identifier.
    networks: Vec<(u16, u32)>,
    vtep: Option<Arc<Vtep>>,
    /// Why it has no tunnel endpoint.
    missing: Option<String>,
    /// How targets are looked up, if not by its properties alone.
    lookup: Option<LookupKind>,
    /// What is wrong with the search.
    trouble: Option<String>,
    unentered: Unentered,
    /// Why not all that is flooded goes where it is to go.
    unflooded: Option<String>,
    unmade: Unmade,
    questions: Questions,
    /// Hosts that get what is flooded in a network, as the search told.
    flooded: BTreeMap<u32, Vec<SocketAddr>>,
    /// Hosts of the registry.
    hosts: BTreeMap<String, (Vec<SocketAddr>, HostLife)>,
    /// What the registry was told of this host.
    announced: BTreeMap<(u32, MacAddr), Announced>,
    /// Those of them that it refused.
    lost: Lost,
    moves: Moves,
    targets: BTreeMap<TargetKey, Target>,
    /// Those of them that nobody may use any more.
    idle: BTreeSet<TargetKey>,
    /// Places that targets have left, and that a late worker may still send to.
    going: Vec<u16>,
    pub(super) pushed: BTreeMap<(u16, MacAddr), Pushed>,
}

impl Overlay {
    fn new(conf: &windlass_api::Overlay, filters: bool) -> Overlay {
        let settings = conf.settings();
        Overlay {
            search: conf.search,
            networks: settings.networks(filters),
            lookup: lookup_kind(conf.search, &settings, &conf.properties),
            flooded: BTreeMap::new(),
            hosts: BTreeMap::new(),
            announced: BTreeMap::new(),
            lost: Lost::new(),
            moves: Moves::default(),
            settings,
            vtep: None,
            missing: None,
            trouble: None,
            unentered: Unentered::default(),
            unflooded: None,
            unmade: Unmade::default(),
            questions: Questions::default(),
            targets: BTreeMap::new(),
            idle: BTreeSet::new(),
            going: Vec::new(),
            pushed: BTreeMap::new(),
        }
    }

    pub(super) fn vni_of(&self, vlan: u16) -> Option<u32> {
        let network = self.networks.iter().find(|(own, _)| *own == vlan);
        network.map(|(_, vni)| *vni)
    }

    fn vlan_of(&self, vni: u32) -> Option<u16> {
        let network = self.networks.iter().find(|(_, own)| *own == vni);
        network.map(|(vlan, _)| *vlan)
    }

    /// The targets that get what is flooded.
    fn floods(&self) -> BTreeSet<TargetKey> {
        let settings = &self.settings;
        let port = settings.listen.map_or(0, |listen| listen.port());
        let hosts: Vec<SocketAddr> = match (self.search, settings.group) {
            (Search::Direct, _) => settings.direct.into_iter().collect(),
            (Search::Learn, Some(group)) => vec![SocketAddr::new(group, port)],
            (Search::Learn, None) => settings.remotes.with_port(port),
            _ => Vec::new(),
        };
        let vnis = self.networks.iter().map(|(_, vni)| *vni);
        let all = vnis.flat_map(|vni| hosts.iter().map(move |host| (vni, *host)));
        all.chain(self.told_floods()).collect()
    }

    /// Whether every target gets what is flooded.
    fn floods_all(&self) -> bool {
        self.settings.broadcasts || self.settings.unknown == windlass_api::Unknown::Flood
    }

    fn tuning(&self, vtep: Arc<Vtep>, member: windlass_worker::MemberTuning) -> OverlayTuning {
        let settings = &self.settings;
        OverlayTuning {
            vtep,
            vnis: self
                .networks
                .iter()
                .filter_map(|(vlan, vni)| Some((*vlan, Vni::new(*vni)?)))
                .collect(),
            keep_inner_tag: settings.keeps_tag,
            unknown: match settings.unknown {
                windlass_api::Unknown::Drop => Unknown::Drop,
                windlass_api::Unknown::Flood => Unknown::Flood,
                windlass_api::Unknown::Lookup => Unknown::Lookup,
            },
            broadcast: settings.broadcasts,
            source_check: match (settings.is_open, settings.is_strict) {
                (true, _) => SourceCheck::Open,
                (false, true) => SourceCheck::Strict,
                (false, false) => SourceCheck::Vtep,
            },
            learn: settings.learns,
            mtu: self.settings.inner_mtu() as u16,
            member,
        }
    }

    fn target_tuning(&self, key: TargetKey, floods: bool) -> Option<TargetTuning> {
        Some(TargetTuning {
            to: key.1,
            vni: Vni::new(key.0)?,
            bum: floods,
            mtu: self.settings.inner_mtu() as u16,
        })
    }
}

/// Opens a tunnel endpoint.
fn open(settings: &OverlaySettings, listen: SocketAddr, workers: u16) -> Result<Arc<Vtep>, String> {
    let conf = VtepConf {
        local: listen,
        ttl: settings.ttl,
        tos: settings.tos.map_or(Tos::Inherit, Tos::Fixed),
        ports: settings.ports,
    };
    let opened = match &settings.netns {
        None => Vtep::open(&conf, workers),
        Some(name) => {
            let namespace = NetnsRef::open(name).map_err(|error| error.to_string())?;
            within(&namespace, || Vtep::open(&conf, workers)).map_err(|error| error.to_string())?
        }
    };
    opened.map_err(|error| format!("{listen}: {error}"))
}

impl Ports {
    pub fn create_overlay(&mut self, overlay: &windlass_api::Overlay) -> Result<(), BackendError> {
        let object = Object::Overlay(overlay.clone());
        if self.take_back(&overlay.name, &object)? {
            return self.search_on(&overlay.name);
        }
        let bridge = self.bridge(overlay.bridge())?;
        let (bridge, filters) = (bridge.id, bridge.filtering);
        let settings = overlay.member();
        let state = Overlay::new(overlay, filters);
        let conf = translate::member_conf(&settings, 0, state.settings.inner_mtu());
        let tuning = translate::tuning(&settings, &mut self.firewalls)?;
        let id = self
            .plane
            .add_member(bridge, conf, tuning)
            .map_err(failed)?;
        let state = MemberState {
            id,
            bridge: overlay.bridge().clone(),
            own: None,
            addresses: Vec::new(),
            zone: None,
            vlans: Vec::new(),
            mtu: state.settings.inner_mtu(),
            settings,
            endpoint: None,
            device: None,
            overlay: Some(Box::new(state)),
            tally: None,
            rings: 0,
            heard: Heard::default(),
            carried: Counters::default(),
        };
        self.enter_limits(id, &state.bridge, member_limits(&state))?;
        self.members.insert(overlay.name.clone(), state);
        self.capture_new(&overlay.name);
        self.edit.made.push(overlay.name.clone());
        let begun = self.begin_search(&overlay.name, true);
        let begun = begun.and_then(|()| self.begin_overlay(&overlay.name));
        begun.inspect_err(|_| {
            let aside = self.set_aside(&overlay.name, object, End::Drop);
            self.put_back(&overlay.name, aside);
        })
    }

    pub fn set_overlay(
        &mut self,
        from: &windlass_api::Overlay,
        to: &windlass_api::Overlay,
    ) -> Result<(), BackendError> {
        self.put_overlay(to).inspect_err(|_| {
            let back = self.put_overlay(from);
            self.put_back(&to.name, back);
        })
    }

    pub fn delete_overlay(&mut self, overlay: &windlass_api::Overlay) -> Result<(), BackendError> {
        let object = Object::Overlay(overlay.clone());
        self.set_aside(&overlay.name, object, End::Delete)
    }

    /// Gives an overlay the properties that are written there. What is known of addresses stays, but for networks that it has no more.
    fn put_overlay(&mut self, overlay: &windlass_api::Overlay) -> Result<(), BackendError> {
        let filters = self.bridge(overlay.bridge())?.filtering;
        let next = Overlay::new(overlay, filters);
        let (settings, name) = (overlay.member(), &overlay.name);
        let conf = translate::member_conf(&settings, 0, next.settings.inner_mtu());
        self.change_member(name, None, conf, &settings)?;
        let Some(state) = self.overlay_mut(name) else {
            return Ok(());
        };
        state.settings = next.settings;
        let networks = std::mem::replace(&mut state.networks, next.networks);
        let lookup = std::mem::replace(&mut state.lookup, next.lookup);
        if state.lookup != lookup || state.networks != networks {
            let begun = self.begin_search(name, false);
            if let (Err(_), Some(state)) = (&begun, self.overlay_mut(name)) {
                // What was told is of these.
                (state.networks, state.lookup) = (networks, lookup);
                return begun;
            }
            let moved = self.moved_addresses(name, &networks);
            self.push(name, moved)?;
        }
        self.begin_overlay(name)
    }

    /// What is to be entered of the addresses that were told while an overlay had these networks: where a VLAN is another network
    /// now they go, and come to the VLAN that theirs has. The search does not tell of that: it knows of no VLANs, and what it tells
    /// of a network that the overlay has no more is not heard.
    fn moved_addresses(
        &self,
        name: &Name,
        networks: &[(u16, u32)],
    ) -> Vec<(u16, MacAddr, Option<Behind>)> {
        let Some(state) = self.overlay(name) else {
            return Vec::new();
        };
        let pushed = state.pushed.iter();
        let pushed = pushed.map(|(key, pushed)| (key, &pushed.behind));
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        for ((vlan, mac), behind) in pushed.chain(&state.unmade.told) {
            let vni = networks.iter().find(|(own, _)| own == vlan);
            let next = vni.and_then(|(_, vni)| state.vlan_of(*vni));
            if next != Some(*vlan) {
                gone.push((*vlan, *mac, None));
                come.extend(next.map(|next| (next, *mac, Some(behind.clone()))));
            }
        }
        // Two VLANs may have changed places.
        gone.append(&mut come);
        gone
    }

    /// All addresses that the search told, each as one that goes.
    fn told_addresses(&self, name: &Name) -> Vec<(u16, MacAddr, Option<Behind>)> {
        let state = self.overlay(name).into_iter();
        let keys = state.flat_map(|state| state.pushed.keys().chain(state.unmade.told.keys()));
        keys.map(|(vlan, mac)| (*vlan, *mac, None)).collect()
    }

    fn overlay_mut(&mut self, name: &Name) -> Option<&mut Overlay> {
        // Nobody follows what this changes.
        let id = self.members.get(name)?.id;
        self.members.of(id)?.overlay.as_deref_mut()
    }

    fn overlay(&self, name: &Name) -> Option<&Overlay> {
        self.members.get(name)?.overlay.as_deref()
    }

    /// Gives an overlay its tunnel endpoint, if that can be had, and its targets.
    fn begin_overlay(&mut self, name: &Name) -> Result<(), BackendError> {
        self.find_vtep(name);
        let Some(member) = self.members.get(name) else {
            return Ok(());
        };
        let (id, Some(state)) = (member.id, &member.overlay) else {
            return Ok(());
        };
        let Some(vtep) = state.vtep.clone() else {
            return Ok(());
        };
        let conf = translate::member_conf(&member.settings, 0, state.settings.inner_mtu());
        let tuning = translate::tuning(&member.settings, &mut self.firewalls)?;
        let tuning = state.tuning(vtep, tuning);
        self.plane.set_overlay(id, conf, tuning).map_err(failed)?;
        self.match_floods(name);
        self.renew_places(name)
    }

    /// Opens an overlay's tunnel endpoint, or shares another one's.
    fn find_vtep(&mut self, name: &Name) {
        let Some(state) = self.overlay(name) else {
            return;
        };
        let Some(listen) = state.settings.listen else {
            return;
        };
        let netns = &state.settings.netns;
        let others = self.members.overlays().map(|(_, _, overlay)| overlay);
        let shared = others
            .filter(|o| o.settings.listen == Some(listen) && o.settings.netns == *netns)
            .find_map(|other| other.vtep.clone());
        let found = match shared {
            Some(vtep) => Ok(vtep),
            None => open(&state.settings, listen, self.cores.len().max(1) as u16),
        };
        if let Some(state) = self.overlay_mut(name) {
            (state.vtep, state.missing) = match found {
                Ok(vtep) => (Some(vtep), None),
                Err(why) => (None, Some(why)),
            };
        }
    }

    /// When something of overlays is to be done.
    pub(super) fn overlays_due(&self) -> Option<Instant> {
        let mut overlays = self
            .members
            .overlays()
            .map(|(_, _, overlay)| overlay)
            .peekable();
        let look = overlays.peek().map(|_| self.overlays_at + LOOK);
        let due = overlays.filter_map(|overlay| overlay.questions.due());
        let due = due.chain(self.searches.due());
        look.into_iter().chain(due).min()
    }

    /// Looks for tunnel endpoints that are missing and at the paths of the others, tries again to make targets, and has searches asked
    /// again.
    pub(super) fn run_overlays(&mut self) {
        self.run_lives();
        self.run_moves();
        if Instant::now() < self.overlays_at + LOOK {
            return;
        }
        self.overlays_at = Instant::now();
        if let Err(error) = self.plane.follow_paths() {
            tracing::error!("paths of overlays: {error}");
        }
        self.try_again();
        let waiting = self.members.overlays();
        let waiting = waiting.filter(|(_, _, overlay)| overlay.vtep.is_none());
        let waiting: Vec<Name> = waiting.map(|(name, ..)| name.clone()).collect();
        for name in waiting {
            if let Err(error) = self.begin_overlay(&name) {
                tracing::error!("{name}: {error}");
            }
            self.sink.changed(&name);
        }
    }

    /// Has exactly those targets get what is flooded that are to. What cannot be done is tried again every second.
    fn match_floods(&mut self, name: &Name) {
        let done = self.try_floods(name);
        if let Some(state) = self.overlay_mut(name) {
            state.unflooded = done.err().map(|error| error.to_string());
        }
    }

    fn try_floods(&mut self, name: &Name) -> Result<(), BackendError> {
        let Some(state) = self.overlay(name) else {
            return Ok(());
        };
        let (wanted, all) = (state.floods(), state.floods_all());
        let known = state.targets.keys().copied();
        let keys: BTreeSet<_> = known.chain(wanted.iter().copied()).collect();
        let all_wanted = keys.iter().map(|key| (*key, wanted.contains(key) || all));
        self.want_targets(name, all_wanted.collect())?;
        for key in keys {
            let floods = wanted.contains(&key);
            if let Some(state) = self.overlay_mut(name)
                && let Some(target) = state.targets.get_mut(&key)
            {
                target.floods = floods;
                if !floods && target.pushed == 0 {
                    state.idle.insert(key);
                }
            }
        }
        Ok(())
    }

    /// Makes or changes targets, each of which gets what is flooded or not. Those that are new are published together.
    fn want_targets(
        &mut self,
        name: &Name,
        wanted: BTreeMap<TargetKey, bool>,
    ) -> Result<(), BackendError> {
        let targets = self.overlay(name).map(|state| &state.targets);
        let is_new = |key| targets.is_some_and(|targets| !targets.contains_key(key));
        let is_batch = !self.edit.is_open && wanted.keys().any(is_new);
        if is_batch {
            self.plane.begin_batch();
        }
        let mut wanted = wanted.into_iter();
        let done = wanted.try_for_each(|(key, floods)| {
            let place = self.want_target(name, key, floods);
            place.map(|_| ())
        });
        if is_batch {
            self.plane.end_batch();
        }
        done
    }

    /// The place of a target, which is made if it is not there.
    fn want_target(
        &mut self,
        name: &Name,
        key: TargetKey,
        floods: bool,
    ) -> Result<u16, BackendError> {
        let missing = || BackendError::Host(format!("the data plane has no overlay `{name}`"));
        let member = self.members.get(name).ok_or_else(missing)?;
        let state = member.overlay.as_deref().ok_or_else(missing)?;
        let no_network = || BackendError::Host(format!("overlay `{name}` has no VNI {}", key.0));
        let tuning = state.target_tuning(key, floods).ok_or_else(no_network)?;
        let known = state.targets.get(&key);
        let (id, known) = (member.id, known.map(|target| (target.place, target.tuning)));
        if let Some((place, former)) = known {
            if former != tuning {
                self.plane.set_target(place, tuning).map_err(failed)?;
            }
            let state = self.overlay_mut(name);
            if let Some(target) = state.and_then(|state| state.targets.get_mut(&key)) {
                target.tuning = tuning;
            }
            return Ok(place);
        }
        let place = self.plane.add_target(id, tuning).map_err(failed)?;
        if let Some(state) = self.overlay_mut(name) {
            let target = Target {
                place,
                tuning,
                floods: false,
                pushed: 0,
            };
            state.targets.insert(key, target);
            state.idle.insert(key);
        }
        Ok(place)
    }

    /// The place that a fixed entry of an overlay points to.
    pub(super) fn target_of(
        &mut self,
        name: &Name,
        vlan: u16,
        to: SocketAddr,
    ) -> Result<u16, BackendError> {
        let state = self.overlay(name);
        let no_network = || BackendError::Host(format!("overlay `{name}` has no VLAN {vlan}"));
        let found = state.and_then(|state| Some((state.vni_of(vlan)?, state.floods_all())));
        let (vni, floods) = found.ok_or_else(no_network)?;
        self.want_target(name, (vni, to), floods)
    }

    /// Enters what the search told of addresses: VLAN, address, and the target with the IP addresses behind it; without one, the
    /// address goes.
    pub(super) fn push(
        &mut self,
        name: &Name,
        changes: Vec<(u16, MacAddr, Option<Behind>)>,
    ) -> Result<(), BackendError> {
        let mut entries = Vec::with_capacity(changes.len());
        let (mut asked, mut placed) = (Vec::new(), BTreeMap::new());
        let statics = self.statics_of(name);
        if let Some(state) = self.overlay(name) {
            let floods = state.floods_all();
            let told = changes.iter();
            let told =
                told.filter_map(|(vlan, _, told)| Some((*vlan, told.as_ref()?.record.target)));
            let keys = told.filter_map(|(vlan, to)| Some((state.vni_of(vlan)?, to)));
            let wanted = keys.map(|key| (key, floods)).collect();
            // One that cannot be made is met below.
            let _ = self.want_targets(name, wanted);
        }
        for (vlan, mac, told) in changes {
            let key = (vlan, mac);
            let place = told
                .as_ref()
                .map(|told| self.target_of(name, vlan, told.record.target));
            let Some(state) = self.overlay_mut(name) else {
                break;
            };
            let gone = state.take_pushed(key);
            let gone = gone.iter().flat_map(|gone| &gone.behind.record.ips);
            asked.extend(gone.map(|ip| (vlan, *ip, None)));
            state.unmade.told.remove(&key);
            state.unentered.keys.remove(&Key::from_octets(vlan, mac.0));
            let place = match (place, told) {
                (Some(Ok(place)), Some(told)) => {
                    let ips = told.record.ips.iter();
                    asked.extend(ips.map(|ip| (vlan, *ip, Some(mac))));
                    state.put_pushed(key, told);
                    Some(place)
                }
                (Some(Err(error)), Some(told)) => {
                    state.unmade.why = error.to_string();
                    state.unmade.told.insert(key, told);
                    None
                }
                _ => None,
            };
            if !statics.contains(&key) {
                entries.push((vlan, mac_word(mac), place));
                placed.extend(place.map(|place| (key, place)));
            }
        }
        self.tell_neighbours(name, asked);
        self.answer_asked(name, placed);
        self.enter_told(name, entries);
        Ok(())
    }

    /// Addresses of an overlay that were entered by hand.
    fn statics_of(&self, name: &Name) -> BTreeSet<(u16, MacAddr)> {
        let member = self.members.get(name);
        let bridge = member.and_then(|member| self.bridges.get(&member.bridge));
        let statics = bridge.map(|bridge| bridge.statics.iter());
        let own = statics.into_iter().flatten().filter(|e| e.member == *name);
        own.map(|entry| (entry.vlan, entry.mac)).collect()
    }

    /// Enters everything again that was told: places may be others than before.
    fn renew_places(&mut self, name: &Name) -> Result<(), BackendError> {
        let Some(state) = self.overlay(name) else {
            return Ok(());
        };
        let told = state.pushed.iter();
        let told = told.map(|((vlan, mac), pushed)| (*vlan, *mac, Some(pushed.behind.clone())));
        let told: Vec<_> = told.collect();
        self.push(name, told)
    }

    /// Enters again what searches told of addresses that nobody here has any more.
    pub(super) fn renew_uncovered(&mut self) {
        for (bridge, keys) in std::mem::take(&mut self.uncovered) {
            let there = self.members.overlays();
            let there = there.filter(|(_, member, _)| member.bridge == bridge);
            let there: Vec<Name> = there.map(|(name, ..)| name.clone()).collect();
            for name in there {
                let again = self.overlay(&name).map(|state| {
                    let pushed = |key: &&Key| state.pushed.contains_key(&address(key));
                    let again = keys.iter().filter(pushed);
                    again.map(|key| state.told_of(*key)).collect()
                });
                if let Err(error) = self.push(&name, again.unwrap_or_default()) {
                    tracing::error!("{name}: {error}");
                }
            }
        }
    }

    /// After an edit: an entry made by hand may have uncovered what the search told, or have left a target without use; a bridge may
    /// have another table, or filter VLANs now.
    pub(super) fn end_overlays(&mut self, mut changed: BTreeSet<Name>, bridges: &BTreeSet<u16>) {
        let is_on = |member: &MemberState| {
            let bridge = self.bridges.get(&member.bridge);
            bridge.is_some_and(|bridge| bridges.contains(&bridge.id))
        };
        let there = self.members.overlays().filter(|(_, m, _)| is_on(m));
        let there: Vec<Name> = there.map(|(name, ..)| name.clone()).collect();
        for name in &there {
            if let Err(error) = self.renew_networks(name) {
                tracing::error!("{name}: {error}");
            }
        }
        changed.extend(there);
        for name in changed {
            if let Some(state) = self.overlay_mut(&name) {
                state.idle = state.targets.keys().copied().collect();
            }
            if let Err(error) = self.renew_places(&name) {
                tracing::error!("{name}: {error}");
            }
            self.remove_idle(&name);
        }
    }

    /// Gives an overlay its networks by the VLANs that its bridge has now.
    fn renew_networks(&mut self, name: &Name) -> Result<(), BackendError> {
        let member = self.members.get(name);
        let bridge = member.and_then(|member| self.bridges.get(&member.bridge));
        let Some(filters) = bridge.map(|bridge| bridge.filtering) else {
            return Ok(());
        };
        let Some(state) = self.overlay_mut(name) else {
            return Ok(());
        };
        let networks = state.settings.networks(filters);
        if networks == state.networks {
            return Ok(());
        }
        state.networks = networks;
        let told = std::mem::take(&mut state.pushed).into_iter();
        state.pushed = told
            .filter_map(|((_, mac), pushed)| Some(((state.vlan_of(pushed.vni)?, mac), pushed)))
            .collect();
        let pushed = state.pushed.iter();
        let lives = pushed.filter_map(|(key, pushed)| Some((*key, pushed.behind.life()?)));
        state.questions.renew(lives);
        self.begin_overlay(name)
    }

    pub fn overlay_counts(&self, name: &Name) -> OverlayCounts {
        let Some(state) = self.overlay(name) else {
            return OverlayCounts::default();
        };
        let targets = state.targets.len() as u64;
        let addresses = self.targets(name, &TargetQuery::default());
        let addresses = addresses.iter().filter(|target| target.mac.is_some());
        OverlayCounts {
            targets,
            addresses: addresses.count() as u64,
        }
    }

    pub fn targets(&self, name: &Name, query: &TargetQuery) -> Vec<TargetView> {
        let Some(member) = self.members.get(name) else {
            return Vec::new();
        };
        let (Some(state), Some(bridge)) = (&member.overlay, self.bridges.get(&member.bridge))
        else {
            return Vec::new();
        };
        let by_place: BTreeMap<u16, TargetKey> = state
            .targets
            .iter()
            .map(|(key, t)| (t.place, *key))
            .collect();
        let statics = self.statics_of(name);
        let entries = self.plane.fdb_entries(bridge.id).unwrap_or_default();
        let known = entries.iter().filter_map(|entry| {
            let (vni, target) = *by_place.get(&entry.member)?;
            let (vlan, mac) = (state.vlan_of(vni)?, MacAddr(entry.key.octets()));
            let kind = match entry.flags.is_fixed() {
                true if statics.contains(&(vlan, mac)) => TargetKind::Static,
                true => TargetKind::Pushed,
                false => TargetKind::Learned,
            };
            Some(TargetView {
                mac: Some(mac),
                vlan,
                vni,
                target,
                kind,
                age_s: (kind == TargetKind::Learned).then_some((entry.age_ms / 1000) as u32),
            })
        });
        let floods = state.targets.iter().filter(|(_, target)| target.floods);
        let floods = floods.filter_map(|((vni, target), _)| {
            Some(TargetView {
                mac: None,
                vlan: state.vlan_of(*vni)?,
                vni: *vni,
                target: *target,
                kind: TargetKind::Flood,
                age_s: None,
            })
        });
        let mut all: Vec<_> = known.chain(floods).collect();
        all.retain(|target| query.mac.is_none_or(|mac| target.mac == Some(mac)));
        all.retain(|target| query.vlan.is_none_or(|vlan| target.vlan == vlan));
        all.sort_by_key(|target| (target.vlan, target.mac, target.target));
        all
    }

    pub fn flush_targets(&mut self, name: &Name, query: &TargetQuery) -> u64 {
        let learned = self.targets(name, query);
        let learned = learned
            .iter()
            .filter(|target| target.kind == TargetKind::Learned);
        let macs = learned.filter_map(|target| Some((target.vlan, target.mac?)));
        let keys: Vec<_> = macs
            .map(|(vlan, mac)| Key::from_octets(vlan, mac.0))
            .collect();
        let member = self.members.get(name);
        let Some(bridge) = member.and_then(|member| self.bridges.get(&member.bridge)) else {
            return 0;
        };
        let n = keys.len() as u64;
        let done = self.plane.ask_fdb(bridge.id, move |writer, _| {
            keys.into_iter().for_each(|key| {
                writer.delete(key);
            });
        });
        done.map_or(0, |()| n)
    }

    /// The state of an overlay.
    pub(super) fn overlay_status(&mut self, name: &Name) -> Status {
        let endpoints = self.plane.vtep_states();
        let Some(member) = self.members.get(name) else {
            return Status::default();
        };
        let Some(overlay) = member.overlay.as_deref() else {
            return Status::default();
        };
        let mut endpoints = endpoints.into_iter();
        let endpoint = endpoints.find(|endpoint| endpoint.overlays.contains(&member.id));
        let missing = overlay.missing.as_ref();
        let missing = missing.map(|why| format!("the underlay is not there: {why}"));
        let reason = missing.or_else(|| overlay.unentered.words());
        let reason = reason.or_else(|| overlay.unflooded.clone());
        let reason = reason.or_else(|| overlay.unmade.words());
        let reason = reason.or_else(|| overlay.questions.full());
        let reason = reason.or_else(|| overlay.trouble.clone());
        let reason = reason.or_else(|| overlay.lost());
        let reason = reason.or_else(|| endpoint.as_ref()?.troubles.first().cloned());
        // Datagrams that reach no bridge: they are counted where they arrive.
        let counted = endpoint.map_or([0; 3], |at| [at.headers, at.strangers, at.relayed]);
        let [malformed, unknown, relayed] = counted.map(|datagrams| datagrams.to_string());
        let served = self.served(&member.bridge, name).into_iter().flatten();
        let listen = overlay.settings.listen.map(|listen| listen.to_string());
        let networks = overlay.networks.iter().map(|(vlan, vni)| match vlan {
            0 => vni.to_string(),
            _ => format!("{vlan}={vni}"),
        });
        let networks = networks.collect::<Vec<_>>().join(",");
        Status {
            state: match reason {
                None => State::Up,
                Some(_) => State::Waiting,
            },
            reason,
            mtu_now: member.mtu,
            details: [
                ("listen", listen.unwrap_or_default()),
                ("networks", networks),
                ("malformed-datagrams", malformed),
                ("unknown-vni-datagrams", unknown),
                ("relayed-datagrams", relayed),
            ]
            .into_iter()
            .chain(served)
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
            ..Status::default()
        }
    }
}

/// What a key of the table is of.
fn address(key: &Key) -> (u16, MacAddr) {
    (key.vid(), MacAddr(key.octets()))
}

impl Overlay {
    /// What the search told of an address.
    fn told_of(&self, key: Key) -> (u16, MacAddr, Option<Behind>) {
        let (vlan, mac) = address(&key);
        let pushed = self.pushed.get(&(vlan, mac));
        let pushed = pushed.map(|pushed| pushed.behind.clone());
        (vlan, mac, pushed)
    }

    /// What hosts on its bridge are told, if they are.
    pub(super) fn network(&self) -> Option<Network> {
        let settings = &self.settings;
        let (router_v4, router_v6) = settings.routers();
        settings.proxies.serve().then(|| Network {
            prefixes: settings.subnets.iter().collect(),
            router_v4,
            router_v6,
            name_servers: settings.name_servers.iter().map(|(ip, _)| ip).collect(),
            lease_s: settings.lease_s,
            mtu: settings.inner_mtu() as u16,
            leases: settings.proxies.dhcp,
            advertises: settings.proxies.ra,
        })
    }

    /// The VLANs of its networks; 0 where the bridge does not filter.
    pub(super) fn vlans(&self) -> impl Iterator<Item = u16> {
        self.networks.iter().map(|(vlan, _)| *vlan)
    }

    /// What the search told of an address: its IP addresses, and its DHCP server.
    pub(super) fn record(&self, key: (u16, MacAddr)) -> Option<(&[IpAddr], Option<MacAddr>)> {
        let pushed = self.pushed.get(&key)?;
        let record = &pushed.behind.record;
        Some((&record.ips, record.dhcp.map(|mac| MacAddr(mac.0))))
    }

    /// Whether frames have their VLAN's tag in the tunnel.
    pub(super) fn keeps_tag(&self) -> bool {
        self.settings.keeps_tag
    }

    /// The place of each of its targets.
    pub(super) fn places(&self) -> impl Iterator<Item = (u16, SocketAddr)> {
        self.targets
            .iter()
            .map(|((_, to), target)| (target.place, *to))
    }

    /// The place of a target that is there.
    pub(super) fn place_of(&self, vlan: u16, to: SocketAddr) -> Option<u16> {
        let target = self.targets.get(&(self.vni_of(vlan)?, to))?;
        Some(target.place)
    }

    /// Keeps what the search tells of an address.
    fn put_pushed(&mut self, key: (u16, MacAddr), told: Behind) {
        self.questions.note_life(key, told.life());
        let pushed = Pushed {
            vni: self.vni_of(key.0).unwrap_or_default(),
            behind: told,
        };
        if let Some(target) = self.targets.get_mut(&pushed.target()) {
            target.pushed += 1;
        }
        self.pushed.insert(key, pushed);
    }

    /// Takes out what the search told of an address.
    fn take_pushed(&mut self, key: (u16, MacAddr)) -> Option<Pushed> {
        let pushed = self.pushed.remove(&key)?;
        self.questions.end_life(key, pushed.behind.life());
        let to = pushed.target();
        if self.is_live((pushed.vni, key.1)) {
            self.moves.keep(to, now());
        }
        if let Some(target) = self.targets.get_mut(&to) {
            target.pushed -= 1;
            if target.pushed == 0 {
                self.idle.insert(to);
            }
        }
        Some(pushed)
    }

    /// What questions for IP addresses of other hosts are answered with: VLAN, address, and whose it is.
    pub(super) fn answers(&self) -> impl Iterator<Item = (u16, IpAddr, Option<MacAddr>)> {
        let all = self.pushed.iter();
        all.flat_map(|((vlan, mac), pushed)| {
            let ips = pushed.behind.record.ips.iter();
            ips.map(|ip| (*vlan, *ip, Some(*mac)))
        })
    }

    /// Whether such questions are answered.
    pub(super) fn answers_for(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(_) => self.settings.proxies.arp,
            IpAddr::V6(_) => self.settings.proxies.ndp,
        }
    }
}

//! Overlays: members of a bridge whose frames go through tunnels, and their targets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use windlass_attach::vxlan::{Group, Network, Tables, Target, TargetConf, Trouble, Vtep};
use windlass_bridge::fdb::{AddError, EntryFlags, FdbWriter, Key};
use windlass_bridge::member::MemberConf;
use windlass_bridge::pace::Paces;
use windlass_bridge::vlan::VlanMap;
use windlass_frame::{Tick, TxId};
use windlass_overlay::Vni;

use super::{DataPlane, DataPlaneError, MemberTuning};
use crate::grace::QsbrGrace;
use paths::Path;

mod paths;

/// The first place of a target: members have the numbers below.
pub const TARGETS: u16 = 4096;
/// Targets of a data plane at most.
pub const TARGETS_MAX: u16 = 16_384;
/// Places of a data plane at most.
pub(crate) const PLACES: usize = (TARGETS + TARGETS_MAX) as usize;
/// The bridge of members that are on none.
const NO_BRIDGE: u16 = u16::MAX;
/// For so many places more at a time a table gets room.
const PLACES_AT_ONCE: u32 = 256;
/// Entries that a table's writer enters between two rounds: some 50 us.
const PUSHED_AT_ONCE: usize = 512;
/// Rounds in which entries may wait for erased slots to have rested.
const RESTS: usize = 1000;

/// What becomes of unicast frames whose destination is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// They do not enter the tunnel.
    #[default]
    Drop,
    /// They go to each target that takes broadcasts.
    Flood,
    /// They wait, and the search is asked ([`DataPlane::take_questions`]).
    Lookup,
}

/// Whose datagrams an overlay takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceCheck {
    /// Those that come from the address of one of its targets.
    #[default]
    Vtep,
    /// The same, and the table must have the inner source behind that target.
    Strict,
    /// From any address. An overlay of several networks takes none of strangers: its own place is not in one VLAN, so that the frame would
    /// choose.
    Open,
}

/// What an overlay is besides its place on the bridge.
#[derive(Clone, Debug)]
pub struct OverlayTuning {
    /// Its tunnel endpoint, which others may share.
    pub vtep: Arc<Vtep>,
    /// Its networks: VLAN (0 where the bridge does not filter) and identifier.
    pub vnis: Vec<(u16, Vni)>,
    /// Frames keep their VLAN's tag in the tunnel.
    pub keep_inner_tag: bool,
    /// What becomes of frames to unknown addresses.
    pub unknown: Unknown,
    /// Broadcast and multicast frames enter the tunnel.
    pub broadcast: bool,
    /// Whose datagrams it takes.
    pub source_check: SourceCheck,
    /// Sources behind targets are learned.
    pub learn: bool,
    /// Longest inner packet, in bytes behind the link header.
    pub mtu: u16,
    /// What it is as a member.
    pub member: MemberTuning,
}

/// One remote tunnel endpoint of one overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetTuning {
    /// Its address and port.
    pub to: SocketAddr,
    /// The network: one of the overlay's.
    pub vni: Vni,
    /// Broadcasts are replicated to it.
    pub bum: bool,
    /// Longest inner packet on the way to it, in bytes behind the link header.
    pub mtu: u16,
}

/// What a target has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetTotals {
    /// Frames sent to it.
    pub tx_frames: u64,
    /// Bytes of those, without outer headers.
    pub tx_bytes: u64,
}

/// How a tunnel endpoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VtepState {
    /// Its address and port.
    pub local: SocketAddr,
    /// The overlays that use it, by number.
    pub overlays: Vec<u16>,
    /// What is wrong, a sentence each; none: nothing.
    pub troubles: Vec<String>,
    /// Datagrams that were not VXLAN: without the I flag, or shorter than its header and an Ethernet header.
    pub headers: u64,
    /// Datagrams of networks that no overlay has.
    pub strangers: u64,
    /// Datagrams for endpoints that have moved, which were sent on.
    pub relayed: u64,
}

/// An overlay, as the control thread knows it.
struct DraftOverlay {
    bridge: u16,
    tuning: OverlayTuning,
    is_leaving: bool,
}

/// A target.
struct DraftTarget {
    overlay: u16,
    tuning: TargetTuning,
    port: Arc<Target>,
    paces: Arc<Paces>,
    /// Longest inner packet that the path takes, where that is less than the target was given.
    path_mtu: Option<u16>,
    is_leaving: bool,
}

impl DraftTarget {
    /// The group that it is.
    fn group(&self) -> Option<IpAddr> {
        Some(self.tuning.to.ip()).filter(IpAddr::is_multicast)
    }
}

/// A tunnel endpoint, or a group that it is in, whose rings the workers have.
struct DraftVtep {
    vtep: Arc<Vtep>,
    group: Option<Group>,
    /// The member that its rings are of: one of no bridge.
    member: u16,
    /// What was said of its datagrams, and when.
    troubles: Vec<(Trouble, Tick)>,
    /// Those that are shorter than their targets were given.
    paths: BTreeMap<IpAddr, Path>,
}

/// All overlays of a data plane.
#[derive(Default)]
pub(super) struct Overlays {
    overlays: BTreeMap<u16, DraftOverlay>,
    /// By place, from [`TARGETS`] on.
    targets: Vec<Option<DraftTarget>>,
    vteps: Vec<DraftVtep>,
    /// By bridge: the places below which its table has room for targets.
    admitted: BTreeMap<u16, u32>,
    /// Endpoints do not know yet what has changed.
    is_changed: bool,
}

impl Overlays {
    /// Targets with their places, but for those that leave.
    fn targets(&self) -> impl Iterator<Item = (u16, &DraftTarget, &DraftOverlay)> {
        let places = (TARGETS..).zip(&self.targets);
        places.filter_map(|(place, target)| {
            let target = target.as_ref().filter(|target| !target.is_leaving)?;
            let overlay = self.overlays.get(&target.overlay)?;
            (!overlay.is_leaving).then_some((place, target, overlay))
        })
    }

    /// Whether the search of an overlay is asked for unknown addresses.
    pub(super) fn asks(&self, overlay: u16) -> bool {
        let overlay = self.overlays.get(&overlay);
        overlay.is_some_and(|overlay| overlay.tuning.unknown == Unknown::Lookup)
    }

    fn target(&mut self, place: u16) -> Option<&mut DraftTarget> {
        let at = place.checked_sub(TARGETS)?;
        self.targets.get_mut(usize::from(at))?.as_mut()
    }

    /// The bridge of the target at a place.
    pub(super) fn bridge_at(&self, place: u16) -> Option<u16> {
        let at = place.checked_sub(TARGETS)?;
        let target = self.targets.get(usize::from(at))?.as_ref()?;
        Some(self.overlays.get(&target.overlay)?.bridge)
    }

    /// The targets of a bridge as its members; `conf` tells how their overlay is configured.
    pub(super) fn on<'a>(
        &'a self,
        bridge: u16,
        conf: impl Fn(u16) -> Option<&'a MemberConf> + 'a,
    ) -> impl Iterator<Item = MemberConf> + 'a {
        let here = self.targets().filter(move |(.., o)| o.bridge == bridge);
        here.filter_map(move |(place, target, overlay)| {
            let conf = conf(target.overlay)?;
            let tuning = &overlay.tuning;
            let vid = overlay.vid(target.tuning.vni);
            let is_kept = tuning.keep_inner_tag;
            Some(MemberConf {
                id: TxId(place),
                mac: 0,
                macs: Arc::default(),
                pvid: vid.filter(|_| !is_kept),
                tagged: VlanMap::of(vid.filter(|_| is_kept)),
                host: false,
                mtu: target
                    .path_mtu
                    .unwrap_or(u16::MAX)
                    .min(target.tuning.mtu)
                    .min(tuning.mtu)
                    .into(),
                frame_max: conf.frame_max,
                learn: tuning.learn,
                state: conf.state,
                stp: false,
                discover: target.tuning.bum && tuning.unknown == Unknown::Flood,
                groups: target.tuning.bum && tuning.broadcast,
                sticky: false,
                locked: tuning.source_check == SourceCheck::Strict,
                mab: false,
                private: conf.private,
                horizon: horizon(target.overlay),
                span: false,
                nospoof: false,
                standby: false,
                storm_limit: conf.storm_limit,
                paces: target.paces.clone(),
            })
        })
    }

    /// Targets and their overlays, to be published.
    pub(super) fn ports(&self) -> impl Iterator<Item = (u16, u16, Arc<Target>)> {
        let targets = self.targets();
        targets.map(|(place, target, _)| (place, target.overlay, target.port.clone()))
    }

    /// Tells endpoints whose datagrams are whose, if that has changed.
    pub(super) fn tell(&mut self) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        let endpoints = self.vteps.iter().filter(|v| v.group.is_none());
        for DraftVtep { vtep, .. } in endpoints {
            let its = |o: &DraftOverlay| Arc::ptr_eq(&o.tuning.vtep, vtep);
            let here = self
                .overlays
                .iter()
                .filter(|(_, o)| !o.is_leaving && its(o));
            let groups = self.targets().filter(|(_, t, _)| t.group().is_some());
            let groups: BTreeMap<(u16, Vni), u16> = groups
                .map(|(place, t, _)| ((t.overlay, t.tuning.vni), place))
                .collect();
            let networks = here.flat_map(|(overlay, o)| {
                let is_open =
                    o.tuning.source_check == SourceCheck::Open && o.tuning.vnis.len() == 1;
                let (groups, own) = (&groups, is_open.then_some(*overlay));
                o.tuning.vnis.iter().map(move |(_, vni)| {
                    let group = groups.get(&(*overlay, *vni)).copied();
                    let network = Network {
                        overlay: *overlay,
                        mtu: o.tuning.mtu,
                        strangers: group.or(own),
                    };
                    (*vni, network)
                })
            });
            let targets = self.targets().filter(|(.., o)| its(o));
            let sources = targets.map(|(place, target, _)| {
                let TargetTuning { vni, to, .. } = target.tuning;
                ((vni, to.ip()), place)
            });
            vtep.set_tables(Tables::new(networks, sources));
        }
    }

    /// Whether another overlay has one of the networks.
    fn taken(&self, overlay: Option<u16>, tuning: &OverlayTuning) -> Option<Vni> {
        let others = self.overlays.iter().filter(|(id, other)| {
            Some(**id) != overlay && Arc::ptr_eq(&other.tuning.vtep, &tuning.vtep)
        });
        let taken: BTreeSet<Vni> = others
            .flat_map(|(_, other)| other.tuning.vnis.iter().map(|(_, vni)| *vni))
            .collect();
        let mut own = BTreeSet::new();
        let mut vnis = tuning.vnis.iter().map(|(_, vni)| *vni);
        vnis.find(|vni| taken.contains(vni) || !own.insert(*vni))
    }

    /// The places below which a bridge's table has to have room.
    pub(super) fn admitted(&self, bridge: u16) -> Option<u32> {
        self.admitted.get(&bridge).copied()
    }

    /// A bridge goes.
    pub(super) fn forget_bridge(&mut self, bridge: u16) {
        self.admitted.remove(&bridge);
    }

    /// The overlays among these members leave with their targets, whose places this gives, by bridge.
    pub(super) fn leave(&mut self, members: &[u16]) -> Vec<(u16, u16)> {
        let mut places = Vec::new();
        for id in members {
            let Some(overlay) = self.overlays.get_mut(id) else {
                continue;
            };
            (overlay.is_leaving, self.is_changed) = (true, true);
            let bridge = overlay.bridge;
            let targets = (TARGETS..).zip(&self.targets);
            let its = targets.filter(|(_, t)| t.as_ref().is_some_and(|t| t.overlay == *id));
            places.extend(its.map(|(place, _)| (bridge, place)));
        }
        places
    }

    /// Those that have left are no more.
    pub(super) fn forget(&mut self, members: &[u16], places: impl Iterator<Item = u16>) {
        for place in places {
            if let Some(at) = place.checked_sub(TARGETS) {
                self.targets[usize::from(at)] = None;
            }
        }
        for id in members {
            self.overlays.remove(id);
        }
    }
}

impl DraftOverlay {
    /// The VLAN of a network.
    fn vid(&self, vni: Vni) -> Option<u16> {
        let mut vnis = self.tuning.vnis.iter();
        vnis.find(|(_, its)| *its == vni).map(|(vid, _)| *vid)
    }
}

/// What targets of one overlay have in common: they exchange nothing.
fn horizon(overlay: u16) -> u16 {
    overlay + 1
}

/// An overlay as a member: it sends and gets nothing by itself; its targets do. But it gets frames to unknown addresses, if its search is
/// asked for them.
fn quiet(conf: MemberConf) -> MemberConf {
    MemberConf {
        learn: false,
        discover: false,
        groups: false,
        nospoof: false,
        ..conf
    }
}

impl DataPlane {
    /// Adds an overlay to a bridge and returns its number (`conf.id` is ignored), which is also its own place.
    ///
    /// # Errors
    /// As [`DataPlane::add_member`]; [`DataPlaneError::VniTaken`].
    pub fn add_overlay(
        &mut self,
        bridge: u16,
        conf: MemberConf,
        tuning: OverlayTuning,
    ) -> Result<u16, DataPlaneError> {
        if let Some(vni) = self.overlays.taken(None, &tuning) {
            return Err(DataPlaneError::VniTaken(vni));
        }
        let id = self.insert_member(bridge, quiet(conf.clone()), tuning.member.clone())?;
        self.set_overlay(id, conf, tuning)?;
        Ok(id)
    }

    /// Changes an overlay, or makes one of a member without rings. Targets of networks that it has no more are to be removed first.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`]; [`DataPlaneError::VniTaken`].
    pub fn set_overlay(
        &mut self,
        overlay: u16,
        conf: MemberConf,
        tuning: OverlayTuning,
    ) -> Result<(), DataPlaneError> {
        if let Some(vni) = self.overlays.taken(Some(overlay), &tuning) {
            return Err(DataPlaneError::VniTaken(vni));
        }
        let mut conf = MemberConf {
            horizon: horizon(overlay),
            ..quiet(conf)
        };
        if tuning.unknown == Unknown::Lookup {
            // In each of its VLANs.
            (conf.discover, conf.pvid) = (true, None);
            conf.tagged = VlanMap::of(tuning.vnis.iter().map(|(vid, _)| *vid));
        }
        let (bridge, member) = (self.draft_member(overlay)?.bridge, tuning.member.clone());
        let draft = self.overlays.overlays.entry(overlay);
        draft
            .and_modify(|draft| draft.tuning = tuning.clone())
            .or_insert_with(|| DraftOverlay {
                bridge,
                tuning: tuning.clone(),
                is_leaving: false,
            });
        let its = self.overlays.targets.iter_mut().flatten();
        for target in its.filter(|target| target.overlay == overlay) {
            let conf = target.tuning.conf();
            target.port = Arc::new(target.port.moved(tuning.vtep.clone(), conf));
            target.path_mtu = None;
        }
        self.overlays.is_changed = true;
        self.settle_vteps()?;
        self.set_member(overlay, conf, member)
    }

    /// Adds a target to an overlay and returns its place.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMember`], [`DataPlaneError::NoVni`], [`DataPlaneError::TooManyTargets`].
    pub fn add_target(
        &mut self,
        overlay: u16,
        target: TargetTuning,
    ) -> Result<u16, DataPlaneError> {
        let draft = self.overlays.overlays.get(&overlay);
        let draft = draft.ok_or(DataPlaneError::NoMember(overlay))?;
        let bridge = draft.bridge;
        draft
            .vid(target.vni)
            .ok_or(DataPlaneError::NoVni(target.vni))?;
        let port = Arc::new(Target::new(draft.tuning.vtep.clone(), target.conf()));
        let free = self.overlays.targets.iter().position(Option::is_none);
        let at = free.unwrap_or(self.overlays.targets.len());
        if at >= usize::from(TARGETS_MAX) {
            return Err(DataPlaneError::TooManyTargets);
        }
        let place = TARGETS + at as u16;
        self.admit_place(bridge, place)?;
        let draft = DraftTarget {
            overlay,
            tuning: target,
            port,
            paces: Arc::default(),
            path_mtu: None,
            is_leaving: false,
        };
        match free {
            Some(at) => self.overlays.targets[at] = Some(draft),
            None => self.overlays.targets.push(Some(draft)),
        }
        self.overlays.is_changed = true;
        self.settle_groups();
        self.publish_batch();
        Ok(place)
    }

    /// Changes a target in place: what is known behind it stays.
    ///
    /// # Errors
    /// [`DataPlaneError::NoTarget`], [`DataPlaneError::NoVni`].
    pub fn set_target(&mut self, place: u16, target: TargetTuning) -> Result<(), DataPlaneError> {
        let draft = self.overlays.target(place);
        let overlay = draft.ok_or(DataPlaneError::NoTarget(place))?.overlay;
        let its = self.overlays.overlays.get(&overlay);
        let its = its.ok_or(DataPlaneError::NoMember(overlay))?;
        its.vid(target.vni)
            .ok_or(DataPlaneError::NoVni(target.vni))?;
        let vtep = its.tuning.vtep.clone();
        if let Some(draft) = self.overlays.target(place) {
            draft.port = Arc::new(draft.port.moved(vtep, target.conf()));
            (draft.tuning, draft.path_mtu) = (target, None);
        }
        self.overlays.is_changed = true;
        self.settle_groups();
        self.publish_batch();
        Ok(())
    }

    /// Removes targets with everything that is known behind them. Their places are used again after a grace period.
    ///
    /// # Errors
    /// [`DataPlaneError::NoTarget`]: nothing has changed. [`DataPlaneError::Stuck`]: to be removed again.
    pub fn remove_targets(&mut self, places: &[u16]) -> Result<(), DataPlaneError> {
        let mut on: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
        for place in places {
            let target = self.overlays.target(*place);
            let overlay = target.ok_or(DataPlaneError::NoTarget(*place))?.overlay;
            let bridge = self.draft_member(overlay)?.bridge;
            on.entry(bridge).or_default().push(*place);
        }
        // Entries first: what would still go there goes as if nothing were known.
        self.flush_places(&on)?;
        for place in places {
            if let Some(target) = self.overlays.target(*place) {
                target.is_leaving = true;
            }
        }
        self.overlays.is_changed = true;
        self.is_batch = false;
        self.take_back(Vec::new())?;
        self.leave_places(places)?;
        // And what was learned meanwhile.
        self.flush_places(&on)?;
        self.overlays.forget(&[], places.iter().copied());
        self.settle_groups();
        Ok(())
    }

    /// Enters addresses into a bridge's table that no frame ages or moves: VLAN (0 where the bridge does not filter), address
    /// as the low 48 bits of a little-endian load, and the place behind which it is; without a place, the entry goes.
    /// Gives the addresses for which the table has no room; all others are entered.
    ///
    /// # Errors
    /// [`DataPlaneError::NoBridge`]; [`DataPlaneError::Stuck`]: some of it may be done, or will be.
    pub fn push_entries(
        &mut self,
        bridge: u16,
        entries: Vec<(u16, u64, Option<u16>)>,
    ) -> Result<Vec<Key>, DataPlaneError> {
        let (mut rest, mut refused) = (entries, Vec::new());
        let mut patience = RESTS;
        while !rest.is_empty() {
            let later = rest.split_off(rest.len().min(PUSHED_AT_ONCE));
            let some = std::mem::replace(&mut rest, later);
            let (mut resting, full) = self.ask_fdb(bridge, move |writer, now| {
                let (mut resting, mut full) = (Vec::new(), Vec::new());
                for entry in some {
                    match push(writer, entry, now) {
                        Ok(()) => {}
                        Err(AddError::Resting) => resting.push(entry),
                        Err(_) => full.push(entry),
                    }
                }
                (resting, full)
            })?;
            refused.extend(full);
            if patience == 0 {
                refused.append(&mut resting);
            }
            patience -= usize::from(!resting.is_empty());
            rest.append(&mut resting);
        }
        let keys = refused.into_iter().map(|(vid, mac, _)| Key::new(vid, mac));
        Ok(keys.collect())
    }

    /// Forgets what is known behind places, by bridge.
    fn flush_places(&self, on: &BTreeMap<u16, Vec<u16>>) -> Result<(), DataPlaneError> {
        for (bridge, places) in on {
            let places = places.clone();
            self.ask_fdb(*bridge, move |writer, _| {
                places
                    .iter()
                    .for_each(|place| writer.flush_member(*place, true));
            })?;
        }
        Ok(())
    }

    /// A bridge's table has room for a place.
    fn admit_place(&mut self, bridge: u16, place: u16) -> Result<(), DataPlaneError> {
        let admitted = self.overlays.admitted(bridge).unwrap_or(0);
        if u32::from(place) < admitted {
            return Ok(());
        }
        let below = (u32::from(place) + 1).next_multiple_of(PLACES_AT_ONCE);
        self.ask_fdb(bridge, move |writer, _| writer.admit_beyond(below))?;
        self.overlays.admitted.insert(bridge, below);
        Ok(())
    }

    /// Workers have the rings of endpoints that some overlay uses, of the groups that some target is, and of no other. A group that cannot
    /// be joined now is left out.
    pub(super) fn settle_vteps(&mut self) -> Result<(), DataPlaneError> {
        let mut used: Vec<(Arc<Vtep>, Option<IpAddr>)> = {
            let overlays = self.overlays.overlays.values();
            let used = overlays.filter(|o| !o.is_leaving);
            used.map(|o| (o.tuning.vtep.clone(), None)).collect()
        };
        let targets = self.overlays.targets();
        used.extend(
            targets.filter_map(|(_, t, o)| Some((o.tuning.vtep.clone(), Some(t.group()?)))),
        );
        let is = |known: &DraftVtep, (vtep, group): &(Arc<Vtep>, Option<IpAddr>)| {
            Arc::ptr_eq(&known.vtep, vtep) && known.group.as_ref().map(Group::address) == *group
        };
        let is_used = |known: &DraftVtep| used.iter().any(|used| is(known, used));
        while let Some(at) = self.overlays.vteps.iter().position(|v| !is_used(v)) {
            self.remove_vtep(at)?;
        }
        for used in used {
            if self.overlays.vteps.iter().any(|known| is(known, &used)) {
                continue;
            }
            let (vtep, group) = used;
            let group = match group.map(|group| Group::join(vtep.clone(), group)) {
                Some(Ok(group)) => Some(group),
                Some(Err(_)) => continue,
                None => None,
            };
            let rings = group.as_ref().map_or_else(|| vtep.rings(), Group::rings);
            let conf = quiet(MemberConf::new(TxId(0), 0));
            let member = self.insert_member(NO_BRIDGE, conf, MemberTuning::default())?;
            self.attach(member, rings)?;
            self.overlays.vteps.push(DraftVtep {
                vtep,
                group,
                member,
                troubles: Vec::new(),
                paths: BTreeMap::new(),
            });
        }
        Ok(())
    }

    /// Takes the rings of an endpoint or a group from the workers.
    fn remove_vtep(&mut self, at: usize) -> Result<(), DataPlaneError> {
        let member = self.overlays.vteps[at].member;
        self.detach(member)?;
        self.members[usize::from(member)] = None;
        Arc::make_mut(&mut self.placement).forget(member);
        self.overlays.vteps.remove(at);
        Ok(())
    }

    /// What a target has counted; zeros if there is none.
    pub fn target_totals(&self, place: u16) -> TargetTotals {
        let at = usize::from(place).checked_sub(usize::from(TARGETS));
        let target = at.and_then(|at| self.overlays.targets.get(at)?.as_ref());
        let totals = target.map(|target| target.port.totals());
        let (tx_frames, tx_bytes) = totals.unwrap_or_default();
        TargetTotals {
            tx_frames,
            tx_bytes,
        }
    }
}

impl TargetTuning {
    fn conf(&self) -> TargetConf {
        TargetConf {
            to: self.to,
            vni: self.vni,
        }
    }
}

/// Enters or removes one entry. The address of a member itself stays.
fn push(
    writer: &mut FdbWriter<QsbrGrace>,
    (vid, mac, place): (u16, u64, Option<u16>),
    now: Tick,
) -> Result<(), AddError> {
    let key = Key::new(vid, mac);
    let table = writer.table();
    let known = table.lookup(key, table.at(now));
    if known.is_some_and(|hit| hit.flags.is_local()) {
        return Ok(());
    }
    match place {
        Some(place) => writer.add_fixed(key, place, EntryFlags::STATIC, now),
        None => {
            writer.delete(key);
            Ok(())
        }
    }
}

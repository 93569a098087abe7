//! Where multicast goes on a bridge that snoops, and questions for neighbours on one that answers them.
//!
//! # Model
//! [`GroupsConf`] is what the snooping engine found; [`Groups`] is the same for the forwarding path: a sorted array of groups, and a
//! [`FloodSet`] for each of them and for the routers of each VLAN. It is a part of the [topology](crate::forward::Bridge), so that readers neither lock nor
//! write, and replaced as a whole. A search by halves costs the same whatever addresses senders choose.
//!
//! | frame to a group address | goes to |
//! | --- | --- |
//! | IGMP, MLD, PIM hello (PIM to its routers' address) | the daemon, at most [`SNOOPED_A_SECOND`] of each member; out of a tunnel: everybody |
//! | ARP requests, neighbour solicitations and advertisements, where the bridge answers them | the daemon, at most [`ASKED_A_SECOND`] of each member; above it, while the daemon is behind, and out of a tunnel, everybody |
//! | DHCP to a server, router solicitations and advertisements of a VNIC, in a VLAN in which the bridge serves its hosts | the daemon, at most [`SERVED_A_SECOND`] of each VNIC; of other members: everybody |
//! | not IPv4 or IPv6; 224.0.0.0/24, ff02::1, a scope within the host; a VLAN that is not snooped | everybody |
//! | a group that has members | these, routers and tunnels |
//! | another group | routers and tunnels, or everybody ([`GroupsConf::flood_unknown`]) |
//!
//! A tunnel is a member with a horizon ([`MemberConf::horizon`]). Who receives behind it is not known, so it gets every group.
//!
//! # Limits
//! [`GROUPS_MAX`] groups. A set's number is that of its group, so that floods that wait while topologies change never go to
//! another group's members; the one who gives numbers lets each rest.

use std::net::IpAddr;

use windlass_frame::{FloodId, Heads};
use windlass_wire::ether::proto::{ICMPV6, IGMP};
use windlass_wire::ether::{ARP, IPV4, IPV6};
use windlass_wire::host;

use crate::flood::{FloodKind, FloodSet};
use crate::member::MemberConf;
use crate::vlan::VlanMap;

/// IGMP, MLD and PIM that one member can have a second, once the first 26 ([`crate::pace`]) have come.
pub const SNOOPED_A_SECOND: u32 = 500;

/// Questions for neighbours that the daemon reads of one member a second, once the first 26 have come.
pub const ASKED_A_SECOND: u32 = 500;

/// Requests for addresses and routers that the daemon reads of one member a second, once the first 6 have come.
pub const SERVED_A_SECOND: u32 = 100;

/// Numbers of groups are below it.
pub const GROUPS_MAX: u16 = 40_960;
/// Sets behind those of [`FloodKind`]: routers of each VLAN and family, then groups.
const ROUTERS: u16 = 8192;
const GROUPS: u16 = ROUTERS + 8192;

const PIM: u8 = 103;

/// A group with members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConf {
    /// In which VLAN; 0 on a bridge that does not filter.
    pub vid: u16,
    /// Its address.
    pub address: IpAddr,
    /// Its number, below [`GROUPS_MAX`].
    pub number: u16,
    /// Its members.
    pub members: Vec<u16>,
}

/// One VLAN of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupVlan {
    /// Its number; 0 on a bridge that does not filter.
    pub vid: u16,
    /// IPv6.
    pub is_v6: bool,
    /// Groups go to members and routers only.
    pub is_snooped: bool,
    /// Members behind which routers are.
    pub routers: Vec<u16>,
}

/// What snooping found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupsConf {
    /// VLANs; none: the bridge does not snoop.
    pub vlans: Vec<GroupVlan>,
    /// Groups.
    pub groups: Vec<GroupConf>,
    /// Groups without members go to everybody.
    pub flood_unknown: bool,
    /// Questions for neighbours are the daemon's.
    pub answers: bool,
    /// VLANs in which requests of hosts for addresses and routers are the daemon's, and what hosts advertise as routers.
    pub serves: Vec<u16>,
}

/// The set of the routers of a VLAN.
pub const fn routers(vid: u16, is_v6: bool) -> FloodId {
    FloodId(ROUTERS | (vid & 0xfff) << 1 | is_v6 as u16)
}

/// Where a frame to a group address goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Daemon,
    /// The daemon's, who serves hosts.
    Serve,
    /// The daemon's while it keeps up, else everybody's.
    Ask(FloodId),
    Set(FloodId),
}

/// A group's address, an IPv4 one mapped, and its VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u128, u16);

impl Key {
    fn new(address: IpAddr, vid: u16) -> Key {
        match address {
            IpAddr::V4(v4) => Key(v4.to_ipv6_mapped().to_bits(), vid),
            IpAddr::V6(v6) => Key(v6.to_bits(), vid),
        }
    }
}

/// What the forwarding path knows of groups.
#[derive(Clone, Debug)]
pub struct Groups {
    /// By family.
    snooped: [VlanMap; 2],
    snoops: bool,
    answers: bool,
    serves: VlanMap,
    flood_unknown: bool,
    keys: Box<[(Key, FloodId)]>,
    /// In order of their numbers.
    sets: Box<[(FloodId, FloodSet)]>,
}

impl Groups {
    /// For these members.
    pub(crate) fn new(members: &[MemberConf], filtering: bool, conf: &GroupsConf) -> Groups {
        let top = members.iter().map(|m| usize::from(m.id.0)).max();
        let mut by_id = vec![None; top.map_or(0, |top| top.saturating_add(1))];
        for member in members {
            if let Some(slot) = by_id.get_mut(usize::from(member.id.0)) {
                *slot = Some(member);
            }
        }
        let tunnels = members.iter().filter(|m| m.horizon != 0);
        let tunnels: Vec<u16> = tunnels.map(|m| m.id.0).collect();
        let set = |vid, ids: &mut Vec<u16>| {
            ids.extend(&tunnels);
            ids.sort_unstable();
            ids.dedup();
            let found = ids.iter().filter_map(|id| *by_id.get(usize::from(*id))?);
            FloodSet::of(found, FloodKind::Group, filtering, vid)
        };
        let mut sets = Vec::new();
        for vlan in &conf.vlans {
            let set = set(vlan.vid, &mut vlan.routers.clone());
            sets.push((routers(vlan.vid, vlan.is_v6), set));
        }
        let mut keys = Vec::new();
        for group in conf.groups.iter().filter(|g| g.number < GROUPS_MAX) {
            let is_v6 = group.address.is_ipv6();
            let is_here = |vlan: &&GroupVlan| vlan.vid == group.vid && vlan.is_v6 == is_v6;
            let here = conf.vlans.iter().find(is_here);
            let routers = here.into_iter().flat_map(|vlan| &vlan.routers);
            let id = FloodId(GROUPS.saturating_add(group.number));
            let mut ids = group.members.iter().chain(routers).copied().collect();
            sets.push((id, set(group.vid, &mut ids)));
            keys.push((Key::new(group.address, group.vid), id));
        }
        sets.sort_unstable_by_key(|(id, _)| *id);
        keys.sort_unstable();
        let snooped = [false, true].map(|is_v6| {
            let vlans = conf.vlans.iter();
            let vlans = vlans.filter(|vlan| vlan.is_snooped && vlan.is_v6 == is_v6);
            VlanMap::of(vlans.map(|vlan| vlan.vid))
        });
        Groups {
            snooped,
            snoops: !conf.vlans.is_empty(),
            answers: conf.answers,
            serves: VlanMap::of(conf.serves.iter().copied()),
            flood_unknown: conf.flood_unknown,
            keys: keys.into_boxed_slice(),
            sets: sets.into_boxed_slice(),
        }
    }

    /// The set of a number.
    pub(crate) fn set(&self, id: FloodId) -> Option<&FloodSet> {
        let at = self.sets.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.sets.get(at).map(|(_, set)| set)
    }

    /// Whether a packet is a question that the daemon may answer.
    fn asks(&self, kind: u16, packet: &[u8]) -> bool {
        self.answers && is_question(kind, packet)
    }

    /// Where frame `i`, which was for the daemon, goes without it.
    pub(crate) fn without_daemon(&self, h: &Heads, i: usize) -> Option<FloodId> {
        let rest = h.private(i).get(12..)?;
        let (kind, packet) = rest.split_first_chunk::<2>()?;
        let (kind, vid) = (u16::from_be_bytes(*kind), h.meta.get(i)?.vid);
        self.asks(kind, packet).then(|| FloodKind::Group.id(vid))
    }

    /// Where frame `i` of a member goes, which was sent to a group address.
    #[inline(never)]
    pub(crate) fn way(&self, h: &Heads, i: usize, vid: u16, from: &MemberConf) -> Way {
        let is_read = from.horizon == 0;
        let all = Way::Set(FloodKind::Group.id(vid));
        let private = h.private(i);
        let Some((kind, packet)) = private.get(12..).and_then(<[u8]>::split_first_chunk::<2>)
        else {
            return all;
        };
        let kind = u16::from_be_bytes(*kind);
        if is_read && self.asks(kind, packet) {
            return Way::Ask(FloodKind::Group.id(vid));
        }
        if from.host && self.serves.contains(vid) && host::about(kind, packet).is_some() {
            return Way::Serve;
        }
        if !self.snoops {
            return all;
        }
        let address = match kind {
            IPV4 => group_v4(packet),
            IPV6 => group_v6(packet),
            _ => Ok(None),
        };
        let address = match address {
            Ok(Some(address)) => address,
            Ok(None) => return all,
            Err(ForDaemon) if is_read => return Way::Daemon,
            Err(ForDaemon) => return all,
        };
        let is_v6 = address.is_ipv6();
        let [v4, v6] = &self.snooped;
        if !(if is_v6 { v6 } else { v4 }).contains(vid) {
            return all;
        }
        let key = Key::new(address, vid);
        match self.keys.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(at) => self.keys.get(at).map_or(all, |(_, id)| Way::Set(*id)),
            Err(_) if self.flood_unknown => all,
            Err(_) => Way::Set(routers(vid, is_v6)),
        }
    }
}

/// Whether a packet looks for a neighbour, or announces one.
fn is_question(kind: u16, packet: &[u8]) -> bool {
    match kind {
        ARP => packet.get(6..8) == Some(&[0, 1]),
        IPV6 => packet.get(6) == Some(&ICMPV6) && matches!(packet.get(40), Some(135 | 136)),
        _ => false,
    }
}

/// A packet that the daemon reads.
struct ForDaemon;

/// The group that a packet goes to, if only its members need it.
fn group_v4(packet: &[u8]) -> Result<Option<IpAddr>, ForDaemon> {
    let Some(head) = packet.first_chunk::<20>() else {
        return Ok(None);
    };
    let target: [u8; 4] = [head[16], head[17], head[18], head[19]];
    match (head[9], target) {
        (IGMP, _) | (PIM, [224, 0, 0, 13]) => Err(ForDaemon),
        (_, [224, 0, 0, _]) => Ok(None),
        (_, [224..=239, ..]) => Ok(Some(IpAddr::from(target))),
        _ => Ok(None),
    }
}

fn group_v6(packet: &[u8]) -> Result<Option<IpAddr>, ForDaemon> {
    let Some(head) = packet.first_chunk::<40>() else {
        return Ok(None);
    };
    let target = packet.get(24..).and_then(|t| t.first_chunk::<16>());
    let Some(&target) = target else {
        return Ok(None);
    };
    let mut next = head[6];
    let mut at = 40_usize;
    if next == 0 {
        let Some([inner, options]) = packet.get(40..).and_then(|o| o.first_chunk::<2>()) else {
            return Ok(None);
        };
        next = *inner;
        at = at.saturating_add(usize::from(*options).saturating_add(1).saturating_mul(8));
    }
    match (next, packet.get(at)) {
        // What lies too far behind is read by the daemon, too.
        (ICMPV6, None | Some(130 | 131 | 132 | 143 | 151)) => return Err(ForDaemon),
        (PIM, _) if target == [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 13] => {
            return Err(ForDaemon);
        }
        _ => {}
    }
    let all_nodes = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let is_group = target[0] == 0xff && target[1] & 0xf > 1 && target != all_nodes;
    Ok(is_group.then(|| IpAddr::from(target)))
}

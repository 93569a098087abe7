//! Multicast snooping: the engine of each bridge that snoops, between the data plane and the clock.
//!
//! # Model
//! ```text
//! Ports::hear --IGMP, MLD, PIM--> Snooper::receive --Relay--> DataPlane::relay   (a frame goes on when it was read)
//! members, VLANs, rings --------> Snooper::configure, set_port
//! Ports::wait ------------------> Snooper::advance --Query--> DataPlane::relay, reply
//!                                 Snooper::version ---------> DataPlane::set_groups
//! ```
//! [`Ports::run_snoops`] compares each engine with the members that have changed, after every turn of the thread outside of edits. Groups are published at
//! once, and again after [`PUBLISH_GAP`] at the earliest.
//!
//! # Over an upgrade
//! A successor begins anew: everybody gets all groups until receivers have answered its first query, or the next one of another querier.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use windlass_api::{
    GroupView, McastPortView, McastRouter, McastView, Name, SnoopBridge, SnoopMember,
};
use windlass_bridge::flood::FloodKind;
use windlass_bridge::groups::{self, GroupConf, GroupVlan, GroupsConf};
use windlass_frame::Tick;
use windlass_snoop::{Conf, Family, PortConf, Query, Relay, Routers, Snooper};
use windlass_worker::dataplane::now;
use windlass_worker::{DataPlaneError, LocalFrame, Relayed};

use super::members::Follower;
use super::{MemberState, Ports, mac_word};
use crate::dataplane::host::Host;

/// Time from one publication of a bridge's groups to the next.
const PUBLISH_GAP: Duration = Duration::from_millis(10);
/// Time until queries that had to wait for workers are tried again.
const SEND_GAP: Duration = Duration::from_millis(5);
/// Queries that wait at most: one for each VLAN and family.
const QUERIES_MAX: usize = 2 * 4096;
/// Groups that are shown at most.
const SHOWN_MAX: usize = 1000;

/// A member that may be in groups.
struct Port {
    /// Its number in the data plane.
    id: u16,
    /// Its address, first byte lowest.
    mac: u64,
}

/// The snooping of one bridge.
pub(super) struct Snoop {
    engine: Snooper,
    /// The number of its bridge in the data plane.
    bridge: u16,
    ports: BTreeMap<Name, Port>,
    /// The lowest address of its ports, first byte lowest; without a port there is nobody to ask, nor an address to ask from.
    mac: Option<u64>,
    vids: BTreeSet<u16>,
    /// Whether the bridge filtered VLANs when all its members were told.
    filtering: Option<bool>,
    /// What the data plane has, and when it may have another.
    published: Option<u64>,
    publish_at: Instant,
    flood_unknown: bool,
    queries: VecDeque<Query>,
    relays_lost: u64,
}

fn port_conf(snoop: &SnoopMember) -> PortConf {
    PortConf {
        routers: match snoop.router {
            McastRouter::Off => Routers::Never,
            McastRouter::Learn => Routers::Learned,
            McastRouter::On => Routers::Always,
        },
        fast_leave: snoop.fast_leave,
        groups_max: snoop.groups_max,
    }
}

fn conf(snoop: &SnoopBridge, mac: u64) -> Conf {
    let [a, b, c, d, e, f, ..] = mac.to_le_bytes();
    Conf {
        querier: snoop.querier,
        interval_s: snoop.interval_s,
        address: snoop.address,
        mac: [a, b, c, d, e, f],
        groups_max: snoop.groups_max,
    }
}

fn mac_of(member: &MemberState, host: &mut dyn Host) -> u64 {
    let device = member.device.as_deref().and_then(|d| host.device(d));
    match member.own {
        Some(mac) => mac_word(mac),
        None => device.map_or(0, |device| device.mac),
    }
}

impl Snoop {
    /// What the forwarding path has to know.
    fn groups(&self, (answers, serves): (bool, BTreeSet<u16>)) -> GroupsConf {
        let vlans = self.engine.vlans().map(|(vid, family)| GroupVlan {
            vid,
            is_v6: family == Family::V6,
            is_snooped: self.engine.is_snooped(vid, family),
            routers: self.engine.routers(vid, family),
        });
        let groups = self.engine.groups().map(|group| GroupConf {
            vid: group.vid,
            address: group.address,
            number: group.number,
            members: group.ports().map(|(port, _)| port).collect(),
        });
        GroupsConf {
            vlans: vlans.collect(),
            groups: groups.collect(),
            flood_unknown: self.flood_unknown,
            answers,
            serves: serves.into_iter().collect(),
        }
    }

    fn due(&self) -> Option<Instant> {
        let left = self.engine.due().map(|due| due.since(now()));
        let timer = left.map(|left| Instant::now() + Duration::from_nanos(left));
        let publish = self.published != Some(self.engine.version());
        let send = (!self.queries.is_empty()).then(|| Instant::now() + SEND_GAP);
        let publish = publish.then_some(self.publish_at);
        timer.into_iter().chain(publish).chain(send).min()
    }
}

impl Ports {
    /// When a bridge that snoops has something to do next.
    pub(super) fn snoops_due(&self) -> Option<Instant> {
        self.snoops.values().filter_map(Snoop::due).min()
    }

    /// Reads what a receiver or a router of groups says, and passes it on.
    pub(super) fn hear_snooped(&mut self, frame: &LocalFrame) {
        let (id, vid) = (frame.member, frame.vid);
        let name = self.members.name_of(id);
        let member = name.and_then(|name| self.members.get(name));
        let snoop = member.and_then(|member| self.snoops.get_mut(&member.bridge));
        let is_port = |snoop: &&mut Snoop| {
            let port = name.and_then(|name| snoop.ports.get(name));
            port.is_some_and(|port| port.id == id)
        };
        let Some(snoop) = snoop.filter(is_port) else {
            return;
        };
        let set = match snoop.engine.receive(id, vid, frame.bytes(), now()) {
            Ok(Relay::All) => FloodKind::Group.id(vid),
            Ok(Relay::Routers(family)) => groups::routers(vid, family == Family::V6),
            Err(error) => return tracing::debug!("multicast of member {id}: {error}"),
        };
        let relayed = Relayed {
            from: Some(id),
            vid,
            set,
            bytes: frame.bytes().to_vec(),
        };
        if self.plane.relay(snoop.bridge, relayed).is_err() {
            snoop.relays_lost += 1;
        }
    }

    /// Brings snooping up to date with members and time, and does what it asks for.
    pub(super) fn run_snoops(&mut self) {
        let configured = self.bridges.iter();
        let wanted: Vec<_> = configured
            .filter_map(|(name, bridge)| Some((name.clone(), bridge.id, bridge.snoop?)))
            .collect();
        let is_wanted = |name: &Name, id| wanted.iter().any(|w| w.0 == *name && w.1 == id);
        let gone = self
            .snoops
            .extract_if(.., |name, s| !is_wanted(name, s.bridge));
        for (name, snoop) in gone.collect::<Vec<_>>() {
            if self
                .bridges
                .get(&name)
                .is_some_and(|b| b.id == snoop.bridge)
            {
                let _ = self
                    .plane
                    .set_groups(snoop.bridge, self.groups_without_snooping(&name));
            }
        }
        let changed = self.members.take_changed(Follower::Snoops);
        for (name, bridge, settings) in wanted {
            let mut snoop = self.snoops.remove(&name).unwrap_or_else(|| Snoop {
                engine: Snooper::new(conf(&settings, 0)),
                bridge,
                ports: BTreeMap::new(),
                mac: None,
                vids: BTreeSet::new(),
                filtering: None,
                published: None,
                publish_at: Instant::now(),
                flood_unknown: true,
                queries: VecDeque::new(),
                relays_lost: 0,
            });
            self.match_snooped(&name, &settings, &changed, &mut snoop);
            snoop.engine.advance(now());
            self.send_queries(&name, &mut snoop);
            self.publish_groups(&name, &mut snoop);
            self.snoops.insert(name, snoop);
        }
    }

    /// Tells an engine which members and VLANs there are.
    fn match_snooped(
        &mut self,
        bridge: &Name,
        settings: &SnoopBridge,
        changed: &BTreeSet<Name>,
        snoop: &mut Snoop,
    ) {
        let filtering = self.bridges.get(bridge).is_some_and(|b| b.filtering);
        let is_matched = snoop.filtering.replace(filtering) == Some(filtering);
        let mut names = match is_matched {
            true => Cow::Borrowed(changed),
            false => Cow::Owned(changed | &self.members.on_bridge(bridge)),
        };
        if self.match_snooped_ports(bridge, &names, snoop) || !is_matched {
            let macs = snoop.ports.values().map(|port| port.mac);
            snoop.mac = macs.filter(|mac| *mac != 0).min_by_key(|m| m.swap_bytes());
            let mut vids = BTreeSet::from_iter((!filtering).then_some(0));
            let members = snoop.ports.keys().filter(|_| filtering);
            let members = members.filter_map(|name| self.members.get(name));
            for member in members.filter(|member| !member.settings.span) {
                vids.extend(member.settings.vlans().iter());
            }
            if vids != snoop.vids {
                snoop.vids = vids;
                // Groups of VLANs that came.
                names.to_mut().extend(snoop.ports.keys().cloned());
            }
        }
        if let Some(mac) = snoop.mac {
            let conf = conf(settings, mac);
            snoop.engine.configure(conf, &snoop.vids, now());
        }
        for name in &*names {
            let (Some(port), Some(member)) = (snoop.ports.get(name), self.members.get(name)) else {
                continue;
            };
            let statics = member.settings.static_groups(filtering);
            let statics = statics.filter_map(|(vlan, group)| Some((vlan?, group)));
            snoop.engine.set_static(port.id, &statics.collect());
        }
        if snoop.flood_unknown != settings.flood_unknown {
            snoop.flood_unknown = settings.flood_unknown;
            snoop.published = None;
        }
    }

    /// Tells an engine which of these members are its ports; whether one of the bridge is among them.
    fn match_snooped_ports(
        &mut self,
        bridge: &Name,
        names: &BTreeSet<Name>,
        snoop: &mut Snoop,
    ) -> bool {
        let mut is_other = false;
        let of = |name| self.members.get(name).filter(|m| m.bridge == *bridge);
        // What goes, first: what comes may have its number.
        for name in names {
            if let Some(&Port { id, .. }) = snoop.ports.get(name)
                && of(name).is_none_or(|m| m.id != id)
            {
                snoop.engine.remove_port(id);
                // Those that wait for workers, too: the number may be a member's of another bridge.
                snoop.queries.retain(|query| query.port != Some(id));
                snoop.ports.remove(name);
                is_other = true;
            }
        }
        for (name, member) in names.iter().filter_map(|name| Some((name, of(name)?))) {
            is_other = true;
            if member.settings.span {
                continue;
            }
            let conf = port_conf(&member.settings.snoop);
            snoop.engine.set_port(member.id, conf);
            if member.rings == 0 {
                snoop.engine.link_down(member.id);
            }
            if !snoop.ports.contains_key(name) {
                let (id, mac) = (member.id, mac_of(member, self.host.as_mut()));
                snoop.ports.insert(name.clone(), Port { id, mac });
            }
        }
        is_other
    }

    fn send_queries(&mut self, bridge: &Name, snoop: &mut Snoop) {
        snoop.queries.extend(snoop.engine.take_queries());
        snoop.queries.truncate(QUERIES_MAX);
        let filtering = self.bridges.get(bridge).is_some_and(|b| b.filtering);
        while let Some(query) = snoop.queries.front() {
            let sent = match query.port {
                None => self.plane.relay(
                    snoop.bridge,
                    Relayed {
                        from: None,
                        vid: query.vid,
                        set: FloodKind::Group.id(query.vid),
                        bytes: query.frame.clone(),
                    },
                ),
                Some(id) => {
                    let member = self.members.of(id);
                    let untagged = member.and_then(|m| m.settings.vlan);
                    let is_tagged = filtering && untagged != Some(query.vid);
                    let frame = tagged(&query.frame, is_tagged.then_some(query.vid));
                    self.plane.reply(id, &frame)
                }
            };
            if matches!(sent, Err(DataPlaneError::Busy)) {
                return;
            }
            snoop.queries.pop_front();
        }
    }

    /// A bridge answers for neighbours or serves its hosts from now on, or does not any more.
    pub(super) fn neighbours_changed(&mut self, bridge: &Name) {
        if let Some(snoop) = self.snoops.get_mut(bridge) {
            snoop.published = None;
        } else if let Some(id) = self.bridges.get(bridge).map(|bridge| bridge.id) {
            let _ = self
                .plane
                .set_groups(id, self.groups_without_snooping(bridge));
        }
    }

    fn publish_groups(&mut self, bridge: &Name, snoop: &mut Snoop) {
        let version = Some(snoop.engine.version());
        let at = Instant::now();
        if snoop.published == version || at < snoop.publish_at {
            return;
        }
        let groups = snoop.groups(self.answers_on(bridge));
        if let Err(error) = self.plane.set_groups(snoop.bridge, Some(groups)) {
            tracing::error!("groups: {error}");
        }
        (snoop.published, snoop.publish_at) = (version, at + PUBLISH_GAP);
    }

    /// The topology behind a bridge's members has changed.
    pub(super) fn reopen_groups(&mut self, bridge: &Name) {
        if let Some(snoop) = self.snoops.get_mut(bridge) {
            snoop.engine.reopen(now());
        }
    }

    /// What snooping of a bridge found, for people.
    pub(in crate::dataplane) fn multicast(&self, bridge: &Name) -> Option<McastView> {
        let snoop = self.snoops.get(bridge)?;
        let engine = &snoop.engine;
        let name = |id: u16| self.members.name_of(id);
        let queriers = engine.vlans().map(|(vid, family)| {
            let family_name = match family {
                Family::V4 => "IPv4",
                Family::V6 => "IPv6",
            };
            let querier = match engine.querier(vid, family) {
                None => "nobody queries".to_owned(),
                Some((source, None)) => format!("{source}, this bridge"),
                Some((source, Some(port))) => match name(port) {
                    Some(name) => format!("{source} behind {name}"),
                    None => source.to_string(),
                },
            };
            let state = match engine.is_snooped(vid, family) {
                true => "snooped",
                false => "everybody gets all groups",
            };
            format!("VLAN {vid} {family_name}: {querier}; {state}")
        });
        let routers: BTreeSet<u16> = engine
            .vlans()
            .flat_map(|(vid, family)| engine.routers(vid, family))
            .collect();
        let ports = snoop.ports.iter().map(|(name, port)| {
            let counts = engine.counts(port.id);
            McastPortView {
                member: name.clone(),
                router: routers.contains(&port.id),
                groups: engine.memberships(port.id) as u64,
                reports: counts.reports,
                queries: counts.queries,
                refused: counts.refused,
                malformed: counts.malformed,
                over_limit: counts.over_limit,
            }
        });
        let at = now();
        let left = |until: Option<Tick>| Some(until?.since(at).div_ceil(1_000_000_000));
        let groups = engine.groups().take(SHOWN_MAX).map(|group| GroupView {
            vlan: group.vid,
            group: group.address,
            members: group
                .ports()
                .filter_map(|(id, until)| Some((name(id)?.clone(), left(until))))
                .collect(),
        });
        Some(McastView {
            queriers: queriers.collect(),
            ports: ports.collect(),
            groups: groups.collect(),
            groups_total: engine.groups().count() as u64,
            relays_lost: snoop.relays_lost,
        })
    }
}

/// A frame with the tag of a VLAN, or as it is.
pub(super) fn tagged(frame: &[u8], vid: Option<u16>) -> Vec<u8> {
    let (Some(vid), Some((addresses, rest))) = (vid, frame.split_at_checked(12)) else {
        return frame.to_vec();
    };
    let [high, low] = vid.to_be_bytes();
    [addresses, &[0x81, 0, high, low], rest].concat()
}

//! Answers for neighbours: the engine of each bridge that has a member with `neigh-suppress`, or that serves its hosts ([`super::hosts`]).
//!
//! # Model
//! The forwarding path gives this thread ARP requests and neighbour discovery ([`windlass_bridge::groups`]); the engine answers the asker
//! (`DataPlane::reply`), or the frame goes on to everybody (`DataPlane::relay`). Addresses in `allowed-ips` are known from the configuration.
//!
//! # Over an upgrade
//! A successor knows what is configured, and learns the rest anew.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use windlass_api::{MacAddr, Name, NeighboursView};
use windlass_bridge::flood::FloodKind;
use windlass_bridge::groups::GroupsConf;
use windlass_neigh::{Neighbours, Outcome, PortConf};
use windlass_worker::dataplane::now;
use windlass_worker::{DataPlaneError, LocalFrame, Relayed};

use super::hosts::Hosts;
use super::members::Follower;
use super::overlays::Overlay;
use super::snoop::tagged;
use super::{MemberState, Ports};

/// What one bridge knows of neighbours.
#[derive(Default)]
pub(super) struct Asked {
    engine: Neighbours,
    /// The number of its bridge in the data plane.
    bridge: u16,
    ports: BTreeMap<Name, u16>,
    /// Those of them with `neigh-suppress`.
    suppressing: BTreeSet<Name>,
    /// Overlays that tell hosts of the bridge their addresses and routers.
    pub(super) hosts: Hosts,
    /// Whether the bridge filtered VLANs when all its members were told.
    filtering: Option<bool>,
    pub(super) lost: u64,
}

impl Asked {
    /// Whether its bridge answers for neighbours, and in which VLANs it serves its hosts.
    fn answers(&self) -> (bool, BTreeSet<u16>) {
        (!self.suppressing.is_empty(), self.hosts.vlans())
    }
}

/// Whether a member tells hosts of its bridge their addresses or routers.
fn serves(member: &MemberState) -> bool {
    let overlay = member.overlay.as_deref();
    overlay.is_some_and(|overlay| overlay.network().is_some())
}

fn port_conf(member: &MemberState) -> PortConf {
    let guard = &member.settings.guard;
    let is_one = |(ip, bits): &(IpAddr, u8)| *bits == if ip.is_ipv4() { 32 } else { 128 };
    let ips = guard.ips.iter().flat_map(|ips| ips.iter()).filter(is_one);
    let fixed = ips.flat_map(|(ip, _)| member.vlans.iter().map(move |vid| (*vid, ip)));
    let fixed = fixed.filter(|_| member.own.is_some());
    PortConf {
        suppress: member.settings.neigh_suppress,
        // What a search tells the IP addresses of is no router that nobody knows of.
        is_host: guard.router_guard || member.overlay.is_some(),
        is_private: member.settings.private,
        mac: member.own.map_or([0; 6], |own| own.0),
        fixed: fixed.collect(),
    }
}

/// Whether a frame is a question for a neighbour, or an announcement: what only a bridge that answers reads.
fn is_question(frame: &[u8]) -> bool {
    let kind = frame.get(12..14);
    let next = (frame.get(20), frame.get(54));
    let is_discovery = matches!(next, (Some(58), Some(135 | 136)));
    kind == Some(&[8, 6]) || (kind == Some(&[0x86, 0xdd]) && is_discovery)
}

/// Enters what the search of an overlay told of IP addresses: VLAN, address, and whose it is now.
fn enter(
    engine: &mut Neighbours,
    id: u16,
    overlay: &Overlay,
    filtering: bool,
    told: impl IntoIterator<Item = (u16, IpAddr, Option<MacAddr>)>,
) {
    for (vlan, ip, mac) in told {
        let key = (if filtering { vlan } else { 0 }, ip);
        let mac = mac.filter(|_| overlay.answers_for(ip));
        engine.enter(id, key, mac.map(|mac| mac.0));
    }
}

impl Ports {
    /// Has the bridge of an overlay answer for what its search told.
    pub(super) fn tell_neighbours(
        &mut self,
        name: &Name,
        told: Vec<(u16, IpAddr, Option<MacAddr>)>,
    ) {
        let Some(member) = self.members.get(name) else {
            return;
        };
        let Some(overlay) = member.overlay.as_deref() else {
            return;
        };
        let filtering = self
            .bridges
            .get(&member.bridge)
            .is_some_and(|b| b.filtering);
        let asked = self.neighbours.get_mut(&member.bridge);
        if let Some(asked) = asked.filter(|asked| asked.ports.contains_key(name)) {
            enter(&mut asked.engine, member.id, overlay, filtering, told);
        }
    }

    /// When a bridge has something to forget.
    pub(super) fn neighbours_due(&self) -> Option<Instant> {
        let due = self.neighbours.values().filter_map(|a| a.engine.due());
        let left = due.min()?.since(now());
        Some(Instant::now() + Duration::from_nanos(left))
    }

    /// Whether a bridge answers for neighbours, and in which VLANs it serves its hosts.
    pub(super) fn answers_on(&self, bridge: &Name) -> (bool, BTreeSet<u16>) {
        let asked = self.neighbours.get(bridge);
        asked.map(Asked::answers).unwrap_or_default()
    }

    /// What the forwarding path is to do on a bridge that does not snoop.
    pub(super) fn groups_without_snooping(&self, bridge: &Name) -> Option<GroupsConf> {
        let (answers, serves) = self.answers_on(bridge);
        (answers || !serves.is_empty()).then(|| GroupsConf {
            answers,
            serves: serves.into_iter().collect(),
            ..GroupsConf::default()
        })
    }

    /// Answers a question, or has it go on; whether the frame is one.
    pub(super) fn hear_question(&mut self, frame: &LocalFrame) -> bool {
        if !is_question(frame.bytes()) {
            return false;
        }
        let (id, vid) = (frame.member, frame.vid);
        let Some(bridge) = self.members.of(id).map(|member| member.bridge.clone()) else {
            return true;
        };
        let Some(unknown) = self.answer_neighbour(id, vid, frame.bytes()) else {
            return true;
        };
        self.pass_on(&bridge, (id, vid), frame.bytes());
        if let Some(ip) = unknown {
            self.ask_neighbour(&bridge, (id, vid, ip), frame.bytes());
        }
        true
    }

    /// Answers a question of a member. If that cannot be, the address that it asks for, if nobody is known to have it.
    pub(super) fn answer_neighbour(
        &mut self,
        id: u16,
        vid: u16,
        frame: &[u8],
    ) -> Option<Option<IpAddr>> {
        let bridge = self.members.of(id)?.bridge.clone();
        let asked = self.neighbours.get_mut(&bridge)?;
        match asked.engine.receive(id, vid, frame, now()) {
            Outcome::Answer(answer) => {
                self.answer(&bridge, (id, vid), &answer);
                None
            }
            Outcome::Pass => Some(asked.engine.unknown(vid, frame)),
        }
    }

    /// Sends a member of a bridge what is for it in a VLAN.
    pub(super) fn answer(&mut self, bridge: &Name, (id, vid): (u16, u16), answer: &[u8]) {
        let untagged = self.members.of(id).and_then(|member| member.settings.vlan);
        let filtering = self.bridges.get(bridge).is_some_and(|b| b.filtering);
        let is_tagged = filtering && untagged != Some(vid);
        let answer = tagged(answer, is_tagged.then_some(vid));
        let sent = self.plane.reply(id, &answer);
        self.note_sent(bridge, sent);
    }

    /// Has a frame go to everybody, as on a bridge that does not answer.
    pub(super) fn pass_on(&mut self, bridge: &Name, (from, vid): (u16, u16), frame: &[u8]) {
        let Some(number) = self.neighbours.get(bridge).map(|asked| asked.bridge) else {
            return;
        };
        let relayed = Relayed {
            from: Some(from),
            vid,
            set: FloodKind::Group.id(vid),
            bytes: frame.to_vec(),
        };
        let sent = self.plane.relay(number, relayed);
        self.note_sent(bridge, sent);
    }

    /// Counts what could not be sent.
    pub(super) fn note_sent(&mut self, bridge: &Name, sent: Result<(), DataPlaneError>) {
        if let Some(asked) = self.neighbours.get_mut(bridge) {
            asked.lost += u64::from(sent.is_err());
        }
    }

    /// Brings what is known up to date with members and time.
    pub(super) fn run_neighbours(&mut self) {
        let changed = self.members.take_changed(Follower::Neighbours);
        let suppressing = changed.iter().filter_map(|name| self.members.get(name));
        let suppressing = suppressing.filter(|m| m.settings.neigh_suppress || serves(m));
        let mut wanted: BTreeSet<Name> = suppressing.map(|m| m.bridge.clone()).collect();
        wanted.extend(self.neighbours.keys().cloned());
        let mut told = Vec::new();
        for name in wanted {
            let state = self.bridges.get(&name).map(|b| (b.id, b.filtering));
            let former = self.neighbours.remove(&name);
            let was_there = former.is_some();
            if let Some((bridge, filtering)) = state {
                let former = former.filter(|asked| asked.bridge == bridge);
                let answered = former.as_ref().map(Asked::answers);
                let mut asked = former.unwrap_or_else(|| Asked {
                    bridge,
                    ..Asked::default()
                });
                let is_matched = asked.filtering.replace(filtering) == Some(filtering);
                let names = match is_matched {
                    true => Cow::Borrowed(&changed),
                    false => Cow::Owned(&changed | &self.members.on_bridge(&name)),
                };
                self.match_neighbours(&name, &names, &mut asked);
                let answers = asked.answers();
                if answers != Default::default() {
                    asked.engine.advance(now());
                    self.neighbours.insert(name.clone(), asked);
                    if answered == Some(answers) {
                        continue;
                    }
                } else if !was_there {
                    continue;
                }
            }
            told.push(name);
        }
        for name in told {
            self.neighbours_changed(&name);
        }
    }

    /// Tells an engine which of these members are its ports.
    fn match_neighbours(&self, bridge: &Name, names: &BTreeSet<Name>, asked: &mut Asked) {
        let of = |name| self.members.get(name).filter(|m| m.bridge == *bridge);
        // What goes, first: what comes may have its number and its addresses.
        for name in names {
            if let Some(id) = asked.ports.get(name)
                && of(name).is_none_or(|m| m.id != *id)
            {
                asked.engine.remove_port(*id);
                asked.ports.remove(name);
            }
            asked.suppressing.remove(name);
            let overlay = of(name).and_then(|m| m.overlay.as_deref());
            asked.hosts.set(name, overlay);
        }
        for (name, member) in names.iter().filter_map(|name| Some((name, of(name)?))) {
            let mut conf = port_conf(member);
            if conf.suppress {
                asked.suppressing.insert(name.clone());
            }
            if asked.filtering != Some(true) {
                conf.fixed.iter_mut().for_each(|(vid, _)| *vid = 0);
            }
            asked.engine.set_port(member.id, conf);
            if member.rings == 0 && member.overlay.is_none() {
                asked.engine.link_down(member.id);
            }
            let is_new = asked.ports.insert(name.clone(), member.id).is_none();
            if let Some(overlay) = member.overlay.as_deref().filter(|_| is_new) {
                let (engine, filtering) = (&mut asked.engine, asked.filtering == Some(true));
                enter(engine, member.id, overlay, filtering, overlay.answers());
            }
        }
    }

    /// What a bridge knows of neighbours, for people.
    pub(in crate::dataplane) fn neighbours(&self, bridge: &Name) -> Option<NeighboursView> {
        let asked = self.neighbours.get(bridge)?;
        let (known, counts) = asked.engine.counts();
        Some(NeighboursView {
            known: known as u64,
            answered: counts.answered,
            passed: counts.passed,
            over_limit: counts.over_limit,
            lost: asked.lost,
        })
    }
}

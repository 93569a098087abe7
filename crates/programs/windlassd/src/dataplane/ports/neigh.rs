//! Answers for neighbours: the engine of each bridge that has a member with `neigh-suppress`.
//!
//! # Model
//! The forwarding path gives this thread ARP requests and neighbour discovery ([`windlass_bridge::groups`]); the engine answers the asker
//! (`DataPlane::reply`), or the frame goes on to everybody (`DataPlane::relay`). Addresses in `allowed-ips` are known from the configuration.
//!
//! # Over an upgrade
//! A successor knows what is configured, and learns the rest anew.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use windlass_api::{Name, NeighboursView};
use windlass_bridge::flood::FloodKind;
use windlass_bridge::groups::GroupsConf;
use windlass_neigh::{Neighbours, Outcome, PortConf};
use windlass_worker::dataplane::now;
use windlass_worker::{LocalFrame, Relayed};

use super::snoop::tagged;
use super::{MemberState, Ports};

/// What one bridge knows of neighbours.
#[derive(Default)]
pub(super) struct Asked {
    engine: Neighbours,
    /// The number of its bridge in the data plane.
    bridge: u16,
    ports: BTreeMap<Name, u16>,
    lost: u64,
}

fn port_conf(member: &MemberState) -> PortConf {
    let guard = &member.settings.guard;
    let is_one = |(ip, bits): &(IpAddr, u8)| *bits == if ip.is_ipv4() { 32 } else { 128 };
    let ips = guard.ips.iter().flat_map(|ips| ips.iter()).filter(is_one);
    let fixed = ips.flat_map(|(ip, _)| member.vlans.iter().map(move |vid| (*vid, ip)));
    let fixed = fixed.filter(|_| member.own.is_some());
    PortConf {
        suppress: member.settings.neigh_suppress,
        is_host: guard.router_guard,
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

impl Ports {
    /// When a bridge has something to forget.
    pub(super) fn neighbours_due(&self) -> Option<Instant> {
        let due = self.neighbours.values().filter_map(|a| a.engine.due());
        let left = due.min()?.since(now());
        Some(Instant::now() + Duration::from_nanos(left))
    }

    /// What the forwarding path is to do on a bridge that does not snoop.
    pub(super) fn groups_without_snooping(&self, bridge: &Name) -> Option<GroupsConf> {
        let answers = self.neighbours.contains_key(bridge);
        answers.then(|| GroupsConf {
            answers,
            ..GroupsConf::default()
        })
    }

    /// Answers a question, or has it go on; whether the frame is one.
    pub(super) fn hear_question(&mut self, frame: &LocalFrame) -> bool {
        if !is_question(frame.bytes()) {
            return false;
        }
        let (id, vid) = (frame.member, frame.vid);
        let Some(member) = self.members.of(id) else {
            return true;
        };
        let (bridge, untagged) = (member.bridge.clone(), member.settings.vlan);
        let filtering = self.bridges.get(&bridge).is_some_and(|b| b.filtering);
        let Some(asked) = self.neighbours.get_mut(&bridge) else {
            return true;
        };
        let sent = match asked.engine.receive(id, vid, frame.bytes(), now()) {
            Outcome::Answer(answer) => {
                let is_tagged = filtering && untagged != Some(vid);
                let answer = tagged(&answer, is_tagged.then_some(vid));
                self.plane.reply(id, &answer)
            }
            Outcome::Pass => self.plane.relay(
                asked.bridge,
                Relayed {
                    from: Some(id),
                    vid,
                    set: FloodKind::Group.id(vid),
                    bytes: frame.bytes().to_vec(),
                },
            ),
        };
        asked.lost += u64::from(sent.is_err());
        true
    }

    /// Brings what is known up to date with members and time.
    pub(super) fn run_neighbours(&mut self) {
        let suppressing = self.members.values().filter(|m| m.settings.neigh_suppress);
        let mut wanted: Vec<Name> = suppressing.map(|m| m.bridge.clone()).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let bridges = &self.bridges;
        let stays = |name: &Name, bridge| {
            let state = bridges.get(name).filter(|b| b.id == bridge);
            state.is_some() && wanted.contains(name)
        };
        let gone = self
            .neighbours
            .extract_if(.., |name, a| !stays(name, a.bridge));
        let mut changed: Vec<Name> = gone.map(|(name, _)| name).collect();
        for name in wanted {
            let Some(bridge) = self.bridges.get(&name).map(|b| (b.id, b.filtering)) else {
                continue;
            };
            let mut asked = self.neighbours.remove(&name).unwrap_or_else(|| {
                changed.push(name.clone());
                Asked {
                    bridge: bridge.0,
                    ..Asked::default()
                }
            });
            self.match_neighbours(&name, bridge.1, &mut asked);
            asked.engine.advance(now());
            self.neighbours.insert(name, asked);
        }
        for name in changed {
            self.neighbours_changed(&name);
        }
    }

    fn match_neighbours(&self, bridge: &Name, filtering: bool, asked: &mut Asked) {
        let Asked { engine, ports, .. } = asked;
        ports.retain(|name, id| {
            let member = self.members.get(name);
            let stays = member.is_some_and(|m| m.bridge == *bridge && m.id == *id);
            if !stays {
                engine.remove_port(*id);
            }
            stays
        });
        for (name, member) in self.members.iter().filter(|(_, m)| m.bridge == *bridge) {
            let mut conf = port_conf(member);
            if !filtering {
                conf.fixed.iter_mut().for_each(|(vid, _)| *vid = 0);
            }
            engine.set_port(member.id, conf);
            if member.rings == 0 {
                engine.link_down(member.id);
            }
            ports.insert(name.clone(), member.id);
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

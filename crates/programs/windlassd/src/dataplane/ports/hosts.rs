//! What overlays tell the hosts on their bridges: addresses by DHCP, prefixes and routers by advertisements.
//!
//! # Model
//! The forwarding path gives this thread what DHCP clients send to servers, router solicitations and advertisements
//! ([`windlass_bridge::groups`]). A VNIC has a record: the addresses in its `allowed-ips`, else those that the search told of its link-layer address.
//! [`windlass_dhcp`] answers from it, and the answer goes to the asking VNIC alone. Without a record the frame goes on to everybody. Where the search
//! told a DHCP server of the VNIC (`dhcp-proxy`), or says so when it is asked, the client's frame goes to that one, and to nobody else. Members that are no VNICs are not heard: behind
//! an uplink there is a link of its own, which has its servers and routers.
//!
//! Advertisements are sent to each VNIC every [`ADVERTISE`], and when what they say has changed.
//!
//! # What can be lost
//! Answers and advertisements for which there is no room on the way to a worker. Clients ask again; hosts keep what they were told for three times as long.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use windlass_api::{MacAddr, Name};
use windlass_bridge::fdb::Key;
use windlass_dhcp::{Host, Network, Outcome, about};
use windlass_wire::host::About;
use windlass_worker::LocalFrame;
use windlass_worker::dataplane::now;
use windlass_worker::dataplane::overlays::TARGETS;

use super::overlays::{Overlay, Server, allowed_ips};
use super::snoop::tagged;
use super::{MemberState, Ports};

/// Time from one advertisement to the next: a third of what hosts keep a router for.
const ADVERTISE: Duration = Duration::from_secs(600);
/// Advertisements at once, and the time to the next ones: a part of the frames that may wait for a worker.
const AT_ONCE: usize = 32;
const GAP: Duration = Duration::from_millis(20);

/// The overlays of one bridge that tell hosts something.
#[derive(Default)]
pub(super) struct Hosts {
    overlays: BTreeMap<Name, Served>,
    /// When advertisements are sent next.
    advertise_at: Option<Instant>,
    /// VNICs that wait for one, each with its VLAN and the overlay.
    waiting: Vec<(Name, u16, Name)>,
}

/// What one overlay tells, and what became of requests.
struct Served {
    network: Network,
    /// In which VLANs.
    vlans: Vec<u16>,
    answered: u64,
    refused: u64,
    passed: u64,
    dropped: u64,
}

impl Hosts {
    /// Has an overlay tell what its properties say from now on, or nothing.
    pub(super) fn set(&mut self, name: &Name, overlay: Option<&Overlay>) {
        let told = overlay.and_then(|overlay| Some((overlay.network()?, overlay.vlans())));
        let Some((network, vlans)) = told else {
            self.overlays.remove(name);
            return;
        };
        let known = self.overlays.get_mut(name);
        let is_same = known.as_ref().is_some_and(|known| known.network == network);
        if network.advertises && !is_same {
            self.advertise_at = Some(Instant::now());
            // Those who were told what was before, too.
            self.waiting.clear();
        }
        let vlans = vlans.collect();
        match known {
            Some(known) => (known.network, known.vlans) = (network, vlans),
            None => {
                let served = Served {
                    network,
                    vlans,
                    answered: 0,
                    refused: 0,
                    passed: 0,
                    dropped: 0,
                };
                self.overlays.insert(name.clone(), served);
            }
        }
    }

    /// In which VLANs hosts are told something.
    pub(super) fn vlans(&self) -> BTreeSet<u16> {
        let served = self.overlays.values();
        served.flat_map(|served| &served.vlans).copied().collect()
    }
}

/// What a host's frame is.
enum Heard {
    /// Of a DHCP client whose address is not known here: for its server.
    Client(Server),
    /// Another one.
    Host(Outcome),
}

/// Whether a VNIC is in a VLAN of its bridge; 0: the bridge does not filter.
fn is_in(member: &MemberState, vlan: u16) -> bool {
    member.own.is_some() && (vlan == 0 || member.vlans.contains(&vlan))
}

/// The record of a member's link-layer address, and its DHCP server.
fn record(
    member: &MemberState,
    overlay: &Overlay,
    (vlan, mac): (u16, MacAddr),
) -> Option<(Host, Option<MacAddr>)> {
    let is_own = member.own == Some(mac) || member.settings.macs.iter().any(|own| own == mac);
    if !is_own {
        return None;
    }
    let mut ips: Vec<_> = allowed_ips(member).collect();
    let told = overlay.record((vlan, mac));
    if let Some((told, _)) = told.filter(|_| ips.is_empty()) {
        ips = told.to_vec();
    }
    Some((
        Host { mac: mac.0, ips },
        told.and_then(|(_, server)| server),
    ))
}

impl Ports {
    /// Answers a host's request, or has it go on; whether the frame is one.
    pub(super) fn hear_host(&mut self, frame: &LocalFrame) -> bool {
        let Some(about) = about(frame.bytes()) else {
            return false;
        };
        let (from, bytes) = ((frame.member, frame.vid), frame.bytes());
        let name = self.members.name_of(from.0).cloned();
        let Some(member) = name.and_then(|name| self.members.get(&name)) else {
            return true;
        };
        let bridge = member.bridge.clone();
        let source = bytes.get(6..).and_then(|s| s.first_chunk());
        let Some(asked) = self.neighbours.get(&bridge) else {
            return true;
        };
        let mut overlays = asked.hosts.overlays.iter();
        let found = overlays.find_map(|(name, served)| {
            let overlay = self.members.get(name)?.overlay.as_deref()?;
            overlay.vni_of(from.1)?;
            Some((name.clone(), overlay, &served.network))
        });
        let Some((name, overlay, network)) = found else {
            self.pass_on(&bridge, from, bytes);
            return true;
        };
        let record = source.and_then(|mac| record(member, overlay, (from.1, MacAddr(*mac))));
        let server = record.as_ref().and_then(|(_, server)| *server);
        let is_client = about == About::Leases && network.leases;
        let outcome = match server.filter(|_| is_client) {
            Some(server) => Heard::Client(Server::Is(server)),
            None => match network.receive(bytes, record.as_ref().map(|(host, _)| host)) {
                Outcome::Pass if is_client && record.is_some() => Heard::Client(Server::Unknown),
                outcome => Heard::Host(outcome),
            },
        };
        self.count(&bridge, &name, &outcome);
        match outcome {
            Heard::Client(server) => self.find_server(&name, from, bytes, server),
            Heard::Host(Outcome::Answer(answer) | Outcome::Refuse(answer)) => {
                self.answer(&bridge, from, &answer);
            }
            Heard::Host(Outcome::Pass) => self.pass_on(&bridge, from, bytes),
            Heard::Host(Outcome::Done | Outcome::Drop) => {}
        }
        true
    }

    /// Counts what becomes of a request.
    fn count(&mut self, bridge: &Name, overlay: &Name, heard: &Heard) {
        let Some(served) = self.served_mut(bridge, overlay) else {
            return;
        };
        let count = match heard {
            Heard::Host(Outcome::Answer(_) | Outcome::Done) => &mut served.answered,
            Heard::Host(Outcome::Refuse(_)) => &mut served.refused,
            Heard::Host(Outcome::Pass) | Heard::Client(_) => &mut served.passed,
            Heard::Host(Outcome::Drop) => &mut served.dropped,
        };
        *count += 1;
    }

    /// Sends a client's frame where it goes: to its DHCP server, or to everybody if it has none. If that is not known, and the search can
    /// be asked, when it has answered.
    pub(super) fn find_server(
        &mut self,
        overlay: &Name,
        from: (u16, u16),
        frame: &[u8],
        server: Server,
    ) {
        let member = self.members.get(overlay);
        let Some(bridge) = member.map(|member| member.bridge.clone()) else {
            return;
        };
        let server = match server {
            Server::Unknown => self.ask_server(overlay, from, frame),
            known => known,
        };
        match server {
            Server::Is(server) => self.forward_to(&bridge, overlay, from, frame, server),
            Server::Nobody => self.pass_on(&bridge, from, frame),
            Server::Unknown => {}
        }
    }

    /// Sends a client's frame to its DHCP server alone, where the bridge's table has it.
    fn forward_to(
        &mut self,
        bridge: &Name,
        overlay: &Name,
        (from, vid): (u16, u16),
        frame: &[u8],
        server: MacAddr,
    ) {
        let Some(number) = self.bridges.get(bridge).map(|bridge| bridge.id) else {
            return;
        };
        let key = Key::from_octets(vid, server.0);
        let table = self.plane.fdb_table(number);
        let found = table
            .ok()
            .and_then(|table| table.lookup(key, table.at(now())));
        let Some(place) = found.map(|hit| hit.member) else {
            return;
        };
        let mut is_private = |id| self.members.of(id).is_some_and(|m| m.settings.private);
        if place == from || (is_private(place) && is_private(from)) {
            return;
        }
        let mut bytes = frame.to_vec();
        if let Some(to) = bytes.first_chunk_mut() {
            *to = server.0;
        }
        if place < TARGETS {
            return self.answer(bridge, (place, vid), &bytes);
        }
        let overlay = self.members.get(overlay).and_then(|m| m.overlay.as_deref());
        let is_tagged = overlay.is_some_and(Overlay::keeps_tag);
        let sent = self
            .plane
            .reply(place, &tagged(&bytes, is_tagged.then_some(vid)));
        self.note_sent(bridge, sent);
    }

    fn served_mut(&mut self, bridge: &Name, overlay: &Name) -> Option<&mut Served> {
        let asked = self.neighbours.get_mut(bridge)?;
        asked.hosts.overlays.get_mut(overlay)
    }

    /// What became of requests, for people.
    pub(super) fn served(
        &self,
        bridge: &Name,
        overlay: &Name,
    ) -> Option<[(&'static str, String); 4]> {
        let served = self.neighbours.get(bridge)?.hosts.overlays.get(overlay)?;
        let counts = [
            ("host-requests-answered", served.answered),
            ("host-requests-refused", served.refused),
            ("host-requests-passed", served.passed),
            ("host-requests-dropped", served.dropped),
        ];
        Some(counts.map(|(key, count)| (key, count.to_string())))
    }

    /// When advertisements are to be sent.
    pub(super) fn advertisements_due(&self) -> Option<Instant> {
        let all = self.neighbours.values();
        all.filter_map(|asked| asked.hosts.advertise_at).min()
    }

    /// Sends the advertisements that are due.
    pub(super) fn run_advertisements(&mut self) {
        let now = Instant::now();
        if self.advertisements_due().is_none_or(|at| at > now) {
            return;
        }
        let bridges: Vec<Name> = self.neighbours.keys().cloned().collect();
        for bridge in bridges {
            self.advertise(&bridge, now);
        }
    }

    fn advertise(&mut self, bridge: &Name, now: Instant) {
        let Some(asked) = self.neighbours.get_mut(bridge) else {
            return;
        };
        let hosts = &mut asked.hosts;
        if hosts.advertise_at.is_none_or(|at| at > now) {
            return;
        }
        let mut waiting = std::mem::take(&mut hosts.waiting);
        if waiting.is_empty() {
            waiting = self.hosts_to_tell(bridge);
        }
        let left = waiting.len().saturating_sub(AT_ONCE);
        for (vnic, vlan, overlay) in waiting.split_off(left) {
            let member = self.members.get(&vnic);
            let id = member.filter(|m| m.bridge == *bridge && is_in(m, vlan));
            let id = id.map(|member| member.id);
            let served = self.served_mut(bridge, &overlay);
            let frame = served.and_then(|served| served.network.advertisement());
            if let (Some(id), Some(frame)) = (id, frame) {
                self.answer(bridge, (id, vlan), &frame);
            }
        }
        if let Some(asked) = self.neighbours.get_mut(bridge) {
            let hosts = &mut asked.hosts;
            let mut overlays = hosts.overlays.values();
            let advertises = overlays.any(|served| served.network.advertises);
            let next = if waiting.is_empty() { ADVERTISE } else { GAP };
            hosts.advertise_at = advertises.then(|| now + next);
            hosts.waiting = waiting;
        }
    }

    /// The VNICs that get advertisements, each with its VLAN and the overlay that tells it.
    fn hosts_to_tell(&self, bridge: &Name) -> Vec<(Name, u16, Name)> {
        let Some(asked) = self.neighbours.get(bridge) else {
            return Vec::new();
        };
        let overlays = asked.hosts.overlays.iter();
        let advertising = overlays.filter(|(_, served)| served.network.advertises);
        let mut all = Vec::new();
        for name in advertising.map(|(name, _)| name) {
            let overlay = self.members.get(name).and_then(|m| m.overlay.as_deref());
            for vlan in overlay.into_iter().flat_map(Overlay::vlans) {
                let members = self.members.iter();
                let there = members.filter(|(_, member)| {
                    member.bridge == *bridge && member.rings > 0 && is_in(member, vlan)
                });
                all.extend(there.map(|(vnic, _)| (vnic.clone(), vlan, name.clone())));
            }
        }
        all
    }
}

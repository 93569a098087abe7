//! What firewalls tell: answers to senders of what was rejected, and what rules with `log` have decided.
//!
//! # What can be lost
//! Answers and events beyond a VNIC's token buckets; all that workers tell while this thread is behind. The next event of a VNIC says how many
//! were left out before it. Lines of the log are the zone's ([`log::may`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use windlass_firewall::{Event, Packet, What};
use windlass_rules::{Direction, Family, State};

use super::Ports;
use super::snoop::tagged;
use crate::log::{self, Source};

/// Names of the lists of rules, by place.
const LISTS: [&str; 3] = ["zone", "firewall-base", "firewall"];

impl Ports {
    /// Does what firewalls ask for.
    pub(super) fn hear_firewalls(&mut self) {
        for told in self.plane.take_told() {
            match told.what {
                What::Answer { to, vid, answer } => {
                    let is_in = told.direction == Direction::In;
                    let Some(member) = self.members.of(to.0).filter(|_| to == told.member || is_in)
                    else {
                        continue;
                    };
                    let (bridge, untagged) = (member.bridge.clone(), member.settings.vlan);
                    let filtering = self.bridges.get(&bridge).is_some_and(|b| b.filtering);
                    let is_tagged = is_in && filtering && untagged != Some(vid);
                    let frame = tagged(answer.bytes(), is_tagged.then_some(vid));
                    // While too many wait, senders are not told.
                    let _ = self.plane.send_answer(to.0, &frame);
                }
                What::Event(event) => self.log(told.member.0, told.direction, &event),
            }
        }
    }

    fn log(&mut self, member: u16, direction: Direction, event: &Event) {
        let Some(vnic) = self.members.name_of(member).cloned() else {
            return;
        };
        let zone = self.members.of(member).and_then(|m| m.zone.clone());
        if !log::may(Source::Zone(zone.clone())) {
            return;
        }
        let zone = zone.map_or_else(String::new, |zone| zone.to_string());
        let packet = &event.packet;
        let [from, to] = [packet.from, packet.to].map(|address| ip(packet, address));
        let ports = Some(packet.ports).filter(|ports| *ports != (0, 0));
        let direction = match direction {
            Direction::In => "in",
            Direction::Out => "out",
        };
        let action = event.action.word();
        tracing::info!(
            event = "firewall",
            vnic = %vnic,
            zone,
            direction,
            action,
            list = LISTS.get(event.list).copied(),
            rule = &*event.rule,
            protocol = packet.protocol,
            from = %from,
            from_port = ports.map(|(from, _)| from),
            to = %to,
            to_port = ports.map(|(_, to)| to),
            icmp_type = packet.icmp.map(|(kind, ..)| kind),
            icmp_code = packet.icmp.map(|(_, code, _)| code),
            state = state(event.state),
            left_out = Some(event.left_out).filter(|n| *n > 0),
            "{vnic}: {action} {direction} from {from} to {to}"
        );
    }
}

fn ip(packet: &Packet, address: u128) -> IpAddr {
    match packet.family {
        Family::V4 => Ipv4Addr::from_bits(address as u32).into(),
        Family::V6 => Ipv6Addr::from_bits(address).into(),
    }
}

const fn state(state: State) -> &'static str {
    match state {
        State::New => "new",
        State::Established => "established",
        State::Related => "related",
        State::Invalid => "invalid",
    }
}

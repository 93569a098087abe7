//! DHCPv4, as a server that has one address for each client (RFC 2131, section 4.3).

use std::net::{IpAddr, Ipv4Addr};

use windlass_wire::build::Ends;
use windlass_wire::dhcp::{
    CLIENT, COOKIE, ETHERNET, Message4, REPLY, REQUEST, SERVER, code4, type4,
};

use crate::{Host, Network, Outcome, Packet, SERVER_V4, datagram};

/// Shortest message that all clients take (RFC 1542, section 2.1).
const SIZE_MIN: usize = 300;

/// What a client gets.
struct Lease {
    ip: Ipv4Addr,
    bits: u8,
}

/// The answer to a request; `None`: it is none of a client.
pub(crate) fn answer(
    network: &Network,
    packet: &Packet<'_>,
    host: Option<&Host>,
) -> Option<Outcome> {
    let request = Message4::new(packet.datagram()?)?;
    let is_own = request.operation == REQUEST
        && request.relay.is_unspecified()
        && request.chaddr == packet.from;
    if !is_own {
        return None;
    }
    let of = |ip| match ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    };
    let Some((ip, bits)) = host.and_then(|host| network.lease(host, of)) else {
        return Some(Outcome::Pass);
    };
    let lease = Lease { ip, bits };
    let server = request.server.map(|server| *server == SERVER_V4.octets());
    let gives = |kind| {
        Some(Outcome::Answer(reply(
            network,
            &request,
            kind,
            Some(&lease),
        )?))
    };
    match request.kind {
        type4::DISCOVER => gives(type4::OFFER),
        type4::REQUEST if server == Some(false) => Some(Outcome::Done),
        type4::REQUEST if wanted(&request) == Some(ip) => gives(type4::ACK),
        type4::REQUEST => Some(Outcome::Refuse(reply(network, &request, type4::NAK, None)?)),
        type4::INFORM if request.has == ip => gives(type4::ACK),
        type4::INFORM | type4::RELEASE | type4::DECLINE => Some(Outcome::Done),
        _ => None,
    }
}

/// The address that a client wants to have or keep.
fn wanted(request: &Message4<'_>) -> Option<Ipv4Addr> {
    match request.requested {
        Some(ip) => Some(Ipv4Addr::from(<[u8; 4]>::try_from(ip).ok()?)),
        None => Some(request.has),
    }
}

fn reply(
    network: &Network,
    request: &Message4<'_>,
    kind: u8,
    lease: Option<&Lease>,
) -> Option<Vec<u8>> {
    let is_inform = request.kind == type4::INFORM;
    let has = request.has.octets();
    let gets = lease.filter(|_| !is_inform).map(|lease| lease.ip);
    let flags = if request.is_broadcast { 0x80 } else { 0 };
    let mut message = vec![REPLY, ETHERNET, 6, 0];
    message.extend(request.xid.to_be_bytes());
    message.extend([0, 0, flags, 0]);
    // RFC 2131, table 3: a NAK has no address.
    message.extend(if lease.is_some() { has } else { [0; 4] });
    message.extend(gets.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
    message.extend([0; 8]);
    message.extend(request.chaddr);
    message.resize(236, 0);
    message.extend(COOKIE);
    let mut option = |code: u8, value: &[u8]| {
        message.extend([code, value.len().min(255) as u8]);
        message.extend(value);
    };
    option(code4::TYPE, &[kind]);
    option(code4::SERVER_ID, &SERVER_V4.octets());
    if let Some(lease) = lease {
        if gets.is_some() {
            option(code4::LEASE_TIME, &network.lease_s.to_be_bytes());
            option(code4::RENEWAL_TIME, &network.renew_s().to_be_bytes());
            option(code4::REBINDING_TIME, &network.rebind_s().to_be_bytes());
        }
        let mask = u32::MAX
            .checked_shl(32_u32.saturating_sub(lease.bits.into()))
            .unwrap_or(0);
        option(code4::MASK, &mask.to_be_bytes());
        if let Some(router) = network.router_v4 {
            option(code4::ROUTER, &router.octets());
        }
        let name_servers = network.name_servers(|ip| match ip {
            IpAddr::V4(ip) => Some(ip.octets()),
            IpAddr::V6(_) => None,
        });
        if !name_servers.is_empty() {
            option(code4::NAME_SERVERS, &name_servers);
        }
        option(code4::MTU, &network.mtu.to_be_bytes());
    }
    // RFC 6842.
    if let Some(client) = request.client {
        option(code4::CLIENT_ID, client);
    }
    message.push(code4::END);
    message.resize(message.len().max(SIZE_MIN), 0);
    // RFC 2131, section 4.1.
    let everybody = (Ipv4Addr::BROADCAST, [0xff; 6]);
    let (ip, mac) = match gets {
        _ if lease.is_none() => everybody,
        _ if !request.has.is_unspecified() => (request.has, request.chaddr),
        Some(ip) if !request.is_broadcast => (ip, request.chaddr),
        _ => everybody,
    };
    datagram(mac, Ends::V4(SERVER_V4, ip), (SERVER, CLIENT), &message)
}

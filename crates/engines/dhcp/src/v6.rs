//! DHCPv6, as a server that has one address for each client (RFC 8415, section 18.3).

use std::net::{IpAddr, Ipv6Addr};

use windlass_wire::build::Ends;
use windlass_wire::dhcp::{CLIENT6, Malformed, Options6, SERVER6, code6, type6};

use crate::{Host, MAC, Network, Outcome, Packet, SERVER_V6, datagram};

/// The longest identifier of a client: a type and 128 bytes (RFC 8415, section 11.1).
const DUID_MAX: usize = 130;
/// Identity associations of a message at most: RFC 8415 knows no bound, and clients send one or two.
const IAS_MAX: usize = 8;

/// Codes of a status (RFC 8415, section 21.13).
mod status {
    pub(super) const SUCCESS: u16 = 0;
    pub(super) const NO_ADDRESSES: u16 = 2;
    pub(super) const NOT_ON_LINK: u16 = 4;
}

/// An identity association for addresses: its identifier, and the addresses that the client names.
struct Association {
    id: [u8; 4],
    addresses: Vec<Ipv6Addr>,
}

/// What a client says.
#[derive(Default)]
struct Request<'a> {
    client: Option<&'a [u8]>,
    server: Option<&'a [u8]>,
    associations: Vec<Association>,
    is_rapid: bool,
}

impl<'a> Request<'a> {
    fn new(options: &'a [u8]) -> Result<Request<'a>, Malformed> {
        let mut request = Request::default();
        for option in Options6(options) {
            let (code, value) = option?;
            let former = match code {
                code6::CLIENT_ID => request.client.replace(value),
                code6::SERVER_ID => request.server.replace(value),
                code6::IA_NA => {
                    request.associations.push(association(value)?);
                    None
                }
                code6::RAPID_COMMIT => {
                    request.is_rapid = true;
                    None
                }
                _ => None,
            };
            if former.is_some() || request.associations.len() > IAS_MAX {
                return Err(Malformed);
            }
        }
        match request.client {
            Some(client) if client.len() > DUID_MAX => Err(Malformed),
            _ => Ok(request),
        }
    }

    fn addresses(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.associations
            .iter()
            .flat_map(|ia| ia.addresses.iter().copied())
    }
}

fn association(value: &[u8]) -> Result<Association, Malformed> {
    let (id, rest) = value.split_first_chunk::<4>().ok_or(Malformed)?;
    let mut addresses = Vec::new();
    for option in Options6(rest.get(8..).ok_or(Malformed)?) {
        let (code, value) = option?;
        if code == code6::IA_ADDRESS {
            let address = value.first_chunk::<16>().filter(|_| value.len() >= 24);
            addresses.push(Ipv6Addr::from(*address.ok_or(Malformed)?));
        }
    }
    Ok(Association { id: *id, addresses })
}

/// The answer to a message; `None`: it is none of a client.
pub(crate) fn answer(
    network: &Network,
    packet: &Packet<'_>,
    host: Option<&Host>,
) -> Option<Outcome> {
    let (&[kind, x0, x1, x2], options) = packet.datagram()?.split_first_chunk()?;
    let request = Request::new(options).ok()?;
    let source = packet.source().filter(Ipv6Addr::is_unicast_link_local)?;
    if !is_sound(kind, &request) {
        return None;
    }
    let of = |ip| match ip {
        IpAddr::V6(ip) => Some(ip),
        IpAddr::V4(_) => None,
    };
    let Some((ip, _)) = host.and_then(|host| network.lease(host, of)) else {
        return Some(Outcome::Pass);
    };
    let is_ours = request.server.is_none_or(|server| server == server_id());
    let is_idle = kind == type6::CONFIRM && request.addresses().next().is_none();
    if !is_ours || is_idle {
        // RFC 8415, section 18.3.3: without an address there is nothing to confirm.
        return Some(Outcome::Done);
    }
    let keeps = matches!(kind, type6::RENEW | type6::REBIND | type6::CONFIRM);
    let is_refused = keeps && request.addresses().any(|other| other != ip);
    let reply = match kind {
        type6::SOLICIT if !request.is_rapid => type6::ADVERTISE,
        _ => type6::REPLY,
    };
    let mut message = vec![reply, x0, x1, x2];
    put_options(network, &mut message, kind, &request, (ip, is_refused));
    let ends = Ends::V6(SERVER_V6, source);
    let frame = datagram(packet.from, ends, (SERVER6, CLIENT6), &message)?;
    Some(match is_refused {
        true => Outcome::Refuse(frame),
        false => Outcome::Answer(frame),
    })
}

/// Whether a server looks at a message (RFC 8415, section 16): a client's, which names itself, and a server where it has to and only there.
fn is_sound(kind: u8, request: &Request<'_>) -> bool {
    let (names_itself, names_server) = (request.client.is_some(), request.server.is_some());
    match kind {
        type6::REQUEST | type6::RENEW | type6::RELEASE | type6::DECLINE => {
            names_itself && names_server
        }
        type6::SOLICIT | type6::CONFIRM | type6::REBIND => names_itself && !names_server,
        type6::INFORMATION => true,
        _ => false,
    }
}

/// The options of an answer, where the lease is this and other addresses were asked for or not.
fn put_options(
    network: &Network,
    message: &mut Vec<u8>,
    kind: u8,
    request: &Request<'_>,
    (ip, is_refused): (Ipv6Addr, bool),
) {
    put(message, code6::SERVER_ID, &server_id());
    if let Some(client) = request.client {
        put(message, code6::CLIENT_ID, client);
    }
    match kind {
        type6::SOLICIT | type6::REQUEST => put_leases(network, message, request, (ip, false)),
        type6::RENEW | type6::REBIND => put_leases(network, message, request, (ip, true)),
        type6::CONFIRM if is_refused => {
            put(message, code6::STATUS, &status::NOT_ON_LINK.to_be_bytes());
        }
        type6::CONFIRM | type6::RELEASE | type6::DECLINE => {
            put(message, code6::STATUS, &status::SUCCESS.to_be_bytes());
        }
        _ => {}
    }
    let name_servers = network.name_servers_v6();
    let tells = !matches!(kind, type6::CONFIRM | type6::RELEASE | type6::DECLINE);
    if tells && !name_servers.is_empty() {
        put(message, code6::NAME_SERVERS, &name_servers);
    }
    if kind == type6::SOLICIT && request.is_rapid {
        put(message, code6::RAPID_COMMIT, &[]);
    }
}

/// The server's DUID: of its link-layer address (RFC 8415, section 11.4).
fn server_id() -> Vec<u8> {
    [&[0, 3, 0, 1][..], &MAC.0].concat()
}

fn put(message: &mut Vec<u8>, code: u16, value: &[u8]) {
    message.extend(code.to_be_bytes());
    message.extend((value.len() as u16).to_be_bytes());
    message.extend(value);
}

/// The lease in the first association, and that there is none in others. What else a client has ends, where it asks to keep it.
fn put_leases(
    network: &Network,
    message: &mut Vec<u8>,
    request: &Request<'_>,
    (ip, is_kept): (Ipv6Addr, bool),
) {
    for (i, association) in request.associations.iter().enumerate() {
        let mut inner = association.id.to_vec();
        inner.extend(network.renew_s().to_be_bytes());
        inner.extend(network.rebind_s().to_be_bytes());
        let gets = (i == 0).then_some((ip, network.lease_s));
        let named = association.addresses.iter().filter(|_| is_kept);
        let ends = named.filter(|other| **other != ip).map(|other| (*other, 0));
        for (ip, seconds) in gets.into_iter().chain(ends) {
            let mut address = ip.octets().to_vec();
            address.extend(seconds.to_be_bytes());
            address.extend(seconds.to_be_bytes());
            put(&mut inner, code6::IA_ADDRESS, &address);
        }
        if i != 0 {
            put(
                &mut inner,
                code6::STATUS,
                &status::NO_ADDRESSES.to_be_bytes(),
            );
        }
        put(message, code6::IA_NA, &inner);
    }
}

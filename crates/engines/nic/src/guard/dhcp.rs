//! Which DHCP client a member is, and whether it plays a server.

use windlass_wire::Kind;

use super::{Need, Packet, word};
use windlass_wire::dhcp::{
    CLIENT, CLIENT6, COOKIE, ETHERNET, Malformed, Options4, Options6, REPLY, REQUEST, SERVER,
    SERVER6, code4, code6,
};

pub(super) const PORTS: [u16; 2] = [SERVER, CLIENT];
pub(super) const PORTS6: [u16; 2] = [CLIENT6, SERVER6];
/// A client identifier of IAID and DUID (RFC 4361, section 6.1).
const NODE: u8 = 255;
/// Messages of DHCPv6 that clients send, and those that servers send (RFC 8415, section 7.3).
const CLIENTS6: [u8; 8] = [1, 3, 4, 5, 6, 8, 9, 11];
const SERVERS6: [u8; 4] = [2, 7, 10, 13];
/// The one that may be without a client identifier.
const INFORMATION: u8 = 11;

/// The DHCP client that a member is: its own link-layer addresses, and identifiers made of them or named.
///
/// | message | refused unless |
/// | --- | --- |
/// | DHCPv4 to a server | a whole datagram; hardware address (`chaddr`) one of the member's own; no option overload; at most one client identifier, which holds an own address (type 1, or type 255 with a DUID) or is named |
/// | DHCPv6 to a server | a whole datagram; of a client; one client identifier, a DUID-LL or DUID-LLT of an own address or named; an information request may have none |
///
/// Messages that only servers send pass: they are the DHCP guard's. Those of a relay are refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DhcpNospoof {
    /// Further client identifiers: option 61 of DHCPv4 with its type, DUIDs of DHCPv6.
    pub ids: Vec<Box<[u8]>>,
    /// Any client identifier will do; the hardware address still counts.
    pub any_id: bool,
}

impl DhcpNospoof {
    #[inline(always)]
    pub(super) fn allow(&self, packet: &Packet<'_>) -> Result<bool, Need> {
        match (packet.udp_to(), packet.layers.kind) {
            (Some(SERVER), Kind::Ipv4) => {
                let message = packet.datagram()?;
                Ok(message.is_some_and(|message| self.allow_v4(message, packet.own)))
            }
            (Some(SERVER6), Kind::Ipv6) => {
                let message = packet.datagram()?;
                Ok(message.is_some_and(|message| self.allow_v6(message, packet.own)))
            }
            _ => Ok(true),
        }
    }

    fn allow_v4(&self, message: &[u8], own: &[u64]) -> bool {
        let &[operation, hardware, size, ..] = message else {
            return false;
        };
        if operation == REPLY {
            return true;
        }
        let chaddr = message.get(28..).and_then(|chaddr| chaddr.first_chunk());
        let options = message.get(236..).and_then(|o| o.strip_prefix(&COOKIE));
        let (Some(chaddr), Some(options)) = (chaddr, options) else {
            return false;
        };
        [operation, hardware, size] == [REQUEST, ETHERNET, 6]
            && own.contains(&word(*chaddr))
            && match client_id(options) {
                Ok(None) => true,
                Ok(Some(id)) => self.any_id || self.has_id(id, own),
                Err(Malformed) => false,
            }
    }

    fn has_id(&self, id: &[u8], own: &[u64]) -> bool {
        let is_own = match *id {
            [ETHERNET, a, b, c, d, e, f] => own.contains(&word([a, b, c, d, e, f])),
            [NODE, _, _, _, _, ref duid @ ..] => self.has_duid(duid, own),
            _ => false,
        };
        is_own || self.is_named(id)
    }

    fn allow_v6(&self, message: &[u8], own: &[u64]) -> bool {
        let Some((&[number, _, _, _], options)) = message.split_first_chunk() else {
            return false;
        };
        if SERVERS6.contains(&number) {
            return true;
        }
        CLIENTS6.contains(&number)
            && match client_duid(options) {
                Ok(None) => number == INFORMATION,
                Ok(Some(duid)) => self.any_id || self.has_duid(duid, own),
                Err(Malformed) => false,
            }
    }

    /// DUID-LLT and DUID-LL (RFC 8415, sections 11.2 and 11.4).
    fn has_duid(&self, duid: &[u8], own: &[u64]) -> bool {
        let is_own = match *duid {
            [0, 1, 0, 1, _, _, _, _, a, b, c, d, e, f] | [0, 3, 0, 1, a, b, c, d, e, f] => {
                own.contains(&word([a, b, c, d, e, f]))
            }
            _ => false,
        };
        is_own || self.is_named(duid)
    }

    fn is_named(&self, id: &[u8]) -> bool {
        self.ids.iter().any(|named| **named == *id)
    }
}

/// Whether only a DHCP server sends it, or nobody.
#[inline(always)]
pub(super) fn is_of_server(packet: &Packet<'_>) -> Result<bool, Need> {
    match (packet.udp_to(), packet.layers.kind) {
        (Some(CLIENT), Kind::Ipv4) | (Some(CLIENT6), Kind::Ipv6) => Ok(true),
        (Some(SERVER), Kind::Ipv4) => {
            let operation = packet.datagram()?.and_then(|message| message.first());
            Ok(operation != Some(&REQUEST))
        }
        (Some(SERVER6), Kind::Ipv6) => {
            let number = packet.datagram()?.and_then(|message| message.first());
            Ok(number.is_none_or(|number| SERVERS6.contains(number)))
        }
        _ => Ok(false),
    }
}

/// The client identifier among options of DHCPv4. Several (RFC 3396) and options in other fields are [`Malformed`].
fn client_id(options: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let mut found = None;
    for option in Options4(options) {
        match option? {
            (code4::OVERLOAD, _) => return Err(Malformed),
            (code4::CLIENT_ID, value) if found.replace(value).is_some() => return Err(Malformed),
            _ => {}
        }
    }
    Ok(found)
}

/// The client identifier among options of DHCPv6; several are [`Malformed`].
fn client_duid(options: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let mut found = None;
    for option in Options6(options) {
        let (code, value) = option?;
        if code == code6::CLIENT_ID && found.replace(value).is_some() {
            return Err(Malformed);
        }
    }
    Ok(found)
}

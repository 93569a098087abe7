//! DHCPv4 (RFC 2131, RFC 2132) and DHCPv6 (RFC 8415) as bytes.

use core::net::Ipv4Addr;

/// UDP port of DHCPv4 servers (RFC 2131, section 4.1).
pub const SERVER: u16 = 67;
/// UDP port of DHCPv4 clients.
pub const CLIENT: u16 = 68;
/// UDP port of DHCPv6 clients (RFC 8415, section 7.2).
pub const CLIENT6: u16 = 546;
/// UDP port of DHCPv6 servers and relays.
pub const SERVER6: u16 = 547;
/// Operation of BOOTP (RFC 951): to a server.
pub const REQUEST: u8 = 1;
/// Operation of BOOTP: to a client.
pub const REPLY: u8 = 2;
/// Hardware type, and type of client identifiers: an Ethernet address (RFC 2132, section 9.14).
pub const ETHERNET: u8 = 1;
/// Where options begin (RFC 2132, section 2).
pub const COOKIE: [u8; 4] = [99, 130, 83, 99];

/// Options of DHCPv4 (RFC 2132).
#[allow(missing_docs, reason = "the names are those of the RFC")]
pub mod code4 {
    pub const MASK: u8 = 1;
    pub const ROUTER: u8 = 3;
    pub const NAME_SERVERS: u8 = 6;
    pub const MTU: u8 = 26;
    pub const REQUESTED: u8 = 50;
    pub const LEASE_TIME: u8 = 51;
    pub const OVERLOAD: u8 = 52;
    pub const TYPE: u8 = 53;
    pub const SERVER_ID: u8 = 54;
    pub const RENEWAL_TIME: u8 = 58;
    pub const REBINDING_TIME: u8 = 59;
    pub const CLIENT_ID: u8 = 61;
    /// RFC 4039.
    pub const RAPID_COMMIT: u8 = 80;
    pub const END: u8 = 255;
}

/// Messages of DHCPv4 (RFC 2132, section 9.6).
#[allow(missing_docs, reason = "the names are those of the RFC")]
pub mod type4 {
    pub const DISCOVER: u8 = 1;
    pub const OFFER: u8 = 2;
    pub const REQUEST: u8 = 3;
    pub const DECLINE: u8 = 4;
    pub const ACK: u8 = 5;
    pub const NAK: u8 = 6;
    pub const RELEASE: u8 = 7;
    pub const INFORM: u8 = 8;
}

/// Options of DHCPv6 (RFC 8415, section 21).
#[allow(missing_docs, reason = "the names are those of the RFC")]
pub mod code6 {
    pub const CLIENT_ID: u16 = 1;
    pub const SERVER_ID: u16 = 2;
    pub const IA_NA: u16 = 3;
    pub const IA_TA: u16 = 4;
    pub const IA_ADDRESS: u16 = 5;
    pub const STATUS: u16 = 13;
    pub const RAPID_COMMIT: u16 = 14;
    /// RFC 3646.
    pub const NAME_SERVERS: u16 = 23;
    pub const IA_PD: u16 = 25;
    pub const IA_PREFIX: u16 = 26;
}

/// Messages of DHCPv6 (RFC 8415, section 7.3).
#[allow(missing_docs, reason = "the names are those of the RFC")]
pub mod type6 {
    pub const SOLICIT: u8 = 1;
    pub const ADVERTISE: u8 = 2;
    pub const REQUEST: u8 = 3;
    pub const CONFIRM: u8 = 4;
    pub const RENEW: u8 = 5;
    pub const REBIND: u8 = 6;
    pub const REPLY: u8 = 7;
    pub const RELEASE: u8 = 8;
    pub const DECLINE: u8 = 9;
    pub const INFORMATION: u8 = 11;
}

/// Options end in the middle of one, or say of what nobody can be sure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The options of DHCPv4 in a field, each with its code, up to the end mark. Behind [`Malformed`] there is nothing.
pub struct Options4<'a>(pub &'a [u8]);

impl<'a> Iterator for Options4<'a> {
    type Item = Result<(u8, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match *self.0 {
                [] | [255, ..] => return None,
                [0, ref rest @ ..] => self.0 = rest,
                [code, ref rest @ ..] => {
                    let option = rest
                        .split_first()
                        .and_then(|(size, rest)| rest.split_at_checked(usize::from(*size)));
                    self.0 = option.map_or(&[], |(_, rest)| rest);
                    return Some(option.map(|(value, _)| (code, value)).ok_or(Malformed));
                }
            }
        }
    }
}

/// Options of DHCPv6, each with its code. Behind [`Malformed`] there is nothing.
pub struct Options6<'a>(pub &'a [u8]);

impl<'a> Iterator for Options6<'a> {
    type Item = Result<(u16, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let option = self.0.split_first_chunk().and_then(|(head, rest)| {
            let &[c0, c1, s0, s1] = head;
            let size = u16::from_be_bytes([s0, s1]);
            let (value, rest) = rest.split_at_checked(size.into())?;
            Some((u16::from_be_bytes([c0, c1]), value, rest))
        });
        self.0 = option.map_or(&[], |(_, _, rest)| rest);
        Some(
            option
                .map(|(code, value, _)| (code, value))
                .ok_or(Malformed),
        )
    }
}

/// A message of DHCPv4 over Ethernet that says of which type it is. Options in the fields of names are not read.
#[derive(Clone, Copy, Debug)]
pub struct Message4<'a> {
    /// [`REQUEST`] or [`REPLY`].
    pub operation: u8,
    /// Of which type ([`type4`]).
    pub kind: u8,
    /// What request and answer have in common.
    pub xid: u32,
    /// The client cannot take unicast yet (RFC 2131, section 4.1).
    pub is_broadcast: bool,
    /// The address that the client has.
    pub has: Ipv4Addr,
    /// The address that it gets.
    pub gets: Ipv4Addr,
    /// The relay that the message came by; 0.0.0.0: none.
    pub relay: Ipv4Addr,
    /// The client's hardware address.
    pub chaddr: [u8; 6],
    /// The client identifier.
    pub client: Option<&'a [u8]>,
    /// The address that it asks for.
    pub requested: Option<&'a [u8]>,
    /// Seconds of the lease.
    pub lease: Option<&'a [u8]>,
    /// The server that it means or is.
    pub server: Option<&'a [u8]>,
    /// Two messages are enough.
    pub is_rapid: bool,
}

impl<'a> Message4<'a> {
    /// Reads the payload of a datagram; none if it is no such message, or an option is given twice: nobody can be sure of it.
    pub fn new(message: &'a [u8]) -> Option<Message4<'a>> {
        let fixed: &[u8; 236] = message.first_chunk()?;
        let options = message.get(236..)?.strip_prefix(&COOKIE)?;
        let &[
            operation,
            hardware,
            size,
            _,
            x0,
            x1,
            x2,
            x3,
            _,
            _,
            flags,
            ..,
        ] = fixed;
        let address = |at: usize| {
            let address = fixed.get(at..)?.first_chunk::<4>()?;
            Some(Ipv4Addr::from(*address))
        };
        if [hardware, size] != [ETHERNET, 6] {
            return None;
        }
        let [mut kind, mut client, mut requested, mut lease, mut server] = [None; 5];
        let mut is_rapid = false;
        for option in Options4(options) {
            let (code, value) = option.ok()?;
            let place = match code {
                code4::TYPE => &mut kind,
                code4::CLIENT_ID => &mut client,
                code4::REQUESTED => &mut requested,
                code4::LEASE_TIME => &mut lease,
                code4::SERVER_ID => &mut server,
                code4::RAPID_COMMIT => {
                    is_rapid = true;
                    continue;
                }
                _ => continue,
            };
            if place.replace(value).is_some() {
                return None;
            }
        }
        let &[kind] = kind? else { return None };
        Some(Message4 {
            operation,
            kind,
            xid: u32::from_be_bytes([x0, x1, x2, x3]),
            is_broadcast: flags & 0x80 != 0,
            has: address(12)?,
            gets: address(16)?,
            relay: address(24)?,
            chaddr: *fixed.get(28..)?.first_chunk()?,
            client,
            requested,
            lease,
            server,
            is_rapid,
        })
    }
}

//! IP addresses of links.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::message::{self, CREATE, DUMP, EXCLUSIVE, Malformed, Reader, Received, Request};
use super::{Netlink, NetlinkError};

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_CACHEINFO: u16 = 6;

pub(super) const AF_INET: u8 = 2;
pub(super) const AF_INET6: u8 = 10;

/// `RT_SCOPE_UNIVERSE`: valid everywhere.
const SCOPE_UNIVERSE: u8 = 0;
/// `RT_SCOPE_LINK`: valid on its link alone.
const SCOPE_LINK: u8 = 253;

/// One address of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The link's index.
    pub index: u32,
    /// The address.
    pub ip: IpAddr,
    /// Length of its network's prefix in bits.
    pub prefix: u8,
    /// Whether it is valid on its link alone, as the kernel's own `fe80::` addresses are.
    pub is_link_local: bool,
    /// When it was given to the link, in hundredths of a second since the kernel began: another one on a link of the same index
    /// differs.
    pub since: u32,
}

pub(super) fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { AF_INET } else { AF_INET6 }
}

pub(super) fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// An address attribute; its length tells the family.
pub(super) fn parse_ip(value: &[u8]) -> Result<IpAddr, Malformed> {
    if let Ok(octets) = <[u8; 4]>::try_from(value) {
        Ok(Ipv4Addr::from(octets).into())
    } else if let Ok(octets) = <[u8; 16]>::try_from(value) {
        Ok(Ipv6Addr::from(octets).into())
    } else {
        Err(Malformed)
    }
}

/// `struct ifaddrmsg`: family, prefix length, flags, scope, index.
fn body(family: u8, prefix: u8, scope: u8, index: u32) -> Vec<u8> {
    [[family, prefix, 0, scope], index.to_ne_bytes()].concat()
}

fn parse(received: &Received<'_>) -> Result<Option<Address>, Malformed> {
    if received.kind != RTM_NEWADDR {
        return Ok(None);
    }
    let mut reader = Reader(received.payload);
    let (family, prefix) = (reader.u8()?, reader.u8()?);
    let scope = {
        reader.u8()?;
        reader.u8()?
    };
    let index = reader.u32()?;
    if !matches!(family, AF_INET | AF_INET6) {
        return Ok(None);
    }
    let (mut local, mut peer, mut since) = (None, None, 0);
    for attribute in message::attributes(reader.0) {
        match attribute? {
            (IFA_LOCAL, value) => local = Some(parse_ip(value)?),
            (IFA_ADDRESS, value) => peer = Some(parse_ip(value)?),
            (IFA_CACHEINFO, value) => {
                // struct ifa_cacheinfo: two lifetimes, then when it was made.
                since = Reader(value.get(8..).ok_or(Malformed)?).u32()?;
            }
            _ => {}
        }
    }
    // On a point-to-point link ADDRESS is the other end; IPv6 has LOCAL only there.
    let ip = local.or(peer).ok_or(Malformed)?;
    Ok(Some(Address {
        index,
        ip,
        prefix,
        is_link_local: scope == SCOPE_LINK,
        since,
    }))
}

/// The last address of an IPv4 network, for networks that have one.
fn broadcast(ip: IpAddr, prefix: u8) -> Option<Ipv4Addr> {
    let IpAddr::V4(ip) = ip else { return None };
    let host = u32::MAX
        .checked_shr(prefix.into())
        .filter(|_| prefix < 31)?;
    Some(Ipv4Addr::from(u32::from(ip) | host))
}

impl Netlink {
    /// Adds an address with a prefix of `prefix` bits to the link `index`. `EEXIST` if it is there.
    ///
    /// The kernel adds the route to its network once the link is up, and checks an IPv6 address
    /// for duplicates during the first second or so.
    pub fn add_address(&mut self, index: u32, ip: IpAddr, prefix: u8) -> Result<(), NetlinkError> {
        let body = body(family(ip), prefix, SCOPE_UNIVERSE, index);
        let mut request = Request::start(RTM_NEWADDR, CREATE | EXCLUSIVE, &body);
        request.attribute(IFA_LOCAL, &octets(ip));
        request.attribute(IFA_ADDRESS, &octets(ip));
        if let Some(all) = broadcast(ip, prefix) {
            request.attribute(IFA_BROADCAST, &all.octets());
        }
        self.change(request, "add address")
    }

    /// Removes an address. `EADDRNOTAVAIL` if it is not there.
    pub fn delete_address(
        &mut self,
        index: u32,
        ip: IpAddr,
        prefix: u8,
    ) -> Result<(), NetlinkError> {
        let body = body(family(ip), prefix, SCOPE_UNIVERSE, index);
        let mut request = Request::start(RTM_DELADDR, 0, &body);
        request.attribute(IFA_LOCAL, &octets(ip));
        self.change(request, "delete address")
    }

    /// All addresses of the namespace, both families.
    pub fn addresses(&mut self) -> Result<Vec<Address>, NetlinkError> {
        self.dump(
            || Request::start(RTM_GETADDR, DUMP, &body(0, 0, 0, 0)),
            "list addresses",
            parse,
        )
    }

    /// The addresses of one link, both families, the kernel's own link-local one among them.
    pub fn addresses_of(&mut self, index: u32) -> Result<Vec<Address>, NetlinkError> {
        let mut list = self.addresses()?;
        list.retain(|address| address.index == index);
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Networks of one or two addresses have no broadcast address.
    #[test]
    fn broadcast_of_small_networks() {
        let ip = IpAddr::from([10, 1, 2, 3]);
        assert_eq!(broadcast(ip, 24), Some(Ipv4Addr::new(10, 1, 2, 255)));
        assert_eq!(broadcast(ip, 30), Some(Ipv4Addr::new(10, 1, 2, 3)));
        assert_eq!(broadcast(ip, 0), Some(Ipv4Addr::BROADCAST));
        for prefix in [31, 32, 33, 255] {
            assert_eq!(broadcast(ip, prefix), None);
        }
        assert_eq!(broadcast(IpAddr::from([0u16; 8]), 64), None);
    }
}

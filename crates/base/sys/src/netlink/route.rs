//! Routes of the main table.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::net::IpAddr;

use super::address::{AF_INET, AF_INET6, family, octets, parse_ip};
use super::message::{self, CREATE, DUMP, EXCLUSIVE, Malformed, Reader, Received, Request};
use super::{Netlink, NetlinkError};

const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;

const RT_TABLE_MAIN: u8 = 254;
/// Made by an administrator at run time, which is what a program acting for one should say.
const RTPROT_BOOT: u8 = 3;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RT_SCOPE_NOWHERE: u8 = 255;
const RTN_UNICAST: u8 = 1;

/// One route of the main table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network's address; unspecified, with prefix 0, for the default route.
    pub network: IpAddr,
    /// Length of its prefix in bits.
    pub prefix: u8,
    /// The next hop; `None` for what is on the link itself.
    pub gateway: Option<IpAddr>,
    /// The link's index; `None` for a route over several.
    pub index: Option<u32>,
}

/// `struct rtmsg`: family, lengths, TOS, table, protocol, scope, type, flags.
fn body(family: u8, prefix: u8, scope: u8) -> [u8; 12] {
    [
        family,
        prefix,
        0,
        0,
        RT_TABLE_MAIN,
        RTPROT_BOOT,
        scope,
        RTN_UNICAST,
        0,
        0,
        0,
        0,
    ]
}

fn fill(request: &mut Request, route: &Route) {
    if route.prefix > 0 {
        request.attribute(RTA_DST, &octets(route.network));
    }
    if let Some(gateway) = route.gateway {
        request.attribute(RTA_GATEWAY, &octets(gateway));
    }
    if let Some(index) = route.index {
        request.u32(RTA_OIF, index);
    }
}

fn parse(received: &Received<'_>) -> Result<Option<Route>, Malformed> {
    if received.kind != RTM_NEWROUTE {
        return Ok(None);
    }
    let mut reader = Reader(received.payload);
    let (family, prefix) = (reader.u8()?, reader.u8()?);
    reader.u16()?;
    let (table, _protocol, _scope, kind) = (reader.u8()?, reader.u8()?, reader.u8()?, reader.u8()?);
    reader.u32()?;
    let network = match family {
        AF_INET => IpAddr::from([0; 4]),
        AF_INET6 => IpAddr::from([0u16; 8]),
        _ => return Ok(None),
    };
    if table != RT_TABLE_MAIN || kind != RTN_UNICAST {
        return Ok(None);
    }
    let mut route = Route {
        network,
        prefix,
        gateway: None,
        index: None,
    };
    for attribute in message::attributes(reader.0) {
        match attribute? {
            (RTA_DST, value) => route.network = parse_ip(value)?,
            (RTA_GATEWAY, value) => route.gateway = Some(parse_ip(value)?),
            (RTA_OIF, value) => route.index = Some(Reader(value).u32()?),
            _ => {}
        }
    }
    Ok(Some(route))
}

impl Netlink {
    /// Adds a route to the main table. `EEXIST` if there is one to that network.
    pub fn add_route(&mut self, route: &Route) -> Result<(), NetlinkError> {
        let scope = if route.gateway.is_some() {
            RT_SCOPE_UNIVERSE
        } else {
            RT_SCOPE_LINK
        };
        let body = body(family(route.network), route.prefix, scope);
        let mut request = Request::start(RTM_NEWROUTE, CREATE | EXCLUSIVE, &body);
        fill(&mut request, route);
        self.change(request, "add route")
    }

    /// Removes a route from the main table. `ESRCH` if it is not there.
    pub fn delete_route(&mut self, route: &Route) -> Result<(), NetlinkError> {
        let body = body(family(route.network), route.prefix, RT_SCOPE_NOWHERE);
        let mut request = Request::start(RTM_DELROUTE, 0, &body);
        fill(&mut request, route);
        self.change(request, "delete route")
    }

    /// The unicast routes of the main table, both families.
    pub fn routes(&mut self) -> Result<Vec<Route>, NetlinkError> {
        self.dump(
            || Request::start(RTM_GETROUTE, DUMP, &body(0, 0, 0)),
            "list routes",
            parse,
        )
    }
}

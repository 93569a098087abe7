//! The container's end: what its namespace says, and its routes.

use std::net::IpAddr;

use windlass_sys::netlink::{Link, Netlink, Route as Found};
use windlass_sys::netns::NetnsRef;

use crate::config::Route;
use crate::failure::{Code, Failure};
use crate::ranges::Net;

/// A container's namespace.
pub struct Container {
    netlink: Netlink,
}

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::new(Code::Io, format!("the container's namespace: {error}"))
}

impl Container {
    /// Opens its namespace.
    ///
    /// # Errors
    /// [`Code::Container`]: there is none at that path; [`Code::Io`].
    pub fn open(path: &str) -> Result<Self, Failure> {
        let missing = |error| Failure::new(Code::Container, format!("CNI_NETNS: {error}"));
        let namespace = NetnsRef::open(path).map_err(missing)?;
        let netlink = Netlink::open_in(&namespace).map_err(refused)?;
        Ok(Self { netlink })
    }

    /// An interface; none if there is none of that name.
    ///
    /// # Errors
    /// [`Code::Io`].
    pub fn link(&mut self, name: &str) -> Result<Option<Link>, Failure> {
        self.netlink.link_by_name(name).map_err(refused)
    }

    /// Adds routes over an interface.
    ///
    /// # Errors
    /// [`Code::Io`].
    pub fn add_routes(&mut self, index: u32, routes: &[Route]) -> Result<(), Failure> {
        for route in routes {
            let found = found(index, route);
            let done = self.netlink.add_route(&found);
            done.map_err(|error| refused(format!("route to {}: {error}", route.dst)))?;
        }
        Ok(())
    }

    /// The first of these addresses that an interface does not have.
    ///
    /// # Errors
    /// [`Code::Io`].
    pub fn missing_address(&mut self, index: u32, nets: &[Net]) -> Result<Option<Net>, Failure> {
        let there = self.netlink.addresses_of(index).map_err(refused)?;
        let has = |net: &&Net| {
            !there
                .iter()
                .any(|a| (a.ip, a.prefix) == (net.ip, net.prefix))
        };
        Ok(nets.iter().find(has).copied())
    }

    /// The first of these routes that is not there.
    ///
    /// # Errors
    /// [`Code::Io`].
    pub fn missing_route(
        &mut self,
        index: u32,
        routes: &[Route],
    ) -> Result<Option<Route>, Failure> {
        let there = self.netlink.routes().map_err(refused)?;
        let has = |route: &&Route| {
            let wanted = found(index, route);
            !there.iter().any(|found| {
                (found.network, found.prefix) == (wanted.network, wanted.prefix)
                    && (wanted.gateway.is_none() || found.gateway == wanted.gateway)
            })
        };
        Ok(routes.iter().find(has).cloned())
    }
}

/// A route as the kernel has it: its network without the bits of a host.
fn found(index: u32, route: &Route) -> Found {
    let Net { ip, prefix } = route.dst;
    let network = match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            IpAddr::from((u32::from(ip) & mask).to_be_bytes())
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            IpAddr::from((u128::from(ip) & mask).to_be_bytes())
        }
    };
    Found {
        network,
        prefix,
        gateway: route.gw,
        index: Some(index),
    }
}

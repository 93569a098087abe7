//! A multicast group in the place of remote endpoints.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use windlass_sys::netlink::{Address, Netlink};
use windlass_sys::netns::{NetnsRef, within};
use windlass_sys::{Errno, udp};

use super::{Lane, Vtep};
use crate::endpoint::Rings;

/// What is sent to a group and the port of an endpoint, on the link that has the endpoint's address.
#[derive(Debug)]
pub struct Group {
    vtep: Arc<Vtep>,
    group: IpAddr,
    socket: Arc<OwnedFd>,
    /// The endpoint's address, as the link had it.
    address: Address,
}

impl Group {
    /// Joins a group.
    ///
    /// # Errors
    /// What the kernel says; `EADDRNOTAVAIL` while no link has the endpoint's address.
    pub fn join(vtep: Arc<Vtep>, group: IpAddr) -> io::Result<Group> {
        let port = vtep.conf.local.port();
        let (address, socket) = vtep.inside(|| {
            let addresses = vtep.addresses()?;
            let address = *addresses.first().ok_or(Errno::ADDRNOTAVAIL)?;
            let local = match group {
                IpAddr::V4(_) => SocketAddr::new(group, port),
                IpAddr::V6(group) => SocketAddrV6::new(group, port, 0, address.index).into(),
            };
            Ok((address, Lane::receiver(local)?))
        })?;
        if group.is_ipv6() {
            let mut senders = vtep.lanes.iter().flat_map(|lane| &lane.tx);
            senders.try_for_each(|socket| udp::set_group_link(socket, address.index))?;
        }
        udp::join(&socket, group, address.index)?;
        Ok(Group {
            vtep,
            group,
            socket,
            address,
        })
    }

    /// Whether the link has the endpoint's address since it was joined on. What cannot be read is taken to be so. Where it is not,
    /// the membership may have gone with the link, though the socket still has it: [`Group::join`] makes another one.
    pub fn is_joined(&self) -> bool {
        let found = self.vtep.inside(|| self.vtep.addresses());
        found.map_or(true, |addresses| addresses.contains(&self.address))
    }

    /// The group.
    pub fn address(&self) -> IpAddr {
        self.group
    }

    /// One ring: what comes to the group.
    pub fn rings(&self) -> Rings {
        self.vtep.receiving(std::iter::once(self.socket.clone()))
    }
}

impl Drop for Group {
    /// The socket may live on for as long as a worker is late. The kernel ends a membership by the link's number: when the socket is
    /// closed, that would be the membership of another group's on a link that got the number since.
    fn drop(&mut self) {
        let _ = udp::leave(&self.socket, self.group, self.address.index);
    }
}

impl Vtep {
    /// Works in the namespace of its sockets.
    fn inside<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let is_here = NetnsRef::current().is_ok_and(|here| here.id() == self.namespace.id());
        match is_here {
            true => work(),
            false => within(&self.namespace, work).map_err(io::Error::other)?,
        }
    }

    /// Its address, as links have it.
    fn addresses(&self) -> io::Result<Vec<Address>> {
        let mut netlink = Netlink::open().map_err(io::Error::other)?;
        let mut addresses = netlink.addresses().map_err(io::Error::other)?;
        addresses.retain(|address| address.ip == self.conf.local.ip());
        Ok(addresses)
    }
}

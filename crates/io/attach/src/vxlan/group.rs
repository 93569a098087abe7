//! A multicast group in the place of remote endpoints.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use windlass_sys::netlink::Netlink;
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
    /// The link.
    link: AtomicU32,
}

impl Group {
    /// Joins a group.
    ///
    /// # Errors
    /// What the kernel says; `EADDRNOTAVAIL` while no link has the endpoint's address.
    pub fn join(vtep: Arc<Vtep>, group: IpAddr) -> io::Result<Group> {
        let port = vtep.conf.local.port();
        let (link, socket) = vtep.inside(|| {
            let link = vtep.link()?;
            let local = match group {
                IpAddr::V4(_) => SocketAddr::new(group, port),
                IpAddr::V6(group) => SocketAddrV6::new(group, port, 0, link).into(),
            };
            Ok((link, Lane::receiver(local)?))
        })?;
        let group = Group {
            vtep,
            group,
            socket,
            link: AtomicU32::new(link),
        };
        group.join_on(link)?;
        Ok(group)
    }

    /// Joins again if the link is another one now.
    ///
    /// # Errors
    /// As [`Group::join`].
    pub fn rejoin(&self) -> io::Result<()> {
        match self.join_on(self.link.load(Ordering::Relaxed)) {
            Ok(()) | Err(Errno::ADDRINUSE) => Ok(()),
            Err(_) => {
                let link = self.vtep.inside(|| self.vtep.link())?;
                self.join_on(link)?;
                self.link.store(link, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// The group.
    pub fn address(&self) -> IpAddr {
        self.group
    }

    fn join_on(&self, link: u32) -> Result<(), Errno> {
        // First: the kernel knows a membership of IPv6 on a link that is gone.
        if self.group.is_ipv6() {
            let mut senders = self.vtep.lanes.iter().flat_map(|lane| &lane.tx);
            senders.try_for_each(|socket| udp::set_group_link(socket, link))?;
        }
        udp::join(&self.socket, self.group, link)
    }

    /// One ring: what comes to the group.
    pub fn rings(&self) -> Rings {
        self.vtep.receiving(std::iter::once(self.socket.clone()))
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

    /// The link that has its address.
    fn link(&self) -> io::Result<u32> {
        let mut netlink = Netlink::open().map_err(io::Error::other)?;
        let addresses = netlink.addresses().map_err(io::Error::other)?;
        let mut addresses = addresses.iter();
        let found = addresses.find(|address| address.ip == self.conf.local.ip());
        let found = found.ok_or(Errno::ADDRNOTAVAIL)?;
        Ok(found.index)
    }
}

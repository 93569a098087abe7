//! Links: interfaces of any kind.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use super::message::{self, CREATE, DUMP, EXCLUSIVE, Malformed, Reader, Received, Request};
use super::{Netlink, NetlinkError};
use crate::netns::NetnsRef;

pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_STATS64: u16 = 23;
pub(super) const IFLA_GROUP: u16 = 27;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
/// `RTEXT_FILTER_SKIP_STATS` of `<linux/rtnetlink.h>`.
const SKIP_STATS: u32 = 1 << 3;

/// Longest alias in bytes: the kernel refuses more with `ERANGE` or `EINVAL` (`IFALIASZ` of `<linux/if.h>`, less the
/// zero byte).
pub const ALIAS_BYTES_MAX: usize = 255;

/// `ARPHRD_ETHER` of `<linux/if_arp.h>`.
const TYPE_ETHERNET: u16 = 1;

const IFF_UP: u32 = 0x1;
const IFF_LOOPBACK: u32 = 0x8;
const IFF_LOWER_UP: u32 = 0x1_0000;
const IFF_PROMISC: u32 = 0x100;

const LINK_BODY_BYTES: usize = 16;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Counters that the kernel keeps for a link (`struct rtnl_link_stats64`), in the kernel's own
/// view of direction: what windlass writes to a TAP is its rx.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Frames that the kernel received on it.
    pub rx_packets: u64,
    /// Frames that the kernel sent on it.
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames received with an error.
    pub rx_errors: u64,
    /// Frames that failed to be sent.
    pub tx_errors: u64,
    /// Received frames that the kernel dropped.
    pub rx_dropped: u64,
    /// Frames to be sent that were dropped: for a TAP, because its reader was too slow.
    pub tx_dropped: u64,
}

/// One link, as it was when the kernel answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its index, unique in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// `IFF_*` of `<linux/if.h>`.
    pub flags: u32,
    /// What kind of frames it carries: `ARPHRD_*` of `<linux/if_arp.h>`.
    pub device_type: u16,
    /// Largest packet in bytes, without the Ethernet header.
    pub mtu: u32,
    /// Its address, if it has one of six bytes.
    pub mac: Option<Mac>,
    /// Index of the bridge, bond or other link that it belongs to.
    pub master: Option<u32>,
    /// Index of the link under it, or a veth's peer (in the peer's namespace).
    pub lower: Option<u32>,
    /// Length of its transmit queue in frames.
    pub queue_frames: u32,
    /// `veth`, `tun`, `bridge` and so on; `None` for hardware.
    pub kind: Option<String>,
    /// A text that somebody wrote on it (`ip link set ... alias`); the kernel attaches no meaning to it.
    pub alias: Option<String>,
    /// Its counters.
    pub stats: LinkStats,
}

impl Link {
    /// Whether an administrator set it up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.flags & IFF_UP != 0
    }

    /// Whether it is the loopback interface.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.flags & IFF_LOOPBACK != 0
    }

    /// Whether it carries Ethernet frames, and not only among the host's own programs.
    #[must_use]
    pub fn is_ethernet(&self) -> bool {
        self.device_type == TYPE_ETHERNET && !self.is_loopback()
    }

    /// Whether it has a carrier: a cable, an up peer, or an attached TAP queue.
    #[must_use]
    pub fn has_carrier(&self) -> bool {
        self.flags & IFF_LOWER_UP != 0
    }

    /// Whether its promiscuous flag was set by an administrator (packet sockets do not show).
    #[must_use]
    pub fn is_promiscuous(&self) -> bool {
        self.flags & IFF_PROMISC != 0
    }
}

/// `struct ifinfomsg`: family, padding, type, index, flags and which flags to change.
pub(super) fn body(index: u32, flags: u32, change: u32) -> [u8; LINK_BODY_BYTES] {
    let mut body = [0; LINK_BODY_BYTES];
    let fields = [
        [0; 4],
        index.to_ne_bytes(),
        flags.to_ne_bytes(),
        change.to_ne_bytes(),
    ];
    for (to, from) in body.iter_mut().zip(fields.as_flattened()) {
        *to = *from;
    }
    body
}

/// Parses RTM_NEWLINK and RTM_DELLINK; `None` for other types.
pub(super) fn parse(received: &Received<'_>) -> Result<Option<Link>, Malformed> {
    if !matches!(received.kind, RTM_NEWLINK | RTM_DELLINK) {
        return Ok(None);
    }
    let mut reader = Reader(received.payload);
    reader.u16()?;
    let device_type = reader.u16()?;
    let mut link = Link {
        device_type,
        index: reader.u32()?,
        flags: reader.u32()?,
        ..Link::default()
    };
    reader.u32()?;
    for attribute in message::attributes(reader.0) {
        let (kind, value) = attribute?;
        let mut reader = Reader(value);
        match kind {
            IFLA_ADDRESS => link.mac = value.try_into().ok(),
            IFLA_IFNAME => link.name = message::text(value),
            IFLA_MTU => link.mtu = reader.u32()?,
            IFLA_LINK => link.lower = Some(reader.u32()?),
            IFLA_MASTER => link.master = Some(reader.u32()?),
            IFLA_TXQLEN => link.queue_frames = reader.u32()?,
            IFLA_LINKINFO => link.kind = parse_kind(value)?,
            IFLA_IFALIAS => link.alias = Some(message::text(value)),
            IFLA_STATS64 => link.stats = parse_stats(reader)?,
            _ => {}
        }
    }
    Ok(Some(link))
}

fn parse_kind(value: &[u8]) -> Result<Option<String>, Malformed> {
    for attribute in message::attributes(value) {
        let (kind, value) = attribute?;
        if kind == IFLA_INFO_KIND {
            return Ok(Some(message::text(value)));
        }
    }
    Ok(None)
}

fn parse_stats(mut reader: Reader<'_>) -> Result<LinkStats, Malformed> {
    Ok(LinkStats {
        rx_packets: reader.u64()?,
        tx_packets: reader.u64()?,
        rx_bytes: reader.u64()?,
        tx_bytes: reader.u64()?,
        rx_errors: reader.u64()?,
        tx_errors: reader.u64()?,
        rx_dropped: reader.u64()?,
        tx_dropped: reader.u64()?,
    })
}

impl Netlink {
    fn get_link(&mut self, request: Request) -> Result<Option<Link>, NetlinkError> {
        let mut found = None;
        let outcome = self.exchange(request, "get link", |received| {
            found = parse(received)?;
            Ok(())
        });
        match outcome {
            Ok(()) => Ok(found),
            Err(error) if error.errno() == Some(Errno::NODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The link called `name`; `None` if there is none.
    pub fn link_by_name(&mut self, name: &str) -> Result<Option<Link>, NetlinkError> {
        let mut request = Request::start(RTM_GETLINK, 0, &body(0, 0, 0));
        request.string(IFLA_IFNAME, name);
        self.get_link(request)
    }

    /// The link with `index`; `None` if there is none.
    pub fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, NetlinkError> {
        self.get_link(Request::start(RTM_GETLINK, 0, &body(index, 0, 0)))
    }

    /// All links of the namespace.
    pub fn links(&mut self) -> Result<Vec<Link>, NetlinkError> {
        self.dump(
            || Request::start(RTM_GETLINK, DUMP, &body(0, 0, 0)),
            "list links",
            parse,
        )
    }

    /// The links of a kind (`veth`, `tun`), without their counters. The kernel keeps back the others.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn links_of(&mut self, kind: &str) -> Result<Vec<Link>, NetlinkError> {
        let request = || {
            let mut request = Request::start(RTM_GETLINK, DUMP, &body(0, 0, 0));
            request.nested(IFLA_LINKINFO, |info| info.string(IFLA_INFO_KIND, kind));
            request.u32(IFLA_EXT_MASK, SKIP_STATS);
            request
        };
        // One that does not know the kind lists all.
        let is_it = |link: &Link| link.kind.as_deref() == Some(kind);
        self.dump(request, "list links", |received| {
            Ok(parse(received)?.filter(is_it))
        })
    }

    /// Sets a link up or down.
    pub fn set_link_up(&mut self, index: u32, up: bool) -> Result<(), NetlinkError> {
        let flags = if up { IFF_UP } else { 0 };
        let request = Request::start(RTM_NEWLINK, 0, &body(index, flags, IFF_UP));
        self.change(request, if up { "set link up" } else { "set link down" })
    }

    /// Sets the MTU in bytes.
    pub fn set_link_mtu(&mut self, index: u32, mtu: u32) -> Result<(), NetlinkError> {
        let mut request = Request::start(RTM_NEWLINK, 0, &body(index, 0, 0));
        request.u32(IFLA_MTU, mtu);
        self.change(request, "set link MTU")
    }

    /// Sets the address. `EADDRNOTAVAIL` for a group address or zero.
    pub fn set_link_mac(&mut self, index: u32, mac: Mac) -> Result<(), NetlinkError> {
        let mut request = Request::start(RTM_NEWLINK, 0, &body(index, 0, 0));
        request.attribute(IFLA_ADDRESS, &mac);
        self.change(request, "set link address")
    }

    /// Writes a text of at most [`ALIAS_BYTES_MAX`] bytes on a link, or takes it away (the empty text).
    pub fn set_link_alias(&mut self, index: u32, alias: &str) -> Result<(), NetlinkError> {
        let mut request = Request::start(RTM_NEWLINK, 0, &body(index, 0, 0));
        request.attribute(IFLA_IFALIAS, alias.as_bytes());
        self.change(request, "set link alias")
    }

    /// Gives a link another name.
    pub fn rename_link(&mut self, index: u32, name: &str) -> Result<(), NetlinkError> {
        let mut request = Request::start(RTM_NEWLINK, 0, &body(index, 0, 0));
        request.string(IFLA_IFNAME, name);
        self.change(request, "rename link")
    }

    /// Sets the length of the transmit queue in frames.
    pub fn set_link_queue(&mut self, index: u32, frames: u32) -> Result<(), NetlinkError> {
        let mut request = Request::start(RTM_NEWLINK, 0, &body(index, 0, 0));
        request.u32(IFLA_TXQLEN, frames);
        self.change(request, "set link queue length")
    }

    /// Makes a link one of a group, with which it can be deleted. Without this it is in group 0.
    pub fn set_link_group(&mut self, index: u32, group: u32) -> Result<(), NetlinkError> {
        let mut request = Request::start(RTM_NEWLINK, 0, &body(index, 0, 0));
        request.u32(IFLA_GROUP, group);
        self.change(request, "set link group")
    }

    /// Puts a link under a kernel bridge or bond, or takes it out (`None`).
    pub fn set_link_master(&mut self, index: u32, master: Option<u32>) -> Result<(), NetlinkError> {
        let mut request = Request::start(RTM_NEWLINK, 0, &body(index, 0, 0));
        request.u32(IFLA_MASTER, master.unwrap_or(0));
        self.change(request, "set link master")
    }

    /// Moves a link to another namespace. It loses its addresses and goes down.
    pub fn move_link(&mut self, index: u32, to: &NetnsRef) -> Result<(), NetlinkError> {
        let mut request = Request::start(RTM_NEWLINK, 0, &body(index, 0, 0));
        request.u32(IFLA_NET_NS_FD, to.as_fd().as_raw_fd().cast_unsigned());
        self.change(request, "move link")
    }

    /// Makes a pair of veth links, both down, the second in `peer_namespace` if one is given.
    pub fn create_veth(
        &mut self,
        name: &str,
        peer: &str,
        peer_namespace: Option<&NetnsRef>,
    ) -> Result<(), NetlinkError> {
        let mut request = Request::start(RTM_NEWLINK, CREATE | EXCLUSIVE, &body(0, 0, 0));
        request.string(IFLA_IFNAME, name);
        request.nested(IFLA_LINKINFO, |info| {
            info.string(IFLA_INFO_KIND, "veth");
            info.nested(IFLA_INFO_DATA, |data| {
                data.nested(VETH_INFO_PEER, |other| {
                    other.raw(&body(0, 0, 0));
                    other.string(IFLA_IFNAME, peer);
                    if let Some(namespace) = peer_namespace {
                        other.u32(
                            IFLA_NET_NS_FD,
                            namespace.as_fd().as_raw_fd().cast_unsigned(),
                        );
                    }
                });
            });
        });
        self.change(request, "create veth pair")
    }

    /// Makes a link of a kind that needs no parameters (`bridge`, `dummy`), down.
    pub fn create_link(&mut self, name: &str, kind: &str) -> Result<(), NetlinkError> {
        let mut request = Request::start(RTM_NEWLINK, CREATE | EXCLUSIVE, &body(0, 0, 0));
        request.string(IFLA_IFNAME, name);
        request.nested(IFLA_LINKINFO, |info| info.string(IFLA_INFO_KIND, kind));
        self.change(request, "create link")
    }

    /// Deletes a link; a veth's peer goes with it.
    pub fn delete_link(&mut self, index: u32) -> Result<(), NetlinkError> {
        self.change(
            Request::start(RTM_DELLINK, 0, &body(index, 0, 0)),
            "delete link",
        )
    }
}

//! VXLAN devices that only send, each to one remote endpoint.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd};

use super::address::octets;
use super::link::{
    IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO, IFLA_NET_NS_FD, RTM_NEWLINK, body,
};
use super::message::{CREATE, EXCLUSIVE, Request};
use super::neighbour::RTM_NEWNEIGH;
use super::{Netlink, NetlinkError};
use crate::netns::NetnsRef;

const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_LOCAL: u16 = 4;
const IFLA_VXLAN_TTL: u16 = 5;
const IFLA_VXLAN_TOS: u16 = 6;
const IFLA_VXLAN_LEARNING: u16 = 7;
const IFLA_VXLAN_PORT_RANGE: u16 = 10;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_VXLAN_LOCAL6: u16 = 17;
const IFLA_VXLAN_UDP_CSUM: u16 = 18;
const IFLA_VXLAN_DF: u16 = 29;
/// `VXLAN_DF_SET`.
const DF_SET: u8 = 1;
/// What the kernel takes for "as the inner packet".
const TOS_INHERIT: u8 = 1;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_PORT: u16 = 6;
const NDA_VNI: u16 = 7;
const AF_BRIDGE: u8 = 7;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;
const NTF_SELF: u8 = 2;

/// What a VXLAN device that only sends is.
#[derive(Clone, Debug)]
pub struct VxlanSender {
    /// Address of its outer headers.
    pub local: IpAddr,
    /// Port that it listens at, of every address: one that nobody else has.
    pub listen: u16,
    /// A network that no other device at that port has: nothing is sent in it.
    pub vni: u32,
    /// TTL of outer headers.
    pub ttl: u8,
    /// Their TOS, which is even; none: that of the inner packet.
    pub tos: Option<u8>,
    /// Source ports, by the hash of a frame.
    pub ports: RangeInclusive<u16>,
}

impl Netlink {
    /// Makes a VXLAN device, down, in another namespace. What it sends leaves through this one.
    ///
    /// # Errors
    /// The kernel's answer: `EOPNOTSUPP` without the driver.
    pub fn create_vxlan(
        &mut self,
        name: &str,
        namespace: &NetnsRef,
        of: &VxlanSender,
    ) -> Result<(), NetlinkError> {
        let mut request = Request::start(RTM_NEWLINK, CREATE | EXCLUSIVE, &body(0, 0, 0));
        request.string(IFLA_IFNAME, name);
        request.u32(
            IFLA_NET_NS_FD,
            namespace.as_fd().as_raw_fd().cast_unsigned(),
        );
        request.nested(IFLA_LINKINFO, |info| {
            info.string(IFLA_INFO_KIND, "vxlan");
            info.nested(IFLA_INFO_DATA, |data| {
                data.u32(IFLA_VXLAN_ID, of.vni);
                let local = match of.local {
                    IpAddr::V4(_) => IFLA_VXLAN_LOCAL,
                    IpAddr::V6(_) => IFLA_VXLAN_LOCAL6,
                };
                data.attribute(local, &octets(of.local));
                data.attribute(IFLA_VXLAN_PORT, &of.listen.to_be_bytes());
                data.attribute(IFLA_VXLAN_TTL, &[of.ttl]);
                data.attribute(IFLA_VXLAN_TOS, &[of.tos.unwrap_or(TOS_INHERIT)]);
                data.attribute(IFLA_VXLAN_LEARNING, &[0]);
                let range = [of.ports.start(), of.ports.end()].map(|port| port.to_be_bytes());
                data.attribute(IFLA_VXLAN_PORT_RANGE, range.as_flattened());
                data.attribute(IFLA_VXLAN_UDP_CSUM, &[1]);
                data.attribute(IFLA_VXLAN_DF, &[DF_SET]);
            });
        });
        self.change(request, "create VXLAN device")
    }

    /// Has a VXLAN device send all that has no other entry to an endpoint, in a network.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn set_vxlan_remote(
        &mut self,
        index: u32,
        to: SocketAddr,
        vni: u32,
    ) -> Result<(), NetlinkError> {
        let [a, b, c, d] = index.to_ne_bytes();
        let [s0, s1] = (NUD_PERMANENT | NUD_NOARP).to_ne_bytes();
        let body = [AF_BRIDGE, 0, 0, 0, a, b, c, d, s0, s1, NTF_SELF, 0];
        let mut request = Request::start(RTM_NEWNEIGH, CREATE | EXCLUSIVE, &body);
        request.attribute(NDA_LLADDR, &[0; 6]);
        request.attribute(NDA_DST, &octets(to.ip()));
        request.attribute(NDA_PORT, &to.port().to_be_bytes());
        request.u32(NDA_VNI, vni);
        self.change(request, "set remote endpoint of VXLAN device")
    }
}

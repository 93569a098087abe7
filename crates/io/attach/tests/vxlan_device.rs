//! Large segments that leave a tunnel endpoint uncut, by the kernel's own VXLAN device: what another host gets of them over a veth.
//! Needs root.

#[allow(dead_code, reason = "the other users of it need more")]
mod looped;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use looped::Loop;
use windlass_attach::vxlan::{PORTS_MAX, Target, TargetConf, Tos, VtepConf};
use windlass_frame::{Claim, Tick};
use windlass_overlay::Vni;
use windlass_sys::Errno;
use windlass_sys::netlink::Netlink;
use windlass_sys::netns::{NetnsRef, within, within_new};
use windlass_sys::udp;
use windlass_sys::udp::messages::{RECEIVED_MAX, Received, receive};
use windlass_wire::MacAddr;
use windlass_wire::build::{self, Ends, Link, Tcp};
use windlass_wire::checksum::pseudo_v4;

/// Bytes that a message may have.
const EACH: usize = 65_536;
/// What an underlay of 1,500 bytes takes in one datagram, over IPv6 too.
const GSO_SIZE: u16 = 1378;
/// Ethernet, IPv4 and TCP headers.
const HEADERS: usize = 54;
/// The first source port of the first worker.
const PORTS_FROM: u16 = 49_152;

/// A TCP segment of the flow with this source port, over IPv4 with this TOS.
fn segment(flow: u16, tos: u8, payload: usize) -> (Vec<u8>, Claim) {
    let link = Link {
        dst: MacAddr([2, 0, 0, 0, 0, 2]),
        src: MacAddr([2, 0, 0, 0, 0, 1]),
        tag: None,
    };
    let (from, to) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let tcp = Tcp {
        src: flow,
        dst: 2,
        seq: 1,
        ack: 5,
        flags: 0x10,
        window: 9,
        options: &[],
    };
    let mut bytes = vec![0; payload + HEADERS];
    let ends = Ends::V4(from.into(), to.into());
    build::tcp_frame(&mut bytes, &link, &ends, &tcp, &vec![7; payload]).expect("room");
    bytes[15] = tos;
    let header = windlass_wire::checksum::Sum::default();
    bytes[24..26].fill(0);
    let mut sum = header;
    sum.add_bytes(&bytes[14..34]);
    let sum = (!sum.partial()).to_be_bytes();
    bytes[24..26].copy_from_slice(&sum);
    let sum = pseudo_v4(&from, &to, 6, (payload + 20) as u16);
    bytes[50..52].copy_from_slice(&sum.partial().to_be_bytes());
    let is_large = payload > GSO_SIZE.into();
    let claim = Claim {
        flags: Claim::NEEDS_CSUM,
        gso_type: if is_large { Claim::GSO_TCPV4 } else { 0 },
        gso_size: if is_large { GSO_SIZE } else { 0 },
        csum_start: 34,
        csum_offset: 16,
    };
    (bytes, claim)
}

/// An endpoint, and the socket of another host that is its target.
struct Cable {
    near: Loop,
    far: OwnedFd,
    _namespace: NetnsRef,
}

impl Cable {
    /// Between two hosts; the calling thread is in the first one's namespace.
    fn lay(tos: Tos, [near, far]: [&str; 2]) -> Cable {
        let ips = [near, far].map(|ip| ip.parse::<IpAddr>().expect("an address"));
        let other = within_new("far", || Ok(NetnsRef::current())).expect("a namespace");
        let other = other.expect("a descriptor");
        let mut netlink = Netlink::open().expect("netlink");
        let made = netlink.create_veth("u0", "u0", Some(&other));
        made.expect("a veth");
        let at = |ip, port| SocketAddr::new(ip, port);
        let far = within(&other, || {
            configure(ips[1]);
            let far = udp::open(at(ips[1], 4789), false).expect("a socket");
            udp::set_merged(&far, true).expect("merged");
            udp::set_tos_told(&far, ips[1].is_ipv6()).expect("TOS");
            udp::set_hops_told(&far, ips[1].is_ipv6(), true).expect("TTL");
            udp::set_buffers(&far, 1 << 23).expect("buffers");
            far
        });
        // With a carrier at once, since the other end is up.
        configure(ips[0]);
        let conf = VtepConf {
            local: at(ips[0], 4789),
            ttl: 61,
            tos,
            ports: PORTS_MAX,
            devices: true,
        };
        let mut near = Loop::with(conf);
        let conf = TargetConf {
            to: at(ips[1], 4789),
            vni: Vni::new(0x01_02_03).expect("24 bits"),
        };
        near.target = Target::new(near.vtep.clone(), conf);
        Cable {
            near,
            far: far.expect("the other host"),
            _namespace: other,
        }
    }

    /// Gives the target its device, as a first large segment has it made.
    fn warm(&mut self) {
        self.near.send(&[segment(1, 0, 5000)]);
        self.near.target.settle();
        assert_eq!(self.near.vtep.why_cut(), None);
        assert!(self.near.target.has_device());
        self.take();
    }

    /// What has come, as messages with their bytes.
    fn take(&mut self) -> Vec<(Received, Vec<u8>)> {
        let mut all = Vec::new();
        let mut space = vec![0; EACH * RECEIVED_MAX];
        let mut got = [None; RECEIVED_MAX];
        while let Ok(count) = receive(&self.far, &mut space, EACH, &mut got) {
            for (message, bytes) in got.iter().flatten().zip(space.chunks(EACH)).take(count) {
                all.push((*message, bytes[..message.len].to_vec()));
            }
        }
        all
    }
}

/// Gives the link `u0` of the calling thread's namespace an address that needs no detection of duplicates.
fn configure(ip: IpAddr) {
    let ip = format!(
        "address add {ip}/{} dev u0 {}",
        if ip.is_ipv6() { 64 } else { 24 },
        if ip.is_ipv6() { "nodad" } else { "" }
    );
    for line in [ip.as_str(), "link set u0 up", "link set lo up"] {
        let done = std::process::Command::new("ip")
            .args(line.split_whitespace())
            .status();
        assert!(done.expect("ip runs").success(), "{line}");
    }
}

fn in_new_namespace(work: impl FnOnce() + Send) {
    let done = within_new("near", || {
        work();
        Ok(())
    });
    done.expect("a namespace");
}

/// The target gets a large segment whole, behind the header of its network, with the headers that the endpoint is configured with: over
/// IPv4 and IPv6, with the TOS of the inner packet and with one of its own. Before the device is made it gets it cut.
#[test]
fn a_large_segment_leaves_whole() {
    for hosts in [["192.0.2.1", "192.0.2.2"], ["2001:db8::1", "2001:db8::2"]] {
        for (tos, expected) in [(Tos::Inherit, 0xb9), (Tos::Fixed(0x28), 0x29)] {
            in_new_namespace(|| {
                let mut cable = Cable::lay(tos, hosts);
                let large = segment(1, 0xb9, 40_000);
                cable.near.send(std::slice::from_ref(&large));
                let cut = cable.take();
                assert!(
                    cut.iter()
                        .all(|(message, _)| message.segment == Some(HEADERS as u16 + GSO_SIZE + 8))
                );
                cable.warm();
                cable.near.send(std::slice::from_ref(&large));
                let whole = cable.take();
                assert_eq!(whole.len(), 1);
                let (message, bytes) = &whole[0];
                assert_eq!(bytes[..8], [8, 0, 0, 0, 1, 2, 3, 0]);
                assert_eq!(bytes[8..], large.0);
                let from = SocketAddr::new(hosts[0].parse().expect("an address"), PORTS_FROM);
                assert_eq!(
                    (message.from, message.tos, message.hops),
                    (from, expected, Some(61))
                );
            });
        }
    }
}

/// What has met congestion enters the tunnel as what can meet it again.
#[test]
fn congestion_does_not_enter_the_tunnel() {
    in_new_namespace(|| {
        let mut cable = Cable::lay(Tos::Inherit, ["192.0.2.1", "192.0.2.2"]);
        cable.warm();
        cable.near.send(&[segment(1, 0x0b, 40_000)]);
        let tos: Vec<u8> = cable
            .take()
            .iter()
            .map(|(message, _)| message.tos)
            .collect();
        assert_eq!(tos, [0x0a]);
    });
}

/// Small frames and large segments of a flow leave from one port and in their order, whichever of several ports that is.
#[test]
fn a_flow_has_one_port_both_ways() {
    in_new_namespace(|| {
        let mut cable = Cable::lay(Tos::Inherit, ["192.0.2.1", "192.0.2.2"]);
        cable.warm();
        // A load that is worth several ports.
        for _ in 0..100 {
            cable.near.send(&[segment(1, 0, 60_000)]);
            cable.take();
        }
        cable.near.now = Tick(cable.near.now.0 + 10_000_000);
        let mut ports: BTreeMap<u16, BTreeSet<u16>> = BTreeMap::new();
        for flow in 100..164 {
            let sizes = [300, 40_000, 100, 200, 50_000, 500];
            let frames: Vec<_> = sizes.iter().map(|len| segment(flow, 0, *len)).collect();
            cable.near.send(&frames);
            let mut came = Vec::new();
            for (message, bytes) in cable.take() {
                let each = message.segment.map_or(bytes.len(), usize::from);
                for datagram in bytes.chunks(each) {
                    came.push(datagram.len() - 8 - HEADERS);
                    let inner = u16::from_be_bytes([datagram[42], datagram[43]]);
                    ports.entry(inner).or_default().insert(message.from.port());
                }
            }
            assert_eq!(came, sizes);
        }
        assert_eq!(ports.len(), 64);
        assert!(ports.values().all(|its| its.len() == 1), "{ports:?}");
        let used: BTreeSet<u16> = ports.values().flatten().copied().collect();
        assert!(used.len() > 4, "{used:?}");
        let range = PORTS_FROM..PORTS_FROM + u16::from(PORTS_MAX);
        assert!(used.iter().all(|port| range.contains(port)), "{used:?}");
    });
}

/// Where another has the port that a flow is to leave from, its large segments are cut: all that it sends leaves from one port.
#[test]
fn a_taken_port_has_no_device() {
    in_new_namespace(|| {
        let taken = SocketAddr::new("0.0.0.0".parse().expect("an address"), PORTS_FROM);
        let _other = udp::open(taken, false).expect("a socket");
        let mut cable = Cable::lay(Tos::Inherit, ["192.0.2.1", "192.0.2.2"]);
        cable.near.send(&[segment(1, 0, 5000)]);
        cable.near.target.settle();
        cable.take();
        cable
            .near
            .send(&[segment(1, 0, 300), segment(1, 0, 40_000)]);
        let ports: BTreeSet<u16> = cable
            .take()
            .iter()
            .map(|(message, _)| message.from.port())
            .collect();
        assert_eq!(ports.len(), 1);
    });
}

/// While the other host cannot be reached, large segments are cut, and counted as what they are: lost.
#[test]
fn an_unreachable_target_is_told() {
    in_new_namespace(|| {
        let mut cable = Cable::lay(Tos::Inherit, ["192.0.2.1", "192.0.2.2"]);
        cable.warm();
        let before = cable.near.target.totals();
        let done = std::process::Command::new("ip")
            .args(["link", "set", "u0", "down"])
            .status();
        assert!(done.expect("ip runs").success());
        assert_eq!(cable.near.send_lossy(&[segment(1, 0, 100)]), 0);
        assert_eq!(cable.near.send_lossy(&[segment(1, 0, 40_000)]), 0);
        assert_eq!(cable.near.target.totals(), before);
    });
}

/// A path that is too short for the segments is heard of: the kernel reports to the socket whose port the device has used.
#[test]
fn a_short_path_is_told() {
    for hosts in [["192.0.2.1", "192.0.2.2"], ["2001:db8::1", "2001:db8::2"]] {
        in_new_namespace(|| {
            let mut cable = Cable::lay(Tos::Inherit, hosts);
            cable.warm();
            let route = format!("route replace {} dev u0 mtu 1400", hosts[1]);
            let done = std::process::Command::new("ip")
                .args(route.split_whitespace())
                .status();
            assert!(done.expect("ip runs").success());
            cable.near.send(&[segment(1, 0, 40_000)]);
            let troubles = cable.near.vtep.take_troubles();
            let told = troubles.iter().map(|told| (told.to, told.errno, told.mtu));
            let to = hosts[1].parse().expect("an address");
            assert_eq!(told.collect::<Vec<_>>(), [(to, Errno::MSGSIZE, 1400)]);
            // But for the last one, which is short.
            let came = cable.take();
            assert!(came.iter().all(|(_, bytes)| bytes.len() < 1400), "{came:?}");
        });
    }
}

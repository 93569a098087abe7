//! The Linux selftests of VXLAN bridges (`tools/testing/selftests/net/forwarding`), with windlass in the place of their switch and kernels as
//! its peers. `docs/vxlan-selftests.md` says which case of theirs is which here.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use rustix::net::sockopt::{set_ip_tos, set_ipv6_tclass};
use serde_json::Value;
use windlass_overlay::{Vni, ecn, header};
use windlass_tests::{Daemon, Frame, Lab, Mac, Wire, frame, mac, run, until, until_some, vlan_tag};
use windlass_wire::build::{self, Ends, Link};
use windlass_wire::{MacAddr, checksum};

const ALL: Mac = [0xff; 6];
/// The guest that sends, and the one beside it.
const H1: &str = "02:00:00:00:00:01";
const H2: &str = "02:00:00:00:00:02";
/// Hosts on the bridges of both remote endpoints.
const REMOTE: [&str; 2] = ["02:00:00:00:00:03", "02:00:00:00:00:04"];
/// Nobody's address.
const NOBODY: &str = "de:ad:be:ef:13:37";
/// Frames of one case.
const FRAMES: usize = 10;
/// The TTL that the overlay is given.
const TTL: u8 = 100;

/// Addresses of the underlay: ours, and for each of two remote endpoints its own; each with the router's in its network.
struct Underlay {
    local: [&'static str; 2],
    remote: [[&'static str; 2]; 2],
    prefix: u8,
}

const V4: Underlay = Underlay {
    local: ["192.0.2.17", "192.0.2.18"],
    remote: [["192.0.2.34", "192.0.2.33"], ["192.0.2.50", "192.0.2.49"]],
    prefix: 28,
};

const V6: Underlay = Underlay {
    local: ["2001:db8:3::1", "2001:db8:3::2"],
    remote: [
        ["2001:db8:4::1", "2001:db8:4::2"],
        ["2001:db8:5::1", "2001:db8:5::2"],
    ],
    prefix: 64,
};

impl Underlay {
    fn is_v6(&self) -> bool {
        self.prefix == 64
    }

    fn endpoint(&self, at: usize, port: u16) -> SocketAddr {
        let address: IpAddr = self.remote[at][0].parse().expect("an address");
        SocketAddr::new(address, port)
    }

    /// Gives the host its address and its ways, or takes them.
    fn set_local(&self, lab: &Lab, verb: &str) {
        let Underlay { local, prefix, .. } = self;
        let nodad = if verb == "add" { "nodad" } else { "" };
        let mut lines = vec![format!("addr {verb} {}/{prefix} dev rp1 {nodad}", local[0])];
        let ways = self
            .remote
            .iter()
            .map(|[to, _]| format!("route {verb} {to} via {}", local[1]));
        lines.extend(ways);
        if verb == "del" {
            lines.reverse();
        }
        batch(lab, "host", &lines);
    }

    /// The host, a router, and both remote endpoints behind it.
    fn make(&self, lab: &Lab) {
        for short in ["router", "ns1", "ns2", "h1", "h2"] {
            lab.namespace(short);
        }
        for short in ["host", "router", "ns1", "ns2", "h1", "h2"] {
            lab.within(short, || {
                for which in ["all", "default"] {
                    for name in ["accept_dad", "disable_ipv6"] {
                        sysctl(&format!("ipv6/conf/{which}/{name}"), "0");
                    }
                }
            });
        }
        lab.within("router", || {
            sysctl("ipv4/ip_forward", "1");
            sysctl("ipv6/conf/all/forwarding", "1");
        });
        let Underlay { prefix, remote, .. } = self;
        let router = lab.name("router");
        let pair = format!("link add rp1 type veth peer name rp2 netns {router}");
        batch(lab, "host", &[pair, "link set rp1 up".into()]);
        let mut lines = vec![
            format!("addr add {}/{prefix} dev rp2 nodad", self.local[1]),
            "link set rp2 up".into(),
        ];
        for (at, [_, near]) in remote.iter().enumerate() {
            let ns = lab.name(&format!("ns{}", at + 1));
            lines.extend([
                format!("link add v{at} type veth peer name under netns {ns}"),
                format!("addr add {near}/{prefix} dev v{at} nodad"),
                format!("link set v{at} up"),
            ]);
        }
        batch(lab, "router", &lines);
        for (at, [own, near]) in remote.iter().enumerate() {
            let lines = [
                format!("addr add {own}/{prefix} dev under nodad"),
                "link set under up".into(),
                format!("route add {} via {near}", self.local[0]),
                format!("route add {} via {near}", remote[1 - at][0]),
            ];
            batch(lab, &format!("ns{}", at + 1), &lines);
        }
        self.set_local(lab, "add");
    }

    /// A bridge of a kernel's at each remote endpoint, with a device for the network and a host's addresses; the bridge is
    /// named `br` and the network.
    fn peers(&self, lab: &Lab, vni: u32, port: u16, hosts: &str) -> [Wire; 2] {
        [0, 1].map(|at| {
            let (short, last) = (format!("ns{}", at + 1), at + 3);
            let [own, others] = [at, 1 - at].map(|at| self.remote[at][0]);
            let lines = [
                format!(
                    "link add br{vni} address {} type bridge mcast_snooping 0",
                    REMOTE[at]
                ),
                format!(
                    "link add vx{vni} type vxlan id {vni} dstport {port} local {own} udp6zerocsumrx"
                ),
                format!("link set vx{vni} master br{vni} up"),
                format!("link set br{vni} up"),
                format!("addr add {hosts}.{last}/28 dev br{vni}"),
                format!("addr add 2001:db8:{vni}::{last}/64 dev br{vni} nodad"),
            ];
            batch(lab, &short, &lines);
            for to in [self.local[0], others] {
                let mut bridge = lab.command(&short, "bridge");
                let words = format!("fdb append dev vx{vni} 00:00:00:00:00:00 dst {to} self");
                let done = run(bridge.args(words.split(' ')));
                assert_eq!(done.code, 0, "{}", done.err);
            }
            Wire::open(lab, &short, &format!("vx{vni}"))
        })
    }

    /// Makes the overlay.
    fn overlay(&self, daemon: &Daemon, port: u16, networks: &str) {
        let [a, b] = [0, 1].map(|at| self.endpoint(at, port));
        daemon.must(&format!(
            "overlay create vx1 --bridge br1 {networks} --search learn --set vxlan/listen-ip={},\
             vxlan/listen-port={port},vxlan/ttl={TTL},learn/remotes={a},{b}",
            self.local[0]
        ));
    }

    /// Makes the overlay anew on a bridge that is there, and gives it its address only then.
    fn reapply(&self, lab: &Lab, daemon: &Daemon, port: u16, networks: &str) {
        daemon.must("overlay delete vx1");
        self.set_local(lab, "del");
        self.overlay(daemon, port, networks);
        let why = daemon.wait_for_state("overlay", "vx1", "waiting");
        assert!(why.contains(self.local[0]), "{why}");
        self.set_local(lab, "add");
        daemon.wait_for_state("overlay", "vx1", "up");
    }
}

/// Removes what [`Underlay::peers`] has made.
fn remove_peers(lab: &Lab, vni: u32) {
    let lines = ["vx", "br"].map(|kind| format!("link del {kind}{vni}"));
    ["ns1", "ns2"]
        .iter()
        .for_each(|short| batch(lab, short, &lines));
}

fn sysctl(name: &str, value: &str) {
    std::fs::write(format!("/proc/sys/net/{name}"), value).expect(name);
}

/// Runs these lines of `ip` in a namespace.
fn batch(lab: &Lab, short: &str, lines: &[String]) {
    let file = lab.directory().join("batch");
    std::fs::write(&file, lines.join("\n")).expect("a file");
    lab.ip(short, &format!("-batch {}", file.display()));
}

/// A VNIC of a guest on the bridge, and its interface.
fn guest(lab: &Lab, daemon: &Daemon, name: &str, mac: &str, more: &str) -> Wire {
    let netns = lab.name(name);
    daemon.must(&format!(
        "vnic create {name} --bridge br1 --mac {mac} --attach tap,name=eth0,netns={netns}{more}"
    ));
    daemon.wait_for_state("vnic", name, "up");
    Wire::open(lab, name, "eth0")
}

fn texts(frames: &[Frame]) -> Vec<String> {
    frames.iter().filter_map(Frame::text).collect()
}

/// One network over two guests and two kernels.
struct Net<'a> {
    lab: &'a Lab,
    daemon: &'a Daemon,
    underlay: &'a Underlay,
    port: u16,
    h1: &'a Wire,
    /// The other guest, and both kernels.
    ends: [&'a Wire; 3],
}

impl Net<'_> {
    /// The guests and the kernels reach each other.
    fn pings(&self) {
        for host in ["192.0.2.2", "192.0.2.3", "192.0.2.4"] {
            assert!(self.lab.ping("h1", host, 5), "{host}");
        }
        for last in 2..=4 {
            let host = format!("2001:db8:1000::{last}");
            assert!(self.lab.ping("h1", &host, 5), "{host}");
        }
        assert!(self.lab.ping("ns2", "192.0.2.1", 5));
    }

    /// Has the guest send frames to an address: each end gets each of them once, or none.
    fn reach(&self, to: &str, expected: [bool; 3], what: &str) {
        for n in 0..FRAMES {
            self.h1
                .send(&frame(mac(to), mac(H1), &[], &format!("{what} {n}")));
        }
        self.h1.send(&frame(ALL, mac(H1), &[], what));
        for (at, (end, expected)) in self.ends.iter().zip(expected).enumerate() {
            let wanted: Vec<_> = (0..FRAMES).map(|n| format!("{what} {n}")).collect();
            let wanted = if expected { wanted } else { Vec::new() };
            assert_eq!(texts(&end.frames_until(what)), wanted, "{what}, end {at}");
        }
    }

    /// What nobody has goes everywhere once, also beside an endpoint to which there is no way.
    fn floods(&self) {
        self.reach(NOBODY, [true; 3], "flood");
        let remotes = [0, 1].map(|at| self.underlay.endpoint(at, self.port));
        let list = format!("{},{}", remotes[0], remotes[1]);
        let third = if self.underlay.is_v6() {
            "2001:db8:9::1"
        } else {
            "198.51.100.1"
        };
        self.daemon
            .must(&format!("overlay set vx1 learn/remotes={list},{third}"));
        self.reach(NOBODY, [true; 3], "flood beside one that is not there");
        self.daemon
            .must(&format!("overlay set vx1 learn/remotes={list}"));
    }

    /// An entry sends frames to one endpoint alone; without it they go everywhere.
    fn unicasts(&self) {
        self.reach(H2, [true, false, false], "to the other guest");
        for (at, expected) in [[false, true, false], [false, false, true]]
            .into_iter()
            .enumerate()
        {
            let to = self.underlay.endpoint(at, self.port);
            self.daemon
                .must(&format!("overlay target set vx1 {NOBODY} {to}"));
            self.reach(NOBODY, expected, &format!("to remote {at}"));
            self.daemon
                .must(&format!("overlay target delete vx1 {NOBODY}"));
        }
        self.reach(NOBODY, [true; 3], "without an entry");
    }

    /// Outer TTL, TOS and ECN as they are at the first remote endpoint, behind a router.
    fn outer_fields(&self) {
        let under = Wire::open(self.lab, "ns1", "under");
        let is_v6 = self.underlay.is_v6();
        let overhead = if is_v6 { 70 } else { 50 };
        for (inner, outer) in [(0x14, 0x14), (0x18, 0x18), (0, 0), (1, 1), (2, 2), (3, 2)] {
            let bytes = packet((ALL, mac(H1)), inner, self.port as u8);
            self.h1.send(&bytes);
            let found = until_some("a datagram comes", || {
                let next = under.receive()?;
                (next.0.len() == bytes.len() + overhead && next.0.ends_with(&bytes)).then_some(next)
            });
            let ip = &found.0[14..];
            let (tos, ttl, udp) = match is_v6 {
                true => (ip[0] << 4 | ip[1] >> 4, ip[7], &ip[40..]),
                false => (ip[1], ip[8], &ip[20..]),
            };
            assert_eq!((tos, ttl), (outer, TTL - 1), "TOS {inner:#x} inside");
            assert_eq!(udp[2..4], self.port.to_be_bytes());
        }
    }

    /// A socket at the first remote endpoint that sends frames in datagrams of its own making.
    fn forger(&self) -> Forger {
        let own: IpAddr = self.underlay.remote[0][0].parse().expect("an address");
        let socket = self.lab.within("ns1", || UdpSocket::bind((own, 0)));
        let local: IpAddr = self.underlay.local[0].parse().expect("an address");
        Forger {
            socket: socket.expect("a socket"),
            to: SocketAddr::new(local, self.port),
        }
    }

    /// All pairs of inner and outer ECN on the way in; the one that RFC 6040 forbids is dropped and counted.
    fn inner_fields(&self) {
        let forger = self.forger();
        let dropped = self.daemon.drops("vx1", "ecn");
        let mut wanted = Vec::new();
        for outer in 0..4 {
            forger.set_tos(outer);
            for inner in 0..4 {
                let addresses = (mac(H1), mac(REMOTE[0]));
                for n in 0..FRAMES as u8 {
                    forger.send(1000, &packet(addresses, inner, n));
                    let left = ecn::leave(outer, inner);
                    wanted.extend(left.map(|left| packet(addresses, left, n)));
                }
            }
        }
        assert_eq!(wanted.len(), 15 * FRAMES);
        let came = forger.settle(self.h1, "ecn");
        let ours = came
            .iter()
            .filter(|f| f.0[6..12] == mac(REMOTE[0]) && f.0[23] == 17);
        let came: Vec<_> = ours.map(|f| f.0.clone()).collect();
        assert!(came == wanted, "{} of {}", came.len(), wanted.len());
        let now = self.daemon.drops("vx1", "ecn");
        assert_eq!(now - dropped, FRAMES as u64);
    }

    /// Each reserved bit of the header is ignored on the way in (RFC 7348 section 5), as Linux ignores it with `reserved_bits`.
    fn reserved_bits(&self) {
        let forger = self.forger();
        let is_reserved = |bit: &usize| *bit != 4 && !(32..56).contains(bit);
        let bits: Vec<usize> = (0..64).filter(is_reserved).collect();
        for bit in &bits {
            let mut head = header::encode(Vni::new(1000).expect("24 bits"));
            head[bit / 8] |= 0x80 >> (bit % 8);
            let inner = frame(mac(H1), mac(REMOTE[0]), &[], &format!("bit {bit}"));
            forger.send_bytes(&[&head[..], &inner].concat());
        }
        let came = texts(&forger.settle(self.h1, "bits"));
        let wanted: Vec<_> = bits.iter().map(|bit| format!("bit {bit}")).collect();
        assert_eq!((came, bits.len()), (wanted, 39));
        let details = self.daemon.show("overlay", "vx1")["details"].take();
        assert!(
            matches!(details["malformed-datagrams"].as_str(), None | Some("0")),
            "{details}"
        );
    }

    /// An address that spoke behind an endpoint is known there until it is deleted or silent for too long, also if it is spoken to.
    fn learns(&self) {
        let speaks = || {
            let wire = Wire::open(self.lab, "ns1", "br1000");
            wire.send(&frame(ALL, mac(NOBODY), &[], "here"));
            assert!(self.h1.frames_until("here").is_empty());
            assert!(self.ends[0].frames_until("here").is_empty());
            // The other kernel's wire has it, too.
            assert!(self.ends[2].frames_until("here").is_empty());
            let target = self.underlay.endpoint(0, self.port).to_string();
            until("it is learned", || {
                self.behind(NOBODY, 0) == Some(target.clone())
            });
        };
        self.reach(NOBODY, [true; 3], "before it is learned");
        speaks();
        self.reach(NOBODY, [false, true, false], "learned");
        self.daemon.must(&format!("fdb delete br1 {NOBODY}"));
        assert_eq!(self.behind(NOBODY, 0), None);
        self.reach(NOBODY, [true; 3], "deleted");
        speaks();
        self.reach(NOBODY, [false, true, false], "learned again");
        self.daemon.must("bridge set br1 ageing=1");
        until("it is forgotten", || {
            self.h1
                .send(&frame(mac(NOBODY), mac(H1), &[], "to one that is silent"));
            self.behind(NOBODY, 0).is_none()
        });
        self.h1.send(&frame(ALL, mac(H1), &[], "aged"));
        self.ends
            .iter()
            .for_each(|end| drop(end.frames_until("aged")));
        self.reach(NOBODY, [true; 3], "forgotten");
        self.daemon.must("bridge set br1 ageing=300");
    }

    /// The target behind which an address is.
    fn behind(&self, mac: &str, vlan: u16) -> Option<String> {
        behind(self.daemon, mac, vlan)
    }
}

fn behind(daemon: &Daemon, mac: &str, vlan: u16) -> Option<String> {
    let rows = daemon.json("overlay target show vx1");
    let mut rows = rows.as_array().expect("rows").iter();
    let is_it =
        |row: &&Value| row["mac"] == mac && row["vlan"].as_u64().unwrap_or(0) == u64::from(vlan);
    let row = rows.find(is_it)?;
    row["target"].as_str().map(str::to_owned)
}

/// A remote endpoint that sends what it likes.
struct Forger {
    socket: UdpSocket,
    to: SocketAddr,
}

impl Forger {
    fn set_tos(&self, tos: u8) {
        match self.to.is_ipv6() {
            true => set_ipv6_tclass(&self.socket, tos.into()),
            false => set_ip_tos(&self.socket, tos),
        }
        .expect("a TOS");
    }

    fn send_bytes(&self, bytes: &[u8]) {
        self.socket.send_to(bytes, self.to).expect("sent");
    }

    fn send(&self, vni: u32, frame: &[u8]) {
        let head = header::encode(Vni::new(vni).expect("24 bits"));
        self.send_bytes(&[&head[..], frame].concat());
    }

    /// Has a last frame come to a guest; all frames that came before it, the tests' and others.
    fn settle(&self, guest: &Wire, text: &str) -> Vec<Frame> {
        self.set_tos(0);
        self.send(1000, &frame(mac(H1), mac(REMOTE[0]), &[], text));
        let mut came = Vec::new();
        until(text, || {
            while let Some(next) = guest.receive() {
                if next.text().as_deref() == Some(text) {
                    return true;
                }
                came.push(next);
            }
            false
        });
        came
    }
}

/// A datagram with this TOS and a number inside.
fn packet((to, from): (Mac, Mac), tos: u8, number: u8) -> Vec<u8> {
    let link = Link {
        dst: MacAddr(to),
        src: MacAddr(from),
        tag: None,
    };
    let ends = Ends::V4(Ipv4Addr::new(192, 0, 2, 3), Ipv4Addr::new(192, 0, 2, 200));
    let mut bytes = vec![0; 200];
    let len = build::udp_frame(&mut bytes, &link, &ends, (7, 7), &[number; 40]).expect("room");
    bytes.truncate(len);
    bytes[15] = tos;
    bytes[24..26].fill(0);
    let sum = checksum::checksum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// vxlan_bridge_1d at one port, then, where theirs is applied anew, at the other one.
fn bridge_1d(name: &str, underlay: &Underlay) {
    let Some(lab) = Lab::start(name) else {
        return;
    };
    underlay.make(&lab);
    let daemon = lab.daemon();
    daemon.must("bridge create br1 --set vlan-filtering=off");
    underlay.overlay(&daemon, 4789, "--vni 1000");
    let [h1, h2] = [("h1", H1, 1), ("h2", H2, 2)].map(|(name, mac, last)| {
        let addresses = format!(",address=192.0.2.{last}/28,address=2001:db8:1000::{last}/64");
        guest(&lab, &daemon, name, mac, &addresses)
    });
    for port in [4789, 8472] {
        if port == 8472 {
            underlay.reapply(&lab, &daemon, port, "--vni 1000");
            remove_peers(&lab, 1000);
        }
        let peers = underlay.peers(&lab, 1000, port, "192.0.2");
        let net = Net {
            lab: &lab,
            daemon: &daemon,
            underlay,
            port,
            h1: &h1,
            ends: [&h2, &peers[0], &peers[1]],
        };
        net.pings();
        net.floods();
        net.unicasts();
        net.outer_fields();
        net.inner_fields();
        net.reserved_bits();
        if port == 8472 && !underlay.is_v6() {
            net.learns();
        }
    }
}

/// vxlan_bridge_1d.sh, vxlan_bridge_1d_port_8472.sh and vxlan_reserved.sh.
#[test]
fn bridge_without_vlans() {
    bridge_1d("bridge_without_vlans", &V4);
}

/// vxlan_bridge_1d_ipv6.sh and vxlan_bridge_1d_port_8472_ipv6.sh.
#[test]
fn bridge_without_vlans_over_ipv6() {
    bridge_1d("bridge_without_vlans_over_ipv6", &V6);
}

/// VLANs with their networks and the addresses of their hosts.
const VLANS: [(u16, u32, &str); 2] = [(10, 1000, "192.0.2"), (20, 2000, "198.51.100")];
const NETWORKS: &str = "--vnis 10=1000,20=2000";
/// To the other guest and to both kernels.
const EVERYWHERE: (bool, Option<[bool; 2]>) = (true, Some([true; 2]));

/// Guests with both VLANs, and two kernels with a bridge for each.
struct Vlans<'a> {
    daemon: &'a Daemon,
    h1: &'a Wire,
    h2: &'a Wire,
    /// By VLAN.
    peers: [[Wire; 2]; 2],
}

impl Vlans<'_> {
    /// Has the guest send frames to an address in a VLAN: they come, or not, to the other guest and to each kernel's device of that VLAN.
    /// To the devices of the other VLAN none comes, and to none if this one has no network (`None`).
    fn reach(&self, vlan: usize, to: &str, (at_h2, remote): (bool, Option<[bool; 2]>), what: &str) {
        let tag = |vlan: usize| [vlan_tag(VLANS[vlan].0)];
        let all: Vec<_> = (0..FRAMES).map(|n| format!("{what} {n}")).collect();
        for text in &all {
            self.h1.send(&frame(mac(to), mac(H1), &tag(vlan), text));
        }
        let wanted = |is_expected| if is_expected { &all[..] } else { &[] };
        let ends = [format!("{what}, end"), format!("{what}, other end")];
        self.h1.send(&frame(ALL, mac(H1), &tag(vlan), &ends[0]));
        self.h1.send(&frame(ALL, mac(H1), &tag(1 - vlan), &ends[1]));
        let came = self.h2.frames_until(&ends[1]);
        assert!(came.iter().all(|f| f.vids() == [VLANS[vlan].0]), "{came:?}");
        let mut came = texts(&came);
        assert_eq!(came.pop().as_ref(), Some(&ends[0]));
        assert_eq!(came, wanted(at_h2), "{what}");
        for at in 0..2 {
            let other = self.peers[1 - vlan][at].frames_until(&ends[1]);
            assert!(other.is_empty(), "{what}, {at}: {other:?}");
            let own = &self.peers[vlan][at];
            match remote {
                Some(remote) => assert_eq!(texts(&own.frames_until(&ends[0])), wanted(remote[at])),
                // What was sent behind it to the other VLAN is here.
                None => {
                    while let Some(frame) = own.receive() {
                        assert_eq!(frame.text(), None, "{what}, {at}");
                    }
                }
            }
        }
    }

    fn floods(&self) {
        for vlan in 0..2 {
            self.reach(vlan, NOBODY, EVERYWHERE, &format!("flood {vlan}"));
        }
    }

    fn unicasts(&self, underlay: &Underlay, port: u16) {
        for (vlan, (vid, ..)) in VLANS.iter().enumerate() {
            self.reach(
                vlan,
                H2,
                (true, Some([false; 2])),
                &format!("{vid} to the other guest"),
            );
            for (at, expected) in [[true, false], [false, true]].into_iter().enumerate() {
                let to = underlay.endpoint(at, port);
                self.daemon.must(&format!(
                    "overlay target set vx1 {NOBODY} {to} --vlan {vid}"
                ));
                self.reach(
                    vlan,
                    NOBODY,
                    (false, Some(expected)),
                    &format!("{vid} to remote {at}"),
                );
                // The entry is of one VLAN.
                self.reach(1 - vlan, NOBODY, EVERYWHERE, &format!("not {vid}, {at}"));
                self.daemon
                    .must(&format!("overlay target delete vx1 {NOBODY} --vlan {vid}"));
            }
        }
    }

    /// A VLAN that loses its network reaches no remote endpoint, and does again with it; another one beside it changes nothing.
    fn networks_change(&self) {
        let set = |vnis: &str| drop(self.daemon.must(&format!("overlay set vx1 vnis={vnis}")));
        self.reach(0, NOBODY, EVERYWHERE, "before");
        set("20=2000");
        self.reach(0, NOBODY, (true, None), "without");
        set("10=1000,20=2000");
        self.reach(0, NOBODY, EVERYWHERE, "with it again");
        set("10=1000,20=2000,30=3000");
        self.reach(0, NOBODY, EVERYWHERE, "beside a third");
        set("10=1000,20=2000");
    }

    /// An address is learned in the VLAN in which it spoke.
    fn learns(&self, lab: &Lab, underlay: &Underlay, port: u16) {
        let first = underlay.endpoint(0, port).to_string();
        for (vlan, (vid, vni, _)) in VLANS.iter().enumerate() {
            let speaks = || {
                let wire = Wire::open(lab, "ns1", &format!("br{vni}"));
                wire.send(&frame(ALL, mac(NOBODY), &[], "here"));
                let came = self.h1.frames_until("here");
                assert!(came.is_empty(), "{came:?}");
                self.h2.frames_until("here");
                self.peers[vlan][1].frames_until("here");
                until("it is learned", || {
                    behind(self.daemon, NOBODY, *vid).as_ref() == Some(&first)
                });
            };
            speaks();
            self.reach(
                vlan,
                NOBODY,
                (false, Some([true, false])),
                &format!("learned in {vid}"),
            );
            self.daemon
                .must(&format!("fdb delete br1 {NOBODY} --vlan {vid}"));
            self.reach(vlan, NOBODY, EVERYWHERE, &format!("deleted in {vid}"));
            speaks();
        }
        self.daemon.must("bridge set br1 ageing=1");
        until("both are forgotten", || {
            VLANS
                .iter()
                .all(|(vid, ..)| behind(self.daemon, NOBODY, *vid).is_none())
        });
        self.floods();
        self.daemon.must("bridge set br1 ageing=300");
    }
}

/// vxlan_bridge_1q at one port, then at the other one: each VLAN has its network. The kernels here filter no VLANs, so they have a bridge for each network.
fn bridge_1q(name: &str, underlay: &Underlay) {
    let Some(lab) = Lab::start(name) else {
        return;
    };
    underlay.make(&lab);
    let daemon = lab.daemon();
    daemon.must("bridge create br1");
    underlay.overlay(&daemon, 4789, NETWORKS);
    daemon.wait_for_state("overlay", "vx1", "up");
    let [h1, h2] = [("h1", H1), ("h2", H2)]
        .map(|(name, mac)| guest(&lab, &daemon, name, mac, " --tagged 10,20"));
    for (vid, _, net) in VLANS {
        let name = format!("g{vid}");
        lab.namespace(&name);
        let mac = format!("02:00:00:00:01:{vid}");
        guest(
            &lab,
            &daemon,
            &name,
            &mac,
            &format!(",address={net}.5/28 --vlan {vid}"),
        );
    }
    for port in [4789, 8472] {
        if port == 8472 {
            underlay.reapply(&lab, &daemon, port, NETWORKS);
            for (_, vni, _) in VLANS {
                remove_peers(&lab, vni);
            }
        }
        let net = Vlans {
            daemon: &daemon,
            h1: &h1,
            h2: &h2,
            peers: VLANS.map(|(_, vni, net)| underlay.peers(&lab, vni, port, net)),
        };
        for ((vid, _, net), last) in VLANS.into_iter().flat_map(|vlan| [(vlan, 3), (vlan, 4)]) {
            let address = format!("{net}.{last}");
            assert!(lab.ping(&format!("g{vid}"), &address, 5), "{address}");
        }
        net.floods();
        net.unicasts(underlay, port);
        if port == 8472 && !underlay.is_v6() {
            net.learns(&lab, underlay, port);
        }
        net.networks_change();
    }
}

/// vxlan_bridge_1q.sh and vxlan_bridge_1q_port_8472.sh.
#[test]
fn vlans_have_networks_of_their_own() {
    bridge_1q("vlans_have_networks_of_their_own", &V4);
}

/// vxlan_bridge_1q_ipv6.sh and vxlan_bridge_1q_port_8472_ipv6.sh.
#[test]
fn vlans_have_networks_of_their_own_over_ipv6() {
    bridge_1q("vlans_have_networks_of_their_own_over_ipv6", &V6);
}

/// q_in_vni: on a bridge that does not filter, tags pass through the network as they are, both ways.
fn q_in_vni(name: &str, underlay: &Underlay) {
    let Some(lab) = Lab::start(name) else {
        return;
    };
    underlay.make(&lab);
    let daemon = lab.daemon();
    daemon.must("bridge create br1 --set vlan-filtering=off");
    underlay.overlay(&daemon, 4789, "--vni 1000");
    daemon.wait_for_state("overlay", "vx1", "up");
    let [h1, h2] = [("h1", H1), ("h2", H2)].map(|(name, mac)| guest(&lab, &daemon, name, mac, ""));
    let peers = underlay.peers(&lab, 1000, 4789, "192.0.2");
    for vid in [10, 20] {
        let text = format!("asked in {vid}");
        h1.send(&frame(ALL, mac(H1), &[vlan_tag(vid)], &text));
        h1.send(&frame(
            ALL,
            mac(H1),
            &[vlan_tag(vid), vlan_tag(7)],
            "stacked",
        ));
        h1.send(&frame(ALL, mac(H1), &[], "end"));
        for end in [&h2, &peers[0], &peers[1]] {
            let came = end.frames_until("end");
            assert_eq!(texts(&came), [&text, "stacked"]);
            let tags = came.iter().map(Frame::vids).collect::<Vec<_>>();
            assert_eq!(tags, [vec![vid], vec![vid, 7]]);
        }
        for (short, remote) in ["ns1", "ns2"].into_iter().zip(REMOTE) {
            let wire = Wire::open(&lab, short, "br1000");
            wire.send(&frame(mac(H1), mac(remote), &[vlan_tag(vid)], "answer"));
            wire.send(&frame(mac(H1), mac(remote), &[], "end"));
            let came = h1.frames_until("end");
            assert_eq!(
                (texts(&came), came[0].vids()),
                (vec!["answer".into()], vec![vid])
            );
        }
    }
}

/// q_in_vni.sh.
#[test]
fn tags_pass_in_a_network() {
    q_in_vni("tags_pass_in_a_network", &V4);
}

/// q_in_vni_ipv6.sh.
#[test]
fn tags_pass_in_a_network_over_ipv6() {
    q_in_vni("tags_pass_in_a_network_over_ipv6", &V6);
}

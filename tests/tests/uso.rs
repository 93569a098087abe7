//! UDP segmentation end to end: sockets in a namespace behind a TAP, and a virtual machine that the test plays.

#[path = "../../crates/io/attach/tests/vhost_drive/mod.rs"]
mod vhost_drive;
#[path = "../../crates/io/attach/tests/vhost_front/mod.rs"]
mod vhost_front;

mod machine;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use machine::{Header, Machine};
use smoltcp::wire::{IpAddress, Ipv4Packet, Ipv6Packet, UdpPacket};
use vhost_drive::{LAYOUTS, Layout};
use windlass_attach::vhost_user::features::{
    CSUM, GUEST_CSUM, GUEST_USO4, GUEST_USO6, HOST_USO, MRG_RXBUF,
};
use windlass_sys::udp;
use windlass_tests::{Daemon, Lab, mac, skip, uninterrupted, until, until_some};

const TAP: &str = "02:00:00:00:00:0a";
const MACHINE: &str = "02:00:00:00:00:0c";
/// The namespace's addresses, and the machine's.
const ENDS: [(&str, &str); 2] = [("10.1.0.1", "10.1.0.2"), ("fd00::1", "fd00::2")];
/// Bytes of a datagram, and of what is sent at once: with all headers just below 64 KiB, which is where the kernel itself
/// begins to cut.
const DATAGRAM: usize = 1400;
const WHOLE: usize = 65_300;
const USO: u64 = CSUM | GUEST_CSUM | GUEST_USO4 | GUEST_USO6 | HOST_USO;

const NEEDS_CSUM: u8 = 1;
const UDP_L4: u8 = 5;

/// Bytes before the UDP header of a frame with our port; none for any other frame.
fn ip_headers(frame: &[u8]) -> Option<usize> {
    let (at, proto) = match frame.get(12..14)? {
        [8, 0] => (34, frame.get(23)?),
        [0x86, 0xdd] => (54, frame.get(20)?),
        _ => return None,
    };
    let port = frame.get(at + 2..at + 4)?;
    (*proto == 17 && port == PORT.to_be_bytes()).then_some(at)
}

/// The frames of our UDP conversation, until `bytes` of payload have come.
fn received_udp(machine: &mut Machine, bytes: usize) -> Vec<(Header, Vec<u8>)> {
    let mut frames: Vec<(Header, Vec<u8>)> = Vec::new();
    until("the datagrams come", || {
        let came = machine.received().into_iter();
        frames.extend(came.filter(|(_, frame)| ip_headers(frame).is_some()));
        let payload =
            |(_, frame): &(Header, Vec<u8>)| frame.len() - ip_headers(frame).unwrap_or(0) - 8;
        frames.iter().map(payload).sum::<usize>() >= bytes
    });
    frames
}

const PORT: u16 = 7777;

/// What is sent at once: every place has its own bytes.
fn payload() -> Vec<u8> {
    let words = 0..WHOLE as u32 / 4;
    words
        .flat_map(|n| n.wrapping_mul(0x9e37_79b1).to_be_bytes())
        .collect()
}

/// The one's complement sum that a sender leaves in the checksum field.
fn pseudo(ends: [IpAddr; 2], len: usize) -> u16 {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let bytes = ends.map(octets).concat();
    let words = bytes
        .chunks(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let mut sum = words.sum::<u32>() + 17 + len as u32;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A frame of the machine with one large datagram, its checksum still to be completed.
fn segment(from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
    let mut frame = [mac(TAP), mac(MACHINE)].concat();
    let len = payload.len() + 8;
    match (ip(from), ip(to)) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            frame.extend([8, 0]);
            frame.extend([0x45, 0]);
            frame.extend((len as u16 + 20).to_be_bytes());
            frame.extend([0, 7, 0x40, 0, 64, 17, 0, 0]);
            frame.extend([from.octets(), to.octets()].concat());
            Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((len as u16).to_be_bytes());
            frame.extend([17, 64]);
            frame.extend([from.octets(), to.octets()].concat());
        }
        _ => unreachable!("both of one kind"),
    }
    frame.extend(PORT.to_be_bytes());
    frame.extend(PORT.to_be_bytes());
    frame.extend((len as u16).to_be_bytes());
    frame.extend(pseudo([ip(from), ip(to)], len).to_be_bytes());
    frame.extend(payload);
    frame
}

/// Checks one datagram as it would stand on a wire: lengths and checksums. Returns its IPv4 identification and its payload.
fn checked(frame: &[u8]) -> (Option<u16>, Vec<u8>) {
    let (ident, from, to, bytes): (_, IpAddress, IpAddress, _) = if frame[12] == 8 {
        let packet = Ipv4Packet::new_checked(&frame[14..]).expect("an IPv4 packet");
        assert!(packet.verify_checksum());
        assert_eq!(usize::from(packet.total_len()), frame.len() - 14);
        let ends = (packet.src_addr().into(), packet.dst_addr().into());
        (Some(packet.ident()), ends.0, ends.1, &frame[34..])
    } else {
        let packet = Ipv6Packet::new_checked(&frame[14..]).expect("an IPv6 packet");
        assert_eq!(packet.total_len(), frame.len() - 14);
        (
            None,
            packet.src_addr().into(),
            packet.dst_addr().into(),
            &frame[54..],
        )
    };
    let datagram = UdpPacket::new_checked(bytes).expect("a datagram");
    assert_eq!(usize::from(datagram.len()), bytes.len());
    assert_ne!(datagram.checksum(), 0, "a checksum is there");
    assert!(datagram.verify_checksum(&from, &to));
    (ident, datagram.payload().to_vec())
}

/// A namespace with a TAP on a bridge, and a VNIC with a socket for the machine.
struct Network {
    lab: Lab,
    daemon: Daemon,
}

impl Network {
    fn start(name: &str) -> Option<Network> {
        let lab = Lab::start(name)?;
        lab.namespace("a");
        lab.within("a", || {
            for which in ["all", "default"] {
                let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
                std::fs::write(path, "0").expect("IPv6");
            }
        });
        let daemon = lab.daemon();
        daemon.must("bridge create br0");
        let addresses = ",address=10.1.0.1/24,address=fd00::1/64";
        daemon.tap(&lab, "a0", "a", addresses, &format!("--mac {TAP}"));
        let tap = daemon.show("vnic", "a0");
        let offloads = tap["details"]["features"].as_str().unwrap_or_default();
        if !offloads.split(',').any(|name| name == "uso") {
            skip(
                name,
                "this kernel's TAPs have no UDP segmentation (Linux 6.2)",
            );
            return None;
        }
        let network = Network { lab, daemon };
        let socket = network.socket();
        network.daemon.must(&format!(
            "vnic create c0 --bridge br0 --mac {MACHINE} --attach vhost-user,socket={},role=server",
            socket.display()
        ));
        for (_, machine) in ENDS {
            let words = format!("neigh add {machine} lladdr {MACHINE} dev eth0");
            network.lab.ip("a", &words);
        }
        Some(network)
    }

    fn socket(&self) -> std::path::PathBuf {
        self.lab.directory().join("machine")
    }

    /// A machine on the VNIC, up.
    fn machine(&self, layout: Layout, features: u64) -> Machine {
        self.daemon.wait_for_state("vnic", "c0", "waiting");
        let machine = Machine::start(&self.socket(), layout, features);
        self.daemon.wait_for_state("vnic", "c0", "up");
        machine
    }

    /// A UDP socket in the namespace.
    fn udp(&self, address: &str) -> UdpSocket {
        let address = SocketAddr::new(ip(address), PORT);
        // An IPv6 address is tentative for a moment.
        let bind = || self.lab.within("a", || UdpSocket::bind(address).ok());
        let socket = until_some("the address can be used", bind);
        let timeout = Some(Duration::from_secs(10));
        socket.set_read_timeout(timeout).expect("a socket");
        socket
    }

    /// Sends everything in one call, as datagrams of [`DATAGRAM`] bytes.
    fn send_at_once(&self, ends: (&str, &str)) {
        let socket = self.udp(ends.0);
        udp::set_segment_bytes(&socket, DATAGRAM as u16).expect("UDP_SEGMENT");
        let to = SocketAddr::new(ip(ends.1), PORT);
        assert_eq!(socket.send_to(&payload(), to).expect("sent"), WHOLE);
    }
}

/// What a socket sends at once reaches a machine that negotiated UDP segmentation as the one frame that the kernel made,
/// byte for byte, with the metadata of the kernel's: over IPv4 and IPv6, split and packed, in many small mergeable buffers
/// and in one large one.
#[test]
fn a_large_datagram_is_not_cut() {
    let Some(network) = Network::start("a_large_datagram_is_not_cut") else {
        return;
    };
    for layout in LAYOUTS {
        for mergeable in [MRG_RXBUF, 0] {
            let mut machine = network.machine(layout, USO | mergeable);
            for (ends, l4) in ENDS.into_iter().zip([34, 54]) {
                network.send_at_once(ends);
                let frames = received_udp(&mut machine, WHOLE);
                let [(header, frame)] = frames.as_slice() else {
                    panic!("{} frames", frames.len());
                };
                let wanted = Header {
                    flags: NEEDS_CSUM,
                    gso_type: UDP_L4,
                    gso_size: DATAGRAM as u16,
                    csum_start: l4,
                    csum_offset: 6,
                };
                assert_eq!(*header, wanted);
                let at = usize::from(l4) + 8;
                assert!(frame[at..] == payload(), "the bytes are the sender's");
                let left = u16::from_be_bytes([frame[at - 2], frame[at - 1]]);
                let ends = [ip(ends.0), ip(ends.1)];
                assert_eq!(
                    left,
                    pseudo(ends, WHOLE + 8),
                    "the sum of the pseudo header"
                );
            }
        }
    }
}

/// A machine that did not negotiate it, whatever else it did, gets the same bytes as datagrams that would stand so on a wire.
#[test]
fn a_large_datagram_is_cut_for_others() {
    let Some(network) = Network::start("a_large_datagram_is_cut_for_others") else {
        return;
    };
    for layout in LAYOUTS {
        for features in [0, MRG_RXBUF, CSUM | GUEST_CSUM | GUEST_USO4 | MRG_RXBUF] {
            let mut machine = network.machine(layout, features);
            for ends in ENDS {
                let cut = network.daemon.counters("c0")["tx_segments"].as_u64();
                network.send_at_once(ends);
                let frames = received_udp(&mut machine, WHOLE);
                assert_eq!(frames.len(), WHOLE.div_ceil(DATAGRAM));
                let mut bytes = Vec::new();
                let mut idents = Vec::new();
                for (k, (header, frame)) in frames.iter().enumerate() {
                    assert_eq!(
                        (header.flags, header.gso_type),
                        (0, 0),
                        "nothing is left to do"
                    );
                    let (ident, part) = checked(frame);
                    let wanted = DATAGRAM.min(WHOLE - k * DATAGRAM);
                    assert_eq!(part.len(), wanted, "datagram {k}");
                    idents.extend(ident);
                    bytes.extend(part);
                }
                assert!(bytes == payload(), "the bytes are the sender's");
                let follow = idents.windows(2).all(|w| w[1] == w[0].wrapping_add(1));
                assert!(follow, "each has its own identification: {idents:?}");
                let after = network.daemon.counters("c0")["tx_segments"].as_u64();
                let more = after.zip(cut).map(|(after, before)| after - before);
                assert_eq!(more, Some(frames.len() as u64), "counted");
            }
        }
    }
}

/// What a machine leaves to us arrives at a socket behind the TAP datagram by datagram, or merged if the socket takes that:
/// which shows that it went to the kernel in one piece.
#[test]
fn a_machine_sends_large_datagrams() {
    let Some(network) = Network::start("a_machine_sends_large_datagrams") else {
        return;
    };
    for layout in LAYOUTS {
        let mut machine = network.machine(layout, USO | MRG_RXBUF);
        for ((address, from), l4) in ENDS.into_iter().zip([34, 54]) {
            for merged in [false, true] {
                let socket = network.udp(address);
                udp::set_merged(&socket, merged).expect("UDP_GRO");
                let header = Header {
                    flags: NEEDS_CSUM,
                    gso_type: UDP_L4,
                    gso_size: DATAGRAM as u16,
                    csum_start: l4,
                    csum_offset: 6,
                };
                let before = network.daemon.counters("a0");
                machine.send(&header, &segment(from, address, &payload()));
                let (mut bytes, mut parts) = (Vec::<u8>::new(), HashMap::<usize, usize>::new());
                let mut space = vec![0; 1 << 16];
                while bytes.len() < WHOLE {
                    let (n, peer) =
                        uninterrupted(|| socket.recv_from(&mut space)).expect("a datagram");
                    assert_eq!(peer, SocketAddr::new(ip(from), PORT));
                    bytes.extend(&space[..n]);
                    *parts.entry(n).or_default() += 1;
                }
                assert!(bytes == payload(), "the bytes are the sender's");
                let whole = WHOLE / DATAGRAM;
                let wanted = match merged {
                    true => [(WHOLE, 1)].into(),
                    false => [(DATAGRAM, whole), (WHOLE % DATAGRAM, 1)].into(),
                };
                assert_eq!(parts, wanted, "merged: {merged}");
                let after = network.daemon.counters("a0");
                let of = |value: &serde_json::Value, name: &str| value[name].as_u64();
                assert_eq!(
                    of(&after, "tx_segments"),
                    of(&before, "tx_segments"),
                    "not cut"
                );
            }
        }
    }
}

/// A machine that says it left segmentation to us without having negotiated that is not believed: what it sent goes on as
/// the one frame that it is, and is dropped for its size.
#[test]
fn segmentation_must_be_negotiated() {
    let Some(network) = Network::start("segmentation_must_be_negotiated") else {
        return;
    };
    let mut machine = network.machine(Layout::Split, CSUM | GUEST_CSUM);
    let header = Header {
        flags: NEEDS_CSUM,
        gso_type: UDP_L4,
        gso_size: DATAGRAM as u16,
        csum_start: 34,
        csum_offset: 6,
    };
    let (address, from) = ENDS[0];
    machine.send(&header, &segment(from, address, &payload()));
    until("it is dropped", || {
        network.daemon.drops("c0", "giant") + network.daemon.drops("c0", "mtu") == 1
    });
}

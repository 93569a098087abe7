//! Round trips against smoltcp's wire formats, an independent implementation.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpAddress, IpProtocol, Ipv4Packet,
    Ipv4Repr, Ipv6Packet, Ipv6Repr, TcpPacket, TcpRepr, UdpPacket, UdpRepr,
};
use windlass_wire::build::{self, Arp, Echo, Ends, Link, Tcp};
use windlass_wire::segment::{Gso, Plan};
use windlass_wire::{Fault, Kind, Layers, MacAddr, Tci, parse};

fn link() -> impl Strategy<Value = Link> {
    (any::<[u8; 6]>(), any::<[u8; 6]>(), any::<Option<u16>>()).prop_map(|(dst, src, tag)| Link {
        dst: MacAddr(dst),
        src: MacAddr(src),
        tag: tag.map(Tci),
    })
}

/// Addresses that smoltcp does not refuse as source or destination of an echo or a segment.
fn ends() -> impl Strategy<Value = Ends> {
    prop_oneof![
        (1u8..127, any::<[u8; 3]>(), 1u8..127, any::<[u8; 3]>()).prop_map(|(a, b, c, d)| Ends::V4(
            Ipv4Addr::new(a, b[0], b[1], b[2]),
            Ipv4Addr::new(c, d[0], d[1], d[2]),
        )),
        (any::<[u16; 7]>(), any::<[u16; 7]>()).prop_map(|(a, b)| Ends::V6(
            Ipv6Addr::new(0xfd00, a[0], a[1], a[2], a[3], a[4], a[5], a[6]),
            Ipv6Addr::new(0xfd00, b[0], b[1], b[2], b[3], b[4], b[5], b[6]),
        )),
    ]
}

fn addresses(ends: &Ends) -> (IpAddress, IpAddress) {
    match *ends {
        Ends::V4(a, b) => (a.into(), b.into()),
        Ends::V6(a, b) => (a.into(), b.into()),
    }
}

/// Checks link and network header under smoltcp; returns the transport header and payload.
fn network<'a>(
    frame: &'a [u8],
    l2: usize,
    link: &Link,
    ends: &Ends,
    proto: IpProtocol,
) -> &'a [u8] {
    let eth = EthernetFrame::new_checked(frame).unwrap();
    assert_eq!(eth.dst_addr().0, link.dst.0);
    assert_eq!(eth.src_addr().0, link.src.0);
    if link.tag.is_none() {
        let ipv4 = matches!(ends, Ends::V4(..));
        assert_eq!(eth.ethertype() == EthernetProtocol::Ipv4, ipv4);
    }
    match *ends {
        Ends::V4(src, dst) => {
            let ip = Ipv4Packet::new_checked(&frame[l2..]).unwrap();
            let repr = Ipv4Repr::parse(&ip, &ChecksumCapabilities::default()).unwrap();
            assert_eq!(
                (repr.src_addr, repr.dst_addr, repr.next_header),
                (src, dst, proto)
            );
            &frame[l2 + 20..l2 + usize::from(ip.total_len())]
        }
        Ends::V6(src, dst) => {
            let ip = Ipv6Packet::new_checked(&frame[l2..]).unwrap();
            let repr = Ipv6Repr::parse(&ip).unwrap();
            assert_eq!(
                (repr.src_addr, repr.dst_addr, repr.next_header),
                (src, dst, proto)
            );
            &frame[l2 + 40..l2 + ip.total_len()]
        }
    }
}

/// Our parse agrees with the lengths that were built.
fn agrees(frame: &[u8], link: &Link, ends: &Ends, l4: usize) -> Layers {
    let got = parse(frame, frame.len() as u32);
    assert_eq!((got.fault, got.need), (Fault::None, 0));
    assert_eq!(
        usize::from(got.l2),
        if link.tag.is_some() { 18 } else { 14 }
    );
    assert_eq!(got.tags, u8::from(link.tag.is_some()));
    assert_eq!(got.tci, link.tag.map_or(0, |t| t.0));
    assert_eq!(
        (usize::from(got.l3), usize::from(got.l4)),
        (ends.header(), l4)
    );
    assert_eq!(got.end as usize, frame.len());
    got
}

proptest! {
    /// UDP frames that we build verify under smoltcp, and we parse them.
    #[test]
    fn udp(link in link(), ends in ends(), src: u16, dst in 1u16..,
           payload in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut out = vec![0; 400];
        let len = build::udp_frame(&mut out, &link, &ends, (src, dst), &payload).unwrap();
        let frame = &out[..len];
        let layers = agrees(frame, &link, &ends, 8);
        let body = network(frame, layers.l3_at(), &link, &ends, IpProtocol::Udp);
        let udp = UdpPacket::new_checked(body).unwrap();
        let (a, b) = addresses(&ends);
        prop_assert_ne!(udp.checksum(), 0);
        let repr = UdpRepr::parse(&udp, &a, &b, &ChecksumCapabilities::default()).unwrap();
        prop_assert_eq!((repr.src_port, repr.dst_port, udp.payload()), (src, dst, &payload[..]));
        prop_assert!(build::udp_frame(&mut out[..len - 1], &link, &ends, (src, dst), &payload).is_err());
    }

    /// TCP frames that we build, with options, verify under smoltcp, and we parse them.
    #[test]
    fn tcp(link in link(), ends in ends(), src in 1u16.., dst in 1u16.., seq: u32, ack: u32,
           window: u16, words in 0usize..=10,
           payload in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut out = vec![0; 500];
        let options = vec![1; words * 4];
        let header = Tcp { src, dst, seq, ack, flags: 0x10, window, options: &options };
        let len = build::tcp_frame(&mut out, &link, &ends, &header, &payload).unwrap();
        let frame = &out[..len];
        let layers = agrees(frame, &link, &ends, 20 + words * 4);
        let body = network(frame, layers.l3_at(), &link, &ends, IpProtocol::Tcp);
        let tcp = TcpPacket::new_checked(body).unwrap();
        let (a, b) = addresses(&ends);
        let repr = TcpRepr::parse(&tcp, &a, &b, &ChecksumCapabilities::default()).unwrap();
        prop_assert_eq!((repr.src_port, repr.dst_port), (src, dst));
        prop_assert_eq!((repr.seq_number.0 as u32, repr.ack_number.unwrap().0 as u32), (seq, ack));
        prop_assert_eq!((repr.window_len, repr.payload), (window, &payload[..]));
    }

    /// Echo messages of both families verify under smoltcp.
    #[test]
    fn echo(link in link(), ends in ends(), reply: bool, id: u16, seq: u16,
            payload in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut out = vec![0; 200];
        let echo = Echo { reply, id, seq };
        let len = build::echo_frame(&mut out, &link, &ends, &echo, &payload).unwrap();
        let frame = &out[..len];
        let layers = agrees(frame, &link, &ends, 8);
        let caps = ChecksumCapabilities::default();
        let same = |ident, seq_no, data: &[u8]| (ident, seq_no, data) == (id, seq, &payload[..]);
        let good = match ends {
            Ends::V4(..) => {
                let body = network(frame, layers.l3_at(), &link, &ends, IpProtocol::Icmp);
                let packet = Icmpv4Packet::new_checked(body).unwrap();
                match Icmpv4Repr::parse(&packet, &caps).unwrap() {
                    Icmpv4Repr::EchoRequest { ident, seq_no, data } => !reply && same(ident, seq_no, data),
                    Icmpv4Repr::EchoReply { ident, seq_no, data } => reply && same(ident, seq_no, data),
                    _ => false,
                }
            }
            Ends::V6(src, dst) => {
                let body = network(frame, layers.l3_at(), &link, &ends, IpProtocol::Icmpv6);
                let packet = Icmpv6Packet::new_checked(body).unwrap();
                match Icmpv6Repr::parse(&src, &dst, &packet, &caps).unwrap() {
                    Icmpv6Repr::EchoRequest { ident, seq_no, data } => !reply && same(ident, seq_no, data),
                    Icmpv6Repr::EchoReply { ident, seq_no, data } => reply && same(ident, seq_no, data),
                    _ => false,
                }
            }
        };
        prop_assert!(good);
    }

    /// ARP packets read the same under smoltcp.
    #[test]
    fn arp(link in link(), request: bool, a: [u8; 6], b: [u8; 6], x: u32, y: u32) {
        let packet = Arp {
            operation: if request { 1 } else { 2 },
            sender_mac: MacAddr(a),
            sender_ip: x.into(),
            target_mac: MacAddr(b),
            target_ip: y.into(),
        };
        let mut out = [0; 60];
        let len = build::arp_frame(&mut out, &link, &packet).unwrap();
        let layers = parse(&out[..len], len as u32);
        prop_assert_eq!((layers.kind, len), (Kind::Arp, layers.l3_at() + 28));
        let got = ArpRepr::parse(&ArpPacket::new_checked(&out[layers.l3_at()..len]).unwrap()).unwrap();
        let want = ArpRepr::EthernetIpv4 {
            operation: if request { ArpOperation::Request } else { ArpOperation::Reply },
            source_hardware_addr: EthernetAddress(a),
            source_protocol_addr: x.into(),
            target_hardware_addr: EthernetAddress(b),
            target_protocol_addr: y.into(),
        };
        prop_assert_eq!(got, want);
    }

    /// A TCP segment cut by us: every piece verifies under smoltcp, sequence numbers continue, and
    /// the payloads together are the original.
    #[test]
    fn tcp_segmentation(link in link(), ends in ends(), seq: u32, size in 64u16..2000,
                        words in 0usize..=10, flags: u8, pad in 0usize..30,
                        payload in prop::collection::vec(any::<u8>(), 0..9000)) {
        let mut out = vec![0; 10_000];
        let options = vec![1; words * 4];
        // No SYN or RST: smoltcp refuses some combinations, and no sender cuts those.
        let flags = flags & 0b1111_1001 & !0x04 | 0x10;
        let header = Tcp { src: 1, dst: 2, seq, ack: 9, flags, window: 3, options: &options };
        let len = build::tcp_frame(&mut out, &link, &ends, &header, &payload).unwrap();
        let frame = &out[..len + pad];
        let layers = parse(frame, frame.len() as u32);
        let kind = if matches!(ends, Ends::V4(..)) { Gso::Tcp4 } else { Gso::Tcp6 };
        let plan = Plan::new(frame, &layers, kind, size).unwrap();
        let (a, b) = addresses(&ends);
        let mut joined: Vec<u8> = Vec::new();
        for (k, piece) in cut(&plan, &payload).iter().enumerate() {
            let at = joined.len() as u32;
            agrees(piece, &link, &ends, 20 + words * 4);
            let body = network(piece, layers.l3_at(), &link, &ends, IpProtocol::Tcp);
            let tcp = TcpPacket::new_checked(body).unwrap();
            prop_assert!(tcp.verify_checksum(&a, &b));
            prop_assert_eq!(tcp.seq_number().0 as u32, seq.wrapping_add(at));
            let last = k as u32 + 1 == plan.count();
            prop_assert_eq!(tcp.fin(), last && flags & 1 != 0);
            prop_assert_eq!(tcp.psh(), last && flags & 8 != 0);
            prop_assert_eq!(tcp.cwr(), k == 0 && flags & 0x80 != 0);
            prop_assert_eq!(tcp.ece(), flags & 0x40 != 0);
            prop_assert!(last || tcp.payload().len() == usize::from(size));
            joined.extend(tcp.payload());
        }
        prop_assert_eq!(joined, payload);
    }

    /// A UDP datagram cut by us: every piece is a datagram that verifies under smoltcp.
    #[test]
    fn udp_segmentation(link in link(), ends in ends(), size in 64u16..2000,
                        payload in prop::collection::vec(any::<u8>(), 0..9000)) {
        let mut out = vec![0; 10_000];
        let len = build::udp_frame(&mut out, &link, &ends, (5, 6), &payload).unwrap();
        let frame = &out[..len];
        let layers = parse(frame, len as u32);
        let plan = Plan::new(frame, &layers, Gso::UdpL4, size).unwrap();
        let (a, b) = addresses(&ends);
        let mut joined: Vec<u8> = Vec::new();
        for piece in cut(&plan, &payload) {
            agrees(&piece, &link, &ends, 8);
            let body = network(&piece, layers.l3_at(), &link, &ends, IpProtocol::Udp);
            let udp = UdpPacket::new_checked(body).unwrap();
            prop_assert!(udp.checksum() != 0 && udp.verify_checksum(&a, &b));
            prop_assert_eq!(usize::from(udp.len()), body.len());
            joined.extend(udp.payload());
        }
        prop_assert_eq!(joined, payload);
    }
}

/// Cuts as the transmit side does: the payload summed in two odd pieces, the header written last.
fn cut(plan: &Plan<'_>, payload: &[u8]) -> Vec<Vec<u8>> {
    (0..plan.count())
        .map(|k| {
            let mut out = vec![0; plan.frame_max()];
            let part = plan.header(k, &mut out).unwrap();
            let data = &payload[part.from as usize..][..usize::from(part.len)];
            let (one, two) = data.split_at((data.len() / 2) | 1.min(data.len()));
            let mut sum = part.seed;
            sum.add_bytes(one);
            sum.add_bytes(two);
            out.truncate(part.headers + data.len());
            out[part.headers..].copy_from_slice(data);
            assert!(part.seal(&mut out, sum));
            out
        })
        .collect()
}

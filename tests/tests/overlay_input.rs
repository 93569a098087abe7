//! What an overlay makes of datagrams, good and bad, and of the fields of their headers.

mod tunnel;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use windlass_overlay::header;
use windlass_stats::Drop;
use windlass_sys::udp::messages::{Address, Message, send};
use windlass_sys::{Errno, udp, vectored::iovec};
use windlass_tests::{Lab, Mac, Wire, frame, mac, run, until};
use windlass_wire::build::{self, Ends, Link};
use windlass_wire::{MacAddr, checksum};
use windlass_worker::dataplane::BridgeTuning;
use windlass_worker::dataplane::overlays::SourceCheck;

use tunnel::{Host, MTU, VNI, join, target, vni, word};

const A: &str = "02:00:00:00:00:0a";
const FAR: &str = "02:00:00:00:00:0f";
const ALL: Mac = [0xff; 6];

/// A guest behind a TAP, and a socket in the place of a remote endpoint.
struct Tunnel {
    lab: Lab,
    host: Host,
    overlay: u16,
    guest: Wire,
    far: OwnedFd,
}

impl Tunnel {
    fn start(name: &str, check: SourceCheck) -> Option<Tunnel> {
        let lab = Lab::start(name)?;
        for short in ["near", "far", "guest"] {
            lab.namespace(short);
        }
        join(&lab, ("near", "192.0.2.1/24"), ("far", "192.0.2.2/24"));
        lab.ip("far", "addr add 192.0.2.3/24 dev to-near");
        let mut host = Host::start();
        host.tap(&lab, "guest", mac(A), "10.0.0.1/24", MTU);
        let overlay = host.overlay(&lab, "near", "192.0.2.1:4789", |tuning| {
            tuning.source_check = check;
        });
        host.target(overlay, "192.0.2.2:4789");
        let guest = Wire::open(&lab, "guest", "t0");
        let far = socket(&lab, "192.0.2.2:4789");
        Some(Tunnel {
            lab,
            host,
            overlay,
            guest,
            far,
        })
    }

    /// Frames of the overlay that were dropped for a reason.
    fn dropped(&self, reason: Drop) -> u64 {
        self.host.plane.drops(self.overlay).expect("an overlay")[reason as usize]
    }

    /// Sends a frame to the guest as a datagram of a network.
    fn send(&self, socket: &OwnedFd, number: u32, frame: &[u8], tos: u8) {
        let bytes = [&header::encode(vni(number))[..], frame].concat();
        datagram(socket, &bytes, 0, tos);
    }

    /// Has a last frame come, so that all before have.
    fn settle(&self, text: &str) -> Vec<windlass_tests::Frame> {
        self.send(&self.far, VNI, &frame(ALL, mac(FAR), &[], text), 0);
        self.guest.frames_until(text)
    }
}

fn socket(lab: &Lab, local: &str) -> OwnedFd {
    let local: SocketAddr = local.parse().expect("an address");
    lab.within("far", || udp::open(local, false))
        .expect("a socket")
}

/// Sends bytes to the endpoint, as datagrams of `segment` bytes each if that is not 0.
fn datagram(socket: &OwnedFd, bytes: &[u8], segment: u16, tos: u8) {
    let ranges = [iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }];
    let message = Message {
        to: Address::new("192.0.2.1:4789".parse().expect("an address")),
        ranges: 0..1,
        segment,
        tos,
        hops: None,
    };
    until("it is sent", || {
        // SAFETY: the range is the slice above.
        let sent = unsafe { send(socket, &ranges, std::slice::from_ref(&message)) };
        match sent {
            Ok(1) => true,
            Ok(_) | Err(Errno::AGAIN) => false,
            Err(errno) => panic!("{errno}"),
        }
    });
}

/// A datagram of a guest's with a TOS.
fn packet(is_v4: bool, (to, from): (Mac, Mac), tos: u8, payload: &[u8]) -> Vec<u8> {
    let link = Link {
        dst: MacAddr(to),
        src: MacAddr(from),
        tag: None,
    };
    let ends = match is_v4 {
        true => Ends::V4(Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1)),
        false => Ends::V6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST),
    };
    let mut bytes = vec![0; payload.len() + 100];
    let len = build::udp_frame(&mut bytes, &link, &ends, (7, 7), payload).expect("room");
    bytes.truncate(len);
    set_tos(&mut bytes, is_v4, tos);
    bytes
}

fn set_tos(frame: &mut [u8], is_v4: bool, tos: u8) {
    if !is_v4 {
        frame[14] = 0x60 | tos >> 4;
        frame[15] = frame[15] & 0x0f | tos << 4;
        return;
    }
    frame[15] = tos;
    frame[24..26].fill(0);
    let sum = checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// Datagrams that are not VXLAN, and those of networks that nobody has, are counted by the endpoint; those of strangers by the
/// overlay. Reserved bits are ignored. None of them is forwarded, and those behind them are.
#[test]
fn bad_datagrams_are_counted() {
    let name = "bad_datagrams_are_counted";
    let Some(mut tunnel) = Tunnel::start(name, SourceCheck::Vtep) else {
        return;
    };
    let good = frame(ALL, mac(FAR), &[], "good");
    let head = header::encode(vni(VNI));
    let no_flag = [&[0xf7, 0, 0, 0, 0, 0, VNI as u8, 0][..], &good].concat();
    let runt = [&head[..], &good[..13]].concat();
    let bad = [&[][..], &head[..7], &head, &runt, &no_flag, &[0; 1000]];
    for bytes in bad {
        datagram(&tunnel.far, bytes, 0, 0);
    }
    // A train of which each is bad.
    datagram(&tunnel.far, &[0; 640], 64, 0);
    for number in [0, VNI + 1, 0xff_ffff] {
        tunnel.send(&tunnel.far, number, &good, 0);
    }
    let stranger = socket(&tunnel.lab, "192.0.2.3:4789");
    for _ in 0..3 {
        tunnel.send(&stranger, VNI, &good, 0);
    }
    let reserved = [&[0xff, 0xff, 0xff, 0xff, 0, 0, VNI as u8, 0xff][..], &good].concat();
    datagram(&tunnel.far, &reserved, 0, 0);
    let came = tunnel.settle("end");
    let texts: Vec<_> = came
        .iter()
        .filter_map(windlass_tests::Frame::text)
        .collect();
    assert_eq!(texts, ["good"], "the one with reserved bits");
    let state = tunnel.host.plane.vtep_states().remove(0);
    // An empty datagram is none for the kernel's train, but one for us.
    assert_eq!(
        (state.headers, state.strangers),
        (bad.len() as u64 - 1 + 10, 3)
    );
    assert_eq!(state.overlays, [tunnel.overlay]);
    assert_eq!(tunnel.dropped(Drop::VxlanSource), 3);
}

/// An open overlay takes strangers, and nobody who says to be the endpoint itself.
#[test]
fn an_open_overlay_takes_strangers() {
    let name = "an_open_overlay_takes_strangers";
    let Some(tunnel) = Tunnel::start(name, SourceCheck::Open) else {
        return;
    };
    let stranger = socket(&tunnel.lab, "192.0.2.3:0");
    tunnel.send(&stranger, VNI, &frame(ALL, mac(FAR), &[], "stranger"), 0);
    let came = tunnel.settle("end");
    assert_eq!(came.len(), 1);
    let local: SocketAddr = "192.0.2.1:0".parse().expect("an address");
    let own = tunnel
        .lab
        .within("near", || udp::open(local, false))
        .expect("a socket");
    tunnel.send(&own, VNI, &frame(ALL, mac(FAR), &[], "own"), 0);
    until("it is counted", || tunnel.dropped(Drop::VxlanSource) == 1);
    assert!(tunnel.settle("last").is_empty());
}

/// With a strict check, only sources that were entered behind the target that sends them pass, and learning moves nothing.
#[test]
fn a_strict_overlay_knows_its_sources() {
    let name = "a_strict_overlay_knows_its_sources";
    let Some(mut tunnel) = Tunnel::start(name, SourceCheck::Strict) else {
        return;
    };
    let second = tunnel.host.target(tunnel.overlay, "192.0.2.3:4789");
    let first = second - 1;
    let bridge = tunnel.host.bridge;
    let entries = vec![
        (0, word(mac(FAR)), Some(first)),
        (0, word(mac(A)), Some(first)),
    ];
    tunnel
        .host
        .plane
        .push_entries(bridge, entries)
        .expect("room");
    let other = socket(&tunnel.lab, "192.0.2.3:0");
    tunnel.send(&other, VNI, &frame(ALL, mac(FAR), &[], "forged"), 0);
    let unknown = mac("02:00:00:00:00:77");
    tunnel.send(&tunnel.far, VNI, &frame(ALL, unknown, &[], "unknown"), 0);
    // A guest's own address is not taken from it.
    tunnel.send(&tunnel.far, VNI, &frame(ALL, mac(A), &[], "guest"), 0);
    assert!(tunnel.settle("end").is_empty());
    until("they are counted", || tunnel.dropped(Drop::Locked) == 3);
    let entries = vec![(0, word(mac(FAR)), None)];
    tunnel
        .host
        .plane
        .push_entries(bridge, entries)
        .expect("it goes");
    tunnel.send(&tunnel.far, VNI, &frame(ALL, mac(FAR), &[], "gone"), 0);
    until("it is counted", || tunnel.dropped(Drop::Locked) == 4);
}

/// All sixteen pairs of inner and outer ECN on the way in, over both versions of IP, beside a frame that is not IP.
#[test]
fn congestion_is_told_inwards() {
    let name = "congestion_is_told_inwards";
    let Some(tunnel) = Tunnel::start(name, SourceCheck::Vtep) else {
        return;
    };
    let mut dropped = 0;
    for is_v4 in [true, false] {
        for inner in 0..4u8 {
            for outer in 0..4u8 {
                let bytes = packet(is_v4, (mac(A), mac(FAR)), 0x48 | inner, &[outer; 40]);
                tunnel.send(&tunnel.far, VNI, &bytes, 0x20 | outer);
                let expected = windlass_overlay::ecn::leave(outer, inner);
                dropped += u64::from(expected.is_none());
                let mut wanted = bytes.clone();
                set_tos(&mut wanted, is_v4, 0x48 | expected.unwrap_or(inner));
                tunnel.send(&tunnel.far, VNI, &frame(ALL, mac(FAR), &[], "next"), 3);
                let mut came = Vec::new();
                until("the next one comes", || {
                    let next = tunnel.guest.receive();
                    let is_next = next.as_ref().is_some_and(|f| f.text().is_some());
                    let is_ours = |f: &windlass_tests::Frame| f.0[6..12] == mac(FAR);
                    came.extend(next.filter(|f| f.text().is_none() && is_ours(f)));
                    is_next
                });
                let came: Vec<_> = came.into_iter().map(|frame| frame.0).collect();
                let wanted: Vec<_> = expected.map(|_| wanted).into_iter().collect();
                assert_eq!(came, wanted, "{is_v4}, {inner} in {outer}");
            }
        }
    }
    assert_eq!(dropped, 2);
    assert_eq!(tunnel.dropped(Drop::Ecn), 2);
}

/// The outer header of what leaves: TTL, TOS and ECN after the inner packet, DF, a port of our range, a checksum.
#[test]
fn outer_headers_are_right() {
    let Some(tunnel) = Tunnel::start("outer_headers_are_right", SourceCheck::Vtep) else {
        return;
    };
    let under = Wire::open(&tunnel.lab, "far", "to-near");
    for (inner, outer) in [(0, 0), (1, 1), (2, 2), (3, 2)] {
        for is_v4 in [true, false] {
            let bytes = packet(is_v4, (mac(FAR), mac(A)), 0xb8 | inner, &[inner; 40]);
            tunnel.guest.send(&bytes);
            let found = windlass_tests::until_some("a datagram comes", || {
                under
                    .receive()
                    .filter(|f| f.0.len() > 50 && f.0.ends_with(&bytes))
            });
            let packet = &found.0[14..];
            assert_eq!(packet[1], 0xb8 | outer, "TOS");
            assert_eq!(
                (packet[6], packet[8], packet[9]),
                (0x40, 64, 17),
                "DF, TTL, UDP"
            );
            let port = u16::from_be_bytes([packet[20], packet[21]]);
            assert!((49_152..49_168).contains(&port), "{port}");
            assert_eq!(packet[22..24], 4789_u16.to_be_bytes());
            assert_ne!(packet[26..28], [0, 0], "a checksum");
            assert_eq!(packet[28..36], header::encode(vni(VNI)));
        }
    }
    // What is not IP has no TOS to inherit.
    let other = frame(mac(FAR), mac(A), &[], "other");
    tunnel.guest.send(&other);
    let found = windlass_tests::until_some("a datagram comes", || {
        under.receive().filter(|f| f.0.ends_with(&other))
    });
    assert_eq!(found.0[15], 0);
}

/// Trains are taken apart as they were made: all frames come, in their order, whole, whatever their length; a tunnel in the
/// tunnel, tags and giants are frames like others.
#[test]
fn trains_come_whole() {
    let Some(tunnel) = Tunnel::start("trains_come_whole", SourceCheck::Vtep) else {
        return;
    };
    let head = header::encode(vni(VNI));
    for len in [60, 61, 127, 128, 129, 700, 1400] {
        let mut bytes = Vec::new();
        for number in 0..40 {
            let mut one = frame(ALL, mac(FAR), &[], &format!("{len} {number}"));
            one.resize(len, 0);
            one[len - 1] = number;
            bytes.extend_from_slice(&head);
            bytes.extend_from_slice(&one);
        }
        let segment = 8 + len as u16;
        let most = 65_000 / usize::from(segment) * usize::from(segment);
        for part in bytes.chunks(most) {
            datagram(&tunnel.far, part, segment, 0);
        }
        let came = tunnel.settle("end");
        let texts: Vec<_> = came.iter().map(|f| (f.0.len(), f.0[len - 1])).collect();
        let wanted: Vec<_> = (0..40).map(|number| (len, number)).collect();
        assert_eq!(texts, wanted, "{len}");
    }
    let tags = [windlass_tests::vlan_tag(5), windlass_tests::vlan_tag(6)];
    tunnel.send(&tunnel.far, VNI, &frame(ALL, mac(FAR), &tags, "tags"), 0);
    let inner = frame(ALL, mac(FAR), &[], "inner");
    let nested = packet(true, (mac(A), mac(FAR)), 0, &[&head[..], &inner].concat());
    tunnel.send(&tunnel.far, VNI, &nested, 3);
    assert_eq!(tunnel.settle("last").len(), 1);
}

/// A frame that is longer than the path is dropped as too-big, whoever sent it, and the endpoint says how long it may be;
/// where there is no way, it says that, and when there is one again, frames go.
#[test]
fn the_path_is_told() {
    let Some(mut tunnel) = Tunnel::start("the_path_is_told", SourceCheck::Vtep) else {
        return;
    };
    let place = tunnel.host.target(tunnel.overlay, "192.0.2.3:4789");
    let _there = socket(&tunnel.lab, "192.0.2.3:4789");
    let far = mac("02:00:00:00:00:1f");
    let entry = vec![(0, word(far), Some(place))];
    tunnel
        .host
        .plane
        .push_entries(tunnel.host.bridge, entry)
        .expect("room");
    tunnel.lab.ip("near", "link set to-far mtu 1400");
    let long = packet(true, (far, mac(A)), 0, &[1; 1400]);
    let short = packet(true, (far, mac(A)), 0, &[1; 1000]);
    tunnel.guest.send(&short);
    tunnel.guest.send(&long);
    tunnel.guest.send(&short);
    until("it is counted", || {
        tunnel.dropped(Drop::TooBig) == 1 && tunnel.host.plane.target_totals(place).tx_frames == 2
    });
    let troubles = tunnel.host.plane.vtep_states().remove(0).troubles;
    assert_eq!(
        troubles,
        ["192.0.2.3: the path takes packets of 1400 bytes"]
    );
    let elsewhere = target("198.51.100.1:4789");
    tunnel
        .host
        .plane
        .set_target(place, elsewhere)
        .expect("a target");
    tunnel.guest.send(&short);
    until("it is counted", || {
        tunnel.dropped(Drop::UnderlayUnreachable) == 1
    });
    let troubles = tunnel.host.plane.vtep_states().remove(0).troubles;
    let told = troubles
        .iter()
        .any(|t| t.starts_with("198.51.100.1: Network is unreachable"));
    assert!(told, "{troubles:?}");
    tunnel
        .lab
        .ip("near", "route add 198.51.100.0/24 via 192.0.2.2");
    tunnel.guest.send(&short);
    until("it goes", || {
        tunnel.host.plane.target_totals(place).tx_frames == 3
    });
}

/// What the kernel has no room for is dropped as underlay-full, and no frame is lost without a reason.
#[test]
fn a_full_link_is_counted() {
    const FRAMES: u64 = 300;
    let name = "a_full_link_is_counted";
    let Some(tunnel) = Tunnel::start(name, SourceCheck::Vtep) else {
        return;
    };
    let tc = |words: &str| {
        let mut tc = tunnel.lab.command("near", "tc");
        tc.args(words.split(' '));
        assert_eq!(run(&mut tc).code, 0, "{words}");
    };
    let sent = |tunnel: &Tunnel| {
        let totals = tunnel.host.plane.totals(tunnel.overlay);
        totals.expect("an overlay").egress.frames
    };
    let before = sent(&tunnel);
    tc("qdisc add dev to-far root tbf rate 8kbit burst 2000 limit 2000");
    let long = packet(true, (mac(FAR), mac(A)), 0, &[0; 500]);
    (0..FRAMES).for_each(|_| tunnel.guest.send(&long));
    until("all are counted", || {
        sent(&tunnel) - before + tunnel.dropped(Drop::UnderlayFull) >= FRAMES
    });
    assert!(tunnel.dropped(Drop::UnderlayFull) > 0);
    tc("qdisc del dev to-far root");
    let far = UdpSocket::from(tunnel.far.try_clone().expect("a descriptor"));
    until("frames pass again", || {
        tunnel.guest.send(&frame(mac(FAR), mac(A), &[], "again"));
        let mut bytes = [0; 2000];
        let came = std::iter::from_fn(|| far.recv(&mut bytes).ok());
        came.into_iter().any(|len| len < 500)
    });
}

/// Two workers send from ports of their own, and both receive: what comes from many ports arrives, each frame once.
#[test]
fn workers_have_lanes() {
    let Some(lab) = Lab::start("workers_have_lanes") else {
        return;
    };
    for short in ["near", "far", "one", "two"] {
        lab.namespace(short);
    }
    join(&lab, ("near", "192.0.2.1/24"), ("far", "192.0.2.2/24"));
    let mut host = Host::start_with(BridgeTuning::default(), 2);
    let own = [[2, 0, 0, 0, 0, 0x0a], [2, 0, 0, 0, 0, 0x0b]];
    for (short, own) in ["one", "two"].into_iter().zip(own) {
        host.tap(&lab, short, own, "10.0.0.1/24", MTU);
    }
    let overlay = host.overlay(&lab, "near", "192.0.2.1:4789", |_| {});
    host.target(overlay, "192.0.2.2:4789");
    let far = UdpSocket::from(socket(&lab, "192.0.2.2:4789"));
    let guests = ["one", "two"].map(|short| Wire::open(&lab, short, "t0"));
    let mut ports = BTreeSet::new();
    until("both lanes send", || {
        for (guest, from) in guests.iter().zip(own) {
            guest.send(&frame(mac(FAR), from, &[], "out"));
        }
        while let Ok((_, from)) = far.recv_from(&mut [0; 2000]) {
            ports.insert(from.port());
        }
        let lane = |port: u16| ports.range(port..port + 16).next().is_some();
        lane(49_152) && lane(49_168)
    });
    let head = header::encode(vni(VNI));
    for n in 0..64 {
        let text = format!("number {n}");
        let bytes = [&head[..], &frame(own[0], mac(FAR), &[], &text)].concat();
        datagram(&socket(&lab, "192.0.2.2:0"), &bytes, 0, 0);
    }
    let mut came = Vec::new();
    until("all have come", || {
        let frames = std::iter::from_fn(|| guests[0].receive());
        let texts = frames.filter_map(|frame| frame.text());
        came.extend(texts.filter(|text| text.starts_with("number")));
        came.len() >= 64
    });
    came.sort();
    came.dedup();
    assert_eq!(came.len(), 64, "one came twice");
}

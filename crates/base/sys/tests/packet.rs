//! Packet sockets, and the shield at tc ingress, against the kernel.

#![allow(clippy::unwrap_used)]

mod lab;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use lab::{Lab, arp_request, can_run, is_arp_reply, readable};
use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, recvfrom};
use windlass_sys::bpf::Program;
use windlass_sys::netlink::Netlink;
use windlass_sys::packet::{Fanout, FanoutMode, PacketOptions, PacketSocket, Received, VlanTag};
use windlass_sys::{Errno, IoSlice, IoSliceMut};

const NEAR_MAC: [u8; 6] = [2, 0, 0, 0, 8, 1];
const FAR_MAC: [u8; 6] = [2, 0, 0, 0, 8, 2];
const NEAR_IP: [u8; 4] = [10, 8, 0, 1];
const FAR_IP: [u8; 4] = [10, 8, 0, 2];

/// Two namespaces with a veth pair between them, up, each side with an address.
struct Pair {
    near: Lab,
    far: Lab,
    near_index: u32,
    far_index: u32,
    far_netlink: Netlink,
}

impl Pair {
    fn create(tag: &str) -> Self {
        let near = Lab::create(&format!("{tag}-near"));
        let far = Lab::create(&format!("{tag}-far"));
        let mut near_netlink = Netlink::open_in(&near.namespace).unwrap();
        let mut far_netlink = Netlink::open_in(&far.namespace).unwrap();
        near_netlink
            .create_veth("near", "far", Some(&far.namespace))
            .unwrap();
        let near_index = side(&mut near_netlink, "near", NEAR_MAC, NEAR_IP);
        let far_index = side(&mut far_netlink, "far", FAR_MAC, FAR_IP);
        let pair = Self {
            near,
            far,
            near_index,
            far_index,
            far_netlink,
        };
        pair.wait_for_carrier();
        pair
    }

    /// The kernel drops what is sent until its link watch has seen the carrier.
    fn wait_for_carrier(&self) {
        let (near, far) = (self.near_socket(bare()), self.far_socket(bare()));
        for (from, to) in [(&near, &far), (&far, &near)] {
            let mut probe = vec![0xff; 12];
            probe.extend([0x88, 0xb6]);
            probe.resize(60, 0);
            let mut tries = 0;
            loop {
                let _ = send(from, &probe);
                std::thread::sleep(Duration::from_millis(5));
                if std::iter::from_fn(|| read(to).ok()).any(|(_, frame)| frame == probe) {
                    break;
                }
                tries += 1;
                assert!(tries < 1000, "the pair carries nothing");
            }
        }
    }

    fn near_socket(&self, options: PacketOptions) -> PacketSocket {
        self.near
            .within(|| PacketSocket::open(self.near_index, &options))
            .unwrap()
    }

    fn far_socket(&self, options: PacketOptions) -> PacketSocket {
        self.far
            .within(|| PacketSocket::open(self.far_index, &options))
            .unwrap()
    }
}

fn side(netlink: &mut Netlink, name: &str, mac: [u8; 6], ip: [u8; 4]) -> u32 {
    let index = netlink.link_by_name(name).unwrap().unwrap().index;
    netlink.set_link_mac(index, mac).unwrap();
    netlink.add_address(index, IpAddr::from(ip), 24).unwrap();
    netlink.set_link_up(index, true).unwrap();
    index
}

/// A socket that sends bare frames.
fn bare() -> PacketOptions {
    PacketOptions {
        vnet_header: false,
        ..PacketOptions::default()
    }
}

fn read(socket: &PacketSocket) -> Result<(Received, Vec<u8>), Errno> {
    let mut space = vec![0; 66_000];
    let received = socket.read_frame(&mut [IoSliceMut::new(&mut space)])?;
    space.truncate(received.bytes);
    Ok((received, space))
}

/// The first frame that `wanted` accepts; `None` if none arrives for two seconds.
fn find(
    socket: &PacketSocket,
    wanted: impl Fn(&Received, &[u8]) -> bool,
) -> Option<(Received, Vec<u8>)> {
    while readable(socket) {
        while let Ok((received, frame)) = read(socket) {
            if wanted(&received, &frame) {
                return Some((received, frame));
            }
        }
    }
    None
}

fn send(socket: &PacketSocket, frame: &[u8]) -> Result<usize, Errno> {
    socket.write_frame(&[IoSlice::new(frame)])
}

/// A tag that the kernel takes out of a frame comes back beside it, with its own protocol, and an
/// untagged frame has none.
#[test]
fn stripped_tag_comes_beside_the_frame() {
    if !can_run("stripped_tag_comes_beside_the_frame") {
        return;
    }
    let pair = Pair::create("vlan");
    let (sender, receiver) = (
        pair.near_socket(bare()),
        pair.far_socket(Default::default()),
    );
    assert_eq!((sender.header_bytes(), receiver.header_bytes()), (0, 12));
    for (tpid, tci) in [(0x8100, 0x6064), (0x88a8, 0x0fff)] {
        let mut frame = [FAR_MAC, NEAR_MAC].concat();
        frame.extend([tpid, tci, 0x88b5_u16].map(u16::to_be_bytes).as_flattened());
        frame.extend([0x5a; 50]);
        send(&sender, &frame).unwrap();
        let tagged = |received: &Received, _: &[u8]| received.vlan.is_some();
        let (received, got) = find(&receiver, tagged).unwrap();
        assert_eq!(received.vlan, Some(VlanTag { tpid, tci }));
        assert!(!received.truncated);
        let mut restored = got[12..24].to_vec();
        restored.extend([tpid, tci].map(u16::to_be_bytes).as_flattened());
        restored.extend(&got[24..]);
        assert_eq!(restored, frame);
    }
    let mut plain = [FAR_MAC, NEAR_MAC].concat();
    plain.extend([0x88, 0xb6]);
    plain.extend([1; 46]);
    send(&sender, &plain).unwrap();
    let untagged = |_: &Received, frame: &[u8]| frame.ends_with(&plain);
    assert_eq!(find(&receiver, untagged).unwrap().0.vlan, None);
}

/// The drop at tc ingress keeps the host's stack from answering, while a packet socket goes on
/// seeing every frame; without it the stack answers again.
#[test]
fn drop_at_ingress_shields_the_stack_alone() {
    if !can_run("drop_at_ingress_shields_the_stack_alone") {
        return;
    }
    let mut pair = Pair::create("shield");
    let (asker, watcher) = (pair.near_socket(bare()), pair.far_socket(bare()));
    let request = arp_request(NEAR_MAC, NEAR_IP, FAR_IP);
    let reply = |_: &Received, frame: &[u8]| is_arp_reply(frame, FAR_IP);
    let asked = |_: &Received, frame: &[u8]| frame == request;

    send(&asker, &request).unwrap();
    assert!(find(&watcher, asked).is_some());
    assert!(
        find(&asker, reply).is_some(),
        "the stack answers without a shield"
    );

    pair.far_netlink.add_clsact(pair.far_index).unwrap();
    let program = Program::drop_all_ingress().unwrap();
    pair.far_netlink
        .attach_ingress(pair.far_index, 1, "windlass", &program)
        .unwrap();
    drop(program);
    for _ in 0..10 {
        send(&asker, &request).unwrap();
        assert!(find(&watcher, asked).is_some(), "the packet socket sees it");
    }
    assert!(find(&asker, reply).is_none(), "the stack does not");

    pair.far_netlink.detach_ingress(pair.far_index, 1).unwrap();
    send(&asker, &request).unwrap();
    assert!(find(&asker, reply).is_some(), "the stack answers again");
}

/// What a socket sends does not come back to it, and does come back if asked for.
#[test]
fn outgoing_frames_are_ignored_if_asked() {
    if !can_run("outgoing_frames_are_ignored_if_asked") {
        return;
    }
    let pair = Pair::create("out");
    let deaf = pair.near_socket(bare());
    let nosy = pair.near_socket(PacketOptions {
        ignore_outgoing: false,
        ..bare()
    });
    let sender = pair.near_socket(bare());
    let frame = arp_request(NEAR_MAC, NEAR_IP, [10, 8, 0, 99]);
    let same = |_: &Received, seen: &[u8]| seen == frame;
    send(&sender, &frame).unwrap();
    assert!(find(&nosy, same).is_some());
    while let Ok((_, seen)) = read(&deaf) {
        assert_ne!(seen, frame);
    }
    while let Ok((_, seen)) = read(&sender) {
        assert_ne!(seen, frame);
    }
}

/// The header tells of segments to be cut and checksums to be filled, as a kernel stack sent
/// them, and large segments come whole.
#[test]
fn header_tells_of_offloads() {
    if !can_run("header_tells_of_offloads") {
        return;
    }
    const NEEDS_CSUM: u8 = 1;
    const GSO_TCPV4: u8 = 1;
    let pair = Pair::create("gso");
    let socket = pair.far_socket(PacketOptions {
        receive_bytes: Some(8 << 20),
        ..Default::default()
    });
    let listener = pair
        .far
        .within(|| TcpListener::bind((IpAddr::from(FAR_IP), 7000)))
        .unwrap();
    let server = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        listener
            .accept()
            .unwrap()
            .0
            .read_to_end(&mut bytes)
            .unwrap();
        bytes.len()
    });
    let mut client = pair
        .near
        .within(|| TcpStream::connect((IpAddr::from(FAR_IP), 7000)))
        .unwrap();
    client.write_all(&vec![7; 1 << 20]).unwrap();
    drop(client);
    assert_eq!(server.join().unwrap(), 1 << 20);
    let (_, frame) = find(&socket, |_, frame| frame.len() > 12 + 1514).unwrap();
    assert_eq!(
        (frame[0] & NEEDS_CSUM, frame[1] & 0x7f),
        (NEEDS_CSUM, GSO_TCPV4)
    );
    let gso_size = u16::from_le_bytes([frame[4], frame[5]]);
    let csum_start = u16::from_le_bytes([frame[6], frame[7]]);
    assert!((500..=1460).contains(&gso_size), "{gso_size}");
    assert_eq!(csum_start, 34);
}

/// A frame sent with a checksum that is still to be filled arrives with the right one: the far
/// stack, which checks it once it has crossed a kernel that believes the header, takes it.
#[test]
fn header_asks_for_a_checksum() {
    if !can_run("header_asks_for_a_checksum") {
        return;
    }
    let pair = Pair::create("csum");
    let socket = pair.near_socket(PacketOptions::default());
    let server = pair
        .far
        .within(|| UdpSocket::bind((IpAddr::from(FAR_IP), 7001)))
        .unwrap();
    server
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    let payload = b"finished by the kernel";
    let mut header = [0; 12];
    header[0] = 1; // NEEDS_CSUM
    header[6..10].copy_from_slice([34_u16, 6].map(u16::to_le_bytes).as_flattened());
    let frame = udp_frame(payload);
    socket
        .write_frame(&[IoSlice::new(&header), IoSlice::new(&frame)])
        .unwrap();
    let mut space = [0; 64];
    // A process that is stopped and continued meanwhile waits anew.
    let receive = || recvfrom(&server, &mut space, RecvFlags::empty());
    let (bytes, _, from) = retry_on_intr(receive).unwrap();
    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
    assert_eq!(&space[..bytes], payload);
    assert_eq!(from.unwrap().port(), 7002);

    header[6] = 200; // outside the frame
    let refused = socket.write_frame(&[IoSlice::new(&header), IoSlice::new(&frame)]);
    assert_eq!(refused, Err(Errno::INVAL));
}

/// A datagram from port 7002 of the near side to port 7001 of the far one, whose checksum field
/// holds the sum of the pseudo-header, as one whose checksum is still to be filled has.
fn udp_frame(payload: &[u8]) -> Vec<u8> {
    let udp_len = (8 + payload.len()) as u16;
    let mut ip = vec![0x45, 0];
    ip.extend((20 + udp_len).to_be_bytes());
    ip.extend([0, 1, 0, 0, 64, 17, 0, 0]);
    ip.extend([NEAR_IP, FAR_IP].as_flattened());
    let ip_sum = !ones_complement(&ip);
    ip[10..12].copy_from_slice(&ip_sum.to_be_bytes());
    let mut pseudo = [NEAR_IP, FAR_IP].concat();
    pseudo.extend([17, udp_len].map(u16::to_be_bytes).as_flattened());
    let mut frame = [FAR_MAC, NEAR_MAC].concat();
    frame.extend([8, 0]);
    frame.extend(ip);
    let words = [7002, 7001, udp_len, ones_complement(&pseudo)];
    frame.extend(words.map(u16::to_be_bytes).as_flattened());
    frame.extend(payload);
    frame
}

/// The ones' complement sum of RFC 1071, for an even number of bytes.
fn ones_complement(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

/// Two sockets of one group share an interface's frames: each frame goes to one of them, all
/// frames of a flow to the same, and none that goes out, whatever the group's own hook would do.
#[test]
fn fanout_shares_frames() {
    if !can_run("fanout_shares_frames") {
        return;
    }
    let pair = Pair::create("fan");
    let fanout = Fanout {
        group: 77,
        mode: FanoutMode::Flow,
        rollover: false,
    };
    let shared = PacketOptions {
        fanout: Some(fanout),
        ..bare()
    };
    let sockets = [pair.far_socket(shared), pair.far_socket(shared)];
    let (near, far) = (pair.near_socket(bare()), pair.far_socket(bare()));
    let incoming = udp_frame(b"one flow");
    let outgoing = arp_request(FAR_MAC, FAR_IP, [10, 8, 0, 99]);
    for _ in 0..20 {
        send(&far, &outgoing).unwrap();
        send(&near, &incoming).unwrap();
        assert!(find(&far, |_, frame| frame == incoming).is_some());
    }
    let mut counts = sockets.each_ref().map(|socket| {
        let frames = std::iter::from_fn(|| read(socket).ok()).map(|(_, frame)| frame);
        let frames: Vec<_> = frames.collect();
        assert!(
            frames.iter().all(|frame| frame[6..12] != FAR_MAC),
            "outgoing"
        );
        frames.iter().filter(|frame| **frame == incoming).count()
    });
    counts.sort_unstable();
    assert_eq!(counts, [0, 20]);
}

/// Frames that a full buffer could not take are counted, once.
#[test]
fn drops_are_counted_once() {
    if !can_run("drops_are_counted_once") {
        return;
    }
    let pair = Pair::create("drops");
    let sender = pair.near_socket(bare());
    let slow = pair.far_socket(PacketOptions {
        receive_bytes: Some(4096),
        ..bare()
    });
    slow.take_statistics().unwrap();
    let mut frame = [FAR_MAC, NEAR_MAC].concat();
    frame.extend([0x88, 0xb5]);
    frame.resize(1000, 0);
    for _ in 0..500 {
        send(&sender, &frame).unwrap();
    }
    let counted = slow.take_statistics().unwrap();
    assert!(counted.frames >= 500 && counted.drops >= 400, "{counted:?}");
    assert_eq!(slow.take_statistics().unwrap().drops, 0);
}

/// A frame larger than the space is cut, and says so; an interface that vanishes is an error
/// and not silence.
#[test]
fn cut_frames_and_vanished_interfaces_are_told() {
    if !can_run("cut_frames_and_vanished_interfaces_are_told") {
        return;
    }
    let mut pair = Pair::create("gone");
    let (sender, receiver) = (pair.near_socket(bare()), pair.far_socket(bare()));
    let frame = arp_request(NEAR_MAC, NEAR_IP, FAR_IP);
    send(&sender, &frame).unwrap();
    assert!(readable(&receiver));
    let mut small = [0; 20];
    let received = receiver
        .read_frame(&mut [IoSliceMut::new(&mut small)])
        .unwrap();
    assert!(received.truncated && received.bytes == 20);

    while read(&sender).is_ok() {}
    pair.far_netlink.delete_link(pair.far_index).unwrap();
    assert!(readable(&sender));
    assert_eq!(read(&sender).unwrap_err(), Errno::NETDOWN);
    assert!(matches!(
        send(&sender, &frame),
        Err(Errno::NXIO | Errno::NODEV | Errno::NETDOWN)
    ));
    let index = pair.far_index;
    let reopened = pair.far.within(|| PacketSocket::open(index, &bare()));
    assert_eq!(reopened.unwrap_err().errno, Errno::NODEV);
}

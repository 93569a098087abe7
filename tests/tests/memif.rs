//! A TAP, whose kernel leaves checksums and segmentation to others, and a memif peer, which takes neither:
//! windlass finishes both in between. The peer is a TCP/IP stack of another make (smoltcp), which drops
//! what has a wrong checksum.

mod peer;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use peer::Peer;
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};
use windlass_tests::{Lab, mac, uninterrupted, until};

const PEER: &str = "02:00:00:00:00:0b";
/// Bytes sent each way.
const BYTES: usize = 4 << 20;

/// The byte at a place of the stream.
fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 13) as u8
}

struct Came(Vec<u8>);
struct Goes<'a>(&'a mut Peer);

impl RxToken for Came {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, work: F) -> R {
        work(&self.0)
    }
}

impl TxToken for Goes<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, work: F) -> R {
        let mut frame = vec![0; len];
        let result = work(&mut frame);
        self.0.give(&frame);
        result
    }
}

impl Device for Peer {
    type RxToken<'a> = Came;
    type TxToken<'a> = Goes<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Came, Goes<'_>)> {
        if self.waiting.is_empty() {
            self.take(0);
        }
        let frame = self.waiting.pop_front()?;
        Some((Came(frame), Goes(self)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Goes<'_>> {
        Some(Goes(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

/// The peer's stack: takes [`BYTES`] over TCP and sends as many back, and echoes datagrams meanwhile.
/// Ends when `done` says so.
fn serve(peer: &mut Peer, done: impl Fn() -> bool) {
    let address = EthernetAddress(mac(PEER));
    let mut interface = Interface::new(Config::new(address.into()), peer, Instant::now());
    interface.update_ip_addrs(|addresses| {
        addresses
            .push(IpCidr::new(IpAddress::v4(10, 1, 0, 2), 24))
            .expect("room");
    });
    let buffer = || tcp::SocketBuffer::new(vec![0; 1 << 18]);
    let mut stream = tcp::Socket::new(buffer(), buffer());
    stream.listen(7000).expect("a port");
    let packets =
        || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 64], vec![0; 64 << 10]);
    let mut datagrams = udp::Socket::new(packets(), packets());
    datagrams.bind(7001).expect("a port");
    let mut sockets = SocketSet::new(Vec::new());
    let (stream, datagrams) = (sockets.add(stream), sockets.add(datagrams));
    let (mut received, mut sent) = (0, 0);
    let begun = std::time::Instant::now();
    while !done() {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "{received} bytes received, {sent} sent"
        );
        interface.poll(Instant::now(), peer, &mut sockets);
        let socket = sockets.get_mut::<udp::Socket<'_>>(datagrams);
        while let Ok((data, from)) = socket.recv().map(|(data, from)| (data.to_vec(), from)) {
            socket.send_slice(&data, from.endpoint).expect("echoed");
        }
        let socket = sockets.get_mut::<tcp::Socket<'_>>(stream);
        while socket.can_recv() {
            let got = socket
                .recv(|data| (data.len(), data.to_vec()))
                .expect("data");
            for byte in got {
                assert_eq!(byte, pattern(received), "byte {received}");
                received += 1;
            }
        }
        while received == BYTES && sent < BYTES && socket.can_send() {
            sent += socket
                .send(|space| {
                    let n = space.len().min(BYTES - sent);
                    for (i, byte) in space[..n].iter_mut().enumerate() {
                        *byte = pattern(sent + i);
                    }
                    (n, n)
                })
                .expect("room");
        }
    }
    assert_eq!((received, sent), (BYTES, BYTES));
}

/// What the guest does: TCP both ways, then datagrams that come back.
fn guest(lab: &Lab) {
    let timeout = Some(Duration::from_secs(20));
    let mut stream = lab.within("a", || {
        let peer = "10.1.0.2:7000".parse().expect("an address");
        TcpStream::connect_timeout(&peer, Duration::from_secs(5)).expect("connected")
    });
    stream.set_read_timeout(timeout).expect("a socket");
    stream.set_write_timeout(timeout).expect("a socket");
    let bytes: Vec<u8> = (0..BYTES).map(pattern).collect();
    stream.write_all(&bytes).expect("sent");
    let mut back = vec![0; BYTES];
    stream.read_exact(&mut back).expect("received");
    assert!(back == bytes, "what came back differs");
    let socket = lab.within("a", || UdpSocket::bind("10.1.0.1:0").expect("a socket"));
    socket.set_read_timeout(timeout).expect("a socket");
    socket.connect("10.1.0.2:7001").expect("an address");
    for length in [0, 1, 2, 17, 200, 201, 1471, 1472] {
        let sent = &bytes[..length];
        socket.send(sent).expect("sent");
        let mut space = [0; 2000];
        let n = uninterrupted(|| socket.recv(&mut space)).expect("an echo");
        assert_eq!(&space[..n], sent);
    }
}

/// TCP and UDP between a TAP with offloads and a peer without: the kernel's large segments arrive cut to
/// the MTU, with checksums that another stack finds right, byte for byte; and the other way round.
#[test]
fn offloads_end_at_the_peer() {
    let Some(lab) = Lab::start("offloads_end_at_the_peer") else {
        return;
    };
    lab.namespace("a");
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.tap(&lab, "a0", "a", ",address=10.1.0.1/24", "");
    let path = daemon.runtime_dir().join("peer.sock");
    daemon.must(&format!(
        "vnic create p0 --bridge br0 --mac {PEER} --attach memif,socket={},id=0,role=server",
        path.display()
    ));
    let mut peer = Peer::connect(path, 1);
    daemon.wait_for_state("vnic", "p0", "up");
    std::thread::scope(|scope| {
        let guest = scope.spawn(|| guest(&lab));
        serve(&mut peer, || guest.is_finished());
        guest.join().expect("the guest is content");
    });
    assert_eq!(peer.longest, 1514, "nothing above the MTU");
    let from_tap = daemon.counters("a0");
    let of = |name: &str| from_tap[name].as_u64().expect("a number");
    assert!(
        of("rx_bytes") / of("rx_frames") > 1600,
        "the kernel sent large segments: {from_tap}"
    );
    assert!(
        peer.frames > of("rx_frames"),
        "which arrived cut: {} frames",
        peer.frames
    );
}

/// A memif has 1 to 16 rings and more: flows come on all that there are, each on one; `rss-weights` leads them to others, and the default
/// to all again.
#[test]
fn flows_come_on_all_rings() {
    let Some(lab) = Lab::start("flows_come_on_all_rings") else {
        return;
    };
    lab.namespace("a");
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.tap(&lab, "a0", "a", ",address=10.1.0.1/24", "");
    lab.ip(
        "a",
        &format!("neigh replace 10.1.0.2 lladdr {PEER} nud permanent dev eth0"),
    );
    let socket = lab.within("a", || UdpSocket::bind("10.1.0.1:0").expect("an address"));
    for rings in [1, 16] {
        let name = format!("p{rings}");
        let path = daemon.runtime_dir().join(&name);
        daemon.must(&format!(
            "vnic create {name} --bridge br0 --mac {PEER} --attach memif,socket={},id=0,role=server,rings={rings}",
            path.display()
        ));
        let mut peer = Peer::connect(path, rings);
        daemon.wait_for_state("vnic", &name, "up");
        let mut used = || {
            for port in 7000..7400 {
                socket.send_to(&[1; 100], ("10.1.0.2", port)).expect("sent");
            }
            let (mut used, mut ports) = (BTreeMap::new(), BTreeSet::new());
            until("all have come", || {
                for ring in 0..usize::from(rings) {
                    peer.take(ring);
                    for frame in peer.waiting.drain(..) {
                        let port = u16::from_be_bytes([frame[36], frame[37]]);
                        if (7000..7400).contains(&port) && frame[12..14] == [8, 0] {
                            assert!(ports.insert(port), "{port} twice");
                            *used.entry(ring).or_insert(0) += 1;
                        }
                    }
                }
                ports.len() == 400
            });
            used
        };
        let all = used();
        assert_eq!(all.len(), usize::from(rings), "{all:?}");
        let table = || daemon.show("vnic", &name)["details"]["rss-table"].clone();
        let equal = vec![(128 / rings).to_string(); rings.into()].join(",");
        let if_several = |text: &str| (rings > 1).then(|| text.to_owned());
        assert_eq!(table().as_str().map(str::to_owned), if_several(&equal));
        daemon.must(&format!("vnic set {name} rss-weights=0,1"));
        let last = usize::from(rings > 1);
        until("all flows come on one ring", || used().keys().eq([&last]));
        assert_eq!(table().as_str().map(str::to_owned), if_several("0,128"));
        daemon.must(&format!("vnic set {name} rss-weights=equal"));
        until("all rings are used", || used().len() == usize::from(rings));
        daemon.refuses(2, &format!("vnic set {name} rss-weights=0,0"));
        daemon.must(&format!("vnic delete {name}"));
    }
}

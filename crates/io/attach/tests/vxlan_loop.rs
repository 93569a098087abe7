//! A tunnel endpoint that is its own target, over loopback: what leaves comes back, to the byte, and nothing that comes breaks it.

mod looped;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use looped::Loop;
use proptest::collection::vec;
use proptest::prelude::*;
use windlass_attach::port::More;
use windlass_attach::vxlan::{Relay, Relays, Target, TargetConf};
use windlass_frame::{BURST, Claim, Tick};
use windlass_overlay::{Vni, header};
use windlass_sys::udp;
use windlass_sys::udp::messages::{RECEIVED_MAX, Received, receive};
use windlass_wire::MacAddr;
use windlass_wire::build::{self, Ends, Link, Tcp};
use windlass_wire::checksum::{pseudo_v4, pseudo_v6};

/// A TCP segment, of which the sender has left `gso_size` and its checksum to be done.
fn segment(is_v4: bool, payload: &[u8], seq: u32, gso_size: u16) -> (Vec<u8>, Claim) {
    let link = Link {
        dst: MacAddr([2, 0, 0, 0, 0, 2]),
        src: MacAddr([2, 0, 0, 0, 0, 1]),
        tag: None,
    };
    let ends = match is_v4 {
        true => Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)),
        false => Ends::V6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST),
    };
    let tcp = Tcp {
        src: 1,
        dst: 2,
        seq,
        ack: 5,
        flags: 0x10,
        window: 9,
        options: &[],
    };
    let mut bytes = vec![0; payload.len() + 200];
    let len = build::tcp_frame(&mut bytes, &link, &ends, &tcp, payload).expect("room");
    bytes.truncate(len);
    let l4 = if is_v4 { 34 } else { 54 };
    let transport = payload.len() + 20;
    let localhost = Ipv6Addr::LOCALHOST.octets();
    let sum = match is_v4 {
        true => pseudo_v4(&[10, 0, 0, 1], &[10, 0, 0, 2], 6, transport as u16),
        false => pseudo_v6(&localhost, &localhost, 6, transport as u32),
    };
    bytes[l4 + 16..l4 + 18].copy_from_slice(&sum.partial().to_be_bytes());
    let claim = Claim {
        flags: Claim::NEEDS_CSUM,
        gso_type: match (gso_size, is_v4) {
            (0, _) => 0,
            (_, true) => Claim::GSO_TCPV4,
            (_, false) => Claim::GSO_TCPV6,
        },
        gso_size,
        csum_start: l4 as u16,
        csum_offset: 16,
    };
    (bytes, claim)
}

/// A frame that is not IP.
fn other(len: usize, fill: u8) -> (Vec<u8>, Claim) {
    let mut bytes = vec![fill; len];
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    (bytes, Claim::NONE)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Frames of all kinds come back as they were, in their order: whatever runs they left in, however they were merged.
    #[test]
    fn what_leaves_comes_back(
        kinds in vec((0..4u8, 14..1464usize, any::<u8>(), any::<bool>()), 1..150),
        gso_size in 64..1400u16,
    ) {
        let mut tunnel = Loop::start();
        let mut seq = 1;
        let frames: Vec<_> = kinds.iter().map(|(kind, len, fill, is_v4)| {
            let payload = vec![*fill; *len];
            match kind {
                0 => other(*len, *fill),
                1 => other(64, *fill),
                2 => segment(*is_v4, &payload[..*len.min(&1390)], seq, 0),
                _ => {
                    let (frame, claim) = segment(*is_v4, &payload.repeat(3), seq, gso_size);
                    seq += 3 * *len as u32;
                    (frame, claim)
                }
            }
        }).collect();
        for some in frames.chunks(20) {
            let sent = tunnel.send(some);
            let (came, _) = tunnel.receive_all(sent.len());
            prop_assert_eq!(came, sent);
        }
    }

    /// Datagrams that are changed anywhere break nothing: each becomes frames, or is counted.
    #[test]
    fn nothing_breaks_it(
        changes in vec((any::<usize>(), any::<u8>()), 0..40),
        cut in any::<usize>(),
        size in 1..1500u16,
        count in 1..20usize,
        gso_size in 64..1400u16,
    ) {
        let mut tunnel = Loop::start();
        let head = header::encode(Vni::new(9).expect("24 bits"));
        let mut train = Vec::new();
        for n in 0..count {
            let (frame, _) = segment(n % 2 == 0, &[n as u8; 700], n as u32 * 700, gso_size);
            train.extend_from_slice(&head);
            train.extend_from_slice(&frame);
        }
        for (at, by) in &changes {
            let at = at % train.len();
            train[at] ^= by;
        }
        train.truncate(cut % (train.len() + 1));
        tunnel.hear(&train, size);
    }
}

/// Inputs of the fuzz target `vxlan`.
#[test]
fn corpus_replays() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/corpus/vxlan");
    let files: Vec<_> = std::fs::read_dir(corpus).expect("the corpus").collect();
    assert!(files.len() >= 4, "only {} corpus files", files.len());
    for file in files {
        let path = file.expect("a file").path();
        looped::check(&std::fs::read(&path).expect("a file"));
    }
}

/// A large segment that was cut comes back as few frames.
#[test]
fn segments_are_merged() {
    let mut tunnel = Loop::start();
    for is_v4 in [true, false] {
        let frame = segment(is_v4, &[5; 60_000], 1, 1390);
        let sent = tunnel.send(&[frame]);
        let (came, frames) = tunnel.receive_all(sent.len());
        assert_eq!((sent.len(), came), (44, sent));
        assert_eq!(frames, 1);
    }
}

/// Source ports of the datagrams that wait.
fn sources(socket: &UdpSocket) -> BTreeSet<u16> {
    let mut sources = BTreeSet::new();
    while let Ok((_, from)) = socket.recv_from(&mut [0; 8]) {
        sources.insert(from.port());
    }
    sources
}

/// Flows leave from one port while the load is low, and from all of them when it has been high, but for those that go on sending.
#[test]
fn source_ports_follow_load() {
    let mut tunnel = Loop::start();
    let far = UdpSocket::bind("127.0.0.1:0").expect("a port");
    far.set_nonblocking(true).expect("a socket");
    let to = far.local_addr().expect("an address");
    let vni = Vni::new(9).expect("24 bits");
    tunnel.target = Target::new(tunnel.vtep.clone(), TargetConf { to, vni });
    let flows: Vec<_> = (0..BURST)
        .map(|flow| {
            let mut frame = other(64, 0);
            frame.0[11] = flow as u8;
            frame
        })
        .collect();
    let mut all = BTreeSet::new();
    for ms in 1000..=1100 {
        tunnel.now = Tick(ms * 1_000_000);
        tunnel.send(&flows);
        all.extend(sources(&far));
    }
    assert_eq!(all.len(), 1, "{all:?}");
    // More than 8 Gbit/s for 10 ms.
    let large: Vec<_> = (0..180).map(|_| other(60_000, 0)).collect();
    tunnel.send(&large);
    tunnel.now = tunnel.now.plus(9_500_000);
    tunnel.send(&flows);
    sources(&far);
    tunnel.now = tunnel.now.plus(500_000);
    tunnel.send(&flows);
    assert_eq!(sources(&far), all, "they have not been silent");
    tunnel.now = tunnel.now.plus(1_000_000);
    tunnel.send(&flows);
    let spread = sources(&far);
    assert!(spread.len() > 8, "{spread:?}");
}

/// What was received in an earlier burst does not say that nothing has come since: only a look at the socket does. A worker that
/// believed it would sleep over a datagram, of whose coming it has been told.
#[test]
fn what_came_meanwhile_is_left() {
    let mut tunnel = Loop::start();
    let near = sender(3, 9);
    let (bytes, to) = (datagram(&other(300, 7).0), tunnel.local);
    let send = |count| (0..count).all(|_| near.send_to(&bytes, to).is_ok());
    assert!(send(3));
    // A busy kernel is late.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(tunnel.burst(1), (1, More::Left));
    assert!(send(1));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(tunnel.burst(1), (1, More::Left));
    assert_eq!(tunnel.burst(1), (1, More::Left));
    assert_eq!(tunnel.burst(1), (1, More::Drained));
}

/// The endpoint that moves: the destination of every frame here.
const MOVED: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// Relays of that endpoint's datagrams.
fn relays(to: SocketAddr, until: Tick) -> Relays {
    let vni = Vni::new(9).expect("24 bits");
    Relays::from([((vni, MOVED), Relay { to, until })])
}

/// Bytes of a datagram.
fn datagram(frame: &[u8]) -> Vec<u8> {
    let head = header::encode(Vni::new(9).expect("24 bits"));
    [&head[..], frame].concat()
}

/// A socket that is told of TOS and TTL.
fn host(last: u8) -> OwnedFd {
    let local = (Ipv4Addr::new(127, 0, 0, last), 0);
    let socket = udp::open(local.into(), false).expect("a socket");
    udp::set_tos_told(&socket, false).expect("a socket");
    udp::set_hops_told(&socket, false, true).expect("a socket");
    socket
}

/// A sender with a TOS and a TTL.
fn sender(last: u8, ttl: u32) -> UdpSocket {
    let socket = host(last);
    rustix::net::sockopt::set_ip_tos(&socket, 0xb9).expect("a TOS");
    let socket = UdpSocket::from(socket);
    socket.set_ttl(ttl).expect("a TTL");
    socket
}

/// Has something come that has been sent on this host; frames of an endpoint that came meanwhile.
fn until(tunnels: &mut [&mut Loop], mut has_come: impl FnMut(&[u64], usize) -> bool) -> usize {
    let (begun, mut frames) = (Instant::now(), 0);
    loop {
        for tunnel in tunnels.iter_mut() {
            frames += tunnel.receive().1;
        }
        let relayed: Vec<_> = tunnels.iter().map(|tunnel| tunnel.vtep.relayed()).collect();
        if has_come(&relayed, frames) {
            return frames;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{relayed:?}");
    }
}

/// What comes for an endpoint that has moved goes on to its new host as it came, with a TTL one less, as long as that was said. What comes
/// from there, has no TTL left, or is for another endpoint does not.
#[test]
fn what_has_moved_is_sent_on() {
    let mut tunnel = Loop::start();
    let far = host(2);
    let to = rustix::net::getsockname(&far).expect("a name");
    let to = SocketAddr::try_from(to).expect("an address");
    tunnel
        .vtep
        .set_relays(relays(to, Tick(100)))
        .expect("relays");
    tunnel.now = Tick(99);
    let bytes = datagram(&other(300, 7).0);
    let near = sender(3, 9);
    near.send_to(&bytes, tunnel.local).expect("sent");
    assert_eq!(until(&mut [&mut tunnel], |relayed, _| relayed == [1]), 0);
    let (mut space, mut got) = (vec![0; RECEIVED_MAX * 1000], [None; RECEIVED_MAX]);
    until(&mut [&mut tunnel], |_, _| {
        receive(&far, &mut space, 1000, &mut got) == Ok(1)
    });
    let came: Received = got[0].expect("a datagram");
    assert_eq!(&space[..came.len], &bytes);
    assert_eq!((came.tos, came.hops), (0xb9, Some(8)));
    assert_eq!(came.from.ip(), tunnel.local.ip());

    let mut frame = |socket: &UdpSocket, bytes: &[u8], now| {
        tunnel.now = Tick(now);
        socket.send_to(bytes, tunnel.local).expect("sent");
        until(&mut [&mut tunnel], |relayed, frames| {
            relayed == [1] && frames == 1
        });
    };
    frame(&sender(3, 1), &bytes, 99);
    frame(&sender(2, 9), &bytes, 99);
    frame(&near, &bytes, 100);
    let mut another = bytes.clone();
    another[header::BYTES + 5] = 3;
    frame(&near, &another, 99);
    tunnel.vtep.set_relays(Relays::new()).expect("none");
    assert!(!tunnel.vtep.is_relaying());
}

/// Hosts that take each other for the new one end a datagram: two do not send it back, and in a ring of three its TTL ends.
#[test]
fn stale_tables_make_no_loop() {
    for (hosts, relayed) in [(2, 1), (3, 19)] {
        let mut ring: Vec<Loop> = (1..=hosts).map(Loop::at).collect();
        let locals: Vec<_> = ring.iter().map(|tunnel| tunnel.local).collect();
        let next = locals.iter().cycle().skip(1);
        for (tunnel, next) in ring.iter().zip(next) {
            let relays = relays(*next, Tick(100));
            tunnel.vtep.set_relays(relays).expect("relays");
        }
        let bytes = datagram(&other(300, 7).0);
        sender(4, 20).send_to(&bytes, locals[0]).expect("sent");
        let mut ring: Vec<_> = ring.iter_mut().collect();
        until(&mut ring, |_, frames| frames == 1);
        let all: u64 = ring.iter().map(|tunnel| tunnel.vtep.relayed()).sum();
        assert_eq!(all, relayed, "{hosts} hosts");
    }
}

/// From now on, sendmmsg(2) of one message fails in this thread as where a kernel cannot cut the run in it.
fn refuse_runs() {
    let word = |code, k, jf| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    let (load, is, end) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET | libc::BPF_K,
    );
    // Of `struct seccomp_data` (linux/seccomp.h): the call's number, and its third argument.
    let mut filter = [
        word(load, 0, 0),
        word(is, libc::SYS_sendmmsg as u32, 3),
        word(load, 32, 0),
        word(is, 1, 1),
        word(end, libc::SECCOMP_RET_ERRNO | libc::EIO as u32, 0),
        word(end, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: no memory is passed.
    let done = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(done, 0);
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the program and its instructions outlive the call, which copies them.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
    assert_eq!(done, 0);
}

/// A kernel that cannot cut a run of datagrams for the device is given them one by one, for a while. None is lost.
#[test]
fn what_is_not_cut_is_sent_one_by_one() {
    let sent = std::thread::spawn(|| {
        let mut tunnel = Loop::start();
        refuse_runs();
        assert!(!tunnel.vtep.is_uncut(tunnel.now));
        let sent = tunnel.send(&vec![other(300, 7); 20]);
        let (came, _) = tunnel.receive_all(sent.len());
        assert_eq!(came, sent);
        assert!(tunnel.vtep.is_uncut(tunnel.now));
        assert!(!tunnel.vtep.is_uncut(tunnel.now.plus(10_000_000_000)));
    });
    sent.join().expect("all came");
}

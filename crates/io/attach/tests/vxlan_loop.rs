//! A tunnel endpoint that is its own target, over loopback: what leaves comes back, to the byte, and nothing that comes breaks it.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use windlass_attach::port::{Lane, Limit, More, RxPort, TxCaps, TxPort};
use windlass_attach::soft;
use windlass_attach::vxlan::{Network, PORTS_MAX, Tables, Target, TargetConf, Tos, Vtep, VtepConf};
use windlass_frame::{BURST, Claim, HEADROOM, Heads, Pick, RxId, SNAP, Tick, Verdict};
use windlass_overlay::{Vni, header};
use windlass_shm::{Foreign, SegStore, Tails};
use windlass_sync::qsbr::{Domain, Worker};
use windlass_wire::MacAddr;
use windlass_wire::build::{self, Ends, Link, Tcp};
use windlass_wire::checksum::{pseudo_v4, pseudo_v6};

const OVERLAY: u16 = 7;
const PLACE: u16 = 4096;
const MTU: u16 = 1450;

/// The endpoint, its receive half, and the worker that has them.
struct Loop {
    target: Target,
    rx: Box<dyn RxPort>,
    vtep: Arc<Vtep>,
    local: SocketAddr,
    now: Tick,
    worker: Worker,
    stores: [SegStore; 2],
}

impl Loop {
    fn start() -> Loop {
        let free = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let local = free.local_addr().expect("an address");
        drop(free);
        let conf = VtepConf {
            local,
            ttl: 64,
            tos: Tos::Inherit,
            ports: PORTS_MAX,
        };
        let vtep = Vtep::open(&conf, 1).expect("an endpoint");
        let vni = Vni::new(9).expect("24 bits");
        let network = Network {
            overlay: OVERLAY,
            mtu: MTU,
            strangers: None,
        };
        vtep.set_tables(Tables::new([(vni, network)], [((vni, local.ip()), PLACE)]));
        let target = Target::new(vtep.clone(), TargetConf { to: local, vni });
        Loop {
            target,
            rx: vtep.rings().rx.remove(0),
            vtep,
            local,
            now: Tick(1),
            worker: Domain::new(1).register(),
            stores: Default::default(),
        }
    }

    /// Sends frames with their claims, in bursts; gives what they are when they are finished.
    fn send(&mut self, frames: &[(Vec<u8>, Claim)]) -> Vec<Vec<u8>> {
        let lane = Lane {
            worker: 0,
            workers: 1,
        };
        let mut finished = Vec::new();
        for burst in frames.chunks(BURST) {
            let section = self.worker.section();
            let mut heads = Heads::boxed();
            heads.clear(RxId(1), self.now);
            let mut tails = Tails::bind(&mut self.stores[0], &section);
            for (i, (frame, claim)) in burst.iter().enumerate() {
                let (start, rest) = frame.split_at(frame.len().min(SNAP));
                heads.snap[i].0[HEADROOM..HEADROOM + start.len()].copy_from_slice(start);
                heads.admit(i, frame.len() as u32, *claim);
                let (a, b) = rest.split_at(rest.len() / 3);
                assert!(tails.push(i, Foreign::private(a)) && tails.push(i, Foreign::private(b)));
            }
            heads.n = burst.len();
            windlass_nic::leave(&mut heads, &mut tails);
            let picks: Vec<_> = (0..heads.n).map(|i| Pick::frame(i, false)).collect();
            for pick in &picks {
                assert_eq!(heads.verdict[pick.index()], Verdict::NONE);
                finish(&heads, &tails, *pick, &mut finished);
            }
            let sent = self.target.tx_burst(&section, lane, &heads, &tails, &picks);
            assert_eq!((sent.taken, sent.frames), (picks.len(), picks.len() as u64));
        }
        finished
    }

    /// All that has come, finished; and how many frames it was before.
    fn receive(&mut self) -> (Vec<Vec<u8>>, usize) {
        let (mut finished, mut frames) = (Vec::new(), 0);
        loop {
            let section = self.worker.section();
            let mut heads = Heads::boxed();
            heads.clear(RxId(0), Tick(1));
            let mut tails = Tails::bind(&mut self.stores[1], &section);
            let (loan, more) = self
                .rx
                .rx_burst(&section, &mut heads, &mut tails, Limit::FULL);
            windlass_nic::leave(&mut heads, &mut tails);
            assert!(heads.n <= BURST);
            frames += heads.n;
            for i in 0..heads.n {
                assert_eq!(heads.from, RxId(PLACE));
                let private = heads.private(i).len();
                let rest: usize = tails.of(i).map(|piece| piece.len()).sum();
                assert_eq!(private + rest, heads.meta[i].len as usize);
                if heads.verdict[i] == Verdict::NONE {
                    finish(&heads, &tails, Pick::frame(i, false), &mut finished);
                }
            }
            let is_empty = heads.n == 0;
            self.rx.release(&section, loan);
            if is_empty && more == More::Drained {
                return (finished, frames);
            }
        }
    }
}

fn finish(heads: &Heads, tails: &Tails<'_>, pick: Pick, into: &mut Vec<Vec<u8>>) {
    let caps = TxCaps::default();
    let made = soft::finish(heads, tails, pick, caps, |frame| {
        into.push(frame.to_vec());
        true
    });
    made.expect("a frame");
}

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
            let (came, _) = tunnel.receive();
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
        let socket = UdpSocket::bind((tunnel.local.ip(), 0)).expect("a port");
        let segment = if train.len() / usize::from(size) < 64 { size } else { 0 };
        windlass_sys::udp::set_segment_bytes(&socket, segment).expect("segments");
        socket.send_to(&train, tunnel.local).expect("sent");
        tunnel.receive();
    }
}

/// A large segment that was cut comes back as few frames.
#[test]
fn segments_are_merged() {
    let mut tunnel = Loop::start();
    for is_v4 in [true, false] {
        let frame = segment(is_v4, &[5; 60_000], 1, 1390);
        let sent = tunnel.send(&[frame]);
        let (came, frames) = tunnel.receive();
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

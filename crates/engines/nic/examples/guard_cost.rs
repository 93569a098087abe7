//! What protection costs, in nanoseconds a frame: bursts of 64 frames that pass, for each rule alone and all together.
//!
//! ```text
//! cargo run --release -p windlass-nic --example guard_cost
//! ```
//!
//! With the name of a frame, of rules and a number of bursts it does that alone, to be counted by `valgrind --tool=callgrind`: twice with
//! different numbers, the difference divided by that of the frames.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use windlass_frame::{BURST, Claim, Deepen, HEADROOM, Heads, RxId, SNAP, Tick};
use windlass_nic::{
    Conf, DhcpNospoof, IngressStage, IpNospoof, Learner, Lease, Leaving, Method, Methods,
    Protection, protect,
};
use windlass_wire::MacAddr;
use windlass_wire::build::{self, Arp, Ends, Link, Tcp};

const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

/// No frame here has headers behind its snapshot.
struct Nothing;

impl Deepen for Nothing {
    fn deepen(&mut self, _: &mut Heads, _: usize, _: usize) -> bool {
        false
    }
}

fn frames() -> [(&'static str, Vec<u8>); 5] {
    let link = Link {
        dst: MacAddr([2, 0, 0, 0, 0, 2]),
        src: OWN,
        tag: None,
    };
    let v4 = Ends::V4(V4, Ipv4Addr::new(10, 0, 0, 2));
    let v6 = Ends::V6(V6, V6);
    let made = |write: &dyn Fn(&mut [u8]) -> usize| {
        let mut frame = vec![0; 300];
        let len = write(&mut frame);
        frame.truncate(len.max(60));
        frame
    };
    let tcp = |ends: Ends| {
        made(&|out| build::tcp_frame(out, &link, &ends, &Tcp::default(), &[1]).expect("room"))
    };
    let udp = |ends: Ends| {
        made(&|out| build::udp_frame(out, &link, &ends, (1, 2), &[1; 18]).expect("room"))
    };
    let arp = Arp {
        operation: 1,
        sender_mac: OWN,
        sender_ip: V4,
        target_mac: MacAddr::ZERO,
        target_ip: V4,
    };
    [
        ("tcp4", tcp(v4)),
        ("udp4", udp(v4)),
        ("tcp6", tcp(v6)),
        ("udp6", udp(v6)),
        (
            "arp",
            made(&|out| build::arp_frame(out, &link, &arp).expect("room")),
        ),
    ]
}

/// What the frames need, with `n` others before it.
fn named(n: u8) -> impl Iterator<Item = (IpAddr, u8)> {
    let others = (0..n).flat_map(|i| {
        let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x100 + u16::from(i));
        [(IpAddr::from([10, 0, 1, i]), 32), (v6.into(), 128)]
    });
    others.chain([(V4.into(), 32), (V6.into(), 128)])
}

fn addresses(n: u8) -> Option<IpNospoof> {
    Some(IpNospoof::new(named(n)))
}

/// The addresses of the frames were learned, and `n` others.
fn learner(macs: &Arc<[u64]>, n: u8) -> Arc<Learner> {
    let conf = Conf {
        methods: METHODS,
        named: IpNospoof::default(),
    };
    let learner = Learner::new(0, macs, conf, &Arc::default(), Arc::new(|| ()));
    let lease = |(address, bits)| Lease {
        address,
        bits,
        method: Method::Dhcpv6,
        client: Box::default(),
        until: Some(Tick(u64::MAX)),
    };
    learner.restore(Tick(0), named(n).map(lease).collect());
    learner
}

const METHODS: Methods = Methods {
    dhcpv4: true,
    dhcpv6: true,
    slaac: true,
};

fn rules() -> [(&'static str, Protection); 8] {
    let off = Protection::default;
    let all = |n| Protection {
        restricted: true,
        addresses: addresses(n),
        methods: Methods::default(),
        clients: Some(DhcpNospoof::default()),
        router_guard: true,
        dhcp_guard: true,
    };
    let learned = || Protection {
        addresses: Some(IpNospoof::default()),
        methods: METHODS,
        ..all(0)
    };
    [
        (
            "restricted",
            Protection {
                restricted: true,
                ..off()
            },
        ),
        (
            "ip-nospoof",
            Protection {
                addresses: addresses(0),
                ..off()
            },
        ),
        (
            "dhcp-nospoof",
            Protection {
                clients: Some(DhcpNospoof::default()),
                ..off()
            },
        ),
        (
            "guards",
            Protection {
                router_guard: true,
                dhcp_guard: true,
                ..off()
            },
        ),
        ("all", all(0)),
        ("all, 32nd address", all(31)),
        ("all, learned", learned()),
        ("all, 32nd learned", learned()),
    ]
}

fn pass(stages: &[Arc<dyn IngressStage>], heads: &mut Heads, bursts: u32) {
    for _ in 0..bursts {
        let mut nothing = Nothing;
        let mut leaving = Leaving::new(black_box(&mut *heads), &mut nothing);
        stages.iter().for_each(|stage| stage.leave(&mut leaving));
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let bursts = words.get(2).and_then(|n| n.parse().ok());
    for (rule, protection) in rules() {
        for (kind, frame) in frames() {
            if !words.is_empty() && words.get(..2) != Some(&[kind.into(), rule.into()]) {
                continue;
            }
            let mut heads = Heads::boxed();
            heads.clear(RxId(0), Tick(0));
            heads.n = BURST;
            for i in 0..BURST {
                let n = frame.len().min(SNAP);
                heads.snap[i].0[HEADROOM..HEADROOM + n].copy_from_slice(&frame[..n]);
                heads.admit(i, frame.len() as u32, Claim::NONE);
            }
            let macs = [OWN.to_u64()].into();
            let n = if rule.contains("32nd") { 31 } else { 0 };
            let learner = (!protection.methods.is_none()).then(|| learner(&macs, n));
            let stages: Vec<_> =
                protect(&macs, true, &Arc::new(protection.clone()), learner.clone()).collect();
            let mut best = f64::MAX;
            let (rounds, bursts) = bursts.map_or((9, 20_000), |n| (1, n));
            for _ in 0..rounds {
                let start = Instant::now();
                pass(&stages, &mut heads, bursts);
                let ns = start.elapsed().as_nanos() as f64;
                best = best.min(ns / f64::from(bursts) / BURST as f64);
            }
            assert!(heads.verdict.iter().all(|v| v.as_drop().is_none()));
            println!("{rule:18} {kind:5} {best:6.2} ns a frame");
        }
    }
}

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
use windlass_nic::{DhcpNospoof, IngressStage, IpNospoof, Leaving, Protection, protect};
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

/// Lists with `n` others before what the frames need.
fn addresses(n: u8) -> Option<IpNospoof> {
    let others = (0..n).flat_map(|i| {
        let v4 = IpAddr::from([10, 0, 1, i]);
        [(v4, 32), (Ipv6Addr::from([i; 16]).into(), 128)]
    });
    Some(IpNospoof::new(
        others.chain([(V4.into(), 32), (V6.into(), 128)]),
    ))
}

fn rules() -> [(&'static str, Protection); 6] {
    let off = Protection::default;
    let all = |n| Protection {
        restricted: true,
        addresses: addresses(n),
        clients: Some(DhcpNospoof::default()),
        router_guard: true,
        dhcp_guard: true,
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
            let stages: Vec<_> =
                protect(OWN.to_u64(), true, &Arc::new(protection.clone())).collect();
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

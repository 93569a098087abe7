//! What the number of a flow costs, in nanoseconds a frame: bursts of 64 frames over IPv4 and IPv6, and without IP.
//!
//! ```text
//! cargo run --release -p windlass-nic --example flow_cost
//! ```

use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use windlass_frame::{BURST, Claim, HEADROOM, Heads, RxId, SNAP, Tick};
use windlass_nic::FlowHash;
use windlass_wire::MacAddr;
use windlass_wire::build::{self, Ends, Link, Tcp};

fn main() {
    let link = Link {
        dst: MacAddr([2, 0, 0, 0, 0, 2]),
        src: MacAddr([2, 0, 0, 0, 0, 1]),
        tag: None,
    };
    let v4 = Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let v6 = Ends::V6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
    let hash = FlowHash::new([0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9]);
    for (name, ends, ip) in [("ipv4", v4, true), ("ipv6", v6, true), ("other", v4, false)] {
        let mut frame = vec![0; 300];
        let len = build::tcp_frame(&mut frame, &link, &ends, &Tcp::default(), &[1; 128]);
        frame.truncate(len.expect("room"));
        if !ip {
            frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        }
        let mut heads = Heads::boxed();
        heads.clear(RxId(0), Tick(0));
        heads.n = BURST;
        for i in 0..BURST {
            heads.snap[i].0[HEADROOM..HEADROOM + SNAP].copy_from_slice(&frame[..SNAP]);
            heads.admit(i, frame.len() as u32, Claim::NONE);
        }
        let mut best = f64::MAX;
        for _ in 0..9 {
            let rounds = 20_000;
            let start = Instant::now();
            for _ in 0..rounds {
                let heads = black_box(&heads);
                for i in 0..BURST {
                    black_box(hash.of(heads, i));
                }
            }
            best = best.min(start.elapsed().as_nanos() as f64 / f64::from(rounds) / BURST as f64);
        }
        println!("{name:6} {best:6.2} ns a frame");
    }
}

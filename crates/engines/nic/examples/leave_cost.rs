//! What the check of claims costs, in nanoseconds a frame: bursts of 64 that claim nothing, a
//! checksum each, or a segmentation each.
//!
//! ```text
//! cargo run --release -p windlass-nic --example leave_cost
//! ```

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Instant;

use windlass_frame::{BURST, Claim, Deepen, HEADROOM, Heads, RxId, SNAP, Tick};
use windlass_nic::leave;
use windlass_wire::MacAddr;
use windlass_wire::build::{self, Ends, Link, Tcp};

/// No frame here has headers behind its snapshot.
struct Nothing;

impl Deepen for Nothing {
    fn deepen(&mut self, _: &mut Heads, _: usize, _: usize) -> bool {
        false
    }
}

fn main() {
    let link = Link {
        dst: MacAddr([2, 0, 0, 0, 0, 2]),
        src: MacAddr([2, 0, 0, 0, 0, 1]),
        tag: None,
    };
    let ends = Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let mut frame = vec![0; 4000];
    let len = build::tcp_frame(&mut frame, &link, &ends, &Tcp::default(), &[1; 3000]);
    frame.truncate(len.expect("room"));
    let csum = Claim {
        flags: Claim::NEEDS_CSUM,
        csum_start: 34,
        csum_offset: 16,
        ..Claim::NONE
    };
    let gso = Claim {
        gso_type: Claim::GSO_TCPV4,
        gso_size: 1448,
        ..csum
    };
    for (name, claim) in [("nothing", Claim::NONE), ("checksum", csum), ("tso4", gso)] {
        let mut heads = Heads::boxed();
        heads.clear(RxId(0), Tick(0));
        heads.n = BURST;
        for i in 0..BURST {
            heads.snap[i].0[HEADROOM..HEADROOM + SNAP].copy_from_slice(&frame[..SNAP]);
            heads.admit(i, frame.len() as u32, claim);
        }
        let mut best = f64::MAX;
        for _ in 0..9 {
            let rounds = 20_000;
            let start = Instant::now();
            for _ in 0..rounds {
                for m in &mut heads.meta {
                    m.claim = black_box(claim);
                }
                leave(black_box(&mut heads), &mut Nothing);
            }
            best = best.min(start.elapsed().as_nanos() as f64 / f64::from(rounds) / BURST as f64);
        }
        assert!(heads.verdict.iter().all(|v| v.as_drop().is_none()));
        println!("{name:10} {best:6.2} ns a frame, setting the claim included");
    }
}

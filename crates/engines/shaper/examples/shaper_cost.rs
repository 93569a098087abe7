//! What rates and flows cost, in nanoseconds a frame: bursts of 64 small UDP datagrams that all go at once.
//!
//! ```text
//! cargo run --release -p windlass-shaper --example shaper_cost
//! ```

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use windlass_frame::{BURST, Claim, HEADROOM, Heads, RxId, Tick};
use windlass_shaper::{Bucket, Direction, Flow, Priority, Shaper};
use windlass_stats::Padded;
use windlass_wire::MacAddr;
use windlass_wire::build::{self, Ends, Link};

fn fill(heads: &mut Heads) {
    heads.clear(RxId(0), Tick(1_000_000_000));
    heads.n = BURST;
    for i in 0..BURST {
        let link = Link {
            dst: MacAddr([2, 0, 0, 0, 0, 2]),
            src: MacAddr([2, 0, 0, 0, 0, 1]),
            tag: None,
        };
        let ends = Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, i as u8, 9));
        let out = &mut heads.snap[i].0[HEADROOM..];
        let ports = (1_000 + i as u16, 5_000 + i as u16);
        let len = build::udp_frame(out, &link, &ends, ports, &[1; 18]).expect("room");
        heads.admit(i, len.max(60) as u32, Claim::NONE);
    }
}

/// As a worker does it where nothing waits; how many passed.
fn pass(shaper: &Shaper, heads: &Heads, now: Tick) -> usize {
    let mut passed = 0;
    for i in 0..heads.n {
        let len = heads.meta[i].len;
        let flow = shaper.flow_of(heads.private(i), len);
        let counters = flow.and_then(|flow| flow.counters.first());
        if let Some(counters) = counters {
            counters.matched.add(1);
        }
        if shaper.pass(flow, now, len).is_ok() {
            passed += 1;
            if let Some(counters) = counters {
                counters.pass(len);
            }
        }
    }
    passed
}

fn shaper(own: bool, flows: &[String], rate: bool) -> Shaper {
    let limit = || Some(Arc::new(Bucket::new(100_000_000_000)));
    let flows = flows.iter().zip(1..).map(|(text, id)| {
        let flow = Flow {
            id,
            priority: Priority::Medium,
            limit: limit().filter(|_| rate),
            counters: Arc::new([Padded::default()]),
        };
        (text.parse().expect(text), flow)
    });
    let own = limit().filter(|_| own);
    Shaper::new(Direction::Out, flows.collect(), own).expect("a rate or a flow")
}

fn main() {
    let texts = |n: u32, text: &dyn Fn(u32) -> String| (0..n).map(text).collect::<Vec<_>>();
    let all = texts(1, &|_| "transport=udp".into());
    let ports = texts(64, &|n| format!("transport=udp,remote_port={}", 5_000 + n));
    let prefix = texts(1, &|_| "remote_ip=10.0.0.0/8".into());
    let prefixes = texts(64, &|n| format!("remote_ip=10.0.{n}.0/24"));
    let lengths = texts(17, &|n| format!("remote_ip=10.0.0.0/{}", 8 + n.min(24)));
    let mut heads = Heads::boxed();
    fill(&mut heads);
    for (name, shaper) in [
        ("the VNIC's rate", shaper(true, &[], false)),
        (
            "a flow by protocol, counters only",
            shaper(false, &all, false),
        ),
        ("the same with a rate", shaper(false, &all, true)),
        ("64 flows by port with rates", shaper(false, &ports, true)),
        ("a flow by prefix with a rate", shaper(false, &prefix, true)),
        (
            "64 flows by prefix with rates",
            shaper(false, &prefixes, true),
        ),
        (
            "17 lengths of prefixes with rates",
            shaper(false, &lengths, true),
        ),
        (
            "64 flows by port with rates, and the VNIC's",
            shaper(true, &ports, true),
        ),
    ] {
        let mut best = f64::MAX;
        let mut now = Tick(2_000_000_000);
        for _ in 0..2_000 {
            now = now.plus(1_000_000);
            let start = Instant::now();
            let passed = pass(&shaper, black_box(&heads), now);
            let ns = start.elapsed().as_nanos() as f64;
            assert_eq!(passed, BURST, "{name}");
            best = best.min(ns / BURST as f64);
        }
        println!("{name:45} {best:5.1} ns");
    }
}

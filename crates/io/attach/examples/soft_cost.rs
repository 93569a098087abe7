//! What the software stage costs: a 64 KiB TCP segment cut for a receiver that takes no offload,
//! and 1,514-byte frames of which only the checksum is completed.
//!
//! Each output frame is copied once more by `emit`, as a ring's port does, into a buffer of 2 MiB
//! that is used round and round. The source is 16 segments of 4 KiB in a pool of 2 MiB.
//!
//! ```text
//! cargo run --release -p windlass-attach --example soft_cost
//! ```

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Instant;

use windlass_attach::port::TxCaps;
use windlass_attach::soft;
use windlass_frame::{Claim, Gso, HEADROOM, Heads, Offload, Pick, RxId, SNAP, Tick};
use windlass_shm::{Foreign, SegStore, Tails};
use windlass_sync::qsbr::Domain;
use windlass_wire::MacAddr;
use windlass_wire::build::{self, Ends, Link, Tcp};

const POOL: usize = 2 << 20;
const RUNS: usize = 7;

fn main() {
    let link = Link {
        dst: MacAddr([2, 0, 0, 0, 0, 2]),
        src: MacAddr([2, 0, 0, 0, 0, 1]),
        tag: None,
    };
    let ends = Ends::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let frame = |payload: usize| {
        let mut out = vec![0; payload + 100];
        let body: Vec<u8> = (0..payload).map(|b| (b * 31) as u8).collect();
        let header = Tcp {
            options: &[1; 12],
            flags: 0x10,
            ..Tcp::default()
        };
        let len = build::tcp_frame(&mut out, &link, &ends, &header, &body).expect("room");
        out.truncate(len);
        out
    };
    let csum = Offload::needing_csum(34, 16);
    let gso = |size| csum.with_gso(Gso::Tcp4, size, false);
    for (name, frame, off) in [
        ("64 KiB, copied whole", frame(65_483), Offload::NONE),
        ("64 KiB, checksum only", frame(65_483), csum),
        ("64 KiB cut to 8948", frame(65_483), gso(8948)),
        ("64 KiB cut to 1448", frame(65_483), gso(1448)),
        ("64 KiB cut to 64", frame(65_483), gso(64)),
        ("1514 B, checksum only", frame(1448), csum),
    ] {
        let mut best = f64::MAX;
        let mut all = Vec::new();
        for _ in 0..RUNS {
            let ns = time(&frame, off);
            best = best.min(ns);
            all.push(ns);
        }
        all.sort_by(f64::total_cmp);
        let median = all[RUNS / 2];
        println!(
            "{name:24} median {median:9.1} ns  best {best:9.1} ns  {:6.2} GB/s",
            frame.len() as f64 / median
        );
    }
}

/// Nanoseconds that one frame takes.
fn time(frame: &[u8], off: Offload) -> f64 {
    let copies = POOL / frame.len().next_multiple_of(4096);
    let pool = frame_pool(frame, copies);
    let domain = Domain::new(1);
    let mut worker = domain.register();
    let section = worker.section();
    let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
    let mut sink = vec![0u8; POOL];
    let mut at = 0;
    let rounds = (256 << 20) / frame.len();
    let start = Instant::now();
    for round in 0..rounds {
        let source = &pool[round % copies];
        heads.clear(RxId(0), Tick(0));
        let mut tails = Tails::bind(&mut store, &section);
        heads.snap[0].0[HEADROOM..HEADROOM + SNAP].copy_from_slice(&source[..SNAP]);
        heads.admit(0, frame.len() as u32, Claim::NONE);
        for piece in source[SNAP..].chunks(4096) {
            tails.push(0, Foreign::private(piece));
        }
        heads.meta[0].off = off;
        let pick = Pick::frame(0, false);
        let made = soft::finish(&heads, &tails, pick, TxCaps::default(), |out| {
            if at + out.len() > sink.len() {
                at = 0;
            }
            sink[at..at + out.len()].copy_from_slice(out);
            at += out.len();
            true
        });
        black_box(made.expect("finished"));
    }
    black_box(&sink);
    start.elapsed().as_nanos() as f64 / rounds as f64
}

fn frame_pool(frame: &[u8], copies: usize) -> Vec<Vec<u8>> {
    vec![frame.to_vec(); copies]
}

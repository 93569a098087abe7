//! What a firewall costs, in nanoseconds a frame: bursts of 64 small packets that pass, of established flows and of new ones.
//!
//! ```text
//! cargo run --release -p windlass-firewall --example firewall_cost
//! ```
//!
//! With `udp` or `tcp`, a number of rules, of flows and of rounds it does that alone, to be counted by `valgrind --tool=callgrind`: a round
//! sends each flow once, the first one opens it.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use windlass_firewall::{Compiled, Firewall, Ledger, List, Owner, Policy, Tell, Told, Tracker};
use windlass_frame::{BURST, Claim, Deepen, HEADROOM, Heads, RxId, Tick};
use windlass_nic::{IngressStage, Leaving};
use windlass_rules::Rules;
use windlass_wire::MacAddr;
use windlass_wire::build::{self, Ends, Link, Tcp};

/// Nobody listens.
#[derive(Debug)]
struct Deaf;

impl Tell for Deaf {
    fn tell(&self, _: Told) -> bool {
        false
    }
}

/// No frame here has headers behind its snapshot.
struct Nothing;

impl Deepen for Nothing {
    fn deepen(&mut self, _: &mut Heads, _: usize, _: usize) -> bool {
        false
    }
}

/// As many rules, of which the last accepts, and counts or not: prefixes and ports of each kind, and one set.
fn rules(count: u32, counts: bool) -> Rules {
    let rule = |n: u32| {
        let [_, b, c, d] = (n << 4).to_be_bytes();
        match n % 4 {
            0 => format!("drop out udp to 11.{b}.{c}.{d}/28"),
            1 => format!("drop out tcp to 10.{b}.{c}.0/24 port {}", n % 60_000),
            2 => format!(
                "drop out udp from 12.{b}.{c}.{d}/28 to 10.0.0.0/8 port {}-{}",
                n % 1_000,
                n % 1_000 + 9
            ),
            _ => format!("drop in from 13.{b}.{c}.{d}/28 state new"),
        }
    };
    let text: Vec<String> = (1..count).map(rule).collect();
    let counts = if counts { " count" } else { "" };
    format!(
        "{}\naccept{counts} out to 10.0.0.0/8 state new,established",
        text.join("\n")
    )
    .parse()
    .expect("rules")
}

/// A burst of the flows from number `first` on, of `flows`.
fn fill(heads: &mut Heads, first: u32, flows: u32, is_tcp: bool) {
    heads.clear(RxId(0), Tick(1_000_000_000));
    heads.n = BURST;
    for (i, number) in (first..).take(BURST).enumerate() {
        let number = number % flows;
        let link = Link {
            dst: MacAddr([2, 0, 0, 0, 0, 2]),
            src: MacAddr([2, 0, 0, 0, 0, 1]),
            tag: None,
        };
        let to = Ipv4Addr::from_bits(0x0a00_0000 | number >> 12);
        let ends = Ends::V4(Ipv4Addr::new(10, 0, 0, 1), to);
        let ports = (1_024 + (number % 4_096) as u16, 5_000);
        let out = &mut heads.snap[i].0[HEADROOM..];
        let tcp = Tcp {
            src: ports.0,
            dst: ports.1,
            flags: 16,
            window: 1_000,
            ..Tcp::default()
        };
        let len = match is_tcp {
            true => build::tcp_frame(out, &link, &ends, &tcp, &[1; 6]),
            false => build::udp_frame(out, &link, &ends, ports, &[1; 18]),
        };
        heads.admit(i, len.expect("room") as u32, Claim::NONE);
    }
}

fn pass(stage: &Firewall, heads: &mut Heads) -> f64 {
    let mut nothing = Nothing;
    let start = Instant::now();
    stage.leave(&mut Leaving::new(black_box(heads), &mut nothing));
    start.elapsed().as_nanos() as f64
}

/// All flows, in bursts.
fn bursts(flows: u32, is_tcp: bool) -> Vec<Box<Heads>> {
    let burst = |n| {
        let mut heads = Heads::boxed();
        fill(&mut heads, n * BURST as u32, flows, is_tcp);
        heads
    };
    (0..flows / BURST as u32).map(burst).collect()
}

/// A member's firewall that knows nothing yet; the way out.
fn firewall(rules: &Arc<Compiled>, seed: u64) -> Firewall {
    let tracker = Tracker::new(32_768, [seed + 5, 0x9e37_79b9_7f4a_7c15]);
    let policy = Policy::new(rules.clone(), &mut Ledger::default());
    let owner = Owner {
        member: RxId(0),
        mac: 0,
        tell: Arc::new(Deaf),
    };
    let [out, _] = Firewall::both(&Arc::new(policy), &Arc::new(Mutex::new(tracker)), &owner);
    out
}

fn compiled(count: u32, counts: bool) -> Arc<Compiled> {
    let list = List::new(&rules(count, counts)).expect("room");
    Arc::new(Compiled::new([Some(Arc::new(list))]))
}

/// Bursts of so many flows through such rules: nanoseconds a frame of established ones and of new ones, and what the rules take.
fn measure(count: u32, flows: u32, counts: bool, is_tcp: bool) -> (f64, Option<f64>, String) {
    let start = Instant::now();
    let rules = compiled(count, counts);
    let taken = start.elapsed();
    let mut bursts = bursts(flows, is_tcp);
    let per_frame = |ns: f64, bursts: usize| ns / bursts as f64 / BURST as f64;
    let (mut new, mut established) = (None, f64::MAX);
    for seed in 0..5 {
        let out = firewall(&rules, seed);
        // The first connection makes the table.
        pass(&out, &mut bursts[0]);
        let ns: f64 = bursts
            .iter_mut()
            .skip(1)
            .map(|heads| pass(&out, heads))
            .sum();
        if bursts.len() > 1 {
            let ns = per_frame(ns, bursts.len() - 1);
            new = Some(new.unwrap_or(f64::MAX).min(ns));
        }
        let rounds = 2_000_000 / flows as usize;
        let mut ns = 0.0;
        for _ in 0..rounds {
            ns += bursts
                .iter_mut()
                .map(|heads| pass(&out, heads))
                .sum::<f64>();
        }
        established = established.min(per_frame(ns, rounds * bursts.len()));
    }
    assert!(
        bursts
            .iter()
            .all(|heads| heads.verdict.iter().all(|v| v.as_drop().is_none()))
    );
    let rules = format!("{} KiB in {taken:.1?}", rules.bytes() >> 10);
    (established, new, rules)
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [kind, numbers @ ..] = words.as_slice() {
        let numbers = numbers.iter().map(|n| n.parse().expect("a number"));
        let [count, flows, rounds] = numbers.collect::<Vec<u32>>()[..] else {
            panic!("udp or tcp, then rules, flows and rounds");
        };
        let (mut bursts, out) = (
            bursts(flows, kind == "tcp"),
            firewall(&compiled(count, false), 0),
        );
        for _ in 0..rounds {
            for heads in &mut bursts {
                pass(&out, heads);
            }
        }
        return;
    }
    println!("       rules  flows   established, counted   new, counted (ns a frame)");
    for (kind, count) in [("udp", 1), ("udp", 100), ("udp", 1_000), ("udp", 10_000)]
        .into_iter()
        .chain([("tcp", 100), ("tcp", 10_000)])
    {
        for flows in [64, 10_048] {
            let (established, new, rules) = measure(count, flows, false, kind == "tcp");
            let (counted, new_counted, _) = measure(count, flows, true, kind == "tcp");
            let shown = |ns: Option<f64>| ns.map_or("-".to_owned(), |ns| format!("{ns:.1}"));
            println!(
                "{kind} {count:6} {flows:6} {established:8.1} {counted:8.1} {:>8} {:>8}   {rules}",
                shown(new),
                shown(new_counted)
            );
        }
    }
}

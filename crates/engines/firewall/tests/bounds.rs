//! What it costs to compile rules that were made to be expensive.

use std::net::Ipv4Addr;

use windlass_firewall::{Classifier, CompileError, Packet};
use windlass_rules::{Direction, Family, Rules, State};

/// The most memory that this process has had, in bytes.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("our own");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.and_then(|kib| kib.parse::<usize>().ok())
        .expect("a number")
        << 10
}

/// A set of so many prefixes, none of which touches another.
fn set(count: u32) -> String {
    let prefix = |n: u32| Ipv4Addr::from_bits(0x0a00_0000 | n << 1).to_string();
    let prefixes: Vec<String> = (0..count).map(prefix).collect();
    format!("set a {}", prefixes.join(","))
}

/// Rules that share a large set cost what the set costs, not what the set costs for each of them.
#[test]
fn rules_that_share_a_set_share_its_cost() {
    let rules = "drop in tcp from @a; accept in udp from @a to @a; ".repeat(100);
    let text = format!("{}; {rules}", set(20_000));
    let list: Rules = text.parse().expect("rules");
    let before = peak();
    let classifier = Classifier::new(&list).expect("room");
    let more = peak() - before;
    assert!(more < 64 << 20, "{more} bytes");
    let packet = |from: u128, to: u128| Packet {
        ports: (1, 2),
        ..Packet::new(Family::V4, 17, from, to)
    };
    let first = |from, to| classifier.first(Direction::In, &packet(from, to), State::New);
    assert_eq!(first(0x0a00_0002, 0x0a00_0004), Some(1));
    assert_eq!(first(0x0a00_0002, 0x0a00_0005), None);
    assert_eq!(first(0x0a00_0001, 0x0a00_0004), None);
}

/// Thousands of rules that begin and end together at each of many edges are refused before they take long.
#[test]
fn time_to_compile_is_bounded() {
    let rules = "drop from @a; drop udp from @a to @a; ".repeat(4_500);
    let list: Rules = format!("{}; {rules}", set(20_000)).parse().expect("rules");
    let refused = Classifier::new(&list).err();
    assert_eq!(refused, Some(CompileError::TooSlow));
}

/// Nanoseconds for which this thread has had a processor.
fn ran_ns() -> u64 {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").expect("our own");
    let ran = times.split_whitespace().next();
    ran.and_then(|ns| ns.parse().ok()).expect("a number")
}

/// Rules of one version of IP that name a set of the other cost the same however large it is.
#[test]
fn sets_of_the_other_version_are_looked_at_once() {
    let cost = |prefixes| {
        let rules = "drop ipv6 to @a; ".repeat(10_000);
        let list: Rules = format!("{}; {rules}", set(prefixes))
            .parse()
            .expect("rules");
        let before = ran_ns();
        let classifier = Classifier::new(&list).expect("room");
        let ran = ran_ns() - before;
        let packet = Packet::new(Family::V6, 17, 1, 2);
        assert_eq!(classifier.first(Direction::In, &packet, State::New), None);
        ran
    };
    let (few, many) = (cost(1), cost(30_000));
    // A tick of the clock by which it may be counted.
    assert!(many < 10 * few + 10_000_000, "{few} ns, {many} ns");
}

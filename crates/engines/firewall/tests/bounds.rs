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

/// Rules that open and close at each port what many others have open are refused before they take long.
#[test]
fn time_to_compile_is_bounded() {
    let mut text = "drop tcp from port 1-65534 to port 1-65534;".repeat(9_000);
    for n in 0..512u32 {
        let ports: Vec<String> = (0..64).map(|k| (n * 128 + k * 2).to_string()).collect();
        let ports = ports.join(",");
        text += &format!("drop tcp from port {ports} to port {ports};");
    }
    let list: Rules = text.parse().expect("rules");
    let refused = Classifier::new(&list).err();
    assert_eq!(refused, Some(CompileError::TooSlow));
}

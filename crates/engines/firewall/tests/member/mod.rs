//! A member with a firewall, and its packets.
#![allow(dead_code)]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use windlass_firewall::{Compiled, Decision, Firewall, Ledger, List, Policy, Tracker};
use windlass_frame::Tick;

use crate::heard::{Heard, owner};
use crate::packets::*;

pub const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const GUEST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
pub const PEER6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
pub const SECOND: u64 = 1_000_000_000;
pub const SYN: u8 = 2;
pub const ACK: u8 = 16;
pub const FIN: u8 = 1;
pub const RST: u8 = 4;
/// What most hosts have: they may begin, and hear what answers.
pub const CLIENT: &str = "accept out; accept in state established,related; drop in";

/// A member's firewall at some moment.
pub struct Member {
    pub tracker: Arc<Mutex<Tracker>>,
    pub ledger: Ledger,
    pub policy: Arc<Policy>,
    pub told: Arc<Heard>,
    pub ways: [Firewall; 2],
    pub now: u64,
}

impl Member {
    pub fn new(lists: &[&str], room: usize) -> Member {
        let tracker = Arc::new(Mutex::new(Tracker::new(
            room,
            [0x1234_5678_9abc, 0xdef0_1234],
        )));
        let (mut ledger, told) = (Ledger::default(), Arc::default());
        let policy = Arc::new(Policy::new(compiled(lists), &mut ledger));
        Member {
            ways: Firewall::both(&policy, &tracker, &owner(&told)),
            told,
            now: 100 * SECOND,
            tracker,
            ledger,
            policy,
        }
    }

    pub fn set(&mut self, lists: &[&str]) {
        self.policy = Arc::new(Policy::new(compiled(lists), &mut self.ledger));
        self.ways = Firewall::both(&self.policy, &self.tracker, &owner(&self.told));
    }

    /// The list of each rule that counts, and its frames and bytes.
    pub fn counted(&self) -> Vec<(usize, u64, u64)> {
        let counted = self.policy.counted();
        counted.map(|c| (c.list, c.frames, c.bytes)).collect()
    }

    pub fn judge(&self, way: usize, frame: &[u8]) -> Decision {
        let firewall = &self.ways[way];
        let mut tracker = firewall.lock();
        firewall.judge(&mut tracker, Tick(self.now), frame, frame.len() as u32)
    }

    pub fn out(&self, frame: &[u8]) -> bool {
        self.judge(0, frame) == Decision::Accept
    }

    pub fn comes(&self, frame: &[u8]) -> bool {
        self.judge(1, frame) == Decision::Accept
    }

    pub fn wait(&mut self, seconds: u64) {
        self.now += seconds * SECOND;
    }
}

pub fn compiled(lists: &[&str]) -> Arc<Compiled> {
    let list = |text: &&str| {
        let rules: windlass_rules::Rules = text.parse().expect("rules");
        let is_some = !rules.rules.is_empty();
        is_some.then(|| Arc::new(List::new(&rules).expect("few rules")))
    };
    Arc::new(Compiled::new(lists.iter().map(list)))
}

pub fn v4(src: Ipv4Addr, dst: Ipv4Addr, proto: u8, payload: &[u8]) -> Vec<u8> {
    ethernet([2; 6], [4; 6], &[], IPV4, &ipv4(src, dst, proto, payload))
}

pub fn v6(src: Ipv6Addr, dst: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    ethernet([2; 6], [4; 6], &[], IPV6, &ipv6(src, dst, next, payload))
}

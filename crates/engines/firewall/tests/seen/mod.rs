//! What holds whatever passes a firewall: used by the fuzz target `firewall` and by the tests that replay its corpus.

#[path = "../heard/mod.rs"]
mod heard;

use std::sync::{Arc, Mutex};

use windlass_firewall::{Compiled, Decision, Firewall, Ledger, List, Policy, Seen, Tracker, read};
use windlass_frame::{SNAP, Tick};
use windlass_rules::Rules;

const RULES: &str = "drop count state invalid; accept count in tcp from 10.0.0.0/8,fd00::/8 to port 80; accept out; \
                     accept in state established,related; drop in";

/// Takes `data` as a run of records, each a way, a pause, a length and a frame, and lets a member's firewall decide: what needs more bytes
/// gets further with them, what cannot be read is dropped, and the same frame at the same moment that passed passes again.
pub fn check(data: &[u8]) {
    let rules: Rules = RULES.parse().expect("rules");
    let list = Arc::new(List::new(&rules).expect("few rules"));
    let rules = Arc::new(Compiled::new([Some(list)]));
    let policy = Arc::new(Policy::new(rules, &mut Ledger::default()));
    let tracker = Arc::new(Mutex::new(Tracker::new(16, [3, 5])));
    let ways = Firewall::both(&policy, &tracker, &heard::owner(&Arc::default()));
    let mut now = Tick(1_000_000_000);
    let mut rest = data;
    while let Some(([way, pause, length], tail)) = rest.split_first_chunk() {
        let (frame, tail) = tail.split_at(tail.len().min(usize::from(*length)));
        rest = tail;
        now = now.plus(u64::from(*pause) * 1_000_000_000);
        let firewall = &ways[usize::from(way & 1)];
        let mut tracker = firewall.lock();
        let len = frame.len() as u32;
        // A snapshot is never shorter.
        let mut have = (SNAP + usize::from(*way >> 1)).min(frame.len());
        let decision = loop {
            match firewall.judge(&mut tracker, now, &frame[..have], len) {
                Decision::Need(upto) => {
                    assert!(upto > have && upto <= frame.len());
                    have = upto;
                }
                decision => break decision,
            }
        };
        if read(frame, len) == Seen::Unreadable {
            assert_eq!(decision, Decision::Drop);
        }
        let is_reset = frame.len() > 47 && frame[12..14] == [8, 0] && frame[23] == 6;
        if decision == Decision::Accept && !is_reset {
            let again = firewall.judge(&mut tracker, now, frame, len);
            assert_eq!(again, Decision::Accept);
        }
    }
}

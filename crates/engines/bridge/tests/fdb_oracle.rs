//! The forwarding table against a plain map that follows the same rules.

use std::collections::HashMap;

use proptest::prelude::*;
use windlass_bridge::fdb::{EntryFlags, Fdb, Key, Learned, Limits, NoReaders, Sighting};
use windlass_frame::Tick;

const SECOND: u64 = 1_000_000_000;
const MEMBER_LIMIT: u32 = 12;

#[derive(Clone, Debug)]
enum Op {
    Learn { key: Key, member: u16, sticky: bool },
    Hear { key: Key },
    Fix { key: Key, member: u16 },
    Delete { key: Key },
    FlushMember { member: u16, fixed: bool },
    FlushAll,
    Sweep,
    Pass { seconds: u64 },
}

/// An entry of the oracle. Forgotten ones stay, as they do in the table, until swept: they count.
#[derive(Clone, Copy, Debug)]
struct Known {
    member: u16,
    fixed: bool,
    heard: u64,
    member_flushed: bool,
}

impl Known {
    fn flushed(&self) -> bool {
        self.member_flushed
    }

    fn live(&self, now: u64) -> bool {
        !self.flushed() && (self.fixed || now - self.heard <= 16)
    }
}

#[derive(Default)]
struct Oracle {
    known: HashMap<Key, Known>,
    /// Seconds, which are the ticks of an ageing time of 16 s.
    now: u64,
}

impl Oracle {
    fn learned(&self, member: u16) -> u32 {
        let counts = |k: &&Known| k.member == member && !k.fixed && !k.member_flushed;
        self.known.values().filter(counts).count() as u32
    }

    fn fixed(&self, member: u16) -> u32 {
        let counts = |k: &&Known| k.member == member && k.fixed && !k.member_flushed;
        self.known.values().filter(counts).count() as u32
    }

    fn learn(&mut self, key: Key, member: u16, sticky: bool) -> Learned {
        let old = self.known.get(&key).copied();
        let live = old.filter(|k| k.live(self.now));
        if let Some(k) = live.filter(|k| k.fixed) {
            return if k.member == member {
                Learned::Known
            } else {
                Learned::Fixed
            };
        }
        let own = old.is_some_and(|k| k.member == member && !k.fixed && !k.member_flushed);
        let count = self.learned(member) + if sticky { self.fixed(member) } else { 0 };
        let full = count >= MEMBER_LIMIT;
        if full && !own {
            return Learned::MemberLimit;
        }
        let outcome = match live {
            Some(k) if k.member == member => Learned::Known,
            Some(_) => Learned::Moved,
            None => Learned::New,
        };
        let heard = self.now;
        let fresh = Known {
            member,
            fixed: sticky,
            heard,
            member_flushed: false,
        };
        self.known.insert(key, fresh);
        outcome
    }

    fn sweep(&mut self) {
        let now = self.now;
        self.known.retain(|_, k| k.live(now));
    }
}

fn key() -> impl Strategy<Value = Key> {
    (1u16..4, 0u64..16).prop_map(|(vid, mac)| Key::new(vid, 0x0200_0000_0000 | mac << 20))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (key(), 0u16..5, any::<bool>(), any::<bool>())
            .prop_map(|(key, member, a, b)| Op::Learn { key, member, sticky: a && b && member == 4 }),
        6 => key().prop_map(|key| Op::Hear { key }),
        1 => (key(), 0u16..5).prop_map(|(key, member)| Op::Fix { key, member }),
        2 => key().prop_map(|key| Op::Delete { key }),
        1 => (0u16..5, any::<bool>()).prop_map(|(member, fixed)| Op::FlushMember { member, fixed }),
        1 => Just(Op::FlushAll),
        2 => Just(Op::Sweep),
        4 => (1u64..20).prop_map(|seconds| Op::Pass { seconds }),
        1 => (20u64..1000).prop_map(|seconds| Op::Pass { seconds }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    /// After any sequence of operations the table answers every lookup as the map does, gives the
    /// same outcome for every sighting, and counts the same entries.
    #[test]
    fn agrees_with_a_map(ops in prop::collection::vec(op(), 1..400)) {
        let mut limits = Limits::new(256, [3, 7]);
        limits.ageing_ms = 16_000;
        limits.member_entries = MEMBER_LIMIT;
        limits.members = 5;
        limits.moves = 0;
        let (fdb, mut writer) = Fdb::new(limits, NoReaders);
        let mut oracle = Oracle { now: 1_000_000, ..Oracle::default() };
        for op in ops {
            let now = Tick(oracle.now * SECOND + 1);
            match op {
                Op::Learn { key, member, sticky } => {
                    let outcome = writer.learn(Sighting { key, member, sticky }, now);
                    prop_assert_eq!(outcome, oracle.learn(key, member, sticky), "{:?}", key);
                }
                Op::Hear { key } => {
                    let at = fdb.at(now);
                    if let Some(hit) = fdb.lookup(key, at).filter(|h| h.stale_age) {
                        fdb.touch(hit.slot, at);
                    }
                    let heard = oracle.now;
                    let known = oracle.known.get_mut(&key);
                    if let Some(k) = known.filter(|k| k.live(heard)) {
                        k.heard = heard;
                    }
                }
                Op::Fix { key, member } => {
                    writer.add_fixed(key, member, EntryFlags::STATIC, now).unwrap();
                    let heard = oracle.now;
                    let fresh = Known { member, fixed: true, heard, member_flushed: false };
                    oracle.known.insert(key, fresh);
                }
                Op::Delete { key } => {
                    let was = oracle.known.remove(&key).is_some_and(|k| !k.flushed());
                    prop_assert_eq!(writer.delete(key), was);
                }
                Op::FlushMember { member, fixed } => {
                    writer.flush_member(member, fixed);
                    let all = oracle.known.values_mut().filter(|k| k.member == member);
                    all.filter(|k| !k.fixed || fixed).for_each(|k| k.member_flushed = true);
                }
                Op::FlushAll => {
                    writer.flush_all();
                    oracle.known.values_mut().filter(|k| !k.fixed).for_each(|k| k.member_flushed = true);
                }
                Op::Sweep => {
                    writer.sweep(now, usize::MAX);
                    oracle.sweep();
                }
                Op::Pass { seconds } => {
                    for _ in 0..seconds {
                        oracle.now += 1;
                        if oracle.now.is_multiple_of(64) {
                            for _ in 0..2 {
                                writer.sweep(Tick(oracle.now * SECOND), usize::MAX);
                            }
                            oracle.sweep();
                        }
                    }
                }
            }
            let at = fdb.at(Tick(oracle.now * SECOND + 2));
            for vid in 1..4 {
                for mac in 0..16 {
                    let key = Key::new(vid, 0x0200_0000_0000 | mac << 20);
                    let seen = fdb.lookup(key, at).map(|h| (h.member, h.flags.is_fixed()));
                    let known = oracle.known.get(&key).filter(|k| k.live(oracle.now));
                    prop_assert_eq!(seen, known.map(|k| (k.member, k.fixed)), "{:?}", key);
                }
            }
            for member in 0..5 {
                prop_assert_eq!(writer.member_len(member), (oracle.learned(member), oracle.fixed(member)));
            }
            let mut shown = 0;
            fdb.for_each(Tick(oracle.now * SECOND + 2), |_| shown += 1);
            prop_assert_eq!(shown, oracle.known.values().filter(|k| k.live(oracle.now)).count());
        }
    }
}

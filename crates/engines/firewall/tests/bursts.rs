//! Bursts go as their frames would one by one: whatever they are, also where entries of the tracker take the place of others.

#[path = "../../nic/tests/packets/mod.rs"]
mod packets;

mod heard;
mod member;

use std::net::Ipv4Addr;

use member::*;
use packets::{TCP, UDP};
use proptest::prelude::*;
use windlass_firewall::Decision;
use windlass_frame::{BURST, Claim, Deepen, HEADROOM, Heads, Pick, RxId, Tick};
use windlass_nic::{EgressStage, Entering, Fate, IngressStage, Leaving};
use windlass_stats::Drop;

/// No frame here has anything behind its snapshot.
struct Nothing;

impl Deepen for Nothing {
    fn deepen(&mut self, _: &mut Heads, _: usize, _: usize) -> bool {
        false
    }
}

/// A packet of one of some connections, in short numbers.
#[derive(Debug, Clone)]
struct Short {
    flow: u8,
    is_tcp: bool,
    flags: u8,
    seq: u32,
    ack: u32,
    payload: u16,
}

fn short() -> impl Strategy<Value = Short> {
    let flags = prop_oneof![
        8 => Just(ACK),
        2 => Just(SYN),
        2 => Just(SYN | ACK),
        1 => Just(FIN | ACK),
        1 => Just(RST),
        1 => any::<u8>(),
    ];
    let number = || prop_oneof![6 => 0..3_000u32, 1 => any::<u32>()];
    (0..24u8, 0..4u8, flags, number(), number(), 0..1_000u16).prop_map(
        |(flow, kind, flags, seq, ack, payload)| Short {
            flow,
            is_tcp: kind != 0,
            flags,
            seq,
            ack,
            payload,
        },
    )
}

/// Its frame, of which all is there; `way` 0: from the guest.
fn frame(way: usize, short: &Short) -> Vec<u8> {
    let peer = Ipv4Addr::new(10, 0, 1, short.flow);
    let (from, to) = [(GUEST, peer), (peer, GUEST)][way];
    let ports = [[1_000u16, 80], [80, 1_000]][way];
    let mut packet = ports.map(u16::to_be_bytes).concat();
    let body = vec![0; usize::from(short.payload % 70)];
    if short.is_tcp {
        packet.extend(short.seq.to_be_bytes());
        packet.extend(short.ack.to_be_bytes());
        packet.extend([5 << 4, short.flags, 0x20, 0, 0, 0, 0, 0]);
    } else {
        packet.extend(((8 + body.len()) as u16).to_be_bytes());
        packet.extend([0, 0]);
    }
    packet.extend(body);
    v4(from, to, if short.is_tcp { TCP } else { UDP }, &packet)
}

/// The decisions about a burst that goes through the stages.
fn staged(member: &Member, way: usize, frames: &[Vec<u8>]) -> Vec<Option<Drop>> {
    let now = Tick(member.now);
    let mut heads = Heads::boxed();
    heads.clear(RxId(7), now);
    for (i, frame) in frames.iter().enumerate() {
        heads.snap[i].0[HEADROOM..HEADROOM + frame.len()].copy_from_slice(frame);
        heads.admit(i, frame.len() as u32, Claim::NONE);
    }
    heads.n = frames.len();
    if way == 0 {
        member.ways[0].leave(&mut Leaving::new(&mut heads, &mut Nothing));
        let verdicts = heads.verdict.iter().take(frames.len());
        return verdicts.map(|verdict| verdict.as_drop()).collect();
    }
    let picks: Vec<Pick> = (0..frames.len()).map(|i| Pick::frame(i, false)).collect();
    let mut own = Heads::boxed();
    let mut entering = Entering::new(&heads, &mut own, &picks);
    member.ways[1].enter(now, &mut entering);
    let fates = entering.fates().map(|(_, fate)| match fate {
        Fate::Pass => None,
        Fate::Drop(reason) => Some(reason),
    });
    fates.collect()
}

fn reason(way: usize, decision: Decision) -> Option<Drop> {
    let [out, comes] = match decision {
        Decision::Accept => return None,
        Decision::Full => [Drop::FlowLimit, Drop::FlowLimitIn],
        Decision::Outside => [Drop::TcpWindow, Drop::TcpWindowIn],
        Decision::Drop | Decision::Reject | Decision::Need(_) => [Drop::Firewall, Drop::FirewallIn],
    };
    Some(if way == 0 { out } else { comes })
}

/// By turns that forget nothing, that ask about connections, and that change.
const RULES: [&str; 3] = [
    "accept count out; accept in state established,related; drop count in",
    "accept count state new,established; drop",
    "drop out to 10.0.1.3; accept out tcp; accept count",
];

proptest! {
    #[test]
    fn as_one_by_one(
        rules in 0..3usize,
        room in prop_oneof![Just(16usize), Just(64)],
        bursts in proptest::collection::vec(
            (0..2usize, prop_oneof![9 => Just(0u64), 1 => 0..9_000u64], proptest::collection::vec(short(), 1..=BURST)), 1..12),
    ) {
        let rules = RULES[rules];
        let (mut whole, mut single) = (Member::new(&[rules], room), Member::new(&[rules], room));
        for (n, (way, seconds, burst)) in bursts.iter().enumerate() {
            whole.wait(*seconds);
            single.wait(*seconds);
            if n == 5 {
                whole.set(&[RULES[1], rules]);
                single.set(&[RULES[1], rules]);
            }
            let frames: Vec<Vec<u8>> = burst.iter().map(|short| frame(*way, short)).collect();
            let alone: Vec<_> = frames.iter().map(|frame| reason(*way, single.judge(*way, frame))).collect();
            prop_assert_eq!(staged(&whole, *way, &frames), alone, "burst {}", n);
        }
        prop_assert_eq!(whole.counted(), single.counted());
    }
}

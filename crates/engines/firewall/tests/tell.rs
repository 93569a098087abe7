//! What a firewall tells: answers to what it rejects, to whom and how many; events of rules that log.

#[path = "../../nic/tests/packets/mod.rs"]
mod packets;

mod heard;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use heard::{Heard, ROOM, owner};
use packets::*;
use proptest::prelude::*;
use windlass_firewall::{
    ANSWER_MAX, ANSWERS, ANSWERS_PER_S, Compiled, EVENTS_PER_S, Event, Firewall, Ledger, List,
    Policy, Tracker, What,
};
use windlass_frame::{Claim, Deepen, HEADROOM, Heads, Pick, RxId, SNAP, Tick, Verdict};
use windlass_nic::{EgressStage, Entering, Fate, IngressStage, Leaving};
use windlass_rules::{Action, Rules, State};
use windlass_stats::Drop;
use windlass_wire::{Fault, checksum, parse};

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const GUEST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const PEER6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const SECOND: u64 = 1_000_000_000;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// No frame here has anything behind its snapshot.
struct Nothing;

impl Deepen for Nothing {
    fn deepen(&mut self, _: &mut Heads, _: usize, _: usize) -> bool {
        false
    }
}

struct Member {
    ways: [Firewall; 2],
    heard: Arc<Heard>,
}

impl Member {
    fn new(text: &str) -> Member {
        let rules: Rules = text.parse().expect("rules");
        let list = Arc::new(List::new(&rules).expect("few rules"));
        let rules = Arc::new(Compiled::new([Some(list)]));
        let policy = Arc::new(Policy::new(rules, &mut Ledger::default()));
        let tracker = Arc::new(Mutex::new(Tracker::new(64, [5, 7])));
        let heard = Arc::default();
        Member {
            ways: Firewall::both(&policy, &tracker, &owner(&heard)),
            heard,
        }
    }

    fn burst(frame: &[u8], from: RxId, now: u64) -> Box<Heads> {
        let mut heads = Heads::boxed();
        heads.clear(from, Tick(now));
        let have = frame.len().min(SNAP);
        heads.snap[0].0[HEADROOM..HEADROOM + have].copy_from_slice(&frame[..have]);
        heads.admit(0, frame.len() as u32, Claim::NONE);
        heads.meta[0].vid = 9;
        heads.n = 1;
        heads
    }

    /// Whether the guest may send it.
    fn goes(&self, frame: &[u8], now: u64) -> bool {
        let mut heads = Self::burst(frame, RxId(7), now);
        self.ways[0].leave(&mut Leaving::new(&mut heads, &mut Nothing));
        heads.verdict[0] == Verdict::NONE
    }

    /// Whether the guest gets it.
    fn comes(&self, frame: &[u8], from: RxId, now: u64) -> bool {
        let heads = Self::burst(frame, from, now);
        let mut own = Heads::boxed();
        let picks = [Pick::frame(0, false)];
        let mut entering = Entering::new(&heads, &mut own, &picks);
        self.ways[1].enter(Tick(now), &mut entering);
        let fate = entering.fates().next().map(|(_, fate)| fate);
        assert!(matches!(
            fate,
            Some(Fate::Pass | Fate::Drop(Drop::FirewallIn))
        ));
        fate == Some(Fate::Pass)
    }

    fn told(&self) -> Vec<What> {
        let mut told = self.heard.0.lock().expect("no panic");
        assert!(told.iter().all(|told| told.member == RxId(7)));
        told.drain(..).map(|told| told.what).collect()
    }

    /// What was answered, to whom and in which VLAN.
    fn answers(&self) -> Vec<(RxId, u16, Vec<u8>)> {
        let answer = |what| match what {
            What::Answer { to, vid, answer } => Some((to, vid, answer.bytes().to_vec())),
            What::Event(_) => None,
        };
        self.told().into_iter().filter_map(answer).collect()
    }

    /// The answer to what the guest sends, if there is one.
    fn answer(&self, frame: &[u8]) -> Option<Vec<u8>> {
        assert!(!self.goes(frame, 100 * SECOND));
        let mut answers = self.answers();
        assert!(answers.len() <= 1);
        answers.pop().map(|(to, vid, answer)| {
            assert_eq!((to, vid), (RxId(7), 0));
            answer
        })
    }
}

fn v4(src: Ipv4Addr, dst: Ipv4Addr, proto: u8, payload: &[u8]) -> Vec<u8> {
    ethernet([4; 6], [2; 6], &[], IPV4, &ipv4(src, dst, proto, payload))
}

fn v6(src: Ipv6Addr, dst: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    ethernet([4; 6], [2; 6], &[], IPV6, &ipv6(src, dst, next, payload))
}

/// From port 1,000 to port 25, with sequence numbers 0x01020304 and 0x0a0b0c0d.
fn segment(flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut tcp = tcp();
    tcp.truncate(20);
    tcp[..12].copy_from_slice(&[3, 232, 0, 25, 1, 2, 3, 4, 10, 11, 12, 13]);
    (tcp[12], tcp[13]) = (5 << 4, flags);
    tcp.extend(payload);
    tcp
}

/// The sum of what is behind a network header, with the pseudo header where there is one.
fn sums_up(frame: &[u8]) -> bool {
    let l3 = parse(frame, frame.len() as u32).l3_at();
    let (at, proto, is_v4) = match frame[l3] >> 4 {
        4 => (l3 + 20, frame[l3 + 9], true),
        _ => (l3 + 40, frame[l3 + 6], false),
    };
    let payload = &frame[at..];
    let len = payload.len() as u16;
    let mut sum = match (is_v4, proto) {
        (true, 1) => return checksum::checksum(payload) == 0,
        (true, _) => checksum::pseudo_v4(
            frame[l3 + 12..].first_chunk().expect("an address"),
            frame[l3 + 16..].first_chunk().expect("an address"),
            proto,
            len,
        ),
        (false, _) => checksum::pseudo_v6(
            frame[l3 + 8..].first_chunk().expect("an address"),
            frame[l3 + 24..].first_chunk().expect("an address"),
            proto,
            len.into(),
        ),
    };
    sum.add_bytes(payload);
    let is_whole = !is_v4 || checksum::checksum(&frame[l3..l3 + 20]) == 0;
    is_whole && sum.finish() == 0
}

/// TCP is reset as RFC 9293 has it: by the number that the segment acknowledges, or else by one that acknowledges the segment, with what it carries and
/// without what pads it.
#[test]
fn tcp_is_reset() {
    let member = Member::new("reject out; accept");
    let answer = member
        .answer(&v4(GUEST, PEER, TCP, &segment(SYN, b"")))
        .expect("one");
    assert_eq!(&answer[..14], &[2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4, 8, 0]);
    assert_eq!(answer[26..34], [10, 0, 0, 2, 10, 0, 0, 1]);
    let tcp = |answer: &[u8], at: usize| {
        let word = |at: usize| u32::from_be_bytes(*answer[at..].first_chunk().expect("a word"));
        assert_eq!(answer[at..at + 4], [0, 25, 3, 232]);
        assert!(sums_up(answer) && answer.len() == at + 20);
        (word(at + 4), word(at + 8), answer[at + 13])
    };
    assert_eq!(tcp(&answer, 34), (0, 0x0102_0305, RST | ACK));
    let mut padded = v4(GUEST, PEER, TCP, &segment(SYN, b"fast"));
    padded.resize(64, 0);
    let answer = member.answer(&padded).expect("one");
    assert_eq!(tcp(&answer, 34), (0, 0x0102_0309, RST | ACK));
    let answer = member
        .answer(&v6(GUEST6, PEER6, TCP, &segment(ACK, b"data")))
        .expect("one");
    assert_eq!(tcp(&answer, 54), (0x0a0b_0c0d, 0, RST));
    for flags in [RST, RST | ACK] {
        let reset = v4(GUEST, PEER, TCP, &segment(flags, b""));
        assert_eq!(member.answer(&reset), None);
    }
}

/// Other packets are said to be prohibited, with the network header and 8 bytes of what they carry; tags stay.
#[test]
fn others_are_prohibited() {
    let member = Member::new("reject out; accept");
    let frame = v4(GUEST, PEER, UDP, &udp(1_000, 53, &[7; 100]));
    let answer = member.answer(&frame).expect("one");
    assert_eq!(answer[34..42], [3, 13, answer[36], answer[37], 0, 0, 0, 0]);
    assert_eq!(answer[42..], frame[14..14 + 28]);
    assert!(sums_up(&answer));
    let frame = v6(GUEST6, PEER6, UDP, &udp(1_000, 53, b""));
    let answer = member.answer(&frame).expect("one");
    assert_eq!(answer[54..56], [1, 1]);
    assert!(sums_up(&answer) && answer[62..] == frame[14..14 + 48]);
    let packet = ipv4(GUEST, PEER, 47, &[1; 9]);
    let frame = ethernet([4; 6], [2; 6], &[[0x81, 0, 0, 5]], IPV4, &packet);
    let answer = member.answer(&frame).expect("one");
    assert_eq!(answer[12..18], frame[12..18]);
    assert_eq!((answer[38], answer[39], answer.len()), (3, 13, 74));
    assert!(
        member
            .answer(&v4(GUEST, PEER, ICMP, &icmp(8, &[0; 4])))
            .is_some()
    );
}

/// Errors, groups, addresses of nobody and later parts get no answer, so that answers never answer each other and are never multiplied.
#[test]
fn some_are_never_answered() {
    let member = Member::new("reject out; accept");
    let payload = udp(1_000, 53, b"question");
    for kind in [0, 3, 4, 5, 11, 12, 13] {
        let frame = v4(GUEST, PEER, ICMP, &icmp(kind, &[0; 32]));
        assert_eq!(member.answer(&frame), None, "type {kind}");
    }
    for kind in [1, 2, 3, 4, 129, 137] {
        let frame = v6(GUEST6, PEER6, ICMP6, &icmp(kind, &[0; 60]));
        assert_eq!(member.answer(&frame), None, "type {kind}");
    }
    let hosts: [[u8; 4]; 5] = [
        [0; 4],
        [127, 0, 0, 1],
        [224, 0, 0, 1],
        [255; 4],
        [240, 0, 0, 1],
    ];
    for host in hosts.map(Ipv4Addr::from).into_iter().chain([GUEST]) {
        assert_eq!(
            member.answer(&v4(GUEST, host, UDP, &payload)),
            None,
            "to {host}"
        );
        let frame = v4(
            host,
            if host == GUEST { GUEST } else { PEER },
            UDP,
            &payload,
        );
        assert_eq!(member.answer(&frame), None, "from {host}");
    }
    for host in ["::", "::1", "ff02::1", "::ffff:10.0.0.2"] {
        let host = host.parse().expect("an address");
        assert_eq!(
            member.answer(&v6(GUEST6, host, UDP, &payload)),
            None,
            "to {host}"
        );
        assert_eq!(
            member.answer(&v6(host, PEER6, UDP, &payload)),
            None,
            "from {host}"
        );
    }
    for (dst, src) in [([255; 6], [2; 6]), ([3; 6], [2; 6]), ([4; 6], [3; 6])] {
        let frame = ethernet(dst, src, &[], IPV4, &ipv4(GUEST, PEER, UDP, &payload));
        assert_eq!(member.answer(&frame), None, "{dst:?} {src:?}");
    }
    let part = |mut frame: Vec<u8>, word: u16| {
        frame[20..22].copy_from_slice(&word.to_be_bytes());
        frame
    };
    let whole = v4(GUEST, PEER, UDP, &payload);
    assert!(member.answer(&part(whole.clone(), 0x2000)).is_some());
    assert_eq!(member.answer(&part(whole, 0x2001)), None);
    let syn = v4(GUEST, PEER, TCP, &segment(SYN, b""));
    assert_eq!(member.answer(&part(syn, 0x2000)), None);
}

/// Of what comes, only what was sent to the guest itself is answered, to the member that sent it and in its VLAN; an answer of another firewall passes unasked.
#[test]
fn senders_are_answered() {
    let member = Member::new("reject in; accept");
    let to_guest = ethernet(
        [2; 6],
        [4; 6],
        &[],
        IPV4,
        &ipv4(PEER, GUEST, UDP, &udp(1, 2, b"x")),
    );
    assert!(!member.comes(&to_guest, RxId(3), SECOND));
    let answers = member.answers();
    assert_eq!(answers.len(), 1);
    assert_eq!((answers[0].0, answers[0].1), (RxId(3), 9));
    assert_eq!(&answers[0].2[..12], &[4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2]);
    // Flooded: it is for somebody else.
    let to_other = ethernet([6; 6], [4; 6], &[], IPV4, &to_guest[14..]);
    assert!(!member.comes(&to_other, RxId(3), SECOND));
    assert!(member.answers().is_empty());
    assert!(member.comes(&to_guest, ANSWERS, SECOND));
    assert!(member.told().is_empty());
}

/// However many frames are rejected, a member sends a bounded number of answers, of bounded length, whatever the clock does.
#[test]
fn answers_are_bounded() {
    let member = Member::new("reject out; accept");
    let frames: Vec<_> = (0..50u8)
        .map(|n| {
            v4(
                Ipv4Addr::new(10, 0, 1, n),
                PEER,
                UDP,
                &udp(1_000, 53, &[n; 20]),
            )
        })
        .collect();
    let flood = |now: u64| {
        for frame in frames.iter().cycle().take(5_000) {
            assert!(!member.goes(frame, now));
        }
        let answers = member.answers();
        assert!(
            answers
                .iter()
                .all(|(.., answer)| answer.len() <= frames[0].len() + 8)
        );
        answers.len() as u64
    };
    assert_eq!(flood(100 * SECOND), ANSWERS_PER_S);
    assert_eq!(flood(100 * SECOND), 0);
    assert_eq!(flood(100 * SECOND + SECOND / 10), ANSWERS_PER_S / 10);
    assert_eq!(flood(7_000 * SECOND), ANSWERS_PER_S);
    assert_eq!(flood(50 * SECOND), 0, "the clock was set back");
    assert_eq!(flood(51 * SECOND), ANSWERS_PER_S);
}

/// A rule with `log` tells what it has decided, once for a connection; above the rate, or without room, events are left out and counted.
#[test]
fn rules_log() {
    let member = Member::new("accept log out udp to port 53; drop log in; accept");
    let question = v4(GUEST, PEER, UDP, &udp(1_000, 53, b"question"));
    let events = || {
        let event = |what| match what {
            What::Event(event) => Some(event),
            What::Answer { .. } => None,
        };
        member
            .told()
            .into_iter()
            .filter_map(event)
            .collect::<Vec<Event>>()
    };
    (0..3).for_each(|_| assert!(member.goes(&question, SECOND)));
    let first = events();
    assert_eq!(first.len(), 1);
    assert_eq!(&*first[0].rule, "accept log out udp to port 53");
    assert_eq!(
        (first[0].action, first[0].state),
        (Action::Accept, State::New)
    );
    assert_eq!(first[0].packet.ports, (1_000, 53));
    assert_eq!(first[0].left_out, 0);
    let unasked = ethernet(
        [2; 6],
        [4; 6],
        &[],
        IPV4,
        &ipv4(PEER, GUEST, UDP, &udp(9, 9, b"")),
    );
    let flood = |now: u64| {
        (0..5_000).for_each(|_| assert!(!member.comes(&unasked, RxId(3), now)));
        events()
    };
    assert_eq!(flood(SECOND).len() as u64, EVENTS_PER_S - 1);
    let later = flood(2 * SECOND + SECOND / EVENTS_PER_S);
    assert_eq!(later[0].left_out, 5_000 - (EVENTS_PER_S - 1));
    assert_eq!(later[1].left_out, 0);
    // Nobody takes what is told.
    let told = member.heard.0.lock().expect("no panic").len();
    assert_eq!(told, 0);
    let now = 10 * SECOND;
    for n in 0..ROOM as u64 / EVENTS_PER_S + 1 {
        (0..EVENTS_PER_S).for_each(|_| {
            member.comes(&unasked, RxId(3), now + n * SECOND);
        });
    }
    let told = events();
    assert_eq!(told.len(), ROOM);
    assert!(!member.comes(&unasked, RxId(3), now + 1_000 * SECOND));
    assert_eq!(events()[0].left_out, EVENTS_PER_S);
}

proptest! {
    /// Whatever is rejected, its answer can be read, goes to its sender, is no longer than it may be, and is itself never answered.
    #[test]
    fn answers_end(
        mut frame in prop_oneof![
            Just(v4(GUEST, PEER, TCP, &segment(SYN, b"data"))),
            Just(v6(GUEST6, PEER6, TCP, &segment(ACK, b""))),
            Just(v4(GUEST, PEER, UDP, &udp(1, 2, &[3; 30]))),
            Just(v6(GUEST6, PEER6, UDP, &udp(1, 2, &[3; 30]))),
            Just(v4(GUEST, PEER, ICMP, &icmp(8, &[0; 40]))),
            Just(ethernet([4; 6], [2; 6], &[[0x88, 0xa8, 0, 5], [0x81, 0, 0, 6]], IPV4, &ipv4(GUEST, PEER, 47, &[0; 60]))),
        ],
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        if let Some(cut) = cut {
            frame.truncate(cut.index(frame.len()).max(14));
        }
        let member = Member::new("reject; accept");
        member.goes(&frame, SECOND);
        let answers = member.answers();
        prop_assert!(answers.len() <= 1);
        for (_, _, answer) in answers {
            prop_assert!(answer.len() <= ANSWER_MAX);
            prop_assert_eq!(&answer[..6], &frame[6..12]);
            let layers = parse(&answer, answer.len() as u32);
            prop_assert_eq!(layers.fault, Fault::None);
            prop_assert!(sums_up(&answer));
            prop_assert!(!member.goes(&answer, SECOND));
            prop_assert!(member.answers().is_empty());
        }
    }
}

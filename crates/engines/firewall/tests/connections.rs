//! Frames through both directions of a firewall: connections, errors, parts of packets, floods, clocks, rules that change.

#[path = "../../nic/tests/packets/mod.rs"]
mod packets;

mod heard;
mod member;

use std::net::Ipv4Addr;

use member::*;
use packets::*;
use proptest::prelude::*;
use windlass_firewall::Decision;
use windlass_frame::Tick;

fn segment(from: u16, to: u16, flags: u8) -> Vec<u8> {
    let mut tcp = tcp();
    tcp[..2].copy_from_slice(&from.to_be_bytes());
    tcp[2..4].copy_from_slice(&to.to_be_bytes());
    tcp[7] = u8::from(flags & SYN == 0);
    tcp[11] = u8::from(flags & ACK != 0);
    tcp[13] = flags;
    tcp
}

/// Of the guest's port, to the peer's.
fn goes(from: u16, to: u16, flags: u8) -> Vec<u8> {
    v4(GUEST, PEER, TCP, &segment(from, to, flags))
}

/// Of the peer's port, to the guest's.
fn answers(from: u16, to: u16, flags: u8) -> Vec<u8> {
    v4(PEER, GUEST, TCP, &segment(from, to, flags))
}

fn asks(from: u16, to: u16) -> Vec<u8> {
    v4(GUEST, PEER, UDP, &udp(from, to, b"question"))
}

fn tells(from: u16, to: u16) -> Vec<u8> {
    v4(PEER, GUEST, UDP, &udp(from, to, b"answer"))
}

/// A part of a packet over IPv4, at an offset in bytes.
fn part(mut frame: Vec<u8>, number: u8, offset: u16, more: bool) -> Vec<u8> {
    frame[19] = number;
    let word = offset >> 3 | if more { 0x2000 } else { 0 };
    frame[20..22].copy_from_slice(&word.to_be_bytes());
    frame
}

/// A connection that the guest begins is heard; what the peer begins is not, nor what answers nothing.
#[test]
fn answers_pass() {
    let member = Member::new(&[CLIENT], 64);
    assert!(!member.comes(&answers(80, 1000, SYN)) && !member.comes(&answers(80, 1000, SYN | ACK)));
    assert!(member.out(&goes(1000, 80, SYN)));
    assert!(member.out(&goes(1000, 80, SYN)), "again");
    assert!(!member.comes(&answers(80, 1001, SYN | ACK)), "another port");
    assert!(member.comes(&answers(80, 1000, SYN | ACK)));
    assert!(member.out(&goes(1000, 80, ACK)) && member.comes(&answers(80, 1000, ACK)));
    assert!(
        !member.comes(&answers(80, 1000, SYN)),
        "a SYN begins, whatever is known"
    );
    assert!(!member.comes(&answers(80, 1000, SYN | FIN)) && !member.comes(&answers(80, 1000, 0)));
    assert!(!member.comes(&tells(53, 1000)));
    assert!(member.out(&asks(1000, 53)) && member.comes(&tells(53, 1000)));
    assert!(!member.comes(&tells(54, 1000)) && !member.comes(&tells(53, 999)));
    let six = |from: u16, to: u16| v6(PEER6, GUEST6, UDP, &udp(from, to, b"answer"));
    assert!(!member.comes(&six(53, 1000)), "of the other version");
    assert!(member.out(&v6(GUEST6, PEER6, UDP, &udp(1000, 53, b"question"))));
    assert!(member.comes(&six(53, 1000)));
}

/// A server's connection is begun by its peer; the guest may answer and not begin.
#[test]
fn a_server_answers() {
    let member = Member::new(
        &["accept in tcp to port 22; accept out state established; drop"],
        64,
    );
    assert!(!member.out(&goes(22, 5000, SYN)) && !member.out(&goes(22, 5000, SYN | ACK)));
    assert!(member.comes(&answers(5000, 22, SYN)) && member.out(&goes(22, 5000, SYN | ACK)));
    assert!(member.comes(&answers(5000, 22, ACK)) && member.out(&goes(22, 5000, ACK)));
    assert!(!member.comes(&answers(5000, 23, SYN)) && !member.out(&goes(22, 5001, ACK)));
    // A connection that is older than the daemon goes on where it may begin.
    assert!(member.comes(&answers(6000, 22, ACK)) && member.out(&goes(22, 6000, ACK)));
}

/// Echoes belong to who asks, errors to what they quote.
#[test]
fn messages() {
    let member = Member::new(&[CLIENT], 64);
    let echo = |kind: u8, id: u16| icmp(kind, &[id.to_be_bytes(), [0, 1]].concat());
    assert!(
        !member.comes(&v4(PEER, GUEST, ICMP, &echo(0, 7))),
        "an answer to nothing"
    );
    assert!(member.out(&v4(GUEST, PEER, ICMP, &echo(8, 7))));
    assert!(member.comes(&v4(PEER, GUEST, ICMP, &echo(0, 7))));
    assert!(!member.comes(&v4(PEER, GUEST, ICMP, &echo(0, 8))));
    assert!(
        !member.comes(&v4(PEER, GUEST, ICMP, &echo(8, 7))),
        "a question"
    );

    let quote =
        |packet: &[u8], kind: u8| v4(PEER, GUEST, ICMP, &icmp(kind, &[&[0; 4], packet].concat()));
    let asked = ipv4(GUEST, PEER, UDP, &udp(1000, 33434, b"probe"));
    assert!(!member.comes(&quote(&asked, 3)) && !member.comes(&quote(&asked, 11)));
    assert!(member.out(&asks(1000, 33434)));
    assert!(member.comes(&quote(&asked, 3)) && member.comes(&quote(&asked, 11)));
    assert!(!member.comes(&quote(&asked, 5)), "a redirect is no error");
    let mut elsewhere = quote(&asked, 3);
    elsewhere[33] = 9;
    assert!(!member.comes(&elsewhere), "told to somebody else");
    assert!(
        !member.comes(&quote(&ipv4(PEER, GUEST, UDP, &udp(1000, 33434, b"")), 3)),
        "its own"
    );
    assert!(!member.comes(&quote(&asked[..20], 3)) && !member.comes(&quote(&[], 3)));
    let asked = ipv6(GUEST6, PEER6, UDP, &udp(1000, 33434, b"probe"));
    let quote = v6(
        PEER6,
        GUEST6,
        ICMP6,
        &icmp(2, &[&[0; 4], &asked[..]].concat()),
    );
    assert!(!member.comes(&quote));
    assert!(member.out(&v6(GUEST6, PEER6, UDP, &udp(1000, 33434, b"probe"))));
    assert!(member.comes(&quote));
}

/// Neighbours are found whatever the rules are, and other protocols are free; a routed or other message is not.
#[test]
fn discovery_is_free() {
    let member = Member::new(&["drop"], 64);
    let told = neighbour(136, PEER6, &[]);
    assert!(member.comes(&v6(PEER6, GUEST6, ICMP6, &told)));
    let mut routed = v6(PEER6, GUEST6, ICMP6, &told);
    routed[21] = 254;
    assert!(!member.comes(&routed));
    assert!(!member.comes(&v6(
        PEER6,
        GUEST6,
        FRAGMENT,
        &fragment(ICMP6, 0, true, &told)
    )));
    assert!(!member.comes(&v6(PEER6, GUEST6, ICMP6, &icmp(137, &[0; 36]))));
    let request = ethernet(
        ALL,
        [4; 6],
        &[],
        ARP,
        &arp(1, ([4; 6], PEER), ([0; 6], GUEST)),
    );
    assert!(member.comes(&request) && member.comes(&ethernet(ALL, [4; 6], &[], 0x88cc, &[0; 50])));
}

/// Later parts go as the first did, never without it, and never over what was judged of it; whatever their tags and extension headers.
#[test]
fn parts_follow_the_first() {
    let rules = "accept in udp to port 53; accept in tcp to port 80; drop";
    let mut member = Member::new(&[rules], 256);
    let whole = tells(9, 53);
    assert!(
        !member.comes(&part(whole.clone(), 1, 8, true)),
        "before the first"
    );
    assert!(member.comes(&part(whole.clone(), 1, 0, true)));
    assert!(
        member.comes(&part(whole.clone(), 1, 8, true))
            && member.comes(&part(whole.clone(), 1, 800, false))
    );
    assert!(
        !member.comes(&part(whole.clone(), 2, 8, false)),
        "of another packet"
    );
    assert!(
        !member.out(&part(whole.clone(), 1, 8, false)),
        "the other way"
    );
    assert!(
        !member.comes(&part(tells(9, 54), 3, 0, true))
            && !member.comes(&part(tells(9, 54), 3, 8, false))
    );
    // A second first part with ports that are not allowed: the packet is done for.
    assert!(
        !member.comes(&part(tells(9, 54), 1, 0, true))
            && !member.comes(&part(whole.clone(), 1, 8, false))
    );
    // RFC 1858 and 3128: a header in two parts, and a part over the flags.
    let tiny = v4(PEER, GUEST, TCP, &segment(9, 80, ACK)[..8]);
    assert!(!member.comes(&part(tiny, 4, 0, true)));
    assert!(member.comes(&part(answers(9, 80, ACK), 5, 0, true)));
    assert!(
        !member.comes(&part(answers(9, 80, SYN), 5, 8, false))
            && !member.comes(&part(answers(9, 80, SYN), 5, 16, false))
    );
    assert!(member.comes(&part(answers(9, 80, SYN), 5, 24, false)));

    // Over IPv6 extension headers count: a part that says UDP over the header of what said options.
    let first = fragment(60, 0, true, &extension(UDP, &udp(9, 53, b"answer..")));
    assert!(member.comes(&v6(PEER6, GUEST6, FRAGMENT, &first)));
    let later = |offset| {
        v6(
            PEER6,
            GUEST6,
            FRAGMENT,
            &fragment(UDP, offset, false, &[0; 16]),
        )
    };
    assert!(!member.comes(&later(1)) && member.comes(&later(2)));
    let deep = (0..4).fold(fragment(UDP, 0, true, &udp(9, 53, &[0; 8])), |inner, n| {
        extension(if n == 0 { FRAGMENT } else { 60 }, &inner)
    });
    assert!(member.comes(&v6(PEER6, GUEST6, 60, &deep)));

    // What other rules have accepted says nothing.
    let (first, later) = (part(whole.clone(), 6, 0, true), part(whole, 6, 8, false));
    assert!(member.comes(&first) && member.comes(&later));
    member.set(&[rules]);
    assert!(!member.comes(&later));
    assert!(member.comes(&first) && member.comes(&later));
}

/// What is cut off anywhere, or claims more than it has, is dropped though everything is accepted.
#[test]
fn truncation_fails_closed() {
    let member = Member::new(&["accept"], 64);
    for whole in [
        answers(9, 80, ACK),
        tells(9, 53),
        v6(PEER6, GUEST6, TCP, &segment(9, 80, ACK)),
        v6(PEER6, GUEST6, 60, &extension(UDP, &udp(9, 53, b"x"))),
        ethernet(
            ALL,
            ALL,
            &[[0x81, 0, 0, 5]],
            IPV4,
            &ipv4(PEER, GUEST, UDP, &udp(9, 53, b"x")),
        ),
    ] {
        assert!(member.comes(&whole));
        for len in 0..whole.len() {
            assert!(!member.comes(&whole[..len]), "{len} of {whole:02x?}");
        }
    }
    let tags = [[0x81, 0, 0, 5]; 5];
    assert!(!member.comes(&ethernet(
        ALL,
        ALL,
        &tags,
        IPV4,
        &ipv4(PEER, GUEST, UDP, &udp(9, 53, b"x"))
    )));
    // LLC with IP's service access point.
    assert!(!member.comes(&[&[2; 12][..], &[0, 46, 6, 6, 3, 0x45], &[0; 43]].concat()));
}

/// Connections end: by time, by FIN, by RST; a RST alone ends nothing that goes on.
#[test]
fn connections_end() {
    let mut member = Member::new(&[CLIENT], 64);
    let open = |member: &Member| {
        assert!(member.out(&goes(1000, 80, SYN)) && member.comes(&answers(80, 1000, SYN | ACK)));
        assert!(member.out(&goes(1000, 80, ACK)));
    };
    open(&member);
    member.wait(7_000);
    assert!(member.comes(&answers(80, 1000, ACK)));
    member.wait(7_000);
    assert!(member.comes(&answers(80, 1000, ACK)));
    member.wait(7_500);
    assert!(!member.comes(&answers(80, 1000, ACK)));

    open(&member);
    assert!(member.comes(&answers(80, 1000, RST)));
    member.wait(5);
    assert!(
        member.comes(&answers(80, 1000, ACK)),
        "what is alive goes on"
    );
    member.wait(60);
    assert!(member.comes(&answers(80, 1000, ACK)));
    assert!(member.comes(&answers(80, 1000, RST | ACK)));
    member.wait(15);
    assert!(!member.comes(&answers(80, 1000, ACK)));

    open(&member);
    assert!(member.out(&goes(1000, 80, FIN | ACK)) && member.comes(&answers(80, 1000, FIN | ACK)));
    assert!(member.out(&goes(1000, 80, ACK)) && member.comes(&answers(80, 1000, ACK)));
    open(&member);
    member.wait(100);
    assert!(
        member.comes(&answers(80, 1000, ACK)),
        "the next one of the same ports"
    );

    assert!(member.out(&asks(1, 53)) && member.comes(&tells(53, 1)));
    member.wait(170);
    assert!(member.comes(&tells(53, 1)));
    member.wait(190);
    assert!(!member.comes(&tells(53, 1)));
}

/// A guest's rules narrow what the operator's let through, and do not widen it.
#[test]
fn owners_narrow() {
    let operator = "drop out tcp to port 25; drop in from 10.0.0.66";
    let evil = v4(Ipv4Addr::new(10, 0, 0, 66), GUEST, UDP, &udp(1, 2, b""));
    let member = Member::new(&[operator, "accept"], 64);
    assert!(
        !member.out(&goes(1, 25, SYN)) && !member.comes(&evil) && member.out(&goes(1, 80, SYN))
    );
    let member = Member::new(&[operator, "drop out tcp to port 80"], 64);
    assert!(!member.out(&goes(1, 25, SYN)) && !member.out(&goes(1, 80, SYN)));
    assert!(member.out(&goes(1, 81, SYN)));
}

/// Rules that change hold for what is established at once, in both directions, and back.
#[test]
fn changed_rules_hold_at_once() {
    let mut member = Member::new(&[CLIENT], 64);
    assert!(member.out(&asks(1, 53)) && member.comes(&tells(53, 1)) && member.out(&asks(1, 53)));
    for _ in 0..1_000 {
        member.set(&["drop in udp; accept"]);
        assert!(!member.comes(&tells(53, 1)) && member.out(&asks(1, 53)));
        member.set(&[CLIENT]);
        assert!(member.comes(&tells(53, 1)) && member.out(&asks(1, 53)));
    }
}

/// A flood of beginnings, inwards and outwards, ends no established connection; a table full of established ones refuses new ones and keeps
/// those; room comes back with time.
#[test]
fn floods_end_nothing() {
    let rules = "accept in tcp to port 80; accept out; accept in state established; drop in";
    let mut member = Member::new(&[rules], 256);
    for port in 0..60 {
        assert!(member.out(&goes(1000 + port, 443, SYN)));
        assert!(member.comes(&answers(443, 1000 + port, SYN | ACK)));
        assert!(member.out(&goes(1000 + port, 443, ACK)));
    }
    for n in 0..50_000u32 {
        let from = Ipv4Addr::from_bits(0x0b00_0000 | n);
        member.comes(&v4(from, GUEST, TCP, &segment(n as u16, 80, SYN)));
        member.out(&v4(GUEST, from, UDP, &udp(9, 9, b"")));
        if n % 1_000 == 0 {
            for port in 0..60 {
                assert!(
                    member.comes(&answers(443, 1000 + port, ACK)),
                    "{port} after {n}"
                );
            }
        }
    }
    let mut full = 0;
    for port in 2_000..4_000 {
        match member.judge(0, &goes(port, 443, SYN)) {
            Decision::Accept => {
                member.comes(&answers(443, port, SYN | ACK));
                member.out(&goes(port, 443, ACK));
            }
            decision => {
                assert_eq!(decision, Decision::Full);
                full += 1;
            }
        }
    }
    assert!((1_744..1_900).contains(&full), "{full} refused");
    for port in 0..60 {
        assert!(member.comes(&answers(443, 1000 + port, ACK)));
    }
    member.wait(8_000);
    assert!(member.out(&goes(5_000, 443, SYN)) && member.comes(&answers(443, 5_000, SYN | ACK)));
    // Without rules about connections nothing is refused for want of room.
    let member = Member::new(&["drop out tcp to port 25"], 16);
    for port in 1..500 {
        assert!(member.out(&asks(port, 53)) && member.comes(&tells(53, port)));
    }
}

/// A clock that jumps ahead ends connections early; one that jumps back makes none that never ends, nor any that lives longer.
#[test]
fn clocks_that_jump() {
    let mut member = Member::new(&[CLIENT], 64);
    member.now = 1_000_000 * SECOND;
    assert!(member.out(&asks(1, 53)) && member.comes(&tells(53, 1)));
    let before = member.now;
    for jump in [
        0,
        5 * SECOND,
        before - 50 * SECOND,
        before + 100_000 * SECOND,
        u64::MAX,
    ] {
        member.now = jump;
        member.comes(&tells(53, 1));
        assert!(
            member.out(&asks(1, 53)) && member.comes(&tells(53, 1)),
            "at {jump}"
        );
        member.now = jump.saturating_sub(1_000 * SECOND);
        member.comes(&tells(53, 1));
    }
    // 100 s back, and as long as a connection of UDP lives at most, and those 100 s.
    let mut member = Member::new(&[CLIENT], 64);
    member.now = before;
    assert!(member.out(&asks(1, 53)) && member.comes(&tells(53, 1)));
    member.now -= 100 * SECOND;
    member.wait(290);
    assert!(!member.comes(&tells(53, 1)));
}

proptest! {
    /// However rules and lists stand and whatever flows come again and again, each rule has counted just those frames that it decides.
    #[test]
    fn counts_are_those_of_a_walk(
        lists in proptest::collection::vec(proptest::collection::vec((any::<bool>(), any::<bool>(), 0usize..3, 0u16..4, 0u16..4), 0..6), 1..4),
        flows in proptest::collection::vec((any::<bool>(), 0u16..4, 0u16..3), 0..200),
    ) {
        let text = |rule: &(bool, bool, usize, u16, u16)| {
            let (accepts, count, way, first, more) = *rule;
            let action = if accepts { "accept" } else { "drop" };
            let count = if count { " count" } else { "" };
            format!("{action}{count}{} udp to port {first}-{}", ["", " in", " out"][way], first + more)
        };
        let texts: Vec<String> = lists.iter().map(|list| list.iter().map(text).collect::<Vec<_>>().join("; ")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let member = Member::new(&texts, 16);
        let mut expected: Vec<Vec<u64>> = lists.iter().map(|list| vec![0; list.len()]).collect();
        for (is_out, port, other) in flows {
            // Each flow goes one way: what answers would have its decision as well, and does.
            let (frame, way) = if is_out { (asks(100 + other, port), 0) } else { (tells(200 + other, port), 1) };
            let mut accepts = true;
            for (list, expected) in lists.iter().zip(&mut expected) {
                let hits = |(_, _, w, first, more): &(bool, bool, usize, u16, u16)| {
                    (*w == 0 || (*w == 2) == is_out) && (*first..=first + more).contains(&port)
                };
                if let Some(first) = list.iter().position(hits) {
                    expected[first] += 1;
                    accepts = list[first].0;
                    if !accepts {
                        break;
                    }
                }
            }
            prop_assert_eq!(member.judge(way, &frame) == Decision::Accept, accepts);
        }
        let expected: Vec<u64> = lists.iter().zip(&expected)
            .flat_map(|(list, counts)| list.iter().zip(counts))
            .filter(|(rule, _)| rule.1)
            .map(|(_, count)| *count)
            .collect();
        let counted: Vec<u64> = member.counted().iter().map(|c| c.1).collect();
        prop_assert_eq!(counted, expected);
    }

    /// Any bytes get a decision, in both directions, the same for a longer snapshot; what needs more bytes gets further with them.
    #[test]
    fn any_frames(frames in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..120), 0usize..6, 0usize..200), 1..40)) {
        let member = Member::new(&[CLIENT, "drop in udp to port 7; accept"], 32);
        for (bytes, kind, have) in frames {
            let whole = match kind {
                0 => bytes,
                1 => v4(PEER, GUEST, TCP, &bytes),
                2 => v4(PEER, GUEST, ICMP, &bytes),
                3 => v6(PEER6, GUEST6, FRAGMENT, &bytes),
                4 => v6(PEER6, GUEST6, 0, &bytes),
                _ => ethernet([2; 6], [4; 6], &[[0x81, 0, 0, 1]], IPV4, &bytes),
            };
            let firewall = &member.ways[have % 2];
            let mut tracker = firewall.lock();
            let mut have = have.min(whole.len());
            while let Decision::Need(upto) = firewall.judge(&mut tracker, Tick(member.now), &whole[..have], whole.len() as u32) {
                prop_assert!(upto > have && upto <= whole.len());
                have = upto;
            }
        }
    }
}

/// Rules that count do so for whatever they decide: what begins, what is established, what is refused, later parts, errors about a connection; each
/// list counts what it was asked about.
#[test]
fn rules_count() {
    let base = "drop count udp to port 9; accept count udp; accept";
    let own = "accept count out; accept count in state established,related; drop count in";
    let member = Member::new(&["", base, own], 64);
    let (question, answer) = (asks(1_000, 53), tells(53, 1_000));
    for _ in 0..3 {
        assert!(member.out(&question));
        assert!(member.comes(&answer));
    }
    assert!(!member.out(&asks(1_000, 9)));
    assert!(!member.comes(&tells(53, 1_001)));
    let (q, a) = (question.len() as u64, answer.len() as u64);
    let expected = [
        (1, 1, q),
        (1, 7, 3 * q + 4 * a),
        (2, 3, 3 * q),
        (2, 3, 3 * a),
        (2, 1, a),
    ];
    assert_eq!(member.counted(), expected);
    // Parts go, and count, as the first.
    let first = part(asks(1_000, 53), 7, 0, true);
    let later = part(asks(1_000, 53), 7, 32, false);
    assert!(member.out(&first) && member.out(&later));
    assert_eq!(member.counted()[2].1, 5);
    let refused = part(asks(1_000, 9), 8, 0, true);
    assert!(!member.out(&refused) && !member.out(&part(asks(1_000, 9), 8, 32, false)));
    assert_eq!(member.counted()[0].1, 2, "a later part of it is no rule's");
    let unreachable = v4(
        PEER,
        GUEST,
        ICMP,
        &icmp(3, &[&[0; 4], &question[14..]].concat()),
    );
    assert!(member.comes(&unreachable));
    assert_eq!(member.counted()[3].1, 4);
}

/// A rule goes on counting when others come and go, also for connections that were there before; nothing is counted twice.
#[test]
fn counts_survive_other_rules() {
    let mut member = Member::new(&["accept count out udp; accept"], 64);
    let question = asks(1_000, 53);
    (0..2).for_each(|_| assert!(member.out(&question)));
    member.set(&["drop count in tcp; accept count out udp; accept"]);
    (0..3).for_each(|_| assert!(member.out(&question)));
    let counted: Vec<u64> = member.counted().iter().map(|c| c.1).collect();
    assert_eq!(counted, [0, 5]);
    member.set(&["accept out udp; accept"]);
    assert!(member.out(&question) && member.counted().is_empty());
    member.set(&["accept count out udp; accept"]);
    assert!(member.out(&question));
    assert_eq!(member.counted()[0].1, 1);
}

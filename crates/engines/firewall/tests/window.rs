//! Sequence numbers of TCP through both directions of a firewall: what is forged is dropped and changes nothing, and what two real ends say passes.

#[path = "../../nic/tests/packets/mod.rs"]
mod packets;

mod ends;
mod heard;
mod member;

use ends::{Flow, Seg};
use member::*;
use packets::{ICMP, icmp};
use windlass_firewall::Decision;

/// Anybody may begin; what is neither a begin nor an answer is refused.
const ANY: &str = "accept state new,established; drop";
const OUT: usize = 0;
const IN: usize = 1;
/// First numbers of the guest and of its peer: both wrap soon.
const ISN: [u32; 2] = [0xffff_ff00, 0xffff_fff0];

/// A connection that the guest began: both windows are 64,000 bytes without scale, nothing was sent.
fn open(flow: &Flow, member: &Member) {
    for seg in handshake([None, None], [64_000, 64_000]) {
        assert_eq!(flow.judge(member, &seg), Decision::Accept);
    }
}

/// A SYN, its answer, and the acknowledgement of that.
fn handshake(scales: [Option<u8>; 2], windows: [u16; 2]) -> [Seg; 3] {
    let syn = Seg {
        seq: ISN[OUT],
        flags: SYN,
        window: windows[OUT],
        scale: scales[OUT],
        ..Seg::of(OUT)
    };
    let answer = Seg {
        seq: ISN[IN],
        ack: ISN[OUT].wrapping_add(1),
        flags: SYN | ACK,
        window: windows[IN],
        scale: scales[IN],
        ..Seg::of(IN)
    };
    [syn, answer, at(OUT, 0, 0).offers(windows[OUT])]
}

/// A segment whose sender has sent `own` bytes before it, and acknowledges as many of the other's.
fn at(way: usize, own: i64, other: i64) -> Seg {
    let number = |isn: u32, bytes: i64| isn.wrapping_add(1).wrapping_add(bytes as u32);
    Seg {
        seq: number(ISN[way], own),
        ack: number(ISN[1 - way], other),
        flags: ACK,
        window: 64_000,
        ..Seg::of(way)
    }
}

fn passes(flow: &Flow, member: &Member, seg: Seg) {
    assert_eq!(flow.judge(member, &seg), Decision::Accept, "{seg:?}");
}

fn is_outside(flow: &Flow, member: &Member, seg: Seg) {
    assert_eq!(flow.judge(member, &seg), Decision::Outside, "{seg:?}");
}

/// The attack of RFC 5961: resets that do not know the connection's numbers are dropped; one elsewhere in the window passes, to be challenged, and
/// changes nothing; the next number resets. So over each version of IP, with a tag, and from either side.
#[test]
fn blind_resets() {
    for flow in Flow::all() {
        for way in [OUT, IN] {
            let mut member = Member::new(&[ANY], 64);
            open(&flow, &member);
            passes(&flow, &member, at(OUT, 0, 0).carries(1_000));
            passes(&flow, &member, at(IN, 0, 1_000).carries(500));
            passes(&flow, &member, at(OUT, 1_000, 500));
            let sent = if way == OUT { 1_000 } else { 500 };
            let reset = |bytes: i64| Seg {
                flags: RST,
                ack: 0,
                ..at(way, bytes, 0)
            };
            for far in [-1, -60_000, 64_001, 70_000, 1 << 20, 1 << 30, 1 << 31] {
                is_outside(&flow, &member, reset(sent + far));
            }
            for bytes in (0..1u32 << 14).map(|n| n.wrapping_mul(0x9e37_79b9)) {
                let seg = reset(bytes.into());
                let is_in = (0..=64_000).contains(&(bytes as i32 - sent as i32));
                let passes = flow.judge(&member, &seg) == Decision::Accept;
                assert_eq!(passes, is_in, "{seg:?}");
            }
            passes(&flow, &member, reset(sent + 10_000));
            // A number of this connection beside an acknowledgement of none.
            is_outside(
                &flow,
                &member,
                Seg {
                    flags: RST | ACK,
                    ..at(way, sent, 1 << 20)
                },
            );
            member.wait(3_600);
            passes(&flow, &member, at(1 - way, 1_500 - sent, sent));
            passes(&flow, &member, reset(sent));
            member.wait(15);
            let later = at(1 - way, 1_500 - sent, sent);
            let later = flow.judge(
                &member,
                &Seg {
                    flags: RST,
                    ..later
                },
            );
            assert_eq!(later, Decision::Drop, "nothing is known of it any more");
        }
    }
}

/// Data that was forged without the numbers is dropped, moves no bound, and keeps nothing alive.
#[test]
fn forged_data() {
    let flow = Flow::default();
    let mut member = Member::new(&[ANY], 64);
    open(&flow, &member);
    for (own, other) in [
        (64_001, 0),
        (1 << 30, 0),
        (-64_500, 0),
        (-(1 << 30), 0),
        (0, 1),
        (0, 1 << 20),
        (0, -130_001),
        (0, 1 << 31),
    ] {
        is_outside(&flow, &member, at(IN, own, other).carries(100));
        is_outside(&flow, &member, at(OUT, own, other).carries(100));
        let fin = Seg {
            flags: FIN | ACK,
            ..at(IN, own, other)
        };
        is_outside(&flow, &member, fin);
    }
    passes(&flow, &member, at(IN, 0, 0).carries(100));
    passes(&flow, &member, at(OUT, 0, 100).carries(100));
    member.wait(7_400);
    is_outside(&flow, &member, at(IN, 1 << 20, 0));
    member.wait(100);
    assert_eq!(
        flow.judge(
            &member,
            &Seg {
                flags: RST,
                ..at(IN, 0, 0)
            }
        ),
        Decision::Drop
    );
}

/// Retransmissions, keep-alives, probes of a closed window, windows that shrink, and segments that come late.
#[test]
fn what_is_old_passes() {
    let flow = Flow::default();
    let member = Member::new(&[ANY], 64);
    open(&flow, &member);
    for _ in 0..3 {
        passes(&flow, &member, at(OUT, 0, 0).carries(64_000));
        passes(&flow, &member, at(OUT, 0, 0).carries(1_460));
        passes(&flow, &member, at(OUT, 62_540, 0).carries(1_460));
    }
    // Closed: the probe is the byte behind the window, or one that is acknowledged.
    passes(&flow, &member, at(IN, 0, 64_000).offers(0));
    passes(&flow, &member, at(OUT, 64_000, 0).carries(1));
    passes(&flow, &member, at(OUT, 63_999, 0));
    is_outside(&flow, &member, at(OUT, 64_001, 0).carries(1));
    passes(&flow, &member, at(IN, 0, 64_000).offers(0));
    passes(&flow, &member, at(IN, 0, 64_001).offers(10_000));
    passes(&flow, &member, at(OUT, 64_001, 0).carries(10_000));
    // Keep-alives, without and with a byte, and what answers them.
    for bytes in [0, 1] {
        passes(&flow, &member, at(OUT, 74_000, 0).carries(bytes));
        passes(&flow, &member, at(IN, -1, 74_001).carries(bytes));
    }
    // Late ones.
    passes(&flow, &member, at(IN, 0, 64_000));
    passes(&flow, &member, at(OUT, 10_001, 0).carries(1_000));
    is_outside(&flow, &member, at(OUT, 8_900, 0).carries(1_000));
}

/// Windows have the scales of both SYNs, or none if one of them has none; super-segments count as long as they are.
#[test]
fn scales() {
    for (scales, limit) in [
        ([Some(7), Some(3)], 1_000 << 3),
        ([Some(0), Some(14)], 1_000 << 14),
        ([Some(7), Some(200)], 1_000 << 14),
        ([None, Some(7)], 1_000),
        ([Some(7), None], 1_000),
    ] {
        for flow in Flow::all() {
            let member = Member::new(&[ANY], 64);
            for seg in handshake(scales, [1_000, 1_000]) {
                passes(&flow, &member, seg);
            }
            // The window of the SYN itself has no scale.
            is_outside(&flow, &member, at(OUT, 1_001, 0).carries(1));
            passes(&flow, &member, at(IN, 0, 0).offers(1_000));
            is_outside(&flow, &member, at(OUT, limit + 1, 0).carries(1));
            let mut sent = 0;
            while sent < limit {
                let size = 65_000.min(limit - sent);
                passes(&flow, &member, at(OUT, sent, 0).carries(size as u32));
                sent += size;
            }
            passes(&flow, &member, at(IN, 0, limit).offers(1_000));
            is_outside(&flow, &member, at(IN, 0, limit + 1).offers(1_000));
        }
    }
}

/// More bytes than there are numbers, in super-segments, with a whole window in flight and the first of them repeated.
#[test]
fn numbers_wrap_around() {
    let flow = Flow::default();
    let member = Member::new(&[ANY], 64);
    for seg in handshake([Some(10), Some(10)], [60_000, 60_000]) {
        passes(&flow, &member, seg);
    }
    passes(&flow, &member, at(IN, 0, 0).offers(60_000));
    let (size, window) = (65_000, 60_000 << 10);
    let mut acked = 0i64;
    for n in 0..100_000 {
        let sent = n * size;
        passes(&flow, &member, at(OUT, sent, 0).carries(65_000));
        if sent + size - acked > window - 2 * size {
            passes(&flow, &member, at(OUT, acked, 0).carries(1_000));
            acked = sent + size;
            passes(&flow, &member, at(IN, 0, acked).offers(60_000));
            is_outside(&flow, &member, at(OUT, acked + window + 1, 0));
        }
    }
    assert!(acked > 1 << 32);
}

/// Both sides begin at once; a begin is refused, and only by a reset that answers it.
#[test]
fn begins() {
    let flow = Flow::default();
    let member = Member::new(&[ANY], 64);
    for way in [OUT, IN] {
        let [syn, ..] = handshake([Some(7), Some(7)], [1_000; 2]);
        let syn = Seg {
            way,
            seq: ISN[way],
            ..syn
        };
        passes(&flow, &member, syn);
    }
    for way in [OUT, IN] {
        let answer = Seg {
            flags: SYN | ACK,
            ..at(way, -1, 0)
        };
        passes(&flow, &member, answer);
    }
    passes(&flow, &member, at(OUT, 0, 0).carries(100));
    passes(&flow, &member, at(IN, 0, 100));
    is_outside(&flow, &member, at(IN, 1 << 24, 0));

    let mut member = Member::new(&[CLIENT], 64);
    let [syn, answer, _] = handshake([None; 2], [1_000; 2]);
    passes(&flow, &member, syn);
    let reset = Seg {
        seq: 0,
        flags: RST | ACK,
        ..at(IN, 0, 0)
    };
    for wrong in [
        Seg { ack: 0, ..reset },
        Seg {
            ack: ISN[OUT],
            ..reset
        },
        Seg {
            flags: RST,
            ..reset
        },
        Seg {
            ack: ISN[OUT].wrapping_add(2),
            ..answer
        },
    ] {
        is_outside(&flow, &member, wrong);
    }
    passes(&flow, &member, reset);
    member.wait(15);
    assert_eq!(flow.judge(&member, &reset), Decision::Drop);
}

/// Another connection between the same ports: in TIME-WAIT, after an end that nobody saw, when one side has lost its memory. A SYN alone changes
/// nothing.
#[test]
fn ports_are_used_again() {
    let flow = Flow::default();
    for fins in [0, 1] {
        let member = Member::new(&[CLIENT], 64);
        open(&flow, &member);
        if fins == 1 {
            for (way, own, other) in [(OUT, 0, 0), (IN, 0, 1)] {
                let flags = FIN | ACK;
                passes(
                    &flow,
                    &member,
                    Seg {
                        flags,
                        ..at(way, own, other)
                    },
                );
            }
            passes(&flow, &member, at(OUT, 1, 1));
        }
        // Of other first numbers.
        let new = |way: usize, own: i64, other: i64, flags: u8| {
            let seg = at(way, own + (1 << 28), other + (1 << 28));
            let is_answer = flags & ACK != 0;
            Seg {
                flags,
                ack: if is_answer { seg.ack } else { 0 },
                ..seg
            }
        };
        let (syn, answer) = (new(OUT, -1, 0, SYN), new(IN, -1, 0, SYN | ACK));
        is_outside(&flow, &member, answer);
        passes(&flow, &member, syn);
        // The peer challenges what it does not expect, and is told (RFC 9293, section 3.5.1).
        passes(&flow, &member, at(IN, fins, fins));
        passes(
            &flow,
            &member,
            Seg {
                flags: RST,
                ..at(OUT, fins, 0)
            },
        );
        passes(&flow, &member, syn);
        let refused = new(IN, 0, 0, RST | ACK);
        passes(&flow, &member, Seg { seq: 0, ..refused });
        is_outside(&flow, &member, new(IN, -1, 1, SYN | ACK));
        passes(&flow, &member, answer);
        passes(&flow, &member, new(OUT, 0, 0, ACK).carries(1_000));
        is_outside(&flow, &member, at(IN, fins, fins));
        passes(&flow, &member, new(IN, 0, 1_000, ACK));
    }
}

/// A connection that is older than its entry goes on, wherever it is in its windows; numbers far from it do not.
#[test]
fn older_connections_go_on() {
    let flow = Flow::default();
    for first in [OUT, IN] {
        let member = Member::new(&[ANY], 64);
        // With a closed window, an unknown scale, and much in flight that was sent before.
        passes(&flow, &member, at(first, 0, 0).offers(0));
        passes(&flow, &member, at(1 - first, 800 << 20, 0));
        passes(&flow, &member, at(first, 0, 900 << 20).offers(1));
        passes(&flow, &member, at(1 - first, 0, 0).carries(1_000));
        is_outside(&flow, &member, at(first, 2 << 30, 0));
        is_outside(&flow, &member, at(first, 0, (900 << 20) + (2 << 30)));
        is_outside(
            &flow,
            &member,
            Seg {
                flags: RST,
                ..at(1 - first, -1, 0)
            },
        );
    }
}

/// A connection that is older than its entry goes on however much one direction carries that nobody sees answered.
#[test]
fn an_older_connection_may_be_seen_one_way() {
    let flow = Flow::default();
    for way in [OUT, IN] {
        let member = Member::new(&[ANY], 64);
        for n in 0..100_000 {
            passes(&flow, &member, at(way, n * 65_000, n).carries(65_000));
        }
    }
}

/// What is forged without the numbers of a connection that is older than its entry does not move its bounds away: not before its ends have
/// spoken, and not after it.
#[test]
fn forgeries_do_not_end_an_older_connection() {
    let flow = Flow::default();
    for speaks in [false, true] {
        for begin in (0..16).map(|n| n << 28) {
            let member = Member::new(&[ANY], 64);
            if speaks {
                passes(&flow, &member, at(OUT, 0, 0).carries(100));
                passes(&flow, &member, at(IN, 0, 100).carries(100));
            }
            // Each acknowledges less than a largest window more than the one before.
            for n in 0..16i64 {
                for own in [0, 1 << 31, (65_535 << 14) - begin] {
                    let seg = at(IN, begin + own, begin + n * 1_000_000_000);
                    flow.judge(&member, &seg.carries(1_000));
                }
            }
            for n in 1..3 {
                passes(&flow, &member, at(OUT, n * 100, n * 100).carries(100));
                passes(&flow, &member, at(IN, n * 100, n * 100 + 100).carries(100));
            }
        }
    }
}

/// Rules that ask nothing about connections refuse nothing for its numbers, and a guest that sees one direction only loses nothing.
#[test]
fn what_is_not_asked_is_not_held_against_it() {
    let flow = Flow::default();
    let member = Member::new(&["drop out tcp to port 25"], 64);
    open(&flow, &member);
    passes(&flow, &member, at(IN, 1 << 30, 1 << 30));
    passes(&flow, &member, at(OUT, 1 << 30, 1 << 30));
    let member = Member::new(&[ANY], 64);
    let [syn, ..] = handshake([Some(7); 2], [1_000; 2]);
    passes(&flow, &member, syn);
    for n in 0..100_000 {
        passes(&flow, &member, at(OUT, n * 65_000, n).carries(65_000));
    }
    passes(&flow, &member, at(IN, 0, 100_000 * 65_000));
    passes(&flow, &member, at(OUT, 100_000 * 65_000, 0).carries(1_000));
}

/// An ICMP error belongs to a connection if it quotes a number that is in flight (RFC 5927).
#[test]
fn errors_quote_what_is_in_flight() {
    let flow = Flow::default();
    let member = Member::new(&[CLIENT], 64);
    open(&flow, &member);
    passes(&flow, &member, at(OUT, 0, 0).carries(1_000));
    let error = |bytes: i64| {
        let (quoted, _) = flow.frame(&at(OUT, bytes, 0));
        let message = icmp(3, &[&[0; 4], &quoted[14..14 + 28]].concat());
        v4(PEER, GUEST, ICMP, &message)
    };
    for (bytes, is_related) in [
        (0, true),
        (1_000, true),
        (1_001, false),
        (1 << 20, false),
        (-64_000, false),
    ] {
        assert_eq!(member.comes(&error(bytes)), is_related, "{bytes}");
    }
}

/// Segments in parts: nobody knows how much they carry, and what is acknowledged of them passes.
#[test]
fn parts_carry_more() {
    let flow = Flow::default();
    let member = Member::new(&[ANY], 64);
    open(&flow, &member);
    let (mut first, _) = flow.frame(&at(OUT, 0, 0).carries(8));
    first.resize(14 + 20 + 20 + 8, 0);
    first[20] = 0x20;
    assert!(member.out(&first));
    passes(&flow, &member, at(IN, 0, 8_000));
}

/// Two ends over a network that loses, repeats and swaps what they send, before and behind the firewall: it passes all of it, whether it saw the begin or not, and
/// whatever the windows and the first numbers are.
#[test]
fn real_ends_lose_nothing() {
    for seed in 1..400 {
        ends::talk(seed, ANY);
    }
}

//! A guest that breaks the rules: each trick ends in one counted drop, or in the end of its own queue, and in nothing
//! else.
#![allow(missing_docs)]

mod vhost_drive;

use proptest::prelude::*;
use vhost_drive::*;
use windlass_attach::port::{More, Stop};
use windlass_attach::vhost_user::features::*;
use windlass_frame::{BURST, Claim, FRAME_MAX};
use windlass_stats::Drop;

const AT: u64 = HIGH + 4096;
const TABLE: u64 = LOW + 0x9_0000;

/// What one trick is expected to end in; a good frame behind it always arrives.
fn one_bad_chain(features: u64, expected: Drop, prepare: impl FnOnce(&mut Virtq) -> u16) {
    let guest = Guest::new();
    let mut up = Virtq::new(&guest, 0, 128, 0);
    let mut rx = up.rx(features);
    let good = with_header(70, 5);
    guest.write(AT, &good);
    let head = prepare(&mut up);
    up.stage(head);
    up.set(100, AT, 82, 0, 0);
    up.offer(100);
    let mut station = Station::new();
    let got = station.receive(&mut rx);
    assert_eq!(got, [Err(expected), Ok(good[HEADER..].to_vec())]);
    assert_eq!(up.reap(), [(head, 0), (100, 0)]);
    assert!(station.receive(&mut rx).is_empty(), "consumed once");
    assert!(!guest.map.is_dead());
}

/// Chains in the descriptor table that are no frame.
#[test]
fn bad_chains() {
    let bad = |prepare: &dyn Fn(&mut Virtq) -> u16| one_bad_chain(0, Drop::BadDescriptor, prepare);
    bad(&|_| 128);
    bad(&|_| 0xffff);
    bad(&|q| {
        q.set(0, AT, 40, NEXT, 128);
        0
    });
    bad(&|q| {
        q.set(0, AT, 82, WRITE, 0);
        0
    });
    bad(&|q| {
        q.set_chain(0, &[(AT, 40)], 0);
        q.set(0, AT, 40, NEXT, 1);
        q.set(1, AT, 40, WRITE, 0);
        0
    });
    for (addr, len) in [
        (HIGH + HIGH_BYTES - 81, 82),
        (LOW + LOW_BYTES - 10, 82),
        (u64::MAX - 20, 82),
        (u64::MAX - 20, u32::MAX),
        (AT, u32::MAX),
        (0, 82),
        (HIGH + HIGH_BYTES, 82),
    ] {
        bad(&|q| {
            q.set(0, addr, len, 0, 0);
            0
        });
        bad(&|q| {
            q.set_chain(0, &[(AT, 30), (addr, len)], 0);
            0
        });
    }
    // Fewer bytes than the header, or exactly those.
    for len in [0, 11, 12] {
        bad(&|q| {
            q.set(0, AT, len, 0, 0);
            0
        });
    }
    one_bad_chain(0, Drop::Runt, |q| {
        q.set(0, AT, 25, 0, 0);
        0
    });
    one_bad_chain(0, Drop::Giant, |q| {
        q.set(0, AT, 13 + FRAME_MAX as u32, 0, 0);
        0
    });
    // Not agreed on.
    bad(&|q| {
        q.set_table(0, TABLE, &[(AT, 82)], 0);
        0
    });
}

/// Loops and endless chains, of bytes and of nothing, end at the limit.
#[test]
fn loops_end() {
    let long = |prepare: &dyn Fn(&mut Virtq) -> u16| {
        one_bad_chain(INDIRECT_DESC, Drop::ChainTooLong, prepare);
    };
    for len in [0, 1, 60] {
        long(&|q| {
            q.set(0, AT, len, NEXT, 0);
            0
        });
        long(&|q| {
            q.set(0, AT, len, NEXT, 1);
            q.set(1, AT, len, NEXT, 0);
            0
        });
    }
    long(&|q| {
        q.set_chain(0, &[(AT, 2); 65], 0);
        0
    });
    long(&|q| {
        q.set_table(0, TABLE, &[(AT, 1); 65], 0);
        0
    });
    long(&|q| {
        q.guest.write(TABLE, &Virtq::desc_bytes(AT, 1, NEXT, 0));
        q.set(0, TABLE, 16, INDIRECT, 0);
        0
    });
    // 40 before the table and 25 in it.
    long(&|q| {
        q.set_table(39, TABLE, &[(AT, 1); 26], 0);
        q.set_chain(0, &[(AT, 1); 40], 0);
        q.set(38, AT, 1, NEXT, 39);
        q.set(39, TABLE, 26 * 16, INDIRECT, 0);
        0
    });
}

/// Indirect tables that are none.
#[test]
fn bad_tables() {
    let bad = |prepare: &dyn Fn(&mut Virtq) -> u16| {
        one_bad_chain(INDIRECT_DESC, Drop::BadDescriptor, prepare);
    };
    bad(&|q| {
        q.guest
            .write(TABLE, &Virtq::desc_bytes(TABLE, 16, INDIRECT, 0));
        q.set(0, TABLE, 16, INDIRECT, 0);
        0
    });
    for len in [0, 8, 17, 31] {
        bad(&|q| {
            q.set_table(0, TABLE, &[(AT, 82)], 0);
            q.set(0, TABLE, len, INDIRECT, 0);
            0
        });
    }
    bad(&|q| {
        q.set_table(0, TABLE, &[(AT, 82)], 0);
        q.set(0, TABLE, 16, INDIRECT | NEXT, 1);
        0
    });
    bad(&|q| {
        q.set(0, LOW + LOW_BYTES - 16, 32, INDIRECT, 0);
        0
    });
    bad(&|q| {
        q.guest.write(TABLE, &Virtq::desc_bytes(AT, 40, NEXT, 1));
        q.set(0, TABLE, 16, INDIRECT, 0);
        0
    });
    bad(&|q| {
        q.set_table(0, TABLE, &[(AT, 82)], WRITE);
        0
    });
}

/// The longest chains that are allowed arrive: 64 descriptors, 64 in a table, 63 before a table of one (the
/// descriptor that names a table does not count), descriptors without bytes among them, and one byte in each.
#[test]
fn longest_chains_arrive() {
    let guest = Guest::new();
    let mut up = Virtq::new(&guest, 0, 256, 0);
    let mut rx = up.rx(INDIRECT_DESC | CSUM);
    let mut bytes = with_header(52, 5);
    bytes[0] = Claim::NEEDS_CSUM;
    bytes[6] = 34;
    guest.write(AT, &bytes);
    let single: Vec<(u64, u32)> = (0..64).map(|i| (AT + i, 1)).collect();
    up.set_chain(0, &single, 0);
    up.stage(0);
    up.set_table(70, TABLE, &single, 0);
    up.stage(70);
    up.set_chain(80, &single, 0);
    up.set_table(143, TABLE + 4096, &single[63..], 0);
    up.stage(80);
    let mut sparse = vec![(0, 0); 62];
    sparse.insert(31, (AT + 5, 59));
    sparse.insert(7, (AT, 5));
    up.set_chain(150, &sparse, 0);
    up.offer(150);
    let mut station = Station::new();
    station.visit(&mut rx, |_, heads, tails, _| {
        assert_eq!(heads.n, 4);
        for i in 0..4 {
            assert_eq!(
                frame(heads, tails, i).expect("frame"),
                bytes[HEADER..],
                "{i}"
            );
            assert_eq!(heads.meta[i].claim.csum_start, 34);
        }
    });
}

/// A burst of the worst chains is bounded: it ends early and goes on at the next visit, without losing any.
#[test]
fn work_of_a_burst_is_bounded() {
    let guest = Guest::new();
    let mut up = Virtq::new(&guest, 0, 128, 0);
    let mut rx = up.rx(0);
    up.set(0, AT, 0, NEXT, 0);
    let many: Vec<(u64, u32)> = (0..64).map(|i| (AT + i * 100, 100)).collect();
    up.set_chain(1, &many, 0);
    for i in 0..128 {
        up.stage(i % 2);
    }
    up.publish();
    let mut station = Station::new();
    let mut all = Vec::new();
    let mut visits = 0;
    while all.len() < 128 {
        let got = station.receive(&mut rx);
        assert!((1..=17).contains(&got.len()), "{} frames", got.len());
        all.extend(got);
        visits += 1;
    }
    assert!(visits >= 8);
    for (i, got) in all.iter().enumerate() {
        match i % 2 {
            0 => assert_eq!(*got, Err(Drop::ChainTooLong)),
            _ => assert_eq!(got.as_ref().map(Vec::len), Ok(6388)),
        }
    }
    assert_eq!(up.reap().len(), 128);
}

/// An index that jumps by more than the ring ends the queue, both ways.
#[test]
fn impossible_indexes() {
    for jump in [129, 0x8000, 0xffff] {
        let guest = Guest::new();
        let up = Virtq::new(&guest, 0, 128, 0);
        let mut rx = up.rx(0);
        up.set16(up.avail + 2, jump);
        let mut station = Station::new();
        let got = station.visit(&mut rx, |_, heads, _, more| (heads.n, more));
        assert_eq!(got, (0, More::Dead));
        assert!(guest.map.is_dead());

        let guest = Guest::new();
        let down = Virtq::new(&guest, 0, 128, 0);
        let tx = down.tx(MRG_RXBUF);
        down.set16(down.avail + 2, jump);
        let sent = station.send(&tx, ONE, &[vec![2; 60]]);
        assert_eq!((sent.taken, sent.stop), (0, Stop::Down));
        assert!(guest.map.is_dead());
    }
}

/// Receive buffers that cannot be written are given back empty, each at the cost of one frame; the next buffer takes
/// the next frame.
#[test]
fn bad_receive_buffers() {
    let bad: &[&dyn Fn(&Virtq)] = &[
        &|q| q.set(0, AT, 100, 0, 0),
        &|q| q.set(0, HIGH + HIGH_BYTES - 50, 100, WRITE, 0),
        &|q| q.set(0, u64::MAX - 50, 100, WRITE, 0),
        &|q| q.set(0, AT, 0, WRITE, 0),
        &|q| q.set(0, AT, 20, WRITE | NEXT, 0),
        &|q| q.set(0, AT, 20, WRITE | NEXT, 500),
        &|q| {
            q.set(0, AT, 20, WRITE | NEXT, 1);
            q.set(1, AT, 200, 0, 0);
        },
        &|q| q.set_table(0, TABLE, &[(AT, 100)], 0),
        &|q| q.set(0, TABLE, 24, INDIRECT, 0),
    ];
    for (which, prepare) in bad.iter().enumerate() {
        for features in [INDIRECT_DESC, INDIRECT_DESC | MRG_RXBUF] {
            let guest = Guest::new();
            let mut down = Virtq::new(&guest, 0, 16, 0);
            let tx = down.tx(features);
            guest.write(HIGH, &[0xee; 8192]);
            prepare(&down);
            down.stage(0);
            down.set(9, HIGH, 100, WRITE, 0);
            down.offer(9);
            let frames = [vec![2; 60], vec![4; 61]];
            let sent = Station::new().send(&tx, ONE, &frames);
            assert_eq!((sent.taken, sent.frames), (2, 1), "{which}");
            assert_eq!(sent.dropped()[0], (Drop::PeerFault, 1));
            assert_eq!(down.reap(), [(0, 0), (9, 73)], "{which}");
            assert_eq!(guest.read(HIGH + 12, 61), frames[1]);
            assert!(guest.read(AT, 200).iter().all(|b| *b == 0xee), "{which}");
        }
    }
}

/// A bad buffer behind good ones costs the frame that they were to hold together, and no byte of it is seen.
#[test]
fn bad_buffer_among_merged() {
    let guest = Guest::new();
    let mut down = Virtq::new(&guest, 0, 16, 0);
    let tx = down.tx(MRG_RXBUF);
    guest.write(HIGH, &[0xee; 8192]);
    for id in 0..3 {
        down.set(id, HIGH + u64::from(id) * 256, 256, WRITE, 0);
    }
    down.set(1, 0, 256, WRITE, 0);
    (0..3).for_each(|id| down.stage(id));
    down.publish();
    let frames = [vec![2; 400], vec![4; 60]];
    let sent = Station::new().send(&tx, ONE, &frames);
    assert_eq!((sent.taken, sent.frames), (2, 1));
    assert_eq!(down.reap(), [(0, 0), (1, 0), (2, 72)]);
    assert!(guest.read(HIGH, 512).iter().all(|b| *b == 0xee));
}

/// What the driver's text says about one chain: its bytes, or why not. Written for clarity, in 128-bit arithmetic,
/// with no limit but that on descriptors.
fn oracle(guest: &Guest, queue: &Virtq, head: u16, indirect: bool) -> Result<Vec<u8>, Drop> {
    let readable = |addr: u64, len: u64| {
        let regions = [(LOW, LOW_BYTES), (HIGH, HIGH_BYTES)];
        regions.iter().any(|(at, n)| {
            let (addr, len) = (u128::from(addr), u128::from(len));
            addr >= u128::from(*at) && addr < u128::from(at + n) && addr + len <= u128::from(at + n)
        })
    };
    let parse = |at: u64| {
        let raw = guest.read(at, 16);
        let word = |r: std::ops::Range<usize>| {
            raw[r]
                .iter()
                .rev()
                .fold(0u64, |sum, b| sum << 8 | u64::from(*b))
        };
        (word(0..8), word(8..12), word(12..14) as u16, word(14..16))
    };
    let (mut base, mut count) = (queue.desc, u64::from(queue.size));
    let (mut at, mut in_table) = (u64::from(head), false);
    let mut bytes = Vec::new();
    let mut seen = 0;
    loop {
        if at >= count {
            return Err(Drop::BadDescriptor);
        }
        let (addr, len, flags, next) = parse(base + at * 16);
        if flags & INDIRECT != 0 {
            let malformed = len == 0 || len % 16 != 0 || flags & NEXT != 0;
            if in_table || !indirect || malformed {
                return Err(Drop::BadDescriptor);
            }
            if len / 16 > 64 {
                return Err(Drop::ChainTooLong);
            }
            if !readable(addr, len) {
                return Err(Drop::BadDescriptor);
            }
            (base, count, at, in_table) = (addr, len / 16, 0, true);
            continue;
        }
        if flags & WRITE != 0 || (len != 0 && !readable(addr, len)) {
            return Err(Drop::BadDescriptor);
        }
        if bytes.len() < 1 << 20 {
            bytes.extend(if len == 0 {
                Vec::new()
            } else {
                guest.read(addr, len as usize)
            });
        }
        seen += 1;
        if flags & NEXT == 0 {
            break;
        }
        if seen == 64 {
            return Err(Drop::ChainTooLong);
        }
        at = next;
    }
    match bytes.len() {
        0..=12 => Err(Drop::BadDescriptor),
        13..=25 => Err(Drop::Runt),
        n if n > FRAME_MAX + HEADER => Err(Drop::Giant),
        _ => Ok(bytes.split_off(HEADER)),
    }
}

/// Addresses that are mostly good, and those at every edge.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (0u64..60_000).prop_map(|at| HIGH + at),
        1 => (0u64..40).prop_map(|d| HIGH + HIGH_BYTES - 20 + d),
        1 => (0u64..40).prop_map(|d| LOW + LOW_BYTES - 20 + d),
        2 => (0u64..64).prop_map(|k| TABLE + k * 16),
        1 => any::<u64>(),
        1 => (0u64..100).prop_map(|d| u64::MAX - d),
    ]
}

fn descriptor() -> impl Strategy<Value = (u64, u32, u16, u16)> {
    let len = prop_oneof![
        6 => 0u32..200,
        2 => (0u32..70).prop_map(|n| n * 16),
        1 => 60_000u32..70_000,
        1 => any::<u32>(),
    ];
    let flags = prop_oneof![
        5 => Just(0u16),
        8 => Just(NEXT),
        2 => Just(INDIRECT),
        1 => any::<u16>(),
    ];
    let next = prop_oneof![8 => 0u16..32, 1 => any::<u16>()];
    (address(), len, flags, next)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random rings, chains and tables: each head comes out as the oracle says, in order, once; nothing panics.
    #[test]
    fn random_rings_agree_with_the_oracle(
        descs in prop::collection::vec(descriptor(), 32),
        table in prop::collection::vec(descriptor(), 64),
        heads in prop::collection::vec(prop_oneof![9 => 0u16..32, 1 => any::<u16>()], 1..33),
        indirect in any::<bool>(),
        base in any::<u16>(),
    ) {
        let guest = Guest::new();
        let mut up = Virtq::new(&guest, 0, 32, base);
        let mut rx = up.rx(if indirect { INDIRECT_DESC } else { 0 });
        let noise: Vec<u8> = (0..70_000u32).map(|i| (i.wrapping_mul(i) >> 3) as u8).collect();
        guest.write(HIGH, &noise);
        for (k, (addr, len, flags, next)) in table.into_iter().enumerate() {
            guest.write(TABLE + k as u64 * 16, &Virtq::desc_bytes(addr, len, flags, next));
        }
        for (k, (addr, len, flags, next)) in descs.into_iter().enumerate() {
            up.set(k as u16, addr, len, flags, next);
        }
        for head in &heads {
            up.stage(*head);
        }
        up.publish();
        let mut station = Station::new();
        let mut got = Vec::new();
        while got.len() < heads.len() {
            let burst = station.receive(&mut rx);
            prop_assert!(!burst.is_empty() && burst.len() <= BURST);
            got.extend(burst);
        }
        prop_assert!(station.receive(&mut rx).is_empty());
        for (head, got) in heads.iter().zip(got) {
            let expected = oracle(&guest, &up, *head, indirect);
            prop_assert!(got == expected, "head {head}: {:?}, expected {:?}", got.map(|b| b.len()), expected.map(|b| b.len()));
        }
        let used: Vec<u16> = up.reap().into_iter().map(|u| u.0).collect();
        prop_assert_eq!(used, heads);
    }

    /// Random receive buffers: each frame arrives whole or not at all, no byte outside writable pieces is touched,
    /// and what is given back is what was offered, in order.
    #[test]
    fn random_buffers_take_whole_frames_or_none(
        descs in prop::collection::vec((0u64..64, 0u32..300, any::<u8>(), prop_oneof![9 => 0u16..32, 1 => any::<u16>()]), 32),
        heads in prop::collection::vec(0u16..32, 1..33),
        lens in prop::collection::vec(14usize..900, 1..20),
        mergeable in any::<bool>(),
    ) {
        let guest = Guest::new();
        let mut down = Virtq::new(&guest, 0, 32, 0);
        let tx = down.tx(INDIRECT_DESC | if mergeable { MRG_RXBUF } else { 0 });
        // Buffers lie in the first half of each 1,024 bytes; the second half must stay as it is.
        let whole = vec![0xee; 65 << 10];
        guest.write(HIGH, &whole);
        for (k, (at, len, kind, next)) in descs.into_iter().enumerate() {
            let flags = [WRITE, WRITE, WRITE, WRITE | NEXT, WRITE | NEXT, NEXT, 0, INDIRECT];
            down.set(k as u16, HIGH + at * 1024, len, flags[usize::from(kind) % 8], next);
        }
        for head in &heads {
            down.stage(*head);
        }
        down.publish();
        let frames: Vec<Vec<u8>> = lens.iter().map(|len| vec![2; *len]).collect();
        let mut station = Station::new();
        let sent = station.send(&tx, ONE, &frames);
        prop_assert!(sent.taken == frames.len() || sent.stop == Stop::Full);
        let dropped: u32 = sent.dropped().iter().map(|d| d.1).sum();
        prop_assert_eq!(sent.frames + u64::from(dropped), sent.taken as u64);
        let used = down.reap();
        prop_assert!(used.len() <= heads.len());
        for (used, head) in used.iter().zip(&heads) {
            prop_assert_eq!(used.0, *head);
        }
        let written: u64 = used.iter().map(|u| u64::from(u.1)).sum();
        prop_assert_eq!(written, sent.bytes + 12 * sent.frames);
        let after = guest.read(HIGH, whole.len());
        for (k, chunk) in after.chunks(512).enumerate() {
            prop_assert!(k % 2 == 0 || chunk.iter().all(|b| *b == 0xee), "chunk {k}");
        }
    }
}

//! What only packed rings have: laps, wrap counters, descriptors that both sides write, event structures, and the
//! tricks that a guest can play with them.
#![allow(missing_docs)]

mod vhost_drive;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use vhost_drive::*;
use windlass_attach::port::{Armed, Kick, More, RxPort, Stop, TxPort};
use windlass_attach::vhost_user::features::*;
use windlass_attach::vhost_user::packed::{
    DESC_AVAIL, DESC_USED, EVENT_DESC, EVENT_DISABLE, EVENT_ENABLE, EVENT_WRAP,
};
use windlass_attach::vhost_user::{Base, QueueError, QueueSetup, VhostRx, VhostTx};
use windlass_frame::{BURST, FRAME_MAX};
use windlass_stats::Drop;
use windlass_sys::eventfd;

const AT: u64 = HIGH + 4096;
const TABLE: u64 = LOW + 0x9_0000;

fn signalled(fd: &OwnedFd) -> bool {
    matches!(eventfd::drain(fd), Ok(n) if n > 0)
}

fn with_call(setup: QueueSetup) -> (QueueSetup, OwnedFd) {
    let call = eventfd::create().expect("eventfd");
    let copy = Some(call.try_clone().expect("dup"));
    (
        QueueSetup {
            call: copy,
            ..setup
        },
        call,
    )
}

/// With and without EVENT_IDX the guest is told when to kick and interrupted only when it wants to be, at every place
/// of both laps of rings of any size.
#[test]
fn notifications_are_suppressed_both_ways() {
    for (event, size) in [(false, 5), (true, 5), (true, 8), (true, 1)] {
        let guest = Guest::new();
        let mut up = Packedq::new(&guest, 0, size, 3 | EVENT_WRAP);
        let (setup, call) = with_call(up.setup(if event { EVENT_IDX } else { 0 }));
        let mut rx = VhostRx::new(setup).expect("rx");
        let mut station = Station::new();
        guest.write(AT, &with_header(60, 0));
        for round in 0..2000u32 {
            let (wanted, before) = (round % 3 == 0, up.next);
            let after = up.step(before, 1);
            {
                let section = station.worker.section();
                assert_eq!(rx.arm(&section), Armed::Yes);
                assert!(up.wants_kick(before, after), "round {round} of {size}");
                if event && size > 1 {
                    let past = up.step(after, 1);
                    assert!(!up.wants_kick(after, past), "only of the next");
                }
                rx.disarm(&section);
            }
            assert!(!up.wants_kick(before, after), "round {round} of {size}");
            let lap = if before.1 { EVENT_WRAP } else { 0 };
            let (place, flags) = match (event, wanted) {
                (true, true) => (before.0 | lap, EVENT_DESC),
                // The same descriptor, a lap earlier or later.
                (true, false) => (before.0 | (lap ^ EVENT_WRAP), EVENT_DESC),
                (false, true) => (0, EVENT_ENABLE),
                (false, false) => (before.0 | lap, EVENT_DISABLE),
            };
            up.set16(up.driver_event, place);
            up.set16(up.driver_event + 2, flags);
            up.offer_one(2, AT, 72, 0);
            {
                let section = station.worker.section();
                assert_eq!(rx.arm(&section), Armed::Work);
                assert!(!up.wants_kick(up.next, up.step(up.next, 1)));
            }
            assert_eq!(station.receive(&mut rx).len(), 1);
            assert_eq!(signalled(&call), wanted, "round {round} of {size}");
            assert_eq!(up.reap(), [(2, 0)]);
        }
    }
}

/// A burst interrupts a receiving guest exactly if its event lies in what the burst used, across the end of the ring
/// too; and the guest is never asked to kick.
#[test]
fn events_within_a_burst() {
    let guest = Guest::new();
    let mut down = Packedq::new(&guest, 0, 100, 0);
    let (setup, call) = with_call(down.setup(EVENT_IDX));
    let tx = VhostTx::new(setup, []).expect("tx");
    let mut station = Station::new();
    for round in 0..600u16 {
        let old = down.next;
        for id in 0..30 {
            down.add(id, &[(HIGH + u64::from(id) * 128, 128)], None, WRITE);
        }
        down.publish();
        assert!(!down.wants_kick(old, down.next));
        let (behind, wanted) =
            [(0, true), (29, true), (30, false), (99, false)][usize::from(round) % 4];
        let event = down.step(old, behind);
        let lap = if event.1 { EVENT_WRAP } else { 0 };
        down.set16(down.driver_event, event.0 | lap);
        down.set16(down.driver_event + 2, EVENT_DESC);
        let sent = station.send(&tx, ONE, &vec![vec![2; 60]; 30]);
        assert_eq!(
            (sent.frames, sent.kick == Kick::Now),
            (30, wanted),
            "{round}"
        );
        if wanted {
            tx.kick(ONE);
        }
        assert_eq!(signalled(&call), wanted);
        assert_eq!(down.reap().len(), 30);
    }
}

/// A queue that is stopped at any place of either lap goes on where it stood when it is made anew from its base.
#[test]
fn stops_and_goes_on() {
    let (a, b) = (Guest::new(), Guest::new());
    let mut up = Packedq::new(&a, 0, 7, EVENT_WRAP);
    let mut down = Packedq::new(&b, 1, 5, EVENT_WRAP);
    let mut station = Station::new();
    let (mut from, mut to) = (up.base(), down.base());
    for round in 0..100u8 {
        let new = |setup: QueueSetup, base: Base| QueueSetup { base, ..setup };
        let mut rx = VhostRx::new(new(up.setup(0), from)).expect("rx");
        let tx = VhostTx::new(new(down.setup(0), to), []).expect("tx");
        for k in 0..=u64::from(round % 3) {
            let bytes = with_header(60, round);
            a.write(AT + k * 128, &bytes);
            // Two descriptors each.
            up.add(9, &[(AT + k * 128, 40), (AT + k * 128 + 40, 32)], None, 0);
            down.add(4, &[(HIGH + k * 128, 100)], None, WRITE);
        }
        up.publish();
        down.publish();
        let count = usize::from(round % 3) + 1;
        let sent = station.relay(&mut rx, &tx, false);
        assert_eq!(
            (sent.frames, sent.stop),
            (count as u64, Stop::Done),
            "{round}"
        );
        assert_eq!(up.reap(), vec![(9, 0); count]);
        assert_eq!(down.reap(), vec![(4, 72); count]);
        assert_eq!(b.read(HIGH + 12, 60), with_header(60, round)[12..]);
        (from, to) = (rx.base(), tx.base(0).expect("queue 0"));
        assert_eq!((from, to), (up.base(), down.base()));
    }
}

/// The largest ring that there is, and one beside a power of two: both laps, to the last descriptor.
#[test]
fn largest_rings() {
    for size in [32_768u16, 32_767, 4097] {
        let guest = Guest::new();
        let (desc, events) = (HIGH + (8 << 20), (LOW, LOW + 64));
        let mut up = Packedq::at(&guest, desc, events, size, EVENT_WRAP);
        let mut rx = up.rx(0);
        let mut station = Station::new();
        guest.write(AT, &with_header(60, 1));
        let mut got = 0;
        for _ in 0..5 {
            for id in 0..size {
                up.add(id, &[(AT, 72)], None, 0);
            }
            up.publish();
            let mut left = usize::from(size);
            while left > 0 {
                let frames = station.receive(&mut rx);
                assert!(!frames.is_empty() && frames.iter().all(Result::is_ok));
                left -= frames.len();
            }
            let back = up.reap();
            assert!(back.iter().map(|c| c.0).eq(0..size));
            got += back.len();
            assert!(station.receive(&mut rx).is_empty());
        }
        assert_eq!(got, 5 * usize::from(size));
    }
}

/// With IN_ORDER a burst of any chains is given back by one used descriptor, in the place of its first and named as
/// its last; the others stay as the guest wrote them.
#[test]
fn in_order_batches_are_one_used_descriptor() {
    let guest = Guest::new();
    let mut up = Packedq::new(&guest, 0, 64, EVENT_WRAP);
    let mut rx = up.rx(IN_ORDER);
    guest.write(AT, &with_header(100, 1));
    up.add(7, &[(AT, 112)], None, 0);
    up.add(8, &[(AT, 12), (AT + 12, 50), (AT + 62, 50)], None, 0);
    up.add(9, &[(AT, 112)], None, 0);
    up.publish();
    assert_eq!(Station::new().receive(&mut rx).len(), 3);
    let flags = |slot: u64| up.get16(up.desc + slot * 16 + 14);
    assert_eq!(flags(0), DESC_AVAIL | DESC_USED);
    assert_eq!(up.get16(up.desc + 12), 9);
    assert!((1..5).all(|slot| flags(slot) & DESC_USED == 0));
    assert_eq!(up.reap(), [(7, 0), (8, 0), (9, 0)]);
    assert_eq!(rx.base(), Base::packed(5, true));
}

/// What a guest sees while a burst is published: the first used descriptor comes last.
#[test]
fn nothing_is_used_before_all_is() {
    const ROUNDS: u64 = 3000;
    let guest = Guest::new();
    let mut down = Packedq::new(&guest, 0, 64, EVENT_WRAP);
    let tx = down.tx(0);
    let (desc, memory) = (down.desc, guest.clone());
    let seen = Arc::new(AtomicU64::new(0));
    let watcher = {
        let seen = seen.clone();
        std::thread::spawn(move || {
            for round in 0..ROUNDS {
                let used = |slot: u64| {
                    let at = Guest::offset(desc + slot * 16 + 14);
                    let flags = memory.memory.load_u16(at, Ordering::Acquire);
                    let both = if round % 2 == 0 {
                        DESC_AVAIL | DESC_USED
                    } else {
                        0
                    };
                    flags & (DESC_AVAIL | DESC_USED) == both
                };
                // Once the first is used, every other one is.
                while !used(0) {
                    std::hint::spin_loop();
                }
                assert!((1..64).rev().all(used), "round {round}");
                seen.store(round + 1, Ordering::Release);
            }
        })
    };
    let mut station = Station::new();
    let frames = vec![vec![6; 60]; 64];
    for round in 0..ROUNDS {
        for id in 0..64 {
            down.add(id, &[(HIGH + u64::from(id) * 256, 256)], None, WRITE);
        }
        down.publish();
        assert_eq!(station.send(&tx, ONE, &frames).frames, 64);
        while seen.load(Ordering::Acquire) <= round && !watcher.is_finished() {
            std::hint::spin_loop();
        }
        assert_eq!(down.reap().len(), 64);
    }
    watcher.join().expect("watcher");
}

/// Large frames over very many buffers in one burst are published as one too, and every used descriptor is there.
#[test]
fn publications_of_any_size() {
    let guest = Guest::new();
    let mut down = Packedq::new(&guest, 0, 900, 500 | EVENT_WRAP);
    let tx = down.tx(MRG_RXBUF);
    for id in 0..900 {
        down.add(id, &[(HIGH + u64::from(id) * 256, 100)], None, WRITE);
    }
    down.publish();
    // 14, 27 and 40 buffers, 21 times.
    let frames: Vec<_> = (0..63).map(|k| vec![2; 1300 * (1 + k % 3) + 20]).collect();
    let sent = Station::new().send(&tx, ONE, &frames);
    let came = down.reap();
    let expected = |k: usize| (12 + 20 + 1300 * (1 + k % 3)).div_ceil(100);
    let used: usize = (0..sent.taken).map(expected).sum();
    assert!(sent.frames > 20 && sent.stop == Stop::Full, "{sent:?}");
    assert_eq!((came.len(), sent.taken), (used, sent.frames as usize));
    assert!(came.iter().map(|c| c.0).eq(0..used as u16));
    let used = DESC_AVAIL | DESC_USED | WRITE;
    assert_eq!(down.get16(down.desc + 500 * 16 + 14), used);
}

/// What one trick is expected to end in; a good frame behind it always arrives.
fn one_bad_chain(features: u64, expected: Drop, list: &[(u64, u32, u16)]) {
    let guest = Guest::new();
    let mut up = Packedq::new(&guest, 0, 128, 120 | EVENT_WRAP);
    let mut rx = up.rx(features);
    let good = with_header(70, 5);
    guest.write(AT, &good);
    up.add_raw(3, list);
    up.add_raw(100, &[(AT, 82, 0)]);
    up.publish();
    let mut station = Station::new();
    let got = station.receive(&mut rx);
    assert_eq!(
        got,
        [Err(expected), Ok(good[HEADER..].to_vec())],
        "{list:?}"
    );
    assert_eq!(up.reap(), [(3, 0), (100, 0)]);
    assert!(station.receive(&mut rx).is_empty(), "consumed once");
    assert!(!guest.map.is_dead());
}

/// Chains that are no frame cost themselves, and what lies behind them is found.
#[test]
fn bad_chains() {
    let bad = |list: &[(u64, u32, u16)]| one_bad_chain(0, Drop::BadDescriptor, list);
    bad(&[(AT, 82, WRITE)]);
    bad(&[(AT, 40, 0), (AT, 40, WRITE)]);
    bad(&[(AT, 40, WRITE), (AT, 40, 0), (AT, 40, 0)]);
    for (addr, len) in [
        (HIGH + HIGH_BYTES - 81, 82),
        (LOW + LOW_BYTES - 10, 82),
        (u64::MAX - 20, 82),
        (u64::MAX - 20, u32::MAX),
        (u64::MAX - 255, 512),
        (AT, u32::MAX),
        (0, 82),
        (HIGH + HIGH_BYTES, 82),
    ] {
        bad(&[(addr, len, 0)]);
        bad(&[(AT, 30, 0), (addr, len, 0)]);
        bad(&[(addr, len, 0), (AT, 30, 0), (AT, 30, 0)]);
    }
    for len in [0, 11, 12] {
        bad(&[(AT, len, 0)]);
    }
    one_bad_chain(0, Drop::Runt, &[(AT, 25, 0)]);
    one_bad_chain(0, Drop::Giant, &[(AT, 13 + FRAME_MAX as u32, 0)]);
    // Not agreed on.
    bad(&[(TABLE, 16, INDIRECT)]);
    // Too long, by one and by far: the ring is followed to its end.
    for count in [65, 100, 127] {
        one_bad_chain(0, Drop::ChainTooLong, &vec![(AT, 2, 0); count]);
        one_bad_chain(0, Drop::ChainTooLong, &vec![(0, 0, 0); count]);
    }
}

/// Indirect tables that are none.
#[test]
fn bad_tables() {
    let bad = |table: &[[u8; 16]], list: &[(u64, u32, u16)], reason| {
        let guest = Guest::new();
        let mut up = Packedq::new(&guest, 0, 128, EVENT_WRAP);
        let mut rx = up.rx(INDIRECT_DESC);
        let good = with_header(70, 5);
        guest.write(AT, &good);
        for (k, bytes) in table.iter().enumerate() {
            guest.write(TABLE + k as u64 * 16, bytes);
        }
        up.add_raw(3, list);
        up.add_raw(4, &[(AT, 82, 0)]);
        up.publish();
        let got = Station::new().receive(&mut rx);
        assert_eq!(got, [Err(reason), Ok(good[HEADER..].to_vec())], "{list:?}");
        assert_eq!(up.reap(), [(3, 0), (4, 0)]);
    };
    let good = Packedq::desc_bytes(AT, 82, 0, 0);
    let nested = Packedq::desc_bytes(TABLE, 16, 0, INDIRECT);
    bad(&[nested], &[(TABLE, 16, INDIRECT)], Drop::BadDescriptor);
    bad(
        &[good, nested],
        &[(TABLE, 32, INDIRECT)],
        Drop::BadDescriptor,
    );
    for len in [0, 8, 17, 31] {
        bad(&[good], &[(TABLE, len, INDIRECT)], Drop::BadDescriptor);
    }
    // Followed by another descriptor.
    let list = [(TABLE, 16, INDIRECT), (AT, 20, 0)];
    bad(&[good], &list, Drop::BadDescriptor);
    bad(
        &[],
        &[(LOW + LOW_BYTES - 16, 32, INDIRECT)],
        Drop::BadDescriptor,
    );
    bad(&[], &[(u64::MAX - 15, 32, INDIRECT)], Drop::BadDescriptor);
    let one = Packedq::desc_bytes(AT, 1, 0, 0);
    bad(
        &[one; 65],
        &[(TABLE, 65 * 16, INDIRECT)],
        Drop::ChainTooLong,
    );
    bad(&[], &[(TABLE, 0xffff_fff0, INDIRECT)], Drop::ChainTooLong);
    // 40 before the table and 25 in it.
    let mut list = vec![(AT, 1, 0); 40];
    list.push((TABLE, 25 * 16, INDIRECT));
    bad(&[one; 25], &list, Drop::ChainTooLong);
}

/// The longest chains that are allowed arrive, the header spread over twelve descriptors and one byte in each.
#[test]
fn longest_chains_arrive() {
    let guest = Guest::new();
    let mut up = Packedq::new(&guest, 0, 200, 150);
    let mut rx = up.rx(INDIRECT_DESC | CSUM);
    let mut bytes = with_header(52, 5);
    (bytes[0], bytes[6]) = (1, 34);
    guest.write(AT, &bytes);
    let single: Vec<(u64, u32)> = (0..64).map(|i| (AT + i, 1)).collect();
    up.add(1, &single, None, 0);
    up.add(2, &single, Some(TABLE), 0);
    up.add_raw(
        3,
        &single.iter().map(|(a, n)| (*a, *n, 0)).collect::<Vec<_>>(),
    );
    up.publish();
    Station::new().visit(&mut rx, |_, heads, tails, _| {
        assert_eq!(heads.n, 3);
        for i in 0..3 {
            assert_eq!(
                frame(heads, tails, i).expect("frame"),
                bytes[HEADER..],
                "{i}"
            );
            assert_eq!(heads.meta[i].claim.csum_start, 34);
        }
    });
    assert_eq!(up.reap(), [(1, 0), (2, 0), (3, 0)]);
}

/// A chain without an end ends the queue: one that goes once round the ring, and one that goes on into descriptors
/// which are not available.
#[test]
fn endless_chains() {
    let endless = |prepare: &dyn Fn(&mut Packedq)| {
        let guest = Guest::new();
        let mut up = Packedq::new(&guest, 0, 16, EVENT_WRAP);
        let mut rx = up.rx(0);
        prepare(&mut up);
        let mut station = Station::new();
        let got = station.visit(&mut rx, |_, heads, _, more| (heads.n, more));
        assert_eq!(got, (0, More::Dead));
        assert!(guest.map.is_dead());

        let guest = Guest::new();
        let mut down = Packedq::new(&guest, 0, 16, EVENT_WRAP);
        let tx = down.tx(MRG_RXBUF);
        prepare(&mut down);
        let sent = station.send(&tx, ONE, &[vec![2; 600]]);
        assert_eq!((sent.taken, sent.stop), (0, Stop::Down));
        assert!(guest.map.is_dead());
    };
    for wrap in [true, false] {
        endless(&|q| {
            for slot in 0..16 {
                q.set(slot, AT, 20, 0, NEXT | WRITE | Packedq::available(true));
            }
            // And on, as if it were the next lap.
            if wrap {
                q.set(15, AT, 20, 0, NEXT | Packedq::available(true));
            }
        });
    }
    endless(&|q| q.set(0, AT, 20, 0, NEXT | Packedq::available(true)));
    endless(&|q| {
        q.set(0, AT, 20, 0, NEXT | Packedq::available(true));
        q.set(1, AT, 20, 0, Packedq::available(false));
    });
}

/// A guest that makes descriptors available again before they were used gains nothing: no more than a ring's worth
/// is taken in one burst, and wrap counters in disorder are not taken at all.
#[test]
fn laps_ahead_are_not_taken() {
    let guest = Guest::new();
    let mut up = Packedq::new(&guest, 0, 8, EVENT_WRAP);
    let mut rx = up.rx(0);
    guest.write(AT, &with_header(60, 0));
    let mut station = Station::new();
    for id in 0..8 {
        up.add(id, &[(AT, 72)], None, 0);
    }
    up.publish();
    station.visit(&mut rx, |_, heads, _, _| {
        assert_eq!(heads.n, 8);
        // On loan, and offered once more for the next lap.
        for slot in 0..8 {
            up.set(slot, AT, 72, slot, Packedq::available(false));
        }
    });
    assert_eq!(up.reap().len(), 8, "the release is in its own lap");
    // Both bits set, or clear: used, or never seen.
    for flags in [0, DESC_AVAIL | DESC_USED] {
        for slot in 0..8 {
            up.set(slot, AT, 72, slot, flags);
        }
        assert!(station.receive(&mut rx).is_empty());
    }
    assert!(!guest.map.is_dead());
}

/// Receive buffers that cannot be written are given back empty, each at the cost of one frame; the next buffer takes
/// the next frame.
#[test]
fn bad_receive_buffers() {
    let bad: &[&[(u64, u32, u16)]] = &[
        &[(AT, 100, 0)],
        &[(HIGH + HIGH_BYTES - 50, 100, WRITE)],
        &[(u64::MAX - 50, 100, WRITE)],
        &[(AT, 0, WRITE)],
        &[(AT, 20, WRITE), (AT + 20, 200, 0)],
        &[(AT, 20, 0), (AT + 20, 200, WRITE)],
        &[(TABLE, 24, INDIRECT)],
        &[(TABLE, 16, INDIRECT)],
    ];
    for list in bad {
        for features in [INDIRECT_DESC, INDIRECT_DESC | MRG_RXBUF] {
            let guest = Guest::new();
            let mut down = Packedq::new(&guest, 0, 16, 14 | EVENT_WRAP);
            let tx = down.tx(features);
            guest.write(HIGH, &[0xee; 8192]);
            // A table for us to read is none to write.
            guest.write(TABLE, &Packedq::desc_bytes(AT, 100, 0, 0));
            down.add_raw(5, list);
            down.add_raw(9, &[(HIGH, 100, WRITE)]);
            down.publish();
            let frames = [vec![2; 60], vec![4; 61]];
            let sent = Station::new().send(&tx, ONE, &frames);
            assert_eq!((sent.taken, sent.frames), (2, 1), "{list:?}");
            assert_eq!(sent.dropped()[0], (Drop::PeerFault, 1));
            assert_eq!(down.reap(), [(5, 0), (9, 73)], "{list:?}");
            assert_eq!(guest.read(HIGH + 12, 61), frames[1]);
            assert!(guest.read(AT, 200).iter().all(|b| *b == 0xee), "{list:?}");
        }
    }
}

/// Rings that cannot be are refused.
#[test]
fn setups_are_checked() {
    let guest = Guest::new();
    let up = Packedq::new(&guest, 0, 48, 0);
    let refused = |change: &dyn Fn(&mut QueueSetup)| {
        let mut setup = up.setup(EVENT_IDX);
        change(&mut setup);
        VhostRx::new(setup).expect_err("refused")
    };
    assert_eq!(refused(&|s| s.size = 0), QueueError::Size(0));
    assert_eq!(refused(&|s| s.size = 32_769), QueueError::Size(32_769));
    assert_eq!(refused(&|s| s.base.used = 48), QueueError::Base(48));
    let place = |error| matches!(error, QueueError::Place { .. });
    assert!(place(refused(&|s| s.desc += 8)));
    assert!(place(refused(&|s| s.avail += 2)));
    assert!(place(refused(&|s| s.used += 2)));
    assert!(place(refused(&|s| s.desc = LOW + LOW_BYTES - 47 * 16)));
    assert!(place(refused(&|s| s.avail = LOW + LOW_BYTES - 2)));
    assert!(place(refused(&|s| s.used = u64::MAX - 3)));
    assert!(VhostRx::new(up.setup(0)).is_ok());
}

/// What the driver's text says about one chain in private memory: its bytes, or why not.
fn oracle(guest: &Guest, list: &[(u64, u32, u16)], indirect: bool) -> Result<Vec<u8>, Drop> {
    let inside = |addr: u64, len: u64| {
        let regions = [(LOW, LOW_BYTES), (HIGH, HIGH_BYTES)];
        regions.iter().any(|(at, n)| {
            let (a, l) = (u128::from(addr), u128::from(len));
            a >= u128::from(*at) && a < u128::from(at + n) && a + l <= u128::from(at + n)
        })
    };
    let mut flat = Vec::new();
    for (k, (addr, len, flags)) in list.iter().enumerate() {
        if k == 64 {
            return Err(Drop::ChainTooLong);
        }
        if flags & INDIRECT == 0 {
            if flags & WRITE != 0 || (*len != 0 && !inside(*addr, u64::from(*len))) {
                return Err(Drop::BadDescriptor);
            }
            flat.push((*addr, *len));
            continue;
        }
        let malformed = *len == 0 || len % 16 != 0 || k + 1 != list.len();
        if !indirect || malformed {
            return Err(Drop::BadDescriptor);
        }
        if len / 16 > 64 {
            return Err(Drop::ChainTooLong);
        }
        if !inside(*addr, u64::from(*len)) {
            return Err(Drop::BadDescriptor);
        }
        for entry in 0..u64::from(len / 16) {
            if k as u64 + entry >= 64 {
                return Err(Drop::ChainTooLong);
            }
            let raw = guest.read(addr + entry * 16, 16);
            let word = |from: usize, n: usize| {
                let bytes = raw[from..from + n].iter().rev();
                bytes.fold(0u64, |sum, b| sum << 8 | u64::from(*b))
            };
            let (addr, len, flags) = (word(0, 8), word(8, 4), word(14, 2) as u16);
            if flags & INDIRECT != 0 || (len != 0 && !inside(addr, len)) {
                return Err(Drop::BadDescriptor);
            }
            flat.push((addr, len as u32));
        }
    }
    let total: u64 = flat.iter().map(|p| u64::from(p.1)).sum();
    match total as usize {
        0..=12 => Err(Drop::BadDescriptor),
        13..=25 => Err(Drop::Runt),
        n if n > FRAME_MAX + HEADER => Err(Drop::Giant),
        _ => {
            let read = |(addr, len): (u64, u32)| match len {
                0 => Vec::new(),
                _ => guest.read(addr, len as usize),
            };
            Ok(flat.into_iter().flat_map(read).skip(HEADER).collect())
        }
    }
}

fn descriptor() -> impl Strategy<Value = (u64, u32, u16)> {
    let addr = prop_oneof![
        8 => (0u64..60_000).prop_map(|at| HIGH + at),
        1 => (0u64..40).prop_map(|d| HIGH + HIGH_BYTES - 20 + d),
        1 => (0u64..40).prop_map(|d| LOW + LOW_BYTES - 20 + d),
        2 => (0u64..64).prop_map(|k| TABLE + k * 16),
        1 => any::<u64>(),
    ];
    let len = prop_oneof![
        6 => 0u32..200,
        2 => (0u32..70).prop_map(|n| n * 16),
        1 => 60_000u32..70_000,
        1 => any::<u32>(),
    ];
    let flags = prop_oneof![12 => Just(0u16), 2 => Just(INDIRECT), 1 => Just(WRITE)];
    (addr, len, flags)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random chains and tables over rings of any size and standing: each comes out as the oracle says, in order,
    /// once; the ring goes on behind it.
    #[test]
    fn random_chains_agree_with_the_oracle(
        chains in prop::collection::vec(prop_oneof![
            6 => prop::collection::vec(descriptor(), 1..4),
            2 => prop::collection::vec(descriptor(), 4..20),
            1 => prop::collection::vec(descriptor(), 60..70),
        ], 1..40),
        table in prop::collection::vec(descriptor(), 64),
        indirect in any::<bool>(),
        in_order in any::<bool>(),
        size in 70u16..150,
        base in any::<u16>(),
    ) {
        let guest = Guest::new();
        let mut up = Packedq::new(&guest, 0, size, base);
        let features = if indirect { INDIRECT_DESC } else { 0 } | if in_order { IN_ORDER } else { 0 };
        let mut rx = up.rx(features);
        let noise: Vec<u8> = (0..70_000u32).map(|i| (i.wrapping_mul(i) >> 3) as u8).collect();
        guest.write(HIGH, &noise);
        for (k, (addr, len, flags)) in table.into_iter().enumerate() {
            guest.write(TABLE + k as u64 * 16, &Packedq::desc_bytes(addr, len, 9, flags));
        }
        let mut station = Station::new();
        let (mut offered, mut free, mut expected) = (0, size, std::collections::VecDeque::new());
        let mut arrived = 0;
        while arrived < chains.len() {
            while let Some(list) = chains.get(offered).filter(|l| l.len() <= usize::from(free)) {
                up.add_raw(offered as u16, list);
                expected.push_back(oracle(&guest, list, indirect));
                free -= list.len() as u16;
                offered += 1;
            }
            up.publish();
            let got = station.receive(&mut rx);
            prop_assert!(!got.is_empty() && got.len() <= BURST);
            for (got, id) in got.into_iter().zip(up.reap()) {
                prop_assert!(usize::from(id.0) == arrived && id.1 == 0);
                let expected = expected.pop_front().expect("one for each");
                prop_assert!(got == expected, "chain {arrived}: {:?}, expected {:?}",
                    got.map(|b| b.len()), expected.map(|b| b.len()));
                free += chains[arrived].len() as u16;
                arrived += 1;
            }
        }
        prop_assert!(station.receive(&mut rx).is_empty());
        prop_assert_eq!(rx.base(), up.base());
    }
}

//! Two guests with virtqueues of our own making: whatever the shape of the chains, frames arrive as they were sent.
#![allow(missing_docs)]

mod vhost_drive;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use vhost_drive::*;
use windlass_attach::port::{Armed, Kick, Lane, RxPort, Stop, TxPort};
use windlass_attach::vhost_user::features::*;
use windlass_attach::vhost_user::{QueueError, QueueSetup, VhostTx};
use windlass_frame::{Claim, Offload, Pick, RxId, Tick};
use windlass_shm::Tails;
use windlass_stats::Drop;
use windlass_sync::qsbr::Domain;
use windlass_sys::eventfd;

const LONGEST: usize = 65_549;
const TX_AT: u64 = HIGH;
const RX_AT: u64 = HIGH + (8 << 20);

/// How a driver lays out a chain.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Direct,
    HeaderApart,
    Chained,
    Indirect,
}

/// Cuts `len` bytes at `at` into the pieces of a shape.
fn pieces(shape: Shape, at: u64, len: u32) -> Vec<(u64, u32)> {
    let cuts: &[u32] = match shape {
        Shape::Direct => &[],
        Shape::HeaderApart => &[12],
        Shape::Chained => &[7, 13, 30, 150, 4000],
        Shape::Indirect => &[12, 140, 300],
    };
    let mut list = Vec::new();
    let mut from = 0;
    for cut in cuts.iter().copied().filter(|c| *c < len).chain([len]) {
        list.push((at + u64::from(from), cut - from));
        from = cut;
    }
    list
}

/// Offers one chain of this shape.
fn offer(queue: &mut dyn Driver, shape: Shape, id: u16, at: u64, len: u32, flags: u16) {
    let list = pieces(shape, at, len);
    let table = matches!(shape, Shape::Indirect).then_some(LOW + 0x9_0000);
    queue.add(id, &list, table, flags);
    queue.publish();
}

/// Sends a frame of every length from one guest to the other.
fn every_size(layout: Layout, from: Shape, to: Shape, mergeable: bool) {
    let (a, b) = (Guest::new(), Guest::new());
    let mut up = layout.ring(&a, 0, 256, 0xff00);
    let mut down = layout.ring(&b, 1, 256, 0xfff0);
    let mut rx = up.rx(INDIRECT_DESC);
    let tx = down.tx(INDIRECT_DESC | if mergeable { MRG_RXBUF } else { 0 });
    let mut station = Station::new();
    let bytes = with_header(LONGEST, 3);
    a.write(TX_AT, &bytes);
    const PAGE: u32 = 1536;
    let mut ids: VecDeque<u16> = (0..256).collect();
    for len in 14..=LONGEST {
        let whole = HEADER + len;
        offer(&mut *up, from, (len % 200) as u16, TX_AT, whole as u32, 0);
        if mergeable {
            while let Some(id) = ids.pop_front() {
                let at = RX_AT + u64::from(id) * u64::from(PAGE);
                down.add(id, &[(at, PAGE)], None, WRITE);
            }
            down.publish();
        } else {
            let room = if len % 2 == 0 { whole } else { whole + 100 };
            let id = (len % 200) as u16;
            offer(&mut *down, to, id, RX_AT, room as u32, WRITE);
        }
        let sent = station.relay(&mut rx, &tx, false);
        let expected = (1, 1, len as u64, Stop::Done);
        let got = (sent.taken, sent.frames, sent.bytes, sent.stop);
        assert_eq!(got, expected, "{len} bytes, {from:?} to {to:?}");
        assert_eq!(up.reap(), [((len % 200) as u16, 0)]);
        let came = down.reap();
        assert_eq!(came.iter().map(|c| c.1 as usize).sum::<usize>(), whole);
        let mut arrived = Vec::new();
        if mergeable {
            assert_eq!(came.len(), whole.div_ceil(PAGE as usize));
            for (id, n) in &came {
                let at = RX_AT + u64::from(*id) * u64::from(PAGE);
                arrived.extend(b.read(at, *n as usize));
                ids.push_back(*id);
            }
        } else {
            arrived = b.read(RX_AT, whole);
        }
        let mut header = [0; HEADER];
        header[10..].copy_from_slice(&(came.len() as u16).to_le_bytes());
        assert_eq!(arrived[..HEADER], header, "{len} bytes");
        assert!(arrived[HEADER..] == bytes[HEADER..whole], "{len} bytes");
    }
}

/// Every length from 14 to 65,549 bytes: one descriptor to mergeable buffers.
#[test]
fn every_size_direct_to_mergeable() {
    every_size(Layout::Split, Shape::Direct, Shape::Direct, true);
}

/// The same over packed rings.
#[test]
fn packed_every_size_direct_to_mergeable() {
    every_size(Layout::Packed, Shape::Direct, Shape::Direct, true);
}

/// Every length: chains whose first cuts lie in header and snapshot, to one descriptor.
#[test]
fn every_size_chained_to_direct() {
    every_size(Layout::Split, Shape::Chained, Shape::Direct, false);
}

/// The same over packed rings.
#[test]
fn packed_every_size_chained_to_direct() {
    every_size(Layout::Packed, Shape::Chained, Shape::Direct, false);
}

/// Every length: indirect tables to chains.
#[test]
fn every_size_indirect_to_chained() {
    every_size(Layout::Split, Shape::Indirect, Shape::Chained, false);
}

/// The same over packed rings.
#[test]
fn packed_every_size_indirect_to_chained() {
    every_size(Layout::Packed, Shape::Indirect, Shape::Chained, false);
}

/// Every length: the header in a descriptor of its own, to indirect tables.
#[test]
fn every_size_header_apart_to_indirect() {
    every_size(Layout::Split, Shape::HeaderApart, Shape::Indirect, false);
}

/// The same over packed rings.
#[test]
fn packed_every_size_header_apart_to_indirect() {
    every_size(Layout::Packed, Shape::HeaderApart, Shape::Indirect, false);
}

/// Full bursts through small rings, past the wrap of every index, keep order and lose nothing.
#[test]
fn bursts_keep_order() {
    keep_order(Layout::Split, 128, 0);
    keep_order(Layout::Split, 64, IN_ORDER);
    for size in [64, 100, 128, 1000] {
        keep_order(Layout::Packed, size, 0);
        keep_order(Layout::Packed, size, IN_ORDER);
    }
}

fn keep_order(layout: Layout, size: u16, features: u64) {
    let (a, b) = (Guest::new(), Guest::new());
    let mut up = layout.ring(&a, 0, size, 65_500);
    let mut down = layout.ring(&b, 1, size, 65_400);
    let (mut rx, tx) = (up.rx(features), down.tx(features));
    let mut station = Station::new();
    // Buffers of every alignment.
    let at = |base: u64, id: u16| base + u64::from(id) * 257;
    for id in 0..size {
        down.offer_one(id, at(RX_AT, id), 256, WRITE);
    }
    let (mut sent, mut got) = (0u32, 0u32);
    let mut in_flight = 0;
    while got < 5000 {
        while in_flight < usize::from(size) {
            let id = (sent % u32::from(size)) as u16;
            let mut bytes = with_header(60 + (sent % 140) as usize, 1);
            bytes[HEADER + 12..HEADER + 16].copy_from_slice(&sent.to_le_bytes());
            a.write(at(TX_AT, id), &bytes);
            up.add(id, &[(at(TX_AT, id), bytes.len() as u32)], None, 0);
            (sent, in_flight) = (sent + 1, in_flight + 1);
        }
        up.publish();
        let done = station.relay(&mut rx, &tx, false);
        assert_eq!((done.frames, done.stop), (64, Stop::Done));
        in_flight -= up.reap().len();
        for (id, len) in down.reap() {
            let bytes = b.read(at(RX_AT, id), len as usize);
            let number = u32::from_le_bytes(bytes[HEADER + 12..HEADER + 16].try_into().expect("4"));
            assert_eq!(
                (number, bytes.len()),
                (got, HEADER + 60 + (got % 140) as usize)
            );
            got += 1;
            down.offer_one(id, at(RX_AT, id), 256, WRITE);
        }
    }
    assert_eq!(rx.base(), up.base());
    assert_eq!(tx.base(0), Some(down.base()));
}

/// Buffers that do not suffice are left alone: nothing is used, nothing is published, and the frame goes whole once
/// there are enough. One that can never fit is dropped without taking any.
#[test]
fn nothing_partial() {
    for layout in LAYOUTS {
        let guest = Guest::new();
        let mut down = layout.ring(&guest, 0, 8, 0);
        let tx = down.tx(MRG_RXBUF);
        let mut station = Station::new();
        let frame = with_header(3000, 9).split_off(HEADER);
        for id in 0..2 {
            down.offer_one(id, RX_AT + u64::from(id) * 1024, 1024, WRITE);
        }
        for _ in 0..3 {
            let sent = station.send(&tx, ONE, &[frame.clone(), frame[..60].to_vec()]);
            assert_eq!((sent.taken, sent.stop), (0, Stop::Full));
        }
        assert!(down.reap().is_empty());
        down.offer_one(2, RX_AT + 2048, 1024, WRITE);
        let sent = station.send(&tx, ONE, &[frame.clone(), frame[..60].to_vec()]);
        assert_eq!((sent.taken, sent.frames, sent.stop), (1, 1, Stop::Full));
        assert_eq!(down.reap(), [(0, 1024), (1, 1024), (2, 964)]);
        assert_eq!(guest.read(RX_AT + 12, 3000), frame);
        for id in 0..8 {
            down.offer_one(id, RX_AT + u64::from(id) * 1024, 1024, WRITE);
        }
        let giant = vec![2; 9000];
        let sent = station.send(&tx, ONE, &[giant, frame[..60].to_vec()]);
        assert_eq!((sent.taken, sent.frames), (2, 1));
        assert_eq!(sent.dropped()[0], (Drop::TooBig, 1));
        assert_eq!(down.reap(), [(0, 72)]);
    }
}

/// A frame too large for one buffer is dropped where buffers are not mergeable, and the buffer stays.
#[test]
fn too_big_without_merging() {
    for layout in LAYOUTS {
        let guest = Guest::new();
        let mut down = layout.ring(&guest, 0, 8, 0);
        let tx = down.tx(0);
        down.offer_one(5, RX_AT, 112, WRITE);
        let frames = [vec![2; 101], vec![4; 100], vec![6; 60]];
        let sent = Station::new().send(&tx, ONE, &frames);
        assert_eq!((sent.taken, sent.frames, sent.stop), (2, 1, Stop::Full));
        assert_eq!(sent.dropped()[0], (Drop::TooBig, 1));
        assert_eq!(down.reap(), [(5, 112)]);
        assert_eq!(guest.read(RX_AT + 12, 100), frames[1]);
    }
}

/// The header before a frame is a claim only where an offload was negotiated, and then only that one.
#[test]
fn claims_follow_negotiation() {
    for layout in LAYOUTS {
        let header = Offload::needing_csum(34, 16)
            .with_gso(windlass_frame::Gso::Tcp4, 1448, false)
            .encode(0, 54);
        for (features, expected) in [
            (0, Claim::NONE),
            (CSUM | HOST_TSO4, Claim::decode(&header)),
            (
                CSUM,
                Claim {
                    gso_type: 0,
                    ..Claim::decode(&header)
                },
            ),
        ] {
            for shape in [Shape::Direct, Shape::Chained] {
                let guest = Guest::new();
                let mut up = layout.ring(&guest, 0, 16, 0);
                let mut rx = up.rx(features);
                let mut bytes = with_header(2000, 1);
                bytes[..HEADER].copy_from_slice(&header);
                guest.write(TX_AT, &bytes);
                offer(&mut *up, shape, 3, TX_AT, 2012, 0);
                Station::new().visit(&mut rx, |_, heads, tails, _| {
                    assert_eq!(heads.meta[0].claim, expected, "{features:#x} {shape:?}");
                    assert_eq!(frame(heads, tails, 0).expect("frame"), bytes[HEADER..]);
                });
            }
        }
    }
}

/// A TCP frame of 3,000 payload bytes over IPv4, its checksum to be completed.
fn tcp_frame() -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    f.extend([
        0x45, 0, 0, 0, 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ]);
    f.extend([
        0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0,
    ]);
    f.extend((0..3000).map(|i| i as u8));
    let total = (f.len() - 14) as u16;
    f[16..18].copy_from_slice(&total.to_be_bytes());
    f
}

/// A guest that negotiated segmentation gets the header as it holds, moved by a pushed tag; one that did not gets
/// segments and a plain header.
#[test]
fn offload_as_negotiated() {
    for layout in LAYOUTS {
        let off = Offload::needing_csum(34, 16).with_gso(windlass_frame::Gso::Tcp4, 1448, false);
        for (features, used) in [
            (GUEST_CSUM | GUEST_TSO4, vec![12 + 3054 + 4]),
            (GUEST_CSUM, vec![12 + 1502 + 4, 12 + 1502 + 4, 12 + 158 + 4]),
        ] {
            let guest = Guest::new();
            let mut down = layout.ring(&guest, 0, 8, 0);
            let tx = down.tx(features);
            for id in 0..8 {
                down.offer_one(id, RX_AT + u64::from(id) * 4096, 4096, WRITE);
            }
            let mut station = Station::new();
            let section = station.worker.section();
            let mut tails = Tails::bind(&mut station.store, &section);
            let heads = &mut station.heads;
            heads.clear(RxId(0), Tick(0));
            put(heads, &mut tails, 0, &tcp_frame());
            heads.n = 1;
            let meta = &mut heads.meta[0];
            (meta.off, meta.l2, meta.l3, meta.l4, meta.vid) = (off, 14, 20, 20, 7);
            let sent = tx.tx_burst(&section, ONE, heads, &tails, &[Pick::frame(0, true)]);
            assert_eq!((sent.taken, sent.frames), (1, 1));
            let came: Vec<u32> = down.reap().iter().map(|c| c.1).collect();
            assert_eq!(came, used);
            let header: [u8; 12] = guest.read(RX_AT, 12).try_into().expect("12");
            let claim = Claim::decode(&header);
            assert_eq!(header[10..], [1, 0]);
            if came.len() == 1 {
                assert_eq!((claim.csum_start, claim.csum_offset), (38, 16));
                assert_eq!((claim.gso_type, claim.gso_size), (Claim::GSO_TCPV4, 1448));
                assert_eq!(sent.segments, 0);
            } else {
                assert!(claim.is_none());
                assert_eq!(sent.segments, 3);
            }
            assert_eq!(guest.read(RX_AT + 12 + 12, 4), [0x81, 0, 0, 7]);
        }
    }
}

fn signalled(fd: &OwnedFd) -> bool {
    matches!(eventfd::drain(fd), Ok(n) if n > 0)
}

/// With and without EVENT_IDX the guest is told when to kick, and interrupted only when it wants to be.
#[test]
fn notifications_are_suppressed_both_ways() {
    for event in [false, true] {
        let guest = Guest::new();
        let mut up = Virtq::new(&guest, 0, 8, 0);
        let call = eventfd::create().expect("eventfd");
        let setup = QueueSetup {
            call: Some(call.try_clone().expect("dup")),
            ..up.setup(if event { EVENT_IDX } else { 0 })
        };
        let mut rx = windlass_attach::vhost_user::VhostRx::new(setup).expect("rx");
        let mut station = Station::new();
        let wants_kick = |up: &Virtq, old: u16, new: u16| match event {
            true => {
                let at = up.get16(up.avail_event());
                new.wrapping_sub(at).wrapping_sub(1) < new.wrapping_sub(old)
            }
            false => up.get16(up.used) & 1 == 0,
        };
        guest.write(TX_AT, &with_header(60, 0));
        let wants_call = |up: &Virtq, wanted: bool, next: u16| match event {
            true => up.set16(
                up.used_event(),
                if wanted { next } else { next.wrapping_sub(5) },
            ),
            false => up.set16(up.avail, u16::from(!wanted)),
        };
        for round in 0..70_000u32 {
            let (wanted, before) = (round % 3 == 0, up.index);
            {
                let section = station.worker.section();
                assert_eq!(rx.arm(&section), Armed::Yes);
                assert!(wants_kick(&up, before, before.wrapping_add(1)));
                rx.disarm(&section);
            }
            assert!(!wants_kick(&up, before, before.wrapping_add(1)), "{round}");
            wants_call(&up, wanted, before);
            up.set(2, TX_AT, 72, 0, 0);
            up.offer(2);
            {
                let section = station.worker.section();
                assert_eq!(rx.arm(&section), Armed::Work);
                assert!(!wants_kick(&up, up.index, up.index.wrapping_add(1)));
            }
            assert_eq!(station.receive(&mut rx).len(), 1);
            assert_eq!(signalled(&call), wanted, "event {event}, round {round}");
            assert_eq!(up.reap().len(), 1);
        }
    }
}

/// A receiving guest's driver is never asked to kick, however far the index goes, and the burst says whether it
/// wants an interrupt.
#[test]
fn transmitting_asks_for_no_kicks() {
    let guest = Guest::new();
    let mut down = Virtq::new(&guest, 0, 256, 0);
    let call = eventfd::create().expect("eventfd");
    let setup = QueueSetup {
        call: Some(call.try_clone().expect("dup")),
        ..down.setup(EVENT_IDX)
    };
    let tx = VhostTx::new(setup, []).expect("tx");
    let mut station = Station::new();
    for round in 0..3000u16 {
        let old = down.index;
        for id in 0..64 {
            down.set(id, RX_AT + u64::from(id) * 128, 128, WRITE, 0);
            down.stage(id);
        }
        down.publish();
        let event = down.get16(down.avail_event());
        let crossed = down.index.wrapping_sub(event).wrapping_sub(1) < down.index.wrapping_sub(old);
        assert!(
            !crossed,
            "round {round}: event {event}, index {}",
            down.index
        );
        let wanted = round % 2 == 0;
        down.set16(
            down.used_event(),
            old.wrapping_add(if wanted { 63 } else { 64 }),
        );
        let sent = station.send(&tx, ONE, &vec![vec![2; 60]; 64]);
        assert_eq!((sent.frames, sent.kick == Kick::Now), (64, wanted));
        if wanted {
            tx.kick(ONE);
        }
        assert_eq!(signalled(&call), wanted);
        assert_eq!(down.reap().len(), 64);
    }
}

/// Workers that share a guest's ring: every frame arrives once and whole, each worker's in order.
#[test]
fn workers_share_a_ring() {
    for layout in LAYOUTS {
        const WORKERS: u16 = 3;
        const EACH: u32 = 4000;
        let guest = Guest::new();
        let mut down = layout.ring(&guest, 0, 256, 0);
        let tx: Arc<dyn TxPort> = Arc::new(down.tx(MRG_RXBUF));
        for id in 0..256 {
            down.offer_one(id, RX_AT + u64::from(id) * 256, 256, WRITE);
        }
        let domain = Domain::new(usize::from(WORKERS));
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                let (tx, mut station) = (tx.clone(), Station::of(&domain));
                scope.spawn(move || {
                    let lane = Lane {
                        worker,
                        workers: WORKERS,
                    };
                    let mut number = 0;
                    while number < EACH {
                        let frames: Vec<Vec<u8>> = (number..EACH.min(number + 5))
                            .map(|n| {
                                let mut f = vec![worker as u8; 60 + (n as usize * 37) % 600];
                                f[12..16].copy_from_slice(&n.to_le_bytes());
                                f
                            })
                            .collect();
                        number += station.send(&*tx, lane, &frames).taken as u32;
                        std::thread::yield_now();
                    }
                });
            }
            let mut next = [0u32; WORKERS as usize];
            let mut left = 0;
            let mut bytes = Vec::new();
            while next.iter().any(|n| *n < EACH) {
                for (id, len) in down.reap() {
                    let part = guest.read(RX_AT + u64::from(id) * 256, len as usize);
                    if left == 0 {
                        left = u16::from_le_bytes([part[10], part[11]]);
                        bytes.clear();
                        bytes.extend_from_slice(&part[HEADER..]);
                    } else {
                        bytes.extend_from_slice(&part);
                    }
                    left -= 1;
                    down.offer_one(id, RX_AT + u64::from(id) * 256, 256, WRITE);
                    if left == 0 {
                        let from = usize::from(bytes[0]);
                        let number = u32::from_le_bytes(bytes[12..16].try_into().expect("4"));
                        assert_eq!(number, next[from]);
                        assert_eq!(bytes.len(), 60 + (number as usize * 37) % 600);
                        assert!(bytes[16..].iter().all(|b| usize::from(*b) == from));
                        next[from] += 1;
                    }
                }
                std::thread::yield_now();
            }
        });
    }
}

/// What we do not do is refused by name, and so are rings that do not lie in the guest's memory.
#[test]
fn setups_are_checked() {
    let guest = Guest::new();
    let up = Virtq::new(&guest, 0, 256, 0);
    let refused = |change: &dyn Fn(&mut QueueSetup)| {
        let mut setup = up.setup(EVENT_IDX);
        change(&mut setup);
        windlass_attach::vhost_user::VhostRx::new(setup).expect_err("refused")
    };
    assert_eq!(refused(&|s| s.size = 0), QueueError::Size(0));
    assert_eq!(refused(&|s| s.size = 48), QueueError::Size(48));
    assert_eq!(refused(&|s| s.features = 0), QueueError::Legacy);
    assert_eq!(refused(&|s| s.size = 40_000), QueueError::Size(40_000));
    let unknown = QueueError::Features(ACCESS_PLATFORM | 1 << 60);
    assert_eq!(
        refused(&|s| s.features |= ACCESS_PLATFORM | 1 << 60),
        unknown
    );
    let place = |error| matches!(error, QueueError::Place { .. });
    assert!(place(refused(&|s| s.desc += 8)));
    assert!(place(refused(&|s| s.avail += 1)));
    assert!(place(refused(&|s| s.used += 2)));
    assert!(place(refused(&|s| s.desc = LOW + LOW_BYTES - 4080)));
    assert!(place(refused(&|s| s.used = LOW + LOW_BYTES - 2052)));
    assert!(place(refused(&|s| s.avail = u64::MAX - 1)));
    let file = || std::fs::File::open("/proc/self/exe").expect("open").into();
    let kick = QueueError::NotEventfd("kick");
    assert_eq!(refused(&|s| s.kick = Some(file())), kick);
    let mut setup = up.setup(0);
    setup.used = LOW + LOW_BYTES - 2052;
    let rx = windlass_attach::vhost_user::VhostRx::new(setup).expect("fits without EVENT_IDX");
    assert!(rx.polls_memory() && rx.wake().is_none());
}

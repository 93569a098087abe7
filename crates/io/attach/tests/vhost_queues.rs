//! Several queues that come and go, and the log of pages that a front end moves a guest by.
#![allow(missing_docs)]

mod vhost_drive;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vhost_drive::*;
use windlass_attach::port::{Kick, Lane, RxPort, Stop, TxPort};
use windlass_attach::vhost_user::features::*;
use windlass_attach::vhost_user::tx::QUEUES_MAX;
use windlass_attach::vhost_user::{DirtyLog, QueueError, QueueSetup, VhostRx, VhostTx};
use windlass_shm::{HugePages, Mapping};
use windlass_sync::qsbr::Domain;
use windlass_sys::eventfd;

const BUFFER: u64 = 256;

/// Where queue `number` has the buffer `id`.
fn buffer(number: u64, id: u16) -> u64 {
    HIGH + number * (1 << 16) + u64::from(id) * BUFFER
}

/// `count` receive queues of one guest with 64 buffers each, and the half for them.
fn queues(
    guest: &Arc<Guest>,
    layout: Layout,
    count: u64,
) -> (Vec<Box<dyn Driver>>, VhostTx, Vec<OwnedFd>) {
    let mut rings = Vec::new();
    let (mut setups, mut calls) = (Vec::new(), Vec::new());
    for number in 0..count {
        let mut ring = layout.ring(guest, number, 64, 0x8000);
        for id in 0..64 {
            ring.offer_one(id, buffer(number, id), BUFFER as u32, WRITE);
        }
        let call = eventfd::create().expect("eventfd");
        setups.push(QueueSetup {
            call: Some(call.try_clone().expect("dup")),
            ..ring.setup(MRG_RXBUF)
        });
        calls.push(call);
        rings.push(ring);
    }
    let mut setups = setups.into_iter();
    let first = setups.next().expect("one queue");
    (rings, VhostTx::new(first, setups).expect("tx"), calls)
}

fn lane(worker: u16, workers: u16) -> Lane {
    Lane { worker, workers }
}

/// Each worker has its queue among those that are enabled, the guest of that queue is interrupted, and with none
/// enabled nobody is there.
#[test]
fn workers_go_to_enabled_queues() {
    for layout in LAYOUTS {
        let guest = Guest::new();
        let (mut rings, tx, calls) = queues(&guest, layout, 4);
        let mut station = Station::new();
        let frames = [vec![2; 60]];
        let expect = |rings: &mut Vec<Box<dyn Driver>>, queue: usize| {
            for (number, ring) in rings.iter_mut().enumerate() {
                let came = usize::from(number == queue);
                assert_eq!(ring.reap().len(), came, "queue {number} of {layout:?}");
                let rung = matches!(eventfd::drain(&calls[number]), Ok(n) if n > 0);
                assert_eq!(rung, came == 1, "queue {number} of {layout:?}");
            }
        };
        let mut send = |worker| {
            let sent = station.send(&tx, lane(worker, 6), &frames);
            assert_eq!((sent.frames, sent.kick), (1, Kick::Now));
            tx.kick(lane(worker, 6));
        };
        for worker in 0..6 {
            send(worker);
            expect(&mut rings, usize::from(worker % 4));
        }
        tx.set_enabled(0, false);
        tx.set_enabled(2, false);
        tx.set_enabled(77, true);
        for worker in 0..6 {
            send(worker);
            expect(&mut rings, [1, 3][usize::from(worker % 2)]);
        }
        for queue in [1, 3] {
            tx.set_enabled(queue, false);
        }
        let sent = station.send(&tx, lane(0, 1), &frames);
        assert_eq!((sent.taken, sent.stop), (0, Stop::Down));
        tx.set_enabled(3, true);
        assert_eq!(station.send(&tx, lane(0, 1), &frames).frames, 1);
        // What is owed to the guest of a queue stays so when the queue is no longer the worker's.
        tx.set_enabled(0, true);
        tx.set_enabled(3, false);
        tx.kick(lane(0, 1));
        expect(&mut rings, 3);
    }
}

/// More queues than a device has are refused.
#[test]
fn sixteen_queues_at_most() {
    let guest = Guest::new();
    let make = |count: usize| {
        let ring = |_| Virtq::new(&guest, 0, 8, 0).setup(0);
        VhostTx::new(ring(0), (1..count).map(ring)).map(|_| ())
    };
    assert!(make(QUEUES_MAX).is_ok());
    assert_eq!(
        make(QUEUES_MAX + 1),
        Err(QueueError::Queues(QUEUES_MAX + 1))
    );
}

/// Length of frame `n` of a worker.
fn length(n: u32) -> usize {
    60 + n as usize % 500
}

/// Sends numbered frames until told to stop; the numbers of those that were taken for delivered.
fn send_until(tx: &VhostTx, station: &mut Station, lane: Lane, stop: &AtomicBool) -> Vec<u32> {
    let mut delivered = Vec::new();
    let mut number = 0u32;
    while !stop.load(Ordering::Relaxed) {
        let one = |n: u32| {
            let mut bytes = vec![lane.worker as u8; length(n)];
            bytes[12..16].copy_from_slice(&n.to_le_bytes());
            bytes
        };
        let frames: Vec<_> = (number..number + 5).map(one).collect();
        let sent = station.send(tx, lane, &frames);
        delivered.extend((0..sent.frames as u32).map(|n| number + n));
        number += sent.taken as u32;
        std::thread::yield_now();
    }
    delivered
}

/// Frames that are put together again out of mergeable buffers, for each queue.
struct Collector {
    parts: Vec<(u16, Vec<u8>)>,
    /// Numbers that arrived, of each worker.
    arrived: Vec<Vec<u32>>,
}

impl Collector {
    fn collect(&mut self, guest: &Guest, rings: &mut [Box<dyn Driver>]) {
        for (number, ring) in rings.iter_mut().enumerate() {
            let (left, bytes) = &mut self.parts[number];
            for (id, len) in ring.reap() {
                let at = buffer(number as u64, id);
                let part = guest.read(at, len as usize);
                if *left == 0 {
                    *left = u16::from_le_bytes([part[10], part[11]]);
                    bytes.clear();
                    bytes.extend_from_slice(&part[HEADER..]);
                } else {
                    bytes.extend_from_slice(&part);
                }
                *left -= 1;
                ring.offer_one(id, at, BUFFER as u32, WRITE);
                if *left == 0 {
                    let n = u32::from_le_bytes(bytes[12..16].try_into().expect("4"));
                    let whole = bytes.len() == length(n);
                    assert!(whole && bytes[16..].iter().all(|b| *b == bytes[0]));
                    self.arrived[usize::from(bytes[0])].push(n);
                }
            }
        }
    }
}

/// Queues that go on and off under workers lose nothing: what was taken for delivered arrives, once and whole.
#[test]
fn queues_change_under_traffic() {
    const WORKERS: u16 = 3;
    for layout in LAYOUTS {
        let guest = Guest::new();
        let (mut rings, tx, _) = queues(&guest, layout, 3);
        let tx = Arc::new(tx);
        let domain = Domain::new(usize::from(WORKERS));
        let stop = Arc::new(AtomicBool::new(false));
        let send = |worker| {
            let (tx, stop) = (tx.clone(), stop.clone());
            let mut station = Station::of(&domain);
            let lane = lane(worker, WORKERS);
            std::thread::spawn(move || send_until(&tx, &mut station, lane, &stop))
        };
        let senders: Vec<_> = (0..WORKERS).map(send).collect();
        let mut collector = Collector {
            parts: vec![(0, Vec::new()); 3],
            arrived: vec![Vec::new(); usize::from(WORKERS)],
        };
        // On a busy machine a worker may be given no core in the first rounds.
        let end = Instant::now() + Duration::from_secs(30);
        for round in 0.. {
            let is_enough = collector.arrived.iter().all(|arrived| arrived.len() > 20);
            if round >= 3000 && (is_enough || Instant::now() > end) {
                break;
            }
            tx.set_enabled(round % 3, round % 2 == 0);
            collector.collect(&guest, &mut rings);
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        let delivered: Vec<_> = senders
            .into_iter()
            .map(|s| s.join().expect("worker"))
            .collect();
        collector.collect(&guest, &mut rings);
        for (worker, mut arrived) in collector.arrived.into_iter().enumerate() {
            arrived.sort_unstable();
            assert_eq!(arrived, delivered[worker], "{layout:?}");
            assert!(arrived.len() > 20, "only {} frames", arrived.len());
        }
    }
}

const PAGE: usize = 4096;
/// Bytes of a bitmap over all of a guest's addresses.
const LOG_BYTES: usize = ((HIGH + HIGH_BYTES) / 4096 / 8) as usize;

/// How many pages differ; each must have its bit.
fn changed(before: &[u8], after: &[u8], bits: &[u8], what: &str) -> usize {
    let pages = before.chunks(PAGE).zip(after.chunks(PAGE)).enumerate();
    let differ = pages.filter(|(_, (before, after))| before != after);
    let mut count = 0;
    for (page, _) in differ {
        let gpa = match (page * PAGE) as u64 {
            at if at >= LOW_BYTES => HIGH + at - LOW_BYTES,
            at => LOW + at,
        };
        let bit = gpa / 4096;
        let is_set = bits[(bit / 8) as usize] & 1 << (bit % 8) != 0;
        assert!(is_set, "page {gpa:#x} of {what}");
        count += 1;
    }
    count
}

/// Offers frames of many lengths on one ring, and buffers of two shapes on the other.
fn offer_some(up: &mut dyn Driver, down: &mut dyn Driver, round: u64) {
    for k in 0..40u16 {
        let len = 60 + (u64::from(k) * 97 + round * 31) % 3000;
        let at = HIGH + u64::from(k) * 4096;
        up.guest()
            .write(at, &with_header(len as usize, round as u8));
        up.add(k, &[(at, 12 + len as u32)], None, 0);
        let to = HIGH + (8 << 20) + (u64::from(k) * 40 + round) * 5000;
        let list = [(to, 100), (to + 4000, 3000)];
        match k % 2 {
            0 => down.add(k * 3, &list, None, WRITE),
            _ => down.add(k * 3, &[(to, 3100)], None, WRITE),
        }
    }
    up.publish();
    down.publish();
}

/// Every page of a guest that changed is logged, whatever was written to it: frames, headers, used elements, events.
#[test]
fn every_page_that_changed_is_logged() {
    for layout in LAYOUTS {
        for features in [
            0,
            EVENT_IDX,
            EVENT_IDX | MRG_RXBUF | IN_ORDER | INDIRECT_DESC,
        ] {
            let guest = Guest::new();
            let made = Mapping::create("vhost-log", LOG_BYTES, HugePages::No);
            let (bitmap, file) = made.expect("memfd");
            let log = DirtyLog::new(file.as_fd(), 0, LOG_BYTES as u64).expect("log");
            let log = Arc::new(log);
            // Rings so large that they end behind the start of a page, and so placed that they wrap.
            let mut up = layout.ring(&guest, 0, 1024, 60_000);
            let mut down = layout.ring(&guest, 1, 1024, 90);
            let with_log = |setup: QueueSetup| QueueSetup {
                log: Some(log.clone()),
                features: setup.features | LOG_ALL,
                ..setup
            };
            let mut rx = VhostRx::new(with_log(up.setup(features))).expect("rx");
            let tx = VhostTx::new(with_log(down.setup(features)), []).expect("tx");
            let mut station = Station::new();
            let read = || {
                let mut all = vec![0; (LOW_BYTES + HIGH_BYTES) as usize];
                assert!(guest.memory.read(0, &mut all));
                all
            };
            let mut any = 0;
            for round in 0..40u64 {
                offer_some(&mut *up, &mut *down, round);
                bitmap.write(0, &[0; LOG_BYTES]);
                let before = read();
                station.relay(&mut rx, &tx, false);
                {
                    let section = station.worker.section();
                    let _ = rx.arm(&section);
                    rx.disarm(&section);
                }
                let mut bits = vec![0; LOG_BYTES];
                assert!(bitmap.read(0, &mut bits));
                any += changed(
                    &before,
                    &read(),
                    &bits,
                    &format!("{layout:?}, {features:#x}"),
                );
                let marked: u32 = bits.iter().map(|b| b.count_ones()).sum();
                assert!(marked < 250, "{marked} pages");
                up.reap();
                down.reap();
            }
            assert!(any > 1000, "only {any} pages changed");
        }
    }
}

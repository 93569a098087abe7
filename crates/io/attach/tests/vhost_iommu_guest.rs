//! A guest behind an IOMMU: addresses that only its front end can translate, asked for, used, and taken back.
#![allow(missing_docs, clippy::arithmetic_side_effects)]

mod vhost_drive;
mod vhost_front;
mod vhost_iommu;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vhost_drive::{LAYOUTS, Layout, ONE, Station};
use vhost_front::{FEATURES, Front, Host, PATIENCE, RING, SERVER, USER, conf};
use vhost_iommu::*;
use windlass_attach::endpoint::Endpoint;
use windlass_attach::port::{Armed, More, Stop, TxPort};
use windlass_attach::vhost_user::features::{ACCESS_PLATFORM, LOG_ALL};
use windlass_attach::vhost_user::message::{Code, protocol};
use windlass_shm::{HugePages, Mapping};
use windlass_sys::eventfd;

fn place() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("s");
    (directory, path)
}

fn frame(number: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend((14..len).map(|i| number ^ (i as u8)));
    bytes
}

/// What a guest behind an IOMMU sends comes whole and in order, one chain or several pieces or a table, though nothing is
/// translated to begin with; meanwhile its ring waits: no frame is lost or half received, visits ask nothing twice, the worker
/// may sleep, and is woken by the answer.
#[test]
fn what_a_guest_sends_waits_for_translations() {
    for layout in LAYOUTS {
        let (_directory, path) = place();
        let mut host = Host::new(conf(&path, SERVER, 1));
        let mut machine = Machine::start(&mut host, &path, layout, FEATURES);
        let mut station = Station::new();
        let lengths = [1500, 60, 1514, 800, 600, 1200];
        let frames: Vec<_> = (0..RING / 2)
            .map(|i| frame(i as u8, lengths[usize::from(i) % 6].max(700)))
            .collect();
        for (id, frame) in frames.iter().enumerate() {
            machine.send(id as u16 * 2 % RING, frame);
        }
        let mut got = Vec::new();
        let mut rounds = 0;
        while got.len() < frames.len() {
            let rings = host.rings.as_mut().expect("rings");
            let rx = rings.rx[0].as_mut();
            let mut came = station.receive(rx);
            let more = station.visit(rx, |_, heads, _, more| {
                came.extend(
                    (0..heads.n)
                        .map(|_| panic!("a visit that finds more than the last"))
                        .collect::<Vec<_>>(),
                );
                more
            });
            assert_eq!(more, More::Drained, "nothing is to be done at once");
            assert_eq!(rx.arm(&station.worker.section()), Armed::Yes);
            got.extend(came);
            if got.len() == frames.len() {
                break;
            }
            let asked = machine.questions(&mut host);
            assert!(
                !asked.is_empty() && asked.len() <= 40,
                "{} in round {rounds}",
                asked.len()
            );
            for _ in 0..50 {
                let rings = host.rings.as_mut().expect("rings");
                assert_eq!(station.receive(rings.rx[0].as_mut()), []);
            }
            assert_eq!(machine.questions(&mut host), [], "asked twice");
            let _ = eventfd::drain(&machine.queues[1].kick);
            for (iova, perm) in &asked {
                assert_eq!(machine.tell(&mut host, *iova, *perm), 0);
            }
            assert!(
                eventfd::drain(&machine.queues[1].kick).is_ok(),
                "the worker is woken"
            );
            rounds += 1;
            assert!(rounds < 200);
        }
        let expected: Vec<_> = frames.into_iter().map(Ok).collect();
        assert_eq!(got, expected, "{layout:?}");
        assert_eq!(machine.queues[1].ring.reap().len(), expected.len());
        let detail = host.detail("iommu");
        assert!(detail.contains(" 0 asked for"), "{detail}");
    }
}

/// Sends `frames` to the guest, as a worker that holds what has to wait, while the front end answers.
fn deliver(machine: &Machine, host: &mut Host, station: &mut Station, frames: &[Vec<u8>]) {
    let mut done = 0;
    let end = Instant::now() + PATIENCE;
    while done < frames.len() {
        assert!(Instant::now() < end, "{done} of {}", frames.len());
        let rings = host.rings.as_ref().expect("rings");
        let few = &frames[done..frames.len().min(done + 8)];
        let sent = station.send(rings.tx.as_ref(), ONE, few);
        assert_eq!(sent.frames as usize, sent.taken, "none is dropped");
        done += sent.taken;
        if done < frames.len() && sent.taken < few.len() {
            assert!(
                matches!(sent.stop, Stop::Busy | Stop::Full),
                "{:?}",
                sent.stop
            );
            machine.answer(host);
        }
    }
}

/// Frames for a guest behind an IOMMU wait for the translation of its buffers, and arrive whole and in order over buffers
/// that lie in two pieces.
#[test]
fn frames_for_a_guest_wait_for_translations() {
    for layout in LAYOUTS {
        let (_directory, path) = place();
        let mut host = Host::new(conf(&path, SERVER, 1));
        let mut machine = Machine::start(&mut host, &path, layout, FEATURES);
        let mut station = Station::new();
        (0..40).for_each(|id| machine.offer(id));
        let rings = host.rings.as_ref().expect("rings");
        let sent = station.send(rings.tx.as_ref(), ONE, &[frame(0, 100)]);
        assert_eq!((sent.taken, sent.stop), (0, Stop::Busy), "it waits");
        let frames: Vec<_> = (0..40)
            .map(|i| frame(i, 60 + usize::from(i) * 37))
            .collect();
        deliver(&machine, &mut host, &mut station, &frames);
        let came = machine.queues[0].ring.reap();
        assert_eq!(came.len(), frames.len(), "{layout:?}");
        for ((id, bytes), frame) in came.iter().zip(&frames) {
            assert_eq!(*bytes as usize, frame.len() + 12);
            let at = buffer(0, *id) + 12;
            assert_eq!(machine.read(at, frame.len()), *frame, "{layout:?}");
        }
    }
}

/// A front end that does not answer costs its own guest's frames, after a bounded time in which they wait.
#[test]
fn nobody_waits_for_long() {
    let (_directory, path) = place();
    let mut host = Host::new(conf(&path, SERVER, 1));
    let mut machine = Machine::start(&mut host, &path, Layout::Split, FEATURES);
    let mut station = Station::new();
    machine.offer(0);
    let tx = host.rings.as_ref().expect("rings").tx.clone();
    let begun = Instant::now();
    let mut stops = Vec::new();
    while begun.elapsed() < Duration::from_millis(200) && stops.last() != Some(&Stop::Full) {
        let sent = station.send(tx.as_ref(), ONE, &[frame(0, 100)]);
        assert_eq!(sent.taken, 0);
        stops.push(sent.stop);
    }
    assert_eq!(stops.first(), Some(&Stop::Busy));
    assert_eq!(stops.last(), Some(&Stop::Full), "it waits no longer");
}

/// A translation that allows less than is wanted is none.
#[test]
fn access_is_kept() {
    let (_directory, path) = place();
    let mut host = Host::new(conf(&path, SERVER, 1));
    let mut machine = Machine::start(&mut host, &path, Layout::Split, FEATURES);
    let mut station = Station::new();
    machine.offer(0);
    let pages = [buffer(0, 0), buffer(0, 0) + PAGE].map(|at| at - at % PAGE);
    let before = machine.read(pages[0], 2 * PAGE as usize);
    let tx = host.rings.as_ref().expect("rings").tx.clone();
    for _ in 0..10 {
        let sent = station.send(tx.as_ref(), ONE, &[frame(0, 1000)]);
        assert_eq!(sent.taken, 0);
        for (iova, perm) in machine.questions(&mut host) {
            let given = if pages.contains(&iova) { READ } else { BOTH };
            assert_eq!(perm == READ, !pages.contains(&iova) && perm == READ);
            assert_eq!(machine.tell(&mut host, iova, given), 0);
        }
    }
    assert_eq!(machine.read(pages[0], 2 * PAGE as usize), before);
    for page in pages {
        assert_eq!(machine.tell(&mut host, page, WRITE), 0);
    }
    let sent = station.send(tx.as_ref(), ONE, &[frame(0, 1000)]);
    assert_eq!(sent.taken, 1);
}

/// An invalidation is acknowledged behind the visit that uses what it takes away, and not before.
#[test]
fn an_invalidation_waits_for_the_visit() {
    for layout in LAYOUTS {
        let (_directory, path) = place();
        let mut host = Host::new(conf(&path, SERVER, 1));
        let mut machine = Machine::start(&mut host, &path, layout, FEATURES);
        let mut station = Station::new();
        machine.send(0, &frame(5, 1000));
        for _ in 0..20 {
            let rings = host.rings.as_mut().expect("rings");
            station.visit(rings.rx[0].as_mut(), |_, heads, _, _| {
                assert_eq!(heads.n, 0)
            });
            let asked = machine.questions(&mut host);
            for (k, (iova, _)) in asked.iter().enumerate() {
                assert_eq!(machine.tell(&mut host, *iova, BOTH), 0, "{k}");
            }
            if machine.queues[1].number == 1 && asked.is_empty() {
                break;
            }
            let done = asked
                .iter()
                .any(|(iova, _)| *iova == buffer(1, 0) / PAGE * PAGE + PAGE);
            if done {
                break;
            }
        }
        let mut rings = host.rings.take().expect("rings");
        station.visit(rings.rx[0].as_mut(), |_, heads, tails, _| {
            assert_eq!(heads.n, 1, "{layout:?}");
            let message = windlass_attach::vhost_user::message::request(
                Code::IOTLB_MSG,
                true,
                &payload(3, 0, 0, 0, 0),
            );
            assert!(machine.front.send_bytes(&message, &[]));
            for _ in 0..50 {
                host.step();
                assert_eq!(machine.front.answer(), None, "answered in the visit");
            }
            assert_eq!(vhost_drive::frame(heads, tails, 0), Ok(frame(5, 1000)));
        });
        host.rings = Some(rings);
        let answer = machine.front.await_answer(&mut host, Code::IOTLB_MSG);
        assert_eq!(answer, 0u64.to_ne_bytes());
    }
}

/// A worker that sends numbered frames as fast as it can, and tells how many.
fn flood(
    tx: Arc<dyn TxPort>,
    ends: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut station = Station::new();
        let mut next = 0u64;
        while !ends.load(Ordering::Relaxed) {
            let mut bytes = frame(0, 1000);
            bytes[14..22].copy_from_slice(&next.to_ne_bytes());
            let done = station.send(tx.as_ref(), ONE, &[bytes]);
            next += done.taken as u64;
            sent.store(next, Ordering::Relaxed);
        }
    })
}

/// Once an invalidation is acknowledged no byte is written to where the address was, however fast frames come, and frames go
/// on where it is then; none is lost out of order. The ring's own pages are taken away and given back too.
#[test]
fn nothing_is_written_behind_an_invalidation() {
    for layout in LAYOUTS {
        let (_directory, path) = place();
        let mut host = Host::new(conf(&path, SERVER, 1));
        let mut machine = Machine::start(&mut host, &path, layout, FEATURES);
        let rings = host.rings.as_ref().expect("rings");
        let tx = rings.tx.clone();
        let (ends, sent) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let worker = flood(tx, ends.clone(), sent.clone());
        const SPARE: u64 = 4 << 20;
        const MARK: u8 = 0xee;
        let mut expected = 0u64;
        (0..RING).for_each(|id| machine.offer(id));
        for round in 0..24u64 {
            let until = Instant::now() + PATIENCE;
            let target = expected + 20;
            while expected < target {
                assert!(
                    Instant::now() < until,
                    "{layout:?} {round}: {:?}",
                    host.endpoint.status()
                );
                machine.answer(&mut host);
                for (id, _) in machine.queues[0].ring.reap() {
                    let number = machine.read(buffer(0, id) + 12 + 14, 8);
                    assert_eq!(u64::from_ne_bytes(number.try_into().unwrap()), expected);
                    expected += 1;
                    machine.offer(id);
                }
            }
            // The page of a buffer's beginning; every few rounds everything.
            let page = buffer(0, (round % u64::from(RING)) as u16) / PAGE * PAGE;
            let old = machine.offset(page);
            match round % 4 {
                0 => machine.take_back(&mut host, 0, 0),
                _ => machine.take_back(&mut host, page, PAGE),
            }
            assert!(machine.guest.memory.write(old, &[MARK; PAGE as usize]));
            let lately = sent.load(Ordering::Relaxed);
            let wait = Instant::now() + Duration::from_millis(2);
            while Instant::now() < wait {
                std::thread::yield_now();
            }
            assert!(sent.load(Ordering::Relaxed) - lately <= u64::from(RING));
            let mut bytes = vec![0; PAGE as usize];
            assert!(machine.guest.memory.read(old, &mut bytes));
            assert!(
                bytes.iter().all(|b| *b == MARK),
                "{layout:?} {round}: written behind"
            );
            // What was in the buffers of that page and not yet looked at is gone with it: they were not filled again.
            for (id, _) in machine.queues[0].ring.reap() {
                if buffer(0, id) / PAGE * PAGE != page {
                    let number = machine.read(buffer(0, id) + 12 + 14, 8);
                    assert_eq!(u64::from_ne_bytes(number.try_into().unwrap()), expected);
                }
                expected += 1;
                machine.offer(id);
            }
            machine.moved.insert(page, SPARE + round * PAGE);
        }
        ends.store(true, Ordering::Relaxed);
        worker.join().expect("the worker");
    }
}

/// Pages that are written are logged where they are in the guest, not where the device has them.
#[test]
fn the_guests_pages_are_logged() {
    for layout in LAYOUTS {
        let (_directory, path) = place();
        let mut host = Host::new(conf(&path, SERVER, 1));
        let mut machine = Machine::start(&mut host, &path, layout, FEATURES);
        let bytes = 256 << 10;
        let (log, file) = Mapping::create("log", bytes, HugePages::No).expect("a log");
        let base = [(bytes as u64).to_ne_bytes(), 0u64.to_ne_bytes()].concat();
        machine
            .front
            .say(Code::SET_LOG_BASE, &base, &[file.as_fd()]);
        machine.front.await_answer(&mut host, Code::SET_LOG_BASE);
        let packed = match layout {
            Layout::Split => 0,
            Layout::Packed => windlass_attach::vhost_user::features::RING_PACKED,
        };
        let features = FEATURES | ACCESS_PLATFORM | LOG_ALL | packed;
        machine.front.say_word(Code::SET_FEATURES, features);
        machine.front.ask_word(&mut host, Code::GET_STATUS);
        host.until_up();
        machine.offer(3);
        let mut station = Station::new();
        deliver(&machine, &mut host, &mut station, &[frame(1, 1400)]);
        let page_of = |offset: u64| match offset {
            vhost_drive::LOW_BYTES.. => {
                (offset - vhost_drive::LOW_BYTES + vhost_drive::HIGH) / PAGE
            }
            _ => (offset + vhost_drive::LOW) / PAGE,
        };
        let is_set = |page: u64| {
            let mut byte = [0];
            assert!(log.read(page / 8, &mut byte));
            byte[0] >> (page % 8) & 1 != 0
        };
        let ring = machine.queues[0].ring.setup(0);
        let ring_part = if layout == Layout::Packed {
            ring.desc
        } else {
            ring.used
        };
        let mut wanted = vec![page_of(vhost_drive::Guest::offset(ring_part) as u64)];
        for at in [buffer(0, 3), buffer(0, 3) + PAGE] {
            wanted.push(page_of(machine.offset(at)));
        }
        for page in wanted {
            assert!(is_set(page), "{layout:?}: page {page:#x}");
        }
        let all = (0..bytes as u64 * 8).filter(|page| is_set(*page)).count();
        assert!((3..=6).contains(&all), "{layout:?}: {all} pages");
    }
}

/// Whatever a front end tells of translations, it is refused or bounded, and the connection goes on.
#[test]
fn impossible_translations_are_refused() {
    let (_directory, path) = place();
    let mut host = Host::new(conf(&path, SERVER, 1));
    let machine = Machine::start(&mut host, &path, Layout::Split, FEATURES);
    let mut say = |kind, iova, len, user, perm| {
        let bytes = payload(kind, iova, len, user, perm);
        machine
            .front
            .acknowledged(&mut host, Code::IOTLB_MSG, &bytes, &[])
    };
    let end = vhost_drive::LOW_BYTES + vhost_drive::HIGH_BYTES;
    for (kind, iova, len, user, perm) in [
        (1, 0, PAGE, USER, BOTH),
        (4, 0, PAGE, USER, BOTH),
        (0, 0, PAGE, USER, BOTH),
        (9, 0, PAGE, USER, BOTH),
        (2, 0, PAGE, USER, 0),
        (2, 0, PAGE, USER, 7),
        (2, 0, 0, USER, BOTH),
        (2, u64::MAX, 2, USER, BOTH),
        (2, 0, u64::MAX, USER, BOTH),
        (2, 0, PAGE, USER - 1, BOTH),
        (2, 0, PAGE, USER + end - PAGE + 1, BOTH),
        (2, 0, PAGE, USER + end, BOTH),
        (2, 0, PAGE, u64::MAX, BOTH),
        (2, 0, end, USER, BOTH),
    ] {
        let said = say(kind, iova, len, user, perm);
        assert_ne!(said, 0, "{kind} {iova:#x} {len:#x} {user:#x} {perm}");
    }
    assert_eq!(
        say(2, u64::MAX - PAGE + 1, PAGE, USER, BOTH),
        0,
        "the last page"
    );
    assert_eq!(say(3, u64::MAX, u64::MAX, 0, 0), 0);
    assert_eq!(say(3, 7, 0, 0, 0), 0);
    // Each other page, so that none continues another.
    for i in 0..5000u64 {
        assert_eq!(say(2, i * 2 * PAGE, PAGE, USER + i * PAGE % 4096, READ), 0);
    }
    let told = host.detail("iommu");
    assert!(told.starts_with("4096 translations"), "{told}");
    assert!(host.rings.is_some());
}

/// A front end that reads no questions, while it takes back everything all the time, is cut off; until then what is asked is
/// bounded.
#[test]
fn a_deaf_front_end_is_cut_off() {
    let (_directory, path) = place();
    let mut host = Host::new(conf(&path, SERVER, 1));
    let machine = Machine::start(&mut host, &path, Layout::Split, FEATURES);
    let end = Instant::now() + PATIENCE;
    let message = windlass_attach::vhost_user::message::request(
        Code::IOTLB_MSG,
        true,
        &payload(3, 0, 0, 0, 0),
    );
    let mut station = Station::new();
    while !machine.front.is_closed() {
        assert!(Instant::now() < end, "{:?}", host.endpoint.status());
        if machine.front.send_bytes(&message, &[]) {
            host.step();
            let _ = machine.front.answer();
        }
        if let Some(rings) = &mut host.rings {
            station.visit(rings.rx[0].as_mut(), |_, heads, _, _| {
                assert_eq!(heads.n, 0)
            });
        }
        host.step();
    }
    let why = host.detail("last-error");
    assert!(why.contains("does not read"), "{why}");
}

/// Without the socket, or the protocol features that it needs, there is no IOMMU; what is no stream socket is not taken for
/// one.
#[test]
fn an_iommu_needs_its_socket() {
    let (_directory, path) = place();
    let mut host = Host::new(conf(&path, SERVER, 1));
    let front = Front::connect(&mut host, &path);
    front.ask_word(&mut host, Code::GET_PROTOCOL_FEATURES);
    let word = |bits: u64| bits.to_ne_bytes();
    let wanted = protocol::REPLY_ACK | protocol::BACKEND_REQ;
    front.say_word(Code::SET_PROTOCOL_FEATURES, protocol::REPLY_ACK);
    let features = FEATURES | ACCESS_PLATFORM;
    let said = front.acknowledged(&mut host, Code::SET_FEATURES, &word(features), &[]);
    assert_ne!(said, 0);
    let (_ours, theirs) =
        windlass_sys::unix::pair(windlass_sys::unix::SocketKind::Stream).expect("a pair");
    let fd = [theirs.as_fd()];
    let code = Code::SET_BACKEND_REQ_FD;
    assert_ne!(
        front.acknowledged(&mut host, code, &[], &fd),
        0,
        "not agreed on"
    );
    let update = payload(2, 0, PAGE, USER, BOTH);
    assert_ne!(
        front.acknowledged(&mut host, Code::IOTLB_MSG, &update, &[]),
        0
    );
    front.say_word(Code::SET_PROTOCOL_FEATURES, wanted);
    let said = front.acknowledged(&mut host, Code::SET_FEATURES, &word(features), &[]);
    assert_eq!(said, 0);
    let event = eventfd::create().expect("an eventfd");
    assert_ne!(
        front.acknowledged(&mut host, code, &[], &[event.as_fd()]),
        0
    );
    assert_eq!(front.acknowledged(&mut host, code, &[], &fd), 0);
}

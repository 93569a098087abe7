//! Our memif server against our memif client in one process.
#![allow(missing_docs)]

mod memif_drive;

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use memif_drive::*;
use proptest::prelude::*;
use windlass_attach::endpoint::{Endpoint, Rings};
use windlass_attach::memif::layout::{Desc, RingPlace};
use windlass_attach::memif::msg::{Hello, Message, Secret, Text, VERSION};
use windlass_attach::memif::offer::Dialogue;
use windlass_attach::memif::rings::assemble;
use windlass_attach::memif::view::{Role, View};
use windlass_attach::memif::{MemifClient, MemifServer};
use windlass_attach::port::{Armed, Lane, Limit, More, Stop};
use windlass_frame::{FRAME_MAX, Gso, Offload};
use windlass_shm::Mapping;

fn expect_frames(got: Vec<Got>, sent: &[Vec<u8>]) {
    assert_eq!(got.len(), sent.len());
    for (i, (got, sent)) in got.iter().zip(sent).enumerate() {
        assert!(
            *got == Got::Frame(sent.clone()),
            "frame {i} of {} bytes differs",
            sent.len()
        );
    }
}

/// Every length up to past the snapshot, the common ones and the largest cross in both directions, on several rings, whole
/// and in order.
#[test]
fn frames_cross_both_ways_on_every_ring() {
    let mut pair = connect(3, 8);
    let mut driver = Driver::default();
    let mut lengths: Vec<usize> = (14..300).collect();
    lengths.extend([
        1514, 1518, 2047, 2048, 2049, 4096, 9000, 65_549, FRAME_MAX, 14,
    ]);
    let frames = frames(&lengths);
    for ring in 0..3u16 {
        let lane = Lane {
            worker: ring,
            workers: 3,
        };
        let rx = pair.client_rings.rx[usize::from(ring)].as_mut();
        let got = driver.pump(pair.server_rings.tx.as_ref(), rx, lane, &frames);
        expect_frames(got, &frames);
        let rx = pair.server_rings.rx[usize::from(ring)].as_mut();
        let got = driver.pump(pair.client_rings.tx.as_ref(), rx, lane, &frames);
        expect_frames(got, &frames);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random lengths over random ring sizes: nothing is lost, changed or reordered, whichever side sends.
    #[test]
    fn random_lengths_keep_order_and_content(
        log2_size in 6u8..11,
        lengths in prop::collection::vec(
            prop_oneof![3 => 14usize..200, 2 => 200usize..5000, 1 => 5000usize..=65_549], 1..80),
    ) {
        let mut pair = connect(1, log2_size);
        let mut driver = Driver::default();
        let frames = frames(&lengths);
        let got = driver.pump(
            pair.server_rings.tx.as_ref(), pair.client_rings.rx[0].as_mut(), ALONE, &frames);
        expect_frames(got, &frames);
        let got = driver.pump(
            pair.client_rings.tx.as_ref(), pair.server_rings.rx[0].as_mut(), ALONE, &frames);
        expect_frames(got, &frames);
    }
}

/// Interfaces that share a socket agree on its mode and owner: one that wants it otherwise waits with the reason, and has
/// it once the first is deleted.
#[test]
fn one_socket_has_one_mode_and_owner() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("shared.sock");
    let mut first = MemifServer::new(server_config(path.clone(), 0, 1)).expect("a server");
    first.poll(Instant::now());
    let mut begun = Instant::now();
    for (mode, owner, part) in [
        (0o660, None, "made it with mode 0600"),
        (
            0o600,
            Some((1234, 5678)),
            "this one wants it with mode 0600 for user 1234 and group 5678",
        ),
    ] {
        let mut config = server_config(path.clone(), 1, 1);
        (config.mode, config.owner) = (mode, owner);
        let mut other = MemifServer::new(config).expect("a server");
        other.poll(begun);
        let reason = other.status().reason;
        assert!(
            reason.contains(part) && reason.contains("let them agree"),
            "{reason}"
        );
    }
    let mut config = server_config(path.clone(), 1, 1);
    config.mode = 0o660;
    let mut other = MemifServer::new(config).expect("a server");
    other.poll(begun);
    first.delete();
    drop(first);
    begun += Duration::from_secs(5);
    other.poll(begun);
    assert_eq!(other.status().reason, "waiting for a client");
    let made = std::fs::metadata(&path).expect("a socket");
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&made.permissions()) & 0o777,
        0o660
    );
}

/// A tag is written between the addresses and the rest, with the VLAN of the bridge and the priority of the frame, also
/// in a chain; the burst's own bytes are left alone.
#[test]
fn tags_are_pushed_in_place() {
    let mut pair = connect(1, 8);
    let mut driver = Driver::default();
    for len in [14, 60, 64, 128, 200, 1518, 2046, 9000] {
        let frames = frames(&[len, len + 1]);
        let tx = pair.server_rings.tx.as_ref();
        let sent = driver.send(tx, ALONE, &frames, Some((0x123, 0x6fff)));
        assert_eq!((sent.frames, sent.bytes), (2, 2 * len as u64 + 9));
        let (got, _) = driver.receive(pair.client_rings.rx[0].as_mut());
        let tagged = frames
            .iter()
            .map(|f| [&f[..12], &[0x81, 0, 0x61, 0x23], &f[12..]].concat());
        assert_eq!(got, tagged.map(Got::Frame).collect::<Vec<_>>());
    }
}

/// A full ring stops at the first frame that does not fit, never skips a large one for a small one, never shows a part
/// of one, and goes on where it stopped.
#[test]
fn full_ring_stops_in_order() {
    let mut pair = connect(1, 6);
    let mut driver = Driver::default();
    let lengths: Vec<usize> = (0..62).map(|i| 60 + i).chain([9000, 64]).collect();
    let frames = frames(&lengths);
    let sent = driver.send(pair.server_rings.tx.as_ref(), ALONE, &frames, None);
    assert_eq!((sent.taken, sent.frames, sent.stop), (62, 62, Stop::Full));
    let (got, more) = driver.receive(pair.client_rings.rx[0].as_mut());
    expect_frames(got, &frames[..62]);
    assert_eq!(more, More::Drained);
    let sent = driver.send(pair.server_rings.tx.as_ref(), ALONE, &frames[62..], None);
    assert_eq!((sent.taken, sent.stop), (2, Stop::Done));
    let (got, _) = driver.receive(pair.client_rings.rx[0].as_mut());
    expect_frames(got, &frames[62..]);
}

/// A sender of either role sees how many of its frames the receiver has not taken, also where the places have gone round.
#[test]
fn progress_is_seen() {
    let mut pair = connect(1, 6);
    let mut driver = Driver::default();
    for (tx, rx) in [
        (&pair.server_rings.tx, &mut pair.client_rings.rx[0]),
        (&pair.client_rings.tx, &mut pair.server_rings.rx[0]),
    ] {
        let mut places = Vec::new();
        for n in [5, 40, 60, 1] {
            let unread = || tx.progress(0).expect("it is seen").unread;
            assert_eq!(unread(), 0);
            let sent = driver.send(tx.as_ref(), ALONE, &frames(&vec![64; n]), None);
            assert_eq!((sent.taken, usize::from(unread())), (n, n));
            let progress = tx.progress(0).expect("it is seen");
            assert!(!progress.has_taken(progress.put));
            assert!(places.iter().all(|before| progress.has_taken(*before)));
            places.push(progress.put);
            let (got, _) = driver.receive(rx.as_mut());
            assert_eq!((got.len(), unread()), (n, 0));
        }
    }
}

/// Frames that no chain of the ring could ever hold are dropped by name instead of stopping the ring.
#[test]
fn impossible_frames_are_too_big() {
    let mut pair = connect(1, 2);
    let mut driver = Driver::default();
    let frames = frames(&[9000, 64]);
    for (tx, rx) in [
        (&pair.server_rings.tx, &mut pair.client_rings.rx[0]),
        (&pair.client_rings.tx, &mut pair.server_rings.rx[0]),
    ] {
        let sent = driver.send(tx.as_ref(), ALONE, &frames, None);
        assert_eq!((sent.taken, sent.frames, sent.stop), (2, 1, Stop::Done));
        assert_eq!(sent.dropped()[0], (windlass_stats::Drop::TooBig, 1));
        let (got, _) = driver.receive(rx.as_mut());
        expect_frames(got, &frames[1..]);
    }
}

/// Limits on frames and bytes end a burst and leave the rest for the next one.
#[test]
fn limits_end_a_burst() {
    let mut pair = connect(1, 8);
    let mut driver = Driver::default();
    let sent = frames(&[100; 40]);
    driver.send(pair.server_rings.tx.as_ref(), ALONE, &sent, None);
    let rx = pair.client_rings.rx[0].as_mut();
    let (got, more) = driver.receive_upto(
        rx,
        Limit {
            frames: 10,
            ..Limit::FULL
        },
    );
    assert_eq!((got.len(), more), (10, More::Left));
    let (got, more) = driver.receive_upto(
        rx,
        Limit {
            bytes: 450,
            ..Limit::FULL
        },
    );
    assert_eq!((got.len(), more), (5, More::Left));
    let (got, more) = driver.receive(rx);
    expect_frames(got, &sent[15..]);
    assert_eq!(more, More::Drained);
}

/// Arming finds what arrived before it; a masked ring is not kicked and an armed one is, and the kick arrives.
#[test]
fn arming_and_kicks() {
    let mut pair = connect(1, 6);
    let mut driver = Driver::default();
    let one = frames(&[64]);
    let rx = pair.client_rings.rx[0].as_mut();
    driver.disarm(rx);
    let sent = driver.send(pair.server_rings.tx.as_ref(), ALONE, &one, None);
    assert_eq!(sent.kick, windlass_attach::port::Kick::No);
    assert_eq!(driver.arm(rx), Armed::Work);
    let (got, _) = driver.receive(rx);
    assert_eq!(got.len(), 1);
    assert!(matches!(driver.arm(rx), Armed::Unsure(_)));
    let wake = rx
        .wake()
        .expect("eventfd")
        .try_clone_to_owned()
        .expect("dup");
    assert_eq!(windlass_sys::eventfd::drain(&wake), Ok(0));
    let sent = driver.send(pair.server_rings.tx.as_ref(), ALONE, &one, None);
    assert_eq!(sent.kick, windlass_attach::port::Kick::Now);
    assert_eq!(windlass_sys::eventfd::drain(&wake), Ok(1));
}

/// Four workers share one ring: every frame arrives whole and once, and each worker's frames in their order.
#[test]
fn shared_ring_keeps_each_workers_order() {
    const EACH: u32 = 3000;
    for server_sends in [true, false] {
        let pair = connect(1, 7);
        let (from, mut to) = match server_sends {
            true => (pair.server_rings, pair.client_rings),
            false => (pair.client_rings, pair.server_rings),
        };
        let mut next = [0u32; 4];
        std::thread::scope(|s| {
            for worker in 0..4u16 {
                let tx = from.tx.clone();
                s.spawn(move || send_numbered(tx.as_ref(), worker, EACH));
            }
            let mut driver = Driver::default();
            let end = Instant::now() + PATIENCE;
            while next.iter().any(|n| *n < EACH) {
                let (got, more) = driver.receive(to.rx[0].as_mut());
                assert_ne!(more, More::Dead);
                for frame in got {
                    let Got::Frame(frame) = frame else {
                        panic!("{frame:?}")
                    };
                    let worker = usize::from(frame[0]);
                    let number = u32::from_le_bytes(frame[8..12].try_into().expect("4"));
                    assert_eq!(number, next[worker]);
                    assert!(frame[12..].iter().all(|b| *b == number as u8));
                    next[worker] += 1;
                }
                assert!(Instant::now() < end, "{next:?}");
            }
        });
    }
}

fn send_numbered(tx: &dyn windlass_attach::port::TxPort, worker: u16, count: u32) {
    let mut driver = Driver::default();
    let mut number = 0;
    let end = Instant::now() + PATIENCE;
    while number < count {
        let make = |n: u32| {
            let len = if n.is_multiple_of(50) {
                5000
            } else {
                64 + n as usize % 200
            };
            let mut frame = vec![n as u8; len];
            frame[..8].copy_from_slice(&[worker as u8, 0, 0, 0, 0, 0, 0, 0]);
            frame[8..12].copy_from_slice(&n.to_le_bytes());
            frame
        };
        let burst: Vec<_> = (number..count.min(number + 9)).map(make).collect();
        let sent = driver.send(tx, Lane { worker, workers: 4 }, &burst, None);
        number += sent.taken as u32;
        if sent.stop != Stop::Done {
            std::thread::yield_now();
        }
        assert!(Instant::now() < end, "worker {worker} got to {number}");
    }
}

/// A client with another secret, or none, is refused by name; the right one comes up afterwards.
#[test]
fn secrets_are_required() {
    let directory = tempfile::tempdir().expect("tempdir");
    let path = directory.path().join("s");
    let mut config = server_config(path.clone(), 5, 1);
    config.secret = Secret::new("open sesame").expect("secret");
    let mut server = MemifServer::new(config.clone()).expect("server");
    for wrong in [Secret::NONE, Secret::new("open").expect("secret")] {
        let mut theirs = client_config(path.clone(), 5, 1, 6);
        theirs.secret = wrong;
        let mut client = MemifClient::new(theirs).expect("client");
        let end = Instant::now() + PATIENCE;
        while !client.status().reason.contains("secret") {
            assert!(server.poll(Instant::now()).is_empty());
            assert!(client.poll(Instant::now()).is_empty());
            assert!(Instant::now() < end, "{:?}", client.status());
        }
    }
    let mut theirs = client_config(path, 5, 1, 6);
    theirs.secret = config.secret;
    let mut client = MemifClient::new(theirs).expect("client");
    drive(&mut [&mut server, &mut client], |e| {
        e.iter().all(|e| is_up(e))
    });
    assert_eq!(server.status().connects, 1);
}

/// Several interfaces share one socket, each by its number; an unknown number, a second client and a second server of the
/// same number are refused; deleting the last one removes the path.
#[test]
fn interfaces_share_a_socket() {
    let directory = tempfile::tempdir().expect("tempdir");
    let path = directory.path().join("s");
    let mut one = MemifServer::new(server_config(path.clone(), 1, 1)).expect("server");
    let mut two = MemifServer::new(server_config(path.clone(), 2, 2)).expect("server");
    let mut client_two = MemifClient::new(client_config(path.clone(), 2, 2, 6)).expect("client");
    let events = drive(&mut [&mut one, &mut two, &mut client_two], |e| {
        is_up(&e[1]) && is_up(&e[2])
    });
    assert!(!is_up(&events[0]));
    let peer = client_two
        .status()
        .details
        .iter()
        .find(|d| d.0 == "interface")
        .expect("name")
        .1
        .clone();
    assert_eq!(peer, "srv2");
    let mut twin = MemifServer::new(server_config(path.clone(), 2, 1)).expect("server");
    twin.poll(Instant::now());
    assert!(
        twin.status().reason.contains("number 2"),
        "{:?}",
        twin.status()
    );
    let program = std::fs::read_to_string("/proc/self/comm").expect("a name");
    let (program, pid) = (program.trim_end(), std::process::id());
    let held = format!("interface 2 is in use by {program} (pid {pid})");
    for (id, word) in [(3, "not on this socket"), (2, &*held)] {
        let mut client = MemifClient::new(client_config(path.clone(), id, 1, 6)).expect("client");
        let end = Instant::now() + PATIENCE;
        while !client.status().reason.contains(word) {
            one.poll(Instant::now());
            client.poll(Instant::now());
            assert!(Instant::now() < end, "{:?}", client.status());
        }
    }
    drop(twin);
    two.delete();
    assert!(path.exists());
    one.delete();
    assert!(!path.exists());
}

/// When either side dies the other notices, waits for its rings to come back from the workers, and connects again.
#[test]
fn reconnect_after_either_side_dies() {
    let Pair {
        mut server,
        client,
        server_rings,
        client_rings,
        directory,
    } = connect(1, 6);
    let path = directory.path().join("s");
    drop((client, client_rings));
    let events = drive(&mut [&mut server], |e| down_reason(&e[0]).is_some());
    assert!(down_reason(&events[0]).expect("down").contains("closed"));
    let mut client = MemifClient::new(client_config(path.clone(), 0, 1, 6)).expect("client");
    for _ in 0..20 {
        client.poll(Instant::now());
        assert!(
            server.poll(Instant::now()).is_empty(),
            "up before the old rings are back"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(server_rings);
    server.detached();
    let mut events = drive(&mut [&mut server, &mut client], |e| {
        e.iter().all(|e| is_up(e))
    });
    let mut client_rings = rings_of(events.pop().expect("client"));
    let server_rings = rings_of(events.pop().expect("server"));
    let mut driver = Driver::default();
    let sent = frames(&[64, 1500]);
    let rx = client_rings.rx[0].as_mut();
    let got = driver.pump(server_rings.tx.as_ref(), rx, ALONE, &sent);
    expect_frames(got, &sent);

    drop((server, server_rings));
    assert!(
        path.exists(),
        "a dropped server leaves its path to the next"
    );
    drive(&mut [&mut client], |e| down_reason(&e[0]).is_some());
    drop(client_rings);
    client.detached();
    let mut server = MemifServer::new(server_config(path, 0, 1)).expect("server");
    drive(&mut [&mut server, &mut client], |e| {
        e.iter().all(|e| is_up(e))
    });
    assert_eq!((server.status().connects, client.status().connects), (1, 2));
}

/// A condemned connection ends with the reason on both sides.
#[test]
fn condemned_connections_say_why() {
    let mut pair = connect(1, 6);
    pair.server.condemn("worker found it dead");
    let events = drive(&mut [&mut pair.server, &mut pair.client], |e| {
        e.iter().all(|e| down_reason(e).is_some())
    });
    for events in &events {
        assert!(
            down_reason(events)
                .expect("down")
                .contains("worker found it dead")
        );
    }
    let (_, more) = Driver::default().receive(pair.server_rings.rx[0].as_mut());
    assert_eq!(more, More::Dead);
}

/// The Internet checksum of `bytes`, which is 0 where a valid checksum is inside.
fn folded(bytes: &[u8], start: u32) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
    let mut sum = words.fold(start, |sum, word| sum + word);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// A frame that waits for segmentation is cut on its way into the ring: every segment is whole and has valid checksums,
/// the payload is kept, and a ring without room for all of them takes none.
#[test]
fn segments_are_cut_into_the_ring() {
    const PAYLOAD: usize = 4500;
    let mut frame = vec![0u8; 54];
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    frame[16..18].copy_from_slice(&(40 + PAYLOAD as u16).to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 6]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[46..48].copy_from_slice(&[0x50, 0x10]);
    // What a sender leaves in the field of a checksum to be completed: the sum of the pseudo header.
    let pseudo = |len: usize| 0x0a00 * 2 + 1 + 2 + 6 + len as u32;
    frame[50..52].copy_from_slice(&(!folded(&[], pseudo(20 + PAYLOAD))).to_be_bytes());
    frame.extend((0..PAYLOAD).map(|i| ((i * 7) >> 3) as u8));
    let offload = Offload::needing_csum(34, 16).with_gso(Gso::Tcp4, 1000, false);
    for log2_size in [2, 6] {
        let mut pair = connect(1, log2_size);
        let mut driver = Driver::default();
        let tx = pair.client_rings.tx.as_ref();
        let sent = driver.send_offloaded(tx, &frame, offload, [14, 20, 20]);
        let (got, _) = driver.receive(pair.server_rings.rx[0].as_mut());
        if log2_size == 2 {
            assert_eq!((sent.taken, sent.frames, got.len()), (1, 0, 0));
            assert_eq!(sent.dropped()[0], (windlass_stats::Drop::SegmentLimit, 1));
            continue;
        }
        assert_eq!(
            (sent.taken, sent.frames, sent.segments, got.len()),
            (1, 1, 5, 5)
        );
        let mut payload: Vec<u8> = Vec::new();
        for got in got {
            let Got::Frame(part) = got else {
                panic!("{got:?}")
            };
            assert_eq!(folded(&part[14..34], 0), 0, "IPv4 header");
            assert_eq!(folded(&part[34..], pseudo(part.len() - 34)), 0, "TCP");
            payload.extend(&part[54..]);
        }
        assert!(payload == frame[54..], "payload differs");
    }
}

/// What a server has of a client's connection.
struct Seen {
    memory: Mapping,
    identity: (u64, u64),
    from_client: RingPlace,
    from_server: RingPlace,
}

impl Seen {
    /// The two halves of a descriptor.
    fn desc(&self, ring: RingPlace, slot: u16) -> Desc {
        let at = ring.desc_at(slot) as usize;
        Desc::from_words([at, at + 8].map(|at| self.memory.load_u64(at, Acquire)))
    }

    /// Writes over all of the region.
    fn scribble(&self, seed: u64) {
        let word = |at: usize| (seed ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..self.memory.len())
            .step_by(8)
            .for_each(|at| self.memory.store_u64(at, word(at), Relaxed));
    }
}

/// A client without a socket, and what its server has.
fn client_and_its_server(log2_size: u8) -> (Rings, Seen) {
    let config = client_config("unused".into(), 0, 1, log2_size);
    let hello = Hello {
        name: Text::cut(b""),
        version_min: VERSION,
        version_max: VERSION,
        region_max: 0,
        from_server_max: 0,
        from_client_max: 0,
        log2_ring_max: log2_size,
    };
    let mut dialogue = Dialogue::default();
    dialogue
        .take(&Message::Hello(hello), &config)
        .expect("an offer");
    let (mut region, mut rings) = (None, Vec::new());
    while let Some((message, fd)) = dialogue.to_say() {
        match message {
            Message::AddRegion(added) => {
                let fd = fd.expect("a file");
                let memory = Mapping::foreign(fd, added.size).expect("memory");
                region = Some((memory, Mapping::identity(fd).expect("ours")));
            }
            Message::AddRing(ring) => {
                let place = RingPlace::checked(ring.offset, ring.log2_size, u64::MAX);
                rings.push(place.expect("a place"));
            }
            Message::Connect(_) => break,
            _ => {}
        }
        dialogue.take(&Message::Ack, &config).expect("next");
    }
    let connected = Message::Connected(Text::cut(b""));
    assert!(
        dialogue
            .take(&connected, &config)
            .expect("connected")
            .is_some()
    );
    let (_, offer) = dialogue.finish().expect("a connection");
    let alarm = windlass_sys::eventfd::create().expect("an eventfd");
    let view = Arc::new(View::new(vec![offer.mapping], alarm).expect("a region"));
    let halves = assemble(&view, Role::Client, offer.from_client, offer.from_server);
    let (memory, identity) = region.expect("a region");
    let seen = Seen {
        memory,
        identity,
        from_client: rings[0],
        from_server: rings[1],
    };
    (halves.expect("rings"), seen)
}

/// A server that writes over all of its client's region, again and again, changes frames and descriptors: the client looks for a frame in the
/// buffer of its slot, offers the same buffers again and sends from the same ones, because what says where they are is private. The region
/// holds rings and buffers, and is one client's.
#[test]
fn a_server_cannot_move_buffers() {
    const SLOTS: u16 = 64;
    let (mut rings, seen) = client_and_its_server(6);
    let (_others, other) = client_and_its_server(6);
    assert_ne!(seen.identity, other.identity);
    let inside = |at: usize| {
        let ring = |ring: RingPlace| {
            let start = ring.cookie_at() as usize;
            (start..ring.desc_at(SLOTS - 1) as usize + 16).contains(&at)
        };
        ring(seen.from_client) || ring(seen.from_server)
    };
    let is_clean = |at: usize| inside(at) || seen.memory.load_u64(at, Acquire) == 0;
    assert!((0..seen.memory.len()).step_by(8).all(is_clean));
    let offered: Vec<_> = (0..SLOTS)
        .map(|slot| seen.desc(seen.from_server, slot))
        .collect();
    let mut places = std::collections::BTreeSet::new();
    assert!(offered.iter().all(|desc| places.insert(desc.offset)));

    let mut driver = Driver::default();
    let texts = frames(&[60; 3]);
    let mut sent_from = std::collections::BTreeMap::new();
    // Each slot several times.
    for round in 0..SLOTS {
        seen.scribble(round.into());
        let first = round * 3;
        for (k, text) in (first..).zip(&texts) {
            let slot = k % SLOTS;
            assert!(
                seen.memory
                    .write(offered[usize::from(slot)].offset.into(), text)
            );
            let at = seen.from_server.desc_at(k) as usize;
            // One buffer of 60 bytes; region and offset stay as they are.
            seen.memory.store_u16(at, 0, Release);
            seen.memory.store_u32(at + 4, 60, Release);
        }
        let tail_at = |ring: RingPlace| ring.tail_at() as usize;
        seen.memory
            .store_u16(tail_at(seen.from_server), first + 3, Release);
        let (got, _) = driver.receive(rings.rx[0].as_mut());
        expect_frames(got, &texts);
        for slot in (first..first + 3).map(|k| k % SLOTS) {
            assert_eq!(
                seen.desc(seen.from_server, slot),
                offered[usize::from(slot)]
            );
        }
        seen.memory
            .store_u16(tail_at(seen.from_client), first, Release);
        let sent = driver.send(rings.tx.as_ref(), ALONE, &texts, None);
        assert_eq!((sent.frames, sent.stop), (3, Stop::Done));
        for (k, text) in (first..).zip(&texts) {
            let desc = seen.desc(seen.from_client, k);
            assert_eq!((desc.region, desc.length, desc.flags), (0, 60, 0));
            let mut got = vec![0; 60];
            assert!(seen.memory.read(desc.offset.into(), &mut got) && got == *text);
            let place = sent_from.entry(k % SLOTS).or_insert(desc.offset);
            assert_eq!(*place, desc.offset);
            assert!(!places.contains(&desc.offset));
        }
    }
}

//! A memif client that breaks the rules, against our server: each trick ends in a counted drop or in the end of its own
//! connection, and in nothing else.
#![allow(missing_docs)]

mod memif_drive;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memif_drive::*;
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FallocateFlags;
use windlass_attach::endpoint::{Endpoint, Event, Rings};
use windlass_attach::memif::layout::{COOKIE, Desc, RING_FLAG_CSUM, RING_FLAG_GSO, RingPlace};
use windlass_attach::memif::msg::{
    AddRegion, AddRing, Direction, Init, MSG_BYTES, Message, Mode, Secret, Text,
};
use windlass_attach::memif::offload::of_word;
use windlass_attach::memif::server::{Handshake, SIBLINGS_TIME};
use windlass_attach::memif::{HANDSHAKE_TIMEOUT, MemifServer};
use windlass_attach::port::{More, Stop};
use windlass_frame::{Claim, FRAME_MAX};
use windlass_shm::{HugePages, Mapping};
use windlass_stats::Drop;
use windlass_sys::unix::{self, SocketKind};
use windlass_sys::{Errno, IoSlice, eventfd};

const BYTES: usize = 1 << 20;
const LOG2_SIZE: u8 = 7;
const SIZE: u16 = 1 << LOG2_SIZE;
const BUFFERS: u32 = 64 << 10;

/// The attacker's side of one connection.
struct Attacker {
    socket: OwnedFd,
    memory: Mapping,
    file: OwnedFd,
    up: RingPlace,
    down: RingPlace,
    event: OwnedFd,
}

fn place(at: u32) -> RingPlace {
    RingPlace::checked(at, LOG2_SIZE, BYTES as u64).expect("place")
}

impl Attacker {
    fn connect(path: &Path) -> Attacker {
        // Not sealed: it is to be shrunk.
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("windlass-attacker", flags).expect("memfd");
        rustix::fs::ftruncate(&file, BYTES as u64).expect("size");
        let memory = Mapping::foreign(file.as_fd(), BYTES as u64).expect("map");
        let socket = unix::connect(path, SocketKind::SeqPacket).expect("connect");
        let (up, down) = (place(0), place(8192));
        for ring in [up, down] {
            memory.store_u32(ring.cookie_at() as usize, COOKIE, Ordering::Relaxed);
        }
        let event = eventfd::create().expect("eventfd");
        Attacker {
            socket,
            memory,
            file,
            up,
            down,
            event,
        }
    }

    fn say(&self, message: &Message, fds: &[BorrowedFd<'_>]) {
        let record = message.encode();
        unix::send_with_fds(&self.socket, &[IoSlice::new(&record)], fds).expect("send");
    }

    fn hear(&self) -> Option<Message> {
        let mut record = [0; MSG_BYTES];
        match unix::receive_with_fds(&self.socket, &mut record, 0) {
            Ok(got) if got.bytes > 0 => Some(Message::decode(&record).expect("message")),
            _ => None,
        }
    }

    /// The reason of the DISCONNECT with which the server ends the connection; none of its events is of any other.
    fn refusal(&self, server: &mut MemifServer) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            assert!(server.poll(Instant::now()).is_empty());
            let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
            rustix::event::poll(&mut fds, Some(&Timespec::default())).expect("poll");
            if fds[0].revents().contains(PollFlags::HUP) {
                return self.reason();
            }
            assert!(Instant::now() < end, "{:?}", server.status());
        }
    }

    /// The reason of the DISCONNECT that the server must have sent last.
    fn reason(&self) -> String {
        let mut last = None;
        while let Some(message) = self.hear() {
            last = Some(message);
        }
        match last {
            Some(Message::Disconnect(why)) => why.reason.to_string(),
            other => panic!("no DISCONNECT but {other:?}"),
        }
    }

    fn init(&self, name: &str) {
        let (secret, name) = (Secret::NONE, Text::cut(name.as_bytes()));
        self.say(
            &Message::Init(Init {
                id: 0,
                mode: Mode::Ethernet,
                secret,
                name,
            }),
            &[],
        );
    }

    fn region(&self, index: u16) {
        let region = AddRegion {
            index,
            size: BYTES as u64,
        };
        self.say(&Message::AddRegion(region), &[self.file.as_fd()]);
    }

    fn ring(direction: Direction, offset: u32) -> AddRing {
        AddRing {
            direction,
            index: 0,
            region: 0,
            offset,
            log2_size: LOG2_SIZE,
            private_bytes: 0,
        }
    }

    fn add(&self, ring: AddRing) {
        self.say(&Message::AddRing(ring), &[self.event.as_fd()]);
    }

    /// All of the handshake as an honest client does it.
    fn handshake(&self) {
        self.init("attacker");
        self.region(0);
        self.rings_and_connect();
    }

    fn rings_and_connect(&self) {
        self.add(Self::ring(Direction::FromClient, 0));
        self.add(Self::ring(Direction::FromServer, 8192));
        self.say(&Message::Connect(Text::cut(b"attacker0")), &[]);
    }

    fn put(&self, ring: RingPlace, index: u16, desc: Desc) {
        let at = ring.desc_at(index) as usize;
        let [low, high] = desc.to_words();
        self.memory.store_u64(at, low, Ordering::Relaxed);
        self.memory.store_u64(at + 8, high, Ordering::Relaxed);
    }

    fn head(&self, ring: RingPlace, head: u16) {
        self.memory
            .store_u16(ring.head_at() as usize, head, Ordering::Release);
    }
}

struct Scene {
    server: MemifServer,
    attacker: Attacker,
    rings: Rings,
    driver: Driver,
    _directory: tempfile::TempDir,
}

fn listen() -> (MemifServer, tempfile::TempDir) {
    let directory = tempfile::Builder::new()
        .prefix("windlass-memif")
        .tempdir()
        .expect("tempdir");
    let path = directory.path().join("s");
    let mut server = MemifServer::new(server_config(path, 0, 1)).expect("server");
    assert!(server.poll(Instant::now()).is_empty());
    (server, directory)
}

fn scene() -> Scene {
    scene_asking(0)
}

/// The scene of an attacker whose ring has these flags.
fn scene_asking(flags: u16) -> Scene {
    let (mut server, directory) = listen();
    let attacker = Attacker::connect(&directory.path().join("s"));
    let flags_at = attacker.down.flags_at() as usize;
    attacker
        .memory
        .store_u16(flags_at, flags, Ordering::Relaxed);
    attacker.handshake();
    let mut events = drive(&mut [&mut server], |e| is_up(&e[0]));
    let rings = rings_of(events.pop().expect("events"));
    let driver = Driver::default();
    Scene {
        server,
        attacker,
        rings,
        driver,
        _directory: directory,
    }
}

impl Scene {
    fn receive(&mut self) -> (Vec<Got>, More) {
        self.driver.receive(self.rings.rx[0].as_mut())
    }

    fn send(&mut self, frames: &[Vec<u8>]) -> windlass_attach::port::Sent {
        self.driver
            .send(self.rings.tx.as_ref(), ALONE, frames, None)
    }

    /// The endpoint notices by itself, says so to the attacker, and both halves are dead.
    fn assert_over(&mut self) {
        let events = drive(&mut [&mut self.server], |e| down_reason(&e[0]).is_some());
        assert!(matches!(events[0].last(), Some(Event::Down(_))));
        assert!(self.attacker.reason().contains("broke its rings"));
        assert_eq!(self.receive(), (vec![], More::Dead));
        assert_eq!(self.send(&frames(&[64])).stop, Stop::Down);
    }
}

/// A good frame of `len` bytes at the first buffer.
fn good(len: u32) -> Desc {
    Desc {
        region: 0,
        length: len,
        offset: BUFFERS,
        ..Desc::default()
    }
}

/// A client that says its name, brings so many regions and is complete.
fn complete(name: &str, regions: u16) -> (MemifServer, Attacker, tempfile::TempDir) {
    let (mut server, directory) = listen();
    let client = Attacker::connect(&directory.path().join("s"));
    client.init(name);
    (0..regions).for_each(|index| client.region(index));
    client.rings_and_connect();
    // Of the hub, and then of the messages.
    (0..2).for_each(|_| drop(server.poll(Instant::now())));
    (server, client, directory)
}

/// CONNECT of DPDK's zero-copy client is answered when the other ports of its process have had their time, and no other client's
/// is put off; nothing is taken from it meanwhile but its goodbye.
#[test]
fn a_zero_copy_client_is_answered_late() {
    for (name, regions) in [("DPDK 22.11.1", 1), ("VPP 24.02", 2)] {
        let (server, _client, _directory) = complete(name, regions);
        assert!(server.status().up, "{name}: {:?}", server.status());
    }
    let is_connected = |client: &Attacker| {
        let heard = std::iter::from_fn(|| client.hear()).last();
        matches!(heard, Some(Message::Connected(_)))
    };
    let zero_copy = || complete("DPDK 22.11.1", 2);

    let (mut server, client, _directory) = zero_copy();
    let due = server.deadline().expect("it is to be answered");
    assert!(due <= Instant::now() + SIBLINGS_TIME);
    let shortly_before = due - Duration::from_nanos(1);
    assert!(server.poll(shortly_before).is_empty() && !is_connected(&client));
    assert!(is_up(&server.poll(due)) && is_connected(&client));

    let (mut server, client, _directory) = zero_copy();
    client.region(2);
    assert_eq!(client.refusal(&mut server), "unexpected ADD_REGION message");

    let (mut server, client, _directory) = zero_copy();
    drop(client);
    assert!(server.poll(Instant::now()).is_empty());
    assert!(server.status().reason.contains("closed the connection"));
    assert_eq!(server.deadline(), None);
}

/// A head that jumps further than the ring is long ends the connection, on the way in and on the way out.
#[test]
fn wild_indexes_end_the_connection() {
    for jump in [SIZE + 1, 0x8000, 0xffff] {
        let mut scene = scene();
        scene.attacker.head(scene.attacker.up, jump);
        assert_eq!(scene.receive(), (vec![], More::Dead));
        scene.assert_over();
        let mut scene = self::scene();
        scene.attacker.head(scene.attacker.down, jump);
        assert_eq!(scene.send(&frames(&[64])).stop, Stop::Down);
        scene.assert_over();
    }
}

/// The metadata of a client that asks for nothing is not looked at; that of one that asks is a claim, whatever it is, and a chain has
/// the claim of its first descriptor. A segment of a client that has asked for checksums alone is no claim that holds. What the client says
/// later changes nothing.
#[test]
fn metadata_is_a_claim_of_those_who_ask() {
    const SEGMENTS: u16 = RING_FLAG_CSUM | RING_FLAG_GSO;
    let words = [u32::MAX, 1, 2, 3, 0x0010_0441, 0x05a8_0445, 0x05a8_0006, 16];
    for asked in [0, RING_FLAG_CSUM, SEGMENTS] {
        let mut scene = scene_asking(asked);
        let flags_at = scene.attacker.down.flags_at() as usize;
        let later = SEGMENTS & !asked;
        let memory = &scene.attacker.memory;
        memory.store_u16(flags_at, later, Ordering::Relaxed);
        let (mut at, mut expected) = (0, Vec::new());
        let claim = |word| {
            let claim = of_word(word);
            let is_segment = claim.gso_type != 0;
            match asked {
                0 => Claim::NONE,
                asked => Claim {
                    // It may not say that a checksum is right.
                    flags: claim.flags & Claim::NEEDS_CSUM,
                    // A type that virtio does not have.
                    gso_type: if is_segment && asked != SEGMENTS {
                        2
                    } else {
                        claim.gso_type
                    },
                    ..claim
                },
            }
        };
        for metadata in words {
            let whole = Desc {
                metadata,
                ..good(60)
            };
            let first = Desc { flags: 1, ..whole };
            let second = Desc {
                metadata: !metadata,
                ..whole
            };
            for desc in [whole, first, second] {
                scene.attacker.put(scene.attacker.up, at, desc);
                at += 1;
            }
            expected.extend([claim(metadata); 2]);
        }
        scene.attacker.head(scene.attacker.up, at);
        let mut claims = Vec::new();
        while claims.len() < expected.len() {
            scene.receive();
            claims.append(&mut scene.driver.claims);
        }
        assert_eq!(claims, expected);
        let caps = scene.rings.tx.caps();
        assert_eq!((caps.csum, caps.tso4), (asked != 0, asked == SEGMENTS));
    }
}

/// Each kind of bad descriptor becomes a drop by name, is consumed, and the good frames around it pass.
#[test]
fn bad_descriptors_are_counted_and_consumed() {
    let bad = [
        (
            Desc {
                region: 1,
                ..good(64)
            },
            Drop::BadDescriptor,
        ),
        (
            Desc {
                region: 16,
                ..good(64)
            },
            Drop::BadDescriptor,
        ),
        (
            Desc {
                region: 0xffff,
                ..good(64)
            },
            Drop::BadDescriptor,
        ),
        (
            Desc {
                offset: u32::MAX,
                ..good(64)
            },
            Drop::BadDescriptor,
        ),
        (
            Desc {
                offset: BYTES as u32 - 63,
                ..good(64)
            },
            Drop::BadDescriptor,
        ),
        (good(u32::MAX), Drop::BadDescriptor),
        (good(0), Drop::Runt),
        (good(13), Drop::Runt),
        (good(FRAME_MAX as u32 + 1), Drop::Giant),
    ];
    let mut scene = scene();
    let mut expected = Vec::new();
    let mut index = 0;
    for (desc, reason) in bad {
        scene.attacker.put(scene.attacker.up, index, good(64));
        scene.attacker.put(scene.attacker.up, index + 1, desc);
        index += 2;
        expected.extend([Got::Frame(vec![0; 64]), Got::Dropped(reason)]);
    }
    scene.attacker.put(
        scene.attacker.up,
        index,
        Desc {
            offset: BYTES as u32 - 64,
            ..good(64)
        },
    );
    expected.push(Got::Frame(vec![0; 64]));
    scene.attacker.head(scene.attacker.up, index + 1);
    assert_eq!(scene.receive(), (expected, More::Drained));
    let tail = scene.attacker.up.tail_at() as usize;
    assert_eq!(
        scene.attacker.memory.load_u16(tail, Ordering::Acquire),
        index + 1
    );
    assert!(scene.server.status().up);
}

/// Chains: 64 descriptors pass, 65 do not and are consumed whole, one without an end is bad, and one whose middle is bad
/// is dropped whole.
#[test]
fn chains_are_bounded() {
    let next = |desc: Desc| Desc { flags: 1, ..desc };
    let run = |descs: &[Desc], expected: &[Got]| {
        let mut scene = scene();
        for (i, desc) in descs.iter().enumerate() {
            scene.attacker.put(scene.attacker.up, i as u16, *desc);
        }
        scene
            .attacker
            .put(scene.attacker.up, descs.len() as u16, good(60));
        scene
            .attacker
            .head(scene.attacker.up, descs.len() as u16 + 1);
        let (mut got, _) = scene.receive();
        got.extend(scene.receive().0);
        assert_eq!(got, expected);
    };
    let chain = |n: usize| [vec![next(good(100)); n - 1], vec![good(100)]].concat();
    let after = || Got::Frame(vec![0; 60]);
    run(&chain(64), &[Got::Frame(vec![0; 6400]), after()]);
    run(&chain(65), &[Got::Dropped(Drop::ChainTooLong), after()]);
    run(&chain(120), &[Got::Dropped(Drop::ChainTooLong), after()]);
    run(
        &[next(good(6)), good(7)],
        &[Got::Dropped(Drop::Runt), after()],
    );
    run(
        &[next(good(60_000)), good(60_000)],
        &[Got::Dropped(Drop::Giant), after()],
    );
    let hole = Desc {
        region: 3,
        ..next(good(100))
    };
    run(
        &[next(good(100)), hole, good(100)],
        &[Got::Dropped(Drop::BadDescriptor), after()],
    );
    let mut scene = scene();
    scene.attacker.put(scene.attacker.up, 0, next(good(100)));
    scene.attacker.head(scene.attacker.up, 1);
    assert_eq!(scene.receive().0, [Got::Dropped(Drop::BadDescriptor)]);
    // A whole ring of descriptors that go on for ever.
    for index in 0..SIZE {
        scene
            .attacker
            .put(scene.attacker.up, index, next(good(100)));
    }
    scene.attacker.head(scene.attacker.up, SIZE + 1);
    assert_eq!(scene.receive().0, [Got::Dropped(Drop::ChainTooLong)]);
}

/// Empty buffers that lie outside the memory, or have no room, cost the frame meant for them and no other.
#[test]
fn bad_buffers_cost_one_frame_each() {
    let mut scene = scene();
    let buffers = [
        good(2048),
        Desc {
            region: 9,
            ..good(2048)
        },
        Desc {
            offset: BYTES as u32,
            ..good(2048)
        },
        good(0),
        good(u32::MAX),
        good(2048),
    ];
    for (i, desc) in buffers.iter().enumerate() {
        scene.attacker.put(scene.attacker.down, i as u16, *desc);
    }
    scene
        .attacker
        .head(scene.attacker.down, buffers.len() as u16);
    let sent = scene.send(&frames(&[64; 7]));
    assert_eq!((sent.taken, sent.frames, sent.stop), (6, 2, Stop::Full));
    assert_eq!(sent.dropped()[0], (Drop::PeerFault, 4));
    let tail = scene.attacker.down.tail_at() as usize;
    assert_eq!(scene.attacker.memory.load_u16(tail, Ordering::Acquire), 6);
}

/// Memory that is shrunk under our feet ends the connection and nothing else.
#[test]
fn shrunk_memory_ends_the_connection() {
    for sending in [false, true] {
        let mut scene = scene();
        for index in 0..SIZE {
            scene.attacker.put(scene.attacker.up, index, good(1500));
            scene.attacker.put(scene.attacker.down, index, good(2048));
        }
        scene.attacker.head(scene.attacker.up, 3);
        scene.attacker.head(scene.attacker.down, SIZE);
        if sending {
            assert_eq!(scene.send(&frames(&[1500])).frames, 1);
        }
        // The rings stay, the buffers go.
        rustix::fs::ftruncate(&scene.attacker.file, u64::from(BUFFERS)).expect("shrink");
        if sending {
            scene.send(&frames(&[1500; 10]));
        }
        assert_eq!(scene.receive(), (vec![], More::Dead));
        let events = drive(&mut [&mut scene.server], |e| down_reason(&e[0]).is_some());
        assert!(
            down_reason(&events[0])
                .expect("down")
                .contains("memory away")
        );
    }
}

/// Memory with holes punched into it reads as zeros: a peer gets frames of zeros for its own, and a ring of zeros, whose
/// index cannot be, ends its connection.
#[test]
fn punched_memory_costs_its_owner_alone() {
    let mut scene = scene();
    let punch = |scene: &Scene, from: u32| {
        let whole = scene.attacker.memory.len() as u64;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let from = u64::from(from);
        rustix::fs::fallocate(&scene.attacker.file, flags, from, whole - from).expect("punch");
    };
    for index in 0..SIZE {
        scene.attacker.put(scene.attacker.up, index, good(200));
    }
    let at = u64::from(BUFFERS);
    assert!(scene.attacker.memory.write(at, &[0x5a; 200]));
    scene.attacker.head(scene.attacker.up, 1);
    let (first, _) = scene.receive();
    assert_eq!(first, [Got::Frame(vec![0x5a; 200])]);
    punch(&scene, BUFFERS);
    scene.attacker.head(scene.attacker.up, 3);
    let (zeros, more) = scene.receive();
    let zero = || Got::Frame(vec![0; 200]);
    assert_eq!((zeros, more), (vec![zero(), zero()], More::Drained));
    punch(&scene, 0);
    assert_eq!(scene.receive().1, More::Dead);
    scene.assert_over();
}

/// A full eventfd whose O_NONBLOCK the peer has cleared holds a kick for some tens of milliseconds, not for ever; then
/// the connection is over.
#[test]
fn a_blocking_eventfd_is_broken_open() {
    let mut scene = scene();
    scene.attacker.put(scene.attacker.down, 0, good(2048));
    scene.attacker.head(scene.attacker.down, 1);
    let event = &scene.attacker.event;
    rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).expect("fill");
    let flags = rustix::fs::fcntl_getfl(event).expect("flags");
    let cleared = flags.difference(rustix::fs::OFlags::NONBLOCK);
    rustix::fs::fcntl_setfl(event, cleared).expect("clear");
    let start = Instant::now();
    let sent = scene.send(&frames(&[64]));
    assert_eq!(sent.kick, windlass_attach::port::Kick::Now);
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    scene.assert_over();
}

/// Each message that does not fit into the handshake ends it with a reason that names it, and the next client is served.
#[test]
fn bad_handshakes_are_refused_by_name() {
    let (mut server, directory) = listen();
    let path = directory.path().join("s");
    type Trick = Box<dyn Fn(&Attacker)>;
    let up = || Attacker::ring(Direction::FromClient, 0);
    let with_ring = move |ring: AddRing| -> Trick {
        Box::new(move |a: &Attacker| {
            a.init("attacker");
            a.region(0);
            a.add(ring);
        })
    };
    let tricks: Vec<(&str, Trick)> = vec![
        ("unexpected ACK", Box::new(|a| a.say(&Message::Ack, &[]))),
        (
            "unexpected ACK",
            Box::new(|a| (a.init("attacker"), a.say(&Message::Ack, &[])).1),
        ),
        (
            "unexpected CONNECT",
            Box::new(|a| a.say(&Message::Connect(Text::cut(b"x")), &[])),
        ),
        (
            "not complete",
            Box::new(|a| {
                (
                    a.init("attacker"),
                    a.say(&Message::Connect(Text::cut(b"x")), &[]),
                )
                    .1
            }),
        ),
        (
            "unexpected INIT",
            Box::new(|a| (a.init("attacker"), a.init("attacker")).1),
        ),
        (
            "region 0 is out of order",
            Box::new(|a| (a.init("attacker"), a.region(0), a.region(0)).2),
        ),
        (
            "region 0 is out of order",
            Box::new(|a| {
                (
                    a.init("attacker"),
                    a.add(Attacker::ring(Direction::FromServer, 0)),
                )
                    .1
            }),
        ),
        ("ring 1 is beyond", with_ring(AddRing { index: 1, ..up() })),
        (
            "private header",
            with_ring(AddRing {
                private_bytes: 2,
                ..up()
            }),
        ),
        (
            "not lie inside",
            with_ring(AddRing {
                offset: BYTES as u32 - 16,
                ..up()
            }),
        ),
        (
            "not lie inside",
            with_ring(AddRing {
                offset: 0xffff_fff0,
                ..up()
            }),
        ),
        (
            "added before",
            Box::new(move |a| (a.init("attacker"), a.region(0), a.add(up()), a.add(up())).3),
        ),
        (
            "descriptor is missing",
            Box::new(|a| {
                a.init("attacker");
                a.say(
                    &Message::AddRegion(AddRegion {
                        index: 0,
                        size: 4096,
                    }),
                    &[],
                );
            }),
        ),
        (
            "announced",
            Box::new(|a| {
                a.init("attacker");
                let region = AddRegion {
                    index: 0,
                    size: BYTES as u64 + 1,
                };
                a.say(&Message::AddRegion(region), &[a.file.as_fd()]);
            }),
        ),
        (
            "no eventfd",
            Box::new(move |a| {
                a.init("attacker");
                a.region(0);
                a.say(&Message::AddRing(up()), &[a.file.as_fd()]);
            }),
        ),
        (
            "no memif cookie",
            Box::new(|a| {
                a.memory.store_u32(8192, COOKIE + 1, Ordering::Relaxed);
                a.handshake();
            }),
        ),
        (
            "message of more than",
            Box::new(|a| {
                unix::send_with_fds(&a.socket, &[IoSlice::new(&[1; MSG_BYTES + 1])], &[])
                    .expect("send");
            }),
        ),
        (
            "not 3",
            Box::new(|a| {
                unix::send_with_fds(&a.socket, &[IoSlice::new(&[1; 3])], &[]).expect("send");
            }),
        ),
    ];
    for (word, trick) in tricks {
        let attacker = Attacker::connect(&path);
        trick(&attacker);
        let reason = attacker.refusal(&mut server);
        assert!(reason.contains(word), "{word}: {reason}");
    }
    let attacker = Attacker::connect(&path);
    attacker.handshake();
    drive(&mut [&mut server], |e| is_up(&e[0]));
}

/// Whoever connects and says nothing, before INIT or after it, is turned away after the time-out, also the hundredth.
#[test]
fn silent_peers_are_turned_away() {
    let (mut server, directory) = listen();
    let path = directory.path().join("s");
    let now = Instant::now();
    let silent: Vec<_> = (0..60)
        .map(|_| unix::connect(&path, SocketKind::SeqPacket))
        .collect();
    let halfway = Attacker::connect(&path);
    halfway.init("attacker");
    for _ in 0..20 {
        server.poll(now);
    }
    assert!(server.deadline().expect("deadline") <= now + HANDSHAKE_TIMEOUT);
    // Those for whom there was no room at the door come after the others.
    let (end, mut late) = (Instant::now() + PATIENCE, now);
    for socket in silent.iter().flatten() {
        let mut last = Ok(1);
        while matches!(last, Ok(1..) | Err(Errno::AGAIN)) && Instant::now() < end {
            late += HANDSHAKE_TIMEOUT + Duration::from_millis(1);
            server.poll(late);
            let received = unix::receive_with_fds(socket, &mut [0; MSG_BYTES], 0);
            last = received.map(|r| r.bytes);
        }
        assert!(matches!(last, Ok(0) | Err(Errno::CONNRESET)), "{last:?}");
    }
    while server.deadline().is_some() && Instant::now() < end {
        late += HANDSHAKE_TIMEOUT + Duration::from_millis(1);
        server.poll(late);
    }
    assert_eq!(server.deadline(), None);
    let attacker = Attacker::connect(&path);
    attacker.handshake();
    drive(&mut [&mut server], |e| is_up(&e[0]));
}

/// A connection that is up is ended by any message but DISCONNECT, however many follow it.
#[test]
fn a_flood_of_messages_ends_its_connection() {
    let mut scene = scene();
    let record = Message::Ack.encode();
    let flood = || unix::send_with_fds(&scene.attacker.socket, &[IoSlice::new(&record)], &[]);
    let sent = (0..100_000).take_while(|_| flood().is_ok()).count();
    assert!(sent > 10);
    let events = drive(&mut [&mut scene.server], |e| down_reason(&e[0]).is_some());
    assert!(
        down_reason(&events[0])
            .expect("down")
            .contains("unexpected ACK")
    );
}

/// How many descriptors of this process are the eventfd `event`.
fn descriptors_of(event: &OwnedFd) -> usize {
    let id_of = |fd: &str| {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
        let line = info.lines().find(|line| line.starts_with("eventfd-id"));
        line.map(str::to_owned)
    };
    let own = id_of(&event.as_raw_fd().to_string());
    assert!(own.is_some());
    let all = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    all.flatten()
        .filter(|entry| id_of(&entry.file_name().to_string_lossy()) == own)
        .count()
}

/// A descriptor that is neither memory nor an eventfd, whose `close` might wait for ever, ends its connection under that
/// name, and the next client is served.
#[test]
fn a_strange_descriptor_ends_the_connection() {
    let (mut server, directory) = listen();
    let path = directory.path().join("s");
    let attacker = Attacker::connect(&path);
    attacker.init("attacker");
    let file = std::fs::File::open("/proc/self/exe").expect("file");
    let region = AddRegion {
        index: 0,
        size: 4096,
    };
    attacker.say(&Message::AddRegion(region), &[file.as_fd()]);
    let reason = attacker.refusal(&mut server);
    assert!(reason.contains("neither shared memory"), "{reason}");
    let honest = Attacker::connect(&path);
    honest.handshake();
    drive(&mut [&mut server], |e| is_up(&e[0]));
}

/// Descriptors beyond the one that belongs to a message are closed, whatever comes of the message.
#[test]
fn surplus_descriptors_are_closed() {
    let (mut server, directory) = listen();
    let attacker = Attacker::connect(&directory.path().join("s"));
    attacker.init("attacker");
    server.poll(Instant::now());
    let event = eventfd::create().expect("eventfd");
    let region = AddRegion {
        index: 0,
        size: BYTES as u64,
    };
    let many = [
        attacker.file.as_fd(),
        event.as_fd(),
        event.as_fd(),
        event.as_fd(),
    ];
    attacker.say(&Message::AddRegion(region), &many);
    attacker.say(
        &Message::Disconnect(windlass_attach::memif::msg::Disconnect {
            code: 0,
            reason: Text::cut(b"done"),
        }),
        &[event.as_fd()],
    );
    for _ in 0..3 {
        server.poll(Instant::now());
    }
    assert_eq!(descriptors_of(&event), 1, "only ours is open");
    assert!(
        server.status().reason.contains("done"),
        "{:?}",
        server.status()
    );
}

fn any_message() -> impl Strategy<Value = (Vec<u8>, u8)> {
    let body = prop_oneof![
        3 => prop::collection::vec(prop_oneof![6 => Just(0u8), 2 => 0u8..4, 1 => any::<u8>()], MSG_BYTES - 2),
        1 => prop::collection::vec(any::<u8>(), MSG_BYTES - 2),
    ];
    (1u8..9, body, 0u8..4).prop_map(|(kind, body, fd)| ([vec![kind, 0], body].concat(), fd))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever messages and descriptors come in whatever order, the handshake answers or refuses.
    #[test]
    fn any_messages_are_answered_or_refused(messages in prop::collection::vec(any_message(), 1..40)) {
        let (file, _) = (Mapping::create("windlass-fuzz", 65_536, HugePages::No).expect("memory").1, ());
        let event = eventfd::create().expect("eventfd");
        let null = std::fs::File::open("/dev/null").expect("null");
        let mut handshake = Handshake::new(2, windlass_shm::Quota::new(64));
        let mut accepted = 0;
        for (record, kind) in messages {
            let fd = match kind {
                0 => None,
                1 => file.try_clone().ok(),
                2 => event.try_clone().ok(),
                _ => null.try_clone().ok().map(OwnedFd::from),
            };
            if let Ok(message) = Message::decode(&record)
                && handshake.take(&message, fd).is_ok()
            {
                accepted += 1;
            }
        }
        // 16 regions, 2 rings each way, and as many CONNECTs as came.
        prop_assert!(accepted <= 40);
    }
}

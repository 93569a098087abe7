//! The socket of a vhost-user device: how it comes up, changes and goes, in both roles, with an honest front end.
#![allow(missing_docs, clippy::arithmetic_side_effects)]

mod vhost_drive;
mod vhost_front;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use vhost_drive::{Guest, LAYOUTS, Layout, ONE, Station};
use vhost_front::*;
use windlass_attach::endpoint::{Endpoint, Handed};
use windlass_attach::port::Lane;
use windlass_attach::vhost_user::message::{Code, Region, queue_state};
use windlass_attach::vhost_user::{VhostConf, VhostRole};
use windlass_sys::eventfd;
use windlass_sys::unix::{SocketKind, bind_socket};

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

fn frame(number: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.resize(len, number);
    bytes
}

/// A guest comes up with rings of either layout, frames pass both ways, and GET_VRING_BASE answers where the rings
/// stand, after workers have given them back and not before.
#[test]
fn frames_pass_and_rings_stop_where_they_stand() {
    let _alone = alone();
    for layout in LAYOUTS {
        let directory = directory();
        let path = directory.path().join("s");
        let mut host = Host::new(conf(&path, SERVER, 1));
        let mut machine = Machine::start(&mut host, &path, layout, 1);
        let mut station = Station::new();
        let rings = host.rings.as_mut().expect("rings");
        for i in 0..5 {
            machine.send(1, i, &frame(i as u8, 100));
            machine.offer(0, i);
        }
        let got = station.receive(rings.rx[0].as_mut());
        let sent: Vec<_> = (0..5).map(|i| Ok(frame(i, 100))).collect();
        assert_eq!(got, sent, "{layout:?}");
        let sent = station.send(rings.tx.as_ref(), ONE, &[frame(7, 64), frame(8, 1514)]);
        assert_eq!(sent.taken, 2);
        let came = machine.queues[0].ring.reap();
        assert_eq!(machine.received(0, came[1].0, came[1].1), frame(8, 1514));

        host.holds = true;
        machine.front.say_queue(Code::GET_VRING_BASE, 1, 0);
        host.until("the rings are to be given back", |h| !h.downs.is_empty());
        for _ in 0..10 {
            host.step();
            assert_eq!(
                machine.front.answer(),
                None,
                "answered while workers have it"
            );
        }
        host.give_back();
        let answer = machine.front.await_answer(&mut host, Code::GET_VRING_BASE);
        let packed = |n: u32| (n | 0x8000) * 0x1_0001;
        let word = |n: u32| {
            if layout == Layout::Packed {
                packed(n)
            } else {
                n
            }
        };
        assert_eq!(answer, queue_state(1, word(5)), "{layout:?}");
        let payload = queue_state(0, 0);
        let answer = machine.front.ask(&mut host, Code::GET_VRING_BASE, &payload);
        assert_eq!(answer, queue_state(0, word(2)), "{layout:?}");
        let status = host.endpoint.status();
        assert!(
            !status.up && status.reason.contains("the guest is paused"),
            "{status:?}"
        );

        // Started again where they stopped, they go on.
        host.holds = false;
        machine.queues[0].start(&machine.front, word(2));
        machine.queues[1].start(&machine.front, word(5));
        host.until_up();
        machine.send(1, 5, &frame(9, 60));
        let rings = host.rings.as_mut().expect("rings");
        let got = station.receive(rings.rx[0].as_mut());
        assert_eq!(got, [Ok(frame(9, 60))], "{layout:?}");
    }
}

/// Another memory table takes effect when no worker uses the one before: its answer waits for that, its mapping goes
/// then, and the rings come back on the new memory where they stood.
#[test]
fn memory_is_exchanged_behind_the_workers() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    let mut machine = Machine::start(&mut host, &path, Layout::Split, 1);
    let mapped = windlass_shm::regions_in_use();
    let mut station = Station::new();
    machine.send(1, 0, &frame(1, 80));
    let rings = host.rings.as_mut().expect("rings");
    assert_eq!(station.receive(rings.rx[0].as_mut()).len(), 1);

    // Another file with the same contents, as after a migration within the host.
    let other = Guest::new();
    let bytes = machine.guest.read(vhost_drive::LOW, 0x8_0000);
    other.write(vhost_drive::LOW, &bytes);
    let before = windlass_shm::regions_in_use();
    let fds = [other.file.as_fd(), other.file.as_fd()];
    host.holds = true;
    let message = windlass_attach::vhost_user::message::request(
        Code::SET_MEM_TABLE,
        true,
        &table_payload(&table()),
    );
    assert!(machine.front.send_bytes(&message, &fds));
    host.until("the rings are to be given back", |h| !h.downs.is_empty());
    host.step();
    assert_eq!(machine.front.answer(), None);
    assert_eq!(
        windlass_shm::regions_in_use(),
        before,
        "nothing was unmapped"
    );
    host.holds = false;
    host.give_back();
    let answer = machine.front.await_answer(&mut host, Code::SET_MEM_TABLE);
    assert_eq!(answer, 0u64.to_ne_bytes());
    host.until_up();
    drop(std::mem::replace(&mut machine.guest, other.clone()));
    let at = vhost_drive::HIGH + 0x10_0000 + 0x1000;
    other.write(at, &[0; 12]);
    other.write(at + 12, &frame(2, 70));
    // Descriptor 1 and the index, in the new memory.
    let setup = machine.queues[1].ring.setup(0);
    let mut ring = vhost_drive::Virtq {
        guest: other,
        desc: setup.desc,
        avail: setup.avail,
        used: setup.used,
        size: RING,
        index: 1,
        seen: 1,
    };
    use vhost_drive::Driver;
    ring.offer_one(1, at, 82, 0);
    let rings = host.rings.as_mut().expect("rings");
    assert_eq!(station.receive(rings.rx[0].as_mut()), [Ok(frame(2, 70))]);
    drop((machine, ring));
    assert!(windlass_shm::regions_in_use() <= mapped + 1);
}

/// Regions can be added and removed one by one, and said again, as QEMU does for every queue pair; what was removed is
/// no memory any more, and what lies across another region is none.
#[test]
fn slots_of_memory() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    let front = Front::connect(&mut host, &path);
    front.negotiate(&mut host, FEATURES);
    assert!(front.ask_word(&mut host, Code::GET_MAX_MEM_SLOTS) >= 32);
    let guest = Guest::new();
    let slot = |region: &Region| [0u64.to_ne_bytes().to_vec(), region.encode()].concat();
    let fd = [guest.file.as_fd()];
    for region in table() {
        let done = front.acknowledged(&mut host, Code::ADD_MEM_REG, &slot(&region), &fd);
        assert_eq!(done, 0);
    }
    let add = |host: &mut Host, region: &Region| {
        front.acknowledged(host, Code::ADD_MEM_REG, &slot(region), &fd)
    };
    assert_eq!(add(&mut host, &table()[0]), 0, "it is there");
    let mut across = table()[0];
    across.gpa += 4096;
    assert_eq!(add(&mut host, &across), 1);
    assert!(host.detail("last-refusal").contains("overlaps"));
    assert_eq!(host.detail("memory-regions"), "2");
    let high = slot(&table()[1]);
    for _ in 0..2 {
        let done = front.acknowledged(&mut host, Code::REM_MEM_REG, &high, &[]);
        assert_eq!(done, 0);
        assert_eq!(host.detail("memory-regions"), "1");
    }
}

/// Queue pairs can be switched on and off while the guest runs, and the rings follow.
#[test]
fn queue_pairs_come_and_go() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 4));
    let machine = Machine::start(&mut host, &path, Layout::Split, 4);
    assert_eq!(machine.front.ask_word(&mut host, Code::GET_QUEUE_NUM), 4);
    assert_eq!(host.rings.as_ref().map(|r| r.rx.len()), Some(4));
    assert_eq!(
        host.ups, 1,
        "one set of rings for all that was said at once"
    );
    for queue in &machine.queues[2..] {
        queue.enable(&machine.front, false);
    }
    host.until("one pair", |h| h.detail("queue-pairs") == "1");
    for queue in &machine.queues[2..4] {
        queue.enable(&machine.front, true);
    }
    host.until("two pairs", |h| h.detail("queue-pairs") == "2");
    assert_eq!((host.ups, host.downs.len()), (1, 0), "in their rings");
    let number = machine.queues[6].number;
    machine.front.say_queue(Code::GET_VRING_BASE, number, 0);
    host.until("rings without the one that is stopped", |h| {
        h.rings.as_ref().is_some_and(|r| r.rx.len() == 4) && h.downs.len() == 1
    });
    machine.queues[0].enable(&machine.front, false);
    host.until("nothing without the first pair", |h| {
        h.downs.len() == 2 && h.rings.is_none()
    });
    machine.queues[0].enable(&machine.front, true);
    host.until_up();
    assert_eq!(host.detail("queue-pairs"), "2");
}

/// Another call descriptor takes effect without the rings being taken away. With its first rings a guest is interrupted
/// in any case: the device before may have been killed before it did so.
#[test]
fn interrupts_are_redirected_in_place() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    let mut machine = Machine::start(&mut host, &path, Layout::Split, 1);
    let mut station = Station::new();
    let mut one = |host: &mut Host, machine: &mut Machine, id| {
        machine.send(1, id, &frame(1, 64));
        let rings = host.rings.as_mut().expect("rings");
        assert_eq!(station.receive(rings.rx[0].as_mut()).len(), 1);
    };
    let count = |fd: &OwnedFd| eventfd::drain(fd).expect("a counter");
    for queue in &machine.queues {
        assert_eq!(count(&queue.call), 1, "told once, at the start");
    }
    one(&mut host, &mut machine, 0);
    assert_eq!(count(&machine.queues[1].call), 1);
    let other = eventfd::create().expect("an eventfd");
    let number = 1u64.to_ne_bytes();
    let done =
        machine
            .front
            .acknowledged(&mut host, Code::SET_VRING_CALL, &number, &[other.as_fd()]);
    assert_eq!(done, 0);
    assert_eq!(count(&other), 1, "told once, in case the other was told");
    // The driver asks for the next interrupt.
    let setup = machine.queues[1].ring.setup(0);
    let event = setup.avail + 4 + u64::from(RING) * 2;
    machine.guest.write(event, &1u16.to_le_bytes());
    one(&mut host, &mut machine, 1);
    assert_eq!((count(&other), count(&machine.queues[1].call)), (1, 0));
    let none = (1u64 | 0x100).to_ne_bytes();
    let done = machine
        .front
        .acknowledged(&mut host, Code::SET_VRING_CALL, &none, &[]);
    assert_eq!(done, 0);
    machine.guest.write(event, &2u16.to_le_bytes());
    one(&mut host, &mut machine, 2);
    assert_eq!((count(&other), host.downs.len()), (0, 0));
}

/// A ring that is found broken is told through the error descriptors of the device's rings, once each, before the
/// connection ends; nothing is told while all is well, nor by a ring that is stopped.
#[test]
fn broken_rings_are_told() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    let mut machine = Machine::start(&mut host, &path, Layout::Split, 1);
    let mut station = Station::new();
    let errs = [0u64, 1].map(|number| {
        let err = eventfd::create().expect("an eventfd");
        let (front, number) = (&machine.front, number.to_ne_bytes());
        let done = front.acknowledged(&mut host, Code::SET_VRING_ERR, &number, &[err.as_fd()]);
        assert_eq!(done, 0);
        err
    });
    let told = || errs.each_ref().map(|err| eventfd::drain(err).expect("it"));
    machine.send(1, 0, &frame(1, 64));
    let rings = host.rings.as_mut().expect("rings");
    assert_eq!(station.receive(rings.rx[0].as_mut()).len(), 1);
    let stopped = queue_state(1, 0);
    machine.front.ask(&mut host, Code::GET_VRING_BASE, &stopped);
    machine.queues[1].start(&machine.front, 1);
    host.until_up();
    assert_eq!(told(), [0, 0], "all is well");

    // More chains than the ring has descriptors.
    let index = machine.queues[1].ring.setup(0).avail + 2;
    machine.guest.write(index, &1000u16.to_le_bytes());
    let rings = host.rings.as_mut().expect("rings");
    assert!(station.receive(rings.rx[0].as_mut()).is_empty());
    let front = &machine.front;
    host.until("the connection is ended", |_| front.is_closed());
    assert_eq!(told(), [1, 1]);
    host.endpoint.delete();
    assert_eq!(told(), [0, 0], "once");
}

/// SEND_RARP brings a reverse ARP request of the guest's address, as if it had sent it, and nothing else changes.
#[test]
fn a_guest_that_moved_is_announced() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    let mut machine = Machine::start(&mut host, &path, Layout::Split, 1);
    let mut station = Station::new();
    machine.send(1, 0, &frame(3, 90));
    let _ = eventfd::drain(&machine.queues[1].kick);
    let mac = [2, 0, 0, 0, 0, 2, 0, 0];
    let done = machine
        .front
        .acknowledged(&mut host, Code::SEND_RARP, &mac, &[]);
    assert_eq!(done, 0);
    assert_ne!(eventfd::drain(&machine.queues[1].kick), Ok(0), "woken");
    let rings = host.rings.as_mut().expect("rings");
    let got = station.receive(rings.rx[0].as_mut());
    let [Ok(rarp)] = got.as_slice() else {
        panic!("{got:?}")
    };
    assert_eq!((&rarp[..6], &rarp[6..12]), (&[0xff; 6][..], &mac[..6]));
    assert_eq!(rarp[12..14], [0x80, 0x35]);
    assert_eq!(machine.queues[1].ring.reap(), [], "the guest's frame waits");
    let got = station.receive(rings.rx[0].as_mut());
    assert_eq!(got, [Ok(frame(3, 90))]);
}

/// An MTU that is not the VNIC's is refused, and the status says what to do; the right one is taken.
#[test]
fn another_mtu_is_refused() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    let front = Front::connect(&mut host, &path);
    front.negotiate(&mut host, FEATURES);
    let mut say =
        |mtu: u64| front.acknowledged(&mut host, Code::NET_SET_MTU, &mtu.to_ne_bytes(), &[]);
    assert_eq!((say(9000), say(1500)), (1, 0));
    let why = host.detail("last-refusal");
    assert!(
        why.contains("9000") && why.contains("host_mtu=1500"),
        "{why}"
    );
}

/// A server replaces a socket file that nobody serves, gives it the mode that was asked for, serves one front end at a
/// time, and removes the file when it is deleted, unless somebody else's lies there by then.
#[test]
fn the_socket_of_a_server() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    drop(bind_socket(&path, SocketKind::Stream, 0o600, None).expect("bound"));
    assert!(path.exists(), "stale");
    let role = VhostRole::Server {
        mode: 0o620,
        owner: None,
    };
    let mut host = Host::new(conf(&path, role, 1));
    let first = Machine::start(&mut host, &path, Layout::Split, 1);
    let meta = std::fs::metadata(&path).expect("a file");
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o777, 0o620);
    let second = Front::connect(&mut host, &path);
    second.say(Code::GET_FEATURES, &[], &[]);
    for _ in 0..20 {
        host.step();
        assert_eq!(second.answer(), None, "the first is still there");
    }
    drop(first);
    second.await_answer(&mut host, Code::GET_FEATURES);
    assert_eq!(
        (host.downs.len(), host.detail("reconnects")),
        (1, "1".into())
    );
    assert!(host.detail("last-error").contains("closed"));
    host.endpoint.delete();
    assert!(!path.exists());

    let mut host = Host::new(conf(&path, SERVER, 1));
    host.step();
    std::fs::remove_file(&path).expect("removed");
    let _other = bind_socket(&path, SocketKind::Stream, 0o600, None).expect("bound");
    host.endpoint.delete();
    assert!(path.exists(), "not ours");
}

/// A client needs no start order, goes on trying with growing pauses, and comes back when the front end does.
#[test]
fn a_client_tries_for_ever() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, VhostRole::Client { owner: None }, 1));
    let mut pauses = Vec::new();
    let mut now = Instant::now();
    for _ in 0..7 {
        assert!(host.endpoint.poll(now).is_empty());
        let next = host.endpoint.deadline().expect("another attempt");
        pauses.push(next.duration_since(now).as_millis());
        now = next;
    }
    assert_eq!(pauses, [100, 200, 400, 800, 1600, 2000, 2000]);
    assert!(host.endpoint.status().reason.contains("connect to"));

    for _ in 0..2 {
        let mut host = Host::new(conf(&path, VhostRole::Client { owner: None }, 1));
        let _ = std::fs::remove_file(&path);
        let listener = bind_socket(&path, SocketKind::Stream, 0o600, None).expect("bound");
        for life in 0..2 {
            let mut socket = None;
            host.until("it connects", |_| {
                socket = listener.accept().ok();
                socket.is_some()
            });
            let front = Front(socket.expect("a socket"));
            let machine = Machine::begin(&mut host, front, Layout::Split, 1);
            assert_eq!(host.endpoint.status().connects, life + 1);
            drop(machine);
            host.until("it notices", |h| h.rings.is_none());
        }
    }
}

/// What people are shown of a connection.
#[test]
fn status_tells() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 2));
    host.step();
    assert_eq!(host.endpoint.status().reason, "waiting for a front end");
    let front = Front::connect(&mut host, &path);
    host.until("it is taken", |h| {
        h.endpoint.status().reason != "waiting for a front end"
    });
    assert!(host.endpoint.status().reason.contains("not begun"));
    let _machine = Machine::begin(&mut host, front, Layout::Packed, 1);
    let status = host.endpoint.status();
    assert!(status.up && status.reason.is_empty(), "{status:?}");
    for (name, part) in [
        ("role", "server"),
        ("features", "event-idx"),
        ("features", "ring-packed"),
        ("protocol-features", "reply-ack"),
        ("queue-pairs", "1"),
        ("queue-pairs-max", "2"),
        ("ring-layout", "packed"),
        ("ring-sizes-to-guest", "64"),
        ("ring-sizes-from-guest", "64"),
        ("memory-regions", "2"),
        ("reconnects", "0"),
        ("connected-since", "T"),
        ("peer-pid", &std::process::id().to_string()),
    ] {
        let value = host.detail(name);
        assert!(value.contains(part), "{name}: {value}");
    }
}

/// Rings are made when a front end has said all, not for each of its words; and a half message keeps nobody waiting.
#[test]
fn silence_makes_the_rings() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    let machine = Machine::start(&mut host, &path, Layout::Split, 1);
    let rest = windlass_attach::vhost_user::message::request(Code::GET_QUEUE_NUM, false, &[]);
    assert!(machine.front.send_bytes(&rest[..5], &[]));
    let begun = Instant::now();
    host.step();
    assert!(begun.elapsed() < Duration::from_millis(500));
    assert!(host.rings.is_some());
    assert!(machine.front.send_bytes(&rest[5..], &[]));
    let answer = machine.front.await_answer(&mut host, Code::GET_QUEUE_NUM);
    assert_eq!(answer, 1u64.to_ne_bytes());
}

/// What `vnic show` says of a kill of the daemon.
fn survives(host: &Host) -> String {
    let mut details = host.endpoint.status().details.into_iter();
    let told = details.find(|(name, _)| *name == "survives-a-kill");
    told.expect("it is told").1
}

/// Where nothing is kept of a packed ring's place, the status says so; a split ring tells its place itself.
#[test]
fn what_does_not_survive_a_kill_is_told() {
    let _alone = alone();
    let directory = directory();
    for layout in LAYOUTS {
        let path = directory.path().join("s");
        let mut host = Host::new(conf(&path, SERVER, 1));
        let _machine = Machine::start(&mut host, &path, layout, 1);
        let told = survives(&host);
        assert_eq!(told == "yes", layout != Layout::Packed, "{told}");
        host.endpoint.delete();
    }
}

/// A burst of three through each of a machine's rings, which stand at `slot`, as a kill before the last store of each
/// publication would leave it: the first descriptor is as it was. Chains that the guest sends are given back in order, by
/// one store for all of them.
fn publish_a_part(host: &mut Host, machine: &mut Machine, station: &mut Station, slot: u16) {
    for id in 0..3 {
        machine.send(1, id, &frame(id as u8, 100));
        machine.offer(0, id);
    }
    let first = |queue: usize| machine.queues[queue].ring.setup(0).desc + u64::from(slot) * 16 + 8;
    let before = [0, 1].map(|queue| machine.guest.read(first(queue), 8));
    let rings = host.rings.as_mut().expect("rings");
    assert_eq!(station.receive(rings.rx[0].as_mut()).len(), 3);
    let frames = [7, 8, 9].map(|number| frame(number, 64));
    assert_eq!(station.send(rings.tx.as_ref(), ONE, &frames).taken, 3);
    for (queue, bytes) in before.iter().enumerate() {
        assert_ne!(machine.guest.read(first(queue), 8), *bytes);
        machine.guest.write(first(queue), bytes);
    }
}

/// A daemon that is killed amid its publications leaves packed rings of which nobody says where they stand: the next one
/// knows, from its own file or from the region that the front end has kept. It loses nothing that a guest has sent,
/// repeats no more than the last burst, and gives the buffers back that a guest had not got to see. A driver that began
/// anew is believed instead.
#[test]
fn packed_rings_survive_a_kill() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let shared = format!("/dev/shm/windlass-rings-{}", std::process::id());
    let _ = std::fs::create_dir(&shared);
    let own = std::path::Path::new(&shared).join("machine");
    for inflight in [false, true] {
        let conf = || {
            let mut conf = conf(&path, SERVER, 1);
            conf.ring_progress = Some(own.clone()).filter(|_| !inflight);
            conf
        };
        let mut host = Host::new(conf());
        let mut machine = Machine::start(&mut host, &path, Layout::Packed, 1);
        if !inflight && !own.exists() {
            println!("skipped: packed_rings_survive_a_kill: no tmpfs at /dev/shm");
            continue;
        }
        let kept = inflight.then(|| machine.front.inflight_region(&mut host));
        assert_eq!(survives(&host), "yes");
        let mut station = Station::new();
        for i in 0..100u16 {
            machine.send(1, i % RING, &frame(i as u8, 100));
            machine.offer(0, i % RING);
            let rings = host.rings.as_mut().expect("rings");
            assert_eq!(station.receive(rings.rx[0].as_mut()).len(), 1);
            assert_eq!(
                station.send(rings.tx.as_ref(), ONE, &[frame(1, 64)]).taken,
                1
            );
            assert_eq!(machine.queues[0].ring.reap().len(), 1);
            assert_eq!(machine.queues[1].ring.reap().len(), 1);
        }
        publish_a_part(&mut host, &mut machine, &mut station, 100 % RING);
        // Killed: nothing is said, nothing is cleaned up.
        drop(host.rings.take());
        std::mem::forget(host);
        std::fs::remove_file(&path).expect("a socket");
        machine.send(1, 3, &frame(200, 100));
        let mut next = Host::new(conf());
        let front = Front::connect(&mut next, &path);
        machine.reconnect(&mut next, front, kept.as_ref());
        let rings = next.rings.as_mut().expect("rings");
        let got = station.receive(rings.rx[0].as_mut());
        let burst = [0, 1, 2, 200].map(|number| Ok(frame(number, 100)));
        assert_eq!(got, burst, "inflight: {inflight}");
        assert_eq!(machine.queues[1].ring.reap().last(), Some(&(3, 0)));
        assert_eq!(machine.queues[0].ring.reap(), [(0, 0), (1, 0), (2, 0)]);
        machine.offer(0, 3);
        assert_eq!(
            station.send(rings.tx.as_ref(), ONE, &[frame(9, 64)]).taken,
            1
        );
        let came = machine.queues[0].ring.reap();
        assert_eq!(machine.received(0, came[0].0, came[0].1), frame(9, 64));
        next.endpoint.delete();
        assert!(!own.exists());
    }
}

/// Two workers transmit on one packed ring in turn. The daemon is killed before the last store of the second one's
/// publication, or behind it: the guest has what the first one published, the next daemon gives back empty what it has not
/// got to see, and goes on behind that.
#[test]
fn a_ring_of_several_workers_survives_a_kill() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    for opened in [false, true] {
        let mut host = Host::new(conf(&path, SERVER, 1));
        let mut machine = Machine::start(&mut host, &path, Layout::Packed, 1);
        let kept = machine.front.inflight_region(&mut host);
        let mut station = Station::new();
        let lane = |worker| Lane { worker, workers: 2 };
        for i in 0..100u16 {
            machine.offer(0, i % RING);
            let tx = host.rings.as_mut().expect("rings").tx.clone();
            assert_eq!(
                station
                    .send(tx.as_ref(), lane(i % 2), &[frame(1, 64)])
                    .taken,
                1
            );
            assert_eq!(machine.queues[0].ring.reap().len(), 1);
        }
        (0..3).for_each(|id| machine.offer(0, id));
        let second = machine.queues[0].ring.setup(0).desc + u64::from(101 % RING) * 16 + 8;
        let before = machine.guest.read(second, 8);
        let tx = host.rings.as_mut().expect("rings").tx.clone();
        for (worker, frames) in [(0, &[7][..]), (1, &[8, 9])] {
            let frames: Vec<_> = frames.iter().map(|number| frame(*number, 64)).collect();
            assert_eq!(
                station.send(tx.as_ref(), lane(worker), &frames).taken,
                frames.len()
            );
        }
        drop(tx);
        if !opened {
            machine.guest.write(second, &before);
        }
        let mut came = machine.queues[0].ring.reap();
        assert_eq!(came.len(), if opened { 3 } else { 1 });
        drop(host.rings.take());
        std::mem::forget(host);
        std::fs::remove_file(&path).expect("a socket");
        let mut next = Host::new(conf(&path, SERVER, 1));
        let front = Front::connect(&mut next, &path);
        machine.reconnect(&mut next, front, Some(&kept));
        machine.offer(0, 3);
        let tx = next.rings.as_mut().expect("rings").tx.clone();
        assert_eq!(
            station.send(tx.as_ref(), lane(1), &[frame(10, 64)]).taken,
            1
        );
        came.extend(machine.queues[0].ring.reap());
        let cut = if opened { 76 } else { 0 };
        let expected: Vec<(u16, u32)> = (0..).zip([76, cut, cut, 76]).collect();
        assert_eq!(came, expected);
        for (id, number) in [(0, 7), (1, 8), (2, 9), (3, 10)] {
            assert_eq!(machine.received(0, id, 76), frame(number, 64));
        }
        drop(tx);
        next.endpoint.delete();
    }
}

/// While the front end asks for it, pages that are written are marked in the log that it brought: the frame's and the
/// used ring's; and no longer than that.
#[test]
fn writes_are_logged_on_demand() {
    use windlass_attach::vhost_user::features::LOG_ALL;
    use windlass_shm::{HugePages, Mapping};
    let _alone = alone();
    for layout in LAYOUTS {
        let directory = directory();
        let path = directory.path().join("s");
        let mut host = Host::new(conf(&path, SERVER, 1));
        let mut machine = Machine::start(&mut host, &path, layout, 1);
        let bytes = 256 << 10;
        let (log, file) = Mapping::create("vhost-log", bytes, HugePages::No).expect("a log");
        let marked = |gpa: u64| {
            let mut byte = [0];
            assert!(log.read(gpa / 4096 / 8, &mut byte));
            byte[0] >> (gpa / 4096 % 8) & 1 != 0
        };
        let mut station = Station::new();
        let packed = match layout {
            Layout::Split => 0,
            Layout::Packed => windlass_attach::vhost_user::features::RING_PACKED,
        };
        let setup = machine.queues[0].ring.setup(0);
        // A packed ring is written where its descriptors are.
        let used = if packed == 0 { setup.used } else { setup.desc };
        for (id, logging) in [(0u16, false), (1, true), (2, false)] {
            let payload = [(bytes as u64).to_ne_bytes(), 0u64.to_ne_bytes()].concat();
            if logging {
                machine
                    .front
                    .say(Code::SET_LOG_BASE, &payload, &[file.as_fd()]);
                machine.front.await_answer(&mut host, Code::SET_LOG_BASE);
            }
            let features = FEATURES | packed | if logging { LOG_ALL } else { 0 };
            let word = features.to_ne_bytes();
            let done = machine
                .front
                .acknowledged(&mut host, Code::SET_FEATURES, &word, &[]);
            assert_eq!(done, 0);
            host.until_up();
            machine.offer(0, id);
            let rings = host.rings.as_mut().expect("rings");
            let sent = station.send(rings.tx.as_ref(), ONE, &[frame(1, 64)]);
            assert_eq!(sent.taken, 1);
            let buffer = vhost_drive::HIGH + u64::from(id) * 0x1000;
            assert_eq!(marked(buffer), logging, "{layout:?} {id}");
            assert_eq!(marked(used), id > 0, "{layout:?} {id}");
            assert!(!marked(vhost_drive::HIGH + 0x20_0000));
        }
    }
}

/// A guest that has no way to call is looked at all the same.
#[test]
fn a_guest_without_a_kick_is_polled() {
    use windlass_attach::port::Armed;
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    let machine = Machine::start(&mut host, &path, Layout::Split, 1);
    let domain = windlass_sync::qsbr::Domain::new(1);
    let mut worker = domain.register();
    let section = worker.section();
    let rx = &mut host.rings.as_mut().expect("rings").rx[0];
    assert_eq!(rx.arm(&section), Armed::Yes);
    let none = (1u64 | 0x100).to_ne_bytes();
    machine.front.say(Code::SET_VRING_KICK, &none, &[]);
    host.until("the rings are made anew", |h| h.ups == 2);
    let rx = &mut host.rings.as_mut().expect("rings").rx[0];
    assert!(matches!(rx.arm(&section), Armed::Poll(_)));
}

/// A server that keeps where its rings stand in a directory of that name.
fn kept(path: &Path, shared: &str) -> VhostConf {
    let _ = std::fs::create_dir(shared);
    VhostConf {
        ring_progress: Some(Path::new(shared).join("machine")),
        ..conf(path, SERVER, 1)
    }
}

/// Another daemon goes on with what was handed over, carries a frame each way, and leaves the socket open.
fn pass_on(next: &mut Host, handed: Handed, machine: &mut Machine, station: &mut Station) {
    machine.send(1, 1, &frame(3, 100));
    machine.offer(0, 1);
    next.endpoint.take_over(handed);
    next.step();
    let rings = next.rings.as_mut().expect("rings at the first look");
    assert_eq!(station.receive(rings.rx[0].as_mut()), [Ok(frame(3, 100))]);
    let sent = station.send(rings.tx.as_ref(), ONE, &[frame(4, 64)]);
    assert_eq!(sent.taken, 1);
    let came = machine.queues[0].ring.reap();
    assert_eq!(machine.received(0, came[0].0, came[0].1), frame(4, 64));
    machine.queues[1].ring.reap();
    next.endpoint.hand_over().expect("settled");
}

/// Another daemon goes on with a guest that is told nothing: with its socket, its memory and its descriptors, where its rings
/// stand. What the front end says meanwhile waits for it. One that does not take the guest leaves it where it was.
#[test]
fn a_guest_goes_on_with_another_daemon() {
    let _alone = alone();
    let shared = format!("/dev/shm/windlass-handed-{}", std::process::id());
    for layout in LAYOUTS {
        let directory = directory();
        let path = directory.path().join("s");
        let conf = || kept(&path, &shared);
        let mut host = Host::new(conf());
        let mut machine = Machine::start(&mut host, &path, layout, 1);
        let mut station = Station::new();
        machine.send(1, 0, &frame(1, 100));
        machine.offer(0, 0);
        let rings = host.rings.as_mut().expect("rings");
        assert_eq!(station.receive(rings.rx[0].as_mut()), [Ok(frame(1, 100))]);
        assert_eq!(
            station.send(rings.tx.as_ref(), ONE, &[frame(2, 64)]).taken,
            1
        );
        machine.queues[0].ring.reap();
        machine.queues[1].ring.reap();

        drop(host.endpoint.hand_over().expect("settled"));
        machine.front.say(Code::GET_FEATURES, &[], &[]);
        host.step();
        assert_eq!(machine.front.answer(), None, "the other daemon's to answer");
        assert!(!host.endpoint.keep(false));
        machine.front.await_answer(&mut host, Code::GET_FEATURES);
        // One that goes on with it, and is gone.
        let handed = host.endpoint.hand_over().expect("settled");
        pass_on(&mut Host::new(conf()), handed, &mut machine, &mut station);
        assert!(host.endpoint.keep(true), "where the rings stand is read");
        host.give_back();
        host.until_up();

        let handed = host.endpoint.hand_over().expect("settled");
        assert_eq!(Some(&handed.mark), host.endpoint.mark().as_ref());
        machine.send(1, 1, &frame(3, 100));
        machine.offer(0, 1);
        let mut next = Host::new(conf());
        next.endpoint.take_over(handed);
        drop(host);
        next.step();
        let rings = next.rings.as_mut().expect("rings at the first look");
        assert_eq!(station.receive(rings.rx[0].as_mut()), [Ok(frame(3, 100))]);
        assert_eq!(
            station.send(rings.tx.as_ref(), ONE, &[frame(4, 64)]).taken,
            1
        );
        let came = machine.queues[0].ring.reap();
        assert_eq!(machine.received(0, came[0].0, came[0].1), frame(4, 64));
        assert!(!machine.front.is_closed());
        machine
            .front
            .ask(&mut next, Code::GET_VRING_BASE, &queue_state(1, 0));
        // The next front end finds a socket.
        drop(machine);
        next.until("it has parted", |host| host.rings.is_none());
        Machine::start(&mut next, &path, layout, 1);
        next.endpoint.delete();
    }
}

/// What another daemon cannot go on with is not handed over, or ends with a closed socket: the front end connects again.
#[test]
fn a_guest_that_cannot_go_on_connects_again() {
    let _alone = alone();
    let directory = directory();
    let path = directory.path().join("s");
    let mut host = Host::new(conf(&path, SERVER, 1));
    assert!(host.endpoint.hand_over().is_none(), "nobody is there");
    let machine = Machine::start(&mut host, &path, Layout::Packed, 1);
    let handed = host.endpoint.hand_over();
    assert!(handed.is_none(), "nobody would know where its rings stand");
    drop(machine);
    host.until("it has parted", |host| host.rings.is_none());
    let machine = Machine::start(&mut host, &path, Layout::Split, 1);
    let whole = host.endpoint.hand_over().expect("settled");
    for cut in (0..whole.state.len()).step_by(8).rev() {
        let mut next = Host::new(conf(&path, SERVER, 1));
        let fds = whole.fds.iter().map(|fd| fd.try_clone().expect("a copy"));
        next.endpoint.take_over(Handed {
            mark: whole.mark.clone(),
            state: whole.state[..cut].to_vec(),
            fds: fds.collect(),
        });
        assert_eq!(next.detail("connected-since"), "", "{cut} bytes of it");
    }
    drop((whole, host));
    let end = Instant::now() + PATIENCE;
    while !machine.front.is_closed() {
        assert!(Instant::now() < end, "it waits for ever");
    }
}

/// Sends so many frames of the numbers that follow, each in the place of its number; the first of them.
fn send_all(machine: &mut Machine, next: &mut u8, count: u8) -> u8 {
    let first = *next;
    for number in first..first + count {
        machine.send(1, u16::from(number) % RING, &frame(number, 100));
    }
    *next += count;
    first
}

/// Receives what was sent from this number on.
fn receive_all(host: &mut Host, station: &mut Station, sent: std::ops::Range<u8>) {
    let rings = host.rings.as_mut().expect("rings");
    let mut got = Vec::new();
    while got.len() < sent.len() {
        let some = station.receive(rings.rx[0].as_mut());
        assert!(!some.is_empty(), "{} of {sent:?}", got.len());
        got.extend(some);
    }
    let sent: Vec<_> = sent.map(|number| Ok(frame(number, 100))).collect();
    assert_eq!(got, sent);
}

/// A packed ring may look as if no device had used it: of what is given back in order, only the first descriptor says so, and that
/// one is at the ring's end. It goes on where it stands in the daemon that it is handed to, and in the one that keeps it
/// after another one has used it.
#[test]
fn a_ring_that_looks_fresh_goes_on() {
    let _alone = alone();
    let shared = format!("/dev/shm/windlass-fresh-{}", std::process::id());
    for is_kept in [false, true] {
        let directory = directory();
        let path = directory.path().join("s");
        let conf = || kept(&path, &shared);
        let mut host = Host::new(conf());
        let mut machine = Machine::start(&mut host, &path, Layout::Packed, 1);
        let (mut station, mut next) = (Station::new(), 0);
        for count in [RING as u8, RING as u8 - 1] {
            let first = send_all(&mut machine, &mut next, count);
            receive_all(&mut host, &mut station, first..next);
            machine.queues[1].ring.reap();
        }
        let mut other = Host::new(conf());
        if is_kept {
            let handed = host.endpoint.hand_over().expect("settled");
            other.endpoint.take_over(handed);
            other.step();
        }
        // The last descriptor and the first one.
        let first = send_all(&mut machine, &mut next, 2);
        let user = if is_kept { &mut other } else { &mut host };
        receive_all(user, &mut station, first..next);
        machine.queues[1].ring.reap();
        let first = send_all(&mut machine, &mut next, RING as u8 - 2);
        if is_kept {
            other.endpoint.hand_over().expect("settled");
            assert!(host.endpoint.keep(true), "where the rings stand is read");
            host.give_back();
            host.until_up();
            receive_all(&mut host, &mut station, first..next);
        } else {
            let handed = host.endpoint.hand_over().expect("settled");
            other.endpoint.take_over(handed);
            drop(host);
            other.step();
            receive_all(&mut other, &mut station, first..next);
        }
    }
    let _ = std::fs::remove_dir_all(shared);
}

//! A guest that takes its memory away piece by piece while the switch uses it: every access waits for the kernel.

#[path = "../../crates/io/attach/tests/vhost_drive/mod.rs"]
mod vhost_drive;
#[path = "../../crates/io/attach/tests/vhost_front/mod.rs"]
mod vhost_front;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use vhost_drive::{Guest, HIGH, HIGH_BYTES, LOW_BYTES, Layout, WRITE};
use vhost_front::{FEATURES, Front, PROTOCOL, Queue, RING, table, table_payload};
use windlass_attach::vhost_user::message::{Code, request};
use windlass_shm::{HugePages, Mapping};
use windlass_sys::eventfd;
use windlass_sys::unix::{SocketKind, connect};
use windlass_tests::{Daemon, Lab, run, until, until_some};

const A: &str = "02:00:00:00:00:0a";
const B: &str = "02:00:00:00:00:0b";
const HOSTILE: &str = "02:00:00:00:00:0c";
/// What the hostile guest fills and punches beside what it shares: the longer the hole, the longer those wait who touch it.
const BALLAST: u64 = 8 << 20;

/// A guest that sends without pause.
struct Sender {
    guest: Arc<Guest>,
    queues: Vec<Queue>,
    front: Front,
    /// Descriptors that the switch does not have.
    free: Vec<u16>,
}

impl Sender {
    fn begin(socket: &Path) -> Sender {
        let socket: OwnedFd = until_some("the socket is there", || {
            connect(socket, SocketKind::Stream).ok()
        });
        let bytes = (LOW_BYTES + HIGH_BYTES + BALLAST) as usize;
        let (memory, file) = Mapping::create("holes", bytes, HugePages::No).expect("memfd");
        let guest = Guest::over(memory, file);
        let queues = (0..2).map(|number| Queue::new(&guest, Layout::Split, number));
        let sender = Sender {
            queues: queues.collect(),
            guest,
            front: Front(socket),
            free: (0..RING).collect(),
        };
        let word = |code, word: u64| {
            let message = request(code, false, &word.to_ne_bytes());
            sender.front.send_bytes(&message, &[]);
        };
        word(Code::SET_PROTOCOL_FEATURES, PROTOCOL);
        word(Code::SET_FEATURES, FEATURES);
        let fds = [sender.guest.file.as_fd(), sender.guest.file.as_fd()];
        let table = request(Code::SET_MEM_TABLE, false, &table_payload(&table()));
        sender.front.send_bytes(&table, &fds);
        for queue in &sender.queues {
            queue.start(&sender.front, 0);
        }
        sender
    }

    /// As many frames as the ring takes, to nobody; room for those that come.
    fn go_on(&mut self) {
        let ring = &mut self.queues[1].ring;
        self.free.extend(ring.reap().into_iter().map(|(id, _)| id));
        for id in self.free.drain(..) {
            ring.add(id, &[(HIGH + u64::from(id) * 0x1000, 2000)], None, 0);
        }
        ring.publish();
        let _ = eventfd::signal(&self.queues[1].kick);
        let came = self.queues[0].ring.reap();
        for (id, _) in came {
            let at = HIGH + (8 << 20) + u64::from(id) * 0x1000;
            self.queues[0].ring.offer_one(id, at, 2048, WRITE);
        }
    }
}

/// Ends what goes on when dropped, also by a failed assertion.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Fills memory and punches holes into it until it is told to stop.
fn punch(guest: &Guest, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let whole = HIGH_BYTES + BALLAST;
        let all = FallocateFlags::empty();
        fallocate(&guest.file, all, LOW_BYTES, whole).expect("room");
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&guest.file, hole, LOW_BYTES, whole).expect("a hole");
    }
}

/// Round trips between the neighbours as `words` say, in microseconds.
fn ping(lab: &Lab, words: &str) -> Vec<u64> {
    let words = format!("-n -W 1 {words} 10.9.0.2");
    let done = run(lab.command("a", "ping").args(words.split_whitespace()));
    let times = done.out.lines().filter_map(|line| {
        let (_, time) = line.split_once("time=")?;
        let ms: f64 = time.split_once(' ')?.0.parse().ok()?;
        Some((ms * 1000.0) as u64)
    });
    times.collect()
}

/// Round trips between the neighbours until `over`, from the shortest.
fn pings(lab: &Lab, over: &AtomicBool) -> Vec<u64> {
    let mut times = Vec::new();
    while !over.load(Ordering::Relaxed) {
        times.extend(ping(lab, "-i 0.005 -c 100"));
    }
    times.sort_unstable();
    times
}

/// Two neighbours on a bridge, between whom pings pass.
fn neighbours(lab: &Lab) -> Daemon {
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    for (guest, address, ip) in [("a", A, "10.9.0.1"), ("b", B, "10.9.0.2")] {
        lab.namespace(guest);
        let words = format!("--mac {address}");
        daemon.tap(lab, &format!("{guest}0"), guest, "", &words);
        lab.ip(guest, &format!("addr add {ip}/24 dev eth0"));
    }
    assert!(lab.ping("a", "10.9.0.2", 10));
    daemon
}

/// A guest whose memory is punched while its rings are full is charged for the waits, and loses its connection when it goes on, with
/// the reason. Nobody else is charged, and the neighbours' frames pass.
#[test]
fn holes_cost_their_owner() {
    let Some(lab) = Lab::start("holes_cost_their_owner") else {
        return;
    };
    let mut daemon = neighbours(&lab);
    let socket = lab.directory().join("vhost-hostile");
    daemon.must(&format!(
        "vnic create c0 --bridge br0 --mac {HOSTILE} --attach vhost-user,socket={},role=server",
        socket.display()
    ));
    let mut sender = Sender::begin(&socket);
    daemon.wait_for_state("vnic", "c0", "up");
    let (over, guest) = (AtomicBool::new(false), sender.guest.clone());
    let times = std::thread::scope(|scope| {
        let neighbours = scope.spawn(|| pings(&lab, &over));
        let ended = Ended(&over);
        scope.spawn(|| punch(&guest, &over));
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                sender.go_on();
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        until("the guest has lost its connection", || {
            let view = daemon.show("vnic", "c0");
            view["reason"]
                .as_str()
                .is_some_and(|why| why.contains("kept the switch waiting"))
        });
        drop(ended);
        neighbours.join().expect("the neighbours")
    });
    let at = |part: usize| times.get(times.len() * part / 1000).copied();
    println!(
        "{} round trips in us: p50 {:?}, p99 {:?}, the longest {:?}",
        times.len(),
        at(500),
        at(990),
        times.last()
    );
    let stalled = |member| daemon.counters(member)["stalled_ns"].as_u64();
    assert!(stalled("c0") > Some(5_000_000), "{:?}", stalled("c0"));
    assert_eq!((stalled("a0"), stalled("b0")), (Some(0), Some(0)));
    let _again = Sender::begin(&socket);
    daemon.wait_for_state("vnic", "c0", "up");
    daemon.assert_alive();
}

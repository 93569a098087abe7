//! A hostile virtual machine at a bridge with two honest guests: it changes its memory, its rings and its descriptors
//! without pause while its rings carry frames.

#[path = "../../crates/io/attach/tests/vhost_drive/mod.rs"]
mod vhost_drive;
#[path = "../../crates/io/attach/tests/vhost_front/mod.rs"]
mod vhost_front;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vhost_drive::{Guest, HIGH, Layout};
use vhost_front::{FEATURES, Front, PROTOCOL, Queue, RING, table, table_payload};
use windlass_attach::vhost_user::message::Code;
use windlass_sys::eventfd;
use windlass_sys::unix::{SocketKind, connect};
use windlass_tests::{Lab, frame, mac, until_some};

const A: &str = "02:00:00:00:00:0a";
const B: &str = "02:00:00:00:00:0b";
const HOSTILE: &str = "02:00:00:00:00:0c";
/// How long it goes on.
const TIME: Duration = Duration::from_secs(4);

/// The hostile machine's front end; every message may be the last.
struct Attacker {
    front: Front,
    guest: std::sync::Arc<Guest>,
    queues: Vec<Queue>,
}

impl Attacker {
    fn begin(socket: &std::path::Path) -> Attacker {
        let socket: OwnedFd = until_some("the socket is there", || {
            connect(socket, SocketKind::Stream).ok()
        });
        let front = Front(socket);
        let guest = Guest::new();
        let queues = (0..2)
            .map(|number| Queue::new(&guest, Layout::Split, number))
            .collect();
        let attacker = Attacker {
            front,
            guest,
            queues,
        };
        attacker.word(Code::SET_PROTOCOL_FEATURES, PROTOCOL);
        attacker.word(Code::SET_FEATURES, FEATURES);
        attacker.memory(&attacker.guest);
        for queue in &attacker.queues {
            queue.start(&attacker.front, 0);
        }
        attacker
    }

    fn say(&self, code: Code, payload: &[u8], fds: &[std::os::fd::BorrowedFd<'_>]) -> bool {
        let message = windlass_attach::vhost_user::message::request(code, false, payload);
        self.front.send_bytes(&message, fds)
    }

    fn word(&self, code: Code, word: u64) -> bool {
        self.say(code, &word.to_ne_bytes(), &[])
    }

    fn memory(&self, guest: &Guest) -> bool {
        let fds = [guest.file.as_fd(), guest.file.as_fd()];
        self.say(Code::SET_MEM_TABLE, &table_payload(&table()), &fds)
    }

    /// Frames to everybody, without pause, from whatever is in the rings by now.
    fn offer_frames(&mut self, number: u16) {
        let bytes = frame([0xff; 6], mac(HOSTILE), &[], "noise");
        let at = HIGH + u64::from(number % RING) * 0x1000;
        self.guest.write(at, &[0; 12]);
        self.guest.write(at + 12, &bytes);
        let queue = &mut self.queues[1];
        let len = bytes.len() as u32 + 12;
        queue.ring.offer_one(number % RING, at, len, 0);
        let _ = eventfd::signal(&queue.kick);
        let _ = queue.ring.reap();
    }

    /// Says again what makes the rings come up.
    fn restore(&self) {
        self.memory(&self.guest);
        for (code, payload, fd) in self.queues.iter().flat_map(|queue| queue.words(0)) {
            self.say(code, &payload, fd.as_slice());
        }
    }

    /// A life of 400 ms, if it is not ended before; `number` counts frames over all lives.
    fn live(&mut self, mut number: u16, other: &Guest) -> u16 {
        let until = Instant::now() + Duration::from_millis(400);
        while Instant::now() < until {
            // Long enough, now and then, for the rings to come up.
            for _ in 0..number % 7 {
                self.offer_frames(number);
                number = number.wrapping_add(1);
                std::thread::sleep(Duration::from_millis(1));
            }
            self.offer_frames(number);
            number = number.wrapping_add(1);
            if !number.is_multiple_of(3) {
                self.restore();
                std::thread::sleep(Duration::from_millis(4));
            }
            if !self.disturb(number.wrapping_mul(40_503) >> 7, other) {
                break;
            }
        }
        number
    }

    /// One of the things that change what workers use. False if the connection is over.
    fn disturb(&self, kind: u16, other: &Guest) -> bool {
        let queue = &self.queues[usize::from(kind % 2)];
        let number = u64::from(queue.number);
        let state = |n: u32| windlass_attach::vhost_user::message::queue_state(queue.number, n);
        let going = match kind % 9 {
            0 => self.memory(&self.guest),
            1 => self.memory(other),
            2 => self.say(Code::SET_VRING_ENABLE, &state(0), &[]),
            3 => self.say(Code::SET_VRING_ENABLE, &state(1), &[]),
            4 => self.say(
                Code::SET_VRING_CALL,
                &number.to_ne_bytes(),
                &[queue.call.as_fd()],
            ),
            5 => self.say(
                Code::SET_VRING_KICK,
                &number.to_ne_bytes(),
                &[queue.kick.as_fd()],
            ),
            6 => self.say(Code::SET_VRING_ADDR, &queue.address_payload(), &[]),
            7 => self.say(Code::GET_VRING_BASE, &state(0), &[]),
            _ => self.word(Code::SEND_RARP, 0x0c00_0000_0002),
        };
        while self.front.answer().is_some() {}
        going && !self.front.is_closed()
    }
}

/// Frames of the two honest guests pass all the time; the longest wait for one of them.
fn honest(lab: &Lab, over: &AtomicBool) -> Duration {
    let (a, b) = (
        windlass_tests::Wire::open(lab, "a", "eth0"),
        windlass_tests::Wire::open(lab, "b", "eth0"),
    );
    let mut longest = Duration::ZERO;
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        let text = format!("frame {number}");
        number += 1;
        let begun = Instant::now();
        a.send(&frame(mac(B), mac(A), &[], &text));
        let _ = b.frames_until(&text);
        longest = longest.max(begun.elapsed());
    }
    assert!(number > 50, "{number} frames in {TIME:?}");
    longest
}

/// Ends the honest guests when dropped, also by a failed assertion.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whatever a hostile machine does with its messages while its rings are full, the daemon goes on, the others' frames
/// pass, and its descriptors do not pile up; a machine that behaves is served on the same socket afterwards.
#[test]
fn a_hostile_machine_disturbs_nobody() {
    let Some(lab) = Lab::start("a_hostile_machine_disturbs_nobody") else {
        return;
    };
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    for (guest, address) in [("a", A), ("b", B)] {
        lab.namespace(guest);
        daemon.tap(
            &lab,
            &format!("{guest}0"),
            guest,
            "",
            &format!("--mac {address}"),
        );
    }
    let socket = lab.directory().join("vhost-hostile");
    daemon.must(&format!(
        "vnic create c0 --bridge br0 --mac {HOSTILE} --attach vhost-user,socket={},role=server",
        socket.display()
    ));
    let over = AtomicBool::new(false);
    let other = Guest::new();
    let mut lives = 0;
    let mut ends = std::collections::BTreeMap::<String, u32>::new();
    let longest = std::thread::scope(|scope| {
        let others = scope.spawn(|| honest(&lab, &over));
        let ended = Ended(&over);
        let end = Instant::now() + TIME;
        let mut number = 0u16;
        while Instant::now() < end {
            let mut attacker = Attacker::begin(&socket);
            lives += 1;
            number = attacker.live(number, &other);
            drop(attacker);
            let details = daemon.show("vnic", "c0")["details"].take();
            let why = details["last-error"].as_str().unwrap_or_default();
            *ends.entry(why.to_owned()).or_insert(0) += 1;
        }
        drop(ended);
        others.join().expect("the honest guests")
    });
    daemon.assert_alive();
    println!("{lives} lives, ended by {ends:?}; the longest wait of the others: {longest:?}");
    assert!(lives > 3 && longest < Duration::from_secs(2), "{longest:?}");
    daemon.wait_for_state("vnic", "c0", "waiting");
    let _good = Attacker::begin(&socket);
    daemon.wait_for_state("vnic", "c0", "up");
    let counters = daemon.counters("c0");
    let received = counters["rx_frames"].as_u64().unwrap_or(0);
    assert!(
        received > 100,
        "its rings carried frames meanwhile: {counters}"
    );
}

//! The daemon is replaced under traffic.

#[path = "../../crates/io/attach/tests/vhost_drive/mod.rs"]
mod vhost_drive;
#[path = "../../crates/io/attach/tests/vhost_front/mod.rs"]
mod vhost_front;

mod machine;

use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use machine::Machine;
use vhost_drive::{HEADER, HIGH, Layout};
use vhost_front::RING;
use windlass_sys::netns::{NetnsRef, within};
use windlass_tests::{
    Daemon, Frame, Lab, copy_program, frame, mac, program, run, uninterrupted, until, write_program,
};

/// What the kernel says of the interface in a namespace: its number, its address, its network addresses, and how often its
/// carrier has changed.
fn interface(lab: &Lab, short: &str) -> (String, String) {
    let name = lab.name(short);
    let ip = |words: &str| {
        let words = format!("netns exec {name} {words}");
        let done = run(Command::new("ip").args(words.split_whitespace()));
        assert_eq!(done.code, 0, "{}", done.err);
        done.out
    };
    let addresses = ip("ip -o address show dev eth0");
    (addresses, ip("cat /sys/class/net/eth0/carrier_changes"))
}

/// An upgrade loses no frame between TAPs: they wait in the interfaces' queues, whose descriptors the successor has. The
/// interfaces notice nothing. It can be done again, and a plain restart takes the TAPs back after it.
#[test]
fn an_upgrade_loses_nothing() {
    let Some(lab) = Lab::start("an_upgrade_loses_nothing") else {
        return;
    };
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    for (short, address) in [("a", "10.0.0.1/24"), ("b", "10.0.0.2/24")] {
        lab.namespace(short);
        daemon.tap(&lab, short, short, &format!(",address={address}"), "");
    }
    let before = interface(&lab, "b");
    let lost = lab.lost_while("a", "b", "10.0.0.2", || daemon.upgrade());
    assert_eq!(lost, 0, "{}", daemon.log());
    assert_eq!(interface(&lab, "b"), before);
    assert_eq!(daemon.show("vnic", "b")["state"], "up");
    assert_eq!(daemon.terminate(), 0);
    daemon.start_again();
    let after = interface(&lab, "b");
    assert_eq!(after.0, before.0);
    assert!(lab.ping("a", "10.0.0.2", 3), "after a restart");
}

/// A daemon that starts forwards nothing before it can forward to all: what namespaces ask first (ARP) is not lost, which
/// they would ask again after a second only.
#[test]
fn a_start_loses_nothing_that_it_reads() {
    let Some(lab) = Lab::start("a_start_loses_nothing_that_it_reads") else {
        return;
    };
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    for number in 1..=8 {
        let short = format!("n{number}");
        lab.namespace(&short);
        daemon.tap(
            &lab,
            &short,
            &short,
            &format!(",address=10.0.0.{number}/24"),
            "",
        );
    }
    let words = ["-n", "-q", "-b", "-f", "-w", "60", "10.0.0.255"];
    let mut ping = lab.command("n1", "ping").args(words).spawn().expect("ping");
    for _ in 0..5 {
        daemon.kill();
        daemon.start_again();
        for number in 1..=8 {
            daemon.wait_for_state("vnic", &format!("n{number}"), "up");
        }
        let counters = daemon.counters("n8");
        assert_eq!(
            counters["drops"]["peer-down"].as_u64().unwrap_or(0),
            0,
            "{counters}"
        );
    }
    ping.kill().expect("ping runs");
    ping.wait().expect("ping");
}

/// Datagrams of a namespace arrive again soon after a kill and a start, although its kernel has asked for the receiver in vain while
/// there was no carrier: it would ask again after a second only.
#[test]
fn a_start_has_neighbours_asked_anew() {
    let Some(lab) = Lab::start("a_start_has_neighbours_asked_anew") else {
        return;
    };
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    let [from, to] = ["n1", "n2"].map(|short| {
        let address = format!("10.0.0.{}", &short[1..]);
        lab.namespace(short);
        daemon.tap(&lab, short, short, &format!(",address={address}/24"), "");
        let namespace = NetnsRef::open(&lab.name(short)).expect("a namespace");
        let bound = within(&namespace, || UdpSocket::bind((address, 5302)));
        bound.expect("a namespace").expect("a socket")
    });
    from.connect("10.0.0.2:5302").expect("an address");
    to.set_nonblocking(true).expect("a socket");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = from.send(&[0; 8]);
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let waits: Vec<_> = (0..8)
            .map(|_| {
                // The kernel notices a carrier that goes once a second.
                std::thread::sleep(Duration::from_millis(1_100));
                while uninterrupted(|| to.recv(&mut [0; 8])).is_ok() {}
                until("they arrive", || to.recv(&mut [0; 8]).is_ok());
                daemon.kill();
                while uninterrupted(|| to.recv(&mut [0; 8])).is_ok() {}
                daemon.start_again();
                let begun = Instant::now();
                until("they arrive again", || to.recv(&mut [0; 8]).is_ok());
                begun.elapsed()
            })
            .collect();
        is_over.store(true, Ordering::Relaxed);
        let longest = waits.iter().max().expect("there were some");
        assert!(*longest < Duration::from_millis(700), "{waits:?}");
    });
}

const ADDRESSES: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];

/// Two guests with rings of one layout at a daemon.
fn guests(lab: &Lab, daemon: &Daemon, layout: Layout) -> [Machine; 2] {
    daemon.must("bridge create br0");
    let guests = ["v0", "v1"].map(|name| {
        let number = usize::from(name == "v1");
        let socket = lab.directory().join(name);
        daemon.must(&format!(
            "vnic create {name} --bridge br0 --mac {} --attach vhost-user,socket={},role=server",
            ADDRESSES[number],
            socket.display()
        ));
        Machine::start(&socket, layout, 0)
    });
    for name in ["v0", "v1"] {
        daemon.wait_for_state("vnic", name, "up");
    }
    guests
}

/// The first guest sends this text to the second one, from the buffer of this number.
fn offer(from: &mut Machine, id: u16, text: &str) {
    let bytes = frame(mac(ADDRESSES[1]), mac(ADDRESSES[0]), &[], text);
    let at = HIGH + 0x80_0000 + u64::from(id) * 4096;
    from.guest.write(at, &[&[0; HEADER], &*bytes].concat());
    let queue = &mut from.queues[1];
    let length = (HEADER + bytes.len()) as u32;
    queue.ring.offer_one(id, at, length, 0);
    windlass_sys::eventfd::signal(&queue.kick).expect("kicked");
}

/// Numbered frames from the first guest to the second, at most `WINDOW` under way, until `is_over`: none is lost, none is
/// overtaken and none comes twice. How many there were, and the longest time between two of them.
fn flow([from, to]: &mut [Machine; 2], is_over: impl Fn() -> bool) -> (u64, Duration) {
    const WINDOW: u64 = 32;
    let (mut sent, mut came) = (0, 0);
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    while !is_over() || came < sent {
        while !is_over() && sent < came + WINDOW {
            from.queues[1].ring.reap();
            offer(from, (sent % (2 * WINDOW)) as u16, &sent.to_string());
            sent += 1;
        }
        for (_, bytes) in to.received() {
            let text = Frame(bytes).text().unwrap_or_default();
            assert_eq!(text, came.to_string(), "the next one");
            came += 1;
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        assert!(last.elapsed() < Duration::from_secs(20), "nothing comes");
    }
    (came, longest)
}

/// Guests notice nothing of an upgrade: their sockets stay, no frame between them is lost, overtaken or repeated. It can be
/// done again.
#[test]
fn guests_go_on() {
    for (number, layout) in [Layout::Split, Layout::Packed].into_iter().enumerate() {
        let Some(lab) = Lab::start(&format!("guests_go_on_{number}")) else {
            return;
        };
        let mut daemon = lab.daemon();
        let mut guests = guests(&lab, &daemon, layout);
        for _ in 0..2 {
            let is_over = AtomicBool::new(false);
            let (came, longest) = std::thread::scope(|scope| {
                let flow = scope.spawn(|| flow(&mut guests, || is_over.load(Ordering::Relaxed)));
                daemon.upgrade();
                is_over.store(true, Ordering::Relaxed);
                flow.join().expect("every frame")
            });
            println!("{layout:?}: {came} frames, the longest pause {longest:?}");
            for (guest, name) in guests.iter().zip(["v0", "v1"]) {
                assert!(!guest.front.is_closed());
                assert_eq!(daemon.show("vnic", name)["state"], "up");
            }
        }
    }
}

/// Numbered frames from the first guest to the second, as many as its ring takes, until `is_over`, and some time for those under
/// way. None is overtaken and none comes twice. How many there were, and how many came.
fn flood([from, to]: &mut [Machine; 2], is_over: impl Fn() -> bool) -> (u64, u64) {
    let (mut sent, mut back, mut came, mut next, mut last) = (0, 0, 0, 0, Instant::now());
    while !is_over() || back < sent || last.elapsed() < AFTER {
        assert!(
            last.elapsed() < Duration::from_secs(20),
            "{sent} frames, {back} taken, {came} came"
        );
        back += from.queues[1].ring.reap().len() as u64;
        while !is_over() && sent < back + u64::from(RING) {
            let id = (sent % u64::from(RING)) as u16;
            offer(from, id, &format!("{sent:0900}"));
            sent += 1;
        }
        for (_, bytes) in to.received() {
            let text = Frame(bytes).text().unwrap_or_default();
            let number: u64 = text.parse().expect("a number");
            assert!(number >= next, "{number} comes behind {next}");
            (came, next, last) = (came + 1, number + 1, Instant::now());
        }
    }
    (sent, came)
}

/// How long nothing comes before all has come.
const AFTER: Duration = Duration::from_millis(500);

/// What an upgrade loses is counted: of the frames that a guest has sent through several daemons, those that did not come are
/// among the drops that the last one tells of, also those that had to wait for the bandwidth of their receiver.
#[test]
fn an_upgrade_counts_what_it_loses() {
    for (number, layout) in [Layout::Split, Layout::Packed].into_iter().enumerate() {
        let Some(lab) = Lab::start(&format!("an_upgrade_counts_what_it_loses_{number}")) else {
            return;
        };
        let mut daemon = lab.daemon();
        let mut guests = guests(&lab, &daemon, layout);
        daemon.must("vnic set v1 maxbw=1");
        let is_over = AtomicBool::new(false);
        let (sent, came) = std::thread::scope(|scope| {
            let flood = scope.spawn(|| flood(&mut guests, || is_over.load(Ordering::Relaxed)));
            for _ in 0..2 {
                daemon.upgrade();
            }
            is_over.store(true, Ordering::Relaxed);
            flood.join().expect("in order")
        });
        let (from, to) = (daemon.counters("v0"), daemon.counters("v1"));
        let of = |counters: &serde_json::Value, name: &str| counters[name].as_u64().unwrap_or(0);
        println!("{layout:?}: {sent} frames, {came} came; {to}");
        assert_eq!(of(&from, "rx_frames"), sent, "{from}");
        assert_eq!(of(&to, "tx_frames"), came, "{to}");
        assert_eq!(came + of(&to, "tx_dropped"), sent, "{to}");
        assert!(
            daemon.drops("v1", "peer-down") > 0,
            "some waited at an upgrade: {to}"
        );
    }
}

/// A successor that does not do what it should, at whichever step, is given up: the guests go on where they were.
#[test]
fn a_successor_that_stands_still_takes_no_guest() {
    // It is ready, and takes what comes; it is prepared to go on, and does not; it ends instead.
    let steps = [
        "exec sleep 60",
        "sleep 1; printf 1 >&0; exec sleep 60",
        "sleep 1; printf 1 >&0; sleep 0.002; exit",
    ];
    for (number, layout) in [Layout::Split, Layout::Packed].into_iter().enumerate() {
        let name = "a_successor_that_stands_still_takes_no_guest";
        let Some(lab) = Lab::start(&format!("{name}_{number}")) else {
            return;
        };
        let path = lab.directory().join("windlassd");
        copy_program(&program("windlassd"), &path);
        let daemon = Daemon::start_program(&lab, "host", 0, path.clone());
        let mut guests = guests(&lab, &daemon, layout);
        let before = daemon.json("status")[0]["daemon"]["pid"].clone();
        std::fs::remove_file(&path).expect("it was there");
        for (done, step) in steps.into_iter().enumerate() {
            let script = format!("#!/bin/sh\nprintf 1 >&0\n{step}\n");
            write_program(&path, &script);
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let flow = scope.spawn(|| flow(&mut guests, || is_over.load(Ordering::Relaxed)));
                daemon.signal_upgrade();
                until("it serves on", || {
                    daemon.log().matches("this daemon serves on").count() > done
                });
                is_over.store(true, Ordering::Relaxed);
                let done = flow.join();
                assert!(done.is_ok(), "{layout:?}, {step}: {}", daemon.log());
            });
            assert_eq!(daemon.json("status")[0]["daemon"]["pid"], before);
            assert!(guests.iter().all(|guest| !guest.front.is_closed()));
        }
        // The daemon hears its guests again.
        guests[0].front.say(
            windlass_attach::vhost_user::message::Code::GET_FEATURES,
            &[],
            &[],
        );
        until("an answer", || guests[0].front.answer().is_some());
    }
}

//! What a hostile process may try: none of it stops the broker from serving others.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::{Errno, IoSlice};
use rustix::process::{Resource, Rlimit};
use windlass_channel::protocol::{Answer, MESSAGE_BYTES, Request};
use windlass_sys::unix::{self, SocketKind};

use crate::actor::Actor;
use crate::stage::{self, Running, joined};

fn connect(running: &Running) -> std::os::fd::OwnedFd {
    unix::connect(&running.path, SocketKind::SeqPacket).expect("connected")
}

/// Whether the broker closes this connection soon.
fn is_closed(socket: &std::os::fd::OwnedFd) -> bool {
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        match unix::receive_with_fds(socket, &mut [0; 64], 3) {
            Ok(message) if message.bytes == 0 => return true,
            Err(Errno::CONNRESET | Errno::PIPE) => return true,
            Ok(_) => {}
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    false
}

/// What a request for a listing is answered, if it is.
fn list(running: &Running) -> Option<Answer> {
    let socket = connect(running);
    rustix::io::ioctl_fionbio(&socket, false).expect("it waits");
    let request = Request::List.encode();
    unix::send_with_fds(&socket, &[IoSlice::new(&request)], &[]).ok()?;
    let mut space = [0; MESSAGE_BYTES];
    unix::receive_with_fds(&socket, &mut space, 1).ok()?;
    Answer::decode(&space)
}

/// Messages of every wrong length, kind and magic, and with descriptors that nobody wants, end their connection, and no
/// descriptor stays in the broker.
#[test]
fn wrong_messages() {
    let running = Running::start();
    let good = Request::List.encode();
    let mut wrong: Vec<Vec<u8>> = (1..200)
        .filter(|len| *len != MESSAGE_BYTES)
        .map(|len| vec![0; len])
        .collect();
    wrong.extend((0..MESSAGE_BYTES).map(|at| {
        let mut message = good.to_vec();
        message[at] ^= 0x40;
        message
    }));
    wrong.push(vec![0xff; 60_000]);
    let before = std::fs::read_dir("/proc/self/fd")
        .expect("descriptors")
        .count();
    for message in &wrong {
        let socket = connect(&running);
        unix::send_with_fds(&socket, &[IoSlice::new(message)], &[]).expect("sent");
        assert!(is_closed(&socket), "{} bytes", message.len());
    }
    for count in [1, 2, 30, unix::FDS_MAX] {
        let socket = connect(&running);
        let extra = vec![socket.as_fd(); count];
        let sent = unix::send_with_fds(&socket, &[IoSlice::new(&good)], &extra);
        // From Linux 6.16 on the kernel refuses them.
        let can_refuse = unix::set_accepts_fds(&socket, false).is_ok();
        let is_refused = can_refuse && sent == Err(Errno::PERM);
        assert!(is_refused || is_closed(&socket), "{count} descriptors");
    }
    assert!(running.serves());
    let after = std::fs::read_dir("/proc/self/fd")
        .expect("descriptors")
        .count();
    // Those of other tests come and go; these would be nearly 300.
    assert!(after <= before + 100, "{before} descriptors became {after}");
}

/// A client that asks and asks, and reads no answer, loses its connection; one that asks as fast as it can is refused
/// most
/// of it, and the broker goes on serving. As many as a million requests with `WINDLASS_MATRIX=full`.
#[test]
fn a_flood_of_requests() {
    let full = std::env::var_os("WINDLASS_MATRIX").is_some_and(|value| value == "full");
    let requests = if full { 1_000_000 } else { 50_000 };
    let running = Running::start();
    let message = Request::List.encode();
    let (mut sent, mut lost) = (0, 0);
    let mut socket = connect(&running);
    while sent < requests {
        match unix::send_with_fds(&socket, &[IoSlice::new(&message)], &[]) {
            Ok(_) => sent += 1,
            Err(Errno::AGAIN) => std::thread::yield_now(),
            Err(_) => {
                lost += 1;
                socket = connect(&running);
            }
        }
    }
    assert!(lost > 0, "who does not read is not kept");
    // Its user had used up what it may ask in a second.
    stage::wait_for("service", || running.serves());
}

/// Many who connect and say nothing take each other's places, not those of the others.
#[test]
fn silent_connections() {
    let running = Running::start();
    let idle: Vec<_> = (0..600)
        .filter_map(|_| unix::connect(&running.path, SocketKind::SeqPacket).ok())
        .collect();
    assert!(idle.len() > 32);
    stage::wait_for("service", || running.serves());
}

/// A process that dies between any two of its steps leaves nothing behind that hurts its peer or the broker.
#[test]
fn a_death_at_every_step() {
    let running = Running::start();
    let steps = ["register", "pair", "allocate", "offer", "check", "push"];
    for last in 0..steps.len() {
        let (mut a, mut b) = (Actor::start(&running.path), Actor::start(&running.path));
        stage::connect(&mut a, &mut b);
        let slot_b = b.ask("register");
        let (cookie_b, socket_b) = (b.ask("cookie"), b.ask("socket"));
        for step in &steps[..=last] {
            let line = match *step {
                "pair" => format!("pair {slot_b} {socket_b} {cookie_b}"),
                "offer" => format!("offer 0 {cookie_b}"),
                step => step.to_owned() + if step == "push" { " bytes" } else { "" },
            };
            let _ = a.ask(&line);
        }
        a.kill();
        let (mut c, _d) = joined(&running);
        assert_eq!(c.ask("push on"), "2 0");
        assert!(b.ask("register").parse::<u16>().is_ok());
    }
}

/// A slab that is filled with garbage, again and again while the broker watches it and is asked to rescue out of it: it
/// refuses or moves something, and goes on.
#[test]
fn garbage_in_a_slab() {
    let running = Running::start();
    let (mut a, mut b) = joined(&running);
    for seed in 1..40 {
        assert_eq!(a.ask(&format!("scribble {seed}")), "done");
        assert_eq!(a.ask("watch"), "done");
        for side in 0..2 {
            let _ = b.ask(&format!("rescue {side}"));
        }
    }
    std::thread::sleep(Duration::from_millis(700));
    let listing = list(&running);
    assert!(
        matches!(listing, Some(Answer::Listing { bytes: 1.. })),
        "{listing:?}"
    );
    assert!(running.serves());
}

/// A broker without a descriptor left neither spins nor dies: it refuses, and serves again once others have gone.
#[test]
fn no_descriptor_left() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("sockets.sock");
    let (pid, _host) = stage::private(&path);
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: Some(24),
        maximum,
    };
    rustix::process::prlimit(Some(pid), Resource::Nofile, limit).expect("limit");
    let idle: Vec<_> = (0..200)
        .filter_map(|_| unix::connect(&path, SocketKind::SeqPacket).ok())
        .collect();
    assert!(idle.len() > 24);
    // Once it has looked at those that had come, however late. One that spins never rests.
    stage::wait_for("its rest", || {
        let before = stage::switches(pid);
        std::thread::sleep(Duration::from_millis(500));
        stage::switches(pid) - before < 20
    });
    drop(idle);
    let more = Rlimit {
        current: Some(256),
        maximum,
    };
    rustix::process::prlimit(Some(pid), Resource::Nofile, more).expect("limit");
    let (mut a, mut b) = (Actor::start(&path), Actor::start(&path));
    stage::connect(&mut a, &mut b);
    let registered = a.ask("register");
    assert!(registered.parse::<u16>().is_ok(), "{registered}");
}

//! What docs/sockets.md says of the broker: its limits, its policy file, and what a broker does not know of the one before.

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::Signal;
use windlass_broker::limits::{
    BYTES_PER_USER_MAX, HELPERS_MAX, HELPERS_PER_USER_MAX, REQUESTS_PER_USER_PER_S,
    SLABS_PER_PAIR_MAX, START_REQUESTS,
};

use crate::actor::{self, Actor};
use crate::stage::{self, Running};

/// Channels of a slab.
const CHANNELS: u64 = 1_024;

/// A process that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two processes have sixteen slabs of 1,024 connections, and no more.
#[test]
fn slabs_of_a_pair_are_limited() {
    let running = Running::start();
    let (mut a, mut b) = (Actor::start(&running.path), Actor::start(&running.path));
    stage::connect(&mut a, &mut b);
    let (_, slot) = (a.number("register"), b.number("register"));
    let (socket, cookie) = (b.ask("socket"), b.ask("cookie"));
    let channels = a.number(&format!(
        "fill {slot} {socket} {cookie} {SLABS_PER_PAIR_MAX}"
    ));
    assert_eq!(channels, CHANNELS * SLABS_PER_PAIR_MAX as u64);
    assert_eq!(a.ask(&format!("full {SLABS_PER_PAIR_MAX}")), "done");
    assert_eq!(stage::pair(&mut a, &mut b, slot), "limit");
}

/// Bytes that a process may still take here, as the host and this process's control group say.
fn memory_left() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"));
    let free = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    let of_group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").unwrap_or_default();
    let of_group = of_group.trim().parse().unwrap_or(u64::MAX);
    of_group.min(free.unwrap_or(0) << 10)
}

/// A user whose slabs hold 4 GiB gets no further one, and one that he has still. It takes 20 s and those 4 GiB.
#[test]
#[ignore = "run by make soak"]
fn memory_of_a_user_is_limited() {
    if memory_left() < 2 * BYTES_PER_USER_MAX {
        println!("skipped: memory_of_a_user_is_limited: not twice as much memory is free");
        return;
    }
    let running = Running::start();
    let [mut a, mut b, mut c] = [(); 3].map(|()| Actor::start(&running.path));
    stage::connect(&mut a, &mut b);
    let slots = [&mut a, &mut b].map(|actor| actor.number("register"));
    let fill = |a: &mut Actor, b: &mut Actor, slot: u64, count: usize| {
        for full in 0..count {
            assert_eq!(a.ask(&format!("full {full}")), "done");
            assert!(stage::pair(a, b, slot).contains(' '), "slab {full}");
            assert_eq!(a.ask("touch"), "done");
        }
    };
    fill(&mut a, &mut b, slots[1], SLABS_PER_PAIR_MAX);
    // Each has a little less than a sixteenth.
    stage::connect(&mut a, &mut c);
    let third = c.number("register");
    fill(&mut a, &mut c, third, 1);
    assert_eq!(a.ask("full 1"), "done");
    assert_eq!(stage::pair(&mut a, &mut c, third), "limit");
    assert_eq!(a.ask("full 0"), "done");
    assert!(stage::pair(&mut a, &mut c, third).contains(' '));
}

/// A user with programs of many groups has eight helpers at one time, and all users have 64, each with its getter.
#[test]
fn helpers_are_limited() {
    if !stage::can_act("helpers_are_limited") {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("mode");
    let path = dir.path().join("sockets.sock");
    let mut broker = Command::new(actor::program());
    let broker = broker.arg("--socket").arg(&path).spawn();
    let broker = Killed(broker.expect("a broker"));
    stage::wait_for("the broker", || path.exists());
    let count = |words: &str| stage::children_of(broker.0.id(), words).len();
    let register = |uid, gid| {
        let mut a = Actor::start_in(&path, uid, gid);
        let mut b = Actor::start_in(&path, uid, gid);
        stage::connect(&mut a, &mut b);
        a.number("register");
    };
    let own = 64_300;
    for gid in own..own + 1 + HELPERS_PER_USER_MAX as u32 {
        register(own, gid);
        // A start counts as so many requests.
        let rest = START_REQUESTS as u64 * 1_200 / u64::from(REQUESTS_PER_USER_PER_S);
        std::thread::sleep(Duration::from_millis(rest));
    }
    assert_eq!(count(&format!("helper\0{own}\0")), HELPERS_PER_USER_MAX);
    for uid in own + 1..own + 1 + HELPERS_MAX as u32 {
        register(uid, uid);
    }
    assert_eq!([count("helper\0"), count("getter\0")], [HELPERS_MAX; 2]);
}

/// SIGHUP has the broker read its policy again; one with a mistake leaves the old one.
#[test]
fn the_policy_is_read_again() {
    let running = Running::with(Some(""));
    let own = rustix::process::geteuid().as_raw();
    let mut a = Actor::start(&running.path);
    let mut b = Actor::start(&running.path);
    stage::connect(&mut a, &mut b);
    assert!(a.ask("register").parse::<u16>().is_ok());
    let deny = format!("deny {own}\n");
    for text in [&deny, "deny\n"] {
        std::fs::write(running.directory().join("sockets.conf"), text).expect("policy");
        running.hang_up();
        stage::wait_for("the policy", || b.ask("register") == "policy");
    }
}

/// A broker moves unread bytes of connections that have joined with it, and none of those before it: their reader waits.
#[test]
fn bytes_of_earlier_connections_are_not_moved() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("sockets.sock");
    let (_, mut host) = stage::private(&path);
    let (mut a, mut b) = (Actor::start(&path), Actor::start(&path));
    stage::connect(&mut a, &mut b);
    let slots = [a.number("register"), b.number("register")];
    assert!(stage::pair(&mut a, &mut b, slots[1]).contains(' '));
    assert!(stage::pair(&mut b, &mut a, slots[0]).contains(' '));
    stage::join(&mut a, &mut b);
    host.kill();
    std::fs::remove_file(&path).expect("its socket");
    let (_, _host) = stage::private(&path);
    assert_eq!(a.ask("push unread"), "6 0");
    assert_eq!(a.ask("watch"), "done");
    a.signal(Signal::STOP);
    // Twice what the first one would have taken.
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(b.ask("readable"), "false");
    a.signal(Signal::CONT);
    assert_eq!(b.ask("receive"), "unread");
}

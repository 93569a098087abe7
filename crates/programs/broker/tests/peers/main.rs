//! The broker between processes: who is taken in, who gets memory with whom, rescue, watch and death.

mod actor;
mod attacks;
mod hanging;
mod limits;
mod stage;
mod strangers;

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use windlass_broker::limits::{HELPED_REQUESTS, REQUESTS_PER_USER_PER_S};
use windlass_sys::unix::{self, SocketKind};

use actor::Actor;
use stage::{Running, joined};

/// How long the library waits for a rescue, in microseconds.
const RESCUE_US: u64 = 250_000;

/// Plays an actor for the other tests.
#[test]
#[ignore = "run by the other tests of this file, in a process of its own"]
fn act() {
    actor::act();
}

/// Two processes of one user get the same memory from either side, find no descriptor left behind, cannot write to each
/// other's status page, and bytes pass by the ring.
#[test]
fn a_pair_joins() {
    let running = Running::start();
    let (mut a, mut b) = joined(&running);
    let before = a.number("descriptors");
    assert_eq!(a.ask("push hello"), "5 0", "by the ring");
    assert_eq!(b.ask("receive"), "hello");
    assert_eq!(b.ask("push there"), "5 0");
    assert_eq!(a.ask("receive"), "there");
    assert_eq!(a.number("descriptors"), before);
    assert_eq!(a.ask("writable-status"), "false");
    assert_eq!(b.ask("writable-status"), "false");
}

/// A sender is stopped with bytes in its ring: at the receiver's request they are in the kernel, within the time that
/// the
/// client waits for an answer, and in order; last, for a reader that goes round the library.
#[test]
fn a_stopped_sender_is_rescued() {
    let running = Running::start();
    let (mut a, mut b) = joined(&running);
    let side = 1 - running.side_of_second;
    let mut times_us = Vec::new();
    for round in 0..20 {
        let text = format!("round-{round:02}");
        assert_eq!(a.ask(&format!("push {text}")), "8 0", "round {round}");
        a.signal(Signal::STOP);
        times_us.push(b.number(&format!("rescue {side}")));
        assert_eq!(running.moved(), 8);
        assert_eq!(
            if round < 19 {
                b.ask("receive")
            } else {
                b.ask("raw-read 8")
            },
            text
        );
        a.signal(Signal::CONT);
    }
    times_us.sort_unstable();
    println!("rescues took {times_us:?} us");
    assert!(times_us.iter().all(|us| *us < RESCUE_US), "{times_us:?}");
}

/// A user who asks for more than he may, and whose socket has another number by now, is not told that it is out of reach.
#[test]
fn who_asks_much_is_rescued() {
    let running = Running::start();
    let (mut a, mut b) = joined(&running);
    let side = 1 - running.side_of_second;
    assert_eq!(a.ask("push renumbered"), "10 0");
    assert_eq!(a.ask("renumber"), "done");
    for _ in 0..2 * REQUESTS_PER_USER_PER_S as usize / HELPED_REQUESTS {
        assert_ne!(b.ask(&format!("rescue {side}")), "not-rescuable");
    }
    assert_eq!(running.moved(), 10);
    assert_eq!(b.ask("receive"), "renumbered");
}

/// Nobody asks for a rescue: the watch finds bytes that the receiver, who reads round the library, does not take.
#[test]
fn the_watch_rescues() {
    let running = Running::start();
    let (mut a, mut b) = joined(&running);
    assert_eq!(a.ask("push watched"), "7 0");
    assert_eq!(a.ask("watch"), "done");
    a.signal(Signal::STOP);
    let started = Instant::now();
    assert_eq!(b.ask("raw-read 7"), "watched");
    let took = started.elapsed();
    assert!(
        took > Duration::from_millis(150),
        "nobody is rescued who may still come: {took:?}"
    );
    assert!(took < Duration::from_secs(5), "{took:?}");
    a.signal(Signal::CONT);
}

/// A process asks for unread bytes before it closes, and the helper is late: the watch does not begin a rescue of its own behind that,
/// whose copy of the socket would outlive the close.
#[test]
fn the_watch_leaves_alone_what_is_asked_for() {
    let running = Running::alone();
    let (mut a, mut b) = joined(&running);
    let side = 1 - running.side_of_second;
    assert_eq!(a.ask("push unread"), "6 0");
    assert_eq!(a.ask("watch"), "done");
    let helpers = stage::children_of(std::process::id(), "helper");
    assert!(!helpers.is_empty());
    let all = |signal| {
        for helper in &helpers {
            rustix::process::kill_process(*helper, signal).expect("a helper");
        }
    };
    all(Signal::STOP);
    assert_eq!(b.ask(&format!("rescue {side}")), "no-daemon");
    std::thread::sleep(Duration::from_millis(350));
    all(Signal::CONT);
    stage::wait_for("the rescue", || running.rescues() > 0);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(running.rescues(), 1);
    assert_eq!(running.moved(), 6);
}

/// A process that dies is dead for everybody at once, and its slot is not given again while its memory is in use.
#[test]
fn death_is_seen() {
    let running = Running::start();
    let (mut a, mut b) = joined(&running);
    let slot = running.slots.get();
    assert_eq!(b.ask(&format!("life {}", slot[0])), "Lives");
    a.kill();
    stage::wait_for("the death", || {
        b.ask(&format!("life {}", slot[0])) == "Dead"
    });
    let mut c = Actor::start(&running.path);
    stage::connect(&mut b, &mut c);
    let new = c.number("register");
    assert!(!slot.contains(&new), "{new} is still in use");
}

/// Processes that are another program by now, or cannot be rescued, or name what is not theirs, are refused; those of
/// the
/// other side's namespace or of nobody, too.
#[test]
fn who_is_refused() {
    let running = Running::start();
    let (mut a, mut b) = (Actor::start(&running.path), Actor::start(&running.path));
    stage::connect(&mut a, &mut b);
    let (cookie, other) = (a.ask("cookie"), b.ask("cookie"));
    assert_eq!(
        a.ask(&format!("register-wrong 0 {cookie}")),
        "not-rescuable",
        "no socket"
    );
    assert_eq!(
        a.ask(&format!("register-wrong 9999 {cookie}")),
        "not-rescuable",
        "not open"
    );
    assert_eq!(
        a.ask(&format!("register-wrong -1 {cookie}")),
        "not-rescuable",
        "no descriptor"
    );
    assert_eq!(a.ask("pair 1 0 0"), "no-daemon", "not registered");
    let slot = b.number("register");
    let own = a.number("register");
    assert_ne!(slot, own);
    for peer in [0, 65_535, 40_000] {
        assert_eq!(a.ask(&format!("pair {peer} 0 0")), "peer-plain");
    }
    assert_eq!(a.ask("slab 77 0"), "not-eligible");
    assert_ne!(other, cookie);
    if rustix::process::geteuid().is_root() {
        println!("skipped: who_is_refused: undumpable: root may take descriptors of every process");
        return;
    }
    let mut c = Actor::start(&running.path);
    stage::connect(&mut b, &mut c);
    assert_eq!(c.ask("undumpable"), "done");
    assert_eq!(c.ask("register"), "not-rescuable");
}

/// A forked process has the slabs of the one that it was forked from, and its slot is its own. One that was forked before the slab
/// was made gets it by its number, on the side that the record names: either is its user's, and the peer is that of the side.
#[test]
fn heirs_have_what_they_inherited() {
    let running = Running::start();
    let (mut a, mut b) = joined(&running);
    let slots = running.slots.get();
    let slab = a
        .ask(&format!(
            "pair {} {} {}",
            slots[1],
            b.ask("socket"),
            b.ask("cookie")
        ))
        .split(' ')
        .next()
        .expect("slab")
        .to_owned();
    let mut heir = Actor::start(&running.path);
    stage::connect(&mut b, &mut heir);
    let slot = heir.number(&format!("register-heir {}", slots[0]));
    assert!(!slots.contains(&slot));
    let have = |actor: &mut Actor, side: usize| {
        let peer = slots[1 - side];
        let answer = actor.ask(&format!("slab {slab} {side}"));
        assert_eq!(answer, format!("{slab} {side} {peer}"));
    };
    have(&mut heir, 0);
    for side in [1, 0] {
        let mut early = Actor::start(&running.path);
        stage::connect(&mut b, &mut early);
        early.number("register");
        have(&mut early, side);
    }
    // Its parent's death leaves the slab to it.
    a.kill();
    stage::wait_for("the death", || {
        heir.ask(&format!("life {}", slots[0])) == "Dead"
    });
    have(&mut heir, 0);
}

/// A broker is killed and another one takes its place: the processes of the first one have their slots still, in the table that they
/// have mapped, until they end; each gets its own one again, and nobody gets another's.
#[test]
fn slots_outlive_the_broker() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("sockets.sock");
    let (_, mut host) = stage::private(&path);
    let mut actors = [(); 4].map(|()| Actor::start(&path));
    let [a, b, c, d] = &mut actors;
    stage::connect(a, b);
    stage::connect(c, d);
    let [slot_a, slot_b, slot_c] = [&mut *a, b, c].map(|actor| actor.number("register"));
    host.kill();
    c.kill();
    std::fs::remove_file(&path).expect("its socket");
    let (_, _host) = stage::private(&path);
    let lives = |actor: &mut Actor, slot| actor.ask(&format!("life {slot}"));
    stage::wait_for("the death", || lives(a, slot_c) == "Dead");
    assert_eq!(lives(a, slot_b), "Lives");
    let again = |actor: &mut Actor, slot| actor.ask(&format!("register-again {slot}"));
    assert_eq!(again(d, slot_b), "no-daemon", "of another process");
    let slot_d = d.number("register");
    assert!(![slot_a, slot_b].contains(&slot_d), "{slot_d}");
    // Once more: the library does so if the answer came too late.
    for _ in 0..2 {
        stage::wait_for("its own slot", || again(a, slot_a) == slot_a.to_string());
    }
    b.kill();
    stage::wait_for("the death", || lives(a, slot_b) == "Dead");
}

/// While nothing is flagged the broker does not wake up at all, with processes, a slab and bytes in a ring.
#[test]
fn idle_costs_nothing() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("sockets.sock");
    let (pid, _host) = stage::private(&path);
    let (mut a, mut b) = (Actor::start(&path), Actor::start(&path));
    stage::connect(&mut a, &mut b);
    let (_, second) = (a.number("register"), b.number("register"));
    assert!(stage::pair(&mut a, &mut b, second).contains(' '));
    std::thread::sleep(Duration::from_millis(100));
    let before = stage::switches(pid);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(stage::switches(pid), before);
}

/// A connection that asks nothing keeps a private broker beyond its time. The broker waits meanwhile.
#[test]
fn a_silent_connection_costs_nothing() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("sockets.sock");
    let mut command = Command::new(actor::program());
    command.args(["--private", "--linger-ms", "500", "--socket"]);
    let mut broker = command.arg(&path).spawn().expect("a broker");
    stage::wait_for("the broker", || path.exists());
    let _silent = unix::connect(&path, SocketKind::SeqPacket).expect("a connection");
    std::thread::sleep(Duration::from_millis(1_500));
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", broker.id())).expect("stat");
    broker.kill().expect("killed");
    broker.wait().expect("its end");
    // utime and stime, in hundredths of a second.
    let ticks = stat.split_whitespace().skip(13).take(2);
    let ticks: u64 = ticks
        .map(|ticks| ticks.parse::<u64>().expect("a number"))
        .sum();
    assert!(ticks < 20, "{ticks} hundredths of a second");
}

/// Nobody has a copy of a Unix socket while processes register with it and its two ends are compared: a close just then would reach
/// the peer late. Read from the system calls of the broker and of all that it starts: a helper that is late is replaced.
#[test]
fn unix_sockets_are_compared_without_copies() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: unix_sockets_are_compared_without_copies: there is no strace here");
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let (path, calls) = (dir.path().join("sockets.sock"), dir.path().join("calls"));
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-e", "trace=pidfd_getfd", "-o"])
        .arg(&calls);
    strace
        .arg(actor::program())
        .args(["--private", "--socket"])
        .arg(&path);
    let mut strace = strace.stderr(Stdio::null()).spawn().expect("strace");
    stage::wait_for("the broker", || path.exists());
    let (mut a, mut b) = (Actor::start(&path), Actor::start(&path));
    let name = dir.path().join("met");
    assert_eq!(a.ask(&format!("listen-unix {}", name.display())), "done");
    assert_eq!(b.ask(&format!("connect-unix {}", name.display())), "done");
    assert_eq!(a.ask("accept-unix"), "done");
    assert_eq!(a.ask("patient"), "done");
    assert_eq!(b.ask("patient"), "done");
    let (_, slot) = (a.number("register"), b.number("register"));
    assert!(stage::pair(&mut a, &mut b, slot).contains(' '));
    let socket = unix::connect(&path, SocketKind::SeqPacket).expect("a connection");
    let broker = unix::peer_credentials(&socket).expect("the broker").pid;
    let broker = broker.and_then(|pid| Pid::from_raw(pid.cast_signed()));
    rustix::process::kill_process(broker.expect("its id"), Signal::TERM).expect("signal");
    strace.wait().expect("its end");
    let calls = std::fs::read_to_string(&calls).expect("calls");
    let results = calls
        .lines()
        .filter_map(|line| Some(line.rsplit_once(" = ")?.1));
    let results: Vec<&str> = results.collect();
    let looks = results.iter().filter(|result| result.contains("EBADF"));
    // Who is not answered in time asks again.
    assert!(looks.count() >= 4, "{calls}");
    assert!(
        results.iter().all(|result| result.starts_with('-')),
        "{calls}"
    );
}

/// A private broker has its helper before anybody connects.
#[test]
fn a_private_broker_has_its_helper_at_once() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("sockets.sock");
    let (pid, _host) = stage::private(&path);
    let broker = pid.as_raw_nonzero().get().cast_unsigned();
    let own = rustix::process::getuid().as_raw();
    stage::wait_for("its helper", || stage::helper_of(broker, own).is_some());
}

/// A broker is killed whose helpers and getters are stopped, also those of another user: none of them outlives it.
#[test]
fn nothing_outlives_the_broker() {
    let dir = tempfile::tempdir().expect("directory");
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("mode");
    let path = dir.path().join("sockets.sock");
    let mut broker = Command::new(actor::program());
    let mut broker = broker.arg("--socket").arg(&path).spawn().expect("a broker");
    stage::wait_for("the broker", || path.exists());
    let (mut a, mut b) = (Actor::start(&path), Actor::start(&path));
    stage::connect(&mut a, &mut b);
    a.number("register");
    let is_root = rustix::process::geteuid().is_root();
    let mut count = 1 + usize::from(is_root);
    if is_root && stage::others_reach_us() {
        let (mut c, mut d) = [(); 2].map(|()| Actor::start_as(&path, 64_016)).into();
        stage::connect(&mut c, &mut d);
        c.number("register");
        count = 4;
    }
    let mut children = Vec::new();
    stage::wait_for("helpers and getters", || {
        children = stage::children_of(broker.id(), "");
        children.len() == count && children.iter().all(|child| stage::is_confined(*child))
    });
    for child in &children {
        rustix::process::kill_process(*child, Signal::STOP).expect("stopped");
    }
    broker.kill().expect("killed");
    broker.wait().expect("its end");
    stage::wait_for("the end of its children", || {
        children.iter().all(|child| {
            let status = format!("/proc/{}/status", child.as_raw_nonzero());
            stage::has_ended(&std::fs::read_to_string(status).unwrap_or_default())
        })
    });
}

/// Two users are joined only if both share, or if the policy names them; then bytes pass, and a rescue works. A denied
/// user
/// is not taken in.
#[test]
fn users_are_kept_apart() {
    let name = "users_are_kept_apart";
    if !rustix::process::geteuid().is_root() {
        println!("skipped: {name}: only root can act as two users");
        return;
    }
    let (one, two) = (64_001, 64_002);
    if !stage::others_reach_us() {
        println!("skipped: {name}: others than root cannot reach this program");
        return;
    }
    for (policy, flags, expected) in [
        ("", (0, 0), "other-user"),
        ("", (1, 0), "other-user"),
        ("", (1, 1), "joined"),
        ("join 64001 64002", (0, 0), "joined"),
        ("join 64001 64003", (0, 0), "other-user"),
    ] {
        let running = Running::with(Some(policy));
        let (mut a, mut b) = (
            Actor::start_as(&running.path, one),
            Actor::start_as(&running.path, two),
        );
        stage::connect(&mut a, &mut b);
        let slot_a = a.number(&format!("register {}", flags.0));
        let slot_b = b.number(&format!("register {}", flags.1));
        let paired = stage::pair(&mut a, &mut b, slot_b);
        if expected != "joined" {
            assert_eq!(paired, expected, "{policy} {flags:?}");
            continue;
        }
        assert!(
            stage::pair(&mut b, &mut a, slot_a).contains(' '),
            "{policy} {flags:?}"
        );
        stage::join(&mut a, &mut b);
        assert_eq!(a.ask("push across"), "6 0");
        a.signal(Signal::STOP);
        assert!(b.number("rescue 0") < RESCUE_US);
        assert_eq!(b.ask("raw-read 6"), "across");
        a.signal(Signal::CONT);
    }
    let running = Running::with(Some("deny 64001"));
    let (mut a, mut b) = (
        Actor::start_as(&running.path, one),
        Actor::start(&running.path),
    );
    stage::connect(&mut a, &mut b);
    assert_eq!(a.ask("register"), "policy");
    assert!(b.ask("register").parse::<u16>().is_ok());
}

/// A private broker stays while a program of its user has the library, and ends once nobody can find it any more: its socket was
/// removed.
#[test]
fn a_broker_without_its_socket_ends() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("sockets.sock");
    let mut program = Command::new("sleep");
    program.env("LD_PRELOAD", "/nonexistent/libwindlass_sockets.so");
    let mut program = program.arg("60").stderr(Stdio::null()).spawn().expect("it");
    let mut broker = Command::new(actor::program());
    broker.args(["--private", "--linger-ms", "20", "--socket"]);
    let mut broker = broker.arg(&path).spawn().expect("a broker");
    stage::wait_for("the broker", || path.exists());
    std::thread::sleep(Duration::from_millis(300));
    assert!(broker.try_wait().expect("it").is_none(), "it is needed");
    std::fs::remove_file(&path).expect("its socket");
    let mut ended = None;
    stage::wait_for("its end", || {
        ended = broker.try_wait().expect("it");
        ended.is_some()
    });
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    program.kill().expect("killed");
    program.wait().expect("its end");
}

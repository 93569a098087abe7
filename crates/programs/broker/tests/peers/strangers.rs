//! What an ordinary user tries against root's broker: to write with other ids than his own, to get into connections that
//! are not his, and to keep others from being served.

use std::mem::MaybeUninit;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketType,
};
use rustix::process::{Pid, Signal};

use windlass_broker::limits::ROWS_PER_USER_MAX;
use windlass_broker::log::LINES_PER_S;
use windlass_listing::ROW_BYTES;

use crate::actor::Actor;
use crate::hanging::Hanging;
use crate::stage::{self, Running};

const MALLORY: u32 = 64_011;
const ALICE: u32 = 64_012;
const BOB: u32 = 64_013;
/// Users whose helpers a test looks for: no other test has processes of them.
const CAROL: u32 = 64_014;
const MARVIN: u32 = 64_015;

/// A broker that users other than root reach; `None`, said aloud, where this process cannot act for them.
fn scene(name: &str) -> Option<Running> {
    scene_with(name, None)
}

fn scene_with(name: &str, policy: Option<&str>) -> Option<Running> {
    stage::can_act(name).then(|| Running::with(policy))
}

/// The same while no other test has a broker.
fn scene_alone(name: &str) -> Option<Running> {
    stage::can_act(name).then(Running::alone)
}

/// Two joined processes of one user.
fn joined_as(running: &Running, uid: u32) -> (Actor, Actor) {
    let mut a = Actor::start_as(&running.path, uid);
    let mut b = Actor::start_as(&running.path, uid);
    join_both(running, &mut a, &mut b);
    (a, b)
}

fn join_both(running: &Running, a: &mut Actor, b: &mut Actor) {
    stage::connect(a, b);
    let slots = [a.number("register"), b.number("register")];
    running.slots.set(slots);
    assert!(stage::pair(a, b, slots[1]).contains(' '));
    assert!(stage::pair(b, a, slots[0]).contains(' '));
    stage::join(a, b);
}

/// The attacker names a socket of his that leads to a service which asks the kernel who writes. The bytes of a rescue never
/// come from root: they do not come at all, since the two ends are no connection.
#[test]
fn a_rescue_does_not_lend_root_s_ids() {
    let Some(running) = scene("a_rescue_does_not_lend_root_s_ids") else {
        return;
    };
    let path = running.directory().join("service");
    let service = UnixListener::bind(&path).expect("a service");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).expect("mode");
    let (mut a, mut b) = joined_as(&running, MALLORY);
    assert_eq!(a.ask("push i-am-root"), "9 0");
    assert_eq!(a.ask(&format!("name-unix {}", path.display())), "done");
    let (heard, _) = service.accept().expect("accepted");
    rustix::net::sockopt::set_socket_passcred(&heard, true).expect("passcred");
    heard.set_nonblocking(true).expect("nonblocking");
    let _ = b.ask("rescue 0");
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        let mut bytes = [0; 64];
        let mut space = [MaybeUninit::uninit(); 256];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
        let received = rustix::net::recvmsg(&heard, &mut parts, &mut control, RecvFlags::empty());
        if received.is_ok() {
            let writers: Vec<u32> = control
                .drain()
                .filter_map(|part| match part {
                    RecvAncillaryMessage::ScmCredentials(who) => Some(who.uid.as_raw()),
                    _ => None,
                })
                .collect();
            panic!("{writers:?} wrote to the service");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(running.serves());
}

/// The same with a raw netlink socket, whose receivers ask for the ids of the sender as well. It is not even looked at.
#[test]
fn a_rescue_writes_to_no_netlink_socket() {
    let Some(running) = scene("a_rescue_writes_to_no_netlink_socket") else {
        return;
    };
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    let service = rustix::net::socket(family, kind, Some(netlink::USERSOCK)).expect("netlink");
    rustix::net::bind(&service, &SocketAddrNetlink::new(0, 0)).expect("bound");
    let name = rustix::net::getsockname(&service).expect("a name");
    let port = SocketAddrNetlink::try_from(name).expect("netlink").pid();
    let (mut a, mut b) = joined_as(&running, MALLORY);
    assert_eq!(a.ask("push i-am-root"), "9 0");
    assert_eq!(a.ask(&format!("name-netlink {port}")), "not-rescuable");
    assert_eq!(b.ask("rescue 0"), "not-rescuable");
    std::thread::sleep(Duration::from_millis(100));
    let heard = rustix::net::recv(&service, &mut [0; 64], RecvFlags::DONTWAIT);
    assert_eq!(heard.map(|(bytes, _)| bytes), Err(rustix::io::Errno::AGAIN));
    assert!(running.serves());
}

/// A copy of this program that runs with the ids of its owner.
fn raised(running: &Running, owner: u32) -> PathBuf {
    let raised = running.directory().join("raised");
    // By another process: a fork of another test would keep a file open that we write, and nobody could execute it.
    let copied = Command::new("cp")
        .arg(std::env::current_exe().expect("own path"))
        .arg(&raised)
        .status();
    assert!(copied.expect("cp").success());
    chown(&raised, Some(owner), Some(owner)).expect("an owner");
    std::fs::set_permissions(&raised, PermissionsExt::from_mode(0o6755)).expect("mode");
    raised
}

/// A process that executes another program is not registered any more: nothing is written to the connection that the new
/// program has, and nobody gets memory with it; if the program is set-user-ID, too.
#[test]
fn an_exec_ends_the_registration() {
    let Some(running) = scene("an_exec_ends_the_registration") else {
        return;
    };
    let plain = std::env::current_exe().expect("own path");
    let raised = raised(&running, ALICE);
    for program in [plain, raised] {
        let (mut a, mut b) = joined_as(&running, MALLORY);
        assert_eq!(a.ask("push injected"), "8 0");
        let slot = running.slots.get()[0];
        a.exec(&program);
        let refused = b.ask("rescue 0");
        assert!(
            refused.parse::<u64>().is_err(),
            "{}: {refused}",
            program.display()
        );
        assert_eq!(b.ask("readable"), "false", "{}", program.display());
        let socket = b.ask("socket");
        let again = b.ask(&format!("pair {slot} {socket} 1"));
        assert_eq!(again, "peer-plain", "{}", program.display());
    }
}

/// A process that enters a user namespace is not registered any more: nothing is written to its connections, and it gets memory with
/// nobody outside.
#[test]
fn another_namespace_ends_the_registration() {
    let Some(running) = scene("another_namespace_ends_the_registration") else {
        return;
    };
    let (mut a, mut b) = [(); 2]
        .map(|()| Actor::start_as(&running.path, MALLORY))
        .into();
    // Who has threads does not get one.
    assert_eq!(a.ask("fork"), "done");
    join_both(&running, &mut a, &mut b);
    assert_eq!(a.ask("push injected"), "8 0");
    let [slot_a, slot_b] = running.slots.get();
    if a.ask("own-namespace") != "done" {
        println!("skipped: another_namespace_ends_the_registration: no user namespace is given");
        return;
    }
    let refused = b.ask("rescue 0");
    assert!(refused.parse::<u64>().is_err(), "{refused}");
    assert_eq!(b.ask("readable"), "false");
    assert_eq!(stage::pair(&mut b, &mut a, slot_a), "peer-plain");
    // It may register anew: as one of its namespace.
    let again = a.ask("register");
    if again.parse::<u16>().is_ok() {
        assert_eq!(stage::pair(&mut a, &mut b, slot_b), "other-netns");
    }
    println!("in its namespace: {again}");
}

/// Another user gets the memory of two processes neither by its number nor by naming their sockets, and his listing has his own
/// process alone.
#[test]
fn the_memory_of_others_is_not_given() {
    let Some(running) = scene("the_memory_of_others_is_not_given") else {
        return;
    };
    let (mut a, mut b) = joined_as(&running, ALICE);
    let [slot_a, slot_b] = running.slots.get();
    let paired = stage::pair(&mut a, &mut b, slot_b);
    let slab = paired.split(' ').next().expect("a slab");
    let mut c = Actor::start_as(&running.path, MALLORY);
    let mut d = Actor::start_as(&running.path, MALLORY);
    stage::connect(&mut c, &mut d);
    assert!(c.ask("register").parse::<u16>().is_ok());
    for side in 0..2 {
        assert_eq!(c.ask(&format!("slab {slab} {side}")), "not-eligible");
    }
    assert_eq!(stage::pair(&mut c, &mut a, slot_a), "other-user");
    assert_eq!(c.number("list"), ROW_BYTES as u64);
    // Two processes and a channel.
    assert_eq!(a.number("list"), 3 * ROW_BYTES as u64);
}

/// Everybody shares, or a rule joins the users. A third process names itself as the other end of a connection between two others: it gets no memory
/// with either of them, and a channel of it that pretends to be that connection is not proved.
#[test]
fn nobody_joins_the_connection_of_others() {
    let rule = format!("join {ALICE} {BOB}");
    for (policy, flags, third) in [
        (None, 1, MALLORY),
        (Some(&*rule), 0, BOB),
        (Some(&*rule), 0, ALICE),
    ] {
        let Some(running) = scene_with("nobody_joins_the_connection_of_others", policy) else {
            return;
        };
        third_process(&running, flags, third);
    }
}

fn third_process(running: &Running, flags: u32, third: u32) {
    let mut a = Actor::start_as(&running.path, ALICE);
    let mut b = Actor::start_as(&running.path, BOB);
    let mut c = Actor::start_as(&running.path, third);
    let register = format!("register {flags}");
    stage::connect(&mut a, &mut c);
    let slot_c = c.number(&register);
    let slot_a = a.number(&register);
    assert!(
        stage::pair(&mut a, &mut c, slot_c).contains(' '),
        "their own connection"
    );
    assert!(stage::pair(&mut c, &mut a, slot_a).contains(' '));
    let chan = a.ask("allocate");
    // From now on the first one means its connection with the second one.
    stage::connect(&mut a, &mut b);
    let slot_b = b.number(&register);
    let [cookie_a, cookie_c] = [a.ask("cookie"), c.ask("cookie")];
    assert_eq!(a.ask(&format!("offer {chan} {cookie_c}")), "done");
    assert_eq!(c.ask(&format!("mimic {chan} {cookie_a}")), "done");
    assert_eq!(a.ask("prove"), "mismatch", "{third}");
    assert_eq!(stage::pair(&mut a, &mut c, slot_c), "mismatch");
    assert_eq!(stage::pair(&mut c, &mut b, slot_b), "mismatch");
    assert!(
        stage::pair(&mut a, &mut b, slot_b).contains(' '),
        "the real end"
    );
}

/// A process connects as root, and registers once it has the ids of a user: it is neither.
#[test]
fn ids_that_change_after_the_connection_are_refused() {
    let Some(running) = scene("ids_that_change_after_the_connection_are_refused") else {
        return;
    };
    let (mut a, mut b) = (Actor::start(&running.path), Actor::start(&running.path));
    stage::connect(&mut a, &mut b);
    let answer = a.ask(&format!("change-and-register {MALLORY}"));
    assert_eq!(answer, "privileged");
}

/// Two processes of one user at two brokers: one that strangers reach, and one that they don't.
struct Bystander {
    quiet: Running,
    actors: [Actor; 4],
    /// Of both brokers' threads.
    schedstats: [String; 2],
}

/// Registrations at each broker.
const ROUNDS: usize = 100;
/// The pause between two: strangers' requests that are rare are met, too.
const PAUSE: Duration = Duration::from_millis(20);
/// How much longer than without a stranger one may take, in microseconds.
const DELAY_US: u64 = 20_000;

impl Bystander {
    fn new(running: &Running) -> Self {
        let quiet = Running::beside(running);
        let mut actors = [&running.path, &running.path, &quiet.path, &quiet.path]
            .map(|path| Actor::start_as(path, ALICE));
        let [a, b, c, d] = &mut actors;
        stage::connect(a, b);
        stage::connect(c, d);
        let schedstats = [&running.schedstat, &quiet.schedstat].map(String::clone);
        let mut own = Self {
            quiet,
            actors,
            schedstats,
        };
        // The helpers' starts are no stranger's doing.
        own.times(10);
        own
    }

    /// How long a registration takes at each broker, in turns, without the time for which the program, the broker or its helper is ready
    /// and has no core; in microseconds, sorted.
    fn times(&mut self, rounds: usize) -> [Vec<u64>; 2] {
        let helpers = stage::children_of(std::process::id(), &format!("helper\0{ALICE}\0"));
        let helpers = helpers
            .iter()
            .map(|pid| format!(" /proc/{}/schedstat", pid.as_raw_nonzero()));
        let helpers: String = helpers.collect();
        let asked = self
            .schedstats
            .each_ref()
            .map(|broker| format!("register-time {broker}{helpers}"));
        let [disturbed, _, quiet, _] = &mut self.actors;
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            std::thread::sleep(PAUSE);
            let actors = [&mut *disturbed, &mut *quiet].into_iter().zip(&asked);
            for (times, (actor, asked)) in times.iter_mut().zip(actors) {
                times.push(actor.number(asked));
            }
        }
        times.iter_mut().for_each(|times| times.sort_unstable());
        times
    }

    /// The rule: each registration at the broker that the strangers reach takes at most 20 ms longer than half of those at the other
    /// one, in turns with it.
    fn is_not_delayed(&mut self, by: &str) {
        let [with, without] = self.times(ROUNDS);
        let (usual, slowest) = (without[ROUNDS / 2], with[ROUNDS - 1]);
        println!("{by}: {slowest} us at most, without: {usual} us");
        assert!(slowest <= usual + DELAY_US, "{by}: {with:?}, {without:?}");
        assert!(self.quiet.path.exists());
    }
}

/// The user of a helper stops it, as a last close that waits would: his own requests are refused until it is replaced,
/// and nobody else waits.
#[test]
fn a_helper_that_hangs_is_its_users_own_loss() {
    let Some(running) = scene_alone("a_helper_that_hangs_is_its_users_own_loss") else {
        return;
    };
    let mut alice = Bystander::new(&running);
    let mut a = Actor::start_as(&running.path, MARVIN);
    let mut b = Actor::start_as(&running.path, MARVIN);
    stage::connect(&mut a, &mut b);
    assert!(a.ask("register").parse::<u16>().is_ok());
    let helper = helper_of(MARVIN);
    rustix::process::kill_process(helper, Signal::STOP).expect("stopped");
    b.tell("register");
    alice.is_not_delayed("a helper that hangs");
    assert!(
        b.answer().parse::<u16>().is_ok(),
        "served by the next helper"
    );
    assert_ne!(helper_of(MARVIN), helper);
}

/// A user's jobs wait in a helper that hangs, each with descriptors that root has sent and nobody has received: the kernel counts them
/// against what root's own helper passes to its getter. That one goes on.
#[test]
fn jobs_that_wait_keep_no_getter_from_its_work() {
    let Some(running) = scene_alone("jobs_that_wait_keep_no_getter_from_its_work") else {
        return;
    };
    let mut a = Actor::start_as(&running.path, MARVIN);
    let mut b = Actor::start_as(&running.path, MARVIN);
    stage::connect(&mut a, &mut b);
    let (mut c, mut d) = (Actor::start(&running.path), Actor::start(&running.path));
    stage::connect(&mut c, &mut d);
    assert!(a.ask("register").parse::<u16>().is_ok());
    assert!(c.ask("register").parse::<u16>().is_ok());
    let helper = helper_of(MARVIN);
    rustix::process::kill_process(helper, Signal::STOP).expect("stopped");
    assert_eq!(a.ask("flood register"), "done");
    std::thread::sleep(Duration::from_millis(200));
    assert!(d.ask("register").parse::<u16>().is_ok());
    assert_eq!(helper_of(MARVIN), helper, "it hangs still");
}

/// A user asks as fast as he can, for registrations, for listings of thousands of connections, and has helpers started for namespaces:
/// nobody else waits for him.
#[test]
fn floods_delay_nobody_else() {
    let Some(running) = scene_alone("floods_delay_nobody_else") else {
        return;
    };
    let mut alice = Bystander::new(&running);
    let mut a = Actor::start_as(&running.path, MALLORY);
    let mut b = Actor::start_as(&running.path, MALLORY);
    stage::connect(&mut a, &mut b);
    let slots = [a.number("register"), b.number("register")];
    let (socket, cookie) = (b.ask("socket"), b.ask("cookie"));
    // More channels than an ordinary user sees.
    let fill = format!("fill {} {socket} {cookie} 5", slots[1]);
    let channels = a.number(&fill);
    assert!(channels > ROWS_PER_USER_MAX as u64, "{channels}");
    let started = Instant::now();
    let listed = a.number("list");
    let took = started.elapsed();
    assert!(
        (1..=(ROWS_PER_USER_MAX * ROW_BYTES) as u64).contains(&listed),
        "{listed}"
    );
    println!("{channels} channels: {listed} bytes in {took:?}");
    for what in ["register", "list"] {
        let mut stranger = Actor::start_as(&running.path, MALLORY);
        let mut other = Actor::start_as(&running.path, MALLORY);
        stage::connect(&mut stranger, &mut other);
        assert_eq!(stranger.ask(&format!("flood {what}")), "done");
        std::thread::sleep(Duration::from_millis(200));
        alice.is_not_delayed(what);
    }
}

/// A user has as many connections as a process and six others may, and says of all that bytes are on their way: what the broker
/// looks through delays nobody else.
#[test]
fn slabs_to_be_watched_delay_nobody_else() {
    let Some(running) = scene_alone("slabs_to_be_watched_delay_nobody_else") else {
        return;
    };
    let mut alice = Bystander::new(&running);
    let mut a = Actor::start_as(&running.path, MALLORY);
    let mut others = [(); 6].map(|()| Actor::start_as(&running.path, MALLORY));
    for (at, b) in others.iter_mut().enumerate() {
        stage::connect(&mut a, b);
        if at == 0 {
            assert!(a.ask("register").parse::<u16>().is_ok());
        }
        let slot = b.number("register");
        let (socket, cookie) = (b.ask("socket"), b.ask("cookie"));
        let channels = a.number(&format!("fill {slot} {socket} {cookie} 16"));
        assert_eq!(channels, 16 * 1_024);
    }
    assert_eq!(a.ask("watch-filled"), "done");
    std::thread::sleep(Duration::from_millis(200));
    alice.is_not_delayed("slabs to be watched");
}

/// A user fills the memory of connections and ends: freeing it takes long, and delays nobody else.
#[test]
fn memory_to_be_freed_delays_nobody_else() {
    let Some(running) = scene_alone("memory_to_be_freed_delays_nobody_else") else {
        return;
    };
    let mut alice = Bystander::new(&running);
    for _ in 0..3 {
        let mut a = Actor::start_as(&running.path, MALLORY);
        let mut b = Actor::start_as(&running.path, MALLORY);
        stage::connect(&mut a, &mut b);
        let slots = [a.number("register"), b.number("register")];
        let (socket, cookie) = (b.ask("socket"), b.ask("cookie"));
        for slabs in 1..=2 {
            a.number(&format!("fill {} {socket} {cookie} {slabs}", slots[1]));
            assert_eq!(a.ask("touch"), "done");
        }
        drop((a, b));
        alice.is_not_delayed("memory to be freed");
    }
}

/// The last close of a socket that lingers waits in the kernel: it is the attacker's own helper that waits.
#[test]
fn a_close_that_waits_delays_nobody_else() {
    let Some(running) = scene_alone("a_close_that_waits_delays_nobody_else") else {
        return;
    };
    let mut alice = Bystander::new(&running);
    let mut a = Actor::start_as(&running.path, MALLORY);
    assert_eq!(a.ask("lingering"), "done");
    for _ in 0..3 {
        alice.is_not_delayed("sockets that linger");
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// The same of one that comes with a request: its last close would be the broker's own.
#[test]
fn a_passed_socket_that_lingers_delays_nobody_else() {
    let Some(running) = scene_alone("a_passed_socket_that_lingers_delays_nobody_else") else {
        return;
    };
    let mut alice = Bystander::new(&running);
    let mut a = Actor::start_as(&running.path, MALLORY);
    println!("sent: {}", a.ask("pass-lingering"));
    alice.is_not_delayed("a passed socket that lingers");
}

/// The same of a file of a file system that answers no close: the helper that took it hangs in the kernel, where not even SIGKILL
/// reaches it.
#[test]
fn a_file_system_that_hangs_delays_nobody_else() {
    let name = "a_file_system_that_hangs_delays_nobody_else";
    let Some(running) = scene_alone(name) else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let mode = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), mode).expect("mode");
    let mut alice = Bystander::new(&running);
    let mut a = Actor::start_as(&running.path, MARVIN);
    let mut b = Actor::start_as(&running.path, MARVIN);
    stage::connect(&mut a, &mut b);
    // Unmounted first in the end: the end of the process closes its file, too.
    let Some(mounted) = Hanging::mount(directory.path()) else {
        println!("skipped: {name}: no FUSE here");
        return;
    };
    let file = a.number(&format!("open {}", directory.path().join("file").display()));
    a.tell(&format!("register-wrong {file} 1"));
    stage::wait_for("a close", || mounted.closes() > 0);
    alice.is_not_delayed("a file system that hangs");
    // The killed helper is there still, and another one serves its user; once four hang, nobody does.
    let again = b.ask("register");
    let is_served = again.parse::<u16>().is_ok();
    assert!(is_served || again == "not-rescuable", "{again}");
    assert!(a.answer().parse::<u16>().is_err(), "no socket");
    alice.is_not_delayed("a helper that cannot end");
}

/// A stranger whose every request is a line of the log makes 20 lines a second, and the number of those left out.
#[test]
fn a_flood_does_not_fill_the_log() {
    if !stage::can_act("a_flood_does_not_fill_the_log") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mode = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), mode).expect("mode");
    let path = directory.path().join("sockets.sock");
    let mut command = Command::new(crate::actor::program());
    command.arg("--verbose").arg("--socket").arg(&path);
    let mut broker = command.stderr(Stdio::piped()).spawn().expect("a broker");
    stage::wait_for("the broker", || path.exists());
    let mut a = Actor::start_as(&path, MALLORY);
    let mut b = Actor::start_as(&path, MALLORY);
    stage::connect(&mut a, &mut b);
    assert_eq!(a.ask("flood register"), "done");
    std::thread::sleep(Duration::from_secs(4));
    broker.kill().expect("killed");
    let output = broker.wait_with_output().expect("its end");
    let text = String::from_utf8_lossy(&output.stderr);
    let left_out = |line: &str| {
        let words = line.strip_suffix(" lines left out")?;
        words.rsplit(' ').next()?.parse::<u64>().ok()
    };
    let missing: u64 = text.lines().filter_map(left_out).sum();
    let lines = text.lines().count();
    println!("{lines} lines, {missing} left out");
    // A second may begin before the first line and end behind the last one.
    assert!(lines <= 6 * (LINES_PER_S as usize + 1), "{lines} lines");
    assert!(missing > 200, "it was no flood: {missing}");
}

/// The helper of a user is there before a request needs it: its start would take longer than the library waits.
#[test]
fn a_connection_starts_the_helper() {
    let Some(running) = scene("a_connection_starts_the_helper") else {
        return;
    };
    let mut a = Actor::start_as(&running.path, CAROL);
    assert_eq!(stage::helper_of(std::process::id(), CAROL), None);
    assert_eq!(a.ask("idle 1"), "done");
    stage::wait_for("a helper", || {
        stage::helper_of(std::process::id(), CAROL).is_some()
    });
}

/// The helper of a user, which is a child of this process.
fn helper_of(uid: u32) -> Pid {
    stage::helper_of(std::process::id(), uid).expect("a helper")
}

/// As many users as it takes hold as many idle connections as each may: another user is served all the same.
#[test]
fn idle_connections_lock_nobody_out() {
    let Some(running) = scene("idle_connections_lock_nobody_out") else {
        return;
    };
    let mut idlers = Vec::new();
    for uid in 64_020..64_029 {
        let mut idler = Actor::start_as(&running.path, uid);
        assert_eq!(idler.ask("idle 32"), "done");
        idlers.push(idler);
    }
    let mut a = Actor::start_as(&running.path, ALICE);
    let mut b = Actor::start_as(&running.path, ALICE);
    stage::connect(&mut a, &mut b);
    assert!(a.ask("register").parse::<u16>().is_ok());
}

/// A program that changed its ids without an exec, and so is not dumpable, is served by root's broker; a set-user-ID
/// program is not.
#[test]
fn who_is_not_dumpable_is_served_if_it_is_plain() {
    let Some(running) = scene("who_is_not_dumpable_is_served_if_it_is_plain") else {
        return;
    };
    let mut a = Actor::start_as(&running.path, ALICE);
    let mut b = Actor::start_as(&running.path, ALICE);
    stage::connect(&mut a, &mut b);
    assert_eq!(a.ask("undumpable"), "done");
    assert!(a.ask("register").parse::<u16>().is_ok());
    b.exec(&raised(&running, MALLORY));
    let mut c = Actor::start_as(&running.path, ALICE);
    stage::connect(&mut c, &mut b);
    assert_eq!(b.ask("register"), "not-rescuable");
}

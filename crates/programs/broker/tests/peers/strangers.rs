//! What an ordinary user tries against root's broker: to write with other ids than his own, to get into connections that
//! are not his, and to keep others from being served.

use std::mem::MaybeUninit;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{Pid, Signal};

use crate::actor::Actor;
use crate::stage::{self, Running};

const MALLORY: u32 = 64_011;
const ALICE: u32 = 64_012;
const BOB: u32 = 64_013;
/// Users whose helpers a test looks for: no other test has processes of them.
const CAROL: u32 = 64_014;
const MARVIN: u32 = 64_015;

/// A broker that users other than root reach; `None`, said aloud, where this process cannot act for them.
fn scene(name: &str) -> Option<Running> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: {name}: only root can act as other users");
        return None;
    }
    if !stage::others_reach_us() {
        println!("skipped: {name}: others than root cannot reach this program");
        return None;
    }
    Some(Running::start())
}

/// Two joined processes of one user.
fn joined_as(running: &Running, uid: u32) -> (Actor, Actor) {
    let mut a = Actor::start_as(&running.path, uid);
    let mut b = Actor::start_as(&running.path, uid);
    stage::connect(&mut a, &mut b);
    let slots = [a.number("register"), b.number("register")];
    running.slots.set(slots);
    assert!(stage::pair(&mut a, &mut b, slots[1]).contains(' '));
    assert!(stage::pair(&mut b, &mut a, slots[0]).contains(' '));
    stage::join(&mut a, &mut b);
    (a, b)
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

/// A process that executes another program is not registered any more: nothing is written to the connection that the new
/// program has, and nobody gets memory with it; if the program is set-user-ID, too.
#[test]
fn an_exec_ends_the_registration() {
    let Some(running) = scene("an_exec_ends_the_registration") else {
        return;
    };
    let plain = std::env::current_exe().expect("own path");
    let raised = running.directory().join("raised");
    std::fs::copy(&plain, &raised).expect("a copy");
    chown(&raised, Some(ALICE), Some(ALICE)).expect("an owner");
    std::fs::set_permissions(&raised, PermissionsExt::from_mode(0o6755)).expect("mode");
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

/// Everybody shares. A third process names itself as the other end of a connection between two others: it gets no memory
/// with either of them, and a channel of it that pretends to be that connection is not proved.
#[test]
fn nobody_joins_the_connection_of_others() {
    let Some(running) = scene("nobody_joins_the_connection_of_others") else {
        return;
    };
    let mut a = Actor::start_as(&running.path, ALICE);
    let mut b = Actor::start_as(&running.path, BOB);
    let mut c = Actor::start_as(&running.path, MALLORY);
    stage::connect(&mut a, &mut c);
    let slot_c = c.number("register 1");
    let slot_a = a.number("register 1");
    assert!(
        stage::pair(&mut a, &mut c, slot_c).contains(' '),
        "their own connection"
    );
    assert!(stage::pair(&mut c, &mut a, slot_a).contains(' '));
    let chan = a.ask("allocate");
    // From now on the first one means its connection with the second one.
    stage::connect(&mut a, &mut b);
    let slot_b = b.number("register 1");
    let [cookie_a, cookie_c] = [a.ask("cookie"), c.ask("cookie")];
    assert_eq!(a.ask(&format!("offer {chan} {cookie_c}")), "done");
    assert_eq!(c.ask(&format!("mimic {chan} {cookie_a}")), "done");
    assert_eq!(a.ask("prove"), "mismatch");
    assert_eq!(stage::pair(&mut a, &mut c, slot_c), "mismatch");
    assert_eq!(stage::pair(&mut c, &mut b, slot_b), "mismatch");
    assert!(
        stage::pair(&mut a, &mut b, slot_b).contains(' '),
        "the real end"
    );
}

/// The user of a helper stops it, as a last close that waits would: his own requests are refused until it is replaced,
/// and nobody else waits.
#[test]
fn a_helper_that_hangs_is_its_users_own_loss() {
    let Some(running) = scene("a_helper_that_hangs_is_its_users_own_loss") else {
        return;
    };
    let (_first, _second) = joined_as(&running, ALICE);
    let mut a = Actor::start_as(&running.path, MARVIN);
    let mut b = Actor::start_as(&running.path, MARVIN);
    stage::connect(&mut a, &mut b);
    assert!(a.ask("register").parse::<u16>().is_ok());
    let helper = helper_of(MARVIN);
    rustix::process::kill_process(helper, Signal::STOP).expect("stopped");
    b.tell("register");
    let mut served = 0;
    for _ in 0..10 {
        let mut other = Actor::start_as(&running.path, ALICE);
        let mut peer = Actor::start_as(&running.path, ALICE);
        stage::connect(&mut other, &mut peer);
        // The library waits for an answer for 20 ms.
        served += u32::from(other.ask("register-at-once").parse::<u16>().is_ok());
    }
    // All ten on an idle machine. Behind a broker that waits, none.
    assert!(served > 0, "{served} of 10 were served in time");
    assert!(
        b.answer().parse::<u16>().is_ok(),
        "served by the next helper"
    );
    assert_ne!(helper_of(MARVIN), helper);
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
    let raised: PathBuf = running.directory().join("raised");
    std::fs::copy(std::env::current_exe().expect("own path"), &raised).expect("a copy");
    chown(&raised, Some(MALLORY), Some(MALLORY)).expect("an owner");
    std::fs::set_permissions(&raised, PermissionsExt::from_mode(0o6755)).expect("mode");
    b.exec(&raised);
    let mut c = Actor::start_as(&running.path, ALICE);
    stage::connect(&mut c, &mut b);
    assert_eq!(b.ask("register"), "not-rescuable");
}

//! What `vnic show` tells of a machine's link, from the first word of its front end to the last, and how a machine loses it.

#[path = "../../crates/io/attach/tests/vhost_drive/mod.rs"]
mod vhost_drive;
#[path = "../../crates/io/attach/tests/vhost_front/mod.rs"]
mod vhost_front;

mod machine;

use machine::Machine;
use vhost_drive::LAYOUTS;
use windlass_attach::vhost_user::features::{MQ, MRG_RXBUF};
use windlass_tests::{Daemon, Lab, Wire, frame, mac, until};

const A: &str = "02:00:00:00:00:0a";
const MACHINE: &str = "02:00:00:00:00:0c";

/// Waits until the VNIC is in this state for this reason, with so many pairs of queues (none: it is not connected).
fn shown(daemon: &Daemon, state: &str, reason: &str, pairs: Option<&str>) {
    until(&format!("{state}, {reason:?}, {pairs:?}"), || {
        let view = daemon.show("vnic", "c0");
        view["state"] == state
            && view["reason"].as_str().unwrap_or_default() == reason
            && view["details"]["queue-pairs"].as_str() == pairs
            && view["details"]["connected-since"].is_string() == pairs.is_some()
    });
}

/// Each step of a connection is told: nobody, connected, memory, queues enabled one pair after the other, disabled again,
/// gone. While there is no link, frames for the machine are dropped and counted as such. The machine's side of the link
/// falls with the connection: when its VNIC is deleted, and when the daemon ends.
#[test]
fn the_link_is_told_and_falls_with_the_connection() {
    let Some(lab) = Lab::start("the_link_is_told_and_falls_with_the_connection") else {
        return;
    };
    lab.namespace("a");
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.tap(&lab, "a0", "a", "", &format!("--mac {A}"));
    let wire = Wire::open(&lab, "a", "eth0");
    let socket = lab.directory().join("machine");
    let create = format!(
        "vnic create c0 --bridge br0 --mac {MACHINE} --attach vhost-user,socket={},role=server,queues=2",
        socket.display()
    );
    const NOBODY: &str = "waiting for a front end";
    const IDLE: &str = "connected; the guest has not started its queues";
    for layout in LAYOUTS {
        daemon.must(&create);
        shown(&daemon, "waiting", NOBODY, None);
        let features = MQ | MRG_RXBUF;
        let mut machine = Machine::connect(&socket, layout, features, 2);
        let begun = "connected; the front end has not begun";
        shown(&daemon, "waiting", begun, Some("0"));
        machine.negotiate(features);
        shown(&daemon, "waiting", IDLE, Some("0"));
        let before = daemon.drops("c0", "peer-down");
        wire.send(&frame(mac(MACHINE), mac(A), &[], "too early"));
        until("it is dropped", || daemon.drops("c0", "peer-down") > before);

        machine.begin();
        shown(&daemon, "up", "", Some("2"));
        assert_eq!(daemon.show("vnic", "c0")["rings_now"], 2);
        for number in [2, 3] {
            machine.queues[number].enable(&machine.front, false);
        }
        shown(&daemon, "up", "", Some("1"));
        wire.send(&frame(mac(MACHINE), mac(A), &[], "in time"));
        until("it comes", || !machine.received().is_empty());
        for number in [0, 1] {
            machine.queues[number].enable(&machine.front, false);
        }
        shown(&daemon, "waiting", IDLE, Some("0"));
        for queue in &machine.queues {
            queue.enable(&machine.front, true);
        }
        shown(&daemon, "up", "", Some("2"));

        drop(machine);
        const GONE: &str = "the peer closed the connection";
        shown(&daemon, "waiting", GONE, None);
        let told = daemon.show("vnic", "c0");
        assert_eq!(told["details"]["last-error"], GONE, "{told}");

        let machine = Machine::start(&socket, layout, 0);
        shown(&daemon, "up", "", Some("1"));
        daemon.must("vnic delete c0");
        until("the machine's link falls", || machine.front.is_closed());
    }
    daemon.must(&create);
    let machine = Machine::start(&socket, LAYOUTS[0], 0);
    daemon.wait_for_state("vnic", "c0", "up");
    assert_eq!(daemon.terminate(), 0);
    until("the machine's link falls", || machine.front.is_closed());
}

/// A socket belongs to whom the names of a user and a group say, has the mode that was asked for, and the configuration
/// has numbers; a name that nobody has is refused.
#[test]
fn a_socket_is_given_by_name() {
    use std::os::unix::fs::MetadataExt;
    let Some(lab) = Lab::start("a_socket_is_given_by_name") else {
        return;
    };
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    let socket = lab.directory().join("machine");
    let attach = |owner: &str| {
        let path = socket.display();
        format!("--attach vhost-user,socket={path},role=server,mode=0660,owner={owner}")
    };
    let passwd = std::fs::read_to_string("/etc/passwd").expect("users");
    let fields: Vec<&str> = passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields[0] == "nobody")
        .expect("the user nobody");
    let (uid, gid) = (fields[2], fields[3]);
    daemon.must(&format!(
        "vnic create c0 --bridge br0 {}",
        attach("nobody:root")
    ));
    daemon.wait_for_state("vnic", "c0", "waiting");
    let view = daemon.show("vnic", "c0");
    assert_eq!(view["attach"]["owner"], format!("{uid}:0"), "{view}");
    let made = std::fs::metadata(&socket).expect("a socket");
    assert_eq!(
        (
            made.uid().to_string().as_str(),
            made.gid(),
            made.mode() & 0o777
        ),
        (uid, 0, 0o660)
    );
    daemon.must(&format!("vnic set c0 {}", attach("nobody")));
    let view = daemon.show("vnic", "c0");
    assert_eq!(view["attach"]["owner"], format!("{uid}:{gid}"), "{view}");
    let why = daemon.refuses(
        2,
        &format!("vnic set c0 {}", attach("nobody:no-such-group")),
    );
    assert!(why.contains("no group \"no-such-group\""), "{why}");
}

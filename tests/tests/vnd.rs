//! vnd devices: programs open them by name, and keep them without one.

mod peer;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use peer::Peer;
use serde_json::{Value, json};
use windlass_tests::{Daemon, Lab, frame, mac, until};

const ONE: &str = "02:00:00:00:00:01";
const TWO: &str = "02:00:00:00:00:02";

fn socket(daemon: &Daemon, device: &str) -> PathBuf {
    daemon.runtime_dir().join("vnd").join(device)
}

/// A daemon with two VNICs on a bridge, to which nobody is attached.
fn daemon(lab: &Lab) -> Daemon {
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    daemon.must(&format!("vnic create v0 --bridge br0 --mac {ONE}"));
    daemon.must(&format!("vnic create v1 --bridge br0 --mac {TWO}"));
    daemon
}

/// The devices, as `vnd list` gives them: name, VNIC, zone, state.
fn listed(daemon: &Daemon) -> String {
    daemon.must("vnd list -p -o name,datalink,zonename,state")
}

/// A frame goes from one device to the other, whose address this is, and is the same there.
fn passes(from: &mut Peer, to: &mut Peer, address: &str, text: &str) {
    let source = if address == ONE { TWO } else { ONE };
    let sent = frame(mac(address), mac(source), &[], text);
    from.give(&sent);
    until("the frame has come", || {
        to.take(0);
        to.waiting.pop_front().is_some_and(|frame| frame == sent)
    });
}

/// Two programs open devices by their sockets and exchange frames. A device keeps its program when it is renamed, and when it is
/// destroyed: then no name leads to it, it is listed as unknown, and its VNIC is free once the program has left.
#[test]
fn devices_carry_frames_and_outlive_their_names() {
    let Some(lab) = Lab::start("devices_carry_frames_and_outlive_their_names") else {
        return;
    };
    let daemon = daemon(&lab);
    daemon.must("vnd create v0");
    daemon.must("vnd create dev1 -l v1");
    assert_eq!(
        listed(&daemon),
        "dev1:v1:global:waiting\nv0:v0:global:waiting\n"
    );
    let mut one = Peer::connect(socket(&daemon, "global/v0"), 1);
    let mut two = Peer::connect(socket(&daemon, "global/dev1"), 1);
    daemon.wait_for_state("vnic", "v1", "up");
    passes(&mut one, &mut two, TWO, "a");
    passes(&mut two, &mut one, ONE, "b");

    daemon.must("vnd rename v0 renamed");
    assert!(!socket(&daemon, "global/v0").exists());
    passes(&mut one, &mut two, TWO, "c");
    until("the new path is there", || {
        socket(&daemon, "global/renamed").exists()
    });

    daemon.must("vnd destroy dev1");
    assert!(!socket(&daemon, "global/dev1").exists());
    assert_eq!(
        listed(&daemon),
        "renamed:v0:global:up\n<unknown>:v1:global:up\n"
    );
    passes(&mut one, &mut two, TWO, "d");
    passes(&mut two, &mut one, ONE, "e");
    let error = daemon.refuses(1, "vnd create dev1 -l v1");
    assert!(error.contains("destroyed and is open"), "{error}");
    daemon.refuses(1, "vnic set v1 --attach tap");
    assert!(!one.has_ended() && !two.has_ended());
    drop(two);
    until("the VNIC is free", || {
        daemon.try_do("vnd create dev1 -l v1").code == 0
    });
    let mut two = Peer::connect(socket(&daemon, "global/dev1"), 1);
    passes(&mut one, &mut two, TWO, "f");
    assert_eq!(listed(&daemon), "dev1:v1:global:up\nrenamed:v0:global:up\n");
}

/// A device is in the document: a daemon that starts again has it, its properties and its socket.
#[test]
fn devices_come_back() {
    let Some(lab) = Lab::start("devices_come_back") else {
        return;
    };
    let mut daemon = daemon(&lab);
    daemon.must("vnd create v0 --set rxbuf=2M");
    let view = |daemon: &Daemon| daemon.json("vnd list")[0].take();
    let before = view(&daemon);
    assert_eq!(before["rxbuf"], 2 << 20);
    assert_eq!(before["rx_slots"], 1 << 14);
    assert_eq!(before["txbuf"], 65_536);
    assert_eq!(before["maxtu"], 1518);
    let path: PathBuf = before["socket"].as_str().expect("a path").into();
    assert_eq!(
        path,
        socket(&daemon, "global/v0")
            .canonicalize()
            .expect("it is there")
    );
    let meta = path.metadata().expect("it is there");
    assert_eq!((meta.mode() & 0o777, meta.uid()), (0o600, 0));
    daemon.kill();
    daemon.start_again();
    let _peer = Peer::connect(path, 1);
    daemon.wait_for_state("vnic", "v0", "up");
    let exported: Value = serde_json::from_str(&daemon.must("export")).expect("a document");
    let wanted =
        json!([{"name": "v0", "zone": "global", "vnic": "v0", "properties": {"rxbuf": 2 << 20}}]);
    assert_eq!(exported["vnds"], wanted);
}

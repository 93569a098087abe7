//! The data plane under changes that fail: real workers and tables over a host of the test's own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod daemon;
mod lab;

use std::sync::atomic::Ordering;
use std::time::Duration;

use daemon::{Daemon, options};
use lab::{Lab, until};
use serde_json::{Value, json};
use windlassd::plane;

fn start(directory: &std::path::Path, lab: &Lab) -> Daemon {
    let options = options(directory);
    let host = Box::new(lab.clone());
    Daemon::start_over(&options, |sink| plane::build_on(host, &options, sink))
}

/// While a worker is late, however long, the endpoint of a member that goes down is not told that no worker has its rings:
/// it would answer its guest, and the worker would serve the ring after that. It is told once the worker has let go.
#[test]
fn a_late_worker_keeps_its_rings() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    daemon.must("POST", "/v1/bridges", Some(json!({"name": "br0"})));
    for name in ["v0", "v1"] {
        let vnic = json!({"name": name, "bridge": "br0"});
        daemon.must("POST", "/v1/vnics", Some(vnic));
    }
    let (late, leaving) = (lab.guest("v0"), lab.guest("v1"));
    let hold = late.hold();
    leaving.leave();
    std::thread::sleep(Duration::from_millis(5500));
    assert_eq!(leaving.rings.load(Ordering::Acquire), 1);
    assert!(
        leaving.detached.lock().unwrap().is_empty(),
        "the worker has the ring"
    );
    drop(hold);
    until("the worker has let go", || {
        leaving.rings.load(Ordering::Acquire) == 0
    });
    until("the endpoint knows", || {
        *leaving.detached.lock().unwrap() == [0]
    });
    assert_eq!(lab.guest("v0").detached.lock().unwrap().len(), 0);
}

/// The address of a member.
fn mac(number: usize) -> String {
    format!("02:00:00:00:{:02x}:{:02x}", number >> 8, number & 0xff)
}

/// A frame from one member to another.
fn frame(to: u8, from: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5];
    frame.resize(60, 0);
    frame
}

/// A bridge with VNICs `v0` and so on, whose addresses are [`mac`].
fn bridge_of(daemon: &Daemon, members: usize, properties: &Value) {
    let bridge = json!({"name": "br0", "properties": properties});
    daemon.must("POST", "/v1/bridges", Some(bridge));
    for number in 0..members {
        let vnic = json!({"name": format!("v{number}"), "bridge": "br0", "mac": mac(number)});
        daemon.must("POST", "/v1/vnics", Some(vnic));
    }
}

/// Sends 40 frames from `v0` to `v1`, which gets them all, and `v2` none.
fn nobody_else_sees(lab: &Lab) {
    let guests = ["v0", "v1", "v2"].map(|name| lab.guest(name));
    for guest in &guests {
        guest.take_got();
    }
    guests[0].send((0..40).map(|_| frame(1, 0)));
    until("40 frames are there", || {
        guests[0].has_sent() && guests[1].got() == 40
    });
    assert_eq!(guests[2].got(), 0, "frames that a bystander sees");
}

/// Adds static entries to a bridge.
fn add_entries(daemon: &Daemon, count: usize) {
    for number in 0..count {
        let entry = json!({"mac": mac(0x1000 + number), "member": "v2"});
        daemon.must("POST", "/v1/bridges/br0/fdb", Some(entry));
    }
}

/// A table that would be too small for the fixed entries is refused, and the one that is there goes on: a bystander sees
/// none of the frames between two others.
#[test]
fn a_refused_size_changes_no_table() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    bridge_of(&daemon, 3, &json!({}));
    add_entries(&daemon, 20);
    let before = daemon.must("GET", "/v1/bridges/br0/fdb", None);
    let patch = json!({"properties": {"addresses-max": 16}});
    daemon.refused("PATCH", "/v1/bridges/br0", Some(patch), "invalid");
    nobody_else_sees(&lab);
    assert_eq!(daemon.must("GET", "/v1/bridges/br0/fdb", None), before);
}

/// A change of filtering that is refused leaves every entry in its VLAN.
#[test]
fn a_refused_filtering_changes_no_vlan() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    bridge_of(&daemon, 20, &json!({"vlan-filtering": true}));
    let before = daemon.must("GET", "/v1/bridges/br0/fdb", None);
    assert_eq!(before["entries"][0]["vlan"], 1);
    let patch = json!({"properties": {"addresses-max": 16, "vlan-filtering": false}});
    let error = daemon.refused("PATCH", "/v1/bridges/br0", Some(patch), "invalid");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("no room"), "{message}");
    assert_eq!(daemon.must("GET", "/v1/bridges/br0/fdb", None), before);
    nobody_else_sees(&lab);
}

/// A table that is replaced while its worker is late has a writer as soon as the worker is back: entries can be added, and
/// frames find them.
#[test]
fn a_table_always_has_a_writer() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    bridge_of(&daemon, 3, &json!({}));
    let hold = lab.guest("v0").hold();
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5500));
        drop(hold);
    });
    let patch = json!({"properties": {"addresses-max": 64}});
    daemon.ask("PATCH", "/v1/bridges/br0", Some(patch));
    release.join().unwrap();
    add_entries(&daemon, 4);
    let page = daemon.must("GET", "/v1/bridges/br0/fdb", None);
    assert_eq!(page["total"], 7, "{page}");
    nobody_else_sees(&lab);
}

/// A document is made as a whole: refused at any VNIC, nothing of it is there; then it is made, and frames pass.
#[test]
fn a_document_is_made_as_a_whole() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    let vnics: Vec<_> = (0..3)
        .map(|number| json!({"name": format!("v{number}"), "bridge": "br0", "mac": mac(number)}))
        .collect();
    let document = json!({"version": 1, "bridges": [{"name": "br0"}], "vnics": vnics});
    let before = daemon.must("GET", "/v1/document", None);
    for refused in 0..3 {
        lab.steps().taken.clear();
        lab.steps().refuse = Some(refused);
        daemon.refused("PUT", "/v1/document", Some(document.clone()), "host");
        assert_eq!(daemon.must("GET", "/v1/document", None), before);
        daemon.refused("GET", "/v1/bridges/br0/fdb", None, "not_found");
        assert_eq!(daemon.must("GET", "/v1/stats", None)["members"], json!([]));
    }
    lab.steps().refuse = None;
    daemon.must("PUT", "/v1/document", Some(document));
    nobody_else_sees(&lab);
    until("the frames are counted for the bridge", || {
        let stats = daemon.must("GET", "/v1/stats", None);
        let stats: windlass_api::Stats = serde_json::from_value(stats).unwrap();
        stats.bridges[0].traffic.rx_frames == 40
    });
}

/// The largest document that people apply in one go: 500 VNICs come, and go again, by `PUT /v1/document`. The three that
/// stay go on forwarding.
#[test]
fn five_hundred_come_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    bridge_of(&daemon, 3, &json!({}));
    let few = daemon.must("GET", "/v1/document", None);
    let mut many = few.clone();
    let vnics = many["vnics"].as_array_mut().unwrap();
    vnics.extend(
        (3..503).map(
            |number| json!({"name": format!("v{number}"), "bridge": "br0", "mac": mac(number)}),
        ),
    );
    daemon.must("PUT", "/v1/document", Some(many));
    let page = daemon.must("GET", "/v1/bridges/br0/fdb?limit=1", None);
    assert_eq!(page["total"], 503);
    let gone: Vec<_> = (3..503).map(|n| lab.guest(&format!("v{n}"))).collect();
    daemon.must("PUT", "/v1/document", Some(few.clone()));
    assert_eq!(daemon.must("GET", "/v1/document", None), few);
    let page = daemon.must("GET", "/v1/bridges/br0/fdb", None);
    assert_eq!(page["total"], 3);
    for guest in &gone {
        assert_eq!(guest.rings.load(Ordering::Acquire), 0, "rings of nobody");
        assert_eq!(guest.deleted.load(Ordering::Acquire), 1);
    }
    nobody_else_sees(&lab);
}

/// While a worker is late, a VNIC that it serves is not deleted: that is refused, its endpoint stays, and so does its entry
/// in the API. Once the worker is back, the VNIC is up again, gets frames, and can be deleted.
#[test]
fn a_late_worker_keeps_its_members() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    bridge_of(&daemon, 3, &json!({}));
    let before = daemon.must("GET", "/v1/document", None);
    let (late, kept) = (lab.guest("v2"), lab.guest("v1"));
    let hold = late.hold();
    daemon.refused("DELETE", "/v1/vnics/v1", None, "host");
    assert_eq!(daemon.must("GET", "/v1/document", None), before);
    assert_eq!(kept.deleted.load(Ordering::Acquire), 0, "it may be used");
    drop(hold);
    until("it is up again", || {
        daemon.must("GET", "/v1/vnics/v1", None)["state"] == "up"
    });
    nobody_else_sees(&lab);
    daemon.must("DELETE", "/v1/vnics/v1", None);
    assert_eq!(kept.deleted.load(Ordering::Acquire), 1);
}

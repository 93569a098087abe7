//! What stays on the host in shared memory when daemons are killed.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde_json::Value;
use windlass_tests::{Daemon, Lab, until, until_some};

/// The files in which a daemon keeps how far guests' rings are: in its runtime directory, or in a directory of its own.
fn ring_progress(daemon: &Daemon) -> BTreeSet<PathBuf> {
    let state = daemon.directory().join("state");
    let state = state.canonicalize().expect("a directory");
    let of_ours = |path: &PathBuf| fs::read_link(path.join("state")).is_ok_and(|of| of == state);
    let shared = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let own = shared.map(|entry| entry.path()).find(of_ours);
    let places = [Some(daemon.runtime_dir()), own].into_iter().flatten();
    let files = places.flat_map(|place| fs::read_dir(place.join("rings")));
    files.flatten().flatten().map(|file| file.path()).collect()
}

/// Takes a VNIC out of a daemon's document, while the daemon does not run.
fn forget(daemon: &Daemon, vnic: &str) {
    let path = daemon.directory().join("state/document.json");
    let text = fs::read_to_string(&path).expect("a document");
    let mut document: Value = serde_json::from_str(&text).expect("JSON");
    let vnics = document["document"]["vnics"]
        .as_array_mut()
        .expect("a list");
    vnics.retain(|known| known["name"] != vnic);
    fs::write(&path, document.to_string()).expect("written");
}

/// A daemon keeps one file for each guest that has come, through kills, and none of a VNIC that was deleted, or that the
/// document has no more after a kill.
#[test]
fn kills_leave_one_file_a_guest() {
    let Some(lab) = Lab::start("kills_leave_one_file_a_guest") else {
        return;
    };
    let mut daemon = lab.daemon();
    let sockets = ["v0", "v1"].map(|name| daemon.runtime_dir().join(format!("{name}.sock")));
    daemon.must("bridge create br0");
    for (number, socket) in sockets.iter().enumerate() {
        daemon.must(&format!(
            "vnic create v{number} --bridge br0 --attach vhost-user,role=server,socket={}",
            socket.display()
        ));
    }
    assert_eq!(ring_progress(&daemon), BTreeSet::new(), "no guest has come");
    let come = |daemon: &Daemon| {
        let connect = |socket| until_some("a guest connects", || UnixStream::connect(socket).ok());
        let _guests = sockets.each_ref().map(connect);
        until("both have come", || ring_progress(daemon).len() >= 2);
        ring_progress(daemon)
    };
    let both = come(&daemon);
    assert_eq!(both.len(), 2, "{both:?}");
    for _ in 0..2 {
        daemon.kill();
        daemon.start_again();
        assert_eq!(come(&daemon), both);
    }
    daemon.kill();
    forget(&daemon, "v1");
    daemon.start_again();
    let left = ring_progress(&daemon);
    let names: Vec<_> = left.iter().filter_map(|file| file.file_name()).collect();
    assert_eq!(names, ["v0"]);
    daemon.must("vnic delete v0");
    assert_eq!(ring_progress(&daemon), BTreeSet::new());
}

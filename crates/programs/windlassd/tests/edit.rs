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
use serde_json::json;
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

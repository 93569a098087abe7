//! One user reaches each limit and is refused, with the limit, its value and the user named; another user goes on.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod daemon;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use daemon::{Daemon, ask_on, connect_as, options};
use serde_json::{Value, json};
use windlass_api::{Document, ErrorBody, ErrorCode};
use windlassd::authority::Peer;
use windlassd::shares::Share;

const GREEDY: u32 = 1001;
const OTHER: u32 = 1002;

fn tenant(uid: u32) -> Peer {
    Peer {
        uid,
        gid: uid,
        operator: false,
    }
}

/// A daemon with a zone for each of the two, "greedy" and "other".
fn daemon(directory: &Path, share: Share, max: u32) -> Daemon {
    let mut options = options(directory);
    options.limits.per_user.set(share, max);
    let daemon = Daemon::start(&options, None);
    let zone = |name, uid: u32| json!({"name": name, "owner_uid": uid, "owner_gid": uid, "bridges": ["br0"]});
    let zones = [zone("greedy", GREEDY), zone("other", OTHER)];
    let document = json!({"version": 1, "zones": zones, "bridges": [{"name": "br0"}]});
    daemon.must("PUT", "/v1/document", Some(document));
    daemon
}

/// The row of a limit as an operator sees it, as what is used and what is allowed.
fn row(daemon: &Daemon, uid: u32, share: Share) -> Option<(u64, u64)> {
    let shown = daemon.must("GET", "/v1/daemon", None);
    let mut rows = shown["limits"].as_array().unwrap().iter();
    let row = rows.find(|row| row["uid"] == uid && row["limit"] == share.option())?;
    Some((row["used"].as_u64()?, row["max"].as_u64()?))
}

fn names(message: &str, share: Share, uid: u32, max: u32) {
    for part in [
        share.option().to_owned(),
        format!("of {max} "),
        format!("user {uid} "),
    ] {
        assert!(message.contains(&part), "{message}");
    }
}

fn is_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: {test}: only root can connect as others");
    }
    is_root
}

fn add(daemon: &Daemon, peer: Peer, name: &str, zone: &str) -> Result<(), ErrorBody> {
    let memif =
        json!({"kind": "memif", "socket": format!("{name}.sock"), "role": "server", "rings": 1});
    let vnic = json!({"name": name, "zone": zone, "bridge": "br0", "attach": memif});
    let vnic = serde_json::from_value(vnic).unwrap();
    let added = daemon.change(peer, move |document: &mut Document| {
        document.vnics.push(vnic);
        Ok(())
    });
    added.map(drop)
}

fn configured(share: Share, max: u32, used: u64) {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path(), share, max);
    add(&daemon, tenant(GREEDY), "v0", "greedy").unwrap();
    add(&daemon, tenant(GREEDY), "v1", "greedy").unwrap();
    let refused = add(&daemon, tenant(GREEDY), "v2", "greedy").unwrap_err();
    names(&refused.message, share, GREEDY, max);
    assert_eq!(row(&daemon, GREEDY, share), Some((used, u64::from(max))));
    assert_eq!(row(&daemon, OTHER, share), None);
    add(&daemon, tenant(OTHER), "w0", "other").unwrap();
    add(&daemon, Peer::daemon(), "v2", "greedy").unwrap();
}

/// VNICs.
#[test]
fn of_vnics() {
    configured(Share::Vnics, 2, 2);
}

/// Descriptors: a memif with a ring takes 12.
#[test]
fn of_descriptors() {
    configured(Share::Descriptors, 35, 24);
}

fn add_flow(daemon: &Daemon, peer: Peer, name: &str, vnic: &str) -> Result<(), ErrorBody> {
    let port = name.len();
    let attributes = format!("transport=tcp,local_port={port}");
    let flow = json!({"name": name, "vnic": vnic, "attributes": attributes});
    let flow = serde_json::from_value(flow).unwrap();
    let added = daemon.change(peer, move |document: &mut Document| {
        document.flows.push(flow);
        Ok(())
    });
    added.map(drop)
}

/// Flows, also of several VNICs together; the owner of a zone makes and removes those of its own VNICs, and nobody else's.
#[test]
fn of_flows() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path(), Share::Flows, 2);
    for (uid, vnic, zone) in [
        (GREEDY, "v0", "greedy"),
        (GREEDY, "v1", "greedy"),
        (OTHER, "w0", "other"),
    ] {
        add(&daemon, tenant(uid), vnic, zone).unwrap();
    }
    add_flow(&daemon, tenant(GREEDY), "f", "v0").unwrap();
    add_flow(&daemon, tenant(GREEDY), "ff", "v1").unwrap();
    let refused = add_flow(&daemon, tenant(GREEDY), "fff", "v1").unwrap_err();
    names(&refused.message, Share::Flows, GREEDY, 2);
    assert_eq!(row(&daemon, GREEDY, Share::Flows), Some((2, 2)));
    let forbidden = add_flow(&daemon, tenant(OTHER), "ffff", "v0").unwrap_err();
    assert_eq!(forbidden.code, ErrorCode::Forbidden);
    let taken = daemon.change(tenant(OTHER), |document: &mut Document| {
        document.flows.clear();
        Ok(())
    });
    assert_eq!(taken.unwrap_err().code, ErrorCode::Forbidden);
    add_flow(&daemon, tenant(OTHER), "ffff", "w0").unwrap();
    add_flow(&daemon, Peer::daemon(), "fff", "v1").unwrap();
    let removed = daemon.change(tenant(GREEDY), |document: &mut Document| {
        document.flows.retain(|flow| flow.vnic != *"v1");
        Ok(())
    });
    removed.unwrap();
    assert_eq!(row(&daemon, GREEDY, Share::Flows), Some((1, 2)));
}

fn send(stream: &mut UnixStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: w\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn message(answer: (u16, Value), status: u16) -> String {
    assert_eq!(answer.0, status, "{}", answer.1);
    answer.1["message"].as_str().unwrap_or_default().to_owned()
}

/// Monitors, until one of them is closed.
#[test]
fn of_monitors() {
    if !is_root("of_monitors") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path(), Share::Monitors, 2);
    let monitor = |uid| {
        let mut stream = connect_as(uid, &daemon.socket);
        send(&mut stream, "/v1/monitor");
        let mut line = String::new();
        let mut reader = BufReader::new(stream);
        reader.read_line(&mut line).unwrap();
        assert!(line.contains(" 200 "), "{line}");
        reader
    };
    let mut held = vec![monitor(GREEDY), monitor(GREEDY)];
    let refused = ask_on(connect_as(GREEDY, &daemon.socket), "GET", "/v1/monitor", "");
    names(&message(refused, 503), Share::Monitors, GREEDY, 2);
    assert_eq!(row(&daemon, GREEDY, Share::Monitors), Some((2, 2)));
    drop(monitor(OTHER));
    held.pop();
    wait_for("the closed one counts no more", || {
        row(&daemon, GREEDY, Share::Monitors) == Some((1, 2))
    });
    drop(monitor(GREEDY));
}

/// Answers that nobody reads; monitors are counted by themselves.
#[test]
fn of_answers() {
    if !is_root("of_answers") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path(), Share::Answers, 2);
    // Their list is more than a socket holds.
    let added = daemon.change(Peer::daemon(), |document: &mut Document| {
        let vnic = |n| json!({"name": format!("v{n}"), "zone": "greedy", "bridge": "br0"});
        let vnics = (0..1000).map(|n| serde_json::from_value(vnic(n)).unwrap());
        document.vnics.extend(vnics);
        Ok(())
    });
    added.unwrap();
    let unread = || {
        let mut stream = connect_as(GREEDY, &daemon.socket);
        send(&mut stream, "/v1/vnics");
        stream
    };
    let held = [unread(), unread()];
    let both = || row(&daemon, GREEDY, Share::Answers) == Some((2, 2));
    wait_for("both wait for their reader", || (0..20).all(|_| both()));
    let ask = |uid| ask_on(connect_as(uid, &daemon.socket), "GET", "/v1/vnics", "");
    names(&message(ask(GREEDY), 503), Share::Answers, GREEDY, 2);
    message(ask(OTHER), 200);
    drop(held);
    wait_for("what is closed counts no more", || {
        row(&daemon, GREEDY, Share::Answers).is_none()
    });
    message(ask(GREEDY), 200);
}

/// A user is shown all of its own limits, and nobody else's.
#[test]
fn a_user_sees_its_own() {
    if !is_root("a_user_sees_its_own") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path(), Share::Vnics, 7);
    add(&daemon, tenant(OTHER), "w0", "other").unwrap();
    let shown = ask_on(connect_as(GREEDY, &daemon.socket), "GET", "/v1/daemon", "");
    let rows = shown.1["limits"].as_array().unwrap();
    assert_eq!(rows.len(), Share::ALL.len());
    assert!(rows.iter().all(|row| row["uid"] == GREEDY));
    let row =
        json!({"uid": GREEDY, "limit": "vnics-per-uid-max", "unit": "VNICs", "used": 0, "max": 7});
    assert!(rows.contains(&row), "{rows:?}");
}

/// A zone shows what its VNICs take, and the limits of its owner with what that has in all its zones.
#[test]
fn a_zone_shows_its_owners_limits() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path(), Share::Vnics, 7);
    let second =
        json!({"name": "second", "owner_uid": GREEDY, "owner_gid": GREEDY, "bridges": ["br0"]});
    daemon.must("POST", "/v1/zones", Some(second));
    add(&daemon, tenant(GREEDY), "v0", "greedy").unwrap();
    add(&daemon, tenant(GREEDY), "v1", "second").unwrap();
    add(&daemon, tenant(GREEDY), "v2", "second").unwrap();
    let shown = daemon.must("GET", "/v1/zones/second", None);
    assert_eq!(
        (&shown["vnics"], &shown["descriptors"]),
        (&json!(2), &json!(24))
    );
    let rows = shown["limits"].as_array().unwrap();
    assert_eq!(rows.len(), Share::ALL.len());
    let row =
        json!({"uid": GREEDY, "limit": "vnics-per-uid-max", "unit": "VNICs", "used": 3, "max": 7});
    assert!(rows.contains(&row), "{rows:?}");
}

/// A limit that is set anew holds from then on, for what is asked for then.
#[test]
fn a_limit_changes_at_run_time() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path(), Share::Vnics, 2);
    let per_user = daemon.limits.borrow().per_user;
    let allow = |max| {
        let mut per_user = per_user;
        per_user.set(Share::Vnics, max);
        let allowed = daemon.call(move |engine| {
            engine.allow(per_user);
            Ok(())
        });
        allowed.unwrap();
    };
    add(&daemon, tenant(GREEDY), "v0", "greedy").unwrap();
    allow(1);
    add(&daemon, tenant(GREEDY), "v1", "greedy").unwrap_err();
    allow(2);
    add(&daemon, tenant(GREEDY), "v1", "greedy").unwrap();
}

/// A limit that takes a restart is shown as it holds, whatever a reload has read.
#[test]
fn a_limit_that_takes_a_restart_stays() {
    for share in Share::FIXED {
        let directory = tempfile::tempdir().unwrap();
        let daemon = daemon(directory.path(), share, 7);
        let mut per_user = daemon.limits.borrow().per_user;
        per_user.set(share, 9);
        per_user.set(Share::Vnics, 3);
        let shown = daemon.call(move |engine| {
            engine.allow(per_user);
            Ok(engine.daemon_view(&tenant(GREEDY)).limits)
        });
        let shown = shown.unwrap();
        let max = |share: Share| {
            let mut rows = shown.iter();
            rows.find(|row| row.limit == share.option()).unwrap().max
        };
        assert_eq!((max(share), max(Share::Vnics)), (7, 3));
    }
}

/// What VNICs take counts for the owner that their zone has. A zone takes it along to another owner, as a whole; where that one
/// may not have as much, or the data plane refuses, nothing changes.
#[test]
fn a_zone_takes_its_vnics_along() {
    for (share, max, used) in [
        (Share::Vnics, 2, [2, 1]),
        (Share::Descriptors, 35, [24, 12]),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let daemon = daemon(directory.path(), share, max);
        add(&daemon, tenant(GREEDY), "v0", "greedy").unwrap();
        add(&daemon, tenant(GREEDY), "v1", "greedy").unwrap();
        add(&daemon, tenant(OTHER), "w0", "other").unwrap();
        let rows = || [GREEDY, OTHER].map(|uid| row(&daemon, uid, share).map(|row| row.0));
        let document = || daemon.must("GET", "/v1/document", None);
        let before = document();
        let is_as_before = || {
            assert_eq!(rows(), used.map(Some));
            assert_eq!(document(), before);
        };
        let give = json!({"owner_uid": OTHER, "owner_gid": OTHER});
        let patch = |code| daemon.refused("PATCH", "/v1/zones/greedy", Some(give.clone()), code);
        let refused = patch("invalid");
        names(refused["message"].as_str().unwrap(), share, OTHER, max);
        is_as_before();
        let mut next = before.clone();
        next["zones"][0]["owner_uid"] = json!(OTHER);
        daemon.refused("PUT", "/v1/document?dry_run=true", Some(next), "invalid");
        daemon.must("DELETE", "/v1/vnics/w0", None);
        daemon.memory.lock().unwrap().fail = Some("set_owner".into());
        patch("host");
        assert_eq!(rows(), [Some(used[0]), None]);
        daemon.must("PATCH", "/v1/zones/greedy", Some(give.clone()));
        assert_eq!(rows(), [None, Some(used[0])]);
        let refused = add(&daemon, tenant(GREEDY), "v2", "greedy").unwrap_err();
        assert_eq!(refused.code, ErrorCode::Forbidden);
        let refused = add(&daemon, tenant(OTHER), "v2", "greedy").unwrap_err();
        names(&refused.message, share, OTHER, max);
    }
}

/// Two owners can have each other's zones in one change, though neither could have both.
#[test]
fn owners_can_change_places() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path(), Share::Vnics, 2);
    for (name, zone) in [("v0", "greedy"), ("v1", "greedy"), ("w0", "other")] {
        add(&daemon, Peer::daemon(), name, zone).unwrap();
    }
    let changed = daemon.change(Peer::daemon(), |document: &mut Document| {
        for zone in &mut document.zones {
            zone.owner_uid = GREEDY + OTHER - zone.owner_uid;
        }
        Ok(())
    });
    changed.unwrap();
    let rows = [GREEDY, OTHER].map(|uid| row(&daemon, uid, Share::Vnics));
    assert_eq!(rows, [Some((1, 2)), Some((2, 2))]);
}

//! A zone with VNICs gets another owner.

mod client;

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use serde_json::Value;
use windlass_sys::unix::{SocketKind, connect};
use windlass_tests::{Daemon, Lab, as_user, until, until_some};

use client::Client;

const RED: u32 = 60_001;
const BLUE: u32 = 60_002;

fn connect_as(uid: u32, path: &Path, kind: SocketKind) -> Result<OwnedFd, Errno> {
    as_user(uid, || connect(path, kind))
}

/// What can be connected through, wherever the socket is moved and whoever has its directory.
fn path_of(file: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn is_closed(socket: &OwnedFd) -> bool {
    let mut room = [0; 4096];
    match rustix::io::read(socket, &mut room) {
        // A memif server has greeted.
        Ok(0) | Err(Errno::CONNRESET) => true,
        Ok(_) | Err(Errno::AGAIN) => false,
        Err(errno) => panic!("{errno}"),
    }
}

/// What the owner of a zone has of a limit.
fn used(daemon: &Daemon, zone: &str, limit: &str) -> u64 {
    let zone = daemon.show("zone", zone);
    let mut rows = zone["limits"].as_array().expect("limits").iter();
    let row: Option<&Value> = rows.find(|row| row["limit"] == limit);
    row.and_then(|row| row["used"].as_u64()).expect("a row")
}

const MAPPINGS: &str = "mappings-per-uid-max";
/// The least that it can be.
const MAPPINGS_MAX: u32 = 16;

/// A daemon whose users may have [`MAPPINGS_MAX`] mappings, in directories that they may enter.
fn daemon(lab: &Lab) -> Daemon {
    let config = lab.directory().join("windlass.toml");
    std::fs::write(&config, format!("{MAPPINGS} = {MAPPINGS_MAX}\n")).expect("a file");
    let config = config.to_str().expect("a path");
    let daemon = Daemon::start_with(lab, "host", 0, &["--config", config]);
    for path in [lab.directory(), daemon.directory()] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("opened");
    }
    daemon.must("bridge create br0");
    for (zone, uid) in [("red", RED), ("blue", BLUE)] {
        daemon.must(&format!(
            "zone create {zone} --owner {uid} --group {uid} --bridge br0"
        ));
    }
    daemon
}

fn vnic(daemon: &Daemon, name: &str, zone: &str, attach: &str) {
    daemon.must(&format!(
        "vnic create {name} --zone {zone} --bridge br0 --attach {attach},role=server"
    ));
}

const GIVE: &str = "zone set red --owner 60002 --group 60002";

/// Peers stay connected, and what they have mapped counts for the next owner, if that one may have as much.
#[test]
fn peers_of_a_zone_stay_with_its_next_owner() {
    let Some(lab) = Lab::start("peers_of_a_zone_stay_with_its_next_owner") else {
        return;
    };
    let daemon = daemon(&lab);
    for (short, address) in [("a", "10.0.0.1/24"), ("b", "10.0.0.2/24")] {
        lab.namespace(short);
        let words = "--zone red";
        daemon.tap(&lab, short, short, &format!(",address={address}"), words);
    }
    let zones = daemon.runtime_dir().join("zones");
    vnic(&daemon, "red0", "red", "memif,socket=m.sock");
    let mut peer = Client::start(zones.join("red/m.sock"), 0);
    until("the peer is connected", || peer.is_up());
    daemon.wait_for_state("vnic", "red0", "up");
    let mut others: Vec<_> = (0..MAPPINGS_MAX)
        .map(|id| {
            let attach = format!("memif,socket=m.sock,id={id}");
            vnic(&daemon, &format!("blue{id}"), "blue", &attach);
            Client::start(zones.join("blue/m.sock"), id)
        })
        .collect();
    until("the others are connected", || {
        others.iter_mut().all(Client::is_up)
    });
    let counts = || ["red", "blue"].map(|zone| used(&daemon, zone, MAPPINGS));
    assert_eq!(counts(), [1, 16]);
    let before = daemon.must("export");
    let why = daemon.refuses(1, GIVE);
    assert!(
        why.contains(MAPPINGS) && why.contains("user 60002 "),
        "{why}"
    );
    assert_eq!(daemon.must("export"), before);
    assert_eq!(counts(), [1, 16]);
    let directory = std::fs::metadata(zones.join("red")).expect("a directory");
    assert_eq!(directory.uid(), RED);

    daemon.must("vnic delete blue0");
    until("there is room", || counts() == [1, 15]);
    let lost = lab.lost_while("a", "b", "10.0.0.2", || {
        daemon.must(GIVE);
    });
    assert_eq!(lost, 0, "between TAPs of the zone");
    assert_eq!(counts(), [16, 16], "of one owner");
    assert!(peer.is_up(), "its peer stays connected");
    assert_eq!(daemon.show("vnic", "red0")["connects"], 1);
    let mut late = Client::start(zones.join("blue/m.sock"), 0);
    vnic(&daemon, "blue0", "blue", "memif,socket=m.sock,id=0");
    let refused = until_some("its mapping is refused", || {
        late.is_up();
        let reason = daemon.show("vnic", "blue0")["reason"].clone();
        let reason = reason.as_str().unwrap_or_default().to_owned();
        reason.contains("16").then_some(reason)
    });
    assert!(!late.is_up(), "{refused}");
    // The mapping is given back to the account that it was moved to.
    daemon.must("vnic delete red0");
    until("it counts no more", || counts() == [15, 15]);
    until("there is room for the other one", || late.is_up());
}

/// An owner whose peers have as many mappings as one may have gets no more, is told so, and keeps those that are there; another
/// owner's peer connects; room comes back.
#[test]
fn mappings_of_an_owner_have_an_end() {
    let Some(lab) = Lab::start("mappings_of_an_owner_have_an_end") else {
        return;
    };
    let daemon = daemon(&lab);
    let zones = daemon.runtime_dir().join("zones");
    let connect = |zone: &str, id: u32| {
        let attach = format!("memif,socket=m.sock,id={id}");
        vnic(&daemon, &format!("{zone}{id}"), zone, &attach);
        Client::start(zones.join(zone).join("m.sock"), id)
    };
    let mut peers: Vec<_> = (0..MAPPINGS_MAX).map(|id| connect("red", id)).collect();
    until("all are connected", || peers.iter_mut().all(Client::is_up));
    let mut late = connect("red", MAPPINGS_MAX);
    let name = format!("red{MAPPINGS_MAX}");
    until("one more is refused, and told the limit", || {
        late.is_up();
        let reason = daemon.show("vnic", &name)["reason"].to_string();
        reason.contains(&format!("more than {MAPPINGS_MAX} shared mappings"))
    });
    assert!(!late.is_up());
    let max = u64::from(MAPPINGS_MAX);
    assert_eq!(daemon.show("zone", "red")["mappings"], max);
    assert_eq!(used(&daemon, "red", MAPPINGS), max);
    let near = format!("user {RED}: {max} of {max} mappings ({MAPPINGS})");
    let status = daemon.must("status");
    assert!(status.contains(&near), "{status}");
    let mut other = connect("blue", 0);
    until("another owner's is connected", || other.is_up());
    assert_eq!(daemon.show("zone", "blue")["mappings"], 1);
    assert!(
        peers
            .iter_mut()
            .all(|peer| peer.is_up() && peer.connects == 1)
    );
    daemon.must("vnic delete red0");
    until("there is room", || late.is_up());
}

/// Server VNICs of zone "red", whose names are those of their sockets.
const SOCKETS: [(&str, &str, SocketKind); 4] = [
    ("m0", "memif", SocketKind::SeqPacket),
    ("v0", "vhost-user", SocketKind::Stream),
    ("m1", "memif", SocketKind::SeqPacket),
    ("v1", "vhost-user", SocketKind::Stream),
];
/// Those of them that their owner moves elsewhere.
const MOVED: [&str; 2] = ["m1", "v1"];

/// The former owner connects to each of [`SOCKETS`].
fn connect_all(zone: &Path) -> [OwnedFd; 4] {
    SOCKETS.map(|(name, _, kind)| connect_as(RED, &zone.join(name), kind).expect("connected"))
}

/// Makes [`SOCKETS`], and gives what the former owner has of them: their files, a connection to each that is served, as far as
/// more than a greeting is served, and one behind it.
fn prepare(daemon: &Daemon, zone: &Path) -> ([OwnedFd; 4], [[OwnedFd; 4]; 2]) {
    let files = SOCKETS.map(|(name, kind, _)| {
        vnic(daemon, name, "red", &format!("{kind},socket={name}"));
        let path = zone.join(name);
        until("its socket is there", || path.exists());
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(CWD, &path, flags, Mode::empty());
        as_user(RED, open).expect("a file")
    });
    let first = connect_all(zone);
    until("guests are served", || {
        ["v0", "v1"].iter().all(|name| {
            let reason = daemon.show("vnic", name)["reason"].clone();
            reason != "waiting for a front end"
        })
    });
    let second = connect_all(zone);
    let elsewhere = daemon.directory().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a directory");
    std::fs::set_permissions(&elsewhere, PermissionsExt::from_mode(0o777)).expect("a mode");
    as_user(RED, || {
        for name in MOVED {
            std::fs::rename(zone.join(name), elsewhere.join(name)).expect("moved");
        }
    });
    (files, [first, second])
}

/// What a user sees of VNICs.
fn seen(daemon: &Daemon, uid: u32) -> String {
    let mut socket = as_user(uid, || UnixStream::connect(daemon.socket())).expect("connected");
    let ask = b"GET /v1/vnics HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n";
    socket.write_all(ask).expect("asked");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    answer
}

/// From the change on a zone's sockets are the next owner's: who connected as the former one and waits is turned away, and a
/// path that was kept leads nowhere, whether or not the socket was moved.
#[test]
fn sockets_of_a_zone_are_its_next_owners() {
    let Some(lab) = Lab::start("sockets_of_a_zone_are_its_next_owners") else {
        return;
    };
    let daemon = daemon(&lab);
    let zone = daemon.runtime_dir().join("zones/red");
    let (files, [first, second]) = prepare(&daemon, &zone);
    let kept = as_user(RED, || connect(&path_of(&files[0]), SOCKETS[0].2));
    assert!(kept.is_ok(), "a path that is kept leads to the socket");
    assert!(seen(&daemon, RED).contains("m0"));

    daemon.must(GIVE);
    for (at, (name, _, kind)) in SOCKETS.into_iter().enumerate() {
        let refused = connect_as(RED, &path_of(&files[at]), kind).err();
        let expected = match MOVED.contains(&name) {
            true => Errno::CONNREFUSED,
            false => Errno::ACCESS,
        };
        assert_eq!(refused, Some(expected), "{name}");
        let path = zone.join(name);
        assert_eq!(connect_as(RED, &path, kind).err(), Some(Errno::ACCESS));
        until("who waits is turned away", || is_closed(&second[at]));
        until("its socket is there", || path.exists());
        let found = std::fs::symlink_metadata(&path).expect("a socket");
        assert_eq!((found.uid(), found.gid()), (BLUE, BLUE), "{name}");
        until("the next owner connects", || {
            connect_as(BLUE, &path, kind).is_ok()
        });
    }
    for at in [1, 3] {
        assert!(!is_closed(&first[at]), "the guest that is served stays");
    }
    let found = std::fs::metadata(&zone).expect("a directory");
    assert_eq!((found.uid(), found.gid()), (BLUE, BLUE));
    assert!(!seen(&daemon, RED).contains("m0") && seen(&daemon, BLUE).contains("m0"));
}

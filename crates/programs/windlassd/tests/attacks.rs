//! What a hostile local process may try on the control socket: none of it keeps the daemon from answering others.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod daemon;
#[path = "../../../io/attach/tests/lingering/mod.rs"]
mod lingering;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use daemon::{Daemon, ask_on, connect, connect_as, options, read_answer};
use lingering::Lingering;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::json;
use windlass_api::ErrorCode;
use windlass_sys::unix;
use windlassd::authority::Peer;
use windlassd::backend::Backend;
use windlassd::memory::MemoryBackend;
use windlassd::shares::Share;

fn answers(daemon: &Daemon) {
    for _ in 0..3 {
        daemon.must("GET", "/v1/daemon", None);
    }
}

/// A descriptor whose close lingers does not get into the daemon, where the kernel refuses to send it (Linux 6.16).
#[test]
fn no_descriptor_is_received() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(directory.path()), None);
    let attacker = connect(&daemon.socket);
    let mut lingering = Lingering::new();
    let sent = lingering.send(&attacker, b"G");
    answers(&daemon);
    let refuses = unix::set_accepts_fds(&attacker, false).is_ok();
    assert_eq!(sent, if refuses { Err(Errno::PERM) } else { Ok(1) });
}

/// Where the kernel does not refuse it, it stops its own connection: one that is served, one that is closed unread because
/// its user has too many.
#[test]
fn a_received_descriptor_stops_its_connection_only() {
    let directory = tempfile::tempdir().unwrap();
    let build = |sink| -> anyhow::Result<Box<dyn Backend>> {
        Ok(Box::new(MemoryBackend::over(Arc::default(), sink)))
    };
    let daemon = Daemon::start_on(&options(directory.path()), build, |listener| {
        // ENOPROTOOPT: so it is already.
        let _ = unix::set_accepts_fds(listener, true);
    });
    let attacker = connect(&daemon.socket);
    let mut served = Lingering::new();
    assert_eq!(served.send(&attacker, b"G"), Ok(1));
    answers(&daemon);
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: the connection closed unread: only root can connect as others");
        return;
    }
    daemon
        .limits
        .send_modify(|limits| limits.connections_per_uid_max = 0);
    let another = || connect_as(1001, &daemon.socket);
    let mut unread = Lingering::new();
    // The daemon may have closed one before it is sent to.
    while unread.send(another(), b"G").is_err() {}
    assert_eq!(ask_on(another(), "GET", "/v1/daemon", "").0, 503);
    answers(&daemon);
}

/// Whether the daemon has ended one of the connections, within five seconds.
fn has_ended_one(streams: &[UnixStream]) -> bool {
    let hung_up = |stream| PollFd::new(stream, PollFlags::empty());
    let mut fds: Vec<_> = streams.iter().map(hung_up).collect();
    let time = Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&time)).unwrap() > 0
}

/// Users who take all connections lose some to one who has none.
#[test]
fn connections_of_some_keep_nobody_out() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: connections_of_some_keep_nobody_out: only root can connect as others");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(directory.path());
    options.limits.connections_max = 16;
    let daemon = Daemon::start(&options, None);
    let idle: Vec<_> = [1001, 1002]
        .into_iter()
        .flat_map(|uid| (0..8).map(move |_| uid))
        .map(|uid| connect_as(uid, &daemon.socket))
        .collect();
    let third = connect_as(1003, &daemon.socket);
    let (status, json) = ask_on(third, "GET", "/v1/daemon", "");
    assert_eq!(status, 200, "{json}");
    assert!(has_ended_one(&idle));
}

/// Who takes nothing of his answers is given up after the read timeout.
#[test]
fn a_reader_that_stops_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(directory.path());
    options.limits.read_timeout = Duration::from_millis(300);
    let daemon = Daemon::start(&options, None);
    let mut reader = connect(&daemon.socket);
    let request = b"GET /v1/openapi.json HTTP/1.1\r\nhost: w\r\n\r\n";
    for _ in 0..100 {
        if reader.write_all(request).is_err() {
            break;
        }
    }
    assert!(has_ended_one(&[reader]));
    answers(&daemon);
}

/// A connection that asks nothing ends after the read timeout: at once after it was made, in the middle of a head, and after an
/// answer.
#[test]
fn an_idle_connection_ends() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(directory.path());
    options.limits.read_timeout = Duration::from_millis(300);
    let daemon = Daemon::start(&options, None);
    for request in [
        "",
        "GET /v1/dae",
        "GET /v1/daemon HTTP/1.1\r\nhost: w\r\n\r\n",
    ] {
        let mut stream = connect(&daemon.socket);
        stream.write_all(request.as_bytes()).unwrap();
        assert!(has_ended_one(&[stream]), "{request:?}");
    }
}

/// A document is refused before it is read, and a tenant's object cannot be large.
#[test]
fn what_a_tenant_sends_is_small() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: what_a_tenant_sends_is_small: only root can connect as others");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(directory.path()), None);
    let mut tenant = connect_as(1001, &daemon.socket);
    let head = b"PUT /v1/document HTTP/1.1\r\nhost: w\r\nconnection: close\r\ncontent-length: 4000000\r\n\r\n";
    tenant.write_all(head).unwrap();
    assert_eq!(read_answer(tenant).0, 403);
    let large = " ".repeat(65_537);
    let tenant = connect_as(1001, &daemon.socket);
    assert_eq!(ask_on(tenant, "POST", "/v1/vnics", &large).0, 413);
}

/// A tenant has a number of VNICs in all zones together; an operator may make more there.
#[test]
fn a_tenant_makes_a_number_of_vnics() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(directory.path());
    options.limits.per_user.set(Share::Vnics, 3);
    let daemon = Daemon::start(&options, None);
    let zone = |name: &str| json!({"name": name, "owner_uid": 1001, "owner_gid": 1001, "bridges": ["br0"]});
    let document =
        json!({"version": 1, "zones": [zone("a"), zone("b")], "bridges": [{"name": "br0"}]});
    daemon.must("PUT", "/v1/document", Some(document));
    let tenant = Peer {
        uid: 1001,
        gid: 1001,
        operator: false,
    };
    let add = |peer, name: &str, zone: &str| {
        let vnic = json!({"name": name, "zone": zone, "bridge": "br0"});
        let vnic = serde_json::from_value(vnic).unwrap();
        let added = daemon.change(peer, move |document| {
            document.vnics.push(vnic);
            Ok(())
        });
        added.map_err(|error| error.code)
    };
    for (name, zone) in [("v0", "a"), ("v1", "b"), ("v2", "b")] {
        add(tenant, name, zone).unwrap();
    }
    assert_eq!(add(tenant, "v3", "a").unwrap_err(), ErrorCode::Invalid);
    add(Peer::daemon(), "v3", "a").unwrap();
    let patch = daemon.change(tenant, |document| {
        document.vnics.retain(|vnic| vnic.name != *"v0");
        Ok(())
    });
    patch.unwrap();
}

/// A zone's group reads no memif secret, where VNICs are shown nor in what the monitor tells; its owner does.
#[test]
fn a_group_reads_no_secrets() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a_group_reads_no_secrets: only root can connect as others");
        return;
    }
    const OWNER: u32 = 1001;
    const MEMBER: u32 = 1002;
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(directory.path()), None);
    let zone = json!({"name": "a", "owner_uid": OWNER, "owner_gid": MEMBER, "bridges": ["br0"]});
    let document = json!({"version": 1, "zones": [zone], "bridges": [{"name": "br0"}]});
    daemon.must("PUT", "/v1/document", Some(document));
    let monitors = [OWNER, MEMBER].map(|uid| {
        let mut stream = connect_as(uid, &daemon.socket);
        let request = b"GET /v1/monitor HTTP/1.1\r\nhost: w\r\n\r\n";
        stream.write_all(request).unwrap();
        let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
        assert!(lines.any(|line| line.contains("\"start\"")));
        lines
    });
    let attach =
        json!({"kind": "memif", "socket": "m.sock", "role": "server", "secret": "hush-hush"});
    let vnic = json!({"name": "v0", "zone": "a", "bridge": "br0", "attach": attach});
    daemon.must("POST", "/v1/vnics", Some(vnic));
    for (uid, mut lines) in [OWNER, MEMBER].into_iter().zip(monitors) {
        let change = lines.find(|line| line.contains("\"change\"")).unwrap();
        assert_eq!(change.contains("hush-hush"), uid == OWNER, "{change}");
        for path in ["/v1/vnics", "/v1/vnics/v0"] {
            let stream = connect_as(uid, &daemon.socket);
            let (status, shown) = ask_on(stream, "GET", path, "");
            assert_eq!(status, 200, "{shown}");
            assert_eq!(
                shown.to_string().contains("hush-hush"),
                uid == OWNER,
                "{shown}"
            );
            assert!(shown.to_string().contains("m.sock"), "{shown}");
        }
    }
}

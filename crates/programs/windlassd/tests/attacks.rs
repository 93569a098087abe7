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

use std::sync::Arc;

use daemon::{Daemon, connect, options};
use lingering::Lingering;
use rustix::io::Errno;
use windlass_sys::unix;
use windlassd::backend::Backend;
use windlassd::memory::MemoryBackend;

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
    let allow = |connections| {
        daemon
            .limits
            .send_modify(|limits| limits.connections_per_uid_max = connections);
    };
    allow(1);
    let mut unread = Lingering::new();
    // The daemon may have closed one before it is sent to.
    while unread.send(connect(&daemon.socket), b"G").is_err() {}
    assert_eq!(daemon.ask("GET", "/v1/daemon", None).0, 503);
    allow(32);
    answers(&daemon);
}

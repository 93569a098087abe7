//! A broker of one user, in a process of its own, that ends by itself.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use windlass_sys::identity;
use windlass_sys::unix::{self, SocketKind};

/// What stands in the maps or the environment of a process that has the library or is about to get it: `windlass run` becomes the
/// program in the same process.
const TRACES: [&[u8]; 2] = [b"libwindlass_sockets.so", b"/windlass\n"];

/// How long the lock of a broker that is about to end is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// How often it is tried.
const LOCK_INTERVAL: Duration = Duration::from_millis(5);

/// The right to listen at a path; `None` if another broker does. Two that start at once would take each other's socket
/// for a stale one; and one that ends has no socket any more, but still the lock.
pub fn lock(path: &Path) -> Option<OwnedFd> {
    let file = path.with_extension("lock");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(file, flags, Mode::RUSR | Mode::WUSR).ok()?;
    let started = Instant::now();
    while rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if unix::connect(path, SocketKind::SeqPacket).is_ok() || started.elapsed() > LOCK_PATIENCE {
            return None;
        }
        std::thread::sleep(LOCK_INTERVAL);
    }
    Some(file)
}

/// Whether any process of this user has the library, or may have it soon: it may not have registered yet.
pub(crate) fn library_is_loaded() -> bool {
    // Those of others cannot be read.
    let files = identity::processes()
        .flat_map(|pid| ["maps", "environ"].map(|name| format!("/proc/{pid}/{name}")));
    let mut texts = files.filter_map(|file| fs::read(file).ok());
    texts.any(|text| {
        let has = |trace: &[u8]| text.windows(trace.len()).any(|window| window == trace);
        TRACES.into_iter().any(has)
    })
}

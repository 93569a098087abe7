//! A broker of one user, in a process of its own, that ends by itself.

use std::fs;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::limits::PRIVATE_LINGER;
use crate::{Broker, Settings};

/// File name of the preload library, as it stands in the maps of a process that has it.
const LIBRARY: &str = "libwindlass_sockets.so";

/// Serves this user at a path until nobody has needed it for [`PRIVATE_LINGER`]; at once if another broker listens
/// there.
/// For a process of its own: it raises its limit of descriptors and takes its name.
pub fn private(path: &Path) {
    // Two that start at once are not to take each other's socket for a stale one.
    let lock = path.with_extension("lock");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = rustix::fs::open(lock, flags, Mode::RUSR | Mode::WUSR);
    let Ok(lock) = lock else { return };
    if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    // Each process takes four descriptors; a limit that stays as it is only serves fewer of them.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
    // A name for ps, and nothing else.
    let _ = rustix::thread::set_name(c"windlass-broker");
    let settings = Settings {
        others: false,
        policy: None,
        linger: Some(PRIVATE_LINGER),
        needed: library_is_loaded,
    };
    if let Ok(broker) = Broker::listen(path, settings, |_| {}) {
        // It ends with its last process; there is nobody to tell more.
        let _ = broker.run();
    }
}

/// Whether any process of this user has the library: it may not have registered yet.
fn library_is_loaded() -> bool {
    let Ok(entries) = fs::read_dir("/proc") else {
        return false;
    };
    let ids = entries.flatten().filter(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
    });
    // Those of others cannot be read.
    ids.map(|entry| fs::read(entry.path().join("maps")).unwrap_or_default())
        .any(|maps| {
            maps.windows(LIBRARY.len())
                .any(|window| window == LIBRARY.as_bytes())
        })
}

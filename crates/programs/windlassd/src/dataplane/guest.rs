//! The control half of a virtual machine's VNIC.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use windlass_api::{Name, Role, VhostUser, Vnic};
use windlass_attach::endpoint::Endpoint;
use windlass_attach::vhost_user::{SessionConf, VhostConf, VhostEndpoint, VhostRole};
use windlass_shm::Quota;

use crate::backend::{BackendError, Place};

/// Permission bits of a socket for which none were named.
const SOCKET_MODE: u32 = 0o600;

/// Where memory has the shape of files on any Linux.
const SHARED_MEMORY: &str = "/dev/shm";
/// Magic number of tmpfs (linux/magic.h).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// What the names of daemons' directories in [`SHARED_MEMORY`] begin with.
const SHARED_PREFIX: &str = "windlassd-";
/// In such a directory: a link to the daemon's state directory, without which the rest is of no use to anybody.
const STATE: &str = "state";

/// Where a daemon keeps the progress of guests' packed rings: in memory, so that it outlives the daemon and not the machine,
/// and where only the daemon writes. That is in the runtime directory; where that is on a disk, a directory of
/// this daemon's own in [`SHARED_MEMORY`].
pub struct RingProgress {
    beside: PathBuf,
    own: PathBuf,
    state_dir: PathBuf,
}

impl RingProgress {
    /// Of the daemon with these directories; `state_id` stands for it.
    pub fn new(runtime_dir: &Path, state_dir: &Path, state_id: &str) -> Self {
        let own = Path::new(SHARED_MEMORY).join(format!("{SHARED_PREFIX}{state_id}"));
        Self {
            beside: runtime_dir.join("rings"),
            own,
            state_dir: state_dir.into(),
        }
    }

    /// The file of a VNIC. None, if somebody else made the directory in [`SHARED_MEMORY`].
    fn of(&self, vnic: &Name) -> Option<PathBuf> {
        let has_own = || {
            let has_own = keeps_in_memory(&self.own);
            if has_own {
                // It may be there.
                let _ = symlink(&self.state_dir, self.own.join(STATE));
            }
            has_own
        };
        let own = self.own.join("rings");
        let directory = match keeps_in_memory(&self.beside) {
            true => &self.beside,
            false if has_own() && keeps_in_memory(&own) => &own,
            false => return None,
        };
        Some(directory.join(vnic.as_str()))
    }

    /// Removes files of VNICs that there are none of, and what daemons of this user have left in [`SHARED_MEMORY`] whose state
    /// directory is gone.
    pub fn remove_stale(&self, is_there: impl Fn(&str) -> bool) {
        // Behind a directory of somebody else's may be anything.
        let own = is_ours(&self.own).then(|| self.own.join("rings"));
        let places = [Some(self.beside.clone()), own].into_iter().flatten();
        for directory in places.filter(|directory| is_ours(directory)) {
            for (name, path) in entries(&directory) {
                if !is_there(&name) {
                    let _ = fs::remove_file(path);
                }
            }
            // If it is empty.
            let _ = fs::remove_dir(directory);
        }
        remove_orphans(Path::new(SHARED_MEMORY));
    }
}

/// Removes the directories of this user's daemons whose state directory is gone.
fn remove_orphans(shared: &Path) {
    for (name, path) in entries(shared) {
        let is_orphan = || {
            let state = fs::read_link(path.join(STATE)).ok()?;
            let gone = fs::metadata(state).err()?.kind() == ErrorKind::NotFound;
            (gone && is_ours(&path)).then_some(())
        };
        if name.starts_with(SHARED_PREFIX) && is_orphan().is_some() {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Names and paths of what is in a directory.
fn entries(directory: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let found = fs::read_dir(directory).into_iter().flatten().flatten();
    found.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
}

/// Makes the directory if it is not there; whether it is in memory, this user's, and nobody else may write to it.
fn keeps_in_memory(directory: &Path) -> bool {
    let in_memory =
        |at: &Path| rustix::fs::statfs(at).is_ok_and(|system| system.f_type as u64 == TMPFS_MAGIC);
    if !directory.parent().is_some_and(in_memory) {
        return false;
    }
    let _ = DirBuilder::new().mode(0o700).create(directory);
    is_ours(directory) && in_memory(directory)
}

/// Whether it is a directory of this user's, and nobody else may write to it.
fn is_ours(directory: &Path) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|found| {
        found.is_dir()
            && found.uid() == rustix::process::geteuid().as_raw()
            && found.mode() & 0o077 == 0
    })
}

/// The endpoint of a VNIC with this attachment; `mtu`: what holds for the VNIC, in bytes; `quota`: of whom the mappings of the
/// guest's memory count.
///
/// # Errors
/// An owner where the zone decides, and what the host refuses.
pub fn endpoint(
    vnic: &Vnic,
    vhost: &VhostUser,
    mtu: u32,
    place: &Place,
    progress: &RingProgress,
    quota: Quota,
) -> Result<Box<dyn Endpoint>, BackendError> {
    let path = place.socket(&vhost.socket);
    if place.owner.is_some() && vhost.owner.is_some() {
        return Err(BackendError::Unsupported(format!(
            "`{}` is in a zone, whose sockets are its owner's: leave owner= out",
            vnic.name
        )));
    }
    let named = vhost.owner.map(|owner| (owner.uid, owner.gid));
    let role = match vhost.role {
        Role::Client => VhostRole::Client { owner: place.owner },
        Role::Server => VhostRole::Server {
            mode: vhost.mode.map_or(SOCKET_MODE, |mode| mode.bits()),
            owner: place.owner.or(named),
        },
    };
    let conf = VhostConf {
        path: path.clone(),
        role,
        session: SessionConf {
            pairs: vhost.queues,
            mtu,
        },
        quota,
        ring_progress: progress.of(&vnic.name),
    };
    let endpoint = VhostEndpoint::new(conf).map_err(|error| {
        BackendError::Host(format!(
            "vhost-user of `{}` at {}: {error}",
            vnic.name,
            path.display()
        ))
    })?;
    Ok(Box::new(endpoint))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory in memory that is ours alone is made and taken; one that others may write to, one on a disk and a
    /// link are not.
    #[test]
    fn ring_progress_is_kept_in_memory_of_our_own() {
        let shared = Path::new(SHARED_MEMORY);
        if !rustix::fs::statfs(shared).is_ok_and(|s| s.f_type as u64 == TMPFS_MAGIC) {
            println!(
                "skipped: ring_progress_is_kept_in_memory_of_our_own: no tmpfs at {SHARED_MEMORY}"
            );
            return;
        }
        let lab = tempfile::tempdir_in(shared).unwrap();
        let made = lab.path().join("made");
        assert!(keeps_in_memory(&made) && keeps_in_memory(&made));
        let open = lab.path().join("open");
        DirBuilder::new().mode(0o755).create(&open).unwrap();
        assert!(!keeps_in_memory(&open));
        let link = lab.path().join("link");
        std::os::unix::fs::symlink(&made, &link).unwrap();
        assert!(!keeps_in_memory(&link));
        assert!(!keeps_in_memory(Path::new("/sys/nothing")));
    }

    /// Of the directories of daemons, one goes whose state directory is gone, and no other: neither one that does not say whose it
    /// is, nor one that another user could have made so.
    #[test]
    fn directories_without_a_daemon_go() {
        let Ok(lab) = tempfile::tempdir_in(SHARED_MEMORY) else {
            println!("skipped: directories_without_a_daemon_go: no tmpfs at {SHARED_MEMORY}");
            return;
        };
        let state = lab.path().join("state");
        fs::create_dir(&state).unwrap();
        let make = |name: &str, state: Option<&Path>, mode| {
            let path = lab.path().join(name);
            DirBuilder::new().mode(mode).create(&path).unwrap();
            if let Some(state) = state {
                symlink(state, path.join(STATE)).unwrap();
            }
            fs::write(path.join("file"), "").unwrap();
        };
        let gone = lab.path().join("gone");
        make("windlassd-1", Some(&state), 0o700);
        make("windlassd-2", Some(&gone), 0o700);
        make("windlassd-3", None, 0o700);
        make("windlassd-4", Some(&gone), 0o755);
        make("other-5", Some(&gone), 0o700);
        remove_orphans(lab.path());
        let own = lab.path().join("windlassd-4");
        let progress = RingProgress {
            beside: lab.path().join("windlassd-1"),
            own: own.clone(),
            state_dir: state,
        };
        DirBuilder::new()
            .mode(0o700)
            .create(own.join("rings"))
            .unwrap();
        fs::write(own.join("rings/of-another"), "").unwrap();
        progress.remove_stale(|name| name == STATE);
        assert!(own.join("rings/of-another").exists());
        assert!(!progress.beside.join("file").exists() && progress.beside.join(STATE).is_symlink());
        let mut left: Vec<_> = entries(lab.path()).map(|(name, _)| name).collect();
        left.sort();
        assert_eq!(
            left,
            [
                "other-5",
                "state",
                "windlassd-1",
                "windlassd-3",
                "windlassd-4"
            ]
        );
    }
}

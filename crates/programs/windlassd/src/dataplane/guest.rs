//! The control half of a virtual machine's VNIC.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use windlass_api::{Role, VhostUser, Vnic};
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

/// Where the progress of a guest's packed rings is kept: in memory, so that it outlives the daemon and not the machine,
/// and where only the daemon writes. That is beside the directory of all zones; where that is on a disk, a directory of
/// this daemon's own in [`SHARED_MEMORY`]. None, if somebody else made the latter.
fn ring_progress(vnic: &Vnic, place: &Place, state_id: &str) -> Option<PathBuf> {
    let beside = place.directory.parent()?.parent()?.join("rings");
    let own = Path::new(SHARED_MEMORY).join(format!("windlass-rings-{state_id}"));
    let directory = [beside, own].into_iter().find(|d| keeps_in_memory(d))?;
    Some(directory.join(vnic.name.as_str()))
}

/// Makes the directory if it is not there; whether it is in memory, this user's, and nobody else may write to it.
fn keeps_in_memory(directory: &Path) -> bool {
    let in_memory =
        |at: &Path| rustix::fs::statfs(at).is_ok_and(|system| system.f_type as u64 == TMPFS_MAGIC);
    if !directory.parent().is_some_and(in_memory) {
        return false;
    }
    let _ = DirBuilder::new().mode(0o700).create(directory);
    std::fs::symlink_metadata(directory).is_ok_and(|found| {
        found.is_dir()
            && found.uid() == rustix::process::geteuid().as_raw()
            && found.mode() & 0o077 == 0
            && in_memory(directory)
    })
}

/// The endpoint of a VNIC with this attachment; `mtu`: what holds for the VNIC, in bytes; `state_id`: which daemon this is;
/// `quota`: of whom the mappings of the guest's memory count.
///
/// # Errors
/// An owner where the zone decides, and what the host refuses.
pub fn endpoint(
    vnic: &Vnic,
    vhost: &VhostUser,
    mtu: u32,
    place: &Place,
    state_id: &str,
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
        ring_progress: ring_progress(vnic, place, state_id),
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
}

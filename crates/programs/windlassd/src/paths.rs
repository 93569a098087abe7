//! Where the daemon's files lie, and that nobody else can put his own in their place.
//!
//! # Model
//! | | root | others |
//! | --- | --- | --- |
//! | runtime | `/run/windlass` (0755) | `$XDG_RUNTIME_DIR/windlass`, else `/tmp/windlass-UID` (0700) |
//! | state | `/var/lib/windlass` (0700) | `$XDG_STATE_HOME/windlass`, else `~/.local/state/windlass` (0700) |
//!
//! The control socket of root can be connected to by anyone (0666); the peer's credentials decide what
//! he may. The directory of a zone's sockets, `RUNTIME/zones/NAME`, belongs to the zone's owner (0700). That of its vnd devices,
//! `RUNTIME/vnd/NAME`, is the daemon's (0711): nobody else puts anything into it, and each socket there is the owner's (0600).
//!
//! # Failure modes
//! A runtime directory that is a symbolic link, belongs to someone else, or can be written by others is
//! refused: in `/tmp` anyone could have made it first.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, FileType};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid};
use windlass_api::{Document, ZoneRef};

/// Name of the control socket in the runtime directory.
pub const SOCKET_NAME: &str = "control.sock";

/// Directory of the sockets of vnd devices in the runtime directory.
pub const VND_DIRECTORY: &str = "vnd";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn absolute(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
}

/// The default runtime directory.
pub fn runtime_dir() -> PathBuf {
    if is_root() {
        return "/run/windlass".into();
    }
    match absolute("XDG_RUNTIME_DIR") {
        Some(path) => path.join("windlass"),
        None => format!("/tmp/windlass-{}", rustix::process::geteuid().as_raw()).into(),
    }
}

/// The default state directory.
///
/// # Errors
/// If there is no home to put it in.
pub fn state_dir() -> Result<PathBuf> {
    if is_root() {
        return Ok("/var/lib/windlass".into());
    }
    let base = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    match base {
        Some(base) => Ok(base.join("windlass")),
        None => bail!("neither XDG_STATE_HOME nor HOME is set: give --state-dir"),
    }
}

/// Makes the runtime directory, or checks the one that is there.
///
/// # Errors
/// If it cannot be made, is a link, belongs to someone else, or others can write to it.
pub fn make_runtime_dir(path: &Path) -> Result<()> {
    let mode = if is_root() { 0o755 } else { 0o700 };
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => bail!("cannot make {}: {error}", path.display()),
    }
    check_directory(path)?;
    own_directory(&path.join("zones"), mode)?;
    own_directory(&path.join(VND_DIRECTORY), mode & 0o711)
}

/// Makes a directory, or checks that the one that is there is ours alone.
fn own_directory(path: &Path, mode: u32) -> Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            bail!("cannot make {}: {error}", path.display())
        }
        _ => check_directory(path),
    }
}

fn check_directory(path: &Path) -> Result<()> {
    let meta = fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
    let own = rustix::process::geteuid().as_raw();
    if !meta.is_dir() {
        bail!(
            "{} is not a directory (links are not followed)",
            path.display()
        );
    }
    if meta.uid() != own {
        bail!(
            "{} belongs to user {}, not {own}",
            path.display(),
            meta.uid()
        );
    }
    if meta.permissions().mode() & 0o022 != 0 {
        bail!("{} can be written by others: chmod go-w it", path.display());
    }
    Ok(())
}

/// Makes the directory of a zone's sockets, and gives it to the zone's owner. Nothing is followed: if a
/// link lies there, it is refused.
///
/// # Errors
/// If the system refuses.
pub fn make_zone_dir(path: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    if let Some((uid, gid)) = owner.filter(|_| is_root()) {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::fs::fchown(&directory, Some(uid), Some(gid))?;
    }
    Ok(())
}

/// Makes the directory of a zone's vnd devices, or checks the one that is there.
///
/// # Errors
/// If it cannot be made, is a link, belongs to someone else, or others can write to it.
pub fn make_device_dir(path: &Path) -> Result<()> {
    own_directory(path, 0o711)
}

/// Removes the sockets of vnd devices that are not in the document, and the directories of zones that are not: what a daemon that
/// was killed in the middle of a change has left.
pub fn sweep_devices(runtime_dir: &Path, document: &Document) {
    let listed: HashSet<PathBuf> = (document.vnds.iter())
        .map(|vnd| Path::new(vnd.zone.as_str()).join(vnd.name.as_str()))
        .collect();
    let all = runtime_dir.join(VND_DIRECTORY);
    for zone in entries(&all, FileType::is_dir) {
        let directory = all.join(&zone);
        for name in entries(&directory, FileType::is_socket) {
            if !listed.contains(&Path::new(&zone).join(&name)) {
                let left = directory.join(&name);
                tracing::info!("{} was left over: removed", left.display());
                if let Err(error) = fs::remove_file(&left) {
                    tracing::warn!("{}: {error}", left.display());
                }
            }
        }
        let is_there = |name: &str| name == ZoneRef::GLOBAL || document.zone(name).is_some();
        if !zone.to_str().is_some_and(is_there) {
            remove_zone_dir(&directory);
        }
    }
}

/// The names in a directory of our own of what is of this type; links are not followed.
fn entries(directory: &Path, is: impl Fn(&FileType) -> bool) -> Vec<OsString> {
    let found = fs::read_dir(directory).into_iter().flatten().flatten();
    let found = found.filter(|entry| entry.file_type().is_ok_and(|kind| is(&kind)));
    found.map(|entry| entry.file_name()).collect()
}

/// Removes the directory of a zone's sockets if it is empty; what its owner left in it stays.
pub fn remove_zone_dir(path: &Path) {
    if let Err(error) = rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR) {
        tracing::debug!("{} stays: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A runtime directory that another could have prepared is refused.
    #[test]
    fn prepared_directories_are_refused() {
        let base = tempfile::tempdir().expect("directory");
        let good = base.path().join("good");
        make_runtime_dir(&good).expect("made");
        make_runtime_dir(&good).expect("there already");
        let link = base.path().join("link");
        std::os::unix::fs::symlink(&good, &link).expect("link");
        assert!(make_runtime_dir(&link).is_err());
        let open = base.path().join("open");
        fs::create_dir(&open).expect("directory");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("mode");
        assert!(make_runtime_dir(&open).is_err());
        let file = base.path().join("file");
        fs::write(&file, "").expect("file");
        assert!(make_runtime_dir(&file).is_err());
        let zone = good.join("zones").join("z");
        std::os::unix::fs::symlink("/", &zone).expect("link");
        assert!(make_zone_dir(&zone, None).is_err());
    }
}

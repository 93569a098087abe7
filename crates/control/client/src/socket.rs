//! Where the control socket is.
//!
//! # Model
//! A path that was given is taken as it is. Otherwise the first of [`candidates`] at which a socket lies: a user's own
//! daemon goes before the system's. `/tmp` belongs to everybody: the directory there counts only if it is ours, is a
//! directory and not a link to one, and nobody else can enter it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::error::Error;

/// Name of the socket in its directory.
pub const FILE: &str = "control.sock";
/// Directory of the system's daemon.
pub const SYSTEM_DIR: &str = "/run/windlass";

/// Why a directory below `/tmp` is not trusted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{} is not trusted: {reason}", path.display())]
pub struct Unsafe {
    /// The directory.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// The usual paths of the control socket, in the order in which they are tried.
///
/// # Examples
/// ```
/// use windlass_client::socket::candidates;
/// let paths = candidates(Some("/run/user/7".into()), 7);
/// assert_eq!(paths[0].to_str(), Some("/run/user/7/windlass/control.sock"));
/// assert_eq!(paths[1].to_str(), Some("/tmp/windlass-7/control.sock"));
/// assert_eq!(paths[2].to_str(), Some("/run/windlass/control.sock"));
/// assert_eq!(candidates(None, 0)[0], paths[2]);
/// ```
pub fn candidates(xdg_runtime_dir: Option<OsString>, uid: u32) -> Vec<PathBuf> {
    let xdg = xdg_runtime_dir
        .map(PathBuf::from)
        .filter(|dir| dir.is_absolute());
    let mut paths = Vec::new();
    paths.extend(xdg.map(|dir| dir.join("windlass").join(FILE)));
    paths.push(fallback_dir(uid).join(FILE));
    // The system's daemon is root's own.
    let at = if uid == 0 { 0 } else { paths.len() };
    paths.insert(at, Path::new(SYSTEM_DIR).join(FILE));
    paths
}

/// The directory of a user's daemon when there is no `$XDG_RUNTIME_DIR`.
pub fn fallback_dir(uid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/windlass-{uid}"))
}

/// Checks that a directory in which others could have put something is ours alone.
///
/// # Errors
/// If it is a link, no directory, not owned by `uid`, or open to others in any way.
pub fn check_private(dir: &Path, uid: u32) -> Result<(), Unsafe> {
    let refuse = |reason| {
        Err(Unsafe {
            path: dir.into(),
            reason,
        })
    };
    match fs::symlink_metadata(dir) {
        Err(_) => refuse("it cannot be examined"),
        Ok(meta) if !meta.is_dir() => refuse("it is not a directory"),
        Ok(meta) if meta.uid() != uid => refuse("another user owns it"),
        Ok(meta) if meta.mode() & 0o077 != 0 => refuse("others than its owner may enter it"),
        Ok(_) => Ok(()),
    }
}

/// The path of the control socket: `given` (from `--socket` or `WINDLASS_SOCKET`), else the first usual
/// path at which a socket lies.
///
/// # Errors
/// [`Error::NoSocket`] with the paths that were tried, or [`Error::Unsafe`] if only the one in `/tmp` is
/// there and somebody else could have made it.
pub fn find(given: Option<PathBuf>) -> Result<PathBuf, Error> {
    let uid = rustix::process::geteuid().as_raw();
    match given.filter(|path| !path.as_os_str().is_empty()) {
        Some(path) => Ok(path),
        None => first(candidates(std::env::var_os("XDG_RUNTIME_DIR"), uid), uid),
    }
}

fn first(paths: Vec<PathBuf>, uid: u32) -> Result<PathBuf, Error> {
    let is_socket =
        |path: &&PathBuf| fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    let mut refused = None;
    for found in paths.iter().filter(is_socket) {
        match found.parent().filter(|dir| dir.starts_with("/tmp")) {
            Some(dir) => match check_private(dir, uid) {
                Ok(()) => return Ok(found.clone()),
                // What a stranger put there hides no daemon behind it.
                Err(reason) => refused = Some(reason),
            },
            None => return Ok(found.clone()),
        }
    }
    Err(refused.map_or(Error::NoSocket(paths), Error::Unsafe))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A directory in `/tmp` is trusted only as ours, private, and not a link.
    #[test]
    fn the_directory_in_tmp_must_be_private() {
        let uid = rustix::process::geteuid().as_raw();
        let top = tempfile::tempdir_in("/tmp").expect("directory");
        let dir = top.path().join("windlass");
        assert!(check_private(&dir, uid).is_err());
        fs::create_dir(&dir).expect("directory");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).expect("mode");
        assert_eq!(check_private(&dir, uid), Ok(()));
        assert!(check_private(&dir, uid.wrapping_add(1)).is_err());
        let link = top.path().join("link");
        symlink(&dir, &link).expect("link");
        assert!(check_private(&link, uid).is_err());
        let listener = UnixListener::bind(dir.join(FILE)).expect("socket");
        let paths = vec![top.path().join("absent"), dir.join(FILE)];
        assert_eq!(first(paths.clone(), uid).expect("found"), dir.join(FILE));
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o750)).expect("mode");
        assert!(matches!(first(paths.clone(), uid), Err(Error::Unsafe(_))));
        let behind = tempfile::tempdir_in("/var/tmp").expect("directory");
        let system = behind.path().join(FILE);
        let _listens = UnixListener::bind(&system).expect("socket");
        let paths = [paths, vec![system.clone()]].concat();
        assert_eq!(first(paths, uid).expect("found"), system);
        drop(listener);
    }

    /// Without any socket the error lists every path that was tried.
    #[test]
    fn absent_sockets_are_listed() {
        let Err(Error::NoSocket(paths)) = first(candidates(None, 4_000_000_000), 0) else {
            println!("skipped: a daemon runs on this machine");
            return;
        };
        assert_eq!(paths.len(), 2);
    }
}

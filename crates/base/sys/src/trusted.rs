//! Files that nobody but the system can have put where they are.
//!
//! # Model
//! A path is followed one component at a time, and only through directories in which none but the system can put
//! anything: those of user 0, of this process's own user, and of the owner of `/`. So a path that an administrator has
//! named never leads where somebody else wants it to, and never waits for somebody's file system.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Symbolic links in one path at most.
const LINKS_MAX: usize = 16;

/// Why a path is not followed to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustedError {
    /// Somebody else can put another file in its place.
    #[error("others can replace \"{component}\" in it")]
    Untrusted {
        /// The part of the path.
        component: String,
    },
    /// The kernel's answer.
    #[error("{0}")]
    Kernel(#[from] Errno),
}

/// Whom files may belong to that nobody else can change.
pub(crate) fn is_safe(stat: &Stat) -> Result<bool, Errno> {
    let root = rustix::fs::statat(CWD, "/", rustix::fs::AtFlags::empty())?.st_uid;
    let own = rustix::process::geteuid().as_raw();
    Ok([0, root, own].contains(&stat.st_uid) && stat.st_mode & 0o022 == 0)
}

/// Whether a program that is run by its path is what the system has put there: a file like its directories, for
/// everybody to execute.
///
/// # Errors
/// If it is not; `EACCES` if it cannot be executed.
pub fn check_program(path: &Path) -> Result<(), TrustedError> {
    if !path.is_absolute() {
        return Err(Errno::NOENT.into());
    }
    let stat = rustix::fs::fstat(&open(path)?)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !is_file || stat.st_mode & 0o001 == 0 {
        return Err(Errno::ACCESS.into());
    }
    let component = path.to_string_lossy().into_owned();
    match is_safe(&stat)? {
        true => Ok(()),
        false => Err(TrustedError::Untrusted { component }),
    }
}

/// The file at an absolute path, as `O_PATH`.
///
/// # Errors
/// If it is not there, or if another could be.
pub fn open(path: &Path) -> Result<OwnedFd, TrustedError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = || rustix::fs::openat(CWD, "/", flags, Mode::empty());
    let mut at = root()?;
    let mut rest = components(path);
    let mut links = 0;
    while let Some(next) = rest.pop_front() {
        if !is_safe(&rustix::fs::fstat(&at)?)? {
            let component = next.to_string_lossy().into_owned();
            return Err(TrustedError::Untrusted { component });
        }
        let found = rustix::fs::openat(&at, &next, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&found)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            at = found;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        let target = rustix::fs::readlinkat(&found, "", Vec::new())?;
        let target = OsString::from_vec(target.into_bytes());
        if target.as_bytes().starts_with(b"/") {
            at = root()?;
        }
        for component in components(Path::new(&target)).into_iter().rev() {
            rest.push_front(component);
        }
    }
    Ok(at)
}

fn components(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter(|component| matches!(component, Component::Normal(_) | Component::ParentDir))
        .map(|component| component.as_os_str().to_owned())
        .collect()
}

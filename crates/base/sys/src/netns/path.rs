//! A namespace by a path: of a process, or where somebody has mounted it.
//!
//! # Model
//! A path is followed one component at a time, and only through directories in which none but the system can put
//! anything: those of user 0, of this process's own user, and of the owner of `/`. So a path that an administrator has
//! named never leads where somebody else wants it to, and never waits for somebody's file system.
//!
//! `/proc/PID/ns/net` is the namespace of that process. The process is held by a pidfd: a later process of the same
//! number is not taken for it.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use super::{NSFS_MAGIC, NetnsError};
use crate::process::has_ended;

/// Symbolic links in one path at most.
const LINKS_MAX: usize = 16;
/// `NS_GET_NSTYPE` of `<linux/nsfs.h>`.
const NS_GET_NSTYPE: libc::Ioctl = 0xb703;

/// A process whose namespace was named. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Named(Arc<OwnedFd>);

impl Named {
    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        has_ended(&*self.0)
    }
}

impl AsFd for Named {
    /// Readable once it has ended.
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The process of `/proc/PID/ns/net`, if the path is one of those.
fn process_of(path: &str) -> Option<Pid> {
    let number = path.strip_prefix("/proc/")?.strip_suffix("/ns/net")?;
    Pid::from_raw(number.parse().ok()?)
}

fn kernel(name: &str) -> impl Fn(Errno) -> NetnsError {
    move |errno| match errno {
        Errno::NOENT | Errno::SRCH => NetnsError::Missing(name.to_owned()),
        errno => NetnsError::Kernel {
            operation: "open",
            name: name.to_owned(),
            errno,
        },
    }
}

/// Opens the namespace at an absolute path; with it the process, if it is named by one.
pub(super) fn open(path: &str) -> Result<(OwnedFd, Option<Named>), NetnsError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let refused = kernel(path);
    let Some(pid) = process_of(path) else {
        let found = walk(path)?;
        if rustix::fs::fstatfs(&found).map_err(&refused)?.f_type != NSFS_MAGIC {
            return Err(NetnsError::NotNamespace(path.to_owned()));
        }
        let again = format!("/proc/self/fd/{}", found.as_raw_fd());
        let fd = rustix::fs::open(again, flags, Mode::empty()).map_err(&refused)?;
        return is_network(&fd, path).map(|()| (fd, None));
    };
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(&refused)?;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(&refused)?;
    // It is still this one's if it has not ended after that.
    if has_ended(&process) {
        return Err(NetnsError::Missing(path.to_owned()));
    }
    is_network(&fd, path).map(|()| (fd, Some(Named(Arc::new(process)))))
}

/// Refuses a namespace of another kind.
pub(super) fn is_network(fd: &OwnedFd, name: &str) -> Result<(), NetnsError> {
    // SAFETY: this request takes no argument, so no memory is touched.
    let kind = unsafe { libc::ioctl(fd.as_raw_fd(), NS_GET_NSTYPE) };
    match kind {
        libc::CLONE_NEWNET => Ok(()),
        _ => Err(NetnsError::NotNamespace(name.to_owned())),
    }
}

/// The file at an absolute path, as `O_PATH`.
fn walk(path: &str) -> Result<OwnedFd, NetnsError> {
    let refused = kernel(path);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = || rustix::fs::openat(CWD, "/", flags, Mode::empty()).map_err(&refused);
    let mut at = root()?;
    let owner = rustix::fs::fstat(&at).map_err(&refused)?.st_uid;
    let own = rustix::process::geteuid().as_raw();
    let is_safe = |stat: &Stat| [0, owner, own].contains(&stat.st_uid) && stat.st_mode & 0o022 == 0;
    let mut rest = components(OsStr::new(path));
    let mut links = 0;
    while let Some(next) = rest.pop_front() {
        if !is_safe(&rustix::fs::fstat(&at).map_err(&refused)?) {
            return Err(NetnsError::Untrusted {
                path: path.to_owned(),
                component: next.to_string_lossy().into_owned(),
            });
        }
        let found = rustix::fs::openat(&at, &next, flags, Mode::empty()).map_err(&refused)?;
        let stat = rustix::fs::fstat(&found).map_err(&refused)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            at = found;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(refused(Errno::LOOP));
        }
        let target = rustix::fs::readlinkat(&found, "", Vec::new()).map_err(&refused)?;
        let target = OsString::from_vec(target.into_bytes());
        if target.as_bytes().starts_with(b"/") {
            at = root()?;
        }
        for component in components(&target).into_iter().rev() {
            rest.push_front(component);
        }
    }
    Ok(at)
}

fn components(path: &OsStr) -> VecDeque<OsString> {
    Path::new(path)
        .components()
        .filter(|component| matches!(component, Component::Normal(_) | Component::ParentDir))
        .map(|component| component.as_os_str().to_owned())
        .collect()
}

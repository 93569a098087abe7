//! A namespace by a path: of a process, or where somebody has mounted it.
//!
//! # Model
//! A path is followed as [`crate::trusted`] says: where an administrator wants it to lead, and nobody else.
//!
//! `/proc/PID/ns/net` is the namespace of that process. The process is held by a pidfd: a later process of the same
//! number is not taken for it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use super::{NSFS_MAGIC, NetnsError};
use crate::process::has_ended;
use crate::trusted::{self, TrustedError};

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
        let found = trusted::open(Path::new(path)).map_err(|error| match error {
            TrustedError::Untrusted { component } => NetnsError::Untrusted {
                path: path.to_owned(),
                component,
            },
            TrustedError::Kernel(errno) => refused(errno),
        })?;
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

//! Network namespaces, by name or by path.
//!
//! # Purpose
//! Opens, enters, watches, makes and removes the named network namespaces that `ip netns` shows.
//!
//! # Model
//! A named namespace is a file in [`DIRECTORY`] on which the namespace is mounted. The name is
//! looked up once ([`NetnsRef::open`]); from then on the namespace is held by descriptor and told
//! from others by [`NetnsId`], so that a name that is deleted and made again shows as a different
//! namespace. An absolute path is one for [`NetnsRef::open`], too: see `path.rs`.
//!
//! # Ownership and lifetime
//! A [`NetnsRef`] keeps the namespace, and every interface in it, alive after its name is gone.
//! Whoever holds one for long must therefore watch for the deletion ([`NetnsWatch`]) and let go.
//!
//! # Failure modes
//! [`create`] makes the file a moment before it mounts the namespace on it, as `ip netns add`
//! does: an open in between reports [`NetnsError::NotNamespace`], and [`NetnsWatch`] reports the
//! mount that follows.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::event::epoll;
use rustix::fs::{Mode, OFlags, inotify};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use crate::process::{Pinned, has_ended};

mod path;

pub use path::Named;

/// Where named namespaces are, as `ip-netns(8)` has it.
pub const DIRECTORY: &str = "/run/netns";

/// Longest name in bytes (`NAME_MAX`).
pub const NAME_BYTES_MAX: usize = 255;

/// `NSFS_MAGIC` of `<linux/magic.h>`.
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// What can go wrong with a named namespace.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// Not a plain file name of at most [`NAME_BYTES_MAX`] bytes.
    #[error(
        "`{0}` is not a namespace name: 1 to {NAME_BYTES_MAX} bytes without `/`, not `.` or `..`"
    )]
    BadName(String),
    /// No namespace has this name.
    #[error("network namespace `{0}` does not exist")]
    Missing(String),
    /// A file of this path exists, but no network namespace is mounted on it (yet).
    #[error("`{0}` is not a network namespace")]
    NotNamespace(String),
    /// The path leads through a directory into which others can put something.
    #[error(
        "`{path}`: others than the system can replace `{component}`, so the path is not followed"
    )]
    Untrusted {
        /// The path.
        path: String,
        /// What lies in that directory.
        component: String,
    },
    /// A namespace of this name exists already.
    #[error("network namespace `{0}` exists")]
    Exists(String),
    /// The kernel refused; `EPERM` means that `CAP_SYS_ADMIN` is missing.
    #[error("{operation} network namespace `{name}`: {errno}")]
    Kernel {
        /// What was tried, as a verb.
        operation: &'static str,
        /// The namespace's name, or `self` for one without.
        name: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// No thread could be started to enter the namespace.
    #[error("start a thread for network namespace `{name}`: {source}")]
    Thread {
        /// The namespace's name, or `self` for one without.
        name: String,
        /// Why not.
        source: std::io::Error,
    },
}

/// Tells one namespace from another for as long as either is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetnsId {
    /// `st_dev` of the namespace file.
    pub dev: u64,
    /// `st_ino` of the namespace file.
    pub ino: u64,
}

/// A network namespace, held open. Clones share one descriptor.
#[derive(Clone, Debug)]
pub struct NetnsRef {
    name: Option<Arc<str>>,
    fd: Arc<OwnedFd>,
    id: NetnsId,
    process: Option<Named>,
}

/// Checks that `name` is a plain file name, so that it cannot lead out of [`DIRECTORY`].
pub fn check_name(name: &str) -> Result<(), NetnsError> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    if fits && name != "." && name != ".." && !name.bytes().any(|b| b == b'/' || b == 0) {
        Ok(())
    } else {
        Err(NetnsError::BadName(name.to_owned()))
    }
}

fn path_of(name: &str) -> Result<PathBuf, NetnsError> {
    check_name(name)?;
    Ok(PathBuf::from(DIRECTORY).join(name))
}

impl NetnsRef {
    /// Opens the namespace called `name`, or the one at `name` if that is an absolute path.
    pub fn open(name: &str) -> Result<Self, NetnsError> {
        if name.starts_with('/') {
            let (fd, process) = path::open(name)?;
            let held = Self::held(fd, Some(name)).map_err(|errno| NetnsError::Kernel {
                operation: "open",
                name: name.to_owned(),
                errno,
            })?;
            return Ok(Self { process, ..held });
        }
        let path = path_of(name)?;
        let refused = |errno| NetnsError::Kernel {
            operation: "open",
            name: name.to_owned(),
            errno,
        };
        // NONBLOCK: a FIFO left in the directory must not block the caller.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Err(NetnsError::Missing(name.to_owned())),
            Err(errno) => return Err(refused(errno)),
        };
        if rustix::fs::fstatfs(&fd).map_err(refused)?.f_type != NSFS_MAGIC {
            return Err(NetnsError::NotNamespace(path.display().to_string()));
        }
        path::is_network(&fd, name)?;
        Self::held(fd, Some(name)).map_err(refused)
    }

    /// The calling thread's own namespace.
    pub fn current() -> Result<Self, NetnsError> {
        let refused = |errno| NetnsError::Kernel {
            operation: "open",
            name: "self".to_owned(),
            errno,
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let fd =
            rustix::fs::open("/proc/thread-self/ns/net", flags, Mode::empty()).map_err(refused)?;
        Self::held(fd, None).map_err(refused)
    }

    /// The namespace that a process is in now. `EACCES` if we may not know it, `ESRCH` if it has ended: a later process of
    /// its number is not taken for it.
    pub fn of_process((pid, pidfd): &Pinned) -> Result<Self, NetnsError> {
        let refused = |errno| NetnsError::Kernel {
            operation: "open",
            name: format!("of process {pid}"),
            errno,
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let path = format!("/proc/{pid}/ns/net");
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(refused)?;
        // It is this one's if it has not ended after that.
        if has_ended(pidfd) {
            return Err(refused(Errno::SRCH));
        }
        Self::held(fd, None).map_err(refused)
    }

    fn held(fd: OwnedFd, name: Option<&str>) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(&fd)?;
        let id = NetnsId {
            dev: stat.st_dev,
            ino: stat.st_ino,
        };
        Ok(Self {
            name: name.map(Arc::from),
            fd: Arc::new(fd),
            id,
            process: None,
        })
    }

    /// The name it was opened by; `None` from [`NetnsRef::current`].
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The process by which it was named, if the path was `/proc/PID/ns/net`.
    #[must_use]
    pub fn process(&self) -> Option<&Named> {
        self.process.as_ref()
    }

    /// Its identity.
    #[must_use]
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// Whether its name still leads to this very namespace. Always true for one without a name.
    #[must_use]
    pub fn is_named_still(&self) -> bool {
        match self.name() {
            None => true,
            Some(_) if self.process().is_some_and(Named::has_ended) => false,
            Some(name) => Self::open(name).is_ok_and(|now| now.id == self.id),
        }
    }

    fn not_entered(&self, errno: Errno) -> NetnsError {
        NetnsError::Kernel {
            operation: "enter",
            name: self.label(),
            errno,
        }
    }

    fn label(&self) -> String {
        self.name().unwrap_or("self").to_owned()
    }
}

impl AsFd for NetnsRef {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Runs `work` inside `namespace` and returns what it returned.
///
/// The calling thread is there while `work` runs, and back in its own namespace after that, even if `work` panics: the process
/// aborts if the kernel refuses the way back. A thread for each call would cost 0.1 to 0.2 ms; one is made only where the calling thread
/// could not return, because its own namespace belongs to a user namespace above. Entering needs `CAP_SYS_ADMIN` in both user namespaces.
pub fn within<T, F>(namespace: &NetnsRef, work: F) -> Result<T, NetnsError>
where
    T: Send,
    F: FnOnce() -> T + Send,
{
    let home = NetnsRef::current()?;
    if enter(&home).is_err() {
        return within_on_thread(namespace, work);
    }
    enter(namespace).map_err(|errno| namespace.not_entered(errno))?;
    let home = Home(home);
    let done = work();
    drop(home);
    Ok(done)
}

fn within_on_thread<T, F>(namespace: &NetnsRef, work: F) -> Result<T, NetnsError>
where
    T: Send,
    F: FnOnce() -> T + Send,
{
    std::thread::scope(|scope| {
        let entered = move || enter(namespace).map(|()| work());
        let thread = std::thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, entered)
            .map_err(|source| NetnsError::Thread {
                name: namespace.label(),
                source,
            })?;
        match thread.join() {
            Ok(done) => done.map_err(|errno| namespace.not_entered(errno)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn enter(namespace: &NetnsRef) -> Result<(), Errno> {
    let kind = Some(LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(namespace.as_fd(), kind)
}

/// The namespace to which a thread goes back.
struct Home(NetnsRef);

impl Drop for Home {
    fn drop(&mut self) {
        if let Err(errno) = enter(&self.0) {
            // Whatever it did next would be done in another's namespace.
            eprintln!("a thread cannot return to its network namespace: {errno}");
            std::process::abort();
        }
    }
}

/// Runs `work` on a fresh thread inside a new namespace, which goes when nothing holds it, and returns what it returned. Needs
/// `CAP_SYS_ADMIN`.
///
/// # Errors
/// The kernel's answer, with `name` for the namespace; what `work` answered.
pub fn within_new<T, F>(name: &str, work: F) -> Result<T, NetnsError>
where
    T: Send,
    F: FnOnce() -> Result<T, Errno> + Send,
{
    std::thread::scope(|scope| {
        let inside = move || {
            // SAFETY: NEWNET alone is unshared, so the descriptor table stays the process's own.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
            work()
        };
        let thread = std::thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, inside)
            .map_err(|source| NetnsError::Thread {
                name: name.to_owned(),
                source,
            })?;
        match thread.join() {
            Ok(done) => done.map_err(|errno| NetnsError::Kernel {
                operation: "create",
                name: name.to_owned(),
                errno,
            }),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Makes a new named namespace, as `ip netns add` does, with every interface down.
///
/// Needs `CAP_SYS_ADMIN`. Used by tests and the demo.
pub fn create(name: &str) -> Result<NetnsRef, NetnsError> {
    let path = path_of(name)?;
    let refused = |errno| NetnsError::Kernel {
        operation: "create",
        name: name.to_owned(),
        errno,
    };
    match rustix::fs::mkdir(DIRECTORY, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(refused(errno)),
    }
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    match rustix::fs::open(&path, flags, Mode::empty()) {
        Ok(_) => {}
        Err(Errno::EXIST) => return Err(NetnsError::Exists(name.to_owned())),
        Err(errno) => return Err(refused(errno)),
    }
    let mounted = within_new(name, || {
        rustix::mount::mount_bind("/proc/thread-self/ns/net", &path)
    });
    if let Err(error) = mounted {
        // The name was made above and nothing is mounted on it.
        let _ = rustix::fs::unlink(&path);
        return Err(error);
    }
    NetnsRef::open(name)
}

/// Removes a name as `ip netns delete` does. The namespace itself goes when nothing holds it.
pub fn delete(name: &str) -> Result<(), NetnsError> {
    let path = path_of(name)?;
    let refused = |errno| NetnsError::Kernel {
        operation: "delete",
        name: name.to_owned(),
        errno,
    };
    // NOFOLLOW: a symbolic link here is a name for another's mount, which stays.
    match rustix::mount::unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        // EINVAL: nothing is mounted on it, as after an interrupted create.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(Errno::NOENT) => return Err(NetnsError::Missing(name.to_owned())),
        Err(errno) => return Err(refused(errno)),
    }
    rustix::fs::unlink(&path).map_err(refused)
}

/// Tells that the set of named namespaces may have changed.
///
/// One descriptor that polls readable after a mount or unmount anywhere in this process's mount
/// namespace (`/proc/self/mountinfo`, which covers a namespace being mounted on its name) or after
/// a name came or went in [`DIRECTORY`] (inotify, which covers symbolic links). It says that
/// something changed, not what: look the names up again.
#[derive(Debug)]
pub struct NetnsWatch {
    both: OwnedFd,
    /// Only to be kept open: `both` reports it.
    _mounts: OwnedFd,
    names: OwnedFd,
}

const TOKEN_MOUNTS: u64 = 0;
const TOKEN_NAMES: u64 = 1;

impl NetnsWatch {
    /// Starts to watch. Needs no privilege.
    pub fn start() -> Result<Self, Errno> {
        let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let mounts = rustix::fs::open("/proc/self/mountinfo", flags, Mode::empty())?;
        let names = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        epoll::add(
            &both,
            &mounts,
            epoll::EventData::new_u64(TOKEN_MOUNTS),
            // A mount table always polls readable; only PRI says that it changed.
            epoll::EventFlags::PRI,
        )?;
        epoll::add(
            &both,
            &names,
            epoll::EventData::new_u64(TOKEN_NAMES),
            epoll::EventFlags::IN,
        )?;
        let watch = Self {
            both,
            _mounts: mounts,
            names,
        };
        watch.watch_directory()?;
        // The table's first poll may report a change from before the watch.
        watch.take_changes()?;
        Ok(watch)
    }

    /// Adds the directory to inotify, if it exists; again after each change, since the directory
    /// is made, and mounted on itself, by the first `ip netns add`.
    fn watch_directory(&self) -> Result<(), Errno> {
        let events = inotify::WatchFlags::CREATE
            | inotify::WatchFlags::DELETE
            | inotify::WatchFlags::MOVED_FROM
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::ONLYDIR;
        match inotify::add_watch(&self.names, DIRECTORY, events) {
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Whether anything changed since the last call, unless a set that this one is in reported it already: the kernel tells a mount
    /// to the first reader only. Never blocks.
    pub fn take_changes(&self) -> Result<bool, Errno> {
        let mut events = Vec::with_capacity(2);
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        epoll::wait(
            &self.both,
            rustix::buffer::spare_capacity(&mut events),
            Some(&now),
        )?;
        if events.is_empty() {
            return Ok(false);
        }
        self.drain_names()?;
        self.watch_directory()?;
        Ok(true)
    }

    fn drain_names(&self) -> Result<(), Errno> {
        let mut space = [MaybeUninit::<u8>::uninit(); 4096];
        loop {
            match rustix::io::read(&self.names, &mut space) {
                Ok(_) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl AsFd for NetnsWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::{NetnsRef, check_name};
    use crate::process;

    /// No name leads out of the directory.
    #[test]
    fn refuses_paths() {
        assert!(check_name("tenant-a").is_ok());
        for bad in ["", ".", "..", "../1", "a/b", "/proc/1/ns/net", "a\0"] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        assert!(check_name(&"x".repeat(255)).is_ok());
        assert!(check_name(&"x".repeat(256)).is_err());
    }

    /// A process that has another one's number now is not taken for it.
    #[test]
    fn a_number_that_is_used_again_is_nobody() -> Result<(), Box<dyn std::error::Error>> {
        let (own, itself) = process::pin(std::process::id())?;
        assert_eq!(
            NetnsRef::of_process(&(own, itself))?.id(),
            NetnsRef::current()?.id()
        );
        let mut child = std::process::Command::new("true").spawn()?;
        let (_, ended) = process::pin(child.id())?;
        child.wait()?;
        let refused = NetnsRef::of_process(&(own, ended));
        assert!(
            matches!(
                refused,
                Err(super::NetnsError::Kernel {
                    errno: rustix::io::Errno::SRCH,
                    ..
                })
            ),
            "{refused:?}"
        );
        Ok(())
    }

    /// Two references to the same namespace have the same identity.
    #[test]
    fn identity_is_stable() -> Result<(), super::NetnsError> {
        assert_eq!(NetnsRef::current()?.id(), NetnsRef::current()?.id());
        Ok(())
    }
}

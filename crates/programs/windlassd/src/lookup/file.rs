//! A file of endpoints: when it is read, and by whom.
//!
//! # Model
//! The file's directory is watched, not the file: editors write another one and rename it. Any change in there has the file looked
//! at, [`SETTLES`] later, and read if it is not the one that was read last. Where there is no directory, it is looked for every
//! [`RETRIES`].
//!
//! # Failure modes
//! Each look is a thread's, which ends with it. Opening, and even looking, can wait for ever for a file system's server. One
//! thread of a file at most is there: until it answers, the file counts as one that does not.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, WatchFlags};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use windlass_lookup::files::{self, FILE_BYTES_MAX, FileError};
use windlass_lookup::table::Record;
use windlass_wire::MacAddr;

/// How long after a change a file is looked at: whoever replaces it changes its directory several times.
pub(super) const SETTLES: Duration = Duration::from_millis(50);
/// How often a file is looked for that cannot be watched, or be read.
pub(super) const RETRIES: Duration = Duration::from_secs(5);
/// How long a look may take.
pub(super) const LOOK_TIME_MAX: Duration = Duration::from_secs(5);
/// Looks at once, those that hang included.
const LOOKS_MAX: usize = 16;
/// How often a file that changes while it is read is read again, in one look.
const ATTEMPTS: usize = 5;
/// `FUSE_SUPER_MAGIC` of `linux/magic.h`.
const FUSE: i64 = 0x6573_5546;

/// Looks that have not ended.
static LOOKS: AtomicUsize = AtomicUsize::new(0);

/// Which file it was: another one, or a changed one, differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    file: (u64, u64),
    bytes: i64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(stat: &Stat) -> Self {
        Self {
            file: (stat.st_dev, stat.st_ino),
            bytes: stat.st_size,
            modified: (stat.st_mtime, stat.st_mtime_nsec.cast_signed()),
            changed: (stat.st_ctime, stat.st_ctime_nsec.cast_signed()),
        }
    }
}

/// What a look found.
pub(super) struct Found {
    /// The watch of the directory, if it has one.
    pub(super) watch: Option<i32>,
    /// The file, unless it is the one that was read last; or why it cannot be read.
    pub(super) read: Result<Option<Content>, String>,
}

/// A file that was read whole.
pub(super) struct Content {
    stamp: Stamp,
    /// What it has, or what is wrong with it.
    endpoints: Result<Endpoints, String>,
}

/// What a file has.
pub(super) type Endpoints = HashMap<MacAddr, Arc<Record>>;

/// When a file is looked at next, and what was found last.
#[derive(Debug)]
pub(super) struct Looks {
    /// Numbers the look, so that one for a path or an overlay of before is known.
    pub(super) number: u64,
    /// Until when the one that goes on may take.
    pub(super) until: Option<Instant>,
    /// Something has changed since it began.
    again: bool,
    /// When the next one begins.
    pub(super) due: Option<Instant>,
    /// What was read last.
    last: Option<Stamp>,
    /// Whether that was good.
    pub(super) content: Result<(), String>,
    /// The watch of its directory.
    pub(super) watch: Option<i32>,
}

impl Default for Looks {
    fn default() -> Self {
        Self {
            number: 0,
            until: None,
            again: false,
            due: None,
            last: None,
            content: Ok(()),
            watch: None,
        }
    }
}

impl Looks {
    /// Something has changed: the file is looked at soon.
    pub(super) fn change(&mut self, now: Instant) {
        if self.number != 0 {
            self.again = true;
        } else if self.due.is_none_or(|due| due > now + SETTLES) {
            self.due = Some(now + SETTLES);
        }
    }

    /// The file is read whether or not it has changed.
    pub(super) fn forget(&mut self, now: Instant) {
        self.last = None;
        self.change(now);
    }

    /// Begins a look, whose outcome goes to `done`.
    pub(super) fn begin(
        &mut self,
        number: u64,
        path: &Path,
        inotify: &Arc<OwnedFd>,
        done: impl FnOnce(Found) + Send + 'static,
    ) -> Result<(), String> {
        let now = Instant::now();
        self.due = Some(now + RETRIES);
        if LOOKS.fetch_add(1, Ordering::Relaxed) >= LOOKS_MAX {
            LOOKS.fetch_sub(1, Ordering::Relaxed);
            return Err(format!("{LOOKS_MAX} files do not answer"));
        }
        let (path, inotify, last) = (path.to_owned(), Arc::clone(inotify), self.last);
        let look = move || {
            let found = look(&path, &inotify, last);
            LOOKS.fetch_sub(1, Ordering::Relaxed);
            done(found);
        };
        let thread = std::thread::Builder::new().name("lookup-file".into());
        if let Err(error) = thread.spawn(look) {
            LOOKS.fetch_sub(1, Ordering::Relaxed);
            return Err(format!("no thread to read it: {error}"));
        }
        (self.number, self.until, self.due) = (number, Some(now + LOOK_TIME_MAX), None);
        self.again = false;
        Ok(())
    }

    /// A look has ended. Gives what the file has now, if that is new, or why it cannot be read.
    pub(super) fn end(&mut self, found: Found) -> Result<Option<Endpoints>, String> {
        let now = Instant::now();
        (self.number, self.until, self.watch) = (0, None, found.watch);
        let is_seen = found.watch.is_some() && found.read.is_ok();
        self.due = (!is_seen).then_some(now + RETRIES);
        if self.again {
            self.change(now);
        }
        if let Some(Content { stamp, endpoints }) = found.read? {
            self.last = Some(stamp);
            self.content = endpoints.as_ref().map(|_| ()).map_err(Clone::clone);
            return endpoints.map(Some);
        }
        self.content.clone().map(|()| None)
    }
}

/// Watches the directory, then looks at the file: a change after that is seen by one or the other.
fn look(path: &Path, inotify: &OwnedFd, last: Option<Stamp>) -> Found {
    let changes = WatchFlags::CREATE
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::MODIFY
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    let watch = path
        .parent()
        .and_then(|directory| inotify::add_watch(inotify, directory, changes).ok());
    let at = |reason| format!("{}: {reason}", path.display());
    for _ in 0..ATTEMPTS {
        match take(path, last) {
            Ok(Taken::Same) => {
                return Found {
                    watch,
                    read: Ok(None),
                };
            }
            Ok(Taken::Changing) => std::thread::sleep(SETTLES),
            Ok(Taken::Whole(stamp, text)) => {
                let endpoints = files::parse(&text).map_err(|error| at(error.to_string()));
                let read = Ok(Some(Content { stamp, endpoints }));
                return Found { watch, read };
            }
            Err(reason) => {
                let read = Err(at(reason));
                return Found { watch, read };
            }
        }
    }
    let read = Err(at("it changes while it is read".to_owned()));
    Found { watch, read }
}

/// What one attempt to read a file gave.
enum Taken {
    /// It is the one that was read last.
    Same,
    /// It changed meanwhile.
    Changing,
    Whole(Stamp, Vec<u8>),
}

/// Reads a file that has changed.
fn take(path: &Path, last: Option<Stamp>) -> Result<Taken, String> {
    let kernel = |errno: Errno| match errno {
        Errno::NOENT => "there is no such file".to_owned(),
        errno => errno.to_string(),
    };
    // By path only at first: opening a pipe or a device is felt by others, or waits.
    let named = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let named = named.map_err(kernel)?;
    let stat = rustix::fs::fstat(&named).map_err(kernel)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err("it is not a file".to_owned());
    }
    let system = rustix::fs::fstatfs(&named).map_err(kernel)?;
    if system.f_type == FUSE {
        return Err("it is in a file system of a user's process (FUSE)".to_owned());
    }
    let stamp = Stamp::of(&stat);
    if last == Some(stamp) {
        return Ok(Taken::Same);
    }
    let bytes = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
    if bytes > FILE_BYTES_MAX {
        return Err(FileError::TooLarge.to_string());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let again = format!("/proc/self/fd/{}", named.as_raw_fd());
    let file = rustix::fs::open(again, flags, Mode::empty()).map_err(kernel)?;
    let file = File::from(file);
    let mut text = Vec::with_capacity(bytes);
    let most = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX) + 1;
    let read = (&file).take(most).read_to_end(&mut text);
    read.map_err(|error| error.to_string())?;
    let after = rustix::fs::fstat(&file).map_err(kernel)?;
    match Stamp::of(&after) == stamp {
        true => Ok(Taken::Whole(stamp, text)),
        false => Ok(Taken::Changing),
    }
}

//! Status files of processes under `libwindlass_alloc.so`: where they are, whose they are, and their rows.
//!
//! # Model
//! Any user can put anything into their own directory. So a directory counts if it belongs to the user that its path names, a file if it is
//! a regular one of that user, and what it says if a process of that user has this number and started then. Rows are copied by pread(2)
//! until two copies agree. No word of them is trusted.
//!
//! # What can be lost and what cannot
//! A file is removed if it is the caller's own, its process is gone, and nobody has it locked. The name has the time at which the process started: a later process of the
//! same number has a file of another name.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, openat, unlinkat};
use windlass_memory::{
    ANCHOR, ARENA, Anchor, Arena, BASES, CACHE, CLASS, Cache, Class, DIRECTORY, FILE_LEN, HEADER,
    Header, MAGIC, MAPPED, Mapped, RAW, Raw, SAMPLE, SAMPLING, STACK, Sample, Sampling, Stack,
    THREAD, Table, Thread, VERSION,
};
use windlass_sys::identity::Image;
use windlass_target::maps;

/// Files of a directory that are looked at.
const FILES_MAX: usize = 16_384;
/// Directories of other users that root looks at.
const USERS_MAX: usize = 4096;
/// How often a row is read before it is left out.
const TRIES: usize = 64;
/// A process that does not map its file may be about to.
const YOUNG: Duration = Duration::from_secs(60);

/// The status file of a live process.
#[derive(Debug)]
pub(crate) struct Status {
    /// The process.
    pub(crate) pid: u32,
    /// Its user.
    pub(crate) uid: u32,
    /// What the file says of itself.
    pub(crate) header: Header,
    file: File,
}

/// Why there is no status of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Absent {
    /// There is no such process.
    Gone,
    /// It has no file, or not here.
    Unprepared,
    /// It is another user's.
    Foreign,
    /// Its file is of another version.
    Version(u64),
}

/// A directory of status files, and the user whose files they are.
#[derive(Debug)]
struct Directory {
    fd: OwnedFd,
    uid: u32,
}

impl Directory {
    /// Opens one if nobody else can have made it.
    fn open(path: &Path, uid: u32) -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // The parent first: in a directory for everybody it could be somebody else's link.
        let parent = openat(CWD, path.parent()?, flags, Mode::empty()).ok()?;
        let fd = openat(&parent, path.file_name()?, flags, Mode::empty()).ok()?;
        let owner = |fd: &OwnedFd| rustix::fs::fstat(fd).is_ok_and(|stat| stat.st_uid == uid);
        (owner(&parent) && owner(&fd)).then_some(Self { fd, uid })
    }

    /// The processes whose files it has, with their times of start.
    fn files(&self) -> Vec<(u32, u64)> {
        let Ok(entries) = rustix::fs::Dir::read_from(&self.fd) else {
            return Vec::new();
        };
        let parse = |entry: rustix::fs::DirEntry| {
            let (pid, start) = entry.file_name().to_str().ok()?.split_once('.')?;
            Some((pid.parse().ok()?, start.parse().ok()?))
        };
        entries
            .flatten()
            .filter_map(parse)
            .take(FILES_MAX)
            .collect()
    }

    /// The status of a process, if its file is what it should be. The file of a dead one is removed.
    fn status(&self, pid: u32, start: u64) -> Result<Status, Absent> {
        let name = format!("{pid}.{start}");
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(&self.fd, &name, flags, Mode::empty()).map_err(|_| Absent::Unprepared)?;
        let file = File::from(file);
        let about = file.metadata().map_err(|_| Absent::Unprepared)?;
        if !about.is_file() || about.uid() != self.uid {
            return Err(Absent::Foreign);
        }
        match life(pid, start, &file) {
            Life::Lives => Status::read(file, pid, self.uid),
            Life::Dead => {
                self.sweep(&name, &file);
                Err(Absent::Gone)
            }
            Life::Unknown => Err(Absent::Unprepared),
        }
    }

    /// A process of another PID namespace seems to be dead; it has its file locked.
    fn sweep(&self, name: &str, file: &File) {
        let is_own = self.uid == windlass_sys::process::effective_uid();
        if is_own && rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // Another reader may have done so.
            let _ = unlinkat(self.fd.as_fd(), name, AtFlags::empty());
        }
    }
}

enum Life {
    Lives,
    /// For good.
    Dead,
    Unknown,
}

/// Whether the process that made a file is alive and uses it still.
fn life(pid: u32, start: u64, file: &File) -> Life {
    let Ok(about) = file.metadata() else {
        return Life::Unknown;
    };
    let started = |pid| Image::of(pid).map(|image| image.started());
    let Ok(process) = std::fs::metadata(format!("/proc/{pid}")) else {
        return Life::Dead;
    };
    // 0: the process could not read it.
    if start != 0 && started(pid).is_some_and(|now| now != start) {
        return Life::Dead;
    }
    let mapped = maps::of(pid).map(|all| all.iter().any(|mapping| mapping.inode == about.ino()));
    match mapped {
        Ok(true) => Life::Lives,
        // A program that took this one's place and does not use the library.
        Ok(false) => match about
            .created()
            .or(about.modified())
            .map(|then| SystemTime::now().duration_since(then))
        {
            Ok(Ok(age)) if age > YOUNG => Life::Dead,
            _ => Life::Unknown,
        },
        Err(_) if process.uid() == about.uid() => Life::Lives,
        Err(_) => Life::Unknown,
    }
}

/// Where status files of a user may be.
fn directories(uid: u32) -> Vec<Directory> {
    let own = windlass_sys::process::effective_uid() == uid;
    let variable = std::env::var_os("XDG_RUNTIME_DIR")
        .filter(|_| own)
        .map(PathBuf::from);
    let session = PathBuf::from(format!("/run/user/{uid}"));
    let mut runtime = vec![variable.unwrap_or_else(|| session.clone())];
    if !runtime.contains(&session) {
        runtime.push(session);
    }
    let runtime = runtime.into_iter().map(|path| path.join("windlass"));
    let others = BASES.map(|base| PathBuf::from(format!("{base}{uid}")));
    runtime
        .chain(others)
        .filter_map(|path| Directory::open(&path.join(DIRECTORY), uid))
        .collect()
}

/// The users whose processes the caller may see.
fn users() -> Vec<u32> {
    let own = windlass_sys::process::effective_uid();
    if own != 0 {
        return vec![own];
    }
    let names = |path: &str| std::fs::read_dir(path).into_iter().flatten().flatten();
    let sessions = names("/run/user").filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let others = BASES.iter().flat_map(|base| {
        let (directory, prefix) = base.rsplit_once('/').unwrap_or_default();
        names(directory).filter_map(move |entry| {
            let name = entry.file_name();
            name.to_str()?.strip_prefix(prefix)?.parse().ok()
        })
    });
    let mut all: Vec<u32> = sessions
        .chain(others)
        .chain([own])
        .take(USERS_MAX)
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The status files of all processes that the caller may see, by number.
pub(crate) fn all() -> Vec<Status> {
    let mut found: Vec<Status> = Vec::new();
    for directory in users().into_iter().flat_map(directories) {
        let files = directory.files().into_iter();
        found.extend(files.filter_map(|(pid, start)| directory.status(pid, start).ok()));
    }
    found.sort_by_key(|status| (status.pid, std::cmp::Reverse(status.header.epoch)));
    found.dedup_by_key(|status| status.pid);
    found
}

/// The status file of one process.
pub(crate) fn of(pid: u32) -> Result<Status, Absent> {
    let process = std::fs::metadata(format!("/proc/{pid}")).map_err(|_| Absent::Gone)?;
    let own = windlass_sys::process::effective_uid();
    if own != 0 && own != process.uid() {
        return Err(Absent::Foreign);
    }
    let start = Image::of(pid).ok_or(Absent::Gone)?.started();
    let mut why = Absent::Unprepared;
    for directory in directories(process.uid()) {
        match [start, 0].map(|start| directory.status(pid, start)) {
            [Ok(status), _] | [_, Ok(status)] => return Ok(status),
            [Err(Absent::Unprepared), Err(Absent::Unprepared)] => {}
            [Err(Absent::Unprepared), Err(other)] | [Err(other), _] => why = other,
        }
    }
    by_mapping(pid, process.uid()).map_err(|error| match why {
        Absent::Unprepared => error,
        other => other,
    })
}

/// The file that a process has mapped, wherever it is: its runtime directory may be another than the caller's.
fn by_mapping(pid: u32, uid: u32) -> Result<Status, Absent> {
    // Some processes hide their mappings from everybody.
    let all = maps::of(pid).map_err(|_| Absent::Unprepared)?;
    let name = format!("/memory/{pid}.");
    let is_it = |mapping: &&maps::Mapping| mapping.is_shared && mapping.name.contains(&name);
    let found = all.iter().filter(is_it).find_map(|mapping| {
        let path = mapping.path()?;
        let directory = Directory::open(path.parent()?, uid)?;
        let (number, start) = path.file_name()?.to_str()?.split_once('.')?;
        if number.parse() != Ok(pid) {
            return None;
        }
        directory.status(pid, start.parse().ok()?).ok()
    });
    found.ok_or(Absent::Unprepared)
}

impl Status {
    /// Reads the header.
    fn read(file: File, pid: u32, uid: u32) -> Result<Self, Absent> {
        let header = row(&file, &HEADER, 0, Header::from_bytes).ok_or(Absent::Unprepared)?;
        if header.magic != MAGIC {
            return Err(Absent::Unprepared);
        }
        if header.version != VERSION || header.len != FILE_LEN as u64 {
            return Err(Absent::Version(header.version));
        }
        if header.pid != u64::from(pid) {
            return Err(Absent::Foreign);
        }
        Ok(Self {
            pid,
            uid,
            header,
            file,
        })
    }

    /// Inode of the file.
    pub(crate) fn inode(&self) -> u64 {
        self.file.metadata().map_or(0, |about| about.ino())
    }

    pub(crate) fn arena(&self) -> Option<Arena> {
        row(&self.file, &ARENA, 0, Arena::from_bytes)
    }

    pub(crate) fn mapped(&self) -> Option<Mapped> {
        row(&self.file, &MAPPED, 0, Mapped::from_bytes)
    }

    pub(crate) fn sampling(&self) -> Option<Sampling> {
        row(&self.file, &SAMPLING, 0, Sampling::from_bytes)
    }

    pub(crate) fn anchor(&self) -> Option<Anchor> {
        row(&self.file, &ANCHOR, 0, Anchor::from_bytes)
    }

    /// Rows of classes, by number; those that could not be read are `None`.
    pub(crate) fn classes(&self) -> Vec<Option<Class>> {
        table(&self.file, &CLASS, Class::from_bytes)
    }

    pub(crate) fn threads(&self) -> Vec<Option<Thread>> {
        table(&self.file, &THREAD, Thread::from_bytes)
    }

    pub(crate) fn caches(&self) -> Vec<Option<Cache>> {
        table(&self.file, &CACHE, Cache::from_bytes)
    }

    pub(crate) fn samples(&self) -> Vec<Option<Sample>> {
        table(&self.file, &SAMPLE, Sample::from_bytes)
    }

    pub(crate) fn stacks(&self) -> Vec<Option<Stack>> {
        table(&self.file, &STACK, Stack::from_bytes)
    }

    pub(crate) fn raw(&self, number: usize) -> Option<Raw> {
        row(&self.file, &RAW, number, Raw::from_bytes)
    }
}

/// Bytes of a file; those behind its end are zeros.
fn bytes(file: &File, offset: usize, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match file.read_at(&mut bytes[done..], (offset + done) as u64)? {
            0 => break,
            more => done += more,
        }
    }
    Ok(bytes)
}

/// A row, once two copies of it agree.
fn row<T: PartialEq>(
    file: &File,
    table: &Table,
    number: usize,
    parse: fn(&[u8]) -> Option<T>,
) -> Option<T> {
    let offset = table.row(number)?;
    let mut last = None;
    for _ in 0..TRIES {
        let now = parse(&bytes(file, offset, table.stride).ok()?);
        if now.is_some() && now == last {
            return now;
        }
        last = now;
        std::thread::yield_now();
    }
    None
}

/// All rows of a table: two copies of the whole, then each row that differs by itself.
fn table<T: PartialEq>(
    file: &File,
    table: &Table,
    parse: fn(&[u8]) -> Option<T>,
) -> Vec<Option<T>> {
    let copy = || bytes(file, table.offset, table.stride * table.rows);
    let (Ok(before), Ok(after)) = (copy(), copy()) else {
        return Vec::new();
    };
    let both = before
        .chunks_exact(table.stride)
        .zip(after.chunks_exact(table.stride));
    both.enumerate()
        .map(|(number, (before, after))| match parse(after) {
            Some(now) if before == after => Some(now),
            _ => row(file, table, number, parse),
        })
        .collect()
}

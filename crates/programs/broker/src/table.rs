//! The table of processes, which outlives the broker.
//!
//! # Purpose
//! Processes know each other by their slots: in locks, and in the memory of pairs that goes on without a broker. So a number
//! must mean the same process with the next broker, and the word of a process that dies meanwhile has to become 0.
//!
//! # Model
//! A file beside the socket, which only the broker's user can open. Its first [`PROCESSES_BYTES`] are what processes map: a process
//! id for each slot. Behind them is a word for each slot, with the moment at which its process was started; that of slot 0, which
//! is nobody's, has the version of the messages and the slot that was given last.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use windlass_channel::protocol::{BROKER_SLOT, PROCESSES_BYTES, SLOTS, VERSION};
use windlass_sys::sealed::reader_of;

const BYTES: usize = PROCESSES_BYTES + SLOTS * 8;

/// The table of one broker after another.
pub(crate) struct Table {
    file: OwnedFd,
    reader: OwnedFd,
}

/// A process that a former broker has left: its slot, its id, and when it was started, in ticks since the boot.
pub(crate) type Left = (u16, u32, u64);

impl Table {
    /// The table beside a socket, with what it holds; this process is the broker in it.
    pub(crate) fn beside(socket: &Path) -> Result<Self, Errno> {
        let path = socket.with_extension("processes");
        let file = opened(&path)?;
        let reader = reader_of(&file)?;
        let table = Self { file, reader };
        table.store(
            usize::from(BROKER_SLOT) * 4,
            &std::process::id().to_ne_bytes(),
        );
        Ok(table)
    }

    /// A descriptor for reading.
    pub(crate) fn reader(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// A process has a slot from now on; `last` was given last.
    pub(crate) fn put(&self, slot: u16, pid: u32, started: u64, last: u16) {
        self.store(place_behind(slot), &started.to_ne_bytes());
        self.store(place_behind(0), &head(last).to_ne_bytes());
        self.store(usize::from(slot) * 4, &pid.to_ne_bytes());
    }

    /// Nobody has the slot.
    pub(crate) fn clear(&self, slot: u16) {
        self.store(usize::from(slot) * 4, &[0; 4]);
    }

    /// The processes that a former broker has left, dead or alive, and the slot that it gave last.
    pub(crate) fn left(&self) -> (Vec<Left>, u16) {
        let mut bytes = vec![0; BYTES];
        let read = rustix::io::pread(&self.file, &mut bytes, 0);
        if read != Ok(BYTES) {
            return (Vec::new(), 0);
        }
        let (pids, behind) = bytes.split_at(PROCESSES_BYTES);
        let pids = pids.as_chunks().0.iter().copied().map(u32::from_ne_bytes);
        let mut behind = behind.as_chunks().0.iter().copied().map(u64::from_ne_bytes);
        let last = behind.next().unwrap_or(0) as u16;
        let all = (1..BROKER_SLOT).zip(pids.skip(1).zip(behind));
        let all = all.map(|(slot, (pid, started))| (slot, pid, started));
        (all.filter(|(_, pid, _)| *pid != 0).collect(), last)
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        // A write of aligned bytes within the file. It has no reason to fail, and a reader would see what was there.
        let _ = rustix::io::pwrite(&self.file, bytes, at as u64);
    }
}

const fn place_behind(slot: u16) -> usize {
    PROCESSES_BYTES + slot as usize * 8
}

/// The word behind slot 0.
fn head(last: u16) -> u64 {
    u64::from(VERSION) << 32 | u64::from(last)
}

/// The file there, if it is one of ours, or a new one in its place.
fn opened(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mode = Mode::RUSR | Mode::WUSR;
    let old = rustix::fs::open(path, flags, Mode::empty());
    if let Some(file) = old.ok().filter(|file| is_ours(file) == Ok(true)) {
        return Ok(file);
    }
    // Nothing is there, or it is not ours to be used.
    let _ = rustix::fs::unlink(path);
    let file = rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
    rustix::fs::fchmod(&file, mode)?;
    rustix::fs::ftruncate(&file, BYTES as u64)?;
    rustix::io::pwrite(&file, &head(0).to_ne_bytes(), place_behind(0) as u64)?;
    Ok(file)
}

/// Whether only a broker of this user and of this version can have written it.
fn is_ours(file: &OwnedFd) -> Result<bool, Errno> {
    let stat = rustix::fs::fstat(file)?;
    let own = rustix::process::geteuid().as_raw();
    let mut word = [0; 8];
    rustix::io::pread(file, &mut word, place_behind(0) as u64)?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(is_regular
        && (stat.st_uid, stat.st_mode & 0o777, stat.st_nlink) == (own, 0o600, 1)
        && stat.st_size == BYTES as i64
        && u64::from_ne_bytes(word) >> 32 == head(0) >> 32)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// What one broker has written the next one finds; a file that others could have written is not believed.
    #[test]
    fn a_table_outlives_its_broker() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("sockets.sock");
        let open = || Table::beside(&socket).expect("a table");
        let table = open();
        assert_eq!(table.left(), (vec![], 0));
        table.put(7, 99, 1234, 7);
        table.put(8, 98, 1235, 8);
        table.clear(7);
        assert_eq!(open().left(), (vec![(8, 98, 1235)], 8));
        let file = directory.path().join("sockets.processes");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).expect("mode");
        assert_eq!(open().left(), (vec![], 0));
        open().put(7, 99, 1234, 7);
        let other = directory.path().join("other");
        std::fs::rename(&file, &other).expect("moved");
        symlink(&other, &file).expect("a link");
        assert_eq!(open().left(), (vec![], 0));
        std::fs::write(&file, "short").expect("a file");
        assert_eq!(open().left(), (vec![], 0));
        let reader = rustix::io::pwrite(open().reader(), &[1], 0);
        assert_eq!(reader, Err(Errno::BADF));
    }
}

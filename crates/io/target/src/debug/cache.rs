//! Indexes of names that earlier runs made: one file for each build id, in this user's cache directory.
//!
//! # Failure modes
//! A file or directory that belongs to somebody else, or that others may write to, is left alone; so is a file that is too large. What
//! cannot be written, as on a full disk, is not kept. [`Cache::note`] says so; the index is then made again each time.

use std::cell::RefCell;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use windlass_sys::mapped::Mapped;
use windlass_sys::own::{self, is_own};

/// Bytes of one file at most.
const FILE_MAX: u64 = 64 << 20;
/// Bytes of all files at most; the oldest go.
const ALL_MAX: u64 = 1 << 30;
/// Files that are looked at.
const FILES_MAX: usize = 65_536;

/// Where indexes are kept, and what was wrong there.
#[derive(Debug, Default)]
pub(super) struct Cache {
    directory: Option<PathBuf>,
    note: RefCell<Option<String>>,
}

impl Cache {
    /// Under the user's directory for caches.
    pub(super) fn of_user() -> Self {
        let base = own::directory("XDG_CACHE_HOME", ".cache");
        Self::at(base.map(|base| base.join("windlass/types")))
    }

    pub(super) fn at(directory: Option<PathBuf>) -> Self {
        Self {
            directory,
            note: RefCell::default(),
        }
    }

    /// Why nothing is kept, if there is a reason.
    pub(super) fn note(&self) -> Option<String> {
        self.note.borrow().clone()
    }

    fn complain(&self, path: &Path, why: &str) {
        *self.note.borrow_mut() = Some(format!(
            "{}: {why}: names are looked up anew",
            path.display()
        ));
    }

    /// What was kept under a name.
    pub(super) fn load(&self, name: &str) -> Option<Mapped> {
        let path = self.directory.as_ref()?.join(name);
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let flags = i32::try_from(flags.bits()).ok()?;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&path);
        let file = match file {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                self.complain(&path, &error.to_string());
                return None;
            }
        };
        let found = file.metadata().ok()?;
        if !is_own(&found) || found.len() > FILE_MAX {
            self.complain(&path, "not a file of this user alone");
            return None;
        }
        Mapped::of(&file)
    }

    /// Keeps bytes under a name.
    pub(super) fn keep(&self, name: &str, bytes: &[u8]) {
        let Some(directory) = self.directory.as_ref() else {
            return;
        };
        if bytes.len() as u64 > FILE_MAX {
            return;
        }
        if let Err(error) = write(directory, name, bytes) {
            self.complain(directory, &error.to_string());
        }
    }
}

fn write(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    if !is_own(&std::fs::metadata(directory)?) {
        return Err(io::Error::other("not a directory of this user alone"));
    }
    make_room(directory, bytes.len() as u64)?;
    let part = directory.join(format!(".{name}.{}", std::process::id()));
    let written = fill(&part, bytes).and_then(|()| std::fs::rename(&part, directory.join(name)));
    if written.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    written
}

fn fill(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file: File = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)
}

/// Removes the files that were written longest ago until there is room.
fn make_room(directory: &Path, len: u64) -> io::Result<()> {
    let mut all: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(directory)?.take(FILES_MAX) {
        let entry = entry?;
        let found = entry.metadata()?;
        all.push((found.modified()?, found.len(), entry.path()));
    }
    all.sort();
    let mut sum = all
        .iter()
        .fold(len, |sum, (_, len, _)| sum.saturating_add(*len));
    for (_, len, path) in all {
        if sum <= ALL_MAX {
            break;
        }
        std::fs::remove_file(path)?;
        sum = sum.saturating_sub(len);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    /// What is kept is found again with its owner's rights alone. Nothing is taken from, or written to, what others can change; a full disk
    /// leaves nothing behind. Each says so.
    #[test]
    fn what_is_not_its_users_is_left_alone() {
        let place = tempfile::tempdir().expect("a directory");
        let directory = place.path().join("windlass/types");
        let cache = || Cache::at(Some(directory.clone()));
        let own = cache();
        assert!(own.load("a.v1").is_none() && own.note().is_none());
        own.keep("a.v1", b"content");
        assert_eq!(own.load("a.v1").as_deref(), Some(&b"content"[..]));
        let mode = |path: &Path| std::fs::metadata(path).expect("there").mode() & 0o777;
        assert_eq!(
            (mode(&directory), mode(&directory.join("a.v1"))),
            (0o700, 0o600)
        );
        let set = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode));
        set(&directory.join("a.v1"), 0o666).expect("its owner");
        let open = cache();
        assert!(open.load("a.v1").is_none() && open.note().is_some());
        std::fs::remove_file(directory.join("a.v1")).expect("there");
        std::os::unix::fs::symlink("/etc/passwd", directory.join("a.v1")).expect("made");
        let link = cache();
        assert!(link.load("a.v1").is_none() && link.note().is_some());
        set(&directory, 0o777).expect("its owner");
        let shared = cache();
        shared.keep("b.v1", b"content");
        assert!(
            shared
                .note()
                .is_some_and(|note| note.contains("not a directory of this user"))
        );
        assert!(!directory.join("b.v1").exists());
        let error = fill(Path::new("/dev/full"), b"x").expect_err("exists");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        let nowhere = Cache::at(Some("/proc/1/nothing".into()));
        nowhere.keep("b.v1", b"content");
        assert!(nowhere.note().is_some());
    }

    /// The oldest files make room.
    #[test]
    fn the_oldest_make_room() {
        let place = tempfile::tempdir().expect("a directory");
        let own = |name: &str, days: u64| {
            let path = place.path().join(name);
            let file = File::create(&path).expect("made");
            file.set_len(ALL_MAX / 2).expect("with a hole");
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(days * 86_400);
            file.set_modified(time).expect("set");
            path
        };
        let (newer, older) = (own("newer", 2), own("older", 1));
        make_room(place.path(), 1).expect("room");
        assert!(newer.exists() && !older.exists());
    }
}

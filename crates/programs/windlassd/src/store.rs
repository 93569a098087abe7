//! The stored document: durable, replaced as a whole, never half written.
//!
//! # Model
//! `document.json` in the state directory holds; beside it lie, only during a change, `document.next` and then
//! `document.last`. A change is made in five steps:
//!
//! 1. The caller prepares what is new, with nothing of it on the host yet.
//! 2. [`Store::prepare`] writes `document.next` and flushes it. A full disk fails here;
//!    `document.json` was not touched.
//! 3. [`Store::commit`] keeps the old document as `document.last`, renames `document.next` over `document.json` and
//!    flushes the directory. If the change could not be made, [`Store::abandon`] removes `document.next` instead.
//! 4. The caller makes on the host what is new, and deletes what is gone.
//! 5. [`Store::finish`] removes `document.last`.
//!
//! # What can be lost and what cannot
//! A kill or a power cut leaves the old document or the new one, whole. If it came between 2 and 3,
//! [`Loaded::unfinished`] tells what had been begun, and if it came between 3 and 5, [`Loaded::replaced`] tells what
//! held before, so that remains on the host can be removed. A power cut leaves no remains: so the names of these two files are not flushed
//! for their own sake.
//!
//! # Synchronization
//! The file `lock` is locked (`flock`) as long as the store is open: two daemons cannot share one state
//! directory. The kernel drops the lock with the process, however that ends.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use windlass_api::{Document, validate};

/// Largest stored document that is read, in bytes.
pub const DOCUMENT_BYTES_MAX: u64 = 64 << 20;

const CURRENT: &str = "document.json";
const NEXT: &str = "document.next";
const LAST: &str = "document.last";
const LOCK: &str = "lock";

/// Why the document could not be read or written.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The system refused.
    #[error("{action} {path}: {error}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// Another daemon has the directory.
    #[error("{0} is in use by another windlassd: give this one its own --state-dir")]
    Locked(PathBuf),
    /// What lies there is not a document.
    #[error("{path} is not a stored document: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where, and what is wrong.
        reason: String,
    },
}

/// What was read at start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The revision of the document; 0 if there was none.
    pub revision: u64,
    /// The document; the empty one if there was none.
    pub document: Document,
    /// The document that was being put in its place when the daemon was killed.
    pub unfinished: Option<Document>,
    /// The document that had just been replaced when the daemon was killed.
    pub replaced: Option<Document>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredIn {
    revision: u64,
    document: Document,
}

#[derive(Serialize)]
struct StoredOut<'a> {
    revision: u64,
    document: &'a Document,
}

/// The open state directory.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    handle: File,
    lock: File,
}

impl Store {
    /// Makes the directory and those above it (mode 0700) durably if they are missing.
    ///
    /// # Errors
    /// If it cannot be made or flushed.
    pub fn make_directory(directory: &Path) -> Result<(), StoreError> {
        make(directory).map_err(|error| StoreError::Io {
            action: "cannot make",
            path: directory.to_path_buf(),
            error,
        })
    }

    /// Opens the directory, making it if it is missing ([`Store::make_directory`]), and locks it.
    ///
    /// # Errors
    /// If it cannot be made, flushed, opened or locked.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let store = Self::open_unlocked(directory)?;
        store.lock()?;
        Ok(store)
    }

    /// The same without the lock: until [`Store::lock`], another daemon may have it.
    ///
    /// # Errors
    /// If it cannot be made, flushed or opened.
    pub fn open_unlocked(directory: &Path) -> Result<Self, StoreError> {
        let io = |action| {
            move |error| StoreError::Io {
                action,
                path: directory.to_path_buf(),
                error,
            }
        };
        Self::make_directory(directory)?;
        let handle = File::open(directory).map_err(io("cannot open"))?;
        let path = directory.join(LOCK);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| StoreError::Io {
                action: "cannot open",
                path: path.clone(),
                error,
            })?;
        Ok(Self {
            directory: directory.into(),
            handle,
            lock,
        })
    }

    /// Locks the directory.
    ///
    /// # Errors
    /// If another daemon has it.
    pub fn lock(&self) -> Result<(), StoreError> {
        self.lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => StoreError::Locked(self.directory.clone()),
            TryLockError::Error(error) => StoreError::Io {
                action: "cannot lock",
                path: self.directory.join(LOCK),
                error,
            },
        })
    }

    /// Reads the document without the lock, beside a daemon that has it.
    ///
    /// # Errors
    /// As [`Store::load`].
    pub fn peek(&self) -> Result<Document, StoreError> {
        Ok(check(&self.directory)?.unwrap_or_default())
    }

    /// Reads what is stored, and what was not finished.
    ///
    /// # Errors
    /// If the document is not readable, or not valid: the daemon must not start with another one.
    pub fn load(&mut self) -> Result<Loaded, StoreError> {
        check(&self.directory)?;
        let mut loaded = match read(&self.directory.join(CURRENT))? {
            None => Loaded::default(),
            Some(stored) => Loaded {
                revision: stored.revision,
                document: stored.document,
                ..Loaded::default()
            },
        };
        // What was being written when the daemon was killed may be half there; then nothing was done.
        let unfinished = read(&self.directory.join(NEXT)).ok().flatten();
        loaded.unfinished = unfinished.map(|stored| stored.document);
        let replaced = read(&self.directory.join(LAST)).ok().flatten();
        loaded.replaced = replaced.map(|stored| stored.document);
        Ok(loaded)
    }

    /// Writes the document beside the one that holds, durably.
    ///
    /// # Errors
    /// If it cannot be written: the disk is full, or read-only. Nothing is left behind.
    pub fn prepare(&mut self, revision: u64, document: &Document) -> Result<(), StoreError> {
        let path = self.directory.join(NEXT);
        let result = self.write(&path, revision, document);
        if result.is_err() {
            let _ = fs::remove_file(&path);
        }
        result.map_err(|error| StoreError::Io {
            action: "cannot write",
            path,
            error,
        })
    }

    fn write(&self, path: &Path, revision: u64, document: &Document) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(&StoredOut { revision, document })?;
        text.push(b'\n');
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(&text)?;
        file.sync_all()
    }

    /// Puts the prepared document in the place of the one that holds, which is kept until [`Store::finish`].
    ///
    /// # Errors
    /// If the system refuses; the old document holds then.
    pub fn commit(&mut self) -> Result<(), StoreError> {
        self.finish()?;
        let path = self.directory.join(CURRENT);
        let result = match fs::hard_link(&path, self.directory.join(LAST)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => fs::rename(self.directory.join(NEXT), &path),
        };
        let result = result.and_then(|()| self.handle.sync_all());
        result.map_err(|error| StoreError::Io {
            action: "cannot replace",
            path,
            error,
        })
    }

    /// Takes the prepared document away.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn abandon(&mut self) -> Result<(), StoreError> {
        self.remove(NEXT)
    }

    /// Takes the document away that was replaced: nothing of it is left on the host.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn finish(&mut self) -> Result<(), StoreError> {
        self.remove(LAST)
    }

    fn remove(&self, name: &str) -> Result<(), StoreError> {
        let path = self.directory.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::Io {
                action: "cannot remove",
                path,
                error,
            }),
            _ => Ok(()),
        }
    }
}

/// Makes a directory and those above it that are missing, and flushes the parent of each one made: a document in it is not
/// lost with its directory.
fn make(directory: &Path) -> io::Result<()> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let missing: Vec<&Path> = directory.ancestors().take_while(is_missing).collect();
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    for parent in missing.into_iter().filter_map(Path::parent) {
        let here = parent.as_os_str().is_empty();
        File::open(if here { Path::new(".") } else { parent })?.sync_all()?;
    }
    Ok(())
}

/// Reads and validates the document in a state directory without locking it or changing anything;
/// `None` if there is none yet.
///
/// # Errors
/// If it cannot be read, or is damaged.
pub fn check(directory: &Path) -> Result<Option<Document>, StoreError> {
    let path = directory.join(CURRENT);
    let Some(stored) = read(&path)? else {
        return Ok(None);
    };
    validate(&stored.document, &Document::default()).map_err(|error| StoreError::Damaged {
        path,
        reason: error.message,
    })?;
    Ok(Some(stored.document))
}

fn read(path: &Path) -> Result<Option<StoredIn>, StoreError> {
    let io = |error| StoreError::Io {
        action: "cannot read",
        path: path.into(),
        error,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let mut text = Vec::new();
    file.take(DOCUMENT_BYTES_MAX)
        .read_to_end(&mut text)
        .map_err(io)?;
    let mut json = serde_json::Deserializer::from_slice(&text);
    let stored =
        serde_path_to_error::deserialize(&mut json).map_err(|error| StoreError::Damaged {
            path: path.into(),
            reason: error.to_string(),
        })?;
    Ok(Some(stored))
}

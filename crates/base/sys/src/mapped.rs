//! Files that are mapped to be read.
//!
//! # Failure modes
//! A mapped file that is cut short kills its reader (`SIGBUS`), and one that is written to changes under it. So a file is mapped only if
//! none but the system and this process's own user can do either.

use std::ops::Deref;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::fs::FileType;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::trusted;

/// What `statfs` says of a file that a program of another user may answer for.
const FUSE: u64 = 0x6573_5546;

/// A whole file, mapped.
#[derive(Debug)]
pub struct Mapped {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is read only, and this object's own until it is dropped.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps a regular file; `None` if it is empty, if others can change it, or if the kernel refuses.
    pub fn of(file: impl AsFd) -> Option<Self> {
        let stat = rustix::fs::fstat(&file).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let is_served = rustix::fs::fstatfs(&file).ok()?.f_type.cast_unsigned() == FUSE;
        if !is_file || is_served || !trusted::is_safe(&stat).ok()? {
            return None;
        }
        let len = usize::try_from(stat.st_size).ok().filter(|len| *len > 0)?;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at a place of the kernel's choice; its only user is this object.
        let start = unsafe { mmap(null, len, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) };
        let start = NonNull::new(start.ok()?.cast())?;
        Some(Self { start, len })
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped for reading until this object is dropped; who could change the file was looked at before.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`; what was lent of it does not live longer than this object.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    /// A file of this user is mapped; not one that others may write to, nor a device.
    #[test]
    fn only_what_stays_is_mapped() {
        let path = std::env::temp_dir().join(format!("windlass-mapped-{}", std::process::id()));
        std::fs::write(&path, b"content").expect("written");
        let file = File::open(&path).expect("there");
        let set = |mode| std::fs::set_permissions(&path, Permissions::from_mode(mode));
        set(0o600).expect("its owner's");
        assert_eq!(Mapped::of(&file).as_deref(), Some(&b"content"[..]));
        set(0o606).expect("everybody's");
        assert!(Mapped::of(&file).is_none());
        std::fs::remove_file(&path).expect("there");
        assert!(Mapped::of(File::open("/dev/zero").expect("there")).is_none());
    }
}

//! Memory objects that are handed to other processes.
//!
//! # Model
//! A memory object of fixed size. Nobody can shrink, grow or seal it further, and its mode keeps other users from opening it anew:
//! who was given it for reading cannot write to it.

use std::os::fd::{AsFd, OwnedFd};

use crate::process::number;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

/// Zeroed memory, to be written by whoever gets it.
pub fn create(name: &str, bytes: usize) -> Result<OwnedFd, Errno> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    seal(&fd, SealFlags::empty())?;
    Ok(fd)
}

/// Memory that is these bytes for ever.
pub fn holding(name: &str, contents: &[u8]) -> Result<OwnedFd, Errno> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut rest = contents;
    while !rest.is_empty() {
        let written = rustix::io::write(&fd, rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    seal(&fd, SealFlags::WRITE)?;
    Ok(fd)
}

fn seal(fd: &OwnedFd, more: SealFlags) -> Result<(), Errno> {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(fd, seals | more)
}

/// Bytes that it really takes.
pub fn bytes_used(memory: &OwnedFd) -> u64 {
    let blocks = rustix::fs::fstat(memory).map_or(0, |stat| stat.st_blocks);
    u64::try_from(blocks).unwrap_or(0).saturating_mul(512)
}

/// A descriptor of the same file that cannot write.
pub fn reader_of(file: impl AsFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", number(file));
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that was handed out can be neither cut nor lengthened, and the descriptor for readers does not write.
    #[test]
    fn memory_is_sealed() {
        let memory = create("test", 8192).expect("memory");
        assert_eq!(rustix::fs::ftruncate(&memory, 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&memory, 16384), Err(Errno::PERM));
        let more = rustix::fs::fcntl_add_seals(&memory, SealFlags::WRITE);
        assert_eq!(more, Err(Errno::PERM));
        let reader = reader_of(&memory).expect("reader");
        assert_eq!(rustix::io::pwrite(&reader, b"x", 0), Err(Errno::BADF));
        assert_eq!(rustix::io::pwrite(&memory, &[7], 4), Ok(1));
        let mut bytes = [0; 8];
        assert_eq!(rustix::io::pread(&reader, &mut bytes, 0), Ok(8));
        assert_eq!(bytes, [0, 0, 0, 0, 7, 0, 0, 0]);
        let fixed = holding("fixed", b"abc").expect("memory");
        assert_eq!(rustix::io::pwrite(&fixed, b"x", 0), Err(Errno::PERM));
        assert!(bytes_used(&memory) <= 8192);
    }
}

//! A region of shared memory with its file, addressed by 32-bit offsets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use anyhow::Result;
use windlass_shm::{HugePages, Mapping};

/// A region, ours or a client's. Offsets come from places that were checked against its size; an offset outside it
/// reads as zero and is not written.
pub struct Memory {
    mapping: Mapping,
    file: OwnedFd,
}

impl Memory {
    /// Makes a region of at least `bytes` bytes, in huge pages where the host has some free.
    ///
    /// # Errors
    /// If the host has no memory.
    pub fn create(bytes: usize) -> Result<Memory> {
        let (mapping, file) = Mapping::create("windlass-gen", bytes, HugePages::Try)?;
        Ok(Memory { mapping, file })
    }

    /// Makes a region of small pages, whatever there is.
    ///
    /// # Errors
    /// If the host has no memory.
    pub fn create_small(bytes: usize) -> Result<Memory> {
        let (mapping, file) = Mapping::create("windlass-gen", bytes, HugePages::No)?;
        Ok(Memory { mapping, file })
    }

    /// Maps a client's region.
    ///
    /// # Errors
    /// If the file is no memory or is shorter.
    pub fn map(file: OwnedFd, bytes: u64) -> Result<Memory> {
        let mapping = Mapping::foreign(file.as_fd(), bytes)?;
        Ok(Memory { mapping, file })
    }

    /// Whether huge pages are behind it.
    #[must_use]
    pub fn is_huge(&self) -> bool {
        self.mapping.is_huge()
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.mapping.len() as u64
    }

    /// The file to hand over.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The aligned 16-bit word at `at`.
    #[must_use]
    #[inline(always)]
    pub fn load_u16(&self, at: u32, order: Ordering) -> u16 {
        self.mapping.load_u16(at as usize, order)
    }

    /// Writes the aligned 16-bit word at `at`.
    #[inline(always)]
    pub fn store_u16(&self, at: u32, value: u16, order: Ordering) {
        self.mapping.store_u16(at as usize, value, order);
    }

    /// The aligned 32-bit word at `at`.
    #[must_use]
    #[inline(always)]
    pub fn load_u32(&self, at: u32, order: Ordering) -> u32 {
        self.mapping.load_u32(at as usize, order)
    }

    /// Writes the aligned 32-bit word at `at`.
    #[inline(always)]
    pub fn store_u32(&self, at: u32, value: u32, order: Ordering) {
        self.mapping.store_u32(at as usize, value, order);
    }

    /// The aligned 64-bit word at `at`.
    #[must_use]
    #[inline(always)]
    pub fn load_u64(&self, at: u32, order: Ordering) -> u64 {
        self.mapping.load_u64(at as usize, order)
    }

    /// Writes the aligned 64-bit word at `at`.
    #[inline(always)]
    pub fn store_u64(&self, at: u32, value: u64, order: Ordering) {
        self.mapping.store_u64(at as usize, value, order);
    }

    /// Copies bytes out.
    #[inline]
    pub fn read(&self, at: u32, to: &mut [u8]) {
        let inside = self.mapping.read(u64::from(at), to);
        debug_assert!(inside, "{at} lies outside the region");
    }

    /// Copies bytes in.
    #[inline]
    pub fn write(&self, at: u32, from: &[u8]) {
        let inside = self.mapping.write(u64::from(at), from);
        debug_assert!(inside, "{at} lies outside the region");
    }
}

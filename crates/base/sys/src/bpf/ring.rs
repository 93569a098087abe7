//! The ring that programs write records into, and this process reads.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::map::{Map, MapKind};

/// The unit of a mapping.
const PAGE: usize = 4096;
/// Set in a record's length while its program writes it (`BPF_RINGBUF_BUSY_BIT`).
const BUSY: u32 = 1 << 31;
/// Set in a record's length if its program gave it up (`BPF_RINGBUF_DISCARD_BIT`).
const DISCARDED: u32 = 1 << 30;
/// Before each record: its length, and what is the kernel's.
const HEAD: usize = 8;

/// A ring of the kernel's (`BPF_MAP_TYPE_RINGBUF`), mapped: its position of the reader can be written, all else is read only.
#[derive(Debug)]
pub struct RecordRing {
    map: Map,
    /// The reader's page.
    reader: NonNull<u8>,
    /// The writers' page, and the data twice behind it, so that no record is in two pieces.
    writers: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pointers are of mappings that this object owns; only `&mut self` reads through them.
unsafe impl Send for RecordRing {}

impl RecordRing {
    /// A ring of so many bytes: a power of two, at least a page.
    ///
    /// # Errors
    /// `EINVAL` for another size; what the kernel says, as `EPERM` without `CAP_BPF`.
    pub fn create(bytes: u32) -> Result<Self, Errno> {
        let map = Map::sized(MapKind::RecordRing, (0, 0), bytes)?;
        let bytes = bytes as usize;
        let shared = MapFlags::SHARED;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at a place of the kernel's choice; its only user is this object.
        let reader = unsafe { mmap(null, PAGE, both, shared, map.as_fd(), 0) }?;
        let reader: NonNull<u8> = NonNull::new(reader.cast()).ok_or(Errno::NOMEM)?;
        let len = PAGE + 2 * bytes;
        // SAFETY: as above.
        let writers = unsafe { mmap(null, len, ProtFlags::READ, shared, map.as_fd(), PAGE as u64) };
        let writers = match writers.map(|place| NonNull::new(place.cast())) {
            Ok(Some(writers)) => writers,
            refused => {
                // SAFETY: mapped above, and used by nobody.
                let _ = unsafe { munmap(reader.as_ptr().cast(), PAGE) };
                return Err(refused.err().unwrap_or(Errno::NOMEM));
            }
        };
        Ok(Self {
            map,
            reader,
            writers,
            bytes,
        })
    }

    /// Gives what has been written until now to `take`, oldest first, up to the first record that is being written. What comes meanwhile is left for the
    /// next call: writers may be quicker than `take`.
    pub fn read(&mut self, mut take: impl FnMut(&[u8])) {
        // SAFETY: the position lies at the beginning of this page, aligned, for as long as this object is.
        let read = unsafe { self.reader.cast::<AtomicU64>().as_ref() };
        // SAFETY: as above.
        let written = unsafe { self.writers.cast::<AtomicU64>().as_ref() };
        let mut at = read.load(Ordering::Relaxed);
        let end = written.load(Ordering::Acquire);
        while at < end {
            // The ring's size is a power of two.
            let offset = usize::try_from(at).unwrap_or(0) & (self.bytes - 1);
            // SAFETY: the data has twice this size, behind a page; `offset` is below it.
            let head = unsafe { self.writers.add(PAGE + offset) };
            // SAFETY: the kernel puts each record's head at a multiple of 8 bytes.
            let state = unsafe { head.cast::<AtomicU32>().as_ref() }.load(Ordering::Acquire);
            if state & BUSY != 0 {
                return;
            }
            let len = (state & !DISCARDED) as usize;
            if state & DISCARDED == 0 {
                // SAFETY: it lies behind its head, in the same mapping.
                let content = unsafe { head.as_ptr().add(HEAD) };
                // SAFETY: the record is whole, and no writer touches it until the position is behind it. `len` is the kernel's, at most the
                // ring's size.
                let record = unsafe { std::slice::from_raw_parts(content, len) };
                take(record);
            }
            at += (HEAD + len).next_multiple_of(8) as u64;
            read.store(at, Ordering::Release);
        }
    }
}

impl AsFd for RecordRing {
    /// What becomes readable, and what programs are given.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl Drop for RecordRing {
    fn drop(&mut self) {
        // SAFETY: both were mapped with these sizes, and no reference into them is left.
        let _ = unsafe { munmap(self.reader.as_ptr().cast(), PAGE) };
        // SAFETY: as above.
        let _ = unsafe { munmap(self.writers.as_ptr().cast(), PAGE + 2 * self.bytes) };
    }
}

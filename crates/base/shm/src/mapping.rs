//! One shared memory object, mapped.

use core::sync::atomic::Ordering;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;
use thiserror::Error;
use windlass_sync::qsbr::Section;

use crate::foreign::{Foreign, ForeignMut};
use crate::quota::{Charge, Quota};
use crate::region::{Extent, HUGE_PAGE_BYTES, HugePages, Pages, Region, SIZE};
use crate::sigbus::{ENTRIES, Watch};
use crate::word;

/// Magic number of hugetlbfs (linux/magic.h).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
/// The largest object that is mapped for a peer, in bytes: all that a guest may have.
pub const MAP_BYTES_MAX: u64 = 512 << 30;

/// Why memory could not be mapped.
#[derive(Debug, Error)]
pub enum MapError {
    /// Neither tmpfs nor hugetlbfs: its pages could be withheld for ever.
    #[error(
        "the memory is a file of another file system; only tmpfs (memfd) and hugetlbfs are accepted"
    )]
    FileSystem,
    /// A page size that the peer could make us pay for.
    #[error("pages of {pages} bytes; at most {max} are accepted of this peer")]
    PageSize {
        /// Bytes of a page.
        pages: u64,
        /// Bytes accepted.
        max: u64,
    },
    /// The peer promised more than the file has.
    #[error("{wanted} bytes were announced, but the file has {has}")]
    Size {
        /// Bytes announced.
        wanted: u64,
        /// Bytes that the file has.
        has: u64,
    },
    /// Zero, or beyond the largest size.
    #[error("a size of {0} bytes is not accepted")]
    Length(u64),
    /// Too many mappings.
    #[error("more than {ENTRIES} shared mappings")]
    TooMany,
    /// As many as the peer's user may have.
    #[error("more than {0} shared mappings of one user")]
    Quota(u32),
    /// A system call failed.
    #[error("{0}: {1}")]
    System(&'static str, #[source] rustix::io::Errno),
}

/// A mapped shared memory object: ours, or a peer's. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    /// Dropped before the region: the handler never maps zeros over addresses that were given back.
    watch: Watch,
    region: Region,
    _charge: Option<Charge>,
}

impl Mapping {
    /// Makes a memory object of our own and maps it. Sealed against shrinking, growing and
    /// further seals, so that a peer cannot take it away; a peer that punches huge pages out of it
    /// when the host has none left costs us zeros, as with foreign memory. Returns the descriptor to hand over.
    ///
    /// # Errors
    /// [`MapError::Length`] for zero, [`MapError::TooMany`], [`MapError::System`] for a failed call.
    pub fn create(name: &str, len: usize, huge: HugePages) -> Result<(Mapping, OwnedFd), MapError> {
        if len == 0 {
            return Err(MapError::Length(0));
        }
        let (region, fd) = Region::shared(name, len, huge, SIZE | SealFlags::SEAL)?;
        Ok((Self::with_region(region, None)?, fd))
    }

    /// The same in ordinary pages, for a peer that has to be kept from punching holes: once it has mapped the memory,
    /// [`Mapping::close`] is called.
    ///
    /// # Errors
    /// As [`Mapping::create`].
    pub fn create_open(name: &str, len: usize) -> Result<(Mapping, OwnedFd), MapError> {
        if len == 0 {
            return Err(MapError::Length(0));
        }
        let (region, fd) = Region::shared(name, len, HugePages::No, SIZE)?;
        Ok((Self::with_region(region, None)?, fd))
    }

    /// Seals memory of [`Mapping::create_open`]: whoever has mapped it writes on, but nobody maps it to write any more, and no page is ever
    /// taken out of it again. Those that were are put back now.
    ///
    /// # Errors
    /// [`MapError::System`]: among others, if the peer has sealed it otherwise before.
    pub fn close(&self, fd: BorrowedFd<'_>) -> Result<(), MapError> {
        fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
            .map_err(|e| MapError::System("F_ADD_SEALS", e))?;
        self.populate();
        Ok(())
    }

    fn with_region(region: Region, charge: Option<Charge>) -> Result<Mapping, MapError> {
        let watch = Watch::new(region.base() as usize, region.len()).ok_or(MapError::TooMany)?;
        Ok(Mapping {
            watch,
            region,
            _charge: charge,
        })
    }

    /// Maps `len` bytes of a peer's memory object, from its start, and counts it in a quota.
    ///
    /// # Errors
    /// [`MapError::Quota`], and as [`Mapping::foreign`].
    pub fn foreign_within(
        quota: &Quota,
        fd: BorrowedFd<'_>,
        len: u64,
    ) -> Result<Mapping, MapError> {
        let charge = quota.charge().ok_or(MapError::Quota(quota.max()))?;
        Mapping::with_pages(fd, len, quota.page_bytes_max(), Some(charge))
    }

    /// Maps `len` bytes of a peer's memory object, from its start, if its pages have at most 2 MiB.
    ///
    /// # Errors
    /// Refuses what the peer could use against us: see [`MapError`].
    pub fn foreign(fd: BorrowedFd<'_>, len: u64) -> Result<Mapping, MapError> {
        Mapping::with_pages(fd, len, HUGE_PAGE_BYTES as u64, None)
    }

    fn with_pages(
        fd: BorrowedFd<'_>,
        len: u64,
        max: u64,
        charge: Option<Charge>,
    ) -> Result<Mapping, MapError> {
        if len == 0 || len > MAP_BYTES_MAX {
            return Err(MapError::Length(len));
        }
        check_memory(fd)?;
        let fs = fstatfs(fd).map_err(|e| MapError::System("fstatfs", e))?;
        let huge = fs.f_type as u64 == HUGETLBFS_MAGIC;
        let pages = fs.f_bsize as u64;
        if huge && pages > max {
            return Err(MapError::PageSize { pages, max });
        }
        let has = fstat(fd).map_err(|e| MapError::System("fstat", e))?.st_size as u64;
        if len > has {
            return Err(MapError::Size { wanted: len, has });
        }
        Mapping::with_region(Region::of(fd, len as usize, Pages::Peers)?, charge)
    }

    /// Device and inode of a peer's memory object: the same object has the same ones.
    ///
    /// # Errors
    /// [`MapError::FileSystem`] for what [`Mapping::foreign`] would refuse, too; [`MapError::System`].
    pub fn identity(fd: BorrowedFd<'_>) -> Result<(u64, u64), MapError> {
        check_memory(fd)?;
        let stat = fstat(fd).map_err(|e| MapError::System("fstat", e))?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Never true: an empty object is not mapped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Has the kernel put memory behind every page now, rather than when somebody touches it. A wish (Linux 5.14).
    pub fn populate(&self) {
        let _ = self.region.populate();
    }

    /// Whether it is memory of our own in huge pages.
    pub fn is_huge(&self) -> bool {
        matches!(self.extent().pages, Pages::Transparent | Pages::Hugetlb)
    }

    /// Where it lies and which pages it has.
    pub fn extent(&self) -> Extent {
        self.region.extent()
    }

    /// The first address, for ports that derive ring pointers from it.
    #[inline(always)]
    pub fn base(&self) -> *mut u8 {
        self.region.base()
    }

    /// Whether the peer took the memory away, so that zeros are mapped in its place.
    #[inline(always)]
    pub fn is_dead(&self) -> bool {
        self.watch.is_dead()
    }

    /// The address of `len` bytes at `offset`, if they lie inside.
    #[inline(always)]
    pub fn find(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len as u64)?;
        if end > self.len() as u64 {
            return None;
        }
        Some(self.base().wrapping_add(offset as usize))
    }

    /// `len` bytes at `offset` to be read, if they lie inside.
    #[inline]
    pub fn slice<'q>(&'q self, q: &'q Section<'_>, offset: u64, len: u32) -> Option<Foreign<'q>> {
        let p = self.find(offset, len as usize)?;
        // SAFETY: inside this mapping, which `'q` borrows.
        Some(unsafe { Foreign::at(q, p, len) })
    }

    /// `len` bytes at `offset` to be written, if they lie inside.
    #[inline]
    pub fn slice_mut<'q>(
        &'q self,
        q: &'q Section<'_>,
        offset: u64,
        len: u32,
    ) -> Option<ForeignMut<'q>> {
        let p = self.find(offset, len as usize)?;
        // SAFETY: inside this mapping, which `'q` borrows; no reference into a mapping is ever made.
        Some(unsafe { ForeignMut::at(q, p, len) })
    }

    /// Copies bytes out; false if they do not lie inside.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> bool {
        let Some(p) = self.find(offset, to.len()) else {
            return false;
        };
        // SAFETY: inside this mapping, and `to` is ours.
        unsafe { crate::copy_in(to.as_mut_ptr(), p, to.len()) };
        true
    }

    /// Copies bytes in; false if they do not lie inside.
    pub fn write(&self, offset: u64, from: &[u8]) -> bool {
        let Some(p) = self.find(offset, from.len()) else {
            return false;
        };
        // SAFETY: inside this mapping, and `from` is ours.
        unsafe { crate::copy_out(p, from.as_ptr(), from.len()) };
        true
    }
}

/// Refuses what is neither tmpfs nor hugetlbfs. Only these have seals, and asking for them asks no file system: `fstatfs`
/// or `fstat` of a FUSE file would wait for its server, for as long as that likes.
fn check_memory(fd: BorrowedFd<'_>) -> Result<(), MapError> {
    match fcntl_get_seals(fd) {
        Ok(_) => Ok(()),
        Err(Errno::INVAL) => Err(MapError::FileSystem),
        Err(errno) => Err(MapError::System("F_GET_SEALS", errno)),
    }
}

macro_rules! accessors {
    ($( $load:ident, $store:ident, $int:ty; )*) => {
        impl Mapping { $(
            /// Loads the aligned word at `offset`; 0 if it does not lie inside or is not aligned.
            #[inline(always)]
            pub fn $load(&self, offset: usize, order: Ordering) -> $int {
                let size = size_of::<$int>();
                match self.find(offset as u64, size) {
                    // SAFETY: inside this mapping and aligned, since mappings start on a page.
                    Some(p) if offset % size == 0 => unsafe { word::$load(p.cast(), order) },
                    _ => 0,
                }
            }

            /// Stores the aligned word at `offset`; does nothing if it does not lie inside or is not aligned.
            #[inline(always)]
            pub fn $store(&self, offset: usize, value: $int, order: Ordering) {
                let size = size_of::<$int>();
                match self.find(offset as u64, size) {
                    // SAFETY: inside this mapping and aligned, since mappings start on a page.
                    Some(p) if offset % size == 0 => unsafe { word::$store(p.cast(), value, order) },
                    _ => {}
                }
            }
        )* }
    };
}

accessors! {
    load_u16, store_u16, u16;
    load_u32, store_u32, u32;
    load_u64, store_u64, u64;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Pool;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::AsFd;

    /// Memory of our own is shared with whoever maps the descriptor, and nothing beyond its end is reached.
    #[test]
    fn create_and_share() {
        let (ours, fd) = Mapping::create("windlass-test", 8192, HugePages::No).expect("memfd");
        let theirs = Mapping::foreign(fd.as_fd(), 8192).expect("map");
        assert!(ours.write(4096, b"hello"));
        let mut got = [0; 5];
        assert!(theirs.read(4096, &mut got));
        assert_eq!(&got, b"hello");
        theirs.store_u16(2, 0xbeef, Ordering::Release);
        assert_eq!(ours.load_u16(2, Ordering::Acquire), 0xbeef);
        assert!(!ours.read(8190, &mut got) && !ours.write(u64::MAX, b"x"));
        assert_eq!(ours.load_u32(2, Ordering::Relaxed), 0, "unaligned");
        assert!(Mapping::foreign(fd.as_fd(), 8193).is_err());
    }

    /// Pages that this thread has had to wait for.
    fn faults() -> i64 {
        // SAFETY: numbers of which every pattern is one.
        let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
        // SAFETY: the kernel fills the structure.
        let done = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
        assert_eq!(done, 0);
        usage.ru_minflt
    }

    /// A peer that punches holes has us pay for new pages, until the memory is closed: then it can in no way, and what it has mapped is shared
    /// as before.
    #[test]
    fn no_page_is_taken_out_of_closed_memory() {
        use rustix::fs::{FallocateFlags, fallocate};
        const LEN: usize = 64 << 12;
        let (ours, fd) = Mapping::create_open("windlass-test", LEN).expect("memfd");
        let theirs = Mapping::foreign(fd.as_fd(), LEN as u64).expect("map");
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punch = || fallocate(&fd, how, 0, LEN as u64);
        let pay = || {
            let before = faults();
            (0..64).for_each(|page| assert!(ours.write(page << 12, b"x")));
            faults() - before
        };
        pay();
        assert_eq!(pay(), 0);
        assert_eq!(punch(), Ok(()));
        assert!(pay() >= 4, "the attack");
        assert_eq!(punch(), Ok(()));
        ours.close(fd.as_fd()).expect("closed");
        assert_eq!(pay(), 0, "all pages are there again");
        assert_eq!(punch(), Err(Errno::PERM));
        let zero = FallocateFlags::ZERO_RANGE;
        assert!(fallocate(&fd, zero, 0, LEN as u64).is_err());
        // SAFETY: a mapping of this test, which expects zeros.
        let removed = unsafe { libc::madvise(theirs.base().cast(), LEN, libc::MADV_REMOVE) };
        assert_eq!(removed, -1, "MADV_REMOVE");
        assert!(rustix::io::pwrite(&fd, b"x", 0).is_err());
        assert_eq!(pay(), 0);
        assert!(Mapping::foreign(fd.as_fd(), LEN as u64).is_err());
        assert!(fcntl_add_seals(&fd, SealFlags::WRITE).is_err());
        assert!(theirs.write(4096, b"hello"));
        let mut got = [0; 5];
        assert!(ours.read(4096, &mut got) && &got == b"hello");
        // Sealed by the peer before: it cannot be closed, and we know.
        let (ours, fd) = Mapping::create_open("windlass-test", LEN).expect("memfd");
        fcntl_add_seals(&fd, SealFlags::SEAL).expect("sealed");
        assert!(ours.close(fd.as_fd()).is_err());
    }

    /// A peer that shrinks its file costs us zeros and the mapping's life, not the process.
    #[test]
    fn shrunk_file_becomes_zeros() {
        let fd = memfd_create("windlass-test", MemfdFlags::CLOEXEC).expect("memfd");
        ftruncate(&fd, 1 << 20).expect("size");
        let m = Mapping::foreign(fd.as_fd(), 1 << 20).expect("map");
        assert!(m.write(1000, b"abc") && !m.is_dead());
        ftruncate(&fd, 0).expect("shrink");
        let mut got = [1; 3];
        assert!(m.read(1000, &mut got));
        assert_eq!(got, [0; 3]);
        assert!(m.is_dead());
        assert!(m.write(5000, b"more"), "writes go to the zeros");
    }

    /// What counts together is limited together, and a mapping that ends makes room for another one.
    #[test]
    fn mappings_count_in_their_quota() {
        let (_ours, fd) = Mapping::create("windlass-test", 8192, HugePages::No).expect("memfd");
        let (few, others) = (Quota::new(2), Quota::new(1));
        let map = |quota| Mapping::foreign_within(quota, fd.as_fd(), 4096);
        let first = map(&few).expect("the first");
        let _second = map(&few).expect("the second");
        assert!(matches!(map(&few), Err(MapError::Quota(2))));
        map(&others).expect("another user's");
        drop(first);
        map(&few).expect("room again");
        assert!(Mapping::foreign_within(&others, fd.as_fd(), 0).is_err());
        map(&others).expect("what fails does not count");
    }

    /// What a peer has mapped moves to another pool with what it maps from then on, beyond that pool's limit too.
    #[test]
    fn an_account_moves_with_its_mappings() {
        let (_ours, fd) = Mapping::create("windlass-test", 8192, HugePages::No).expect("memfd");
        let (from, to) = (Pool::new(3), Pool::new(1));
        let (moves, stays) = (Quota::within(from.clone()), Quota::within(from.clone()));
        let map = |quota: &Quota| Mapping::foreign_within(quota, fd.as_fd(), 4096);
        let first = map(&moves).expect("the first");
        let second = map(&moves).expect("the second");
        let _third = map(&stays).expect("the third");
        assert_eq!((from.used(), to.used(), moves.used()), (3, 0, 2));
        moves.clone().move_to(to.clone());
        assert_eq!((from.used(), to.used(), moves.used()), (1, 2, 2));
        assert!(matches!(map(&moves), Err(MapError::Quota(1))));
        drop((first, second));
        assert_eq!((from.used(), to.used(), moves.used()), (1, 0, 0));
        map(&moves).expect("there is room");
        assert!(from.is_shared() && to.is_shared());
        drop(moves);
        assert!(!to.is_shared());
    }

    /// Pages of 1 GiB are mapped for whom they are allowed, and refused to others, before the kernel has to find any.
    #[test]
    fn gigantic_pages_are_for_some() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB;
        let fd = match memfd_create("windlass-test", flags) {
            Ok(fd) => fd,
            Err(errno) => {
                eprintln!("skipped: gigantic_pages_are_for_some: no pages of 1 GiB here: {errno}");
                return;
            }
        };
        ftruncate(&fd, 1 << 30).expect("size");
        let refused = Mapping::foreign_within(&Quota::new(1), fd.as_fd(), 1 << 30);
        assert!(matches!(refused, Err(MapError::PageSize { pages, .. }) if pages == 1 << 30));
        let allowed = Quota::new(1);
        allowed.allow_gigantic_pages(true);
        let mapped = Mapping::foreign_within(&allowed, fd.as_fd(), 1 << 30);
        // Whether any is free is the machine's.
        assert!(matches!(
            mapped,
            Ok(_) | Err(MapError::System("mmap", Errno::NOMEM))
        ));
    }

    /// A file that is neither tmpfs nor hugetlbfs is refused: its pages could be withheld.
    #[test]
    fn other_file_systems_are_refused() {
        let file = std::fs::File::open("/proc/self/exe").expect("open");
        assert!(matches!(
            Mapping::foreign(file.as_fd(), 4096),
            Err(MapError::FileSystem)
        ));
    }
}

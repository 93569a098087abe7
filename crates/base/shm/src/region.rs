//! Memory that is made once, of one page size, and never split.
//!
//! # Model
//! Who makes a region says whether it is worth huge pages. The order is then: pages of the reserve (hugetlb) if it has room, transparent
//! huge pages, small pages. Every page is there before anybody uses the region, because a page fault costs a worker milliseconds.
//! A region that is shared is sealed against shrinking and growing. So nothing inside has a count: who borrows it holds the whole region.
//!
//! # What it asks the kernel
//! - hugetlb: `MFD_HUGETLB` or `MAP_HUGETLB`. The mapping reserves its pages, and `MADV_POPULATE_WRITE` has to bring them: a reserve that
//!   was emptied in between is an error there, where a first touch would be a SIGBUS. The reserve itself is never changed.
//! - transparent: an address at a multiple of the page size, `MADV_HUGEPAGE`, and once `MADV_COLLAPSE`. The latter also works
//!   where `shmem_enabled` or `enabled` is `never`, which are defaults for faults; `shmem_enabled=deny` and `PR_SET_THP_DISABLE` refuse it.
//! - small: what is left.
//!
//! # Limits
//! A region under [`HUGE_MIN`] bytes has small pages, because a huge page would be mostly empty. Others are rounded up to whole huge pages.
//!
//! # Failure modes
//! A peer that has the descriptor may punch holes into shared memory: see [`Mapping`](crate::Mapping).

use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};

use crate::mapping::MapError;

/// Bytes of a huge page.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Regions from this size on get huge pages if they ask for them.
pub const HUGE_MIN: usize = HUGE_PAGE_BYTES / 2;

const SMALL_PAGE_BYTES: usize = 4096;
const PLAIN: MemfdFlags = MemfdFlags::CLOEXEC.union(MemfdFlags::ALLOW_SEALING);
const HUGETLB: MemfdFlags = PLAIN.union(MemfdFlags::HUGETLB).union(MemfdFlags::HUGE_2MB);
/// The size stays.
pub(crate) const SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Whether huge pages are wanted for memory of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// Small pages, which come when they are touched.
    No,
    /// 2 MiB pages if there are any, else small ones; all of them now.
    Try,
}

/// Which pages the kernel gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Of 4 KiB, because nobody asked for more or the region is smaller than [`HUGE_MIN`].
    Small,
    /// Of 4 KiB, because the reserve had no room and transparent ones were refused.
    Refused {
        /// What the kernel said to transparent pages.
        transparent: Errno,
    },
    /// Transparent huge pages.
    Transparent,
    /// Pages of the reserve.
    Hugetlb,
    /// The owner of the memory chose: it is a peer's.
    Peers,
}

/// Where a region lies and what became of its wish, for [`smaps`](crate::smaps).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First address.
    pub start: usize,
    /// Bytes.
    pub len: usize,
    /// What its maker got.
    pub pages: Pages,
}

/// A range of addresses with memory behind it, unmapped when dropped.
#[derive(Debug)]
pub struct Region {
    base: *mut u8,
    len: usize,
    pages: Pages,
    /// Start and length of the reservation around it, if it has one.
    around: Option<(*mut u8, usize)>,
}

// SAFETY: a region is a range of addresses; who makes references into it answers for them.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Shared memory that is sealed with `seals`, and its descriptor.
    pub(crate) fn shared(
        name: &str,
        len: usize,
        huge: HugePages,
        seals: SealFlags,
    ) -> Result<(Region, OwnedFd), MapError> {
        if huge == HugePages::No || len < HUGE_MIN {
            let fd = memory(name, len, PLAIN, seals)?;
            let region = Region::of(fd.as_fd(), len, Pages::Small)?;
            if huge == HugePages::Try {
                // A wish: a page that is missing comes when it is touched.
                let _ = region.populate();
            }
            return Ok((region, fd));
        }
        let round = len.next_multiple_of(HUGE_PAGE_BYTES);
        if let Ok(fd) = memory(name, round, HUGETLB, seals)
            && let Ok(region) = Region::of(fd.as_fd(), round, Pages::Hugetlb)
            && region.populate().is_ok()
        {
            return Ok((region, fd));
        }
        let fd = memory(name, round, PLAIN, seals)?;
        Ok((Region::aligned(Some(fd.as_fd()), round)?, fd))
    }

    /// Memory of this process alone; it reads as zeros. At least `len` bytes.
    pub(crate) fn private(len: usize) -> Result<Region, MapError> {
        let round = len.next_multiple_of(HUGE_PAGE_BYTES);
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        // SAFETY: a new mapping at an address of the kernel's choice.
        if let Ok(base) = unsafe { mmap_anonymous(ptr::null_mut(), round, READ_WRITE, flags) } {
            let region = Region {
                base: base.cast(),
                len: round,
                pages: Pages::Hugetlb,
                around: None,
            };
            if region.populate().is_ok() {
                return Ok(region);
            }
        }
        Region::aligned(None, round)
    }

    /// The first `len` bytes of a file, at an address of the kernel's choice.
    pub(crate) fn of(fd: BorrowedFd<'_>, len: usize, pages: Pages) -> Result<Region, MapError> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap(ptr::null_mut(), len, READ_WRITE, MapFlags::SHARED, fd, 0) };
        Ok(Region {
            base: base.map_err(|e| MapError::System("mmap", e))?.cast(),
            len,
            pages,
            around: None,
        })
    }

    /// Whole pages at a multiple of their size, transparent ones if the kernel has them. What is reserved around them belongs to nobody, so that
    /// the kernel joins no two regions.
    fn aligned(fd: Option<BorrowedFd<'_>>, len: usize) -> Result<Region, MapError> {
        let whole = len + HUGE_PAGE_BYTES;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let around = unsafe { mmap_anonymous(ptr::null_mut(), whole, ProtFlags::empty(), flags) }
            .map_err(|e| MapError::System("mmap", e))?
            .cast::<u8>();
        let skipped = (around as usize).next_multiple_of(HUGE_PAGE_BYTES) - around as usize;
        let mut region = Region {
            base: around.wrapping_add(skipped),
            len,
            pages: Pages::Transparent,
            around: Some((around, whole)),
        };
        let at = region.base.cast();
        let mapped = match fd {
            Some(fd) => {
                let flags = MapFlags::SHARED | MapFlags::FIXED;
                // SAFETY: replaces a part of the reservation, which nobody uses.
                unsafe { mmap(at, len, READ_WRITE, flags, fd, 0) }.map(drop)
            }
            None => {
                let access = MprotectFlags::READ | MprotectFlags::WRITE;
                // SAFETY: a part of the reservation.
                unsafe { mprotect(at, len, access) }
            }
        };
        mapped.map_err(|e| MapError::System("mmap", e))?;
        if let Err(transparent) = region.collapse() {
            region.pages = Pages::Refused { transparent };
        }
        // A wish: a page that is missing comes when it is touched.
        let _ = region.populate();
        Ok(region)
    }

    /// Gets transparent huge pages, which read as zeros.
    fn collapse(&self) -> Result<(), Errno> {
        self.advise(0, self.len, Advice::LinuxHugepage)?;
        // A page that exists is collapsed together with its neighbours that do not: one small page is cleared in vain, not 512.
        for at in (0..self.len).step_by(HUGE_PAGE_BYTES) {
            self.advise(at, SMALL_PAGE_BYTES, Advice::LinuxPopulateWrite)?;
        }
        // rustix has no name for it.
        // SAFETY: the call moves pages of this mapping and changes no contents.
        let done = unsafe { libc::madvise(self.base.cast(), self.len, libc::MADV_COLLAPSE) };
        match done {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()
                .raw_os_error()
                .map_or(Errno::INVAL, Errno::from_raw_os_error)),
        }
    }

    /// Has the kernel put memory behind every page now (Linux 5.14).
    pub(crate) fn populate(&self) -> Result<(), Errno> {
        self.advise(0, self.len, Advice::LinuxPopulateWrite)
    }

    fn advise(&self, at: usize, len: usize, advice: Advice) -> Result<(), Errno> {
        // SAFETY: a part of this region, whose contents stay as they are with each of the advices above.
        unsafe { madvise(self.base.wrapping_add(at).cast(), len, advice) }
    }

    /// The first address.
    #[inline(always)]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Length in bytes.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where it lies and which pages it has.
    pub fn extent(&self) -> Extent {
        Extent {
            start: self.base as usize,
            len: self.len,
            pages: self.pages,
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let (base, len) = self.around.unwrap_or((self.base, self.len));
        // SAFETY: the range was mapped for this region and nobody uses it any more: what lies in it borrows the region.
        let _ = unsafe { munmap(base.cast(), len) };
    }
}

/// A memory object of that size.
fn memory(
    name: &str,
    len: usize,
    flags: MemfdFlags,
    seals: SealFlags,
) -> Result<OwnedFd, MapError> {
    let fd = memfd_create(name, flags).map_err(|e| MapError::System("memfd_create", e))?;
    ftruncate(&fd, len as u64).map_err(|e| MapError::System("ftruncate", e))?;
    fcntl_add_seals(&fd, seals).map_err(|e| MapError::System("F_ADD_SEALS", e))?;
    Ok(fd)
}

/// A table of `T`s in a private region, or in the heap if it is smaller than [`HUGE_MIN`].
pub struct Table<T> {
    first: NonNull<T>,
    count: usize,
    /// `None`: the heap's.
    region: Option<Region>,
}

// SAFETY: it owns its entries, as a boxed slice does.
unsafe impl<T: Send> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Table<T> {}

impl<T> Table<T> {
    /// A table of `count` entries that `make` makes. Without memory for a region it lies in the heap.
    pub fn new(count: usize, make: impl FnMut() -> T) -> Table<T> {
        const { assert!(align_of::<T>() <= SMALL_PAGE_BYTES) };
        let entries = core::iter::repeat_with(make).take(count);
        let bytes = count.saturating_mul(size_of::<T>());
        let region = (bytes >= HUGE_MIN).then(|| Region::private(bytes));
        let Some(Ok(region)) = region else {
            let boxed: Box<[T]> = entries.collect();
            return Table {
                first: NonNull::from(Box::leak(boxed)).cast(),
                count,
                region: None,
            };
        };
        let mut table = Table {
            first: NonNull::new(region.base().cast()).unwrap_or(NonNull::dangling()),
            count: 0,
            region: Some(region),
        };
        for entry in entries {
            // SAFETY: the region has room for `count` entries.
            let place = unsafe { table.first.add(table.count) };
            // SAFETY: nobody has the place yet; it is aligned, because a region starts on a page.
            unsafe { place.write(entry) };
            table.count += 1;
        }
        table
    }

    /// Where its region lies; `None` if it is in the heap.
    pub fn extent(&self) -> Option<Extent> {
        self.region.as_ref().map(Region::extent)
    }
}

impl<T> Deref for Table<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: so many entries were written there, and live as long as the table.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl<T> DerefMut for Table<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the table is borrowed alone.
        unsafe { core::slice::from_raw_parts_mut(self.first.as_ptr(), self.count) }
    }
}

impl<'a, T> IntoIterator for &'a Table<T> {
    type Item = &'a T;
    type IntoIter = core::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        let entries = ptr::slice_from_raw_parts_mut(self.first.as_ptr(), self.count);
        match self.region {
            // SAFETY: the entries are this table's, and nobody has them any more. The region goes after them.
            Some(_) => unsafe { ptr::drop_in_place(entries) },
            // SAFETY: the box that `new` leaked.
            None => drop(unsafe { Box::from_raw(entries) }),
        }
    }
}

impl<T> core::fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Table")
            .field("count", &self.count)
            .field("region", &self.region)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smaps::backings;

    fn write_all(region: &Region) {
        for at in (0..region.len()).step_by(SMALL_PAGE_BYTES) {
            let page = region.base().wrapping_add(at);
            // SAFETY: inside the region, which this test alone uses.
            assert_eq!(unsafe { page.read() }, 0);
            // SAFETY: as above.
            unsafe { page.write(1) };
        }
    }

    /// All pages of a region are there when it is made, they are of one size, and it is the size that the region says.
    #[test]
    fn pages_are_there_and_of_one_size() {
        for len in [
            SMALL_PAGE_BYTES,
            HUGE_MIN - 1,
            HUGE_MIN,
            3 * HUGE_PAGE_BYTES + 1,
        ] {
            let made = Region::shared("windlass-test", len, HugePages::Try, SIZE);
            let mut regions = vec![made.expect("memory").0];
            if len >= HUGE_MIN {
                regions.push(Region::private(len).expect("memory"));
            }
            for region in regions {
                let extent = region.extent();
                let backing = backings(&[extent]).expect("smaps")[0].expect("mapped");
                let whole = extent.len.next_multiple_of(SMALL_PAGE_BYTES) as u64;
                assert_eq!(backing.resident, whole, "{extent:?}");
                let huge = match extent.pages {
                    Pages::Transparent | Pages::Hugetlb => whole,
                    Pages::Small => 0,
                    Pages::Refused { transparent } => {
                        eprintln!(
                            "skipped: pages_are_there_and_of_one_size: no huge pages: {transparent}"
                        );
                        continue;
                    }
                    Pages::Peers => unreachable!("it is ours"),
                };
                assert_eq!(backing.huge, huge, "{extent:?}");
                assert_eq!(extent.pages == Pages::Small, len < HUGE_MIN);
                write_all(&region);
            }
        }
    }

    /// A page that the reserve owes and does not have is an error when the region is made, and no SIGBUS.
    #[test]
    fn a_reserve_that_has_vanished_is_an_error() {
        let fd = memfd_create("windlass-test", HUGETLB).expect("memfd");
        // More than any reserve has: the mapping does not ask for them.
        let len = 1 << 40;
        ftruncate(&fd, len as u64).expect("size");
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap(ptr::null_mut(), len, READ_WRITE, flags, &fd, 0) };
        let region = Region {
            base: base.expect("addresses").cast(),
            len,
            pages: Pages::Hugetlb,
            around: None,
        };
        assert!(region.populate().is_err());
    }

    /// A table has its entries whether it lies in a region or in the heap, and drops each of them once.
    #[test]
    fn a_table_keeps_and_drops_its_entries() {
        use std::rc::Rc;
        let value = Rc::new(());
        for count in [0, 1, HUGE_MIN / size_of::<Rc<()>>() - 1, HUGE_MIN] {
            let mut made = 0;
            let table = Table::new(count, || {
                made += 1;
                (made, value.clone())
            });
            assert_eq!((table.len(), Rc::strong_count(&value)), (count, count + 1));
            assert!((1..).zip(&table).all(|(n, entry)| entry.0 == n));
            assert_eq!(table.extent().is_some(), count * 16 >= HUGE_MIN);
            drop(table);
            assert_eq!(Rc::strong_count(&value), 1);
        }
    }
}

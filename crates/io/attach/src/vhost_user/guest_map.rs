//! A guest's memory: which of its addresses lie where in ours.
//!
//! # Model
//! Regions are sorted by guest address and do not overlap. Whoever translates keeps the region of its last hit as a
//! value of its own (`Extent`), so that the next address costs two compares and no shared line is written.
//!
//! # Failure modes
//! An address that lies in no region, or a length that leaves its region, is `None`: also where the next region
//! begins at once, since the two need not be neighbours in our memory. A sum that overflows cannot be formed.
//!
//! Behind an IOMMU ([`super::iommu`]) a map is made of translations instead of regions, for one kind of access. There an
//! address that is not found is a *miss*: it is noted in the map ([`GuestMap::take_miss`]) for whoever can ask the front
//! end, and what a driver names may lie in several pieces.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use windlass_shm::{Foreign, MAP_BYTES_MAX, MapError, Mapping, Section, word};
use windlass_sys::eventfd;

/// Regions that one guest may have: QEMU's memory slots.
pub const REGIONS_MAX: usize = 512;

/// One region as the front end announces it (`VhostUserMemoryRegion`).
#[derive(Clone, Copy, Debug)]
pub struct GuestRegion<'a> {
    /// First guest address.
    pub gpa: u64,
    /// Bytes.
    pub len: u64,
    /// Where in the file the region begins.
    pub offset: u64,
    /// The file.
    pub fd: BorrowedFd<'a>,
}

/// Bytes of all files of one guest, so that one cannot take all addresses of the process.
pub const BYTES_MAX: u64 = MAP_BYTES_MAX;

/// Why a memory table was refused.
#[derive(Debug, thiserror::Error)]
pub enum GuestMapError {
    /// None, or more than [`REGIONS_MAX`].
    #[error("{0} regions of memory; 1 to {REGIONS_MAX} are accepted")]
    Count(usize),
    /// Empty, or beyond the end of all addresses.
    #[error("a region of {len} bytes at guest address {gpa:#x}")]
    Range {
        /// First guest address.
        gpa: u64,
        /// Bytes.
        len: u64,
    },
    /// More than [`BYTES_MAX`].
    #[error("files of {0} bytes in all; at most {BYTES_MAX} are accepted")]
    Bytes(u64),
    /// Two regions have an address in common.
    #[error("the region at guest address {0:#x} overlaps another one")]
    Overlap(u64),
    /// The file's part cannot be mapped.
    #[error("the region at guest address {gpa:#x}: {source}")]
    Memory {
        /// First guest address.
        gpa: u64,
        /// Why not.
        source: MapError,
    },
}

/// One region whose file is mapped.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) gpa: u64,
    pub(super) len: u64,
    /// Where in the mapping it begins.
    pub(super) offset: u64,
    pub(super) mapping: Arc<Mapping>,
}

/// Access that a translation allows, or that is wanted (`VHOST_ACCESS_RO`, `VHOST_ACCESS_WO`).
pub(super) const READ: u8 = 1;
/// As [`READ`].
pub(super) const WRITE: u8 = 2;

/// One region, or one translation, by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// First address as descriptors name it.
    pub(super) gpa: u64,
    /// Bytes.
    pub(super) len: u64,
    /// Where that is in our memory.
    pub(super) base: *mut u8,
    /// And in the guest's: the same address, unless an IOMMU is between.
    pub(super) real: u64,
    /// [`READ`], [`WRITE`] or both.
    pub(super) access: u8,
}

// SAFETY: an address and numbers; whoever uses the address holds the mapping.
unsafe impl Send for Extent {}
// SAFETY: as above.
unsafe impl Sync for Extent {}

impl Extent {
    /// Holds no address.
    const NONE: Extent = Extent {
        gpa: 0,
        len: 0,
        base: core::ptr::null_mut(),
        real: 0,
        access: 0,
    };

    /// The last address.
    pub(super) fn last(&self) -> u64 {
        self.gpa.wrapping_add(self.len.wrapping_sub(1))
    }

    /// The bytes from `gpa` on, which lies inside: where, and how many.
    fn from(&self, gpa: u64) -> (*mut u8, u64) {
        let at = gpa.wrapping_sub(self.gpa);
        (
            self.base.wrapping_add(at as usize),
            self.len.wrapping_sub(at),
        )
    }

    /// The address of `len` bytes at `gpa`, if they lie inside.
    #[inline(always)]
    fn find(&self, gpa: u64, len: u32) -> Option<*mut u8> {
        let at = gpa.wrapping_sub(self.gpa);
        if at < self.len && u64::from(len) <= self.len.wrapping_sub(at) {
            return Some(self.base.wrapping_add(at as usize));
        }
        None
    }
}

/// The extent among sorted ones that holds `gpa`.
fn holding(extents: &[Extent], gpa: u64) -> Option<&Extent> {
    let behind = extents.partition_point(|e| e.gpa <= gpa);
    let extent = extents.get(behind.checked_sub(1)?)?;
    (gpa.wrapping_sub(extent.gpa) < extent.len).then_some(extent)
}

/// Extents that a search for a gap looks at: no descriptor may have more pieces.
const GAP_STEPS: usize = 64;

/// The first of `len` addresses from `gpa` on that may not be accessed so, if there is one in the first [`GAP_STEPS`]
/// extents.
pub(super) fn first_miss(extents: &[Extent], access: u8, gpa: u64, len: u64) -> Option<u64> {
    let (mut at, mut left) = (gpa, len);
    for _ in 0..GAP_STEPS {
        if left == 0 {
            break;
        }
        let extent = holding(extents, at).filter(|e| e.access & access == access);
        let Some(extent) = extent else {
            return Some(at);
        };
        let (_, n) = extent.from(at);
        left = left.saturating_sub(n);
        at = at.wrapping_add(n);
    }
    None
}

/// Calls `each` with guest addresses and lengths for `len` bytes from `gpa` on, as far as they are translated.
pub(super) fn each_real(extents: &[Extent], gpa: u64, len: u64, mut each: impl FnMut(u64, u64)) {
    let (mut at, mut left) = (gpa, len);
    while left != 0
        && let Some(extent) = holding(extents, at)
    {
        let n = extent.from(at).1.min(left);
        each(extent.real.wrapping_add(at.wrapping_sub(extent.gpa)), n);
        left = left.wrapping_sub(n);
        at = at.wrapping_add(n);
    }
}

/// Whether a guest's memory is of no use any more, and who is told.
#[derive(Debug)]
struct Alarm {
    failed: AtomicBool,
    fd: OwnedFd,
}

/// A translation that is lacking: the page of the address, and what access is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Miss {
    pub(super) page: u64,
    pub(super) access: u8,
}

/// The smallest page of an IOMMU.
const PAGE: u64 = 4096;

impl Miss {
    pub(super) fn at(iova: u64, access: u8) -> Miss {
        let page = iova & !PAGE.wrapping_sub(1);
        Miss { page, access }
    }

    /// Where the next page begins.
    pub(super) fn next(self) -> u64 {
        self.page.wrapping_add(PAGE)
    }

    /// As one number, never 0.
    pub(super) fn word(self) -> u64 {
        self.page | u64::from(self.access & (READ | WRITE))
    }

    /// The reverse.
    pub(super) fn of(word: u64) -> Option<Miss> {
        (word != 0).then(|| Miss::at(word, word as u8 & (READ | WRITE)))
    }
}

/// The memory of one guest.
#[derive(Debug)]
pub struct GuestMap {
    extents: Arc<[Extent]>,
    /// The last hit to begin with.
    largest: Extent,
    mappings: Arc<[Arc<Mapping>]>,
    alarm: Arc<Alarm>,
    /// Of a map behind an IOMMU: the access that it is for. Else 0.
    access: u8,
    /// The last [`Miss`], or 0.
    missed: AtomicU64,
}

impl GuestMap {
    /// Maps the regions. `alarm` is signalled once when the data path finds the guest's queues unusable.
    ///
    /// # Errors
    /// [`GuestMapError`].
    pub fn new(regions: &[GuestRegion<'_>], alarm: OwnedFd) -> Result<GuestMap, GuestMapError> {
        if regions.is_empty() || regions.len() > REGIONS_MAX {
            return Err(GuestMapError::Count(regions.len()));
        }
        let mut parts = Vec::with_capacity(regions.len());
        for region in regions {
            let GuestRegion {
                gpa,
                len,
                offset,
                fd,
            } = *region;
            let file_end = offset.checked_add(len).filter(|_| len != 0);
            let file_end = file_end.ok_or(GuestMapError::Range { gpa, len })?;
            let mapping = Mapping::foreign(fd, file_end)
                .map_err(|source| GuestMapError::Memory { gpa, source })?;
            parts.push(Part {
                gpa,
                len,
                offset,
                mapping: Arc::new(mapping),
            });
        }
        GuestMap::of(&parts, alarm)
    }

    /// The memory that lies in files which are mapped already.
    pub(super) fn of(parts: &[Part], alarm: OwnedFd) -> Result<GuestMap, GuestMapError> {
        if parts.is_empty() || parts.len() > REGIONS_MAX {
            return Err(GuestMapError::Count(parts.len()));
        }
        let mut extents = Vec::with_capacity(parts.len());
        let mut mappings: Vec<Arc<Mapping>> = Vec::with_capacity(parts.len());
        for part in parts {
            let (gpa, len) = (part.gpa, part.len);
            let range = GuestMapError::Range { gpa, len };
            let inside = part.offset.checked_add(len);
            let inside = inside.is_some_and(|end| end <= part.mapping.len() as u64);
            if len == 0 || gpa.checked_add(len).is_none() || !inside {
                return Err(range);
            }
            let base = part.mapping.base().wrapping_add(part.offset as usize);
            extents.push(Extent {
                gpa,
                len,
                base,
                real: gpa,
                access: READ | WRITE,
            });
            if !mappings
                .iter()
                .any(|known| Arc::ptr_eq(known, &part.mapping))
            {
                mappings.push(part.mapping.clone());
            }
        }
        extents.sort_by_key(|e| e.gpa);
        for (low, high) in extents.iter().zip(extents.iter().skip(1)) {
            if high.gpa.wrapping_sub(low.gpa) < low.len {
                return Err(GuestMapError::Overlap(high.gpa));
            }
        }
        let Some(largest) = extents.iter().max_by_key(|e| e.len).copied() else {
            return Err(GuestMapError::Count(0));
        };
        Ok(GuestMap {
            extents: extents.into(),
            largest,
            mappings: mappings.into(),
            alarm: Arc::new(Alarm {
                failed: AtomicBool::new(false),
                fd: alarm,
            }),
            access: 0,
            missed: AtomicU64::new(0),
        })
    }

    /// The same memory behind an IOMMU, for one kind of access. `extents`: sorted translations that lie in the mappings
    /// of this map.
    pub(super) fn translated_by(&self, extents: Arc<[Extent]>, access: u8) -> GuestMap {
        GuestMap {
            extents,
            largest: Extent::NONE,
            mappings: self.mappings.clone(),
            alarm: self.alarm.clone(),
            access,
            missed: AtomicU64::new(0),
        }
    }

    /// Whether an IOMMU is between.
    pub(super) fn is_translated(&self) -> bool {
        self.access != 0
    }

    /// Notes that there is no translation.
    #[cold]
    pub(super) fn note_miss(&self, iova: u64, access: u8) {
        self.missed
            .store(Miss::at(iova, access).word(), Ordering::Relaxed);
    }

    /// The miss that was noted last, once.
    pub(super) fn take_miss(&self) -> Option<Miss> {
        // Only the holder of the ring comes here, so there is nothing to exchange at once.
        let word = self.missed.load(Ordering::Relaxed);
        if word != 0 {
            self.missed.store(0, Ordering::Relaxed);
        }
        Miss::of(word)
    }

    /// Has whoever waits at the alarm look, though nothing is broken.
    pub(super) fn call(&self) {
        // As in `fail`.
        let _ = eventfd::signal(&self.alarm.fd);
    }

    /// Whether the memory is of no use any more.
    #[inline(always)]
    pub fn is_dead(&self) -> bool {
        self.alarm.failed.load(Ordering::Relaxed) || self.mappings.iter().any(|m| m.is_dead())
    }

    /// The guest broke the rules or took its memory away: nothing more is taken from it or given to it.
    #[cold]
    pub fn fail(&self) {
        if !self.alarm.failed.swap(true, Ordering::Relaxed) {
            // Nobody else can fill this counter, and a lost wake-up would only delay what the worker also reports.
            let _ = eventfd::signal(&self.alarm.fd);
        }
    }

    /// Readable once [`GuestMap::fail`] was called.
    pub fn alarm(&self) -> &OwnedFd {
        &self.alarm.fd
    }

    /// `len` bytes at guest address `gpa` to be read, if they lie in one region.
    pub fn slice<'q>(&'q self, q: &'q Section<'_>, gpa: u64, len: u32) -> Option<Foreign<'q>> {
        let p = self.find(&mut self.hit(), gpa, len)?;
        // SAFETY: inside a mapping of this map, which `'q` borrows.
        Some(unsafe { Foreign::at(q, p, len) })
    }

    /// The aligned word at `gpa`, if it lies in one region.
    pub(super) fn load_u16(&self, gpa: u64) -> Option<u16> {
        let p: *const u16 = self.find_for(READ, gpa, 2)?.cast_const().cast();
        if !p.is_aligned() {
            return None;
        }
        // SAFETY: aligned, and inside a mapping of this map, which the caller borrows.
        Some(unsafe { word::load_u16(p, Ordering::Acquire) })
    }

    /// A region to begin with as the last hit: the largest.
    #[inline(always)]
    pub(super) fn hit(&self) -> Extent {
        self.largest
    }

    /// The address of `len` bytes at `gpa`, if they lie in one region; `hit` becomes that region. `hit` must come
    /// from this map.
    #[inline(always)]
    pub(super) fn find(&self, hit: &mut Extent, gpa: u64, len: u32) -> Option<*mut u8> {
        match hit.find(gpa, len) {
            Some(p) => Some(p),
            None => self.search(hit, gpa, len),
        }
    }

    #[inline(never)]
    fn search(&self, hit: &mut Extent, gpa: u64, len: u32) -> Option<*mut u8> {
        let extent = holding(&self.extents, gpa)?;
        if extent.access & self.access != self.access {
            return None;
        }
        let p = extent.find(gpa, len)?;
        *hit = *extent;
        Some(p)
    }

    /// The address of `len` bytes that may be accessed so, wherever the map is for another access.
    #[inline(never)]
    pub(super) fn find_for(&self, access: u8, gpa: u64, len: u32) -> Option<*mut u8> {
        let extent = holding(&self.extents, gpa)?;
        if extent.access & access != access {
            return None;
        }
        extent.find(gpa, len)
    }

    /// The bytes from `gpa` on that lie together and may be accessed so, `len` at most.
    pub(super) fn run_at(&self, access: u8, gpa: u64, len: u32) -> Option<(*mut u8, u32)> {
        let extent = holding(&self.extents, gpa)?;
        if extent.access & access != access {
            return None;
        }
        let (p, n) = extent.from(gpa);
        Some((p, u32::try_from(n).unwrap_or(u32::MAX).min(len)))
    }

    /// The access that this map is for: of both kinds where no IOMMU is between.
    pub(super) fn access(&self) -> u8 {
        match self.access {
            0 => READ | WRITE,
            access => access,
        }
    }

    /// The translations, sorted.
    pub(super) fn extents(&self) -> &Arc<[Extent]> {
        &self.extents
    }
}

#[cfg(test)]
#[allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::arithmetic_side_effects
)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::fd::AsFd;
    use windlass_shm::HugePages;
    use windlass_sync::qsbr::Domain;

    const PAGE: u64 = 4096;

    fn memory(pages: u64) -> OwnedFd {
        let name = "windlass-guest";
        let made = Mapping::create(name, (pages * PAGE) as usize, HugePages::No);
        made.unwrap().1
    }

    fn map(fd: &OwnedFd, list: &[(u64, u64, u64)]) -> Result<GuestMap, GuestMapError> {
        let region = |&(gpa, len, offset)| GuestRegion {
            gpa,
            len,
            offset,
            fd: fd.as_fd(),
        };
        let regions: Vec<_> = list.iter().map(region).collect();
        GuestMap::new(&regions, eventfd::create().unwrap())
    }

    /// An address is found with the bytes of its own region, up to its exact end and not one further, also where
    /// another region begins there; holes and overflowing lengths are refused.
    #[test]
    fn edges_of_regions() {
        let fd = memory(4);
        let list = [
            (0x2000, PAGE, 2 * PAGE),
            (0x1000, PAGE, 0),
            (0x8000, PAGE, PAGE),
            (u64::MAX - PAGE, PAGE, 3 * PAGE),
        ];
        let map = map(&fd, &list).unwrap();
        let ours = Mapping::foreign(fd.as_fd(), 4 * PAGE).unwrap();
        ours.write(PAGE - 1, b"a");
        ours.write(2 * PAGE, b"b");
        ours.write(PAGE, b"c");
        let domain = Domain::new(1);
        let mut worker = domain.register();
        let section = worker.section();
        let byte = |gpa| {
            let mut got = [0];
            map.slice(&section, gpa, 1)?.read(&mut got);
            Some(got[0])
        };
        assert_eq!(byte(0x1fff), Some(b'a'));
        assert_eq!(byte(0x2000), Some(b'b'));
        assert_eq!(byte(0x8000), Some(b'c'));
        let find = |gpa, len| map.slice(&section, gpa, len).map(|f| f.len());
        assert_eq!(find(0x1000, 4096), Some(4096));
        assert_eq!(find(0x1000, 4097), None, "straddles");
        assert_eq!(find(0x1fff, 2), None, "straddles");
        assert_eq!(find(0x3000, 1), None, "hole");
        assert_eq!(find(0xfff, 1), None, "below");
        assert_eq!(find(u64::MAX - 1, 1), Some(1));
        assert_eq!(find(u64::MAX - 1, 2), None, "behind the last");
        assert_eq!(find(u64::MAX - 1, u32::MAX), None, "overflow");
        assert_eq!(find(u64::MAX, u32::MAX), None, "overflow");
    }

    /// Tables that cannot be are refused: none, empty, overlapping, overflowing, beyond the file.
    #[test]
    fn bad_tables_are_refused() {
        let fd = memory(2);
        assert!(matches!(map(&fd, &[]), Err(GuestMapError::Count(0))));
        let bad = |list: &[(u64, u64, u64)]| map(&fd, list).unwrap_err();
        assert!(matches!(bad(&[(0, 0, 0)]), GuestMapError::Range { .. }));
        let wraps = [(u64::MAX, 2, 0)];
        assert!(matches!(bad(&wraps), GuestMapError::Range { .. }));
        let offset = [(0, PAGE, u64::MAX)];
        assert!(matches!(bad(&offset), GuestMapError::Range { .. }));
        let beyond = [(0, PAGE, 2 * PAGE)];
        assert!(matches!(bad(&beyond), GuestMapError::Memory { .. }));
        let overlap = [(0x1000, PAGE + 1, 0), (0x2000, PAGE, 0)];
        assert!(matches!(bad(&overlap), GuestMapError::Overlap(0x2000)));
        let same = [(0x1000, PAGE, 0), (0x1000, PAGE, 0)];
        assert!(matches!(bad(&same), GuestMapError::Overlap(0x1000)));
        assert!(matches!(
            map(&fd, &[(0, 1, 0); REGIONS_MAX + 1]),
            Err(GuestMapError::Count(_))
        ));
    }

    proptest! {
        /// Whatever was hit before, a translation is what a look through all regions in 128-bit arithmetic says.
        #[test]
        fn agrees_with_a_list(
            queries in prop::collection::vec((0u64..0x9000, 0u32..0x3000), 1..40),
            high in any::<u64>(),
        ) {
            let fd = memory(4);
            let list = [(0x1000, PAGE, 0), (0x2000, 100, PAGE), (0x5000, 2 * PAGE, 2 * PAGE)];
            let map = map(&fd, &list).unwrap();
            let base = |i: usize| map.extents[i].base as u64;
            let mut hit = map.hit();
            for (gpa, len) in queries.into_iter().chain([(high, 1), (u64::MAX, u32::MAX)]) {
                let expected = list.iter().enumerate().find_map(|(i, &(at, n, _))| {
                    let inside = gpa >= at && gpa < at + n
                        && u128::from(gpa) + u128::from(len) <= u128::from(at + n);
                    inside.then(|| base(i) + (gpa - at))
                });
                prop_assert_eq!(map.find(&mut hit, gpa, len).map(|p| p as u64), expected);
            }
        }
    }
}

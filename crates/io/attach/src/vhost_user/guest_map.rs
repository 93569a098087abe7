//! A guest's memory: which of its addresses lie where in ours.
//!
//! # Model
//! Regions are sorted by guest address and do not overlap. Whoever translates keeps the region of its last hit as a
//! value of its own (`Extent`), so that the next address costs two compares and no shared line is written.
//!
//! # Failure modes
//! An address that lies in no region, or a length that leaves its region, is `None`: also where the next region
//! begins at once, since the two need not be neighbours in our memory. A sum that overflows cannot be formed.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use windlass_shm::{Foreign, MapError, Mapping, Section, word};
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
pub const BYTES_MAX: u64 = 512 << 30;

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

/// One region, by value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    gpa: u64,
    len: u64,
    base: *mut u8,
}

impl Extent {
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

/// The memory of one guest.
#[derive(Debug)]
pub struct GuestMap {
    extents: Box<[Extent]>,
    largest: Extent,
    mappings: Vec<Arc<Mapping>>,
    failed: AtomicBool,
    alarm: OwnedFd,
}

// SAFETY: the extents are the addresses of `mappings`, which are themselves shared between threads; every access to
// them is atomic or assembly.
unsafe impl Send for GuestMap {}
// SAFETY: as above.
unsafe impl Sync for GuestMap {}

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
            extents.push(Extent { gpa, len, base });
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
            mappings,
            failed: AtomicBool::new(false),
            alarm,
        })
    }

    /// Whether the memory is of no use any more.
    #[inline(always)]
    pub fn is_dead(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.mappings.iter().any(|m| m.is_dead())
    }

    /// The guest broke the rules or took its memory away: nothing more is taken from it or given to it.
    #[cold]
    pub fn fail(&self) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            // Nobody else can fill this counter, and a lost wake-up would only delay what the worker also reports.
            let _ = eventfd::signal(&self.alarm);
        }
    }

    /// Readable once [`GuestMap::fail`] was called.
    pub fn alarm(&self) -> &OwnedFd {
        &self.alarm
    }

    /// `len` bytes at guest address `gpa` to be read, if they lie in one region.
    pub fn slice<'q>(&'q self, q: &'q Section<'_>, gpa: u64, len: u32) -> Option<Foreign<'q>> {
        let p = self.find(&mut self.hit(), gpa, len)?;
        // SAFETY: inside a mapping of this map, which `'q` borrows.
        Some(unsafe { Foreign::at(q, p, len) })
    }

    /// The aligned word at `gpa`, if it lies in one region.
    pub(super) fn load_u16(&self, gpa: u64) -> Option<u16> {
        let p: *const u16 = self.find(&mut self.hit(), gpa, 2)?.cast_const().cast();
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
        let behind = self.extents.partition_point(|e| e.gpa <= gpa);
        let extent = self.extents.get(behind.checked_sub(1)?)?;
        let p = extent.find(gpa, len)?;
        *hit = *extent;
        Some(p)
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

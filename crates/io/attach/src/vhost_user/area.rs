//! Where a part of a ring lies in our memory: in one piece, or, behind an IOMMU, page by page.
//!
//! # Model
//! A ring's code asks for the place of a word by its offset. What is in one piece answers with a sum. A driver whose IOMMU
//! gives it addresses in one piece need not have memory in one piece (Linux takes a ring's pages where it finds them), so
//! there each page of the part has its own place. No word lies across the border of two pages, since every word is aligned.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use core::fmt::Debug;

use super::queue::{Part, QueueError, QueueSetup};
use super::ring::find_part;

/// The smallest page of an IOMMU.
const PAGE: u64 = 4096;

/// Where a part of a ring lies.
pub(super) trait Area: Debug + Sized {
    /// Finds the part.
    fn find(setup: &QueueSetup, part: &Part) -> Result<Self, QueueError>;

    /// The place of the word at `offset`, which is aligned as the part says. Null only for one outside the part.
    fn at(&self, offset: usize) -> *mut u8;
}

/// A part in one piece.
#[derive(Debug)]
pub(super) struct Flat(*mut u8);

impl Area for Flat {
    fn find(setup: &QueueSetup, part: &Part) -> Result<Flat, QueueError> {
        find_part(setup, part).map(Flat)
    }

    #[inline(always)]
    fn at(&self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}

/// A part that lies page by page.
#[derive(Debug)]
pub(super) struct Paged {
    /// Where the pages of the device's addresses begin in our memory.
    pages: Box<[*mut u8]>,
    /// How far behind the beginning of the first page the part begins.
    first: usize,
}

impl Area for Paged {
    fn find(setup: &QueueSetup, part: &Part) -> Result<Paged, QueueError> {
        let lacking = QueueError::Place {
            part: part.name,
            gpa: part.gpa,
        };
        let (mut at, mut left) = (part.gpa, part.bytes);
        let mut pages = Vec::new();
        while left != 0 {
            let inside = at & PAGE.wrapping_sub(1);
            let bytes = (PAGE.wrapping_sub(inside) as u32).min(left);
            let found = setup.map.run_at(part.access, at, bytes);
            let Some((place, n)) = found else {
                return Err(lacking);
            };
            let page = place.wrapping_sub(inside as usize);
            // A page that is less than one piece is of no IOMMU.
            if n != bytes || page.addr() & part.align.wrapping_sub(1) != 0 {
                return Err(lacking);
            }
            pages.push(page);
            at = at.wrapping_add(u64::from(bytes));
            left = left.wrapping_sub(bytes);
        }
        let first = (part.gpa & PAGE.wrapping_sub(1)) as usize;
        match first & part.align.wrapping_sub(1) {
            0 => Ok(Paged {
                pages: pages.into(),
                first,
            }),
            _ => Err(lacking),
        }
    }

    #[inline]
    fn at(&self, offset: usize) -> *mut u8 {
        const MASK: usize = PAGE as usize - 1;
        let at = self.first.wrapping_add(offset);
        let page = self.pages.get(at >> PAGE.trailing_zeros());
        page.map_or(core::ptr::null_mut(), |page| page.wrapping_add(at & MASK))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::arithmetic_side_effects)]
mod tests {
    use super::super::features::VERSION_1;
    use super::super::guest_map::{Extent, GuestMap, GuestRegion, READ};
    use super::super::queue::Base;
    use super::*;
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use windlass_shm::{HugePages, Mapping};
    use windlass_sys::eventfd;

    /// A part over pages in any order finds each of its words, and none outside; parts that are not whole, or whose pages
    /// are no pages, are refused.
    #[test]
    fn words_page_by_page() {
        let (_memory, file) = Mapping::create("area", 4 * 4096, HugePages::No).unwrap();
        let region = GuestRegion {
            gpa: 0,
            len: 4 * PAGE,
            offset: 0,
            fd: file.as_fd(),
        };
        let plain = GuestMap::new(&[region], eventfd::create().unwrap()).unwrap();
        let base = plain.find_for(READ, 0, 1).unwrap();
        let extent = |gpa, len, real: u64| Extent {
            gpa,
            len,
            base: base.wrapping_add(real as usize),
            real,
            access: READ,
        };
        let find = |extents: &[Extent], gpa, bytes| {
            let setup = QueueSetup {
                map: Arc::new(plain.translated_by(extents.into(), READ)),
                ..setup()
            };
            let part = Part {
                name: "part",
                gpa,
                bytes,
                align: 16,
                access: READ,
            };
            Paged::find(&setup, &part)
        };
        let reversed: Vec<_> = (0..3)
            .map(|i| extent(0x7000 + i * PAGE, PAGE, (2 - i) * PAGE))
            .collect();
        let area = find(&reversed, 0x7ff0, PAGE as u32 + 32).unwrap();
        let place = |offset| area.at(offset).addr().wrapping_sub(base.addr()) as u64;
        assert_eq!(place(0), 2 * PAGE + 0xff0);
        assert_eq!(place(8), 2 * PAGE + 0xff8);
        assert_eq!(place(16), PAGE);
        assert_eq!(place(16 + 4096), 0);
        assert!(area.at(16 + 2 * 4096).is_null(), "behind the last page");
        assert!(find(&reversed, 0x7ff8, 64).is_err(), "not aligned");
        assert!(
            find(&reversed, 0x8000, 3 * PAGE as u32).is_err(),
            "not whole"
        );
        let halves = [extent(0, 2048, 0), extent(2048, 2048, PAGE)];
        assert!(find(&halves, 0, 4096).is_err(), "half a page");
        let odd = [extent(0, PAGE, 8)];
        assert!(find(&odd, 0, 64).is_err(), "a page at an odd place");
    }

    fn setup() -> QueueSetup {
        let (_memory, file) = Mapping::create("area", 4096, HugePages::No).unwrap();
        let region = GuestRegion {
            gpa: 0,
            len: PAGE,
            offset: 0,
            fd: file.as_fd(),
        };
        let map = GuestMap::new(&[region], eventfd::create().unwrap()).unwrap();
        QueueSetup {
            map: Arc::new(map),
            desc: 0,
            avail: 0,
            used: 0,
            size: 8,
            base: Base::split(0),
            features: VERSION_1,
            kick: None,
            call: None,
            log: None,
        }
    }
}

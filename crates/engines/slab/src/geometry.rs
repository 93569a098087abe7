//! How a class cuts its slabs.

use crate::sizes::{BATCH_MAX, SMALL_MAX, batch_of, size, units};
use crate::{SPAN, SPAN_UNITS, UNIT};

/// Object sizes of a cache are multiples of this.
const STEP: usize = 8;
/// Objects smaller than this leave no room for the bits of constructed ones.
const CONSTRUCTED_MIN: usize = 16;
/// Objects that a slab of small ones has at least.
const OBJECTS_MIN: usize = 8;
/// At most one part of so many of a slab is lost at its end, where a slab of another length helps.
const WASTE_SHARE: usize = 8;

/// Size and number of the objects of a slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    size: u32,
    /// 2^32 / `size`, rounded up.
    reciprocal: u32,
    objects: u16,
    units: u8,
    batch: u8,
    constructs: bool,
}

impl Geometry {
    /// That of a size class.
    pub const fn of_class(class: usize) -> Self {
        Self::cut(size(class), units(class), false)
    }

    /// That of a cache: objects of at least `bytes` bytes at multiples of `align`, a power of two. `None`: more than a span, or an
    /// alignment above [`UNIT`].
    pub fn of_cache(bytes: usize, align: usize, constructs: bool) -> Option<Self> {
        if bytes > SPAN || align > UNIT {
            return None;
        }
        let min = if constructs { CONSTRUCTED_MIN } else { STEP };
        let size = bytes.max(min).next_multiple_of(align.max(STEP));
        let wanted = if size <= SMALL_MAX { OBJECTS_MIN } else { 1 };
        Self::fit(size, wanted, constructs)
    }

    /// The same with slabs of at least `objects` objects, without constructors. `None` also if a span has no room for so many.
    pub fn of_slabs(bytes: usize, align: usize, objects: usize) -> Option<Self> {
        if bytes > SPAN || align > UNIT || objects > SPAN / STEP {
            return None;
        }
        let size = bytes.max(STEP).next_multiple_of(align.max(STEP));
        Self::fit(size, objects.max(1), false)
    }

    fn fit(size: usize, wanted: usize, constructs: bool) -> Option<Self> {
        let lost = |units: usize| units * UNIT % size;
        let first = (wanted * size).div_ceil(UNIT);
        let enough = |&units: &usize| lost(units) * WASTE_SHARE <= units * UNIT;
        let best = (first..=SPAN_UNITS).min_by_key(|&units| lost(units) * SPAN / units);
        let units = (first..=SPAN_UNITS).find(enough).or(best)?;
        Some(Self::cut(size, units, constructs))
    }

    const fn cut(size: usize, units: usize, constructs: bool) -> Self {
        Self {
            size: size as u32,
            reciprocal: (1_u64 << 32).div_ceil(size as u64) as u32,
            objects: (units * UNIT / size) as u16,
            units: units as u8,
            batch: batch_of(size) as u8,
            constructs,
        }
    }

    /// Bytes from one object to the next.
    pub const fn size(&self) -> usize {
        self.size as usize
    }

    /// Objects of a slab.
    pub const fn objects(&self) -> usize {
        self.objects as usize
    }

    /// Units of a slab.
    pub const fn units(&self) -> usize {
        self.units as usize
    }

    /// Objects that move at once between a magazine and the class.
    pub const fn batch(&self) -> usize {
        self.batch as usize
    }

    /// Whether it is noted which objects are constructed.
    pub const fn constructs(&self) -> bool {
        self.constructs
    }

    /// The object that starts this many bytes behind the slab's first.
    pub fn index(&self, offset: usize) -> Option<usize> {
        // Exact for each start of an object: the sum of the reciprocal's errors up to the slab's end is less than one part of 2^32.
        let index = ((offset as u64 * u64::from(self.reciprocal)) >> 32) as usize;
        (index * self.size() == offset && index < self.objects()).then_some(index)
    }
}

const _: () = assert!(BATCH_MAX <= u64::BITS as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizes::CLASSES;

    /// Every start of an object has its index, and no other address has one.
    #[test]
    fn starts_have_an_index() {
        let caches = (1..=SPAN).step_by(4099).chain(1..600);
        let caches =
            caches.map(|bytes| Geometry::of_cache(bytes, 1, false).expect("not too large"));
        for geometry in (1..CLASSES).map(Geometry::of_class).chain(caches) {
            for offset in (0..geometry.units() * UNIT).step_by(8) {
                let index = offset / geometry.size();
                let is_start = offset % geometry.size() == 0 && index < geometry.objects();
                assert_eq!(
                    geometry.index(offset),
                    is_start.then_some(index),
                    "{geometry:?}"
                );
            }
        }
    }

    /// Objects are large enough and aligned, a slab fits into a span, and little of it is lost.
    #[test]
    fn slabs_are_cut_well() {
        for bytes in (0..4096).chain((4096..=SPAN).step_by(777)) {
            for align in [1, 8, 64, 4096, UNIT] {
                for constructs in [false, true] {
                    let of = Geometry::of_cache(bytes, align, constructs);
                    let Some(of) = of else {
                        assert!(bytes > SPAN - align, "{bytes} {align}");
                        continue;
                    };
                    assert!(of.size() >= bytes && of.size().is_multiple_of(align));
                    assert!(of.units() <= SPAN_UNITS && of.objects() >= 1);
                    let used = of.objects() * of.size();
                    assert!(used <= of.units() * UNIT && used * 8 >= of.units() * UNIT * 5);
                    assert!(!constructs || of.objects() <= 4096);
                }
            }
        }
        assert_eq!(
            Geometry::of_cache(200, 8, true).map(|of| of.size()),
            Some(200)
        );
        assert_eq!(Geometry::of_cache(SPAN + 1, 8, false), None);
        for objects in [1, 64, 496, 992] {
            let of = Geometry::of_slabs(2112, 64, objects).expect("a span has room");
            assert!(of.size() == 2112 && of.objects() >= objects);
            assert!(of.units() == (objects * 2112).div_ceil(UNIT));
        }
        assert_eq!(Geometry::of_slabs(2112, 64, 993), None);
        assert_eq!(Geometry::of_cache(8, UNIT * 2, false), None);
    }
}

//! Size classes: 8 bytes, 16 to 128 by 16, then four a doubling to 32 KiB.

use crate::UNIT;

/// Number of classes, with class 0, which has no objects.
pub const CLASSES: usize = 42;
/// Places for magazines: size classes, then object caches.
pub const PLACES: usize = 64;
/// The largest size that has a class.
pub const SMALL_MAX: usize = 32 << 10;
/// The most objects that move between a magazine and its class at once.
pub const BATCH_MAX: usize = 64;

/// Bytes moved at once, at most, where that is more than two objects.
const BATCH_BYTES: usize = 16 << 10;
/// Bytes that a magazine may hold, where that is more than [`MAGAZINE_MIN`] objects.
const MAGAZINE_BYTES: usize = 128 << 10;
const MAGAZINE_MIN: usize = 4;
/// Objects that a magazine may hold, whatever their size.
pub const MAGAZINE_MAX: usize = 512;
const CACHE_LINE: usize = 64;

const SIZES: [u32; CLASSES] = sizes();

const fn sizes() -> [u32; CLASSES] {
    let mut sizes = [0; CLASSES];
    sizes[1] = 8;
    let mut class = 2;
    while class < CLASSES {
        sizes[class] = match class {
            2..=9 => (class as u32 - 1) * 16,
            // Four steps a doubling: 128 * 2^k * (1 + j/4).
            _ => {
                let step = class as u32 - 9;
                let (doubling, quarter) = ((step - 1) / 4, (step - 1) % 4 + 1);
                (128 << doubling) / 4 * (4 + quarter)
            }
        };
        class += 1;
    }
    sizes
}

/// Class of a size up to 1 KiB, times 16, by `(size + 7) / 8`.
pub const TABLE_FINE: [u16; 129] = table(8);
/// Class of a size up to [`SMALL_MAX`], times 16, by `(size + 127) / 128`.
pub const TABLE_WIDE: [u16; 257] = table(128);

const fn table<const N: usize>(step: usize) -> [u16; N] {
    let mut table = [16; N];
    let (mut at, mut class) = (1, 1);
    while at < N {
        while (SIZES[class] as usize) < at * step {
            class += 1;
        }
        table[at] = class as u16 * 16;
        at += 1;
    }
    table
}

/// Bytes of an object of this class.
pub const fn size(class: usize) -> usize {
    SIZES[class] as usize
}

/// The smallest class whose objects have this size. `None` above [`SMALL_MAX`].
pub fn class_of(size: usize) -> Option<usize> {
    static FINE: [u16; 129] = TABLE_FINE;
    static WIDE: [u16; 257] = TABLE_WIDE;
    let entry = match size {
        0..=1024 => FINE[size.div_ceil(8)],
        _ => *WIDE.get(size.div_ceil(128))?,
    };
    Some(usize::from(entry) / 16)
}

/// The smallest class whose objects have this size and start at multiples of `align`, a power of two up to [`UNIT`].
pub fn aligned_class(bytes: usize, align: usize) -> Option<usize> {
    let first = class_of(bytes.max(align))?;
    (first..CLASSES).find(|&class| size(class).is_multiple_of(align))
}

/// Units of a slab of this class.
pub const fn units(class: usize) -> usize {
    match size(class) {
        0..=4096 => 1,
        4097..=8192 => 2,
        _ => 4,
    }
}

/// Objects that move at once between a magazine and its class.
pub const fn batch(class: usize) -> usize {
    batch_of(size(class))
}

/// Objects of this size that move at once.
pub const fn batch_of(size: usize) -> usize {
    clamp(BATCH_BYTES / size, 2, BATCH_MAX)
}

/// Objects that a magazine of this class may hold at most.
pub const fn limit_max(class: usize) -> usize {
    limit_max_of(size(class))
}

/// Objects of this size that a magazine may hold at most.
pub(crate) const fn limit_max_of(size: usize) -> usize {
    clamp(MAGAZINE_BYTES / size, MAGAZINE_MIN, MAGAZINE_MAX)
}

/// Objects that a magazine of this class may hold at first: at least a cache line, so that two threads share none.
pub const fn limit_first(class: usize) -> usize {
    limit_first_of(size(class))
}

/// Objects of this size that a magazine may hold at first.
pub(crate) const fn limit_first_of(size: usize) -> usize {
    clamp(CACHE_LINE / size, MAGAZINE_MIN, MAGAZINE_MAX)
}

const fn clamp(value: usize, min: usize, max: usize) -> usize {
    if value < min {
        min
    } else if value > max {
        max
    } else {
        value
    }
}

const _: () = assert!(SIZES[CLASSES - 1] as usize == SMALL_MAX && SMALL_MAX <= UNIT);

#[cfg(test)]
mod tests {
    use super::*;

    /// Each size has the smallest class that holds it, and above 128 bytes at most a fifth of an object is lost.
    #[test]
    fn every_size_has_its_class() {
        for n in 0..=SMALL_MAX {
            let class = class_of(n).expect("small");
            assert!(size(class) >= n && class >= 1);
            assert!(class == 1 || size(class - 1) < n, "{n}: {class}");
            assert!(n <= 128 || (size(class) - n) * 5 <= size(class), "{n}");
        }
        assert_eq!(class_of(SMALL_MAX + 1), None);
        assert_eq!(class_of(usize::MAX), None);
    }

    /// An aligned class has aligned objects that are large enough.
    #[test]
    fn aligned_classes_are_aligned() {
        for shift in 3..=15 {
            for n in [0, 1, 24, 100, 160, 4097, 20_000, SMALL_MAX] {
                let class = aligned_class(n, 1 << shift).expect("there is one");
                assert!(size(class) >= n && size(class).is_multiple_of(1 << shift));
            }
        }
        assert_eq!(aligned_class(8, 64 << 10), None);
    }

    /// A batch fits into every magazine at its largest, and a slab has at least two objects.
    #[test]
    fn limits_are_in_order() {
        for class in 1..CLASSES {
            assert!(limit_first(class) <= limit_max(class));
            assert!(batch(class) <= limit_max(class));
            assert!(units(class) * UNIT / size(class) >= 8);
        }
    }
}

//! The keyed hash that chooses an entry's two buckets.
//!
//! # Model
//! One 64 x 64 -> 128 bit multiplication of the key and a secret, folded. It is not linear, unlike a CRC, for which
//! a set of colliding addresses collides under every seed: who does not know the seeds cannot aim at a bucket.

use super::Key;

/// A key's hash: it names the two buckets in which the key may stand. Readers look at the first and then at the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place(u64);

impl Place {
    /// The bucket to look at first, in a table of `mask + 1` buckets (a power of two, at least two).
    #[inline(always)]
    pub(super) fn first(self, mask: u32) -> u32 {
        self.0 as u32 & mask
    }

    /// The other bucket.
    #[inline(always)]
    pub(super) fn second(self, mask: u32) -> u32 {
        let other = (self.0 >> 32) as u32 & mask;
        if other == self.first(mask) {
            other ^ 1
        } else {
            other
        }
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// One step of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
fn mixed(seed: u64) -> u64 {
    let z = seed.wrapping_add(GOLDEN);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Seeds of one table's hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seeds {
    flip: u64,
    factor: u64,
}

impl Seeds {
    /// Seeds from two secret numbers. They are mixed first, so that small or sparse ones serve as well.
    pub(super) fn new([a, b]: [u64; 2]) -> Seeds {
        Seeds {
            flip: mixed(a),
            factor: mixed(a.wrapping_add(b).wrapping_add(GOLDEN)) | 1,
        }
    }

    /// Where `key` may stand.
    #[inline(always)]
    pub(super) fn place(&self, key: Key) -> Place {
        let product = u128::from(key.0 ^ self.flip).wrapping_mul(u128::from(self.factor));
        Place((product >> 64) as u64 ^ product as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two buckets differ and stay inside the table, and addresses that count up in any one
    /// byte spread evenly: no bucket gets more than three times its share as first bucket.
    #[test]
    fn spreads_and_stays_inside() {
        let seeds = Seeds::new([0x9e37_79b9_7f4a_7c15, 0x1234_5678_9abc_def1]);
        for shift in [0, 8, 16, 24, 32] {
            let mut hits = [0u32; 256];
            for i in 0..65_536_u64 {
                let p = seeds.place(Key::new(1, i << shift));
                let (first, second) = (p.first(255), p.second(255));
                assert!(first < 256 && second < 256 && first != second);
                hits[first as usize] += 1;
            }
            assert!(
                hits.iter().all(|&n| n < 3 * 256),
                "shift {shift}: {:?}",
                hits.iter().max()
            );
        }
    }
}

//! What a worker saw and the writer should hear of.
//!
//! # Model
//! Every frame from an address that the table does not know, or knows elsewhere, is a sighting. Until the writer has
//! acted on the first one, the next frames would post it again: a small direct-mapped filter holds what was posted
//! in the last [`REPEAT_NS`]. And one source that sprays addresses could fill the ring to the writer: at
//! most [`POSTS_MAX`] are posted for one burst, and what a ring posts is paced ([`crate::forward::LEARNED_A_SECOND`]). What
//! is beyond is lost and counted; its next frame tries again.

use windlass_frame::{BURST, Tick};

use super::{Key, Place};

/// Sightings posted for one burst of one ring at most.
pub const POSTS_MAX: usize = 8;
/// A sighting is not repeated by the same worker within this time.
const REPEAT_NS: u64 = 1_000_000;
const FILTER: usize = 256;

/// An address seen behind a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// VLAN and address.
    pub key: Key,
    /// The member whose frame it was.
    pub member: u16,
    /// The member's addresses are sticky: the entry neither ages nor moves.
    pub sticky: bool,
}

/// One worker's sightings of the burst at hand.
#[derive(Debug)]
pub struct Sightings {
    filter: Box<[(u64, u16, u64); FILTER]>,
    posts: [Sighting; POSTS_MAX],
    n: usize,
    lost: u64,
    window: u64,
    /// Scratch of the bridge: the buckets of the burst's destinations.
    places: Box<[Place; BURST]>,
}

impl Default for Sightings {
    fn default() -> Self {
        Self::new()
    }
}

impl Sightings {
    /// Nothing seen yet.
    pub fn new() -> Sightings {
        let none = Sighting {
            key: Key(0),
            member: 0,
            sticky: false,
        };
        Sightings {
            filter: Box::new([(0, 0, 0); FILTER]),
            posts: [none; POSTS_MAX],
            n: 0,
            lost: 0,
            window: 1,
            places: Box::new([Place::default(); BURST]),
        }
    }

    /// Starts a burst: what was posted before is forgotten, the filter is kept for its time.
    #[inline]
    pub fn begin(&mut self, now: Tick) {
        self.n = 0;
        self.window = (now.0 / REPEAT_NS).wrapping_add(1);
    }

    /// Notes a sighting. True if it was posted, false if it is a repetition or beyond the budget.
    #[inline]
    pub fn note(&mut self, s: Sighting) -> bool {
        let mixed = s.key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        let seen = (s.key.0, s.member, self.window);
        let Some(cell) = self.filter.get_mut(mixed as usize) else {
            return false;
        };
        if *cell == seen {
            return false;
        }
        let Some(post) = self.posts.get_mut(self.n) else {
            self.lost = self.lost.wrapping_add(1);
            return false;
        };
        *cell = seen;
        *post = s;
        self.n = self.n.wrapping_add(1);
        true
    }

    /// Room for the buckets of a burst's destinations.
    #[inline(always)]
    pub(crate) fn places(&mut self) -> &mut [Place; BURST] {
        &mut self.places
    }

    /// The buckets noted for frame `i`.
    #[inline(always)]
    pub(crate) fn place(&self, i: usize) -> Place {
        self.places.get(i).copied().unwrap_or_default()
    }

    /// The sightings of this burst, to be posted or applied after the visit.
    pub fn posts(&self) -> &[Sighting] {
        self.posts.get(..self.n).unwrap_or(&[])
    }

    /// Adds `n` sightings that found the ring to the writer full.
    pub fn lose(&mut self, n: u64) {
        self.lost = self.lost.wrapping_add(n);
    }

    /// Takes the number of sightings lost since the last call.
    pub fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sighting(mac: u64, member: u16) -> Sighting {
        Sighting {
            key: Key::new(1, mac),
            member,
            sticky: false,
        }
    }

    /// The same address is posted once in a window, again from another member, and again later.
    #[test]
    fn repeats_are_filtered() {
        let mut s = Sightings::new();
        s.begin(Tick(0));
        assert!(s.note(sighting(1, 1)));
        assert!(!s.note(sighting(1, 1)));
        s.begin(Tick(10));
        assert!(!s.note(sighting(1, 1)));
        assert!(s.note(sighting(1, 2)));
        assert_eq!(s.posts(), [sighting(1, 2)]);
        s.begin(Tick(REPEAT_NS));
        assert!(s.note(sighting(1, 2)));
        assert_eq!(s.take_lost(), 0);
    }

    /// A sprayer gets its budget for each burst and no more; what is lost is counted, and what was
    /// lost is not taken for posted.
    #[test]
    fn a_burst_has_a_budget() {
        let mut s = Sightings::new();
        s.begin(Tick(0));
        let posted = (0..64).filter(|&i| s.note(sighting(i, 1))).count();
        assert_eq!(posted, POSTS_MAX);
        assert_eq!(s.posts().len(), POSTS_MAX);
        assert_eq!(s.take_lost(), 64 - POSTS_MAX as u64);
        s.begin(Tick(0));
        assert!(s.note(sighting(63, 1)));
    }
}

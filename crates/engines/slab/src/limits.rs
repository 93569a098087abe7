//! How many objects each of a thread's magazines may hold.

use crate::sizes::{PLACES, limit_first_of, limit_max_of};

/// The limits of one thread's magazines, one for each place: a size class or an object cache. They start at 0, grow by use, and never exceed
/// a cap together (M4).
#[derive(Debug)]
pub struct Limits {
    limit: [u16; PLACES],
    /// Bytes of an object, as of the last [`Limits::grow`]: a place may get another cache.
    size: [u32; PLACES],
    bytes: usize,
    cap: usize,
    /// Where the search for a magazine that gives way goes on.
    hand: u8,
}

impl Limits {
    /// Limits of which all are 0, and whose sum of limit times size stays within `cap` bytes.
    pub const fn new(cap: usize) -> Self {
        Self {
            limit: [0; PLACES],
            size: [1; PLACES],
            bytes: 0,
            cap,
            hand: 1,
        }
    }

    /// Objects that the magazine of this place may hold.
    pub fn get(&self, place: usize) -> usize {
        usize::from(self.limit[place])
    }

    /// The sum of limit times size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Raises the limit of a place whose objects have `size` bytes: to its first value, then to the double, at most to its largest. `spare` is
    /// what the process allows in bytes. Returns by how many bytes the sum grew: 0 if the limit stays.
    pub fn grow(&mut self, place: usize, size: usize, spare: usize) -> usize {
        let old = self.get(place);
        let wanted = (old * 2).clamp(limit_first_of(size), limit_max_of(size));
        let room = spare.min(self.cap - self.bytes) / size;
        let new = wanted.min(old + room);
        // A first limit is whole, or two threads would share a cache line.
        if old == 0 && new < limit_first_of(size) {
            return 0;
        }
        self.size[place] = size as u32;
        self.set(place, new);
        (new - old) * size
    }

    /// Whether a place whose objects have `size` bytes could have more than it has.
    pub fn wants(&self, place: usize, size: usize) -> bool {
        self.get(place) < limit_max_of(size)
    }

    /// Halves the limit of another place, which was not used for long or is one of many: the hand goes round. Returns that place.
    /// The caller flushes what its magazine holds above the limit.
    pub fn give_way(&mut self, except: usize) -> Option<usize> {
        for _ in 1..PLACES {
            self.hand = self.hand % (PLACES as u8 - 1) + 1;
            let place = usize::from(self.hand);
            if place != except && self.get(place) > 0 {
                let halved = self.get(place) / 2;
                let kept = if halved < limit_first_of(self.size[place] as usize) {
                    0
                } else {
                    halved
                };
                self.set(place, kept);
                return Some(place);
            }
        }
        None
    }

    /// Makes the limit of one place 0: its cache is gone.
    pub fn forget(&mut self, place: usize) {
        self.set(place, 0);
    }

    /// Takes the limits that magazines have: whoever set them may have been in between when a fork left it behind.
    pub fn take_over(&mut self, magazine: impl Fn(usize) -> usize) {
        self.reset();
        (1..PLACES).for_each(|place| self.set(place, magazine(place)));
    }

    /// Makes all limits 0.
    pub fn reset(&mut self) {
        self.limit = [0; PLACES];
        self.bytes = 0;
    }

    fn set(&mut self, place: usize, limit: usize) {
        let size = self.size[place] as usize;
        self.bytes = self.bytes - self.get(place) * size + limit * size;
        self.limit[place] = limit as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizes::{limit_max, size};

    /// A place that another cache got: what was added for the first is what is taken away.
    #[test]
    fn a_place_changes_its_size() {
        let mut limits = Limits::new(1 << 20);
        assert_eq!(limits.grow(50, 1000, usize::MAX), 4000);
        limits.forget(50);
        assert_eq!((limits.bytes(), limits.get(50)), (0, 0));
        assert_eq!(limits.grow(50, 48, usize::MAX), 4 * 48);
        assert_eq!(limits.give_way(1), Some(50));
        assert_eq!(limits.bytes(), 0);
    }

    /// What magazines have is taken over, whatever was set before, and the sum is theirs.
    #[test]
    fn limits_are_taken_over() {
        let mut limits = Limits::new(1 << 20);
        while limits.grow(9, size(9), usize::MAX) > 0 {}
        limits.give_way(1);
        let magazine = |class| if class == 9 { limit_max(class) } else { 0 };
        limits.take_over(magazine);
        assert_eq!(limits.get(9), limit_max(9));
        assert_eq!(limits.bytes(), limit_max(9) * size(9));
        assert!(!limits.wants(9, size(9)));
    }
}

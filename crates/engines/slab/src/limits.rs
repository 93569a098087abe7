//! How many objects each of a thread's magazines may hold.

use crate::sizes::{CLASSES, limit_first, limit_max, size};

/// The limits of one thread's magazines. They start at 0, grow by use, and never exceed a cap together (M4).
#[derive(Debug)]
pub struct Limits {
    limit: [u16; CLASSES],
    bytes: usize,
    cap: usize,
    /// Where the search for a magazine that gives way goes on.
    hand: u8,
}

impl Limits {
    /// Limits of which all are 0, and whose sum of limit times size stays within `cap` bytes.
    pub const fn new(cap: usize) -> Self {
        Self {
            limit: [0; CLASSES],
            bytes: 0,
            cap,
            hand: 1,
        }
    }

    /// Objects that the magazine of this class may hold.
    pub fn get(&self, class: usize) -> usize {
        usize::from(self.limit[class])
    }

    /// The sum of limit times size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Raises the limit of a class: to its first value, then to the double, at most to its largest. `spare` is what the process
    /// allows in bytes. Returns by how many bytes the sum grew: 0 if the limit stays.
    pub fn grow(&mut self, class: usize, spare: usize) -> usize {
        let old = self.get(class);
        let wanted = (old * 2).clamp(limit_first(class), limit_max(class));
        let room = spare.min(self.cap - self.bytes) / size(class);
        let new = wanted.min(old + room);
        // A first limit is whole, or two threads would share a cache line.
        if old == 0 && new < limit_first(class) {
            return 0;
        }
        self.set(class, new);
        (new - old) * size(class)
    }

    /// Whether a class could have more than it has.
    pub fn wants(&self, class: usize) -> bool {
        self.get(class) < limit_max(class)
    }

    /// Halves the limit of another class, which was not used for long or is one of many: the hand goes round. Returns that class.
    /// The caller flushes what its magazine holds above the limit.
    pub fn give_way(&mut self, except: usize) -> Option<usize> {
        for _ in 1..CLASSES {
            self.hand = self.hand % (CLASSES as u8 - 1) + 1;
            let class = usize::from(self.hand);
            if class != except && self.get(class) > 0 {
                let halved = self.get(class) / 2;
                let kept = if halved < limit_first(class) {
                    0
                } else {
                    halved
                };
                self.set(class, kept);
                return Some(class);
            }
        }
        None
    }

    /// Takes the limits that magazines have: whoever set them may have been in between when a fork left it behind.
    pub fn take_over(&mut self, magazine: impl Fn(usize) -> usize) {
        self.reset();
        (1..CLASSES).for_each(|class| self.set(class, magazine(class)));
    }

    /// Makes all limits 0.
    pub fn reset(&mut self) {
        self.limit = [0; CLASSES];
        self.bytes = 0;
    }

    fn set(&mut self, class: usize, limit: usize) {
        self.bytes = self.bytes - self.get(class) * size(class) + limit * size(class);
        self.limit[class] = limit as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What magazines have is taken over, whatever was set before, and the sum is theirs.
    #[test]
    fn limits_are_taken_over() {
        let mut limits = Limits::new(1 << 20);
        while limits.grow(9, usize::MAX) > 0 {}
        limits.give_way(1);
        let magazine = |class| if class == 9 { limit_max(class) } else { 0 };
        limits.take_over(magazine);
        assert_eq!(limits.get(9), limit_max(9));
        assert_eq!(limits.bytes(), limit_max(9) * size(9));
        assert!(!limits.wants(9));
    }
}

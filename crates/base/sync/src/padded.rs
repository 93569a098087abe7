//! [`Padded`]: a value on cache lines of its own.

use std::ops::{Deref, DerefMut};

/// Keeps `T` on cache lines of its own, so that writing it never takes a neighbour's line away.
///
/// The alignment is 128 bytes and not 64, because the adjacent-line prefetcher of x86 cores fetches
/// lines in pairs: two hot words 64 bytes apart would still disturb each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(128))]
pub struct Padded<T>(T);

impl<T> Padded<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// Unwraps the value.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> Deref for Padded<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Padded<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Two padded neighbours never share a pair of lines, whatever their size.
    #[test]
    fn neighbours_are_at_least_128_bytes_apart() {
        let pair = [Padded::new(1u8), Padded::new(2u8)];
        let first = &raw const pair[0] as usize;
        let second = &raw const pair[1] as usize;
        assert_eq!(first % 128, 0);
        assert_eq!(second - first, 128);
        assert_eq!(*pair[1], 2);
    }
}

//! [`Bufs`]: the program's own buffers, which may be invalid memory.

use std::marker::PhantomData;

pub use libc::iovec;

/// A buffer of no bytes.
pub(crate) const NOTHING: iovec = iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

/// A cursor over the buffers of one call: raw pointers and lengths, never references, since the program may have named
/// memory that it has not.
///
/// The same type serves for sending (only read) and receiving (only written).
#[derive(Clone, Copy, Debug)]
pub struct Bufs<'a> {
    base: *mut u8,
    first: usize,
    rest: *const iovec,
    count: usize,
    total: usize,
    vectors: PhantomData<&'a [iovec]>,
}

impl<'a> Bufs<'a> {
    /// One buffer to receive into.
    #[inline(always)]
    pub const fn one(base: *mut u8, len: usize) -> Bufs<'a> {
        Bufs {
            base,
            first: len,
            rest: std::ptr::null(),
            count: 0,
            total: len,
            vectors: PhantomData,
        }
    }

    /// One buffer to send from.
    #[inline(always)]
    pub const fn out(base: *const u8, len: usize) -> Bufs<'a> {
        Bufs::one(base.cast_mut(), len)
    }

    /// Several buffers. `None` where the sum of the lengths exceeds `isize::MAX` (EINVAL).
    pub fn vector(vectors: &'a [iovec]) -> Option<Bufs<'a>> {
        let mut total = 0usize;
        for v in vectors {
            total = total
                .checked_add(v.iov_len)
                .filter(|&t| isize::try_from(t).is_ok())?;
        }
        let mut bufs = Bufs::one(std::ptr::null_mut(), 0);
        (bufs.rest, bufs.count, bufs.total) = (vectors.as_ptr(), vectors.len(), total);
        bufs.next(0);
        Some(bufs)
    }

    /// Bytes that remain.
    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.total
    }

    /// Whether nothing remains.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The first contiguous piece of what remains.
    #[inline(always)]
    pub const fn piece(&self) -> (*mut u8, usize) {
        (self.base, self.first)
    }

    /// Leaves `n` bytes behind, at most all that remain.
    #[inline(always)]
    pub fn advance(&mut self, n: usize) {
        let mut n = n.min(self.total);
        self.total -= n;
        if n < self.first {
            self.base = self.base.wrapping_add(n);
            self.first -= n;
            return;
        }
        n -= self.first;
        self.first = 0;
        self.next(n);
    }

    fn next(&mut self, mut n: usize) {
        while self.count != 0 {
            // SAFETY: `rest` and `count` describe what is left of the slice that `'a` keeps borrowed.
            let v = unsafe { self.rest.read() };
            (self.rest, self.count) = (self.rest.wrapping_add(1), self.count - 1);
            if n < v.iov_len {
                self.base = v.iov_base.cast::<u8>().wrapping_add(n);
                self.first = v.iov_len - n;
                return;
            }
            n -= v.iov_len;
        }
    }

    /// What remains, cut to `limit` bytes, as vectors for a real call; returns how many of `out` are filled. Where `out` is too
    /// short the call will be shorter too.
    pub fn fill(mut self, limit: usize, out: &mut [iovec]) -> usize {
        let mut limit = limit.min(self.total);
        let mut filled = 0;
        for slot in out {
            if limit == 0 {
                break;
            }
            let len = self.first.min(limit);
            *slot = iovec {
                iov_base: self.base.cast(),
                iov_len: len,
            };
            limit -= len;
            filled += 1;
            self.advance(len);
        }
        filled
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the pieces and steps, the cursor walks exactly the bytes of the vectors in order, and `fill` names
        /// exactly what remains.
        #[test]
        fn the_cursor_walks_every_byte_once(
            lens in proptest::collection::vec(0usize..40, 0..8),
            steps in proptest::collection::vec(1usize..50, 1..20),
        ) {
            let mut memory: Vec<Vec<u8>> = Vec::new();
            let mut next = 0u8;
            for len in &lens {
                memory.push((0..*len).map(|_| { next = next.wrapping_add(1); next }).collect());
            }
            let flat: Vec<u8> = memory.concat();
            let vectors: Vec<iovec> = memory.iter_mut()
                .map(|m| iovec { iov_base: m.as_mut_ptr().cast(), iov_len: m.len() })
                .collect();
            let mut bufs = Bufs::vector(&vectors).unwrap();
            let mut at = 0;
            for step in steps {
                prop_assert_eq!(bufs.len(), flat.len() - at);
                let mut out = [NOTHING; 16];
                let filled = bufs.fill(usize::MAX, &mut out);
                let mut seen = Vec::new();
                for v in &out[..filled] {
                    // SAFETY: the vectors lie in `memory`, which lives on.
                    seen.extend_from_slice(unsafe {
                        std::slice::from_raw_parts(v.iov_base.cast::<u8>(), v.iov_len)
                    });
                }
                prop_assert_eq!(&seen[..], &flat[at..]);
                bufs.advance(step);
                at = (at + step).min(flat.len());
            }
        }
    }

    /// Lengths that sum to more than a signed size are refused, as the kernel does.
    #[test]
    fn sums_that_overflow_are_refused() {
        let huge = iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: isize::MAX as usize,
        };
        assert!(Bufs::vector(&[huge]).is_some());
        assert!(Bufs::vector(&[huge, huge]).is_none());
    }
}

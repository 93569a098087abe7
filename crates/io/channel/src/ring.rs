//! [`Ring`]: the bytes of one direction, in pages of the slab.
//!
//! # Model
//! Positions count bytes since the channel was allocated; a byte lies at `position & (capacity - 1)`. The capacity is a power of
//! two, so positions stay right when a ring is exchanged while it is empty.

use windlass_sync::prefetch;

use crate::bufs::{Bufs, iovec};
use crate::layout::{PAGE, PAGES_PER_SIDE, RING_BYTES_MAX, Side};
use crate::socket::Socket;

/// The largest ring is `PAGE << ORDER_MAX` bytes.
pub(crate) const ORDER_MAX: u32 = (RING_BYTES_MAX / PAGE).ilog2();

/// How far in front of a reader of small pieces the ring is fetched, in bytes.
pub(crate) const AHEAD: usize = 512;

/// Where a ring is, as stored in shared memory: the bytes less 1 in the lower half, the first page in the upper one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub page: u32,
    pub order: u32,
}

impl Place {
    /// Reads a stored word. `None`: there is no ring, or the word names memory that is not the sending side's.
    pub(crate) fn decode(word: u64) -> Option<Place> {
        let (page, last) = ((word >> 32) as u32, word as u32);
        let order = (last / PAGE as u32).count_ones();
        let place = Place { page, order };
        let fits = order <= ORDER_MAX && (page as usize) + (1 << order) <= PAGES_PER_SIDE;
        (fits && place.encode() == word).then_some(place)
    }

    pub(crate) const fn encode(self) -> u64 {
        (self.page as u64) << 32 | (self.bytes() as u64 - 1)
    }

    pub(crate) const fn bytes(self) -> usize {
        PAGE << self.order
    }

    /// The smallest order whose ring takes a write of `bytes` at once, or the largest.
    pub(crate) const fn order_for(bytes: usize) -> u32 {
        let mut order = 0;
        while order < ORDER_MAX && PAGE << order < bytes {
            order += 1;
        }
        order
    }

    /// Offset of the ring in the page area of the slab.
    pub(crate) const fn offset(self, side: Side) -> usize {
        ((side as usize) * PAGES_PER_SIDE + self.page as usize) * PAGE
    }
}

/// The memory of one ring. Every access is masked, so no position reaches outside.
#[derive(Clone, Copy)]
pub(crate) struct Ring<'s> {
    #[cfg(not(loom))]
    base: *mut u8,
    #[cfg(loom)]
    cells: &'s [loom::cell::UnsafeCell<u8>],
    /// Its bytes less 1. Every position is masked with it, so it need not be right for an access to be inside.
    mask: usize,
    slab: std::marker::PhantomData<&'s ()>,
}

impl<'s> Ring<'s> {
    /// The ring that `sender` has at the stored place, which is not 0, among the pages of both sides. Nothing of the word is
    /// believed: whatever it names is as long as [`RING_BYTES_MAX`] at most, and begins in one of the sender's pages.
    ///
    /// # Safety
    /// [`PAGES_PER_SIDE`] pages for each side are mapped at `pages` while `'s` lasts, and [`RING_BYTES_MAX`] more.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) unsafe fn new(pages: *mut u8, sender: Side, word: u64) -> Ring<'s> {
        let page = (word >> 32) as usize & (PAGES_PER_SIDE - 1);
        let base = pages.wrapping_add((sender as usize * PAGES_PER_SIDE + page) * PAGE);
        let (mask, slab) = (
            word as usize & (RING_BYTES_MAX - 1),
            std::marker::PhantomData,
        );
        Ring { base, mask, slab }
    }

    #[cfg(loom)]
    pub(crate) fn over(cells: &'s [loom::cell::UnsafeCell<u8>]) -> Ring<'s> {
        let (mask, slab) = (cells.len() - 1, std::marker::PhantomData);
        Ring { cells, mask, slab }
    }

    #[inline(always)]
    pub(crate) fn cap(&self) -> usize {
        self.mask + 1
    }

    /// Where the byte at `pos` lies: to be prefetched.
    #[inline(always)]
    pub(crate) fn place(&self, pos: u64) -> *const u8 {
        #[cfg(loom)]
        let base = self.cells.as_ptr().cast::<u8>();
        #[cfg(not(loom))]
        let base = self.base;
        base.wrapping_add(pos as usize & self.mask)
    }

    /// Has the first lines of `seen` new bytes come over at the same time, instead of one at each receive.
    #[inline(always)]
    pub(crate) fn expect(&self, pos: u64, seen: u64) {
        for at in (0..AHEAD as u64).step_by(64).take_while(|at| *at < seen) {
            prefetch::read(self.place(pos.wrapping_add(at)));
        }
    }

    /// Copies up to `n <= cap` bytes of `from` into the ring at `pos`, and advances `from`. Fewer only after a fault.
    #[inline(always)]
    pub(crate) fn write(&self, pos: u64, from: &mut Bufs, n: usize) -> usize {
        self.each(pos, from, n, |ring, at, user, len| ring.put(at, user, len))
    }

    /// Copies up to `n <= cap` bytes of the ring at `pos` into `into`, and advances it. Fewer only after a fault.
    #[inline(always)]
    pub(crate) fn read(&self, pos: u64, into: &mut Bufs, n: usize) -> usize {
        self.each(pos, into, n, |ring, at, user, len| ring.get(at, user, len))
    }

    /// The same for bytes that are one piece of memory and do not reach beyond the end of the ring, as those of most small
    /// calls: without a loop. `None`: they are not.
    #[inline(always)]
    pub(crate) fn write_fast(&self, pos: u64, from: &Bufs, n: usize) -> Option<usize> {
        let (at, user) = self.contiguous(pos, from, n)?;
        Some(self.put(at, user, n))
    }

    /// As [`Ring::write_fast`].
    #[inline(always)]
    pub(crate) fn read_fast(&self, pos: u64, into: &Bufs, n: usize) -> Option<usize> {
        let (at, user) = self.contiguous(pos, into, n)?;
        Some(self.get(at, user, n))
    }

    #[inline(always)]
    fn contiguous(&self, pos: u64, bufs: &Bufs, n: usize) -> Option<(usize, *mut u8)> {
        let at = pos as usize & self.mask;
        let (user, contiguous) = bufs.piece();
        (n <= contiguous && at + n <= self.cap()).then_some((at, user))
    }

    #[inline(always)]
    fn each(
        &self,
        pos: u64,
        bufs: &mut Bufs,
        n: usize,
        step: impl Fn(&Self, usize, *mut u8, usize) -> usize,
    ) -> usize {
        let mut done = 0;
        while done < n && !bufs.is_empty() {
            let at = (pos as usize).wrapping_add(done) & self.mask;
            let (user, contiguous) = bufs.piece();
            let len = contiguous.min(n - done).min(self.cap() - at);
            let copied = step(self, at, user, len);
            bufs.advance(copied);
            done += copied;
            if copied < len {
                break;
            }
        }
        done
    }

    #[cfg(not(loom))]
    #[inline(always)]
    fn put(&self, at: usize, user: *mut u8, len: usize) -> usize {
        // SAFETY: `[at, at + len)` lies in the ring's mapped memory (masked, and cut by the caller); a program's buffer that is not
        // mapped faults inside the routine, as its contract allows.
        unsafe { crate::copy::copy(self.base.wrapping_add(at), user, len) }
    }

    #[cfg(not(loom))]
    #[inline(always)]
    fn get(&self, at: usize, user: *mut u8, len: usize) -> usize {
        // SAFETY: as in `put`.
        unsafe { crate::copy::copy(user, self.base.wrapping_add(at), len) }
    }

    #[cfg(loom)]
    fn put(&self, at: usize, user: *mut u8, len: usize) -> usize {
        for i in 0..len {
            // SAFETY: a model's buffers are live memory.
            let byte = unsafe { user.wrapping_add(i).read() };
            // SAFETY: loom checks that nobody else accesses the cell at the same time.
            self.cells[at + i].with_mut(|cell| unsafe { cell.write(byte) });
        }
        len
    }

    #[cfg(loom)]
    fn get(&self, at: usize, user: *mut u8, len: usize) -> usize {
        for i in 0..len {
            // SAFETY: loom checks that nobody writes the cell at the same time.
            let byte = self.cells[at + i].with(|cell| unsafe { cell.read() });
            // SAFETY: a model's buffers are live memory.
            unsafe { user.wrapping_add(i).write(byte) };
        }
        len
    }

    /// Sends `n <= cap` bytes of the ring at `pos` through the real socket, in one call.
    pub(crate) fn send(
        &self,
        pos: u64,
        n: usize,
        sock: &impl Socket,
        flags: i32,
    ) -> Result<usize, i32> {
        let at = pos as usize & self.mask;
        let first = n.min(self.cap() - at);
        #[cfg(not(loom))]
        let base = self.base;
        #[cfg(loom)]
        let mut copied = {
            let mut bytes = vec![0u8; self.cap()];
            self.get(at, bytes[at..].as_mut_ptr(), first);
            self.get(0, bytes.as_mut_ptr(), n - first);
            bytes
        };
        #[cfg(loom)]
        let base = copied.as_mut_ptr();
        let piece = |from: usize, len: usize| iovec {
            iov_base: base.wrapping_add(from).cast(),
            iov_len: len,
        };
        let pieces = [piece(at, first), piece(0, n - first)];
        let data = Bufs::vector(&pieces).ok_or(libc::EINVAL)?;
        sock.send(&data, flags)
    }
}

//! The receive side: one reader at a time.
//!
//! # Model
//! ```text
//!        next                seen
//!   .....|   known to us     |   unread   ....   behind next: offered to the daemon again
//! ```
//! A frame is taken from `next` on, each descriptor read once and checked. At the end of a call its buffers are offered anew,
//! from what we know of them and whatever the daemon made of the descriptors, and published once.
//!
//! # Ownership and lifetime
//! A connection that has ended is read to its end before the next one is used. [`INCOMING_MAX`] connections wait here.
//!
//! # Synchronization
//! `busy` is the reader's lock, never waited for. Lent frames keep it. `incoming` has a mutex of its own; `news` says without it that there is one.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering, fence};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use windlass_attach::memif::layout::DESC_FLAG_NEXT;
use windlass_shm::copy_in;
use windlass_sys::Errno;

use crate::conn::Conn;
use crate::frameio::{Call, FrameVec, length};
use crate::offload::Offload;
use crate::ready::Sets;

/// Connections that wait for a reader that does not read. A further one takes the place of the oldest, with its frames.
const INCOMING_MAX: usize = 4;

/// The receive side.
pub(crate) struct Rx {
    busy: AtomicBool,
    /// Frames are lent, and the turn with them.
    lends: AtomicBool,
    news: AtomicBool,
    incoming: Mutex<VecDeque<Arc<Conn>>>,
    state: UnsafeCell<State>,
}

// SAFETY: `state` is used by the holder of `busy` only.
unsafe impl Sync for Rx {}

/// What only the reader touches.
#[derive(Debug)]
pub(crate) struct State {
    conn: Arc<Conn>,
    next: u16,
    seen: u16,
    /// Slots from `next` on that are lent to the program.
    lent: u16,
    /// The bell of the set for reading was rung and not taken.
    pub(crate) rung: bool,
    unmasked: bool,
}

/// The reader's turn.
pub(crate) struct Turn<'a>(&'a Rx);

impl Deref for Turn<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        // SAFETY: the turn is the holder of `busy`, and there is one.
        unsafe { &*self.0.state.get() }
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: as above.
        unsafe { &mut *self.0.state.get() }
    }
}

impl Turn<'_> {
    /// Nobody has it until [`Rx::resume`].
    pub(crate) fn keep(self) {
        self.0.lends.store(true, Ordering::Release);
        core::mem::forget(self);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

/// A frame in the memory of the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) ptr: *const u8,
    pub(crate) len: usize,
    pub(crate) offload: Offload,
}

impl Default for Place {
    fn default() -> Place {
        Place {
            ptr: core::ptr::null(),
            len: 0,
            offload: Offload::default(),
        }
    }
}

/// The frame that begins at `next`.
#[derive(Clone, Copy, Debug)]
struct Found {
    slots: u16,
    bytes: usize,
    is_good: bool,
    /// The metadata word of its first descriptor.
    metadata: u32,
}

impl Rx {
    pub(crate) fn new(conn: Arc<Conn>) -> Rx {
        Rx {
            busy: AtomicBool::new(false),
            lends: AtomicBool::new(false),
            news: AtomicBool::new(false),
            incoming: Mutex::new(VecDeque::new()),
            state: UnsafeCell::new(State {
                conn,
                next: 0,
                seen: 0,
                lent: 0,
                rung: false,
                unmasked: false,
            }),
        }
    }

    /// The reader's turn.
    ///
    /// # Errors
    /// `EBUSY` while another thread has it, or frames are lent.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Result<Turn<'_>, Errno> {
        match self.busy.swap(true, Ordering::Acquire) {
            false => Ok(Turn(self)),
            true => Err(Errno::BUSY),
        }
    }

    /// The turn of whoever has the lent frames, if frames are lent.
    pub(crate) fn resume(&self) -> Option<Turn<'_>> {
        self.lends
            .swap(false, Ordering::Acquire)
            .then_some(Turn(self))
    }

    /// Here is the next connection.
    pub(crate) fn push(&self, conn: Arc<Conn>) {
        let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        if incoming.len() == INCOMING_MAX {
            incoming.pop_front();
        }
        incoming.push_back(conn);
        self.news.store(true, Ordering::SeqCst);
    }

    /// Whether a connection waits.
    #[inline(always)]
    pub(crate) fn has_news(&self) -> bool {
        self.news.load(Ordering::SeqCst)
    }

    /// Goes on with the next connection, if the present one was read to its end.
    pub(crate) fn follow(&self, state: &mut State, sets: &Sets) -> bool {
        if state.known(1) != 0 {
            return false;
        }
        let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(conn) = incoming.pop_front() else {
            return false;
        };
        self.news.store(!incoming.is_empty(), Ordering::SeqCst);
        for set in sets.each() {
            set.remove(&state.conn.rx.event);
        }
        *state = State {
            conn,
            next: 0,
            seen: 0,
            lent: 0,
            rung: state.rung,
            unmasked: false,
        };
        true
    }
}

impl State {
    /// Slots that the daemon has filled. Looks at its index only if fewer than `want` are known.
    #[inline(always)]
    pub(crate) fn known(&mut self, want: u16) -> u16 {
        let known = self.seen.wrapping_sub(self.next);
        if known >= want {
            return known;
        }
        let theirs = self.conn.rx.ring.theirs();
        let now = theirs.wrapping_sub(self.next);
        // It moves forward, and not beyond what we have offered.
        if now > self.conn.rx.ring.size() || now < known {
            self.conn.fail();
            return known;
        }
        self.seen = theirs;
        now
    }

    /// Asks for notifications. True if there are frames already: then there may be none.
    pub(crate) fn arm(&mut self) -> bool {
        self.conn.mask(false);
        self.unmasked = true;
        fence(Ordering::SeqCst);
        self.known(u16::MAX) != 0
    }

    /// Asks for no more notifications.
    #[inline(always)]
    pub(crate) fn disarm(&mut self) {
        if self.unmasked {
            self.conn.mask(true);
            self.unmasked = false;
        }
    }

    /// Whether the daemon can be relied on to notify us.
    pub(crate) fn tells_all(&self) -> bool {
        self.conn.tells_all()
    }

    /// Looks at the frame that begins at `at`, of which and behind which `known` slots are filled.
    #[inline(always)]
    fn find(&self, at: u16, known: u16) -> Found {
        let room = self.conn.rx.buffers.room;
        let [low, high] = self.conn.rx.ring.words(at);
        let (len, metadata) = ((low >> 32) as u32, (high >> 32) as u32);
        if low as u16 & DESC_FLAG_NEXT == 0 {
            return Found {
                slots: 1,
                bytes: len as usize,
                is_good: len != 0 && len <= room,
                metadata,
            };
        }
        let mut found = Found {
            slots: 1,
            bytes: len as usize,
            is_good: len <= room,
            metadata,
        };
        let mut goes_on = true;
        while goes_on && found.slots < known {
            let [low, _] = self.conn.rx.ring.words(at.wrapping_add(found.slots));
            let len = (low >> 32) as u32;
            found.slots += 1;
            found.bytes += len as usize;
            found.is_good &= len <= room;
            goes_on = low as u16 & DESC_FLAG_NEXT != 0;
        }
        // A server publishes whole frames only.
        found.is_good &= !goes_on && found.bytes != 0;
        found
    }

    /// Reads frames into the groups of a call, and what is said of each into `offloads`: how many.
    ///
    /// # Errors
    /// `EOVERFLOW`: the first one does not fit its group. It stays.
    ///
    /// # Safety
    /// Each vector names `buflen` writable bytes.
    #[inline(always)]
    pub(crate) unsafe fn read(
        &mut self,
        call: &mut Call<'_>,
        mut offloads: Option<&mut [Offload]>,
    ) -> Result<usize, Errno> {
        let wanted = call.vecs.len() / call.nvpf;
        let known = self.known(wanted as u16);
        let (mut used, mut done) = (0u16, 0);
        let mut groups = call.frames();
        let mut overflow = false;
        while used < known && done < wanted {
            let found = self.find(self.next.wrapping_add(used), known - used);
            if found.is_good {
                let Some(group) = groups.next() else { break };
                if found.bytes > length(group) {
                    overflow = done == 0;
                    break;
                }
                let at = self.next.wrapping_add(used);
                if let Some(place) = offloads.as_mut().and_then(|all| all.get_mut(done)) {
                    *place = self.offload(at, found);
                }
                // SAFETY: the caller's promise; the frame is good and fits.
                unsafe { self.copy(at, found, group) };
                done += 1;
            }
            used += found.slots;
        }
        self.give_back(used);
        if overflow {
            Err(Errno::OVERFLOW)
        } else {
            Ok(done)
        }
    }

    /// What is said of a good frame, if both sides agreed on that.
    #[inline]
    fn offload(&self, at: u16, found: Found) -> Offload {
        if found.metadata == 0 || !self.conn.carries_offloads() {
            return Offload::default();
        }
        let first = found.bytes.min(self.conn.rx.buffers.room as usize);
        let buffer = self.conn.rx.buffer(self.conn.base(), at);
        // SAFETY: so many bytes are inside the buffer.
        unsafe { Offload::received(found.metadata, buffer, first) }
    }

    /// Copies a good frame into vectors that have room for it.
    #[inline(always)]
    unsafe fn copy(&self, at: u16, found: Found, group: &mut [FrameVec]) {
        let (conn, base) = (&self.conn, self.conn.base());
        if let ([only], 1) = (&mut *group, found.slots) {
            // SAFETY: the vector has room (caller), and the bytes are inside the buffer.
            unsafe { copy_in(only.buf.cast(), conn.rx.buffer(base, at), found.bytes) };
            only.actlen = found.bytes;
            return;
        }
        group.iter_mut().for_each(|vec| vec.actlen = 0);
        let (mut left, mut vecs) = (found.bytes, group.iter_mut());
        let mut vec = vecs.next();
        for k in 0..found.slots {
            let index = at.wrapping_add(k);
            let [low, _] = conn.rx.ring.words(index);
            // Read a second time: what it says now is as little to be believed.
            let len = ((low >> 32) as usize)
                .min(conn.rx.buffers.room as usize)
                .min(left);
            let mut from = 0;
            while from < len {
                let Some(now) = &mut vec else { return };
                let n = (len - from).min(now.buflen - now.actlen);
                let to = now.buf.cast::<u8>().wrapping_add(now.actlen);
                // SAFETY: `n` bytes of room in the vector (caller), and inside the buffer.
                unsafe { copy_in(to, conn.rx.buffer(base, index).wrapping_add(from), n) };
                (from, now.actlen, left) = (from + n, now.actlen + n, left - n);
                if now.actlen == now.buflen {
                    vec = vecs.next();
                }
            }
        }
    }

    /// Offers the buffers of the next `count` slots to the daemon again.
    #[inline(always)]
    fn give_back(&mut self, count: u16) {
        if count == 0 {
            return;
        }
        let half = &self.conn.rx;
        for k in 0..count {
            half.describe(self.next.wrapping_add(k), half.buffers.room, 0, 0);
        }
        self.next = self.next.wrapping_add(count);
        half.ring.publish(self.next.wrapping_add(half.ring.size()));
    }

    /// Lends the next frames as long as they have one buffer.
    ///
    /// # Errors
    /// `EOVERFLOW`: the first one has several.
    pub(crate) fn lend(&mut self, frames: &mut [Place]) -> Result<usize, Errno> {
        loop {
            let known = self.known(1);
            if known == 0 {
                return Ok(0);
            }
            let first = self.find(self.next, known);
            if first.is_good {
                break;
            }
            self.give_back(first.slots);
        }
        let known = self.known(frames.len().min(usize::from(u16::MAX)) as u16);
        let mut lent = 0;
        for place in frames.iter_mut().take(known.into()) {
            let index = self.next.wrapping_add(lent);
            let found = self.find(index, known - lent);
            if !found.is_good || found.slots != 1 {
                break;
            }
            *place = Place {
                ptr: self.conn.rx.buffer(self.conn.base(), index),
                len: found.bytes,
                offload: self.offload(index, found),
            };
            lent += 1;
        }
        if lent == 0 {
            return Err(Errno::OVERFLOW);
        }
        self.lent = lent;
        Ok(lent.into())
    }

    /// Takes the first `count` of the lent frames as read; none is lent any more. False if there are fewer.
    pub(crate) fn take_back(&mut self, count: usize) -> bool {
        let Some(count) = u16::try_from(count)
            .ok()
            .filter(|count| *count <= self.lent)
        else {
            return false;
        };
        self.give_back(count);
        self.lent = 0;
        true
    }
}

impl core::fmt::Debug for Rx {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Rx")
            .field("busy", &self.busy)
            .finish_non_exhaustive()
    }
}

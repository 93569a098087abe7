//! The transmit side: many writers, one ring, frames in the order of their reservations.
//!
//! # Model
//! A writer reserves its slots under the short lock of [`Leases`], copies outside it, and publishes in the order of the
//! reservations. Nobody waits for another's copy: a writer that finishes before an earlier one leaves its publication to
//! that one.
//!
//! # Ownership and lifetime
//! The connection is replaced under the lock and only while no lease is out ([`Tx::move_to`]). So a writer may use its memory
//! from its reservation until its lease is published. What it does with it ends inside the publication: the notification too.
//!
//! # Synchronization
//! `L` = under the lock.
//!
//! | field | who | pairs with |
//! | --- | --- | --- |
//! | `state` | L | the lock |
//! | `conn` | stored under L, loaded while a lease is out | the lock of that lease's reservation, then its mark |
//! | `starved`, `moving` | set with SeqCst, then fence, then a look at the leases | publication of a lease, fence, load of both |
//!
//! # What can be lost and what cannot
//! A frame that was written stays in the ring until the daemon has moved the tail over it. A new connection gets all others
//! first, in their order. A daemon that is killed between its delivery of a burst and that store delivers this burst twice:
//! at most 64 frames.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering, fence};
use std::sync::Arc;

use windlass_attach::memif::layout::DESC_FLAG_NEXT;
use windlass_shm::{copy_out, copy_through};
use windlass_sync::leases::{Guard, Lease, Leases};
use windlass_sys::eventfd;

use crate::conn::Conn;
use crate::frameio::{FrameVec, length};

/// How long a writer spins for another's reservation, in cycles of the time-stamp counter, before it yields its processor.
const SPIN_CYCLES: u64 = 2000;

/// The transmit side.
pub(crate) struct Tx {
    leases: Leases,
    state: UnsafeCell<State>,
    /// The connection of `state`, for those who have a lease.
    conn: AtomicPtr<Conn>,
    /// Somebody found no lease, and is to be woken when there is one.
    starved: AtomicBool,
    /// A new connection waits until no lease is out.
    moving: AtomicBool,
}

#[derive(Debug)]
struct State {
    conn: Arc<Conn>,
    /// Index of the next slot that is reserved.
    next: u16,
    /// The daemon's index when it was last looked at.
    tail: u16,
    wish: u16,
}

// SAFETY: `state` is used under the lock of `leases` only.
unsafe impl Sync for Tx {}

/// Reserved slots.
#[derive(Debug)]
pub(crate) struct Grant {
    lease: Lease,
    conn: *const Conn,
    first: u16,
    count: u16,
}

// SAFETY: the connection is shared between threads, and stays as long as the lease is out.
unsafe impl Send for Grant {}
// SAFETY: nothing of it changes.
unsafe impl Sync for Grant {}

/// What is to be done behind a publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owed {
    /// Writers wait for a lease.
    pub(crate) bell: bool,
    /// A connection waits to be used.
    pub(crate) service: bool,
}

impl State {
    fn size(&self) -> u16 {
        self.conn.tx.ring.size()
    }

    /// Slots that can be reserved. Looks at the daemon's index only if fewer than `want` are known.
    #[inline(always)]
    fn room(&mut self, want: u16) -> u16 {
        let size = self.size();
        let known = size.wrapping_sub(self.next.wrapping_sub(self.tail));
        if known >= want {
            return known;
        }
        let tail = self.conn.tx.ring.theirs();
        let used = self.next.wrapping_sub(tail);
        // It moves forward, and not beyond what we have published.
        if used > self.next.wrapping_sub(self.tail) {
            self.conn.fail();
            return known;
        }
        self.tail = tail;
        size.wrapping_sub(used)
    }
}

impl Grant {
    /// How many slots there are.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    fn conn(&self) -> &Conn {
        // SAFETY: kept by `Tx::state` as long as the lease is out (see the module).
        unsafe { &*self.conn }
    }

    /// The buffer of the slot of this number, and its room in bytes.
    pub(crate) fn buffer(&self, number: u16) -> (*mut u8, u32) {
        let conn = self.conn();
        let at = conn.tx.buffer(conn.base(), self.first.wrapping_add(number));
        (at, conn.tx.buffers.room)
    }

    /// Writes frames into the slots, whose number is the sum of what [`slots`] gives for each, and their metadata words.
    ///
    /// # Safety
    /// Each vector names `buflen` readable bytes.
    #[inline(always)]
    pub(crate) unsafe fn fill<'v>(
        &self,
        frames: impl Iterator<Item = &'v mut [FrameVec]>,
        words: impl Iterator<Item = u32>,
    ) {
        let conn = self.conn();
        let (base, room) = (conn.base(), conn.tx.buffers.room as usize);
        let mut index = self.first;
        for (frame, word) in frames.zip(words) {
            match frame {
                [only] if only.buflen <= room => {
                    let to = conn.tx.buffer(base, index);
                    // SAFETY: readable (caller); a buffer of ours with `room` bytes.
                    unsafe { copy_out(to, only.buf.cast(), only.buflen) };
                    only.actlen = only.buflen;
                    conn.tx.describe(index, only.buflen as u32, 0, word);
                    index = index.wrapping_add(1);
                }
                // SAFETY: the caller's promise.
                _ => index = unsafe { self.scatter(index, frame, word) },
            }
        }
    }

    /// Writes a frame of several vectors, or over several slots; gives the index behind it.
    unsafe fn scatter(&self, mut index: u16, frame: &mut [FrameVec], mut word: u32) -> u16 {
        let conn = self.conn();
        let (base, room) = (conn.base(), conn.tx.buffers.room as usize);
        let mut left = length(frame);
        let mut used = 0;
        for vec in frame {
            let mut done = 0;
            while done < vec.buflen {
                let n = (vec.buflen - done).min(room - used);
                let to = conn.tx.buffer(base, index).wrapping_add(used);
                let from = vec.buf.cast::<u8>().wrapping_add(done);
                // SAFETY: `n` readable bytes (caller), and so many left in the buffer.
                unsafe { copy_out(to, from, n) };
                (done, used, left) = (done + n, used + n, left - n);
                if used == room || left == 0 {
                    let flags = if left == 0 { 0 } else { DESC_FLAG_NEXT };
                    conn.tx.describe(index, used as u32, flags, word);
                    (index, used, word) = (index.wrapping_add(1), 0, 0);
                }
            }
            vec.actlen = vec.buflen;
        }
        index
    }

    /// Describes the frames that the caller has put into the first slots: bytes and metadata word of each. A ring has no holes: further slots belong to the last
    /// frame, without bytes; without any frame the daemon drops them as one runt.
    pub(crate) fn describe(&self, frames: impl ExactSizeIterator<Item = (u32, u32)>) {
        let (conn, count) = (self.conn(), frames.len());
        let all = frames.chain(core::iter::repeat((0, 0)));
        for (k, (len, word)) in all.take(self.count.into()).enumerate() {
            let goes_on = k + 1 >= count && k + 1 < self.count.into();
            let flags = if goes_on { DESC_FLAG_NEXT } else { 0 };
            conn.tx
                .describe(self.first.wrapping_add(k as u16), len, flags, word);
        }
    }
}

/// Slots that a frame of so many bytes takes.
#[inline(always)]
pub(crate) fn slots(bytes: usize, room: usize) -> usize {
    if bytes <= room {
        1
    } else {
        bytes.div_ceil(room)
    }
}

impl Tx {
    pub(crate) fn new(conn: Arc<Conn>) -> Tx {
        Tx {
            leases: Leases::new(),
            conn: AtomicPtr::new(Arc::as_ptr(&conn).cast_mut()),
            state: UnsafeCell::new(State {
                conn,
                next: 0,
                tail: 0,
                wish: 0,
            }),
            starved: AtomicBool::new(false),
            moving: AtomicBool::new(false),
        }
    }

    #[inline(always)]
    fn locked<T>(&self, work: impl FnOnce(&mut Guard<'_>, &mut State) -> T) -> T {
        let mut guard = loop {
            if let Some(guard) = self.leases.try_lock(SPIN_CYCLES) {
                break guard;
            }
            std::thread::yield_now();
        };
        // SAFETY: only used under the lock, which the guard holds.
        work(&mut guard, unsafe { &mut *self.state.get() })
    }

    /// Reserves so many slots, or none.
    #[inline(always)]
    pub(crate) fn reserve(&self, count: u16) -> Option<Grant> {
        self.locked(|guard, state| {
            if state.room(count) < count {
                return None;
            }
            let first = state.next;
            let end = first.wrapping_add(count);
            let lease = guard.lease(u32::from(end))?;
            state.next = end;
            Some(Grant {
                lease,
                conn: Arc::as_ptr(&state.conn),
                first,
                count,
            })
        })
    }

    /// Publishes what a grant's slots now hold, in its turn, and notifies the daemon if it sleeps.
    #[inline(always)]
    pub(crate) fn publish(&self, grant: Grant) -> Owed {
        let published = self.leases.finish(grant.lease, |end| {
            // Not that of the grant: it may be published already, and this be another's on the next connection.
            let conn = self.conn.load(Ordering::Relaxed);
            // SAFETY: a lease of this connection is out until this closure has returned.
            let conn = unsafe { &*conn };
            conn.tx.ring.publish(end as u16);
            fence(Ordering::SeqCst);
            if conn.tx.ring.wants_kick() {
                // A daemon that is gone hears nothing, and one that does not listen harms itself.
                let _ = eventfd::signal(&conn.tx.event);
            }
        });
        if !published {
            return Owed::default();
        }
        fence(Ordering::SeqCst);
        Owed {
            bell: self.starved.load(Ordering::Relaxed)
                && self.starved.swap(false, Ordering::Relaxed),
            service: self.moving.load(Ordering::Relaxed),
        }
    }

    /// Wishes for room. True if there are so many slots and a lease: then nobody may answer the wish.
    pub(crate) fn arm(&self, count: u16) -> bool {
        self.locked(|guard, state| {
            self.starved.store(guard.is_full(), Ordering::SeqCst);
            state.wish();
            state.room(u16::MAX) >= count && !guard.is_full()
        })
    }

    /// The same for a ring without any frame that the daemon has not taken.
    pub(crate) fn arm_empty(&self) -> bool {
        self.locked(|_, state| {
            state.wish();
            state.room(u16::MAX) == state.size() && self.leases.outstanding() == 0
        })
    }

    /// Whether the daemon tells when there is room.
    pub(crate) fn tells_all(&self) -> bool {
        self.locked(|_, state| state.conn.tells_all())
    }

    /// Goes on with a new connection, which gets what the daemon has not taken from the old one. False while leases are out:
    /// then the publication of the last says so ([`Owed::service`]).
    pub(crate) fn move_to(&self, conn: &Arc<Conn>) -> bool {
        self.moving.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let moved = self.locked(|_, state| {
            if self.leases.outstanding() != 0 {
                return false;
            }
            state.room(u16::MAX);
            let (old, mut from) = (state.conn.clone(), state.tail);
            let (mut to, size) = (0u16, conn.tx.ring.size());
            while from != state.next && to != size {
                let [low, high] = old.tx.ring.words(from);
                let len = ((low >> 32) as u32).min(old.tx.buffers.room);
                let (source, target) = (
                    old.tx.buffer(old.base(), from),
                    conn.tx.buffer(conn.base(), to),
                );
                // SAFETY: two buffers of regions of ours that are alive, each of `room` bytes.
                unsafe { copy_through(target, source, len as usize) };
                let flags = low as u16 & DESC_FLAG_NEXT;
                conn.tx.describe(to, len, flags, (high >> 32) as u32);
                (from, to) = (from.wrapping_add(1), to.wrapping_add(1));
            }
            let current = Arc::as_ptr(conn).cast_mut();
            self.conn.store(current, Ordering::Relaxed);
            *state = State {
                conn: conn.clone(),
                next: to,
                tail: 0,
                wish: 0,
            };
            conn.tx.ring.publish(to);
            let _ = eventfd::signal(&conn.tx.event);
            true
        });
        if moved {
            self.moving.store(false, Ordering::SeqCst);
        }
        moved
    }
}

impl State {
    fn wish(&mut self) {
        self.wish = self.wish.wrapping_add(1).max(1);
        self.conn.tx.ring.set_wish(self.wish);
        fence(Ordering::SeqCst);
    }
}

impl core::fmt::Debug for Tx {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Tx")
            .field("leases", &self.leases)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};
    use windlass_attach::memif::layout::RingPlace;
    use windlass_attach::memif::msg::{Hello, Message, Secret, Text, VERSION};
    use windlass_attach::memif::offer::Dialogue;
    use windlass_attach::memif::{ClientConfig, Offloads};
    use windlass_shm::{HugePages, word};

    /// A connection that nobody serves.
    fn conn() -> Arc<Conn> {
        let config = ClientConfig {
            path: "unused".into(),
            owner: None,
            id: 0,
            secret: Secret::NONE,
            name: String::new(),
            rings: 1,
            log2_sizes: [5; 2],
            offloads: Offloads::None,
            huge: HugePages::No,
        };
        let hello = Hello {
            name: Text::cut(b""),
            version_min: VERSION,
            version_max: VERSION,
            region_max: 0,
            from_server_max: 0,
            from_client_max: 0,
            log2_ring_max: 5,
        };
        let mut dialogue = Dialogue::default();
        let begun = dialogue.take(&Message::Hello(hello), &config);
        begun.expect("an offer");
        while dialogue.take(&Message::Ack, &config).is_ok() {}
        let done = dialogue.take(&Message::Connected(Text::cut(b"")), &config);
        assert!(done.expect("connected").is_some());
        let (_, offer) = dialogue.finish().expect("a connection");
        let conn = Conn::new(offer, Offloads::None).expect("two rings");
        conn.tx.ring.mask(true, 0);
        Arc::new(conn)
    }

    /// An index that no ring of the test comes to.
    const NOBODY: u16 = 0x8000;

    /// An index of the ring towards the daemon, which is the first in the region.
    fn index(conn: &Conn, at: impl Fn(RingPlace) -> u32) -> *mut u16 {
        let place = RingPlace::checked(0, 5, u64::MAX).expect("a place");
        conn.base().wrapping_add(at(place) as usize).cast()
    }

    /// What is published goes to the connection that it was written for, also by a writer whose own frame went to the one before.
    #[test]
    fn frames_go_to_the_connection_that_they_are_for() {
        let conns = [conn(), conn(), conn()];
        let tx = Tx::new(conns[2].clone());
        let is_over = AtomicBool::new(false);
        let head = |conn: &Conn| index(conn, RingPlace::head_at);
        let tail = |conn: &Conn| index(conn, RingPlace::tail_at);
        // SAFETY: indexes of rings of ours.
        let load = |at| unsafe { word::load_u16(at, Ordering::Acquire) };
        // SAFETY: as above.
        let store = |at, index| unsafe { word::store_u16(at, index, Ordering::Release) };
        store(head(&conns[0]), NOBODY);
        store(head(&conns[1]), NOBODY);
        let mut strays = 0;
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let Some(grant) = tx.reserve(1) else { continue };
                        grant.describe([(14, 0)].into_iter());
                        tx.publish(grant);
                    }
                });
            }
            let end = Instant::now() + Duration::from_millis(300);
            let turns = [[2, 0], [0, 1], [1, 2]].map(|turn| turn.map(|at: usize| &conns[at]));
            for [old, next] in turns.into_iter().cycle() {
                if Instant::now() > end {
                    break;
                }
                strays += usize::from(load(head(next)) != NOBODY);
                // As if a daemon had taken all.
                tx.locked(|_, _| store(tail(old), load(head(old))));
                store(head(next), 0);
                store(tail(next), 0);
                while !tx.move_to(next) {}
                store(head(old), NOBODY);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(strays, 0);
    }
}

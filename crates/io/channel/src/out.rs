//! [`Outgoing`]: sending on a channel.
//!
//! # Life of a byte
//! [`Outgoing::send`] takes the write lock, and decides once: ring if the receiver has joined, nobody sleeps, and little is unread
//! in the kernel; else kernel, after a reclaim. A push is copied, published by `head`, and followed by a fence (none in stream
//! mode) and a look at who sleeps: whoever fell asleep in between gets the ring's bytes by a reclaim.
//!
//! # States
//! `burst` counts pushes in a row. At [`STREAM_AFTER`] of them the direction enters **stream mode**: `stream` = 1 is
//! published with a fence, and from then on pushes go without one. Any kernel send, and any other call of this side
//! ([`Outgoing::other_call`]), ends it. It is changed under the write lock only.
//!
//! # What can be lost and what cannot
//! A process that is killed inside a push has not published `head`: nothing was sent. One that is killed inside a kernel send or a
//! reclaim leaves the lock word and, for a reclaim, `mark`, `mark_pos` and `mark_k`; whoever takes the lock over asks the kernel
//! how many bytes it got, and adds the surplus.

use std::ops::Deref;

use windlass_sync::prefetch;

use crate::bufs::Bufs;
use crate::layout::*;
use crate::owner::{Locked, Owner, Who, lock, take_from_dead, try_lock, unlock};
use crate::reason::Reason;
use crate::ring::Ring;
use crate::shim::{
    AcqRel, Acquire, Relaxed, Release, add_fenced, faulty, light, lower, store_fenced,
};
use crate::slab::Link;
use crate::socket::Socket;
use crate::sys::cycles;
use crate::wait::sleeps;

/// Pushes without another call after which stream mode begins.
pub const STREAM_AFTER: u32 = if cfg!(loom) { 1 } else { 16 };
/// No push while more bytes than this are unread in the kernel.
pub const KERNEL_UNREAD_MAX: u64 = 64 * 1024;
/// `head` is published every so many bytes inside a large write.
const PUBLISH: usize = 16 * 1024;
/// How far in front of a writer of small pieces the ring is fetched, in bytes: the reader has those lines.
const AHEAD: u64 = 256;
/// Sends that go by the kernel after a fall: where the receiver fell asleep, it may do so again.
const FALL_SENDS: u32 = if cfg!(loom) { 0 } else { 1 };
/// How long a reclaim tries for the read lock (about 20 us).
const READER_PATIENCE: u64 = if cfg!(loom) { 0 } else { 50_000 };

/// Bytes moved by one call, by way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Through the ring.
    pub ring: usize,
    /// Through the kernel.
    pub kernel: usize,
}

impl Moved {
    /// Both.
    #[inline(always)]
    pub const fn total(self) -> usize {
        self.ring + self.kernel
    }
}

/// What a send came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Sent {
    /// So many bytes were taken; possibly fewer than asked.
    Bytes(Moved),
    /// The kernel is full (EAGAIN): wait with poll(POLLOUT), without any lock, and come back.
    KernelFull,
    /// The ring is full, or the receiver is awake and has too many bytes left in the kernel; nothing was taken: spin, [wait for
    /// room](Outgoing::wait_for_space), or come back with [`WhenFull::Kernel`].
    RingFull,
    /// Another thread holds a lock: come back.
    Busy,
    /// The real call failed, or EFAULT.
    Error(i32),
    /// The shared memory held values that cannot be: ECONNRESET.
    Broken,
}

/// What [`Outgoing::send_fast`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Fast {
    /// All bytes were taken.
    Sent,
    /// The same, and the receiver fell asleep meanwhile: [`Outgoing::look_after_sleeper`] has to follow.
    Asleep,
    /// Nothing was done: [`Outgoing::send`] is to be asked.
    No,
}

/// What a send does when the ring has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// Says [`Sent::RingFull`]: a blocking caller spins and waits first.
    Say,
    /// Reclaims, and lets the kernel take the rest or say EAGAIN: a non-blocking caller at once, a blocking one after 10 ms.
    Kernel,
}

/// What a reclaim came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Reclaimed {
    /// So many bytes were moved, and the ring is empty.
    All(usize),
    /// So many bytes were moved, then the kernel was full.
    Part(usize),
    /// Another thread holds a lock: come back. Where it is the reader, the next call of the sender tries again.
    Busy,
    /// The real call failed.
    Error(i32),
    /// The shared memory held values that cannot be.
    Broken,
}

/// The direction in which one end sends.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'s> {
    pub(crate) link: Link<'s>,
    /// Found once: the compiler would look the slab's address up after each atomic access.
    dir: &'s Dir,
}

impl Deref for Outgoing<'_> {
    type Target = Dir;

    #[inline(always)]
    fn deref(&self) -> &Dir {
        self.dir
    }
}

impl<'s> Outgoing<'s> {
    #[inline(always)]
    pub(crate) fn new(link: Link<'s>) -> Outgoing<'s> {
        let dir = link.dir_from(link.side());
        Outgoing { link, dir }
    }

    #[inline(always)]
    pub(crate) fn receiver(self) -> Side {
        self.link.side().other()
    }

    #[inline(always)]
    pub(crate) fn ring(self) -> Option<Ring<'s>> {
        let word = self.dir.a.ring.load(Relaxed);
        self.link.slab().ring(self.link.side(), word)
    }

    /// Sends what fits, once, without blocking. `flags` are the program's, for a real send.
    ///
    /// Zero-length sends of a stream move nothing: the caller answers 0 without calling.
    #[inline(always)]
    pub fn send<S: Socket>(
        self,
        who: Who,
        sock: &S,
        data: &Bufs,
        flags: i32,
        full: WhenFull,
    ) -> Sent {
        if let Err(refused) = self.lock(who, sock) {
            return refused;
        }
        let is_pushing = self.may_push();
        let sent = match is_pushing.then(|| self.push(data)) {
            None | Some(Ok(0)) if self.waits(full) && self.is_open() => Sent::RingFull,
            None | Some(Ok(0)) => self.send_kernel(who, sock, *data, flags),
            Some(Ok(n)) if self.announce(self.is_streaming()) => {
                return self.look_after_sleeper(who, sock, n);
            }
            Some(Ok(ring)) => return Sent::Bytes(Moved { ring, kernel: 0 }),
            Some(Err(stopped)) => stopped,
        };
        unlock(&self.wl.lock);
        sent
    }

    /// Sends all of one piece of memory that is not empty by the ring, if nothing else is to be done and thought of: what most
    /// sends of few bytes come to. Nothing of it has to be in memory, so it costs less than what [`Outgoing::send`] does.
    #[inline(always)]
    pub fn send_fast(self, owner: Owner, data: &Bufs) -> Fast {
        let lock = &self.wl.lock;
        if data.len() > PUBLISH || !try_lock(lock, owner) {
            return Fast::No;
        }
        let is_streaming = self.is_streaming();
        if self.may_push() && self.push_at_once(data, is_streaming) {
            return if self.announce(is_streaming) {
                Fast::Asleep
            } else {
                Fast::Sent
            };
        }
        unlock(lock);
        Fast::No
    }

    /// What follows [`Fast::Asleep`], with the number of bytes that were sent: they are reclaimed, since the receiver fell asleep
    /// between the decision and the push. An error is one that the kernel tells once: the connection is over, and what was pushed
    /// went nowhere.
    #[cold]
    pub fn look_after_sleeper<S: Socket>(self, who: Who, sock: &S, n: usize) -> Sent {
        self.chill(FALL_SENDS);
        // Where another thread of this side is inside, it looks at the sleepers after its own push, or reclaims.
        if self.lock(who, sock).is_ok() {
            let reclaimed = self.reclaim_locked(who, sock);
            unlock(&self.wl.lock);
            match reclaimed {
                // The kernel is short of memory, and the bytes are still on their way.
                Reclaimed::Error(libc::ENOMEM | libc::ENOBUFS) => {}
                Reclaimed::Error(error) => return Sent::Error(error),
                _ => {}
            }
        }
        Sent::Bytes(Moved { ring: n, kernel: 0 })
    }

    /// Whether a push is allowed now. Under the write lock.
    #[inline(always)]
    fn may_push(self) -> bool {
        self.is_open() && self.kernel_unread() <= KERNEL_UNREAD_MAX
    }

    /// Whether the receiver is awake and nothing stands against the ring.
    #[inline(always)]
    pub(crate) fn is_open(self) -> bool {
        self.a.attn.load(Relaxed) == 0
            && self.a.flags.load(Relaxed) & !RECOUNT == READY
            && self.wl.owed.load(Relaxed) == 0
            && !self.is_slot_asleep(self.a.slot.load(Relaxed))
            && self.link.slab().cool(self.receiver()).load(Relaxed) == 0
    }

    /// Whether the receiver's epoll instance with this slot sleeps.
    #[inline(always)]
    fn is_slot_asleep(self, slot: u32) -> bool {
        slot != 0 && sleeps(slot, self.link.slab().status(self.receiver()))
    }

    /// Bytes in the kernel that the receiver has not taken, as far as is known; asked anew only when that is too many.
    #[inline(always)]
    fn kernel_unread(self) -> u64 {
        let sent = self.w.k_sent.load(Relaxed);
        let unread = sent.wrapping_sub(self.wl.krecv_seen.load(Relaxed));
        if unread <= KERNEL_UNREAD_MAX {
            return unread;
        }
        let krecv = self.r.krecv.load(Acquire);
        self.wl.krecv_seen.store(krecv, Relaxed);
        sent.saturating_sub(krecv)
    }

    /// Room in a ring of `cap` bytes for a write of `asked`: `tail` is read anew only when short of room.
    #[inline(always)]
    fn room(self, head: u64, cap: usize, asked: usize) -> Result<usize, Sent> {
        let wl = &self.wl;
        let used = head.wrapping_sub(wl.tail_seen.load(Relaxed));
        if used <= cap as u64 && cap - used as usize >= asked {
            return Ok(cap - used as usize);
        }
        let tail = self.r.tail.load(Acquire);
        wl.tail_seen.store(tail, Relaxed);
        let used = head.wrapping_sub(tail);
        if used > cap as u64 {
            return Err(self.broken());
        }
        Ok(cap - used as usize)
    }

    /// Copies what fits, and publishes it; 0: nothing does. Under the write lock.
    #[inline(always)]
    fn push(self, data: &Bufs) -> Result<usize, Sent> {
        if data.len() <= PUBLISH && self.push_at_once(data, self.is_streaming()) {
            return Ok(data.len());
        }
        self.push_steps(*data)
    }

    /// Copies and publishes all of one piece into the ring that is there, if it fits; else nothing. Under the write lock.
    #[inline(always)]
    fn push_at_once(self, data: &Bufs, is_streaming: bool) -> bool {
        let (w, wl, n) = (&self.w, &self.wl, data.len());
        let Some(ring) = self.ring() else {
            return false;
        };
        let (head, tail) = (w.head.load(Relaxed), wl.tail_seen.load(Relaxed));
        let next = head.wrapping_add(n as u64);
        if next.wrapping_sub(tail) > ring.cap() as u64
            || wl.grow.load(Relaxed) != 0
            || ring.write_fast(head, data, n) != Some(n)
        {
            return false;
        }
        self.stamp(is_streaming);
        w.head.store(next, Release);
        self.expect_next(ring, next, is_streaming);
        true
    }

    /// Whether pushes go without a fence. Under the write lock.
    #[inline(always)]
    fn is_streaming(self) -> bool {
        self.w.stream.load(Relaxed) != 0
    }

    /// The same for more than one step or piece, and for a ring that has to be made or grown first.
    #[inline(never)]
    fn push_steps(self, mut rest: Bufs) -> Result<usize, Sent> {
        let (w, wl) = (&self.w, &self.wl);
        let mut head = w.head.load(Relaxed);
        if wl.grow.load(Relaxed) != 0 && !self.grow(head, 0) {
            return Ok(0);
        }
        let Some(ring) = self.ring().or_else(|| self.first_ring(rest.len())) else {
            self.stop(Reason::Limit);
            return Err(Sent::Busy);
        };
        let ring = if rest.len() > ring.cap() {
            self.enlarge(head, rest.len(), ring)
        } else {
            ring
        };
        let (cap, start, is_streaming) = (ring.cap(), head, self.is_streaming());
        self.stamp(is_streaming);
        while !rest.is_empty() {
            let room = self.room(head, cap, rest.len().min(PUBLISH))?;
            if room == 0 {
                self.was_full();
                break;
            }
            let step = room.min(rest.len()).min(PUBLISH);
            if ring.write(head, &mut rest, step) < step {
                // As in the kernel, what lies before bad memory goes with it.
                if head == start {
                    return Err(Sent::Error(libc::EFAULT));
                }
                break;
            }
            head = head.wrapping_add(step as u64);
            w.head.store(head, Release);
        }
        self.expect_next(ring, head, is_streaming);
        Ok(head.wrapping_sub(start) as usize)
    }

    /// Notes the time of a push, before it is published, for a receiver that waits for many. Not in stream mode: bytes
    /// that keep coming have no order with others.
    #[inline(always)]
    fn stamp(self, is_streaming: bool) {
        if !is_streaming && self.a.slot.load(Relaxed) != 0 {
            self.w.last_at.store(cycles(), Relaxed);
        }
    }

    /// Sets the news bit if the receiver waits for many; its slot. After the fence that follows the push.
    #[inline(always)]
    fn tell(self) -> u32 {
        let (w, slot) = (&self.w, self.a.slot.load(Relaxed));
        let (news, chan) = (self.link.slab().news(self.receiver()), self.link.index());
        if slot != 0 && !news.has(chan) {
            let now = w.last_at.load(Relaxed);
            w.first_at.store(now, Relaxed);
            news.set(chan);
        }
        slot
    }

    /// Has the lines come over that the next pushes will write. Not outside stream mode: the reader's processor fetches lines
    /// beside those that it reads, and the two would take them from one another.
    #[inline(always)]
    fn expect_next(self, ring: Ring<'_>, head: u64, is_streaming: bool) {
        let ahead = head.wrapping_add(AHEAD);
        let used = || ahead.wrapping_sub(self.wl.tail_seen.load(Relaxed));
        if is_streaming && used() < ring.cap() as u64 {
            prefetch::write(ring.place(ahead));
        }
    }

    /// A send is likely: the line that it begins in comes over meanwhile. `head` may be seen only when that line may be written.
    #[inline(always)]
    pub(crate) fn expect(self) {
        if let Some(ring) = self.ring() {
            prefetch::write(ring.place(self.w.head.load(Relaxed)));
        }
    }

    /// What follows every push: the fence, the unlock, the news, and the look at who fell asleep: whether anybody did.
    #[inline(always)]
    fn announce(self, is_streaming: bool) -> bool {
        let (wl, a) = (&self.wl, &self.a);
        let slot = if is_streaming {
            unlock(&wl.lock);
            light();
            a.slot.load(Relaxed)
        } else {
            let burst = wl.burst.load(Relaxed).wrapping_add(1);
            wl.burst.store(burst, Relaxed);
            if burst >= STREAM_AFTER {
                self.enter_stream();
            }
            if faulty!(NewsEarly) {
                self.tell();
            }
            if faulty!(NoFence) | (faulty!(StreamUnfenced) & (burst >= STREAM_AFTER)) {
                unlock(&wl.lock);
            } else {
                store_fenced(&wl.lock, 0);
            }
            if faulty!(NewsEarly) {
                a.slot.load(Relaxed)
            } else {
                self.tell()
            }
        };
        self.link.slab().flag();
        a.attn.load(Relaxed) != 0 || self.is_slot_asleep(slot)
    }

    /// Sends through the kernel: the ring is reclaimed first, since kernel bytes have to be older. Under the write lock.
    #[cold]
    fn send_kernel<S: Socket>(self, who: Who, sock: &S, data: Bufs, flags: i32) -> Sent {
        // One send fewer that has to go by the kernel after a fall.
        let cool = self.link.slab().cool(self.receiver());
        let _ = cool.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
        self.leave_stream();
        match self.reclaim_locked(who, sock) {
            Reclaimed::All(_) => {}
            Reclaimed::Part(_) => return Sent::KernelFull,
            Reclaimed::Busy => return self.push_behind(&data),
            Reclaimed::Error(error) => return Sent::Error(error),
            Reclaimed::Broken => return Sent::Broken,
        }
        match sock.send(&data, flags | libc::MSG_DONTWAIT) {
            Ok(kernel) => {
                self.w.k_sent.fetch_add(kernel as u64, Release);
                Sent::Bytes(Moved { ring: 0, kernel })
            }
            Err(libc::EAGAIN) => Sent::KernelFull,
            Err(error) => Sent::Error(error),
        }
    }

    /// The reader holds its lock and the ring is not empty: the kernel may not be used, the ring may. The reclaim that is owed sees
    /// to sleepers.
    fn push_behind(self, data: &Bufs) -> Sent {
        if self.a.flags.load(Relaxed) & (READY | BROKEN) != READY {
            return Sent::Busy;
        }
        match self.push(data) {
            Ok(0) => Sent::Busy,
            Ok(ring) => {
                crate::shim::fence_full();
                self.tell();
                self.link.slab().flag();
                Sent::Bytes(Moved { ring, kernel: 0 })
            }
            Err(stopped) => stopped,
        }
    }

    #[cold]
    fn broken(self) -> Sent {
        self.set_flags(NORING | BROKEN, Reason::Broken);
        Sent::Broken
    }

    /// Moves the unread bytes of the ring into the kernel (I3), so that a sleeper, a plain reader or the kernel's own close finds
    /// them. `sock` may be any descriptor of this end's socket: the daemon uses it for a rescue.
    pub fn reclaim<S: Socket>(self, who: Who, sock: &S) -> Reclaimed {
        match self.lock(who, sock) {
            Ok(()) => {}
            Err(Sent::Broken) => return Reclaimed::Broken,
            Err(_) => return Reclaimed::Busy,
        }
        self.leave_stream();
        let reclaimed = self.reclaim_locked(who, sock);
        unlock(&self.wl.lock);
        reclaimed
    }

    pub(crate) fn reclaim_locked<S: Socket>(self, who: Who, sock: &S) -> Reclaimed {
        let (w, wl, r) = (&self.w, &self.wl, &self.r);
        let head = w.head.load(Relaxed);
        if r.tail.load(Acquire) == head {
            wl.owed.store(0, Relaxed);
            return Reclaimed::All(0);
        }
        if !faulty!(ReclaimUnlocked) && !self.lock_reader(who) {
            wl.owed.store(1, Relaxed);
            return Reclaimed::Busy;
        }
        let reclaimed = self.move_to_kernel(sock, head);
        wl.owed.store(0, Relaxed);
        w.stream.store(0, Release);
        if !faulty!(ReclaimUnlocked) {
            unlock(&r.lock);
        }
        if reclaimed == Reclaimed::Broken {
            let _ = self.broken();
        }
        reclaimed
    }

    /// Tries for the read lock for 20 us; its living holders never wait inside. A dead holder's lock is taken over: the ring is as
    /// it was before its last copy, and only `krecv` may be short.
    fn lock_reader(self, who: Who) -> bool {
        let (word, start) = (&self.r.lock, cycles());
        loop {
            if try_lock(word, who.owner) {
                return true;
            }
            if cycles().wrapping_sub(start) >= READER_PATIENCE {
                break;
            }
            std::hint::spin_loop();
        }
        let locked = take_from_dead(word, word.load(Relaxed), who);
        let is_taken = matches!(locked, Locked::TakenOver(_));
        if is_taken {
            self.a.flags.fetch_or(RECOUNT, AcqRel);
        }
        is_taken
    }

    /// The move itself. Under both locks.
    fn move_to_kernel<S: Socket>(self, sock: &S, head: u64) -> Reclaimed {
        let (w, wl, r) = (&self.w, &self.wl, &self.r);
        let Some(ring) = self.ring() else {
            return Reclaimed::Broken;
        };
        let (start, sent) = (r.pos.load(Relaxed), w.k_sent.load(Relaxed));
        let unread = head.wrapping_sub(start);
        if unread > ring.cap() as u64 {
            return Reclaimed::Broken;
        }
        wl.mark_pos.store(start, Relaxed);
        wl.mark_k.store(sent, Relaxed);
        wl.mark.store(1, Release);
        let (unread, mut moved, mut is_raised) = (unread as usize, 0, false);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let ended = loop {
            if moved == unread {
                break Reclaimed::All(moved);
            }
            let pos = start.wrapping_add(moved as u64);
            match ring.send(pos, unread - moved, sock, flags) {
                Ok(n) => moved += n.min(unread - moved),
                Err(libc::EINTR) => {}
                Err(libc::EAGAIN) if !is_raised => {
                    is_raised = true;
                    sock.raise_send_buffer();
                }
                Err(libc::EAGAIN) => break Reclaimed::Part(moved),
                Err(error) => break Reclaimed::Error(error),
            }
        };
        // Added, since a call of the program's own may add at the same time.
        w.k_sent.fetch_add(moved as u64, Release);
        self.moved_up_to(start.wrapping_add(moved as u64));
        wl.reclaimed.fetch_add(moved as u64, Relaxed);
        ended
    }

    /// The socket's error, which the kernel tells once, has gone to a process that is not its owner.
    pub fn set_error_taken(self) {
        self.a.flags.fetch_or(TAKEN, AcqRel);
    }

    /// Whether that was said, by a helper or by a peer that wrote it.
    pub fn is_error_taken(self) -> bool {
        self.a.flags.load(Acquire) & TAKEN != 0
    }

    /// The program's own call, made without a lock, is about to give the kernel bytes: until [`Outgoing::end_own_call`] nobody
    /// pushes, as while the receiver sleeps. The ring has to be [reclaimed](Outgoing::reclaim) in between, before the call. A
    /// thread that never comes back leaves the direction on the kernel.
    pub fn begin_own_call(self) {
        add_fenced(&self.a.attn, 1);
    }

    /// That call has given the kernel `n` bytes.
    pub fn end_own_call(self, n: usize) {
        self.w.k_sent.fetch_add(n as u64, Release);
        lower(&self.a.attn);
    }

    /// Whether the receiver has left so many bytes in the kernel that nothing may be pushed.
    pub fn is_behind(self) -> bool {
        let sent = self.w.k_sent.load(Relaxed);
        sent.saturating_sub(self.r.krecv.load(Acquire)) > KERNEL_UNREAD_MAX
    }

    /// Keeps this direction on the kernel for good: the next call reclaims and stays there. A caller that cannot wait for its next
    /// call reclaims itself.
    pub fn stop(self, reason: Reason) {
        self.set_flags(NORING, reason);
    }

    /// The next `sends` sends to the receiving process go by the kernel: what a fall does, and what tests force.
    pub fn chill(self, sends: u32) {
        let cool = self.link.slab().cool(self.receiver());
        cool.store(sends, Relaxed);
    }

    /// Says that a writer that does not count may hold the socket, for this reason: the receiver then always asks the kernel.
    pub fn set_uncounted_writer(self, reason: Reason) {
        self.w.uncounted.store(1, Release);
        self.set_flags(NORING, reason);
    }

    /// Whether the ring holds bytes that the receiver has not taken, as far as it has published.
    #[inline(always)]
    pub fn unread(self) -> bool {
        self.queued() != 0
    }

    /// Unread bytes in the ring, for `SIOCOUTQ` (added to the kernel's). At most the size of a ring.
    pub fn queued(self) -> usize {
        let head = self.w.head.load(Acquire);
        let used = head.wrapping_sub(self.r.tail.load(Acquire));
        used.min(RING_BYTES_MAX as u64) as usize
    }

    /// Bytes given to the kernel since the stream began, by whoever sends here.
    #[inline(always)]
    pub fn kernel_sent(&self) -> u64 {
        self.w.k_sent.load(Acquire)
    }

    /// Whether the receiver asks for its bytes in the kernel, or a reclaim is owed: [`Outgoing::reclaim`] soon.
    #[inline(always)]
    pub fn wanted(self) -> bool {
        self.a.flags.load(Relaxed) & WANT != 0 || self.wl.owed.load(Relaxed) != 0
    }

    /// Tells the channel that this side makes another call than a send: stream mode ends. [`Incoming::recv`](crate::Incoming::recv)
    /// does it by itself.
    #[inline(always)]
    pub fn other_call(self, owner: Owner) {
        let (w, wl) = (&self.w, &self.wl);
        if wl.burst.load(Relaxed) == 0 {
            return;
        }
        wl.burst.store(0, Relaxed);
        if w.stream.load(Relaxed) != 0 && try_lock(&wl.lock, owner) {
            self.leave_stream();
            unlock(&wl.lock);
        }
    }

    fn enter_stream(self) {
        if !stream_possible() {
            return;
        }
        // Fenced: a set_slot that finds no `stream` is seen here. The fence of the push that enters stream mode follows, before any
        // push without one.
        if faulty!(StreamUnfenced) {
            self.w.stream.store(1, Release);
        } else {
            store_fenced(&self.w.stream, 1);
        }
        // After `stream`: a taker that finds the listing without it takes it off, and looks at `stream` again.
        if self.a.slot.load(Relaxed) != 0 {
            self.link
                .slab()
                .news(self.receiver())
                .stream_on(self.link.index());
        }
    }

    /// Ends stream mode. Under the write lock.
    pub(crate) fn leave_stream(self) {
        let (w, wl) = (&self.w, &self.wl);
        wl.burst.store(0, Relaxed);
        if w.stream.load(Relaxed) == 0 {
            return;
        }
        let news = self.link.slab().news(self.receiver());
        w.last_at.store(cycles(), Relaxed);
        // The pushes of stream mode had no fence between `head` and the news bit.
        crate::shim::fence_full();
        self.tell();
        w.stream.store(0, Release);
        news.stream_off(self.link.index());
    }

    /// Takes the write lock, and repairs what a dead owner left.
    #[inline(always)]
    pub(crate) fn lock<S: Socket>(self, who: Who, sock: &S) -> Result<(), Sent> {
        match lock(&self.wl.lock, who) {
            Locked::Yes => Ok(()),
            other => self.lock_oddly(other, who, sock),
        }
    }

    #[cold]
    fn lock_oddly<S: Socket>(self, locked: Locked, who: Who, sock: &S) -> Result<(), Sent> {
        match locked {
            Locked::Yes => Ok(()),
            Locked::Busy => Err(Sent::Busy),
            Locked::Stranger => Err(self.broken()),
            Locked::TakenOver(dead) => {
                let repaired = self.repair(sock, dead.word(), who);
                match repaired {
                    Ok(()) => {}
                    // The lock stays the dead one's: whoever comes next repairs.
                    Err(Sent::Busy) => self.wl.lock.store(dead.word(), Release),
                    Err(_) => unlock(&self.wl.lock),
                }
                repaired
            }
        }
    }

    /// Repairs by counts what a process that died under the write lock left. [`Sent::Busy`]: the reader is inside. Under the write
    /// lock.
    fn repair<S: Socket>(self, sock: &S, dead: u32, who: Who) -> Result<(), Sent> {
        let Dir { w, wl, r, a } = self.dir;
        if faulty!(NoRepair) {
            return Ok(());
        }
        let is_whole = wl.mark.load(Acquire) == 0;
        let Some(written) = sock.written() else {
            // The connection is not established any more: what the kernel got, it will deliver or reset.
            self.stop(Reason::Killed);
            return if is_whole { Ok(()) } else { Err(self.broken()) };
        };
        if is_whole {
            let sent = w.k_sent.load(Relaxed);
            w.k_sent.store(sent.max(written), Release);
            return Ok(());
        }
        let held = r.lock.load(Relaxed);
        let is_ours = held == dead || held == 0;
        let word = who.owner.word();
        let taken = is_ours
            && r.lock
                .compare_exchange(held, word, Acquire, Relaxed)
                .is_ok();
        if !taken && !self.lock_reader(who) {
            return Err(Sent::Busy);
        }
        let start = wl.mark_pos.load(Relaxed);
        let surplus = written.wrapping_sub(wl.mark_k.load(Relaxed));
        let unread = w.head.load(Relaxed).wrapping_sub(start);
        let is_possible = surplus <= unread && unread <= RING_BYTES_MAX as u64;
        if is_possible {
            w.k_sent.store(written, Release);
            self.moved_up_to(start.wrapping_add(surplus));
            a.flags.fetch_and(!DRAIN, AcqRel);
        }
        unlock(&r.lock);
        if is_possible {
            Ok(())
        } else {
            Err(self.broken())
        }
    }

    /// What lies before `pos` in the ring is the kernel's now: the reclaim has ended. Under both locks.
    fn moved_up_to(self, pos: u64) {
        self.r.pos.store(pos, Relaxed);
        self.r.head_seen.store(pos, Relaxed);
        self.r.tail.store(pos, Release);
        self.wl.mark.store(0, Release);
    }
}

impl Dir {
    /// Sets flags, and the reason unless one stands there.
    pub(crate) fn set_flags(&self, flags: u32, reason: Reason) {
        let _ = self.a.flags.fetch_update(AcqRel, Relaxed, |old| {
            let is_first = old >> REASON_SHIFT == 0;
            let shown = u32::from(is_first) * reason as u32;
            Some(old | flags | shown << REASON_SHIFT)
        });
    }

    /// Why this direction is on the kernel; [`Reason::None`] if nothing stands against the ring.
    pub fn reason(&self) -> Reason {
        Reason::from_u8((self.a.flags.load(Relaxed) >> REASON_SHIFT) as u8)
    }
}

fn stream_possible() -> bool {
    #[cfg(not(loom))]
    return crate::sys::membarrier_registered();
    #[cfg(loom)]
    crate::model::streams()
}

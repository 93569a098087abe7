//! [`Incoming`]: receiving on a channel, and falling asleep.
//!
//! # Life of a byte
//! Kernel bytes are older than ring bytes, so they are taken first. `head_seen` advances only when `krecv == k_sent` was seen, with
//! `k_sent` loaded *after* `head`: then every kernel byte that was sent before the ring bytes below `head` has been taken, and none
//! can be sent while they are unread. Ring bytes below `head_seen` may therefore be taken without another look.
//!
//! # Failure modes
//! A sender that died inside a reclaim leaves `mark`: some of the ring's bytes are in the kernel as well, and only the kernel knows
//! how many. Its lock is taken over with the flag `DRAIN`: kernel bytes only, until the kernel says that the stream has ended. What
//! came beyond `mark_k` is skipped in the ring, and the rest of the ring follows.
//!
//! A connection that is reset drops what the sender's kernel had not yet handed over, while bytes that were sent after it lie in
//! the ring. They would follow a gap, so they are not delivered: the stream has ended where the kernel's part did. Where fewer
//! bytes were counted than sent, the kernel says whether they never came or were taken uncounted ([`Socket::arrived`]).

use std::ops::Deref;

#[cfg(not(loom))]
use rustix::thread::futex;
use windlass_sync::prefetch;

use crate::bufs::Bufs;
use crate::layout::*;
use crate::out::{Moved, Outgoing};
use crate::owner::{Locked, Owner, Who, lock, try_lock, unlock};
use crate::reason::Reason;
use crate::ring::{AHEAD, Ring};
use crate::shim::{AcqRel, Acquire, Relaxed, Release, add_fenced, faulty, heavy, light, lower};
use crate::slab::Link;
use crate::socket::Socket;
use crate::sys::cycles;

/// Pauses between two looks at the ring of a sender in stream mode (1 to 4 us): a reader close behind the writer takes
/// lines from it that are being written, and each message then costs several times as much.
const STREAM_PAUSES: u32 = 96;

/// What a look at a sender in stream mode is to bring, in bytes, and how long a reader that gets less waits before the next one,
/// in cycles: at first, and at most (about 3 us).
const GAIN_WANTED: u64 = 2048;
const BEHIND_FIRST: u32 = 512;
const BEHIND_MAX: u32 = 8192;

/// How to receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvHow {
    /// `MSG_PEEK`: the bytes stay.
    pub peek: bool,
    /// `MSG_TRUNC`: the bytes are dropped instead of copied.
    pub discard: bool,
    /// Ask the kernel even where the counts say that it has nothing: every 32nd time or 50 us, and whenever a real poll said that
    /// the descriptor is readable. For EOF, errors, bypassing writers, and bytes that a killed sender could not count.
    pub look: bool,
}

/// What a receive came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Took {
    /// So many bytes, possibly fewer than asked.
    Bytes(Moved),
    /// The same, the ring's, after an error of the kernel, which it tells once: the next call reports it.
    Failing(Moved, i32),
    /// Nothing: EAGAIN, or fall asleep.
    Empty,
    /// Kernel bytes are announced and not there yet: EAGAIN, or poll(POLLIN) and come back.
    Pending,
    /// The end of the stream.
    Eof,
    /// The real call failed, or EFAULT.
    Error(i32),
    /// Another thread holds the lock: come back.
    Busy,
    /// The shared memory held values that cannot be: ECONNRESET.
    Broken,
}

/// Whether a thread may go to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Asleep {
    /// It counts as asleep: make the real call, then [`Incoming::woke`].
    Yes,
    /// There is something: do not sleep.
    Ready,
}

/// What ended the kernel's part of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A receive returned 0.
    Eof,
    /// A receive failed.
    Error(i32),
}

impl From<End> for Took {
    fn from(end: End) -> Took {
        match end {
            End::Eof => Took::Eof,
            End::Error(error) => Took::Error(error),
        }
    }
}

/// The direction in which one end receives.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'s> {
    pub(crate) link: Link<'s>,
    /// As in [`Outgoing`].
    dir: &'s Dir,
}

/// What the ring holds for the reader.
pub(crate) enum Look<'s> {
    /// So many bytes from `pos` on.
    Ring(Ring<'s>, usize),
    /// So many kernel bytes come first (0: unknown, ask).
    Kernel(u64),
    /// Nothing.
    Nothing,
    /// Values that cannot be.
    Broken,
}

impl Deref for Incoming<'_> {
    type Target = Dir;

    #[inline(always)]
    fn deref(&self) -> &Dir {
        self.dir
    }
}

impl<'s> Incoming<'s> {
    #[inline(always)]
    pub(crate) fn new(link: Link<'s>) -> Incoming<'s> {
        let dir = link.dir_from(link.side().other());
        Incoming { link, dir }
    }

    #[inline(always)]
    pub(crate) fn outgoing(self) -> Outgoing<'s> {
        Outgoing::new(self.link)
    }

    /// Receives what is there, once, without blocking: the kernel's bytes, then the ring's. `flags` are the program's, for a real
    /// receive, without those that [`RecvHow`] says.
    #[inline(always)]
    pub fn recv<S: Socket>(
        self,
        who: Who,
        sock: &S,
        into: &Bufs,
        flags: i32,
        how: RecvHow,
    ) -> Took {
        self.outgoing().other_call(who.owner);
        if let Err(took) = self.lock(who, sock) {
            return took;
        }
        let took = match self.look(into.len()) {
            Look::Ring(ring, n) => self.take(ring, n, into, how, 0),
            look => self.recv_oddly(look, sock, *into, flags, how),
        };
        unlock(&self.r.lock);
        self.wake_sender();
        took
    }

    /// Receives into one piece of memory that is not empty what the ring has, if nothing else is to be done and thought of; the
    /// number of bytes, 0: nothing was done, and [`Incoming::recv`] is to be asked. As [`Outgoing::send_fast`].
    #[inline(always)]
    pub fn recv_fast(self, owner: Owner, into: &Bufs) -> usize {
        self.outgoing().other_call(owner);
        let lock = &self.r.lock;
        if !try_lock(lock, owner) {
            return 0;
        }
        let got = match self.look(into.len()) {
            Look::Ring(ring, n) => self.take_fast(ring, n, into).unwrap_or(0),
            _ => 0,
        };
        unlock(lock);
        self.wake_sender();
        got
    }

    /// Looks at the ring, with as few loads of foreign lines as will do. Under the read lock.
    #[inline(always)]
    pub(crate) fn look(self, asked: usize) -> Look<'s> {
        let (w, r, a) = (&self.w, &self.r, &self.a);
        let pos = r.pos.load(Relaxed);
        let (mut seen, mut is_new) = (r.head_seen.load(Relaxed).wrapping_sub(pos), false);
        // Less is known than asked, or nothing that can be.
        if seen.wrapping_sub(asked as u64) > RING_BYTES_MAX as u64 {
            if seen == 0 {
                self.fall_back();
            }
            let early = faulty!(CountEarly).then(|| w.k_sent.load(Acquire));
            let head = w.head.load(Acquire);
            let sent = early.unwrap_or_else(|| w.k_sent.load(Acquire));
            let got = r.krecv.load(Relaxed);
            if sent != got || a.flags.load(Relaxed) & DRAIN != 0 {
                if seen == 0 || seen > RING_BYTES_MAX as u64 {
                    return Look::Kernel(sent.saturating_sub(got));
                }
            } else {
                r.head_seen.store(head, Relaxed);
                let gained = head.wrapping_sub(pos.wrapping_add(seen));
                seen = head.wrapping_sub(pos);
                self.note_gain(gained);
                is_new = true;
            }
        }
        if seen == 0 {
            return Look::Nothing;
        }
        let Some(ring) = self.ring_of(seen) else {
            return Look::Broken;
        };
        if is_new {
            ring.expect(pos, seen);
        }
        Look::Ring(ring, seen as usize)
    }

    /// The ring, if it can hold so many bytes.
    #[inline(always)]
    fn ring_of(self, bytes: u64) -> Option<Ring<'s>> {
        let word = self.a.ring.load(Relaxed);
        let ring = self.link.slab().ring(self.link.side().other(), word)?;
        (bytes <= ring.cap() as u64).then_some(ring)
    }

    /// Waits before a look at `head`, if the last ones brought few bytes of a sender in stream mode: a reader close behind it takes
    /// lines that are being written and those in front of them, and each message then costs both sides a transfer more.
    #[inline(always)]
    fn fall_back(self) {
        let behind = self.r.behind.load(Relaxed).min(BEHIND_MAX);
        if behind != 0 && !cfg!(loom) {
            let start = cycles();
            while cycles().wrapping_sub(start) < behind.into() {
                std::hint::spin_loop();
            }
        }
    }

    /// A look at `head` brought so many bytes: how long the next one waits.
    #[inline(always)]
    fn note_gain(self, gained: u64) {
        let (w, r) = (&self.w, &self.r);
        let before = r.behind.load(Relaxed);
        let is_close = gained < GAIN_WANTED && w.stream.load(Relaxed) != 0;
        let behind = match before {
            0 if !is_close => return,
            _ if !is_close => before / 2,
            _ => before.saturating_mul(2).clamp(BEHIND_FIRST, BEHIND_MAX),
        };
        r.behind.store(behind, Relaxed);
    }

    /// Copies from the ring. `before` bytes of the same call came from the kernel.
    #[inline(always)]
    fn take(self, ring: Ring, n: usize, into: &Bufs, how: RecvHow, before: usize) -> Took {
        let is_plain = !how.peek && !how.discard;
        let fast = is_plain.then(|| self.take_fast(ring, n, into)).flatten();
        let ring = fast.unwrap_or_else(|| self.take_oddly(ring, n.min(into.len()), *into, how));
        if ring == 0 && !into.is_empty() && before == 0 {
            return Took::Error(libc::EFAULT);
        }
        let kernel = before;
        Took::Bytes(Moved { ring, kernel })
    }

    /// Copies what fits of `n` bytes, which are one piece on both sides.
    #[inline(always)]
    fn take_fast(self, ring: Ring, n: usize, into: &Bufs) -> Option<usize> {
        let pos = self.r.pos.load(Relaxed);
        if n > AHEAD {
            prefetch::read(ring.place(pos.wrapping_add(AHEAD as u64)));
        }
        let got = ring.read_fast(pos, into, n.min(into.len()))?;
        self.taken(ring, got);
        Some(got)
    }

    /// Copies `n` bytes piece by piece, or drops them; they may have to stay.
    #[inline(never)]
    fn take_oddly(self, ring: Ring, n: usize, mut into: Bufs, how: RecvHow) -> usize {
        let got = if how.discard {
            n
        } else {
            ring.read(self.r.pos.load(Relaxed), &mut into, n)
        };
        if !how.peek {
            self.taken(ring, got);
        }
        got
    }

    /// `n` bytes of the ring are taken.
    #[inline(always)]
    fn taken(self, ring: Ring, n: usize) {
        let r = &self.r;
        let pos = r.pos.load(Relaxed).wrapping_add(n as u64);
        r.pos.store(pos, Relaxed);
        let unpublished = pos.wrapping_sub(r.tail.load(Relaxed));
        if unpublished >= ring.cap() as u64 / 4 || pos == r.head_seen.load(Relaxed) {
            r.tail.store(pos, Release);
        }
    }

    /// Everything but bytes in the ring at the first look. Under the read lock.
    #[cold]
    fn recv_oddly<S: Socket>(
        self,
        look: Look<'s>,
        sock: &S,
        into: Bufs,
        flags: i32,
        how: RecvHow,
    ) -> Took {
        let limit = match look {
            Look::Ring(ring, n) => return self.take(ring, n, &into, how, 0),
            Look::Broken => return self.broken(),
            Look::Nothing if !how.look && self.w.uncounted.load(Relaxed) == 0 => {
                return Took::Empty;
            }
            Look::Nothing | Look::Kernel(0) => into.len(),
            // A writer that does not count may have written more than was announced.
            Look::Kernel(_) if self.w.uncounted.load(Relaxed) != 0 => into.len(),
            Look::Kernel(n) => into.len().min(usize::try_from(n).unwrap_or(usize::MAX)),
        };
        // Counts that an end has not offered yet announce nothing.
        let announced = matches!(look, Look::Kernel(1..)) && self.w.uncounted.load(Relaxed) == 0;
        let [peek, discard] = [how.peek, how.discard].map(i32::from);
        let flags = flags | (peek * libc::MSG_PEEK) | (discard * libc::MSG_TRUNC);
        match sock.recv(&into, limit, flags) {
            Ok(0) if limit != 0 => self.ended(End::Eof, sock, &into, how),
            Ok(n) => {
                let is_last = sock.ends_call();
                let took = self.after_kernel(n, &into, how, is_last);
                if announced && n < limit && !how.peek && !is_last {
                    self.count_anew(sock);
                }
                took
            }
            Err(libc::EAGAIN) if announced => {
                if !self.count_anew(sock) {
                    return Took::Pending;
                }
                match self.look(into.len()) {
                    Look::Ring(ring, n) => self.take(ring, n, &into, how, 0),
                    Look::Nothing => Took::Empty,
                    Look::Kernel(_) => Took::Pending,
                    Look::Broken => self.broken(),
                }
            }
            // The look may have come before a push: what is in the ring now is seen by the next look.
            Err(libc::EAGAIN) => Took::Empty,
            // These say nothing of the stream.
            Err(error @ (libc::EFAULT | libc::EINTR | libc::ENOMEM | libc::ENOBUFS)) => {
                Took::Error(error)
            }
            Err(error) => self.ended(End::Error(error), sock, &into, how),
        }
    }

    /// `n` bytes came from the kernel; the rest of the call is for the ring, if these were all that the kernel had.
    fn after_kernel(self, n: usize, into: &Bufs, how: RecvHow, is_last: bool) -> Took {
        let mut rest = *into;
        rest.advance(n);
        if !how.peek {
            self.took(n);
        }
        let look = match how.peek {
            _ if is_last || rest.is_empty() => Look::Nothing,
            true => self.look_behind(n),
            false => self.look(rest.len()),
        };
        match look {
            Look::Ring(ring, there) => self.take(ring, there, &rest, how, n),
            _ => Took::Bytes(Moved { ring: 0, kernel: n }),
        }
    }

    /// What the ring holds behind `n` peeked kernel bytes, if these are all that the kernel has.
    fn look_behind(self, n: usize) -> Look<'s> {
        let there = self
            .w
            .head
            .load(Acquire)
            .wrapping_sub(self.r.pos.load(Relaxed));
        let got = self.r.krecv.load(Relaxed).wrapping_add(n as u64);
        match self.ring_of(there) {
            Some(ring) if there != 0 && got == self.w.k_sent.load(Acquire) => {
                Look::Ring(ring, there as usize)
            }
            _ => Look::Nothing,
        }
    }

    /// The kernel's part has ended: the ring once more, unless older bytes were lost. Under the read lock.
    fn ended<S: Socket>(self, end: End, sock: &S, into: &Bufs, how: RecvHow) -> Took {
        let (w, wl, r, a) = (&self.w, &self.wl, &self.r, &self.a);
        let head = w.head.load(Acquire);
        let mut pos = r.pos.load(Relaxed);
        let drains = a.flags.load(Relaxed) & DRAIN != 0;
        // What a reclaim had moved beyond its mark and was lost is still in the ring.
        let older = if drains { &wl.mark_k } else { &w.k_sent }.load(Acquire);
        let is_short = |count: u64| count < older;
        if is_short(r.krecv.load(Relaxed)) && sock.arrived().is_some_and(is_short) {
            return end.into();
        }
        if drains {
            let mark = wl.mark_pos.load(Relaxed);
            let surplus = r.krecv.load(Relaxed).wrapping_sub(wl.mark_k.load(Relaxed));
            if surplus > head.wrapping_sub(mark) {
                return self.broken();
            }
            pos = mark.wrapping_add(surplus);
            r.pos.store(pos, Relaxed);
            r.tail.store(pos, Release);
            a.flags.fetch_and(!DRAIN, AcqRel);
        }
        let there = head.wrapping_sub(pos);
        if there == 0 {
            return end.into();
        }
        r.head_seen.store(head, Relaxed);
        let Some(ring) = self.ring_of(there) else {
            return self.broken();
        };
        match (self.take(ring, there as usize, into, how, 0), end) {
            (Took::Bytes(moved), End::Error(error)) => Took::Failing(moved, error),
            (took, _) => took,
        }
    }

    /// A real call of the program's own, made while asleep, returned the end of the stream or an error: what is left in the ring
    /// comes first. [`Took::Eof`] or [`Took::Error`] if nothing is. After [`Incoming::woke`].
    pub fn recv_last<S: Socket>(
        self,
        who: Who,
        sock: &S,
        into: &Bufs,
        how: RecvHow,
        end: End,
    ) -> Took {
        if let Err(took) = self.lock(who, sock) {
            return took;
        }
        let took = self.ended(end, sock, into, how);
        unlock(&self.r.lock);
        took
    }

    /// Whether a receive would find something: ring bytes, or kernel bytes that were announced. No system call, no store, no lock;
    /// what it says may be old in either direction, except after [`Incoming::fall_asleep`]'s fence. The bytes begin to come over at
    /// once.
    #[inline(always)]
    pub fn ready(self) -> bool {
        let (w, r) = (&self.w, &self.r);
        let head = w.head.load(Acquire);
        let sent = w.k_sent.load(Acquire);
        let pos = r.pos.load(Relaxed);
        if head != pos {
            if let Some(ring) = self.ring_of(0) {
                ring.expect(pos, head.wrapping_sub(pos));
            }
            self.outgoing().expect();
            return true;
        }
        sent != r.krecv.load(Relaxed)
    }

    /// Whether the sender may push to the ring just now: a hint. It may not while it gives the kernel bytes by a call of its own,
    /// while somebody sleeps, and once the direction is the kernel's. Then there is nothing to spin for.
    #[inline(always)]
    pub fn may_come(self) -> bool {
        let a = &self.a;
        a.attn.load(Relaxed) == 0 && a.flags.load(Relaxed) & NORING == 0
    }

    /// A pause between two looks at [`Incoming::ready`]: looks in close order keep the line from the sender who wants to write it.
    /// Longer in stream mode, where each look makes the sender wait for the line and brings the fewer bytes the sooner it comes.
    #[inline]
    pub fn pause(self) {
        let streaming = self.w.stream.load(Relaxed) != 0;
        let pauses = if streaming { STREAM_PAUSES } else { 1 };
        (0..pauses).for_each(|_| std::hint::spin_loop());
    }

    /// Whether the ring itself holds readable bytes, by the same rules: what poll and epoll may report without the kernel.
    #[inline(always)]
    pub fn ring_ready(self) -> bool {
        let (w, r) = (&self.w, &self.r);
        let head = w.head.load(Acquire);
        let sent = w.k_sent.load(Acquire);
        if head == r.pos.load(Relaxed) {
            return false;
        }
        sent == r.krecv.load(Relaxed) && self.a.flags.load(Relaxed) & DRAIN == 0
    }

    /// Unread bytes in the ring, for `SIOCINQ` (added to the kernel's). At most the size of a ring.
    pub fn queued(self) -> usize {
        let head = self.w.head.load(Acquire);
        let there = head.wrapping_sub(self.r.pos.load(Relaxed));
        there.min(RING_BYTES_MAX as u64) as usize
    }

    /// Counts the calling thread as asleep on this very descriptor, and looks once more (I5).
    /// [`Asleep::Yes`]: make the real
    /// call, then [`Incoming::woke`].
    ///
    /// Ring bytes behind kernel bytes do not keep it awake: the kernel's own wake does.
    pub fn fall_asleep(self) -> Asleep {
        let a = &self.a;
        add_fenced(&a.attn, 1);
        if self.w.stream.load(Acquire) != 0 && !faulty!(StreamIgnored) {
            heavy();
        }
        self.wake_sender();
        if self.ring_ready() && !faulty!(NoSecondLook) {
            self.woke(0);
            return Asleep::Ready;
        }
        Asleep::Yes
    }

    /// Ends what [`Incoming::fall_asleep`] began. `took` bytes were taken from the kernel by the real call.
    pub fn woke(self, took: usize) {
        self.took(took);
        lower(&self.a.attn);
    }

    /// Counts `n` bytes that a real receive took without [`Incoming::fall_asleep`]: under a raised slot.
    pub fn took(self, n: usize) {
        if n != 0 {
            self.r.krecv.fetch_add(n as u64, Release);
        }
    }

    /// Sets which epoll instance holds the socket: its line of the own status page, 0 for none. Fenced: what is looked at
    /// afterwards is seen as it is. A socket with bytes gets its news bit, so that the instance looks at it.
    pub fn set_slot(self, slot: u8) {
        crate::shim::store_fenced(&self.a.slot, slot.into());
        if slot != 0 && self.w.stream.load(Acquire) != 0 {
            self.link
                .slab()
                .news(self.link.side())
                .stream_on(self.link.index());
        }
        if slot != 0 && self.ready() {
            self.link.set_news();
        }
    }

    /// When the bytes in the ring came, in cycles: the first ones since the news bit was set, or the last ones.
    #[inline(always)]
    pub fn came_at(self, is_first: bool) -> u64 {
        let w = &self.w;
        let at = if is_first { &w.first_at } else { &w.last_at };
        at.load(Relaxed)
    }

    /// Keeps this direction on the kernel for good, and asks the sender to move what is in the ring.
    pub fn stop(self, reason: Reason) {
        self.set_flags(NORING | WANT, reason);
    }

    /// Corrects `krecv` if bytes were taken that nobody counted: after a join with threads inside a receive, when one of them
    /// has returned.
    pub fn count_owed<S: Socket>(self, who: Who, sock: &S) {
        if self.a.flags.load(Relaxed) & RECOUNT != 0 && self.lock(who, sock).is_ok() {
            self.count_anew(sock);
            unlock(&self.r.lock);
        }
    }

    /// Corrects `krecv` by the kernel's own count where announced bytes are not in the kernel: a reader took them round the
    /// library, or was killed before it had counted. Not while somebody is asleep, whose bytes would count twice. Whether it
    /// is right now. Under the read lock.
    pub(crate) fn count_anew<S: Socket>(self, sock: &S) -> bool {
        let (r, a) = (&self.r, &self.a);
        let look = || (a.attn.load(Acquire) == 0).then(|| r.krecv.load(Acquire));
        let before = look();
        let Some(counted) = before else {
            return false;
        };
        let is_right = match sock.received() {
            Some(received) => {
                crate::shim::fence_full();
                look() == before
                    && (received <= counted
                        || r.krecv
                            .compare_exchange(counted, received, AcqRel, Relaxed)
                            .is_ok())
            }
            None => self.by_queue(sock),
        };
        if is_right && a.flags.load(Relaxed) & RECOUNT != 0 {
            a.flags.fetch_and(!RECOUNT, AcqRel);
        }
        is_right
    }

    /// Sets `krecv` to what the sender has counted, less what is unread in the kernel: for sockets of which the kernel keeps no
    /// count, when the sender has offered and before this end joins. False: somebody is inside a call; come back.
    pub fn count_by_queue<S: Socket>(self, who: Who, sock: &S) -> bool {
        if self.lock(who, sock).is_err() {
            return false;
        }
        let done = self.by_queue(sock);
        unlock(&self.r.lock);
        done
    }

    /// The same under the read lock. Neither count moves between two looks that find both as they were, no sender inside and nobody
    /// asleep: so what the kernel said in between belongs to them. Who falls asleep later adds to what is corrected by addition.
    fn by_queue<S: Socket>(self, sock: &S) -> bool {
        let (w, wl, r, a) = (&self.w, &self.wl, &self.r, &self.a);
        let look = || {
            let is_quiet = wl.lock.load(Acquire) == 0 && a.attn.load(Acquire) == 0;
            let counts = (w.k_sent.load(Acquire), r.krecv.load(Acquire));
            is_quiet.then_some(counts)
        };
        let before = look();
        let Some((sent, got)) = before else {
            return false;
        };
        let unread = sock.unread();
        crate::shim::fence_full();
        let Some(unread) = unread.filter(|_| look() == before) else {
            return false;
        };
        let right = sent.wrapping_sub(unread);
        r.krecv.fetch_add(right.wrapping_sub(got), AcqRel);
        true
    }

    /// Wakes a sender that waits for room, if one does. Outside the lock.
    #[inline(always)]
    pub(crate) fn wake_sender(self) {
        light();
        let space = &self.link.end(self.link.side().other()).space;
        if space.load(Relaxed) != 0 {
            space.store(0, Relaxed);
            #[cfg(not(loom))]
            let _ = futex::wake(space, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Takes the read lock, and notes what a dead owner left.
    #[inline(always)]
    pub(crate) fn lock<S: Socket>(self, who: Who, sock: &S) -> Result<(), Took> {
        match lock(&self.r.lock, who) {
            Locked::Yes => Ok(()),
            other => self.lock_oddly(other, sock),
        }
    }

    #[cold]
    fn lock_oddly<S: Socket>(self, locked: Locked, sock: &S) -> Result<(), Took> {
        let (wl, r, a) = (&self.wl, &self.r, &self.a);
        match locked {
            Locked::Yes => {}
            Locked::Busy => return Err(Took::Busy),
            Locked::Stranger => return Err(self.broken()),
            Locked::TakenOver(_) if faulty!(NoRepair) => {}
            Locked::TakenOver(_) if wl.mark.load(Acquire) != 0 => {
                r.head_seen.store(r.pos.load(Relaxed), Relaxed);
                a.flags.fetch_or(DRAIN | NORING, AcqRel);
            }
            Locked::TakenOver(_) => {
                a.flags.fetch_or(RECOUNT, AcqRel);
                self.count_anew(sock);
            }
        }
        Ok(())
    }

    #[cold]
    pub(crate) fn broken(self) -> Took {
        self.set_flags(NORING | BROKEN, Reason::Broken);
        Took::Broken
    }
}

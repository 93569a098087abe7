//! Records on a channel: sockets that keep the limits of what was sent (`AF_UNIX` `SOCK_SEQPACKET` and `SOCK_DGRAM`).
//!
//! # Model
//! A record in the ring is a word with its length, then its bytes, and the rest of its slot, which is a multiple of
//! [`SLOT`] bytes: so the length never wraps, and a record without bytes has a slot, too. `head` and `pos` are positions
//! of slots; a record is pushed whole, or not at all. `k_sent` and `krecv` count *records*, so the order of kernel and
//! ring is what it is for bytes: in each direction every unread record in the kernel is older than every one in the ring.
//!
//! # Room
//! The kernel charges a record of a Unix socket to its sender until it is read, with up to [`SLOT`] * 5 / 2 bytes for each slot
//! that it has here (`truesize`: two pieces of memory, each a power of two). A ring therefore takes records only while
//! the kernel has none of this direction, and at most [`ring_max`] bytes of slots: then a reclaim fits into the send
//! buffer as the program set it, which stays so, and what is too long for it (`EMSGSIZE`) stays the kernel's to say.
//!
//! # What can be lost and what cannot
//! A sender that is killed inside a reclaim leaves `mark`, as for bytes: the receiver takes the kernel's records until the end,
//! counts those beyond the mark, and skips as many in the ring. Where a process that shares the *sending* end goes on,
//! nobody knows how many records the kernel got, and the direction is broken. Datagrams have no end: theirs is that the kernel
//! has none ([`datagrams`](crate::datagrams)).
//!
//! # Failure modes
//! A length is copied out once and has to lie within what is unread; else the direction is broken.

use std::os::fd::RawFd;

use crate::bufs::{Bufs, iovec};
use crate::inc::{End, Incoming, Look, RecvHow, Took};
use crate::layout::*;
use crate::out::{Outgoing, Reclaimed, Sent, Stop, WhenFull};
use crate::owner::{Who, unlock};
use crate::ring::{Impossible, ORDER_MAX, Ring};
use crate::shim::{AtomicU64, Ordering};
use crate::socket::{Fd, Socket};
use crate::sys;

/// Bytes of a slot: every record takes a multiple of it.
pub const SLOT: usize = 512;
/// Bytes of the word before a record, whose lower half is the length.
const WORD: usize = 8;
/// Bytes of slots in a ring at most, whatever the send buffer.
const RING_MAX: usize = 128 * 1024;
/// Vectors of a real call that are kept on the stack, and of one that has more.
const VECTORS: usize = 16;
const VECTORS_MAX: usize = 1_024;

/// Bytes of slots that a ring may hold where the send buffer (`SO_SNDBUF`, as getsockopt(2) tells it) has so many bytes.
pub fn ring_max(send_buffer: usize) -> usize {
    (send_buffer.saturating_mul(2) / 5 / SLOT * SLOT).min(RING_MAX)
}

/// Bytes of ring that a record takes.
const fn slots(length: usize) -> usize {
    (WORD + length).next_multiple_of(SLOT)
}

/// A record that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Bytes copied.
    pub copied: usize,
    /// Bytes that it had: the rest was dropped.
    pub length: usize,
    /// It came through the kernel.
    pub is_kernels: bool,
}

/// What receiving a record came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Got {
    /// A record.
    Record(Record),
    /// None: see [`Took`], whose bytes it never is.
    No(Took),
}

/// The real socket, where it carries records.
pub trait RecordSocket: Socket {
    /// Receives one record, with `MSG_DONTWAIT` added to `flags`. No bytes: a record without any, or the end.
    fn recv_record(&self, into: &Bufs, flags: i32) -> Result<Record, i32>;
    /// Whether nothing more can come but what the kernel has.
    fn has_ended(&self) -> bool;
}

/// A descriptor of this process as a [`RecordSocket`], by system calls made directly.
#[derive(Clone, Copy, Debug)]
pub struct RecordFd(pub RawFd);

impl RecordFd {
    /// Makes `sendmsg` or `recvmsg` with all the pieces of `data` and this control data; what the header says afterwards.
    pub fn message(
        &self,
        number: libc::c_long,
        data: &Bufs,
        control: (*mut libc::c_void, usize),
        flags: i32,
    ) -> Result<(usize, libc::msghdr), i32> {
        let mut vectors = [NO_VECTOR; VECTORS];
        let filled = data.fill(usize::MAX, &mut vectors);
        let named: usize = vectors.iter().map(|vector| vector.iov_len).sum();
        if named == data.len() {
            return self.call(number, (vectors.as_mut_ptr(), filled), control, flags);
        }
        self.long_message(number, data, control, flags)
    }

    /// The same with many pieces.
    #[cold]
    #[inline(never)]
    fn long_message(
        &self,
        number: libc::c_long,
        data: &Bufs,
        control: (*mut libc::c_void, usize),
        flags: i32,
    ) -> Result<(usize, libc::msghdr), i32> {
        let mut vectors = [NO_VECTOR; VECTORS_MAX];
        let filled = data.fill(usize::MAX, &mut vectors);
        self.call(number, (vectors.as_mut_ptr(), filled), control, flags)
    }

    fn call(
        &self,
        number: libc::c_long,
        vectors: (*mut iovec, usize),
        control: (*mut libc::c_void, usize),
        flags: i32,
    ) -> Result<(usize, libc::msghdr), i32> {
        // SAFETY: all zeros is a valid message header.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = vectors;
        (header.msg_control, header.msg_controllen) = control;
        let args = [
            self.0 as usize,
            &raw mut header as usize,
            (flags | libc::MSG_DONTWAIT) as usize,
            0,
            0,
            0,
        ];
        // SAFETY: header and vectors live for the call; the kernel checks the program's buffers.
        let moved = unsafe { sys::checked(number, args) }?;
        Ok((moved, header))
    }

    /// What poll(2) says at once of these events, and of errors and the end.
    fn poll(&self, events: i16) -> Option<i16> {
        let mut entry = libc::pollfd {
            fd: self.0,
            events,
            revents: 0,
        };
        let args = [&raw mut entry as usize, 1, 0, 0, 0, 0];
        // SAFETY: one entry, of this stack.
        unsafe { sys::checked(libc::SYS_poll, args) }.ok()?;
        Some(entry.revents)
    }
}

const NO_VECTOR: iovec = iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};
const NO_CONTROL: (*mut libc::c_void, usize) = (std::ptr::null_mut(), 0);

impl Socket for RecordFd {
    const RECORDS: bool = true;

    fn send(&self, data: &Bufs, flags: i32) -> Result<usize, i32> {
        let sent = self.message(libc::SYS_sendmsg, data, NO_CONTROL, flags)?;
        Ok(sent.0)
    }

    fn recv(&self, into: &Bufs, _limit: usize, flags: i32) -> Result<usize, i32> {
        Ok(self.recv_record(into, flags)?.copied)
    }

    fn written(&self) -> Option<u64> {
        None
    }

    fn received(&self) -> Option<u64> {
        None
    }

    /// The kernel tells bytes, and a record may have none: so only that there is no record is known.
    fn unread(&self) -> Option<u64> {
        self.poll(libc::POLLIN).filter(|said| *said == 0).map(|_| 0)
    }

    /// Only where somebody has made it smaller than a record in the ring, which was sent before.
    fn raise_send_buffer(&self) {
        let (fd, connected) = (self.0, false);
        Fd { fd, connected }.raise_send_buffer();
    }
}

impl RecordSocket for RecordFd {
    fn recv_record(&self, into: &Bufs, flags: i32) -> Result<Record, i32> {
        let flags = flags | libc::MSG_TRUNC;
        let (length, _) = self.message(libc::SYS_recvmsg, into, NO_CONTROL, flags)?;
        Ok(Record {
            copied: length.min(into.len()),
            length,
            is_kernels: true,
        })
    }

    fn has_ended(&self) -> bool {
        let ends = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        self.poll(libc::POLLRDHUP)
            .is_none_or(|said| said & ends != 0)
    }
}

/// Length and slots of the record at `pos`, of which `unread` bytes are there.
pub(crate) fn measure(ring: &Ring, pos: u64, unread: u64) -> Result<(usize, usize), Impossible> {
    let mut word = [0_u8; WORD];
    let copied = ring.read(pos, &mut Bufs::one(word.as_mut_ptr(), WORD), WORD);
    let length = u64::from_le_bytes(word);
    let is_there = copied == WORD && length <= RING_MAX as u64;
    let taken = slots(length.min(RING_MAX as u64) as usize);
    if is_there && taken as u64 <= unread {
        Ok((length as usize, taken))
    } else {
        Err(Impossible)
    }
}

fn add(count: &AtomicU64, bytes: usize) {
    let sum = count.load(Ordering::Relaxed).wrapping_add(bytes as u64);
    count.store(sum, Ordering::Relaxed);
}

impl Outgoing<'_> {
    /// Sends one record, once, without blocking: [`Sent::Bytes`] says that it went. At most `ring_max` bytes of slots
    /// may be in the ring. `flags` are the program's, for a real send.
    #[inline]
    pub fn send_record<S: Socket>(
        &self,
        who: Who,
        sock: &S,
        data: &Bufs,
        flags: i32,
        full: WhenFull,
        ring_max: usize,
    ) -> Sent {
        if let Err(other) = self.lock(who, sock) {
            return other.into();
        }
        if slots(data.len()) <= ring_max && self.is_open() {
            if !self.kernel_has_records() {
                match self.push_record(data, ring_max) {
                    Ok(true) => return self.pushed(who, sock, data.len()),
                    Ok(false) if self.waits(full) => {
                        unlock(&self.d().wl.lock);
                        return Sent::RingFull;
                    }
                    Ok(false) => {}
                    Err(stop) => return self.stopped(stop),
                }
            } else if self.waits_for_kernel(full) {
                unlock(&self.d().wl.lock);
                return Sent::RingFull;
            }
        }
        let sent = self.send_kernel_record(who, sock, data, flags, ring_max);
        unlock(&self.d().wl.lock);
        sent
    }

    /// Whether records lie in the kernel that the receiver has not taken; asked anew only if so.
    #[inline(always)]
    fn kernel_has_records(&self) -> bool {
        let wl = &self.d().wl;
        let sent = self.d().w.k_sent.load(Ordering::Relaxed);
        if wl.krecv_seen.load(Ordering::Relaxed) == sent {
            return false;
        }
        let taken = self.d().r.krecv.load(Ordering::Acquire);
        wl.krecv_seen.store(taken, Ordering::Relaxed);
        taken < sent
    }

    /// Whether so many bytes of slots have room in a ring of `cap` bytes; `tail` is read anew only if not.
    #[inline(always)]
    fn has_room(
        &self,
        head: u64,
        cap: usize,
        asked: usize,
        ring_max: usize,
    ) -> Result<bool, Impossible> {
        let limit = cap.min(ring_max) as u64;
        let seen = &self.d().wl.tail_seen;
        let used = head.wrapping_sub(seen.load(Ordering::Relaxed));
        if used.saturating_add(asked as u64) <= limit {
            return Ok(true);
        }
        let tail = self.d().r.tail.load(Ordering::Acquire);
        seen.store(tail, Ordering::Relaxed);
        let used = head.wrapping_sub(tail);
        if used > cap as u64 {
            return Err(Impossible);
        }
        Ok(used + asked as u64 <= limit)
    }

    /// Copies a record and publishes it. False: there is no room. Under the write lock.
    #[inline(always)]
    fn push_record(&self, data: &Bufs, ring_max: usize) -> Result<bool, Stop> {
        let (w, wl) = (&self.d().w, &self.d().wl);
        let head = w.head.load(Ordering::Relaxed);
        if wl.grow.load(Ordering::Relaxed) != 0 && !self.grow(head, 0)? {
            return Ok(false);
        }
        let asked = slots(data.len());
        let word = self.d().a.ring.load(Ordering::Relaxed);
        let ring = match self.link.slab().ring(self.link.side(), word)? {
            Some(ring) => ring,
            None => match self.first_ring(asked.max(self.lossy_max(ring_max)))? {
                Some(ring) => ring,
                None => return Err(Stop::NoMemory),
            },
        };
        let ring = if asked > ring.cap() {
            self.enlarge(head, asked, ring)?
        } else {
            ring
        };
        if !self.has_room(head, ring.cap(), asked, ring_max)? {
            if ring.cap() < ring_max {
                self.was_full(word);
            }
            return Ok(false);
        }
        let length = (data.len() as u64).to_le_bytes();
        ring.write(head, &mut Bufs::out(length.as_ptr(), WORD), WORD);
        let body = head.wrapping_add(WORD as u64);
        if ring.write(body, &mut { *data }, data.len()) < data.len() {
            return Err(Stop::Fault);
        }
        add(&wl.ring_bytes, data.len());
        w.head
            .store(head.wrapping_add(asked as u64), Ordering::Release);
        Ok(true)
    }

    /// Sends a record through the kernel, behind what the ring holds. Under the write lock.
    #[cold]
    fn send_kernel_record<S: Socket>(
        &self,
        who: Who,
        sock: &S,
        data: &Bufs,
        flags: i32,
        ring_max: usize,
    ) -> Sent {
        self.warm();
        self.leave_stream();
        match self.reclaim_locked(who, sock) {
            Reclaimed::Empty | Reclaimed::All(_) => self.send_real(sock, data, flags),
            Reclaimed::Part(_) => Sent::KernelFull,
            Reclaimed::Owed | Reclaimed::Busy => self.push_record_behind(data, ring_max),
            Reclaimed::Error(error) => Sent::Error(error),
            Reclaimed::Broken => Sent::Broken,
        }
    }

    /// The reader holds its lock and the ring is not empty: the kernel may not be used, the ring may.
    fn push_record_behind(&self, data: &Bufs, ring_max: usize) -> Sent {
        if !self.may_push_behind() || slots(data.len()) > ring_max {
            return Sent::Busy;
        }
        let pushed = self.push_record(data, ring_max);
        self.pushed_behind(pushed.map(|is_done| is_done.then_some(data.len())))
    }

    /// The move of a reclaim, record by record. Under both locks.
    pub(crate) fn move_records<S: Socket>(&self, sock: &S, head: u64) -> Reclaimed {
        let (w, wl, r) = (&self.d().w, &self.d().wl, &self.d().r);
        let word = self.d().a.ring.load(Ordering::Relaxed);
        let Ok(Some(ring)) = self.link.slab().ring(self.link.side(), word) else {
            return Reclaimed::Broken;
        };
        let start = r.pos.load(Ordering::Relaxed);
        let sent = w.k_sent.load(Ordering::Relaxed);
        if head.wrapping_sub(start) > ring.cap() as u64 {
            return Reclaimed::Broken;
        }
        wl.mark_pos.store(start, Ordering::Relaxed);
        wl.mark_k.store(sent, Ordering::Relaxed);
        wl.mark.store(1, Ordering::Release);
        let (mut pos, mut records, mut bytes) = (start, 0_u64, 0);
        let (mut raised, mut ended) = (false, None);
        while pos != head {
            let Ok((length, taken)) = measure(&ring, pos, head.wrapping_sub(pos)) else {
                ended = Some(Reclaimed::Broken);
                break;
            };
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            match ring.send(pos.wrapping_add(WORD as u64), length, sock, flags) {
                Ok(_) => {
                    pos = pos.wrapping_add(taken as u64);
                    (records, bytes) = (records + 1, bytes + length);
                }
                Err(libc::EINTR) => {}
                Err(libc::EMSGSIZE) if !raised => {
                    raised = true;
                    sock.raise_send_buffer();
                }
                Err(libc::EAGAIN) => {
                    ended = Some(Reclaimed::Part(bytes));
                    break;
                }
                Err(error) => {
                    ended = Some(Reclaimed::Error(error));
                    break;
                }
            }
        }
        w.k_sent
            .store(sent.wrapping_add(records), Ordering::Release);
        r.pos.store(pos, Ordering::Relaxed);
        r.head_seen.store(pos, Ordering::Relaxed);
        r.tail.store(pos, Ordering::Release);
        wl.mark.store(0, Ordering::Release);
        wl.reclaimed
            .fetch_add(pos.wrapping_sub(start), Ordering::Relaxed);
        let less = wl.ring_bytes.load(Ordering::Relaxed);
        wl.ring_bytes
            .store(less.wrapping_sub(bytes as u64), Ordering::Relaxed);
        add(&wl.kernel_bytes, bytes);
        ended.unwrap_or(Reclaimed::All(bytes))
    }

    /// Bytes that a ring has to have at once since what does not fit is dropped.
    fn lossy_max(&self, ring_max: usize) -> usize {
        if self.link.room_there() == 0 {
            0
        } else {
            ring_max
        }
    }

    /// Whether a UDP datagram of so many bytes is to be dropped: the ring is as large as it may be, and full, and the receiver is
    /// awake and looks at it. Without a lock.
    pub fn has_to_drop(&self, length: usize, ring_max: usize) -> bool {
        let asked = slots(length) as u64;
        let sent = self.d().w.k_sent.load(Ordering::Relaxed);
        if !self.is_open() || self.d().r.krecv.load(Ordering::Acquire) < sent {
            return false;
        }
        let word = self.d().a.ring.load(Ordering::Relaxed);
        let Ok(Some(ring)) = self.link.slab().ring(self.link.side(), word) else {
            return false;
        };
        let head = self.d().w.head.load(Ordering::Relaxed);
        let used = head.wrapping_sub(self.d().r.tail.load(Ordering::Acquire));
        ring.cap() >= ring_max && used.saturating_add(asked) > ring_max as u64
    }

    /// Whether a record of so many bytes has no room, or the kernel has records, without a lock: what a blocking sender
    /// looks at while it spins. Never where it goes by the kernel anyway.
    pub fn is_full_for(&self, length: usize, ring_max: usize) -> bool {
        let asked = slots(length) as u64;
        if asked > ring_max as u64 || !self.is_open() {
            return false;
        }
        let sent = self.d().w.k_sent.load(Ordering::Relaxed);
        if self.d().r.krecv.load(Ordering::Acquire) < sent {
            return true;
        }
        let word = self.d().a.ring.load(Ordering::Relaxed);
        let Ok(Some(ring)) = self.link.slab().ring(self.link.side(), word) else {
            return false;
        };
        let head = self.d().w.head.load(Ordering::Relaxed);
        let used = head.wrapping_sub(self.d().r.tail.load(Ordering::Acquire));
        let grows = self.d().wl.grow.load(Ordering::Relaxed) != 0 || asked > ring.cap() as u64;
        if grows {
            return used != 0;
        }
        used.saturating_add(asked) > ring.cap().min(ring_max) as u64
    }
}

impl Outgoing<'_> {
    /// Whether the ring holds more than one record without bytes. The kernel (since Linux 6.10) passes over such a one where
    /// a socket is closed with unread records, and notes no reset for it.
    pub fn has_more_than_nothing(&self) -> bool {
        let bytes = self.unread_bytes();
        bytes != 0 || self.queued() > SLOT
    }

    fn unread_bytes(&self) -> u64 {
        let taken = self.d().r.ring_bytes.load(Ordering::Relaxed);
        let pushed = self.d().wl.ring_bytes.load(Ordering::Relaxed);
        pushed.wrapping_sub(taken)
    }
}

impl Incoming<'_> {
    /// Receives one record if there is one, without blocking: the kernel's before the ring's. What does not fit into
    /// `into` is dropped. `flags` are for a real receive, without `MSG_PEEK`, which [`RecvHow`] says.
    #[inline]
    pub fn recv_record<S: RecordSocket>(
        &self,
        who: Who,
        sock: &S,
        into: &Bufs,
        flags: i32,
        how: RecvHow,
    ) -> Got {
        self.outgoing().other_call(who.owner);
        if let Err(took) = self.lock(who, sock) {
            return Got::No(took);
        }
        let got = match self.look(1) {
            Look::Ring(ring, unread) => self.take_record(&ring, unread, into, how),
            look => self.kernel_record(&look, sock, into, flags, how),
        };
        unlock(&self.d().r.lock);
        self.wake_sender();
        got
    }

    /// Takes the first record of the ring. Under the read lock.
    #[inline(always)]
    fn take_record(&self, ring: &Ring, unread: usize, into: &Bufs, how: RecvHow) -> Got {
        let r = &self.d().r;
        let pos = r.pos.load(Ordering::Relaxed);
        let Ok((length, taken)) = measure(ring, pos, unread as u64) else {
            return Got::No(self.broken());
        };
        let wanted = length.min(into.len());
        let body = pos.wrapping_add(WORD as u64);
        let copied = ring.read(body, &mut { *into }, wanted);
        if !how.peek {
            let pos = pos.wrapping_add(taken as u64);
            add(&r.ring_bytes, length);
            r.pos.store(pos, Ordering::Relaxed);
            let unpublished = pos.wrapping_sub(r.tail.load(Ordering::Relaxed));
            if unpublished >= ring.cap() as u64 / 4 || pos == r.head_seen.load(Ordering::Relaxed) {
                r.tail.store(pos, Ordering::Release);
            }
        }
        if copied < wanted {
            // As the kernel does, which has taken the record when it finds that it cannot copy it.
            return Got::No(Took::Error(libc::EFAULT));
        }
        Got::Record(Record {
            copied,
            length,
            is_kernels: false,
        })
    }

    /// Everything but a record in the ring at the first look. Under the read lock.
    #[cold]
    fn kernel_record<S: RecordSocket>(
        &self,
        look: &Look,
        sock: &S,
        into: &Bufs,
        flags: i32,
        how: RecvHow,
    ) -> Got {
        let is_wild = self.d().w.wild.load(Ordering::Relaxed) != 0;
        let announced = matches!(look, Look::Kernel(1..)) && !is_wild;
        match look {
            Look::Broken => return Got::No(self.broken()),
            Look::Nothing if !how.look && !is_wild => return Got::No(Took::Empty),
            _ => {}
        }
        let peek = if how.peek { libc::MSG_PEEK } else { 0 };
        match sock.recv_record(into, flags | peek) {
            Ok(record) if record.length == 0 && !announced && sock.has_ended() => {
                self.records_ended(End::Eof, into, how)
            }
            Ok(record) => {
                if !how.peek {
                    self.took_record(record.length);
                }
                Got::Record(record)
            }
            Err(libc::EAGAIN) if self.drains_datagrams() => self.drained(into, how),
            Err(libc::EAGAIN) if announced || self.is_miscounted() => {
                if !self.count_anew(sock) {
                    return Got::No(Took::Pending);
                }
                match self.look(1) {
                    Look::Ring(ring, unread) => self.take_record(&ring, unread, into, how),
                    Look::Nothing => Got::No(Took::Empty),
                    Look::Kernel(_) => Got::No(Took::Pending),
                    Look::Broken => Got::No(self.broken()),
                }
            }
            Err(libc::EAGAIN) => Got::No(Took::Empty),
            // These say nothing of the connection.
            Err(error @ (libc::EFAULT | libc::EINTR | libc::ENOMEM | libc::ENOBUFS)) => {
                Got::No(Took::Error(error))
            }
            Err(error) => self.records_ended(End::Error(error), into, how),
        }
    }

    /// Counts a record of so many bytes that was taken from the kernel.
    pub fn took_record(&self, length: usize) {
        self.d()
            .r
            .kernel_bytes
            .fetch_add(length as u64, Ordering::Relaxed);
        self.took(1);
    }

    /// The kernel's part has ended: the ring once more. Under the read lock.
    pub(crate) fn records_ended(&self, end: End, into: &Bufs, how: RecvHow) -> Got {
        let (w, wl, r, a) = (&self.d().w, &self.d().wl, &self.d().r, &self.d().a);
        let head = w.head.load(Ordering::Acquire);
        let word = a.ring.load(Ordering::Relaxed);
        let ring = self.link.slab().ring(self.link.side().other(), word);
        let mut pos = r.pos.load(Ordering::Relaxed);
        if a.flags.load(Ordering::Relaxed) & DRAIN != 0 {
            pos = wl.mark_pos.load(Ordering::Relaxed);
            let krecv = r.krecv.load(Ordering::Relaxed);
            let mut surplus = krecv.wrapping_sub(wl.mark_k.load(Ordering::Relaxed));
            while surplus != 0 {
                let unread = head.wrapping_sub(pos);
                let there = match &ring {
                    Ok(Some(ring)) if unread <= ring.cap() as u64 => measure(ring, pos, unread),
                    _ => Err(Impossible),
                };
                let Ok((_, taken)) = there else {
                    return Got::No(self.broken());
                };
                pos = pos.wrapping_add(taken as u64);
                surplus -= 1;
            }
            r.pos.store(pos, Ordering::Relaxed);
            r.tail.store(pos, Ordering::Release);
            a.flags.fetch_and(!DRAIN, Ordering::AcqRel);
        }
        let unread = head.wrapping_sub(pos);
        if unread == 0 {
            return Got::No(end.into());
        }
        r.head_seen.store(head, Ordering::Relaxed);
        match ring {
            Ok(Some(ring)) if unread <= ring.cap() as u64 => {
                self.take_record(&ring, unread as usize, into, how)
            }
            _ => Got::No(self.broken()),
        }
    }

    /// A real call of the program's own, made while asleep, returned the end or an error: what is left in the ring
    /// comes first. [`Took::Eof`] or [`Took::Error`] if nothing is. After [`Incoming::woke`].
    pub fn recv_record_last<S: Socket>(
        &self,
        who: Who,
        sock: &S,
        into: &Bufs,
        how: RecvHow,
        end: End,
    ) -> Got {
        if let Err(took) = self.lock(who, sock) {
            return Got::No(took);
        }
        let got = self.records_ended(end, into, how);
        unlock(&self.d().r.lock);
        got
    }

    /// Whether a real receive that returned no bytes has taken a record, and not told the end: what was announced and
    /// not taken has to be there before the end.
    pub fn was_record<S: RecordSocket>(&self, sock: &S) -> bool {
        let taken = self.d().r.krecv.load(Ordering::Acquire);
        !sock.has_ended() || taken < self.d().w.k_sent.load(Ordering::Acquire)
    }

    /// Bytes of the unread records of the ring. At most the size of a ring.
    pub fn queued_in_records(&self) -> usize {
        let pushed = self.d().wl.ring_bytes.load(Ordering::Relaxed);
        let unread = pushed.wrapping_sub(self.d().r.ring_bytes.load(Ordering::Relaxed));
        unread.min((PAGE << ORDER_MAX) as u64) as usize
    }
}

//! The receive half: a guest's transmit queue.
//!
//! # Model
//! ```text
//!        released        next              seen        avail.idx
//!           |   on loan   |   known to us   |   unread    |
//!  ring  ...[#############][################][############]...
//! ```
//! As [`crate::memif::rx`]: the guest's index is read once a burst, and only if fewer chains are known than the
//! burst may take. *Staging* reads the heads and fetches their descriptors, then reads each descriptor once, checks
//! it and fetches the frame; what is known behind a burst is staged at its end. A head that is one whole readable
//! buffer becomes a place in memory at once; any other is kept as it was read and walked when its turn comes.
//!
//! The header before a frame is read only if the guest negotiated an offload. A release also interrupts the guest,
//! if it asked for that.
//!
//! # Failure modes
//! A bad chain is consumed once, given back with length 0, and becomes a frame of length 0 with its reason. An index
//! that jumps by more than the ring, or memory that was taken away, ends the queue ([`GuestMap::fail`],
//! [`More::Dead`]).

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use windlass_frame::{BURST, Claim, FRAME_MAX, HEADROOM, Heads, SNAP, Verdict};
use windlass_shm::{Foreign, Isa, Section, Tails, copy_in, snapshot};
use windlass_stats::Drop;
use windlass_sync::prefetch;

use super::features::Claims;
use super::guest_map::{Extent, GuestMap};
use super::queue::{QueueError, QueueSetup};
use super::split::{CHAIN_MAX, Desc, Fault, HEADER_BYTES, Piece, Ring};
use crate::kick;
use crate::port::{Armed, Limit, Loan, More, RxPort};

/// Descriptors that one burst looks at, the last chain's aside.
const LOOKED_MAX: usize = 1024;
/// The shortest frame: an Ethernet header.
const FRAME_MIN: u32 = 14;
/// Bytes of a cache line.
const LINE: u32 = 64;
/// Used elements on a cache line.
const USED_PER_LINE: usize = 8;

/// A head that was read.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Where the header before the frame begins, if the chain is one whole buffer; else null.
    ptr: *const u8,
    /// The head's descriptor; none if there is no descriptor of this number.
    words: Option<[u64; 2]>,
    head: u16,
}

impl Entry {
    const NONE: Entry = Entry {
        ptr: core::ptr::null(),
        words: None,
        head: 0,
    };

    /// Bytes of the frame in a whole buffer.
    #[inline(always)]
    fn frame_len(&self) -> u32 {
        self.words
            .map_or(0, |w| Desc::from_words(w).len)
            .wrapping_sub(HEADER_BYTES)
    }
}

/// The receive half of one queue.
#[derive(Debug)]
pub struct VhostRx {
    ring: Ring,
    map: Arc<GuestMap>,
    hit: Extent,
    isa: Isa,
    claims: Claims,
    next: u16,
    seen: u16,
    released: u16,
    /// Heads behind `next` that were read: `entries[index % BURST]`.
    staged: usize,
    entries: Box<[Entry; BURST]>,
    /// Heads of the loan.
    lent: Box<[u16; BURST]>,
    quiet: bool,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
}

// SAFETY: what is not `Send` by itself are addresses inside the map's mappings, which the half keeps alive.
unsafe impl Send for VhostRx {}

impl VhostRx {
    /// The half for a queue that the guest transmits on. Notifications are on until [`RxPort::disarm`].
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn new(setup: QueueSetup) -> Result<VhostRx, QueueError> {
        let ring = Ring::new(&setup)?;
        Ok(VhostRx {
            ring,
            hit: setup.map.hit(),
            map: setup.map,
            isa: Isa::detect(),
            claims: Claims::of(setup.features),
            next: setup.base,
            seen: setup.base,
            released: setup.base,
            staged: 0,
            entries: Box::new([Entry::NONE; BURST]),
            lent: Box::new([0; BURST]),
            quiet: false,
            kick: setup.kick,
            call: setup.call,
        })
    }

    /// Index of the first chain that was not given back: what `VHOST_USER_GET_VRING_BASE` answers once the queue is
    /// stopped.
    pub fn base(&self) -> u16 {
        self.released
    }

    /// Looks at the guest's index if fewer than `want` chains are known. How many are, or `None` for an index that
    /// cannot be.
    #[inline(always)]
    fn known(&mut self, want: usize) -> Option<u16> {
        let known = self.seen.wrapping_sub(self.next);
        if usize::from(known) >= want {
            return Some(known);
        }
        self.seen = self.ring.avail_index();
        let known = self.seen.wrapping_sub(self.next);
        (known <= self.ring.size()).then_some(known)
    }

    /// Reads heads and descriptors until `upto` of the `known` chains behind `next` are staged.
    #[inline(always)]
    fn stage<const CLAIMS: bool>(&mut self, upto: usize, known: u16) {
        let upto = upto.min(usize::from(known)).min(BURST);
        let from = self.staged;
        for k in from..upto {
            let slot = self.next.wrapping_add(k as u16);
            let head = self.ring.head(slot);
            prefetch::read(self.ring.desc_line(head));
            if let Some(entry) = self.entries.get_mut(usize::from(slot) % BURST) {
                entry.head = head;
            }
        }
        for k in from..upto {
            let slot = self.next.wrapping_add(k as u16);
            let Some(entry) = self.entries.get_mut(usize::from(slot) % BURST) else {
                return;
            };
            entry.ptr = core::ptr::null();
            entry.words = self.ring.words(entry.head);
            let Some(words) = entry.words else { continue };
            let desc = Desc::from_words(words);
            let len = desc.len.wrapping_sub(HEADER_BYTES);
            if !desc.is_whole::<false>() || !(FRAME_MIN..=FRAME_MAX as u32).contains(&len) {
                continue;
            }
            let Some(ptr) = self.map.find(&mut self.hit, desc.addr, desc.len) else {
                continue;
            };
            entry.ptr = ptr;
            let frame = ptr.cast_const().wrapping_add(HEADER_BYTES as usize);
            if CLAIMS {
                prefetch::read(ptr);
            }
            prefetch::read(frame);
            let last = frame.wrapping_add((len.min(SNAP as u32) - 1) as usize);
            prefetch::read(last);
            if len > LINE {
                prefetch::read(frame.wrapping_add(LINE as usize));
            }
        }
        self.staged = self.staged.max(upto);
    }

    #[inline(never)]
    fn burst<'q, const ISA: u8, const CLAIMS: bool>(
        &mut self,
        section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        let want = limit.frames.min(BURST);
        if self.staged < want {
            let Some(known) = self.known(want) else {
                return self.dead(heads);
            };
            self.stage::<CLAIMS>(want, known);
        }
        let (n, start) = (self.staged.min(want), self.next);
        let (mut bytes, mut taken, mut looked) = (0, 0, 0);
        while taken < n && bytes < limit.bytes && looked < LOOKED_MAX {
            let slot = usize::from(start).wrapping_add(taken) % BURST;
            let Some(entry) = self.entries.get(slot).copied() else {
                break;
            };
            if entry.ptr.is_null() {
                let Some((len, descriptors)) =
                    self.odd_frame::<CLAIMS>(section, heads, tails, taken, &entry)
                else {
                    break;
                };
                bytes += len;
                looked += descriptors;
            } else {
                let len = entry.frame_len();
                if len as usize > SNAP && tails.room() == 0 {
                    break;
                }
                let claim = if CLAIMS {
                    let mut header = [0; Claim::BYTES];
                    // SAFETY: the buffer was found inside the guest's memory with a header and a frame.
                    unsafe { snapshot::<ISA>(header.as_mut_ptr(), entry.ptr, Claim::BYTES) };
                    self.claims.filter(Claim::decode(&header))
                } else {
                    Claim::NONE
                };
                let frame = entry.ptr.wrapping_add(HEADER_BYTES as usize);
                admit::<ISA>(section, heads, tails, taken, (frame, len), claim);
                bytes += len as usize;
                looked += 1;
            }
            if let Some(lent) = self.lent.get_mut(taken) {
                *lent = entry.head;
            }
            taken += 1;
        }
        self.staged -= taken;
        self.next = start.wrapping_add(taken as u16);
        if self.map.is_dead() {
            return self.dead(heads);
        }
        heads.n = taken;
        self.ahead::<CLAIMS>(start, taken);
        let loan = Loan {
            upto: u64::from(self.next),
            count: taken as u32,
        };
        let left = self.seen != self.next;
        (loan, if left { More::Left } else { More::Drained })
    }

    /// Starts to fetch what the release of this burst and the next burst will need, while the rest of the visit
    /// works.
    #[inline(always)]
    fn ahead<const CLAIMS: bool>(&mut self, start: u16, taken: usize) {
        for k in (0..taken).step_by(USED_PER_LINE) {
            prefetch::write(self.ring.used_line(start.wrapping_add(k as u16)));
        }
        self.stage::<CLAIMS>(BURST, self.seen.wrapping_sub(self.next));
        let ahead = self.next.wrapping_add(self.staged as u16);
        let known = usize::from(self.seen.wrapping_sub(ahead)).min(BURST);
        for k in 0..known {
            let head = self.ring.head(ahead.wrapping_add(k as u16));
            prefetch::read(self.ring.desc_line(head));
        }
        prefetch::read(self.ring.head_line(ahead.wrapping_add(known as u16)));
        if self.quiet {
            self.ring.park_again(start, self.next);
        }
    }

    #[cold]
    fn dead(&mut self, heads: &mut Heads) -> (Loan, More) {
        self.map.fail();
        heads.n = 0;
        let loan = Loan {
            upto: u64::from(self.next),
            count: 0,
        };
        (loan, More::Dead)
    }

    /// Makes a chain that is not one whole buffer frame `i`. Returns its bytes and how many descriptors were looked
    /// at;
    /// `None` if the burst has no room for its pieces.
    #[inline(never)]
    fn odd_frame<'q, const CLAIMS: bool>(
        &mut self,
        section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        i: usize,
        entry: &Entry,
    ) -> Option<(usize, usize)> {
        let mut pieces = Pieces::new();
        let walked = match entry.words {
            Some(words) => self
                .ring
                .chain::<false>(&self.map, &mut self.hit, words, |p| pieces.push(p)),
            None => Err(Fault::Bad),
        };
        let looked = match walked {
            Ok(looked) => looked,
            Err(fault) => {
                let (reason, looked) = match fault {
                    Fault::Bad => (Drop::BadDescriptor, 1),
                    Fault::TooLong => (Drop::ChainTooLong, CHAIN_MAX),
                };
                refuse(heads, i, reason);
                return Some((0, looked));
            }
        };
        let len = pieces.total.saturating_sub(u64::from(HEADER_BYTES));
        if len < u64::from(FRAME_MIN) || len > FRAME_MAX as u64 {
            let reason = match len {
                0 => Drop::BadDescriptor,
                n if n > FRAME_MAX as u64 => Drop::Giant,
                _ => Drop::Runt,
            };
            refuse(heads, i, reason);
            return Some((0, looked));
        }
        if pieces.count > tails.room() {
            return None;
        }
        let mut header = [0; Claim::BYTES];
        pieces.take(&mut header, CLAIMS);
        let claim = if CLAIMS {
            self.claims.filter(Claim::decode(&header))
        } else {
            Claim::NONE
        };
        let have = (len as usize).min(SNAP);
        let snap = heads.snap.get_mut(i)?;
        pieces.take(snap.0.get_mut(HEADROOM..HEADROOM + have)?, true);
        heads.admit(i, len as u32, claim);
        for piece in pieces.rest() {
            // SAFETY: a checked piece of the guest's memory; this half keeps the map until the section ends.
            tails.push(i, unsafe { Foreign::at(section, piece.ptr, piece.len) });
        }
        Some((len as usize, looked))
    }

    #[inline(always)]
    fn give_back<const EVENT: bool>(&mut self, loan: &Loan) {
        let old = self.released;
        for (k, head) in self.lent.iter().take(loan.count as usize).enumerate() {
            self.ring.put_used(old.wrapping_add(k as u16), *head, 0);
        }
        let new = old.wrapping_add(loan.count as u16);
        self.ring.publish(new);
        self.released = new;
        if self.ring.wants_call::<EVENT>(old, new)
            && let Some(call) = &self.call
            && kick::kick(call.as_fd()).is_err()
        {
            self.map.fail();
        }
    }
}

/// Frame `i` is `len` bytes at `frame`.
#[inline(always)]
fn admit<'q, const ISA: u8>(
    section: &'q Section<'q>,
    heads: &mut Heads,
    tails: &mut Tails<'q>,
    i: usize,
    (frame, len): (*const u8, u32),
    claim: Claim,
) {
    let have = (len as usize).min(SNAP);
    if let Some(snap) = heads.snap.get_mut(i) {
        let to = snap.0.as_mut_ptr().wrapping_add(HEADROOM);
        // SAFETY: the frame was found inside a mapping that the section keeps, `have` is at most its length, and the
        // snapshot has SNAP bytes behind its headroom.
        unsafe { snapshot::<ISA>(to, frame, have) };
    }
    heads.admit(i, len, claim);
    if len as usize > SNAP {
        let rest = frame.wrapping_add(SNAP);
        // SAFETY: the rest of the same buffer; this half keeps the map until the section ends.
        let rest = unsafe { Foreign::at(section, rest, len - SNAP as u32) };
        tails.push(i, rest);
    }
}

/// Frame `i` is one without bytes, dropped for `reason`.
#[cold]
fn refuse(heads: &mut Heads, i: usize, reason: Drop) {
    heads.admit(i, 0, Claim::NONE);
    if let (Some(dst), Some(src)) = (heads.dst.get_mut(i), heads.src.get_mut(i)) {
        (*dst, *src) = (0, 0);
    }
    if let Some(verdict) = heads.verdict.get_mut(i) {
        *verdict = Verdict::drop(reason);
    }
}

/// The checked pieces of one chain, read from the front.
struct Pieces {
    list: [Piece; CHAIN_MAX],
    count: usize,
    total: u64,
    first: usize,
}

impl Pieces {
    #[inline(always)]
    fn new() -> Pieces {
        let none = Piece {
            ptr: core::ptr::null_mut(),
            len: 0,
        };
        Pieces {
            list: [none; CHAIN_MAX],
            count: 0,
            total: 0,
            first: 0,
        }
    }

    #[inline(always)]
    fn push(&mut self, piece: Piece) {
        if let Some(place) = self.list.get_mut(self.count) {
            *place = piece;
            self.count += 1;
            self.total += u64::from(piece.len);
        }
    }

    /// Takes as many bytes as `to` has from the front; without `read` they are passed over.
    fn take(&mut self, mut to: &mut [u8], read: bool) {
        while !to.is_empty() {
            let Some(piece) = self
                .list
                .get_mut(self.first)
                .filter(|_| self.first < self.count)
            else {
                return;
            };
            let n = to.len().min(piece.len as usize);
            let (now, later) = to.split_at_mut(n);
            if read {
                // SAFETY: `n` bytes of a checked piece, into as many of our own.
                unsafe { copy_in(now.as_mut_ptr(), piece.ptr, n) };
            }
            to = later;
            piece.ptr = piece.ptr.wrapping_add(n);
            piece.len -= n as u32;
            if piece.len == 0 {
                self.first += 1;
            }
        }
    }

    /// What was not taken.
    fn rest(&self) -> impl Iterator<Item = &Piece> {
        self.list.iter().take(self.count).skip(self.first)
    }
}

impl RxPort for VhostRx {
    fn rx_burst<'q>(
        &mut self,
        section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        const WIDE: u8 = Isa::Avx512 as u8;
        const NARROW: u8 = Isa::Sse2 as u8;
        match (self.isa == Isa::Avx512, self.claims.any()) {
            (true, false) => self.burst::<WIDE, false>(section, heads, tails, limit),
            (true, true) => self.burst::<WIDE, true>(section, heads, tails, limit),
            (false, false) => self.burst::<NARROW, false>(section, heads, tails, limit),
            (false, true) => self.burst::<NARROW, true>(section, heads, tails, limit),
        }
    }

    fn release(&mut self, _section: &Section<'_>, loan: Loan) {
        if loan.count == 0 {
            return;
        }
        if self.ring.event_idx() {
            self.give_back::<true>(&loan);
        } else {
            self.give_back::<false>(&loan);
        }
    }

    fn arm(&mut self, _section: &Section<'_>) -> Armed {
        self.quiet = false;
        if self.ring.arm(self.next) {
            self.quiet = true;
            self.ring.disarm(self.next);
            return Armed::Work;
        }
        Armed::Yes
    }

    fn disarm(&mut self, _section: &Section<'_>) {
        self.quiet = true;
        self.ring.disarm(self.next);
    }

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.kick.as_ref().map(AsFd::as_fd)
    }

    fn polls_memory(&self) -> bool {
        true
    }
}

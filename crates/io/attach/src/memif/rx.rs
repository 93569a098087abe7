//! The receive half of one memif ring.
//!
//! # Model
//! ```text
//!        released        next              seen         theirs
//!           |   on loan   |   known to us   |   unread    |
//!  ring  ...[#############][################][############]...
//! ```
//! A burst looks at the peer's index only when fewer frames are known than it may take: while we are behind the peer,
//! most bursts touch no line that it writes besides descriptors and frames. A frame is taken in two steps. *Staging* reads
//! its descriptor once, checks the copy and starts to fetch the bytes; the burst then copies the first of them and
//! describes the frame. The frames that are known behind a burst are staged at its end: they come from the other core
//! while the rest of the visit works. The first descriptor that is anything but one whole, valid frame ends the staging;
//! `MemifRx::odd_frames` takes frame by frame from there on, chains included.
//!
//! As a server we give descriptors back by moving the tail. As a client the memory is ours: we offer each buffer anew
//! from what we know of it ([`Buffers`]), whatever the peer made of the descriptor, and move the head.
//!
//! A client that finds the ring towards us full wishes for room ([`super::layout::WISH_AT`]). The wish is read with the index, and
//! answered behind the next release, behind a burst that found nothing, or when we fall asleep: behind the fence there, so that
//! either we see the wish or the client sees the index that we moved before.
//!
//! # Failure modes
//! A bad descriptor is consumed and becomes a frame of length 0 with its reason. An index that jumps by more than the ring, or
//! memory that was taken away, ends the connection ([`View::fail`], [`More::Dead`]).

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use core::sync::atomic::{Ordering, fence};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use windlass_frame::{BURST, Claim, FRAME_MAX, HEADROOM, Heads, SNAP, Verdict};
use windlass_shm::{Foreign, Isa, Section, Tails, copy_in, snapshot};
use windlass_stats::Drop;
use windlass_sync::prefetch;

use super::layout::{DESC_FLAG_NEXT, RING_FLAG_ROOM};
use super::offload::{self, Offloads};
use super::view::{Buffers, Ring, View};
use crate::kick;
use crate::port::{Armed, Limit, Loan, More, RxPort};

/// Descriptors that one frame may have.
pub const CHAIN_MAX: usize = 64;
/// Descriptors that one burst looks at.
const LOOKED_MAX: usize = 1024;
/// The shortest frame: an Ethernet header.
const FRAME_MIN: u32 = 14;
/// Descriptors on a cache line.
pub(super) const PER_LINE: usize = 4;
/// How long a notification may have been missed by a peer without a fence between its index and its look at our flags
/// (DPDK, VPP), in microseconds.
const RECHECK_US: u32 = 20;

/// One checked piece of a frame.
#[derive(Clone, Copy, Debug)]
struct Piece {
    ptr: *const u8,
    len: u32,
    /// The descriptor's metadata word, 0 where none was agreed on.
    metadata: u32,
}

impl Piece {
    const NONE: Piece = Piece {
        ptr: core::ptr::null(),
        len: 0,
        metadata: 0,
    };

    /// What is claimed of the frame that begins with this piece.
    #[inline(always)]
    fn claim(&self, agreed: Offloads) -> Claim {
        match self.metadata {
            0 => Claim::NONE,
            word => offload::of_client(word, agreed),
        }
    }
}

/// The receive half of one ring.
#[derive(Debug)]
pub struct MemifRx {
    ring: Ring,
    view: Arc<View>,
    buffers: Option<Buffers>,
    isa: Isa,
    next: u16,
    seen: u16,
    released: u16,
    /// Frames behind `next` whose descriptors were read: `pieces[slot % BURST]`.
    staged: usize,
    pieces: Box<[Piece; BURST]>,
    /// The descriptor behind the staged ones, if it is no whole frame.
    odd: Option<[u64; 2]>,
    /// The peer had no free slot when its index was looked at last.
    was_full: bool,
    wake: Option<OwnedFd>,
    /// The client's last wish for room that we saw, and the last that we answered.
    wish: u16,
    answered: u16,
    /// Where wishes are answered: the eventfd of a ring back, if we are the server.
    answer: Option<Arc<OwnedFd>>,
    /// What our flags say besides.
    others: u16,
    /// What the client has asked for.
    offloads: Offloads,
    /// All ones where the metadata word has an agreed use, else 0.
    agreed: u32,
}

// SAFETY: what is not `Send` by itself are addresses inside the view's mappings, which the half keeps alive.
unsafe impl Send for MemifRx {}

impl MemifRx {
    /// The half of a new connection. With `buffers` we are the client, and the server has them all. Otherwise the client's wishes for room are
    /// answered at `answer`, and `offloads` is what it asks for.
    pub(super) fn new(
        view: Arc<View>,
        ring: Ring,
        buffers: Option<Buffers>,
        wake: Option<OwnedFd>,
        answer: Option<Arc<OwnedFd>>,
        offloads: Offloads,
    ) -> MemifRx {
        let answers = if answer.is_some() { RING_FLAG_ROOM } else { 0 };
        let half = MemifRx {
            ring,
            view,
            buffers,
            isa: Isa::detect(),
            next: 0,
            seen: 0,
            released: 0,
            staged: 0,
            pieces: Box::new([Piece::NONE; BURST]),
            odd: None,
            was_full: false,
            wake,
            wish: 0,
            answered: 0,
            answer,
            others: answers | offloads.flags(),
            offloads,
            agreed: if offloads == Offloads::None {
                0
            } else {
                u32::MAX
            },
        };
        if half.buffers.is_none() {
            half.mask(false);
        }
        half
    }

    /// Says whether notifications are unwanted.
    #[inline(always)]
    fn mask(&self, masked: bool) {
        self.ring.mask(masked, self.others);
    }

    /// Answers the wish for room that was seen last, if it was not answered yet and this is the time.
    #[inline(always)]
    fn answer_wish_if(&mut self, is_time: bool) {
        if is_time && self.wish != self.answered {
            self.signal_room();
        }
    }

    #[cold]
    fn signal_room(&mut self) {
        self.answered = self.wish;
        if let Some(fd) = &self.answer
            && self.wish != 0
            && kick::kick(fd.as_fd()).is_err()
        {
            self.view.fail();
        }
    }

    /// Offers the buffer of `slot` to the server.
    #[inline(always)]
    fn offer(&self, buffers: &Buffers, slot: u16) {
        let masked = slot & self.ring.size().wrapping_sub(1);
        self.ring.set_low(
            slot,
            u64::from(buffers.region) << 16 | u64::from(buffers.room) << 32,
        );
        self.ring.set_high(slot, u64::from(buffers.offset(masked)));
    }

    /// The bytes that a descriptor names, if they are ours to read.
    #[inline(always)]
    fn piece<const CLIENT: bool>(&self, slot: u16, low: u64, high: u64) -> Option<Piece> {
        let len = (low >> 32) as u32;
        let ptr = match &self.buffers {
            Some(buffers) if CLIENT => {
                let masked = slot & self.ring.size().wrapping_sub(1);
                if len > buffers.room {
                    return None;
                }
                self.view
                    .find(buffers.region, buffers.offset(masked), len)?
            }
            _ => self.view.find((low >> 16) as u16, high as u32, len)?,
        };
        let metadata = (high >> 32) as u32 & self.agreed;
        Some(Piece { ptr, len, metadata })
    }

    /// Looks at the peer's index if fewer than `want` descriptors are known. How many are, or `None` for an index that
    /// cannot be.
    #[inline(always)]
    fn known(&mut self, want: usize) -> Option<u16> {
        let known = self.seen.wrapping_sub(self.next);
        if usize::from(known) >= want {
            return Some(known);
        }
        self.seen = self.ring.theirs();
        // On the same line.
        self.wish = self.ring.wish();
        let known = self.seen.wrapping_sub(self.next);
        self.was_full = self.seen.wrapping_sub(self.released) == self.ring.size();
        if known > self.ring.size() {
            None
        } else {
            Some(known)
        }
    }

    /// Reads and checks descriptors until `upto` frames are staged or one is odd, and starts to fetch the frames. `known`
    /// descriptors lie behind `next`.
    #[inline(always)]
    fn stage<const CLIENT: bool>(&mut self, upto: usize, known: u16) {
        let upto = upto.min(usize::from(known));
        if self.odd.is_some() {
            return;
        }
        let (from, start) = (self.staged, self.next);
        let mut staged = from;
        while staged < upto {
            let slot = start.wrapping_add(staged as u16);
            let [low, high] = self.ring.words(slot);
            let piece = match self.piece::<CLIENT>(slot, low, high) {
                Some(piece) if is_whole(low, piece.len) => piece,
                _ => {
                    self.odd = Some([low, high]);
                    break;
                }
            };
            prefetch::read(piece.ptr);
            if piece.len > 64 {
                prefetch::read(piece.ptr.wrapping_add(64));
            }
            let Some(place) = self.pieces.get_mut(usize::from(slot) % BURST) else {
                break;
            };
            *place = piece;
            staged += 1;
        }
        self.staged = staged;
    }

    #[inline(never)]
    fn burst<'q, const ISA: u8, const CLIENT: bool>(
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
            self.fetch(self.next.wrapping_add(self.staged as u16), known);
            self.stage::<CLIENT>(want, known);
        }
        let n = self.staged.min(want);
        let start = usize::from(self.next);
        let (mut bytes, mut taken, mut full) = (0, 0, false);
        while taken < n && !full {
            let Some(piece) = self.pieces.get(start.wrapping_add(taken) % BURST) else {
                break;
            };
            if piece.len as usize > SNAP && tails.room() == 0 {
                full = true;
                break;
            }
            bytes += piece.len as usize;
            let claim = piece.claim(self.offloads);
            admit::<ISA>(section, heads, tails, taken, (*piece, claim));
            taken += 1;
            full = bytes >= limit.bytes;
        }
        self.staged -= taken;
        self.next = self.next.wrapping_add(taken as u16);
        if self.staged == 0
            && taken < want
            && !full
            && let Some(first) = self.odd.take()
        {
            let limit = Limit {
                frames: want,
                bytes: limit.bytes.saturating_sub(bytes),
            };
            let at = (taken, self.next);
            (taken, self.next) = self.odd_frames::<CLIENT>(section, heads, tails, limit, at, first);
        }
        if self.view.is_dead() {
            return self.dead(heads);
        }
        heads.n = taken;
        self.answer_wish_if(taken == 0);
        // What the next burst will need is fetched while the rest of this visit works.
        let known = self.seen.wrapping_sub(self.next);
        self.stage::<CLIENT>(BURST, known);
        let ahead = self.next.wrapping_add(self.staged as u16);
        self.fetch(ahead, self.seen.wrapping_sub(ahead));
        let loan = Loan {
            upto: u64::from(self.next),
            count: taken as u32,
        };
        (
            loan,
            if known != 0 {
                More::Left
            } else {
                More::Drained
            },
        )
    }

    /// Starts to fetch the lines of up to a burst of `count` descriptors.
    #[inline(always)]
    fn fetch(&self, from: u16, count: u16) {
        for k in (0..usize::from(count).min(BURST)).step_by(PER_LINE) {
            prefetch::read(self.ring.line(from.wrapping_add(k as u16)));
        }
    }

    #[cold]
    fn dead(&mut self, heads: &mut Heads) -> (Loan, More) {
        self.view.fail();
        heads.n = 0;
        (
            Loan {
                upto: u64::from(self.next),
                count: 0,
            },
            More::Dead,
        )
    }

    /// Takes frames one by one, from the one whose first descriptor was read as `first`. `at` is how many frames there
    /// are and where the ring stands; returns the same.
    #[cold]
    #[inline(never)]
    fn odd_frames<'q, const CLIENT: bool>(
        &self,
        section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        limit: Limit,
        at: (usize, u16),
        first: [u64; 2],
    ) -> (usize, u16) {
        let (mut i, mut slot) = at;
        let (mut words, mut bytes, mut looked) = (first, 0, 0);
        loop {
            let mut chain = Chain::default();
            self.walk::<CLIENT>(&mut chain, slot, words);
            if chain.count > tails.room() {
                return (i, slot);
            }
            bytes += chain.total as usize;
            looked += chain.descriptors;
            chain.deliver(section, heads, tails, i, self.offloads);
            i += 1;
            slot = slot.wrapping_add(chain.descriptors as u16);
            let over = i >= limit.frames || bytes >= limit.bytes || looked >= LOOKED_MAX;
            if over || slot == self.seen {
                return (i, slot);
            }
            words = self.ring.words(slot);
        }
    }

    /// Reads the descriptors of one frame, each once. A chain that is too long is consumed to its end.
    fn walk<const CLIENT: bool>(&self, chain: &mut Chain, first: u16, words: [u64; 2]) {
        let (mut slot, mut words) = (first, words);
        loop {
            let [low, high] = words;
            match self.piece::<CLIENT>(slot, low, high) {
                Some(piece) => chain.add(piece),
                None => chain.fault(Drop::BadDescriptor),
            }
            chain.descriptors += 1;
            slot = slot.wrapping_add(1);
            if low & u64::from(DESC_FLAG_NEXT) == 0 {
                return;
            }
            if slot == self.seen || chain.descriptors >= LOOKED_MAX {
                // A peer publishes whole frames only.
                chain.fault(Drop::BadDescriptor);
                return;
            }
            words = self.ring.words(slot);
        }
    }
}

/// Whether a descriptor is a whole frame of a length that passes.
#[inline(always)]
fn is_whole(low: u64, len: u32) -> bool {
    low & u64::from(DESC_FLAG_NEXT) == 0 && (FRAME_MIN..=FRAME_MAX as u32).contains(&len)
}

/// Frame `i` is the one piece `piece`.
#[inline(always)]
fn admit<'q, const ISA: u8>(
    section: &'q Section<'q>,
    heads: &mut Heads,
    tails: &mut Tails<'q>,
    i: usize,
    (piece, claim): (Piece, Claim),
) {
    let have = (piece.len as usize).min(SNAP);
    if let Some(snap) = heads.snap.get_mut(i) {
        let to = snap.0.as_mut_ptr().wrapping_add(HEADROOM);
        // SAFETY: `piece` was found inside a mapping that the section keeps, `have` is at most its length, and the
        // snapshot has SNAP bytes behind its headroom.
        unsafe { snapshot::<ISA>(to, piece.ptr, have) };
    }
    heads.admit(i, piece.len, claim);
    if piece.len as usize > SNAP {
        let rest = piece.ptr.wrapping_add(SNAP);
        // SAFETY: the rest of the same piece; the view is kept until the section ends, since this half is.
        let rest = unsafe { Foreign::at(section, rest, piece.len - SNAP as u32) };
        tails.push(i, rest);
    }
}

/// One frame in several descriptors, or a bad one.
struct Chain {
    pieces: [Piece; CHAIN_MAX],
    count: usize,
    descriptors: usize,
    total: u64,
    fault: Option<Drop>,
}

impl Default for Chain {
    fn default() -> Self {
        Chain {
            pieces: [Piece::NONE; CHAIN_MAX],
            count: 0,
            descriptors: 0,
            total: 0,
            fault: None,
        }
    }
}

impl Chain {
    fn fault(&mut self, reason: Drop) {
        self.fault.get_or_insert(reason);
        self.count = 0;
        self.total = 0;
    }

    fn add(&mut self, piece: Piece) {
        if self.fault.is_some() {
            return;
        }
        match self.pieces.get_mut(self.count) {
            Some(place) => *place = piece,
            None => return self.fault(Drop::ChainTooLong),
        }
        self.count += 1;
        self.total += u64::from(piece.len);
    }

    /// Makes this frame `i`: with its bytes, or with length 0 and the reason.
    fn deliver<'q>(
        &self,
        section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        i: usize,
        offloads: Offloads,
    ) {
        let reason = match (self.fault, self.total) {
            (Some(reason), _) => Some(reason),
            (None, n) if n < u64::from(FRAME_MIN) => Some(Drop::Runt),
            (None, n) if n > FRAME_MAX as u64 => Some(Drop::Giant),
            _ => None,
        };
        if let Some(reason) = reason {
            heads.admit(i, 0, Claim::NONE);
            let k = i % BURST;
            if let (Some(dst), Some(src)) = (heads.dst.get_mut(k), heads.src.get_mut(k)) {
                (*dst, *src) = (0, 0);
            }
            if let Some(verdict) = heads.verdict.get_mut(k) {
                *verdict = Verdict::drop(reason);
            }
            return;
        }
        let mut have = 0;
        for piece in self.pieces.iter().take(self.count) {
            let n = (piece.len as usize).min(SNAP - have);
            if let Some(snap) = heads.snap.get_mut(i) {
                let to = snap.0.as_mut_ptr().wrapping_add(HEADROOM + have);
                // SAFETY: `n` bytes of a checked piece, into the SNAP bytes behind the headroom, of which `have` are used.
                unsafe { copy_in(to, piece.ptr, n) };
            }
            have += n;
            // SAFETY: the rest of the same piece (see `admit`).
            let rest =
                unsafe { Foreign::at(section, piece.ptr.wrapping_add(n), piece.len - n as u32) };
            tails.push(i, rest);
        }
        let first = self.pieces.first();
        let claim = first.map_or(Claim::NONE, |first| first.claim(offloads));
        heads.admit(i, self.total as u32, claim);
    }
}

impl RxPort for MemifRx {
    fn rx_burst<'q>(
        &mut self,
        section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        const WIDE: u8 = Isa::Avx512 as u8;
        const NARROW: u8 = Isa::Base as u8;
        match (self.isa == Isa::Avx512, self.buffers.is_some()) {
            (true, false) => self.burst::<WIDE, false>(section, heads, tails, limit),
            (true, true) => self.burst::<WIDE, true>(section, heads, tails, limit),
            (false, false) => self.burst::<NARROW, false>(section, heads, tails, limit),
            (false, true) => self.burst::<NARROW, true>(section, heads, tails, limit),
        }
    }

    fn release(&mut self, _section: &Section<'_>, loan: Loan) {
        let upto = loan.upto as u16;
        if upto == self.released {
            return;
        }
        match &self.buffers {
            None => {
                self.ring.publish(upto);
                self.answer_wish_if(true);
            }
            Some(buffers) => {
                let mut slot = self.released;
                while slot != upto {
                    self.offer(buffers, slot);
                    slot = slot.wrapping_add(1);
                }
                self.ring.publish(upto.wrapping_add(self.ring.size()));
            }
        }
        self.released = upto;
        if self.was_full {
            self.was_full = false;
            self.view.note_flow_control();
        }
    }

    fn arm(&mut self, _section: &Section<'_>) -> Armed {
        self.mask(false);
        fence(Ordering::SeqCst);
        if self.ring.theirs() != self.next {
            self.mask(true);
            return Armed::Work;
        }
        self.wish = self.ring.wish();
        self.answer_wish_if(true);
        Armed::Unsure(RECHECK_US)
    }

    fn disarm(&mut self, _section: &Section<'_>) {
        self.mask(true);
    }

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(AsFd::as_fd)
    }

    fn polls_memory(&self) -> bool {
        true
    }
}

//! The receive half: a guest's transmit queue.
//!
//! # Model
//! ```text
//!        released        next              ahead
//!           |   on loan   |     staged      |   unread
//!  ring  ...[#############][################][############]...
//! ```
//! As [`crate::memif::rx`]: the guest is asked once a burst, and only if fewer chains are staged than the burst may
//! take. *Staging* reads the heads of chains, checks each and fetches its frame; what is known behind a burst is
//! staged at its end. A head that is one whole readable buffer becomes a place in memory at once; any other is kept
//! as it was read and walked when its turn comes. Where only that walk tells where the next chain begins (packed
//! rings), staging waits for it.
//!
//! The header before a frame is read only if the guest negotiated an offload. A release also interrupts the guest,
//! if it asked for that. A guest that wants its chains in order gets one used element for all of a burst.
//!
//! # Failure modes
//! A bad chain is consumed once, given back with length 0, and becomes a frame of length 0 with its reason. An index
//! that jumps by more than the ring, a packed chain without an end, or memory that was taken away, ends the queue
//! ([`GuestMap::fail`], [`More::Dead`]).

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use core::sync::atomic::{AtomicU16, Ordering};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use windlass_frame::{BURST, Claim, FRAME_MAX, HEADROOM, Heads, SNAP, Verdict};
use windlass_shm::{Foreign, Isa, Section, Tails, snapshot};
use windlass_stats::Drop;
use windlass_sync::prefetch;

use super::area::Paged;
use super::features::{Claims, IN_ORDER};
use super::guest_map::{Extent, GuestMap, Miss};
use super::packed::{Packed, PackedOver};
use super::pieces::Gather;
use super::queue::{Base, QueueError, QueueSetup};
use super::ring::{DESC_NEXT, Fault, HEADER_BYTES, Head, Ring, look_ahead};
use super::ring_progress::Mark;
use super::split::{Split, SplitOver};
use crate::kick;
use crate::port::{Armed, Limit, Loan, More, RxPort};

/// Descriptors that one burst looks at, the last chain's aside: as many as a burst of frames in four pieces has. A guest of
/// long chains that yield nothing is not to cost more than one of short ones that are frames.
const LOOKED_MAX: usize = 4 * BURST;
/// The shortest frame: an Ethernet header.
const FRAME_MIN: u32 = 14;
/// Bytes of a cache line.
const LINE: u32 = 64;

/// A chain whose head was read.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Where the header before the frame begins, if the chain is one whole buffer; else null.
    ptr: *const u8,
    head: Head,
}

/// A chain of the loan.
#[derive(Clone, Copy, Debug, Default)]
struct Lent {
    id: u16,
    places: u16,
}

/// The receive half of one queue.
#[derive(Debug)]
pub struct VhostRx(Half);

#[derive(Debug)]
enum Half {
    Split(Queue<Split>),
    Packed(Queue<Packed>),
    SplitBehind(Queue<SplitOver<Paged>>),
    PackedBehind(Queue<PackedOver<Paged>>),
}

/// Does the same with a queue of either layout.
macro_rules! either {
    ($half:expr, $queue:ident => $do:expr) => {
        match $half {
            Half::Split($queue) => $do,
            Half::Packed($queue) => $do,
            Half::SplitBehind($queue) => $do,
            Half::PackedBehind($queue) => $do,
        }
    };
}

#[derive(Debug)]
struct Queue<R> {
    ring: R,
    map: Arc<GuestMap>,
    hit: Extent,
    isa: Isa,
    claims: Claims,
    in_order: bool,
    released: u16,
    next: u16,
    ahead: u16,
    /// What is known of the guest's index.
    seen: AtomicU16,
    /// Chains between `next` and `ahead`: the entries from `first` on, in a circle.
    staged: usize,
    first: usize,
    /// The last of them must be walked before the next can be found.
    blocked: bool,
    entries: Box<[Entry; BURST]>,
    lent: Box<[Lent; BURST]>,
    quiet: bool,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
}

// SAFETY: what is not `Send` by itself are addresses inside the map's mappings, which the half keeps alive.
unsafe impl<R: Ring> Send for Queue<R> {}

impl VhostRx {
    /// The half for a queue that the guest transmits on. Notifications are on until [`RxPort::disarm`].
    ///
    /// # Errors
    /// [`QueueError`].
    pub fn new(setup: QueueSetup) -> Result<VhostRx, QueueError> {
        Ok(VhostRx(
            match (setup.is_packed(), setup.map.is_translated()) {
                (false, false) => Half::Split(Queue::new(setup)?),
                (true, false) => Half::Packed(Queue::new(setup)?),
                (false, true) => Half::SplitBehind(Queue::new(setup)?),
                (true, true) => Half::PackedBehind(Queue::new(setup)?),
            },
        ))
    }

    /// The first chain that was not given back: what `VHOST_USER_GET_VRING_BASE` answers once the queue is stopped.
    pub fn base(&self) -> Base {
        either!(&self.0, queue => queue.ring.base(queue.released))
    }

    /// Has the guest interrupted by this descriptor.
    pub(super) fn set_call(&mut self, call: OwnedFd) {
        either!(&mut self.0, queue => queue.call = Some(call));
    }

    /// Keeps in `mark` where the ring stands.
    pub(super) fn keep(&mut self, mark: Mark) {
        either!(&mut self.0, queue => queue.ring.keep(mark));
    }

    /// The memory that the half uses.
    pub(super) fn map(&self) -> &GuestMap {
        either!(&self.0, queue => &queue.map)
    }

    /// Goes on with the map of `setup`, which is otherwise the one that the half was made of. Only while nothing is on
    /// loan; after an error only [`VhostRx::base`] may be asked until it succeeds.
    pub(super) fn rebind(&mut self, setup: &QueueSetup) -> Result<(), QueueError> {
        either!(&mut self.0, queue => queue.rebind(setup))
    }

    /// Calls `each` for what is not translated of the first `most` chains that are waiting.
    pub(super) fn look_ahead(&self, most: u16, each: impl FnMut(Miss)) {
        either!(&self.0, queue => queue.look_ahead(most, each));
    }
}

/// How much of a burst was taken.
#[derive(Clone, Copy, Default)]
struct Taken {
    frames: usize,
    bytes: usize,
    looked: usize,
}

impl Taken {
    #[inline(always)]
    fn is_full(&self, limit: Limit) -> bool {
        self.bytes >= limit.bytes || self.looked >= LOOKED_MAX
    }
}

/// What became of a chain that is not one whole buffer.
enum Odd {
    Frame,
    /// The burst has no room for its pieces, or their translation is lacking.
    NoRoom,
    /// The queue ends.
    Dead,
}

impl<R: Ring> Queue<R> {
    fn new(setup: QueueSetup) -> Result<Queue<R>, QueueError> {
        let ring = R::new(&setup)?;
        let start = ring.place(setup.base);
        let none = Entry {
            ptr: core::ptr::null(),
            head: Head::NONE,
        };
        Ok(Queue {
            ring,
            hit: setup.map.hit(),
            map: setup.map,
            isa: Isa::detect(),
            claims: Claims::of(setup.features),
            in_order: setup.features & IN_ORDER != 0,
            released: start,
            next: start,
            ahead: start,
            seen: AtomicU16::new(start),
            staged: 0,
            first: 0,
            blocked: false,
            entries: Box::new([none; BURST]),
            lent: Box::new([Lent::default(); BURST]),
            quiet: false,
            kick: setup.kick,
            call: setup.call,
        })
    }

    /// Goes on with other translations and the ring found anew. What was staged is read again.
    fn rebind(&mut self, setup: &QueueSetup) -> Result<(), QueueError> {
        self.ring = R::new(setup)?;
        self.map = setup.map.clone();
        self.hit = self.map.hit();
        (self.next, self.ahead) = (self.released, self.released);
        self.seen.store(self.released, Ordering::Relaxed);
        (self.staged, self.first, self.blocked) = (0, 0, false);
        Ok(())
    }

    /// Notes what is not translated of the first `most` chains that are waiting, as far as their heads tell.
    fn look_ahead(&self, most: u16, each: impl FnMut(Miss)) {
        look_ahead(&self.ring, &self.map, self.next, most, each);
    }

    /// Stages until `upto` chains are. None for an index that cannot be.
    #[inline(always)]
    fn stage<const CLAIMS: bool, const FRESH: bool>(&mut self, upto: usize) -> Option<()> {
        if R::WALKED && self.blocked {
            return Some(());
        }
        let held = self.ring.distance(self.released, self.ahead);
        let room = self.ring.size().wrapping_sub(held);
        let want = room.min(upto.min(BURST).saturating_sub(self.staged) as u16);
        let Queue {
            ring,
            seen,
            map,
            hit,
            entries,
            ..
        } = self;
        let (at, mut staged, mut blocked) = (self.ahead, self.staged, false);
        let (first, before) = (self.first, staged);
        let read = ring.heads::<FRESH>(seen, at, want, |head| {
            let ptr = whole_frame::<R, CLAIMS>(map, hit, &head);
            blocked = R::WALKED && R::desc(head.words).flags & DESC_NEXT != 0;
            if let Some(entry) = entries.get_mut(first.wrapping_add(staged) % BURST) {
                *entry = Entry { ptr, head };
            }
            staged += 1;
            true
        });
        self.staged = staged;
        self.blocked = blocked;
        let places = (staged - before - usize::from(blocked)) as u16;
        self.ahead = self.ring.advance(at, places);
        read
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
        let mut taken = Taken::default();
        let mut ended_early = true;
        loop {
            let missing = want - taken.frames;
            if self.staged < missing && self.stage::<CLAIMS, true>(missing).is_none() {
                return self.dead(heads);
            }
            let (upto, walks) = (want.min(taken.frames + self.staged), self.blocked);
            let run = self.run::<ISA, CLAIMS>(section, heads, tails, (limit, upto), &mut taken);
            if let Odd::Dead = run {
                return self.dead(heads);
            }
            if taken.frames < upto || taken.frames == want {
                break;
            }
            // All that was staged is taken. There can be more behind a chain that had to be walked.
            if !R::WALKED || !walks {
                ended_early = false;
                break;
            }
        }
        if self.map.is_dead() {
            return self.dead(heads);
        }
        heads.n = taken.frames;
        self.fetch_ahead::<CLAIMS>();
        let loan = Loan {
            upto: u64::from(self.next),
            count: taken.frames as u32,
        };
        let known = self.staged > 0 || self.ring.is_known(&self.seen, self.ahead);
        let left = known || (R::WALKED && ended_early);
        (loan, if left { More::Left } else { More::Drained })
    }

    /// Takes staged chains until the burst has `upto` frames or its budget is spent.
    #[inline(always)]
    fn run<'q, const ISA: u8, const CLAIMS: bool>(
        &mut self,
        section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        (limit, upto): (Limit, usize),
        taken: &mut Taken,
    ) -> Odd {
        let mut result = Odd::Frame;
        let (from, mut next) = (taken.frames, self.next);
        while taken.frames < upto && !taken.is_full(limit) {
            let i = taken.frames;
            let slot = self.first.wrapping_add(i - from) % BURST;
            let Some(entry) = self.entries.get(slot).copied() else {
                break;
            };
            let mut lent = Lent {
                id: entry.head.id,
                places: 1,
            };
            if entry.ptr.is_null() {
                let head = (next, &entry.head);
                result =
                    self.odd_frame::<CLAIMS>(section, heads, (tails, i), head, &mut lent, taken);
                if !matches!(result, Odd::Frame) {
                    break;
                }
            } else {
                let len = entry.head.len().wrapping_sub(HEADER_BYTES);
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
                admit::<ISA>(section, heads, tails, i, (frame, len), claim);
                taken.bytes += len as usize;
                taken.looked += 1;
            }
            next = self.ring.advance(next, lent.places);
            if let Some(place) = self.lent.get_mut(i) {
                *place = lent;
            }
            taken.frames += 1;
        }
        for i in from..taken.frames {
            // A refused chain has no addresses.
            if heads.meta.get(i).is_some_and(|meta| meta.len != 0) {
                heads.load_addresses(i);
            }
        }
        let count = taken.frames - from;
        self.first = self.first.wrapping_add(count) % BURST;
        self.staged -= count;
        self.next = next;
        if R::WALKED && self.blocked && self.staged == 0 {
            (self.blocked, self.ahead) = (false, next);
        }
        result
    }

    /// Starts to fetch what the release of this burst and the next burst will need, while the rest of the visit
    /// works.
    #[inline(always)]
    fn fetch_ahead<const CLAIMS: bool>(&mut self) {
        let count = self.ring.distance(self.released, self.next);
        let count = count.min(if self.in_order { 1 } else { BURST as u16 });
        self.ring.fetch_used(self.released, count);
        // Only what is known anyway: that cannot be an index that may not be.
        let _ = self.stage::<CLAIMS, false>(BURST);
        self.ring
            .fetch_heads::<false>(&self.seen, self.ahead, BURST as u16);
        if self.quiet {
            self.ring.park_again(self.released, self.next);
        }
    }

    #[cold]
    fn dead(&mut self, heads: &mut Heads) -> (Loan, More) {
        self.map.fail();
        heads.n = 0;
        let loan = Loan {
            upto: u64::from(self.released),
            count: 0,
        };
        (loan, More::Dead)
    }

    /// Makes a chain that is not one whole buffer frame `i`.
    #[inline(never)]
    fn odd_frame<'q, const CLAIMS: bool>(
        &mut self,
        section: &'q Section<'q>,
        heads: &mut Heads,
        (tails, i): (&mut Tails<'q>, usize),
        (at, head): (u16, &Head),
        lent: &mut Lent,
        taken: &mut Taken,
    ) -> Odd {
        let mut pieces = Gather::new();
        let most = self.ring.size() - self.ring.distance(self.released, at);
        let memory = (&*self.map, &mut self.hit);
        let each = |piece| pieces.push(piece);
        let walk = self.ring.chain::<false>(memory, at, head, most, each);
        let (count, total) = pieces.size();
        let len = total.saturating_sub(u64::from(HEADER_BYTES));
        let bad = match walk.result {
            Err(Fault::Endless) => return Odd::Dead,
            // The chain stays where it is, and so does what is behind it.
            Err(Fault::Missing) => return Odd::NoRoom,
            Err(Fault::Bad) => Some(Drop::BadDescriptor),
            Err(Fault::TooLong) => Some(Drop::ChainTooLong),
            Ok(()) if pieces.is_over() => Some(Drop::ChainTooLong),
            Ok(()) if len == 0 => Some(Drop::BadDescriptor),
            Ok(()) if len > FRAME_MAX as u64 => Some(Drop::Giant),
            Ok(()) if len < u64::from(FRAME_MIN) => Some(Drop::Runt),
            Ok(()) => None,
        };
        if bad.is_none() && count > tails.room() {
            return Odd::NoRoom;
        }
        (lent.id, lent.places) = (walk.id, walk.places);
        taken.looked += walk.looked;
        if let Some(reason) = bad {
            refuse(heads, i, reason);
            return Odd::Frame;
        }
        taken.bytes += len as usize;
        let mut header = [0; Claim::BYTES];
        pieces.take(&mut header, CLAIMS);
        let claim = if CLAIMS {
            self.claims.filter(Claim::decode(&header))
        } else {
            Claim::NONE
        };
        let have = (len as usize).min(SNAP);
        if let Some(snap) = heads.snap.get_mut(i)
            && let Some(private) = snap.0.get_mut(HEADROOM..HEADROOM + have)
        {
            pieces.take(private, true);
        }
        heads.admit(i, len as u32, claim);
        for piece in pieces.rest() {
            // SAFETY: a checked piece of the guest's memory; this half keeps the map until the section ends.
            tails.push(i, unsafe { Foreign::at(section, piece.ptr, piece.len) });
        }
        Odd::Frame
    }

    fn receive<'q>(
        &mut self,
        section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        const WIDE: u8 = Isa::Avx512 as u8;
        const NARROW: u8 = Isa::Base as u8;
        match (self.isa == Isa::Avx512, self.claims.any()) {
            (true, false) => self.burst::<WIDE, false>(section, heads, tails, limit),
            (true, true) => self.burst::<WIDE, true>(section, heads, tails, limit),
            (false, false) => self.burst::<NARROW, false>(section, heads, tails, limit),
            (false, true) => self.burst::<NARROW, true>(section, heads, tails, limit),
        }
    }

    #[inline(always)]
    fn give_back(&mut self, loan: &Loan) {
        let (old, new) = (self.released, loan.upto as u16);
        let count = loan.count as usize;
        let mut held = R::Held::default();
        if self.in_order {
            if let Some(last) = count.checked_sub(1).and_then(|k| self.lent.get(k)) {
                self.ring.put(&mut held, old, last.id, 0);
            }
        } else {
            let mut at = old;
            for lent in self.lent.iter().take(count) {
                self.ring.put(&mut held, at, lent.id, 0);
                at = self.ring.advance(at, lent.places);
            }
        }
        self.ring.intend(old, new);
        self.ring.open(held);
        self.ring.set_index(new);
        if let Some(log) = self.ring.log() {
            self.ring.log_used(log, old, new);
        }
        self.released = new;
        if self.ring.wants_call(old, new)
            && let Some(call) = &self.call
            && kick::kick(call.as_fd()).is_err()
        {
            self.map.fail();
        }
    }

    fn arm(&mut self) -> Armed {
        self.quiet = false;
        if self.ring.arm(self.next) {
            self.quiet = true;
            self.ring.disarm(self.next);
            return Armed::Work;
        }
        Armed::Yes
    }

    fn disarm(&mut self) {
        self.quiet = true;
        self.ring.disarm(self.next);
    }
}

/// Where the header before the frame begins if a chain is one whole buffer with a frame in it, else null. Starts to
/// fetch the frame.
#[inline(always)]
fn whole_frame<R: Ring, const CLAIMS: bool>(
    map: &GuestMap,
    hit: &mut Extent,
    head: &Head,
) -> *const u8 {
    let desc = R::desc(head.words);
    let len = desc.len.wrapping_sub(HEADER_BYTES);
    let is_frame = (FRAME_MIN..=FRAME_MAX as u32).contains(&len);
    if !head.exists || !desc.is_whole::<false>() || !is_frame {
        return core::ptr::null();
    }
    let Some(ptr) = map.find(hit, desc.addr, desc.len) else {
        return core::ptr::null();
    };
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
    ptr
}

/// Frame `i` is `len` bytes at `frame`. Its addresses are loaded behind the run.
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
    heads.admit_unread(i, len, claim);
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

impl RxPort for VhostRx {
    fn rx_burst<'q>(
        &mut self,
        section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        either!(&mut self.0, queue => queue.receive(section, heads, tails, limit))
    }

    fn release(&mut self, _section: &Section<'_>, loan: Loan) {
        if loan.count != 0 {
            either!(&mut self.0, queue => queue.give_back(&loan));
        }
    }

    fn arm(&mut self, _section: &Section<'_>) -> Armed {
        either!(&mut self.0, queue => queue.arm())
    }

    fn disarm(&mut self, _section: &Section<'_>) {
        either!(&mut self.0, queue => queue.disarm());
    }

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        either!(&self.0, queue => queue.kick.as_ref().map(AsFd::as_fd))
    }

    fn polls_memory(&self) -> bool {
        true
    }
}

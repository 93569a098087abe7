//! The transmit half: a guest's receive queues.
//!
//! # Model
//! As [`crate::memif::tx`]: a transmission is cut into runs, each reserved, then filled: as many frames as fit one
//! whole buffer each, or one frame that needs more than that: a chain of descriptors, several buffers (mergeable),
//! or the software stage. Buffers are counted before the first byte is written; if there are not enough, the ring
//! stands where it stood. A guest never sees a part of a frame.
//!
//! Each frame is written behind a 12-byte header, which holds what the guest negotiated and how many buffers
//! there are: 1 also without mergeable buffers (VIRTIO 1.2, 5.1.6.4).
//!
//! A worker transmits on its share of the queues that are enabled ([`TxPort::choices`]). With one worker
//! there is no atomic read-modify-write and one publication at the end. With more, a run is reserved under the
//! lock of [`Leases`] and published in the order of the leases: queues come and go while they work, so that none
//! can know that it is alone on one. A packed queue is one worker's at a time until it has published ([`Ring::WHOLE`]): after a
//! kill there is one publication to make up for. The others wait for as long as that takes, then spill.
//!
//! # Synchronization
//! | word | written by | order |
//! | --- | --- | --- |
//! | `next`, `seen` | the only worker, or the holder of the lock of [`Leases`] | Relaxed: unlock and lock order them, and the guest's words behind an acquired index |
//! | frames, used elements | each worker, before it finishes its lease | Release mark, the publisher's Acquire, its Release of the index |
//! | `published` | the publisher, one at a time | Release; the session's Acquire |
//! | `enabled` | session | Release; Acquire once a burst |
//! | `owed` | a worker behind its publication | Release; Acquire of who kicks |
//!
//! # Failure modes
//! A bad buffer is given back empty and the frame dropped as [`windlass_stats::Drop::PeerFault`]. A frame that does
//! not fit one buffer, or all buffers of a ring where they are mergeable, is [`windlass_stats::Drop::TooBig`] and
//! takes none. An index that jumps by more than the ring, or a packed chain without an end, ends the queue.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use windlass_frame::{BURST, Heads, Pick};
use windlass_shm::{Isa, Section, Tails};
use windlass_stats::Padded;
use windlass_sync::leases::Leases;

use super::area::Paged;
use super::features::{MRG_RXBUF, tx_caps};
use super::guest_map::{GuestMap, Miss};
use super::packed::{Packed, PackedOver};
use super::queue::{Base, QueueError, QueueSetup};
use super::reserve::{Cursor, Job, Slots};
use super::ring::{Ring, look_ahead};
use super::ring_progress::Mark;
use super::split::{Split, SplitOver};
use crate::kick;
use crate::port::{Kick, Lane, Progress, Sent, Stop, TxCaps, TxPort, share};

/// Receive queues of one device.
pub const QUEUES_MAX: usize = 16;
/// How long a worker waits for another's reservation, in cycles of the time-stamp counter.
const SPIN_CYCLES: u64 = 2000;
/// How long it waits for another's whole transmission: that of a burst takes less, unless its core was taken away.
const SPIN_WHOLE_CYCLES: u64 = 20_000;

/// The transmit half of a guest's device.
#[derive(Debug)]
pub struct VhostTx(Half);

#[derive(Debug)]
enum Half {
    Split(Queues<Split>),
    Packed(Queues<Packed>),
    SplitBehind(Queues<SplitOver<Paged>>),
    PackedBehind(Queues<PackedOver<Paged>>),
}

/// Does the same with queues of either layout.
macro_rules! either {
    ($half:expr, $queues:ident => $do:expr) => {
        match $half {
            Half::Split($queues) => $do,
            Half::Packed($queues) => $do,
            Half::SplitBehind($queues) => $do,
            Half::PackedBehind($queues) => $do,
        }
    };
}

struct Queue<R> {
    ring: R,
    call: Option<OwnedFd>,
    cursor: Padded<Cursor>,
    leases: Leases,
}

struct Queues<R> {
    map: Arc<GuestMap>,
    queues: Box<[Queue<R>]>,
    /// A bit for each queue that frames may go to.
    enabled: AtomicU32,
    /// Of several: a bit for each queue whose guest is still to be interrupted. A worker's queue can be another one by
    /// the time it does so.
    owed: AtomicU32,
    caps: TxCaps,
    mergeable: bool,
    isa: Isa,
}

impl<R> core::fmt::Debug for Queues<R> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Queues")
            .field("queues", &self.queues.len())
            .field("enabled", &self.enabled)
            .field("caps", &self.caps)
            .finish_non_exhaustive()
    }
}

impl VhostTx {
    /// The half for the queues that a guest receives on: at least one, all with the map, features and log of the
    /// first. All are enabled. Notifications from the guest are turned off: a transmission looks for itself.
    ///
    /// # Errors
    /// [`QueueError`]; [`QueueError::Queues`] for more than [`QUEUES_MAX`].
    pub fn new(
        first: QueueSetup,
        more: impl IntoIterator<Item = QueueSetup>,
    ) -> Result<VhostTx, QueueError> {
        Ok(VhostTx(
            match (first.is_packed(), first.map.is_translated()) {
                (false, false) => Half::Split(Queues::new(first, more)?),
                (true, false) => Half::Packed(Queues::new(first, more)?),
                (false, true) => Half::SplitBehind(Queues::new(first, more)?),
                (true, true) => Half::PackedBehind(Queues::new(first, more)?),
            },
        ))
    }

    /// The first buffer of queue `queue` that was not used: what `VHOST_USER_GET_VRING_BASE` answers once the queue
    /// is stopped.
    pub fn base(&self, queue: usize) -> Option<Base> {
        either!(&self.0, queues => queues.base(queue))
    }

    /// Lets frames go to queue `queue` or keeps them from it (`VHOST_USER_SET_VRING_ENABLE`); nothing if there is no
    /// such queue. Holds for transmissions that begin behind the call: whoever must know that a queue stands still
    /// waits for a grace period of the workers. With no queue enabled, transmissions end with [`Stop::Down`].
    pub fn set_enabled(&self, queue: usize, enabled: bool) {
        either!(&self.0, queues => queues.set_enabled(queue, enabled));
    }

    /// Keeps in `mark` where queue `queue` stands.
    pub(super) fn keep(&mut self, queue: usize, mark: Mark) {
        either!(&mut self.0, queues => if let Some(queue) = queues.queues.get_mut(queue) {
            queue.ring.keep(mark);
        });
    }

    /// The memory that the half uses.
    pub(super) fn map(&self) -> &GuestMap {
        either!(&self.0, queues => &queues.map)
    }

    /// Goes on with the map of `setup`, which is otherwise the one that this half of one queue was made of. After an
    /// error only [`VhostTx::base`] may be asked until it succeeds.
    pub(super) fn rebind(&mut self, setup: &QueueSetup) -> Result<(), QueueError> {
        either!(&mut self.0, queues => queues.rebind(setup))
    }

    /// Calls `each` for what is not translated of the first `most` buffers of the first queue.
    pub(super) fn look_ahead(&self, most: u16, each: impl FnMut(Miss)) {
        either!(&self.0, queues => queues.look_ahead(most, each));
    }

    /// A transmission, to queue `wanted` if that is enabled, and the number of the queue that it went to.
    #[inline]
    pub(super) fn send(
        &self,
        lane: Lane,
        wanted: Option<u8>,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> (Sent, usize) {
        either!(&self.0, queues => queues.transmit(lane, wanted, heads, tails, picks))
    }
}

impl<R: Ring> Queues<R> {
    fn new(
        first: QueueSetup,
        more: impl IntoIterator<Item = QueueSetup>,
    ) -> Result<Queues<R>, QueueError> {
        let (map, features, log) = (first.map.clone(), first.features, first.log.clone());
        let mut queues = Vec::new();
        for setup in core::iter::once(first).chain(more) {
            let setup = QueueSetup {
                map: map.clone(),
                features,
                log: log.clone(),
                ..setup
            };
            let ring = R::new(&setup)?;
            let start = ring.place(setup.base);
            ring.disarm(start);
            queues.push(Queue {
                ring,
                call: setup.call,
                cursor: Padded::new(Cursor {
                    next: AtomicU16::new(start),
                    seen: AtomicU16::new(start),
                    published: AtomicU16::new(start),
                }),
                leases: Leases::new(),
            });
            if queues.len() > QUEUES_MAX {
                return Err(QueueError::Queues(queues.len()));
            }
        }
        Ok(Queues {
            map,
            enabled: AtomicU32::new((1 << queues.len()) - 1),
            owed: AtomicU32::new(0),
            queues: queues.into(),
            caps: tx_caps(features),
            mergeable: features & MRG_RXBUF != 0,
            isa: Isa::detect(),
        })
    }

    fn base(&self, queue: usize) -> Option<Base> {
        let Queue { ring, cursor, .. } = self.queues.get(queue)?;
        Some(ring.base(cursor.published.load(Ordering::Acquire)))
    }

    fn set_enabled(&self, queue: usize, enabled: bool) {
        set_bit(&self.enabled, self.queues.len(), queue, enabled);
    }

    /// As [`VhostTx::rebind`].
    fn rebind(&mut self, setup: &QueueSetup) -> Result<(), QueueError> {
        self.map = setup.map.clone();
        for queue in &mut self.queues {
            queue.ring = R::new(setup)?;
            let next = queue.cursor.next.load(Ordering::Relaxed);
            queue.cursor.seen.store(next, Ordering::Relaxed);
        }
        Ok(())
    }

    fn look_ahead(&self, most: u16, each: impl FnMut(Miss)) {
        if let Some(Queue { ring, cursor, .. }) = self.queues.first() {
            let next = cursor.next.load(Ordering::Relaxed);
            look_ahead(ring, &self.map, next, most, each);
        }
    }

    /// The queue that a worker asks for, if it is enabled, or else its own; and its number.
    #[inline(always)]
    fn queue_of(&self, lane: Lane, wanted: Option<u8>) -> Option<(usize, &Queue<R>)> {
        let number = chosen(self.enabled.load(Ordering::Acquire), lane, wanted)?;
        Some((number, self.queues.get(number)?))
    }

    /// The whole transmission of the only worker. Returns the places before and behind what was published.
    #[inline(always)]
    fn alone<const ISA: u8, const LOG: bool>(
        job: &Job<'_, '_, R>,
        picks: &[Pick],
        sent: &mut Sent,
    ) -> (u16, u16) {
        let mut slots = Slots::new();
        let mut held = R::Held::default();
        let before = job.cursor.next.load(Ordering::Relaxed);
        while let Some(rest) = picks.get(sent.taken..)
            && !rest.is_empty()
        {
            let first = job.cursor.next.load(Ordering::Relaxed);
            let run = job.reserve::<LOG>(&mut slots, rest);
            if !job.fill::<ISA, LOG>(run, &slots, (&mut held, first), rest, sent) {
                break;
            }
        }
        let next = job.cursor.next.load(Ordering::Relaxed);
        if next != before {
            job.ring.intend(before, next);
            job.ring.open(held);
            job.publish(next);
            job.ring
                .fetch_heads::<true>(&job.cursor.seen, next, BURST as u16);
        }
        (before, next)
    }

    /// The same where several workers may share the ring.
    #[cold]
    #[inline(never)]
    fn together<const ISA: u8, const LOG: bool>(
        leases: &Leases,
        job: &Job<'_, '_, R>,
        picks: &[Pick],
        sent: &mut Sent,
    ) -> (u16, u16) {
        let mut slots = Slots::new();
        let mut published: Option<(u16, u16)> = None;
        while let Some(rest) = picks.get(sent.taken..)
            && !rest.is_empty()
        {
            let guard = leases.try_lock(SPIN_CYCLES);
            let Some(mut guard) = guard.filter(|guard| !guard.is_full()) else {
                sent.stop = Stop::Busy;
                break;
            };
            let first = job.cursor.next.load(Ordering::Relaxed);
            let run = job.reserve::<LOG>(&mut slots, rest);
            let end = job.cursor.next.load(Ordering::Relaxed);
            let lease = if end == first {
                None
            } else {
                guard.lease(u32::from(end))
            };
            drop(guard);
            let mut held = R::Held::default();
            let goes_on = job.fill::<ISA, LOG>(run, &slots, (&mut held, first), rest, sent);
            job.ring.open(held);
            if let Some(lease) = lease {
                leases.finish(lease, |last| {
                    let end = last as u16;
                    let old = job.publish(end);
                    let from = published.map_or(old, |(from, _)| from);
                    published = Some((from, end));
                });
            }
            if !goes_on {
                break;
            }
        }
        published.unwrap_or((0, 0))
    }

    #[inline(never)]
    fn send<const ISA: u8, const LOG: bool>(
        &self,
        lane: Lane,
        wanted: Option<u8>,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> (Sent, usize) {
        let mut sent = Sent::default();
        let queue = self.queue_of(lane, wanted);
        let Some((number, queue)) = queue.filter(|_| !self.map.is_dead()) else {
            sent.stop = Stop::Down;
            return (sent, 0);
        };
        let job = Job {
            ring: &queue.ring,
            map: &self.map,
            cursor: &queue.cursor,
            caps: self.caps,
            mergeable: self.mergeable,
            heads,
            tails,
        };
        let (old, new) = if lane.workers == 1 {
            Self::alone::<ISA, LOG>(&job, picks, &mut sent)
        } else if !R::WHOLE {
            Self::together::<ISA, LOG>(&queue.leases, &job, picks, &mut sent)
        } else if let Some(_guard) = queue.leases.try_lock(SPIN_WHOLE_CYCLES) {
            Self::alone::<ISA, LOG>(&job, picks, &mut sent)
        } else {
            sent.stop = Stop::Busy;
            (0, 0)
        };
        if old != new {
            queue.ring.park_again(old, new);
            if LOG && let Some(log) = queue.ring.log() {
                queue.ring.log_used(log, old, new);
            }
            if queue.ring.wants_call(old, new) {
                sent.kick = Kick::Now;
                if self.queues.len() > 1 {
                    self.owed.fetch_or(1 << number, Ordering::Release);
                }
            }
        }
        (sent, number)
    }

    /// Sends, and tells the queue.
    #[inline]
    fn transmit(
        &self,
        lane: Lane,
        wanted: Option<u8>,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> (Sent, usize) {
        const WIDE: u8 = Isa::Avx512 as u8;
        const NARROW: u8 = Isa::Base as u8;
        let logs = self.queues.first().is_some_and(|q| q.ring.log().is_some());
        match (self.isa == Isa::Avx512, logs) {
            (true, false) => self.send::<WIDE, false>(lane, wanted, heads, tails, picks),
            (true, true) => self.send::<WIDE, true>(lane, wanted, heads, tails, picks),
            (false, false) => self.send::<NARROW, false>(lane, wanted, heads, tails, picks),
            (false, true) => self.send::<NARROW, true>(lane, wanted, heads, tails, picks),
        }
    }

    fn kick(&self) {
        let owed = match self.queues.len() {
            1 => 1,
            _ => self.owed.swap(0, Ordering::Acquire),
        };
        for (number, queue) in self.queues.iter().enumerate() {
            if owed & 1 << number != 0
                && let Some(call) = &queue.call
                && kick::kick(call.as_fd()).is_err()
            {
                self.map.fail();
            }
        }
    }
}

/// Sets or clears the bit of one of so many queues; none of another number.
pub(super) fn set_bit(bits: &AtomicU32, queues: usize, queue: usize, on: bool) {
    let bit = if queue < queues.min(32) {
        1 << queue
    } else {
        0
    };
    match on {
        true => bits.fetch_or(bit, Ordering::Release),
        false => bits.fetch_and(!bit, Ordering::Release),
    };
}

/// Number of the queue that a worker asks for, if its bit is set in `enabled`, or else of the worker's own.
#[inline(always)]
pub(super) fn chosen(enabled: u32, lane: Lane, wanted: Option<u8>) -> Option<usize> {
    match (enabled, wanted) {
        (1, _) => Some(0),
        (enabled, Some(wanted)) if enabled >> (wanted & 31) & 1 != 0 => Some(wanted.into()),
        (enabled, _) => nth_set(enabled, lane.worker),
    }
}

/// Number of the set bit of `bits` with the index `k` modulo their count; none of 0.
#[inline(always)]
fn nth_set(bits: u32, k: u16) -> Option<usize> {
    let mut left = bits;
    for _ in 0..u32::from(k).checked_rem(bits.count_ones())? {
        left &= left - 1;
    }
    Some(left.trailing_zeros() as usize)
}

impl TxPort for VhostTx {
    fn caps(&self) -> TxCaps {
        either!(&self.0, queues => queues.caps)
    }

    fn tx_burst(
        &self,
        _section: &Section<'_>,
        lane: Lane,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        self.send(lane, None, heads, tails, picks).0
    }

    fn has_choice(&self) -> bool {
        either!(&self.0, queues => queues.queues.len() > 1)
    }

    fn choices(&self, lane: Lane) -> u32 {
        share(
            either!(&self.0, queues => queues.enabled.load(Ordering::Acquire)),
            lane,
        )
    }

    fn progress(&self, ring: u8) -> Option<Progress> {
        either!(&self.0, queues => {
            let Queue { ring, cursor, .. } = queues.queues.get(usize::from(ring))?;
            let put = cursor.next.load(Ordering::Relaxed);
            let (unread, lap) = (ring.unread(put), ring.lap());
            Some(Progress { put, unread, lap })
        })
    }

    fn tx_burst_on(
        &self,
        _section: &Section<'_>,
        lane: Lane,
        ring: u8,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        self.send(lane, Some(ring), heads, tails, picks).0
    }

    fn kick(&self, _lane: Lane) {
        either!(&self.0, queues => queues.kick());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers are spread over the enabled queues in turn, and over none where none is.
    #[test]
    fn workers_over_enabled_queues() {
        let of = |bits, n| (0..n).map(|k| nth_set(bits, k)).collect::<Vec<_>>();
        assert_eq!(of(0b1, 3), [Some(0); 3]);
        assert_eq!(of(0b1010, 3), [Some(1), Some(3), Some(1)]);
        assert_eq!(nth_set(0xffff, 15), Some(15));
        assert_eq!(nth_set(0, 4), None);
    }
}

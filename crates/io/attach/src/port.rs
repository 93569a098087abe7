//! What a worker asks of an attachment: a receive half for each ring, and one transmit half.
//!
//! # Model
//! A visit of a worker to a ring is
//!
//! ```text
//! rx_burst -> engines -> for each destination: tx_burst -> release -> kick
//! ```
//!
//! [`RxPort::rx_burst`] borrows; [`RxPort::release`] gives back, after every destination has
//! published: a daemon that dies in between repeats at most one burst and loses none that was
//! still in a ring. The steps of a transmission (reserve slots, fill them, publish in order) stay
//! inside [`TxPort::tx_burst`]: a lock is held only while slots are reserved, and nothing outside the port needs
//! to see them apart.
//!
//! # Ownership and lifetime
//! Receive halves belong to one worker at a time. The transmit half is shared by all workers
//! through an `Arc` in the topology, and freed after a grace period.
//!
//! # What can be lost
//! Frames that a receiver has no room for: [`Sent::taken`] tells how far the burst got, the worker
//! tries once more at the end of the visit, then counts them. Frames that a receiver can never
//! take are dropped by the port and counted in [`Sent::drops`].

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use windlass_frame::{BURST, Heads, Pick};
use windlass_shm::{Section, Tails};
use windlass_stats::Drop;
use windlass_sys::shortcut::Place;

/// How much one visit may take.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Frames, at most [`windlass_frame::BURST`].
    pub frames: usize,
    /// The burst ends with the frame that reaches this number of bytes.
    pub bytes: usize,
}

impl Limit {
    /// A full burst.
    pub const FULL: Limit = Limit {
        frames: windlass_frame::BURST,
        bytes: windlass_frame::BURST_BYTES,
    };
}

/// What is left behind in the ring after a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// Nothing was left when we looked.
    Drained,
    /// There was more: the visit ended on its budget.
    Left,
    /// The peer is gone or its memory is: the port will give nothing more and should be detached.
    Dead,
}

/// Frames that are borrowed from a ring. Must be given back with [`RxPort::release`].
#[must_use = "a loan is given back with release"]
#[derive(Debug, Default)]
pub struct Loan {
    /// For the port: where its ring stands after the release.
    pub upto: u64,
    /// For the port: anything else.
    pub count: u32,
}

/// The answer of [`RxPort::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Notifications are on, and nothing had arrived after they were.
    Yes,
    /// Something arrived meanwhile: the ring stays active.
    Work,
    /// Notifications are on, but the peer may have missed it: look once more after so many microseconds.
    Unsure(u32),
    /// The peer has no way to notify: look every so many microseconds.
    Poll(u32),
}

/// The receive half of one ring.
pub trait RxPort: Send {
    /// Borrows frames: fills `heads` from index 0 (`heads.n` frames; `from` and `now` were set by
    /// the worker with [`Heads::clear`]) and `tails` with what lies behind the snapshots. A frame
    /// with a bad descriptor is returned with length 0 and its verdict already a drop.
    fn rx_burst<'q>(
        &mut self,
        section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More);

    /// Gives the burst back to the peer: one index publication.
    fn release(&mut self, section: &Section<'_>, loan: Loan);

    /// Turns notifications on and looks once more.
    fn arm(&mut self, section: &Section<'_>) -> Armed;

    /// Turns notifications off, where that costs no system call.
    fn disarm(&mut self, section: &Section<'_>);

    /// What becomes readable when something arrives. Registered edge-triggered, never read.
    fn wake(&self) -> Option<BorrowedFd<'_>>;

    /// Whether polling this ring with nothing in it costs only a load (memory rings), or a system
    /// call (TAP, packet socket).
    fn polls_memory(&self) -> bool;
}

/// What a receiver takes as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxCaps {
    /// Frames whose checksum is still to be completed.
    pub csum: bool,
    /// TCP over IPv4, to be segmented.
    pub tso4: bool,
    /// TCP over IPv6, to be segmented.
    pub tso6: bool,
    /// TCP segmentation with CWR set.
    pub ecn: bool,
    /// UDP datagrams, to be cut apart.
    pub uso: bool,
}

impl TxCaps {
    /// Whether a frame with this metadata can be given to the receiver as it is.
    #[inline(always)]
    pub fn takes(&self, off: &windlass_frame::Offload) -> bool {
        use windlass_frame::Gso;
        (!off.needs_csum() || self.csum)
            && match off.gso {
                Gso::None => true,
                Gso::Tcp4 => self.tso4 && (!off.ecn() || self.ecn),
                Gso::Tcp6 => self.tso6 && (!off.ecn() || self.ecn),
                Gso::UdpL4 => self.uso,
            }
    }
}

/// Which of `rings` (a bit for each number) a worker spreads its flows over. Where there are more rings than workers,
/// every so manyth, so that none is shared; else one.
#[inline]
pub(crate) fn share(rings: u32, lane: Lane) -> u32 {
    let stride = rings.count_ones().min(lane.workers.into()).max(1);
    if stride == 1 {
        return rings;
    }
    let first = u32::from(lane.worker) % stride;
    let (mut left, mut mine) = (rings, 0);
    for k in 0..rings.count_ones() {
        let lowest = left & left.wrapping_neg();
        left ^= lowest;
        if k % stride == first {
            mine |= lowest;
        }
    }
    mine
}

/// Who transmits.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    /// The worker's number, from 0: chooses among the receiver's rings.
    pub worker: u16,
    /// Workers in all. With one, no ring is shared and no lock taken.
    pub workers: u16,
}

/// How far a receiver is with a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The place behind the last frame that was put into it.
    pub put: u16,
    /// At most so many places before that have frames that the receiver has not taken; less than a lap.
    pub unread: u16,
    /// Number of places until they are named anew.
    pub lap: u32,
}

impl Progress {
    /// Whether the receiver has certainly taken all frames before a place.
    pub fn has_taken(&self, before: u16) -> bool {
        let behind = (self.lap + u32::from(self.put)).saturating_sub(before.into());
        // One that is farther behind than a lap seems to be nearer.
        behind % self.lap.max(1) >= self.unread.into()
    }
}

/// Why a transmission ended before the end of its burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It did not.
    Done,
    /// The next frame does not fit now; it may a little later.
    Full,
    /// Another worker holds the ring: spill.
    Busy,
    /// Nobody is there.
    Down,
}

/// Whether the receiver wants to be notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kick {
    /// No: it polls, or was told already.
    No,
    /// Yes, by [`TxPort::kick`] after the visit, if [`TxPort::wants_kick`] still says so then.
    Now,
    /// The kernel did it, and whoever reads may need this very core: the worker is to yield now and then.
    Core,
}

/// What became of one transmission.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Picks consumed, from the first: delivered or dropped by the port.
    pub taken: usize,
    /// Frames delivered (a GSO frame that was cut counts once).
    pub frames: u64,
    /// Bytes of the frames delivered, tags included.
    pub bytes: u64,
    /// Frames that software segmentation wrote.
    pub segments: u64,
    /// Frames that the port dropped, a bit for the place of each among the picks, and why (at most four reasons at a time).
    pub drops: [(Drop, u64); 4],
    /// Why it ended.
    pub stop: Stop,
    /// Whether to notify.
    pub kick: Kick,
}

impl Default for Sent {
    fn default() -> Self {
        Sent {
            taken: 0,
            frames: 0,
            bytes: 0,
            segments: 0,
            drops: [(Drop::RingFull, 0); 4],
            stop: Stop::Done,
            kick: Kick::No,
        }
    }
}

impl Sent {
    /// How many frames the port dropped, and why.
    #[inline]
    pub fn dropped(&self) -> [(Drop, u32); 4] {
        self.drops
            .map(|(reason, frames)| (reason, frames.count_ones()))
    }

    /// The port drops the frame behind those that it has taken, and takes it after this.
    pub fn drop_frame(&mut self, reason: Drop) {
        let frame = 1 << (self.taken % BURST);
        let last = self.drops.len() - 1;
        for (at, d) in self.drops.iter_mut().enumerate() {
            if d.1 == 0 || d.0 == reason || at == last {
                *d = (if d.1 == 0 { reason } else { d.0 }, d.1 | frame);
                return;
            }
        }
    }
}

/// The transmit half of an attachment: all its rings.
pub trait TxPort: Send + Sync {
    /// What the receiver takes as it is: constant during one connection.
    fn caps(&self) -> TxCaps;

    /// Whether its rings lie in memory of the peer's, so that access to them may wait for the peer.
    fn is_foreign(&self) -> bool {
        true
    }

    /// Whether a transmission costs about as much as many frames do, so that small ones are better sent together: constant during one
    /// connection.
    fn wants_runs(&self) -> bool {
        false
    }

    /// Sends `picks` in order, up to the first that does not fit; a larger frame is never skipped
    /// for a smaller one behind it. Publishes once.
    fn tx_burst(
        &self,
        section: &Section<'_>,
        lane: Lane,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent;

    /// Whether there can be more than one ring for a lane to choose from: constant during one connection. If so, the
    /// worker asks for [`TxPort::choices`] and uses [`TxPort::tx_burst_on`].
    fn has_choice(&self) -> bool {
        false
    }

    /// The rings over which a lane is to spread its flows, a bit for each number. Rings come and go; two lanes have none in
    /// common while there are as many rings as lanes.
    fn choices(&self, _lane: Lane) -> u32 {
        1
    }

    /// How far the receiver is with a ring, if that can be seen.
    fn progress(&self, _ring: u8) -> Option<Progress> {
        None
    }

    /// As [`TxPort::tx_burst`], to one of the lane's choices; to another one if that is gone meanwhile.
    fn tx_burst_on(
        &self,
        section: &Section<'_>,
        lane: Lane,
        _ring: u8,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        self.tx_burst(section, lane, heads, tails, picks)
    }

    /// Whether the receiver wants to hear of what was published on this lane's rings. Asked before [`TxPort::kick`], and as
    /// late as the worker likes before it sleeps: a port may put the fence between its index and the receiver's flags
    /// here, where the index has left the store buffer by itself.
    fn wants_kick(&self, _lane: Lane) -> bool {
        true
    }

    /// Notifies the receiver of what was published on this lane's rings. Must not block for longer than the watchdog
    /// allows.
    fn kick(&self, lane: Lane);

    /// The receiver's way past the workers, if it has one: constant during one connection.
    fn bypass(&self) -> Option<Arc<dyn Bypass>> {
        None
    }
}

/// A way from member to member that passes the workers by.
pub trait Bypass: Send + Sync {
    /// Lets its member and others with a place of the same number exchange plain frames; without a place, none.
    fn open(&self, place: Option<Place>);

    /// Returns when no frame is on its way by what was open before.
    fn settle(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever rings there are: every ring is somebody's, a lane has one where there are any, and no two lanes share one
    /// unless there are fewer rings than lanes.
    #[test]
    fn shares_cover_all_rings() {
        for rings in [0u32, 1, 0b1010, 0b1011_0001, 0xffff, !0] {
            for workers in 1..9 {
                let of = |worker| share(rings, Lane { worker, workers });
                let shares: Vec<u32> = (0..workers).map(of).collect();
                let all = shares.iter().fold(0, |all, share| all | share);
                assert_eq!(all, rings, "{workers} workers");
                let enough = rings.count_ones() >= u32::from(workers);
                let sum: u32 = shares.iter().map(|s| s.count_ones()).sum();
                if enough {
                    assert_eq!(sum, rings.count_ones(), "none twice");
                } else {
                    assert!(shares.iter().all(|s| s.count_ones() == rings.min(1)));
                }
            }
        }
        let lane = |worker| Lane { worker, workers: 2 };
        assert_eq!(share(0b1_0101_0101, lane(0)), 0b1_0001_0001);
        assert_eq!(share(0b1_0101_0101, lane(1)), 0b0_0100_0100);
    }
}

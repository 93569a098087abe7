//! Captures: what workers write of a member's frames for readers outside the daemon.
//!
//! # Model
//! A [`Capture`] is one reader's: a filter, a length, and memory that the reader shares ([`windlass_capture::ring`]). A member that is
//! captured has a [`Watch`] for each of its captures in the topology, and takes the way of members with stages; nobody else is asked for anything.
//!
//! ```text
//! from a member:  rx_burst -> [capture] -> stages -> bridge -> sent, dropped: the record says why -> published
//! to a member:    stages -> rates -> its ring -> [capture]; a frame that dies on the way has a record that says why
//! ```
//! The filter reads the private bytes of a frame first. If it reads further, bytes behind them are copied to private memory once, and
//! both the filter and the record have them from there.
//!
//! # Synchronization
//! A worker has a [`Lane`] of its own in each capture, behind a lock that nobody else takes. Records are published once for each burst and point; the reader
//! is woken if it said that it sleeps.
//!
//! # What can be lost
//! A record without room, counted. Never a frame: nothing here waits.
//!
//! # Limits
//! [`WATCHES`] captures of one member.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use windlass_attach::soft;
pub(crate) use windlass_capture::ring::Way;
use windlass_capture::ring::{Head, Memory, Place, Writer};
use windlass_capture::{Frame, Program};
use windlass_frame::{BURST, FRAME_MAX, Heads, Pick, Tick};
use windlass_shm::{Section, Tails};
use windlass_stats::Drop;
use windlass_wire::ether;

/// Captures of one member at most: half of them of itself, half of its bridge.
pub const WATCHES: usize = 8;

/// Bytes that are copied at least when a filter reads behind the private bytes.
const DEEPER: usize = 256;
/// A tag.
const TAG: usize = 4;

/// Which frames a capture is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Points {
    /// Those that a member's peer has sent.
    pub from: bool,
    /// Those that were delivered to a member's peer.
    pub to: bool,
    /// Those that died, with the reason.
    pub drops: bool,
}

/// One reader's capture.
#[derive(Debug)]
pub struct Capture {
    filter: Option<Program>,
    snap: u32,
    points: Points,
    /// What the wall clock is ahead of the workers' clock, in nanoseconds; modulo 2^64.
    ahead_ns: AtomicU64,
    /// The socket at whose other end the reader is.
    reader: OwnedFd,
    lanes: Box<[Mutex<Lane>]>,
}

/// What one worker has of a capture.
#[derive(Debug)]
struct Lane {
    writer: Writer,
    /// Where a frame's bytes are made private.
    room: Box<[u8]>,
}

impl Capture {
    /// A capture into `memory`, which has a ring for each of so many workers. The reader is woken by a byte that is sent to `reader`.
    pub fn new(
        (filter, snap, points): (Option<Program>, u32, Points),
        (memory, workers): (&Arc<Memory>, u32),
        reader: OwnedFd,
    ) -> Capture {
        let lane = |worker| {
            Mutex::new(Lane {
                writer: Writer::new(memory.clone(), worker),
                room: vec![0; FRAME_MAX + TAG].into(),
            })
        };
        Capture {
            filter,
            snap,
            points,
            ahead_ns: AtomicU64::new(0),
            reader,
            lanes: (0..workers).map(lane).collect(),
        }
    }

    /// Says what the wall clock is at a moment of the workers' clock: now and then, since the two drift.
    pub fn set_clock(&self, now: Tick, wall_ns: u64) {
        self.ahead_ns
            .store(wall_ns.wrapping_sub(now.0), Ordering::Relaxed);
    }

    /// Tells the reader in a line why the capture has ended, as far as there is room, and ends the connection.
    pub fn tell_end(&self, line: &str) {
        let _ = windlass_sys::unix::send_now(&self.reader, format!("{line}\n").as_bytes());
        let _ = rustix::net::shutdown(&self.reader, rustix::net::Shutdown::Both);
    }

    fn lane(&self, worker: u16) -> Option<MutexGuard<'_, Lane>> {
        self.lanes.get(usize::from(worker))?.try_lock().ok()
    }

    fn publish(&self, lane: &mut Lane) {
        if lane.writer.publish() {
            // Without room there are other wake-ups; without a reader the capture is about to end.
            let _ = windlass_sys::unix::send_now(&self.reader, b"\n");
        }
    }
}

/// A capture of one member.
#[derive(Clone, Debug)]
pub struct Watch {
    /// Whose it is.
    pub capture: Arc<Capture>,
    /// The number of the member in it.
    pub port: u16,
    /// Frames to the member are captured, too: the capture is of the member itself, not of its bridge.
    pub is_both: bool,
}

impl Watch {
    fn wants(&self, way: Way, is_drop: bool) -> bool {
        let points = self.capture.points;
        match (way, is_drop) {
            (Way::From, false) => points.from,
            (Way::From, true) => points.from && points.drops,
            (Way::To, false) => points.to && self.is_both,
            (Way::To, true) => (points.to || !self.is_both) && points.drops,
        }
    }
}

/// A burst, and who has it.
#[derive(Clone, Copy)]
pub(crate) struct Burst<'a, 'q> {
    pub(crate) section: &'a Section<'a>,
    pub(crate) worker: u16,
    pub(crate) now: Tick,
    pub(crate) heads: &'a Heads,
    pub(crate) tails: &'a Tails<'q>,
}

/// Records of a burst's frames that are not published yet, by frame.
pub(crate) type Places = [Option<Place>; BURST];

/// Writes records of these frames for all captures of a member that want them.
#[cold]
pub(crate) fn note(
    watches: &[Watch],
    burst: &Burst<'_, '_>,
    (way, reason): (Way, Option<Drop>),
    picks: &[Pick],
) {
    for watch in watches {
        if picks.is_empty() || !watch.wants(way, reason.is_some()) {
            continue;
        }
        if let Some(mut lane) = watch.capture.lane(burst.worker) {
            for pick in picks {
                watch.record(&mut lane, burst, (way, reason), *pick);
            }
            watch.capture.publish(&mut lane);
        }
    }
}

impl Watch {
    /// Writes a record of a frame, if the filter wants it.
    fn record(
        &self,
        lane: &mut Lane,
        burst: &Burst<'_, '_>,
        (way, reason): (Way, Option<Drop>),
        pick: Pick,
    ) -> Option<Place> {
        let capture = &*self.capture;
        let mut view = View::new(burst, pick, &mut lane.room);
        let verdict = match &capture.filter {
            Some(filter) => filter.run(&mut view),
            None => u32::MAX,
        };
        if verdict == 0 {
            return None;
        }
        let head = Head {
            port: self.port,
            way,
            reason: reason.map_or(0, |reason| reason as u8 + 1),
            time_ns: burst
                .now
                .0
                .wrapping_add(capture.ahead_ns.load(Ordering::Relaxed)),
            len: view.len,
        };
        let snap = capture.snap.min(verdict);
        let (first, skip) = (view.bytes(), view.taken);
        let rest = skipping(burst.tails, pick.index(), skip);
        lane.writer.push(burst.section, head, snap, first, rest)
    }
}

/// What lies behind a frame's private bytes, but for so many bytes.
fn skipping<'a, 'q>(
    tails: &'a Tails<'q>,
    i: usize,
    mut skip: usize,
) -> impl Iterator<Item = windlass_shm::Foreign<'q>> + use<'a, 'q> {
    tails.of(i).map(move |piece| {
        let (gone, rest) = piece.split_at(skip);
        skip -= gone.len();
        rest
    })
}

/// A frame as it is on the wire of its member.
struct View<'a, 'q> {
    tails: &'a Tails<'q>,
    i: usize,
    len: u32,
    /// Its private bytes, while nothing had to be copied.
    private: &'a [u8],
    room: &'a mut [u8],
    /// Bytes in `room`; 0: it is not used.
    have: usize,
    /// Of those, bytes that lie behind the private ones.
    taken: usize,
}

impl<'a, 'q> View<'a, 'q> {
    fn new(burst: &Burst<'a, 'q>, pick: Pick, room: &'a mut [u8]) -> View<'a, 'q> {
        let i = pick.index();
        let meta = &burst.heads.meta[i % BURST];
        let private = burst.heads.private(i);
        let mut view = View {
            tails: burst.tails,
            i,
            len: meta.len,
            private,
            room,
            have: 0,
            taken: 0,
        };
        if pick.tagged()
            && let Some((addresses, rest)) = private.split_at_checked(12)
        {
            let [t0, t1] = ether::VLAN.to_be_bytes();
            let [c0, c1] = soft::tci(meta).0.to_be_bytes();
            let tag = [t0, t1, c0, c1];
            view.have = 0;
            for part in [addresses, &tag, rest] {
                view.put(part);
            }
            view.len += TAG as u32;
        }
        view
    }

    fn put(&mut self, bytes: &[u8]) {
        if let Some(place) = self.room.get_mut(self.have..self.have + bytes.len()) {
            place.copy_from_slice(bytes);
            self.have += bytes.len();
        }
    }

    fn bytes(&self) -> &[u8] {
        match self.have {
            0 => self.private,
            have => self.room.get(..have).unwrap_or(&[]),
        }
    }

    /// Has at least so many bytes private. False if the frame has fewer.
    #[cold]
    fn deepen(&mut self, upto: usize) -> bool {
        if upto > self.len as usize {
            return false;
        }
        if self.have == 0 {
            self.put(self.private);
        }
        let upto = upto.next_multiple_of(DEEPER).min(self.len as usize);
        let Some(mut to) = self.room.get_mut(self.have..upto) else {
            return false;
        };
        for piece in skipping(self.tails, self.i, self.taken) {
            let n = piece.read(to);
            to = to.get_mut(n..).unwrap_or(&mut []);
        }
        let n = upto - self.have - to.len();
        self.taken += n;
        self.have += n;
        to.is_empty()
    }
}

impl Frame for View<'_, '_> {
    fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    fn read<const N: usize>(&mut self, offset: u32) -> Option<[u8; N]> {
        let at = offset as usize;
        let end = at.checked_add(N)?;
        if end > self.bytes().len() && !self.deepen(end) {
            return None;
        }
        self.bytes().get(at..end)?.first_chunk().copied()
    }
}

/// What was captured of a burst on its way from a member: published when it is known what became of it.
pub(crate) struct Begun<'w> {
    watches: &'w [Watch],
    places: [Places; WATCHES],
}

impl<'w> Begun<'w> {
    /// Writes records of a burst that was just received.
    pub(crate) fn new(watches: &'w [Watch], burst: &Burst<'_, '_>) -> Begun<'w> {
        let mut places = [[None; BURST]; WATCHES];
        for (watch, places) in watches.iter().zip(&mut places) {
            if !watch.wants(Way::From, false) {
                continue;
            }
            let Some(mut lane) = watch.capture.lane(burst.worker) else {
                continue;
            };
            for (i, place) in places.iter_mut().enumerate().take(burst.heads.n) {
                // One with a bad descriptor has no bytes.
                *place = watch.record(&mut lane, burst, (Way::From, None), Pick::frame(i, false));
            }
        }
        Begun { watches, places }
    }

    /// Says why those died that died, and gives all to the readers.
    pub(crate) fn end(&self, worker: u16, heads: &Heads) {
        for (watch, places) in self.watches.iter().zip(&self.places) {
            if places.iter().all(Option::is_none) {
                continue;
            }
            let Some(mut lane) = watch.capture.lane(worker) else {
                continue;
            };
            if watch.capture.points.drops {
                for (place, verdict) in places.iter().zip(&heads.verdict) {
                    if let (Some(place), Some(reason)) = (place, verdict.as_drop()) {
                        lane.writer.mark(*place, reason as u8 + 1);
                    }
                }
            }
            watch.capture.publish(&mut lane);
        }
    }
}

#[cfg(test)]
mod tests;

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
//! A frame that waits on its way from a member has a record of its arrival, and one more if it dies then.
//!
//! The filter runs over the private bytes of a whole burst in one pass. Frames of which it reads more, or that have a tag on the wire of
//! their member only, it runs over one by one: their bytes are copied to private memory once, and both the filter and the record have them
//! from there.
//!
//! # Synchronization
//! A worker has a [`Lane`] of its own in each capture, behind a lock that nobody else takes. Records are published once for each burst and
//! point; the reader is woken if it said that it sleeps. Where deaths are captured, a burst's records are kept until it is known who died.
//!
//! # What can be lost
//! A record without room, counted; then those behind it in its burst are not tried. Never a frame: nothing here waits.
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
use windlass_capture::{Frames, Program, Runs, number};
use windlass_frame::{BURST, FRAME_MAX, HEADROOM, Heads, Pick, RxId, Tick};
use windlass_shaper::{Cause, Direction};
use windlass_shm::{Section, SegStore, Tails};
use windlass_stats::Drop;
use windlass_wire::ether;

use crate::hold::{Held, Pool};
use crate::visit::ALL;

/// Captures of one member at most: half of them of itself, half of its bridge.
pub const WATCHES: usize = 8;

/// Bytes that are copied at least when a filter reads behind the private bytes.
const DEEPER: usize = 256;
/// A tag.
const TAG: usize = 4;
/// Where [`Heads::kind`] lies in a frame.
const KIND: usize = 12;

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
    /// The filter over a burst, and over one frame.
    runs: Option<(Box<Runs>, Box<Runs>)>,
    /// Frames of the burst at hand that have records which may be marked, and where these are.
    kept: u64,
    places: Box<[Place; BURST]>,
}

impl Capture {
    /// A capture into `memory`, which has a ring for each worker. The reader is woken by a byte that is sent to `reader`.
    pub fn new(
        (filter, snap, points): (Option<Program>, u32, Points),
        memory: &Arc<Memory>,
        reader: OwnedFd,
    ) -> Capture {
        let lane = |worker| {
            Mutex::new(Lane {
                writer: Writer::new(memory.clone(), worker),
                room: vec![0; FRAME_MAX + TAG].into(),
                runs: filter.as_ref().map(|f| (Runs::new(f), Runs::new(f))),
                kept: 0,
                places: Box::new([Place::default(); BURST]),
            })
        };
        let lanes = (0..memory.shape().workers).map(lane).collect();
        Capture {
            filter,
            snap,
            points,
            ahead_ns: AtomicU64::new(0),
            reader,
            lanes,
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

/// Writes records of these frames for all captures of a member that want them.
#[inline(never)]
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
        if let Some(mut lane) = watch.capture.lane(burst.worker)
            && watch.record(&mut lane, burst, (way, reason), picks, |_, _, _| {})
        {
            watch.capture.publish(&mut lane);
        }
    }
}

/// Frames that have no tag on the wire of their member only.
#[inline(always)]
fn untagged(picks: &[Pick]) -> u64 {
    match ALL[0].get(..picks.len()) {
        // A burst that is captured whole needs no look at each.
        Some(all) if !picks.is_empty() && std::ptr::eq(all, picks) => {
            u64::MAX >> (BURST - picks.len())
        }
        _ => picks.iter().fold(0, |plain, pick| {
            plain | u64::from(!pick.tagged()) << pick.index()
        }),
    }
}

impl Watch {
    /// Writes records of those frames that the filter wants, and tells `wrote` where. Whether there is anything to publish.
    #[inline]
    fn record(
        &self,
        lane: &mut Lane,
        burst: &Burst<'_, '_>,
        (way, reason): (Way, Option<Drop>),
        picks: &[Pick],
        mut wrote: impl FnMut(&mut Lane, usize, Place),
    ) -> bool {
        let capture = &*self.capture;
        let plain = untagged(picks);
        let mut frames = Private {
            heads: burst.heads,
            reach: 0,
            deep: 0,
        };
        let mut wanted = match (&capture.filter, &mut lane.runs) {
            (Some(filter), Some((runs, _))) => {
                frames.reach = burst.heads.reach();
                filter.run(runs, &mut frames, plain)
            }
            _ => plain,
        };
        let alone = frames.deep;
        let has_alone = alone != 0 || plain.count_ones() as usize != picks.len();
        if wanted == 0 && !has_alone {
            return false;
        }
        let head = Head {
            port: self.port,
            way,
            reason: reason.map_or(0, |reason| reason as u8 + 1),
            time_ns: burst
                .now
                .0
                .wrapping_add(capture.ahead_ns.load(Ordering::Relaxed)),
            len: 0,
        };
        for pick in picks {
            let i = pick.index();
            let place = if plain & !alone & 1 << i == 0 {
                self.record_alone(lane, burst, head, *pick)
            } else if wanted >> i & 1 == 0 {
                continue;
            } else {
                wanted &= !(1 << i);
                let returned = lane.runs.as_ref().map(|(runs, _)| runs.returned(i));
                let snap = capture.snap.min(returned.unwrap_or(u32::MAX));
                let len = burst.heads.meta[i % BURST].len;
                let (first, rest) = (burst.heads.private(i), burst.tails.of(i));
                let head = Head { len, ..head };
                let place = lane.writer.push(burst.section, head, snap, first, rest);
                if place.is_none() && !has_alone {
                    lane.writer.lose(wanted.count_ones().into());
                    break;
                }
                place
            };
            if let Some(place) = place {
                wrote(lane, i, place);
            }
        }
        true
    }

    /// Writes a record of a frame that needs more than its private bytes, if the filter wants it.
    #[cold]
    fn record_alone(
        &self,
        lane: &mut Lane,
        burst: &Burst<'_, '_>,
        head: Head,
        pick: Pick,
    ) -> Option<Place> {
        let capture = &*self.capture;
        let mut view = View::new(burst, pick, &mut lane.room);
        let mut snap = capture.snap;
        if let (Some(filter), Some((_, runs))) = (&capture.filter, &mut lane.runs) {
            if filter.run(runs, &mut view, 1) == 0 {
                return None;
            }
            snap = snap.min(runs.returned(0));
        }
        let head = Head {
            len: view.len,
            ..head
        };
        let (first, skip) = (view.bytes(), view.taken);
        let rest = skipping(burst.tails, pick.index(), skip);
        lane.writer.push(burst.section, head, snap, first, rest)
    }
}

/// The captures of a member, for frames that die while they wait on their way from or to it.
#[derive(Clone, Copy)]
pub(crate) struct Deaths<'a> {
    pub(crate) watches: &'a [Watch],
    pub(crate) way: Way,
    pub(crate) section: &'a Section<'a>,
    pub(crate) worker: u16,
    pub(crate) now: Tick,
}

impl Deaths<'_> {
    /// Why a queue of this direction drops a frame.
    pub(crate) fn reason(&self, cause: Cause) -> Drop {
        cause.reason(match self.way {
            Way::From => Direction::Out,
            Way::To => Direction::In,
        })
    }

    /// Tells of a frame of a burst.
    #[cold]
    pub(crate) fn tell(&self, heads: &Heads, tails: &Tails<'_>, reason: Drop, pick: Pick) {
        let burst = Burst {
            section: self.section,
            worker: self.worker,
            now: self.now,
            heads,
            tails,
        };
        note(self.watches, &burst, (self.way, Some(reason)), &[pick]);
    }

    /// Tells of a frame that `restore` makes the first of a burst.
    pub(crate) fn tell_restored<'q>(
        &'q self,
        (heads, store): &'q mut (Box<Heads>, SegStore),
        reason: Drop,
        is_tagged: bool,
        restore: impl FnOnce(&mut Heads, &mut Tails<'q>),
    ) {
        heads.clear(RxId(0), self.now);
        let mut tails = Tails::bind(store, self.section);
        restore(heads, &mut tails);
        heads.n = 1;
        self.tell(heads, &tails, reason, Pick::frame(0, is_tagged));
    }

    /// Tells of a frame that waited.
    #[cold]
    pub(crate) fn tell_held<'q>(
        &'q self,
        shown: &'q mut (Box<Heads>, SegStore),
        pool: &'q Pool,
        (held, is_tagged): (&Held, bool),
        reason: Drop,
    ) {
        self.tell_restored(shown, reason, is_tagged, |heads, tails| {
            pool.restore(held, heads, tails, 0);
        });
    }
}

/// The private bytes of a burst's frames.
struct Private<'a> {
    heads: &'a Heads,
    /// As [`Heads::reach`].
    reach: usize,
    /// Frames of which more was read: what was found out about them does not count.
    deep: u64,
}

impl Frames for Private<'_> {
    fn len(&self, i: usize) -> u32 {
        self.heads.meta[i % BURST].len
    }

    #[inline]
    fn read<const N: usize>(&mut self, i: usize, offset: u32) -> Option<[u8; N]> {
        let at = offset as usize;
        if at + N <= self.reach {
            let bytes = self.heads.snap.get(i)?.0.get(HEADROOM + at..)?;
            return bytes.first_chunk().copied();
        }
        if let Some(bytes) = self.heads.private(i).get(at..at.checked_add(N)?) {
            return bytes.first_chunk().copied();
        }
        if at + N <= self.len(i) as usize {
            self.deep |= 1 << (i % BURST);
        }
        None
    }

    #[inline(always)]
    fn load<const N: usize>(&mut self, offset: u32, to: &mut [u32]) -> bool {
        let at = HEADROOM + offset as usize;
        if offset as usize + N > self.reach {
            return false;
        }
        if (offset as usize, N) == (KIND, 2) {
            for (kind, to) in self.heads.kind.iter().zip(to) {
                *to = u16::from_be(*kind).into();
            }
            return true;
        }
        for (snap, to) in self.heads.snap.iter().zip(to) {
            if let Some(bytes) = snap.0.get(at..at + N).and_then(|bytes| bytes.first_chunk()) {
                *to = number::<N>(*bytes);
            }
        }
        true
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

impl Frames for View<'_, '_> {
    fn len(&self, _: usize) -> u32 {
        self.len
    }

    #[inline]
    fn read<const N: usize>(&mut self, _: usize, offset: u32) -> Option<[u8; N]> {
        let at = offset as usize;
        let end = at.checked_add(N)?;
        if end > self.bytes().len() && !self.deepen(end) {
            return None;
        }
        self.bytes().get(at..end)?.first_chunk().copied()
    }
}

/// What was captured of a burst on its way from a member: what may be marked is published when it is known what became of it.
pub(crate) struct Begun<'w>(&'w [Watch]);

impl<'w> Begun<'w> {
    /// Writes records of a burst that was just received.
    pub(crate) fn new(watches: &'w [Watch], burst: &Burst<'_, '_>) -> Begun<'w> {
        // One with a bad descriptor has no bytes.
        let picks = ALL[0].get(..burst.heads.n).unwrap_or(&[]);
        for watch in watches {
            if !watch.wants(Way::From, false) {
                continue;
            }
            let Some(mut lane) = watch.capture.lane(burst.worker) else {
                continue;
            };
            let how = (Way::From, None);
            if !watch.capture.points.drops {
                if watch.record(&mut lane, burst, how, picks, |_, _, _| {}) {
                    watch.capture.publish(&mut lane);
                }
                continue;
            }
            lane.writer.keep();
            lane.kept = 0;
            watch.record(&mut lane, burst, how, picks, |lane, i, place| {
                lane.kept |= 1 << i;
                lane.places[i % BURST] = place;
            });
        }
        Begun(watches)
    }

    /// Says why those died that died, and gives what was kept to the readers.
    pub(crate) fn end(&self, worker: u16, heads: &Heads) {
        for watch in self.0 {
            if !watch.capture.points.drops || !watch.wants(Way::From, false) {
                continue;
            }
            let Some(mut lane) = watch.capture.lane(worker) else {
                continue;
            };
            let Lane {
                writer,
                kept,
                places,
                ..
            } = &mut *lane;
            for (i, (place, verdict)) in places.iter().zip(&heads.verdict).enumerate() {
                if *kept >> i & 1 != 0
                    && let Some(reason) = verdict.as_drop()
                {
                    writer.mark(*place, reason as u8 + 1);
                }
            }
            writer.give();
            watch.capture.publish(&mut lane);
        }
    }
}

#[cfg(test)]
mod tests;

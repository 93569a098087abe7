//! The rings of one AF_XDP socket, as a worker sees them.
//!
//! # Model
//! A burst is taken by descriptors first, whose bytes are fetched meanwhile, then frame by frame. It stays on loan until
//! the release puts its places into the fill ring. Frames are sent from free places, which the completion ring gives back; in copy
//! mode one call for each burst has the kernel send them.
//!
//! # Synchronization
//! A receive half is one worker's. What a transmission changes is behind a lock that is only tried: a worker that finds it taken
//! spills. With a worker for each queue nobody does.
//!
//! # Failure modes
//! Frames that the interface was too busy for are left in the ring, and sent with the next burst either way, at the latest when a
//! worker looks again. While the interface is down nobody looks for that.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, TryLockError};

use rustix::io::Errno;
use windlass_frame::{BURST, Claim, HEADROOM, Heads, Meta, Pick, SNAP, Verdict};
use windlass_shm::{Foreign, ForeignMut, Section, Tails, copy_in};
use windlass_stats::Drop;
use windlass_sync::prefetch;
use windlass_sys::xdp::{Descriptor, Ring, XdpSocket};
use windlass_wire::ether::proto;
use windlass_wire::{Fragment, checksum, parse};

use super::memory::{FRAMES, Memory, Places};
use crate::port::{Armed, Kick, Lane, Limit, Loan, More, RxPort, Sent, Stop, TxCaps, TxPort};
use crate::soft;

/// What the kernel takes as it is: nothing, there is no place for metadata.
const CAPS: TxCaps = TxCaps {
    csum: false,
    tso4: false,
    tso6: false,
    ecn: false,
    uso: false,
};
/// The shortest frame: an Ethernet header.
const FRAME_MIN: u32 = 14;
/// Calls for one burst: the kernel takes at least 32 frames each, and may be asked again while the interface is busy.
const CALLS_MAX: u32 = 64;
/// How often a worker looks again at a ring from which not everything was sent, in microseconds.
const LOOK_AGAIN_US: u32 = 50;
/// Priority and drop-eligible bits of a tag.
const PRIORITY: u16 = 0xf000;

/// What moves frames of a transmit ring: the kernel, or what plays it in tests.
pub(super) trait Kernel: Send + Sync {
    /// See [`XdpSocket::send`].
    fn send(&self) -> Result<(), Errno>;
    /// See [`XdpSocket::poll`].
    fn poll(&self);
    /// See [`RxPort::wake`].
    fn wake(&self) -> Option<BorrowedFd<'_>>;
}

impl Kernel for Arc<XdpSocket> {
    fn send(&self) -> Result<(), Errno> {
        XdpSocket::send(self)
    }

    fn poll(&self) {
        XdpSocket::poll(self);
    }

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        Some(XdpSocket::as_fd(self))
    }
}

/// The four rings of a socket.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) receive: Ring<2>,
    pub(super) transmit: Ring<2>,
    pub(super) fill: Ring<1>,
    pub(super) completion: Ring<1>,
}

/// One queue of the interface: its rings, and what its two halves have in common.
pub(super) struct Queue {
    pub(super) rings: Rings,
    pub(super) kernel: Box<dyn Kernel>,
    memory: Arc<Memory>,
    places: [Places; 2],
    sender: Mutex<Sender>,
    /// Frames were left in the transmit ring.
    is_left: AtomicBool,
    /// Frames that the interface dropped when they were sent.
    refused: AtomicU64,
}

/// Where the transmit side stands.
struct Sender {
    free: Vec<u64>,
    next: u32,
    completed: u32,
}

impl Queue {
    /// The rings of queue `number`, all indexes 0. All places to receive into are offered at once.
    pub(super) fn new(
        number: u32,
        rings: Rings,
        kernel: Box<dyn Kernel>,
        memory: Arc<Memory>,
    ) -> Queue {
        let places = memory.of_queue(number);
        let [receive, send] = places;
        for (index, place) in (0..FRAMES).zip(receive.all()) {
            rings.fill.set_address(index, place);
        }
        rings.fill.set_producer(FRAMES);
        Queue {
            rings,
            kernel,
            memory,
            places,
            sender: Mutex::new(Sender {
                free: send.all().collect(),
                next: 0,
                completed: 0,
            }),
            is_left: AtomicBool::new(false),
            refused: AtomicU64::new(0),
        }
    }

    /// Frames that the interface dropped when they were sent.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Has the kernel send what the ring holds. The error if nothing more goes.
    fn drive(&self) -> Result<(), Errno> {
        // Before the calls: what another worker leaves meanwhile stays noted.
        self.is_left.store(false, Ordering::Relaxed);
        // Between the index and the kernel's wish to be called.
        fence(Ordering::SeqCst);
        let ring = &self.rings.transmit;
        if !ring.needs_wakeup() {
            return Ok(());
        }
        let mut done = Err(Errno::AGAIN);
        for _ in 0..CALLS_MAX {
            done = self.kernel.send();
            match done {
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => {}
                Err(Errno::BUSY) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                }
                _ => break,
            }
        }
        if done.is_err() {
            self.is_left.store(true, Ordering::Relaxed);
        }
        done
    }

    /// The same for what was left before.
    #[cold]
    fn drive_again(&self) -> Result<(), Errno> {
        self.drive()
    }

    fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Relaxed)
    }
}

/// The receive half of one queue.
pub struct XdpRx {
    queue: Arc<Queue>,
    next: u32,
    seen: u32,
    filled: u32,
    /// The places of the burst that is on loan.
    loan: [u64; BURST],
    /// The kernel wrote what cannot be.
    is_broken: bool,
    /// The interface is polled by our calls.
    busy_poll: bool,
    /// Frames may come with checksums left open.
    is_virtual: bool,
}

impl XdpRx {
    pub(super) fn new(queue: Arc<Queue>, busy_poll: bool, is_virtual: bool) -> XdpRx {
        XdpRx {
            queue,
            next: 0,
            seen: 0,
            filled: FRAMES,
            loan: [0; BURST],
            is_broken: false,
            busy_poll,
            is_virtual,
        }
    }

    /// Frames that wait; none for an index that cannot be. Looks at the kernel's index only when no more than `want` are known.
    #[inline(always)]
    fn known(&mut self, want: usize) -> Option<u32> {
        let known = self.seen.wrapping_sub(self.next);
        if known as usize > want {
            return Some(known);
        }
        self.seen = self.queue.rings.receive.producer();
        let known = self.seen.wrapping_sub(self.next);
        (known <= self.queue.rings.receive.size()).then_some(known)
    }

    /// Admits the frame of a descriptor that was checked.
    #[inline(always)]
    fn admit<'q>(
        &self,
        section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        i: usize,
        (at, len): (*const u8, u32),
    ) {
        if len < FRAME_MIN {
            refuse(heads, i, Drop::Runt);
            return;
        }
        let have = (len as usize).min(SNAP);
        if let Some(snap) = heads.snap.get_mut(i) {
            let to = snap.0.as_mut_ptr().wrapping_add(HEADROOM);
            // SAFETY: the frame lies in the memory, which the queue keeps; `have` is at most its length, and the snapshot has
            // SNAP bytes behind its headroom.
            unsafe { copy_in(to, at, have) };
        }
        heads.admit(i, len, Claim::NONE);
        if self.is_virtual {
            let claim = left_open(heads.private(i), len);
            heads.admit(i, len, claim);
        }
        if len as usize > SNAP {
            // SAFETY: the rest of the same frame; the memory is kept until the section ends, since this half is.
            let rest = unsafe { Foreign::at(section, at.wrapping_add(SNAP), len - SNAP as u32) };
            tails.push(i, rest);
        }
    }
}

/// Whether the rest may go if it is tried again.
fn is_busy(done: Result<(), Errno>) -> bool {
    matches!(
        done,
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::BUSY)
    )
}

/// Frame `i` is dropped for a reason.
#[cold]
fn refuse(heads: &mut Heads, i: usize, reason: Drop) {
    heads.admit(i, 0, Claim::NONE);
    if let (Some(dst), Some(src), Some(verdict)) = (
        heads.dst.get_mut(i),
        heads.src.get_mut(i),
        heads.verdict.get_mut(i),
    ) {
        (*dst, *src, *verdict) = (0, 0, Verdict::drop(reason));
    }
}

/// What a sender behind a virtual wire left to be done: a checksum field that holds the sum of the pseudo header alone.
/// A frame whose checksum is complete and has that very value comes to no harm: completed again, it stays as it is.
#[inline(never)]
fn left_open(private: &[u8], len: u32) -> Claim {
    claim_of(private, len).unwrap_or(Claim::NONE)
}

fn claim_of(private: &[u8], len: u32) -> Option<Claim> {
    let layers = parse(private, len);
    let offset = match layers.proto {
        proto::TCP => 16,
        proto::UDP => 6,
        _ => return None,
    };
    if layers.l4 == 0 || layers.fragment != Fragment::No {
        return None;
    }
    let (at, from) = (layers.l4_at(), layers.l3_at());
    let bytes = (layers.end as usize).checked_sub(at)?;
    let ip = private.get(from..at)?;
    let sum = match ip.first()? >> 4 {
        4 => {
            let (src, dst) = (ip.get(12..)?.first_chunk()?, ip.get(16..)?.first_chunk()?);
            checksum::pseudo_v4(src, dst, layers.proto, bytes as u16)
        }
        _ => {
            let (src, dst) = (ip.get(8..)?.first_chunk()?, ip.get(24..)?.first_chunk()?);
            checksum::pseudo_v6(src, dst, layers.proto, bytes as u32)
        }
    };
    let field = private.get(at + offset..)?.first_chunk().copied()?;
    let is_open = u16::from_be_bytes(field) == sum.partial();
    is_open.then_some(Claim {
        flags: Claim::NEEDS_CSUM,
        csum_start: at as u16,
        csum_offset: offset as u16,
        ..Claim::NONE
    })
}

impl RxPort for XdpRx {
    fn rx_burst<'q>(
        &mut self,
        section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        let want = limit.frames.min(BURST);
        if self.queue.is_left() {
            let _ = self.queue.drive_again();
        }
        let mut known = self.known(want);
        if self.busy_poll && known == Some(0) {
            self.queue.kernel.poll();
            known = self.known(want);
        }
        let Some(known) = known.filter(|_| !self.is_broken) else {
            self.is_broken = true;
            return (Loan::default(), More::Dead);
        };
        let upto = want.min(known as usize);
        let mut frames = [(std::ptr::null_mut(), 0); BURST];
        let mut staged = 0;
        for (frame, place) in frames.iter_mut().zip(&mut self.loan).take(upto) {
            let index = self.next.wrapping_add(staged);
            let descriptor = self.queue.rings.receive.descriptor(index);
            let [places, _] = self.queue.places;
            let found = places.of_frame(descriptor);
            let at = self.queue.memory.find(descriptor.address, descriptor.len);
            let (Some(found), Some(at)) = (found, at) else {
                self.is_broken = true;
                break;
            };
            prefetch::read(at);
            (*frame, *place) = ((at, descriptor.len), found);
            staged += 1;
        }
        let (mut bytes, mut taken) = (0, 0);
        for (at, len) in frames.iter().take(staged as usize) {
            self.admit(section, heads, tails, taken, (*at, *len));
            taken += 1;
            bytes += *len as usize;
            if bytes >= limit.bytes {
                break;
            }
        }
        self.next = self.next.wrapping_add(taken as u32);
        let loan = Loan {
            upto: self.next.into(),
            count: taken as u32,
        };
        if self.is_broken && taken == staged as usize && taken < BURST {
            // The bad one is counted; the next burst ends the connection.
            refuse(heads, taken, Drop::BadDescriptor);
            taken += 1;
        }
        heads.n = taken;
        let is_drained = !self.is_broken && self.seen == self.next;
        let more = if is_drained {
            More::Drained
        } else {
            More::Left
        };
        (loan, more)
    }

    fn release(&mut self, _section: &Section<'_>, loan: Loan) {
        if loan.count == 0 {
            return;
        }
        let rings = &self.queue.rings;
        rings.receive.set_consumer(loan.upto as u32);
        for place in self.loan.iter().take(loan.count as usize) {
            rings.fill.set_address(self.filled, *place);
            self.filled = self.filled.wrapping_add(1);
        }
        rings.fill.set_producer(self.filled);
        if rings.fill.needs_wakeup() {
            self.queue.kernel.poll();
        }
    }

    fn arm(&mut self, _section: &Section<'_>) -> Armed {
        if self.is_broken || self.known(1) != Some(0) {
            return Armed::Work;
        }
        match self.queue.is_left() && is_busy(self.queue.drive_again()) {
            true => Armed::Poll(LOOK_AGAIN_US),
            false => Armed::Yes,
        }
    }

    fn disarm(&mut self, _section: &Section<'_>) {}

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.queue.kernel.wake()
    }

    fn polls_memory(&self) -> bool {
        !self.busy_poll
    }
}

/// The transmit half: all queues.
pub struct XdpTx {
    queues: Vec<Arc<Queue>>,
}

impl XdpTx {
    /// Sends on `queues`, of which a worker uses the one of its number modulo their count.
    pub(super) fn new(queues: Vec<Arc<Queue>>) -> XdpTx {
        XdpTx { queues }
    }
}

/// A burst on its way into a transmit ring.
struct Job<'a, 'q> {
    queue: &'a Queue,
    sender: &'a mut Sender,
    section: &'a Section<'q>,
    heads: &'a Heads,
    tails: &'a Tails<'q>,
}

impl Sender {
    /// Takes places back whose frames were sent. False for an index that cannot be.
    fn reclaim(&mut self, queue: &Queue) -> bool {
        let ring = &queue.rings.completion;
        let known = ring.producer().wrapping_sub(self.completed);
        if known > ring.size() {
            return false;
        }
        let [_, places] = queue.places;
        for k in 0..known {
            let address = ring.address(self.completed.wrapping_add(k));
            let room = self.free.len() < FRAMES as usize;
            match places.of(address).filter(|_| room) {
                Some(place) => self.free.push(place),
                None => return false,
            }
        }
        self.completed = self.completed.wrapping_add(known);
        ring.set_consumer(self.completed);
        true
    }
}

impl Job<'_, '_> {
    /// A free place, as an address and as memory.
    fn take(&mut self) -> Option<(u64, *mut u8)> {
        let place = self.sender.free.pop()?;
        let at = self
            .queue
            .memory
            .find(place, self.queue.memory.frame_max())?;
        Some((place, at))
    }

    /// Enters a frame that was written.
    fn enter(&mut self, place: u64, len: u32) {
        let frame = Descriptor {
            address: place,
            len,
            options: 0,
        };
        self.queue
            .rings
            .transmit
            .set_descriptor(self.sender.next, frame);
        self.sender.next = self.sender.next.wrapping_add(1);
    }

    /// Writes one frame that is to be sent as it is. False if there is no place.
    fn whole(&mut self, pick: Pick, meta: &Meta, sent: &mut Sent) -> bool {
        let tag_bytes = if pick.tagged() { 4 } else { 0 };
        let len = meta.len + tag_bytes;
        if len > self.queue.memory.frame_max() {
            sent.drop_frame(Drop::TooBig);
            return true;
        }
        let Some((place, at)) = self.take() else {
            return false;
        };
        let i = pick.index();
        // SAFETY: the place is ours until it is entered, lies in the memory, and has room for the frame.
        let mut room = unsafe { ForeignMut::at(self.section, at, len) };
        let private = self.heads.private(i);
        match private.split_at_checked(12) {
            Some((addresses, rest)) if pick.tagged() => {
                let [high, low] = (meta.tci & PRIORITY | meta.vid).to_be_bytes();
                room.write(addresses);
                room.write(&[0x81, 0x00, high, low]);
                room.write(rest);
            }
            _ => {
                room.write(private);
            }
        }
        for piece in self.tails.of(i) {
            room.copy(piece);
        }
        self.enter(place, len - room.len() as u32);
        sent.frames += 1;
        sent.bytes += u64::from(len);
        true
    }

    /// Has the software stage finish a frame. False if there are not enough places.
    #[cold]
    #[inline(never)]
    fn finished(&mut self, pick: Pick, sent: &mut Sent) -> bool {
        let frames = soft::frames(self.heads, pick, CAPS);
        if frames == 0 || frames > FRAMES as usize {
            sent.drop_frame(Drop::SegmentLimit);
            return true;
        }
        if frames > self.sender.free.len() {
            return false;
        }
        let (heads, tails, frame_max) = (self.heads, self.tails, self.queue.memory.frame_max());
        let mut bytes = 0;
        let mut is_whole = true;
        let made = soft::finish(heads, tails, pick, CAPS, |frame| {
            let len = frame.len() as u32;
            let taken = (len <= frame_max).then(|| self.take()).flatten();
            let Some((place, at)) = taken else {
                is_whole = false;
                return false;
            };
            // SAFETY: as in `whole`.
            let mut room = unsafe { ForeignMut::at(self.section, at, len) };
            room.write(frame);
            self.enter(place, len);
            bytes += u64::from(len);
            true
        });
        match made {
            Ok(count) if is_whole => {
                sent.frames += 1;
                sent.bytes += bytes;
                sent.segments += if count > 1 { count } else { 0 };
            }
            Ok(_) => sent.drop_frame(Drop::TooBig),
            Err(reason) => sent.drop_frame(reason),
        }
        true
    }
}

impl TxPort for XdpTx {
    fn is_foreign(&self) -> bool {
        false
    }

    fn caps(&self) -> TxCaps {
        CAPS
    }

    fn tx_burst(
        &self,
        section: &Section<'_>,
        lane: Lane,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        let mut sent = Sent {
            kick: Kick::Core,
            ..Sent::default()
        };
        let at = usize::from(lane.worker) % self.queues.len().max(1);
        let Some(queue) = self.queues.get(at) else {
            sent.stop = Stop::Down;
            return sent;
        };
        let mut guard = match queue.sender.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                sent.stop = Stop::Busy;
                return sent;
            }
        };
        let is_down = |done| matches!(done, Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV));
        if (queue.is_left() && is_down(queue.drive_again())) || !guard.reclaim(queue) {
            sent.stop = Stop::Down;
            return sent;
        }
        let before = guard.next;
        let mut job = Job {
            queue,
            sender: &mut guard,
            section,
            heads,
            tails,
        };
        for pick in picks {
            let Some(meta) = heads.meta.get(pick.index()) else {
                break;
            };
            let is_done = match meta.off.is_plain() {
                true => job.whole(*pick, meta, &mut sent),
                false => job.finished(*pick, &mut sent),
            };
            if !is_done {
                sent.stop = Stop::Full;
                break;
            }
            sent.taken += 1;
        }
        if guard.next != before {
            queue.rings.transmit.set_producer(guard.next);
            let _ = queue.drive();
        }
        sent
    }

    fn kick(&self, _lane: Lane) {}
}

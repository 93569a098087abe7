//! Records in shared memory: from the workers to the reader of a capture.
//!
//! # Model
//! One memory object for each capture. It has a ring of bytes for each worker, and the names of the ports that records speak of.
//!
//! ```text
//! lines    for each worker: [head, matched, lost] written by the worker   [tail, asleep] written by the reader
//! ports    PORTS entries: what a port is, and its name. An entry is written once, before its first record
//! rings    for each worker `ring_bytes`: records one after another; none is cut by the end of the ring
//! ```
//! A record is a header of [`HEADER`] bytes and the frame's first bytes, rounded up to 8. Where the next one does not fit before the
//! ring's end, a record of kind 0 fills the rest.
//!
//! # Synchronization
//! | store | load that pairs with it |
//! | --- | --- |
//! | `head` (release): records before it are whole | `head` (acquire), by the reader |
//! | `tail` (release): records before it were read | `tail` (acquire), by the worker, when the room that it knows of is used up |
//! | an entry of `ports`: before the topology that has it is published | after the record that names it was acquired |
//! | `asleep` = 1, fence, `head` again (reader) | `head`, fence, `asleep` (worker) |
//!
//! The last line is what loses no wake-up. The reader says that it sleeps, then looks at every head once more; a worker publishes its
//! head, then looks whether the reader sleeps. Both have a sequentially consistent fence in between, so one of them sees the
//! other: the reader finds the records, or the worker finds it asleep and sends the wake-up. A worker that has sent it clears `asleep`, so
//! one question of the reader has one answer of each worker. The wake-up is a byte in the socket of the capture: it stays there until the reader
//! takes it, so it does not matter whether the reader sleeps yet; and where the socket has no room for it, others are in it.
//! `tests/loom_wake.rs` of `base/sync` runs every order of these steps.
//!
//! # What can be lost
//! A record for which the ring has no room; it is counted in `lost`, and the frame goes its way. A worker never waits.
//!
//! # Failure modes
//! The reader can write to all of it. The worker reads nothing back but `tail` and `asleep`: a tail that is behind the ring's length or
//! before the head counts as a full ring, and one that lies costs the reader its own records. What it has overwritten it reads itself.
//! It cannot punch holes, for which a worker would pay a page fault for each 4 KiB: the memory is [closed](Memory::close) once the reader
//! has mapped it, before the first record.
//!
//! # Limits
//! [`RING_BYTES`], [`WORKERS_MAX`], [`PORTS`].

use core::ops::RangeInclusive;
use core::sync::atomic::{Ordering, fence};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use thiserror::Error;
pub use windlass_shm::MapError;
use windlass_shm::{Foreign, Mapping, Section};

/// Bytes of one worker's ring: a power of two.
pub const RING_BYTES: RangeInclusive<u32> = 64 << 10..=64 << 20;
/// Workers that one capture can have.
pub const WORKERS_MAX: u32 = 256;
/// Ports that one capture can name; records of any beyond name the last.
pub const PORTS: u16 = 1024;
/// Bytes of a port's name at most.
pub const NAME: usize = 62;
/// Bytes before a record's frame.
pub const HEADER: usize = 24;

/// Bytes of a worker's lines.
const LINES: usize = 256;
const MATCHED: usize = 8;
const LOST: usize = 16;
const TAIL: usize = 128;
const ASLEEP: usize = 136;
/// Bytes of a port's entry: what it is, the length of its name, its name.
const ENTRY: usize = 64;

/// A reader gives room back in parts of a ring: each time costs the worker a line that it has to fetch.
const FREED: u64 = 16;

/// A record of this kind only fills the end of the ring.
const FILLER: u8 = 0;

/// Which way a frame went at the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Way {
    /// The port's peer has sent it.
    From = 1,
    /// It was for the port's peer.
    To = 2,
}

/// What a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A virtual NIC: its peer is a guest or a program.
    Vnic = 1,
    /// An interface of the host: its peer is the network.
    Uplink = 2,
}

/// How the memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rings.
    pub workers: u32,
    /// Bytes of each.
    pub ring_bytes: u32,
}

/// A shape that is none.
#[derive(Debug, Error)]
#[error("{workers} rings of {ring_bytes} bytes are no memory of a capture")]
pub struct BadShape {
    workers: u32,
    ring_bytes: u32,
}

impl Shape {
    /// # Errors
    /// No worker, more than [`WORKERS_MAX`], or a ring that is no power of two in [`RING_BYTES`].
    pub fn check(self) -> Result<Shape, BadShape> {
        let Shape {
            workers,
            ring_bytes,
        } = self;
        let is_good = (1..=WORKERS_MAX).contains(&workers)
            && RING_BYTES.contains(&ring_bytes)
            && ring_bytes.is_power_of_two();
        is_good.then_some(self).ok_or(BadShape {
            workers,
            ring_bytes,
        })
    }

    fn ports(self) -> usize {
        self.workers as usize * LINES
    }

    fn rings(self) -> usize {
        (self.ports() + usize::from(PORTS) * ENTRY).next_multiple_of(4096)
    }

    /// Bytes of the whole memory.
    pub fn bytes(self) -> usize {
        self.rings() + self.workers as usize * self.ring_bytes as usize
    }
}

/// The memory as the daemon has it.
#[derive(Debug)]
pub struct Memory {
    mapping: Mapping,
    shape: Shape,
}

impl Memory {
    /// Makes it: memory of a fixed size. Returns the descriptor for the reader.
    ///
    /// # Errors
    /// As [`Mapping::create_open`].
    pub fn create(shape: Shape) -> Result<(Arc<Memory>, OwnedFd), MapError> {
        let (mapping, fd) = Mapping::create_open("windlass-capture", shape.bytes())?;
        Ok((Arc::new(Memory { mapping, shape }), fd))
    }

    /// Once the reader has mapped it, and before anything is captured: from now on every page stays.
    ///
    /// # Errors
    /// As [`Mapping::close`].
    pub fn close(&self, fd: BorrowedFd<'_>) -> Result<(), MapError> {
        self.mapping.close(fd)
    }

    /// How it is divided.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Writes what port `number` is. Before any record names it.
    pub fn name(&self, number: u16, kind: Kind, name: &str) {
        let mut entry = [0; ENTRY];
        let name = name.as_bytes();
        let name = name.get(..NAME).unwrap_or(name);
        (entry[0], entry[1]) = (kind as u8, name.len() as u8);
        entry[2..2 + name.len()].copy_from_slice(name);
        let at = self.shape.ports() + usize::from(number.min(PORTS - 1)) * ENTRY;
        self.mapping.write(at as u64, &entry);
    }
}

/// What a record says besides the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The port.
    pub port: u16,
    /// Which way the frame went there.
    pub way: Way,
    /// Why it was dropped: the number of the reason, from 1 on. 0: it was not.
    pub reason: u8,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Bytes of the whole frame.
    pub len: u32,
}

/// Where a record is that is not published yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place(u64);

/// One worker's end. What it has pushed is the reader's with [`Writer::publish`].
#[derive(Debug)]
pub struct Writer {
    memory: Arc<Memory>,
    lines: usize,
    ring: u64,
    /// Bytes ever written.
    head: u64,
    /// Where records begin that may still be marked.
    kept: Option<u64>,
    /// What the reader had read when it was last asked.
    tail: u64,
    matched: u64,
    lost: u64,
}

impl Writer {
    /// The end of worker `worker`. There is one.
    pub fn new(memory: Arc<Memory>, worker: u32) -> Writer {
        let shape = memory.shape;
        let worker = worker.min(shape.workers - 1) as usize;
        Writer {
            lines: worker * LINES,
            ring: (shape.rings() + worker * shape.ring_bytes as usize) as u64,
            memory,
            head: 0,
            kept: None,
            tail: 0,
            matched: 0,
            lost: 0,
        }
    }

    /// Adds a record of a frame's first bytes: `first`, then pieces of `rest`, up to `snap` bytes. None if there is no room: it is counted.
    #[inline]
    pub fn push<'q>(
        &mut self,
        section: &'q Section<'_>,
        head: Head,
        snap: u32,
        first: &[u8],
        rest: impl Iterator<Item = Foreign<'q>>,
    ) -> Option<Place> {
        self.matched += 1;
        let captured = head.len.min(snap) as usize;
        let bytes = (HEADER + captured).next_multiple_of(8) as u64;
        let Some(at) = self.reserve(bytes) else {
            self.lost += 1;
            return None;
        };
        let place = Place(self.ring + at);
        let (way, reason) = (head.way as u64, u64::from(head.reason));
        let words = [
            bytes | way << 32 | reason << 40 | u64::from(head.port) << 48,
            head.time_ns,
            captured as u64 | u64::from(head.len) << 32,
        ];
        // `reserve` has found it inside.
        let memory = &self.memory.mapping;
        for (at, word) in (place.0 as usize..).step_by(8).zip(words) {
            memory.store_u64(at, word.to_le(), Ordering::Relaxed);
        }
        let mut to = memory.slice_mut(section, place.0 + HEADER as u64, captured as u32)?;
        to.write(first);
        if !to.is_empty() {
            for piece in rest {
                to.copy(piece);
            }
        }
        self.head += bytes;
        Some(place)
    }

    /// Records from here on are not published before [`Writer::give`], since they may be [marked](Writer::mark).
    pub fn keep(&mut self) {
        self.kept = Some(self.head);
    }

    /// What was kept is published with the next.
    pub fn give(&mut self) {
        self.kept = None;
    }

    /// Says of a record that is not published yet why its frame was dropped.
    pub fn mark(&mut self, place: Place, reason: u8) {
        self.memory.mapping.write(place.0 + 5, &[reason]);
    }

    /// A record of the worker's was lost without having been tried.
    pub fn lose(&mut self, records: u64) {
        self.matched += records;
        self.lost += records;
    }

    /// Room for a record, as its place in the ring.
    #[inline]
    fn reserve(&mut self, bytes: u64) -> Option<u64> {
        let size = u64::from(self.memory.shape.ring_bytes);
        let at = self.head & (size - 1);
        let filler = if bytes > size - at { size - at } else { 0 };
        let wanted = bytes + filler;
        if !self.has_room(wanted, size) {
            let tail = self.lines + TAIL;
            self.tail = self.memory.mapping.load_u64(tail, Ordering::Acquire);
            if !self.has_room(wanted, size) {
                return None;
            }
        }
        if filler == 0 {
            return Some(at);
        }
        // A multiple of 8 bytes.
        let mut header = [0; 8];
        header[..4].copy_from_slice(&(filler as u32).to_le_bytes());
        header[4] = FILLER;
        self.memory.mapping.write(self.ring + at, &header);
        self.head += filler;
        Some(0)
    }

    /// Whether so many bytes are free, by the tail that is known.
    #[inline(always)]
    fn has_room(&self, bytes: u64, size: u64) -> bool {
        let used = self.head.wrapping_sub(self.tail);
        used <= size && bytes <= size - used
    }

    /// Gives the reader what was pushed and is not kept; whether it is to be woken.
    #[inline]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        let memory = &self.memory.mapping;
        memory.store_u64(self.lines + MATCHED, self.matched, Ordering::Relaxed);
        memory.store_u64(self.lines + LOST, self.lost, Ordering::Relaxed);
        let head = self.kept.unwrap_or(self.head);
        memory.store_u64(self.lines, head, Ordering::Release);
        fence(Ordering::SeqCst);
        let is_asleep = memory.load_u32(self.lines + ASLEEP, Ordering::Relaxed) != 0;
        if is_asleep {
            memory.store_u32(self.lines + ASLEEP, 0, Ordering::Relaxed);
        }
        is_asleep
    }
}

/// What the workers have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Frames that matched the filter.
    pub matched: u64,
    /// Those for whose record there was no room.
    pub lost: u64,
}

/// One worker's ring, as the reader knows it.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Bytes ever read.
    tail: u64,
    /// What was written when the worker was last asked.
    head: u64,
    /// What the worker knows to be read.
    freed: u64,
    /// What the record at the tail says of itself, if it was looked at.
    header: Option<[u8; HEADER]>,
}

impl Seen {
    /// When the record at the tail was made.
    fn time_ns(&self) -> Option<u64> {
        Some(u64::from_le_bytes(*self.header?.get(8..)?.first_chunk()?))
    }
}

/// The reader's end.
#[derive(Debug)]
pub struct Reader {
    mapping: Mapping,
    shape: Shape,
    seen: Vec<Seen>,
}

impl Reader {
    /// Maps the memory.
    ///
    /// # Errors
    /// As [`Mapping::foreign`].
    pub fn new(fd: BorrowedFd<'_>, shape: Shape) -> Result<Reader, MapError> {
        Ok(Reader {
            mapping: Mapping::foreign(fd, shape.bytes() as u64)?,
            shape,
            seen: vec![Seen::default(); shape.workers as usize],
        })
    }

    /// The next record: that of the earliest time among the rings, whose frame's first bytes take the place of what was in `bytes`. None if
    /// there is none now.
    pub fn next(&mut self, bytes: &mut Vec<u8>) -> Option<Head> {
        let mut first: Option<(u64, usize)> = None;
        for worker in 0..self.seen.len() {
            if let Some(time_ns) = self.peek(worker)
                && first.is_none_or(|(other, _)| time_ns < other)
            {
                first = Some((time_ns, worker));
            }
        }
        let (_, worker) = first?;
        self.take(worker, bytes)
    }

    /// Where a place of a ring is, and the bytes from there to the ring's end.
    fn at(&self, worker: usize, place: u64) -> (u64, u64) {
        let size = u64::from(self.shape.ring_bytes);
        let ring = self.shape.rings() as u64 + worker as u64 * size;
        let place = place & (size - 1);
        (ring + place, size - place)
    }

    /// When the next record of a worker was made. Without one the worker knows of all that was read.
    fn peek(&mut self, worker: usize) -> Option<u64> {
        let mut seen = *self.seen.get(worker)?;
        while seen.header.is_none() {
            if seen.tail == seen.head {
                seen.head = self.mapping.load_u64(worker * LINES, Ordering::Acquire);
                if seen.tail == seen.head {
                    self.free(worker, &mut seen, 0);
                    break;
                }
            }
            let (at, left) = self.at(worker, seen.tail);
            let mut header = [0; HEADER];
            let there = left.min(HEADER as u64) as usize;
            self.mapping.read(at, header.get_mut(..there)?);
            let [b0, b1, b2, b3, kind, ..] = header;
            if kind != FILLER {
                seen.header = Some(header);
                break;
            }
            // Whatever else it said, it goes on, and not behind what was written.
            let bytes = u64::from(u32::from_le_bytes([b0, b1, b2, b3]));
            seen.tail += bytes.clamp(8, (seen.head.wrapping_sub(seen.tail)).max(8));
        }
        *self.seen.get_mut(worker)? = seen;
        seen.time_ns()
    }

    fn take(&mut self, worker: usize, frame: &mut Vec<u8>) -> Option<Head> {
        let mut seen = *self.seen.get(worker)?;
        let (time_ns, header) = (seen.time_ns()?, seen.header.take()?);
        let word = |at: usize| {
            let bytes = header.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        let written = seen.head.wrapping_sub(seen.tail);
        let bytes = u64::from(word(0)).clamp(8, written.max(8));
        let captured = u64::from(word(16)).min(bytes.saturating_sub(HEADER as u64));
        frame.resize(captured as usize, 0);
        let (at, _) = self.at(worker, seen.tail);
        self.mapping.read(at + HEADER as u64, frame);
        seen.tail += bytes;
        let is_far = u64::from(self.shape.ring_bytes) / FREED;
        self.free(worker, &mut seen, is_far);
        *self.seen.get_mut(worker)? = seen;
        Some(Head {
            port: u16::from_le_bytes([header[6], header[7]]),
            way: match header[4] {
                1 => Way::From,
                _ => Way::To,
            },
            reason: header[5],
            time_ns,
            len: word(20),
        })
    }

    /// Has the worker know what was read, if that is more than so many bytes.
    fn free(&self, worker: usize, seen: &mut Seen, more_than: u64) {
        if seen.tail.wrapping_sub(seen.freed) > more_than {
            let at = worker * LINES + TAIL;
            self.mapping.store_u64(at, seen.tail, Ordering::Release);
            seen.freed = seen.tail;
        }
    }

    /// Says that the reader is about to sleep. If it returns false there are records: it does not sleep, and is woken once in vain.
    #[must_use]
    pub fn sleeps(&mut self) -> bool {
        for worker in 0..self.seen.len() {
            self.mapping
                .store_u32(worker * LINES + ASLEEP, 1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        (0..self.seen.len()).all(|worker| self.peek(worker).is_none())
    }

    /// What a port is, and its name.
    pub fn port(&self, number: u16) -> (Option<Kind>, String) {
        let mut entry = [0; ENTRY];
        let at = self.shape.ports() + usize::from(number.min(PORTS - 1)) * ENTRY;
        self.mapping.read(at as u64, &mut entry);
        let kind = match entry[0] {
            1 => Some(Kind::Vnic),
            2 => Some(Kind::Uplink),
            _ => None,
        };
        let name = entry.get(2..2 + usize::from(entry[1]));
        let name = String::from_utf8_lossy(name.unwrap_or_default());
        (kind, name.into_owned())
    }

    /// What was counted until now.
    pub fn counted(&self) -> Counted {
        let load = |worker, at| {
            self.mapping
                .load_u64(worker * LINES + at, Ordering::Relaxed)
        };
        (0..self.seen.len()).fold(Counted::default(), |sum, worker| Counted {
            matched: sum.matched.wrapping_add(load(worker, MATCHED)),
            lost: sum.lost.wrapping_add(load(worker, LOST)),
        })
    }
}

#[cfg(test)]
mod tests;

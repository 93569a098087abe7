//! # Purpose
//! Sends TCP segments of up to 64 KiB, which the guests' network cards were to cut, from one guest to another, and the
//! plain copy that it is measured against.
//!
//! # Life of a segment
//! It is built once, in the sender's memory, and described by an indirect table: its headers, then pieces of the size of
//! a page or more, as Linux has them. The sink's buffers are mergeable. It looks at each buffer's length and at the
//! headers of each segment, and compares every byte of one in [`COMPARE_EVERY`].
//!
//! # What can be lost
//! Nothing here: see [`crate::generator`]. Segments carry the number of their slot, so one that was left out or came
//! twice is seen.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use windlass_shm::Table;

use crate::frames::{SEGMENT_HEADERS, SEGMENT_MSS, SENDER, segment, segment_number, sink_address};
use crate::generator::{Ends, Outlet};
use crate::memory::Memory;
use crate::vhost::{Buffers, HEADER_BYTES, Pieces, Written};

/// Segments sent at once, and buffers taken at once.
const SEND_BURST: u16 = 4;
const TAKE_BURST: u16 = 128;
/// Buffers of each queue, as powers of two.
const LOG2_RECEIVE: u8 = 10;
const LOG2_SEND: u8 = 8;
const ROUNDS_BETWEEN_CHORES: u32 = 64;
/// One segment in so many is compared byte by byte.
const COMPARE_EVERY: u64 = 512;
/// The switch has this long to deliver what it holds.
const DRAIN: Duration = Duration::from_millis(300);

/// The first two bytes of the virtio header of a segment that was not cut: `NEEDS_CSUM`, `GSO_TCPV4`.
const UNCUT: u16 = 0x0101;

/// Bytes of a segment: the headers and as many whole frames as IPv4 has room for.
pub const BYTES: u32 = SEGMENT_HEADERS + 45 * SEGMENT_MSS as u32;

/// How segments lie in the guests' memories.
#[derive(Clone, Copy, Debug)]
pub struct SegmentShape {
    /// Bytes of each of the sink's buffers.
    pub room: u32,
    /// Bytes of each piece behind the headers.
    pub piece: u32,
}

impl SegmentShape {
    /// Whole pages on both sides, as Linux has them under such traffic.
    pub const DEFAULT: SegmentShape = SegmentShape {
        room: 4096,
        piece: 4096,
    };

    /// The buffers of the receive and of the transmit queue of each guest.
    ///
    /// # Errors
    /// If a segment has too many pieces.
    pub fn buffers(self) -> Result<[Buffers; 2]> {
        let pieces = Pieces {
            frame: BYTES,
            headers: SEGMENT_HEADERS,
            each: self.piece,
        };
        Ok([
            Buffers::of_linux(LOG2_RECEIVE, self.room),
            Buffers::in_pieces(LOG2_SEND, pieces)?,
        ])
    }
}

/// What a run has seen.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct SegmentReport {
    /// Bytes of each.
    pub bytes: u32,
    /// Segments that the switch took, warm-up included.
    pub sent: u64,
    /// Segments that came out whole.
    pub received: u64,
    /// The difference.
    pub lost: u64,
    /// Gigabytes (10^9 bytes) a second that came out in the measured time.
    pub gb_per_s: f64,
    /// Segments with another length, cut, or with bytes other than were sent.
    pub wrong: u64,
    /// Segments of which every byte was compared.
    pub compared: u64,
    /// Share of rounds in which nothing could be sent and nothing had come: near 0 the generator is the limit.
    pub idle_share: f64,
    /// Whether both memories are in huge pages.
    pub huge_pages: bool,
}

/// Sends segments of `bytes` bytes at full rate: `warm` before the measurement, `time` in it.
///
/// # Errors
/// If none came out, or the switch stops taking them.
pub fn run<O: Outlet, I: Written>(
    sender: &mut Ends<O, I>,
    sink: &mut Ends<O, I>,
    bytes: u32,
    (warm, time): (Duration, Duration),
) -> Result<SegmentReport> {
    let huge_pages = sender.outlet.memory().is_huge() && sink.inlet.memory().is_huge();
    let outlet = &sender.outlet;
    let frames: Vec<Vec<u8>> = (0..outlet.slots())
        .map(|slot| segment(sink_address(0), SENDER, bytes as usize, slot.into()))
        .collect();
    for (slot, frame) in (0..outlet.slots()).zip(&frames) {
        outlet.memory().write(outlet.buffer(slot), frame);
    }
    let mut pipe = Pipe {
        outlet: &mut sender.outlet,
        inlet: &mut sink.inlet,
        bytes,
        sent: 0,
        seen: Seen::new(&frames),
    };
    pipe.run(warm);
    let (received, begun) = (pipe.seen.received, Instant::now());
    let idle_share = pipe.run(time);
    let seconds = begun.elapsed().as_secs_f64();
    let measured = pipe.seen.received - received;
    pipe.drain()?;
    let seen = &pipe.seen;
    if measured == 0 || seen.compared == 0 {
        bail!(
            "no segment came out: {} sent, {} wrong",
            pipe.sent,
            seen.wrong
        );
    }
    Ok(SegmentReport {
        bytes,
        sent: pipe.sent,
        received: seen.received,
        lost: pipe.sent.saturating_sub(seen.received + seen.wrong),
        gb_per_s: (measured * u64::from(bytes)) as f64 / seconds / 1e9,
        wrong: seen.wrong,
        compared: seen.compared,
        idle_share,
        huge_pages,
    })
}

struct Pipe<'e, O, I> {
    outlet: &'e mut O,
    inlet: &'e mut I,
    bytes: u32,
    sent: u64,
    seen: Seen<'e>,
}

impl<O: Outlet, I: Written> Pipe<'_, O, I> {
    /// Sends and receives for `time`; gives the share of idle rounds.
    fn run(&mut self, time: Duration) -> f64 {
        let end = Instant::now() + time;
        let (mut rounds, mut idle) = (0u64, 0u64);
        while Instant::now() < end {
            for _ in 0..ROUNDS_BETWEEN_CHORES {
                let sent = self.outlet.send(SEND_BURST, self.bytes, |_, _, _| ());
                self.sent += if sent { u64::from(SEND_BURST) } else { 0 };
                if self.take() == 0 && !sent {
                    idle += 1;
                    std::hint::spin_loop();
                }
            }
            rounds += u64::from(ROUNDS_BETWEEN_CHORES);
        }
        idle as f64 / rounds.max(1) as f64
    }

    #[inline]
    fn take(&mut self) -> u16 {
        let seen = &mut self.seen;
        self.inlet.take_written(TAKE_BURST, |memory, at, written| {
            seen.buffer(memory, at, written)
        })
    }

    fn drain(&mut self) -> Result<()> {
        let end = Instant::now() + DRAIN;
        while Instant::now() < end {
            self.take();
        }
        if !self.outlet.is_drained() {
            bail!("the switch stopped taking segments");
        }
        Ok(())
    }
}

/// What has come.
struct Seen<'f> {
    frames: &'f [Vec<u8>],
    received: u64,
    wrong: u64,
    compared: u64,
    /// Of the segment that is coming: buffers that are still to come, its bytes so far, whether it was whole so far.
    left: u16,
    bytes: u32,
    whole: bool,
    /// Its slot, and its bytes if they are compared.
    slot: usize,
    copy: Option<Vec<u8>>,
}

impl<'f> Seen<'f> {
    fn new(frames: &'f [Vec<u8>]) -> Seen<'f> {
        Seen {
            frames,
            received: 0,
            wrong: 0,
            compared: 0,
            left: 0,
            bytes: 0,
            whole: true,
            slot: 0,
            copy: None,
        }
    }

    #[inline]
    fn buffer(&mut self, memory: &Memory, at: u32, written: Option<u32>) {
        let used = written.unwrap_or(0);
        // Only the first buffer of a segment has a virtio header.
        let is_first = self.left == 0;
        let (from, bytes) = if is_first {
            self.begin(memory, at);
            (at, used.saturating_sub(HEADER_BYTES))
        } else {
            (at - HEADER_BYTES, used)
        };
        self.whole &= bytes > 0;
        self.bytes += bytes;
        if let Some(copy) = &mut self.copy {
            let had = copy.len();
            copy.resize(had + bytes as usize, 0);
            memory.read(from, &mut copy[had..]);
        }
        self.left -= 1;
        if self.left == 0 {
            self.end();
        }
    }

    #[inline]
    fn begin(&mut self, memory: &Memory, at: u32) {
        self.left = memory.load_u16(at - 2, Relaxed).max(1);
        self.bytes = 0;
        self.whole = memory.load_u16(at - HEADER_BYTES, Relaxed) == UNCUT;
        self.slot = segment_number(memory, at) as usize;
        self.copy = self.received.is_multiple_of(COMPARE_EVERY).then(Vec::new);
    }

    #[inline]
    fn end(&mut self) {
        let frame = self.frames.get(self.slot);
        self.whole &= frame.is_some_and(|frame| frame.len() == self.bytes as usize);
        if let Some(copy) = self.copy.take() {
            self.whole &= frame == Some(&copy);
            self.compared += 1;
        }
        self.received += u64::from(self.whole);
        self.wrong += u64::from(!self.whole);
    }
}

/// Gigabytes (10^9 bytes) a second of a plain `memcpy` on the calling thread: `bytes` at a time from each of the places
/// of a sending queue to the bytes of a receiving queue's buffers, one after the other.
///
/// # Errors
/// If the places are smaller than what is to be copied.
pub fn memcpy_rate(from: &Buffers, to: &Buffers, bytes: u32, time: Duration) -> Result<f64> {
    let filled = |bytes: u32, value: u8| Table::new(bytes as usize, || value);
    let (source, mut target) = (filled(from.bytes(), 1), filled(to.bytes(), 2));
    let (bytes, stride) = (bytes as usize, from.stride as usize);
    let places: Vec<usize> = (0..target.len() / bytes).map(|i| i * bytes).collect();
    let mut places = places.iter().cycle();
    let (mut copied, begun) = (0u64, Instant::now());
    while begun.elapsed() < time {
        for place in source.chunks_exact(stride) {
            let to = *places
                .next()
                .context("a receiving queue holds no whole segment")?;
            let from = place
                .get(..bytes)
                .context("a segment is larger than its place")?;
            target[to..to + bytes].copy_from_slice(std::hint::black_box(from));
            copied += bytes as u64;
        }
        std::hint::black_box(&target);
    }
    Ok(copied as f64 / begun.elapsed().as_secs_f64() / 1e9)
}

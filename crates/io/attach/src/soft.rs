//! The software stage: finishes what the sender left to be done and the receiver does not do.
//!
//! # Model
//! Each frame that comes out is built whole in private memory: headers from the private bytes, the
//! payload read once from the sender's memory and summed where it was put, then the checksum, then
//! the 802.1Q tag. Whoever gets it needs no metadata. A frame that the receiver takes as it is
//! passes uncut and unsummed, for callers that do not tell the two apart.
//!
//! [`windlass_wire::segment`] makes the headers as Linux does; `windlass-nic` let only frames pass
//! for which it can. A checksum is completed from the sum that the sender left in its field, so it
//! also comes out right where a routing header hides the destination that was summed.
//!
//! # Ownership and lifetime
//! One buffer a thread, allocated when the first frame needs it.
//!
//! # Limits
//! [`SEGMENTS_MAX`] frames from one; frames up to [`FRAME_MAX`]. Frames below Ethernet's minimum are
//! not padded.
//!
//! # Failure modes
//! A sender that rewrites its memory meanwhile sends what it wrote: each byte is read once, so the
//! checksum is over the bytes that are sent. Bytes that are missing from the tail are sent as zeros.
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::cell::Cell;

use windlass_frame::{FRAME_MAX, Gso, Heads, Meta, Offload, Pick};
use windlass_shm::{Foreign, Tails};
use windlass_stats::Drop;
use windlass_wire::segment::{self, Plan};
use windlass_wire::{Tci, checksum, ether, parse, tag};

use crate::port::TxCaps;

/// Frames that one frame may become: 64 KiB in the smallest segments that are accepted.
pub const SEGMENTS_MAX: u32 = 1024;

/// Priority and drop-eligible bits of a tag.
const PRIORITY: u16 = 0xf000;
/// The control word of the tag that a frame is written with.
#[inline(always)]
pub fn tci(meta: &Meta) -> Tci {
    Tci(meta.tci & PRIORITY | meta.vid)
}

/// Where untagged frames begin in the buffer: behind the room for a tag.
const FRAME_AT: usize = ether::TAG;
/// Bytes of the buffer: any frame with a tag pushed.
const BUFFER_BYTES: usize = FRAME_AT + FRAME_MAX;

thread_local! {
    /// Empty while it is in use: a call from within `emit` allocates another.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Frames that become of one frame for a receiver with `caps`: exactly as many as [`finish`] emits
/// unless it is stopped, 0 where it fails.
#[inline]
pub fn frames(heads: &Heads, pick: Pick, caps: TxCaps) -> usize {
    let Some(meta) = heads.meta.get(pick.index()) else {
        return 0;
    };
    if caps.takes(&meta.off) || meta.off.gso == Gso::None {
        return usize::from(meta.len as usize <= FRAME_MAX);
    }
    plan(heads, pick, &meta.off).map_or(0, |plan| plan.count() as usize)
}

/// Completes checksums and cuts segments of one frame; `emit` gets each resulting frame whole, and stops it by `false`.
/// Returns how many were emitted, without the one that was stopped at.
///
/// # Errors
/// The reason for which nothing can be made of the frame: [`Drop::TooBig`] beyond [`FRAME_MAX`],
/// [`Drop::SegmentLimit`] beyond [`SEGMENTS_MAX`] or where the frame is not what its offload says. Nothing was emitted then.
pub fn finish(
    heads: &Heads,
    tails: &Tails<'_>,
    pick: Pick,
    caps: TxCaps,
    emit: impl FnMut(&[u8]) -> bool,
) -> Result<u64, Drop> {
    let mut buffer = BUFFER.take();
    buffer.resize(BUFFER_BYTES, 0);
    let made = build(heads, tails, pick, caps, &mut buffer, emit);
    BUFFER.set(buffer);
    made
}

fn build(
    heads: &Heads,
    tails: &Tails<'_>,
    pick: Pick,
    caps: TxCaps,
    buffer: &mut [u8],
    emit: impl FnMut(&[u8]) -> bool,
) -> Result<u64, Drop> {
    let meta = heads.meta.get(pick.index()).ok_or(Drop::TooBig)?;
    let tci = pick.tagged().then(|| tci(meta));
    let source = source(heads, tails, pick);
    if caps.takes(&meta.off) || meta.off.gso == Gso::None {
        let off = if caps.takes(&meta.off) {
            Offload::NONE
        } else {
            meta.off
        };
        return whole(source, meta.len, off, tci, buffer, emit);
    }
    let plan = plan(heads, pick, &meta.off).ok_or(Drop::SegmentLimit)?;
    cut(source, &plan, tci, buffer, emit)
}

/// How the frame is cut; `None` if it cannot be, or into too many.
#[inline]
pub(crate) fn plan<'a>(heads: &'a Heads, pick: Pick, off: &Offload) -> Option<Plan<'a>> {
    let kind = match off.gso {
        Gso::None => return None,
        Gso::Tcp4 => segment::Gso::Tcp4,
        Gso::Tcp6 => segment::Gso::Tcp6,
        Gso::UdpL4 => segment::Gso::UdpL4,
    };
    let private = heads.private(pick.index());
    let layers = parse(private, heads.meta.get(pick.index())?.len);
    let plan = Plan::new(private, &layers, kind, off.gso_size).ok()?;
    (plan.count() <= SEGMENTS_MAX).then_some(plan)
}

/// Emits the frame as one, its checksum completed if `off` asks for it.
fn whole<'q>(
    mut source: Source<'_, impl Iterator<Item = Foreign<'q>>>,
    len: u32,
    off: Offload,
    tci: Option<Tci>,
    buffer: &mut [u8],
    mut emit: impl FnMut(&[u8]) -> bool,
) -> Result<u64, Drop> {
    let private = source.private;
    let end = FRAME_AT.saturating_add(len as usize);
    let frame = buffer.get_mut(FRAME_AT..end).ok_or(Drop::TooBig)?;
    source.read(frame);
    if off.needs_csum() {
        // Padding behind an IP packet is not summed.
        let packet = match parse(private, len).end as usize {
            0 => frame,
            packet_end => frame.get_mut(..packet_end).unwrap_or_default(),
        };
        checksum::finish_in_place(packet, off.start.into(), off.offset.into());
    }
    let out = tagged(buffer, end, tci);
    Ok(u64::from(emit(out)))
}

/// Emits the frame as segments.
fn cut<'q>(
    mut source: Source<'_, impl Iterator<Item = Foreign<'q>>>,
    plan: &Plan<'_>,
    tci: Option<Tci>,
    buffer: &mut [u8],
    mut emit: impl FnMut(&[u8]) -> bool,
) -> Result<u64, Drop> {
    if FRAME_AT.saturating_add(plan.frame_max()) > buffer.len() {
        return Err(Drop::TooBig);
    }
    source.skip(plan.headers());
    for k in 0..plan.count() {
        let Some((_, frame)) = buffer.split_at_mut_checked(FRAME_AT) else {
            break;
        };
        let Some(part) = plan.header(k, frame) else {
            break;
        };
        let end = part.headers.saturating_add(part.len.into());
        let payload = frame.get_mut(part.headers..end).unwrap_or_default();
        source.read(payload);
        let mut sum = part.seed;
        sum.add_bytes(payload);
        part.seal(frame, sum);
        if !emit(tagged(buffer, FRAME_AT.saturating_add(end), tci)) {
            return Ok(k.into());
        }
    }
    Ok(plan.count().into())
}

/// The frame that was built up to `end`, with its tag.
#[inline]
fn tagged(buffer: &mut [u8], end: usize, tci: Option<Tci>) -> &[u8] {
    let start = tci.and_then(|tci| tag::push(buffer, FRAME_AT, ether::VLAN, tci));
    buffer
        .get(start.unwrap_or(FRAME_AT)..end)
        .unwrap_or_default()
}

/// What is left to be read of a frame: its private bytes, then those in the sender's memory.
pub(crate) struct Source<'a, I: Iterator> {
    private: &'a [u8],
    segment: I::Item,
    segments: I,
}

/// All of a frame.
pub(crate) fn source<'a, 'q>(
    heads: &'a Heads,
    tails: &'a Tails<'q>,
    pick: Pick,
) -> Source<'a, impl Iterator<Item = Foreign<'q>>> {
    Source {
        private: heads.private(pick.index()),
        segment: Foreign::empty(),
        segments: tails.of(pick.index()),
    }
}

impl<'q, I: Iterator<Item = Foreign<'q>>> Source<'_, I> {
    /// Leaves out the next bytes, which are private.
    #[inline]
    pub(crate) fn skip(&mut self, n: usize) {
        self.private = self.private.get(n..).unwrap_or_default();
    }

    /// What is left behind the private bytes, all of which were read.
    pub(crate) fn rest(self) -> impl Iterator<Item = Foreign<'q>> {
        let begun = (!self.segment.is_empty()).then_some(self.segment);
        begun.into_iter().chain(self.segments)
    }

    /// Fills `to` with the next bytes, and with zeros behind the last.
    #[inline]
    pub(crate) fn read(&mut self, mut to: &mut [u8]) {
        let n = self.private.len().min(to.len());
        if n != 0 {
            let (now, later) = self.private.split_at(n);
            let (room, rest) = to.split_at_mut(n);
            room.copy_from_slice(now);
            (self.private, to) = (later, rest);
        }
        while !to.is_empty() {
            if self.segment.is_empty() {
                match self.segments.next() {
                    Some(segment) => self.segment = segment,
                    None => return to.fill(0),
                }
            }
            let n = self.segment.read(to);
            self.segment = self.segment.split_at(n).1;
            to = to.get_mut(n..).unwrap_or_default();
        }
    }
}

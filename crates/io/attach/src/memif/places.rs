//! Where rings and buffers go in memory that we bring.
//!
//! # Model
//! Each connection has a region of its own, because its peer can read and write all of it: with one region for several peers, each would
//! have the frames of the others. The slab engine cuts the region: rings of one size are a class, buffers are another. It works with
//! offsets, before the memory exists, so that the region ends behind the last place.
//!
//! # Ownership and lifetime
//! The engine's records are private memory. They are gone when the region is made; what stays of them is a table of offsets for each ring
//! ([`Buffers`]), private as well. A slot keeps its buffer as long as the connection lives: all slots of a ring from the peer offer a buffer at any time,
//! so that there is none to choose, and a ring towards the peer returns its buffers in their order. So no buffer is returned twice, and a
//! peer that writes whatever it likes into the region changes contents and descriptors, never where we look for a frame.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use windlass_slab::{BATCH_MAX, Class, Geometry, SPAN, SPAN_UNITS, Slab, Span, Spans, UNIT};

use super::layout::{RingPlace, ring_bytes};
use super::view::Buffers;

/// Room in each buffer: an ordinary frame with tags, and what DPDK and VPP use.
pub const BUFFER_BYTES: u32 = 2048;
/// Bytes from one buffer to the next: an odd number of cache lines, so that the first lines of many buffers do not fall on the same few
/// sets of a cache.
const BUFFER_STRIDE: u32 = BUFFER_BYTES + 64;
/// Buffers of a slab at most: half a span. Slabs start at multiples of a power of two, so that small ones would undo what the stride is for;
/// all are of one size, so that little is lost at the end of a span.
const SLAB_BUFFERS: usize = SPAN / 2 / BUFFER_STRIDE as usize;
const CACHE_LINE: usize = 64;
/// Rings start at multiples of this.
const RING_SPACING: usize = 4096;

/// A ring and its buffers.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) place: RingPlace,
    pub(super) buffers: Buffers,
}

/// Objects of one size: no magazines, hence no depot.
type Kind = Class<[usize; 0]>;

/// The places of a region.
struct Places<'a> {
    spans: Spans<'a>,
    slabs: Vec<Slab>,
    /// Behind the last place.
    end: usize,
}

impl<'a> Places<'a> {
    fn new(records: &'a mut [Span]) -> Places<'a> {
        let units = records.len().saturating_mul(SPAN_UNITS);
        let mut spans = Spans::new();
        spans.extend(0, records);
        Places {
            spans,
            slabs: vec![Slab::default(); units],
            end: 0,
        }
    }

    /// So many places, the lowest first; `None` if the region has no room.
    fn take(&mut self, kind: &mut Kind, count: usize) -> Option<Vec<u32>> {
        let mut places = Vec::with_capacity(count);
        let mut batch = [0; BATCH_MAX];
        while let Some(left) = count.checked_sub(places.len()).filter(|&left| left > 0) {
            let wanted = batch.get_mut(..left.min(BATCH_MAX))?;
            let taken = kind.refill(self.slabs.as_mut_slice(), 0, wanted).count;
            if taken == 0 {
                let (unit, _) = self.spans.take(kind.geometry().units(), 1)?;
                kind.add(self.slabs.as_mut_slice(), unit);
            }
            for &at in batch.get(..taken)?.iter().rev() {
                self.end = self.end.max(at.checked_add(kind.geometry().size())?);
                places.push(u32::try_from(at).ok()?);
            }
        }
        Some(places)
    }
}

/// Spans that suffice for so many objects: a slab lies in one span.
fn spans_for(of: &Geometry, count: usize) -> usize {
    let in_span = SPAN_UNITS.checked_div(of.units()).unwrap_or(1);
    count.div_ceil(of.objects()).div_ceil(in_span)
}

/// Rings of these sizes (powers of two) and their buffers, and the bytes of it all. `None` for more than offsets of 32 bits reach.
pub(super) fn plan(log2_sizes: &[u8]) -> Option<(Vec<Plan>, usize)> {
    let slots = |log2_size: &u8| 1_usize.checked_shl((*log2_size).into());
    let count = log2_sizes
        .iter()
        .try_fold(0_usize, |sum, log2_size| sum.checked_add(slots(log2_size)?))?;
    u32::try_from(count.checked_mul(BUFFER_STRIDE as usize)?).ok()?;
    let slabs = count.div_ceil(SLAB_BUFFERS).max(1);
    let of_slab = count.div_ceil(slabs);
    let of_buffers = Geometry::of_slabs(BUFFER_STRIDE as usize, CACHE_LINE, of_slab)?;
    let mut rings: Vec<(u8, Kind)> = Vec::new();
    let mut spans = spans_for(&of_buffers, count);
    for &log2_size in log2_sizes {
        if rings.iter().all(|(known, _)| *known != log2_size) {
            let of = Geometry::of_cache(ring_bytes(log2_size)? as usize, RING_SPACING, false)?;
            let owner = u16::from(log2_size).checked_add(2)?;
            spans = spans.checked_add(spans_for(&of, log2_sizes.len()))?;
            rings.push((log2_size, Kind::new(owner, of)));
        }
    }
    let mut records = vec![Span::default(); spans];
    let mut places = Places::new(&mut records);
    let mut starts = Vec::new();
    for log2_size in log2_sizes {
        let (_, kind) = rings.iter_mut().find(|(known, _)| known == log2_size)?;
        starts.extend(places.take(kind, 1)?);
    }
    let mut kind = Kind::new(1, of_buffers);
    let mut plans = Vec::new();
    for (start, log2_size) in starts.into_iter().zip(log2_sizes) {
        let place = RingPlace::checked(start, *log2_size, u64::MAX)?;
        let offsets = places.take(&mut kind, slots(log2_size)?)?;
        let buffers = Buffers::new(0, BUFFER_BYTES, offsets);
        plans.push(Plan { place, buffers });
    }
    Some((plans, places.end.next_multiple_of(UNIT.min(RING_SPACING))))
}

#[cfg(test)]
#[allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing
)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use windlass_slab::Fault;

    /// Rings of any sizes and their buffers lie apart, aligned and inside; little more than they need is asked for.
    #[test]
    fn places_lie_apart() {
        for log2_sizes in [
            &[5, 5][..],
            &[10, 10],
            &[0, 14],
            &[5, 10, 5, 7],
            &[14; 4],
            &[10; 32],
        ] {
            let (plans, bytes) = plan(log2_sizes).expect("room");
            let mut pieces = BTreeSet::new();
            let mut needed = 0;
            for (plan, log2_size) in plans.iter().zip(log2_sizes) {
                let start = plan.place.cookie_at() as usize;
                let len = ring_bytes(*log2_size).expect("a ring") as usize;
                assert!(start.is_multiple_of(RING_SPACING));
                pieces.insert((start, start + len));
                needed += len;
                for slot in 0..plan.place.size() {
                    let start = plan.buffers.offset(slot) as usize;
                    assert!(start.is_multiple_of(CACHE_LINE));
                    pieces.insert((start, start + BUFFER_BYTES as usize));
                    needed += BUFFER_STRIDE as usize;
                }
            }
            let count: usize = log2_sizes
                .iter()
                .map(|log2_size| 1 + (1 << log2_size))
                .sum();
            assert_eq!(pieces.len(), count);
            assert!(
                pieces
                    .iter()
                    .zip(pieces.iter().skip(1))
                    .all(|(one, next)| one.1 <= next.0)
            );
            assert!(pieces.last().is_some_and(|last| last.1 <= bytes));
            assert!(bytes <= needed + needed / 8 + SPAN, "{bytes} for {needed}");
        }
        let (_, small) = plan(&[5, 5]).expect("room");
        let (_, middle) = plan(&[8, 8]).expect("room");
        let (_, usual) = plan(&[10, 10]).expect("room");
        assert!(small <= 4 * UNIT && middle <= SPAN && usual <= 3 * SPAN);
        assert!(plan(&[15]).is_none() && plan(&[14; 200]).is_none());
    }

    /// The engine's invariants hold of a region: a place that was handed out is in no bitmap (M1), its units are the slabs' (M2), and when all
    /// are returned nothing is left (M3, M5). A place that is returned twice, or is none, is named.
    #[test]
    fn places_are_returned_once() {
        let mut records = vec![Span::default(); 4];
        let mut places = Places::new(&mut records);
        let of = Geometry::of_slabs(BUFFER_STRIDE as usize, CACHE_LINE, SLAB_BUFFERS);
        let mut kind = Kind::new(1, of.expect("a slab"));
        let taken = places.take(&mut kind, 3000).expect("room");
        let taken: Vec<_> = taken.into_iter().map(|at| at as usize).collect();
        assert_eq!((kind.out(), kind.slabs()), (3000, 7));
        let slabs = places.slabs.as_mut_slice();
        let strange = taken[5] + 64;
        let fault = kind.flush(slabs, 0, &[strange]).expect_err("interior");
        assert_eq!(fault, Fault::Interior(strange));
        kind.flush(slabs, 0, &taken[..1]).expect("out");
        let fault = kind.flush(slabs, 0, &taken[..1]).expect_err("twice");
        assert_eq!(fault, Fault::Twice(taken[0]));
        let mut emptied = kind.flush(slabs, 0, &taken[1..]).expect("out");
        let mut spare = kind.take_spare(slabs);
        for chain in [&mut emptied, &mut spare] {
            while let Some(unit) = chain.take(slabs) {
                places.spans.release(unit as usize * UNIT).expect("a run");
            }
        }
        assert_eq!((kind.out(), kind.slabs()), (0, 0));
        assert_eq!(places.spans.totals().0, 0);
        let fault = kind.flush(slabs, 0, &taken[..1]).expect_err("no slab");
        assert_eq!(fault, Fault::Unknown(taken[0]));
    }
}

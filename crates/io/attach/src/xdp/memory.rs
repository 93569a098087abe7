//! The memory that the kernel and we share, and what of it belongs to which queue.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use windlass_shm::{HugePages, MapError, Mapping};
use windlass_sys::xdp::{Descriptor, HEADROOM_BYTES};

/// Entries of each ring, and frames of a queue in each direction.
pub(super) const FRAMES: u32 = 2048;
/// Bytes of a place for a frame: half a page if the MTU lets frames fit, else a page.
const PLACES: [u32; 2] = [2048, 4096];
/// An Ethernet header and two tags.
const LINK_BYTES: u32 = 14 + 8;

/// The largest MTU whose frames fit.
pub const MTU_MAX: u32 = PLACES[1] - HEADROOM_BYTES - LINK_BYTES;

/// The memory of all queues of an interface.
#[derive(Debug)]
pub(super) struct Memory {
    mapping: Mapping,
    place_bytes: u32,
}

/// The places of one queue in one direction: a range of the memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    first: u64,
    place_bytes: u32,
}

impl Memory {
    /// Memory for so many queues of an interface with that MTU.
    pub(super) fn new(queues: u32, mtu: u32) -> Result<Memory, MapError> {
        let fits = |place: &&u32| mtu.saturating_add(LINK_BYTES + HEADROOM_BYTES) <= **place;
        let place_bytes = *PLACES
            .iter()
            .find(fits)
            .ok_or(MapError::Length(mtu.into()))?;
        let len = (queues as usize * 2 * FRAMES as usize).saturating_mul(place_bytes as usize);
        let (mapping, _) = Mapping::create("windlass-xdp", len, HugePages::Try)?;
        Ok(Memory {
            mapping,
            place_bytes,
        })
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(super) fn place_bytes(&self) -> u32 {
        self.place_bytes
    }

    /// The longest frame that can be sent.
    pub(super) fn frame_max(&self) -> u32 {
        self.place_bytes.saturating_sub(HEADROOM_BYTES)
    }

    /// The largest MTU whose frames fit.
    pub(super) fn mtu_max(&self) -> u32 {
        self.frame_max().saturating_sub(LINK_BYTES)
    }

    /// The places that a queue receives into, and those that it sends from.
    pub(super) fn of_queue(&self, queue: u32) -> [Places; 2] {
        let span = u64::from(FRAMES) * u64::from(self.place_bytes);
        let first = u64::from(queue) * 2 * span;
        [first, first + span].map(|first| Places {
            first,
            place_bytes: self.place_bytes,
        })
    }

    /// Where `len` bytes from `address` on lie, if they do.
    #[inline(always)]
    pub(super) fn find(&self, address: u64, len: u32) -> Option<*mut u8> {
        self.mapping.find(address, len as usize)
    }
}

impl Places {
    /// All of them.
    pub(super) fn all(self) -> impl Iterator<Item = u64> {
        let step = u64::from(self.place_bytes);
        (0..u64::from(FRAMES)).map(move |k| self.first + k * step)
    }

    /// The place that an address lies in, if it is one of these.
    #[inline(always)]
    pub(super) fn of(self, address: u64) -> Option<u64> {
        let place = address & !(u64::from(self.place_bytes) - 1);
        let span = u64::from(FRAMES) * u64::from(self.place_bytes);
        (place.wrapping_sub(self.first) < span).then_some(place)
    }

    /// The place of a frame that was received, if the whole of it lies there.
    #[inline(always)]
    pub(super) fn of_frame(self, frame: Descriptor) -> Option<u64> {
        let place = self.of(frame.address)?;
        let end = frame.address.checked_add(frame.len.into())?;
        (end <= place + u64::from(self.place_bytes) && frame.options == 0).then_some(place)
    }
}

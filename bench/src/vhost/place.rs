//! Where one virtqueue and its buffers lie in the guest's memory.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;

use windlass_sys::eventfd;

use super::HEADER_BYTES;
use crate::memory::Memory;

/// First guest address of the memory.
pub const GUEST: u64 = 0x4000_0000;

/// Bytes for the descriptors of each queue, and for each of its other two parts.
const DESC_BYTES: u32 = 0x8000;
const PART_BYTES: u32 = 0x8000;
const QUEUE_BYTES: u32 = DESC_BYTES + 2 * PART_BYTES;

/// Most descriptors, as a power of two: its used ring fits its part.
pub const LOG2_RING_MAX: u8 = 11;

/// Distance between two buffers: what DPDK's have (64 object header, 128 mbuf, 128 headroom, 2,048 data). An odd number
/// of cache lines, so that first lines of frames spread over all cache sets.
const STRIDE: u32 = 2368;
/// From a buffer's begin to its frame; the header lies right before it.
const FRAME_AT: u32 = 256;
/// Bytes of a receive buffer, header included.
const ROOM: u32 = 2048;

/// `VIRTQ_DESC_F_WRITE`.
const WRITE: u64 = 2;

/// One virtqueue.
#[derive(Clone, Copy)]
pub struct Place<'p> {
    /// The guest's memory.
    pub memory: &'p Memory,
    /// Wakes the back end.
    pub kick: BorrowedFd<'p>,
    /// Number of the queue: 0 receives, 1 transmits.
    pub queue: u32,
    /// Descriptors, a power of two.
    pub size: u16,
}

/// Bytes of memory for two queues of `size` descriptors and their buffers.
pub fn memory_bytes(size: u16) -> usize {
    (2 * QUEUE_BYTES + 2 * u32::from(size) * STRIDE) as usize
}

impl Place<'_> {
    /// Offset of the descriptors.
    pub fn desc(&self) -> u32 {
        self.queue * QUEUE_BYTES
    }

    /// Offset of the available ring, or of the driver's event structure.
    pub fn avail(&self) -> u32 {
        self.desc() + DESC_BYTES
    }

    /// Offset of the used ring, or of the device's event structure.
    pub fn used(&self) -> u32 {
        self.avail() + PART_BYTES
    }

    /// The slot of a free-running index.
    #[inline(always)]
    pub fn slot(&self, index: u16) -> u16 {
        index & (self.size - 1)
    }

    /// Offset of a slot's frame.
    #[inline(always)]
    pub fn frame(&self, slot: u16) -> u32 {
        let before = if self.queue == 0 { 0 } else { self.size };
        2 * QUEUE_BYTES + (u32::from(before) + u32::from(slot)) * STRIDE + FRAME_AT
    }

    /// Offset of a slot's descriptor.
    #[inline(always)]
    pub fn desc_at(&self, slot: u16) -> u32 {
        self.desc() + 16 * u32::from(slot)
    }

    /// Writes the address of a slot's buffer into its descriptor.
    #[inline(always)]
    pub fn write_address(&self, slot: u16) {
        let at = GUEST + u64::from(self.frame(slot) - HEADER_BYTES);
        self.memory.store_u64(self.desc_at(slot), at, Relaxed);
    }

    /// The second word of a descriptor of a frame of `size` bytes to be sent, without flags.
    #[inline(always)]
    pub fn send_word(size: u32) -> u64 {
        u64::from(size + HEADER_BYTES)
    }

    /// The second word of a receive buffer's descriptor, in which the flags begin at bit `flags`.
    #[inline(always)]
    pub fn room_word(flags: u32) -> u64 {
        u64::from(ROOM) | WRITE << flags
    }

    /// Length of the frame in a buffer of which `used` bytes were written; none if it goes on in the next one.
    #[inline(always)]
    pub fn length(&self, slot: u16, used: u32, mergeable: bool) -> Option<u32> {
        let buffers = self.frame(slot) - 2;
        if mergeable && self.memory.load_u16(buffers, Relaxed) != 1 {
            return None;
        }
        used.checked_sub(HEADER_BYTES)
    }

    /// Writes every header: no offload, one buffer.
    pub fn clear_headers(&self) {
        for slot in 0..self.size {
            let mut header = [0; HEADER_BYTES as usize];
            header[10] = u8::from(self.queue == 0);
            self.memory.write(self.frame(slot) - HEADER_BYTES, &header);
        }
    }

    /// Wakes the back end.
    #[cold]
    pub fn wake(&self) {
        // A full counter means that a wake-up is pending already.
        let _ = eventfd::signal(self.kick);
    }
}

//! Where one virtqueue and its buffers lie in the guest's memory.
//!
//! ```text
//!  a buffer's place, `stride` bytes:   [ ... | header | frame ... | indirect table ]
//!                                            ^ frame_at - 12       ^ TABLE_BYTES before the end
//! ```

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Result, bail};
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

/// Bytes for an indirect table at the end of a buffer's place: one descriptor for the headers, 31 for the rest.
const TABLE_BYTES: u32 = 512;
const DESCRIPTOR_BYTES: u32 = 16;

/// How the buffers of a queue lie.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// Their number, as a power of two: descriptors of the ring.
    pub log2_ring: u8,
    /// Distance between two: an odd number of cache lines, so that first lines of frames spread over all cache sets.
    pub stride: u32,
    /// From a buffer's begin to its frame; the header lies right before it.
    pub frame_at: u32,
    /// Bytes of a receive buffer, header included.
    pub room: u32,
    /// Whether what is sent is described by an indirect table, in pieces of so many bytes behind the headers.
    pub pieces: Option<Pieces>,
}

/// How a frame that is sent lies in several pieces.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    /// Bytes of the whole frame.
    pub frame: u32,
    /// Bytes of it in the first piece, behind the virtio header.
    pub headers: u32,
    /// Bytes in each of the others; the last may be shorter.
    pub each: u32,
}

impl Pieces {
    /// Descriptors of a frame.
    #[must_use]
    pub fn count(self) -> u32 {
        1 + (self.frame - self.headers).div_ceil(self.each)
    }
}

impl Buffers {
    /// What DPDK's have: 64 bytes of object header, 128 of mbuf, 128 of headroom, 2,048 of data.
    #[must_use]
    pub const fn of_dpdk(log2_ring: u8) -> Buffers {
        Buffers {
            log2_ring,
            stride: 2368,
            frame_at: 256,
            room: 2048,
            pieces: None,
        }
    }

    /// Receive buffers as a Linux guest has them: `room` bytes each, at the begin of a cache line.
    #[must_use]
    pub fn of_linux(log2_ring: u8, room: u32) -> Buffers {
        Buffers {
            log2_ring,
            stride: odd_lines(room),
            frame_at: HEADER_BYTES,
            room,
            pieces: None,
        }
    }

    /// Frames to be sent in pieces.
    ///
    /// # Errors
    /// If they have more pieces than an indirect table has room for.
    pub fn in_pieces(log2_ring: u8, pieces: Pieces) -> Result<Buffers> {
        let most = TABLE_BYTES / DESCRIPTOR_BYTES;
        if pieces.each == 0 || pieces.headers >= pieces.frame || pieces.count() > most {
            bail!("a frame has at most {most} pieces: {pieces:?}");
        }
        Ok(Buffers {
            log2_ring,
            stride: odd_lines(HEADER_BYTES + pieces.frame + TABLE_BYTES),
            frame_at: HEADER_BYTES,
            room: HEADER_BYTES + pieces.frame,
            pieces: Some(pieces),
        })
    }

    /// Descriptors.
    #[must_use]
    pub fn count(&self) -> u16 {
        1 << self.log2_ring
    }

    /// Bytes of all of them.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        u32::from(self.count()) * self.stride
    }
}

fn odd_lines(bytes: u32) -> u32 {
    (bytes.div_ceil(LINE) | 1) * LINE
}

/// Where the flags begin in the second word of a descriptor of a split ring; in a packed one's they lie behind the id.
pub const SPLIT_FLAGS: u32 = 32;
/// Likewise of a packed ring.
pub const PACKED_FLAGS: u32 = 48;

/// `VIRTQ_DESC_F_WRITE`.
const WRITE: u64 = 2;
/// `VIRTQ_DESC_F_NEXT`.
const NEXT: u64 = 1;
/// `VIRTQ_DESC_F_INDIRECT`.
const INDIRECT: u64 = 4;
const LINE: u32 = 64;

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
    /// Where its buffers begin.
    pub first: u32,
    /// How they lie.
    pub buffers: Buffers,
}

/// Bytes of memory for two queues and their buffers.
pub fn memory_bytes(buffers: &[Buffers; 2]) -> usize {
    buffers.iter().fold(2 * QUEUE_BYTES as usize, |sum, queue| {
        sum + queue.bytes() as usize
    })
}

/// Where the buffers of a queue begin.
pub fn first_buffer(buffers: &[Buffers; 2], queue: u32) -> u32 {
    let before = if queue == 0 { 0 } else { buffers[0].bytes() };
    2 * QUEUE_BYTES + before
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
        self.first + u32::from(slot) * self.buffers.stride + self.buffers.frame_at
    }

    /// Offset of a slot's descriptor.
    #[inline(always)]
    pub fn desc_at(&self, slot: u16) -> u32 {
        self.desc() + 16 * u32::from(slot)
    }

    /// Writes the address of a slot's buffer, or of its indirect table, into its descriptor.
    #[inline(always)]
    pub fn write_address(&self, slot: u16) {
        let at = match self.buffers.pieces {
            None => self.frame(slot) - HEADER_BYTES,
            Some(_) => self.table(slot),
        };
        let at = GUEST + u64::from(at);
        self.memory.store_u64(self.desc_at(slot), at, Relaxed);
    }

    fn table(&self, slot: u16) -> u32 {
        self.first + (u32::from(slot) + 1) * self.buffers.stride - TABLE_BYTES
    }

    /// Writes the indirect tables, if there are any. A driver does it anew for each frame; what is in them is the same.
    /// `flags` is the bit at which flags begin: a packed table has no `NEXT`, its descriptors follow each other.
    pub fn write_tables(&self, flags: u32) {
        let Some(pieces) = self.buffers.pieces else {
            return;
        };
        for slot in 0..self.size {
            let begin = self.frame(slot) - HEADER_BYTES;
            let end = begin + HEADER_BYTES + pieces.frame;
            let (mut at, mut len) = (begin, HEADER_BYTES + pieces.headers);
            for i in 0..pieces.count() {
                let entry = self.table(slot) + DESCRIPTOR_BYTES * i;
                let address = GUEST + u64::from(at);
                let next = match i + 1 < pieces.count() && flags == SPLIT_FLAGS {
                    true => NEXT << flags | u64::from(i + 1) << (flags + 16),
                    false => 0,
                };
                self.memory.store_u64(entry, address, Relaxed);
                self.memory
                    .store_u64(entry + 8, u64::from(len) | next, Relaxed);
                at += len;
                len = pieces.each.min(end - at);
            }
        }
    }

    /// The second word of a descriptor of a frame of `size` bytes to be sent.
    #[inline(always)]
    pub fn send_word(&self, size: u32, flags: u32) -> u64 {
        match self.buffers.pieces {
            None => u64::from(size + HEADER_BYTES),
            Some(pieces) => u64::from(DESCRIPTOR_BYTES * pieces.count()) | INDIRECT << flags,
        }
    }

    /// The second word of a receive buffer's descriptor, in which the flags begin at bit `flags`.
    #[inline(always)]
    pub fn room_word(&self, flags: u32) -> u64 {
        u64::from(self.buffers.room) | WRITE << flags
    }

    /// Length of the frame at `at`, of whose buffer `used` bytes were written; none if it goes on in the next one.
    #[inline(always)]
    pub fn length(&self, at: u32, used: u32, mergeable: bool) -> Option<u32> {
        if mergeable && self.memory.load_u16(at - 2, Relaxed) != 1 {
            return None;
        }
        used.checked_sub(HEADER_BYTES)
    }

    /// Writes every header: no offload, one buffer.
    pub fn clear_headers(&self) {
        let mut header = [0; HEADER_BYTES as usize];
        header[10] = u8::from(self.queue == 0);
        self.write_headers(&header);
    }

    /// Writes `header` before every frame.
    pub fn write_headers(&self, header: &[u8; HEADER_BYTES as usize]) {
        for slot in 0..self.size {
            self.memory.write(self.frame(slot) - HEADER_BYTES, header);
        }
    }

    /// Wakes the back end.
    #[cold]
    pub fn wake(&self) {
        // A full counter means that a wake-up is pending already.
        let _ = eventfd::signal(self.kick);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// The pieces of an indirect table are the header and the whole frame, one behind the other, of either layout; those
    /// of a split ring are chained and end, those of a packed one are not chained.
    #[test]
    fn tables_cover_the_frame() {
        let pieces = Pieces {
            frame: 10_000,
            headers: 54,
            each: 4096,
        };
        let buffers = [
            Buffers::of_linux(3, 4096),
            Buffers::in_pieces(3, pieces).unwrap(),
        ];
        let memory = Memory::create(memory_bytes(&buffers)).unwrap();
        let kick = eventfd::create().unwrap();
        for flags in [SPLIT_FLAGS, PACKED_FLAGS] {
            let place = Place {
                memory: &memory,
                kick: kick.as_fd(),
                queue: 1,
                size: buffers[1].count(),
                first: first_buffer(&buffers, 1),
                buffers: buffers[1],
            };
            place.write_tables(flags);
            for slot in 0..place.size {
                let mut at = GUEST + u64::from(place.frame(slot) - HEADER_BYTES);
                let end = at + u64::from(HEADER_BYTES + pieces.frame);
                for i in 0..pieces.count() {
                    let entry = place.table(slot) + DESCRIPTOR_BYTES * i;
                    let word = memory.load_u64(entry + 8, Relaxed);
                    assert_eq!(memory.load_u64(entry, Relaxed), at);
                    at += word & 0xffff_ffff;
                    let is_chained = flags == SPLIT_FLAGS && i + 1 < pieces.count();
                    let link = if is_chained {
                        1 | u64::from(i + 1) << 16
                    } else {
                        0
                    };
                    assert_eq!(word >> 32, link, "entry {i}");
                }
                assert_eq!(at, end);
            }
        }
    }

    /// More pieces than a table has room for are refused.
    #[test]
    fn too_many_pieces() {
        let pieces = Pieces {
            frame: 65_214,
            headers: 54,
            each: 2000,
        };
        assert!(Buffers::in_pieces(3, pieces).is_err());
    }
}

//! The second half of a transmission: header and frame into the buffers that were reserved.
//!
//! # Model
//! A frame that goes into one whole buffer is two stores of a register or a few more; any other is scattered over the
//! pieces of its buffers. Private bytes come from the burst's copy, what lies behind them straight from the sender's
//! memory: the one copy.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use core::sync::atomic::Ordering;

use windlass_frame::{Claim, Meta, Pick, SNAP};
use windlass_shm::{copy_out, copy_through, snapshot, word};

use super::log::DirtyLog;
use super::pieces::Scatter;
use super::reserve::{Buffer, Job, Run, Slots, TAG_BYTES, wire_bytes};
use super::ring::{HEADER_BYTES, Piece, Ring};
use crate::port::{Sent, Stop};
use crate::soft;

/// Bytes before the place of a tag: the two addresses.
const ADDRESSES: usize = 12;
/// The tag's bits that a frame brings along: priority and drop eligibility (IEEE 802.1Q 9.6).
const TCI_PRIORITY: u16 = 0xf000;

impl<R: Ring> Job<'_, '_, R> {
    /// Fills a run whose first buffer is at place `first`. False if the transmission ends here.
    #[inline(always)]
    pub(super) fn fill<const ISA: u8, const LOG: bool>(
        &self,
        run: Run,
        slots: &Slots,
        (held, first): (&mut R::Held, u16),
        picks: &[Pick],
        sent: &mut Sent,
    ) -> bool {
        let Run::Plain(count) = run else {
            return self.fill_odd(run, slots, (held, first), picks, sent);
        };
        let (mut bytes, mut at) = (0, first);
        let places = slots.few.iter().zip(&slots.gpas);
        for (pick, (slot, gpa)) in picks.iter().zip(places).take(count) {
            // SAFETY: the reservation wrote the first `count` slots.
            let slot = unsafe { slot.assume_init() };
            let len = self.copy_whole::<ISA>(*pick, slot.ptr);
            if LOG && let Some(log) = self.ring.log() {
                // SAFETY: the reservation wrote as many addresses, with the same `LOG`.
                let gpa = unsafe { gpa.assume_init() };
                log.mark(gpa, u64::from(HEADER_BYTES + len));
            }
            self.ring.put(held, at, slot.id, HEADER_BYTES + len);
            at = self.ring.advance(at, 1);
            bytes += u64::from(len);
        }
        sent.taken += count;
        sent.frames += count as u64;
        sent.bytes += bytes;
        true
    }

    #[inline(never)]
    fn fill_odd(
        &self,
        run: Run,
        slots: &Slots,
        (held, first): (&mut R::Held, u16),
        picks: &[Pick],
        sent: &mut Sent,
    ) -> bool {
        let (Some(pick), true) = (
            picks.first(),
            matches!(run, Run::Frame | Run::Soft | Run::Drop(_)),
        ) else {
            let full = matches!(run, Run::Full);
            sent.stop = if full { Stop::Full } else { Stop::Down };
            return false;
        };
        let mut out = Out {
            ring: self.ring,
            held,
            buffers: &slots.buffers,
            at: first,
            pieces: Scatter::over(&slots.pieces),
        };
        match run {
            Run::Frame => self.fill_frame(&mut out, *pick, sent),
            Run::Soft => self.fill_soft(&mut out, *pick, sent),
            Run::Drop(reason) => sent.drop_frame(reason),
            _ => {}
        }
        out.give_back_rest();
        if let Some(log) = self.ring.log() {
            mark_all(log, &slots.pieces);
        }
        sent.taken += 1;
        true
    }

    fn fill_frame(&self, out: &mut Out<'_, R>, pick: Pick, sent: &mut Sent) {
        let Some(meta) = self.heads.meta.get(pick.index()) else {
            return;
        };
        let len = wire_bytes(meta, pick);
        let Some(count) = out.begin(len, self.header(meta, pick)) else {
            return;
        };
        self.pieces(pick, |ptr, len| {
            // SAFETY: `pieces` hands out bytes of the burst: private, or borrowed for the section.
            unsafe { out.pieces.put(ptr, len) };
        });
        out.end(count, len);
        sent.frames += 1;
        sent.bytes += u64::from(len);
    }

    /// Writes what the software stage makes of a frame. Buffers that were reserved for more than came out are given
    /// back empty.
    fn fill_soft(&self, out: &mut Out<'_, R>, pick: Pick, sent: &mut Sent) {
        let made = soft::finish(self.heads, self.tails, pick, self.caps, |frame| {
            let len = frame.len() as u32;
            let Some(count) = out.begin(len, Header::PLAIN) else {
                return false;
            };
            // SAFETY: a slice of ours.
            unsafe { out.pieces.put(frame.as_ptr(), frame.len()) };
            out.end(count, len);
            sent.bytes += u64::from(len);
            true
        });
        match made {
            Ok(count) => {
                sent.frames += 1;
                if count > 1 {
                    sent.segments += count;
                }
            }
            Err(reason) => sent.drop_frame(reason),
        }
    }

    /// The header of a frame that the guest takes as it is, but for the number of buffers.
    #[inline(always)]
    fn header(&self, meta: &Meta, pick: Pick) -> Header {
        if !self.caps.csum || (meta.off.is_plain() && !meta.off.data_valid()) {
            return Header::PLAIN;
        }
        let shift = if pick.tagged() { TAG_BYTES as u16 } else { 0 };
        let headers = u16::from(meta.l2) + meta.l3 + u16::from(meta.l4);
        let (low, high) = meta.off.encode_words(shift, headers);
        Header { low, high }
    }

    /// Writes header and frame into one buffer that has room for both; returns the bytes of the frame.
    #[inline(always)]
    fn copy_whole<const ISA: u8>(&self, pick: Pick, to: *mut u8) -> u32 {
        let i = pick.index();
        let Some(meta) = self.heads.meta.get(i) else {
            return 0;
        };
        let header = self.header(meta, pick).with_buffers(1);
        // SAFETY: the buffer was found inside the guest's memory with room for header and frame.
        unsafe { header.write(to) };
        let to = to.wrapping_add(HEADER_BYTES as usize);
        let private = self.heads.private(i);
        if pick.tagged() || private.len() > SNAP {
            return self.copy_tagged(pick, to);
        }
        // SAFETY: the private bytes are ours; the buffer has room for the whole frame, of which they are the first.
        unsafe { snapshot::<ISA>(to, private.as_ptr(), private.len()) };
        let (mut done, whole) = (private.len(), meta.len as usize);
        if whole > done {
            for piece in self.tails.of(i) {
                let n = piece.len().min(whole - done);
                // SAFETY: `n` bytes of a borrowed piece; `done + n <= whole`, which the buffer has room for.
                unsafe { copy_through(to.wrapping_add(done), piece.as_ptr(), n) };
                done += n;
            }
        }
        done as u32
    }

    /// The same for a frame that gets a tag, or whose private bytes were deepened.
    #[inline(never)]
    fn copy_tagged(&self, pick: Pick, to: *mut u8) -> u32 {
        let Some(meta) = self.heads.meta.get(pick.index()) else {
            return 0;
        };
        let len = wire_bytes(meta, pick);
        let (ptr, gpa) = (to, 0);
        let whole = [Piece { ptr, len, gpa }];
        let mut room = Scatter::over(&whole);
        self.pieces(pick, |ptr, n| {
            // SAFETY: as in `fill_frame`.
            unsafe { room.put(ptr, n) };
        });
        len - room.left() as u32
    }

    /// The bytes of a frame in order: private bytes with the tag inside, then what lies behind them.
    #[inline(always)]
    fn pieces(&self, pick: Pick, mut each: impl FnMut(*const u8, usize)) {
        let i = pick.index();
        let private = self.heads.private(i);
        let tag = if pick.tagged() {
            self.heads.meta.get(i).map(tag_bytes)
        } else {
            None
        };
        match (tag, private.split_at_checked(ADDRESSES)) {
            (Some(tag), Some((addresses, rest))) => {
                each(addresses.as_ptr(), addresses.len());
                each(tag.as_ptr(), tag.len());
                each(rest.as_ptr(), rest.len());
            }
            _ => each(private.as_ptr(), private.len()),
        }
        for piece in self.tails.of(i) {
            each(piece.as_ptr(), piece.len());
        }
    }
}

/// The 802.1Q tag of a frame: its VLAN on the bridge with the priority that it came with.
#[inline(always)]
fn tag_bytes(meta: &Meta) -> [u8; TAG_BYTES as usize] {
    let [high, low] = (meta.tci & TCI_PRIORITY | meta.vid & 0x0fff).to_be_bytes();
    [0x81, 0x00, high, low]
}

/// A virtio header in registers: its first eight bytes and its last four, little-endian. Built in memory it could not be
/// loaded again before those stores have left the processor's buffer, behind stores to lines of another core.
#[derive(Clone, Copy)]
struct Header {
    low: u64,
    high: u32,
}

impl Header {
    const PLAIN: Header = Header { low: 0, high: 0 };

    /// The header with num_buffers.
    #[inline(always)]
    fn with_buffers(self, count: u16) -> Header {
        Header {
            low: self.low,
            high: self.high & 0xffff | u32::from(count) << 16,
        }
    }

    fn bytes(self) -> [u8; Claim::BYTES] {
        let mut bytes = [0; Claim::BYTES];
        if let Some((low, high)) = bytes.split_first_chunk_mut::<8>() {
            *low = self.low.to_le_bytes();
            high.copy_from_slice(&self.high.to_le_bytes());
        }
        bytes
    }

    /// Writes the header, where its place is aligned straight from registers.
    ///
    /// # Safety
    /// The header's bytes must be mapped and writable at `to`.
    #[inline(always)]
    unsafe fn write(self, to: *mut u8) {
        let words: *mut u32 = to.cast();
        if !words.is_aligned() {
            let bytes = self.bytes();
            // SAFETY: the caller's promise.
            unsafe { copy_out(to, bytes.as_ptr(), bytes.len()) };
            return;
        }
        let parts = [self.low as u32, (self.low >> 32) as u32, self.high];
        for (k, part) in parts.into_iter().enumerate() {
            // SAFETY: one of three aligned words of the header (caller).
            unsafe { word::store_u32(words.wrapping_add(k), part, Ordering::Relaxed) };
        }
    }
}

/// Logs all pages of reserved pieces, written or not.
#[cold]
fn mark_all(log: &DirtyLog, pieces: &[Piece]) {
    for piece in pieces {
        log.mark(piece.gpa, u64::from(piece.len));
    }
}

/// Reserved buffers that are being filled, one frame after the other.
struct Out<'a, R: Ring> {
    ring: &'a R,
    held: &'a mut R::Held,
    /// Those that were not given back yet.
    buffers: &'a [Buffer],
    /// The place of the first of them.
    at: u16,
    pieces: Scatter<'a>,
}

impl<R: Ring> Out<'_, R> {
    /// Writes the header of a frame of `len` bytes; returns how many buffers it takes, or `None` if they do not
    /// suffice.
    fn begin(&mut self, len: u32, header: Header) -> Option<usize> {
        let (need, mut room, mut count) = (HEADER_BYTES + len, 0u32, 0);
        while room < need {
            room = room.saturating_add(self.buffers.get(count)?.room);
            count += 1;
        }
        let header = header.with_buffers(count as u16).bytes();
        // SAFETY: an array of ours.
        unsafe { self.pieces.put(header.as_ptr(), header.len()) };
        Some(count)
    }

    fn give_back(&mut self, buffer: &Buffer, len: u32) {
        self.ring.put(self.held, self.at, buffer.id, len);
        self.at = self.ring.advance(self.at, buffer.places);
    }

    /// Gives back the buffers of the frame that was written behind its header. The room behind its end is passed
    /// over.
    fn end(&mut self, count: usize, len: u32) {
        let Some((mine, rest)) = self.buffers.split_at_checked(count) else {
            return;
        };
        let mut left = HEADER_BYTES + len;
        for buffer in mine {
            let n = buffer.room.min(left);
            self.give_back(buffer, n);
            self.pieces.pass((buffer.room - n) as usize);
            left -= n;
        }
        self.buffers = rest;
    }

    /// Gives back what is left, empty.
    fn give_back_rest(&mut self) {
        for buffer in self.buffers {
            self.give_back(buffer, 0);
        }
        self.buffers = &[];
    }
}

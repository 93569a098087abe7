//! Sequence numbers of a TCP connection: which segments can belong to it.
//!
//! # Model
//! Guido van Rooij, "Real Stateful TCP Packet Filtering in IP Filter" (2001), with window scales as Linux' connection tracking has them.
//! A [`Side`] is what is known of one end. A segment of this side fits if
//!
//! | bound | reason |
//! | --- | --- |
//! | `seq <= limit` | the other side has offered no more |
//! | `end of the segment >= end - largest window of the other side` | what lies before has been acknowledged |
//! | `ack <= end of the other side` | more was not sent |
//! | `ack >= end of the other side - largest own window - ` [`ACK_BEHIND`] | more was not in flight |
//!
//! A side that has not been heard bounds nothing: a guest may see one direction only. While only the SYN of the other side is known, the
//! acknowledgement alone is looked at; a reset then has to acknowledge that SYN.
//!
//! A reset is also held against what its receiver has acknowledged (RFC 5961, section 3): below it does not fit; exactly there, or where its
//! sender's data ends, it resets; elsewhere in the window it passes, so that its receiver may challenge it, and changes nothing.
//!
//! # A connection that is older than its entry
//! Its scales and what it has in flight are unknown. Both sides count as offering [`REACH`], and what a side acknowledges counts as
//! sent until the other has spoken itself. The bounds then keep out three quarters of all numbers of a forged reset, half of those of forged data.
//! What passes of these moves no bound further than that. Only the guest's own segments say where both sides are: before it has spoken,
//! what comes to it bounds nothing.
//!
//! # Limits
//! Selective acknowledgements are not read: the bounds hold without them.

use crate::packet::{Segment, flag};

/// How far an acknowledgement may be behind what was in flight, in bytes: some segments are swapped on their way. The paper's value.
const ACK_BEHIND: i32 = 66_000;
/// The largest scale of a window (RFC 7323, section 2.3).
const SCALE_MAX: u8 = 14;
/// The largest window of TCP, in bytes.
const REACH: u32 = (u16::MAX as u32) << SCALE_MAX;

/// Bits of [`Side::flags`]. The begin was not seen: scale and end are guesses.
const PICKED: u8 = 1;
/// [`Side::acked`] holds.
const ACKS: u8 = 2;
/// Its SYN offers a scale.
const SCALES: u8 = 4;

/// One end of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Side {
    /// Behind the last that it has sent.
    end: u32,
    /// What it may send up to.
    limit: u32,
    /// What it has acknowledged.
    acked: u32,
    /// The largest window that it has offered, in units of its scale; 0: it has not been heard.
    window: u16,
    scale: u8,
    flags: u8,
}

/// How far a sequence number is ahead of another one.
#[inline(always)]
const fn ahead(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

/// Whether the segment acknowledges. Some stacks send resets with the bit and without a number.
#[inline(always)]
const fn acknowledges(segment: &Segment, flags: u8) -> bool {
    flags & flag::ACK != 0 && (flags & flag::RST == 0 || segment.ack != 0)
}

/// Behind the last number that the segment takes.
#[inline(always)]
const fn end_of(segment: &Segment, flags: u8) -> u32 {
    let syn = (flags & flag::SYN != 0) as u32;
    let fin = (flags & flag::FIN != 0) as u32;
    let end = segment.seq.wrapping_add(segment.payload);
    end.wrapping_add(syn).wrapping_add(fin)
}

impl Side {
    /// One whose begin was not seen.
    pub(crate) const fn picked(end: u32) -> Side {
        Side {
            end,
            limit: end.wrapping_add(REACH),
            acked: 0,
            window: u16::MAX,
            scale: SCALE_MAX,
            flags: PICKED | SCALES,
        }
    }

    /// It has sent nothing yet.
    #[inline(always)]
    pub(crate) const fn is_unheard(&self) -> bool {
        self.window == 0
    }

    /// The largest window that it has offered, in bytes.
    #[inline(always)]
    const fn offered(&self) -> i32 {
        ((self.window as u32) << (self.scale & 15)) as i32
    }

    /// Whether a segment of this side fits.
    #[inline(always)]
    pub(crate) fn fits(&self, other: &Side, segment: &Segment, flags: u8) -> bool {
        if other.is_unheard() || self.is_unheard() && other.flags & PICKED != 0 {
            return true;
        }
        let is_reset = flags & flag::RST != 0;
        let acknowledges = acknowledges(segment, flags);
        let ack = ahead(segment.ack, other.end);
        if acknowledges {
            let most = if other.flags & PICKED != 0 {
                REACH as i32
            } else {
                0
            };
            let least = self.offered().wrapping_add(ACK_BEHIND).wrapping_neg();
            if ack > most || ack < least {
                return false;
            }
        }
        if self.is_unheard() {
            return acknowledges && (!is_reset || ack == 0);
        }
        let is_below = is_reset && other.flags & ACKS != 0 && ahead(segment.seq, other.acked) < 0;
        ahead(segment.seq, self.limit) <= 0
            && ahead(self.end, end_of(segment, flags)) <= other.offered()
            && !is_below
    }

    /// Whether a reset of this side that fits ends the connection for certain.
    pub(crate) fn resets(&self, other: &Side, segment: &Segment) -> bool {
        let is_next = other.flags & ACKS != 0 && segment.seq == other.acked;
        self.is_unheard() || is_next || segment.seq == self.end
    }

    /// Whether this is a SYN that this side has sent before, and nothing since.
    pub(crate) fn has_begun_with(&self, other: &Side, segment: &Segment, flags: u8) -> bool {
        other.is_unheard() && self.end == end_of(segment, flags)
    }

    /// Whether this side may have sent a segment with this number that an error quotes (RFC 5927, section 4.1).
    pub(crate) fn may_have_sent(&self, other: &Side, seq: u32) -> bool {
        let behind = ahead(self.end, seq);
        self.is_unheard() || other.is_unheard() || (0..=other.offered()).contains(&behind)
    }

    /// Notes a segment of this side that fits and passes. `is_guest`: of the firewall's own guest. `is_part`: how much it carries is not known.
    #[inline(always)]
    pub(crate) fn note(
        &mut self,
        other: &mut Side,
        segment: &Segment,
        flags: u8,
        (is_guest, is_part): (bool, bool),
    ) {
        let end = end_of(segment, flags);
        if self.is_unheard() {
            self.begin(other, *segment, flags, is_guest);
        }
        if is_part {
            self.flags |= PICKED;
        }
        if ahead(end, self.end) > 0 {
            self.end = end;
            let over = ahead(end, self.limit);
            if over > 0 && !other.is_unheard() {
                self.go_over(other, over as u32);
            }
        }
        let (bytes, units) = match flags & flag::SYN {
            0 => (
                u32::from(segment.window) << (self.scale & 15),
                segment.window,
            ),
            // It has no scale in a SYN (RFC 7323, section 2.2).
            _ => {
                let bytes = u32::from(segment.window);
                (bytes, bytes.div_ceil(1 << (self.scale & 15)) as u16)
            }
        };
        self.window = self.window.max(units).max(1);
        if acknowledges(segment, flags) {
            if self.flags & ACKS == 0 || ahead(segment.ack, self.acked) > 0 {
                self.acked = segment.ack;
                self.flags |= ACKS;
            }
            let limit = segment.ack.wrapping_add(bytes);
            if ahead(limit, other.limit) > 0 {
                other.limit = limit;
            }
            if other.flags & ACKS == 0 && ahead(segment.ack, other.end) > 0 {
                other.end = segment.ack;
            }
        }
    }

    /// After a segment that ends so far behind what this side may send.
    #[cold]
    fn go_over(&mut self, other: &mut Side, over: u32) {
        if other.flags & ACKS == 0 {
            // Its answers go another way.
            self.limit = self.end.wrapping_add(other.offered() as u32);
        } else if self.flags & PICKED != 0 {
            self.end = self.limit;
        } else {
            // Larger than the window: what has to be repeated lies as much further behind.
            let units = (over >> (other.scale & 15)).saturating_add(1);
            let units = u16::try_from(units).unwrap_or(u16::MAX);
            other.window = other.window.saturating_add(units);
        }
    }

    /// The first segment of this side.
    #[inline(never)]
    fn begin(&mut self, other: &mut Side, segment: Segment, flags: u8, is_guest: bool) {
        let end = end_of(&segment, flags);
        if flags & flag::SYN == 0 {
            *self = Side::picked(end);
            if is_guest && (other.is_unheard() || other.flags & PICKED != 0) {
                *other = Side::picked(segment.ack);
            }
        } else {
            let limit = end.wrapping_add(other.offered() as u32);
            *self = Side {
                end,
                limit,
                ..Side::default()
            };
            if let Some(scale) = segment.scale {
                (self.scale, self.flags) = (scale.min(SCALE_MAX), SCALES);
            }
            if !other.is_unheard() && self.flags & other.flags & SCALES == 0 {
                let offered = u16::try_from(other.offered());
                (other.window, other.scale) = (offered.unwrap_or(u16::MAX), 0);
                self.scale = 0;
            }
        }
        if acknowledges(&segment, flags) && other.flags & PICKED == 0 {
            // It may have sent on for long without having been heard to be answered.
            other.limit = segment.ack;
        }
    }
}

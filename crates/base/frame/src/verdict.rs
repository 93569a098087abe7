//! Identifiers and verdicts.

use windlass_stats::Drop;

/// A moment on the worker's monotonic clock, in nanoseconds. Read once for each burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

impl Tick {
    /// Nanoseconds from `earlier` to `self`; 0 if `earlier` is later.
    pub const fn since(self, earlier: Tick) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment `ns` nanoseconds later.
    pub const fn plus(self, ns: u64) -> Tick {
        Tick(self.0.saturating_add(ns))
    }
}

/// A member as a source of frames: the index of its port in the topology.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RxId(pub u16);

/// A member as a destination of frames: the index of its port in the topology. A member's `RxId`
/// and `TxId` have the same value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TxId(pub u16);

/// A set of destinations, prepared when the topology was made: its index in the bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FloodId(pub u16);

/// What a bridge decided about one frame. 32 bits: kind 8, flags 8, number 16.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Verdict(u32);

const KIND_SHIFT: u32 = 24;
const TAG_FLAG: u32 = 1 << 16;
const TO: u32 = 1;
const FLOOD: u32 = 2;
const LOCAL: u32 = 3;
const DROP: u32 = 4;
const HELD: u32 = 5;

impl Verdict {
    /// No decision yet. A frame that leaves the engines so is dropped as
    /// [`Drop::NotReady`].
    pub const NONE: Verdict = Verdict(0);

    /// Send to one member; `tagged`: with the frame's VLAN in an 802.1Q tag.
    #[inline(always)]
    pub const fn to(id: TxId, tagged: bool) -> Verdict {
        Verdict(TO << KIND_SHIFT | if tagged { TAG_FLAG } else { 0 } | id.0 as u32)
    }

    /// Send to every member of a set.
    #[inline(always)]
    pub const fn flood(id: FloodId) -> Verdict {
        Verdict(FLOOD << KIND_SHIFT | id.0 as u32)
    }

    /// Consumed by the bridge itself.
    pub const LOCAL: Verdict = Verdict(LOCAL << KIND_SHIFT);

    /// It waits until a moment, and has no decision before that.
    pub const HELD: Verdict = Verdict(HELD << KIND_SHIFT);

    /// [`Verdict::LOCAL`], and the daemon keeps room for it: a BPDU of a member that takes part in spanning tree.
    pub const BPDU: Verdict = Verdict(LOCAL << KIND_SHIFT | 1);

    /// [`Verdict::LOCAL`], and the daemon keeps room for it: what receivers and routers of groups say.
    pub const SNOOPED: Verdict = Verdict(LOCAL << KIND_SHIFT | 2);

    /// Drop it.
    #[inline(always)]
    pub const fn drop(reason: Drop) -> Verdict {
        Verdict(DROP << KIND_SHIFT | reason as u32)
    }

    /// The 32 bits: equal verdicts have equal bits.
    #[inline(always)]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The destination and whether the frame is tagged there, if it is one member.
    #[inline(always)]
    pub const fn as_to(self) -> Option<(TxId, bool)> {
        if self.0 >> KIND_SHIFT == TO {
            Some((TxId(self.0 as u16), self.0 & TAG_FLAG != 0))
        } else {
            None
        }
    }

    /// The set, if the frame is flooded.
    #[inline(always)]
    pub const fn as_flood(self) -> Option<FloodId> {
        if self.0 >> KIND_SHIFT == FLOOD {
            Some(FloodId(self.0 as u16))
        } else {
            None
        }
    }

    /// Whether the bridge consumed it.
    #[inline(always)]
    pub const fn is_local(self) -> bool {
        self.0 >> KIND_SHIFT == LOCAL
    }

    /// Whether it waits.
    #[inline(always)]
    pub const fn is_held(self) -> bool {
        self.0 >> KIND_SHIFT == HELD
    }

    /// The reason, if it is dropped.
    #[inline(always)]
    pub fn as_drop(self) -> Option<Drop> {
        if self.0 >> KIND_SHIFT == DROP {
            Drop::ALL.get((self.0 & 0xff) as usize).copied()
        } else {
            None
        }
    }
}

impl core::fmt::Debug for Verdict {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if let Some((id, tagged)) = self.as_to() {
            write!(f, "To({}{})", id.0, if tagged { ", tagged" } else { "" })
        } else if let Some(id) = self.as_flood() {
            write!(f, "Flood({})", id.0)
        } else if let Some(d) = self.as_drop() {
            write!(f, "Drop({})", d.name())
        } else if self.is_local() {
            f.write_str("Local")
        } else {
            f.write_str("None")
        }
    }
}

/// One frame of a burst on its way to one destination: its index and whether it gets a tag there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick(u8);

impl Pick {
    /// Frame `index` (below [`crate::BURST`]); `tagged`: written with an 802.1Q tag made of the
    /// frame's `vid` and priority.
    #[inline(always)]
    pub const fn frame(index: usize, tagged: bool) -> Pick {
        Pick((index & 63) as u8 | if tagged { 128 } else { 0 })
    }

    /// The frame's index in the burst.
    #[inline(always)]
    pub const fn index(self) -> usize {
        (self.0 & 63) as usize
    }

    /// Whether the frame is written with a tag.
    #[inline(always)]
    pub const fn tagged(self) -> bool {
        self.0 & 128 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each verdict is read back as what it was made as, and as nothing else.
    #[test]
    fn verdicts_round_trip() {
        let v = Verdict::to(TxId(65535), true);
        assert_eq!(v.as_to(), Some((TxId(65535), true)));
        assert!(v.as_flood().is_none() && v.as_drop().is_none() && !v.is_local());
        assert_eq!(Verdict::flood(FloodId(7)).as_flood(), Some(FloodId(7)));
        for d in Drop::ALL {
            assert_eq!(Verdict::drop(*d).as_drop(), Some(*d));
        }
        assert!(Verdict::LOCAL.is_local() && Verdict::NONE.as_to().is_none());
        let p = Pick::frame(63, true);
        assert_eq!((p.index(), p.tagged()), (63, true));
    }
}

//! One burst: the private bytes and metadata of its frames.

use crate::{BURST, Claim, HEADROOM, Offload, RxId, SNAP, Tick, Verdict};

/// Frames of one burst that can be deepened: all, so that none is lost because of its neighbours.
/// Slots are taken from the first, so those that are not used stay out of the cache.
pub const DEEP_SLOTS: usize = BURST;
/// Bytes of a deep slot, headroom included.
pub const DEEP_BYTES: usize = 2048;
const NOT_DEEP: u8 = 0xff;

/// The private bytes of one frame: [`HEADROOM`] and the first [`SNAP`] bytes of the frame.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Snap(pub [u8; 256]);

/// What is known of one frame besides its bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(32))]
pub struct Meta {
    /// Length of the whole frame in bytes.
    pub len: u32,
    /// Private bytes of the frame: `min(len, SNAP)` until deepened.
    pub have: u16,
    /// Offset of the frame's first byte in its private buffer.
    pub at: u8,
    /// Length of the link-layer header; 0 while nothing was parsed.
    pub l2: u8,
    /// Length of the network-layer header with its extension headers.
    pub l3: u16,
    /// Length of the transport header.
    pub l4: u8,
    /// IP protocol number of the transport; 0 while nothing was parsed.
    pub proto: u8,
    /// The frame's VLAN on the bridge (0 where the bridge does not filter).
    pub vid: u16,
    /// The 802.1Q tag control information that the frame came with, or 0: its priority bits go
    /// into the tag that is written on egress.
    pub tci: u16,
    /// What the sender claims about checksum and segmentation.
    pub claim: Claim,
    /// What holds.
    pub off: Offload,
}

/// Appends bytes of a frame that lie beyond its private bytes. Implemented where the frame's
/// borrowed memory is known; every byte is read for the first time.
pub trait Deepen {
    /// Makes at least `upto` bytes of frame `i` private. False if the frame is shorter, the pool
    /// is empty, or `upto` does not fit into a slot.
    fn deepen(&mut self, heads: &mut Heads, i: usize, upto: usize) -> bool;
}

/// One burst of frames from one source.
#[derive(Debug)]
pub struct Heads {
    /// Frames in the burst.
    pub n: usize,
    /// When the burst was taken.
    pub now: Tick,
    /// Where it came from.
    pub from: RxId,
    /// Some frame came with a claim: raised by [`Heads::admit`].
    pub claimed: bool,
    /// Destination addresses: the frame's first six bytes as the low 48 bits of a little-endian
    /// load; the upper 16 bits are 0.
    pub dst: [u64; BURST],
    /// Source addresses, in the same form.
    pub src: [u64; BURST],
    /// The two bytes behind the addresses as the frame came, as a little-endian load: its EtherType, or the type of
    /// its tag. Taken together with the addresses.
    pub kind: [u16; BURST],
    /// What the bridge decided.
    pub verdict: [Verdict; BURST],
    /// Metadata.
    pub meta: [Meta; BURST],
    /// Private bytes.
    pub snap: [Snap; BURST],
    deep_of: [u8; BURST],
    deep_used: usize,
    deep: Box<[[u8; DEEP_BYTES]; DEEP_SLOTS]>,
}

/// The low 48 bits.
const MAC_MASK: u64 = (1 << 48) - 1;

impl Heads {
    /// An empty burst, on the heap: 24 KiB and the pool's 128 KiB.
    pub fn boxed() -> Box<Heads> {
        Box::new(Heads {
            n: 0,
            now: Tick(0),
            from: RxId(0),
            claimed: false,
            dst: [0; BURST],
            src: [0; BURST],
            kind: [0; BURST],
            verdict: [Verdict::NONE; BURST],
            meta: [Meta::default(); BURST],
            snap: [Snap([0; 256]); BURST],
            deep_of: [NOT_DEEP; BURST],
            deep_used: 0,
            deep: Box::new([[0; DEEP_BYTES]; DEEP_SLOTS]),
        })
    }

    /// Empties the burst before a port fills it.
    #[inline]
    pub fn clear(&mut self, from: RxId, now: Tick) {
        self.n = 0;
        self.from = from;
        self.now = now;
        self.claimed = false;
        if self.deep_used != 0 {
            self.deep_of = [NOT_DEEP; BURST];
            self.deep_used = 0;
        }
    }

    /// Takes the addresses and the type of frame `i` out of its snapshot. Called by the port once the snapshot
    /// stands, and by whoever moves the frame's start.
    #[inline(always)]
    pub fn load_addresses(&mut self, i: usize) {
        let i = i % BURST;
        let at = self.meta[i].at as usize;
        let bytes = &self.snap[i].0;
        let word = |at: usize| {
            let word = bytes.get(at..at + 8).and_then(|h| h.first_chunk::<8>());
            word.map(|h| u64::from_le_bytes(*h))
        };
        if let (Some(d), Some(s)) = (word(at), word(at + 6)) {
            self.dst[i] = d & MAC_MASK;
            self.src[i] = s & MAC_MASK;
            self.kind[i] = (s >> 48) as u16;
        }
    }

    /// Frame `i` became a frame that was just put into `snap[i].0[HEADROOM..]` with `len` bytes in all.
    #[inline(always)]
    pub fn admit(&mut self, i: usize, len: u32, claim: Claim) {
        self.admit_unread(i, len, claim);
        self.load_addresses(i);
    }

    /// The same, but for what [`Heads::load_addresses`] does, which the caller owes. A port that admits many frames
    /// does so behind the last of them: bytes that were stored in one piece across two lines cannot be loaded again
    /// before that store has left the processor's buffer.
    #[inline(always)]
    pub fn admit_unread(&mut self, i: usize, len: u32, claim: Claim) {
        let k = i % BURST;
        self.meta[k] = Meta {
            len,
            have: (len as usize).min(SNAP) as u16,
            at: HEADROOM as u8,
            claim,
            ..Meta::default()
        };
        self.verdict[k] = Verdict::NONE;
        self.claimed |= !claim.is_none();
    }

    /// So many bytes of every frame stand in its snapshot behind [`HEADROOM`], where a port has put them; 0 if a frame was moved.
    #[inline]
    pub fn reach(&self) -> usize {
        if self.deep_used != 0 {
            return 0;
        }
        let (fours, rest) = self
            .meta
            .get(..self.n)
            .unwrap_or(&self.meta)
            .as_chunks::<4>();
        let mut least = SNAP as u32;
        let mut is_moved = |metas: &[Meta]| {
            metas.iter().any(|m| {
                least = least.min(m.have.into());
                m.at != HEADROOM as u8
            })
        };
        // By fours: what the loop itself costs is much, beside what it does.
        match fours.iter().any(|four| is_moved(four)) || is_moved(rest) {
            true => 0,
            false => least as usize,
        }
    }

    /// The private bytes of frame `i`.
    #[inline(always)]
    pub fn private(&self, i: usize) -> &[u8] {
        let i = i % BURST;
        let m = &self.meta[i];
        let range = m.at as usize..m.at as usize + m.have as usize;
        let whole: &[u8] = match self.deep_of[i] {
            NOT_DEEP => &self.snap[i].0,
            slot => &self.deep[slot as usize % DEEP_SLOTS],
        };
        whole.get(range).unwrap_or(&[])
    }

    /// The private bytes of frame `i`, to be rewritten.
    #[inline(always)]
    pub fn private_mut(&mut self, i: usize) -> &mut [u8] {
        let i = i % BURST;
        let m = &self.meta[i];
        let range = m.at as usize..m.at as usize + m.have as usize;
        let whole: &mut [u8] = match self.deep_of[i] {
            NOT_DEEP => &mut self.snap[i].0,
            slot => &mut self.deep[slot as usize % DEEP_SLOTS],
        };
        whole.get_mut(range).unwrap_or(&mut [])
    }

    /// Moves frame `i` to a deep slot and returns the room behind its private bytes, exactly
    /// `more` long, for the caller to fill; `have` already counts it. None if the pool is empty or
    /// the slot too small.
    pub fn grow(&mut self, i: usize, more: usize) -> Option<&mut [u8]> {
        let i = i % BURST;
        let (at, have) = (self.meta[i].at as usize, self.meta[i].have as usize);
        let end = at.checked_add(have)?.checked_add(more)?;
        if end > DEEP_BYTES {
            return None;
        }
        if self.deep_of[i] == NOT_DEEP {
            let slot = self.deep_used;
            let bytes = self.deep.get_mut(slot)?;
            bytes.get_mut(..256)?.copy_from_slice(&self.snap[i].0);
            self.deep_of[i] = slot as u8;
            self.deep_used += 1;
        }
        self.meta[i].have = (have + more) as u16;
        self.deep
            .get_mut(self.deep_of[i] as usize)?
            .get_mut(at + have..end)
    }

    /// Whether the private bytes of frame `i` stand in its snapshot (and not in the pool).
    #[inline(always)]
    pub fn in_snap(&self, i: usize) -> bool {
        self.deep_of[i % BURST] == NOT_DEEP
    }

    /// Makes frame `i` what it is in another burst.
    pub fn copy_frame(&mut self, from: &Heads, i: usize) {
        let i = i % BURST;
        (self.dst[i], self.src[i], self.kind[i]) = (from.dst[i], from.src[i], from.kind[i]);
        (self.verdict[i], self.meta[i]) = (from.verdict[i], from.meta[i]);
        self.claimed |= from.claimed;
        self.deep_of[i] = NOT_DEEP;
        if from.in_snap(i) {
            self.snap[i] = from.snap[i];
            return;
        }
        let slot = self.deep_used;
        if let Some(deep) = self.deep.get_mut(slot) {
            *deep = from.deep[usize::from(from.deep_of[i]) % DEEP_SLOTS];
            self.deep_of[i] = slot as u8;
            self.deep_used += 1;
        }
    }

    /// Puts a header before frame `i`: a tunnel's. False if there is no room for it. What is known of the frame's own
    /// headers is counted from the start of its link header as before, so offload metadata is of the inner frame: it has to
    /// be dealt with first, or the receiver be told.
    pub fn prepend(&mut self, i: usize, header: &[u8]) -> bool {
        let i = i % BURST;
        let m = &mut self.meta[i];
        let Some(at) = usize::from(m.at).checked_sub(header.len()) else {
            return false;
        };
        (m.at, m.have) = (at as u8, m.have + header.len() as u16);
        m.len += header.len() as u32;
        self.private_mut(i)[..header.len()].copy_from_slice(header);
        true
    }

    /// Takes the 802.1Q tag out of frame `i`: the addresses move four bytes up, the frame gets
    /// shorter by four, and so do the link header and the place of a checksum to be completed. Does
    /// nothing to a frame with fewer than 18 private bytes.
    #[inline]
    pub fn pop_tag(&mut self, i: usize) {
        let i = i % BURST;
        let p = self.private_mut(i);
        if p.len() < 18 {
            return;
        }
        p.copy_within(0..12, 4);
        let m = &mut self.meta[i];
        m.at += 4;
        m.have -= 4;
        m.len -= 4;
        if m.claim.flags & Claim::NEEDS_CSUM != 0 {
            m.claim.csum_start = m.claim.csum_start.wrapping_sub(4);
        }
        if m.off.needs_csum() {
            m.off.start = m.off.start.wrapping_sub(4);
        }
        m.l2 = m.l2.saturating_sub(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_frame(bytes: &[u8]) -> Box<Heads> {
        let mut h = Heads::boxed();
        h.clear(RxId(1), Tick(5));
        h.snap[0].0[HEADROOM..HEADROOM + bytes.len()].copy_from_slice(bytes);
        h.admit(0, bytes.len() as u32, Claim::NONE);
        h.n = 1;
        h
    }

    /// The structures have the sizes on which the cost of a burst was computed.
    #[test]
    fn sizes() {
        assert_eq!(size_of::<Meta>(), 32);
        assert_eq!(size_of::<Snap>(), 256);
        assert_eq!(size_of::<Verdict>(), 4);
    }

    /// Addresses are taken as little-endian loads, and a popped tag leaves the frame without it.
    #[test]
    fn addresses_and_tag() {
        let mut f: Vec<u8> = (1..=12).collect();
        f.extend([0x81, 0, 0x60, 7, 8, 0]);
        f.extend([0xaa; 46]);
        let mut h = with_frame(&f);
        (h.meta[0].off, h.meta[0].l2) = (Offload::needing_csum(38, 16), 18);
        assert_eq!(h.reach(), 64);
        assert_eq!(h.dst[0], 0x0605_0403_0201);
        assert_eq!(h.src[0], 0x0c0b_0a09_0807);
        assert_eq!(h.kind[0], 0x8100_u16.swap_bytes());
        h.pop_tag(0);
        assert_eq!(h.reach(), 0);
        assert_eq!(
            &h.private(0)[..14],
            &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 8, 0]
        );
        assert_eq!(h.meta[0].len as usize, f.len() - 4);
        assert_eq!((h.meta[0].off.start, h.meta[0].l2), (34, 14));
        (h.meta[0].off, h.meta[0].l2) = (Offload::NONE, 0);
        h.pop_tag(0);
        assert_eq!((h.meta[0].off.start, h.meta[0].l2), (0, 0));
    }

    /// A copy of a frame, deep or not, can get a header in front; the frame that it was made of stays.
    #[test]
    fn copies_get_headers() {
        let f: Vec<u8> = (0..128).collect();
        let mut h = with_frame(&f);
        let mut copy = Heads::boxed();
        for is_deep in [false, true] {
            if is_deep {
                h.grow(0, 10).expect("room").copy_from_slice(&[0xee; 10]);
            }
            copy.clear(RxId(1), Tick(5));
            copy.copy_frame(&h, 0);
            assert_eq!(copy.private(0), h.private(0));
            let len = h.private(0).len();
            assert!(copy.prepend(0, &[7; 74]) && !copy.prepend(0, &[7; HEADROOM]));
            assert_eq!(copy.private(0).len(), len + 74);
            assert_eq!(copy.private(0)[..74], [7; 74]);
            assert_eq!(copy.private(0)[74..], *h.private(0));
            assert_eq!(copy.meta[0].len, h.meta[0].len + 74);
        }
    }

    /// Growing keeps the bytes, is refused beyond a slot, and possible for every frame of a burst.
    #[test]
    fn grow_is_bounded() {
        let f: Vec<u8> = (0..128).collect();
        let mut h = with_frame(&f);
        assert!(h.grow(0, 4096).is_none());
        h.grow(0, 10).expect("room").copy_from_slice(&[0xee; 10]);
        assert_eq!(&h.private(0)[..128], &f[..]);
        assert_eq!(&h.private(0)[128..], &[0xee; 10]);
        for i in 1..BURST {
            assert!(h.grow(i, 1).is_some());
        }
        h.clear(RxId(0), Tick(0));
        assert!(h.in_snap(0));
    }
}

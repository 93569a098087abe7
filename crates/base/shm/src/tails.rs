//! What lies behind the snapshots of a burst: segments of borrowed memory.

use windlass_frame::{BURST, BURST_BYTES, BURST_SEGMENTS, Deepen, FRAME_MAX, Heads};
use windlass_sync::qsbr::Section;

use crate::foreign::Foreign;

/// Bytes of the private memory that one frame may need: the largest frame, and lines between so that frames do not all
/// fall on the same sets of the cache.
pub const ARENA_SLOT: usize = (FRAME_MAX + 1).next_multiple_of(64) + 17 * 64;

/// Private memory of a worker for ports that copy (TAP, packet socket): any burst. What is not used is never touched.
pub const ARENA_BYTES: usize = BURST * ARENA_SLOT;

/// Storage for the segments of one burst. A worker owns one; nothing in it outlives a visit.
#[derive(Debug)]
pub struct SegStore {
    segments: Vec<(usize, u32)>,
    frames: [(u16, u16); BURST],
    arena: Box<[u8]>,
    arena_used: usize,
}

impl Default for SegStore {
    fn default() -> Self {
        SegStore {
            segments: Vec::with_capacity(BURST_SEGMENTS),
            frames: [(0, 0); BURST],
            arena: vec![0; ARENA_BYTES].into_boxed_slice(),
            arena_used: 0,
        }
    }
}

impl SegStore {
    /// Writes to the private memory that a burst from a ring in memory may need, so that its pages are there.
    pub fn touch(&mut self) {
        let most = BURST_BYTES + FRAME_MAX + 64 * BURST;
        self.arena.iter_mut().take(most).for_each(|byte| *byte = 0);
    }
}

/// The segments of one burst, valid for one quiescent section.
pub struct Tails<'q> {
    store: &'q mut SegStore,
    section: &'q Section<'q>,
}

impl<'q> Tails<'q> {
    /// Empties `store` and binds it to `section`.
    #[inline]
    pub fn bind(store: &'q mut SegStore, section: &'q Section<'q>) -> Tails<'q> {
        store.segments.clear();
        store.frames = [(0, 0); BURST];
        store.arena_used = 0;
        Tails { store, section }
    }

    /// Segments that can still be added.
    #[inline(always)]
    pub fn room(&self) -> usize {
        BURST_SEGMENTS - self.store.segments.len()
    }

    /// Adds a segment to frame `i`, whose segments must be added one after another. False when the burst has
    /// no room for it.
    #[inline]
    pub fn push(&mut self, i: usize, segment: Foreign<'q>) -> bool {
        if segment.is_empty() {
            return true;
        }
        let at = self.store.segments.len();
        if at >= BURST_SEGMENTS {
            return false;
        }
        let f = &mut self.store.frames[i % BURST];
        if f.1 == 0 {
            f.0 = at as u16;
        }
        debug_assert_eq!(
            (f.0 + f.1) as usize,
            at,
            "segments of a frame are contiguous"
        );
        f.1 += 1;
        self.store
            .segments
            .push((segment.as_ptr() as usize, segment.len() as u32));
        true
    }

    /// Whether frame `i` has anything behind its private bytes.
    #[inline(always)]
    pub fn has(&self, i: usize) -> bool {
        self.store.frames[i % BURST].1 != 0
    }

    /// The segments of frame `i`.
    #[inline]
    pub fn of(&self, i: usize) -> impl Iterator<Item = Foreign<'q>> + '_ {
        let (first, count) = self.store.frames[i % BURST];
        let section = self.section;
        self.store
            .segments
            .get(first as usize..first as usize + count as usize)
            .unwrap_or(&[])
            .iter()
            // SAFETY: `push` took a `Foreign<'q>` with this address and length, and `'q` has not ended.
            .map(move |(p, n)| unsafe { Foreign::at(section, *p as *const u8, *n) })
    }

    /// Copies what lies behind the snapshots to private memory, as far as it does not lie there yet: it is read from its owner
    /// once, now, and from there whenever it is read later.
    #[cold]
    pub fn take_private(&mut self) {
        let arena = self.store.arena.as_ptr_range();
        for i in 0..BURST {
            let (first, count) = self.store.frames[i];
            let (first, end) = (usize::from(first), usize::from(first) + usize::from(count));
            let segments = self.store.segments.get(first..end).unwrap_or(&[]);
            let is_private = |(p, _): &(usize, u32)| arena.contains(&(*p as *const u8));
            if segments.iter().all(is_private) {
                continue;
            }
            let begin = self.store.arena_used;
            let mut at = begin;
            for (p, n) in segments {
                // SAFETY: as in `of`.
                let segment = unsafe { Foreign::at(self.section, *p as *const u8, *n) };
                at += segment.read(self.store.arena.get_mut(at..).unwrap_or(&mut []));
            }
            let p = self.store.arena.as_ptr().wrapping_add(begin) as usize;
            if let Some(segment) = self.store.segments.get_mut(first) {
                *segment = (p, (at - begin) as u32);
            }
            self.store.frames[i].1 = 1;
            self.store.arena_used = at.next_multiple_of(64).min(self.store.arena.len());
        }
    }

    /// The unused private memory, for a port that reads frames into it.
    #[inline]
    pub fn arena(&mut self) -> &mut [u8] {
        let used = self.store.arena_used;
        self.store.arena.get_mut(used..).unwrap_or(&mut [])
    }

    /// The first `len` unused bytes of the arena became the rest of frame `i`. The next frame starts on a cache line.
    #[inline]
    pub fn take_arena(&mut self, i: usize, len: usize) -> bool {
        self.take_arena_from(i, 0, len)
    }

    /// `len` bytes of the arena, after `skip` of the unused ones, became the rest of frame `i`; those skipped are lost to
    /// this burst. Returns false if they are not there.
    #[inline]
    pub fn take_arena_from(&mut self, i: usize, skip: usize, len: usize) -> bool {
        let room = self.store.arena.len() - self.store.arena_used;
        if skip > room || len > room - skip {
            return false;
        }
        let used = self.store.arena_used + skip;
        let p = self.store.arena.as_ptr().wrapping_add(used);
        // SAFETY: inside the arena, which `store` keeps for `'q`; nothing writes these bytes again before `bind`, since
        // `arena_used` moves past them.
        let segment = unsafe { Foreign::at(self.section, p, len as u32) };
        self.store.arena_used = (used + len)
            .next_multiple_of(64)
            .min(self.store.arena.len());
        self.push(i, segment)
    }
}

impl Deepen for Tails<'_> {
    fn deepen(&mut self, heads: &mut Heads, i: usize, upto: usize) -> bool {
        let i = i % BURST;
        let have = heads.meta[i].have as usize;
        let Some(more) = upto.checked_sub(have) else {
            return true;
        };
        if upto > heads.meta[i].len as usize {
            return false;
        }
        let Some(mut room) = heads.grow(i, more) else {
            return false;
        };
        let (mut first, mut count) = self.store.frames[i];
        while !room.is_empty() && count > 0 {
            let Some(s) = self.store.segments.get_mut(first as usize) else {
                break;
            };
            // SAFETY: as in `of`.
            let segment = unsafe { Foreign::at(self.section, s.0 as *const u8, s.1) };
            let n = segment.read(room);
            room = room.get_mut(n..).unwrap_or(&mut []);
            s.0 += n;
            s.1 -= n as u32;
            if s.1 == 0 {
                (first, count) = (first + 1, count - 1);
            }
        }
        let short = !room.is_empty();
        room.fill(0);
        self.store.frames[i] = (first, count);
        !short
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_frame::{Claim, RxId, Tick};
    use windlass_sync::qsbr::Domain;

    /// What was taken is what the owner had at that moment, in its order, in one piece; what lay in private memory stays
    /// where it is.
    #[test]
    fn what_is_taken_is_private() {
        let domain = Domain::new(1);
        let mut worker = domain.register();
        let section = worker.section();
        let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
        heads.clear(RxId(0), Tick(0));
        let memory: Vec<u8> = (0..4000).map(|i| (i % 251) as u8).collect();
        let mut tails = Tails::bind(&mut store, &section);
        heads.admit(0, 3000, Claim::NONE);
        for piece in [0..1000, 1000..1001, 1001..3000] {
            assert!(tails.push(0, Foreign::private(&memory[piece])));
        }
        assert!(tails.push(2, Foreign::private(&memory[3000..])));
        tails.take_private();
        let arena = tails.store.arena.as_ptr_range();
        for (i, bytes) in [(0, &memory[..3000]), (1, &[][..]), (2, &memory[3000..])] {
            let pieces: Vec<_> = tails.of(i).collect();
            assert_eq!(pieces.len(), usize::from(!bytes.is_empty()));
            let mut got = vec![0; bytes.len()];
            for piece in &pieces {
                assert!(arena.contains(&piece.as_ptr()));
                assert_eq!(piece.read(&mut got), bytes.len());
            }
            assert_eq!(got, bytes);
        }
        let used = tails.store.arena_used;
        tails.take_private();
        assert_eq!(tails.store.arena_used, used);
    }
}

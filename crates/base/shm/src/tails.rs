//! What lies behind the snapshots of a burst: segments of borrowed memory.

use windlass_frame::{BURST, BURST_SEGMENTS, Deepen, FRAME_MAX, Heads};
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

    /// Takes back what was pushed for frame `i`, the last one.
    pub fn abandon(&mut self, i: usize) {
        let f = &mut self.store.frames[i % BURST];
        if f.1 != 0 {
            self.store.segments.truncate(f.0 as usize);
            *f = (0, 0);
        }
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

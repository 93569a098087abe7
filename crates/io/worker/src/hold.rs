//! Frames that had to wait: copied to private memory, bounded.
//!
//! # Purpose
//! A borrow never outlives its visit. What cannot be sent during the visit but must not be lost
//! either (another worker holds the ring; a flood has more copies left than one visit may make) is
//! copied here.
//!
//! # Model
//! A [`Pool`] is a fixed number of blocks of [`BLOCK`] bytes; a [`Held`] frame is a chain of them
//! and its metadata. Restoring puts the first bytes back into a [`Heads`] and the rest into
//! [`Tails`], so that a held frame is sent by the same code as a borrowed one.
//!
//! # Limits
//! [`POOL_BYTES`] a worker for spilled frames, and for floods; [`crate::queue`] has its own limits. A frame for which there are not enough blocks is not held.

use windlass_frame::{BURST, Claim, Deepen, HEADROOM, Heads, Meta, SNAP};
use windlass_shm::{Foreign, Tails};

/// Bytes of one block.
pub const BLOCK: usize = 2048;
/// Private memory of one worker for frames that wait.
pub const POOL_BYTES: usize = 256 * 1024;
const BLOCKS: usize = POOL_BYTES / BLOCK;
const NIL: u16 = u16::MAX;

/// A frame in private memory. Must be given back with [`Pool::free`].
#[derive(Debug)]
#[must_use = "blocks are given back with Pool::free"]
pub struct Held {
    meta: Meta,
    first: u16,
}

/// Blocks of private memory.
#[derive(Debug)]
pub struct Pool {
    bytes: Box<[u8]>,
    next: Box<[u16]>,
    free: u16,
    free_blocks: usize,
}

impl Held {
    /// What is known of the frame.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl Default for Pool {
    fn default() -> Self {
        Pool::of(BLOCKS)
    }
}

impl Pool {
    /// So many blocks, fewer than 65,535.
    pub fn of(blocks: usize) -> Pool {
        assert!((1..usize::from(NIL)).contains(&blocks), "{blocks} blocks");
        let next = 1..=blocks as u16;
        let next = next.map(|n| if usize::from(n) < blocks { n } else { NIL });
        Pool {
            bytes: vec![0; blocks * BLOCK].into_boxed_slice(),
            next: next.collect(),
            free: 0,
            free_blocks: blocks,
        }
    }

    /// Blocks that a frame takes.
    pub fn blocks(meta: &Meta) -> usize {
        (meta.len as usize).div_ceil(BLOCK).max(1)
    }

    /// Blocks that are free.
    pub fn free_blocks(&self) -> usize {
        self.free_blocks
    }

    /// Copies frame `i` of a burst, or `None` when there are not enough free blocks.
    pub fn hold(&mut self, heads: &Heads, tails: &Tails<'_>, i: usize) -> Option<Held> {
        let meta = heads.meta[i % BURST];
        if Pool::blocks(&meta) > self.free_blocks {
            return None;
        }
        let mut held = Held { meta, first: NIL };
        let (mut last, mut at) = (NIL, BLOCK);
        let mut put = |pool: &mut Pool, piece: Foreign<'_>| {
            let mut rest = piece;
            while !rest.is_empty() {
                if at == BLOCK {
                    let block = pool.take();
                    match last {
                        NIL => held.first = block,
                        l => pool.next[l as usize] = block,
                    }
                    (last, at) = (block, 0);
                }
                let base = last as usize * BLOCK;
                let n = rest.read(&mut pool.bytes[base + at..base + BLOCK]);
                at += n;
                rest = rest.split_at(n).1;
            }
        };
        put(self, Foreign::private(heads.private(i)));
        for piece in tails.of(i) {
            put(self, piece);
        }
        held.meta.have = 0;
        held.meta.at = HEADROOM as u8;
        Some(held)
    }

    /// Copies a whole frame, of which the rest is known, or `None` when there are not enough free blocks.
    pub fn hold_bytes(&mut self, frame: &[u8], meta: Meta) -> Option<Held> {
        let len = u32::try_from(frame.len()).ok()?;
        let meta = Meta {
            len,
            have: 0,
            at: HEADROOM as u8,
            ..meta
        };
        if Pool::blocks(&meta) > self.free_blocks {
            return None;
        }
        let mut held = Held { meta, first: NIL };
        let mut last = NIL;
        for piece in frame.chunks(BLOCK) {
            let block = self.take();
            match last {
                NIL => held.first = block,
                l => self.next[l as usize] = block,
            }
            let base = block as usize * BLOCK;
            self.bytes[base..base + piece.len()].copy_from_slice(piece);
            last = block;
        }
        Some(held)
    }

    /// Takes the first free block, which the caller has counted to exist.
    fn take(&mut self) -> u16 {
        let block = self.free;
        assert!(block != NIL, "hold() counted the free blocks");
        self.free = self.next[block as usize];
        self.next[block as usize] = NIL;
        self.free_blocks -= 1;
        block
    }

    /// Puts a held frame into a burst as frame `i`, borrowing its blocks.
    pub fn restore<'q>(&'q self, held: &Held, heads: &mut Heads, tails: &mut Tails<'q>, i: usize) {
        let (mut left, mut block, mut first) = (held.meta.len as usize, held.first, true);
        while left > 0 && block != NIL {
            let base = block as usize * BLOCK;
            let bytes = &self.bytes[base..base + left.min(BLOCK)];
            match std::mem::take(&mut first) {
                true => restore_first(bytes, heads, tails, i),
                false => _ = tails.push(i % BURST, Foreign::private(bytes)),
            }
            left -= bytes.len();
            block = self.next[block as usize];
        }
        restore_meta(&held.meta, heads, tails, i);
    }

    /// Gives the blocks back.
    pub fn free(&mut self, held: Held) {
        let mut block = held.first;
        while block != NIL {
            let next = self.next[block as usize];
            self.next[block as usize] = self.free;
            self.free = block;
            self.free_blocks += 1;
            block = next;
        }
    }

    /// Whether everything was given back.
    pub fn is_empty(&self) -> bool {
        self.free_blocks == self.next.len()
    }
}

/// Puts the first bytes of a copied frame into a burst as those of frame `i`.
pub(crate) fn restore_first<'q>(
    bytes: &'q [u8],
    heads: &mut Heads,
    tails: &mut Tails<'q>,
    i: usize,
) {
    let k = i % BURST;
    let (start, rest) = bytes.split_at(bytes.len().min(SNAP));
    heads.snap[k].0[HEADROOM..HEADROOM + start.len()].copy_from_slice(start);
    tails.push(k, Foreign::private(rest));
}

/// Makes frame `i` of a burst what a copied frame was, behind its bytes.
pub(crate) fn restore_meta(meta: &Meta, heads: &mut Heads, tails: &mut Tails<'_>, i: usize) {
    let k = i % BURST;
    heads.admit(k, meta.len, Claim::NONE);
    let have = heads.meta[k].have;
    heads.meta[k] = Meta { have, ..*meta };
    let headers = usize::from(meta.l2) + usize::from(meta.l3) + usize::from(meta.l4);
    let wanted = match meta.off.gives() {
        true => meta.len as usize,
        false => headers,
    };
    if wanted > usize::from(have) {
        tails.deepen(heads, k, wanted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_frame::{RxId, Tick};
    use windlass_shm::SegStore;
    use windlass_sync::qsbr::Domain;

    /// Frames of every size survive the wait byte for byte, the pool refuses what it has no room for, and gets
    /// everything back.
    #[test]
    fn frames_survive_and_blocks_return() {
        let domain = Domain::new(1);
        let mut worker = domain.register();
        let section = worker.section();
        let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
        let mut pool = Pool::default();
        let mut waiting = Vec::new();
        for len in [14usize, 60, 128, 129, 1518, 2048, 2049, 65_000, 65_549] {
            let frame: Vec<u8> = (0..len).map(|b| (b * 31 + len) as u8).collect();
            heads.clear(RxId(0), Tick(0));
            let mut tails = Tails::bind(&mut store, &section);
            let n = len.min(SNAP);
            heads.snap[0].0[HEADROOM..HEADROOM + n].copy_from_slice(&frame[..n]);
            heads.admit(0, len as u32, Claim::NONE);
            heads.meta[0].vid = 7;
            tails.push(0, Foreign::private(&frame[n..]));
            waiting.push((pool.hold(&heads, &tails, 0).expect("room"), frame));
        }
        let full = {
            let big = vec![0u8; 65_000];
            heads.clear(RxId(0), Tick(0));
            let mut tails = Tails::bind(&mut store, &section);
            heads.admit(0, 65_128, Claim::NONE);
            tails.push(0, Foreign::private(&big));
            (0..8)
                .map(|_| pool.hold(&heads, &tails, 0))
                .collect::<Vec<_>>()
        };
        assert!(
            full.last().is_some_and(Option::is_none),
            "the pool is bounded"
        );
        full.into_iter().flatten().for_each(|h| pool.free(h));
        for (held, frame) in waiting {
            heads.clear(RxId(0), Tick(0));
            {
                let mut tails = Tails::bind(&mut store, &section);
                pool.restore(&held, &mut heads, &mut tails, 0);
                let mut got = heads.private(0).to_vec();
                for piece in tails.of(0) {
                    let mut part = vec![0; piece.len()];
                    piece.read(&mut part);
                    got.extend(part);
                }
                assert_eq!(got, frame);
                assert_eq!(heads.meta[0].vid, 7);
            }
            pool.free(held);
        }
        assert!(pool.is_empty());
    }
}

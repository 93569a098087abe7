//! Small frames for ports whose transmissions cost by their messages: gathered.
//!
//! # Model
//! A tunnel's message costs some microseconds, whether it has one datagram or 64 ([`TxPort::wants_runs`]). A burst for many remote hosts
//! has few frames for each. So small frames for such a port are copied here, and leave
//! - when [`BURST`] of them are gathered for it, or there is no room for more;
//! - before any other frame for it, which keeps the order of each flow;
//! - when the source of the visit at hand is drained: a lone frame does not wait;
//! - at the end of the round's visits, and before the worker yields its core.
//!
//! ```text
//! visits of a round -> offered -> copied here -\
//!                          \-------------------> TxPort::tx_burst
//! ```
//! What is gathered so lives within the visits of one round: no mail is read, no ring or table handed over, and the worker does not sleep
//! meanwhile. Frames leave by the member that they were offered to, also if the topology has changed since: as if they had left at once.
//!
//! # What it shows
//! Frames that are gathered are `held` by their member. They are counted as sent, or dropped under a reason, when they leave.
//!
//! # Limits
//! [`BURST`] frames of [`SMALL`] bytes for a port, [`FRAMES`] and [`PORTS`] for a worker. No memory before the first frame.

use std::sync::Arc;

use windlass_attach::port::TxPort;
use windlass_frame::{BURST, Gso, HEADROOM, Heads, Meta, Pick, RxId, Tick, TxId};
use windlass_shm::{Section, SegStore, Tails};

use crate::hold;
use crate::topo::Member;

/// Bytes of a frame that is gathered at most.
pub const SMALL: usize = 256;
/// Frames of a worker that are gathered at most: 256 KiB.
pub const FRAMES: usize = 1024;
/// Ports of a worker for which frames are gathered at most.
pub const PORTS: usize = 64;
/// So many frames go at once: another message costs less than copies of them.
pub(crate) const ENOUGH: usize = BURST / 2;

/// A frame that was copied.
struct Frame {
    meta: Meta,
    /// Where its bytes begin.
    at: usize,
    is_tagged: bool,
}

/// Frames for one port.
pub(crate) struct Gathered {
    /// What they were offered to.
    pub(crate) member: Arc<Member>,
    frames: [u16; BURST],
    n: usize,
}

/// One worker's gathered frames.
pub(crate) struct Cork {
    /// By place in `gathered`.
    to: Vec<TxId>,
    gathered: Vec<Gathered>,
    frames: Vec<Frame>,
    bytes: Box<[u8]>,
    used: usize,
    heads: Box<Heads>,
    store: SegStore,
}

impl Default for Cork {
    fn default() -> Cork {
        Cork {
            to: Vec::with_capacity(PORTS),
            gathered: Vec::with_capacity(PORTS),
            frames: Vec::with_capacity(FRAMES),
            bytes: vec![0; FRAMES * SMALL].into_boxed_slice(),
            used: 0,
            heads: Heads::boxed(),
            store: SegStore::default(),
        }
    }
}

/// Whether a frame is one to be gathered.
#[inline(always)]
pub(crate) fn is_small(meta: &Meta) -> bool {
    meta.len as usize <= SMALL && meta.off.gso == Gso::None
}

impl Cork {
    /// Whether nothing is gathered.
    pub(crate) fn is_empty(&self) -> bool {
        self.gathered.is_empty()
    }

    /// Frames that are gathered.
    pub(crate) fn len(&self) -> usize {
        self.gathered.iter().map(|its| its.n).sum()
    }

    /// Where the frames for a port are.
    #[inline]
    pub(crate) fn find(&self, to: TxId) -> Option<usize> {
        self.to.iter().position(|its| *its == to)
    }

    /// Whether the frames at a place were offered to this member.
    pub(crate) fn is_of(&self, at: usize, member: &Member) -> bool {
        let its = self.gathered.get(at);
        its.is_some_and(|its| std::ptr::eq(&*its.member, member))
    }

    /// Whether the frames at a place are as many as a run has.
    pub(crate) fn is_full(&self, at: usize) -> bool {
        self.gathered.get(at).is_some_and(|its| its.n == BURST)
    }

    /// Makes a place for a port's frames, if there is room for another one.
    pub(crate) fn begin(&mut self, to: TxId, member: &Arc<Member>) -> Option<usize> {
        if self.gathered.len() == PORTS || self.frames.len() == FRAMES {
            return None;
        }
        self.to.push(to);
        self.gathered.push(Gathered {
            member: member.clone(),
            frames: [0; BURST],
            n: 0,
        });
        Some(self.gathered.len() - 1)
    }

    /// Copies small frames, as far as there is room; how many.
    pub(crate) fn add(
        &mut self,
        at: usize,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> usize {
        let Some(its) = self.gathered.get_mut(at) else {
            return 0;
        };
        let room = (BURST - its.n).min(FRAMES - self.frames.len());
        let n = picks.len().min(room);
        for pick in &picks[..n] {
            let i = pick.index();
            let meta = heads.meta[i];
            let len = (meta.len as usize).min(SMALL);
            let space = &mut self.bytes[self.used..self.used + len];
            let private = heads.private(i);
            let mut have = private.len().min(len);
            space[..have].copy_from_slice(&private[..have]);
            if have < len {
                for piece in tails.of(i) {
                    have += piece.read(&mut space[have..]);
                }
                // What could not be read is nobody else's.
                space[have..].fill(0);
            }
            its.frames[its.n] = self.frames.len() as u16;
            its.n += 1;
            self.frames.push(Frame {
                meta: Meta {
                    have: 0,
                    at: HEADROOM as u8,
                    ..meta
                },
                at: self.used,
                is_tagged: pick.tagged(),
            });
            self.used += len;
        }
        n
    }

    /// Takes the frames at a place out as a burst, and has `send` send it.
    pub(crate) fn take<T>(
        &mut self,
        at: usize,
        (section, now): (&Section<'_>, Tick),
        send: impl FnOnce(TxId, &Arc<Member>, &Heads, &Tails<'_>, &[Pick]) -> T,
    ) -> T {
        let (to, its) = (self.to.swap_remove(at), self.gathered.swap_remove(at));
        let heads = &mut *self.heads;
        heads.clear(RxId(0), now);
        heads.n = its.n;
        let mut tails = Tails::bind(&mut self.store, section);
        let mut picks = [Pick::frame(0, false); BURST];
        for (i, number) in its.frames[..its.n].iter().enumerate() {
            let frame = &self.frames[usize::from(*number)];
            let len = frame.meta.len as usize;
            let bytes = &self.bytes[frame.at..frame.at + len];
            hold::restore_first(bytes, heads, &mut tails, i);
            hold::restore_meta(&frame.meta, heads, &mut tails, i);
            picks[i] = Pick::frame(i, frame.is_tagged);
        }
        let sent = send(to, &its.member, heads, &tails, &picks[..its.n]);
        if self.gathered.is_empty() {
            self.frames.clear();
            self.used = 0;
        }
        sent
    }
}

/// Whether small frames for a member are gathered: its port wants them so, and nothing but its port has to do with them.
pub(crate) fn is_corked(member: &Member) -> bool {
    let is_plain = !member.several && member.egress.is_empty() && member.shape_in.is_none();
    is_plain && member.tx.as_deref().is_some_and(TxPort::wants_runs)
}

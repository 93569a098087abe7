//! Frames whose destination the search of an overlay is asked for.
//!
//! # Where it sits
//! ```text
//!   bridge: unknown unicast -> flood set -> the overlay's own place -> Questions, one of each worker
//!                                                                        | Question: a bounded queue, and a notice
//!   target <- held frames, in order <- Answered <- mailbox <- control thread <- search
//! ```
//!
//! # States
//! Of one address, which has a *slot* in each worker:
//!
//! | state | frames to it | left by |
//! | --- | --- | --- |
//! | waiting | are held, [`FRAMES`] of them | an answer; [`WAIT_NS`]: they are dropped as `lookup-timeout` |
//! | forward | go to the target | the control thread's word that the table has the address, or that the target is no more |
//! | refused | are dropped as `lookup-refused` | [`REFUSED_NS`]; room for another one |
//!
//! # Order
//! An answer reaches the workers before the table. Each sends what it holds, says so, and sends what follows. The table is
//! written when all have said so. A slot ends after that. Floods that wait ([`crate::flood`]) when a worker is told of either are
//! made first. So a frame that finds the address in the table is behind each that did not.
//!
//! # Synchronization
//! A slot is one worker's. Workers and the control thread share the queue of questions ([`windlass_sync::mpsc`]), the mailboxes, the
//! [`Notice`], which have models of their own, and a count for each answer: a worker lowers it (Release) when it has sent what it
//! held, and whoever reads zero (Acquire) writes the table.
//!
//! # What can be lost
//! Frames for which there is no room, or no more questions of their sender's: `lookup-queue`. A sender may have as many slots of an overlay, and
//! as many blocks, as are free after that, so that one that sprays addresses leaves room to all others.
//!
//! # Limits
//! For each worker: [`SLOTS`] addresses of an overlay, [`BLOCKS`] blocks of frames; [`QUESTIONS`] that the control thread has not taken.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;

use windlass_bridge::fdb::Key;
use windlass_frame::{Heads, Tick, TxId};
use windlass_shm::Tails;
use windlass_stats::Drop;
use windlass_sync::mpsc;

use crate::context::Context;
use crate::hold::{BLOCK, Held, Pool};
use crate::local::Notice;
use crate::topo::Member;

/// Frames that are held for one address at most.
pub const FRAMES: usize = 8;
/// Bytes of one that is held at most.
pub const BYTES: u32 = 16 * 1024;
/// Addresses of one overlay that a worker waits for, or sends frames to before the table has them; as many more are refused.
pub const SLOTS: usize = 64;
/// Blocks of private memory of one worker for frames that are held: 1 MiB.
pub const BLOCKS: usize = 512;
/// How long an answer is waited for.
pub const WAIT_NS: u64 = 1_000_000_000;
/// How long an address that the search does not know is not asked for again.
pub const REFUSED_NS: u64 = 5_000_000_000;
/// Questions that the control thread has not taken.
pub const QUESTIONS: usize = 1024;

/// Where an address is that nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The overlay whose search is asked.
    pub overlay: u16,
    /// The address, and its VLAN.
    pub key: Key,
}

/// Where workers put their questions.
#[derive(Debug)]
pub(crate) struct Asker {
    /// With the member that asks.
    pub(crate) queue: mpsc::Queue<(Question, u16)>,
    pub(crate) notice: Arc<Notice>,
}

/// What a worker is told of a question.
pub(crate) enum Answer {
    /// The search has answered: what waits goes to this place, if there is one, and so does what follows. Else both are dropped.
    Found {
        question: Question,
        to: Option<u16>,
        /// Workers that may still hold frames that are to go before those which find the address in the table.
        left: Arc<AtomicUsize>,
    },
    /// The table has the address.
    Known(Question),
    /// These places are no more: nothing goes there, and it is answered.
    Gone {
        places: Arc<[u16]>,
        done: SyncSender<()>,
    },
}

/// An overlay, and an address that it was asked for.
type Asked = (u16, Key);

/// A frame that is held.
pub(crate) struct Waiting {
    pub(crate) held: Held,
    number: u64,
}

enum State {
    Waiting(Vec<Waiting>),
    Forward(TxId),
    Refused,
}

struct Slot {
    /// The member whose frame was the first.
    from: u16,
    /// When it ends by itself; a slot that forwards does not.
    until: Option<Tick>,
    state: State,
}

/// What a worker does when floods that wait have been made.
enum Settle {
    /// Says that it has sent what it held.
    Flushed(Arc<AtomicUsize>),
    /// Ends a slot.
    End(Asked),
}

/// What becomes of a frame.
pub(crate) enum Way {
    /// It goes to a target, with a tag or without.
    To(TxId, bool),
    Held,
    Drop(Drop),
}

/// One worker's slots.
pub(crate) struct Questions {
    pub(crate) pool: Pool,
    slots: HashMap<Asked, Slot>,
    due: BTreeSet<(Tick, Asked)>,
    /// With the number of the flood from which on it need not wait for them.
    settling: VecDeque<(u64, Settle)>,
    frames: usize,
}

impl Default for Questions {
    fn default() -> Questions {
        Questions {
            pool: Pool::of(BLOCKS),
            slots: HashMap::new(),
            due: BTreeSet::new(),
            settling: VecDeque::new(),
            frames: 0,
        }
    }
}

impl Questions {
    /// Decides about frame `i`, which was sent to an overlay's own place. The search is asked if the address is new. A frame that is held has
    /// this number.
    pub(crate) fn admit(
        &mut self,
        cx: &Context<'_>,
        (overlay, member, asker): (u16, &Member, &Asker),
        (heads, tails, i): (&Heads, &Tails<'_>, usize),
        number: u64,
    ) -> Way {
        let bridge = cx.topo.bridge(member.bridge);
        let asked = bridge.and_then(|bridge| Some((bridge, bridge.destination(heads, i)?)));
        let Some((bridge, key)) = asked else {
            return Way::Drop(Drop::PeerDown);
        };
        let (from, asked) = (heads.from.0, (overlay, key));
        match self.slots.get(&asked).map(|slot| &slot.state) {
            Some(State::Refused) => return Way::Drop(Drop::LookupRefused),
            Some(State::Forward(place)) => {
                return match bridge.leads(overlay, place.0, key.vid()) {
                    Some(is_tagged) => Way::To(*place, is_tagged),
                    None => Way::Drop(Drop::PeerDown),
                };
            }
            Some(State::Waiting(frames)) if frames.len() < FRAMES => {}
            Some(State::Waiting(_)) => return Way::Drop(Drop::LookupQueue),
            None if bridge.may_ask(from, cx.now) && self.has_room(overlay, from) => {}
            None => return Way::Drop(Drop::LookupQueue),
        }
        let is_new = !self.slots.contains_key(&asked);
        let Some(held) = self.hold(heads, tails, i) else {
            return Way::Drop(Drop::LookupQueue);
        };
        let question = (Question { overlay, key }, from);
        if is_new && asker.queue.push(question).is_err() {
            self.pool.free(held);
            return Way::Drop(Drop::LookupQueue);
        }
        if is_new {
            asker.notice.tell();
            let until = cx.now.plus(WAIT_NS);
            self.put(asked, from, Some(until), State::Waiting(Vec::new()));
        }
        if let Some(Slot { state, .. }) = self.slots.get_mut(&asked)
            && let State::Waiting(frames) = state
        {
            frames.push(Waiting { held, number });
            self.frames += 1;
        }
        Way::Held
    }

    /// Whether a member may have one more address of an overlay asked for.
    fn has_room(&self, overlay: u16, from: u16) -> bool {
        let (mut all, mut own) = (0, 0);
        for (_, slot) in self.slots.iter().filter(|((of, _), _)| *of == overlay) {
            if !matches!(slot.state, State::Refused) {
                all += 1;
                own += usize::from(slot.from == from);
            }
        }
        own < SLOTS.saturating_sub(all)
    }

    /// Copies a frame, if its sender may have so many blocks.
    fn hold(&mut self, heads: &Heads, tails: &Tails<'_>, i: usize) -> Option<Held> {
        let meta = heads.meta.get(i).filter(|meta| meta.len <= BYTES)?;
        let own = self.slots.values().filter(|slot| slot.from == heads.from.0);
        let own = own.map(|slot| match &slot.state {
            State::Waiting(frames) => frames.iter().map(|w| Pool::blocks(w.held.meta())).sum(),
            State::Forward(_) | State::Refused => 0,
        });
        let wanted = own.sum::<usize>() + Pool::blocks(meta);
        let has_room = wanted <= self.pool.free_blocks();
        has_room.then(|| self.pool.hold(heads, tails, i)).flatten()
    }

    fn put(&mut self, asked: Asked, from: u16, until: Option<Tick>, state: State) {
        self.due.extend(until.map(|until| (until, asked)));
        self.slots.insert(asked, Slot { from, until, state });
    }

    /// Takes a slot out. Frames that it held are no more in it.
    fn take(&mut self, asked: Asked) -> Option<Slot> {
        let slot = self.slots.remove(&asked)?;
        if let Some(until) = slot.until {
            self.due.remove(&(until, asked));
        }
        if let State::Waiting(frames) = &slot.state {
            self.frames -= frames.len();
        }
        Some(slot)
    }

    /// The search has answered. Gives what was held, to be sent or dropped.
    pub(crate) fn answer(&mut self, asked: Asked, to: Option<TxId>, now: Tick) -> Vec<Waiting> {
        let former = self.take(asked);
        let from = former.as_ref().map_or(u16::MAX, |slot| slot.from);
        match to {
            // Also where nobody has asked: what comes before the table has it is not to ask.
            Some(to) => self.put(asked, from, None, State::Forward(to)),
            None if former.is_some() => {
                self.make_room(asked.0);
                self.put(asked, from, Some(now.plus(REFUSED_NS)), State::Refused);
            }
            None => {}
        }
        match former.map(|slot| slot.state) {
            Some(State::Waiting(frames)) => frames,
            _ => Vec::new(),
        }
    }

    /// Of an overlay's addresses that are refused, the first to end ends, if there are many.
    fn make_room(&mut self, overlay: u16) {
        let is_refused = |asked: &&Asked| {
            let slot = self.slots.get(asked).filter(|_| asked.0 == overlay);
            slot.is_some_and(|slot| matches!(slot.state, State::Refused))
        };
        let mut refused = self.due.iter().map(|(_, asked)| asked).filter(is_refused);
        let first = refused.next().copied();
        if let Some(first) = first.filter(|_| refused.count() + 1 >= SLOTS) {
            self.take(first);
        }
    }

    /// An address whose time is over, with what was held for it.
    pub(crate) fn take_due(&mut self, now: Tick) -> Option<(Asked, Vec<Waiting>)> {
        let (_, asked) = self.due.first().filter(|(until, _)| *until <= now)?;
        let asked = *asked;
        match self.take(asked)?.state {
            State::Waiting(frames) => Some((asked, frames)),
            State::Forward(_) | State::Refused => Some((asked, Vec::new())),
        }
    }

    /// When the next time is over.
    pub(crate) fn next_due(&self) -> Option<Tick> {
        self.due.first().map(|(until, _)| *until)
    }

    /// Frames go to these places no more: their addresses are asked for again.
    pub(crate) fn leave(&mut self, places: &[u16]) {
        self.slots.retain(|_, slot| match slot.state {
            // Such a slot is in no other list.
            State::Forward(place) => !places.contains(&place.0),
            State::Waiting(_) | State::Refused => true,
        });
    }

    /// Forgets an overlay. Gives what was held.
    pub(crate) fn purge(&mut self, overlay: u16) -> Vec<Waiting> {
        let its = self.slots.keys().filter(|(of, _)| *of == overlay);
        let its: Vec<Asked> = its.copied().collect();
        let slots = its.into_iter().filter_map(|asked| self.take(asked));
        let frames = slots.flat_map(|slot| match slot.state {
            State::Waiting(frames) => frames,
            State::Forward(_) | State::Refused => Vec::new(),
        });
        frames.collect()
    }

    /// Overlays for which frames are held.
    pub(crate) fn overlays(&self) -> impl Iterator<Item = TxId> {
        self.slots.keys().map(|(overlay, _)| TxId(*overlay))
    }

    /// Frames that are held.
    pub(crate) fn len(&self) -> usize {
        self.frames
    }

    /// The number of the frame that has waited longest.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let frames = self.slots.values().filter_map(|slot| match &slot.state {
            State::Waiting(frames) => frames.first(),
            State::Forward(_) | State::Refused => None,
        });
        frames.map(|frame| frame.number).min()
    }

    /// Says that what was held is sent, once the floods before this one are made.
    pub(crate) fn flushed_later(&mut self, flood: u64, left: Arc<AtomicUsize>) {
        self.settling.push_back((flood, Settle::Flushed(left)));
    }

    /// The table has the address: its slot ends, once the floods before this one are made.
    pub(crate) fn end_later(&mut self, flood: u64, asked: Asked) {
        self.settling.push_back((flood, Settle::End(asked)));
    }

    /// Does what no flood stands in the way of: the oldest that waits has this number.
    pub(crate) fn settle(&mut self, oldest: Option<u64>, notice: &Notice) {
        let is_made = |flood: u64| oldest.is_none_or(|oldest| oldest >= flood);
        while let Some((_, settle)) = self.settling.pop_front_if(|(flood, _)| is_made(*flood)) {
            match settle {
                Settle::Flushed(left) => {
                    if left.fetch_sub(1, Ordering::Release) == 1 {
                        notice.tell();
                    }
                }
                Settle::End(asked) => {
                    let is_over = |slot: &Slot| matches!(slot.state, State::Forward(_));
                    if self.slots.get(&asked).is_some_and(is_over) {
                        self.take(asked);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;

const _: () = assert!(FRAMES * SLOTS <= BLOCKS && BYTES as usize / BLOCK <= BLOCKS / 2);

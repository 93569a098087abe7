//! News: which channels have bytes, so that an epoll instance need not look at each member.
//!
//! # Model
//! Each receiving side has a bit for each channel ([`News`]). The sender sets the bit after a push. An epoll instance knows
//! which channels are its members ([`Watched`]) and takes the bits of these alone: two instances of one process, or those of a
//! parent and a child, never take each other's. A bit is a hint: the taker looks at the channel. A bit that a hostile peer
//! sets costs one look.
//!
//! A channel in stream mode has no fence and sets no bit; it is listed in `streams` instead, and looked at always. A sender that
//! leaves the mode sets its bit first, behind a fence, and then takes itself off the list; so a taker reads `streams` (Acquire)
//! before `bits`, and finds it in one of them.
//!
//! # Synchronization
//! | sender | taker |
//! | --- | --- |
//! | store `head` (Release); *fence* | `bits`: atomic AND, which takes the bit |
//! | store `first_at`; `bits`: atomic OR | load `head` (Acquire) |
//!
//! The bit is set *after* the sender's fence. Before it, an old bit could be taken while `head` is still in the sender's
//! store buffer: the taker would look, find nothing, and nobody would set the bit again. A bit that the sender finds set is
//! taken later than the fence, so its taker sees `head`.
//!
//! In [`Watched`], `listed` is what this instance has still to look at. Any of its threads sets and clears bits; one that
//! finds nothing in a channel clears the bit *before* its last look at the channel, so a bit set meanwhile stays.

use crate::layout::{CHAN_WORDS, News, Side};
use crate::shim::{Acquire, AtomicU32, AtomicU64, Relaxed, SeqCst, after_locked, faulty};
use crate::slab::{Link, Slab};

/// The place of a channel in a bitmap.
#[inline(always)]
fn place(chan: u16) -> (usize, u64) {
    ((chan as usize / 64) & (CHAN_WORDS - 1), 1 << (chan % 64))
}

#[inline(always)]
fn word(words: &[AtomicU64; CHAN_WORDS], index: usize) -> &AtomicU64 {
    #[allow(clippy::indexing_slicing)] // Masked by the length, a power of two.
    &words[index & (CHAN_WORDS - 1)]
}

/// Calls `each` with every channel of a word.
#[inline(always)]
fn each_of(index: usize, mut bits: u64, mut each: impl FnMut(u16)) {
    while bits != 0 {
        each((index * 64) as u16 + bits.trailing_zeros() as u16);
        bits &= bits - 1;
    }
}

impl News {
    /// Whether the channel's bit is set.
    #[inline(always)]
    pub(crate) fn has(&self, chan: u16) -> bool {
        let (index, bit) = place(chan);
        word(&self.bits, index).load(Relaxed) & bit != 0
    }

    /// Sets the channel's bit. After the fence that follows the push.
    #[inline(always)]
    pub(crate) fn set(&self, chan: u16) {
        let (index, bit) = place(chan);
        word(&self.bits, index).fetch_or(bit, SeqCst);
        after_locked();
    }

    /// Lists the channel among those in stream mode.
    pub(crate) fn stream_on(&self, chan: u16) {
        let (index, bit) = place(chan);
        word(&self.streams, index).fetch_or(bit, SeqCst);
    }

    /// Takes it off the list.
    pub(crate) fn stream_off(&self, chan: u16) {
        let (index, bit) = place(chan);
        let word = word(&self.streams, index);
        if word.load(Relaxed) & bit != 0 {
            word.fetch_and(!bit, SeqCst);
        }
    }
}

/// The channels of one side of a slab that are members of one epoll instance.
#[derive(Debug, Default)]
pub struct Watched {
    /// A bit for each word that has, or had, members.
    words: AtomicU32,
    members: [AtomicU64; CHAN_WORDS],
    /// Members that may have something to report.
    listed: [AtomicU64; CHAN_WORDS],
}

impl Watched {
    /// No member.
    #[cfg(not(loom))]
    #[allow(clippy::new_without_default)] // `Default` is derived, and not const.
    pub const fn new() -> Watched {
        Watched {
            words: AtomicU32::new(0),
            members: [const { AtomicU64::new(0) }; CHAN_WORDS],
            listed: [const { AtomicU64::new(0) }; CHAN_WORDS],
        }
    }

    /// One more member.
    pub fn add(&self, chan: u16) {
        let (index, bit) = place(chan);
        word(&self.members, index).fetch_or(bit, SeqCst);
        self.words.fetch_or(1 << index, SeqCst);
    }

    /// One member fewer.
    pub fn remove(&self, chan: u16) {
        let (index, bit) = place(chan);
        word(&self.members, index).fetch_and(!bit, SeqCst);
        self.unlist(chan);
    }

    /// Has the next look include this member.
    pub fn list(&self, chan: u16) {
        let (index, bit) = place(chan);
        word(&self.listed, index).fetch_or(bit, SeqCst);
    }

    fn unlist(&self, chan: u16) {
        let (index, bit) = place(chan);
        word(&self.listed, index).fetch_and(!bit, SeqCst);
        after_locked();
    }

    /// Looks at a listed member, which stays listed if there is something.
    #[inline]
    pub fn look<T>(&self, chan: u16, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let found = look();
        if found.is_some() {
            return found;
        }
        self.unlist(chan);
        if faulty!(UnlistedLate) {
            return None;
        }
        let found = look();
        if found.is_some() {
            self.list(chan);
        }
        found
    }

    /// The words that have members, by their numbers, with these. A slab without members may not be mapped any more.
    #[inline(always)]
    fn used(&self) -> impl Iterator<Item = (usize, u64)> {
        let mut words = self.words.load(Relaxed);
        let used = std::iter::from_fn(move || {
            let index = (words != 0).then(|| words.trailing_zeros() as usize)?;
            words &= words - 1;
            Some((index, word(&self.members, index).load(Relaxed)))
        });
        used.filter(|(_, members)| *members != 0)
    }

    /// Whether any member but this one is listed, has news or is in stream mode: a look without a store. A caller that looks at
    /// that one itself may leave its bit where it is, and its sender need not set it anew; but for a sleep it has to be taken.
    #[inline(always)]
    pub fn has_news(&self, slab: &Slab, receiver: Side, but: Option<u16>) -> bool {
        let news = slab.news(receiver);
        let but = but.map(place);
        self.used().any(|(index, members)| {
            let known = but.map_or(0, |(at, bit)| if at == index { bit } else { 0 });
            let load = |words| word(words, index).load(Relaxed);
            let streams = word(&news.streams, index).load(Acquire);
            let fresh = (streams | load(&news.bits)) & members;
            (fresh | load(&self.listed)) & !known != 0
        })
    }

    /// Whether a member is listed.
    pub fn has_listed(&self) -> bool {
        let mut used = self.used();
        used.any(|(index, members)| word(&self.listed, index).load(SeqCst) & members != 0)
    }

    /// Whether any member sends in stream mode: a sleeper needs [`heavy_barrier`](crate::wait::heavy_barrier).
    #[inline(always)]
    pub fn has_streams(&self, slab: &Slab, receiver: Side) -> bool {
        let news = slab.news(receiver);
        self.used()
            .any(|(index, members)| word(&news.streams, index).load(Acquire) & members != 0)
    }

    /// Takes the members' news, lists these members, and those in stream mode, and calls `each` with every one of them,
    /// and whether it had a bit.
    #[inline]
    pub fn take(&self, slab: &Slab, receiver: Side, mut each: impl FnMut(u16, bool)) {
        let news = slab.news(receiver);
        for (index, members) in self.used() {
            let streams = slab.streams_of(receiver, index, members);
            let seen = word(&news.bits, index).load(Relaxed) & members;
            let mut taken = 0;
            if seen != 0 {
                // Another thread that is about to sleep finds the bit here or there.
                word(&self.listed, index).fetch_or(seen, SeqCst);
                taken = word(&news.bits, index).fetch_and(!members, SeqCst) & members;
                after_locked();
            }
            let streams = streams & !taken;
            each_of(index, taken, |chan| each(chan, true));
            each_of(index, streams, |chan| each(chan, false));
            if taken | streams != 0 {
                word(&self.listed, index).fetch_or(taken | streams, SeqCst);
            }
        }
    }

    /// Calls `each` with every listed member.
    #[inline]
    pub fn each_listed(&self, mut each: impl FnMut(u16)) {
        for (index, members) in self.used() {
            let listed = word(&self.listed, index).load(SeqCst) & members;
            each_of(index, listed, &mut each);
        }
    }
}

impl Slab {
    /// Those of the `members` of one word that are in stream mode. What is listed and has left stream mode is taken off; a sender
    /// that enters it at the same time publishes `stream` before it lists itself, so it is seen by the second look.
    #[inline(always)]
    fn streams_of(&self, receiver: Side, index: usize, members: u64) -> u64 {
        let news = self.news(receiver);
        let listed = word(&news.streams, index).load(Acquire) & members;
        each_of(index, listed, |chan| {
            let w = &receiver.other().of(&self.chan(chan).d).w;
            if w.stream.load(Acquire) == 0 {
                news.stream_off(chan);
                if w.stream.load(SeqCst) != 0 {
                    news.stream_on(chan);
                }
            }
        });
        listed
    }
}

impl Link<'_> {
    /// Sets this end's own news bit: what is in the ring already is news for an instance that it has just been added to.
    pub fn set_news(&self) {
        self.slab().news(self.side()).set(self.index());
    }
}

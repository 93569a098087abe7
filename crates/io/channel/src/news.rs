//! News: which channels have bytes, so that an epoll instance need not look at each member.
//!
//! # Model
//! Per receiving side a bit for each channel, and a summary with a bit for each word of them. The sender
//! sets the bit, then
//! the summary bit; the taker takes the summary, then the words. A bit is a hint: the taker looks at the channel. A
//! bit that a hostile peer sets costs one look.
//!
//! # Synchronization
//! The bit is set *after* the sender's fence. Before it, an old bit could be taken while `head` is still in
//! the sender's
//! store buffer: the taker would look, find nothing, and nobody would set the bit again.
//!
//! A channel in stream mode has no fence and sets no bit; it is listed in `streams` instead, and looked at always.

use crate::layout::Side;
use crate::layout::{CHAN_WORDS, News};
use crate::shim::{AtomicU64, Ordering, after_locked};
use crate::slab::{Link, Slab};

/// The place of a channel in a bitmap.
#[inline(always)]
fn place(chan: u16) -> (usize, u64) {
    ((chan as usize / 64) & (CHAN_WORDS - 1), 1 << (chan % 64))
}

impl News {
    #[inline(always)]
    fn word(words: &[AtomicU64; CHAN_WORDS], index: usize) -> &AtomicU64 {
        #[allow(clippy::indexing_slicing)] // Masked by the length, a power of two.
        &words[index & (CHAN_WORDS - 1)]
    }

    /// Sets the channel's bit unless it is set. After the fence that follows the push.
    #[inline(always)]
    pub(crate) fn set(&self, chan: u16) {
        let (index, bit) = place(chan);
        let word = News::word(&self.bits, index);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
            self.summary.fetch_or(1 << index, Ordering::SeqCst);
            after_locked();
        }
    }

    /// Lists the channel among those in stream mode.
    pub(crate) fn stream_on(&self, chan: u16) {
        let (index, bit) = place(chan);
        News::word(&self.streams, index).fetch_or(bit, Ordering::SeqCst);
    }

    /// Takes it off the list.
    pub(crate) fn stream_off(&self, chan: u16) {
        let (index, bit) = place(chan);
        let word = News::word(&self.streams, index);
        if word.load(Ordering::Relaxed) & bit != 0 {
            word.fetch_and(!bit, Ordering::SeqCst);
        }
    }
}

impl Slab {
    /// Whether `receiver` has any news or any channel in stream mode: a look without a store.
    #[inline(always)]
    pub fn has_news(&self, receiver: Side) -> bool {
        self.news(receiver).summary.load(Ordering::Relaxed) != 0 || self.has_streams(receiver)
    }

    /// Whether no channel but this one may have news for `receiver`: a look without a store. Who then looks at the
    /// channel itself may leave its bit where it is, and its sender need not set it anew; but for a sleep it has to be
    /// taken.
    #[inline(always)]
    pub fn has_only_news(&self, receiver: Side, chan: u16) -> bool {
        let (index, bit) = place(chan);
        let news = self.news(receiver);
        news.summary.load(Ordering::Relaxed) & !(1 << index) == 0
            && News::word(&news.bits, index).load(Ordering::Relaxed) & !bit == 0
            && !self.has_streams(receiver)
    }

    /// Whether any channel with epoll slots sends to `receiver` in stream mode: a sleeper needs
    /// [`heavy_barrier`](crate::wait::heavy_barrier).
    #[inline(always)]
    pub fn has_streams(&self, receiver: Side) -> bool {
        let streams = &self.news(receiver).streams;
        streams.iter().any(|w| w.load(Ordering::Acquire) != 0)
    }

    /// Takes the news of `receiver`, and calls `each` with every channel that had a bit or is in stream
    /// mode. The caller
    /// looks at the channel itself; bits are hints.
    #[inline]
    pub fn take_news(&self, receiver: Side, mut each: impl FnMut(u16)) {
        let news = self.news(receiver);
        let summary = if news.summary.load(Ordering::Relaxed) == 0 {
            0
        } else {
            news.summary.swap(0, Ordering::SeqCst)
        };
        for index in 0..CHAN_WORDS {
            let mut bits = self.streams_of(receiver, index);
            if summary >> index & 1 == 1 {
                bits |= News::word(&news.bits, index).swap(0, Ordering::SeqCst);
                after_locked();
            }
            while bits != 0 {
                each((index * 64) as u16 + bits.trailing_zeros() as u16);
                bits &= bits - 1;
            }
        }
    }
}

impl Slab {
    /// The channels of one word that are in stream mode. What is listed and has left stream mode is taken
    /// off; a sender that
    /// enters it at the same time publishes `stream` before it lists itself, so it is seen by the second look.
    #[inline(always)]
    fn streams_of(&self, receiver: Side, index: usize) -> u64 {
        let news = self.news(receiver);
        let listed = News::word(&news.streams, index).load(Ordering::Acquire);
        let mut bits = listed;
        while bits != 0 {
            let chan = (index * 64) as u16 + bits.trailing_zeros() as u16;
            bits &= bits - 1;
            let w = &receiver.other().of(&self.chan(chan).d).w;
            if w.stream.load(Ordering::Acquire) == 0 {
                news.stream_off(chan);
                if w.stream.load(Ordering::SeqCst) != 0 {
                    news.stream_on(chan);
                }
            }
        }
        listed
    }
}

impl Link<'_> {
    /// Sets this end's own news bit: for a taker that cannot report the channel now, or to tell a second instance.
    pub fn set_news(&self) {
        self.slab().news(self.side()).set(self.index());
    }
}

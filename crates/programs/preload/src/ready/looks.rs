//! What `poll` and `select` know of the kernel without asking it.
//!
//! # Model
//! Each thread remembers its last look at the kernel for a set of descriptors, in two places: one for sets that ask for
//! room, one for others. A look is remembered if it found nothing, or exactly that every joined member that was asked for
//! room had some. For [`BELIEVED_US`] the rings alone then answer a call on the very same set, as soon as they have an answer
//! at all: a call that finds nothing in them, or that may not wait, asks the kernel.
//!
//! # What can be lost and what cannot
//! Nothing is lost: sets of `poll` and `select` are levels, and what the kernel has is still there at the next look. What
//! a program may see is that an event of another member comes up to [`BELIEVED_US`] after that of a ring. The time counts from the
//! look, not from the last call, so no member starves; and a set that differs in anything is another one. Room that was there is still
//! there if the kernel has been given nothing since, which the channel counts; what the program does to a socket by any
//! other call ends the belief ([`doubt`]).

use std::sync::atomic::Ordering::Relaxed;

use crate::options;
use crate::process::identity::{self, Look};
use crate::sys::clock;

/// How long a look at the kernel is believed.
const BELIEVED_US: u32 = 20;
/// Of each member that is asked for room, beside what the kernel was given: so that its number counts.
const MEMBER: u64 = 1 << 48;
/// An odd number without a pattern: 2^64 by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A set of descriptors, and what is asked of them, as a number.
#[derive(Clone, Copy)]
pub struct Key {
    hash: u64,
    asks_for_room: bool,
}

impl Key {
    /// From words that say all of a set. Two sets that differ in one word never have the same number, others hardly ever.
    #[inline]
    pub fn of(words: impl Iterator<Item = u64>, asks_for_room: bool) -> Self {
        let mix = |hash: u64, word: u64| ((hash ^ word).wrapping_mul(SPREAD)).rotate_left(29);
        Self {
            hash: words.fold(1, mix),
            asks_for_room,
        }
    }

    #[inline]
    fn place(self) -> &'static Look {
        &identity::thread().looks[usize::from(self.asks_for_room)]
    }

    /// When the kernel was asked for this set and said what is remembered, in cycles; 0: it was not.
    #[inline]
    fn looked_at(self) -> u64 {
        let look = self.place();
        if look.key.load(Relaxed) == self.hash {
            look.at.load(Relaxed)
        } else {
            0
        }
    }

    /// From when on a spin counts the time to its first look at the kernel: that one is due at once where the last one found
    /// something. Without a spin the program's own call follows.
    #[inline]
    pub fn looks_from(self) -> u64 {
        if options::spin_us() == 0 || self.looked_at() != 0 {
            clock::now()
        } else {
            0
        }
    }

    /// What the kernel said of room if it need not be asked now.
    #[inline]
    pub fn believed(self) -> Option<u64> {
        let at = self.looked_at();
        (at != 0 && clock::now().wrapping_sub(at) < clock::cycles(BELIEVED_US))
            .then(|| self.place().room.load(Relaxed))
    }

    /// The kernel has just been asked. It has nothing but room for the members of which `room` tells, or something else.
    #[inline]
    pub fn remember(self, room: Option<u64>) {
        let look = self.place();
        look.key.store(self.hash, Relaxed);
        look.at
            .store(if room.is_some() { clock::now() } else { 0 }, Relaxed);
        look.room.store(room.unwrap_or(0), Relaxed);
    }
}

/// What stands for the room of members to each of which the kernel was given so many bytes; 0: there are none.
#[inline]
pub fn room_of(given: impl Iterator<Item = u64>) -> u64 {
    given.fold(0, |sum, given| sum.wrapping_add(given).wrapping_add(MEMBER))
}

/// This thread does something to a socket that may change what the kernel says of it.
#[inline]
pub fn doubt() {
    for look in &identity::thread().looks {
        look.at.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look is believed of its own set only, for a short time, and until a doubt or a look that found something.
    #[test]
    fn a_look_is_believed_of_its_set_for_a_while() {
        clock::start();
        let (set, other) = (
            Key::of([1, 2].into_iter(), false),
            Key::of([1, 3].into_iter(), false),
        );
        let writers = Key::of([1, 2].into_iter(), true);
        // A thread that loses its core finds the time over.
        let is_believed = |key: Key, room: u64| {
            (0..1_000).any(|_| {
                set.remember(Some(7));
                writers.remember(Some(9));
                key.believed() == Some(room)
            })
        };
        assert!(is_believed(set, 7));
        assert!(is_believed(writers, 9));
        assert!(!is_believed(other, 7));
        set.remember(Some(7));
        doubt();
        assert_eq!(set.believed(), None);
        set.remember(Some(7));
        set.remember(None);
        assert_eq!(set.believed(), None);
        set.remember(Some(7));
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(set.believed(), None);
    }

    /// What stands for room tells sets of members apart, and what each was given.
    #[test]
    fn room_counts_members_and_bytes() {
        let sums =
            [&[][..], &[0], &[0, 0], &[5], &[5, 0]].map(|given| room_of(given.iter().copied()));
        assert_eq!(sums[0], 0);
        for (at, sum) in sums.iter().enumerate() {
            assert!(!sums[..at].contains(sum));
        }
    }
}

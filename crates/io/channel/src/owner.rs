//! Lock words that name their owner, and what a waiter may learn about it.
//!
//! # Model
//! A lock word is 0 or the [`Owner`] of the lock. Holders never wait inside (at most one non-blocking system call), so a waiter
//! pauses for a while, then gives up its time slice. A lock held for longer than a millisecond may belong to a dead process: the
//! waiter asks [`Alive`] and takes the lock over by a compare-and-swap from the dead owner's word, which one waiter wins.
//!
//! # Failure modes
//! The word of a killed process stays, so its successor knows that the direction needs a repair by counts. A word
//! that names nobody ([`Life::Stranger`]) was written by a hostile peer: the direction is broken.

use crate::shim::{Acquire, AtomicU32, Relaxed, Release};
use crate::sys::{cycles, yield_now};

/// Who holds a lock: a process slot (given by the daemon, never 0) and a thread of that process. A lock word has 32 bits;
/// here it is a whole register, as [`Link`](crate::Link) says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Owner(u64);

impl Owner {
    /// The process slot of the daemon.
    pub const DAEMON: u16 = u16::MAX;

    /// The owner for a process slot and a thread slot; `None` for process slot 0, which the lock word needs for "free".
    #[inline(always)]
    pub const fn new(process: u16, thread: u16) -> Option<Owner> {
        if process == 0 {
            return None;
        }
        Some(Owner((process as u64) << 16 | thread as u64))
    }

    pub(crate) const fn from_word(word: u32) -> Owner {
        Owner(word as u64)
    }

    /// The process slot.
    pub const fn process(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The thread slot.
    pub const fn thread(self) -> u16 {
        self.0 as u16
    }

    /// What stands in a lock.
    #[inline(always)]
    pub const fn word(self) -> u32 {
        self.0 as u32
    }
}

/// What is known of the owner of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It runs, or may run: wait.
    Lives,
    /// Its process has ended, or its thread has: take over.
    Dead,
    /// No process of this connection has that slot: the word is made up.
    Stranger,
}

/// Answers whether the owner of a lock still exists. Asked only for locks held for more than a millisecond.
pub trait Alive {
    /// What is known of `owner`.
    fn life(&self, owner: Owner) -> Life;
}

/// Who calls: the owner word of the calling thread, and who knows about the other ones.
#[derive(Clone, Copy)]
pub struct Who<'a> {
    /// The calling thread.
    pub owner: Owner,
    /// Who knows whether other owners live.
    pub alive: &'a dyn Alive,
}

/// How an attempt to lock ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locked {
    /// The lock is ours.
    Yes,
    /// The lock is ours, taken from an owner that died with it.
    TakenOver(Owner),
    /// A living owner holds it.
    Busy,
    /// The word names nobody.
    Stranger,
}

/// Takes a lock at once, or not.
#[inline(always)]
pub(crate) fn try_lock(word: &AtomicU32, owner: Owner) -> bool {
    word.compare_exchange(0, owner.word(), Acquire, Relaxed)
        .is_ok()
}

/// Takes a lock; waits for up to about a millisecond for a living owner, and takes it from a dead one.
#[inline(always)]
pub(crate) fn lock(word: &AtomicU32, who: Who) -> Locked {
    if try_lock(word, who.owner) {
        return Locked::Yes;
    }
    lock_slow(word, who)
}

/// How long a waiter pauses before it yields, and before it asks whether the owner lives.
const PAUSE_CYCLES: u64 = 20_000;
const PATIENCE_CYCLES: u64 = if cfg!(loom) { 0 } else { 2_500_000 };

#[cold]
fn lock_slow(word: &AtomicU32, who: Who) -> Locked {
    let start = cycles();
    let held = loop {
        let held = word.load(Relaxed);
        if held == 0 && try_lock(word, who.owner) {
            return Locked::Yes;
        }
        let waited = cycles().wrapping_sub(start);
        if waited >= PATIENCE_CYCLES {
            break held;
        }
        if waited > PAUSE_CYCLES {
            yield_now();
        } else {
            std::hint::spin_loop();
        }
    };
    if held == who.owner.word() {
        // A signal handler of the holder itself: it has to wait for the code that it interrupted.
        return Locked::Busy;
    }
    take_from_dead(word, held, who)
}

/// Takes a lock, which `held` holds, if that owner is dead.
#[cold]
pub(crate) fn take_from_dead(word: &AtomicU32, held: u32, who: Who) -> Locked {
    if held == 0 {
        return Locked::Busy;
    }
    let (owner, own) = (Owner::from_word(held), who.owner.word());
    match who.alive.life(owner) {
        Life::Stranger => Locked::Stranger,
        Life::Dead if word.compare_exchange(held, own, Acquire, Relaxed).is_ok() => {
            Locked::TakenOver(owner)
        }
        Life::Dead | Life::Lives => Locked::Busy,
    }
}

/// Gives a lock back without a fence.
#[inline(always)]
pub(crate) fn unlock(word: &AtomicU32) {
    word.store(0, Release);
}

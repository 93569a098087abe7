//! [`Directory`]: where the ends of a host's connections find each other.
//!
//! # Model
//! One shared table per user and network namespace: 65,536 entries of 32 bytes, direct-mapped by a hash of the connection's two
//! names. Every entry is a hint that anybody of the same user may overwrite at any time: names, cookies and the daemon decide
//! whether two ends join.

use std::net::SocketAddr;
use std::ptr::NonNull;

use crate::join::name_words;
use crate::layout::{DIRECTORY_ENTRIES, Side};
use crate::shim::{Acquire, AtomicU32, AtomicU64, Relaxed, Release};

/// The name of a connection: the same number at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The hash, never 0.
    pub hash: u64,
    /// Which of the entry's two ends is the caller's: 0 is the lower name.
    pub end: usize,
}

impl Key {
    /// Hashes a connection. `None` for a socket that is connected to itself.
    pub fn new(netns: u64, device: u32, local: SocketAddr, peer: SocketAddr) -> Option<Key> {
        let (mine, theirs) = (name_words(local), name_words(peer));
        if mine == theirs {
            return None;
        }
        let mut names = [mine, theirs];
        names.sort_unstable();
        let words = names.into_iter().flatten().chain([device.into()]);
        let hash = words.fold(netns ^ 0x9e37_79b9_7f4a_7c15, |hash, word| mix(hash ^ word));
        Some(Key {
            hash: hash.max(1),
            end: usize::from(mine > theirs),
        })
    }
}

/// The finalizer of splitmix64.
const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What an end says of itself in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Slot of its process.
    pub slot: u16,
    /// The channel that it allocated for the connection.
    pub chan: Option<u16>,
    /// Low 32 bits of its `SO_COOKIE`.
    pub cookie: u32,
    /// Number of its socket in that process.
    pub fd: i32,
}

const NO_CHANNEL: u16 = u16::MAX;

impl Hint {
    fn word(self) -> u64 {
        let chan = self.chan.unwrap_or(NO_CHANNEL);
        u64::from(self.slot) << 48 | u64::from(chan) << 32 | u64::from(self.cookie)
    }

    fn from_words(word: u64, fd: u32) -> Option<Hint> {
        let (slot, chan) = ((word >> 48) as u16, (word >> 32) as u16);
        (slot != 0).then_some(Hint {
            slot,
            chan: (chan != NO_CHANNEL).then_some(chan),
            cookie: word as u32,
            fd: fd.cast_signed(),
        })
    }
}

/// One connection's place.
#[derive(Debug)]
#[repr(C)]
struct Entry {
    key: AtomicU64,
    end: [AtomicU64; 2],
    fd: [AtomicU32; 2],
}

impl Entry {
    /// The words of an end.
    fn of(&self, end: usize) -> (&AtomicU64, &AtomicU32) {
        let side = Side::from_u8(end as u8);
        (side.of(&self.end), side.of(&self.fd))
    }
}

/// The memory.
#[derive(Debug)]
#[repr(C)]
struct Table {
    entries: [Entry; DIRECTORY_ENTRIES],
}

/// A mapped directory.
#[derive(Clone, Copy, Debug)]
pub struct Directory(NonNull<Table>);

// SAFETY: the table consists of atomics.
unsafe impl Send for Directory {}
// SAFETY: as above.
unsafe impl Sync for Directory {}

impl Directory {
    /// Takes a mapping of a directory.
    ///
    /// # Safety
    /// [`DIRECTORY_BYTES`](crate::layout::DIRECTORY_BYTES) bytes at `at` are mapped read-write, page-aligned, of a file that cannot
    /// shrink, and stay mapped for as long as any copy of the value lives.
    pub const unsafe fn new(at: NonNull<u8>) -> Directory {
        Directory(at.cast())
    }

    fn entry(&self, key: Key) -> Option<&Entry> {
        // SAFETY: mapped and aligned (`new`); all atomics.
        let table = unsafe { self.0.as_ref() };
        table.entries.get(key.hash as usize % DIRECTORY_ENTRIES)
    }

    /// Writes this end's hint. A collision with another connection overwrites it: the later one wins, and the earlier one stays on the
    /// kernel unless it had joined.
    pub fn publish(&self, key: Key, mine: Hint) {
        let Some(entry) = self.entry(key) else { return };
        let (own, fd) = entry.of(key.end);
        fd.store(mine.fd.cast_unsigned(), Relaxed);
        if entry.key.load(Acquire) != key.hash {
            entry.of(key.end ^ 1).0.store(0, Relaxed);
        }
        own.store(mine.word(), Release);
        entry.key.store(key.hash, Release);
    }

    /// What the other end has written; a look without a store.
    pub fn peer(&self, key: Key) -> Option<Hint> {
        let entry = self.entry(key)?;
        let (other, fd) = entry.of(key.end ^ 1);
        let hint = Hint::from_words(other.load(Acquire), fd.load(Relaxed));
        hint.filter(|_| entry.key.load(Acquire) == key.hash)
    }

    /// Takes this end's hint out, when the socket is closed.
    pub fn withdraw(&self, key: Key) {
        let Some(entry) = self.entry(key) else { return };
        if entry.key.load(Acquire) == key.hash {
            entry.of(key.end).0.store(0, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Both ends of a connection compute the same hash and opposite ends, also where one of them shows a v4-mapped name; other
    /// ports, devices and namespaces compute others.
    #[test]
    fn both_ends_find_the_same_entry() {
        let (a, b) = (name("127.0.0.1:4000"), name("127.0.0.1:80"));
        let mapped = name("[::ffff:127.0.0.1]:80");
        let one = Key::new(1, 0, a, b).unwrap();
        let two = Key::new(1, 0, mapped, a).unwrap();
        assert_eq!(one.hash, two.hash);
        assert_ne!(one.end, two.end);
        for other in [
            Key::new(2, 0, a, b),
            Key::new(1, 3, a, b),
            Key::new(1, 0, name("127.0.0.1:4001"), b),
        ] {
            assert_ne!(other.unwrap().hash, one.hash);
        }
        assert_eq!(Key::new(1, 0, a, a), None);
    }

    /// Hints meet, a collision hides the older connection, and a withdrawn hint is gone.
    #[test]
    fn hints_meet_collide_and_go() {
        let layout = std::alloc::Layout::new::<Table>();
        // SAFETY: the layout is not empty.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        // SAFETY: zeroed memory of the right size, which the test leaks.
        let directory = unsafe { Directory::new(NonNull::new(memory).unwrap()) };
        let (a, b) = (name("10.0.0.1:1"), name("10.0.0.2:2"));
        let (here, there) = (Key::new(7, 0, a, b).unwrap(), Key::new(7, 0, b, a).unwrap());
        let hint = |slot, chan| Hint {
            slot,
            chan,
            cookie: 5,
            fd: i32::from(slot),
        };
        directory.publish(here, hint(1, Some(3)));
        assert_eq!(directory.peer(here), None);
        directory.publish(there, hint(2, None));
        assert_eq!(directory.peer(there), Some(hint(1, Some(3))));
        assert_eq!(directory.peer(here), Some(hint(2, None)));
        let colliding = Key {
            hash: here.hash ^ 1 << 40,
            end: 0,
        };
        directory.publish(colliding, hint(9, None));
        assert_eq!(directory.peer(there), None);
        let (end, hash) = (1, colliding.hash);
        let other = Key { hash, end };
        assert_eq!(directory.peer(other), Some(hint(9, None)));
        directory.withdraw(colliding);
        assert_eq!(directory.peer(other), None);
    }
}

//! The forwarding table of one bridge: which member is behind which address.
//!
//! # Purpose
//! Answers "where does this (VLAN, address) go" for every frame, from any number of worker threads, while one writer
//! learns, moves, ages and evicts. A lookup of a present, right and fresh entry writes nothing.
//!
//! # Where it sits
//! ```text
//!   worker: lookup, touch ---------> Fdb <---------- for_each: show
//!     |                               ^
//!     | miss or move                  | place, move, clear
//!     v                               |
//!   Sightings --posts (a ring)--> FdbWriter  (the bridge's home worker)
//! ```
//!
//! # Model
//! A [`Key`] is VLAN and address in 64 bits; 0 means empty. A bucket is one cache line with four slots: key, value
//! (member 16, stamp 12, flags 4) and age in a byte of its own. A key has two buckets, by a hash with secret seeds
//! (see [`Place`]); the first one counts how many of its keys had to go to their second. [`Fdb::new`] makes room for `entries` at a load of at most 75 %: a million entries are 32 MiB.
//!
//! *Age.* Time is cut in ticks of a sixteenth of the ageing time. [`Fdb::touch`] stores the tick in the age byte, so
//! an entry is written at most once a tick by each worker; a reader computes whether an entry has expired, and the
//! sweeper only reclaims. Ages wrap after 256 ticks: when no sweep has been completed for 200, all learned
//! entries count as expired ([`Now`] knows), and the writer's next call flushes them.
//!
//! *Flush.* The writer raises a counter and notes it for the member; an entry lives if its stamp is not older.
//! Readers compare stamps only until a sweep has reclaimed what was flushed; a burst under way may not notice a flush.
//! Stamps have 12 bits; the sweeper brings them up to date, and is forced through the whole table when 1,024 flushes
//! have passed since it last got round.
//!
//! *Making room.* A newcomer takes a free slot of its eight; else entries move along a path of at most
//! [`PATH_MAX`] steps, each from its first to its second bucket and never back; else one of the eight is evicted: one
//! that has expired or was flushed, then one of the member most over its fair share, the newcomer's own if that is
//! the one; never a static or sticky one.
//!
//! # Synchronization
//! | store (writer) | load (reader) | what breaks without the pair |
//! | --- | --- | --- |
//! | place: value, age (relaxed), then key (Release) | key (Acquire), then value | a key with a stranger's value |
//! | move: count one more away, place the copy, then clear the key in the first bucket (Release) | keys of the first bucket (Acquire), then how many are away, then keys of the second | a present key missed |
//! | clear: key = 0, then the slot rests one grace period ([`Grace`]) | key, then value, in one visit | a value read after the slot got another key |
//! | change of member: value (relaxed, one word) | value | nothing: old or new, both whole |
//! | flush: "flushing" and counter of the member (Release) | "flushing" once a burst, then the counter (relaxed) | nothing: seen by the next burst |
//!
//! Moves go from the first bucket to the second only: a reader that found the first already cleared sees the copy in
//! the second. In the other direction it could miss both and would have to look again. Readers do no atomic
//! read-modify-write and store nothing but an age byte. The loom model is `tests/loom_fdb.rs`.
//!
//! # What can be lost and what cannot
//! A sighting can be lost (budget, full ring, resting slot): the next frame of that source makes another one. A frame
//! is never lost here: an address that is not found is flooded.
//!
//! # Limits
//! [`Limits`]: entries of the table, entries of each member, moves of each member. Memory is allocated once.
//!
//! # Failure modes
//! A reader that never ends its visit keeps erased slots resting: newcomers that need them wait (counted), nothing
//! else. A full table refuses or evicts as above; each has a counter in [`FdbCounts`].

mod clash;
mod counters;
mod grace;
mod hash;
mod limits;
mod reader;
mod room;
mod sightings;
mod table;
mod tally;
mod writer;

pub use clash::Clash;
pub use counters::FdbCounts;
pub use grace::{Grace, NoReaders};
pub use hash::Place;
pub use limits::{Limits, MEMBERS_MAX};
pub(crate) use reader::NOWHERE;
pub use reader::Reader;
pub use room::PATH_MAX;
pub use sightings::{POSTS_MAX, Sighting, Sightings};
pub use table::{Bucket, Entry, EntryFlags, Fdb, Hit, Now};
pub use tally::Tally;
pub use writer::{AddError, FdbWriter, Learned, SWEEP_MAX};

/// A VLAN and an address: what the table is searched for. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Key(pub(crate) u64);

const PRESENT: u64 = 1 << 63;
const MAC_MASK: u64 = (1 << 48) - 1;

impl Key {
    /// VLAN `vid` (its low 12 bits count; 0 on a bridge that does not filter) and an address as
    /// [`windlass_frame::Heads`] holds it: the first byte lowest, in the low 48 bits, and nothing above them.
    #[inline(always)]
    pub const fn new(vid: u16, mac: u64) -> Key {
        debug_assert!(mac & !MAC_MASK == 0);
        Key(PRESENT | ((vid & 0xfff) as u64) << 48 | mac)
    }

    /// VLAN and the address as it is written.
    pub const fn from_octets(vid: u16, m: [u8; 6]) -> Key {
        Key::new(
            vid,
            u64::from_le_bytes([m[0], m[1], m[2], m[3], m[4], m[5], 0, 0]),
        )
    }

    /// The VLAN.
    pub const fn vid(self) -> u16 {
        (self.0 >> 48) as u16 & 0xfff
    }

    /// The address, first byte lowest.
    pub const fn mac(self) -> u64 {
        self.0 & MAC_MASK
    }

    /// The address as it is written.
    pub const fn octets(self) -> [u8; 6] {
        let b = self.0.to_le_bytes();
        [b[0], b[1], b[2], b[3], b[4], b[5]]
    }
}

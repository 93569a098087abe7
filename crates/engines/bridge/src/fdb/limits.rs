//! What bounds a table.

/// Member numbers that a table can hold, at most: `0..MEMBERS_MAX`.
pub const MEMBERS_MAX: u32 = 65_536;

/// The bounds of one table, fixed when it is made (the ageing time and the members' limits can be
/// changed later).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Entries that the table may hold; at least 16 are made room for, at most 2^26.
    pub entries: u32,
    /// Member numbers are below this; at most [`MEMBERS_MAX`].
    pub members: u32,
    /// Learned entries of one member, unless set otherwise for it.
    pub member_entries: u32,
    /// Milliseconds after which an entry that is not heard of is forgotten; 0: never.
    pub ageing_ms: u32,
    /// Moves that one member may cause at once, of which a fifth comes back every five seconds;
    /// 0: moves are not damped.
    pub moves: u32,
    /// Secret seeds of the hash.
    pub seed: [u64; 2],
}

impl Limits {
    /// The usual bounds: 4,096 members, no limit for one member but the table's, 300 s of ageing
    /// (IEEE 802.1Q table 8-6), 1,000 moves with 200 back every 5 s.
    pub const fn new(entries: u32, seed: [u64; 2]) -> Limits {
        Limits {
            entries,
            members: 4096,
            member_entries: entries,
            ageing_ms: 300_000,
            moves: 1000,
            seed,
        }
    }

    /// Buckets for `entries` at a load of 75 % at most: a power of two.
    pub(super) fn buckets(&self) -> usize {
        let entries = self.entries.clamp(16, 1 << 26) as usize;
        entries.div_ceil(3).next_power_of_two()
    }
}

//! An open hash of mappings: their starts and lengths.

/// A place in the table. A start of 0 is a free place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Address of the first byte.
    pub start: usize,
    /// Bytes.
    pub len: usize,
}

/// The table, in memory of the caller's: linear probing, without tombstones.
#[derive(Debug, Default)]
pub struct Mappings<'a> {
    places: &'a mut [Mapping],
    used: usize,
    bytes: usize,
}

impl<'a> Mappings<'a> {
    /// Bytes before the table's address and its number of places, for a reader of foreign memory.
    pub const PLACES_AT: usize = core::mem::offset_of!(Mappings<'static>, places);

    /// A table without places.
    pub const fn new() -> Self {
        Self {
            places: &mut [],
            used: 0,
            bytes: 0,
        }
    }

    /// How many places the table needs before the next [`Mappings::insert`], if more than it has: a power of two.
    pub fn needs(&self) -> Option<usize> {
        let enough = (self.used + 1) * 2 <= self.places.len();
        (!enough).then(|| (self.places.len() * 2).max(128))
    }

    /// Moves the table to `places`, which are all free and as many as [`Mappings::needs`] says. Returns the old ones.
    pub fn move_to(&mut self, places: &'a mut [Mapping]) -> &'a mut [Mapping] {
        let old = core::mem::replace(&mut self.places, places);
        self.used = 0;
        self.bytes = 0;
        for mapping in old.iter().filter(|mapping| mapping.start != 0) {
            self.insert(*mapping);
        }
        old
    }

    /// Adds a mapping whose start is not in the table.
    pub fn insert(&mut self, mapping: Mapping) {
        let mut at = self.home(mapping.start);
        while self.places[at].start != 0 {
            at = self.after(at);
        }
        self.places[at] = mapping;
        self.used += 1;
        self.bytes += mapping.len;
    }

    /// Length of the mapping that starts there.
    pub fn find(&self, start: usize) -> Option<usize> {
        self.place(start).map(|at| self.places[at].len)
    }

    /// Removes the mapping that starts there. Returns its length.
    pub fn remove(&mut self, start: usize) -> Option<usize> {
        let mut free = self.place(start)?;
        let len = self.places[free].len;
        let mut at = self.after(free);
        while self.places[at].start != 0 {
            let home = self.home(self.places[at].start);
            let mask = self.places.len() - 1;
            // It may move back to the free place unless that lies before its home.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(free) & mask) {
                self.places[free] = self.places[at];
                free = at;
            }
            at = self.after(at);
        }
        self.places[free] = Mapping::default();
        self.used -= 1;
        self.bytes -= len;
        Some(len)
    }

    /// How many mappings there are, and their bytes.
    pub fn totals(&self) -> (usize, usize) {
        (self.used, self.bytes)
    }

    fn place(&self, start: usize) -> Option<usize> {
        if self.places.is_empty() || start == 0 {
            return None;
        }
        let mut at = self.home(start);
        while self.places[at].start != start {
            if self.places[at].start == 0 {
                return None;
            }
            at = self.after(at);
        }
        Some(at)
    }

    fn home(&self, start: usize) -> usize {
        // Fibonacci hashing: the low bits of an address are zeros.
        let hash = (start as u64 >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> 32) as usize & (self.places.len() - 1)
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }
}

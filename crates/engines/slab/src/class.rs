//! The slabs of one size class or object cache, and its depot.

use core::mem::offset_of;

use crate::UNIT;
use crate::geometry::Geometry;
use crate::sizes::BATCH_MAX;

/// Batches that a depot holds.
const DEPOT_BATCHES: usize = 8;
/// Objects that a depot holds at most.
pub const DEPOT_MAX: usize = DEPOT_BATCHES * BATCH_MAX;
/// Lists of slabs, by how full they are; the first has the fullest.
const LISTS: usize = 8;
const NONE: u32 = u32::MAX;
/// Of a slab that is on no list.
const UNLISTED: u8 = LISTS as u8;
/// Objects of the smallest class in its slab, a bit each.
const WORDS: usize = UNIT / 8 / 64;
/// Where the bits of constructed objects start: objects of 16 bytes and more need the first half only.
const CONSTRUCTED: usize = WORDS / 2;

/// The record of one unit of the arena. That of a slab's first unit describes the slab.
#[derive(Debug, Clone)]
#[repr(C)]
pub struct Slab {
    next: u32,
    prev: u32,
    /// Objects that are free.
    free: u16,
    /// The class, while the unit is part of a slab.
    owner: u16,
    /// How many units before this one the slab starts.
    back: u8,
    list: u8,
    /// No word before this one has a free object.
    hint: u8,
    /// 1: free. Of a class with a constructor the second half is 1: constructed.
    bits: [u64; WORDS],
}

impl Slab {
    /// Bytes before the owner (2 bytes), for a reader of foreign memory.
    pub const OWNER_AT: usize = offset_of!(Slab, owner);
    /// Bytes before the distance to the slab's first unit.
    pub const BACK_AT: usize = offset_of!(Slab, back);
    /// Bytes before the number of free objects.
    pub const FREE_AT: usize = offset_of!(Slab, free);
    /// Bytes before the bits.
    pub const BITS_AT: usize = offset_of!(Slab, bits);
}

impl Default for Slab {
    fn default() -> Self {
        Self {
            next: 0,
            prev: 0,
            free: 0,
            owner: 0,
            back: 0,
            list: 0,
            hint: 0,
            bits: [0; WORDS],
        }
    }
}

impl Slab {
    /// How many units before this one the slab starts.
    pub fn units_before(&self) -> usize {
        usize::from(self.back)
    }

    /// The lowest constructed object of an empty slab: its index. It counts as destructed from now on.
    pub fn take_constructed(&mut self) -> Option<usize> {
        let words = &mut self.bits[CONSTRUCTED..];
        let at = words.iter().position(|&word| word != 0)?;
        let bit = words[at].trailing_zeros() as usize;
        words[at] &= words[at] - 1;
        Some(at * 64 + bit)
    }

    /// Takes the lowest free objects, as many as `out` has places: their addresses, of which the first object's is `start`. Returns which of them
    /// were never constructed, a bit each, if `constructs`; they count as constructed from now on.
    fn take(&mut self, start: usize, size: usize, constructs: bool, out: &mut [usize]) -> u64 {
        let (mut taken, mut fresh) = (0, 0);
        while taken < out.len() {
            let at = usize::from(self.hint);
            let word = self.bits[at];
            let mut left = word;
            for place in &mut out[taken..] {
                if left == 0 {
                    break;
                }
                *place = start + (at * 64 + left.trailing_zeros() as usize) * size;
                left &= left - 1;
            }
            self.bits[at] = left;
            let gone = word ^ left;
            if constructs {
                fresh |= compress(!self.bits[CONSTRUCTED + at], gone) << taken;
                self.bits[CONSTRUCTED + at] |= gone;
            }
            taken += gone.count_ones() as usize;
            if left == 0 && taken < out.len() {
                self.hint += 1;
            }
        }
        self.free -= taken as u16;
        fresh
    }

    /// Takes back the objects before the first that lies elsewhere; `start` is the slab's first address. Returns how many, and what is
    /// wrong with the next one.
    fn put(&mut self, start: usize, of: &Geometry, objects: &[usize]) -> (usize, Option<Fault>) {
        for (at, &address) in objects.iter().enumerate() {
            let offset = address.wrapping_sub(start);
            if offset >= of.units() * UNIT {
                return (at, None);
            }
            let Some(index) = of.index(offset) else {
                return (at, Some(Fault::Interior(address)));
            };
            let (word, bit) = (index / 64, 1 << (index % 64));
            if self.bits[word] & bit != 0 {
                return (at, Some(Fault::Twice(address)));
            }
            self.bits[word] |= bit;
            self.hint = self.hint.min(word as u8);
            self.free += 1;
        }
        (objects.len(), None)
    }
}

/// The bits of `word` at the ones of `mask`, moved together.
fn compress(word: u64, mut mask: u64) -> u64 {
    let (mut bits, mut at) = (0, 0);
    while mask != 0 {
        bits |= (word >> mask.trailing_zeros() & 1) << at;
        mask &= mask - 1;
        at += 1;
    }
    bits
}

/// Where the records of units are.
pub trait Records {
    /// The record of a unit that is part of a slab of the class whose lock is held.
    fn slab(&mut self, unit: u32) -> &mut Slab;
}

impl Records for [Slab] {
    fn slab(&mut self, unit: u32) -> &mut Slab {
        &mut self[unit as usize]
    }
}

/// What is wrong with an address that was freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing was handed out there.
    Unknown(usize),
    /// It is not the first byte of what was handed out there.
    Interior(usize),
    /// It is free already.
    Twice(usize),
}

/// Slabs that became empty, chained by their records: none of them is the class's any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Emptied(u32);

impl Default for Emptied {
    /// No slab.
    fn default() -> Self {
        Self(NONE)
    }
}

impl Emptied {
    /// The next of them: its first unit.
    pub fn take<R: Records + ?Sized>(&mut self, records: &mut R) -> Option<u32> {
        let unit = (self.0 != NONE).then_some(self.0)?;
        self.0 = records.slab(unit).next;
        Some(unit)
    }
}

/// What [`Class::refill`] took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Objects.
    pub count: usize,
    /// Those that the caller has to construct, a bit each. A failure goes to [`Class::give_up`].
    pub fresh: u64,
}

/// The depot of a class without magazines: none.
pub type NoDepot = [usize; 0];

/// Where a class has the objects of its depot: in itself, or elsewhere.
pub trait Depot {
    /// A place for each: [`DEPOT_MAX`], or none.
    fn places(&mut self) -> &mut [usize];
}

impl<const N: usize> Depot for [usize; N] {
    fn places(&mut self) -> &mut [usize] {
        self
    }
}

/// A size class, or an object cache.
/// What an exchange with the depot needs comes first, behind the caller's lock: one cache line, which two threads may pass to and fro.
#[derive(Debug)]
#[repr(C)]
pub struct Class<D = [usize; DEPOT_MAX]> {
    owner: u16,
    /// Objects in the depot.
    depot_len: u16,
    geometry: Geometry,
    depot: D,
    heads: [u32; LISTS],
    slabs: usize,
    free: usize,
    /// Empty slabs with constructed objects.
    waiting: Emptied,
}

impl<D> Class<D> {
    /// Bytes before the number of objects in the depot (2 bytes), for a reader of foreign memory.
    pub const DEPOT_LEN_AT: usize = offset_of!(Self, depot_len);
    /// Bytes before the depot.
    pub const DEPOT_AT: usize = offset_of!(Self, depot);

    /// A class without slabs; `owner` is its number, which is not 0.
    pub const fn with_depot(owner: u16, geometry: Geometry, depot: D) -> Self {
        Self {
            owner,
            depot_len: 0,
            geometry,
            depot,
            heads: [NONE; LISTS],
            slabs: 0,
            free: 0,
            waiting: Emptied(NONE),
        }
    }
}

impl<D: Copy> Class<D> {
    /// Begins anew, for another cache.
    pub fn renew(&mut self, owner: u16, geometry: Geometry) {
        *self = Self::with_depot(owner, geometry, self.depot);
    }
}

impl<const N: usize> Class<[usize; N]> {
    /// A class without slabs, whose depot lies in it.
    pub const fn new(owner: u16, geometry: Geometry) -> Self {
        Self::with_depot(owner, geometry, [0; N])
    }
}

impl<D: Depot> Class<D> {
    /// The number of the class.
    pub fn owner(&self) -> usize {
        usize::from(self.owner)
    }

    /// How the class cuts its slabs.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Number of slabs.
    pub fn slabs(&self) -> usize {
        self.slabs
    }

    /// Objects that are free in slabs.
    pub fn in_slabs(&self) -> usize {
        self.free
    }

    /// Objects that are in the depot.
    pub fn in_depot(&self) -> usize {
        usize::from(self.depot_len)
    }

    /// Objects that a program or a magazine has.
    pub fn out(&self) -> usize {
        self.slabs * self.geometry.objects() - self.free - self.in_depot()
    }

    /// Takes objects: from the depot as many as it has, if it has some, else at most a batch from the fullest slabs, the lowest address
    /// last. Returns what it took: nothing if the class needs a slab. `base` is the arena's first address.
    pub fn refill<R: Records + ?Sized>(
        &mut self,
        records: &mut R,
        base: usize,
        out: &mut [usize],
    ) -> Taken {
        let count = out.len().min(usize::from(self.depot_len));
        if count > 0 {
            out[..count].copy_from_slice(self.pop(count));
            return Taken { count, fresh: 0 };
        }
        let batch = self.geometry.batch();
        let most = out.len().min(batch);
        let out = &mut out[..most];
        let (mut count, mut fresh) = (0, 0);
        while count < out.len()
            && let Some(&unit) = self.heads.iter().find(|&&head| head != NONE)
        {
            let slab = records.slab(unit);
            let place = &mut out[count..];
            let wanted = place.len().min(usize::from(slab.free));
            let start = base + unit as usize * UNIT;
            let (size, constructs) = (self.geometry.size(), self.geometry.constructs());
            fresh |= slab.take(start, size, constructs, &mut place[..wanted]) << count;
            count += wanted;
            self.relist(records, unit);
        }
        self.free -= count;
        out[..count].reverse();
        if fresh != 0 {
            fresh = fresh.reverse_bits() >> (64 - count);
        }
        Taken { count, fresh }
    }

    /// The topmost objects of the depot, which has that many. They are the caller's.
    fn pop(&mut self, count: usize) -> &[usize] {
        let len = usize::from(self.depot_len);
        self.depot_len -= count as u16;
        &self.depot.places()[len - count..len]
    }

    /// Gives the class a slab: units that belong to nobody, the first of which is `unit`.
    pub fn add<R: Records + ?Sized>(&mut self, records: &mut R, unit: u32) {
        for back in 0..self.geometry.units() as u32 {
            let slab = records.slab(unit + back);
            slab.owner = self.owner;
            slab.back = back as u8;
        }
        let objects = self.geometry.objects();
        let slab = records.slab(unit);
        slab.free = objects as u16;
        slab.hint = 0;
        slab.list = UNLISTED;
        for (at, word) in slab.bits.iter_mut().enumerate().take(objects.div_ceil(64)) {
            let there = (objects - at * 64).min(64);
            *word = u64::MAX >> (64 - there);
        }
        if self.geometry.constructs() {
            slab.bits[CONSTRUCTED..].fill(0);
        }
        self.slabs += 1;
        self.free += objects;
        self.relist(records, unit);
    }

    /// Takes back objects: whole batches go to the depot as long as that has room, all others to their slabs. Slabs that became empty leave the class.
    ///
    /// # Errors
    /// The first address that is wrong, of those that went to slabs; those before it are free.
    pub fn flush<R: Records + ?Sized>(
        &mut self,
        records: &mut R,
        base: usize,
        objects: &[usize],
    ) -> Result<Emptied, Fault> {
        let batch = self.geometry.batch();
        let mut rest = objects;
        while let Some((full, others)) = rest.split_at_checked(batch)
            && self.in_depot() + batch <= (DEPOT_BATCHES * batch).min(self.depot.places().len())
        {
            let from = self.in_depot();
            self.depot.places()[from..from + batch].copy_from_slice(full);
            self.depot_len += batch as u16;
            rest = others;
        }
        self.release(records, base, rest)
    }

    /// Takes back objects past the depot.
    ///
    /// # Errors
    /// As [`Class::flush`].
    pub fn release<R: Records + ?Sized>(
        &mut self,
        records: &mut R,
        base: usize,
        objects: &[usize],
    ) -> Result<Emptied, Fault> {
        let mut emptied = Emptied(NONE);
        let mut rest = objects;
        while let Some(&address) = rest.first() {
            let first = self.first(records, base, address)?;
            let start = base + first as usize * UNIT;
            let (count, fault) = records.slab(first).put(start, &self.geometry, rest);
            self.free += count;
            if count > 0 {
                self.settle(records, first, &mut emptied);
            }
            if let Some(fault) = fault {
                return Err(fault);
            }
            rest = &rest[count..];
        }
        Ok(emptied)
    }

    /// Takes back objects whose constructor has failed: they are not constructed.
    ///
    /// # Errors
    /// As [`Class::flush`].
    pub fn give_up<R: Records + ?Sized>(
        &mut self,
        records: &mut R,
        base: usize,
        objects: &[usize],
    ) -> Result<Emptied, Fault> {
        for &address in objects {
            let first = self.first(records, base, address)?;
            let offset = address - base - first as usize * UNIT;
            let index = self.geometry.index(offset);
            let index = index.ok_or(Fault::Interior(address))?;
            records.slab(first).bits[CONSTRUCTED + index / 64] &= !(1 << (index % 64));
        }
        self.release(records, base, objects)
    }

    /// Returns at most a batch of the depot to the slabs. `None` if the depot is empty.
    ///
    /// # Errors
    /// As [`Class::flush`].
    pub fn drain<R: Records + ?Sized>(
        &mut self,
        records: &mut R,
        base: usize,
    ) -> Option<Result<Emptied, Fault>> {
        let count = self.in_depot().min(self.geometry.batch());
        let mut batch = [0; BATCH_MAX];
        batch[..count].copy_from_slice(self.pop(count));
        (count > 0).then(|| self.release(records, base, &batch[..count]))
    }

    /// The empty slabs of a class with a constructor: the caller destructs what [`Slab::take_constructed`] says of each, before its
    /// units go back.
    pub fn take_waiting(&mut self) -> Emptied {
        core::mem::replace(&mut self.waiting, Emptied(NONE))
    }

    /// The first unit of the slab in which an address lies.
    fn first<R: Records + ?Sized>(
        &self,
        records: &mut R,
        base: usize,
        address: usize,
    ) -> Result<u32, Fault> {
        let unit = ((address - base) / UNIT) as u32;
        let record = records.slab(unit);
        if record.owner != self.owner {
            return Err(Fault::Unknown(address));
        }
        Ok(unit - u32::from(record.back))
    }

    /// After objects came back to a slab: an empty one leaves the class. Without a depot one stays while no other slab has free objects, or
    /// each object of a program that has one at a time would cost a slab.
    fn settle<R: Records + ?Sized>(&mut self, records: &mut R, first: u32, emptied: &mut Emptied) {
        let objects = self.geometry.objects();
        let is_spare = self.depot.places().is_empty() && self.free == objects;
        if is_spare || usize::from(records.slab(first).free) < objects {
            return self.relist(records, first);
        }
        self.retire(records, first, emptied);
    }

    /// The slab that [`Class::flush`] has kept though it is empty.
    pub fn take_spare<R: Records + ?Sized>(&mut self, records: &mut R) -> Emptied {
        let mut emptied = Emptied(NONE);
        let objects = self.geometry.objects();
        let mut unit = self.heads[(objects - 1) * LISTS / objects];
        while unit != NONE {
            let slab = records.slab(unit);
            if usize::from(slab.free) == objects {
                self.retire(records, unit, &mut emptied);
                break;
            }
            unit = slab.next;
        }
        emptied
    }

    /// An empty slab leaves the class.
    fn retire<R: Records + ?Sized>(&mut self, records: &mut R, first: u32, emptied: &mut Emptied) {
        self.unlink(records, first);
        self.slabs -= 1;
        self.free -= self.geometry.objects();
        for back in 0..self.geometry.units() as u32 {
            records.slab(first + back).owner = 0;
        }
        let chain = if self.geometry.constructs() {
            &mut self.waiting
        } else {
            emptied
        };
        records.slab(first).next = chain.0;
        chain.0 = first;
    }

    /// Puts a slab on the list that its free objects say.
    fn relist<R: Records + ?Sized>(&mut self, records: &mut R, unit: u32) {
        let objects = self.geometry.objects();
        let slab = records.slab(unit);
        let wanted = match usize::from(slab.free) {
            0 => UNLISTED,
            free => ((free - 1) * LISTS / objects) as u8,
        };
        if wanted == slab.list {
            return;
        }
        self.unlink(records, unit);
        if wanted == UNLISTED {
            return;
        }
        let head = core::mem::replace(&mut self.heads[usize::from(wanted)], unit);
        let slab = records.slab(unit);
        slab.list = wanted;
        slab.next = head;
        slab.prev = NONE;
        if head != NONE {
            records.slab(head).prev = unit;
        }
    }

    fn unlink<R: Records + ?Sized>(&mut self, records: &mut R, unit: u32) {
        let slab = records.slab(unit);
        let (list, next, prev) = (slab.list, slab.next, slab.prev);
        if list == UNLISTED {
            return;
        }
        slab.list = UNLISTED;
        if next != NONE {
            records.slab(next).prev = prev;
        }
        match prev {
            NONE => self.heads[usize::from(list)] = next,
            prev => records.slab(prev).next = next,
        }
    }
}

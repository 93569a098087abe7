//! The slabs of one size class, and its depot.

use crate::UNIT;
use crate::sizes::{BATCH_MAX, batch, size, units};

/// Full batches that a depot holds.
const DEPOT_BATCHES: usize = 8;
/// Lists of slabs, by how full they are; the first has the fullest.
const LISTS: usize = 8;
const NONE: u32 = u32::MAX;
/// Of a slab that is on no list.
const UNLISTED: u8 = LISTS as u8;
/// Objects of the smallest class in its slab, a bit each.
const WORDS: usize = UNIT / 8 / 64;

/// The record of one unit of the arena. That of a slab's first unit describes the slab.
#[derive(Debug, Clone)]
#[repr(C)]
pub struct Slab {
    next: u32,
    prev: u32,
    /// Objects that are free.
    free: u16,
    /// The class, while the unit is part of a slab.
    class: u8,
    /// How many units before this one the slab starts.
    back: u8,
    list: u8,
    /// No word before this one has a free object.
    hint: u8,
    /// 1: free.
    bits: [u64; WORDS],
}

impl Default for Slab {
    fn default() -> Self {
        Self {
            next: 0,
            prev: 0,
            free: 0,
            class: 0,
            back: 0,
            list: 0,
            hint: 0,
            bits: [0; WORDS],
        }
    }
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

impl Emptied {
    /// The next of them: its first unit.
    pub fn take<R: Records + ?Sized>(&mut self, records: &mut R) -> Option<u32> {
        let unit = (self.0 != NONE).then_some(self.0)?;
        self.0 = records.slab(unit).next;
        Some(unit)
    }
}

/// A size class.
#[derive(Debug)]
pub struct Class {
    class: u8,
    depot_len: u8,
    heads: [u32; LISTS],
    slabs: usize,
    free: usize,
    depot: [[usize; BATCH_MAX]; DEPOT_BATCHES],
}

impl Class {
    /// A class without slabs; `class` is its number.
    pub const fn new(class: usize) -> Self {
        Self {
            class: class as u8,
            depot_len: 0,
            heads: [NONE; LISTS],
            slabs: 0,
            free: 0,
            depot: [[0; BATCH_MAX]; DEPOT_BATCHES],
        }
    }

    fn number(&self) -> usize {
        usize::from(self.class)
    }

    /// Objects of a slab.
    fn objects(&self) -> usize {
        units(self.number()) * UNIT / size(self.number())
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
        usize::from(self.depot_len) * batch(self.number())
    }

    /// Objects that a program or a magazine has.
    pub fn out(&self) -> usize {
        self.slabs * self.objects() - self.free - self.in_depot()
    }

    /// Takes objects: a batch from the depot if that many are asked for and there is one, else from the fullest slab, the lowest address
    /// last. Returns how many it took: 0 if the class needs a slab. `base` is the arena's first address.
    pub fn refill<R: Records + ?Sized>(
        &mut self,
        records: &mut R,
        base: usize,
        out: &mut [usize],
    ) -> usize {
        let batch = batch(self.number());
        if out.len() >= batch && self.depot_len > 0 {
            self.depot_len -= 1;
            let full = &self.depot[usize::from(self.depot_len)][..batch];
            out[..batch].copy_from_slice(full);
            return batch;
        }
        let mut taken = 0;
        while taken < out.len()
            && let Some(&unit) = self.heads.iter().find(|&&head| head != NONE)
        {
            taken += self.take(records, unit, base, &mut out[taken..]);
        }
        self.free -= taken;
        out[..taken].reverse();
        taken
    }

    /// Takes objects of one slab, lowest addresses first.
    fn take<R: Records + ?Sized>(
        &mut self,
        records: &mut R,
        unit: u32,
        base: usize,
        out: &mut [usize],
    ) -> usize {
        let start = base + unit as usize * UNIT;
        let size = size(self.number());
        let slab = records.slab(unit);
        let mut taken = 0;
        while taken < out.len() && taken < usize::from(slab.free) {
            let word = &mut slab.bits[usize::from(slab.hint)];
            if *word == 0 {
                slab.hint += 1;
                continue;
            }
            let index = usize::from(slab.hint) * 64 + word.trailing_zeros() as usize;
            *word &= *word - 1;
            out[taken] = start + index * size;
            taken += 1;
        }
        slab.free -= taken as u16;
        self.relist(records, unit);
        taken
    }

    /// Gives the class a slab: units that belong to nobody, the first of which is `unit`.
    pub fn add<R: Records + ?Sized>(&mut self, records: &mut R, unit: u32) {
        for back in 0..units(self.number()) as u32 {
            let slab = records.slab(unit + back);
            slab.class = self.class;
            slab.back = back as u8;
        }
        let objects = self.objects();
        let slab = records.slab(unit);
        slab.free = objects as u16;
        slab.hint = 0;
        slab.list = UNLISTED;
        for (at, word) in slab.bits.iter_mut().enumerate().take(objects.div_ceil(64)) {
            let there = (objects - at * 64).min(64);
            *word = u64::MAX >> (64 - there);
        }
        self.slabs += 1;
        self.free += objects;
        self.relist(records, unit);
    }

    /// Takes back objects: a batch goes to the depot if that has room, else all go to their slabs. Slabs that became empty leave the class.
    ///
    /// # Errors
    /// The first address that is wrong, of those that went to slabs; those before it are free.
    pub fn flush<R: Records + ?Sized>(
        &mut self,
        records: &mut R,
        base: usize,
        objects: &[usize],
    ) -> Result<Emptied, Fault> {
        let batch = batch(self.number());
        if objects.len() == batch && usize::from(self.depot_len) < DEPOT_BATCHES {
            self.depot[usize::from(self.depot_len)][..batch].copy_from_slice(objects);
            self.depot_len += 1;
            return Ok(Emptied(NONE));
        }
        self.release(records, base, objects)
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
        for &address in objects {
            self.put(records, base, address, &mut emptied)?;
        }
        Ok(emptied)
    }

    /// Returns one batch of the depot to the slabs. `None` if the depot is empty.
    ///
    /// # Errors
    /// As [`Class::flush`].
    pub fn drain<R: Records + ?Sized>(
        &mut self,
        records: &mut R,
        base: usize,
    ) -> Option<Result<Emptied, Fault>> {
        self.depot_len = self.depot_len.checked_sub(1)?;
        let full = self.depot[usize::from(self.depot_len)];
        Some(self.release(records, base, &full[..batch(self.number())]))
    }

    fn put<R: Records + ?Sized>(
        &mut self,
        records: &mut R,
        base: usize,
        address: usize,
        emptied: &mut Emptied,
    ) -> Result<(), Fault> {
        let unit = ((address - base) / UNIT) as u32;
        let record = records.slab(unit);
        if record.class != self.class {
            return Err(Fault::Unknown(address));
        }
        let first = unit - u32::from(record.back);
        let offset = address - base - first as usize * UNIT;
        let index = offset / size(self.number());
        if index * size(self.number()) != offset || index >= self.objects() {
            return Err(Fault::Interior(address));
        }
        let slab = records.slab(first);
        let (at, bit) = (index / 64, 1 << (index % 64));
        if slab.bits[at] & bit != 0 {
            return Err(Fault::Twice(address));
        }
        slab.bits[at] |= bit;
        slab.hint = slab.hint.min(at as u8);
        slab.free += 1;
        self.free += 1;
        if usize::from(slab.free) == self.objects() {
            self.unlink(records, first);
            let whole = self.objects();
            self.slabs -= 1;
            self.free -= whole;
            for back in 0..units(self.number()) as u32 {
                records.slab(first + back).class = 0;
            }
            records.slab(first).next = emptied.0;
            emptied.0 = first;
            return Ok(());
        }
        self.relist(records, first);
        Ok(())
    }

    /// Puts a slab on the list that its free objects say.
    fn relist<R: Records + ?Sized>(&mut self, records: &mut R, unit: u32) {
        let objects = self.objects();
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

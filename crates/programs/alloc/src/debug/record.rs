//! Records of buffers, and how an address finds its own.
//!
//! A slab has a block of records, one for each object; a run has one. Each unit of the arena knows the block of its slab or run, also after that has
//! been given back, until another one has the unit. Mappings are in a list.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use windlass_memory::debug::{TABLES_AT, WORDS, Word};
use windlass_slab::{CLASSES, UNIT, size, units};

use crate::heap::{self, HOT};
use crate::sys;

use super::stack::Transaction;
use super::tell::{Call, Wrong};
use super::{Buffer, guards};

/// States of a record: the program has the buffer,
pub const LIVE: u8 = windlass_memory::debug::LIVE;
/// it was freed and its memory is kept,
pub const WAITING: u8 = windlass_memory::debug::WAITING;
/// it was freed,
pub const GONE: u8 = 3;
/// it is being freed, and its memory is being written to.
const LEAVING: u8 = 4;

/// Records that there may be at most.
const RECORDS_MAX: usize = 1 << 28;
const RECORDS_MIN: usize = 1 << 14;
/// Records that become usable at once.
const STEP: usize = 4096;
/// Mappings that there may be at most.
const MAPPINGS_MAX: usize = 1 << 16;
/// So many old entries of mappings are kept.
const MAPPINGS_OLD: usize = 256;
/// Entries of units that become usable at once.
const UNITS_STEP: usize = UNIT / size_of::<Unit>();
/// Units of the largest arena.
const UNITS_MAX: usize = 1 << 24;

/// What is known of a buffer.
#[derive(Debug, Clone)]
#[repr(C)]
pub struct Record {
    /// What the program was given; 0: there never was a buffer.
    pub object: usize,
    /// What it asked for.
    pub size: usize,
    /// The object of the heap.
    pub base: usize,
    /// Its bytes.
    pub len: usize,
    /// The last call.
    pub last: Transaction,
    /// Of a buffer: whose objects it is one of, as [`Call::owner`]. Of the first record of a free block: the next one.
    pub link: u32,
    /// [`LIVE`], [`WAITING`] or [`GONE`].
    pub state: u8,
    /// Its class; 0: a run or a mapping.
    pub class: u8,
    /// Live: its last page is untouchable; freed: all of it.
    pub is_walled: bool,
}

const _: () = assert!(size_of::<Record>() == 256);

impl Record {
    /// A buffer is handed out.
    pub fn begin(&mut self, buffer: &Buffer, owner: u32, now: &Transaction) {
        self.object = buffer.object;
        self.size = buffer.size;
        self.base = buffer.base;
        self.len = buffer.len;
        self.class = buffer.class as u8;
        self.is_walled = buffer.is_walled;
        self.link = owner;
        self.last = now.clone();
        self.state = LIVE;
    }

    /// It is being freed.
    pub fn end(&mut self, now: &Transaction) {
        self.state = LEAVING;
        self.last = now.clone();
    }

    /// It is freed. Whether all of it is untouchable now.
    pub fn wait(&mut self, is_hidden: bool) {
        self.state = WAITING;
        self.is_walled |= is_hidden;
    }

    /// Why a call cannot free this address of the buffer.
    pub fn is_wrong(&self, call: Call, address: usize) -> Option<Wrong> {
        match self.state {
            _ if self.object != address => Some(Wrong::Interior),
            LIVE if self.link == call.owner => None,
            LIVE if call.owner == 0 => Some(Wrong::Cached),
            LIVE => Some(Wrong::Stranger),
            _ => Some(Wrong::Twice),
        }
    }
}

/// Where records are and what is in them, for readers from outside.
pub static DESCRIPTION: [AtomicU64; WORDS] = {
    let mut words = [const { AtomicU64::new(0) }; WORDS];
    let last = offset_of!(Record, last);
    let offsets = [
        (Word::Stride, size_of::<Record>()),
        (Word::Object, offset_of!(Record, object)),
        (Word::Size, offset_of!(Record, size)),
        (Word::Time, last + offset_of!(Transaction, time_ns)),
        (Word::Thread, last + offset_of!(Transaction, thread)),
        (Word::Depth, last + offset_of!(Transaction, depth)),
        (Word::Stack, last + offset_of!(Transaction, stack)),
        (Word::State, offset_of!(Record, state)),
        (Word::Owner, offset_of!(Record, link)),
    ];
    let mut at = 0;
    while at < offsets.len() {
        let (word, offset) = offsets[at];
        words[word as usize] = AtomicU64::new(offset as u64);
        at += 1;
    }
    words
};

fn describe(word: Word, value: usize) {
    DESCRIPTION[word as usize].store(value as u64, Relaxed);
}

/// Describes one of the further tables.
pub fn describe_table(number: usize, start: usize, len: usize) {
    let pair = &DESCRIPTION[TABLES_AT + 2 * number..];
    pair[0].store(start as u64, Relaxed);
    pair[1].store(len as u64, Relaxed);
}

/// What a unit of the arena is part of.
#[derive(Clone, Copy, Default)]
struct Unit {
    /// The first record of the block, plus 1; 0: nothing.
    block: u32,
    /// Units before this one, of the same slab or run.
    back: u8,
    class: u8,
}

#[derive(Clone, Copy)]
struct Mapping {
    base: usize,
    len: usize,
    record: u32,
}

/// All records.
pub struct Records {
    first: usize,
    reserved: usize,
    usable: usize,
    used: usize,
    /// Free blocks of each class: the first record, plus 1.
    free: [u32; CLASSES],
    units: usize,
    units_max: usize,
    units_usable: usize,
    mappings: usize,
    mappings_len: usize,
}

impl Records {
    /// No records.
    pub const fn new() -> Self {
        Self {
            first: 0,
            reserved: 0,
            usable: 0,
            used: 0,
            free: [0; CLASSES],
            units: 0,
            units_max: 0,
            units_usable: 0,
            mappings: 0,
            mappings_len: 0,
        }
    }

    /// A record.
    pub fn at(&mut self, index: u32) -> &mut Record {
        let record = (self.first as *mut Record).wrapping_add(index as usize);
        // SAFETY: a usable record: indices come from `block`. This has all of them.
        unsafe { &mut *record }
    }

    fn unit(&mut self, unit: usize) -> Option<&mut Unit> {
        if unit >= self.units_usable {
            return None;
        }
        let unit = (self.units as *mut Unit).wrapping_add(unit);
        // SAFETY: an entry of the table, which this has alone.
        Some(unsafe { &mut *unit })
    }

    fn mapping(&mut self, at: usize) -> &mut Mapping {
        let mapping = (self.mappings as *mut Mapping).wrapping_add(at);
        // SAFETY: an entry of the list, which this has alone.
        unsafe { &mut *mapping }
    }

    /// Finds room for the tables.
    fn reserve(&mut self) -> Option<()> {
        if self.reserved > 0 {
            return Some(());
        }
        let space = sys::address_space().unwrap_or(usize::MAX);
        // What an earlier call got stays.
        if self.units == 0 {
            let units = UNITS_MAX.min(space / UNIT) / UNITS_STEP * UNITS_STEP + UNITS_STEP;
            self.units = sys::reserve(units * size_of::<Unit>())?;
            self.units_max = units;
        }
        if self.mappings == 0 {
            let len = MAPPINGS_MAX * size_of::<Mapping>();
            self.mappings = sys::map_memory(len)?;
            describe_table(0, self.mappings, len);
        }
        let mut records = RECORDS_MAX.min(space / 4 / size_of::<Record>()) / STEP * STEP;
        while records >= RECORDS_MIN {
            if let Some(first) = sys::reserve(records * size_of::<Record>()) {
                (self.first, self.reserved) = (first, records);
                describe(Word::Records, first);
                return Some(());
            }
            records = records / 2 / STEP * STEP;
        }
        None
    }

    /// Makes the table of units usable up to there.
    fn grow_units(&mut self, end: usize) -> Option<()> {
        while end > self.units_usable {
            let start = self.units + self.units_usable * size_of::<Unit>();
            if end > self.units_max || !sys::make_usable(start, UNITS_STEP * size_of::<Unit>()) {
                return None;
            }
            self.units_usable += UNITS_STEP;
        }
        Some(())
    }

    /// A block: its first record. All of its records are zeros, or were another block's of the class.
    fn block(&mut self, class: usize) -> Option<u32> {
        if let Some(first) = self.free[class].checked_sub(1) {
            self.free[class] = self.at(first).link;
            return Some(first);
        }
        let count = records(class);
        while self.used + count > self.usable {
            let start = self.first + self.usable * size_of::<Record>();
            if self.usable == self.reserved || !sys::make_usable(start, STEP * size_of::<Record>())
            {
                return None;
            }
            self.usable += STEP;
        }
        let first = self.used as u32;
        self.used += count;
        describe(Word::Count, self.used);
        Some(first)
    }

    fn free_block(&mut self, first: u32, class: usize) {
        let start = self.first + first as usize * size_of::<Record>();
        let end = start + records(class) * size_of::<Record>();
        let (from, to) = ((start + 1).next_multiple_of(UNIT), end / UNIT * UNIT);
        if from < to {
            sys::give_back(from, to - from);
        }
        for index in first..first + records(class) as u32 {
            let record = self.at(index);
            // Others are zeros, and need not be touched.
            if record.object != 0 {
                record.object = 0;
                record.state = 0;
            }
        }
        let next = self.free[class];
        self.at(first).link = next;
        self.free[class] = first + 1;
    }

    /// The record of a buffer that was just placed. `None`: no memory.
    pub fn of(&mut self, buffer: &Buffer) -> Option<&mut Record> {
        self.reserve()?;
        let unit = buffer.base.wrapping_sub(HOT.base.load(Relaxed)) / UNIT;
        let index = if unit >= HOT.units.load(Relaxed) {
            self.of_mapping(buffer)?
        } else if buffer.class == 0 {
            self.attach(unit, buffer.len / UNIT, 0)?
        } else {
            let first = unit - heap::units_before(unit);
            let block = self.attach(first, units(buffer.class), buffer.class)?;
            let start = HOT.base.load(Relaxed) + first * UNIT;
            block + ((buffer.base - start) / size(buffer.class)) as u32
        };
        Some(self.at(index))
    }

    /// The block of a slab or a run; another one that had these units loses them.
    fn attach(&mut self, first: usize, count: usize, class: usize) -> Option<u32> {
        self.grow_units(first + count)?;
        let old = *self.unit(first)?;
        let is_same = old.block != 0 && old.back == 0 && usize::from(old.class) == class;
        if is_same && class != 0 {
            return Some(old.block - 1);
        }
        (first..first + count).for_each(|unit| self.detach(unit));
        let block = self.block(class)?;
        for back in 0..count {
            *self.unit(first + back)? = Unit {
                block: block + 1,
                back: back as u8,
                class: class as u8,
            };
        }
        Some(block)
    }

    /// Frees the block of a unit.
    fn detach(&mut self, unit: usize) {
        let Some(&mut old) = self.unit(unit) else {
            return;
        };
        let Some(block) = old.block.checked_sub(1) else {
            return;
        };
        let count = match usize::from(old.class) {
            0 => self.at(block).len / UNIT,
            class => units(class),
        };
        let first = unit - usize::from(old.back);
        for unit in first..first + count {
            if let Some(entry) = self.unit(unit) {
                *entry = Unit::default();
            }
        }
        self.free_block(block, usize::from(old.class));
    }

    fn of_mapping(&mut self, buffer: &Buffer) -> Option<u32> {
        let (base, end) = (buffer.base, buffer.base + buffer.len);
        let mut place = None;
        for at in 0..self.mappings_len {
            let old = *self.mapping(at);
            let is_old = self.at(old.record).state != LIVE;
            let is_under = old.base < end && base < old.base + old.len;
            if is_under || (is_old && place.is_none() && self.mappings_len >= MAPPINGS_OLD) {
                // What lies there now is not what lay there.
                self.mapping(at).len = 0;
                place = Some(at);
            }
        }
        let at = match place {
            Some(at) => at,
            None if self.mappings_len == MAPPINGS_MAX => return None,
            None => {
                let record = self.block(0)?;
                self.mapping(self.mappings_len).record = record;
                self.mappings_len += 1;
                self.mappings_len - 1
            }
        };
        let mapping = self.mapping(at);
        (mapping.base, mapping.len) = (buffer.base, buffer.len);
        Some(mapping.record)
    }

    /// The record of the buffer that an address points into, or did.
    pub fn find(&mut self, address: usize) -> Option<u32> {
        let offset = address.wrapping_sub(HOT.base.load(Relaxed));
        let unit = offset / UNIT;
        if unit >= HOT.units.load(Relaxed) {
            return self.find_mapping(address);
        }
        let entry = *self.unit(unit)?;
        let block = entry.block.checked_sub(1)?;
        let index = match usize::from(entry.class) {
            0 => block,
            class => {
                let start = (unit - usize::from(entry.back)) * UNIT;
                let slot = (offset - start) / size(class);
                if slot >= records(class) {
                    return None;
                }
                block + slot as u32
            }
        };
        (self.at(index).object != 0).then_some(index)
    }

    fn find_mapping(&mut self, address: usize) -> Option<u32> {
        (0..self.mappings_len).find_map(|at| {
            let mapping = *self.mapping(at);
            let is_in = address.wrapping_sub(mapping.base) < mapping.len;
            is_in.then_some(mapping.record)
        })
    }

    /// The next record, from one on, of a buffer of this owner's that the program has.
    pub fn next_live(&mut self, owner: u32, from: u32) -> Option<(u32, Record)> {
        (from..self.used as u32).find_map(|index| {
            let record = self.at(index);
            let is_wanted = record.state == LIVE && record.link == owner;
            is_wanted.then(|| (index, record.clone()))
        })
    }

    /// The next record, from one on, whose buffer was written to where it may not be.
    pub fn next_damaged(&mut self, from: u32) -> Option<(u32, Record)> {
        (from..self.used as u32).find_map(|index| {
            let record = self.at(index);
            let is_readable = match record.state {
                LIVE => true,
                WAITING => !record.is_walled,
                _ => false,
            };
            let is_damaged = is_readable && guards::damage(record).is_some();
            is_damaged.then(|| (index, record.clone()))
        })
    }
}

/// Records of a block.
fn records(class: usize) -> usize {
    match class {
        0 => 1,
        class => units(class) * UNIT / size(class),
    }
}

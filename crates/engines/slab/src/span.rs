//! Spans of 2 MiB, the units in them, and what is kept from the kernel.

use core::mem::offset_of;

use crate::class::Fault;
use crate::{SPAN_UNITS, UNIT};

const NONE: u32 = u32::MAX;
/// Units that may be kept whatever is in use: 8 MiB.
const KEPT_MIN: usize = (8 << 20) / UNIT;
/// Spans of one list that are looked at for room before the next list.
const LOOKED_AT: usize = 16;

/// Pages of the reserve.
const RESERVED: usize = 0;
/// Transparent huge pages of which nothing was given back.
const HUGE: usize = 1;
/// Small pages of which nothing was given back; they are backed, or were never used.
const WHOLE: usize = 2;
/// Spans of which a part was given back and a part is kept.
const BROKEN_KEPT: usize = 3;
/// Spans of which a part was given back, and the rest is in use.
const BROKEN: usize = 4;
const GROUPS: usize = 5;
/// The list of spans that hold nothing and are not backed. List 0 is no list; group `g` with `n` units in use is `1 + 32 g + n`.
const EMPTY: usize = 1 + GROUPS * SPAN_UNITS;
const LISTS: usize = EMPTY + 1;

/// The pages of a span.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Pages {
    /// Small ones, each backed when it is touched first.
    #[default]
    Small,
    /// A transparent huge page, backed as a whole. The kernel splits it when a part is given back.
    Transparent,
    /// A page of the reserve, backed as a whole, which goes back as a whole only.
    Reserved,
}

/// The record of a span. Each bit is a unit.
#[derive(Debug, Clone, Default)]
#[repr(C)]
pub struct Span {
    used: u32,
    /// The first unit of each run.
    starts: u32,
    /// Touched since they were last given back.
    backed: u32,
    /// On their way to the kernel: in use for everybody else.
    leaving: u32,
    /// Backed, and not used since.
    clean: u32,
    next: u32,
    prev: u32,
    list: u8,
    broken: bool,
    pages: Pages,
    /// As counted last.
    kept: u8,
    /// Nothing was backed before the last run was handed out.
    is_new: bool,
}

impl Span {
    /// Bytes before the units in use, for a reader of foreign memory.
    pub const USED_AT: usize = offset_of!(Span, used);
    /// Bytes before the first units of runs.
    pub const STARTS_AT: usize = offset_of!(Span, starts);
    /// Bytes before the backed units.
    pub const BACKED_AT: usize = offset_of!(Span, backed);
    /// Bytes before the byte that says whether it is broken.
    pub const BROKEN_AT: usize = offset_of!(Span, broken);

    /// Units that are backed, hold nothing, and can go back.
    fn kept_units(&self) -> u8 {
        match self.pages {
            Pages::Reserved if self.used != 0 => 0,
            _ => (self.backed & !self.used).count_ones() as u8,
        }
    }

    fn wanted_list(&self) -> usize {
        let kept = self.backed & !self.used;
        let used = self.used.count_ones() as usize;
        let group = match (self.broken, self.pages) {
            _ if used == SPAN_UNITS => return 0,
            _ if self.used | self.backed == 0 => return EMPTY,
            (true, _) if kept != 0 => BROKEN_KEPT,
            (true, _) => BROKEN,
            (false, Pages::Small) => WHOLE,
            (false, Pages::Transparent) => HUGE,
            (false, Pages::Reserved) => RESERVED,
        };
        1 + group * SPAN_UNITS + used
    }

    /// Units of the run that starts at `at`.
    fn run(&self, at: usize) -> usize {
        let goes_on = self.used & !self.starts;
        1 + (goes_on >> at >> 1).trailing_ones() as usize
    }

    /// The lowest free run of `units` whose start is a multiple of `align`, a power of two.
    fn room(&self, units: usize, align: usize) -> Option<usize> {
        // A bit each: as many units from there on are free.
        let (mut fits, mut seen) = (!self.used, 1);
        while seen < units {
            let more = seen.min(units - seen);
            fits &= fits >> more;
            seen += more;
        }
        let multiples = u32::MAX / (u32::MAX >> (SPAN_UNITS - align));
        match fits & multiples {
            0 => None,
            starts => Some(starts.trailing_zeros() as usize),
        }
    }
}

fn mask(at: usize, units: usize) -> u32 {
    (u32::MAX >> (SPAN_UNITS - units)) << at
}

/// A part of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Address of the first byte.
    pub start: usize,
    /// Bytes: whole units.
    pub len: usize,
    /// What it was a part of, or the whole.
    pub pages: Pages,
}

/// The spans of an arena.
#[derive(Debug, Default)]
pub struct Spans<'a> {
    base: usize,
    records: &'a mut [Span],
    /// Spans that were used at some time; those after them are untouched.
    begun: usize,
    heads: Lists,
    tails: Lists,
    /// Which lists of each group have spans, a bit each.
    listed: [u32; GROUPS],
    used: usize,
    kept: usize,
    broken: usize,
    huge: Huge,
}

/// Spans in huge pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Huge {
    /// For which transparent ones were asked.
    pub transparent: usize,
    /// Of them those of which a part was given back, so that the kernel has split them.
    pub broken: usize,
    /// In pages of the reserve.
    pub reserved: usize,
}

#[derive(Debug)]
struct Lists([u32; LISTS]);

impl Default for Lists {
    fn default() -> Self {
        Self([NONE; LISTS])
    }
}

impl<'a> Spans<'a> {
    /// An arena without spans.
    pub const fn new() -> Self {
        Self {
            base: 0,
            records: &mut [],
            begun: 0,
            heads: Lists([NONE; LISTS]),
            tails: Lists([NONE; LISTS]),
            listed: [0; GROUPS],
            used: 0,
            kept: 0,
            broken: 0,
            huge: Huge {
                transparent: 0,
                broken: 0,
                reserved: 0,
            },
        }
    }

    /// Tells where the arena starts (at a multiple of [`SPAN`](crate::SPAN)) and how far it is usable: a span for each record. Records that were
    /// given before are the first of these; the others are zeros.
    pub fn extend(&mut self, base: usize, records: &'a mut [Span]) {
        self.base = base;
        self.records = records;
    }

    /// Hands out a run of 1 to 32 units, whose start is a multiple of `align` units: its first unit, and whether it reads as zeros.
    /// `None`: the usable part of the arena has no room.
    pub fn take(&mut self, units: usize, align: usize) -> Option<(u32, bool)> {
        let (span, at) = self.find(units, align).or_else(|| {
            let next = self.begun as u32;
            (self.begun < self.records.len()).then_some((next, 0))
        })?;
        self.begun = self.begun.max(span as usize + 1);
        let record = &mut self.records[span as usize];
        let mask = mask(at, units);
        let is_zero = record.backed & !record.clean & mask == 0;
        record.is_new = record.used | record.backed == 0;
        record.used |= mask;
        record.backed |= mask;
        record.clean &= !mask;
        record.starts |= 1 << at;
        self.used += units;
        self.relist(span);
        Some((span * SPAN_UNITS as u32 + at as u32, is_zero))
    }

    /// Whether nothing of this unit's span was backed before its last run was handed out: the time for [`Spans::set_pages`].
    pub fn is_new(&self, unit: u32) -> bool {
        self.records[unit as usize / SPAN_UNITS].is_new
    }

    /// Tells which huge page the new span of this unit has got: all of it is backed, and what was not handed out is kept.
    pub fn set_pages(&mut self, unit: u32, pages: Pages) {
        let span = unit / SPAN_UNITS as u32;
        let record = &mut self.records[span as usize];
        match pages {
            Pages::Small => return,
            Pages::Transparent => self.huge.transparent += 1,
            Pages::Reserved => self.huge.reserved += 1,
        }
        record.pages = pages;
        record.clean = !record.backed;
        record.backed = u32::MAX;
        self.relist(span);
    }

    fn find(&self, units: usize, align: usize) -> Option<(u32, usize)> {
        for (group, listed) in self.listed.into_iter().enumerate() {
            // The fullest first, of those that could have room.
            let mut lists = listed & mask(0, SPAN_UNITS - units + 1);
            while let Some(used) = lists.checked_ilog2() {
                let list = 1 + group * SPAN_UNITS + used as usize;
                let found = self.find_in(list, units, align);
                if found.is_some() {
                    return found;
                }
                lists &= !(1 << used);
            }
        }
        self.find_in(EMPTY, units, align)
    }

    fn find_in(&self, list: usize, units: usize, align: usize) -> Option<(u32, usize)> {
        let mut span = self.heads.0[list];
        for _ in 0..LOOKED_AT {
            let record = self.records.get(span as usize)?;
            if let Some(at) = record.room(units, align) {
                return Some((span, at));
            }
            span = record.next;
        }
        None
    }

    /// Takes back a run. Returns its units.
    ///
    /// # Errors
    /// If no run starts there.
    pub fn release(&mut self, address: usize) -> Result<usize, Fault> {
        let (span, at) = self.locate(address)?;
        let record = &mut self.records[span as usize];
        let units = record.run(at);
        record.used &= !mask(at, units);
        record.starts &= !(1 << at);
        self.used -= units;
        self.relist(span);
        Ok(units)
    }

    /// Makes a run longer or shorter where it lies. `false`: there is no room behind it.
    ///
    /// # Errors
    /// If no run starts there.
    pub fn resize(&mut self, address: usize, units: usize) -> Result<bool, Fault> {
        let (span, at) = self.locate(address)?;
        let record = &mut self.records[span as usize];
        let old = record.run(at);
        let (low, high) = (old.min(units), old.max(units));
        if at + high > SPAN_UNITS {
            return Ok(false);
        }
        let changed = mask(at, high) & !mask(at, low);
        if units < old {
            record.used &= !changed;
            self.used -= old - units;
        } else {
            if record.used & changed != 0 {
                return Ok(false);
            }
            record.used |= changed;
            record.backed |= changed;
            record.clean &= !changed;
            self.used += units - old;
        }
        self.relist(span);
        Ok(true)
    }

    /// Units of the run that starts there.
    ///
    /// # Errors
    /// If none does.
    pub fn len(&self, address: usize) -> Result<usize, Fault> {
        let (span, at) = self.locate(address)?;
        Ok(self.records[span as usize].run(at))
    }

    fn locate(&self, address: usize) -> Result<(u32, usize), Fault> {
        let offset = address.wrapping_sub(self.base);
        let unit = offset / UNIT;
        let (span, at) = (unit / SPAN_UNITS, unit % SPAN_UNITS);
        let record = self.records.get(span).ok_or(Fault::Unknown(address))?;
        if record.used & !record.leaving & 1 << at == 0 {
            return Err(Fault::Unknown(address));
        }
        if !offset.is_multiple_of(UNIT) || record.starts & 1 << at == 0 {
            return Err(Fault::Interior(address));
        }
        Ok((span as u32, at))
    }

    /// How many units may be kept (M5): 8 MiB, or a share of what is in use.
    pub fn bound(&self, percent: usize) -> usize {
        KEPT_MIN.max((self.used as u128 * percent as u128 / 100).min(u128::from(u32::MAX)) as usize)
    }

    /// Units in use, units kept, and spans that are broken.
    pub fn totals(&self) -> (usize, usize, usize) {
        (self.used, self.kept, self.broken)
    }

    /// Spans in huge pages.
    pub fn huge(&self) -> Huge {
        self.huge
    }

    /// While more than `bound` units are kept: a range for the kernel. Nobody gets it before the caller has given it back and said so to
    /// [`Spans::returned`]. Order: spans that hold nothing, the oldest first; then parts of broken ones; then parts of whole ones, the emptiest first:
    /// small pages, and last transparent huge ones, which break by it. Pages of the reserve go back with their span only.
    pub fn excess(&mut self, bound: usize) -> Option<Range> {
        if self.kept <= bound {
            return None;
        }
        let first = |group: usize| 1 + group * SPAN_UNITS;
        let empty = [WHOLE, BROKEN_KEPT, HUGE, RESERVED].map(first);
        let parts =
            [BROKEN_KEPT, WHOLE, HUGE].map(|group| first(group) + 1..first(group) + SPAN_UNITS);
        let lists = empty.into_iter().chain(parts.into_iter().flatten());
        for list in lists {
            let mut span = self.tails.0[list];
            while let Some(record) = self.records.get(span as usize) {
                if record.backed & !record.used != 0 {
                    return Some(self.leave(span));
                }
                span = record.prev;
            }
        }
        None
    }

    /// Takes the lowest kept run of a span out of use.
    fn leave(&mut self, span: u32) -> Range {
        let record = &mut self.records[span as usize];
        let kept = record.backed & !record.used;
        let (at, units) = match record.used {
            0 => (0, SPAN_UNITS),
            _ => {
                let at = kept.trailing_zeros();
                (at as usize, (kept >> at).trailing_ones() as usize)
            }
        };
        let mask = mask(at, units);
        record.used |= mask;
        record.starts |= 1 << at;
        record.leaving |= mask;
        let pages = record.pages;
        self.relist(span);
        let start = self.base + (span as usize * SPAN_UNITS + at) * UNIT;
        let len = units * UNIT;
        Range { start, len, pages }
    }

    /// The range that [`Spans::excess`] returned reads as zeros now.
    pub fn returned(&mut self, range: Range) {
        let unit = (range.start - self.base) / UNIT;
        let (span, at) = (unit / SPAN_UNITS, unit % SPAN_UNITS);
        let record = &mut self.records[span];
        let mask = mask(at, range.len / UNIT);
        record.used &= !mask;
        record.starts &= !(1 << at);
        record.leaving &= !mask;
        record.backed &= !mask;
        record.clean &= !mask;
        let was = record.broken;
        record.broken = record.used | record.backed != 0;
        let broken = |count: usize| count + usize::from(record.broken) - usize::from(was);
        self.broken = broken(self.broken);
        if record.pages == Pages::Transparent {
            self.huge.broken = broken(self.huge.broken);
        }
        if !record.broken {
            match record.pages {
                Pages::Small => {}
                Pages::Transparent => self.huge.transparent -= 1,
                Pages::Reserved => self.huge.reserved -= 1,
            }
            record.pages = Pages::Small;
        }
        self.relist(span as u32);
    }

    /// Counts what a changed span keeps, and puts it on its list.
    fn relist(&mut self, span: u32) {
        let record = &mut self.records[span as usize];
        let kept = record.kept_units();
        self.kept = self.kept + usize::from(kept) - usize::from(record.kept);
        record.kept = kept;
        let (old, wanted) = (usize::from(record.list), record.wanted_list());
        if old == wanted {
            return;
        }
        let (next, prev) = (record.next, record.prev);
        record.list = wanted as u8;
        if old != 0 {
            self.link_next(prev, old, next);
            self.link_prev(next, old, prev);
            self.note(old);
        }
        if wanted == 0 {
            return;
        }
        let head = self.heads.0[wanted];
        let record = &mut self.records[span as usize];
        (record.next, record.prev) = (head, NONE);
        self.heads.0[wanted] = span;
        self.link_prev(head, wanted, span);
        self.note(wanted);
    }

    /// Writes down whether a list has spans.
    fn note(&mut self, list: usize) {
        let (group, used) = ((list - 1) / SPAN_UNITS, (list - 1) % SPAN_UNITS);
        let Some(listed) = self.listed.get_mut(group) else {
            return;
        };
        *listed &= !(1 << used);
        *listed |= u32::from(self.heads.0[list] != NONE) << used;
    }

    fn link_next(&mut self, span: u32, list: usize, next: u32) {
        match span {
            NONE => self.heads.0[list] = next,
            _ => self.records[span as usize].next = next,
        }
    }

    fn link_prev(&mut self, span: u32, list: usize, prev: u32) {
        match span {
            NONE => self.tails.0[list] = prev,
            _ => self.records[span as usize].prev = prev,
        }
    }
}

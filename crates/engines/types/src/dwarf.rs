//! Units and entries of DWARF.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::rc::Rc;

use gimli::{AttributeValue, EndianSlice, LittleEndian};

use crate::lines::{self, Row};
use crate::outline::Outline;
use crate::split::{self, Apart, Load, Part};
use crate::{DEPTH_MAX, Section};

pub(crate) type Reader<'a> = EndianSlice<'a, LittleEndian>;
pub(crate) type Entry<'a> = gimli::DebuggingInformationEntry<Reader<'a>>;
pub(crate) type Value<'a> = AttributeValue<Reader<'a>>;
type Sections<'a> = gimli::Dwarf<Reader<'a>>;

/// A unit, and the sections that it refers to.
pub(crate) struct Unit<'a> {
    pub(crate) inner: gimli::Unit<Reader<'a>>,
    pub(crate) sections: Rc<Sections<'a>>,
    /// Those that its lines refer to.
    pub(crate) line_sections: Rc<Sections<'a>>,
}

impl<'a> std::ops::Deref for Unit<'a> {
    type Target = gimli::Unit<Reader<'a>>;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl<'a> Unit<'a> {
    fn of(
        sections: &Rc<Sections<'a>>,
        header: gimli::UnitHeader<Reader<'a>>,
    ) -> gimli::Result<Self> {
        Ok(Self {
            inner: sections.unit(header)?,
            sections: sections.clone(),
            line_sections: sections.clone(),
        })
    }
}

/// Units that are read at most.
const UNITS_MAX: usize = 1 << 20;
/// Parts of the code of a function.
const PARTS_MAX: usize = 1024;
/// Parts of the code of all units.
const RANGES_MAX: usize = 1 << 24;

/// An entry: the number of its unit, and where it is in that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct At {
    pub(crate) unit: u32,
    pub(crate) offset: u32,
}

impl At {
    pub(crate) fn offset(self) -> gimli::UnitOffset {
        gimli::UnitOffset(self.offset as usize)
    }
}

/// The sections of a file, and its units as far as they were read.
pub(crate) struct Dwarf<'a> {
    files: Vec<File<'a>>,
    slots: Vec<Slot<'a>>,
    /// The number of the file that the programs of a package share.
    shared: Option<usize>,
    /// Units of one type, by signature.
    signatures: HashMap<u64, At>,
    aranges: Section<'a>,
    ranges: OnceCell<Vec<(u64, u64, u32)>>,
    skipped: Cell<u32>,
}

/// A file: the program's own, the shared one, or one of a unit that lies apart.
struct File<'a> {
    sections: Rc<Sections<'a>>,
    /// Where each unit of `.debug_info` begins, with its number; in order.
    starts: Vec<(usize, u32)>,
}

struct Slot<'a> {
    header: gimli::UnitHeader<Reader<'a>>,
    /// The number of its file.
    file: usize,
    /// What the program has of a unit that lies apart.
    skeleton: Option<gimli::UnitHeader<Reader<'a>>>,
    unit: OnceCell<Option<Rc<Unit<'a>>>>,
    outline: OnceCell<Option<Rc<Outline<'a>>>>,
    is_plain: OnceCell<bool>,
    rows: OnceCell<Rc<[Row]>>,
}

/// Whether a unit's records hold nothing but members: so it is in C.
fn is_plain(unit: &Unit<'_>) -> bool {
    let root = unit.entry(unit.header.root_offset()).ok();
    let language = root.and_then(|root| root.attr_value(gimli::DW_AT_language));
    matches!(
        language,
        Some(AttributeValue::Language(
            gimli::DW_LANG_C
                | gimli::DW_LANG_C89
                | gimli::DW_LANG_C99
                | gimli::DW_LANG_C11
                | gimli::DW_LANG_C17
        ))
    )
}

impl<'a> Dwarf<'a> {
    pub(crate) fn open(load: Load<'_, 'a>) -> Self {
        let mut sections = split::sections(load, Part::Own);
        let shared = split::sections(load, Part::Shared);
        let has_shared = shared.units().next().is_ok_and(|unit| unit.is_some());
        if has_shared {
            sections.set_sup(split::sections(load, Part::Shared));
        }
        let mut own = Self {
            files: Vec::new(),
            slots: Vec::new(),
            shared: None,
            signatures: HashMap::new(),
            aranges: load(Part::Own, ".debug_aranges"),
            ranges: OnceCell::new(),
            skipped: Cell::new(0),
        };
        own.read_headers(Rc::new(sections), &Apart::of(load));
        if has_shared {
            own.shared = Some(own.files.len());
            own.read_headers(Rc::new(shared), &Apart::of(&|_, _| Section::default()));
        }
        own
    }

    fn read_headers(&mut self, sections: Rc<Sections<'a>>, apart: &Apart<'_, 'a>) {
        let number = self.add_file(sections.clone());
        let mut headers = Vec::new();
        let mut info = sections.units();
        loop {
            match info.next() {
                Ok(Some(header)) => headers.push(header),
                Ok(None) => break,
                Err(_) => {
                    self.skip();
                    break;
                }
            }
            if headers.len() >= UNITS_MAX {
                break;
            }
        }
        let mut types = sections.type_units();
        while let Ok(Some(header)) = types.next() {
            if headers.len() >= UNITS_MAX {
                break;
            }
            headers.push(header);
        }
        let mut others = apart.types(&sections);
        for header in headers {
            match apart.unit(&sections, &header) {
                Some((unit, file)) => {
                    let other = self.add_file(file.sections.clone());
                    self.add_unit(other, unit, Some(header));
                    for unit in file.headers {
                        self.add_unit(other, unit, None);
                    }
                }
                None => self.add_unit(number, header, None),
            }
        }
        for file in others.drain(..) {
            let other = self.add_file(file.sections.clone());
            for unit in file.headers {
                self.add_unit(other, unit, None);
            }
        }
    }

    fn add_file(&mut self, sections: Rc<Sections<'a>>) -> usize {
        let starts = Vec::new();
        self.files.push(File { sections, starts });
        self.files.len().saturating_sub(1)
    }

    /// Adds a unit of a file. A skeleton is the file's own, and aranges lead to where it begins.
    fn add_unit(
        &mut self,
        file: usize,
        header: gimli::UnitHeader<Reader<'a>>,
        skeleton: Option<gimli::UnitHeader<Reader<'a>>>,
    ) {
        let number = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        if self.slots.len() >= UNITS_MAX {
            return;
        }
        let mut starts = |file: usize, header: &gimli::UnitHeader<Reader<'a>>| {
            if let Some((at, file)) = header.debug_info_offset().zip(self.files.get_mut(file)) {
                file.starts.push((at.0, number));
            }
        };
        starts(file, &header);
        if let Some(skeleton) = &skeleton {
            starts(0, skeleton);
        }
        if let gimli::UnitType::Type {
            type_signature,
            type_offset,
        }
        | gimli::UnitType::SplitType {
            type_signature,
            type_offset,
        } = header.type_()
            && let Ok(offset) = u32::try_from(type_offset.0)
        {
            let unit = number;
            self.signatures
                .entry(type_signature.0)
                .or_insert(At { unit, offset });
        }
        self.slots.push(Slot {
            header,
            file,
            skeleton,
            unit: OnceCell::new(),
            outline: OnceCell::new(),
            is_plain: OnceCell::new(),
            rows: OnceCell::new(),
        });
    }

    fn skip(&self) {
        self.skipped.set(self.skipped.get().saturating_add(1));
    }

    /// Units that could not be read.
    pub(crate) fn skipped(&self) -> u32 {
        self.skipped.get()
    }

    /// How many units there are.
    pub(crate) fn units(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    fn slot(&self, number: u32) -> Option<&Slot<'a>> {
        self.slots.get(usize::try_from(number).ok()?)
    }

    fn read(&self, slot: &Slot<'a>) -> Option<Rc<Unit<'a>>> {
        let sections = &self.files.get(slot.file)?.sections;
        let unit = Unit::of(sections, slot.header).ok()?;
        let unit = match &slot.skeleton {
            Some(skeleton) => split::join(unit, skeleton, &self.files.first()?.sections).ok()?,
            None => unit,
        };
        Some(Rc::new(unit))
    }

    /// The unit, not kept, that says where the code of a unit is.
    fn code_unit(&self, number: u32) -> Option<Rc<Unit<'a>>> {
        match self.slot(number)?.skeleton {
            Some(skeleton) => Unit::of(&self.files.first()?.sections, skeleton)
                .ok()
                .map(Rc::new),
            None => self.unit_once(number),
        }
    }

    /// A unit, kept.
    pub(crate) fn unit(&self, number: u32) -> Option<Rc<Unit<'a>>> {
        let slot = self.slot(number)?;
        let read = || {
            let unit = self.read(slot);
            if unit.is_none() {
                self.skip();
            }
            unit
        };
        slot.unit.get_or_init(read).clone()
    }

    /// A unit that is not kept, unless it was before.
    pub(crate) fn unit_once(&self, number: u32) -> Option<Rc<Unit<'a>>> {
        let slot = self.slot(number)?;
        match slot.unit.get() {
            Some(unit) => unit.clone(),
            None => self.read(slot),
        }
    }

    /// Whether a unit is in C: nothing is declared inside of anything.
    pub(crate) fn is_plain(&self, number: u32) -> bool {
        let read = || self.unit_once(number).is_some_and(|unit| is_plain(&unit));
        self.slot(number)
            .is_some_and(|slot| *slot.is_plain.get_or_init(read))
    }

    /// The lines of a unit, kept.
    pub(crate) fn rows(&self, number: u32) -> Option<Rc<[Row]>> {
        let slot = self.slot(number)?;
        let unit = self.unit(number)?;
        let rows = slot.rows.get_or_init(|| lines::rows(&unit).into());
        Some(rows.clone())
    }

    /// What a unit declares, kept.
    pub(crate) fn outline(&self, number: u32) -> Option<Rc<Outline<'a>>> {
        let slot = self.slot(number)?;
        let read = || {
            let unit = self.unit(number)?;
            Some(Rc::new(Outline::of(self, number, &unit)))
        };
        slot.outline.get_or_init(read).clone()
    }

    /// What a unit declares, not kept unless it was before; a unit that cannot be read is counted.
    pub(crate) fn outline_once(&self, number: u32) -> Option<Rc<Outline<'a>>> {
        let slot = self.slot(number)?;
        if let Some(outline) = slot.outline.get() {
            return outline.clone();
        }
        match self.unit_once(number) {
            Some(unit) => Some(Rc::new(Outline::of(self, number, &unit))),
            None => {
                self.skip();
                None
            }
        }
    }

    /// An entry and its unit.
    pub(crate) fn entry(&self, at: At) -> Option<(Rc<Unit<'a>>, Entry<'a>)> {
        let unit = self.unit(at.unit)?;
        let entry = unit.entry(at.offset()).ok()?;
        Some((unit, entry))
    }

    /// The entry that lies at a place of a file's `.debug_info`.
    fn start(&self, file: usize, at: usize) -> Option<At> {
        let starts = &self.files.get(file)?.starts;
        let after = starts.partition_point(|(start, _)| *start <= at);
        let (start, unit) = *starts.get(after.checked_sub(1)?)?;
        let offset = u32::try_from(at.checked_sub(start)?).ok()?;
        Some(At { unit, offset })
    }

    /// The entry that a value of an attribute refers to.
    pub(crate) fn reference(&self, unit: u32, value: &Value<'a>) -> Option<At> {
        match value {
            AttributeValue::UnitRef(offset) => {
                let offset = u32::try_from(offset.0).ok()?;
                Some(At { unit, offset })
            }
            AttributeValue::DebugInfoRef(offset) => self.start(self.slot(unit)?.file, offset.0),
            AttributeValue::DebugInfoRefSup(offset) => self.start(self.shared?, offset.0),
            AttributeValue::DebugTypesRef(signature) => self.signatures.get(&signature.0).copied(),
            _ => None,
        }
    }

    /// The entry that an attribute refers to.
    pub(crate) fn target(&self, unit: u32, entry: &Entry<'a>, name: gimli::DwAt) -> Option<At> {
        self.reference(unit, &entry.attr_value(name)?)
    }

    /// The text of an attribute.
    pub(crate) fn text(
        &self,
        unit: &Unit<'a>,
        entry: &Entry<'a>,
        name: gimli::DwAt,
    ) -> Option<&'a str> {
        let value = entry.attr_value(name)?;
        let text = unit.sections.attr_string(unit, value).ok()?;
        let text = std::str::from_utf8(text.slice()).ok()?;
        (!text.is_empty()).then_some(text)
    }

    /// An entry and those that it completes or copies: what a concrete function does not say, its abstract one or its declaration does.
    pub(crate) fn chain(&self, at: At) -> Vec<(At, Rc<Unit<'a>>, Entry<'a>)> {
        let mut all: Vec<(At, Rc<Unit<'a>>, Entry<'a>)> = Vec::new();
        let mut next = Some(at);
        while let Some(at) = next.take().filter(|_| all.len() < DEPTH_MAX) {
            if all.iter().any(|(seen, ..)| *seen == at) {
                break;
            }
            let Some((unit, entry)) = self.entry(at) else {
                break;
            };
            let to = |name| self.target(at.unit, &entry, name);
            next = to(gimli::DW_AT_abstract_origin).or_else(|| to(gimli::DW_AT_specification));
            all.push((at, unit, entry));
        }
        all
    }

    /// The unit whose code an address is in.
    pub(crate) fn unit_at(&self, pc: u64) -> Option<u32> {
        let ranges = self.ranges.get_or_init(|| self.unit_ranges());
        let after = ranges.partition_point(|(start, ..)| *start <= pc);
        // Ranges seldom overlap; where they do, the one that begins last is the innermost.
        let before = ranges.get(..after)?.iter().rev().take(DEPTH_MAX);
        let mut holding = before.filter(|(_, end, _)| pc < *end);
        holding.next().map(|(.., unit)| *unit)
    }

    /// The code of each unit: as `.debug_aranges` has it, else as the unit itself says.
    fn unit_ranges(&self) -> Vec<(u64, u64, u32)> {
        let mut all = Vec::new();
        let mut is_listed = vec![false; self.slots.len()];
        let aranges = gimli::DebugAranges::new(self.aranges.bytes, LittleEndian);
        let mut headers = aranges.headers();
        while let Ok(Some(header)) = headers.next() {
            let at = self.start(0, header.debug_info_offset().0);
            let Some(at) = at.filter(|at| at.offset == 0) else {
                continue;
            };
            let mut entries = header.entries();
            while let Ok(Some(entry)) = entries.next() {
                let end = entry.address().saturating_add(entry.length());
                if entry.address() < end && all.len() < RANGES_MAX {
                    all.push((entry.address(), end, at.unit));
                    if let Some(listed) = is_listed.get_mut(at.unit as usize) {
                        *listed = true;
                    }
                }
            }
        }
        for (number, _) in (0_u32..).zip(is_listed).filter(|(_, listed)| !listed) {
            let Some(unit) = self.code_unit(number) else {
                self.skip();
                continue;
            };
            if let Ok(root) = unit.entry(unit.header.root_offset()) {
                let rest = RANGES_MAX.saturating_sub(all.len());
                let ranges = self.parts(&unit, &root, rest).into_iter();
                all.extend(ranges.map(|range| (range.start, range.end, number)));
            }
        }
        all.sort_unstable();
        all
    }

    /// The address that an attribute has. Code that the linker dropped lies at 0: it has none.
    fn address(&self, unit: &Unit<'a>, entry: &Entry<'a>, name: gimli::DwAt) -> Option<u64> {
        let value = entry.attr_value(name)?;
        let address = unit.sections.attr_address(unit, value).ok().flatten();
        address.filter(|address| *address != 0)
    }

    /// The code of an entry; as many parts as one function or block has.
    pub(crate) fn ranges(&self, unit: &Unit<'a>, entry: &Entry<'a>) -> Vec<std::ops::Range<u64>> {
        self.parts(unit, entry, PARTS_MAX)
    }

    /// The code of an entry, in so many parts at most.
    fn parts(&self, unit: &Unit<'a>, entry: &Entry<'a>, max: usize) -> Vec<std::ops::Range<u64>> {
        let mut all = Vec::new();
        let list = entry.attr_value(gimli::DW_AT_ranges);
        let list = list.and_then(|value| unit.sections.attr_ranges(unit, value).ok().flatten());
        if let Some(mut list) = list {
            while let Ok(Some(range)) = list.next() {
                if all.len() >= max {
                    break;
                }
                if range.begin < range.end && range.begin != 0 {
                    all.push(range.begin..range.end);
                }
            }
        } else if let Some(low) = self.address(unit, entry, gimli::DW_AT_low_pc) {
            let high = match entry.attr_value(gimli::DW_AT_high_pc) {
                Some(AttributeValue::Udata(len)) => low.checked_add(len),
                _ => self.address(unit, entry, gimli::DW_AT_high_pc),
            };
            all.extend(high.filter(|high| low < *high).map(|high| low..high));
        }
        all
    }

    /// Where the code of an entry is entered.
    pub(crate) fn low_pc(&self, unit: &Unit<'a>, entry: &Entry<'a>) -> Option<u64> {
        let address = |name| self.address(unit, entry, name);
        let first = || self.ranges(unit, entry).first().map(|range| range.start);
        let by_offset = || {
            // Since DWARF 5 it may count from the lowest address.
            let offset = entry.attr_value(gimli::DW_AT_entry_pc)?.udata_value()?;
            let low = address(gimli::DW_AT_low_pc).or_else(first)?;
            low.checked_add(offset)
        };
        address(gimli::DW_AT_entry_pc)
            .or_else(by_offset)
            .or_else(|| address(gimli::DW_AT_low_pc))
            .or_else(first)
    }
}

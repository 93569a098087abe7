//! Debug data in several files: what many files share (dwz), and units that lie apart from the program (`.dwo`, `.dwp`).
//!
//! # Model
//! A [`Part`] names one of the files of a program's debug data. [`skeletons`] tells which units lie apart, so that the caller can look for
//! their files; a unit counts if its number of 64 bits is the one that the program has.

use std::rc::Rc;

use gimli::{EndianSlice, LittleEndian, SectionId, UnitType};

use crate::Section;
use crate::dwarf::{Reader, Unit};

/// Units in files of their own at most.
const SPLIT_MAX: usize = 1 << 16;

/// One of the files that the debug data of a program lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The program's own, with the package of split units (`.dwp`) if there is one.
    Own,
    /// That which the programs of a package share (dwz).
    Shared,
    /// The unit of this number.
    Split(u64),
}

/// Gives the sections of the parts.
pub type Load<'l, 'a> = &'l dyn Fn(Part, &'static str) -> Section<'a>;

/// A unit that lies in a file of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skeleton {
    /// Its number.
    pub id: u64,
    /// The name of its file.
    pub name: String,
    /// What the name begins at, if it is no whole path.
    pub directory: String,
}

type Sections<'a> = gimli::Dwarf<Reader<'a>>;
type Header<'a> = gimli::UnitHeader<Reader<'a>>;

/// The sections of a part, by their names there.
pub(crate) fn sections<'a>(load: Load<'_, 'a>, part: Part) -> Sections<'a> {
    let name = |id: SectionId| match part {
        Part::Split(_) => id.dwo_name(),
        Part::Own | Part::Shared => Some(id.name()),
    };
    read(|id| name(id).map_or(&[], |name| load(part, name).bytes))
}

fn read<'a>(bytes: impl Fn(SectionId) -> &'a [u8]) -> Sections<'a> {
    let section = |id| Ok::<_, ()>(EndianSlice::new(bytes(id), LittleEndian));
    gimli::Dwarf::load(section).unwrap_or_default()
}

/// Whether a unit may be a skeleton. Before DWARF 5 its header does not say so, and none but skeletons need addresses apart.
fn may_lie_apart(sections: &Sections<'_>, header: &Header<'_>) -> bool {
    match header.type_() {
        UnitType::Skeleton(_) => true,
        UnitType::Compilation => header.version() == 4 && has_addresses(sections),
        _ => false,
    }
}

fn has_addresses(sections: &Sections<'_>) -> bool {
    let start = gimli::DebugAddrBase(0);
    sections
        .debug_addr
        .get_address(4, start, gimli::DebugAddrIndex(0))
        .is_ok()
}

/// The number of a unit that lies apart.
fn apart<'a>(
    sections: &Sections<'a>,
    header: &Header<'a>,
) -> Option<(u64, gimli::Unit<Reader<'a>>)> {
    if !may_lie_apart(sections, header) {
        return None;
    }
    let unit = sections.unit(*header).ok()?;
    let id = unit.dwo_id?.0;
    unit.dwo_name().ok().flatten()?;
    Some((id, unit))
}

/// The units of a file that lie in files of their own.
pub fn skeletons<'a>(load: Load<'_, 'a>) -> Vec<Skeleton> {
    let own = sections(load, Part::Own);
    let mut all = Vec::new();
    let mut headers = own.units();
    while let Ok(Some(header)) = headers.next() {
        let Some((id, unit)) = apart(&own, &header) else {
            continue;
        };
        let text = |value| {
            let text: Option<Reader<'_>> = own.attr_string(&unit, value).ok();
            text.and_then(|text| String::from_utf8(text.slice().to_vec()).ok())
        };
        let Some(name) = unit.dwo_name().ok().flatten().and_then(text) else {
            continue;
        };
        let directory = unit.comp_dir.map(|directory| directory.slice().to_vec());
        let directory = directory.and_then(|directory| String::from_utf8(directory).ok());
        all.push(Skeleton {
            id,
            name,
            directory: directory.unwrap_or_default(),
        });
        if all.len() >= SPLIT_MAX {
            break;
        }
    }
    all
}

/// Units of a file: the sections that they are in, and their headers.
pub(crate) struct File<'a> {
    pub(crate) sections: Rc<Sections<'a>>,
    pub(crate) headers: Vec<Header<'a>>,
}

impl<'a> File<'a> {
    fn of(mut sections: Sections<'a>, own: &Sections<'a>) -> Self {
        sections.make_dwo(own);
        let mut headers = Vec::new();
        let mut units = sections.units();
        while let Ok(Some(header)) = units.next() {
            headers.push(header);
        }
        let mut types = sections.type_units();
        while let Ok(Some(header)) = types.next() {
            headers.push(header);
        }
        Self {
            sections: Rc::new(sections),
            headers,
        }
    }

    /// Takes out the unit of a number.
    fn take(&mut self, id: u64) -> Option<Header<'a>> {
        let is_it = |header: &Header<'a>| match header.type_() {
            UnitType::SplitCompilation(own) => own.0 == id,
            UnitType::Compilation => {
                let unit = self.sections.unit(*header);
                unit.is_ok_and(|unit| unit.dwo_id.is_some_and(|own| own.0 == id))
            }
            _ => false,
        };
        let at = self.headers.iter().position(is_it)?;
        Some(self.headers.remove(at))
    }
}

/// Finds the units that lie apart.
pub(crate) struct Apart<'l, 'a> {
    load: Load<'l, 'a>,
    package: Option<gimli::DwarfPackage<Reader<'a>>>,
}

impl<'l, 'a> Apart<'l, 'a> {
    pub(crate) fn of(load: Load<'l, 'a>) -> Self {
        let empty = EndianSlice::new(&[], LittleEndian);
        let section = |id: SectionId| {
            let name = id.dwo_name();
            let bytes = name.map_or(&[][..], |name| load(Part::Own, name).bytes);
            Ok::<_, gimli::Error>(EndianSlice::new(bytes, LittleEndian))
        };
        let package = gimli::DwarfPackage::load(section, empty).ok();
        Self { load, package }
    }

    /// The unit that a skeleton stands for, and the file that has it.
    pub(crate) fn unit(
        &self,
        own: &Sections<'a>,
        header: &Header<'a>,
    ) -> Option<(Header<'a>, File<'a>)> {
        let (id, _) = apart(own, header)?;
        let packed = self
            .package
            .as_ref()
            .and_then(|package| package.find_cu(gimli::DwoId(id), own).ok().flatten());
        let sections = packed.unwrap_or_else(|| sections(self.load, Part::Split(id)));
        let mut file = File::of(sections, own);
        Some((file.take(id)?, file))
    }

    /// The units of one type that the package has.
    pub(crate) fn types(&self, own: &Sections<'a>) -> Vec<File<'a>> {
        let Some(package) = &self.package else {
            return Vec::new();
        };
        let count = u32::try_from(SPLIT_MAX)
            .unwrap_or(0)
            .min(package.tu_index.unit_count());
        let all = (1..=count).filter_map(|number| package.tu_sections(number, own).ok());
        all.map(|sections| File::of(sections, own)).collect()
    }
}

/// A unit with what its skeleton knows: addresses and lines.
pub(crate) fn join<'a>(
    mut unit: Unit<'a>,
    skeleton: &Header<'a>,
    own: &Rc<Sections<'a>>,
) -> gimli::Result<Unit<'a>> {
    let from = own.unit(*skeleton)?;
    unit.inner.copy_relocated_attributes(&from);
    unit.inner.line_program.clone_from(&from.line_program);
    unit.line_sections = own.clone();
    Ok(unit)
}

//! Functions, by address and by name.

use std::ops::Range;
use std::rc::Rc;

use crate::dwarf::{At, Entry, Unit};
use crate::graph::Types;
use crate::index::{self, LookupError};
use crate::node::TypeId;
use crate::place::{Frame, OPTIMIZED, Place};
use crate::pull::{children, number};
use crate::{DEPTH_MAX, MEMBERS_MAX, lines};

/// A place of the program where a function begins: its own code, or a copy of it in another function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionRef {
    /// Its name behind those of its scopes. A clone has that of its origin; the table of symbols has its own.
    pub name: String,
    /// Its name for the linker, if that is another.
    pub linkage_name: Option<String>,
    /// Where it is entered.
    pub low_pc: u64,
    /// Its code. Cold parts lie apart.
    pub ranges: Vec<Range<u64>>,
    /// It is a copy in another function: entered, but never returned from.
    pub is_inline: bool,
    /// The file that declares it.
    pub file: Option<String>,
    /// The line in that file; 0: not known.
    pub line: u32,
    pub(crate) at: At,
}

/// A function at one instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Which function.
    pub reference: FunctionRef,
    /// Its parameters in the order of the source, with their places at the instruction.
    pub parameters: Vec<Parameter>,
    /// The first instruction behind the one at the entry at which arguments that are kept in the frame are there.
    pub body_pc: u64,
    /// The variables in whose blocks the instruction is, innermost last.
    pub locals: Vec<Parameter>,
    /// What it returns.
    pub returns: TypeId,
    /// More arguments may follow.
    pub is_variadic: bool,
    /// Copies of other functions that the instruction belongs to, innermost last.
    pub inlined: Vec<Inlined>,
}

/// A parameter or variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name; empty if it has none.
    pub name: Rc<str>,
    /// What it is.
    pub ty: TypeId,
    /// Where it is.
    pub place: Place,
}

/// A copy of a function in another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inlined {
    /// The function that was copied.
    pub name: String,
    /// The file of the call.
    pub file: Option<String>,
    /// The line of the call; 0: not known.
    pub line: u32,
}

/// An entry, its unit, and the entries that it completes or copies.
type Chain<'a> = [(At, Rc<Unit<'a>>, Entry<'a>)];

/// What the first entry of a chain says that says it.
fn first<'a, T>(
    chain: &Chain<'a>,
    of: impl Fn(At, &Unit<'a>, &Entry<'a>) -> Option<T>,
) -> Option<T> {
    chain
        .iter()
        .find_map(|(at, unit, entry)| of(*at, unit, entry))
}

fn declared(chain: &Chain<'_>) -> (Option<String>, u32) {
    let file = first(chain, |_, unit, entry| {
        let number = match entry.attr_value(gimli::DW_AT_decl_file)? {
            gimli::AttributeValue::FileIndex(number) => number,
            value => value.udata_value()?,
        };
        lines::file(unit, number)
    });
    let line = first(chain, |_, _, entry| number(entry, gimli::DW_AT_decl_line));
    (
        file,
        line.and_then(|line| line.try_into().ok()).unwrap_or(0),
    )
}

impl<'a> Types<'a> {
    /// The function whose code an instruction is in, and where its parameters and variables are there. Reads one unit.
    pub fn at(&self, pc: u64) -> Option<Function> {
        let dwarf = self.dwarf()?;
        let number = dwarf.unit_at(pc)?;
        let unit = dwarf.unit(number)?;
        let outline = dwarf.outline(number)?;
        let offset = outline.function_at(dwarf, &unit, pc)?;
        let at = At {
            unit: number,
            offset,
        };
        let reference = self.reference(at)?;
        self.function(&reference, pc)
    }

    /// A function, or a copy of one, at an instruction of it.
    pub fn function(&self, reference: &FunctionRef, pc: u64) -> Option<Function> {
        let dwarf = self.dwarf()?;
        let chain = dwarf.chain(reference.at);
        let (at, unit, entry) = chain.first()?;
        let holder = self.holder(reference, pc)?;
        let body_pc = match reference.is_inline {
            true => reference.low_pc,
            false => self.body_pc(at.unit, reference),
        };
        let frame = Frame {
            dwarf,
            unit: unit.clone(),
            pc,
            low_pc: reference.low_pc,
            body_pc,
            cfa: &|pc| self.cfa(pc),
            base: holder.attr_value(gimli::DW_AT_frame_base),
        };
        let own = children(unit, entry);
        let typed = first(&chain, |at, _, entry| {
            entry
                .has_attr(gimli::DW_AT_type)
                .then(|| self.type_of(at.unit, entry))
        });
        let mut function = Function {
            reference: reference.clone(),
            parameters: self.parameters(&frame, &chain, &own),
            body_pc,
            locals: Vec::new(),
            returns: typed.unwrap_or(TypeId::VOID),
            is_variadic: chain.iter().any(|(_, unit, entry)| {
                let all = children(unit, entry);
                all.iter()
                    .any(|child| child.tag() == gimli::DW_TAG_unspecified_parameters)
            }),
            inlined: Vec::new(),
        };
        self.descend_blocks(&frame, at.unit, &own, &mut function, DEPTH_MAX);
        Some(function)
    }

    /// The function with a frame that the code of a reference is in: itself, or that which it was copied into.
    fn holder(&self, reference: &FunctionRef, pc: u64) -> Option<Entry<'a>> {
        let dwarf = self.dwarf()?;
        let unit = dwarf.unit(reference.at.unit)?;
        let offset = match reference.is_inline {
            true => dwarf
                .outline(reference.at.unit)?
                .function_at(dwarf, &unit, pc)?,
            false => reference.at.offset,
        };
        unit.entry(gimli::UnitOffset(offset as usize)).ok()
    }

    /// The parameters that the source declares, in its order, each with what this code has of it.
    fn parameters(
        &self,
        frame: &Frame<'_, 'a>,
        chain: &Chain<'a>,
        own: &[Entry<'a>],
    ) -> Vec<Parameter> {
        let Some((at, ..)) = chain.first() else {
            return Vec::new();
        };
        let origin_of = |entry: &Entry<'a>| {
            frame
                .dwarf
                .target(at.unit, entry, gimli::DW_AT_abstract_origin)
        };
        let is_parameter = |entry: &&Entry<'a>| entry.tag() == gimli::DW_TAG_formal_parameter;
        // The abstract function has all of them; code that was made of it may lack some, or have them as variables.
        let declaring = chain.iter().find(|(_, unit, entry)| {
            entry.has_attr(gimli::DW_AT_inline)
                && children(unit, entry)
                    .iter()
                    .any(|child| is_parameter(&child))
        });
        let Some((of, unit, entry)) = declaring else {
            let own = own.iter().filter(is_parameter);
            return own
                .map(|entry| self.parameter(frame, at.unit, entry))
                .collect();
        };
        let declared = children(unit, entry);
        let declared = declared.iter().filter(is_parameter);
        declared
            .map(|entry| {
                let offset = u32::try_from(entry.offset().0).unwrap_or(0);
                let declared = At {
                    unit: of.unit,
                    offset,
                };
                let here = own.iter().find(|own| origin_of(own) == Some(declared));
                match here {
                    Some(own) => self.parameter(frame, at.unit, own),
                    None => self.parameter(frame, of.unit, entry),
                }
            })
            .collect()
    }

    fn parameter(&self, frame: &Frame<'_, 'a>, unit: u32, entry: &Entry<'a>) -> Parameter {
        let offset = u32::try_from(entry.offset().0).unwrap_or(0);
        let chain = frame.dwarf.chain(At { unit, offset });
        let name = first(&chain, |_, unit, entry| {
            frame.dwarf.text(unit, entry, gimli::DW_AT_name)
        });
        let typed = first(&chain, |at, _, entry| {
            entry
                .has_attr(gimli::DW_AT_type)
                .then(|| self.type_of(at.unit, entry))
        });
        // A constant may stand at the origin.
        let own = frame.place(entry);
        let place = match own == OPTIMIZED && !entry.has_attr(gimli::DW_AT_location) {
            true => first(&chain, |_, _, entry| {
                entry
                    .has_attr(gimli::DW_AT_const_value)
                    .then(|| frame.place(entry))
            }),
            false => None,
        };
        Parameter {
            name: name.unwrap_or_default().into(),
            ty: typed.unwrap_or(TypeId::VOID),
            place: place.unwrap_or(own),
        }
    }

    /// Variables of the blocks that the instruction is in, and the copies of functions that it belongs to.
    fn descend_blocks(
        &self,
        frame: &Frame<'_, 'a>,
        unit: u32,
        entries: &[Entry<'a>],
        function: &mut Function,
        rest: usize,
    ) {
        let Some(rest) = rest.checked_sub(1) else {
            return;
        };
        let parameters = function.parameters.len();
        for entry in entries.iter().take(MEMBERS_MAX) {
            let is_copy = match entry.tag() {
                gimli::DW_TAG_variable => {
                    let local = self.parameter(frame, unit, entry);
                    let is_parameter = function.parameters.get(..parameters).is_some_and(|all| {
                        all.iter()
                            .any(|own| own.name == local.name && own.place == local.place)
                    });
                    if !local.name.is_empty() && !is_parameter {
                        function.locals.push(local);
                    }
                    continue;
                }
                gimli::DW_TAG_lexical_block => false,
                gimli::DW_TAG_inlined_subroutine => true,
                _ => continue,
            };
            let ranges = frame.dwarf.ranges(&frame.unit, entry);
            if !ranges.iter().any(|range| range.contains(&frame.pc)) {
                continue;
            }
            let inner = children(&frame.unit, entry);
            if is_copy {
                function.inlined.extend(self.copy(frame, unit, entry));
                let parameters = inner.iter();
                let parameters =
                    parameters.filter(|entry| entry.tag() == gimli::DW_TAG_formal_parameter);
                let parameters = parameters.map(|entry| self.parameter(frame, unit, entry));
                function.locals.extend(parameters);
            }
            self.descend_blocks(frame, unit, &inner, function, rest);
        }
    }

    fn copy(&self, frame: &Frame<'_, 'a>, unit: u32, entry: &Entry<'a>) -> Option<Inlined> {
        let origin = frame
            .dwarf
            .target(unit, entry, gimli::DW_AT_abstract_origin)?;
        let file = match entry.attr_value(gimli::DW_AT_call_file) {
            Some(gimli::AttributeValue::FileIndex(number)) => lines::file(&frame.unit, number),
            _ => None,
        };
        let line = number(entry, gimli::DW_AT_call_line);
        Some(Inlined {
            name: self.qualified(origin)?,
            file,
            line: line.and_then(|line| line.try_into().ok()).unwrap_or(0),
        })
    }

    /// What an entry with code says of it.
    fn reference(&self, at: At) -> Option<FunctionRef> {
        let dwarf = self.dwarf()?;
        let chain = dwarf.chain(at);
        let (_, unit, entry) = chain.first()?;
        let name = self.qualified(at)?;
        let linkage = first(&chain, |_, unit, entry| {
            let name = dwarf.text(unit, entry, gimli::DW_AT_linkage_name);
            name.or_else(|| dwarf.text(unit, entry, gimli::DW_AT_MIPS_linkage_name))
        });
        let (file, line) = declared(&chain);
        Some(FunctionRef {
            linkage_name: linkage.filter(|other| *other != name).map(str::to_owned),
            name,
            low_pc: dwarf.low_pc(unit, entry)?,
            ranges: dwarf.ranges(unit, entry),
            is_inline: entry.tag() == gimli::DW_TAG_inlined_subroutine,
            file,
            line,
            at,
        })
    }

    /// The functions whose names fit a pattern, in the order of their names, with clones and copies in other functions. See
    /// [`search`](Self::search) for patterns. Functions without code and without copies are left out.
    ///
    /// # Errors
    /// [`LookupError::Interrupted`].
    pub fn functions(&self, pattern: &str) -> Result<Vec<FunctionRef>, LookupError> {
        let index = self.names()?;
        let is_whole = pattern.contains("::");
        let mut all = Vec::new();
        let mut copied: Vec<At> = Vec::new();
        for name in index
            .all()
            .filter(|name| name.kind == index::Kind::Function)
        {
            let is_fitting = match is_whole {
                true => index::fits(pattern, &index.qualified(name)),
                false => index::fits(pattern, name.name),
            };
            if is_fitting && name.is_inline {
                copied.push(name.at);
            } else if is_fitting {
                all.extend(self.reference(name.at));
            }
            if self.is_interrupted() {
                return Err(LookupError::Interrupted);
            }
        }
        copied.sort_unstable();
        for group in copied.chunk_by(|a, b| a.unit == b.unit) {
            self.copies(group, &mut all);
        }
        all.sort_by(|a, b| (&a.name, a.low_pc).cmp(&(&b.name, b.low_pc)));
        Ok(all)
    }

    /// The copies of functions of one unit, in that unit.
    fn copies(&self, of: &[At], all: &mut Vec<FunctionRef>) {
        let Some(number) = of.first().map(|at| at.unit) else {
            return;
        };
        let found = self.dwarf().and_then(|dwarf| {
            let unit = dwarf.unit(number)?;
            let mut entries = unit.entries_raw(None).ok()?;
            let mut entry = Entry::default();
            let mut found = Vec::new();
            while !entries.is_empty() {
                let Ok(is_entry) = entries.read_entry(&mut entry) else {
                    break;
                };
                if is_entry
                    && entry.tag() == gimli::DW_TAG_inlined_subroutine
                    && let Some(origin) = dwarf.target(number, &entry, gimli::DW_AT_abstract_origin)
                    && of.binary_search(&origin).is_ok()
                    && let Ok(offset) = u32::try_from(entry.offset().0)
                {
                    found.push(At {
                        unit: number,
                        offset,
                    });
                }
            }
            Some(found)
        });
        let found = found.into_iter().flatten();
        all.extend(found.filter_map(|at| self.reference(at)));
    }
}

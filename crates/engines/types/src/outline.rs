//! What a unit declares: one pass over its entries, which skips what has no names of its own.

use std::cell::OnceCell;

use crate::DEPTH_MAX;
use crate::dwarf::{At, Dwarf, Entry, Reader, Unit};
use crate::index::Kind;

/// Declarations of a unit at most.
const ITEMS_MAX: usize = 1 << 22;

/// A declaration or definition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item<'a> {
    pub(crate) offset: u32,
    pub(crate) kind: Kind,
    /// Its own name; empty if it is that of `origin`.
    pub(crate) name: &'a str,
    /// The item that it is declared in, by its number.
    pub(crate) scope: Option<u32>,
    /// What it completes or copies.
    pub(crate) origin: Option<At>,
    /// It has no definition here.
    pub(crate) is_declaration: bool,
    /// A function that is inlined somewhere.
    pub(crate) is_inline: bool,
    /// Bytes and line, which tell definitions of one name apart.
    pub(crate) print: (u64, u64),
}

/// A function's code, and the number of its item.
type Code = (u64, u64, u32);

/// The declarations of a unit, in the order of their places.
pub(crate) struct Outline<'a> {
    pub(crate) items: Vec<Item<'a>>,
    code: OnceCell<Vec<Code>>,
}

fn kind(entry: &Entry<'_>) -> Option<Kind> {
    Some(match entry.tag() {
        // A static member: up to DWARF 4 it is a member that has no place.
        gimli::DW_TAG_member if entry.has_attr(gimli::DW_AT_declaration) => Kind::Variable,
        gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type => Kind::Struct,
        gimli::DW_TAG_union_type => Kind::Union,
        gimli::DW_TAG_enumeration_type => Kind::Enum,
        gimli::DW_TAG_typedef => Kind::Typedef,
        gimli::DW_TAG_base_type => Kind::Base,
        gimli::DW_TAG_subprogram => Kind::Function,
        gimli::DW_TAG_variable => Kind::Variable,
        gimli::DW_TAG_namespace => Kind::Namespace,
        _ => return None,
    })
}

impl<'a> Outline<'a> {
    pub(crate) fn of(dwarf: &Dwarf<'a>, number: u32, unit: &Unit<'a>) -> Self {
        let mut items = Vec::new();
        // What cannot be read ends the unit; what was read before counts.
        let _ = walk(dwarf, number, unit, &mut items);
        Self {
            items,
            code: OnceCell::new(),
        }
    }

    /// The item at a place.
    pub(crate) fn item(&self, offset: u32) -> Option<&Item<'a>> {
        let at = self.items.binary_search_by_key(&offset, |item| item.offset);
        self.items.get(at.ok()?)
    }

    /// The names of what an item is declared in, innermost first.
    pub(crate) fn scopes(&self, item: &Item<'a>) -> Vec<&'a str> {
        let mut all = Vec::new();
        let mut scope = item.scope;
        while let Some(outer) = scope.and_then(|at| self.items.get(at as usize)) {
            if all.len() >= DEPTH_MAX {
                break;
            }
            all.push(outer.name);
            scope = outer.scope;
        }
        all
    }

    /// The function whose code an address is in.
    pub(crate) fn function_at(&self, dwarf: &Dwarf<'a>, unit: &Unit<'a>, pc: u64) -> Option<u32> {
        let code = self.code.get_or_init(|| self.code(dwarf, unit));
        let after = code.partition_point(|(start, ..)| *start <= pc);
        let (_, end, item) = code.get(after.checked_sub(1)?)?;
        let item = self.items.get(*item as usize)?;
        (pc < *end).then_some(item.offset)
    }

    fn code(&self, dwarf: &Dwarf<'a>, unit: &Unit<'a>) -> Vec<Code> {
        let mut all = Vec::new();
        for (number, item) in (0_u32..).zip(&self.items) {
            if item.kind != Kind::Function || item.is_declaration {
                continue;
            }
            let Ok(entry) = unit.entry(gimli::UnitOffset(item.offset as usize)) else {
                continue;
            };
            let ranges = dwarf.ranges(unit, &entry).into_iter();
            all.extend(ranges.map(|range| (range.start, range.end, number)));
        }
        all.sort_unstable();
        all
    }
}

/// The name of something without one.
const ANONYMOUS: &str = "(anonymous)";

fn walk<'a>(
    dwarf: &Dwarf<'a>,
    number: u32,
    unit: &Unit<'a>,
    items: &mut Vec<Item<'a>>,
) -> gimli::Result<()> {
    let is_plain = dwarf.is_plain(number);
    let mut entries = Entries {
        raw: unit.entries_raw(None)?,
        above: 0,
    };
    // The items that the next entry is in, each with the depth of its children.
    let mut scopes: Vec<(isize, Option<u32>)> = Vec::new();
    let mut entry = Entry::default();
    while !entries.raw.is_empty() && items.len() < ITEMS_MAX {
        let depth = entries.depth();
        while scopes.last().is_some_and(|(inner, _)| *inner > depth) {
            scopes.pop();
        }
        if !entries.raw.read_entry(&mut entry)? {
            continue;
        }
        let inner = depth.saturating_add(1);
        if depth == 0 {
            scopes.push((inner, None));
            continue;
        }
        let scope = scopes.last().and_then(|(_, scope)| *scope);
        let found = kind(&entry);
        let at = u32::try_from(items.len()).unwrap_or(u32::MAX);
        if let Some(kind) = found
            && let Some(item) = item(dwarf, number, unit, &entry, kind, scope)
        {
            items.push(item);
        } else if entry.has_children() {
            entries.skip(unit, &entry, depth)?;
            continue;
        }
        let is_scope = match found {
            Some(Kind::Namespace) => true,
            Some(Kind::Struct | Kind::Union | Kind::Enum) => !is_plain,
            _ => false,
        };
        if is_scope && scopes.len() < DEPTH_MAX {
            scopes.push((inner, Some(at)));
        } else if entry.has_children() {
            entries.skip(unit, &entry, depth)?;
        }
    }
    Ok(())
}

/// Entries one behind the other.
struct Entries<'u, 'a> {
    raw: gimli::EntriesRaw<'u, Reader<'a>>,
    /// The depth at which `raw` began to count.
    above: isize,
}

impl<'u, 'a> Entries<'u, 'a> {
    /// The depth of the next entry.
    fn depth(&self) -> isize {
        self.above.saturating_add(self.raw.next_depth())
    }

    /// Goes behind the children of an entry.
    fn skip(&mut self, unit: &'u Unit<'a>, entry: &Entry<'a>, depth: isize) -> gimli::Result<()> {
        if let Some(gimli::AttributeValue::UnitRef(sibling)) =
            entry.attr_value(gimli::DW_AT_sibling)
            && sibling > self.raw.next_offset()
        {
            self.raw = unit.entries_raw(Some(sibling))?;
            self.above = depth;
            return Ok(());
        }
        while !self.raw.is_empty() && self.depth() > depth {
            if let Some(abbreviation) = self.raw.read_abbreviation()? {
                self.raw.skip_attributes(abbreviation.attributes())?;
            }
        }
        Ok(())
    }
}

fn item<'a>(
    dwarf: &Dwarf<'a>,
    number: u32,
    unit: &Unit<'a>,
    entry: &Entry<'a>,
    kind: Kind,
    scope: Option<u32>,
) -> Option<Item<'a>> {
    let is_set = |name| {
        matches!(
            entry.attr_value(name),
            Some(gimli::AttributeValue::Flag(true))
        )
    };
    let target = |name| dwarf.target(number, entry, name);
    let origin =
        target(gimli::DW_AT_abstract_origin).or_else(|| target(gimli::DW_AT_specification));
    let name = dwarf.text(unit, entry, gimli::DW_AT_name);
    let is_named = name.is_some() || origin.is_some();
    let is_scope = matches!(kind, Kind::Namespace | Kind::Struct | Kind::Union);
    if !is_named && !is_scope {
        return None;
    }
    let number_of = |name| entry.attr_value(name).and_then(|value| value.udata_value());
    let is_inline =
        number_of(gimli::DW_AT_inline).or_else(|| match entry.attr_value(gimli::DW_AT_inline) {
            Some(gimli::AttributeValue::Inline(how)) => Some(how.0.into()),
            _ => None,
        });
    let has_code = || entry.has_attr(gimli::DW_AT_low_pc) || entry.has_attr(gimli::DW_AT_ranges);
    let is_declaration = match kind {
        Kind::Function => !has_code(),
        Kind::Variable => {
            let has_value = entry.has_attr(gimli::DW_AT_const_value);
            entry.tag() == gimli::DW_TAG_member
                || !(entry.has_attr(gimli::DW_AT_location) || has_value)
        }
        _ => is_set(gimli::DW_AT_declaration),
    };
    Some(Item {
        offset: u32::try_from(entry.offset().0).ok()?,
        kind,
        name: name.unwrap_or(if origin.is_some() { "" } else { ANONYMOUS }),
        scope,
        origin,
        is_declaration,
        // 1 and 3: inlined.
        is_inline: is_inline.is_some_and(|how| how & 1 != 0),
        print: (
            number_of(gimli::DW_AT_byte_size).unwrap_or(0),
            number_of(gimli::DW_AT_decl_line).unwrap_or(0),
        ),
    })
}

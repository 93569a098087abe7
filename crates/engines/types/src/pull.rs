//! Entries of DWARF to nodes.

use std::rc::Rc;

use gimli::AttributeValue;

use crate::MEMBERS_MAX;
use crate::dwarf::{At, Entry, Reader, Unit};
use crate::graph::Types;
use crate::index::Kind;
use crate::node::{Arm, Encoding, Member, Node, PointerKind, RecordKind, TypeId, Variants};

/// Children of an entry, read one after the other.
struct Children<'u, 'a> {
    raw: gimli::EntriesRaw<'u, Reader<'a>>,
    count: usize,
}

impl<'u, 'a> Children<'u, 'a> {
    fn of(unit: &'u Unit<'a>, entry: &Entry<'a>) -> Option<Self> {
        let mut raw = unit.entries_raw(Some(entry.offset())).ok()?;
        let abbreviation = raw.read_abbreviation().ok()??;
        raw.skip_attributes(abbreviation.attributes()).ok()?;
        abbreviation
            .has_children()
            .then_some(Self { raw, count: 0 })
    }
}

impl<'a> Iterator for Children<'_, 'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        while !self.raw.is_empty() && self.raw.next_depth() > 0 && self.count < MEMBERS_MAX {
            let depth = self.raw.next_depth();
            if depth > 1 {
                let abbreviation = self.raw.read_abbreviation().ok()?;
                if let Some(abbreviation) = abbreviation {
                    self.raw.skip_attributes(abbreviation.attributes()).ok()?;
                }
                continue;
            }
            let mut entry = Entry::default();
            if self.raw.read_entry(&mut entry).ok()? {
                self.count = self.count.saturating_add(1);
                return Some(entry);
            }
        }
        None
    }
}

/// The children of an entry.
pub(crate) fn children<'a>(unit: &Unit<'a>, entry: &Entry<'a>) -> Vec<Entry<'a>> {
    Children::of(unit, entry).into_iter().flatten().collect()
}

pub(crate) fn number(entry: &Entry<'_>, name: gimli::DwAt) -> Option<u64> {
    entry.attr_value(name)?.udata_value()
}

pub(crate) fn is_set(entry: &Entry<'_>, name: gimli::DwAt) -> bool {
    matches!(entry.attr_value(name), Some(AttributeValue::Flag(true)))
}

/// A constant, extended by its sign where its form has one. A plain constant of a fixed size has none.
fn constant(entry: &Entry<'_>, name: gimli::DwAt, is_signed: bool) -> Option<i128> {
    let wide = |value: u64, bits: u32| {
        let shift = 64_u32.saturating_sub(bits);
        match is_signed {
            true => i128::from((value << shift).cast_signed() >> shift),
            false => i128::from(value),
        }
    };
    Some(match entry.attr_value(name)? {
        AttributeValue::Data1(value) => wide(value.into(), 8),
        AttributeValue::Data2(value) => wide(value.into(), 16),
        AttributeValue::Data4(value) => wide(value.into(), 32),
        AttributeValue::Data8(value) => wide(value, 64),
        AttributeValue::Sdata(value) => value.into(),
        AttributeValue::Udata(value) => value.into(),
        AttributeValue::Block(block) => {
            let bytes: [u8; 16] = block.slice().try_into().ok()?;
            i128::from_le_bytes(bytes)
        }
        _ => return None,
    })
}

/// An entry that becomes a node.
struct Source<'t, 'a> {
    types: &'t Types<'a>,
    at: At,
    unit: Rc<Unit<'a>>,
    entry: Entry<'a>,
}

/// The node of an entry.
pub(crate) fn node(types: &Types<'_>, at: At) -> Node {
    let broken = || Node::Unknown("a broken reference".into());
    let Some((unit, entry)) = types.dwarf().and_then(|dwarf| dwarf.entry(at)) else {
        return broken();
    };
    let source = Source {
        types,
        at,
        unit,
        entry,
    };
    source.node()
}

impl<'a> Source<'_, 'a> {
    fn text(&self, entry: &Entry<'a>) -> Option<Rc<str>> {
        let text = self
            .types
            .dwarf()?
            .text(&self.unit, entry, gimli::DW_AT_name);
        text.map(Into::into)
    }

    /// The name behind those of its scopes.
    fn name(&self) -> Option<Rc<str>> {
        self.text(&self.entry)?;
        let name = self.types.qualified(self.at)?;
        Some(name.into())
    }

    fn ty(&self, entry: &Entry<'a>) -> TypeId {
        self.types.type_of(self.at.unit, entry)
    }

    fn size(&self) -> u64 {
        number(&self.entry, gimli::DW_AT_byte_size).unwrap_or(0)
    }

    fn node(&self) -> Node {
        let to = || self.ty(&self.entry);
        let pointer = |kind| Node::Pointer {
            to: to(),
            size: number(&self.entry, gimli::DW_AT_byte_size)
                .unwrap_or_else(|| self.unit.header.address_size().into()),
            kind,
        };
        let qualified = |qualifier| Node::Qualified {
            qualifier,
            to: to(),
        };
        match self.entry.tag() {
            gimli::DW_TAG_base_type => self.base(),
            gimli::DW_TAG_pointer_type => pointer(PointerKind::Pointer),
            gimli::DW_TAG_reference_type => pointer(PointerKind::Reference),
            gimli::DW_TAG_rvalue_reference_type => pointer(PointerKind::RvalueReference),
            gimli::DW_TAG_const_type => qualified("const"),
            gimli::DW_TAG_volatile_type => qualified("volatile"),
            gimli::DW_TAG_restrict_type => qualified("restrict"),
            gimli::DW_TAG_atomic_type => qualified("_Atomic"),
            gimli::DW_TAG_typedef => Node::Typedef {
                name: self.name().unwrap_or_default(),
                to: to(),
            },
            gimli::DW_TAG_array_type => self.array(),
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type => {
                self.record(RecordKind::Struct, Kind::Struct)
            }
            gimli::DW_TAG_union_type => self.record(RecordKind::Union, Kind::Union),
            gimli::DW_TAG_enumeration_type => self.enumeration(),
            gimli::DW_TAG_subroutine_type | gimli::DW_TAG_subprogram => self.function(),
            gimli::DW_TAG_unspecified_type => match self.text(&self.entry) {
                Some(name) => Node::Unknown(name),
                None => Node::Void,
            },
            gimli::DW_TAG_ptr_to_member_type => Node::Unknown("a pointer to a member".into()),
            other => Node::Unknown(other.to_string().into()),
        }
    }

    fn base(&self) -> Node {
        let name = self.text(&self.entry).unwrap_or_default();
        let size = self.size();
        let Some(AttributeValue::Encoding(encoding)) = self.entry.attr_value(gimli::DW_AT_encoding)
        else {
            return Node::Unknown(name);
        };
        let encoding = match encoding {
            gimli::DW_ATE_float => return Node::Float { name, size },
            gimli::DW_ATE_signed => Encoding::Signed,
            gimli::DW_ATE_unsigned | gimli::DW_ATE_address => Encoding::Unsigned,
            gimli::DW_ATE_boolean => Encoding::Bool,
            gimli::DW_ATE_signed_char => Encoding::SignedChar,
            gimli::DW_ATE_unsigned_char => Encoding::UnsignedChar,
            gimli::DW_ATE_UTF | gimli::DW_ATE_UCS | gimli::DW_ATE_ASCII => Encoding::Unicode,
            _ => return Node::Unknown(name),
        };
        if size > 16 {
            return Node::Unknown(name);
        }
        Node::Int {
            name,
            size,
            encoding,
        }
    }

    fn array(&self) -> Node {
        let ranges = children(&self.unit, &self.entry).into_iter();
        let ranges = ranges.filter(|child| child.tag() == gimli::DW_TAG_subrange_type);
        let counts = ranges.map(|range| {
            let count = number(&range, gimli::DW_AT_count);
            let upper = || constant(&range, gimli::DW_AT_upper_bound, true);
            let by_bound = || {
                let lower = constant(&range, gimli::DW_AT_lower_bound, true).unwrap_or(0);
                let count = upper()?.checked_sub(lower)?.checked_add(1)?;
                u64::try_from(count).ok()
            };
            count.or_else(by_bound)
        });
        let counts: Vec<_> = counts.take(crate::DEPTH_MAX).collect();
        let mut of = self.ty(&self.entry);
        let (first, rest) = match counts.split_first() {
            Some((first, rest)) => (*first, rest),
            None => (None, &[][..]),
        };
        for count in rest.iter().rev() {
            of = self.types.add(Node::Array { of, count: *count });
        }
        Node::Array { of, count: first }
    }

    fn record(&self, kind: RecordKind, named: Kind) -> Node {
        if let Some(node) = self.forward(named) {
            return node;
        }
        let mut members = Vec::new();
        let mut variants = None;
        for child in children(&self.unit, &self.entry) {
            match child.tag() {
                gimli::DW_TAG_member | gimli::DW_TAG_inheritance => {
                    members.extend(self.member(&child));
                }
                gimli::DW_TAG_variant_part => variants = Some(Rc::new(self.variants(&child))),
                _ => {}
            }
        }
        Node::Record {
            kind,
            name: self.name(),
            size: self.size(),
            members: members.into(),
            variants,
        }
    }

    /// The node of a declaration.
    fn forward(&self, kind: Kind) -> Option<Node> {
        if !is_set(&self.entry, gimli::DW_AT_declaration) {
            return None;
        }
        // A unit of one type has it, and the unit that uses it refers to it by signature.
        if let Some(to) =
            self.types
                .dwarf()?
                .target(self.at.unit, &self.entry, gimli::DW_AT_signature)
        {
            return Some(self.types.node(self.types.promise(to)));
        }
        let name = self.name()?;
        Some(Node::Forward { kind, name })
    }

    fn member(&self, entry: &Entry<'a>) -> Option<Member> {
        // A static member is a declaration without a place; so is the member of a virtual base.
        if is_set(entry, gimli::DW_AT_external) || is_set(entry, gimli::DW_AT_declaration) {
            return None;
        }
        let bit_size = number(entry, gimli::DW_AT_bit_size);
        let is_base = entry.tag() == gimli::DW_TAG_inheritance;
        let ty = self.ty(entry);
        let start = match entry.attr_value(gimli::DW_AT_data_member_location) {
            None => 0,
            Some(AttributeValue::Exprloc(expression)) => self.offset_of(expression)?,
            Some(value) => value.udata_value()?,
        };
        let start = start.checked_mul(8)?;
        let bit_offset = match (
            number(entry, gimli::DW_AT_data_bit_offset),
            number(entry, gimli::DW_AT_bit_offset),
        ) {
            (Some(offset), _) => start.checked_add(offset)?,
            // Up to DWARF 3 it counts from the most significant bit of the storage unit.
            (None, Some(offset)) => {
                let storage = number(entry, gimli::DW_AT_byte_size).or_else(|| self.types.size(ty));
                let end = start.checked_add(storage?.checked_mul(8)?)?;
                end.checked_sub(offset)?.checked_sub(bit_size?)?
            }
            (None, None) => start,
        };
        let name = match is_base {
            true => Some(self.types.name(ty).into()),
            false => self.text(entry),
        };
        Some(Member {
            name,
            ty,
            bit_offset,
            bit_size,
            is_base,
            is_artificial: is_set(entry, gimli::DW_AT_artificial),
        })
    }

    /// DWARF 2 writes an offset as a program that adds it.
    fn offset_of(&self, expression: gimli::Expression<Reader<'a>>) -> Option<u64> {
        let mut operations = expression.operations(self.unit.encoding());
        match (operations.next().ok()??, operations.next().ok()?) {
            (gimli::Operation::PlusConstant { value }, None) => Some(value),
            _ => None,
        }
    }

    fn variants(&self, part: &Entry<'a>) -> Variants {
        let dwarf = self.types.dwarf();
        let target = dwarf.and_then(|dwarf| dwarf.target(self.at.unit, part, gimli::DW_AT_discr));
        let entry = target.and_then(|at| dwarf?.entry(at));
        let discriminant = entry.and_then(|(_, entry)| self.member(&entry));
        let is_signed = discriminant.as_ref().is_some_and(|member| {
            matches!(self.types.bare(member.ty), Node::Int { encoding, .. } if encoding.is_signed())
        });
        let variants = children(&self.unit, part).into_iter();
        let variants = variants.filter(|child| child.tag() == gimli::DW_TAG_variant);
        let arms = variants.map(|variant| Arm {
            values: self.discriminants(&variant, is_signed),
            members: children(&self.unit, &variant)
                .iter()
                .filter(|child| child.tag() == gimli::DW_TAG_member)
                .filter_map(|child| self.member(child))
                .collect(),
        });
        Variants {
            discriminant,
            arms: arms.collect(),
        }
    }

    fn discriminants(&self, variant: &Entry<'a>, is_signed: bool) -> Vec<(i128, i128)> {
        if let Some(value) = constant(variant, gimli::DW_AT_discr_value, is_signed) {
            return vec![(value, value)];
        }
        let Some(AttributeValue::Block(list)) = variant.attr_value(gimli::DW_AT_discr_list) else {
            return Vec::new();
        };
        let mut list = list;
        let mut all = Vec::new();
        while all.len() < MEMBERS_MAX {
            let mut value = || match is_signed {
                true => gimli::Reader::read_sleb128(&mut list).map(i128::from).ok(),
                false => gimli::Reader::read_uleb128(&mut list).map(i128::from).ok(),
            };
            let Some(tag) = value() else { break };
            let Some(first) = value() else { break };
            let last = match tag {
                0 => first,
                _ => value().unwrap_or(first),
            };
            all.push((first, last));
        }
        all
    }

    fn enumeration(&self) -> Node {
        if let Some(node) = self.forward(Kind::Enum) {
            return node;
        }
        let children = children(&self.unit, &self.entry);
        let values = children
            .iter()
            .filter(|child| child.tag() == gimli::DW_TAG_enumerator);
        let by_type = match self.types.bare(self.ty(&self.entry)) {
            Node::Int { encoding, .. } => Some(encoding.is_signed()),
            _ => None,
        };
        // Without a type, a negative value says that there is a sign.
        let is_negative = |child: &&Entry<'_>| matches!(child.attr_value(gimli::DW_AT_const_value), Some(AttributeValue::Sdata(value)) if value < 0);
        let is_signed = by_type.unwrap_or_else(|| values.clone().any(|child| is_negative(&child)));
        let values = values.filter_map(|child| {
            let value = constant(child, gimli::DW_AT_const_value, is_signed)?;
            Some((self.text(child)?, value))
        });
        Node::Enum {
            name: self.name(),
            size: self.size(),
            is_signed,
            values: values.collect(),
        }
    }

    fn function(&self) -> Node {
        let children = children(&self.unit, &self.entry);
        let parameters = children
            .iter()
            .filter(|child| child.tag() == gimli::DW_TAG_formal_parameter);
        Node::Function {
            parameters: parameters.map(|child| self.ty(child)).collect(),
            returns: self.ty(&self.entry),
            is_variadic: children
                .iter()
                .any(|child| child.tag() == gimli::DW_TAG_unspecified_parameters),
        }
    }
}

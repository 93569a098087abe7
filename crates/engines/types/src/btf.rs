//! BTF: the types of a kernel, of its modules, and of programs built with `-gbtf`.
//!
//! A header, types one behind the other, and texts. Types are numbered from 1 in their order; those of a module go on from the kernel's, and so
//! do offsets of texts.

use std::rc::Rc;

use crate::MEMBERS_MAX;
use crate::bytes::{byte, half, part, text, word};
use crate::flat::{Declared, Flat, Signature};
use crate::graph::Types;
use crate::index::Kind;
use crate::node::{Encoding, Member, Node, PointerKind, RecordKind, TypeId};

const MAGIC: u16 = 0xeb9f;
/// Types that are read at most.
const TYPES_MAX: usize = 1 << 22;
const POINTER_LEN: u64 = 8;

const INT: u32 = 1;
const POINTER: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FORWARD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNCTION: u32 = 12;
const PROTOTYPE: u32 = 13;
const VARIABLE: u32 = 14;
const SECTION: u32 = 15;
const FLOAT: u32 = 16;
const DECLARATION_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

/// The types of a file.
#[derive(Debug)]
pub(crate) struct Btf<'a> {
    /// What the numbers of this one go on from.
    base: Option<Box<Btf<'a>>>,
    /// Where each type begins in `types`.
    starts: Vec<u32>,
    types: &'a [u8],
    texts: &'a [u8],
    first_number: u32,
    first_text: u32,
}

/// A type as it is stored: 12 bytes, and what its kind has behind them.
#[derive(Clone, Copy)]
struct Entry<'a> {
    name: u32,
    kind: u32,
    /// How many members, values or parameters.
    count: usize,
    flag: bool,
    /// Bytes, or a type.
    word: u32,
    rest: &'a [u8],
}

impl<'a> Entry<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let info = word(bytes, 4)?;
        let own = Self {
            name: word(bytes, 0)?,
            kind: (info >> 24) & 0x1f,
            count: usize::try_from(info & 0xffff).ok()?,
            flag: info >> 31 != 0,
            word: word(bytes, 8)?,
            rest: bytes.get(12..)?,
        };
        let rest = own.rest.get(..own.len()?)?;
        Some(Self { rest, ..own })
    }

    /// Bytes behind the first 12; `None` if the kind is not known: then nothing behind it can be found.
    fn len(&self) -> Option<usize> {
        let each = match self.kind {
            INT | VARIABLE | DECLARATION_TAG => return Some(4),
            ARRAY => return Some(12),
            STRUCT | UNION | SECTION | ENUM64 => 12,
            ENUM | PROTOTYPE => 8,
            POINTER | FORWARD | TYPEDEF | VOLATILE | CONST | RESTRICT | FUNCTION | FLOAT
            | TYPE_TAG => 0,
            _ => return None,
        };
        self.count.checked_mul(each)
    }

    /// What its kind has several of, each of so many bytes.
    fn all(&self, len: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.rest.chunks_exact(len).take(MEMBERS_MAX)
    }

    fn declares(&self) -> Option<Kind> {
        Some(match self.kind {
            INT | FLOAT => Kind::Base,
            STRUCT => Kind::Struct,
            UNION => Kind::Union,
            ENUM | ENUM64 if self.count > 0 => Kind::Enum,
            TYPEDEF => Kind::Typedef,
            FUNCTION => Kind::Function,
            VARIABLE => Kind::Variable,
            _ => return None,
        })
    }
}

impl<'a> Btf<'a> {
    /// The types that bytes hold; nothing if they are not BTF.
    pub(crate) fn open(bytes: &'a [u8], base: Option<Btf<'a>>) -> Option<Self> {
        // The third byte is the version.
        if half(bytes, 0)? != MAGIC || byte(bytes, 2)? != 1 {
            return None;
        }
        let body = bytes.get(usize::try_from(word(bytes, 4)?).ok()?..)?;
        let types = part(body, word(bytes, 8)?, word(bytes, 12)?)?;
        let texts = part(body, word(bytes, 16)?, word(bytes, 20)?)?;
        let (first_number, first_text) = match &base {
            Some(base) => (base.end_number(), base.end_text()),
            None => (1, 0),
        };
        let mut own = Self {
            base: base.map(Box::new),
            starts: Vec::new(),
            types,
            texts,
            first_number,
            first_text,
        };
        let mut at = 0_usize;
        while own.starts.len() < TYPES_MAX {
            let Some(entry) = types.get(at..).and_then(Entry::parse) else {
                break;
            };
            own.starts.push(u32::try_from(at).ok()?);
            at = at.checked_add(entry.rest.len())?.checked_add(12)?;
        }
        Some(own)
    }

    fn end_number(&self) -> u32 {
        let count = u32::try_from(self.starts.len()).unwrap_or(u32::MAX);
        self.first_number.saturating_add(count)
    }

    fn end_text(&self) -> u32 {
        let len = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.first_text.saturating_add(len)
    }

    fn entry(&self, number: u32) -> Option<Entry<'a>> {
        let Some(own) = number.checked_sub(self.first_number) else {
            return self.base.as_ref()?.entry(number);
        };
        let start = *self.starts.get(usize::try_from(own).ok()?)?;
        Entry::parse(self.types.get(usize::try_from(start).ok()?..)?)
    }

    fn text(&self, at: u32) -> Option<&'a str> {
        match at.checked_sub(self.first_text) {
            Some(own) => text(self.texts, own),
            None => self.base.as_ref()?.text(at),
        }
    }

    fn name(&self, entry: &Entry<'a>) -> Option<Rc<str>> {
        self.text(entry.name).map(Into::into)
    }

    fn integer(&self, entry: &Entry<'a>) -> Option<Node> {
        let name = self.text(entry.name).unwrap_or_default();
        let encoding = (word(entry.rest, 0)? >> 24) & 0xf;
        let is_signed = encoding & 1 != 0;
        let encoding = match (encoding & 4 != 0, entry.word == 1 && name.contains("char")) {
            (true, _) => Encoding::Bool,
            (false, true) if is_signed => Encoding::SignedChar,
            (false, true) => Encoding::UnsignedChar,
            (false, false) if is_signed => Encoding::Signed,
            (false, false) => Encoding::Unsigned,
        };
        (entry.word <= 16).then(|| Node::Int {
            name: name.into(),
            size: entry.word.into(),
            encoding,
        })
    }

    fn member(&self, types: &Types<'a>, record: &Entry<'a>, bytes: &[u8]) -> Option<Member> {
        let (name, ty, place) = (word(bytes, 0)?, word(bytes, 4)?, word(bytes, 8)?);
        // With the flag the upper byte has the bits; without it a bit-field's type has them.
        let (offset, bits) = match record.flag {
            true => (place & 0xff_ffff, place >> 24),
            false => (place, 0),
        };
        let (shift, bits) = match (bits, self.entry(ty)) {
            (0, Some(of)) if of.kind == INT => {
                let data = word(of.rest, 0)?;
                let own = data & 0xff;
                let is_whole = own == of.word.saturating_mul(8);
                ((data >> 16) & 0xff, if is_whole { 0 } else { own })
            }
            (bits, _) => (0, bits),
        };
        Some(Member {
            name: self.text(name).map(Into::into),
            ty: types.flat_type(ty),
            bit_offset: u64::from(offset).checked_add(shift.into())?,
            bit_size: (bits != 0).then_some(bits.into()),
            is_base: false,
            is_artificial: false,
        })
    }

    fn record(&self, types: &Types<'a>, kind: RecordKind, entry: &Entry<'a>) -> Node {
        let members = entry.all(12);
        let members = members.filter_map(|bytes| self.member(types, entry, bytes));
        Node::Record {
            kind,
            name: self.name(entry),
            size: entry.word.into(),
            members: members.collect(),
            variants: None,
        }
    }

    fn enumeration(&self, entry: &Entry<'a>) -> Option<Node> {
        let name = self.name(entry);
        if entry.count == 0 {
            let kind = Kind::Enum;
            return Some(Node::Forward { kind, name: name? });
        }
        let value = |bytes: &[u8]| {
            let low = word(bytes, 4)?;
            let number = match (entry.kind, entry.flag) {
                (ENUM, true) => i128::from(low.cast_signed()),
                (ENUM, false) => low.into(),
                (_, is_signed) => {
                    let whole = u64::from(low) | u64::from(word(bytes, 8)?) << 32;
                    match is_signed {
                        true => whole.cast_signed().into(),
                        false => whole.into(),
                    }
                }
            };
            Some((self.text(word(bytes, 0)?)?.into(), number))
        };
        let len = if entry.kind == ENUM { 8 } else { 12 };
        Some(Node::Enum {
            name,
            size: entry.word.into(),
            is_signed: entry.flag,
            values: entry.all(len).filter_map(value).collect(),
        })
    }

    fn prototype(&self, types: &Types<'a>, entry: &Entry<'a>) -> Signature {
        let mut own = Signature {
            parameters: Vec::new(),
            returns: types.flat_type(entry.word),
            is_variadic: false,
        };
        for bytes in entry.all(8) {
            let (Some(name), Some(ty)) = (word(bytes, 0), word(bytes, 4)) else {
                break;
            };
            if (name, ty) == (0, 0) {
                own.is_variadic = true;
                break;
            }
            let name = self.text(name).unwrap_or_default().into();
            own.parameters.push((name, types.flat_type(ty)));
        }
        own
    }
}

impl<'a> Flat<'a> for Btf<'a> {
    fn node(&self, types: &Types<'a>, number: u32) -> Option<Node> {
        let entry = self.entry(number)?;
        let to = types.flat_type(entry.word);
        let qualified = |qualifier| Some(Node::Qualified { qualifier, to });
        match entry.kind {
            INT => self.integer(&entry),
            FLOAT => Some(Node::Float {
                name: self.name(&entry).unwrap_or_default(),
                size: entry.word.into(),
            }),
            POINTER => Some(Node::Pointer {
                to,
                size: POINTER_LEN,
                kind: PointerKind::Pointer,
            }),
            ARRAY => {
                let count = word(entry.rest, 8)?;
                Some(Node::Array {
                    of: types.flat_type(word(entry.rest, 0)?),
                    count: (count != 0).then_some(count.into()),
                })
            }
            STRUCT => Some(self.record(types, RecordKind::Struct, &entry)),
            UNION => Some(self.record(types, RecordKind::Union, &entry)),
            ENUM | ENUM64 => self.enumeration(&entry),
            FORWARD => Some(Node::Forward {
                kind: match entry.flag {
                    true => Kind::Union,
                    false => Kind::Struct,
                },
                name: self.name(&entry)?,
            }),
            TYPEDEF => Some(Node::Typedef {
                name: self.name(&entry).unwrap_or_default(),
                to,
            }),
            VOLATILE => qualified("volatile"),
            CONST => qualified("const"),
            RESTRICT => qualified("restrict"),
            TYPE_TAG => Some(types.node(to)),
            PROTOTYPE => {
                let own = self.prototype(types, &entry);
                Some(Node::Function {
                    parameters: own.parameters.iter().map(|(_, ty)| *ty).collect(),
                    returns: own.returns,
                    is_variadic: own.is_variadic,
                })
            }
            _ => None,
        }
    }

    fn names(&self, each: &mut dyn FnMut(Declared<'a>)) {
        if let Some(base) = &self.base {
            base.names(each);
        }
        for number in self.first_number..self.end_number() {
            let Some(entry) = self.entry(number) else {
                continue;
            };
            if let Some((kind, name)) = entry.declares().zip(self.text(entry.name)) {
                each(Declared {
                    scopes: Vec::new(),
                    name,
                    kind,
                    number,
                });
            }
        }
    }

    fn variable(&self, types: &Types<'a>, number: u32) -> Option<(TypeId, Option<u64>)> {
        let entry = self.entry(number)?;
        // Its place is a number only in the sections of a file that is not linked.
        Some((types.flat_type(entry.word), None))
    }

    fn signature(&self, types: &Types<'a>, number: u32) -> Option<Signature> {
        let entry = self.entry(self.entry(number)?.word)?;
        (entry.kind == PROTOTYPE).then(|| self.prototype(types, &entry))
    }
}

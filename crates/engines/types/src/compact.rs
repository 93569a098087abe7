//! windlass's own type files: types and variables of one program, each once.
//!
//! ```text
//!   "wltypes1"  the build id (its length, one byte; 63 bytes)  counts and lengths, four bytes each:
//!   N types, M names, bytes of texts, bytes of types
//!   N + 1 offsets of types, four bytes each
//!   M names, 24 bytes each: its text, the name that it is in (from 1), its type; kind, one byte; three unused; address, eight bytes
//!   texts, each ends at a zero · types: a kind, one byte, and numbers as LEB128
//! ```
//! Types are numbered from 1; 0 is void. Nothing in a file is believed: offsets are checked as they are used.

use std::rc::Rc;

use crate::bytes::{byte, part, text, word};
use crate::flat::{Declared, Flat, Signature};
use crate::graph::Types;
use crate::index::Kind;
use crate::node::{Arm, Encoding, Member, Node, PointerKind, RecordKind, TypeId, Variants};
use crate::{DEPTH_MAX, MEMBERS_MAX};

pub(crate) const MAGIC: &[u8; 8] = b"wltypes1";
/// Where the counts are.
pub(crate) const HEAD: usize = 72;
pub(crate) const NAME_LEN: usize = 24;

pub(crate) const INT: u8 = 1;
pub(crate) const FLOAT: u8 = 2;
pub(crate) const POINTER: u8 = 3;
pub(crate) const ARRAY: u8 = 4;
pub(crate) const RECORD: u8 = 5;
pub(crate) const ENUM: u8 = 6;
pub(crate) const TYPEDEF: u8 = 7;
pub(crate) const QUALIFIED: u8 = 8;
pub(crate) const FUNCTION: u8 = 9;
pub(crate) const FORWARD: u8 = 10;
pub(crate) const UNKNOWN: u8 = 11;

/// Each list in the order of the numbers that stand for its values.
pub(crate) const ENCODINGS: [Encoding; 6] = [
    Encoding::Signed,
    Encoding::Unsigned,
    Encoding::Bool,
    Encoding::SignedChar,
    Encoding::UnsignedChar,
    Encoding::Unicode,
];
pub(crate) const POINTERS: [PointerKind; 3] = [
    PointerKind::Pointer,
    PointerKind::Reference,
    PointerKind::RvalueReference,
];
pub(crate) const QUALIFIERS: [&str; 4] = ["const", "volatile", "restrict", "_Atomic"];
pub(crate) const KINDS: [Kind; 7] = [
    Kind::Struct,
    Kind::Union,
    Kind::Enum,
    Kind::Typedef,
    Kind::Base,
    Kind::Function,
    Kind::Variable,
];

/// The build id that a type file is of; `None` if it is no type file.
pub fn build_id(file: &[u8]) -> Option<&[u8]> {
    let len = file.strip_prefix(MAGIC)?.first()?;
    file.get(9..)?.get(..usize::from(*len).min(63))
}

/// A type file.
pub(crate) struct Compact<'a> {
    offsets: &'a [u8],
    names: &'a [u8],
    texts: &'a [u8],
    types: &'a [u8],
}

/// Numbers one behind the other; zeros behind the end.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn next(&mut self) -> u64 {
        let mut value = 0_u64;
        for shift in (0..64_u32).step_by(7) {
            let Some((first, rest)) = self.0.split_first() else {
                return 0;
            };
            self.0 = rest;
            value |= u64::from(first & 0x7f).unbounded_shl(shift);
            if first & 0x80 == 0 {
                break;
            }
        }
        value
    }

    fn number(&mut self) -> u32 {
        u32::try_from(self.next()).unwrap_or(0)
    }

    /// How many follow: none if there are fewer bytes than that.
    fn count(&mut self) -> usize {
        let count = usize::try_from(self.next()).unwrap_or(0);
        if count > self.0.len() {
            0
        } else {
            count.min(MEMBERS_MAX)
        }
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> Option<T> {
        list.get(usize::try_from(self.next()).ok()?).copied()
    }

    fn signed(&mut self) -> i128 {
        let (high, low) = (self.next(), self.next());
        (i128::from(high.cast_signed()) << 64) | i128::from(low)
    }
}

impl<'a> Compact<'a> {
    pub(crate) fn open(file: &'a [u8]) -> Option<Self> {
        build_id(file)?;
        let count = |at: usize| word(file, HEAD.checked_add(at)?);
        let (types, names, texts, bytes) = (count(0)?, count(4)?, count(8)?, count(12)?);
        let body = file.get(HEAD.checked_add(16)?..)?;
        let mut at = 0_u32;
        let mut take = |len: u32| {
            let found = part(body, at, len);
            at = at.checked_add(len)?;
            found
        };
        Some(Self {
            offsets: take(types.checked_add(1)?.checked_mul(4)?)?,
            names: take(names.checked_mul(u32::try_from(NAME_LEN).ok()?)?)?,
            texts: take(texts)?,
            types: take(bytes)?,
        })
    }

    fn text(&self, at: u32) -> Option<Rc<str>> {
        text(self.texts, at).map(Into::into)
    }

    fn numbers(&self, number: u32) -> Option<(u8, Numbers<'a>)> {
        let at = usize::try_from(number.checked_sub(1)?)
            .ok()?
            .checked_mul(4)?;
        let (start, end) = (
            word(self.offsets, at)?,
            word(self.offsets, at.checked_add(4)?)?,
        );
        let bytes = part(self.types, start, end.checked_sub(start)?)?;
        let (kind, rest) = bytes.split_first()?;
        Some((*kind, Numbers(rest)))
    }

    fn name_entry(&self, number: usize) -> Option<&'a [u8]> {
        let at = number.checked_mul(NAME_LEN)?;
        self.names.get(at..at.checked_add(NAME_LEN)?)
    }

    fn member(&self, types: &Types<'a>, from: &mut Numbers<'a>) -> Member {
        let flags = from.next();
        Member {
            name: self.text(from.number()),
            ty: types.flat_type(from.number()),
            bit_offset: from.next(),
            bit_size: (flags & 4 != 0).then(|| from.next()),
            is_base: flags & 1 != 0,
            is_artificial: flags & 2 != 0,
        }
    }

    fn members(&self, types: &Types<'a>, from: &mut Numbers<'a>) -> Rc<[Member]> {
        let count = from.count();
        (0..count).map(|_| self.member(types, from)).collect()
    }

    fn variants(&self, types: &Types<'a>, from: &mut Numbers<'a>) -> Variants {
        let discriminant = (from.next() == 1).then(|| self.member(types, from));
        let count = from.count();
        let arm = |_| {
            let values = from.count();
            Arm {
                values: (0..values)
                    .map(|_| (from.signed(), from.signed()))
                    .collect(),
                members: self.members(types, from),
            }
        };
        Variants {
            discriminant,
            arms: (0..count).map(arm).collect(),
        }
    }

    fn record(&self, types: &Types<'a>, from: &mut Numbers<'a>) -> Node {
        let kind = match from.next() {
            0 => RecordKind::Struct,
            _ => RecordKind::Union,
        };
        Node::Record {
            kind,
            name: self.text(from.number()),
            size: from.next(),
            members: self.members(types, from),
            variants: (from.next() == 1).then(|| Rc::new(self.variants(types, from))),
        }
    }

    fn enumeration(&self, from: &mut Numbers<'a>) -> Node {
        let (name, size, is_signed) = (self.text(from.number()), from.next(), from.next() == 1);
        let count = from.count();
        let values = (0..count).map(|_| {
            let name = self.text(from.number()).unwrap_or_default();
            (name, from.signed())
        });
        Node::Enum {
            name,
            size,
            is_signed,
            values: values.collect(),
        }
    }
}

impl<'a> Flat<'a> for Compact<'a> {
    fn node(&self, types: &Types<'a>, number: u32) -> Option<Node> {
        let (kind, mut from) = self.numbers(number)?;
        let from = &mut from;
        Some(match kind {
            INT => Node::Int {
                name: self.text(from.number()).unwrap_or_default(),
                size: from.next().min(16),
                encoding: from.of(&ENCODINGS)?,
            },
            FLOAT => Node::Float {
                name: self.text(from.number()).unwrap_or_default(),
                size: from.next(),
            },
            POINTER => Node::Pointer {
                to: types.flat_type(from.number()),
                size: from.next(),
                kind: from.of(&POINTERS)?,
            },
            ARRAY => Node::Array {
                of: types.flat_type(from.number()),
                count: (from.next() == 1).then(|| from.next()),
            },
            RECORD => self.record(types, from),
            ENUM => self.enumeration(from),
            TYPEDEF => Node::Typedef {
                name: self.text(from.number()).unwrap_or_default(),
                to: types.flat_type(from.number()),
            },
            QUALIFIED => Node::Qualified {
                qualifier: from.of(&QUALIFIERS)?,
                to: types.flat_type(from.number()),
            },
            FUNCTION => {
                let (returns, is_variadic) = (types.flat_type(from.number()), from.next() == 1);
                let count = from.count();
                Node::Function {
                    parameters: (0..count).map(|_| types.flat_type(from.number())).collect(),
                    returns,
                    is_variadic,
                }
            }
            FORWARD => Node::Forward {
                kind: from.of(&KINDS)?,
                name: self.text(from.number())?,
            },
            UNKNOWN => Node::Unknown(self.text(from.number()).unwrap_or_default()),
            _ => return None,
        })
    }

    fn names(&self, each: &mut dyn FnMut(Declared<'a>)) {
        let name = |entry: &'a [u8]| text(self.texts, word(entry, 0)?);
        for (number, entry) in (0_u32..).zip(self.names.chunks_exact(NAME_LEN)) {
            let kind = byte(entry, 12).and_then(|kind| KINDS.get(usize::from(kind)));
            // A namespace has no kind.
            let Some((name_of, kind)) = name(entry).zip(kind.copied()) else {
                continue;
            };
            let mut scopes = Vec::new();
            let mut outer = word(entry, 4);
            while let Some(scope) = outer.and_then(|number| number.checked_sub(1)) {
                let found = usize::try_from(scope).ok();
                let Some(found) = found.and_then(|number| self.name_entry(number)) else {
                    break;
                };
                scopes.extend(name(found));
                if scopes.len() >= DEPTH_MAX {
                    break;
                }
                outer = word(found, 4);
            }
            each(Declared {
                scopes,
                name: name_of,
                kind,
                number: match kind {
                    Kind::Variable => number,
                    _ => word(entry, 8).unwrap_or(0),
                },
            });
        }
    }

    fn variable(&self, types: &Types<'a>, number: u32) -> Option<(TypeId, Option<u64>)> {
        let entry = self.name_entry(usize::try_from(number).ok()?)?;
        let (low, high) = (word(entry, 16)?, word(entry, 20)?);
        let address = u64::from(low) | u64::from(high) << 32;
        Some((types.flat_type(word(entry, 8)?), Some(address)))
    }

    fn signature(&self, _: &Types<'a>, _: u32) -> Option<Signature> {
        None
    }
}

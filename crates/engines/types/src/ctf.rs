//! CTF version 3: the types of programs built with `-gctf`.
//!
//! A header, tables of objects and functions, types one behind the other, and texts. Types are numbered from 1 in their order. The body may be
//! compressed. An archive has several of them; that which the others build upon is read.

use std::borrow::Cow;
use std::rc::Rc;

use crate::MEMBERS_MAX;
use crate::bytes::{byte, half, part, text, word};
use crate::flat::{Declared, Flat, Signature};
use crate::graph::Types;
use crate::index::Kind;
use crate::node::{Encoding, Member, Node, PointerKind, RecordKind, TypeId};

const MAGIC: u16 = 0xdff2;
/// What the byte behind the magic number is in version 3.
const VERSION: u8 = 4;
const HEAD: usize = 52;
const COMPRESSED: u8 = 1;
/// Texts that lie in the program are those of its dynamic loader.
const DYNAMIC: u8 = 8;
const ARCHIVE: [u8; 8] = 0x8b47_f2a4_d762_3eeb_u64.to_le_bytes();
/// The name of the member of an archive that the others build upon.
const PARENT: &str = ".ctf";
/// Members of an archive that are looked at.
const ARCHIVED_MAX: u32 = 65_536;
/// Types that are read at most.
const TYPES_MAX: usize = 1 << 22;
const POINTER_LEN: u64 = 8;
/// Bytes of a record from which its members have offsets of 64 bits.
const LARGE: u64 = 1 << 29;

/// The first number of an object that a symbol names.
const OBJECTS: u32 = 1 << 31;
const SYMBOL_LEN: usize = 24;
const OBJECT_SYMBOL: u8 = 1;
const FUNCTION_SYMBOL: u8 = 2;
/// The section of symbols that are numbers.
const ABSOLUTE: u16 = 0xfff1;

const INT: u32 = 1;
const FLOAT: u32 = 2;
const POINTER: u32 = 3;
const ARRAY: u32 = 4;
const FUNCTION: u32 = 5;
const STRUCT: u32 = 6;
const UNION: u32 = 7;
const ENUM: u32 = 8;
const FORWARD: u32 = 9;
const TYPEDEF: u32 = 10;
const VOLATILE: u32 = 11;
const CONST: u32 = 12;
const RESTRICT: u32 = 13;
const SLICE: u32 = 14;

/// Gives what becomes of compressed bytes, which are so many then.
pub type Inflate<'f> = &'f dyn Fn(&[u8], u64) -> Option<Vec<u8>>;

/// The CTF of a section as it is read: out of its archive, inflated.
pub fn plain_ctf<'b>(section: &'b [u8], inflate: Inflate<'_>) -> Option<Cow<'b, [u8]>> {
    let bytes = match section.starts_with(&ARCHIVE) {
        true => archived(section)?,
        false => section,
    };
    if byte(bytes, 3)? & COMPRESSED == 0 {
        return Some(Cow::Borrowed(bytes));
    }
    let len = u64::from(word(bytes, 44)?).checked_add(word(bytes, 48)?.into())?;
    let mut whole = bytes.get(..HEAD)?.to_vec();
    if let Some(flags) = whole.get_mut(3) {
        *flags &= !COMPRESSED;
    }
    whole.extend(inflate(bytes.get(HEAD..)?, len)?);
    Some(Cow::Owned(whole))
}

/// The member of an archive that the others build upon.
fn archived(archive: &[u8]) -> Option<&[u8]> {
    // Magic number, model, count, where names are, where members are: 8 bytes each, as all that follows.
    let (count, names, members) = (word(archive, 16)?, word(archive, 24)?, word(archive, 32)?);
    (0..count.min(ARCHIVED_MAX)).find_map(|number| {
        let at = usize::try_from(number)
            .ok()?
            .checked_mul(16)?
            .checked_add(40)?;
        let name = text(archive, names.checked_add(word(archive, at)?)?)?;
        let at = members.checked_add(word(archive, at.checked_add(8)?)?)?;
        let len = word(archive, usize::try_from(at).ok()?)?;
        (name == PARENT).then(|| part(archive, at.checked_add(8)?, len))?
    })
}

/// The types of a file.
pub(crate) struct Ctf<'a> {
    starts: Vec<u32>,
    types: &'a [u8],
    texts: &'a [u8],
    /// Texts that lie in the program.
    outer: &'a [u8],
    /// The table of symbols whose order is that of objects and functions without names.
    symbols: &'a [u8],
    /// Names, if there are any, and types.
    objects: (&'a [u8], &'a [u8]),
    functions: (&'a [u8], &'a [u8]),
    variables: &'a [u8],
}

#[derive(Clone, Copy)]
struct Entry<'a> {
    name: u32,
    kind: u32,
    count: usize,
    size: u64,
    /// Its type, if it has one instead of a size.
    ty: u32,
    rest: &'a [u8],
    /// Bytes of all of it.
    len: usize,
}

impl<'a> Entry<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (info, ty) = (word(bytes, 4)?, word(bytes, 8)?);
        let (size, head) = match ty {
            u32::MAX => {
                let (high, low) = (word(bytes, 12)?, word(bytes, 16)?);
                (u64::from(high) << 32 | u64::from(low), 20_usize)
            }
            size => (size.into(), 12),
        };
        let mut own = Self {
            name: word(bytes, 0)?,
            kind: info >> 26,
            count: usize::try_from(info & 0x1ff_ffff).ok()?,
            size,
            ty,
            rest: bytes.get(head..)?,
            len: head,
        };
        let len = own.rest_len()?;
        own.rest = own.rest.get(..len)?;
        own.len = head.checked_add(len)?;
        Some(own)
    }

    /// Bytes behind the head; `None` if the kind is not known.
    fn rest_len(&self) -> Option<usize> {
        match self.kind {
            INT | FLOAT => Some(4),
            ARRAY => Some(12),
            SLICE => Some(8),
            // An even number of them.
            FUNCTION => self.count.checked_next_multiple_of(2)?.checked_mul(4),
            STRUCT | UNION => self.count.checked_mul(self.member_len()),
            ENUM => self.count.checked_mul(8),
            0 | POINTER | FORWARD | TYPEDEF | VOLATILE | CONST | RESTRICT => Some(0),
            _ => None,
        }
    }

    fn member_len(&self) -> usize {
        if self.size < LARGE { 12 } else { 16 }
    }

    fn declares(&self) -> Option<Kind> {
        Some(match self.kind {
            INT | FLOAT if self.size > 0 => Kind::Base,
            STRUCT => Kind::Struct,
            UNION => Kind::Union,
            ENUM => Kind::Enum,
            TYPEDEF => Kind::Typedef,
            _ => return None,
        })
    }
}

impl<'a> Ctf<'a> {
    /// The types that a section has, as [`plain_ctf`] gives it. `load` gives the program's symbols and their names.
    pub(crate) fn open(bytes: &'a [u8], load: &dyn Fn(&'static str) -> &'a [u8]) -> Option<Self> {
        let flags = byte(bytes, 3)?;
        if half(bytes, 0)? != MAGIC || byte(bytes, 2)? != VERSION || flags & COMPRESSED != 0 {
            return None;
        }
        let at = |field: usize| word(bytes, field);
        let body = bytes.get(HEAD..)?;
        let between = |first: usize, end: usize| {
            let (first, end) = (at(first)?, at(end)?);
            part(body, first, end.checked_sub(first)?)
        };
        let (symbols, outer) = match flags & DYNAMIC != 0 {
            true => (load(".dynsym"), load(".dynstr")),
            false => (load(".symtab"), load(".strtab")),
        };
        let mut own = Self {
            starts: Vec::new(),
            types: between(40, 44)?,
            texts: part(body, at(44)?, at(48)?)?,
            outer,
            symbols,
            objects: (between(28, 32)?, between(20, 24)?),
            functions: (between(32, 36)?, between(24, 28)?),
            variables: between(36, 40)?,
        };
        let mut start = 0_usize;
        while own.starts.len() < TYPES_MAX {
            let Some(entry) = own.types.get(start..).and_then(Entry::parse) else {
                break;
            };
            own.starts.push(u32::try_from(start).ok()?);
            start = start.checked_add(entry.len)?;
        }
        Some(own)
    }

    fn entry(&self, number: u32) -> Option<Entry<'a>> {
        let at = usize::try_from(number.checked_sub(1)?).ok()?;
        let start = usize::try_from(*self.starts.get(at)?).ok()?;
        Entry::parse(self.types.get(start..)?)
    }

    fn text(&self, at: u32) -> Option<&'a str> {
        let inner = at & 0x7fff_ffff;
        match at == inner {
            true => text(self.texts, inner),
            false => text(self.outer, inner),
        }
    }

    fn number(&self, entry: &Entry<'a>) -> Option<Node> {
        let name: Rc<str> = self.text(entry.name).unwrap_or_default().into();
        let encoding = word(entry.rest, 0)? >> 24;
        if entry.size == 0 {
            return Some(Node::Void);
        }
        if entry.size > 16 {
            return None;
        }
        if entry.kind == FLOAT {
            // Single, double, long double; the others have two parts.
            let is_plain = matches!(encoding, 1 | 2 | 6);
            let size = entry.size;
            return Some(match is_plain {
                true => Node::Float { name, size },
                false => Node::Unknown(name),
            });
        }
        let encoding = match (encoding & 4 != 0, encoding & 2 != 0, encoding & 1 != 0) {
            (true, ..) => Encoding::Bool,
            (_, true, true) => Encoding::SignedChar,
            (_, true, false) => Encoding::UnsignedChar,
            (_, _, true) => Encoding::Signed,
            (_, _, false) => Encoding::Unsigned,
        };
        Some(Node::Int {
            name,
            size: entry.size,
            encoding,
        })
    }

    fn member(&self, types: &Types<'a>, bytes: &[u8]) -> Option<Member> {
        let (name, second, ty) = (word(bytes, 0)?, word(bytes, 4)?, word(bytes, 8)?);
        let offset = match bytes.len() {
            12 => second.into(),
            _ => u64::from(second) << 32 | u64::from(word(bytes, 12)?),
        };
        // A bit-field's type is a slice of another.
        let slice = self.entry(ty).filter(|entry| entry.kind == SLICE);
        let (ty, shift, bits) = match slice {
            Some(slice) => (
                word(slice.rest, 0)?,
                half(slice.rest, 4)?,
                Some(half(slice.rest, 6)?),
            ),
            None => (ty, 0, None),
        };
        Some(Member {
            name: self.text(name).map(Into::into),
            ty: types.flat_type(ty),
            bit_offset: offset.checked_add(shift.into())?,
            bit_size: bits.map(Into::into),
            is_base: false,
            is_artificial: false,
        })
    }

    fn record(&self, types: &Types<'a>, kind: RecordKind, entry: &Entry<'a>) -> Node {
        let members = entry.rest.chunks_exact(entry.member_len());
        let members = members.take(MEMBERS_MAX);
        Node::Record {
            kind,
            name: self.text(entry.name).map(Into::into),
            size: entry.size,
            members: members
                .filter_map(|bytes| self.member(types, bytes))
                .collect(),
            variants: None,
        }
    }

    fn enumeration(&self, entry: &Entry<'a>) -> Node {
        let values = entry.rest.chunks_exact(8).take(MEMBERS_MAX);
        let values: Rc<[(Rc<str>, i128)]> = values
            .filter_map(|bytes| {
                let name = self.text(word(bytes, 0)?)?;
                Some((name.into(), word(bytes, 4)?.cast_signed().into()))
            })
            .collect();
        Node::Enum {
            name: self.text(entry.name).map(Into::into),
            size: entry.size.min(8),
            is_signed: values.iter().any(|(_, value)| *value < 0),
            values,
        }
    }

    /// Names, types and addresses of objects or functions.
    fn listed(&self, kind: u8, (names, types): (&'a [u8], &'a [u8])) -> Vec<(&'a str, u32, u64)> {
        let types = types.chunks_exact(4).filter_map(|ty| word(ty, 0));
        if !names.is_empty() {
            let names = names
                .chunks_exact(4)
                .filter_map(|name| self.text(word(name, 0)?));
            return names.zip(types).map(|(name, ty)| (name, ty, 0)).collect();
        }
        let symbols = self.symbols.chunks_exact(SYMBOL_LEN);
        let symbols = symbols.filter_map(|symbol| {
            let name = text(self.outer, word(symbol, 0)?)?;
            let (low, high) = (word(symbol, 8)?, word(symbol, 12)?);
            let address = u64::from(low) | u64::from(high) << 32;
            let is_absolute = half(symbol, 6)? == ABSOLUTE && address == 0;
            let is_it = byte(symbol, 4)? & 0xf == kind && half(symbol, 6)? != 0 && !is_absolute;
            let is_bound = matches!(name, "_START_" | "_END_");
            (is_it && !is_bound).then_some((name, address))
        });
        let all = symbols
            .zip(types)
            .map(|((name, address), ty)| (name, ty, address));
        all.filter(|(_, ty, _)| *ty != 0).collect()
    }
}

impl<'a> Flat<'a> for Ctf<'a> {
    fn node(&self, types: &Types<'a>, number: u32) -> Option<Node> {
        let entry = self.entry(number)?;
        let to = types.flat_type(entry.ty);
        let name = || self.text(entry.name).unwrap_or_default().into();
        let qualified = |qualifier| Some(Node::Qualified { qualifier, to });
        match entry.kind {
            INT | FLOAT => self.number(&entry),
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
            FUNCTION => {
                let own = self.signature(types, number)?;
                Some(Node::Function {
                    parameters: own.parameters.iter().map(|(_, ty)| *ty).collect(),
                    returns: own.returns,
                    is_variadic: own.is_variadic,
                })
            }
            STRUCT => Some(self.record(types, RecordKind::Struct, &entry)),
            UNION => Some(self.record(types, RecordKind::Union, &entry)),
            ENUM => Some(self.enumeration(&entry)),
            FORWARD => Some(Node::Forward {
                kind: match entry.ty {
                    UNION => Kind::Union,
                    ENUM => Kind::Enum,
                    _ => Kind::Struct,
                },
                name: name(),
            }),
            TYPEDEF => Some(Node::Typedef { name: name(), to }),
            VOLATILE => qualified("volatile"),
            CONST => qualified("const"),
            RESTRICT => qualified("restrict"),
            SLICE => Some(types.node(types.flat_type(word(entry.rest, 0)?))),
            _ => None,
        }
    }

    fn names(&self, each: &mut dyn FnMut(Declared<'a>)) {
        let mut declare = |name, kind, number| {
            each(Declared {
                scopes: Vec::new(),
                name,
                kind,
                number,
            });
        };
        let count = u32::try_from(self.starts.len()).unwrap_or(0);
        for number in 1..=count {
            let entry = self.entry(number);
            let name = entry.and_then(|entry| Some((self.text(entry.name)?, entry.declares()?)));
            if let Some((name, kind)) = name {
                declare(name, kind, number);
            }
        }
        // A function has the number of its type, a variable its own among those of its kind.
        for (name, ty, _) in self.listed(FUNCTION_SYMBOL, self.functions) {
            declare(name, Kind::Function, ty);
        }
        let objects = self.listed(OBJECT_SYMBOL, self.objects);
        for (number, (name, ..)) in (OBJECTS..).zip(objects) {
            declare(name, Kind::Variable, number);
        }
        for pair in self.variables.chunks_exact(8) {
            let name = word(pair, 0).and_then(|name| self.text(name));
            if let Some((name, ty)) = name.zip(word(pair, 4)) {
                declare(name, Kind::Variable, ty);
            }
        }
    }

    fn variable(&self, types: &Types<'a>, number: u32) -> Option<(TypeId, Option<u64>)> {
        let Some(object) = number.checked_sub(OBJECTS) else {
            return Some((types.flat_type(number), None));
        };
        let objects = self.listed(OBJECT_SYMBOL, self.objects);
        let (_, ty, address) = *objects.get(usize::try_from(object).ok()?)?;
        Some((types.flat_type(ty), (address != 0).then_some(address)))
    }

    fn signature(&self, types: &Types<'a>, number: u32) -> Option<Signature> {
        let entry = self.entry(number).filter(|entry| entry.kind == FUNCTION)?;
        let parameters = entry
            .rest
            .chunks_exact(4)
            .take(entry.count.min(MEMBERS_MAX));
        let mut parameters: Vec<u32> = parameters.filter_map(|bytes| word(bytes, 0)).collect();
        // That more may follow is a last one without a type.
        let is_variadic = parameters.last() == Some(&0);
        if is_variadic {
            parameters.pop();
        }
        let parameters = parameters.into_iter();
        Some(Signature {
            parameters: parameters
                .map(|ty| (Rc::from(""), types.flat_type(ty)))
                .collect(),
            returns: types.flat_type(entry.ty),
            is_variadic,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A compressed body is inflated to the length that its header says, and of an archive the common member is taken; broken ones give nothing.
    #[test]
    fn archives_and_compression() {
        let mut whole = vec![0; HEAD];
        whole[..4].copy_from_slice(&[0xf2, 0xdf, VERSION, COMPRESSED]);
        whole[44] = 3;
        whole[48] = 2;
        whole.extend(b"body");
        let inflate = |bytes: &[u8], len: u64| {
            assert_eq!((bytes, len), (&b"body"[..], 5));
            Some(b"whole".to_vec())
        };
        let plain = plain_ctf(&whole, &inflate).expect("CTF");
        assert_eq!((plain[3], &plain[HEAD..]), (0, &b"whole"[..]));
        assert_eq!(plain_ctf(&whole, &|_, _| None), None);
        let mut archive = ARCHIVE.to_vec();
        // Model, one member, names at 56, members at 64; the member's name at 0 and its bytes at 0.
        for word in [2_u64, 1, 56, 64, 0, 0] {
            archive.extend(word.to_le_bytes());
        }
        archive.extend(b".ctf\0\0\0\0");
        archive.extend((whole.len() as u64).to_le_bytes());
        archive.extend(&whole);
        assert_eq!(plain_ctf(&archive, &inflate).as_deref(), Some(&*plain));
        for len in 0..archive.len() {
            let _ = plain_ctf(&archive[..len], &|_, _| None);
        }
    }
}

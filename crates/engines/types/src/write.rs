//! Makes a type file of all types and variables of a program.

use std::collections::HashMap;

use crate::compact::{
    ARRAY, ENCODINGS, ENUM, FLOAT, FORWARD, FUNCTION, HEAD, INT, KINDS, MAGIC, POINTER, POINTERS,
    QUALIFIED, QUALIFIERS, RECORD, TYPEDEF, UNKNOWN,
};
use crate::graph::Types;
use crate::index::{Kind, LookupError};
use crate::node::{Member, Node, RecordKind, TypeId, Variants};
use crate::place::Place;
use crate::{DEPTH_MAX, index};

/// What two types of one name must have in common to be one: kind, name, size, members.
type Key = (u8, String, u64, Vec<(u64, Option<String>)>);

struct Writer<'t, 'a> {
    from: &'t Types<'a>,
    texts: Vec<u8>,
    known_texts: HashMap<String, u32>,
    numbers: HashMap<TypeId, u32>,
    named: HashMap<Key, u32>,
    unnamed: HashMap<Vec<u8>, u32>,
    types: Vec<Vec<u8>>,
    waiting: Vec<(u32, TypeId)>,
    names: Vec<u8>,
    scopes: HashMap<String, u32>,
    depth: usize,
}

fn put(into: &mut Vec<u8>, value: u64) {
    let mut rest = value;
    loop {
        let low = u8::try_from(rest & 0x7f).unwrap_or(0);
        rest >>= 7;
        if rest == 0 {
            into.push(low);
            return;
        }
        into.push(low | 0x80);
    }
}

fn put_signed(into: &mut Vec<u8>, value: i128) {
    let [high, low] = [value >> 64, value].map(|part| part.cast_unsigned() & u128::from(u64::MAX));
    put(into, u64::try_from(high).unwrap_or(0));
    put(into, u64::try_from(low).unwrap_or(0));
}

fn place_of<T: PartialEq>(list: &[T], value: &T) -> u64 {
    let at = list.iter().position(|other| other == value);
    at.unwrap_or(0) as u64
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

impl Writer<'_, '_> {
    fn text(&mut self, text: &str) -> u32 {
        if let Some(at) = self.known_texts.get(text) {
            return *at;
        }
        let at = count(self.texts.len());
        self.texts.extend(text.bytes().filter(|byte| *byte != 0));
        self.texts.push(0);
        self.known_texts.insert(text.to_owned(), at);
        at
    }

    fn put_text(&mut self, into: &mut Vec<u8>, text: Option<&str>) {
        // The text at 0 is empty.
        let at = text.map_or(0, |text| self.text(text));
        put(into, at.into());
    }

    fn put_type(&mut self, into: &mut Vec<u8>, ty: TypeId) {
        let number = self.number(ty);
        put(into, number.into());
    }

    fn add(&mut self) -> u32 {
        self.types.push(Vec::new());
        count(self.types.len())
    }

    /// What tells a type of a name from others of that name.
    fn key(&self, node: &Node) -> Option<Key> {
        Some(match node {
            Node::Record {
                name: Some(name),
                size,
                members,
                ..
            } => {
                let shape = members.iter();
                let shape = shape
                    .map(|member| (member.bit_offset, member.name.as_deref().map(str::to_owned)));
                (RECORD, name.to_string(), *size, shape.collect())
            }
            Node::Enum {
                name: Some(name),
                size,
                values,
                ..
            } => (
                ENUM,
                name.to_string(),
                *size,
                vec![(values.len() as u64, None)],
            ),
            Node::Typedef { name, to } => {
                let size = self.from.size(*to).unwrap_or(0);
                (
                    TYPEDEF,
                    name.to_string(),
                    size,
                    vec![(0, Some(self.from.name(*to)))],
                )
            }
            _ => return None,
        })
    }

    /// The number of a type, which is written later if it has a name.
    fn number(&mut self, ty: TypeId) -> u32 {
        if ty == TypeId::VOID || self.depth >= DEPTH_MAX {
            return 0;
        }
        if let Some(number) = self.numbers.get(&ty) {
            return *number;
        }
        let node = self.from.node(ty);
        let number = match (self.key(&node), &node) {
            (_, Node::Void) => 0,
            (Some(key), _) => match self.named.get(&key) {
                Some(number) => *number,
                None => {
                    let number = self.add();
                    self.named.insert(key, number);
                    self.waiting.push((number, ty));
                    number
                }
            },
            (None, Node::Record { .. } | Node::Enum { .. }) => {
                let number = self.add();
                self.waiting.push((number, ty));
                number
            }
            (None, _) => {
                self.depth = self.depth.saturating_add(1);
                let bytes = self.encoded(&node);
                self.depth = self.depth.saturating_sub(1);
                match self.unnamed.get(&bytes) {
                    Some(number) => *number,
                    None => {
                        let number = self.add();
                        self.unnamed.insert(bytes.clone(), number);
                        self.set(number, bytes);
                        number
                    }
                }
            }
        };
        self.numbers.insert(ty, number);
        number
    }

    fn set(&mut self, number: u32, bytes: Vec<u8>) {
        let at = usize::try_from(number).unwrap_or(0).saturating_sub(1);
        if let Some(place) = self.types.get_mut(at) {
            *place = bytes;
        }
    }

    fn member(&mut self, into: &mut Vec<u8>, member: &Member) {
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        let flags = flag(member.is_base, 1)
            | flag(member.is_artificial, 2)
            | flag(member.bit_size.is_some(), 4);
        put(into, flags);
        self.put_text(into, member.name.as_deref());
        self.put_type(into, member.ty);
        put(into, member.bit_offset);
        if let Some(bits) = member.bit_size {
            put(into, bits);
        }
    }

    fn members(&mut self, into: &mut Vec<u8>, members: &[Member]) {
        put(into, members.len() as u64);
        for member in members {
            self.member(into, member);
        }
    }

    fn variants(&mut self, into: &mut Vec<u8>, variants: &Variants) {
        put(into, variants.discriminant.is_some().into());
        if let Some(member) = &variants.discriminant {
            self.member(into, member);
        }
        put(into, variants.arms.len() as u64);
        for arm in variants.arms.iter() {
            put(into, arm.values.len() as u64);
            for (first, last) in &arm.values {
                put_signed(into, *first);
                put_signed(into, *last);
            }
            self.members(into, &arm.members);
        }
    }

    fn encoded(&mut self, node: &Node) -> Vec<u8> {
        let mut out = Vec::new();
        let into = &mut out;
        match node {
            Node::Void => {}
            Node::Int {
                name,
                size,
                encoding,
            } => {
                into.push(INT);
                self.put_text(into, Some(name));
                put(into, *size);
                put(into, place_of(&ENCODINGS, encoding));
            }
            Node::Float { name, size } => {
                into.push(FLOAT);
                self.put_text(into, Some(name));
                put(into, *size);
            }
            Node::Pointer { to, size, kind } => {
                into.push(POINTER);
                self.put_type(into, *to);
                put(into, *size);
                put(into, place_of(&POINTERS, kind));
            }
            Node::Array { of, count } => {
                into.push(ARRAY);
                self.put_type(into, *of);
                put(into, count.is_some().into());
                put(into, count.unwrap_or(0));
            }
            Node::Record { .. } | Node::Enum { .. } => self.compound(into, node),
            Node::Typedef { name, to } => {
                into.push(TYPEDEF);
                self.put_text(into, Some(name));
                self.put_type(into, *to);
            }
            Node::Qualified { qualifier, to } => {
                into.push(QUALIFIED);
                put(into, place_of(&QUALIFIERS, qualifier));
                self.put_type(into, *to);
            }
            Node::Function {
                parameters,
                returns,
                is_variadic,
            } => {
                into.push(FUNCTION);
                self.put_type(into, *returns);
                put(into, (*is_variadic).into());
                put(into, parameters.len() as u64);
                for ty in parameters.iter() {
                    self.put_type(into, *ty);
                }
            }
            Node::Forward { kind, name } => {
                into.push(FORWARD);
                put(into, place_of(&KINDS, kind));
                self.put_text(into, Some(name));
            }
            Node::Unknown(what) => {
                into.push(UNKNOWN);
                self.put_text(into, Some(what));
            }
        }
        out
    }

    fn compound(&mut self, into: &mut Vec<u8>, node: &Node) {
        match node {
            Node::Record {
                kind,
                name,
                size,
                members,
                variants,
            } => {
                into.push(RECORD);
                put(into, (*kind == RecordKind::Union).into());
                self.put_text(into, name.as_deref());
                put(into, *size);
                self.members(into, members);
                put(into, variants.is_some().into());
                if let Some(variants) = variants {
                    self.variants(into, variants);
                }
            }
            Node::Enum {
                name,
                size,
                is_signed,
                values,
            } => {
                into.push(ENUM);
                self.put_text(into, name.as_deref());
                put(into, *size);
                put(into, (*is_signed).into());
                put(into, values.len() as u64);
                for (name, value) in values.iter() {
                    self.put_text(into, Some(name));
                    put_signed(into, *value);
                }
            }
            _ => {}
        }
    }

    /// The number of a scope, from 1; 0: none.
    fn scope(&mut self, name: &str) -> u32 {
        if name.is_empty() {
            return 0;
        }
        if let Some(number) = self.scopes.get(name) {
            return *number;
        }
        let number = self.name(name, None, 0, 0);
        self.scopes.insert(name.to_owned(), number);
        number
    }

    /// Adds a name, and returns its number, from 1.
    fn name(&mut self, qualified: &str, kind: Option<Kind>, ty: u32, address: u64) -> u32 {
        let last = index::last(qualified);
        let outer = qualified.strip_suffix(last).unwrap_or_default();
        let outer = self.scope(outer.strip_suffix("::").unwrap_or_default());
        let text = self.text(last);
        for word in [text, outer, ty] {
            self.names.extend(word.to_le_bytes());
        }
        let kind = kind.and_then(|kind| KINDS.iter().position(|other| *other == kind));
        let kind = kind.and_then(|kind| u8::try_from(kind).ok());
        self.names.extend([kind.unwrap_or(u8::MAX), 0, 0, 0]);
        self.names.extend(address.to_le_bytes());
        count(self.names.len().div_euclid(crate::compact::NAME_LEN))
    }

    fn file(mut self, build_id: &[u8]) -> Vec<u8> {
        while let Some((number, ty)) = self.waiting.pop() {
            let node = self.from.node(ty);
            let bytes = self.encoded(&node);
            self.set(number, bytes);
        }
        let mut out = MAGIC.to_vec();
        let id = build_id.get(..build_id.len().min(63)).unwrap_or_default();
        out.push(u8::try_from(id.len()).unwrap_or(0));
        out.extend(id);
        out.resize(HEAD, 0);
        let names = self.names.len().div_euclid(crate::compact::NAME_LEN);
        let bytes: usize = self.types.iter().map(Vec::len).sum();
        for len in [self.types.len(), names, self.texts.len(), bytes] {
            out.extend(count(len).to_le_bytes());
        }
        let mut offset = 0_u32;
        for bytes in &self.types {
            out.extend(offset.to_le_bytes());
            offset = offset.saturating_add(count(bytes.len()));
        }
        out.extend(offset.to_le_bytes());
        out.extend(self.names);
        out.extend(self.texts);
        out.extend(self.types.into_iter().flatten());
        out
    }
}

impl Types<'_> {
    /// A type file of the program: all its types, and its variables with their addresses.
    ///
    /// # Errors
    /// [`LookupError::Interrupted`].
    pub fn to_file(&self, build_id: &[u8]) -> Result<Vec<u8>, LookupError> {
        let mut writer = Writer {
            from: self,
            texts: vec![0],
            known_texts: HashMap::from([(String::new(), 0)]),
            numbers: HashMap::new(),
            named: HashMap::new(),
            unnamed: HashMap::new(),
            types: Vec::new(),
            waiting: Vec::new(),
            names: Vec::new(),
            scopes: HashMap::new(),
            depth: 0,
        };
        let index = self.names()?;
        let mut known = std::collections::HashSet::new();
        for name in index.all() {
            let (ty, address) = match name.kind {
                Kind::Function | Kind::Namespace => continue,
                Kind::Variable => match self.located(name.at) {
                    Some((ty, Place::Address(address))) => (ty, address),
                    _ => continue,
                },
                _ => (self.promise(name.at), 0),
            };
            let number = writer.number(ty);
            let qualified = index.qualified(name);
            if known.insert((qualified.clone(), name.kind, number, address)) {
                writer.name(&qualified, Some(name.kind), number, address);
            }
        }
        Ok(writer.file(build_id))
    }
}

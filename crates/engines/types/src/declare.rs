//! Types that a person writes: C's declarations of `struct`, `union`, `enum` and `typedef`.
//!
//! # Model
//! A declaration names types of the debug data, types declared before it, and C's own. Records are laid out as the System V ABI does for 64
//! bits. Lines of the preprocessor and comments are skipped, so a preprocessed header can be given. What is declared here is found before
//! the debug data's type of the same name.

use std::collections::HashMap;

use crate::graph::Types;
use crate::index::{Found, Kind};
use crate::node::{Encoding, Member, Node, RecordKind, TypeId};
use crate::{DEPTH_MAX, MEMBERS_MAX};

/// Bytes of text at most.
const TEXT_MAX: usize = 16 << 20;

/// Why declarations are not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct DeclareError {
    /// Where in the text, in bytes.
    pub at: usize,
    /// What is wrong there.
    pub why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'t> {
    Word(&'t str),
    Number(u64),
    Sign(char),
    End,
}

fn number(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
    match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None if digits.len() > 1 && digits.starts_with('0') => u64::from_str_radix(digits, 8).ok(),
        None => digits.parse().ok(),
    }
}

/// The text behind spaces, comments and lines of the preprocessor.
fn skip(text: &str) -> &str {
    let mut rest = text;
    loop {
        let next = rest.trim_start();
        let line = next.starts_with("//") || next.starts_with('#');
        let end = match (line, next.strip_prefix("/*")) {
            (true, _) => next.find('\n').unwrap_or(next.len()),
            (_, Some(inner)) => inner
                .find("*/")
                .map_or(next.len(), |at| at.saturating_add(4)),
            _ => return next,
        };
        rest = next.get(end..).unwrap_or_default();
    }
}

fn tokens(text: &str) -> Result<Vec<(usize, Token<'_>)>, DeclareError> {
    let mut all = Vec::new();
    let mut rest = skip(text);
    while let Some(first) = rest.chars().next() {
        let at = text.len().saturating_sub(rest.len());
        let is_word = |c: char| c == '_' || c.is_ascii_alphanumeric();
        let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (token, len) = match rest.get(..len).filter(|word| !word.is_empty()) {
            Some(word) if first.is_ascii_digit() => {
                let why = || format!("\"{word}\" is no number");
                let value = number(word).ok_or_else(|| DeclareError { at, why: why() })?;
                (Token::Number(value), len)
            }
            Some(word) => (Token::Word(word), len),
            None => (Token::Sign(first), first.len_utf8()),
        };
        all.push((at, token));
        rest = skip(rest.get(len..).unwrap_or_default());
    }
    all.push((text.len(), Token::End));
    Ok(all)
}

/// C's own types: words in any order, and the names of `<stdint.h>` and `<stddef.h>`.
fn basic(words: &[&str]) -> Option<Node> {
    let has = |word| words.contains(&word);
    let is_unsigned = has("unsigned");
    let longs = words.iter().filter(|word| **word == "long").count();
    let int = |name: &str, size, encoding| Node::Int {
        name: name.into(),
        size,
        encoding,
    };
    let sign = match is_unsigned {
        true => Encoding::Unsigned,
        false => Encoding::Signed,
    };
    Some(match words {
        ["float"] => Node::Float {
            name: "float".into(),
            size: 4,
        },
        ["double"] => Node::Float {
            name: "double".into(),
            size: 8,
        },
        ["_Bool" | "bool"] => int("_Bool", 1, Encoding::Bool),
        [
            name @ ("int8_t" | "int16_t" | "int32_t" | "int64_t" | "ssize_t" | "intptr_t"
            | "ptrdiff_t"),
        ] => int(name, fixed(name), Encoding::Signed),
        [name @ ("uint8_t" | "uint16_t" | "uint32_t" | "uint64_t" | "size_t" | "uintptr_t")] => {
            int(name, fixed(name), Encoding::Unsigned)
        }
        _ if has("double") => Node::Float {
            name: "long double".into(),
            size: 16,
        },
        _ if has("char") && is_unsigned => int("unsigned char", 1, Encoding::UnsignedChar),
        _ if has("char") && has("signed") => int("signed char", 1, Encoding::SignedChar),
        _ if has("char") => int("char", 1, Encoding::SignedChar),
        _ if has("short") && is_unsigned => int("short unsigned int", 2, sign),
        _ if has("short") => int("short int", 2, sign),
        _ if longs > 1 && is_unsigned => int("long long unsigned int", 8, sign),
        _ if longs > 1 => int("long long int", 8, sign),
        _ if longs == 1 && is_unsigned => int("long unsigned int", 8, sign),
        _ if longs == 1 => int("long int", 8, sign),
        _ if is_unsigned => int("unsigned int", 4, sign),
        _ if has("int") || has("signed") => int("int", 4, sign),
        _ => return None,
    })
}

/// Bytes of a type whose name has its bits.
fn fixed(name: &str) -> u64 {
    let bits = [("8_", 1), ("16_", 2), ("32_", 4)];
    let found = bits.iter().find(|(part, _)| name.contains(part));
    found.map_or(8, |(_, bytes)| *bytes)
}

const BASIC: [&str; 10] = [
    "char", "short", "int", "long", "float", "double", "signed", "unsigned", "_Bool", "bool",
];
const QUALIFIERS: [&str; 8] = [
    "const",
    "volatile",
    "restrict",
    "_Atomic",
    "extern",
    "static",
    "inline",
    "__extension__",
];

type Parsed<T> = Result<T, DeclareError>;

struct Parser<'p, 'a> {
    types: &'p Types<'a>,
    tokens: Vec<(usize, Token<'p>)>,
    at: usize,
    depth: usize,
    /// Alignments of records that are declared here.
    aligned: HashMap<TypeId, u64>,
    found: Vec<Found>,
}

impl<'p> Parser<'p, '_> {
    fn peek(&self) -> Token<'p> {
        self.tokens
            .get(self.at)
            .map_or(Token::End, |(_, token)| *token)
    }

    fn step(&mut self) -> Token<'p> {
        let token = self.peek();
        self.at = self.at.saturating_add(1);
        token
    }

    fn fail<T>(&self, why: impl Into<String>) -> Parsed<T> {
        let last = self.tokens.last().map_or(0, |(at, _)| *at);
        Err(DeclareError {
            at: self.tokens.get(self.at).map_or(last, |(at, _)| *at),
            why: why.into(),
        })
    }

    fn takes(&mut self, sign: char) -> bool {
        let is_it = self.peek() == Token::Sign(sign);
        if is_it {
            self.at = self.at.saturating_add(1);
        }
        is_it
    }

    fn takes_word(&mut self, word: &str) -> bool {
        let is_it = self.peek() == Token::Word(word);
        if is_it {
            self.at = self.at.saturating_add(1);
        }
        is_it
    }

    fn expect(&mut self, sign: char) -> Parsed<()> {
        match self.takes(sign) {
            true => Ok(()),
            false => self.fail(format!("'{sign}' is missing")),
        }
    }

    /// Goes behind the sign that closes what was opened.
    fn skip_to(&mut self, open: char, close: char) -> Parsed<()> {
        let mut depth = 1_usize;
        while depth > 0 {
            match self.step() {
                Token::End => return self.fail(format!("'{close}' is missing")),
                Token::Sign(sign) if sign == open => depth = depth.saturating_add(1),
                Token::Sign(sign) if sign == close => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        Ok(())
    }

    /// Skips attributes; whether one of them was `packed`.
    fn attributes(&mut self) -> Parsed<bool> {
        let mut is_packed = false;
        while self.takes_word("__attribute__") {
            self.expect('(')?;
            let first = self.at;
            self.skip_to('(', ')')?;
            let inner = self.tokens.get(first..self.at).unwrap_or_default();
            let has = |word| inner.iter().any(|(_, token)| *token == Token::Word(word));
            is_packed |= has("packed") || has("__packed__");
            if has("aligned") || has("__aligned__") {
                return self.fail("an attribute that aligns is not understood");
            }
        }
        Ok(is_packed)
    }

    fn declare(&mut self, kind: Kind, name: &str, ty: TypeId) {
        self.types.set_declared(kind, name, ty);
        self.found.push(Found {
            kind,
            name: name.to_owned(),
        });
    }

    fn file(&mut self) -> Parsed<()> {
        while self.peek() != Token::End {
            if self.takes(';') {
                continue;
            }
            let is_typedef = self.takes_word("typedef");
            let base = self.specifiers()?;
            while !self.takes(';') {
                let (name, ty) = self.declarator(base)?;
                match name {
                    Some(name) if is_typedef => {
                        let node = Node::Typedef {
                            name: name.into(),
                            to: ty,
                        };
                        let ty = self.types.add(node);
                        self.declare(Kind::Typedef, name, ty);
                    }
                    Some(_) => {}
                    None => return self.fail("a name is missing"),
                }
                self.attributes()?;
                if !self.takes(',') && self.peek() != Token::Sign(';') {
                    return self.fail("';' is missing");
                }
            }
        }
        Ok(())
    }

    /// What stands before the names of a declaration.
    fn specifiers(&mut self) -> Parsed<TypeId> {
        let mut words = Vec::new();
        loop {
            self.attributes()?;
            let Token::Word(word) = self.peek() else {
                break;
            };
            match word {
                _ if QUALIFIERS.contains(&word) => self.at = self.at.saturating_add(1),
                "struct" | "union" | "enum" if words.is_empty() => {
                    self.at = self.at.saturating_add(1);
                    let ty = self.tagged(word)?;
                    while matches!(self.peek(), Token::Word(word) if QUALIFIERS.contains(&word)) {
                        self.at = self.at.saturating_add(1);
                    }
                    return Ok(ty);
                }
                _ if BASIC.contains(&word) => {
                    words.push(word);
                    self.at = self.at.saturating_add(1);
                }
                name if words.is_empty() => {
                    words.push(name);
                    self.at = self.at.saturating_add(1);
                    let known = self.named(name);
                    while matches!(self.peek(), Token::Word(word) if QUALIFIERS.contains(&word)) {
                        self.at = self.at.saturating_add(1);
                    }
                    return match known {
                        Some(ty) => Ok(ty),
                        None => {
                            self.at = self.at.saturating_sub(1);
                            self.fail(format!("there is no type \"{name}\""))
                        }
                    };
                }
                _ => break,
            }
        }
        match basic(&words) {
            Some(node) => Ok(self.types.add(node)),
            None => self.fail("a type is missing"),
        }
    }

    fn named(&self, name: &str) -> Option<TypeId> {
        if name == "void" {
            return Some(TypeId::VOID);
        }
        let known = self.types.named(Kind::Typedef, name).ok();
        known.or_else(|| basic(&[name]).map(|node| self.types.add(node)))
    }

    /// A `struct`, `union` or `enum`: its definition, or a name of one.
    fn tagged(&mut self, keyword: &str) -> Parsed<TypeId> {
        let is_packed = self.attributes()?;
        let name = match self.peek() {
            Token::Word(name) => {
                self.at = self.at.saturating_add(1);
                Some(name)
            }
            _ => None,
        };
        let kind = match keyword {
            "struct" => Kind::Struct,
            "union" => Kind::Union,
            _ => Kind::Enum,
        };
        if !self.takes('{') {
            let Some(name) = name else {
                return self.fail(format!("{keyword} has neither a name nor members"));
            };
            let forward = Node::Forward {
                kind,
                name: name.into(),
            };
            return Ok(self.types.add(forward));
        }
        if self.depth >= DEPTH_MAX {
            return self.fail("types too deep");
        }
        self.depth = self.depth.saturating_add(1);
        let ty = match kind {
            Kind::Enum => self.enumeration(name)?,
            Kind::Union => self.record(RecordKind::Union, name, is_packed)?,
            _ => self.record(RecordKind::Struct, name, is_packed)?,
        };
        self.depth = self.depth.saturating_sub(1);
        if let Some(name) = name {
            self.declare(kind, name, ty);
        }
        Ok(ty)
    }

    fn enumeration(&mut self, name: Option<&str>) -> Parsed<TypeId> {
        let mut values = Vec::new();
        let mut next = 0_i128;
        while !self.takes('}') {
            let Token::Word(word) = self.step() else {
                return self.fail("a name is missing");
            };
            if self.takes('=') {
                let is_negative = self.takes('-');
                let Token::Number(value) = self.step() else {
                    return self.fail("a number is missing");
                };
                let value = i128::from(value);
                next = if is_negative {
                    value.wrapping_neg()
                } else {
                    value
                };
            }
            values.push((word.into(), next));
            next = next.saturating_add(1);
            if values.len() > MEMBERS_MAX {
                return self.fail("too many values");
            }
            if !self.takes(',') && self.peek() != Token::Sign('}') {
                return self.fail("'}' is missing");
            }
        }
        let is_signed = values.iter().any(|(_, value)| *value < 0);
        let is_wide = values.iter().any(|(_, value)| {
            i32::try_from(*value).is_err() && (is_signed || u32::try_from(*value).is_err())
        });
        Ok(self.types.add(Node::Enum {
            name: name.map(Into::into),
            size: if is_wide { 8 } else { 4 },
            is_signed,
            values: values.into(),
        }))
    }

    fn record(&mut self, kind: RecordKind, name: Option<&str>, is_packed: bool) -> Parsed<TypeId> {
        // An attribute behind the brace says how the members in it lie.
        let (first, mut is_packed) = (self.at, is_packed);
        self.skip_to('{', '}')?;
        is_packed |= self.attributes()?;
        let end = std::mem::replace(&mut self.at, first);
        let mut layout = Layout {
            kind,
            is_packed,
            bits: 0,
            end: 0,
            align: 1,
        };
        let mut members = Vec::new();
        while !self.takes('}') {
            let base = self.specifiers()?;
            if self.takes(';') {
                members.push(self.place(&mut layout, None, base, None)?);
                continue;
            }
            while !self.takes(';') {
                let (name, ty) = match self.peek() {
                    Token::Sign(':') => (None, base),
                    _ => self.declarator(base)?,
                };
                let bits = match self.takes(':') {
                    true => match self.step() {
                        Token::Number(bits) => Some(bits),
                        _ => return self.fail("a number of bits is missing"),
                    },
                    false => None,
                };
                self.attributes()?;
                let member = self.place(&mut layout, name, ty, bits)?;
                // A bit-field without a name only moves the next one.
                if name.is_some() {
                    members.push(member);
                }
                if members.len() > MEMBERS_MAX {
                    return self.fail("too many members");
                }
                if !self.takes(',') && self.peek() != Token::Sign(';') {
                    return self.fail("';' is missing");
                }
            }
        }
        self.at = end;
        let bytes = layout.end.max(layout.bits).div_ceil(8);
        let Some(size) = bytes.checked_next_multiple_of(layout.align) else {
            return self.fail("too large");
        };
        let ty = self.types.add(Node::Record {
            kind,
            name: name.map(Into::into),
            size,
            members: members.into(),
            variants: None,
        });
        self.aligned.insert(ty, layout.align);
        Ok(ty)
    }

    fn place(
        &self,
        layout: &mut Layout,
        name: Option<&str>,
        ty: TypeId,
        bits: Option<u64>,
    ) -> Parsed<Member> {
        let size = match self.types.bare(ty) {
            Node::Array { count: None, .. } => Some(0),
            _ => self.types.size(ty),
        };
        let Some(size) = size else {
            return self.fail(format!("{} is not complete", self.types.name(ty)));
        };
        let align = self.align(ty, DEPTH_MAX);
        let Some(bit_offset) = layout.place(size, align, bits, name.is_some()) else {
            return self.fail("no place for a member");
        };
        Ok(Member {
            name: name.map(Into::into),
            ty,
            bit_offset,
            bit_size: bits,
            is_base: false,
            is_artificial: false,
        })
    }

    fn align(&self, ty: TypeId, rest: usize) -> u64 {
        let Some(rest) = rest.checked_sub(1) else {
            return 1;
        };
        let ty = self.types.complete(ty);
        if let Some(align) = self.aligned.get(&ty) {
            return *align;
        }
        match self.types.node(ty) {
            Node::Array { of, .. } => self.align(of, rest),
            Node::Record { members, .. } => {
                let members = members.iter().take(MEMBERS_MAX);
                members
                    .map(|member| self.align(member.ty, rest))
                    .max()
                    .unwrap_or(1)
            }
            _ => self.types.size(ty).unwrap_or(1).clamp(1, 16),
        }
    }

    /// A name, with what stands around it: `*next`, `(*handler)(int)`, `grid[2][3]`.
    fn declarator(&mut self, base: TypeId) -> Parsed<(Option<&'p str>, TypeId)> {
        if self.depth >= DEPTH_MAX {
            return self.fail("types too deep");
        }
        self.depth = self.depth.saturating_add(1);
        let mut base = base;
        loop {
            if self.takes('*') {
                base = self.types.pointer_to(base);
            } else if matches!(self.peek(), Token::Word(word) if QUALIFIERS.contains(&word)) {
                self.at = self.at.saturating_add(1);
            } else {
                break;
            }
        }
        let after = self
            .tokens
            .get(self.at.saturating_add(1))
            .map(|(_, token)| *token);
        let is_nested = self.peek() == Token::Sign('(') && after == Some(Token::Sign('*'));
        let result = if is_nested {
            let first = self.at.saturating_add(1);
            self.at = first;
            self.skip_to('(', ')')?;
            let outer = self.suffixes(base)?;
            let end = std::mem::replace(&mut self.at, first);
            let found = self.declarator(outer)?;
            self.at = end;
            found
        } else {
            let name = match self.peek() {
                Token::Word(name) => {
                    self.at = self.at.saturating_add(1);
                    Some(name)
                }
                _ => None,
            };
            (name, self.suffixes(base)?)
        };
        self.depth = self.depth.saturating_sub(1);
        Ok(result)
    }

    fn suffixes(&mut self, base: TypeId) -> Parsed<TypeId> {
        if self.takes('(') {
            return self.parameters(base);
        }
        let mut counts = Vec::new();
        while self.takes('[') {
            counts.push(match self.peek() {
                Token::Number(count) => {
                    self.at = self.at.saturating_add(1);
                    Some(count)
                }
                Token::Sign(']') => None,
                _ => return self.fail("a number is missing"),
            });
            self.expect(']')?;
            if counts.len() > DEPTH_MAX {
                return self.fail("types too deep");
            }
        }
        let array = |of, count| self.types.add(Node::Array { of, count });
        Ok(counts.into_iter().rev().fold(base, array))
    }

    fn parameters(&mut self, returns: TypeId) -> Parsed<TypeId> {
        let mut parameters = Vec::new();
        let mut is_variadic = false;
        while !self.takes(')') {
            if self.takes('.') {
                is_variadic = true;
                while self.takes('.') {}
                continue;
            }
            let base = self.specifiers()?;
            let (_, ty) = self.declarator(base)?;
            if ty != TypeId::VOID {
                parameters.push(ty);
            }
            if !self.takes(',') && self.peek() != Token::Sign(')') {
                return self.fail("')' is missing");
            }
        }
        Ok(self.types.add(Node::Function {
            parameters: parameters.into(),
            returns,
            is_variadic,
        }))
    }
}

/// Where the members of a record go.
struct Layout {
    kind: RecordKind,
    is_packed: bool,
    /// Bits that are taken.
    bits: u64,
    /// The longest member of a union, in bits.
    end: u64,
    align: u64,
}

impl Layout {
    fn place(&mut self, size: u64, align: u64, bits: Option<u64>, is_named: bool) -> Option<u64> {
        let align = if self.is_packed { 1 } else { align };
        let unit = size.checked_mul(8)?;
        if bits.is_some_and(|bits| bits > unit) {
            return None;
        }
        if is_named || bits.is_none() {
            self.align = self.align.max(align);
        }
        let start = match bits {
            None => self.bits.checked_next_multiple_of(align.checked_mul(8)?)?,
            Some(0) => self.bits.checked_next_multiple_of(unit.max(8))?,
            // A bit-field does not lie across the bounds of its type.
            Some(bits) => {
                let inner = self.bits.checked_rem(unit)?.checked_add(bits)?;
                match inner > unit && !self.is_packed {
                    true => self.bits.checked_next_multiple_of(unit)?,
                    false => self.bits,
                }
            }
        };
        let end = start.checked_add(bits.unwrap_or(unit))?;
        match self.kind {
            RecordKind::Struct => self.bits = end,
            RecordKind::Union => self.end = self.end.max(end),
        }
        Some(start)
    }
}

impl Types<'_> {
    /// Adds the types that C's declarations define, and returns their names. They are found before those of the debug data.
    ///
    /// # Errors
    /// [`DeclareError`], with the place. What stands before it is added.
    pub fn declare(&self, text: &str) -> Result<Vec<Found>, DeclareError> {
        if text.len() > TEXT_MAX {
            let why = format!("more than {TEXT_MAX} bytes");
            return Err(DeclareError { at: 0, why });
        }
        let mut parser = Parser {
            types: self,
            tokens: tokens(text)?,
            at: 0,
            depth: 0,
            aligned: HashMap::new(),
            found: Vec::new(),
        };
        parser.file()?;
        Ok(parser.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Broken declarations are refused at the place, and deep ones have an end.
    #[test]
    fn errors_have_a_place() {
        for (text, at, why) in [
            ("struct a { int x; ", 18, "'}' is missing"),
            ("struct a { struct b c; };", 21, "struct b is not complete"),
            ("typedef nothing x;", 8, "there is no type \"nothing\""),
            ("struct a { int x[y]; };", 17, "a number is missing"),
            ("struct a { int x : 33; };", 21, "no place for a member"),
            ("enum e { A = };", 14, "a number is missing"),
            (
                "struct a { char x[0xffffffffffffffff]; char y[2]; };",
                37,
                "",
            ),
            ("struct a { int 09; };", 15, "\"09\" is no number"),
        ] {
            let error = Types::default().declare(text).expect_err(text);
            assert!(error.why.contains(why), "{text}: {error:?}");
            assert!(error.at.abs_diff(at) <= 1, "{text}: {error:?}");
        }
        let deep = format!("{}int x; {}", "struct { ".repeat(2000), "};".repeat(2000));
        assert!(Types::default().declare(&deep).is_err());
        let deep = format!("int {}x{};", "(*".repeat(2000), ")".repeat(2000));
        assert!(Types::default().declare(&deep).is_err());
    }
}

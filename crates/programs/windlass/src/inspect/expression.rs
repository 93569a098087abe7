//! Expressions: variables, numbers, members, elements, what pointers point to, casts.

use windlass_types::{Member, Node, TypeId};

use crate::failure::Failure;
use crate::suggest;
use crate::table::clean;

use super::absent;
use super::target::{Target, Typed};

/// How deep expressions may nest.
const DEPTH_MAX: usize = 64;

/// What an expression means.
#[derive(Debug, Clone)]
pub(super) enum Value {
    /// Something in the program's memory.
    Object { of: Typed, at: u64 },
    /// A bit-field: its record, where that is, and where the first bit is in it.
    Bits {
        record: Typed,
        at: u64,
        member: Member,
        bit_offset: u64,
    },
    /// A number that is not in memory: an address, or the result of a cast.
    Number { of: Typed, value: u64 },
}

struct Parser<'t, 'a, 's> {
    target: &'t Target<'a>,
    text: &'s str,
    at: usize,
    depth: usize,
}

/// What an expression means; all of it must be read.
pub(super) fn evaluate(target: &Target<'_>, text: &str) -> Result<Value, Failure> {
    let mut parser = Parser {
        target,
        text,
        at: 0,
        depth: 0,
    };
    let value = parser.unary()?;
    parser.space();
    match parser.rest().is_empty() {
        true => Ok(value),
        false => Err(parser.error("the expression ends before this")),
    }
}

/// A number in decimal or, behind 0x, in hexadecimal.
pub(super) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A member of a value's record, named by a path such as `addr->name` or `grid[1]`.
pub(super) fn within(target: &Target<'_>, value: Value, path: &str) -> Result<Value, Failure> {
    let mut parser = Parser {
        target,
        text: path,
        at: 0,
        depth: 0,
    };
    let name = parser.word().to_owned();
    let value = parser.member(value, &name)?;
    let value = parser.postfix(value)?;
    match parser.rest().is_empty() {
        true => Ok(value),
        false => Err(parser.error("a member's path ends before this")),
    }
}

impl<'s> Parser<'_, '_, 's> {
    fn rest(&self) -> &'s str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn take(&mut self, token: &str) -> bool {
        self.space();
        let is_next = self.rest().starts_with(token);
        if is_next {
            self.at += token.len();
        }
        is_next
    }

    /// The error, with its place.
    fn error(&self, why: &str) -> Failure {
        let before = self.text.get(..self.at).unwrap_or_default().chars().count();
        let why = format!(
            "{why}: character {} of \"{}\"",
            before + 1,
            clean(self.text)
        );
        Failure::usage(why, "\"help\" shows the forms of an expression")
    }

    /// A name, with its scopes, template arguments and file.
    fn word(&mut self) -> &'s str {
        self.space();
        let rest = self.rest();
        let mut brackets = 0_usize;
        let mut end = 0;
        let bytes = rest.as_bytes();
        while let Some(letter) = bytes.get(end) {
            let next = bytes.get(end + 1);
            let width = match letter {
                b'<' if end > 0 => {
                    brackets += 1;
                    1
                }
                b'>' if brackets > 0 => {
                    brackets -= 1;
                    1
                }
                _ if brackets > 0 => 1,
                b':' if next == Some(&b':') => 2,
                b'_' | b'`' | b'$' | 0x80.. => 1,
                // A file before a backquote has a dot: conn.c`all.
                b'.' | b'-' if is_file(&rest[end..]) => 1,
                letter if letter.is_ascii_alphanumeric() => 1,
                _ => break,
            };
            end += width;
        }
        self.at += end;
        rest.get(..end).unwrap_or(rest)
    }

    fn unary(&mut self) -> Result<Value, Failure> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.error("too deep"));
        }
        if self.take("*") {
            let value = self.unary()?;
            return self.deref(&value);
        }
        if self.take("&") {
            let value = self.unary()?;
            return match value {
                Value::Object { of, at } => {
                    let ty = self.target.types(of.module).pointer_to(of.ty);
                    let of = Typed { ty, ..of };
                    Ok(Value::Number { of, value: at })
                }
                _ => Err(self.error("this has no address")),
            };
        }
        if self.take("(") {
            return self.parenthesis();
        }
        let value = self.primary()?;
        self.postfix(value)
    }

    /// A cast, or an expression in parentheses; the opening one is read.
    fn parenthesis(&mut self) -> Result<Value, Failure> {
        let rest = self.rest();
        let inner = rest.find(')').and_then(|end| rest.get(..end));
        if let Some(inner) = inner {
            let is_marked = ["struct ", "union ", "enum ", "class "]
                .iter()
                .any(|keyword| inner.trim_start().starts_with(keyword));
            let is_name = !inner.contains(['(', '.', '[', '>'])
                && !inner.trim_start().starts_with(['*', '&']);
            if is_marked || (is_name && self.target.is_type(inner.trim())) {
                let of = self.target.spelled(inner.trim())?;
                self.at += inner.len() + 1;
                let value = self.unary()?;
                let value = self.scalar(&value)?;
                return Ok(Value::Number { of, value });
            }
        }
        let value = self.unary()?;
        if !self.take(")") {
            return Err(self.error("a closing parenthesis is missing"));
        }
        self.postfix(value)
    }

    fn primary(&mut self) -> Result<Value, Failure> {
        self.space();
        let start = self.at;
        let word = self.word();
        if word.is_empty() {
            return Err(self.error("a variable or a number is missing"));
        }
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            let of = Typed {
                module: 0,
                ty: TypeId::VOID,
            };
            let value = number(word);
            let value = value.ok_or_else(|| {
                self.at = start;
                self.error("not a number")
            })?;
            return Ok(Value::Number { of, value });
        }
        let (of, at) = self.target.variable(word)?;
        Ok(Value::Object { of, at })
    }

    fn postfix(&mut self, value: Value) -> Result<Value, Failure> {
        let mut value = value;
        loop {
            if self.take("->") || self.take(".") {
                let name = self.word().to_owned();
                value = self.member(value, &name)?;
            } else if self.take("[") {
                self.space();
                let rest = self.rest();
                let end = rest.find(']').unwrap_or(rest.len());
                let inner = rest.get(..end).unwrap_or_default().trim();
                let Some(index) = number(inner) else {
                    return Err(self.error("an index is a number"));
                };
                self.at += end;
                if !self.take("]") {
                    return Err(self.error("a closing bracket is missing"));
                }
                value = self.element(&value, index)?;
            } else {
                return Ok(value);
            }
        }
    }

    /// A member of a record, or of what a pointer points to.
    fn member(&self, value: Value, name: &str) -> Result<Value, Failure> {
        let mut value = value;
        if let Value::Object { of, .. } | Value::Number { of, .. } = &value {
            let bare = self.target.complete(*of);
            if let Node::Pointer { .. } = self.target.node(bare) {
                value = self.deref(&value)?;
            }
        }
        let Value::Object { of, at } = value else {
            return Err(self.error("only a record has members"));
        };
        let record = self.target.complete(of);
        let types = self.target.types(record.module);
        let Some(path) = types.member(record.ty, name) else {
            let members = types.members(record.ty);
            let names = members.iter().filter_map(|member| member.name.as_deref());
            let why = format!("{} has no member \"{}\"", types.name(of.ty), clean(name));
            let todo = match suggest::nearest(name, names) {
                Some(near) => format!("did you mean \"{}\"?", clean(near)),
                None => "\"type T\" lists the members".to_owned(),
            };
            return Err(absent(clean(&why), todo));
        };
        let Some(member) = path.member() else {
            return Err(self.error("no such member"));
        };
        let bit_offset = path.bit_offset();
        if member.bit_size.is_some() {
            return Ok(Value::Bits {
                record,
                at,
                member: member.clone(),
                bit_offset,
            });
        }
        let ty = member.ty;
        Ok(Value::Object {
            of: Typed { ty, ..record },
            at: at.wrapping_add(bit_offset / 8),
        })
    }

    fn element(&self, value: &Value, index: u64) -> Result<Value, Failure> {
        let (Value::Object { of, .. } | Value::Number { of, .. }) = value else {
            return Err(self.error("a bit-field has no elements"));
        };
        let bare = self.target.complete(*of);
        let (ty, start) = match (self.target.node(bare), value) {
            (Node::Array { of, .. }, Value::Object { at, .. }) => (of, *at),
            (Node::Pointer { to, .. }, value) => (to, self.scalar(value)?),
            _ => return Err(self.error("only arrays and pointers have elements")),
        };
        let of = Typed { ty, ..bare };
        let size = self.target.size(of)?;
        Ok(Value::Object {
            of,
            at: start.wrapping_add(index.wrapping_mul(size)),
        })
    }

    fn deref(&self, value: &Value) -> Result<Value, Failure> {
        let (Value::Object { of, .. } | Value::Number { of, .. }) = value else {
            return Err(self.error("a bit-field is no pointer"));
        };
        let bare = self.target.complete(*of);
        match self.target.node(bare) {
            Node::Pointer { to, .. } => Ok(Value::Object {
                of: Typed { ty: to, ..bare },
                at: self.scalar(value)?,
            }),
            _ => Err(self.error("this is no pointer")),
        }
    }

    fn scalar(&self, value: &Value) -> Result<u64, Failure> {
        self.target.scalar(value)
    }
}

/// Whether what follows is the rest of a file's name, up to a backquote.
fn is_file(rest: &str) -> bool {
    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "._-+".contains(c)));
    end.is_some_and(|end| rest[end..].starts_with('`'))
}

impl Target<'_> {
    /// The number that a value is.
    pub(super) fn scalar(&self, value: &Value) -> Result<u64, Failure> {
        match value {
            Value::Number { value, .. } => Ok(*value),
            Value::Object { of, at } => {
                let size = self.size(*of)?;
                let is_array = matches!(self.node(self.complete(*of)), Node::Array { .. });
                if is_array {
                    return Ok(*at);
                }
                if size == 0 || size > 8 {
                    let why = format!("{} is no number", clean(&self.name(*of)));
                    return Err(Failure::usage(why, "name one of its members"));
                }
                let bytes = self.bytes(*at, size)?;
                let mut word = [0; 8];
                for (into, from) in word.iter_mut().zip(bytes) {
                    *into = from;
                }
                Ok(u64::from_le_bytes(word))
            }
            Value::Bits { .. } => Err(Failure::usage("a bit-field is no address", "name another")),
        }
    }
}

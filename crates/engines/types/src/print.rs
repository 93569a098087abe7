//! Values as text.
//!
//! # Model
//! ```text
//! struct conn { id = 7, addr = 0x7ffd1e20 -> { ip = 16777343, port = 6379, name = "localhost" }, state = BUSY, next = 0x7ffd1e40 }
//! ```
//! A pointer to a record is followed, unless that record, or one of its type, is being shown: so lists end. Text is escaped: nothing of the
//! program's reaches a terminal as control.

use std::fmt::Write;

use crate::DEPTH_MAX;
use crate::graph::{Types, keyword};
use crate::node::{Encoding, Member, Node, PointerKind, TypeId, Variants};

/// Bytes of a value that are looked at.
pub const VALUE_MAX: u64 = 1 << 20;

/// What values point to.
pub trait World {
    /// Copies bytes from an address of the program; returns how many.
    fn read(&self, at: u64, into: &mut [u8]) -> usize;

    /// The name of a function or variable at an address.
    fn symbol(&self, at: u64) -> Option<String> {
        let _ = at;
        None
    }

    /// How a record at an address is shown, if not by its members.
    fn view(&self, record: TypeId, at: u64) -> Option<String> {
        let _ = (record, at);
        None
    }
}

/// A world without memory: pointers are numbers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nothing;

impl World for Nothing {
    fn read(&self, _: u64, _: &mut [u8]) -> usize {
        0
    }
}

/// How much is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How many pointers are followed, one behind the other.
    pub pointers: usize,
    /// Elements of an array.
    pub elements: u64,
    /// Bytes of a string.
    pub string: usize,
    /// Bytes of the whole text.
    pub text: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pointers: 1,
            elements: 64,
            string: 256,
            text: 1 << 16,
        }
    }
}

/// The bits from `offset` on, as a number.
pub(crate) fn bits(bytes: &[u8], offset: u64, count: u64, is_signed: bool) -> Option<i128> {
    let first = usize::try_from(offset / 8).ok()?;
    let end = usize::try_from(offset.checked_add(count)?.div_ceil(8)).ok()?;
    let mut word = [0; 16];
    let from = bytes.get(first..end)?;
    if count == 0 || count > 128 || from.len() > word.len() {
        return None;
    }
    for (into, from) in word.iter_mut().zip(from) {
        *into = *from;
    }
    let value = u128::from_le_bytes(word).checked_shr(u32::try_from(offset % 8).ok()?)?;
    let unused = 128_u32.checked_sub(u32::try_from(count).ok()?)?;
    let value = value.checked_shl(unused)?;
    Some(match is_signed {
        true => value.cast_signed() >> unused,
        // A number of 128 bits without a sign that needs the last one is not shown right; none of them is common.
        false => (value >> unused).cast_signed(),
    })
}

/// Text between quotes, escaped; up to the first NUL.
pub fn quoted(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut out = String::from("\"");
    for part in text.utf8_chunks() {
        for letter in part.valid().chars() {
            match letter {
                '\'' => out.push('\''),
                letter => out.extend(letter.escape_debug()),
            }
        }
        for byte in part.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out.push('"');
    out
}

struct Printer<'p, 'a> {
    types: &'p Types<'a>,
    world: &'p dyn World,
    limits: Limits,
    out: String,
    /// The records that are being shown.
    within: Vec<TypeId>,
    /// Where the value lies that is being shown, if that is known.
    at: Option<u64>,
    /// Pointers that were followed to get here.
    pointers: usize,
    /// Values within values.
    depth: usize,
}

impl Types<'_> {
    /// A value as text. `bytes` are its own; what it points to is read from `world`.
    pub fn show(&self, ty: TypeId, bytes: &[u8], world: &dyn World, limits: Limits) -> String {
        self.show_at(ty, (None, bytes), world, limits)
    }

    /// A value whose address is known: records in it are shown as [`World::view`] has them.
    pub fn show_at(
        &self,
        ty: TypeId,
        (at, bytes): (Option<u64>, &[u8]),
        world: &dyn World,
        limits: Limits,
    ) -> String {
        let full = self.complete(ty);
        if let Some(at) = at
            && let Some(text) = world.view(full, at)
        {
            return text;
        }
        let mut printer = Printer {
            types: self,
            world,
            limits,
            out: String::new(),
            within: Vec::new(),
            at,
            pointers: 0,
            depth: 0,
        };
        if let Node::Record { .. } = self.node(full) {
            let name = self.name(ty);
            printer.out.push_str(&name);
            printer.out.push(' ');
        }
        printer.value(ty, bytes);
        printer.out
    }

    /// A bit-field as text.
    pub fn show_member(
        &self,
        member: &Member,
        record: &[u8],
        bit_offset: u64,
        world: &dyn World,
        limits: Limits,
    ) -> String {
        let start = usize::try_from(bit_offset / 8).unwrap_or(usize::MAX);
        match member.bit_size {
            Some(count) => self.show_bits(member.ty, record, bit_offset, count),
            None => self.show(
                member.ty,
                record.get(start..).unwrap_or_default(),
                world,
                limits,
            ),
        }
    }

    fn show_bits(&self, ty: TypeId, bytes: &[u8], offset: u64, count: u64) -> String {
        let bare = self.bare(ty);
        let is_signed = match &bare {
            Node::Int { encoding, .. } => encoding.is_signed(),
            Node::Enum { is_signed, .. } => *is_signed,
            _ => false,
        };
        match bits(bytes, offset, count, is_signed) {
            Some(value) => number(&bare, value),
            None => MISSING.to_owned(),
        }
    }

    /// The arm of a Rust enum that a value is.
    fn arm<'v>(&self, variants: &'v Variants, bytes: &[u8]) -> Option<&'v Member> {
        let arms = &variants.arms;
        let Some(discriminant) = &variants.discriminant else {
            return arms.first()?.members.first();
        };
        let is_signed = match self.bare(discriminant.ty) {
            Node::Int { encoding, .. } => encoding.is_signed(),
            _ => false,
        };
        let count = self.size(discriminant.ty)?.checked_mul(8)?;
        let value = bits(bytes, discriminant.bit_offset, count, is_signed)?;
        let is_its = |values: &[(i128, i128)]| {
            values
                .iter()
                .any(|(first, last)| (*first..=*last).contains(&value))
        };
        let arm = arms
            .iter()
            .find(|arm| is_its(&arm.values))
            .or_else(|| arms.iter().find(|arm| arm.values.is_empty()))?;
        arm.members.first()
    }
}

/// What stands for bytes that are not there.
const MISSING: &str = "<not there>";

fn number(bare: &Node, value: i128) -> String {
    match bare {
        Node::Int { encoding, .. } => match encoding {
            Encoding::Bool if value == 0 => "false".to_owned(),
            Encoding::Bool if value == 1 => "true".to_owned(),
            Encoding::Unicode => match u32::try_from(value).ok().and_then(char::from_u32) {
                Some(letter) => format!("'{}'", letter.escape_debug()),
                None => value.to_string(),
            },
            Encoding::SignedChar | Encoding::UnsignedChar => match u8::try_from(value) {
                Ok(letter @ 32..127) => {
                    format!("{value} '{}'", char::from(letter).escape_debug())
                }
                _ => value.to_string(),
            },
            _ => value.to_string(),
        },
        Node::Enum { values, .. } => {
            let same = values.iter().find(|(_, own)| *own == value);
            match same {
                Some((name, _)) => name.to_string(),
                None => flags(values, value).unwrap_or_else(|| value.to_string()),
            }
        }
        _ => value.to_string(),
    }
}

/// A number as flags of an enum, if each of its bits has a name.
fn flags(values: &[(std::rc::Rc<str>, i128)], value: i128) -> Option<String> {
    let is_flag = |own: i128| own > 0 && own.count_ones() == 1;
    let single = values.iter().filter(|(_, own)| is_flag(*own));
    let named = single.filter(|(_, own)| value & own != 0);
    let (mut rest, mut text) = (value, String::new());
    for (name, own) in named {
        if rest & own == 0 {
            continue;
        }
        rest &= !own;
        if !text.is_empty() {
            text.push_str(" | ");
        }
        text.push_str(name);
    }
    (rest == 0 && value > 0).then_some(text)
}

/// Whether a member's name is that of a place in a Rust tuple.
fn is_position(name: Option<&str>) -> bool {
    let digits = name.and_then(|name| name.strip_prefix("__"));
    digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()))
}

impl Printer<'_, '_> {
    fn is_full(&self) -> bool {
        self.out.len() >= self.limits.text
    }

    fn put(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn value(&mut self, ty: TypeId, bytes: &[u8]) {
        if self.is_full() || self.depth >= DEPTH_MAX {
            return self.put("...");
        }
        self.depth = self.depth.saturating_add(1);
        self.shallow(ty, bytes);
        self.depth = self.depth.saturating_sub(1);
    }

    /// A part of a value.
    fn part(&mut self, ty: TypeId, bytes: &[u8], offset: u64) {
        let at = self.at;
        self.at = at.and_then(|at| at.checked_add(offset));
        self.value(ty, bytes);
        self.at = at;
    }

    fn shallow(&mut self, ty: TypeId, bytes: &[u8]) {
        let id = self.types.complete(ty);
        let node = self.types.node(id);
        match &node {
            Node::Int { size, .. } | Node::Enum { size, .. } => {
                let text = match size.checked_mul(8) {
                    Some(count) => self.types.show_bits(id, bytes, 0, count),
                    None => MISSING.to_owned(),
                };
                self.put(&text);
            }
            Node::Float { size, .. } => self.float(*size, bytes),
            Node::Pointer { to, size, kind } => self.pointer(*to, *size, *kind, bytes),
            Node::Array { of, count } => self.array(*of, *count, bytes),
            Node::Record { .. } => {
                let view = self.at.and_then(|at| self.world.view(id, at));
                match view {
                    Some(text) => self.put(&text),
                    None => {
                        self.within.push(id);
                        self.record(&node, bytes);
                        self.within.pop();
                    }
                }
            }
            Node::Void => self.put("void"),
            Node::Function { .. } => self.put("<function>"),
            Node::Forward { name, kind } => {
                let text = format!("<{} {name} is only declared>", kind.word());
                self.put(&text);
            }
            Node::Unknown(what) => self.put(&format!("<{what}>")),
            Node::Typedef { .. } | Node::Qualified { .. } => self.put("<types in circles>"),
        }
    }

    fn float(&mut self, size: u64, bytes: &[u8]) {
        let text = match size {
            4 => bytes.first_chunk().map(|b| float(f32::from_le_bytes(*b))),
            8 => bytes.first_chunk().map(|b| float(f64::from_le_bytes(*b))),
            _ => bytes.first_chunk().and_then(|b| extended(*b)).map(float),
        };
        self.put(text.as_deref().unwrap_or(MISSING));
    }

    fn pointer(&mut self, to: TypeId, size: u64, kind: PointerKind, bytes: &[u8]) {
        let value = size
            .checked_mul(8)
            .and_then(|count| bits(bytes, 0, count, false));
        let Some(value) = value.and_then(|value| u64::try_from(value).ok()) else {
            return self.put(MISSING);
        };
        if kind != PointerKind::Pointer {
            self.put("&");
        }
        let _ = write!(self.out, "{value:#x}");
        if value == 0 {
            return;
        }
        let to = self.types.strip(to);
        match self.types.node(to) {
            Node::Int {
                size: 1, encoding, ..
            } if is_text(encoding) => self.string_at(value),
            Node::Function { .. } => {
                if let Some(name) = self.world.symbol(value) {
                    let _ = write!(self.out, " <{name}>");
                }
            }
            Node::Record { .. } | Node::Forward { .. } => self.follow(to, value),
            _ => {}
        }
    }

    fn string_at(&mut self, at: u64) {
        let mut bytes = vec![0; self.limits.string];
        let len = self.world.read(at, &mut bytes);
        bytes.truncate(len);
        let text = match bytes.contains(&0) {
            _ if bytes.is_empty() => " <fault>".to_owned(),
            true => format!(" {}", quoted(&bytes)),
            false => format!(" {}...", quoted(&bytes)),
        };
        self.put(&text);
    }

    /// Shows what a pointer points to.
    fn follow(&mut self, to: TypeId, at: u64) {
        if self.pointers >= self.limits.pointers {
            return;
        }
        let to = self.types.complete(to);
        if self.within.contains(&to) {
            return;
        }
        let Some(size) = self
            .types
            .size(to)
            .filter(|size| (1..=VALUE_MAX).contains(size))
        else {
            return;
        };
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        let len = self.world.read(at, &mut bytes);
        if len < bytes.len() {
            return self.put(" -> <fault>");
        }
        self.put(" -> ");
        self.pointers = self.pointers.saturating_add(1);
        let outer = self.at.replace(at);
        self.value(to, &bytes);
        self.at = outer;
        self.pointers = self.pointers.saturating_sub(1);
    }

    fn array(&mut self, of: TypeId, count: Option<u64>, bytes: &[u8]) {
        let element = self.types.bare(of);
        let size = self.types.size(of).unwrap_or(0);
        if let Node::Int {
            size: 1, encoding, ..
        } = element
            && is_text(encoding)
            && count.is_some_and(|count| count > 0)
        {
            let count = usize::try_from(count.unwrap_or(0)).unwrap_or(usize::MAX);
            let text = bytes.get(..count.min(bytes.len())).unwrap_or_default();
            let shown = text
                .get(..text.len().min(self.limits.string))
                .unwrap_or_default();
            let is_cut = shown.len() < text.len() && !shown.contains(&0);
            let quoted = quoted(shown);
            self.put(&quoted);
            return if is_cut {
                self.put("...")
            };
        }
        self.put("[");
        let count = count.unwrap_or(0);
        for at in 0..count {
            if at > 0 {
                self.put(", ");
            }
            if at >= self.limits.elements || self.is_full() {
                let _ = write!(self.out, "... {} more", count.saturating_sub(at));
                break;
            }
            let offset = at.saturating_mul(size);
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            self.part(of, bytes.get(start..).unwrap_or_default(), offset);
        }
        self.put("]");
    }

    fn record(&mut self, node: &Node, bytes: &[u8]) {
        let Node::Record {
            name,
            members,
            variants,
            ..
        } = node
        else {
            return;
        };
        if let Some(variants) = variants {
            return match self.types.arm(variants, bytes) {
                Some(arm) => self.arm(arm, bytes),
                None => self.put("<no such arm>"),
            };
        }
        if name.as_deref() == Some("&str") && self.rust_text(members, bytes) {
            return;
        }
        let is_tuple =
            !members.is_empty() && members.iter().all(|m| is_position(m.name.as_deref()));
        let (open, close) = match is_tuple {
            true => ("(", ")"),
            false => ("{ ", " }"),
        };
        self.put(open);
        for (at, member) in members.iter().enumerate() {
            if at > 0 {
                self.put(", ");
            }
            if self.is_full() {
                self.put("...");
                break;
            }
            if let Some(name) = member.name.as_ref().filter(|_| !is_tuple) {
                self.put(name);
                self.put(" = ");
            }
            match member.bit_size {
                Some(count) => {
                    let (ty, offset) = (member.ty, member.bit_offset);
                    let text = self.types.show_bits(ty, bytes, offset, count);
                    self.put(&text);
                }
                None => {
                    let offset = member.bit_offset / 8;
                    self.part(member.ty, from(bytes, member.bit_offset), offset);
                }
            }
        }
        self.put(close);
    }

    /// An arm of a Rust enum: its name, and what it has.
    fn arm(&mut self, arm: &Member, bytes: &[u8]) {
        self.put(arm.name.as_deref().unwrap_or("_"));
        let inner = self.types.complete(arm.ty);
        let node = self.types.node(inner);
        if let Node::Record { members, .. } = &node
            && !members.is_empty()
        {
            let is_tuple = members.iter().all(|m| is_position(m.name.as_deref()));
            if !is_tuple {
                self.put(" ");
            }
            self.within.push(inner);
            let at = self.at;
            self.at = at.and_then(|at| at.checked_add(arm.bit_offset / 8));
            self.record(&node, from(bytes, arm.bit_offset));
            self.at = at;
            self.within.pop();
        }
    }

    /// A Rust `&str`; `false` if it does not look like one.
    fn rust_text(&mut self, members: &[Member], bytes: &[u8]) -> bool {
        let word = |name: &str| {
            let member = members
                .iter()
                .find(|own| own.name.as_deref() == Some(name))?;
            u64::try_from(bits(bytes, member.bit_offset, 64, false)?).ok()
        };
        let (Some(at), Some(len)) = (word("data_ptr"), word("length")) else {
            return false;
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let mut text = vec![0; len.min(self.limits.string)];
        let read = self.world.read(at, &mut text);
        if read < text.len() {
            let _ = write!(self.out, "{at:#x} <fault>");
            return true;
        }
        let quoted = quoted(&text);
        self.put(&quoted);
        if len > text.len() {
            self.put("...");
        }
        true
    }
}

fn from(bytes: &[u8], bit_offset: u64) -> &[u8] {
    let start = usize::try_from(bit_offset / 8).unwrap_or(usize::MAX);
    bytes.get(start..).unwrap_or_default()
}

fn is_text(encoding: Encoding) -> bool {
    matches!(encoding, Encoding::SignedChar | Encoding::UnsignedChar)
}

/// A number with as many digits as tell it apart; very large and very small ones with an exponent.
fn float<F: Copy + Into<f64> + std::fmt::Display + std::fmt::LowerExp>(value: F) -> String {
    let size: f64 = value.into().abs();
    match size.is_finite() && size != 0.0 && !(1e-5..1e16).contains(&size) {
        true => format!("{value:e}"),
        false => value.to_string(),
    }
}

/// A number of the x87's 80 bits, rounded.
fn extended(bytes: [u8; 10]) -> Option<f64> {
    let (mantissa, exponent) = (bytes.first_chunk::<8>()?, bytes.last_chunk::<2>()?);
    let mantissa = u64::from_le_bytes(*mantissa);
    let exponent = u16::from_le_bytes(*exponent);
    let sign = if exponent & 0x8000 != 0 { -1.0 } else { 1.0 };
    let power = i32::from(exponent & 0x7fff).saturating_sub(16_383 + 63);
    #[allow(clippy::cast_precision_loss)]
    let fraction = mantissa as f64;
    Some(match exponent & 0x7fff {
        0x7fff if mantissa << 1 == 0 => sign * f64::INFINITY,
        0x7fff => f64::NAN,
        _ => sign * fraction * 2_f64.powi(power),
    })
}

impl Types<'_> {
    /// The definition of a type, as its language writes it. With `layout`, each member's offset and size, holes, and lines of the cache.
    pub fn definition(&self, ty: TypeId, layout: bool) -> String {
        let mut out = String::new();
        let id = match self.node(ty) {
            Node::Typedef { name, to } => {
                let _ = writeln!(out, "typedef {};", self.declaration(to, &name));
                self.complete(to)
            }
            _ => self.complete(ty),
        };
        match self.node(id) {
            Node::Record { .. } => {
                let mut lines = Layout {
                    types: self,
                    out,
                    layout,
                    line: 0,
                };
                lines.record(id, "", 0, 1);
                out = lines.out;
            }
            Node::Enum {
                name, values, size, ..
            } => {
                let _ = writeln!(out, "enum {} {{", name.as_deref().unwrap_or(""));
                for (name, value) in values.iter() {
                    let _ = writeln!(out, "    {name} = {value},");
                }
                let _ = write!(out, "}};");
                if layout {
                    let _ = write!(out, "  // {size} bytes");
                }
                out.push('\n');
            }
            Node::Forward { kind, name } => {
                let _ = writeln!(out, "{} {name};  // only declared", kind.word());
            }
            _ if out.is_empty() => {
                let _ = writeln!(out, "{}", self.name(id));
            }
            _ => {}
        }
        out
    }
}

/// Bytes of a definition behind which anonymous members are not shown in full.
const DEFINITION_MAX: usize = 1 << 20;
/// Bytes of a line of the cache.
const CACHE_LINE: u64 = 64;

struct Layout<'p, 'a> {
    types: &'p Types<'a>,
    out: String,
    layout: bool,
    /// The line of the cache that was shown last.
    line: u64,
}

impl Layout<'_, '_> {
    fn put(&mut self, depth: usize, text: &str, at: Option<(u64, u64, Option<u64>)>) {
        let text = format!("{}{text}", "    ".repeat(depth));
        let _ = match at.filter(|_| self.layout) {
            Some((bit, size, Some(bits))) => {
                writeln!(
                    self.out,
                    "{text:<44} // {:>5}:{:<2} {size:>5}:{bits}",
                    bit / 8,
                    bit % 8
                )
            }
            Some((bit, size, None)) => {
                writeln!(self.out, "{text:<44} // {:>5}    {size:>5}", bit / 8)
            }
            None => writeln!(self.out, "{text}"),
        };
    }

    fn hole(&mut self, depth: usize, bits: u64) {
        if bits > 0 && self.layout {
            let text = match bits.is_multiple_of(8) {
                true => format!("// hole of {} bytes", bits / 8),
                false => format!("// hole of {bits} bits"),
            };
            self.put(depth, &text, None);
        }
    }

    /// A record: its members, then `name` of a member that it is.
    fn record(&mut self, id: TypeId, name: &str, start: u64, depth: usize) {
        let Node::Record {
            kind,
            name: own,
            size,
            members,
            variants,
        } = self.types.node(id)
        else {
            return;
        };
        let outer = depth.saturating_sub(1);
        let head = match own {
            Some(own) => format!("{} {own} {{", keyword(kind)),
            None => format!("{} {{", keyword(kind)),
        };
        self.put(outer, &head, None);
        let is_union = matches!(kind, crate::RecordKind::Union);
        let mut end = start;
        for member in members.iter() {
            let at = start.saturating_add(member.bit_offset);
            if !is_union {
                self.hole(depth, at.saturating_sub(end));
                self.cache_line(depth, at);
            }
            let bits = self.member(member, at, depth);
            end = end.max(at.saturating_add(bits));
        }
        let full = start.saturating_add(size.saturating_mul(8));
        if let Some(variants) = variants {
            for arm in variants.arms.iter() {
                for member in arm.members.iter() {
                    self.member(member, start.saturating_add(member.bit_offset), depth);
                }
            }
        } else if !is_union {
            self.hole(depth, full.saturating_sub(end));
        }
        let tail = match name {
            "" => "};".to_owned(),
            name => format!("}} {name};"),
        };
        let at = (outer > 0).then_some((start, size, None));
        self.put(outer, &tail, at);
        if outer == 0 && self.layout {
            let lines = match size.div_ceil(CACHE_LINE) {
                1 => "1 cache line".to_owned(),
                lines => format!("{lines} cache lines"),
            };
            let _ = writeln!(self.out, "// {size} bytes, {lines}");
        }
    }

    fn cache_line(&mut self, depth: usize, at: u64) {
        let line = at / 8 / CACHE_LINE;
        if self.layout && line > self.line {
            self.line = line;
            let text = format!("// cache line {line}");
            self.put(depth, &text, None);
        }
    }

    /// Shows a member; returns its bits.
    fn member(&mut self, member: &Member, at: u64, depth: usize) -> u64 {
        let name = member.name.as_deref().unwrap_or("");
        let size = self.types.size(member.ty).unwrap_or(0);
        let inner = self.types.node(member.ty);
        if let Node::Record { name: None, .. } = inner
            && depth < DEPTH_MAX
            && self.out.len() < DEFINITION_MAX
        {
            self.record(member.ty, name, at, depth.saturating_add(1));
        } else {
            let text = match (member.is_base, member.bit_size) {
                (true, _) => format!(": {};", self.types.name(member.ty)),
                (_, Some(bits)) => {
                    format!("{} : {bits};", self.types.declaration(member.ty, name))
                }
                _ => format!("{};", self.types.declaration(member.ty, name)),
            };
            self.put(depth, &text, Some((at, size, member.bit_size)));
        }
        member.bit_size.unwrap_or_else(|| size.saturating_mul(8))
    }
}

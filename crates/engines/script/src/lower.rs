//! From what a clause says to what is computed: names, types, widths and signs.

mod clause;

use std::cell::RefCell;

use windlass_types::{Encoding, Node, TypeId, Types};

use crate::code::{Code, Moment};
use crate::ebpf::KEY_TEXT;
use crate::syntax::{Binary, Expr, ExprKind, Kind, Scope, Stack, TypeName};
use crate::{ScriptError, Span};
pub use clause::{Kept, KeyKind, Look, Lowered, Shared, Shown, Told};

/// Bytes of a text that is printed, with its end, if nothing else is said.
const TEXT_BYTES: u32 = 128;
/// Bytes of a text at most.
const TEXT_MAX: u64 = 4096;

/// Where something with a name is.
#[derive(Debug, Clone, PartialEq)]
pub enum Location {
    /// This is its value.
    Value(Code),
    /// It lies in memory there.
    Memory(Code),
    /// Its parts are in different places: for each the byte where it begins, how many bytes it has, and its value.
    Pieces(Vec<(u64, u64, Code)>),
    /// It is not there; why.
    Absent(String),
}

/// What has a name at the place.
pub trait Names {
    /// An argument or a variable.
    fn find(&self, name: &str) -> Option<(Location, TypeId)>;

    /// The process whose types these are, if there is just one.
    fn process(&self) -> Option<u32> {
        None
    }

    /// Since when the function runs that returns here: its frame and its number, or why that is not known.
    fn entered(&self) -> Result<(Code, u32), String> {
        Err("known only where a function returns".to_owned())
    }

    /// What to say of a name that is not there.
    fn missing(&self, name: &str) -> String;

    /// A type by its C name that the types do not have.
    fn type_named(&self, _spelled: &str) -> Option<TypeId> {
        None
    }

    /// The name that was probably meant.
    fn near<'n>(&self, _name: &str, _all: &[&'n str]) -> Option<&'n str> {
        None
    }
}

/// What an expression is, on the way.
#[derive(Debug, Clone)]
enum Value {
    /// A number.
    Number(Code, TypeId),
    /// Something in memory; of a bit-field, the lowest bit and how many.
    Memory(Code, TypeId, Option<(u8, u8)>),
    /// In several places.
    Pieces(Vec<(u64, u64, Code)>, TypeId),
    /// A text between quotes.
    Text(String),
    /// The text at an address, at most so many bytes.
    Str(Code, u32),
    /// Callers, and how many if that was said.
    Stack(Stack, Option<u64>),
    /// The thread's name.
    ThreadName,
    /// An address of code that is shown by its name.
    Symbol(Code),
}

/// Turns expressions into [`Code`] where these names and types hold.
pub struct Lowering<'t, 'a> {
    types: &'t Types<'a>,
    names: &'t dyn Names,
    long: TypeId,
    unsigned: TypeId,
    character: TypeId,
    /// What clauses have in common, and the number of these types; none elsewhere than in probes.
    shared: Option<(&'t RefCell<Shared>, usize)>,
    /// The variables of the clause.
    locals: RefCell<Vec<(String, TypeId)>>,
}

type Lowers<T> = Result<T, ScriptError>;

fn fail<T>(span: &Span, why: impl Into<String>) -> Lowers<T> {
    Err(ScriptError::at(span.clone(), why))
}

impl<'t, 'a> Lowering<'t, 'a> {
    /// One for a place.
    #[must_use]
    pub fn new(types: &'t Types<'a>, names: &'t dyn Names) -> Self {
        let int = |name: &str, size, encoding| {
            let name = name.into();
            types.add(Node::Int {
                name,
                size,
                encoding,
            })
        };
        Self {
            types,
            names,
            long: int("long", 8, Encoding::Signed),
            unsigned: int("unsigned long", 8, Encoding::Unsigned),
            character: int("char", 1, Encoding::SignedChar),
            shared: None,
            locals: RefCell::default(),
        }
    }

    /// The same for clauses, which share variables and aggregations with others. `module`: whose types these are.
    #[must_use]
    pub fn sharing(self, shared: &'t RefCell<Shared>, module: usize) -> Self {
        let shared = Some((shared, module));
        Self { shared, ..self }
    }

    /// What is shown of an expression elsewhere than in a probe: a number, or where it lies.
    ///
    /// # Errors
    /// As [`Lowering::clause`].
    pub fn expression(&self, expr: &Expr) -> Lowers<(Location, TypeId)> {
        Ok(match self.value(expr)? {
            Value::Number(code, ty) => (Location::Value(code), ty),
            Value::Memory(address, ty, None) => (Location::Memory(address), ty),
            value @ Value::Memory(_, ty, Some(_)) => {
                (Location::Value(self.as_number(value, &expr.span)?.0), ty)
            }
            Value::Pieces(pieces, ty) => (Location::Pieces(pieces), ty),
            Value::Str(address, bytes) => {
                let (of, count) = (self.character, Some(bytes.into()));
                let ty = self.types.add(Node::Array { of, count });
                (Location::Memory(address), ty)
            }
            Value::Text(_) => return fail(&expr.span, "a text alone is no value"),
            Value::Symbol(code) => (Location::Value(code), self.unsigned),
            Value::Stack(..) | Value::ThreadName => {
                return fail(&expr.span, "this is known in probes alone");
            }
        })
    }

    /// The number that an expression is, and its type; of an array, where it begins.
    ///
    /// # Errors
    /// As [`Lowering::clause`].
    pub fn number(&self, expr: &Expr) -> Lowers<(Code, TypeId)> {
        let value = self.value(expr)?;
        self.as_number(value, &expr.span)
    }

    fn as_number(&self, value: Value, span: &Span) -> Lowers<(Code, TypeId)> {
        let (address, ty, bits) = match value {
            Value::Number(code, ty) => return Ok((code, ty)),
            Value::Text(_) => return fail(span, "a text can be compared with == and != only"),
            Value::Str(..) | Value::ThreadName => return fail(span, "a text is no number"),
            Value::Stack(..) => return fail(span, "callers are no number"),
            Value::Symbol(code) => return Ok((code, self.unsigned)),
            Value::Pieces(..) => {
                return fail(span, "this lies in several registers: name a member of it");
            }
            Value::Memory(address, ty, bits) => (address, ty, bits),
        };
        let (size, is_signed) = match self.types.bare(ty) {
            Node::Array { of, .. } => return Ok((address, self.types.pointer_to(of))),
            Node::Int { size, encoding, .. } => (size, encoding.is_signed()),
            Node::Enum {
                size, is_signed, ..
            } => (size, is_signed),
            Node::Pointer { size, .. } => (size, false),
            Node::Float { .. } => {
                return fail(span, "a number with a fraction cannot be computed with");
            }
            _ => {
                let name = self.types.name(ty);
                return fail(span, format!("a {name} is no number: name a member of it"));
            }
        };
        let Some(bytes) = u8::try_from(size)
            .ok()
            .filter(|size| [1, 2, 4, 8].contains(size))
        else {
            return fail(
                span,
                format!("a number of {size} bytes cannot be computed with"),
            );
        };
        let bits = bits.unwrap_or((0, bytes * 8));
        let address = Box::new(address);
        let load = Code::Load {
            address,
            bytes,
            bits,
            is_signed,
        };
        Ok((load, ty))
    }

    fn value(&self, expr: &Expr) -> Lowers<Value> {
        let span = &expr.span;
        Ok(match &expr.kind {
            ExprKind::Integer(value) => Value::Number(Code::Constant(*value), self.long),
            ExprKind::Text(text) => Value::Text(text.clone()),
            ExprKind::Name(name) => self.named(name, span)?,
            ExprKind::Member(of, name) => {
                if let Some(value) = self.variable(of, name, span)? {
                    return Ok(value);
                }
                let of = self.value(of)?;
                self.member(of, name, span)?
            }
            ExprKind::Index(of, index) => {
                let (address, to) = self.pointer(of)?;
                let (index, _) = self.number(index)?;
                Value::Memory(self.step(address, index, to, span)?, to, None)
            }
            ExprKind::Deref(of) => {
                let (address, to) = self.pointer(of)?;
                Value::Memory(address, to, None)
            }
            ExprKind::Address(of) => match self.value(of)? {
                Value::Memory(address, ty, None) => {
                    Value::Number(address, self.types.pointer_to(ty))
                }
                _ => return fail(span, "this has no address"),
            },
            ExprKind::Negate(of) => {
                let (code, _) = self.number(of)?;
                Value::Number(Code::Negate(Box::new(code)), self.long)
            }
            ExprKind::Complement(of) => {
                let (code, ty) = self.number(of)?;
                let ty = self.widened(ty);
                Value::Number(Code::Complement(Box::new(code)), ty)
            }
            ExprKind::Not(of) => {
                let (code, _) = self.number(of)?;
                Value::Number(Code::Not(Box::new(code)), self.long)
            }
            ExprKind::Binary(operation, left, right) => {
                self.binary(*operation, left, right, span)?
            }
            ExprKind::Choose(condition, one, other) => self.choose(condition, one, other)?,
            ExprKind::Cast(name, of) => {
                let ty = self.type_named(name)?;
                let (code, _) = self.number(of)?;
                self.cast(code, ty, span)?
            }
            ExprKind::SizeOfType(name) => self.size_of(self.type_named(name)?, span)?,
            ExprKind::SizeOf(of) => match self.sized(of)? {
                Value::Number(_, ty) | Value::Memory(_, ty, None) | Value::Pieces(_, ty) => {
                    self.size_of(ty, span)?
                }
                _ => return fail(span, "this has no size"),
            },
            ExprKind::Str(of, bytes) => {
                let (address, _) = self.number(of)?;
                Value::Str(address, text_bytes(*bytes, span)?)
            }
            ExprKind::Stack(of, depth) => Value::Stack(*of, *depth),
            ExprKind::Symbol(of) => Value::Symbol(self.number(of)?.0),
        })
    }

    fn choose(&self, condition: &Expr, one: &Expr, other: &Expr) -> Lowers<Value> {
        let (condition, _) = self.number(condition)?;
        let ((one, ty), (other, second)) = (self.number(one)?, self.number(other)?);
        let ty = match ty == second {
            true => ty,
            false => self.common(ty, second),
        };
        let chosen = Code::Choose(Box::new([condition, one, other]));
        Ok(Value::Number(chosen, ty))
    }

    /// What `sizeof` is asked about; a name alone may be a type's.
    fn sized(&self, of: &Expr) -> Lowers<Value> {
        let value = self.value(of);
        let (Err(_), ExprKind::Name(name)) = (&value, &of.kind) else {
            return value;
        };
        let found = self.types.spelled(name).ok();
        match found.or_else(|| self.names.type_named(name)) {
            Some(ty) => Ok(Value::Memory(Code::Constant(0), ty, None)),
            None => value,
        }
    }

    fn named(&self, name: &str, span: &Span) -> Lowers<Value> {
        if let Some((location, ty)) = self.names.find(name) {
            return match location {
                Location::Value(code) => self.cast(code, ty, span),
                Location::Memory(address) => Ok(Value::Memory(address, ty, None)),
                Location::Pieces(pieces) => Ok(Value::Pieces(pieces, ty)),
                Location::Absent(why) => fail(span, format!("{name} is {why}")),
            };
        }
        let moment = match name {
            "pid" => Moment::Pid,
            "tid" => Moment::Tid,
            "cpu" => Moment::Cpu,
            "now" => Moment::Now,
            "comm" => return Ok(Value::ThreadName),
            "elapsed" => {
                let entered = self.names.entered();
                let (frame, function) = entered
                    .map_err(|why| ScriptError::at(span.clone(), format!("elapsed is {why}")))?;
                let elapsed = Code::Elapsed(Box::new(frame), function);
                return Ok(Value::Number(elapsed, self.unsigned));
            }
            _ => return fail(span, self.names.missing(name)),
        };
        Ok(Value::Number(Code::Moment(moment), self.long))
    }

    /// `self->name` and `this->name`. In C++, `this` is an argument: a variable of the clause is what was set in it.
    fn variable(&self, of: &Expr, name: &str, span: &Span) -> Lowers<Option<Value>> {
        let ExprKind::Name(scope) = &of.kind else {
            return Ok(None);
        };
        let scope = match scope.as_str() {
            "self" => Scope::Thread,
            "this" => Scope::Clause,
            _ => return Ok(None),
        };
        let found = match scope {
            Scope::Clause => {
                let locals = self.locals.borrow();
                let number = locals.iter().position(|(own, _)| own == name);
                let number = number.and_then(|at| Some((at, locals.get(at)?.1)));
                number.map(|(at, ty)| (Code::Local(u32::try_from(at).unwrap_or(0)), ty))
            }
            Scope::Thread => self.shared.and_then(|(shared, module)| {
                let shared = shared.borrow();
                let (number, of, ty) = shared.variable(name)?;
                let ty = if of == module { ty } else { self.long };
                Some((Code::Thread(number), ty))
            }),
        };
        let scope = match scope {
            Scope::Clause => "this",
            Scope::Thread => "self",
        };
        match found {
            Some((code, ty)) => Ok(Some(Value::Number(code, ty))),
            None if self.shared.is_none() || self.names.find(scope).is_some() => Ok(None),
            None => fail(span, format!("nothing before this sets {scope}->{name}")),
        }
    }

    /// `of.name`, also through a pointer.
    fn member(&self, of: Value, name: &str, span: &Span) -> Lowers<Value> {
        let (record, base) = match of {
            Value::Memory(address, ty, None) if self.is_record(ty) => (ty, Ok(address)),
            Value::Pieces(pieces, ty) if self.is_record(ty) => (ty, Err(pieces)),
            value => {
                let (address, ty) = self.as_number(value, span)?;
                match self.types.bare(ty) {
                    Node::Pointer { to, .. } if self.is_record(to) => (to, Ok(address)),
                    _ => {
                        let ty = self.types.name(ty);
                        return fail(span, format!("a {ty} has no members"));
                    }
                }
            }
        };
        let record = self.complete(record);
        let path = self.types.member(record, name);
        let Some((path, member)) = path.as_ref().and_then(|path| Some((path, path.member()?)))
        else {
            return fail(span, self.no_member(record, name));
        };
        let at = path.bit_offset();
        let bits = member.bit_size;
        let address = match base {
            Ok(address) => address,
            Err(pieces) => return self.piece(pieces, (at, bits), member.ty, span),
        };
        let Some(count) = bits else {
            let at = i64::try_from(at / 8).unwrap_or(0);
            return Ok(Value::Memory(address.plus(at), member.ty, None));
        };
        // The unit that the bit-field lies in, of its type's size, aligned.
        let unit = self
            .types
            .size(member.ty)
            .filter(|size| [1, 2, 4, 8].contains(size));
        let unit = unit.unwrap_or(8) * 8;
        let start = at - at % unit;
        let (first, count) = (u8::try_from(at - start), u8::try_from(count));
        match (first, count) {
            (Ok(first), Ok(count)) if u64::from(first) + u64::from(count) <= unit => {
                let start = i64::try_from(start / 8).unwrap_or(0);
                Ok(Value::Memory(
                    address.plus(start),
                    member.ty,
                    Some((first, count)),
                ))
            }
            _ => fail(span, format!("{name} lies across two units of its type")),
        }
    }

    /// A member of something that lies in several places.
    fn piece(
        &self,
        pieces: Vec<(u64, u64, Code)>,
        (at, bits): (u64, Option<u64>),
        ty: TypeId,
        span: &Span,
    ) -> Lowers<Value> {
        let size = self.types.size(ty).unwrap_or(0) * 8;
        let count = bits.unwrap_or(size);
        let holds = |(start, bytes, _): &&(u64, u64, Code)| {
            start * 8 <= at && at + count <= (start + bytes) * 8
        };
        let Some((start, _, code)) = pieces.iter().find(holds) else {
            return fail(span, "this is not there, or lies in several places");
        };
        let (first, count) = (u8::try_from(at - start * 8), u8::try_from(count));
        let (Ok(first), Ok(count @ 1..=64)) = (first, count) else {
            return fail(span, "this is no number: name a member of it");
        };
        let is_signed = self.is_signed(ty);
        let of = Box::new(code.clone());
        let bits = (first, count);
        let narrowed = Code::Narrow {
            of,
            bits,
            is_signed,
        };
        Ok(Value::Number(narrowed, ty))
    }

    fn no_member(&self, record: TypeId, name: &str) -> String {
        let members = self.types.members(record);
        let names: Vec<&str> = members.iter().filter_map(|m| m.name.as_deref()).collect();
        let of = self.types.name(record);
        match self.names.near(name, &names) {
            _ if names.is_empty() => format!("nothing is known of the members of {of}"),
            Some(near) => format!("{of} has no member {name}; did you mean \"{near}\"?"),
            None => format!("{of} has no member {name}; it has {}", names.join(", ")),
        }
    }

    /// The address that a pointer or an array is, and what lies there.
    fn pointer(&self, of: &Expr) -> Lowers<(Code, TypeId)> {
        let (address, ty) = self.number(of)?;
        match self.types.bare(ty) {
            Node::Pointer { to, .. } => Ok((address, to)),
            _ => {
                let ty = self.types.name(ty);
                fail(&of.span, format!("a {ty} is no pointer"))
            }
        }
    }

    /// `address + index` elements.
    fn step(&self, address: Code, index: Code, of: TypeId, span: &Span) -> Lowers<Code> {
        let Some(size) = self.types.size(self.complete(of)) else {
            return fail(span, "the size of what this points to is not known");
        };
        if let Code::Constant(index) = index {
            return Ok(address.plus(index.wrapping_mul(size).cast_signed()));
        }
        let scaled = binary(Binary::Multiply, index, Code::Constant(size), true);
        Ok(binary(Binary::Add, address, scaled, true))
    }

    fn binary(&self, operation: Binary, a: &Expr, b: &Expr, span: &Span) -> Lowers<Value> {
        let (left, right) = (self.value(a)?, self.value(b)?);
        if let (Binary::Equal | Binary::Differ, Some(code)) =
            (operation, self.compare_text(&left, &right, span)?)
        {
            let code = match operation {
                Binary::Differ => Code::Not(Box::new(code)),
                _ => code,
            };
            return Ok(Value::Number(code, self.long));
        }
        let (left, left_type) = self.as_number(left, &a.span)?;
        let (right, right_type) = self.as_number(right, &b.span)?;
        let target = |ty| match self.types.bare(ty) {
            Node::Pointer { to, .. } => Some(to),
            _ => None,
        };
        match (operation, target(left_type), target(right_type)) {
            (Binary::Add, Some(to), None) => {
                let code = self.step(left, right, to, span)?;
                return Ok(Value::Number(code, left_type));
            }
            (Binary::Add, None, Some(to)) => {
                let code = self.step(right, left, to, span)?;
                return Ok(Value::Number(code, right_type));
            }
            (Binary::Subtract, Some(to), None) => {
                let back = Code::Negate(Box::new(right));
                return Ok(Value::Number(self.step(left, back, to, span)?, left_type));
            }
            (Binary::Subtract, Some(to), Some(_)) => {
                let size = self.types.size(to).filter(|size| *size > 0);
                let Some(size) = size else {
                    return fail(span, "the size of what these point to is not known");
                };
                let between = binary(Binary::Subtract, left, right, false);
                let code = binary(Binary::Divide, between, Code::Constant(size), false);
                return Ok(Value::Number(code, self.long));
            }
            _ => {}
        }
        let is_unsigned = self.is_unsigned(left_type)
            || (self.is_unsigned(right_type)
                && !matches!(operation, Binary::ShiftLeft | Binary::ShiftRight));
        let ty = match operation {
            Binary::Or
            | Binary::And
            | Binary::Equal
            | Binary::Differ
            | Binary::Less
            | Binary::LessOrEqual
            | Binary::Greater
            | Binary::GreaterOrEqual => self.long,
            _ if is_unsigned => self.unsigned,
            _ => self.long,
        };
        Ok(Value::Number(
            binary(operation, left, right, is_unsigned),
            ty,
        ))
    }

    fn compare_text(&self, left: &Value, right: &Value, span: &Span) -> Lowers<Option<Code>> {
        let (text, other) = match (left, right) {
            (Value::Text(text), other) | (other, Value::Text(text)) => (text, other),
            _ => return Ok(None),
        };
        if text.len() + 2 > KEY_TEXT as usize || text.contains('\0') {
            let max = KEY_TEXT - 2;
            return fail(
                span,
                format!("a text that is compared has at most {max} bytes, without 0"),
            );
        }
        match self.text_of(other) {
            Some((address, _)) => Ok(Some(Code::IsText(Box::new(address), text.clone()))),
            None => fail(span, "one side is a text, and the other is none"),
        }
    }

    /// Where the text is that something is, or points to, and how many bytes it has at most.
    fn text_of(&self, value: &Value) -> Option<(Code, u32)> {
        let (address, ty) = match value {
            Value::Str(address, bytes) => return Some((address.clone(), *bytes)),
            Value::Memory(address, ty, None) if self.is_whole(*ty) => (address.clone(), *ty),
            value => self.as_number(value.clone(), &(0..0)).ok()?,
        };
        let of = match self.types.bare(ty) {
            Node::Pointer { to, .. } => to,
            Node::Array { of, .. } => of,
            _ => return None,
        };
        self.is_character(of).then_some((address, TEXT_BYTES))
    }

    fn cast(&self, code: Code, ty: TypeId, span: &Span) -> Lowers<Value> {
        let (size, is_signed) = match self.types.bare(ty) {
            Node::Int { size, encoding, .. } => (size, encoding.is_signed()),
            Node::Enum {
                size, is_signed, ..
            } => (size, is_signed),
            Node::Pointer { .. } => (8, false),
            _ => {
                let ty = self.types.name(ty);
                return fail(span, format!("nothing can be made a {ty}"));
            }
        };
        let bits = u8::try_from(size * 8).unwrap_or(64);
        let code = match (code, bits) {
            (code, 64..) => code,
            (Code::Constant(value), bits) => {
                Code::Constant(crate::code::narrow(value, (0, bits), is_signed))
            }
            (of, bits) => Code::Narrow {
                of: Box::new(of),
                bits: (0, bits),
                is_signed,
            },
        };
        Ok(Value::Number(code, ty))
    }

    fn size_of(&self, ty: TypeId, span: &Span) -> Lowers<Value> {
        match self.types.size(self.complete(ty)) {
            Some(size) => Ok(Value::Number(Code::Constant(size), self.unsigned)),
            None => fail(span, "its size is not known"),
        }
    }

    /// The type that a name says.
    ///
    /// # Errors
    /// There is none, or there are several.
    pub fn type_named(&self, name: &TypeName) -> Lowers<TypeId> {
        if let (Some(wanted), Some(own)) = (name.pid, self.names.process())
            && wanted != own
        {
            let why = format!("types of process {wanted} are not read here, but those of {own}");
            return fail(&name.span, why);
        }
        let mut ty = match base_type(&name.name).filter(|_| name.kind.is_none()) {
            Some(None) => TypeId::VOID,
            Some(Some(node)) => self.types.add(node),
            None => {
                let keyword = match name.kind {
                    Some(Kind::Struct) => "struct ",
                    Some(Kind::Union) => "union ",
                    Some(Kind::Enum) => "enum ",
                    None => "",
                };
                let spelled = format!("{keyword}{}", name.name);
                let find = |spelled: &str| match self.types.spelled(spelled) {
                    Ok(ty) => Ok(ty),
                    Err(error) => self.names.type_named(spelled).ok_or(error),
                };
                // What a typedef names may have no name of its own.
                let is_fitting = |ty: &TypeId| self.is_record(*ty);
                let other = || find(&name.name).ok().filter(is_fitting);
                match find(&spelled) {
                    Ok(ty) => ty,
                    Err(error) => match other().filter(|_| name.kind.is_some()) {
                        Some(ty) => ty,
                        None => return fail(&name.span, error.to_string()),
                    },
                }
            }
        };
        for _ in 0..name.pointers {
            ty = self.types.pointer_to(ty);
        }
        Ok(ty)
    }

    /// The type behind typedefs and qualifiers; of a declaration its definition, wherever it is.
    fn complete(&self, ty: TypeId) -> TypeId {
        let full = self.types.complete(ty);
        let Node::Forward { kind, name } = self.types.node(full) else {
            return full;
        };
        let spelled = format!("{} {name}", kind.word());
        self.names.type_named(&spelled).unwrap_or(full)
    }

    fn is_record(&self, ty: TypeId) -> bool {
        matches!(self.types.node(self.complete(ty)), Node::Record { .. })
    }

    /// It is printed as it lies there.
    fn is_whole(&self, ty: TypeId) -> bool {
        matches!(self.types.bare(ty), Node::Array { .. } | Node::Float { .. }) || self.is_record(ty)
    }

    fn is_character(&self, ty: TypeId) -> bool {
        matches!(
            self.types.bare(ty),
            Node::Int {
                size: 1,
                encoding: Encoding::SignedChar | Encoding::UnsignedChar,
                ..
            }
        )
    }

    fn is_signed(&self, ty: TypeId) -> bool {
        match self.types.bare(ty) {
            Node::Int { encoding, .. } => encoding.is_signed(),
            Node::Enum { is_signed, .. } => is_signed,
            _ => false,
        }
    }

    /// Its values are 0 to 2^64 - 1: a narrower one fits into a signed number.
    fn is_unsigned(&self, ty: TypeId) -> bool {
        match self.types.bare(ty) {
            Node::Int { size, encoding, .. } => size == 8 && !encoding.is_signed(),
            Node::Enum {
                size, is_signed, ..
            } => size == 8 && !is_signed,
            Node::Pointer { .. } => true,
            _ => false,
        }
    }

    fn widened(&self, ty: TypeId) -> TypeId {
        match self.is_unsigned(ty) {
            true => self.unsigned,
            false => self.long,
        }
    }

    fn common(&self, one: TypeId, other: TypeId) -> TypeId {
        match self.is_unsigned(one) {
            true => self.unsigned,
            false => self.widened(other),
        }
    }
}

/// How many bytes of a text are wanted.
fn text_bytes(bytes: Option<u64>, span: &Span) -> Lowers<u32> {
    let bytes = bytes.unwrap_or(TEXT_BYTES.into());
    match u32::try_from(bytes) {
        Ok(wanted @ 2..) if bytes <= TEXT_MAX => Ok(wanted),
        _ => fail(span, format!("a text has 2 to {TEXT_MAX} bytes")),
    }
}

fn binary(operation: Binary, left: Code, right: Code, is_unsigned: bool) -> Code {
    let sides = Box::new([left, right]);
    Code::Binary {
        is_unsigned,
        operation,
        sides,
    }
}

/// A type of C's own by its words, in any order; `Some(None)` for `void`.
fn base_type(name: &str) -> Option<Option<Node>> {
    let mut words: Vec<&str> = name.split(' ').filter(|word| *word != "int").collect();
    words.sort_unstable();
    let is_int = name.split(' ').any(|word| word == "int");
    let (size, encoding) = match (words.as_slice(), is_int) {
        (["void"], false) => return Some(None),
        (["char"], false) => (1, Encoding::SignedChar),
        (["char", "signed"], false) => (1, Encoding::SignedChar),
        (["char", "unsigned"], false) => (1, Encoding::UnsignedChar),
        (["_Bool"], false) => (1, Encoding::Bool),
        (["short"] | ["short", "signed"], _) => (2, Encoding::Signed),
        (["short", "unsigned"], _) => (2, Encoding::Unsigned),
        ([], true) | (["signed"], _) => (4, Encoding::Signed),
        (["unsigned"], _) => (4, Encoding::Unsigned),
        (["long"] | ["long", "long"] | ["long", "signed"] | ["long", "long", "signed"], _) => {
            (8, Encoding::Signed)
        }
        (["long", "unsigned"] | ["long", "long", "unsigned"], _) => (8, Encoding::Unsigned),
        _ => return None,
    };
    let name = name.into();
    Some(Some(Node::Int {
        name,
        size,
        encoding,
    }))
}

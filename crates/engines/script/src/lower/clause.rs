//! Clauses: what is done, what records have, and what clauses share.

use std::ops::Range;

use windlass_types::{Node, TypeId};

use super::{Lowering, Lowers, Value, fail};
use crate::code::{Code, Moment};
use crate::ebpf::{
    Action, Addition, FIELD_HEAD, Field, KEY_MAX, KeyPart, LOCALS_MAX, Plan, RECORD_HEAD,
    RECORD_MAX,
};
use crate::format::Format;
use crate::syntax::{Aggregate, Binary, Clause, Expr, Scope, Stack, Statement};
use crate::{ScriptError, Span};

/// How many pointers of a printed object are followed, one behind another.
const FOLLOW_DEPTH: u32 = 2;
/// Texts of a printed object that are read with it.
const FOLLOW_TEXTS: usize = 8;
/// Bytes of a text in an object.
const FOLLOW_TEXT_BYTES: u32 = 64;
/// Objects that are read with one that points to them, and the bytes of one at most.
const FOLLOW_OBJECTS: usize = 8;
const FOLLOW_OBJECT_BYTES: u64 = 1024;
/// Fields of a record.
const FIELDS_MAX: usize = 128;
/// Callers that are printed, and that are in a key, if nothing else is said.
const CALLERS: u64 = 32;
const KEY_CALLERS: u64 = 8;
/// Callers at most.
const CALLERS_MAX: u64 = 127;
/// Variables of threads, and aggregations.
const SHARED_MAX: usize = 256;
/// Nanoseconds of a row of `subsecond`.
const ROW_NS: u64 = 10_000_000;

/// How a printed value is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// As its type says.
    Typed,
    /// A text: a pointer to characters, or an array of them.
    Text,
    /// Addresses of code.
    Stack(Stack),
    /// An address of code.
    Symbol,
}

/// What a printed value is, and which fields of the record it is in.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    /// What was to be printed, as it was written.
    pub text: String,
    /// Its type.
    pub ty: TypeId,
    /// How it is read.
    pub look: Look,
    /// Its field's number.
    pub field: usize,
    /// The fields behind it that have what it points to.
    pub behind: Range<usize>,
}

/// One statement that is shown.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// In columns.
    Values(Vec<Shown>),
    /// As a text, if this field was reached.
    Text(Format, Vec<Shown>, usize),
}

/// A part of an aggregation's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// A number of this type.
    Number(TypeId),
    /// A text.
    Text,
    /// So many addresses of code.
    Stack(Stack, u32),
    /// A thread's name.
    Name,
    /// An address of code.
    Symbol,
}

/// An aggregation.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// Without the `@`; may be empty.
    pub name: String,
    /// What is kept.
    pub how: Aggregate,
    /// Its values are 0 or more.
    pub is_unsigned: bool,
    /// Its lines' keys, without what keeps the time.
    pub keys: Vec<KeyKind>,
    /// Whose types they are of.
    pub module: usize,
    /// Bytes of its key.
    pub key_bytes: u32,
}

/// What clauses have in common.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    /// Variables of threads, with the module of their types.
    variables: Vec<(String, usize, TypeId)>,
    /// The aggregations, by their numbers.
    pub kept: Vec<Kept>,
    /// Nanoseconds from the clock of records to that on the wall.
    pub to_wall: i64,
    /// Some clause ends the tracing.
    pub may_stop: bool,
}

impl Shared {
    /// Nothing yet.
    #[must_use]
    pub fn new(to_wall: i64) -> Self {
        Self {
            to_wall,
            ..Self::default()
        }
    }

    /// The number of a thread's variable, the module of its type, and its type.
    pub(super) fn variable(&self, name: &str) -> Option<(u32, usize, TypeId)> {
        let at = self.variables.iter().position(|(own, ..)| own == name)?;
        let (_, module, ty) = self.variables.get(at)?;
        Some((u32::try_from(at).ok()?, *module, *ty))
    }

    /// The number of an aggregation, which is made if it is not there: with one name there may be several that keep different things.
    fn aggregation(&mut self, wanted: Kept) -> Option<usize> {
        let is_same = |kept: &Kept| {
            (&kept.name, kept.how, kept.is_unsigned, kept.key_bytes)
                == (
                    &wanted.name,
                    wanted.how,
                    wanted.is_unsigned,
                    wanted.key_bytes,
                )
                && kept.keys.len() == wanted.keys.len()
                && kept
                    .keys
                    .iter()
                    .zip(&wanted.keys)
                    .all(|(a, b)| std::mem::discriminant(a) == std::mem::discriminant(b))
        };
        match self.kept.iter().position(is_same) {
            Some(at) => Some(at),
            None if self.kept.len() == SHARED_MAX => None,
            None => {
                self.kept.push(wanted);
                Some(self.kept.len() - 1)
            }
        }
    }
}

/// A clause at one place, and how what it records is shown.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Lowered {
    /// What the program does.
    pub plan: Plan,
    /// What is shown, in its order.
    pub told: Vec<Told>,
}

impl Lowered {
    /// All that is printed in columns.
    pub fn values(&self) -> impl Iterator<Item = &Shown> {
        let values = self.told.iter().filter_map(|told| match told {
            Told::Values(values) => Some(values),
            Told::Text(..) => None,
        });
        values.flatten()
    }
}

impl Lowering<'_, '_> {
    /// A clause. `text` is what it was written as.
    ///
    /// # Errors
    /// A name that is not there or has no value at the place, a type that does not fit, more than a record or key can hold.
    pub fn clause(&self, clause: &Clause, text: &str) -> Lowers<Lowered> {
        let mut lowered = Lowered::default();
        self.locals.borrow_mut().clear();
        if let Some(filter) = &clause.filter {
            lowered.plan.filter = Some(self.number(filter)?.0);
        }
        lowered.plan.actions = self.statements(&clause.statements, text, &mut lowered)?;
        lowered.plan.is_told = clause.statements.is_empty();
        lowered.plan.locals = u32::try_from(self.locals.borrow().len()).unwrap_or(LOCALS_MAX);
        Ok(lowered)
    }

    fn statements(
        &self,
        statements: &[Statement],
        text: &str,
        lowered: &mut Lowered,
    ) -> Lowers<Vec<Action>> {
        let actions = statements.iter().map(|statement| {
            Ok(match statement {
                Statement::Print(values) => {
                    let first = lowered.plan.fields.len();
                    let shown = self.printed(values, text, &mut lowered.plan)?;
                    lowered.told.push(Told::Values(shown));
                    Action::Tell(first..lowered.plan.fields.len())
                }
                Statement::Printf(format, values) => {
                    let first = lowered.plan.fields.len();
                    lowered.plan.fields.push(Field::Scalar(Code::Constant(1)));
                    let shown = self.printed(values, text, &mut lowered.plan)?;
                    lowered.told.push(Told::Text(format.clone(), shown, first));
                    Action::Tell(first..lowered.plan.fields.len())
                }
                Statement::Set(scope, name, value) => self.set(*scope, name, value)?,
                Statement::If(condition, then, otherwise) => {
                    let (condition, _) = self.number(condition)?;
                    let then = self.statements(then, text, lowered)?;
                    let otherwise = self.statements(otherwise, text, lowered)?;
                    Action::If(condition, then, otherwise)
                }
                Statement::Stop(count) => {
                    if let Some((shared, _)) = self.shared {
                        shared.borrow_mut().may_stop = true;
                    }
                    Action::Stop(*count)
                }
                Statement::Aggregate {
                    name,
                    keys,
                    how,
                    of,
                    span,
                } => self.aggregate((name, *how), keys, of.as_ref(), span)?,
            })
        });
        actions.collect()
    }

    fn printed(&self, values: &[Expr], text: &str, plan: &mut Plan) -> Lowers<Vec<Shown>> {
        let shown = values.iter().map(|value| {
            let written = text.get(value.span.clone()).unwrap_or_default();
            self.print(value, written, plan)
        });
        shown.collect()
    }

    fn set(&self, scope: Scope, name: &str, value: &Expr) -> Lowers<Action> {
        let (code, ty) = self.number(value)?;
        match scope {
            Scope::Clause => {
                let mut locals = self.locals.borrow_mut();
                let at = locals.iter().position(|(own, _)| own == name);
                let at = at.unwrap_or(locals.len());
                if at == locals.len() {
                    if at >= LOCALS_MAX as usize {
                        return fail(
                            &value.span,
                            format!("a clause has at most {LOCALS_MAX} variables"),
                        );
                    }
                    locals.push((name.to_owned(), ty));
                }
                Ok(Action::SetClause(u32::try_from(at).unwrap_or(0), code))
            }
            Scope::Thread => {
                let Some((shared, module)) = self.shared else {
                    return fail(&value.span, "there are no threads here");
                };
                let mut shared = shared.borrow_mut();
                let known = shared.variable(name).map(|(number, ..)| number);
                let number = match known {
                    Some(number) => number,
                    None if shared.variables.len() == SHARED_MAX => {
                        let why = format!("threads have at most {SHARED_MAX} variables");
                        return fail(&value.span, why);
                    }
                    None => {
                        shared.variables.push((name.to_owned(), module, ty));
                        u32::try_from(shared.variables.len() - 1).unwrap_or(0)
                    }
                };
                Ok(Action::SetThread(number, code))
            }
        }
    }

    fn aggregate(
        &self,
        (name, how): (&str, Aggregate),
        keys: &[Expr],
        of: Option<&Expr>,
        span: &Span,
    ) -> Lowers<Action> {
        let Some((shared, module)) = self.shared else {
            return fail(span, "there are no aggregations here");
        };
        let parts = keys.iter().map(|key| self.key(key));
        let (mut key, keys): (Vec<_>, Vec<_>) =
            parts.collect::<Lowers<Vec<_>>>()?.into_iter().unzip();
        let of = of.map(|of| self.number(of)).transpose()?;
        let is_unsigned = of.as_ref().is_some_and(|(_, ty)| self.is_unsigned(*ty));
        let mut of = of.map(|(code, _)| code);
        let to_wall = shared.borrow().to_wall;
        match how {
            Aggregate::Subsecond => key.push(KeyPart::Scalar(wall(to_wall, ROW_NS))),
            Aggregate::Heat => {
                key.push(KeyPart::Scalar(wall(to_wall, 1_000_000_000)));
                let value = of.take().unwrap_or(Code::Constant(0));
                key.push(KeyPart::Scalar(rows(value, is_unsigned)));
            }
            _ => {}
        }
        let bytes = key.iter().map(KeyPart::bytes).fold(0, u32::saturating_add);
        if bytes > KEY_MAX {
            return fail(span, format!("keys of more than {KEY_MAX} bytes"));
        }
        let wanted = Kept {
            name: name.to_owned(),
            how,
            is_unsigned,
            keys,
            module,
            key_bytes: bytes.max(8),
        };
        let Some(to) = shared.borrow_mut().aggregation(wanted) else {
            return fail(span, format!("there are at most {SHARED_MAX} aggregations"));
        };
        Ok(Action::Add(Addition {
            to,
            key,
            how,
            of,
            is_unsigned,
        }))
    }

    fn key(&self, key: &Expr) -> Lowers<(KeyPart, KeyKind)> {
        let value = self.value(key)?;
        Ok(match (self.text_of(&value), value) {
            (_, Value::Stack(of, depth)) => {
                let depth = callers(depth, KEY_CALLERS, u64::from(KEY_MAX / 8), &key.span)?;
                (KeyPart::Stack(of, depth), KeyKind::Stack(of, depth))
            }
            (_, Value::ThreadName) => (KeyPart::Name, KeyKind::Name),
            (_, Value::Symbol(code)) => (KeyPart::Scalar(code), KeyKind::Symbol),
            (Some((address, _)), _) => (KeyPart::Text(address), KeyKind::Text),
            (None, value) => {
                let (code, ty) = self.as_number(value, &key.span)?;
                (KeyPart::Scalar(code), KeyKind::Number(ty))
            }
        })
    }

    /// Adds the fields that a value needs.
    fn print(&self, expr: &Expr, text: &str, plan: &mut Plan) -> Lowers<Shown> {
        let value = self.value(expr)?;
        let field = plan.fields.len();
        let place = self.text_of(&value);
        let (add, ty, look) = match (value, place) {
            (Value::Stack(of, depth), _) => {
                let depth = callers(depth, CALLERS, CALLERS_MAX, &expr.span)?;
                (Field::Stack(of, depth), self.unsigned, Look::Stack(of))
            }
            (Value::ThreadName, _) => (Field::Name, self.character, Look::Text),
            (Value::Symbol(code), _) => (Field::Scalar(code), self.unsigned, Look::Symbol),
            (Value::Memory(address, ty, None), place) if self.is_whole(ty) => {
                let bytes = self.types.size(ty).filter(|bytes| *bytes > 0);
                let Some(bytes) = bytes.and_then(|bytes| u32::try_from(bytes).ok()) else {
                    return fail(&expr.span, "the size of this is not known");
                };
                let look = match place {
                    Some(_) => Look::Text,
                    None => Look::Typed,
                };
                (Field::Object(address, bytes), ty, look)
            }
            (_, Some((address, bytes))) => {
                let ty = self.types.pointer_to(self.character);
                (Field::Text(address, bytes), ty, Look::Text)
            }
            (value, None) => {
                let (code, ty) = self.as_number(value, &expr.span)?;
                (Field::Scalar(code), ty, Look::Typed)
            }
        };
        let is_object = matches!(add, Field::Object(..));
        plan.fields.push(add);
        if is_object {
            self.follow((field, field), ty, FOLLOW_DEPTH, plan);
        }
        if plan.record_bytes() > RECORD_MAX || plan.fields.len() > FIELDS_MAX {
            let why = format!("this does not fit into a record of {RECORD_MAX} bytes");
            return fail(&expr.span, why);
        }
        Ok(Shown {
            text: text.to_owned(),
            ty,
            look,
            field,
            behind: field + 1..plan.fields.len(),
        })
    }

    /// Adds what an object points to: texts, and objects as far as `depth`. The value that is printed begins with field `first`.
    fn follow(&self, (first, field): (usize, usize), ty: TypeId, depth: u32, plan: &mut Plan) {
        let before = plan.fields.get(..field).unwrap_or_default();
        let at = before.iter().map(Field::bytes).sum::<u32>() + RECORD_HEAD + FIELD_HEAD;
        for (offset, to) in self.pointers(ty) {
            let Ok(offset) = u32::try_from(offset) else {
                continue;
            };
            let address = Code::Captured(at + offset);
            let is_text = |field: &&Field| matches!(field, Field::Text(..));
            let own = plan.fields.iter().skip(first);
            let (texts, objects): (Vec<_>, Vec<_>) = own.partition(is_text);
            let (texts, objects) = (texts.len(), objects.len());
            let size = self.types.size(to);
            let next = match self.types.bare(to) {
                _ if self.is_character(to) && texts < FOLLOW_TEXTS => {
                    Field::Text(address, FOLLOW_TEXT_BYTES)
                }
                Node::Record { .. } if depth > 0 && objects <= FOLLOW_OBJECTS => match size {
                    Some(size @ 1..=FOLLOW_OBJECT_BYTES) => {
                        Field::Object(address, u32::try_from(size).unwrap_or(0))
                    }
                    _ => continue,
                },
                _ => continue,
            };
            if plan.record_bytes().saturating_add(next.bytes()) > RECORD_MAX {
                return;
            }
            let is_object = matches!(next, Field::Object(..));
            let number = plan.fields.len();
            plan.fields.push(next);
            if is_object {
                self.follow((first, number), to, depth - 1, plan);
            }
        }
    }

    /// The pointers of an object: where they are, and what they point to.
    fn pointers(&self, ty: TypeId) -> Vec<(u64, TypeId)> {
        let mut all = Vec::new();
        self.add_pointers(ty, 0, 0, &mut all);
        all
    }

    fn add_pointers(&self, ty: TypeId, at: u64, depth: usize, all: &mut Vec<(u64, TypeId)>) {
        if depth >= windlass_types::DEPTH_MAX || all.len() >= FIELDS_MAX {
            return;
        }
        match self.types.bare(ty) {
            Node::Pointer { to, size: 8, .. } => all.push((at, to)),
            Node::Record {
                variants: None,
                members,
                ..
            } => {
                for member in members.iter().filter(|member| member.bit_size.is_none()) {
                    let at = at.saturating_add(member.bit_offset / 8);
                    self.add_pointers(member.ty, at, depth + 1, all);
                }
            }
            _ => {}
        }
    }
}

/// The time on the wall, in so many nanoseconds.
fn wall(to_wall: i64, unit: u64) -> Code {
    let now = Code::Moment(Moment::Now).plus(to_wall);
    super::binary(Binary::Divide, now, Code::Constant(unit), true)
}

/// The row of a value of `heat`: below 0 there is one.
fn rows(value: Code, is_unsigned: bool) -> Code {
    let steps = Code::Steps(Box::new(value.clone()));
    if is_unsigned {
        return steps;
    }
    let is_negative = super::binary(Binary::Less, value, Code::Constant(0), false);
    Code::Choose(Box::new([is_negative, Code::Constant(u64::MAX), steps]))
}

/// How many callers are wanted.
fn callers(depth: Option<u64>, usual: u64, most: u64, span: &Span) -> Lowers<u32> {
    let depth = depth.unwrap_or(usual);
    match u32::try_from(depth) {
        Ok(wanted @ 1..) if depth <= most => Ok(wanted),
        _ => Err(ScriptError::at(
            span.clone(),
            format!("1 to {most} callers are told here"),
        )),
    }
}

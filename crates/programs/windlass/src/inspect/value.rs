//! What expressions come to: the language of `windlass-script` on a program's names, types and memory.
//!
//! # Model
//! [`Types`](windlass_types::Types) are of one file. An expression is lowered in those of the first file that it names something of; types of others are
//! copied there, and records behind pointers when a member of them is asked for.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use windlass_script::evaluate::{Fault, Surroundings, evaluate};
use windlass_script::lower::{Location, Lowering, Names};
use windlass_script::syntax::{Expr, ExprKind};
use windlass_script::{Code, ScriptError, parse};
use windlass_target::Memory;
use windlass_types::{Kind, Member, Node, RecordKind, TypeId};

use crate::failure::Failure;
use crate::suggest;
use crate::table::clean;

use super::absent;
use super::target::{Target, Typed};

/// The record that a member is of, or what comes through a pipe.
pub(super) const THIS: &str = "this";

/// What an expression means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    /// Something in the program's memory.
    Object { of: Typed, at: u64 },
    /// A number that is not in memory, or a bit-field.
    Number { of: Typed, value: u64 },
}

impl Value {
    /// Its type.
    pub(super) fn of(&self) -> Typed {
        match self {
            Self::Object { of, .. } | Self::Number { of, .. } => *of,
        }
    }

    /// The address of an object, or the number.
    pub(super) fn word(&self) -> u64 {
        match self {
            Self::Object { at, .. } => *at,
            Self::Number { value, .. } => *value,
        }
    }

    /// A name for it.
    pub(super) fn bound(&self, name: &'static str) -> Bound {
        Bound {
            name,
            of: self.of(),
            is_value: matches!(self, Self::Number { .. }),
        }
    }
}

/// A name of an expression's own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub(super) name: &'static str,
    pub(super) of: Typed,
    /// Its register has the value; otherwise the address.
    pub(super) is_value: bool,
}

/// What an expression stands in.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Within<'w> {
    /// Names, by their registers. Members of the first one have their names alone, too.
    pub(super) bound: &'w [Bound],
    /// What `$T` stands for.
    pub(super) captures: &'w [(char, String)],
    /// The file of those types.
    pub(super) home: usize,
    /// What is wrong is not told.
    pub(super) is_quiet: bool,
}

/// An expression, as far as it is known without memory.
#[derive(Debug, Clone)]
pub(super) struct Located {
    pub(super) of: Typed,
    pub(super) location: Location,
}

impl Located {
    /// What it comes to if the registers of its names have these words.
    pub(super) fn at(&self, target: &Target<'_>, registers: &[u64]) -> Result<Value, Failure> {
        let of = self.of;
        match &self.location {
            Location::Memory(code) => {
                let at = computed(target, registers, code)?;
                Ok(Value::Object { of, at })
            }
            Location::Value(code) => {
                let value = computed(target, registers, code)?;
                Ok(Value::Number { of, value })
            }
            Location::Pieces(_) | Location::Absent(_) => Err(absent("it is not in memory", "")),
        }
    }

    /// A name for what it comes to.
    pub(super) fn bound(&self, name: &'static str) -> Bound {
        Bound {
            name,
            of: self.of,
            is_value: matches!(self.location, Location::Value(_)),
        }
    }
}

/// The expressions between commas.
pub(super) fn expressions(text: &str) -> Result<Vec<Expr>, Failure> {
    parse::expressions(text).map_err(|error| Failure::usage(marked(text, error), ""))
}

/// What an expression means, which is a part of `text`.
pub(super) fn value(target: &Target<'_>, text: &str, expr: &Expr) -> Result<Value, Failure> {
    located(target, &Within::default(), text, expr.clone())?.at(target, &[])
}

/// The number that an expression is.
pub(super) fn number(target: &Target<'_>, text: &str) -> Result<u64, Failure> {
    let (_, code) = number_in(target, &Within::default(), text)?;
    computed(target, &[], &code)
}

/// A member of a record, by a path such as `addr->name` or `grid[1]`.
pub(super) fn member(target: &Target<'_>, of: Typed, path: &str) -> Result<Located, Failure> {
    let text = format!("{THIS}.{path}");
    let bound = [Bound {
        name: THIS,
        of,
        is_value: false,
    }];
    let within = Within {
        bound: &bound,
        ..Within::default()
    };
    located(target, &within, &text, expression(&within, &text)?)
}

/// What an expression means among other names.
pub(super) fn expression_in(
    target: &Target<'_>,
    within: &Within<'_>,
    text: &str,
) -> Result<Located, Failure> {
    located(target, within, text, expression(within, text)?)
}

/// What an expression means that is a part of `text`, of an element of a pipe.
pub(super) fn located_in(
    target: &Target<'_>,
    within: &Within<'_>,
    text: &str,
    expr: &Expr,
) -> Result<Located, Failure> {
    located(target, within, text, expr.clone())
}

/// The number that an expression is among other names: its type, and how it is computed.
pub(super) fn number_in(
    target: &Target<'_>,
    within: &Within<'_>,
    text: &str,
) -> Result<(Typed, Code), Failure> {
    let mut expr = expression(within, text)?;
    own_members(target, within, &mut expr);
    let (module, (code, ty)) = lower(target, within, text, |lowering| lowering.number(&expr))?;
    Ok((Typed { module, ty }, code))
}

fn expression(within: &Within<'_>, text: &str) -> Result<Expr, Failure> {
    let told = |error| match within.is_quiet {
        true => absent("", ""),
        false => Failure::usage(marked(text, error), ""),
    };
    parse::expression(text).map_err(told)
}

fn located(
    target: &Target<'_>,
    within: &Within<'_>,
    text: &str,
    mut expr: Expr,
) -> Result<Located, Failure> {
    own_members(target, within, &mut expr);
    let (module, (location, ty)) =
        lower(target, within, text, |lowering| lowering.expression(&expr))?;
    let of = Typed { module, ty };
    Ok(Located { of, location })
}

/// Names of members of the first bound name become that: `id` is `this.id`.
fn own_members(target: &Target<'_>, within: &Within<'_>, expr: &mut Expr) {
    let Some(this) = within.bound.first() else {
        return;
    };
    let mut record = target.complete(this.of);
    if let Node::Pointer { to, .. } = target.node(record) {
        record = target.complete(Typed { ty: to, ..record });
    }
    let types = target.types(record.module);
    let is_own = |name: &str| {
        !within.bound.iter().any(|bound| bound.name == name)
            && types.member(record.ty, name).is_some()
    };
    replace(expr, &is_own);
}

fn replace(expr: &mut Expr, is_own: &dyn Fn(&str) -> bool) {
    match &mut expr.kind {
        ExprKind::Name(name) if is_own(name) => {
            let kind = ExprKind::Name(THIS.to_owned());
            let span = expr.span.start..expr.span.start;
            expr.kind = ExprKind::Member(Box::new(Expr { kind, span }), std::mem::take(name));
        }
        ExprKind::Member(of, _)
        | ExprKind::Deref(of)
        | ExprKind::Address(of)
        | ExprKind::Negate(of)
        | ExprKind::Not(of)
        | ExprKind::Complement(of)
        | ExprKind::Cast(_, of)
        | ExprKind::SizeOf(of)
        | ExprKind::Str(of, _) => replace(of, is_own),
        ExprKind::Index(one, other) | ExprKind::Binary(_, one, other) => {
            replace(one, is_own);
            replace(other, is_own);
        }
        ExprKind::Choose(one, two, three) => {
            for of in [one, two, three] {
                replace(of, is_own);
            }
        }
        _ => {}
    }
}

/// Lowers in the types of the first file that something is named of; says which.
fn lower<T>(
    target: &Target<'_>,
    within: &Within<'_>,
    text: &str,
    how: impl Fn(&Lowering<'_, '_>) -> Result<T, ScriptError>,
) -> Result<(usize, T), Failure> {
    let mut scope = Scope {
        target,
        within,
        home: within.home,
        first: Cell::default(),
        missing: RefCell::default(),
        copies: RefCell::default(),
    };
    loop {
        let lowered = how(&Lowering::new(target.types(scope.home), &scope));
        match scope.first.get() {
            Some(first) if first != scope.home => {
                scope.home = first;
                scope.copies.take();
            }
            _ => {
                let lowered = lowered.map_err(|error| {
                    if within.is_quiet {
                        return absent("", "");
                    }
                    let why = marked(text, error);
                    scope.missing.take().unwrap_or_else(|| absent(why, ""))
                })?;
                return Ok((scope.home, lowered));
            }
        }
    }
}

/// Shows the place in the text, before the one line of a failure; what is wrong there.
fn marked(text: &str, error: ScriptError) -> String {
    let (span, why) = (error.span, clean(&error.why));
    eprintln!(
        "{}",
        ScriptError {
            span,
            why: why.clone()
        }
        .show(text)
    );
    why
}

/// A program's memory, and what names of an expression's own have.
struct At<'t, 'a> {
    target: &'t Target<'a>,
    registers: &'t [u64],
}

impl Surroundings for At<'_, '_> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.target.read_all(address, into)
    }

    fn register(&self, number: u16) -> Option<u64> {
        self.registers.get(usize::from(number)).copied()
    }
}

/// What code comes to.
pub(super) fn computed(
    target: &Target<'_>,
    registers: &[u64],
    code: &Code,
) -> Result<u64, Failure> {
    evaluate(code, &At { target, registers }).map_err(|fault| match fault {
        Fault::Address(at) => absent(
            format!("<fault {at:#x}>: nothing can be read there"),
            "\"maps\" lists what is mapped",
        ),
        Fault::Division => absent("a division by 0", ""),
        Fault::NotHere => absent("only a probe has pid, tid, cpu and now", ""),
    })
}

/// What has a name in a program.
struct Scope<'t, 'a> {
    target: &'t Target<'a>,
    within: &'t Within<'t>,
    /// The file whose types are used.
    home: usize,
    /// The file of the first thing that was named.
    first: Cell<Option<usize>>,
    /// Why a name means nothing.
    missing: RefCell<Option<Failure>>,
    /// Types of other files, by whether they are behind a pointer. Broken records that contain themselves are copied once for each depth.
    copies: RefCell<HashMap<(Typed, bool), TypeId>>,
}

impl Names for Scope<'_, '_> {
    fn find(&self, name: &str) -> Option<(Location, TypeId)> {
        let mut own = (0_u16..).zip(self.within.bound);
        if let Some((register, bound)) = own.find(|(_, bound)| bound.name == name) {
            let code = Code::Register(register);
            let location = match bound.is_value {
                true => Location::Value(code),
                false => Location::Memory(code),
            };
            return Some((location, self.own(bound.of)));
        }
        let (of, at) = self.target.variable(name).ok()?;
        Some((Location::Memory(Code::Constant(at)), self.own(of)))
    }

    fn missing(&self, name: &str) -> String {
        if self.within.is_quiet {
            return String::new();
        }
        if name == THIS {
            return "only what comes through a pipe, views and walkers have that".to_owned();
        }
        let failure = self.target.variable(name).err();
        self.missing.replace(failure);
        format!("there is no variable \"{name}\"")
    }

    fn type_named(&self, spelled: &str) -> Option<TypeId> {
        if spelled.contains('$') {
            let name = windlass_views::pattern::filled(spelled, self.within.captures);
            let found = self.target.exact(self.within.home, &name, 0)?;
            return Some(self.own(found));
        }
        let found = self.target.find_type(spelled).ok()?;
        found.map(|found| self.own(found))
    }

    fn near<'n>(&self, name: &str, all: &[&'n str]) -> Option<&'n str> {
        suggest::nearest(name, all.iter().copied())
    }
}

impl Scope<'_, '_> {
    /// A type among those that are used.
    fn own(&self, of: Typed) -> TypeId {
        if self.first.get().is_none() {
            self.first.set(Some(of.module));
        }
        match of.module == self.home {
            true => of.ty,
            false => self.copy(of, false, 0),
        }
    }

    /// Copies a type of another file. A record behind a pointer becomes a declaration.
    fn copy(&self, of: Typed, is_behind: bool, depth: usize) -> TypeId {
        let types = self.target.types(self.home);
        if depth > windlass_types::DEPTH_MAX {
            return types.add(Node::Unknown("types too deep".into()));
        }
        if let Some(copied) = self.copies.borrow().get(&(of, is_behind)) {
            return *copied;
        }
        let copy = |ty, is_behind| self.copy(Typed { ty, ..of }, is_behind, depth + 1);
        let node = match self.target.node(of) {
            Node::Pointer { to, size, kind } => {
                let to = copy(to, true);
                Node::Pointer { to, size, kind }
            }
            Node::Array { of, count } => {
                let of = copy(of, is_behind);
                Node::Array { of, count }
            }
            Node::Typedef { name, to } => {
                let to = copy(to, is_behind);
                Node::Typedef { name, to }
            }
            Node::Qualified { to, .. } => return copy(to, is_behind),
            Node::Record {
                kind,
                name: Some(name),
                ..
            } if is_behind => {
                let kind = match kind {
                    RecordKind::Struct => Kind::Struct,
                    RecordKind::Union => Kind::Union,
                };
                Node::Forward { kind, name }
            }
            Node::Record {
                kind,
                name,
                size,
                members,
                variants: None,
            } => {
                let copied = |member: &Member| Member {
                    ty: copy(member.ty, false),
                    ..member.clone()
                };
                Node::Record {
                    kind,
                    name,
                    size,
                    members: members.iter().map(copied).collect(),
                    variants: None,
                }
            }
            Node::Record { .. } => Node::Unknown("an enum of another file".into()),
            Node::Function { .. } => Node::Void,
            plain => plain,
        };
        let copied = types.add(node);
        self.copies.borrow_mut().insert((of, is_behind), copied);
        copied
    }
}

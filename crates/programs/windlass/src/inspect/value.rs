//! What expressions come to: the language of `windlass-script` on a program's names, types and memory.
//!
//! # Model
//! [`Types`](windlass_types::Types) are of one file. An expression is lowered in those of the first file that it names something of; types of others are
//! copied there, and records behind pointers when a member of them is asked for.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use windlass_script::evaluate::{Fault, Surroundings, evaluate};
use windlass_script::lower::{Location, Lowering, Names};
use windlass_script::syntax::Expr;
use windlass_script::{Code, ScriptError, parse};
use windlass_target::Memory;
use windlass_types::{Kind, Member, Node, RecordKind, TypeId};

use crate::failure::Failure;
use crate::suggest;
use crate::table::clean;

use super::absent;
use super::target::{Target, Typed};

/// The name of the record that a member's path begins at. Its address is register 0.
const THIS: &str = "this";

/// What an expression means.
#[derive(Debug, Clone)]
pub(super) enum Value {
    /// Something in the program's memory.
    Object { of: Typed, at: u64 },
    /// A number that is not in memory, or a bit-field.
    Number { of: Typed, value: u64 },
}

/// An expression, as far as it is known without memory.
pub(super) struct Located {
    pub(super) of: Typed,
    pub(super) location: Location,
}

impl Located {
    /// What it comes to if the record that it is a member of is at `this`.
    pub(super) fn at(&self, target: &Target<'_>, this: u64) -> Result<Value, Failure> {
        let of = self.of;
        match &self.location {
            Location::Memory(code) => {
                let at = computed(target, this, code)?;
                Ok(Value::Object { of, at })
            }
            Location::Value(code) => {
                let value = computed(target, this, code)?;
                Ok(Value::Number { of, value })
            }
            Location::Pieces(_) | Location::Absent(_) => Err(absent("it is not in memory", "")),
        }
    }
}

/// The expressions between commas.
pub(super) fn expressions(text: &str) -> Result<Vec<Expr>, Failure> {
    parse::expressions(text).map_err(|error| Failure::usage(marked(text, error), ""))
}

/// What an expression means, which is a part of `text`.
pub(super) fn value(target: &Target<'_>, text: &str, expr: &Expr) -> Result<Value, Failure> {
    located(target, None, text, expr)?.at(target, 0)
}

/// The number that an expression is.
pub(super) fn number(target: &Target<'_>, text: &str) -> Result<u64, Failure> {
    let expr = expression(text)?;
    let (_, (code, _)) = lower(target, None, text, |lowering| lowering.number(&expr))?;
    computed(target, 0, &code)
}

/// A member of a record, by a path such as `addr->name` or `grid[1]`.
pub(super) fn member(target: &Target<'_>, of: Typed, path: &str) -> Result<Located, Failure> {
    let text = format!("{THIS}.{path}");
    let expr = expression(&text)?;
    located(target, Some(of), &text, &expr)
}

fn expression(text: &str) -> Result<Expr, Failure> {
    parse::expression(text).map_err(|error| Failure::usage(marked(text, error), ""))
}

fn located(
    target: &Target<'_>,
    this: Option<Typed>,
    text: &str,
    expr: &Expr,
) -> Result<Located, Failure> {
    let (module, (location, ty)) = lower(target, this, text, |lowering| lowering.expression(expr))?;
    let of = Typed { module, ty };
    Ok(Located { of, location })
}

/// Lowers in the types of the first file that something is named of; says which.
fn lower<T>(
    target: &Target<'_>,
    this: Option<Typed>,
    text: &str,
    how: impl Fn(&Lowering<'_, '_>) -> Result<T, ScriptError>,
) -> Result<(usize, T), Failure> {
    let mut scope = Scope {
        target,
        this,
        home: 0,
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

/// A program's memory, and where the record is that a path begins at.
struct At<'t, 'a> {
    target: &'t Target<'a>,
    this: u64,
}

impl Surroundings for At<'_, '_> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.target.opened.read_all(address, into)
    }

    fn register(&self, _number: u16) -> Option<u64> {
        Some(self.this)
    }
}

/// What code comes to.
pub(super) fn computed(target: &Target<'_>, this: u64, code: &Code) -> Result<u64, Failure> {
    evaluate(code, &At { target, this }).map_err(|fault| match fault {
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
    this: Option<Typed>,
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
        if let Some(of) = self.this.filter(|_| name == THIS) {
            return Some((Location::Memory(Code::Register(0)), self.own(of)));
        }
        let (of, at) = self.target.variable(name).ok()?;
        Some((Location::Memory(Code::Constant(at)), self.own(of)))
    }

    fn missing(&self, name: &str) -> String {
        let failure = self.target.variable(name).err();
        self.missing.replace(failure);
        format!("there is no variable \"{name}\"")
    }

    fn type_named(&self, spelled: &str) -> Option<TypeId> {
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

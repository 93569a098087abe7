//! All types of a file.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::btf::Btf;
use crate::compact::Compact;
use crate::ctf::Ctf;
use crate::dwarf::{At, Dwarf, Entry};
use crate::flat::Flat;
use crate::index::{Found, Index, Kind};
use crate::node::{Member, Node, PointerKind, RecordKind, TypeId};
use crate::split::{Load, Part};
use crate::{DEPTH_MAX, Section, pull};

/// The types and functions of one file.
pub struct Types<'a> {
    dwarf: Option<Dwarf<'a>>,
    /// A table of types, if there is no DWARF.
    flat: Option<Box<dyn Flat<'a> + 'a>>,
    pub(crate) tables: crate::place::Tables<'a>,
    slots: RefCell<Vec<Slot>>,
    by_entry: RefCell<HashMap<At, TypeId>>,
    /// Types that were declared by a person.
    declared: RefCell<BTreeMap<(String, Kind), TypeId>>,
    pub(crate) index: OnceCell<Index<'a>>,
    /// Under which key the index is kept, and where.
    pub(crate) keep: Option<(Vec<u8>, crate::Keep<'a>)>,
    interrupt: Option<&'a AtomicBool>,
    /// Types that are being read, each for the one before.
    reading: Cell<usize>,
}

/// The name under which a type file is given as if it were a section.
pub const TYPE_FILE: &str = ".windlass.types";
/// Types that are read one for the other: more make no program.
const READING_MAX: usize = 32;
/// Members that a search looks at.
const SEARCH_MAX: usize = 1 << 20;

/// A type that was asked for, or is promised.
#[derive(Clone)]
enum Slot {
    Ready(Node),
    Promised(At),
    /// It is being read: what asks for it meanwhile goes in circles.
    Reading,
}

/// One step from a record to a member of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The member.
    pub member: Member,
    /// Where it begins, from the start of the outermost record.
    pub bit_offset: u64,
}

/// The way from a record to a member: through anonymous members, bases and arms; the last step is the member itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path(pub Vec<Step>);

impl Path {
    /// The member.
    pub fn member(&self) -> Option<&Member> {
        self.0.last().map(|step| &step.member)
    }

    /// Where the member begins.
    pub fn bit_offset(&self) -> u64 {
        self.0.last().map_or(0, |step| step.bit_offset)
    }
}

impl std::fmt::Debug for Types<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let known = self.slots.borrow().len();
        f.debug_struct("Types")
            .field("known", &known)
            .finish_non_exhaustive()
    }
}

impl Default for Types<'_> {
    fn default() -> Self {
        Self {
            dwarf: None,
            flat: None,
            tables: crate::place::Tables::default(),
            slots: RefCell::new(vec![Slot::Ready(Node::Void)]),
            by_entry: RefCell::default(),
            declared: RefCell::default(),
            index: OnceCell::new(),
            keep: None,
            interrupt: None,
            reading: Cell::new(0),
        }
    }
}

impl<'a> Types<'a> {
    /// The types that the sections of a file describe. `load` gives a section by its name: those that begin with `.debug_`, `.eh_frame` and
    /// `.ctf` (see [`plain_ctf`](crate::plain_ctf)), `.BTF`, and [`TYPE_FILE`]. What a file keeps apart is given as if it were its own. DWARF is
    /// taken before CTF, and CTF before BTF.
    pub fn open(load: &dyn Fn(&'static str) -> Section<'a>) -> Self {
        Self::of_parts(&|part, name| match part {
            Part::Own => load(name),
            Part::Shared | Part::Split(_) => Section::default(),
        })
    }

    /// The types of a program whose debug data lies in several files; see [`open`](Self::open).
    pub fn of_parts(load: Load<'_, 'a>) -> Self {
        let dwarf = Dwarf::open(load);
        let dwarf = (dwarf.units() > 0).then_some(dwarf);
        // A program without types can have lines and functions, and its types in a file of windlass's own.
        let own = Compact::open(load(Part::Own, TYPE_FILE).bytes);
        let flat: Option<Box<dyn Flat<'a> + 'a>> = match (own, &dwarf) {
            (Some(own), _) => Some(Box::new(own)),
            (None, Some(_)) => None,
            (None, None) => Self::table(load),
        };
        Self {
            dwarf,
            flat,
            tables: crate::place::Tables::of(load),
            ..Self::default()
        }
    }

    /// The first table of types that there is.
    fn table(load: Load<'_, 'a>) -> Option<Box<dyn Flat<'a> + 'a>> {
        let load = |name| load(Part::Own, name);
        let ctf = Ctf::open(load(".ctf").bytes, &|name| load(name).bytes);
        if let Some(ctf) = ctf {
            return Some(Box::new(ctf));
        }
        let base = Btf::open(load(".BTF.base").bytes, None);
        let btf = Btf::open(load(".BTF").bytes, base)?;
        Some(Box::new(btf))
    }

    /// The types of BTF; those of a kernel module need the kernel's as their base.
    pub fn of_btf(bytes: &'a [u8], base: Option<&'a [u8]>) -> Self {
        Self::open(&|name| {
            let bytes = match name {
                ".BTF" => bytes,
                ".BTF.base" => base.unwrap_or_default(),
                _ => &[],
            };
            Section { address: 0, bytes }
        })
    }

    /// Lets a pass over all units end early when this becomes true.
    #[must_use]
    pub fn interruptible(mut self, flag: &'a AtomicBool) -> Self {
        self.interrupt = Some(flag);
        self
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupt
            .is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// Whether there is debug data at all.
    pub fn is_empty(&self) -> bool {
        self.dwarf.is_none() && self.flat.is_none()
    }

    /// Units that could not be read so far.
    pub fn skipped(&self) -> u32 {
        self.dwarf.as_ref().map_or(0, Dwarf::skipped)
    }

    pub(crate) fn dwarf(&self) -> Option<&Dwarf<'a>> {
        self.dwarf.as_ref()
    }

    pub(crate) fn flat(&self) -> Option<&(dyn Flat<'a> + 'a)> {
        self.flat.as_deref()
    }

    /// Adds a type that the debug data does not have: a pointer in a cast, a declaration in a script.
    pub fn add(&self, node: Node) -> TypeId {
        self.push(Slot::Ready(node))
    }

    fn push(&self, slot: Slot) -> TypeId {
        let mut slots = self.slots.borrow_mut();
        // More types than numbers: void.
        let Ok(number) = u32::try_from(slots.len()) else {
            return TypeId::VOID;
        };
        slots.push(slot);
        TypeId(number)
    }

    /// The type of pointers to a type.
    pub fn pointer_to(&self, to: TypeId) -> TypeId {
        let kind = PointerKind::Pointer;
        self.add(Node::Pointer { to, size: 8, kind })
    }

    /// The type of an entry, not read yet.
    pub(crate) fn promise(&self, at: At) -> TypeId {
        if let Some(id) = self.by_entry.borrow().get(&at) {
            return *id;
        }
        let id = self.push(Slot::Promised(at));
        self.by_entry.borrow_mut().insert(at, id);
        id
    }

    /// The type that an entry names in `DW_AT_type`; void if it names none.
    pub(crate) fn type_of(&self, unit: u32, entry: &Entry<'a>) -> TypeId {
        let target = self
            .dwarf()
            .and_then(|dwarf| dwarf.target(unit, entry, gimli::DW_AT_type));
        target.map_or(TypeId::VOID, |at| self.promise(at))
    }

    /// What a type is.
    pub fn node(&self, id: TypeId) -> Node {
        let Ok(number) = usize::try_from(id.0) else {
            return Node::Void;
        };
        let slot = self.slots.borrow().get(number).cloned();
        let at = match slot {
            Some(Slot::Ready(node)) => return node,
            Some(Slot::Promised(at)) => at,
            Some(Slot::Reading) => return Node::Unknown("a type in circles".into()),
            None => return Node::Unknown("no such type".into()),
        };
        let depth = self.reading.get();
        if depth >= READING_MAX {
            return Node::Unknown("types too deep".into());
        }
        self.reading.set(depth.saturating_add(1));
        let set = |slot| {
            if let Some(place) = self.slots.borrow_mut().get_mut(number) {
                *place = slot;
            }
        };
        set(Slot::Reading);
        let node = match at.is_flat() {
            true => self.flat().and_then(|flat| flat.node(self, at.offset)),
            false => Some(pull::node(self, at)),
        };
        let node = node.unwrap_or_else(|| Node::Unknown("a broken type".into()));
        set(Slot::Ready(node.clone()));
        self.reading.set(depth);
        node
    }

    /// The type behind typedefs and qualifiers.
    pub fn strip(&self, id: TypeId) -> TypeId {
        let mut id = id;
        for _ in 0..DEPTH_MAX {
            match self.node(id) {
                Node::Typedef { to, .. } | Node::Qualified { to, .. } => id = to,
                _ => break,
            }
        }
        id
    }

    /// What a type is behind typedefs and qualifiers.
    pub fn bare(&self, id: TypeId) -> Node {
        self.node(self.strip(id))
    }

    /// The type behind typedefs and qualifiers; of a declaration its definition, if there is one: that looks through all units.
    pub fn complete(&self, id: TypeId) -> TypeId {
        let id = self.strip(id);
        match self.node(id) {
            Node::Forward { kind, name } => self.named(kind, &name).unwrap_or(id),
            _ => id,
        }
    }

    /// Bytes of a value; `None` if the type does not say.
    pub fn size(&self, id: TypeId) -> Option<u64> {
        let mut id = id;
        let mut times = 1_u64;
        for _ in 0..DEPTH_MAX {
            let size = match self.node(id) {
                Node::Int { size, .. }
                | Node::Float { size, .. }
                | Node::Pointer { size, .. }
                | Node::Record { size, .. }
                | Node::Enum { size, .. } => size,
                Node::Typedef { to, .. } | Node::Qualified { to, .. } => {
                    id = to;
                    continue;
                }
                Node::Array { of, count } => {
                    times = times.checked_mul(count?)?;
                    id = of;
                    continue;
                }
                Node::Forward { .. } => {
                    let full = self.complete(id);
                    if full == id {
                        return None;
                    }
                    id = full;
                    continue;
                }
                Node::Void | Node::Function { .. } | Node::Unknown(_) => return None,
            };
            return times.checked_mul(size);
        }
        None
    }

    /// The way to a member of a record: of its own, of an anonymous member, a base, or an arm of a Rust enum.
    pub fn member(&self, record: TypeId, name: &str) -> Option<Path> {
        let mut way = Vec::new();
        let mut rest = SEARCH_MAX;
        let is_found = self.descend(record, name, &mut way, &mut rest);
        is_found.then_some(Path(way))
    }

    fn descend(&self, record: TypeId, name: &str, way: &mut Vec<Step>, rest: &mut usize) -> bool {
        if way.len() >= DEPTH_MAX {
            return false;
        }
        let members = self.members(record);
        *rest = rest.saturating_sub(members.len().saturating_add(1));
        if *rest == 0 {
            return false;
        }
        let start = way.last().map_or(0, |step| step.bit_offset);
        let step = |member: &Member| Step {
            member: member.clone(),
            bit_offset: start.saturating_add(member.bit_offset),
        };
        let is_it = |own: &&Member| own.name.as_deref() == Some(name);
        if let Some(member) = members.iter().find(is_it) {
            way.push(step(member));
            return true;
        }
        let inner = members
            .iter()
            .filter(|own| own.name.is_none() || own.is_base);
        for member in inner {
            way.push(step(member));
            if self.descend(member.ty, name, way, rest) {
                return true;
            }
            way.pop();
        }
        false
    }

    /// The members of a record, with those of the arms of a Rust enum.
    pub fn members(&self, record: TypeId) -> Rc<[Member]> {
        match self.node(self.complete(record)) {
            Node::Record {
                members,
                variants: None,
                ..
            } => members,
            Node::Record {
                members,
                variants: Some(variants),
                ..
            } => {
                let arms = variants.arms.iter().flat_map(|arm| arm.members.iter());
                members.iter().chain(arms).cloned().collect()
            }
            _ => Rc::from([]),
        }
    }

    /// The name of an entry behind those of its scopes.
    pub(crate) fn qualified(&self, at: At) -> Option<String> {
        let dwarf = self.dwarf()?;
        let (mut scopes, mut name) = (Vec::new(), None);
        // The scope of a function is that of the declaration which it completes.
        for (at, unit, entry) in dwarf.chain(at) {
            name = name.or_else(|| dwarf.text(&unit, &entry, gimli::DW_AT_name));
            if name.is_some() && !dwarf.is_plain(at.unit) {
                let outline = dwarf.outline(at.unit)?;
                if let Some(item) = outline.item(at.offset) {
                    scopes = outline.scopes(item);
                }
            }
        }
        let name = name?;
        scopes.reverse();
        scopes.push(name);
        Some(scopes.join("::"))
    }

    /// A type as its language writes it: `struct conn *`, `net::Pool<int>`, `char [16]`.
    pub fn name(&self, id: TypeId) -> String {
        self.declaration(id, "")
    }

    /// The declaration of something of a type: `char name[16]`, `int (*handler)(struct req *)`.
    pub fn declaration(&self, id: TypeId, name: &str) -> String {
        let mut rest = DEPTH_MAX;
        self.declarator(id, name.to_owned(), &mut rest)
    }

    fn declarator(&self, id: TypeId, inner: String, rest: &mut usize) -> String {
        let Some(less) = rest.checked_sub(1) else {
            return format!("... {inner}").trim_end().to_owned();
        };
        *rest = less;
        let before = |name: &str| match inner.as_str() {
            "" => name.to_owned(),
            inner if inner.starts_with('[') => format!("{name} {inner}"),
            inner => format!("{name} {inner}"),
        };
        // C needs the keyword, and has no such names as the others.
        let is_plain = |name: &str| {
            name == "{...}" || name.bytes().all(|c| c == b'_' || c.is_ascii_alphanumeric())
        };
        let tagged = |keyword: &str, name: &str| match is_plain(name) {
            true => before(&format!("{keyword} {name}")),
            false => before(name),
        };
        match self.node(id) {
            Node::Void => before("void"),
            Node::Int { name, .. } | Node::Float { name, .. } | Node::Typedef { name, .. } => {
                before(&name)
            }
            Node::Unknown(what) => before(&format!("<{what}>")),
            Node::Record { kind, name, .. } => {
                tagged(keyword(kind), name.as_deref().unwrap_or("{...}"))
            }
            Node::Enum { name, .. } => tagged("enum", name.as_deref().unwrap_or("{...}")),
            Node::Forward { kind, name } => tagged(kind.word(), &name),
            Node::Qualified { qualifier, to } => match self.node(to) {
                Node::Pointer { .. } => self.declarator(to, spaced(qualifier, &inner), rest),
                _ => format!("{qualifier} {}", self.declarator(to, inner, rest)),
            },
            Node::Pointer { to, kind, .. } => {
                let sign = match kind {
                    PointerKind::Pointer => "*",
                    PointerKind::Reference => "&",
                    PointerKind::RvalueReference => "&&",
                };
                let inner = format!("{sign}{inner}");
                let inner = match self.node(to) {
                    Node::Array { .. } | Node::Function { .. } => format!("({inner})"),
                    _ => inner,
                };
                self.declarator(to, inner, rest)
            }
            Node::Array { of, count } => {
                let count = count.map_or_else(String::new, |count| count.to_string());
                self.declarator(of, format!("{inner}[{count}]"), rest)
            }
            Node::Function {
                parameters,
                returns,
                is_variadic,
            } => {
                let mut all: Vec<_> = parameters
                    .iter()
                    .map(|id| self.declarator(*id, String::new(), rest))
                    .collect();
                if is_variadic {
                    all.push("...".to_owned());
                }
                if all.is_empty() {
                    all.push("void".to_owned());
                }
                self.declarator(returns, format!("{inner}({})", all.join(", ")), rest)
            }
        }
    }

    /// The type that a kind and name mean, such as [`Kind::Struct`] and `conn`, if the debug data has it in one definition.
    ///
    /// # Errors
    /// See [`LookupError`](crate::LookupError).
    pub fn named(&self, kind: Kind, name: &str) -> Result<TypeId, crate::LookupError> {
        if let Some(id) = self.declared.borrow().get(&(name.to_owned(), kind)) {
            return Ok(*id);
        }
        let found = self.find(kind, name)?;
        Ok(self.promise(found))
    }

    pub(crate) fn set_declared(&self, kind: Kind, name: &str, ty: TypeId) {
        self.declared
            .borrow_mut()
            .insert((name.to_owned(), kind), ty);
    }

    /// The names that were declared by a person.
    pub(crate) fn declared(&self) -> Vec<Found> {
        let declared = self.declared.borrow();
        let names = declared.keys().cloned();
        names.map(|(name, kind)| Found { kind, name }).collect()
    }
}

/// The keyword of a record.
pub(crate) fn keyword(kind: RecordKind) -> &'static str {
    match kind {
        RecordKind::Struct => "struct",
        RecordKind::Union => "union",
    }
}

fn spaced(left: &str, right: &str) -> String {
    match right.is_empty() {
        true => left.to_owned(),
        false => format!("{left} {right}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::print::{Limits, Nothing};

    /// Types that contain themselves, as no compiler makes them, have an end in everything that is asked of them; so has a record whose
    /// anonymous members double at each level.
    #[test]
    fn circles_end() {
        let types = Types::default();
        let own = TypeId(1);
        let circle = types.add(Node::Typedef {
            name: "t".into(),
            to: own,
        });
        assert_eq!(circle, own);
        let array = TypeId(2);
        types.add(Node::Array {
            of: array,
            count: Some(u64::MAX),
        });
        let anonymous = |ty| Member {
            name: None,
            ty,
            bit_offset: 0,
            bit_size: None,
            is_base: false,
            is_artificial: false,
        };
        let mut record = TypeId(3);
        for _ in 0..60 {
            let members = [anonymous(record), anonymous(record)];
            record = types.add(Node::Record {
                kind: RecordKind::Struct,
                name: None,
                size: 8,
                members: members.into(),
                variants: None,
            });
        }
        for ty in [circle, array, record, TypeId(u32::MAX)] {
            let _ = (types.size(ty), types.name(ty));
            assert_eq!(types.member(ty, "x"), None);
            assert!(types.show(ty, &[0; 8], &Nothing, Limits::default()).len() < 1 << 20);
            assert!(types.definition(ty, true).len() < 8 << 20);
        }
    }
}

//! Names of a file: one pass over all units, kept in memory.

use std::collections::{HashMap, HashSet};

use crate::dwarf::At;
use crate::flat::Declared;
use crate::graph::Types;
use crate::node::TypeId;
use crate::outline::{Item, Outline};
use crate::place::{self, Place};

/// What a name means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `struct` or `class`
    Struct,
    /// `union`
    Union,
    /// `enum`
    Enum,
    /// Another name of a type.
    Typedef,
    /// A type of the language, such as `int`.
    Base,
    /// A function.
    Function,
    /// A variable outside of functions.
    Variable,
    /// A namespace.
    Namespace,
}

impl Kind {
    /// The keyword; empty for names that have none.
    pub fn word(self) -> &'static str {
        match self {
            Self::Struct => "struct",
            Self::Union => "union",
            Self::Enum => "enum",
            Self::Namespace => "namespace",
            Self::Typedef | Self::Base | Self::Function | Self::Variable => "",
        }
    }

    /// Whether it is a type.
    pub fn is_type(self) -> bool {
        !matches!(self, Self::Function | Self::Variable | Self::Namespace)
    }
}

/// Why a name has no one meaning.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// No unit defines it.
    #[error("there is no \"{0}\"")]
    Absent(String),
    /// Units define it differently. Prefix one of the files to the name, as in `` conn.c`conn ``.
    #[error("\"{name}\" is defined differently in {}", .files.join(", "))]
    Ambiguous {
        /// The name.
        name: String,
        /// The file of each definition.
        files: Vec<String>,
    },
    /// The pass over the units was ended.
    #[error("interrupted")]
    Interrupted,
}

/// A name that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What it means.
    pub kind: Kind,
    /// The name behind those of its scopes.
    pub name: String,
}

/// A name of the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Name<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: Kind,
    /// Number of the scope; 0: none.
    pub(crate) scope: u32,
    pub(crate) at: At,
    /// A function without code of its own.
    pub(crate) is_inline: bool,
}

/// All names, in order.
pub(crate) struct Index<'a> {
    pub(crate) names: Vec<Name<'a>>,
    /// Each scope's name, and the number of the scope that it is in.
    pub(crate) scopes: Vec<(&'a str, u32)>,
}

struct Builder<'a> {
    index: Index<'a>,
    known: HashMap<(&'a str, u32), u32>,
    seen: HashSet<(&'a str, u32, Kind, (u64, u64))>,
}

impl<'a> Builder<'a> {
    fn scope(&mut self, names: &[&'a str]) -> u32 {
        let mut scope = 0;
        for name in names.iter().rev() {
            let next = u32::try_from(self.index.scopes.len()).unwrap_or(0);
            scope = *self.known.entry((name, scope)).or_insert_with(|| {
                self.index.scopes.push((name, scope));
                next
            });
        }
        scope
    }

    fn declared(&mut self, declared: &Declared<'a>) {
        let scope = self.scope(&declared.scopes);
        self.index.names.push(Name {
            name: declared.name,
            kind: declared.kind,
            scope,
            at: At::flat(declared.number),
            is_inline: false,
        });
    }

    fn unit(&mut self, types: &Types<'a>, number: u32, outline: &Outline<'a>) {
        for item in &outline.items {
            let is_function = item.kind == Kind::Function;
            let is_wanted = match item.kind {
                Kind::Namespace => false,
                // A function counts where it has code, or where it is inlined.
                Kind::Function => !item.is_declaration || item.is_inline,
                _ => !item.is_declaration,
            };
            if !is_wanted {
                continue;
            }
            let Some((name, scopes)) = resolve(types, number, outline, item) else {
                continue;
            };
            let scope = self.scope(&scopes);
            let is_new =
                !item.kind.is_type() || self.seen.insert((name, scope, item.kind, item.print));
            if is_new {
                self.index.names.push(Name {
                    name,
                    kind: item.kind,
                    scope,
                    at: At {
                        unit: number,
                        offset: item.offset,
                    },
                    is_inline: is_function && item.is_declaration,
                });
            }
        }
    }
}

/// The name of an item, and the names that it is declared in: those of its origin, if it has one.
fn resolve<'a>(
    types: &Types<'a>,
    number: u32,
    outline: &Outline<'a>,
    item: &Item<'a>,
) -> Option<(&'a str, Vec<&'a str>)> {
    let (mut item, mut number) = (*item, number);
    // The outline of another unit: its functions are copied by optimization of the whole program.
    let mut other = None;
    for _ in 0..crate::DEPTH_MAX {
        let Some(at) = item.origin else {
            let outline = other.as_deref().unwrap_or(outline);
            return (!item.name.is_empty()).then(|| (item.name, outline.scopes(&item)));
        };
        if at.unit != number {
            other = Some(types.dwarf()?.outline(at.unit)?);
            number = at.unit;
        }
        item = *other.as_deref().unwrap_or(outline).item(at.offset)?;
    }
    None
}

impl<'a> Index<'a> {
    fn of(types: &Types<'a>) -> Option<Self> {
        let mut builder = Builder {
            index: Index {
                names: Vec::new(),
                scopes: vec![("", 0)],
            },
            known: HashMap::new(),
            seen: HashSet::new(),
        };
        if let Some(dwarf) = types.dwarf() {
            for number in 0..dwarf.units() {
                if types.is_interrupted() {
                    return None;
                }
                if let Some(outline) = dwarf.outline_once(number) {
                    builder.unit(types, number, &outline);
                }
            }
        }
        if let Some(flat) = types.flat() {
            flat.names(&mut |declared| builder.declared(&declared));
        }
        let mut index = builder.index;
        index
            .names
            .sort_by_key(|name| (name.name, name.kind, name.at));
        Some(index)
    }

    /// The name behind those of its scopes.
    pub(crate) fn qualified(&self, name: &Name<'a>) -> String {
        let mut parts = vec![name.name];
        let mut scope = name.scope;
        while scope != 0 && parts.len() < crate::DEPTH_MAX {
            let Some((outer, next)) = self.scopes.get(scope as usize) else {
                break;
            };
            parts.push(outer);
            scope = *next;
        }
        parts.reverse();
        parts.join("::")
    }

    /// The names whose last part begins so.
    fn beginning(&self, prefix: &str) -> impl Iterator<Item = &Name<'a>> {
        let first = self.names.partition_point(|name| name.name < prefix);
        let rest = self.names.get(first..).unwrap_or_default().iter();
        let prefix = prefix.to_owned();
        rest.take_while(move |name| name.name.starts_with(&prefix))
    }

    /// All names.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Name<'a>> {
        self.names.iter()
    }
}

/// The last part of a qualified name.
pub(crate) fn last(name: &str) -> &str {
    let mut depth = 0_usize;
    let mut start = 0;
    let mut before = b' ';
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'<' | b'(' | b'[' | b'{' => depth = depth.saturating_add(1),
            // That of `->`.
            b'>' if before == b'-' => {}
            b'>' | b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b':' if before == b':' && depth == 0 => start = at.saturating_add(1),
            _ => {}
        }
        before = byte;
    }
    name.get(start..).unwrap_or(name)
}

/// Whether a name fits a pattern, in which `*` stands for any characters and `?` for one.
pub fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0_usize, 0_usize);
    // Where the last star was, and how far it reaches.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p = p.saturating_add(1);
            }
            Some(wanted) if *wanted == b'?' || name.get(n) == Some(wanted) => {
                p = p.saturating_add(1);
                n = n.saturating_add(1);
            }
            _ => {
                let Some((at, reach)) = star else {
                    return false;
                };
                let reach = reach.saturating_add(1);
                star = Some((at, reach));
                p = at.saturating_add(1);
                n = reach;
            }
        }
    }
    pattern
        .get(p..)
        .unwrap_or_default()
        .iter()
        .all(|c| *c == b'*')
}

impl<'a> Types<'a> {
    /// The index; made at first use.
    pub(crate) fn names(&self) -> Result<&Index<'a>, LookupError> {
        if let Some(index) = self.index.get() {
            return Ok(index);
        }
        let index = Index::of(self).ok_or(LookupError::Interrupted)?;
        if let Some((key, keep)) = &self.keep {
            keep(&crate::kept::to_bytes(&index, key));
        }
        Ok(self.index.get_or_init(|| index))
    }

    /// The definition that a name means.
    pub(crate) fn find(&self, kind: Kind, name: &str) -> Result<At, LookupError> {
        let (file, plain) = match name.split_once('`') {
            Some((file, plain)) => (Some(file), plain),
            None => (None, name),
        };
        let index = self.names()?;
        let wanted = last(plain);
        let same = index.beginning(wanted).filter(|found| {
            found.name == wanted && found.kind == kind && index.qualified(found) == plain
        });
        let mut found: Vec<_> = same
            .map(|found| (found.at, self.file_of(found.at)))
            .collect();
        if let Some(file) = file {
            found.retain(|(_, of)| {
                of.as_deref()
                    .is_some_and(|of| of == file || of.ends_with(&format!("/{file}")))
            });
        }
        match found.as_slice() {
            [] => Err(LookupError::Absent(name.to_owned())),
            [(at, _)] => Ok(*at),
            [(first, _), rest @ ..] => {
                let is_same = rest.iter().all(|(at, _)| self.is_alike(*first, *at));
                if is_same {
                    return Ok(*first);
                }
                let files = found
                    .iter()
                    .map(|(_, file)| file.clone().unwrap_or_default());
                Err(LookupError::Ambiguous {
                    name: name.to_owned(),
                    files: files.collect(),
                })
            }
        }
    }

    /// Whether two definitions have the same members at the same places.
    fn is_alike(&self, a: At, b: At) -> bool {
        let (a, b) = (self.promise(a), self.promise(b));
        let shape = |id: TypeId| {
            let members = self.members(id);
            let members = members
                .iter()
                .map(|member| (member.name.clone(), member.bit_offset, self.name(member.ty)));
            (self.size(id), members.collect::<Vec<_>>())
        };
        match (self.node(a), self.node(b)) {
            (crate::Node::Typedef { to: a, .. }, crate::Node::Typedef { to: b, .. }) => {
                self.name(a) == self.name(b) && self.size(a) == self.size(b)
            }
            _ => shape(a) == shape(b),
        }
    }

    /// Names that fit a pattern, of the kinds that are wanted, in order and each once. A pattern with `::` is compared with the whole name,
    /// another with its last part.
    ///
    /// # Errors
    /// [`LookupError::Interrupted`].
    pub fn search(
        &self,
        pattern: &str,
        wanted: &dyn Fn(Kind) -> bool,
    ) -> Result<Vec<Found>, LookupError> {
        let index = self.names()?;
        let is_whole = pattern.contains("::");
        let fitting = index.all().filter(|name| {
            wanted(name.kind)
                && match is_whole {
                    true => fits(pattern, &index.qualified(name)),
                    false => fits(pattern, name.name),
                }
        });
        let mut all: Vec<_> = fitting
            .map(|name| Found {
                kind: name.kind,
                name: index.qualified(name),
            })
            .collect();
        let declared = self.declared().into_iter();
        all.extend(declared.filter(|found| wanted(found.kind) && fits(pattern, &found.name)));
        all.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
        all.dedup();
        Ok(all)
    }

    /// Names that begin so, at most `max`; see [`search`](Self::search) for the rest.
    ///
    /// # Errors
    /// [`LookupError::Interrupted`].
    pub fn beginning(&self, prefix: &str, max: usize) -> Result<Vec<Found>, LookupError> {
        let index = self.names()?;
        let wanted = last(prefix);
        let fitting = index.beginning(wanted).filter_map(|name| {
            let whole = index.qualified(name);
            (wanted == prefix || whole.starts_with(prefix)).then_some(Found {
                kind: name.kind,
                name: whole,
            })
        });
        let declared = self.declared().into_iter();
        let declared = declared.filter(|found| found.name.starts_with(prefix));
        Ok(declared.chain(fitting).take(max).collect())
    }

    /// A variable outside of functions: its type and place.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub fn variable(&self, name: &str) -> Result<(TypeId, Place), LookupError> {
        let at = self.find(Kind::Variable, name)?;
        let absent = || LookupError::Absent(name.to_owned());
        self.located(at).ok_or_else(absent)
    }

    /// The type and place of a variable.
    pub(crate) fn located(&self, at: At) -> Option<(TypeId, Place)> {
        if at.is_flat() {
            let (ty, address) = self.flat()?.variable(self, at.offset)?;
            return Some((ty, address.map_or(place::BY_SYMBOL, Place::Address)));
        }
        let dwarf = self.dwarf()?;
        let chain = dwarf.chain(at);
        let (_, unit, entry) = chain.first()?;
        let typed = chain
            .iter()
            .find(|(.., entry)| entry.has_attr(gimli::DW_AT_type));
        let ty = typed.map_or(TypeId::VOID, |(at, _, entry)| self.type_of(at.unit, entry));
        Some((ty, place::fixed(dwarf, unit.clone(), entry)))
    }

    /// The main source file of an entry's unit.
    pub(crate) fn file_of(&self, at: At) -> Option<String> {
        let dwarf = self.dwarf()?;
        let unit = dwarf.unit(at.unit)?;
        let root = unit.entry(unit.header.root_offset()).ok()?;
        dwarf
            .text(&unit, &root, gimli::DW_AT_name)
            .map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Patterns fit what they say, and the last part of a name is behind the last separator outside of brackets.
    #[test]
    fn patterns_and_parts() {
        for (pattern, name, is_fitting) in [
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "abcd", false),
            ("net::Pool<*>::get", "net::Pool<int>::get", true),
            ("?b", "ab", true),
            ("?b", "b", false),
            ("*a*a*a*b", &"a".repeat(1000), false),
        ] {
            assert_eq!(fits(pattern, name), is_fitting, "{pattern} {name}");
        }
        assert_eq!(last("net::Pool<a::b>::get"), "get");
        assert_eq!(last("Pool<a::b>"), "Pool<a::b>");
        assert_eq!(
            last("fn_ptr<(*mut a::T) -> b::U>"),
            "fn_ptr<(*mut a::T) -> b::U>"
        );
        assert_eq!(
            last("(u32, alloc::string::String)"),
            "(u32, alloc::string::String)"
        );
        assert_eq!(last("F<()>::get"), "get");
        assert_eq!(last("x"), "x");
    }
}

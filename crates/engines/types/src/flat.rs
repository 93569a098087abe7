//! Types that are a table: each has a number, and refers to others by theirs. So are BTF, CTF and windlass's own type files.

use std::rc::Rc;

use crate::dwarf::At;
use crate::graph::Types;
use crate::index::{Kind, LookupError};
use crate::node::{Node, TypeId};

/// The unit of all types that are in a table.
const UNIT: u32 = u32::MAX;

/// A name of a table.
pub(crate) struct Declared<'a> {
    /// The names of its scopes, innermost first.
    pub(crate) scopes: Vec<&'a str>,
    pub(crate) name: &'a str,
    pub(crate) kind: Kind,
    /// Its number; functions and variables have numbers as types have.
    pub(crate) number: u32,
}

/// A function as it is declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// Names and types of its parameters; a name is empty if it is not known.
    pub parameters: Vec<(Rc<str>, TypeId)>,
    /// What it returns.
    pub returns: TypeId,
    /// More arguments may follow.
    pub is_variadic: bool,
}

/// A table of types.
pub(crate) trait Flat<'a> {
    /// What a number means.
    fn node(&self, types: &Types<'a>, number: u32) -> Option<Node>;
    /// All names.
    fn names(&self, each: &mut dyn FnMut(Declared<'a>));
    /// The type and the address of a variable; the address is `None` if the table does not say.
    fn variable(&self, types: &Types<'a>, number: u32) -> Option<(TypeId, Option<u64>)>;
    /// A function.
    fn signature(&self, types: &Types<'a>, number: u32) -> Option<Signature>;
}

impl At {
    /// What a number of a table means.
    pub(crate) fn flat(number: u32) -> Self {
        Self {
            unit: UNIT,
            offset: number,
        }
    }

    pub(crate) fn is_flat(self) -> bool {
        self.unit == UNIT
    }
}

impl<'a> Types<'a> {
    /// The type of a number, not read yet; 0 is void.
    pub(crate) fn flat_type(&self, number: u32) -> TypeId {
        match number {
            0 => TypeId::VOID,
            number => self.promise(At::flat(number)),
        }
    }

    /// A function as it is declared: names and types, not where its arguments are.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub fn signature(&self, name: &str) -> Result<Signature, LookupError> {
        let at = self.find(Kind::Function, name)?;
        let absent = || LookupError::Absent(name.to_owned());
        let found = match at.is_flat() {
            true => self.flat().and_then(|flat| flat.signature(self, at.offset)),
            false => self.described(at),
        };
        found.ok_or_else(absent)
    }

    /// The signature of a function of DWARF.
    fn described(&self, at: At) -> Option<Signature> {
        let dwarf = self.dwarf()?;
        let (at, unit, entry) = dwarf.chain(at).into_iter().next_back()?;
        let children = crate::pull::children(&unit, &entry);
        let parameters = children
            .iter()
            .filter(|child| child.tag() == gimli::DW_TAG_formal_parameter)
            .map(|child| {
                let name = dwarf.text(&unit, child, gimli::DW_AT_name);
                (
                    name.unwrap_or_default().into(),
                    self.type_of(at.unit, child),
                )
            });
        Some(Signature {
            parameters: parameters.collect(),
            returns: self.type_of(at.unit, &entry),
            is_variadic: children
                .iter()
                .any(|child| child.tag() == gimli::DW_TAG_unspecified_parameters),
        })
    }
}

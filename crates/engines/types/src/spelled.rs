//! Types by the names that C gives them.

use crate::graph::Types;
use crate::node::TypeId;
use crate::{DEPTH_MAX, Kind, LookupError};

/// The kinds of types that a keyword means; all kinds of types if there is none.
fn kinds(keyword: &str) -> &'static [Kind] {
    match keyword {
        "struct" | "class" => &[Kind::Struct],
        "union" => &[Kind::Union],
        "enum" => &[Kind::Enum],
        _ => &[
            Kind::Typedef,
            Kind::Base,
            Kind::Struct,
            Kind::Union,
            Kind::Enum,
        ],
    }
}

impl Types<'_> {
    /// The type that a C name means: `struct conn *`, `unsigned long`, `net::Pool<int>`, each with any number of `*` behind it.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub fn spelled(&self, text: &str) -> Result<TypeId, LookupError> {
        let plain = text.trim_end_matches(['*', ' ']);
        let stars = text
            .get(plain.len()..)
            .unwrap_or_default()
            .matches('*')
            .count();
        let plain = plain.trim();
        let plain = plain.strip_prefix("const ").unwrap_or(plain);
        let (keyword, name) = match plain.split_once(' ') {
            Some((word @ ("struct" | "class" | "union" | "enum"), name)) => (word, name.trim()),
            _ => ("", plain),
        };
        let mut id = match name {
            "void" => TypeId::VOID,
            name => {
                let mut why = LookupError::Absent(name.to_owned());
                let mut found = None;
                for kind in kinds(keyword) {
                    let names = [name, integer(name)];
                    let wanted = if *kind == Kind::Base {
                        &names[..]
                    } else {
                        names.get(..1).unwrap_or_default()
                    };
                    for name in wanted {
                        match self.named(*kind, name) {
                            Ok(id) => found = found.or(Some(id)),
                            Err(LookupError::Absent(_)) => {}
                            Err(other) => why = other,
                        }
                    }
                }
                found.ok_or(why)?
            }
        };
        for _ in 0..stars.min(DEPTH_MAX) {
            id = self.pointer_to(id);
        }
        Ok(id)
    }
}

/// C's integers as gcc and clang name them in debug data.
fn integer(name: &str) -> &str {
    match name {
        "unsigned" => "unsigned int",
        "short" => "short int",
        "long" => "long int",
        "long long" => "long long int",
        "unsigned long" => "long unsigned int",
        "unsigned long long" => "long long unsigned int",
        "unsigned short" => "short unsigned int",
        other => other,
    }
}

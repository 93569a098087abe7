//! View files.
//!
//! ```text
//! file := { "view" PATTERN body | "walker" NAME ":" TYPE body }
//! body := "{" { KEY "=" EXPR (";" | end of line) } "}"         # begins a comment
//! ```
//! | keys | are |
//! | --- | --- |
//! | `is` | shown in its place |
//! | `follow` | a pointer, shown with what it points to |
//! | `text`, `length` | a text: where, and how many bytes; without `length` it ends with a 0 |
//! | `items` | `POINTER[FROM .. TO]` |
//! | `index`, `where`, `item` | so many items; which count; each one |
//! | `from`, `next`, `until`, `item` | a list of nodes |
//! | `from`, `height`, `count`, `child`, `item` | a tree in its order: `count` items in a node, one child before each and one behind |
//! | `key`, `value` | of an item: `KEY: VALUE` |
//! | `if`, `else` | whether there is anything; a word for nothing |

/// The keys of a body.
const KEYS: [&str; 18] = [
    "is", "follow", "text", "length", "items", "index", "where", "item", "from", "next", "until",
    "height", "count", "child", "key", "value", "if", "else",
];

/// What a view or a walker says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Body(Vec<(&'static str, String)>);

impl Body {
    /// The expression of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.iter().find(|(own, _)| *own == key);
        found.map(|(_, text)| text.as_str())
    }
}

/// A view or a walker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// A walker's name; a view has none.
    pub name: Option<String>,
    /// The types that it is for, as a pattern; of a walker the type of what it begins at.
    pub of: String,
    /// What it says.
    pub body: Body,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct FileError {
    /// In which line, from 1.
    pub line: usize,
    /// What.
    pub why: String,
}

/// Definitions of a file at most.
const DEFINITIONS_MAX: usize = 10_000;

/// The definitions of a file.
///
/// # Errors
/// The first line that is none.
pub fn definitions(text: &str) -> Result<Vec<Definition>, FileError> {
    let plain = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    let plain: Vec<&str> = plain.collect();
    let plain = plain.join("\n");
    let mut all = Vec::new();
    let mut at = 0;
    while let Some(rest) = plain.get(at..)
        && !rest.trim().is_empty()
    {
        let start = at + rest.len() - rest.trim_start().len();
        let line = 1 + plain.get(..start).unwrap_or_default().matches('\n').count();
        let fail = |why: &str| FileError {
            line,
            why: why.to_owned(),
        };
        if all.len() >= DEFINITIONS_MAX {
            return Err(fail("too many definitions"));
        }
        let open = rest.find('{').ok_or_else(|| fail("`{` is missing"))?;
        let close = rest.find('}').ok_or_else(|| fail("`}` is missing"))?;
        let head = rest.get(..open).unwrap_or_default().trim();
        let inner = rest
            .get(open + 1..close)
            .ok_or_else(|| fail("`}` before `{`"))?;
        let (name, of) = self::head(head).map_err(fail)?;
        let body = body(inner).map_err(|why| FileError { line, why })?;
        all.push(Definition { name, of, body });
        at += close + 1;
    }
    Ok(all)
}

/// A walker's name, and the type.
fn head(head: &str) -> Result<(Option<String>, String), &'static str> {
    if let Some(of) = head.strip_prefix("view ") {
        return Ok((None, of.trim().to_owned()));
    }
    let Some(walker) = head.strip_prefix("walker ") else {
        return Err("`view TYPE {` or `walker NAME : TYPE {` is expected here");
    };
    let (name, of) = walker
        .split_once(':')
        .ok_or("a walker is `walker NAME : TYPE {`")?;
    let name = name.trim();
    let is_name = !name.is_empty() && name.bytes().all(|c| c == b'_' || c.is_ascii_alphanumeric());
    match is_name {
        true => Ok((Some(name.to_owned()), of.trim().to_owned())),
        false => Err("a walker's name has letters, digits and _"),
    }
}

fn body(text: &str) -> Result<Body, String> {
    let mut all = Vec::new();
    let statements = text.split([';', '\n']).map(str::trim);
    for statement in statements.filter(|statement| !statement.is_empty()) {
        let pair = statement.split_once('=');
        let (key, expr) = pair.ok_or_else(|| format!("`{statement}` is no KEY = EXPRESSION"))?;
        let known = KEYS.into_iter().find(|known| *known == key.trim());
        let key = known.ok_or_else(|| format!("there is no key \"{}\"", key.trim()))?;
        all.push((key, expr.trim().to_owned()));
    }
    let items = all.iter().find(|(key, _)| *key == "items");
    if let Some((_, text)) = items {
        let (index, item) = range(text).ok_or("items are POINTER[FROM .. TO]")?;
        all.extend([("index", index), ("item", item)]);
    }
    Ok(Body(all))
}

/// How many items `p[a .. b]` has, and each one.
fn range(text: &str) -> Option<(String, String)> {
    let inner = text.strip_suffix(']')?;
    let (before, to) = inner.split_once("..")?;
    // The bracket that the last one closes.
    let mut depth = 0_usize;
    let open = before.char_indices().rev().find(|(_, c)| {
        depth += usize::from(*c == ']');
        let is_it = *c == '[' && depth == 0;
        depth = depth.saturating_sub(usize::from(*c == '['));
        is_it
    });
    let (pointer, from) = before.split_at_checked(open?.0)?;
    let from = from.get(1..)?.trim();
    Some((
        format!("({to}) - ({from})"),
        format!("({pointer})[({from}) + index]"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file is read; what is wrong in one is said with its line.
    #[test]
    fn files_are_read() {
        let text = "# all\nview V<T> { items = p[1][a[0] .. b] }\nwalker conns : struct conn {\n  from = this # here\n  next = node->next; item = *node\n}\n";
        let all = definitions(text).unwrap();
        assert_eq!((all[0].name.as_deref(), all[0].of.as_str()), (None, "V<T>"));
        assert_eq!(all[0].body.get("index"), Some("( b) - (a[0])"));
        assert_eq!(all[0].body.get("item"), Some("(p[1])[(a[0]) + index]"));
        assert_eq!(
            (all[1].name.as_deref(), all[1].of.as_str()),
            (Some("conns"), "struct conn")
        );
        assert_eq!(all[1].body.get("from"), Some("this"));
        assert_eq!(all[1].body.get("until"), None);
        for (text, line) in [
            ("\nview X", 1 + 1),
            ("view X }{", 1),
            ("viev X {}", 1),
            ("walker a b : X {}", 1),
            ("view A {}\n\nview X { nothing }", 3),
            ("view X { wher = 1 }", 1),
            ("view X { items = p }", 1),
        ] {
            assert_eq!(definitions(text).unwrap_err().line, line, "{text}");
        }
    }

    /// What windlass comes with is right.
    #[test]
    fn what_is_shipped_is_read() {
        for (name, text) in crate::SHIPPED {
            let all = definitions(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!all.is_empty());
        }
    }
}

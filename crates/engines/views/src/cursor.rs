//! What a cursor in a line of commands wants.

use crate::line::{last_stage, stage, type_first};

/// What the arguments of a command are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// None, or none that can be completed.
    Nothing,
    /// Expressions.
    Expression,
    /// A type.
    Type,
    /// A type, then members of it.
    TypeMember,
    /// A walker or an expression.
    Walker,
    /// A name or pattern of types, functions and variables.
    Symbol,
    /// A command's name.
    Command,
}

/// What can stand at the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted<'l> {
    /// Nothing that is known.
    Nothing,
    /// The name of a command; whether one before gives it something.
    Command(bool),
    /// A walker or a variable.
    Walker,
    /// A type; behind its keyword, if there is one.
    Type(&'l str),
    /// A variable, or whatever else an expression can begin with.
    Name,
    /// A name of any kind.
    Symbol,
    /// A member of what this expression is.
    Member(&'l str),
    /// A member of what a path leads to in a type; with an empty path, of the type.
    TypeMember(&'l str, &'l str),
    /// A member of what comes through the pipe.
    Element,
}

/// What a cursor at the end of a line wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor<'l> {
    /// What.
    pub wanted: Wanted<'l>,
    /// Where the word begins that is completed.
    pub start: usize,
    /// The stages before the last one.
    pub before: &'l str,
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

/// Where the name begins that a text ends with, with its scopes and file.
fn name_start(text: &str) -> usize {
    let plain = |text: &str| text.trim_end_matches(is_of_name).len();
    let mut start = plain(text);
    loop {
        let before = text.get(..start).unwrap_or_default();
        if let Some(scope) = before.strip_suffix("::") {
            start = plain(scope);
        } else if let Some(file) = before.strip_suffix('`') {
            return file
                .trim_end_matches(|c| is_of_name(c) || "._-+".contains(c))
                .len();
        } else {
            return start;
        }
    }
}

/// Where the expression begins that a text ends with: a name, members, indices and what is in brackets.
fn postfix_start(text: &str) -> usize {
    let mut start = text.len();
    loop {
        let before = text.get(..start).unwrap_or_default();
        let trimmed = before.trim_end();
        if trimmed.ends_with([')', ']']) {
            let mut depth = 0_usize;
            let open = trimmed.char_indices().rev().find(|(_, c)| match c {
                ')' | ']' => {
                    depth += 1;
                    false
                }
                '(' | '[' => {
                    depth = depth.saturating_sub(1);
                    depth == 0
                }
                _ => false,
            });
            let Some((at, bracket)) = open else {
                return start;
            };
            start = at;
            if bracket == '(' {
                return start;
            }
            continue;
        }
        let name = name_start(before);
        if name == start {
            return start;
        }
        start = name;
        let before = text.get(..start).unwrap_or_default();
        if let Some(inner) = before
            .strip_suffix("->")
            .or_else(|| before.strip_suffix('.'))
        {
            start = inner.len();
            if name_start(inner) == inner.len() && !inner.ends_with([')', ']']) {
                // What comes through the pipe.
                return name - (before.len() - inner.len());
            }
            continue;
        }
        return start;
    }
}

/// What stands at the end of a line. `takes` tells a command's arguments.
#[must_use]
pub fn cursor<'l>(line: &'l str, takes: &dyn Fn(&str) -> Option<Takes>) -> Cursor<'l> {
    let is_command = |name: &str| takes(name).is_some();
    let at = last_stage(line, &is_command);
    let before = line.get(..at).unwrap_or_default();
    let before = before.strip_suffix('|').unwrap_or(before);
    let part = line.get(at..).unwrap_or_default();
    let part = part.trim_start();
    let offset = line.len() - part.len();
    let end = |wanted, word: &str| Cursor {
        wanted,
        start: line.len() - word.len(),
        before,
    };
    let stage = stage(part, &is_command);
    let has_name = part.contains("::") || !part.contains(char::is_whitespace);
    let is_naming = stage.rest.is_empty() && !part.ends_with(char::is_whitespace) && has_name;
    if is_naming {
        let colons = part.rfind("::").map_or(0, |at| at + 2);
        let word = line.get(offset + colons..).unwrap_or_default();
        return end(Wanted::Command(!before.is_empty()), word);
    }
    // The argument as it is typed, with blanks behind it.
    let rest_at = part.rfind(stage.rest).filter(|_| !stage.rest.is_empty());
    let rest = rest_at.and_then(|at| part.get(at..)).unwrap_or_default();
    let rest = if part.ends_with(char::is_whitespace) {
        rest
    } else {
        rest.trim_end()
    };
    let takes = takes(stage.name).unwrap_or(Takes::Nothing);
    let (wanted, word) = argument(rest, takes, stage.address.is_some());
    end(wanted, word)
}

/// What stands at the end of arguments, and the word as far as it is typed.
fn argument(rest: &str, takes: Takes, has_address: bool) -> (Wanted<'_>, &str) {
    let word_at = name_start(rest);
    let (left, word) = rest.split_at_checked(word_at).unwrap_or((rest, ""));
    match takes {
        Takes::Nothing => (Wanted::Nothing, word),
        Takes::Command => (Wanted::Command(false), word),
        Takes::Symbol => (Wanted::Symbol, word),
        Takes::TypeMember => typed(rest, left, word),
        Takes::Expression if has_address => typed(rest, left, word),
        Takes::Type => (Wanted::Type(keyword(left)), word),
        Takes::Walker if left.is_empty() => (Wanted::Walker, word),
        Takes::Walker | Takes::Expression => (expression(left), word),
    }
}

/// A type, then members of it.
fn typed<'r>(rest: &'r str, left: &'r str, word: &'r str) -> (Wanted<'r>, &'r str) {
    let (ty, members) = type_first(rest);
    let is_typing = members.is_empty() && !rest.ends_with(char::is_whitespace);
    if is_typing || ty.is_empty() || keyword(left) == ty {
        return (Wanted::Type(keyword(left)), word);
    }
    let path = members
        .rsplit(char::is_whitespace)
        .next()
        .unwrap_or_default();
    let path = if rest.ends_with(char::is_whitespace) {
        ""
    } else {
        path
    };
    let path = path.strip_suffix(word).unwrap_or(path);
    let path = path
        .strip_suffix("->")
        .or_else(|| path.strip_suffix('.'))
        .unwrap_or(path);
    (Wanted::TypeMember(ty, path), word)
}

/// The keyword of a type that a text ends with.
fn keyword(left: &str) -> &str {
    let last = left
        .split(|c: char| c.is_whitespace() || c == '(')
        .rfind(|word| !word.is_empty());
    let is_open = left.ends_with(char::is_whitespace);
    last.filter(|word| is_open && matches!(*word, "struct" | "union" | "enum" | "class"))
        .unwrap_or_default()
}

fn expression(left: &str) -> Wanted<'_> {
    if let Some(before) = left.strip_suffix("->").or_else(|| left.strip_suffix('.')) {
        let start = postfix_start(before);
        return match before.get(start..).unwrap_or_default() {
            "" => Wanted::Element,
            owner => Wanted::Member(owner),
        };
    }
    let keyword = keyword(left);
    let is_sizeof = left.trim_end().ends_with("sizeof(") || left.ends_with("sizeof ");
    match keyword.is_empty() && !is_sizeof {
        true => Wanted::Name,
        false => Wanted::Type(keyword),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(name: &str) -> Option<Takes> {
        Some(match name {
            "print" | "where" => Takes::Expression,
            "walk" => Takes::Walker,
            "offsetof" | "list" => Takes::TypeMember,
            "sizeof" => Takes::Type,
            "symbols" => Takes::Symbol,
            "maps" => Takes::Nothing,
            _ => return None,
        })
    }

    /// The word at the end of each line, and what it should be.
    #[test]
    fn cursors_are_understood() {
        use Wanted::{Command, Element, Member, Name, Nothing, Symbol, Type, TypeMember, Walker};
        for (line, wanted, word) in [
            ("", Command(false), ""),
            ("pri", Command(false), "pri"),
            ("::pri", Command(false), "pri"),
            ("0x12::pr", Command(false), "pr"),
            ("walk conns | wh", Command(true), "wh"),
            ("walk conns | ", Command(true), ""),
            ("walk co", Walker, "co"),
            ("print ", Name, ""),
            ("print all", Name, "all"),
            ("print net::al", Name, "net::al"),
            ("print conn.c`al", Name, "conn.c`al"),
            ("print a + al", Name, "al"),
            ("print all.", Member("all"), ""),
            ("print r->conn->ad", Member("r->conn"), "ad"),
            ("print 1 + a.b[c.d].e", Member("a.b[c.d]"), "e"),
            (
                "print ((struct conn *)x)->i",
                Member("((struct conn *)x)"),
                "i",
            ),
            ("print *net::held->ne", Member("net::held"), "ne"),
            ("print (struct co", Type("struct"), "co"),
            ("print sizeof(co", Type(""), "co"),
            ("sizeof struct dt", Type("struct"), "dt"),
            ("sizeof dt", Type(""), "dt"),
            (
                "offsetof struct conn ad",
                TypeMember("struct conn", ""),
                "ad",
            ),
            ("offsetof struct conn ", TypeMember("struct conn", ""), ""),
            (
                "offsetof struct conn addr.na",
                TypeMember("struct conn", "addr"),
                "na",
            ),
            ("offsetof struct co", Type("struct"), "co"),
            (
                "0x1::print struct conn addr->na",
                TypeMember("struct conn", "addr"),
                "na",
            ),
            ("walk conns | print .st", Element, "st"),
            ("walk conns | where .a.b", Element, "b"),
            ("symbols han", Symbol, "han"),
            ("maps x", Nothing, "x"),
        ] {
            let found = cursor(line, &takes);
            let wanted = match (line, wanted) {
                ("walk conns | where .a.b", _) => Member(".a"),
                (_, wanted) => wanted,
            };
            assert_eq!(
                (&found.wanted, &line[found.start..]),
                (&wanted, word),
                "{line}"
            );
        }
        assert_eq!(
            cursor("walk conns | print .st", &takes).before,
            "walk conns "
        );
    }

    /// There is a word at the end of any line.
    #[test]
    fn any_line_has_a_cursor() {
        for line in [
            "(",
            "print )",
            "print ].",
            "print ->",
            "\u{e9}.",
            "::",
            "print `.",
            "offsetof ",
            "print a)->",
        ] {
            let _ = cursor(line, &takes);
        }
    }
}

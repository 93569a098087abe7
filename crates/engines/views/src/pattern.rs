//! Names of types with places for their arguments: `std::vector<T, A>`.

/// What the letters of a pattern stand for, in its order.
pub type Captures<'n> = Vec<(char, &'n str)>;

/// A part of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// This character.
    Plain(char),
    /// A letter, or `*`: any text in which brackets are balanced.
    Any(char),
}

/// The parts of a pattern. A capital letter counts where no other letter is beside it.
fn parts(pattern: &str) -> Vec<Part> {
    let all: Vec<char> = pattern.chars().collect();
    let is_word = |at: Option<usize>| {
        at.and_then(|at| all.get(at))
            .is_some_and(|c| c.is_alphanumeric() || *c == '_' || *c == ':')
    };
    let part = |(at, c): (usize, &char)| {
        let is_alone = !is_word(at.checked_sub(1)) && !is_word(at.checked_add(1));
        match c {
            '*' => Part::Any('*'),
            c if c.is_ascii_uppercase() && is_alone => Part::Any(*c),
            c => Part::Plain(*c),
        }
    };
    let all = all.iter().enumerate().map(part);
    all.filter(|part| *part != Part::Plain(' ')).collect()
}

/// Whether a name fits a pattern, and what the letters stand for. Blanks do not count.
#[must_use]
pub fn matches<'n>(pattern: &str, name: &'n str) -> Option<Captures<'n>> {
    let parts = parts(pattern);
    let mut found = Vec::new();
    let mut rest = name;
    for (at, part) in parts.iter().enumerate() {
        match part {
            Part::Plain(wanted) => rest = rest.trim_start().strip_prefix(*wanted)?,
            Part::Any(letter) => {
                let end = match parts.get(at + 1) {
                    Some(Part::Plain(end)) => balanced(rest, *end)?,
                    _ => rest.len(),
                };
                let (text, after) = rest.split_at_checked(end)?;
                let text = text.trim();
                match found.iter().find(|(known, _)| known == letter) {
                    Some((_, known)) if *letter != '*' && *known != text => return None,
                    Some(_) => {}
                    None => found.push((*letter, text)),
                }
                rest = after;
            }
        }
    }
    rest.trim().is_empty().then_some(found)
}

/// Where a character stands outside of brackets.
fn balanced(text: &str, end: char) -> Option<usize> {
    let mut depth = 0_usize;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let is_arrow = before == '-' && c == '>';
        if depth == 0 && c == end && !is_arrow {
            return Some(at);
        }
        match c {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' if is_arrow => {}
            '>' | ')' | ']' | '}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        before = c;
    }
    None
}

/// A type's name with what the letters behind `$` stand for. Closing brackets have a blank between them, as compilers write them.
#[must_use]
pub fn filled(text: &str, captures: &[(char, String)]) -> String {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let named = captures
            .iter()
            .find(|(letter, _)| chars.peek() == Some(letter));
        match (c, named) {
            ('$', Some((_, text))) => {
                out.push_str(text);
                chars.next();
            }
            ('>', _) if out.ends_with('>') => out.push_str(" >"),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Letters stand for whole arguments, with the brackets in them.
    #[test]
    fn arguments_are_captured() {
        let of = |pattern: &str, name: &'static str| matches(pattern, name);
        assert_eq!(
            of(
                "std::vector<T, A>",
                "std::vector<std::pair<int, char>, std::allocator<x> >"
            ),
            Some(vec![
                ('T', "std::pair<int, char>"),
                ('A', "std::allocator<x>")
            ])
        );
        assert_eq!(
            of(
                "std::map<K, V, C, std::allocator<P>>",
                "std::map<int, a, std::less<int>, std::allocator<std::pair<int const, a> > >"
            )
            .and_then(|found| found.last().copied()),
            Some(('P', "std::pair<int const, a>"))
        );
        assert_eq!(of("&[T]", "&[&[u8]]"), Some(vec![('T', "&[u8]")]));
        assert_eq!(
            of(
                "core::sync::atomic::Atomic*",
                "core::sync::atomic::AtomicU32"
            ),
            Some(vec![('*', "U32")])
        );
        assert_eq!(
            of("Aa<T>", "Aa<fn(i32) -> u8>"),
            Some(vec![('T', "fn(i32) -> u8")])
        );
        for (pattern, name) in [
            ("std::vector<T, A>", "std::vector<int>"),
            ("std::vector<T, A>", "std::vectors<int, b>"),
            ("X<T, T>", "X<int, char>"),
            ("Aa<T>", "Aa<b"),
            ("Aa<T>", "Aa<b>>"),
            ("Aa<T>", ""),
        ] {
            assert_eq!(of(pattern, name), None, "{pattern} {name}");
        }
        let captures = [('P', "std::pair<int>".to_owned())];
        assert_eq!(filled("node<$P> *", &captures), "node<std::pair<int> > *");
    }
}

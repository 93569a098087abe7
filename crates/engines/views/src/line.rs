//! A line of commands: stages between `|`, in windlass' and in mdb's spelling, and a command of the shell behind `!`.

/// A command of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage<'l> {
    /// What stands before mdb's `::`.
    pub address: Option<&'l str>,
    /// The command's name.
    pub name: &'l str,
    /// What follows it.
    pub rest: &'l str,
}

/// A line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line<'l> {
    /// Its commands; what one gives goes to the next.
    pub stages: Vec<Stage<'l>>,
    /// What their text goes to.
    pub shell: Option<&'l str>,
}

/// Where each character outside of brackets and quotes is.
fn outside(text: &str) -> impl Iterator<Item = (usize, char)> + '_ {
    let mut depth = 0_usize;
    let mut quote = None;
    let mut is_escaped = false;
    text.char_indices().filter(move |(_, c)| {
        if let Some(open) = quote {
            if !is_escaped && *c == open {
                quote = None;
            }
            is_escaped = !is_escaped && *c == '\\';
            return false;
        }
        match c {
            '"' | '\'' => quote = Some(*c),
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => return depth == 0,
        }
        false
    })
}

/// Where the last stage of a line begins that may not be complete: behind a `|` that is followed by a command, or by what can become one.
#[must_use]
pub fn last_stage(line: &str, is_command: &dyn Fn(&str) -> bool) -> usize {
    bars(line, &|after| {
        let word = first_word(after);
        is_command(word) || word.len() == after.trim_start().len()
    })
    .last()
    .map_or(0, |at| at + 1)
}

/// The bars that divide a line.
fn bars(line: &str, is_stage: &dyn Fn(&str) -> bool) -> Vec<usize> {
    let bytes = line.as_bytes();
    let is_bar = |at: Option<usize>| at.and_then(|at| bytes.get(at)) == Some(&b'|');
    let found = outside(line).filter(|(at, c)| {
        *c == '|'
            && !is_bar(at.checked_sub(1))
            && !is_bar(at.checked_add(1))
            && line.get(at + 1..).is_some_and(is_stage)
    });
    found.map(|(at, _)| at).collect()
}

/// The word that a stage begins with, without mdb's colons.
fn first_word(stage: &str) -> &str {
    let stage = stage.trim_start();
    let plain = stage.strip_prefix("::").unwrap_or(stage);
    plain.split_whitespace().next().unwrap_or_default()
}

/// Takes a line apart. A `|` before a command's name divides it; another one is C's.
#[must_use]
pub fn line<'l>(text: &'l str, is_command: &dyn Fn(&str) -> bool) -> Line<'l> {
    let text = text.trim();
    let bang = outside(text).find(|(at, c)| {
        let around = text.get(..*at).zip(text.get(at + 1..));
        *c == '!'
            && around.is_some_and(|(before, after)| {
                (before.is_empty() || before.ends_with(char::is_whitespace))
                    && after.starts_with(char::is_whitespace)
            })
    });
    let (commands, shell) = match bang {
        Some((at, _)) => (
            text.get(..at).unwrap_or_default(),
            text.get(at + 1..).map(str::trim),
        ),
        None => (text, None),
    };
    let mut stages = Vec::new();
    let mut start = 0;
    let ends = bars(commands, &|after| is_command(first_word(after)));
    for end in ends.into_iter().chain([commands.len()]) {
        let part = commands.get(start..end).unwrap_or_default().trim();
        if !part.is_empty() {
            stages.push(stage(part, is_command));
        }
        start = end + 1;
    }
    Line { stages, shell }
}

/// One command.
#[must_use]
pub fn stage<'l>(text: &'l str, is_command: &dyn Fn(&str) -> bool) -> Stage<'l> {
    let (address, text) = match text.split_once("::") {
        Some(("", rest)) => (None, rest),
        // The colons of a name such as net::all come behind a word.
        Some((before, rest))
            if !before.contains(char::is_whitespace) && is_command(first_word(rest)) =>
        {
            (Some(before), rest)
        }
        _ => (None, text),
    };
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    Stage {
        address,
        name,
        rest: rest.trim(),
    }
}

/// Words that go on as a type.
const KEYWORDS: [&str; 10] = [
    "struct", "union", "enum", "class", "const", "unsigned", "signed", "long", "short", "volatile",
];

/// A type's name at the start of a line, and what follows it: `struct conn *` and `next`.
#[must_use]
pub fn type_first(line: &str) -> (&str, &str) {
    let mut end = 0;
    let mut is_open = true;
    let mut brackets = 0_usize;
    for word in line.split_inclusive(char::is_whitespace) {
        let plain = word.trim();
        let is_stars = !plain.is_empty() && plain.bytes().all(|letter| letter == b'*');
        let goes_on = matches!(plain, "int" | "long" | "char" | "short" | "unsigned")
            && line.get(..end).is_some_and(|before| {
                let last = before.split_whitespace().last().unwrap_or_default();
                KEYWORDS.contains(&last)
            });
        if !is_open && !is_stars && brackets == 0 && !goes_on {
            break;
        }
        let is_base = matches!(plain, "unsigned" | "signed" | "long" | "short");
        is_open = KEYWORDS.contains(&plain) && !is_base;
        let opened = brackets + plain.matches('<').count();
        brackets = opened.saturating_sub(plain.matches('>').count());
        end += word.len();
    }
    let (name, rest) = line.split_at_checked(end).unwrap_or((line, ""));
    (name.trim(), rest.trim())
}

/// Expressions that begin with a member, each behind a blank: `.id .addr->name`.
#[must_use]
pub fn members(text: &str) -> Option<Vec<&str>> {
    let begins = |text: &str| text.starts_with('.') || text.starts_with("->");
    let text = text.trim();
    if !begins(text) {
        return None;
    }
    let mut starts = vec![0];
    for (at, c) in outside(text) {
        let before = text.get(..at).unwrap_or_default().trim_end();
        let after = text.get(at + c.len_utf8()..).unwrap_or_default();
        let is_end = before.ends_with(|c: char| c.is_alphanumeric() || "_])".contains(c));
        if c.is_whitespace() && begins(after) && is_end {
            starts.push(at + c.len_utf8());
        }
    }
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let part = |(start, end): (&usize, usize)| text.get(*start..end).unwrap_or_default().trim();
    Some(starts.iter().zip(ends).map(part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(word: &str) -> bool {
        ["print", "walk", "where", "count", "head"].contains(&word)
    }

    /// A bar divides commands, or is C's.
    #[test]
    fn lines_are_taken_apart() {
        let names = |text: &'static str| -> Vec<(&str, &str)> {
            let line = line(text, &known);
            line.stages
                .iter()
                .map(|stage| (stage.name, stage.rest))
                .collect()
        };
        assert_eq!(
            names("walk conns | where .a | 1 || \"| count\" == b | print .x"),
            [
                ("walk", "conns"),
                ("where", ".a | 1 || \"| count\" == b"),
                ("print", ".x")
            ]
        );
        assert_eq!(names("print (a | count)"), [("print", "(a | count)")]);
        assert_eq!(
            names("::walk x|::print T m"),
            [("walk", "x"), ("print", "T m")]
        );
        let with = line("print a ! grep 'x | y'", &known);
        assert_eq!((with.stages.len(), with.shell), (1, Some("grep 'x | y'")));
        assert_eq!(line("print !a != b", &known).shell, None);
        assert_eq!(
            line("! ls", &known),
            Line {
                stages: Vec::new(),
                shell: Some("ls")
            }
        );
        let stage = stage("0x10::print struct a b", &known);
        assert_eq!((stage.address, stage.rest), (Some("0x10"), "struct a b"));
        assert_eq!(super::stage("print net::all", &known).address, None);
        for text in [
            "|",
            "||",
            "| |",
            "'",
            "\"|",
            "!",
            "::",
            "a::",
            "(((",
            "\u{e9}|\u{e9}",
        ] {
            let _ = (line(text, &known), last_stage(text, &known));
        }
    }

    #[test]
    fn types_and_members_are_parted() {
        for (text, ty, rest) in [
            ("struct conn * next", "struct conn *", "next"),
            ("unsigned long x", "unsigned long", "x"),
            ("long long unsigned int x", "long long unsigned int", "x"),
            ("net::Pool<int, a> size", "net::Pool<int, a>", "size"),
            ("conn_t", "conn_t", ""),
        ] {
            assert_eq!(type_first(text), (ty, rest));
        }
        assert_eq!(
            members(".id .a->b[c .d] ->x"),
            Some(vec![".id", ".a->b[c .d]", "->x"])
        );
        assert_eq!(members(".a + .b"), Some(vec![".a + .b"]));
        assert_eq!(members("a .b"), None);
    }
}

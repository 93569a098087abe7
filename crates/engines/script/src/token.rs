//! The words of the language, with their places.

use crate::{ScriptError, Span};

/// One word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    /// A name, or a keyword: with its file, scopes and template arguments, ``conn.c`all``, `net::Pool<int>::all`.
    Name(String),
    /// A number; `10ms` is one of nanoseconds, `1K` is 1,024.
    Integer(u64),
    /// What stands between double quotes, without escapes.
    Text(String),
    /// An operator or a bracket.
    Mark(&'static str),
}

/// Operators and brackets, the longest first.
const MARKS: [&str; 35] = [
    "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "->", "..", "(", ")", "[", "]", "{", "}", "<",
    ">", "+", "-", "*", "/", "%", "&", "|", "^", "!", "~", "?", ":", ";", ",", ".", "=", "@",
];

/// What a number may end with, and how much it is.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("", 1),
];

/// The words of a text.
///
/// # Errors
/// A character that begins no word, a number that is none, a text without end.
pub(crate) fn tokens(text: &str) -> Result<Vec<(Token, Span)>, ScriptError> {
    let mut all = Vec::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..)
        && let Some(first) = rest.chars().next()
    {
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        let (token, len) = next(rest).map_err(|why| ScriptError::at(at..at + 1, why))?;
        all.push((token, at..at + len));
        at += len;
    }
    Ok(all)
}

/// The word that a text begins with, and its length in bytes.
fn next(text: &str) -> Result<(Token, usize), String> {
    let first = text.chars().next().unwrap_or_default();
    let len = |is_such: &dyn Fn(char) -> bool| text.find(|c| !is_such(c)).unwrap_or(text.len());
    if first.is_ascii_digit() {
        let len = len(&is_of_name);
        let word = text.get(..len).unwrap_or_default();
        return Ok((Token::Integer(integer(word)?), len));
    }
    if is_of_name(first) {
        let len = name_len(text);
        return Ok((
            Token::Name(text.get(..len).unwrap_or_default().to_owned()),
            len,
        ));
    }
    match first {
        '"' => quoted(text, '"').map(|(text, len)| (Token::Text(text), len)),
        '\'' => {
            let (text, len) = quoted(text, '\'')?;
            let mut bytes = text.bytes();
            match (bytes.next(), bytes.next()) {
                (Some(byte), None) => Ok((Token::Integer(byte.into()), len)),
                _ => Err("a character is one byte between single quotes".to_owned()),
            }
        }
        _ => {
            let mark = MARKS.into_iter().find(|mark| text.starts_with(mark));
            let mark = mark.ok_or_else(|| format!("`{first}` begins nothing"))?;
            Ok((Token::Mark(mark), mark.len()))
        }
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

/// Bytes of the name that a text begins with.
fn name_len(text: &str) -> usize {
    let rest = |at: usize| text.get(at..).unwrap_or_default();
    let mut end = 0;
    // A process, a library, a file.
    while let Some(len) = rest(end).find(|c| !(is_of_name(c) || "._-+".contains(c)))
        && rest(end + len).starts_with('`')
    {
        end += len + 1;
    }
    loop {
        end += rest(end)
            .find(|c| !is_of_name(c))
            .unwrap_or(rest(end).len());
        end += arguments_len(rest(end)).unwrap_or(0);
        match rest(end).strip_prefix("::") {
            Some(next) if next.starts_with(is_of_name) => end += 2,
            _ => return end,
        }
    }
}

/// Bytes of the template arguments that a text begins with. A comparison is not one: what is between the brackets must be types, and what follows must
/// be a scope, a pointer or an end.
fn arguments_len(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before == '-' => {}
            '>' => depth = depth.checked_sub(1)?,
            '&' if before == '&' => return None,
            c if depth > 0 && (is_of_name(c) || " :,*&()[];-'".contains(c)) => {}
            _ => return None,
        }
        before = c;
        if depth == 0 {
            let after = text.get(at + 1..).unwrap_or_default();
            let next = after.trim_start();
            let is_end = next.is_empty() || next.starts_with(['*', ')']);
            return (is_end || after.starts_with("::")).then_some(at + 1);
        }
    }
    None
}

/// What stands between quotes, and the length with them.
fn quoted(text: &str, quote: char) -> Result<(String, usize), String> {
    let mut value = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        let c = match c {
            _ if c == quote => return Ok((value, at + 1)),
            '\\' => match chars.next() {
                Some((_, 'n')) => '\n',
                Some((_, 't')) => '\t',
                Some((_, '0')) => '\0',
                Some((_, c @ ('\\' | '"' | '\''))) => c,
                _ => return Err("after \\ comes n, t, 0, \\ or a quote".to_owned()),
            },
            c => c,
        };
        value.push(c);
    }
    Err(format!("{quote} is not closed"))
}

fn integer(word: &str) -> Result<u64, String> {
    let wrong = || format!("{word} is no number");
    if let Some(digits) = word.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).map_err(|_| wrong());
    }
    let of = |(unit, times): &(&str, u64)| {
        let digits = word.strip_suffix(unit)?;
        digits.parse::<u64>().ok()?.checked_mul(*times)
    };
    UNITS.iter().find_map(of).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_apart() {
        let words = |text: &str| -> Vec<Token> {
            let all = tokens(text).unwrap();
            all.into_iter().map(|(token, _)| token).collect()
        };
        let name = |name: &str| Token::Name(name.to_owned());
        assert_eq!(
            words("r->conn.x >= 1K && 'a'"),
            [
                name("r"),
                Token::Mark("->"),
                name("conn"),
                Token::Mark("."),
                name("x"),
                Token::Mark(">="),
                Token::Integer(1024),
                Token::Mark("&&"),
                Token::Integer(97),
            ]
        );
        assert_eq!(
            words("0xff 10ms 2s \"a\\\"b\""),
            [
                Token::Integer(255),
                Token::Integer(10_000_000),
                Token::Integer(2_000_000_000),
                Token::Text("a\"b".to_owned()),
            ]
        );
        for (text, names) in [
            ("libc.so.6`environ - 1", &["libc.so.6`environ"][..]),
            (
                "(pid8`LM0`libc.so.1`glob_t *)0",
                &["pid8`LM0`libc.so.1`glob_t"],
            ),
            (
                "a ? net::x : conn.c`net::y",
                &["a", "net::x", "conn.c`net::y"],
            ),
            ("Pool<int, A<2>>::all.x", &["Pool<int, A<2>>::all", "x"]),
            ("(Pool<int> *)p", &["Pool<int>", "p"]),
            ("a<b && c>d", &["a", "b", "c", "d"]),
            ("a<b", &["a", "b"]),
            ("(a<b) == (c>d)", &["a", "b", "c", "d"]),
        ] {
            let found = words(text).into_iter().filter_map(|word| match word {
                Token::Name(name) => Some(name),
                _ => None,
            });
            assert_eq!(found.collect::<Vec<_>>(), names, "{text}");
        }
        for (text, at) in [("a # b", 2), ("12x", 0), ("x == \"abc", 5), ("'ab'", 0)] {
            assert_eq!(tokens(text).unwrap_err().span.start, at, "{text}");
        }
    }
}

//! A line that is edited at a terminal.
//!
//! # Model
//! Keys are bytes; each one changes the line, which is written anew. The terminal gives them one by one: `stty` (coreutils) sets that, and sets back
//! what was before. Without it lines are read as they come.
//!
//! # Limits
//! A line that is longer than the terminal is wide is shown with its beginning cut.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// What stands before each line.
const PROMPT: &str = "> ";
/// Columns of a line that are shown.
const WIDTH: usize = 76;
/// Lines of offers that a second Tab writes.
const LISTED: usize = 40;
/// Columns of those.
const COLUMNS: usize = 80;

/// What Tab offers: where the word begins, the words, and whether there are more.
pub(super) type Offered = (usize, Vec<String>, bool);

/// How a line ended.
#[derive(Debug, PartialEq)]
pub(super) enum Typed {
    Line(String),
    /// It was given up.
    Nothing,
    End,
}

/// A terminal that gives single keys, as long as this lives.
pub(super) struct Keys(String);

impl Keys {
    /// `None` where that cannot be set.
    pub(super) fn take() -> Option<Self> {
        let before = stty(&["-g"])?;
        stty(&[
            "-icanon", "-echo", "-isig", "-ixon", "min", "1", "time", "0",
        ])?;
        Some(Self(before.trim().to_owned()))
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = stty(&[&self.0]);
    }
}

/// Runs stty(1) on the terminal that is standard input.
fn stty(words: &[&str]) -> Option<String> {
    let mut command = Command::new("stty");
    let done = command.args(words).stdin(Stdio::inherit()).output().ok()?;
    done.status
        .success()
        .then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}

/// The line, the place in it, and the lines before.
pub(super) struct Editor<'e> {
    pub(super) history: Vec<String>,
    pub(super) offers: &'e dyn Fn(&str) -> Offered,
}

struct Line {
    letters: Vec<char>,
    at: usize,
    /// Which line of the history it is.
    past: usize,
    /// The key before was a Tab that completed nothing.
    is_asked: bool,
}

impl Line {
    fn set(&mut self, text: &str) {
        self.letters = text.chars().collect();
        self.at = self.letters.len();
    }

    fn text(&self) -> String {
        self.letters.iter().collect()
    }

    fn before(&self) -> String {
        self.letters.iter().take(self.at).collect()
    }

    /// Where the word begins that the place is in or behind.
    fn word(&self) -> usize {
        let mut at = self.at;
        while at > 0 && self.letters[at - 1] == ' ' {
            at -= 1;
        }
        while at > 0 && self.letters[at - 1] != ' ' {
            at -= 1;
        }
        at
    }

    fn cut(&mut self, from: usize, to: usize) {
        self.letters.drain(from..to);
        self.at = from;
    }

    fn draw(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let start = self.at.saturating_sub(WIDTH);
        let shown: String = self.letters.iter().skip(start).take(WIDTH).collect();
        let back = shown.chars().count() - (self.at - start);
        write!(out, "\r{PROMPT}{shown}\x1b[K")?;
        if back > 0 {
            write!(out, "\x1b[{back}D")?;
        }
        out.flush()
    }
}

impl Editor<'_> {
    /// Reads a line of keys.
    pub(super) fn read(
        &mut self,
        input: &mut dyn Read,
        out: &mut dyn Write,
    ) -> std::io::Result<Typed> {
        let past = self.history.len();
        let mut line = Line {
            letters: Vec::new(),
            at: 0,
            past,
            is_asked: false,
        };
        line.draw(out)?;
        loop {
            let Some(key) = byte(input)? else {
                return Ok(Typed::End);
            };
            let was_asked = std::mem::take(&mut line.is_asked);
            let end = line.letters.len();
            match key {
                b'\r' | b'\n' => {
                    out.write_all(b"\r\n")?;
                    let text = line.text();
                    if !text.trim().is_empty() && self.history.last() != Some(&text) {
                        self.history.push(text.clone());
                    }
                    return Ok(Typed::Line(text));
                }
                // Ctrl-C and Ctrl-D.
                3 => {
                    out.write_all(b"^C\r\n")?;
                    return Ok(Typed::Nothing);
                }
                4 if end == 0 => {
                    out.write_all(b"\r\n")?;
                    return Ok(Typed::End);
                }
                b'\t' => self.complete(&mut line, was_asked, out)?,
                // Ctrl-A, -B, -E, -F, -K, -U, -W, and Backspace.
                1 => line.at = 0,
                2 => line.at = line.at.saturating_sub(1),
                5 => line.at = end,
                6 => line.at = (line.at + 1).min(end),
                11 => line.letters.truncate(line.at),
                21 => line.cut(0, line.at),
                23 => line.cut(line.word(), line.at),
                8 | 127 if line.at > 0 => line.cut(line.at - 1, line.at),
                // Ctrl-N and -P.
                14 => self.turn(&mut line, 1),
                16 => self.turn(&mut line, -1),
                27 => self.escape(&mut line, input)?,
                key if key >= b' ' && key != 127 => {
                    if let Some(letter) = letter(key, input)? {
                        line.letters.insert(line.at, letter);
                        line.at += 1;
                    }
                }
                _ => {}
            }
            line.draw(out)?;
        }
    }

    /// A line of the history.
    fn turn(&self, line: &mut Line, by: isize) {
        let past = line.past.saturating_add_signed(by).min(self.history.len());
        if past != line.past {
            line.past = past;
            line.set(self.history.get(past).map_or("", String::as_str));
        }
    }

    /// Arrows and such.
    fn escape(&self, line: &mut Line, input: &mut dyn Read) -> std::io::Result<()> {
        if !matches!(byte(input)?, Some(b'[' | b'O')) {
            return Ok(());
        }
        let end = line.letters.len();
        match byte(input)? {
            Some(b'A') => self.turn(line, -1),
            Some(b'B') => self.turn(line, 1),
            Some(b'C') => line.at = (line.at + 1).min(end),
            Some(b'D') => line.at = line.at.saturating_sub(1),
            Some(b'H') => line.at = 0,
            Some(b'F') => line.at = end,
            // With a number, and ~ behind it: 3 is Delete.
            Some(key @ b'0'..=b'9') => {
                let _ = byte(input)?;
                if key == b'3' && line.at < end {
                    line.letters.remove(line.at);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Completes as far as all offers agree; the second time lists them.
    fn complete(
        &self,
        line: &mut Line,
        was_asked: bool,
        out: &mut dyn Write,
    ) -> std::io::Result<()> {
        let before = line.before();
        let (start, names, is_cut) = (self.offers)(&before);
        let word = before.get(start..).unwrap_or_default();
        let common = common(&names);
        if names.len() == 1 || common.len() > word.len() {
            let from = line.at - word.chars().count();
            line.cut(from, line.at);
            for letter in common.chars() {
                line.letters.insert(line.at, letter);
                line.at += 1;
            }
            return Ok(());
        }
        line.is_asked = true;
        if was_asked && !names.is_empty() {
            list(&names, is_cut, out)?;
        }
        Ok(())
    }
}

/// What all words begin with.
fn common(names: &[String]) -> &str {
    let Some((first, rest)) = names.split_first() else {
        return "";
    };
    let len = rest.iter().fold(first.len(), |len, name| {
        let same = first.bytes().zip(name.bytes()).take_while(|(a, b)| a == b);
        same.count().min(len)
    });
    let mut len = len;
    while !first.is_char_boundary(len) {
        len -= 1;
    }
    &first[..len]
}

/// Writes words in columns.
fn list(names: &[String], is_cut: bool, out: &mut dyn Write) -> std::io::Result<()> {
    let longest = names
        .iter()
        .map(|name| name.chars().count())
        .max()
        .unwrap_or(0);
    let columns = (COLUMNS / (longest + 2)).max(1);
    out.write_all(b"\r\n")?;
    for row in names.chunks(columns).take(LISTED) {
        let cells = row.iter().map(|name| format!("{name:<longest$}"));
        let row = cells.collect::<Vec<_>>().join("  ");
        write!(out, "{}\r\n", crate::table::clean(row.trim_end()))?;
    }
    if is_cut || names.len() > columns * LISTED {
        out.write_all(b"... and more\r\n")?;
    }
    Ok(())
}

fn byte(input: &mut dyn Read) -> std::io::Result<Option<u8>> {
    let mut key = [0];
    Ok((input.read(&mut key)? == 1).then_some(key[0]))
}

/// The letter that begins with this byte.
fn letter(first: u8, input: &mut dyn Read) -> std::io::Result<Option<char>> {
    let more = match first {
        0xc0..=0xdf => 1,
        0xe0..=0xef => 2,
        0xf0..=0xf7 => 3,
        _ => 0,
    };
    let mut bytes = vec![first];
    for _ in 0..more {
        bytes.extend(byte(input)?);
    }
    let text = std::str::from_utf8(&bytes).ok();
    Ok(text.and_then(|text| text.chars().next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys make the line that they should.
    #[test]
    fn keys_make_lines() {
        let offers = |line: &str| {
            let names = ["print", "printed", "walk"];
            let start = line.rfind(' ').map_or(0, |at| at + 1);
            let fitting = names.iter().filter(|name| name.starts_with(&line[start..]));
            (
                start,
                fitting.map(|name| (*name).to_owned()).collect(),
                false,
            )
        };
        let mut editor = Editor {
            history: vec!["first".to_owned(), "second".to_owned()],
            offers: &offers,
        };
        let mut read = |keys: &[u8]| {
            let mut out = Vec::new();
            let typed = editor.read(&mut &*keys, &mut out).expect("no terminal");
            (typed, String::from_utf8(out).expect("text"))
        };
        let line = |text: &str| Typed::Line(text.to_owned());
        for (keys, typed) in [
            (&b"abc\r"[..], line("abc")),
            (b"abd\x7fc\x1b[D\x1b[D\x01x\x05y\r", line("xabcy")),
            (b"one two\x17three\r", line("one three")),
            (b"one\x15two\x02\x0b\r", line("tw")),
            (b"wa\t x\r", line("walk x")),
            (b"p\t\r", line("print")),
            ("é\u{4e2d}\x7f\r".as_bytes(), line("é")),
            (b"a\x1b[H\x1b[3~b\r", line("b")),
            (b"\x1b[A\x1b[A\x1b[B\r", line("b")),
            (b"abc\x03", Typed::Nothing),
            (b"\x04", Typed::End),
            (b"abc", Typed::End),
            (b"\x1b[99\xff\xc3\r", Typed::End),
        ] {
            assert_eq!(read(keys).0, typed, "{keys:?}");
        }
        assert!(read(b"print\t\t\r").1.contains("print    printed"));
    }
}
